// Both instruction sets meet templates/isa/contract.cuh, and the contract names every wrapper.
#include <gtest/gtest.h>

#include <string>

#include "codegen/template_text.h"
#include "runtime/base/error.h"
#include "runtime/emulator/device.h"
#include "tests/isa/conformance_runner.h"
#include "tests/isa/wrappers.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

// Returns an empty kernel whose source begins with the contract and `line`.
RenderedKernel kernel_with(const std::string& line, const Arch& arch) {
  const std::string source = expand_template("isa/contract.cuh", {}, arch.isa) + line +
                             "\nstruct Nothing {\n  int unused;\n};\n"
                             "LAZYROPE_KERNEL(contract, 32, 1, Nothing) { (void)params; }\n";
  return {KernelKind::kPlan, source, "contract", 32, 1, 0};
}

class Contract : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (arch_.isa == "emu" && !has_emulator()) GTEST_SKIP() << "this build has no emulator";
  }

  void compile(const std::string& line) const {
    conformance_compiler(arch_)->compile(kernel_with(line, arch_), arch_);
  }

  const Arch& arch_ = find_arch(GetParam());
};

TEST_P(Contract, InstructionSetMeetsTheContract) { EXPECT_NO_THROW(compile("")); }

TEST_P(Contract, WrongResultTypeDoesNotCompile) {
  const std::string wrong =
      "static_assert(lazyrope::contract::kSame<int, decltype(lazyrope::bar_sync())>);";
  EXPECT_TRUE(throws<CompileError>([&] { compile(wrong); }, {"assert"}));
}

INSTANTIATE_TEST_SUITE_P(Archs, Contract, testing::Values("sm_80", "sm_90a", "emu:sm_80"),
                         [](const auto& arch) {
                           const std::string name = arch.param;
                           return name.substr(name.find(':') + 1) +
                                  (name.starts_with("emu") ? "_emulated" : "");
                         });

TEST(ContractText, ContractNamesEveryWrapper) {
  std::string text;
  for (const TemplateFile& file : embedded_templates())
    if (file.path == "isa/contract.cuh") text = file.text;
  for (const std::string& wrapper : all_wrappers())
    EXPECT_TRUE(names_wrapper(text, wrapper)) << "isa/contract.cuh does not have " << wrapper;
}

}  // namespace
}  // namespace lazyrope
