// Loads, stores and ldmatrix in host C++. The emulator checks bounds and alignment. It refuses
// reads of shared memory that was never written, writes to read-only tensors, and non-coherent
// loads of memory that the launch has written. If asked to, it also reports races.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

// A byte address in the CTA's shared memory.
struct SharedPtr {
  uint32 address;
};

inline SharedPtr operator+(SharedPtr p, int32 bytes) {
  return {p.address + static_cast<uint32>(bytes)};
}
inline SharedPtr operator^(SharedPtr p, int32 bits) {
  return {p.address ^ static_cast<uint32>(bits)};
}
inline bool operator==(SharedPtr p, SharedPtr q) { return p.address == q.address; }

inline SharedPtr dynamic_shared_memory() { return {0}; }

template <class T>
inline T ld_shared(SharedPtr p, Site site = here()) {
  T value;
  emulator->ld_shared(&value, p.address, sizeof(T), site);
  return value;
}
template <class T>
inline void st_shared(SharedPtr p, T value, Site site = here()) {
  emulator->st_shared(p.address, &value, sizeof(T), site);
}
template <class T>
inline T ld_global_nc(const T* p, Site site = here()) {
  T value;
  emulator->ld_global(EmulatedLoad::kNonCoherent, &value, p, sizeof(T), site);
  return value;
}
inline void prefetch_global_l2(const void*) {}

template <class T>
inline T ld_global(const T* p, Site site = here()) {
  T value;
  emulator->ld_global(EmulatedLoad::kPlain, &value, p, sizeof(T), site);
  return value;
}
template <class T>
inline void st_global(T* p, T value, Site site = here()) {
  emulator->st_global(p, &value, sizeof(T), site);
}

// A generic address. Addresses below 2^32 are in shared memory, all others in global memory.
struct GenericPtr {
  uint64 address;
};

inline GenericPtr operator+(GenericPtr p, int64 bytes) {
  return {p.address + static_cast<uint64>(bytes)};
}
inline GenericPtr generic(SharedPtr p) { return {p.address}; }
inline GenericPtr generic(void* global) { return {reinterpret_cast<uint64>(global)}; }
inline bool is_shared(GenericPtr p) { return p.address >> 32 == 0; }

template <class T>
inline T ld_generic(GenericPtr p, Site site = here()) {
  if (is_shared(p)) return ld_shared<T>({static_cast<uint32>(p.address)}, site);
  return ld_global(reinterpret_cast<const T*>(p.address), site);
}
template <class T>
inline void st_generic(GenericPtr p, T value, Site site = here()) {
  if (is_shared(p)) return st_shared(SharedPtr{static_cast<uint32>(p.address)}, value, site);
  st_global(reinterpret_cast<T*>(p.address), value, site);
}

inline void ldmatrix_x4(uint32 (&r)[4], SharedPtr p, Site site = here()) {
  emulator->ldmatrix_x4(r, p.address, /*transposed=*/false, site);
}
inline void ldmatrix_x4_trans(uint32 (&r)[4], SharedPtr p, Site site = here()) {
  emulator->ldmatrix_x4(r, p.address, /*transposed=*/true, site);
}

}  // namespace lazyrope
