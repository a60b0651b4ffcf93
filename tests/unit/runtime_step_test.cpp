#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "codegen/error.h"
#include "runtime/emulator/fault.h"
#include "runtime/step/step.h"
#include "runtime/step/step_layout.h"
#include "templates/planner/policy.h"
#include "tests/support/fake_device.h"
#include "tests/support/metadata.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

const StepShape kShape = {
    .group_size = 2, .num_kv_heads = 2, .head_dim = 64, .kv_bytes = 2, .mask = "causal"};
constexpr StepCapacity kCapacity = {.requests = 2, .segments = 3, .query_tokens = 12};
constexpr int kLargest = std::numeric_limits<int>::max();

KernelConfig default_config(std::string_view arch = "sm_80") {
  return configs(small_spec().kernel_spec(), find_arch(arch)).front();
}

// Two requests: ten query tokens over two segments, and one over one segment. The segments have 20,
// 9 and 20 tokens, and the second starts at slot 5.
StepArrays legal_arrays() {
  return {.q_indptr = {0, 10, 11},
          .q_position = {28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 40},
          .segment_indptr = {0, 2, 3},
          .base = {0, 20, 16},
          .start = {0, 0, 0},
          .length = {20, 9, 20},
          .first_page = {0, 2, 0},
          .pages = {4, 1, 3},
          .lead = {0, 5, 0}};
}

class StepTest : public testing::Test {
 protected:
  Step make(StepCapacity capacity = kCapacity, PoolFormat format = {}) const {
    return Step(device_, {fake_kernel(KernelKind::kPlan)}, kShape, default_config(), format,
                capacity, nullptr);
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  StepArrays arrays_ = legal_arrays();
};

TEST_F(StepTest, PassesTheCallersTensorsToThePlanner) {
  PlanParams seen{};
  int ctas = 0;
  device_->on_launch = [&](int count, const void* params) {
    ctas = count;
    seen = *static_cast<const PlanParams*>(params);
  };
  Step step = make();
  step.update(arrays_.tensors(), /*check=*/true, nullptr);
  EXPECT_EQ(ctas, 2 * seen.num_planners) << "decode and prefill have as many planners";
  EXPECT_EQ(seen.inputs.num_requests, 2);
  EXPECT_EQ(seen.inputs.num_segments, 3);
  EXPECT_EQ(seen.inputs.num_tokens, 11);
  EXPECT_EQ(seen.inputs.page_size, 16);
  EXPECT_EQ(seen.inputs.q_position, arrays_.q_position.data());
  EXPECT_EQ(seen.inputs.lead, arrays_.lead.data());
  EXPECT_EQ(seen.inputs.pages, arrays_.pages.data());
  EXPECT_EQ(step.num_tokens(), 11);
}

TEST_F(StepTest, UpdateClearsTheStepAfterAKernelFault) {
  Step step = make();
  const auto fails = [] { throw KernelFault("a rule", "is broken"); };
  const auto update = [&] { step.update(arrays_.tensors(), /*check=*/false, nullptr); };
  update();
  uint8& left = *step.work(Step::kDecode).partials;
  left = 7;
  EXPECT_THROW(step.memory().run(fails), KernelFault);
  device_->on_launch = [&](int, const void*) {
    EXPECT_EQ(left, 0) << "the step is cleared before it is planned";
  };
  update();
  step.memory().run([] {});

  device_->on_launch = [&](int, const void*) { fails(); };
  EXPECT_THROW(update(), KernelFault);
  EXPECT_THROW(step.memory().run([] {}), SpecError) << "the planner was at fault";
}

TEST_F(StepTest, LeadMayBeLeftOut) {
  PlanParams seen{};
  device_->on_launch = [&](int, const void* p) { seen = *static_cast<const PlanParams*>(p); };
  StepTensors tensors = arrays_.tensors();
  tensors.segments.lead.reset();
  make().update(tensors, /*check=*/true, nullptr);
  EXPECT_EQ(seen.inputs.lead, nullptr);
}

TEST_F(StepTest, DecodeOnlyStepHasNoPrefill) {
  int ctas = 0, planners = 0;
  device_->on_launch = [&](int count, const void* params) {
    ctas = count;
    planners = static_cast<const PlanParams*>(params)->num_planners;
  };
  StepCapacity capacity = kCapacity;
  capacity.tokens_per_request = 8;  // 16 packed rows, which one decode tile takes
  Step step = make(capacity);
  EXPECT_TRUE(step.serves(Step::kDecode));
  EXPECT_FALSE(step.serves(Step::kPrefill));
  arrays_.q_indptr = {0, 8, 11};
  step.update(arrays_.tensors(), /*check=*/true, nullptr);
  EXPECT_EQ(ctas, planners);
}

TEST_F(StepTest, TokensPerRequestDefaultToAllTokens) {
  EXPECT_EQ(make().capacity().tokens_per_request, 12);
  StepCapacity capacity = kCapacity;
  capacity.tokens_per_request = 50;
  EXPECT_EQ(make(capacity).capacity().tokens_per_request, 12);
}

TEST_F(StepTest, TakesTheMemoryThatStepBytesReturns) {
  EXPECT_EQ(step_bytes(kShape, default_config(), kCapacity, device_->sm_count()), make().bytes());
  EXPECT_TRUE(throws<SpecError>([] { step_bytes(kShape, default_config(), kCapacity, 0); },
                                {"sm_count = 0", "must be at least 1"}));
}

TEST_F(StepTest, IllegalCapacitiesAreNamed) {
  struct Row {
    int StepCapacity::* field;
    const char* text;
  };
  for (const Row& row : {Row{&StepCapacity::requests, "requests = -1"},
                         Row{&StepCapacity::segments, "segments = -1"},
                         Row{&StepCapacity::query_tokens, "query_tokens = -1"},
                         Row{&StepCapacity::tokens_per_request, "tokens_per_request = -1"}}) {
    StepCapacity capacity = kCapacity;
    capacity.*row.field = -1;
    EXPECT_TRUE(throws<SpecError>([&] { make(capacity); }, {row.text, "must be at least 0"}));
  }
  EXPECT_TRUE(throws<SpecError>(
      [&] { make({1, 1, kLargest}); },
      {"query_tokens = 2147483647 with 2 query heads", "product must be at most 1073741824"}));
}

TEST_F(StepTest, IllegalPageSizesAreNamed) {
  for (const int size : {0, 8, 24, -16})
    EXPECT_TRUE(throws<SpecError>([&] { make(kCapacity, {.page_size = size}); },
                                  {"page_size = " + std::to_string(size), "multiple of 16"}));
}

TEST_F(StepTest, ExceededCapacityIsNamed) {
  struct Row {
    StepCapacity capacity;
    const char* text;
  };
  for (const Row& row : {Row{{1, 3, 12}, "2 requests; the step was made for at most 1"},
                         Row{{2, 2, 12}, "3 segments; the step was made for at most 2"},
                         Row{{2, 3, 10}, "11 query tokens; the step was made for at most 10"}})
    EXPECT_TRUE(
        throws<SpecError>([&] { make(row.capacity).update(arrays_.tensors(), false, nullptr); },
                          {row.text, "make one of greater capacity"}));
}

TEST_F(StepTest, TensorsOfAnotherLengthAreNamed) {
  Step step = make();
  struct Row {
    std::vector<int> StepArrays::* field;
    const char* text;
  };
  for (const Row& row :
       {Row{&StepArrays::segment_indptr, "segments.indptr has 4 elements; it must have 3"},
        Row{&StepArrays::start, "segments.start has 4 elements; it must have 3"},
        Row{&StepArrays::length, "segments.length has 4 elements; it must have 3"},
        Row{&StepArrays::first_page, "segments.first_page has 4 elements; it must have 3"},
        Row{&StepArrays::lead, "segments.lead has 4 elements; it must have 3"}}) {
    StepArrays arrays = legal_arrays();
    (arrays.*row.field).push_back(0);
    EXPECT_TRUE(
        throws<SpecError>([&] { step.update(arrays.tensors(), false, nullptr); }, {row.text}));
  }
}

TEST_F(StepTest, EveryTensorMustBeIntsOnTheDevice) {
  Step step = make();
  using Field = TensorView& (*)(StepTensors&);
  const std::vector<std::pair<const char*, Field>> fields = {
      {"q_indptr", [](StepTensors& t) -> TensorView& { return t.q_indptr; }},
      {"q_position", [](StepTensors& t) -> TensorView& { return t.q_position; }},
      {"segments.indptr", [](StepTensors& t) -> TensorView& { return t.segments.indptr; }},
      {"segments.base", [](StepTensors& t) -> TensorView& { return t.segments.base; }},
      {"segments.start", [](StepTensors& t) -> TensorView& { return t.segments.start; }},
      {"segments.length", [](StepTensors& t) -> TensorView& { return t.segments.length; }},
      {"segments.first_page", [](StepTensors& t) -> TensorView& { return t.segments.first_page; }},
      {"pages", [](StepTensors& t) -> TensorView& { return t.pages; }}};
  for (const auto& [name, field] : fields) {
    StepTensors floats = arrays_.tensors();
    field(floats).type = ElementType::kFp32;
    EXPECT_TRUE(throws<SpecError>([&] { step.update(floats, false, nullptr); },
                                  {std::string(name) + " is float32", "must be int32"}));
    StepTensors elsewhere = arrays_.tensors();
    field(elsewhere).device_type = DeviceType::kGpu;
    EXPECT_TRUE(throws<SpecError>([&] { step.update(elsewhere, false, nullptr); },
                                  {std::string(name) + " is int32", "must be on fake GPU"}));
  }
  StepTensors lead = arrays_.tensors();
  lead.segments.lead->type = ElementType::kFp32;
  EXPECT_TRUE(
      throws<SpecError>([&] { step.update(lead, false, nullptr); }, {"segments.lead is float32"}));
}

TEST_F(StepTest, CheckingIsRefusedInCapture) {
  Step step = make();
  device_->capturing = true;
  EXPECT_NO_THROW(step.update(arrays_.tensors(), /*check=*/false, nullptr));
  EXPECT_TRUE(throws<SpecError>([&] { step.update(arrays_.tensors(), /*check=*/true, nullptr); },
                                {"check=True waits for the stream"}));
  EXPECT_TRUE(throws<SpecError>([&] { step.check_pages(5, nullptr); },
                                {"check=True waits for the stream"}));
}

struct BadValue {
  const char* name;
  std::function<void(StepArrays&)> change;
  std::string text;
};

void PrintTo(const BadValue& row, std::ostream* out) { *out << row.name; }

class BadStepValues : public testing::TestWithParam<BadValue> {};

TEST_P(BadStepValues, AreNamedWithTheirRequestAndSegment) {
  StepArrays arrays = legal_arrays();
  GetParam().change(arrays);
  StepCapacity capacity = kCapacity;
  capacity.tokens_per_request = 10;
  Step step(std::make_shared<FakeDevice>(), {fake_kernel(KernelKind::kPlan)}, kShape,
            default_config(), {}, capacity, nullptr);
  EXPECT_TRUE(throws<SpecError>([&] { step.update(arrays.tensors(), /*check=*/true, nullptr); },
                                {GetParam().text}));
  EXPECT_NO_THROW(step.update(arrays.tensors(), /*check=*/false, nullptr));
}

INSTANTIATE_TEST_SUITE_P(
    Step, BadStepValues,
    testing::Values(
        BadValue{"QueriesBegin", [](auto& a) { a.q_indptr[0] = 1; },
                 "q_indptr[0] = 1; it must be 0"},
        BadValue{"QueriesDecrease", [](auto& a) { a.q_indptr[1] = 12; },
                 "q_indptr[2] = 11 after 12; it must not decrease"},
        BadValue{"QueriesEnd", [](auto& a) { a.q_indptr[2] = 10; },
                 "q_indptr[2] = 10, but there are 11 query positions"},
        BadValue{"SegmentsBegin", [](auto& a) { a.segment_indptr[0] = -1; },
                 "segments.indptr[0] = -1; it must be 0"},
        BadValue{"SegmentsDecrease", [](auto& a) { a.segment_indptr[1] = 4; },
                 "segments.indptr[2] = 3 after 4; it must not decrease"},
        BadValue{"SegmentsEnd", [](auto& a) { a.segment_indptr[2] = 2; },
                 "segments.indptr[2] = 2, but there are 3 segments"},
        BadValue{"TokensOfRequest", [](auto& a) { a.q_indptr[1] = 11; },
                 "request 0 has 11 query tokens; the step was made for at most 10 a request"},
        BadValue{"Length", [](auto& a) { a.length[1] = -1; },
                 "request 0, segment 1: length = -1; it must be at least 0"},
        BadValue{"Start", [](auto& a) { a.start[2] = -3; },
                 "request 1, segment 2: start = -3; it must be at least 0"},
        BadValue{"LeadNegative", [](auto& a) { a.lead[0] = -1; },
                 "request 0, segment 0: lead = -1; allowed are 0 to 15"},
        BadValue{"LeadLarge", [](auto& a) { a.lead[1] = 16; },
                 "request 0, segment 1: lead = 16; allowed are 0 to 15"},
        BadValue{
            "PositionLarge", [](auto& a) { a.base[0] = kLargest - 10; },
            "request 0, segment 0: logical positions 2147483637 (with the lead) to 2147483657; "
            "they must fit int32"},
        BadValue{
            "PositionSmall", [](auto& a) { a.base[1] = -kLargest; },
            "request 0, segment 1: logical positions -2147483652 (with the lead) to -2147483638; "
            "they must fit int32"},
        BadValue{"FirstPage", [](auto& a) { a.first_page[0] = -1; },
                 "request 0, segment 0: pages -1 to 0 of its list; pages has 3 elements"},
        BadValue{"LastPage", [](auto& a) { a.first_page[2] = 2; },
                 "request 1, segment 2: pages 2 to 3 of its list; pages has 3 elements"},
        BadValue{"PageNegative", [](auto& a) { a.pages[1] = -7; },
                 "request 0, segment 0: page 1 of its list is -7; it must be at least 0"}),
    [](const auto& row) { return row.param.name; });

TEST_F(StepTest, ValuesOfAnEmptySegmentDoNotMatter) {
  arrays_.length[1] = 0;
  arrays_.first_page[1] = 1000;
  EXPECT_NO_THROW(make().update(arrays_.tensors(), /*check=*/true, nullptr));
}

TEST_F(StepTest, SegmentMayEndWithTheListOfPages) {
  arrays_.lead[1] = 7;  // 7 + 9 slots fill the page
  EXPECT_NO_THROW(make().update(arrays_.tensors(), /*check=*/true, nullptr));
  arrays_.lead[1] = 8;
  EXPECT_THROW(make().update(arrays_.tensors(), /*check=*/true, nullptr), SpecError);
}

TEST_F(StepTest, PagesOutsideThePoolAreNamed) {
  Step step = make();
  step.check_pages(0, nullptr);  // nothing to check before the first update
  step.update(arrays_.tensors(), /*check=*/false, nullptr);
  EXPECT_NO_THROW(step.check_pages(5, nullptr));
  EXPECT_TRUE(throws<SpecError>(
      [&] { step.check_pages(4, nullptr); },
      {"request 0, segment 0: page 0 of its list is 4", "the pool has pages 0 to 3"}));
}

TEST_F(StepTest, CheckingPagesNamesOtherBadValuesToo) {
  Step step = make();
  arrays_.first_page[2] = 1000;
  step.update(arrays_.tensors(), /*check=*/false, nullptr);
  EXPECT_TRUE(throws<SpecError>([&] { step.check_pages(5, nullptr); },
                                {"request 1, segment 2: pages 1000 to 1001 of its list"}));
}

// The address of each array of a step, and the minimum of its bytes.
using Arrays = std::map<std::uintptr_t, std::size_t>;

template <class T>
void add_array(Arrays& arrays, const T* begin, int count) {
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  EXPECT_TRUE(arrays.emplace(reinterpret_cast<std::uintptr_t>(begin), bytes).second);
}

// Adds the tables of the planners, unless they are in shared memory, and the arrays that planners
// share.
void add_scratch(Arrays& arrays, const PlanScratch& scratch, int num_planners) {
  if (scratch.max_tiles > kTilesAtOnce && num_planners > 1) {
    add_array(arrays, scratch.measurements, scratch.max_tiles);
    add_array(arrays, scratch.counter, 1);
  } else {
    EXPECT_EQ(scratch.measurements, nullptr);
  }
  if (scratch.max_tiles <= kSharedTiles) {
    EXPECT_EQ(scratch.tables, nullptr);
    return;
  }
  add_array(arrays, scratch.tables,
            num_planners * static_cast<int>(plan_table_bytes(scratch.max_tiles)));
}

Arrays arrays_of(const PlanParams& params, const StepShape& shape, const StepCapacity& capacity) {
  Arrays arrays;
  add_array(arrays, params.step.header, 1);
  add_array(arrays, params.step.segments, capacity.segments);
  add_array(arrays, params.step.positions, capacity.query_tokens);
  for (const PlanPhase& phase : params.phase) {
    const WorkView& work = phase.work;
    if (work.num_ctas == 0) continue;
    const int row_bytes = partial_record_bytes(shape.head_dim);
    add_array(arrays, work.work_tiles, phase.scratch.max_work_tiles);
    add_array(arrays, work.partials, 2 * work.num_ctas * work.partial_row_count * row_bytes);
    add_array(arrays, work.counters, phase.num_counters);
    add_scratch(arrays, phase.scratch, params.num_planners);
  }
  return arrays;
}

void expect_laid_out(const StepShape& shape, const StepCapacity& capacity) {
  PlanParams params{};
  const std::size_t bytes = lay_out_step(nullptr, shape, default_config(), capacity, 132, params);
  EXPECT_EQ(params.step.segments, nullptr) << "without a block there is no memory to point into";
  const std::vector<std::byte> zeros(bytes);
  std::vector<std::byte> block = zeros;
  EXPECT_EQ(lay_out_step(block.data(), shape, default_config(), capacity, 132, params), bytes);
  EXPECT_EQ(block, zeros) << "laying out writes nothing";

  const auto first = reinterpret_cast<std::uintptr_t>(block.data());
  std::uintptr_t end = first;
  for (const auto& [begin, size] : arrays_of(params, shape, capacity)) {
    EXPECT_GE(begin, end);
    EXPECT_EQ((begin - first) % 256, 0u);
    end = begin + size;
  }
  EXPECT_LE(end, first + bytes);
}

TEST(StepLayout, ArraysAreDisjointAndInsideTheBlock) {
  for (const StepShape& shape :
       {StepShape{1, 1, 64, 2, ""}, StepShape{7, 4, 128, 1, ""}, StepShape{128, 1, 128, 2, ""}})
    for (const StepCapacity& capacity :
         {StepCapacity{1, 1, 1, 1}, StepCapacity{64, 1000, 8192, 1}, StepCapacity{3, 9, 2048, 2048},
          StepCapacity{2000, 2000, 4000, 20}}) {
      SCOPED_TRACE(testing::Message()
                   << "group " << shape.group_size << ", " << capacity.query_tokens << " tokens");
      expect_laid_out(shape, capacity);
    }
}

TEST(StepLayout, StepOfNoCapacityHasABlock) {
  PlanParams params{};
  EXPECT_GT(lay_out_step(nullptr, kShape, default_config(), {}, 132, params), 0u);
  EXPECT_EQ(params.phase[Step::kPrefill].work.num_ctas, 0);
}

// Each head has half of a tile's rows.
TEST(StepLayout, HeadsSideBySideShareAWorkTile) {
  const KernelConfig config = default_config("sm_90a");
  ASSERT_EQ(config.decode.heads, 2);
  StepShape shape = kShape;
  shape.num_kv_heads = 6;
  const auto phase = [&](Step::Phase which, int tokens) {
    const StepCapacity capacity = {
        .requests = 6, .segments = 9, .query_tokens = 12, .tokens_per_request = tokens};
    PlanParams params{};
    lay_out_step(nullptr, shape, config, capacity, 132, params);
    return params.phase[which];
  };
  const int tokens = config.decode.block_m() / 2 / shape.group_size;
  const PlanPhase decode = phase(Step::kDecode, tokens);
  EXPECT_EQ(decode.min_heads, 2);
  EXPECT_EQ(decode.max_heads, 2);
  EXPECT_EQ(decode.max_head_groups, 3);
  EXPECT_EQ(decode.tile_rows.value, config.decode.block_m() / 2);
  EXPECT_EQ(decode.work.partial_row_count, config.decode.block_m());
  EXPECT_EQ(phase(Step::kPrefill, tokens).work.num_ctas, 0);
  EXPECT_EQ(phase(Step::kPrefill, tokens + 1).min_rows, config.decode.block_m() / 2 + 1);
  EXPECT_EQ(phase(Step::kPrefill, tokens + 1).min_heads, 1);
}

TEST(StepLayout, FixedSplitsHaveTheirOwnResultsAndCounters) {
  KernelConfig config = default_config();
  config.fixed_split_blocks = 8;
  config.heads_per_work_tile = 4;
  const StepCapacity capacity = {
      .requests = 6, .segments = 9, .query_tokens = 12, .tokens_per_request = 2};
  PlanParams params{};
  const std::size_t bytes = lay_out_step(nullptr, kShape, config, capacity, 4, params);
  const PlanPhase& decode = params.phase[Step::kDecode];
  EXPECT_EQ(decode.fixed_split_blocks, 8 * config.decode.warps_n) << "in blocks of one warp";
  EXPECT_EQ(decode.max_heads, 1) << "otherwise the splits would depend on the batch";
  EXPECT_EQ(decode.tile_rows.value, 2 * kShape.group_size);
  EXPECT_EQ(decode.work.partial_row_count, 2 * kShape.group_size);
  EXPECT_EQ(decode.scratch.max_tiles, 6 + 6) << "6 tiles of 2 tokens, and one more per request";
  const int partials = decode.scratch.max_tiles * kShape.num_kv_heads * kMaxFixedSplits;
  EXPECT_EQ(decode.scratch.max_work_tiles, partials + decode.work.num_ctas);
  EXPECT_EQ(decode.num_counters, decode.work.num_ctas + 2 * partials);
  EXPECT_GT(bytes, static_cast<std::size_t>(partials * decode.work.partial_row_count) *
                       static_cast<std::size_t>(partial_record_bytes(kShape.head_dim)));
}

TEST(StepLayout, FixedSplitsOfManyTilesAreFew) {
  KernelConfig config = default_config();
  config.fixed_split_blocks = 8;
  const StepCapacity capacity = {
      .requests = 6, .segments = 9, .query_tokens = 100'000, .tokens_per_request = 100'000};
  PlanParams params{};
  lay_out_step(nullptr, kShape, config, capacity, 4, params);
  const PlanPhase& prefill = params.phase[Step::kPrefill];
  const int units = prefill.scratch.max_tiles * kShape.num_kv_heads + 6 * kMaxRequestSplits;
  EXPECT_EQ(prefill.scratch.max_work_tiles, units + prefill.work.num_ctas);
}

TEST(StepLayout, PlannersAreManyIfTheyWriteMuch) {
  const auto planners = [](int requests, int sms) {
    KernelConfig config = default_config();
    config.decode.ctas_per_sm = 1;
    PlanParams params{};
    lay_out_step(nullptr, kShape, config, {requests, requests, requests, 1}, sms, params);
    return params.num_planners;
  };
  EXPECT_EQ(planners(1, 2), 1);
  EXPECT_LT(planners(1, 132), planners(64, 132));
  EXPECT_EQ(planners(3 * kSharedTiles / 4, 132), 48);
  EXPECT_EQ(planners(kSharedTiles / 2, 20), 10)
      << "the planners of each phase have SMs of their own";
  EXPECT_EQ(planners(10 * kSharedTiles, 132), 8) << "each has measurements in memory";
}

TEST(Divisors, GiveExactQuotients) {
  for (const int by : {2, 3, 5, 7, 16, 48, 80, 112, 1000, 4096, 65535, 1 << 30, kLargest})
    for (const int number : {0, 1, by - 1, by, 3 * (by / 3), kLargest - by, kLargest - 1, kLargest})
      EXPECT_EQ(quotient(number, divisor(by)), number / by) << number << " / " << by;
  for (int by = 2; by < 300; ++by)
    for (int number = kLargest - 2 * by; number < kLargest; ++number)
      ASSERT_EQ(quotient(number, divisor(by)), number / by) << number << " / " << by;
  EXPECT_EQ(ceil_div(33, divisor(16)), 3);
  EXPECT_EQ(ceil_div(32, divisor(16)), 2);
}

TEST(StepLayout, TilesAndWorkTilesSufficeForTheLargestStep) {
  PlanParams params{};
  const StepCapacity capacity = {
      .requests = 5, .segments = 9, .query_tokens = 1000, .tokens_per_request = 1000};
  lay_out_step(nullptr, kShape, default_config(), capacity, 4, params);
  const PlanPhase& decode = params.phase[Step::kDecode];
  EXPECT_EQ(decode.scratch.max_tiles, 5) << "a request is one tile";
  EXPECT_GE(decode.scratch.max_work_tiles, 5 * 2 + decode.work.num_ctas)
      << "each CTA may split one unit";
  const PlanPhase& prefill = params.phase[Step::kPrefill];
  EXPECT_GE(prefill.scratch.max_tiles, 2000 / prefill.tile_rows.value + 4)
      << "requests do not share tiles";
  EXPECT_EQ(decode.max_rows + 1, prefill.min_rows);
  EXPECT_EQ(decode.work.num_ctas, 4 * default_config().decode.ctas_per_sm);
}

}  // namespace
}  // namespace lazyrope
