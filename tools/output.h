#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lazyrope {

using Json = nlohmann::ordered_json;

// Indented, with a line end. Bytes that are not UTF-8, as file names may have, are replaced.
std::string json_text(const Json& json);

// Writes to standard output. std::runtime_error when it takes no more.
void print(std::string_view text);

// std::runtime_error that names the file.
void write_file(const std::filesystem::path& path, std::string_view bytes);

// "512 B", "3.4 KiB", "1.0 GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace lazyrope
