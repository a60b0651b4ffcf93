#include "tests/isa/run_witness.h"

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

constexpr const char* kFolder = "tests/isa/witness";

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string entry_of(const WitnessText& text) { return "witness_" + text.name; }
std::string source_of(const WitnessText& text) {
  return fmt::format("{}/{}.cu", kFolder, text.name);
}

// A text has a function; what makes it a kernel is the same for all.
TemplateFile kernel_of(const WitnessText& text) {
  return {source_of(text), fmt::format("#include \"{0}/{1}.cuh\"\n\n"
                                       "LAZYROPE_KERNEL({2}, {3}, 1, lazyrope::WitnessParams) {{\n"
                                       "  lazyrope::witness(params);\n}}\n",
                                       kFolder, text.name, entry_of(text), text.threads)};
}

bool register_texts() {
  for (const fs::directory_entry& file :
       fs::directory_iterator(LAZYROPE_TEST_SOURCE_DIR "/isa/witness"))
    register_template(
        {fmt::format("{}/{}", kFolder, file.path().filename().string()), read_text(file.path())});
  for (const WitnessText& text : witness_texts()) register_template(kernel_of(text));
  return true;
}

Binary compiled(const WitnessText& text, const Arch& arch) {
  return witness_compiler(arch)->compile(render_witness(text, arch.isa), arch);
}

void upload(const DeviceBuffer& buffer, const Words& words) {
  buffer.device().copy_from_host(buffer.data(), words.data(), buffer.bytes(), nullptr);
}

TensorMap map_of(const Witness& witness, const Device& device, const DeviceBuffer& input) {
  if (!witness.tensor) return {};
  TensorMapSpec spec = witness.tensor->spec;
  spec.data = static_cast<std::uint32_t*>(input.data()) + witness.tensor->first_word;
  return device.encode(spec);
}

}  // namespace

RenderedKernel render_witness(const WitnessText& text, std::string_view isa) {
  [[maybe_unused]] static const bool registered = register_texts();
  return {
      KernelKind::kPlan, expand_template(source_of(text), {}, isa), entry_of(text), text.threads, 1,
      text.shared_bytes};
}

std::shared_ptr<Compiler> witness_compiler(const Arch& arch) {
  const Config config = test_config();
  if (arch.isa == "emu") return host_compiler(config.host_compiler);
  return std::make_shared<NvrtcCompiler>(std::make_shared<NvrtcLocator>(
      NvrtcSearch{.configured = {}, .directories = config.nvrtc_directories}));
}

WitnessRunner::WitnessRunner(const WitnessText& text, std::shared_ptr<const Device> device)
    : text_(text),
      device_(std::move(device)),
      binary_(compiled(text, device_->arch())),
      kernel_(device_->load(binary_)) {}

Words WitnessRunner::run(const Witness& witness, unsigned char fill) const {
  const Words words = input_of(witness);
  const DeviceBuffer input(device_, words.size() * sizeof(words[0]));
  upload(input, words);
  Words output(witness.output_words, 0x01010101u * fill);
  const DeviceBuffer result(device_, output.size() * sizeof(output[0]));
  upload(result, output);
  const WitnessParams params = {static_cast<uint32*>(input.data()),
                                static_cast<uint32*>(result.data()), witness.which, witness.count,
                                map_of(witness, *device_, input)};
  kernel_->launch(text_.ctas, &params, nullptr, [&]() -> std::vector<MemoryRange> {
    return {{"input", input.data(), input.bytes(), true},
            {"output", result.data(), result.bytes(), true}};
  });
  device_->copy_to_host(output.data(), result.data(), result.bytes(), nullptr);
  return output;
}

}  // namespace lazyrope
