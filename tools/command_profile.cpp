#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/emulator/device.h"
#include "runtime/emulator/profile.h"
#include "runtime/emulator/profile_table.h"
#include "runtime/engine/engine.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/completion.h"
#include "tools/output.h"
#include "tools/profile_workload.h"
#include "tools/progress.h"
#include "tools/spec_options.h"

namespace lazyrope {
namespace {

constexpr const char* kProfileFooter =
    R"(Name the attention with --model or by its fields. The command runs its kernels in the
emulator, which sees every address, and needs no GPU. For each number of --query-tokens it attends
once with --batch requests over documents in shuffled pages, and appends all tokens once; inputs
are random. Requests with few query tokens run attend_decode; those with many run attend_prefill.
No two requests share a document, so the kernels of a cascade do not run, and neither do those that
rotate raw keys into scratch: count these in Python with lazyrope.emulator.profile().

The table has one row per source line that accesses memory: how often warps executed it; its
wavefronts (passes over shared memory), and the wavefronts that it would take without bank
conflicts; the 32-byte sectors of global memory that it touches, and the sectors that the same
bytes would fill. The GPU's caches are not modelled: a sector that is read twice counts twice.
--json prints an object: name, spec, arch, config, workloads, lines [{kernel, file, line, text,
instruction, executions, lanes (active, in all executions), wavefronts, ideal_wavefronts, sectors,
ideal_sectors, cache_lines (of 128 bytes), bytes}].
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope profile --model Llama-3.1-8B/config.json --kernel attend_decode --query-tokens 1)";

constexpr int kMaxSize = 1 << 20;

struct ProfileOptions {
  SpecOptions spec;
  std::string arch = "emu:sm_80";
  std::string cache;
  TuningWorkload workload = {.batch = 2, .context = 192, .doc_tokens = 128};
  std::vector<int> query_tokens = {1, 64};
  std::vector<std::string> kernels;  // empty: all
  std::string order = std::string(to_string(ProfileOrder::kExcess));
  bool json = false;
};

// Returns the names of the values, as the command line takes them.
template <class Value>
std::vector<std::string> names_of(const std::vector<Value>& values) {
  std::vector<std::string> names;
  names.reserve(values.size());
  for (const Value value : values) names.emplace_back(to_string(value));
  return names;
}

template <class Value>
Value value_named(const char* option, const std::string& name, const std::vector<Value>& values) {
  const auto at = std::ranges::find(values, name, [](Value value) { return to_string(value); });
  if (at == values.end()) refuse_value(option, name, names_of(values));
  return *at;
}

// Returns what a kernel needs that the steps of this command lack, or nothing for those that run.
std::string_view lacking(KernelKind kind) {
  if (kind >= KernelKind::kShare && kind <= KernelKind::kCombineShared)
    return "a step whose requests share documents";
  if (kind >= KernelKind::kPlanRotation && kind <= KernelKind::kAttendRotated)
    return "a step with scratch for rotated keys";
  if (kind == KernelKind::kPlanPageMass || kind == KernelKind::kSumPageMass)
    return "calls that ask for page masses";
  return kind == KernelKind::kReposition ? "stored documents that move" : "";
}

KernelKind profiled_kernel(const std::string& name) {
  for (const KernelKind kind : kernel_kinds())
    if (to_string(kind) == name && !lacking(kind).empty())
      throw UsageError(fmt::format(
          "--kernel: {} needs {}, which this command does not make: run the kernel in Python "
          "within `with lazyrope.emulator.profile() as profile`, and print(profile)",
          name, lacking(kind)));
  return value_named("--kernel", name, attention_kernels());
}

std::vector<KernelKind> kernels_of(const ProfileOptions& options) {
  if (options.kernels.empty()) return attention_kernels();
  std::vector<KernelKind> kinds;
  kinds.reserve(options.kernels.size());
  for (const std::string& name : options.kernels) kinds.push_back(profiled_kernel(name));
  return kinds;
}

const Arch& emulated_arch(const std::string& name) {
  const Arch& arch = named_arch(name);
  if (arch.isa == "emu") return arch;
  throw UsageError(fmt::format(
      "--arch: {} is the arch of a GPU, but profile runs in the emulator: give emu:sm_80 or "
      "emu:sm_90a",
      name));
}

// Counts the accesses of all launches into `profile` during its lifetime.
class Counting {
 public:
  explicit Counting(Profile& profile)
      : before_(std::exchange(emulator_options().profile, &profile)) {}
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  ~Counting() { emulator_options().profile = before_; }

 private:
  Profile* before_;
};

std::vector<TuningWorkload> workloads_of(const ProfileOptions& options) {
  std::vector<TuningWorkload> workloads;
  for (const int query_tokens : options.query_tokens) {
    workloads.push_back(options.workload);
    workloads.back().query_tokens = query_tokens;
  }
  return workloads;
}

std::set<std::string> entries_of(const Attention& attention, const ProfileOptions& options) {
  std::set<std::string> entries;
  if (options.kernels.empty())
    for (const auto& kernel : attention.kernels()) entries.insert(kernel->binary().entry);
  else
    for (const KernelKind kind : kernels_of(options))
      entries.insert(attention.kernel(kind).binary().entry);
  return entries;
}

bool asks_for(const ProfileOptions& options, const std::vector<KernelKind>& kinds) {
  return std::ranges::any_of(kernels_of(options), [&](KernelKind kind) {
    return std::ranges::find(kinds, kind) != kinds.end();
  });
}

Profile run_all(const Attention& attention, const ProfileOptions& options, Progress& progress) {
  Profile profile;
  const Counting counting(profile);
  const bool attends =
      asks_for(options, {KernelKind::kPlan, KernelKind::kAttendDecode, KernelKind::kAttendPrefill});
  const bool appends = asks_for(options, {KernelKind::kPlanAppend, KernelKind::kAppend});
  for (const TuningWorkload& workload : workloads_of(options)) {
    progress.set_status(fmt::format("running {}", describe(workload)));
    if (attends) attend_once(attention, workload);
    if (appends) append_once(attention, workload);
  }
  return profile;
}

std::vector<ProfileLine> lines_of(const Profile& profile, const Attention& attention,
                                  const ProfileOptions& options, ProfileOrder order) {
  const std::set<std::string> entries = entries_of(attention, options);
  std::vector<ProfileLine> lines = profile.lines();
  std::erase_if(lines, [&](const ProfileLine& line) { return !entries.contains(line.kernel); });
  if (lines.empty())
    throw std::runtime_error(
        fmt::format("{} had nothing to do: the query tokens of a request decide which kernel "
                    "attends; give --query-tokens 1,64 to run both",
                    fmt::join(options.kernels, ", ")));
  return ordered(std::move(lines), order);
}

OrderedJson json_of(const ProfileLine& line) {
  return {{"kernel", line.kernel},
          {"file", line.file},
          {"line", line.line},
          {"text", source_text(line)},
          {"instruction", line.instruction},
          {"executions", line.executions},
          {"lanes", line.lanes},
          {"wavefronts", line.wavefronts},
          {"ideal_wavefronts", line.ideal_wavefronts},
          {"sectors", line.sectors},
          {"ideal_sectors", line.ideal_sectors},
          {"cache_lines", line.cache_lines},
          {"bytes", line.bytes}};
}

int run_profile(const ProfileOptions& options) {
  (void)kernels_of(options);  // checks the names
  const ProfileOrder order = value_named("--sort", options.order, profile_orders());
  const NamedSpec named = only_spec_of(options.spec);
  const Arch& arch = emulated_arch(options.arch);
  emulator_device();  // throws if the build has no emulator
  Engine engine(config_with_cache(options.cache));
  std::vector<std::string> workloads;
  for (const TuningWorkload& workload : workloads_of(options))
    workloads.push_back(describe(workload));
  auto progress = std::make_unique<Progress>();
  const auto attention = checked_as_options(options.spec, [&] {
    return Attention::compile(engine, named.spec, arch, {.engine = {.listener = progress.get()}});
  });
  const Profile profile = run_all(*attention, options, *progress);
  progress.reset();
  const std::vector<ProfileLine> lines = lines_of(profile, *attention, options, order);
  if (!options.json) {
    print(fmt::format("{}: {}, {}; {}\n\n{}", named.name, describe(named.spec.kernel_spec()),
                      arch.name, fmt::join(workloads, ", "), profile_table(lines)));
    return 0;
  }
  OrderedJson rows = OrderedJson::array();
  for (const ProfileLine& line : lines) rows.push_back(json_of(line));
  print(json_text({{"name", named.name},
                   {"spec", describe(named.spec.kernel_spec())},
                   {"arch", arch.name},
                   {"config", describe(attention->config())},
                   {"workloads", workloads},
                   {"lines", rows}}));
  return 0;
}

void add_workload_options(CLI::App& app, ProfileOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* text,
                       const std::string& meaning) {
    app.add_option(name, value, meaning)
        ->option_text(text)
        ->check(CLI::Range(1, kMaxSize))
        ->delimiter(',');
  };
  TuningWorkload& workload = options.workload;
  add("--batch", workload.batch, "N", fmt::format("Requests (default: {})", workload.batch));
  add("--query-tokens", options.query_tokens, "N,...",
      fmt::format("Query tokens per request, one step for each number (default: {})",
                  fmt::join(options.query_tokens, ",")));
  add("--context", workload.context, "N",
      fmt::format("Document tokens per request (default: {})", workload.context));
  add("--doc-tokens", workload.doc_tokens, "N",
      fmt::format("Tokens per document (default: {})", workload.doc_tokens));
}

}  // namespace

Command profile_command(CLI::App& root) {
  const auto options = std::make_shared<ProfileOptions>();
  CLI::App* const app =
      root.add_subcommand("profile", "Count bank conflicts and sectors of each source line");
  app->footer(kProfileFooter);
  CLI::Option* const arch =
      app->add_option("--arch", options->arch,
                      fmt::format("Emulated arch (default: {})", options->arch))
          ->option_text("NAME");
  offer_values(arch, arch_names_if([](const Arch& known) { return known.isa == "emu"; }));
  add_cache_option(*app, options->cache);
  CLI::Option* const kernels =
      app->add_option("--kernel", options->kernels,
                      fmt::format("Any of {},\nseparated by commas (default: all)",
                                  fmt::join(names_of(attention_kernels()), ", ")))
          ->option_text("NAME,...")
          ->delimiter(',');
  offer_values(kernels, names_of(attention_kernels()));
  CLI::Option* const order =
      app->add_option("--sort", options->order,
                      fmt::format("Order of the rows: {}\n"
                                  "(default: {}, by wavefronts and sectors beyond the ideal)",
                                  fmt::join(names_of(profile_orders()), ", "), options->order))
          ->option_text("NAME");
  offer_values(order, names_of(profile_orders()));
  add_workload_options(*app, *options);
  add_json_option(*app, options->json);
  add_spec_options(*app, options->spec);
  return {app, [options] { return run_profile(*options); }};
}

}  // namespace lazyrope
