// Checks every row of tests/support/decode_shares.json, as tests/python/test_decode_tools.py does.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/specs.h"
#include "tests/unit/emulated_planner.h"
#include "tests/unit/planner_steps.h"

namespace lazyrope {
namespace {

using Json = nlohmann::json;

constexpr int kSms = 132;
constexpr int kDocument = 1024;

Json table() {
  return Json::parse(std::ifstream(LAZYROPE_TEST_SOURCE_DIR "/support/decode_shares.json"));
}

AttentionSpec spec_of(const Json& row) {
  AttentionSpec spec;
  spec.head_dim = row.at("head_dim");
  spec.num_q_heads = row.at("heads").at(0);
  spec.num_kv_heads = row.at("heads").at(1);
  spec.mask = "full";
  spec.rope = llama3(spec.head_dim);
  return spec;
}

// Returns how many CTAs get work in a step of one token per request, with Hopper's default config.
auto count_ctas_with_work(const Json& row) {
  const AttentionSpec spec = spec_of(row);
  const KernelSpec kernel_spec = spec.kernel_spec();
  const Arch& arch = find_arch("emu:sm_90a");
  const KernelConfig config = configs(kernel_spec, arch).front();
  EmulatedPlanner planner(kernel_spec, arch, config);
  const int requests = row.at("batch");
  StepArrays arrays = requests_of_documents(requests, row.at("context"), kDocument, 16);
  const int group_size = spec.num_q_heads / spec.num_kv_heads;
  planner.plan(arrays, {.shape = {group_size, spec.num_kv_heads, spec.head_dim, 2, spec.mask},
                        .config = config,
                        .capacity = {.requests = requests,
                                     .segments = static_cast<int>(arrays.base.size()),
                                     .query_tokens = requests,
                                     .tokens_per_request = 1},
                        .sm_count = kSms,
                        .finds_races = false});
  const WorkView& work = planner.phases().front().work;
  return std::count_if(work.work_tiles, work.work_tiles + work.num_ctas,
                       [](const WorkTile& work_tile) { return work_tile.extent.num_rows > 0; });
}

TEST(DecodeShares, MatchTheTable) {
  if (!has_emulator()) GTEST_SKIP() << "this build has no emulator";
  const Json rows = table();
  ASSERT_FALSE(rows.empty());
  for (const Json& row : rows) EXPECT_EQ(count_ctas_with_work(row), row.at("ctas")) << row.dump();
}

}  // namespace
}  // namespace lazyrope
