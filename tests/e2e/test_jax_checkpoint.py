"""`automap_jax.checkpoint`: a user's loss under jax.checkpoint saves and recomputes the same values as a searched plan.

A decoder with custom derivatives, masks and an auxiliary result trains on two host devices under a plan of one stage
that recomputes because of its memory. Losses are those of the plain step. The step repeats no product that the plan
saves. Its compiled step takes less memory than that of a plan of a higher limit. The memory of both is within 10 % of
the prediction, which for recomputation is that of `run`: XLA keeps more than the plan's recomputation needs.
"""
# labels: jax e2e
# timeout: 300
# cost: 25

import json
import os
import pathlib
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import skip_where_missing, succeed

with skip_where_missing():
    import jax
    import jax.numpy as jnp
    import numpy as np

import automap_jax

TOKENS, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 48, 4, 4, 24, 16
LEAST, MOST = 0.9, 1.1  # compiled over predicted memory of a device


@jax.custom_vjp
def softly(x):
    return x * jax.nn.sigmoid(x)


softly.defvjp(lambda x: (softly(x), x),
              lambda x, g: (g * jax.nn.sigmoid(x) * (1 + x * (1 - jax.nn.sigmoid(x))),))


def norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def attend(layer, x):
    heads = (x @ layer["qkv"]).reshape(BATCH, LENGTH, HEADS, 3 * WIDTH // HEADS)
    q, k, v = jnp.split(heads, 3, -1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ layer["out"]


def loss_of(params, x, y):
    h = params["tokens"][x] + params["places"]
    for at, layer in enumerate(params["layers"]):
        h = h + attend(layer, norm(h))
        h = h + (softly if at else jax.nn.relu)(norm(h) @ layer["up"]) @ layer["down"]
    logits = norm(h) @ params["tokens"].T
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)
    return -found.mean(), (logits.argmax(-1) == y).sum()


def step_of(loss):
    def step(state, x, y):
        (value, right), slopes = jax.value_and_grad(loss, has_aux=True)(state["params"], x, y)
        speed = jax.tree.map(lambda v, g: 0.9 * v + g, state["speed"], slopes)
        return {"params": jax.tree.map(lambda p, v: p - 0.02 * v, state["params"], speed), "speed": speed}, value, right

    return step


def arguments():
    rng = np.random.default_rng(1)
    array = lambda *shape: rng.normal(size=shape, scale=shape[0] ** -0.5).astype(np.float32)
    layer = lambda: {"qkv": array(WIDTH, 3 * WIDTH), "out": array(WIDTH, WIDTH), "up": array(WIDTH, 4 * WIDTH),
                     "down": array(4 * WIDTH, WIDTH)}
    layers = [layer() for _ in range(LAYERS)]
    params = {"tokens": array(TOKENS, WIDTH), "places": array(LENGTH, WIDTH), "layers": layers}
    x = rng.integers(0, TOKENS, (BATCH, LENGTH + 1)).astype(np.int32)
    return {"params": params, "speed": jax.tree.map(np.zeros_like, params)}, x[:, :-1], x[:, 1:]


def planned(folder, cluster, share):
    """The exported plan for two devices, and the bytes that it predicts for each device of this machine."""
    module, plan = folder / "model.hlo.pb", folder / "plan.json"
    succeed("search", module, "--for", "jax", "--cluster", cluster, "--micro-batches", 1, "--evaluations", 40,
            "--memory-fraction", share, "-o", plan, "--quiet")
    succeed("export", plan, module, "--format", "jax", "-o", folder / "jax.json")
    succeed("simulate", plan, module, "--cluster", "nominal:2", "--json", "--quiet", "-o", folder / "simulation.json")
    devices = json.loads((folder / "simulation.json").read_text())["devices"]
    return json.loads((folder / "jax.json").read_text()), max(row["peak_bytes"] for row in devices)


def compiled(loss, given, document=None):
    """The step, on the devices of a plan or on one."""
    options = {"compiler_options": automap_jax.compiler_options()}
    step = step_of(loss)
    if document:
        output = jax.eval_shape(step, *given)
        inputs, outputs = automap_jax.shardings(document, given, output)
        options |= {"in_shardings": inputs, "out_shardings": outputs}
    return jax.jit(step, **options).lower(*given).compile()


def bytes_of(program):
    use = program.memory_analysis()
    return use.temp_size_in_bytes + use.argument_size_in_bytes


def losses(program, given, place=None):
    state, *data = jax.device_put(given, place) if place else given
    found = []
    for _ in range(3):
        state, value, right = program(state, *data)
        found.append((float(value), int(right)))
    return found


def products(loss, given):
    return str(jax.make_jaxpr(step_of(loss))(*given)).count("dot_general[")


def check_forms():
    """Gradients of a scan, a conditional, random numbers, an auxiliary tree and a keyword argument."""
    def loss(params, x, scale=1.0):
        h, sums = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), x, params["layers"])
        h = h * jax.random.bernoulli(jax.random.key(3), 0.5, h.shape)
        h = jax.lax.cond(h.sum() > 0, jnp.sin, jnp.cos, h)
        return (h @ params["out"]).sum() * scale, {"sums": sums, "count": jnp.int32(3)}

    rng = np.random.default_rng(2)
    array = lambda *shape: rng.normal(size=shape).astype(np.float32)
    given = {"layers": array(3, 4, 4), "out": array(4, 2)}, array(5, 4)
    document = {"stages": [{"recomputed": [["mul", [5, 4], 2, [0, 1]], ["dot_general", [5, 2], 1, [0]]]}]}
    slopes = lambda loss: jax.value_and_grad(loss, has_aux=True, argnums=(0, 1))(*given, scale=2.0)
    found, expected = slopes(automap_jax.checkpoint(document, loss)), slopes(loss)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-6), (a, b)


def check_bytes(taken, predicted):
    """Compares [without, with recomputation]."""
    told = f"{taken[0]} and {taken[1]} bytes, predicted {predicted[0]} and {predicted[1]}"
    for found, expected in zip(taken, predicted, strict=True):
        assert LEAST * expected <= found <= MOST * expected, told
    assert taken[1] < 0.95 * taken[0] and predicted[1] < predicted[0], told
    print(told)


def main():
    check_forms()
    given = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        automap_jax.export(step_of(loss_of), given, folder)
        # For other devices than the host the search takes automap's own memory, and so recomputes.
        other = folder / "other.json"
        other.write_text(succeed("cluster", "nominal:2", "--json").replace('"host"', '"other"'))
        documents, predicted = zip(planned(folder, "nominal:2", 1.2e-3), planned(folder, other, 8e-4))
    assert automap_jax.checkpoint(documents[0], loss_of) is loss_of
    loss = automap_jax.checkpoint(documents[1], loss_of)
    rows = [row for stage in documents[1]["stages"] for row in stage["recomputed"]]
    again = products(loss, given) - products(loss_of, given)
    wanted = sum(len(chosen) for name, _, _, chosen in rows if name == "dot_general")
    assert 0 < again <= wanted, (again, wanted)
    programs = [compiled(loss_of, given, documents[0]), compiled(loss, given, documents[1])]
    place = automap_jax.shardings(documents[1], given)
    found, expected = losses(programs[1], given, place), losses(compiled(loss_of, given), given)
    assert np.allclose(found, expected, rtol=2e-5), (found, expected)
    print(f"{again} of {wanted} products in recomputed ranges run again, losses {found}")
    check_bytes([bytes_of(program) for program in programs], predicted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
