"""Training steps in f16 that scale their loss have the losses of JAX: a fixed scale, and one that is halved and whose
step is skipped where a gradient is not finite, under data parallelism, micro-batches and two stages.
"""
# labels: jax e2e
# timeout: 120
# cost: 5

import os
import pathlib
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
# With AVX512-FP16 XLA also rounds sums of products to f16; otherwise it computes in f32, as automap does.
os.environ["XLA_FLAGS"] = "--xla_cpu_max_isa=AVX2"

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import losses, skip_where_missing, succeed

with skip_where_missing():
    import jax
    import jax.numpy as jnp
    import numpy as np

import automap_jax

STEPS, RATE = 8, 0.1
LARGE = 2.0**20  # the first scale: gradients in f16 overflow
PLANS = {"data": ("--mesh", "data=2"), "micro-batches": ("--mesh", "data=2", "--micro-batches", 2),
         "stages": ("--stages", 2, "--micro-batches", 2)}


def scaled_loss(weights, x, y, scale):
    hidden = jnp.tanh(x.astype(jnp.float16) @ weights["in"].astype(jnp.float16))
    result = (hidden @ weights["out"].astype(jnp.float16)).astype(jnp.float32)
    return jnp.mean((result - y) ** 2) * scale


def fixed(weights, x, y):
    loss, gradients = jax.value_and_grad(scaled_loss)(weights, x, y, 1024.0)
    return jax.tree.map(lambda w, g: w - RATE * g / 1024, weights, gradients), loss / 1024


def adapted(state, x, y):
    loss, gradients = jax.value_and_grad(scaled_loss)(state["weights"], x, y, state["scale"])
    gradients = jax.tree.map(lambda g: g / state["scale"], gradients)
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradients)]))
    weights = jax.tree.map(lambda w, g: jnp.where(finite, w - RATE * g, w), state["weights"], gradients)
    scale = jnp.where(finite, state["scale"], state["scale"] / 2)
    return {"weights": weights, "scale": scale}, loss / state["scale"]


def check(work, name, step, state, skipped):
    random = np.random.RandomState(0)
    x, y = random.randn(8, 16).astype(np.float32), random.randn(8, 4).astype(np.float32)
    automap_jax.export(step, (state, x, y), str(work / name))
    expected, run = [], jax.jit(step)
    for _ in range(STEPS):
        state, loss = run(state, x, y)
        expected.append(float(loss))
    repeated = sum(a == b for a, b in zip(expected, expected[1:]))
    assert repeated == skipped and len(set(expected)) == STEPS - skipped, f"{name}: {expected}"
    for plan, options in PLANS.items():
        path = work / f"{name}.plan.json"
        succeed("search", work / name / "model.hlo.pb", "--cluster", "nominal:2", *options, "-o", path, "--quiet")
        source = ("--state", work / name / "state.npz", "--data", work / name / "data.npz")
        found = losses(work / name / "model.hlo.pb", path, source, STEPS)
        assert np.allclose(found, expected, rtol=1e-6), f"{name}, {plan}: {found}, JAX {expected}"
        print(f"{name}, {plan}: ok", flush=True)


def main():
    keys = jax.random.split(jax.random.PRNGKey(0))
    weights = {"in": jax.random.normal(keys[0], (16, 32)) * 0.2, "out": jax.random.normal(keys[1], (32, 4)) * 0.2}
    with tempfile.TemporaryDirectory() as folder:
        check(pathlib.Path(folder), "fixed", fixed, weights, 0)
        check(pathlib.Path(folder), "adapted", adapted, {"weights": weights, "scale": jnp.float32(LARGE)}, 3)


if __name__ == "__main__":
    main()
