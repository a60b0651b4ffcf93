// Runs every row of tests/support/bad_inputs.json, as tests/python/test_bad_inputs.py does.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <nlohmann/json.hpp>

#include "cache/error.h"
#include "codegen/error.h"
#include "runtime/attention/attention.h"
#include "runtime/attention/reposition.h"
#include "runtime/driver/driver.h"
#include "runtime/emulator/device.h"
#include "runtime/engine/devices.h"
#include "runtime/lazyrope.h"
#include "tests/support/engines.h"
#include "tests/support/host_tensor.h"
#include "tests/support/log_capture.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kEmulator = "emu:sm_80";
constexpr int kTokens = 11;  // in each of the base's groups "append" and "target"

const Json& table() {
  static const Json json =
      Json::parse(std::ifstream(LAZYROPE_TEST_SOURCE_DIR "/support/bad_inputs.json"));
  return json;
}

bool has_gpu() {
  try {
    return Driver::get().device_count() > 0;
  } catch (const DriverError&) {
    return false;
  }
}

ElementType type_of(const std::string& name) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kFp16, ElementType::kFp32,
                                 ElementType::kInt32, ElementType::kInt64})
    if (to_string(type) == name) return type;
  return ElementType::kOther;
}

// Runs the call that a row describes.
class Interpreter {
 public:
  explicit Interpreter(Json row)
      : row_(std::move(row)), change_(row_.value("change", Json::object())) {}

  void run() {
    const std::map<std::string, std::function<void()>> actions = {
        {"spec", [&] { validate(spec()); }},
        {"compile", [&] { compile_row(); }},
        {"plan", [&] { plan_step(/*changed=*/true, checks()); }},
        {"update", [&] { update_step(); }},
        {"attend", [&] { attend_step(); }},
        {"plan_append", [&] { plan_rows(checks()); }},
        {"append", [&] { append_rows(); }},
        {"reposition", [&] { reposition_rows(); }},
        {"load", [&] { load_truncated(); }}};
    actions.at(row_.at("do"))();
  }

 private:
  bool checks() const { return row_.value("check", false); }

  AttentionSpec spec() const {
    Json fields = table()["base"]["spec"];
    fields.merge_patch(row_.value("spec", Json::object()));
    if (row_["do"] == "spec") fields.merge_patch(change_);
    if (change_.contains("rope")) fields["rope"] = change_["rope"];
    AttentionSpec spec;
    spec.head_dim = fields["head_dim"];
    spec.num_q_heads = fields["num_q_heads"];
    spec.num_kv_heads = fields["num_kv_heads"];
    spec.dtype = dtype_from(fields["dtype"].get<std::string>());
    spec.rope = {fields["rope"]["variant"], fields["rope"]["rotary_dim"],
                 fields["rope"]["parameters"].get<RopeParameters>()};
    spec.mask = fields["mask"];
    spec.query_form = rope_form_from(fields["query_form"].get<std::string>());
    spec.key_form = key_form_from(fields["key_form"].get<std::string>());
    spec.append_form = rope_form_from(fields["append_form"].get<std::string>());
    if (fields.contains("scale")) spec.scale = fields["scale"].get<double>();
    if (fields.contains("window")) spec.mask_parameters["window"] = fields["window"].get<int>();
    spec.softcap = fields.value("softcap", 0.0);
    if (fields.contains("kv_dtype"))
      spec.kv_dtype = kv_dtype_from(fields["kv_dtype"].get<std::string>());
    spec.sinks = fields.value("sinks", false);
    return spec;
  }

  const Arch& arch() const {
    const Json name = row_.value("arch", Json(kEmulator));
    return name.is_null() ? current_arch() : find_arch(name.get<std::string>());
  }

  const Attention& attention() {
    attention_ = Attention::compile(shared_engine(), spec(), arch());
    return *attention_;
  }

  Config config(const fs::path& directory) const {
    Json variables = row_.value("environment", Json::object());
    if (!variables.contains("LAZYROPE_CACHE_DIR")) variables["LAZYROPE_CACHE_DIR"] = "none";
    Config config = Config::from_environment([&](const char* name) -> std::optional<std::string> {
      if (!variables.contains(name)) return std::nullopt;
      return variables[name] == "{dir}" ? directory.string() : variables[name].get<std::string>();
    });
    config.nvrtc_directories = {LAZYROPE_TEST_NVRTC_DIR};
    return config;
  }

  std::optional<KernelConfig> config() const {
    if (!row_.contains("config")) return std::nullopt;
    KernelConfig config = configs(spec().kernel_spec(), arch()).front();
    config.decode.stages = row_["config"].value("stages", config.decode.stages);
    config.decode.warp_n = row_["config"].value("warp_n", config.decode.warp_n);
    config.decode.mma_n = row_["config"].value("mma_n", config.decode.mma_n);
    return config;
  }

  static void damage(const fs::path& directory, const std::string& how) {
    for (const fs::path& path : std::vector<fs::path>(fs::directory_iterator(directory), {})) {
      const auto size = fs::file_size(path);
      if (how == "truncate") fs::resize_file(path, size / 2);
      if (how == "flip")
        std::fstream(path, std::ios::in | std::ios::out)
            .seekp(static_cast<long>(size) - 1)
            .put('~');
    }
  }

  void compile_row() {
    const TemporaryDirectory directory;
    const auto compile_once = [&] {
      Engine engine(config(directory.path()));
      return Attention::compile(engine, spec(), arch(), {.config = config(), .engine = {}});
    };
    if (row_.contains("damage")) {
      compile_once();
      damage(directory.path(), row_["damage"]);
    }
    const auto compiled = compile_once();
    if (!row_.contains("from_cache")) return;
    for (const auto& kernel : compiled->kernels())
      EXPECT_EQ(kernel->from_cache(), row_["from_cache"].get<bool>()) << kernel->name();
  }

  // Returns a tensor with the row's changes. This object owns the memory.
  TensorView tensor(const std::string& name, ElementType type, std::vector<std::int64_t> shape,
                    const std::vector<int>& values = {}) {
    const Json change = change_.value(name, Json::object());
    type = change.contains("dtype") ? type_of(change["dtype"]) : type;
    shape = change.value("shape", shape);
    TensorView view = HostTensor(type, shape).view();
    constexpr std::int64_t kRoom = 1 << 16;  // int32 elements: enough for every tensor that is read
    HostTensor& storage = storage_.emplace_back(ElementType::kInt32, std::vector{kRoom});
    std::copy(values.begin(), values.end(), storage.data<int>());
    view.data = storage.data<std::byte>() + 2 * change.value("offset", 0);
    const auto strides = change.value("strides", std::vector<std::int64_t>{});
    std::copy(strides.begin(), strides.end(), view.strides.begin());
    if (change.contains("device")) view.device_type = DeviceType::kGpu;
    return view;
  }

  // Returns the metadata `name` of the group "step", "append" or "target".
  TensorView ints(const char* group, const std::string& name, bool changed = true) {
    const bool other_values = changed && change_.contains(name) && change_[name].is_array();
    const auto values =
        (other_values ? change_[name] : table()["base"][group][name]).get<std::vector<int>>();
    const std::string changes = changed && !other_values ? name : "";
    return tensor(changes, ElementType::kInt32, {std::ssize(values)}, values);
  }

  TensorView data(const std::string& name) {
    const bool is_float = name == "lse" || name == "sinks";
    const ElementType type = is_float ? ElementType::kFp32 : ElementType::kBf16;
    return tensor(name, type, table()["base"]["tensors"][name]);
  }

  StepTensors step_tensors(bool changed) {
    const auto t = [&](const char* name) { return ints("step", name, changed); };
    return {.q_indptr = t("q_indptr"),
            .q_position = t("q_position"),
            .segments = {t("segment_indptr"), t("base"), t("start"), t("length"), t("first_page"),
                         t("lead")},
            .pages = t("pages")};
  }

  PoolFormat format() const {
    return {change_.value("page_size", 16),
            change_.value("layout", "NHD") == "HND" ? KvLayout::kHnd : KvLayout::kNhd};
  }

  std::shared_ptr<Step> plan_step(bool changed, bool check) {
    const Json given = change_.value("capacity", Json::object());
    const StepCapacity capacity = {given.value("requests", 0), given.value("segments", 0),
                                   given.value("query_tokens", 0),
                                   given.value("tokens_per_request", 0)};
    return plan(attention(), step_tensors(changed), format(), capacity, nullptr, check);
  }

  void update_step() {
    const auto step = plan_step(/*changed=*/false, /*check=*/false);
    update(*step, step_tensors(/*changed=*/true), nullptr, checks());
  }

  PoolTensors pool() { return {data("k_pool"), data("v_pool")}; }

  void attend_step() {
    const auto step = plan_step(/*changed=*/true, /*check=*/false);
    if (checks()) step->check_pages(data("k_pool").shape[0], nullptr);
    const bool has_sinks = change_.contains("sinks") ? !change_["sinks"].is_null() : spec().sinks;
    std::optional<TensorView> sinks;
    if (has_sinks) sinks = data("sinks");
    attend(*attention_, data("q"), pool(), *step, data("out"), data("lse"), nullptr, sinks);
  }

  AppendTensors append_tensors(const char* group, bool changed) {
    const auto t = [&](const char* name) { return ints(group, name, changed); };
    return {.spans = {t("indptr"), t("start"), t("first_page"), t("lead")}, .pages = t("pages")};
  }

  std::shared_ptr<AppendStep> plan_rows(bool check) {
    return plan_append(attention(), append_tensors("append", /*changed=*/true),
                       {change_.value("tokens", kTokens)}, format(), nullptr, check);
  }

  void append_rows() {
    const auto step = plan_rows(/*check=*/false);
    if (checks()) step->check_pages(data("k_pool").shape[0], nullptr);
    append(*attention_, data("k"), data("v"), pool(), *step);
  }

  void reposition_rows() {
    const auto source = plan_rows(/*check=*/false);
    const auto target =
        plan_append(*attention_, append_tensors("target", /*changed=*/false), {kTokens});
    const auto mover = Reposition::compile(shared_engine(), spec(), arch());
    if (checks()) check_moves(*source, *target, data("k_pool").shape[0], nullptr);
    reposition(*mover, pool(), *source, *target);
  }

  void load_truncated() {
    Binary binary = attention().kernel(KernelKind::kPlanAppend).binary();
    binary.code.resize(change_.at("bytes"));
    emulator_device()->load(binary);
  }

  const Json row_;
  const Json change_;
  std::shared_ptr<const Attention> attention_;
  std::list<HostTensor> storage_;
};

struct Row {
  Json json;
};

std::vector<Row> rows() {
  std::vector<Row> result;
  for (const Json& json : table()["rows"]) result.push_back({json});
  return result;
}

std::string name_of(const Row& row) { return row.json["name"]; }

void PrintTo(const Row& row, std::ostream* out) { *out << name_of(row); }

// Succeeds if `action` throws nothing and the log has each of `parts`. Without parts, the log must
// be empty.
testing::AssertionResult only_warns(const auto& action, const std::vector<std::string>& parts) {
  const LogCapture log;
  action();
  if (parts.empty() && !log.messages().empty()) return testing::AssertionFailure() << log.text();
  return says(log.text(), parts);
}

class BadInputs : public testing::TestWithParam<Row> {};

TEST_P(BadInputs, GetTheErrorOfTheTable) {
  const Json& row = GetParam().json;
  if (row.value("only", "c++") != "c++") GTEST_SKIP() << "this row is for Python only";
  if (row.value("needs", "") == "no gpu" && has_gpu()) GTEST_SKIP() << "there is a GPU";
  const auto parts = row["says"].get<std::vector<std::string>>();
  const auto run = [&] { Interpreter(row).run(); };
  const std::string error = row["error"].is_null() ? "none" : row["error"].get<std::string>();
  const std::map<std::string, std::function<testing::AssertionResult()>> expectations = {
      {"none", [&] { return only_warns(run, parts); }},
      {"SpecError", [&] { return throws<SpecError>(run, parts); }},
      {"CacheError", [&] { return throws<CacheError>(run, parts); }},
      {"CompileError", [&] { return throws<CompileError>(run, parts); }},
      {"DriverError", [&] { return throws<DriverError>(run, parts); }}};
  EXPECT_TRUE(expectations.at(error)());
}

INSTANTIATE_TEST_SUITE_P(Table, BadInputs, testing::ValuesIn(rows()),
                         [](const auto& row) { return name_of(row.param); });

// The base case is legal, so a row's error comes from the row's change.
TEST(BadInputsTable, TheBaseIsLegal) {
  for (const char* action :
       {"spec", "plan", "update", "attend", "plan_append", "append", "reposition"})
    EXPECT_NO_THROW(Interpreter({{"do", action}, {"check", true}}).run()) << action;
}

}  // namespace
}  // namespace lazyrope
