#!/usr/bin/env bash
# Each failure ends with the documented exit status and an error whose first line names the file and the expectation;
# nothing is printed on stdout.
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
expect 2 . search "$mlp/model.hlo.pb" --cluster nominal:4 --searcher no_such_searcher -o "$work/p.json"
expect 2 'applies to pipelines' search "$mlp/model.hlo.pb" --cluster nominal:4 --mesh data=4 --schedule zb_h1 \
  -o "$work/p.json"

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
succeed cluster nominal:4 --json -o "$work/cluster.json"
sed 's/"memory_bytes"/"memory_bites"/' "$work/cluster.json" >"$work/misspelt.json"
expect 3 'misspelt\.json.*memory_bites' search "$mlp/model.hlo.pb" --cluster "$work/misspelt.json" -o "$work/p.json"
many='{"for": {"d": [0, 1000000000]}, "from": "a{d}", "to": "b", "link": "memory"}'
sed "s/\"servers\"/\"topology\": {\"edges\": [$many]}, \"servers\"/" \
  "$work/cluster.json" >"$work/many_edges.json"
expect 3 'many_edges\.json: \$\.topology\.edges\[0\]: more than 262144 edges' cluster "$work/many_edges.json"
tr -d '\n' <"$work/cluster.json" | sed 's/, *"link": "memory"//; s/"servers"/"topology": {"edges": []}, "servers"/' \
  >"$work/apart.json"
expect 3 'apart\.json: .*no route between server0/device0 and server0/device1' cluster "$work/apart.json"
head -c 100000 /dev/zero | tr '\0' '[' >"$work/brackets.json"
expect 3 'brackets\.json.*not valid JSON' cluster "$work/brackets.json"
printf '{} {}' >"$work/trailing.json"
expect 3 'trailing\.json.*not valid JSON' cluster "$work/trailing.json"
[ "$(wc -l <"$work/stderr")" = 1 ] || { echo "trailing.json: not one line"; failures=$((failures + 1)); }

# Imports.
succeed cluster --import tests/data/imports/slurm.env --device-type T4 -o "$work/slurm.json"
succeed cluster "$work/slurm.json"
expect 2 'expected one of V100' cluster --import tests/data/imports/slurm.env
expect 2 'need --import' cluster --device-type T4
expect 3 'hostfile: names the hosts' cluster --import tests/data/imports/slurm.env \
  --import tests/data/imports/hostfile \
  --device-type T4

# A shape that does not match that of a state file.
succeed search "$models/mlp/model.hlo.pb" --cluster nominal:2 -o "$work/mlp.plan.json"
expect 3 'state\.npz.*f32\[256\]' run "$models/mlp/model.hlo.pb" --roles "$models/mlp/model.roles.json" --plan none \
  --state "$mlp/state.npz" --data "$models/mlp/data.npz" --steps 1

# A plan for another module: both names.
succeed search "$mlp/model.hlo.pb" --cluster nominal:2 -o "$work/tiny.plan.json"
expect 3 'tiny\.plan\.json' simulate "$work/tiny.plan.json" "$models/mlp/model.hlo.pb"
expect 3 'tiny\.plan\.json' run "$models/mlp/model.hlo.pb" --plan "$work/tiny.plan.json" \
  --state "$models/mlp/state.npz" \
  --data "$models/mlp/data.npz" --steps 1

# A cluster whose memory is too small for any plan.
sed -E 's/("memory_bytes": *)[0-9.e+]+/\11000/' "$work/cluster.json" >"$work/small.json"
expect 4 'memory' search "$models/mlp/model.hlo.pb" --cluster "$work/small.json" -o "$work/p.json"
# A module that cuts its batch itself: the number is refused, not its stages.
expect 4 "accumulated_tiny/model.hlo.pb: cannot be split exactly into 16 micro-batches: .* needs all examples" search \
  $models/accumulated_tiny/model.hlo.pb --cluster C --micro-batches 16 -o "$work/p.json"

# An operator without a kernel, and one that does not exist: refused when run.
cat >"$work/state.hlo.txt" <<'TEXT'
HloModule state

ENTRY main {
  ROOT y = u64[2]{0} rng-get-and-update-state(), delta=1
}
TEXT
succeed info "$work/state.hlo.txt"
expect 3 'rng-get-and-update-state' run "$work/state.hlo.txt" --inference --plan none --state random --steps 1
cat >"$work/unknown.hlo.txt" <<'TEXT'
HloModule unknown

ENTRY main {
  x = f32[8]{0} parameter(0)
  ROOT y = f32[8]{0} fast_fourier(x)
}
TEXT
succeed info "$work/unknown.hlo.txt"
expect 3 'fast_fourier' run "$work/unknown.hlo.txt" --inference --plan none --state random --steps 1

# Files that are read stay, and two outputs are two files.
kept=$work/kept.hlo.pb
cp "$mlp/model.hlo.pb" "$kept"
succeed simulate "$work/tiny.plan.json" "$kept" -o "$work/report.txt"
cp "$work/tiny.plan.json" "$work/kept.plan.json"
ln -s kept.hlo.pb "$work/link.hlo.pb"
run=(run "$mlp/model.hlo.pb" --plan none --state "$mlp/state.npz" --data "$mlp/data.npz" --quiet)
# refuse PATTERN ARGUMENT...: refused before anything is written
refuse() {
  local pattern=$1
  shift
  expect 2 "$pattern" "$@"
  cmp -s "$kept" "$mlp/model.hlo.pb" && cmp -s "$work/kept.plan.json" "$work/tiny.plan.json" &&
    [ ! -e "$work/new" ] || {
    echo "automap $* changed a file"
    failures=$((failures + 1))
  }
}
refuse '^automap: -o .*/kept\.hlo\.pb would replace the module that is read$' search "$kept" --cluster nominal:2 \
  -o "$kept"
refuse 'link\.hlo\.pb would replace the module' search "$kept" --cluster nominal:2 -o "$work/link.hlo.pb"
refuse 'kept\.hlo\.pb would replace the module' convert "$kept" "$kept"
mkdir "$work/exported" && cp "$kept" "$work/exported/model.hlo.pb" && cp "$mlp/model.roles.json" "$work/exported"
refuse 'would replace the roles' search "$work/exported/model.hlo.pb" --cluster nominal:2 \
  -o "$work/exported/model.roles.json"
refuse 'would replace the cluster' search "$kept" --cluster "$work/cluster.json" -o "$work/cluster.json"
refuse 'would replace the cluster' cluster "$work/cluster.json" --json -o "$work/cluster.json"
refuse 'would replace the plan' simulate "$work/kept.plan.json" "$kept" -o "$work/kept.plan.json"
refuse 'trace .* would replace the module' simulate "$work/kept.plan.json" "$kept" --trace "$kept"
refuse 'html .* would replace the plan' explain "$work/kept.plan.json" "$kept" --html "$work/kept.plan.json"
refuse 'would replace the plan' lower "$kept" --plan "$work/kept.plan.json" -o "$work/kept.plan.json"
refuse 'would replace the file' cluster --import "$work/slurm.json" --device-type T4 -o "$work/slurm.json"
refuse '^automap: -o and --plan are both .*/new$' simulate --sweep "$kept" --cluster nominal:2 --plan "$work/new" \
  -o "$work/new"
refuse '^automap: -o and --log are both .*/new$' search "$kept" --cluster nominal:2 -o "$work/new" --log "$work/new"
refuse '^automap: -o and --log are both .*/kept\.plan\.json$' search "$kept" --cluster nominal:2 \
  --log "$work/kept.plan.json"
cp "$mlp/state.npz" "$mlp/data.npz" "$work"
refuse 'save .* would replace the state' run "$kept" --plan none --state "$work/state.npz" --save "$work/state.npz"
refuse 'outputs .* would replace the data' run "$kept" --plan none --data "x=$work/data.npz" --outputs "$work/data.npz"
refuse '^automap: --save and --outputs are both .*/new$' "${run[@]}" --save "$work/new" --outputs "$work/new"
refuse '^automap: --log .* and --trace .* are one file$' "${run[@]}" --log "$work/new" --trace "$work/./new"
refuse '^automap: --trace and --profile are both .*/new$' "${run[@]}" --trace "$work/new" --profile "$work/new"
refuse '^automap: -o and --log would both be on stdout' "${run[@]}" -o - --log -
refuse '^automap: -o and --trace would both be on stdout' simulate "$work/kept.plan.json" "$kept" --trace -
refuse '^automap: -o and --checkpoint are both .*/new\.safetensors$' agent train --episodes 1 \
  -o "$work/new.safetensors" \
  --checkpoint "$work/new.safetensors"
succeed simulate "$work/kept.plan.json" "$kept" -o /dev/null --trace /dev/null
: >"$work/profile.json" # an empty file is a new one
succeed "${run[@]}" --log /dev/null --trace /dev/null --profile "$work/profile.json"
succeed "${run[@]}" --profile "$work/profile.json" --checkpoint "$work/checkpoints"
succeed "${run[@]}" --steps 2 --resume --profile "$work/profile.json" --checkpoint "$work/checkpoints"
succeed search "$kept" --cluster nominal:2 --init-plan "$work/kept.plan.json" --evaluations 2 -o "$work/kept.plan.json"
succeed search "$kept" --cluster nominal:2 --init-plan "$work/kept.plan.json" --evaluations 2

echo "$cases cases, $failures failures"
[ "$failures" -eq 0 ]
