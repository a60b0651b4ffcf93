#include "runtime/base/executable.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace lazyrope {

namespace fs = std::filesystem;

namespace {

// Returns the subdirectories of `directory`, sorted, or none if it cannot be read.
std::vector<fs::path> subdirectories(const fs::path& directory) {
  std::vector<fs::path> result;
  std::error_code failed;
  for (fs::directory_iterator it(directory, failed), end; !failed && it != end;
       it.increment(failed))
    if (it->is_directory(failed)) result.push_back(it->path());
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

std::vector<std::string> nvrtc_directories_beside_executable() {
  std::error_code failed;
  const fs::path executable = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return {};
  std::vector<std::string> result;
  for (const fs::path& python : subdirectories(executable.parent_path().parent_path() / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"})  // pip's, and Debian's pip's
      for (const fs::path& package : subdirectories(python / packages / "nvidia"))
        if (fs::is_directory(package / "lib", failed)) result.push_back((package / "lib").string());
  }
  return result;
}

}  // namespace lazyrope
