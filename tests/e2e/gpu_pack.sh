#!/usr/bin/env bash
# bench/gpu.sh: packs, is unpacked in an empty folder with a bare environment, and goes through its
# three groups of stages without a card; then, as on a card, with stand-ins that only LD_LIBRARY_PATH
# leads to. Skipped where there is no CUDA toolkit to build with.
# labels: cpu full
# timeout: 1800
set -euo pipefail
if [ -n "${AUTOMAP_SANITIZE:-}" ]; then
  echo "skipped: the sanitizers' own build is not the one to pack"
  exit 77
fi
if ! command -v nvcc >/dev/null && [ ! -x "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" ]; then
  echo "skipped: no CUDA toolkit"
  exit 77
fi
cd "${AUTOMAP_SOURCE:-$(dirname "$0")/../..}"
# The build of the pack lies beside the other one, so that ccache shares what both compile.
build=$(cd "${AUTOMAP_BUILD:-build}" && pwd)
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# shows TEXT: the last run's table has this line
shows() {
  grep -qE "$1" "$work/out/table.txt" || { echo "the table lacks '$1'"; cat "$work/log"; exit 1; }
}

# A pack in the source folder must not come into a commit by accident.
if AUTOMAP_PACK_BUILD=/nonexistent bench/gpu.sh --pack docs >"$work/log" 2>&1; then
  echo "a pack in a folder that git follows was accepted"
  exit 1
fi
if bench/gpu.sh --pack "$work/pack" --nccl /nonexistent >"$work/log" 2>&1; then
  echo "an NCCL that is not there was packed"
  exit 1
fi
toolkit=$(dirname "$(dirname "$(realpath "$(command -v nvcc || echo "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc")")")")
cc -O2 -std=gnu17 -shared -fPIC -I. -Iinclude -I"$toolkit/include" -DSTAND_IN_SOURCE='"."' \
  -DSTAND_IN_FOLDER='"stand_in/kernels"' \
  tests/cuda/stand_in/nccl.c executor/array/scalar64.c base/dtype.c base/float_format.c -o "$work/libnccl.so.2"
AUTOMAP_PACK_BUILD=$build-pack bench/gpu.sh --pack "$work/pack" --nccl "$work/libnccl.so.2" | tee "$work/log"
stand_ins=$build-pack/tests/stand_in
[ "$(du -bs "$work/pack" | cut -f1)" -le 60000000 ] || { echo "the pack is larger than 60 MB"; exit 1; }
mkdir "$work/home" "$work/tree"
tar -xzf "$work/pack/payload.tar.gz" -C "$work/tree"
foreign=$(for program in "$work"/tree/bin/*; do env -i ldd "$program"; done | awk '$2 == "=>"' |
  grep -vE "=> $work/tree/|^[[:space:]]*(libc|libm|libgcc_s)[.]so" || true)
[ -z "$foreign" ] || { echo "the pack needs libraries of this machine: $foreign"; exit 1; }

# visit ARGUMENT...: a run in a bare environment; its table is in $work/out
visit() {
  rm -rf "$work/out"
  if ! (cd "$work/home" && env \
    -i PATH=/usr/bin:/bin HOME="$work/home" OUT="$work/out" "${bare[@]}" "$work/pack/gpu.sh" "$@") \
    >"$work/log" 2>&1; then
    cat "$work/log"
    exit 1
  fi
  tail -n 2 "$work/out/table.txt"
}
bare=()
visit --dry-run --stages tests,training
shows '^card +none: a dry run'
shows '^automap .*cuda [0-9]'
shows '^test_cuda_kernels +passed'
shows '^gpt2_bf16_tiny, 4 ranks, searched +passed'
shows ' passed,? '
visit --dry-run --stages speed
shows '^copy, the limit of memory +[0-9]'
shows '^64-128-16 batch 32 +[0-9]'
shows '^agent train on cpu +[0-9]+ /s'
visit --dry-run --stages profile
shows '^gpt2_tiny +[-+][0-9.]+ % +predicted'
shows '^ +[0-9.]+ +[0-9.]+% +[0-9]+  dot'

# The driver and all libraries lie where only LD_LIBRARY_PATH leads.
bare=(LD_LIBRARY_PATH="$stand_ins")
visit --stages nccl
shows '^test_cuda_nccl +passed'
shows '^gpt2_tiny, 4 ranks, NCCL +passed'
cd "$work/tree"
env -i PATH=/usr/bin:/bin HOME="$work/home" LD_LIBRARY_PATH="$stand_ins" AUTOMAP=bin/automap \
  python3 bench/gpu_beside_jax.py mlp_tiny:f32 --side automap --json | grep '"graph_nodes": [1-9]'
