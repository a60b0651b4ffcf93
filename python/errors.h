#pragma once

namespace lazyrope {

// Registers the translation of C++ errors to the classes of lazyrope/errors.py, with their fields.
void translate_errors();

}  // namespace lazyrope
