#include "codegen/tile_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/error.h"

namespace lazyrope {
namespace {

constexpr int kRunSlots = 16;
constexpr int kElementBytes = 2;

constexpr int kItemBytes = 64;
constexpr int kFlagBytes = 16;

// pipeline/block_table.cuh: infos of 16 bytes, runs of 8, and where the search stands.
int table_bytes(int warp_keys) {
  const int runs = warp_keys / kRunSlots;
  const int capacity = 2 * (32 / runs);
  return capacity * (16 + runs * 8) + 16;
}

struct Row {
  int head_dim;
  int shared_per_sm;  // KiB; the row is meant for SMs with at least this much
  TilePlan plan;
};

// Candidates of the sm80 family, best first for each head_dim. A decode CTA streams KV: what counts
// is the bytes under way on an SM, stages - 1 blocks in each of its rings. A prefill CTA computes:
// what counts is 32 rows a warp (a warp reads each block from shared memory once for all its rows)
// and two CTAs on an SM, one's softmax under the other's products.
const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {64, 160, {{1, 4, 16, 16, 16, 3, 2}, {4, 1, 32, 64, 64, 2, 2}}},
      {64, 100, {{1, 4, 16, 16, 16, 2, 2}, {4, 1, 32, 64, 64, 2, 1}}},
      {128, 228, {{1, 4, 16, 16, 16, 2, 2}, {4, 1, 32, 64, 64, 2, 2}}},
      {128, 160, {{1, 4, 16, 16, 16, 2, 1}, {4, 1, 32, 32, 32, 2, 2}}},
      {128, 100, {{1, 4, 16, 16, 16, 2, 1}, {4, 1, 32, 32, 32, 2, 1}}},
  };
  return table;
}

bool fits(const AttendPlan& plan, int head_dim, const Arch& arch) {
  const int bytes = plan.shared_bytes(head_dim);
  return bytes <= arch.shared_per_block &&
         plan.ctas_per_sm * (bytes + kReservedSharedPerBlock) <= arch.shared_per_sm;
}

std::string describe(const AttendPlan& plan) {
  return fmt::format("{}x{} warps, {} rows x {} keys, {} stages, {}/SM", plan.row_warps,
                     plan.key_warps, plan.rows(), plan.block_keys(), plan.stages, plan.ctas_per_sm);
}

}  // namespace

int AttendPlan::shared_bytes(int head_dim) const {
  const int row_bytes = head_dim * kElementBytes;
  const int ring = stages * 2 * warp_keys * row_bytes;
  const int queries = row_warps * key_warps * warp_rows * row_bytes;
  const int original = key_warps > 1 ? rows() * row_bytes : 0;
  return key_warps * ring + queries + original + key_warps * table_bytes(warp_keys) + rows() * 4 +
         kItemBytes + kFlagBytes;
}

std::string describe(const TilePlan& plan) {
  return fmt::format("decode {}; prefill {}", describe(plan.decode), describe(plan.prefill));
}

std::vector<int> planned_head_dims() {
  std::vector<int> result;
  for (const Row& row : rows()) result.push_back(row.head_dim);
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::vector<TilePlan> candidates(const KernelSpec& spec, const Arch& arch) {
  std::vector<TilePlan> result;
  for (const Row& row : rows())
    if (row.head_dim == spec.head_dim && row.shared_per_sm * 1024 <= arch.shared_per_sm &&
        fits(row.plan.decode, row.head_dim, arch) && fits(row.plan.prefill, row.head_dim, arch))
      result.push_back(row.plan);
  if (result.empty())
    throw SpecError(fmt::format("no plan for head_dim {} in the {} KiB of shared memory of {}",
                                spec.head_dim, arch.shared_per_sm / 1024, arch.name));
  return result;
}

}  // namespace lazyrope
