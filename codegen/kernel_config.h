#pragma once

#include <string>
#include <vector>

#include "codegen/arch.h"
#include "codegen/kernel_spec.h"

namespace lazyrope {

// The tile of one attend kernel: how many warps a CTA has, what each of them takes, and how deep
// its rings are. A prefill kernel's warps divide the query rows (warps_m); a decode kernel's warps
// divide the keys (warps_n). Family sm90a adds producer warps, which are not counted here.
struct TileConfig {
  int warps_m;      // warps that divide the query rows; decode of sm90a: warpgroups
  int warps_n;      // warps that divide the keys of a block, or KV heads and keys
  int warp_m;       // query rows of a warp, a multiple of 16
  int warp_n;       // keys of a warp's block, a multiple of 16
  int mma_n;        // keys of one product, a multiple of 16 that divides warp_n
  int stages;       // stages of a ring, at least 2: blocks in prefill, keys or values in decode
  int ctas_per_sm;  // CTAs that registers and shared memory of an SM must have room for
  Family family = Family::kSm80;
  int heads = 1;  // KV heads side by side in a tile, which share its rows: decode of family sm90a

  bool divides_rows() const { return warps_m > 1 && warps_n == 1; }
  int threads(int head_dim) const;
  int block_m() const { return warps_m * warp_m; }
  int rows_per_head() const { return block_m() / heads; }
  int block_n() const { return warps_n * warp_n; }
  // Keys of a block as the planner counts them, each of which has keys of one segment alone: the
  // blocks of all warps in family sm90a, the block of one warp in family sm80.
  int planner_block_n() const { return family == Family::kSm90a ? block_n() : warp_n; }
  // Dynamic shared memory of a CTA. kv_bytes: bytes of an element of the pool.
  int shared_bytes(int head_dim, int kv_bytes = 2) const;
  // Global memory of a CTA, where consumers rotate the queries of its work tile in place and save
  // the queries of the first document there.
  int saved_query_bytes(int head_dim) const;

  bool operator==(const TileConfig&) const = default;
};

// A choice among kernels that compute the same: see configs().
struct KernelConfig {
  TileConfig decode;            // for requests of at most decode.rows_per_head() packed rows
  TileConfig prefill;           // for all other requests
  int min_split_blocks = 2;     // KV blocks of the shortest split at either end of a tile
  int heads_per_work_tile = 1;  // KV heads that a work tile of decode may have
  // If not 0, the KV splits of a request do not depend on the other requests of the step: each has
  // this many blocks of a warp, or more where a tile would have more than 16 splits.
  int fixed_split_blocks = 0;

  bool operator==(const KernelConfig&) const = default;
};

// For example "1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM".
std::string describe(const TileConfig& config);
// One line: "decode 1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM; prefill ...".
std::string describe(const KernelConfig& config);

// The head_dims that have kernels, ascending.
std::vector<int> supported_head_dims();

// Throws SpecError, which names the nearest supported head_dims, if this is none of them.
void validate_head_dim(int head_dim);

// Throws SpecError, which names the member and its allowed values, if the config cannot be rendered
// for the spec or does not fit the arch.
void validate(const KernelConfig& config, const KernelSpec& spec, const Arch& arch);

bool is_legal(const KernelConfig& config, const KernelSpec& spec, const Arch& arch);

// The configs of a spec on an arch, the default first. Throws SpecError if there is none: it names
// what the head_dim needs, and the nearest head_dims that have a config on this arch.
std::vector<KernelConfig> configs(const KernelSpec& spec, const Arch& arch);

}  // namespace lazyrope
