// The interface that isa/ptx and isa/emu both implement: the parameters and the result of every
// call that kernels may make. tests/isa/contract_test.cpp compiles this file with each of them;
// nothing else includes it. The heading above a group of calls is the title of their section in the
// PTX ISA manual 9.0. The comment after a call names its instruction, special register or
// directive; "none" marks plain arithmetic.
//
// No kernel uses mbarrier.inval or cp.async.bulk to global memory. The recordings of the
// conformance cases mbarrier_phases, bulk_load and bulk_store (tests/isa/rows) depend on them. Both
// can be removed once these cases are recorded without them.
#pragma once

#include "isa/async_copy.cuh"
#include "isa/bulk_copy.cuh"
#include "isa/float8.cuh"
#include "isa/launch.cuh"
#include "isa/math.cuh"
#include "isa/mbarrier.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "isa/tensor_copy.cuh"
#include "isa/wgmma.cuh"

namespace lazyrope::contract {

template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;

// Declares a value of type T for calls in unevaluated operands. It has no definition.
template <class T>
T a();

// Parameters that are arrays of registers.
using Registers = uint32 (&)[4];
using ConstRegisters = const uint32 (&)[4];
using Floats = float (&)[4];

// launch.cuh: "Special Registers".
static_assert(kSame<int32, decltype(thread_index())>);   // %tid
static_assert(kSame<int32, decltype(block_index())>);    // %ctaid
static_assert(kSame<int32, decltype(block_threads())>);  // %ntid
static_assert(kSame<int32, decltype(grid_blocks())>);    // %nctaid
static_assert(kSame<int32, decltype(lane_index())>);     // %laneid (CTAs are one-dimensional)
static_assert(kSame<int32, decltype(warp_index())>);     // none: %tid / 32

// launch.cuh: "Miscellaneous Instructions: setmaxnreg", "Parallel Synchronization and Communication
// Instructions: griddepcontrol".
static_assert(kSame<void, decltype(setmaxnreg_inc<240>())>);
static_assert(kSame<void, decltype(setmaxnreg_dec<24>())>);
static_assert(kSame<void, decltype(griddepcontrol_wait())>);
static_assert(kSame<void, decltype(griddepcontrol_launch_dependents())>);

// memory.cuh: "State Spaces", ".shared".
static_assert(sizeof(SharedPtr) == 4);
static_assert(kSame<SharedPtr, decltype(dynamic_shared_memory())>);
static_assert(kSame<SharedPtr, decltype(a<SharedPtr>() + a<int32>())>);
static_assert(kSame<SharedPtr, decltype(a<SharedPtr>() ^ a<int32>())>);
static_assert(kSame<bool, decltype(a<SharedPtr>() == a<SharedPtr>())>);
static_assert(sizeof(GenericPtr) == 8);
static_assert(kSame<GenericPtr, decltype(a<GenericPtr>() + a<int64>())>);
static_assert(kSame<GenericPtr, decltype(generic(a<SharedPtr>()))>);  // cvta.shared
static_assert(kSame<GenericPtr, decltype(generic(a<void*>()))>);      // none

// memory.cuh: "Data Movement and Conversion Instructions".
static_assert(kSame<uint32, decltype(ld_shared<uint32>(a<SharedPtr>()))>);      // ld
static_assert(kSame<Word2, decltype(ld_shared<Word2>(a<SharedPtr>()))>);        // ld
static_assert(kSame<Chunk, decltype(ld_shared<Chunk>(a<SharedPtr>()))>);        // ld
static_assert(kSame<void, decltype(st_shared(a<SharedPtr>(), a<float>()))>);    // st
static_assert(kSame<void, decltype(st_shared(a<SharedPtr>(), a<Word2>()))>);    // st
static_assert(kSame<void, decltype(st_shared(a<SharedPtr>(), a<Chunk>()))>);    // st
static_assert(kSame<int32, decltype(ld_global_nc(a<const int32*>()))>);         // ld.global.nc
static_assert(kSame<Word2, decltype(ld_global_nc(a<const Word2*>()))>);         // ld.global.nc
static_assert(kSame<Chunk, decltype(ld_global_nc(a<const Chunk*>()))>);         // ld.global.nc
static_assert(kSame<void, decltype(prefetch_global_l2(a<const void*>()))>);     // prefetch
static_assert(kSame<uint8, decltype(ld_global(a<const uint8*>()))>);            // ld
static_assert(kSame<Chunk, decltype(ld_global(a<const Chunk*>()))>);            // ld
static_assert(kSame<void, decltype(st_global(a<uint16*>(), a<uint16>()))>);     // st
static_assert(kSame<void, decltype(st_global(a<Chunk*>(), a<Chunk>()))>);       // st
static_assert(kSame<Chunk, decltype(ld_generic<Chunk>(a<GenericPtr>()))>);      // ld
static_assert(kSame<void, decltype(st_generic(a<GenericPtr>(), a<Chunk>()))>);  // st

// memory.cuh: "Warp-level matrix load instruction: ldmatrix".
static_assert(kSame<void, decltype(ldmatrix_x4(a<Registers>(), a<SharedPtr>()))>);
static_assert(kSame<void, decltype(ldmatrix_x4_trans(a<Registers>(), a<SharedPtr>()))>);

// async_copy.cuh: "Data Movement and Conversion Instructions: Non-bulk copy".
static_assert(kSame<void, decltype(cp_async_cg_16<false>(a<SharedPtr>(), a<const void*>(),
                                                         a<int32>()))>);  // cp.async
static_assert(kSame<void, decltype(cp_async_cg_16<true>(a<SharedPtr>(), a<const void*>(),
                                                        a<int32>()))>);                 // cp.async
static_assert(kSame<void, decltype(cp_async_ca_4(a<SharedPtr>(), a<const void*>()))>);  // cp.async
static_assert(kSame<void, decltype(cp_async_commit_group())>);   // cp.async.commit_group
static_assert(kSame<void, decltype(cp_async_wait_group<0>())>);  // cp.async.wait_group

// math.cuh: "Floating Point Instructions".
static_assert(kSame<float, decltype(ex2_approx_ftz_f32(a<float>()))>);   // ex2
static_assert(kSame<float, decltype(lg2_approx_ftz_f32(a<float>()))>);   // lg2
static_assert(kSame<float, decltype(rcp_approx_ftz_f32(a<float>()))>);   // rcp
static_assert(kSame<float, decltype(sin_approx_f32(a<float>()))>);       // sin
static_assert(kSame<float, decltype(cos_approx_f32(a<float>()))>);       // cos
static_assert(kSame<float, decltype(max_f32(a<float>(), a<float>()))>);  // max

// math.cuh: "Integer Arithmetic Instructions".
static_assert(kSame<uint32, decltype(max_u16x2(a<uint32>(), a<uint32>()))>);  // max

// math.cuh: "Half Precision Floating Point Instructions".
static_assert(
    kSame<uint32, decltype(fma_rn_bf16x2(a<uint32>(), a<uint32>(), a<uint32>()))>);           // fma
static_assert(kSame<uint32, decltype(fma_rn_f16x2(a<uint32>(), a<uint32>(), a<uint32>()))>);  // fma

// math.cuh: "Data Movement and Conversion Instructions".
static_assert(kSame<uint32, decltype(prmt_b32(a<uint32>(), a<uint32>(), a<uint32>()))>);  // prmt
static_assert(kSame<float, decltype(bits_as_float(a<uint32>()))>);                        // mov
static_assert(kSame<uint32, decltype(float_as_bits(a<float>()))>);                        // mov
static_assert(kSame<float, decltype(infinity_f32())>);                                    // mov
static_assert(kSame<uint32, decltype(cvt_rn_bf16x2_f32(a<float>(), a<float>()))>);        // cvt
static_assert(kSame<uint32, decltype(cvt_rn_f16x2_f32(a<float>(), a<float>()))>);         // cvt
static_assert(kSame<FloatPair, decltype(cvt_f32_bf16x2(a<uint32>()))>);  // none: shl, and
static_assert(kSame<FloatPair, decltype(cvt_f32_f16x2(a<uint32>()))>);   // cvt

// math.cuh: "Multiply-and-Accumulate Instruction: mma", "Matrix Fragments for mma.m16n8k16".
static_assert(kSame<void, decltype(mma_m16n8k16_f32_bf16(a<Floats>(), a<ConstRegisters>(),
                                                         a<uint32>(), a<uint32>()))>);
static_assert(kSame<void, decltype(mma_m16n8k16_f32_f16(a<Floats>(), a<ConstRegisters>(),
                                                        a<uint32>(), a<uint32>()))>);

// sync.cuh: "Parallel Synchronization and Communication Instructions".
static_assert(kSame<void, decltype(bar_sync())>);                          // bar
static_assert(kSame<void, decltype(bar_sync(a<int32>(), a<int32>()))>);    // bar
static_assert(kSame<void, decltype(bar_arrive(a<int32>(), a<int32>()))>);  // bar
static_assert(kSame<bool, decltype(elect_sync())>);                        // elect.sync
static_assert(kSame<void, decltype(bar_warp_sync())>);                     // bar.warp.sync
static_assert(kSame<uint32, decltype(atom_acq_rel_gpu_inc(a<uint32*>(), a<uint32>()))>);   // atom
static_assert(kSame<uint32, decltype(atom_relaxed_gpu_inc(a<uint32*>(), a<uint32>()))>);   // atom
static_assert(kSame<uint32, decltype(atom_relaxed_gpu_exch(a<uint32*>(), a<uint32>()))>);  // atom
static_assert(kSame<uint32, decltype(ld_acquire_gpu(a<const uint32*>()))>);                // ld
static_assert(kSame<Chunk, decltype(ld_relaxed_gpu(a<const Chunk*>()))>);                  // ld
static_assert(
    kSame<void, decltype(ld_relaxed_gpu_if(a<bool>(), a<const Chunk*>(), a<Chunk&>()))>);  // ld
static_assert(kSame<void, decltype(st_relaxed_gpu(a<Word2*>(), a<Word2>()))>);             // st
static_assert(kSame<uint32, decltype(vote_sync_ballot(a<bool>()))>);  // vote.sync
static_assert(kSame<bool, decltype(vote_sync_any(a<bool>()))>);       // vote.sync

// sync.cuh: "Data Movement and Conversion Instructions: shfl.sync".
static_assert(kSame<float, decltype(shfl_sync_idx(a<float>(), a<int32>()))>);
static_assert(kSame<float, decltype(shfl_sync_bfly(a<float>(), a<int32>()))>);
static_assert(kSame<int32, decltype(shfl_sync_up(a<int32>(), a<int32>()))>);
static_assert(kSame<int64, decltype(shfl_sync_up(a<int64>(), a<int32>()))>);

// mbarrier.cuh: "Parallel Synchronization and Communication Instructions: mbarrier".
static_assert(kSame<void, decltype(mbarrier_init(a<SharedPtr>(), a<uint32>()))>);
static_assert(kSame<void, decltype(fence_mbarrier_init_release_cluster())>);  // membar / fence
static_assert(kSame<void, decltype(mbarrier_inval(a<SharedPtr>()))>);
static_assert(kSame<void, decltype(mbarrier_arrive(a<SharedPtr>()))>);
static_assert(kSame<void, decltype(mbarrier_arrive_expect_tx(a<SharedPtr>(), a<uint32>()))>);
static_assert(kSame<void, decltype(mbarrier_expect_tx(a<SharedPtr>(), a<uint32>()))>);
static_assert(kSame<bool, decltype(mbarrier_try_wait_parity(a<SharedPtr>(), a<uint32>()))>);
static_assert(kSame<bool, decltype(mbarrier_test_wait_parity(a<SharedPtr>(), a<uint32>()))>);

// bulk_copy.cuh: "Data Movement and Conversion Instructions: Bulk copy".
static_assert(
    kSame<void, decltype(cp_async_bulk_shared_global(a<SharedPtr>(), a<const void*>(), a<uint32>(),
                                                     a<SharedPtr>()))>);  // cp.async.bulk
static_assert(kSame<void, decltype(cp_async_bulk_global_shared(a<void*>(), a<SharedPtr>(),
                                                               a<uint32>()))>);  // cp.async.bulk
static_assert(kSame<void, decltype(cp_async_bulk_commit_group())>);
static_assert(kSame<void, decltype(cp_async_bulk_wait_group<0>())>);
static_assert(kSame<void, decltype(cp_async_bulk_wait_group_read<0>())>);
static_assert(kSame<void, decltype(fence_proxy_async())>);         // membar / fence
static_assert(kSame<void, decltype(fence_proxy_async_global())>);  // membar / fence

// tensor_copy.cuh: "Data Movement and Conversion Instructions: Tensor copy".
using Coordinates = const int32 (&)[5];
static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64);
static_assert(kSame<void, decltype(cp_async_bulk_tensor_load(a<SharedPtr>(), a<const TensorMap&>(),
                                                             a<Coordinates>(), a<SharedPtr>()))>);
static_assert(
    kSame<void, decltype(cp_async_bulk_tensor_load_evict_first(
                    a<SharedPtr>(), a<const TensorMap&>(), a<Coordinates>(), a<SharedPtr>()))>);

// wgmma.cuh: "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
static_assert(Accumulator<64>::kCount == 32);
static_assert(kSame<float&, decltype(a<Accumulator<64>&>()[a<int32>()])>);       // none
static_assert(kSame<float, decltype(a<const Accumulator<64>&>()[a<int32>()])>);  // none
static_assert(kSame<void, decltype(a<Accumulator<64>&>().pin())>);               // none
static_assert(kSame<uint32&, decltype(a<OperandA&>()[a<int32>()])>);             // none
static_assert(kSame<uint32, decltype(a<const OperandA&>()[a<int32>()])>);        // none
static_assert(kSame<void, decltype(a<OperandA&>().pin())>);                      // none
static_assert(kSame<SharedDescriptor, decltype(shared_descriptor(a<SharedPtr>(), a<int32>(),
                                                                 a<int32>(), a<Swizzle>()))>);
static_assert(kSame<void, decltype(wgmma_fence())>);
static_assert(kSame<void, decltype(wgmma_commit_group())>);
static_assert(kSame<void, decltype(wgmma_wait_group<0>())>);
static_assert(kSame<void, decltype(wgmma_m64k16<WgmmaBf16, 256, Major::kK, Major::kMN>(
                              a<Accumulator<256>&>(), a<const SharedDescriptor (&)[2]>(),
                              a<const SharedDescriptor (&)[2]>(), a<bool>()))>);  // wgmma.mma_async
static_assert(kSame<void, decltype(wgmma_m64k16<WgmmaF16, 8, Major::kMN>(
                              a<Accumulator<8>&>(), a<const OperandA (&)[2]>(),
                              a<const SharedDescriptor (&)[2]>(), a<bool>()))>);  // wgmma.mma_async

// float8.cuh: "Data Movement and Conversion Instructions: cvt", "Asynchronous Warpgroup Level
// Matrix Multiply-Accumulate Instructions".
static_assert(kSame<uint32, decltype(cvt_rn_satfinite_e4m3x2_f32(a<float>(), a<float>(), a<float>(),
                                                                 a<float>()))>);  // cvt, twice
static_assert(
    kSame<void, decltype(wgmma_m64k32(a<Accumulator<128>&>(), a<const SharedDescriptor (&)[2]>(),
                                      a<const SharedDescriptor (&)[2]>(),
                                      a<bool>()))>);  // wgmma.mma_async
static_assert(kSame<void, decltype(wgmma_m64k32(a<Accumulator<64>&>(), a<const OperandA (&)[2]>(),
                                                a<const SharedDescriptor (&)[2]>(),
                                                a<bool>()))>);  // wgmma.mma_async

}  // namespace lazyrope::contract
