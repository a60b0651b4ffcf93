#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/error.h"
#include "codegen/template_text.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

TEST(Substitute, ReplacesNamesByTheirValues) {
  EXPECT_EQ(substitute("${a}${b}, $ {a} ${a}!", {{"a", "1"}, {"b", "${c}"}}), "1${c}, $ {a} 1!");
  EXPECT_EQ(substitute("", {}), "");
}

TEST(Substitute, ANameWithoutAValueIsAnError) {
  EXPECT_TRUE(throws<SpecError>([] { substitute("int x = ${width};", {}); },
                                {"asks for ${width}, which has no value"}));
}

TEST(Substitute, AValueWithoutANameIsAnError) {
  EXPECT_TRUE(throws<SpecError>([] { substitute("${a}", {{"a", "1"}, {"b", "2"}}); },
                                {"does not use the value b"}));
}

TEST(Substitute, ANameThatDoesNotEndIsAnError) {
  EXPECT_TRUE(
      throws<SpecError>([] { substitute("${a} ${b", {{"a", "1"}}); }, {"\"${\" without \"}\""}));
}

TEST(TemplateLine, IsTheUnexpandedLineOfTheFile) {
  register_template({"test/line.in", "first\n  ${second}"});
  EXPECT_EQ(template_line("test/line.in", 1), "first");
  EXPECT_EQ(template_line("test/line.in", 2), "  ${second}");
  for (const int line : {0, 3}) EXPECT_EQ(template_line("test/line.in", line), "") << line;
  EXPECT_EQ(template_line("test/nowhere.in", 1), "");
}

// Registers a template file, and returns its path.
std::string add(const std::string& path, const std::string& text) {
  register_template({path, text});
  return path;
}

TEST(ExpandTemplate, IncludesEveryFileOnceAtItsFirstInclude) {
  add("test/once/leaf.cuh", "#pragma once\nleaf\n");
  add("test/once/left.cuh", "#include \"test/once/leaf.cuh\"\nleft\n");
  add("test/once/right.cuh", "#include \"test/once/leaf.cuh\"\nright");
  const std::string root = add("test/once/root.in",
                               "// top\n#include \"test/once/left.cuh\"\n"
                               "#include \"test/once/right.cuh\"\n${what}\n");
  EXPECT_EQ(expand_template(root, {{"what", "root"}}, "ptx"),
            "#line 1 \"test/once/root.in\"\n// top\n"
            "#line 1 \"test/once/left.cuh\"\n"
            "#line 1 \"test/once/leaf.cuh\"\n\nleaf\n"
            "#line 2 \"test/once/left.cuh\"\nleft\n"
            "#line 3 \"test/once/root.in\"\n"
            "#line 1 \"test/once/right.cuh\"\n\nright\n"
            "#line 4 \"test/once/root.in\"\nroot\n");
}

TEST(ExpandTemplate, AValueMayNameAnInclude) {
  add("test/value/chosen.cuh", "chosen\n");
  const std::string root = add("test/value/root.in", "#include \"${file}\"\n");
  EXPECT_EQ(expand_template(root, {{"file", "test/value/chosen.cuh"}}, "ptx"),
            "#line 1 \"test/value/root.in\"\n#line 1 \"test/value/chosen.cuh\"\nchosen\n"
            "#line 2 \"test/value/root.in\"\n");
}

TEST(ExpandTemplate, IsaFilesComeFromTheFolderOfTheIsa) {
  add("isa/test_a/where.cuh", "in a\n");
  add("isa/test_b/where.cuh", "in b\n");
  const std::string root = add("test/isa/root.in", "#include \"isa/where.cuh\"\n");
  EXPECT_NE(expand_template(root, {}, "test_a").find("\nin a\n"), std::string::npos);
  EXPECT_NE(expand_template(root, {}, "test_b").find("\nin b\n"), std::string::npos);
  EXPECT_TRUE(throws<SpecError>([&] { expand_template(root, {}, "test_c"); },
                                {"\"isa/where.cuh\" does not exist"}));
}

TEST(ExpandTemplate, MissingFilesAreNamed) {
  const std::string root = add("test/missing/root.in", "#include \"test/missing/none.cuh\"\n");
  EXPECT_TRUE(throws<SpecError>([&] { expand_template(root, {}, "ptx"); },
                                {"\"test/missing/none.cuh\" does not exist"}));
  EXPECT_TRUE(throws<SpecError>([] { expand_template("test/none.in", {}, "ptx"); },
                                {"\"test/none.in\" does not exist"}));
}

TEST(RegisterTemplate, APathIsTakenOnce) {
  EXPECT_TRUE(throws<SpecError>([] { register_template({"ops/rope/half.cuh", ""}); },
                                {"\"ops/rope/half.cuh\" exists already", "another path"}));
}

TEST(EmbeddedTemplates, EveryIsaHasTheSameFiles) {
  const auto files_of = [](const std::string& folder) {
    std::vector<std::string> names;
    for (const TemplateFile& file : embedded_templates())
      if (file.path.starts_with(folder)) names.push_back(file.path.substr(folder.size()));
    std::sort(names.begin(), names.end());
    return names;
  };
  EXPECT_FALSE(files_of("isa/ptx/").empty());
  EXPECT_EQ(files_of("isa/ptx/"), files_of("isa/emu/"));
}

}  // namespace
}  // namespace lazyrope
