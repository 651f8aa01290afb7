"""Graphs of steps for a part of the batch, against JAX's trace of the same steps with smaller arrays.

`automap_jax.run` derives the graph of a micro-batch from that of the whole batch. Where JAX can trace the step with the
shapes of a micro-batch, all operators must have its shapes and parameters. Operators that need all examples are marked.

Run as `PYTHONPATH=datasets python tests/e2e/test_jax_resizing.py`.
"""
# labels: jax e2e
# timeout: 120
# cost: 8

import os
import pathlib
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import skip_where_missing

with skip_where_missing():
    import jax
    import jax.numpy as jnp
    from jax import lax

from automap_jax.resizing import Examples
from automap_jax.step_graph import Graph, numbers

BATCH, PARTS = 16, 4
WEIGHTS = {"a": jax.ShapeDtypeStruct((32, 64), "float32"), "b": jax.ShapeDtypeStruct((64, 32), "float32"),
           "k": jax.ShapeDtypeStruct((3, 3, 1, 4), "float32"), "s": jax.ShapeDtypeStruct((3, 32, 32), "float32")}


def f(p, x):
    return jax.nn.relu(jnp.tanh(x @ p["a"]) @ p["b"])


def convolved(p, x):
    return lax.conv_general_dilated(x.reshape(len(x), 8, 4, 1), p["k"], (1, 1), "SAME",
                                    dimension_numbers=("NHWC", "HWIO", "NHWC"))


# Losses of (weights, x [examples, 32], labels [examples]) that JAX can trace with any number of examples.
TRACED = {
    "labels": lambda p, x, i: -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(f(p, x)), i[:, None], 1)),
    "rows": lambda p, x, i: -jnp.mean(jax.nn.log_softmax(f(p, x))[jnp.arange(len(x)), i]),
    "segments": lambda p, x, i: jnp.mean(jax.ops.segment_sum(f(p, x), i, 32) ** 2),
    "dropout": lambda p, x, i: jnp.mean(f(p, x) * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)),
    "scan": lambda p, x, i: jnp.mean(lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), x, p["s"])[0] ** 2),
    "while": lambda p, x, i: jnp.mean(lax.fori_loop(0, 3, lambda _, h: h + jnp.tanh(h @ p["s"][0]), x)),
    "branches": lambda p, x, i: jnp.mean(lax.cond(p["a"][0, 0] > 0, jnp.sin, lambda h: h @ p["s"][0], f(p, x))),
    "attention": lambda p, x, i: jnp.mean(jnp.einsum("bst,btd->bsd", jax.nn.softmax(jnp.einsum(
        "bsd,btd->bst", x.reshape(-1, 4, 8), f(p, x).reshape(-1, 4, 8))), x.reshape(-1, 4, 8))),
    "pooling": lambda p, x, i: jnp.mean(lax.reduce_window(
        convolved(p, x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")),
    "tiles": lambda p, x, i: jnp.mean(f(p, x) * jnp.tile(p["b"][:1], (len(x), 1))),
    "flat": lambda p, x, i: jnp.mean(f(p, x).reshape(-1)[: x.size] * jnp.arange(x.size)),
    "sorts": lambda p, x, i: jnp.mean(jnp.sort(f(p, x), 1) * lax.top_k(x, 32)[0] + jnp.cumsum(x, 1)),
    "groups": lambda p, x, i: jnp.mean(f(p, x).reshape(4, -1, 32).mean(1) ** 2),
    "norm": lambda p, x, i: jnp.mean((f(p, x) - f(p, x).mean(0)) ** 2),
}  # fmt: skip
NEEDS_ALL = {
    "slice": lambda p, x, i: jnp.mean((f(p, x)[1:] - f(p, x)[:-1]) ** 2),
    "concatenate": lambda p, x, i: jnp.mean(jnp.concatenate([f(p, x), p["b"]])),
    "pad": lambda p, x, i: jnp.mean(lax.pad(f(p, x), 1.0, [(1, 1, 0), (0, 0, 0)]) ** 2),
}


def graph(loss, examples):
    data = jax.ShapeDtypeStruct((examples, 32), "float32"), jax.ShapeDtypeStruct((examples,), "int32")
    return Graph(jax.make_jaxpr(jax.value_and_grad(loss))(WEIGHTS, *data))


def resized(loss):
    whole = graph(loss, BATCH)
    count = len(WEIGHTS)
    return whole, Examples(whole, {count: 0, count + 1: 0}, PARTS).resized()


def check_traced(name):
    loss = TRACED[name]
    _, found = resized(loss)
    expected = graph(loss, BATCH // PARTS)
    for a, b in zip(found.nodes, expected.nodes, strict=True):
        assert a.primitive == b.primitive and not a.needs_all, f"{name}: {a.primitive}"
        for value in [*numbers(a), *a.outputs]:
            assert found.shapes[value] == expected.shapes[value], f"{name}: {a.primitive} {found.shapes[value]}"
        for key in ("shape", "new_sizes", "slice_sizes", "limit_indices", "reps", "length"):
            assert a.params.get(key) == b.params.get(key), f"{name}: {a.primitive} {key}"
        if a.primitive.name == "scan":
            shapes = [[aval.shape for aval in node.params["jaxpr"].out_avals] for node in (a, b)]
            assert shapes[0] == shapes[1], f"{name}: {shapes}"


def check_numbers():
    """A step with the batch size as a number gets the graph of the step with len(x) in its place."""
    def loss(size):
        def value(p, x, i):
            n = size or len(x)
            counts = jnp.arange(n)[:, None] / n + jnp.ones((n, 1)) * jnp.zeros((n, 32))
            return jnp.mean(f(p, x).reshape(n, 4, 8).transpose(0, 2, 1).reshape(n, 32) * counts)

        return value

    _, found = resized(loss(BATCH))
    expected = graph(loss(None), BATCH // PARTS)
    for a, b in zip(found.nodes, expected.nodes, strict=True):
        shapes = [[graph.shapes[value] for value in a.outputs] for graph in (found, expected)]
        assert a.primitive == b.primitive and shapes[0] == shapes[1], f"{a.primitive}: {shapes}"


def main():
    for name in TRACED:
        check_traced(name)
    check_numbers()
    for name, loss in NEEDS_ALL.items():
        _, found = resized(loss)
        assert name in {node.primitive.name for node in found.nodes if node.needs_all}, name
    return 0


if __name__ == "__main__":
    sys.exit(main())
