#include "runtime/tuning/tuned.h"

#include <fmt/format.h>

#include <utility>

#include "cache/error.h"
#include "codegen/error.h"
#include "codegen/render.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/engine/devices.h"

namespace lazyrope {
namespace {

using AttentionPtr = std::shared_ptr<const Attention>;

// Changes whenever the contents of a record, or the way its times are taken, change.
constexpr std::string_view kTuningFormat = "tuning 3";

// Throws if the record cannot be used.
AttentionPtr compile_tuning(Engine& engine, const AttentionSpec& spec, const Device& device,
                            const std::shared_ptr<const Tuning>& tuning,
                            const EngineOptions& options) {
  if (tuning->driver != device.driver())
    throw CacheError(fmt::format("it was measured with driver {}, and this is {}", tuning->driver,
                                 device.driver()));
  AttentionPtr attention = Attention::compile(
      engine, spec, device.arch(), {.config = tuning->config, .engine = options, .tuning = tuning});
  if (attention->compiler() != tuning->compiler)
    throw CacheError(fmt::format("it was measured with kernels of {}, and these are of {}",
                                 tuning->compiler, attention->compiler()));
  return attention;
}

void refuse_under_policy(const Engine& engine) {
  if (engine.config().policy != CachePolicy::kCacheOnly) return;
  throw CacheError(
      "LAZYROPE_POLICY=cache_only forbids compiling the configs that tuning measures\ntune under "
      "LAZYROPE_POLICY=jit, with the same cache: `lazyrope autotune`; the record is then used "
      "here");
}

void refuse_config(Tune tune, const CompileOptions& options) {
  if (options.config && tune == Tune::kMeasure)
    throw SpecError(
        "config is given, and tune=True asks for one to be chosen; give one of the two");
}

void refuse_emulator(const Arch& arch) {
  if (arch.isa == "ptx") return;
  throw SpecError(fmt::format(
      "arch \"{}\": tuning measures kernels on a GPU, and the emulator's times do not predict a "
      "GPU's; leave tune=True out",
      arch.name));
}

}  // namespace

Key tuning_key(const AttentionSpec& spec, const Device& device) {
  return tuning_key(spec, device.arch(), device.name(), fmt::to_string(device.sm_count()));
}

Key tuning_key(const AttentionSpec& spec, const Arch& arch, std::string_view gpu,
               std::string_view sm_count) {
  const KernelSpec kernel_spec = spec.kernel_spec();
  const KernelConfig default_config = configs(kernel_spec, arch).front();
  std::string sources;
  for (const KernelKind kind :
       {KernelKind::kPlan, KernelKind::kAttendDecode, KernelKind::kAttendPrefill})
    sources += render(kind, kernel_spec, default_config, arch).source;
  return KeyBuilder()
      .field("format", kTuningFormat)
      .field("arch", arch.name)
      .field("gpu", gpu)
      .field("sm_count", sm_count)
      .field("kv_heads", fmt::to_string(spec.num_kv_heads))
      .field("source", sources)
      .finish();
}

std::shared_ptr<const Device> gpu_to_tune_on(std::string_view arch) {
  if (!arch.empty()) refuse_emulator(find_arch(arch));
  std::shared_ptr<const Device> device;
  try {
    device = current_gpu();
  } catch (const DriverError& error) {
    DriverFailure failure = error.failure();
    failure.text = fmt::format(
        "tuning measures on the GPU that will run the kernels, and there is none here: {}",
        failure.text);
    failure.advice =
        "tune on the machine of the deployment (`lazyrope autotune`, or compile with tune=True); "
        "its cache directory holds the record. Without tuning, arch=\"sm_90a\" compiles anywhere";
    throw DriverError(std::move(failure));
  }
  if (arch.empty() || arch == device->arch().name) return device;
  throw SpecError(
      fmt::format("arch \"{}\": tuning measures on the present GPU, {}, which needs {}; leave arch "
                  "out, or tune on a GPU of that arch",
                  arch, device->name(), device->arch().name));
}

AttentionPtr stored_attention(Engine& engine, const AttentionSpec& spec, const Device& device,
                              const EngineOptions& options) {
  const Key key = tuning_key(spec, device);
  const std::shared_ptr<const Tuning> tuning = engine.tunings().find(key);
  if (tuning == nullptr) return nullptr;
  std::string why;
  try {
    return compile_tuning(engine, spec, device, tuning, options);
  } catch (const SpecError& error) {
    why = error.what();
  } catch (const CompileError& error) {
    why = error.what();
  } catch (const CacheError& error) {
    why = error.what();
  }
  log_message(
      LogLevel::kWarning,
      "the tuning of {} is not used: {}; until it is tuned again (`lazyrope autotune`), the "
      "default config is used",
      tuning->spec, why);
  engine.tunings().mark_missing(key);
  return nullptr;
}

AttentionPtr tuned_attention(Engine& engine, const AttentionSpec& spec,
                             const std::shared_ptr<const Device>& device,
                             const AutotuneOptions& options) {
  refuse_under_policy(engine);
  const auto tuning = std::make_shared<Tuning>(autotune(engine, spec, device, options));
  engine.tunings().store(tuning_key(spec, *device), tuning);
  return Attention::compile(engine, spec, device->arch(),
                            {.config = tuning->config, .engine = options.engine, .tuning = tuning});
}

AttentionPtr compile_for(Engine& engine, const AttentionSpec& spec, std::string_view arch,
                         Tune tune, const CompileOptions& options) {
  refuse_config(tune, options);
  // Unless tuning is asked for, a named arch gives the same config on every machine: it uses no
  // tuning record.
  const bool is_plain =
      options.config || tune == Tune::kNever || (tune == Tune::kStored && !arch.empty());
  if (is_plain)
    return Attention::compile(engine, spec, arch.empty() ? current_arch() : find_arch(arch),
                              options);
  validate(spec);
  const auto device = tune == Tune::kMeasure ? gpu_to_tune_on(arch) : current_gpu();
  if (AttentionPtr attention = stored_attention(engine, spec, *device, options.engine))
    return attention;
  if (tune == Tune::kStored) return Attention::compile(engine, spec, device->arch(), options);
  // One process measures. The others, such as the ranks of one model, wait and then find its
  // record.
  const FileLock lock = engine.tunings().lock(tuning_key(spec, *device));
  if (AttentionPtr attention = stored_attention(engine, spec, *device, options.engine))
    return attention;
  AttentionPtr attention = tuned_attention(engine, spec, device, {.engine = options.engine});
  // A caller who asked for tuning receives its summary unless logging is off.
  if (log_enabled(LogLevel::kWarning))
    write_log(LogLevel::kInfo, fmt::format("tuned {} on {}\n{}", attention->tuning()->spec,
                                           device->name(), summary(*attention->tuning())));
  return attention;
}

}  // namespace lazyrope
