// Launch parameters of the conformance kernels, for host and device text.
#pragma once

#include "abi/tensor_map.h"
#include "abi/types.h"

namespace lazyrope {

// What a conformance case kernel does, where its text has several.
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
  // wgmma.cuh: N, A and B of K-major operands
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
};

struct ConformanceParams {
  uint32* input;   // of the row's words; a run may change its copy
  uint32* output;  // of the row's words: each is written
  Case which;
  int32 count;
  TensorMap map;  // where the row has one
};

}  // namespace lazyrope
