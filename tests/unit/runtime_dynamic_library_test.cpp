#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "runtime/base/dynamic_library.h"

namespace lazyrope {
namespace {

// Reads the build-id from the file, not from memory. The build-id follows the ELF note header {name
// size 4, id size 20, type 3} "GNU".
std::string build_id_in_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(1 << 20, '\0');  // the notes are near the beginning
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const std::string header("\4\0\0\0\24\0\0\0\3\0\0\0GNU\0", 16);
  const auto at = bytes.find(header);
  if (at == std::string::npos) return "not found";
  std::string hex;
  for (const char byte : bytes.substr(at + header.size(), 20)) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(byte) / 16];
    hex += kDigits[static_cast<unsigned char>(byte) % 16];
  }
  return hex;
}

TEST(DynamicLibrary, OpensBySonameAndFindsSymbols) {
  const DynamicLibrary library = DynamicLibrary::open("libm.so.6");
  const auto cosine = reinterpret_cast<double (*)(double)>(library.find("cos"));
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0.0), 1.0);
  EXPECT_EQ(library.find("no_such_function"), nullptr);
}

TEST(DynamicLibrary, PathIsThatOfTheLoadedFile) {
  const std::filesystem::path path = DynamicLibrary::open("libm.so.6").path();
  EXPECT_TRUE(path.is_absolute()) << path;
  EXPECT_EQ(path.filename(), "libm.so.6");
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_EQ(DynamicLibrary::open(path.string()).path(), path);
}

TEST(DynamicLibrary, FailureCarriesTheLoadersReason) {
  try {
    DynamicLibrary::open("/no/such/libnvrtc.so.13");
    FAIL() << "an absent library was opened";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()),
              "/no/such/libnvrtc.so.13: cannot open shared object file: No such file or directory");
  }
}

TEST(DynamicLibrary, AlreadyLoadedFindsLoadedLibrariesAndLoadsNone) {
  constexpr const char* kPartOfGlibc = "libanl.so.1";  // installed, but not linked by this test
  EXPECT_FALSE(DynamicLibrary::already_loaded(kPartOfGlibc).has_value());
  EXPECT_FALSE(DynamicLibrary::already_loaded(kPartOfGlibc).has_value());
  const DynamicLibrary opened = DynamicLibrary::open(kPartOfGlibc);
  const auto found = DynamicLibrary::already_loaded(kPartOfGlibc);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path(), opened.path());
}

TEST(DynamicLibrary, CodeStaysUsableAfterTheHandleIsClosed) {
  using Version = int (*)(int*, int*);
  Version version = nullptr;
  {
    const auto library = DynamicLibrary::open(LAZYROPE_TEST_NVRTC_DIR "/libnvrtc.so.13");
    version = reinterpret_cast<Version>(library.find("nvrtcVersion"));
    ASSERT_NE(version, nullptr);
  }
  int major = 0;
  int minor = 0;
  EXPECT_EQ(version(&major, &minor), 0);
  EXPECT_EQ(major, 13);
}

TEST(DynamicLibrary, BuildIdIsTheOneInTheFile) {
  for (const char* name : {LAZYROPE_TEST_NVRTC_DIR "/libnvrtc.so.13",
                           LAZYROPE_TEST_NVRTC_DIR "/libnvrtc-builtins.so.13.0"}) {
    const auto library = DynamicLibrary::open(name);
    EXPECT_EQ(library.build_id().size(), 40u);
    EXPECT_EQ(library.build_id(), build_id_in_file(library.path())) << name;
  }
}

TEST(DynamicLibrary, TwoLibrariesHaveDifferentBuildIds) {
  EXPECT_NE(DynamicLibrary::open("libm.so.6").build_id(),
            DynamicLibrary::open("libc.so.6").build_id());
}

TEST(DynamicLibrary, RedirectsNoFunctionThatTheLibraryDoesNotCall) {
  const DynamicLibrary library = DynamicLibrary::open("libm.so.6");
  EXPECT_FALSE(library.redirect("no_such_function", nullptr));
}

}  // namespace
}  // namespace lazyrope
