#include "runtime/emulator/products.h"

#include <cstdint>
#include <cstring>

#include "runtime/emulator/matrix.h"

namespace lazyrope {
namespace {

constexpr std::size_t kRows = WarpProduct::kRows;
constexpr std::size_t kDepth = MatrixOperand::kDepth;

using MatrixA = std::array<std::array<double, kDepth>, kRows>;

float element(EmulatedElement type, const std::byte* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return value_of(type, bits);
}

MatrixA from_shared(const WarpProduct& product, const MatrixOperand& operand,
                    const std::byte* shared) {
  MatrixA a;
  for (std::size_t row = 0; row < kRows; ++row)
    for (std::size_t k = 0; k < kDepth; ++k)
      a[row][k] = element(
          product.lanes[0].element,
          shared + operand.address(product.first_row + static_cast<int>(row), static_cast<int>(k)));
  return a;
}

// The layout is that of PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16".
MatrixA from_registers(const WarpProduct& product) {
  MatrixA a;
  for (std::size_t lane = 0; lane < product.lanes.size(); ++lane)
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t pair = product.lanes[lane].a[i];
      double* to = &a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
      to[0] = value_of(product.lanes[0].element, static_cast<std::uint16_t>(pair));
      to[1] = value_of(product.lanes[0].element, static_cast<std::uint16_t>(pair >> 16));
    }
  return a;
}

}  // namespace

void multiply(const WarpProduct& product, const std::byte* shared) {
  const EmulatedWgmma& given = product.lanes[0];
  const auto columns = static_cast<std::size_t>(given.columns);
  const MatrixA a = product.a ? from_shared(product, *product.a, shared) : from_registers(product);
  std::vector<double> b(kDepth * columns);
  for (std::size_t k = 0; k < kDepth; ++k)
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
    for (std::size_t k = 0; k < kDepth; ++k)
      for (std::size_t column = 0; column < columns; ++column)
        d[row * columns + column] += a[row][k] * b[k * columns + column];
  for_d([](float& in_register, double in_matrix) { in_register = static_cast<float>(in_matrix); });
}

}  // namespace lazyrope
