#include "runtime/emulator/device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>

#include "runtime/base/config.h"
#include "runtime/base/dynamic_library.h"
#include "runtime/base/error.h"
#include "runtime/base/fork.h"
#include "runtime/base/interruption.h"
#include "runtime/emulator/launch.h"
#include "runtime/emulator/scratch_directory.h"
#include "runtime/emulator/shell.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const char* data, std::size_t size) {
  std::ofstream out(path, std::ios::binary);
  out.write(data, static_cast<std::streamsize>(size)).flush();
  if (!out)
    throw DriverError(
        {.call = "write",
         .text = fmt::format(
             "{} cannot be written ({} bytes): free some space, or set TMPDIR to another directory",
             path.string(), size)});
}

// Quotes a path for a shell.
std::string quoted(const fs::path& path) {
  std::string text = "'";
  for (const char c : path.string()) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void compile_host(const std::string& command, const std::vector<std::string>& options,
                  const RenderedKernel& kernel, const ScratchDirectory& scratch,
                  const std::stop_token& stop) {
  write(scratch.file("kernel.cpp"), kernel.source.data(), kernel.source.size());
  const std::string line = fmt::format(
      "{} {} -o {} {} 2> {}", command, fmt::join(options, " "), quoted(scratch.file("kernel.out")),
      quoted(scratch.file("kernel.cpp")), quoted(scratch.file("log")));
  const std::optional<int> status = run_in_shell(line, stop);
  throw_if_stopped(stop);
  if (status ? *status == 0 : fs::exists(scratch.file("kernel.out"))) return;
  throw CompileError(
      {.what_failed = fmt::format("{} could not be compiled for the host", kernel.entry),
       .source = kernel.entry,
       .options = options,
       .log = read_text(scratch.file("log")),
       .advice =
           fmt::format("the emulator (arch \"emu:...\") needs a C++20 compiler; tried \"{}\": "
                       "install one (Debian: apt-get install g++), or name it in LAZYROPE_CXX",
                       command)});
}

// Returns the first line with text that the compiler prints for --version, as printable ASCII.
// Returns an empty text if the compiler cannot be run.
std::string version_of(const std::string& command) {
  try {
    const ScratchDirectory scratch;
    const std::optional<int> status = run_in_shell(
        fmt::format("{} --version > {} 2> /dev/null", command, quoted(scratch.file("version"))));
    if (status.value_or(0) != 0) return "";
    const std::string text = read_text(scratch.file("version"));
    const std::size_t begin = std::min(text.find_first_not_of("\r\n"), text.size());
    std::string line = text.substr(begin, text.find('\n', begin) - begin);
    std::erase_if(line, [](char c) { return c < ' ' || c > '~'; });
    return line;
  } catch (const std::exception&) {
    return "";
  }
}

// Returns the name of the CPU's architecture, such as "x86_64".
std::string machine_name() {
  utsname system = {};
  uname(&system);
  return system.machine;
}

class EmulatorKernel : public LoadedKernel {
 public:
  explicit EmulatorKernel(const Binary& binary) : library_(open(binary)), launch_{} {
    launch_.name = binary.entry;
    launch_.kernel = reinterpret_cast<EmulatedKernel>(library_.find(binary.entry.c_str()));
    launch_.bind = reinterpret_cast<EmulatorBind>(library_.find("lazyrope_bind"));
    launch_.threads = binary.threads;
    launch_.shared_bytes = binary.shared_bytes;
    if (launch_.kernel == nullptr || launch_.bind == nullptr)
      throw DriverError(
          {.call = "dlsym", .text = fmt::format("{} is not in its binary", binary.entry)});
  }

  void launch(int ctas, const void* params, Stream,
              AccessedMemoryFn accessed_memory) const override {
    EmulatedLaunch launch = launch_;
    launch.ctas = ctas;
    std::vector<MemoryRange> memory = accessed_memory();
    const std::span<const std::byte> image = library_.image();
    memory.push_back({"the kernel's constants", image.data(), image.size(), false});
    run_emulated(launch, params, std::move(memory), emulator_options());
  }

 private:
  // Writes the binary to a file for the loader. The loader identifies libraries by path, so each
  // library that is open needs a path of its own.
  static DynamicLibrary open(const Binary& binary) {
    const ScratchDirectory scratch;
    const fs::path file = scratch.file("kernel.so");
    write(file, reinterpret_cast<const char*>(binary.code.data()), binary.code.size());
    try {
      return DynamicLibrary::open(file.string());
    } catch (const std::runtime_error& error) {
      throw DriverError(
          {.call = "dlopen", .text = fmt::format("{}: {}", binary.entry, error.what())});
    }
  }

  DynamicLibrary library_;
  EmulatedLaunch launch_;
};

class HostCompiler : public Compiler {
  // Most kernels take longer to compile than to run. Compared with -O1, -Og compiles in a quarter
  // less time, and the kernels run as fast.
  static constexpr const char* kOptimization = "-Og";

 public:
  explicit HostCompiler(std::string command) : command_(std::move(command)) {}

  std::vector<std::string> options(const Arch&) const override {
    return {"-std=c++20", kOptimization, "-fno-strict-aliasing", "-shared", "-fPIC", "-w"};
  }

  std::string identity() override { return version().empty() ? "" : compiler(); }
  // Its kernels are part of this process, so they must be of the compiler that is used here.
  bool accepts_others() const override { return false; }

  Binary compile(const RenderedKernel& kernel, const Arch& arch, std::stop_token stop) override;

  // Returns assembly.
  std::string intermediate(const RenderedKernel& kernel, const Arch&) override {
    const ScratchDirectory scratch;
    compile_host(command_, {"-std=c++20", kOptimization, "-S", "-w"}, kernel, scratch, {});
    return read_text(scratch.file("kernel.out"));
  }

 private:
  // Returns version_of() the command. Only the first call runs it.
  const std::string& version() { return version_.get(); }

  // Returns "c++ [c++ (Debian 12.2.0-14) 12.2.0, x86_64]": the command, which may hold options, the
  // version, and the CPU's architecture.
  std::string compiler() {
    return version().empty() ? command_
                             : fmt::format("{} [{}, {}]", command_, version(), machine_name());
  }

  std::string command_;
  Lazy<const std::string> version_{
      [this] { return std::make_unique<const std::string>(version_of(command_)); }};
};

Binary HostCompiler::compile(const RenderedKernel& kernel, const Arch& arch, std::stop_token stop) {
  const auto begin = std::chrono::steady_clock::now();
  const ScratchDirectory scratch;
  compile_host(command_, options(arch), kernel, scratch, stop);
  const std::string code = read_text(scratch.file("kernel.out"));
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - begin;
  Binary binary;
  binary.entry = kernel.entry;
  binary.arch = arch.name;
  binary.threads = kernel.threads;
  binary.shared_bytes = kernel.shared_bytes;
  binary.compiler = compiler();
  binary.compile_ms = elapsed.count();
  binary.code.resize(code.size());
  std::memcpy(binary.code.data(), code.data(), code.size());
  return binary;
}

class HostStopwatch : public Stopwatch {
 public:
  std::vector<double> time(std::span<const std::function<void()>> calls, Stream) override {
    std::vector<double> result;
    for (const std::function<void()>& call : calls) {
      const auto begin = std::chrono::steady_clock::now();
      call();
      const std::chrono::duration<double, std::micro> elapsed =
          std::chrono::steady_clock::now() - begin;
      result.push_back(elapsed.count());
    }
    return result;
  }
};

class EmulatorDevice : public Device {
  static constexpr std::size_t kFreeBytes = std::size_t{1} << 30;

 public:
  std::string name() const override { return "emulator"; }
  const Arch& arch() const override { return find_arch("emu:sm_80"); }
  // With few SMs, small tests split KV across CTAs as large problems do on a GPU.
  int sm_count() const override { return 4; }
  int l2_bytes() const override { return 0; }
  std::string driver() const override { return "host"; }
  DeviceId id() const override { return {DeviceType::kCpu, 0}; }

  std::unique_ptr<LoadedKernel> load(const Binary& binary) const override {
    return std::make_unique<EmulatorKernel>(binary);
  }

  std::size_t free_bytes() const override { return kFreeBytes; }
  void* allocate(std::size_t bytes) const override {
    return ::operator new(bytes, std::align_val_t{256});
  }
  void free(void* memory) const noexcept override {
    ::operator delete(memory, std::align_val_t{256});
  }
  void fill_zero(void* memory, std::size_t bytes, Stream) const override {
    std::memset(memory, 0, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream) const override {
    std::memcpy(to, from, bytes);
  }
  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream) const override {
    std::memcpy(to, from, bytes);
  }
  std::unique_ptr<StagingBuffer> staging(std::size_t bytes) const override {
    return std::make_unique<HostStaging>(bytes);
  }
  TensorMap encode(const TensorMapSpec& spec) const override { return emulated_tensor_map(spec); }
  std::unique_ptr<Stopwatch> stopwatch() const override {
    return std::make_unique<HostStopwatch>();
  }
  bool is_capturing(Stream) const override { return false; }
};

const std::shared_ptr<const Device>& the_device() {
  static const auto& device =
      *new std::shared_ptr<const Device>(std::make_shared<EmulatorDevice>());
  return device;
}

std::unique_ptr<EmulatorOptions> options_of_environment() {
  const Config config = Config::from_environment();
  return std::make_unique<EmulatorOptions>(
      EmulatorOptions{.seed = config.emulator_seed, .races = config.emulator_races});
}

Lazy<EmulatorOptions>& process_options() {
  static auto& options = *new Lazy<EmulatorOptions>(options_of_environment);
  return options;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_the_device_and_options() {
  (void)the_device();
  (void)process_options();
}

}  // namespace

bool has_emulator() { return true; }

EmulatorOptions& emulator_options() { return process_options().get(); }

std::shared_ptr<Compiler> host_compiler(const std::string& command) {
  return std::make_shared<HostCompiler>(command);
}

std::shared_ptr<const Device> emulator_device() { return the_device(); }

}  // namespace lazyrope
