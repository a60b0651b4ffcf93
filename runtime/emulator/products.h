#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/emulator/matrix_operand.h"
#include "templates/abi/emulator_hopper.h"

namespace lazyrope {

// A warp's quarter of a wgmma: 16 rows of A and D.
struct WarpProduct {
  static constexpr int kRows = 16;
  static constexpr int kGroupRows = 4 * kRows;

  std::array<EmulatedWgmma, 32> lanes;  // the operands of each lane
  std::optional<MatrixOperand> a;       // A, if it is in shared memory
  MatrixOperand b;
  int first_row;
  Site site;
};

// The wgmma of one warp, in commit groups. A product is computed as late as PTX allows: at the wait
// that covers it.
class WarpProducts {
 public:
  void add(const WarpProduct& product) { open_.push_back(product); }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }

  // Calls run(product) for the products of all groups but the latest `pending`, the oldest group
  // first.
  template <class Run>
  void wait(std::size_t pending, const Run& run) {
    for (; groups_.size() > pending; groups_.pop_front())
      for (const WarpProduct& product : groups_.front()) run(product);
  }

 private:
  std::vector<WarpProduct> open_;
  std::deque<std::vector<WarpProduct>> groups_;
};

// Computes D = A B + D. Sums are made in double and rounded once, as in multiply_m16n8k16().
// `shared` is the CTA's shared memory.
void multiply(const WarpProduct& product, const std::byte* shared);

}  // namespace lazyrope
