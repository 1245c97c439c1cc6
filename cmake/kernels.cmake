# Kernel sets beyond src/kernels/generic: one folder each, with the instructions only its files may use, as they are
# entered after a run-time check.  Sets KERNEL_SET_SRC.
function(kernel_set folder)
  file(GLOB src CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/${folder}/*.c)
  set_source_files_properties(${src} PROPERTIES COMPILE_OPTIONS "${ARGN}")
  set(KERNEL_SET_SRC ${KERNEL_SET_SRC} ${src} PARENT_SCOPE)
endfunction()

set(KERNEL_SET_SRC)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2 -mavx2 -mfma -mf16c)
  kernel_set(avx2 ${avx2})
  kernel_set(avxvnni ${avx2} -mavxvnni)
  kernel_set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)
endif()
