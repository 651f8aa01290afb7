# The CUDA back end: decides by AUTOMAP_CUDA whether to build it, finds the
# headers, and leaves two targets behind: the object library `automap_cuda`
# (every .c below a folder cuda/) and `automap_cuda_check` (every .cu through nvcc).
#
# OFF takes no look at CUDA at all. AUTO builds it where a toolkit works; ON
# makes its absence an error. Nothing of CUDA is linked: libraries are opened at
# run time (base/cuda/library.h), and device code is text that NVRTC compiles
# there. A .cu file becomes a C string, `cuda_text_<name>` in "<path>.cu.h"; nvcc
# compiles it for sm_80, sm_90, PTX and, if it knows that, sm_100 only to find its mistakes
# here; local memory and spills are such.

set(AUTOMAP_HAVE_CUDA OFF)
string(TOUPPER "${AUTOMAP_CUDA}" AUTOMAP_CUDA)
if(AUTOMAP_CUDA MATCHES "^(1|YES|Y|TRUE)$")
  set(AUTOMAP_CUDA ON)
elseif(AUTOMAP_CUDA MATCHES "^(0|NO|N|FALSE|)$")
  set(AUTOMAP_CUDA OFF)
elseif(NOT AUTOMAP_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "AUTOMAP_CUDA is ON, OFF or AUTO, not '${AUTOMAP_CUDA}'.")
endif()
if(AUTOMAP_CUDA STREQUAL "OFF")
  return()
endif()

# A toolkit is often installed beside the search path.
find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDACXX ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
  PATH_SUFFIXES bin DOC "nvcc of the CUDA toolkit to build with")
set(nvcc_result 1)
if(CMAKE_CUDA_COMPILER)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version RESULT_VARIABLE nvcc_result OUTPUT_QUIET ERROR_QUIET)
endif()
if(nvcc_result EQUAL 0)
  get_filename_component(nvcc_folder ${CMAKE_CUDA_COMPILER} REALPATH)
  get_filename_component(nvcc_folder ${nvcc_folder} DIRECTORY)
  list(APPEND CMAKE_PREFIX_PATH ${nvcc_folder}/..)
  find_package(CUDAToolkit QUIET)
endif()
find_path(AUTOMAP_NVRTC_HEADERS nvrtc.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
if(NOT nvcc_result EQUAL 0 OR NOT CUDAToolkit_FOUND OR NOT AUTOMAP_NVRTC_HEADERS)
  if(AUTOMAP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "AUTOMAP_CUDA=ON, but no working CUDA toolkit (nvcc, cuda.h and nvrtc.h) was found. "
      "Install one, name its compiler by -DCMAKE_CUDA_COMPILER=, or use AUTOMAP_CUDA=AUTO or OFF.")
  endif()
  return()
endif()
set(AUTOMAP_HAVE_CUDA ON)

# Versions of the libraries beside the toolkit, read from their headers.
function(read_version header pattern output)
  find_file(AUTOMAP_HEADER_${header} ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_CACHE)
  if(AUTOMAP_HEADER_${header})
    file(STRINGS ${AUTOMAP_HEADER_${header}} lines REGEX "#define +${pattern}_(MAJOR|MINOR|PATCH|PATCHLEVEL) +[0-9]+")
    string(REGEX MATCHALL " [0-9]+" numbers "${lines}")
    list(SUBLIST numbers 0 3 numbers)
    list(JOIN numbers "." version)
    string(REPLACE " " "" version "${version}")
    set(${output} ${version} PARENT_SCOPE)
  endif()
endfunction()
read_version(cublas_api.h CUBLAS_VER AUTOMAP_CUBLAS_VERSION)
read_version(cudnn_version.h CUDNN AUTOMAP_CUDNN_VERSION)
read_version(nccl.h NCCL AUTOMAP_NCCL_VERSION)
foreach(part CUBLAS CUDNN NCCL)
  if(AUTOMAP_${part}_VERSION)
    set(AUTOMAP_HAVE_${part} ON)
  endif()
endforeach()

# Adds to the list `headers` the one that holds the text of a .cu file.
function(automap_embed source headers)
  file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${source})
  get_filename_component(name ${source} NAME_WE)
  set(header ${CMAKE_BINARY_DIR}/${path}.h)
  add_custom_command(OUTPUT ${header}
    COMMAND ${CMAKE_COMMAND} -D SOURCE=${source} -D HEADER=${header} -D NAME=${name} -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${source} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  set(${headers} ${${headers}} ${header} PARENT_SCOPE)
endfunction()

# Architectures of the check.
execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code OUTPUT_VARIABLE codes ERROR_QUIET)
set(CUDA_CHECKED -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90])
set(CUDA_CHECKED_NAMES "sm_80, sm_90 and PTX")
if(codes MATCHES "sm_100")
  list(APPEND CUDA_CHECKED -gencode=arch=compute_100,code=sm_100)
  set(CUDA_CHECKED_NAMES "sm_80, sm_90, sm_100 and PTX")
else()
  message(STATUS "The check of kernels for sm_100 is skipped: ${CMAKE_CUDA_COMPILER} does not know it")
endif()

# Adds to the list `images` what nvcc makes of a .cu file for every architecture.
function(automap_nvcc source images)
  file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${source})
  set(image ${CMAKE_BINARY_DIR}/${path}.fatbin)
  add_custom_command(OUTPUT ${image}
    COMMAND ${CMAKE_CUDA_COMPILER} -fatbin --no-compress -std=c++17 --fmad=false --Werror=all-warnings -Xcompiler=-Wall,-Wextra
      -Xptxas=-warn-spills,-warn-lmem-usage,-Werror
      ${CUDA_CHECKED} -o ${image} ${source}
    DEPENDS ${source} COMMENT "Checking ${path} for ${CUDA_CHECKED_NAMES}" VERBATIM)
  set(${images} ${${images}} ${image} PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE CUDA_TEXTS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/base/cuda/*.cu ${CMAKE_SOURCE_DIR}/dqn/cuda/*.cu
  ${CMAKE_SOURCE_DIR}/executor/cuda/*.cu ${CMAKE_SOURCE_DIR}/tests/cuda/*.cu)
set(CUDA_HEADERS)
set(CUDA_IMAGES)
set(CUDA_INCLUDES)
set(CUDA_ROWS)
foreach(source ${CUDA_TEXTS})
  automap_embed(${source} CUDA_HEADERS)
  automap_nvcc(${source} CUDA_IMAGES)
  file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${source})
  get_filename_component(name ${source} NAME_WE)
  string(APPEND CUDA_INCLUDES "#include \"${path}.h\"\n")
  string(APPEND CUDA_ROWS "    {\"${path}\", cuda_text_${name}},\n")
endforeach()
# All texts together, for the test that gives each to NVRTC.
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/tests/cuda/cuda_texts.h CONTENT
  "/* Every .cu file: its path and its text; by the build. */\n${CUDA_INCLUDES}
static const struct {\n    const char *path, *text;\n} cuda_texts[] = {\n${CUDA_ROWS}};\n")
add_custom_target(automap_cuda_check ALL DEPENDS ${CUDA_IMAGES})
add_custom_target(automap_cuda_texts DEPENDS ${CUDA_HEADERS})

file(GLOB_RECURSE CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/base/cuda/*.c ${CMAKE_SOURCE_DIR}/dqn/cuda/*.c
  ${CMAKE_SOURCE_DIR}/executor/cuda/*.c)
if(NOT AUTOMAP_HAVE_NCCL)
  list(FILTER CUDA_SOURCES EXCLUDE REGEX "/comm_nccl[.]c$")
endif()
add_library(automap_cuda OBJECT ${CUDA_SOURCES})
add_dependencies(automap_cuda automap_cuda_texts)
target_link_libraries(automap_cuda PRIVATE automap_flags)
set_source_files_properties(${CMAKE_SOURCE_DIR}/base/cuda/library.c PROPERTIES COMPILE_DEFINITIONS
  "AUTOMAP_CUDA_LIBRARY_FOLDER=\"${CUDAToolkit_LIBRARY_DIR}\"")
