#include "tools/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace lazyrope {
namespace {

// The name of the CLI11 validator that has an option's values. The validator accepts every value.
constexpr const char* kOfferedValues = "offered values";

enum class ValueKind { kNone, kOther, kFile, kDirectory, kOffered };

// An option or a positional argument.
struct CompletedOption {
  std::vector<std::string> names;  // "-o", "--output"; empty: a positional argument
  std::string meaning;
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> values;  // if offered
  bool is_list = false;             // values with commas between them
};

struct CompletedSubcommand {
  std::string name;
  std::string meaning;
};

// The command, or one of its subcommands at any depth.
struct CompletedCommand {
  std::string words;  // "lazyrope cache list"
  std::vector<CompletedSubcommand> subcommands;
  std::vector<CompletedOption> options;
  std::vector<CompletedOption> positionals;

  bool takes_files() const {
    for (const CompletedOption& positional : positionals)
      if (positional.kind == ValueKind::kFile) return true;
    return false;
  }
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::vector<std::string> offered_values(CLI::Option& option) {
  try {
    const std::string values = option.get_validator(kOfferedValues)->get_description();
    return CLI::detail::split(values, ' ');
  } catch (const CLI::OptionNotFound&) {
    return {};
  }
}

// The text that stands for the value in the help says what it is.
ValueKind value_kind(const CLI::Option& option, const std::vector<std::string>& values) {
  if (option.get_expected_max() == 0) return ValueKind::kNone;
  if (!values.empty()) return ValueKind::kOffered;
  const std::string text =
      option.get_positional() ? option.get_name(/*positional=*/true) : option.get_option_text();
  if (text.starts_with("FILE")) return ValueKind::kFile;
  return text.starts_with("DIR") ? ValueKind::kDirectory : ValueKind::kOther;
}

CompletedOption completed(CLI::Option& option) {
  CompletedOption result;
  for (const std::string& name : option.get_snames()) result.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) result.names.push_back("--" + name);
  result.meaning = first_line(option.get_description());
  result.values = offered_values(option);
  result.kind = value_kind(option, result.values);
  result.is_list = option.get_delimiter() != '\0';
  return result;
}

void collect(CLI::App& app, const std::string& words, std::vector<CompletedCommand>& commands) {
  CompletedCommand command;
  command.words = words;
  for (CLI::Option* option : app.get_options(nullptr))
    (option->get_positional() ? command.positionals : command.options)
        .push_back(completed(*option));
  const std::vector<CLI::App*> subcommands = app.get_subcommands([](CLI::App*) { return true; });
  for (CLI::App* subcommand : subcommands)
    command.subcommands.push_back(
        {subcommand->get_name(), first_line(subcommand->get_description())});
  commands.push_back(std::move(command));
  for (CLI::App* subcommand : subcommands)
    collect(*subcommand, words + " " + subcommand->get_name(), commands);
}

std::vector<CompletedCommand> commands_of(CLI::App& root) {
  std::vector<CompletedCommand> commands;
  collect(root, root.get_name(), commands);
  return commands;
}

// Returns the words of all subcommands, each in `quote`, with `separator` between them.
std::string subcommand_patterns(const std::vector<CompletedCommand>& commands, char quote,
                                std::string_view separator) {
  std::vector<std::string> patterns;
  for (std::size_t i = 1; i < commands.size(); ++i)
    patterns.push_back(fmt::format("{}{}{}", quote, commands[i].words, quote));
  return fmt::format("{}", fmt::join(patterns, separator));
}

// Returns the command's words before each name of the option, each in double quotes.
std::string option_patterns(const CompletedCommand& command, const CompletedOption& option) {
  std::vector<std::string> patterns;
  for (const std::string& name : option.names)
    patterns.push_back(fmt::format("\"{} {}\"", command.words, name));
  return fmt::format("{}", fmt::join(patterns, "|"));
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

std::vector<std::string> option_names(const CompletedCommand& command) {
  std::vector<std::string> names;
  for (const CompletedOption& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

// Returns the subcommands, or the values of positional arguments.
std::vector<std::string> first_words(const CompletedCommand& command) {
  std::vector<std::string> words;
  for (const CompletedSubcommand& subcommand : command.subcommands)
    words.push_back(subcommand.name);
  for (const CompletedOption& positional : command.positionals)
    words.insert(words.end(), positional.values.begin(), positional.values.end());
  return words;
}

// ---- bash ----

constexpr std::string_view kBashScript =
    R"(# bash completion of lazyrope, made by `lazyrope completion bash`.
_lazyrope() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
  local at=lazyrope before= values= words= options= word
  COMPREPLY=()
  # For readline, "=" and ":" are words of their own.
  if [[ $current == = ]]; then
    current=
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $current == : && COMP_CWORD -ge 3 ]]; then
    before="${COMP_WORDS[COMP_CWORD-1]}:" current=$before previous=${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $previous == : && COMP_CWORD -ge 4 ]]; then
    before="${COMP_WORDS[COMP_CWORD-2]}:" current=$before$current previous=${COMP_WORDS[COMP_CWORD-3]}
  fi
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$at $word" in
      @SUBCOMMANDS@) at="$at $word" ;;
    esac
  done
  case "$at $previous" in
@VALUES@  esac
  if [[ -n $values ]]; then
    # The values before the last comma stay as they are.
    local last=${current##*,}
    [[ $values == *,* ]] || last=$current
    COMPREPLY=($(compgen -W "${values%,}" -P "${current%"$last"}" -- "$last"))
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    return
  fi
  case "$at" in
@WORDS@  esac
  [[ $current == -* || -z $words ]] && words=$options
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _lazyrope lazyrope
)";

std::string bash_values(const CompletedOption& option) {
  switch (option.kind) {
    case ValueKind::kOffered:
      // A comma at the end marks a list.
      return fmt::format("values='{}{}'", fmt::join(option.values, " "), option.is_list ? "," : "");
    case ValueKind::kDirectory:
      return "compopt -o filenames 2>/dev/null; local IFS=$'\\n'; "
             "COMPREPLY=($(compgen -d -- \"$current\")); return";
    case ValueKind::kFile:
      return "return";  // bash completes files
    default:
      return "compopt +o default 2>/dev/null; return";
  }
}

std::string bash_script(const std::vector<CompletedCommand>& commands) {
  std::string values, words;
  for (const CompletedCommand& command : commands) {
    for (const CompletedOption& option : command.options)
      if (option.kind != ValueKind::kNone)
        values +=
            fmt::format("    {}) {} ;;\n", option_patterns(command, option), bash_values(option));
    const std::string files = command.takes_files() ? "[[ $current == -* ]] || return; " : "";
    words +=
        fmt::format("    \"{}\") {}words='{}' options='{}' ;;\n", command.words, files,
                    fmt::join(first_words(command), " "), fmt::join(option_names(command), " "));
  }
  std::string script =
      replaced(std::string(kBashScript), "@SUBCOMMANDS@", subcommand_patterns(commands, '"', "|"));
  return replaced(replaced(std::move(script), "@VALUES@", values), "@WORDS@", words);
}

// ---- zsh ----

constexpr std::string_view kZshScript = R"(#compdef lazyrope
# zsh completion of lazyrope, made by `lazyrope completion zsh`.
_lazyrope() {
  local at=lazyrope word
  local -a names options
  for word in "${(@)words[2,CURRENT-1]}"; do
    case "$at $word" in
      (@SUBCOMMANDS@) at="$at $word" ;;
    esac
  done
  case "$at ${words[CURRENT-1]}" in
@VALUES@  esac
  case "$at" in
@WORDS@  esac
  if [[ $PREFIX == -* || ${#names} -eq 0 ]]; then
    _describe -o option options
  else
    _describe word names
  fi
}
if [[ $funcstack[1] == _lazyrope ]]; then
  _lazyrope "$@"
else
  compdef _lazyrope lazyrope
fi
)";

// Returns 'NAME:MEANING'.
std::string zsh_described(const std::string& name, const std::string& meaning) {
  const std::string text =
      fmt::format("{}:{}", replaced(name, ":", "\\:"), replaced(meaning, ":", "\\:"));
  return fmt::format("'{}'", replaced(text, "'", "'\\''"));
}

std::string zsh_values(const CompletedOption& option) {
  switch (option.kind) {
    case ValueKind::kOffered:
      return fmt::format("{}compadd -- {}; return", option.is_list ? "compset -P '*,'; " : "",
                         fmt::join(option.values, " "));
    case ValueKind::kDirectory:
      return "_files -/; return";
    case ValueKind::kFile:
      return "_files; return";
    default:
      return "_message value; return";
  }
}

std::string zsh_words(const CompletedCommand& command) {
  std::vector<std::string> names, options;
  for (const CompletedSubcommand& subcommand : command.subcommands)
    names.push_back(zsh_described(subcommand.name, subcommand.meaning));
  for (const CompletedOption& positional : command.positionals)
    for (const std::string& value : positional.values) names.push_back(zsh_described(value, ""));
  for (const CompletedOption& option : command.options)
    for (const std::string& name : option.names)
      options.push_back(zsh_described(name, option.meaning));
  return fmt::format("    (\"{}\") {}names=({}) options=({}) ;;\n", command.words,
                     command.takes_files() ? "[[ $PREFIX == -* ]] || { _files; return; }; " : "",
                     fmt::join(names, " "), fmt::join(options, " "));
}

std::string zsh_script(const std::vector<CompletedCommand>& commands) {
  std::string values, words;
  for (const CompletedCommand& command : commands) {
    for (const CompletedOption& option : command.options)
      if (option.kind != ValueKind::kNone)
        values +=
            fmt::format("    ({}) {} ;;\n", option_patterns(command, option), zsh_values(option));
    words += zsh_words(command);
  }
  std::string script =
      replaced(std::string(kZshScript), "@SUBCOMMANDS@", subcommand_patterns(commands, '"', "|"));
  return replaced(replaced(std::move(script), "@VALUES@", values), "@WORDS@", words);
}

// ---- fish ----

constexpr std::string_view kFishScript =
    R"(# fish completion of lazyrope, made by `lazyrope completion fish`.
function __lazyrope_at
  set -l at lazyrope
  for word in (commandline -opc)[2..-1]
    switch "$at $word"
      case @SUBCOMMANDS@
        set at "$at $word"
    end
  end
  test "$at" = "$argv[1]"
end
)";

std::string fish_quoted(const std::string& text) {
  return fmt::format("'{}'", replaced(replaced(text, "\\", "\\\\"), "'", "\\'"));
}

std::string fish_values(const CompletedOption& option) {
  const std::string values = fmt::format("{}", fmt::join(option.values, " "));
  switch (option.kind) {
    case ValueKind::kOffered:
      return " -x -a " + fish_quoted(option.is_list ? "(__fish_append , " + values + ")" : values);
    case ValueKind::kDirectory:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::kFile:
      return " -r -F";
    case ValueKind::kOther:
      return " -x";
    case ValueKind::kNone:
      break;
  }
  return "";
}

std::string fish_option(const std::string& condition, const CompletedOption& option) {
  std::string line = condition;
  for (const std::string& name : option.names)
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  return line + fish_values(option) + " -d " + fish_quoted(option.meaning) + "\n";
}

std::string fish_script(const std::vector<CompletedCommand>& commands) {
  std::string script =
      replaced(std::string(kFishScript), "@SUBCOMMANDS@", subcommand_patterns(commands, '\'', " "));
  for (const CompletedCommand& command : commands) {
    const std::string condition =
        fmt::format("complete -c lazyrope -n '__lazyrope_at \"{}\"'", command.words);
    if (!command.takes_files()) script += condition + " -f\n";
    for (const CompletedSubcommand& subcommand : command.subcommands)
      script += fmt::format("{} -a {} -d {}\n", condition, subcommand.name,
                            fish_quoted(subcommand.meaning));
    for (const CompletedOption& positional : command.positionals)
      if (!positional.values.empty())
        script += fmt::format("{} -a '{}'\n", condition, fmt::join(positional.values, " "));
    for (const CompletedOption& option : command.options) script += fish_option(condition, option);
  }
  return script;
}

struct Shell {
  const char* name;
  std::string (*script)(const std::vector<CompletedCommand>& commands);
};

constexpr Shell kShells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};

}  // namespace

void offer_values(CLI::Option* option, const std::vector<std::string>& values) {
  option->check(CLI::Validator([](std::string&) { return std::string(); },
                               fmt::format("{}", fmt::join(values, " ")), kOfferedValues));
}

std::vector<std::string> completion_shells() {
  std::vector<std::string> names;
  for (const Shell& shell : kShells) names.emplace_back(shell.name);
  return names;
}

std::string completion_script(CLI::App& root, std::string_view shell) {
  for (const Shell& known : kShells)
    if (shell == known.name) return known.script(commands_of(root));
  return "";
}

}  // namespace lazyrope
