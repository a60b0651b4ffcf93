// Compares what the planner writes in the emulator with a plain model of its rules.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/config.h"
#include "tests/unit/planner_test.h"

namespace lazyrope {
namespace {

// The emulator searches for races in the first of the steps. `make soak` searches in all.
TEST_P(PlannerTest, WritesTheWorkTilesOfTheModel) {
  const bool is_soak = process_environment("LAZYROPE_SOAK").has_value();
  bool several_heads = false, several_planners = false, is_queued = false, loses_bits = false;
  for (unsigned seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(testing::Message() << "step " << seed);
    Random random(seed);
    plan(random_step(setting_, random), seed == 0 || is_soak);
    expect_copied();
    for (const PlanPhase& phase : phases()) {
      expect_planned(phase);
      is_queued |= phase.work.work_tiles->keys.next < kNoWorkTile;
      loses_bits |= Model(setting_, arrays_, phase).loses_bits();
    }
    several_heads |= params().phase[Step::kDecode].work.work_tiles->rows.num_heads > 1;
    several_planners |= params().num_planners > 1;
  }
  EXPECT_EQ(several_heads, setting_.heads_per_work_tile > 1 || setting_.tile_heads > 1);
  EXPECT_TRUE(several_planners || setting_.sm_count == 4);
  EXPECT_EQ(is_queued, setting_.has_queue);
  EXPECT_EQ(loses_bits, setting_.loses_bits);
}

class MatchedShares : public PlannerTest {};

TEST_P(MatchedShares, AreWholeUnitsOrEqualSplitsOfOneUnit) {
  constexpr int kBlocks = 48, kBlockKeys = 16, kShares = 32;
  const int units = setting_.requests * setting_.num_kv_heads;
  plan(requests_of_length(setting_.requests, kBlocks * kBlockKeys, setting_.page_size));
  const WorkView& work = params().phase[Step::kDecode].work;
  ASSERT_GT(work.num_ctas, kShares);
  for (int cta = 0; cta < work.num_ctas; ++cta) {
    SCOPED_TRACE(testing::Message() << "CTA " << cta);
    // CTAs without a share are spread out. Neighbours have the same share of two heads.
    const int rank = cta * kShares / work.num_ctas;
    const bool is_idle = (cta + 1) * kShares / work.num_ctas == rank;
    int work_tiles = 0;
    for (int at = cta; at >= 0 && work.work_tiles[at].extent.num_rows > 0;
         at = work.work_tiles[at].keys.next, ++work_tiles) {
      EXPECT_EQ(work.work_tiles[at].split.count, std::max(kShares / units, 1));
      EXPECT_EQ(work.work_tiles[at].extent.num_blocks,
                kBlocks * std::min(units, kShares) / kShares);
    }
    EXPECT_EQ(work_tiles, is_idle ? 0 : std::max(units / kShares, 1));
    if (!is_idle) {
      EXPECT_EQ(work.work_tiles[cta].rows.kv_head, rank % setting_.num_kv_heads);
    }
  }
}

// If shares are long, all CTAs have one. The limit is lower for splits than for whole units.
TEST_P(MatchedShares, UseAllCtasIfTheyAreLong) {
  constexpr int kBlockKeys = 16;
  const auto count_shares = [&](int blocks) {
    plan(requests_of_length(setting_.requests, blocks * kBlockKeys, setting_.page_size));
    const WorkView& work = params().phase[Step::kDecode].work;
    return std::count_if(work.work_tiles, work.work_tiles + work.num_ctas,
                         [](const WorkTile& work_tile) { return work_tile.extent.num_rows > 0; });
  };
  const PlanPhase& phase = params().phase[Step::kDecode];
  plan(requests_of_length(1, kBlockKeys, setting_.page_size));
  const int units = setting_.requests * setting_.num_kv_heads;
  const int share = units < 32 ? short_split_cost(phase.short_share_cost) : phase.short_share_cost;
  const int line = share * phase.work.num_ctas / units;
  EXPECT_EQ(count_shares((line - phase.work_tile_cost) / kBlockCost - 2), 32);
  EXPECT_EQ(count_shares((line - phase.work_tile_cost) / kBlockCost + 2), phase.work.num_ctas);
}

class NeedlessSplits : public PlannerTest {};

// The longest of 17 splits of 128 blocks has eight blocks, as the longest of 16 splits has. 132
// blocks need all 17 splits.
TEST_P(NeedlessSplits, AreLeftOut) {
  constexpr int kBlockKeys = 16;
  for (const auto& [blocks, splits] : {std::pair(128, 16), std::pair(132, 17)}) {
    SCOPED_TRACE(testing::Message() << blocks << " blocks");
    plan(requests_of_length(1, blocks * kBlockKeys, setting_.page_size));
    const WorkView& work = params().phase[Step::kDecode].work;
    int work_tiles = 0, most_blocks = 0;
    for (int cta = 0; cta < work.num_ctas; ++cta) {
      const WorkTile& work_tile = work.work_tiles[cta];
      if (work_tile.extent.num_rows == 0) continue;
      ++work_tiles;
      EXPECT_EQ(work_tile.split.count, splits);
      most_blocks = std::max(most_blocks, work_tile.extent.num_blocks);
    }
    EXPECT_EQ(work_tiles, splits * setting_.num_kv_heads);
    EXPECT_EQ(most_blocks, 8);
    expect_planned(params().phase[Step::kDecode]);
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, NeedlessSplits,
                         testing::Values(Setting{
                             .name = "OfOneRequest", .sm_count = 17, .requests = 1}),
                         [](const auto& row) { return std::string(row.param.name); });

class CausalRequest : public PlannerTest {};

// In a schedule head by head, some CTAs would get long tiles in most rounds.
TEST_P(CausalRequest, IsScheduledTileByTileOverAllHeads) {
  constexpr int kTiles = 31, kTileRows = 32;
  plan(causal_request(kTiles * kTileRows / setting_.group_size, setting_.page_size));
  const PlanPhase& phase = params().phase[Step::kPrefill];
  expect_planned(phase);
  for (int cta = 0; cta < phase.work.num_ctas; ++cta) {
    SCOPED_TRACE(testing::Message() << "CTA " << cta);
    const WorkTileRows& rows = phase.work.work_tiles[cta].rows;
    EXPECT_EQ(rows.kv_head, cta % setting_.num_kv_heads);
    EXPECT_EQ(rows.first_row, (kTiles - 1 - cta / setting_.num_kv_heads) * kTileRows);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Steps, CausalRequest,
    testing::Values(Setting{
        .name = "OfManyTiles", .num_kv_heads = 8, .sm_count = 15, .requests = 1}),
    [](const auto& row) { return std::string(row.param.name); });

// CTAs take tiles of different cost from a queue. The queue ends with the tiles of the last four
// heads, sorted together with the longest first. Pairs of tiles see equally many blocks. A very
// long queue starts with the last tile.
class Queue : public PlannerTest {};

TEST_P(Queue, HoldsTheLongestTilesOfAHeadFirst) {
  const int tiles = setting_.needs_scratch ? 1100 : 62, tile_rows = 32;
  plan(causal_request(tiles * tile_rows / setting_.group_size, setting_.page_size));
  const PlanPhase& phase = params().phase[Step::kPrefill];
  expect_planned(phase);
  const int tail = std::min(4, setting_.num_kv_heads);
  const int units = tiles * setting_.num_kv_heads, first_of_tail = units - tiles * tail;
  for (int i = 0; i < units; ++i) {
    SCOPED_TRACE(testing::Message() << "work tile " << i);
    const WorkTile& work_tile = phase.work.work_tiles[i];
    EXPECT_EQ(work_tile.keys.next, -units);
    const int in_tail = i - first_of_tail;
    const int rank = in_tail < 0 ? i % tiles : in_tail / tail;
    const int pair = tiles - 2 - rank / 2 * 2;
    const int tile = setting_.needs_scratch ? tiles - 1 - rank : pair + rank % 2;
    EXPECT_EQ(work_tile.rows.first_row, tile * tile_rows);
    EXPECT_EQ(work_tile.rows.kv_head,
              in_tail < 0 ? i / tiles : setting_.num_kv_heads - tail + in_tail % tail);
  }
}

const Setting kQueue = {
    .name = "OfManyHeads", .num_kv_heads = 8, .sm_count = 13, .requests = 1, .has_queue = true};
const Setting kQueueOfOneHead = {
    .name = "OfOneHead", .num_kv_heads = 1, .sm_count = 3, .requests = 1, .has_queue = true};
const Setting kLongQueue = {.name = "OfVeryManyTiles",
                            .num_kv_heads = 1,
                            .sm_count = 3,
                            .requests = 1,
                            .needs_scratch = true,
                            .has_queue = true};

INSTANTIATE_TEST_SUITE_P(Steps, Queue, testing::Values(kQueue, kQueueOfOneHead, kLongQueue),
                         [](const auto& row) { return std::string(row.param.name); });

// Uniform units are never taken from a queue, whatever their total cost.
class UniformUnits : public PlannerTest {};

TEST_P(UniformUnits, OfGreatCostAreNotQueued) {
  constexpr int kTiles = 200, kTileRows = 32, kTokens = 20'000'000;
  StepArrays arrays = causal_request(kTiles * kTileRows / setting_.group_size, setting_.page_size);
  std::ranges::fill(arrays.q_position, kTokens);
  arrays.length[0] = kTokens;
  arrays.pages.resize(kTokens / static_cast<std::size_t>(setting_.page_size));
  plan(arrays);
  const PlanPhase& phase = params().phase[Step::kPrefill];
  expect_planned(phase);
  EXPECT_FALSE(Model(setting_, arrays_, phase).is_queued());
}

INSTANTIATE_TEST_SUITE_P(Steps, UniformUnits, testing::Values(kQueueOfOneHead),
                         [](const auto& row) { return std::string(row.param.name); });

// Uniform units are assigned whole, and those of the incomplete last round are split.
class IncompleteRound : public PlannerTest {};

TEST_P(IncompleteRound, IsSplitEvenly) {
  constexpr int kTiles = 32, kTileRows = 32, kSplits = 3;
  StepArrays arrays = causal_request(kTiles * kTileRows / setting_.group_size, setting_.page_size);
  plan(arrays);
  const PlanPhase& phase = params().phase[Step::kPrefill];
  expect_planned(phase);
  const int units = kTiles * setting_.num_kv_heads, ctas = phase.work.num_ctas;
  const int remaining = units % ctas;
  ASSERT_EQ(ctas / remaining, kSplits);
  int splits = 0;
  for (int cta = 0; cta < ctas; ++cta) {
    int work_tiles = 0, last = cta;
    for (int at = cta; at >= 0; at = phase.work.work_tiles[at].keys.next, ++work_tiles) last = at;
    const KvSplit& split = phase.work.work_tiles[last].split;
    EXPECT_EQ(work_tiles, units / ctas + (split.count > 1 ? 1 : 0));
    if (split.count > 1) {
      EXPECT_EQ(split.count, kSplits);
      ++splits;
    }
  }
  EXPECT_EQ(splits, remaining * kSplits);
}

INSTANTIATE_TEST_SUITE_P(
    Steps, IncompleteRound,
    testing::Values(Setting{
        .name = "OfWholeRounds", .mask = "full", .num_kv_heads = 8, .sm_count = 31, .requests = 1}),
    [](const auto& row) { return std::string(row.param.name); });

class FineSplits : public PlannerTest {};

TEST_P(FineSplits, HaveTheMinimumLengthIfThereAreCtasForAll) {
  constexpr int kBlockKeys = 16, kMaxSplits = 32;
  plan(requests_of_length(1, kBlockKeys, setting_.page_size));
  const int length = params().phase[Step::kDecode].min_split_blocks;
  for (const int splits : {2, 5, 16, kMaxSplits, kMaxSplits + 1}) {
    SCOPED_TRACE(testing::Message() << splits << " splits of each head");
    plan(requests_of_length(1, splits * length * kBlockKeys, setting_.page_size));
    const WorkView& work = params().phase[Step::kDecode].work;
    int work_tiles = 0, longer = 0;
    for (int cta = 0; cta < work.num_ctas; ++cta) {
      const WorkTile& work_tile = work.work_tiles[cta];
      if (work_tile.extent.num_rows == 0) continue;
      ++work_tiles;
      longer += work_tile.extent.num_blocks > length ? 1 : 0;
    }
    const bool is_fine = splits <= kMaxSplits && splits * setting_.num_kv_heads <= work.num_ctas;
    EXPECT_EQ(is_fine, longer == 0);
    if (is_fine) {
      EXPECT_EQ(work_tiles, splits * setting_.num_kv_heads);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Steps, FineSplits,
    testing::Values(
        Setting{.name = "OfOneBlock", .sm_count = 33, .requests = 1},
        Setting{.name = "OfThreeBlocks", .sm_count = 33, .min_split_blocks = 3, .requests = 1},
        Setting{.name = "ForFewCtas", .sm_count = 8, .requests = 1},
        Setting{.name = "OfEqualCost", .sm_count = 33, .requests = 1, .equal_splits = false}),
    [](const auto& row) { return std::string(row.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Steps, MatchedShares,
    testing::Values(Setting{.name = "QuarterUnits", .sm_count = 17, .requests = 4},
                    Setting{.name = "HalfUnits", .sm_count = 17, .requests = 8},
                    Setting{.name = "WholeUnits", .sm_count = 17, .requests = 16},
                    Setting{.name = "ThreeUnits", .sm_count = 17, .requests = 48},
                    Setting{.name = "HalfUnitsOfEqualCost",
                            .sm_count = 17,
                            .requests = 8,
                            .equal_splits = false}),
    [](const auto& row) { return std::string(row.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Steps, PlannerTest,
    testing::Values(
        Setting{.name = "Few"},
        Setting{.name = "ManyCtas", .sm_count = 132, .requests = 20, .most_length = 3000},
        Setting{
            .name = "MoreCtasThanThreads", .sm_count = 700, .requests = 20, .most_length = 3000},
        Setting{.name = "OneRequest", .sm_count = 50, .requests = 1, .most_segments = 100},
        Setting{.name = "OneTokenEach", .sm_count = 16, .requests = 3, .most_tokens = 1},
        Setting{.name = "FewTokensEach", .sm_count = 16, .requests = 3, .most_tokens = 9},
        Setting{.name = "AsManyRequestsAsAreMeasuredAtOnce",
                .sm_count = 16,
                .requests = 64,
                .least_tokens = 1,
                .most_tokens = 8},
        Setting{.name = "IdleRequestsAtTheEnd",
                .sm_count = 16,
                .requests = 50,
                .least_tokens = 1,
                .most_tokens = 8,
                .first_idle = 39,
                .idle_requests = 11},
        Setting{.name = "IdleRequestsBetween",
                .sm_count = 16,
                .requests = 40,
                .least_tokens = 1,
                .most_tokens = 8,
                .first_idle = 25,
                .idle_requests = 7},
        Setting{.name = "AllIdle", .sm_count = 16, .requests = 5, .idle_requests = 5},
        Setting{.name = "MoreTokensThanTheCapacity",
                .sm_count = 16,
                .requests = 5,
                .capacity_tokens = 4},
        Setting{.name = "OneShortRequest", .sm_count = 50, .requests = 1, .most_length = 60},
        Setting{
            .name = "OneRequestInLongSplits", .sm_count = 50, .min_split_blocks = 3, .requests = 1},
        Setting{.name = "OneShortRequestOfEqualCost",
                .sm_count = 50,
                .requests = 1,
                .most_length = 60,
                .equal_splits = false},
        Setting{.name = "EqualCost",
                .sm_count = 132,
                .requests = 20,
                .most_length = 3000,
                .equal_splits = false},
        Setting{.name = "ManySegments", .sm_count = 16, .requests = 3, .most_segments = 150},
        Setting{.name = "ManyRequests",
                .sm_count = 8,
                .requests = 700,
                .most_segments = 2,
                .most_tokens = 2},
        Setting{.name = "Scratch", .sm_count = 8, .requests = 30, .needs_scratch = true},
        Setting{.name = "SeveralHeads",
                .group_size = 1,
                .num_kv_heads = 8,
                .heads_per_work_tile = 4,
                .requests = 20,
                .most_tokens = 3},
        Setting{.name = "HeadsSideBySide",
                .group_size = 1,
                .num_kv_heads = 6,
                .tile_heads = 2,
                .requests = 20,
                .most_tokens = 3},
        Setting{.name = "FixedSplitsOfHeadsSideBySide",
                .num_kv_heads = 6,
                .tile_heads = 2,
                .fixed_split_blocks = 1,
                .requests = 10,
                .most_length = 1500},
        Setting{.name = "LongSplits", .sm_count = 16, .min_split_blocks = 3},
        Setting{.name = "RoundedCosts",  // floats round these costs
                .sm_count = 132,
                .page_size = 4096,
                .requests = 60,
                .most_segments = 40,
                .most_length = 200'000},
        Setting{.name = "CostsTooGreat",
                .sm_count = 50,
                .page_size = 4096,
                .requests = 10,
                .most_segments = 40,
                .most_length = 1'000'000},
        Setting{.name = "CostsTooGreatTogether",
                .num_kv_heads = 16,
                .sm_count = 50,
                .page_size = 4096,
                .requests = 100,
                .most_segments = 40,
                .most_length = 1'000'000,
                .loses_bits = true},
        Setting{.name = "FixedCostsTooGreat",
                .sm_count = 50,
                .page_size = 4096,
                .fixed_split_blocks = 8,
                .requests = 10,
                .most_segments = 40,
                .most_length = 1'000'000},
        Setting{.name = "FixedCostsTooGreatTogether",
                .num_kv_heads = 16,
                .sm_count = 50,
                .page_size = 4096,
                .fixed_split_blocks = 8,
                .requests = 30,
                .most_segments = 40,
                .most_length = 1'000'000,
                .loses_bits = true},
        Setting{.name = "WithAQueue",
                .num_kv_heads = 16,
                .requests = 40,
                .least_tokens = 20,
                .most_tokens = 300,
                .most_length = 400,
                .has_queue = true},
        Setting{.name = "FullMask", .mask = "full", .sm_count = 16},
        Setting{.name = "SlidingWindow", .mask = "sliding_window", .sm_count = 16},
        Setting{.name = "Chunked", .mask = "chunked", .sm_count = 16},
        Setting{.name = "LargePages", .sm_count = 16, .page_size = 48},
        Setting{.name = "FixedSplits",
                .sm_count = 32,
                .fixed_split_blocks = 1,
                .requests = 10,
                .most_length = 1500},
        Setting{.name = "FixedSplitsOfManyTiles",
                .num_kv_heads = 8,
                .sm_count = 32,
                .fixed_split_blocks = 1,
                .requests = 5,
                .least_tokens = 100,
                .most_tokens = 900,
                .most_length = 1500},
        Setting{.name = "FixedSplitsWithScratch",
                .sm_count = 16,
                .fixed_split_blocks = 2,
                .requests = 10,
                .needs_scratch = true}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace lazyrope
