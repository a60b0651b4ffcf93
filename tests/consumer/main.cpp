#include <lazyrope/lazyrope.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

using lazyrope::DeviceTensor, lazyrope::DeviceType, lazyrope::ElementType;

// Kernels are compiled for the GPU. Without a GPU, the emulator runs the same source.
const bool gpu = lazyrope::gpu_count() > 0;
const DeviceType device = gpu ? DeviceType::kGpu : DeviceType::kCpu;

// This example allocates DeviceTensors. An inference engine passes TensorViews of its own memory.
DeviceTensor ints(const std::vector<std::int32_t>& values) {
  DeviceTensor tensor(ElementType::kInt32, {std::ssize(values)}, device);
  tensor.copy_from_host(values.data());
  return tensor;
}

DeviceTensor waves(std::int64_t tokens, std::int64_t heads, double step) {
  DeviceTensor tensor(ElementType::kBf16, {tokens, heads, 128}, device);
  std::vector<std::uint16_t> values;  // bfloat16: the upper half of a float
  for (int i = 0; i < tokens * heads * 128; ++i) {
    const auto wave = static_cast<float>(std::sin(step * i));
    values.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(wave) >> 16));
  }
  tensor.copy_from_host(values.data());
  return tensor;
}

int main() {
  // lazyrope::attention_spec_from_hf() makes a spec from the text of a config.json.
  const lazyrope::AttentionSpec spec = {.head_dim = 128,
                                        .num_q_heads = 8,
                                        .num_kv_heads = 2,
                                        .rope = {"neox", 128, {{"theta", 10000.0}}}};
  const auto attention = lazyrope::compile(spec, gpu ? "" : "emu:sm_80");

  // A pool of 16-token pages, and two documents of 40 and 100 tokens in it: pages 0-2 and 3-9.
  const DeviceTensor k_pool(ElementType::kBf16, {10, 16, 2, 128}, device);
  const DeviceTensor v_pool(ElementType::kBf16, {10, 16, 2, 128}, device);
  const DeviceTensor pages = ints({5, 1, 8, 0, 2, 3, 4, 6, 7, 9});

  // The documents are stored once. append() rotates raw keys by their index inside their document.
  const DeviceTensor k = waves(140, 2, 0.37), v = waves(140, 2, 1e-4);
  const auto writes = lazyrope::plan_append(
      *attention,
      {.spans = {.indptr = ints({0, 40, 140}), .start = ints({0, 0}), .first_page = ints({0, 3})},
       .pages = pages},
      {.tokens = 140});
  lazyrope::append(*attention, k, v, {k_pool, v_pool}, *writes);

  // The request sees the second document at positions 0-99 and the first at 100-139. Its query
  // tokens are at 140 and 141.
  const auto step =
      lazyrope::plan(*attention, {.q_indptr = ints({0, 2}),
                                  .q_position = ints({140, 141}),
                                  .segments = {.indptr = ints({0, 2}),
                                               .base = ints({0, 100}),
                                               .start = ints({0, 0}),
                                               .length = ints({100, 40}),
                                               .first_page = ints({3, 0})},
                                  .pages = pages});  // later passes: update(*step, ...)
  const DeviceTensor q = waves(2, 8, 0.37);
  const DeviceTensor out(ElementType::kBf16, {2, 8, 128}, device);
  const DeviceTensor lse(ElementType::kFp32, {2, 8}, device);
  lazyrope::attend(*attention, q, {k_pool, v_pool}, *step, out, lse);  // once a layer

  std::vector<float> sums(2 * 8);
  std::vector<std::uint16_t> results(2 * 8 * 128);
  lse.copy_to_host(sums.data());
  out.copy_to_host(results.data());
  for (std::size_t row = 0; row < sums.size(); ++row) {
    const std::uint32_t first = results[row * 128];
    std::printf("token %zu, head %zu: lse %.4f, out %.4f ...\n", row / 8, row % 8, sums[row],
                std::bit_cast<float>(first << 16));
  }
}
