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
  kNone,                      // no layer; transformers does not read layer_types
  kAll,                       // all layers; transformers does not read layer_types
  kNoneByDefault,             // no layer
  kAllByDefault,              // all layers, if the config has a window
  kFromMaxWindowLayers,       // the layers from max_window_layers on
  kEvenBelowMaxWindowLayers,  // the even layers below max_window_layers
  kEven,                      // layers 0, 2, 4, ...
  kAllButEveryNth,            // all but every n-th: n is sliding_window_pattern, or 4
  kAllButFirstOfFour,         // all but layers 0, 4, 8, ...
  kWithoutRope,               // the layers without RoPE
  kChunksWithRope             // the layers with RoPE; they have chunks instead of a window
};

// The layers with RoPE.
enum class RopeLayers {
  kAll,
  kNone,
  kFromConfig,        // no_rope_layers and no_rope_layer_interval
  kWithWindow,        // the layers with a window
  kWithWindowIfAny,   // the layers with a window, or all if the config has no sliding_window
  kIfEmbeddingSaysSo  // all if position_embedding_type is "rope", else none
};

// The layers whose queries have a temperature by their position.
enum class Temperatures {
  kNone,
  kOfRope,      // all: llama_4_scaling_beta and the original context of rope_parameters
  kWithoutRope  // those without RoPE, if attn_temperature_tuning: attn_scale and floor_scale
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
  // Returns whether a layer of a hybrid model has attention if the config has no layer_types. Null:
  // all layers have attention.
  bool (*has_attention)(const Json& config, int layer) = nullptr;
  bool reads_layer_types = true;  // for hybrid models; for others, `windows` says so
  bool has_older_names = false;   // layer_types may say "attention" for "full_attention"
  Keys without_attention = {};    // the names in layer_types of layers without attention
  // Replaces older keys by the present ones, or refuses them.
  void (*complete)(Json& config) = nullptr;
  RopeLayers rope_layers = RopeLayers::kAll;
  Temperatures temperatures = Temperatures::kNone;
  const char* scale_key = nullptr;  // the scale of scores; null: 1 / sqrt(head_dim)
  bool sinks = false;
  std::string_view pairing = "neox";  // the RoPE variant of rope_type "default"
  // The values of rope_type that have a kernel.
  Keys rope_types = {"default", "linear", "llama3", "yarn", "longrope", "dynamic"};
  double theta = 10000.0;                // if no key gives it
  const char* theta_key = "rope_theta";  // outside of rope_parameters
  const char* fraction_key = nullptr;    // the rotated fraction of a head; null: always all of it
  // Each kind of layer has RoPE of its own. rope_parameters then holds an object for each kind, and
  // rope_scaling and rope_theta are those of the layers without a window.
  bool has_rope_of_kinds = false;
  const char* sliding_theta_key = nullptr;  // theta of layers with a window, outside of an object
  double sliding_theta = 10000.0;           // if no key gives it
  bool has_mscale = false;  // LongRoPE has short_mscale and long_mscale, its attention factors
  // Keys of rope_parameters that RoPE of text does not read: those of M-RoPE, which is plain RoPE
  // for text, and those of a temperature.
  Keys other_rope_keys = {};
};

const std::vector<ModelType>& model_types();

// Returns the row of the config's model_type. Throws SpecError if there is none.
const ModelType& model_type_of(const Json& config);

// Returns true if the row reads the key.
bool reads(const ModelType& type, std::string_view key);

}  // namespace lazyrope
