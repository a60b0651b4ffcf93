#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_set.h"
#include "tools/cache_why.h"
#include "tools/common_options.h"
#include "tools/kernel_options.h"
#include "tools/output.h"

namespace lazyrope {
namespace {

constexpr const char* kWhyFooter =
    R"(The command looks for the kernels of a model, as a program with this environment would, and
compiles nothing. For a kernel that is missing it shows the reason and how the stored entry that is
most like it differs: in the spec, the config, the arch, the templates or the version of lazyrope.
A program may use another config than the default, if `lazyrope autotune` has chosen one.
--json prints an object: directory, kernels [{model, arch, kernel, key, found, compiler, reason,
nearest, differs [{name, there, wanted}]}].
Exit codes: 0 if every kernel is found, 1 if one is missing, 2 wrong usage.

Example:
  lazyrope cache why --model Llama-3.1-8B --arch sm_90a)";

struct WhyOptions {
  KernelOptions kernels;
  std::string cache;
  bool json = false;
};

struct WhyRow {
  const KernelSetRequest* set;
  KernelKind kind;
  CacheExplanation explanation;
};

std::vector<WhyRow> explain(const Engine& engine, const std::vector<KernelSetRequest>& sets) {
  std::vector<WhyRow> rows;
  for (const KernelSetRequest& set : sets)
    for (const KernelKind kind : set.kinds) {
      const KernelRequest request = {render(kind, set.spec, set.configs.front(), *set.arch),
                                     set.arch, set.name};
      rows.push_back({&set, kind, engine.explain(request)});
    }
  return rows;
}

OrderedJson json_of(const WhyRow& row) {
  const CacheExplanation& found = row.explanation;
  OrderedJson differs = OrderedJson::array();
  for (const CacheDifference& difference : found.differs)
    differs.push_back(
        {{"name", difference.name}, {"there", difference.there}, {"wanted", difference.wanted}});
  const auto text = [](const std::string& value) {
    return value.empty() ? OrderedJson(nullptr) : OrderedJson(value);
  };
  return {{"model", row.set->name},
          {"arch", row.set->arch->name},
          {"kernel", to_string(row.kind)},
          {"key", found.key},
          {"found", found.is_found},
          {"compiler", text(found.compiler)},
          {"reason", text(found.reason)},
          {"nearest", text(found.nearest)},
          {"differs", differs}};
}

std::string text_of(const WhyRow& row) {
  const CacheExplanation& found = row.explanation;
  std::string text =
      fmt::format("{} {} {}: ", row.set->name, row.set->arch->name, to_string(row.kind));
  if (found.is_found)
    return text + fmt::format("found, {}, by {}\n", found.key.substr(0, kShownKey), found.compiler);
  text += fmt::format("missing: {}\n", found.reason);
  if (found.nearest.empty()) return text + "  there is no entry to compare with\n";
  text += fmt::format("  the nearest entry, {}, has\n", found.nearest.substr(0, kShownKey));
  for (const CacheDifference& difference : found.differs)
    text +=
        fmt::format("    {}: {}\n      wanted: {}\n", difference.name,
                    difference.there.empty() ? "(not noted)" : difference.there, difference.wanted);
  return text;
}

int why(const WhyOptions& options) {
  const Engine engine(config_with_cache(options.cache));
  const std::vector<KernelSetRequest> sets = kernel_sets_of(options.kernels);
  const std::vector<WhyRow> rows = explain(engine, sets);
  std::size_t missing = 0;
  OrderedJson kernels = OrderedJson::array();
  std::string text;
  for (const WhyRow& row : rows) {
    missing += row.explanation.is_found ? 0 : 1;
    kernels.push_back(json_of(row));
    text += text_of(row);
  }
  if (options.json)
    print(json_text({{"directory", engine.store().root().string()}, {"kernels", kernels}}));
  else
    print(fmt::format("{}{} of {} kernels are missing\n", text, missing, rows.size()));
  return missing == 0 ? 0 : 1;
}

}  // namespace

Command why_command(CLI::App& cache) {
  const auto options = std::make_shared<WhyOptions>();
  CLI::App* const app = cache.add_subcommand("why", "Explain why a model's kernels are missing");
  app->footer(kWhyFooter);
  add_cache_option(*app, options->cache);
  add_json_option(*app, options->json);
  add_selection_options(*app, options->kernels);
  return {app, [options] { return why(*options); }};
}

}  // namespace lazyrope
