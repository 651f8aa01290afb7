"""Models with very many classes, whose last layer holds most of the parameters: ResNet-50 with 100,000
classes (Whale, figures 13 to 16), and face recognition with a margin (CosFace: Wang et al. 2018), whose
logits are cosines between an embedding and a vector for each person.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import resnet
from .layers import cross_entropy
from .model import Model, floats, initial_values, integers
from .vgg import examples

SCALE, MARGIN = 64.0, 0.35  # of CosFace
BLOCKS = [(3, 64), (4, 128), (6, 256), (3, 512)]


def resnet_with(classes, batch):
    return resnet.model((224, 224, 3), BLOCKS, classes, batch, stem=resnet.WIDE_STEM)


def resnet_tiny():
    return resnet.model((12, 12, 3), [(1, 4), (1, 8)], 256, batch=16)


def unit_length(x):
    return x * lax.rsqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-12)


def faces_model(image, blocks, width, people, batch, stem):
    """`width` is that of the embedding; a row of the table is a person."""
    tree = resnet.shapes(image[-1], blocks, width, stem)
    tree["person_table"] = (people, width)
    running = resnet.statistics_shapes({name: inner for name, inner in tree.items() if name != "person_table"})

    def loss(params, statistics, images, labels):
        trunk = {name: inner for name, inner in params.items() if name != "person_table"}
        embedding, updated = resnet.forward(trunk, statistics, images)
        cosines = unit_length(embedding) @ unit_length(params["person_table"]).T
        margin = MARGIN * jax.nn.one_hot(labels, people)
        return cross_entropy(SCALE * (cosines - margin), labels), updated

    def step(state, images, labels):
        (value, updated), gradients = jax.value_and_grad(loss, has_aux=True)(
            state["params"], state["running"], images, labels)
        params = jax.tree.map(lambda w, g: w - 0.01 * g, state["params"], gradients)
        return {"params": params, "running": updated}, value

    def state():
        ones = jax.tree_util.tree_map_with_path(
            lambda path, v: np.full_like(v, path[-1].key == "variance"), initial_values(running))
        return {"params": initial_values(tree), "running": ones}

    return Model(
        step,
        ({"params": floats(tree), "running": floats(running)}, floats((batch, *image)), integers(batch)),
        state=state,
        data=lambda batches: examples(batches, batch, image, people),
    )


def faces(batch=512):
    """ResNet-50 on images of 112x112 and the 360,232 people of Glint360K."""
    return faces_model((112, 112, 3), BLOCKS, 512, 360232, batch, stem=3)


def faces_tiny():
    return faces_model((8, 8, 3), [(1, 4)], 16, 64, batch=16, stem=3)
