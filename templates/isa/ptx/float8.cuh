// Elements of 8 bits (e4m3): conversion, and asynchronous matrix products of a warpgroup,
// wgmma.mma_async.m64nNk32. PTX ISA 9.0, "Data Movement and Conversion Instructions: cvt" and
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" (sm_90a).
//
// Both operands of a product are K-major, because 8-bit operands cannot be transposed. One step
// along K is 32 elements, as many bytes as the 16 elements of m64nNk16. So the layouts, the
// descriptors and the accumulators are those of isa/wgmma.cuh. Register i of OperandA of lane l of
// warp w has
//   row      16 w + l / 4 + 8 (i % 2),
//   columns  4 (l % 4) + 16 (i / 2) to 4 (l % 4) + 16 (i / 2) + 3, the first in the low byte.
#pragma once

#include "isa/wgmma.cuh"

namespace lazyrope {

// Rounds four floats to nearest even and packs them into one register, `a` in the low byte. Numbers
// beyond the largest one, 448, become the largest one; NaN stays NaN. Two instructions.
LAZYROPE_DEVICE uint32 cvt_rn_satfinite_e4m3x2_f32(float a, float b, float c, float d) {
  uint32 y;
  asm("{\n\t.reg .b16 low, high;\n\tcvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n\t"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n\tmov.b32 %0, {low, high};\n\t}"
      : "=r"(y)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return y;
}

template <int kColumns>
struct Float8Statement;

// Each shape is a type of its own, so that an instantiation parses the text of one shape only.
#define LAZYROPE_FLOAT8_TEXT(columns, o0, operands)    \
  "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #o0         \
  ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #columns \
  "k32.f32.e4m3.e4m3 "                                 \
  "{" LAZYROPE_D_##columns "}, " operands ", p, 1, 1;\n\t}"
#define LAZYROPE_FLOAT8_STATEMENT(columns, o0, o1, o2, o3, o4, o5, ...)                          \
  template <>                                                                                    \
  struct Float8Statement<columns> {                                                              \
    LAZYROPE_DEVICE static void multiply(Accumulator<columns>& d, SharedDescriptor a,            \
                                         SharedDescriptor b, bool accumulate) {                  \
      asm volatile(LAZYROPE_FLOAT8_TEXT(columns, o0, "%" #o1 ", %" #o2)                          \
                   : LAZYROPE_F_##columns                                                        \
                   : "r"(static_cast<int32>(accumulate)), "l"(a.bits), "l"(b.bits)               \
                   : "memory");                                                                  \
    }                                                                                            \
    LAZYROPE_DEVICE static void multiply(Accumulator<columns>& d, const OperandA& a,             \
                                         SharedDescriptor b, bool accumulate) {                  \
      asm volatile(                                                                              \
          LAZYROPE_FLOAT8_TEXT(columns, o0, "{%" #o1 ", %" #o2 ", %" #o3 ", %" #o4 "}, %" #o5)   \
          : LAZYROPE_F_##columns                                                                 \
          : "r"(static_cast<int32>(accumulate)), "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), \
            "r"(a.word[3]), "l"(b.bits)                                                          \
          : "memory");                                                                           \
    }                                                                                            \
  };
#define LAZYROPE_APPLY(macro, ...) macro(__VA_ARGS__)
#define LAZYROPE_FLOAT8_SHAPE(columns) \
  LAZYROPE_APPLY(LAZYROPE_FLOAT8_STATEMENT, columns, LAZYROPE_OPERANDS_##columns)
LAZYROPE_WGMMA_SHAPES(LAZYROPE_FLOAT8_SHAPE)

#undef LAZYROPE_FLOAT8_SHAPE
#undef LAZYROPE_APPLY
#undef LAZYROPE_FLOAT8_STATEMENT
#undef LAZYROPE_FLOAT8_TEXT

// Computes D = A[0] B[0] + ... + A[kSteps - 1] B[kSteps - 1], and adds D's old value if
// `accumulate`. A step is one instruction along K: A[i] is 64 x 32, B[i] is 32 x kColumns.
template <int kColumns, int kSteps>
LAZYROPE_DEVICE void wgmma_m64k32(Accumulator<kColumns>& d, const SharedDescriptor (&a)[kSteps],
                                  const SharedDescriptor (&b)[kSteps], bool accumulate) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    Float8Statement<kColumns>::multiply(d, a[i], b[i], accumulate || i > 0);
}
template <int kColumns, int kSteps>
LAZYROPE_DEVICE void wgmma_m64k32(Accumulator<kColumns>& d, const OperandA (&a)[kSteps],
                                  const SharedDescriptor (&b)[kSteps], bool accumulate) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    Float8Statement<kColumns>::multiply(d, a[i], b[i], accumulate || i > 0);
}

}  // namespace lazyrope
