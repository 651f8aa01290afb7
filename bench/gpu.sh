#!/usr/bin/env bash
# Tests and measures the CUDA path on a machine that has a GPU and a toolkit (nvcc, CMake, Python
# with JAX), but no network and none of automap's other packages. Everything it needs is put into a
# folder beforehand, on a machine where automap builds:
#
#   bench/gpu.sh --pack DIR         packs programs, tests and benchmarks with their shared libraries,
#                                   models, plans and the CPU's losses: at most 60 MB
#     --nccl FILE                   and this libnccl.so.2, for several NCCL ranks on one card
#   DIR/gpu.sh                      there: unpacks, tests, compares, measures; prints one table
#   bench/gpu.sh [DIR]              the same from a source folder; DIR is build-gpu-pack by default
#     --stages A,B                  groups or names of stages: correctness, speed, profile, ...
#     --stages list                 the stages and their expected seconds
#     --seconds N                   wall time of the run, unpacking included (default 600)
#     --dry-run                     without a card: what a CPU can do, with stand-in libraries of
#                                   CUDA for the tests where the pack has them
#
# One group of stages fits in a run of 600 seconds. A stage that has no time left is no failure. The
# table and results.json are written after every stage, to $OUT, or else are deleted at the end. The
# results of an earlier run there are renamed. The exit status is 1 if a test failed or there is no card.
set -euo pipefail

limit_bytes=$((60 * 1000 * 1000))
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
begin=$(date +%s.%N)
python=$(command -v "${AUTOMAP_PYTHON:-python3}" || true)
if [[ $python == */* ]]; then python=$(realpath -s "$python"); fi

fail() {
  echo "gpu.sh: $*" >&2
  exit 1
}

# Libraries of the programs that not every Linux has. The driver and CUDA's own libraries are
# opened at run time, so ldd does not name them; C++'s and gcc's must be those that CUDA's use.
copy_libraries() {
  local tree=$1
  ldd "$tree"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+)\.so' |
    while read -r library; do cp -L "$library" "$tree/lib/"; done
}

# The programs of the default build, without debugging information, that look for libraries and test data in the pack.
build_programs() {
  local source=$1 build=$2 tree=$3 log=$2/pack.log launcher=() targets=(automap bench_dqn bench_kernels) test
  mkdir -p "$build"
  if command -v ccache >/dev/null; then launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache); fi
  while read -r test; do targets+=("$(basename "$test" .c)"); done < <(
    find "$source/tests" -name 'test_*cuda*.c' -o -name 'test_*nvrtc*.c' | LC_ALL=C sort)
  cmake -S "$source" -B "$build" -G Ninja "${launcher[@]}" -DAUTOMAP_CUDA=ON \
    -DAUTOMAP_MPI=OFF -DAUTOMAP_IMPORTERS=OFF -DAUTOMAP_TEST_DATA=. -DAUTOMAP_STAND_IN_KERNELS=stand_in/kernels \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib' \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >"$log" 2>&1 || { tail -5 "$log"; return 1; }
  ninja -C "$build" "${targets[@]}" >>"$log" 2>&1 || { tail -20 "$log"; return 1; }
  for test in "${targets[@]}"; do
    if [ -f "$build/$test" ]; then install -s -m 755 "$build/$test" "$tree/bin/"; fi
  done
  install -s "$build"/tests/stand_in/lib*.so* "$tree/stand_in/"
}

# The newest version of glibc that a program or library of the pack asks for.
needed_glibc() {
  objdump -T "$1"/bin/* "$1"/lib/* | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1 | tr _ ' '
}

# Exports the models that are compared with JAX; without JAX that is left to the machine with the card.
export_models() {
  local tree=$1
  if ! "$python" -c 'import jax' 2>/dev/null; then
    echo "no JAX here (AUTOMAP_PYTHON names another Python): large models will be exported on the machine with the card"
    return 0
  fi
  (cd "$tree" && PYTHONPATH=datasets PYTHONDONTWRITEBYTECODE=1 "$python" bench/gpu_beside_jax.py --export) ||
    fail "the export of a model failed"
}

pack() {
  local target=$1 nccl=$2 source tree bytes
  source=$(cd "$here/.." && pwd)
  mkdir -p "$target"
  target=$(cd "$target" && pwd)
  if [[ $target/ == $source/* ]] && git -C "$source" rev-parse 2>/dev/null; then
    git -C "$source" check-ignore -q "$target/" || fail "$target lies in the source folder and is not ignored by git"
  fi
  tree=$(mktemp -d)
  trap "rm -rf '$tree'" EXIT
  mkdir -p "$tree"/{bin,lib,stand_in,bench,datasets/models,tests/data}
  build_programs "$source" "${AUTOMAP_PACK_BUILD:-$source/build-pack}" "$tree" || fail "the build failed"
  copy_libraries "$tree"
  cp "$source"/bench/gpu_*.* "$tree/bench/"
  cp -r "$source/datasets/automap_jax" "$source/datasets/digits" "$tree/datasets/"
  cp -r "$source/tests/cuda" "$tree/tests/"
  cp -r "$source/tests/data/text" "$tree/tests/data/"
  for model in "$source"/datasets/models/*/state.npz; do cp -r "$(dirname "$model")" "$tree/datasets/models/"; done
  cp -r "$source/datasets/models/mlp_evaluate" "$tree/datasets/models/"
  export_models "$tree"
  (cd "$tree" && "$python" bench/gpu_train.py) || fail "the plans and losses of the pack could not be made"
  if [ -n "$nccl" ]; then mkdir "$tree/nccl" && cp -L "$nccl" "$tree/nccl/libnccl.so.2"; fi
  find "$tree" -name __pycache__ -prune -exec rm -rf {} +
  tar -C "$tree" -c . | gzip -9 >"$target/payload.tar.gz"
  install -m 755 "${BASH_SOURCE[0]}" "$target/gpu.sh"
  bytes=$(du -bs "$target" | cut -f1)
  echo "$target: $((bytes / 1000000)) MB, $(find "$tree/bin" -type f | wc -l) programs," \
    "$(find "$tree/lib" -type f | wc -l) libraries, $(find "$tree/stand_in" -type f | wc -l) stand-ins," \
    "for $(needed_glibc "$tree") or later"
  [ "$bytes" -le "$limit_bytes" ] || fail "more than 60 MB"
}

# Folders of CUDA's libraries: the toolkit's, and those that come as packages of Python or Conda.
cuda_folders() {
  local nvcc
  nvcc=$(command -v nvcc || true)
  for folder in "${CUDA_PATH:-}" "${CUDA_HOME:-}" "${nvcc%/bin/nvcc}" /usr/local/cuda; do
    [ -n "$folder" ] && [ -d "$folder/lib64" ] && echo "$folder/lib64"
  done
  "$python" -c '
import glob, site, sys
for folder in dict.fromkeys([*sys.path, *site.getsitepackages(), site.getusersitepackages()]):
    print(*sorted(glob.glob(f"{folder}/nvidia/*/lib")), sep="\n")
if glob.glob(f"{sys.prefix}/lib/libnvrtc.so.*"):
    print(f"{sys.prefix}/lib")' 2>/dev/null | grep . || true
}

# Starts the driver, which has to serve at least CUDA $1. Prints the folder that has to come first for it, if the
# loader does not find it by itself. Without a driver that starts, prints the answer of each.
find_card() {
  "$python" -c '
import ctypes, os, sys
wanted, answers = int(sys.argv[1] or 0), {}
for folder in ("", "/usr/local/nvidia/lib64/", "/usr/local/nvidia/lib/", "/usr/lib/wsl/lib/",
               "/usr/lib/x86_64-linux-gnu/", "/usr/lib64/", "/usr/local/cuda/compat/"):
    path, version = folder + "libcuda.so.1", ctypes.c_int()
    try:
        driver = ctypes.CDLL(path)
    except OSError as failure:
        if os.path.exists(path) or not folder:
            answers[path] = str(failure)
        continue
    failed = driver.cuInit(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    if failed:
        answers[path] = f"cuInit() fails with error {failed}"
    elif version.value // 1000 < wanted:
        answers[path] = f"serves CUDA {version.value // 1000}.{version.value % 1000 // 10}, the pack needs {wanted}"
    else:
        print(folder.rstrip("/"))
        sys.exit(0)
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
if visible is not None:
    answers["CUDA_VISIBLE_DEVICES"] = repr(visible)
print(*(f"{path}: {answer}" for path, answer in answers.items()), sep="; ")
sys.exit(1)' "$1" 2>/dev/null
}

# The major version of CUDA that the programs of a pack are built with.
needed_cuda() {
  "$1/bin/automap" --version 2>/dev/null | grep -oE '(^| )cuda [0-9]+' | grep -oE '[0-9]+' || true
}

list_stages() {
  local folder=$1 work
  if [ -f "$here/gpu_card.py" ]; then exec "$python" -B "$here/gpu_card.py" --stages list; fi
  [ -f "$folder/payload.tar.gz" ] || fail "no payload.tar.gz in $folder"
  work=$(mktemp -d)
  trap "rm -rf '$work'" EXIT
  tar -xzf "$folder/payload.tar.gz" -C "$work" ./bench
  "$python" -B "$work/bench/gpu_card.py" --stages list
}

# The folder for models that the pack lacks and a run exports, for later runs with this pack: beside it, else in $OUT.
exported_models() {
  local folder=$1 work=$2 name
  name=exported-$(cksum <"$folder/payload.tar.gz" | cut -d' ' -f1)
  if [ -w "$folder" ]; then echo "$folder/$name"; else echo "${OUT:-$work}/$name"; fi
}

# run_pack FOLDER DRY_RUN ARGUMENT...
run_pack() {
  local folder=$1 dry_run=$2 work driver wrong status=0 child
  shift 2
  [ -f "$folder/payload.tar.gz" ] || fail "no payload.tar.gz in $folder: make it by bench/gpu.sh --pack $folder"
  work=$(mktemp -d 2>/dev/null) || fail "no folder for the programs in ${TMPDIR:-/tmp}: TMPDIR names another place"
  trap "rm -rf '$work'" EXIT
  tar -xzf "$folder/payload.tar.gz" -C "$work" ||
    fail "$folder/payload.tar.gz is damaged, or ${TMPDIR:-/tmp} has no room: TMPDIR names another place"
  wrong=$("$work/bin/automap" --version 2>&1 >/dev/null) ||
    fail "the pack's programs do not start here: ${wrong##*$'\n'}"
  if [ "$dry_run" = 0 ]; then
    driver=$(find_card "$(needed_cuda "$work")") ||
      fail "no card here that a driver opens ($driver); --dry-run does what can be done without"
    if [ -n "$driver" ]; then export LD_LIBRARY_PATH=$driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
  fi
  GPU_LIBRARY_PATH=$(cuda_folders | awk '!seen[$0]++' | paste -sd :)
  export GPU_LIBRARY_PATH
  if [ -n "${OUT:-}" ]; then OUT=$(realpath -m "$OUT"); fi
  GPU_EXPORTED=$(exported_models "$folder" "$work")
  export GPU_EXPORTED
  cd "$work"
  "$python" -B -u bench/gpu_card.py --logs "${OUT:-$work/logs}" --begin "$begin" "$@" &
  child=$!
  trap 'kill -TERM "$child" 2>/dev/null || true' TERM INT HUP # the results so far are then written
  while true; do
    status=0
    wait "$child" || status=$?
    kill -0 "$child" 2>/dev/null || return "$status"
  done
}

main() {
  local folder='' dry_run=0 pack='' nccl='' arguments=()
  while [ $# -gt 0 ]; do
    case $1 in
      --pack | --nccl | --stages | --seconds) [ $# -gt 1 ] || fail "$1 needs a value; see --help" ;;&
      --pack) pack=$2 && shift ;;
      --nccl) nccl=$2 && shift ;;
      --stages | --seconds) arguments+=("$1" "$2") && shift ;;
      --dry-run) dry_run=1 && arguments+=(--dry-run) ;;
      --help | -h) sed -n '2,25s/^# \?//p' "${BASH_SOURCE[0]}"; return ;;
      -*) fail "no option $1; see --help" ;;
      *) [ -z "$folder" ] || fail "two folders: $folder and $1"; folder=$1 ;;
    esac
    shift
  done
  [ -n "$python" ] || fail "no ${AUTOMAP_PYTHON:-python3}: name one by AUTOMAP_PYTHON"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    fail "$python is no Python of version 3.10 or later: name one by AUTOMAP_PYTHON"
  [ -z "$nccl" ] || [ -f "$nccl" ] || fail "$nccl: no such file (expected libnccl.so.2)"
  if [ -n "$pack" ]; then pack "$pack" "$nccl"; return; fi
  if [ -z "$folder" ]; then
    if [ -f "$here/payload.tar.gz" ]; then folder=$here; else folder=$here/../build-gpu-pack; fi
  fi
  folder=$(realpath -m "$folder")
  if [[ " ${arguments[*]} " == *" --stages list "* ]]; then list_stages "$folder"; return; fi
  run_pack "$folder" "$dry_run" "${arguments[@]}"
}

main "$@"
