#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/error.h"
#include "runtime/base/table.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_entry.h"
#include "runtime/engine/tuning.h"
#include "tools/cache_pins.h"
#include "tools/cache_why.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/output.h"

namespace lazyrope {
namespace {

constexpr std::size_t kShownCompiler = 20;  // characters: name, version, first digits of the build

constexpr const char* kCacheFooter =
    R"(Choose a subcommand. The cache is one directory that all processes of a user share. It has
compiled kernels and the records of `lazyrope autotune`. Every subcommand is safe while other
processes compile and use kernels.
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope cache list --json | jq '.entries[].arch')";
constexpr const char* kCacheListFooter =
    R"(The table has one row per entry, the most recently used first. "tuning" is a record of
`lazyrope autotune`; (bad) is a file that cannot be used, and the last column has the reason.
--json prints an object: directory, bytes, entries [{key, entry, arch, bytes, last_use (UTC),
compiler, error}]; error is null for a good entry; entry, arch and compiler are null for a bad one.
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope cache list --cache /opt/kernels)";
constexpr const char* kCacheVerifyFooter =
    R"(The command reads every file and checks its checksum, owner and mode. It prints one line
per bad entry, then their number. A link that is not followed, a FIFO, a socket or a folder with the
name of an entry is a bad entry. A bad entry is never used; compiling its kernel again replaces it.
The command also counts the kernels that another NVRTC than the present one compiled. They are good.
--json prints an object: directory, entries, other_compilers, bad [{key, bytes, error}].
Exit codes: 0 if every entry is good, 1 if one is bad, 2 wrong usage.

Example:
  lazyrope cache verify)";
constexpr const char* kCachePruneFooter =
    R"(The command removes the least recently used entries until the rest fit into SIZE. It also
removes temporary files that killed processes left, and links, FIFOs, sockets and empty folders with
the name of an entry. It keeps links if LAZYROPE_CACHE_TRUST is set, because they are then used. It
prints how many entries and bytes it removed, and how many bytes are left.
With --older-than it first removes the entries that were not used for so long. Entries that
--keep or a pin (`lazyrope cache pin`) names stay, even if they exceed SIZE; a message says so.
--json prints an object: directory, removed {entries, bytes}, left_bytes, remaining_folders.
Exit codes: 0 done, 1 failed or a folder with the name of an entry is not empty, 2 wrong usage.

Example:
  lazyrope cache prune --max-bytes 500M)";
constexpr const char* kCacheClearFooter =
    R"(Give --yes: without it the command removes nothing and exits with 2. It removes links, never
the files to which they lead. It prints how many entries and bytes it removed, and how many bytes
are left.
--json prints an object: directory, removed {entries, bytes}, left_bytes, remaining_folders.
Exit codes: 0 done, 1 failed or a folder with the name of an entry is not empty, 2 wrong usage.

Example:
  lazyrope cache clear --yes)";
constexpr const char* kCachePathFooter =
    R"(The command prints the path of the cache directory, which need not exist yet.
Exit codes: 0 done, 1 if kernels are cached in memory only, 2 wrong usage.

Example:
  du -sh $(lazyrope cache path))";

struct CacheOptions {
  std::string cache;
  bool json = false;
  bool yes = false;
  std::string max_bytes;  // empty: the limit of LAZYROPE_CACHE_MAX_BYTES
  KeepOptions keep;
};

std::string fact(const ListedEntry& entry, const char* name) {
  return fact_text(entry.facts, name);
}

std::time_t seconds_of(std::chrono::system_clock::time_point time) {
  return std::chrono::system_clock::to_time_t(time);
}

OrderedJson json_of(const ListedEntry& entry) {
  const auto known = [&](const char* name) {
    return entry.error.empty() ? OrderedJson(fact(entry, name)) : OrderedJson(nullptr);
  };
  return {
      {"key", entry.key},
      {"entry", known("entry")},
      {"arch", known("arch")},
      {"bytes", entry.bytes},
      {"last_use", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds_of(entry.last_use)))},
      {"compiler", known("compiler")},
      {"error", entry.error.empty() ? OrderedJson(nullptr) : OrderedJson(entry.error)}};
}

std::string directory_text(const DiskStore& store) {
  return store.root().empty() ? "no directory (memory only)" : store.root().string();
}

bool is_tuning(const ListedEntry& entry) {
  return entry.error.empty() && fact(entry, "entry") == kTuningEntry;
}

// Returns, for example, "5 kernels, 2 tuning records".
std::string count_text(const std::vector<ListedEntry>& entries) {
  const auto records = std::ranges::count_if(entries, is_tuning);
  const std::string kernels = fmt::format("{} kernels", std::ssize(entries) - records);
  return records == 0 ? kernels : fmt::format("{}, {} tuning records", kernels, records);
}

std::string table_of(const std::vector<ListedEntry>& entries) {
  Table table({{"key"}, {"entry"}, {"arch"}, {"bytes", Align::kRight}, {"last use"}, {"compiler"}});
  for (const ListedEntry& entry : entries) {
    const bool good = entry.error.empty();
    table.add({entry.key.substr(0, kShownKey), good ? fact(entry, "entry") : "(bad)",
               good ? fact(entry, "arch") : "", fmt::to_string(entry.bytes),
               fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(seconds_of(entry.last_use))),
               good ? fact(entry, "compiler").substr(0, kShownCompiler) : entry.error});
  }
  return table.text();
}

int list_cache(const CacheOptions& options, const Engine& engine) {
  const DiskStore& store = engine.store();
  const std::vector<ListedEntry> entries = store.list();
  const std::uint64_t bytes = store.size_bytes();
  if (options.json) {
    OrderedJson listed = OrderedJson::array();
    for (const ListedEntry& entry : entries) listed.push_back(json_of(entry));
    print(json_text({{"directory", store.root().string()}, {"bytes", bytes}, {"entries", listed}}));
    return 0;
  }
  print(fmt::format("{}{}, {} of at most {}, in {}\n",
                    entries.empty() ? "" : table_of(entries) + "\n", count_text(entries),
                    size_text(bytes), size_text(engine.config().cache_max_bytes),
                    directory_text(store)));
  return 0;
}

int verify_cache(const CacheOptions& options, const Engine& engine) {
  const DiskStore& store = engine.store();
  std::vector<ListedEntry> bad = store.list();
  const std::size_t total = bad.size();
  const std::string present = engine.nvrtc_name();
  const std::ptrdiff_t others = kernels_of_other_nvrtc(bad, present);
  std::erase_if(bad, [](const ListedEntry& entry) { return entry.error.empty(); });
  if (options.json) {
    OrderedJson listed = OrderedJson::array();
    for (const ListedEntry& entry : bad)
      listed.push_back({{"key", entry.key}, {"bytes", entry.bytes}, {"error", entry.error}});
    print(json_text({{"directory", store.root().string()},
                     {"entries", total},
                     {"other_compilers", others},
                     {"bad", listed}}));
  } else {
    std::string text;
    for (const ListedEntry& entry : bad) text += fmt::format("{}: {}\n", entry.key, entry.error);
    if (others > 0)
      text +=
          fmt::format("{} kernels were compiled by another compiler than {}\n", others, present);
    print(fmt::format("{}{} of {} entries are bad, in {}\n", text, bad.size(), total,
                      directory_text(store)));
  }
  return bad.empty() ? 0 : 1;
}

// Prints what was removed. Throws if something that should be removed is still there.
int report_removed(const CacheOptions& options, const DiskStore& store, const Removed& removed) {
  const std::uint64_t left = store.size_bytes();
  const std::vector<std::string>& folders = removed.remaining_folders;
  if (options.json)
    print(json_text({{"directory", store.root().string()},
                     {"removed", {{"entries", removed.entries()}, {"bytes", removed.bytes}}},
                     {"left_bytes", left},
                     {"remaining_folders", folders}}));
  else
    print(fmt::format("removed {} entries, {}; {} left in {}\n", removed.entries(),
                      size_text(removed.bytes), size_text(left), directory_text(store)));
  if (folders.empty()) return 0;
  throw std::runtime_error(
      fmt::format("not removed, because it is a folder that is not empty: {}; remove it by hand",
                  fmt::join(folders, ", ")));
}

// Parses `text` as a value of LAZYROPE_CACHE_MAX_BYTES, so that the option takes the same values.
std::uint64_t size_of(const std::string& text) {
  const auto only_this = [&](const char* name) {
    const bool asked = std::string_view(name) == "LAZYROPE_CACHE_MAX_BYTES";
    return asked ? std::optional(text) : std::nullopt;
  };
  try {
    return Config::from_environment(only_this).cache_max_bytes;
  } catch (const SpecError&) {
    throw UsageError(
        fmt::format("--max-bytes = {}; it must be a number of bytes, or one followed by K, M, G or "
                    "T (powers of 1024)",
                    text));
  }
}

int prune_cache(const CacheOptions& options, const Engine& engine) {
  const std::uint64_t max_bytes =
      options.max_bytes.empty() ? engine.config().cache_max_bytes : size_of(options.max_bytes);
  Removed removed = engine.store().prune(prune_limits(options.keep, max_bytes));
  if (removed.excess_bytes > 0)
    fmt::print(stderr, "lazyrope: entries that --keep or pins name exceed {} by {}\n",
               size_text(max_bytes), size_text(removed.excess_bytes));
  Removed irregular = engine.store().remove_irregular();
  std::ranges::move(irregular.keys, std::back_inserter(removed.keys));
  removed.remaining_folders = std::move(irregular.remaining_folders);
  return report_removed(options, engine.store(), removed);
}

int clear_cache(const CacheOptions& options, const Engine& engine) {
  const DiskStore& store = engine.store();
  if (!options.yes)
    throw UsageError(
        fmt::format("this would remove all kernels and tuning records, {}, from {}; give --yes to "
                    "remove them",
                    size_text(store.size_bytes()), directory_text(store)));
  return report_removed(options, store, store.clear());
}

int print_cache_path(const CacheOptions&, const Engine& engine) {
  const DiskStore& store = engine.store();
  if (store.root().empty())
    throw std::runtime_error(
        "there is no cache directory, so kernels are cached in memory only: give --cache DIR or "
        "set LAZYROPE_CACHE_DIR");
  print(store.root().string() + "\n");
  return 0;
}

using CacheAction = int (*)(const CacheOptions&, const Engine&);

Command cache_subcommand(CLI::App& cache, const char* name, const char* meaning, const char* footer,
                         CacheOptions& options, CacheAction action) {
  CLI::App* const app = cache.add_subcommand(name, meaning);
  app->footer(footer);
  add_cache_option(*app, options.cache);
  return {app,
          [&options, action] { return action(options, Engine(config_with_cache(options.cache))); }};
}

}  // namespace

Command cache_command(CLI::App& root) {
  CLI::App* const app = root.add_subcommand("cache", "List, verify or remove the kernels on disk");
  app->footer(kCacheFooter);
  app->require_subcommand(1);
  const auto options = std::make_shared<CacheOptions>();
  const auto add = [&](const char* name, const char* meaning, const char* footer,
                       CacheAction action) {
    return cache_subcommand(*app, name, meaning, footer, *options, action);
  };
  std::vector<Command> leaves = {
      add("list", "Show every entry", kCacheListFooter, list_cache),
      add("verify", "Check every entry", kCacheVerifyFooter, verify_cache),
      add("prune", "Remove the least recently used entries", kCachePruneFooter, prune_cache),
      add("clear", "Remove all entries", kCacheClearFooter, clear_cache),
      add("path", "Print the path of the directory", kCachePathFooter, print_cache_path)};
  leaves.push_back(why_command(*app));
  std::ranges::move(pin_commands(*app), std::back_inserter(leaves));
  for (const char* name : {"list", "verify", "prune", "clear"})
    add_json_option(*app->get_subcommand(name), options->json);
  app->get_subcommand("prune")
      ->add_option("--max-bytes", options->max_bytes,
                   "Bytes that may stay; K, M, G and T are powers of 1024\n"
                   "(default: LAZYROPE_CACHE_MAX_BYTES)")
      ->option_text("SIZE");
  add_keep_options(*app->get_subcommand("prune"), options->keep);
  app->get_subcommand("clear")->add_flag("--yes", options->yes,
                                         "Confirm that all entries are to be removed");
  return {app, [options, leaves] { return run_parsed(leaves); }};
}

}  // namespace lazyrope
