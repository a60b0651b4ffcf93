#include "tools/environment.h"

#include <algorithm>
#include <system_error>

namespace lazyrope {

namespace fs = std::filesystem;

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> result;
  std::error_code failed;
  for (fs::directory_iterator at(directory, failed); !failed && at != fs::directory_iterator();
       at.increment(failed))
    result.push_back(at->path());
  std::ranges::sort(result);
  return result;
}

std::optional<fs::path> install_prefix() {
  std::error_code failed;
  const fs::path command = fs::read_symlink("/proc/self/exe", failed);
  return failed ? std::nullopt : std::optional(command.parent_path().parent_path());
}

std::vector<fs::path> python_package_directories() {
  const std::optional<fs::path> prefix = install_prefix();
  if (!prefix) return {};
  std::vector<fs::path> result;
  for (const fs::path& python : entries_of(*prefix / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    // Debian's pip installs outside environments into dist-packages.
    for (const char* packages : {"site-packages", "dist-packages"})
      if (std::error_code absent; fs::is_directory(python / packages, absent))
        result.push_back(python / packages);
  }
  return result;
}

std::vector<std::string> installed_nvrtc_directories() {
  std::vector<std::string> result;
  for (const fs::path& packages : python_package_directories())
    for (const fs::path& package : entries_of(packages / "nvidia"))
      if (std::error_code absent; fs::is_directory(package / "lib", absent))
        result.push_back((package / "lib").string());
  return result;
}

}  // namespace lazyrope
