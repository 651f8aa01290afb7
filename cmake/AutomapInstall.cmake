# What `cmake --install` puts down: program, libraries, headers, packages for CMake and pkg-config, man pages,
# completions of shells, documents and examples.
include(CMakePackageConfigHelpers)

install(TARGETS automap_shared EXPORT automap-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS automap_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/automap.h include/automap_status.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# pkg-config
file(RELATIVE_PATH AUTOMAP_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/automap.pc.in automap.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/automap.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# find_package(automap): the target automap::automap, the shared library.
set_target_properties(automap_shared PROPERTIES EXPORT_NAME automap)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/automap)
install(EXPORT automap-targets NAMESPACE automap:: DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/automap-config-version.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(cmake/automap-config.cmake.in ${CMAKE_BINARY_DIR}/automap-config.cmake
  INSTALL_DESTINATION ${package})
install(FILES ${CMAKE_BINARY_DIR}/automap-config.cmake ${CMAKE_BINARY_DIR}/automap-config-version.cmake
  DESTINATION ${package})

# Documents, licence and examples.
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES bench/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Man pages and completions, from the tables of options of the program.
if(TARGET automap)
  set(pages ${CMAKE_BINARY_DIR}/pages)
  file(MAKE_DIRECTORY ${pages})
  add_executable(automap_pages cmake/pages.c $<FILTER:$<TARGET_OBJECTS:automap_cli>,EXCLUDE,main[.]c>)
  target_link_libraries(automap_pages PRIVATE automap_static)
  add_custom_command(OUTPUT ${pages}/automap.1 COMMAND automap_pages ${pages} DEPENDS automap_pages VERBATIM)
  add_custom_target(pages ALL DEPENDS ${pages}/automap.1)
  install(TARGETS automap RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${pages}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
  install(FILES ${pages}/automap.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    RENAME automap)
  install(FILES ${pages}/_automap DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/automap.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
