#!/usr/bin/env bash
# Seeds of the fuzzers: small valid inputs of every reader, OUT/READER/*.
# usage: seeds.sh AUTOMAP OUT, from the source folder
set -euo pipefail
automap=$1
out=$2
models=datasets/models
rm -rf "$out"
mkdir -p "$out"/{hlo_text,hlo_json,hlo_binary,context,cluster,import,plan}
mkdir -p "$out"/{safetensors,npz,tokens,checkpoint,profile_graph}

for text in tests/data/text/*.hlo.txt; do
  name=$(basename "$text" .hlo.txt)
  cp "$text" "$out/hlo_text/$name"
  cp "$text" "$out/context/$name"
  "$automap" convert "$text" -o "$out/hlo_json/$name.hlo.json"
  "$automap" convert "$text" -o "$out/hlo_binary/$name.hlo.pb"
done
# The texts of the forms, one file each.
awk -v folder="$out/hlo_text" '/^>>> /{ n++; next } n { print > (folder "/form_" n ".hlo.txt") }' \
  tests/data/verify/texts.txt
for model in exact_linear exact_gather mlp_tiny; do
  cp $models/$model/model.hlo.pb "$out/hlo_binary/$model.hlo.pb"
  cp $models/$model/model.hlo.pb "$out/context/$model"
  "$automap" convert $models/$model/model.hlo.pb -o "$out/hlo_text/$model.hlo.txt"
  cp $models/$model/state.npz "$out/npz/$model.npz"
done
cp tests/data/propagate/*.hlo "$out/context/"
for cluster in C nominal:2 whale-dp h100:2; do "$automap" cluster $cluster --json >"$out/cluster/${cluster/:/_}"; done
awk -v out="$out/cluster/example" \
  '/^```json/ { count++; file = out count; next } /^```/ { file = "" } file { print > file }' docs/cost-model.md
cp tests/data/imports/* "$out/import/"
"$automap" search $models/mlp_tiny/model.hlo.pb --cluster nominal:4 --evaluations 4 --quiet -o "$out/plan/host_4"
"$automap" search $models/mlp_tiny/model.hlo.pb --cluster nominal:4 --mesh data=2,model=2 --evaluations 4 --quiet \
  -o "$out/plan/mesh"
"$automap" run $models/mlp_tiny/model.hlo.pb --plan none --state $models/mlp_tiny/state.npz \
  --data $models/mlp_tiny/data.npz \
  --save "$out/safetensors/mlp_tiny.safetensors" --quiet >/dev/null

# Tokens: a byte for the kind and two for where an index ends, then the file (fuzz_tokens.c).
{ printf '\0\0\0'; printf '\1\0\2\0\3\0'; } >"$out/tokens/raw"
{ printf '\1\0\0'; printf '\1\0\0\0\2\0\0\0'; } >"$out/tokens/wide"
{ printf '\0\0\0'; printf '\210\330\64\1\1\0\0\0\2\0\0\0'; head \
  -c 1012 /dev/zero; printf '\1\0\2\0'; } >"$out/tokens/llm"
{ printf '\2\0\0'; printf '\223NUMPY\1\0\067\0'; printf "{'descr': '<i2', 'fortran_order': False, 'shape': (2,)}"; \
  printf '\1\0\2\0'; } \
  >"$out/tokens/npy"
{ printf '\3\076\0'; printf 'MMIDIDX\0\0\1\0\0\0\0\0\0\0\10\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0'
  printf '\3\0\0\0'; head -c 8 /dev/zero; head \
    -c 8 /dev/zero; printf '\1\0\0\0\0\0\0\0'; printf '\1\0\2\0\3\0'; } >"$out/tokens/megatron"
for plan in none "$out/plan/mesh"; do
  "$automap" run $models/mlp_tiny/model.hlo.pb --plan "$plan" --state $models/mlp_tiny/state.npz \
    --data $models/mlp_tiny/data.npz \
    --checkpoint "$out/saved" --quiet >/dev/null
  cp "$out"/saved/step-00000001/manifest.json "$out/checkpoint/$(basename "$plan")"
  rm -r "$out/saved"
done
cp datasets/profiles/gnmt_like.txt datasets/profiles/vgg16_like.txt "$out/profile_graph/"
{
  printf '{"format": "automap-arrays-1", "computation": [1, 2, 3], "activation": [1, 0, 2], '
  printf '"weight": [0, 1, 2], "devices": [1, 0.5], "inside": 4}'
} >"$out/profile_graph/arrays"
