#pragma once

#include <string>
#include <vector>

#include "codegen/arch.h"
#include "codegen/kernel_spec.h"

namespace lazyrope {

// The shape of one attend kernel: attend_tile.cuh of its family (templates/family) explains it
// where warps divide the rows, decode_tile.cuh where they divide keys, or heads and keys. Family
// sm90a has more warps beside these.
struct TileConfig {
  int warps_m;      // warps that divide the query rows, or
  int warps_n;      // warps that divide heads and keys. One of both is 1, or each head has its own
  int warp_m;       // query rows of a warp, a multiple of 16
  int warp_n;       // keys of a warp's block, a multiple of 16
  int mma_n;        // keys of one product, a multiple of 16 that divides warp_n
  int stages;       // in a ring, at least 2: blocks, or tiles (a block's keys or values) in decode
  int ctas_per_sm;  // that registers and shared memory must leave room for
  Family family = Family::kSm80;
  int heads = 1;  // KV heads side by side in a tile, which share its rows: decode of family sm90a

  bool divides_rows() const { return warps_m > 1 && warps_n == 1; }
  int threads(int head_dim) const;
  int block_m() const { return warps_m * warp_m; }
  int rows_per_head() const { return block_m() / heads; }
  int block_n() const { return warps_n * warp_n; }
  // Of the blocks that the planner counts, each of which lies in one segment: a warp's, or all
  // warps' together.
  int planner_block_n() const { return family == Family::kSm90a ? block_n() : warp_n; }
  int shared_bytes(int head_dim, int kv_bytes = 2) const;  // kv_bytes: of an element of the pool
  // Of each CTA in global memory: the queries of its work tile, where they are turned in their only
  // place.
  int saved_query_bytes(int head_dim) const;

  bool operator==(const TileConfig&) const = default;
};

// What is chosen: all that may differ between two kernels that compute the same.
struct KernelConfig {
  TileConfig decode;            // requests of at most decode.rows_per_head() packed rows
  TileConfig prefill;           // the others
  int min_split_blocks = 2;     // no part at a tile's ends has fewer KV blocks
  int heads_per_work_tile = 1;  // KV heads that a work tile of decode may have
  // Not 0: how a request's keys are divided does not depend on what else the step has. Equal parts
  // of so many blocks of a warp at the most, unless that were more parts than a tile may have.
  int fixed_split_blocks = 0;

  bool operator==(const KernelConfig&) const = default;
};

// "1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM".
std::string describe(const TileConfig& config);
// One line: "decode 1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM; prefill ...".
std::string describe(const KernelConfig& config);

std::vector<int> supported_head_dims();  // ascending

// SpecError that names the nearest planned head_dims, where this is none.
void validate_head_dim(int head_dim);

// SpecError that names the member and what it may be, where the config cannot be rendered for a
// spec or does not fit the arch.
void validate(const KernelConfig& config, const KernelSpec& spec, const Arch& arch);

bool is_legal(const KernelConfig& config, const KernelSpec& spec, const Arch& arch);

// The configs that are made for a spec on an arch, the default first. SpecError if there is none:
// what the head_dim needs of the arch, and the nearest that has a config there.
std::vector<KernelConfig> configs(const KernelSpec& spec, const Arch& arch);

}  // namespace lazyrope
