#include "runtime/base/fork.h"

namespace lazyrope {
namespace {

std::atomic<std::uint32_t> total_forks = 0;

[[gnu::constructor]] void count_forks() {
  ::pthread_atfork(nullptr, nullptr, [] { ++total_forks; });
}

}  // namespace

std::uint32_t fork_count() noexcept { return total_forks.load(std::memory_order_relaxed); }

}  // namespace lazyrope
