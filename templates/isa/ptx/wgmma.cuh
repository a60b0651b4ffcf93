// Asynchronous matrix products of a warpgroup: wgmma.mma_async.m64nNk16. PTX ISA 9.0, "Asynchronous
// Warpgroup Level Matrix Multiply-Accumulate Instructions" (sm_90a). A warpgroup is four warps, the
// first of which has an index divisible by 4. All of them execute the same calls.
#pragma once

#include "isa/wgmma_types.cuh"

namespace lazyrope {

// One thread's elements of D, which is 64 x kColumns. Element i of lane l of warp w is in
//   row     16 w + l / 4 + 8 (i / 2 % 2),
//   column  8 (i / 4) + 2 (l % 4) + i % 2.
// The thread must not access the elements while a product that uses them is in flight.
template <int kColumns>
struct Accumulator {
  static constexpr int kCount = kColumns / 2;

  LAZYROPE_DEVICE float& operator[](int i) { return value[i]; }
  LAZYROPE_DEVICE float operator[](int i) const { return value[i]; }
  // Keeps the compiler from moving computations with these registers across this call. The compiler
  // does not know that the fences and waits of wgmma order these registers.
  LAZYROPE_DEVICE void pin() {
#pragma unroll
    for (int i = 0; i < kCount; i += 4)
      asm volatile(""
                   : "+f"(value[i]), "+f"(value[i + 1]), "+f"(value[i + 2]),
                     "+f"(value[i + 3])::"memory");
  }

  float value[kCount];
};

// One thread's elements of A, which is 64 x 16. Register i of lane l of warp w has
//   row      16 w + l / 4 + 8 (i % 2),
//   columns  2 (l % 4) + 8 (i / 2) and the next one.
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

// wgmma.fence must precede the first product, and any product whose registers the thread has
// accessed since the last fence.
LAZYROPE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

LAZYROPE_DEVICE void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most the kPending latest groups are still in flight.
template <int kPending>
LAZYROPE_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// For each shape, the registers of D: LAZYROPE_D_N is their names in the text of an asm statement,
// LAZYROPE_F_N its list of operands.
#define LAZYROPE_D_8 "%0, %1, %2, %3"
#define LAZYROPE_D_16 LAZYROPE_D_8 ", %4, %5, %6, %7"
#define LAZYROPE_D_32 LAZYROPE_D_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LAZYROPE_D_48 LAZYROPE_D_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LAZYROPE_D_64 \
  LAZYROPE_D_48       \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LAZYROPE_D_72 LAZYROPE_D_64 ", %32, %33, %34, %35"
#define LAZYROPE_D_80 LAZYROPE_D_72 ", %36, %37, %38, %39"
#define LAZYROPE_D_96                        \
  LAZYROPE_D_64                              \
  ", %32, %33, %34, %35, %36, %37, %38, %39" \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define LAZYROPE_D_112 \
  LAZYROPE_D_96        \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define LAZYROPE_D_128                       \
  LAZYROPE_D_96                              \
  ", %48, %49, %50, %51, %52, %53, %54, %55" \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define LAZYROPE_D_160                       \
  LAZYROPE_D_128                             \
  ", %64, %65, %66, %67, %68, %69, %70, %71" \
  ", %72, %73, %74, %75, %76, %77, %78, %79"
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
#define LAZYROPE_F_80 LAZYROPE_F_72, LAZYROPE_F4(36)
#define LAZYROPE_F_96 LAZYROPE_F_64, LAZYROPE_F16(32)
#define LAZYROPE_F_112 LAZYROPE_F_96, LAZYROPE_F4(48), LAZYROPE_F4(52)
#define LAZYROPE_F_128 LAZYROPE_F_96, LAZYROPE_F16(48)
#define LAZYROPE_F_160 LAZYROPE_F_128, LAZYROPE_F16(64)
#define LAZYROPE_F_192 LAZYROPE_F_128, LAZYROPE_F16(64), LAZYROPE_F16(80)
#define LAZYROPE_F_256 LAZYROPE_F_192, LAZYROPE_F16(96), LAZYROPE_F16(112)

#define LAZYROPE_WGMMA(type, columns, operands)                                                   \
  "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" LAZYROPE_D_##columns \
      "}, " operands ";\n\t"
#define LAZYROPE_WGMMA_SHARED(type, columns, adds, tb, ta, a, b) \
  LAZYROPE_WGMMA(type, columns, "%" #a ", %" #b ", " adds ", 1, 1, %" #ta ", %" #tb)
#define LAZYROPE_WGMMA_REGISTERS(type, columns, adds, tb, a0, a1, a2, a3, b) \
  LAZYROPE_WGMMA(type, columns,                                              \
                 "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", " adds ", 1, 1, %" #tb)
#define LAZYROPE_WGMMA_WORDS(i) \
  "r"(a[i].word[0]), "r"(a[i].word[1]), "r"(a[i].word[2]), "r"(a[i].word[3])

// Predicate p says whether the first product is added to D. Predicate q is true, for the second
// one.
#define LAZYROPE_WGMMA_ASM(columns, accumulates, products, ...)                                \
  asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.b32 p, %" #accumulates                        \
               ", 0;\n\tsetp.eq.b32 q, %" #accumulates ", %" #accumulates ";\n\t" products "}" \
               : LAZYROPE_F_##columns                                                          \
               : "r"(static_cast<int32>(accumulate)), "n"(kTransB), __VA_ARGS__                \
               : "memory")
#define LAZYROPE_WGMMA_SHARED_ASM(type, columns, o0, o1, o2, o3, o4, o5, o6)                   \
  if constexpr (kSteps == 1)                                                                   \
    LAZYROPE_WGMMA_ASM(columns, o0, LAZYROPE_WGMMA_SHARED(type, columns, "p", o1, o2, o3, o4), \
                       "n"(kTransA), "l"(a[0].bits), "l"(b[0].bits));                          \
  else                                                                                         \
    LAZYROPE_WGMMA_ASM(columns, o0,                                                            \
                       LAZYROPE_WGMMA_SHARED(type, columns, "p", o1, o2, o3, o4)               \
                           LAZYROPE_WGMMA_SHARED(type, columns, "q", o1, o2, o5, o6),          \
                       "n"(kTransA), "l"(a[0].bits), "l"(b[0].bits), "l"(a[1].bits),           \
                       "l"(b[1].bits))
#define LAZYROPE_WGMMA_REGISTERS_ASM(type, columns, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10,   \
                                     o11)                                                          \
  if constexpr (kSteps == 1)                                                                       \
    LAZYROPE_WGMMA_ASM(columns, o0,                                                                \
                       LAZYROPE_WGMMA_REGISTERS(type, columns, "p", o1, o2, o3, o4, o5, o6),       \
                       LAZYROPE_WGMMA_WORDS(0), "l"(b[0].bits));                                   \
  else                                                                                             \
    LAZYROPE_WGMMA_ASM(columns, o0,                                                                \
                       LAZYROPE_WGMMA_REGISTERS(type, columns, "p", o1, o2, o3, o4, o5, o6)        \
                           LAZYROPE_WGMMA_REGISTERS(type, columns, "q", o1, o7, o8, o9, o10, o11), \
                       LAZYROPE_WGMMA_WORDS(0), "l"(b[0].bits), LAZYROPE_WGMMA_WORDS(1),           \
                       "l"(b[1].bits))

// An asm statement with one or two products of a shape. Two products share a statement because
// every statement returns all of D, which makes compilers slow.
template <int kColumns>
struct WgmmaStatement;

// Each shape is a type of its own, so that an instantiation parses the text of one shape only.
#define LAZYROPE_WGMMA_STATEMENT(columns, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11)        \
  template <>                                                                                      \
  struct WgmmaStatement<columns> {                                                                 \
    template <class T, int kSteps, int kTransA, int kTransB>                                       \
    LAZYROPE_DEVICE static void multiply(Accumulator<columns>& d, const SharedDescriptor* a,       \
                                         const SharedDescriptor* b, bool accumulate) {             \
      if constexpr (T::kIsBf16) {                                                                  \
        LAZYROPE_WGMMA_SHARED_ASM("bf16", columns, o0, o1, o2, o3, o4, o5, o6);                    \
      } else {                                                                                     \
        LAZYROPE_WGMMA_SHARED_ASM("f16", columns, o0, o1, o2, o3, o4, o5, o6);                     \
      }                                                                                            \
    }                                                                                              \
    template <class T, int kSteps, int kTransB>                                                    \
    LAZYROPE_DEVICE static void multiply(Accumulator<columns>& d, const OperandA* a,               \
                                         const SharedDescriptor* b, bool accumulate) {             \
      if constexpr (T::kIsBf16) {                                                                  \
        LAZYROPE_WGMMA_REGISTERS_ASM("bf16", columns, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, \
                                     o11);                                                         \
      } else {                                                                                     \
        LAZYROPE_WGMMA_REGISTERS_ASM("f16", columns, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10,  \
                                     o11);                                                         \
      }                                                                                            \
    }                                                                                              \
  };

// Twelve consecutive operand numbers, the first of which follows those of D.
#define LAZYROPE_OPERANDS_8 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define LAZYROPE_OPERANDS_16 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19
#define LAZYROPE_OPERANDS_32 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27
#define LAZYROPE_OPERANDS_48 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35
#define LAZYROPE_OPERANDS_64 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43
#define LAZYROPE_OPERANDS_72 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47
#define LAZYROPE_OPERANDS_80 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51
#define LAZYROPE_OPERANDS_96 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59
#define LAZYROPE_OPERANDS_112 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67
#define LAZYROPE_OPERANDS_128 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75
#define LAZYROPE_OPERANDS_160 80, 81, 82, 83, 84, 85, 86, 87, 88, 89, 90, 91
#define LAZYROPE_OPERANDS_192 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107
#define LAZYROPE_OPERANDS_256 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139

// A kernel defines this macro with the shapes that it needs, so that compilers parse no others.
#ifndef LAZYROPE_WGMMA_SHAPES
#define LAZYROPE_WGMMA_SHAPES(use)                                                          \
  use(8) use(16) use(32) use(48) use(64) use(72) use(80) use(96) use(112) use(128) use(160) \
      use(192) use(256)
#endif
#define LAZYROPE_APPLY(macro, ...) macro(__VA_ARGS__)
#define LAZYROPE_WGMMA_SHAPE(columns) \
  LAZYROPE_APPLY(LAZYROPE_WGMMA_STATEMENT, columns, LAZYROPE_OPERANDS_##columns)
LAZYROPE_WGMMA_SHAPES(LAZYROPE_WGMMA_SHAPE)

#undef LAZYROPE_WGMMA_SHAPE
#undef LAZYROPE_APPLY
#undef LAZYROPE_WGMMA_STATEMENT
#undef LAZYROPE_WGMMA_REGISTERS_ASM
#undef LAZYROPE_WGMMA_SHARED_ASM
#undef LAZYROPE_WGMMA_ASM
#undef LAZYROPE_WGMMA_WORDS
#undef LAZYROPE_WGMMA_REGISTERS
#undef LAZYROPE_WGMMA_SHARED
#undef LAZYROPE_WGMMA

template <int kSteps>
inline constexpr int kWgmmaTogether = kSteps % 2 == 0 ? 2 : 1;

// Computes D = A[0] B[0] + ... + A[kSteps - 1] B[kSteps - 1], and adds D's old value if
// `accumulate`. A step is one instruction along K: A[i] is 64 x 16, B[i] is 16 x kColumns.
template <class T, int kColumns, Major kMajorA, Major kMajorB, int kSteps>
LAZYROPE_DEVICE void wgmma_m64k16(Accumulator<kColumns>& d, const SharedDescriptor (&a)[kSteps],
                                  const SharedDescriptor (&b)[kSteps], bool accumulate) {
  constexpr int kTogether = kWgmmaTogether<kSteps>;
#pragma unroll
  for (int i = 0; i < kSteps; i += kTogether)
    WgmmaStatement<kColumns>::template multiply<T, kTogether, kMajorA == Major::kMN,
                                                kMajorB == Major::kMN>(d, a + i, b + i,
                                                                       accumulate || i > 0);
}
template <class T, int kColumns, Major kMajorB, int kSteps>
LAZYROPE_DEVICE void wgmma_m64k16(Accumulator<kColumns>& d, const OperandA (&a)[kSteps],
                                  const SharedDescriptor (&b)[kSteps], bool accumulate) {
  constexpr int kTogether = kWgmmaTogether<kSteps>;
#pragma unroll
  for (int i = 0; i < kSteps; i += kTogether)
    WgmmaStatement<kColumns>::template multiply<T, kTogether, kMajorB == Major::kMN>(
        d, a + i, b + i, accumulate || i > 0);
}

}  // namespace lazyrope
