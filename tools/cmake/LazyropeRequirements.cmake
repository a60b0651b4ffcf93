# Looks for everything that the build needs. If something is missing, the configuration fails once, with a list of all
# that is missing and the names of the packages that have it.
include(LazyropeCopiedHeaders)

set(missing_lines "")
set(missing_debian "")
set(missing_fedora "")
set(missing_pip "")

# lazyrope_need(FOUND NAME PURPOSE [DEBIAN package] [FEDORA package] [PIP package]...) adds NAME to the missing things
# unless FOUND is true.
macro(lazyrope_need found name purpose)
  if(NOT ${found})
    cmake_parse_arguments(need "" "DEBIAN;FEDORA" "PIP" ${ARGN})
    set(sources "")
    if(need_DEBIAN)
      list(APPEND sources "Debian, Ubuntu: ${need_DEBIAN}" "Fedora: ${need_FEDORA}")
      list(APPEND missing_debian ${need_DEBIAN})
      list(APPEND missing_fedora ${need_FEDORA})
    endif()
    if(need_PIP)
      list(JOIN need_PIP " " need_packages)
      list(APPEND sources "PyPI: ${need_packages}")
      list(APPEND missing_pip ${need_PIP})
    endif()
    list(JOIN sources "; " sources)
    string(APPEND missing_lines "  ${name}, for ${purpose}\n      ${sources}\n")
  endif()
endmacro()

# Adds COMMAND with PACKAGES to the advice, if there are any.
function(_lazyrope_add_advice command)
  if(ARGN)
    list(JOIN ARGN " " packages)
    set(advice "${advice}  ${command} ${packages}\n" PARENT_SCOPE)
  endif()
endfunction()

# Fails with the list of all that lazyrope_need() did not find.
macro(lazyrope_fail_if_missing)
  if(missing_lines)
    set(advice "")
    _lazyrope_add_advice("apt-get install" ${missing_debian})
    _lazyrope_add_advice("dnf install" ${missing_fedora})
    _lazyrope_add_advice("pip install" ${missing_pip})
    message(FATAL_ERROR "lazyrope cannot be built, because these are missing:\n${missing_lines}To install them:\n${advice}")
  endif()
endmacro()

# Looks for a package, unless there is no compiler: CMake cannot look for most packages without one.
macro(_lazyrope_look_for)
  if(missing_compiler)
    set(${ARGV0}_FOUND FALSE)
  else()
    find_package(${ARGV} QUIET)
  endif()
endmacro()

# CMake's own message for a missing compiler names no package, and it ends the configuration.
set(missing_compiler FALSE)
if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})
  find_program(LAZYROPE_CXX_COMPILER NAMES c++ g++ clang++)
  mark_as_advanced(LAZYROPE_CXX_COMPILER)
  if(NOT LAZYROPE_CXX_COMPILER)
    set(missing_compiler TRUE)
  endif()
  lazyrope_need(LAZYROPE_CXX_COMPILER "a C++20 compiler" "everything (without one, CMake cannot look for the others)"
                DEBIAN g++ FEDORA gcc-c++)
endif()
if(NOT missing_compiler)
  enable_language(CXX)
  find_package(Threads REQUIRED)
endif()

_lazyrope_look_for(fmt)
lazyrope_need(fmt_FOUND "fmt" "texts" DEBIAN libfmt-dev FEDORA fmt-devel)
_lazyrope_look_for(nlohmann_json)
lazyrope_need(nlohmann_json_FOUND "nlohmann/json" "models' configs and the cache's entries"
              DEBIAN nlohmann-json3-dev FEDORA json-devel)
if(LAZYROPE_SIGNATURES)
  _lazyrope_look_for(Sodium)
  lazyrope_need(
    Sodium_FOUND "libsodium.a"
    "signatures of packs (-DLAZYROPE_SIGNATURES=OFF builds without them; Sodium_ROOT names another folder)"
    DEBIAN libsodium-dev FEDORA libsodium-static)
endif()
if(LAZYROPE_BUILD_TOOLS)
  _lazyrope_look_for(CLI11)
  lazyrope_need(CLI11_FOUND "CLI11" "the command (-DLAZYROPE_BUILD_TOOLS=OFF builds without it)"
                DEBIAN libcli11-dev FEDORA cli11-devel)
endif()
if(LAZYROPE_BUILD_TESTS)
  _lazyrope_look_for(GTest)
  lazyrope_need(GTest_FOUND "GoogleTest" "the C++ tests (-DLAZYROPE_BUILD_TESTS=OFF builds without them)"
                DEBIAN libgtest-dev FEDORA gtest-devel)
endif()
if(LAZYROPE_EMULATOR)
  # The emulator runs a kernel with one fiber per thread.
  set(Boost_USE_STATIC_LIBS ON)
  _lazyrope_look_for(Boost COMPONENTS context)
  if(missing_compiler)
    set(Boost_CONTEXT_FOUND FALSE)
  endif()
  lazyrope_need(Boost_CONTEXT_FOUND "libboost_context.a"
                "the emulator, which runs kernels without a GPU (-DLAZYROPE_EMULATOR=OFF builds without it)"
                DEBIAN libboost-context-dev FEDORA boost-static)
else()
  message(STATUS "This build leaves out the emulator: LAZYROPE_EMULATOR is OFF")
endif()
_lazyrope_look_for(CudaHeaders)
lazyrope_need(CudaHeaders_FOUND "cuda.h, nvrtc.h and dlpack.h"
              "types of the driver, the compiler and tensors (CudaHeaders_ROOT names another folder)"
              PIP "'nvidia-cuda-runtime==13.0.*'" "'nvidia-cuda-nvrtc==13.0.*'" apache-tvm-ffi)
if(LAZYROPE_BUILD_PYTHON)
  _lazyrope_look_for(Python COMPONENTS Interpreter Development.Module)
  lazyrope_need(Python_FOUND "Python.h" "the Python extension module" DEBIAN python3-dev FEDORA python3-devel)
  if(Python_FOUND AND NOT pybind11_DIR)
    execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir OUTPUT_VARIABLE cmake_folder_of_pybind11
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  _lazyrope_look_for(pybind11 CONFIG HINTS ${cmake_folder_of_pybind11})
  lazyrope_need(pybind11_FOUND "pybind11" "the Python extension module" PIP pybind11)
endif()
lazyrope_fail_if_missing()

# pip installs build requirements into a folder with another name each time. Their headers are copied to the build tree,
# so that files that were compiled with them are not compiled again.
lazyrope_copy_headers(${CudaHeaders_CUDA_DIR} cuda_headers cuda.h)
lazyrope_copy_headers(${CudaHeaders_CUDA_DIR} cuda_headers cuda_occupancy.h) # for a test
lazyrope_copy_headers(${CudaHeaders_NVRTC_DIR} cuda_headers nvrtc.h)
lazyrope_copy_headers(${CudaHeaders_DLPACK_DIR} cuda_headers dlpack/dlpack.h)
add_library(lazyrope_cuda_headers INTERFACE)
target_include_directories(lazyrope_cuda_headers SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/cuda_headers)
if(LAZYROPE_BUILD_PYTHON)
  lazyrope_copy_headers(${pybind11_INCLUDE_DIR} pybind11_headers pybind11/*.h)
  set_target_properties(pybind11::pybind11_headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                                                              ${PROJECT_BINARY_DIR}/pybind11_headers)
endif()
