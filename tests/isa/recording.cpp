#include "tests/isa/recording.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <utility>

#include "cache/sha256.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTitle = "lazyrope recording 1";

// The lines after the title, in their order.
constexpr std::array<std::pair<const char*, std::string Recording::*>, 8> kLines = {{
    {"case", &Recording::name},
    {"gpu", &Recording::gpu},
    {"driver", &Recording::driver},
    {"compiler", &Recording::compiler},
    {"arch", &Recording::arch},
    {"date", &Recording::date},
    {"seed", &Recording::seed},
    {"input sha256", &Recording::input_sha256},
}};

std::string next_line(std::istream& in) {
  std::string line;
  std::getline(in, line);
  return line;
}

std::string value_of(const std::string& line, const std::string& name, const std::string& path) {
  const std::string begin = name + ": ";
  if (!line.starts_with(begin))
    throw std::runtime_error(
        fmt::format(R"({}: "{}" is where "{}" should be; record it again)", path, line, begin));
  return line.substr(begin.size());
}

}  // namespace

std::string recording_path(const ConformanceCase& test_case) {
  return fmt::format("{}/isa/recordings/{}.rec", LAZYROPE_TEST_SOURCE_DIR, test_case.name);
}

std::string sha256_of(const Words& words) {
  return to_hex(sha256(std::as_bytes(std::span(words))));
}

void write_recording(const ConformanceCase& test_case, const Recording& recording) {
  const std::string path = recording_path(test_case);
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream out(path, std::ios::binary);
  out << kTitle << '\n';
  for (const auto& [name, value] : kLines) out << name << ": " << recording.*value << '\n';
  out << "words: " << recording.output.size() << '\n';
  const auto bytes = std::as_bytes(std::span(recording.output));
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

std::optional<Recording> read_recording(const ConformanceCase& test_case) {
  const std::string path = recording_path(test_case);
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  if (const std::string title = next_line(in); title != kTitle)
    throw std::runtime_error(
        fmt::format(R"({} begins with "{}", not "{}"; record it again)", path, title, kTitle));
  Recording recording;
  for (const auto& [name, value] : kLines) recording.*value = value_of(next_line(in), name, path);
  recording.output.resize(std::stoul(value_of(next_line(in), "words", path)));
  const auto bytes = static_cast<std::streamsize>(recording.output.size() * sizeof(std::uint32_t));
  in.read(reinterpret_cast<char*>(recording.output.data()), bytes);
  if (in.gcount() != bytes || in.peek() != std::ifstream::traits_type::eof())
    throw std::runtime_error(path + " has not as many words as it says; record it again");
  return recording;
}

}  // namespace lazyrope
