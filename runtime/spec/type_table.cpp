#include "runtime/spec/type_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "runtime/spec/model_types.h"

namespace lazyrope {
namespace {

std::string heads_of(const ModelType& type) {
  const char* const head_dim =
      type.head_dim == HeadDim::kFromConfig ? "" : ", head_dim = hidden_size / heads";
  switch (type.kv_heads) {
    case KvHeads::kFromConfig:
      return fmt::format("num_key_value_heads{}", head_dim);
    case KvHeads::kAllHeads:
      return fmt::format("all have KV{}", head_dim);
    case KvHeads::kFalcon:
      return fmt::format("num_kv_heads, multi_query{}", head_dim);
  }
  return "";
}

std::string_view windows_of(const ModelType& type) {
  switch (type.windows) {
    case Windows::kNone:
      return "none";
    case Windows::kAll:
      return "all layers";
    case Windows::kNoneByDefault:
      return "by layer_types";
    case Windows::kAllByDefault:
      return "all layers, or layer_types";
    case Windows::kFromMaxWindowLayers:
      return "from max_window_layers on";
    case Windows::kEvenBelowMaxWindowLayers:
      return "even layers below max_window_layers";
    case Windows::kEven:
      return "even layers";
    case Windows::kAllButEveryNth:
      return "all but every n-th layer";
    case Windows::kAllButFirstOfFour:
      return "all but every fourth layer, the first one of four";
    case Windows::kWithoutRope:
      return "layers without RoPE";
    case Windows::kChunksWithRope:
      return "chunks of attention_chunk_size in layers with RoPE";
  }
  return "";
}

const char* note_of_rope_layers(RopeLayers layers) {
  switch (layers) {
    case RopeLayers::kAll:
    case RopeLayers::kNone:
      return nullptr;
    case RopeLayers::kFromConfig:
      return "no_rope_layers have no RoPE";
    case RopeLayers::kWithWindow:
      return "layers without a window have no RoPE";
    case RopeLayers::kWithWindowIfAny:
      return "layers without a window have no RoPE, if others have a window";
    case RopeLayers::kIfEmbeddingSaysSo:
      return "RoPE if position_embedding_type is rope";
  }
  return nullptr;
}

std::string rope_of(const ModelType& type) {
  if (type.rope_layers == RopeLayers::kNone) return "none";
  const std::string_view pairing = type.pairing == "gptj" ? "gptj: " : "";
  return fmt::format("{}{}", pairing, fmt::join(type.rope_types, ", "));
}

std::string notes_of(const ModelType& type) {
  std::vector<std::string> notes;
  if (const char* const note = note_of_rope_layers(type.rope_layers)) notes.emplace_back(note);
  if (type.has_attention != nullptr) notes.emplace_back("layers with attention only");
  if (type.has_rope_of_kinds) notes.emplace_back("RoPE for each kind of layer");
  if (type.fraction_key != nullptr || reads(type, "rotary_dim")) notes.emplace_back("partial RoPE");
  if (type.temperatures == Temperatures::kOfRope) notes.emplace_back("a temperature");
  if (type.temperatures == Temperatures::kWithoutRope)
    notes.emplace_back("a temperature in layers without RoPE");
  if (!type.other_rope_keys.empty() && type.temperatures == Temperatures::kNone)
    notes.emplace_back("text alone: M-RoPE is then plain RoPE");
  if (reads(type, "attn_logit_softcapping")) notes.emplace_back("softcap");
  if (type.sinks) notes.emplace_back("sinks");
  if (type.has_mscale) notes.emplace_back("longrope within the original context only");
  return fmt::format("{}", fmt::join(notes, "; "));
}

}  // namespace

std::vector<TypeDescription> model_type_table() {
  std::vector<TypeDescription> table;
  for (const ModelType& type : model_types())
    table.push_back({std::string(type.name), heads_of(type), std::string(windows_of(type)),
                     rope_of(type), notes_of(type)});
  return table;
}

}  // namespace lazyrope
