"""Plans of one model in three forms of its layers.

The layers of `moe` have experts in place of the dense half. The layers of `unet` are residual blocks of convolutions,
at three sizes of the image on the way down and on the way up. Each model's training step (Adam, its layers recomputed
in the backward pass) is exported three times:

    trees    one tree of parameters per layer, and an unrolled loop
    scan     stacked parameters and lax.scan
    sliced   stacked parameters, sliced by an unrolled loop

All are searched on one cluster. A row has the instructions, the predicted step, its ratio to the first form's,
the stages and the seconds of the search.

Run as `AUTOMAP=build/automap python bench/layers.py [--quick] [--cluster CLUSTER] [--model gpt|llama|t5|moe|unet]`.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE / "datasets"))
os.environ.setdefault("AUTOMAP", str(SOURCE / "build" / "automap"))

import jax
import jax.numpy as jnp

import automap_jax

FORMS = ("trees", "scan", "sliced")
MODELS = ("gpt", "llama", "t5", "moe", "unet")
EXPERTS = 4
LEVELS = 3  # sizes of the image in `unet`
CHANNELS = 4  # of the image in `unet`
# layers, width, heads, hidden, batch, length, vocabulary. unet: blocks at each size of the image, width at the first,
# -, -, batch, side of the image, -
SIZES = {"gpt": (24, 1024, 16, 4096, 64, 512, 32000), "llama": (16, 2048, 16, 5632, 16, 1024, 32000),
         "t5": (12, 768, 12, 3072, 32, 512, 32000), "moe": (8, 512, 8, 2048, 32, 256, 16000),
         "unet": (4, 64, 0, 0, 32, 64, 0)}
QUICK = dict.fromkeys(MODELS, (4, 32, 2, 64, 8, 12, 50))


def norm(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def attention(x, memory, p, name, heads, causal):
    """Attention of x [batch, time, width] to memory, with the matrices name_query, name_key, ... of p."""
    split = lambda of, kind: (of @ p[f"{name}_{kind}"]).reshape(*of.shape[:2], heads, -1)
    query, key, value = split(x, "query"), split(memory, "key"), split(memory, "value")
    scores = jnp.einsum("bthd,bshd->bhts", query, key) / query.shape[-1] ** 0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), value).reshape(x.shape) @ p[f"{name}_out"]


def experts(x, p):
    """The experts' results for x [time, width]: one expert for each row, each with 2 x time / experts places."""
    probability = jax.nn.softmax(x @ p["router"])
    mask = jax.nn.one_hot(jnp.argmax(probability, -1), EXPERTS)
    place = ((jnp.cumsum(mask, 0) - 1) * mask).sum(-1).astype(jnp.int32)
    dispatch = mask[:, :, None] * jax.nn.one_hot(place, 2 * x.shape[0] // EXPERTS)[:, None, :]
    inner = jax.nn.relu(jnp.einsum("ecd,edf->ecf", jnp.einsum("tec,td->ecd", dispatch, x), p["in"]))
    outer = jnp.einsum("ecf,efd->ecd", inner, p["out"])
    return jnp.einsum("tec,ecd->td", dispatch, outer) * probability.max(-1)[:, None]


def layer(heads, causal, memory, x, p):
    inner = norm(x, p["first_gain"])
    x = x + attention(inner, inner, p, "self", heads, causal)
    if memory is not None:
        x = x + attention(norm(x, p["cross_gain"]), memory, p, "cross", heads, False)
    inner = norm(x, p["second_gain"])
    if "router" in p:
        return x + jax.vmap(experts, (0, None))(inner, p)
    up = inner @ p["up"] + p["up_bias"] if "up_bias" in p else jax.nn.silu(inner @ p["gate"]) * (inner @ p["up"])
    return x + (jax.nn.gelu(up) if "up_bias" in p else up) @ p["down"]


def layer_shapes(name, width, hidden, is_decoder):
    matrices = [f"{kind}_{which}" for kind in ("self", "cross")[:1 + is_decoder]
                for which in ("query", "key", "value", "out")]
    shapes = dict.fromkeys(matrices, (width, width))
    shapes |= {"first_gain": (width,), "second_gain": (width,)}
    if name == "moe":
        return shapes | {"router": (width, EXPERTS), "in": (EXPERTS, width, hidden), "out": (EXPERTS, hidden, width)}
    shapes |= {"up": (width, hidden), "down": (hidden, width)}
    shapes |= {"gate": (width, hidden)} if name == "llama" else {"up_bias": (hidden,)}
    return shapes | ({"cross_gain": (width,)} if is_decoder else {})


def convolve(x, kernel, stride=1):
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def block(memory, x, p):
    """A residual block of two convolutions."""
    inner = jax.nn.relu(convolve(x, p["first"]) * p["first_gain"] + p["first_bias"])
    return x + convolve(inner, p["second"]) * p["second_gain"]


def run_layers(form, heads, causal, x, layers, memory=None):
    return repeat(form, functools.partial(layer, heads, causal), x, layers, memory)


def repeat(form, function, x, layers, memory=None):
    one = jax.checkpoint(function)
    if form == "scan":
        return jax.lax.scan(lambda x, p: (one(memory, x, p), None), x, layers)[0]
    if form == "sliced":
        count = jax.tree.leaves(layers)[0].shape[0]
        layers = [jax.tree.map(lambda stack: stack[k], layers) for k in range(count)]
    for p in layers:
        x = one(memory, x, p)
    return x


def loss_of_images(form, params, noisy, clean):
    """The loss of a U-Net, whose stacks of blocks stand between convolutions that halve or double the image."""
    features, x = [], convolve(noisy, params["in"])
    for level in range(LEVELS):
        if level > 0:
            x = convolve(x, params[f"half_{level}"], stride=2)
        x = repeat(form, block, x, params[f"down_{level}"])
        features.append(x)
    for level in reversed(range(LEVELS - 1)):
        x = jax.lax.conv_transpose(x, params[f"double_{level}"], (2, 2), "SAME",
                                   dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = convolve(jnp.concatenate([x, features[level]], -1), params[f"join_{level}"])
        x = repeat(form, block, x, params[f"up_{level}"])
    return jnp.square(convolve(x, params["out"]) - clean).mean()


def loss_of(name, form, heads, params, tokens, targets):
    if name == "unet":
        return loss_of_images(form, params, tokens, targets)
    memory = None
    if name == "t5":
        memory = norm(run_layers(form, heads, False, params["table"][tokens], params["encoder"]), params["gain"])
    x = run_layers(form, heads, True, params["table"][tokens], params["decoder"], memory)
    logarithms = jax.nn.log_softmax(norm(x, params["gain"]) @ params["table"].T)
    return -jnp.mean(jnp.take_along_axis(logarithms, targets[..., None], -1))


def adam(state, gradients):
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g * g, state["second"], gradients)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), state["params"], first, second)
    return {"params": params, "first": first, "second": second}


def sgd(state, gradients):
    return {"params": jax.tree.map(lambda p, g: p - 0.125 * g, state["params"], gradients)}


def parameter_shapes(name, form, sizes):
    layers, width, _, hidden, _, _, vocabulary = sizes
    shape = lambda *dimensions: jax.ShapeDtypeStruct(dimensions, jnp.float32)

    def stack(shapes):
        if form == "trees":
            return [{key: shape(*dimensions) for key, dimensions in shapes.items()} for _ in range(layers)]
        return {key: shape(layers, *dimensions) for key, dimensions in shapes.items()}

    if name == "unet":
        params = {"in": shape(3, 3, CHANNELS, width), "out": shape(1, 1, width, CHANNELS)}
        for level in range(LEVELS):
            wide = width << level
            blocks = stack({"first": (3, 3, wide, wide), "second": (3, 3, wide, wide), "first_gain": (wide,),
                            "first_bias": (wide,), "second_gain": (wide,)})
            params |= {f"down_{level}": blocks} | ({f"half_{level}": shape(3, 3, wide // 2, wide)} if level else {})
            if level < LEVELS - 1:
                params |= {f"up_{level}": blocks, f"join_{level}": shape(3, 3, 2 * wide, wide),
                           f"double_{level}": shape(2, 2, 2 * wide, wide)}
        return params
    params = {"gain": shape(width), "table": shape(vocabulary, width)}
    params["decoder"] = stack(layer_shapes(name, width, hidden, name == "t5"))
    if name == "t5":
        params["encoder"] = stack(layer_shapes(name, width, hidden, False))
    return params


def export(name, form, sizes, folder, optimizer=adam):
    """Exports the training step to folder/model.hlo.pb, and returns that path."""
    heads, batch, length = sizes[2], sizes[4], sizes[5]
    params = parameter_shapes(name, form, sizes)
    parts = ("params", "first", "second") if optimizer is adam else ("params",)
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    if name == "unet":
        tokens = jax.ShapeDtypeStruct((batch, length, length, CHANNELS), jnp.float32)

    def train(state, tokens, targets):
        loss = functools.partial(loss_of, name, form, heads)
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens, targets)
        return optimizer(state, gradients), value

    automap_jax.export(train, (dict.fromkeys(parts, params), tokens, tokens), str(folder))
    return pathlib.Path(folder) / "model.hlo.pb"


def automap(*arguments):
    return subprocess.run([os.environ["AUTOMAP"], *map(str, arguments)], capture_output=True, text=True,
                          check=True).stdout


def search(model, cluster, options):
    """(predicted seconds, stages, seconds of the search)"""
    plan = model.parent / "plan.json"
    begin = time.perf_counter()
    automap("search", model, "--cluster", cluster, "-o", plan, *options)
    seconds = time.perf_counter() - begin
    document = json.loads(plan.read_text())
    return document["predicted"]["step_seconds"], len(document["stages"]), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small layers, for a test of this program")
    parser.add_argument("--cluster", default="C")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--export", metavar="FOLDER", help="export to FOLDER/MODEL_FORM, search nothing")
    options, rest = parser.parse_known_args()
    print(f"{'model':6} {'form':7} {'instructions':>12} {'step ms':>9} {'ratio':>6} {'stages':>6} {'search s':>8}")
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.model or MODELS:
            first = None
            for form in FORMS:
                folder = pathlib.Path(options.export or temporary) / f"{name}_{form}"
                model = export(name, form, (QUICK if options.quick else SIZES)[name], folder)
                if options.export:
                    continue
                count = json.loads(automap("info", model, "--json"))["instructions"]
                step, stages, seconds = search(model, options.cluster, rest)
                first = first or step
                print(f"{name:6} {form:7} {count:12} {step * 1e3:9.1f} {step / first:6.3f} {stages:6} {seconds:8.1f}",
                      flush=True)


if __name__ == "__main__":
    main()
