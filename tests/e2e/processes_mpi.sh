#!/usr/bin/env bash
# Processes that mpirun starts, with each MPI: their training, their refusals, and their end when one fails. MPI carries
# process 0's address and, on the CPU, the tensors.
# labels: mpi e2e
# timeout: 120
# cost: 20
set -uo pipefail
build=${AUTOMAP_BUILD:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=datasets/models/mlp_tiny
failures=0
cases=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_plm_rsh_agent=false OMPI_MCA_btl_vader_single_copy_mechanism=none TMPDIR=$work
unset RANK WORLD_SIZE

# expect STATUS COUNT PATTERN COMMAND...: so many lines of stderr match; COUNT "some": at least one
expect() {
  local status=$1 count=$2 pattern=$3 got found
  shift 3
  cases=$((cases + 1))
  timeout 60 "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
  got=$?
  found=$(grep -cE "$pattern" "$work/stderr")
  if [ "$count" = some ] && [ "$found" -gt 0 ]; then count=$found; fi
  if [ "$got" != "$status" ] || [ "$found" != "$count" ]; then
    echo "$*: ended with $got, expected $status, $found lines of '$pattern', expected $count: $(head -5 "$work/stderr")"
    failures=$((failures + 1))
  fi
}

# one_line PATTERN: stdout has it once
one_line() {
  [ "$(grep -c "$1" "$work/stdout")" = 1 ] && return
  echo "stdout has not one line '$1'"
  failures=$((failures + 1))
}

found=0
own='${PMI_RANK:-$OMPI_COMM_WORLD_RANK}'
port=$((20000 + RANDOM % 12000))
for mpi in openmpi mpich; do
  automap=$build/tests/$mpi/automap
  mpirun=mpirun.$mpi
  if [ ! -x "$automap" ] || ! command -v "$mpirun" >/dev/null; then
    echo "without $mpi"
    continue
  fi
  found=$((found + 1))
  "$automap" search "$model/model.hlo.pb" --cluster nominal:4 --baseline data_parallel --quiet \
    -o "$work/plan.json" >/dev/null
  run=("$automap" run "$model/model.hlo.pb" --state "$model/state.npz" --data "$model/data.npz" \
    --plan "$work/plan.json")
  for count in 1 2 4; do
    expect 0 0 '^automap:' "$mpirun" -n "$count" "${run[@]}" --steps 2
    one_line '^step      1   loss'
  done
  expect 0 0 '^automap:' "$mpirun" -n 2 "${run[@]}" --comm mpi --save "$work/state.npz"
  expect 2 some "automap: 2 processes need collectives 'mpi': 'local' ones join" "$mpirun" -n 2 "${run[@]}" --comm local
  expect 2 some "collectives 'nccl' need device 'cuda'" "$mpirun" -n 2 "${run[@]}" --comm nccl
  expect 3 some 'process 0 has the number of steps 3 and process 1 4' \
    "$mpirun" -n 1 "${run[@]}" --steps 3 : -n 1 "${run[@]}" --steps 4
  expect 2 some 'this plan has 4 devices, which 3 processes cannot share evenly' "$mpirun" -n 3 "${run[@]}"
  # Another launcher says who is who, and MPI is there: as under srun --mpi=pmix.
  expect 0 0 '^automap:' "$mpirun" -n 2 sh -c "RANK=$own WORLD_SIZE=2 LOCAL_RANK=$own LOCAL_WORLD_SIZE=2 \
    MASTER_ADDR=localhost MASTER_PORT=$port exec \"\$@\"" sh "${run[@]}" --steps 2
  one_line '^step      1   loss'
  expect 0 0 '^automap:' "$mpirun" -n 2 env -u MPI_LOCALNRANKS -u OMPI_COMM_WORLD_SIZE sh -c "SLURM_PROCID=$own \
    SLURM_NTASKS=2 SLURM_LOCALID=$own SLURM_JOB_ID=$$ SLURM_STEP_ID=$found SLURM_STEP_NODELIST=localhost exec \"\$@\"" \
    sh "${run[@]}" --steps 2
  one_line '^step      1   loss'
  # One that fails ends the others, which name it: launchers give one of their codes.
  timeout 60 "$mpirun" -n 1 "${run[@]}" : -n 1 "${run[@]}" --data "$work/none.npz" >/dev/null 2>"$work/stderr"
  cases=$((cases + 1))
  if ! grep -q 'none.npz' "$work/stderr"; then
    echo "$mpi: a missing file is not named: $(head -5 "$work/stderr")"
    failures=$((failures + 1))
  fi
done
if [ "$found" = 2 ]; then
  # An mpirun that is not of the program's MPI. Processes of Open MPI that start alone at once may fail to make
  # one folder: each has its own.
  expect 2 some 'process 0 of 1 to Open MPI [0-9.]*, which this program was built with' \
    mpirun.mpich -n 2 sh -c 'export TMPDIR=$(mktemp -d "$0/XXXXXX"); exec "$@"' "$work" \
    "$build/tests/openmpi/${run[0]##*/}" "${run[@]:1}"
  expect 2 some 'process 0 of 1 to MPICH [0-9.]*, which this program was built with' \
    mpirun.openmpi -n 2 "$build/tests/mpich/${run[0]##*/}" "${run[@]:1}"
fi

# With stand-ins for CUDA's libraries they train on these.
stand_ins=$build/tests/stand_in
if [ -e "$stand_ins/libnccl.so.2" ] && [ "$found" -gt 0 ]; then
  export LD_LIBRARY_PATH=$stand_ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} XDG_CACHE_HOME=$stand_ins/cache \
    STAND_IN_DEVICES=4
  expect 0 0 '^automap:' "$mpirun" -n 2 "${run[@]}" --device cuda --steps 2
  one_line '^step      1   loss'
fi
if [ "$found" = 0 ]; then
  echo "skipped: neither Open MPI nor MPICH was found by CMake"
  exit 77
fi
echo "$cases cases with $found MPIs, $failures failures"
[ "$failures" -eq 0 ]
