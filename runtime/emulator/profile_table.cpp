#include "runtime/emulator/profile_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "codegen/template_text.h"
#include "runtime/base/table.h"

namespace lazyrope {
namespace {

std::uint64_t rank(const ProfileLine& line, ProfileOrder order) {
  switch (order) {
    case ProfileOrder::kExcess:
      return line.excess();
    case ProfileOrder::kExecutions:
      return line.executions;
    case ProfileOrder::kWavefronts:
      return line.wavefronts;
    case ProfileOrder::kSectors:
      return line.sectors;
    case ProfileOrder::kLocation:
      return 0;  // the lines are in that order already
  }
  return 0;
}

// Returns "taken/ideal", or nothing for a memory that the instruction does not access.
std::string share(std::uint64_t taken, std::uint64_t ideal) {
  return taken == 0 ? "" : fmt::format("{}/{}", taken, ideal);
}

}  // namespace

std::string_view to_string(ProfileOrder order) {
  switch (order) {
    case ProfileOrder::kExcess:
      return "excess";
    case ProfileOrder::kExecutions:
      return "executions";
    case ProfileOrder::kWavefronts:
      return "wavefronts";
    case ProfileOrder::kSectors:
      return "sectors";
    case ProfileOrder::kLocation:
      return "location";
  }
  return "";
}

std::vector<ProfileOrder> profile_orders() {
  return {ProfileOrder::kExcess, ProfileOrder::kExecutions, ProfileOrder::kWavefronts,
          ProfileOrder::kSectors, ProfileOrder::kLocation};
}

std::vector<ProfileLine> ordered(std::vector<ProfileLine> lines, ProfileOrder order) {
  std::ranges::stable_sort(lines, std::greater{},
                           [&](const ProfileLine& line) { return rank(line, order); });
  return lines;
}

std::string source_text(const ProfileLine& line) {
  const std::string text = template_line(line.file, line.line);
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

std::string profile_table(const std::vector<ProfileLine>& lines) {
  Table table({{"kernel"},
               {"line"},
               {"instruction"},
               {"executions", Align::kRight},
               {"wavefronts/ideal", Align::kRight},
               {"sectors/ideal", Align::kRight},
               {"text"}});
  for (const ProfileLine& line : lines)
    table.add({line.kernel, fmt::format("{}:{}", line.file, line.line), line.instruction,
               fmt::to_string(line.executions), share(line.wavefronts, line.ideal_wavefronts),
               share(line.sectors, line.ideal_sectors), source_text(line)});
  return table.text();
}

}  // namespace lazyrope
