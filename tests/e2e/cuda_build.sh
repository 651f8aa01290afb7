#!/usr/bin/env bash
# AUTOMAP_CUDA: OFF leaves no trace of CUDA in the library; ON compiles every
# .cu file for both architectures and links it; ON without a toolkit is an error
# that says so. Needs no GPU; what needs nvcc is skipped without it.
# labels: cpu full
# timeout: 900
set -euo pipefail
if [ -n "${AUTOMAP_SANITIZE:-}" ]; then
  echo "skipped: the sanitizers' own build is not the one to look at"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# has TEXT FILE: whether the binary holds this text
has() { grep -qaF "$1" "$2"; }

grep -q '^AUTOMAP_CUDA:STRING=OFF$' "$AUTOMAP_BUILD/CMakeCache.txt" || { echo "skipped: this is a build with CUDA"; exit 77; }
for trace in cudaMalloc cuda_probe libcudart nvrtc cuda_source NVIDIA; do
  if has $trace "$AUTOMAP_LIBRARY"; then
    echo "AUTOMAP_CUDA=OFF, but the library holds $trace"
    exit 1
  fi
done

configure() {
  cmake -S "$AUTOMAP_SOURCE" -B "$work/$1" -G Ninja -DAUTOMAP_TESTS=OFF -DCMAKE_C_COMPILER_LAUNCHER="$(command -v ccache || true)" \
    "${@:2}" >"$work/log" 2>&1
}
if configure none -DAUTOMAP_CUDA=ON -DCMAKE_CUDA_COMPILER=/nonexistent/nvcc; then
  echo "AUTOMAP_CUDA=ON without a compiler was accepted"
  exit 1
fi
if ! configure cuda -DAUTOMAP_CUDA=ON; then
  grep -q 'no working CUDA toolkit' "$work/log" || { cat "$work/log"; exit 1; }
  echo "skipped: no CUDA toolkit; without one, ON is refused as it should be"
  exit 77
fi
ninja -C "$work/cuda" automap_shared >"$work/log" 2>&1 || { tail -30 "$work/log"; exit 1; }
library=$work/cuda/libautomap.so
for part in sm_80 sm_90 cudaMalloc nvrtcCompileProgram; do
  has $part "$library" || { echo "AUTOMAP_CUDA=ON, but the library lacks $part"; exit 1; }
done
echo "CUDA sources compiled for sm_80 and sm_90 and linked"
