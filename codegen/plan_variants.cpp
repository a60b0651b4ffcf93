#include "codegen/plan_variants.h"

#include <algorithm>
#include <functional>

namespace lazyrope {
namespace {

constexpr int kMostDifferences = 2;
constexpr int kMostRegisters = 255;  // of a thread
constexpr int kRegisterGranularity = 8;
constexpr int kOtherRegisters = 60;  // addresses, statistics, loop state
constexpr int kWarpThreads = 32;

// Members that vary together, and what they may be.
struct Range {
  std::vector<int AttendPlan::*> members;
  std::vector<int> values;

  bool tells_apart(const AttendPlan& a, const AttendPlan& b) const {
    return std::ranges::any_of(members, [&](auto member) { return a.*member != b.*member; });
  }
};

// All that differ from `plan` in few enough ranges, itself first.
std::vector<AttendPlan> neighbours(const AttendPlan& plan, const std::vector<Range>& ranges,
                                   int most_differences) {
  const auto differences = [&](const AttendPlan& other) {
    return std::ranges::count_if(
        ranges, [&](const Range& range) { return range.tells_apart(plan, other); });
  };
  std::vector<AttendPlan> found = {plan};
  for (const Range& range : ranges) {
    const std::vector<AttendPlan> before = found;
    for (AttendPlan changed : before) {
      for (const int value : range.values) {
        for (const auto member : range.members) changed.*member = value;
        if (range.tells_apart(plan, changed) && differences(changed) <= most_differences)
          found.push_back(changed);
      }
    }
  }
  return found;
}

// Results and scores of a thread, in fp32, and what else it needs; a guess that spares compiling
// what is bound to spill.
bool fits_registers(const AttendPlan& plan, int head_dim) {
  if (plan.family == Family::kSm90a) return true;  // their number is the kernel's own
  const int needed = plan.warp_rows * (head_dim + plan.step_keys) / kWarpThreads + kOtherRegisters;
  const int share = kRegistersPerSm / (plan.threads(head_dim) * plan.ctas_per_sm);
  return needed <= std::min(kMostRegisters, share / kRegisterGranularity * kRegisterGranularity);
}

// With as many rows of a head: one head, or two side by side, whose keys are read together, each
// with warps of its own.
std::vector<AttendPlan> by_heads(const AttendPlan& plan) {
  if (plan.divides_rows()) return {};
  const auto with_heads = [&](int heads) {
    AttendPlan changed = plan;
    changed.heads = changed.row_warps = heads;
    changed.warp_rows = plan.head_rows();
    changed.stages = plan.stages * plan.heads / heads;
    return changed;
  };
  return {with_heads(1), with_heads(2)};
}

// The plan's own part, that with other heads side by side, and the best that the arch's other
// families have for it.
std::vector<AttendPlan> bases(const TilePlan& plan, AttendPlan TilePlan::* part,
                              const KernelSpec& spec, const Arch& arch) {
  std::vector<AttendPlan> result = {plan.*part};
  for (const AttendPlan& heads : by_heads(plan.*part)) {
    TilePlan changed = plan;
    changed.*part = heads;
    if (changed != plan && is_legal(changed, spec, arch)) result.push_back(heads);
  }
  for (const TilePlan& other : candidates(spec, arch))
    if (std::ranges::find(result, (other.*part).family, &AttendPlan::family) == result.end() &&
        (other.*part).divides_rows() == (plan.*part).divides_rows())
      result.push_back(other.*part);
  return result;
}

// Of a base's neighbours from it: other heads are one.
int most_differences(const AttendPlan& base, const AttendPlan& plan) {
  const bool has_other_heads = base.family == plan.family && base.heads != plan.heads;
  return kMostDifferences - (has_other_heads ? 1 : 0);
}

using Worth = std::function<bool(const AttendPlan&)>;

std::vector<TilePlan> variants(const TilePlan& plan, AttendPlan TilePlan::* part,
                               const std::vector<Range>& ranges, const Worth& is_worth,
                               const KernelSpec& spec, const Arch& arch) {
  std::vector<TilePlan> found = {plan};
  for (const AttendPlan& base : bases(plan, part, spec, arch))
    for (const AttendPlan& attend : neighbours(base, ranges, most_differences(base, plan.*part))) {
      TilePlan changed = plan;
      changed.*part = attend;
      if (changed != plan && fits_registers(attend, spec.head_dim) && is_worth(attend) &&
          is_legal(changed, spec, arch))
        found.push_back(changed);
    }
  return found;
}

// Of one SM.
int keys_under_way(const AttendPlan& plan) {
  return plan.ctas_per_sm * plan.heads * plan.block_keys() * (plan.stages - 1);
}
int rows_at_once(const AttendPlan& plan) { return plan.ctas_per_sm * plan.rows(); }

}  // namespace

// A head's rows stay: they say which requests the kernel serves. With half as many bytes under way
// memory would stand idle.
std::vector<TilePlan> decode_variants(const TilePlan& plan, const KernelSpec& spec,
                                      const Arch& arch) {
  const std::vector<Range> ranges = {
      {{&AttendPlan::key_warps}, {2, 4, 8}},
      {{&AttendPlan::warp_keys, &AttendPlan::step_keys}, {16, 32, 64}},
      {{&AttendPlan::stages}, {2, 3, 4, 5, 6, 8}},
      {{&AttendPlan::ctas_per_sm}, {1, 2, 3, 4}}};
  const auto is_worth = [&](const AttendPlan& attend) {
    return attend.head_rows() == plan.decode.head_rows() &&
           2 * keys_under_way(attend) >= keys_under_way(plan.decode);
  };
  return variants(plan, &TilePlan::decode, ranges, is_worth, spec, arch);
}

std::vector<TilePlan> prefill_variants(const TilePlan& plan, const KernelSpec& spec,
                                       const Arch& arch) {
  const std::vector<Range> ranges = {
      {{&AttendPlan::row_warps}, {4, 8}},        {{&AttendPlan::warp_rows}, {16, 32, 48, 64}},
      {{&AttendPlan::warp_keys}, {32, 64, 128}}, {{&AttendPlan::step_keys}, {16, 32, 64}},
      {{&AttendPlan::stages}, {2, 3}},           {{&AttendPlan::ctas_per_sm}, {1, 2, 3}}};
  const auto is_worth = [&](const AttendPlan& attend) {
    return 2 * rows_at_once(attend) >= rows_at_once(plan.prefill);
  };
  return variants(plan, &TilePlan::prefill, ranges, is_worth, spec, arch);
}

std::vector<TilePlan> split_variants(const TilePlan& plan) {
  std::vector<TilePlan> found = {plan};
  for (const int blocks : {1, 2, 4, 8}) {
    TilePlan changed = plan;
    changed.min_split_blocks = blocks;
    if (changed != plan) found.push_back(changed);
  }
  return found;
}

}  // namespace lazyrope
