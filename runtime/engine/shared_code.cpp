#include "runtime/engine/shared_code.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace lazyrope {
namespace {

static_assert(std::endian::native == std::endian::little, "cubins are little-endian");

// Returns the words of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
// generators", 2014): code has hardly any by chance.
RopeTable placeholder(std::size_t words) {
  constexpr std::uint64_t kSeed = 0x6c617a79726f7065;  // "lazyrope"
  std::uint64_t state = kSeed;
  RopeTable table(words);
  for (std::uint64_t& word : table) {
    state += 0x9e3779b97f4a7c15;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    word = z ^ (z >> 31);
  }
  return table;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Returns where the code has the table, if it has it exactly once.
std::optional<std::size_t> only_place_of(const RopeTable& table, std::span<const std::byte> code) {
  const std::string_view words = text_of(std::as_bytes(std::span(table)));
  const std::size_t at = text_of(code).find(words);
  if (at == std::string_view::npos || text_of(code).find(words, at + 1) != std::string_view::npos)
    return std::nullopt;
  return at;
}

// Machine code has immediate operands of 32 bits, at multiples of four bytes.
bool has_half_of(const RopeTable& table, std::span<const std::byte> code) {
  std::set<std::uint32_t> halves;
  for (const std::uint64_t word : table)
    halves.insert({static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)});
  for (; code.size() >= sizeof(std::uint32_t); code = code.subspan(sizeof(std::uint32_t))) {
    std::uint32_t value = 0;
    std::memcpy(&value, code.data(), sizeof(value));
    if (halves.contains(value)) return true;
  }
  return false;
}

}  // namespace

RenderedKernel shared_form(RenderedKernel rendered) {
  if (rendered.rope_table.empty()) return rendered;
  RopeTable table = placeholder(rendered.rope_table.size());
  return with_rope_table(std::move(rendered), std::move(table));
}

bool serves_all_tables(const RenderedKernel& shared, const std::vector<std::byte>& code) {
  const RopeTable& table = shared.rope_table;
  if (table.empty()) return true;
  const std::optional<std::size_t> at = only_place_of(table, code);
  if (!at) return false;
  const std::span<const std::byte> all = code;
  return !has_half_of(table, all.first(*at)) &&
         !has_half_of(table, all.subspan(*at + std::as_bytes(std::span(table)).size()));
}

bool has_placeholder(const RenderedKernel& rendered, const std::vector<std::byte>& code) {
  const std::size_t words = rendered.rope_table.size();
  return words == 0 || only_place_of(placeholder(words), code);
}

void write_table(const RenderedKernel& rendered, std::vector<std::byte>& code) {
  const RopeTable& table = rendered.rope_table;
  if (table.empty()) return;
  const std::size_t at = only_place_of(placeholder(table.size()), code).value();
  std::ranges::copy(std::as_bytes(std::span(table)),
                    code.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace lazyrope
