#include "codegen/arch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/error.h"

namespace lazyrope {
namespace {

constexpr int kKiB = 1024;

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const Arch& arch : archs()) result.push_back(arch.name);
  return result;
}

// Code for sm_XYa runs on that compute capability alone, other code on later minor versions as
// well.
bool runs_on(const Arch& arch, int major, int minor) {
  if (arch.isa != "ptx" || arch.major != major) return false;
  return arch.name.back() == 'a' ? arch.minor == minor : arch.minor <= minor;
}

}  // namespace

const std::vector<Arch>& archs() {
  static const std::vector<Arch> rows = {
      {"sm_80", 8, 0, 163 * kKiB, 164 * kKiB, "sm80"},
      {"sm_86", 8, 6, 99 * kKiB, 100 * kKiB, "sm80"},
      {"sm_87", 8, 7, 163 * kKiB, 164 * kKiB, "sm80"},
      {"sm_89", 8, 9, 99 * kKiB, 100 * kKiB, "sm80"},
      {"sm_90a", 9, 0, 227 * kKiB, 228 * kKiB, "sm80"},
      {"sm_100a", 10, 0, 227 * kKiB, 228 * kKiB, "sm80"},
      {"sm_120", 12, 0, 99 * kKiB, 100 * kKiB, "sm80"},
      {"emu:sm_80", 8, 0, 163 * kKiB, 164 * kKiB, "sm80", "emu"},
  };
  return rows;
}

const Arch& find_arch(std::string_view name) {
  for (const Arch& arch : archs())
    if (arch.name == name) return arch;
  throw SpecError(
      fmt::format("arch \"{}\" is unknown; there are: {}", name, fmt::join(names(), ", ")));
}

const Arch& arch_for_device(int major, int minor) {
  const Arch* best = nullptr;
  for (const Arch& arch : archs())
    if (runs_on(arch, major, minor) && (best == nullptr || arch.minor > best->minor)) best = &arch;
  if (best == nullptr)
    throw SpecError(
        fmt::format("no kernels for a GPU of compute capability {}.{}; lazyrope compiles for: {}",
                    major, minor, fmt::join(names(), ", ")));
  return *best;
}

}  // namespace lazyrope
