// RoPE on rows in shared memory, for any pairing (ops/rope) and frequencies. A pair (x0, x1)
// becomes
//   (x0 cos a - x1 sin a, x1 cos a + x0 sin a),   a = 2 pi * position * revolutions_per_token.
//
// Angles are counted in revolutions, as 64-bit binary fractions. Position times frequency modulo
// 2^64 drops whole revolutions exactly, so an angle at position 1,000,000 is as accurate as at
// 1; an fp32 product in radians is not. The upper 32 bits become an fp32 angle in [-pi, pi).
//
// The pairing groups its pairs into units (ops/rope/half.cuh). Each lane rotates one unit in some
// of the warp's rows.
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

// Revolutions per token of one unit's pairs.
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

  // Rotates further, by the rotation `step`.
  LAZYROPE_DEVICE void compose(const UnitRotation& step) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Rotation by = step.pair[i];
      const Rotation r = pair[i];
      pair[i] = {r.cosine * by.cosine - r.sine * by.sine, r.sine * by.cosine + r.cosine * by.sine};
    }
  }

  // Writes the rotated columns to `y` in fp32: first those of run a, then those of run b.
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

  // Rotates both runs in place, rounding once.
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

// Returns the bytes from a unit's first run to its second if the pairing fixes them (kRunsApart),
// else 0.
template <class Pairing>
LAZYROPE_DEVICE constexpr int bytes_between_runs() {
  if constexpr (requires { Pairing::kRunsApart; })
    return Pairing::kRunsApart * Pairing::kPairs * kElementBytes;
  else
    return 0;
}

// The addresses of a unit's two runs in one row.
struct UnitRuns {
  SharedPtr a;
  SharedPtr b;
};

// Rows of a tile in shared memory, from row `first` on.
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
  // Returns the runs of a unit in a row. below() moves them `rows` rows down; row % 8 and rows % 8
  // must have no bit in common.
  template <class Pairing>
  LAZYROPE_DEVICE UnitRuns runs(int32 row, int32 unit) const {
    constexpr int kApart = bytes_between_runs<Pairing>();
    const SharedPtr a = run<Pairing::kPairs>(row, Pairing::run_a(unit));
    if constexpr (kApart > 0 && Tile::template kHasFixedOffset<kApart>)
      return {a, Tile::template offset_by<kApart>(a)};
    else
      return {a, run<Pairing::kPairs>(row, Pairing::run_b(unit))};
  }
  LAZYROPE_DEVICE static UnitRuns below(UnitRuns runs, int32 rows) {
    return {Tile::below(runs.a, rows), Tile::below(runs.b, rows)};
  }
};

template <class Element, class Run>
LAZYROPE_DEVICE Run multiplied(Run run, float factor) {
#pragma unroll
  for (uint32& word : run.word) {
    const FloatPair pair = Element::unpack(word);
    word = Element::pack(pair.low * factor, pair.high * factor);
  }
  return run;
}

// Copies the columns that no pair has (partial rotary, or no rotation at all), multiplied by
// `factor`. One warp takes part.
template <class Spec, class To, class From>
LAZYROPE_DEVICE void copy_unrotated(To to, From from, int32 num_rows, float factor) {
  using Run = typename UnitRotation<typename Spec::Pairing>::Run;
  constexpr int kColumns = Spec::Pairing::kPairs;
  constexpr int kFirst = 2 * Spec::Pairing::kUnits;
  constexpr int kCount = Spec::kHeadDim / kColumns - kFirst;
  if constexpr (kCount > 0) {
#pragma unroll 1
    for (int32 i = lane_index(); i < num_rows * kCount; i += kWarpThreads) {
      const int32 row = i / kCount;
      const int32 run_index = kFirst + i % kCount;
      const auto run = ld_shared<Run>(from.template run<kColumns>(row, run_index));
      st_shared(to.template run<kColumns>(row, run_index),
                factor == 1.0f ? run : multiplied<typename Spec::Element>(run, factor));
    }
  }
}

template <class Pairing>
LAZYROPE_DEVICE int32 lane_unit() {
  return static_cast<int32>(static_cast<uint32>(lane_index()) % Pairing::kUnits);
}

// Returns how many consecutive rows each group of kUnits lanes rotates, a multiple of `alignment`.
// Consecutive rows share tokens, so a lane needs few angles.
template <class Pairing>
LAZYROPE_DEVICE constexpr int32 rows_per_lane_group(int32 num_rows, int32 alignment) {
  static_assert(Pairing::kUnits <= kWarpThreads);
  return ceil_div(num_rows, kWarpThreads / Pairing::kUnits * alignment) * alignment;
}

// Computes the rotation of a lane's unit from the revolutions per token, for each row.
template <class Spec>
struct LaneRevolutions {
  using Pairing = typename Spec::Pairing;

  UnitRevolutions<Pairing> revolutions;

  LAZYROPE_DEVICE LaneRevolutions() {
    if constexpr (Pairing::kUnits > 0) revolutions.load(Spec::frequencies(), lane_unit<Pairing>());
  }
  // On entry `rotation` is the previous row's, at position `before`. Sets it to the rotation by
  // `position` - `base`; does nothing if the position is the same.
  LAZYROPE_DEVICE void update(UnitRotation<Pairing>& rotation, int32 before, int32 position,
                              int32 base, float factor) const {
    if (position != before) rotation.set(static_cast<int64>(position) - base, revolutions, factor);
  }
};

// Like LaneRevolutions, for many rows. Most rows are one position after the previous row; composing
// with a one-token rotation costs a sixth of a new sine and cosine. Twenty compositions lose less
// than 2e-5.
template <class Spec>
class LaneSteps {
  using Rotation = UnitRotation<typename Spec::Pairing>;

 public:
  LAZYROPE_DEVICE LaneSteps() { step_.set(1, LaneRevolutions<Spec>().revolutions, 1.0f); }
  LAZYROPE_DEVICE void step(Rotation& rotation) const { rotation.compose(step_); }
  LAZYROPE_DEVICE void update(Rotation& rotation, int32 before, int32 position, int32 base,
                              float factor) const {
    if (position > before && position - 1 == before)
      step(rotation);
    else if (position != before)
      LaneRevolutions<Spec>().update(rotation, before, position, base, factor);
  }

 private:
  Rotation step_;
};

// Selects LaneSteps for lanes with many tokens, most of which have consecutive positions. With few
// tokens LaneRevolutions rotates the first one sooner.
template <class Spec, bool kHasManyTokens>
struct TokenAngles {
  using Type = LaneSteps<Spec>;
};
template <class Spec>
struct TokenAngles<Spec, false> {
  using Type = LaneRevolutions<Spec>;
};
// A lane has many rows only in prefill. With four or more query heads for each KV head, few of them
// begin a new token, so LaneSteps would save little.
template <class Spec, bool kIsPrefill>
using RowAngles = typename TokenAngles<Spec, kIsPrefill && (Spec::kGroupSize < 4)>::Type;

// Holds the angles in registers, or loads (and, for LaneSteps, computes) them again at each get(),
// where registers are scarce.
template <class Angles, bool kHeld>
class LaneAngles {
 public:
  LAZYROPE_DEVICE const Angles& get() const { return angles_; }

 private:
  Angles angles_;
};
template <class Angles>
class LaneAngles<Angles, false> {
 public:
  LAZYROPE_DEVICE Angles get() const { return Angles(); }
};

// Rotates the columns of the lane's unit in its rows of queries. With kMayStoreBack, the rotated
// columns may also be stored to the source rows.
template <class Spec, bool kMayStoreBack, class Angles, class To, class From>
class RowRotator {
  using Pairing = typename Spec::Pairing;
  using Run = typename UnitRotation<Pairing>::Run;
  static constexpr float kFactor = Spec::kQueryRotated ? 1.0f : Spec::kAttentionFactor;

 public:
  // The lane's rows are `first` to `end` - 1; there may be none.
  LAZYROPE_DEVICE RowRotator(To to, From from, SharedPtr positions, int32 first, int32 end,
                             int32 base, const Angles& angles, float scale, bool stores_back)
      : to_(to),
        from_(from),
        positions_(positions),
        base_(base),
        angles_(angles),
        factor_(kFactor * scale),
        unit_(lane_unit<Pairing>()),
        stores_back_(stores_back) {
    if (first < end) at_ = elsewhere(position(first));
  }

  // Rotates rows row to end - 1, token by token: the rows of a token are neighbours and have one
  // angle. kAtOnce rows of a token are loaded before they are rotated. `number` is the row's number
  // in the request.
  template <int kAtOnce>
  LAZYROPE_DEVICE void rotate_tokens(int32 row, int32 end, int32 number) {
    constexpr int kRows = smaller(kAtOnce, Spec::kGroupSize);
    int32 stop = row - static_cast<int32>(static_cast<uint32>(number) % Spec::kGroupSize);
#pragma unroll 1
    while (row < end) {
      set_position(position(row));
      stop = smaller(end, stop + Spec::kGroupSize);
#pragma unroll 1
      for (; row < stop; row += kRows) {
        RowRuns at[kRows];
        Run a[kRows];
        Run b[kRows];
#pragma unroll
        for (int32 i = 0; i < kRows; ++i) {
          // Past the last row, that row is processed again, which is faster than predication.
          at[i] = row_runs(smaller(row + i, stop - 1));
          load(at[i].from, a[i], b[i]);
        }
#pragma unroll
        for (int32 i = 0; i < kRows; ++i) rotate(at[i], a[i], b[i]);
      }
      row = stop;
    }
  }

  // Rotates rows in fours, from a multiple of four on. The addresses of the other three follow from
  // the first. So do their angles: four rows share a token (group size a multiple of 4), or are at
  // consecutive positions (group size 1; otherwise rotate_tokens() takes them). Rows past `end` are
  // rotated, too, which does no harm.
  LAZYROPE_DEVICE void rotate_fours(int32 row, int32 end) {
#pragma unroll 1
    for (; row < end; row += kFour) {
      if constexpr (kStepsByRow) {
        if (!are_consecutive(row)) {
          rotate_tokens<1>(row, smaller(row + kFour, end), 0);
          continue;
        }
      }
      set_position(position(row));
      rotate_four(row_runs(row));
    }
  }

 private:
  // The runs of the lane's unit in one row.
  struct RowRuns {
    UnitRuns from;
    UnitRuns to;
  };

  static constexpr int kFour = 4;
  static constexpr bool kStepsByRow = Spec::kGroupSize == 1 && !Spec::kQueryRotated;

  // Returns a position other than `position` and `position` - 1, so that the first update()
  // computes the angle.
  LAZYROPE_DEVICE static int32 elsewhere(int32 position) { return position ^ 1 << 30; }

  // Tells whether the tokens of four rows have consecutive positions.
  LAZYROPE_DEVICE bool are_consecutive(int32 row) const {
    const auto four = ld_shared<Words<kFour>>(positions_ + row * 4);
    const uint32(&p)[kFour] = four.word;
    const bool wraps = static_cast<int32>(p[3]) < static_cast<int32>(p[0]);
    return p[1] == p[0] + 1 && p[2] == p[0] + 2 && p[3] == p[0] + 3 && !wraps;
  }

  LAZYROPE_DEVICE void rotate_four(const RowRuns& first) {
    constexpr int kAtOnce = kStepsByRow ? 1 : 2;  // rows in registers
#pragma unroll
    for (int32 begin = 0; begin < kFour; begin += kAtOnce) {
      RowRuns at[kAtOnce];
      Run a[kAtOnce];
      Run b[kAtOnce];
#pragma unroll
      for (int32 i = 0; i < kAtOnce; ++i) {
        at[i] = below(first, begin + i);
        load(at[i].from, a[i], b[i]);
      }
      if (kStepsByRow && begin > 0) step();
#pragma unroll
      for (int32 i = 0; i < kAtOnce; ++i) rotate(at[i], a[i], b[i]);
    }
  }

  LAZYROPE_DEVICE void step() {
    if constexpr (kStepsByRow) {
      angles_.step(rotation_);
      ++at_;
    }
  }

  LAZYROPE_DEVICE int32 position(int32 row) const {
    return Spec::kQueryRotated ? 0 : ld_shared<int32>(positions_ + row * 4);
  }
  LAZYROPE_DEVICE void set_position(int32 position) {
    angles_.update(rotation_, at_, position, base_, factor_);
    at_ = position;
  }

  LAZYROPE_DEVICE RowRuns row_runs(int32 row) const {
    return {from_.template runs<Pairing>(row, unit_), to_.template runs<Pairing>(row, unit_)};
  }
  LAZYROPE_DEVICE static RowRuns below(const RowRuns& row_runs, int32 rows) {
    return {From::below(row_runs.from, rows), To::below(row_runs.to, rows)};
  }

  LAZYROPE_DEVICE static void load(UnitRuns from, Run& a, Run& b) {
    a = ld_shared<Run>(from.a);
    b = ld_shared<Run>(from.b);
  }
  LAZYROPE_DEVICE void rotate(const RowRuns& at, Run a, Run b) const {
    rotation_.template apply<typename Spec::Element>(a, b);
    if (kMayStoreBack && stores_back_) store(at.from, a, b);
    store(at.to, a, b);
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
  float factor_;
  int32 unit_;
  bool stores_back_;
  // Initialised, because otherwise the compiler keeps its registers live from the start.
  UnitRotation<Pairing> rotation_ = {};
  int32 at_ = 0;
};

// Rotates num_rows rows of queries by their positions less `base`; the position counts as 0 if
// queries come rotated (Spec::kQueryRotated). One warp takes part. Row 0 is row first_row of the
// request.
//
// The rows come from `from`, which may be `to`. In place, unpaired columns are left unscaled.
// Otherwise they are copied to `to`, multiplied by `scale`. With stores_back, `from` gets the
// rotated columns, too. kAtOnce is the number of rows that a lane loads at once. 4 selects
// rotate_fours() where the group size allows it; the first row is then a multiple of four, and the
// tile has rows up to the next multiple of four.
template <class Spec, int kAtOnce = 1, bool kMayStoreBack = false, class Angles, class To,
          class From>
LAZYROPE_DEVICE void rotate_rows(To to, From from, SharedPtr positions, int32 num_rows,
                                 int32 first_row, int32 base, const Angles& angles,
                                 float scale = 1.0f, bool stores_back = false) {
  using Pairing = typename Spec::Pairing;
  if (!(to.tile == from.tile)) copy_unrotated<Spec>(to, from, num_rows, scale);
  if constexpr (Pairing::kUnits > 0) {
    constexpr int kGroups = kWarpThreads / Pairing::kUnits;
    constexpr int kAlignment = kAtOnce == 4 ? 4 : 1;
    const int32 group = lane_index() / Pairing::kUnits;
    const int32 rows_per_group = rows_per_lane_group<Pairing>(num_rows, kAlignment);
    const int32 first = group * rows_per_group;
    const int32 end = group < kGroups ? smaller(num_rows, first + rows_per_group) : 0;
    RowRotator<Spec, kMayStoreBack, Angles, To, From> rotator(to, from, positions, first, end, base,
                                                              angles, scale, stores_back);
    constexpr bool kSharesAngles = Spec::kGroupSize % 4 == 0 || Spec::kGroupSize == 1;
    if constexpr (kAtOnce == 4 && kSharesAngles)
      rotator.rotate_fours(first, end);
    else
      rotator.template rotate_tokens<kAtOnce == 4 ? 1 : kAtOnce>(first, end, first_row + first);
  }
}

}  // namespace lazyrope
