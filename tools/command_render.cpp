#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "codegen/render.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/completion.h"
#include "tools/output.h"
#include "tools/spec_options.h"

namespace lazyrope {
namespace {

constexpr const char* kRenderFooter =
    R"(Name the attention with --model or by its fields, and the kernel with --kernel. The command
prints the kernel's source in the default config. The source is self-contained CUDA C++, the exact
text that NVRTC compiles. The command needs no GPU and no compiler.
--json prints an object: name, spec, config, kernel, arch, entry, threads and shared_bytes (per
CTA), ctas_per_sm, source.
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope render --head-dim 128 --q-heads 32 --kv-heads 8 --rope neox --rope-param theta=500000 \
      --arch sm_90a -o attend_decode.cu)";

struct RenderOptions {
  SpecOptions spec;
  std::string kernel = std::string(to_string(KernelKind::kAttendDecode));
  std::string arch;
  std::string output;
  bool json = false;
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelKind kind : kernel_kinds()) names.emplace_back(to_string(kind));
  return names;
}

KernelKind kernel_named(const std::string& name) {
  for (const KernelKind kind : kernel_kinds())
    if (to_string(kind) == name) return kind;
  refuse_value("--kernel", name, kernel_names());
}

OrderedJson facts_of(const NamedSpec& named, const KernelConfig& config,
                     const RenderedKernel& kernel, const Arch& arch) {
  return {{"name", named.name},
          {"spec", describe(named.spec.kernel_spec())},
          {"config", describe(config)},
          {"kernel", to_string(kernel.kind)},
          {"arch", arch.name},
          {"entry", kernel.entry},
          {"threads", kernel.threads},
          {"ctas_per_sm", kernel.ctas_per_sm},
          {"shared_bytes", kernel.shared_bytes},
          {"source", kernel.source}};
}

int run_render(const RenderOptions& options) {
  const KernelKind kind = kernel_named(options.kernel);
  const NamedSpec named = only_spec_of(options.spec);
  const Arch& arch = arch_of(options.arch);
  if (!options.output.empty()) check_output_file(options.output);
  const KernelSpec spec = named.spec.kernel_spec();
  const KernelConfig config =
      checked_as_options(options.spec, [&] { return configs(spec, arch).front(); });
  const RenderedKernel kernel = render(kind, spec, config, arch);
  const std::string text =
      options.json ? json_text(facts_of(named, config, kernel, arch)) : kernel.source;
  if (options.output.empty())
    print(text);
  else
    write_file(options.output, text);
  return 0;
}

}  // namespace

Command render_command(CLI::App& root) {
  const auto options = std::make_shared<RenderOptions>();
  CLI::App* const app = root.add_subcommand("render", "Print the CUDA source of a kernel");
  app->footer(kRenderFooter);
  CLI::Option* const kernel =
      app->add_option("--kernel", options->kernel,
                      fmt::format("One of {}\n(default: {})", fmt::join(kernel_names(), ", "),
                                  options->kernel))
          ->option_text("NAME");
  offer_values(kernel, kernel_names());
  CLI::Option* const arch =
      app->add_option("--arch", options->arch,
                      "One of " + arch_names() + "\n(default: the present GPU's)")
          ->option_text("NAME");
  offer_values(arch, arch_names_if([](const Arch&) { return true; }));
  app->add_option("-o,--output", options->output, "File to write instead of standard output")
      ->option_text("FILE");
  add_json_option(*app, options->json);
  add_spec_options(*app, options->spec);
  return {app, [options] { return run_render(*options); }};
}

}  // namespace lazyrope
