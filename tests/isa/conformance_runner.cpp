#include "tests/isa/conformance_runner.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "codegen/template_text.h"
#include "runtime/emulator/device.h"
#include "tests/support/engines.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "tests/isa/kernels";

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string entry_of(const ConformanceKernel& kernel) { return "conformance_" + kernel.name; }
std::string source_of(const ConformanceKernel& kernel) {
  return fmt::format("{}/{}.cu", kFolder, kernel.name);
}

// Returns the source of a kernel that calls conformance_kernel().
TemplateFile template_of(const ConformanceKernel& kernel) {
  return {source_of(kernel),
          fmt::format("#include \"{0}/{1}.cuh\"\n\n"
                      "LAZYROPE_KERNEL({2}, {3}, 1, lazyrope::ConformanceParams) {{\n"
                      "  lazyrope::conformance_kernel(params);\n}}\n",
                      kFolder, kernel.name, entry_of(kernel), kernel.threads)};
}

bool register_kernels() {
  for (const fs::directory_entry& file :
       fs::directory_iterator(LAZYROPE_TEST_SOURCE_DIR "/isa/kernels"))
    register_template(
        {fmt::format("{}/{}", kFolder, file.path().filename().string()), read_text(file.path())});
  for (const ConformanceKernel& kernel : conformance_kernels())
    register_template(template_of(kernel));
  return true;
}

Binary compiled(const ConformanceKernel& kernel, const Arch& arch) {
  return conformance_compiler(arch)->compile(render_conformance_kernel(kernel, arch.isa), arch);
}

void upload(const DeviceBuffer& buffer, const Words& words) {
  buffer.device().copy_from_host(buffer.data(), words.data(), buffer.bytes(), nullptr);
}

TensorMap map_of(const ConformanceCase& test_case, const Device& device,
                 const DeviceBuffer& input) {
  if (!test_case.tensor) return {};
  TensorMapSpec spec = test_case.tensor->spec;
  spec.data = static_cast<std::uint32_t*>(input.data()) + test_case.tensor->first_word;
  return device.encode(spec);
}

}  // namespace

RenderedKernel render_conformance_kernel(const ConformanceKernel& kernel, std::string_view isa) {
  [[maybe_unused]] static const bool registered = register_kernels();
  return {KernelKind::kPlan,
          expand_template(source_of(kernel), {}, isa),
          entry_of(kernel),
          kernel.threads,
          1,
          kernel.shared_bytes};
}

std::shared_ptr<Compiler> conformance_compiler(const Arch& arch) {
  const Config config = test_config();
  if (arch.isa == "emu") return host_compiler(config.host_compiler);
  return std::make_shared<NvrtcCompiler>(std::make_shared<NvrtcLocator>(
      NvrtcSearch{.configured = {}, .directories = config.nvrtc_directories}));
}

ConformanceRunner::ConformanceRunner(const ConformanceKernel& kernel,
                                     std::shared_ptr<const Device> device)
    : conformance_kernel_(kernel),
      device_(std::move(device)),
      binary_(compiled(kernel, device_->arch())),
      kernel_(device_->load(binary_)) {}

Words ConformanceRunner::run(const ConformanceCase& test_case, unsigned char fill) const {
  const Words words = input_of(test_case);
  const DeviceBuffer input(device_, words.size() * sizeof(words[0]));
  upload(input, words);
  Words output(test_case.output_words, 0x01010101u * fill);
  const DeviceBuffer result(device_, output.size() * sizeof(output[0]));
  upload(result, output);
  const ConformanceParams params = {static_cast<uint32*>(input.data()),
                                    static_cast<uint32*>(result.data()), test_case.which,
                                    test_case.count, map_of(test_case, *device_, input)};
  kernel_->launch(conformance_kernel_.ctas, &params, nullptr, [&]() -> std::vector<MemoryRange> {
    return {{"input", input.data(), input.bytes(), true},
            {"output", result.data(), result.bytes(), true}};
  });
  device_->copy_to_host(output.data(), result.data(), result.bytes(), nullptr);
  return output;
}

}  // namespace lazyrope
