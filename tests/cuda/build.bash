# The build with CUDA that scripts share: $AUTOMAP_BUILD-cuda, kept from run to
# run. Sourced by tests/e2e/cuda_*.sh; one of them builds at a time. It lies beside the
# other build, where ccache finds what both compile to be the same (.ci/packages.sh).
cuda_folder=$AUTOMAP_BUILD-cuda

# cuda_build TARGET...: configures where that was not done and builds the targets.
# Exits with 77 where there is no toolkit, with 1 and the end of the log where a
# build fails.
cuda_build() {
  local log=$AUTOMAP_BUILD/cuda.log
  export CCACHE_BASEDIR=$AUTOMAP_SOURCE CCACHE_NOHASHDIR=1
  exec 9>"$AUTOMAP_BUILD/cuda.lock"
  flock 9
  if [ ! -f "$cuda_folder/build.ninja" ] &&
    ! cmake -S "$AUTOMAP_SOURCE" -B "$cuda_folder" -G Ninja -DAUTOMAP_CUDA=ON -DAUTOMAP_WERROR=ON \
      -DCMAKE_C_COMPILER_LAUNCHER="$(command -v ccache || true)" >"$log" 2>&1; then
    grep -q 'no working CUDA toolkit' "$log" || { tail -30 "$log"; exit 1; }
    echo "skipped: no CUDA toolkit; without one, ON is refused as it should be"
    exit 77
  fi
  ninja -C "$cuda_folder" "$@" >"$log" 2>&1 || { grep -E -A 10 'error|warning|FAILED' "$log" | head -60; exit 1; }
  exec 9>&-
}
