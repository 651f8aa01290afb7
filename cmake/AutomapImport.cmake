# Importers of cluster files that need a library: XML by expat, this host by hwloc.
# Each is taken where it is found, unless AUTOMAP_IMPORTERS is OFF; without it the
# program says so when it is asked for. Leaves AUTOMAP_HAVE_EXPAT,
# AUTOMAP_HAVE_HWLOC and AUTOMAP_IMPORT_LIBRARIES.

if(AUTOMAP_IMPORTERS)
  pkg_check_modules(EXPAT QUIET IMPORTED_TARGET expat)
  pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc>=2.0)
endif()
set(AUTOMAP_IMPORT_LIBRARIES)
set(AUTOMAP_IMPORT_PACKAGES) # for automap.pc
foreach(part "EXPAT|expat|import_xml.c" "HWLOC|hwloc|import_this_host.c")
  string(REPLACE "|" ";" part "${part}")
  list(GET part 0 key)
  list(GET part 1 package)
  list(GET part 2 source)
  set(AUTOMAP_HAVE_${key} OFF)
  if(AUTOMAP_IMPORTERS AND ${key}_FOUND)
    set(AUTOMAP_HAVE_${key} ON)
    list(APPEND AUTOMAP_IMPORT_LIBRARIES PkgConfig::${key})
    string(APPEND AUTOMAP_IMPORT_PACKAGES " ${package}")
    set_source_files_properties(${CMAKE_SOURCE_DIR}/cost/cluster_import/${source} PROPERTIES COMPILE_DEFINITIONS AUTOMAP_HAVE_${key})
  endif()
endforeach()
