// Integer types shared by host and device text. NVRTC has no <cstdint>.
#pragma once

namespace lazyrope {

using int8 = signed char;
using int16 = short;
using int32 = int;
using int64 = long long;
using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;

static_assert(sizeof(int16) == 2 && sizeof(int32) == 4 && sizeof(int64) == 8);
static_assert(sizeof(void*) == 8, "lazyrope passes 64-bit pointers to its kernels");

}  // namespace lazyrope
