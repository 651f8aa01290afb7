#!/usr/bin/env bash
# What goes wrong ends with the documented exit status and an error whose first
# line names the file and what was expected; nothing is printed on stdout.
# labels: cpu e2e
# timeout: 120
set -uo pipefail
if [ -z "${AUTOMAP:-}" ]; then
  echo "skipped: this build has no program"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
models=datasets/models
mlp=$models/mlp_tiny
failures=0
cases=0

# expect STATUS PATTERN ARGUMENT...: runs automap with the arguments; the first
# line of stderr must match the extended regular expression
expect() {
  local status=$1 pattern=$2 got first
  shift 2
  cases=$((cases + 1))
  timeout 60 "$AUTOMAP" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
  got=$?
  first=$(head -1 "$work/stderr")
  if [ "$got" != "$status" ] || ! grep -qE "$pattern" <<<"$first" || [ -s "$work/stdout" ]; then
    echo "automap $*"
    echo "  status $got, expected $status; first line of stderr: $first"
    echo "  expected there: $pattern; stdout: $(wc -c <"$work/stdout") bytes"
    failures=$((failures + 1))
  fi
}

succeed() {
  cases=$((cases + 1))
  if ! timeout 60 "$AUTOMAP" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null; then
    echo "automap $* failed:"
    cat "$work/stderr"
    failures=$((failures + 1))
  fi
}

# Usage.
succeed --help
succeed --version
for command in info convert groups lower cluster search simulate run export; do
  succeed "$command" --help
done
expect 2 . no_such_command
expect 2 'no-such-option' info --no-such-option "$mlp/model.hlo.pb"
expect 2 . info
expect 2 . search "$mlp/model.hlo.pb" --cluster host:4 --searcher no_such_searcher -o "$work/p.json"
expect 2 'is of pipelines' search "$mlp/model.hlo.pb" --cluster host:4 --mesh data=4 --schedule zb_h1 -o "$work/p.json"

# Bad input files.
expect 3 'none\.hlo\.pb' info "$work/none.hlo.pb"
head -c 3000 "$mlp/model.hlo.pb" >"$work/cut.hlo.pb"
expect 3 'cut\.hlo\.pb' info "$work/cut.hlo.pb"
head -c 3000 "$models/t5_paper_6/model.hlo.pb.zst" >"$work/cut.zst"
expect 3 'cut\.zst.*truncated' info "$work/cut.zst"
head -c 4000 /dev/urandom >"$work/noise"
expect 3 'noise' info "$work/noise"
: >"$work/empty"
expect 3 'empty' info "$work/empty"
succeed cluster host:4 --json -o "$work/cluster.json"
sed 's/"memory_bytes"/"memory_bites"/' "$work/cluster.json" >"$work/misspelt.json"
expect 3 'misspelt\.json.*memory_bites' search "$mlp/model.hlo.pb" --cluster "$work/misspelt.json" -o "$work/p.json"
sed 's/"servers"/"topology": {"edges": [{"for": {"d": [0, 1000000000]}, "from": "a{d}", "to": "b", "link": "memory"}]}, "servers"/' \
  "$work/cluster.json" >"$work/many_edges.json"
expect 3 'many_edges\.json: \$\.topology\.edges\[0\]: more than 262144 edges' cluster "$work/many_edges.json"
tr -d '\n' <"$work/cluster.json" | sed 's/, *"link": "memory"//; s/"servers"/"topology": {"edges": []}, "servers"/' >"$work/apart.json"
expect 3 'apart\.json: .*no route between server0/device0 and server0/device1' cluster "$work/apart.json"
head -c 100000 /dev/zero | tr '\0' '[' >"$work/brackets.json"
expect 3 'brackets\.json.*not valid JSON' cluster "$work/brackets.json"
printf '{} {}' >"$work/trailing.json"
expect 3 'trailing\.json.*not valid JSON' cluster "$work/trailing.json"

# Imports.
succeed cluster --import tests/imports/slurm.env --device-type T4 -o "$work/slurm.json"
succeed cluster "$work/slurm.json"
expect 2 'expected one of V100' cluster --import tests/imports/slurm.env
expect 2 'go with --import' cluster --device-type T4
expect 3 'hostfile: names the hosts' cluster --import tests/imports/slurm.env --import tests/imports/hostfile --device-type T4

# A shape that does not match what a state file holds.
succeed search "$models/mlp/model.hlo.pb" --cluster host:2 -o "$work/mlp.plan.json"
expect 3 'state\.npz.*f32\[256\]' run "$models/mlp/model.hlo.pb" --roles "$models/mlp/model.roles.json" --plan none \
  --state "$mlp/state.npz" --data "$models/mlp/data.npz" --steps 1

# A plan for another module: both names.
succeed search "$mlp/model.hlo.pb" --cluster host:2 -o "$work/tiny.plan.json"
expect 3 'tiny\.plan\.json' simulate "$work/tiny.plan.json" "$models/mlp/model.hlo.pb"
expect 3 'tiny\.plan\.json' run "$models/mlp/model.hlo.pb" --plan "$work/tiny.plan.json" --state "$models/mlp/state.npz" \
  --data "$models/mlp/data.npz" --steps 1

# A cluster whose memory is too small for any plan.
sed -E 's/("memory_bytes": *)[0-9.e+]+/\11000/' "$work/cluster.json" >"$work/small.json"
expect 4 'memory' search "$models/mlp/model.hlo.pb" --cluster "$work/small.json" -o "$work/p.json"

# An operator without a kernel, and one that does not exist: refused when run.
cat >"$work/state.hlo.txt" <<'TEXT'
HloModule state

ENTRY main {
  ROOT y = u64[2]{0} rng-get-and-update-state(), delta=1
}
TEXT
succeed info "$work/state.hlo.txt"
expect 3 'rng-get-and-update-state' run "$work/state.hlo.txt" --plan none --state random --steps 1
cat >"$work/unknown.hlo.txt" <<'TEXT'
HloModule unknown

ENTRY main {
  x = f32[8]{0} parameter(0)
  ROOT y = f32[8]{0} fast_fourier(x)
}
TEXT
succeed info "$work/unknown.hlo.txt"
expect 3 'fast_fourier' run "$work/unknown.hlo.txt" --plan none --state random --steps 1

echo "$cases cases, $failures failures"
[ "$failures" -eq 0 ]
