#include "tools/environment.h"

#include <system_error>

namespace lazyrope {

namespace fs = std::filesystem;

fs::path install_prefix() {
  std::error_code failed;
  return fs::read_symlink("/proc/self/exe", failed).parent_path().parent_path();
}

std::vector<std::string> installed_nvrtc_directories() {
  std::vector<std::string> result;
  std::error_code absent;  // an absent directory is iterated as an empty one
  for (const fs::path& python : fs::directory_iterator(install_prefix() / "lib", absent)) {
    if (!python.filename().string().starts_with("python3")) continue;
    // Debian's pip installs outside environments into dist-packages.
    for (const char* packages : {"site-packages", "dist-packages"})
      for (const fs::path& package : fs::directory_iterator(python / packages / "nvidia", absent))
        if (fs::is_directory(package / "lib", absent)) result.push_back((package / "lib").string());
  }
  return result;
}

}  // namespace lazyrope
