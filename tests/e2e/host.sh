#!/usr/bin/env bash
# host:N: the first use measures this machine once, with progress on a terminal only, while a second process waits;
# later uses give the same bytes. --no-probe and AUTOMAP_NO_PROBE=1 never measure; --forget removes the measurement.
# labels: cpu e2e
# timeout: 180
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
unset AUTOMAP_NO_PROBE
model=datasets/models/mlp_tiny/model.hlo.pb

fail() {
  echo "$1"
  for file in out err terminal waiting; do
    [ ! -f "$work/$file" ] || { echo "-- $file"; head -20 "$work/$file"; }
  done
  exit 1
}
# run CODE ARGUMENT...: stdout in $work/out, stderr in $work/err
run() {
  local code=0
  "$AUTOMAP" "${@:2}" >"$work/out" 2>"$work/err" || code=$?
  [ "$code" -eq "$1" ] || fail "automap ${*:2}: exit code $code, expected $1"
}
has() { grep -qE "$2" "$work/$1" || fail "$1 lacks \"$2\""; }
lacks() { ! grep -qE "$2" "$work/$1" || fail "$1 has \"$2\""; }

# Without a measurement: nominal figures, a note, no folder.
run 0 cluster nominal:2 --json
sed 's/nominal:2/host:2/' "$work/out" >"$work/nominal"
run 0 cluster host:2 --json --no-probe
has err 'host:2 has nominal figures'
cmp -s "$work/out" "$work/nominal" || fail "host:2 --no-probe differs from nominal:2"
AUTOMAP_NO_PROBE=1 run 0 cluster host:2 --json
cmp -s "$work/out" "$work/nominal" || fail "AUTOMAP_NO_PROBE=1 differs from nominal:2"
run 0 cluster host:2 --json --no-probe --quiet
[ ! -s "$work/err" ] || fail "--quiet has notes"
run 0 search $model --cluster host:2 --no-probe --baseline data_parallel -o "$work/plan.json"
run 0 simulate "$work/plan.json" $model --cluster host:2 --no-probe
run 0 simulate --sweep $model --cluster host:2 --no-probe
[ ! -e "$XDG_CACHE_HOME" ] || fail "--no-probe made a folder"
run 2 cluster host:0
has err 'expected host:N with N from 1 to 1024'

# The only probe of this test, on a terminal; a second process waits for it.
if script --version >/dev/null 2>&1; then
  script -qec "'$AUTOMAP' cluster host:2 --json -o '$work/first.json'" /dev/null </dev/null >"$work/terminal" 2>&1 &
else
  echo "no script(1): the progress on a terminal is not tested"
  "$AUTOMAP" cluster host:2 --json -o "$work/first.json" >"$work/terminal" 2>&1 &
fi
first=$!
for _ in $(seq 200); do
  ! compgen -G "$XDG_CACHE_HOME/automap/host-*.lock" >/dev/null || break
  sleep 0.05
done
sleep 0.2
"$AUTOMAP" cluster host:2 --json -o "$work/second.json" 2>"$work/waiting" || fail "the second process failed"
wait "$first" || fail "the first process failed"
has terminal 'this machine was measured in'
! script --version >/dev/null 2>&1 || has terminal 'measuring \['
has waiting 'another process measures this machine'
lacks waiting 'measuring \[|was measured in'
cmp -s "$work/first.json" "$work/second.json" || fail "two processes have different clusters"
[ "$(stat -c %a "$XDG_CACHE_HOME/automap")" = 700 ] || fail "the folder is not private"
[ "$(find "$XDG_CACHE_HOME" -name 'host-*.json' | wc -l)" -eq 1 ] || fail "expected one measurement"
grep -q '"operators"' "$work/first.json" || fail "no operators are measured"

# From now on nothing is measured, and the same bytes come out.
run 0 cluster host:2 --json
cmp -s "$work/out" "$work/first.json" || fail "a later command has another cluster"
lacks err 'was measured in'
run 0 cluster host:2 --json --no-probe
cmp -s "$work/out" "$work/first.json" || fail "--no-probe ignores the measurement"
for name in one two; do
  run 0 search $model --cluster host:2 --evaluations 300 -o "$work/$name.json"
done
cmp -s "$work/one.json" "$work/two.json" || fail "two searches have different plans"
run 0 simulate "$work/one.json" $model --json
run 0 cluster host:1000
has err 'warning: host:1000: 1000 ranks share [0-9]+ processors?; their times are extrapolated'
has out '1000 x host'

# A measurement beside other programs has a note at every use.
file=$(find "$XDG_CACHE_HOME" -name 'host-*.json')
cp "$file" "$work/kept"
grep -q '"disturbed": true' "$file" || sed -i 's/"measurement": {/"measurement": {\n    "disturbed": true,/' "$file"
run 0 cluster host:2 --json --no-probe
has err 'disturbed the measurement of this machine; automap cluster --forget'
cp "$work/kept" "$file"

# A damaged file is not used; the measurement can be forgotten.
echo '{' >"$file"
run 0 cluster host:2 --json --no-probe
has err 'it is not used'
cmp -s "$work/out" "$work/nominal" || fail "a damaged measurement is used"
cp "$work/kept" "$file"
run 2 cluster host:2 --forget
run 0 cluster --forget
has err '1 measurement removed'
[ ! -e "$file" ] || fail "--forget left $file"
run 0 cluster --forget
has err '0 measurements removed'
echo "host:2 is measured once"
