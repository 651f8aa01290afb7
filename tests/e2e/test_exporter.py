"""The JAX exporter: its files, which equal the committed modules.

Run as `python3 tests/e2e/test_exporter.py`. Exits 0 if all is well, 1 with the first failure, 77
(skipped) without JAX. With an automap program in $AUTOMAP, `plan` is tested against it too.
"""
# cost: 35

import functools
import json
import os
import pathlib
import sys
import tempfile

DATASETS = pathlib.Path(__file__).resolve().parents[2] / "datasets"
sys.path.insert(0, str(DATASETS))
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

try:
    import jax
except ImportError:
    print("skipped: JAX is not installed")
    sys.exit(77)

import jax.numpy as jnp
import numpy as np

import automap_jax
from automap_jax import module_proto
from automap_jax.command import export_model
from automap_jax.exporter import STATE_ROLES
from automap_jax.zoo import MODELS, mlp

MODEL_FILES = DATASETS / "models"
COMMITTED_WITH = "0.10.2"


def content(module):
    """All fields of a serialised module but source files and lines, as comparable values."""

    def instruction(message):
        return [
            (number, bytes(module_proto.field(value, 2, b"")) if number == 7 else bytes_of(value))
            for number, value in module_proto.fields(message)
        ]

    def computation(message):
        return [
            (number, instruction(value) if number == 2 else bytes_of(value))
            for number, value in module_proto.fields(message)
        ]

    return [
        (number, computation(value) if number == 3 else bytes_of(value))
        for number, value in module_proto.fields(memoryview(module))
        if number != 17
    ]


def bytes_of(value):
    return value if isinstance(value, int) else bytes(value)


def same_arrays(path, other):
    a, b = np.load(path), np.load(other)
    return a.files == b.files and all(np.array_equal(a[name], b[name]) for name in a.files)


def test_export_gives_the_committed_module(directory):
    export_model("mlp_tiny", directory)
    committed = MODEL_FILES / "mlp_tiny"
    for name in ("model.roles.json",):
        assert (directory / name).read_text() == (committed / name).read_text(), name
    for name in ("state.npz", "data.npz"):
        assert same_arrays(directory / name, committed / name), name
    if jax.__version__ == COMMITTED_WITH:
        modules = [(at / "model.hlo.pb").read_bytes() for at in (directory, committed)]
        assert content(modules[0]) == content(modules[1]), "the module differs"
    losses = [json.loads((at / "losses.json").read_text()) for at in (directory, committed)]
    np.testing.assert_allclose(losses[0]["losses"], losses[1]["losses"], rtol=2e-6)


def test_committed_modules_name_no_absolute_path(_):
    for path in MODEL_FILES.glob("*/model.hlo.pb"):
        table = module_proto.field(memoryview(path.read_bytes()), 17, b"")
        files = [bytes(value) for number, value in module_proto.fields(table) if number == 1]
        assert files and not [name for name in files if name.startswith(b"/")], (path, files)


def test_arrays_are_named_as_in_the_module(_):
    for path in MODEL_FILES.glob("*/state.npz"):
        names = module_proto.parameter_paths((path.parent / "model.hlo.pb").read_bytes())
        rows = json.loads((path.parent / "model.roles.json").read_text())["parameters"]
        assert [row["path"] for row in rows] == names, path
        for file, is_state in (("state.npz", True), ("data.npz", False)):
            wanted = [row["path"] for row in rows if (row["role"] in STATE_ROLES) == is_state]
            assert np.load(path.parent / file).files == wanted, (path, file)


def test_shapes_suffice(directory):
    model = MODELS["t5_paper_6"]()
    _, document = automap_jax.export(model.step, model.arguments, directory)
    assert sorted(path.name for path in directory.iterdir()) == ["model.hlo.pb", "model.roles.json"]
    roles = [row["role"] for row in document["parameters"]]
    counts = [roles.count(role) for role in ("weight", "optimizer", "state", "data")]
    assert counts == [187, 374, 1, 3], counts


def step_with_everything(weights, frozen, statistics, inputs, key, unused):
    """A weight with momentum, a frozen weight, statistics, a random key, an unused argument."""

    def loss(kernel):
        kept = jax.random.bernoulli(key, 0.5, inputs.shape)
        return jnp.mean(jnp.square(jnp.where(kept, inputs, 0) @ kernel @ frozen))

    value, gradient = jax.value_and_grad(loss)(weights["kernel"])
    momentum = 0.9 * weights["momentum"] + gradient
    new = {"kernel": weights["kernel"] - 0.1 * momentum, "momentum": momentum}
    mean = 0.9 * statistics["mean"] + 0.1 * inputs.mean()
    return value, {"aside": inputs.sum()}, (new, {"mean": mean, "count": statistics["count"] + 1})


def test_roles(directory):
    square = jnp.eye(8)
    arguments = (
        {"kernel": square, "momentum": square},
        square,
        {"mean": jnp.float32(0), "count": jnp.int32(0)},
        jnp.ones((8, 8)),
        jax.random.key(7),
        jnp.ones((8, 3)),
    )
    _, document = automap_jax.export(
        jax.jit(step_with_everything), arguments, directory, constants=(1,)
    )
    found = {row["path"]: (row["role"], row["output"]) for row in document["parameters"]}
    assert found == {
        "weights['kernel']": ("weight", 2),
        "weights['momentum']": ("optimizer", 3),
        "frozen": ("constant", None),
        "statistics['count']": ("state", 4),
        "statistics['mean']": ("state", 5),
        "inputs": ("data", None),
        "key": ("data", None),
        "unused": ("data", None),
    }, found
    assert document["loss"] == 0
    assert json.loads((directory / "model.roles.json").read_text()) == document
    module = memoryview((directory / "model.hlo.pb").read_bytes())
    aliases = [value for number, value in module_proto.fields(module_proto.field(module, 8))]
    assert len(aliases) == 4, "all four updated parameters are donated"
    assert len(np.load(directory / "state.npz").files) == 5
    data = np.load(directory / "data.npz")
    assert data["unused"].shape == (8, 3)
    assert np.array_equal(data["key"], jax.random.key_data(arguments[4]))


def test_swapped_states_are_paired_by_their_keys(directory):
    model = MODELS["two_swapped"]()
    _, document = automap_jax.export(model.step, model.arguments, directory)
    assert [row["output"] for row in document["parameters"]] == [1, 0, None]


def test_caller_knows_better(directory):
    shape = jax.ShapeDtypeStruct((4, 4), np.float32)
    _, document = automap_jax.export(
        lambda a, b: (b * 2, a + 1), (shape, shape), directory, updates={0: 1, 1: 0}, inference=True
    )
    assert [row["output"] for row in document["parameters"]] == [1, 0]


def test_reference_reads_digits(_):
    final = np.load(MODEL_FILES / "mlp" / "final_state.npz")
    rows = json.loads((MODEL_FILES / "mlp" / "model.roles.json").read_text())["parameters"]
    model = MODELS["mlp_evaluate"]()
    leaves = [final[row["path"]] for row in rows if row["role"] == "weight"]
    state = jax.tree.structure(model.arguments[0]).unflatten(leaves)
    x, y = mlp.digits("test", 384, 1)
    assert abs(int(jax.jit(model.step)(state, x[0], y[0])) - 380) <= 1


def data_parallel(document):
    """Returns the output of `automap export --format jax` for data parallelism on 8 devices."""
    rows = document["parameters"]
    return {
        "format": "automap-jax-1",
        "mesh": {"shape": [8], "axis_names": ["data"]},
        "parameters": [
            {"number": row["number"], "spec": [["data"]] if row["role"] == "data" else []}
            for row in rows
        ],
        "outputs": [{"index": index, "spec": []} for index in range(document["loss"] + 1)],
    }


def check_training(name, document, plan):
    """Trains a committed model for 20 steps under a plan in JAX's form, on 8 host devices."""
    model = MODELS[name]()
    wanted = json.loads((MODEL_FILES / name / "losses.json").read_text())["losses"]
    output = jax.eval_shape(model.step, *model.arguments)
    inputs, outputs = automap_jax.shardings(plan, model.arguments, output)
    step = jax.jit(model.step, in_shardings=inputs, out_shardings=outputs)
    state, data, losses = model.state(), model.data(model.batches), []
    for number in range(20):
        state, loss = step(state, *(array[number % model.batches] for array in data))
        losses.append(float(loss))
    np.testing.assert_allclose(losses, wanted[:20], rtol=5e-6)


def test_plans_run_in_jax(directory):
    for name in ("mlp_tiny", "t5_tiny"):
        document = json.loads((MODEL_FILES / name / "model.roles.json").read_text())
        check_training(name, document, data_parallel(document))


def test_a_step_is_traced_once(directory):
    calls = []

    def step(w, x):
        calls.append(x)
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - gradient, loss

    automap_jax.export(step, (np.ones((4, 2), np.float32), np.ones((8, 4), np.float32)), directory)
    assert len(calls) == 1, f"the step is traced {len(calls)} times"


def test_plan(_):
    if "AUTOMAP" not in os.environ:
        return print("  (without $AUTOMAP: not run)")
    model = MODELS["mlp_tiny"]()
    found = automap_jax.plan(model.step, model.arguments, "nominal:8")
    assert jax.tree.structure(found) == jax.tree.structure(model.arguments)
    jax.jit(model.step, in_shardings=found).lower(*model.arguments).compile()
    # A step that recomputes; plans that undo this run only in automap.
    layer = jax.checkpoint(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w.T))
    loss = jax.value_and_grad(lambda w, x: jnp.mean((layer(layer(x, w[0]), w[1]) - x) ** 2))
    w, x = jnp.ones((2, 64, 32)), jnp.ones((64, 64))

    def step(w, x):
        value, gradient = loss(w, x)
        return w - gradient, value

    for options in ((), ("--keep-remat", "--seed", 1)):
        assert len(automap_jax.plan(step, (w, x), "nominal:8", options=options)) == 2


def training(forward):
    """A step of gradient descent that returns what `forward(w, *data)` predicts beside the loss."""

    def step(params, *data):
        gradient, (loss, predicted) = jax.grad(
            lambda params: (lambda l, p: (l, (l, p)))(*forward(params["w"], *data)), has_aux=True
        )(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient), loss, predicted

    return step


def regress(w, x, y):
    return jnp.mean((x @ w - y) ** 2), x @ w


def classify(w, x, y):
    logits = jax.nn.log_softmax(x @ w)
    loss = -jnp.take_along_axis(logits, y[:, None], 1).mean()
    return loss, logits.argmax(-1).astype(jnp.int32)


def reconstruct(w, x):
    return jnp.mean((x @ w - x) ** 2), x @ w


def test_results_like_data_update_nothing(directory):
    x, y, labels = jnp.ones((16, 4)), jnp.ones((16, 4)), jnp.zeros(16, jnp.int32)
    for forward, data in ((regress, (x, y)), (classify, (x, labels)), (reconstruct, (x,))):
        _, document = automap_jax.export(
            training(forward), ({"w": jnp.ones((4, 4))}, *data), directory
        )
        rows = document["parameters"]
        assert [row["role"] for row in rows] == ["weight"] + ["data"] * len(data), rows
        assert document["loss"] == 1


def test_arrays_alone_are_paired_in_a_run(directory):
    def step(w, b, key, x):
        loss, (dw, db) = jax.value_and_grad(
            lambda p: jnp.mean((x @ p[0] + p[1]) ** 2), argnums=0
        )((w, b))
        return w - dw, b - db, jax.random.split(key)[0], loss

    arguments = (jnp.ones((4, 4)), jnp.ones(4), jax.random.PRNGKey(0), jnp.ones((8, 4)))
    _, document = automap_jax.export(step, arguments, directory)
    assert [row["output"] for row in document["parameters"]] == [0, 1, 2, None]


def test_data_in_the_place_of_state(directory):
    def step(params, x):
        new, loss, made = training(reconstruct)(params, x)
        return new, made, loss

    arguments = ({"w": jnp.ones((4, 4))}, jnp.ones((16, 4)))
    for more in ({"data": (np.ones((3, 16, 4)),)}, {"data_arguments": (1,)}):
        _, document = automap_jax.export(step, arguments, directory, **more)
        assert [row["role"] for row in document["parameters"]] == ["weight", "data"], more


def test_wrappers_are_kept(directory):
    def step(params, x):
        return training(reconstruct)(params, x)[:2]

    @functools.wraps(step)
    def precise(*arguments):
        with jax.default_matmul_precision("highest"):
            return step(*arguments)

    shapes = ({"w": jax.ShapeDtypeStruct((4, 4), "float32")},)
    shapes += (jax.ShapeDtypeStruct((16, 4), "float32"),)
    for given in (precise, jax.jit(precise)):
        lowered, document = automap_jax.export(given, shapes, directory)
        assert "HIGHEST" in lowered.as_text()
        assert [row["output"] for row in document["parameters"]] == [0, None]


def test_loss_by_name(directory):
    def step(params, x):
        new, loss, _ = training(reconstruct)(params, x)
        return new, {"accuracy": jnp.abs(x).max(), "loss": loss, "norm": x.sum()}

    arguments = ({"w": jnp.ones((4, 4))}, jnp.ones((16, 4)))
    for wanted, number in ((None, 2), ("norm", 3), (1, 1), ("[1]['loss']", 2)):
        _, document = automap_jax.export(step, arguments, directory, loss=wanted, inference=True)
        assert document["loss"] == number, (wanted, document["loss"])


def test_loss_follows_the_state(directory):
    def step(params, x):
        new, loss, _ = training(reconstruct)(params, x)
        return new, (jnp.abs(x).max(), loss)

    arguments = ({"w": jnp.ones((4, 4))}, jnp.ones((16, 4)))
    _, document = automap_jax.export(step, arguments, directory)
    assert document["loss"] == 2, document


def test_arrays_are_written_in_the_types_of_the_module(directory):
    def step(params, x, labels, rate):
        new, loss, _ = training(classify)(params, x, labels)
        return jax.tree.map(lambda a, b: a + rate * (b - a), params, new), loss

    arguments = ({"w": np.ones((4, 4))}, np.ones((16, 4)), np.zeros(16, np.int64), 0.1)
    automap_jax.export(step, arguments, directory)
    state, data = np.load(directory / "state.npz"), np.load(directory / "data.npz")
    assert state["params['w']"].dtype == np.float32
    assert [data[name].dtype for name in data.files] == [np.float32, np.int32, np.float32]
    try:
        automap_jax.export(step, arguments, directory, state=(1, 2))
        raise AssertionError("two arrays for one weight")
    except ValueError as error:
        assert "params['w']" in str(error), error


def test_shardings_of_random_keys(_):
    plan = {
        "format": "automap-jax-1",
        "mesh": {"shape": [2], "axis_names": ["data"]},
        "parameters": [{"number": 0, "spec": [None]}],
        "outputs": [],
    }
    (found,) = automap_jax.shardings(plan, (jax.random.key(0),))
    assert found.spec == jax.sharding.PartitionSpec()


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            print(name)
            with tempfile.TemporaryDirectory() as directory:
                test(pathlib.Path(directory))


if __name__ == "__main__":
    main()
