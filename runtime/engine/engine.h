#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "codegen/render.h"
#include "runtime/base/config.h"
#include "runtime/base/log.h"
#include "runtime/driver/nvrtc_library.h"
#include "runtime/engine/kernel.h"
#include "runtime/engine/tuning_store.h"

namespace lazyrope {

// A kernel that is asked for. Two of the same source for the same arch are one kernel.
struct KernelRequest {
  RenderedKernel rendered;
  const Arch* arch;
  std::string name = {};  // of what it is for; listeners may show it
};

// What came of a request.
struct KernelResult {
  std::string key;                       // of its cache entry
  std::shared_ptr<const Kernel> kernel;  // also one that is refused because it spills
  std::exception_ptr failure;            // null where the kernel may be used

  bool is_usable() const { return failure == nullptr; }
  bool spills() const { return kernel != nullptr && failure != nullptr; }
};

// Hears how a call gets on, from several threads at once.
class KernelListener {
 public:
  virtual ~KernelListener() = default;
  // So many more kernels are asked for; those that are the same count once.
  virtual void on_begin(std::size_t kernels) = 0;
  virtual void on_result(const KernelRequest& request, const KernelResult& result) = 0;
};

struct EngineOptions {
  bool allow_spills = false;  // else a kernel that spills registers is refused
  int threads = 0;            // for compiling; 0: one a core
  bool cache_only = false;    // a kernel that is not there is a CacheError, not compiled
  KernelListener* listener = nullptr;
};

// From rendered kernels to compiled ones: memory, then disk, then a compiler. A kernel is compiled
// once, however many threads and processes ask for it. Safe to use from several threads at once.
class Engine {
 public:
  explicit Engine(Config config);

  // The process's engine, made from the environment by the first call.
  static Engine& get();

  // In the order asked for. Compiles what is missing, several at once, the longest first; one that
  // fails does not keep the others from being compiled.
  std::vector<KernelResult> try_kernels(const std::vector<KernelRequest>& requests,
                                        const EngineOptions& options);

  // Whether kernels could be compiled for the arch, and kept. CompileError, CacheError that say why
  // not.
  void check_can_compile(const Arch& arch) const;

  const Config& config() const { return config_; }
  const DiskStore& store() const { return store_; }
  NvrtcLocator& nvrtc() { return *nvrtc_; }
  TuningStore& tunings() { return tunings_; }

  // Forgets the kernels and tunings in memory; those in use live on.
  void clear_cache();

 private:
  using KernelPtr = std::shared_ptr<const Kernel>;
  struct Found {
    Binary binary;
    bool from_cache;
  };
  struct Lookup {
    std::optional<Binary> binary;
    std::string miss_reason;  // why there is none
    bool refused = false;     // an entry is there, and must not be used
  };
  struct Job {
    const KernelRequest* request;
    Key key;
    std::vector<std::size_t> request_indices;  // in the requests
  };

  std::vector<Job> jobs_of(const std::vector<KernelRequest>& requests) const;
  KernelResult try_kernel(const Job& job, const EngineOptions& options);
  KernelPtr kernel(const Job& job, const EngineOptions& options);
  KernelPtr load_or_compile(const RenderedKernel& rendered, const Arch& arch, const Key& key,
                            bool cache_only);
  Lookup look_up(const RenderedKernel& rendered, const Key& key) const;
  Found compile_and_store(const RenderedKernel& rendered, const Arch& arch, const Key& key);
  void store_in_cache(const Key& key, const Binary& binary) const;
  std::shared_ptr<Compiler> compiler(const Arch& arch) const;
  Key key_of(const RenderedKernel& rendered, const Arch& arch) const;
  [[noreturn]] void refuse_compiling(const RenderedKernel& rendered, const Key& key,
                                     const Lookup& lookup) const;
  void dump(const RenderedKernel& rendered, const Arch& arch, const Key& key) const;

  Config config_;
  DiskStore store_;
  TuningStore tunings_;
  std::shared_ptr<NvrtcLocator> nvrtc_;
  std::map<std::string, std::shared_ptr<Compiler>> compilers_;  // by isa

  struct Slot {
    std::mutex mutex;
    KernelPtr kernel;
  };
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Slot>> memory_;  // by key
};

// Where Python keeps NVIDIA's packages; heard by the process's engine if said before it is made.
void set_nvrtc_directories(std::vector<std::string> directories);

// The facts of a cache entry, and back. CacheError where a fact is missing or has the wrong type.
Entry entry_of(const Binary& binary);
Binary binary_of(Entry entry);

}  // namespace lazyrope
