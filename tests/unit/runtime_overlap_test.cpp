#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "runtime/base/overlap.h"

namespace lazyrope {
namespace {

constexpr std::int64_t kMemory = 4096;  // no view begins after it
constexpr std::int64_t kReach = 20480;  // no view reaches the byte at this offset
std::array<std::byte, kMemory> memory;

TensorView view(ElementType type, std::int64_t offset, const std::vector<std::int64_t>& shape,
                const std::vector<std::int64_t>& strides) {
  TensorView result = make_tensor(memory.data() + offset, type, {}, DeviceType::kCpu);
  result.rank = static_cast<int>(shape.size());
  std::ranges::copy(shape, result.shape.begin());
  std::ranges::copy(strides, result.strides.begin());
  return result;
}

// Calls visit(address of its first byte) for each element.
template <class Visit>
void for_each_element(const TensorView& tensor, const Visit& visit, int dim = 0,
                      std::int64_t at = 0) {
  if (dim == tensor.rank) {
    visit(reinterpret_cast<std::uintptr_t>(tensor.data) +
          static_cast<std::uintptr_t>(at * bytes_of(tensor.type)));
    return;
  }
  const auto i = static_cast<std::size_t>(dim);
  for (std::int64_t x = 0; x < tensor.shape[i]; ++x)
    for_each_element(tensor, visit, dim + 1, at + x * tensor.strides[i]);
}

// Counts for each byte of some memory the elements that have it.
class ByteCounts {
 public:
  explicit ByteCounts(const TensorView& tensor) : counts_(kMemory + kReach) {
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(memory.data()) - kMemory;
    for_each_element(tensor, [&](std::uintptr_t address) {
      for (int byte = 0; byte < bytes_of(tensor.type); ++byte)
        ++counts_.at(address - begin + static_cast<std::size_t>(byte));
    });
  }

  bool share_a_byte(const ByteCounts& other) const {
    for (std::size_t i = 0; i < counts_.size(); ++i)
      if (counts_[i] > 0 && other.counts_[i] > 0) return true;
    return false;
  }

  bool count_a_byte_twice() const {
    return std::ranges::any_of(counts_, [](int count) { return count > 1; });
  }

 private:
  std::vector<int> counts_;
};

// Makes random small views.
class RandomViews {
 public:
  explicit RandomViews(unsigned seed) : random_(seed) {}

  std::int64_t number(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }

  ElementType type() {
    constexpr std::array kTypes = {ElementType::kUint8, ElementType::kBf16, ElementType::kFp32,
                                   ElementType::kInt64};
    return kTypes.at(static_cast<std::size_t>(number(0, 3)));
  }

  // Returns a view with any strides, which may be 0 or negative.
  TensorView any() {
    std::vector<std::int64_t> shape, strides;
    for (std::int64_t rank = number(0, 4); rank > 0; --rank) {
      shape.push_back(number(0, 9) == 0 ? number(0, 1) : number(2, 4));
      strides.push_back(number(-1, 5) <= 0 ? number(-12, 12) : number(1, 30));
    }
    return view(type(), number(0, 160), shape, strides);
  }

  // Returns two views of one tensor: they are cut from each other in a random dimension, or cut
  // with an overlap, and their dimensions are then put in a random order.
  std::pair<TensorView, TensorView> parts() {
    const auto rank = static_cast<std::size_t>(number(1, 5));
    std::vector<std::int64_t> shape(rank), strides(rank);
    std::int64_t stride = 1;
    for (std::size_t i = 0; i < rank; ++i) {
      shape[i] = number(2, 3) + (i == 0 ? 2 : 0);
      strides[i] = stride;
      stride *= shape[i] + (number(0, 3) == 0 ? number(0, 2) : 0);
    }
    const auto cut = static_cast<std::size_t>(number(0, static_cast<std::int64_t>(rank) - 1));
    const std::int64_t begin = number(1, shape[cut] - 1);
    const std::int64_t end = number(0, 3) == 0 ? std::min(begin + 1, shape[cut]) : begin;
    const ElementType element = type();
    const auto part = [&](std::int64_t from, std::int64_t to) {
      std::vector<std::int64_t> extents = shape, steps = strides;
      extents[cut] = to - from;
      for (std::size_t i = rank; i-- > 1;) {
        const auto j = static_cast<std::size_t>(number(0, static_cast<std::int64_t>(i)));
        std::swap(extents[i], extents[j]);
        std::swap(steps[i], steps[j]);
      }
      return view(element, from * strides[cut] * bytes_of(element), extents, steps);
    };
    return {part(0, end), part(begin, shape[cut])};
  }

 private:
  std::mt19937 random_;
};

std::size_t trials() { return std::getenv("LAZYROPE_SOAK") != nullptr ? 200000 : 4000; }

struct Answers {
  std::size_t yes = 0;
  std::size_t all = 0;

  void add(bool answer) {
    yes += answer ? 1 : 0;
    ++all;
  }
  // Returns true if both answers are common, so that neither is right by chance.
  bool are_mixed() const { return yes * 10 > all && yes * 10 < 9 * all; }
};

TEST(Overlap, OfRandomViewsIsThatOfTheirBytes) {
  RandomViews random(1);
  Answers answers;
  for (std::size_t i = 0; i < trials(); ++i) {
    const TensorView a = random.any(), b = random.any();
    const bool expected = ByteCounts(a).share_a_byte(ByteCounts(b));
    answers.add(expected);
    ASSERT_EQ(share_memory(a, b), expected) << describe(a) << "\n" << describe(b) << "\n" << i;
    ASSERT_EQ(share_memory(b, a), expected) << describe(a) << "\n" << describe(b) << "\n" << i;
  }
  EXPECT_TRUE(answers.are_mixed()) << answers.yes << " of " << answers.all;
}

TEST(Overlap, OfTwoPartsOfATensorIsThatOfTheirBytes) {
  RandomViews random(2);
  Answers answers;
  for (std::size_t i = 0; i < trials(); ++i) {
    const auto [a, b] = random.parts();
    const bool expected = ByteCounts(a).share_a_byte(ByteCounts(b));
    answers.add(expected);
    ASSERT_EQ(share_memory(a, b), expected) << describe(a) << "\n" << describe(b) << "\n" << i;
    ASSERT_FALSE(overlaps_itself(a)) << describe(a);
  }
  EXPECT_TRUE(answers.are_mixed()) << answers.yes << " of " << answers.all;
}

TEST(Overlap, OfAViewWithItselfIsThatOfItsBytes) {
  RandomViews random(3);
  Answers answers;
  for (std::size_t i = 0; i < trials(); ++i) {
    const TensorView a = random.any();
    const bool expected = ByteCounts(a).count_a_byte_twice();
    answers.add(expected);
    ASSERT_EQ(overlaps_itself(a), expected) << describe(a);
  }
  EXPECT_TRUE(answers.are_mixed()) << answers.yes << " of " << answers.all;
}

TEST(Overlap, AnEmptyTensorHasNoBytes) {
  const TensorView one = view(ElementType::kFp16, 0, {1}, {1});
  const TensorView none = view(ElementType::kFp16, 0, {4, 0}, {0, 1});
  EXPECT_FALSE(share_memory(one, none));
  EXPECT_FALSE(share_memory(none, one));
  EXPECT_FALSE(overlaps_itself(none));
  EXPECT_TRUE(share_memory(one, one));
  EXPECT_FALSE(overlaps_itself(one));
}

// vLLM stores keys and values of a token side by side: [blocks, heads, tokens, 2 * head_dim].
TEST(Overlap, IsDecidedForThePoolsOfEngines) {
  constexpr std::int64_t kBlocks = 100000, kHeads = 8, kTokens = 16, kDim = 128;
  constexpr std::int64_t kToken = 2 * kDim, kHead = kTokens * kToken, kBlock = kHeads * kHead;
  const std::vector<std::int64_t> shape = {kBlocks, kTokens, kHeads, kDim};
  const std::vector<std::int64_t> strides = {kBlock, kToken, kHead, 1};
  const TensorView keys = view(ElementType::kBf16, 0, shape, strides);
  EXPECT_FALSE(share_memory(keys, view(ElementType::kBf16, 2 * kDim, shape, strides)));
  EXPECT_TRUE(share_memory(keys, view(ElementType::kBf16, 2 * kDim - 2, shape, strides)));
  EXPECT_TRUE(share_memory(keys, view(ElementType::kBf16, 2 * kDim + 2, shape, strides)));
  EXPECT_FALSE(overlaps_itself(keys));
  const TensorView lse = view(ElementType::kFp32, 2 * kDim, {7, kHeads}, {kBlock / 2, kHead / 2});
  EXPECT_FALSE(share_memory(keys, lse)) << "the types may differ";
}

TEST(Overlap, OfStridesBeyondAllMemoryIsAssumed) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const TensorView one = view(ElementType::kFp16, 0, {1}, {1});
  for (const std::int64_t stride : {kHuge, -kHuge - 1, kHuge / 2, kHuge / 3}) {
    const TensorView huge = view(ElementType::kFp16, 8, {3}, {stride});
    EXPECT_TRUE(share_memory(one, huge) && share_memory(huge, one) && overlaps_itself(huge));
  }
  const TensorView expanded = view(ElementType::kFp16, 0, {kHuge, 4, kHuge}, {0, 0, 0});
  EXPECT_TRUE(share_memory(one, expanded) && overlaps_itself(expanded))
      << "the number of elements has more than 64 bits";
  EXPECT_FALSE(share_memory(one, view(ElementType::kFp16, 8, {1}, {kHuge})))
      << "the stride of one element is not used";
}

// Without a bound the search would not end within a lifetime.
TEST(Overlap, OfStridesThatDoNotNestIsAssumedAfterManySteps) {
  std::mt19937_64 random(4);
  const std::vector<std::int64_t> shape(6, 50);
  const auto strides = [&] {
    std::vector<std::int64_t> result(6);
    std::ranges::generate(result, [&] { return std::int64_t{2} << (random() % 40); });
    for (std::int64_t& stride : result) stride += static_cast<std::int64_t>(random() >> 24);
    return result;
  };
  int assumed = 0;
  for (int i = 0; i < 20; ++i) {
    const TensorView a = view(ElementType::kUint8, 0, shape, strides());
    const TensorView b = view(ElementType::kUint8, std::int64_t{1} << 39, shape, strides());
    assumed += share_memory(a, b) ? 1 : 0;
  }
  EXPECT_EQ(assumed, 20);
}

}  // namespace
}  // namespace lazyrope
