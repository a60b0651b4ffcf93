# Defines the target lazyrope_fmt. fmt is compiled once if its version allows that, or else in every file that formats,
# which then takes 4 to 5 s longer. The system's shared library is not used, because a machine that installs a wheel may
# lack it.
find_package(fmt REQUIRED)
set(LAZYROPE_FMT_FLAGS -include ${CMAKE_CURRENT_LIST_DIR}/fmt_namespace.h)
get_target_property(fmt_directories fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
if(NOT DEFINED LAZYROPE_FMT_ONCE)
  list(JOIN LAZYROPE_FMT_FLAGS " " flags)
  try_compile(
    LAZYROPE_FMT_ONCE
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/fmt_once.cpp ${CMAKE_CURRENT_LIST_DIR}/fmt_use.cpp
    CMAKE_FLAGS "-DCMAKE_CXX_FLAGS=${flags}" "-DINCLUDE_DIRECTORIES=${fmt_directories}"
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
endif()
if(LAZYROPE_FMT_ONCE)
  add_library(lazyrope_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_once.cpp)
  target_compile_options(lazyrope_fmt PUBLIC $<BUILD_INTERFACE:${LAZYROPE_FMT_FLAGS}>)
  target_include_directories(lazyrope_fmt SYSTEM PUBLIC $<BUILD_INTERFACE:${fmt_directories}>)
else()
  message(STATUS "fmt ${fmt_VERSION} is compiled in every file that formats")
  add_library(lazyrope_fmt INTERFACE)
  target_link_libraries(lazyrope_fmt INTERFACE $<BUILD_INTERFACE:fmt::fmt-header-only>)
endif()
set_target_properties(lazyrope_fmt PROPERTIES EXPORT_NAME fmt)
