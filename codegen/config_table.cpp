// The tile shapes that kernels are compiled for, and why. A new head_dim is one row for each amount
// of shared memory. The dated pages in tests/gpu/experiments have the measurements that the rows
// quote; a row that names no GPU follows from a calculation.
#include "codegen/config_table.h"

namespace lazyrope {
namespace {

// The values in which two decode tiles of family sm80 differ: a CTA has 16 query rows, and each
// warp takes blocks of 16 keys.
struct Sm80Decode {
  int warps_n;
  int stages;
  int ctas_per_sm;

  TileConfig tile() const {
    return {.warps_m = 1,
            .warps_n = warps_n,
            .warp_m = 16,
            .warp_n = 16,
            .mma_n = 16,
            .stages = stages,
            .ctas_per_sm = ctas_per_sm};
  }
};

// The values in which two prefill tiles of family sm80 differ: each has two stages.
struct Sm80Prefill {
  int warps_m;
  int warp_m;
  int block_n;
  int mma_n = 0;  // 0: block_n
  int ctas_per_sm;

  TileConfig tile() const {
    return {.warps_m = warps_m,
            .warps_n = 1,
            .warp_m = warp_m,
            .warp_n = block_n,
            .mma_n = mma_n == 0 ? block_n : mma_n,
            .stages = 2,
            .ctas_per_sm = ctas_per_sm};
  }
};

// The values in which two decode tiles of family sm90a differ: a warpgroup has 16 query rows, and
// its four warps take 16 keys each.
struct Sm90aDecode {
  int warpgroups;
  int stages;
  int ctas_per_sm;
  int heads = 1;

  TileConfig tile() const {
    return {.warps_m = warpgroups,
            .warps_n = kWarpsPerWarpgroup,
            .warp_m = 16,
            .warp_n = 16,
            .mma_n = 16,
            .stages = stages,
            .ctas_per_sm = ctas_per_sm,
            .family = Family::kSm90a,
            .heads = heads};
  }
};

// The values in which two prefill tiles of family sm90a differ: one CTA an SM, and 64 query rows
// for each of two warpgroups.
struct Sm90aPrefill {
  int block_n;
  int stages;

  TileConfig tile() const {
    return {.warps_m = kSm90aPrefillWarps,
            .warps_n = 1,
            .warp_m = 16,
            .warp_n = block_n,
            .mma_n = block_n,
            .stages = stages,
            .ctas_per_sm = 1,
            .family = Family::kSm90a};
  }
};

struct Sm80Shapes {
  int head_dim;
  int shared_kib_per_sm;
  Sm80Decode decode;
  Sm80Prefill prefill;
};

struct Sm90aDecodeShape {
  int head_dim;
  Sm90aDecode decode;
};

struct Sm90aPrefillShape {
  int head_dim;
  bool allows_softcap;
  Sm90aPrefill prefill;
};

// A decode CTA streams KV: the bytes in flight on an SM count, which are stages - 1 tiles in each
// ring. A prefill CTA computes: 32 rows a warp count, because a warp reads each block from shared
// memory once for all its rows, and two CTAs on an SM, because the softmax of one then overlaps the
// MMAs of the other.
constexpr Sm80Shapes kSm80Shapes[] = {
    // Decode: two warps and four CTAs take 4% less than four and two (H200).
    {.head_dim = 64,
     .shared_kib_per_sm = 228,
     .decode = {.warps_n = 2, .stages = 6, .ctas_per_sm = 4},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 160 KiB.
    {.head_dim = 64,
     .shared_kib_per_sm = 160,
     .decode = {.warps_n = 4, .stages = 8, .ctas_per_sm = 2},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 100 KiB.
    {.head_dim = 64,
     .shared_kib_per_sm = 100,
     .decode = {.warps_n = 4, .stages = 4, .ctas_per_sm = 2},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 1}},
    // Decode: two warps and four CTAs take 15% less than four and two (H200).
    {.head_dim = 72,
     .shared_kib_per_sm = 228,
     .decode = {.warps_n = 2, .stages = 6, .ctas_per_sm = 4},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 128, .mma_n = 64, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 160 KiB.
    {.head_dim = 72,
     .shared_kib_per_sm = 160,
     .decode = {.warps_n = 4, .stages = 5, .ctas_per_sm = 2},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 100 KiB.
    {.head_dim = 72,
     .shared_kib_per_sm = 100,
     .decode = {.warps_n = 4, .stages = 7, .ctas_per_sm = 1},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 1}},
    // Decode: two warps and four CTAs take 10% less than four and two (H200).
    {.head_dim = 80,
     .shared_kib_per_sm = 228,
     .decode = {.warps_n = 2, .stages = 6, .ctas_per_sm = 4},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 160 KiB.
    {.head_dim = 80,
     .shared_kib_per_sm = 160,
     .decode = {.warps_n = 4, .stages = 5, .ctas_per_sm = 2},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 100 KiB.
    {.head_dim = 80,
     .shared_kib_per_sm = 100,
     .decode = {.warps_n = 4, .stages = 7, .ctas_per_sm = 1},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 1}},
    // Decode: two warps and four CTAs, as at 80 and 112 (H200).
    {.head_dim = 96,
     .shared_kib_per_sm = 228,
     .decode = {.warps_n = 2, .stages = 6, .ctas_per_sm = 4},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 160 KiB.
    {.head_dim = 96,
     .shared_kib_per_sm = 160,
     .decode = {.warps_n = 4, .stages = 4, .ctas_per_sm = 2},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 32, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 100 KiB.
    {.head_dim = 96,
     .shared_kib_per_sm = 100,
     .decode = {.warps_n = 4, .stages = 5, .ctas_per_sm = 1},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 1}},
    // Decode: two warps and four CTAs take 12% less than four and two (H200).
    {.head_dim = 112,
     .shared_kib_per_sm = 228,
     .decode = {.warps_n = 2, .stages = 5, .ctas_per_sm = 4},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 160 KiB.
    {.head_dim = 112,
     .shared_kib_per_sm = 160,
     .decode = {.warps_n = 4, .stages = 3, .ctas_per_sm = 2},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 32, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 100 KiB.
    {.head_dim = 112,
     .shared_kib_per_sm = 100,
     .decode = {.warps_n = 4, .stages = 4, .ctas_per_sm = 1},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 32, .ctas_per_sm = 1}},
    // Decode: 128 KB in flight an SM; prefill: four warps of 32 rows beat eight of 16 (H200).
    {.head_dim = 128,
     .shared_kib_per_sm = 228,
     .decode = {.warps_n = 4, .stages = 5, .ctas_per_sm = 2},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 64, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 160 KiB.
    {.head_dim = 128,
     .shared_kib_per_sm = 160,
     .decode = {.warps_n = 4, .stages = 3, .ctas_per_sm = 2},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 32, .ctas_per_sm = 2}},
    // This row was not measured; it is the row above, reduced to fit 100 KiB.
    {.head_dim = 128,
     .shared_kib_per_sm = 100,
     .decode = {.warps_n = 4, .stages = 4, .ctas_per_sm = 1},
     .prefill = {.warps_m = 4, .warp_m = 32, .block_n = 32, .ctas_per_sm = 1}},
    // Decode reaches 0.94 of a plain sum; prefill: 232 TFLOP/s (H200).
    {.head_dim = 160,
     .shared_kib_per_sm = 228,
     .decode = {.warps_n = 2, .stages = 5, .ctas_per_sm = 3},
     .prefill = {.warps_m = 8, .warp_m = 16, .block_n = 64, .ctas_per_sm = 1}},
    // This row was not measured; it is the row above, reduced to fit 160 KiB.
    {.head_dim = 160,
     .shared_kib_per_sm = 160,
     .decode = {.warps_n = 2, .stages = 5, .ctas_per_sm = 2},
     .prefill = {.warps_m = 8, .warp_m = 16, .block_n = 64, .ctas_per_sm = 1}},
    // This row was not measured; it is the row above, reduced to fit 100 KiB.
    {.head_dim = 160,
     .shared_kib_per_sm = 100,
     .decode = {.warps_n = 4, .stages = 3, .ctas_per_sm = 1},
     .prefill = {.warps_m = 4, .warp_m = 16, .block_n = 32, .ctas_per_sm = 1}},
    // Decode reaches 0.99 of a plain sum; prefill: 266 TFLOP/s (H200).
    {.head_dim = 192,
     .shared_kib_per_sm = 228,
     .decode = {.warps_n = 2, .stages = 4, .ctas_per_sm = 3},
     .prefill = {.warps_m = 8, .warp_m = 16, .block_n = 64, .ctas_per_sm = 1}},
    // This row was not measured; it is the row above, reduced to fit 160 KiB.
    {.head_dim = 192,
     .shared_kib_per_sm = 160,
     .decode = {.warps_n = 2, .stages = 4, .ctas_per_sm = 2},
     .prefill = {.warps_m = 8, .warp_m = 16, .block_n = 64, .ctas_per_sm = 1}},
    // This row was not measured; it is the row above, reduced to fit 100 KiB.
    {.head_dim = 192,
     .shared_kib_per_sm = 100,
     .decode = {.warps_n = 2, .stages = 4, .ctas_per_sm = 1},
     .prefill = {.warps_m = 4, .warp_m = 16, .block_n = 32, .ctas_per_sm = 1}},
    // Decode reaches a plain sum; prefill: blocks of 64 keys give 281 TFLOP/s, of 32 keys 223
    // (H200).
    {.head_dim = 256,
     .shared_kib_per_sm = 228,
     .decode = {.warps_n = 2, .stages = 5, .ctas_per_sm = 2},
     .prefill = {.warps_m = 8, .warp_m = 16, .block_n = 64, .ctas_per_sm = 1}},
    // This row was not measured; it is the row above, reduced to fit 160 KiB.
    {.head_dim = 256,
     .shared_kib_per_sm = 160,
     .decode = {.warps_n = 2, .stages = 3, .ctas_per_sm = 2},
     .prefill = {.warps_m = 8, .warp_m = 16, .block_n = 32, .ctas_per_sm = 1}},
    // This row was not measured; it is the row above, reduced to fit 100 KiB.
    {.head_dim = 256,
     .shared_kib_per_sm = 100,
     .decode = {.warps_n = 2, .stages = 3, .ctas_per_sm = 1},
     .prefill = {.warps_m = 4, .warp_m = 16, .block_n = 32, .ctas_per_sm = 1}},
};

// Decode takes as many bytes in flight as there is room for, and rows of 256 bytes: at head_dim 64,
// two KV heads share a row.
constexpr Sm90aDecodeShape kSm90aDecodeShapes[] = {
    // Two KV heads make a row of 256 bytes: 4% less time than one (H200).
    {.head_dim = 64, .decode = {.warpgroups = 1, .stages = 3, .ctas_per_sm = 2, .heads = 2}},
    // A warpgroup for each of the two heads, where a head has more than eight rows (H200).
    {.head_dim = 64, .decode = {.warpgroups = 2, .stages = 3, .ctas_per_sm = 2, .heads = 2}},
    // One head a work tile, where the number of KV heads is odd.
    {.head_dim = 64, .decode = {.warpgroups = 1, .stages = 6, .ctas_per_sm = 2}},
    // Three stages and two CTAs an SM keep enough bytes in flight (H200).
    {.head_dim = 128, .decode = {.warpgroups = 1, .stages = 3, .ctas_per_sm = 2}},
    // One CTA an SM with four stages: two CTAs do not fit.
    {.head_dim = 192, .decode = {.warpgroups = 1, .stages = 4, .ctas_per_sm = 1}},
    // One CTA an SM with three stages: two CTAs do not fit.
    {.head_dim = 256, .decode = {.warpgroups = 1, .stages = 3, .ctas_per_sm = 1}},
};

// Prefill takes as many keys as leave room for two blocks in flight, or four where blocks are
// small.
constexpr Sm90aPrefillShape kSm90aPrefillShapes[] = {
    // Blocks of 128 keys and four stages beat blocks of 64 keys (H200).
    {.head_dim = 64, .allows_softcap = true, .prefill = {.block_n = 128, .stages = 4}},
    // Blocks of 128 keys; softcap leaves no registers for them.
    {.head_dim = 128, .allows_softcap = false, .prefill = {.block_n = 128, .stages = 2}},
    // Blocks of 64 keys, where softcap takes registers.
    {.head_dim = 128, .allows_softcap = true, .prefill = {.block_n = 64, .stages = 4}},
    // Blocks of 128 keys and three stages fill shared memory.
    {.head_dim = 96, .allows_softcap = true, .prefill = {.block_n = 128, .stages = 3}},
    // These four rows have as many stages as fit. Other shapes were not measured.
    {.head_dim = 72, .allows_softcap = true, .prefill = {.block_n = 128, .stages = 3}},
    {.head_dim = 80, .allows_softcap = true, .prefill = {.block_n = 128, .stages = 4}},
    {.head_dim = 112, .allows_softcap = true, .prefill = {.block_n = 128, .stages = 2}},
    {.head_dim = 160, .allows_softcap = true, .prefill = {.block_n = 128, .stages = 2}},
    // Blocks of 96 keys: the most of which two stages fit.
    {.head_dim = 192, .allows_softcap = true, .prefill = {.block_n = 96, .stages = 2}},
    // Blocks of 64 keys: the most of which two stages fit.
    {.head_dim = 256, .allows_softcap = true, .prefill = {.block_n = 64, .stages = 2}},
};

// Prefill with products of 8 bits. A block of keys and one of values take half the bytes, but the
// totals of family/sm90a/row_totals.cuh take room, too. Rows of head_dim 64 and 96 were not
// measured.
constexpr Sm90aPrefillShape kFloat8PrefillShapes[] = {
    // Blocks of 128 keys, of which each of four warps transposes 32.
    {.head_dim = 64, .allows_softcap = true, .prefill = {.block_n = 128, .stages = 4}},
    {.head_dim = 96, .allows_softcap = true, .prefill = {.block_n = 128, .stages = 4}},
    // Three stages fill shared memory. With two, keys would arrive late: consumers release a
    // block's keys only half a block before they need the next ones.
    {.head_dim = 128, .allows_softcap = true, .prefill = {.block_n = 128, .stages = 3}},
};

}  // namespace

std::vector<Sm80Row> sm80_rows() {
  std::vector<Sm80Row> rows;
  for (const Sm80Shapes& shapes : kSm80Shapes)
    rows.push_back({.head_dim = shapes.head_dim,
                    .shared_kib_per_sm = shapes.shared_kib_per_sm,
                    .config = {.decode = shapes.decode.tile(), .prefill = shapes.prefill.tile()}});
  return rows;
}

std::vector<Sm90aRow> sm90a_rows() {
  std::vector<Sm90aRow> rows;
  for (const Sm90aDecodeShape& shape : kSm90aDecodeShapes)
    rows.push_back({.head_dim = shape.head_dim,
                    .allows_softcap = true,
                    .tile = &KernelConfig::decode,
                    .config = shape.decode.tile()});
  for (const Sm90aPrefillShape& shape : kSm90aPrefillShapes)
    rows.push_back({.head_dim = shape.head_dim,
                    .allows_softcap = shape.allows_softcap,
                    .tile = &KernelConfig::prefill,
                    .config = shape.prefill.tile()});
  for (const Sm90aPrefillShape& shape : kFloat8PrefillShapes)
    rows.push_back({.head_dim = shape.head_dim,
                    .allows_softcap = shape.allows_softcap,
                    .compute = Compute::kFloat8,
                    .tile = &KernelConfig::prefill,
                    .config = shape.prefill.tile()});
  return rows;
}

}  // namespace lazyrope
