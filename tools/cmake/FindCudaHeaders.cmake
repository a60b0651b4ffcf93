# Finds cuda.h, nvrtc.h and dlpack.h. The first two are needed for types only: lazyrope opens both libraries at run
# time. The headers come from the PyPI packages nvidia-cuda-runtime, nvidia-cuda-nvrtc and apache-tvm-ffi of the Python
# that builds lazyrope, or from CudaHeaders_ROOT. A CUDA toolkit is not needed.
find_package(Python COMPONENTS Interpreter QUIET)
if(Python_EXECUTABLE)
  execute_process(
    COMMAND
      ${Python_EXECUTABLE} -c
      "import importlib.util as u, os
roots = []
for name, inner in (('nvidia', 'cu13/include'), ('tvm_ffi', 'include')):
    spec = u.find_spec(name)
    for root in (spec.submodule_search_locations if spec else []):
        roots.append(os.path.join(root, inner))
print(';'.join(roots))"
    OUTPUT_VARIABLE _python_include_dirs
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()

find_path(CudaHeaders_CUDA_DIR cuda.h HINTS ${_python_include_dirs} PATHS /usr/local/cuda/include)
find_path(CudaHeaders_NVRTC_DIR nvrtc.h HINTS ${_python_include_dirs} PATHS /usr/local/cuda/include)
find_path(CudaHeaders_DLPACK_DIR dlpack/dlpack.h HINTS ${_python_include_dirs})

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  CudaHeaders REQUIRED_VARS CudaHeaders_CUDA_DIR CudaHeaders_NVRTC_DIR CudaHeaders_DLPACK_DIR)
