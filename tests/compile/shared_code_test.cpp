// One cubin serves all RoPE tables: with a kernel's own table it equals, byte for byte, the cubin
// that NVRTC makes of the kernel's source.
#include "runtime/engine/shared_code.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "codegen/render.h"
#include "tests/compile/kernel_report.h"
#include "tests/support/specs.h"

namespace lazyrope {
namespace {

struct Case {
  std::string arch;
  KernelKind kind;
  std::string variant;
  int head_dim = 64;
  KeyForm key_form = KeyForm::kLocal;
};

std::vector<std::byte> compiled(const RenderedKernel& kernel, const Arch& arch) {
  return compile_program(shared_engine().nvrtc().library(), {kernel.entry + ".cu", kernel.source,
                                                             NvrtcCompiler(nullptr).options(arch)})
      .cubin;
}

RenderedKernel rendered(const Case& test) {
  KernelSpec spec;
  spec.head_dim = test.head_dim;
  spec.group_size = 4;
  spec.key_form = test.key_form;
  spec.rope = example_rope(test.variant, spec.head_dim);
  const Arch& arch = find_arch(test.arch);
  return render(test.kind, spec, configs(spec, arch).front(), arch);
}

std::vector<Case> few_cases() {
  return {{"sm_90a", KernelKind::kAttendDecode, "llama3"},
          {"sm_80", KernelKind::kAttendPrefill, "yarn"},
          {"sm_90a", KernelKind::kAppend, "gptj"},
          {"sm_90a", KernelKind::kAttendPrefill, "longrope"},
          {"sm_90a", KernelKind::kRotateKeys, "llama3", 64, KeyForm::kRaw},
          {"sm_80", KernelKind::kReposition, "linear"}};
}

// One arch of each family, and one variant of each pairing.
std::vector<Case> more_cases() {
  std::vector<Case> cases;
  std::vector<KernelKind> kinds = attention_kernels();
  kinds.push_back(KernelKind::kReposition);
  for (const char* arch : {"sm_80", "sm_90a"})
    for (const int head_dim : supported_head_dims())
      for (const char* variant : {"llama3", "gptj"})
        for (const KernelKind kind : kinds) cases.push_back({arch, kind, variant, head_dim});
  return cases;
}

TEST(SharedCode, WithATableEqualsTheCodeOfTheKernelsOwnSource) {
  const bool is_long = ::getenv("LAZYROPE_SOAK") != nullptr;
  int compared = 0;
  for (const Case& test : is_long ? more_cases() : few_cases()) {
    const RenderedKernel kernel = rendered(test);
    if (kernel.rope_table.empty()) continue;
    const Arch& arch = find_arch(test.arch);
    const RenderedKernel shared = shared_form(kernel);
    std::vector<std::byte> code = compiled(shared, arch);
    ASSERT_TRUE(serves_all_tables(shared, code)) << test.arch << " " << test.variant;
    ASSERT_TRUE(has_placeholder(kernel, code));
    write_table(kernel, code);
    EXPECT_FALSE(has_placeholder(kernel, code));
    EXPECT_TRUE(code == compiled(kernel, arch))
        << test.arch << " " << to_string(test.kind) << " " << test.variant << " " << test.head_dim;
    ++compared;
  }
  EXPECT_GE(compared, 4);
}

}  // namespace
}  // namespace lazyrope
