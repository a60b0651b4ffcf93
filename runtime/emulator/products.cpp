#include "runtime/emulator/products.h"

#include <cstdint>
#include <cstring>

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
  for (std::size_t row = 0; row < kRows; ++row)
    for (std::size_t k = 0; k < depth; ++k)
      for (std::size_t column = 0; column < columns; ++column)
        d[row * columns + column] += a[row][k] * b[k * columns + column];
  for_d([](float& in_register, double in_matrix) { in_register = static_cast<float>(in_matrix); });
}

}  // namespace lazyrope
