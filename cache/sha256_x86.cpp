#include "cache/sha256_x86.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#include <bit>

namespace lazyrope {
namespace {

bool cpu_has_sha_instructions() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  const bool has_sse41 = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_SSE4_1) != 0;
  return has_sse41 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & bit_SHA) != 0;
}

__m128i load(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// The SHA instructions take the state as the words {f, e, b, a} and {h, g, d, c}.
[[gnu::target("sha,sse4.1")]] void absorb_blocks(Sha256State& state, const std::byte* blocks,
                                                 std::size_t count,
                                                 const Sha256RoundConstants& constants) {
  const auto [a, b, c, d, e, f, g, h] = std::bit_cast<std::array<int, 8>>(state);
  __m128i abef = _mm_set_epi32(a, b, e, f);
  __m128i cdgh = _mm_set_epi32(c, d, g, h);
  const __m128i to_big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  for (; count != 0; --count, blocks += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];  // the last 16 words of the message schedule
#pragma GCC unroll 16
    for (std::size_t i = 0; i < 16; ++i) {
      __m128i& next = w[i % 4];
      if (i < 4) {
        next = _mm_shuffle_epi8(load(blocks + 16 * i), to_big_endian);
      } else {
        const __m128i last = w[(i + 3) % 4];
        const __m128i seven_ago = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        next = _mm_add_epi32(_mm_sha256msg1_epu32(next, w[(i + 1) % 4]), seven_ago);
        next = _mm_sha256msg2_epu32(next, last);
      }
      const __m128i sum = _mm_add_epi32(next, load(constants.data() + 4 * i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const auto [f1, e1, b1, a1] = std::bit_cast<std::array<std::uint32_t, 4>>(abef);
  const auto [h1, g1, d1, c1] = std::bit_cast<std::array<std::uint32_t, 4>>(cdgh);
  state = {a1, b1, c1, d1, e1, f1, g1, h1};
}

}  // namespace

Sha256AbsorbBlocks sha256_x86_instructions() {
  return cpu_has_sha_instructions() ? absorb_blocks : nullptr;
}

}  // namespace lazyrope

#else

namespace lazyrope {

Sha256AbsorbBlocks sha256_x86_instructions() { return nullptr; }

}  // namespace lazyrope

#endif
