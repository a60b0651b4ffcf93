# Installs the files that find_package(lazyrope) needs: libraries, public headers and the package's configuration.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lazyrope)
install(TARGETS lazyrope_fmt lazyrope_codegen lazyrope_cache lazyrope_runtime EXPORT lazyrope-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_BINARY_DIR}/include/lazyrope DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT lazyrope-targets NAMESPACE lazyrope:: DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/lazyrope-config.cmake.in lazyrope-config.cmake
                              INSTALL_DESTINATION ${package_dir})
# A minor version may change the API before 1.0.
write_basic_package_version_file(lazyrope-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lazyrope-config.cmake ${PROJECT_BINARY_DIR}/lazyrope-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindSodium.cmake
        DESTINATION ${package_dir})
