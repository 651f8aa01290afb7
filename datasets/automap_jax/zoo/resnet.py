"""ResNet-50 (He et al. 2016) with batch normalization (Ioffe and Szegedy 2015), whose running
statistics are part of the state, trained by SGD. The stem is that of small images (3x3) or that of
ImageNet's (7x7 with stride 2, then the maximum of 3x3 with stride 2).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .layers import cross_entropy, dense
from .model import Model, floats, initial_values, integers
from .vgg import examples

MOMENTUM = 0.9
WIDE_STEM = 7


def shapes(channels, blocks, classes, stem):
    """`blocks` is [(layers, width)]; a layer ends with 4 times its width. `stem` is the size of its window."""

    def unit(size, inner, outer):
        return {"kernel": (size, size, inner, outer), "norm": {"scale": (outer,), "bias": (outer,)}}

    first = blocks[0][1]
    tree, inner = {"stem": unit(stem, channels, first)}, first
    for block, (layers, width) in enumerate(blocks, 1):
        for layer in range(1, layers + 1):
            units = {"reduce": unit(1, inner, width), "middle": unit(3, width, width),
                     "expand": unit(1, width, 4 * width)}
            if layer == 1:
                units["shortcut"] = unit(1, inner, 4 * width)
            tree[f"block{block}_{layer}"] = units
            inner = 4 * width
    tree["head"] = {"kernel": (inner, classes), "bias": (classes,)}
    return tree


def statistics_shapes(tree):
    """A running mean and variance for every norm."""
    if "norm" in tree:
        width = tree["norm"]["scale"]
        return {"mean": width, "variance": width}
    return {name: statistics_shapes(inner) for name, inner in tree.items() if name != "head"}


def unit(x, p, running, stride=1):
    """Convolution and batch norm; the running statistics after this batch."""
    y = lax.conv_general_dilated(
        x, p["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
    mixed = lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * lax.stop_gradient(new)
    updated = {"mean": mixed(running["mean"], mean), "variance": mixed(running["variance"], variance)}
    scale = p["norm"]["scale"] * lax.rsqrt(variance + 1e-5)
    return (y - mean) * scale + p["norm"]["bias"], updated


def forward(params, running, images):
    updated = {}
    is_wide = params["stem"]["kernel"].shape[0] == WIDE_STEM
    x, updated["stem"] = unit(images, params["stem"], running["stem"], 2 if is_wide else 1)
    x = jax.nn.relu(x)
    if is_wide:
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for name in sorted(name for name in params if name.startswith("block")):
        p, old, new = params[name], running[name], {}
        stride = 2 if name.endswith("_1") and name != "block1_1" else 1
        shortcut = x
        if "shortcut" in p:
            shortcut, new["shortcut"] = unit(x, p["shortcut"], old["shortcut"], stride)
        y, new["reduce"] = unit(x, p["reduce"], old["reduce"])
        y, new["middle"] = unit(jax.nn.relu(y), p["middle"], old["middle"], stride)
        y, new["expand"] = unit(jax.nn.relu(y), p["expand"], old["expand"])
        x, updated[name] = jax.nn.relu(y + shortcut), new
    return dense(x.mean((1, 2)), params["head"]), updated


def step(state, images, labels):
    def loss(params):
        logits, running = forward(params, state["running"], images)
        return cross_entropy(logits, labels), running

    (value, running), gradients = jax.value_and_grad(loss, has_aux=True)(state["params"])
    params = jax.tree.map(lambda w, g: w - 0.05 * g, state["params"], gradients)
    return {"params": params, "running": running}, value


def model(image, blocks, classes, batch, stem=3):
    tree = shapes(image[-1], blocks, classes, stem)
    running = statistics_shapes(tree)

    def state():
        values = initial_values(running)
        values = jax.tree_util.tree_map_with_path(
            lambda path, v: np.full_like(v, path[-1].key == "variance"), values
        )
        return {"params": initial_values(tree), "running": values}

    return Model(
        step,
        ({"params": floats(tree), "running": floats(running)}, floats((batch, *image)), integers(batch)),
        state=state,
        data=lambda batches: examples(batches, batch, image, classes),
    )


def full():
    return model((224, 224, 3), [(3, 64), (4, 128), (6, 256), (3, 512)], 1000, batch=64)


def batch16():
    """With ImageNet's stem and a batch that one host works through in seconds."""
    return model((224, 224, 3), [(3, 64), (4, 128), (6, 256), (3, 512)], 1000, batch=16, stem=WIDE_STEM)


def batch64():
    """With ImageNet's stem and the batch of one card."""
    return model((224, 224, 3), [(3, 64), (4, 128), (6, 256), (3, 512)], 1000, batch=64, stem=WIDE_STEM)


def tiny():
    return model((12, 12, 3), [(2, 4), (1, 8)], 8, batch=16)
