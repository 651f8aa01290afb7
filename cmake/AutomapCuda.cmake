# The CUDA back end: decides by AUTOMAP_CUDA whether to build it, finds what
# goes with it, and leaves the object libraries `automap_cuda` (kernels, by
# nvcc) and `automap_cuda_host` (plain C) behind.
#
# OFF takes no look at CUDA at all. AUTO builds it where a toolkit works; ON
# makes its absence an error. Kernels are compiled for sm_80 and sm_90.

set(AUTOMAP_HAVE_CUDA OFF)
if(AUTOMAP_CUDA STREQUAL "OFF")
  return()
endif()

# A toolkit is often installed beside the search path.
find_program(AUTOMAP_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(AUTOMAP_NVCC AND NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER ${AUTOMAP_NVCC})
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
include(CheckLanguage)
check_language(CUDA)
find_package(CUDAToolkit QUIET)
if(NOT CMAKE_CUDA_COMPILER OR NOT TARGET CUDA::cudart_static OR NOT TARGET CUDA::nvrtc)
  if(AUTOMAP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "AUTOMAP_CUDA=ON, but no working CUDA toolkit (nvcc, libcudart_static and libnvrtc) was found. "
      "Install one, name its compiler by -DCMAKE_CUDA_COMPILER=, or use AUTOMAP_CUDA=AUTO or OFF.")
  endif()
  return()
endif()
enable_language(CUDA)
set(AUTOMAP_HAVE_CUDA ON)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

# Versions of the libraries beside the toolkit, read from their headers.
function(read_version header_names pattern output)
  foreach(name ${header_names})
    find_file(AUTOMAP_HEADER_${name} ${name} HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
    if(AUTOMAP_HEADER_${name})
      file(STRINGS ${AUTOMAP_HEADER_${name}} lines REGEX "#define ${pattern}_(MAJOR|MINOR|PATCH|PATCHLEVEL) +[0-9]+")
      string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
      list(SUBLIST numbers 0 3 numbers)
      list(JOIN numbers "." version)
      set(${output} ${version} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()
find_library(AUTOMAP_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
if(AUTOMAP_NCCL_LIBRARY)
  read_version("nccl.h" "NCCL" AUTOMAP_NCCL_VERSION)
endif()
find_library(AUTOMAP_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
if(AUTOMAP_CUDNN_LIBRARY)
  read_version("cudnn_version.h" "CUDNN" AUTOMAP_CUDNN_VERSION)
endif()

file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/*/cuda/*.cu)
add_library(automap_cuda OBJECT ${CUDA_SOURCES})
target_include_directories(automap_cuda PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
target_compile_options(automap_cuda PRIVATE --Werror=all-warnings -Xcompiler=-Wall)

file(GLOB CUDA_HOST_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/*/cuda/*.c)
add_library(automap_cuda_host OBJECT ${CUDA_HOST_SOURCES})
target_link_libraries(automap_cuda_host PRIVATE automap_flags)
target_include_directories(automap_cuda_host SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
# NVRTC is opened at run time: by its name, else where the toolkit is now.
set_source_files_properties(${CMAKE_SOURCE_DIR}/executor/cuda/nvrtc.c PROPERTIES COMPILE_DEFINITIONS
  "AUTOMAP_NVRTC_SONAME=\"libnvrtc.so.${CUDAToolkit_VERSION_MAJOR}\";AUTOMAP_NVRTC_LIBRARY=\"${CUDA_nvrtc_LIBRARY}\"")
