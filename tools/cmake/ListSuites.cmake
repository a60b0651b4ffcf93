# Writes the file OUTPUT, which adds a test of ctest for each test suite of the GoogleTest program EXECUTABLE. They have the
# label LABEL and the environment ENVIRONMENT. A suite is one process: to start a sanitized program takes longer than most
# tests.
execute_process(COMMAND ${EXECUTABLE} --gtest_list_tests OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\n[^ \n]+\\.(  # [^\n]*)?\n  " lines "${listed}")
if(NOT lines)
  message(FATAL_ERROR "${EXECUTABLE} lists no test suite")
endif()
set(text "")
foreach(line IN LISTS lines)
  string(REGEX MATCH "[^ \n]+\\." suite "${line}")
  string(REGEX REPLACE "\\.$" "" name "${suite}")
  string(APPEND text "add_test([==[${name}]==] [==[${EXECUTABLE}]==] [==[--gtest_filter=${suite}*]==])\n"
                     "set_tests_properties([==[${name}]==] PROPERTIES LABELS [==[${LABEL}]==] ENVIRONMENT [==[${ENVIRONMENT}]==])\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
