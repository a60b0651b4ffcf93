// Compares the shared step that the share kernel makes in the emulator with a plain model.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "runtime/emulator/device.h"
#include "runtime/engine/kernel_set.h"
#include "runtime/step/step_layout.h"
#include "tests/support/engines.h"
#include "tests/support/host_tensor.h"
#include "tests/support/metadata.h"
#include "tests/support/specs.h"
#include "tests/unit/share_model.h"

namespace lazyrope {
namespace {

KernelSpec spec_of(const ShareSetting& setting) {
  AttentionSpec spec = small_spec();
  spec.num_kv_heads = 1;
  spec.num_q_heads = setting.group_size;
  spec.mask = setting.mask;
  if (setting.mask == "sliding_window") spec.mask_parameters = {{"window", kWindow}};
  spec.query_form = setting.query_form;
  spec.cascade = true;
  return spec.kernel_spec();
}

// Documents in pages of random order. Document d has 70 + 40 d tokens, the first in slot d.
struct Documents {
  std::vector<int> pages;
  std::vector<int> first_page;
  std::vector<int> length;
};

Documents make_documents(int count, std::mt19937& random) {
  Documents documents;
  for (int d = 0; d < count; ++d) {
    documents.first_page.push_back(static_cast<int>(documents.pages.size()));
    documents.length.push_back(70 + 40 * d);
    const int pages = (d + documents.length.back() + kPageSize - 1) / kPageSize;
    for (int i = 0; i < pages; ++i)
      documents.pages.push_back(static_cast<int>(documents.pages.size()));
  }
  std::ranges::shuffle(documents.pages, random);
  return documents;
}

// Requests read documents, or slices of them that overlap, before or among their query tokens.
class RandomStep {
 public:
  RandomStep(const ShareSetting& setting, std::mt19937& random)
      : setting_(setting), random_(random), documents_(make_documents(4, random)) {
    if (!setting.own_lists) step_.pages = documents_.pages;
    step_.q_indptr = step_.segment_indptr = {0};
    for (int r = 0; r < setting.requests; ++r) {
      const int first = 500 + below(100);
      for (int t = below(setting.max_tokens + 1); t > 0; --t)
        step_.q_position.push_back(first + below(20));
      for (int s = below(setting.segments + 1); s > 0; --s) add_segment(below(4));
      step_.q_indptr.push_back(static_cast<int>(step_.q_position.size()));
      step_.segment_indptr.push_back(static_cast<int>(step_.base.size()));
    }
  }
  StepArrays arrays() && { return std::move(step_); }

 private:
  int below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }
  int one_of(std::initializer_list<int> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }
  void add_segment(int document) {
    const auto d = static_cast<std::size_t>(document);
    const int start = one_of({0, 0, 0, 3, 20, 40});
    const int left = documents_.length[d] - start - one_of({0, 0, 3, 30});
    const int length = below(8) == 0 ? 0 : left;
    const int slot = document + start;
    step_.base.push_back(below(400));
    step_.start.push_back(start);
    step_.length.push_back(length);
    step_.lead.push_back(slot);
    step_.first_page.push_back(documents_.first_page[d]);
    if (setting_.own_lists)
      add_list(documents_.first_page[d], std::max(slot + length - 1, 0) / kPageSize + 1);
  }
  void add_list(int first_page, int count) {
    step_.first_page.back() = static_cast<int>(step_.pages.size());
    const int same = below(4) == 0 ? 1 + below(count) : count;
    for (int i = 0; i < count; ++i)
      step_.pages.push_back(i < same ? at(documents_.pages, first_page + i) : 1000 + below(2));
  }

  const ShareSetting& setting_;
  std::mt19937& random_;
  Documents documents_;
  StepArrays step_;
};

StepArrays random_step(const ShareSetting& setting, std::mt19937& random) {
  return RandomStep(setting, random).arrays();
}

class ShareTest : public testing::TestWithParam<ShareSetting> {
 protected:
  void SetUp() override {
    if (!has_emulator()) GTEST_SKIP() << "this build has no emulator";
    const KernelSpec spec = spec_of(setting_);
    const Arch& arch = find_arch("emu:sm_80");
    config_ = configs(spec, arch).front();
    config_.share_above_kib = setting_.share_above_kib;
    const KernelSetRequest request = {spec, &arch, {KernelKind::kShare}, {config_}, ""};
    kernel_ = compile_sets(shared_engine(), {request}, {}).front().kernels().front();
  }

  void share(StepArrays& step) {
    const StepCapacity capacity = {.requests = setting_.requests,
                                   .segments = static_cast<int>(step.base.size()),
                                   .query_tokens = static_cast<int>(step.q_position.size()),
                                   .tokens_per_request = setting_.max_tokens};
    const StepShape shape = {setting_.group_size, 1, 64, 2, setting_.mask, {}, {}, true};
    const auto lay_out = [&](std::byte* memory) {
      cascade_ = {};
      return lay_out_cascade(memory, shape, config_, capacity, 4, cascade_);
    };
    const std::size_t bytes = lay_out(nullptr);
    memory_.emplace(ElementType::kInt32, std::vector{static_cast<std::int64_t>(bytes / 4)});
    std::memset(memory_->data<std::byte>(), 0x5a, bytes);
    lay_out(memory_->data<std::byte>());
    if (limit_) limit_(cascade_.share);
    set_inputs(step);
    launch(step.tensors());
  }
  void set_inputs(const StepArrays& step) {
    StepInputs& in = cascade_.share.inputs;
    in.q_indptr = step.q_indptr.data();
    in.segment_indptr = step.segment_indptr.data();
    in.num_requests = setting_.requests;
    in.num_segments = static_cast<int>(step.base.size());
    in.num_tokens = static_cast<int>(step.q_position.size());
    in.page_size = kPageSize;
    in.q_position = step.q_position.data();
    in.base = step.base.data();
    in.start = step.start.data();
    in.length = step.length.data();
    in.lead = step.lead.data();
    in.first_page = step.first_page.data();
    in.pages = step.pages.data();
    cascade_.share.page_size = divisor(kPageSize);
  }
  void launch(const StepTensors& tensors) {
    emulator_options().races = true;
    kernel_->on(*emulator_device()).launch(1, &cascade_.share, nullptr, [&] {
      AccessedMemory accessed;
      add_inputs(tensors, accessed);
      accessed.reads("pages", tensors.pages).writes("the step", memory_->view());
      return accessed.ranges();
    });
    emulator_options().races = false;
  }

  const SharedStepArrays& shared() const { return cascade_.share.shared; }

  // A segment as a row of numbers: base, start, length, lead and first page.
  using Row = std::array<int, 5>;
  static Row segment_at(const SegmentArrays& from, int i) {
    return {from.base[i], from.start[i], from.length[i], from.lead[i], from.first_page[i]};
  }
  static Row slice_of(const StepArrays& step, int segment, int offset, int length, int base) {
    return {base, at(step.start, segment) + offset, length, at(step.lead, segment) + offset,
            at(step.first_page, segment)};
  }

  // Checks request `g` of the shared step, and returns the shared segment that it stands for.
  SharedSegment expect_request(const StepArrays& step, const ShareModel& model, int g) const {
    std::vector<Reader> readers;
    for (int t = shared().q_indptr[g]; t < shared().q_indptr[g + 1]; ++t)
      readers.emplace_back(cascade_.share.tokens[t].query_token, shared().q_position[t]);
    const auto groups = model.by_readers();
    const auto found = groups.find(readers);
    if (found == groups.end()) {
      ADD_FAILURE() << "request " << g << " has other readers";
      return {};
    }
    const Member& first = found->second.members.front();
    EXPECT_EQ(shared().segment_indptr[g], g);
    EXPECT_EQ(segment_at(shared().segments, g),
              slice_of(step, first.segment, first.offset, found->second.tokens, 0));
    return found->second;
  }

  // Checks that each query token has the slots of its shared segments, in their order, and one
  // more.
  void expect_slots(const StepArrays& step, const std::map<Reader, int>& slot_of) const {
    std::set<int> used;  // no two results have the same slot
    for (const auto& [reader, slot] : slot_of) EXPECT_TRUE(used.insert(slot).second);
    std::vector<int> sharing;
    for (int r = 0; r < setting_.requests; ++r)
      for (int t = step.q_indptr[static_cast<std::size_t>(r)];
           t < step.q_indptr[static_cast<std::size_t>(r) + 1]; ++t) {
        const SharedSlots slots = cascade_.share.slots[t];
        int next = 0;
        for (int s = step.segment_indptr[static_cast<std::size_t>(r)];
             s < step.segment_indptr[static_cast<std::size_t>(r) + 1]; ++s) {
          const auto at = slot_of.find({t, s});
          if (at == slot_of.end()) continue;
          EXPECT_EQ(at->second, slots.first + slots.stride * next++);
        }
        EXPECT_EQ(slots.count, next) << "query token " << t;
        if (next == 0) continue;
        EXPECT_TRUE(used.insert(slots.own).second);
        sharing.push_back(t);
      }
    EXPECT_EQ(std::vector(cascade_.share.sharing_tokens,
                          cascade_.share.sharing_tokens + shared().counts->sharing_tokens),
              sharing);
    EXPECT_TRUE(used.empty() || *used.rbegin() + 1 == static_cast<int>(used.size()));
  }

  void expect_as_modelled(const StepArrays& step, bool has_room) {
    const ShareModel model(setting_, step, cascade_.share);
    const SharedCounts counts = *shared().counts;
    std::map<Reader, int> slot_of;  // by query token and segment
    std::map<int, std::pair<int, int>>
        shared_tokens;  // by segment: the first one, and their number
    for (int g = 0; g < counts.requests; ++g) {
      int token = shared().q_indptr[g];
      const SharedSegment group = expect_request(step, model, g);
      for (const Member& member : group.members) {
        shared_tokens[member.segment] = {member.offset, group.tokens};
        joined_segments_ += member.offset > 0 ? 1 : 0;
        for (int t = at(step.q_indptr, member.request); t < at(step.q_indptr, member.request + 1);
             ++t)
          slot_of[{t, member.segment}] = cascade_.share.tokens[token++].slot;
      }
    }
    EXPECT_EQ(shared().q_indptr[counts.requests], counts.tokens);
    EXPECT_EQ(shared().segment_indptr[counts.requests], counts.requests);
    EXPECT_EQ(slot_of.size(), static_cast<std::size_t>(counts.tokens));
    const std::size_t modelled = model.by_readers().size();
    if (has_room)
      EXPECT_EQ(static_cast<std::size_t>(counts.requests), modelled);
    else  // there is room for one of them at least
      EXPECT_EQ(counts.requests > 0, modelled > 0);
    expect_own_segments(step, shared_tokens);
    expect_slots(step, slot_of);
    shared_requests_ += counts.requests;
  }
  // Checks that requests keep what is before and after the shared tokens of their segments.
  void expect_own_segments(const StepArrays& step,
                           const std::map<int, std::pair<int, int>>& shared_tokens) {
    const OwnSegmentArrays& own = cascade_.share.own;
    int next = 0;
    const auto expect = [&](int segment, int offset, int length) {
      if (length == 0) return;
      EXPECT_EQ(segment_at(own.segments, next++),
                slice_of(step, segment, offset, length, at(step.base, segment)));
      cut_segments_ += offset > 0 ? 1 : 0;
    };
    for (int r = 0; r < setting_.requests; ++r) {
      EXPECT_EQ(own.segment_indptr[r], next);
      for (int s = at(step.segment_indptr, r); s < at(step.segment_indptr, r + 1); ++s) {
        const auto found = shared_tokens.find(s);
        const auto [offset, tokens] =
            found == shared_tokens.end() ? std::pair{at(step.length, s), 0} : found->second;
        expect(s, 0, offset);
        expect(s, offset + tokens, at(step.length, s) - offset - tokens);
      }
    }
    EXPECT_EQ(own.segment_indptr[setting_.requests], next);
  }

  const ShareSetting& setting_ = GetParam();
  KernelConfig config_;
  std::shared_ptr<const Kernel> kernel_;
  std::optional<HostTensor> memory_;
  CascadeParams cascade_;
  std::function<void(ShareParams&)> limit_;
  int shared_requests_ = 0;
  int cut_segments_ = 0;     // segments of which a request keeps the end
  int joined_segments_ = 0;  // segments of which it keeps the beginning
};

TEST_P(ShareTest, MakesTheSharedStepOfTheModel) {
  std::mt19937 random(7);
  for (int i = 0; i < 12; ++i) {
    StepArrays step = random_step(setting_, random);
    if (step.base.size() < 2) continue;
    share(step);
    expect_as_modelled(step, /*has_room=*/true);
  }
  EXPECT_EQ(shared_requests_ > 0, setting_.share_above_kib == 0);
  EXPECT_EQ(cut_segments_ > 0, setting_.share_above_kib == 0);
  // With many segments, others may begin wherever a segment does.
  if (setting_.requests < 90) {
    EXPECT_EQ(joined_segments_ > 0, setting_.share_above_kib == 0);
  }
}

TEST_P(ShareTest, SharesWhatItHasRoomFor) {
  std::mt19937 random(8);
  for (int i = 0; i < 6; ++i) {
    StepArrays step = random_step(setting_, random);
    if (step.base.size() < 2) continue;
    limit_ = [&](ShareParams& params) {
      if (i % 2 == 0) params.max_segments = 1;
      if (i % 2 == 1) params.max_tokens = 6;
    };
    share(step);
    EXPECT_LE(shared().counts->requests, cascade_.share.max_segments);
    EXPECT_LE(shared().counts->tokens, cascade_.share.max_tokens);
    expect_as_modelled(step, /*has_room=*/false);
  }
  EXPECT_EQ(shared_requests_ > 0, setting_.share_above_kib == 0);
}

TEST_P(ShareTest, IgnoresSegmentsAfterTheLastRequests) {
  std::mt19937 random(9);
  StepArrays step = random_step(setting_, random);
  share(step);
  expect_as_modelled(step, /*has_room=*/true);
  // An update of the same step with fewer requests, whose arrays keep the old values at their end.
  for (std::size_t r = 3; r < step.segment_indptr.size(); ++r) {
    step.segment_indptr[r] = step.segment_indptr[3];
    step.q_indptr[r] = step.q_indptr[3];
  }
  set_inputs(step);
  launch(step.tensors());
  expect_as_modelled(step, /*has_room=*/true);
}

// Makes a step whose requests have one query token and one segment each, all in one page list.
class Readers {
 public:
  explicit Readers(StepArrays& step) : step_(step) { step_.q_indptr = step_.segment_indptr = {0}; }

  void add(int start, int length, const std::vector<int>& pages) {
    step_.base.push_back(0);
    step_.start.push_back(start);
    step_.lead.push_back(start % kPageSize);
    step_.length.push_back(length);
    step_.first_page.push_back(static_cast<int>(step_.pages.size()));
    step_.pages.insert(step_.pages.end(), pages.begin() + start / kPageSize, pages.end());
    step_.q_position.push_back(5000);
    step_.q_indptr.push_back(static_cast<int>(step_.q_position.size()));
    step_.segment_indptr.push_back(static_cast<int>(step_.base.size()));
  }

 private:
  StepArrays& step_;
};

std::vector<int> numbered(int first, int count) {
  std::vector<int> pages(static_cast<std::size_t>(count));
  std::iota(pages.begin(), pages.end(), first);
  return pages;
}

class ShareChoiceTest : public ShareTest {};

TEST_P(ShareChoiceTest, OneLongerSegmentThatBeginsAlikeTakesNothingFromTheOthers) {
  const std::vector<int> pages = numbered(0, 40);
  std::vector<int> longer = numbered(100, 60);
  std::copy_n(pages.begin(), 5, longer.begin());
  StepArrays step;
  Readers readers(step);
  readers.add(0, 60 * kPageSize, longer);
  for (int r = 1; r < setting_.requests; ++r) readers.add(0, 40 * kPageSize, pages);
  share(step);
  ASSERT_EQ(shared().counts->requests, 1);
  EXPECT_EQ(shared().counts->tokens, setting_.requests - 1);
  EXPECT_EQ(shared().segments.length[0], 40 * kPageSize);
}

TEST_P(ShareChoiceTest, EqualSegmentsAreSharedThoughOthersHaveTheirLengthAndFirstPages) {
  const std::vector<int> first = numbered(0, 40);
  std::vector<int> second = numbered(100, 40);
  std::copy_n(first.begin(), 5, second.begin());
  StepArrays step;
  Readers readers(step);
  for (int r = 0; r < setting_.requests; ++r)
    readers.add(0, 40 * kPageSize, r % 2 == 0 ? first : second);
  share(step);
  ASSERT_EQ(shared().counts->requests, 2);
  EXPECT_EQ(shared().counts->tokens, setting_.requests);
  EXPECT_EQ(shared().segments.length[0], 40 * kPageSize);
  EXPECT_EQ(shared().segments.length[1], 40 * kPageSize);
}

TEST_P(ShareChoiceTest, SegmentsThatContainEachOtherMeetAtTheLast) {
  const std::vector<int> pages = numbered(0, 40);
  StepArrays step;
  Readers readers(step);
  for (int r = 0; r < setting_.requests; ++r) readers.add(20 * r, 40 * kPageSize - 20 * r, pages);
  share(step);
  const int last = 20 * (setting_.requests - 1);
  ASSERT_EQ(shared().counts->requests, 1);
  EXPECT_EQ(shared().counts->tokens, setting_.requests);
  EXPECT_EQ(shared().segments.start[0], last);
  EXPECT_EQ(shared().segments.length[0], 40 * kPageSize - last);
}

TEST_P(ShareChoiceTest, AShortSliceTakesNoLongSegmentFromABetterOne) {
  const std::vector<int> pages = numbered(0, 40);
  StepArrays step;
  Readers readers(step);
  readers.add(0, 40 * kPageSize, pages);
  readers.add(5 * kPageSize, 35 * kPageSize, pages);
  readers.add(35 * kPageSize, 5 * kPageSize, pages);
  for (int r = 3; r < setting_.requests; ++r) readers.add(0, 70, numbered(1000 * r, 5));
  share(step);
  ASSERT_EQ(shared().counts->requests, 1);
  EXPECT_EQ(shared().segments.start[0], 5 * kPageSize);
  EXPECT_EQ(shared().segments.length[0], 35 * kPageSize);
}

TEST_P(ShareChoiceTest, PositionsThatAnInt32DoesNotHoldAreNotShared) {
  StepArrays step;
  Readers readers(step);
  for (int r = 0; r < setting_.requests; ++r) readers.add(0, 200, numbered(0, 13));
  for (int r = 0; r < setting_.requests; ++r) {
    step.start[static_cast<std::size_t>(r)] = std::numeric_limits<int>::max() - 100;
    step.base[static_cast<std::size_t>(r)] = -1000;
  }
  share(step);
  EXPECT_EQ(shared().counts->requests, 0);
}

INSTANTIATE_TEST_SUITE_P(Settings, ShareChoiceTest,
                         testing::Values(ShareSetting{.name = "full_mask", .mask = "full"}),
                         [](const auto& each) { return each.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Settings, ShareTest,
    testing::Values(ShareSetting{"causal"}, ShareSetting{.name = "own_lists", .own_lists = true},
                    ShareSetting{.name = "full_mask", .mask = "full", .group_size = 16},
                    ShareSetting{.name = "window", .mask = "sliding_window", .requests = 40},
                    ShareSetting{.name = "rotated", .query_form = RopeForm::kRotated},
                    ShareSetting{.name = "few_tokens_in_a_tile", .group_size = 64, .max_tokens = 3},
                    ShareSetting{.name = "many_segments", .requests = 90, .segments = 12},
                    ShareSetting{.name = "little_to_save", .share_above_kib = 1 << 20}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace lazyrope
