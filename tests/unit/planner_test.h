// The fixture of tests that compare what the planner writes in the emulator with a plain model of
// its rules.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "tests/support/specs.h"
#include "tests/unit/emulated_planner.h"
#include "tests/unit/planner_model.h"
#include "tests/unit/planner_steps.h"

namespace lazyrope {

inline AttentionSpec planner_spec(const Setting& setting) {
  AttentionSpec spec = small_spec();
  spec.num_kv_heads = setting.num_kv_heads;
  spec.num_q_heads = setting.group_size * setting.num_kv_heads;
  spec.mask = setting.mask;
  spec.mask_parameters = example_mask(setting.mask);
  return spec;
}

inline KernelConfig planner_config(const Setting& setting) {
  KernelConfig config = {{1, 4, 16, 16, 16, 3, 2}, {2, 1, 16, 32, 32, 2, 1}};
  config.min_split_blocks = setting.min_split_blocks;
  config.heads_per_work_tile = setting.heads_per_work_tile;
  config.fixed_split_blocks = setting.fixed_split_blocks;
  config.equal_splits = setting.equal_splits;
  return config;
}

inline std::string text(const WorkTile& work_tile) {
  std::string result;
  std::array<int, sizeof work_tile / 4> words;
  std::memcpy(words.data(), &work_tile, sizeof work_tile);
  for (const int word : words) result += std::to_string(word) + " ";
  return result;
}

class PlannerTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!has_emulator()) GTEST_SKIP() << "this build has no emulator";
    planner_.emplace(planner_spec(setting_).kernel_spec(), find_arch("emu:sm_80"),
                     planner_config(setting_));
  }

  void plan(const StepArrays& arrays, bool finds_races = true) {
    arrays_ = arrays;
    StepCapacity capacity = {.requests = setting_.requests,
                             .segments = static_cast<int>(arrays.base.size()),
                             .query_tokens = static_cast<int>(arrays.q_position.size()),
                             .tokens_per_request = setting_.capacity_tokens};
    if (setting_.needs_scratch) capacity.requests = 2 * kSharedTiles;
    KernelConfig config = planner_config(setting_);
    config.decode.heads = setting_.tile_heads;  // the planner's code is the same for all values
    planner_->plan(arrays_,
                   {.shape = {setting_.group_size, setting_.num_kv_heads, 64, 2, setting_.mask},
                    .config = config,
                    .capacity = capacity,
                    .sm_count = setting_.sm_count,
                    .page_size = setting_.page_size,
                    .has_queue = setting_.has_queue,
                    .finds_races = finds_races});
  }

  const PlanParams& params() const { return planner_->params(); }

  // Returns the phases that the step has.
  std::span<const PlanPhase> phases() const { return planner_->phases(); }

  void expect_copied() const {
    EXPECT_EQ(params().step.header->pages, arrays_.pages.data());
    EXPECT_EQ(params().step.header->page_size, setting_.page_size);
    for (std::size_t i = 0; i < arrays_.q_position.size(); ++i)
      ASSERT_EQ(params().step.positions[i], arrays_.q_position[i]) << i;
    for (std::size_t i = 0; i < arrays_.base.size(); ++i) {
      const SegmentRecord& segment = params().step.segments[i];
      ASSERT_EQ(segment.base, arrays_.base[i]) << i;
      ASSERT_EQ(segment.origin, arrays_.base[i] + arrays_.start[i] - arrays_.lead[i]) << i;
      ASSERT_EQ(segment.begin, arrays_.lead[i]) << i;
      ASSERT_EQ(segment.end, arrays_.lead[i] + arrays_.length[i]) << i;
      ASSERT_EQ(segment.first_page, arrays_.first_page[i]) << i;
    }
  }

  void expect_planned(const PlanPhase& phase) const {
    const WorkView& work = phase.work;
    const Model model(setting_, arrays_, phase);
    for (int i = 0; i < phase.num_counters; ++i) ASSERT_EQ(work.counters[i], 0u) << i;
    if (model.is_queued()) return expect_queue(work, model.queue());
    std::set<int> links, results;
    for (int cta = 0; cta < work.num_ctas; ++cta) {
      const std::vector<WorkTile> expected = model.work_tiles_of(cta);
      if (expected.empty()) {
        EXPECT_EQ(text(work.work_tiles[cta]), text(WorkTile{})) << "CTA " << cta;
      }
      int at = cta;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const bool is_last = i + 1 == expected.size();
        const int next = work.work_tiles[at].keys.next;
        WorkTile work_tile = expected[i];
        work_tile.keys.next = is_last ? -1 : next;
        if (phase.fixed_split_blocks > 0) work_tile.split = with_counter(phase, work_tile.split);
        ASSERT_EQ(text(work.work_tiles[at]), text(work_tile))
            << "CTA " << cta << ", its work tile " << i;
        expect_own_result(phase, work_tile.split, results);
        if (is_last) break;
        ASSERT_TRUE(next >= work.num_ctas && next < phase.scratch.max_work_tiles) << next;
        ASSERT_TRUE(links.insert(next).second) << "work tile " << next << " belongs to two CTAs";
        at = next;
      }
    }
  }

  static void expect_queue(const WorkView& work, const std::vector<WorkTile>& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      WorkTile work_tile = expected[i];
      work_tile.keys.next = -static_cast<int>(expected.size());
      ASSERT_EQ(text(work.work_tiles[i]), text(work_tile)) << "work tile " << i;
    }
  }

  // A unit that has a single split needs no partial result and no counter.
  static KvSplit with_counter(const PlanPhase& phase, KvSplit split) {
    if (split.count == 1) return {0, 1, 0, 0};
    const int partials = (phase.num_counters - phase.work.num_ctas) / 2;
    EXPECT_LE(split.partial + split.count, partials);
    split.counter = phase.work.num_ctas + partials + split.partial;
    return split;
  }

  static void expect_own_result(const PlanPhase& phase, const KvSplit& split,
                                std::set<int>& results) {
    if (split.count == 1) return;
    const int result = split.partial + split.index;
    const int counters = phase.num_counters - phase.work.num_ctas;
    EXPECT_LT(result, phase.fixed_split_blocks > 0 ? counters / 2 : counters);
    EXPECT_TRUE(results.insert(result).second) << "two splits have result " << result;
  }

  const Setting& setting_ = GetParam();
  std::optional<EmulatedPlanner> planner_;
  StepArrays arrays_;
};

}  // namespace lazyrope
