"""Steps of Flax NNX and Equinox run under plans of stages and micro-batches: `automap_jax.run`.

A step of NNX updates its model and optimizer in place; a step of Equinox returns a module with static leaves. Losses
on four host devices are those of the plain step on one, for a pipeline of two stages in four micro-batches and for a
plan of one stage. The result has the form of the step's own. Without AUTOMAP_FULL=1 only the pipeline of NNX runs.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_jax_objects.py`.
"""
# labels: jax e2e
# timeout: 300
# cost: 5

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from host_devices import make_devices
from program import FULL, skip_where_missing, succeed

make_devices(4)

with skip_where_missing():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx
    if FULL:
        import equinox as eqx

import automap_jax

STEPS, TOLERANCE = 3, 1e-6
PLANS = {"pipeline": ["--cluster", "nominal:4", "--stages", "2", "--data", "2", "--micro-batches", "4"],
         "one stage": ["--cluster", "nominal:4", "--mesh", "data=2,model=2"]}
RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.standard_normal((16, width)).astype(np.float32) for width in (8, 4))
OPTIMIZER = optax.adam(1e-2)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(8, 16, rngs=rngs)
        self.second = nnx.Linear(16, 16, rngs=rngs)
        self.last = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.second(nnx.relu(self.first(x)))))


def nnx_arguments():
    model = Net(nnx.Rngs(0))
    return model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)


@nnx.jit
def nnx_step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


def eqx_arguments():
    model = eqx.nn.MLP(8, 4, 16, 2, key=jax.random.key(0))
    return model, OPTIMIZER.init(eqx.filter(model, eqx.is_array))


def eqx_step(model, state, x, y):
    loss, gradients = eqx.filter_value_and_grad(lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2))(model)
    updates, state = OPTIMIZER.update(gradients, state)
    return eqx.apply_updates(model, updates), state, loss


def train(step, arguments):
    """Losses, and the arguments afterwards. Steps of NNX return the loss alone."""
    losses = []
    for _ in range(STEPS):
        found = step(*arguments, X, Y)
        if isinstance(found, tuple):
            *arguments, found = found
        losses.append(float(found))
    return losses, arguments


def document_of(step, arguments, options, folder):
    automap_jax.export(step, (*arguments, X, Y), folder)
    module, plan, file = folder / "model.hlo.pb", folder / "plan.json", folder / "jax.json"
    succeed("search", module, "--for", "jax", *options, "--evaluations", "20", "-o", plan, "--quiet")
    succeed("export", plan, module, "--format", "jax", "-o", file)
    return json.loads(file.read_text())


def check(name, make, step):
    wanted, after = train(step, make())
    for what, options in PLANS.items() if FULL else [("pipeline", PLANS["pipeline"])]:
        with tempfile.TemporaryDirectory() as folder:
            document = document_of(step, make(), options, pathlib.Path(folder))
        arguments = make()
        losses, arguments = train(automap_jax.run(document, step, (*arguments, X, Y)), arguments)
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True))
        assert worst <= TOLERANCE and wanted[-1] < wanted[0], f"{name}, {what}: a loss is off by {worst:.1e}"
        assert jax.tree.structure(tuple(arguments)) == jax.tree.structure(tuple(after)), f"{name}, {what}: other trees"
        for a, b in zip(jax.tree.leaves(tuple(arguments)), jax.tree.leaves(tuple(after)), strict=True):
            assert not isinstance(b, jax.Array) or np.allclose(a, b, atol=1e-5), f"{name}, {what}: other weights"
        print(f"{name}, {what}: losses off by {worst:.1e}", flush=True)


def main():
    check("nnx", nnx_arguments, nnx_step)
    if FULL:
        check("equinox", eqx_arguments, eqx.filter_jit(eqx_step))


if __name__ == "__main__":
    main()
