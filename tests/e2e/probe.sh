#!/usr/bin/env bash
# automap cluster --probe: this host is measured in under a minute, and search
# takes the file; a GPU that is not there is one clear line and exit code 5; what
# contradicts itself, and --device cuda in a build without CUDA, is exit code 2.
# labels: cpu e2e
# timeout: 120
# cost: 20
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# expect CODE PATTERN ARGUMENT...
expect() {
  local code=0
  "$AUTOMAP" "${@:3}" >"$work/out" 2>&1 || code=$?
  if [ "$code" -ne "$1" ] || { [ -n "$2" ] && ! grep -qE -e "$2" "$work/out"; }; then
    echo "automap ${*:3}: exit code $code, expected $1 and \"$2\":"
    head -20 "$work/out"
    exit 1
  fi
}

SECONDS=0
expect 0 '' cluster --probe --device cpu --devices 2 -o "$work/host.json" --profile "$work/events.json"
[ "$SECONDS" -lt 60 ] || { echo "measuring took $SECONDS seconds"; exit 1; }
expect 0 '2 x host' cluster "$work/host.json"
for key in '"f32"' '"f64"' memory_bytes_per_second kernel_launch_seconds '"dot"' '"memory"' latency_seconds; do
  grep -q "$key" "$work/host.json" || { echo "the cluster file lacks $key"; exit 1; }
done
expect 0 'data=2|model=2|2 stages' search datasets/models/mlp_tiny/model.hlo.pb --cluster "$work/host.json" \
  -o "$work/plan.json"
for event in 'dot f32' '"all_reduce of 2"' '"probed": true'; do
  grep -q "$event" "$work/events.json" || { echo "the profile lacks $event"; exit 1; }
done
expect 0 '' search datasets/models/mlp_tiny/model.hlo.pb --cluster nominal:2 --baseline data_parallel \
  --mesh data=2 -o "$work/plan.json"
expect 0 '' simulate "$work/plan.json" datasets/models/mlp_tiny/model.hlo.pb --cluster nominal:2 --json
cp "$work/out" "$work/nominal"
expect 0 '(measured|interpolated|extrapolated), .* by the profile of a probe' simulate "$work/plan.json" \
  datasets/models/mlp_tiny/model.hlo.pb \
  --cluster nominal:2 --profile "$work/events.json" --verbose
expect 0 '' simulate "$work/plan.json" datasets/models/mlp_tiny/model.hlo.pb --cluster nominal:2 \
  --profile "$work/events.json" --json
cmp -s "$work/out" "$work/nominal" && { echo "the profile changes nothing"; exit 1; }
expect 2 'need --probe' cluster C --profile "$work/events.json"
expect 3 'this is a cluster, expected a profile of measured operators' cluster --probe \
  --profile "$work/host.json" # before it measures
expect 2 '--probe: expected no CLUSTER, got C' cluster C --probe
expect 2 'need --probe' cluster C --devices 2
expect 2 'cannot be written' cluster --probe -o "$work/none/host.json" # before it measures
expect 2 'device tpu: expected one of cpu, cuda' cluster --probe --device tpu
if ! CUDA_VISIBLE_DEVICES='' LD_LIBRARY_PATH='' "$AUTOMAP" cluster --probe --device cuda \
  -o "$work/gpu.json" 2>"$work/err"; then
  [ "$(wc -l <"$work/err")" -eq 1 ] || { echo "not one line:"; cat "$work/err"; exit 1; }
  code=5
  ! grep -q 'this build has no CUDA' "$work/err" || code=2
  CUDA_VISIBLE_DEVICES='' expect "$code" 'CUDA|GPU|driver' cluster --probe --device cuda
fi
echo "measured in $SECONDS seconds; search takes it"
