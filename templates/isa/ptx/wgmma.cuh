// Asynchronous matrix products of a warpgroup. PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix
// Instructions: wgmma" (sm_90a). All four warps, the first of which has an index divisible by 4,
// execute the same.
#pragma once

#include "isa/wgmma_types.cuh"

namespace lazyrope {

// This thread's part of D, 64 x kColumns: lane l of warp w has, of element i, row 16 w + l / 4 +
// 8 (i / 2 % 2) and column 8 (i / 4) + 2 (l % 4) + i % 2. Not to be touched while a product that
// was given it is under way.
template <int kColumns>
struct Accumulator {
  static constexpr int kCount = kColumns / 2;

  LAZYROPE_DEVICE float& operator[](int i) { return value[i]; }
  LAZYROPE_DEVICE float operator[](int i) const { return value[i]; }
  // What is computed with these registers before stays before, what comes after, after: the
  // compiler knows fences and waits, but not what they order.
  LAZYROPE_DEVICE void pin() {
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      asm volatile(""
                   : "+f"(value[i]), "+f"(value[i + 1]), "+f"(value[i + 2]),
                     "+f"(value[i + 3])::"memory");
  }

  float value[kCount];
};

// This thread's part of A, 64 x 16: lane l of warp w has, of register i, row 16 w + l / 4 +
// 8 (i % 2) and columns 2 (l % 4) + 8 (i / 2) and the next.
struct OperandA {
  LAZYROPE_DEVICE uint32& operator[](int i) { return word[i]; }
  LAZYROPE_DEVICE uint32 operator[](int i) const { return word[i]; }
  LAZYROPE_DEVICE void pin() {
    asm volatile("" : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3])::"memory");
  }

  uint32 word[4];
};

LAZYROPE_DEVICE SharedDescriptor shared_descriptor(SharedPtr start, int32 leading_bytes,
                                                   int32 stride_bytes, Swizzle swizzle) {
  return {descriptor_bits(start.address, leading_bytes, stride_bytes, swizzle)};
}

// Before the first product, and where registers of one have been touched since.
LAZYROPE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

LAZYROPE_DEVICE void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending of the latest groups are still under way.
template <int kPending>
LAZYROPE_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The registers of D of each shape: as an asm statement names them, and as it takes them.
#define LAZYROPE_D_8 "%0, %1, %2, %3"
#define LAZYROPE_D_16 LAZYROPE_D_8 ", %4, %5, %6, %7"
#define LAZYROPE_D_32 LAZYROPE_D_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LAZYROPE_D_48 LAZYROPE_D_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LAZYROPE_D_64 \
  LAZYROPE_D_48       \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LAZYROPE_D_72 LAZYROPE_D_64 ", %32, %33, %34, %35"
#define LAZYROPE_D_96                        \
  LAZYROPE_D_64                              \
  ", %32, %33, %34, %35, %36, %37, %38, %39" \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define LAZYROPE_D_128                       \
  LAZYROPE_D_96                              \
  ", %48, %49, %50, %51, %52, %53, %54, %55" \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define LAZYROPE_D_192                       \
  LAZYROPE_D_128                             \
  ", %64, %65, %66, %67, %68, %69, %70, %71" \
  ", %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87" \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define LAZYROPE_D_256                               \
  LAZYROPE_D_192                                     \
  ", %96, %97, %98, %99, %100, %101, %102, %103"     \
  ", %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119" \
  ", %120, %121, %122, %123, %124, %125, %126, %127"

#define LAZYROPE_F4(i) \
  "+f"(d.value[i]), "+f"(d.value[i + 1]), "+f"(d.value[i + 2]), "+f"(d.value[i + 3])
#define LAZYROPE_F16(i) LAZYROPE_F4(i), LAZYROPE_F4(i + 4), LAZYROPE_F4(i + 8), LAZYROPE_F4(i + 12)
#define LAZYROPE_F_8 LAZYROPE_F4(0)
#define LAZYROPE_F_16 LAZYROPE_F_8, LAZYROPE_F4(4)
#define LAZYROPE_F_32 LAZYROPE_F16(0)
#define LAZYROPE_F_48 LAZYROPE_F_32, LAZYROPE_F4(16), LAZYROPE_F4(20)
#define LAZYROPE_F_64 LAZYROPE_F_32, LAZYROPE_F16(16)
#define LAZYROPE_F_72 LAZYROPE_F_64, LAZYROPE_F4(32)
#define LAZYROPE_F_96 LAZYROPE_F_64, LAZYROPE_F16(32)
#define LAZYROPE_F_128 LAZYROPE_F_96, LAZYROPE_F16(48)
#define LAZYROPE_F_192 LAZYROPE_F_128, LAZYROPE_F16(64), LAZYROPE_F16(80)
#define LAZYROPE_F_256 LAZYROPE_F_192, LAZYROPE_F16(96), LAZYROPE_F16(112)

// A shape, and seven numbers from that of the first operand behind D.
#define LAZYROPE_WGMMA_SHAPES(use, type)         \
  use(type, 8, 4, 5, 6, 7, 8, 9, 10);            \
  use(type, 16, 8, 9, 10, 11, 12, 13, 14);       \
  use(type, 32, 16, 17, 18, 19, 20, 21, 22);     \
  use(type, 48, 24, 25, 26, 27, 28, 29, 30);     \
  use(type, 64, 32, 33, 34, 35, 36, 37, 38);     \
  use(type, 72, 36, 37, 38, 39, 40, 41, 42);     \
  use(type, 96, 48, 49, 50, 51, 52, 53, 54);     \
  use(type, 128, 64, 65, 66, 67, 68, 69, 70);    \
  use(type, 192, 96, 97, 98, 99, 100, 101, 102); \
  use(type, 256, 128, 129, 130, 131, 132, 133, 134)

#define LAZYROPE_WGMMA(type, columns, accumulate, operands)                     \
  "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #accumulate                          \
  ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type \
  " {" LAZYROPE_D_##columns "}, " operands ";\n\t}"

#define LAZYROPE_WGMMA_SHARED(type, columns, o0, o1, o2, o3, o4, o5, o6)                         \
  if constexpr (kColumns == columns)                                                             \
  asm volatile(LAZYROPE_WGMMA(type, columns, o2, "%" #o0 ", %" #o1 ", p, 1, 1, %" #o3 ", %" #o4) \
               : LAZYROPE_F_##columns                                                            \
               : "l"(a.bits), "l"(b.bits), "r"(static_cast<int32>(accumulate)), "n"(kTransA),    \
                 "n"(kTransB)                                                                    \
               : "memory")

#define LAZYROPE_WGMMA_REGISTERS(type, columns, o0, o1, o2, o3, o4, o5, o6)                \
  if constexpr (kColumns == columns)                                                       \
  asm volatile(                                                                            \
      LAZYROPE_WGMMA(type, columns, o5,                                                    \
                     "{%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", p, 1, 1, %" #o6) \
      : LAZYROPE_F_##columns                                                               \
      : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "l"(b.bits),       \
        "r"(static_cast<int32>(accumulate)), "n"(kTransB)                                  \
      : "memory")

// D = A B, + D where `accumulate`; A is 64 x 16, B 16 x kColumns.
template <class T, int kColumns, Major kMajorA, Major kMajorB>
LAZYROPE_DEVICE void wgmma_m64k16(Accumulator<kColumns>& d, SharedDescriptor a, SharedDescriptor b,
                                  bool accumulate) {
  static_assert(kIsWgmmaShape<kColumns>);
  constexpr int kTransA = kMajorA == Major::kMN, kTransB = kMajorB == Major::kMN;
  if constexpr (T::kIsBf16) {
    LAZYROPE_WGMMA_SHAPES(LAZYROPE_WGMMA_SHARED, "bf16");
  } else {
    LAZYROPE_WGMMA_SHAPES(LAZYROPE_WGMMA_SHARED, "f16");
  }
}

template <class T, int kColumns, Major kMajorB>
LAZYROPE_DEVICE void wgmma_m64k16(Accumulator<kColumns>& d, const OperandA& a, SharedDescriptor b,
                                  bool accumulate) {
  static_assert(kIsWgmmaShape<kColumns>);
  constexpr int kTransB = kMajorB == Major::kMN;
  if constexpr (T::kIsBf16) {
    LAZYROPE_WGMMA_SHAPES(LAZYROPE_WGMMA_REGISTERS, "bf16");
  } else {
    LAZYROPE_WGMMA_SHAPES(LAZYROPE_WGMMA_REGISTERS, "f16");
  }
}

#undef LAZYROPE_WGMMA_REGISTERS
#undef LAZYROPE_WGMMA_SHARED
#undef LAZYROPE_WGMMA
#undef LAZYROPE_WGMMA_SHAPES

}  // namespace lazyrope
