#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lazyrope {

// A shared library opened at run time. Its code stays mapped after the handle is closed, because
// NVRTC and the CUDA driver register thread-exit handlers that need it. Const functions are safe to
// call from several threads.
class DynamicLibrary {
 public:
  // Opens a library by its path, or by a soname that the loader searches for. Throws
  // std::runtime_error with the loader's reason.
  static DynamicLibrary open(const std::string& name);

  // Returns the library of that soname if this process has loaded it already, from any path.
  static std::optional<DynamicLibrary> already_loaded(const std::string& soname);

  // Returns the address of a symbol, or null.
  void* find(const char* symbol) const noexcept;

  // Loads a copy of the file, so the library's state is its own even if the process has loaded the
  // file already. The copy stays in memory. Throws std::runtime_error, which names the path.
  static DynamicLibrary open_copy(const std::string& path);

  // Returns the path of the file that the loader opened.
  const std::string& path() const noexcept { return path_; }

  // Makes the library's own calls of `symbol`, which another library defines, call `replacement`.
  // Returns false if the library has no such calls, or if the loader has made their addresses
  // read-only.
  bool redirect(std::string_view symbol, void* replacement) const;

  // Returns the mapped memory from the library's first segment to its last.
  std::span<const std::byte> image() const;

  // Returns the ELF build-id in hex, which identifies the exact build. It is empty when the library
  // has none.
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
