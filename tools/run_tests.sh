# Sourced by ./run and .ci/run. run_tests BUILD_FOLDER [CTEST_OPTION...]: all tests by ctest, then the line `N passed, N failed`, counted in single
# cases. Skipped cases are said, and are not passed. Leaves the numbers in tests_passed and tests_failed; false where one failed.
run_tests() {
  local counts skipped report
  report=$(realpath "$1")/tests.xml  # ctest takes a relative one from the build folder
  rm -f "$report"
  ctest --test-dir "$1" --output-on-failure --no-tests=error "${@:2}" --output-junit "$report" \
    --test-output-size-passed 10000000 --test-output-size-failed 10000000 >&2 </dev/null || true
  # A program that dies tells no counts: it is one failure. A program that is no gtest is one case.
  counts=$(awk '
    /<testcase /  { status = $0; sub(/.* status="/, "", status); sub(/".*/, "", status); p1 = f1 = s1 = 0 }
    /<skipped message="SKIP_/ { s1 = 1 }
    /\[  PASSED  \] [0-9]+ test/ { p1 = $4 }
    /^\[  FAILED  \] [0-9]+ test.*listed below/ { f1 = $4 }
    /^\[  SKIPPED \] [0-9]+ test.*listed below/ { s1 = $4 }
    /<\/testcase>/ {
      if (status == "run" && p1 + f1 + s1 == 0) p1 = 1
      if (status != "run" && !(status == "notrun" && s1) && f1 == 0) f1 = 1
      p += p1; f += f1; s += s1
    }
    END { print p + 0, f + 0, s + 0 }' "$report" 2>/dev/null) || counts=""
  read -r tests_passed tests_failed skipped <<<"${counts:-0 1 0}"
  if ((tests_passed + tests_failed == 0)); then tests_failed=1; fi  # no test at all is no success
  if ((skipped > 0)); then echo "$skipped skipped (their data is not here)"; fi
  echo "$tests_passed passed, $tests_failed failed"
  ((tests_failed == 0))
}
