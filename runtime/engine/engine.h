#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "codegen/render.h"
#include "runtime/base/config.h"
#include "runtime/base/fork.h"
#include "runtime/base/interruption.h"
#include "runtime/base/log.h"
#include "runtime/driver/nvrtc_library.h"
#include "runtime/engine/counters.h"
#include "runtime/engine/kernel.h"
#include "runtime/engine/kernel_cache.h"
#include "runtime/engine/tuning_store.h"

namespace lazyrope {

// A request for a kernel. Requests of the same source for the same arch are one kernel.
struct KernelRequest {
  RenderedKernel rendered;
  const Arch* arch;
  std::string name = {};  // the purpose, for listeners to show
};

// The outcome of a request.
struct KernelResult {
  // The key of its cache entry. Without a kernel, it is the key of the entry that compiling would
  // make here; where compiling is forbidden or impossible, that key has no compiler.
  std::string key;
  std::shared_ptr<const Kernel> kernel;  // set also for a kernel that is refused because it spills
  std::exception_ptr failure;            // null if the kernel may be used

  bool is_usable() const { return failure == nullptr; }
  bool spills() const { return kernel != nullptr && failure != nullptr; }
};

// Receives the progress of a call, from several threads at once.
class KernelListener {
 public:
  virtual ~KernelListener() = default;
  // Announces `kernels` more kernels. Equal requests, and requests that differ in the RoPE table
  // alone, count once.
  virtual void on_begin(std::size_t kernels) = 0;
  virtual void on_result(const KernelRequest& request, const KernelResult& result) = 0;
};

struct EngineOptions {
  bool allow_spills = false;  // refuse kernels that spill registers unless set
  int threads = 0;            // compiling threads; 0: one per core
  bool cache_only = false;    // throw CacheError for a missing kernel and do not compile it
  KernelListener* listener = nullptr;
  std::optional<TimeLimit> time_limit = {};  // throw CompileError when it is over
};

// One way in which the stored entry that is most like a kernel's differs from it.
struct CacheDifference {
  std::string name;  // "spec", "config", "arch", "templates", "version", ...
  std::string there;
  std::string wanted;
};

// Says whether a kernel is on disk, and why not.
struct CacheExplanation {
  std::string key;  // the key of the entry, or of the one that compiling would make
  bool is_found = false;
  std::string compiler = {};                  // the compiler of the entry that is used
  std::string reason = {};                    // the reason of a miss
  std::string nearest = {};                   // the key of the most similar entry; empty: none
  std::vector<CacheDifference> differs = {};  // how that entry differs
};

// Returns compiled kernels for rendered ones: from memory, else from the disk cache, else from a
// compiler. A kernel is compiled once, however many threads and processes ask for it, and once for
// all RoPE tables (shared_code.h). Safe to use from several threads at once. A child of fork()
// begins without the kernels in memory, and never waits for its parent's threads.
class Engine {
 public:
  explicit Engine(Config config);

  // Returns the process's engine, which the first call makes from the environment.
  static Engine& get();

  // Returns one result per request, in order. Compiles missing kernels, several at once, the
  // longest first. A failure is part of its result and does not stop the other kernels. Throws
  // SpecError for the emulator's arch in a build without it, CompileError when the time limit is
  // over, and what listeners or the interruption check throw. The check runs on the caller's
  // thread, and listeners on others. An exception ends all waits and compilations, where the
  // compiler can stop.
  std::vector<KernelResult> try_kernels(const std::vector<KernelRequest>& requests,
                                        const EngineOptions& options);

  // Looks for the kernel on disk and compiles nothing.
  CacheExplanation explain(const KernelRequest& request) const;

  // Checks that kernels can be compiled for the arch and stored on disk. Throws CompileError or
  // CacheError with the reason.
  void check_can_compile(const Arch& arch) const;

  const Config& config() const { return config_; }
  const DiskStore& store() const { return cache_.store(); }
  // Returns the counts of this engine. The process's engine in a child of fork() is a new one, and
  // begins at zero.
  const Counters& counters() const { return counters_; }
  NvrtcLocator& nvrtc() { return *nvrtc_; }
  // Returns the name of the NVRTC that would compile, as the entries of its kernels have it, or an
  // empty text.
  std::string nvrtc_name() const { return compilers_.at("ptx")->identity(); }
  TuningStore& tunings() { return tunings_; }

  // Drops the kernels and tunings in memory. The disk cache and kernels in use stay.
  void clear_cache();

 private:
  using KernelPtr = std::shared_ptr<const Kernel>;
  struct Found {
    Binary binary;
    std::string entry_key;
    bool from_cache;
    bool is_shared = false;  // the binary has the placeholder of a table (shared_code.h)
  };
  struct Job {
    const KernelRequest* request;
    Key key;
    std::vector<std::size_t> request_indices;  // all requests with this key, in order
  };

  // The kernels in memory that share one entry of the cache.
  struct Slot {
    std::mutex mutex;
    std::optional<Found> shared;             // the binary before a table is written into it
    bool is_unshareable = false;             // each table needs a binary of its own
    std::map<RopeTable, KernelPtr> kernels;  // by their tables
  };
  struct Memory {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<Slot>> slots;  // by key
  };

  std::vector<Job> jobs_of(const std::vector<KernelRequest>& requests) const;
  void run_job(const Job& job, const std::vector<KernelRequest>& requests,
               const EngineOptions& options, const std::stop_token& stop,
               std::vector<KernelResult>& results);
  KernelResult try_kernel(const Job& job, const EngineOptions& options,
                          const std::stop_token& stop);
  KernelPtr kernel(const Job& job, const EngineOptions& options, const std::stop_token& stop);
  KernelPtr make_kernel(const Job& job, Slot& slot, bool cache_only, const std::stop_token& stop);
  Found load_or_compile(const Job& job, const Slot& slot, bool cache_only,
                        const std::stop_token& stop);
  Job job_of(const KernelRequest& request) const;
  Key entry_key(const Job& job) const;
  CachedBinary look_up(const Job& job) const;
  static Found found_in_cache(const Job& job, CachedBinary cached);
  FileLock lock(const Key& key, const std::stop_token& stop);
  Found compile_and_store(const Job& job, const std::stop_token& stop);
  Binary compile(const RenderedKernel& rendered, const Arch& arch, const std::stop_token& stop);
  void store_in_cache(const Job& job, const Binary& binary);
  std::shared_ptr<Compiler> compiler(const Arch& arch) const;
  Key key_of(const RenderedKernel& rendered, const Arch& arch) const;
  [[noreturn]] void refuse_compiling(const RenderedKernel& rendered, const Key& key,
                                     const CachedBinary& cached) const;
  std::optional<Nearest> nearest(const Key& key, const KeyFields& origin) const;
  void dump(const RenderedKernel& rendered, const Arch& arch) const;

  Config config_;
  KernelCache cache_;
  Counters counters_;
  TuningStore tunings_;
  std::shared_ptr<NvrtcLocator> nvrtc_;
  std::map<std::string, std::shared_ptr<Compiler>> compilers_;  // by isa

  std::shared_ptr<Slot> slot_of(const Key& key);

  PerProcess<Memory> memory_;
};

// Sets the lib directories of NVIDIA's Python packages. The process's engine uses them if they are
// set before it is made.
void set_nvrtc_directories(std::vector<std::string> directories);
const std::vector<std::string>& nvrtc_directories();

}  // namespace lazyrope
