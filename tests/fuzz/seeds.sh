#!/usr/bin/env bash
# Seeds of the fuzzers: small valid inputs of every reader, OUT/READER/*.
# usage: seeds.sh AUTOMAP OUT, from the source folder
set -euo pipefail
automap=$1
out=$2
models=datasets/models
rm -rf "$out"
mkdir -p "$out"/{hlo_text,hlo_json,hlo_binary,context,cluster,plan,safetensors,npz}

for text in tests/text/*.hlo.txt; do
  name=$(basename "$text" .hlo.txt)
  cp "$text" "$out/hlo_text/$name"
  cp "$text" "$out/context/$name"
  "$automap" convert "$text" -o "$out/hlo_json/$name.hlo.json"
  "$automap" convert "$text" -o "$out/hlo_binary/$name.hlo.pb"
done
for model in exact_linear exact_gather mlp_tiny; do
  cp $models/$model/model.hlo.pb "$out/hlo_binary/$model.hlo.pb"
  cp $models/$model/model.hlo.pb "$out/context/$model"
  "$automap" convert $models/$model/model.hlo.pb -o "$out/hlo_text/$model.hlo.txt"
  cp $models/$model/state.npz "$out/npz/$model.npz"
done
for cluster in C host:2 whale-dp; do "$automap" cluster $cluster --json >"$out/cluster/${cluster/:/_}"; done
"$automap" search $models/mlp_tiny/model.hlo.pb --cluster host:4 --evaluations 4 --quiet -o "$out/plan/host_4"
"$automap" search $models/mlp_tiny/model.hlo.pb --cluster host:4 --mesh data=2,model=2 --evaluations 4 --quiet -o "$out/plan/mesh"
"$automap" run $models/mlp_tiny/model.hlo.pb --plan none --state $models/mlp_tiny/state.npz --data $models/mlp_tiny/data.npz \
  --save "$out/safetensors/mlp_tiny.safetensors" --quiet >/dev/null
