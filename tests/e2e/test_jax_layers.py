"""Pipelines of stacked layers run in JAX: plans of `search --for jax --layers split` under `automap_jax.run`.

GPT, Llama, T5 and a mixture of experts of bench/layers.py, as scans and as slices of stacks, train on eight host
devices under even pipelines (AUTOMAP_FULL: more) and searched plans. Their losses and their state must be those of the
step on one device. The gradients are clipped by a norm over all layers. A scan that reads its weights by index, and one
in reverse, are compared without a plan.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_jax_layers.py`.
"""
# labels: jax e2e
# timeout: 1200
# cost: 90

import functools
import json
import pathlib
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "tests" / "launch"), str(SOURCE / "bench"), str(SOURCE / "datasets")]
from host_devices import make_devices
from program import FULL, skip_where_missing, succeed

make_devices(8)

with skip_where_missing():
    import jax
    import jax.numpy as jnp
    import numpy as np

import automap_jax
import layers as forms
from automap_jax.layers import Layers

SIZES = (4, 16, 2, 32, 8, 8, 20)  # layers, width, heads, hidden, batch, length, vocabulary
EVEN = ["--space", "pipeline", "--baseline", "even_pipeline", "--mesh", "data=2", "--micro-batches", "4"]
CASES = {
    ("gpt", "scan"): {
        "interleaved": [*EVEN, "--schedule", "interleaved_1f1b", "--cluster", "nominal:4"],
        "searched": ["--layers", "split", "--stages", "2", "--evaluations", "20", "--cluster", "nominal:4"],
    },
    ("gpt", "sliced"): {"zb_h1": [*EVEN, "--schedule", "zb_h1", "--cluster", "nominal:4"]},
    ("llama", "scan"): {
        "zero3": ["--layers", "split", "--baseline", "zero3", "--micro-batches", "2", "--cluster", "nominal:4"],
    },
    ("t5", "scan"): {"1f1b": [*EVEN, "--cluster", "nominal:4"]},
    ("moe", "scan"): {"gpipe": [*EVEN, "--schedule", "gpipe", "--cluster", "nominal:4"]},
}
if FULL:
    CASES["gpt", "scan"]["1f1b"] = [*EVEN, "--cluster", "nominal:8"]
    CASES["llama", "scan"]["1f1b"] = [*EVEN, "--cluster", "nominal:4"]


def step_of(name, form):
    """A step of Adam with clipped gradients."""
    def step(state, tokens, targets):
        loss = functools.partial(forms.loss_of, name, form, SIZES[2])
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens, targets)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda leaf: leaf * jnp.minimum(1, 0.5 / norm), gradients)
        return forms.adam(state, gradients), value

    return step


def arguments_of(name, form):
    """A state of stacked arrays and a batch, drawn at random."""
    rng = np.random.default_rng(3)
    shapes = forms.parameter_shapes(name, form, SIZES)
    draw = lambda leaf: (0.3 * rng.standard_normal(leaf.shape) + (leaf.ndim == 2)).astype(np.float32)
    zeros = lambda: jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    tokens = rng.integers(0, SIZES[6], (SIZES[4], SIZES[5] + 1)).astype(np.int32)
    state = {"params": jax.tree.map(draw, shapes), "first": zeros(), "second": zeros()}
    return state, tokens[:, :-1], tokens[:, 1:]


def check_close(found, expected, what):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.shape(one) == np.shape(other), (what, np.shape(one), np.shape(other))
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-5, err_msg=what)


def check_plan(what, options, step, arguments, folder):
    """Three steps, each from the state of the one before. Stages own the layers of their weights."""
    plan, file, module = folder / "plan.json", folder / "jax.json", folder / "model.hlo.pb"
    succeed("search", module, "--for", "jax", *options, "-o", plan, "--quiet")
    succeed("export", plan, module, "--format", "jax", "-o", file)
    document = json.loads(file.read_text())
    layers = [row for row in document["parameters"] if "layer" in row]
    assert len(layers) > SIZES[0] and {row["layer"] for row in layers} == set(range(SIZES[0])), (what, layers)
    if document["parts"] > 1:
        assert len({row["part"] for row in layers}) == document["parts"], what
    run = automap_jax.run(document, step, arguments, donate=True)
    names = {node.primitive.name for node in run.plan.whole.nodes}
    assert "scan" not in names and "concatenate" not in names, (what, names)
    found, expected, data = arguments[0], arguments[0], arguments[1:]
    for number in range(3):
        found, loss = run(found, *data)
        expected, wanted = jax.jit(step)(expected, *data)
        check_close((found, loss), (expected, wanted), f"{what}, step {number}")
    stacks = [leaf for leaf in jax.tree.leaves(found) if isinstance(leaf, automap_jax.LayerStack)]
    parts = {row["number"]: {other["part"] for other in layers if other["number"] == row["number"]} for row in layers}
    assert len(stacks) == sum(len(of) > 1 for of in parts.values()), (what, len(stacks))
    check_close(list(map(jnp.asarray, stacks)), list(map(np.asarray, stacks)), "stacks as arrays")
    return f"{what}: {document['schedule']}, {document['parts']} parts, losses and states equal"


def check_jaxpr():
    """Steps with other loops over layers, as steps of layers: weights by index, and in reverse with sums."""
    def by_index(w, x):
        loss = lambda w: jax.lax.fori_loop(0, 3, lambda k, x: jnp.tanh(x @ w[k]), x).sum()
        value, gradient = jax.value_and_grad(loss)(w)
        return w - gradient, value

    def in_reverse(w, x):
        def loss(w):
            last, sums = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, w, reverse=True)
            return last.sum() + (sums * jnp.arange(3.0)).sum()

        value, gradient = jax.value_and_grad(loss)(w)
        return w - gradient * (jnp.abs(gradient).max() + gradient.mean((1, 2), keepdims=True)), value

    def with_sums(w, x):
        def loss(w):
            last, sums = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), (x @ w).sum()), x, w)
            return last.sum() + sums.mean()

        value, gradient = jax.value_and_grad(loss)(w)
        return w - gradient, value

    rng = np.random.default_rng(4)
    w, x = rng.standard_normal((3, 4, 4)).astype(np.float32), rng.standard_normal((2, 4)).astype(np.float32)
    rows = [{"number": 0, "output": 0, "layer": k} for k in range(3)] + [{"number": 1, "output": None}]
    for step in (by_index, in_reverse, with_sums):
        layers = Layers(rows, [w, x], 2)
        closed = layers.split(jax.make_jaxpr(step)(w, x))
        found = layers.joined(jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *layers.arrays([w, x])))
        check_close(found, step(w, x), step.__name__)
        names = {equation.primitive.name for equation in closed.jaxpr.eqns}
        assert not names & {"scan", "while", "concatenate", "dynamic_slice", "dynamic_update_slice"}, names


def check_branches(folder):
    """A scan with conditionals in its body: FLOPs of branches count for the loop around them."""
    def step(w, x):
        def layer(x, row):
            w, number = row
            return jax.lax.cond(number % 2 == 0, lambda x: jnp.tanh(x @ w), lambda x: x + x @ w, x), None

        loss = lambda w: jnp.square(jax.lax.scan(layer, x, (w, jnp.arange(4)))[0]).mean()
        value, gradient = jax.value_and_grad(loss)(w)
        return w - gradient, value

    rng = np.random.default_rng(5)
    arguments = [(0.3 * rng.standard_normal(shape)).astype(np.float32) for shape in ((4, 16, 16), (8, 16))]
    automap_jax.export(step, arguments, str(folder))
    options = ["--for", "jax", "--cluster", "nominal:4", "--stages", "2", "--evaluations", "10", "--quiet"]
    succeed("search", folder / "model.hlo.pb", "-o", folder / "plan.json", *options)
    succeed("export", folder / "plan.json", folder / "model.hlo.pb", "--format", "jax", "-o", folder / "jax.json")
    run = automap_jax.run(json.loads((folder / "jax.json").read_text()), step, arguments)
    check_close(run(*arguments), jax.jit(step)(*arguments), "branches")
    # The loop has nearly all work, and is a stage of its own between small ones.
    succeed("search", folder / "model.hlo.pb", "--layers", "loop", "--cluster", "nominal:4", "--stages", "3", "-o",
            folder / "plan.json", "--quiet")  # fmt: skip


def check_few_evaluations(folder):
    """A limit of evaluations never makes a plan slower than that of the loops alone."""
    plan, module = folder / "few.json", folder / "model.hlo.pb"
    cases = [([], 20), (["--stages", "4"], 60)]
    if FULL:
        cases += [([], 60), (["--stages", "4"], 20)]
    for options, few in cases:
        steps = {}
        for form in "loop", "auto":
            succeed("search", module, "--for", "jax", "--cluster", "C", "--evaluations", few, "--layers", form,
                    *options, "-o", plan, "--quiet")  # fmt: skip
            steps[form] = json.loads(plan.read_text())["predicted"]["step_seconds"]
        assert steps["auto"] <= 1.01 * steps["loop"], (few, options, steps)


def main():
    check_jaxpr()
    with tempfile.TemporaryDirectory() as temporary:
        check_branches(pathlib.Path(temporary) / "branches")
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        for (name, form), plans in CASES.items():
            if wanted and name not in wanted:
                continue
            step, arguments = step_of(name, form), arguments_of(name, form)
            folder = pathlib.Path(temporary) / f"{name}_{form}"
            automap_jax.export(step, arguments, str(folder))
            if (name, form) == ("gpt", "scan"):
                check_few_evaluations(folder)
            for kind, options in plans.items():
                print(check_plan(f"{name}, {form}, {kind}", options, step, arguments, folder), flush=True)


if __name__ == "__main__":
    main()
