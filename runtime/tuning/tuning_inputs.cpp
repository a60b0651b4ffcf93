#include "runtime/tuning/tuning_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <random>
#include <span>

#include "runtime/attention/pool.h"
#include "runtime/base/half.h"

namespace lazyrope {
namespace {

// The random values repeat with an odd period, so that few pages begin with the same values.
constexpr std::size_t kRandomValues = (std::size_t{1} << 21) + 4099;
constexpr std::size_t kRandomNumbers = (std::size_t{1} << 16) + 3;
constexpr unsigned kSeed = 2606;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t pages_of(const TuningWorkload& w) {
  const std::int64_t full = w.context / w.doc_tokens;
  return w.batch *
         (full * ceil_div(w.doc_tokens, kTuningPage) +
          ceil_div(w.context % w.doc_tokens, kTuningPage) + ceil_div(w.query_tokens, kTuningPage));
}

std::int64_t tokens_of(const TuningWorkload& w) { return std::int64_t{w.batch} * w.query_tokens; }

// Returns the bytes of a page's biases of keys, or of its LSEs.
std::int64_t number_bytes(const AttentionSpec& spec) {
  return std::int64_t{kTuningPage} * spec.num_kv_heads * kFloatBytes;
}

// Returns the bytes of a page of keys, or of values.
std::int64_t page_bytes(const AttentionSpec& spec) { return kTuningPage * token_bytes(spec) / 2; }

std::optional<int> mask_parameter(const AttentionSpec& spec, const char* name) {
  const auto given = spec.mask_parameters.find(name);
  return given == spec.mask_parameters.end() ? std::nullopt : std::optional(given->second);
}

// Returns the longest context whose documents queries see. A chunk must have room for the queries
// after it.
std::int64_t longest_context(const TuningWorkload& workload, const AttentionSpec& spec) {
  const int doc = workload.doc_tokens;
  if (const auto window = mask_parameter(spec, "window")) return ceil_div(*window, doc) * doc;
  if (const auto chunk = mask_parameter(spec, "chunk"))
    return std::max((*chunk - workload.query_tokens) / doc, 1) * std::int64_t{doc};
  return workload.context;
}

// Returns the number of pages of a call per page that the call reads. A sliding window hides the
// other pages.
std::int64_t pages_per_read(const TuningWorkload& workload, const AttentionSpec& spec) {
  const int window = mask_parameter(spec, "window").value_or(workload.context);
  return ceil_div(workload.context, std::max(std::min(workload.context, window), 1));
}

// A floating-point format: sign, exponent and mantissa, from the highest bit down.
struct Format {
  int bytes;
  int mantissa_bits;
  int exponent_bias;
};

Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16:
      return {2, 7, 127};
    case Dtype::kFp16:
      return {2, 10, 15};
    case Dtype::kFp8E4m3:
      return {1, 3, 7};
    case Dtype::kFp8E5m2:
      return {1, 2, 15};
  }
  return {};
}

// Rounds a value that the format can hold. Values below the normal range become 0.
std::uint32_t rounded_bits(float x, const Format& format) {
  const int dropped = 23 - format.mantissa_bits;
  const auto bias = static_cast<std::uint32_t>(127 - format.exponent_bias);
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 31 << (8 * format.bytes - 1);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude < (bias + 1) << 23) return sign;
  const std::uint32_t below_half = (1U << (dropped - 1)) - 1;
  return sign | (magnitude - (bias << 23) + below_half + (magnitude >> dropped & 1)) >> dropped;
}

// Returns 0 .. count-1, shuffled.
std::vector<std::int32_t> shuffled(std::int32_t count, unsigned seed) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  std::ranges::shuffle(values, std::mt19937(seed));
  return values;
}

// Returns device memory filled with repetitions of the values.
std::unique_ptr<DeviceBuffer> filled(const std::shared_ptr<const Device>& device,
                                     std::span<const std::byte> values, std::size_t bytes) {
  auto buffer = std::make_unique<DeviceBuffer>(device, bytes);
  for (std::size_t at = 0; at < bytes; at += values.size())
    device->copy_from_host(static_cast<std::byte*>(buffer->data()) + at, values.data(),
                           std::min(values.size(), bytes - at), nullptr);
  return buffer;
}

template <class T>
std::vector<T> downloaded(const DeviceTensor& tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.view().elements()));
  tensor.copy_to_host(values.data());
  return values;
}

// Returns the largest relative error of rounding a number to the type.
double half_ulp(Dtype dtype) { return std::ldexp(0.5, -format_of(dtype).mantissa_bits); }

// Returns by how much the roundings of rotated queries may make the LSE of two configs differ.
//
// The error of a rotated query has, in each column, a root mean square of at most 1.8 roundings
// (templates/ops/rotate_tile.cuh). It changes the LSE by scale x (error . mean key), where the mean
// is weighted by the softmax. For keys from N(0, 1) that mean is scale x query, and at most about 1
// in each column. Let s be the scale times the attention factor, by which raw queries are
// multiplied as they are rotated. With queries from N(0, 1) the change has the standard deviation
//   s x min(s, 1) x sqrt(3 head_dim) x 1.8 x half_ulp / sqrt(3).
// Two results differ by sqrt(2) of that, and one row in two million by more than five of those. The
// order of sums and approximate exponentials add less than kSums.
double lse_rounding(const AttentionSpec& spec) {
  constexpr double kSums = 1e-3;
  const double factor = spec.query_form == RopeForm::kRaw
                            ? rope_variant(spec.rope.variant).attention_factor(spec.rope.parameters)
                            : 1.0;
  const double scale = spec.softmax_scale() * factor;
  const double deviation =
      scale * std::min(scale, 1.0) * std::sqrt(spec.head_dim) * 1.8 * half_ulp(spec.dtype);
  return 5 * std::numbers::sqrt2 * deviation + kSums;
}

double square_sum(std::span<const float> values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

}  // namespace

std::vector<TuningWorkload> tuning_workloads() {
  return {{.batch = 1, .query_tokens = 1, .context = 16384},
          {.batch = 64, .query_tokens = 1, .context = 4096},
          {.batch = 1, .query_tokens = 64, .context = 8192},
          {.batch = 1, .query_tokens = 512, .context = 8192},
          {.batch = 1, .query_tokens = 2048, .context = 8192}};
}

TuningWorkload fitted(TuningWorkload workload, const AttentionSpec& spec, std::int64_t max_tokens) {
  const int doc = workload.doc_tokens;
  workload.context =
      static_cast<int>(std::min<std::int64_t>(workload.context, longest_context(workload, spec)));
  const auto fits = [&] { return pages_of(workload) * kTuningPage <= max_tokens; };
  while (!fits() && workload.context > doc) workload.context /= 2;
  while (!fits() && workload.batch > 1) workload.batch /= 2;
  return workload;
}

TuningMetadata metadata_of(const TuningWorkload& workload) {
  TuningMetadata m;
  m.q_indptr = m.segment_indptr = {0};
  std::int32_t page = 0;
  const auto add_segment = [&](int at, int length) {
    m.base.push_back(at);
    m.start.push_back(0);
    m.length.push_back(length);
    m.first_page.push_back(page);
    page += static_cast<std::int32_t>(ceil_div(length, kTuningPage));
  };
  for (int request = 0; request < workload.batch; ++request) {
    for (int at = 0; at < workload.context; at += workload.doc_tokens)
      add_segment(at, std::min(workload.doc_tokens, workload.context - at));
    add_segment(workload.context, workload.query_tokens);
    for (int i = 0; i < workload.query_tokens; ++i) m.q_position.push_back(workload.context + i);
    m.q_indptr.push_back(static_cast<std::int32_t>(m.q_position.size()));
    m.segment_indptr.push_back(static_cast<std::int32_t>(m.base.size()));
  }
  m.pages = shuffled(page, kSeed);
  return m;
}

std::vector<float> normal_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<std::byte> normal_values(Dtype dtype, std::size_t count, unsigned seed) {
  const Format format = format_of(dtype);
  const auto bytes = static_cast<std::size_t>(format.bytes);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> values(count * bytes);
  for (std::size_t at = 0; at < values.size(); at += bytes) {
    const std::uint32_t bits = rounded_bits(normal(random), format);
    std::memcpy(values.data() + at, &bits, bytes);
  }
  return values;
}

std::int64_t token_bytes(const AttentionSpec& spec) {
  return std::int64_t{2} * spec.num_kv_heads * spec.head_dim * bytes_of(spec.pool_dtype());
}

TuningPool::TuningPool(std::shared_ptr<const Device> device, const AttentionSpec& spec,
                       const std::vector<TuningWorkload>& workloads)
    : device_(std::move(device)), spec_(spec) {
  // The keys of this many pages fill L2, and so do their values.
  const std::int64_t cold_pages = ceil_div(device_->l2_bytes(), page_bytes(spec));
  for (const TuningWorkload& workload : workloads)
    pages_ = std::max(pages_, pages_of(workload) + cold_pages * pages_per_read(workload, spec));
  const auto bytes = static_cast<std::size_t>(pages_ * page_bytes(spec));
  const std::vector<std::byte> values = normal_values(spec.pool_dtype(), 2 * kRandomValues, kSeed);
  keys_ = filled(device_, std::span(values).first(values.size() / 2), bytes);
  values_ = filled(device_, std::span(values).last(values.size() / 2), bytes);
  if (!spec.key_bias && !spec.states) return;
  const std::vector<float> numbers = normal_floats(kRandomNumbers, kSeed + 2);
  numbers_ = filled(device_, std::as_bytes(std::span(numbers)),
                    static_cast<std::size_t>(pages_ * number_bytes(spec)));
}

PoolTensors TuningPool::next(std::int64_t pages) {
  if (cursor_ + pages > pages_) cursor_ = 0;
  const std::int64_t page = std::exchange(cursor_, cursor_ + pages);
  return at(page, pages);
}

PoolTensors TuningPool::at(std::int64_t page, std::int64_t pages) const {
  const DeviceId id = device_->id();
  const auto view = [&](const DeviceBuffer& buffer) {
    return make_tensor(static_cast<std::byte*>(buffer.data()) + page * page_bytes(spec_),
                       element_type(spec_.pool_dtype()),
                       {pages, kTuningPage, spec_.num_kv_heads, spec_.head_dim}, id.type,
                       id.ordinal);
  };
  PoolTensors pool = {view(*keys_), view(*values_)};
  if (numbers_)
    (spec_.states ? pool.entry_lse : pool.key_bias) = make_tensor(
        static_cast<std::byte*>(numbers_->data()) + page * number_bytes(spec_), ElementType::kFp32,
        {pages, spec_.num_kv_heads, kTuningPage}, id.type, id.ordinal);
  return pool;
}

std::string difference(const TuningResult& baseline, const TuningResult& other,
                       const AttentionSpec& spec) {
  // Weights and results are rounded once each, by up to a half of this fraction.
  const double rounding = 2 * half_ulp(spec.dtype);
  const double limit = 2 * rounding;
  const double lse_limit = lse_rounding(spec);
  const std::size_t columns = baseline.out.size() / baseline.lse.size();
  std::vector<float> distance(columns);
  for (std::size_t row = 0; row < baseline.lse.size(); ++row) {
    const std::span<const float> a = std::span(baseline.out).subspan(row * columns, columns);
    const std::span<const float> b = std::span(other.out).subspan(row * columns, columns);
    std::ranges::transform(a, b, distance.begin(), std::minus{});
    const double error = std::sqrt(square_sum(distance) / std::max(square_sum(a), 1e-30));
    const double lse_error = std::abs(static_cast<double>(baseline.lse[row]) - other.lse[row]);
    // The comparison is false for NaN, which therefore counts as a difference.
    if (error <= limit && lse_error <= lse_limit) continue;
    return fmt::format(
        "row {} of {} differs from the default's by {:.2g} of its norm, its lse by {:.2g} "
        "(rounding explains {:.2g} and {:.2g})",
        row, baseline.lse.size(), error, lse_error, limit, lse_limit);
  }
  return "";
}

TuningCase::TuningCase(std::shared_ptr<const Device> device, const AttentionSpec& spec,
                       const TuningWorkload& workload, TuningPool& pool)
    : device_(std::move(device)),
      spec_(spec),
      workload_(workload),
      pool_(pool),
      q_(element_type(spec.dtype), {tokens_of(workload), spec.num_q_heads, spec.head_dim}, device_),
      out_(element_type(spec.dtype), {tokens_of(workload), spec.num_q_heads, spec.head_dim},
           device_),
      lse_(ElementType::kFp32, {tokens_of(workload), spec.num_q_heads}, device_) {
  const TuningMetadata m = metadata_of(workload);
  num_pages_ = std::ssize(m.pages);
  step_ = {.q_indptr = upload(m.q_indptr),
           .q_position = upload(m.q_position),
           .segments = {.indptr = upload(m.segment_indptr),
                        .base = upload(m.base),
                        .start = upload(m.start),
                        .length = upload(m.length),
                        .first_page = upload(m.first_page)},
           .pages = upload(m.pages)};
  if (spec.sinks) sinks_ = DeviceTensor(ElementType::kFp32, {spec.num_q_heads}, device_);
  const auto count = static_cast<std::size_t>(q_.view().elements());
  q_.copy_from_host(normal_values(spec.dtype, count, kSeed + 1).data());
}

TensorView TuningCase::upload(const std::vector<std::int32_t>& values) {
  DeviceTensor& tensor = metadata_.emplace_back(
      ElementType::kInt32, std::initializer_list<std::int64_t>{std::ssize(values)}, device_);
  tensor.copy_from_host(values.data());
  return tensor.view();
}

std::unique_ptr<Step> TuningCase::plan(const Attention& attention) const {
  const StepCapacity capacity = {.requests = workload_.batch,
                                 .segments = static_cast<int>(step_.segments.base.shape[0]),
                                 .query_tokens = static_cast<int>(step_.q_position.shape[0]),
                                 .tokens_per_request = workload_.query_tokens};
  auto step = attention.make_step(device_, {.page_size = kTuningPage}, capacity, nullptr);
  step->update(step_, /*check=*/false, nullptr);
  return step;
}

void TuningCase::attend_in(const PoolTensors& pool, const Attention& attention,
                           const Step& step) const {
  attention.attend(q_, pool, step, out_, lse_, nullptr, sinks_);
}

void TuningCase::attend(const Attention& attention, const Step& step) const {
  attend_in(pool_.next(num_pages_), attention, step);
}

TuningResult TuningCase::result(const Attention& attention, const Step& step) const {
  // Cleared outputs make a row that the kernel does not write differ from the default's.
  for (DeviceTensor tensor : {out_, lse_}) tensor.fill_zero();
  attend_in(pool_.first(num_pages_), attention, step);
  const auto from_bits = spec_.dtype == Dtype::kBf16 ? from_bf16 : from_fp16;
  TuningResult result;
  result.lse = downloaded<float>(lse_);
  std::ranges::transform(downloaded<std::uint16_t>(out_), std::back_inserter(result.out),
                         from_bits);
  return result;
}

}  // namespace lazyrope
