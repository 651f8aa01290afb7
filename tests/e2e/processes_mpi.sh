#!/usr/bin/env bash
# Processes that mpirun starts: MPI carries process 0's address, everything else
# goes over their own connections.
# labels: mpi e2e
# timeout: 120
set -uo pipefail
if [ -z "${AUTOMAP:-}" ] || ! "$AUTOMAP" --version | grep -q 'MPI'; then
  echo "skipped: this build has no MPI"
  exit 77
fi
if ! command -v mpirun >/dev/null; then
  echo "skipped: there is no mpirun"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=datasets/models/mlp_tiny
failures=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_plm_rsh_agent=false OMPI_MCA_btl_vader_single_copy_mechanism=none TMPDIR=$work
unset RANK WORLD_SIZE
"$AUTOMAP" search "$model/model.hlo.pb" --cluster host:4 --expert data_parallel --quiet -o "$work/plan.json" >/dev/null
run=("$AUTOMAP" run "$model/model.hlo.pb" --state "$model/state.npz" --data "$model/data.npz" --plan "$work/plan.json")

# expect STATUS COUNT PATTERN COMMAND...: so many lines of stderr match
expect() {
  local status=$1 count=$2 pattern=$3 got found
  shift 3
  timeout 60 "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
  got=$?
  found=$(grep -cE "$pattern" "$work/stderr")
  if [ "$got" != "$status" ] || [ "$found" != "$count" ]; then
    echo "$*: ended with $got, expected $status, $found lines of '$pattern', expected $count: $(head -5 "$work/stderr")"
    failures=$((failures + 1))
  fi
}

expect 0 0 '^automap:' mpirun -n 1 "${run[@]}" --steps 2
grep -q 'step      1' "$work/stdout" || { echo "one process printed no steps"; failures=$((failures + 1)); }
expect 0 0 '^automap:' mpirun -n 2 "${run[@]}" --steps 2
expect 2 2 "automap: 2 processes need collectives 'mpi': 'local' ones join" mpirun -n 2 "${run[@]}" --comm local
expect 3 2 'process 0 has the number of steps 3 and process 1 4' \
  mpirun -n 1 "${run[@]}" --steps 3 : -n 1 "${run[@]}" --steps 4
expect 2 3 'this plan has 4 devices, which 3 processes cannot share evenly' mpirun -n 3 "${run[@]}"

# With stand-ins for CUDA's libraries they train.
stand_ins=${AUTOMAP_BUILD:-build}/tests/stand_in
if [ -e "$stand_ins/libnccl.so.2" ]; then
  export LD_LIBRARY_PATH=$stand_ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} XDG_CACHE_HOME=$stand_ins/cache STAND_IN_DEVICES=4
  expect 0 0 '^automap:' mpirun -n 2 "${run[@]}" --device cuda --steps 2
  [ "$(grep -c '^step      1   loss' "$work/stdout")" = 1 ] || { echo "not one line for a step"; failures=$((failures + 1)); }
fi
echo "$failures failures"
[ "$failures" -eq 0 ]
