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

// Bytes that a lane accesses; of no bytes: none.
struct LaneRange {
  std::uintptr_t address = 0;
  std::uint32_t bytes = 0;
};

// One lane's part in an instruction.
struct LaneAccess {
  MemoryInstruction instruction;
  Site site;
  LaneRange shared = {};  // by addresses of the CTA's shared memory
  LaneRange global = {};
};

inline constexpr std::size_t kWarpLanes = 32;
using WarpRanges = std::array<LaneRange, kWarpLanes>;  // by lane

// What an instruction of a warp costs in shared memory, which has 32 banks: word w, of 4 bytes,
// lies in bank w % 32. A pass ("wavefront") reads or writes one word of each bank, for any number
// of lanes (CUDA C++ Best Practices Guide, "Shared Memory and Memory Banks"). It moves 128 bytes,
// so wide accesses are served in groups of 16 lanes of 8 bytes or 8 lanes of 16 bytes, and ldmatrix
// matrix by matrix, of 8 rows of 16 bytes. A group takes as many passes as the most words that it
// wants of one bank; ideally one, so what is beyond that is bank conflicts. (A GPU may serve groups
// together that want the same words.)
struct SharedCost {
  std::uint64_t wavefronts = 0;
  std::uint64_t ideal = 0;
};
SharedCost shared_cost(const WarpRanges& lanes);

// What an instruction of a warp costs in global memory, which is read and written in sectors of 32
// bytes, four to a cache line (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory").
// Ideally the bytes that lanes want, each counted once, fill the sectors.
struct GlobalCost {
  std::uint64_t sectors = 0;
  std::uint64_t ideal = 0;
  std::uint64_t lines = 0;
};
GlobalCost global_cost(const WarpRanges& lanes);

// What the memory instructions of one line of a kernel came to.
struct ProfileLine {
  std::string kernel;
  std::string file;  // below templates/
  int line;
  std::string instruction;             // "ld.shared.b128", "ldmatrix.x4"
  std::uint64_t executions = 0;        // by warps
  std::uint64_t lanes = 0;             // active ones, in all of them
  std::uint64_t wavefronts = 0;        // passes over shared memory
  std::uint64_t ideal_wavefronts = 0;  // without bank conflicts
  std::uint64_t sectors = 0;           // of 32 bytes of global memory
  std::uint64_t ideal_sectors = 0;     // that the same bytes would fill
  std::uint64_t cache_lines = 0;       // of 128 bytes of global memory
  std::uint64_t bytes = 0;             // that lanes accessed; of a copy, those that it wrote, and
                                       // of a bulk copy, those of global memory

  // What bank conflicts and scattered addresses cost.
  std::uint64_t excess() const { return wavefronts - ideal_wavefronts + sectors - ideal_sectors; }
};

// Counts what the memory accesses of launches would cost a GPU: those that lanes give addresses
// for, and what bulk copies read and write of global memory; not what these and wgmma do in shared
// memory. The emulator runs the lanes of a warp one by one: those that come to an instruction
// equally often since the last operation that all lanes made together have executed it together.
class Profile {
 public:
  void begin(std::string_view kernel);  // a launch
  void access(ThreadId by, const LaneAccess& access);
  // A bulk copy, which one lane asks for: its ranges of global memory.
  void copy(MemoryInstruction instruction, const Site& site, std::vector<LaneRange> global);
  // The lanes of the thread's warp have all come to one operation.
  void meet(ThreadId any) { count(warp_of(any)); }
  void end(int cta);  // all its threads have ended

  // By kernel, file, line and instruction.
  std::vector<ProfileLine> lines() const;

 private:
  using Warp = std::pair<int, int>;  // of which CTA, which
  // An instruction of the text: kind, bytes a lane, place.
  using Instruction = std::tuple<MemoryInstruction, std::uint32_t, const char*, int>;
  using Row = std::tuple<std::string, std::string, int, std::string>;

  // Executions of an instruction since the lanes last met.
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
