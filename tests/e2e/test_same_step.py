"""A plan serves every module of the same step: with other donations, and without its unused parameters.

JAX exports a step with all parameters and donates the state; XLA's dump of the same step has neither
the parameters that nothing reads nor these donations. Plans of several kinds are made for one and used
with the other, both ways: the simulated step and the losses of `run` must be the same. A plan for a
module that computes another thing is refused.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_same_step.py`.
"""
# labels: jax e2e
# cost: 12

import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, skip_where_missing

with skip_where_missing():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

import automap_jax

SEARCHES = {
    "searched": ["--space", "single_stage", "--evaluations", 20],
    "micro-batches": ["--space", "single_stage", "--micro-batches", 2, "--evaluations", 20],
    "stages": ["--baseline", "even_pipeline", "--micro-batches", 2],
    "random": ["--searcher", "random", "--seed", 3],
    "zero": ["--baseline", "zero3"],
}


def automap(*words, expected=0):
    done = subprocess.run([AUTOMAP, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == expected, f"automap {' '.join(map(str, words))}: {done.returncode} {done.stderr}"
    return done.stdout if expected == 0 else done.stderr


def make_step(rate):
    optimizer = optax.adam(rate)

    def step(params, first_unused, opt_state, x, unused, y):
        def loss_fn(p):
            layer = lambda h, _: (jnp.tanh(h @ p["c"]), None)
            hidden, _ = jax.lax.scan(layer, jnp.tanh(x @ p["a"]), length=3)
            return jnp.mean((hidden @ p["b"] - y) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(gradients, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    random = np.random.default_rng(0)
    array = lambda *shape: random.normal(size=shape).astype(np.float32) * 0.3
    params = {"a": array(16, 32), "c": array(32, 32), "b": array(32, 8)}
    return step, (params, array(5, 3), optimizer.init(params), array(8, 16), array(2, 2), array(8, 8))


def losses(module, plan, folder):
    files = ["--state", folder / "state.npz", "--data", folder / "data.npz"]
    rows = map(json.loads, automap("run", module, "--plan", plan, *files, "--steps", 3, "--json").splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def check_search(name, planned, other, folder):
    plan = folder / "plan.json"
    automap("search", planned, "--cluster", "nominal:2", *SEARCHES[name], "-o", plan, "--quiet")
    seconds = [
        json.loads(automap("simulate", plan, module, "--json"))["step_seconds"] for module in (planned, other)
    ]
    assert seconds[0] == seconds[1], f"{name}: {seconds}"
    found = [losses(module, plan, folder) for module in (planned, other)]
    assert found[0] == found[1] and len(found[0]) == 3, f"{name}: {found}"
    automap("explain", plan, other)
    automap("lower", other, "--plan", plan)


def check_refusals(exported, folder):
    step, arguments = make_step(2e-3)
    automap_jax.export(step, arguments, folder / "faster")
    plan = folder / "plan.json"
    automap("search", exported, "--cluster", "nominal:2", *SEARCHES["zero"], "-o", plan, "--quiet")
    stderr = automap("simulate", plan, folder / "faster" / "model.hlo.pb", expected=3)
    assert "the plan is for module" in stderr and "instructions" in stderr, stderr
    other = folder / "faster" / "model.hlo.pb"
    document = json.loads(plan.read_text())
    for wrong in (1, {}, {"sha256": 3}, {"sha256": "x", "unused": "y"}):
        document["module"]["structure"] = wrong
        plan.write_text(json.dumps(document))
        automap("simulate", plan, other, expected=3)
    dump = folder / "dump.hlo.pb"
    sha256 = json.loads(automap("info", dump, "--json"))["sha256"]
    for unused in ([[1]], [[1, -1]], [[10**12, 1]], [1], None, [["a", "b"]]):
        # The structure of a module without unused parameters or donations is its own hash.
        document["module"]["structure"] = {"sha256": sha256, "unused": unused}
        plan.write_text(json.dumps(document))
        stderr = automap("simulate", plan, dump, expected=3)
        assert "$.module.structure.unused" in stderr, stderr


def main():
    step, arguments = make_step(1e-3)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        automap_jax.export(step, arguments, folder)
        exported, dump = folder / "model.hlo.pb", folder / "dump.hlo.pb"
        lowered = jax.jit(step).lower(*arguments).compiler_ir("hlo")
        dump.write_bytes(lowered.as_serialized_hlo_module_proto())
        counts = [len(json.loads(automap("info", at, "--json"))["parameters"]) for at in (exported, dump)]
        assert counts[0] == counts[1] + 2, counts
        for search in SEARCHES:
            check_search(search, exported, dump, folder)
            check_search(search, dump, exported, folder)
            print(f"{search:14} the same step time and losses", flush=True)
        check_refusals(exported, folder)


if __name__ == "__main__":
    main()
