# lazyrope_copy_headers(FROM FOLDER PATTERN) copies the files of FROM that match PATTERN, a path below it, to the folder
# <build>/FOLDER. It leaves equal files as they are, so that nothing that includes them is compiled again.
function(lazyrope_copy_headers from folder pattern)
  file(GLOB_RECURSE headers RELATIVE ${from} ${from}/${pattern})
  foreach(header IN LISTS headers)
    get_filename_component(parent ${PROJECT_BINARY_DIR}/${folder}/${header} DIRECTORY)
    file(MAKE_DIRECTORY ${parent})
    file(COPY_FILE ${from}/${header} ${PROJECT_BINARY_DIR}/${folder}/${header} ONLY_IF_DIFFERENT)
  endforeach()
endfunction()
