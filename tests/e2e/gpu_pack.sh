#!/usr/bin/env bash
# bench/gpu.sh: packs, is unpacked in an empty folder with a bare environment, and goes through its
# stages without a card. Skipped where there is no CUDA toolkit to build with.
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
build=$(cd "${AUTOMAP_BUILD:-build}" && pwd)
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
AUTOMAP_PACK_BUILD=$build/pack bench/gpu.sh --pack "$work/pack" | tee "$work/log"
[ "$(du -bs "$work/pack" | cut -f1)" -le 60000000 ] || { echo "the pack is larger than 60 MB"; exit 1; }
mkdir "$work/home"
if ! (cd "$work/home" && env -i PATH=/usr/bin:/bin HOME="$work/home" OUT="$work/out" "$work/pack/gpu.sh" --dry-run) \
  >"$work/log" 2>&1; then
  cat "$work/log"
  exit 1
fi
shows '^card +none: a dry run'
shows '^automap .*cuda [0-9]'
shows '^gpt2_bf16_tiny, 4 ranks, searched +passed'
shows '^copy, the limit of memory +[0-9]'
shows '^64-128-16 batch 32 +[0-9]'
shows ' passed,? '
tail -n 2 "$work/out/table.txt"
