#include "runtime/base/interruption.h"

#include <utility>

namespace lazyrope {
namespace {

std::function<void()>& the_check() {
  static auto& check = *new std::function<void()>([] {});
  return check;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_the_check() { (void)the_check(); }

}  // namespace

void set_interruption_check(std::function<void()> check) { the_check() = std::move(check); }

void check_interruption() { the_check()(); }

void throw_if_stopped(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Stopped();
}

}  // namespace lazyrope
