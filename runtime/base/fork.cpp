#include "runtime/base/fork.h"

namespace lazyrope {
namespace {

std::atomic<std::uint32_t> total_forks = 0;

[[maybe_unused]] const int kCounts = ::pthread_atfork(nullptr, nullptr, [] { ++total_forks; });

}  // namespace

std::uint32_t fork_count() noexcept { return total_forks.load(std::memory_order_relaxed); }

}  // namespace lazyrope
