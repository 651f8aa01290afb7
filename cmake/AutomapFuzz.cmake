# Fuzzers: tests/fuzz/fuzz_NAME.c, one per reader.
#
# With AUTOMAP_FUZZ=ON (clang, a build folder with sanitizers) they are libFuzzer
# programs and the whole library is instrumented. Without it they are linked with
# run_inputs.c and run over seeds and findings as the tests fuzz_NAME.

file(GLOB FUZZERS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
add_library(automap_fuzz OBJECT ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz.c)
target_link_libraries(automap_fuzz PRIVATE automap_flags)
target_link_libraries(automap_fuzz PUBLIC automap_objects)
if(AUTOMAP_FUZZ)
  target_compile_options(automap_fuzz PUBLIC -fsanitize=fuzzer-no-link)
endif()
set(seeds ${CMAKE_BINARY_DIR}/fuzz/seeds)
if(NOT AUTOMAP_FUZZ)
  add_test(NAME fuzz_seeds COMMAND bash ${CMAKE_SOURCE_DIR}/tests/fuzz/seeds.sh $<TARGET_FILE:automap> ${seeds}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(fuzz_seeds PROPERTIES LABELS "cpu;fuzz" FIXTURES_SETUP fuzz_seeds TIMEOUT 120)
endif()
add_custom_target(fuzzers)
foreach(source ${FUZZERS})
  get_filename_component(name ${source} NAME_WE)
  string(REPLACE "fuzz_" "" reader ${name})
  add_executable(${name} ${source})
  add_dependencies(fuzzers ${name})
  target_link_libraries(${name} PRIVATE automap_fuzz automap_static)
  target_compile_definitions(${name} PRIVATE SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  if(AUTOMAP_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    continue()
  endif()
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fuzz/run_inputs.c)
  add_test(NAME ${name} COMMAND ${name} ${seeds}/${reader} ${CMAKE_SOURCE_DIR}/tests/fuzz/found/${reader}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "cpu;fuzz" FIXTURES_REQUIRED fuzz_seeds TIMEOUT 300)
endforeach()
