# Tests. Nothing is listed by hand:
#
#   tests/**/test_*.c     one cmocka program each; label "unit", and "gpu"
#                         where the name says cuda, else "cpu". The folders are
#                         those of the source; tests/support/ has common headers.
#   test_cuda_*.c         in a build with CUDA run on the stand-in libraries
#                         (AutomapStandIns.cmake), labels "cpu" and "cuda", and as
#                         <name>_gpu on the real ones, label "gpu"
#   test_*_mpi.c          once with each MPI that is found (AutomapMpiTests.cmake)
#   tests/check_*         scripts that look at the sources and the library
#   tests/e2e/*.sh, *.py  end-to-end scripts, in the source folder, with
#                         AUTOMAP (the program), AUTOMAP_BUILD, AUTOMAP_SOURCE
#                         and AUTOMAP_LIBRARY in the environment
#
# A program of more than four seconds has its time in its first lines, "/* cost: 60 seconds */". It is started early,
# and its label "long" excludes it from ./test.sh --quick. A program with "/* labels: threads */" in its first lines
# also runs under the thread sanitizer.
#
# A script states its needs in its first lines: "# labels: cpu e2e" (default
# "cpu e2e", and "jax e2e" for .py) and "# timeout: 300" (seconds, default 300). Those that take long say
# "# cost: 60" (seconds) and are started first. Exit status 77 means skipped. Python scripts run under
# AUTOMAP_PYTHON with datasets/ importable, those with "# python: torch" under AUTOMAP_TORCH_PYTHON and
# those with "# python: plain", which need no packages, under python3; without that interpreter they are
# shown as skipped.

# automap_find_python(VARIABLE FOLDER DOC): the interpreter of a virtual environment
function(automap_find_python variable folder doc)
  find_program(${variable} python NO_DEFAULT_PATH
    PATHS ${CMAKE_BINARY_DIR}/${folder}/bin ${CMAKE_SOURCE_DIR}/${folder}/bin ${CMAKE_SOURCE_DIR}/build/${folder}/bin
    DOC "${doc}")
endfunction()
automap_find_python(AUTOMAP_PYTHON .venv "Python with jax, numpy, scikit-learn and safetensors, for tests")
automap_find_python(AUTOMAP_TORCH_PYTHON .venv-torch "Python with torch and numpy, for tests")
find_program(AUTOMAP_PLAIN_PYTHON python3 DOC "Python without packages, for checks of the sources")

set(AUTOMAP_TEST_PATIENCE 1 CACHE STRING "Factor of the time limits, of which the long forms of tests need more")

# Programs that are carried elsewhere find their files by another path.
set(AUTOMAP_TEST_DATA ${CMAKE_SOURCE_DIR} CACHE STRING "Folder in which test programs find datasets/ and tests/")

if(AUTOMAP_HAVE_CUDA)
  include(cmake/AutomapStandIns.cmake)
endif()
include(cmake/AutomapMpiTests.cmake)
file(GLOB_RECURSE UNIT_TESTS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/test_*.c)
# Sanitized builds leave out the programs that would say no more than that they are skipped.
if(AUTOMAP_SANITIZE AND NOT AUTOMAP_HAVE_CUDA)
  list(FILTER UNIT_TESTS EXCLUDE REGEX "/test_(cuda|generated|embedded)_[^/]*$")
endif()
add_custom_target(unit_tests) # builds every program of the label "unit"
foreach(source ${UNIT_TESTS})
  get_filename_component(name ${source} NAME_WE)
  if(name MATCHES "_mpi$")
    automap_mpi_test(${name} ${source})
    add_dependencies(unit_tests ${name})
    continue()
  endif()
  add_executable(${name} ${source})
  add_dependencies(unit_tests ${name})
  target_link_libraries(${name} PRIVATE automap_static PkgConfig::CMOCKA)
  target_compile_definitions(${name} PRIVATE SOURCE_DIR="${AUTOMAP_TEST_DATA}")
  # The library takes the time of a test; sanitized code compiles in less than half of the time without optimisation.
  if(AUTOMAP_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  if(AUTOMAP_HAVE_CUDA)
    add_dependencies(${name} automap_cuda_texts)
  endif()
  if(AUTOMAP_HAVE_CUDA AND name MATCHES "^test_cuda_")
    automap_stand_in_test(${name})
    continue()
  endif()
  math(EXPR timeout "900 * ${AUTOMAP_TEST_PATIENCE}")
  set(kind cpu)
  if(name MATCHES "cuda")
    set(kind gpu)
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${kind};unit" SKIP_RETURN_CODE 77 TIMEOUT ${timeout})
  file(STRINGS ${source} cost LIMIT_INPUT 2000 LIMIT_COUNT 1 REGEX "^/\\* cost: [0-9]+ seconds \\*/$")
  if(cost MATCHES "([0-9]+)")
    set_tests_properties(${name} PROPERTIES LABELS "${kind};unit;long" COST ${CMAKE_MATCH_1})
  endif()
  file(STRINGS ${source} labels LIMIT_INPUT 2000 LIMIT_COUNT 1 REGEX "^/\\* labels: threads \\*/$")
  if(labels)
    set_property(TEST ${name} APPEND PROPERTY LABELS threads)
  endif()
  if(AUTOMAP_HAVE_CUDA AND name MATCHES "^test_generated_")
    # NVRTC's results are kept from run to run, apart from a user's.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/tests/nvrtc)
  endif()
endforeach()

# The real cuDNN, which loads a driver to describe kernels: the toolkit's, in which no function works.
if(AUTOMAP_HAVE_CUDA AND EXISTS ${CUDAToolkit_LIBRARY_DIR}/stubs/libcuda.so)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/tests/driver)
  file(CREATE_LINK ${CUDAToolkit_LIBRARY_DIR}/stubs/libcuda.so ${CMAKE_BINARY_DIR}/tests/driver/libcuda.so.1 SYMBOLIC)
  set_tests_properties(test_cudnn_engines PROPERTIES ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/tests/driver)
endif()

# Libraries that refuse every shape: reported, and no failure.
if(AUTOMAP_HAVE_CUDA)
  automap_stand_in_variant(test_cuda_blas refused STAND_IN_FAIL=cublasLtMatmulAlgoGetHeuristic=15)
  automap_stand_in_variant(test_cuda_dnn refused STAND_IN_FAIL=cudnnGetConvolutionForwardAlgorithm_v7=3000)
endif()

# NCCL before 2.23, which launches in the caller's thread; and ranks that share a card.
if(AUTOMAP_HAVE_CUDA)
  automap_stand_in_variant(test_cuda_nccl caller STAND_IN_NCCL_LAUNCH=caller)
  automap_stand_in_variant(test_cuda_nccl one_card STAND_IN_DEVICES=1)
endif()

# Kernels on the host once more, instrumented (tests/cuda/host_compiler.h): <name>_races for races between
# threads, <name>_sanitized in a program with the address sanitizer, which shares its library with the compiler's.
if(AUTOMAP_HAVE_CUDA AND NOT AUTOMAP_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  include(cmake/AutomapHostKernels.cmake)
endif()

# Its own functions come before those that allocate; libraries must be able to see them.
set_target_properties(test_allocation_failure PROPERTIES C_VISIBILITY_PRESET default)
foreach(name malloc calloc realloc free strdup realpath arena_alloc arena_grow arena_copy_bytes arena_copy_string arena_format
    arena_vformat inflateInit2_ ZSTD_createDCtx)
  target_link_options(test_allocation_failure PRIVATE -Wl,--wrap=${name})
endforeach()

# What it times would take longer beside another test.
set_tests_properties(test_probe_collectives PROPERTIES RUN_SERIAL TRUE)

# The program with an arena that gives every request a block of its own, and the module that makes allocations fail.
if(TARGET automap AND NOT AUTOMAP_SANITIZE)
  add_library(failing_allocator MODULE ${CMAKE_SOURCE_DIR}/tests/lowmem/failing_allocator.c)
  set_target_properties(failing_allocator PROPERTIES C_VISIBILITY_PRESET default)
  target_compile_options(failing_allocator PRIVATE -Wall -Wextra -Werror)
  # The module that replaces the clock of the program by its processor time.
  add_library(processor_clock MODULE ${CMAKE_SOURCE_DIR}/tests/clock/processor_clock.c)
  set_target_properties(processor_clock PROPERTIES C_VISIBILITY_PRESET default)
  target_compile_options(processor_clock PRIVATE -Wall -Wextra -Werror)
  add_executable(automap_tight $<TARGET_OBJECTS:automap_cli> ${CMAKE_SOURCE_DIR}/base/arena.c)
  target_compile_definitions(automap_tight PRIVATE ARENA_FIRST_BLOCK=0)
  target_link_libraries(automap_tight PRIVATE automap_static)
  # The leak checker needs no instrumentation, only its allocator; it does not look into mapped blocks.
  set(CMAKE_REQUIRED_LINK_OPTIONS -fsanitize=leak)
  check_c_source_compiles("int main(void) { return 0; }" AUTOMAP_LEAK_CHECKER)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  if(AUTOMAP_LEAK_CHECKER)
    add_executable(automap_leaks $<TARGET_OBJECTS:automap_cli> ${CMAKE_SOURCE_DIR}/base/arena.c)
    target_compile_definitions(automap_leaks PRIVATE MAPS_BLOCKS=0)
    target_link_libraries(automap_leaks PRIVATE automap_static)
    target_link_options(automap_leaks PRIVATE -fsanitize=leak)
  endif()
endif()

# The program whose kernels have the rounding errors of other libraries (bench/gpu_tolerances.py).
if(TARGET automap)
  add_executable(automap_perturbed $<TARGET_OBJECTS:automap_cli> ${CMAKE_SOURCE_DIR}/tests/perturb/perturb.c)
  target_link_libraries(automap_perturbed PRIVATE automap_static)
  target_link_options(automap_perturbed PRIVATE -Wl,--wrap=kernel_prepare)
endif()

# It perturbs the products of a learner.
target_link_options(test_dqn_perturbed PRIVATE -Wl,--wrap=dqn_product)

# It counts what the steps of a run allocate.
foreach(name malloc calloc realloc aligned_alloc)
  target_link_options(test_run_memory PRIVATE -Wl,--wrap=${name})
endforeach()

# Reads "# KEY: value" from the first lines of a script.
function(read_script_header script key default output)
  file(STRINGS ${script} lines LIMIT_COUNT 12 REGEX "^# ${key}: ")
  if(lines)
    list(GET lines 0 line)
    string(REGEX REPLACE "^# ${key}: *" "" line "${line}")
    string(STRIP "${line}" default)
  endif()
  string(REPLACE " " ";" default "${default}")
  set(${output} "${default}" PARENT_SCOPE)
endfunction()

function(automap_script_test script default_labels)
  get_filename_component(name ${script} NAME_WE)
  get_filename_component(extension ${script} EXT)
  read_script_header(${script} labels "${default_labels}" labels)
  read_script_header(${script} timeout 300 timeout)
  math(EXPR timeout "${timeout} * ${AUTOMAP_TEST_PATIENCE}")
  read_script_header(${script} cost 5 cost)
  read_script_header(${script} python jax packages)
  set(python ${AUTOMAP_PYTHON})
  if(packages STREQUAL "torch")
    set(python ${AUTOMAP_TORCH_PYTHON})
  elseif(packages STREQUAL "plain")
    set(python ${AUTOMAP_PLAIN_PYTHON})
  endif()
  if(NOT extension STREQUAL ".py")
    set(command bash ${script})
  elseif(python)
    set(command ${python} ${script})
  else()
    set(command sh -c "echo skipped: CMake found no Python with ${packages} && exit 77")
  endif()
  add_test(NAME ${name} COMMAND ${command} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set(environment AUTOMAP_BUILD=${CMAKE_BINARY_DIR} AUTOMAP_SOURCE=${CMAKE_SOURCE_DIR}
    AUTOMAP_LIBRARY=$<TARGET_FILE:automap_shared> PYTHONPATH=${CMAKE_SOURCE_DIR}/datasets
    PYTHONDONTWRITEBYTECODE=1)
  if(TARGET automap)
    list(APPEND environment AUTOMAP=$<TARGET_FILE:automap>)
  endif()
  if(AUTOMAP_PYTHON)
    list(APPEND environment AUTOMAP_PYTHON=${AUTOMAP_PYTHON})
  endif()
  if(AUTOMAP_SANITIZE)
    list(APPEND environment AUTOMAP_SANITIZE=${AUTOMAP_SANITIZE})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" SKIP_RETURN_CODE 77 TIMEOUT ${timeout}
    COST ${cost} ENVIRONMENT "${environment}")
endfunction()

file(GLOB CHECK_SCRIPTS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/check_*)
foreach(script ${CHECK_SCRIPTS})
  automap_script_test(${script} "cpu check")
endforeach()
file(GLOB E2E_SCRIPTS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/e2e/*.sh ${CMAKE_SOURCE_DIR}/tests/e2e/*.py)
foreach(script ${E2E_SCRIPTS})
  if(script MATCHES "[.]py$")
    automap_script_test(${script} "jax e2e")
  else()
    automap_script_test(${script} "cpu e2e")
  endif()
endforeach()
