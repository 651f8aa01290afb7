# MPI, by which processes that mpirun started find one another: decides by
# AUTOMAP_MPI whether executor/bootstrap_mpi.c, the one file that includes mpi.h,
# is built with it, and leaves AUTOMAP_MPI_LIBRARIES behind.
#
# AUTO takes it where CMake finds it; ON makes its absence an error.

set(AUTOMAP_HAVE_MPI OFF)
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
set(AUTOMAP_MPI_LIBRARIES MPI::MPI_C)
set_source_files_properties(${CMAKE_SOURCE_DIR}/executor/bootstrap_mpi.c PROPERTIES
  COMPILE_DEFINITIONS AUTOMAP_HAVE_MPI)
