# lazyrope_public_header(HEADER) copies HEADER to <build>/include/lazyrope, and the headers that it includes to their
# paths below that folder. An include inside the library is a path from the root: "runtime/spec/spec.h". The copies say
# "lazyrope/runtime/spec/spec.h", so that the compiler finds no folder of the including program instead.
function(lazyrope_public_header header)
  get_filename_component(name ${header} NAME)
  _lazyrope_copy_header(${header} ${name} copied)
  set(waiting ${copied})
  set(done)
  while(waiting)
    list(POP_FRONT waiting next)
    if(NOT next IN_LIST done)
      list(APPEND done ${next})
      _lazyrope_copy_header(${next} ${next} included)
      list(APPEND waiting ${included})
    endif()
  endwhile()
endfunction()

# Copies HEADER of the source tree to <build>/include/lazyrope/AS, and sets INCLUDED to the list of its includes.
function(_lazyrope_copy_header header as included)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
  file(READ ${PROJECT_SOURCE_DIR}/${header} text)
  string(REGEX MATCHALL "#include \"[^\"]+" found "${text}")
  list(TRANSFORM found REPLACE "#include \"" "")
  string(REPLACE "#include \"" "#include \"lazyrope/" text "${text}")
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/include/lazyrope/${as} CONTENT "${text}" @ONLY)
  set(${included} ${found} PARENT_SCOPE)
endfunction()
