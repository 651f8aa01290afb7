# Tests of kernels on the host with instrumented kernels (tests/cuda/host_compiler.h):
#
#   NAME_races      the program NAME; kernels with the detector of races
#   NAME_sanitized  the same sources, linked with the address sanitizer, which so
#                   guards what they allocate; kernels with both sanitizers
#
# Those that take long have the label "full".

function(automap_host_kernel_test name kind program full)
  set(environment AUTOMAP_HOST_KERNELS=${kind} ASAN_OPTIONS=detect_leaks=0)
  set(labels cpu unit)
  if(name MATCHES "^test_cuda_")
    list(APPEND environment ${AUTOMAP_STAND_IN_ENVIRONMENT})
    list(APPEND labels cuda)
  endif()
  if(full)
    list(APPEND labels full)
  endif()
  string(REGEX MATCH "races|sanitize" suffix ${kind})
  string(REPLACE "sanitize" "sanitized" suffix ${suffix})
  add_test(NAME ${name}_${suffix} COMMAND ${program} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name}_${suffix} PROPERTIES LABELS "${labels}" SKIP_RETURN_CODE 77 TIMEOUT 900
    ENVIRONMENT "${environment}")
endfunction()

foreach(source ${UNIT_TESTS})
  get_filename_component(name ${source} NAME_WE)
  if(NOT name MATCHES "^test_(generated_|cuda_(dqn|comm|kernels|rows|runner|split|dot|convolution)$)" OR
     name MATCHES "_(nvrtc|source)$")
    continue()
  endif()
  add_executable(${name}_sanitized ${source})
  target_link_libraries(${name}_sanitized PRIVATE automap_static PkgConfig::CMOCKA)
  target_link_options(${name}_sanitized PRIVATE -fsanitize=address)
  target_compile_definitions(${name}_sanitized PRIVATE SOURCE_DIR="${AUTOMAP_TEST_DATA}")
  add_dependencies(${name}_sanitized automap_cuda_texts)
  add_dependencies(${name} ${name}_sanitized)
  string(REGEX MATCH "_(models|runner|split|dqn)$" long_sanitized ${name})
  # Kernels without barriers have few ways to race.
  string(REGEX MATCH "_(models|runner|split|operators|products|windows|dot|convolution|kernels)$" long_races ${name})
  automap_host_kernel_test(${name} sanitize ${name}_sanitized "${long_sanitized}")
  automap_host_kernel_test(${name} races ${name} "${long_races}")
endforeach()
