#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "codegen/arch.h"
#include "codegen/kernel_config.h"
#include "codegen/mask.h"
#include "codegen/render.h"
#include "tests/support/specs.h"

// The tables of tests/compile/results, one file per arch. compile_all.cpp writes them, and
// table_test.cpp checks them.
namespace lazyrope {

// The second line of a table. The first line begins with # and says how the table was made. The
// column `sass` has a digest of the machine code for each dtype. Renaming changes no digest.
inline constexpr const char* kTableHead =
    "row,head_dim,dtype,kernel,config,registers,spill_bytes,shared_bytes,cubin_bytes,sass";

inline constexpr std::array kTableDtypes = {Dtype::kBf16, Dtype::kFp16};

// A spec that differs from the default one in a single registry row or property.
struct TableRow {
  std::string name;
  std::function<void(KernelSpec&)> change;  // applied to default_spec()
};

inline KernelSpec default_spec(int head_dim, Dtype dtype) {
  KernelSpec spec;
  spec.head_dim = head_dim;
  spec.group_size = 4;
  spec.dtype = dtype;
  spec.rope = neox(head_dim);
  return spec;
}

inline void use_mask(KernelSpec& spec, const std::string& mask) {
  spec.mask = mask;
  spec.mask_parameters = example_mask(mask);
}

// Enables all features at once, which is the heaviest load for a kernel.
inline void use_all_at_once(KernelSpec& spec) {
  spec.rope = example_rope("gptj", spec.head_dim);
  spec.rope.parameters["attention_factor"] = 1.25;
  use_mask(spec, "sliding_window");
  spec.softcap = 50.0;
  spec.sinks = true;
  spec.group_size = 7;
  spec.temperature = {0.1, 8192, 1};
}

// Enables products of 8 bits.
inline void use_float8(KernelSpec& spec) {
  spec.kv_dtype = Dtype::kFp8E4m3;
  spec.compute = Compute::kFloat8;
}

inline std::vector<TableRow> table_rows() {
  std::vector<TableRow> rows = {{"default", [](KernelSpec&) {}}};
  const KernelSpec plain;
  for (const RopeVariant& rope : rope_variants())
    if (rope.name != "neox")
      rows.push_back({"rope=" + rope.name, [name = rope.name](KernelSpec& spec) {
                        spec.rope = example_rope(name, spec.head_dim);
                      }});
  for (const MaskVariant& mask : mask_variants())
    if (mask.name != plain.mask)
      rows.push_back(
          {"mask=" + mask.name, [name = mask.name](KernelSpec& spec) { use_mask(spec, name); }});
  const std::vector<TableRow> others = {
      {"rotary_dim=32", [](KernelSpec& spec) { spec.rope = neox(32); }},
      {"attention_factor",
       [](KernelSpec& spec) { spec.rope.parameters["attention_factor"] = 1.25; }},
      {"rotated",
       [](KernelSpec& spec) { spec.query_form = spec.append_form = RopeForm::kRotated; }},
      {"raw keys", [](KernelSpec& spec) { spec.key_form = KeyForm::kRaw; }},
      {"packed_prefill", [](KernelSpec& spec) { spec.packed_prefill = true; }},
      {"cascade", [](KernelSpec& spec) { spec.cascade = true; }},
      {"page_mass", [](KernelSpec& spec) { spec.page_mass = true; }},
      {"key_bias", [](KernelSpec& spec) { spec.key_bias = true; }},
      {"states", [](KernelSpec& spec) { spec.states = true; }},
      {"softcap", [](KernelSpec& spec) { spec.softcap = 50.0; }},
      {"sinks", [](KernelSpec& spec) { spec.sinks = true; }},
      {"temperature", [](KernelSpec& spec) { spec.temperature = {0.1, 8192, 1}; }},
      // Kernels divide rows by the group size. The division is omitted for 1, a shift for powers of
      // two such as the default, and a multiplication for others.
      {"group=1", [](KernelSpec& spec) { spec.group_size = 1; }},
      {"group=7", [](KernelSpec& spec) { spec.group_size = 7; }},
      {"group=71", [](KernelSpec& spec) { spec.group_size = 71; }},
      {"kv_dtype=float8_e4m3fn", [](KernelSpec& spec) { spec.kv_dtype = Dtype::kFp8E4m3; }},
      {"kv_dtype=float8_e5m2", [](KernelSpec& spec) { spec.kv_dtype = Dtype::kFp8E5m2; }},
      {"compute=float8", use_float8},
      // Options with which consumers of products of 8 bits have more registers.
      {"compute=float8 mask=sliding_window",
       [](KernelSpec& spec) {
         use_float8(spec);
         use_mask(spec, "sliding_window");
       }},
      {"compute=float8 page_mass",
       [](KernelSpec& spec) {
         use_float8(spec);
         spec.page_mass = true;
       }},
      {"compute=float8 key_bias",
       [](KernelSpec& spec) {
         use_float8(spec);
         spec.key_bias = true;
       }},
      {"compute=float8 all at once",
       [](KernelSpec& spec) {
         use_all_at_once(spec);
         use_float8(spec);
         spec.page_mass = true;
       }},
      {"all at once", use_all_at_once},
  };
  rows.insert(rows.end(), others.begin(), others.end());
  return rows;
}

struct TableSetting {
  std::size_t row;  // index into table_rows()
  KernelSpec spec;
  std::size_t config = 0;  // index of the first config that does not spill
};

// Returns every row with every head_dim and dtype that it supports on the arch.
inline std::vector<TableSetting> table_settings(const Arch& arch) {
  std::vector<TableSetting> settings;
  const std::vector<TableRow> rows = table_rows();
  for (std::size_t row = 0; row < rows.size(); ++row)
    for (const int head_dim : supported_head_dims())
      for (const Dtype dtype : kTableDtypes) {
        KernelSpec spec = default_spec(head_dim, dtype);
        rows[row].change(spec);
        if (is_possible(spec, arch)) settings.push_back({row, std::move(spec)});
      }
  return settings;
}

inline bool is_attend(KernelKind kind) {
  using enum KernelKind;
  return kind == kAttendDecode || kind == kAttendPrefill || kind == kAttendShared ||
         kind == kAttendRotated;
}

inline std::string table_path(const Arch& arch) {
  return LAZYROPE_TEST_SOURCE_DIR "/compile/results/" + arch.name + ".csv";
}

}  // namespace lazyrope
