#!/usr/bin/env bash
# Several processes that train under one plan with NCCL, on stand-ins for CUDA's
# libraries: the results of one process, and the end of all when one is killed, fails or is interrupted.
# labels: cpu cuda e2e
# timeout: 300
set -uo pipefail
stand_ins=${AUTOMAP_BUILD:-build-cuda}/tests/stand_in
if [ -z "${AUTOMAP:-}" ] || [ ! -e "$stand_ins/libnccl.so.2" ]; then
  echo "skipped: this build has no CUDA, or no stand-ins for it"
  exit 77
fi
if [ -n "${AUTOMAP_SANITIZE:-}" ]; then
  echo "skipped: kernels of the stand-ins are not sanitized"
  exit 77
fi
work=$(mktemp -d)
trap 'kill "${pids[@]}" 2>/dev/null; rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$stand_ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} XDG_CACHE_HOME=$stand_ins/cache \
  STAND_IN_DEVICES=4
unset AUTOMAP_PORT AUTOMAP_SECRET RANK WORLD_SIZE SLURM_STEP_ID SLURM_PROCID
model=datasets/models/mlp_tiny
failures=0
port=$((20000 + RANDOM % 12000))
pids=()

complain() {
  echo "$*"
  failures=$((failures + 1))
}

# run_all PLAN COUNT ARGUMENT...: COUNT processes in the background, output in $work/PROCESS.*
run_all() {
  local plan=$1 count=$2 p
  shift 2
  port=$((port + 1))
  pids=()
  for ((p = 0; p < count; p++)); do
    RANK=$p WORLD_SIZE=$count LOCAL_RANK=$p LOCAL_WORLD_SIZE=$count MASTER_ADDR=localhost MASTER_PORT=$port \
      timeout --foreground 100 "$AUTOMAP" run "$model/model.hlo.pb" --plan "$work/$plan.json" --device cuda \
      --state "$model/state.npz" --data "$model/data.npz" "$@" \
      >"$work/$p.stdout" 2>"$work/$p.stderr" </dev/null &
    pids[p]=$!
  done
}

# expect PROCESS STATUS PATTERN
expect() {
  local got
  wait "${pids[$1]}"
  got=$?
  if [ "$got" != "$2" ] || ! grep -qE "$3" <<<"$(cat "$work/$1.stderr")"; then
    complain "process $1 ended with $got, expected $2 and '$3': $(head -3 "$work/$1.stderr")"
  fi
}

# The steps without their times.
losses() {
  sed -n 's/^\(step  *[0-9]*   loss [^ ]*\).*/\1/p' "$1"
}

wait_for_steps() {
  local k
  for ((k = 0; k < 300; k++)); do
    if grep -q 'step      3' "$work/0.stdout"; then return; fi
    sleep 0.1
  done
  complain "no steps within 30 s: $(cat "$work"/*.stderr)"
}

for baseline in data_parallel megatron; do
  "$AUTOMAP" search "$model/model.hlo.pb" --cluster nominal:4 --baseline $baseline --quiet \
    -o "$work/$baseline.json" >/dev/null
  run_all $baseline 1 --comm nccl --steps 6 --save "$work/one.npz" --outputs "$work/one.outputs.npz"
  expect 0 0 ''
  cp "$work/0.stdout" "$work/one.stdout"
  [ "$(losses "$work/one.stdout" | wc -l)" = 6 ] || complain "$baseline: one process printed no losses"
  for count in 2 4; do
    run_all $baseline $count --steps 6 --save "$work/all.npz" --outputs "$work/all.outputs.npz"
    for ((p = 0; p < count; p++)); do expect $p 0 ''; done
    [ "$(losses "$work/0.stdout")" = "$(losses "$work/one.stdout")" ] ||
      complain "$baseline: other losses in $count processes"
    for ((p = 1; p < count; p++)); do [ ! -s "$work/$p.stdout" ] || complain "process $p printed"; done
    cmp "$work/one.npz" "$work/all.npz" || complain "$baseline: another state from $count processes"
    cmp "$work/one.outputs.npz" "$work/all.outputs.npz" || complain "$baseline: other outputs from $count processes"
  done
done

# One is killed while they train.
run_all data_parallel 4 --steps 1000000
wait_for_steps
child=$(pgrep -P "${pids[2]}")
begin=$SECONDS
{ kill -KILL "$child" && wait "${pids[2]}"; } 2>/dev/null
for p in 0 1 3; do expect $p 5 'process 2 .*on .* ended unexpectedly'; done
[ $((SECONDS - begin)) -le 10 ] || complain "the others needed $((SECONDS - begin)) s to end"

# One fails.
STAND_IN_NCCL_LOST=2 run_all data_parallel 2 --steps 1000000
for p in 0 1; do expect $p 5 'NCCL'; done

# One is interrupted: all stop after the same step, and the state is written.
run_all megatron 2 --steps 1000000 --save "$work/stopped.npz"
wait_for_steps
kill -INT "$(pgrep -P "${pids[1]}")"
for p in 0 1; do expect $p 130 'interrupted after'; done
[ "$(cat "$work/0.stderr")" = "$(cat "$work/1.stderr")" ] || complain "stopped after different steps"
[ -s "$work/stopped.npz" ] || complain "an interrupted run saved nothing"

# As threads of one process there is no second one.
run_all data_parallel 2 --comm local
for p in 0 1; do expect $p 2 "2 processes need collectives 'nccl'"; done

echo "$failures failures"
[ "$failures" -eq 0 ]
