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

// Adds a template file at run time, for variants that are registered at run time. Throws SpecError
// if the path is taken.
void register_template(TemplateFile file);

// Returns line `line` of a template file, counted from 1, as it is before expansion. It is empty if
// there is no such line or file.
std::string template_line(std::string_view path, int line);

using TemplateValues = std::map<std::string, std::string, std::less<>>;

// Replaces every ${name} by its value. Throws SpecError if a name has no value, or if a value is
// not used.
std::string substitute(std::string_view text, const TemplateValues& values);

// Returns one self-contained source: the file with `values` substituted, and with every included
// file in place of its first #include. "isa/x.cuh" is searched in isa/ and then in isa/<isa>/.
// Throws SpecError if a file is missing. The functions of this header are safe to call from several
// threads.
std::string expand_template(std::string_view path, const TemplateValues& values,
                            std::string_view isa);

}  // namespace lazyrope
