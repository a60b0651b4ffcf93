// The share kernel. It finds tokens that several segments read from the same slots of the same
// pages, and makes the shared step of them (abi/cascade.h): each such shared segment becomes one
// request, whose query tokens are those of all requests that read the segment, its readers. In the
// shared step the document's token 0 is at position 0, and a query token is at its distance from
// there. So one request serves readers that put the document at different positions.
//
// A segment can be shared if all query tokens of its request see all its tokens, they do not fill a
// tile of the shared step's kernel, and it is long enough. Segments need not be equal: their common
// tokens are shared, and each request keeps the others, before or after these, as its own segments.
//
// Sorted segments that begin at the same slot and have enough tokens in common are a family. The
// first of its members, as many as save the most, share the tokens that all of them have in common.
// A segment that no other segment begins with can join the family of a slice that begins inside it,
// from that slice's first token on. Nothing is shared unless the whole step saves enough.
//
// The grid has one CTA of kShareThreads threads, which all have the same role. Its steps:
//   1. hash_segments(), load_requests(), choose_candidates(): the columns of the table, and a key
//      to sort by for each segment.
//   2. sort(): segments that begin at the same slot become neighbours, and equal ones of these.
//   3. join_slices(), only where slices begin inside a document: segments that contain a slice's
//      first token join it, and all are sorted again.
//   4. find_families(): the tokens that neighbours have in common, and the families.
//   5. choose_members(), choose(): what each family shares, and, if that pays, its request and
//      tokens in the shared step.
//   6. write_tokens(), write_segments(), write_requests(): the tokens of each reader, the slots of
//      their results, and the segments that requests keep. The slots of a query token are those of
//      its request's shared segments, in their order.
//
// All loops over segments take kShareThreads segments at a time, with the sums of those before
// carried on. The result does not depend on timing.
//
// | barrier          | who arrives | who waits | what it protects                                 |
// |------------------|-------------|-----------|--------------------------------------------------|
// | between steps    | all threads | the CTA   | columns of the table                             |
// | sort()           | all threads | the CTA   | keys, between two passes over the table          |
// | choose_members() | a warp      | the warp  | a family's runs, which its choice replaces       |
// | CtaScan, sums()  | all threads | the CTA   | the scan's memory, after each store and each use |
#pragma once

#include "abi/share.h"
#include "ops/cta_scan.cuh"
#include "planner/key_sort.cuh"
#include "planner/segment_locations.cuh"
#include "planner/share_key.h"
#include "planner/share_table.cuh"

namespace lazyrope {

template <class Spec>
class SharePlanner {
  using Mask = typename Spec::Mask;
  static constexpr int32 kThreads = kShareThreads;
  static constexpr int32 kNotShared = -1;
  static constexpr int32 kLineInts = 32;  // int32 per L2 cache line

  // A step may have room for many more segments than its tensors have now.
  LAZYROPE_DEVICE static ShareTable table_of(const ShareParams& params, SharedPtr memory) {
    const bool fits = params.inputs.num_segments <= kShareSegments;
    return ShareTable(fits ? generic(memory + kShareScanBytes) : generic(params.table),
                      (fits ? kShareSegments : params.table_segments) + 1);
  }

 public:
  LAZYROPE_DEVICE SharePlanner(const ShareParams& params, SharedPtr memory)
      : params_(params),
        in_(params.inputs),
        segments_(params.inputs, params.page_size),
        num_segments_(ld_global_nc(in_.segment_indptr + in_.num_requests)),
        scan_(memory),
        table_(table_of(params, memory)) {}

  LAZYROPE_DEVICE void plan() const {
    prefetch();
    hash_segments();
    clear_slots();
    load_requests();
    bar_sync();
    const Candidates candidates = choose_candidates();
    sort();
    if (candidates.slices > 0) {
      join_slices(candidates.count);
      sort();
    }
    const int32 num_families = find_families(candidates.count);
    bar_sync();
    choose_members(candidates.count);
    bar_sync();
    choose(num_families);
    write_tokens(candidates.count);
    bar_sync();
    write_segments();
    bar_sync();
    write_requests();
  }

 private:
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

  // Makes the sort keys of all segments that are long enough, and prefetches their page lists.
  LAZYROPE_DEVICE void hash_segments() const {
    for_each(num_sorted(), [&](int32 i, bool exists) {
      if (!exists) return;
      const bool is_long = i < num_segments_ && segments_.length(i) >= params_.min_length;
      table_.key.set(i, is_long ? key_of(i, 0) : ShareKey::of_others(i));
    });
  }
  LAZYROPE_DEVICE int32 num_sorted() const {
    int32 count = kShareChunk;
#pragma unroll 1
    while (count < in_.num_segments) count *= 2;
    return count;
  }

  LAZYROPE_DEVICE uint64 key_of(int32 segment, int32 offset) const {
    const TokenLocation first = segments_.location(segment, offset);
    const int32 length = segments_.length(segment) - offset;
    const int32 pages = segments_.num_pages(first, length);
    if (offset == 0) prefetch_pages(first.pages, pages);
    return ShareKey::make({.first_page = ld_global_nc(first.pages),
                           .slot = first.slot,
                           .last_page = ld_global_nc(first.pages + pages - 1),
                           .pages = pages,
                           .length = length,
                           .segment = segment});
  }
  LAZYROPE_DEVICE static void prefetch_pages(const int32* pages, int32 count) {
    constexpr int32 kMaxPrefetched = 512;
#pragma unroll 1
    for (int32 i = 0; i < smaller(count, kMaxPrefetched); i += kLineInts)
      prefetch_global_l2(pages + i);
  }
  LAZYROPE_DEVICE uint32 first_bits_at(int32 sorted) const {
    return ShareKey::first_bits(table_.key.get(sorted));
  }
  LAZYROPE_DEVICE int32 segment_at(int32 sorted) const {
    return ShareKey::segment(table_.key.get(sorted));
  }

  struct Candidates {
    int32 count;   // segments that can be shared
    int32 slices;  // those of them that begin inside their document
  };
  // The keys of all segments that cannot be shared become the greatest.
  LAZYROPE_DEVICE Candidates choose_candidates() const {
    constexpr int32 kSliceUnit = 1 << 16;
    static_assert(kThreads < kSliceUnit);
    Candidates candidates = {0, 0};
    for_each(in_.num_segments, [&](int32 i, bool exists) {
      const bool has_key = exists && first_bits_at(i) != ShareKey::kOthers;
      const bool can_be = has_key && can_be_shared(i);
      if (has_key && !can_be) table_.key.set(i, ShareKey::of_others(i));
      if (exists) {
        table_.offset.set(i, 0);
        table_.shared_length.set(i, 0);
      }
      const int32 all =
          sums((can_be ? 1 : 0) + (can_be && segments_.start(i) > 0 ? kSliceUnit : 0)).all;
      candidates.count += all % kSliceUnit;
      candidates.slices += all / kSliceUnit;
    });
    return candidates;
  }

  // Tells whether all query tokens of the segment's request see all its tokens, and whether an
  // int32 holds their positions in the step and in the shared step.
  LAZYROPE_DEVICE bool can_be_shared(int32 segment) const {
    if (table_.num_tokens.get(segment) == 0) return false;
    const int64 base = segments_.base(segment);
    const int64 start = segments_.start(segment);
    const int64 length = segments_.length(segment);
    const int64 first_key = segments_.mask_base(segment) + start;
    const int64 last_key = first_key + length - 1;
    const PositionRange queries = {table_.first_position.get(segment),
                                   table_.last_position.get(segment)};
    return fits(first_key) && fits(last_key) && fits(start + length - 1) && fits(-base) &&
           fits(queries.first - base) && fits(queries.last - base) &&
           all_visible<Mask>(queries, static_cast<int32>(first_key), static_cast<int32>(last_key));
  }
  LAZYROPE_DEVICE static bool fits(int64 value) {
    return value >= kFirstPosition && value <= kLastPosition;
  }

  LAZYROPE_DEVICE void sort() const { KeySort<kThreads>(table_.key).sort(num_sorted()); }

  // Returns the location of the first token that the segment has in its family.
  LAZYROPE_DEVICE TokenLocation location_of(int32 segment) const {
    return segments_.location(segment, table_.offset.get(segment));
  }
  // Returns the segment's tokens from there on.
  LAZYROPE_DEVICE int32 tokens_from_there(int32 segment) const {
    return segments_.length(segment) - table_.offset.get(segment);
  }

  // Lets each segment that is the only one to begin at its slot join a slice that begins inside it,
  // the last one with which it has a quarter of its tokens in common. So segments that contain each
  // other meet at the same slice, and a short slice does not take a long segment from a better one.
  LAZYROPE_DEVICE void join_slices(int32 count) const {
#pragma unroll 1
    for (int32 i = warp_index(); i < count; i += kThreads / kWarpThreads) {
      const uint32 first = first_bits_at(i);
      const bool is_single = (i == 0 || first_bits_at(i - 1) != first) &&
                             (i + 1 == count || first_bits_at(i + 1) != first);
      if (!is_single) continue;
      const int32 segment = segment_at(i);
      const int32 offset = offset_of_slice(segment, count);
      if (lane_index() == 0) table_.offset.set(segment, offset);
    }
    bar_sync();
    for_each(count, [&](int32 i, bool exists) {
      if (!exists) return;
      const int32 segment = segment_at(i);
      const int32 offset = table_.offset.get(segment);
      if (offset > 0) table_.key.set(i, key_of(segment, offset));
    });
    bar_sync();
  }
  // Returns the tokens of a segment before the slice that it joins, or 0. A warp takes part, which
  // looks up a page with each lane.
  LAZYROPE_DEVICE int32 offset_of_slice(int32 segment, int32 count) const {
    const TokenLocation from = segments_.location(segment, 0);
    const int32 length = segments_.length(segment);
#pragma unroll 1
    for (int32 last = segments_.num_pages(from, length - length / 4) - 1; last >= 0;
         last -= kWarpThreads) {
      const int32 page = last - lane_index();
      const int32 slice = page >= 0 ? slice_in_page(from, page, count) : kNotShared;
      const int32 offset = slice == kNotShared ? 0 : joined_offset(segment, from, page, slice);
      const uint32 found = vote_sync_ballot(offset > 0);
      if (found != 0) return shfl_sync_idx(offset, lowest_one(found));
    }
    return 0;
  }
  // Returns the first slice that begins in a page of a list after its first token, or kNotShared.
  LAZYROPE_DEVICE int32 slice_in_page(const TokenLocation& from, int32 page, int32 count) const {
    const int32 first_slot = page == 0 ? from.slot + 1 : 0;
    const int32 number = ld_global_nc(from.pages + page);
    const uint64 least = ShareKey::least(ShareKey::first_bits(number, first_slot));
    const int32 at = upper_bound(count, least - 1, [&](int32 i) { return table_.key.get(i); });
    if (at == count || first_bits_at(at) >> ShareKey::kSlotBits != ShareKey::page_bits(number))
      return kNotShared;
    const int32 slice = segment_at(at);
    const TokenLocation location = segments_.location(slice, 0);
    const bool is_there = ld_global_nc(location.pages) == number && location.slot >= first_slot;
    return is_there && segments_.start(slice) > 0 ? slice : kNotShared;
  }
  // Returns the tokens of a segment before a slice that begins in its page `page`, or 0 if too few
  // tokens from there on are the same.
  LAZYROPE_DEVICE int32 joined_offset(int32 segment, const TokenLocation& from, int32 page,
                                      int32 slice) const {
    const TokenLocation to = segments_.location(slice, 0);
    const int32 all = segments_.length(segment);
    const int32 offset = page * segments_.page_size() + to.slot - from.slot;
    const int32 length = smaller(all - offset, segments_.length(slice));
    const int32 least = larger(params_.min_length, all / 4);
    if (length < least) return 0;
    const TokenLocation there = {from.pages + page, to.slot};
    return segments_.common_tokens(there, to, length) >= least ? offset : 0;
  }

  // Compares sorted neighbours, and numbers the families. Returns the number of families.
  LAZYROPE_DEVICE int32 find_families(int32 count) const {
    int32 num_families = 0;
    int32 num_tokens = 0;
    for_each(count, [&](int32 i, bool exists) {
      const int32 segment = exists ? segment_at(i) : 0;
      const int32 run = exists && i > 0 ? run_of_family(i) : 0;
      const bool begins = exists && run == 0;
      const int32 tokens = exists ? table_.num_tokens.get(segment) : 0;
      const CtaSums families = sums(begins ? 1 : 0);
      const CtaSums of_tokens = sums(tokens);
      const int32 family = num_families + families.before + (begins ? 0 : -1);
      if (exists) {
        table_.run.set(i, begins ? tokens_from_there(segment) : run);
        table_.family.set(i, family);
        table_.tokens_before.set(i, num_tokens + of_tokens.before);
      }
      if (begins) table_.family_begin.set(family, i);
      num_families += families.all;
      num_tokens += of_tokens.all;
    });
    if (thread_index() == 0) {
      table_.family_begin.set(num_families, count);
      table_.tokens_before.set(count, num_tokens);
    }
    return num_families;
  }
  // Returns how many tokens a sorted segment has in common with the one before, or 0 if they are of
  // different families. Few common tokens would limit what all members share.
  LAZYROPE_DEVICE int32 run_of_family(int32 i) const {
    if (first_bits_at(i - 1) != first_bits_at(i)) return 0;
    const int32 a = segment_at(i - 1);
    const int32 b = segment_at(i);
    const TokenLocation of_a = location_of(a);
    const TokenLocation of_b = location_of(b);
    if (of_a.slot != of_b.slot) return 0;
    const int32 length = smaller(tokens_from_there(a), tokens_from_there(b));
    const int32 run = segments_.common_tokens(of_a, of_b, length);
    return run >= params_.min_length && run >= length / 2 ? run : 0;
  }

  // A family can share its first `tokens` tokens among its first `members` members.
  struct Choice {
    int64 saved;  // tokens that are not read again
    int32 members;
    int32 tokens;
  };

  // Chooses for each family with several members what saves the most. A warp has one family at a
  // time.
  LAZYROPE_DEVICE void choose_members(int32 count) const {
#pragma unroll 1
    for (int32 first = warp_index() * kWarpThreads; first < count; first += kThreads) {
      const int32 i = first + lane_index();
      const int32 family = i < count ? table_.family.get(i) : 0;
      const bool begins = i + 1 < count && table_.family_begin.get(family) == i &&
                          table_.family.get(i + 1) == family;
      uint32 left = vote_sync_ballot(begins);
#pragma unroll 1
      for (; left != 0; left &= left - 1) choose_of_family(shfl_sync_idx(family, lowest_one(left)));
    }
  }
  LAZYROPE_DEVICE void choose_of_family(int32 family) const {
    const int32 begin = table_.family_begin.get(family);
    const int32 end = table_.family_begin.get(family + 1);
    const int32 tokens_before = table_.tokens_before.get(begin);
    Choice best = {0, 0, 0};
    int32 run = kLastPosition;  // tokens that all members before have in common
#pragma unroll 1
    for (int32 first = begin; first < end; first += kWarpThreads) {
      const int32 i = first + lane_index();
      const int32 last = smaller(i, end - 1);
      run = smaller(run, prefix_min(table_.run.get(last)));
      const int32 tokens = table_.tokens_before.get(last + 1) - tokens_before;
      const Choice choice = {saved_tokens(last + 1 - begin, tokens, run), last + 1 - begin, run};
      if (choice.saved > best.saved) best = choice;
      run = shfl_sync_idx(run, kWarpThreads - 1);
    }
    best = best_of_warp(best);
    bar_warp_sync();
    if (lane_index() > 1) return;
    table_.run.set(begin + lane_index(), lane_index() == 0 ? best.tokens : best.members);
  }
  LAZYROPE_DEVICE static int32 prefix_min(int32 value) {
#pragma unroll
    for (int32 delta = 1; delta < kWarpThreads; delta *= 2)
      value = smaller(value, shfl_sync_up(value, delta));
    return value;
  }
  LAZYROPE_DEVICE static Choice best_of_warp(Choice choice) {
#pragma unroll
    for (int32 mask = kWarpThreads / 2; mask > 0; mask /= 2) {
      const auto saved = static_cast<int64>(from_partner(static_cast<uint64>(choice.saved), mask));
      const Choice other = {saved, shfl_sync_bfly(choice.members, mask),
                            shfl_sync_bfly(choice.tokens, mask)};
      const bool is_tie = other.saved == choice.saved;
      if (is_tie ? other.members < choice.members : other.saved > choice.saved) choice = other;
    }
    return choice;
  }
  // Returns how many tokens fewer are read if `members` segments with `query_tokens` readers share
  // their first `tokens` tokens. What the shared step never has room for saves nothing.
  LAZYROPE_DEVICE int64 saved_tokens(int32 members, int32 query_tokens, int32 tokens) const {
    const int32 tiles = (query_tokens + params_.tile_tokens - 1) / params_.tile_tokens;
    if (tokens < params_.min_length || members <= tiles || query_tokens > params_.max_tokens)
      return 0;
    return static_cast<int64>(members - tiles) * tokens;
  }

  // The segments of a family that share its first tokens.
  struct Group {
    int32 begin;  // its first segment in sorted order
    int32 segments;
    int32 query_tokens;  // those of its readers
    int32 tokens;        // shared tokens
  };
  LAZYROPE_DEVICE Group group_of(int32 family) const {
    const int32 begin = table_.family_begin.get(family);
    if (table_.family_begin.get(family + 1) - begin < 2) return {begin, 0, 0, 0};
    const int32 segments = table_.run.get(begin + 1);
    return {begin, segments,
            table_.tokens_before.get(begin + segments) - table_.tokens_before.get(begin),
            table_.run.get(begin)};
  }
  LAZYROPE_DEVICE int64 saved_tokens(const Group& group) const {
    return saved_tokens(group.segments, group.query_tokens, group.tokens);
  }

  // Chooses the families that share, as many as the shared step has room for, and writes its
  // requests.
  LAZYROPE_DEVICE void choose(int32 num_families) const {
    const bool shares = saves_enough(num_families);
    int32 num_requests = 0;
    int32 num_tokens = 0;
    for_each(num_families, [&](int32 i, bool exists) {
      const Group group = exists ? group_of(i) : Group{};
      const bool pays = shares && exists && saved_tokens(group) > 0;
      const CtaSums tokens = sums(pays ? group.query_tokens : 0);
      const CtaSums requests = sums(pays ? 1 : 0);
      const int32 token = num_tokens + tokens.before;
      const int32 request = num_requests + requests.before;
      const bool has_room =
          token + group.query_tokens <= params_.max_tokens && request < params_.max_segments;
      if (exists) table_.family_token.set(i, pays && has_room ? token : kNotShared);
      if (pays && has_room) write_shared_request(request, token, group);
      // Families without room are the last ones of the round.
      num_tokens += sums(pays && has_room ? group.query_tokens : 0).all;
      num_requests += sums(pays && has_room ? 1 : 0).all;
    });
    if (thread_index() == 0) write_end(num_requests, num_tokens);
  }
  LAZYROPE_DEVICE bool saves_enough(int32 num_families) const {
    int64 saved = 0;
    for_each(num_families, [&](int32 i, bool exists) {
      const int64 of_family = exists ? saved_tokens(group_of(i)) : 0;
      saved += sums(static_cast<int32>(smaller(of_family, int64{kMaxSavedTokens}))).all;
    });
    return saved > 0 && saved >= params_.min_saved_tokens;
  }

  LAZYROPE_DEVICE void write_shared_request(int32 request, int32 token, const Group& group) const {
    const int32 segment = segment_at(group.begin);
    st_global(params_.shared.q_indptr + request, token);
    st_global(params_.shared.segment_indptr + request, request);
    segments_.write(params_.shared.segments, request, 0, segment, table_.offset.get(segment),
                    group.tokens);
  }
  LAZYROPE_DEVICE void write_end(int32 num_requests, int32 num_tokens) const {
    st_global(params_.shared.q_indptr + num_requests, num_tokens);
    st_global(params_.shared.segment_indptr + num_requests, num_requests);
    st_global(&params_.shared.counts->requests, num_requests);
    st_global(&params_.shared.counts->tokens, num_tokens);
  }

  // Writes the tokens of all readers, except for their slots.
  LAZYROPE_DEVICE void write_tokens(int32 count) const {
    for_each(count, [&](int32 i, bool exists) {
      if (!exists) return;
      const int32 family = table_.family.get(i);
      const int32 family_token = table_.family_token.get(family);
      if (family_token == kNotShared) return;
      const Group group = group_of(family);
      if (i - group.begin >= group.segments) return;
      const int32 before = table_.tokens_before.get(group.begin);
      const int32 token = family_token + table_.tokens_before.get(i) - before;
      const int32 segment = segment_at(i);
      table_.shared_token.set(segment, token);
      table_.shared_length.set(segment, group.tokens);
      const int32 base = segments_.base(segment);
      const int32 first = table_.first_token.get(segment);
#pragma unroll 1
      for (int32 t = 0; t < table_.num_tokens.get(segment); ++t) {
        const int32 position = Spec::kQueryRotated ? 0 : ld_global_nc(in_.q_position + first + t);
        st_global(params_.shared.q_position + token + t, position - base);
        st_global(&params_.tokens[token + t].query_token, first + t);
      }
    });
  }

  // Writes the slots of all readers' tokens, and the segments that requests keep: what is before
  // and after the shared tokens of each segment.
  LAZYROPE_DEVICE void write_segments() const {
    constexpr int32 kKeptUnit = 1 << 20;  // both sums are made at once
    static_assert(kThreads * kMaxReaderTokens < kKeptUnit);
    int32 num_slots = 0;
    int32 num_kept = 0;
    for_each(in_.num_segments, [&](int32 i, bool exists) {
      const int32 shared = exists ? table_.shared_length.get(i) : 0;
      const int32 all = i < num_segments_ ? segments_.length(i) : 0;
      const int32 before = shared > 0 ? table_.offset.get(i) : all;
      const int32 after = all - before - shared;
      const int32 tokens = shared > 0 ? table_.num_tokens.get(i) : 0;
      const CtaSums of = sums(tokens + ((before > 0 ? 1 : 0) + (after > 0 ? 1 : 0)) * kKeptUnit);
      const int32 slot = num_slots + of.before % kKeptUnit;
      const int32 kept = num_kept + of.before / kKeptUnit;
      if (before > 0) keep(kept, i, 0, before);
      if (after > 0) keep(kept + (before > 0 ? 1 : 0), i, before + shared, after);
      if (exists) {
        table_.slot.set(i, slot);
        table_.own_segment.set(i, kept);
      }
#pragma unroll 1
      for (int32 t = 0; t < tokens; ++t)
        st_global(&params_.tokens[table_.shared_token.get(i) + t].slot, slot + t);
      num_slots += of.all % kKeptUnit;
      num_kept += of.all / kKeptUnit;
    });
    if (thread_index() != 0) return;
    table_.slot.set(in_.num_segments, num_slots);
    table_.own_segment.set(in_.num_segments, num_kept);
  }
  LAZYROPE_DEVICE void keep(int32 at, int32 segment, int32 offset, int32 length) const {
    segments_.write(params_.own.segments, at, segments_.base(segment), segment, offset, length);
    if (in_.mask_base != nullptr)
      st_global(params_.own.mask_base + at, segments_.mask_base(segment));
  }

  LAZYROPE_DEVICE void clear_slots() const {
    for_each(in_.num_tokens, [&](int32 i, bool exists) {
      if (exists) st_global(params_.slots + i, SharedSlots{});
    });
  }

  // Writes the segments that each request keeps, and the slots of the query tokens that have any.
  // The slots of own results come last.
  LAZYROPE_DEVICE void write_requests() const {
    const int32 num_shared = table_.slot.get(in_.num_segments);
    int32 num_own = 0;
    for_each(in_.num_requests, [&](int32 i, bool exists) {
      const int32 segment = exists ? ld_global_nc(in_.segment_indptr + i) : 0;
      const int32 segment_end = exists ? ld_global_nc(in_.segment_indptr + i + 1) : 0;
      const int32 first = exists ? table_.slot.get(segment) : 0;
      const int32 end = exists ? table_.slot.get(segment_end) : 0;
      const int32 token = exists ? ld_global_nc(in_.q_indptr + i) : 0;
      const int32 tokens = end > first ? ld_global_nc(in_.q_indptr + i + 1) - token : 0;
      const CtaSums own = sums(tokens);
      if (exists) st_global(params_.own.segment_indptr + i, table_.own_segment.get(segment));
#pragma unroll 1
      for (int32 t = 0; t < tokens; ++t) {
        const int32 index = num_own + own.before + t;
        st_global(params_.slots + token + t,
                  SharedSlots{first + t, (end - first) / tokens, tokens, num_shared + index});
        st_global(params_.sharing_tokens + index, token + t);
      }
      num_own += own.all;
    });
    if (thread_index() != 0) return;
    st_global(&params_.shared.counts->sharing_tokens, num_own);
    st_global(params_.own.segment_indptr + in_.num_requests, table_.own_segment.get(num_segments_));
  }

  const ShareParams& params_;
  const StepInputs& in_;
  SegmentLocations segments_;
  int32 num_segments_;  // segments of requests; the caller's arrays may be longer
  CtaScan<kThreads> scan_;
  ShareTable table_;
};

}  // namespace lazyrope
