#include "tests/isa/wrappers.h"

#include <fmt/format.h>

#include <regex>

#include "codegen/template_text.h"

namespace lazyrope {
namespace {

std::string without_comments(std::string_view text) {
  static const std::regex comment("//[^\n]*");
  return std::regex_replace(std::string(text), comment, "");
}

}  // namespace

std::set<std::string> wrappers_in(std::string_view text) {
  // A function's name is the word before its first parenthesis.
  static const std::regex definition(
      R"(LAZYROPE_DEVICE(?:_CALL)?\s[^(;]*?(operator\S{1,2}|\w+)\s*\()");
  const std::string code =
      std::regex_replace(without_comments(text), std::regex(R"(#define(?:[^\n]*\\\n)*[^\n]*)"), "");
  std::set<std::string> names;
  for (std::sregex_iterator match(code.begin(), code.end(), definition), end; match != end; ++match)
    names.insert((*match)[1]);
  return names;
}

std::set<std::string> all_wrappers() {
  std::set<std::string> names;
  for (const TemplateFile& file : embedded_templates())
    if (file.path.starts_with("isa/ptx/")) names.merge(wrappers_in(file.text));
  return names;
}

bool names_wrapper(std::string_view text, std::string_view wrapper) {
  constexpr std::string_view kOperator = "operator";
  const std::string code = without_comments(text);
  if (wrapper.starts_with(kOperator))
    return code.find(wrapper[kOperator.size()]) != std::string::npos;
  return std::regex_search(code, std::regex(fmt::format(R"(\b{}\b)", wrapper)));
}

}  // namespace lazyrope
