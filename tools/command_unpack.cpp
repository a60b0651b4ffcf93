#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache/signing_key.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/packing.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/output.h"
#include "tools/pack_output.h"

namespace lazyrope {
namespace {

constexpr const char* kUnpackFooter =
    R"(The command stores the kernels and tuning records of a pack, which `lazyrope pack` wrote,
in the cache directory DIR. Before it writes anything, it verifies the whole file: the signature
if there is one, the manifest and the checksum of each entry.
With --trusted, or with LAZYROPE_TRUSTED_KEY in the environment, the pack must be signed by one
of these keys; an unsigned pack is refused. Without them every undamaged pack is accepted: a
kernel is code, so unpack only files whose origin you know.
Entries that DIR has already stay as they are. If DIR has another good entry of the same key,
nothing is written unless --replace is given.
--check writes nothing. With --out it also tells what would be done.
--json prints an object: file, bytes, signer, trusted, directory, entries [{key, entry, arch,
bytes, state}]; state is added, found or replaced, and null without --out; trusted is true if
the signer is one of the trusted keys.
Exit codes: 0 done, 1 failed or refused, 2 wrong usage.

Example:
  lazyrope unpack kernels.lzp --trusted fleet.key.pub --out /opt/kernels)";

struct UnpackOptions {
  std::string file;
  std::string out;
  std::string trusted;
  bool check = false;
  bool replace = false;
  bool json = false;
};

void check_usage(const UnpackOptions& options) {
  if (options.file.empty()) throw UsageError("FILE is missing: give the pack");
  if (options.out.empty() && !options.check)
    throw UsageError("--out is missing: give the directory for the kernels, or --check");
}

std::size_t count(const std::vector<PackedEntry>& entries, Unpacked outcome) {
  return static_cast<std::size_t>(std::ranges::count(entries, outcome, &PackedEntry::outcome));
}

// Throws before anything is written if good entries would be replaced and --replace is not given.
void check_replaced(const UnpackOptions& options, const std::vector<PackedEntry>& entries) {
  const std::size_t replaced = count(entries, Unpacked::kReplaced);
  if (replaced == 0 || options.replace || options.check) return;
  std::string keys;
  for (const PackedEntry& entry : entries)
    if (entry.outcome == Unpacked::kReplaced)
      keys += fmt::format("\n  {} {} {}", entry.key, fact_text(entry.facts, "entry"),
                          fact_text(entry.facts, "arch"));
  throw std::runtime_error(
      fmt::format("nothing is unpacked: {} has another good entry for {} of the pack's keys; give "
                  "--replace to replace them, or another --out{}",
                  options.out, replaced, keys));
}

std::string text_of(const UnpackOptions& options, const Pack& pack,
                    const std::vector<PackedEntry>& entries, bool trusted) {
  std::string text = fmt::format("{}\n{}{}\n", table_of(entries), summary_of(pack, entries),
                                 trusted ? ", which is trusted" : "");
  if (!options.out.empty())
    text += fmt::format(
        "{}: {} {}, {} found, {} {}\n", options.out, count(entries, Unpacked::kAdded),
        options.check ? "would be added" : "added", count(entries, Unpacked::kFound),
        count(entries, Unpacked::kReplaced), options.check ? "would be replaced" : "replaced");
  return text;
}

OrderedJson json_of(const UnpackOptions& options, const Pack& pack,
                    const std::vector<PackedEntry>& entries, bool trusted) {
  const bool has_states = !options.out.empty();
  OrderedJson json = lazyrope::json_of(pack, entries, [&](const PackedEntry& entry) {
    OrderedJson object = lazyrope::json_of(entry);
    object["state"] = has_states ? OrderedJson(to_string(entry.outcome)) : OrderedJson(nullptr);
    return object;
  });
  json["trusted"] = trusted;
  json["directory"] = has_states ? OrderedJson(options.out) : OrderedJson(nullptr);
  return json;
}

int run_unpack(const UnpackOptions& options) {
  check_usage(options);
  const Config config = options.out.empty() ? config_with_cache("") : config_with_out(options.out);
  const std::vector<PublicKey> trusted =
      trusted_keys(options.trusted.empty() ? config.trusted_key : options.trusted);
  const Pack pack = Pack::open(options.file, trusted);
  const Engine engine(config);
  const DiskStore& store = engine.store();
  const auto entries = entries_of(pack, options.out.empty() ? nullptr : &store);
  check_replaced(options, entries);
  if (!options.check) unpack(pack, entries, store);
  print(options.json ? json_text(json_of(options, pack, entries, !trusted.empty()))
                     : text_of(options, pack, entries, !trusted.empty()));
  return 0;
}

}  // namespace

Command unpack_command(CLI::App& root) {
  const auto options = std::make_shared<UnpackOptions>();
  CLI::App* const app =
      root.add_subcommand("unpack", "Verify a pack and store its kernels in a directory");
  app->footer(kUnpackFooter);
  app->add_option("FILE", options->file, "The pack");
  app->add_option("--out", options->out, "Directory for the kernels")->option_text("DIR");
  app->add_option("--trusted", options->trusted,
                  "File of public keys, or a public key; one of them must\nhave signed the pack "
                  "(default: LAZYROPE_TRUSTED_KEY)")
      ->option_text("KEY");
  app->add_flag("--check", options->check, "Verify the pack; write nothing");
  app->add_flag("--replace", options->replace, "Replace other entries of the same keys");
  add_json_option(*app, options->json);
  return {app, [options] { return run_unpack(*options); }};
}

}  // namespace lazyrope
