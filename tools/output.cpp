#include "tools/output.h"

#include <fmt/format.h>

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

std::string size_text(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return fmt::format("{:.1f} {}", size, kUnits.at(unit));
}

}  // namespace lazyrope
