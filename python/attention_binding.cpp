#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "codegen/error.h"
#include "python/bindings.h"
#include "python/dlpack_tensor.h"
#include "python/log_bridge.h"
#include "python/steps.h"
#include "runtime/attention/attention.h"
#include "runtime/base/log.h"
#include "runtime/engine/devices.h"
#include "runtime/tuning/tuned.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

using AttentionPtr = std::shared_ptr<const Attention>;
using AttentionType = py::class_<Attention, std::shared_ptr<Attention>>;

Tune tune_of(std::optional<bool> tune) {
  if (!tune) return Tune::kStored;
  return *tune ? Tune::kMeasure : Tune::kNever;
}

TimeLimit time_limit_of(double seconds) {
  constexpr double kMax = 1e6;
  if (!(seconds > 0 && seconds <= kMax))
    throw SpecError(fmt::format(
        "timeout = {}; it must be a number of seconds, more than 0 and at most {:.0f}, or None",
        seconds, kMax));
  return TimeLimit(
      std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds)));
}

// Calls a Python function after each kernel. The function's exception ends the compilation.
class PythonProgress : public KernelListener {
 public:
  explicit PythonProgress(py::object function) : function_(std::move(function)) {}

  void on_begin(std::size_t kernels) override {
    const std::lock_guard lock(mutex_);
    total_ += kernels;
  }
  // The lock keeps the calls in order. It is taken first: whoever has it needs the interpreter's.
  void on_result(const KernelRequest& request, const KernelResult&) override {
    const std::lock_guard lock(mutex_);
    const py::gil_scoped_acquire locked;
    function_(++done_, total_, to_string(request.rendered.kind));
  }

 private:
  py::object function_;
  std::mutex mutex_;
  std::size_t done_ = 0;
  std::size_t total_ = 0;
};

// Compiles the kernel of prefill on a thread of Python's, which the interpreter waits for at exit.
class PythonThread {
 public:
  // The thread begins with the call if there is a core for it, and otherwise after the kernels that
  // the call waits for.
  DeferPrefill defer() {
    return [this](std::function<void()> compile_prefill) {
      compile_prefill_ = std::move(compile_prefill);
      if (std::thread::hardware_concurrency() > kKernelsWaitedFor) start();
    };
  }

  void start() {
    if (!compile_prefill_) return;
    const py::gil_scoped_acquire locked;
    const py::cpp_function target(
        [task = std::exchange(compile_prefill_, nullptr)] {
          try {
            task();
          } catch (const std::exception& error) {
            // The call that needs the kernel compiles it again, and throws the error.
            log_message(LogLevel::kDebug, "prefill is not compiled yet: {}", error.what());
          }
        },
        py::call_guard<py::gil_scoped_release>());
    py::module_::import("threading")
        .attr("Thread")(py::arg("target") = target, py::arg("name") = "lazyrope prefill")
        .attr("start")();
  }

 private:
  // Decode and the planner take a core each; the other kernels compile in a moment.
  static constexpr unsigned kKernelsWaitedFor = 2;
  std::function<void()> compile_prefill_;
};

AttentionPtr compile(const AttentionSpec& spec, const std::optional<std::string>& arch,
                     const std::optional<KernelConfig>& config, std::optional<bool> tune,
                     bool allow_spills, int threads, std::optional<double> timeout,
                     const py::object& progress, bool wait_for_prefill) {
  if (arch) find_arch(*arch);  // refuses the empty name, which compile_for() takes for no arch
  CompileOptions options = {config, {.allow_spills = allow_spills, .threads = threads}};
  if (timeout) options.engine.time_limit = time_limit_of(*timeout);
  if (!progress.is_none() && PyCallable_Check(progress.ptr()) == 0)
    throw SpecError("progress must be None or a function of (done, total, kernel)");
  PythonProgress listener(progress);
  if (!progress.is_none()) options.engine.listener = &listener;
  PythonThread thread;
  if (!wait_for_prefill) options.defer_prefill = thread.defer();
  const py::gil_scoped_release unlocked;
  AttentionPtr attention =
      compile_for(Engine::get(), spec, arch.value_or(""), tune_of(tune), options);
  thread.start();
  return attention;
}

// Makes the records of lazyrope/_tuning.py.
class TuningRecord {
 public:
  py::object of(const Tuning& t) const {
    return make(
        "Tuning",
        py::dict(py::arg("spec") = t.spec, py::arg("arch") = t.arch, py::arg("gpu") = t.gpu,
                 py::arg("sm_count") = t.sm_count, py::arg("driver") = t.driver,
                 py::arg("compiler") = t.compiler, py::arg("library") = t.library,
                 py::arg("date") = t.date, py::arg("config") = t.config,
                 py::arg("tasks") = all(t.tasks), py::arg("compile_seconds") = t.compile_seconds,
                 py::arg("measure_seconds") = t.measure_seconds, py::arg("seconds") = t.seconds));
  }

  py::object of(const TuningTask& task) const {
    return make("TuningTask",
                py::dict(py::arg("name") = task.name, py::arg("workloads") = all(task.workloads),
                         py::arg("trials") = all(task.trials), py::arg("chosen") = task.chosen));
  }

  py::object of(const TuningTrial& trial) const {
    return make(
        "TuningTrial",
        py::dict(py::arg("name") = trial.name, py::arg("config") = trial.config,
                 py::arg("us") = py::tuple(py::cast(trial.us)), py::arg("gain") = trial.gain,
                 py::arg("noise") = trial.noise, py::arg("rejection") = trial.rejection));
  }

  py::object of(const TuningWorkload& load) const {
    return make(
        "TuningWorkload",
        py::dict(py::arg("batch") = load.batch, py::arg("query_tokens") = load.query_tokens,
                 py::arg("context") = load.context, py::arg("doc_tokens") = load.doc_tokens));
  }

 private:
  py::object make(const char* name, const py::dict& fields) const {
    return classes_.attr(name)(**fields);
  }

  template <class Item>
  py::tuple all(const std::vector<Item>& items) const {
    py::tuple result(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) result[i] = of(items[i]);
    return result;
  }

  py::module_ classes_ = py::module_::import("lazyrope._tuning");
};

py::object tuning_of(const Attention& attention) {
  if (attention.tuning() == nullptr) return py::none();
  return TuningRecord().of(*attention.tuning());
}

// Calls make() without the interpreter's lock, because make() loads kernels and may compile them.
template <class Make>
auto unlocked(const Make& make) {
  const py::gil_scoped_release released;
  return make();
}

PyStep plan(const Attention& self, StepArguments arguments, int page_size,
            const std::string& layout, const py::object& capacity, bool check,
            const std::optional<std::uintptr_t>& stream) {
  const DlpackTensor q_indptr("q_indptr", arguments.q_indptr);
  const StepCapacity step_capacity = capacity_of(capacity, arguments);
  const Stream used_stream = stream_of(stream, q_indptr);
  PyStep step(unlocked([&] {
    return self.make_step(device_of("q_indptr", q_indptr.view()), format_of(page_size, layout),
                          step_capacity, used_stream);
  }));
  step.update(std::move(arguments), check, stream);
  return step;
}

PyStep plan_batch(const Attention& self, PyBatch& batch, int page_size, const std::string& layout,
                  const py::object& capacity, bool check,
                  const std::optional<std::uintptr_t>& stream) {
  const StepCapacity step_capacity =
      capacity.is_none() ? self.capacity_for(*batch.batch) : step_capacity_from(capacity);
  const Stream used_stream = batch.stream(stream);
  PyStep step(unlocked([&] {
    return self.make_step(device_of("pages", batch.batch->pages()), format_of(page_size, layout),
                          step_capacity, used_stream);
  }));
  step.update(batch, check, stream);
  return step;
}

// Makes a step of spans or of slots. `on_device` is one of their tensors.
template <class Arguments>
PyAppendStep plan_append(const Attention& self, Arguments arguments, const char* name,
                         py::object Arguments::* on_device, int page_size,
                         const std::string& layout, const AppendCapacity& capacity, bool check,
                         const std::optional<std::uintptr_t>& stream) {
  const DlpackTensor tensor(name, arguments.*on_device);
  PyAppendStep step(unlocked([&] {
    return self.make_append_step(device_of(name, tensor.view()), format_of(page_size, layout),
                                 capacity);
  }));
  step.update(std::move(arguments), check, stream);
  return step;
}

// Calls check(number of pages), which waits for the stream, without the interpreter's lock. The
// call itself refuses a pool of another rank.
template <class Check>
void check_with(const TensorView& pool, const Check& check) {
  if (pool.rank != kPoolRank) return;
  const py::gil_scoped_release unlocked;
  check(pool.shape[0]);
}

py::tuple attend(const Attention& self, const py::object& q, const py::object& k_pool,
                 const py::object& v_pool, const PyStep& step, py::object out, py::object lse,
                 bool return_lse, const py::object& sinks, const py::object& k_scale,
                 const py::object& v_scale, const py::object& page_mass, const py::object& key_bias,
                 const py::object& entry_lse, bool check,
                 const std::optional<std::uintptr_t>& stream) {
  const DlpackTensor queries("q", q);
  const DlpackTensor keys("k_pool", k_pool);
  const DlpackTensor values("v_pool", v_pool);
  const OptionalTensor sink_logits("sinks", sinks);
  const OptionalTensor key_scale("k_scale", k_scale);
  const OptionalTensor value_scale("v_scale", v_scale);
  const OptionalTensor biases("key_bias", key_bias);
  const OptionalTensor entry_lses("entry_lse", entry_lse);
  const TensorView& view = queries.view();
  if (view.rank != 3)
    throw SpecError(
        fmt::format("q is {}; its shape must be [tokens, heads, head_dim]", describe(view)));
  const Stream used_stream = stream_of(stream, queries);
  if (check)
    check_with(keys.view(), [&](auto pages) { step.step->check_pages(pages, used_stream); });
  if (view.shape[0] > step.step->num_tokens() && (out.is_none() || (lse.is_none() && return_lse)))
    throw SpecError(
        fmt::format("q has {} tokens and the step {}; give out= and lse=, for the call does "
                    "not write the other rows",
                    view.shape[0], step.step->num_tokens()));
  if (out.is_none())
    out = queries.empty_like("out", view.type, {view.shape[0], view.shape[1], view.shape[2]});
  if (lse.is_none() && return_lse)
    lse = queries.empty_like("lse", ElementType::kFp32, {view.shape[0], view.shape[1]});
  const DlpackTensor result("out", out, Access::kWrite);
  const OptionalTensor log_sums("lse", lse, Access::kWrite);
  const OptionalTensor masses("page_mass", page_mass, Access::kWrite);
  self.attend(view,
              {keys.view(), values.view(), key_scale.view(), value_scale.view(), biases.view(),
               entry_lses.view()},
              *step.step, result.view(), log_sums.view(), used_stream, sink_logits.view(),
              masses.view());
  return py::make_tuple(std::move(out), std::move(lse));
}

void append(const Attention& self, const py::object& k, const py::object& v,
            const py::object& k_pool, const py::object& v_pool, const PyAppendStep& step,
            const py::object& k_scale, const py::object& v_scale, bool check,
            const std::optional<std::uintptr_t>& stream) {
  const DlpackTensor new_keys("k", k);
  const DlpackTensor new_values("v", v);
  const DlpackTensor keys("k_pool", k_pool, Access::kWrite);
  const DlpackTensor values("v_pool", v_pool, Access::kWrite);
  const OptionalTensor key_scale("k_scale", k_scale);
  const OptionalTensor value_scale("v_scale", v_scale);
  const Stream used_stream = stream_of(stream, new_keys);
  const TensorView& rows = new_keys.view();
  if (check && rows.rank > 0)
    check_with(keys.view(),
               [&](auto pages) { step.step->check_writes(rows.shape[0], pages, used_stream); });
  self.append(rows, new_values.view(),
              {keys.view(), values.view(), key_scale.view(), value_scale.view()}, *step.step,
              used_stream);
}

const Kernel& decode_kernel(const Attention& self) {
  return self.kernel(KernelKind::kAttendDecode);
}

// Waits for the kernel of prefill without the interpreter's lock.
std::vector<std::shared_ptr<const Kernel>> all_kernels(const Attention& self) {
  const py::gil_scoped_release unlocked;
  return self.kernels();
}

template <class Value>
auto over_kernels(const Attention& self, Value value) {
  std::vector<decltype(value(std::declval<const Kernel&>()))> values;
  for (const auto& kernel : all_kernels(self)) values.push_back(value(*kernel));
  return values;
}

int largest(const std::vector<int>& values) {
  return *std::max_element(values.begin(), values.end());
}

void bind_facts(AttentionType& type) {
  type.def_property_readonly("spec", &Attention::spec)
      .def_property_readonly("arch", [](const Attention& a) { return a.arch().name; })
      .def_property_readonly("config", &Attention::config)
      .def_property_readonly("tuning", &tuning_of)
      .def_property_readonly("kernels",
                             [](const Attention& a) {
                               py::dict result;
                               for (const auto& kernel : all_kernels(a))
                                 result[py::str(std::string(kernel->name()))] =
                                     std::const_pointer_cast<Kernel>(kernel);
                               return result;
                             })
      .def_property_readonly("source", [](const Attention& a) { return decode_kernel(a).source(); })
      .def(
          "ptx", [](const Attention& a) { return decode_kernel(a).intermediate(); },
          py::call_guard<LogDelivery, py::gil_scoped_release>())
      .def_property_readonly("cubin", [](const Attention& a) { return cubin_of(decode_kernel(a)); })
      .def_property_readonly(
          "registers",
          [](const Attention& a) {
            return largest(over_kernels(a, [](const Kernel& k) { return k.binary().registers; }));
          })
      .def_property_readonly("shared_bytes",
                             [](const Attention& a) {
                               return largest(over_kernels(
                                   a, [](const Kernel& k) { return k.binary().shared_bytes; }));
                             })
      .def_property_readonly(
          "spill_bytes",
          [](const Attention& a) {
            return largest(over_kernels(a, [](const Kernel& k) { return k.binary().spill_bytes; }));
          })
      .def_property_readonly("compile_ms",
                             [](const Attention& a) {
                               double sum = 0;
                               for (const auto& kernel : all_kernels(a))
                                 if (!kernel->from_cache()) sum += kernel->binary().compile_ms;
                               return sum;
                             })
      .def_property_readonly("from_cache", [](const Attention& a) {
        const std::vector<bool> cached =
            over_kernels(a, [](const Kernel& k) { return k.from_cache(); });
        return std::all_of(cached.begin(), cached.end(), [](bool x) { return x; });
      });
}

void bind_plan(AttentionType& type) {
  type.def(
      "plan",
      [](const Attention& self, py::object q_indptr, py::object q_position, py::handle segments,
         py::object pages, int page_size, const std::string& layout, const py::object& capacity,
         bool check, const std::optional<std::uintptr_t>& stream) {
        return plan(
            self,
            {std::move(q_indptr), std::move(q_position), segments_of(segments), std::move(pages)},
            page_size, layout, capacity, check, stream);
      },
      py::arg("q_indptr"), py::arg("q_position"), py::arg("segments"), py::arg("pages"),
      py::kw_only(), py::arg("page_size") = 16, py::arg("layout") = "NHD",
      py::arg("capacity") = py::none(), py::arg("check") = false, py::arg("stream") = py::none(),
      py::call_guard<LogDelivery>());
  type.def("plan", &plan_batch, py::arg("batch"), py::kw_only(), py::arg("page_size") = 16,
           py::arg("layout") = "NHD", py::arg("capacity") = py::none(), py::arg("check") = false,
           py::arg("stream") = py::none(), py::call_guard<LogDelivery>());
  type.def(
      "step_nbytes",
      [](const Attention& self, const py::object& capacity, int sm_count) {
        return self.step_bytes(step_capacity_from(capacity), sm_count);
      },
      py::arg("capacity"), py::kw_only(), py::arg("sm_count"));
}

void bind_plan_append(AttentionType& type) {
  type.def(
      "plan_append",
      [](const Attention& self, py::handle spans, py::object pages, py::handle capacity,
         int page_size, const std::string& layout, bool check,
         const std::optional<std::uintptr_t>& stream) {
        return plan_append(self, append_arguments_of(spans, std::move(pages)), "spans.indptr",
                           &AppendArguments::indptr, page_size, layout,
                           append_capacity_from(capacity), check, stream);
      },
      py::arg("spans"), py::arg("pages"), py::kw_only(), py::arg("capacity"),
      py::arg("page_size") = 16, py::arg("layout") = "NHD", py::arg("check") = false,
      py::arg("stream") = py::none(), py::call_guard<LogDelivery>());
  type.def(
      "plan_append",
      [](const Attention& self, py::handle slots, py::handle capacity, int page_size,
         const std::string& layout, bool check, const std::optional<std::uintptr_t>& stream) {
        return plan_append(self, slots_of(slots), "slots.slot_mapping",
                           &SlotArguments::slot_mapping, page_size, layout,
                           append_capacity_from(capacity), check, stream);
      },
      py::arg("slots"), py::kw_only(), py::arg("capacity"), py::arg("page_size") = 16,
      py::arg("layout") = "NHD", py::arg("check") = false, py::arg("stream") = py::none(),
      py::call_guard<LogDelivery>());
}

void bind_calls(AttentionType& type) {
  type.def("__call__", &attend, py::arg("q"), py::arg("k_pool"), py::arg("v_pool"), py::arg("step"),
           py::kw_only(), py::arg("out") = py::none(), py::arg("lse") = py::none(),
           py::arg("return_lse") = true, py::arg("sinks") = py::none(),
           py::arg("k_scale") = py::none(), py::arg("v_scale") = py::none(),
           py::arg("page_mass") = py::none(), py::arg("key_bias") = py::none(),
           py::arg("entry_lse") = py::none(), py::arg("check") = false,
           py::arg("stream") = py::none(), py::call_guard<LogDelivery>())
      .def("append", &append, py::arg("k"), py::arg("v"), py::arg("k_pool"), py::arg("v_pool"),
           py::arg("step"), py::kw_only(), py::arg("k_scale") = py::none(),
           py::arg("v_scale") = py::none(), py::arg("check") = false,
           py::arg("stream") = py::none(), py::call_guard<LogDelivery>())
      .def("__repr__", [](const Attention& a) {
        return fmt::format("Attention({}, arch='{}', config={})",
                           py::cast<std::string>(py::repr(py::cast(a.spec()))), a.arch().name,
                           py::cast<std::string>(py::repr(py::cast(a.config()))));
      });
}

void bind_compile(py::module_& module) {
  module.def(
      "compile",
      [](const AttentionSpec& spec, const std::optional<std::string>& arch,
         const std::optional<KernelConfig>& config, std::optional<bool> tune, bool allow_spills,
         int threads, std::optional<double> timeout, const py::object& progress,
         bool wait_for_prefill) {
        return std::const_pointer_cast<Attention>(compile(
            spec, arch, config, tune, allow_spills, threads, timeout, progress, wait_for_prefill));
      },
      py::arg("spec"), py::arg("arch") = py::none(), py::kw_only(), py::arg("config") = py::none(),
      py::arg("tune") = py::none(), py::arg("allow_spills") = false, py::arg("threads") = 0,
      py::arg("timeout") = py::none(), py::arg("progress") = py::none(),
      py::arg("wait_for_prefill") = true, py::call_guard<LogDelivery>());
  module.def(
      "configs",
      [](const AttentionSpec& spec, const std::optional<std::string>& arch) {
        return configs(spec.kernel_spec(), arch_of(arch));
      },
      py::arg("spec"), py::arg("arch") = py::none());
}

}  // namespace

const Arch& arch_of(const std::optional<std::string>& name) {
  return name ? find_arch(*name) : current_arch();
}

void bind_attention(py::module_& module) {
  AttentionType type(module, "Attention");
  bind_facts(type);
  define_handle(type);
  define_copy(type, [](const Attention& a) {
    return py::make_tuple(py::module_::import("lazyrope").attr("_compiled"),
                          py::make_tuple(a.spec(), a.arch().name, a.config()));
  });
  bind_plan(type);
  bind_plan_append(type);
  bind_calls(type);
  bind_compile(module);
}

}  // namespace lazyrope
