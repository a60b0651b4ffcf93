#include "tools/pack_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cache/signing_key.h"
#include "runtime/base/table.h"
#include "runtime/engine/tuning.h"

namespace lazyrope {
namespace {

struct Group {
  std::size_t kernels = 0;
  std::size_t records = 0;
  std::uint64_t bytes = 0;
};

bool is_record(const PackedEntry& entry) { return fact_text(entry.facts, "entry") == kTuningEntry; }

OrderedJson signer_json(const Pack& pack) {
  return pack.signer() ? OrderedJson(text_of(*pack.signer())) : OrderedJson(nullptr);
}

}  // namespace

std::string table_of(const std::vector<PackedEntry>& entries) {
  std::map<std::string, Group> groups;  // by arch
  for (const PackedEntry& entry : entries) {
    Group& group = groups[fact_text(entry.facts, "arch")];
    ++(is_record(entry) ? group.records : group.kernels);
    group.bytes += entry.bytes;
  }
  Table table({{"arch"},
               {"kernels", Align::kRight},
               {"tuning records", Align::kRight},
               {"size", Align::kRight}});
  for (const auto& [arch, group] : groups)
    table.add({arch, fmt::to_string(group.kernels), fmt::to_string(group.records),
               size_text(group.bytes)});
  return table.text();
}

std::string summary_of(const Pack& pack, const std::vector<PackedEntry>& entries) {
  const auto records = std::ranges::count_if(entries, is_record);
  return fmt::format("{}: {} kernels, {} tuning records, {}, {}", pack.path().string(),
                     std::ssize(entries) - records, records, size_text(pack.size_bytes()),
                     pack.signer() ? "signed by " + text_of(*pack.signer()) : "not signed");
}

OrderedJson json_of(const PackedEntry& entry) {
  return {{"key", entry.key},
          {"entry", fact_text(entry.facts, "entry")},
          {"arch", fact_text(entry.facts, "arch")},
          {"bytes", entry.bytes}};
}

OrderedJson json_of(const Pack& pack, const std::vector<PackedEntry>& entries,
                    const std::function<OrderedJson(const PackedEntry&)>& entry_json) {
  OrderedJson list = OrderedJson::array();
  for (const PackedEntry& entry : entries) list.push_back(entry_json(entry));
  return {{"file", pack.path().string()},
          {"bytes", pack.size_bytes()},
          {"signer", signer_json(pack)},
          {"entries", list}};
}

}  // namespace lazyrope
