"""Micro-batches of `search --for jax` run in JAX, whatever the step does with its examples.

Small steps use their examples in many ways. Steps of which each operator needs its own examples alone, but for sums,
must have plans of micro-batches, and these must have the losses of the step. The others must be refused by `search` and
by `export`, with exit code 4 and the operator's name. No plan found may be refused by `automap_jax.run`.

Steps may have their batch size as a number, such as x.reshape(32, -1).

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_jax_examples.py [NAME ...]`.
"""
# labels: jax e2e
# timeout: 600
# cost: 45

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from host_devices import make_devices
from program import automap, skip_where_missing, succeed

make_devices(8)

with skip_where_missing():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax import lax

import automap_jax

random = np.random.default_rng(0)
BATCH, WIDTH = 16, 32


def normal(*shape, scale=0.1):
    return np.asarray(random.normal(size=shape) * scale, np.float32)


WEIGHTS = {"a": normal(WIDTH, 64), "b": normal(64, WIDTH), "c": normal(WIDTH, WIDTH), "r": normal(BATCH, WIDTH)}
X, Y = normal(BATCH, WIDTH, scale=1), normal(BATCH, WIDTH, scale=1)
INDEX = np.asarray(random.integers(0, WIDTH, BATCH), np.int32)
ROWS = np.asarray(random.random((BATCH, 1)), np.float32)


def f(p, x):
    return jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"])


def order(x):
    return jax.random.permutation(jax.random.key(0), len(x))


def masked_layers(p, h, keys):
    """Layers with dropout in a loop, with a loop of them in it."""
    def layer(h, key):
        h = jnp.tanh(h @ p["c"])
        return h * jax.random.bernoulli(key, 0.5, h.shape), None

    def layers(h, key):
        h, _ = lax.scan(layer, h, jax.random.split(key, 2))
        return h + 0.1 * jax.random.normal(jax.random.fold_in(key, 7), h.shape), None

    return lax.scan(jax.checkpoint(layers), lax.scan(layer, h, keys)[0], keys)[0]


def accumulated(p, x, y, number):
    """The mean loss over consecutive slices of the batch."""
    size = len(x) // number
    return sum(jnp.mean((f(p, x[k * size:(k + 1) * size]) - y[k * size:(k + 1) * size]) ** 2)
               for k in range(number)) / number


def routed(p, x, y):
    """The loss of two experts of eight by example, with the balance of all: a product of means over the batch."""
    shares = jax.nn.softmax(x @ p["c"][:, :8])
    gates, chosen = lax.top_k(shares, 2)
    used = jax.nn.one_hot(chosen, 8)
    h = jnp.einsum("bk,bke,be->b", gates, used, f(p, x)[:, :8])
    return jnp.mean((f(p, x) * h[:, None] - y) ** 2) + jnp.sum(shares.mean(0) * used.sum(1).mean(0))


def halved(h):
    return lax.while_loop(lambda h: jnp.sum(h) > 1e3, lambda h: h * 0.5, h)


# Loss of (weights, x, y, index).
RUN = {
    "counted": lambda p, x, y, i: jnp.mean(jnp.arange(len(x))[:, None] * (f(p, x) - y) ** 2),
    "squared count": lambda p, x, y, i: jnp.sum((f(p, x) - y) ** 2) / len(x) ** 2,
    "ratio of sums": lambda p, x, y, i: jnp.sum(f(p, x) * y) / (1 + jnp.sum(f(p, x) ** 2)),
    "masked mean": lambda p, x, y, i: jnp.sum(jnp.where(y > 0, (f(p, x) - y) ** 2, 0)) / jnp.sum(y > 0),
    "rows and labels": lambda p, x, y, i: -jnp.mean(jax.nn.log_softmax(f(p, x))[jnp.arange(len(x)), i]),
    "rows, places and labels": lambda p, x, y, i: jnp.mean(
        f(p, x).reshape(-1, 4, 8)[jnp.arange(len(x))[:, None], jnp.arange(4)[None], (i % 8)[:, None]]),
    "labels along": lambda p, x, y, i: -jnp.mean(
        jnp.take_along_axis(jax.nn.log_softmax(f(p, x)), i[:, None], 1)),
    "one-hot labels": lambda p, x, y, i: jnp.mean((jax.nn.one_hot(i, WIDTH).T @ f(p, x)) ** 2),
    "segments": lambda p, x, y, i: jnp.mean(jax.ops.segment_sum(f(p, x), i, WIDTH) ** 2),
    "normalised data": lambda p, x, y, i: jnp.mean((f(p, (x - x.mean(0)) / (x.std(0) + 1e-3)) - y) ** 2),
    "random choice": lambda p, x, y, i: jnp.mean(
        (f(p, x) - y[jax.random.choice(jax.random.key(2), len(x), (len(x),))]) ** 2),
    "dropout": lambda p, x, y, i: jnp.mean(
        (f(p, x) * jax.random.bernoulli(jax.random.key(1), 0.5, x.shape) - y) ** 2),
    "merged dimensions": lambda p, x, y, i: jnp.mean(
        (jnp.tanh(f(p, x).reshape(-1, 8) @ p["c"][:8, :8]).reshape(-1, WIDTH) - y) ** 2),
    "accumulated outside": lambda p, x, y, i: jnp.mean(
        (f(p, x).reshape(4, -1, WIDTH).mean(1) - y.reshape(4, -1, WIDTH).mean(1)) ** 2),
    "accumulated inside": lambda p, x, y, i: lax.scan(
        lambda total, rows: (total + jnp.mean((f(p, rows[0]) - rows[1]) ** 2), None), 0.0,
        (x.reshape(4, -1, WIDTH), y.reshape(4, -1, WIDTH)))[0],
    "pairs with all": lambda p, x, y, i: jnp.mean((f(p, x)[:, None] - y[None]) ** 2),
    "ones for numbers of rows": lambda p, x, y, i: jnp.mean((f(p, x).reshape(16, 4, 8) * jnp.ones((16, 1, 1))
                                                            - y.reshape(16, 4, 8)) ** 2),
    "a loop from numbers of rows": lambda p, x, y, i: jnp.mean((lax.fori_loop(
        0, 2, lambda _, h: jnp.tanh(h.reshape(16, 32) @ p["c"]), jnp.zeros((16, 32)) + f(p, x)) - y) ** 2),
    "numbered rows and labels": lambda p, x, y, i: -jnp.mean(
        jnp.arange(16) * jax.nn.log_softmax(f(p, x))[jnp.arange(16), i]),
    "a branch of a number": lambda p, x, y, i: jnp.mean(
        (lax.switch(1, [jnp.sin, lambda h: h @ p["c"]], f(p, x)) - y) ** 2),
    "diagonal of all pairs": lambda p, x, y, i: -jnp.mean(jnp.diag(jax.nn.log_softmax(f(p, x) @ Y.T + y.mean()))),
    "numbered pairs": lambda p, x, y, i: -jnp.mean(
        jax.nn.log_softmax(f(p, x) @ Y.T + y.mean())[jnp.arange(len(x)), jnp.arange(len(x))]),
    "one-hot labels of merged rows": lambda p, x, y, i: -jnp.mean(
        jax.nn.one_hot(jnp.repeat(i, 4) % 8, 8) * jax.nn.log_softmax(f(p, x).reshape(-1, 8))),
    "numbers of columns": lambda p, x, y, i: -jnp.mean(jnp.where(lax.broadcasted_iota(
        jnp.int32, (64, 8), 1) == jnp.repeat(i % 8, 4)[:, None], jax.nn.log_softmax(f(p, x).reshape(-1, 8)), 0)),
    "a loop of loops": lambda p, x, y, i: jnp.mean((lax.scan(jax.checkpoint(lambda h, _: lax.scan(
        lambda h, _: (jnp.tanh(h @ p["c"]), h.mean() / 16), h, None, 2)), f(p, x), None, 2)[0] - y) ** 2),
    "numbers and masks for each layer": lambda p, x, y, i: jnp.mean((lax.scan(lambda h, _: (jnp.where(
        y > 0, jnp.tanh(h @ p["c"]), -1.0) * jnp.arange(16)[:, None], None), f(p, x), None, 2)[0] - y) ** 2),
    "slices of the batch": lambda p, x, y, i: accumulated(p, x, y, 4),
    "weighted slices of activations": lambda p, x, y, i: sum(k * jnp.mean((jnp.tanh(
        f(p, x)[8 * k - 8:8 * k] @ p["c"]) - y[8 * k - 8:8 * k]) ** 2) for k in (1, 2)),
    "unequal slices": lambda p, x, y, i: jnp.mean((f(p, x[4:]) - y[:12]) ** 2),
    "split batch": lambda p, x, y, i: sum(k * jnp.mean((f(p, a) - b) ** 2) for k, (a, b) in enumerate(
        zip(jnp.split(x, 2), jnp.split(y, 2)))),
    "balance of experts": lambda p, x, y, i: routed(p, f(p, x), y),
    "sorted features": lambda p, x, y, i: jnp.mean((jnp.sort(f(p, x), 1)[:, ::-1] - jnp.cumsum(y, 1)) ** 2),
}  # fmt: skip
REFUSED = {
    "reverse": lambda p, x, y, i: jnp.mean((f(p, x) - x[::-1]) ** 2) + jnp.mean(y * f(p, x)),
    "rev": lambda p, x, y, i: jnp.mean((f(p, x) - y[::-1]) ** 2),
    "cumsum": lambda p, x, y, i: jnp.mean((jnp.cumsum(f(p, x), 0) * x) ** 2),
    "sort": lambda p, x, y, i: jnp.mean((jnp.sort(f(p, x), 0) - y) ** 2) + jnp.mean(y * f(p, x)),
    "gather": lambda p, x, y, i: jnp.mean((f(p, x)[order(x)] - y) ** 2) + jnp.mean(y * f(p, x)),
    "slice": lambda p, x, y, i: jnp.mean((f(p, x)[1:] - y[:-1]) ** 2),
    "top_k": lambda p, x, y, i: jnp.mean(lax.top_k(jnp.sum((f(p, x) - y) ** 2, 1), 4)[0]),
    "fft": lambda p, x, y, i: jnp.mean(jnp.abs(jnp.fft.fft(f(p, x), axis=0)) ** 2),
    "has branches": lambda p, x, y, i: jnp.mean(
        (lax.cond(jnp.mean(x) > 0, jnp.tanh, lambda h: h @ p["c"], f(p, x)) - y) ** 2),
    "while": lambda p, x, y, i: jnp.mean((lax.stop_gradient(halved(f(p, x))) + f(p, x) - y) ** 2),
    "scatter-add": lambda p, x, y, i: jnp.mean(p["c"].at[i].add(f(p, x)) ** 2),
    "concatenate": lambda p, x, y, i: jnp.mean((f(p, jnp.concatenate([x, y])) - jnp.concatenate([y, x])) ** 2),
    "numbers that are not in rows by example": lambda p, x, y, i: jnp.mean(lax.scan(lambda h, _: (
        jnp.tanh(h @ p["c"][:8, :8]) * jnp.arange(64)[:, None], None), f(p, x).reshape(64, 8), None, 2)[0]),
    "expected an argument of the step": lambda p, x, y, i: jnp.mean(ROWS * (f(p, x) - y) ** 2),
    "p['r']": lambda p, x, y, i: jnp.mean((f(p, x) + p["r"] - y) ** 2),
    "_std": lambda p, x, y, i: jnp.mean(((f(p, x) - f(p, x).mean(0)) / (f(p, x).std(0) + 1e-3) - y) ** 2),
}  # fmt: skip
# Losses whose index is a key for the step, or keys by example. The numbers of a beta distribution are those of loops.
KEY = jax.random.key(0)
KEYED = {
    "masks of a key": (KEY, lambda p, x, y, key: jnp.mean(
        (f(p, x) * jax.random.bernoulli(key, 0.5, x.shape) - y) ** 2)),
    "numbers of loops": (KEY, lambda p, x, y, key: jnp.mean((f(p, x * jax.random.beta(key, 0.4, 0.4)) - y) ** 2)),
    "masks of each layer": (KEY, lambda p, x, y, key: jnp.mean(
        (masked_layers(p, f(p, x), jax.random.split(key, 2)) - y) ** 2)),
    "keys by example": (jax.random.split(KEY, BATCH), lambda p, x, y, keys: jnp.mean(
        (f(p, x) * jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (WIDTH,)))(keys) - y) ** 2)),
}  # fmt: skip
RUN |= {name: loss for name, (_, loss) in KEYED.items()}
MICRO_BATCHES = ["--cluster", "nominal:4", "--evaluations", "10", "--micro-batches"]


def step_of(loss):
    last = next((key for key, keyed in KEYED.values() if keyed is loss), INDEX)

    def step(p, x, y, index):
        value, gradient = jax.value_and_grad(loss)(p, x, y, index)
        return jax.tree.map(lambda old, change: old - 0.1 * change, p, gradient), value

    return step, (WEIGHTS, X, Y, last)


@jax.jit
def weight_sum(weights):
    return sum(jnp.sum(jnp.abs(weight)) for weight in jax.tree.leaves(weights))


def trained(step, arguments, steps=3):
    """The losses of the steps, and at last the sum of the absolute new weights in a function of its own."""
    state, *data = arguments
    losses = []
    for _ in range(steps):
        state, loss = step(state, *data)
        losses.append(float(loss))
    return [*losses, float(weight_sum(jax.device_get(state)))]


def check_run(name, folder, options):
    step, arguments = step_of(RUN[name])
    module, plan = folder / "model.hlo.pb", folder / "plan.json"
    expected = trained(jax.jit(step), arguments)
    succeed("search", module, *MICRO_BATCHES, *options, "--for", "jax", "-o", plan, "--quiet")
    document = json.loads(succeed("export", plan, module, "--format", "jax", "--quiet"))
    found = trained(automap_jax.run(document, step, arguments), arguments)
    assert np.allclose(found, expected, rtol=1e-4), f"{name}, {options}: {found}, expected {expected}"
    output = succeed("run", module, "--plan", plan, "--state", folder / "state.npz", "--data", folder / "data.npz",
                     "--steps", "1", "--quiet")
    own = float(output.split()[3])
    assert np.isclose(own, expected[0], rtol=1e-4), f"{name}: {own} by automap run, expected {expected[0]}"


def check_one_loop(folder):
    """A step whose forward pass is one loop has no stages; the reason names the loop and its source."""
    automap_jax.export(*step_of(RUN["accumulated inside"]), folder)
    done = automap("search", folder / "model.hlo.pb", "--cluster", "nominal:4", "--for", "jax", "--stages", "2")
    reason = 'all stages would need a part of while "jit(step)/'
    assert done.returncode == 4 and reason in done.stderr and "test_jax_examples.py:" in done.stderr, done.stderr


def check_refused(name, folder):
    """`search --for jax` refuses, and `export` the plan that automap itself can run, if there is one."""
    module, plan = folder / "model.hlo.pb", folder / "plan.json"
    refused = [automap("search", module, *MICRO_BATCHES, "2", "--for", "jax", "-o", plan, "--quiet")]
    if automap("search", module, *MICRO_BATCHES, "2", "-o", plan, "--quiet").returncode == 0:
        refused.append(automap("export", plan, module, "--format", "jax", "--quiet"))
    for result in refused:
        assert result.returncode == 4 and name in result.stderr, f"{name}: {result.returncode} {result.stderr}"
        assert "--relax" not in result.stderr, result.stderr  # JAX runs no plan that it would allow
    succeed("search", module, "--cluster", "nominal:4", "--evaluations", "10", "--for", "jax", "-o", plan, "--quiet")
    step, arguments = step_of(REFUSED[name])
    document = json.loads(succeed("export", plan, module, "--format", "jax", "--quiet"))
    assert np.allclose(trained(automap_jax.run(document, step, arguments), arguments),
                       trained(jax.jit(step), arguments), rtol=1e-4), name  # fmt: skip


def check_whole_batch(folder):
    """A step that `automap_jax.run` cannot run on a part of its batch gets no micro-batches, and the reason."""
    keys = jax.random.split(jax.random.key(0), 2)

    def dropped(carried, key):
        h, total = carried
        mask = jax.random.bernoulli(key, 0.5, h.shape)
        return (h * mask / (1 + mask.sum()), total + h.mean()), None

    step, arguments = step_of(lambda p, x, y, i: jnp.mean(lax.scan(dropped, (f(p, x), 0.0), keys)[0][0] * y))
    _, document = automap_jax.export(step, arguments, folder)
    place = f"test_jax_examples.py:{dropped.__code__.co_firstlineno + 5}"
    assert document["whole_batch"] == f"scan ({place}) needs the whole batch", document
    _, document = automap_jax.export(*step_of(RUN["masked mean"]), folder)
    assert "whole_batch" not in document, document
    module, plan, roles = folder / "model.hlo.pb", folder / "plan.json", folder / "model.roles.json"
    roles.write_text(roles.read_text().replace('"loss":', '"whole_batch": "z needs the whole batch", "loss":', 1))
    for target, code in ("jax", 4), ("automap", 0):
        done = automap("search", module, *MICRO_BATCHES, "4", "--for", target, "-o", plan, "--quiet")
        is_named = "cannot be split into micro-batches: z needs the whole batch" in done.stderr
        assert done.returncode == code and is_named == (code == 4), (target, done.returncode, done.stderr)


def check_schedule(folder):
    """A schedule that the stages cannot run is replaced with a warning: the weights of a mean are summed first."""
    step, _ = step_of(lambda p, x, i, w: jnp.sum(w * optax.softmax_cross_entropy_with_integer_labels(
        jax.nn.gelu(f(p, x)) @ p["c"], i)) / jnp.maximum(jnp.sum(w), 1))
    automap_jax.export(step, (WEIGHTS, X, INDEX, ROWS[:, 0]), folder)
    for schedule in "zb_h1", "gpipe":
        done = automap("search", folder / "model.hlo.pb", "--cluster", "nominal:4", "--stages", "2", "--for", "jax",
                       "--evaluations", "20", "--micro-batches", "4", "--schedule", schedule, "-o", folder / "plan")
        is_named = f"cannot run by --schedule {schedule}: the plan has gpipe" in done.stderr
        assert done.returncode == 0 and is_named == (schedule == "zb_h1"), (schedule, done.stderr)


def main():
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = pathlib.Path(name_of_folder)
        if not wanted or "whole batch" in wanted:
            check_whole_batch(folder)
        if not wanted or "one loop" in wanted:
            check_one_loop(folder)
        if not wanted or "schedule" in wanted:
            check_schedule(folder)
        for number, (name, loss) in enumerate({**RUN, **REFUSED}.items()):
            if wanted and name not in wanted:
                continue
            step, arguments = step_of(loss)
            automap_jax.export(step, arguments, folder)
            if name in REFUSED:
                check_refused(name, folder)
            else:
                has_stages = number % 2 and name != "accumulated inside"  # a loop is one operator
                check_run(name, folder, ["2", "--stages", "2"] if has_stages else ["4"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
