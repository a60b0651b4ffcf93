#pragma once

#include <cstddef>
#include <vector>

#include "codegen/render.h"

namespace lazyrope {

// Kernels that differ only in the words of their RoPE table share one cubin. It is compiled from a
// source whose table is a placeholder, and it is stored like this. Whoever loads the cubin writes
// its own table over the placeholder. Thus the models of one shape share their kernels, whatever
// their theta and scaling are.

// Returns the kernel with a placeholder as its table. A kernel without a table stays as it is.
RenderedKernel shared_form(RenderedKernel rendered);

// Returns true if the code of a shared form can serve other tables: it has the placeholder exactly
// once, and no word of the placeholder anywhere else. The code of a kernel without a table always
// can. Kernels read the table by ld_global_nc() (templates/isa/ptx/memory.cuh), whose volatile
// assembly the compiler cannot compute with, so this is a second line of defence: it finds copied
// words, not values that were derived from them.
bool serves_all_tables(const RenderedKernel& shared, const std::vector<std::byte>& code);

// Returns true if the code has the placeholder of the kernel's table exactly once, or if the kernel
// has no table.
bool has_placeholder(const RenderedKernel& rendered, const std::vector<std::byte>& code);

// Writes the kernel's table over the placeholder, which the code must have (has_placeholder).
void write_table(const RenderedKernel& rendered, std::vector<std::byte>& code);

}  // namespace lazyrope
