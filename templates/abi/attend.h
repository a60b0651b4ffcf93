// Launch parameters of the attend kernel. All strides are in bytes.
#pragma once

#include "abi/step.h"

namespace lazyrope {

struct TokenTensor {  // [tokens, heads, head_dim], last dimension contiguous
  const void* data;
  int64 token_stride;
  int64 head_stride;
};

struct KvPool {  // pages of keys and of values: NHD or HND, told apart by the strides, which both
                 // share
  void* keys;
  void* values;
  const float* key_scales;    // what stored keys are to be multiplied by: one, or one a head by a
  const float* value_scales;  // stride of 4; null: 1
  uint32 page_stride;
  uint32 slot_stride;
  uint32 head_stride;
  uint32 key_scale_stride;
  uint32 value_scale_stride;
  uint32 unused;
};

struct OutputTensor {
  void* data;
  int64 token_stride;
  int64 head_stride;
};

struct LseTensor {  // fp32, natural logarithm; data may be null
  float* data;
  int64 token_stride;
  int64 head_stride;
};

struct AttendParams {
  TokenTensor q;
  KvPool pool;
  OutputTensor out;
  LseTensor lse;
  const float* sinks;  // [heads], natural logarithms; null where the kernel takes none
  StepView step;
  WorkView work;
  float scale_log2;  // softmax scale times log2(e)
  uint32 unused;
};
static_assert(sizeof(AttendParams) == 24 + 56 + 24 + 24 + 8 + 24 + 48 + 8);

}  // namespace lazyrope
