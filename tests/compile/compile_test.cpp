// Every registered RoPE variant and mask compiles for every GPU arch without spills and without
// warnings of ptxas. `make soak` compiles a sample of settings in which every two values of any two
// factors occur together, and CI a part of it. LAZYROPE_COMPILE_SAMPLE=N selects another sample.
// compile_all.cpp compiles each variant alone, with all archs, dtypes and head_dims.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "codegen/mask.h"
#include "codegen/render.h"
#include "runtime/base/parallel.h"
#include "tests/compile/kernel_report.h"
#include "tests/support/specs.h"

namespace lazyrope {
namespace {

constexpr std::size_t kFactors = 7;

// The index of a value for each factor: arch, RoPE variant, mask variant, dtypes, head_dim, form of
// queries and new keys, and modification of scores.
using Setting = std::array<std::size_t, kFactors>;
// Two factors and a value of each.
using Pair = std::array<std::size_t, 4>;

struct Scores {
  double softcap = 0.0;
  bool sinks = false;
  std::optional<QueryTemperature> temperature = {};
};
constexpr std::array kScores = {Scores{}, Scores{.softcap = 50.0}, Scores{.sinks = true},
                                Scores{.temperature = QueryTemperature{0.1, 8192, 1}}};

struct Types {
  Dtype dtype;
  std::optional<Dtype> kv_dtype;
};
constexpr std::array kTypes = {Types{Dtype::kBf16, {}}, Types{Dtype::kFp16, {}},
                               Types{Dtype::kBf16, Dtype::kFp8E4m3},
                               Types{Dtype::kFp16, Dtype::kFp8E5m2}};

KernelSpec spec_of(const Setting& setting) {
  KernelSpec spec;
  spec.head_dim = supported_head_dims()[setting[4]];
  spec.group_size = 4;
  spec.dtype = kTypes.at(setting[3]).dtype;
  spec.kv_dtype = kTypes.at(setting[3]).kv_dtype;
  spec.rope = example_rope(rope_variants()[setting[1]].name, spec.head_dim);
  spec.mask = mask_variants()[setting[2]].name;
  spec.mask_parameters = example_mask(spec.mask);
  spec.query_form = spec.append_form = setting[5] == 0 ? RopeForm::kRaw : RopeForm::kRotated;
  spec.softcap = kScores.at(setting[6]).softcap;
  spec.sinks = kScores.at(setting[6]).sinks;
  spec.temperature = kScores.at(setting[6]).temperature;
  return spec;
}

// Returns all possible settings, each of which has a value for every factor.
std::vector<Setting> all_settings() {
  const Setting counts = {gpu_archs().size(), rope_variants().size(),       mask_variants().size(),
                          kTypes.size(),      supported_head_dims().size(), 2,
                          kScores.size()};
  std::vector<Setting> settings = {{}};
  for (std::size_t factor = 0; factor < kFactors; ++factor) {
    std::vector<Setting> longer;
    for (Setting setting : settings)
      for (setting[factor] = 0; setting[factor] < counts[factor]; ++setting[factor])
        longer.push_back(setting);
    settings = std::move(longer);
  }
  std::erase_if(settings, [](const Setting& setting) { return !is_possible(spec_of(setting)); });
  return settings;
}

std::set<Pair> pairs_of(const Setting& setting) {
  std::set<Pair> pairs;
  for (std::size_t i = 0; i < kFactors; ++i)
    for (std::size_t j = i + 1; j < kFactors; ++j) pairs.insert({i, setting[i], j, setting[j]});
  return pairs;
}

// Returns a greedy sample that covers all pairs: it adds the setting with the most missing pairs
// until no pair is missing.
std::vector<Setting> covering(const std::vector<Setting>& settings) {
  std::map<Pair, std::size_t> numbers;
  std::vector<std::vector<std::size_t>> pairs;  // the pairs' numbers, for each setting
  for (const Setting& setting : settings) {
    auto& of_setting = pairs.emplace_back();
    for (const Pair& pair : pairs_of(setting))
      of_setting.push_back(numbers.try_emplace(pair, numbers.size()).first->second);
  }
  std::vector<bool> is_missing(numbers.size(), true);
  const auto gain = [&](const std::vector<std::size_t>& of_setting) {
    return std::ranges::count_if(of_setting, [&](std::size_t pair) { return is_missing[pair]; });
  };
  std::vector<Setting> sample;
  while (std::ranges::count(is_missing, true) > 0) {
    const auto best = std::ranges::max_element(pairs, {}, gain);
    for (const std::size_t pair : *best) is_missing[pair] = false;
    sample.push_back(settings[static_cast<std::size_t>(best - pairs.begin())]);
  }
  return sample;
}

std::string environment(const char* name, const char* otherwise) {
  const char* value = ::getenv(name);
  return value == nullptr ? otherwise : value;
}

std::vector<Setting> sample_of_settings() {
  std::vector<Setting> settings = all_settings();
  std::mt19937 random(
      static_cast<unsigned>(std::stoul(environment("LAZYROPE_COMPILE_SAMPLE", "1"))));
  std::shuffle(settings.begin(), settings.end(), random);
  return covering(settings);
}

// Returns the sample. It is chosen once for all archs, which takes as long as to compile a kernel.
const std::vector<Setting>& chosen_settings() {
  static const std::vector<Setting> sample = sample_of_settings();
  return sample;
}

struct Job {
  Setting setting;
  RenderedKernel kernel;
  KernelReport report = {};
};

// Renders the kernels of all settings with the config at `config_index`, each source once.
std::vector<Job> jobs_for(const Arch& arch, const std::vector<Setting>& settings,
                          std::size_t config_index) {
  std::vector<Job> jobs;
  std::set<std::string> known;
  for (const Setting& setting : settings) {
    const KernelSpec spec = spec_of(setting);
    for (const KernelConfig config = configs(spec, arch).at(config_index);
         const KernelKind kind : kernel_kinds(spec, arch)) {
      RenderedKernel kernel = render(kind, spec, config, arch);
      if (known.insert(kernel.source).second) jobs.push_back({setting, std::move(kernel)});
    }
  }
  return jobs;
}

std::string line_of(const Job& job, const Arch& arch) {
  return fmt::format("{:8} {:15} {:9} {:6} {:6} {:6}  {}\n", arch.name, to_string(job.kernel.kind),
                     job.report.registers, job.report.spill_bytes, job.kernel.shared_bytes,
                     job.report.cubin_bytes, describe(spec_of(job.setting)));
}

using Value = std::pair<std::size_t, std::size_t>;  // a factor and a value of it

std::set<Value> values_of(const Setting& setting) {
  std::set<Value> values;
  for (std::size_t i = 0; i < kFactors; ++i) values.insert({i, setting[i]});
  return values;
}

std::set<Value> values_of(const std::vector<Setting>& settings) {
  std::set<Value> values;
  for (const Setting& setting : settings) values.merge(values_of(setting));
  return values;
}

// Returns the settings that CI compiles for an arch, because it has no time for all: sm_90a has
// half of its sample, because it has the kernels of both families, and sm_80 more than the others.
// Each of them has the most values that the ones before it do not have.
std::vector<Setting> thinned(std::vector<Setting> settings, const Arch& arch) {
  const std::size_t step = arch.name == "sm_90a" ? 2 : arch.name == "sm_80" ? 5 : 18;
  const std::size_t count = (settings.size() + step - 1) / step;
  std::vector<Setting> result;
  while (result.size() < count) {
    const std::set<Value> seen = values_of(result);
    const auto best = std::ranges::max_element(settings, {}, [&](const Setting& setting) {
      return std::ranges::count_if(values_of(setting), [&](Value v) { return !seen.contains(v); });
    });
    result.push_back(*best);
    settings.erase(best);
  }
  return result;
}

// Returns the settings of the arch with this index.
std::vector<Setting> settings_of(std::vector<Setting> settings, std::size_t arch) {
  std::erase_if(settings, [&](const Setting& setting) { return setting[0] != arch; });
  return settings;
}

class Compiles : public testing::TestWithParam<std::size_t> {};

// If a config spills, the next one must compile, as in Attention::compile.
TEST_P(Compiles, WithoutSpillsAndWarnings) {
  const Arch& arch = gpu_archs().at(GetParam());
  std::vector<Setting> settings = settings_of(chosen_settings(), GetParam());
  if (environment("LAZYROPE_SOAK", "").empty()) settings = thinned(settings, arch);
  ASSERT_FALSE(settings.empty());
  std::string table =
      fmt::format("{:8} {:15} registers spills shared  cubin  spec\n", "arch", "kernel");
  for (std::size_t config_index = 0; !settings.empty(); ++config_index) {
    std::vector<Job> jobs = jobs_for(arch, settings, config_index);
    for_each_parallel(jobs.size(), thread_count(0), [&](std::size_t i) {
      jobs[i].report = compile_for_report(jobs[i].kernel, arch);
    });
    settings.clear();
    for (const Job& job : jobs) {
      table += line_of(job, arch);
      if (job.report.spill_bytes > 0 &&
          config_index + 1 < configs(spec_of(job.setting), arch).size())
        settings.push_back(job.setting);
      else
        EXPECT_EQ(job.report.problem, "") << to_string(job.kernel.kind) << " for " << arch.name
                                          << ": " << describe(spec_of(job.setting));
    }
  }
  fmt::print("{}", table);
}

INSTANTIATE_TEST_SUITE_P(Archs, Compiles, testing::Range(std::size_t{0}, gpu_archs().size()),
                         [](const auto& row) { return gpu_archs().at(row.param).name; });

// CI compiles fewer settings for sm_90a than there are RoPE variants (factor 1) and head_dims
// (factor 4). They have every mask, all dtypes, both forms and all modifications of scores.
void expect_most_values(const std::vector<Setting>& sample) {
  const auto is_sm90a = [](const Arch& arch) { return arch.name == "sm_90a"; };
  const auto arch = std::ranges::find_if(gpu_archs(), is_sm90a);
  ASSERT_NE(arch, gpu_archs().end());
  const auto all = settings_of(sample, static_cast<std::size_t>(arch - gpu_archs().begin()));
  const std::set<Value> compiled = values_of(thinned(all, *arch));
  for (const auto& [factor, value] : values_of(all))
    EXPECT_TRUE(compiled.contains({factor, value}) || factor == 1 || factor == 4)
        << "factor " << factor << ", value " << value;
}

TEST(Sample, EveryTwoValuesOccurTogether) {
  std::set<Pair> all, sampled;
  for (const Setting& setting : all_settings()) all.merge(pairs_of(setting));
  const std::vector<Setting>& sample = chosen_settings();
  for (const Setting& setting : sample) sampled.merge(pairs_of(setting));
  EXPECT_EQ(sampled, all);
  fmt::print("{} of {} settings\n", sample.size(), all_settings().size());
  expect_most_values(sample);
}

}  // namespace
}  // namespace lazyrope
