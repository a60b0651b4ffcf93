#include "codegen/kernel_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "codegen/error.h"
#include "codegen/kernel_config.h"
#include "codegen/nearest_name.h"

namespace lazyrope {
namespace {

constexpr double kMinSoftcap = 1e-3;
constexpr double kMaxSoftcap = 1e3;  // capped scores of fp32 are then exact to 3e-4
constexpr int kMaxGroupSize = 128;   // more than any published model has
constexpr double kMinBeta = 1e-6;
constexpr double kMaxBeta = 1e3;
constexpr int kMaxInterval = 1 << 30;

template <class Enum>
struct Named {
  std::string_view name;
  Enum value;
};

constexpr std::array kDtypes = {Named{"bfloat16", Dtype::kBf16}, Named{"float16", Dtype::kFp16}};
// The names are PyTorch's.
constexpr std::array kKvDtypes = {Named{"bfloat16", Dtype::kBf16}, Named{"float16", Dtype::kFp16},
                                  Named{"float8_e4m3fn", Dtype::kFp8E4m3},
                                  Named{"float8_e5m2", Dtype::kFp8E5m2}};
constexpr std::array kRopeForms = {Named{"raw", RopeForm::kRaw},
                                   Named{"rotated", RopeForm::kRotated}};
constexpr std::array kKeyForms = {Named{"local", KeyForm::kLocal}, Named{"raw", KeyForm::kRaw}};
constexpr std::array kComputes = {Named{"dtype", Compute::kDtype},
                                  Named{"float8", Compute::kFloat8}};

template <class Enum, std::size_t kCount>
std::string_view name_of(const std::array<Named<Enum>, kCount>& table, Enum value) {
  for (const Named<Enum>& row : table)
    if (row.value == value) return row.name;
  return "?";
}

template <class Enum, std::size_t kCount>
Enum value_of(const std::array<Named<Enum>, kCount>& table, std::string_view what,
              std::string_view name) {
  std::vector<std::string> names;
  for (const Named<Enum>& row : table) {
    if (row.name == name) return row.value;
    names.emplace_back(row.name);
  }
  throw SpecError(fmt::format("{} = \"{}\"{}; allowed are: {}", what, name,
                              did_you_mean(name, names), fmt::join(names, ", ")));
}

// Kernels copy 16 bytes at a time, so a row of 8-bit elements must have a multiple of 16 columns.
void validate_kv_dtype(const KernelSpec& spec) {
  const Dtype kv_dtype = spec.pool_dtype();
  if (!spec.has_fp8_pool() && kv_dtype != spec.dtype)
    throw SpecError(
        fmt::format("kv_dtype = \"{}\" with dtype = \"{}\"; it must be the same, or "
                    "one of 8 bits",
                    to_string(kv_dtype), to_string(spec.dtype)));
  if (spec.has_fp8_pool() && spec.head_dim % 16 != 0)
    throw SpecError(
        fmt::format("head_dim = {} with kv_dtype = \"{}\"; with 8 bits it must be a "
                    "multiple of 16: the nearest are {} and {}",
                    spec.head_dim, to_string(kv_dtype), spec.head_dim / 16 * 16,
                    (spec.head_dim + 15) / 16 * 16));
}

// Kernels rotate raw keys in shared memory, in the pool's own elements.
void validate_key_form(const KernelSpec& spec) {
  if (spec.key_form == KeyForm::kLocal) return;
  if (spec.has_fp8_pool())
    throw SpecError(
        fmt::format(R"(key_form = "raw" with kv_dtype = "{}"; raw keys need a pool of 16 bits)",
                    to_string(spec.pool_dtype())));
  if (spec.append_form == RopeForm::kRotated)
    throw SpecError(
        R"(append_form = "rotated" with key_form = "raw"; raw keys are appended as the model projects )"
        R"(them: append_form = "raw")");
}

void validate(const QueryTemperature& temperature) {
  if (!(temperature.beta >= kMinBeta && temperature.beta <= kMaxBeta))
    throw SpecError(fmt::format("temperature: beta = {}; allowed are {} to {}", temperature.beta,
                                kMinBeta, kMaxBeta));
  if (temperature.interval < 1 || temperature.interval > kMaxInterval)
    throw SpecError(fmt::format("temperature: interval = {} positions; allowed are 1 to {}",
                                temperature.interval, kMaxInterval));
  if (temperature.offset < 0 || temperature.offset > temperature.interval)
    throw SpecError(fmt::format("temperature: offset = {} positions; allowed are 0 to interval, {}",
                                temperature.offset, temperature.interval));
}

// The shared step knows a query's distance from the document, not its position.
void validate_cascade(const KernelSpec& spec) {
  if (!spec.cascade) return;
  if (spec.batch_invariant)
    throw SpecError(
        "cascade with batch_invariant; what a request shares depends on the other requests of its "
        "step: choose one of them");
  if (spec.key_form == KeyForm::kRaw)
    throw SpecError(
        R"(cascade with key_form = "raw"; the kernels of raw keys share no segments: leave one of them out)");
  if (spec.temperature && spec.query_form == RopeForm::kRaw)
    throw SpecError(
        R"(cascade with temperature and query_form = "raw"; multiply the queries by their temperature )"
        R"(before the call and give query_form="rotated", or leave cascade out)");
  if (spec.page_mass)
    throw SpecError(
        "cascade with page_mass; the results of shared segments give no masses of pages: "
        "choose one of them");
}

// A bias is for compact documents, whose tokens are in any slots: a slot then says nothing about
// where a token was in the text.
void validate_key_bias(const KernelSpec& spec) {
  if (!spec.key_bias) return;
  if (spec.mask != "causal" && spec.mask != "full")
    throw SpecError(fmt::format(
        "key_bias with mask = \"{}\"; the mask compares the order of keys, and the slots "
        "of a compact document have none: allowed are causal and full",
        spec.mask));
  if (spec.key_form == KeyForm::kRaw)
    throw SpecError(
        R"(key_bias with key_form = "raw"; kernels rotate raw keys by their slot, and the slots of a )"
        R"(compact document have no order: store local keys)");
}

// Packed keys are keys rotated by their logical positions, in a scratch of 16 bits.
void validate_packed_prefill(const KernelSpec& spec) {
  if (!spec.packed_prefill) return;
  if (spec.key_form == KeyForm::kRaw)
    throw SpecError(
        R"(packed_prefill with key_form = "raw"; steps of raw keys have scratch anyway: leave packed_prefill out)");
  // A rotated pair of such keys may have an element up to sqrt(2) x 57344.
  if (spec.dtype == Dtype::kFp16 && spec.pool_dtype() == Dtype::kFp8E5m2)
    throw SpecError(
        R"(packed_prefill with dtype = "float16" and kv_dtype = "float8_e5m2"; rotated keys may exceed )"
        R"(float16: give kv_dtype = "float8_e4m3fn" or dtype = "bfloat16", or leave packed_prefill out)");
  for (const auto& [is_given, name, why] :
       {std::tuple{spec.batch_invariant, "batch_invariant",
                   "the other requests of a step decide whether its keys are packed"},
        std::tuple{spec.cascade, "cascade", "packed segments are not those that requests share"},
        std::tuple{spec.page_mass, "page_mass", "packed slots are not those of the pages"},
        std::tuple{spec.key_bias, "key_bias", "packing does not copy the biases"}})
    if (is_given)
      throw SpecError(fmt::format("packed_prefill with {}; {}: choose one of them", name, why));
}

// A look-up chooses one entry, and the best of all KV splits is known only when they are combined.
void validate_states(const KernelSpec& spec) {
  if (!spec.states) return;
  const auto refuse = [](std::string_view with, std::string_view why) {
    throw SpecError(fmt::format("states with {}; {}", with, why));
  };
  if (spec.batch_invariant)
    refuse("batch_invariant", "its kernels have no attention states: choose one of them");
  if (!spec.mask_parameters.empty() || (spec.mask != "causal" && spec.mask != "full"))
    refuse(fmt::format("mask = \"{}\"", spec.mask),
           "the entries of a memory have no positions of their own, so a mask cannot hide some of "
           "them: use mask = \"causal\" or \"full\", with no window and no chunk");
  if (spec.key_form == KeyForm::kRaw)
    refuse(R"(key_form = "raw")",
           R"(the kernel would rotate mean queries by their slots: use key_form = "local")");
  if (spec.page_mass)
    refuse("page_mass", "an entry of a memory is no page of tokens: choose one of them");
  if (spec.cascade) refuse("cascade", "shared segments cannot be memories: choose one of them");
  if (spec.key_bias)
    refuse("key_bias", "the entries of a memory have no bias of keys: choose one of them");
  if (spec.packed_prefill)
    refuse("packed_prefill",
           "packing copies tokens, not the entries of a memory: choose one of them");
}

// The products of 8 bits read the pool's own elements (templates/tile/float8_product.cuh).
void validate_compute(const KernelSpec& spec) {
  if (spec.compute == Compute::kDtype) return;
  if (spec.pool_dtype() != Dtype::kFp8E4m3)
    throw SpecError(
        fmt::format(R"(compute = "float8" with kv_dtype = "{}"; products of 8 bits read a pool of )"
                    R"(float8_e4m3fn: give kv_dtype = "float8_e4m3fn")",
                    to_string(spec.pool_dtype())));
  const std::vector<int> head_dims = float8_head_dims();
  if (std::ranges::find(head_dims, spec.head_dim) == head_dims.end())
    throw SpecError(
        fmt::format("compute = \"float8\" with head_dim = {}; products of 8 bits have kernels for "
                    "head_dim = {}",
                    spec.head_dim, fmt::join(head_dims, ", ")));
  if (spec.rope.rotary_dim % 8 != 0)
    throw SpecError(fmt::format(
        "compute = \"float8\" with rotary_dim = {}; with products of 8 bits it must be a "
        "multiple of 8: the nearest are {} and {}",
        spec.rope.rotary_dim, spec.rope.rotary_dim / 8 * 8, (spec.rope.rotary_dim + 7) / 8 * 8));
  for (const auto& [is_given, name, why] :
       {std::tuple{spec.states, "states", "prefill of attention states has no products of 8 bits"},
        std::tuple{spec.cascade, "cascade", "the kernel of shared segments has none of 8 bits"},
        std::tuple{spec.packed_prefill, "packed_prefill",
                   "packed keys have 16 bits, and so have their products"}})
    if (is_given)
      throw SpecError(
          fmt::format("compute = \"float8\" with {}; {}: choose one of them", name, why));
}

}  // namespace

std::string_view to_string(Dtype dtype) { return name_of(kKvDtypes, dtype); }
std::string_view to_string(RopeForm form) { return name_of(kRopeForms, form); }
std::string_view to_string(KeyForm form) { return name_of(kKeyForms, form); }
std::string_view to_string(Compute compute) { return name_of(kComputes, compute); }
Dtype dtype_from(std::string_view name) { return value_of(kDtypes, "dtype", name); }
Dtype kv_dtype_from(std::string_view name) { return value_of(kKvDtypes, "kv_dtype", name); }
int bytes_of(Dtype dtype) { return dtype == Dtype::kBf16 || dtype == Dtype::kFp16 ? 2 : 1; }
RopeForm rope_form_from(std::string_view name) { return value_of(kRopeForms, "form", name); }
KeyForm key_form_from(std::string_view name) { return value_of(kKeyForms, "key_form", name); }
Compute compute_from(std::string_view name) { return value_of(kComputes, "compute", name); }

void validate(const KernelSpec& spec) {
  validate_head_dim(spec.head_dim);
  if (spec.group_size < 1 || spec.group_size > kMaxGroupSize)
    throw SpecError(fmt::format("group_size = {} query heads per KV head; allowed are 1 to {}",
                                spec.group_size, kMaxGroupSize));
  validate(spec.mask, spec.mask_parameters);
  const bool caps_in_fp32 = spec.softcap >= kMinSoftcap && spec.softcap <= kMaxSoftcap;
  if (spec.softcap != 0.0 && !caps_in_fp32)
    throw SpecError(fmt::format("softcap = {}; allowed are {} to {}, and 0 for none", spec.softcap,
                                kMinSoftcap, kMaxSoftcap));
  if (spec.temperature) validate(*spec.temperature);
  validate_cascade(spec);
  validate_key_bias(spec);
  validate_packed_prefill(spec);
  validate_states(spec);
  validate_kv_dtype(spec);
  validate_key_form(spec);
  validate_compute(spec);
  validate(spec.rope, spec.head_dim);
}

std::string describe(const KernelSpec& spec) {
  std::string text =
      fmt::format("head_dim {}, group {}, {}, rope {}, {}", spec.head_dim, spec.group_size,
                  to_string(spec.dtype), spec.rope.variant, spec.mask);
  for (const auto& [name, value] : spec.mask_parameters)
    text += fmt::format(" ({} {})", name, value);
  if (spec.softcap > 0.0) text += fmt::format(", softcap {}", spec.softcap);
  if (spec.sinks) text += ", sinks";
  if (spec.temperature)
    text += fmt::format(", temperature (beta {}, interval {}, offset {})", spec.temperature->beta,
                        spec.temperature->interval, spec.temperature->offset);
  if (spec.batch_invariant) text += ", batch invariant";
  if (spec.cascade) text += ", cascade";
  if (spec.page_mass) text += ", page mass";
  if (spec.key_bias) text += ", key bias";
  if (spec.packed_prefill) text += ", packed prefill";
  if (spec.states) text += ", states";
  if (spec.key_form == KeyForm::kRaw) text += ", raw keys";
  if (spec.has_fp8_pool()) text += fmt::format(", KV {}", to_string(spec.pool_dtype()));
  if (spec.compute == Compute::kFloat8) text += ", 8-bit products";
  return fmt::format("{}, {} queries", text, to_string(spec.query_form));
}

}  // namespace lazyrope
