#pragma once

#include <memory>

#include "runtime/engine/engine.h"
#include "runtime/spec/spec.h"
#include "runtime/step/append_step.h"

namespace lazyrope {

// The compiled kernel that copies tokens to other slots of their pool and to other indices in their
// document. Immutable and thread-safe.
class Reposition {
 public:
  // Throws SpecError or CompileError.
  static std::shared_ptr<const Reposition> compile(Engine& engine, const AttentionSpec& spec,
                                                   const Arch& arch,
                                                   const EngineOptions& options = {});

  const AttentionSpec& spec() const { return spec_; }
  const Arch& arch() const { return arch_; }
  const std::shared_ptr<const Kernel>& kernel() const { return kernel_; }

  // Copies row i of `source` to row i of `target`: its value, and its key rotated by the difference
  // of the two indices. Rows without a slot in either are skipped. No slot may be both read and
  // written, or written twice. Asynchronous. Throws SpecError or DriverError.
  void move(const PoolTensors& pool, const AppendStep& source, const AppendStep& target,
            Stream stream) const;

 private:
  Reposition(AttentionSpec spec, const Arch& arch, std::shared_ptr<const Kernel> kernel)
      : spec_(std::move(spec)), arch_(arch), kernel_(std::move(kernel)) {}

  AttentionSpec spec_;
  const Arch& arch_;
  std::shared_ptr<const Kernel> kernel_;
};

// Waits for the stream and checks the rows. Throws a SpecError that names the rows if a page is not
// among the pool's num_pages, if a slot is both read and written, or if a slot is written twice.
void check_moves(const AppendStep& source, const AppendStep& target, std::int64_t num_pages,
                 Stream stream);

}  // namespace lazyrope
