#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/attention/attention.h"
#include "runtime/driver/device.h"
#include "runtime/engine/device_tensor.h"
#include "runtime/engine/tuning.h"

namespace lazyrope {

// Returns typical workloads of serving: decode of one request and of a batch, and prefill of a
// short question, of a chunk and of a long prompt after documents.
std::vector<TuningWorkload> tuning_workloads();

// Returns the workload without the documents that a sliding window hides. Then halves its context,
// and after that its batch, until its KV has at most `max_tokens` tokens.
TuningWorkload fitted(TuningWorkload workload, const AttentionSpec& spec, std::int64_t max_tokens);

// A workload as the arrays of a step. Each request has its own documents, and a last document of
// its query tokens. The pages, of kTuningPage slots, are shuffled.
struct TuningMetadata {
  std::vector<std::int32_t> q_indptr;
  std::vector<std::int32_t> q_position;
  std::vector<std::int32_t> segment_indptr;
  std::vector<std::int32_t> base;
  std::vector<std::int32_t> start;
  std::vector<std::int32_t> length;
  std::vector<std::int32_t> first_page;
  std::vector<std::int32_t> pages;
};

// Slots of a page.
inline constexpr int kTuningPage = 16;

TuningMetadata metadata_of(const TuningWorkload& workload);

// Returns the bytes of `count` values from N(0, 1), rounded to the type. None is NaN or infinite.
std::vector<std::byte> normal_values(Dtype dtype, std::size_t count, unsigned seed);

// Returns the bytes of one token's keys and values.
std::int64_t token_bytes(const AttentionSpec& spec);

// A pool larger than L2. Each call receives other pages than the calls before it. So its keys and
// values are not in L2, and no flush is needed, which would leave dirty lines in L2.
class TuningPool {
 public:
  // Allocates room for each of the workloads, which must fit the device. Throws DriverError if
  // there is too little memory.
  TuningPool(std::shared_ptr<const Device> device, const AttentionSpec& spec,
             const std::vector<TuningWorkload>& workloads);

  // Returns the first pages, the same ones each time.
  PoolTensors first(std::int64_t pages) const { return at(0, pages); }
  // Returns the pages that have not been used for the longest time.
  PoolTensors next(std::int64_t pages);

  std::int64_t pages() const { return pages_; }

 private:
  PoolTensors at(std::int64_t page, std::int64_t pages) const;

  std::shared_ptr<const Device> device_;
  AttentionSpec spec_;
  std::int64_t pages_ = 0;
  std::int64_t cursor_ = 0;
  std::unique_ptr<DeviceBuffer> keys_;
  std::unique_ptr<DeviceBuffer> values_;
  // A number of each slot and KV head, if the spec needs one: the bias of a key, or the LSE of an
  // entry. No segment of a workload is a memory, so no LSE is read.
  std::unique_ptr<DeviceBuffer> numbers_;
};

// The results of one call of attend().
struct TuningResult {
  std::vector<float> out;  // [tokens x heads][head_dim]
  std::vector<float> lse;  // [tokens x heads]
};

// Describes how two configs' results of the same call differ by more than rounding. Returns "" if
// they do not. Queries, keys and values are from N(0, 1).
std::string difference(const TuningResult& baseline, const TuningResult& other,
                       const AttentionSpec& spec);

// The tensors of one workload. Calls are queued on the default stream.
class TuningCase {
 public:
  TuningCase(std::shared_ptr<const Device> device, const AttentionSpec& spec,
             const TuningWorkload& workload, TuningPool& pool);

  const TuningWorkload& workload() const { return workload_; }
  std::unique_ptr<Step> plan(const Attention& attention) const;
  void attend(const Attention& attention, const Step& step) const;
  TuningResult result(const Attention& attention, const Step& step) const;

 private:
  TensorView upload(const std::vector<std::int32_t>& values);
  void attend_in(const PoolTensors& pool, const Attention& attention, const Step& step) const;

  std::shared_ptr<const Device> device_;
  AttentionSpec spec_;
  TuningWorkload workload_;
  TuningPool& pool_;
  std::int64_t num_pages_;
  std::vector<DeviceTensor> metadata_;  // the arrays that `step_` refers to
  StepTensors step_;
  DeviceTensor q_;
  DeviceTensor out_;
  DeviceTensor lse_;
  std::optional<DeviceTensor> sinks_;
};

}  // namespace lazyrope
