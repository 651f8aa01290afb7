"""The model zoo: training steps in plain JAX, each a function that returns a Model."""

from . import exact, gpt2_bf16, mlp, t5, transformer, vgg

MODELS = {
    "mlp": mlp.full,
    "mlp_tiny": mlp.tiny,
    "mlp_evaluate": mlp.evaluate,
    "vgg19": vgg.full,
    "vgg_tiny": vgg.tiny,
    "bert48": transformer.bert48,
    "bert_tiny": transformer.bert_tiny,
    "gpt2": transformer.gpt2,
    "gpt2_tiny": transformer.gpt2_tiny,
    "gpt2_batch8": transformer.gpt2_batch8,
    "gpt2_bf16": gpt2_bf16.full,
    "gpt2_bf16_batch8": gpt2_bf16.batch8,
    "gpt2_bf16_tiny": gpt2_bf16.tiny,
    "t5_paper_6": t5.paper_6,
    "t5_paper_24_3b": t5.paper_24_3b,
    "t5_paper_24_11b": t5.paper_24_11b,
    "t5_tiny": t5.tiny,
    "exact_linear": exact.linear,
    "exact_gather": exact.gather,
    "two_swapped": exact.swapped,
}
