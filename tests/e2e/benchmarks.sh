#!/usr/bin/env bash
# Every benchmark runs and prints a table; how fast anything is, is not judged.
# labels: cpu e2e
# timeout: 120
# cost: 25
set -euo pipefail
cd "${AUTOMAP_SOURCE:-$(dirname "$0")/../..}"
build=${AUTOMAP_BUILD:-build}

# table ROWS COMMAND...: the command prints a head and at least so many rows
table() {
  local rows=$1 output
  shift
  output=$("$@")
  [ "$(wc -l <<<"$output")" -gt "$rows" ] || { echo "$*: fewer than $rows rows: $output"; exit 1; }
  echo "$*: passed"
}

[ -x "$build/bench_search" ] || { echo "skipped: the benchmarks are not built"; exit 77; }
table 9 "$build/bench_import" --quick
table 2 "$build/bench_search" --quick
table 2 "$build/bench_propagate" gpt2_tiny
table 13 "$build/bench_kernels" --quick
if [ -z "${AUTOMAP:-}" ] || [ -z "${AUTOMAP_PYTHON:-}" ]; then
  echo "left out: comparisons with JAX, which need the program and a Python environment"
  exit 0
fi
table 2 "$AUTOMAP_PYTHON" bench/step_time.py --quick
table 1 env AUTOMAP_BUILD="$build" "$AUTOMAP_PYTHON" bench/convolutions.py --quick
table 2 env AUTOMAP_NO_PROBE=1 "$AUTOMAP_PYTHON" bench/fused_steps.py --steps 2 --rounds 1 gpt2_tiny
table 8 "$AUTOMAP_PYTHON" bench/predictions.py --quick
table 2 "$AUTOMAP_PYTHON" bench/import_beside_jax.py --quick
table 8 "$AUTOMAP_PYTHON" bench/pipelines.py
table 0 "$AUTOMAP_PYTHON" bench/mixed_planners.py --automap "$AUTOMAP" --models mlp_tiny --clusters V100:1,P100:1
table 4 "$AUTOMAP_PYTHON" bench/scan_beside_unrolled.py --quick --cluster nominal:4
