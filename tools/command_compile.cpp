#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/table.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_set.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/kernel_options.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCompileFooter =
    R"(Name the models with --model, or one attention by its fields. The command compiles their
kernels into the cache and needs no GPU. Kernels that are in the cache are read, not compiled
again. To fill a directory for machines without a compiler, use `lazyrope precompile`.
--reposition adds the kernel that copies tokens to other slots and rotates their keys to other
indices.
A kernel that spills registers is an error unless --allow-spills is given. If a kernel fails, the
command fails, and the cache keeps the others.

The table has one row per kernel: registers and spilled bytes per thread, bytes of dynamic shared
memory per CTA, bytes of the cubin, and the milliseconds to compile the kernel or to read it from
the cache. "shared" marks a kernel whose entry in the cache an earlier row has.
--json prints an object: cache, seconds, kernels [{model, spec, config, kernel, arch, entry,
compiler, threads, registers, spill_bytes, shared_bytes, cubin_bytes, compile_ms, ms, from_cache,
shared}].
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope compile --model Llama-3.1-8B/config.json --arch sm_80,sm_90a --ptx build/ptx)";

struct CompileCommandOptions {
  KernelOptions kernels;
  std::string cache;
  std::string cubin_dir;
  std::string ptx_dir;
  bool json = false;
};

struct CompiledRow {
  std::string model;
  std::string spec;
  std::string config;
  std::shared_ptr<const Kernel> kernel;
  bool shared;  // an earlier row has the same entry of the cache
};

using CompiledRows = std::vector<CompiledRow>;

CompiledRows compile_all(Engine& engine, const CompileCommandOptions& options) {
  const std::vector<KernelSetRequest> requests = kernel_sets_of(options.kernels);
  for (const std::string& directory : {options.cubin_dir, options.ptx_dir})
    if (!directory.empty()) prepare_output_directory(directory);
  Progress progress;
  const std::vector<KernelSet> sets =
      compile_sets(engine, requests, engine_options_of(options.kernels, &progress));
  CompiledRows rows;
  std::set<std::string> seen;  // keys of entries
  for (std::size_t i = 0; i < sets.size(); ++i)
    for (const std::shared_ptr<const Kernel>& kernel : sets[i].kernels())
      rows.push_back({requests[i].name, describe(requests[i].spec), describe(sets[i].config),
                      kernel, !seen.insert(kernel->entry_key()).second});
  return rows;
}

void write_kernels(const CompileCommandOptions& options, const CompiledRows& rows) {
  const auto path = [](const std::string& directory, const CompiledRow& row,
                       std::string_view extension) {
    const std::string& arch = row.kernel->arch().name;
    return fs::path(directory) /
           fmt::format("{}.{}.{}.{}", row.model, arch, row.kernel->name(), extension);
  };
  for (const CompiledRow& row : rows) {
    const std::vector<std::byte>& code = row.kernel->binary().code;
    if (!options.cubin_dir.empty())
      write_file(path(options.cubin_dir, row, "cubin"),
                 {reinterpret_cast<const char*>(code.data()), code.size()});
    if (!options.ptx_dir.empty())
      write_file(path(options.ptx_dir, row, "ptx"), row.kernel->intermediate());
  }
}

OrderedJson json_of(const CompiledRow& row) {
  const Binary& binary = row.kernel->binary();
  return {{"model", row.model},
          {"spec", row.spec},
          {"config", row.config},
          {"kernel", row.kernel->name()},
          {"arch", binary.arch},
          {"entry", binary.entry},
          {"compiler", binary.compiler},
          {"threads", binary.threads},
          {"registers", binary.registers},
          {"spill_bytes", binary.spill_bytes},
          {"shared_bytes", binary.shared_bytes},
          {"cubin_bytes", binary.code.size()},
          {"compile_ms", binary.compile_ms},
          {"ms", row.kernel->ready_ms()},
          {"from_cache", row.kernel->from_cache()},
          {"shared", row.shared}};
}

std::string table_of(const CompiledRows& rows) {
  Table table({{"model"},
               {"kernel"},
               {"arch"},
               {"registers", Align::kRight},
               {"spill bytes", Align::kRight},
               {"shared bytes", Align::kRight},
               {"cubin bytes", Align::kRight},
               {"ms", Align::kRight},
               {"from cache"}});
  for (const CompiledRow& row : rows) {
    const Binary& binary = row.kernel->binary();
    table.add({row.model, std::string(row.kernel->name()), binary.arch,
               fmt::to_string(binary.registers), fmt::to_string(binary.spill_bytes),
               fmt::to_string(binary.shared_bytes), fmt::to_string(binary.code.size()),
               row.shared ? "shared" : fmt::format("{:.1f}", row.kernel->ready_ms()),
               row.kernel->from_cache() ? "yes" : "no"});
  }
  return table.text();
}

std::string text_of(const CompiledRows& rows, const std::string& cache_dir, double seconds) {
  std::string text;
  std::set<std::string> explained;
  for (const CompiledRow& row : rows)
    if (explained.insert(row.model).second) text += fmt::format("{}: {}\n", row.model, row.spec);
  return fmt::format("{}\n{}\n{} kernels in {:.2f} s; cache: {}\n", text, table_of(rows),
                     rows.size(), seconds, cache_dir.empty() ? "none" : cache_dir);
}

int run_compile(const CompileCommandOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  Engine engine(config_with_cache(options.cache));
  const CompiledRows rows = compile_all(engine, options);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  write_kernels(options, rows);
  const std::string& cache_dir = engine.config().cache_dir;
  if (!options.json) {
    print(text_of(rows, cache_dir, elapsed.count()));
    return 0;
  }
  OrderedJson kernels = OrderedJson::array();
  for (const CompiledRow& row : rows) kernels.push_back(json_of(row));
  print(json_text({{"cache", cache_dir}, {"seconds", elapsed.count()}, {"kernels", kernels}}));
  return 0;
}

}  // namespace

Command compile_command(CLI::App& root) {
  const auto options = std::make_shared<CompileCommandOptions>();
  CLI::App* const app =
      root.add_subcommand("compile", "Compile the kernels of models into the cache");
  app->footer(kCompileFooter);
  add_cache_option(*app, options->cache);
  app->add_option("--cubin", options->cubin_dir, "Also write DIR/MODEL.ARCH.KERNEL.cubin")
      ->option_text("DIR");
  app->add_option("--ptx", options->ptx_dir, "Also write DIR/MODEL.ARCH.KERNEL.ptx")
      ->option_text("DIR");
  add_json_option(*app, options->json);
  add_kernel_options(*app, options->kernels);
  return {app, [options] { return run_compile(*options); }};
}

}  // namespace lazyrope
