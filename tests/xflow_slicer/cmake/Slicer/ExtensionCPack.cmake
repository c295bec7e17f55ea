# What Slicer writes into the extension's description.
file(WRITE "${CMAKE_BINARY_DIR}/${EXTENSION_NAME}.txt" "")
foreach(name HOMEPAGE CATEGORY CONTRIBUTORS DESCRIPTION ICONURL SCREENSHOTURLS DEPENDS)
  if(NOT DEFINED EXTENSION_${name})
    message(FATAL_ERROR "EXTENSION_${name} is not set")
  endif()
  file(APPEND "${CMAKE_BINARY_DIR}/${EXTENSION_NAME}.txt" "${name} ${EXTENSION_${name}}\n")
endforeach()
