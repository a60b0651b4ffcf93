// Every row of the registries compiles for every GPU arch, without spills and without a word of
// complaint from ptxas. A run takes a sample in which every two values of any two factors meet;
// LAZYROPE_COMPILE_SAMPLE=N takes another one, LAZYROPE_COMPILE_ALL=1 all of them, which takes
// minutes.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <thread>

#include "codegen/mask.h"
#include "codegen/render.h"
#include "runtime/attention.h"
#include "runtime/compiler.h"
#include "runtime/nvrtc.h"
#include "runtime/ptxas_log.h"
#include "tests/support/engines.h"
#include "tests/support/specs.h"

namespace lazyrope {
namespace {

constexpr std::size_t kFactors = 7;

// Which value of each factor: arch, RoPE row, mask row, dtype, head_dim, form of queries and new
// keys, what else is done with scores.
using Setting = std::array<std::size_t, kFactors>;
// Two factors and a value of each.
using Pair = std::array<std::size_t, 4>;

struct Scores {
  double softcap;
  bool sinks;
};
constexpr std::array kScores = {Scores{0.0, false}, Scores{50.0, false}, Scores{0.0, true}};

const std::vector<Arch>& gpu_archs() {
  static const std::vector<Arch> gpus = [] {
    std::vector<Arch> result;
    for (const Arch& arch : archs())
      if (arch.isa == "ptx") result.push_back(arch);
    return result;
  }();
  return gpus;
}

// All of them; each run takes settings one by one from the last.
std::vector<Setting> all_settings() {
  const Setting counts = {gpu_archs().size(),
                          rope_variants().size(),
                          mask_variants().size(),
                          2,
                          planned_head_dims().size(),
                          2,
                          kScores.size()};
  std::vector<Setting> settings = {{}};
  for (std::size_t factor = 0; factor < kFactors; ++factor) {
    std::vector<Setting> longer;
    for (Setting setting : settings)
      for (setting[factor] = 0; setting[factor] < counts[factor]; ++setting[factor])
        longer.push_back(setting);
    settings = std::move(longer);
  }
  return settings;
}

std::set<Pair> pairs_of(const Setting& setting) {
  std::set<Pair> pairs;
  for (std::size_t i = 0; i < kFactors; ++i)
    for (std::size_t j = i + 1; j < kFactors; ++j) pairs.insert({i, setting[i], j, setting[j]});
  return pairs;
}

// Takes, again and again, the setting that has the most pairs not met so far.
std::vector<Setting> covering(std::vector<Setting> settings) {
  std::set<Pair> missing;
  for (const Setting& setting : settings) missing.merge(pairs_of(setting));
  std::vector<Setting> sample;
  while (!missing.empty()) {
    const auto gain = [&](const Setting& setting) {
      const std::set<Pair> pairs = pairs_of(setting);
      return std::count_if(pairs.begin(), pairs.end(),
                           [&](const Pair& p) { return missing.contains(p); });
    };
    const Setting& best =
        *std::max_element(settings.begin(), settings.end(),
                          [&](const Setting& a, const Setting& b) { return gain(a) < gain(b); });
    for (const Pair& pair : pairs_of(best)) missing.erase(pair);
    sample.push_back(best);
  }
  return sample;
}

std::string environment(const char* name, const char* otherwise) {
  const char* value = ::getenv(name);
  return value == nullptr ? otherwise : value;
}

std::vector<Setting> chosen_settings() {
  std::vector<Setting> settings = all_settings();
  if (environment("LAZYROPE_COMPILE_ALL", "0") == "1") return settings;
  std::mt19937 random(
      static_cast<unsigned>(std::stoul(environment("LAZYROPE_COMPILE_SAMPLE", "1"))));
  std::shuffle(settings.begin(), settings.end(), random);
  return covering(std::move(settings));
}

KernelSpec spec_of(const Setting& setting) {
  KernelSpec spec;
  spec.head_dim = planned_head_dims()[setting[4]];
  spec.group_size = 4;
  spec.dtype = setting[3] == 0 ? Dtype::kBf16 : Dtype::kFp16;
  spec.rope = example_rope(rope_variants()[setting[1]].name, spec.head_dim);
  spec.mask = mask_variants()[setting[2]].name;
  spec.mask_parameters = example_mask(spec.mask);
  spec.query_form = spec.append_form = setting[5] == 0 ? RopeForm::kRaw : RopeForm::kRotated;
  spec.softcap = kScores.at(setting[6]).softcap;
  spec.sinks = kScores.at(setting[6]).sinks;
  return spec;
}

struct Job {
  Setting setting;
  RenderedKernel kernel;
  std::string row = {};      // of the table
  std::string problem = {};  // empty: none
};

// The kernels of all settings by one of their plans, each source once.
std::vector<Job> jobs_for(const Arch& arch, const std::vector<Setting>& settings,
                          std::size_t candidate) {
  std::vector<Job> jobs;
  std::set<std::string> known;
  for (const Setting& setting : settings) {
    const KernelSpec spec = spec_of(setting);
    for (const TilePlan plan = candidates(spec, arch).at(candidate);
         const KernelKind kind : kernel_kinds()) {
      RenderedKernel kernel = render(kind, spec, plan, arch);
      if (known.insert(kernel.source).second) jobs.push_back({setting, std::move(kernel)});
    }
  }
  return jobs;
}

constexpr const char* kSpills = "it spills";

int spilled_bytes(const PtxasFunction& function) {
  return function.spill_store_bytes + function.spill_load_bytes;
}

// Whether `log` has a warning of the compiler's or of ptxas's, or a numbered remark of ptxas's,
// such as "ptxas info    : (C7510) Potential Performance Loss: ...".
bool has_warnings(const std::string& log) {
  static const std::regex pattern(R"(warning|ptxas [^:.]*[:.] *\(C[0-9])");
  return std::regex_search(log, pattern);
}

std::string problem_of(const PtxasFunction& function, const std::string& log) {
  if (function.name.empty()) return "ptxas does not mention it";
  if (spilled_bytes(function) > 0 || function.stack_bytes > 0) return kSpills;
  return has_warnings(log) ? "there are warnings" : "";
}

// What ptxas reports of the kernel, or a report without a name.
PtxasFunction report_of(const std::string& kernel, const std::string& log) {
  for (const PtxasFunction& function : parse_ptxas_log(log))
    if (function.name == kernel) return function;
  return {};
}

void compile(Job& job, const Arch& arch) {
  try {
    std::vector<std::string> options = NvrtcCompiler(nullptr).options(arch);
    options.push_back("--no-cache");
    const CompiledProgram program = compile_program(
        shared_engine().nvrtc().library(), {job.kernel.entry + ".cu", job.kernel.source, options});
    const PtxasFunction facts = report_of(job.kernel.entry, program.log);
    job.problem = problem_of(facts, program.log);
    if (!job.problem.empty()) job.problem += "\n" + program.log;
    job.row =
        fmt::format("{:8} {:15} {:9} {:6} {:6} {:6}  {}\n", arch.name, to_string(job.kernel.kind),
                    facts.registers, spilled_bytes(facts), job.kernel.shared_bytes,
                    program.cubin.size(), describe(spec_of(job.setting)));
  } catch (const std::exception& error) {
    job.problem = error.what();
  }
}

void compile_all(std::vector<Job>& jobs, const Arch& arch) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < jobs.size(); at = next++) compile(jobs[at], arch);
    });
}

class Compiles : public testing::TestWithParam<std::size_t> {};

// As Attention::compile: where a plan spills, the next one counts.
TEST_P(Compiles, WithoutSpillsAndWarnings) {
  const Arch& arch = gpu_archs().at(GetParam());
  std::vector<Setting> settings = chosen_settings();
  std::erase_if(settings, [](const Setting& setting) { return setting[0] != GetParam(); });
  ASSERT_FALSE(settings.empty());
  std::string table =
      fmt::format("{:8} {:15} registers spills shared  cubin  spec\n", "arch", "kernel");
  for (std::size_t candidate = 0; !settings.empty(); ++candidate) {
    std::vector<Job> jobs = jobs_for(arch, settings, candidate);
    compile_all(jobs, arch);
    settings.clear();
    for (const Job& job : jobs) {
      table += job.row;
      if (job.problem.starts_with(kSpills) &&
          candidate + 1 < candidates(spec_of(job.setting), arch).size())
        settings.push_back(job.setting);
      else
        EXPECT_EQ(job.problem, "") << to_string(job.kernel.kind) << " for " << arch.name << ": "
                                   << describe(spec_of(job.setting));
    }
  }
  fmt::print("{}", table);
}

INSTANTIATE_TEST_SUITE_P(Archs, Compiles, testing::Range(std::size_t{0}, gpu_archs().size()),
                         [](const auto& row) { return gpu_archs().at(row.param).name; });

// With the NVRTC of 2025 the first plan spills here.
TEST(DefaultPlan, IsOneThatDoesNotSpill) {
  AttentionSpec spec;
  spec.head_dim = 128;
  spec.num_q_heads = 8;
  spec.num_kv_heads = 2;
  spec.mask = "full";
  const auto attention = Attention::compile(shared_engine(), spec, find_arch("sm_100a"), {});
  for (const auto& kernel : attention->kernels())
    EXPECT_EQ(kernel->binary().spill_bytes, 0) << kernel->name();
}

TEST(Sample, HasEveryTwoValuesTogether) {
  std::set<Pair> all, sampled;
  for (const Setting& setting : all_settings()) all.merge(pairs_of(setting));
  const std::vector<Setting> sample = chosen_settings();
  for (const Setting& setting : sample) sampled.merge(pairs_of(setting));
  EXPECT_EQ(sampled, all);
  fmt::print("{} of {} settings\n", sample.size(), all_settings().size());
}

}  // namespace
}  // namespace lazyrope
