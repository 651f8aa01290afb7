# MPI, by which processes that mpirun starts find one another and exchange
# tensors: decides by AUTOMAP_MPI whether executor/processes/mpi_wire.c, the one file that
# includes mpi.h, is built with it, and leaves the object library automap_wire and
# AUTOMAP_MPI_LIBRARIES behind.
#
# AUTO takes it where CMake finds it; ON makes its absence an error. Which MPI:
# that of the compiler mpicc, or of -DMPI_C_COMPILER=mpicc.mpich.

# An object library with the file; `includes`: folders with mpi.h, empty: without MPI.
function(automap_add_wire name includes)
  add_library(${name} OBJECT ${CMAKE_SOURCE_DIR}/executor/processes/mpi_wire.c)
  target_link_libraries(${name} PRIVATE automap_flags)
  if(includes)
    target_include_directories(${name} SYSTEM PRIVATE ${includes})
    target_compile_definitions(${name} PRIVATE AUTOMAP_HAVE_MPI)
  endif()
endfunction()

set(AUTOMAP_HAVE_MPI OFF)
set(AUTOMAP_MPI_NAME MPI)
set(AUTOMAP_MPI_LIBRARIES)
if(AUTOMAP_MPI STREQUAL "OFF")
  return()
endif()
find_package(MPI QUIET COMPONENTS C)
if(NOT MPI_C_FOUND)
  if(AUTOMAP_MPI STREQUAL "ON")
    message(FATAL_ERROR "AUTOMAP_MPI=ON, but CMake finds no MPI for C. "
      "Install one (Debian: libopenmpi-dev), name its compiler by -DMPI_C_COMPILER=, or use AUTOMAP_MPI=AUTO or OFF.")
  endif()
  return()
endif()
set(AUTOMAP_HAVE_MPI ON)
set(AUTOMAP_MPI_LIBRARIES ${MPI_C_LIBRARIES})

# Reads the first "#define NAME VALUE" of mpi.h, without quotes.
function(automap_mpi_value name output)
  set(value)
  foreach(folder ${MPI_C_INCLUDE_DIRS})
    if(EXISTS ${folder}/mpi.h AND NOT value)
      file(STRINGS ${folder}/mpi.h value LIMIT_COUNT 1 REGEX "^#define ${name} ")
      string(REGEX REPLACE "^#define ${name} +\"?([^\" ]*)\"?.*" "\\1" value "${value}")
    endif()
  endforeach()
  set(${output} "${value}" PARENT_SCOPE)
endfunction()
automap_mpi_value(MPICH_VERSION mpich)
automap_mpi_value(OMPI_MAJOR_VERSION major)
automap_mpi_value(OMPI_MINOR_VERSION minor)
automap_mpi_value(OMPI_RELEASE_VERSION release)
set(AUTOMAP_MPI_NAME "MPI ${MPI_C_VERSION}")
if(mpich)
  set(AUTOMAP_MPI_NAME "MPICH ${mpich}")
elseif(major)
  set(AUTOMAP_MPI_NAME "Open MPI ${major}.${minor}.${release}")
endif()
