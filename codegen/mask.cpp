#include "codegen/mask.h"

#include <utility>

#include "codegen/registry.h"

namespace lazyrope {
namespace {

Registry<MaskVariant>& mask_registry() {
  static Registry<MaskVariant> instance(
      "mask", {{"causal", "a query sees the keys at its logical position and before",
                "ops/mask/causal.cuh"},
               {"full", "every query sees every key", "ops/mask/full.cuh"},
               {"sliding_window",
                "causal, and of those keys only the ones at the last `window` positions",
                "ops/mask/sliding_window.cuh",
                {{"window", "positions that a query sees, its own included", 1}}},
               {"chunked",
                "causal, and of those keys only the ones in the query's own chunk of `chunk` "
                "positions (Llama 4)",
                "ops/mask/chunked.cuh",
                {{"chunk", "positions of a chunk, which begins at a multiple of it", 1}}}});
  return instance;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_mask_registry() { (void)mask_registry(); }

}  // namespace

std::vector<MaskVariant> mask_variants() { return mask_registry().rows(); }

MaskVariant mask_variant(std::string_view name) { return mask_registry().find(name); }

void register_mask_variant(const MaskVariant& variant) { mask_registry().add(variant); }

void validate(std::string_view mask, const MaskParameters& given) {
  validate_parameters("mask", mask_variant(mask), given);
}

}  // namespace lazyrope
