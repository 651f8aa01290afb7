#!/usr/bin/env bash
# Builds and tests everything: see usage below.
set -uo pipefail
cd "$(dirname "$0")"
source .ci/packages.sh

usage() {
  cat <<'TEXT'
usage: ./test.sh [--full] [--quick] [--help]

Installs missing packages (Debian packages; Python packages into .venv and, for
the tests against PyTorch, .venv-torch), builds into build/, and runs the tests:

  format   clang-format on every C file
  unit     every unit test again under the address and undefined-behaviour
           sanitizers (build-asan/), and those with threads under the thread
           sanitizer (build-tsan/)
  fuzz     every fuzzer for 10 seconds (60 with --full) under the address and
           undefined-behaviour sanitizers (build-asan/)
  ctest    everything registered with CMake; the summary gives the time of each
           label: unit, check, e2e, jax, mpi, gpu. Tests that need what is not
           there are shown as skipped.

  --full   installs headless Chromium, adds clang-tidy and the long tests (AUTOMAP_FULL=1, label "full")
           and writes the summary to build/test-summary.txt
  --quick  builds, and runs the source checks and the unit tests of at most four seconds:
           about one minute after the build
  --help   prints this

AUTOMAP_TORCH=OFF skips the tests against PyTorch. AUTOMAP_TORCH_INDEX=URL takes
PyTorch from that package index, such as one with CPU builds.

Exit status 0 when everything that ran passed.
TEXT
}

full=0
quick=0
for argument in "$@"; do
  case $argument in
    --full) full=1 ;;
    --quick) quick=1 ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

failed=()
times=()

# step NAME COMMAND...: runs it, notes its time and whether it failed
step() {
  local name=$1 started=$SECONDS
  shift
  echo "== $name"
  "$@" || failed+=("$name")
  times+=("$(printf '%4d s  %s' $((SECONDS - started)) "$name")")
}

# Runs beside the build, which takes longer.
make_python() {
  local stamp=.venv/requirements.txt
  if [ -x .venv/bin/python ] && cmp -s tests/requirements.txt "$stamp"; then return 0; fi
  if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "python3 is older than 3.11: the tests against JAX will be skipped"
    return 0
  fi
  python3 -m venv .venv && .venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt &&
    cp tests/requirements.txt "$stamp"
}

# Links .venv-torch to an environment that all clones of this user share, and makes it once: PyTorch with
# its CUDA libraries takes 6 GB. AUTOMAP_TORCH_INDEX names a package index with CPU builds, if there is
# one. Without the packages the tests against PyTorch are shown as skipped.
make_torch() {
  local needed=tests/requirements-torch.txt key folder free
  if [ "${AUTOMAP_TORCH:-ON}" = OFF ]; then echo "AUTOMAP_TORCH=OFF: the tests against PyTorch will be skipped"; return 0; fi
  key=$( (cat "$needed"; python3 -V; echo "${AUTOMAP_TORCH_INDEX:-}") | sha256sum | cut -c1-12)
  folder=${XDG_CACHE_HOME:-$HOME/.cache}/automap/torch-$key
  mkdir -p "$folder" || return 0
  (
    flock 9
    [ ! -e "$folder/complete" ] || exit 0
    free=$(df --output=avail -BG "$folder" | tail -1 | tr -dc 0-9)
    if [ "$free" -lt 12 ]; then echo "PyTorch needs 12 GB of disk, $free GB are free"; exit 1; fi
    if [ -n "${AUTOMAP_TORCH_INDEX:-}" ]; then export PIP_INDEX_URL=$AUTOMAP_TORCH_INDEX; fi
    python3 -m venv --clear "$folder/venv" &&
      "$folder/venv/bin/pip" install -q --disable-pip-version-check -r "$needed" && touch "$folder/complete"
  ) 9>"$folder/lock" && ln -sfn "$folder/venv" .venv-torch && return 0
  rm -f .venv-torch
  echo "PyTorch could not be installed: its tests will be skipped"
}

# Hundreds of programs are linked: by the quickest linker that there is.
quick_linker() {
  local name found=
  for name in gold lld; do
    if command -v "ld.$name" >/dev/null; then found=-fuse-ld=$name; fi
  done
  echo "-DCMAKE_EXE_LINKER_FLAGS=$found"
}

# The sources of other trainers, for the test of their parsers; shared by all clones of this user.
make_trainers() {
  .ci/trainers.sh 2>/dev/null && return 0
  rm -f .trainers
  echo "the sources of Megatron-LM and torchtitan could not be had: the test of their parsers will be skipped"
}

c_files() {
  find base ir models published propagation lowering cost dqn planners executor api cli bench tests include \
    \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) 2>/dev/null | LC_ALL=C sort
}

# Other versions of clang-format break lines differently.
check_format() {
  if ! clang-format --version | grep -q 'version 14\.'; then
    echo "skipped: not clang-format 14"
    return 0
  fi
  local unformatted
  unformatted=$(c_files | xargs -P "$(nproc)" -n 100 clang-format --dry-run -Werror 2>&1 | grep 'error:' | cut -d: -f1 |
    sort -u)
  if [ -n "$unformatted" ]; then echo "clang-format -i" $unformatted; fi
  [ -z "$unformatted" ]
}

# Sources that this build does not compile have no flags to be checked with.
check_tidy() {
  c_files | grep '\.c$' | grep -v -e '^tests/' -e '/cuda/' |
    xargs -P "$(nproc)" -n 4 clang-tidy -p build --quiet >build/clang-tidy.log 2>build/clang-tidy.err && return 0
  grep -E 'error:' build/clang-tidy.log || tail -5 build/clang-tidy.err
  return 1
}

# CMake searches again for libraries that the last configuration did not find.
wait_for_python() {
  wait "$python" && cmake -S . -B build >>build/build.log
}

# run_tests FOLDER CTEST-OPTION...: one test more than there are processors, since many wait for others
run_tests() {
  local folder=$1
  shift
  (cd "$folder" && ctest --output-on-failure --no-tests=error -j $(($(nproc) + 1)) "$@")
}

sanitized=(-DAUTOMAP_TESTS=ON -DAUTOMAP_MPI=OFF -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O1 -g1")

# The unit tests and the fuzzers share one library: clang's sanitizers, with what libFuzzer counts.
build_sanitized() {
  targets="unit_tests fuzzers" configure_and_build build-asan "${sanitized[@]}" "$(quick_linker)" -DAUTOMAP_SANITIZE=address,undefined \
    -DAUTOMAP_FUZZ=ON -DCMAKE_C_COMPILER=clang
}

# Sanitized programs are several times slower: the short form of their tests, with --full too.
test_sanitized() (
  unset AUTOMAP_FULL
  export HWLOC_PLUGINS_PATH=/nonexistent # plugins open drivers, whose memory and threads LeakSanitizer meets
  run_tests build-asan -L unit
)

test_fuzzers() {
  local seconds=10 fuzzer name
  if [ "$full" = 1 ]; then seconds=60; fi
  tests/fuzz/seeds.sh build/automap build-asan/seeds || return 1
  for fuzzer in tests/fuzz/fuzz_*.c; do
    name=$(basename "$fuzzer" .c)
    mkdir -p "build-asan/corpus/$name"
    echo "$name"
  done | xargs -P "$(nproc)" -I NAME sh -c 'reader=NAME; reader=${reader#fuzz_}
      words=; [ -f "tests/fuzz/$reader.dict" ] && tests/fuzz/dictionary.sh "$reader" >"build-asan/$reader.dict" &&
        words=-dict=build-asan/$reader.dict
      build-asan/NAME -seed=1 -max_total_time='$seconds' -timeout=10 -rss_limit_mb=4096 $words -artifact_prefix=build-asan/NAME- \
        build-asan/corpus/NAME "build-asan/seeds/$reader" >build-asan/NAME.log 2>&1 ||
        { tail -40 build-asan/NAME.log; exit 255; }
      echo "NAME: $(grep -o "Done .*" build-asan/NAME.log)"'
}

# The programs with the label "threads" in their first lines (cmake/AutomapTests.cmake).
test_threads() (
  unset AUTOMAP_FULL
  names=$(grep -lx '/\* labels: threads \*/' -r tests --include='test_*.c' | xargs -n1 basename -s .c)
  targets=$names configure_and_build build-tsan "${sanitized[@]}" "$(quick_linker)" -DAUTOMAP_SANITIZE=thread &&
    run_tests build-tsan -R "^($(paste -sd '|' <<<"$names"))\$"
)

# Prints how many tests of the log were skipped, and how many of these need a GPU.
count_skipped() {
  local skipped on_gpu
  skipped=$(sed -nE 's/^\s*[0-9]+ - (\S+) \(Skipped\).*/\1/p' build/ctest.log.part | sort)
  on_gpu=$(comm -12 <(echo "$skipped") <(ctest --test-dir build -N -L gpu | sed -nE 's/^ *Test *#[0-9]+: //p' | sort))
  echo "$(grep -c . <<<"$skipped") tests skipped, $(grep -c . <<<"$on_gpu") of them because they need a GPU"
}

main() {
  export OPENBLAS_NUM_THREADS=1
  if [ "$full" = 1 ]; then export AUTOMAP_FULL=1; fi
  step "Debian packages" install_packages "${build_packages[@]}" "${test_packages[@]}"
  if [ "$full" = 1 ]; then install_packages chromium-headless-shell || echo "no headless Chromium: its test will be skipped"; fi
  if [ "$quick" = 0 ]; then make_python; make_torch; make_trainers; fi &
  python=$!
  step "build" configure_and_build build -DAUTOMAP_TESTS=ON -DAUTOMAP_TEST_PATIENCE=$((full ? 4 : 1)) "$(quick_linker)"
  case " ${failed[*]-} " in
    *" build "*) echo "failed: ${failed[*]}"; exit 1 ;;
  esac
  sed -n '/features have been enabled/,/^-- Configuring/p' build/build.log | grep '^ \*'
  step "Python packages (beside the build)" wait_for_python
  step "format" check_format
  if [ "$full" = 1 ]; then step "clang-tidy" check_tidy; fi
  if [ "$quick" = 0 ]; then
    step "build with address and undefined-behaviour sanitizers" build_sanitized
    step "unit tests, address and undefined-behaviour sanitizers" test_sanitized
    step "fuzzers" test_fuzzers
    step "unit tests with threads, thread sanitizer" test_threads
  fi
  local selection=(-LE full)
  if [ "$full" = 1 ]; then selection=(); fi
  if [ "$quick" = 1 ]; then selection=(-L 'unit|check' -LE 'long|mpi'); fi
  step "all tests" run_tests build "${selection[@]}" >build/ctest.log.part 2>&1
  printf '%s\n' "${times[@]}"
  if [ ${#failed[@]} -gt 0 ]; then printf 'FAILED: %s\n' "${failed[@]}"; fi
  cat build/ctest.log.part
  count_skipped
  [ ${#failed[@]} -eq 0 ]
}

if [ "$full" = 1 ]; then
  mkdir -p build
  main | tee build/test-summary.txt
  exit "${PIPESTATUS[0]}"
fi
main
