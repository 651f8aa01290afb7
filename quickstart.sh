#!/usr/bin/env bash
# From a clean clone to a trained model: installs missing packages, builds, plans
# T5 for a cluster of GPUs, then plans and trains a small network on this machine
# and grades it on digits it has not seen. No GPU, no Python, no framework.
set -euo pipefail
cd "$(dirname "$0")"
source .ci/packages.sh

if [ "${1:-}" = --help ]; then
  sed -n '2,4s/^# //p' "$0"
  exit 0
fi

models=datasets/models
work=build/quickstart
automap=build/automap

title() { printf '\n=== %s\n' "$*"; }

# Prints a command as one would type it, then runs it.
show() {
  printf '$ %s\n' "$*" | sed "s|$automap|automap|"
  "$@"
}

title "packages and build"
started=$SECONDS
install_packages "${build_packages[@]}"
options=()
if [ ! -e build/CMakeCache.txt ]; then options=(-DCMAKE_BUILD_TYPE=Release -DAUTOMAP_TESTS=OFF); fi
configure_and_build build "${options[@]}"
mkdir -p "$work"
echo "built $automap in $((SECONDS - started)) s"

title "a training step of T5 (6 + 6 layers), exported from JAX"
show "$automap" info "$models/t5_paper_6/model.hlo.pb.zst" --roles "$models/t5_paper_6/model.roles.json"

title "a plan for it on cluster C, beside what experts would do"
show "$automap" search "$models/t5_paper_6/model.hlo.pb.zst" --roles "$models/t5_paper_6/model.roles.json" \
  --cluster C -o "$work/t5.plan.json"

title "a perceptron for handwritten digits, planned for 4 ranks on this machine"
show "$automap" search "$models/mlp/model.hlo.pb" --roles "$models/mlp/model.roles.json" --cluster nominal:4 \
  -o "$work/mlp.plan.json"

title "trained under that plan"
steps=$(grep -o '"steps": *[0-9]*' "$models/mlp/losses.json" | grep -o '[0-9]*$')
show "$automap" run "$models/mlp/model.hlo.pb" --roles "$models/mlp/model.roles.json" --plan "$work/mlp.plan.json" \
  --state "$models/mlp/state.npz" --data "$models/mlp/data.npz" --steps "$steps" \
  --save "$work/mlp.safetensors" --json -o "$work/mlp.jsonl"
# One loss a line, of this run and of JAX on one device.
grep -o '"loss": *[^,}]*' "$work/mlp.jsonl" | sed 's/.*: *//' >"$work/losses"
tr ',' '\n' <"$models/mlp/losses.json" | grep -oE '[0-9]+\.[0-9]+(e-?[0-9]+)?' >"$work/reference"
paste "$work/losses" "$work/reference" | awk -v steps="$steps" '
  BEGIN { printf "%6s  %-12s %-12s %s\n", "step", "loss", "JAX", "relative difference" }
  {
    difference = $1 > $2 ? ($1 - $2) / $2 : ($2 - $1) / $2
    if (NR <= 20 && difference > largest) largest = difference
    if (NR == 1 || NR == 20 || NR % 110 == 0) printf "%6d  %-12.8f %-12.8f %.1e\n", NR, $1, $2, difference
  }
  END {
    if (NR != steps) { printf "%d losses, expected %d\n", NR, steps; exit 1 }
    printf "largest relative difference in the first 20 steps: %.1e\n", largest
    if (largest > 2e-6) exit 1
  }' || { echo "the losses are not the reference's" >&2; exit 1; }

title "graded on 384 digits held out"
show "$automap" run "$models/mlp_evaluate/model.hlo.pb" --roles "$models/mlp_evaluate/model.roles.json" --inference --plan none \
  --state "$work/mlp.safetensors" --data datasets/digits/test.npz --steps 1 --outputs "$work/right.npz" \
  --watch 'output[0]' --json -o "$work/right.jsonl"
right=$(sed -nE 's/.*"output\[0\]": *\[?([0-9]+).*/\1/p' "$work/right.jsonl" | tail -1)
awk -v right="$right" 'BEGIN { printf "%d of 384 right: %.1f %%\n", right, 100 * right / 384; exit right < 0.96 * 384 }' ||
  { echo "fewer than 96 % are right" >&2; exit 1; }

case $("$automap" --version) in
  *MPI* | *MPICH*) mpi="this build has MPI: 'mpirun -n 4 automap run ...' starts several processes" ;;
  *) mpi="this build has no MPI: install libopenmpi-dev (or libmpich-dev) and run ./quickstart.sh again for mpirun" ;;
esac
title "done in $((SECONDS - started)) s"
echo "plans are in $work; 'build/automap --help' lists the commands; ./test.sh runs the tests"
echo "$mpi"
