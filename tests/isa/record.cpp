// Runs conformance cases on this machine's GPU and writes tests/isa/recordings/NAME.rec. The tests
// labelled "isa" compare the emulator with these files. Cases that need another arch are skipped.
//
//   record_isa [NAME...]  # all cases by default
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <stdexcept>

#include "runtime/engine/devices.h"
#include "tests/isa/conformance_runner.h"
#include "tests/isa/recording.h"

namespace lazyrope {
namespace {

// Code for an arch sm_XYa runs on that arch alone; other code also runs on later archs.
bool runs_on(const ConformanceKernel& kernel, const Arch& arch) {
  const Arch& least = find_arch(kernel.least_arch);
  if (least.name.back() == 'a') return least.name == arch.name;
  return 10 * least.major + least.minor <= 10 * arch.major + arch.minor;
}

void record(const ConformanceRunner& runner, const Device& device,
            const ConformanceCase& test_case) {
  fmt::print("{}: ", test_case.name);  // printed first, so that a failure has a name
  std::fflush(stdout);
  const Words output = runner.run(test_case, 0x00);
  if (output != runner.run(test_case, 0xff))
    throw std::runtime_error(test_case.name +
                             " gives two different outputs, or does not write all of its output");
  write_recording(test_case, {.name = test_case.name,
                              .gpu = device.name(),
                              .driver = device.driver(),
                              .compiler = runner.binary().compiler,
                              .arch = device.arch().name,
                              .date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))),
                              .seed = fmt::format("{:016x}", seed_of(test_case)),
                              .input_sha256 = sha256_of(input_of(test_case)),
                              .output = output});
  fmt::print("{} words\n", output.size());
}

void record_all(const std::vector<std::string>& names) {
  const std::shared_ptr<const Device> gpu = current_gpu();
  for (const ConformanceKernel& kernel : conformance_kernels()) {
    if (!runs_on(kernel, gpu->arch())) continue;
    const ConformanceRunner runner(kernel, gpu);
    for (const ConformanceCase& test_case : conformance_cases())
      if (test_case.kernel == kernel.name &&
          (names.empty() || std::ranges::count(names, test_case.name) > 0))
        record(runner, *gpu, test_case);
  }
}

}  // namespace
}  // namespace lazyrope

int main(int count, char** arguments) {
  try {
    lazyrope::record_all({arguments + 1, arguments + count});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
