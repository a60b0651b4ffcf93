#include "runtime/spec/refused_types.h"

#include <algorithm>
#include <array>

namespace lazyrope {
namespace {

constexpr const char* kAlibi =
    "its scores have a bias that grows with the distance (ALiBi), which kernels do not compute; "
    "the nearest supported thing is a model with RoPE";
constexpr const char* kLearned =
    "its positions are learned vectors, which are added to the tokens: stored keys and values hold "
    "their positions and cannot move";
constexpr const char* kMla =
    "its keys and values are compressed into one latent row (MLA), and keys and values have "
    "different widths; kernels need keys and values of one head_dim";
constexpr const char* kNormAfterRope =
    "its norms of queries and keys have weights and come after RoPE, so a stored key cannot be "
    "rotated to another position";
constexpr const char* kPrefix =
    "its prompt is seen in both directions; kernels have causal masks for it alone";
constexpr const char* kCross =
    "some of its layers attend to images instead of tokens; kernels attend to tokens";
constexpr const char* kEncoder =
    "it is no causal language model: its tokens see the tokens after them";
constexpr const char* kWidths =
    "keys and values of its heads have different widths; kernels need one head_dim";
constexpr const char* kWideHeads =
    "its layers differ in head_dim, and some have head_dim = 512; kernels have at most 256";
constexpr const char* kSharedKv =
    "some of its layers read the keys and values of other layers; a spec describes one layer";
constexpr const char* kDifferential =
    "each output is the difference of two attentions, and values have twice the width of keys; "
    "kernels compute one attention";
constexpr const char* kRecurrent = "its layers are recurrent and have no keys and values to store";
constexpr const char* kBias =
    "its scores have a learned bias for each distance; kernels have no such bias";
constexpr const char* kSparse =
    "its layers choose some of the keys for each query; kernels have no such mask";

struct RefusedType {
  std::string_view name;
  std::string_view reason;
};

constexpr auto kRows = std::to_array<RefusedType>({
    {"axk1", kMla},
    {"bart", kLearned},
    {"bert", kEncoder},
    {"biogpt", kLearned},
    {"bloom", kAlibi},
    {"colpali", kPrefix},
    {"deepseek_v2", kMla},
    {"deepseek_v3", kMla},
    {"deepseek_v32", kMla},
    {"deepseek_v4", kSparse},
    {"diffllama", kDifferential},
    {"doge", kSparse},
    {"gemma3n", kSharedKv},
    {"gemma3n_text", kSharedKv},
    {"gemma4", kWideHeads},
    {"gemma4_text", kWideHeads},
    {"glm4_moe_lite", kMla},
    {"glm_moe_dsa", kMla},
    {"gpt2", kLearned},
    {"gpt_bigcode", kLearned},
    {"gpt_neo", kLearned},
    {"hunyuan_v1_dense", kNormAfterRope},
    {"hunyuan_v1_moe", kNormAfterRope},
    {"hunyuan_vl", kNormAfterRope},
    {"kimi_k25", kMla},
    {"longcat_flash", kMla},
    {"mamba", kRecurrent},
    {"mamba2", kRecurrent},
    {"mimo_v2_flash", kWidths},
    {"minicpm3", kMla},
    {"mistral4", kMla},
    {"mllama", kCross},
    {"modernbert", kEncoder},
    {"mpt", kAlibi},
    {"opt", kLearned},
    {"paligemma", kPrefix},
    {"roberta", kEncoder},
    {"rwkv", kRecurrent},
    {"t5", kBias},
    {"xglm", kLearned},
    {"youtu", kMla},
});

}  // namespace

std::string_view refusal_of_type(std::string_view model_type) {
  const auto row = std::ranges::find(kRows, model_type, &RefusedType::name);
  return row == kRows.end() ? std::string_view() : row->reason;
}

}  // namespace lazyrope
