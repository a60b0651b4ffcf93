// The rotation itself, for any pairing (ops/rope) and frequencies.
//
// An angle is counted in turns as a 64-bit binary fraction: position x frequency, modulo 2^64,
// drops the whole turns exactly, so an angle at position 1,000,000 is as good as at 1 (fp32
// position x frequency in radians is not). The top 32 bits become an fp32 angle in [-pi, pi).
#pragma once

#include "tile/shared_tile.cuh"

namespace lazyrope {

struct Rotation {
  float cosine;
  float sine;
};

LAZYROPE_DEVICE Rotation rotation_at(int64 position, uint64 turns_per_token) {
  constexpr float kRadians = 1.46291807926715968e-9f;  // 2 pi / 2^32
  const uint64 turns = static_cast<uint64>(position) * turns_per_token;
  const float angle = static_cast<float>(static_cast<int32>(turns >> 32)) * kRadians;
  return {cos_approx_f32(angle), sin_approx_f32(angle)};
}

// Turns per token of one unit's pairs.
template <class Pairing>
struct UnitTurns {
  static constexpr int kPairs = Pairing::kPairs;

  uint64 per_token[kPairs];

  LAZYROPE_DEVICE void load(const uint64* turns_per_token, int32 unit) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      per_token[i] = ld_global_nc(turns_per_token + unit * kPairs + i);
  }
};

// The rotations of one unit's pairs.
template <class Pairing>
struct UnitRotation {
  static constexpr int kPairs = Pairing::kPairs;
  using Run = Words<kPairs / 2>;

  Rotation pair[kPairs];

  LAZYROPE_DEVICE void set(int64 position, const UnitTurns<Pairing>& turns, float factor) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Rotation r = rotation_at(position, turns.per_token[i]);
      pair[i] = {r.cosine * factor, r.sine * factor};
    }
  }

  // Both runs turned, in fp32: run a, then run b.
  template <class Element>
  LAZYROPE_DEVICE void turn(float (&y)[2 * kPairs], const Run& a, const Run& b) const {
    constexpr int kWords = kPairs / 2;
    float x[2 * kPairs];
#pragma unroll
    for (int i = 0; i < 2 * kWords; ++i) {
      const FloatPair p = Element::unpack(i < kWords ? a.word[i] : b.word[i - kWords]);
      x[2 * i] = p.low;
      x[2 * i + 1] = p.high;
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float x0 = x[Pairing::first(i)];
      const float x1 = x[Pairing::second(i)];
      y[Pairing::first(i)] = x0 * pair[i].cosine - x1 * pair[i].sine;
      y[Pairing::second(i)] = x1 * pair[i].cosine + x0 * pair[i].sine;
    }
  }

  template <class Element>
  LAZYROPE_DEVICE void apply(Run& a, Run& b) const {
    float y[2 * kPairs];
    turn<Element>(y, a, b);
#pragma unroll
    for (int i = 0; i < kPairs / 2; ++i) {
      a.word[i] = Element::pack(y[2 * i], y[2 * i + 1]);
      b.word[i] = Element::pack(y[kPairs + 2 * i], y[kPairs + 2 * i + 1]);
    }
  }
};

// Rows of a tile, from one on.
template <class T>
struct RowsOf {
  using Tile = T;

  SharedPtr tile;
  int32 first;

  LAZYROPE_DEVICE RowsOf(SharedPtr tile, int32 first = 0) : tile(tile), first(first) {}

  // Columns run * kCount to run * kCount + kCount - 1 of a row.
  template <int kCount>
  LAZYROPE_DEVICE SharedPtr run(int32 row, int32 run) const {
    return Tile::template run<kCount>(tile, first + row, run);
  }
};

// Copies the runs that no pair reaches (partial rotary, or no rotation at all).
template <class Spec, class To, class From>
LAZYROPE_DEVICE void copy_unrotated(To to, From from, int32 num_rows) {
  using Run = typename UnitRotation<typename Spec::Pairing>::Run;
  constexpr int kColumns = Spec::Pairing::kPairs;
  constexpr int kFirst = 2 * Spec::Pairing::kUnits;
  constexpr int kCount = Spec::kHeadDim / kColumns - kFirst;
  if constexpr (kCount > 0) {
    if (to.tile == from.tile) return;
#pragma unroll 1
    for (int32 i = lane_index(); i < num_rows * kCount; i += kWarpThreads) {
      const int32 row = i / kCount;
      const int32 run = kFirst + i % kCount;
      st_shared(to.template run<kColumns>(row, run),
                ld_shared<Run>(from.template run<kColumns>(row, run)));
    }
  }
}

// Of the unit that the lane turns in rotate_rows().
template <class Spec>
LAZYROPE_DEVICE UnitTurns<typename Spec::Pairing> lane_turns() {
  UnitTurns<typename Spec::Pairing> turns{};
  if constexpr (Spec::Pairing::kUnits > 0)
    turns.load(Spec::frequencies(), lane_index() % Spec::Pairing::kUnits);
  return turns;
}

// They, loaded once, or where registers are few, each time.
template <class Spec, bool kHeld>
class LaneTurns {
 public:
  LAZYROPE_DEVICE LaneTurns() : turns_(lane_turns<Spec>()) {}
  LAZYROPE_DEVICE const UnitTurns<typename Spec::Pairing>& get() const { return turns_; }

 private:
  UnitTurns<typename Spec::Pairing> turns_;
};
template <class Spec>
class LaneTurns<Spec, false> {
 public:
  LAZYROPE_DEVICE UnitTurns<typename Spec::Pairing> get() const { return lane_turns<Spec>(); }
};

// One warp turns num_rows rows of queries, taken from `from` (which may be the same rows): each row
// by its position (0 where the query is rotated already) less `base`. Row 0 is
// number `first_row` of the request's; those of a token are neighbours, and share an angle. A lane
// loads kAtOnce rows of a token before it turns them.
template <class Spec, int kAtOnce = 1, class To, class From>
LAZYROPE_DEVICE void rotate_rows(To to, From from, SharedPtr positions, int32 num_rows,
                                 int32 first_row, int32 base,
                                 const UnitTurns<typename Spec::Pairing>& turns) {
  using Pairing = typename Spec::Pairing;
  using Run = typename UnitRotation<Pairing>::Run;
  constexpr int kPairs = Pairing::kPairs;
  copy_unrotated<Spec>(to, from, num_rows);
  if constexpr (Pairing::kUnits > 0) {
    constexpr float kFactor = Spec::kQueryRotated ? 1.0f : Spec::kAttentionFactor;
    static_assert(Pairing::kUnits <= kWarpThreads);
    constexpr int kGroups = kWarpThreads / Pairing::kUnits;
    constexpr int kRows = smaller(kAtOnce, Spec::kGroupSize);
    const int32 unit = lane_index() % Pairing::kUnits;
    const int32 group = lane_index() / Pairing::kUnits;
    const int32 run_a = Pairing::run_a(unit);
    const int32 run_b = Pairing::run_b(unit);
    // Neighbouring rows, so that a lane has few tokens.
    const int32 share = ceil_div(num_rows, kGroups);
    const int32 end = group < kGroups ? smaller(num_rows, (group + 1) * share) : 0;
    int32 row = group * share;
    int32 token_end = row + Spec::kGroupSize -
                      static_cast<int32>(static_cast<uint32>(first_row + row) % Spec::kGroupSize);
#pragma unroll 1
    for (; row < end; token_end += Spec::kGroupSize) {
      const int32 position = Spec::kQueryRotated ? 0 : ld_shared<int32>(positions + row * 4);
      UnitRotation<Pairing> rotation;
      rotation.set(static_cast<int64>(position) - base, turns, kFactor);
      const int32 stop = smaller(token_end, end);
#pragma unroll 1
      for (; row < stop; row += kRows) {
        // Where there are fewer, the last once more: conditions take longer.
        int32 rows[kRows];
        Run a[kRows];
        Run b[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          rows[i] = smaller(row + i, stop - 1);
          a[i] = ld_shared<Run>(from.template run<kPairs>(rows[i], run_a));
          b[i] = ld_shared<Run>(from.template run<kPairs>(rows[i], run_b));
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          rotation.template apply<typename Spec::Element>(a[i], b[i]);
          st_shared(to.template run<kPairs>(rows[i], run_a), a[i]);
          st_shared(to.template run<kPairs>(rows[i], run_b), b[i]);
        }
      }
      row = stop;
    }
  }
}

}  // namespace lazyrope
