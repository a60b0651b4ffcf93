#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "runtime/emulator/launch.h"
#include "runtime/emulator/profile.h"
#include "runtime/emulator/profile_table.h"
#include "templates/isa/emu/async_copy.cuh"
#include "templates/isa/emu/bulk_copy.cuh"
#include "templates/isa/emu/sync.cuh"
#include "templates/tile/shared_tile.cuh"

namespace lazyrope {
namespace {

constexpr int kSharedBytes = 8192;

// Returns ranges of `bytes` bytes; that of lane l starts at address(l).
WarpRanges ranges(std::uint32_t bytes, const std::function<std::uintptr_t(std::uintptr_t)>& address,
                  std::size_t lanes = kWarpLanes) {
  WarpRanges result = {};
  for (std::size_t lane = 0; lane < lanes; ++lane) result[lane] = {address(lane), bytes};
  return result;
}

struct Cost {
  std::uint64_t taken;
  std::uint64_t ideal;
  friend bool operator==(const Cost&, const Cost&) = default;
  friend void PrintTo(const Cost& cost, std::ostream* os) {
    *os << cost.taken << " of ideally " << cost.ideal;
  }
};

Cost wavefronts(const WarpRanges& lanes) {
  const SharedCost cost = shared_cost(lanes);
  return {cost.wavefronts, cost.ideal};
}

Cost sectors(const WarpRanges& lanes) {
  const GlobalCost cost = global_cost(lanes);
  return {cost.sectors, cost.ideal};
}

TEST(SharedCost, WordsOfDifferentBanksTakeOnePass) {
  EXPECT_EQ(wavefronts(ranges(4, [](auto lane) { return 4 * lane; })), (Cost{1, 1}));
  EXPECT_EQ(wavefronts(ranges(4, [](auto lane) { return 4 * (31 - lane) + 640; })), (Cost{1, 1}));
  EXPECT_EQ(wavefronts(ranges(4, [](auto lane) { return 4 * 33 * lane; })), (Cost{1, 1}));
}

TEST(SharedCost, WordsOfOneBankTakeAPassEach) {
  EXPECT_EQ(wavefronts(ranges(4, [](auto lane) { return 4 * 32 * lane; })), (Cost{32, 1}));
  EXPECT_EQ(wavefronts(ranges(4, [](auto lane) { return 4 * 2 * lane; })), (Cost{2, 1}));
  EXPECT_EQ(wavefronts(ranges(4, [](auto lane) { return 4 * 32 * lane; }, 5)), (Cost{5, 1}));
}

TEST(SharedCost, WordIsReadOnceForAllLanes) {
  EXPECT_EQ(wavefronts(ranges(4, [](auto) { return 64; })), (Cost{1, 1}));
  EXPECT_EQ(wavefronts(ranges(1, [](auto lane) { return lane; })), (Cost{1, 1}));
  // Each half of the warp reads one word, and the two words are in the same bank.
  EXPECT_EQ(wavefronts(ranges(4, [](auto lane) { return lane / 16 * 128; })), (Cost{2, 1}));
}

TEST(SharedCost, EightByteAccessesAreServedByHalfWarps) {
  EXPECT_EQ(wavefronts(ranges(8, [](auto lane) { return 8 * lane; })), (Cost{2, 2}));
  EXPECT_EQ(wavefronts(ranges(8, [](auto lane) { return 8 * lane; }, 16)), (Cost{1, 1}));
  // The pairs of words of 16 lanes start in the banks 0, 4, ..., 28, each of them twice.
  EXPECT_EQ(wavefronts(ranges(8, [](auto lane) { return 16 * lane; })), (Cost{4, 2}));
}

TEST(SharedCost, SixteenByteAccessesAreServedByQuarterWarps) {
  EXPECT_EQ(wavefronts(ranges(16, [](auto lane) { return 16 * lane; })), (Cost{4, 4}));
  EXPECT_EQ(wavefronts(ranges(16, [](auto lane) { return 16 * lane; }, 9)), (Cost{2, 2}));
}

// ldmatrix reads a column of chunks: eight rows of 128 bytes for each of four matrices.
TEST(SharedCost, RowsConflictUnlessTheyAreSwizzled) {
  EXPECT_EQ(wavefronts(ranges(16, [](auto row) { return 128 * row; })), (Cost{32, 4}));
  EXPECT_EQ(wavefronts(ranges(16, [](auto row) { return 128 * row + 16 * (row % 8); })),
            (Cost{4, 4}));
  EXPECT_EQ(wavefronts(ranges(16, [](auto row) { return (128 + 16) * row; })), (Cost{4, 4}));
  EXPECT_EQ(wavefronts(ranges(16, [](auto row) { return (128 + 32) * row; })), (Cost{8, 4}));
}

// Returns the cost of all ldmatrix of a tile, at the addresses that the tile returns.
template <int kColumns, int kBytes>
Cost fragments() {
  using Tile = SharedTile<kColumns, kBytes>;
  Cost sum = {};
  for (int32 sixteens = 0; sixteens < Tile::kSixteens; ++sixteens) {
    const auto [taken, ideal] = wavefronts(ranges(16, [&](auto lane) {
      const SharedPtr fragment = Tile::fragment({0}, static_cast<int32>(lane));
      return Tile::columns(fragment, sixteens).address;
    }));
    EXPECT_EQ(ideal, 4U);
    sum = {sum.taken + taken, sum.ideal + ideal};
  }
  return sum;
}

template <int kColumns, int kBytes>
void expect_no_conflicts() {
  const Cost cost = fragments<kColumns, kBytes>();
  EXPECT_EQ(cost.taken, cost.ideal) << kColumns << " columns of " << kBytes << " bytes";
}

template <int... kHeadDims>
void expect_no_conflicts_of_16_bits() {
  (expect_no_conflicts<kHeadDims, 2>(), ...);
}

template <int... kHeadDims>
void expect_no_conflicts_of_8_bits() {
  (expect_no_conflicts<kHeadDims, 1>(), ...);
}

TEST(SharedCost, LdmatrixReadsTilesWithoutConflicts) {
  expect_no_conflicts_of_16_bits<64, 72, 80, 96, 112, 128, 160, 192, 256>();
  expect_no_conflicts_of_8_bits<64, 80, 96, 112, 128, 160, 192, 256>();
}

TEST(SharedCost, NoAccessCostsNothing) { EXPECT_EQ(wavefronts({}), (Cost{0, 0})); }

TEST(GlobalCost, NeighboursShareSectors) {
  EXPECT_EQ(sectors(ranges(4, [](auto lane) { return 4 * lane; })), (Cost{4, 4}));
  EXPECT_EQ(sectors(ranges(16, [](auto lane) { return 16 * lane; })), (Cost{16, 16}));
  EXPECT_EQ(sectors(ranges(4, [](auto lane) { return 4 * lane + 4; })), (Cost{5, 4}))
      << "a range that starts inside a sector takes one more";
}

TEST(GlobalCost, StridesWasteSectors) {
  EXPECT_EQ(sectors(ranges(4, [](auto lane) { return 8 * lane; })), (Cost{8, 4}));
  EXPECT_EQ(sectors(ranges(4, [](auto lane) { return 32 * lane; })), (Cost{32, 4}));
  EXPECT_EQ(sectors(ranges(4, [](auto lane) { return 4096 * lane; }, 3)), (Cost{3, 1}));
}

TEST(GlobalCost, BytesOfSeveralLanesCountOnce) {
  EXPECT_EQ(sectors(ranges(4, [](auto) { return 64; })), (Cost{1, 1}));
  EXPECT_EQ(sectors(ranges(16, [](auto lane) { return lane / 4 * 16; })), (Cost{4, 4}));
}

TEST(GlobalCost, LinesHoldFourSectors) {
  EXPECT_EQ(global_cost(ranges(4, [](auto lane) { return 4 * lane; })).lines, 1U);
  EXPECT_EQ(global_cost(ranges(4, [](auto lane) { return 32 * lane; })).lines, 8U);
}

std::function<void()> body;

std::vector<ProfileLine> lines_of(std::function<void()> kernel, int ctas = 1,
                                  std::vector<MemoryRange> memory = {}, std::uint64_t seed = 0) {
  body = std::move(kernel);
  Profile profile;
  const EmulatedLaunch launch = {"kernel",
                                 [](const void*) { body(); },
                                 [](EmulatorHost* host) { emulator = host; },
                                 ctas,
                                 /*threads=*/64,
                                 kSharedBytes};
  run_emulated(launch, nullptr, std::move(memory), {.seed = seed, .profile = &profile});
  return profile.lines();
}

SharedPtr at(int byte) { return dynamic_shared_memory() + byte; }

TEST(Profile, CountsTheInstructionsOfEachLine) {
  alignas(128) static const int from[64] = {};
  alignas(128) static int to[64];
  const auto kernel = [] {
    st_shared(at(4 * thread_index()), 1);
    if (lane_index() < 8) ld_shared<int>(at(4 * thread_index()));
    st_global(to + thread_index(), ld_global_nc(from + thread_index()));
  };
  const std::vector<ProfileLine> lines =
      lines_of(kernel, 3, {{"from", from, sizeof from, false}, {"to", to, sizeof to, true}});
  ASSERT_EQ(lines.size(), 4U);
  const auto expect = [&](std::size_t i, const char* instruction, int below, std::uint64_t lanes) {
    EXPECT_EQ(lines[i].kernel, "kernel");
    EXPECT_EQ(lines[i].instruction, instruction);
    EXPECT_EQ(lines[i].line, lines[0].line + below);
    EXPECT_EQ(lines[i].executions, 6U) << "two warps of three CTAs";
    EXPECT_EQ(lines[i].lanes, lanes);
    EXPECT_EQ(lines[i].bytes, 4 * lanes);
  };
  expect(0, "st.shared.b32", 0, 6 * 32);
  expect(1, "ld.shared.b32", 1, 6 * 8);
  expect(2, "ld.global.nc.b32", 2, 6 * 32);
  expect(3, "st.global.b32", 2, 6 * 32);
  EXPECT_EQ(lines[0].wavefronts, 6U);
  EXPECT_EQ(lines[0].sectors, 0U);
  EXPECT_EQ(lines[3].wavefronts, 0U);
  EXPECT_EQ(lines[3].sectors, 6U * 4);
  EXPECT_EQ(lines[3].cache_lines, 6U);
}

TEST(Profile, ExcessPassesAreConflicts) {
  const std::vector<ProfileLine> lines =
      lines_of([] { st_shared(at(128 * thread_index()), thread_index()); });
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].wavefronts, 2U * 32);
  EXPECT_EQ(lines[0].ideal_wavefronts, 2U);
  EXPECT_EQ(lines[0].excess(), 2U * 31);
}

void load_rows(int row_bytes, int swizzle) {
  for (int chunk = 0; chunk < 4; ++chunk) st_shared(at(64 * thread_index() + 16 * chunk), Chunk{});
  bar_sync();
  if (warp_index() > 0) return;
  uint32 r[4];
  ldmatrix_x4(r, at(row_bytes * lane_index() + 16 * (lane_index() % swizzle)));
}

ProfileLine ldmatrix_of(int row_bytes, int swizzle) {
  for (const ProfileLine& line : lines_of([&] { load_rows(row_bytes, swizzle); }))
    if (line.instruction == "ldmatrix.x4") return line;
  return {};
}

TEST(Profile, LdmatrixIsServedMatrixByMatrix) {
  const ProfileLine plain = ldmatrix_of(128, 1);
  EXPECT_EQ(plain.executions, 1U);
  EXPECT_EQ(plain.wavefronts, 32U) << "eight rows, all in the same banks, of four matrices";
  EXPECT_EQ(plain.ideal_wavefronts, 4U);
  EXPECT_EQ(ldmatrix_of(128, 8).wavefronts, 4U);
}

TEST(Profile, CpAsyncCountsInBothMemories) {
  alignas(128) static const int memory[256] = {};
  const auto kernel = [] {
    cp_async_cg_16<true>(at(128 * lane_index()), memory + 4 * lane_index(),
                         lane_index() < 16 ? 16 : 0);
    cp_async_commit_group();
  };
  const auto one_warp = [&] {
    if (warp_index() == 0) kernel();
  };
  const std::vector<ProfileLine> lines =
      lines_of(one_warp, 1, {{"memory", memory, sizeof memory, false}});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].instruction, "cp.async 16");
  EXPECT_EQ(lines[0].wavefronts, 32U);
  EXPECT_EQ(lines[0].ideal_wavefronts, 4U);
  EXPECT_EQ(lines[0].sectors, 8U) << "bytes that become zero are not read";
  EXPECT_EQ(lines[0].bytes, 32U * 16);
}

// The copy takes 256 bytes from the middle of a sector.
TEST(Profile, BulkCopyCountsInGlobalMemory) {
  alignas(128) static int memory[128];
  const auto kernel = [] {
    st_shared(at(16 * thread_index()), Chunk{});
    fence_proxy_async();
    bar_sync();
    if (thread_index() > 0) return;
    cp_async_bulk_global_shared(memory + 4, at(0), 256);
    cp_async_bulk_commit_group();
    cp_async_bulk_wait_group<0>();
  };
  const std::vector<ProfileLine> lines =
      lines_of(kernel, 1, {{"memory", memory, sizeof memory, true}});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].instruction, "cp.async.bulk");
  EXPECT_EQ(lines[1].executions, 1U);
  EXPECT_EQ(lines[1].wavefronts, 0U);
  EXPECT_EQ(lines[1].bytes, 256U);
  EXPECT_EQ(lines[1].sectors, 9U);
  EXPECT_EQ(lines[1].ideal_sectors, 8U);
  EXPECT_EQ(lines[1].cache_lines, 3U);
}

// An access of 32 bytes is two instructions, each of which accesses every second chunk.
TEST(Profile, WideAccessCountsAsSeveralInstructions) {
  alignas(128) static Words<8> memory[64];
  const std::vector<ProfileLine> lines = lines_of([] { st_global(memory + thread_index(), {}); }, 1,
                                                  {{"memory", memory, sizeof memory, true}});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].instruction, "st.global.b128");
  EXPECT_EQ(lines[0].executions, 4U);
  EXPECT_EQ(lines[0].sectors, 4U * 32);
  EXPECT_EQ(lines[0].ideal_sectors, 4U * 16);
}

// Lane l stores in all rounds from l on. Lanes in the same round execute together, whatever the
// order in which threads run.
TEST(Profile, LanesMeetAtCollectiveOperations) {
  const auto kernel = [] {
    for (int round = 0; round < 32; ++round) {
      if (round >= lane_index()) st_shared(at(4 * lane_index()), round);
      bar_warp_sync();
    }
  };
  for (const std::uint64_t seed : {1, 2}) {
    const std::vector<ProfileLine> lines = lines_of(kernel, 1, {}, seed);
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines[0].executions, 2U * 32);
    EXPECT_EQ(lines[0].lanes, 2U * 33 * 16);
    EXPECT_EQ(lines[0].excess(), 0U);
  }
}

TEST(ProfileTable, ShowsTheTextOfTemplates) {
  ProfileLine line = {.kernel = "lazyrope_attend_decode",
                      .file = "tile/shared_tile.cuh",
                      .line = 1,
                      .instruction = "ldmatrix.x4",
                      .executions = 10,
                      .wavefronts = 80,
                      .ideal_wavefronts = 40};
  while (line.line < 100 && source_text(line) != "#pragma once") ++line.line;
  ASSERT_EQ(source_text(line), "#pragma once");
  EXPECT_EQ(
      profile_table({line}),
      fmt::format("kernel                  line                     instruction  executions  "
                  "wavefronts/ideal  sectors/ideal  text\n"
                  "lazyrope_attend_decode  tile/shared_tile.cuh:{:02}  ldmatrix.x4          10  "
                  "           80/40                 #pragma once\n",
                  line.line));
  EXPECT_EQ(source_text({.kernel = "", .file = "nowhere.cuh", .line = 1, .instruction = ""}), "");
}

TEST(ProfileTable, IsSortedByTheGivenOrder) {
  const auto line = [](std::uint64_t executions, std::uint64_t wavefronts, std::uint64_t sectors) {
    return ProfileLine{.kernel = "",
                       .file = "",
                       .line = 0,
                       .instruction = "",
                       .executions = executions,
                       .wavefronts = wavefronts,
                       .sectors = sectors,
                       .ideal_sectors = sectors};
  };
  const std::vector<ProfileLine> lines = {line(1, 3, 0), line(2, 0, 1), line(3, 2, 2)};
  const auto order = [&](ProfileOrder by) {
    std::vector<std::uint64_t> result;
    for (const ProfileLine& each : ordered(lines, by)) result.push_back(each.executions);
    return result;
  };
  using Order = std::vector<std::uint64_t>;
  EXPECT_EQ(order(ProfileOrder::kExcess), (Order{1, 3, 2}));
  EXPECT_EQ(order(ProfileOrder::kExecutions), (Order{3, 2, 1}));
  EXPECT_EQ(order(ProfileOrder::kWavefronts), (Order{1, 3, 2}));
  EXPECT_EQ(order(ProfileOrder::kSectors), (Order{3, 2, 1}));
  EXPECT_EQ(order(ProfileOrder::kLocation), (Order{1, 2, 3}));
}

}  // namespace
}  // namespace lazyrope
