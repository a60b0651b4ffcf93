// Rotation of raw keys. The pool holds keys that no one rotated, so the kernel rotates a block's
// keys in shared memory by their logical positions, and queries by theirs, whatever their document.
#pragma once

#include "ops/rotate.cuh"

namespace lazyrope {

// Returns the base from which the queries for a segment are rotated, of the segment's base.
template <class Spec>
LAZYROPE_DEVICE int32 query_base(int32 base) {
  return Spec::kRawKeys ? 0 : base;
}

// Rotates the kKeys rows of a tile in place. Row 0 is at logical position `position`, and the other
// rows follow. Each element is rounded once. Groups of kUnits threads of the team have consecutive
// rows, so that a thread computes the angles of its first row only and composes the others. The
// caller synchronizes the team before and after.
template <class Spec, class Team, class Tile, int kKeys>
LAZYROPE_DEVICE void rotate_keys(SharedPtr tile, int32 position) {
  using Pairing = typename Spec::Pairing;
  using Run = typename UnitRotation<Pairing>::Run;
  if constexpr (Pairing::kUnits > 0) {
    constexpr int32 kGroups = smaller(Team::size() / Pairing::kUnits, kKeys);
    constexpr int32 kRows = ceil_div(kKeys, kGroups);
    const int32 group = Team::rank() / Pairing::kUnits;
    const int32 unit = Team::rank() % Pairing::kUnits;
    const int32 first = group * kRows;
    if (group >= kGroups || first >= kKeys) return;
    UnitRevolutions<Pairing> revolutions;
    revolutions.load(Spec::frequencies(), unit);
    UnitRotation<Pairing> rotation;
    UnitRotation<Pairing> step;
    rotation.set(static_cast<int64>(position) + first, revolutions, Spec::kAttentionFactor);
    step.set(1, revolutions, 1.0f);
    const RowsOf<Tile> rows(tile);
#pragma unroll 1
    for (int32 row = first; row < smaller(first + kRows, kKeys); ++row) {
      const UnitRuns runs = rows.template runs<Pairing>(row, unit);
      Run a = ld_shared<Run>(runs.a);
      Run b = ld_shared<Run>(runs.b);
      rotation.template apply<typename Spec::Element>(a, b);
      st_shared(runs.a, a);
      st_shared(runs.b, b);
      rotation.compose(step);
    }
  }
}

}  // namespace lazyrope
