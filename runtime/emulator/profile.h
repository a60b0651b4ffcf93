#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/emulator/clocks.h"
#include "templates/abi/emulator.h"

namespace lazyrope {

// The instructions whose memory accesses a Profile counts.
enum class MemoryInstruction {
  kLdShared,
  kStShared,
  kLdmatrix,
  kLdGlobal,
  kLdGlobalNc,
  kLdAcquire,
  kStGlobal,
  kAtom,
  kCpAsync,
  kCpAsyncBulk,
  kCpAsyncBulkTensor,
};

// The bytes that a lane accesses. An empty range means no access.
struct LaneRange {
  std::uintptr_t address = 0;
  std::uint32_t bytes = 0;
};

// The access of one lane of an instruction.
struct LaneAccess {
  MemoryInstruction instruction;
  Site site;
  LaneRange shared = {};  // addresses in the CTA's shared memory
  LaneRange global = {};
};

inline constexpr std::size_t kWarpLanes = 32;
using WarpRanges = std::array<LaneRange, kWarpLanes>;  // by lane

// The cost of a warp's instruction in shared memory, which has 32 banks. Word w, of 4 bytes, is in
// bank w % 32. A pass ("wavefront") accesses one word of each bank, for any number of lanes (CUDA
// C++ Best Practices Guide, "Shared Memory and Memory Banks"). It moves 128 bytes, so wide accesses
// take several passes: 16 lanes of 8 bytes or 8 lanes of 16 bytes at a time. ldmatrix takes one
// pass per matrix, which has 8 rows of 16 bytes.
//
// A group of lanes takes as many passes as the largest number of distinct words that it accesses in
// one bank. One pass is ideal; the others are bank conflicts. (A GPU may serve groups together that
// access the same words.)
struct SharedCost {
  std::uint64_t wavefronts = 0;
  std::uint64_t ideal = 0;
};
SharedCost shared_cost(const WarpRanges& lanes);

// The cost of a warp's instruction in global memory, which is accessed in sectors of 32 bytes, four
// to a cache line (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"). In the
// ideal case the distinct bytes that the lanes access fill the sectors.
struct GlobalCost {
  std::uint64_t sectors = 0;
  std::uint64_t ideal = 0;
  std::uint64_t lines = 0;
};
GlobalCost global_cost(const WarpRanges& lanes);

// The cost of the memory instructions of one line of a kernel.
struct ProfileLine {
  std::string kernel;
  std::string file;  // path below templates/
  int line;
  std::string instruction;             // "ld.shared.b128", "ldmatrix.x4"
  std::uint64_t executions = 0;        // by warps
  std::uint64_t lanes = 0;             // active lanes, summed over the executions
  std::uint64_t wavefronts = 0;        // passes over shared memory
  std::uint64_t ideal_wavefronts = 0;  // without bank conflicts
  std::uint64_t sectors = 0;           // 32-byte sectors of global memory
  std::uint64_t ideal_sectors = 0;     // sectors that the same bytes would fill
  std::uint64_t cache_lines = 0;       // 128-byte lines of global memory
  // The bytes that lanes access. For cp.async they are the bytes written, for bulk copies those of
  // global memory.
  std::uint64_t bytes = 0;

  // Returns the passes and sectors that bank conflicts and scattered addresses add.
  std::uint64_t excess() const { return wavefronts - ideal_wavefronts + sectors - ideal_sectors; }
};

// Counts what the memory accesses of launches would cost on a GPU. It counts the accesses of
// instructions that take an address from each lane, and the global memory of bulk copies. It does
// not count what bulk copies and wgmma access in shared memory. Not thread-safe.
//
// The emulator runs the lanes of a warp one by one. The profile takes the n-th execution of an
// instruction by each lane, since the warp last met, to be one execution by the warp.
class Profile {
 public:
  // Begins a launch of this kernel.
  void begin(std::string_view kernel);
  void access(ThreadId by, const LaneAccess& access);
  // Counts a bulk copy, which one lane issues, with its ranges of global memory.
  void copy(MemoryInstruction instruction, const Site& site, std::vector<LaneRange> global);
  // Counts the executions of this thread's warp, whose lanes have all reached an operation that
  // they execute together.
  void meet(ThreadId any) { count(warp_of(any)); }
  // Counts the executions of a CTA whose threads have all ended.
  void end(int cta);

  // Returns the counts, ordered by kernel, file, line and instruction.
  std::vector<ProfileLine> lines() const;

 private:
  using Warp = std::pair<int, int>;  // CTA, and warp in it
  // An instruction in the source: kind, bytes of a lane, file and line.
  using Instruction = std::tuple<MemoryInstruction, std::uint32_t, const char*, int>;
  using Row = std::tuple<std::string, std::string, int, std::string>;

  // The executions of an instruction since the lanes last met.
  struct Executions {
    struct Once {
      WarpRanges shared = {};
      WarpRanges global = {};
    };
    std::array<std::size_t, kWarpLanes> times = {};  // by lane
    std::vector<Once> each;
  };
  using Open = std::map<Instruction, Executions>;

  static Warp warp_of(ThreadId id) { return {id.cta, id.thread / static_cast<int>(kWarpLanes)}; }
  void note(ThreadId by, const LaneAccess& piece);
  void count(Warp warp);
  void count(const Instruction& instruction, const Executions& executions);
  ProfileLine& row_of(const std::string& instruction, const char* file, int line);

  std::string kernel_;
  std::map<Warp, Open> open_;
  std::map<Row, ProfileLine> rows_;
};

}  // namespace lazyrope
