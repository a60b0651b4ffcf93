#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace lazyrope {

// JSON whose objects keep the order in which their keys were added.
using OrderedJson = nlohmann::ordered_json;

// The number of characters of a key that tables show.
inline constexpr std::size_t kShownKey = 12;

// Returns indented JSON with a line end. Bytes that are not UTF-8, which file names may have, are
// replaced.
std::string json_text(const OrderedJson& json);

// Returns the text of this name among the facts of a cache entry, or "?".
std::string fact_text(std::string_view facts, const char* name);

// Writes to standard output. Throws std::runtime_error if that fails.
void print(std::string_view text);

// Writes the file. Throws a std::runtime_error that names it if that fails.
void write_file(const std::filesystem::path& path, std::string_view bytes);

// Makes the directory if there is none. Throws a std::runtime_error that names it unless files can
// be made in it. A command calls this before it compiles for minutes.
void prepare_output_directory(const std::filesystem::path& directory);

// Throws a std::runtime_error that names the file unless it can be written or made.
void check_output_file(const std::filesystem::path& file);

// Returns, for example, "512 B", "3.4 KiB" or "1.0 GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace lazyrope
