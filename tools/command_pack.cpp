#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "cache/file_io.h"
#include "cache/signing_key.h"
#include "runtime/engine/packing.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/output.h"
#include "tools/pack_output.h"
#include "tools/pack_selection.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPackFooter =
    R"(The command writes kernels and tuning records of a cache into one file, for
`lazyrope unpack` on other machines. Without --arch and --model the pack has the whole cache.
--arch selects the entries of these archs. --model, or the fields of one attention, selects the
kernels that they need; a missing kernel is an error. Their tuning records in the cache and the
kernels of the tuned configs are packed too.
With --key the pack is signed: unpack then detects any change of it, and with --trusted accepts
only your packs. `lazyrope keygen` makes a key.
The file has no times and no paths, so the same kernels and the same key give the same bytes.
Entries of the cache that cannot be used are left out, and a message says so.
--json prints an object: file, bytes, signer, left_out, entries [{key, entry, arch, bytes}];
signer is null for an unsigned pack, left_out is the number of entries that cannot be used.
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope pack --cache /opt/kernels --arch sm_90a --key fleet.key --out kernels.lzp)";

struct PackOptions {
  SelectionOptions selection;
  std::string cache;
  std::string out;
  std::string key;
  bool json = false;
};

Config config_of(const PackOptions& options) {
  if (options.out.empty()) throw UsageError("--out is missing: give the file for the pack");
  Config config = config_with_cache(options.cache);
  if (config.cache_dir.empty())
    throw UsageError("there is no cache to pack: give --cache DIR or set LAZYROPE_CACHE_DIR");
  // The entries of every compiler are packed.
  config.policy = CachePolicy::kCacheOnly;
  return config;
}

void write_pack(const PackOptions& options, const DiskStore& store, const std::vector<Key>& keys) {
  const std::optional<SecretKey> signer =
      options.key.empty() ? std::nullopt : std::optional(read_secret_key(options.key));
  PackWriter writer;
  add_to_pack(writer, store, keys);
  publish_file(options.out, writer.finish(signer));
}

int run_pack(const PackOptions& options) {
  Engine engine(config_of(options));
  check_writable(fs::absolute(options.out).parent_path());
  const Selection selection = select_entries(engine, options.selection);
  write_pack(options, engine.store(), selection.keys);
  const Pack pack = Pack::open(options.out);
  const std::vector<PackedEntry> entries = entries_of(pack);
  if (selection.bad > 0)
    fmt::print(stderr,
               "lazyrope: {} entries of {} cannot be used and are left out; `lazyrope cache "
               "verify` shows why\n",
               selection.bad, engine.store().root().string());
  if (options.json) {
    OrderedJson json =
        json_of(pack, entries, [](const PackedEntry& entry) { return json_of(entry); });
    json["left_out"] = selection.bad;
    print(json_text(json));
  } else {
    print(fmt::format("{}\n{}\n", table_of(entries), summary_of(pack, entries)));
  }
  return 0;
}

}  // namespace

Command pack_command(CLI::App& root) {
  const auto options = std::make_shared<PackOptions>();
  CLI::App* const app =
      root.add_subcommand("pack", "Write kernels into one file for other machines");
  app->footer(kPackFooter);
  app->add_option("--out", options->out, "File for the pack")->option_text("FILE");
  app->add_option("--key", options->key, "Secret key to sign with (default: not signed)")
      ->option_text("FILE");
  add_cache_option(*app, options->cache);
  add_json_option(*app, options->json);
  add_pack_options(*app, options->selection);
  return {app, [options] { return run_pack(*options); }};
}

}  // namespace lazyrope
