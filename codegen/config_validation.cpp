// A config is legal if the templates have its kernels and an SM of the arch has room for them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "codegen/config_table.h"
#include "codegen/error.h"
#include "codegen/kernel_config.h"
#include "templates/abi/shared_layout.h"

namespace lazyrope {
namespace {

constexpr int kMaxThreads = 1024;

// Returns the head_dims that family sm90a has kernels for. With a pool of 8 bits it has only
// prefill kernels, and only those whose query rotators can also widen keys and values.
std::vector<int> sm90a_head_dims(bool is_prefill, int kv_bytes) {
  if (kv_bytes == 1) return is_prefill ? std::vector{64, 96, 128} : std::vector<int>{};
  return is_prefill ? std::vector{64, 72, 80, 96, 112, 128, 160, 192, 256}
                    : std::vector{64, 128, 192, 256};
}

// Rejects tiles for which the family has no kernel of 8-bit products.
void check_compute(const TileConfig& prefill, const KernelSpec& spec) {
  if (spec.compute == Compute::kDtype || prefill.family == Family::kSm90a) return;
  throw SpecError(
      R"(kernel config: prefill.family = sm80 with compute = "float8"; products of 8 bits have )"
      "prefill kernels of family sm90a alone");
}

// Checks one tile of a config. Errors name the tile and the member.
class TileConfigCheck {
 public:
  TileConfigCheck(std::string_view name, const TileConfig& config, const KernelSpec& spec)
      : name_(name),
        tile_(config),
        head_dim_(spec.head_dim),
        kv_bytes_(bytes_of(spec.pool_dtype())),
        states_(spec.states),
        has_odd_kv_heads_(spec.has_odd_kv_heads),
        bias_(bias_form(spec)),
        page_mass_(spec.page_mass),
        float8_(spec.compute == Compute::kFloat8) {}

  void shape() const {
    one_of("heads", tile_.heads, allowed_heads());
    if (tile_.family == Family::kSm90a) return sm90a_shape();
    at_least("warps_m", tile_.warps_m, 1);
    at_least("warps_n", tile_.warps_n, 1);
    at_least("ctas_per_sm", tile_.ctas_per_sm, 1);
    one_of("warp_m", tile_.warp_m, {16, 32, 48, 64});
    at_most("ctas_per_sm", tile_.ctas_per_sm, 32);
    multiple_of("mma_n", tile_.mma_n, product_keys());
    one_of("warp_n", tile_.warp_n, {16, 32, 64, 128, 256});
    if (tile_.warp_n % tile_.mma_n != 0)
      refuse("mma_n", tile_.mma_n, fmt::format("it must divide warp_n = {}", tile_.warp_n));
    if (tile_.warps_m > 1 && tile_.warps_n > 1)
      refuse("warps_n", tile_.warps_n,
             fmt::format("with warps_m = {} it must be 1", tile_.warps_m));
    if (!tile_.divides_rows() && tile_.mma_n != tile_.warp_n)
      refuse("mma_n", tile_.mma_n,
             fmt::format("with warps_m = 1 it must be warp_n = {}", tile_.warp_n));
    if (tile_.warps_n * kThreadsPerWarp > kMaxThreads)
      refuse("warps_n", tile_.warps_n, "a CTA has at most 32 warps");
    one_of("warps_m", tile_.warps_m, ring_warps());
    at_least("stages", tile_.stages, 2);
    if (const int max = max_stages(); tile_.stages > max)
      refuse("stages", tile_.stages,
             fmt::format("with warp_n = {} it must be at most {}", tile_.warp_n, max));
  }

  void fits(const Arch& arch) const {
    if (!has_family(arch, tile_.family))
      throw SpecError(fmt::format("kernel config: {}.family = {}; {} has only {}", name_,
                                  to_string(tile_.family), arch.name, to_string(arch.family)));
    const int bytes = tile_.shared_bytes(head_dim_, kv_bytes_, bias_, states_, float8_, page_mass_);
    if (bytes > arch.shared_per_block)
      throw SpecError(
          fmt::format("kernel config: {} needs {} bytes of shared memory; a CTA has {} on {}",
                      name_, bytes, arch.shared_per_block, arch.name));
    if (tile_.ctas_per_sm * (bytes + kReservedSharedPerBlock) > arch.shared_per_sm)
      refuse("ctas_per_sm", tile_.ctas_per_sm,
             fmt::format("each CTA needs {} bytes of the {} that an SM of {} has", bytes,
                         arch.shared_per_sm, arch.name));
  }

 private:
  void sm90a_shape() const {
    // Decode has one warpgroup, or one for each of two heads. Prefill has two warpgroups.
    one_of("warps_m", tile_.warps_m,
           tile_.heads == 2 ? std::vector{1, 2} : std::vector{1, kSm90aPrefillWarps});
    one_of("warps_n", tile_.warps_n, {tile_.warps_m == kSm90aPrefillWarps ? 1 : 4});
    if (tile_.divides_rows() && states_)
      throw SpecError(fmt::format(
          "kernel config: {}.family = sm90a with states; prefill of states has family sm80 alone",
          name_));
    if (tile_.divides_rows()) {
      one_of("warp_m", tile_.warp_m, {16});
      // With a pool of 8 bits, each of four warps widens whole runs of 16 keys. For products of 8
      // bits it transposes the values of 32 keys. A stage of 112 padded rows would not end with a
      // swizzle atom.
      one_of("warp_n", tile_.warp_n,
             float8_                ? std::vector{128}
             : kv_bytes_ == 1       ? std::vector{64, 128}
             : is_padded(head_dim_) ? std::vector{64, 96, 128}
                                    : std::vector{64, 96, 112, 128});
      one_of("ctas_per_sm", tile_.ctas_per_sm, {1});
    } else {
      one_of("warp_m", tile_.warp_m, {16, 32});
      one_of("warp_n", tile_.warp_n, {16});
      one_of("ctas_per_sm", tile_.ctas_per_sm, {1, 2});
    }
    one_of("mma_n", tile_.mma_n, {tile_.warp_n});
    at_least("stages", tile_.stages, 2);
    at_most("stages", tile_.stages, 8);
    const std::vector<int> head_dims = sm90a_head_dims(tile_.divides_rows(), kv_bytes_);
    if (std::ranges::find(head_dims, head_dim_) == head_dims.end())
      throw SpecError(fmt::format(
          "kernel config: {}.family = sm90a with head_dim = {} and a pool of {} bits; sm90a then "
          "has kernels for {}",
          name_, head_dim_, 8 * kv_bytes_,
          head_dims.empty() ? "prefill alone"
                            : fmt::format("head_dim = {}", fmt::join(head_dims, ", "))));
  }

  std::vector<int> allowed_heads() const {
    const bool may_pair = tile_.family == Family::kSm90a && !tile_.divides_rows() &&
                          head_dim_ == 64 && !has_odd_kv_heads_;
    return may_pair ? std::vector{1, 2} : std::vector{1};
  }

  // Returns the number of which mma_n must be a multiple: tile/warp_product.cuh,
  // tile/fp8_product.cuh.
  int product_keys() const { return kv_bytes_ == 2 || tile_.divides_rows() ? 16 : 32; }

  // Returns the most stages, which the block table limits: it is filled one window of blocks at a
  // time. A block of decode has two stages, one for keys and one for values. Prefill copies blocks
  // up to half a window ahead.
  int max_stages() const {
    const int window = kThreadsPerWarp * kRunSlots / tile_.warp_n / (states_ ? 2 : 1);
    return tile_.divides_rows() ? window / 2 + 1 : window;
  }

  // Returns the allowed numbers of warps that load one ring together. They must copy at least one
  // row at a time, a chunk of 16 bytes for each thread.
  std::vector<int> ring_warps() const {
    std::vector<int> result;
    for (int warps = 1; warps * kThreadsPerWarp <= kMaxThreads; ++warps)
      if (warps * kThreadsPerWarp >= shared_row_chunks(head_dim_, kv_bytes_))
        result.push_back(warps);
    return result;
  }

  [[noreturn]] void refuse(std::string_view member, int value, const std::string& why) const {
    throw SpecError(fmt::format("kernel config: {}.{} = {}; {}", name_, member, value, why));
  }
  void at_least(std::string_view member, int value, int min) const {
    if (value < min) refuse(member, value, fmt::format("it must be at least {}", min));
  }
  void at_most(std::string_view member, int value, int max) const {
    if (value > max) refuse(member, value, fmt::format("it must be at most {}", max));
  }
  void multiple_of(std::string_view member, int value, int unit) const {
    if (value < unit || value % unit != 0)
      refuse(member, value, fmt::format("it must be a multiple of {}", unit));
  }
  void one_of(std::string_view member, int value, const std::vector<int>& allowed) const {
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
      refuse(member, value, fmt::format("allowed are {}", fmt::join(allowed, ", ")));
  }

  std::string_view name_;
  const TileConfig& tile_;
  int head_dim_;
  int kv_bytes_;
  bool states_;  // the blocks of entries have twice the runs (templates/abi/states.h)
  bool has_odd_kv_heads_;
  BiasForm bias_;
  bool page_mass_;
  bool float8_;
};

void validate_tiles(const KernelConfig& config, const KernelSpec& spec, const Arch& arch) {
  for (const auto& [name, attend] :
       {std::pair{"decode", config.decode}, {"prefill", config.prefill}}) {
    const TileConfigCheck check(name, attend, spec);
    check.shape();
    check.fits(arch);
  }
  const bool is_sm90a =
      config.decode.family == Family::kSm90a || config.prefill.family == Family::kSm90a;
  if (spec.key_form == KeyForm::kRaw && is_sm90a)
    throw SpecError(
        "kernel config: family = sm90a with key_form = \"raw\"; raw keys have kernels of family "
        "sm80 alone");
  if (config.min_split_blocks < 1)
    throw SpecError(fmt::format("kernel config: min_split_blocks = {}; it must be at least 1",
                                config.min_split_blocks));
  if (config.heads_per_work_tile < 1)
    throw SpecError(fmt::format("kernel config: heads_per_work_tile = {}; it must be at least 1",
                                config.heads_per_work_tile));
  if (config.fixed_split_blocks < 0)
    throw SpecError(fmt::format(
        "kernel config: fixed_split_blocks = {}; it must be at least 1, or 0 for no fixed splits",
        config.fixed_split_blocks));
  if (config.share_above_kib < 0)
    throw SpecError(fmt::format("kernel config: share_above_kib = {}; it must be at least 0",
                                config.share_above_kib));
  if (spec.batch_invariant && config.fixed_split_blocks == 0)
    throw SpecError(
        "kernel config: fixed_split_blocks = 0; with batch_invariant it must be at least 1");
}

}  // namespace

std::vector<int> float8_head_dims() { return sm90a_head_dims(/*is_prefill=*/true, 1); }

void validate(const KernelConfig& config, const KernelSpec& spec, const Arch& arch) {
  validate_tiles(config, spec, arch);
  check_compute(config.prefill, spec);
}

std::string tile_error(const KernelConfig& config, const KernelSpec& spec, const Arch& arch) {
  try {
    validate_tiles(config, spec, arch);
    return "";
  } catch (const SpecError& error) {
    return error.what();
  }
}

bool is_legal(const KernelConfig& config, const KernelSpec& spec, const Arch& arch) {
  try {
    validate(config, spec, arch);
    return true;
  } catch (const SpecError&) {
    return false;
  }
}

}  // namespace lazyrope
