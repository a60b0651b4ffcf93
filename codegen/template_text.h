#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

struct TemplateFile {
  std::string path;  // below templates/
  std::string text;
};

std::vector<TemplateFile> embedded_templates();  // generated at build time

// Adds a template file at run time, for variants registered then; SpecError if the path is taken.
void register_template(TemplateFile file);

// A line of a template file, counted from 1, as it stands there; empty where there is none.
std::string template_line(std::string_view path, int line);

using TemplateValues = std::map<std::string, std::string, std::less<>>;

// Replaces every ${name} by its value. SpecError on a name without a value, or a value that no name
// asks for.
std::string substitute(std::string_view text, const TemplateValues& values);

// The file with `values` put in and every file that it includes, once each, in place of its
// #include: one self-contained source. "isa/x.cuh" is looked for in isa/ and then in isa/<isa>/.
std::string expand_template(std::string_view path, const TemplateValues& values,
                            std::string_view isa);

}  // namespace lazyrope
