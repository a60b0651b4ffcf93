// Conformance kernels for wgmma. The input is the layouts of both operands, 1 for fp16 or 0 for
// bf16, then kImageWords of shared memory with the operands. The output is at most eight results of
// each thread, each followed by the same element of the product of magnitudes.
#pragma once

#include "isa/bulk_copy.cuh"
#include "isa/math.cuh"
#include "isa/sync.cuh"
#include "isa/wgmma.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

inline constexpr int32 kImageWords = 12288;
// Returns how many of a thread's results are output. The number divides `results`.
constexpr int32 output_count(int32 results) {
  return results <= 8 ? results : results % 8 == 0 ? 8 : 6;
}
inline constexpr int32 kProducts = 2;    // steps along K
inline constexpr int32 kDescribed = 11;  // words before the image
inline constexpr uint32 kMagnitudes = 0x7fff7fffu;

struct WgmmaOperand {
  LAZYROPE_DEVICE SharedDescriptor descriptor(int32 product) const {
    return shared_descriptor(start + product * step, leading, stride, swizzle);
  }

  SharedPtr start;
  int32 leading;
  int32 stride;
  int32 step;  // from product to product along K
  Swizzle swizzle;
};

LAZYROPE_DEVICE WgmmaOperand operand(const uint32* words) {
  const auto word = [&](int32 i) { return static_cast<int32>(ld_global(words + i)); };
  return {dynamic_shared_memory() + word(0), word(1), word(2), word(3),
          static_cast<Swizzle>(word(4))};
}

LAZYROPE_DEVICE void put_image(const ConformanceParams& params, uint32 mask) {
  bar_sync();
  for (int32 i = thread_index(); i < kImageWords; i += block_threads())
    st_shared(dynamic_shared_memory() + 4 * i, ld_global(params.input + kDescribed + i) & mask);
  fence_proxy_async();
  bar_sync();
}

// Loads the fragments of operand A from the beginning of the image.
LAZYROPE_DEVICE void take(OperandA& a, int32 product) {
  for (int32 i = 0; i < 4; ++i)
    a[i] = ld_shared<uint32>(dynamic_shared_memory() +
                             16 * (product * kWarpgroupThreads + thread_index()) + 4 * i);
}

template <int kColumns>
LAZYROPE_DEVICE void store_results(const ConformanceParams& params, const Accumulator<kColumns>& d,
                                   int32 group, int32 magnitude) {
  constexpr int32 kEach = output_count(kColumns / 2);
  static_assert(kColumns / 2 % kEach == 0);
  // Different threads output different registers, so that each register is tested. The loop runs
  // over constant indices, because an index that is known only at run time would put d into local
  // memory.
#pragma unroll
  for (int32 i = 0; i < kColumns / 2; ++i) {
    const int32 slot = i / (kColumns / 2 / kEach);
    if (i % (kColumns / 2 / kEach) == thread_index() % (kColumns / 2 / kEach))
      st_global(params.output + 2 * ((group * kWarpgroupThreads + thread_index()) * kEach + slot) +
                    magnitude,
                float_as_bits(d[i]));
  }
}

template <class T, int kColumns, Major kA, Major kB>
struct FromShared {
  LAZYROPE_DEVICE static void multiply(const ConformanceParams& params, int32 magnitude) {
    const WgmmaOperand a = operand(params.input), b = operand(params.input + 5);
    Accumulator<kColumns> d;
    d.pin();
    wgmma_fence();
    wgmma_m64k16<T, kColumns, kA, kB>(d, {a.descriptor(0), a.descriptor(1)},
                                      {b.descriptor(0), b.descriptor(1)}, false);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    d.pin();
    store_results(params, d, 0, magnitude);
  }
};

// With kBeside the second product reads its further columns where the first one does
// (SharedDescriptor::start_moved).
template <class T, int kColumns, Major kB, bool kBeside = false>
struct FromRegisters {
  LAZYROPE_DEVICE static void multiply(const ConformanceParams& params, int32 magnitude) {
    const WgmmaOperand b = operand(params.input + 5);
    Accumulator<kColumns> d;
    OperandA a[kProducts];
    for (int32 i = 0; i < kProducts; ++i) {
      take(a[i], i);
      a[i].pin();
    }
    const SharedDescriptor beside = b.descriptor(0).start_moved(b.step);
    d.pin();
    wgmma_fence();
    wgmma_m64k16<T, kColumns, kB>(d, a, {b.descriptor(0), kBeside ? beside : b.descriptor(1)},
                                  false);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    d.pin();
    store_results(params, d, 0, magnitude);
  }
};

// Issues two groups, which add to accumulators that are not zero.
template <class T, int kColumns>
struct TwoGroups {
  LAZYROPE_DEVICE static void multiply(const ConformanceParams& params, int32 magnitude) {
    const WgmmaOperand a = operand(params.input), b = operand(params.input + 5);
    Accumulator<kColumns> d, e;
    for (int32 i = 0; i < kColumns / 2; ++i) {
      d[i] = static_cast<float>(i + thread_index());
      e[i] = 0.5f;
    }
    d.pin();
    e.pin();
    wgmma_fence();
    wgmma_m64k16<T, kColumns, Major::kK, Major::kK>(d, {a.descriptor(0)}, {b.descriptor(0)}, true);
    wgmma_commit_group();
    wgmma_m64k16<T, kColumns, Major::kK, Major::kK>(e, {a.descriptor(1)}, {b.descriptor(1)}, true);
    wgmma_commit_group();
    wgmma_wait_group<1>();
    d.pin();
    store_results(params, d, 0, magnitude);
    wgmma_wait_group<0>();
    e.pin();
    store_results(params, e, 1, magnitude);
  }
};

// Runs the product with the operands, then with their magnitudes.
template <class Product>
LAZYROPE_DEVICE void both(const ConformanceParams& params) {
  for (int32 magnitude = 0; magnitude < 2; ++magnitude) {
    put_image(params, magnitude == 1 ? kMagnitudes : 0xffffffffu);
    Product::multiply(params, magnitude);
  }
}

template <class T>
LAZYROPE_DEVICE void of_type(const ConformanceParams& params, Case which) {
  constexpr Major kK = Major::kK, kMN = Major::kMN;
  switch (which) {
    case Case::kWgmma8:
      return both<FromShared<T, 8, kK, kK>>(params);
    case Case::kWgmma16:
      return both<FromShared<T, 16, kK, kK>>(params);
    case Case::kWgmma32:
      return both<FromShared<T, 32, kK, kK>>(params);
    case Case::kWgmma48:
      return both<FromShared<T, 48, kK, kK>>(params);
    case Case::kWgmma64:
      return both<FromShared<T, 64, kK, kK>>(params);
    case Case::kWgmma72:
      return both<FromShared<T, 72, kK, kK>>(params);
    case Case::kWgmma96:
      return both<FromShared<T, 96, kK, kK>>(params);
    case Case::kWgmma128:
      return both<FromShared<T, 128, kK, kK>>(params);
    case Case::kWgmma192:
      return both<FromShared<T, 192, kK, kK>>(params);
    case Case::kWgmma256:
      return both<FromShared<T, 256, kK, kK>>(params);
    case Case::kWgmmaKMn:
      return both<FromShared<T, 128, kK, kMN>>(params);
    case Case::kWgmmaMnK:
      return both<FromShared<T, 128, kMN, kK>>(params);
    case Case::kWgmmaMnMn:
      return both<FromShared<T, 128, kMN, kMN>>(params);
    case Case::kWgmmaRegistersK:
      return both<FromRegisters<T, 64, kK>>(params);
    case Case::kWgmmaRegistersMn:
      return both<FromRegisters<T, 64, kMN>>(params);
    case Case::kWgmmaBeside:
      return both<FromRegisters<T, 72, kMN, true>>(params);
    default:
      return both<TwoGroups<T, 64>>(params);
  }
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  if (ld_global(params.input + 10) == 0)
    of_type<WgmmaBf16>(params, params.which);
  else
    of_type<WgmmaF16>(params, params.which);
}

}  // namespace lazyrope
