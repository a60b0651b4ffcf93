// The emulator's rules for Hopper's barriers and copies. Each rule has a kernel that breaks it and
// a corrected kernel with one difference. Further tests check the results of copies.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "tests/support/hopper_kernels.h"
#include "tests/support/throws.h"

namespace lazyrope::hopper {
namespace {

// Thread 0 copies 512 bytes; barrier 0 expects `bytes`.
void load(const Params& p, uint32 bytes = 512) {
  if (!first()) return;
  mbarrier_arrive_expect_tx(barrier(), bytes);
  cp_async_bulk_shared_global(data(), p.in, 512, barrier());
}
int32 own_word() { return ld_shared<int32>(data(4 * thread_index())); }
void store(const Params& p) {
  if (first()) cp_async_bulk_global_shared(p.out, data(), 512);
}
void commit_and_wait() {
  if (!first()) return;
  cp_async_bulk_commit_group();
  cp_async_bulk_wait_group<0>();
}

// Thread 0 stores to global memory and then copies the stored bytes back.
template <bool kFenced>
void copy_back(const Params& p) {
  begin(1);
  if (first()) {
    st_global(reinterpret_cast<Chunk*>(p.out), Chunk{1, 2, 3, 4});
    if (kFenced) fence_proxy_async_global();
    mbarrier_arrive_expect_tx(barrier(), 16);
    cp_async_bulk_shared_global(data(), p.out, 16, barrier());
  }
  wait(barrier());
}

// Thread 0 makes two adjacent copies of 512 bytes, each with a barrier of its own. Thread
// `kThreads / 2` waits for the barrier `awaited` and reads the first copy. A relaxed flag says that
// both copies have landed, but it does not order the read.
void two_loads(const Params& p, int32 awaited) {
  if (first()) mbarrier_init(barrier(1), 1);
  begin(1);
  if (first())
    for (int32 i = 0; i < 2; ++i) {
      mbarrier_arrive_expect_tx(barrier(i), 512);
      cp_async_bulk_shared_global(data(512 * i), p.in, 512, barrier(i));
    }
  auto* landed = reinterpret_cast<uint32*>(p.out);
  if (thread_index() == kThreads - 1) {
    wait(barrier(0));
    wait(barrier(1));
    atom_relaxed_gpu_exch(landed, 1);
  }
  if (thread_index() != kThreads / 2) return;
  while (atom_relaxed_gpu_exch(landed, 0) == 0) {
  }
  wait(barrier(awaited));
  ld_shared<int32>(data());
}

// Thread 0 copies `bytes` bytes from word `first_word`; all threads wait for them.
void load_some(const Params& p, int32 first_word, uint32 bytes) {
  begin(1);
  if (first()) {
    mbarrier_arrive_expect_tx(barrier(), bytes);
    cp_async_bulk_shared_global(data(), p.in + first_word, bytes, barrier());
  }
  wait(barrier());
}
void load_box(const TensorMap& map, SharedPtr to, int32 x = 0) {
  const int32 at[5] = {x};
  begin(1);
  if (first()) {
    mbarrier_arrive_expect_tx(barrier(), 128);
    cp_async_bulk_tensor_load(to, map, at, barrier());
  }
  wait(barrier());
}

// Warp 0 waits for two phases. Thread 127 completes both, and calls `between` before the second.
template <class Between>
void two_phases(Between between) {
  if (first()) mbarrier_init(barrier(1), kWarpThreads);
  begin(1);
  if (warp_index() == 0) {
    wait(barrier(), 0);
    mbarrier_arrive(barrier(1));
    wait(barrier(), 1);
  }
  if (thread_index() != kThreads - 1) return;
  mbarrier_arrive(barrier());
  between();
  mbarrier_arrive(barrier());
}

// Warp 0 stores words and arrives at barrier 0. Warp 1 calls `order` and then reads the words.
template <class Order>
void pass_words(Order order) {
  begin(kWarpThreads);
  fill();
  if (warp_index() == 0) {
    st_shared(data(4 * lane_index()), 1);
    mbarrier_arrive(barrier());
  }
  if (warp_index() == 1) {
    order();
    ld_shared<int32>(data(4 * lane_index()));
  }
}

const Pair kPairs[] = {
    {"mbarrier_without_init", rule::kMbarrierObject,
     [](const Params&) { mbarrier_arrive(barrier()); },
     [](const Params&) {
       begin(kThreads);
       mbarrier_arrive(barrier());
     }},
    {"mbarrier_alignment", rule::kAlignment,
     [](const Params&) {
       if (first()) mbarrier_init(data(4), 1);
     },
     [](const Params&) {
       if (first()) mbarrier_init(data(8), 1);
     }},
    {"mbarrier_of_no_arrivals", rule::kMbarrierCount, [](const Params&) { begin(0); },
     [](const Params&) { begin(1); }},
    {"mbarrier_arrivals", rule::kMbarrierCount,
     [](const Params& p) {
       begin(1);
       load(p);
       if (first()) mbarrier_arrive(barrier());
       wait(barrier());
     },
     [](const Params& p) {
       begin(2);
       load(p);
       if (first()) mbarrier_arrive(barrier());
       wait(barrier());
     }},
    {"mbarrier_bytes", rule::kMbarrierBytes,
     [](const Params&) {
       begin(1);
       if (first()) mbarrier_expect_tx(barrier(), 1 << 20);
     },
     [](const Params&) {
       begin(1);
       if (first()) mbarrier_expect_tx(barrier(), (1 << 20) - 1);
     }},
    {"mbarrier_object", rule::kMbarrierObject,
     [](const Params&) {
       begin(1);
       ld_shared<int32>(barrier());
     },
     [](const Params&) {
       begin(1);
       if (first()) {
         mbarrier_inval(barrier());
         st_shared(barrier(), 0);
       }
     }},
    {"mbarrier_parity", rule::kOperand,
     [](const Params&) {
       begin(1);
       mbarrier_try_wait_parity(barrier(), 2);
     },
     [](const Params&) {
       begin(1);
       mbarrier_try_wait_parity(barrier(), 1);
     }},
    {"mbarrier_tested_parity", rule::kOperand,
     [](const Params&) {
       begin(1);
       mbarrier_test_wait_parity(barrier(), 2);
     },
     [](const Params&) {
       begin(1);
       mbarrier_test_wait_parity(barrier(), 1);
     }},
    {"mbarrier_overtaken", rule::kMbarrierOvertaken, [](const Params&) { two_phases([] {}); },
     [](const Params&) { two_phases([] { wait(barrier(1)); }); }},
    {"mbarrier_deadlock", rule::kDeadlock,
     [](const Params&) {
       begin(kThreads);
       if (!first()) mbarrier_arrive(barrier());
       wait(barrier());
     },
     [](const Params&) {
       begin(kThreads);
       mbarrier_arrive(barrier());
       wait(barrier());
     }},
    {"mbarrier_race", rule::kRace, [](const Params&) { pass_words([] { wait(barrier(), 1); }); },
     [](const Params&) { pass_words([] { wait(barrier(), 0); }); }},
    {"mbarrier_tested_race", rule::kRace,
     [](const Params&) { pass_words([] { mbarrier_test_wait_parity(barrier(), 0); }); },
     [](const Params&) {
       pass_words([] {
         while (!mbarrier_test_wait_parity(barrier(), 0)) {
         }
       });
     }},
    {"load_without_init_fence", rule::kProxyFence,
     [](const Params& p) {
       begin<false>(1);
       load(p);
       wait(barrier());
     },
     [](const Params& p) {
       begin<true>(1);
       load(p);
       wait(barrier());
     }},
    {"load_without_wait", rule::kInFlight,
     [](const Params& p) {
       begin(1);
       load(p);
       bar_sync();
       own_word();
     },
     [](const Params& p) {
       begin(1);
       load(p);
       wait(barrier());
       own_word();
     }},
    {"load_with_one_try", rule::kInFlight,
     [](const Params& p) {
       begin(1);
       load(p);
       bar_sync();
       mbarrier_try_wait_parity(barrier(), 0);
       own_word();
     },
     [](const Params& p) {
       begin(1);
       load(p);
       bar_sync();
       wait(barrier());
       own_word();
     }},
    {"load_of_more_than_expected", rule::kDeadlock,
     [](const Params& p) {
       begin(1);
       load(p, 496);
       wait(barrier());
     },
     [](const Params& p) {
       begin(1);
       load(p, 512);
       wait(barrier());
     }},
    {"load_size", rule::kAlignment, [](const Params& p) { load_some(p, 0, 24); },
     [](const Params& p) { load_some(p, 0, 32); }},
    {"load_bounds", rule::kGlobalBounds, [](const Params& p) { load_some(p, kWords - 8, 64); },
     [](const Params& p) { load_some(p, kWords - 16, 64); }},
    {"load_unwaited", rule::kUnwaited,
     [](const Params& p) {
       begin(1);
       load(p);
     },
     [](const Params& p) {
       begin(1);
       load(p);
       if (first()) wait(barrier());
     }},
    {"load_to_an_mbarrier_that_ends", rule::kMbarrierObject,
     [](const Params& p) {
       begin(1);
       load(p);
       if (first()) mbarrier_inval(barrier());
       bar_sync(1, 128);
       if (first()) mbarrier_init(barrier(1), 1);
       bar_sync(2, 128);
       wait(barrier(1));
     },
     [](const Params& p) {
       begin(1);
       load(p);
       wait(barrier());
       bar_sync(1, 128);
       if (first()) mbarrier_inval(barrier());
     }},
    {"load_over_stores", rule::kProxyFence,
     [](const Params& p) {
       begin(1);
       fill<false>();
       load(p);
       wait(barrier());
     },
     [](const Params& p) {
       begin(1);
       fill<true>();
       load(p);
       wait(barrier());
     }},
    {"store_without_proxy_fence", rule::kProxyFence,
     [](const Params& p) {
       fill<false>();
       store(p);
       commit_and_wait();
     },
     [](const Params& p) {
       fill<true>();
       store(p);
       commit_and_wait();
     }},
    {"store_uncommitted", rule::kUncommitted,
     [](const Params& p) {
       fill();
       store(p);
     },
     [](const Params& p) {
       fill();
       store(p);
       commit_and_wait();
     }},
    {"store_unwaited", rule::kUnwaited,
     [](const Params& p) {
       fill();
       store(p);
       if (first()) cp_async_bulk_commit_group();
     },
     [](const Params& p) {
       fill();
       store(p);
       if (first()) cp_async_bulk_commit_group();
       cp_async_bulk_wait_group_read<0>();
     }},
    {"store_source_overwritten", rule::kSourceInUse,
     [](const Params& p) {
       fill();
       store(p);
       if (first()) cp_async_bulk_commit_group();
       cp_async_bulk_wait_group_read<1>();
       if (first()) st_shared(data(), 1);
       cp_async_bulk_wait_group<0>();
     },
     [](const Params& p) {
       fill();
       store(p);
       if (first()) cp_async_bulk_commit_group();
       cp_async_bulk_wait_group_read<0>();
       if (first()) st_shared(data(), 1);
     }},
    {"store_destination_read_early", rule::kInFlight,
     [](const Params& p) {
       fill();
       store(p);
       if (first()) cp_async_bulk_commit_group();
       cp_async_bulk_wait_group_read<0>();
       if (first()) ld_global(p.out);
     },
     [](const Params& p) {
       fill();
       store(p);
       if (first()) cp_async_bulk_commit_group();
       cp_async_bulk_wait_group<0>();
       if (first()) ld_global(p.out);
     }},
    {"global_store_without_proxy_fence", rule::kProxyFence,
     [](const Params& p) { copy_back<false>(p); }, [](const Params& p) { copy_back<true>(p); }},
    {"wait_for_another_copys_barrier", rule::kRace, [](const Params& p) { two_loads(p, 1); },
     [](const Params& p) { two_loads(p, 0); }},
    {"tensor_dimensions", rule::kTensorMap, [](const Params& p) { load_box(p.flat, data()); },
     [](const Params& p) { load_box(p.map, data()); }},
    {"tensor_map", rule::kTensorMap, [](const Params&) { load_box(TensorMap{}, data()); },
     [](const Params& p) { load_box(TensorMap{p.map}, data()); }},
    {"tensor_alignment", rule::kAlignment, [](const Params& p) { load_box(p.map, data(64)); },
     [](const Params& p) { load_box(p.map, data(128)); }},
    {"tensor_start", rule::kTensorMap, [](const Params& p) { load_box(p.map, data(), 2); },
     [](const Params& p) { load_box(p.map, data(), -4); }},
    {"named_barrier_counts", rule::kDivergence,
     [](const Params&) { bar_sync(1, warp_index() == 0 ? 64 : 128); },
     [](const Params&) { bar_sync(1, 128); }},
    {"named_barrier_without_all_threads", rule::kDeadlock,
     [](const Params&) {
       if (warp_index() == 0) bar_sync(2, 64);
     },
     [](const Params&) {
       if (warp_index() == 0) bar_sync(2, 64);
       if (warp_index() == 1) bar_arrive(2, 64);
     }},
    {"named_barrier_race", rule::kRace,
     [](const Params&) {
       if (warp_index() == 0) bar_arrive(3, 64);
       if (warp_index() == 0) st_shared(data(4 * lane_index()), 1);
       if (warp_index() == 1) bar_sync(3, 64);
       if (warp_index() == 1) ld_shared<int32>(data(4 * lane_index()));
     },
     [](const Params&) {
       if (warp_index() == 0) st_shared(data(4 * lane_index()), 1);
       if (warp_index() == 0) bar_arrive(3, 64);
       if (warp_index() == 1) bar_sync(3, 64);
       if (warp_index() == 1) ld_shared<int32>(data(4 * lane_index()));
     }},
};

class HopperRules : public testing::TestWithParam<Pair> {};

TEST_P(HopperRules, BrokenKernelFaultsWithItsRule) { expect_refused(GetParam()); }
TEST_P(HopperRules, CorrectedKernelRuns) { expect_runs(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Pairs, HopperRules, testing::ValuesIn(kPairs),
                         [](const auto& pair) { return std::string(pair.param.name); });

TEST(Hopper, DeadlockNamesTheMbarrierAndWaitingThreads) {
  Memory m;
  const Body one_is_missing = [](const Params&) {
    begin(kThreads);
    if (!first()) mbarrier_arrive(barrier());
    wait(barrier());
  };
  EXPECT_TRUE(throws<KernelFault>([&] { run("deadlock", one_is_missing, m, 0); },
                                  {"threads 0-127 wait in mbarrier.try_wait for the mbarrier at "
                                   "8192, of 128 arrivals, initialized at ",
                                   "(phase 0: 1 arrivals and 0 bytes missing)"}));
}

// Warp 1 polls and votes between two polls, so it neither waits for the copy nor only spins.
TEST(Hopper, CopyLandsWhileOtherThreadsPoll) {
  Memory m;
  run(
      "poll",
      [](const Params& p) {
        begin(1);
        load(p);
        auto* flag = reinterpret_cast<uint32*>(p.out);
        if (warp_index() == 0) wait(barrier());
        if (first()) atom_acq_rel_gpu_inc(flag, 1);
        if (warp_index() != 1) return;
        while (vote_sync_any(ld_acquire_gpu(flag) == 0)) {
        }
      },
      m, 0);
  EXPECT_EQ(m.out[0], 1);
}

TEST(Hopper, BoxIsZeroOutsideTheTensor) {
  constexpr int32 kSteps[] = {1, 8, 32, 128, 512};  // words
  for (const std::array<int32, 5>& first_of_box :
       {std::array{0, 1, 2, 0, 1}, std::array{4, 3, -1, 3, 0}, std::array{-4, 0, 0, 0, 0},
        std::array{0, 1, 1, 1, 2}}) {
    Memory m;
    for (int32 i = 0; i < kWords; ++i) m.in[i] = 1000 + i;
    static int32 at[5];
    std::ranges::copy(first_of_box, at);
    run(
        "box",
        [](const Params& p) {
          begin(1);
          if (first()) {
            mbarrier_arrive_expect_tx(barrier(), 128);
            cp_async_bulk_tensor_load(data(), p.map, at, barrier());
          }
          wait(barrier());
          if (warp_index() == 0) st_global(p.out + lane_index(), own_word());
        },
        m, 0);
    for (int32 i = 0; i < kWarpThreads; ++i) {
      const int32 of_box[] = {i % 4, i / 4 % 2, i / 8 % 2, i / 16, 0};
      bool is_inside = true;
      int32 word = 0;
      for (std::size_t dim = 0; dim < 5; ++dim) {
        const int32 coordinate = at[dim] + of_box[dim];
        is_inside = is_inside && coordinate >= 0 && coordinate < kExtents[dim];
        word += kSteps[dim] * coordinate;
      }
      EXPECT_EQ(m.out[i], is_inside ? 1000 + word : 0) << i;
    }
  }
}

}  // namespace
}  // namespace lazyrope::hopper
