#!/usr/bin/env bash
# Plans on CUDA: every schedule of pipelines, fused attention, and offloaded optimizer state train on ranks of
# stand-in cards with the losses of the CPU's ranks.
# Skipped without a CUDA toolkit.
# labels: cpu e2e
# timeout: 600
# cost: 30
set -euo pipefail
if [ -n "${AUTOMAP_SANITIZE:-}" ]; then
  echo "skipped: the sanitizers' own build is not the one to look at"
  exit 77
fi
if ! grep -q '^AUTOMAP_CUDA:STRING=OFF$' "$AUTOMAP_BUILD/CMakeCache.txt"; then
  cuda_folder=$AUTOMAP_BUILD
else
  source tests/cuda/build.bash
  cuda_build automap stand_in_cuda stand_in_nvrtc stand_in_cublasLt stand_in_cudnn stand_in_nccl
fi
automap=$cuda_folder/automap
stand_ins=$cuda_folder/tests/stand_in
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# losses MODEL PLAN DEVICE: one a line, of the steps
losses() {
  LD_LIBRARY_PATH=$stand_ins XDG_CACHE_HOME=$stand_ins/cache "$automap" run "$1"/model.hlo.pb --plan "$2" \
    --state "$1/state.npz" --data "$1/data.npz" --steps 3 --device "$3" 2>"$work/words" |
    awk '/^step +[0-9]/ { print $4 }'
}

# check MODEL DEVICES OPTION...: by the plan of these options, the same losses to six digits, and no step left out
check() {
  local model=datasets/models/$1
  "$automap" search "$model/model.hlo.pb" --cluster "${cluster:-nominal:$2}" "${@:3}" --quiet \
    -o "$work/plan.json" >/dev/null
  losses "$model" "$work/plan.json" cpu >"$work/cpu"
  losses "$model" "$work/plan.json" cuda >"$work/cuda"
  paste "$work/cpu" "$work/cuda" | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (!(d < 1e-6)) bad = 1 }
    END { exit bad || NR != 3 }' || { echo "$*: the losses differ:"; paste "$work/cpu" "$work/cuda"; exit 1; }
}
pipeline=(--space pipeline --baseline even_pipeline --micro-batches 2)
check mlp_tiny 2 --mesh data=1 "${pipeline[@]}" --schedule 1f1b
check mlp_tiny 4 --mesh data=2 "${pipeline[@]}" --schedule zb_h1
check gpt2_tiny 2 --mesh data=1 "${pipeline[@]}" --schedule interleaved_1f1b --chunks 2
check gpt2_tiny 2 --baseline megatron --attention fused
grep -q '"attention": "fused"' "$work/plan.json" || { echo "attention is not fused"; exit 1; }
if grep 'operator by operator' "$work/words"; then exit 1; fi

# Optimizer state in pinned memory, copied beside the kernels.
"$automap" cluster nominal:2 --json | sed 's/"devices": *2/"devices": 2, "host_memory_bytes": 1000000000/' \
  >"$work/cluster.json"
cluster=$work/cluster.json
check adamw_tiny 2 --baseline data_parallel --offload optimizer
grep -q '"offloads_optimizer": true' "$work/plan.json" || { echo "nothing is offloaded"; exit 1; }
check gpt2_tiny 2 --baseline zero1 --micro-batches 2 --offload optimizer
check gpt2_tiny 2 --mesh data=1 "${pipeline[@]}" --schedule 1f1b --offload optimizer
