#pragma once

#include <string>
#include <vector>

#include "codegen/kernel_config.h"

namespace lazyrope {

// A config of family sm80, which every GPU from sm_80 on can run.
struct Sm80Row {
  int head_dim;
  int shared_kib_per_sm;  // the row is for SMs with at least this much shared memory
  KernelConfig config;
};

// A tile of family sm90a that replaces the decode or the prefill tile of a config.
struct Sm90aRow {
  int head_dim;
  bool allows_softcap;                // false: softcap would make the kernel spill registers
  Compute compute = Compute::kDtype;  // the specs that a prefill row is for; decode rows serve all
  TileConfig KernelConfig::* tile;
  TileConfig config;
};

// Returns the rows of all head_dims. Those of one head_dim begin with the row that needs the most
// shared memory, which is the best.
std::vector<Sm80Row> sm80_rows();

// Returns the rows of all head_dims. If two rows are for the same tile, the earlier one is
// preferred.
std::vector<Sm90aRow> sm90a_rows();

// Returns the text of the error that validate() throws, or "" if it throws none. Unlike validate(),
// it accepts a prefill tile without products of 8 bits for a spec that has them: a config takes its
// tiles of family sm90a one by one (config_selection.cpp).
std::string tile_error(const KernelConfig& config, const KernelSpec& spec, const Arch& arch);

}  // namespace lazyrope
