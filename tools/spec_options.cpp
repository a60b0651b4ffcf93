#include "tools/spec_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <map>
#include <string_view>
#include <system_error>

#include "codegen/kernel_config.h"
#include "codegen/mask.h"
#include "runtime/spec/config_json.h"
#include "runtime/spec/layer_groups.h"
#include "tools/completion.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelGroup = "Attention of a model";
constexpr const char* kFieldsGroup = "Attention by its fields, without --model";
constexpr const char* kBothGroup = "More options of the attention";

// Returns the names of the rows of a registry.
template <class Row>
std::vector<std::string> names_of_rows(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) names.push_back(row.name);
  return names;
}

template <class Enum>
std::vector<std::string> names_of_values(std::initializer_list<Enum> values) {
  std::vector<std::string> names;
  for (const Enum value : values) names.emplace_back(to_string(value));
  return names;
}

// Returns the parameters that --rope-param need not give. They are the defaults of the functions of
// lazyrope.rope in Python.
RopeParameters default_parameters(const std::string& variant) {
  static const std::map<std::string, RopeParameters> kDefaults = {
      {"neox", {{"theta", 1e4}}},
      {"gptj", {{"theta", 1e4}}},
      {"linear", {{"theta", 1e4}}},
      {"llama3",
       {{"theta", 5e5},
        {"factor", 8},
        {"low_freq_factor", 1},
        {"high_freq_factor", 4},
        {"original_max_position_embeddings", 8192}}},
      {"llama3_gptj",
       {{"theta", 5e5},
        {"factor", 16},
        {"low_freq_factor", 1},
        {"high_freq_factor", 1},
        {"original_max_position_embeddings", 8192}}},
      {"yarn", {{"theta", 1e4}}},
      {"longrope", {{"theta", 1e4}}}};
  const auto found = kDefaults.find(variant);
  return found == kDefaults.end() ? RopeParameters() : found->second;
}

std::string rope_parameter_names() {
  std::string text;
  for (const RopeVariant& row : rope_variants()) {
    const RopeParameters defaults = default_parameters(row.name);
    std::vector<std::string> names;
    names.reserve(row.parameters.size());
    for (const RopeParameter& parameter : row.parameters) {
      const auto found = defaults.find(parameter.name);
      names.push_back(found == defaults.end()
                          ? parameter.name
                          : fmt::format("{}={}", parameter.name, found->second));
    }
    for (const RopeList& list : row.lists) names.push_back(list.name + "=N,N,...");
    if (!names.empty()) text += fmt::format("\n{}: {}", row.name, fmt::join(names, ", "));
  }
  return text;
}

void add_field_options(CLI::App& app, SpecOptions& options, CLI::Option* models) {
  const auto add = [&](const char* name, auto& value, const char* text,
                       const std::string& meaning) {
    return app.add_option(name, value, meaning)
        ->option_text(text)
        ->group(kFieldsGroup)
        ->excludes(models);
  };
  add("--head-dim", options.head_dim, "N",
      fmt::format("Head dimension: one of {}", fmt::join(supported_head_dims(), ", ")));
  add("--q-heads", options.q_heads, "N", "Query heads, a multiple of the KV heads");
  add("--kv-heads", options.kv_heads, "N", "KV heads");
  const std::vector<std::string> ropes = names_of_rows(rope_variants());
  offer_values(
      add("--rope", options.rope, "NAME", fmt::format("RoPE variant: {}", fmt::join(ropes, ", "))),
      ropes);
  add("--rope-param", options.rope_parameters, "KEY=VALUE ...",
      "A parameter of the variant; may be repeated. NAME=VALUE is\na default" +
          rope_parameter_names());
  add("--rotary-dim", options.rotary_dim, "N",
      "Leading columns of a head that RoPE rotates (default: all)");
}

void add_shared_options(CLI::App& app, SpecOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* text,
                       const std::string& meaning) {
    return app.add_option(name, value, meaning)->option_text(text)->group(kBothGroup);
  };
  const std::vector<std::string> forms = names_of_values({RopeForm::kRaw, RopeForm::kRotated});
  offer_values(add("--dtype", options.dtype, "NAME",
                   "bfloat16 or float16 (default: the model's, or bfloat16)"),
               names_of_values({Dtype::kBf16, Dtype::kFp16}));
  add("--tensor-parallel", options.tensor_parallel, "N",
      "GPUs among which the heads are divided (default: 1)");
  offer_values(add("--kv-dtype", options.kv_dtype, "NAME",
                   "Dtype of the pool: float8_e4m3fn or float8_e5m2 (default: as --dtype)"),
               names_of_values({Dtype::kFp8E4m3, Dtype::kFp8E5m2}));
  const std::vector<std::string> masks = names_of_rows(mask_variants());
  offer_values(add("--mask", options.mask, "NAME",
                   fmt::format("One of {} (default: causal)", fmt::join(masks, ", "))),
               masks);
  add("--window", options.window, "N", "Tokens that a query sees under the mask sliding_window");
  add("--chunk", options.chunk, "N", "Positions of a chunk under the mask chunked");
  add("--softcap", options.softcap, "X", "Replace each score by X tanh(score / X)");
  add("--temperature", options.temperature, "BETA,INTERVAL,OFFSET",
      "Multiply scores of a query at position p by\n1 + BETA ln(1 + floor((p + OFFSET) / "
      "INTERVAL))")
      ->delimiter(',')
      ->expected(3);
  app.add_flag("--sinks", options.sinks, "Add one attention sink per query head")
      ->group(kBothGroup);
  app.add_flag("--batch-invariant", options.batch_invariant,
               "Make a request's output bits independent of its batch")
      ->group(kBothGroup);
  app.add_flag("--cascade", options.cascade,
               "Read segments that several requests share once per step")
      ->group(kBothGroup);
  app.add_flag("--page-mass", options.page_mass, "Give the attention mass of pages of 16 slots")
      ->group(kBothGroup);
  app.add_flag("--key-bias", options.key_bias, "Add a bias to the scores of each key")
      ->group(kBothGroup);
  app.add_flag("--packed-prefill", options.packed_prefill,
               "Let prefill copy the keys of short documents to scratch first (Hopper)")
      ->group(kBothGroup);
  app.add_flag("--states", options.states, "Let segments be memories of attention states")
      ->group(kBothGroup);
  offer_values(add("--compute", options.compute, "NAME",
                   "Elements that prefill multiplies: dtype, or float8 on Hopper over a\npool of "
                   "float8_e4m3fn (default: dtype)"),
               {std::string(to_string(Compute::kDtype)), std::string(to_string(Compute::kFloat8))});
  offer_values(add("--query-form", options.query_form, "FORM",
                   "raw, or rotated if the caller rotates queries (default: raw)"),
               forms);
  offer_values(add("--key-form", options.key_form, "FORM",
                   "Keys in the pool: local, rotated by their index in the\ndocument, or raw "
                   "(default: local)"),
               names_of_values({KeyForm::kLocal, KeyForm::kRaw}));
  offer_values(add("--append-form", options.append_form, "FORM",
                   "The same for appended keys (default: as --query-form)"),
               forms);
  add("--scale", options.scale, "X",
      "Softmax scale, passed at run time (default: 1 / sqrt(head_dim))");
}

// Returns the path of the model's file: `model` itself, or the config.json in that directory.
fs::path config_file(const std::string& model) {
  std::error_code ignored;
  const fs::path path = fs::absolute(model).lexically_normal();
  return fs::is_directory(path, ignored) ? path / "config.json" : path;
}

// Returns "Llama-3.1-8B" for Llama-3.1-8B/config.json and for Llama-3.1-8B.json.
std::string model_name(const fs::path& file) {
  return file.filename() == "config.json" ? file.parent_path().filename().string()
                                          : file.stem().string();
}

RopeUse rope_use(const SpecOptions& options) {
  return {options.max_model_len,
          options.key_form ? key_form_from(*options.key_form) : KeyForm::kLocal};
}

// Returns the layers of the model that have attention, grouped by equal specs.
std::vector<LayerGroup> model_groups(const fs::path& file, const std::optional<std::string>& dtype,
                                     const RopeUse& use) {
  const std::string text = read_config_file(file);
  try {
    std::vector<LayerGroup> groups = attention_groups_from_hf(text, dtype, use);
    if (groups.empty()) throw SpecError("none of its layers has attention");
    return groups;
  } catch (const SpecError& error) {
    throw SpecError(fmt::format("{}: {}", file.string(), error.what()));
  }
}

[[noreturn]] void refuse_rope_parameter(std::string_view text) {
  throw UsageError(
      fmt::format("--rope-param: \"{}\" is not KEY=NUMBER, such as theta=500000, or "
                  "KEY=NUMBER,NUMBER,... for a "
                  "list",
                  text));
}

// Returns the numbers of "1,2.5".
std::optional<std::vector<double>> numbers_of(std::string_view text) {
  std::vector<double> numbers;
  const char* const end = text.data() + text.size();
  for (const char* begin = text.data();; ++begin) {
    const auto [stop, error] = std::from_chars(begin, end, numbers.emplace_back());
    if (error != std::errc()) return std::nullopt;
    if (stop == end) return numbers;
    if (*stop != ',') return std::nullopt;
    begin = stop;
  }
}

// Returns whether the parameter is a list of the variant. An unknown variant has none.
bool is_list(const std::string& variant, std::string_view name) {
  for (const RopeVariant& row : rope_variants())
    if (row.name == variant &&
        std::ranges::find(row.lists, name, &RopeList::name) != row.lists.end())
      return true;
  return false;
}

void read_rope_parameter(std::string_view text, RopeSpec& rope) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) refuse_rope_parameter(text);
  const auto numbers = numbers_of(text.substr(equals + 1));
  const std::string name(text.substr(0, equals));
  const bool is_of_list = is_list(rope.variant, name);
  if (!numbers || (!is_of_list && numbers->size() != 1)) refuse_rope_parameter(text);
  const bool is_new = is_of_list ? rope.lists.emplace(name, *numbers).second
                                 : rope.parameters.emplace(name, numbers->front()).second;
  if (!is_new) throw UsageError(fmt::format("--rope-param: {} is given twice", name));
}

RopeSpec rope_of(const SpecOptions& options, int head_dim) {
  RopeSpec rope;
  rope.variant = options.rope.value();
  rope.rotary_dim = options.rotary_dim.value_or(rope.variant == "none" ? 0 : head_dim);
  for (const std::string& text : options.rope_parameters) read_rope_parameter(text, rope);
  rope.parameters.merge(default_parameters(rope.variant));
  return rope;
}

// Returns what `make` returns. A SpecError is then about the options' values: wrong usage.
template <class Make>
auto as_usage(const Make& make) {
  return checked_as_options(SpecOptions(), make);
}

void check_all_fields(const SpecOptions& options) {
  std::vector<std::string> missing;
  if (!options.head_dim) missing.emplace_back("--head-dim");
  if (!options.q_heads) missing.emplace_back("--q-heads");
  if (!options.kv_heads) missing.emplace_back("--kv-heads");
  if (!options.rope) missing.emplace_back("--rope");
  if (!missing.empty())
    throw UsageError(
        fmt::format("give --model, or --head-dim, --q-heads, --kv-heads and --rope; missing: {}",
                    fmt::join(missing, ", ")));
}

AttentionSpec spec_of_fields(const SpecOptions& options) {
  check_all_fields(options);
  AttentionSpec spec;
  spec.head_dim = options.head_dim.value();
  spec.num_q_heads = options.q_heads.value();
  spec.num_kv_heads = options.kv_heads.value();
  spec.rope = rope_of(options, spec.head_dim);
  if (options.dtype) spec.dtype = dtype_from(*options.dtype);
  return spec;
}

int whole_number(const char* name, double given) {
  constexpr double kLargest = std::numeric_limits<int>::max();
  if (!(std::abs(given) <= kLargest && given == std::floor(given)))
    throw UsageError(fmt::format("--temperature: {} = {}; it must be a whole number", name, given));
  return static_cast<int>(given);
}

QueryTemperature temperature_of(const std::vector<double>& given) {
  return {given.at(0), whole_number("INTERVAL", given.at(1)), whole_number("OFFSET", given.at(2))};
}

AttentionSpec with_shared_options(AttentionSpec spec, const SpecOptions& options) {
  if (options.kv_dtype) spec.kv_dtype = kv_dtype_from(*options.kv_dtype);
  if (options.mask) spec.mask = *options.mask;
  if (options.query_form) spec.query_form = rope_form_from(*options.query_form);
  if (options.key_form) spec.key_form = key_form_from(*options.key_form);
  spec.append_form =
      options.append_form ? rope_form_from(*options.append_form) : spec.append_form_by_default();
  if (options.scale) spec.scale = options.scale;
  if (options.window) spec.mask_parameters["window"] = *options.window;
  if (options.chunk) spec.mask_parameters["chunk"] = *options.chunk;
  if (options.softcap) spec.softcap = *options.softcap;
  if (!options.temperature.empty()) spec.temperature = temperature_of(options.temperature);
  if (options.sinks) spec.sinks = true;
  if (options.batch_invariant) spec.batch_invariant = true;
  if (options.cascade) spec.cascade = true;
  if (options.page_mass) spec.page_mass = true;
  if (options.key_bias) spec.key_bias = true;
  if (options.packed_prefill) spec.packed_prefill = true;
  if (options.states) spec.states = true;
  if (options.compute) spec.compute = compute_from(*options.compute);
  validate(spec);
  return tensor_parallel(std::move(spec), options.tensor_parallel);
}

std::string unused_name(const std::string& wanted, const std::vector<NamedSpec>& specs) {
  const auto is_used = [&](const std::string& name) {
    return std::ranges::any_of(specs, [&](const NamedSpec& named) { return named.name == name; });
  };
  std::string name = wanted;
  for (int i = 2; is_used(name); ++i) name = fmt::format("{}-{}", wanted, i);
  return name;
}

}  // namespace

void add_spec_options(CLI::App& app, SpecOptions& options) {
  CLI::Option* const models =
      app.add_option("--model", options.models,
                     "Hugging Face config.json, or its directory; may be repeated")
          ->option_text("FILE ...")
          ->group(kModelGroup);
  app.add_option("--max-model-len", options.max_model_len,
                 "The most tokens of a request (default: the model's); it\nchooses the list of "
                 "LongRoPE")
      ->option_text("N")
      ->group(kModelGroup)
      ->needs(models);
  add_field_options(app, options, models);
  add_shared_options(app, options);
}

std::vector<NamedSpec> specs_of(const SpecOptions& options) {
  std::vector<NamedSpec> specs;
  if (options.dtype) (void)as_usage([&] { return dtype_from(*options.dtype); });
  for (const std::string& model : options.models) {
    const fs::path file = config_file(model);
    for (const LayerGroup& group : model_groups(file, options.dtype, rope_use(options)))
      specs.push_back({unused_name(model_name(file), specs),
                       as_usage([&] { return with_shared_options(group.spec, options); })});
  }
  if (!specs.empty()) return specs;
  const AttentionSpec spec =
      as_usage([&] { return with_shared_options(spec_of_fields(options), options); });
  return {{fmt::format("d{}-g{}-{}-{}", spec.head_dim, spec.group_size(), spec.rope.variant,
                       to_string(spec.pool_dtype())),
           spec}};
}

NamedSpec only_spec_of(const SpecOptions& options) {
  std::vector<NamedSpec> specs = specs_of(options);
  if (specs.size() > 1)
    throw UsageError(
        fmt::format("--model: these models have {} attentions (the first are {} and {}); give one "
                    "model that has one attention, or the fields of one",
                    specs.size(), specs[0].name, specs[1].name));
  return std::move(specs.front());
}

}  // namespace lazyrope
