#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace lazyrope {

// A stream in the device's own type (CUstream). Null is its default stream.
using Stream = void*;

// Host memory from which a device copies while the host continues. Its functions throw DriverError
// if the driver fails.
class StagingBuffer {
 public:
  virtual ~StagingBuffer() = default;

  // Returns the memory to fill next. Waits until no earlier copy reads it.
  virtual std::byte* acquire() = 0;
  // Queues a copy of the first `bytes` of the memory that acquire() returned to device memory.
  virtual void copy_to(void* to, std::size_t bytes, Stream stream) = 0;
};

// The staging buffer of a device that shares the host's memory: a copy ends before copy_to()
// returns.
class HostStaging : public StagingBuffer {
 public:
  explicit HostStaging(std::size_t bytes) : memory_(bytes) {}

  std::byte* acquire() override { return memory_.data(); }
  void copy_to(void* to, std::size_t bytes, Stream) override {
    std::memcpy(to, memory_.data(), bytes);
  }

 private:
  std::vector<std::byte> memory_;
};

}  // namespace lazyrope
