#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "codegen/error.h"
#include "runtime/attention/pool_maps.h"
#include "runtime/emulator/device.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

constexpr std::int64_t kGigabyte = std::int64_t{1} << 30;

AttentionSpec one_head() {
  AttentionSpec spec;
  spec.head_dim = 64;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 1;
  return spec;
}

using Box = std::array<int, kTensorMapDims>;

Box box_of(const TensorMap& map) {
  EmulatedTensorMap emulated;
  std::memcpy(&emulated, &map, sizeof emulated);
  Box box{};
  std::copy(std::begin(emulated.box), std::end(emulated.box), box.begin());
  return box;
}

class PoolMapsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_emulator()) GTEST_SKIP() << "this build has no emulator";
  }

  // Encodes a pool with these strides in bytes. Its memory is never read.
  PoolMaps encode(const AttentionSpec& spec, std::int64_t page_stride, std::int64_t head_stride) {
    KvPool pool{};
    pool.keys = pool.values = memory_.data();
    pool.page_stride = static_cast<decltype(pool.page_stride)>(page_stride);
    pool.slot_stride = 128;
    pool.head_stride = static_cast<decltype(pool.head_stride)>(head_stride);
    return encode_pool(spec, pool, /*pages=*/10, /*page_size=*/16, /*heads=*/1, *emulator_device());
  }

  alignas(128) std::array<std::byte, 128> memory_{};
};

TEST_F(PoolMapsTest, TheLastPanelOfPaddedKeysIsOneStepOfAProduct) {
  AttentionSpec spec = one_head();
  spec.head_dim = 72;
  const PoolMaps maps = encode(spec, 4096, 0);
  EXPECT_EQ(box_of(maps.keys.runs), (Box{64, kOctetSlots, 1, 2, 1}));
  EXPECT_EQ(box_of(maps.keys.smaller), (Box{16, kOctetSlots, 1, 2, 1}));
}

TEST_F(PoolMapsTest, PagesThatAreWholeOctetsApartAreCountedInOctets) {
  const PoolMaps maps = encode(one_head(), 4096, 0);
  EXPECT_EQ(maps.octets_per_page, 4);
  EXPECT_EQ(maps.heads_per_page, 0);
}

// A copy takes half a run if the document ends in the first half.
TEST_F(PoolMapsTest, BoxIsARunOrHalfARun) {
  const PoolMaps maps = encode(one_head(), 4096, 0);
  for (const BoxMaps& boxes : {maps.keys, maps.values}) {
    EXPECT_EQ(box_of(boxes.runs), (Box{64, kOctetSlots, 1, 2, 1}));
    EXPECT_EQ(box_of(boxes.smaller), (Box{64, kOctetSlots, 1, 1, 1}));
  }
}

// Offsets of such pages in chunks of 16 bytes would not fit the int32 of a coordinate.
TEST_F(PoolMapsTest, PagesOfASingleHeadAreCountedAsHeadsHoweverFarApart) {
  const PoolMaps maps = encode(one_head(), 4 * kGigabyte - 1008, 0);
  EXPECT_EQ(maps.octets_per_page, 0);
  EXPECT_EQ(maps.heads_per_page, 1);
}

TEST_F(PoolMapsTest, PagesBeyondTheReachOfCoordinatesAreRefused) {
  AttentionSpec spec = one_head();
  spec.num_kv_heads = 2;
  EXPECT_TRUE(throws<SpecError>([&] { encode(spec, 4 * kGigabyte - 1008, 16); },
                                {"pages are too far apart", "make k_pool and v_pool contiguous"}));
}

}  // namespace
}  // namespace lazyrope
