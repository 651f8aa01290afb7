# Loops over packed elements (executor/cpu/vector/), once for each set of vector
# instructions; executor/cpu/vector/dispatch.c picks one at run time.
include(CheckCCompilerFlag)
file(GLOB VECTOR_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/executor/cpu/vector/*.c)
list(FILTER VECTOR_SOURCES EXCLUDE REGEX "/dispatch[.]c$")
set(VECTOR_OBJECTS)

# Vectors wider than the set has are split within a file, never passed between files: no matter of ABI.
function(automap_vector_set name title)
  add_library(automap_vector_${name} OBJECT ${VECTOR_SOURCES})
  target_link_libraries(automap_vector_${name} PRIVATE automap_flags)
  target_compile_definitions(automap_vector_${name} PRIVATE VECTOR_SET=${name} VECTOR_TITLE="${title}")
  target_compile_options(automap_vector_${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O3> -fno-trapping-math -Wno-psabi ${ARGN})
  set(VECTOR_OBJECTS ${VECTOR_OBJECTS} $<TARGET_OBJECTS:automap_vector_${name}> PARENT_SCOPE)
endfunction()

automap_vector_set(baseline baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  check_c_compiler_flag(-march=x86-64-v4 AUTOMAP_VECTOR_LEVELS)
endif()
if(AUTOMAP_VECTOR_LEVELS)
  automap_vector_set(level3 x86-64-v3 -march=x86-64-v3)
  automap_vector_set(level4 x86-64-v4 -march=x86-64-v4 -mprefer-vector-width=512)
  set_source_files_properties(executor/cpu/vector/dispatch.c PROPERTIES COMPILE_DEFINITIONS AUTOMAP_VECTOR_LEVELS)
endif()
