#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <regex>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/driver/nvrtc.h"
#include "tests/support/temporary_directory.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDirectory = LAZYROPE_TEST_NVRTC_DIR;
constexpr const char* kFile = LAZYROPE_TEST_NVRTC_DIR "/libnvrtc.so.13";

constexpr const char* kScale = R"(extern "C" __global__ void scale(float* x, float by) {
  x[threadIdx.x] *= by;
}
)";

// The test machine's NVRTC. Without one the tests fail with the locator's error text.
const NvrtcLibrary& nvrtc() {
  static NvrtcLocator locator({.configured = kFile});
  return locator.library();
}

CompiledProgram compile(const std::string& source, std::vector<std::string> options) {
  return compile_program(nvrtc(), {"test.cu", source, std::move(options)});
}

CompileFailure failure_of(const std::string& source, std::vector<std::string> options) {
  try {
    compile(source, std::move(options));
  } catch (const CompileError& error) {
    return error.failure();
  }
  return {.what_failed = "nothing"};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Returns a search that finds nothing on any machine.
NvrtcSearch hopeless_search() {
  return {.majors = {99},
          .directories = {"/no/such/directory"},
          .system_directories = {"", "/nowhere"}};
}

TEST(NvrtcLocator, ListsEveryLocationAndTheRemedyWhenNothingIsFound) {
  NvrtcLocator locator(hopeless_search());
  try {
    locator.library();
    FAIL() << "found " << locator.library().path();
  } catch (const CompileError& error) {
    const std::string text = error.what();
    EXPECT_TRUE(contains(text, "no usable NVRTC")) << text;
    EXPECT_TRUE(contains(text, "pip install \"nvidia-cuda-nvrtc>=13.0,<14\"")) << text;
    EXPECT_TRUE(contains(text, "LAZYROPE_NVRTC")) << text;
    EXPECT_TRUE(contains(text, "configured (LAZYROPE_NVRTC): not set\n")) << text;
    EXPECT_TRUE(contains(text, "\nalready loaded libnvrtc.so.99: not loaded\n")) << text;
    EXPECT_TRUE(contains(text, "/no/such/directory/libnvrtc.so.99: no such file")) << text;
    EXPECT_TRUE(contains(text, "system libnvrtc.so.99: libnvrtc.so.99: cannot open")) << text;
    EXPECT_TRUE(contains(text, "system /nowhere/libnvrtc.so.99: no such file")) << text;
  }
  EXPECT_THROW(locator.library(), CompileError) << "a second call fails too";
}

TEST(NvrtcLocator, TakesTheConfiguredOneAndLooksNoFurther) {
  NvrtcLocator locator({.configured = kFile, .directories = {"/no/such/directory"}});
  EXPECT_TRUE(fs::equivalent(locator.library().path(), kFile));
  ASSERT_EQ(locator.attempts().size(), 1u);
  EXPECT_EQ(locator.attempts()[0].location, "configured (LAZYROPE_NVRTC)");
}

TEST(NvrtcLocator, DoesNotReplaceAConfiguredOneThatFails) {
  NvrtcLocator locator({.configured = "/no/such/libnvrtc.so.13", .directories = {kDirectory}});
  EXPECT_THROW(locator.library(), CompileError);
  ASSERT_EQ(locator.attempts().size(), 1u);
  EXPECT_EQ(locator.attempts()[0].outcome, "no such file");
}

TEST(NvrtcLocator, PrefersTheOneThatTheProcessHasLoaded) {
  const std::string loaded = nvrtc().path();
  NvrtcLocator locator({.directories = {"/no/such/directory"}});
  EXPECT_EQ(locator.library().path(), loaded);
  ASSERT_EQ(locator.attempts().size(), 2u);
  EXPECT_EQ(locator.attempts()[1].location, "already loaded");
}

// Returns a search that finds the test machine's NVRTC under the names of two major versions.
NvrtcSearch search_of_two_majors(const TemporaryDirectory& directory, std::optional<int> driver) {
  for (const char* name : {"libnvrtc.so.98", "libnvrtc.so.99"})
    if (!fs::exists(directory / name)) fs::create_symlink(kFile, directory / name);
  return {.majors = {99, 98},
          .directories = {"/no/such/directory", directory.path().string()},
          .driver_version = [driver] { return driver; }};
}

TEST(NvrtcLocator, TakesTheNewestThatTheDriverLoads) {
  struct Row {
    std::optional<int> driver;
    const char* chosen;
  };
  const TemporaryDirectory directory;
  for (const Row& row : {Row{std::nullopt, "libnvrtc.so.99"}, Row{99'000, "libnvrtc.so.99"},
                         Row{100'020, "libnvrtc.so.99"}, Row{98'080, "libnvrtc.so.98"}}) {
    NvrtcLocator locator(search_of_two_majors(directory, row.driver));
    EXPECT_EQ(locator.attempts().back().file, (directory / row.chosen).string());
  }
}

TEST(NvrtcLocator, TakesTheNewestIfAllAreTooNewForTheDriver) {
  const TemporaryDirectory directory;
  NvrtcLocator locator(search_of_two_majors(directory, 97'050));
  EXPECT_EQ(locator.attempts().back().file, (directory / "libnvrtc.so.99").string());
}

TEST(NvrtcLocator, LeavesALoadedOneThatIsTooNewForTheDriver) {
  ASSERT_EQ(nvrtc().version().major, 13);
  const TemporaryDirectory directory;
  fs::create_symlink(kFile, directory / "libnvrtc.so.12");
  NvrtcLocator locator({.directories = {directory.path().string()},
                        .driver_version = [] { return std::optional(12'080); }});
  EXPECT_EQ(locator.attempts().back().file, (directory / "libnvrtc.so.12").string());
}

TEST(NvrtcLocator, AsksForNoDriverIfTheUserChooses) {
  NvrtcLocator locator({.configured = kFile, .driver_version = []() -> std::optional<int> {
                          ADD_FAILURE() << "the user's choice always wins";
                          return std::nullopt;
                        }});
  EXPECT_TRUE(fs::equivalent(locator.library().path(), kFile));
}

TEST(NvrtcVersion, IsReadFromTheNameOfACompiler) {
  EXPECT_EQ(nvrtc_version_of("nvrtc 13.5-0123-4567"), (NvrtcVersion{13, 5}));
  EXPECT_EQ(nvrtc_version_of(nvrtc().identity()), std::nullopt);
  EXPECT_EQ(nvrtc_version_of("nvrtc " + nvrtc().identity()), nvrtc().version());
  for (const char* other : {"", "nvrtc ", "nvrtc 13", "nvrtc x.y", "g++ 12.2"})
    EXPECT_EQ(nvrtc_version_of(other), std::nullopt) << other;
}

TEST(DriverConflict, OnlyANewerMajorVersionIsTooNew) {
  EXPECT_EQ(driver_conflict({13, 5}, std::nullopt), "");
  EXPECT_EQ(driver_conflict({13, 5}, 13'000), "");
  EXPECT_EQ(driver_conflict({12, 9}, 13'000), "");
  EXPECT_EQ(driver_conflict({12, 9}, 12'000), "");
  EXPECT_EQ(driver_conflict({13, 0}, 12'080),
            "NVRTC 13.0 is too new for the driver, which is of CUDA 12.8 and loads no kernel of "
            "CUDA 13: update the driver to one of CUDA 13.0 or newer, or pip install "
            "nvidia-cuda-nvrtc-cu12");
}

TEST(NvrtcLocator, RefusesALibraryThatIsNotNvrtc) {
  NvrtcLocator locator({.configured = "libm.so.6"});
  EXPECT_THROW(locator.library(), CompileError);
  EXPECT_TRUE(contains(locator.attempts()[0].outcome, "not usable: it has no nvrtcVersion"))
      << locator.attempts()[0].outcome;
}

TEST(NvrtcLocator, ThreadsShareOneSearch) {
  NvrtcLocator locator({.configured = kFile});
  const NvrtcLibrary* seen[2] = {};
  std::thread first([&] { seen[0] = &locator.library(); });
  std::thread second([&] { seen[1] = &locator.library(); });
  first.join();
  second.join();
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(locator.attempts().size(), 1u);
}

TEST(NvrtcLibrary, KnowsVersionArchsAndIdentity) {
  EXPECT_GE(nvrtc().version(), (NvrtcVersion{12, 0}));
  const auto& archs = nvrtc().supported_archs();
  EXPECT_TRUE(std::is_sorted(archs.begin(), archs.end()));
  EXPECT_NE(std::find(archs.begin(), archs.end(), 80), archs.end());
  EXPECT_NE(std::find(archs.begin(), archs.end(), 90), archs.end());
  const std::regex identity("\\d+\\.\\d+-[0-9a-f]{40}-[0-9a-f]{40}");
  EXPECT_TRUE(std::regex_match(nvrtc().identity(), identity)) << nvrtc().identity();
}

// These tests need a process that has not loaded NVRTC yet. A "threadsafe" death test starts one.
class FreshProcess : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Finds NVRTC in a directory that the loader does not search, reports on stderr, and compiles.
[[noreturn]] void search_and_compile() {
  NvrtcSearch search = hopeless_search();
  search.majors = {13};
  search.directories.emplace_back(kDirectory);
  NvrtcLocator locator(search);
  for (const NvrtcAttempt& tried : locator.attempts()) {
    std::fprintf(stderr, "%s|%s|%s\n", tried.location.c_str(), tried.file.c_str(),
                 tried.outcome.c_str());
  }
  const auto program =
      compile_program(locator.library(), {"k.cu", kScale, {"--gpu-architecture=sm_90a"}});
  std::exit(program.cubin.empty() ? 1 : 0);
}

TEST_F(FreshProcess, SearchesInOrderRecordsTheOutcomesAndCompiles) {
  EXPECT_EXIT(search_and_compile(), testing::ExitedWithCode(0),
              "^configured \\(LAZYROPE_NVRTC\\)\\|\\|not set\n"
              "already loaded\\|libnvrtc.so.13\\|not loaded\n"
              "Python package\\|/no/such/directory/libnvrtc.so.13\\|no such file\n"
              "Python package\\|[^|]*/libnvrtc.so.13\\|opened: [^ ]*/libnvrtc.so.13, "
              "identity 13\\.[0-9]+-[0-9a-f]{40}-[0-9a-f]{40}, "
              "builtins [^ ]*/libnvrtc-builtins.so.13.[0-9]+\n$");
}

// Searches while no file can be opened, and again when files can be opened.
[[noreturn]] void search_again_after_an_error() {
  NvrtcLocator locator({.configured = kFile});
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t before = std::exchange(limit.rlim_cur, 0);
  setrlimit(RLIMIT_NOFILE, &limit);
  std::string outcome;
  try {
    locator.library();
  } catch (const CompileError& error) {
    outcome = error.failure().log;
  }
  limit.rlim_cur = before;
  setrlimit(RLIMIT_NOFILE, &limit);
  std::fputs(outcome.c_str(), stderr);
  std::exit(locator.library().path().empty() ? 1 : 0);
}

TEST_F(FreshProcess, RepeatsASearchThatHasFailed) {
  EXPECT_EXIT(search_again_after_an_error(), testing::ExitedWithCode(0), "Too many open files");
}

TEST_F(FreshProcess, ReportsMissingBuiltins) {
  const fs::path directory = fs::path(testing::TempDir()) / "nvrtc_without_builtins";
  const fs::path lonely = directory / "libnvrtc.so.13";
  fs::create_directories(directory);
  fs::copy_file(kFile, lonely, fs::copy_options::overwrite_existing);
  EXPECT_EXIT(
      {
        NvrtcLocator locator({.configured = lonely.string()});
        std::fputs(locator.attempts()[0].outcome.c_str(), stderr);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "not usable: libnvrtc-builtins.so.13.*cannot open");
  fs::remove_all(directory);
}

TEST(CompileProgram, MakesACubin) {
  const CompiledProgram compiled = compile(kScale, {"--gpu-architecture=sm_90a"});
  ASSERT_GT(compiled.cubin.size(), 64u);
  EXPECT_EQ(std::memcmp(compiled.cubin.data(), "\177ELF", 4), 0);
  EXPECT_EQ(compiled.log, "");
  EXPECT_GT(compiled.milliseconds, 0.0);
}

TEST(CompileProgram, ReturnsWarningsInTheLog) {
  const CompiledProgram compiled =
      compile("extern \"C\" __global__ void k() { int unused; }", {"--gpu-architecture=sm_80"});
  EXPECT_TRUE(contains(compiled.log, "test.cu(1): warning #177-D")) << compiled.log;
  EXPECT_NE(compiled.log.back(), '\0');
}

std::array<sighandler_t, 2> signal_handlers() {
  std::array<sighandler_t, 2> handlers;
  std::ranges::transform(std::array{SIGINT, SIGTERM}, handlers.begin(), [](int number) {
    struct sigaction action{};
    ::sigaction(number, nullptr, &action);
    return action.sa_handler;
  });
  return handlers;
}

// NVRTC would set handlers of its own for most of this time.
TEST(CompileProgram, LeavesTheHandlersOfSignals) {
  const auto before = signal_handlers();
  std::atomic<bool> has_ended = false;
  std::jthread compiling([&] {
    compile(kScale, {"--gpu-architecture=sm_90a"});
    has_ended = true;
  });
  int looks = 0;
  for (; !has_ended; ++looks) ASSERT_EQ(signal_handlers(), before) << "after " << looks << " looks";
  EXPECT_GT(looks, 100);
}

TEST(CompileProgram, MakesPtx) {
  const PtxProgram compiled =
      compile_to_ptx(nvrtc(), {"test.cu", kScale, {"--gpu-architecture=compute_90a"}});
  EXPECT_TRUE(contains(compiled.ptx, ".target sm_90a")) << compiled.ptx;
  EXPECT_TRUE(contains(compiled.ptx, ".entry scale(")) << compiled.ptx;
  EXPECT_GT(compiled.milliseconds, 0.0);
}

TEST(CompileProgram, AVirtualArchitectureMakesNoCubin) {
  const CompileFailure failure = failure_of(kScale, {"--gpu-architecture=compute_90a"});
  EXPECT_TRUE(contains(failure.advice, "--gpu-architecture=sm_XX")) << failure.advice;
}

TEST(CompileProgram, AnErrorShowsTheLogTheLinesAndTheOptions) {
  const std::string source =
      "// one\n// two\nextern \"C\" __global__ void k(float* x) {\n  x[0] = nowhere;\n}\n// six\n";
  const CompileFailure failure = failure_of(source, {"--gpu-architecture=sm_90a", "-DX=1"});
  EXPECT_TRUE(contains(failure.what_failed, "could not compile 'test.cu': NVRTC_ERROR_COMPILATION"))
      << failure.what_failed;
  EXPECT_TRUE(contains(failure.log, "test.cu(4): error: identifier \"nowhere\" is undefined"));
  EXPECT_EQ(failure.excerpt,
            "     3 | extern \"C\" __global__ void k(float* x) {\n"
            ">    4 |   x[0] = nowhere;\n"
            "     5 | }\n");
  const std::string text = CompileError(failure).what();
  for (const std::string& part : {failure.log, failure.excerpt, failure.advice,
                                  std::string("options: --gpu-architecture=sm_90a -DX=1")}) {
    EXPECT_TRUE(contains(text, part)) << text;
  }
}

TEST(CompileProgram, AnErrorIsShownInTheFileThatItsLineComesFrom) {
  const CompileFailure failure = failure_of(
      "#line 1 \"kernel/k.cu.in\"\n"
      "#line 7 \"ops/f.cuh\"\n"
      "__device__ int f() {\n"
      "  return nowhere;\n"
      "}\n"
      "#line 2 \"kernel/k.cu.in\"\n"
      "extern \"C\" __global__ void k(int* x) {\n"
      "  x[0] = f();\n"
      "}\n",
      {"--gpu-architecture=sm_90a"});
  EXPECT_TRUE(contains(failure.log, "ops/f.cuh(8): error: identifier \"nowhere\" is undefined"));
  EXPECT_EQ(failure.excerpt,
            "ops/f.cuh:\n"
            "     7 | __device__ int f() {\n"
            ">    8 |   return nowhere;\n"
            "     9 | }\n");
}

TEST(CompileProgram, AnErrorOfPtxasShowsThePtx) {
  const CompileFailure failure =
      failure_of("extern \"C\" __global__ void k() { asm volatile(\"mma.bogus;\"); }",
                 {"--gpu-architecture=sm_90a"});
  EXPECT_TRUE(contains(failure.log, "ptxas")) << failure.log;
  EXPECT_TRUE(contains(failure.excerpt, "| \tmma.bogus;")) << failure.excerpt;
}

TEST(CompileProgram, ABadOptionIsAnErrorThatListsTheSupportedArchs) {
  const CompileFailure arch = failure_of(kScale, {"--gpu-architecture=sm_37"});
  EXPECT_TRUE(contains(arch.log, "invalid value for --gpu-architecture")) << arch.log;
  EXPECT_TRUE(contains(arch.advice, "sm_80, ")) << arch.advice;
  const CompileFailure unknown = failure_of(kScale, {"--nonsense"});
  EXPECT_TRUE(contains(unknown.log, "unrecognized option --nonsense")) << unknown.log;
}

TEST(CompileProgram, ThreadsCompileAtOnceAndGetTheSameBytes) {
  const auto source = [](int i) {
    return "extern \"C\" __global__ void k(int* x) { x[threadIdx.x] += " + std::to_string(i) +
           "; }";
  };
  constexpr int kPrograms = 6;
  std::vector<CompiledProgram> alone;
  for (int i = 0; i < kPrograms; ++i) {
    alone.push_back(compile(source(i), {"--gpu-architecture=sm_90a"}));
  }
  std::vector<CompiledProgram> together(kPrograms);
  const auto compile_every_second = [&](int first) {
    for (int i = first; i < kPrograms; i += 2) {
      together[static_cast<std::size_t>(i)] = compile(source(i), {"--gpu-architecture=sm_90a"});
    }
  };
  std::thread even(compile_every_second, 0);
  std::thread odd(compile_every_second, 1);
  even.join();
  odd.join();
  for (std::size_t i = 0; i < kPrograms; ++i) EXPECT_EQ(alone[i].cubin, together[i].cubin) << i;
  EXPECT_NE(alone[0].cubin, alone[1].cubin);
}

}  // namespace
}  // namespace lazyrope
