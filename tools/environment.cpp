#include "tools/environment.h"

#include <system_error>

namespace lazyrope {

namespace fs = std::filesystem;

fs::path environment_root() {
  std::error_code failed;
  const fs::path root = fs::read_symlink("/proc/self/exe", failed).parent_path().parent_path();
  return fs::exists(root / "bin" / "python3", failed) ? root : fs::path();
}

std::vector<std::string> environment_nvrtc_directories() {
  const fs::path root = environment_root();
  if (root.empty()) return {};
  std::vector<std::string> result;
  std::error_code absent;  // an absent directory is iterated as an empty one
  for (const fs::path& python : fs::directory_iterator(root / "lib", absent)) {
    if (!python.filename().string().starts_with("python3")) continue;
    const fs::path packages = python / "site-packages" / "nvidia";
    for (const fs::path& package : fs::directory_iterator(packages, absent))
      if (fs::is_directory(package / "lib", absent)) result.push_back((package / "lib").string());
  }
  return result;
}

}  // namespace lazyrope
