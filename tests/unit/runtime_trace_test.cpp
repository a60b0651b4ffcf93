#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/trace.h"
#include "tests/support/log_capture.h"
#include "tests/support/temporary_directory.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

class TraceTest : public testing::Test {
 protected:
  ~TraceTest() override { trace_to(""); }

  std::string text() const {
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  nlohmann::json events() const { return nlohmann::json::parse(text()); }

  const TemporaryDirectory directory_;
  const fs::path path_ = directory_ / "trace.json";
  const LogCapture log_;
};

TEST_F(TraceTest, WithoutAFileNothingIsTraced) {
  EXPECT_FALSE(is_tracing());
  TraceSpan("attend").with("tokens", 3);
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

TEST_F(TraceTest, AnEventHasTheCallAndItsArguments) {
  trace_to(path_.string());
  EXPECT_TRUE(is_tracing());
  std::vector<float> data(6);
  {
    TraceSpan span("attend");
    span.with("tokens", 3).with("arch", "sm_\"80\xff");
    span.with("q", make_tensor(data.data(), ElementType::kFp32, {2, 3}, DeviceType::kCpu));
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  const nlohmann::json event = events().at(0);
  EXPECT_EQ(event.at("name"), "attend");
  EXPECT_EQ(event.at("ph"), "X");
  EXPECT_EQ(event.at("pid"), ::getpid());
  EXPECT_EQ(event.at("tid"), ::gettid());
  EXPECT_GE(event.at("dur"), 3000.0);
  EXPECT_LT(event.at("dur"), 1e9);
  EXPECT_EQ(
      event.at("args"),
      nlohmann::json({{"tokens", 3}, {"arch", "sm_\"80\xef\xbf\xbd"}, {"q", "float32 [2, 3]"}}));
}

TEST_F(TraceTest, AnEventSaysThatItsCallFailed) {
  trace_to(path_.string());
  try {
    const TraceSpan span("append");
    throw std::runtime_error("no");
  } catch (const std::runtime_error&) {
    TraceSpan("attend");
  }
  EXPECT_EQ(events().at(0).at("args"), nlohmann::json({{"failed", true}}));
  EXPECT_EQ(events().at(1).at("args"), nlohmann::json::object());
}

TEST_F(TraceTest, ThreadsAndProcessesWriteToOneFile) {
  constexpr int kEach = 50;
  const auto write = [] {
    for (int i = 0; i < kEach; ++i) TraceSpan("attend").with("i", i);
  };
  trace_to(path_.string());
  write();
  const ::pid_t child = ::fork();
  if (child == 0) {
    write();
    ::_exit(0);
  }
  {
    const std::jthread first(write), second(write);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(events().size(), 4u * kEach);
  int of_child = 0;
  for (const nlohmann::json& event : events()) of_child += event.at("pid") == child ? 1 : 0;
  EXPECT_EQ(of_child, kEach);
}

TEST_F(TraceTest, AFileThatIsNoTraceIsLeftAlone) {
  std::ofstream(path_) << "precious";
  trace_to(path_.string());
  TraceSpan("attend");
  TraceSpan("attend");
  EXPECT_EQ(text(), "precious");
  EXPECT_FALSE(is_tracing());
  ASSERT_EQ(log_.messages().size(), 1u) << log_.text();
  EXPECT_NE(log_.text().find("is there already and is not a trace"), std::string::npos);
}

TEST_F(TraceTest, APathThatCannotBeWrittenCostsOneWarning) {
  trace_to((directory_ / "absent" / "trace.json").string());
  TraceSpan("attend");
  TraceSpan("attend");
  ASSERT_EQ(log_.messages().size(), 1u) << log_.text();
  EXPECT_NE(log_.text().find("No such file or directory; see LAZYROPE_TRACE"), std::string::npos);
}

}  // namespace
}  // namespace lazyrope
