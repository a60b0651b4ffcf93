#pragma once

#include <memory>

#include "runtime/engine/engine.h"
#include "runtime/spec/spec.h"
#include "runtime/step/append_step.h"

namespace lazyrope {

// The compiled kernel that copies tokens to other slots of their pool and other indices. Immutable;
// calls may come from several threads.
class Reposition {
 public:
  // SpecError, CompileError.
  static std::shared_ptr<const Reposition> compile(Engine& engine, const AttentionSpec& spec,
                                                   const Arch& arch,
                                                   const EngineOptions& options = {});

  const AttentionSpec& spec() const { return spec_; }
  const Arch& arch() const { return arch_; }
  const std::shared_ptr<const Kernel>& kernel() const { return kernel_; }

  // Copies row i of `source` to row i of `target`: its key, turned by the difference of their
  // indices, and its value. Rows that either lacks are left alone. No slot may be both read and
  // written, or written twice. Asynchronous. SpecError, DriverError.
  void move(const PoolTensors& pool, const AppendStep& source, const AppendStep& target,
            Stream stream) const;

 private:
  Reposition(AttentionSpec spec, const Arch& arch, std::shared_ptr<const Kernel> kernel)
      : spec_(std::move(spec)), arch_(arch), kernel_(std::move(kernel)) {}

  AttentionSpec spec_;
  const Arch& arch_;
  std::shared_ptr<const Kernel> kernel_;
};

// Waits for the stream, and checks that the rows lie in pages of the pool, of num_pages, and that
// no slot is both read and written, or written twice. SpecError that names the rows.
void check_moves(const AppendStep& source, const AppendStep& target, std::int64_t num_pages,
                 Stream stream);

}  // namespace lazyrope
