# heddle as a library: libheddle.so.0 and libheddle.a, both showing include/heddle.h only, and what is installed.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Instrumented objects need their run-time library in the program; the examples then link the static library.
if(HEDDLE_SANITIZE OR HEDDLE_FUZZ)
  set(HEDDLE_SHARED OFF)
else()
  set(HEDDLE_SHARED ON)
endif()

if(HEDDLE_SHARED)
  set(map ${CMAKE_CURRENT_SOURCE_DIR}/cmake/heddle.map)
  add_library(heddle_shared SHARED $<TARGET_OBJECTS:heddle_objects>)
  set_target_properties(heddle_shared PROPERTIES OUTPUT_NAME heddle VERSION ${PROJECT_VERSION} SOVERSION 0
                        EXPORT_NAME heddle LINK_DEPENDS ${map})
  target_include_directories(heddle_shared INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(heddle_shared PRIVATE PkgConfig::LIB_DEPS Threads::Threads m)
  target_link_options(heddle_shared PRIVATE -Wl,--version-script=${map} -Wl,-z,defs -Wl,--as-needed)
endif()

# The static library is one object whose other symbols are local, so that none meets one of the program's.
set(one ${CMAKE_CURRENT_BINARY_DIR}/heddle_one.o)
add_custom_command(
  OUTPUT ${one}
  COMMAND ${CMAKE_LINKER} -r -o ${one} $<TARGET_OBJECTS:heddle_objects>
  COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=heddle_* ${one}
  DEPENDS heddle_objects $<TARGET_OBJECTS:heddle_objects>
  COMMAND_EXPAND_LISTS VERBATIM
  COMMENT "libheddle.a: all but heddle_* made local")
set_source_files_properties(${one} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
add_library(heddle_static STATIC ${one})
set_target_properties(heddle_static PROPERTIES OUTPUT_NAME heddle EXPORT_NAME static LINKER_LANGUAGE C)
target_include_directories(heddle_static INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(heddle_static INTERFACE ${LIB_DEPS_LIBRARIES} -lpthread -lm)

# The examples know the public header only.
file(GLOB EXAMPLE_SRC CONFIGURE_DEPENDS examples/*.c)
foreach(src ${EXAMPLE_SRC})
  get_filename_component(name ${src} NAME_WE)
  add_executable(example_${name} ${src})
  if(HEDDLE_SHARED)
    target_link_libraries(example_${name} PRIVATE heddle_shared)
  else()
    target_link_libraries(example_${name} PRIVATE heddle_static)
  endif()
endforeach()

# ---- install ----
install(TARGETS heddle RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES include/heddle.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS heddle_static EXPORT heddleTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(HEDDLE_SHARED)
  install(TARGETS heddle_shared EXPORT heddleTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/heddle)
install(EXPORT heddleTargets NAMESPACE heddle:: DESTINATION ${config_dir})
configure_package_config_file(cmake/heddleConfig.cmake.in heddleConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(heddleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/heddleConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/heddleConfigVersion.cmake
        DESTINATION ${config_dir})
# The prefix is found from where heddle.pc lies, so that --prefix at install time is enough.
file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" up "${up}")
set(PC_PREFIX "\${pcfiledir}/${up}")
list(TRANSFORM LIB_DEPS_LIBRARIES PREPEND -l OUTPUT_VARIABLE private)
list(JOIN private " " PC_LIBS_PRIVATE)
string(APPEND PC_LIBS_PRIVATE " -lpthread -lm")
configure_file(cmake/heddle.pc.in heddle.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/heddle.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
