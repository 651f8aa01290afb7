"""Strict mode on variants of one model: `automap groups --strict` on steps exported for the occasion.

A T5 of 2 + 2 layers with the paper's proportions has 3 attentions of 4 dimensions and 2 MLPs of 3 for
each pair of layers, and 3 tables: 39 dimensions in 13 groups. Parts of a training step that must not change the split:
tied tables (fewer dimensions, as there are fewer tables), positions, label smoothing with z-loss, an L2 term, clipping
by the global norm, recomputation, padding masks; a relative position bias ties the attentions of a stack into one
group. A scan over stacked layers splits the same dimensions of each stacked weight as the unrolled layers.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_strict_variants.py`.
"""
# labels: jax e2e
# timeout: 600

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, skip_where_missing

with skip_where_missing():
    import jax
    import jax.numpy as jnp

from automap_jax.exporter import write_module
from automap_jax.zoo import layers
from automap_jax.zoo.model import floats, integers
from automap_jax.zoo.optimizers import sgd, sgd_shapes
from automap_jax.zoo.t5 import mlp, shapes

LAYERS, WIDTH, HEADS, HEAD, INNER, VOCABULARY = 2, 64, 8, 8, 128, 256
BATCH, LONG, SHORT = 8, 24, 16
BUCKETS = 32


def attention(x, memory, p, causal=False, mask=None, bias=None):
    """The zoo's attention with a padding mask [b,s] and a bias [heads,t,s]."""
    def split(y):
        return y.reshape(*y.shape[:2], HEADS, -1)

    query, key, value = (split(source @ p[name]["kernel"])
                         for source, name in ((x, "query"), (memory, "key"), (memory, "value")))
    scores = jnp.einsum("bthe,bshe->bhts", query, key) / math.sqrt(HEAD)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = jnp.where(mask[:, None, None, :], scores, -1e9)
    if causal:
        places = [jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], d) for d in range(2)]
        scores = jnp.where(places[0] >= places[1], scores, -1e9)
    mixed = jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores), value)
    return mixed.reshape(*x.shape[:2], -1) @ p["output"]["kernel"]


def positions(x, variant):
    if variant != "sinusoid":
        return x
    angles = jnp.arange(x.shape[1])[:, None] / 10000 ** (jnp.arange(WIDTH // 2) * 2 / WIDTH)
    return x + jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def relative_bias(table, rows, columns):
    distance = jnp.arange(columns)[None, :] - jnp.arange(rows)[:, None]
    return jnp.take(table, jnp.clip(distance + BUCKETS // 2, 0, BUCKETS - 1), axis=0).transpose(2, 0, 1)


def logits(params, inputs, shifted, variant):
    def table(name):
        tied = {"tied": "softmax_table", "two tables": "encoder_table" if name != "softmax_table" else name}
        return params[tied.get(variant, name)]

    def bias(stack, length):
        return relative_bias(params[f"{stack}_bias"], length, length) if variant == "relative" else None

    again = jax.checkpoint if variant == "remat" else lambda layer: layer
    mask = (inputs != 0) if variant == "padding" else None

    @again
    def encode(x, p):
        y = layers.layer_norm(x, p["attention_norm"])
        x = x + attention(y, y, p["attention"], mask=mask, bias=bias("encoder", LONG))
        return x + mlp(layers.layer_norm(x, p["mlp_norm"]), p)

    @again
    def decode(x, memory, p):
        y = layers.layer_norm(x, p["attention_norm"])
        x = x + attention(y, y, p["attention"], causal=True, bias=bias("decoder", SHORT))
        y = layers.layer_norm(x, p["cross_attention_norm"])
        x = x + attention(y, memory, p["cross_attention"], mask=mask)
        return x + mlp(layers.layer_norm(x, p["mlp_norm"]), p)

    x = positions(jnp.take(table("encoder_table"), inputs, axis=0), variant)
    for p in params["encoder"]:
        x = encode(x, p)
    memory = layers.layer_norm(x, params["encoder_norm"])
    x = positions(jnp.take(table("decoder_table"), shifted, axis=0), variant)
    for p in params["decoder"]:
        x = decode(x, memory, p)
    return layers.layer_norm(x, params["decoder_norm"]) @ table("softmax_table").T


def training_step(variant):
    def loss(params, inputs, shifted, targets):
        found = logits(params, inputs, shifted, variant)
        value = layers.cross_entropy(found, targets)
        if variant == "smoothing":
            value = 0.9 * value - 0.1 * jax.nn.log_softmax(found).mean()
            value = value + 1e-4 * jnp.square(jax.nn.logsumexp(found, axis=-1)).mean()
        if variant == "l2":
            value = value + 1e-4 * sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params))
        return value

    def step(state, inputs, shifted, targets):
        value, gradients = jax.value_and_grad(loss)(state["params"], inputs, shifted, targets)
        if variant == "clipping":
            norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradients)))
            gradients = jax.tree.map(lambda leaf: leaf * jnp.minimum(1, 1 / norm), gradients)
        return sgd(state, gradients, rate=0.001), value

    return step


def t5(variant):
    tree = shapes(LAYERS, WIDTH, HEADS, HEAD, INNER, VOCABULARY, None)
    if variant == "tied":
        del tree["encoder_table"], tree["decoder_table"]
    if variant == "two tables":
        del tree["decoder_table"]
    if variant == "relative":
        tree |= {"encoder_bias": (BUCKETS, HEADS), "decoder_bias": (BUCKETS, HEADS)}
    tokens = [integers(BATCH, length) for length in (LONG, SHORT, SHORT)]
    return training_step(variant), (sgd_shapes(tree), *tokens)


def stacked(is_scanned):
    """Layers of attention and MLP, as a list, or stacked and scanned."""
    layer = shapes(1, WIDTH, HEADS, HEAD, INNER, VOCABULARY, None)["encoder"][0]
    stack = jax.tree.map(lambda shape: (4, *shape), layer, is_leaf=lambda node: isinstance(node, tuple))
    tree = {"layers": stack if is_scanned else [layer] * 4, "table": (VOCABULARY, WIDTH)}

    def forward(x, p):
        y = layers.layer_norm(x, p["attention_norm"])
        x = x + attention(y, y, p["attention"])
        return x + mlp(layers.layer_norm(x, p["mlp_norm"]), p)

    def loss(params, tokens, targets):
        x = jnp.take(params["table"], tokens, axis=0)
        if is_scanned:
            x, _ = jax.lax.scan(lambda carried, p: (forward(carried, p), None), x, params["layers"])
        else:
            for p in params["layers"]:
                x = forward(x, p)
        return layers.cross_entropy(x @ params["table"].T, targets)

    def step(state, tokens, targets):
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens, targets)
        return sgd(state, gradients, rate=0.001), value

    return step, (sgd_shapes(tree), integers(BATCH, LONG), integers(BATCH, LONG))


def strict_groups(step, arguments):
    with tempfile.TemporaryDirectory() as folder:
        write_module(step, arguments, pathlib.Path(folder))
        done = subprocess.run([AUTOMAP, "groups", f"{folder}/model.hlo.pb", "--strict", "--axis-size", "8", "--json"],
                              capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def split_by_best(found):
    """Returns {path: dimension} of the best groups."""
    best = set(found["best"]["groups"])
    return {member["path"]: member["dimension"] for group in found["groups"] if group["id"] in best
            for member in group["members"]}


# variant: dimensions that are split together, sizes of the groups in the best set
ATTENTIONS, MLPS = [4] * 6, [3] * 4
TABLE = {
    "plain": (39, ATTENTIONS + MLPS + [1] * 3),
    "tied": (37, ATTENTIONS + MLPS + [1]),
    "two tables": (38, ATTENTIONS + MLPS + [1] * 2),
    "sinusoid": (39, ATTENTIONS + MLPS + [1] * 3),
    "smoothing": (39, ATTENTIONS + MLPS + [1] * 3),
    "l2": (39, ATTENTIONS + MLPS + [1] * 3),
    "clipping": (39, ATTENTIONS + MLPS + [1] * 3),
    "remat": (39, ATTENTIONS + MLPS + [1] * 3),
    "padding": (39, ATTENTIONS + MLPS + [1] * 3),
    "relative": (41, [9, 9, 4, 4] + MLPS + [1] * 3),
}


def check_variant(variant, partitioned, sizes):
    found = strict_groups(*t5(variant))
    groups = {group["id"]: group["size"] for group in found["groups"]}
    chosen = sorted((groups[number] for number in found["best"]["groups"]), reverse=True)
    print(f"{variant:12} {found['best']['partitioned']} dimensions in groups of {chosen}", flush=True)
    assert found["best"]["partitioned"] == partitioned, f"{variant}: {partitioned} were expected"
    assert chosen == sorted(sizes, reverse=True), f"{variant}: groups of {sorted(sizes, reverse=True)} were expected"


def check_scan():
    unrolled, scanned = (split_by_best(strict_groups(*stacked(is_scanned))) for is_scanned in (False, True))
    expected = {path.replace("[0]", "", 1): dimension + 1 for path, dimension in unrolled.items()
                if "['layers'][0]" in path}
    expected |= {path: dimension for path, dimension in unrolled.items() if "['layers']" not in path}
    print(f"scan         {len(scanned)} stacked dimensions for {len(unrolled)} of the layers", flush=True)
    assert len(expected) == 8 and scanned == expected, f"scan: {scanned}, unrolled {expected}"


failed = 0
for name, row in TABLE.items():
    try:
        check_variant(name, *row)
    except AssertionError as failure:
        failed += 1
        print(f"FAILED {failure}", flush=True)
check_scan()
sys.exit(1 if failed else 0)
