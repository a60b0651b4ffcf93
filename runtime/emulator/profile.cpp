#include "runtime/emulator/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>

namespace lazyrope {
namespace {

constexpr std::size_t kBanks = 32;
constexpr std::uint32_t kBankBytes = 4;
constexpr std::uint32_t kPassBytes = kBanks * kBankBytes;
constexpr std::uintptr_t kSectorBytes = 32;
constexpr std::uintptr_t kLineBytes = 128;
constexpr std::uint32_t kWidest = 16;  // bytes of a lane in one instruction

std::string_view name_of(MemoryInstruction instruction) {
  switch (instruction) {
    case MemoryInstruction::kLdShared:
      return "ld.shared";
    case MemoryInstruction::kStShared:
      return "st.shared";
    case MemoryInstruction::kLdmatrix:
      return "ldmatrix.x4";
    case MemoryInstruction::kLdGlobal:
      return "ld.global";
    case MemoryInstruction::kLdGlobalNc:
      return "ld.global.nc";
    case MemoryInstruction::kLdAcquire:
      return "ld.acquire";
    case MemoryInstruction::kStGlobal:
      return "st.global";
    case MemoryInstruction::kAtom:
      return "atom";
    case MemoryInstruction::kCpAsync:
      return "cp.async";
    case MemoryInstruction::kCpAsyncBulk:
      return "cp.async.bulk";
    case MemoryInstruction::kCpAsyncBulkTensor:
      return "cp.async.bulk.tensor";
  }
  return "";
}

// Returns the name as in PTX, with the bits of a lane, or its bytes for cp.async.
std::string name_of(MemoryInstruction instruction, std::uint32_t bytes) {
  const std::string_view name = name_of(instruction);
  switch (instruction) {
    case MemoryInstruction::kLdmatrix:
      return std::string(name);
    case MemoryInstruction::kCpAsync:
      return fmt::format("{} {}", name, bytes);
    default:
      return fmt::format("{}.b{}", name, 8 * bytes);
  }
}

bool is_active(const LaneRange& range) { return range.bytes > 0; }

// Returns the largest number of distinct words that the lanes access in one bank.
std::uint64_t passes(std::span<const LaneRange> lanes) {
  std::vector<std::uintptr_t> words;
  for (const LaneRange& lane : lanes)
    for (std::uintptr_t at = lane.address; at < lane.address + lane.bytes; at += kBankBytes)
      words.push_back(at / kBankBytes);
  std::ranges::sort(words);
  words.erase(std::unique(words.begin(), words.end()), words.end());
  std::array<std::uint64_t, kBanks> of_bank = {};
  for (const std::uintptr_t word : words) ++of_bank[word % kBanks];
  return std::ranges::max(of_bank);
}

// Returns how many aligned blocks of `block_bytes` bytes hold a byte of the ranges.
std::uint64_t blocks_touched(std::span<const LaneRange> by_address, std::uintptr_t block_bytes) {
  std::uint64_t count = 0;
  std::uintptr_t next = 0;  // first block not counted yet
  for (const LaneRange& range : by_address) {
    const std::uintptr_t end = (range.address + range.bytes - 1) / block_bytes + 1;
    const std::uintptr_t begin = std::max(next, range.address / block_bytes);
    if (begin >= end) continue;
    count += end - begin;
    next = end;
  }
  return count;
}

void add(const GlobalCost& cost, ProfileLine& sum) {
  sum.sectors += cost.sectors;
  sum.ideal_sectors += cost.ideal;
  sum.cache_lines += cost.lines;
}

LaneRange piece_of(const LaneRange& range, std::uint32_t at) {
  if (at >= range.bytes) return {};
  return {range.address + at, std::min(range.bytes - at, kWidest)};
}

GlobalCost cost_of(std::vector<LaneRange> ranges) {
  std::ranges::sort(ranges, {}, &LaneRange::address);
  const std::uint64_t bytes = blocks_touched(ranges, 1);
  return {.sectors = blocks_touched(ranges, kSectorBytes),
          .ideal = (bytes + kSectorBytes - 1) / kSectorBytes,
          .lines = blocks_touched(ranges, kLineBytes)};
}

}  // namespace

SharedCost shared_cost(const WarpRanges& lanes) {
  const auto active = std::ranges::find_if(lanes, is_active);
  if (active == lanes.end()) return {};
  const std::size_t group = kPassBytes / std::clamp(active->bytes, kBankBytes, kWidest);
  SharedCost cost;
  for (std::size_t first = 0; first < lanes.size(); first += group)
    if (const std::uint64_t needed = passes(std::span(lanes).subspan(first, group)); needed > 0) {
      cost.wavefronts += needed;
      ++cost.ideal;
    }
  return cost;
}

GlobalCost global_cost(const WarpRanges& lanes) {
  std::vector<LaneRange> ranges;
  std::ranges::copy_if(lanes, std::back_inserter(ranges), is_active);
  return cost_of(std::move(ranges));
}

void Profile::begin(std::string_view kernel) {
  kernel_ = kernel;
  open_.clear();  // a launch that failed leaves entries
}

// An access that is wider than any instruction counts as several.
void Profile::access(ThreadId by, const LaneAccess& access) {
  const std::uint32_t bytes = std::max(access.shared.bytes, access.global.bytes);
  for (std::uint32_t at = 0; at < bytes; at += kWidest)
    note(by, {access.instruction, access.site, piece_of(access.shared, at),
              piece_of(access.global, at)});
}

void Profile::note(ThreadId by, const LaneAccess& piece) {
  const std::uint32_t bytes = std::max(piece.shared.bytes, piece.global.bytes);
  Executions& executions =
      open_[warp_of(by)][{piece.instruction, bytes, piece.site.file, piece.site.line}];
  const std::size_t lane = static_cast<std::size_t>(by.thread) % kWarpLanes;
  const std::size_t time = executions.times[lane]++;
  if (time == executions.each.size()) executions.each.emplace_back();
  executions.each[time].shared[lane] = piece.shared;
  executions.each[time].global[lane] = piece.global;
}

void Profile::end(int cta) {
  for (auto open = open_.lower_bound({cta, 0}); open != open_.end() && open->first.first == cta;
       open = open_.lower_bound({cta, 0}))
    count(open->first);
}

void Profile::count(Warp warp) {
  const auto open = open_.find(warp);
  if (open == open_.end()) return;
  for (const auto& [instruction, executions] : open->second) count(instruction, executions);
  open_.erase(open);
}

void Profile::count(const Instruction& instruction, const Executions& executions) {
  const auto& [kind, bytes, file, line] = instruction;
  ProfileLine& sum = row_of(name_of(kind, bytes), file, line);
  for (const Executions::Once& once : executions.each) {
    const SharedCost shared = shared_cost(once.shared);
    sum.wavefronts += shared.wavefronts;
    sum.ideal_wavefronts += shared.ideal;
    add(global_cost(once.global), sum);
  }
  const std::uint64_t lanes =
      std::accumulate(executions.times.begin(), executions.times.end(), std::uint64_t{0});
  sum.executions += executions.each.size();
  sum.lanes += lanes;
  sum.bytes += lanes * bytes;
}

void Profile::copy(MemoryInstruction instruction, const Site& site, std::vector<LaneRange> global) {
  ProfileLine& sum = row_of(std::string(name_of(instruction)), site.file, site.line);
  ++sum.executions;
  ++sum.lanes;
  for (const LaneRange& range : global) sum.bytes += range.bytes;
  add(cost_of(std::move(global)), sum);
}

ProfileLine& Profile::row_of(const std::string& instruction, const char* file, int line) {
  const auto [row, is_new] = rows_.try_emplace({kernel_, file, line, instruction});
  if (is_new)
    row->second = {.kernel = kernel_, .file = file, .line = line, .instruction = instruction};
  return row->second;
}

std::vector<ProfileLine> Profile::lines() const {
  std::vector<ProfileLine> lines;
  lines.reserve(rows_.size());
  for (const auto& [row, line] : rows_) lines.push_back(line);
  return lines;
}

}  // namespace lazyrope
