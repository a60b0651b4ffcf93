// wgmma in host C++. Beyond what hardware does, the emulator refuses:
// - accesses to the registers, and writes to the operands in shared memory, of a product in flight;
// - registers that were accessed since the thread's last wgmma.fence;
// - operands that a thread has stored without a proxy fence since;
// - invalid descriptors, and lanes of a warpgroup that give different ones;
// - registers that go out of scope while a product in flight uses them.
#pragma once

#include "isa/wgmma_types.cuh"

namespace lazyrope {

// A register index and the line of device text that uses it.
struct RegisterIndex {
  constexpr RegisterIndex(int32 index, Site at = here()) : value(index), site(at) {}
  int32 value;
  Site site;
};

// The registers of an accumulator or of operand A. An access while a product in flight uses them is
// an error.
template <class T, int kRegisters>
class Fragment {
 public:
  static constexpr int kCount = kRegisters;

  Fragment() { touch(); }
  Fragment(const Fragment& other) { *this = other; }
  Fragment& operator=(const Fragment& other) {
    other.pin();
    pin();
    touch();
    __builtin_memcpy(value_, other.value_, sizeof value_);
    return *this;
  }
  ~Fragment() {
    if (registers_.in_flight != 0) emulator->abandon_registers(registers_);
  }

  T& operator[](RegisterIndex i) { return at(i); }
  T operator[](RegisterIndex i) const { return at(i); }
  void pin(Site site = here()) const {
    if (registers_.in_flight != 0) emulator->refuse_registers(registers_, 0, site);
  }

  // Used by the wrappers below.
  T* data() const { return value_; }
  EmulatedRegisters* registers() const { return &registers_; }

 private:
  T& at(RegisterIndex i) const {
    if (registers_.in_flight != 0 || i.value < 0 || i.value >= kCount)
      emulator->refuse_registers(registers_, i.value, i.site);
    touch();
    return value_[i.value];
  }
  void touch() const { registers_.touched = emulator->thread->wgmma_fences; }

  mutable T value_[kCount];
  mutable EmulatedRegisters registers_;
};

template <int kColumns>
struct Accumulator : Fragment<float, kColumns / 2> {};
using OperandA = Fragment<uint32, 4>;

inline SharedDescriptor shared_descriptor(SharedPtr start, int32 leading_bytes, int32 stride_bytes,
                                          Swizzle swizzle, Site site = here()) {
  emulator->check_descriptor(start.address, leading_bytes, stride_bytes, site);
  return {descriptor_bits(start.address, leading_bytes, stride_bytes, swizzle)};
}

inline void wgmma_fence(Site site = here()) { emulator->wgmma_fence(site); }
inline void wgmma_commit_group(Site site = here()) { emulator->wgmma_commit_group(site); }
template <int kPending>
inline void wgmma_wait_group(Site site = here()) {
  emulator->wgmma_wait_group(kPending, site);
}

template <class T>
inline constexpr EmulatedElement kWgmmaElement =
    T::kIsBf16 ? EmulatedElement::kBf16 : EmulatedElement::kFp16;

template <class T, int kColumns, Major kMajorA, Major kMajorB, int kSteps>
inline void wgmma_m64k16(Accumulator<kColumns>& d, const SharedDescriptor (&a)[kSteps],
                         const SharedDescriptor (&b)[kSteps], bool accumulate, Site site = here()) {
  static_assert(kIsWgmmaShape<kColumns>);
  for (int i = 0; i < kSteps; ++i)
    emulator->wgmma(
        {kWgmmaElement<T>, kColumns, accumulate || i > 0, kMajorA == Major::kMN,
         kMajorB == Major::kMN, a[i].bits, b[i].bits, d.data(), nullptr, d.registers(), nullptr},
        site);
}
template <class T, int kColumns, Major kMajorB, int kSteps>
inline void wgmma_m64k16(Accumulator<kColumns>& d, const OperandA (&a)[kSteps],
                         const SharedDescriptor (&b)[kSteps], bool accumulate, Site site = here()) {
  static_assert(kIsWgmmaShape<kColumns>);
  for (int i = 0; i < kSteps; ++i)
    emulator->wgmma({kWgmmaElement<T>, kColumns, accumulate || i > 0, false, kMajorB == Major::kMN,
                     0, b[i].bits, d.data(), a[i].data(), d.registers(), a[i].registers()},
                    site);
}

}  // namespace lazyrope
