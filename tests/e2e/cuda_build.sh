#!/usr/bin/env bash
# AUTOMAP_CUDA: OFF leaves no trace of CUDA in the library; ON compiles every
# .cu file for both architectures, holds their texts and needs no library of CUDA
# to start; ON without a toolkit is an error that names it. Needs no GPU; parts that need nvcc are skipped without it.
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

grep -q '^AUTOMAP_CUDA:STRING=OFF$' "$AUTOMAP_BUILD/CMakeCache.txt" ||
  { echo "skipped: this is a build with CUDA"; exit 77; }
for trace in cuMemAlloc libcuda nvrtc cublas libcudnn cudnnCreate libnccl ncclComm cuda_source __global__ NVIDIA; do
  if has $trace "$AUTOMAP_LIBRARY"; then
    echo "AUTOMAP_CUDA=OFF, but the library holds $trace"
    exit 1
  fi
done

if cmake -S "$AUTOMAP_SOURCE" -B "$work/none" -G Ninja -DAUTOMAP_TESTS=OFF -DAUTOMAP_CUDA=ON \
  -DCMAKE_CUDA_COMPILER=/nonexistent/nvcc >/dev/null 2>&1; then
  echo "AUTOMAP_CUDA=ON without a compiler was accepted"
  exit 1
fi
if cmake -S "$AUTOMAP_SOURCE" -B "$work/none" -G Ninja -DAUTOMAP_TESTS=OFF -DAUTOMAP_CUDA=perhaps >/dev/null 2>&1; then
  echo "AUTOMAP_CUDA=perhaps was accepted"
  exit 1
fi
source tests/cuda/build.bash
cuda_build automap automap_shared automap_cuda_check
library=$cuda_folder/libautomap.so
for part in libcuda.so.1 cuMemAlloc_v2 libnvrtc.so nvrtcCompileProgram; do
  has $part "$library" || { echo "AUTOMAP_CUDA=ON, but the library lacks $part"; exit 1; }
done
if readelf -d "$library" "$cuda_folder/automap" | grep -E 'NEEDED.*(libcuda|libnvrtc|libcublas|libcudnn|libnccl)'; then
  echo "AUTOMAP_CUDA=ON, and the library does not start without CUDA"
  exit 1
fi
"$cuda_folder/automap" --version | grep -q 'cuda [0-9]' || { echo "automap --version does not tell of CUDA"; exit 1; }
count=0
while read -r image; do
  for target in 'sm_80' 'sm_90' 'target sm_90'; do
    has "$target" "$image" || { echo "$image lacks $target"; exit 1; }
  done
  count=$((count + 1))
done < <(find "$cuda_folder" -name '*.cu.fatbin')
[ "$count" -gt 0 ] || { echo "nvcc has compiled nothing"; exit 1; }
echo "$count CUDA sources compiled for sm_80, sm_90 and PTX; nothing of CUDA is linked"
