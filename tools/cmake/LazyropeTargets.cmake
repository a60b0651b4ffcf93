# This target has the compiler settings of every target of lazyrope.
add_library(lazyrope_settings INTERFACE)
target_include_directories(lazyrope_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(lazyrope_settings INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wpedantic)
if(LAZYROPE_WERROR)
  target_compile_options(lazyrope_settings INTERFACE -Werror)
endif()
if(LAZYROPE_SANITIZE)
  # AddressSanitizer also finds null pointers, and pointers outside of objects, if the program reads or writes through
  # them. The check of vptr finds little. These checks take long to compile, and `make soak` has all but vptr.
  target_compile_options(
    lazyrope_settings INTERFACE -fsanitize=${LAZYROPE_SANITIZE} -fno-sanitize=${LAZYROPE_NOT_SANITIZED}
                                -fno-sanitize-recover=all)
  target_link_options(lazyrope_settings INTERFACE -fsanitize=${LAZYROPE_SANITIZE})
endif()

# lazyrope_layer(NAME SOURCES...) adds one layer of the library, a top-level folder, as the static target lazyrope_NAME.
function(lazyrope_layer name)
  add_library(lazyrope_${name} STATIC ${ARGN})
  # BUILD_INTERFACE keeps the settings out of the installed package, so find_package(lazyrope) needs no such target.
  target_link_libraries(lazyrope_${name} PRIVATE $<BUILD_INTERFACE:lazyrope_settings>)
  set_target_properties(lazyrope_${name} PROPERTIES EXPORT_NAME ${name})
endfunction()
