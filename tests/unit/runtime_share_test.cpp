// Compares the shared step that the share kernel makes in the emulator with a plain model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "runtime/emulator/device.h"
#include "runtime/engine/kernel_set.h"
#include "runtime/step/step_layout.h"
#include "templates/planner/policy.h"
#include "tests/support/engines.h"
#include "tests/support/host_tensor.h"
#include "tests/support/metadata.h"
#include "tests/support/specs.h"

namespace lazyrope {
namespace {

constexpr int kPageSize = 16;
constexpr int kWindow = 200;

struct Setting {
  std::string name;
  std::string mask = "causal";
  RopeForm query_form = RopeForm::kRaw;
  int group_size = 1;
  int requests = 12;
  int max_tokens = 4;      // query tokens of a request
  int segments = 4;        // most segments of a request
  bool own_lists = false;  // each segment has a page list of its own
  int share_above_kib = 0;
};

KernelSpec spec_of(const Setting& setting) {
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

// Requests read whole documents or the same slice of them, before or among their query tokens.
StepArrays random_step(const Setting& setting, std::mt19937& random) {
  const auto below = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  const Documents documents = make_documents(4, random);
  StepArrays step;
  if (!setting.own_lists) step.pages = documents.pages;
  step.q_indptr = step.segment_indptr = {0};
  for (int r = 0; r < setting.requests; ++r) {
    const int first = 500 + below(100);
    for (int t = below(setting.max_tokens + 1); t > 0; --t)
      step.q_position.push_back(first + below(20));
    for (int s = below(setting.segments + 1); s > 0; --s) {
      const int d = below(4);
      const bool is_slice = below(4) == 0;
      const int start = is_slice ? 3 : 0;
      const int length =
          below(8) == 0 ? 0 : documents.length[static_cast<std::size_t>(d)] - 2 * start;
      const int slot = d + start;
      const int list = documents.first_page[static_cast<std::size_t>(d)];
      step.base.push_back(below(400));
      step.start.push_back(start);
      step.length.push_back(length);
      step.lead.push_back(slot);
      step.first_page.push_back(setting.own_lists ? static_cast<int>(step.pages.size()) : list);
      if (setting.own_lists)
        for (int i = 0; i * kPageSize < slot + length || i == 0; ++i)
          step.pages.push_back(documents.pages[static_cast<std::size_t>(list + i)]);
    }
    step.q_indptr.push_back(static_cast<int>(step.q_position.size()));
    step.segment_indptr.push_back(static_cast<int>(step.base.size()));
  }
  return step;
}

// A query token of a shared segment: its row of q, and its position there.
using Reader = std::pair<int, int>;

struct SharedSegment {
  int segment = 0;  // the first one that reads it
  std::vector<int> segments;
  std::vector<Reader> readers;
};

class Model {
 public:
  Model(const Setting& setting, const StepArrays& step, const ShareParams& params)
      : setting_(setting), step_(step), params_(params) {
    for (int r = 0; r < setting.requests; ++r)
      for (int s = at(step.segment_indptr, r); s < at(step.segment_indptr, r + 1); ++s)
        if (can_be_shared(r, s)) add(r, s);
    std::int64_t saved = 0;
    std::erase_if(groups_, [&](const auto& entry) {
      const SharedSegment& group = entry.second;
      const int tiles =
          (static_cast<int>(group.readers.size()) + params.tile_tokens - 1) / params.tile_tokens;
      const int less = static_cast<int>(group.segments.size()) - tiles;
      if (less > 0) saved += std::int64_t{less} * at(step.length, group.segment);
      return less <= 0;
    });
    if (saved < params.min_saved_tokens) groups_.clear();
  }

  // Returns the shared segments by their readers.
  std::map<std::vector<Reader>, SharedSegment> by_readers() const {
    std::map<std::vector<Reader>, SharedSegment> result;
    for (const auto& [key, group] : groups_) result.emplace(group.readers, group);
    return result;
  }

 private:
  static int at(const std::vector<int>& values, int i) {
    return values[static_cast<std::size_t>(i)];
  }
  bool can_be_shared(int request, int segment) const {
    const int begin = at(step_.q_indptr, request);
    const int end = at(step_.q_indptr, request + 1);
    if (end == begin || end - begin > params_.max_request_tokens) return false;
    const int length = at(step_.length, segment);
    if (length < kMinSharedLength) return false;
    const int first_key = at(step_.base, segment) + at(step_.start, segment);
    for (int t = begin; t < end; ++t) {
      const int position = at(step_.q_position, t);
      if (setting_.mask != "full" && position < first_key + length - 1) return false;
      if (setting_.mask == "sliding_window" && position - first_key >= kWindow) return false;
    }
    return true;
  }
  void add(int request, int segment) {
    const int slot = at(step_.lead, segment);
    std::vector<int> key = {at(step_.start, segment), at(step_.length, segment), slot % kPageSize};
    for (int i = slot / kPageSize; i * kPageSize < slot + at(step_.length, segment); ++i)
      key.push_back(at(step_.pages, at(step_.first_page, segment) + i));
    const auto [entry, is_new] = groups_.try_emplace(key);
    SharedSegment& group = entry->second;
    if (is_new) group.segment = segment;
    group.segments.push_back(segment);
    for (int t = at(step_.q_indptr, request); t < at(step_.q_indptr, request + 1); ++t)
      group.readers.emplace_back(
          t, (setting_.query_form == RopeForm::kRotated ? 0 : at(step_.q_position, t)) -
                 at(step_.base, segment));
  }

  const Setting& setting_;
  const StepArrays& step_;
  const ShareParams& params_;
  std::map<std::vector<int>, SharedSegment> groups_;
};

class ShareTest : public testing::TestWithParam<Setting> {
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

  // Checks request `g` of the shared step, and returns the shared segment that it stands for.
  SharedSegment expect_request(const StepArrays& step, const Model& model, int g) const {
    std::vector<Reader> readers;
    for (int t = shared().q_indptr[g]; t < shared().q_indptr[g + 1]; ++t)
      readers.emplace_back(cascade_.share.tokens[t].query_token, shared().q_position[t]);
    const auto groups = model.by_readers();
    const auto found = groups.find(readers);
    if (found == groups.end()) {
      ADD_FAILURE() << "request " << g << " has other readers";
      return {};
    }
    const auto segment = static_cast<std::size_t>(found->second.segment);
    EXPECT_EQ(shared().segment_indptr[g], g);
    EXPECT_EQ(shared().base[g], 0);
    EXPECT_EQ(shared().start[g], step.start[segment]);
    EXPECT_EQ(shared().length[g], step.length[segment]);
    EXPECT_EQ(shared().lead[g], step.lead[segment]);
    EXPECT_EQ(shared().first_page[g], step.first_page[segment]);
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
    const Model model(setting_, step, cascade_.share);
    const SharedCounts counts = *shared().counts;
    std::map<Reader, int> slot_of;  // by query token and segment
    std::set<int> left;
    for (int s = 0; s < static_cast<int>(step.base.size()); ++s) left.insert(s);
    for (int g = 0; g < counts.requests; ++g) {
      int token = shared().q_indptr[g];
      for (const int s : expect_request(step, model, g).segments) {
        left.erase(s);
        EXPECT_EQ(cascade_.share.own_length[s], 0);
        const int query_token = cascade_.share.tokens[token].query_token;
        for (int t = query_token; token < shared().q_indptr[g + 1] && is_of(step, s, t); ++t)
          slot_of[{t, s}] = cascade_.share.tokens[token++].slot;
      }
    }
    EXPECT_EQ(shared().q_indptr[counts.requests], counts.tokens);
    EXPECT_EQ(shared().segment_indptr[counts.requests], counts.requests);
    EXPECT_EQ(slot_of.size(), static_cast<std::size_t>(counts.tokens));
    if (has_room) {
      EXPECT_EQ(static_cast<std::size_t>(counts.requests), model.by_readers().size());
    }
    for (const int s : left)
      EXPECT_EQ(cascade_.share.own_length[s], step.length[static_cast<std::size_t>(s)]);
    expect_slots(step, slot_of);
    shared_requests_ += counts.requests;
  }
  // Tells whether a query token is of the request of a segment.
  static bool is_of(const StepArrays& step, int segment, int token) {
    const auto request =
        std::ranges::upper_bound(step.segment_indptr, segment) - step.segment_indptr.begin() - 1;
    return token < step.q_indptr[static_cast<std::size_t>(request) + 1];
  }

  const Setting& setting_ = GetParam();
  KernelConfig config_;
  std::shared_ptr<const Kernel> kernel_;
  std::optional<HostTensor> memory_;
  CascadeParams cascade_;
  std::function<void(ShareParams&)> limit_;
  int shared_requests_ = 0;
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

INSTANTIATE_TEST_SUITE_P(
    Settings, ShareTest,
    testing::Values(Setting{"causal"}, Setting{.name = "own_lists", .own_lists = true},
                    Setting{.name = "full_mask", .mask = "full", .group_size = 16},
                    Setting{.name = "window", .mask = "sliding_window", .requests = 40},
                    Setting{.name = "rotated", .query_form = RopeForm::kRotated},
                    Setting{.name = "few_tokens_in_a_tile", .group_size = 64, .max_tokens = 3},
                    Setting{.name = "many_segments", .requests = 90, .segments = 12},
                    Setting{.name = "little_to_save", .share_above_kib = 1 << 20}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace lazyrope
