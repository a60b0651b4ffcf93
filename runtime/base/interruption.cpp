#include "runtime/base/interruption.h"

#include <utility>

namespace lazyrope {
namespace {

std::function<void()>& the_check() {
  static std::function<void()> check = [] {};
  return check;
}

}  // namespace

void set_interruption_check(std::function<void()> check) { the_check() = std::move(check); }

void check_interruption() { the_check()(); }

}  // namespace lazyrope
