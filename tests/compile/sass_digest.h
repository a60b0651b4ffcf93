#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/sha256.h"

namespace lazyrope {

// Reads a little-endian integer at a byte offset; 0 beyond the end.
template <class Integer>
Integer read_integer(std::string_view bytes, std::uint64_t at) {
  Integer value = 0;
  if (at <= bytes.size() && bytes.size() - at >= sizeof(value))
    std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// Returns the machine code of a cubin, a 64-bit ELF file: the contents of its .text sections. They
// are sorted, so that neither symbol names nor the order of symbols matter.
inline std::vector<std::string_view> text_sections(std::string_view cubin) {
  constexpr std::uint64_t kNameAt = 0, kOffsetAt = 24, kSizeAt = 32;
  const auto headers = read_integer<std::uint64_t>(cubin, 0x28);
  const auto header_bytes = read_integer<std::uint16_t>(cubin, 0x3A);
  const auto num_headers = read_integer<std::uint16_t>(cubin, 0x3C);
  const auto field = [&](std::uint64_t section, std::uint64_t at) {
    return read_integer<std::uint64_t>(cubin, headers + section * header_bytes + at);
  };
  const auto contents = [&](std::uint64_t section) {
    const std::uint64_t begin = std::min<std::uint64_t>(field(section, kOffsetAt), cubin.size());
    return cubin.substr(begin, field(section, kSizeAt));
  };
  const std::string_view names = contents(read_integer<std::uint16_t>(cubin, 0x3E));
  std::vector<std::string_view> sections;
  for (std::uint64_t i = 0; i < num_headers; ++i) {
    const auto name_at = static_cast<std::uint32_t>(field(i, kNameAt));
    if (name_at < names.size() && names.substr(name_at).starts_with(".text"))
      sections.push_back(contents(i));
  }
  std::ranges::sort(sections);
  return sections;
}

// Returns the first 16 hex digits of the SHA-256 of a cubin's .text sections, which identify its
// machine code. Empty if there are no such sections.
inline std::string sass_digest(std::span<const std::byte> cubin) {
  const std::string_view bytes(reinterpret_cast<const char*>(cubin.data()), cubin.size());
  std::string text;
  for (const std::string_view section : text_sections(bytes)) text += section;
  if (text.empty()) return "";
  return to_hex(sha256(std::as_bytes(std::span(text)))).substr(0, 16);
}

}  // namespace lazyrope
