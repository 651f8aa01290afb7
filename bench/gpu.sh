#!/usr/bin/env bash
# Tests and measures the CUDA path on a machine that has a GPU and a toolkit (nvcc, CMake, Python
# with JAX), but no network and none of automap's other packages. Everything it needs is put into a
# folder beforehand, on a machine where automap builds:
#
#   bench/gpu.sh --pack DIR         programs, tests and benchmarks with the shared libraries they
#                                   need, small models, exported GPT-2: at most 60 MB
#   DIR/gpu.sh                      there: unpacks, tests, compares, measures; prints one table
#   bench/gpu.sh [DIR]              the same from a source folder; DIR is build-gpu-pack by default
#   bench/gpu.sh [DIR] --dry-run    without a card: what a CPU can do, with stand-in libraries of
#                                   CUDA for the tests where the pack has them
#
# A run takes less than 10 minutes: every stage has a time limit, and one that does not finish is
# said to. Its files go to $OUT, or else are deleted. The exit status is 1 if a test failed.
set -euo pipefail

limit_bytes=$((60 * 1000 * 1000))
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${AUTOMAP_PYTHON:-python3}

fail() {
  echo "gpu.sh: $*" >&2
  exit 1
}

# What the programs need beside what every Linux has. The driver and CUDA's own libraries are
# opened at run time, so ldd does not name them; C++'s and gcc's must be those that CUDA's use.
copy_libraries() {
  local tree=$1
  ldd "$tree"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+)\.so' |
    while read -r library; do cp -L "$library" "$tree/lib/"; done
}

# The programs, without debugging information, that look for libraries and test data in the pack.
build_programs() {
  local source=$1 build=$2 tree=$3 log=$2/pack.log launcher=() targets=(automap bench_dqn bench_kernels) test
  mkdir -p "$build"
  if command -v ccache >/dev/null; then launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache); fi
  for test in "$source"/tests/unit/test_*cuda*.c "$source"/tests/unit/test_*nvrtc*.c; do
    [ -e "$test" ] && targets+=("$(basename "$test" .c)")
  done
  cmake -S "$source" -B "$build" -G Ninja "${launcher[@]}" -DCMAKE_BUILD_TYPE=Release -DAUTOMAP_CUDA=ON \
    -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DAUTOMAP_TEST_DATA=. -DAUTOMAP_STAND_IN_KERNELS=stand_in/kernels \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib' \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >"$log" 2>&1 || { tail -5 "$log"; return 1; }
  ninja -C "$build" "${targets[@]}" >>"$log" 2>&1 || { tail -20 "$log"; return 1; }
  for test in "${targets[@]}"; do
    if [ -f "$build/$test" ]; then install -s -m 755 "$build/$test" "$tree/bin/"; fi
  done
  install -s "$build"/tests/stand_in/lib*.so* "$tree/stand_in/"
}

# Exports GPT-2 as one card trains it; without JAX that is left to the machine with the card.
export_models() {
  local tree=$1 name
  for name in gpt2_batch8 gpt2_bf16_batch8; do
    (cd "$tree/datasets" && JAX_PLATFORMS=cpu "$python" -m automap_jax.export "$name" --out "models/$name") \
      2>/dev/null && continue
    rm -rf "$tree/datasets/models/$name"
    echo "no JAX here: $name will be exported on the machine with the card"
  done
}

pack() {
  local target=$1 source tree bytes
  source=$(cd "$here/.." && pwd)
  mkdir -p "$target"
  target=$(cd "$target" && pwd)
  if [[ $target/ == $source/* ]]; then
    git -C "$source" check-ignore -q "$target/" || fail "$target lies in the source folder and is not ignored by git"
  fi
  tree=$(mktemp -d)
  trap "rm -rf '$tree'" EXIT
  mkdir -p "$tree"/{bin,lib,stand_in,bench,datasets/models,tests/unit}
  build_programs "$source" "${AUTOMAP_PACK_BUILD:-$source/build-pack}" "$tree" || fail "the build failed"
  copy_libraries "$tree"
  cp "$source"/bench/gpu_*.py "$source"/bench/gpu_*.json "$tree/bench/"
  cp -r "$source/datasets/automap_jax" "$source/datasets/digits" "$tree/datasets/"
  cp -r "$source/tests/cuda" "$source/tests/text" "$tree/tests/"
  for model in "$source"/datasets/models/*/state.npz; do cp -r "$(dirname "$model")" "$tree/datasets/models/"; done
  cp -r "$source/datasets/models/mlp_evaluate" "$tree/datasets/models/"
  export_models "$tree"
  find "$tree" -name __pycache__ -prune -exec rm -rf {} +
  tar -C "$tree" -c . | gzip -9 >"$target/payload.tar.gz"
  install -m 755 "${BASH_SOURCE[0]}" "$target/gpu.sh"
  bytes=$(du -bs "$target" | cut -f1)
  echo "$target: $((bytes / 1000000)) MB, $(find "$tree/bin" -type f | wc -l) programs," \
    "$(find "$tree/lib" -type f | wc -l) libraries, $(find "$tree/stand_in" -type f | wc -l) stand-ins"
  [ "$bytes" -le "$limit_bytes" ] || fail "more than 60 MB"
}

# Folders of CUDA's libraries: the toolkit's, and those that come as Python packages.
cuda_folders() {
  local nvcc
  nvcc=$(command -v nvcc || true)
  for folder in "${CUDA_PATH:-}" "${CUDA_HOME:-}" "${nvcc%/bin/nvcc}" /usr/local/cuda; do
    [ -n "$folder" ] && [ -d "$folder/lib64" ] && echo "$folder/lib64"
  done
  "$python" -c '
import glob, site, sys
for folder in dict.fromkeys([*sys.path, *site.getsitepackages(), site.getusersitepackages()]):
    print(*sorted(glob.glob(f"{folder}/nvidia/*/lib")), sep="\n")' 2>/dev/null | grep . || true
}

has_card() {
  "$python" -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libcuda.so.1").cuInit(0) != 0)' 2>/dev/null
}

run_pack() {
  local folder=$1 dry_run=$2 work
  [ -f "$folder/payload.tar.gz" ] || fail "no payload.tar.gz in $folder: make it by bench/gpu.sh --pack $folder"
  command -v "$python" >/dev/null || fail "no $python: name one by AUTOMAP_PYTHON"
  work=$(mktemp -d)
  trap "rm -rf '$work'" EXIT
  tar -xzf "$folder/payload.tar.gz" -C "$work"
  if [ "$dry_run" = 0 ] && ! has_card; then
    fail "no card here, or no driver that opens it; --dry-run does what can be done without"
  fi
  local arguments=(--logs "${OUT:-$work/logs}")
  if [ "$dry_run" = 1 ]; then arguments+=(--dry-run); fi
  cd "$work"
  GPU_LIBRARY_PATH=$(cuda_folders | awk '!seen[$0]++' | paste -sd :) "$python" -u bench/gpu_card.py "${arguments[@]}"
}

main() {
  local folder='' dry_run=0
  while [ $# -gt 0 ]; do
    case $1 in
      --pack) [ $# -eq 2 ] || fail "usage: bench/gpu.sh --pack DIR"; pack "$2"; return ;;
      --dry-run) dry_run=1 ;;
      --help | -h) sed -n '2,16s/^# \?//p' "${BASH_SOURCE[0]}"; return ;;
      -*) fail "no option $1; see --help" ;;
      *) folder=$1 ;;
    esac
    shift
  done
  if [ -z "$folder" ]; then
    if [ -f "$here/payload.tar.gz" ]; then folder=$here; else folder=$here/../build-gpu-pack; fi
  fi
  run_pack "$(realpath -m "$folder")" "$dry_run"
}

main "$@"
