#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cache/signing_key.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/output.h"

namespace lazyrope {
namespace {

constexpr const char* kKeygenFooter =
    R"(The command makes an Ed25519 key pair. FILE gets the secret key, with mode 0600: it signs
packs, so keep it where packs are made. FILE.pub gets the public key, which verifies them: give it
to the machines that unpack. Files that exist are never overwritten.
To change the key, put the lines of both public keys into one file, and give that file to
`lazyrope unpack --trusted` until all packs are signed with the new key.
--json prints an object: secret_file, public_file, public_key.
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope keygen fleet.key)";

struct KeygenOptions {
  std::string file;
  bool json = false;
};

int run_keygen(const KeygenOptions& options) {
  if (options.file.empty()) throw UsageError("FILE is missing: give the file for the secret key");
  const std::string key = text_of(write_key_pair(options.file));
  if (options.json)
    print(json_text({{"secret_file", options.file},
                     {"public_file", options.file + ".pub"},
                     {"public_key", key}}));
  else
    print(fmt::format("{}: secret key\n{}.pub: {}\n", options.file, options.file, key));
  return 0;
}

}  // namespace

Command keygen_command(CLI::App& root) {
  const auto options = std::make_shared<KeygenOptions>();
  CLI::App* const app = root.add_subcommand("keygen", "Make a key pair that signs packs");
  app->footer(kKeygenFooter);
  app->add_option("FILE", options->file, "File for the secret key");
  add_json_option(*app, options->json);
  return {app, [options] { return run_keygen(*options); }};
}

}  // namespace lazyrope
