// These tests run a GpuDevice on a fake driver that records its calls.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "codegen/error.h"
#include "runtime/driver/gpu_device.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

// Only an emulated launch calls the function that returns its memory. A GPU never does.
constexpr auto kNoMemory = [] { return std::vector<MemoryRange>(); };

constexpr std::size_t kPinnedBytes = 64;

// The entries of a DriverTable are plain function pointers, so they can only use globals.
struct Fake {
  CUresult load_result = CUDA_SUCCESS;
  CUresult find_result = CUDA_SUCCESS;
  CUresult launch_result = CUDA_SUCCESS;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::map<std::string, CUstreamCaptureMode> mode_at;  // capture mode, by the first word of a call
  std::vector<std::string> calls;
  int primary_users = 0;
  const void* image = nullptr;
  void* argument = nullptr;
  int events = 0;
  unsigned event_flags = 0;
  std::byte pinned[2 * kPinnedBytes];
  int pinned_buffers = 0;
  CUstream stream = nullptr;
  bool dependent_launch = false;
  CUresult encode_result = CUDA_SUCCESS;
};

Fake fake;

const auto kLibrary = reinterpret_cast<CUlibrary>(0x100);
const auto kKernel = reinterpret_cast<CUkernel>(0x200);
const auto kPrimary = reinterpret_cast<CUcontext>(0x300);
const auto kStream = reinterpret_cast<CUstream>(0x400);
const auto kOwnStream = reinterpret_cast<CUstream>(0x500);
constexpr CUdevice kDevice = 7;

CUresult record(const std::string& call, CUresult result = CUDA_SUCCESS) {
  fake.mode_at[call.substr(0, call.find(' '))] = fake.mode;
  fake.calls.push_back(call);
  return result;
}

void add_context_functions(DriverTable& table) {
  table.ctx_get_current = [](CUcontext* context) {
    *context = nullptr;
    return CUDA_SUCCESS;
  };
  table.primary_ctx_retain = [](CUcontext* context, CUdevice) {
    *context = kPrimary;
    ++fake.primary_users;
    return CUDA_SUCCESS;
  };
  table.primary_ctx_release = [](CUdevice) {
    --fake.primary_users;
    return CUDA_SUCCESS;
  };
  table.ctx_push_current = [](CUcontext) { return record("push"); };
  table.ctx_pop_current = [](CUcontext*) { return record("pop"); };
  table.driver_get_version = [](int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
  };
  table.get_error_name = [](CUresult code, const char** name) {
    *name = code == CUDA_ERROR_INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR_OTHER";
    return CUDA_SUCCESS;
  };
  table.get_error_string = [](CUresult, const char** text) {
    *text = "described";
    return CUDA_SUCCESS;
  };
}

void add_kernel_functions(DriverTable& table) {
  table.library_load_data = [](CUlibrary* library, const void* image, CUjit_option*, void**,
                               unsigned, CUlibraryOption*, void**, unsigned) {
    fake.image = image;
    *library = kLibrary;
    return record("load", fake.load_result);
  };
  table.library_unload = [](CUlibrary library) {
    EXPECT_EQ(library, kLibrary);
    return record("unload");
  };
  table.library_get_kernel = [](CUkernel* kernel, CUlibrary, const char* name) {
    *kernel = kKernel;
    return record("find " + std::string(name), fake.find_result);
  };
  table.kernel_set_attribute = [](CUfunction_attribute attribute, int value, CUkernel kernel,
                                  CUdevice device) {
    EXPECT_EQ(attribute, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    EXPECT_EQ(kernel, kKernel);
    EXPECT_EQ(device, kDevice);
    return record("shared " + std::to_string(value));
  };
  table.kernel_get_function = [](CUfunction* function, CUkernel) {
    *function = nullptr;
    return record("function");
  };
  table.launch_kernel = [](const CUlaunchConfig* config, CUfunction function, void** params,
                           void**) {
    EXPECT_EQ(function, reinterpret_cast<CUfunction>(kKernel));
    EXPECT_EQ(config->gridDimY * config->gridDimZ * config->blockDimY * config->blockDimZ, 1u);
    fake.stream = config->hStream;
    fake.argument = params[0];
    fake.dependent_launch = false;
    for (unsigned i = 0; i < config->numAttrs; ++i)
      fake.dependent_launch |=
          config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
          config->attrs[i].value.programmaticStreamSerializationAllowed == 1;
    return record("launch " + std::to_string(config->gridDimX) + " x " +
                      std::to_string(config->blockDimX) + ", " +
                      std::to_string(config->sharedMemBytes) + " bytes",
                  fake.launch_result);
  };
}

void add_memory_functions(DriverTable& table) {
  table.mem_alloc = [](CUdeviceptr* pointer, std::size_t bytes) {
    *pointer = 0x1000;
    return record("allocate " + std::to_string(bytes));
  };
  table.mem_free = [](CUdeviceptr pointer) {
    EXPECT_EQ(pointer, 0x1000u);
    return record("free");
  };
  table.memset_d8_async = [](CUdeviceptr, unsigned char value, std::size_t count, CUstream stream) {
    return record((stream == kOwnStream ? "fill own " : "fill ") + std::to_string(value) + " x " +
                  std::to_string(count));
  };
  table.mem_host_alloc = [](void** memory, std::size_t bytes, unsigned flags) {
    EXPECT_EQ(flags, static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE));
    *memory = fake.pinned + kPinnedBytes * static_cast<std::size_t>(fake.pinned_buffers++);
    return record("pin " + std::to_string(bytes));
  };
  table.mem_free_host = [](void*) { return record("unpin"); };
  table.mem_get_info = [](std::size_t* free, std::size_t* total) {
    *free = 3000;
    *total = 4000;
    return record("free memory");
  };
  table.memcpy_dtoh_async = [](void*, CUdeviceptr, std::size_t bytes, CUstream stream) {
    EXPECT_EQ(stream, kStream);
    return record("copy " + std::to_string(bytes));
  };
  table.memcpy_htod_async = [](CUdeviceptr, const void*, std::size_t bytes, CUstream stream) {
    EXPECT_EQ(stream, kStream);
    return record("fetch " + std::to_string(bytes));
  };
  table.stream_create = [](CUstream* stream, unsigned flags) {
    EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
    *stream = kOwnStream;
    return record("create");
  };
  table.stream_destroy = [](CUstream stream) {
    EXPECT_EQ(stream, kOwnStream);
    return record("end");
  };
  table.stream_synchronize = [](CUstream stream) {
    EXPECT_TRUE(stream == kStream || stream == kOwnStream);
    return record(stream == kOwnStream ? "wait own" : "wait");
  };
  table.thread_exchange_capture_mode = [](CUstreamCaptureMode* mode) {
    std::swap(fake.mode, *mode);
    return CUDA_SUCCESS;
  };
  table.stream_is_capturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = fake.capture;
    return CUDA_SUCCESS;
  };
}

// The fake driver numbers events. Each one happens 10 ms after the previous one.
void add_event_functions(DriverTable& table) {
  table.event_create = [](CUevent* event, unsigned flags) {
    fake.event_flags = flags;
    *event = reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(++fake.events));
    return CUDA_SUCCESS;
  };
  table.event_record = [](CUevent event, CUstream stream) {
    EXPECT_EQ(stream, kStream);
    return record("event " + std::to_string(reinterpret_cast<std::uintptr_t>(event)));
  };
  table.event_synchronize = [](CUevent event) {
    return record("await " + std::to_string(reinterpret_cast<std::uintptr_t>(event)));
  };
  table.event_elapsed_time = [](float* ms, CUevent begin, CUevent end) {
    const auto number = [](CUevent event) { return reinterpret_cast<std::uintptr_t>(event); };
    *ms = 10.0F * static_cast<float>(number(end) - number(begin)) * static_cast<float>(number(end));
    return record("elapsed");
  };
  table.event_destroy = [](CUevent) { return record("destroy"); };
}

void add_tensor_maps(DriverTable& table) {
  table.tensor_map_encode_tiled =
      [](CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
         const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
         const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
         CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(map) % 64, 0u);
        EXPECT_EQ(interleave, CU_TENSOR_MAP_INTERLEAVE_NONE);
        EXPECT_EQ(fill, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        std::string call = fmt::format("encode type {} at {}", static_cast<int>(type), data);
        for (cuuint32_t i = 0; i < rank; ++i) {
          EXPECT_EQ(steps[i], 1u);
          call += fmt::format(", {} of {}", box[i], dims[i]);
          if (i > 0) call += fmt::format(" every {}", strides[i - 1]);
        }
        map->opaque[15] = 15;
        return record(call + fmt::format(", swizzle {}, L2 {}", static_cast<int>(swizzle),
                                         static_cast<int>(promotion)),
                      fake.encode_result);
      };
}

DriverTable fake_table() {
  DriverTable table;
  add_context_functions(table);
  add_kernel_functions(table);
  add_memory_functions(table);
  add_event_functions(table);
  add_tensor_maps(table);
  return table;
}

class GpuDeviceTest : public testing::Test {
 protected:
  void SetUp() override { fake = {}; }

  using Calls = std::vector<std::string>;

  // Returns the calls since the last use of this function.
  static Calls calls() { return std::exchange(fake.calls, {}); }

  const Driver driver_ = Driver::for_testing(fake_table());
  const DeviceInfo info_ = {.ordinal = 1,
                            .handle = kDevice,
                            .name = "H200",
                            .compute_major = 9,
                            .compute_minor = 0,
                            .sm_count = 132};
  const GpuDevice device_{driver_, info_};
  const Binary binary_ = {
      "attend", "sm_90a", 128, 98304, 255, 0, "nvrtc", 1.0, {std::byte{1}, std::byte{2}}};
};

TEST_F(GpuDeviceTest, ReportsTheFactsOfTheGpu) {
  EXPECT_EQ(device_.name(), "H200");
  EXPECT_EQ(device_.arch().name, "sm_90a");
  EXPECT_EQ(device_.sm_count(), 132);
  EXPECT_TRUE(device_.holds(DeviceType::kGpu, 1));
  EXPECT_FALSE(device_.holds(DeviceType::kGpu, 0));
  EXPECT_FALSE(device_.holds(DeviceType::kCpu, 1));
}

TEST_F(GpuDeviceTest, AGpuWithoutKernelsIsRefused) {
  DeviceInfo old = info_;
  old.compute_major = 7;
  old.compute_minor = 5;
  EXPECT_TRUE(throws<SpecError>([&] { GpuDevice(driver_, old); }, {"compute capability 7.5"}));
}

TEST_F(GpuDeviceTest, LoadsAKernelWithItsSharedMemoryAndUnloadsIt) {
  {
    const auto kernel = device_.load(binary_);
    EXPECT_EQ(fake.image, binary_.code.data());
    EXPECT_EQ(calls(), (Calls{"load", "find attend", "shared 98304", "push", "function", "pop"}));
  }
  EXPECT_EQ(calls(), Calls{"unload"});
}

TEST_F(GpuDeviceTest, LaunchesWithGridThreadsAndSharedMemory) {
  const auto kernel = device_.load(binary_);
  calls();
  int params = 0;
  kernel->launch(264, &params, kStream, kNoMemory);
  EXPECT_EQ(calls(), (Calls{"push", "launch 264 x 128, 98304 bytes", "pop"}));
  EXPECT_EQ(fake.argument, &params);
  EXPECT_EQ(fake.stream, kStream);
}

TEST_F(GpuDeviceTest, FromHopperOnAKernelMayStartBeforeThePreviousOneEnds) {
  device_.load(binary_)->launch(1, nullptr, kStream, kNoMemory);
  EXPECT_TRUE(fake.dependent_launch);
  DeviceInfo ampere = info_;
  ampere.compute_major = 8;
  GpuDevice(driver_, ampere).load(binary_)->launch(1, nullptr, kStream, kNoMemory);
  EXPECT_FALSE(fake.dependent_launch);
}

TEST_F(GpuDeviceTest, ABinaryThatTheDriverRefusesIsADriverErrorWithAdvice) {
  fake.load_result = CUDA_ERROR_INVALID_IMAGE;
  EXPECT_TRUE(throws<DriverError>([&] { device_.load(binary_); },
                                  {"cuLibraryLoadData failed: CUDA_ERROR_INVALID_IMAGE (200)",
                                   "compiled for another GPU", "R580"}));
  EXPECT_EQ(calls(), Calls{"load"}) << "there is nothing to unload";
}

TEST_F(GpuDeviceTest, ABinaryOfAnNvrtcThatIsTooNewForTheDriverIsAnErrorThatNamesBoth) {
  Binary binary = binary_;
  binary.compiler = "nvrtc 14.1-0123-4567";
  for (const CUresult refused : {CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU,
                                 CUDA_ERROR_UNSUPPORTED_PTX_VERSION}) {
    fake.load_result = refused;
    EXPECT_TRUE(
        throws<DriverError>([&] { device_.load(binary); },
                            {"NVRTC 14.1 is too new for the driver, which is of CUDA 13.0"}));
  }
  fake.load_result = CUDA_ERROR_OUT_OF_MEMORY;
  EXPECT_FALSE(throws<DriverError>([&] { device_.load(binary); }, {"too new for the driver"}));
}

TEST_F(GpuDeviceTest, ABinaryWithoutTheKernelIsUnloadedAgain) {
  fake.find_result = CUDA_ERROR_NOT_FOUND;
  EXPECT_TRUE(throws<DriverError>([&] { device_.load(binary_); }, {"cuLibraryGetKernel failed"}));
  EXPECT_EQ(calls(), (Calls{"load", "find attend", "unload"}));
}

TEST_F(GpuDeviceTest, AFailedLaunchIsADriverErrorAndLeavesTheContext) {
  const auto kernel = device_.load(binary_);
  calls();
  fake.launch_result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  EXPECT_TRUE(
      throws<DriverError>([&] { kernel->launch(1, nullptr, nullptr, kNoMemory); },
                          {"cuLaunchKernelEx failed", "more registers, threads or shared"}));
  EXPECT_EQ(calls().back(), "pop");
}

TEST_F(GpuDeviceTest, MemoryCallsRunInTheContextOfTheGpu) {
  void* memory = device_.allocate(512);
  device_.fill_zero(memory, 512, kStream);
  int value = 0;
  device_.copy_from_host(memory, &value, sizeof value, kStream);
  device_.copy_to_host(&value, memory, sizeof value, kStream);
  device_.free(memory);
  EXPECT_EQ(calls(),
            (Calls{"push", "allocate 512", "pop", "push", "fill 0 x 512", "pop", "push", "fetch 4",
                   "wait", "pop", "push", "copy 4", "wait", "pop", "push", "free", "pop"}));
}

TEST_F(GpuDeviceTest, AFillDuringACaptureIsDoneAtOnce) {
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  int memory = 0;
  device_.fill_zero(&memory, 4, kStream);
  EXPECT_EQ(calls(), (Calls{"push", "create", "fill own 0 x 4", "wait own", "end", "pop"}));
  for (const char* call : {"create", "fill", "wait", "end"})
    EXPECT_EQ(fake.mode_at.at(call), CU_STREAM_CAPTURE_MODE_RELAXED) << call;
}

TEST_F(GpuDeviceTest, AnAllocationRetainsThePrimaryContext) {
  device_.is_capturing(kStream);
  EXPECT_EQ(fake.primary_users, 0);
  for (int i = 0; i < 2; ++i) {
    device_.free(device_.allocate(512));
    EXPECT_EQ(fake.primary_users, 1);
  }
}

TEST_F(GpuDeviceTest, ReportsItsFreeMemory) {
  EXPECT_EQ(device_.free_bytes(), 3000u);
  EXPECT_EQ(calls(), (Calls{"push", "free memory", "pop"}));
}

TEST_F(GpuDeviceTest, TimesCallsByEventsAroundEachAndWaitsOnce) {
  const std::vector<std::function<void()>> work = {[] { record("first"); },
                                                   [] { record("second"); }};
  const std::vector<double> us = device_.stopwatch()->time(work, kStream);
  EXPECT_EQ(us, (std::vector{20e3, 40e3}));
  EXPECT_EQ(fake.event_flags, static_cast<unsigned>(CU_EVENT_DEFAULT)) << "the events record times";
  EXPECT_EQ(calls(),
            (Calls{"push", "event 1", "first", "event 2", "event 3", "second", "event 4", "wait",
                   "elapsed", "elapsed", "destroy", "destroy", "destroy", "destroy", "pop"}));
}

TEST_F(GpuDeviceTest, StagesCopiesInTwoPinnedBuffersThatAlternate) {
  const auto staging = device_.staging(kPinnedBytes);
  EXPECT_EQ(calls(), (Calls{"push", "pin 64", "pin 64", "pop"}));
  EXPECT_EQ(fake.event_flags, static_cast<unsigned>(CU_EVENT_DISABLE_TIMING));
  EXPECT_EQ(fake.primary_users, 1) << "the memory needs the context";
  std::byte* const first = staging->acquire();
  EXPECT_EQ(staging->acquire(), first) << "the buffer stays the same until it is copied";
  staging->copy_to(nullptr, 8, kStream);
  EXPECT_EQ(staging->acquire(), first + kPinnedBytes);
  staging->copy_to(nullptr, 12, kStream);
  EXPECT_EQ(staging->acquire(), first);
  const Calls expected = {"await 1", "await 1",  "fetch 8", "event 1",
                          "await 2", "fetch 12", "event 2", "await 1"};
  Calls without_contexts;
  for (const std::string& call : fake.calls)
    if (call != "push" && call != "pop" && call != "pin 64") without_contexts.push_back(call);
  EXPECT_EQ(without_contexts, expected) << "a buffer is reused only after its own copy has ended";
}

TEST_F(GpuDeviceTest, AStagingBufferIsFreedAfterItsCopies) {
  device_.staging(kPinnedBytes);
  EXPECT_EQ(calls(), (Calls{"push", "pin 64", "pin 64", "pop", "push", "await 1", "await 2",
                            "destroy", "unpin", "destroy", "unpin", "pop"}));
  for (const char* call : {"pin", "await", "destroy", "unpin"})
    EXPECT_EQ(fake.mode_at.at(call), CU_STREAM_CAPTURE_MODE_RELAXED) << call;
}

TEST_F(GpuDeviceTest, CallsThatACaptureForbidsAreAllowedOneByOne) {
  {
    const auto kernel = device_.load(binary_);
    device_.free(device_.allocate(512));
    kernel->launch(1, nullptr, kStream, kNoMemory);
  }
  for (const char* call : {"load", "find", "function", "allocate", "free", "unload"})
    EXPECT_EQ(fake.mode_at.at(call), CU_STREAM_CAPTURE_MODE_RELAXED) << call;
  EXPECT_EQ(fake.mode_at.at("launch"), CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(fake.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  fake.load_result = CUDA_ERROR_INVALID_IMAGE;
  EXPECT_TRUE(throws<DriverError>([&] { device_.load(binary_); }, {"cuLibraryLoadData failed"}));
  EXPECT_EQ(fake.mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << "the mode is restored after an error too";
}

const TensorMapSpec kRows = {.data = reinterpret_cast<void*>(0x1000),
                             .dims = {80, 100, 3},
                             .strides = {176, 17600},
                             .box = {64, 8, 1},
                             .swizzle = Swizzle::k128B,
                             .l2_promotion = L2Promotion::k256B};

TEST_F(GpuDeviceTest, ATensorMapIsEncodedByTheDriver) {
  const TensorMap map = device_.encode(kRows);
  EXPECT_EQ(map.opaque[15], 15u);
  EXPECT_EQ(calls(),
            (Calls{"push",
                   "encode type 9 at 0x1000, 64 of 80, 8 of 100 every 176, 1 of 3 every 17600, "
                   "swizzle 3, L2 3",
                   "pop"}));
}

TEST_F(GpuDeviceTest, ElementTypesOfATensorMapAreThoseOfTheDriver) {
  for (const auto& [type, expected] :
       {std::pair{ElementType::kFp16, "type 6 "}, std::pair{ElementType::kFp32, "type 7 "},
        std::pair{ElementType::kInt32, "type 3 "}, std::pair{ElementType::kUint8, "type 0 "},
        std::pair{ElementType::kFp8E4m3, "type 0 "}}) {
    TensorMapSpec spec = kRows;
    spec.type = type;
    spec.box[0] = 32;
    device_.encode(spec);
    EXPECT_TRUE(says(calls()[1], {expected}));
  }
}

TEST_F(GpuDeviceTest, AnIllegalTensorMapIsRefusedWithoutACallOfTheDriver) {
  TensorMapSpec spec = kRows;
  spec.box[0] = 80;
  EXPECT_TRUE(throws<SpecError>([&] { device_.encode(spec); }, {"a swizzle of 128 bytes"}));
  EXPECT_EQ(calls(), Calls{});
}

TEST_F(GpuDeviceTest, AGpuWithoutTensorMapsIsNamed) {
  DeviceInfo ampere = info_;
  ampere.name = "A100";
  ampere.compute_major = 8;
  const GpuDevice device(driver_, ampere);
  EXPECT_TRUE(throws<SpecError>([&] { device.encode(kRows); },
                                {"A100 is a GPU of compute capability 8.0", "9.0 or higher"}));
}

TEST_F(GpuDeviceTest, ATensorMapThatTheDriverRefusesIsADriverError) {
  fake.encode_result = CUDA_ERROR_INVALID_VALUE;
  EXPECT_TRUE(
      throws<DriverError>([&] { device_.encode(kRows); }, {"cuTensorMapEncodeTiled failed"}));
  EXPECT_EQ(calls().back(), "pop");
}

TEST_F(GpuDeviceTest, KnowsWhetherAStreamIsBeingCaptured) {
  EXPECT_FALSE(device_.is_capturing(kStream));
  fake.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_TRUE(device_.is_capturing(kStream));
}

}  // namespace
}  // namespace lazyrope
