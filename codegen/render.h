#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/arch.h"
#include "codegen/kernel_config.h"
#include "codegen/kernel_spec.h"

namespace lazyrope {

// The kernels of one attention: the planner of a step, attend for few rows and for many, the
// planner of an append, and append. And, on its own, reposition, which few need.
enum class KernelKind { kPlan, kAttendDecode, kAttendPrefill, kPlanAppend, kAppend, kReposition };

inline constexpr int kKernelKinds = 6;

std::string_view to_string(KernelKind);       // "config", "attend_decode", ...
std::vector<KernelKind> kernel_kinds();       // all
std::vector<KernelKind> attention_kernels();  // those of an attention

// One self-contained source and what launching it takes.
struct RenderedKernel {
  KernelKind kind;
  std::string source;
  std::string entry;
  int threads;       // of a CTA
  int ctas_per_sm;   // that the source asks the compiler to leave room for
  int shared_bytes;  // dynamic, of a CTA
};

// Throws SpecError on an illegal spec or config.
RenderedKernel render(KernelKind kind, const KernelSpec& spec, const KernelConfig& config,
                      const Arch& arch);

}  // namespace lazyrope
