#pragma once

#include "runtime/spec/config_json.h"

namespace lazyrope {

// Returns the config of the text model of a wrapper: a model of images or audio whose config.json
// has a text_config. Any other config is returned as it is. Logs at level info what it read. Throws
// SpecError for a wrapper whose text_config is missing or no object.
Json text_config_of(Json config);

}  // namespace lazyrope
