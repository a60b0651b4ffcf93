// A plain model of what the share kernel chooses (templates/planner/share.cuh).
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/kernel_spec.h"
#include "templates/abi/share.h"
#include "templates/planner/policy.h"
#include "templates/planner/share_key.h"
#include "tests/support/metadata.h"

namespace lazyrope {

inline constexpr int kPageSize = 16;
inline constexpr int kWindow = 200;

struct ShareSetting {
  std::string name;
  std::string mask = "causal";
  RopeForm query_form = RopeForm::kRaw;
  int group_size = 1;
  int requests = 12;
  int max_tokens = 4;      // query tokens of a request
  int segments = 4;        // most segments of a request
  bool own_lists = false;  // a page list for each segment; some differ at their end
  int share_above_kib = 0;
};

// A query token of a shared segment: its row of q, and its position there.
using Reader = std::pair<int, int>;

// A segment that can be shared, from the first token that it has in its family on.
struct Member {
  int request = 0;
  int segment = 0;
  int offset = 0;
};

struct SharedSegment {
  std::vector<Member> members;  // the first one stands for all
  int tokens = 0;
  std::vector<Reader> readers;
};

// A plain model of what the share kernel chooses.
class ShareModel {
 public:
  ShareModel(const ShareSetting& setting, const StepArrays& step, const ShareParams& params)
      : setting_(setting), step_(step), params_(params) {
    std::vector<Member> candidates;
    for (int r = 0; r < setting.requests; ++r)
      for (int s = at(step.segment_indptr, r); s < at(step.segment_indptr, r + 1); ++s)
        if (can_be_shared(r, s)) candidates.push_back({r, s, 0});
    std::int64_t saved = 0;
    for (const std::vector<Member>& family : families(joined(candidates)))
      if (std::int64_t of_family = 0; const auto group = choice(family, of_family)) {
        groups_.push_back(*group);
        saved += of_family;
      }
    if (saved < params.min_saved_tokens) groups_.clear();
  }

  // Returns the shared segments by their readers.
  std::map<std::vector<Reader>, SharedSegment> by_readers() const {
    std::map<std::vector<Reader>, SharedSegment> result;
    for (const SharedSegment& group : groups_) result.emplace(group.readers, group);
    return result;
  }

 private:
  // A page, and a slot in it.
  using Slot = std::pair<int, int>;
  // Members in the order of their keys.
  using Sorted = std::map<uint64, Member>;

  bool can_be_shared(int request, int segment) const {
    const int begin = at(step_.q_indptr, request);
    const int end = at(step_.q_indptr, request + 1);
    if (end == begin || end - begin > params_.max_request_tokens) return false;
    const int length = at(step_.length, segment);
    if (length < kMinSharedLength) return false;
    const int first_key = at(step_.base, segment) + at(step_.start, segment);
    for (int t = begin; t < end; ++t) {
      const int position = at(step_.q_position, t);
      if (setting_.mask != "full" && position < first_key + length - 1) return false;
      if (setting_.mask == "sliding_window" && position - first_key >= kWindow) return false;
    }
    return true;
  }
  // Returns where token `i` of a segment is.
  Slot slot_of(int segment, int i) const {
    const int slot = at(step_.lead, segment) + i;
    return {at(step_.pages, at(step_.first_page, segment) + slot / kPageSize), slot % kPageSize};
  }
  Slot slot_of(const Member& member) const { return slot_of(member.segment, member.offset); }
  int tokens_of(const Member& member) const {
    return at(step_.length, member.segment) - member.offset;
  }
  int pages_of(const Member& member) const {
    return (slot_of(member).second + tokens_of(member) + kPageSize - 1) / kPageSize;
  }
  int common_tokens(const Member& a, const Member& b) const {
    const int most = std::min(tokens_of(a), tokens_of(b));
    int count = 0;
    while (count < most &&
           slot_of(a.segment, a.offset + count) == slot_of(b.segment, b.offset + count))
      ++count;
    return count;
  }

  Sorted sorted(const std::vector<Member>& members) const {
    Sorted result;
    for (const Member& member : members) {
      const auto [page, slot] = slot_of(member);
      const int last = slot_of(member.segment, at(step_.length, member.segment) - 1).first;
      const ShareKeyFields fields = {page,          slot, last, pages_of(member), tokens_of(member),
                                     member.segment};
      result.emplace(ShareKey::make(fields), member);
    }
    return result;
  }
  // Divides sorted members where neighbours begin at different slots, or have few tokens in common.
  std::vector<std::vector<Member>> families(const std::vector<Member>& members) const {
    std::vector<std::vector<Member>> result;
    for (const auto& [key, member] : sorted(members)) {
      if (result.empty() || !are_of_one_family(result.back().back(), member)) result.emplace_back();
      result.back().push_back(member);
    }
    return result;
  }
  bool are_of_one_family(const Member& a, const Member& b) const {
    const int common = common_tokens(a, b);
    return common >= kMinSharedLength && common >= std::min(tokens_of(a), tokens_of(b)) / 2;
  }
  // Lets segments that are alone at the slot where they begin join slices that begin inside them.
  std::vector<Member> joined(const std::vector<Member>& candidates) const {
    const Sorted before = sorted(candidates);
    std::vector<Member> result = candidates;
    for (Member& member : result) {
      const Slot slot = slot_of(member);
      const auto is_there = [&](const Member& other) { return slot_of(other) == slot; };
      if (std::ranges::count_if(candidates, is_there) == 1)
        member.offset = offset_of_slice(member, before);
    }
    return result;
  }
  int offset_of_slice(const Member& member, const Sorted& before) const {
    const int slot = slot_of(member).second;
    const int length = at(step_.length, member.segment);
    const int least = std::max(kMinSharedLength, length / 4);
    for (int page = (slot + length - length / 4 + kPageSize - 1) / kPageSize - 1; page >= 0;
         --page) {
      const int number = slot_of(member.segment, std::max(page * kPageSize - slot, 0)).first;
      const uint32 first = ShareKey::first_bits(number, page == 0 ? slot + 1 : 0);
      const auto found = before.lower_bound(ShareKey::least(first));
      if (found == before.end() || slot_of(found->second).first != number) continue;
      const Member& slice = found->second;
      if (at(step_.start, slice.segment) == 0) continue;
      Member from = member;
      from.offset = page * kPageSize + slot_of(slice).second - slot;
      if (from.offset < length && common_tokens(from, slice) >= least) return from.offset;
    }
    return 0;
  }
  // Returns what a family shares, if that saves anything, and how many tokens it saves.
  std::optional<SharedSegment> choice(const std::vector<Member>& family,
                                      std::int64_t& saved) const {
    std::optional<SharedSegment> best;
    SharedSegment group;
    group.tokens = tokens_of(family.front());
    for (const Member& member : family) {
      group.members.push_back(member);
      group.tokens = std::min(group.tokens, common_tokens(member, family.front()));
      add_readers(member, group.readers);
      const auto readers = static_cast<int>(group.readers.size());
      const int tiles = (readers + params_.tile_tokens - 1) / params_.tile_tokens;
      const int less = static_cast<int>(group.members.size()) - tiles;
      const auto saves = std::int64_t{less} * group.tokens;
      if (group.tokens < kMinSharedLength || readers > params_.max_tokens || saves <= saved)
        continue;
      saved = saves;
      best = group;
    }
    return best;
  }
  void add_readers(const Member& member, std::vector<Reader>& readers) const {
    for (int t = at(step_.q_indptr, member.request); t < at(step_.q_indptr, member.request + 1);
         ++t)
      readers.emplace_back(
          t, (setting_.query_form == RopeForm::kRotated ? 0 : at(step_.q_position, t)) -
                 at(step_.base, member.segment));
  }

  const ShareSetting& setting_;
  const StepArrays& step_;
  const ShareParams& params_;
  std::vector<SharedSegment> groups_;
};

}  // namespace lazyrope
