# Writes the C++ source OUTPUT, which contains the test files FILES. The unnamed namespace of each file is inside one of its
# own, because test files use the same names. Lines keep their numbers, and compilers name the original files.
set(text "")
foreach(file IN LISTS FILES)
  file(READ ${file} content)
  get_filename_component(name ${file} NAME_WE)
  string(REPLACE "\nnamespace {\n" "\nnamespace of_${name} { namespace {\n" content "${content}")
  string(REPLACE "\n}  // namespace\n" "\n}}  // namespace\n" content "${content}")
  string(APPEND text "#line 1 \"${file}\"\n${content}\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
