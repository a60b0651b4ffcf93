#include "codegen/arch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/error.h"
#include "codegen/nearest_name.h"

namespace lazyrope {
namespace {

constexpr int kKiB = 1024;

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const Arch& arch : archs()) result.push_back(arch.name);
  return result;
}

// Code for sm_XYa runs on that compute capability alone. Other code also runs on later minor
// versions.
bool runs_on(const Arch& arch, int major, int minor) {
  if (arch.isa != "ptx" || arch.major != major) return false;
  return arch.name.back() == 'a' ? arch.minor == minor : arch.minor <= minor;
}

}  // namespace

std::string_view to_string(Family family) { return family == Family::kSm80 ? "sm80" : "sm90a"; }

Family family_of(std::string_view name) {
  for (const Family family : {Family::kSm80, Family::kSm90a})
    if (name == to_string(family)) return family;
  throw SpecError(fmt::format("family = {}; allowed are sm80 and sm90a", name));
}

const std::vector<Arch>& archs() {
  static const std::vector<Arch> rows = {
      {"sm_80", 8, 0, 163 * kKiB, 164 * kKiB, Family::kSm80},
      {"sm_86", 8, 6, 99 * kKiB, 100 * kKiB, Family::kSm80},
      {"sm_87", 8, 7, 163 * kKiB, 164 * kKiB, Family::kSm80},
      {"sm_89", 8, 9, 99 * kKiB, 100 * kKiB, Family::kSm80},
      {"sm_90a", 9, 0, 227 * kKiB, 228 * kKiB, Family::kSm90a},
      {"sm_100", 10, 0, 227 * kKiB, 228 * kKiB, Family::kSm80},
      {"sm_103", 10, 3, 227 * kKiB, 228 * kKiB, Family::kSm80},
      {"sm_110", 11, 0, 227 * kKiB, 228 * kKiB, Family::kSm80},
      {"sm_120", 12, 0, 99 * kKiB, 100 * kKiB, Family::kSm80},
      {"sm_121", 12, 1, 99 * kKiB, 100 * kKiB, Family::kSm80},
      {"emu:sm_80", 8, 0, 163 * kKiB, 164 * kKiB, Family::kSm80, "emu"},
      {"emu:sm_90a", 9, 0, 227 * kKiB, 228 * kKiB, Family::kSm90a, "emu"},
  };
  return rows;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] static void load_archs() { (void)archs(); }

const Arch& find_arch(std::string_view name) {
  for (const Arch& arch : archs())
    if (arch.name == name) return arch;
  throw SpecError(fmt::format("arch \"{}\" is unknown{}; there are: {}", name,
                              did_you_mean(name, names()), fmt::join(names(), ", ")));
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
