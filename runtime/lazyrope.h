// The C++ interface of lazyrope: all that an engine needs, without CUDA headers.
//
//   auto attention = lazyrope::compile(spec);
//   auto step = lazyrope::plan(*attention, tensors, {.page_size = 16}, {}, stream);
//   lazyrope::attend(*attention, q, {k_pool, v_pool}, *step, out, lse, stream);
//
// Call plan() once, update() for each later pass of the model, and attend() once a layer. Calls are
// asynchronous on `stream` (a CUstream or cudaStream_t; null is the default stream). They throw
// SpecError for bad arguments, and CompileError, DriverError or CacheError for failures of the
// compiler, the driver or the cache.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "cache/error.h"
#include "codegen/error.h"
#include "runtime/base/error.h"
#include "runtime/base/version.h"
#include "runtime/engine/defer_prefill.h"
#include "runtime/engine/device_tensor.h"
#include "runtime/spec/layer_groups.h"
#include "runtime/spec/model_config.h"
#include "runtime/spec/spec.h"
#include "runtime/step/batch.h"
#include "runtime/step/step_types.h"
#include "runtime/tuning/tune.h"

namespace lazyrope {

class Attention;   // compiled kernels of one AttentionSpec; may be used from several threads
class Step;        // the requests of one pass of a model, in device memory
class AppendStep;  // the slots for one pass's new keys and values
class Reposition;  // the compiled kernel of reposition(); may be used from several threads

// Returns how many GPUs this process sees; 0 without a usable driver.
int gpu_count();

// Compiles the kernels or loads them from the cache. `arch` is a name such as "sm_90a", or
// "emu:sm_80" for the emulator, whose tensors are in host memory. An empty `arch` means the present
// GPU's. With a named arch, tuning records are used only with kMeasure, and the arch must be the
// present GPU's. With `defer_prefill`, the call returns as soon as steps of decode can run; the
// kernel of prefill is compiled by the function that `defer_prefill` receives, which may run on
// another thread, and at the latest by plan() of the first step with room for prefill. With a
// tuning record the call compiles all kernels.
std::shared_ptr<const Attention> compile(const AttentionSpec& spec, std::string_view arch = {},
                                         Tune tune = Tune::kStored,
                                         const DeferPrefill& defer_prefill = {});

// Returns a step that holds `tensors`, on their device. A capacity of 0 is replaced by what the
// tensors need. `check` waits for the stream and checks every value.
std::shared_ptr<Step> plan(const Attention& attention, const StepTensors& tensors,
                           PoolFormat format = {}, StepCapacity capacity = {},
                           Stream stream = nullptr, bool check = false);

// Refills a step on the stream, without waiting: a captured graph of attend() then replays with the
// new requests. The step refers to `tensors.pages` until the next update.
void update(Step& step, const StepTensors& tensors, Stream stream = nullptr, bool check = false);

// The same from requests on the host, which are copied to the device on the stream. A step that is
// planned so has room for what the batch has room for. With raw keys or packed_prefill on Hopper,
// the step also allocates scratch for the rotated keys of the batch's present requests, if that
// takes at most 1 GiB and the capacity of the batch has no rotated_tokens. Both are refused while
// the stream is captured; a graph captured before replays with the new requests. The batch must
// live as long as the step.
std::shared_ptr<Step> plan(const Attention& attention, Batch& batch, PoolFormat format = {},
                           Stream stream = nullptr, bool check = false);
void update(Step& step, Batch& batch, Stream stream = nullptr, bool check = false);

// out = attention of q, both [tokens, num_q_heads, head_dim]; lse [tokens, num_q_heads] float32,
// natural logarithm. The pool has a bias of keys if and only if the spec has one, and the LSEs of
// entries if and only if the spec has states. `sinks`, if and only if the spec has them:
// [num_q_heads] float32. Rows of q beyond the step's tokens are left alone. `page_mass`, which only
// specs with page_mass give: [runs] float32, the attention weights of each run of 16 slots, summed
// over the query tokens and the heads of its request. Batch::run_indptr() numbers the runs. The
// step needs capacity.mass_pages.
void attend(const Attention& attention, const TensorView& q, const PoolTensors& pool,
            const Step& step, const TensorView& out, const std::optional<TensorView>& lse = {},
            Stream stream = nullptr, const std::optional<TensorView>& sinks = {},
            const std::optional<TensorView>& page_mass = {});

// An append step of a fixed capacity that holds `tensors`, on their device.
std::shared_ptr<AppendStep> plan_append(const Attention& attention, const AppendTensors& tensors,
                                        AppendCapacity capacity, PoolFormat format = {},
                                        Stream stream = nullptr, bool check = false);
void update(AppendStep& step, const AppendTensors& tensors, Stream stream = nullptr,
            bool check = false);

// The same from a slot for each token.
std::shared_ptr<AppendStep> plan_append(const Attention& attention, const TokenSlots& slots,
                                        AppendCapacity capacity, PoolFormat format = {},
                                        Stream stream = nullptr, bool check = false);
void update(AppendStep& step, const TokenSlots& slots, Stream stream = nullptr, bool check = false);

// Stores k and v, both [tokens, num_kv_heads, head_dim], in the pool; keys are rotated by their
// index.
void append(const Attention& attention, const TensorView& k, const TensorView& v,
            const PoolTensors& pool, const AppendStep& step, Stream stream = nullptr);

// Compiles the kernel of reposition(), like compile().
std::shared_ptr<const Reposition> compile_reposition(const AttentionSpec& spec,
                                                     std::string_view arch = {});

// Copies tokens to other slots of their pool and other indices: row i of `source` goes to row i of
// `target`, its key rotated by the difference of the indices. A document at base b is source with
// start 0 and target with start b. Both have the same capacity and format; rows that either lacks
// are left alone. No slot may be both read and written, or written twice.
void reposition(const Reposition& mover, const PoolTensors& pool, const AppendStep& source,
                const AppendStep& target, Stream stream = nullptr);

}  // namespace lazyrope
