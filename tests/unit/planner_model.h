// The planner's rules as a plain model: what runtime_planner_test.cpp expects of the kernel.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/step_layout.h"
#include "tests/support/metadata.h"
#include "tests/support/specs.h"

namespace lazyrope {

struct Setting {
  const char* name;
  std::string mask = "causal";
  int group_size = 2;
  int num_kv_heads = 2;
  int sm_count = 4;
  int page_size = 16;
  int min_split_blocks = 1;
  int item_heads = 1;
  int tile_heads = 1;
  int fixed_split_blocks = 0;
  int requests = 6;
  int most_segments = 6;  // of a request
  int least_tokens = 0;   // query tokens of a request
  int most_tokens = 40;
  int first_idle = 0;  // of some requests that have none
  int idle_requests = 0;
  int said_tokens = 1000;  // that a request has at the most, as the step's capacity says
  int most_length = 200;   // of a segment
  bool needs_scratch = false;
  bool has_queue = false;
  bool loses_bits = false;  // costs are too great for an int32
};

inline void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

struct ModelTile {
  int request;
  int first_row;
  int num_rows;
  int first_position;
  int last_position;
  std::vector<int> blocks;  // of each of the request's segments
  int num_blocks;
  std::int64_t cost;
  std::int64_t part_cost;
  int part_blocks;
  int num_parts;
};

struct ModelUnit {
  int tile;
  int group;
  int part;
  int first_block;
  int end_block;
};

// A CTA's share begins there.
struct ModelPlace {
  int unit;
  int block;
  auto operator<=>(const ModelPlace&) const = default;
};

inline int at(const std::vector<int>& values, int i) { return values[static_cast<std::size_t>(i)]; }

// The first and one past the last slot of a segment that tokens at these positions see.
inline std::pair<std::int64_t, std::int64_t> visible(const Setting& setting, int first_position,
                                                     int last_position, std::int64_t origin,
                                                     std::int64_t begin, std::int64_t end) {
  const std::int64_t window = example_mask("sliding_window").begin()->second;
  std::int64_t first = std::numeric_limits<std::int64_t>::min() / 2;
  std::int64_t last = std::numeric_limits<std::int64_t>::max() / 2;
  if (setting.mask != "full") last = last_position;
  if (setting.mask == "sliding_window") first = first_position - window + 1;
  return {std::max(begin, first - origin), std::min(end, last - origin + 1)};
}

// The planner's rules as a sequential program.
class Model {
 public:
  Model(const Setting& setting, const StepArrays& arrays, const PlanPhase& phase)
      : setting_(setting), arrays_(arrays), phase_(phase) {
    find_tiles();
    num_heads_ = heads_of_an_item();
    num_groups_ = setting.num_kv_heads / num_heads_;
    lose_bits();
    find_units();
    is_dealt_ = is_dealt();
    match_shares();
    find_places();
  }

  // Whether all CTAs take units from a queue, and the units in it, with everything but `next`.
  bool is_queued() const { return is_queued_; }
  bool loses_bits() const { return lost_bits_ > 0; }
  std::vector<Item> queue() const {
    std::vector<Item> items;
    const int tail = std::min(4, num_groups_);
    const auto push = [&](int group, int rank) {
      const int unit = group * static_cast<int>(tiles_.size()) + at(sorted_tiles(), rank);
      items.push_back(
          item({unit, 0}, units_[static_cast<std::size_t>(unit)], 0, tile_of(unit).num_blocks));
      items.back().split = {0, 1, 0, 0};
      items.back().num_owners = 0;
    };
    const int num_tiles = static_cast<int>(tiles_.size());
    for (int group = 0; group < num_groups_ - tail; ++group)
      for (int rank = 0; rank < num_tiles; ++rank) push(group, rank);
    for (int rank = 0; rank < num_tiles; ++rank)
      for (int group = num_groups_ - tail; group < num_groups_; ++group) push(group, rank);
    return items;
  }

  // The items of a CTA, with everything but `next`.
  std::vector<Item> items_of(int cta) const {
    if (is_dealt_) return dealt_to(cta);
    std::vector<Item> items;
    const int share = share_of(cta);
    if (share < 0) return items;
    ModelPlace at = place(share);
    const ModelPlace end = place(share + 1);
    while (at < end) {
      const ModelUnit& unit = units_[static_cast<std::size_t>(at.unit)];
      const int unit_end = at.unit == end.unit ? end.block : unit.end_block - unit.first_block;
      items.push_back(item(at, unit, unit.first_block + at.block, unit.first_block + unit_end));
      at = {at.unit + 1, 0};
    }
    return items;
  }

 private:
  static constexpr int kSegmentCost = 2, kMostParts = 4;
  static constexpr std::int64_t kMostCost = (1 << 22) - 1;

  std::int64_t least_share() const { return least_share(min_split_blocks_); }
  static std::int64_t least_share(int blocks) {
    return std::int64_t{blocks} * (kBlockCost + kSegmentCost) + 1;
  }
  // Of the line's costs.
  std::int64_t least(int blocks) const { return (least_share(blocks) >> lost_bits_) + 1; }

  bool is_dealt() {
    if (loses_less(64)) return true;
    const bool is_fair = loses_less(8);
    goes_by_tile_ = !is_fair && num_groups_ > 1;
    if (goes_by_tile_ && loses_less(32)) return true;
    is_queued_ = is_apt_for_queue();
    return is_fair && !is_queued_;
  }

  bool is_apt_for_queue() const {
    if (phase_.has_queue == 0 || phase_.fixed_split_blocks > 0) return false;
    std::int64_t longest = 0;
    for (const ModelTile& tile : tiles_) longest = std::max(longest, tile.cost);
    return 8 * longest * phase_.work.num_ctas <= line() &&
           4 * longest * num_units() >= 5 * line() && 12 * kBlockCost * num_units() <= whole_line();
  }
  std::vector<int> sorted_tiles() const {
    std::vector<int> order(tiles_.size());
    std::iota(order.begin(), order.end(), 0);
    if (order.size() > 1024) return {order.rbegin(), order.rend()};
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return tiles_[static_cast<std::size_t>(a)].cost > tiles_[static_cast<std::size_t>(b)].cost;
    });
    return order;
  }

  // Of all that is dealt, than one part in so many.
  bool loses_less(int loss) {
    constexpr int kMostRounds = 64;
    const int ctas = phase_.work.num_ctas;
    parts_ = num_left() > 0 ? ctas / num_left() : 1;
    if (phase_.may_deal == 0 || phase_.fixed_split_blocks > 0 || num_rounds() > kMostRounds)
      return false;
    if (num_whole() > 0 && num_left() > 0) divide_rest();
    std::int64_t most = 0;
    for (int cta = 0; cta < ctas; ++cta) {
      std::int64_t cost = 0;
      for (const auto& [unit, part] : dealt_parts(cta))
        cost += (tile_of(in_line(unit)).cost + parts_of(unit) - 1) / parts_of(unit);
      most = std::max(most, cost);
    }
    if (num_whole() == 0 && parts_ > 1 && whole_line() < least_share() * parts_ * num_units())
      return false;
    return most * ctas <= line() + line() / loss;
  }

  int num_units() const { return static_cast<int>(units_.size()); }
  int num_left() const { return num_units() % phase_.work.num_ctas; }
  int num_whole() const { return num_units() - num_left(); }
  int parts_of(int unit) const { return unit < num_whole() ? 1 : parts_; }
  int num_rounds() const {
    const int ctas = phase_.work.num_ctas;
    return (num_whole() + num_left() * parts_ + ctas - 1) / ctas;
  }

  // As many parts as there are CTAs for, but no more than sixteen, nor shorter than they may be.
  void divide_rest() {
    int blocks = 0;
    for (int unit = num_whole(); unit < num_units(); ++unit)
      blocks = std::max(blocks, tile_of(in_line(unit)).num_blocks);
    const int parts = std::clamp(phase_.work.num_ctas / num_left(), 1,
                                 std::clamp(blocks / phase_.min_split_blocks, 1, 16));
    const int saved = blocks - (blocks + parts - 1) / parts;
    parts_ = saved > 8 ? parts : 1;
  }

  std::int64_t line() const {
    std::int64_t line = 0;
    for (const ModelTile& tile : tiles_) line += tile.cost * num_groups_;
    return line;
  }
  std::int64_t whole_line() const { return line() << lost_bits_; }
  // Where costs of all heads together may be more than 2^30.
  void lose_bits() {
    std::int64_t all = 0;
    for (const ModelTile& tile : tiles_) all += tile.cost;
    while (all >> lost_bits_ > (1 << 30) / phase_.most_groups) ++lost_bits_;
    std::int64_t before = 0;
    for (ModelTile& tile : tiles_) {
      const std::int64_t through = before + tile.cost;
      tile.cost = (through >> lost_bits_) - (before >> lost_bits_);
      before = through;
    }
    item_cost_ >>= lost_bits_;
  }
  const ModelTile& tile_of(int unit) const {
    return tiles_[static_cast<std::size_t>(units_[static_cast<std::size_t>(unit)].tile)];
  }

  // What is dealt as number `unit`: those of a head, or the last tile of all heads, the one before
  // ...
  int in_line(int unit) const {
    if (!goes_by_tile_) return unit;
    const int per_group = num_units() / num_groups_;
    return unit % num_groups_ * per_group + per_group - 1 - unit / num_groups_;
  }

  // Units and their parts, to and fro.
  std::vector<std::pair<int, int>> dealt_parts(int cta) const {
    const int ctas = phase_.work.num_ctas;
    std::vector<std::pair<int, int>> parts;
    for (int round = 0; round < num_rounds(); ++round) {
      const int index = round * ctas + (round % 2 == 0 ? cta : ctas - 1 - cta);
      const int left = index - num_whole();
      if (left < 0)
        parts.emplace_back(index, 0);
      else if (left / parts_ < num_left())
        parts.emplace_back(num_whole() + left / parts_, left % parts_);
    }
    return parts;
  }

  std::vector<Item> dealt_to(int cta) const {
    std::vector<Item> items;
    for (const auto& [unit, part] : dealt_parts(cta)) {
      const int blocks = tile_of(in_line(unit)).num_blocks;
      const int count = std::max(std::min(parts_of(unit), blocks), 1);
      if (part >= count) continue;
      const int first = blocks * part / count;
      items.push_back(item({in_line(unit), first}, units_[static_cast<std::size_t>(in_line(unit))],
                           first, blocks * (part + 1) / count));
      const int left = std::max(unit - num_whole(), 0);
      items.back().split = {part, count, left * parts_, left};
      items.back().num_owners = count;
    }
    return items;
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
    tile.part_blocks = tile.num_blocks;
    if (phase_.fixed_split_blocks > 0) {
      const auto parts_of = [&](int blocks) { return (tile.num_blocks + blocks - 1) / blocks; };
      const int asked = parts_of(phase_.fixed_split_blocks);
      const int parts = std::clamp(asked, 1, most_fixed_parts(request));
      tile.part_blocks = (tile.num_blocks + parts - 1) / parts;
      tile.num_parts = tile.num_blocks == 0 ? 1 : parts_of(tile.part_blocks);
      tile.cost = 0;
    }
    tile.cost += std::int64_t{phase_.item_cost} + std::int64_t{kBlockCost} * tile.part_blocks;
    const int sharing = phase_.fixed_split_blocks > 0 ? kMostFixedParts : 1;
    tile.part_cost = std::min(tile.cost, kMostCost / sharing);
    tile.cost = tile.num_parts * tile.part_cost;
    return tile;
  }

  int most_fixed_parts(int request) const {
    if (phase_.may_deal == 0) return kMostFixedParts;
    const int tile_rows = phase_.tile_rows.value;
    const int units = (rows_of(request) + tile_rows - 1) / tile_rows * phase_.most_groups;
    return std::clamp(kRequestParts / units, 1, kMostFixedParts);
  }

  std::int64_t origin(int s) const {
    return std::int64_t{at(arrays_.base, s)} + at(arrays_.start, s) - at(arrays_.lead, s);
  }
  std::pair<std::int64_t, std::int64_t> slots(const ModelTile& tile, int s) const {
    const int lead = at(arrays_.lead, s);
    return visible(setting_, tile.first_position, tile.last_position, origin(s), lead,
                   lead + at(arrays_.length, s));
  }

  int heads_of_an_item() const {
    int most_rows = 1;
    for (int r = 0; r < num_requests(); ++r)
      most_rows = std::max(most_rows, std::min(rows_of(r), phase_.tile_rows.value));
    int heads = phase_.max_heads;
    const auto units = [&] {
      return static_cast<int>(tiles_.size()) * (setting_.num_kv_heads / heads);
    };
    while (heads > phase_.min_heads && (heads * most_rows > phase_.tile_rows.value ||
                                        units() * kMostParts < phase_.work.num_ctas))
      heads /= 2;
    return heads;
  }

  void find_units() {
    for (int group = 0; group < num_groups_; ++group)
      for (int t = 0; t < static_cast<int>(tiles_.size()); ++t) {
        const ModelTile& tile = tiles_[static_cast<std::size_t>(t)];
        for (int part = 0; part < tile.num_parts; ++part)
          units_.push_back({t, group, part, part * tile.part_blocks,
                            std::min((part + 1) * tile.part_blocks, tile.num_blocks)});
      }
  }

  // Boundary c of a line cut into shares lies at c / shares of it; what lies before a point is told
  // with the planner's rounding.
  int boundaries_before(std::int64_t point) const {
    const float per_cost = static_cast<float>(num_shares_) * (1.0f / static_cast<float>(line()));
    return std::min(static_cast<int>(std::ceil(static_cast<float>(point) * per_cost)), num_shares_);
  }

  int most_shares(std::int64_t line) const {
    const auto most = static_cast<int>(static_cast<float>(line) *
                                       (1.0f / static_cast<float>(least(min_split_blocks_))));
    return std::clamp(most, 1, phase_.work.num_ctas);
  }

  // The greatest number of shares that are as few whole units as all shares need, or equal parts of
  // one, where what items cost beside their blocks does not count; if it is not much less.
  void match_shares() {
    num_shares_ = units_.empty() ? 0 : most_shares(line());
    const bool sees_keys =
        std::ranges::any_of(tiles_, [](const ModelTile& tile) { return tile.num_blocks > 0; });
    const bool is_long = line() > std::int64_t{phase_.short_cost} * num_shares_;
    if (is_long && line() >= least(2 * min_split_blocks_) * num_shares_) min_split_blocks_ *= 2;
    least_ = least(min_split_blocks_);
    if (!sees_keys || is_long || is_cut_finely() || !are_alike()) return;
    const bool is_cut = num_units() <= num_shares_;
    const int most =
        is_cut ? most_shares(line() - std::int64_t{num_units()} * phase_.item_cost) : num_shares_;
    const int fewest = (num_units() + most - 1) / most;
    int shares = most;
    while (shares > 0 && (is_cut ? shares % num_units() != 0 : shares * fewest != num_units()))
      --shares;
    if (16 * shares < 15 * most || shares == 0) return;
    if (is_cut) shares = without_needless_parts(shares, most);
    const int short_part = phase_.short_cost * 2 / 5;
    if (shares > num_units() && line() > std::int64_t{short_part} * num_shares_) return;
    num_shares_ = shares;
    if (is_cut) leave_out_items();
  }
  // No more parts than have as few blocks as the longest of so many, unless too few CTAs are left.
  int without_needless_parts(int shares, int most) const {
    const auto divide_up = [](int a, int b) { return (a + b - 1) / b; };
    const int blocks = tiles_[0].num_blocks;
    const int longest = std::max(divide_up(blocks, shares / num_units()), 1);
    const int fewest = divide_up(blocks, longest) * num_units();
    return 16 * fewest < 15 * most ? shares : fewest;
  }
  void leave_out_items() {
    item_cost_ = 0;
    for (ModelTile& tile : tiles_) tile.cost -= phase_.item_cost;
  }

  // The heads of a single tile as up to 32 parts of the least length each.
  bool is_cut_finely() {
    if (phase_.fixed_split_blocks > 0 || phase_.may_deal != 0 || tiles_.size() != 1) return false;
    const int parts = tiles_[0].num_blocks / min_split_blocks_;
    if (parts < 2 || parts > 32 || parts * num_units() > phase_.work.num_ctas) return false;
    num_shares_ = parts * num_units();
    least_ = min_split_blocks_ * kBlockCost / 2;
    leave_out_items();
    return true;
  }

  bool are_alike() const {
    if (phase_.fixed_split_blocks > 0) return false;
    std::int64_t difference = 0, all = 0;
    for (const ModelTile& tile : tiles_) {
      difference += tiles_.front().cost - tile.cost;
      all += tile.cost;
    }
    return 16 * std::abs(difference) <= all;
  }

  void find_places() {
    for (int share = 0; share <= phase_.work.num_ctas; ++share)
      places_.push_back(share < num_shares_ ? place_of(share)
                                            : ModelPlace{static_cast<int>(units_.size()), 0});
  }

  // Shares in as many runs as there are groups of heads, the first of which may have one more: the
  // first of each run, the second of each ..., as evenly as can be over those CTAs that fill SMs
  // with as few as possible each.
  int share_of(int cta) const {
    const int at_once = phase_.ctas_at_once;
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

  // One unit after the other: whether the boundary is moved to its beginning, or lies inside.
  ModelPlace place_of(int share) const {
    std::int64_t begin = 0;
    for (int unit = 0; unit < num_units(); ++unit) {
      const ModelTile& tile = tile_of(unit);
      const int part = units_[static_cast<std::size_t>(unit)].part;
      if (phase_.fixed_split_blocks > 0) {
        const std::int64_t through = (part + 1) * tile.part_cost >> lost_bits_;
        const std::int64_t end =
            part + 1 == tile.num_parts ? tile.cost : std::min(through, tile.cost);
        if (share < boundaries_before(begin + end)) return {unit, 0};
      } else {
        const std::int64_t first = std::min(item_cost_ + least_, tile.cost);
        if (share < boundaries_before(begin + first)) return {unit, 0};
        if (share < boundaries_before(begin + std::max(tile.cost - least_, first)))
          return {unit, block_at(share, begin + item_cost_, tile)};
      }
      if (part + 1 == tile.num_parts) begin += tile.cost;
    }
    return {num_units(), 0};
  }

  int block_at(int share, std::int64_t first, const ModelTile& tile) const {
    const float length = static_cast<float>(line()) * (1.0f / static_cast<float>(num_shares_));
    const auto into = static_cast<std::int64_t>(static_cast<float>(share) * length) - first;
    const float of_cost =
        static_cast<float>(tile.num_blocks) * (1.0f / static_cast<float>(tile.cost - item_cost_));
    const auto block = static_cast<int>(static_cast<float>(into + kBlockCost / 2) * of_cost);
    return std::clamp(block, min_split_blocks_, tile.num_blocks - min_split_blocks_);
  }

  const ModelPlace& place(int share) const { return places_[static_cast<std::size_t>(share)]; }

  Item item(const ModelPlace& place, const ModelUnit& unit, int first, int end) const {
    const ModelTile& tile = tiles_[static_cast<std::size_t>(unit.tile)];
    Item item{};
    item.extent = {end - first, tile.num_rows, tile.first_position, tile.last_position};
    item.rows = {at(arrays_.q_indptr, tile.request), tile.first_row, unit.group * num_heads_,
                 num_heads_};
    item.keys = {first_segment(tile), at(arrays_.segment_indptr, tile.request + 1), first, 0};
    item.split = phase_.fixed_split_blocks > 0
                     ? ItemSplit{unit.part, tile.num_parts, place.unit - unit.part, 0}
                     : split(place);
    if (phase_.fixed_split_blocks == 0) item.num_owners = item.split.count - 1;
    if (item.extent.num_blocks > 0) {
      const auto [segment, block] = segment_block(tile, first);
      item.keys.segment = segment;
      item.keys.first_block = block;
      item.start = start(tile, segment, block);
    }
    return item;
  }

  // The first that is seen.
  int first_segment(const ModelTile& tile) const {
    const auto seen = std::ranges::find_if(tile.blocks, [](int blocks) { return blocks > 0; });
    return at(arrays_.segment_indptr, tile.request) + static_cast<int>(seen - tile.blocks.begin());
  }

  ItemSplit split(const ModelPlace& place) const {
    int index = 0, count = 1, first_share = -1;
    for (int share = 0; share < static_cast<int>(places_.size()); ++share) {
      const ModelPlace& cut = this->place(share);
      if (cut.unit != place.unit || cut.block == 0) continue;
      if (first_share < 0) first_share = share - 1;
      EXPECT_NE(cut, this->place(share - 1)) << "no part is empty";
      ++count;
      if (cut.block <= place.block) ++index;
    }
    return count == 1 ? ItemSplit{0, 1, 0, 0}
                      : ItemSplit{index, count, 2 * first_share + 1, first_share};
  }

  // In which segment a block of a tile lies, and which of that segment's it is.
  std::pair<int, int> segment_block(const ModelTile& tile, int block) const {
    int segment = at(arrays_.segment_indptr, tile.request);
    for (const int blocks : tile.blocks) {
      if (block < blocks) break;
      block -= blocks;
      ++segment;
    }
    return {segment, block};
  }

  ItemStart start(const ModelTile& tile, int s, int block) const {
    const auto [begin, end] = slots(tile, s);
    const std::int64_t slot = begin / 16 * 16 + std::int64_t{block} * phase_.block_keys.value;
    ItemStart start{};
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
  bool is_dealt_ = false;
  bool is_queued_ = false;
  int parts_ = 1;  // of units that are left over, dealt
  bool goes_by_tile_ = false;
  int num_shares_ = 0;  // else
  int lost_bits_ = 0;
  int item_cost_ = phase_.item_cost;
  int min_split_blocks_ = phase_.min_split_blocks;
  std::int64_t least_ = 0;
  std::vector<ModelPlace> places_;
};

}  // namespace lazyrope
