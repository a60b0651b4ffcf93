#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/arch.h"
#include "codegen/kernel_config.h"
#include "codegen/kernel_spec.h"

namespace lazyrope {

// The kernels of an attention: the planner of a step, attend for requests with few rows (decode),
// attend for requests with many rows (prefill), the planner of an append, and append.
// With a cascade (templates/abi/cascade.h) there are three more: share, which makes the shared
// step, attend for it, and the kernel that combines its results with those of the step. With
// rotated keys (codegen/rotated_keys.h) there are three others: the one that assigns runs of
// scratch to the segments of a step, the one that rotates keys into the scratch, and attend for the
// scratch. With page_mass (templates/abi/page_mass.h) there are two others: the one that finds room
// for terms of page masses, and the one that adds them up. Reposition is compiled separately,
// because few callers need it.
enum class KernelKind {
  kPlan,
  kAttendDecode,
  kAttendPrefill,
  kPlanAppend,
  kAppend,
  kShare,
  kAttendShared,
  kCombineShared,
  kPlanRotation,
  kRotateKeys,
  kAttendRotated,
  kPlanPageMass,
  kSumPageMass,
  kReposition
};

inline constexpr int kKernelKinds = 14;

std::string_view to_string(KernelKind);       // "plan", "attend_decode", ...
std::vector<KernelKind> kernel_kinds();       // all
std::vector<KernelKind> attention_kernels();  // those that every attention has

// These functions return the kernels that a spec has on an arch: all of them, or all but
// reposition.
std::vector<KernelKind> kernel_kinds(const KernelSpec& spec, const Arch& arch);
std::vector<KernelKind> attention_kernels(const KernelSpec& spec, const Arch& arch);

// The revolutions per token of each pair that a kernel rotates, as 64-bit binary fractions.
using RopeTable = std::vector<std::uint64_t>;

// One self-contained source and the facts that its launch needs.
struct RenderedKernel {
  KernelKind kind;
  std::string source;
  std::string entry;
  int threads;            // per CTA
  int ctas_per_sm;        // CTAs that an SM must have registers for: __launch_bounds__
  int shared_bytes;       // dynamic shared memory per CTA
  std::string spec = {};  // describe() of the spec and of the config that it was rendered from
  std::string config = {};
  RopeTable rope_table = {};  // empty if the source has none, and in kernels for the emulator
};

// Returns the kernel with another table of the same length in its source. Throws SpecError if the
// source does not have `rendered.rope_table` exactly once.
RenderedKernel with_rope_table(RenderedKernel rendered, RopeTable table);

// Renders the source of one kernel. Throws SpecError if the spec or the config is illegal, or if
// the spec has no such kernel on the arch. This function reads no file and compiles nothing, and is
// safe to call from several threads.
RenderedKernel render(KernelKind kind, const KernelSpec& spec, const KernelConfig& config,
                      const Arch& arch);

}  // namespace lazyrope
