#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cache/error.h"
#include "runtime/base/error.h"
#include "runtime/emulator/device.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_set.h"
#include "tests/support/engines.h"
#include "tests/support/log_capture.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

// Tests whether an engine uses a cached kernel of the emulator, given the C++ compiler that
// compiled the kernel and the one that the engine has. The compilers are shell scripts, and their
// binaries cannot be loaded.
class HostCompilerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_emulator()) GTEST_SKIP() << "this build has no emulator";
  }

  // Writes a compiler that reports this version, in place of the compiler that is there. Returns
  // its command.
  std::string install_compiler(const std::string& version) const {
    constexpr const char* kScript = R"(
case "$*" in *--version*) echo asked >> '{}'; echo '{}'; echo more; exit;; esac
for last do
  [ "$previous" = -o ] && out=$last
  previous=$last
done
echo code > "$out"
)";
    std::ofstream(compiler_path()) << fmt::format(kScript, asked_path(), version);
    return "sh '" + compiler_path() + "'";
  }
  void remove_compiler() const { fs::remove(compiler_path()); }

  // Returns the number of times that compilers were asked for their version.
  std::ptrdiff_t version_queries() const {
    std::ifstream in(asked_path());
    return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
  }

  Config config(const std::string& command) const {
    Config config = test_config(cache_.path());
    config.log_level = LogLevel::kInfo;
    config.host_compiler = command;
    return config;
  }

  static std::shared_ptr<const Kernel> get(Engine& engine, const std::string& source = "text",
                                           EngineOptions options = {}) {
    const KernelRequest request = {{KernelKind::kAppend, source, "tiny", 32, 1, 0},
                                   &find_arch("emu:sm_80")};
    return KernelSet{{}, engine.try_kernels({request}, options)}.kernels().front();
  }

  const LogCapture log_;

 private:
  std::string compiler_path() const { return (folder_ / "compiler").string(); }
  std::string asked_path() const { return (folder_ / "asked").string(); }

  const TemporaryDirectory cache_;
  const TemporaryDirectory folder_;
};

TEST_F(HostCompilerTest, KernelsNameTheirCompiler) {
  const std::string command = install_compiler("gcc 1.0");
  Engine engine(config(command));
  const std::string compiler = get(engine)->binary().compiler;
  EXPECT_TRUE(compiler.starts_with(command + " [gcc 1.0, ")) << compiler;
  EXPECT_EQ(compiler.find("more"), std::string::npos) << compiler;
}

TEST_F(HostCompilerTest, ACachedKernelOfTheSameCompilerIsUsed) {
  const std::string command = install_compiler("gcc 1.0");
  Engine compiles(config(command)), reads(config(command));
  EXPECT_FALSE(get(compiles)->from_cache());
  EXPECT_TRUE(get(reads)->from_cache());
}

TEST_F(HostCompilerTest, ACachedKernelOfAnotherVersionIsLoggedAndCompiledAgain) {
  Engine old(config(install_compiler("gcc 1.0")));
  get(old);
  const std::string command = install_compiler("gcc 2.0");
  Engine compiles(config(command)), reads(config(command));
  const auto compiled = get(compiles);
  EXPECT_FALSE(compiled->from_cache());
  EXPECT_TRUE(says(compiled->binary().compiler, {"[gcc 2.0, "}));
  EXPECT_TRUE(says(log_.text(), {"info: cache entry ", "is not used: it was compiled by sh ",
                                 "[gcc 1.0, ", "and the compiler here is sh ", "[gcc 2.0, "}));
  EXPECT_EQ(log_.text().find("warning: "), std::string::npos) << log_.text();
  EXPECT_TRUE(get(reads)->from_cache()) << "the new kernel replaces the old one";
}

TEST_F(HostCompilerTest, ACachedKernelOfOtherOptionsIsCompiledAgain) {
  const std::string command = install_compiler("gcc 1.0");
  Engine plain(config(command)), debug(config(command + " -g"));
  get(plain);
  EXPECT_FALSE(get(debug)->from_cache());
}

TEST_F(HostCompilerTest, WithoutACompilerEveryCachedKernelIsUsed) {
  const std::string command = install_compiler("gcc 1.0");
  Engine compiles(config(command)), reads(config(command));
  get(compiles);
  remove_compiler();
  EXPECT_TRUE(get(reads)->from_cache());
  EXPECT_EQ(log_.text().find("is not used"), std::string::npos) << log_.text();
  EXPECT_TRUE(throws<CompileError>([&] { get(reads, "other text"); }, {"C++20 compiler"}));
}

TEST_F(HostCompilerTest, WhereCompilingIsForbiddenEveryCachedKernelIsUsed) {
  Engine compiles(config(install_compiler("gcc 1.0")));
  get(compiles);
  Config cache_only = config(install_compiler("gcc 2.0"));
  cache_only.policy = CachePolicy::kCacheOnly;
  Engine reads(cache_only);
  EXPECT_TRUE(get(reads)->from_cache());
}

TEST_F(HostCompilerTest, ACacheOnlyRequestNamesTheOtherCompiler) {
  Engine compiles(config(install_compiler("gcc 1.0")));
  get(compiles);
  Engine reads(config(install_compiler("gcc 2.0")));
  EXPECT_TRUE(throws<CacheError>([&] { get(reads, "text", {.cache_only = true}); },
                                 {"it was compiled by", "[gcc 1.0, ", "[gcc 2.0, "}));
}

TEST_F(HostCompilerTest, TheVersionIsAskedOnceForAnEngine) {
  Engine engine(config(install_compiler("gcc 1.0")));
  get(engine, "first");
  get(engine, "second");
  engine.clear_cache();
  EXPECT_TRUE(get(engine, "first")->from_cache());
  EXPECT_EQ(version_queries(), 1);
}

TEST_F(HostCompilerTest, AVersionThatIsNotAsciiIsStored) {
  const std::string command = install_compiler("g\374\351cc 1.0");
  Engine compiles(config(command)), reads(config(command));
  EXPECT_TRUE(says(get(compiles)->binary().compiler, {"[gcc 1.0, "}));
  EXPECT_TRUE(get(reads)->from_cache());
}

}  // namespace
}  // namespace lazyrope
