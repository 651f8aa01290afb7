"""A vision transformer (Dosovitskiy et al. 2021): images in patches, a class token, encoder layers
with layer norm in front, trained by Adam.
"""

import jax
import jax.numpy as jnp

from .layers import attention, cross_entropy, dense, layer_norm
from .model import Model, floats, initial_values, integers
from .optimizers import adam, adam_shapes, adam_state
from .transformer import mlp
from .transformer import shapes as layer_shapes
from .vgg import examples


def shapes(image, patch, layers, width, inner, classes):
    patches = (image[0] // patch) * (image[1] // patch)
    tree = layer_shapes(layers, width, inner, 1, patches + 1)
    del tree["token_table"], tree["softmax_table"]
    return tree | {
        "class_token": (1, width),
        "head": {"kernel": (width, classes), "bias": (classes,)},
        "patches": {"kernel": (patch * patch * image[-1], width), "bias": (width,)},
    }


def logits(params, images, patch, heads):
    b, h, w, c = images.shape
    x = images.reshape(b, h // patch, patch, w // patch, patch, c).transpose(0, 1, 3, 2, 4, 5)
    x = dense(x.reshape(b, (h // patch) * (w // patch), patch * patch * c), params["patches"])
    token = jnp.broadcast_to(params["class_token"], (b, 1, x.shape[-1]))
    x = jnp.concatenate([token, x], axis=1) + params["position_table"]
    for p in params["layers"]:
        y = layer_norm(x, p["attention_norm"])
        x = x + attention(y, y, p["attention"], heads)
        x = x + mlp(layer_norm(x, p["mlp_norm"]), p)
    return dense(layer_norm(x[:, 0], params["norm"]), params["head"])


def model(image, patch, layers, width, heads, inner, classes, batch):
    tree = shapes(image, patch, layers, width, inner, classes)

    def step(state, images, labels):
        loss = lambda params: cross_entropy(logits(params, images, patch, heads), labels)
        value, gradients = jax.value_and_grad(loss)(state["params"])
        return adam(state, gradients, rate=0.001), value

    return Model(
        step,
        (adam_shapes(tree), floats((batch, *image)), integers(batch)),
        state=lambda: adam_state(initial_values(tree)),
        data=lambda batches: examples(batches, batch, image, classes),
    )


def full():
    return model((224, 224, 3), 16, 12, 768, 12, 3072, 1000, batch=64)


def tiny():
    return model((8, 8, 3), 4, 2, 16, 4, 32, 8, batch=16)
