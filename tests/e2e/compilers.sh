#!/usr/bin/env bash
# gcc and clang, Debug and Release: every build succeeds with warnings as errors, and all find the same
# plans, byte for byte.
# labels: cpu e2e full
# timeout: 1800
# cost: 300
set -euo pipefail
if [ -n "${AUTOMAP_SANITIZE:-}" ]; then
  echo "skipped: the sanitizers' own build is not compared"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source "$AUTOMAP_SOURCE/.ci/packages.sh"
cases=("mlp_tiny nominal:4" "gpt2_tiny nominal:4" "moe_tiny B --evaluations 40" "t5_paper_6 C --evaluations 40"
  "lstm_tiny t4:2 --searcher anneal" "mlp_tiny nominal:4 --mesh data=2,model=2 --searcher exact --evaluations 60"
  "vgg19 C --objective paper --space pipeline")

# search PROGRAM MODEL CLUSTER [OPTION...]: the plan on stdout
search() {
  local program=$1 model=$2 cluster=$3
  shift 3
  "$program" search datasets/models/"$model"/model.hlo.pb* --cluster "$cluster" "$@" --quiet \
    -o "$work/plan.json" >/dev/null
  cat "$work/plan.json"
}

for compiler in gcc clang; do
  for type in Debug Release; do
    if ! command -v $compiler >/dev/null; then echo "skipped: no $compiler"; exit 77; fi
    targets=automap configure_and_build "$work/$compiler-$type" -DAUTOMAP_TESTS=OFF -DAUTOMAP_WERROR=ON \
      -DAUTOMAP_MPI=OFF \
      -DCMAKE_C_COMPILER=$compiler -DCMAKE_BUILD_TYPE=$type
    for words in "${cases[@]}"; do
      # shellcheck disable=SC2086 # words are words
      if [ "$(search "$AUTOMAP" $words | sha256sum)" != "$(search "$work/$compiler-$type/automap" $words | sha256sum)" \
        ]; then
        echo "FAILED: $compiler, $type: another plan for $words"
        exit 1
      fi
    done
    echo "$compiler, $type: ${#cases[@]} plans are equal"
  done
done
