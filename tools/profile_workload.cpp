#include "tools/profile_workload.h"

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/attention/pool.h"
#include "runtime/emulator/device.h"
#include "runtime/tuning/tuning_inputs.h"

namespace lazyrope {
namespace {

DeviceTensor ints(const std::vector<std::int32_t>& values,
                  const std::shared_ptr<const Device>& device) {
  DeviceTensor tensor(ElementType::kInt32, {std::ssize(values)}, device);
  tensor.copy_from_host(values.data());
  return tensor;
}

// Returns random keys or values to append, [tokens, kv_heads, head_dim].
DeviceTensor new_rows(const AttentionSpec& spec, std::int64_t tokens, unsigned seed,
                      const std::shared_ptr<const Device>& device) {
  DeviceTensor tensor(element_type(spec.dtype), {tokens, spec.num_kv_heads, spec.head_dim}, device);
  const auto count = static_cast<std::size_t>(tensor.view().elements());
  tensor.copy_from_host(normal_values(spec.dtype, count, seed).data());
  return tensor;
}

}  // namespace

void attend_once(const Attention& attention, const TuningWorkload& workload) {
  const auto device = emulator_device();
  TuningPool pool(device, attention.spec(), {workload});
  const TuningCase one(device, attention.spec(), workload, pool);
  one.attend(attention, *one.plan(attention));
}

void append_once(const Attention& attention, const TuningWorkload& workload) {
  const auto device = emulator_device();
  const AttentionSpec& spec = attention.spec();
  const TuningMetadata m = metadata_of(workload);
  std::vector<std::int32_t> indptr = {0};
  std::partial_sum(m.length.begin(), m.length.end(), std::back_inserter(indptr));
  const DeviceTensor rows = ints(indptr, device), start = ints(m.start, device),
                     first_page = ints(m.first_page, device), pages = ints(m.pages, device);
  const auto step =
      attention.make_append_step(device, {.page_size = kTuningPage}, {.tokens = indptr.back()});
  step->update({.spans = {rows, start, first_page}, .pages = pages}, /*check=*/false, nullptr);
  TuningPool pool(device, spec, {workload});
  attention.append(new_rows(spec, indptr.back(), 1, device),
                   new_rows(spec, indptr.back(), 2, device), pool.first(std::ssize(m.pages)), *step,
                   nullptr);
}

}  // namespace lazyrope
