// The requests of one pass of a model, given on the host.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/driver/staging.h"
#include "runtime/step/step_types.h"

namespace lazyrope {

class Device;
class DeviceBuffer;

// Where the tokens of a document are. Token t is in slot (lead + t) % page_size of page
// pages[first_page + (lead + t) / page_size].
struct Document {
  int first_page = 0;  // index into the page lists
  int num_tokens = 0;
  int lead = 0;  // slot of token 0, counted from slot 0 of the first page
};

// The tokens start .. start + length - 1 of a document, as one request sees them.
struct Segment {
  Document document;
  int base = 0;  // logical position of token 0 of the document
  int start = 0;
  std::optional<int> length = {};  // all tokens from `start` on by default
};

struct Request {
  std::vector<int> positions;  // logical positions of its query tokens
  std::vector<Segment> segments;
};

// What plan() and update() take in place of a step's tensors. A batch has memory of the device and
// of the host, both of a fixed capacity. fill() checks the requests and keeps them on the host;
// each update of a step copies them to the device, in one asynchronous copy on its stream. Two
// buffers of the host alternate, so that the next requests do not wait for the last copy. A batch
// serves one thread and one stream at a time.
class Batch {
 public:
  // For requests whose page lists are in `pages`: int32 on the device, which must outlive the steps
  // that use the batch. Empty until fill(). SpecError where the capacity or the tensor is illegal.
  Batch(const TensorView& pages, StepCapacity capacity);
  Batch(std::shared_ptr<const Device> device, const TensorView& pages, StepCapacity capacity);
  Batch(Batch&&) noexcept;
  Batch& operator=(Batch&&) noexcept;
  ~Batch();

  // The least capacity that holds these requests.
  static StepCapacity capacity_for(std::span<const Request> requests);

  // Replaces the requests. SpecError, naming request and segment, where a value is illegal or the
  // capacity does not suffice; the batch then has the requests that it had.
  void fill(std::span<const Request> requests);

  // Waits until upload() can write without waiting: until the upload before last has been copied.
  void wait() const;
  // Copies the requests to the device, on the stream and without waiting for it, for pages of that
  // size. The tensors are valid until the next upload. SpecError where a segment's pages are beyond
  // the page lists, or the stream is being captured.
  StepTensors upload(int page_size, Stream stream);

  const StepCapacity& capacity() const { return capacity_; }
  const TensorView& pages() const { return pages_; }
  int num_requests() const;
  int num_segments() const;
  int num_tokens() const;

 private:
  struct Values {
    std::vector<int> q_indptr = {0};
    std::vector<int> q_position;
    std::vector<int> segment_indptr = {0};
    std::vector<int> base;
    std::vector<int> start;
    std::vector<int> length;
    std::vector<int> first_page;  // of the document
    std::vector<int> slot;        // of the segment's first token, counted from that page's slot 0

    std::size_t ints() const;
    void add(const Request& request);
  };

  void check_within_capacity(std::span<const Request> requests) const;
  void check_pages(int page_size) const;
  void write(int page_size, int* to) const;
  StepTensors tensors() const;

  std::shared_ptr<const Device> device_;
  TensorView pages_;
  StepCapacity capacity_;
  Values values_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::unique_ptr<StagingBuffer> staging_;
};

}  // namespace lazyrope
