// Partial results of rows in global memory, which one CTA writes and another reads.
//
// A word is 0 until it is written, and is never written as 0. So the reader needs no flag: it loads
// the word again until it is not 0. A zero value is written as the least positive denormal, which
// makes no difference, and a zero statistic as -0. The CTA that has combined a word sets it to 0
// for the next launch. Words of best entries are never 0 (abi/states.h).
#pragma once

#include "abi/step.h"
#include "isa/sync.cuh"
#include "ops/combine.cuh"
#include "ops/states.cuh"

namespace lazyrope {

// Returns the address of a row of a partial result.
template <int kHeadDim, int kMemories = 0>
LAZYROPE_DEVICE uint8* partial_row(const WorkView& work, int32 partial, int32 row) {
  constexpr int32 kRowBytes = partial_row_bytes(kHeadDim, kMemories > 0 ? kRowEntryBytes : 0);
  const int32 index = partial * work.partial_row_count + row;
  return work.partials + static_cast<uint64>(kRowBytes) * static_cast<uint32>(index);
}

// The words of a row's best entries, two entries a chunk.
template <int kMemories>
struct EntryWords {
  static constexpr int32 kChunks = kMemories / 2;
  static_assert(kMemories % 2 == 0);
  Chunk chunk[kChunks];
};
template <>
struct EntryWords<0> {
  static constexpr int32 kChunks = 0;
};

// The partial rows of a tile. A row is divided into slices of kColumns columns, each with its own
// copy of the row's statistics and best entries. A lane loads kQuads quads of a slice at once.
template <int kHeadDim, int kColumns, int kQuads = 1, int kMemories = 0>
class PartialRows {
  static constexpr int32 kStats = kHeadDim * 4;
  static constexpr int32 kEntries = partial_row_bytes(kHeadDim);
  static constexpr int32 kRowBytes =
      partial_row_bytes(kHeadDim, kMemories > 0 ? kRowEntryBytes : 0);
  using Entries = RowEntries<kMemories>;

 public:
  static constexpr int32 kLaneQuads = kQuads;
  static constexpr int32 kSliceQuads = kColumns / 4;
  static constexpr int32 kNumSlices = (kHeadDim + kColumns - 1) / kColumns;
  static constexpr int32 kSliceLanes = kSliceQuads / kLaneQuads;  // the stride of a lane's quads
  static_assert(kNumSlices <= num_slices(kHeadDim));

  LAZYROPE_DEVICE PartialRows(const WorkView& work, KvSplit split) : work_(work), split_(split) {}

  // Writes columns 4 * quad to 4 * quad + 3 of a row of the CTA's own split. With the first quad of
  // a slice it also writes the slice's statistics and entries.
  LAZYROPE_DEVICE void write(int32 row, int32 quad, const RowQuad& partial,
                             const Entries& entries) const {
    uint8* to = at(split_.index, row);
    const float* v = partial.value;
    st_relaxed_gpu(values(to, quad),
                   Chunk{{nonzero(v[0]), nonzero(v[1]), nonzero(v[2]), nonzero(v[3])}});
    if (quad % kSliceQuads != 0) return;
    write_stats(to, quad / kSliceQuads, partial.stats);
    write_entries(to, quad / kSliceQuads, entries);
  }

  // Four lanes write a whole row together. Each has two of every eight columns, as in an
  // accumulator tile.
  LAZYROPE_DEVICE void write_pairs(int32 row, int32 lane,
                                   const RowQuads<(kHeadDim + 15) / 16>& pairs,
                                   const Entries& entries = {}) const {
    uint8* to = at(split_.index, row);
#pragma unroll
    for (int32 n = 0; n < kHeadDim / 8; ++n)
      st_relaxed_gpu(reinterpret_cast<Word2*>(to + lane * 8) + 4 * n,
                     Word2{{nonzero(pairs.value[2 * n]), nonzero(pairs.value[2 * n + 1])}});
#pragma unroll
    for (int32 slice = lane; slice < kNumSlices; slice += 4) {
      write_stats(to, slice, pairs.stats);
      write_entries(to, slice, entries);
    }
  }

  // The words that a lane has loaded.
  struct LoadedWords {
    Chunk values[kLaneQuads];
    Word2 stats;
    [[no_unique_address]] EntryWords<kMemories> entries;

    // Only the least of all words is compared with 0.
    LAZYROPE_DEVICE bool is_complete() const {
      uint32 least = smaller(stats.word[0], stats.word[1]);
#pragma unroll
      for (const Chunk& quad : values) least = smaller(least, least_of(quad));
      if constexpr (kMemories > 0) {
#pragma unroll
        for (const Chunk& pair : entries.chunk) least = smaller(least, least_of(pair));
      }
      return least != 0;
    }
    LAZYROPE_DEVICE Entries best_entries() const {
      Entries best;
      if constexpr (kMemories > 0) {
#pragma unroll
        for (int i = 0; i < kMemories; ++i) {
          const Chunk& pair = entries.chunk[i / 2];
          best.of[i] = {pair.word[i % 2 * 2], pair.word[i % 2 * 2 + 1]};
        }
      }
      return best;
    }
    LAZYROPE_DEVICE RowQuads<kLaneQuads> partial() const {
      RowQuads<kLaneQuads> partial;
      partial.stats = {bits_as_float(stats.word[0]), bits_as_float(stats.word[1])};
#pragma unroll
      for (int i = 0; i < 4 * kLaneQuads; ++i)
        partial.value[i] = bits_as_float(values[i / 4].word[i % 4]);
      return partial;
    }

   private:
    LAZYROPE_DEVICE static uint32 least_of(const Chunk& words) {
      return smaller(smaller(words.word[0], words.word[1]), smaller(words.word[2], words.word[3]));
    }
  };

  // A lane's quads of a row, in all splits.
  class Columns {
   public:
    LAZYROPE_DEVICE Columns(uint8* row, int32 quad, uint32 split_bytes)
        : values_(values(row, quad)),
          stats_(stats(row, quad / kSliceQuads)),
          entries_(entries(row, quad / kSliceQuads)),
          split_bytes_(split_bytes),
          has_stats_(quad % kSliceQuads == 0) {}

    // Loads a split's words if `wanted`. There is no arithmetic on them here, because it would wait
    // for the loads.
    LAZYROPE_DEVICE void load_if(bool wanted, int32 split, LoadedWords& words) const {
#pragma unroll
      for (int i = 0; i < kLaneQuads; ++i)
        ld_relaxed_gpu_if(wanted, of_split(values_, split) + i * kSliceLanes, words.values[i]);
      ld_relaxed_gpu_if(wanted, of_split(stats_, split), words.stats);
      if constexpr (kMemories > 0) {
#pragma unroll
        for (int i = 0; i < EntryWords<kMemories>::kChunks; ++i)
          ld_relaxed_gpu_if(wanted, of_split(entries_, split) + i, words.entries.chunk[i]);
      }
    }
    // Returns true if a split's statistics have been written.
    LAZYROPE_DEVICE bool has_stats(int32 split) const {
      const Word2 stats = ld_relaxed_gpu(of_split(stats_, split));
      return stats.word[0] != 0 && stats.word[1] != 0;
    }
    LAZYROPE_DEVICE void clear(int32 split) const {
#pragma unroll
      for (int i = 0; i < kLaneQuads; ++i)
        st_relaxed_gpu(of_split(values_, split) + i * kSliceLanes, Chunk{});
      if (!has_stats_) return;
      st_relaxed_gpu(of_split(stats_, split), Word2{});
#pragma unroll
      for (int i = 0; i < EntryWords<kMemories>::kChunks; ++i)
        st_relaxed_gpu(of_split(entries_, split) + i, Chunk{});
    }

   private:
    template <class T>
    LAZYROPE_DEVICE T* of_split(T* first, int32 split) const {
      return reinterpret_cast<T*>(reinterpret_cast<uint8*>(first) +
                                  split_bytes_ * static_cast<uint32>(split));
    }

    Chunk* values_;
    Word2* stats_;
    Chunk* entries_;
    uint32 split_bytes_;  // the splits of a tile take less than 4 GB
    bool has_stats_;
  };

  // Returns the lane's quads of a row, the first of which is `quad`.
  LAZYROPE_DEVICE Columns columns(int32 row, int32 quad) const {
    return {at(0, row), quad, static_cast<uint32>(work_.partial_row_count * kRowBytes)};
  }

 private:
  // Replaces a zero value by the least positive denormal, in one instruction.
  LAZYROPE_DEVICE static uint32 nonzero(float value) { return larger(float_as_bits(value), 1u); }
  // Replaces a zero statistic by -0. A sum of zero has a meaning, so it must stay zero.
  LAZYROPE_DEVICE static uint32 not_zero(float value) {
    const uint32 bits = float_as_bits(value);
    return bits == 0 ? 0x80000000u : bits;
  }
  LAZYROPE_DEVICE static void write_stats(uint8* row, int32 slice, RowStats of_row) {
    st_relaxed_gpu(stats(row, slice), Word2{{not_zero(of_row.maximum), not_zero(of_row.sum)}});
  }

  LAZYROPE_DEVICE static void write_entries(uint8* row, int32 slice, const Entries& best) {
    if constexpr (kMemories > 0) {
#pragma unroll
      for (int i = 0; i < kMemories; i += 2)
        st_relaxed_gpu(entries(row, slice) + i / 2,
                       Chunk{{best.of[i].inverse, best.of[i].order, best.of[i + 1].inverse,
                              best.of[i + 1].order}});
    }
  }

  LAZYROPE_DEVICE uint8* at(int32 split, int32 row) const {
    return partial_row<kHeadDim, kMemories>(work_, split_.partial + split, row);
  }
  LAZYROPE_DEVICE static Chunk* entries(uint8* row, int32 slice) {
    return reinterpret_cast<Chunk*>(row + (kEntries + slice * kRowEntryBytes));
  }
  LAZYROPE_DEVICE static Chunk* values(uint8* row, int32 quad) {
    return reinterpret_cast<Chunk*>(row) + quad;
  }
  LAZYROPE_DEVICE static Word2* stats(uint8* row, int32 slice) {
    return reinterpret_cast<Word2*>(row + kStats) + slice;
  }

  const WorkView& work_;
  KvSplit split_;
};

}  // namespace lazyrope
