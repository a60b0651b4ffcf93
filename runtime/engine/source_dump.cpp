#include "runtime/engine/source_dump.h"

#include <exception>
#include <filesystem>
#include <span>

#include "cache/file_io.h"
#include "runtime/base/log.h"

namespace lazyrope {

void dump_source(const std::string& directory, const std::string& name, std::string_view source) {
  const std::filesystem::path path = std::filesystem::path(directory) / name;
  try {
    create_own_directories(directory);
    publish_file(path, std::as_bytes(std::span(source)));
  } catch (const std::exception& error) {
    log_message(LogLevel::kWarning, "cannot write {}: {}; see LAZYROPE_DUMP_DIR", path.native(),
                error.what());
  }
}

}  // namespace lazyrope
