// The emulator's rules for products of a warpgroup. Each rule has a kernel that breaks it and a
// corrected kernel with one difference. A further test checks the results of products.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/hopper_kernels.h"

namespace lazyrope::hopper {
namespace {

// Operands of K-major core matrices: A of 64 x 16 at byte 0, then B of 16 x 8.
constexpr int32 kBytesA = 2048;
constexpr int32 kBytesB = 256;
SharedDescriptor operand(int32 at) { return shared_descriptor(data(at), 128, 256, Swizzle::kNone); }
template <bool kFenced = true>
void fill_operands() {
  for (int32 at = 16 * thread_index(); at < kBytesA + kBytesB; at += 16 * kThreads)
    st_shared(data(at), Chunk{});
  if (kFenced) fence_proxy_async();
  bar_sync();
}
void product(Accumulator<8>& d, bool accumulate = false) {
  wgmma_m64k16<WgmmaBf16, 8, Major::kK, Major::kK>(d, {operand(0)}, {operand(kBytesA)}, accumulate);
}
// Multiplies operands in shared memory, with `before` and `after` around the product.
template <class Before, class After>
void multiply(Before before, After after) {
  fill_operands();
  Accumulator<8> d;
  before(d);
  product(d);
  after(d);
}
void fence(Accumulator<8>&) { wgmma_fence(); }
void wait_for(Accumulator<8>&) {
  wgmma_commit_group();
  wgmma_wait_group<0>();
}

const Pair kPairs[] = {
    {"wgmma_without_fence", rule::kWgmmaFence,
     [](const Params&) { multiply([](auto&) {}, wait_for); },
     [](const Params&) { multiply(fence, wait_for); }},
    {"wgmma_registers_touched_after_the_fence", rule::kWgmmaFence,
     [](const Params&) {
       multiply(
           [](auto& d) {
             wgmma_fence();
             d[1] = 0;
           },
           wait_for);
     },
     [](const Params&) {
       multiply(
           [](auto& d) {
             d[1] = 0;
             wgmma_fence();
           },
           wait_for);
     }},
    {"wgmma_registers_in_flight", rule::kWgmmaRegisters,
     [](const Params&) {
       multiply(fence, [](auto& d) {
         wgmma_commit_group();
         d[0] += 1;
         wgmma_wait_group<0>();
       });
     },
     [](const Params&) {
       multiply(fence, [](auto& d) {
         wgmma_commit_group();
         wgmma_wait_group<0>();
         d[0] += 1;
       });
     }},
    {"wgmma_waits_for_too_few", rule::kWgmmaRegisters,
     [](const Params&) {
       multiply(fence, [](auto& d) {
         wgmma_commit_group();
         wgmma_wait_group<1>();
         d.pin();
       });
     },
     [](const Params&) {
       multiply(fence, [](auto& d) {
         wgmma_commit_group();
         wgmma_wait_group<0>();
         d.pin();
       });
     }},
    {"wgmma_unwaited", rule::kUnwaited,
     [](const Params&) { multiply(fence, [](auto&) { wgmma_commit_group(); }); },
     [](const Params&) { multiply(fence, wait_for); }},
    {"wgmma_without_proxy_fence", rule::kProxyFence,
     [](const Params&) {
       fill_operands<false>();
       Accumulator<8> d;
       wgmma_fence();
       product(d);
       wait_for(d);
     },
     [](const Params&) {
       fill_operands<true>();
       Accumulator<8> d;
       wgmma_fence();
       product(d);
       wait_for(d);
     }},
    {"wgmma_operand_overwritten", rule::kSourceInUse,
     [](const Params&) {
       multiply(fence, [](auto& d) {
         st_shared(data(16 * thread_index()), Chunk{});
         wait_for(d);
       });
     },
     [](const Params&) {
       multiply(fence, [](auto& d) {
         wait_for(d);
         bar_sync();
         st_shared(data(16 * thread_index()), Chunk{});
       });
     }},
    {"wgmma_lanes", rule::kDivergence,
     [](const Params&) {
       fill_operands();
       Accumulator<8> d;
       wgmma_fence();
       product(d, first());
       wait_for(d);
     },
     [](const Params&) {
       fill_operands();
       Accumulator<8> d;
       wgmma_fence();
       product(d, block_index() == 0);
       wait_for(d);
     }},
    {"wgmma_of_a_warp", rule::kDeadlock,
     [](const Params&) {
       fill_operands();
       if (warp_index() != 0) return;
       Accumulator<8> d;
       wgmma_fence();
       product(d);
       wait_for(d);
     },
     [](const Params&) { multiply(fence, wait_for); }},
    {"descriptor_offsets", rule::kDescriptor,
     [](const Params&) { shared_descriptor(data(), 8, 256, Swizzle::kNone); },
     [](const Params&) { shared_descriptor(data(), 16, 256, Swizzle::kNone); }},
    {"descriptor_of_a_swizzle", rule::kDescriptor,
     [](const Params&) {
       fill_operands();
       Accumulator<8> d;
       wgmma_fence();
       wgmma_m64k16<WgmmaF16, 8, Major::kK, Major::kK>(
           d, {operand(0)}, {shared_descriptor(data(112), 16, 256, Swizzle::k128B)}, false);
       wait_for(d);
     },
     [](const Params&) {
       fill_operands();
       Accumulator<8> d;
       wgmma_fence();
       wgmma_m64k16<WgmmaF16, 8, Major::kK, Major::kK>(
           d, {operand(0)}, {shared_descriptor(data(96), 16, 256, Swizzle::k128B)}, false);
       wait_for(d);
     }},
    {"setmaxnreg_of_a_warp", rule::kDivergence,
     [](const Params&) {
       if (warp_index() == 0)
         setmaxnreg_inc<240>();
       else
         setmaxnreg_inc<232>();
     },
     [](const Params&) { setmaxnreg_inc<240>(); }},
};

class WarpgroupRules : public testing::TestWithParam<Pair> {};

TEST_P(WarpgroupRules, BrokenKernelFaultsWithItsRule) { expect_refused(GetParam()); }
TEST_P(WarpgroupRules, CorrectedKernelRuns) { expect_runs(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Pairs, WarpgroupRules, testing::ValuesIn(kPairs),
                         [](const auto& pair) { return std::string(pair.param.name); });

// A[row][k] and B[k][column]. They and their sums are exact in fp16.
float a_at(int32 row, int32 k) { return static_cast<float>((row * 7 + k * 3) % 11 - 5); }
float b_at(int32 k, int32 column) { return static_cast<float>((column * 5 + k * 2) % 13 - 6); }

// Stores a tile of 64 rows of 64 elements, swizzled by 128 bytes as tensor copies do it.
template <class Element>
void fill_tile(int32 at, Element element) {
  for (int32 i = thread_index(); i < 64 * 32; i += kThreads) {
    const int32 row = i / 32;
    const int32 column = i % 32 * 2;
    const uint32 address =
        swizzled(static_cast<uint32>(at + row * 128 + column * 2), Swizzle::k128B);
    st_shared(SharedPtr{address}, cvt_rn_f16x2_f32(element(row, column), element(row, column + 1)));
  }
}

// Multiplies tiles of 64 x 64 and stores the first 16 columns of the product.
template <Major kA, Major kB, bool kRegisters>
void multiply_tiles(const Params& p) {
  constexpr int32 kTileB = 8192;
  constexpr int32 kAtom = 1024;
  fill_tile(0, [](int32 i, int32 j) { return kA == Major::kK ? a_at(i, j) : a_at(j, i); });
  fill_tile(kTileB, [](int32 i, int32 j) { return kB == Major::kK ? b_at(j, i) : b_at(i, j); });
  fence_proxy_async();
  bar_sync();
  Accumulator<64> d;
  OperandA a[4];
  for (int32 k = 0; k < 4; ++k)
    for (int32 i = 0; i < 4; ++i) {
      const int32 row = thread_index() / 32 * 16 + lane_index() / 4 + i % 2 * 8;
      const int32 column = 16 * k + lane_index() % 4 * 2 + i / 2 * 8;
      a[k][i] = cvt_rn_f16x2_f32(a_at(row, column), a_at(row, column + 1));
    }
  const auto at = [](int32 tile, Major major, int32 k) {
    return shared_descriptor(data(tile + k * (major == Major::kK ? 32 : 2 * kAtom)), kAtom, kAtom,
                             Swizzle::k128B);
  };
  SharedDescriptor of_a[4];
  SharedDescriptor of_b[4];
  for (int32 k = 0; k < 4; ++k) {
    of_a[k] = at(0, kA, k);
    of_b[k] = at(kTileB, kB, k);
  }
  wgmma_fence();
  if constexpr (kRegisters)
    wgmma_m64k16<WgmmaF16, 64, kB>(d, a, of_b, false);
  else
    wgmma_m64k16<WgmmaF16, 64, kA, kB>(d, of_a, of_b, false);
  wgmma_commit_group();
  wgmma_wait_group<0>();
  for (int32 i = 0; i < 8; ++i) {
    const int32 row = thread_index() / 32 * 16 + lane_index() / 4 + i / 2 % 2 * 8;
    const int32 column = i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
    st_global(p.out + row * 16 + column, static_cast<int32>(d[i]));
  }
}

TEST(Hopper, ProductsMatchTheTiles) {
  constexpr Major kK = Major::kK;
  constexpr Major kMN = Major::kMN;
  for (const Body product :
       {Body{multiply_tiles<kK, kK, false>}, Body{multiply_tiles<kK, kMN, false>},
        Body{multiply_tiles<kMN, kK, false>}, Body{multiply_tiles<kMN, kMN, false>},
        Body{multiply_tiles<kK, kK, true>}, Body{multiply_tiles<kK, kMN, true>}}) {
    Memory m;
    run("product", product, m, 0);
    for (int32 i = 0; i < kWords; ++i) {
      float sum = 0;
      for (int32 k = 0; k < 64; ++k) sum += a_at(i / 16, k) * b_at(k, i % 16);
      ASSERT_EQ(m.out[i], static_cast<int32>(sum)) << "row " << i / 16 << ", column " << i % 16;
    }
  }
}

}  // namespace
}  // namespace lazyrope::hopper
