# kestrel_fuzz(ROOM file...): a libFuzzer program (clang only) from each *_fuzz.cpp among the files, in the build folder's fuzz/;
# the target `fuzzers` builds them all. Run one for a minute: build/fuzz/fuzz/tokenizer_fuzz -max_total_time=60
add_custom_target(fuzzers)

function(kestrel_fuzz ROOM)
  set(sources ${ARGN})
  list(FILTER sources INCLUDE REGEX "_fuzz\\.cpp$")
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${name} PRIVATE kestrel_${ROOM})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
    add_dependencies(fuzzers ${name})
  endforeach()
endfunction()
