#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <ostream>
#include <string>
#include <string_view>

#include "runtime/driver/tensor_map.h"
#include "runtime/emulator/fault.h"
#include "runtime/emulator/launch.h"
#include "templates/isa/emu/math.cuh"
#include "templates/isa/emu/mbarrier.cuh"
#include "templates/isa/emu/sync.cuh"
#include "templates/isa/emu/tensor_copy.cuh"
#include "templates/isa/emu/wgmma.cuh"
#include "tests/support/throws.h"

// Runs kernels of one warpgroup with Hopper's instructions in the emulator. A Pair has a kernel
// that breaks a rule of the emulator and one that does not.
namespace lazyrope::hopper {

inline constexpr int kThreads = 128;
inline constexpr int kSharedBytes = 16 * 1024;
inline constexpr int kWords = 1024;

inline constexpr int32 kExtents[] = {6, 4, 4, 4, 2};  // words, the innermost dimension first

struct Params {
  TensorMap map;   // `in` as kExtents, in boxes of 4 x 2 x 2 x 2 x 1; rows are 8 words apart
  TensorMap flat;  // `in` as 32 x 32 words, in boxes of 4 x 8
  const int32* in;
  int32* out;
};

using Body = void (*)(const Params&);

struct Pair {
  const char* name;
  std::string_view rule;
  Body broken;
  Body fixed;
};

inline void PrintTo(const Pair& pair, std::ostream* os) { *os << pair.name; }

inline constexpr int32 kBarrierOffset = 8192;  // bytes, after the data

inline SharedPtr data(int32 bytes = 0) { return dynamic_shared_memory() + bytes; }
inline SharedPtr barrier(int32 i = 0) { return data(kBarrierOffset + 8 * i); }
inline bool first() { return thread_index() == 0; }

// Thread 0 initializes barrier 0. With kFenced, all threads may use it after this call.
template <bool kFenced = true>
void begin(uint32 count) {
  if (first()) {
    mbarrier_init(barrier(), count);
    if (kFenced) fence_mbarrier_init_release_cluster();
  }
  bar_sync();
}
inline void wait(SharedPtr at, uint32 parity = 0) {
  while (!mbarrier_try_wait_parity(at, parity)) {
  }
}
// Every thread stores a word. With kFenced, it makes the word visible to asynchronous copies.
template <bool kFenced = true>
void fill() {
  st_shared(data(4 * thread_index()), thread_index());
  if (kFenced) fence_proxy_async();
  bar_sync();
}

inline Body running = nullptr;

struct alignas(128) Memory {
  int32 in[kWords] = {};
  int32 out[kWords] = {};
};

inline void run(const char* name, Body kernel, Memory& m, std::uint64_t seed) {
  running = kernel;
  const EmulatedLaunch launch = {name,
                                 [](const void* p) { running(*static_cast<const Params*>(p)); },
                                 [](EmulatorHost* host) { emulator = host; },
                                 1,
                                 kThreads,
                                 kSharedBytes};
  const TensorMapSpec boxes = {.data = m.in,
                               .type = ElementType::kInt32,
                               .dims = {std::begin(kExtents), std::end(kExtents)},
                               .strides = {32, 128, 512, 2048},
                               .box = {4, 2, 2, 2, 1}};
  const TensorMapSpec flat = {
      .data = m.in, .type = ElementType::kInt32, .dims = {32, 32}, .strides = {128}, .box = {4, 8}};
  const Params params = {emulated_tensor_map(boxes), emulated_tensor_map(flat), m.in, m.out};
  run_emulated(launch, &params,
               {{"in", m.in, sizeof m.in, false}, {"out", m.out, sizeof m.out, true}},
               {.seed = seed, .races = true});
}

// Runs a kernel with four seeds. Returns the text of the first fault, or an empty text. Sets `rule`
// to the pair's rule if the fault is of this rule, and to "another" if it is not.
inline std::string fault_of(const Pair& pair, Body kernel, std::string_view& rule) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Memory m;
    try {
      run(pair.name, kernel, m, seed);
    } catch (const KernelFault& fault) {
      rule = pair.rule == fault.rule() ? pair.rule : "another";
      return fault.what();
    }
  }
  rule = "";
  return "";
}

// Expects the emulator to refuse the broken kernel by the rule's name, at a line of the tests.
inline void expect_refused(const Pair& pair) {
  std::string_view rule;
  const std::string fault = fault_of(pair, pair.broken, rule);
  EXPECT_EQ(rule, pair.rule) << fault;
  EXPECT_TRUE(says(fault, {"at ", "tests/"}));
}

inline void expect_runs(const Pair& pair) {
  std::string_view rule;
  EXPECT_EQ(fault_of(pair, pair.fixed, rule), "");
}

}  // namespace lazyrope::hopper
