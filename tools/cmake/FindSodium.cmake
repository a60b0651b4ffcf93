# Finds libsodium as the static library Sodium::Sodium, so that a wheel needs no shared library at run time. Debian's
# package libsodium-dev has it. Elsewhere, Sodium_ROOT names a folder with include/sodium.h and lib/libsodium.a.
find_path(Sodium_INCLUDE_DIR sodium.h)
find_library(Sodium_LIBRARY libsodium.a)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Sodium
  REQUIRED_VARS Sodium_LIBRARY Sodium_INCLUDE_DIR
  REASON_FAILURE_MESSAGE
    "the static library is needed: apt-get install libsodium-dev, or set Sodium_ROOT to a folder with include/sodium.h and lib/libsodium.a, or configure lazyrope with -DLAZYROPE_SIGNATURES=OFF (it then neither signs packs of kernels nor reads signed ones)"
)
if(Sodium_FOUND AND NOT TARGET Sodium::Sodium)
  # GLOBAL: a project that adds lazyrope as a subdirectory links this library too.
  add_library(Sodium::Sodium STATIC IMPORTED GLOBAL)
  set_target_properties(Sodium::Sodium PROPERTIES IMPORTED_LOCATION ${Sodium_LIBRARY}
                                                  INTERFACE_INCLUDE_DIRECTORIES ${Sodium_INCLUDE_DIR})
endif()
mark_as_advanced(Sodium_LIBRARY Sodium_INCLUDE_DIR)
