# Tests of several processes, with each MPI that is installed: for Open MPI and for
# MPICH the program and the tests test_*_mpi.c are linked once more, with
# executor/processes/mpi_wire.c compiled for that MPI, into tests/openmpi/ and tests/mpich/ of
# the build folder. Everything else is the default build's.

set(AUTOMAP_MPI_VARIANTS)
foreach(row "openmpi|ompi-c" "mpich|mpich")
  string(REPLACE "|" ";" row "${row}")
  list(GET row 0 variant)
  list(GET row 1 package)
  string(TOUPPER ${variant} prefix)
  pkg_check_modules(AUTOMAP_${prefix} QUIET ${package})
  find_program(AUTOMAP_${prefix}_RUN mpirun.${variant} DOC "mpirun of this MPI, for the tests")
  if(AUTOMAP_${prefix}_FOUND AND AUTOMAP_${prefix}_RUN AND NOT AUTOMAP_MPI STREQUAL "OFF")
    automap_add_wire(automap_wire_${variant} "${AUTOMAP_${prefix}_INCLUDE_DIRS}")
    list(APPEND AUTOMAP_MPI_VARIANTS ${variant})
  endif()
endforeach()

# Links what the target has with one MPI: its object and library come before the default's, whose
# library is then not needed.
function(automap_link_mpi target variant name)
  string(TOUPPER ${variant} prefix)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:automap_wire_${variant}>)
  target_link_options(${target} PRIVATE -Wl,--as-needed)
  target_link_libraries(${target} PRIVATE ${AUTOMAP_${prefix}_LINK_LIBRARIES} automap_static)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/${variant})
endfunction()

foreach(variant ${AUTOMAP_MPI_VARIANTS})
  if(TARGET automap_cli)
    add_executable(automap_${variant} $<TARGET_OBJECTS:automap_cli>)
    automap_link_mpi(automap_${variant} ${variant} automap)
  endif()
endforeach()

# A test program that starts itself by mpirun, for each MPI.
function(automap_mpi_test name source)
  add_custom_target(${name})
  if(NOT AUTOMAP_MPI_VARIANTS)
    add_test(NAME ${name} COMMAND sh -c "echo skipped: neither Open MPI nor MPICH was found by CMake && exit 77")
    set_tests_properties(${name} PROPERTIES LABELS "mpi;unit" SKIP_RETURN_CODE 77)
  endif()
  foreach(variant ${AUTOMAP_MPI_VARIANTS})
    string(TOUPPER ${variant} prefix)
    add_executable(${name}_${variant} ${source})
    target_link_libraries(${name}_${variant} PRIVATE PkgConfig::CMOCKA)
    target_compile_definitions(${name}_${variant} PRIVATE SOURCE_DIR="${AUTOMAP_TEST_DATA}"
      MPIRUN="${AUTOMAP_${prefix}_RUN}")
    automap_link_mpi(${name}_${variant} ${variant} ${name})
    add_dependencies(${name} ${name}_${variant})
    add_test(NAME ${name}_${variant} COMMAND ${name}_${variant} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    # What MPI itself leaves behind is no leak of ours.
    set_tests_properties(${name}_${variant} PROPERTIES LABELS "mpi;unit" SKIP_RETURN_CODE 77 TIMEOUT 300
      ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
  endforeach()
endfunction()
