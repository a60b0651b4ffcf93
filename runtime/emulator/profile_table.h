#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/emulator/profile.h"

namespace lazyrope {

// By which the lines of a profile are ordered: the greatest first, or as they stand in the text.
enum class ProfileOrder { kExcess, kExecutions, kWavefronts, kSectors, kLocation };

std::string_view to_string(ProfileOrder order);  // "excess", ...
std::vector<ProfileOrder> profile_orders();      // all

std::vector<ProfileLine> ordered(std::vector<ProfileLine> lines, ProfileOrder order);

// A line of text for each, below a heading.
std::string profile_table(const std::vector<ProfileLine>& lines);

// The line of the kernel's text, without what it is indented by; empty where it is no template's.
std::string source_text(const ProfileLine& line);

}  // namespace lazyrope
