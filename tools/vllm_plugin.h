#pragma once

#include <string>

#include "tools/output.h"

namespace lazyrope {

// Returns what `lazyrope doctor` says about vLLM in this command's Python environment: either why
// there is none ("missing"), or its distribution, version and directory, whether lazyrope.vllm
// serves this release, and whether vLLM finds the plug-in. "problems" says what to do.
OrderedJson vllm_facts();

// Returns these facts as text for people.
std::string vllm_text(const OrderedJson& facts);

}  // namespace lazyrope
