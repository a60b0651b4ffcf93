#pragma once

#include "runtime/spec/model_types.h"

namespace lazyrope {

// Returns the keys of `given` that transformers reads for the type, with defaults for absent ones
// and aliases under their present name. The other keys are of two kinds. A key that says something
// about attention (such as is_causal) must have a value that changes nothing, else SpecError names
// it. Transformers ignores all the rest, and so does this function; it logs their names at level
// debug.
Json keys_read(const Json& given, const ModelType& type);

}  // namespace lazyrope
