// The values that a spec, a config and an arch put into the sources, below the last #include of
// each template, equal the golden files. A changed value changes the source of its kernel, and with
// it the key in the cache, so that this kernel is compiled again. LAZYROPE_UPDATE_GOLDENS=1 writes
// the files from the sources that are rendered now.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "codegen/render.h"
#include "codegen/template_text.h"
#include "runtime/driver/compiler.h"
#include "tests/support/specs.h"

namespace lazyrope {
namespace {

struct Golden {
  const char* name;
  const char* arch;
  KernelSpec spec;
};

void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

std::vector<Golden> goldens() {
  using enum Dtype;
  constexpr RopeForm kRaw = RopeForm::kRaw;
  constexpr RopeForm kRotated = RopeForm::kRotated;
  constexpr KeyForm kLocal = KeyForm::kLocal;
  KernelSpec cascade = {128, 4, kBf16, neox(128), "sliding_window", kRotated, kLocal, kRotated};
  cascade.mask_parameters = {{"window", 4096}};
  cascade.cascade = true;
  KernelSpec page_mass = {128, 4, kBf16, llama3(128), "causal", kRaw, kLocal, kRaw};
  page_mass.page_mass = true;
  KernelSpec key_bias = {128, 4, kBf16, llama3(128), "causal", kRaw, kLocal, kRaw};
  key_bias.key_bias = true;
  KernelSpec states = {128, 4, kBf16, llama3(128), "causal", kRaw, kLocal, kRaw};
  states.states = true;
  return {
      {"cascade_sm_90a", "sm_90a", cascade},
      {"llama3_sm_90a", "sm_90a", {128, 4, kBf16, llama3(128), "causal", kRaw, kLocal, kRaw}},
      {"rotated_sm_80", "sm_80", {64, 1, kFp16, neox(64), "causal", kRotated, kLocal, kRotated}},
      {"none_sm_86", "sm_86", {64, 8, kBf16, {}, "full", kRaw, kLocal, kRaw}},
      {"partial_sm_100", "sm_100", {128, 16, kBf16, neox(32), "causal", kRaw, kLocal, kRaw}},
      {"full_sm_120", "sm_120", {64, 3, kFp16, llama3(64), "full", kRaw, kLocal, kRotated}},
      {"page_mass_sm_90a", "sm_90a", page_mass},
      {"key_bias_sm_90a", "sm_90a", key_bias},
      {"states_sm_90a", "sm_90a", states},
      {"longrope_sm_90a", "sm_90a", {128, 3, kBf16, longrope(96), "causal", kRaw, kLocal, kRaw}},
      {"raw_keys_sm_90a",
       "sm_90a",
       {128, 4, kBf16, neox(128), "causal", kRaw, KeyForm::kRaw, kRaw}},
      {"neox_emulated", "emu:sm_80", {128, 7, kFp16, neox(128), "causal", kRaw, kLocal, kRaw}}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Returns the template's lines from its last #include on.
std::vector<std::string> template_lines(KernelKind kind) {
  using enum KernelKind;
  const bool attends = kind == kAttendDecode || kind == kAttendPrefill || kind == kAttendShared ||
                       kind == kAttendRotated;
  const std::string path =
      fmt::format("kernel/{}.cu.in", attends ? "attend" : std::string(to_string(kind)));
  for (const TemplateFile& file : embedded_templates())
    if (file.path == path) return lines_of(file.text.substr(file.text.rfind("#include")));
  return {};
}

// Returns the kernel's threads, CTAs and shared memory, then the lines of its source for which
// template_lines() has a "${". No value has a line end, so the last lines of the source match those
// of the template one by one.
std::string values_in(const RenderedKernel& kernel) {
  const std::vector<std::string> asks = template_lines(kernel.kind);
  const std::vector<std::string> lines = lines_of(kernel.source);
  std::string text =
      fmt::format("{}: {} threads, {} CTAs an SM, {} bytes of shared memory\n",
                  to_string(kernel.kind), kernel.threads, kernel.ctas_per_sm, kernel.shared_bytes);
  for (std::size_t i = 1; i < asks.size(); ++i)
    if (asks[i].find("${") != std::string::npos)
      text += lines[lines.size() - asks.size() + i] + "\n";
  return text + "\n";
}

std::string rendered(const Golden& golden) {
  const Arch& arch = find_arch(golden.arch);
  const KernelConfig config = configs(golden.spec, arch).front();
  std::string text = fmt::format("{}\n{}\n", golden.arch, describe(golden.spec));
  if (arch.isa == "ptx")
    text += fmt::format("{}\n", fmt::join(NvrtcCompiler(nullptr).options(arch), " "));
  text += "\n";
  for (const KernelKind kind : kernel_kinds(golden.spec, arch))
    text += values_in(render(kind, golden.spec, config, arch));
  return text;
}

std::string first_difference(const std::string& expected, const std::string& given) {
  const std::vector<std::string> a = lines_of(expected), b = lines_of(given);
  const auto line = [](const std::vector<std::string>& lines, std::size_t i) {
    return i < lines.size() ? lines[i] : "(no line)";
  };
  std::size_t i = 0;
  while (i < a.size() && line(a, i) == line(b, i)) ++i;
  return fmt::format("line {}\n  golden:   {}\n  rendered: {}", i + 1, line(a, i), line(b, i));
}

class Goldens : public testing::TestWithParam<Golden> {};

TEST_P(Goldens, RenderedValuesEqualTheGolden) {
  const std::string path =
      fmt::format("{}/golden/{}.txt", LAZYROPE_TEST_SOURCE_DIR, GetParam().name);
  const std::string text = rendered(GetParam());
  const char* update = ::getenv("LAZYROPE_UPDATE_GOLDENS");
  if (update != nullptr && std::string(update) == "1") std::ofstream(path) << text;
  std::ifstream in(path);
  const std::string expected(std::istreambuf_iterator<char>(in), {});
  EXPECT_TRUE(text == expected) << path << ", " << first_difference(expected, text)
                                << "\nLAZYROPE_UPDATE_GOLDENS=1 updates the file";
}

INSTANTIATE_TEST_SUITE_P(Render, Goldens, testing::ValuesIn(goldens()),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace lazyrope
