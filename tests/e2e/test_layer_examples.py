# labels: cpu e2e full jax
# timeout: 3600
# cost: 300
"""Large models whose layers are unrolled or scanned, on clusters whose figures do not change with calibrations
(tests/data/clusters): steps stay below fixed limits in every form, and no baseline is faster than the plan found.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_layer_examples.py [gpt|llama]`.
"""

import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("tests/launch", "datasets"):
    sys.path.insert(0, str(ROOT / folder))
from program import automap, skip_where_missing

with skip_where_missing():
    import jax
    from automap_jax.exporter import write_module
    from automap_jax.zoo import llama
    from automap_jax.zoo.layers import attention, cross_entropy, layer_norm
    from automap_jax.zoo.model import Model, integers
    from automap_jax.zoo.optimizers import adam, adam_shapes
    from automap_jax.zoo.transformer import mlp, shapes

CLUSTERS = ROOT / "tests" / "data" / "clusters"
GPT_SECONDS = 0.44  # 24 layers of width 1,024, 64 x 512 tokens, rematerialised
JAX_SECONDS = 0.48  # the same for JAX, which recomputes as the source does and has no fused attention
LLAMA_SECONDS = 18.8  # Llama 3 70B, 128 x 8,192 tokens
BASELINES = ("zero3", "megatron_zero3")


def gpt(form, layers=24, width=1024, heads=16, inner=4096, vocabulary=50257, batch=64, length=512):
    """A step of GPT with Adam whose layers are recomputed: trees of parameters, a scan, or slices of stacks."""
    tree = shapes(layers, width, inner, vocabulary, length)
    if form != "trees":
        stack = lambda shape: (layers, *shape)
        tree |= {"layers": jax.tree.map(stack, tree["layers"][0], is_leaf=lambda node: isinstance(node, tuple))}

    @jax.checkpoint
    def layer(x, p):
        y = layer_norm(x, p["attention_norm"])
        x = x + attention(y, y, p["attention"], heads, causal=True)
        return x + mlp(layer_norm(x, p["mlp_norm"]), p)

    def loss(params, tokens, targets):
        x, stacks = params["token_table"][tokens] + params["position_table"], params["layers"]
        if form == "scan":
            x, _ = jax.lax.scan(lambda x, p: (layer(x, p), None), x, stacks)
        for k in range(layers) if form != "scan" else ():
            x = layer(x, stacks[k] if form == "trees" else jax.tree.map(lambda stack: stack[k], stacks))
        return cross_entropy(layer_norm(x, params["norm"]) @ params["softmax_table"].T, targets)

    def step(state, tokens, targets):
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens, targets)
        return adam(state, gradients, rate=0.001), value

    return Model(step, (adam_shapes(tree), integers(batch, length), integers(batch, length)))


def export(model, folder):
    write_module(model.step, model.arguments, folder, constants=model.constants)
    return folder / "model.hlo.pb"


def search(model, cluster, *options):
    done = automap("search", model, "--cluster", CLUSTERS / cluster, "--json", "-o", os.devnull, *options)
    assert done.returncode in (0, 4), f"{model} {options}: {done.stderr}"
    return json.loads(done.stdout) if done.returncode == 0 else None


def check(name, model, cluster, limit, baselines=(), options=()):
    best = search(model, cluster, *options)
    print(f"{name}: {best['step_seconds']:.3f} s a step, gap {best['gap']:.3f}", flush=True)
    assert best["step_seconds"] <= limit, f"{name} takes {best['step_seconds']} s, at most {limit} s are allowed"
    for baseline in baselines:
        found = search(model, cluster, "--baseline", baseline)
        print(f"{name}, {baseline}: {found and found['step_seconds']}", flush=True)
        assert not found or best["step_seconds"] <= found["step_seconds"], f"{name}: {baseline} is faster"


def main():
    models = sys.argv[1:] or ["gpt", "llama"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for form in ("trees", "scan", "sliced") if "gpt" in models else ():
            model = export(gpt(form), folder / f"gpt_{form}")
            check(f"GPT, {form}", model, "c_early.json", GPT_SECONDS)
            check(f"GPT, {form}, for JAX", model, "c_early.json", JAX_SECONDS, options=["--for", "jax"])
        for form in ("scan", "unrolled") if "llama" in models else ():
            model = llama.model(80, 8192, 64, 8, 28672, 128256, batch=128, length=8192, unrolled=form == "unrolled")
            check(f"Llama 3 70B, {form}", export(model, folder / form), "h100_16_early.json", LLAMA_SECONDS, BASELINES)


if __name__ == "__main__":
    main()
