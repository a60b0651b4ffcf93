// The requests of one pass of a model, given on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/driver/staging.h"
#include "runtime/step/step_types.h"

namespace lazyrope {

class Device;
class DeviceBuffer;

// The location of a stored document: token t is in slot (lead + t) % page_size of page
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
  std::optional<int> mask_base =
      {};  // position of token 0 in the order of the mask; base by default
  // 0: the segment has tokens. Otherwise it has entries of attention states, and this is the number
  // of their memory in the request, 1 to 4. All segments of one number are one memory. Add 8 if
  // each entry serves one query head: entry i, counted from the segment's first, serves head
  // i % group_size of each KV head. Add 16 m if the entries are in cells of m: after all cells
  // comes the centre of each (templates/abi/states.h).
  int memory = 0;
};

struct Request {
  std::vector<int> positions;  // logical positions of its query tokens
  std::vector<Segment> segments;
  // The last query tokens whose attention counts for page masses, at least 0; all by default.
  std::optional<int> mass_tokens = {};
};

// Requests that plan() and update() take in place of a step's tensors. A batch has memory of the
// device and of the host, both of a fixed capacity. fill() checks the requests and keeps them on
// the host. Each update of a step copies them to the device, in one asynchronous copy on its
// stream. Two host buffers alternate, so that the next requests do not wait for the previous copy.
// A batch serves one thread and one stream at a time.
class Batch {
 public:
  // The requests as the arrays of StepTensors. A segment's slot may be beyond its first page.
  struct Values {
    std::vector<int> q_indptr = {0};
    std::vector<int> q_position;
    std::vector<int> segment_indptr = {0};
    std::vector<int> base;
    std::vector<int> start;
    std::vector<int> length;
    std::vector<int> first_page;  // first page of the document
    std::vector<int> slot;  // slot of the segment's first token, counted from slot 0 of that page
    std::vector<int> mask_base;    // empty if it is the base of all segments
    std::vector<int> memory;       // empty if no segment is a memory
    std::vector<int> mass_tokens;  // empty if all query tokens of all requests count

    std::size_t ints() const;  // the number of elements, with a lead for each segment
    void add(const Request& request);
  };

  // Makes a batch that is empty until fill(). The page lists of its requests are in `pages`, int32
  // on the device, which must outlive the steps that use the batch. Throws SpecError if the
  // capacity or the tensor is illegal.
  Batch(const TensorView& pages, StepCapacity capacity);
  Batch(std::shared_ptr<const Device> device, const TensorView& pages, StepCapacity capacity);
  Batch(Batch&&) noexcept;
  Batch& operator=(Batch&&) noexcept;
  ~Batch();

  // Returns the least capacity that holds these requests.
  static StepCapacity capacity_for(std::span<const Request> requests);

  // Replaces the requests. Throws SpecError, which names request and segment, if a value is illegal
  // or the capacity does not suffice. The batch then keeps its previous requests.
  void fill(std::span<const Request> requests);

  // Waits until the copy of the upload before the last one has ended. upload() then does not wait.
  void wait() const;
  // Copies the requests to the device, on the stream and without waiting for it. The returned
  // tensors are for pages of `page_size` slots, and valid until the next upload. Throws SpecError
  // if a segment's pages are beyond the page lists, or if the stream is being captured.
  StepTensors upload(int page_size, Stream stream);

  // Returns the slots of all runs of 16 slots that have tokens of the segments of requests with at
  // least min_tokens query tokens.
  std::int64_t run_slots(int min_tokens) const;

  // Returns the number of each segment's first run of 16 slots among the runs of all segments,
  // and at the end the number of all runs.
  std::vector<int> run_indptr() const;
  // Returns the pairs of a query token that counts for page masses and a run of 16 slots of its
  // request.
  std::int64_t token_runs() const;

  const StepCapacity& capacity() const { return capacity_; }
  const TensorView& pages() const { return pages_; }
  const Values& values() const { return values_; }
  int num_requests() const;
  int num_segments() const;
  int num_tokens() const;

 private:
  // Returns the sum over all requests of weight(request) times the request's runs.
  template <class Weight>
  std::int64_t sum_of_runs(const Weight& weight) const;
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
