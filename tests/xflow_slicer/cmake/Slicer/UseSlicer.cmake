# Every file goes to INSTALL_DIR under the name that it has below SOURCE_DIR.
macro(ctkMacroCompilePythonScript)
  cmake_parse_arguments(MY "NO_INSTALL_SUBDIR;GLOBAL_TARGET"
    "TARGET_NAME;SOURCE_DIR;DESTINATION_DIR;INSTALL_DIR" "SCRIPTS;RESOURCES" ${ARGN})
  foreach(name TARGET_NAME SCRIPTS DESTINATION_DIR INSTALL_DIR)
    if(NOT DEFINED MY_${name})
      message(FATAL_ERROR "${name} is mandatory")
    endif()
  endforeach()
  if(MY_UNPARSED_ARGUMENTS OR NOT MY_NO_INSTALL_SUBDIR)
    message(FATAL_ERROR "not as the stand-in knows it: ${MY_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT DEFINED MY_SOURCE_DIR)
    set(MY_SOURCE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  endif()
  foreach(file ${MY_SCRIPTS} ${MY_RESOURCES})
    if(NOT EXISTS ${MY_SOURCE_DIR}/${file})
      message(FATAL_ERROR "given nonexistent file '${file}'")
    endif()
    get_filename_component(folder ${file} DIRECTORY)
    install(FILES ${MY_SOURCE_DIR}/${file} DESTINATION ${MY_INSTALL_DIR}/${folder})
  endforeach()
endmacro()

macro(slicerMacroBuildScriptedModule)
  cmake_parse_arguments(MY_SLICER "WITH_GENERIC_TESTS;WITH_SUBDIR;VERBOSE" "NAME" "SCRIPTS;RESOURCES" ${ARGN})
  if(MY_SLICER_UNPARSED_ARGUMENTS OR NOT DEFINED MY_SLICER_NAME)
    message(FATAL_ERROR "NAME is mandatory; unknown: ${MY_SLICER_UNPARSED_ARGUMENTS}")
  endif()
  ctkMacroCompilePythonScript(
    TARGET_NAME ${MY_SLICER_NAME}
    SCRIPTS "${MY_SLICER_SCRIPTS}"
    RESOURCES "${MY_SLICER_RESOURCES}"
    DESTINATION_DIR ${CMAKE_BINARY_DIR}/${Slicer_QTSCRIPTEDMODULES_LIB_DIR}
    INSTALL_DIR ${Slicer_INSTALL_QTSCRIPTEDMODULES_LIB_DIR}
    NO_INSTALL_SUBDIR
    )
endmacro()

macro(slicer_add_python_unittest)
  cmake_parse_arguments(MY "" "SCRIPT" "" ${ARGN})
  if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${MY_SCRIPT})
    message(FATAL_ERROR "no test script ${MY_SCRIPT}")
  endif()
endmacro()

set(EXTENSION_NAME ${PROJECT_NAME})
