#include "runtime/attention/reposition.h"

#include <fmt/format.h>

#include <vector>

#include "codegen/error.h"
#include "runtime/attention/pool.h"
#include "runtime/base/trace.h"
#include "runtime/engine/kernel_set.h"
#include "runtime/step/accessed_memory.h"
#include "runtime/step/checks.h"
#include "templates/abi/reposition.h"

namespace lazyrope {
namespace {

const char* name_of(KvLayout layout) { return layout == KvLayout::kNhd ? "NHD" : "HND"; }

void check_filled(const char* name, const AppendStep& step) {
  if (!step.is_filled())
    throw SpecError(fmt::format("{} has no tokens yet; call its update()", name));
}

void check_same_rows(const AppendStep& source, const AppendStep& target) {
  if (source.device() != target.device())
    throw SpecError(fmt::format("source is on {}, target on {}; both must be on the pool's device",
                                source.device()->name(), target.device()->name()));
  const PoolFormat& from = source.format();
  const PoolFormat& to = target.format();
  if (from != to)
    throw SpecError(
        fmt::format("source was planned with page_size = {} and layout {}, target with {} and {}; "
                    "both must be the pool's",
                    from.page_size, name_of(from.layout), to.page_size, name_of(to.layout)));
  if (source.capacity() != target.capacity())
    throw SpecError(
        fmt::format("source has room for {} tokens, target for {}; plan both with the same tokens, "
                    "because row i of source moves to row i of target",
                    source.capacity(), target.capacity()));
  check_filled("source", source);
  check_filled("target", target);
}

// Rows without a slot in either step are not moved.
void check_writes(const std::vector<AppendRecord>& source, std::vector<AppendRecord> target) {
  for (std::size_t i = 0; i < target.size(); ++i)
    if (source[i].slot < 0) target[i].slot = -1;
  const auto writers = writers_of(target, "target");
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (target[i].slot < 0) continue;
    if (const auto at = writers.find({source[i].page, source[i].slot}); at != writers.end())
      throw SpecError(
          fmt::format("row {} of source and row {} of target are both slot {} of page {}; no slot "
                      "may be both read and written",
                      i, at->second, source[i].slot, source[i].page));
  }
}

}  // namespace

std::shared_ptr<const Reposition> Reposition::compile(Engine& engine, const AttentionSpec& spec,
                                                      const Arch& arch,
                                                      const EngineOptions& options) {
  const KernelSet set = compile_sets(engine, {reposition_set(spec, arch)}, options).front();
  return std::shared_ptr<const Reposition>(new Reposition(spec, arch, set.kernels().front()));
}

void Reposition::move(const PoolTensors& pool, const AppendStep& source, const AppendStep& target,
                      Stream stream) const {
  TraceSpan span("reposition");
  span.with("k_pool", pool.keys).with("tokens", source.capacity());
  check_same_rows(source, target);
  const Device& device = *source.device();
  check_arch(arch_, device);
  check_writable_pool(spec_, pool, source.format(), device);
  if (source.capacity() == 0) return;
  RepositionParams params{};
  params.pool = pool_params(spec_, pool, source.format());
  params.source = source.records();
  params.target = target.records();
  params.num_tokens = source.capacity();
  params.num_kv_heads = spec_.num_kv_heads;
  launch_over_tokens(*kernel_, spec_, source.capacity(), &params, device, stream, [&] {
    return AccessedMemory()
        .writes_pool(pool)
        .writes("source", source.memory())
        .writes("target", target.memory())
        .ranges();
  });
}

void check_moves(const AppendStep& source, const AppendStep& target, std::int64_t num_pages,
                 Stream stream) {
  check_same_rows(source, target);
  source.check_pages(num_pages, stream, "source");
  target.check_pages(num_pages, stream, "target");
  check_writes(source.host_records(stream), target.host_records(stream));
}

}  // namespace lazyrope
