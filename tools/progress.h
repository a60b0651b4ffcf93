#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/engine/engine.h"

namespace lazyrope {

// Shows the progress of compiling on stderr. On a terminal it draws a bar, prints log messages
// above it, and erases it at the end. Otherwise it prints one line for each kernel that was
// compiled.
class Progress : public KernelListener {
 public:
  Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() override;

  void on_begin(std::size_t kernels) override;
  void on_result(const KernelRequest& request, const KernelResult& result) override;
  // Shows `what` beside the bar, on a terminal only.
  void set_status(std::string_view what);

 private:
  void write_above(std::string_view line);
  void draw();

  bool is_terminal_;
  std::mutex mutex_;  // guards the terminal and the members below
  std::size_t total_ = 0;
  std::size_t done_ = 0;
  std::string latest_;
};

}  // namespace lazyrope
