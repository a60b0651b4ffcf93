#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "codegen/render.h"
#include "runtime/base/config.h"
#include "runtime/driver/compiler.h"
#include "runtime/engine/cache_budget.h"
#include "runtime/engine/entry_index.h"

namespace lazyrope {

// The outcome of KernelCache::find.
struct CachedBinary {
  std::optional<Binary> binary = {};  // as it is stored, without a RoPE table (shared_code.h)
  std::string entry_key = {};         // the key of the binary's entry
  std::string miss_reason = {};       // the reason if there is no binary
  bool refused = false;               // there is an entry, and it must not be used
  bool is_of_other_compiler = false;  // there is an entry that a strict cache does not use
};

// The outcome of KernelCache::add: the entry, and what was removed for it.
struct AddedBinary {
  StoreResult stored;
  Removed removed;
};

// The kernels on disk: read-only layers, such as those of a container image, and the user's cache
// above them. A hit in a layer is not copied. Entries of several compilers are side by side; the
// present compiler's is preferred. Safe to use from several threads at once.
class KernelCache {
 public:
  explicit KernelCache(const Config& config);
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  const DiskStore& store() const { return store_; }

  // Finds a binary of the kernel whose key without the compiler is `base`. In the layers, the
  // binaries of all compilers count: an image needs no new kernels for another version of NVRTC. In
  // the user's cache the first use of another compiler's binary is logged, and with
  // LAZYROPE_CACHE_STRICT such a binary is a miss, unless compiling is forbidden or impossible.
  CachedBinary find(const Key& base, const RenderedKernel& rendered, Compiler& compiler) const;

  // Returns the key of the entry that the compiler would fill. Where compiling is forbidden or
  // impossible, it is `base`.
  Key entry_key(const Key& base, Compiler& compiler) const;

  // Writes the binary into the user's cache, and removes what is then too much.
  AddedBinary add(const Key& base, const RenderedKernel& rendered, const Binary& binary) const;

  // Reads the entry of exactly this key from the first layer that has it, or else from the user's
  // cache.
  LoadResult load(const Key& key) const;

 private:
  // One directory, and the index that finds the entries of all compilers.
  struct Directory {
    Directory(std::string path, const FileTrust& trust)
        : store(std::move(path), trust), index(store) {}
    DiskStore store;
    EntryIndex index;
  };

  std::string present_compiler(Compiler& compiler) const;
  CachedBinary find_in_layers(const Key& base, const RenderedKernel& rendered,
                              const std::string& present) const;
  CachedBinary find_in_store(const Key& base, const RenderedKernel& rendered,
                             const std::string& present, bool accepts_others) const;
  // Logs the first use of a binary that another compiler than `present` made.
  void log_other_compiler(LogLevel level, const Binary& binary, const std::string& present) const;

  const CachePolicy policy_;
  const bool is_strict_;
  DiskStore store_;
  EntryIndex index_;
  std::vector<std::unique_ptr<Directory>> layers_;
  mutable CacheBudget budget_;  // counts what find() finds
  mutable std::atomic<bool> told_of_other_compiler_ = false;
};

}  // namespace lazyrope
