"""Mistakes of users of JAX, NNX and Equinox: what automap_jax.export and plan answer.

A step that would train nothing, or not as in JAX, is an exception or a warning with the remedy; steps with one possible
meaning are accepted.

Run as `PYTHONPATH=datasets python tests/e2e/test_export_mistakes.py`.
"""
# labels: jax e2e
# cost: 15

import functools
import os
import pathlib
import sys
import tempfile
import warnings

os.environ["JAX_PLATFORMS"] = "cpu"

try:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import automap_jax

X, Y = np.ones((8, 16), np.float32), np.ones((8, 4), np.float32)
OPTIMIZER = optax.adam(1e-3)
PARAMS = {"w": jnp.ones((16, 4)), "b": jnp.zeros(4)}
STATE = OPTIMIZER.init(PARAMS)


def plain_loss(params, x, y):
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def plain_step(params, opt_state, x, y):
    loss, gradients = jax.value_and_grad(plain_loss)(params, x, y)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)


class Trainer(nnx.Module):
    def __init__(self):
        self.model = Model(nnx.Rngs(0))
        self.optimizer = nnx.Optimizer(self.model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(self, x, y):
        return nnx_step(self.model, self.optimizer, x, y)


def objects():
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


def nnx_loss(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def nnx_step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(nnx_loss)(model, x, y)
    optimizer.update(model, gradients)
    return loss


def export(step, arguments, **more):
    with tempfile.TemporaryDirectory() as folder:
        return automap_jax.export(step, arguments, pathlib.Path(folder), **more)[1]


def roles(document):
    return {row["path"]: row["role"] for row in document["parameters"]}


def refused(words, step, arguments, kind=ValueError, **more):
    try:
        export(step, arguments, **more)
    except kind as error:
        assert all(word in str(error) for word in words), f"{words}: {error}"
        return
    raise AssertionError(f"no {kind.__name__} that says {words}")


def warned(words, step, arguments, **more):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        export(step, arguments, **more)
    texts = " ".join(str(warning.message) for warning in found)
    assert all(word in texts for word in words), f"{words}: {texts}"


def test_steps_that_train_nothing():
    forward = lambda model, optimizer, x, y: nnx.value_and_grad(nnx_loss)(model, x, y)[0]
    refused(["trains nothing", "optimizer.update", "inference=True"], forward, (*objects(), X, Y))
    refused(["trains nothing", "return the new state"], plain_loss, (PARAMS, X, Y))
    unchanged = lambda params, x, y: (params, plain_loss(params, x, y))
    refused(["trains nothing"], unchanged, (PARAMS, X, Y))
    document = export(plain_loss, (PARAMS, X, Y), inference=True)
    assert document["loss"] == 0


def test_loss_that_nobody_returns():
    def silent(model, optimizer, x, y):
        nnx_step(model, optimizer, x, y)

    def hidden(model, optimizer, x, y):
        nnx.jit(nnx_step)(model, optimizer, x, y)

    document = export(silent, (*objects(), X, Y))
    count = sum(row["output"] is not None for row in document["parameters"])
    assert document["loss"] == count and "weight" in roles(document).values(), document
    refused(["returns no loss", "return the loss"], hidden, (*objects(), X, Y))

    def accuracy(params, opt_state, x, y):
        params, opt_state, _ = plain_step(params, opt_state, x, y)
        return params, opt_state, jnp.mean((x @ params["w"]).argmax(-1) == y.argmax(-1))

    assert export(accuracy, (PARAMS, STATE, X, Y))["loss"] == 8  # after the accuracy


def test_state_in_other_types():
    def halved(params, opt_state, x, y):
        params, opt_state, loss = plain_step(params, opt_state, x, y)
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params), opt_state, loss

    refused(["params['b']", "float32[4]", "bfloat16[4]"], halved, (PARAMS, STATE, X, Y))

    def widened(model, optimizer, x, y):
        loss = nnx_step(model, optimizer, x, y)
        model.layer.bias.set_value(model.layer.bias[...].astype(jnp.bfloat16))
        return loss

    refused(["layer/bias", "bfloat16"], widened, (*objects(), X, Y), TypeError)


def test_state_that_is_not_returned():
    def forgets(params, opt_state, x, y):
        params, _, loss = plain_step(params, opt_state, x, y)
        return params, loss

    warned(["opt_state looks like state", "constants="], forgets, (PARAMS, STATE, X, Y))


def test_gradients_instead_of_weights():
    step = lambda params, x, y: jax.value_and_grad(plain_loss)(params, x, y)
    warned(["look like gradients", "apply_updates"], step, (PARAMS, X, Y))


def test_parts_by_dynamic_slice():
    def accumulated(params, x, y):
        def add(k, total):
            rows = jax.lax.dynamic_slice_in_dim(x, 4 * k, 4), jax.lax.dynamic_slice_in_dim(y, 4 * k, 4)
            return jax.tree.map(jnp.add, total, jax.grad(plain_loss)(params, *rows))

        gradients = jax.lax.fori_loop(0, 2, add, jax.tree.map(jnp.zeros_like, params))
        return jax.tree.map(lambda old, change: old - change, params, gradients), plain_loss(params, x, y)

    def scanned(params, x, y):
        add = lambda total, rows: (jax.tree.map(jnp.add, total, jax.grad(plain_loss)(params, *rows)), None)
        parts = x.reshape(2, 4, 16), y.reshape(2, 4, 4)
        gradients, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        return jax.tree.map(lambda old, change: old - change, params, gradients), plain_loss(params, x, y)

    words = ["test_export_mistakes.py:", "x into parts of 4 rows", "x.reshape(2, 4, ...)", "y.reshape(2, 4, ...)"]
    warned(words, accumulated, (PARAMS, X, Y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(scanned, (PARAMS, X, Y))


def test_objects_outside_of_the_arguments():
    model, optimizer = objects()
    refused(["not among its arguments"], lambda x, y: nnx_step(model, optimizer, x, y), (X, Y))


def test_objects_that_an_inner_function_updates():
    def step(model, mean, x, y):
        def loss(model):
            mean[...] = model(x).mean(0)
            return nnx_loss(model, x, y)

        return nnx.value_and_grad(loss)(model)

    def nested(model, mean, x, y):
        def update(mean, x):
            mean[...] = mean[...] + x

        def loss(model):
            nnx.jit(update)(mean, x.mean(0)[:4])
            return nnx_loss(model, x, y)

        return nnx.value_and_grad(loss)(model)

    arguments = (objects()[0], nnx.BatchStat(jnp.zeros(4)), X, Y)
    for function in (step, nnx.jit(step), nested):
        refused(["nnx.value_and_grad", "not among its own arguments", "BatchStat"], function, arguments)


def test_jax_jit_of_objects():
    """In JAX the loss of this step is constant; under nnx.jit it falls."""
    model, optimizer = objects()
    step = jax.jit(nnx_step)
    assert step(model, optimizer, X, Y) == step(model, optimizer, X, Y)
    warned(["jax.jit does not update", "nnx.jit"], step, (model, optimizer, X, Y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(nnx.jit(nnx_step), (model, optimizer, X, Y))
        export(jax.jit(plain_step), (PARAMS, STATE, X, Y))
        graph, state = nnx.split((model, optimizer))

        def pure_step(state, x, y):
            objects = nnx.merge(graph, state)
            return nnx.state(objects), nnx_step(*objects, x, y)

        export(jax.jit(pure_step), (state, X, Y))


def test_bound_objects():
    for step in (Trainer().step, functools.partial(nnx_step, *objects())):
        assert "weight" in roles(export(step, (X, Y))).values()


def test_functions_of_the_wrong_kind():
    lowered = jax.jit(plain_step).lower(PARAMS, STATE, X, Y)
    for step in (lowered, lowered.compile(), jax.pmap(plain_step), "step"):
        refused(["step: "], step, (PARAMS, STATE, X, Y), TypeError)


def test_arguments_of_the_wrong_kind():
    refused(["expected a tuple", "(argument,)"], nnx_step, objects()[0], kind=TypeError)
    refused(["expected a tuple"], plain_step, STATE[0], kind=TypeError)
    refused(["opt_state", "'y'"], plain_step, (PARAMS, STATE, X), TypeError)
    refused(["Model", "pass an object"], nnx_step, (Model, objects()[1], X, Y), TypeError)


def test_names_of_arguments():
    refused(["constants", "no argument 7"], plain_step, (PARAMS, STATE, X, Y), constants=(7,))
    refused(["constants", "a list"], plain_step, (PARAMS, STATE, X, Y), TypeError, constants=0)
    refused(["data_arguments", "'z'"], plain_step, (PARAMS, STATE, X, Y), data_arguments=["z"])
    assert roles(export(plain_step, (PARAMS, STATE, X, Y), data_arguments=["x"]))["x"] == "data"


def test_numbers_of_outputs():
    for first in (9, 1, -1, "0", 0.0):
        refused(["updates: params has 2 arrays", repr(first)], plain_step, (PARAMS, STATE, X, Y), updates={0: first})
    assert roles(export(plain_step, (PARAMS, STATE, X, Y), updates={0: 0}))["params['w']"] == "weight"


def test_shapes_of_data():
    arguments = (*objects(), X, Y)
    refused(["data: x", "[3, 16]", "[8, 16]"], nnx_step, arguments, data=(X[:3], Y))
    refused(["different numbers of batches"], nnx_step, arguments, data=(np.stack([X] * 3), np.stack([Y] * 2)))
    wrong = {"w": np.ones((16, 5)), "b": np.zeros(4)}
    refused(["state: params['w']"], plain_step, (PARAMS, STATE, X, Y), state=(wrong, STATE))
    export(nnx_step, arguments, data=(np.concatenate([X, X]), np.concatenate([Y, Y])))


def test_leaves_that_are_no_arrays():
    batch = {"x": X, "y": Y, "names": ["a", "b"], "ids": np.array(["u", "v"]), "mask": None, "f": jnp.tanh}

    def step(params, opt_state, batch, train, mode="sum"):
        assert mode == "sum"
        if not train:
            return params, opt_state, plain_loss(params, batch["x"], batch["y"])
        return *plain_step(params, opt_state, batch["x"], batch["y"]), {"note": "text", "f": jnp.tanh}

    document = export(step, (PARAMS, STATE, batch, True), example_kwargs={"mode": "sum"})
    assert roles(document)["batch['x']"] == "data" and len(document["parameters"]) == 9, document


def test_planning():
    def refused_plan(kind, words, *arguments, **more):
        try:
            automap_jax.plan(nnx_step, (*objects(), X, Y), *arguments, **more)
        except kind as error:
            assert all(word in str(error) for word in words), error
            return
        raise AssertionError(f"no {kind.__name__} that says {words}")

    refused_plan(TypeError, ["cluster", "nominal:8"], 8)
    refused_plan(TypeError, ["options"], "nominal:8", options="--seed 1")
    if "AUTOMAP" in os.environ:
        refused_plan(ValueError, ["plan is for 2 devices, JAX has 1", 'update("jax_num_cpu_devices", 2)'], "nominal:2")
        refused_plan(RuntimeError, ["nominl:8", "nominal:N"], "nominl:8")
    before = os.environ.get("AUTOMAP")
    os.environ["AUTOMAP"] = "/nowhere/automap"
    refused_plan(RuntimeError, ["/nowhere/automap", "AUTOMAP"], "nominal:8")
    os.environ.pop("AUTOMAP") if before is None else os.environ.update(AUTOMAP=before)


def test_models_without_arrays_of_their_own():
    """Equinox: static leaves and a frozen part."""

    def step(model, teacher, x):
        def loss_fn(model):
            return jnp.mean((jax.vmap(model)(x) - jax.vmap(teacher)(x)) ** 2)

        loss, gradients = eqx.filter_value_and_grad(loss_fn)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda leaf: -0.1 * leaf, gradients)), loss

    make = lambda seed: eqx.nn.MLP(16, 4, 8, 1, key=jax.random.key(seed))
    found = roles(export(eqx.filter_jit(step), (make(0), make(1), X)))
    assert found["model.layers[0].weight"] == "weight" and found["teacher.layers[0].weight"] == "constant"


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name, flush=True)
            test()


if __name__ == "__main__":
    main()
