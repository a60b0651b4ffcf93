#include "runtime/emulator/products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/emulator/matrix.h"

namespace lazyrope {
namespace {

constexpr std::size_t kRows = WarpProduct::kRows;
constexpr std::size_t kMaxDepth = MatrixOperand::kDepthBytes;  // with elements of a byte

using MatrixA = std::array<std::array<double, kMaxDepth>, kRows>;

std::size_t depth_of(EmulatedElement type) {
  return static_cast<std::size_t>(MatrixOperand::kDepthBytes / bytes_of(type));
}

float element(EmulatedElement type, const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, static_cast<std::size_t>(bytes_of(type)));
  return value_of(type, bits);
}

MatrixA from_shared(const WarpProduct& product, const MatrixOperand& operand,
                    const std::byte* shared) {
  MatrixA a;
  const EmulatedElement type = product.lanes[0].element;
  for (std::size_t row = 0; row < kRows; ++row)
    for (std::size_t k = 0; k < depth_of(type); ++k)
      a[row][k] = element(type, shared + operand.address(product.first_row + static_cast<int>(row),
                                                         static_cast<int>(k)));
  return a;
}

// The layout is that of PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16" and "m64nNk32". A
// register has neighbouring elements along K.
MatrixA from_registers(const WarpProduct& product) {
  MatrixA a;
  const EmulatedElement type = product.lanes[0].element;
  const auto bits = static_cast<unsigned>(8 * bytes_of(type));
  const std::size_t count = 32 / bits;
  for (std::size_t lane = 0; lane < product.lanes.size(); ++lane)
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t word = product.lanes[lane].a[i];
      double* to = &a[lane / 4 + i % 2 * 8][(lane % 4 + i / 2 * 4) * count];
      for (std::size_t k = 0; k < count; ++k)
        to[k] = value_of(type, static_cast<std::uint16_t>(word >> (k * bits) & ((1U << bits) - 1)));
    }
  return a;
}

// The exponent that the tensor cores take for an element of 8 bits; that of zero is less than all.
constexpr int kExponentOfZero = -1000;

int exponent_of(double value, int least) {
  return value == 0 ? kExponentOfZero : std::max(least, std::ilogb(value));
}

// A sum of products of 8 bits and an accumulator, as Hopper's tensor cores compute it: each term is
// truncated to kFraction bits below the greatest exponent of all terms, and so is the sum below its
// own exponent. The recordings of wgmma_e4m3_* on an H200 have these bits.
class TruncatedSum {
 public:
  void start(double accumulator) {
    accumulator_ = accumulator;
    exponent_ = exponent_of(accumulator, std::numeric_limits<float>::min_exponent - 1);
  }
  void see(int exponent) { exponent_ = std::max(exponent_, exponent); }
  void align() {
    scale_ = exponent_ > kExponentOfZero ? std::ldexp(1.0, kFraction - exponent_) : 1.0;
    sum_ = static_cast<std::int64_t>(accumulator_ * scale_);
  }
  void add(double product) { sum_ += static_cast<std::int64_t>(product * scale_); }
  double result() const {
    const double sum = static_cast<double>(sum_) / scale_;
    if (sum_ == 0) return 0;
    const double unit = std::ldexp(1.0, std::ilogb(sum) - kFraction);
    return std::trunc(sum / unit) * unit;
  }

 private:
  static constexpr int kFraction = 13;
  double accumulator_ = 0, scale_ = 1;
  int exponent_ = 0;
  std::int64_t sum_ = 0;
};

// Adds products of 8 bits to d [kRows, columns]. `b` is [depth, columns].
void add_truncated(const MatrixA& a, const std::vector<double>& b, std::vector<double>& d) {
  constexpr int kLeast = -6;  // the least exponent of a normal number of e4m3
  const std::size_t depth = depth_of(EmulatedElement::kE4m3), columns = d.size() / kRows;
  std::vector<int> of_b(b.size());
  std::ranges::transform(b, of_b.begin(), [](double v) { return exponent_of(v, kLeast); });
  std::array<int, kMaxDepth> of_a;
  for (std::size_t row = 0; row < kRows; ++row) {
    std::ranges::transform(a[row], of_a.begin(), [](double v) { return exponent_of(v, kLeast); });
    for (std::size_t column = 0; column < columns; ++column) {
      double& total = d[row * columns + column];
      double plain = total;
      TruncatedSum sum;
      sum.start(total);
      for (std::size_t k = 0; k < depth; ++k) {
        sum.see(of_a[k] + of_b[k * columns + column]);
        plain += a[row][k] * b[k * columns + column];
      }
      total = plain;
      if (!std::isfinite(plain)) continue;
      sum.align();
      for (std::size_t k = 0; k < depth; ++k) sum.add(a[row][k] * b[k * columns + column]);
      total = sum.result();
    }
  }
}

}  // namespace

void multiply(const WarpProduct& product, const std::byte* shared) {
  const EmulatedWgmma& given = product.lanes[0];
  const auto columns = static_cast<std::size_t>(given.columns);
  const MatrixA a = product.a ? from_shared(product, *product.a, shared) : from_registers(product);
  const std::size_t depth = depth_of(given.element);
  std::vector<double> b(depth * columns);
  for (std::size_t k = 0; k < depth; ++k)
    for (std::size_t column = 0; column < columns; ++column)
      b[k * columns + column] = element(
          given.element, shared + product.b.address(static_cast<int>(column), static_cast<int>(k)));

  std::vector<double> d(kRows * columns, 0.0);
  const auto element_of = [&](std::size_t lane, std::size_t i) -> double& {
    return d[(lane / 4 + i / 2 % 2 * 8) * columns + i / 4 * 8 + lane % 4 * 2 + i % 2];
  };
  const auto for_d = [&](const auto& visit) {
    for (std::size_t lane = 0; lane < product.lanes.size(); ++lane)
      for (std::size_t i = 0; i < columns / 2; ++i)
        visit(product.lanes[lane].d[i], element_of(lane, i));
  };
  if (given.accumulate)
    for_d([](float in_register, double& in_matrix) { in_matrix = in_register; });
  if (given.element == EmulatedElement::kE4m3)
    add_truncated(a, b, d);
  else
    for (std::size_t row = 0; row < kRows; ++row)
      for (std::size_t k = 0; k < depth; ++k)
        for (std::size_t column = 0; column < columns; ++column)
          d[row * columns + column] += a[row][k] * b[k * columns + column];
  for_d([](float& in_register, double in_matrix) { in_register = static_cast<float>(in_matrix); });
}

}  // namespace lazyrope
