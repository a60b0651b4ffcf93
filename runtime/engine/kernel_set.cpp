#include "runtime/engine/kernel_set.h"

#include <iterator>
#include <numeric>
#include <utility>

#include "runtime/base/log.h"

namespace lazyrope {
namespace {

// Returns whether a kernel that may differ between the configs of the request spills. The kernel
// for rotated keys has the same tile with each of them (codegen/rotated_keys.h), so another config
// would not help it.
bool spills_because_of_config(const KernelSetRequest& request, const KernelSet& set) {
  for (std::size_t i = 0; i < set.results.size(); ++i)
    if (request.kinds[i] != KernelKind::kAttendRotated && set.results[i].spills()) return true;
  return false;
}

// Compiles the sets with their first configs, then the sets that spill with their next configs, and
// so on.
class Search {
 public:
  explicit Search(const std::vector<KernelSetRequest>& requests)
      : requests_(requests), sets_(requests.size()), open_(requests.size()) {
    std::iota(open_.begin(), open_.end(), std::size_t{0});
  }

  std::vector<KernelSet> run(Engine& engine, const EngineOptions& options) {
    for (std::size_t config = 0; !open_.empty(); ++config) {
      store_results(config, engine.try_kernels(kernels_with(config), options));
      std::erase_if(open_, [&](std::size_t set) { return is_settled(set, config); });
    }
    return std::move(sets_);
  }

 private:
  std::vector<KernelRequest> kernels_with(std::size_t config) const {
    std::vector<KernelRequest> kernels;
    for (const std::size_t set : open_) {
      const KernelSetRequest& r = requests_[set];
      for (const KernelKind kind : r.kinds)
        kernels.push_back({render(kind, r.spec, r.configs.at(config), *r.arch), r.arch, r.name});
    }
    return kernels;
  }

  void store_results(std::size_t config, std::vector<KernelResult> results) {
    auto next = std::make_move_iterator(results.begin());
    for (const std::size_t set : open_) {
      const auto end = next + static_cast<std::ptrdiff_t>(requests_[set].kinds.size());
      sets_[set] = {requests_[set].configs[config], {next, end}};
      next = end;
    }
  }

  // A set moves to its next config if a kernel of the config spills, whatever other failures there
  // are.
  bool is_settled(std::size_t set, std::size_t config) const {
    if (!spills_because_of_config(requests_[set], sets_[set])) return true;
    if (config + 1 == requests_[set].configs.size()) return true;
    log_message(LogLevel::kInfo, "{} for {} spills; the next config is tried",
                describe(sets_[set].config), requests_[set].arch->name);
    return false;
  }

  const std::vector<KernelSetRequest>& requests_;
  std::vector<KernelSet> sets_;
  std::vector<std::size_t> open_;
};

}  // namespace

KernelSetRequest attention_set(const AttentionSpec& spec, const Arch& arch,
                               const std::optional<KernelConfig>& config) {
  validate(spec);
  // The request has several configs, because some NVRTC may spill registers with the first one.
  const KernelSpec kernel_spec = spec.kernel_spec();
  return {kernel_spec, &arch, attention_kernels(kernel_spec, arch),
          config ? std::vector{*config} : configs(kernel_spec, arch), describe(kernel_spec)};
}

KernelSetRequest reposition_set(const AttentionSpec& spec, const Arch& arch) {
  validate(spec);
  const KernelSpec kernel_spec = spec.kernel_spec();
  // Any config serves: the kernel does not depend on it.
  return {kernel_spec,
          &arch,
          {KernelKind::kReposition},
          {configs(kernel_spec, arch).front()},
          describe(kernel_spec)};
}

std::vector<std::shared_ptr<const Kernel>> KernelSet::kernels() const {
  std::vector<std::shared_ptr<const Kernel>> kernels;
  for (const KernelResult& result : results) {
    if (result.failure) std::rethrow_exception(result.failure);
    kernels.push_back(result.kernel);
  }
  return kernels;
}

std::vector<KernelSet> compile_sets(Engine& engine, const std::vector<KernelSetRequest>& requests,
                                    const EngineOptions& options) {
  return Search(requests).run(engine, options);
}

}  // namespace lazyrope
