#include "runtime/base/interruption.h"

#include <utility>

namespace lazyrope {
namespace {

std::function<void()>& the_check = *new std::function<void()>([] {});

}  // namespace

void set_interruption_check(std::function<void()> check) { the_check = std::move(check); }

void check_interruption() { the_check(); }

void throw_if_stopped(const std::stop_token& stop) {
  if (stop.stop_requested()) throw Stopped();
}

}  // namespace lazyrope
