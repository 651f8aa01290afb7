#!/usr/bin/env bash
# Builds an NCCL for `bench/gpu.sh --pack DIR --nccl FILE`: one architecture, and only the collectives and types
# that automap uses, as rings with the Simple protocol. The result of NCCL 2.30.7 has 8 MB, the official library 250 MB.
#
#   bench/build_nccl.sh SOURCE OUT [ARCHITECTURE]    SOURCE: a checkout of NCCL 2.30 or later;
#                                                    OUT: the library; ARCHITECTURE: 90 by default
#
# Several ranks on one card need NCCL 2.30. A run with this library needs NCCL_ALGO=Ring and
# NCCL_PROTO=Simple, since other algorithms are missing.
set -euo pipefail

fail() {
  echo "build_nccl.sh: $*" >&2
  exit 2
}

[ $# -ge 2 ] && [ $# -le 3 ] || fail "usage: bench/build_nccl.sh SOURCE OUT [ARCHITECTURE]"
source=$(realpath "$1")
out=$2
architecture=${3:-90}
toolkit=${CUDA_PATH:-${CUDA_HOME:-/usr/local/cuda}}
[ -f "$source/makefiles/version.mk" ] || fail "$source: not a checkout of NCCL (makefiles/version.mk is missing)"
version=$(awk '$1 == "NCCL_MAJOR" { major = $3 } $1 == "NCCL_MINOR" { print major * 100 + $3 }' \
  "$source/makefiles/version.mk")
[ "${version:-0}" -ge 230 ] || fail "$source: NCCL $((version / 100)).$((version % 100)) (expected 2.30 or later)"
[ -x "$toolkit/bin/nvcc" ] || fail "$toolkit: no nvcc; name the toolkit by CUDA_PATH"

types='(i8|u8|i32|u32|i64|u64|f16|bf16|f32|f64)'
reductions="(Sum|Prod|MinMax) $types RING SIMPLE"
functions="SendRecv|AllGather RING SIMPLE|Broadcast RING SIMPLE"
for collective in AllReduce Reduce ReduceScatter; do functions+="|$collective $reductions"; done

# The checkout's headers precede those of an NCCL that the toolkit's folder may contain.
make -C "$source" -j"$(nproc)" src.build CUDA_HOME="$toolkit" ONLY_FUNCS="$functions" \
  CXX="${CXX:-g++} -I$source/build/include -I$source/src/include" \
  NVCC_GENCODE="-gencode=arch=compute_$architecture,code=sm_$architecture"
install -s -m 755 "$(realpath "$source/build/lib/libnccl.so")" "$out"
echo "$out: $(($(stat -c %s "$out") / 1000000)) MB"
