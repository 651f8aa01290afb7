#!/usr/bin/env bash
# Every benchmark runs and prints a table, whatever its figures are. Sections of documents are written.
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

page=$(mktemp)
trap 'rm -f "$page"' EXIT
mark() { printf '<!-- %s begins -->\n%s<!-- %s ends -->\n' "$1" "$2" "$1"; }
{ mark "echo | a |" $'old\n'; mark "echo b" ""; } >"$page"
python3 bench/write_section.py "$page" echo "| a |"
python3 bench/write_section.py "$page" echo b
diff "$page" <(mark "echo | a |" $'| a |\n'; mark "echo b" $'\n    b\n\n')
if python3 bench/write_section.py "$page" echo c 2>/dev/null; then
  echo "write_section.py accepted a document without the mark"
  exit 1
fi

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
table 13 "$AUTOMAP_PYTHON" bench/zoo_tables.py micro_batches
table 0 "$AUTOMAP_PYTHON" bench/mixed_planners.py --automap "$AUTOMAP" --models mlp_tiny --clusters V100:1,P100:1
table 3 "$AUTOMAP_PYTHON" bench/layers.py --quick --cluster nominal:4 --model moe
