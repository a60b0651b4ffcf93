#pragma once

#include <string>
#include <vector>

#include "codegen/arch.h"
#include "codegen/kernel_spec.h"

namespace lazyrope {

// The shape of one attend kernel: attend_tile.cuh of its family (templates/family) explains it
// where warps divide the rows, decode_tile.cuh where they divide keys, or heads and keys. Family
// sm90a has more warps beside these.
struct AttendPlan {
  int row_warps;    // warps that divide the query rows, or
  int key_warps;    // warps that divide heads and keys. One of both is 1, or each head has its own
  int warp_rows;    // query rows of a warp, a multiple of 16
  int warp_keys;    // keys of a warp's block, a multiple of 16
  int step_keys;    // keys of one product, a multiple of 16 that divides warp_keys
  int stages;       // in a ring, at least 2: blocks, or tiles (a block's keys or values) in decode
  int ctas_per_sm;  // that registers and shared memory must leave room for
  Family family = Family::kSm80;
  int heads = 1;  // KV heads side by side in a tile, which share its rows: decode of family sm90a

  bool divides_rows() const { return row_warps > 1 && key_warps == 1; }
  int threads(int head_dim) const;
  int rows() const { return row_warps * warp_rows; }
  int head_rows() const { return rows() / heads; }
  int block_keys() const { return key_warps * warp_keys; }
  // Of the blocks that the planner counts, each of which lies in one segment: a warp's, or all
  // warps' together.
  int unit_keys() const { return family == Family::kSm90a ? block_keys() : warp_keys; }
  int shared_bytes(int head_dim, int kv_bytes = 2) const;  // kv_bytes: of an element of the pool
  // Of each CTA in global memory: the queries of its item, where they are turned in their only
  // place.
  int kept_bytes(int head_dim) const;

  bool operator==(const AttendPlan&) const = default;
};

// What is chosen: all that may differ between two kernels that compute the same.
struct TilePlan {
  AttendPlan decode;         // requests of at most decode.head_rows() packed rows
  AttendPlan prefill;        // the others
  int min_split_blocks = 2;  // no part at a tile's ends has fewer KV blocks
  int item_heads = 1;        // KV heads that an item of decode may have
  // Not 0: how a request's keys are divided does not depend on what else the step has. Equal parts
  // of so many blocks of a warp at the most, unless that were more parts than a tile may have.
  int fixed_split_blocks = 0;

  bool operator==(const TilePlan&) const = default;
};

// "1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM".
std::string describe(const AttendPlan& plan);
// One line: "decode 1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM; prefill ...".
std::string describe(const TilePlan& plan);

std::vector<int> planned_head_dims();  // ascending

// SpecError that names the nearest planned head_dims, where this is none.
void validate_head_dim(int head_dim);

// SpecError that names the member and what it may be, where the plan cannot be rendered for a spec
// or does not fit the arch.
void validate(const TilePlan& plan, const KernelSpec& spec, const Arch& arch);

bool is_legal(const TilePlan& plan, const KernelSpec& spec, const Arch& arch);

// The plans that are made for a spec on an arch, the default first. SpecError if there is none:
// what the head_dim needs of the arch, and the nearest that has a plan there.
std::vector<TilePlan> candidates(const KernelSpec& spec, const Arch& arch);

}  // namespace lazyrope
