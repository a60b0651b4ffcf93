#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/driver/context.h"
#include "runtime/driver/driver.h"

namespace lazyrope {
namespace {

// The results that the fake driver returns, and a record of its calls. The entries of a DriverTable
// are plain function pointers, so they can only use globals.
struct Fake {
  CUresult result = CUDA_SUCCESS;  // the result of every function that can fail
  int version = 13000;
  CUcontext current = nullptr;
  CUdevice current_device = 0;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  std::map<CUdevice_attribute, int> attributes;
  std::vector<std::string> calls;
};

Fake fake;

const CUcontext kCallersContext = reinterpret_cast<CUcontext>(0x10);
const CUcontext kPrimaryContext = reinterpret_cast<CUcontext>(0x20);

CUresult record(const char* call) {
  fake.calls.emplace_back(call);
  return fake.result;
}

void add_device_functions(DriverTable& table) {
  table.device_get_count = [](int* count) {
    *count = 2;
    return CUDA_SUCCESS;
  };
  table.device_get = [](CUdevice* device, int ordinal) {
    *device = 100 + ordinal;  // handles may differ from ordinals
    return CUDA_SUCCESS;
  };
  table.device_get_name = [](char* name, int size, CUdevice device) {
    std::snprintf(name, static_cast<std::size_t>(size), "GPU of handle %d", device);
    return CUDA_SUCCESS;
  };
  table.device_get_attribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
    *value = fake.attributes.at(attribute);
    return CUDA_SUCCESS;
  };
}

void add_context_functions(DriverTable& table) {
  table.primary_ctx_retain = [](CUcontext* context, CUdevice) {
    *context = kPrimaryContext;
    return record("retain"), CUDA_SUCCESS;
  };
  table.primary_ctx_release = [](CUdevice) { return record("release"); };
  table.ctx_get_current = [](CUcontext* context) {
    *context = fake.current;
    return CUDA_SUCCESS;
  };
  table.ctx_get_device = [](CUdevice* device) {
    *device = fake.current_device;
    return fake.current == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  };
  table.ctx_push_current = [](CUcontext context) {
    return record(context == kPrimaryContext ? "push primary" : "push other");
  };
  table.ctx_pop_current = [](CUcontext*) { return record("pop"); };
}

void add_memory_and_launch_functions(DriverTable& table) {
  table.mem_alloc = [](CUdeviceptr* pointer, std::size_t) {
    *pointer = 0x1000;
    return fake.result;
  };
  table.mem_free = [](CUdeviceptr) { return record("free"); };
  table.mem_host_alloc = [](void** memory, std::size_t, unsigned) {
    *memory = &fake;
    return fake.result;
  };
  table.mem_free_host = [](void*) { return record("free host"); };
  table.event_synchronize = [](CUevent) { return record("wait event"); };
  table.launch_kernel = [](const CUlaunchConfig* config, CUfunction, void**, void** extra) {
    EXPECT_EQ(extra, nullptr);
    return record(("launch " + std::to_string(config->gridDimX) + " " +
                   std::to_string(config->blockDimX) + " " + std::to_string(config->sharedMemBytes))
                      .c_str());
  };
  table.stream_is_capturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = fake.capture;
    return fake.result;
  };
}

DriverTable fake_table() {
  DriverTable table;
  table.init = [](unsigned) { return record("init"); };
  table.driver_get_version = [](int* version) {
    *version = fake.version;
    return fake.version == 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
  };
  table.get_error_name = [](CUresult code, const char** name) {
    *name = code == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : nullptr;
    return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  };
  table.get_error_string = [](CUresult code, const char** text) {
    *text = code == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : nullptr;
    return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  };
  add_device_functions(table);
  add_context_functions(table);
  add_memory_and_launch_functions(table);
  return table;
}

class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    fake = {};
    fake.attributes = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                       {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                       {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
                       {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560}};
  }

  // Returns the failure of an allocation when the driver returns `result`.
  DriverFailure failure_with(CUresult result) {
    fake.result = result;
    try {
      driver_.allocate(64);
    } catch (const DriverError& error) {
      return error.failure();
    }
    return {.text = "no error"};
  }

  const Driver driver_ = Driver::for_testing(fake_table());
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class Call>
std::string driver_error_of(Call call) {
  try {
    call();
  } catch (const DriverError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ResolveDriverTable, FillsEveryEntryFromASymbolOfItsOwn) {
  std::set<std::string> asked;
  std::array<char, 1024> addresses{};
  const DriverTable table = resolve_driver_table([&](const char* symbol) -> void* {
    asked.insert(symbol);
    return &addresses.at(asked.size());
  });
  std::array<void*, sizeof(DriverTable) / sizeof(void*)> entries{};
  std::memcpy(entries.data(), &table, sizeof table);
  const std::set<void*> distinct(entries.begin(), entries.end());
  EXPECT_EQ(asked.size(), entries.size());
  EXPECT_EQ(distinct.size(), entries.size());
  EXPECT_FALSE(distinct.contains(nullptr));
}

TEST(ResolveDriverTable, TakesTheSecondVersionsOfOldFunctions) {
  std::set<std::string> asked;
  resolve_driver_table([&](const char* symbol) -> void* {
    asked.insert(symbol);
    return &asked;
  });
  for (const char* symbol :
       {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2",
        "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"}) {
    EXPECT_TRUE(asked.contains(symbol)) << symbol;
  }
}

CUresult version_of_cuda_11_4(int* version) {
  *version = 11040;
  return CUDA_SUCCESS;
}

TEST(ResolveDriverTable, AnOldDriverIsNamedWithItsVersionAndTheOneNeeded) {
  const std::string text = driver_error_of([] {
    resolve_driver_table([](const char* symbol) -> void* {
      if (std::string(symbol).rfind("cuLibrary", 0) == 0) return nullptr;
      return reinterpret_cast<void*>(&version_of_cuda_11_4);
    });
  });
  EXPECT_TRUE(contains(text, "has no cuLibraryLoadData: it is of CUDA 11.4")) << text;
  EXPECT_TRUE(contains(text, "CUDA 12.0 (R525) or newer")) << text;
}

TEST(ResolveDriverTable, ADriverWithoutTensorMapsIsTooOld) {
  const std::string text = driver_error_of([] {
    resolve_driver_table([](const char* symbol) -> void* {
      if (std::string(symbol) == "cuTensorMapEncodeTiled") return nullptr;
      return reinterpret_cast<void*>(&version_of_cuda_11_4);
    });
  });
  EXPECT_TRUE(contains(text, "has no cuTensorMapEncodeTiled: it is of CUDA 11.4")) << text;
}

TEST(ResolveDriverTable, ALibraryWithoutAnySymbolIsAnErrorToo) {
  const std::string text =
      driver_error_of([] { resolve_driver_table([](const char*) -> void* { return nullptr; }); });
  EXPECT_TRUE(contains(text, "has no cuInit: it is of an unknown CUDA version")) << text;
}

TEST(DriverOpen, WithoutADriverSaysWhatStillWorks) {
  try {
    Driver::open("libcuda-absent.so.1");
    FAIL() << "an absent driver was opened";
  } catch (const DriverError& error) {
    EXPECT_EQ(error.failure().code, kNoUsableDriver);
    const std::string text = error.what();
    EXPECT_TRUE(contains(text, "no NVIDIA driver: libcuda-absent.so.1 could not be opened"))
        << text;
    EXPECT_TRUE(contains(text, "No such file")) << text;
    EXPECT_TRUE(contains(text, "arch=\"sm_90a\"")) << text;
    EXPECT_TRUE(contains(text, "--gpus all")) << text;
  }
}

// This holds with and without a driver on the machine.
TEST(DriverGet, ReturnsTheSameDriverOrErrorEachTime) {
  const Driver* first = nullptr;
  const Driver* second = nullptr;
  const std::string first_error = driver_error_of([&] { first = &Driver::get(); });
  const std::string second_error = driver_error_of([&] { second = &Driver::get(); });
  EXPECT_EQ(first_error, second_error);
  EXPECT_EQ(first, second);
  EXPECT_EQ(first == nullptr, first_error != "no error");
}

TEST_F(DriverTest, AnErrorNamesCallCodeTextDriverAndRemedy) {
  const DriverFailure failure = failure_with(CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(failure.call, "cuMemAlloc");
  EXPECT_EQ(failure.code, 2);
  EXPECT_EQ(failure.name, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(failure.text, "out of memory (driver of CUDA 13.0)");
  EXPECT_EQ(std::string(DriverError(failure).what()),
            "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory (driver of CUDA 13.0)\n"
            "free device memory, or plan for a smaller capacity");
}

TEST_F(DriverTest, AnErrorThatTheDriverDoesNotKnowKeepsItsNumber) {
  fake.version = 0;
  const DriverFailure failure = failure_with(static_cast<CUresult>(998));
  EXPECT_EQ(failure.code, 998);
  EXPECT_EQ(failure.name, "an error that this driver does not know");
  EXPECT_EQ(failure.text, "no description (driver of an unknown CUDA version)");
  EXPECT_FALSE(failure.advice.empty());
}

TEST_F(DriverTest, CommonErrorsHaveTheirOwnRemedy) {
  const std::string general = failure_with(CUDA_ERROR_UNKNOWN).advice;
  for (const CUresult result :
       {CUDA_ERROR_NO_DEVICE, CUDA_ERROR_STUB_LIBRARY, CUDA_ERROR_INVALID_CONTEXT,
        CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_NOT_INITIALIZED}) {
    EXPECT_NE(failure_with(result).advice, general) << result;
  }
  EXPECT_TRUE(contains(failure_with(CUDA_ERROR_NO_BINARY_FOR_GPU).advice, "CUDA 13.0 (R580)"));
}

TEST_F(DriverTest, MemoryOfTheHostIsPinned) {
  EXPECT_EQ(driver_.allocate_host(64), &fake);
  driver_.synchronize_event(nullptr);
  fake.result = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_THROW(driver_.allocate_host(64), DriverError);
  EXPECT_THROW(driver_.synchronize_event(nullptr), DriverError);
  EXPECT_NO_THROW(driver_.free_host(&fake));
  EXPECT_EQ(fake.calls, (std::vector<std::string>{"wait event", "wait event", "free host"}));
}

TEST_F(DriverTest, AFailedReleaseIsLoggedAndNotThrown) {
  std::string logged;
  set_log_level(LogLevel::kDebug);
  set_log_sink([&](LogLevel, std::string_view message) { logged = message; });
  fake.result = CUDA_ERROR_OUT_OF_MEMORY;
  driver_.free(0x1000);
  set_log_sink({});
  set_log_level(LogLevel::kWarning);
  EXPECT_EQ(logged, "cuMemFree failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_EQ(fake.calls, std::vector<std::string>{"free"});
}

TEST(InstalledCudaVersion, IsNothingWithoutADriver) {
  EXPECT_EQ(installed_cuda_version("libcuda-absent.so.1"), std::nullopt);
  EXPECT_EQ(installed_cuda_version("libm.so.6"), std::nullopt) << "it has no cuDriverGetVersion";
}

TEST(DriverRelease, IsTheVersionOfTheKernelModule) {
  EXPECT_EQ(
      driver_release_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Wed Oct 1 "
                        "06:12:40 UTC 2026\nGCC version:  gcc version 12.2.0\n"),
      "580.159.04");
  EXPECT_EQ(
      driver_release_in("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.10  R\n"),
      "595.10");
  EXPECT_EQ(driver_release_in("595.10"), "595.10");
  EXPECT_EQ(driver_release_in("NVRM version: x86_64\n"), "");
  EXPECT_EQ(driver_release_in(""), "");
}

TEST_F(DriverTest, WithoutAKernelModuleTheReleaseIsTheCudaVersion) {
  if (std::ifstream("/proc/driver/nvidia/version"))
    GTEST_SKIP() << "this machine has a kernel module";
  EXPECT_EQ(driver_.release(), "CUDA 13.0");
}

TEST_F(DriverTest, LaunchPassesTheConfigToTheDriver) {
  CUlaunchConfig config{};
  config.gridDimX = 7;
  config.blockDimX = 128;
  config.sharedMemBytes = 2048;
  driver_.launch_kernel(config, nullptr, nullptr);
  EXPECT_EQ(fake.calls, std::vector<std::string>{"launch 7 128 2048"});
  fake.result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  const std::string text =
      driver_error_of([&] { driver_.launch_kernel(config, nullptr, nullptr); });
  EXPECT_TRUE(contains(text, "cuLaunchKernelEx failed")) << text;
}

TEST_F(DriverTest, AnInvalidatedCaptureIsStillACapture) {
  EXPECT_FALSE(driver_.is_capturing(nullptr));
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_TRUE(driver_.is_capturing(nullptr));
  fake.capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  EXPECT_TRUE(driver_.is_capturing(nullptr));
}

TEST_F(DriverTest, DevicesAreDescribedByOrdinal) {
  const Devices devices(driver_);
  ASSERT_EQ(devices.count(), 2);
  const DeviceInfo& info = devices.info(1);
  EXPECT_EQ(info.ordinal, 1);
  EXPECT_EQ(info.handle, 101);
  EXPECT_EQ(info.name, "GPU of handle 101");
  EXPECT_EQ(info.compute_major, 9);
  EXPECT_EQ(info.compute_minor, 0);
  EXPECT_EQ(info.sm_count, 132);
  EXPECT_EQ(info.l2_bytes, 62914560);
}

TEST_F(DriverTest, AnUnknownOrdinalIsNamedWithHowManyThereAre) {
  const Devices devices(driver_);
  EXPECT_THROW(devices.info(-1), DriverError);
  const std::string text = driver_error_of([&] { devices.info(2); });
  EXPECT_TRUE(contains(text, "there is no device 2: this process sees 2")) << text;
}

TEST_F(DriverTest, TheCurrentDeviceIsThatOfTheCallersContext) {
  const Devices devices(driver_);
  fake.current = kCallersContext;
  fake.current_device = 101;
  EXPECT_EQ(&devices.current(), &devices.info(1));
  fake.current_device = 999;
  EXPECT_THROW(devices.current(), DriverError);
}

TEST_F(DriverTest, WithoutAContextTheErrorSaysWhatToSelect) {
  const Devices devices(driver_);
  const std::string text = driver_error_of([&] { devices.current(); });
  EXPECT_TRUE(contains(text, "cuCtxGetDevice failed")) << text;
  EXPECT_TRUE(contains(text, "no CUDA context is current on this thread")) << text;
}

TEST_F(DriverTest, ScopedContextKeepsTheCallersContextOfThatDevice) {
  const Devices devices(driver_);
  fake.current = kCallersContext;
  fake.current_device = 101;
  {
    const ScopedContext scope(driver_, devices.info(1));
  }
  EXPECT_TRUE(fake.calls.empty());
}

TEST_F(DriverTest, ScopedContextMakesThePrimaryContextCurrentOtherwise) {
  const Devices devices(driver_);
  const std::vector<std::string> inside = {"retain", "push primary"};
  const std::vector<std::string> after = {"retain", "push primary", "pop", "release"};
  {
    const ScopedContext no_context(driver_, devices.info(0));
    EXPECT_EQ(fake.calls, inside);
  }
  EXPECT_EQ(fake.calls, after);
  fake.calls.clear();
  fake.current = kCallersContext;
  fake.current_device = 101;
  {
    const ScopedContext other_device(driver_, devices.info(0));
  }
  EXPECT_EQ(fake.calls, after);
}

TEST_F(DriverTest, ScopedContextReleasesAContextThatItCannotPush) {
  const Devices devices(driver_);
  fake.result = CUDA_ERROR_INVALID_CONTEXT;
  EXPECT_THROW(ScopedContext(driver_, devices.info(0)), DriverError);
  const std::vector<std::string> calls = {"retain", "push primary", "release"};
  EXPECT_EQ(fake.calls, calls);
}

}  // namespace
}  // namespace lazyrope
