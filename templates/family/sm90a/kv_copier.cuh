// The KV copier warp copies the keys and values of a work tile's blocks by TMA, directly from their
// pages. If there are two copiers, one copies keys and the other copies values. A single warp
// scheduler that issued both would delay its own consumer warps, and all consumers wait for these.
//
// Reads: the pools of keys and values through tensor maps (abi/attend_tma.h); the block table; the
// bias of keys in decode or if products add it, if the spec has one.
// Writes: stages of the key ring and of the value ring: tiles [kKeys, kHeads * head_dim], or their
// 8-bit form if kWidens. With the keys of a stage come their biases: [kHeads, kKeys] in decode, or
// columns of the score product if products add them (ops/key_bias.cuh).
//
// Role: warp 1, and the last producer warp if there are two copiers. A copier consumes the work
// tile and window pipelines. It produces the key and value pipelines, or the stored pipeline if
// rotators widen the tiles. With two copiers the keys copier also waits for rotated queries, so
// that a document's first keys signal these, too (kKeysSignalQueries).
//
// One TMA copy loads a run of 16 slots, or one of the run's two octets, with all panels of a row.
// Where rows are padded (head_dim 72), each panel of a run has a copy of its own: TMA writes zeros
// for columns outside the tensor, and its bounds are those of a dimension, not of some panels.
// Stages also contain slots outside the segment: see copy_octets() and consumer_pipelines.cuh.
//
// The second half of a block of entries (abi/states.h) goes to the stage of the block's values. It
// has keys.
#pragma once

#include "family/sm90a/window_consumer.cuh"
#include "isa/bulk_copy.cuh"
#include "isa/tensor_copy.cuh"
#include "ops/partial_rows.cuh"

namespace lazyrope {

enum class Copied { kBoth, kKeys, kValues };

template <class Memory, Copied kCopied>
class KvCopier {
  using Table = typename Memory::Table;
  static constexpr int kRuns = Memory::kRuns;
  using Keys = typename Memory::Keys;
  using Values = typename Memory::Values;
  static constexpr int kRunBytes = Values::row_step(1);
  static constexpr int kOctetBytes = Memory::kStoredBytes / kRuns / 2;
  static constexpr bool kSignalsQueries =
      Memory::kKeysSignalQueries && kCopied == Copied::kKeys && !Memory::kWidens;
  // If true, the tile becomes full only when query rotators have widened or transposed it.
  static constexpr bool kIsStored =
      Memory::kWidens || (Memory::kFloat8 && kCopied == Copied::kValues);
  static_assert(!Memory::kFloat8 || kCopied != Copied::kBoth);
  static constexpr bool kCopiesBiases = Memory::kHasKeyBias && !Memory::kIsPrefill;
  // If true, the copier of keys also writes the columns of their biases.
  enum : bool { kWritesBiases = Memory::kMultipliesBiases && kCopied != Copied::kValues };
  static constexpr bool kPrefetchesBiases =
      Memory::kHasKeyBias && Memory::kIsPrefill && kCopied != Copied::kValues && !kWritesBiases;
  using Biases = typename SelectType<kWritesBiases, KeyBiasColumns<Memory::kKeys>, NoKeyBias>::Type;
  // If true, the copier arrives at a tile's barrier some time after it has issued the copies.
  enum : bool { kArrivesLater = kSignalsQueries || kWritesBiases };
  // This octet and the next are outside the pool, and TMA writes zeros for them.
  static constexpr int32 kNoOctet = -2;
  static_assert(kRunSlots == 2 * kOctetSlots);
  // Stage kStages + i of the key ring is stage i of the value ring, in memory and in barriers. One
  // numbering of stages thus serves both rings.
  static_assert(Memory::kLayout.value_ring == Memory::kStages * Memory::kBlockBytes);
  static_assert(Memory::kValueBarriers == Memory::kKeyBarriers + Pipeline<Memory::kStages>::kBytes);

 public:
  LAZYROPE_DEVICE KvCopier(const typename Memory::Params& params, Memory memory)
      : params_(params),
        maps_(params.maps),
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
      else if constexpr (Memory::kIsPrefill)
        copy_keys_ahead(table, num_blocks, stage);
      else
        copy_interleaved(table, num_blocks, stage);
      if (!Memory::kIsPrefill && work_tile.is_last()) prefetch_outputs(work_tile);
    });
  }

 private:
  // The pool coordinates of one of a block's runs. Lane i has those of run i.
  struct BoxCoord {
    int32 octet;
    int32 head;
    int32 octets;      // bit 0 or 1: the run's octet 0 or 1 has slots of the segment
    int32 num_octets;  // octets of the block that have slots of the segment
    uint32 bias;       // the chunk of the bias of the run's first slot, if biases are copied
  };
  static constexpr int32 kBothOctets = 3;

  LAZYROPE_DEVICE void copy(const Table& table, int32 num_blocks, int32 stage) {
    constexpr bool kAreKeys = kCopied == Copied::kKeys;
    const BoxMaps& map = kAreKeys ? maps_.keys : maps_.values;
    PipelineStage<Memory::kStages>& ring = kAreKeys ? key_stage_ : value_stage_;
    int32 block = windows_.begin(stage);
    const int32 end = block + num_blocks;
    bool begins_document = true;
#pragma unroll 1
    while (true) {
      const Biases biases = load_biases(table, block);
      copy_tile(map, locate(table, block), ring.index + (kAreKeys ? 0 : Memory::kStages), biases,
                begins_document);
      ring.advance();
      begins_document = kSignalsQueries && Memory::kHasRotation &&
                        table.info(block).template ends_segment<Memory::Table::kMaxSlots>();
      if (++block == end) break;
      windows_.finish_block(block - 1);
      windows_.enter_block(block);
    }
    windows_.finish_last_block(end - 1);
  }

  // Prefetches the lines to which the CTA's last result goes, and a line of the LSEs of entries.
  // Otherwise the consumers would wait at the end for the kernel's parameters, and for the first
  // translation of these addresses.
  LAZYROPE_DEVICE void prefetch_outputs(WorkTilePtr work_tile) const {
    const KvSplit split = work_tile.split();
    prefetch_global_l2(partial_row<Memory::kHeadDim, Memory::kMemories>(
        attend_.work, split.partial + split.index, 0));
    const int64 token = work_tile.rows().query_token;
    prefetch_global_l2(static_cast<const uint8*>(attend_.out.data) +
                       token * attend_.out.token_stride);
    if constexpr (Memory::kHasStates) prefetch_global_l2(attend_.entry_lse.data);
    if (attend_.lse.data != nullptr)
      prefetch_global_l2(reinterpret_cast<const uint8*>(attend_.lse.data) +
                         token * attend_.lse.token_stride);
  }

  // Copies each block's keys, then its values, with one instance of the code. It issues a block's
  // copies before it waits for the next block's window.
  LAZYROPE_DEVICE void copy_interleaved(const Table& table, int32 num_blocks, int32 stage) {
    int32 block = windows_.begin(stage);
    const int32 end = block + num_blocks;
#pragma unroll 1
    while (true) {
      const bool has_entries = this->has_entries(table, block);
      BoxCoord at{};
      if constexpr (!Memory::kHasStates) at = locate(table, block);
#pragma unroll 1
      for (int32 ring = 0; ring < 2; ++ring) {
        if constexpr (Memory::kHasStates) at = locate(table, block, has_entries ? ring : 0);
        copy_tile(ring == 0 || has_entries ? maps_.keys : maps_.values, at,
                  key_stage_.index + ring * Memory::kStages, Biases{});
      }
      key_stage_.advance();  // values have the same stages in their ring
      is_filled_ |= key_stage_.index == 0;
      if (++block == end) break;
      windows_.finish_block(block - 1);
      windows_.enter_block(block);
    }
    windows_.finish_last_block(end - 1);
  }

  // Copies keys one block ahead of values, because consumers compute the scores of many rows one
  // block ahead of the product with values. The order is keys, keys, values, keys, values, ...,
  // values. One instance of the code copies both.
  LAZYROPE_DEVICE void copy_keys_ahead(const Table& table, int32 num_blocks, int32 stage) {
    const int32 first = windows_.begin(stage);
    const int32 last = first + num_blocks - 1;
    BoxCoord next{};
    BoxCoord before{};
    Biases biases{};
#pragma unroll 1
    for (int32 i = 0; i <= 2 * num_blocks; ++i) {
      const bool are_values = i > 0 && i % 2 == 0;
      const int32 block = first + (i + 1) / 2 - (are_values ? 1 : 0);
      if (!are_values) before = next;
      if (block > last) continue;
      if (!are_values) {
        if (i > 0) windows_.enter_block(block);
        biases = load_biases(table, block);
        next = locate(table, block);
      }
      copy_tile(are_values ? maps_.values : maps_.keys, are_values ? before : next,
                are_values ? Memory::kStages + value_stage_.index : key_stage_.index, biases);
      if (are_values)
        value_stage_.advance();
      else
        key_stage_.advance();
      if (are_values && block < last) windows_.finish_block(block);
    }
    windows_.finish_last_block(last);
  }

  LAZYROPE_DEVICE static bool has_entries(const Table& table, int32 block) {
    if constexpr (Memory::kHasStates) return warp_uniform(is_memory(table.memory_code(block)));
    return false;
  }

  // Finds the coordinates of this lane's run, in one half of a block of entries. A run without a
  // slot of the segment is filled with zeros, or is not copied.
  LAZYROPE_DEVICE BoxCoord locate(const Table& table, int32 block, int32 half = 0) const {
    const int32 run = smaller(lane_index(), kRuns - 1);
    BlockInfo info = table.info(block);
    const RunLocation location = table.run(block, half * kRuns + run);
    if constexpr (Memory::kHasStates) {
      info.begin = larger(info.begin - half * Memory::kKeys, 0);
      info.end = larger(info.end - half * Memory::kKeys, 0);
    }
    const bool exists = (run + 1) * kRunSlots > info.begin && run * kRunSlots < info.end;
    BoxCoord found = {exists ? octet_of(location) : kNoOctet, head_of(location), 0, 0, 0};
    if constexpr (kCopiesBiases) found.bias = bias_chunk(params_.key_bias, location, kv_head_);
    if constexpr (kPrefetchesBiases) prefetch_biases(location);
    if constexpr (Memory::kSkipsOctets) {
      const int32 middle = run * kRunSlots + kOctetSlots;
      if (exists && info.begin < middle) found.octets |= 1;
      if (exists && info.end > middle) found.octets |= 2;
      found.num_octets =
          ceil_div(smaller(info.end, Memory::kKeys), kOctetSlots) - info.begin / kOctetSlots;
    }
    return found;
  }

  // Copies a block's keys or values to a stage. Consumers that release the stage soon wait for its
  // next tile. Therefore all work that does not need the stage, such as the shuffles, comes before
  // acquire().
  //
  // With `with_queries` the stage becomes full only after the rotators have also made the
  // document's rotated queries. Rotators that widen tiles need no such signal, because they rotate
  // before they widen.
  LAZYROPE_DEVICE void copy_tile(const BoxMaps& map, BoxCoord of_lane, int32 stage,
                                 const Biases& biases, bool with_queries = false) {
    BoxCoord coords[kRuns];
#pragma unroll
    for (int32 run = 0; run < kRuns; ++run)
      coords[run] = {shfl_sync_idx(of_lane.octet, run), shfl_sync_idx(of_lane.head, run), 0, 0,
                     kCopiesBiases ? shfl_sync_idx(of_lane.bias, run) : 0};
    const bool skips_octets =
        Memory::kSkipsOctets && is_filled_ && of_lane.num_octets < Memory::kKeys / kOctetSlots;
    tiles_.acquire(stage);
    const SharedPtr barrier =
        kIsStored ? stored_.signal_barrier(stage) : tiles_.signal_barrier(stage);
    // The barrier expects the biases before the arrival of the keys could complete its phase.
    if constexpr (kCopiesBiases) {
      if (stage < Memory::kStages && elect_sync())
        mbarrier_expect_tx(barrier, Memory::kBiasBytesOfStage);
    }
    if (elect_sync())
      expect_bytes(barrier, skips_octets ? of_lane.num_octets * kOctetBytes : tile_bytes());
    const SharedPtr tile = tile_of(stage);
    if (skips_octets)
      copy_octets(map, tile, of_lane, barrier);
    else
      copy_runs(map, tile, coords, barrier);
    if constexpr (kCopiesBiases) {
      if (stage < Memory::kStages) copy_biases(stage, coords, barrier);
    }
    if constexpr (kWritesBiases) {
      if (kCopied == Copied::kKeys || stage < Memory::kStages) {
        biases.store(memory_.key_biases(stage));
        fence_proxy_async();
      }
      bar_warp_sync();  // the arrival is that of all lanes
    }
    if constexpr (kArrivesLater) {
      if (with_queries) await_rotated_queries();
      // All lanes have returned from the wait before the arrival. A lane that tested the barrier
      // later might find the next phase.
      if (elect_sync()) mbarrier_arrive(barrier);
    }
  }
  LAZYROPE_DEVICE static void expect_bytes(SharedPtr barrier, int32 bytes) {
    if constexpr (kArrivesLater)
      mbarrier_expect_tx(barrier, bytes);
    else
      mbarrier_arrive_expect_tx(barrier, bytes);
  }
  LAZYROPE_DEVICE void await_rotated_queries() {
    rotated_.wait(rotated_stage_.index);
    rotated_stage_.advance();
  }

  static constexpr int tile_bytes() {
    return Memory::pads_rows() && kCopied == Copied::kValues ? Memory::value_block_bytes()
                                                             : Memory::kStoredBytes;
  }
  LAZYROPE_DEVICE SharedPtr tile_of(int32 stage) const {
    if constexpr (Memory::pads_rows() && kCopied == Copied::kValues)
      return memory_.values(stage - Memory::kStages);
    else
      return memory_.keys(stage) + Memory::kStoredAt;
  }

  // One lane issues all copies, so their operands are warp-uniform, as the instruction needs them.
  // Copies by several lanes would run one after another, and each would take twice as long.
  LAZYROPE_DEVICE void copy_runs(const BoxMaps& map, SharedPtr tile,
                                 const BoxCoord (&coords)[kRuns], SharedPtr barrier) const {
    if (elect_sync()) {
#pragma unroll
      for (int32 run = 0; run < kRuns; ++run) {
        const int32 at[5] = {0, 0, 0, coords[run].octet, coords[run].head};
        load(tile + run * kRunBytes, map.runs, at, barrier);
        if constexpr (Memory::pads_rows()) copy_last_panel(map, tile, coords[run], run, barrier);
      }
    }
  }
  // Copies the last of the two panels of a padded row, for the slots of a run.
  LAZYROPE_DEVICE static void copy_last_panel(const BoxMaps& map, SharedPtr tile,
                                              const BoxCoord& coord, int32 run, SharedPtr barrier) {
    static_assert(kCopied != Copied::kBoth && Values::kPanels == 2 && !Memory::kSkipsOctets);
    const int32 at[5] = {Keys::kFirstColumns, 0, 0, coord.octet, coord.head};
    if constexpr (kCopied == Copied::kKeys)
      load(tile + (Keys::kLastAt + run * Keys::Last::row_step(1)), map.smaller, at, barrier);
    else
      load(tile + (Values::panel_distance() + run * kRunBytes), map.runs, at, barrier);
  }
  // Loads the biases of a block's keys. They arrive while the copier waits for a stage, so that it
  // can write their columns once it has issued the copies.
  LAZYROPE_DEVICE Biases load_biases(const Table& table, int32 block) const {
    Biases biases;
    if constexpr (kWritesBiases) biases.load(params_.key_bias, table, block, kv_head_);
    return biases;
  }
  // Copies the biases of all runs of a block. A run without a slot of the segment gets those of
  // some slot of page 0, whose scores are masked.
  LAZYROPE_DEVICE void copy_biases(int32 stage, const BoxCoord (&coords)[kRuns],
                                   SharedPtr barrier) const {
    if constexpr (kCopiesBiases) {
      constexpr int32 kBytes = kRunSlots * kBiasBytes;
      if (elect_sync()) {
#pragma unroll
        for (int32 run = 0; run < kRuns; ++run)
#pragma unroll
          for (int32 head = 0; head < Memory::kHeads; ++head)
            cp_async_bulk_shared_global(
                memory_.key_biases(stage) + (head * kRuns + run) * kBytes,
                bias_address(params_.key_bias, coords[run].bias + static_cast<uint32>(head) *
                                                                      params_.key_bias.head_chunks),
                kBytes, barrier);
      }
    }
  }
  // Consumers load the biases later from L2.
  LAZYROPE_DEVICE void prefetch_biases(const RunLocation& location) const {
    if constexpr (kPrefetchesBiases) {
      const uint32 chunk = bias_chunk(params_.key_bias, location, kv_head_);
      if (lane_index() < kRuns) prefetch_global_l2(bias_address(params_.key_bias, chunk));
    }
  }
  // Copies only the octets that have slots of the segment, for blocks where a segment begins or
  // ends. The other octets keep old data. Consumers clear them in values (consumer_pipelines.cuh)
  // and mask the scores of their keys.
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
      load(tile + (run * kRunBytes + first * kOctetBytes),
           octets == kBothOctets ? map.runs : map.smaller, at, barrier);
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

  const typename Memory::Params& params_;
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
  // True after each stage of the rings has been filled once. Octets that are not copied then
  // contain old data, not uninitialized memory.
  bool is_filled_ = false;
};

}  // namespace lazyrope
