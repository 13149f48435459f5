# What the oracles need of llama.cpp's build: not its `common` library, which takes as long as all else. The architectures and the
# image encoders, 200 files that read the same headers, come in a few pieces, and what is not a kernel is optimized little.
set(LLAMA_BUILD_COMMON OFF)
set(top "${CMAKE_SOURCE_DIR}")
set(public "${CMAKE_CURRENT_SOURCE_DIR}/tools/mtmd/mtmd-helper.cpp" "${CMAKE_CURRENT_SOURCE_DIR}/tools/mtmd/mtmd-helper-gen.cpp")
foreach(target llama mtmd)
    cmake_language(EVAL CODE "
        cmake_language(DEFER DIRECTORY [[${top}]] CALL set_target_properties ${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32)
        cmake_language(DEFER DIRECTORY [[${top}]] CALL target_compile_options ${target} PRIVATE -O1)")
endforeach()
# These two refuse to be compiled with mtmd's own headers.
cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY [[${top}]] CALL set_source_files_properties ${public}
    TARGET_DIRECTORY mtmd PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)")
