// ChunkPairing joins two units of a pairing (ops/rope) into one, so that lanes load and store whole
// chunks of 16 bytes. It exists if the runs of both units are two whole chunks of a row. Its runs
// are these chunks, and pair i of unit u has frequency 8 u + i. All of it is evaluated at compile
// time.
#pragma once

#include "tile/element.cuh"

namespace lazyrope {

template <class Pairing>
struct ChunkPairing {
  static constexpr int kPairs = kChunkElements;
  static constexpr int kUnits = Pairing::kUnits / 2;
  LAZYROPE_DEVICE static constexpr int32 run_a(int32 unit) { return Pairing::run_a(2 * unit) / 2; }
  LAZYROPE_DEVICE static constexpr int32 run_b(int32 unit) {
    return Pairing::run_b(2 * unit + 1) / 2;
  }
  LAZYROPE_DEVICE static constexpr int first(int pair) {
    return element(pair / kRun, Pairing::first(pair % kRun));
  }
  LAZYROPE_DEVICE static constexpr int second(int pair) {
    return element(pair / kRun, Pairing::second(pair % kRun));
  }

  // Tells whether two units of the pairing can be joined.
  LAZYROPE_DEVICE static constexpr bool exists() {
    bool are_chunks = Pairing::kPairs == kRun && Pairing::kUnits % 2 == 0 && kUnits > 0;
    for (int32 i = 0; are_chunks && i < 4 * kUnits; ++i) {
      const int32 run = run_of(i / 2, i % 2);
      const int32 in_first = run_of(i / 2 % 2, i % 2);  // the same run of the first unit
      const int32 chunk = in_first / 2 == run_a(0) ? run_a(i / 4) : run_b(i / 4);
      are_chunks = run == 2 * chunk + in_first % 2;
    }
    return are_chunks;
  }

 private:
  static constexpr int kRun = kPairs / 2;  // elements of a run of Pairing

  LAZYROPE_DEVICE static constexpr int32 run_of(int32 unit, int32 run) {
    return run == 1 ? Pairing::run_b(unit) : Pairing::run_a(unit);
  }
  // Returns the distance from run a to run b, or 0 if it does not meet the rules of kRunDistance
  // (ops/rope/half.cuh).
  LAZYROPE_DEVICE static constexpr int run_distance() {
    const int distance = run_b(0) - run_a(0);
    for (int32 i = 0; i < kUnits; ++i) {
      if (run_b(i) - run_a(i) != distance) return 0;
      if (is_power_of_two(distance) && (run_a(i) & distance) != 0) return 0;
    }
    return larger(distance, 0);
  }
  // Returns the index in both chunks of element `own` of unit 0 or 1 of Pairing.
  LAZYROPE_DEVICE static constexpr int element(int unit, int own) {
    const int run = run_of(unit, own / kRun);
    return (run / 2 == run_a(0) ? 0 : kPairs) + run % 2 * kRun + own % kRun;
  }

 public:
  static constexpr int kRunDistance = run_distance();
};

// Selects ChunkPairing if it exists, else Pairing itself.
template <class Pairing, bool kByChunks = ChunkPairing<Pairing>::exists()>
struct WidestPairing {
  using Type = ChunkPairing<Pairing>;
};
template <class Pairing>
struct WidestPairing<Pairing, false> {
  using Type = Pairing;
};

}  // namespace lazyrope
