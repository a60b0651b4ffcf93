#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "cache/entry.h"
#include "codegen/render.h"
#include "runtime/driver/binary.h"

namespace lazyrope {

// Returns the facts that name what a kernel was rendered from: the spec, the config, a digest of
// the templates, and lazyrope's version. A miss is explained by them (DiskStore::nearest).
KeyFields origin_facts(const RenderedKernel& rendered);

// Returns the cache entry of a binary, with these facts besides those that binary_of() reads.
Entry entry_of(const Binary& binary, const KeyFields& origin = {});

// Returns the binary of an entry. Throws CacheError if a fact is missing or has the wrong type.
Binary binary_of(Entry entry);

// Counts the good entries of GPU kernels that another NVRTC than `present` compiled (a
// Binary::compiler). There are none if `present` is empty.
std::ptrdiff_t kernels_of_other_nvrtc(const std::vector<ListedEntry>& entries,
                                      const std::string& present);

}  // namespace lazyrope
