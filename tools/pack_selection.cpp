#include "tools/pack_selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "runtime/engine/tuning.h"
#include "runtime/tuning/tuned.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/completion.h"
#include "tools/output.h"

namespace lazyrope {
namespace {

using Listing = std::vector<ListedEntry>;

// Collects the keys of all kernels that a process asks for, also of those that spill and lead it to
// another config.
class KeyCollector : public KernelListener {
 public:
  void on_begin(std::size_t) override {}
  void on_result(const KernelRequest&, const KernelResult& result) override {
    const std::lock_guard lock(mutex_);
    (result.kernel == nullptr ? missing : found).insert(result.key);
  }

  std::set<std::string> found;
  std::set<std::string> missing;

 private:
  std::mutex mutex_;
};

// A tuning record, and the kernels of its config.
struct TunedSet {
  std::string record;
  KernelSetRequest set;
};

bool names_models(const SelectionOptions& options) {
  return std::ranges::any_of(options.of_models,
                             [](const CLI::Option* option) { return option->count() > 0; });
}

bool is_every_arch(const std::vector<std::string>& names) {
  return names.empty() || names == std::vector<std::string>{kAllArchs};
}

// Returns the archs of the entries, without those that this version does not know.
std::vector<std::string> archs_in(const Listing& entries) {
  std::set<std::string> names;
  for (const ListedEntry& entry : entries) names.insert(fact_text(entry.facts, "arch"));
  std::vector<std::string> known;
  for (const Arch& arch : archs())
    if (names.contains(arch.name)) known.push_back(arch.name);
  return known;
}

// Returns the records in the cache of the selected attentions and archs, which may be of several
// GPUs.
std::vector<TunedSet> tuned_sets(const Listing& entries, const KernelOptions& options) {
  std::vector<TunedSet> sets;
  const std::vector<NamedSpec> specs = specs_of(options.spec);
  for (const ListedEntry& entry : entries) {
    const std::string arch = fact_text(entry.facts, "arch");
    if (fact_text(entry.facts, "entry") != kTuningEntry ||
        std::ranges::find(options.archs, arch) == options.archs.end())
      continue;
    const auto field = [&](const char* name) {
      const auto found = entry.fields.find(name);
      return found == entry.fields.end() ? "" : found->second;
    };
    for (const NamedSpec& named : specs) {
      const Arch& known = named_arch(arch);
      if (tuning_key(named.spec, known, field("gpu"), field("sm_count")).hex() != entry.key)
        continue;
      const Tuning tuning = tuning_of(nlohmann::json::parse(entry.facts));
      sets.push_back({entry.key, attention_set(named.spec, known, tuning.config)});
    }
  }
  return sets;
}

std::set<std::string> keys_of_models(Engine& engine, const Listing& entries,
                                     KernelOptions options) {
  if (options.archs.empty()) options.archs = archs_in(entries);
  if (options.archs.empty()) return {};
  std::vector<KernelSetRequest> sets = kernel_sets_of(options);
  if (is_every_arch(options.archs)) {
    options.archs.clear();
    for (const KernelSetRequest& set : sets) options.archs.push_back(set.arch->name);
  }
  std::set<std::string> records;
  for (TunedSet& tuned : tuned_sets(entries, options)) {
    records.insert(tuned.record);
    sets.push_back(std::move(tuned.set));
  }
  KeyCollector collector;
  compile_sets(engine, sets, {.cache_only = true, .listener = &collector});
  if (!collector.missing.empty())
    throw std::runtime_error(fmt::format(
        "{} of {} kernels that the models need are missing from {}: compile them with `lazyrope "
        "precompile --out DIR` and the same options",
        collector.missing.size(), collector.missing.size() + collector.found.size(),
        engine.store().root().string()));
  collector.found.merge(records);
  return collector.found;
}

}  // namespace

void add_pack_options(CLI::App& app, SelectionOptions& options) {
  CLI::Option* const arch =
      app.add_option("--arch", options.kernels.archs,
                     "Any of " + arch_names() +
                         ",\nseparated by commas; or all\n(default: all archs of the cache)")
          ->option_text("NAME,...")
          ->delimiter(',');
  offer_values(arch, offered_archs());
  const auto is_known = app.get_options();
  app.add_flag("--reposition", options.kernels.reposition,
               "Also pack reposition, the kernel of\nlazyrope.compile_reposition()");
  add_spec_options(app, options.kernels.spec);
  for (CLI::Option* option : app.get_options())
    if (std::ranges::find(is_known, option) == is_known.end()) options.of_models.push_back(option);
}

Selection select_entries(Engine& engine, const SelectionOptions& options) {
  const std::vector<std::string>& archs = options.kernels.archs;
  if (!is_every_arch(archs))
    for (const std::string& name : archs) (void)named_arch(name);
  Listing entries = engine.store().list();
  const std::size_t all = entries.size();
  std::erase_if(entries, [](const ListedEntry& entry) { return !entry.error.empty(); });
  Selection selection{{}, all - entries.size()};
  const bool by_model = names_models(options);
  const std::set<std::string> keys =
      by_model ? keys_of_models(engine, entries, options.kernels) : std::set<std::string>{};
  const auto is_selected = [&](const ListedEntry& entry) {
    if (by_model) return keys.contains(entry.key);
    return is_every_arch(archs) ||
           std::ranges::find(archs, fact_text(entry.facts, "arch")) != archs.end();
  };
  for (const ListedEntry& entry : entries)
    if (is_selected(entry)) selection.keys.push_back(Key::from_fields(entry.fields));
  if (selection.keys.empty())
    throw std::runtime_error(
        fmt::format("{} has no entry to pack: fill it with `lazyrope precompile --out DIR`, or "
                    "choose another --cache or --arch",
                    engine.store().root().string()));
  return selection;
}

}  // namespace lazyrope
