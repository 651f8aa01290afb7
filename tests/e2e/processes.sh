#!/usr/bin/env bash
# Several processes of `automap run`, as torchrun and Slurm start them: they find one another, refuse others, and all
# end if one is missing.
# labels: cpu e2e
# timeout: 120
set -uo pipefail
if [ -z "${AUTOMAP:-}" ]; then
  echo "skipped: this build has no program"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=datasets/models/mlp_tiny
failures=0
cases=0
port=$((20000 + RANDOM % 12000))
unset AUTOMAP_PORT AUTOMAP_SECRET RANK WORLD_SIZE SLURM_STEP_ID SLURM_PROCID
"$AUTOMAP" search "$model/model.hlo.pb" --cluster nominal:4 --baseline data_parallel --quiet \
  -o "$work/plan.json" >/dev/null
run=("$AUTOMAP" run "$model/model.hlo.pb" --state "$model/state.npz" --data "$model/data.npz" --plan "$work/plan.json")

# start PROCESS VARIABLE=VALUE... COMMAND...: in the background; its output is in $work/PROCESS.*
start() {
  local process=$1
  shift
  timeout 60 env "$@" >"$work/$process.stdout" 2>"$work/$process.stderr" </dev/null &
  pids[process]=$!
}

# start_torch PROCESS COUNT [VARIABLE=VALUE...] COMMAND...: with torchrun's variables
start_torch() {
  local process=$1 count=$2
  shift 2
  start "$process" RANK="$process" WORLD_SIZE="$count" LOCAL_RANK="$process" LOCAL_WORLD_SIZE="$count" \
    MASTER_ADDR=localhost MASTER_PORT="$port" "$@"
}

# expect PROCESS STATUS PATTERN: how it ended; stdout must be empty where it failed
expect() {
  local process=$1 status=$2 pattern=$3 got
  cases=$((cases + 1))
  wait "${pids[process]}"
  got=$?
  if [ "$got" != "$status" ] || ! grep -qE "$pattern" <<<"$(cat "$work/$process.stderr")" ||
    { [ "$status" != 0 ] && [ -s "$work/$process.stdout" ]; }; then
    echo "process $process ended with $got, expected $status and '$pattern': $(head -3 "$work/$process.stderr")"
    failures=$((failures + 1))
  fi
}

pids=()
# One process of a launcher is a run like any other.
start_torch 0 1 "${run[@]}"
expect 0 0 ''
grep -q 'step      0' "$work/0.stdout" || failures=$((failures + 1))

# They find one another, then each names what two need.
for p in 1 0; do start_torch $p 2 "${run[@]}"; done
for p in 0 1; do expect $p 2 "2 processes on device 'cpu' need collectives 'mpi', for which torchrun has not"; done

# One process needs no other; further processes are refused by name.
start 0 "${run[@]}" --comm mpi
expect 0 0 ''
start 0 "${run[@]}" --comm carrier-pigeon
expect 0 2 "comm carrier-pigeon: expected one of local, mpi, nccl"
start 0 "${run[@]}" --comm nccl
expect 0 2 "collectives 'nccl' need device 'cuda'"

# Other arguments than process 0: both values are named, by both.
port=$((port + 1))
for p in 0 1; do start_torch $p 2 "${run[@]}" --steps $((p + 3)); done
for p in 0 1; do expect $p 3 'process 0 has the number of steps 3 and process 1 4'; done

# Another secret is another run; process 0 goes on waiting for the right one.
port=$((port + 1))
start_torch 0 2 AUTOMAP_SECRET=ours "${run[@]}" --join-seconds 2
start_torch 1 2 AUTOMAP_SECRET=theirs "${run[@]}" --join-seconds 2
expect 1 5 'refused process 1: it is of another run'
expect 0 5 'process 1 of 2 did not join .*refused for another job or another AUTOMAP_SECRET: 1'

# Nobody listens.
start_torch 1 2 "${run[@]}" --join-seconds 0.5
expect 1 5 "cannot connect to localhost port"

# One that fails before it has begun ends the others, who name it.
port=$((port + 1))
start_torch 0 2 "${run[@]}"
start_torch 1 2 "$AUTOMAP" run "$work/none.hlo.pb" --plan none --state random
expect 1 3 'none\.hlo\.pb'
expect 0 5 'process 1 .*on .* failed: .*none\.hlo\.pb.*cannot be opened'

# A launcher that contradicts itself.
start 0 RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "${run[@]}"
expect 0 2 'RANK is 2: expected an integer from 0 to 1'

# Slurm: a step of two tasks on this host.
for p in 0 1; do
  start $p SLURM_PROCID=$p SLURM_NTASKS=2 SLURM_LOCALID=$p SLURM_JOB_ID=$$ SLURM_STEP_ID=0 \
    SLURM_STEP_NODELIST='localhost,node[1-3]' "${run[@]}" --join-seconds 20
done
for p in 0 1; do expect $p 2 "need collectives 'mpi', for which Slurm has not"; done

echo "$cases cases, $failures failures"
[ "$failures" -eq 0 ]
