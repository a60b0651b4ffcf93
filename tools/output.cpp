#include "tools/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

namespace lazyrope {
namespace {

[[noreturn]] void cannot_write(const std::string& what) {
  throw std::runtime_error(
      fmt::format("cannot write {}: {}", what, std::generic_category().message(errno)));
}

std::filesystem::path parent_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : ".";
}

}  // namespace

std::string json_text(const OrderedJson& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string fact_text(std::string_view facts, const char* name) {
  const OrderedJson json =
      OrderedJson::parse(facts, /*callback=*/nullptr, /*allow_exceptions=*/false);
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "?";
}

void print(std::string_view text) {
  const std::size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written != text.size() || std::fflush(stdout) != 0) cannot_write("to standard output");
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) cannot_write(path.string());
}

void prepare_output_directory(const std::filesystem::path& directory) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed)
    throw std::runtime_error(
        fmt::format("cannot make the directory {}: {}", directory.string(), failed.message()));
  if (::access(directory.c_str(), W_OK | X_OK) != 0) cannot_write("into " + directory.string());
}

void check_output_file(const std::filesystem::path& file) {
  std::error_code absent;
  const std::filesystem::file_status status = std::filesystem::status(file, absent);
  if (std::filesystem::is_directory(status)) {
    errno = EISDIR;
    cannot_write(file.string());
  }
  const bool can_write = std::filesystem::exists(status)
                             ? ::access(file.c_str(), W_OK) == 0
                             : ::access(parent_of(file).c_str(), W_OK | X_OK) == 0;
  if (!can_write) cannot_write(file.string());
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return fmt::format("{:.1f} {}", size, kUnits.at(unit));
}

}  // namespace lazyrope
