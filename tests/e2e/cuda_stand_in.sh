#!/usr/bin/env bash
# The CUDA path without a GPU: a build with CUDA, warning-free, and in it the
# tests of the CUDA path on stand-in libraries (tests/cuda/stand_in) and of all
# device code, which NVRTC compiles. Skipped without a toolkit.
# labels: cpu e2e
# timeout: 900
# cost: 150
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
mapfile -t tests < <(find tests -name 'test_*cuda*.c' -o -name 'test_generated*.c' -o -name 'test_embedded*.c' |
  sed 's|.*/||; s/\.c$//' | sort)
cuda_build automap automap_shared automap_cuda_check "${tests[@]}"
cd "$cuda_folder"
long=(-LE full)
if [ -n "${AUTOMAP_FULL:-}" ]; then long=(); fi
ctest --output-on-failure --no-tests=error -j "$(nproc)" -L unit "${long[@]}" -R 'cuda|generated|embedded' |
  tee ctest.log
if skipped=$(grep -E '[0-9] - test_.*\(Skipped\)' ctest.log | grep -v '_gpu '); then
  echo "the stand-ins do not stand in:"
  echo "$skipped"
  exit 1
fi

# The same on other arithmetic: sums in another order, results and functions a unit in the last place away.
STAND_IN_PERTURB=2 ctest --output-on-failure --no-tests=error -j "$(nproc)" \
  -R '^test_cuda_(blas|dnn|dot|convolution|dqn|kernels)$'

# The tool: trains on a stand-in; without a driver, or memory, one line and exit status 5.
model=$AUTOMAP_SOURCE/datasets/models/mlp_tiny
stand_ins=$cuda_folder/tests/stand_in
run() {
  ./automap run "$model/model.hlo.pb" --plan none --state "$model/state.npz" --data "$model/data.npz" --steps 3 \
    --device cuda "$@"
}
export XDG_CACHE_HOME=$stand_ins/cache
steps=$(LD_LIBRARY_PATH=$stand_ins run)
grep -q 'step      2   loss 2.33708' <<<"$steps" || { echo "$steps"; exit 1; }
report=$(LD_LIBRARY_PATH=$stand_ins run --json | tail -n 1)
grep -qE '"kernels":[{]"compile_seconds":[0-9.e-]+,"graphs":1,"graph_nodes":[1-9]' <<<"$report" ||
  { echo "the report of a run has no graph: $report"; exit 1; }

# refused TEXT COMMAND...: exit status 5 and, beside warnings, one line that holds TEXT
refused() {
  local status=0 words
  words=$("${@:2}" 2>&1 >/dev/null) || status=$?
  words=$(grep -v '^automap: warning: ' <<<"$words" || true)
  if [ $status -ne 5 ] || ! grep -q "$1" <<<"$words" || [ "$(wc -l <<<"$words")" -ne 1 ]; then
    echo "expected exit status 5 and one line with '$1', not $status and: $words"
    exit 1
  fi
}
STAND_IN_MEMORY=10000 LD_LIBRARY_PATH=$stand_ins refused 'out of memory on GPU 0' run
# Queries are packed in the order of the scores, or scores copied by slices: in scratch memory they would take 34 GB.
STAND_IN_MEMORY=100000000 LD_LIBRARY_PATH=$stand_ins refused "; 651 GB of values, [0-9]* MB of scratch memory" \
  ./automap run "$AUTOMAP_SOURCE/datasets/models/llama3_8b/model.hlo.pb.zst" --plan none --state random --steps 1 \
  --device cuda
STAND_IN_VERSION=11080 LD_LIBRARY_PATH=$stand_ins refused 'too old' run
# An older driver lacks functions of the newer one.
mkdir -p "$cuda_folder/old_driver"
echo 'int cuDriverGetVersion(int *version) { return *version = 11040, 0; }' |
  cc -shared -fPIC -x c - -o "$cuda_folder/old_driver/libcuda.so.1"
LD_LIBRARY_PATH=$cuda_folder/old_driver:$stand_ins refused 'too old: it serves CUDA 11.4' run
STAND_IN_FAIL=cuInit=100 LD_LIBRARY_PATH=$stand_ins refused 'no GPU' run
CUDA_VISIBLE_DEVICES=7 STAND_IN_DEVICES=0 LD_LIBRARY_PATH=$stand_ins refused "(CUDA_VISIBLE_DEVICES is '7')" run
XDG_CACHE_HOME=/dev/null STAND_IN_FAIL=nvrtcCompileProgram=7 LD_LIBRARY_PATH=$stand_ins \
  refused 'NVRTC compiles no kernels: NVRTC_ERROR_BUILTIN_OPERATION_FAILURE$' run
STAND_IN_FAIL=cuGraphLaunch=700 LD_LIBRARY_PATH=$stand_ins refused 'rank 0: GPU 0' run
STAND_IN_FAIL=cuLaunchKernel=700 LD_LIBRARY_PATH=$stand_ins refused 'starting a kernel' \
  ./automap agent train --episodes 64 --device cuda --quiet -o agent.safetensors
if ! ldconfig -p | grep -q 'libcuda[.]so[.]1'; then
  refused 'cannot open the NVIDIA driver' run
  tried=$(LD_DEBUG=files run 2>&1 || true)
  for folder in /usr/local/nvidia/lib64 /usr/lib/wsl/lib /usr/lib/x86_64-linux-gnu /usr/local/cuda/compat; do
    grep -q "file=$folder/libcuda.so.1" <<<"$tried" || { echo "no driver is looked for in $folder"; exit 1; }
  done
fi
