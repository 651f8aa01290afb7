"""VGG-19 (Simonyan and Zisserman 2015) on images [b,h,w,c], trained by SGD: 16 convolutions in five
blocks with max-pooling between them, then three fully connected layers. 38 variables.
"""

import jax
import numpy as np
from jax import lax

from .layers import cross_entropy, dense
from .model import Model, floats, initial_values, integers
from .optimizers import sgd, sgd_shapes, sgd_state


def shapes(image, blocks, widths):
    """`blocks` is [(convolutions, channels)], `widths` those of the fully connected layers."""
    tree, channels = {}, image[-1]
    for block, (convolutions, features) in enumerate(blocks, 1):
        for number in range(1, convolutions + 1):
            tree[f"block{block}_conv{number}"] = {
                "kernel": (3, 3, channels, features),
                "bias": (features,),
            }
            channels = features
    inner = (image[0] >> len(blocks)) * (image[1] >> len(blocks)) * channels
    for name, outer in zip(("fc1", "fc2", "predictions"), widths):
        tree[name] = {"kernel": (inner, outer), "bias": (outer,)}
        inner = outer
    return tree


def convolution(x, p):
    y = lax.conv_general_dilated(
        x, p["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(y + p["bias"])


def max_pool(x):
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def logits(params, x):
    names = sorted(name for name in params if name.startswith("block"))
    for position, name in enumerate(names):
        x = convolution(x, params[name])
        if position + 1 == len(names) or names[position + 1].split("_")[0] != name.split("_")[0]:
            x = max_pool(x)
    x = x.reshape(x.shape[0], -1)
    x = jax.nn.relu(dense(x, params["fc1"]))
    x = jax.nn.relu(dense(x, params["fc2"]))
    return dense(x, params["predictions"])


def loss(params, images, labels):
    return cross_entropy(logits(params, images), labels)


def step(state, images, labels):
    value, gradients = jax.value_and_grad(loss)(state["params"], images, labels)
    return sgd(state, gradients, rate=0.05), value


def examples(batches, batch, image, classes, seed=1):
    """Images of one random pattern per class plus noise, in steps of 1/8, with their labels."""
    generator = np.random.default_rng(seed)
    patterns = generator.integers(-8, 9, (classes, *image))
    labels = generator.integers(0, classes, (batches, batch))
    noise = generator.integers(-4, 5, (batches, batch, *image))
    return ((patterns[labels] + noise) / 8).astype(np.float32), labels.astype(np.int32)


def model(image, blocks, widths, batch):
    tree = shapes(image, blocks, widths)
    return Model(
        step,
        (sgd_shapes(tree), floats((batch, *image)), integers(batch)),
        state=lambda: sgd_state(initial_values(tree)),
        data=lambda batches: examples(batches, batch, image, widths[-1]),
    )


def full():
    blocks = [(2, 64), (2, 128), (4, 256), (4, 512), (4, 512)]
    return model((224, 224, 3), blocks, (4096, 4096, 1000), batch=64)


def tiny():
    return model((16, 16, 3), [(1, 8), (2, 16), (1, 32)], (64, 64, 16), batch=16)


def small():
    """Between tiny and full: a step of some 200 ms on one processor."""
    return model((32, 32, 3), [(2, 32), (2, 64), (2, 128)], (256, 256, 10), batch=64)
