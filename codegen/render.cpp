#include "codegen/render.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>

#include "codegen/error.h"
#include "codegen/rotated_keys.h"
#include "codegen/template_text.h"
#include "templates/abi/attend_tma.h"
#include "templates/abi/page_mass.h"
#include "templates/abi/plan.h"
#include "templates/abi/rotation.h"
#include "templates/abi/share.h"

namespace lazyrope {
namespace {

constexpr int kAppendThreads = 256;  // for plan_append, append and reposition

constexpr std::array<std::string_view, kKernelKinds> kNames = {
    "plan",           "attend_decode",  "attend_prefill", "plan_append",   "append",
    "share",          "attend_shared",  "combine_shared", "plan_rotation", "rotate_keys",
    "attend_rotated", "plan_page_mass", "sum_page_mass",  "reposition"};

// Returns each pair's angle per token (templates/ops/rotate.cuh).
RopeTable revolutions_per_token(const KernelSpec& spec) {
  const RopeVariant rope = rope_variant(spec.rope.variant);
  const std::vector<double> frequencies = rope.frequencies(spec.rope);
  if (frequencies.size() != static_cast<std::size_t>(spec.rope.rotary_dim / 2))
    throw SpecError(
        fmt::format("rope \"{}\" gives {} frequencies for rotary_dim = {}; it must give {}",
                    rope.name, frequencies.size(), spec.rope.rotary_dim, spec.rope.rotary_dim / 2));
  RopeTable table;
  for (const double radians : frequencies) {
    if (!std::isfinite(radians))
      throw SpecError(fmt::format("rope \"{}\" gives the frequency {}", rope.name, radians));
    const double revolutions = radians / (2.0 * std::numbers::pi);
    const double fraction = revolutions - std::floor(revolutions);
    table.push_back(static_cast<std::uint64_t>(std::ldexp(fraction, 64)));
  }
  return table;
}

std::string text_of(const RopeTable& table) {
  return table.empty() ? "0" : fmt::format("{}ull", fmt::join(table, "ull, "));
}

std::string_view element(Dtype dtype) { return dtype == Dtype::kBf16 ? "Bf16" : "Fp16"; }

// A type of the templates, and the file that defines it.
struct TemplateType {
  std::string file;
  std::string name;
};

std::string_view fp8_format(const KernelSpec& spec) {
  return spec.pool_dtype() == Dtype::kFp8E4m3 ? "E4m3" : "E5m2";
}

// Tells whether the kernel of the tile multiplies elements of 8 bits.
bool uses_float8(const KernelSpec& spec, const TileConfig& config) {
  return spec.compute == Compute::kFloat8 && config.family == Family::kSm90a &&
         config.divides_rows();
}

// Returns the matrix product that the kernel uses for the pool's elements.
TemplateType product_type(const KernelSpec& spec, const TileConfig& config) {
  const std::string_view type = element(spec.dtype);
  if (uses_float8(spec, config))
    return {"tile/float8_product.cuh", fmt::format("Float8Product<{}, {}>", type, spec.head_dim)};
  if (config.family == Family::kSm90a && config.divides_rows() && spec.has_fp8_pool())
    return {"tile/widened_wgmma_product.cuh",
            fmt::format("WidenedWgmmaProduct<{}, {}, {}>", type, fp8_format(spec), spec.head_dim)};
  if (config.family == Family::kSm90a && config.divides_rows())
    return {
        "tile/wgmma_product.cuh",
        fmt::format("{}WgmmaProduct<{}, {}>", spec.scaled ? "Scaled" : "", type, spec.head_dim)};
  if (config.family == Family::kSm90a)
    return {"tile/wgmma_product.cuh",
            fmt::format("TransposedWgmmaProduct<{}, {}, {}, {}, {}>", type, spec.head_dim,
                        config.warp_m, config.heads / config.warps_m, config.heads)};
  if (!spec.has_fp8_pool())
    return {"tile/warp_product.cuh", fmt::format("WarpProduct<{}, {}>", type, spec.head_dim)};
  return {"tile/fp8_product.cuh",
          fmt::format("{}<{}, {}, {}>", config.divides_rows() ? "WidenedProduct" : "Fp8Product",
                      type, fp8_format(spec), spec.head_dim)};
}

// Returns the wgmma shapes for which templates/isa/ptx/wgmma.cuh must define products.
std::string wgmma_shapes(const KernelSpec& spec, const TileConfig& config) {
  if (config.family != Family::kSm90a) return "";
  if (!config.divides_rows()) return fmt::format("use({})", config.rows_per_head());
  const int row_columns =
      uses_float8(spec, config) ? spec.head_dim : lazyrope::row_columns(spec.head_dim);
  std::set<int> columns = {config.block_n(), columns_at_once(row_columns)};
  constexpr int kRunsAtOnce = 8;  // products that add up the weights of each run, where they do
  if (spec.page_mass && !uses_float8(spec, config)) columns.insert(kRunsAtOnce);
  std::string text;
  for (const int shape : columns) text += fmt::format("use({})", shape);
  return text;
}

// Returns the value of LAZYROPE_REREADS_TID (templates/isa/ptx/launch.cuh), which says what indices
// a kernel reads again at each use. Measurements chose the values: rereading helps where registers
// are scarce.
int rereads_tid(const TileConfig& config) {
  if (config.family != Family::kSm90a) return 2;
  return config.divides_rows() ? 1 : 0;
}

// Returns the store that append uses for the pool's elements.
TemplateType store_type(const KernelSpec& spec) {
  const std::string_view type = element(spec.dtype);
  if (!spec.has_fp8_pool()) return {"ops/store/same.cuh", fmt::format("SameStore<{}>", type)};
  return {"ops/store/fp8.cuh", fmt::format("Fp8Store<{}, {}>", type, fp8_format(spec))};
}

// Returns the store that reposition uses, which loads from the pool what it stores there.
TemplateType moved_store_type(const KernelSpec& spec) {
  if (!spec.has_fp8_pool()) return store_type(spec);
  return {"ops/store/moved_fp8.cuh",
          fmt::format("MovedFp8Store<{}, {}>", element(spec.dtype), fp8_format(spec))};
}

// Returns the name of the kernel's class in templates/family.
std::string kernel_class(const TileConfig& config) {
  return fmt::format("{}{}", config.family == Family::kSm90a ? "Sm90a" : "Sm80",
                     config.divides_rows() ? "Prefill" : "Decode");
}

// Returns a float literal that reads back as the same value.
std::string literal(double value) { return fmt::format("{:.9e}f", value); }

TemplateValues rope_values(const KernelSpec& spec, const RopeTable& table) {
  const RopeVariant rope = rope_variant(spec.rope.variant);
  return {{"rope", rope.pairing},
          {"rope_revolutions", text_of(table)},
          {"rotary_dim", fmt::to_string(spec.rope.rotary_dim)},
          {"attention_factor", literal(rope.attention_factor(spec.rope.parameters))},
          {"head_dim", fmt::to_string(spec.head_dim)},
          {"element", std::string(element(spec.dtype))}};
}

// Returns the parameters' values in the order of the mask's row.
std::string mask_arguments(const KernelSpec& spec) {
  std::vector<int> values;
  for (const MaskParameter& parameter : mask_variant(spec.mask).parameters)
    values.push_back(value_of(parameter, spec.mask_parameters));
  return fmt::format("{}", fmt::join(values, ", "));
}

// Queries that arrive rotated have their temperature already.
TemplateValues temperature_values(const KernelSpec& spec) {
  const bool applies = spec.temperature && spec.query_form == RopeForm::kRaw;
  const QueryTemperature given = applies ? *spec.temperature : QueryTemperature{0.0, 1, 0};
  return {{"has_temperature", applies ? "true" : "false"},
          {"temperature_beta", literal(given.beta)},
          {"temperature_interval", fmt::to_string(given.interval)},
          {"temperature_offset", fmt::to_string(given.offset)}};
}

struct Launch {
  std::string file;
  TemplateValues values;
  int threads;
  int ctas_per_sm;
  int shared_bytes;
  RopeTable rope_table = {};
};

// Returns the spec of a shared step, whose segments every query sees. Its queries come as the
// caller's do, and are rotated by the positions that the share kernel gives them.
KernelSpec shared_spec(KernelSpec spec) {
  spec.mask = "full";
  spec.mask_parameters.clear();
  spec.sinks = false;
  spec.temperature.reset();
  return spec;
}

// Returns the file that tells whether kernels measure page mass, and how attend does it.
std::string page_mass_file(const KernelSpec& spec) {
  return fmt::format("ops/page_mass/{}.cuh", spec.page_mass ? "measured" : "none");
}

std::string key_bias_file(const KernelSpec& spec) {
  return fmt::format("ops/key_bias/{}.cuh", spec.key_bias ? "added" : "none");
}

// Returns the file that tells whether kernels attend to attention states.
std::string states_file(const KernelSpec& spec) {
  return fmt::format("ops/states/{}.cuh", spec.states ? "scanned" : "none");
}

// A kernel's part in the cascade (templates/abi/cascade.h).
enum class CascadeRole { kNone, kDefers, kIsShared };

// Returns the role of decode and prefill.
CascadeRole role_of(const KernelSpec& spec) {
  return spec.cascade ? CascadeRole::kDefers : CascadeRole::kNone;
}

// Prefill has two kernels if keys may be packed, one for the pool and one for the scratch. A step
// uses one of them. The other one has no work, and ends early.
Launch attend_launch(const KernelSpec& spec, const TileConfig& config, CascadeRole role,
                     bool is_prefill, bool ends_early = false) {
  RopeTable table = revolutions_per_token(spec);
  TemplateValues values = rope_values(spec, table);
  values.merge(temperature_values(spec));
  // In a shared step the positions of rotated queries differ, because those of their documents do.
  const bool is_rotated = spec.query_form == RopeForm::kRotated;
  // Prefill comes first, then decode. Decode's CTAs let those of the shared step start on the SMs
  // that they leave.
  const bool lets_next_start = role == CascadeRole::kDefers && !is_prefill;
  const bool rotates_by_base = is_rotated && role != CascadeRole::kIsShared;
  TemplateType product = product_type(spec, config);
  const int shared_bytes = config.shared_bytes(spec);
  values.insert({{"product_file", std::move(product.file)},
                 {"product", std::move(product.name)},
                 {"kernel_file", fmt::format("family/{}/{}_kernel.cuh", to_string(config.family),
                                             config.divides_rows() ? "prefill" : "decode")},
                 {"kernel_class", kernel_class(config)},
                 {"wgmma_shapes", wgmma_shapes(spec, config)},
                 {"rereads_tid", fmt::to_string(rereads_tid(config))},
                 {"ends_early", ends_early ? "1" : "0"},
                 {"page_mass", page_mass_file(spec)},
                 {"key_bias", key_bias_file(spec)},
                 {"states", states_file(spec)},
                 {"mask", mask_variant(spec.mask).file},
                 {"mask_arguments", mask_arguments(spec)},
                 {"softcap", literal(spec.softcap)},
                 {"sinks", spec.sinks ? "true" : "false"},
                 {"kernel_macro",
                  role == CascadeRole::kIsShared ? "LAZYROPE_EARLY_KERNEL" : "LAZYROPE_KERNEL"},
                 {"is_shared", role == CascadeRole::kIsShared ? "true" : "false"},
                 {"defers", role == CascadeRole::kDefers ? "true" : "false"},
                 {"lets_next_start", lets_next_start ? "true" : "false"},
                 {"group_size", fmt::to_string(spec.group_size)},
                 {"raw_keys", spec.key_form == KeyForm::kRaw ? "true" : "false"},
                 {"query_rotated", rotates_by_base ? "true" : "false"},
                 {"query_factor", is_rotated ? literal(1.0) : values.at("attention_factor")},
                 {"warps_m", fmt::to_string(config.warps_m)},
                 {"warps_n", fmt::to_string(config.warps_n)},
                 {"warp_m", fmt::to_string(config.warp_m)},
                 {"warp_n", fmt::to_string(config.warp_n)},
                 {"mma_n", fmt::to_string(config.mma_n)},
                 {"stages", fmt::to_string(config.stages)},
                 {"heads", fmt::to_string(config.heads)},
                 {"ctas_per_sm", fmt::to_string(config.ctas_per_sm)}});
  return {"kernel/attend.cu.in", std::move(values), config.threads(spec.head_dim),
          config.ctas_per_sm,    shared_bytes,      std::move(table)};
}

Launch plan_launch(const KernelSpec& spec, const KernelConfig& config) {
  return {
      "kernel/plan.cu.in",
      {{"page_mass", page_mass_file(spec)},
       {"states", states_file(spec)},
       {"mask", mask_variant(spec.mask).file},
       {"mask_arguments", mask_arguments(spec)},
       {"group_size", fmt::to_string(spec.group_size)},
       {"fixed_splits", config.fixed_split_blocks > 0 ? "true" : "false"},
       {"joins_heads", config.heads_per_work_tile > 1 ? "true" : "false"},
       {"equal_splits", config.equal_splits && config.fixed_split_blocks == 0 ? "true" : "false"},
       {"cascade", spec.cascade ? "true" : "false"},
       {"params", spec.cascade ? "CascadePlanParams" : "PlanParams"}},
      kPlanThreads,
      1,
      kPlanSharedBytes};
}

Launch share_launch(const KernelSpec& spec) {
  return {"kernel/share.cu.in",
          {{"mask", mask_variant(spec.mask).file},
           {"mask_arguments", mask_arguments(spec)},
           {"query_rotated", spec.query_form == RopeForm::kRotated ? "true" : "false"}},
          kShareThreads,
          1,
          kShareSharedBytes};
}

Launch combine_shared_launch(const KernelSpec& spec) {
  return {"kernel/combine_shared.cu.in",
          {{"head_dim", fmt::to_string(spec.head_dim)},
           {"group_size", fmt::to_string(spec.group_size)},
           {"element", std::string(element(spec.dtype))},
           {"scaled", spec.has_fp8_pool() ? "true" : "false"},
           {"ctas_per_sm", fmt::to_string(kCombineSharedCtasPerSm)}},
          kCombineSharedThreads,
          kCombineSharedCtasPerSm,
          0};
}

Launch append_launch(const KernelSpec& spec) {
  const bool rotates = spec.append_form == RopeForm::kRaw && spec.key_form == KeyForm::kLocal;
  RopeTable table = rotates ? revolutions_per_token(spec) : RopeTable();
  TemplateValues values = rope_values(spec, table);
  TemplateType store = store_type(spec);
  values.insert({{"store_file", std::move(store.file)}, {"store", std::move(store.name)}});
  values.emplace("rotates_keys", rotates ? "true" : "false");
  return {"kernel/append.cu.in", std::move(values), kAppendThreads, 1, 0, std::move(table)};
}

Launch reposition_launch(const KernelSpec& spec) {
  RopeTable table = revolutions_per_token(spec);
  TemplateValues values = rope_values(spec, table);
  values.erase("attention_factor");  // stored keys have it already
  values.emplace("rotates_keys", spec.key_form == KeyForm::kLocal ? "true" : "false");
  TemplateType store = moved_store_type(spec);
  values.insert({{"store_file", std::move(store.file)}, {"store", std::move(store.name)}});
  return {"kernel/reposition.cu.in", std::move(values), kAppendThreads, 1, 0, std::move(table)};
}

Launch plan_rotation_launch(const KernelSpec& spec) {
  const std::string_view file =
      spec.packed_prefill ? "kernel/plan_packing.cu.in" : "kernel/plan_rotation.cu.in";
  return {std::string(file), {}, kPlanRotationThreads, 1, kPlanRotationSharedBytes};
}

Launch rotate_keys_launch(const KernelSpec& spec) {
  RopeTable table = revolutions_per_token(spec);
  TemplateValues values = rope_values(spec, table);
  values.emplace("source", spec.packed_prefill ? "PackedSlots" : "RawRuns");
  TemplateType store = moved_store_type(spec);
  values.insert({{"store_file", std::move(store.file)}, {"store", std::move(store.name)}});
  if (spec.packed_prefill) values["attention_factor"] = literal(1.0);  // local keys have it already
  values.emplace("ctas_per_sm", fmt::to_string(kRotateKeysCtasPerSm));
  return {"kernel/rotate_keys.cu.in",
          std::move(values),
          kRotateKeysThreads,
          kRotateKeysCtasPerSm,
          0,
          std::move(table)};
}

Launch sum_page_mass_launch() {
  return {"kernel/sum_page_mass.cu.in",
          {{"ctas_per_sm", fmt::to_string(kSumPageMassCtasPerSm)}},
          kSumPageMassThreads,
          kSumPageMassCtasPerSm,
          kSumPageMassSharedBytes};
}

// Returns the config that a kernel of this kind has its tile from.
KernelConfig config_of(KernelKind kind, const KernelSpec& spec, const KernelConfig& config,
                       const Arch& arch) {
  if (kind != KernelKind::kAttendRotated) return config;
  return rotated_keys_config(spec, arch).value();
}

void check_kind(KernelKind kind, const KernelSpec& spec, const Arch& arch) {
  const std::vector<KernelKind> kinds = kernel_kinds(spec, arch);
  if (std::ranges::find(kinds, kind) != kinds.end()) return;
  if (kind >= KernelKind::kShare && kind <= KernelKind::kCombineShared)
    throw SpecError(
        fmt::format("kernel {}: the spec has none; specs with a cascade have it", to_string(kind)));
  if (kind == KernelKind::kPlanPageMass || kind == KernelKind::kSumPageMass)
    throw SpecError(
        fmt::format("kernel {}: the spec has none; specs with page_mass have it", to_string(kind)));
  throw SpecError(
      fmt::format("kernel {}: the spec has none on {} (key_form = \"{}\"); raw keys have it where "
                  "local keys have a prefill kernel of family sm90a, but for batch_invariant specs",
                  to_string(kind), arch.name, to_string(spec.key_form)));
}

Launch launch_of(KernelKind kind, const KernelSpec& spec, const KernelConfig& config) {
  switch (kind) {
    case KernelKind::kPlan:
      return plan_launch(spec, config);
    case KernelKind::kAttendDecode:
      return attend_launch(spec, config.decode, role_of(spec), /*is_prefill=*/false);
    case KernelKind::kAttendPrefill:
      return attend_launch(spec, config.prefill, role_of(spec), /*is_prefill=*/true,
                           spec.packed_prefill);
    case KernelKind::kPlanAppend:
      return {"kernel/plan_append.cu.in", {}, kAppendThreads, 1, 0};
    case KernelKind::kAppend:
      return append_launch(spec);
    case KernelKind::kShare:
      return share_launch(spec);
    case KernelKind::kAttendShared:
      return attend_launch(shared_spec(spec), config.prefill, CascadeRole::kIsShared,
                           /*is_prefill=*/true);
    case KernelKind::kCombineShared:
      return combine_shared_launch(spec);
    case KernelKind::kPlanRotation:
      return plan_rotation_launch(spec);
    case KernelKind::kRotateKeys:
      return rotate_keys_launch(spec);
    case KernelKind::kAttendRotated:
      return attend_launch(rotated_keys_spec(spec), config.prefill, CascadeRole::kNone,
                           /*is_prefill=*/true, spec.packed_prefill);
    case KernelKind::kPlanPageMass:
      return {"kernel/plan_page_mass.cu.in", {}, kPlanPageMassThreads, 1, kPlanPageMassSharedBytes};
    case KernelKind::kSumPageMass:
      return sum_page_mass_launch();
    case KernelKind::kReposition:
      return reposition_launch(spec);
  }
  throw SpecError(fmt::format("kernel kind {} does not exist", static_cast<int>(kind)));
}

// Returns describe() of the spec. A kernel with a table serves all variants of its pairing, so the
// name of the pairing ("half" for ops/rope/half.cuh) stands for that of the variant.
std::string described(KernelSpec spec, const RopeTable& table) {
  if (table.empty()) return describe(spec);
  const std::string pairing = rope_variant(spec.rope.variant).pairing;
  const std::size_t begin = pairing.rfind('/') + 1;
  spec.rope.variant = pairing.substr(begin, pairing.rfind('.') - begin);
  return describe(spec);
}

}  // namespace

std::string_view to_string(KernelKind kind) { return kNames.at(static_cast<std::size_t>(kind)); }

std::vector<KernelKind> kernel_kinds() {
  std::vector<KernelKind> kinds;
  kinds.reserve(kKernelKinds);
  for (int i = 0; i < kKernelKinds; ++i) kinds.push_back(static_cast<KernelKind>(i));
  return kinds;
}

std::vector<KernelKind> attention_kernels() {
  using enum KernelKind;
  return {kPlan, kAttendDecode, kAttendPrefill, kPlanAppend, kAppend};
}

std::vector<KernelKind> attention_kernels(const KernelSpec& spec, const Arch& arch) {
  using enum KernelKind;
  std::vector<KernelKind> kinds = attention_kernels();
  if (spec.cascade) kinds.insert(kinds.end(), {kShare, kAttendShared, kCombineShared});
  if (rotated_keys_config(spec, arch))
    kinds.insert(kinds.end(), {kPlanRotation, kRotateKeys, kAttendRotated});
  if (spec.page_mass) kinds.insert(kinds.end(), {kPlanPageMass, kSumPageMass});
  return kinds;
}

std::vector<KernelKind> kernel_kinds(const KernelSpec& spec, const Arch& arch) {
  std::vector<KernelKind> kinds = attention_kernels(spec, arch);
  kinds.push_back(KernelKind::kReposition);
  return kinds;
}

RenderedKernel with_rope_table(RenderedKernel rendered, RopeTable table) {
  const std::string present = fmt::format("{{{}}}", text_of(rendered.rope_table));
  const std::size_t at = rendered.source.find(present);
  if (table.size() != rendered.rope_table.size() || at == std::string::npos ||
      rendered.source.find(present, at + 1) != std::string::npos)
    throw SpecError(fmt::format("the source of {} does not have one table of {} words",
                                rendered.entry, table.size()));
  rendered.source.replace(at, present.size(), fmt::format("{{{}}}", text_of(table)));
  rendered.rope_table = std::move(table);
  return rendered;
}

RenderedKernel render(KernelKind kind, const KernelSpec& spec, const KernelConfig& config,
                      const Arch& arch) {
  validate(spec);
  validate(config, spec, arch);
  check_kind(kind, spec, arch);
  const KernelConfig used_config = config_of(kind, spec, config, arch);
  Launch launch = launch_of(kind, spec, used_config);
  std::string entry = fmt::format("lazyrope_{}", to_string(kind));
  launch.values.insert({{"entry", entry}, {"threads", fmt::to_string(launch.threads)}});
  // A kernel for the emulator keeps its own table, because the host's compiler computes with it.
  if (arch.isa == "emu") launch.rope_table.clear();
  return {kind,
          expand_template(launch.file, launch.values, arch.isa),
          std::move(entry),
          launch.threads,
          launch.ctas_per_sm,
          launch.shared_bytes,
          described(spec, launch.rope_table),
          describe(used_config),
          std::move(launch.rope_table)};
}

}  // namespace lazyrope
