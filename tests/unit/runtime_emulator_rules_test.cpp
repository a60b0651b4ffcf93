// The emulator's rules. Each has a kernel that breaks it and a corrected kernel with one
// difference.
#include <gtest/gtest.h>

#include <ostream>
#include <string_view>
#include <vector>

#include "runtime/emulator/fault.h"
#include "runtime/emulator/launch.h"
#include "templates/isa/emu/async_copy.cuh"
#include "templates/isa/emu/math.cuh"
#include "templates/isa/emu/sync.cuh"

namespace lazyrope {
namespace {

constexpr int kThreads = 64;
constexpr int kSharedBytes = 1024;

struct Params {
  const int32* in;  // [64]
  int32* out;       // [64]
  uint32* counter;  // [1], 0
};

using Body = void (*)(const Params&);

struct Pair {
  const char* name;
  std::string_view rule;
  Body broken;
  Body corrected;
  int ctas = 1;
};

void PrintTo(const Pair& pair, std::ostream* os) { *os << pair.name; }

SharedPtr word(int index) { return dynamic_shared_memory() + 4 * index; }
void fill() {
  st_shared(word(thread_index()), 0);
  bar_sync();
}
void copy_in(const Params& p) { cp_async_ca_4(word(thread_index()), p.in + thread_index()); }

// Each thread stores a value, calls `kOrder` and reads the value of thread `index ^ kDistance`.
template <void (*kOrder)(), int kDistance>
void exchange(const Params& p) {
  fill();
  st_shared(word(thread_index()), thread_index());
  kOrder();
  st_global(p.out + thread_index(), ld_shared<int32>(word(thread_index() ^ kDistance)));
}

void no_sync() {}
void cta_sync() { bar_sync(); }
void warp_sync() { bar_warp_sync(); }

// Each thread reads a value of another thread, calls `kOrder` and overwrites its own value.
template <void (*kOrder)()>
void write_twice(const Params& p) {
  exchange<cta_sync, 63>(p);
  kOrder();
  st_shared(word(thread_index()), 1);
}

template <void (*kOrder)()>
void read_other_copies(const Params& p) {
  fill();
  copy_in(p);
  cp_async_commit_group();
  cp_async_wait_group<0>();
  kOrder();
  st_global(p.out + thread_index(), ld_shared<int32>(word(63 - thread_index())));
}

template <int kPending>
void two_groups(const Params& p) {
  for (int i = 0; i < 2; ++i) {
    cp_async_ca_4(word(i * kThreads + thread_index()), p.in + thread_index());
    cp_async_commit_group();
  }
  cp_async_wait_group<kPending>();
  ld_shared<int32>(word(kThreads + thread_index()));
}

// The last of two CTAs reads what the other CTA has written.
template <class Count>
void read_other_cta(const Params& p, Count count) {
  if (thread_index() < 32) st_global(p.out + block_index() * 32 + lane_index(), block_index());
  bar_sync();
  if (thread_index() == 0) st_shared(word(0), count(p.counter));
  bar_sync();
  if (ld_shared<uint32>(word(0)) == 1 && thread_index() < 32)
    ld_global(p.out + (1 - block_index()) * 32 + lane_index());
}

const Pair kPairs[] = {
    {"shared_bounds", rule::kSharedBounds,
     [](const Params&) { st_shared(word(thread_index() * 4 + 4), 1); },
     [](const Params&) { st_shared(word(thread_index() * 4), 1); }},
    {"global_bounds", rule::kGlobalBounds,
     [](const Params& p) { ld_global_nc(p.in + thread_index() + 1); },
     [](const Params& p) { ld_global_nc(p.in + thread_index()); }},
    {"global_bounds_of_a_copy", rule::kGlobalBounds,
     [](const Params& p) { cp_async_cg_16<true>(word(4 * thread_index()), p.in + 64, 4); },
     [](const Params& p) {
       cp_async_cg_16<true>(word(4 * thread_index()), p.in + 64, 0);
       cp_async_commit_group();
     }},
    {"shared_alignment", rule::kAlignment,
     [](const Params&) { st_shared(word(2 * thread_index() + 1), Word2{}); },
     [](const Params&) { st_shared(word(2 * thread_index()), Word2{}); }},
    {"global_alignment", rule::kAlignment,
     [](const Params& p) { ld_global(reinterpret_cast<const Word2*>(p.in + 1)); },
     [](const Params& p) { ld_global(reinterpret_cast<const Word2*>(p.in + 2)); }},
    {"matrix_alignment", rule::kAlignment,
     [](const Params&) {
       uint32 r[4];
       ldmatrix_x4(r, word(1));
     },
     [](const Params&) {
       uint32 r[4];
       if (warp_index() == 0) st_shared(word(4 * lane_index()), Chunk{});
       bar_sync();
       ldmatrix_x4(r, word(4 * lane_index()));
     }},
    {"uninitialized", rule::kUninitialized,
     [](const Params&) { ld_shared<int32>(word(thread_index())); },
     [](const Params&) {
       st_shared(word(thread_index()), 1);
       ld_shared<int32>(word(thread_index()));
     }},
    {"read_before_the_wait", rule::kInFlight,
     [](const Params& p) {
       copy_in(p);
       cp_async_commit_group();
       ld_shared<int32>(word(thread_index()));
     },
     [](const Params& p) {
       copy_in(p);
       cp_async_commit_group();
       cp_async_wait_group<0>();
       ld_shared<int32>(word(thread_index()));
     }},
    {"wait_for_too_few_groups", rule::kInFlight, two_groups<1>, two_groups<0>},
    {"copy_over_a_copy", rule::kInFlight,
     [](const Params& p) {
       copy_in(p);
       cp_async_commit_group();
       copy_in(p);
       cp_async_commit_group();
     },
     [](const Params& p) {
       copy_in(p);
       cp_async_commit_group();
       cp_async_wait_group<0>();
       copy_in(p);
       cp_async_commit_group();
     }},
    {"uncommitted", rule::kUncommitted, [](const Params& p) { copy_in(p); },
     [](const Params& p) {
       copy_in(p);
       cp_async_commit_group();
     }},
    {"read_only", rule::kReadOnly,
     [](const Params& p) { st_global(const_cast<int32*>(p.in) + thread_index(), 1); },
     [](const Params& p) { st_global(p.out + thread_index(), 1); }},
    {"non_coherent", rule::kNonCoherent,
     [](const Params& p) {
       st_global(p.out + thread_index(), 1);
       ld_global_nc(p.out + thread_index());
     },
     [](const Params& p) {
       st_global(p.out + thread_index(), 1);
       ld_global(p.out + thread_index());
     }},
    {"divergence", rule::kDivergence,
     [](const Params&) {
       if (lane_index() == 3)
         vote_sync_any(true);
       else
         bar_warp_sync();
     },
     [](const Params&) { bar_warp_sync(); }},
    {"divergence_between_lines", rule::kDivergence,
     [](const Params&) { lane_index() == 3 ? warp_sync() : bar_warp_sync(); },
     [](const Params&) { bar_warp_sync(); }},
    {"operand", rule::kOperand,
     [](const Params& p) { cp_async_cg_16<true>(word(4 * thread_index()), p.in, 17); },
     [](const Params& p) {
       cp_async_cg_16<true>(word(4 * thread_index()), p.in, 16);
       cp_async_commit_group();
     }},
    {"deadlock", rule::kDeadlock,
     [](const Params&) {
       if (thread_index() != 5) bar_sync();
     },
     [](const Params&) { bar_sync(); }},
    {"livelock", rule::kLivelock,
     [](const Params& p) {
       while (ld_acquire_gpu(p.counter) == 0) {
       }
     },
     [](const Params& p) {
       if (thread_index() == 9) atom_relaxed_gpu_exch(p.counter, 1);
       while (ld_acquire_gpu(p.counter) == 0) {
       }
     }},
    {"race_in_a_cta", rule::kRace, exchange<warp_sync, 63>, exchange<cta_sync, 63>},
    {"race_in_a_warp", rule::kRace, exchange<no_sync, 1>, exchange<warp_sync, 1>},
    {"race_with_readers", rule::kRace, write_twice<no_sync>, write_twice<cta_sync>},
    {"race_of_a_copy", rule::kRace, read_other_copies<no_sync>, read_other_copies<cta_sync>},
    {"race_between_ctas", rule::kRace,
     [](const Params& p) {
       read_other_cta(p, [](uint32* counter) { return atom_relaxed_gpu_exch(counter, 1); });
     },
     [](const Params& p) {
       read_other_cta(p, [](uint32* counter) { return atom_acq_rel_gpu_inc(counter, 2); });
     },
     2},
};

struct alignas(16) Memory {
  int32 in[64] = {};
  int32 between[16] = {};
  int32 out[64] = {};
  int32 after[16] = {};
  uint32 counter = 0;
};

Body running = nullptr;

// Returns the rule that the kernel broke with one of four seeds, or "".
std::string broken_rule(const Pair& pair, Body kernel) {
  running = kernel;
  const EmulatedLaunch launch = {pair.name,
                                 [](const void* p) { running(*static_cast<const Params*>(p)); },
                                 [](EmulatorHost* host) { emulator = host; },
                                 pair.ctas,
                                 kThreads,
                                 kSharedBytes};
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Memory m;
    const Params params = {m.in, m.out, &m.counter};
    try {
      run_emulated(launch, &params,
                   {{"in", m.in, sizeof m.in, false},
                    {"out", m.out, sizeof m.out, true},
                    {"counter", &m.counter, sizeof m.counter, true}},
                   {.seed = seed, .races = true});
    } catch (const KernelFault& fault) {
      EXPECT_NE(std::string(fault.what()).find("runtime_emulator_rules_test.cpp:"),
                std::string::npos)
          << fault.what();
      return fault.rule();
    }
  }
  return "";
}

class EmulatorRules : public testing::TestWithParam<Pair> {};

TEST_P(EmulatorRules, BrokenKernelFaultsWithItsRule) {
  EXPECT_EQ(broken_rule(GetParam(), GetParam().broken), GetParam().rule);
}

TEST_P(EmulatorRules, CorrectedKernelRuns) {
  EXPECT_EQ(broken_rule(GetParam(), GetParam().corrected), "");
}

INSTANTIATE_TEST_SUITE_P(Pairs, EmulatorRules, testing::ValuesIn(kPairs),
                         [](const auto& pair) { return std::string(pair.param.name); });

TEST(EmulatorRules, RacesAreFoundOnlyOnRequest) {
  alignas(16) int32 out[64] = {};
  running = exchange<no_sync, 1>;
  const Params params = {nullptr, out, nullptr};
  const EmulatedLaunch launch = {"race",
                                 [](const void* p) { running(*static_cast<const Params*>(p)); },
                                 [](EmulatorHost* host) { emulator = host; },
                                 1,
                                 kThreads,
                                 kSharedBytes};
  const std::vector<MemoryRange> memory = {{"out", out, sizeof out, true}};
  EXPECT_THROW(run_emulated(launch, &params, memory, {.races = true}), KernelFault);
  EXPECT_NO_THROW(run_emulated(launch, &params, memory, {}));
}

}  // namespace
}  // namespace lazyrope
