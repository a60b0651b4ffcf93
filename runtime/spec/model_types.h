#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/spec/config_json.h"

namespace lazyrope {

using Keys = std::vector<const char*>;

// The layers that have the config's sliding window, unless layer_types says so.
enum class Windows {
  kNone,                 // no layer; transformers does not read layer_types
  kAll,                  // all layers; transformers does not read layer_types
  kFromMaxWindowLayers,  // the layers from max_window_layers on
  kEven,                 // layers 0, 2, 4, ...
  kAllButEveryFourth,    // all but layers 3, 7, 11, ...; sliding_window_pattern may replace the 4
  kAllButFirstOfFour,    // all but layers 0, 4, 8, ...
  kWithoutRope           // the layers without RoPE
};

// The layers with RoPE.
enum class RopeLayers {
  kAll,
  kFromConfig,      // no_rope_layers and no_rope_layer_interval
  kWithWindow,      // the layers with a window
  kWithWindowIfAny  // the layers with a window, or all if the config has no sliding_window
};

// The number of KV heads.
enum class KvHeads {
  kFromConfig,  // num_key_value_heads; null: all query heads
  kAllHeads,    // all query heads
  kFalcon       // from new_decoder_architecture, num_kv_heads and multi_query
};

enum class HeadDim {
  kFromConfig,  // head_dim; null: hidden_size / heads
  kPerHead      // always hidden_size / heads
};

// A key that old configs have instead of another.
struct KeyAlias {
  const char* alias;
  const char* key;
};

// A model type of config.json: what the code of transformers reads for it, and how. Norms of q and
// k come before the rotation, so they are not lazyrope's concern.
struct ModelType {
  std::string_view name;
  // Every key that transformers reads for attention, besides those that it reads for all types. No
  // other key reaches the code that makes a spec.
  Keys reads = {};
  // The values of absent keys, as in transformers. A key without a value here may be required.
  Json defaults = Json::object();
  std::vector<KeyAlias> aliases = {};
  HeadDim head_dim = HeadDim::kFromConfig;
  KvHeads kv_heads = KvHeads::kFromConfig;
  Windows windows = Windows::kNone;
  RopeLayers rope_layers = RopeLayers::kAll;
  const char* scale_key = nullptr;  // the scale of scores; null: 1 / sqrt(head_dim)
  bool sinks = false;
  std::string_view pairing = "neox";  // the RoPE variant of rope_type "default"
  Keys rope_types = {"default", "linear", "llama3", "yarn"};  // those that have a kernel
  double theta = 10000.0;                                     // if no key gives it
  const char* theta_key = "rope_theta";                       // outside of rope_parameters
  const char* fraction_key = nullptr;  // the rotated fraction of a head; null: always all of it
};

const std::vector<ModelType>& model_types();

// Returns the row of the config's model_type. Throws SpecError if there is none.
const ModelType& model_type_of(const Json& config);

// Returns true if the row reads the key.
bool reads(const ModelType& type, std::string_view key);

}  // namespace lazyrope
