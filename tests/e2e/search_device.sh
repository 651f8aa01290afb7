#!/usr/bin/env bash
# automap search --device: the DQN on a GPU finds the plan that it finds on the
# CPU (on the stand-in libraries of CUDA where there is no card), and where the device cannot be used, one line gives
# the reason and the exit status is 5; 2 in a build without CUDA.
# labels: cpu e2e
# timeout: 120
set -uo pipefail
if [ -z "${AUTOMAP:-}" ]; then
  echo "skipped: this build has no program"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=datasets/models/mlp_tiny/model.hlo.pb
stand_ins=$AUTOMAP_BUILD/tests/stand_in
failures=0

# search NAME ARGUMENT...: searches with few plans; leaves status, stderr, plan and log under NAME
search() {
  local name=$1
  shift
  timeout 100 "$AUTOMAP" search "$model" --cluster nominal:4 --mesh data=2,model=2 --evaluations 60 --quiet \
    -o "$work/$name.json" --log "$work/$name.log" "$@" >"$work/$name.out" 2>"$work/$name.err" </dev/null
  echo $? >"$work/$name.status"
}

# expect NAME STATUS PATTERN: the status, and a single line on stderr that matches ('' for none)
expect() {
  local status lines
  status=$(cat "$work/$1.status")
  lines=$(wc -l <"$work/$1.err")
  if [ "$status" != "$2" ] || { [ -n "$3" ] && { [ "$lines" != 1 ] || ! grep -qE "$3" "$work/$1.err"; }; }; then
    echo "$1: status $status, expected $2; stderr, expected one line with '$3':"
    cat "$work/$1.err"
    failures=$((failures + 1))
  fi
}

search cpu --device cpu
expect cpu 0 ''
search unknown --device gpu
expect unknown 2 'cpu, cuda'
search random --device cuda --searcher random
expect random 2 'searcher random: a device trains the network of --searcher dqn'

if [ -e "$stand_ins/libcuda.so.1" ]; then
  export LD_LIBRARY_PATH=$stand_ins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} XDG_CACHE_HOME=$work/cache
  search cuda --device cuda
  expect cuda 0 ''
  cmp "$work/cpu.json" "$work/cuda.json" || failures=$((failures + 1))
  for failure in cuInit=100 cuMemAlloc=2 cublasLtCreate=1 cuGraphLaunch=700; do
    export XDG_CACHE_HOME=$work/cache_$failure
    STAND_IN_FAIL=$failure search "$failure" --device cuda
    expect "$failure" 5 '^automap: '
  done
elif [ ! -e /dev/nvidiactl ]; then
  search none --device cuda
  if grep -q 'this build has no CUDA' "$work/none.err"; then expect none 2 'configure it with'; else expect none 5 \
    'driver|GPU'; fi
fi
echo "$failures failures"
[ "$failures" -eq 0 ]
