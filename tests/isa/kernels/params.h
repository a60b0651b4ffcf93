// Launch parameters of the conformance kernels, for host and device text.
#pragma once

#include "abi/tensor_map.h"
#include "abi/types.h"

namespace lazyrope {

// Selects a function of a conformance kernel that has several.
enum class Case : int32 {
  kOnly,
  // math.cuh
  kEx2,
  kLg2,
  kRcp,
  kSin,
  kCos,
  kMax,
  kMaxU16,
  kPermute,
  kBits,
  kToBf16,
  kToF16,
  kFromBf16,
  kFromF16,
  kFmaBf16,
  kFmaF16,
  // matrix.cuh
  kLdmatrix,
  kLdmatrixTrans,
  kMmaBf16,
  kMmaF16,
  // memory.cuh
  kShared,
  kGeneric,
  kGlobal,
  kCopy16,
  kCopy16WholeLines,
  kCopy4,
  // warp.cuh
  kShfl,
  kVote,
  kWarpBarrier,
  // grid.cuh
  kIndices,
  kAtomics,
  kRelaxed,
  kLastCta,
  // mbarrier.cuh
  kPhases,
  kBulkLoad,
  kBulkStore,
  // tensor.cuh
  kTensorLoad,
  kTensorLoadEvictFirst,
  // wgmma.cuh: kWgmmaN has K-major operands; other names give the layouts of A and B
  kWgmma8,
  kWgmma16,
  kWgmma32,
  kWgmma48,
  kWgmma64,
  kWgmma72,
  kWgmma96,
  kWgmma128,
  kWgmma192,
  kWgmma256,
  kWgmmaKMn,
  kWgmmaMnK,
  kWgmmaMnMn,
  kWgmmaRegistersK,
  kWgmmaRegistersMn,
  kWgmmaBeside,
  kWgmmaTwoGroups,
  // hopper.cuh
  kElect,
  kPassOn,
  // float8.cuh
  kToE4m3,
  kFloat8Shared128,
  kFloat8Registers64,
  kFloat8Registers96,
  kFloat8Registers128,
};

struct ConformanceParams {
  uint32* input;   // a copy of the case's input, which a kernel may change
  uint32* output;  // the case's output, of which the kernel writes every word
  Case which;
  int32 count;
  TensorMap map;  // set if the case has a tensor
};

}  // namespace lazyrope
