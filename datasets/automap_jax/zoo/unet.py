"""A small U-Net (Ronneberger et al. 2015): down by strided convolutions, up by transposed ones, with
the features of the way down beside those of the way up. It learns to remove noise.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .model import Model, floats, initial_values
from .optimizers import adam, adam_shapes, adam_state
from .vgg import examples

NUMBERS = ("NHWC", "HWIO", "NHWC")


def shapes(channels, widths):
    tree, inner = {}, channels
    for level, width in enumerate(widths):
        tree[f"down{level}"] = {"kernel": (3, 3, inner, width), "bias": (width,)}
        inner = width
    for level in reversed(range(len(widths) - 1)):
        width = widths[level]
        tree[f"up{level}"] = {"kernel": (2, 2, inner, width), "bias": (width,)}
        tree[f"join{level}"] = {"kernel": (3, 3, 2 * width, width), "bias": (width,)}
        inner = width
    tree["out"] = {"kernel": (1, 1, inner, channels), "bias": (channels,)}
    return tree


def convolve(x, p, stride=1):
    y = lax.conv_general_dilated(x, p["kernel"], (stride, stride), "SAME", dimension_numbers=NUMBERS)
    return y + p["bias"]


def forward(params, x):
    levels = sum(name.startswith("down") for name in params)
    features = []
    for level in range(levels):
        x = jax.nn.relu(convolve(x, params[f"down{level}"], stride=1 if level == 0 else 2))
        features.append(x)
    for level in reversed(range(levels - 1)):
        p = params[f"up{level}"]
        x = lax.conv_transpose(x, p["kernel"], (2, 2), "SAME", dimension_numbers=NUMBERS) + p["bias"]
        x = jnp.concatenate([jax.nn.relu(x), features[level]], axis=-1)
        x = jax.nn.relu(convolve(x, params[f"join{level}"]))
    return convolve(x, params["out"])


def step(state, noisy, clean):
    loss = lambda params: jnp.square(forward(params, noisy) - clean).mean()
    value, gradients = jax.value_and_grad(loss)(state["params"])
    return adam(state, gradients, rate=0.003), value


def pairs(batches, batch, image):
    clean, _ = examples(batches, batch, image, 4)
    noise = np.random.default_rng(2).integers(-4, 5, clean.shape) / 8
    return (clean + noise).astype(np.float32), clean


def model(image, widths, batch):
    tree = shapes(image[-1], widths)
    return Model(
        step,
        (adam_shapes(tree), floats((batch, *image)), floats((batch, *image))),
        state=lambda: adam_state(initial_values(tree)),
        data=lambda batches: pairs(batches, batch, image),
    )


def full():
    return model((256, 256, 3), (64, 128, 256, 512, 1024), batch=32)


def tiny():
    return model((8, 8, 2), (4, 8, 8), batch=16)
