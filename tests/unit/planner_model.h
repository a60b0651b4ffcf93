// A sequential program of the planner's rules. runtime_planner_test.cpp expects that the planner's
// kernel writes the work tiles that this model returns.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/step_layout.h"
#include "templates/planner/policy.h"
#include "tests/support/metadata.h"
#include "tests/support/specs.h"
#include "tests/unit/equal_splits_model.h"
#include "tests/unit/planner_setting.h"

namespace lazyrope {

// A query tile with its blocks and costs.
struct ModelTile {
  int request;
  int first_row;
  int num_rows;
  int first_position;
  int last_position;
  std::vector<int> blocks;  // KV blocks in each of the request's segments
  int num_blocks;
  std::int64_t cost;
  std::int64_t split_cost;
  int split_blocks;
  int num_splits;
};

// A unit: one tile for one group of heads, or one fixed split of such a tile.
struct ModelUnit {
  int tile;
  int group;
  int split;
  int first_block;
  int end_block;
};

// The start of a CTA's share: a unit and a block in it.
struct ModelBoundary {
  int unit;
  int block;
  auto operator<=>(const ModelBoundary&) const = default;
};

class Model {
 public:
  Model(const Setting& setting, const StepArrays& arrays, const PlanPhase& phase)
      : setting_(setting), arrays_(arrays), phase_(phase) {
    find_tiles();
    num_heads_ = heads_per_work_tile();
    num_groups_ = setting.num_kv_heads / num_heads_;
    lose_bits();
    find_units();
    is_round_robin_ = is_round_robin();
    match_whole_units();
    has_equal_splits_ = !boundaries_.empty();
    if (!has_equal_splits_) find_boundaries();
  }

  // Returns true if each CTA has at most one of the equal splits of a unit.
  bool has_equal_splits() const { return has_equal_splits_ && !is_round_robin_ && !is_queued_; }

  // Returns true if all CTAs take units from the atomic queue.
  bool is_queued() const { return is_queued_; }
  bool loses_bits() const { return lost_bits_ > 0; }
  // Returns the units in the order of the queue, complete except for `next`.
  std::vector<WorkTile> queue() const {
    std::vector<WorkTile> work_tiles;
    const int tail = std::min(kTailGroups, num_groups_);
    const auto push = [&](int group, int rank) {
      const int unit = group * static_cast<int>(tiles_.size()) + at(sorted_tiles(), rank);
      work_tiles.push_back(work_tile({unit, 0}, units_[static_cast<std::size_t>(unit)], 0,
                                     tile_of(unit).num_blocks));
      work_tiles.back().split = {0, 1, 0, 0};
      work_tiles.back().num_combiners = 0;
    };
    const int num_tiles = static_cast<int>(tiles_.size());
    for (int group = 0; group < num_groups_ - tail; ++group)
      for (int rank = 0; rank < num_tiles; ++rank) push(group, rank);
    for (int rank = 0; rank < num_tiles; ++rank)
      for (int group = num_groups_ - tail; group < num_groups_; ++group) push(group, rank);
    return work_tiles;
  }

  // Returns the work tiles of a CTA, complete except for `next`.
  std::vector<WorkTile> work_tiles_of(int cta) const {
    if (is_round_robin_) return round_robin_work_tiles(cta);
    std::vector<WorkTile> work_tiles;
    const int share = share_of(cta);
    if (share < 0) return work_tiles;
    ModelBoundary at = boundary(share);
    const ModelBoundary end = boundary(share + 1);
    while (at < end) {
      const ModelUnit& unit = units_[static_cast<std::size_t>(at.unit)];
      const int unit_end = at.unit == end.unit ? end.block : unit.end_block - unit.first_block;
      work_tiles.push_back(
          work_tile(at, unit, unit.first_block + at.block, unit.first_block + unit_end));
      at = {at.unit + 1, 0};
    }
    return work_tiles;
  }

 private:
  // Returns the minimum cost of a share of `blocks` blocks, in the units of total_cost().
  std::int64_t min_cost(int blocks) const { return (min_share_cost(blocks) >> lost_bits_) + 1; }

  // Tries the schedules in the planner's order. The round-robin schedule is taken if its imbalance
  // is small.
  bool is_round_robin() {
    if (has_imbalance_below(kBalancedBits)) return true;
    const bool is_fair = has_imbalance_below(kNearlyBalancedBits);
    is_tile_major_ = !is_fair && num_groups_ > 1;
    if (is_tile_major_ && has_imbalance_below(kTileMajorBits)) return true;
    is_queued_ = queue_pays_off();
    return is_fair && !is_queued_;
  }

  bool queue_pays_off() const {
    if (phase_.has_queue == 0 || phase_.fixed_split_blocks > 0) return false;
    std::int64_t longest = 0;
    for (const ModelTile& tile : tiles_) longest = std::max(longest, tile.cost);
    return kMinQueueUnits * longest * phase_.work.num_ctas <= total_cost() &&
           kQueueSpreadDivisor * longest * num_units() >= kMinQueueSpread * total_cost() &&
           kMinQueueBlocks * kBlockCost * num_units() <= whole_total_cost();
  }
  std::vector<int> sorted_tiles() const {
    std::vector<int> order(tiles_.size());
    std::iota(order.begin(), order.end(), 0);
    if (static_cast<int>(order.size()) > kMaxSortedTiles) return {order.rbegin(), order.rend()};
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return tiles_[static_cast<std::size_t>(a)].cost > tiles_[static_cast<std::size_t>(b)].cost;
    });
    return order;
  }

  // Returns true if the round-robin schedule's longest CTA exceeds the mean by less than one part
  // in 2^bits.
  bool has_imbalance_below(int bits) {
    const int ctas = phase_.work.num_ctas;
    splits_ = num_remaining() > 0 ? ctas / num_remaining() : 1;
    if (phase_.allows_round_robin == 0 || phase_.fixed_split_blocks > 0 ||
        num_rounds() > kMaxRoundRobinRounds)
      return false;
    if (num_whole() > 0 && num_remaining() > 0) split_remainder();
    std::int64_t max = 0;
    for (int cta = 0; cta < ctas; ++cta) {
      std::int64_t cost = 0;
      for (const auto& [unit, split] : assigned_splits(cta))
        cost += (tile_of(unit_in_order(unit)).cost + splits_of(unit) - 1) / splits_of(unit);
      max = std::max(max, cost);
    }
    if (num_whole() == 0 && splits_ > 1 &&
        whole_total_cost() <
            std::int64_t{min_share_cost(min_split_blocks_)} * splits_ * num_units())
      return false;
    return max * ctas <= total_cost() + (total_cost() >> bits);
  }

  int num_units() const { return static_cast<int>(units_.size()); }
  int num_remaining() const { return num_units() % phase_.work.num_ctas; }
  int num_whole() const { return num_units() - num_remaining(); }
  int splits_of(int unit) const { return unit < num_whole() ? 1 : splits_; }
  int num_rounds() const {
    const int ctas = phase_.work.num_ctas;
    return (num_whole() + num_remaining() * splits_ + ctas - 1) / ctas;
  }

  // Splits the units of the incomplete last round into as many splits as there are CTAs for. There
  // are at most sixteen splits, and none is shorter than the minimum.
  void split_remainder() {
    int blocks = 0;
    for (int unit = num_whole(); unit < num_units(); ++unit)
      blocks = std::max(blocks, tile_of(unit_in_order(unit)).num_blocks);
    const int splits =
        std::clamp(phase_.work.num_ctas / num_remaining(), 1,
                   std::clamp(blocks / phase_.min_split_blocks, 1, kMaxRemainderSplits));
    const int saved = blocks - (blocks + splits - 1) / splits;
    splits_ = saved * kBlockCost > kCombineCost ? splits : 1;
  }

  std::int64_t total_cost() const {
    std::int64_t total_cost = 0;
    for (const ModelTile& tile : tiles_) total_cost += tile.cost * num_groups_;
    return total_cost;
  }
  std::int64_t whole_total_cost() const { return total_cost() << lost_bits_; }
  // Drops low bits of all costs if the costs of all heads together may exceed 2^30.
  void lose_bits() {
    std::int64_t all = 0;
    for (const ModelTile& tile : tiles_) all += tile.cost;
    while (all >> lost_bits_ > phase_.max_group_cost) ++lost_bits_;
    std::int64_t before = 0;
    for (ModelTile& tile : tiles_) {
      const std::int64_t through = before + tile.cost;
      tile.cost = (through >> lost_bits_) - (before >> lost_bits_);
      before = through;
    }
    work_tile_cost_ >>= lost_bits_;
  }
  const ModelTile& tile_of(int unit) const {
    return tiles_[static_cast<std::size_t>(units_[static_cast<std::size_t>(unit)].tile)];
  }

  // Returns the unit with index `unit` in the round-robin order. This is the same unit, or the
  // units in tile-major order: the last tile for all heads, then the tile before it, and so on.
  int unit_in_order(int unit) const {
    if (!is_tile_major_) return unit;
    const int per_group = num_units() / num_groups_;
    return unit % num_groups_ * per_group + per_group - 1 - unit / num_groups_;
  }

  // Returns the (unit, split) pairs of a CTA. Every second round assigns CTAs in reverse order.
  std::vector<std::pair<int, int>> assigned_splits(int cta) const {
    const int ctas = phase_.work.num_ctas;
    std::vector<std::pair<int, int>> splits;
    for (int round = 0; round < num_rounds(); ++round) {
      const int index = round * ctas + (round % 2 == 0 ? cta : ctas - 1 - cta);
      const int remaining = index - num_whole();
      if (remaining < 0)
        splits.emplace_back(index, 0);
      else if (remaining / splits_ < num_remaining())
        splits.emplace_back(num_whole() + remaining / splits_, remaining % splits_);
    }
    return splits;
  }

  std::vector<WorkTile> round_robin_work_tiles(int cta) const {
    std::vector<WorkTile> work_tiles;
    for (const auto& [unit, split] : assigned_splits(cta)) {
      const int blocks = tile_of(unit_in_order(unit)).num_blocks;
      const int count = std::max(std::min(splits_of(unit), blocks), 1);
      if (split >= count) continue;
      const int first = blocks * split / count;
      work_tiles.push_back(work_tile({unit_in_order(unit), first},
                                     units_[static_cast<std::size_t>(unit_in_order(unit))], first,
                                     blocks * (split + 1) / count));
      const int remaining = std::max(unit - num_whole(), 0);
      work_tiles.back().split = {split, count, remaining * splits_, remaining};
      work_tiles.back().num_combiners = count;
    }
    return work_tiles;
  }

  int num_requests() const { return static_cast<int>(arrays_.q_indptr.size()) - 1; }
  int rows_of(int request) const {
    const int rows =
        (at(arrays_.q_indptr, request + 1) - at(arrays_.q_indptr, request)) * setting_.group_size;
    return rows >= phase_.min_rows && rows <= phase_.max_rows ? rows : 0;
  }

  void find_tiles() {
    for (int r = 0; r < num_requests(); ++r)
      for (int row = 0; row < rows_of(r); row += phase_.tile_rows.value)
        tiles_.push_back(tile(r, row, std::min(rows_of(r) - row, phase_.tile_rows.value)));
  }

  ModelTile tile(int request, int first_row, int num_rows) const {
    ModelTile tile = {request, first_row, num_rows, kLargest, -kLargest - 1, {}, 0, 0, 0, 0, 1};
    for (int row = first_row; row < first_row + num_rows; ++row) {
      const int position =
          at(arrays_.q_position, at(arrays_.q_indptr, request) + row / setting_.group_size);
      tile.first_position = std::min(tile.first_position, position);
      tile.last_position = std::max(tile.last_position, position);
    }
    for (int s = at(arrays_.segment_indptr, request); s < at(arrays_.segment_indptr, request + 1);
         ++s) {
      const auto [begin, end] = slots(tile, s);
      const std::int64_t first = begin / 16 * 16;
      const int keys = phase_.block_keys.value;
      tile.blocks.push_back(end > begin ? static_cast<int>((end - first + keys - 1) / keys) : 0);
      tile.num_blocks += tile.blocks.back();
      tile.cost += tile.blocks.back() > 0 ? kSegmentCost : 0;
    }
    tile.split_blocks = tile.num_blocks;
    if (phase_.fixed_split_blocks > 0) {
      const auto splits_of = [&](int blocks) { return (tile.num_blocks + blocks - 1) / blocks; };
      const int asked = splits_of(phase_.fixed_split_blocks);
      const int splits = std::clamp(asked, 1, max_fixed_splits(request));
      tile.split_blocks = (tile.num_blocks + splits - 1) / splits;
      tile.num_splits = tile.num_blocks == 0 ? 1 : splits_of(tile.split_blocks);
      tile.cost = 0;
    }
    tile.cost += std::int64_t{phase_.work_tile_cost} + std::int64_t{kBlockCost} * tile.split_blocks;
    const int fixed_splits = phase_.fixed_split_blocks > 0 ? kMaxFixedSplits : 1;
    tile.split_cost = std::min(tile.cost, std::int64_t{kMaxTileCost / fixed_splits});
    tile.cost = tile.num_splits * tile.split_cost;
    return tile;
  }

  int max_fixed_splits(int request) const {
    if (phase_.allows_round_robin == 0) return kMaxFixedSplits;
    const int tile_rows = phase_.tile_rows.value;
    const int units = (rows_of(request) + tile_rows - 1) / tile_rows * phase_.max_head_groups;
    return std::clamp(kMaxRequestSplits / units, 1, kMaxFixedSplits);
  }

  std::int64_t origin(int s) const {
    return std::int64_t{at(arrays_.base, s)} + at(arrays_.start, s) - at(arrays_.lead, s);
  }
  std::pair<std::int64_t, std::int64_t> slots(const ModelTile& tile, int s) const {
    const int lead = at(arrays_.lead, s);
    return visible(setting_, tile.first_position, tile.last_position, origin(s), lead,
                   lead + at(arrays_.length, s));
  }

  int heads_per_work_tile() const {
    int most_rows = 1;
    for (int r = 0; r < num_requests(); ++r)
      most_rows = std::max(most_rows, std::min(rows_of(r), phase_.tile_rows.value));
    int heads = phase_.max_heads;
    const auto units = [&] {
      return static_cast<int>(tiles_.size()) * (setting_.num_kv_heads / heads);
    };
    while (heads > phase_.min_heads && (heads * most_rows > phase_.tile_rows.value ||
                                        units() * kMaxSplitsPerUnit < phase_.work.num_ctas))
      heads /= 2;
    return heads;
  }

  void find_units() {
    for (int group = 0; group < num_groups_; ++group)
      for (int t = 0; t < static_cast<int>(tiles_.size()); ++t) {
        const ModelTile& tile = tiles_[static_cast<std::size_t>(t)];
        for (int split = 0; split < tile.num_splits; ++split)
          units_.push_back({t, group, split, split * tile.split_blocks,
                            std::min((split + 1) * tile.split_blocks, tile.num_blocks)});
      }
  }

  // Returns how many boundaries are before a point of the summed cost. Boundary c is at c /
  // num_shares_ of the total, and the result is rounded as in the planner.
  int boundaries_before(std::int64_t point) const {
    const float per_cost =
        static_cast<float>(num_shares_) * (1.0f / static_cast<float>(total_cost()));
    return std::min(static_cast<int>(std::ceil(static_cast<float>(point) * per_cost)), num_shares_);
  }

  int max_shares(std::int64_t total_cost) const {
    const auto max = static_cast<int>(static_cast<float>(total_cost) *
                                      (1.0f / static_cast<float>(min_cost(min_split_blocks_))));
    return std::clamp(max, 1, phase_.work.num_ctas);
  }

  // Makes every share the same number of whole units, or cuts every unit into equal splits. This
  // function uses the most shares for which one of the two is possible, if they are at least 15/16
  // of the maximum. Equal splits ignore the cost that a work tile has beside its blocks.
  void match_whole_units() {
    num_shares_ = units_.empty() ? 0 : max_shares(total_cost());
    const bool sees_keys =
        std::ranges::any_of(tiles_, [](const ModelTile& tile) { return tile.num_blocks > 0; });
    const bool is_long = total_cost() > std::int64_t{phase_.short_share_cost} * num_shares_;
    if (is_long && total_cost() >= min_cost(2 * min_split_blocks_) * num_shares_)
      min_split_blocks_ *= 2;
    min_cost_ = min_cost(min_split_blocks_);
    if (!is_long && cuts_equally()) return;
    if (!sees_keys || is_long || partitions_single_tile() || !are_uniform()) return;
    const bool is_cut = num_units() <= num_shares_;
    if (is_cut && setting_.equal_splits) return;
    const int max =
        is_cut ? max_shares(total_cost() - std::int64_t{num_units()} * phase_.work_tile_cost)
               : num_shares_;
    const int min_units = (num_units() + max - 1) / max;
    int shares = max;
    while (shares > 0 && (is_cut ? shares % num_units() != 0 : shares * min_units != num_units()))
      --shares;
    if (shares == 0 || !is_near(shares, max)) return;
    if (is_cut) shares = drop_needless_splits(shares, max);
    const int short_split = short_split_cost(phase_.short_share_cost);
    if (shares > num_units() && total_cost() > std::int64_t{short_split} * num_shares_) return;
    num_shares_ = shares;
    if (is_cut) leave_out_work_tile_cost();
  }
  // Returns the fewest splits whose longest split has as few blocks as with `shares` splits. If the
  // fewest are below 15/16 of `max`, too many CTAs would be idle, and the result is `shares`.
  int drop_needless_splits(int shares, int max) const {
    const auto divide_up = [](int a, int b) { return (a + b - 1) / b; };
    const int blocks = tiles_[0].num_blocks;
    const int longest = std::max(divide_up(blocks, shares / num_units()), 1);
    const int min_units = divide_up(blocks, longest) * num_units();
    return is_near(min_units, max) ? min_units : shares;
  }
  static bool is_near(int shares, int max) {
    return kShareTolerance * shares >= (kShareTolerance - 1) * max;
  }
  void leave_out_work_tile_cost() {
    work_tile_cost_ = 0;
    for (ModelTile& tile : tiles_) tile.cost -= phase_.work_tile_cost;
  }

  // Cuts few units into equal splits. Each is a share.
  bool cuts_equally() {
    if (!setting_.equal_splits || phase_.fixed_split_blocks > 0) return false;
    EqualSplitsInput input = {{}, total_cost() / num_groups_, num_groups_, num_shares_};
    for (const ModelTile& tile : tiles_) input.blocks.push_back(tile.num_blocks);
    const std::vector<int> counts = equal_splits(std::move(input), phase_);
    if (counts.empty()) return false;
    for (int unit = 0; unit < num_units(); ++unit) {
      const int blocks = tile_of(unit).num_blocks;
      const int count = at(counts, units_[static_cast<std::size_t>(unit)].tile);
      for (int split = 0; split < count; ++split)
        boundaries_.push_back({unit, split * (blocks / count) + std::min(split, blocks % count)});
    }
    num_shares_ = static_cast<int>(boundaries_.size());
    boundaries_.resize(static_cast<std::size_t>(phase_.work.num_ctas) + 1, {num_units(), 0});
    return true;
  }

  // Cuts the heads of a single tile into up to 32 splits of the minimum length each.
  bool partitions_single_tile() {
    if (setting_.equal_splits || phase_.fixed_split_blocks > 0 || phase_.allows_round_robin != 0 ||
        tiles_.size() != 1)
      return false;
    const int splits = tiles_[0].num_blocks / min_split_blocks_;
    if (splits < 2 || splits > kMaxSingleTileSplits || splits * num_units() > phase_.work.num_ctas)
      return false;
    num_shares_ = splits * num_units();
    min_cost_ = min_split_blocks_ * kBlockCost / 2;
    leave_out_work_tile_cost();
    return true;
  }

  bool are_uniform() const {
    if (phase_.fixed_split_blocks > 0) return false;
    std::int64_t difference = 0, all = 0;
    for (const ModelTile& tile : tiles_) {
      difference += tiles_.front().cost - tile.cost;
      all += tile.cost;
    }
    return kShareTolerance * std::abs(difference) <= all;
  }

  void find_boundaries() {
    for (int share = 0; share <= phase_.work.num_ctas; ++share)
      boundaries_.push_back(share < num_shares_
                                ? boundary_of(share)
                                : ModelBoundary{static_cast<int>(units_.size()), 0});
  }

  // Returns the share of a CTA, or -1. The shares form as many runs as there are groups of heads,
  // and the first runs may have one share more. CTAs take the first share of each run, then the
  // second, and so on. The CTAs that have a share are spread evenly over the fewest rounds of CTAs
  // that fill all SMs.
  int share_of(int cta) const {
    const int at_once = phase_.sm_count;
    const int ctas = (num_shares_ + at_once - 1) / at_once * at_once;
    if (cta >= ctas) return -1;
    const int rank = cta * num_shares_ / ctas;
    if ((cta + 1) * num_shares_ / ctas == rank) return -1;
    int shares = 0;
    for (int in_run = 0;; ++in_run)
      for (int run = 0, first = 0; run < num_groups_; ++run) {
        const int length = num_shares_ / num_groups_ + (run < num_shares_ % num_groups_ ? 1 : 0);
        if (in_run < length && shares++ == rank) return first + in_run;
        first += length;
      }
  }

  // Walks over the units to find where a share begins. A boundary that is too near to the start or
  // the end of a unit moves there.
  ModelBoundary boundary_of(int share) const {
    std::int64_t begin = 0;
    for (int unit = 0; unit < num_units(); ++unit) {
      const ModelTile& tile = tile_of(unit);
      const int split = units_[static_cast<std::size_t>(unit)].split;
      if (phase_.fixed_split_blocks > 0) {
        const std::int64_t through = (split + 1) * tile.split_cost >> lost_bits_;
        const std::int64_t end =
            split + 1 == tile.num_splits ? tile.cost : std::min(through, tile.cost);
        if (share < boundaries_before(begin + end)) return {unit, 0};
      } else {
        const std::int64_t first = std::min(work_tile_cost_ + min_cost_, tile.cost);
        if (share < boundaries_before(begin + first)) return {unit, 0};
        if (share < boundaries_before(begin + std::max(tile.cost - min_cost_, first)))
          return {unit, block_at(share, begin + work_tile_cost_, tile)};
      }
      if (split + 1 == tile.num_splits) begin += tile.cost;
    }
    return {num_units(), 0};
  }

  int block_at(int share, std::int64_t first, const ModelTile& tile) const {
    const float length =
        static_cast<float>(total_cost()) * (1.0f / static_cast<float>(num_shares_));
    const auto into = static_cast<std::int64_t>(static_cast<float>(share) * length) - first;
    const float of_cost = static_cast<float>(tile.num_blocks) *
                          (1.0f / static_cast<float>(tile.cost - work_tile_cost_));
    const auto block = static_cast<int>(static_cast<float>(into + kBlockCost / 2) * of_cost);
    return std::clamp(block, min_split_blocks_, tile.num_blocks - min_split_blocks_);
  }

  const ModelBoundary& boundary(int share) const {
    return boundaries_[static_cast<std::size_t>(share)];
  }

  WorkTile work_tile(const ModelBoundary& boundary, const ModelUnit& unit, int first,
                     int end) const {
    const ModelTile& tile = tiles_[static_cast<std::size_t>(unit.tile)];
    WorkTile work_tile{};
    work_tile.extent = {end - first, tile.num_rows, tile.first_position, tile.last_position};
    work_tile.rows = {at(arrays_.q_indptr, tile.request), tile.first_row, unit.group * num_heads_,
                      num_heads_};
    work_tile.keys = {first_segment(tile), at(arrays_.segment_indptr, tile.request + 1), first, 0};
    work_tile.split = phase_.fixed_split_blocks > 0
                          ? KvSplit{unit.split, tile.num_splits, boundary.unit - unit.split, 0}
                          : kv_split(boundary);
    if (phase_.fixed_split_blocks == 0) work_tile.num_combiners = work_tile.split.count - 1;
    if (work_tile.extent.num_blocks > 0) {
      const auto [segment, block] = segment_block(tile, first);
      work_tile.keys.segment = segment;
      work_tile.keys.first_block = block;
      work_tile.start = start(tile, segment, block);
    }
    return work_tile;
  }

  // Returns the first segment that the tile sees.
  int first_segment(const ModelTile& tile) const {
    const auto seen = std::ranges::find_if(tile.blocks, [](int blocks) { return blocks > 0; });
    return at(arrays_.segment_indptr, tile.request) + static_cast<int>(seen - tile.blocks.begin());
  }

  KvSplit kv_split(const ModelBoundary& boundary) const {
    int index = 0, count = 1, first_share = -1;
    for (int share = 0; share < static_cast<int>(boundaries_.size()); ++share) {
      const ModelBoundary& cut = this->boundary(share);
      if (cut.unit != boundary.unit || cut.block == 0) continue;
      if (first_share < 0) first_share = share - 1;
      EXPECT_NE(cut, this->boundary(share - 1)) << "no split is empty";
      ++count;
      if (cut.block <= boundary.block) ++index;
    }
    return count == 1 ? KvSplit{0, 1, 0, 0}
                      : KvSplit{index, count, 2 * first_share + 1, first_share};
  }

  // Returns the segment of a tile's block, and the index of the block in that segment.
  std::pair<int, int> segment_block(const ModelTile& tile, int block) const {
    int segment = at(arrays_.segment_indptr, tile.request);
    for (const int blocks : tile.blocks) {
      if (block < blocks) break;
      block -= blocks;
      ++segment;
    }
    return {segment, block};
  }

  WorkTileStart start(const ModelTile& tile, int s, int block) const {
    const auto [begin, end] = slots(tile, s);
    const std::int64_t slot = begin / 16 * 16 + std::int64_t{block} * phase_.block_keys.value;
    WorkTileStart start{};
    start.base = at(arrays_.base, s);
    start.position = static_cast<int>(origin(s) + slot);
    start.begin = static_cast<int>(std::max<std::int64_t>(begin - slot, 0));
    start.end = static_cast<int>(end - slot);
    start.slot = static_cast<int>(slot % setting_.page_size);
    start.page_size = setting_.page_size;
    for (int run = 0; run < kStartRuns && slot + 16 * run < end; ++run)
      start.page[run] =
          at(arrays_.pages,
             at(arrays_.first_page, s) + static_cast<int>((slot + 16 * run) / setting_.page_size));
    return start;
  }

  static constexpr int kLargest = std::numeric_limits<int>::max();

  const Setting& setting_;
  const StepArrays& arrays_;
  const PlanPhase& phase_;
  std::vector<ModelTile> tiles_;
  int num_heads_ = 1;
  int num_groups_ = 1;
  std::vector<ModelUnit> units_;
  bool is_round_robin_ = false;
  bool is_queued_ = false;
  int splits_ = 1;  // splits of each unit in the incomplete last round
  bool is_tile_major_ = false;
  int num_shares_ = 0;  // shares of the Stream-K schedule
  int lost_bits_ = 0;
  int work_tile_cost_ = phase_.work_tile_cost;
  int min_split_blocks_ = phase_.min_split_blocks;
  std::int64_t min_cost_ = 0;
  std::vector<ModelBoundary> boundaries_;
  bool has_equal_splits_ = false;
};

}  // namespace lazyrope
