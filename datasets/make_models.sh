#!/bin/sh
# Writes everything under datasets/models anew: needs JAX, and zstd for modules that are too large without compression.
# Two modules come with jaxlib's own text as well.
set -eu
cd "$(dirname "$0")"

small="mlp mlp_tiny mlp_evaluate vgg_tiny gpt2_tiny gpt2_bf16_tiny bert_tiny t5_tiny exact_linear exact_gather
  two_swapped
  lstm_tiny llama_tiny moe_tiny moe_sorted_tiny resnet_tiny vit_tiny unet_tiny dropout_tiny accumulated_tiny adamw_tiny
  adafactor_tiny lion_tiny flax_tiny fused_tiny"
large="vgg19 resnet50_batch16 gpt2 gpt2_batch1 gpt2_bf16 bert48 t5_paper_6 t5_paper_24_3b t5_paper_24_11b llama3_8b"
with_text="mlp_tiny t5_tiny"

for name in $small $large; do
    text=
    case " $with_text " in *" $name "*) text=--text ;; esac
    python3 -m automap_jax.export "$name" --out "models/$name" $text
done
for name in $large; do
    zstd -19 -q -f --rm "models/$name/model.hlo.pb"
done
for name in $with_text; do
    zstd -19 -q -f --rm "models/$name"/*.hlo.txt
done

for name in gpt2_small vgg_small; do # what bench/two_ranks.py measures
    python3 -m automap_jax.export "$name" --out "../bench/models/$name"
    zstd -19 -q -f --rm "../bench/models/$name/model.hlo.pb"
done
