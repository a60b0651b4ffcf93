#pragma once

#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"
#include "templates/abi/emulator.h"

namespace lazyrope {

// The rules that a kernel can break. The text of a KernelFault begins with its rule.
namespace rule {
inline constexpr std::string_view kSharedBounds = "shared access out of bounds";
inline constexpr std::string_view kGlobalBounds = "global access out of bounds";
inline constexpr std::string_view kAlignment = "misaligned address";
inline constexpr std::string_view kUninitialized = "uninitialized shared memory read";
inline constexpr std::string_view kInFlight = "access to the destination of a copy in flight";
inline constexpr std::string_view kUncommitted = "asynchronous copy left uncommitted";
inline constexpr std::string_view kReadOnly = "write to read-only memory";
inline constexpr std::string_view kNonCoherent =
    "non-coherent load of memory that the kernel writes";
inline constexpr std::string_view kDivergence = "lanes disagree on a collective";
inline constexpr std::string_view kOperand = "operand out of range";
inline constexpr std::string_view kSourceInUse =
    "write to the source of a copy or product in flight";
inline constexpr std::string_view kProxyFence = "missing proxy fence";
inline constexpr std::string_view kUnwaited = "asynchronous copy or product left unwaited";
inline constexpr std::string_view kMbarrierObject = "misuse of an mbarrier object";
inline constexpr std::string_view kMbarrierCount = "mbarrier arrivals out of range";
inline constexpr std::string_view kMbarrierBytes = "mbarrier bytes out of range";
// A phase completed before a waiting thread saw the previous one complete.
inline constexpr std::string_view kMbarrierOvertaken = "mbarrier wait overtaken";
inline constexpr std::string_view kTensorMap = "tensor map";
inline constexpr std::string_view kDescriptor = "matrix descriptor";
inline constexpr std::string_view kWgmmaRegisters = "access to registers of a product in flight";
inline constexpr std::string_view kWgmmaFence = "missing wgmma.fence";
inline constexpr std::string_view kDeadlock = "deadlock";
inline constexpr std::string_view kLivelock = "livelock";
inline constexpr std::string_view kRace = "race";
}  // namespace rule

inline bool operator==(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// Returns a source location as "ops/combine.cuh:41".
std::string describe(const Site& site);

// The exception of an instruction that breaks a rule. The scheduler rethrows it as a KernelFault,
// which also names the kernel and the thread.
struct Violation : std::exception {
  Violation(std::string_view broken, const Site& at, std::string sentence)
      : rule(broken), site(at), text(std::move(sentence)) {}
  const char* what() const noexcept override { return text.c_str(); }

  std::string_view rule;
  Site site;
  std::string text;
};

// The exception of a launch whose kernel broke a rule. what() names the rule, the kernel, the
// line, the CTA ("block"), the warp and the lane. For a deadlock it names the rule, the kernel and
// the waiting threads of each CTA.
class KernelFault : public DriverError {
 public:
  KernelFault(std::string_view rule, std::string text)
      : DriverError({.call = std::string(rule), .text = std::move(text)}) {}
  const std::string& rule() const noexcept { return failure().call; }
};

}  // namespace lazyrope
