#include "codegen/kernel_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "codegen/error.h"
#include "codegen/tile_plan.h"

namespace lazyrope {
namespace {

constexpr double kMinSoftcap = 1e-3;
constexpr double kMaxSoftcap = 1e6;
constexpr int kMaxGroupSize = 128;  // more than any published model has

template <class Enum>
struct Named {
  std::string_view name;
  Enum value;
};

constexpr std::array kDtypes = {Named{"bfloat16", Dtype::kBf16}, Named{"float16", Dtype::kFp16}};
constexpr std::array kRopeForms = {Named{"raw", RopeForm::kRaw},
                                   Named{"rotated", RopeForm::kRotated}};
constexpr std::array kKeyForms = {Named{"local", KeyForm::kLocal}};

template <class Enum, std::size_t kCount>
std::string_view name_of(const std::array<Named<Enum>, kCount>& table, Enum value) {
  for (const Named<Enum>& row : table)
    if (row.value == value) return row.name;
  return "?";
}

template <class Enum, std::size_t kCount>
Enum value_of(const std::array<Named<Enum>, kCount>& table, std::string_view what,
              std::string_view name) {
  std::array<std::string_view, kCount> names;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (table[i].name == name) return table[i].value;
    names[i] = table[i].name;
  }
  throw SpecError(fmt::format("{} = \"{}\"; allowed are: {}", what, name, fmt::join(names, ", ")));
}

}  // namespace

std::string_view to_string(Dtype dtype) { return name_of(kDtypes, dtype); }
std::string_view to_string(RopeForm form) { return name_of(kRopeForms, form); }
std::string_view to_string(KeyForm form) { return name_of(kKeyForms, form); }
Dtype dtype_from(std::string_view name) { return value_of(kDtypes, "dtype", name); }
RopeForm rope_form_from(std::string_view name) { return value_of(kRopeForms, "form", name); }
KeyForm key_form_from(std::string_view name) { return value_of(kKeyForms, "key_form", name); }

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
  return fmt::format("{}, {} queries", text, to_string(spec.query_form));
}

}  // namespace lazyrope
