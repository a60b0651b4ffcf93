// RoPE on rows in shared memory, for any pairing (ops/rope) and frequencies. It replaces a pair
// (x0, x1) by
//   (x0 cos a - x1 sin a, x1 cos a + x0 sin a),   a = 2 pi * position * revolutions_per_token.
//
// An angle is a 64-bit binary fraction of a revolution. The product of a position and the
// revolutions per token, modulo 2^64, drops whole revolutions exactly. So an angle at position
// 1,000,000 is as accurate as at 1; an fp32 product in radians is not. The upper 32 bits become an
// fp32 angle in [-pi, pi).
//
// A pairing groups its pairs into units (ops/rope/half.cuh). Each lane rotates one unit in some of
// the warp's rows.
#pragma once

#include "tile/shared_tile.cuh"

namespace lazyrope {

struct Rotation {
  float cosine;
  float sine;
};

LAZYROPE_DEVICE Rotation rotation_by(uint64 revolutions) {
  constexpr float kRadians = 1.46291807926715968e-9f;  // 2 pi / 2^32
  const float angle = static_cast<float>(static_cast<int32>(revolutions >> 32)) * kRadians;
  return {cos_approx_f32(angle), sin_approx_f32(angle)};
}
LAZYROPE_DEVICE Rotation rotation_at(int64 position, uint64 revolutions_per_token) {
  return rotation_by(static_cast<uint64>(position) * revolutions_per_token);
}

// The revolutions per token of one unit's pairs.
template <class Pairing>
struct UnitRevolutions {
  static constexpr int kPairs = Pairing::kPairs;

  uint64 per_token[kPairs];

  LAZYROPE_DEVICE void load(const uint64* revolutions_per_token, int32 unit) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      per_token[i] = ld_global_nc(revolutions_per_token + unit * kPairs + i);
  }
};

// The rotations of one unit's pairs, each scaled by `factor`.
template <class Pairing>
struct UnitRotation {
  static constexpr int kPairs = Pairing::kPairs;
  using Run = Words<kPairs / 2>;

  Rotation pair[kPairs];

  LAZYROPE_DEVICE void set(int64 position, const UnitRevolutions<Pairing>& revolutions,
                           float factor) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Rotation r = rotation_at(position, revolutions.per_token[i]);
      pair[i] = {r.cosine * factor, r.sine * factor};
    }
  }

  // Composes the rotations with those of `step`.
  LAZYROPE_DEVICE void compose(const UnitRotation& step) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Rotation by = step.pair[i];
      const Rotation r = pair[i];
      pair[i] = {r.cosine * by.cosine - r.sine * by.sine, r.sine * by.cosine + r.cosine * by.sine};
    }
  }

  // Writes the rotated columns of both runs to `y` in fp32, those of run a first.
  template <class Element>
  LAZYROPE_DEVICE void rotate(float (&y)[2 * kPairs], const Run& a, const Run& b) const {
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

  // Rotates both runs in place and rounds each element once.
  template <class Element>
  LAZYROPE_DEVICE void apply(Run& a, Run& b) const {
    float y[2 * kPairs];
    rotate<Element>(y, a, b);
#pragma unroll
    for (int i = 0; i < kPairs / 2; ++i) {
      a.word[i] = Element::pack(y[2 * i], y[2 * i + 1]);
      b.word[i] = Element::pack(y[kPairs + 2 * i], y[kPairs + 2 * i + 1]);
    }
  }
};

// Returns the bytes from run a to run b if they are the same for all units (kRunDistance), else 0.
template <class Pairing>
LAZYROPE_DEVICE constexpr int bytes_between_runs() {
  if constexpr (requires { Pairing::kRunDistance; })
    return Pairing::kRunDistance * Pairing::kPairs * kElementBytes;
  else
    return 0;
}

// The addresses of a unit's runs a and b in one row.
struct UnitRuns {
  SharedPtr a;
  SharedPtr b;
};

// The rows of a tile in shared memory, from row `first` on.
template <class T>
struct RowsOf {
  using Tile = T;

  SharedPtr tile;
  int32 first;

  LAZYROPE_DEVICE RowsOf(SharedPtr tile, int32 first = 0) : tile(tile), first(first) {}

  // Returns the address of columns run * kCount to run * kCount + kCount - 1 of a row.
  template <int kCount>
  LAZYROPE_DEVICE SharedPtr run(int32 row, int32 run) const {
    return Tile::template run<kCount>(tile, first + row, run);
  }
  // Returns the addresses of a unit's runs in a row.
  template <class Pairing>
  LAZYROPE_DEVICE UnitRuns runs(int32 row, int32 unit) const {
    constexpr int kOffset = bytes_between_runs<Pairing>();
    const SharedPtr a = run<Pairing::kPairs>(row, Pairing::run_a(unit));
    if constexpr (kOffset > 0 && Tile::template kHasFixedOffset<kOffset>)
      return {a, Tile::template offset_by<kOffset>(a)};
    else
      return {a, run<Pairing::kPairs>(row, Pairing::run_b(unit))};
  }
  // Moves the runs down by `rows` rows. Their row % 8 and rows % 8 must have no bit in common.
  LAZYROPE_DEVICE static UnitRuns advance_rows(UnitRuns runs, int32 rows) {
    return {Tile::advance_rows(runs.a, rows), Tile::advance_rows(runs.b, rows)};
  }
};

// Copies the columns that RoPE does not rotate. One warp takes part. Where these are whole chunks,
// a lane copies a chunk at once: the copies take issue slots from the other warps.
template <class Spec, class To, class From>
LAZYROPE_DEVICE void copy_unrotated(To to, From from, int32 num_rows) {
  using Pairing = typename Spec::Pairing;
  constexpr int kRotated = 2 * Pairing::kUnits * Pairing::kPairs;
  constexpr int kColumns = kRotated % kChunkElements == 0 ? kChunkElements : Pairing::kPairs;
  using Run = Words<kColumns / 2>;
  constexpr int kFirst = kRotated / kColumns;
  constexpr int kCount = Spec::kHeadDim / kColumns - kFirst;
  if constexpr (kCount > 0) {
#pragma unroll 1
    for (int32 i = lane_index(); i < num_rows * kCount; i += kWarpThreads) {
      const int32 row = i / kCount;
      const int32 run_index = kFirst + i % kCount;
      st_shared(to.template run<kColumns>(row, run_index),
                ld_shared<Run>(from.template run<kColumns>(row, run_index)));
    }
  }
}

template <class Pairing>
LAZYROPE_DEVICE int32 lane_unit() {
  return static_cast<int32>(static_cast<uint32>(lane_index()) % Pairing::kUnits);
}

// Returns how many rows each group of kUnits lanes rotates, a multiple of `alignment`. The rows of
// a group are consecutive, so that many of them share a token and its angle.
template <class Pairing>
LAZYROPE_DEVICE constexpr int32 rows_per_lane_group(int32 num_rows, int32 alignment) {
  static_assert(Pairing::kUnits <= kWarpThreads);
  return ceil_div(num_rows, kWarpThreads / Pairing::kUnits * alignment) * alignment;
}

// DirectAngles computes the rotation of the lane's unit from the position of each token.
template <class Spec>
struct DirectAngles {
  using Pairing = typename Spec::Pairing;

  UnitRevolutions<Pairing> revolutions;

  LAZYROPE_DEVICE DirectAngles() {
    if constexpr (Pairing::kUnits > 0) revolutions.load(Spec::frequencies(), lane_unit<Pairing>());
  }
  // Changes `rotation` from that of position `previous` to that of `position`. Both positions are
  // counted from `base`.
  LAZYROPE_DEVICE void update(UnitRotation<Pairing>& rotation, int32 previous, int32 position,
                              int32 base, float factor) const {
    if (position != previous)
      rotation.set(static_cast<int64>(position) - base, revolutions, factor);
  }
};

// IncrementalAngles is for many tokens, most of which are one position after the previous token.
// Composing with the rotation of one token costs a sixth of a new sine and cosine. Twenty
// compositions add an error of less than 2e-5.
template <class Spec>
class IncrementalAngles {
  using Rotation = UnitRotation<typename Spec::Pairing>;

 public:
  LAZYROPE_DEVICE IncrementalAngles() { step_.set(1, DirectAngles<Spec>().revolutions, 1.0f); }
  LAZYROPE_DEVICE void step(Rotation& rotation) const { rotation.compose(step_); }
  LAZYROPE_DEVICE void update(Rotation& rotation, int32 previous, int32 position, int32 base,
                              float factor) const {
    if (position > previous && position - 1 == previous)
      step(rotation);
    else if (position != previous)
      DirectAngles<Spec>().update(rotation, previous, position, base, factor);
  }

 private:
  Rotation step_;
};

// Selects IncrementalAngles for lanes with many tokens. With few tokens, DirectAngles is better: it
// rotates the first one sooner.
template <class Spec, bool kHasManyTokens>
struct SelectAngles {
  using Type = IncrementalAngles<Spec>;
};
template <class Spec>
struct SelectAngles<Spec, false> {
  using Type = DirectAngles<Spec>;
};
// A lane has many rows only in prefill. With four or more query heads for each KV head, few of
// these rows begin a new token, so IncrementalAngles would save little. With a temperature,
// consecutive tokens may have rotations with different factors, which it cannot compose.
template <class Spec, bool kIsPrefill>
using RowAngles = typename SelectAngles<Spec, kIsPrefill && (Spec::kGroupSize < 4) &&
                                                  !Spec::kHasTemperature>::Type;

// Keeps the angles in registers. With kInRegisters false, each get() loads the frequencies and
// makes the angles again, which is for kernels with few registers.
template <class Angles, bool kInRegisters>
class AngleStorage {
 public:
  LAZYROPE_DEVICE const Angles& get() const { return angles_; }

 private:
  Angles angles_;
};
template <class Angles>
class AngleStorage<Angles, false> {
 public:
  LAZYROPE_DEVICE Angles get() const { return Angles(); }
};

// The scale of queries that are rotated and not scaled. ops/temperature.cuh has another.
struct NoScale {
  LAZYROPE_DEVICE float at(int32) const { return 1.0f; }
};

// Rotates the columns of the lane's unit in the lane's query rows. Only with kMayStoreBack can
// stores_back be true: the lane then stores the rotated columns to the source rows, too.
template <class Spec, bool kMayStoreBack, class Angles, class Scale, class To, class From>
class RowRotator {
  using Pairing = typename Spec::Pairing;
  using Run = typename UnitRotation<Pairing>::Run;

 public:
  // The lane's rows are `first` to `end` - 1; there may be none.
  LAZYROPE_DEVICE RowRotator(To to, From from, SharedPtr positions, int32 first, int32 end,
                             int32 base, const Angles& angles, Scale scale, bool stores_back)
      : to_(to),
        from_(from),
        positions_(positions),
        base_(base),
        angles_(angles),
        scale_(scale),
        unit_(lane_unit<Pairing>()),
        stores_back_(stores_back) {
    if (first < end) position_ = distant_position(position(first));
  }

  // Rotates rows `row` to `end` - 1, token by token: the rows of a token are consecutive and share
  // an angle. The lane loads kRowsInFlight rows of a token before it rotates them. `request_row` is
  // the number of `row` in the request.
  template <int kRowsInFlight>
  LAZYROPE_DEVICE void rotate_tokens(int32 row, int32 end, int32 request_row) {
    constexpr int kRows = smaller(kRowsInFlight, Spec::kGroupSize);
    int32 token_end = row - static_cast<int32>(static_cast<uint32>(request_row) % Spec::kGroupSize);
#pragma unroll 1
    while (row < end) {
      set_position(position(row));
      token_end = smaller(end, token_end + Spec::kGroupSize);
#pragma unroll 1
      for (; row < token_end; row += kRows) {
        RowRuns runs[kRows];
        Run a[kRows];
        Run b[kRows];
#pragma unroll
        for (int32 i = 0; i < kRows; ++i) {
          // Past the token's last row the lane repeats that row, which is faster than predication.
          runs[i] = row_runs(smaller(row + i, token_end - 1));
          load(runs[i].from, a[i], b[i]);
        }
#pragma unroll
        for (int32 i = 0; i < kRows; ++i) rotate(runs[i], a[i], b[i]);
      }
      row = token_end;
    }
  }

  // Rotates rows `row` to `end` - 1, four at a time. `row` is a multiple of four, so the addresses
  // of three rows follow from the first row's. So do their angles: four rows share a token (group
  // size a multiple of 4) or have consecutive positions (group size 1). rotate_tokens() rotates
  // four rows at other positions. The last four rows may include rows past `end`, which does no
  // harm.
  LAZYROPE_DEVICE void rotate_fours(int32 row, int32 end) {
#pragma unroll 1
    for (; row < end; row += 4) {
      if constexpr (kStepsByRow) {
        if (!are_consecutive(row)) {
          rotate_tokens<1>(row, smaller(row + 4, end), 0);
          continue;
        }
      }
      set_position(position(row));
      rotate_four_rows(row_runs(row));
    }
  }

 private:
  // The addresses of the lane's unit in one row of the source and of the target.
  struct RowRuns {
    UnitRuns from;
    UnitRuns to;
  };

  static constexpr bool kStepsByRow =
      Spec::kGroupSize == 1 && !Spec::kQueryRotated && !Spec::kHasTemperature;

  // Returns a position that is neither `position` nor the one before it. After it, update()
  // computes the angle of `position` from the frequencies.
  LAZYROPE_DEVICE static int32 distant_position(int32 position) { return position ^ 1 << 30; }

  // Tells whether the tokens of four rows have consecutive positions.
  LAZYROPE_DEVICE bool are_consecutive(int32 row) const {
    const auto four = ld_shared<Words<4>>(positions_ + row * 4);
    const uint32(&p)[4] = four.word;
    const bool wraps = static_cast<int32>(p[3]) < static_cast<int32>(p[0]);
    return p[1] == p[0] + 1 && p[2] == p[0] + 2 && p[3] == p[0] + 3 && !wraps;
  }

  LAZYROPE_DEVICE void rotate_four_rows(const RowRuns& first) {
    constexpr int kRowsInFlight = kStepsByRow ? 1 : 2;  // rows in registers
#pragma unroll
    for (int32 begin = 0; begin < 4; begin += kRowsInFlight) {
      RowRuns runs[kRowsInFlight];
      Run a[kRowsInFlight];
      Run b[kRowsInFlight];
#pragma unroll
      for (int32 i = 0; i < kRowsInFlight; ++i) {
        runs[i] = advance_rows(first, begin + i);
        load(runs[i].from, a[i], b[i]);
      }
      if (kStepsByRow && begin > 0) step();
#pragma unroll
      for (int32 i = 0; i < kRowsInFlight; ++i) rotate(runs[i], a[i], b[i]);
    }
  }

  LAZYROPE_DEVICE void step() {
    if constexpr (kStepsByRow) {
      angles_.step(rotation_);
      ++position_;
    }
  }

  LAZYROPE_DEVICE int32 position(int32 row) const {
    return Spec::kQueryRotated ? 0 : ld_shared<int32>(positions_ + row * 4);
  }
  LAZYROPE_DEVICE void set_position(int32 position) {
    angles_.update(rotation_, position_, position, base_, Spec::kQueryFactor * scale_.at(position));
    position_ = position;
  }

  LAZYROPE_DEVICE RowRuns row_runs(int32 row) const {
    return {from_.template runs<Pairing>(row, unit_), to_.template runs<Pairing>(row, unit_)};
  }
  LAZYROPE_DEVICE static RowRuns advance_rows(const RowRuns& row_runs, int32 rows) {
    return {From::advance_rows(row_runs.from, rows), To::advance_rows(row_runs.to, rows)};
  }

  LAZYROPE_DEVICE static void load(UnitRuns from, Run& a, Run& b) {
    a = ld_shared<Run>(from.a);
    b = ld_shared<Run>(from.b);
  }
  LAZYROPE_DEVICE void rotate(const RowRuns& runs, Run a, Run b) const {
    rotation_.template apply<typename Spec::Element>(a, b);
    if (kMayStoreBack && stores_back_) store(runs.from, a, b);
    store(runs.to, a, b);
  }
  LAZYROPE_DEVICE static void store(UnitRuns to, const Run& a, const Run& b) {
    st_shared(to.a, a);
    st_shared(to.b, b);
  }

  To to_;
  From from_;
  SharedPtr positions_;
  int32 base_;
  const Angles& angles_;
  Scale scale_;
  int32 unit_;
  bool stores_back_;
  // Without the initialisation, the compiler keeps these registers live from the kernel's start.
  UnitRotation<Pairing> rotation_ = {};
  int32 position_ = 0;  // the position whose rotation is rotation_
};

// Rotates num_rows query rows by their positions less `base`. All positions count as 0 if queries
// come rotated (Spec::kQueryRotated). One warp takes part. Row 0 is row first_row of the request.
//
// `from` may be `to`: columns that RoPE does not rotate then stay as they are. Otherwise they are
// copied to `to`. Rotated columns are multiplied by scale.at(position). With stores_back, `from`
// gets the rotated columns, too.
//
// A lane rotates kRowsAtOnce rows at once: 4 selects rotate_fours(), if the group size allows it.
// The first row of both tiles must then be a multiple of four, and both tiles must have rows up to
// the next multiple of four.
template <class Spec, int kRowsAtOnce = 1, bool kMayStoreBack = false, class Angles, class To,
          class From, class Scale = NoScale>
LAZYROPE_DEVICE void rotate_rows(To to, From from, SharedPtr positions, int32 num_rows,
                                 int32 first_row, int32 base, const Angles& angles,
                                 Scale scale = {}, bool stores_back = false) {
  using Pairing = typename Spec::Pairing;
  if (!(to.tile == from.tile)) copy_unrotated<Spec>(to, from, num_rows);
  if constexpr (Pairing::kUnits > 0) {
    constexpr int kGroups = kWarpThreads / Pairing::kUnits;
    constexpr int kAlignment = kRowsAtOnce == 4 ? 4 : 1;
    const int32 group = lane_index() / Pairing::kUnits;
    const int32 rows_per_group = rows_per_lane_group<Pairing>(num_rows, kAlignment);
    const int32 first = group * rows_per_group;
    const int32 end = group < kGroups ? smaller(num_rows, first + rows_per_group) : 0;
    RowRotator<Spec, kMayStoreBack, Angles, Scale, To, From> rotator(
        to, from, positions, first, end, base, angles, scale, stores_back);
    constexpr bool kSharesAngles =
        Spec::kGroupSize % 4 == 0 || (Spec::kGroupSize == 1 && !Spec::kHasTemperature);
    if constexpr (kRowsAtOnce == 4 && kSharesAngles)
      rotator.rotate_fours(first, end);
    else
      rotator.template rotate_tokens<kRowsAtOnce == 4 ? 1 : kRowsAtOnce>(first, end,
                                                                         first_row + first);
  }
}

}  // namespace lazyrope
