#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "codegen/render.h"
#include "runtime/config.h"
#include "runtime/kernel.h"
#include "runtime/log.h"
#include "runtime/nvrtc_library.h"
#include "runtime/tuning_store.h"

namespace lazyrope {

struct EngineOptions {
  bool allow_spills = false;  // else a kernel that spills registers is refused
  int threads = 0;            // for compiling; 0: one a core
};

// From rendered kernels to compiled ones: memory, then disk, then a compiler. A kernel is compiled
// once, however many threads and processes ask for it. Safe to use from several threads at once.
class Engine {
 public:
  explicit Engine(Config config);

  // The process's engine, made from the environment by the first call.
  static Engine& get();

  // In the order asked for. Compiles what is missing, several at once. CompileError.
  std::vector<std::shared_ptr<const Kernel>> kernels(std::vector<RenderedKernel> rendered,
                                                     const Arch& arch,
                                                     const EngineOptions& options);

  const Config& config() const { return config_; }
  const DiskStore& store() const { return store_; }
  NvrtcLocator& nvrtc() { return *nvrtc_; }
  TuningStore& tunings() { return tunings_; }

  // Forgets the kernels and tunings in memory; those in use live on.
  void forget();

 private:
  using KernelPtr = std::shared_ptr<const Kernel>;
  struct Found {
    Binary binary;
    bool from_cache;
  };

  KernelPtr kernel(const RenderedKernel& rendered, const Arch& arch, const EngineOptions& options);
  KernelPtr load_or_compile(const RenderedKernel& rendered, const Arch& arch, const Key& key);
  // Nothing where there is no good entry; a bad one is also logged.
  std::optional<Binary> load(const RenderedKernel& rendered, const Key& key, LogLevel level) const;
  Found compile_and_store(const RenderedKernel& rendered, const Arch& arch, const Key& key);
  void keep(const Key& key, const Binary& binary) const;
  std::shared_ptr<Compiler> compiler(const Arch& arch) const;
  Key key_of(const RenderedKernel& rendered, const Arch& arch) const;
  void refuse_compiling(const RenderedKernel& rendered, const Key& key) const;
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
