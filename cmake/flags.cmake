# Flags of every target: warnings, sanitizers, and what must never be there.
# No -march, no fast-math: instruction sets are chosen at run time, per kernel.
add_library(kestrel_flags INTERFACE)
target_include_directories(kestrel_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(kestrel_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor "$<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow;-Wno-restrict;-Wno-array-bounds>" -fno-math-errno -ffp-contract=off)
target_compile_definitions(kestrel_flags INTERFACE FMT_HEADER_ONLY KESTREL_VERSION="${PROJECT_VERSION}")
find_package(Threads REQUIRED)
target_link_libraries(kestrel_flags INTERFACE Threads::Threads)

if(KESTREL_SANITIZE)
  target_compile_options(kestrel_flags INTERFACE -fsanitize=${KESTREL_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(kestrel_flags INTERFACE -fsanitize=${KESTREL_SANITIZE})
endif()
if(KESTREL_FUZZ)
  target_compile_options(kestrel_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
