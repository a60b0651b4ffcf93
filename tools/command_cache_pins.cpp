#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "cache/pack.h"
#include "cache/pins.h"
#include "runtime/base/table.h"
#include "runtime/engine/engine.h"
#include "tools/cache_pins.h"
#include "tools/common_options.h"
#include "tools/output.h"

namespace lazyrope {
namespace {

using std::chrono::system_clock;

constexpr const char* kPinFooter =
    R"(The command keeps the entries that FILE names: neither `lazyrope cache prune` nor the
automatic pruning removes them. FILE is a pack, or a JSON object with a list entries [{key}], as
`lazyrope cache list --json` prints it. The entries need not be in the cache yet. A pin of the
same NAME is replaced. Pinned entries may exceed LAZYROPE_CACHE_MAX_BYTES; no other kernel is then
kept, and a warning says so. `lazyrope cache clear` removes pinned entries too.
--json prints an object: directory, pins [{name, entries, present, bytes}].
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope cache pin production kernels.lzp)";
constexpr const char* kUnpinFooter =
    R"(The entries of the pin NAME may be pruned again. They stay until then.
--json prints an object: directory, pins [{name, entries, present, bytes}].
Exit codes: 0 done, 1 if there is no such pin, 2 wrong usage.

Example:
  lazyrope cache unpin production)";
constexpr const char* kPinsFooter =
    R"(The table has one row per pin: how many entries it names, and the number and the size of
those that are in the cache.
--json prints an object: directory, pins [{name, entries, present, bytes}].
Exit codes: 0 done, 1 if a pin cannot be read, 2 wrong usage.

Example:
  lazyrope cache pins)";

struct PinOptions {
  std::string cache;
  std::string name;
  std::string file;
  bool json = false;
};

struct PinRow {
  std::string name;
  std::size_t entries = 0;
  std::size_t present = 0;
  std::uint64_t bytes = 0;
};

std::optional<std::chrono::hours> parse_age(std::string_view text) {
  constexpr std::pair<char, int> kUnits[] = {{'h', 1}, {'d', 24}, {'w', 7 * 24}};
  constexpr int kMaxCount = 100000;
  if (text.empty()) return std::nullopt;
  const auto unit = std::ranges::find(kUnits, text.back(), &std::pair<char, int>::first);
  text.remove_suffix(1);
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool is_count = error == std::errc() && end == text.data() + text.size() && count >= 0;
  if (unit == std::end(kUnits) || !is_count || count > kMaxCount) return std::nullopt;
  return std::chrono::hours(count * unit->second);
}

std::vector<PinRow> rows_of(const DiskStore& store) {
  const std::vector<ListedEntry> entries = store.list();
  std::vector<PinRow> rows;
  for (const Pin& pin : pins_in(store.root(), store.trust())) {
    PinRow row{pin.name, pin.keys.size()};
    for (const ListedEntry& entry : entries) {
      if (!pin.keys.contains(entry.key)) continue;
      ++row.present;
      row.bytes += entry.bytes;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

int report(const PinOptions& options, const DiskStore& store) {
  const std::vector<PinRow> rows = rows_of(store);
  if (options.json) {
    OrderedJson pins = OrderedJson::array();
    for (const PinRow& row : rows)
      pins.push_back({{"name", row.name},
                      {"entries", row.entries},
                      {"present", row.present},
                      {"bytes", row.bytes}});
    print(json_text({{"directory", store.root().string()}, {"pins", pins}}));
    return 0;
  }
  Table table(
      {{"pin"}, {"entries", Align::kRight}, {"present", Align::kRight}, {"size", Align::kRight}});
  for (const PinRow& row : rows)
    table.add(
        {row.name, fmt::to_string(row.entries), fmt::to_string(row.present), size_text(row.bytes)});
  print(fmt::format("{}{} pins in {}\n", rows.empty() ? "" : table.text() + "\n", rows.size(),
                    store.root().string()));
  return 0;
}

void check_name(const PinOptions& options) {
  if (options.name.empty()) throw UsageError("NAME is missing: give the name of the pin");
}

void pin(const PinOptions& options, const DiskStore& store) {
  check_name(options);
  if (options.file.empty()) throw UsageError("FILE is missing: give a pack or a manifest");
  write_pin(store.root(), {options.name, keys_in_file(options.file)});
}

void unpin(const PinOptions& options, const DiskStore& store) {
  check_name(options);
  remove_pin(store.root(), options.name);
}

using PinAction = void (*)(const PinOptions&, const DiskStore&);

Command pin_subcommand(CLI::App& cache, const char* name, const char* meaning, const char* footer,
                       const std::shared_ptr<PinOptions>& options, PinAction action) {
  CLI::App* const app = cache.add_subcommand(name, meaning);
  app->footer(footer);
  add_cache_option(*app, options->cache);
  add_json_option(*app, options->json);
  return {app, [options, action] {
            const Engine engine(config_with_cache(options->cache));
            action(*options, engine.store());
            return report(*options, engine.store());
          }};
}

}  // namespace

void add_keep_options(CLI::App& app, KeepOptions& options) {
  app.add_option("--older-than", options.older_than,
                 "Also remove entries that were not used for this time, as\n30d; h, d and w are "
                 "hours, days and weeks")
      ->option_text("AGE");
  app.add_option("--keep", options.keep,
                 "Keep the entries that these packs or manifests name;\npins are kept too")
      ->option_text("FILE...");
}

PruneLimits prune_limits(const KeepOptions& options, std::uint64_t max_bytes) {
  PruneLimits limits{.max_bytes = max_bytes};
  for (const std::string& file : options.keep) limits.keep.merge(keys_in_file(file));
  if (options.older_than.empty()) return limits;
  const auto age = parse_age(options.older_than);
  if (!age)
    throw UsageError(fmt::format(
        "--older-than = {}; it must be a number of at most 100000, followed by h, d or w (hours, "
        "days or weeks)",
        options.older_than));
  limits.oldest_use = system_clock::now() - *age;
  return limits;
}

std::vector<Command> pin_commands(CLI::App& cache) {
  const auto options = std::make_shared<PinOptions>();
  std::vector<Command> commands = {
      pin_subcommand(cache, "pin", "Never prune the entries that a file names", kPinFooter, options,
                     pin),
      pin_subcommand(cache, "unpin", "Remove a pin", kUnpinFooter, options, unpin),
      pin_subcommand(cache, "pins", "Show every pin", kPinsFooter, options,
                     [](const PinOptions&, const DiskStore&) {})};
  for (CLI::App* const app : {commands[0].app, commands[1].app})
    app->add_option("NAME", options->name, "Name of the pin");
  commands[0].app->add_option("FILE", options->file, "A pack or a manifest");
  return commands;
}

}  // namespace lazyrope
