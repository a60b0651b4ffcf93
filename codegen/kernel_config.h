#pragma once

#include <string>
#include <vector>

#include "codegen/arch.h"
#include "codegen/kernel_spec.h"

namespace lazyrope {

inline constexpr int kThreadsPerWarp = 32;
inline constexpr int kWarpsPerWarpgroup = 4;
inline constexpr int kSm90aPrefillWarps = 8;  // two warpgroups, which divide 128 query rows

// How a prefill kernel of family sm90a adds the bias of keys (templates/ops/key_bias.cuh), if its
// shared memory has room: with_fitting_biases() may make kMultiplied kAdded. All other kernels add
// it to each score.
enum class BiasForm { kNone, kAdded, kMultiplied };
BiasForm bias_form(const KernelSpec& spec);

// The tile of one attend kernel: the warps of a CTA, the rows and keys of each warp, and the stages
// of a ring. The warps of a prefill kernel divide the query rows (warps_m), those of a decode
// kernel the keys (warps_n). Family sm90a has further warps, the producers, which are not counted
// here.
struct TileConfig {
  int warps_m;      // warps that divide the query rows; in decode of sm90a, warpgroups
  int warps_n;      // warps that divide the keys of a block, or KV heads and the keys of each
  int warp_m;       // query rows of a warp, a multiple of 16
  int warp_n;       // keys of a warp's block, a multiple of 16
  int mma_n;        // keys of one product, a multiple of 16 that divides warp_n
  int stages;       // stages of a ring, at least 2: blocks in prefill, keys or values in decode
  int ctas_per_sm;  // CTAs that the registers and the shared memory of an SM must suffice for
  Family family = Family::kSm80;
  int heads = 1;  // KV heads that share the rows of a tile; 2 only in decode of family sm90a

  // Returns true if the tile is one of the family's prefill kernel.
  bool divides_rows() const { return warps_m > 1 && warps_n == 1; }
  int threads(int head_dim) const;
  int block_m() const { return warps_m * warp_m; }
  int rows_per_head() const { return block_m() / heads; }
  int block_n() const { return warps_n * warp_n; }
  // Returns the keys of a block as the planner counts blocks: a block has keys of one segment
  // alone. In family sm90a it is the block of all warps, in family sm80 that of one warp.
  int planner_block_n() const { return family == Family::kSm90a ? block_n() : warp_n; }
  // Returns the dynamic shared memory of a CTA in bytes. An element of the pool has kv_bytes bytes.
  // Kernels of a key bias, those of attention states and those of 8-bit products need other sizes.
  int shared_bytes(int head_dim, int kv_bytes = 2, BiasForm bias = BiasForm::kNone,
                   bool states = false, bool float8 = false, bool page_mass = false) const;
  // Does the same for the kernels of a spec.
  int shared_bytes(const KernelSpec& spec) const;
  // Returns the global memory of a CTA in bytes in which its consumers save the queries of the
  // first document. It is 0 unless the consumers rotate queries in place.
  int saved_query_bytes(int head_dim) const;

  bool operator==(const TileConfig&) const = default;
};

// The tiles of the two attend kernels, and the limits of KV splits. All configs of a spec compute
// the same function.
struct KernelConfig {
  TileConfig decode;            // for requests of at most decode.rows_per_head() packed rows
  TileConfig prefill;           // for all other requests
  int min_split_blocks = 2;     // the fewest KV blocks of a KV split at either end of a tile
  int heads_per_work_tile = 1;  // KV heads that a work tile of decode may have
  // If not 0, the KV splits of a request do not depend on the other requests of the step. A split
  // then has at most this many KV blocks, unless a tile would have more than 16 splits, or a
  // request of prefill more than 128.
  int fixed_split_blocks = 0;
  // With a cascade, a step shares segments only if that saves reading so many KiB of the pool. The
  // shared step has a kernel launch of its own, and L2 serves a few megabytes anyway. Measured on
  // an H200.
  int share_above_kib = 128 * 1024;
  // True: few units with short shares are cut into equal KV splits. False: their summed cost is cut
  // into equal shares, as that of other steps is. It means nothing with fixed_split_blocks.
  bool equal_splits = true;

  bool operator==(const KernelConfig&) const = default;
};

// Returns for example "1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM".
std::string describe(const TileConfig& config);
// Returns one line: "decode 1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM; prefill ...".
std::string describe(const KernelConfig& config);

// Returns the head_dims that have kernels, in ascending order.
std::vector<int> supported_head_dims();

// Returns the head_dims that have prefill kernels of 8-bit products (Compute::kFloat8).
std::vector<int> float8_head_dims();

// Throws SpecError, which names the nearest supported head_dims, if head_dim is not supported.
void validate_head_dim(int head_dim);

// Throws SpecError, which names the member and its allowed values, if the config cannot be rendered
// for the spec or does not fit the arch.
void validate(const KernelConfig& config, const KernelSpec& spec, const Arch& arch);

bool is_legal(const KernelConfig& config, const KernelSpec& spec, const Arch& arch);

// Returns the configs of a spec on an arch, the default first. Throws SpecError if there is none:
// it says what the head_dim needs, and names the nearest head_dims that have a config on this arch.
std::vector<KernelConfig> configs(const KernelSpec& spec, const Arch& arch);

}  // namespace lazyrope
