#!/usr/bin/env bash
# .ci/trainers.sh: links .trainers to the sources of Megatron-LM and torchtitan, whose parsers read exports in
# tests/e2e/test_trainers.py. All clones of a user share them. Without network that test is shown as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

commits=("Megatron-LM NVIDIA/Megatron-LM d98e8a64ddf34856e74b24714e3bedb2f5a39553 megatron"
  "torchtitan pytorch/torchtitan b5bcd76c66d0acb1a08b176d9639425bc55e0b2a torchtitan")
needed=tests/requirements-trainers.txt
folder=${XDG_CACHE_HOME:-$HOME/.cache}/automap/trainers-$( (printf '%s\n' "${commits[@]}"; cat "$needed") | sha256sum | cut -c1-12)

# get NAME REPOSITORY COMMIT FOLDER: that folder of the commit, without history
get() {
  local at=$folder/$1
  git init -q "$at"
  git -C "$at" config core.sparseCheckout true
  echo "/$4/" >"$at/.git/info/sparse-checkout"
  timeout 120 git -C "$at" fetch -q --depth 1 "https://github.com/$2" "$3"
  git -C "$at" checkout -q FETCH_HEAD
}

if [ ! -e "$folder/complete" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  for words in "${commits[@]}"; do
    # shellcheck disable=SC2086
    get $words || { rm -rf "$folder"; exit 1; }
  done
  python3 -m pip install -q --disable-pip-version-check --no-deps --target "$folder/python" -r "$needed"
  touch "$folder/complete"
fi
ln -sfn "$folder" .trainers
