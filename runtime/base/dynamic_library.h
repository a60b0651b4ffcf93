#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace lazyrope {

// A shared library opened at run time. Its code stays mapped after the handle is closed: NVRTC and
// the CUDA driver register thread-exit handlers that must not outlive it.
class DynamicLibrary {
 public:
  // `name` is a path, or a soname to be found as the loader finds it. Throws std::runtime_error
  // with the loader's reason.
  static DynamicLibrary open(const std::string& name);

  // The library of that soname, if this process has loaded it already, by whatever path.
  static std::optional<DynamicLibrary> already_loaded(const std::string& soname);

  // Address of a symbol, or null.
  void* find(const char* symbol) const noexcept;

  // The file as the loader opened it.
  const std::string& path() const noexcept { return path_; }

  // What of it lies in memory.
  std::span<const std::byte> image() const;

  // The ELF build-id in hex, which names this very build; empty when the library has none.
  std::string build_id() const;

 private:
  struct Closer {
    void operator()(void* handle) const noexcept;
  };

  explicit DynamicLibrary(void* handle);

  std::unique_ptr<void, Closer> handle_;
  std::string path_;
};

}  // namespace lazyrope
