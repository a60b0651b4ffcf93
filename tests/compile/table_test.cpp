// The tables that `make compile-all` wrote are complete: a new row, arch or head_dim must have been
// compiled before it is committed.
#include "tests/compile/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/compile/kernel_report.h"

namespace lazyrope {
namespace {

constexpr const char* kAdvice = "run `make compile-all` and commit what it writes";

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

// Returns the key of a kernel in the table.
std::string cell(std::string_view row, std::string_view head_dim, std::string_view dtype,
                 std::string_view kernel) {
  return fmt::format("{}, head_dim {}, {}, {}", row, head_dim, dtype, kernel);
}

// Returns the keys that the table must have: the attend kernels of every setting. Settings may
// share the source of another kernel, which the table then lists only for the first of them.
std::set<std::string> required_cells(const Arch& arch) {
  std::set<std::string> cells;
  const std::vector<TableRow> rows = table_rows();
  for (const TableSetting& setting : table_settings(arch))
    for (const KernelKind kind : kernel_kinds(setting.spec, arch))
      if (is_attend(kind))
        cells.insert(cell(rows[setting.row].name, fmt::to_string(setting.spec.head_dim),
                          to_string(setting.spec.dtype), to_string(kind)));
  return cells;
}

struct Table {
  std::set<std::string> cells;
  std::set<std::string> complaints;
};

bool is_number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

// Returns true if `text` has one digest of 16 hex digits for each of the line's dtypes.
bool are_digests(const std::string& text, const std::string& dtypes) {
  const std::vector<std::string> digests = split(text, ' ');
  return digests.size() == split(dtypes, ' ').size() &&
         std::ranges::all_of(digests, [](const std::string& digest) {
           return digest.size() == 16 &&
                  digest.find_first_not_of("0123456789abcdef") == std::string::npos;
         });
}

void read_line(const std::string& line, Table& table) {
  const std::vector<std::string> fields = split(line, ',');
  const std::size_t columns = split(kTableHead, ',').size();
  if (fields.size() != columns || !std::all_of(fields.begin() + 4, fields.end() - 1, is_number) ||
      !are_digests(fields.back(), fields[2])) {
    table.complaints.insert("cannot be read: " + line);
    return;
  }
  if (fields[5] == "0") table.complaints.insert("it did not compile: " + line);
  if (fields[6] != "0") table.complaints.insert("it spills: " + line);
  for (const std::string& dtype : split(fields[2], ' '))
    table.cells.insert(cell(fields[0], fields[1], dtype, fields[3]));
}

Table read_table(std::istream& in) {
  Table table;
  std::string line;
  if (!std::getline(in, line) || !line.starts_with("# ") || !std::getline(in, line) ||
      line != kTableHead)
    table.complaints.insert(fmt::format("it must begin with # and {}", kTableHead));
  while (std::getline(in, line)) read_line(line, table);
  return table;
}

// Returns the first missing kernel of each row that lacks any.
std::vector<std::string> missing(const Table& table, const Arch& arch) {
  std::vector<std::string> result;
  std::set<std::string> rows;
  for (const std::string& wanted : required_cells(arch))
    if (!table.cells.contains(wanted) && rows.insert(split(wanted, ',').front()).second)
      result.push_back(wanted);
  return result;
}

std::vector<std::string> rows_that_no_longer_exist(const Table& table) {
  std::set<std::string> names;
  for (const std::string& listed : table.cells) names.insert(split(listed, ',').front());
  for (const TableRow& row : table_rows()) names.erase(row.name);
  return {names.begin(), names.end()};
}

class CompileTable : public testing::TestWithParam<std::size_t> {};

TEST_P(CompileTable, HasEveryRowWithoutSpills) {
  const Arch& arch = gpu_archs().at(GetParam());
  const std::string path = table_path(arch);
  std::ifstream file(path);
  ASSERT_TRUE(file.is_open()) << path << " is not there: " << kAdvice;
  const Table table = read_table(file);
  EXPECT_TRUE(table.complaints.empty())
      << path << ": " << fmt::format("{}", fmt::join(table.complaints, "\n"));
  EXPECT_TRUE(missing(table, arch).empty())
      << path << " lacks:\n"
      << fmt::format("{}", fmt::join(missing(table, arch), "\n")) << "\n"
      << kAdvice;
  EXPECT_EQ(rows_that_no_longer_exist(table), std::vector<std::string>{})
      << path << ": " << kAdvice;
}

INSTANTIATE_TEST_SUITE_P(Archs, CompileTable, testing::Range(std::size_t{0}, gpu_archs().size()),
                         [](const auto& row) { return gpu_archs().at(row.param).name; });

Table read_text(const std::string& lines) {
  std::istringstream in(fmt::format("# a table\n{}\n{}", kTableHead, lines));
  return read_table(in);
}

TEST(CompileTableCheck, MissingKernelsAreNamed) {
  const Table table =
      read_text("softcap,64,bfloat16,attend_decode,0,103,0,65744,41304,0123456789abcdef\n");
  EXPECT_TRUE(table.complaints.empty());
  const std::vector<std::string> lacks = missing(table, find_arch("sm_90a"));
  EXPECT_EQ(lacks.size(), table_rows().size());
  EXPECT_NE(std::find(lacks.begin(), lacks.end(), "softcap, head_dim 112, bfloat16, attend_decode"),
            lacks.end());
}

TEST(CompileTableCheck, SpillsAndMalformedLinesAreReported) {
  EXPECT_EQ(read_text("sinks,64,float16,attend_decode,0,255,8,65744,41304,0123456789abcdef\n")
                .complaints.size(),
            1);
  EXPECT_EQ(read_text("sinks,64,float16,attend_decode,0,0,0,65744,0,0123456789abcdef\n")
                .complaints.size(),
            1);
  EXPECT_EQ(read_text("sinks,64,float16,attend_decode,0,255\n").complaints.size(), 1);
  EXPECT_EQ(read_text("sinks,64,float16,attend_decode,0,many,0,65744,41304,0123456789abcdef\n")
                .complaints.size(),
            1);
  const char* two_dtypes_one_digest =
      "sinks,64,bfloat16 float16,attend_decode,0,255,0,65744,41304,0123456789abcdef\n";
  EXPECT_EQ(read_text(two_dtypes_one_digest).complaints.size(), 1);
  std::istringstream headless(
      "sinks,64,float16,attend_decode,0,255,0,65744,41304,0123456789abcdef\n");
  EXPECT_EQ(read_table(headless).complaints.size(), 1);
}

TEST(CompileTableCheck, RowsThatNoLongerExistAreNamed) {
  const Table table =
      read_text("rope=alibi,64,float16,attend_decode,0,103,0,65744,41304,0123456789abcdef\n");
  EXPECT_EQ(rows_that_no_longer_exist(table), std::vector<std::string>{"rope=alibi"});
}

}  // namespace
}  // namespace lazyrope
