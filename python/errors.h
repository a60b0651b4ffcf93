#pragma once

namespace lazyrope {

// From now on C++ errors reach Python as the classes of lazyrope/errors.py, with their fields.
void translate_errors();

}  // namespace lazyrope
