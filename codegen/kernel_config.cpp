#include "codegen/kernel_config.h"

#include <fmt/format.h>

#include "templates/abi/shared_layout.h"

namespace lazyrope {
namespace {

Sm90aShape sm90a_shape(const TileConfig& config, int head_dim, int kv_bytes, BiasForm bias,
                       bool states, bool float8, bool page_mass) {
  return with_fitting_biases(
      {.head_dim = head_dim,
       .block_m = config.block_m(),
       .block_n = config.block_n(),
       .stages = config.stages,
       .heads = config.heads,
       .warpgroups = config.divides_rows() ? config.warps_m / kWarpsPerWarpgroup : config.warps_m,
       .is_prefill = config.divides_rows(),
       .widens = kv_bytes == 1 && !float8,
       .key_bias = bias != BiasForm::kNone,
       .multiplies_bias = bias == BiasForm::kMultiplied && config.divides_rows(),
       .states = states,
       .page_mass = page_mass,
       .float8 = float8 && config.divides_rows()});
}

Sm80PrefillShape sm80_prefill_shape(const TileConfig& config, int head_dim, int kv_bytes,
                                    bool states) {
  return {.head_dim = head_dim,
          .warps_m = config.warps_m,
          .warp_m = config.warp_m,
          .block_n = config.warp_n,
          .stages = config.stages,
          .kv_bytes = kv_bytes,
          .states = states};
}

Sm80DecodeShape sm80_decode_shape(const TileConfig& config, int head_dim, int kv_bytes,
                                  bool key_bias, bool states) {
  return {.head_dim = head_dim,
          .warps_n = config.warps_n,
          .block_m = config.block_m(),
          .warp_n = config.warp_n,
          .stages = config.stages,
          .kv_bytes = kv_bytes,
          .key_bias = key_bias,
          .states = states};
}

}  // namespace

// A product adds the bias to logits. So queries must include the softmax scale, which they do in
// bf16 if all columns are rotated (kScalesQueries, templates/family/sm90a/tile_memory.cuh).
BiasForm bias_form(const KernelSpec& spec) {
  if (!spec.key_bias) return BiasForm::kNone;
  const bool scales_queries = spec.dtype == Dtype::kBf16 && spec.rope.rotary_dim == spec.head_dim &&
                              spec.compute == Compute::kDtype;
  const bool multiplies = scales_queries && spec.softcap == 0.0 && !spec.has_fp8_pool();
  return multiplies ? BiasForm::kMultiplied : BiasForm::kAdded;
}

int TileConfig::threads(int head_dim) const {
  const int producers = family == Family::kSm90a ? producer_warps(divides_rows(), head_dim) : 0;
  return (warps_m * warps_n + producers) * kThreadsPerWarp;
}

int TileConfig::shared_bytes(int head_dim, int kv_bytes, BiasForm bias, bool states, bool float8,
                             bool page_mass) const {
  if (family == Family::kSm90a)
    return layout_of(sm90a_shape(*this, head_dim, kv_bytes, bias, states, float8, page_mass)).bytes;
  if (divides_rows()) return layout_of(sm80_prefill_shape(*this, head_dim, kv_bytes, states)).bytes;
  const bool key_bias = bias != BiasForm::kNone;
  return layout_of(sm80_decode_shape(*this, head_dim, kv_bytes, key_bias, states)).bytes;
}

int TileConfig::shared_bytes(const KernelSpec& spec) const {
  return shared_bytes(spec.head_dim, bytes_of(spec.pool_dtype()), bias_form(spec), spec.states,
                      spec.compute == Compute::kFloat8, spec.page_mass);
}

int TileConfig::saved_query_bytes(int head_dim) const {
  const bool saves = family == Family::kSm90a && consumers_rotate(divides_rows(), head_dim);
  return saves ? block_m() * head_dim * kQueryElementBytes : 0;
}

std::string describe(const TileConfig& config) {
  return fmt::format("{}{}x{} warps, {} rows x {} keys{}, {} stages, {}/SM",
                     config.family == Family::kSm90a ? "wgmma, " : "", config.warps_m,
                     config.warps_n, config.block_m(), config.block_n(),
                     config.heads > 1 ? fmt::format(" of {} heads", config.heads) : "",
                     config.stages, config.ctas_per_sm);
}

std::string describe(const KernelConfig& config) {
  std::string text =
      fmt::format("decode {}; prefill {}", describe(config.decode), describe(config.prefill));
  if (config.share_above_kib != KernelConfig{}.share_above_kib)
    text += fmt::format("; shared above {} KiB", config.share_above_kib);
  if (!config.equal_splits) text += "; no equal splits";
  return text;
}

}  // namespace lazyrope
