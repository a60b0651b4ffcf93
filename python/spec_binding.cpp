#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <filesystem>
#include <map>

#include "codegen/kernel_config.h"
#include "python/bindings.h"
#include "python/log_bridge.h"
#include "runtime/spec/layer_groups.h"
#include "runtime/spec/model_config.h"
#include "runtime/spec/spec.h"
#include "runtime/spec/type_table.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

// A RopeSpec whose rotary_dim is the spec's head_dim if it is not given.
struct PyRope {
  std::string variant;
  std::optional<int> rotary_dim;
  RopeParameters parameters;
  RopeLists lists;

  RopeSpec spec(int head_dim) const {
    return {variant, rotary_dim.value_or(variant == "none" ? 0 : head_dim), parameters, lists};
  }
  bool operator==(const PyRope&) const = default;
};

py::dict arguments_of(const PyRope& rope) {
  py::dict arguments(py::arg("variant") = rope.variant, py::arg("rotary_dim") = rope.rotary_dim,
                     py::arg("parameters") = rope.parameters);
  if (!rope.lists.empty()) arguments["lists"] = rope.lists;
  return arguments;
}

PyRope rope_of(const AttentionSpec& spec) {
  return {spec.rope.variant, spec.rope.rotary_dim, spec.rope.parameters, spec.rope.lists};
}

// Returns "half" for ops/rope/half.cuh.
std::string pairing_name(const RopeVariant& variant) {
  return std::filesystem::path(variant.pairing).stem().string();
}

// Returns the text of a config.json, given as a path, a dict or a config object.
std::string config_text(const py::object& config) {
  return py::cast<std::string>(py::module_::import("lazyrope.hf").attr("config_text")(config));
}

// Returns the name of a dtype of any framework, none of which is imported: "bfloat16" for that
// text, torch.bfloat16, numpy.dtype("bfloat16") and ml_dtypes.bfloat16.
std::string dtype_name(py::handle dtype) {
  if (py::isinstance<py::str>(dtype)) return py::cast<std::string>(dtype);
  if (py::isinstance<py::type>(dtype)) return py::cast<std::string>(dtype.attr("__name__"));
  const auto text = py::cast<std::string>(py::str(dtype));
  return text.substr(text.rfind('.') + 1);  // the whole text if there is no '.'
}

// Returns no value if the pool has the spec's own type.
std::optional<Dtype> kv_dtype_of(const py::object& given, Dtype dtype) {
  if (given.is_none()) return std::nullopt;
  const Dtype kv_dtype = kv_dtype_from(dtype_name(given));
  return kv_dtype == dtype ? std::nullopt : std::optional(kv_dtype);
}

AttentionSpec make_spec(int head_dim, int num_q_heads, int num_kv_heads, const PyRope& rope,
                        const py::object& dtype, const std::string& mask,
                        const std::string& query_form, const std::string& key_form,
                        const std::optional<std::string>& append_form, std::optional<double> scale,
                        std::optional<int> window, std::optional<int> chunk,
                        std::optional<double> softcap, bool sinks, const py::object& kv_dtype,
                        bool batch_invariant, std::optional<QueryTemperature> temperature,
                        bool cascade, bool page_mass, bool key_bias, bool packed_prefill,
                        bool states, const std::string& compute) {
  AttentionSpec spec;
  spec.head_dim = head_dim;
  spec.num_q_heads = num_q_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.dtype = dtype_from(dtype_name(dtype));
  spec.kv_dtype = kv_dtype_of(kv_dtype, spec.dtype);
  spec.rope = rope.spec(head_dim);
  spec.mask = mask;
  if (window) spec.mask_parameters["window"] = *window;
  if (chunk) spec.mask_parameters["chunk"] = *chunk;
  spec.softcap = softcap.value_or(0.0);
  spec.sinks = sinks;
  spec.query_form = rope_form_from(query_form);
  spec.key_form = key_form_from(key_form);
  spec.append_form = append_form ? rope_form_from(*append_form) : spec.append_form_by_default();
  spec.scale = scale;
  spec.batch_invariant = batch_invariant;
  spec.temperature = temperature;
  spec.cascade = cascade;
  spec.page_mass = page_mass;
  spec.key_bias = key_bias;
  spec.packed_prefill = packed_prefill;
  spec.states = states;
  spec.compute = compute_from(compute);
  validate(spec);
  return spec;
}

std::optional<std::string> optional_dtype_name(const py::object& dtype) {
  return dtype.is_none() ? std::nullopt : std::optional(dtype_name(dtype));
}

// Returns the spec with the arguments of from_hf() that are no part of the config.
AttentionSpec with_arguments(AttentionSpec spec, const std::string& query_form,
                             const py::object& kv_dtype, bool batch_invariant, int ranks,
                             bool cascade, bool page_mass, bool key_bias, bool packed_prefill,
                             bool states, const std::string& compute) {
  spec.query_form = rope_form_from(query_form);
  spec.append_form = spec.append_form_by_default();
  spec.kv_dtype = kv_dtype_of(kv_dtype, spec.dtype);
  spec.batch_invariant = batch_invariant;
  spec.cascade = cascade;
  spec.page_mass = page_mass;
  spec.key_bias = key_bias;
  spec.packed_prefill = packed_prefill;
  spec.states = states;
  spec.compute = compute_from(compute);
  validate(spec);
  return tensor_parallel(std::move(spec), ranks);
}

AttentionSpec spec_from_hf(const py::object& config, const py::object& dtype,
                           const std::string& query_form, std::optional<int> layer,
                           const py::object& kv_dtype, bool batch_invariant, int ranks,
                           std::optional<int> max_model_len, const std::string& key_form,
                           bool cascade, bool page_mass, bool key_bias, bool packed_prefill,
                           bool states, const std::string& compute) {
  return with_arguments(attention_spec_from_hf(config_text(config), optional_dtype_name(dtype),
                                               layer, {max_model_len, key_form_from(key_form)}),
                        query_form, kv_dtype, batch_invariant, ranks, cascade, page_mass, key_bias,
                        packed_prefill, states, compute);
}

std::vector<LayerGroup> groups_from_hf(const py::object& config, const py::object& dtype,
                                       const std::string& query_form, const py::object& kv_dtype,
                                       bool batch_invariant, int ranks,
                                       std::optional<int> max_model_len,
                                       const std::string& key_form, bool cascade, bool page_mass,
                                       bool key_bias, bool packed_prefill, bool states,
                                       const std::string& compute) {
  auto groups = attention_groups_from_hf(config_text(config), optional_dtype_name(dtype),
                                         {max_model_len, key_form_from(key_form)});
  for (LayerGroup& group : groups)
    group.spec = with_arguments(std::move(group.spec), query_form, kv_dtype, batch_invariant, ranks,
                                cascade, page_mass, key_bias, packed_prefill, states, compute);
  return groups;
}

std::optional<int> mask_parameter(const AttentionSpec& spec, const char* name) {
  const auto it = spec.mask_parameters.find(name);
  return it == spec.mask_parameters.end() ? std::nullopt : std::optional(it->second);
}

std::optional<int> window_of(const AttentionSpec& spec) { return mask_parameter(spec, "window"); }
std::optional<int> chunk_of(const AttentionSpec& spec) { return mask_parameter(spec, "chunk"); }

std::optional<double> softcap_of(const AttentionSpec& spec) {
  return spec.softcap > 0.0 ? std::optional(spec.softcap) : std::nullopt;
}

py::dict arguments_of(const AttentionSpec& spec) {
  return py::dict(py::arg("head_dim") = spec.head_dim, py::arg("num_q_heads") = spec.num_q_heads,
                  py::arg("num_kv_heads") = spec.num_kv_heads, py::arg("rope") = rope_of(spec),
                  py::arg("dtype") = to_string(spec.dtype), py::arg("mask") = spec.mask,
                  py::arg("query_form") = to_string(spec.query_form),
                  py::arg("key_form") = to_string(spec.key_form),
                  py::arg("append_form") = to_string(spec.append_form),
                  py::arg("scale") = spec.scale, py::arg("window") = window_of(spec),
                  py::arg("chunk") = chunk_of(spec), py::arg("softcap") = softcap_of(spec),
                  py::arg("sinks") = spec.sinks, py::arg("kv_dtype") = to_string(spec.pool_dtype()),
                  py::arg("batch_invariant") = spec.batch_invariant,
                  py::arg("temperature") = spec.temperature, py::arg("cascade") = spec.cascade,
                  py::arg("page_mass") = spec.page_mass, py::arg("key_bias") = spec.key_bias,
                  py::arg("packed_prefill") = spec.packed_prefill, py::arg("states") = spec.states,
                  py::arg("compute") = to_string(spec.compute));
}

py::dict arguments_of(const QueryTemperature& temperature) {
  return py::dict(py::arg("beta") = temperature.beta, py::arg("interval") = temperature.interval,
                  py::arg("offset") = temperature.offset);
}

// Returns the meaning of each row of a registry, by name.
template <class Row>
std::map<std::string, std::string> meanings(const std::vector<Row>& rows) {
  std::map<std::string, std::string> result;
  for (const Row& row : rows) result.emplace(row.name, row.meaning);
  return result;
}

// Returns what from_hf reads for each model type, by its name.
py::dict described_types() {
  py::dict types;
  for (const TypeDescription& type : model_type_table())
    types[py::str(type.name)] =
        py::dict(py::arg("heads") = type.heads, py::arg("windows") = type.windows,
                 py::arg("rope") = type.rope, py::arg("notes") = type.notes);
  return types;
}

void bind_registries(py::module_& module) {
  module.def("head_dims", &supported_head_dims);
  module.def("rope_variants", [] { return meanings(rope_variants()); });
  module.def("masks", [] { return meanings(mask_variants()); });
  module.def("model_types", &described_types);
}

void bind_rope(py::module_& module) {
  py::class_<PyRope> rope_type(module, "Rope");
  rope_type
      .def(py::init([](std::string variant, std::optional<int> rotary_dim,
                       RopeParameters parameters, RopeLists lists) {
             return PyRope{std::move(variant), rotary_dim, std::move(parameters), std::move(lists)};
           }),
           py::arg("variant"), py::arg("rotary_dim") = py::none(),
           py::arg("parameters") = py::dict(), py::arg("lists") = py::dict())
      .def_readonly("variant", &PyRope::variant)
      .def_readonly("rotary_dim", &PyRope::rotary_dim)
      .def_readonly("parameters", &PyRope::parameters)
      .def_readonly("lists", &PyRope::lists);
  define_value(rope_type, [](const PyRope& rope) { return arguments_of(rope); });
}

void bind_temperature(py::module_& module) {
  py::class_<QueryTemperature> type(module, "QueryTemperature");
  type.def(py::init([](double beta, int interval, int offset) {
             return QueryTemperature{beta, interval, offset};
           }),
           py::kw_only(), py::arg("beta"), py::arg("interval"), py::arg("offset") = 0)
      .def_readonly("beta", &QueryTemperature::beta)
      .def_readonly("interval", &QueryTemperature::interval)
      .def_readonly("offset", &QueryTemperature::offset);
  define_value(type, [](const QueryTemperature& value) { return arguments_of(value); });
}

void bind_spec(py::module_& module) {
  py::class_<AttentionSpec> spec_type(module, "AttentionSpec");
  spec_type
      .def(py::init(&make_spec), py::kw_only(), py::arg("head_dim"), py::arg("num_q_heads"),
           py::arg("num_kv_heads"), py::arg("rope"), py::arg("dtype") = "bfloat16",
           py::arg("mask") = "causal", py::arg("query_form") = "raw", py::arg("key_form") = "local",
           py::arg("append_form") = py::none(), py::arg("scale") = py::none(),
           py::arg("window") = py::none(), py::arg("chunk") = py::none(),
           py::arg("softcap") = py::none(), py::arg("sinks") = false,
           py::arg("kv_dtype") = py::none(), py::arg("batch_invariant") = false,
           py::arg("temperature") = py::none(), py::arg("cascade") = false,
           py::arg("page_mass") = false, py::arg("key_bias") = false,
           py::arg("packed_prefill") = false, py::arg("states") = false,
           py::arg("compute") = "dtype")
      .def_static(
          "from_hf", &spec_from_hf, py::arg("config"), py::kw_only(), py::arg("dtype") = py::none(),
          py::arg("query_form") = "raw", py::arg("layer") = py::none(),
          py::arg("kv_dtype") = py::none(), py::arg("batch_invariant") = false,
          py::arg("tensor_parallel") = 1, py::arg("max_model_len") = py::none(),
          py::arg("key_form") = "local", py::arg("cascade") = false, py::arg("page_mass") = false,
          py::arg("key_bias") = false, py::arg("packed_prefill") = false, py::arg("states") = false,
          py::arg("compute") = "dtype", py::call_guard<LogDelivery>())
      .def_static("groups_from_hf", &groups_from_hf, py::arg("config"), py::kw_only(),
                  py::arg("dtype") = py::none(), py::arg("query_form") = "raw",
                  py::arg("kv_dtype") = py::none(), py::arg("batch_invariant") = false,
                  py::arg("tensor_parallel") = 1, py::arg("max_model_len") = py::none(),
                  py::arg("key_form") = "local", py::arg("cascade") = false,
                  py::arg("page_mass") = false, py::arg("key_bias") = false,
                  py::arg("packed_prefill") = false, py::arg("states") = false,
                  py::arg("compute") = "dtype", py::call_guard<LogDelivery>())
      .def_readonly("head_dim", &AttentionSpec::head_dim)
      .def_readonly("num_q_heads", &AttentionSpec::num_q_heads)
      .def_readonly("num_kv_heads", &AttentionSpec::num_kv_heads)
      .def_property_readonly("group_size", &AttentionSpec::group_size)
      .def_property_readonly("dtype", [](const AttentionSpec& s) { return to_string(s.dtype); })
      .def_property_readonly("kv_dtype",
                             [](const AttentionSpec& s) { return to_string(s.pool_dtype()); })
      .def_property_readonly("rope", &rope_of)
      .def_readonly("mask", &AttentionSpec::mask)
      .def_property_readonly("query_form",
                             [](const AttentionSpec& s) { return to_string(s.query_form); })
      .def_property_readonly("key_form",
                             [](const AttentionSpec& s) { return to_string(s.key_form); })
      .def_property_readonly("append_form",
                             [](const AttentionSpec& s) { return to_string(s.append_form); })
      .def_property_readonly("scale", &AttentionSpec::softmax_scale)
      .def_property_readonly("window", &window_of)
      .def_property_readonly("chunk", &chunk_of)
      .def_property_readonly("softcap", &softcap_of)
      .def_readonly("sinks", &AttentionSpec::sinks)
      .def_readonly("batch_invariant", &AttentionSpec::batch_invariant)
      .def_readonly("temperature", &AttentionSpec::temperature)
      .def_readonly("cascade", &AttentionSpec::cascade)
      .def_readonly("page_mass", &AttentionSpec::page_mass)
      .def_readonly("key_bias", &AttentionSpec::key_bias)
      .def_readonly("packed_prefill", &AttentionSpec::packed_prefill)
      .def_readonly("states", &AttentionSpec::states)
      .def_property_readonly("compute", [](const AttentionSpec& s) { return to_string(s.compute); })
      .def_property_readonly(
          "frequencies",
          [](const AttentionSpec& s) { return rope_variant(s.rope.variant).frequencies(s.rope); })
      .def_property_readonly(
          "attention_factor",
          [](const AttentionSpec& s) {
            return rope_variant(s.rope.variant).attention_factor(s.rope.parameters);
          })
      .def_property_readonly("rope_pairing", [](const AttentionSpec& s) {
        return pairing_name(rope_variant(s.rope.variant));
      });
  define_value(spec_type, [](const AttentionSpec& spec) { return arguments_of(spec); });
}

py::tuple layers_of(const LayerGroup& group) {
  py::tuple layers(py::cast(group.layers));
  return layers;
}

void bind_layer_group(py::module_& module) {
  py::class_<LayerGroup> group_type(module, "LayerGroup");
  group_type
      .def(py::init([](AttentionSpec spec, std::vector<int> layers) {
             LayerGroup group{std::move(spec), std::move(layers)};
             validate(group);
             return group;
           }),
           py::arg("spec"), py::arg("layers"))
      .def_readonly("spec", &LayerGroup::spec)
      .def_property_readonly("layers", &layers_of);
  define_value(group_type, [](const LayerGroup& group) {
    return py::dict(py::arg("spec") = group.spec, py::arg("layers") = layers_of(group));
  });
}

}  // namespace

void bind_specs(py::module_& module) {
  bind_registries(module);
  bind_rope(module);
  bind_temperature(module);
  bind_spec(module);
  bind_layer_group(module);
}

}  // namespace lazyrope
