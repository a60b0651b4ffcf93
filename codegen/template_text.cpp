#include "codegen/template_text.h"

#include <fmt/format.h>

#include <memory>
#include <set>
#include <sstream>

#include "codegen/error.h"
#include "codegen/versions.h"

namespace lazyrope {
namespace {

// The texts by path. Versions of the map share the texts.
using Files = std::map<std::string, std::shared_ptr<const std::string>, std::less<>>;

void add_file(Files& files, TemplateFile file) {
  files.emplace(std::move(file.path), std::make_shared<const std::string>(std::move(file.text)));
}

Versions<Files>& files() {
  static Versions<Files> instance([] {
    Files embedded;
    for (TemplateFile& file : embedded_templates()) add_file(embedded, std::move(file));
    return embedded;
  }());
  return instance;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_files() { (void)files(); }

const std::string* find_file(std::string_view path) {
  const Files& latest = files().latest();
  const auto it = latest.find(path);
  return it == latest.end() ? nullptr : it->second.get();
}

// Expands #include lines depth first.
class Expansion {
 public:
  explicit Expansion(std::string_view isa) : isa_(isa) {}

  // Adds a file. #line directives tell compilers and the emulator the file of each line.
  void add(std::string_view path, std::string_view text) {
    mark(1, path);
    for (int number = 2; !text.empty(); ++number) {
      const std::size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      if (add_line(line)) mark(number, path);
    }
  }

  std::string take() { return std::move(result_); }

 private:
  // Returns true if the next line needs a #line directive, because an included file came between.
  bool add_line(std::string_view line) {
    constexpr std::string_view kInclude = "#include \"";
    if (line.starts_with(kInclude)) {
      line.remove_prefix(kInclude.size());
      const std::string path = resolve(line.substr(0, line.find('"')));
      if (included_.insert(path).second) {
        add(path, *find_file(path));
        return true;
      }
      line = "";
    }
    result_.append(line == "#pragma once" ? "" : line).push_back('\n');
    return false;
  }

  void mark(int line, std::string_view path) {
    result_ += fmt::format("#line {} \"{}\"\n", line, path);
  }

  std::string resolve(std::string_view path) const {
    constexpr std::string_view kIsa = "isa/";
    if (find_file(path) != nullptr) return std::string(path);
    if (path.starts_with(kIsa)) {
      const std::string chosen = fmt::format("isa/{}/{}", isa_, path.substr(kIsa.size()));
      if (find_file(chosen) != nullptr) return chosen;
    }
    throw SpecError(fmt::format("template file \"{}\" does not exist", path));
  }

  std::string_view isa_;
  std::set<std::string> included_;
  std::string result_;
};

}  // namespace

void register_template(TemplateFile file) {
  files().change([&](Files& files) {
    if (files.contains(file.path))
      throw SpecError(
          fmt::format("template file \"{}\" exists already; choose another path", file.path));
    add_file(files, file);
  });
}

std::string template_line(std::string_view path, int line) {
  const std::string* const text = find_file(path);
  if (text == nullptr) return "";
  std::istringstream lines(*text);
  std::string result;
  for (int i = 0; i < line; ++i)
    if (!std::getline(lines, result)) return "";
  return result;
}

std::string substitute(std::string_view text, const TemplateValues& values) {
  std::string result;
  std::set<std::string_view> used;
  while (true) {
    const std::size_t begin = text.find("${");
    result.append(text.substr(0, begin));
    if (begin == std::string_view::npos) break;
    const std::size_t end = text.find('}', begin);
    if (end == std::string_view::npos) throw SpecError(R"(template text has "${" without "}")");
    const std::string_view name = text.substr(begin + 2, end - begin - 2);
    const auto it = values.find(name);
    if (it == values.end())
      throw SpecError(fmt::format("template asks for ${{{}}}, which has no value", name));
    used.insert(it->first);
    result.append(it->second);
    text.remove_prefix(end + 1);
  }
  for (const auto& [name, value] : values)
    if (!used.contains(name))
      throw SpecError(fmt::format("template does not use the value {}", name));
  return result;
}

std::string expand_template(std::string_view path, const TemplateValues& values,
                            std::string_view isa) {
  const std::string* text = find_file(path);
  if (text == nullptr) throw SpecError(fmt::format("template file \"{}\" does not exist", path));
  Expansion expansion(isa);
  expansion.add(path, substitute(*text, values));
  return expansion.take();
}

}  // namespace lazyrope
