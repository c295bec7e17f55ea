if(NOT EXTENSION_NAME STREQUAL PROJECT_NAME)
  message(FATAL_ERROR "the project is ${PROJECT_NAME}, the extension ${EXTENSION_NAME}")
endif()
