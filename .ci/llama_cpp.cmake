# What the oracles need of llama.cpp's build: not its `common` library, which takes as long as all else; and the architectures, 150
# files that read the same headers, in a few pieces.
set(LLAMA_BUILD_COMMON OFF)
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL set_target_properties llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32)
