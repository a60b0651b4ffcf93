#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

// The file formats of the cache are made of these parts. All integers are little-endian.
namespace lazyrope {

using ByteSpan = std::span<const std::byte>;

// Copies `bytes` to the front of `room`, and shrinks `room` to the rest.
inline void put_bytes(std::span<std::byte>& room, ByteSpan bytes) {
  std::ranges::copy(bytes, room.begin());
  room = room.subspan(bytes.size());
}

template <class Unsigned>
void put_integer(std::span<std::byte>& room, Unsigned value) {
  std::array<std::byte, sizeof(value)> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(value >> 8 * i & 0xff);
  put_bytes(room, bytes);
}

template <class Unsigned>
Unsigned read_integer(ByteSpan in) {
  Unsigned value = 0;
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    value |= std::to_integer<Unsigned>(in[i]) << 8 * i;
  }
  return value;
}

inline ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

inline std::string_view text_of(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace lazyrope
