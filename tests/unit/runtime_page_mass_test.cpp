#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "codegen/error.h"
#include "runtime/attention/attention.h"
#include "runtime/emulator/device.h"
#include "tests/support/attention_case.h"
#include "tests/support/engines.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

AttentionSpec page_mass_spec() {
  AttentionSpec spec = small_spec();
  spec.page_mass = true;
  return spec;
}

// Plans the steps of AttentionCase in the emulator. Their requests have 12, 1 and 2 query tokens,
// and 9, 8 and 3 runs: the segments have 100 tokens from slot 0, 9 from slot 13, 14 from slot 2,
// 100 and 33 from slot 0.
class PlanPageMass : public testing::Test {
 protected:
  static constexpr int kPairs = 12 * 9 + 8 + 2 * 3;

  void plan(int mass_pages, const std::vector<int>& mass_tokens = {}) {
    step_ = attention_->make_step(
        emulator_device(), {},
        {.requests = 3, .segments = 5, .query_tokens = 15, .mass_pages = mass_pages}, nullptr);
    StepTensors tensors = steps_.step.tensors();
    if (!mass_tokens.empty()) {
      mass_tokens_ = mass_tokens;
      tensors.mass_tokens = make_tensor(mass_tokens_.data(), ElementType::kInt32, {3},
                                        tensors.q_indptr.device_type, tensors.q_indptr.device);
    }
    emulator_options().races = true;
    step_->update(tensors, /*check=*/true, nullptr);
    emulator_options().races = false;
  }
  const PlanPageMassParams& params() const { return step_->page_mass().plan; }
  int heads() const { return attention_->spec().num_q_heads; }

  // Returns the first term of each query token in units of all heads, and -1 for those without one.
  std::vector<int> first_pairs() const {
    std::vector<int> first;
    for (int token = 0; token < 15; ++token) {
      const PageMassRow& row = params().rows[token];
      EXPECT_EQ(row.first % heads(), 0);
      first.push_back(row.num_runs > 0 ? row.first / heads() : -1);
    }
    return first;
  }

  const std::shared_ptr<const Attention> attention_ =
      Attention::compile(shared_engine(), page_mass_spec(), find_arch("emu:sm_80"));
  AttentionCase steps_{page_mass_spec()};
  std::vector<int> mass_tokens_;
  std::unique_ptr<Step> step_;
};

TEST_F(PlanPageMass, NumbersTheRunsOfSegments) {
  plan(kPairs);
  EXPECT_EQ(std::vector(params().run_indptr, params().run_indptr + 6),
            (std::vector{0, 7, 9, 10, 17, 20}));
  EXPECT_EQ(std::vector(params().first_runs, params().first_runs + 5),
            (std::vector{0, 7, 0, 1, 0}));
  EXPECT_EQ(params().header->num_runs, 20);
  EXPECT_EQ(params().header->num_requests, 3);
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(step_->view().segments[i].first_run, params().first_runs[i]) << i;
}

TEST_F(PlanPageMass, TheFirstBlockOfAWorkTileHasTheNumberOfItsRun) {
  plan(kPairs);
  int seen = 0;
  for (const Step::Phase phase : {Step::kDecode, Step::kPrefill}) {
    if (!step_->serves(phase)) continue;
    const WorkView& work = step_->work(phase);
    for (int i = 0; i < work.num_ctas; ++i) {
      const WorkTile& tile = work.work_tiles[i];
      if (tile.extent.num_rows == 0 || tile.extent.num_blocks == 0) continue;
      const SegmentRecord& segment = step_->view().segments[tile.keys.segment];
      const int slot = tile.start.position - segment.origin;
      EXPECT_EQ(run_of(tile.start.begin), segment.first_run + slot / kRunSlots);
      EXPECT_EQ(begin_of(tile.start.begin), std::max(segment.begin - slot, 0));
      ++seen;
    }
  }
  EXPECT_GE(seen, 3);
}

TEST_F(PlanPageMass, AssignsTermsToRowsAndRuns) {
  plan(kPairs);
  EXPECT_EQ(first_pairs(),
            (std::vector{0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99, 108, 116, 119}));
  EXPECT_EQ(params().rows[0].num_runs, 9);
  EXPECT_EQ(params().rows[12].num_runs, 8);
  EXPECT_EQ(params().rows[14].num_runs, 3);
}

TEST_F(PlanPageMass, OnlyTheLastTokensOfARequestHaveTerms) {
  plan(kPairs, {2, -1, 100});
  EXPECT_EQ(first_pairs(), (std::vector{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 9, -1, 18, 21}));
}

TEST_F(PlanPageMass, RequestsBeyondTheRoomHaveNoTerms) {
  plan(12 * 9 + 7);
  EXPECT_EQ(first_pairs(), (std::vector{0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99, -1, -1, -1}));
  EXPECT_EQ(params().requests[0].first_term, 0);
  EXPECT_EQ(params().requests[1].first_term, -1);
  EXPECT_EQ(params().requests[2].first_term, -1);
}

TEST_F(PlanPageMass, AStepWithoutRoomStillNumbersItsRuns) {
  plan(0);
  EXPECT_FALSE(step_->page_mass().has_room());
  EXPECT_EQ(step_->view().segments[1].first_run, 7);
  EXPECT_EQ(first_pairs(), std::vector(15, -1));
}

TEST_F(PlanPageMass, IllegalCapacitiesAreNamed) {
  EXPECT_TRUE(throws<SpecError>([&] { plan(-1); }, {"mass_pages = -1", "at least 0"}));
  EXPECT_TRUE(throws<SpecError>([&] { plan(std::numeric_limits<int>::max()); },
                                {"mass_pages = 2147483647", "query heads", "4194304"}));
}

TEST_F(PlanPageMass, OtherStepsIgnoreTheCapacity) {
  const auto other = Attention::compile(shared_engine(), small_spec(), find_arch("emu:sm_80"));
  const StepCapacity capacity = {.requests = 3, .segments = 5, .query_tokens = 15};
  StepCapacity with = capacity;
  with.mass_pages = 1000;
  EXPECT_EQ(other->make_step(emulator_device(), {}, with, nullptr)->bytes(),
            other->make_step(emulator_device(), {}, capacity, nullptr)->bytes());
}

}  // namespace
}  // namespace lazyrope
