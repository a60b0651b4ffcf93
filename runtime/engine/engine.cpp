#include "runtime/engine/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <utility>

#include "cache/error.h"
#include "cache/sha256.h"
#include "codegen/error.h"
#include "runtime/base/error.h"
#include "runtime/base/interruption.h"
#include "runtime/base/log.h"
#include "runtime/base/parallel.h"
#include "runtime/base/trace.h"
#include "runtime/emulator/device.h"
#include "runtime/engine/kernel_entry.h"
#include "runtime/engine/key_lock.h"
#include "runtime/engine/shared_code.h"
#include "runtime/engine/source_dump.h"

namespace lazyrope {
namespace {

// Change this when the content of entries changes, or the way in which sources map to binaries.
constexpr std::string_view kCacheFormat = "2";
constexpr std::chrono::seconds kLockTimeout{60};

std::vector<std::string>& package_directories() {
  static auto& directories = *new std::vector<std::string>;
  return directories;
}

std::unique_ptr<Engine> make_process_engine() {
  Config config = Config::from_environment();
  config.nvrtc_directories = package_directories();
  return std::make_unique<Engine>(std::move(config));
}

// A child gets an engine of its own. Engines are never destroyed, because kernels in use at exit
// refer to compilers.
PerProcess<Engine>& process_engine() {
  static auto& engine = *new PerProcess<Engine>(make_process_engine);
  return engine;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_package_directories() {
  (void)package_directories();
  (void)process_engine();
}

// Locks the mutex, which another thread may hold while it compiles. Throws Stopped.
std::unique_lock<std::mutex> lock_unless_stopped(std::mutex& mutex, const std::stop_token& stop) {
  constexpr std::chrono::milliseconds kPause{2};
  std::unique_lock lock(mutex, std::try_to_lock);
  for (; !lock.owns_lock(); (void)lock.try_lock()) {
    throw_if_stopped(stop);
    std::this_thread::sleep_for(kPause);
  }
  return lock;
}

std::uint64_t microseconds(double milliseconds) {
  return static_cast<std::uint64_t>(std::max(milliseconds, 0.0) * 1000.0);
}

Counter miss_of(const CachedBinary& cached) {
  if (cached.refused) return Counter::kRefused;
  return cached.is_of_other_compiler ? Counter::kOtherCompiler : Counter::kAbsent;
}

[[noreturn]] void refuse_more_time(const TimeLimit& limit, std::size_t done, std::size_t kernels) {
  throw CompileError(
      {.what_failed =
           fmt::format("the time limit of {} s is over; {} of {} kernels are ready",
                       std::chrono::duration<double>(limit.length()).count(), done, kernels),
       .advice = "call again to get the others, with a longer time limit or none: compiled kernels "
                 "are kept"});
}

// Ranks kinds by compile time, so that the longest compilations begin first.
int compile_rank(KernelKind kind) {
  switch (kind) {
    case KernelKind::kAttendPrefill:
    case KernelKind::kAttendShared:
      return 0;
    case KernelKind::kAttendRotated:
      return 1;
    case KernelKind::kAttendDecode:
      return 2;
    case KernelKind::kPlan:
    case KernelKind::kShare:
      return 3;
    case KernelKind::kAppend:
      return 4;
    case KernelKind::kRotateKeys:
      return 5;
    case KernelKind::kReposition:
      return 6;
    case KernelKind::kPlanRotation:
    case KernelKind::kPlanPageMass:
      return 7;
    case KernelKind::kPlanAppend:
    case KernelKind::kCombineShared:
    case KernelKind::kSumPageMass:
      return 8;
  }
  return kKernelKinds;
}

// Returns a request for the same kernel, whose binary no kernel with another table can share.
KernelRequest with_table_of_its_own(KernelRequest request) {
  request.rendered.rope_table.clear();
  return request;
}

void refuse_spills(const Kernel& kernel) {
  const int spilled = kernel.binary().spill_bytes;
  if (spilled == 0) return;
  throw SpillError({.what_failed = fmt::format("{} for {} spills {} bytes of registers",
                                               kernel.name(), kernel.arch().name, spilled),
                    .source = kernel.binary().entry,
                    .advice = "choose another config, or allow spills if a slow kernel will do"});
}

}  // namespace

Engine::Engine(Config config)
    : config_(std::move(config)),
      cache_(config_),
      tunings_(cache_),
      nvrtc_(std::make_shared<NvrtcLocator>(NvrtcSearch{
          .configured = config_.nvrtc_path, .directories = config_.nvrtc_directories})) {
  if (config_.log_level) log_to_stderr(*config_.log_level);
  if (!config_.trace_file.empty()) trace_to(config_.trace_file);
  compilers_["ptx"] = std::make_shared<NvrtcCompiler>(nvrtc_);
  compilers_["emu"] = host_compiler(config_.host_compiler);
}

Engine& Engine::get() { return process_engine().get(); }

void set_nvrtc_directories(std::vector<std::string> directories) {
  package_directories() = std::move(directories);
}

const std::vector<std::string>& nvrtc_directories() { return package_directories(); }

std::vector<KernelResult> Engine::try_kernels(const std::vector<KernelRequest>& requests,
                                              const EngineOptions& options) {
  const std::vector<Job> jobs = jobs_of(requests);
  std::vector<KernelResult> results(requests.size());
  if (options.listener != nullptr) options.listener->on_begin(jobs.size());
  std::atomic<std::size_t> done = 0;
  const auto run = [&](std::size_t i, const std::stop_token& stop) {
    run_job(jobs[i], requests, options, stop, results);
    ++done;
  };
  const auto watch = [&] {
    check_interruption();
    if (options.time_limit && options.time_limit->is_over())
      refuse_more_time(*options.time_limit, done, jobs.size());
  };
  for_each_parallel(jobs.size(), thread_count(options.threads), run, watch);
  return results;
}

// Returns one job per key. Requests for the same binary would otherwise make threads wait for each
// other.
std::vector<Engine::Job> Engine::jobs_of(const std::vector<KernelRequest>& requests) const {
  std::vector<Job> jobs;
  std::map<std::string, std::size_t> job_of;  // by key
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Key key = key_of(requests[i].rendered, *requests[i].arch);
    const auto [at, is_new] = job_of.emplace(key.hex(), jobs.size());
    if (is_new) jobs.push_back({&requests[i], std::move(key), {}});
    jobs[at->second].request_indices.push_back(i);
  }
  std::ranges::stable_sort(jobs, {},
                           [](const Job& job) { return compile_rank(job.request->rendered.kind); });
  return jobs;
}

// Fills the results of the job's requests, which are one kernel for each table.
void Engine::run_job(const Job& job, const std::vector<KernelRequest>& requests,
                     const EngineOptions& options, const std::stop_token& stop,
                     std::vector<KernelResult>& results) {
  const KernelResult first = try_kernel(job, options, stop);
  if (options.listener != nullptr) options.listener->on_result(*job.request, first);
  std::map<RopeTable, KernelResult> by_table = {{job.request->rendered.rope_table, first}};
  for (const std::size_t index : job.request_indices) {
    const auto [at, is_new] = by_table.try_emplace(requests[index].rendered.rope_table, first);
    if (is_new && first.kernel != nullptr)
      at->second = try_kernel({&requests[index], job.key, {}}, options, stop);
    results[index] = at->second;
  }
}

KernelResult Engine::try_kernel(const Job& job, const EngineOptions& options,
                                const std::stop_token& stop) {
  KernelResult result;
  try {
    result.kernel = kernel(job, options, stop);
    if (!options.allow_spills) refuse_spills(*result.kernel);
  } catch (const Stopped&) {
    throw;
  } catch (...) {
    if (result.kernel == nullptr) counters_.add(Counter::kFailed);
    result.failure = std::current_exception();
  }
  result.key = result.kernel != nullptr ? result.kernel->entry_key() : entry_key(job).hex();
  return result;
}

std::shared_ptr<Engine::Slot> Engine::slot_of(const Key& key) {
  auto& [mutex, slots] = memory_.get();
  const std::lock_guard lock(mutex);
  std::shared_ptr<Slot>& slot = slots[key.hex()];
  if (slot == nullptr) slot = std::make_shared<Slot>();
  return slot;
}

Engine::KernelPtr Engine::kernel(const Job& job, const EngineOptions& options,
                                 const std::stop_token& stop) {
  const std::shared_ptr<Slot> slot = slot_of(job.key);
  const auto lock = lock_unless_stopped(slot->mutex, stop);
  KernelPtr& kernel = slot->kernels[job.request->rendered.rope_table];
  if (kernel != nullptr)
    counters_.add(Counter::kMemoryHits);
  else
    kernel = make_kernel(job, *slot, options.cache_only, stop);
  return kernel;
}

Engine::KernelPtr Engine::make_kernel(const Job& job, Slot& slot, bool cache_only,
                                      const std::stop_token& stop) {
  const RenderedKernel& rendered = job.request->rendered;
  const Arch& arch = *job.request->arch;
  const auto begin = std::chrono::steady_clock::now();
  TraceSpan span("get a kernel");
  span.with("kernel", rendered.entry).with("arch", arch.name);
  dump(rendered, arch);
  if (slot.shared) counters_.add(Counter::kMemoryHits);
  Found found = slot.shared ? *slot.shared : load_or_compile(job, slot, cache_only, stop);
  span.with("from", slot.shared ? "memory" : found.from_cache ? "disk" : "compiler");
  slot.is_unshareable = !found.is_shared && !rendered.rope_table.empty();
  if (found.is_shared) {
    if (!slot.shared) slot.shared = found;
    write_table(rendered, found.binary.code);
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  return std::make_shared<Kernel>(
      rendered, arch, std::move(found.binary),
      Kernel::Origin{found.from_cache, took.count(), config_.policy == CachePolicy::kJit,
                     std::move(found.entry_key)},
      compiler(arch));
}

Engine::Found Engine::load_or_compile(const Job& job, const Slot& slot, bool cache_only,
                                      const std::stop_token& stop) {
  if (slot.is_unshareable) {
    const KernelRequest own = with_table_of_its_own(*job.request);
    return load_or_compile(job_of(own), {}, cache_only, stop);
  }
  CachedBinary cached = look_up(job);
  if (!cached.binary && !job.request->rendered.rope_table.empty()) {
    const KernelRequest own = with_table_of_its_own(*job.request);
    if (CachedBinary found = look_up(job_of(own)); found.binary) {
      counters_.add(Counter::kDiskHits);
      return found_in_cache(job_of(own), std::move(found));
    }
  }
  if (!cached.binary) counters_.add(miss_of(cached));
  if (!cached.binary && cache_only) throw CacheError(cached.miss_reason);
  if (!cached.binary && config_.policy == CachePolicy::kCacheOnly)
    refuse_compiling(job.request->rendered, job.key, cached);
  if (cached.refused || cached.is_of_other_compiler)
    log_message(cached.refused ? LogLevel::kWarning : LogLevel::kInfo,
                "cache entry {} is not used: {}", cached.entry_key, cached.miss_reason);
  Found found =
      cached.binary ? found_in_cache(job, std::move(cached)) : compile_and_store(job, stop);
  counters_.add(found.from_cache ? Counter::kDiskHits : Counter::kCompiled);
  return found;
}

// Counts the wait for another process or thread, if there is one.
FileLock Engine::lock(const Key& key, const std::stop_token& stop) {
  const auto begin = std::chrono::steady_clock::now();
  bool has_waited = false;
  FileLock lock = lock_key(store(), key, kLockTimeout, [&] {
    has_waited = true;
    throw_if_stopped(stop);
  });
  if (!has_waited) return lock;
  const std::chrono::duration<double, std::milli> waited = std::chrono::steady_clock::now() - begin;
  counters_.add(Counter::kWaits);
  counters_.add(Counter::kWaitMicroseconds, microseconds(waited.count()));
  return lock;
}

Engine::Found Engine::compile_and_store(const Job& job, const std::stop_token& stop) {
  // One process compiles; the others wait at the lock and then find the entry.
  const FileLock held = lock(entry_key(job), stop);
  if (CachedBinary cached = look_up(job); cached.binary)
    return found_in_cache(job, std::move(cached));
  throw_if_stopped(stop);
  const RenderedKernel& rendered = job.request->rendered;
  const RenderedKernel shared = shared_form(rendered);
  Binary binary = compile(shared, *job.request->arch, stop);
  if (!serves_all_tables(shared, binary.code)) {
    log_message(LogLevel::kInfo,
                "{} is compiled for its own RoPE table, because the code of this compiler has "
                "words of the table in its instructions",
                rendered.entry);
    const KernelRequest own = with_table_of_its_own(*job.request);
    return compile_and_store(job_of(own), stop);
  }
  if (!config_.cache_dir.empty()) store_in_cache(job, binary);
  return {std::move(binary), entry_key(job).hex(), false, !rendered.rope_table.empty()};
}

Binary Engine::compile(const RenderedKernel& rendered, const Arch& arch,
                       const std::stop_token& stop) {
  Binary binary = compiler(arch)->compile(rendered, arch, stop);
  counters_.add(Counter::kCompileMicroseconds, microseconds(binary.compile_ms));
  log_message(LogLevel::kInfo, "compiled {} for {} in {:.0f} ms", rendered.entry, arch.name,
              binary.compile_ms);
  return binary;
}

Engine::Job Engine::job_of(const KernelRequest& request) const {
  return {&request, key_of(request.rendered, *request.arch), {}};
}

Key Engine::entry_key(const Job& job) const {
  return cache_.entry_key(job.key, *compiler(*job.request->arch));
}

CachedBinary Engine::look_up(const Job& job) const {
  const RenderedKernel& rendered = job.request->rendered;
  const auto begin = std::chrono::steady_clock::now();
  CachedBinary cached = cache_.find(job.key, rendered, *compiler(*job.request->arch));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  log_message(LogLevel::kDebug, "cache {} for {} of {}{} ({:.2f} ms)",
              cached.binary ? "hit" : "miss", rendered.entry, job.request->arch->name,
              cached.binary ? "" : ": " + cached.miss_reason, took.count());
  return cached;
}

Engine::Found Engine::found_in_cache(const Job& job, CachedBinary cached) {
  return {std::move(cached.binary).value(), std::move(cached.entry_key), true,
          !job.request->rendered.rope_table.empty()};
}

void Engine::store_in_cache(const Job& job, const Binary& binary) {
  const AddedBinary added = cache_.add(job.key, job.request->rendered, binary);
  counters_.add(Counter::kEvictions, added.removed.entries());
  counters_.add(Counter::kEvictedBytes, added.removed.bytes);
  if (added.stored.stored) return;
  counters_.add(Counter::kStoreFailures);
  log_message(LogLevel::kWarning, "{} is not cached on disk: {}; set LAZYROPE_CACHE_DIR",
              binary.entry, added.stored.reason);
}

std::shared_ptr<Compiler> Engine::compiler(const Arch& arch) const {
  std::shared_ptr<Compiler> compiler = compilers_.at(arch.isa);
  if (compiler == nullptr)
    throw SpecError(
        fmt::format("arch \"{}\": this lazyrope was built without the emulator", arch.name));
  return compiler;
}

Key Engine::key_of(const RenderedKernel& rendered, const Arch& arch) const {
  return KeyBuilder()
      .field("format", kCacheFormat)
      .field("arch", arch.name)
      .field("options", fmt::format("{}", fmt::join(compiler(arch)->options(arch), " ")))
      .field("entry", rendered.entry)
      .field("source", shared_form(rendered).source)
      .finish();
}

void Engine::refuse_compiling(const RenderedKernel& rendered, const Key& key,
                              const CachedBinary& cached) const {
  std::string why = "there is no cache: set LAZYROPE_CACHE_DIR";
  if (cached.refused) {
    why = fmt::format("its entry in the cache {} is not used: {}", store().root().string(),
                      cached.miss_reason);
  } else if (!config_.cache_dir.empty()) {
    const std::optional<Nearest> near = nearest(key, origin_facts(rendered));
    why = fmt::format("it is not in the cache {}, where {}", store().root().string(),
                      near ? fmt::format("the nearest readable entry differs in: {}",
                                         fmt::join(near->differing, ", "))
                           : "there is no readable entry");
  }
  throw CacheError(fmt::format(
      "LAZYROPE_POLICY=cache_only forbids compiling {}, and {}\ncompile it beforehand "
      "with `lazyrope precompile{}`, or set LAZYROPE_POLICY=jit; `lazyrope cache why` compares "
      "the entries",
      rendered.entry, why, rendered.kind == KernelKind::kReposition ? " --reposition" : ""));
}

// The digest of the source is left out where facts that the source was rendered from differ: they
// say more.
std::optional<Nearest> Engine::nearest(const Key& key, const KeyFields& origin) const {
  std::optional<Nearest> near = store().nearest(key, origin);
  if (!near) return near;
  const auto differs = [&](std::string_view name) {
    return std::ranges::find(near->differing, name) != near->differing.end();
  };
  std::erase(near->differing, kCompilerField);
  if (differs("spec") || differs("config") || differs("templates") || differs("arch"))
    std::erase(near->differing, "source");
  return near;
}

CacheExplanation Engine::explain(const KernelRequest& request) const {
  const RenderedKernel& rendered = request.rendered;
  const Job job = job_of(request);
  CachedBinary cached = look_up(job);
  if (!cached.binary && !rendered.rope_table.empty()) {
    const KernelRequest own = with_table_of_its_own(request);
    if (CachedBinary found = look_up(job_of(own)); found.binary) cached = std::move(found);
  }
  if (cached.binary)
    return {.key = cached.entry_key, .is_found = true, .compiler = cached.binary->compiler};
  CacheExplanation explanation = {.key = entry_key(job).hex(), .reason = cached.miss_reason};
  KeyFields wanted = origin_facts(rendered);
  const std::optional<Nearest> near = nearest(job.key, wanted);
  if (!near) return explanation;
  explanation.nearest = near->key;
  wanted.insert(job.key.fields().begin(), job.key.fields().end());
  for (const std::string& name : near->differing) {
    const auto there = near->fields.find(name);
    explanation.differs.push_back(
        {name, there == near->fields.end() ? "" : there->second, wanted[name]});
  }
  return explanation;
}

void Engine::check_can_compile(const Arch& arch) const {
  compiler(arch)->check(arch);
  if (!config_.cache_dir.empty()) store().check_writable();
}

void Engine::dump(const RenderedKernel& rendered, const Arch& arch) const {
  if (config_.dump_dir.empty()) return;
  constexpr std::size_t kDigits = 12;
  const std::string digest = to_hex(sha256(std::as_bytes(std::span(rendered.source))));
  dump_source(config_.dump_dir,
              fmt::format("{}.{}.{}.cu", rendered.entry, arch.name, digest.substr(0, kDigits)),
              rendered.source);
}

void Engine::clear_cache() {
  auto& [mutex, slots] = memory_.get();
  const std::lock_guard lock(mutex);
  slots.clear();
  tunings_.clear();
}

}  // namespace lazyrope
