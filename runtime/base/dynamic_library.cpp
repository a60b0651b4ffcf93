#include "runtime/base/dynamic_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string_view>

#include "runtime/base/fork.h"

namespace lazyrope {
namespace {

// The loader's own lock does not survive a fork, so a fork waits while a library is loaded.
constinit std::mutex loader;
[[gnu::constructor]] void hold_loader() { hold_across_forks<loader>(); }

constexpr std::size_t kCopyBytes = std::size_t{1} << 30;
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;

const link_map& map_of(void* handle) {
  link_map* map = nullptr;
  // dlinfo fails only for an invalid handle.
  dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map));
  return *map;
}

std::size_t align_up(std::size_t size, std::size_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

using Bytes = std::span<const unsigned char>;

// Returns the build-id among the ELF notes in `notes`, or an empty span.
Bytes find_build_id(Bytes notes, std::size_t alignment) {
  constexpr std::string_view kOwner("GNU\0", 4);
  ElfW(Nhdr) header;
  while (notes.size() >= sizeof header) {
    std::memcpy(&header, notes.data(), sizeof header);
    const std::size_t id_begin = align_up(sizeof header + header.n_namesz, alignment);
    const std::size_t id_end = id_begin + header.n_descsz;
    if (id_end > notes.size()) break;
    const auto* owner = reinterpret_cast<const char*>(notes.data()) + sizeof header;
    if (header.n_type == NT_GNU_BUILD_ID && std::string_view(owner, header.n_namesz) == kOwner) {
      return notes.subspan(id_begin, header.n_descsz);
    }
    notes = notes.subspan(std::min(align_up(id_end, alignment), notes.size()));
  }
  return {};
}

struct BuildIdSearch {
  ElfW(Addr) base;
  std::string hex;
};

int visit_object(dl_phdr_info* object, std::size_t, void* data) {
  auto& search = *static_cast<BuildIdSearch*>(data);
  if (object->dlpi_addr != search.base) return 0;
  for (const auto& segment : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
    if (segment.p_type != PT_NOTE) continue;
    const auto* notes = reinterpret_cast<const unsigned char*>(search.base + segment.p_vaddr);
    const auto id = find_build_id({notes, segment.p_memsz}, segment.p_align == 8 ? 8 : 4);
    if (!id.empty()) search.hex = fmt::format("{:02x}", fmt::join(id, ""));
  }
  return 1;
}

struct ImageSearch {
  ElfW(Addr) base;
  std::span<const std::byte> image;
};

int visit_image(dl_phdr_info* object, std::size_t, void* data) {
  auto& search = *static_cast<ImageSearch*>(data);
  if (object->dlpi_addr != search.base) return 0;
  std::size_t bytes = 0;
  for (const auto& segment : std::span(object->dlpi_phdr, object->dlpi_phnum))
    if (segment.p_type == PT_LOAD) bytes = std::max(bytes, segment.p_vaddr + segment.p_memsz);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives the address as a number
  search.image = {reinterpret_cast<const std::byte*>(search.base), bytes};
  return 1;
}

// The tables with which the loader finds the functions of other libraries that a library calls.
struct Imports {
  std::span<const ElfW(Rela)> slots;  // one per function: where its address is, and its symbol
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  bool is_read_only = false;
};

// glibc has added the library's base to the addresses in its dynamic section; other loaders leave
// them as they are in the file.
template <class Entry>
const Entry* at_address(const link_map& map, ElfW(Addr) address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the file holds addresses as numbers
  return reinterpret_cast<const Entry*>(address < map.l_addr ? map.l_addr + address : address);
}

Imports imports_of(const link_map& map) {
  Imports imports;
  const ElfW(Rela)* slots = nullptr;
  std::size_t slot_bytes = 0;
  for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_JMPREL) slots = at_address<ElfW(Rela)>(map, entry->d_un.d_ptr);
    if (entry->d_tag == DT_PLTRELSZ) slot_bytes = entry->d_un.d_val;
    if (entry->d_tag == DT_SYMTAB) imports.symbols = at_address<ElfW(Sym)>(map, entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) imports.names = at_address<char>(map, entry->d_un.d_ptr);
    if (entry->d_tag == DT_FLAGS) imports.is_read_only |= (entry->d_un.d_val & DF_BIND_NOW) != 0;
    if (entry->d_tag == DT_FLAGS_1) imports.is_read_only |= (entry->d_un.d_val & DF_1_NOW) != 0;
  }
  imports.slots = {slots, slots == nullptr ? 0 : slot_bytes / sizeof *slots};
  return imports;
}

}  // namespace

DynamicLibrary::DynamicLibrary(void* handle) : handle_(handle), path_(map_of(handle).l_name) {}

void DynamicLibrary::Closer::operator()(void* handle) const noexcept {
  const std::lock_guard lock(loader);
  dlclose(handle);
}

DynamicLibrary DynamicLibrary::open(const std::string& name) {
  const std::lock_guard lock(loader);
  void* handle = dlopen(name.c_str(), kOpenFlags);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw std::runtime_error(reason == nullptr ? name + ": could not be opened" : reason);
  }
  return DynamicLibrary(handle);
}

DynamicLibrary DynamicLibrary::open_copy(const std::string& path) {
  const int copy = memfd_create("lazyrope", MFD_CLOEXEC);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ssize_t copied = -1;
  while (copy >= 0 && file >= 0 && (copied = sendfile(copy, file, nullptr, kCopyBytes)) > 0) {
  }
  const int reason = errno;
  ::close(file);
  if (copied != 0) {
    ::close(copy);
    throw std::runtime_error(fmt::format("{}: {}", path, std::strerror(reason)));
  }
  // The loader takes files of one name for one library, and a child may copy a second time. The
  // file stays open under this name.
  return open(fmt::format("/proc/{}/fd/{}", ::getpid(), copy));
}

std::optional<DynamicLibrary> DynamicLibrary::already_loaded(const std::string& soname) {
  const std::lock_guard lock(loader);
  void* handle = dlopen(soname.c_str(), kOpenFlags | RTLD_NOLOAD);
  if (handle == nullptr) return std::nullopt;
  return DynamicLibrary(handle);
}

void* DynamicLibrary::find(const char* symbol) const noexcept {
  return dlsym(handle_.get(), symbol);
}

bool DynamicLibrary::redirect(std::string_view symbol, void* replacement) const {
  const link_map& map = map_of(handle_.get());
  const Imports imports = imports_of(map);
  if (imports.is_read_only) return false;
  bool has_calls = false;
  for (const ElfW(Rela) & slot : imports.slots) {
    if (imports.names + imports.symbols[ELF64_R_SYM(slot.r_info)].st_name != symbol) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the file holds addresses as numbers
    auto& address = *reinterpret_cast<void**>(map.l_addr + slot.r_offset);
    std::atomic_ref(address).store(replacement);  // another thread may be calling
    has_calls = true;
  }
  return has_calls;
}

std::span<const std::byte> DynamicLibrary::image() const {
  ImageSearch search{map_of(handle_.get()).l_addr, {}};
  dl_iterate_phdr(visit_image, &search);
  return search.image;
}

std::string DynamicLibrary::build_id() const {
  BuildIdSearch search{map_of(handle_.get()).l_addr, ""};
  dl_iterate_phdr(visit_object, &search);
  return search.hex;
}

}  // namespace lazyrope
