#include "runtime/engine/kernel_cache.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "cache/error.h"
#include "runtime/base/log.h"
#include "runtime/engine/kernel_entry.h"

namespace lazyrope {
namespace {

constinit std::atomic<bool> told_of_other_compiler = false;

// Throws CacheError if a cached binary is for another launch. The key of an entry does not cover
// threads and shared memory.
void check_launch(const RenderedKernel& rendered, const Binary& binary) {
  if (binary.entry != rendered.entry || binary.threads != rendered.threads ||
      binary.shared_bytes != rendered.shared_bytes)
    throw CacheError(
        fmt::format("it is for a launch of {} by {} threads with {} bytes of shared "
                    "memory, not of {} by {} with {}",
                    binary.entry, binary.threads, binary.shared_bytes, rendered.entry,
                    rendered.threads, rendered.shared_bytes));
}

CachedBinary cached_binary(LoadResult loaded, const Key& key, const RenderedKernel& rendered) {
  CachedBinary found = {.entry_key = key.hex(),
                        .miss_reason = std::move(loaded.miss_reason),
                        .refused = loaded.refused};
  if (!loaded.entry) return found;
  try {
    Binary binary = binary_of(std::move(*loaded.entry));
    check_launch(rendered, binary);
    found.binary = std::move(binary);
  } catch (const CacheError& error) {
    found.miss_reason = error.what();
    found.refused = true;
  }
  return found;
}

void log_other_compiler(LogLevel level, const Binary& binary, const std::string& present) {
  if (present.empty() || binary.compiler == present || told_of_other_compiler.exchange(true))
    return;
  log_message(
      level,
      "{} is used as {} compiled it, although the compiler here is {}. Further such kernels "
      "are not logged. LAZYROPE_CACHE_STRICT=1 compiles those of the user's cache again",
      binary.entry, binary.compiler, present);
}

}  // namespace

KernelCache::KernelCache(const Config& config)
    : policy_(config.policy),
      is_strict_(config.cache_strict),
      store_(config.cache_dir, config.cache_trust),
      index_(store_),
      budget_(config.cache_max_bytes) {
  for (const std::string& path : config.cache_layers)
    layers_.push_back(std::make_unique<Directory>(path, config.cache_trust));
}

// Where compiling is forbidden, NVRTC is not even looked for.
std::string KernelCache::present_compiler(Compiler& compiler) const {
  return policy_ == CachePolicy::kJit ? compiler.identity() : std::string();
}

Key KernelCache::entry_key(const Key& base, Compiler& compiler) const {
  const std::string present = present_compiler(compiler);
  return present.empty() ? base : base.with(kCompilerField, present);
}

CachedBinary KernelCache::find(const Key& base, const RenderedKernel& rendered,
                               Compiler& compiler) const {
  const std::string present = present_compiler(compiler);
  CachedBinary found = find_in_layers(base, rendered, present);
  if (found.binary) return found;
  const bool accepts_others = present.empty() || (compiler.accepts_others() && !is_strict_);
  CachedBinary own = find_in_store(base, rendered, present, accepts_others);
  return own.binary || own.refused || !found.refused ? own : found;
}

CachedBinary KernelCache::find_in_layers(const Key& base, const RenderedKernel& rendered,
                                         const std::string& present) const {
  CachedBinary first_miss = {.miss_reason = "absent"};
  for (const auto& layer : layers_) {
    std::vector<Key> keys = layer->index.find(base);
    if (!present.empty()) keys.insert(keys.begin(), base.with(kCompilerField, present));
    for (const Key& key : keys) {
      CachedBinary found = cached_binary(layer->store.read(key), key, rendered);
      if (found.binary) {
        log_other_compiler(LogLevel::kInfo, *found.binary, present);
        return found;
      }
      if (found.refused && !first_miss.refused) first_miss = std::move(found);
    }
  }
  return first_miss;
}

CachedBinary KernelCache::find_in_store(const Key& base, const RenderedKernel& rendered,
                                        const std::string& present, bool accepts_others) const {
  CachedBinary miss = {.miss_reason = "absent"};
  const auto try_key = [&](const Key& key) {
    LoadResult loaded = store_.load(key);
    const std::uint64_t bytes = loaded.bytes;
    CachedBinary found = cached_binary(std::move(loaded), key, rendered);
    if (found.binary && !accepts_others && found.binary->compiler != present) {
      found = {.entry_key = key.hex(),
               .miss_reason = fmt::format("it was compiled by {}, and the compiler here is {}",
                                          found.binary->compiler, present),
               .is_of_other_compiler = true};
    }
    if (found.binary) note_use(found, bytes);
    return found;
  };
  if (!present.empty()) {
    CachedBinary found = try_key(base.with(kCompilerField, present));
    if (found.binary) return found;
    if (found.refused) miss = std::move(found);
  }
  for (const Key& key : index_.find(base)) {
    CachedBinary found = try_key(key);
    if (found.binary) {
      log_other_compiler(LogLevel::kWarning, *found.binary, present);
      return found;
    }
    if (!miss.refused && (found.refused || found.is_of_other_compiler)) miss = std::move(found);
  }
  return miss;
}

LoadResult KernelCache::load(const Key& key) const {
  for (const auto& layer : layers_)
    if (LoadResult loaded = layer->store.read(key); loaded.entry) return loaded;
  return store_.load(key);
}

void KernelCache::note_use(const CachedBinary& found, std::uint64_t bytes) const {
  budget_.note_use(found.entry_key, found.binary.value().entry, bytes);
}

AddedBinary KernelCache::add(const Key& base, const RenderedKernel& rendered,
                             const Binary& binary) const {
  const Key key = base.with(kCompilerField, binary.compiler);
  StoreResult stored = store_.store(key, entry_of(binary, &rendered));
  if (stored.stored) budget_.note_use(key.hex(), binary.entry, stored.bytes);
  return {std::move(stored), budget_.enforce(store_)};
}

}  // namespace lazyrope
