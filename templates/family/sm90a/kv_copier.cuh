// The warp that asks for the keys and values of a work tile's blocks, straight from their pages; or
// one for keys and one for values, where a second warp is free: a scheduler that has both in its
// charge holds up those who compute there, for whom the others wait.
#pragma once

#include "family/sm90a/window_consumer.cuh"
#include "isa/tensor_copy.cuh"
#include "ops/partial_rows.cuh"

namespace lazyrope {

enum class Copied { kBoth, kKeys, kValues };

template <class Memory, Copied kCopied>
class KvCopier {
  using Table = typename Memory::Table;
  static constexpr int kRuns = Memory::kRuns;
  static constexpr int kRunBytes = Memory::kBlockBytes / kRuns;
  static constexpr int kOctetBytes = Memory::kStoredBytes / kRuns / 2;
  static constexpr bool kSignalsQueries =
      Memory::kKeysSignalQueries && kCopied == Copied::kKeys && !Memory::kWidens;
  static constexpr int32 kNoOctet = -2;  // an octet that, with the next, is not there: zeros
  static_assert(kRunSlots == 2 * kOctetSlots);
  // Values' places, and their barriers, lie behind those of keys: one numbering for both.
  static_assert(Memory::kValueRing == Memory::kKeyRing + Memory::kStages * Memory::kBlockBytes);
  static_assert(Memory::kValueBarriers == Memory::kKeyBarriers + Pipeline<Memory::kStages>::kBytes);

 public:
  LAZYROPE_DEVICE KvCopier(const TmaAttendParams& params, Memory memory)
      : maps_(params.maps),
        attend_(params.attend),
        memory_(memory),
        windows_(memory),
        tiles_(memory.at + Memory::kKeyBarriers),
        stored_(memory.at + Memory::kStoredBarriers),
        rotated_(memory.at + Memory::kRotatedBarriers) {}

  LAZYROPE_DEVICE void run() {
    for_each_work_tile(memory_, [&](WorkTilePtr work_tile, int32 stage) {
      kv_head_ = work_tile.rows().kv_head;
      const int32 num_blocks = work_tile.extent().num_blocks;
      if (num_blocks == 0) return;
      if constexpr (Memory::kQueriesIssueFirst) memory_.query_order().await_issued();
      const Table table = memory_.table(attend_.step, work_tile);
      if constexpr (kCopied != Copied::kBoth)
        copy(table, num_blocks, stage);
      else if constexpr (Memory::kHasManyRows)
        copy_keys_ahead(table, num_blocks, stage);
      else
        copy_interleaved(table, num_blocks, stage);
      if (!Memory::kHasManyRows && work_tile.is_last()) prefetch_outputs(work_tile);
    });
  }

 private:
  // Of one of a block's runs, lane i that of run i: from which octet of the pool, and head, on.
  struct BoxCoord {
    int32 octet;
    int32 head;
    int32 octets;      // which of its two have slots of the segment, a bit each
    int32 num_octets;  // of the block that have some
  };
  static constexpr int32 kBoth = 3;

  LAZYROPE_DEVICE void copy(const Table& table, int32 num_blocks, int32 stage) {
    constexpr bool kAreKeys = kCopied == Copied::kKeys;
    const BoxMaps& map = kAreKeys ? maps_.keys : maps_.values;
    PipelineStage<Memory::kStages>& ring = kAreKeys ? key_stage_ : value_stage_;
    int32 block = windows_.begin(stage);
    const int32 end = block + num_blocks;
    bool begins_document = true;
#pragma unroll 1
    while (true) {
      copy_tile(map, locate(table, block), ring.index + (kAreKeys ? 0 : Memory::kStages),
                begins_document);
      ring.advance();
      begins_document = kSignalsQueries && Memory::kHasRotation &&
                        table.info(block).template ends_segment<Memory::kKeys>();
      if (++block == end) break;
      windows_.finish_block(block - 1);
      windows_.enter_block(block);
    }
    windows_.finish_last_block(end - 1);
  }

  // Where the CTA's last result goes to. Else those who write it would wait then for the parameters
  // that say so, and for translations of the addresses, as nobody has needed them before.
  LAZYROPE_DEVICE void prefetch_outputs(WorkTilePtr work_tile) const {
    const KvSplit split = work_tile.split();
    prefetch_global_l2(partial_row<Memory::kHeadDim>(attend_.work, split.partial + split.index, 0));
    const int64 token = work_tile.rows().query_token;
    prefetch_global_l2(static_cast<const uint8*>(attend_.out.data) +
                       token * attend_.out.token_stride);
    if (attend_.lse.data != nullptr)
      prefetch_global_l2(reinterpret_cast<const uint8*>(attend_.lse.data) +
                         token * attend_.lse.token_stride);
  }

  // A block's keys, then its values, by one copy of the code: what is known of a block is on its
  // way before the next one's window is waited for.
  LAZYROPE_DEVICE void copy_interleaved(const Table& table, int32 num_blocks, int32 stage) {
    int32 block = windows_.begin(stage);
    const int32 end = block + num_blocks;
#pragma unroll 1
    while (true) {
      const BoxCoord at = locate(table, block);
#pragma unroll 1
      for (int32 of = 0; of < 2; ++of)
        copy_tile(of == 0 ? maps_.keys : maps_.values, at, key_stage_.index + of * Memory::kStages);
      key_stage_.advance();  // values have the same places in their ring
      is_filled_ |= key_stage_.index == 0;
      if (++block == end) break;
      windows_.finish_block(block - 1);
      windows_.enter_block(block);
    }
    windows_.finish_last_block(end - 1);
  }

  // Keys go one block ahead of values, as many rows' scores go one ahead of what they weigh: keys,
  // keys, values, keys, values ... values, by one copy of the code.
  LAZYROPE_DEVICE void copy_keys_ahead(const Table& table, int32 num_blocks, int32 stage) {
    const int32 first = windows_.begin(stage);
    const int32 last = first + num_blocks - 1;
    BoxCoord next{};
    BoxCoord before{};
#pragma unroll 1
    for (int32 i = 0; i <= 2 * num_blocks; ++i) {
      const bool are_values = i > 0 && i % 2 == 0;
      const int32 block = first + (i + 1) / 2 - (are_values ? 1 : 0);
      if (!are_values) before = next;
      if (block > last) continue;
      if (!are_values) {
        if (i > 0) windows_.enter_block(block);
        next = locate(table, block);
      }
      copy_tile(are_values ? maps_.values : maps_.keys, are_values ? before : next,
                are_values ? Memory::kStages + value_stage_.index : key_stage_.index);
      if (are_values)
        value_stage_.advance();
      else
        key_stage_.advance();
      if (are_values && block < last) windows_.finish_block(block);
    }
    windows_.finish_last_block(last);
  }

  // Runs without a slot of the segment are zero, or not brought.
  LAZYROPE_DEVICE BoxCoord locate(const Table& table, int32 block) const {
    const int32 run = smaller(lane_index(), kRuns - 1);
    const BlockInfo info = table.info(block);
    const RunLocation location = table.run(block, run);
    const bool exists = (run + 1) * kRunSlots > info.begin && run * kRunSlots < info.end;
    BoxCoord found = {exists ? octet_of(location) : kNoOctet, head_of(location), 0, 0};
    if constexpr (Memory::kSkipsOctets) {
      const int32 middle = run * kRunSlots + kOctetSlots;
      if (exists && info.begin < middle) found.octets |= 1;
      if (exists && info.end > middle) found.octets |= 2;
      found.num_octets =
          ceil_div(smaller(info.end, Memory::kKeys), kOctetSlots) - info.begin / kOctetSlots;
    }
    return found;
  }

  // Who gives a tile back waits for what comes into its place: what can be done before is done
  // before, and what lanes exchange no compiler puts behind the wait.
  // `with_queries`: the tile is there once these are, which warps turn meanwhile. Warps that widen
  // tiles, too, do so when they have turned queries, which tells enough.
  LAZYROPE_DEVICE void copy_tile(const BoxMaps& map, BoxCoord of_lane, int32 stage,
                                 bool with_queries = false) {
    BoxCoord coords[kRuns];
#pragma unroll
    for (int32 run = 0; run < kRuns; ++run)
      coords[run] = {shfl_sync_idx(of_lane.octet, run), shfl_sync_idx(of_lane.head, run), 0, 0};
    const bool skips_octets =
        Memory::kSkipsOctets && is_filled_ && of_lane.num_octets < Memory::kKeys / kOctetSlots;
    tiles_.acquire(stage);
    const SharedPtr barrier =
        Memory::kWidens ? stored_.signal_barrier(stage) : tiles_.signal_barrier(stage);
    if (elect_sync())
      expect_bytes(barrier, skips_octets ? of_lane.num_octets * kOctetBytes : Memory::kStoredBytes);
    const SharedPtr tile = memory_.keys(stage) + Memory::kStoredAt;
    if (skips_octets)
      copy_octets(map, tile, of_lane, barrier);
    else
      copy_runs(map.runs, tile, coords, barrier);
    if constexpr (kSignalsQueries) {
      if (with_queries) await_rotated_queries();
      // All have looked then: a lane that looks late might find the place filled again.
      if (elect_sync()) mbarrier_arrive(barrier);
    }
  }
  LAZYROPE_DEVICE static void expect_bytes(SharedPtr barrier, int32 bytes) {
    if constexpr (kSignalsQueries)
      mbarrier_expect_tx(barrier, bytes);
    else
      mbarrier_arrive_expect_tx(barrier, bytes);
  }
  LAZYROPE_DEVICE void await_rotated_queries() {
    rotated_.wait(rotated_stage_.index);
    rotated_stage_.advance();
  }

  // One lane for the warp: what it gives each copy is then the same for all lanes, as the hardware
  // takes it; copies by several lanes are made one after the other, each twice as slow.
  LAZYROPE_DEVICE void copy_runs(const TensorMap& map, SharedPtr tile,
                                 const BoxCoord (&coords)[kRuns], SharedPtr barrier) const {
    if (elect_sync()) {
#pragma unroll
      for (int32 run = 0; run < kRuns; ++run) {
        const int32 at[5] = {0, 0, 0, coords[run].octet, coords[run].head};
        load(tile + run * kRunBytes, map, at, barrier);
      }
    }
  }
  // The same where a segment begins or ends: the octets that have slots of it. The others' values
  // are cleared by those who compute (family/sm90a/consumer_pipelines.cuh); their keys' scores are
  // masked.
  LAZYROPE_DEVICE void copy_octets(const BoxMaps& map, SharedPtr tile, const BoxCoord& of_lane,
                                   SharedPtr barrier) const {
#pragma unroll 1
    for (int32 run = 0; run < kRuns; ++run) {
      const int32 head = shfl_sync_idx(of_lane.head, run);
      const int32 octet = shfl_sync_idx(of_lane.octet, run);
      const int32 octets = shfl_sync_idx(of_lane.octets, run);
      if (octets == 0 || !elect_sync()) continue;
      const int32 first = octets == 2 ? 1 : 0;
      const int32 at[5] = {0, 0, 0, octet + first, head};
      load(tile + (run * kRunBytes + first * kOctetBytes), octets == kBoth ? map.runs : map.octets,
           at, barrier);
    }
  }

  LAZYROPE_DEVICE static void load(SharedPtr to, const TensorMap& map, const int32 (&at)[5],
                                   SharedPtr barrier) {
    if constexpr (Memory::kReadsOnce)
      cp_async_bulk_tensor_load_evict_first(to, map, at, barrier);
    else
      cp_async_bulk_tensor_load(to, map, at, barrier);
  }

  LAZYROPE_DEVICE int32 octet_of(const RunLocation& location) const {
    return location.page * maps_.octets_per_page +
           static_cast<int32>(static_cast<uint32>(location.slot) / kOctetSlots);
  }
  LAZYROPE_DEVICE int32 head_of(const RunLocation& location) const {
    return location.page * maps_.heads_per_page + kv_head_;
  }

  const PoolMaps& maps_;
  const AttendParams& attend_;
  Memory memory_;
  WindowConsumer<Memory> windows_;
  PipelineProducer tiles_;
  PipelineProducer stored_;
  PipelineConsumer rotated_;
  PipelineStage<Memory::kStages> key_stage_;
  PipelineStage<Memory::kStages> value_stage_;
  PipelineStage<Memory::kRotatedStages> rotated_stage_;
  int32 kv_head_ = 0;
  // Whether each place of the rings has been filled: what is not brought is from before then.
  bool is_filled_ = false;
};

}  // namespace lazyrope
