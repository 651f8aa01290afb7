#!/usr/bin/env bash
# AUTOMAP_CUDA: OFF leaves no trace of CUDA in the library; ON compiles every
# .cu file for both architectures, holds their texts and needs no library of CUDA
# to start; ON without a toolkit is an error that says so. Needs no GPU; what
# needs nvcc is skipped without it.
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
for trace in cuMemAlloc libcuda nvrtc cublas cudnn nccl cuda_source __global__ NVIDIA; do
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
ninja -C "$work/cuda" automap_shared automap automap_cuda_check >"$work/log" 2>&1 || { tail -30 "$work/log"; exit 1; }
library=$work/cuda/libautomap.so
for part in libcuda.so.1 cuMemAlloc_v2 libnvrtc.so nvrtcCompileProgram; do
  has $part "$library" || { echo "AUTOMAP_CUDA=ON, but the library lacks $part"; exit 1; }
done
if readelf -d "$library" "$work/cuda/automap" | grep -E 'NEEDED.*(libcuda|libnvrtc|libcublas|libcudnn|libnccl)'; then
  echo "AUTOMAP_CUDA=ON, and the library does not start without CUDA"
  exit 1
fi
"$work/cuda/automap" --version | grep -q 'cuda [0-9]' || { echo "automap --version does not tell of CUDA"; exit 1; }
count=0
while read -r image; do
  for target in 'sm_80' 'sm_90' 'target sm_90'; do
    has "$target" "$image" || { echo "$image lacks $target"; exit 1; }
  done
  count=$((count + 1))
done < <(find "$work/cuda" -name '*.cu.fatbin')
[ "$count" -gt 0 ] || { echo "nvcc has compiled nothing"; exit 1; }
echo "$count CUDA sources compiled for sm_80, sm_90 and PTX; nothing of CUDA is linked"
