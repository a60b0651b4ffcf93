// A sequential program of the rule by which templates/planner/equal_splits.cuh cuts units.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "templates/abi/plan.h"
#include "templates/planner/policy.h"

namespace lazyrope {

// The tiles of a step whose shares are short.
struct EqualSplitsInput {
  std::vector<int> blocks;  // blocks of each tile
  std::int64_t group_cost;
  int num_groups;
  int shares;  // shares of equal cost that the step could have
};

// Returns the splits of each tile, or none if the units are not cut into equal splits. A tile
// without blocks counts as one block, because its rows are written, too.
inline std::vector<int> equal_splits(EqualSplitsInput input, const PlanPhase& phase) {
  std::vector<int>& blocks = input.blocks;
  const int tiles = static_cast<int>(blocks.size());
  const int ctas_of_group = phase.work.num_ctas / input.num_groups;
  if (tiles == 0 || tiles > kTilesAtOnce || tiles > ctas_of_group) return {};
  for (int& count : blocks) count = std::max(count, 1);
  const auto splits = [&](int length) {
    return std::accumulate(blocks.begin(), blocks.end(), 0,
                           [&](int sum, int count) { return sum + (count + length - 1) / length; });
  };
  const std::int64_t cost = input.group_cost * input.num_groups;
  const std::int64_t share_blocks = std::int64_t{kBlockCost} * input.shares;
  const std::int64_t limit = cost + std::max(cost / kShareTolerance, share_blocks);
  const int most = static_cast<int>(limit / share_blocks), min = phase.min_split_blocks;
  const int longest = *std::ranges::max_element(blocks);
  const int least = longest > kMaxSingleTileSplits * min ? 2 * min : min;
  int length = 0;
  for (int i = 0, tried = most; i < 32 && tried >= least; ++i, tried -= 1 + most / 64)
    if (splits(tried) <= ctas_of_group) length = tried;
  if (length == 0) return {};
  const std::int64_t all = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  const std::int64_t of_blocks = input.group_cost - std::int64_t{tiles} * phase.work_tile_cost;
  if (length * input.shares * of_blocks > limit * all) return {};
  const std::int64_t short_split = short_split_cost(phase.short_share_cost);
  if (splits(length) > tiles && cost > short_split * input.shares) return {};
  std::vector<int> result;
  for (const int count : blocks)
    result.push_back(std::min((count + length - 1) / length, std::max(count / min, 1)));
  return result;
}

}  // namespace lazyrope
