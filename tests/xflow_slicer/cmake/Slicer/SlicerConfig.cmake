# A stand-in for the CMake package of a Slicer build, for tests/xflow_slicer/test_extension_files.py. Each macro checks what
# Slicer's own of that name checks, and installs the files where Slicer's own does; nothing is compiled.
set(Slicer_USE_FILE "${CMAKE_CURRENT_LIST_DIR}/UseSlicer.cmake")
set(Slicer_EXTENSION_GENERATE_CONFIG "${CMAKE_CURRENT_LIST_DIR}/ExtensionGenerateConfig.cmake")
set(Slicer_EXTENSION_CPACK "${CMAKE_CURRENT_LIST_DIR}/ExtensionCPack.cmake")
set(Slicer_QTSCRIPTEDMODULES_LIB_DIR "lib/Slicer-5.12/qt-scripted-modules")
set(Slicer_INSTALL_QTSCRIPTEDMODULES_LIB_DIR "lib/Slicer-5.12/qt-scripted-modules")
