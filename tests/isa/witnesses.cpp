#include "tests/isa/witnesses.h"

#include "tests/isa/rows/rows.h"

namespace lazyrope {

const std::vector<WitnessText>& witness_texts() {
  static const std::vector<WitnessText> rows = {grid_text(),   hopper_text(),   math_text(),
                                                matrix_text(), mbarrier_text(), memory_text(),
                                                tensor_text(), warp_text(),     wgmma_text()};
  return rows;
}

const std::vector<Witness>& witnesses() {
  static const std::vector<Witness> rows = [] {
    std::vector<Witness> all;
    for (const auto& of : {grid_rows, hopper_rows, math_rows, matrix_rows, mbarrier_rows,
                           memory_rows, tensor_rows, warp_rows, wgmma_rows})
      for (Witness& row : of()) all.push_back(std::move(row));
    return all;
  }();
  return rows;
}

// FNV-1a.
std::uint64_t seed_of(const Witness& witness) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : witness.name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

Words input_of(const Witness& witness) {
  Generator random(seed_of(witness));
  return witness.input(random);
}

}  // namespace lazyrope
