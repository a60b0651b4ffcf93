// The share kernel. It finds segments of different requests that read the same slots of the same
// pages, and makes the shared step of them (abi/cascade.h): each such shared segment becomes one
// request, whose query tokens are those of all requests that read the segment, its readers. In the
// shared step the document's token 0 is at position 0, and a query token is at its distance from
// there. So one request serves readers that put the document at different positions.
//
// A segment can be shared if all query tokens of its request see all its tokens, they do not fill a
// tile of the shared step's kernel, and it is long enough. Segments are shared where that saves
// reading tokens, and only if the whole step saves enough.
//
// The grid has one CTA of kShareThreads threads, which all have the same role. Its steps:
//   1. hash_segments(), load_requests(), choose_candidates(): the columns of the table, and a key
//      to sort by for each segment.
//   2. sort(): segments with equal keys become neighbours, in the order of the step.
//   3. find_groups(): neighbours that read the same slots are a group, a shared segment if it pays.
//   4. choose(): the groups that are shared get requests and tokens of the shared step.
//   5. write_tokens(), write_slots(): the tokens of each reader, and the slots of their results.
//      The slots of a query token are those of its request's shared segments, in their order.
//
// All loops over segments take kShareThreads segments at a time, with the sums of those before
// carried on. The result does not depend on timing.
//
// | barrier          | who arrives | who waits | what it protects                                 |
// |------------------|-------------|-----------|--------------------------------------------------|
// | between steps    | all threads | the CTA   | columns of the table                             |
// | sort()           | all threads | the CTA   | keys, between two passes over the table          |
// | CtaScan, sums()  | all threads | the CTA   | the scan's memory, after each store and each use |
#pragma once

#include "abi/share.h"
#include "ops/cta_scan.cuh"
#include "planner/inputs.cuh"

namespace lazyrope {

template <class Spec>
class SharePlanner {
  using Mask = typename Spec::Mask;
  static constexpr int32 kThreads = kShareThreads;
  static constexpr int32 kNotShared = -1;
  static constexpr uint32 kNoHash = 0xffffffff;  // the hash of segments that cannot be shared

 public:
  LAZYROPE_DEVICE SharePlanner(const ShareParams& params, SharedPtr memory)
      : params_(params),
        in_(params.inputs),
        num_segments_(ld_global_nc(in_.segment_indptr + in_.num_requests)),
        scan_(memory),
        table_(params.table == nullptr ? generic(memory + kShareScanBytes) : generic(params.table),
               params.table_segments + 1) {}

  LAZYROPE_DEVICE void plan() const {
    prefetch();
    hash_segments();
    clear_slots();
    load_requests();
    bar_sync();
    const int32 num_candidates = choose_candidates();
    sort();
    const int32 num_groups = find_groups(num_candidates);
    bar_sync();
    choose(num_groups);
    write_tokens(num_candidates);
    bar_sync();
    write_slots();
    bar_sync();
    write_requests();
  }

 private:
  // The columns have an entry for each segment and one more. They are in the order of the step's
  // segments, in sorted order, or one for each group.
  struct Table {
    LAZYROPE_DEVICE Table(GenericPtr at, int64 entries)
        : key(at),
          first_token(at + entries * 8),
          num_tokens(at + entries * 12),
          first_position(at + entries * 16),
          last_position(at + entries * 20),
          group(at + entries * 24),
          tokens_before(at + entries * 28),
          group_begin(at + entries * 32),
          group_token(at + entries * 36),
          shared_token(at + entries * 40),
          slot(at + entries * 44) {
      static_assert(kShareWordsPerSegment * 4 == 48);
    }

    Column<uint64> key;            // sorted: hash of the segment's slots, then its index
    Column<int32> first_token;     // by segment: first query token of its request
    Column<int32> num_tokens;      // by segment: query tokens of its request
    Column<int32> first_position;  // by segment: least and greatest position of these
    Column<int32> last_position;
    Column<int32> group;          // sorted
    Column<int32> tokens_before;  // sorted: query tokens of the segments before
    Column<int32> group_begin;    // by group: its first segment in sorted order
    Column<int32> group_token;    // by group: its first shared token, or kNotShared
    Column<int32> shared_token;   // by segment: the same for its own readers
    Column<int32> slot;           // by segment: slots of the segments before
  };

  // Calls visit(i, exists) for i = 0 to count - 1 and the missing i of the last round. All threads
  // of the CTA call visit together.
  template <class Visit>
  LAZYROPE_DEVICE static void for_each(int32 count, const Visit& visit) {
#pragma unroll 1
    for (int32 first = 0; first < count; first += kThreads)
      visit(first + thread_index(), first + thread_index() < count);
  }
  // Returns the sums over the CTA. All threads have then written what they wrote before.
  LAZYROPE_DEVICE CtaSums sums(int32 value) const {
    bar_sync();  // the scan's memory is free again
    return scan_.sums(value);
  }

  // Prefetches the caller's arrays to L2, which the steps read one after the other.
  LAZYROPE_DEVICE void prefetch() const {
    constexpr int32 kLineInts = 32;
#pragma unroll 1
    for (int32 i = thread_index() * kLineInts; i < larger(in_.num_segments, in_.num_tokens);
         i += kThreads * kLineInts) {
      if (i < in_.num_tokens) prefetch_global_l2(in_.q_position + i);
      if (i <= in_.num_requests) prefetch_global_l2(in_.q_indptr + i);
      if (i <= in_.num_requests) prefetch_global_l2(in_.segment_indptr + i);
      if (i >= in_.num_segments) continue;
      prefetch_global_l2(in_.base + i);
      prefetch_global_l2(in_.start + i);
      prefetch_global_l2(in_.length + i);
      prefetch_global_l2(in_.first_page + i);
      if (in_.lead != nullptr) prefetch_global_l2(in_.lead + i);
    }
  }

  // Writes the request's tokens and positions to each of its segments.
  LAZYROPE_DEVICE void load_requests() const {
    for_each(in_.num_requests, [&](int32 i, bool exists) {
      if (!exists) return;
      const int32 token = ld_global_nc(in_.q_indptr + i);
      const int32 tokens = ld_global_nc(in_.q_indptr + i + 1) - token;
      const int32 end = ld_global_nc(in_.segment_indptr + i + 1);
      const bool may_share = tokens > 0 && tokens <= params_.max_request_tokens;
      PositionRange positions = {kLastPosition, kFirstPosition};
#pragma unroll 1
      for (int32 t = 0; may_share && t < tokens; ++t) {
        const int32 position = ld_global_nc(in_.q_position + token + t);
        positions = {smaller(positions.first, position), larger(positions.last, position)};
      }
#pragma unroll 1
      for (int32 s = ld_global_nc(in_.segment_indptr + i); s < end; ++s) {
        table_.first_token.set(s, token);
        table_.num_tokens.set(s, may_share ? tokens : 0);
        table_.first_position.set(s, positions.first);
        table_.last_position.set(s, positions.last);
      }
    });
  }

  // Makes the sort keys of all segments that are long enough.
  LAZYROPE_DEVICE void hash_segments() const {
    for_each(num_sorted(), [&](int32 i, bool exists) {
      if (!exists) return;
      const bool is_long = i < num_segments_ && length(i) >= params_.min_length;
      set_key(i, is_long ? hash_of(i) : kNoHash);
      if (i < in_.num_segments) table_.shared_token.set(i, kNotShared);
    });
  }
  LAZYROPE_DEVICE void set_key(int32 i, uint32 hash) const {
    table_.key.set(i, static_cast<uint64>(hash) << 32 | static_cast<uint32>(i));
  }
  // Returns the number of segments that can be shared. The keys of all others become the greatest.
  LAZYROPE_DEVICE int32 choose_candidates() const {
    int32 num_candidates = 0;
    for_each(in_.num_segments, [&](int32 i, bool exists) {
      const bool has_hash = exists && table_.key.get(i) >> 32 != kNoHash;
      const bool can_be = has_hash && can_be_shared(i);
      if (has_hash && !can_be) set_key(i, kNoHash);
      num_candidates += sums(can_be ? 1 : 0).all;
    });
    return num_candidates;
  }
  LAZYROPE_DEVICE int32 num_sorted() const {
    int32 count = kShareChunk;
#pragma unroll 1
    while (count < in_.num_segments) count *= 2;
    return count;
  }
  LAZYROPE_DEVICE uint32 index_of(int32 sorted) const {
    return static_cast<uint32>(table_.key.get(sorted));
  }

  LAZYROPE_DEVICE int32 lead(int32 segment) const {
    return in_.lead == nullptr ? 0 : ld_global_nc(in_.lead + segment);
  }
  LAZYROPE_DEVICE int32 start(int32 segment) const { return ld_global_nc(in_.start + segment); }
  LAZYROPE_DEVICE int32 length(int32 segment) const { return ld_global_nc(in_.length + segment); }

  // Tells whether all query tokens of the segment's request see all its tokens, at distances that
  // an int32 holds.
  LAZYROPE_DEVICE bool can_be_shared(int32 segment) const {
    if (table_.num_tokens.get(segment) == 0) return false;
    const int64 base = ld_global_nc(in_.base + segment);
    const int64 mask_base = in_.mask_base == nullptr ? base : ld_global_nc(in_.mask_base + segment);
    const int64 first_key = mask_base + start(segment);
    const int64 last_key = first_key + length(segment) - 1;
    const PositionRange queries = {table_.first_position.get(segment),
                                   table_.last_position.get(segment)};
    return fits(first_key) && fits(last_key) && fits(-base) && fits(queries.first - base) &&
           fits(queries.last - base) &&
           all_visible<Mask>(queries, static_cast<int32>(first_key), static_cast<int32>(last_key));
  }
  LAZYROPE_DEVICE static bool fits(int64 value) {
    return value >= kFirstPosition && value <= kLastPosition;
  }

  // The location of a segment's first token: its page list from the first token's page on, and the
  // slot in that page.
  struct Location {
    const int32* pages;
    int32 slot;
  };
  LAZYROPE_DEVICE Location location_of(int32 segment) const {
    const int32 lead = this->lead(segment);
    const int32 page = quotient(lead, params_.page_size);
    return {in_.pages + ld_global_nc(in_.first_page + segment) + page,
            lead - page * params_.page_size.value};
  }
  LAZYROPE_DEVICE int32 num_pages(const Location& location, int32 length) const {
    return ceil_div(location.slot + length, params_.page_size);
  }

  LAZYROPE_DEVICE uint32 hash_of(int32 segment) const {
    const Location location = location_of(segment);
    const int32 length = this->length(segment);
    uint32 hash = static_cast<uint32>(start(segment));
    hash = mixed(hash, length);
    hash = mixed(hash, location.slot);
    hash = mixed(hash, ld_global_nc(location.pages));
    hash = mixed(hash, ld_global_nc(location.pages + num_pages(location, length) - 1));
    return hash == kNoHash ? 0 : hash;
  }
  LAZYROPE_DEVICE static uint32 mixed(uint32 hash, int32 word) {
    hash = (hash ^ static_cast<uint32>(word)) * 0x9e3779b1u;
    return hash ^ hash >> 15;
  }

  // Tells whether two segments read the same tokens from the same slots.
  LAZYROPE_DEVICE bool are_same(int32 a, int32 b) const {
    const Location of_a = location_of(a);
    const Location of_b = location_of(b);
    if (start(a) != start(b) || length(a) != length(b) || of_a.slot != of_b.slot) return false;
    if (of_a.pages == of_b.pages) return true;
    return are_equal(of_a.pages, of_b.pages, num_pages(of_a, length(a)));
  }
  LAZYROPE_DEVICE static bool are_equal(const int32* a, const int32* b, int32 count) {
    constexpr int32 kAtOnce = 8;  // loads of each list that are in flight together
    int32 differs = 0;
#pragma unroll 1
    for (int32 first = 0; first < count && differs == 0; first += kAtOnce) {
#pragma unroll
      for (int32 i = 0; i < kAtOnce; ++i) {
        const int32 at = smaller(first + i, count - 1);
        differs |= ld_global_nc(a + at) ^ ld_global_nc(b + at);
      }
    }
    return differs == 0;
  }

  // Sorts the keys by a bitonic network. The passes over neighbours at a distance below kShareChunk
  // are made in registers.
  LAZYROPE_DEVICE void sort() const {
    const int32 count = num_sorted();
    sort_chunks(count, 2, kShareChunk);
#pragma unroll 1
    for (int32 size = 2 * kShareChunk; size <= count; size *= 2) {
#pragma unroll 1
      for (int32 step = size / 2; step >= kShareChunk; step /= 2) {
        bar_sync();
#pragma unroll 1
        for (int32 i = thread_index(); i < count / 2; i += kThreads) {
          const int32 low = 2 * i - (i & (step - 1));
          exchange(low, low + step, (low & size) == 0);
        }
      }
      bar_sync();
      sort_chunks(count, size, size);
    }
    bar_sync();
  }
  LAZYROPE_DEVICE void exchange(int32 low, int32 high, bool ascends) const {
    const uint64 of_low = table_.key.get(low);
    const uint64 of_high = table_.key.get(high);
    if ((of_high < of_low) != ascends) return;
    table_.key.set(low, of_high);
    table_.key.set(high, of_low);
  }

  // Makes the passes within chunks, for the sizes first_size to last_size. A warp has one chunk at
  // a time, a lane the keys `lane` and `lane` + 32 of it.
  LAZYROPE_DEVICE void sort_chunks(int32 count, int32 first_size, int32 last_size) const {
    static_assert(kShareChunk == 2 * kWarpThreads);
#pragma unroll 1
    for (int32 chunk = warp_index() * kShareChunk; chunk < count;
         chunk += kThreads / kWarpThreads * kShareChunk) {
      const int32 low = chunk + lane_index();
      const int32 high = low + kWarpThreads;
      uint64 of_low = table_.key.get(low);
      uint64 of_high = table_.key.get(high);
#pragma unroll 1
      for (int32 size = first_size; size <= last_size; size *= 2) {
        if (size >= kShareChunk && (of_high < of_low) == ((low & size) == 0)) {
          const uint64 swapped = of_low;
          of_low = of_high;
          of_high = swapped;
        }
#pragma unroll 1
        for (int32 step = smaller(size, kShareChunk / 2) / 2; step > 0; step /= 2) {
          of_low = exchanged(of_low, step, (low & size) == 0);
          of_high = exchanged(of_high, step, (high & size) == 0);
        }
      }
      table_.key.set(low, of_low);
      table_.key.set(high, of_high);
    }
  }
  // Returns the lane's key after the exchange with the lane at a distance of `step`.
  LAZYROPE_DEVICE static uint64 exchanged(uint64 key, int32 step, bool ascends) {
    const auto low = shfl_sync_bfly(static_cast<int32>(key), step);
    const auto high = shfl_sync_bfly(static_cast<int32>(key >> 32), step);
    const uint64 other =
        static_cast<uint64>(static_cast<uint32>(high)) << 32 | static_cast<uint32>(low);
    const bool takes_less = ((lane_index() & step) == 0) == ascends;
    return (other < key) == takes_less ? other : key;
  }

  // Numbers the groups of sorted segments that read the same slots. Returns the number of groups.
  LAZYROPE_DEVICE int32 find_groups(int32 num_candidates) const {
    int32 num_groups = 0;
    int32 num_tokens = 0;
    for_each(num_candidates, [&](int32 i, bool exists) {
      const int32 segment = exists ? static_cast<int32>(index_of(i)) : 0;
      const bool begins =
          exists && (i == 0 || !are_same(segment, static_cast<int32>(index_of(i - 1))));
      const int32 tokens = exists ? table_.num_tokens.get(segment) : 0;
      const CtaSums groups = sums(begins ? 1 : 0);
      const CtaSums of_tokens = sums(tokens);
      const int32 group = num_groups + groups.before + (begins ? 0 : -1);
      if (exists) {
        table_.group.set(i, group);
        table_.tokens_before.set(i, num_tokens + of_tokens.before);
      }
      if (begins) table_.group_begin.set(group, i);
      num_groups += groups.all;
      num_tokens += of_tokens.all;
    });
    if (thread_index() == 0) {
      table_.group_begin.set(num_groups, num_candidates);
      table_.tokens_before.set(num_candidates, num_tokens);
    }
    return num_groups;
  }

  struct Group {
    int32 begin;  // its first segment in sorted order
    int32 segments;
    int32 tokens;  // query tokens of its readers
    int32 length;  // tokens of the shared segment
  };
  LAZYROPE_DEVICE Group group_at(int32 i) const {
    const int32 begin = table_.group_begin.get(i);
    const int32 end = table_.group_begin.get(i + 1);
    return {begin, end - begin, table_.tokens_before.get(end) - table_.tokens_before.get(begin),
            length(static_cast<int32>(index_of(begin)))};
  }
  // Returns how many tokens fewer are read if the group is shared. A group that the shared step
  // never has room for saves nothing.
  LAZYROPE_DEVICE int64 saved_tokens(const Group& group) const {
    const int32 tiles = (group.tokens + params_.tile_tokens - 1) / params_.tile_tokens;
    if (group.segments <= tiles || group.tokens > params_.max_tokens) return 0;
    return static_cast<int64>(group.segments - tiles) * group.length;
  }

  // Chooses the groups that are shared, as many as the shared step has room for, and writes its
  // requests.
  LAZYROPE_DEVICE void choose(int32 num_groups) const {
    const bool shares = saves_enough(num_groups);
    int32 num_requests = 0;
    int32 num_tokens = 0;
    for_each(num_groups, [&](int32 i, bool exists) {
      const Group group = exists ? group_at(i) : Group{};
      const bool pays = shares && exists && saved_tokens(group) > 0;
      const CtaSums tokens = sums(pays ? group.tokens : 0);
      const CtaSums requests = sums(pays ? 1 : 0);
      const int32 token = num_tokens + tokens.before;
      const int32 request = num_requests + requests.before;
      const bool has_room =
          token + group.tokens <= params_.max_tokens && request < params_.max_segments;
      if (exists) table_.group_token.set(i, pays && has_room ? token : kNotShared);
      if (pays && has_room)
        write_request(request, token, static_cast<int32>(index_of(group.begin)));
      // Groups without room are the last ones of the round.
      num_tokens += sums(pays && has_room ? group.tokens : 0).all;
      num_requests += sums(pays && has_room ? 1 : 0).all;
    });
    if (thread_index() == 0) write_end(num_requests, num_tokens);
  }
  LAZYROPE_DEVICE bool saves_enough(int32 num_groups) const {
    int64 saved = 0;
    for_each(num_groups, [&](int32 i, bool exists) {
      constexpr int32 kMax = 0x7fffffff / kThreads;  // the sum of all threads fits an int32
      const int64 of_group = exists ? saved_tokens(group_at(i)) : 0;
      saved += sums(static_cast<int32>(smaller(of_group, int64{kMax}))).all;
    });
    return saved > 0 && saved >= params_.min_saved_tokens;
  }

  LAZYROPE_DEVICE void write_request(int32 request, int32 token, int32 segment) const {
    const SharedStepArrays& to = params_.shared;
    st_global(to.q_indptr + request, token);
    st_global(to.segment_indptr + request, request);
    st_global(to.base + request, 0);
    st_global(to.start + request, start(segment));
    st_global(to.length + request, length(segment));
    st_global(to.lead + request, lead(segment));
    st_global(to.first_page + request, ld_global_nc(in_.first_page + segment));
  }
  LAZYROPE_DEVICE void write_end(int32 num_requests, int32 num_tokens) const {
    st_global(params_.shared.q_indptr + num_requests, num_tokens);
    st_global(params_.shared.segment_indptr + num_requests, num_requests);
    st_global(&params_.shared.counts->requests, num_requests);
    st_global(&params_.shared.counts->tokens, num_tokens);
  }

  // Writes the tokens of all readers, except for their slots.
  LAZYROPE_DEVICE void write_tokens(int32 num_candidates) const {
    for_each(num_candidates, [&](int32 i, bool exists) {
      if (!exists) return;
      const int32 group = table_.group.get(i);
      const int32 group_token = table_.group_token.get(group);
      if (group_token == kNotShared) return;
      const int32 before = table_.tokens_before.get(table_.group_begin.get(group));
      const int32 token = group_token + table_.tokens_before.get(i) - before;
      const auto segment = static_cast<int32>(index_of(i));
      table_.shared_token.set(segment, token);
      const int32 base = ld_global_nc(in_.base + segment);
      const int32 first = table_.first_token.get(segment);
#pragma unroll 1
      for (int32 t = 0; t < table_.num_tokens.get(segment); ++t) {
        const int32 position = Spec::kQueryRotated ? 0 : ld_global_nc(in_.q_position + first + t);
        st_global(params_.shared.q_position + token + t, position - base);
        st_global(&params_.tokens[token + t].query_token, first + t);
      }
    });
  }

  // Writes the slots of all readers' tokens, and the lengths of the segments that are not shared.
  LAZYROPE_DEVICE void write_slots() const {
    int32 num_slots = 0;
    for_each(in_.num_segments, [&](int32 i, bool exists) {
      const int32 token = exists ? table_.shared_token.get(i) : kNotShared;
      const int32 tokens = token == kNotShared ? 0 : table_.num_tokens.get(i);
      const CtaSums slots = sums(tokens);
      if (exists) {
        st_global(params_.own_length + i, token == kNotShared ? length(i) : 0);
        table_.slot.set(i, num_slots + slots.before);
      }
#pragma unroll 1
      for (int32 t = 0; t < tokens; ++t)
        st_global(&params_.tokens[token + t].slot, num_slots + slots.before + t);
      num_slots += slots.all;
    });
    if (thread_index() == 0) table_.slot.set(in_.num_segments, num_slots);
  }

  LAZYROPE_DEVICE void clear_slots() const {
    for_each(in_.num_tokens, [&](int32 i, bool exists) {
      if (exists) st_global(params_.slots + i, SharedSlots{});
    });
  }

  // Writes the slots of the query tokens that have any. The slots of own results come last.
  LAZYROPE_DEVICE void write_requests() const {
    const int32 num_shared = table_.slot.get(in_.num_segments);
    int32 num_own = 0;
    for_each(in_.num_requests, [&](int32 i, bool exists) {
      const int32 first = exists ? table_.slot.get(ld_global_nc(in_.segment_indptr + i)) : 0;
      const int32 end = exists ? table_.slot.get(ld_global_nc(in_.segment_indptr + i + 1)) : 0;
      const int32 token = exists ? ld_global_nc(in_.q_indptr + i) : 0;
      const int32 tokens = end > first ? ld_global_nc(in_.q_indptr + i + 1) - token : 0;
      const CtaSums own = sums(tokens);
#pragma unroll 1
      for (int32 t = 0; t < tokens; ++t) {
        const int32 index = num_own + own.before + t;
        st_global(params_.slots + token + t,
                  SharedSlots{first + t, (end - first) / tokens, tokens, num_shared + index});
        st_global(params_.sharing_tokens + index, token + t);
      }
      num_own += own.all;
    });
    if (thread_index() == 0) st_global(&params_.shared.counts->sharing_tokens, num_own);
  }

  const ShareParams& params_;
  const StepInputs& in_;
  int32 num_segments_;  // segments of requests; the caller's arrays may be longer
  CtaScan<kThreads> scan_;
  Table table_;
};

}  // namespace lazyrope
