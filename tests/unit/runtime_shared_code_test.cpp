#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "codegen/error.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_entry.h"
#include "runtime/engine/shared_code.h"
#include "tests/support/engines.h"
#include "tests/support/log_capture.h"
#include "tests/support/temporary_directory.h"

namespace lazyrope {
namespace {

const RopeTable kTableA = {11, 22, 33, 44};
const RopeTable kTableB = {55, 66, 77, 88};

// Returns a kernel whose body reads the table `t`.
RenderedKernel tiny(const RopeTable& table, const std::string& body) {
  RenderedKernel kernel = {
      KernelKind::kAppend,
      "__device__ const unsigned long long t[] = {11ull, 22ull, 33ull, 44ull};\n"
      "extern \"C\" __global__ void tiny(unsigned long long* x) { " +
          body + " }\n",
      "tiny",
      32,
      1,
      0};
  kernel.rope_table = kTableA;
  return with_rope_table(std::move(kernel), table);
}

RenderedKernel reads_all(const RopeTable& table) {
  return tiny(table, "x[threadIdx.x] = t[threadIdx.x % 4];");
}

// The compiler replaces the load of one word by the word. The table stays for the other load.
RenderedKernel reads_first(const RopeTable& table) {
  return tiny(table, "x[0] = t[1]; x[threadIdx.x + 1] = t[threadIdx.x % 4];");
}

bool has(const Binary& binary, const RopeTable& table) {
  const auto words = std::as_bytes(std::span(table));
  return !std::ranges::search(binary.code, words).empty();
}

class SharedCodeTest : public testing::Test {
 protected:
  static std::vector<KernelResult> get(Engine& engine, const std::vector<RenderedKernel>& kernels) {
    std::vector<KernelRequest> requests;
    for (const RenderedKernel& kernel : kernels) requests.push_back({kernel, &find_arch("sm_80")});
    return engine.try_kernels(requests, {.threads = 2});
  }
  static void expect_tables(const std::vector<KernelResult>& results) {
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].key, results[1].key);
    EXPECT_TRUE(has(results[0].kernel->binary(), kTableA));
    EXPECT_TRUE(has(results[1].kernel->binary(), kTableB));
  }

  const TemporaryDirectory directory_;
  const LogCapture log_;
};

TEST_F(SharedCodeTest, ATableReplacesAnotherInTheSource) {
  const RenderedKernel kernel = reads_all(kTableB);
  EXPECT_NE(kernel.source.find("t[] = {55ull, 66ull, 77ull, 88ull};"), std::string::npos);
  EXPECT_EQ(with_rope_table(kernel, kTableA).source, reads_all(kTableA).source);
  EXPECT_THROW(with_rope_table(kernel, {1, 2}), SpecError) << "of another length";
  RenderedKernel twice = kernel;
  twice.source += "// {55ull, 66ull, 77ull, 88ull}";
  EXPECT_THROW(with_rope_table(twice, kTableA), SpecError);
}

TEST_F(SharedCodeTest, KernelsThatDifferInTheirTablesHaveOneSharedForm) {
  const RenderedKernel shared = shared_form(reads_all(kTableA));
  EXPECT_EQ(shared.source, shared_form(reads_all(kTableB)).source);
  EXPECT_NE(shared.source, reads_all(kTableA).source);
  RenderedKernel without = reads_all(kTableA);
  without.rope_table.clear();
  EXPECT_EQ(shared_form(without).source, without.source);
}

TEST_F(SharedCodeTest, CodeServesAllTablesIfItHasThePlaceholderOnceAndNoWordOfItElsewhere) {
  const RenderedKernel shared = shared_form(reads_all(kTableA));
  const auto words = std::as_bytes(std::span(shared.rope_table));
  const std::vector<std::byte> table(words.begin(), words.end());
  const std::vector<std::byte> other(64);
  const auto code = [](std::initializer_list<std::vector<std::byte>> parts) {
    std::vector<std::byte> all;
    for (const std::vector<std::byte>& part : parts)
      all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const std::vector<std::byte> half(table.begin() + 4, table.begin() + 8);
  EXPECT_TRUE(serves_all_tables(shared, code({other, table, other})));
  EXPECT_FALSE(serves_all_tables(shared, code({other, other})));
  EXPECT_FALSE(serves_all_tables(shared, code({table, other, table})));
  EXPECT_FALSE(serves_all_tables(shared, code({half, other, table})));
  EXPECT_FALSE(serves_all_tables(shared, code({table, other, half})));
}

TEST_F(SharedCodeTest, KernelsThatDifferInTheirTablesAreCompiledOnce) {
  const std::vector<RenderedKernel> kernels = {reads_all(kTableA), reads_all(kTableB)};
  for (const bool has_disk : {true, false}) {
    Engine engine(has_disk ? test_config(directory_.path()) : test_config());
    const std::vector<KernelResult> results = get(engine, kernels);
    expect_tables(results);
    EXPECT_FALSE(results[0].kernel->from_cache());
    EXPECT_FALSE(results[1].kernel->from_cache());
    EXPECT_EQ(engine.counters().count(Counter::kCompiled), 1u);
    EXPECT_EQ(engine.counters().count(Counter::kMemoryHits), 1u);
    (void)get(engine, kernels);
    EXPECT_EQ(engine.counters().count(Counter::kMemoryHits), 3u);
  }
  Engine reader(test_config(directory_.path()));
  EXPECT_EQ(reader.store().list().size(), 1u);
  expect_tables(get(reader, kernels));
  EXPECT_EQ(reader.counters().count(Counter::kDiskHits), 1u);
  EXPECT_TRUE(reader.explain({reads_all({1, 2, 3, 4}), &find_arch("sm_80")}).is_found);
}

TEST_F(SharedCodeTest, AnEntryHasAPlaceholderAndIsRefusedWithoutIt) {
  Engine engine(test_config(directory_.path()));
  const std::vector<RenderedKernel> kernels = {reads_all(kTableA), reads_all(kTableB)};
  (void)get(engine, {kernels[0]});
  const Key key = Key::from_fields(engine.store().list().at(0).fields);
  Binary stored = binary_of(engine.store().load(key).entry.value());
  EXPECT_FALSE(has(stored, kTableA));
  ASSERT_TRUE(has_placeholder(kernels[0], stored.code));

  write_table(kernels[0], stored.code);
  ASSERT_TRUE(engine.store().store(key, entry_of(stored)).stored);
  engine.clear_cache();
  expect_tables(get(engine, kernels));
  EXPECT_EQ(engine.counters().count(Counter::kRefused), 1u);
  EXPECT_NE(log_.text().find("is not used: its code has no place for a RoPE table"),
            std::string::npos);
}

TEST_F(SharedCodeTest, CodeThatComputesWithTheTableIsNotShared) {
  Config config = test_config(directory_.path());
  config.log_level = LogLevel::kInfo;
  Engine engine(config);
  const std::vector<KernelResult> results =
      get(engine, {reads_first(kTableA), reads_first(kTableB)});
  ASSERT_TRUE(results[0].is_usable() && results[1].is_usable());
  EXPECT_NE(results[0].kernel->binary().code, results[1].kernel->binary().code);
  EXPECT_NE(results[0].key, results[1].key);
  EXPECT_EQ(engine.counters().count(Counter::kCompiled), 2u);
  EXPECT_EQ(engine.store().list().size(), 2u);
  EXPECT_NE(log_.text().find("words of the table in its instructions"), std::string::npos);
  Engine reader(test_config(directory_.path()));
  const std::vector<KernelResult> read = get(reader, {reads_first(kTableB)});
  EXPECT_TRUE(read[0].kernel->from_cache());
  EXPECT_EQ(read[0].kernel->binary().code, results[1].kernel->binary().code);
  EXPECT_TRUE(reader.explain({reads_first(kTableA), &find_arch("sm_80")}).is_found);
}

}  // namespace
}  // namespace lazyrope
