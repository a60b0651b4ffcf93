# Compiler settings that every target of lazyrope shares.
add_library(lazyrope_settings INTERFACE)
target_include_directories(lazyrope_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(lazyrope_settings INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wpedantic)
if(LAZYROPE_WERROR)
  target_compile_options(lazyrope_settings INTERFACE -Werror)
endif()
if(LAZYROPE_SANITIZE)
  target_compile_options(lazyrope_settings INTERFACE -fsanitize=address,undefined
                                                     -fno-sanitize-recover=all)
  target_link_options(lazyrope_settings INTERFACE -fsanitize=address,undefined)
endif()

# lazyrope_room(NAME SOURCES...): one room of the library as a static target named lazyrope_NAME.
function(lazyrope_room name)
  add_library(lazyrope_${name} STATIC ${ARGN})
  # What only building needs says so: find_package(lazyrope) then does not ask for it.
  target_link_libraries(lazyrope_${name} PRIVATE $<BUILD_INTERFACE:lazyrope_settings>)
  set_target_properties(lazyrope_${name} PROPERTIES EXPORT_NAME ${name})
endfunction()
