#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/emulator/profile.h"

namespace lazyrope {

// The order of a profile's lines: the largest value first, or by location in the source.
enum class ProfileOrder { kExcess, kExecutions, kWavefronts, kSectors, kLocation };

std::string_view to_string(ProfileOrder order);  // "excess", ...
// Returns all orders.
std::vector<ProfileOrder> profile_orders();

// Returns the lines, sorted. Equal lines keep their order.
std::vector<ProfileLine> ordered(std::vector<ProfileLine> lines, ProfileOrder order);

// Returns a table with a heading and one row for each line.
std::string profile_table(const std::vector<ProfileLine>& lines);

// Returns the line of the kernel's source without its indentation, or "" if it is in no template.
std::string source_text(const ProfileLine& line);

}  // namespace lazyrope
