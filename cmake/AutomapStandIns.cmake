# The stand-in libraries of CUDA, with which tests run where there is no GPU: see
# tests/cuda/stand_in/stand_in.h. They go to tests/stand_in/ of the build folder,
# under the names of the real ones, which LD_LIBRARY_PATH puts them before. The
# sources of each are the files of tests/cuda/stand_in/ that begin with its name.

set(STAND_INS ${CMAKE_BINARY_DIR}/tests/stand_in)
set(STAND_IN_TARGETS)
set(AUTOMAP_STAND_IN_KERNELS ${STAND_INS}/kernels CACHE STRING "Folder in which the stand-in driver keeps kernels for the host")
foreach(library cuda.so.1 nvrtc.so.13 cublasLt.so.13 cudnn.so.9 nccl.so.2)
  string(REGEX MATCH "^[^.]*" part ${library})
  string(TOLOWER ${part} prefix)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda/stand_in/${prefix}*.c)
  if(sources)
    add_library(stand_in_${part} MODULE ${sources})
    set_target_properties(stand_in_${part} PROPERTIES PREFIX lib OUTPUT_NAME ${part}
      LIBRARY_OUTPUT_DIRECTORY ${STAND_INS})
    string(REGEX MATCH "[.].*" suffix ${library})
    set_target_properties(stand_in_${part} PROPERTIES SUFFIX ${suffix})
    target_link_libraries(stand_in_${part} PRIVATE automap_flags Threads::Threads ${CMAKE_DL_LIBS} m)
    # One that does not load is passed over for the real one: it is to fail here.
    if(NOT AUTOMAP_SANITIZE)
      target_link_options(stand_in_${part} PRIVATE -Wl,-z,defs)
    endif()
    target_compile_definitions(stand_in_${part} PRIVATE STAND_IN_SOURCE="${AUTOMAP_TEST_DATA}"
      STAND_IN_FOLDER="${AUTOMAP_STAND_IN_KERNELS}")
    list(APPEND STAND_IN_TARGETS stand_in_${part})
  endif()
endforeach()
# It reduces as the host's collectives do.
target_sources(stand_in_nccl PRIVATE ${CMAKE_SOURCE_DIR}/executor/array/scalar64.c ${CMAKE_SOURCE_DIR}/base/dtype.c
  ${CMAKE_SOURCE_DIR}/base/float_format.c)

set(path ${STAND_INS})
if(DEFINED ENV{LD_LIBRARY_PATH})
  string(APPEND path ":$ENV{LD_LIBRARY_PATH}")
endif()
# The cache of compiled kernels is kept apart from a user's.
set(AUTOMAP_STAND_IN_ENVIRONMENT "LD_LIBRARY_PATH=${path};XDG_CACHE_HOME=${STAND_INS}/cache")

# A test program twice: on the stand-ins, and as <name>_gpu on the real libraries.
function(automap_stand_in_test name)
  add_dependencies(${name} ${STAND_IN_TARGETS})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "cpu;cuda;unit" SKIP_RETURN_CODE 77 TIMEOUT 900
    ENVIRONMENT "${AUTOMAP_STAND_IN_ENVIRONMENT}")
  add_test(NAME ${name}_gpu COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name}_gpu PROPERTIES LABELS "gpu;unit" SKIP_RETURN_CODE 77 TIMEOUT 900)
endfunction()

# automap_stand_in_variant(test_x name VARIABLE=value...): the test on the stand-ins once more, as test_x_<name>.
function(automap_stand_in_variant name variant)
  add_test(NAME ${name}_${variant} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name}_${variant} PROPERTIES LABELS "cpu;cuda;unit" SKIP_RETURN_CODE 77 TIMEOUT 900
    ENVIRONMENT "${AUTOMAP_STAND_IN_ENVIRONMENT};${ARGN}")
endfunction()
