#!/usr/bin/env bash
# The CUDA path without a GPU: a build with CUDA, warning-free, and in it the
# tests of the CUDA path and of generated kernels, on stand-in libraries
# (tests/cuda/stand_in). Skipped without a toolkit.
# labels: cpu e2e
# timeout: 900
set -euo pipefail
if [ -n "${AUTOMAP_SANITIZE:-}" ]; then
  echo "skipped: the sanitizers' own build is not the one to look at"
  exit 77
fi
if ! grep -q '^AUTOMAP_CUDA:STRING=OFF$' "$AUTOMAP_BUILD/CMakeCache.txt"; then
  echo "skipped: this is a build with CUDA, which has these tests itself"
  exit 77
fi
source tests/cuda/build.bash
mapfile -t tests < <(cd tests/unit && printf '%s\n' test_*cuda*.c test_generated*.c | sort -u | sed 's/\.c$//')
cuda_build automap automap_shared automap_cuda_check "${tests[@]}"
cd "$cuda_folder"
ctest --output-on-failure --no-tests=error -j "$(nproc)" -L unit -R 'cuda|generated' | tee ctest.log
if skipped=$(grep -E '[0-9] - test_.*\(Skipped\)' ctest.log | grep -v '_gpu '); then
  echo "the stand-ins do not stand in:"
  echo "$skipped"
  exit 1
fi
