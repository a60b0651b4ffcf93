#include "runtime/engine/entry_index.h"

#include <algorithm>
#include <system_error>

#include "cache/error.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

// The time of a directory's last change may be as coarse as that on some file systems.
constexpr std::chrono::seconds kCoarsest{2};

}  // namespace

std::vector<Key> EntryIndex::find(const Key& base) const {
  Index& index = index_.get();
  const std::lock_guard lock(index.mutex);
  if (!is_current(index)) build(index);
  const auto found = index.keys.find(base.hex());
  return found == index.keys.end() ? std::vector<Key>{} : found->second;
}

bool EntryIndex::is_current(const Index& index) const {
  std::error_code failed;
  const Time changed = fs::last_write_time(store_.root(), failed);
  return !failed && index.built != Time::min() && changed < index.built - kCoarsest;
}

void EntryIndex::build(Index& index) const {
  index.built = Time::clock::now();
  index.keys.clear();
  try {
    for (Key& key : store_.keys()) {
      if (key.fields().size() < 2) continue;
      std::vector<Key>& keys = index.keys[key.without(kCompilerField).hex()];
      keys.push_back(std::move(key));
    }
  } catch (const CacheError&) {
    return;  // a directory that cannot be read has no entries to use
  }
  for (auto& [base, keys] : index.keys) std::ranges::sort(keys, {}, &Key::hex);
}

}  // namespace lazyrope
