#include "tools/kernel_options.h"

#include <utility>

#include "tools/common_options.h"
#include "tools/completion.h"

namespace lazyrope {
namespace {

// Returns the archs of GPUs, without the emulated ones.
std::vector<const Arch*> all_archs() {
  std::vector<const Arch*> result;
  for (const Arch& arch : archs())
    if (arch.isa == "ptx") result.push_back(&arch);
  return result;
}

std::vector<const Arch*> archs_of(const std::vector<std::string>& names) {
  if (names.empty()) return {&arch_of("")};
  if (names == std::vector<std::string>{kAllArchs}) return all_archs();
  std::vector<const Arch*> result;
  result.reserve(names.size());
  for (const std::string& name : names) result.push_back(&arch_of(name));
  return result;
}

}  // namespace

std::vector<std::string> offered_archs() {
  std::vector<std::string> names = arch_names_if([](const Arch&) { return true; });
  names.emplace_back(kAllArchs);
  return names;
}

void add_selection_options(CLI::App& app, KernelOptions& options) {
  CLI::Option* const arch =
      app.add_option("--arch", options.archs,
                     "Any of " + arch_names() +
                         ",\nseparated by commas; or all, for every GPU arch\n"
                         "(default: the present GPU's)")
          ->option_text("NAME,...")
          ->delimiter(',');
  offer_values(arch, offered_archs());
  app.add_flag("--reposition", options.reposition,
               "Also reposition, the kernel of\nlazyrope.compile_reposition()");
  add_spec_options(app, options.spec);
}

void add_kernel_options(CLI::App& app, KernelOptions& options) {
  app.add_flag("--allow-spills", options.allow_spills,
               "Accept kernels that spill registers, which are slow");
  add_threads_option(app, options.threads);
  add_selection_options(app, options);
}

std::vector<KernelSetRequest> kernel_sets_of(const KernelOptions& options) {
  const std::vector<NamedSpec> specs = specs_of(options.spec);
  const std::vector<const Arch*> archs = archs_of(options.archs);
  std::vector<KernelSetRequest> sets;
  const auto add = [&](const NamedSpec& named, KernelSetRequest set) {
    set.name = named.name;
    sets.push_back(std::move(set));
  };
  const auto make = [&](const auto& set) { return checked_as_options(options.spec, set); };
  for (const NamedSpec& named : specs) {
    for (const Arch* arch : archs) {
      add(named, make([&] { return attention_set(named.spec, *arch); }));
      if (options.reposition) add(named, make([&] { return reposition_set(named.spec, *arch); }));
    }
  }
  return sets;
}

EngineOptions engine_options_of(const KernelOptions& options, KernelListener* listener) {
  return {.allow_spills = options.allow_spills, .threads = options.threads, .listener = listener};
}

}  // namespace lazyrope
