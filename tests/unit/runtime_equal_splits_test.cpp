// Checks the equal splits of small steps, as the planner writes them in the emulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tests/unit/planner_test.h"

namespace lazyrope {
namespace {

// Requests have any length, one of them no keys.
class EqualSplits : public PlannerTest {};

TEST_P(EqualSplits, HaveEachBlockOfAUnitOnce) {
  constexpr int kBlockKeys = 16;
  bool is_cut = false, is_whole = false;
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "step " << seed);
    Random random(seed);
    StepArrays arrays = requests_of_length(setting_.requests, 1, setting_.page_size);
    const int longest = seed % 2 == 0 ? setting_.most_length : 20 * kBlockKeys;
    for (int& length : arrays.length) length = random.between(1, longest);
    arrays.length.back() = 0;
    arrays.pages.resize(static_cast<std::size_t>(longest));
    for (int& position : arrays.q_position) position = longest;
    plan(arrays, seed == 0);
    const PlanPhase& phase = params().phase[Step::kDecode];
    expect_planned(phase);
    if (!Model(setting_, arrays_, phase).has_equal_splits()) continue;
    std::map<std::pair<int, int>, std::vector<const WorkTile*>> units;
    for (int cta = 0; cta < phase.work.num_ctas; ++cta) {
      const WorkTile& work_tile = phase.work.work_tiles[cta];
      if (work_tile.extent.num_rows == 0) continue;
      EXPECT_EQ(work_tile.keys.next, kNoWorkTile) << "a CTA has one work tile";
      units[{work_tile.rows.kv_head, work_tile.rows.query_token}].push_back(&work_tile);
    }
    EXPECT_EQ(std::ssize(units), setting_.requests * setting_.num_kv_heads);
    for (auto& [unit, splits] : units) {
      const int length = arrays_.length[static_cast<std::size_t>(unit.second)];
      const int blocks = (length + kBlockKeys - 1) / kBlockKeys;
      std::ranges::sort(splits, {}, [](const WorkTile* split) { return split->split.index; });
      int end = 0;
      for (const WorkTile* split : splits) {
        EXPECT_EQ(split->split.count, std::ssize(splits));
        EXPECT_EQ(split->keys.first_block, end);
        EXPECT_EQ(split->extent.num_blocks > 0, blocks > 0);
        EXPECT_LE(splits.front()->extent.num_blocks - split->extent.num_blocks, 1);
        end += split->extent.num_blocks;
      }
      EXPECT_EQ(end, blocks);
      is_cut |= splits.size() > 1;
      is_whole |= splits.size() == 1;
    }
  }
  EXPECT_TRUE(is_cut && is_whole);
}

INSTANTIATE_TEST_SUITE_P(Steps, EqualSplits,
                         testing::Values(Setting{.name = "OfOneHead",
                                                 .num_kv_heads = 1,
                                                 .sm_count = 66,
                                                 .requests = 64,
                                                 .most_length = 1500},
                                         Setting{.name = "OfEightHeads",
                                                 .num_kv_heads = 8,
                                                 .sm_count = 66,
                                                 .requests = 9,
                                                 .most_length = 1500},
                                         Setting{.name = "OfThreeBlocks",
                                                 .num_kv_heads = 2,
                                                 .sm_count = 66,
                                                 .min_split_blocks = 3,
                                                 .requests = 20,
                                                 .most_length = 3000}),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace lazyrope
