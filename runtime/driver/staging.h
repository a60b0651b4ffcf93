#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace lazyrope {

// A stream of the device's own kind (CUstream); null is its default stream.
using Stream = void*;

// Memory of the host from which a device copies while the host goes on. DriverError where the
// driver fails.
class StagingBuffer {
 public:
  virtual ~StagingBuffer() = default;

  // The memory to fill next. Waits until no earlier copy reads it.
  virtual std::byte* acquire() = 0;
  // Queues a copy of the first `bytes` of that memory to memory of the device.
  virtual void copy_to(void* to, std::size_t bytes, Stream stream) = 0;
};

// For a device whose memory is the host's: a copy ends before copy_to() returns.
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
