#!/usr/bin/env bash
# Every command of the program: its output, refusals and exit codes.
# labels: cpu e2e
# timeout: 200
set -uo pipefail
cd "${AUTOMAP_SOURCE:-$(dirname "$0")/../..}"
automap=${AUTOMAP:-build/automap}
export OPENBLAS_NUM_THREADS=1
models=datasets/models
model=$models/mlp_tiny/model.hlo.pb
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# expect CODE PATTERN ARGUMENT...: the exit code, and a line of stdout or stderr unless PATTERN is empty
expect() {
  local code=$1 pattern=$2 found=0
  shift 2
  "$automap" "$@" >"$work/out" 2>"$work/err" </dev/null || found=$?
  [ "$found" = "$code" ] || fail "automap $*: exit code $found, expected $code: $(head -c 300 "$work/err")"
  [ -z "$pattern" ] || grep -qE -- "$pattern" "$work/out" "$work/err" || fail "automap $*: no line matches $pattern"
}

# one_line_error ARGUMENT...: an error is one line, and the same as JSON under --json
one_line_error() {
  local first
  "$automap" "$@" >/dev/null 2>"$work/err"
  first=$(head -n 1 "$work/err")
  case $first in
    "automap: "*) ;;
    *) fail "automap $*: error does not begin with 'automap: ': $first" ;;
  esac
  "$automap" "$@" --json >/dev/null 2>"$work/err"
  grep '^{"format":"automap-error-1","error":{"code":[0-9]*,"message":".*","source":".*",' "$work/err" |
    grep -q '"line":[0-9]*,"column":[0-9]*[,}].*}$' ||
    fail "automap $* --json: $(head -n 1 "$work/err")"
}

# Help, version, usage.
expect 0 'usage: automap COMMAND' --help
expect 0 'openblas' --version
expect 2 'usage: automap COMMAND'
expect 2 'unknown command nothing' nothing
for command in info convert groups propagate lower cluster search simulate explain export run; do
  expect 0 "usage: automap $command" "$command" --help
  expect 2 'unknown option --no-such-option' "$command" --no-such-option
done
expect 2 'one argument too many' info "$model" "$model"
expect 2 'expected MODEL' info
expect 2 'needs an argument' search "$model" --cluster
expect 2 'expected an integer' search "$model" --cluster nominal:4 --seed x
expect 2 'expected one of auto, dqn' search "$model" --cluster nominal:4 --searcher best
expect 2 'expected --baseline NAME' search "$model" --cluster nominal:4 --searcher expert
expect 2 'cluster nominal:4 has 4' search "$model" --cluster nominal:4 --mesh data=3
expect 2 'expected --cluster' search "$model"
expect 2 'output\[99\]' run "$model" --plan none --watch 'output[99]'

# The way from a module to a trained one.
expect 0 'linkage groups' info "$model"
expect 0 '"instructions":[0-9]+,"opcodes"' info "$model" --json
expect 0 '^group 0' groups "$model"
expect 0 '"mode":"strict"' groups "$model" --strict --axis-size 4 --json
expect 0 'Auto-MAP' cluster
expect 0 '"format": "automap-cluster-1"' cluster C --json
expect 0 'data_parallel' search "$model" --cluster nominal:4 --even -o "$work/a.json"
expect 0 '"plan_file":.*"step_seconds":.*"baselines":\{"data_parallel"' search "$model" --cluster nominal:4 --even \
  -o "$work/b.json" --json
cmp -s "$work/a.json" "$work/b.json" || fail "the same search gave another plan file"
expect 0 'peak memory' simulate "$work/a.json" "$model"
expect 0 '"step_seconds"' simulate "$work/a.json" "$model" --cluster C --json
expect 0 'slower by|no decisions' explain "$work/a.json" "$model"
expect 0 'device 3 of' lower "$model" --plan "$work/a.json" --device 3
expect 2 'expected an integer from 0 to 3' lower "$model" --plan "$work/a.json" --device 4
expect 0 '"format": "automap-jax-1"' export "$work/a.json" "$model" --format jax
expect 0 'custom_call_target="Sharding", sharding=\{' export "$work/a.json" "$model" --format hlo
expect 0 'xla.sdy.FuncResultSharding' export "$work/a.json" "$model" --format shardy
expect 2 'spelling is for' export "$work/a.json" "$model" --format jax --spelling named
expect 2 'expected closed or open' export "$work/a.json" "$model" --format shardy --spelling named
expect 0 'sharding_per_value<\[<@mesh, \[\{[^]]*\?\}p0' export "$work/a.json" "$model" --format shardy --spelling open
expect 0 '' export "$work/a.json" "$model" --format hlo --spelling named -o "$work/exported.hlo.txt"
expect 0 '"step_seconds"' search "$work/exported.hlo.txt" --roles "$models/mlp_tiny/model.roles.json" \
  --cluster nominal:4 --keep-shardings --json -o "$work/kept.json"
cmp -s <(sed -n 's/.*"sharding": *//p' "$work/a.json") <(sed -n 's/.*"sharding": *//p' "$work/kept.json") ||
  fail "search --keep-shardings split the parameters otherwise"
expect 0 '^step +1 ' run "$model" --plan "$work/a.json" --state random --data "$models/mlp_tiny/data.npz" --steps 2
expect 0 '"step":1,"loss":[0-9.]+,"seconds"' run "$model" --plan none --state "$models/mlp_tiny/state.npz" \
  --data "$models/mlp_tiny/data.npz" --steps 2 --json
expect 0 'sharding=\{devices=' propagate "$model" --mesh model=4 --pin "*'params'*[0]*kernel*=-,model"
expect 0 '' propagate "$model" --mesh x0=2,x1=2 --pin '*kernel*=x0,x1' -o "$work/pinned.hlo.txt"
expect 0 '' propagate "$work/pinned.hlo.txt" --keep-shardings -o "$work/kept.hlo.txt"
cmp -s "$work/pinned.hlo.txt" "$work/kept.hlo.txt" || fail "propagate --keep-shardings changed the shardings"
expect 3 'axes of the mesh, in their order, cannot give its sharding' propagate "$work/pinned.hlo.txt" \
  --keep-shardings --mesh x0=4
expect 0 'sharding=\{replicated\}' propagate "$model" --keep-shardings
expect 2 'exclude each other' propagate "$model" --keep-shardings --strict --mesh x0=4
expect 0 "\\['params'\\]\\[0\\]\\['kernel'\\].*\\[-,model\\]" search "$model" --cluster nominal:4 \
  --pin "*'params'*[0]*kernel*=-,model" -o "$work/c.json"
expect 0 'model' search "$model" --cluster nominal:4 --mesh data=2,model=2 --pin 'params/*=split(model)' \
  --pin 'params/2=replicate' -o "$work/c.json"
expect 2 'no weight is in the scope' search "$model" --cluster nominal:4 --pin 'layer_9=replicate' -o "$work/c.json"
expect 0 'the pins leave no dimension' search "$model" --cluster nominal:2 --mesh data=2 --pin '*kernel*=-,-' \
  --pin '*bias*=-' -o "$work/c.json"
expect 4 'pin "2/kernel=-,model": dimension 1 .* has size 10 \(expected a multiple of 4\)' search "$model" --even \
  --cluster nominal:4 --mesh data=1,model=4 --pin '2/kernel=-,model' -o "$work/c.json"
expect 4 'has size 10 \(expected at least 16\)' search "$model" --cluster nominal:16 --mesh model=16 \
  --pin '2/kernel=-,model' -o "$work/c.json"
expect 0 '\[2\].*kernel.*\[-,model\]' search "$model" --cluster nominal:4 --mesh data=1,model=4 \
  --pin 'params/2/kernel=[-,model]' -o "$work/c.json"
expect 0 '^step +1 ' run "$model" --plan "$work/c.json" --state random --data "$models/mlp_tiny/data.npz" --steps 2
for pattern in params.0.kernel 0/kernel "params/[0]/kern*" "state['params'][0]['kernel']"; do
  expect 0 '\[0\].*kernel.*\[-,model\]' search "$model" --cluster nominal:2 --pin "$pattern=-,model" --mesh model=2 \
    -o "$work/c.json"
done
expect 2 'matches "params/0/kernl"; the nearest are state' propagate "$model" --mesh x=2 --pin 'params/0/kernl=-,x'
expect 2 'scope "layer_9"; the nearest are state' search "$model" --cluster nominal:4 --pin 'layer_9=replicate' \
  -o "$work/c.json"
expect 4 'no plan with --stages 2 was priced within the limit' search "$models/gpt2_tiny/model.hlo.pb" \
  --cluster nominal:8 --stages 2 --seconds 0.001 -o "$work/c.json"
expect 3 'the module trains nothing: no output updates any of its 8 parameters .*--inference' \
  search "$models/mlp_evaluate/model.hlo.pb" --cluster nominal:2 -o "$work/e.json"
expect 0 'jit_count_right' search "$models/mlp_evaluate/model.hlo.pb" --inference --cluster nominal:2 -o "$work/e.json"
evaluate=("$models/mlp_evaluate/model.hlo.pb" --state "$models/mlp/final_state.npz" --data "$models/../digits/test.npz")
expect 0 '^step +0 ' run "${evaluate[@]}" --plan "$work/e.json"
expect 0 'step' simulate "$work/e.json" "$models/mlp_evaluate/model.hlo.pb"
expect 0 '.' explain "$work/e.json" "$models/mlp_evaluate/model.hlo.pb"
sed 's/"inference": true/"inference": false/' "$work/e.json" >"$work/training.json"
expect 3 'the module trains nothing' run "${evaluate[@]}" --plan "$work/training.json"
expect 0 '^step +0 ' run "${evaluate[@]}" --plan "$work/training.json" --inference
expect 3 'the module trains nothing' run "${evaluate[@]}" --plan none
expect 0 '^step +0 ' run "${evaluate[@]}" --plan none --inference
expect 2 '"rows" is no axis of the mesh [(]expected - or one of data, model[)]' search "$model" --cluster nominal:4 \
  --pin '*kernel*=-,rows' -o "$work/c.json"
expect 0 '"bound":"exact"' search "$model" --cluster nominal:2 --mesh data=2 --searcher exhaustive --json \
  -o "$work/c.json"
expect 0 'data_parallel' search "$model" --cluster nominal:2 --baseline data_parallel -o "$work/c.json"
expect 0 'plan' search "$model" --cluster nominal:4 --init-plan "$work/a.json" --searcher dqn --log "$work/log.jsonl" \
  -o "$work/c.json"
grep -q '"epsilon"' "$work/log.jsonl" || fail "--log holds no episodes"

# The default plan file lies beside the module, named by its stem.
cp "$model" "$work/model.hlo.pb"
expect 0 'plan' search "$work/model.hlo.pb" --cluster nominal:2
[ -s "$work/model.plan.json" ] || fail "no model.plan.json"

# Conversions keep the module; stdin is a module too.
hash_of() { "$automap" info "$1" --json | grep -o '"sha256":"[0-9a-f]*"'; }
for suffix in hlo.txt hlo.json hlo.pb.gz hlo.txt.zst; do
  expect 0 '' convert "$model" "$work/converted.$suffix"
  [ "$(hash_of "$work/converted.$suffix")" = "$(hash_of "$model")" ] || fail "$suffix: another hash"
done
[ "$("$automap" info - --json <"$model" | grep -o '"sha256":"[0-9a-f]*"')" = "$(hash_of "$model")" ] || fail "stdin"
expect 2 'hlo.txt' convert "$model" "$work/converted.unknown"

# Bad input files.
head -c 1000 "$model" >"$work/truncated.hlo.pb"
expect 3 'truncated.hlo.pb' info "$work/truncated.hlo.pb"
one_line_error info "$work/truncated.hlo.pb"
expect 3 'missing' info "$work/missing.hlo.pb"
cat >"$work/bad.hlo.txt" <<'TEXT'
HloModule bad
ENTRY main {
  x = f32[2,3] parameter(0)
  y = f32[2,4] parameter(1)
  ROOT z = f32[2,3] add(x, y)
}
TEXT
expect 3 'bad.hlo.txt.*z' info "$work/bad.hlo.txt"
sed 's/add(x, y)/add(x, )/' "$work/bad.hlo.txt" >"$work/syntax.hlo.txt"
expect 3 'syntax.hlo.txt:5:[0-9]+: ' info "$work/syntax.hlo.txt"
grep -qE '^ +\^$' "$work/err" || fail "no caret under the excerpt"
cat >"$work/unknown.hlo.txt" <<'TEXT'
HloModule unknown
ENTRY main {
  x = f32[4] parameter(0)
  ROOT z = f32[4] frobnicate(x)
}
TEXT
expect 0 'frobnicate' info "$work/unknown.hlo.txt"
expect 3 'frobnicate' run "$work/unknown.hlo.txt" --inference --plan none --state random --steps 1
one_line_error run "$work/unknown.hlo.txt" --inference --plan none --state random --steps 1 --quiet
random=(--plan none --state random --data "$models/mlp_tiny/data.npz")
expect 2 "--comm rings: expected one of local, mpi, nccl" run "$model" "${random[@]}" --comm rings
expect 2 "collectives 'nccl' need device 'cuda'" run "$model" "${random[@]}" --comm nccl
expect 0 "warning: .*tf32 is for device 'cuda'" run "$model" "${random[@]}" --tf32

# Plans that do not belong, and hostile ones.
other=$models/vgg_tiny/model.hlo.pb
expect 3 'the plan is for module .*sha256 [0-9a-f]{12}\).*sha256 [0-9a-f]{12}\)' simulate "$work/a.json" "$other"
one_line_error simulate "$work/a.json" "$other"
edit() { sed "$1" "$work/a.json" >"$work/edited.json"; }
edit 's/"micro_batches"/"surprise": 1, "micro_batches"/'
expect 3 'surprise: unknown key' simulate "$work/edited.json" "$model"
edit 's/"micro_batches": 1/"micro_batches": -5/'
expect 3 'micro_batches' simulate "$work/edited.json" "$model"
edit 's/"micro_batches": 1/"micro_batches": 2/'
expect 4 'micro-batches' export "$work/edited.json" "$model" --format hlo
edit 's/"devices": \[0, 1, 2, 3\]/"devices": [0, 1, 2, 99999999]/'
expect 3 'devices\[3\]' simulate "$work/edited.json" "$model"
edit 's/"devices": \[0, 1, 2, 3\]/"devices": [0, 1, 2, 2]/'
expect 3 'named twice' simulate "$work/edited.json" "$model"
edit 's/"devices": \[0, 1, 2, 3\]/"devices": [0, 1, 3, 2]/'
expect 4 'mesh order' export "$work/edited.json" "$model" --format hlo
edit 's/"size": 2/"size": 1000000000/'
expect 3 'edited.json' simulate "$work/edited.json" "$model"
edit 's/"parameter", 0, 0/"parameter", 12345, 0/'
expect 3 'edited.json' simulate "$work/edited.json" "$model"
edit 's/"compute"/"momentum"/'
expect 3 'expected "compute", "weights", .*found "momentum"' simulate "$work/edited.json" "$model"
edit 's/"memory_bytes": 4294967296/"memory_bytes": 4294967297/'
expect 3 'sha256' simulate "$work/edited.json" "$model"
for bytes in 0 1 100 1000 3000; do
  head -c "$bytes" "$work/a.json" >"$work/edited.json"
  expect 3 'edited.json' simulate "$work/edited.json" "$model"
done

# A cluster that is too small, and a name that is no cluster.
"$automap" cluster nominal:4 --json | sed 's/"memory_bytes": [0-9]*/"memory_bytes": 4096/' >"$work/small.json"
expect 4 'needs|bytes|kB' search "$model" --cluster "$work/small.json" -o "$work/c.json"
one_line_error search "$model" --cluster "$work/small.json" -o "$work/c.json"
echo '{"format": "automap-cluster-1", "nonsense": 1}' >"$work/nonsense.json"
expect 3 'nonsense' search "$model" --cluster "$work/nonsense.json" -o "$work/c.json"

# An interrupt leaves the best plan so far.
rm -f "$work/c.json"
"$automap" search "$models/gpt2_tiny/model.hlo.pb" --cluster C --evaluations 100000000 -o "$work/c.json" --quiet &
search=$!
sleep 1.5
kill -TERM "$search"
wait "$search"
code=$?
[ "$code" = 130 ] || fail "interrupted search: exit code $code"
expect 0 'step' simulate "$work/c.json" "$models/gpt2_tiny/model.hlo.pb"

# The sets that agent generate writes are graded, each by itself; other files are refused.
agent=datasets/agents/pipeline.safetensors
for form in npz safetensors; do
  expect 0 '' agent generate --count 2 -o "$work/sets.$form"
  expect 0 "sets.$form\\[1\\]" agent evaluate "$agent" "$work/sets.$form"
  "$automap" agent evaluate "$agent" "$work/sets.$form" --json >"$work/out"
  [ "$(grep -o '"valid": *true' "$work/out" | wc -l)" = 2 ] ||
    fail "agent evaluate of 2 sets: $(head -c 300 "$work/out")"
done
head -c 3000 "$work/sets.npz" >"$work/cut.npz"
expect 3 'cut.npz' agent evaluate "$agent" "$work/cut.npz"
expect 3 'expected an array computation' agent evaluate "$agent" "$agent"
: >"$work/empty"
expect 3 'is empty; expected a profile graph' agent evaluate "$agent" "$work/empty"
"$automap" agent train --episodes 100000 -o "$work/agent.safetensors" 2>"$work/err" &
training=$!
sleep 1.5
kill -TERM "$training"
wait "$training"
code=$?
[ "$code" = 130 ] || fail "interrupted training: exit code $code"
grep -q 'interrupted after [0-9]* of 100000 episodes' "$work/err" || fail "interrupted training: $(cat "$work/err")"

# An invalid number of threads gives a warning.
AUTOMAP_THREADS=x expect 0 'warning: AUTOMAP_THREADS=x: expected an integer' info "$model"

[ "$failures" = 0 ] && echo "all passed"
[ "$failures" = 0 ]
