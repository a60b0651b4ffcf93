#include "runtime/engine/kernel_cache.h"

#include <fmt/format.h>

#include <utility>

#include "cache/error.h"
#include "runtime/base/log.h"
#include "runtime/engine/kernel_entry.h"
#include "runtime/engine/shared_code.h"

namespace lazyrope {
namespace {

// Throws CacheError if a cached binary is for another launch or cannot take the kernel's table. The
// key of an entry does not cover threads and shared memory.
void check_fits(const RenderedKernel& rendered, const Binary& binary) {
  if (binary.entry != rendered.entry || binary.threads != rendered.threads ||
      binary.shared_bytes != rendered.shared_bytes)
    throw CacheError(
        fmt::format("it is for a launch of {} by {} threads with {} bytes of shared "
                    "memory, not of {} by {} with {}",
                    binary.entry, binary.threads, binary.shared_bytes, rendered.entry,
                    rendered.threads, rendered.shared_bytes));
  if (!has_placeholder(rendered, binary.code))
    throw CacheError("its code has no place for a RoPE table");
}

CachedBinary cached_binary(LoadResult loaded, const Key& key, const RenderedKernel& rendered) {
  CachedBinary found = {.entry_key = key.hex(),
                        .miss_reason = std::move(loaded.miss_reason),
                        .refused = loaded.refused};
  if (!loaded.entry) return found;
  try {
    Binary binary = binary_of(std::move(*loaded.entry));
    check_fits(rendered, binary);
    found.binary = std::move(binary);
  } catch (const CacheError& error) {
    found.miss_reason = error.what();
    found.refused = true;
  }
  return found;
}

// Calls use(key) for the present compiler's entry, and then for the entries of other compilers,
// until one has a binary. Returns that one, or else the first miss that says more than "absent".
template <class Use>
CachedBinary first_usable(const Key& base, const std::string& present, const EntryIndex& index,
                          const Use& use) {
  CachedBinary miss = {.miss_reason = "absent"};
  const auto is_found = [&](const Key& key) {
    CachedBinary cached = use(key);
    const bool says_more = cached.refused || cached.is_of_other_compiler;
    if (cached.binary || (says_more && !miss.refused)) miss = std::move(cached);
    return miss.binary.has_value();
  };
  if (!present.empty() && is_found(base.with(kCompilerField, present))) return miss;
  for (const Key& key : index.find(base))
    if (is_found(key)) break;
  return miss;
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
  CachedBinary miss = {.miss_reason = "absent"};
  for (const auto& layer : layers_) {
    CachedBinary cached = first_usable(base, present, layer->index, [&](const Key& key) {
      return cached_binary(layer->store.read(key), key, rendered);
    });
    if (cached.binary) {
      log_other_compiler(LogLevel::kInfo, *cached.binary, present);
      return cached;
    }
    if (!miss.refused) miss = std::move(cached);
  }
  return miss;
}

CachedBinary KernelCache::find_in_store(const Key& base, const RenderedKernel& rendered,
                                        const std::string& present, bool accepts_others) const {
  CachedBinary cached = first_usable(base, present, index_, [&](const Key& key) {
    LoadResult loaded = store_.load(key);
    const std::uint64_t bytes = loaded.bytes;
    CachedBinary found = cached_binary(std::move(loaded), key, rendered);
    if (!found.binary) return found;
    if (!accepts_others && found.binary->compiler != present)
      return CachedBinary{
          .entry_key = key.hex(),
          .miss_reason = fmt::format("it was compiled by {}, and the compiler here is {}",
                                     found.binary->compiler, present),
          .is_of_other_compiler = true};
    budget_.note_use(key.hex(), found.binary->entry, bytes);
    return found;
  });
  if (cached.binary) log_other_compiler(LogLevel::kWarning, *cached.binary, present);
  return cached;
}

void KernelCache::log_other_compiler(LogLevel level, const Binary& binary,
                                     const std::string& present) const {
  if (present.empty() || binary.compiler == present || told_of_other_compiler_.exchange(true))
    return;
  log_message(
      level,
      "{} is used as {} compiled it, although the compiler here is {}. Further such kernels "
      "are not logged. LAZYROPE_CACHE_STRICT=1 compiles those of the user's cache again",
      binary.entry, binary.compiler, present);
}

LoadResult KernelCache::load(const Key& key) const {
  for (const auto& layer : layers_)
    if (LoadResult loaded = layer->store.read(key); loaded.entry) return loaded;
  return store_.load(key);
}

AddedBinary KernelCache::add(const Key& base, const RenderedKernel& rendered,
                             const Binary& binary) const {
  const Key key = base.with(kCompilerField, binary.compiler);
  StoreResult stored = store_.store(key, entry_of(binary, origin_facts(rendered)));
  if (stored.stored) budget_.note_use(key.hex(), binary.entry, stored.bytes);
  return {std::move(stored), budget_.enforce(store_)};
}

}  // namespace lazyrope
