# labels: jax e2e
# cost: 5
"""Marks of automap_jax reach the search through gradients, recomputation and scan: examples/hints/marked_step.py is
planned with its stages and shardings, trains like one device, and a contradiction names both places."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["AUTOMAP_SOURCE"])
sys.path[:0] = [str(SOURCE / "datasets"), str(SOURCE / "examples" / "hints")]

import automap_jax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import marked_step  # noqa: E402


def automap(*arguments):
    return subprocess.run([os.environ["AUTOMAP"], *map(str, arguments)], capture_output=True, text=True)


def losses_of(folder, plan):
    done = automap("run", folder / "model.hlo.pb", "--plan", plan, "--steps", 3, "--state", folder / "state.npz",
                   "--data", folder / "data.npz", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def check_plan(folder):
    plan = folder / "plan.json"
    done = automap("search", folder / "model.hlo.pb", "--cluster", "nominal:4", "--evaluations", 40, "-o", plan)
    assert done.returncode == 0, done.stderr
    found = json.loads(plan.read_text())
    rows = {row["path"].split("'")[-2]: row for row in found["parameters"] if "[" in row["path"]}
    stages = {name: rows[name]["stage"] for name in ("in", "up", "down", "out")}
    assert stages == {"in": 0, "up": 1, "down": 1, "out": 1}, stages
    assert not any(rows["in"]["sharding"]), rows["in"]
    assert rows["up"]["sharding"][2] and rows["down"]["sharding"][1], (rows["up"], rows["down"])
    pairs = list(zip(losses_of(folder, plan), losses_of(folder, "none"), strict=True))
    assert len(pairs) == 3 and all(abs(a - b) <= 1e-5 * abs(b) for a, b in pairs), pairs


def check_contradiction(folder):
    done = automap("search", folder / "model.hlo.pb", "--cluster", "nominal:4", "-o", folder / "none.json",
                   "--pin", "automap-stage-0=stage(1)")  # fmt: skip
    assert done.returncode == 2 and "contradict each other" in done.stderr, done.stderr
    assert 'pin "automap-stage-0=stage(1)"' in done.stderr and "stage(0) at marked_step.py:" in done.stderr, done.stderr


def check_sharding(folder):
    """Weights of a block get the sharding of its mark, inside of a loop those of the whole stack."""
    def step(params, x):
        def loss(params):
            def layer(h, weights):
                with automap_jax.sharding(None, None, "model"), automap_jax.value("data", "model"):
                    inner = jnp.tanh(h @ weights["up"])
                return h + inner @ weights["down"], None

            hidden, _ = jax.lax.scan(layer, x, params["layers"])
            with automap_jax.pin(sharding=(None, ("data", "model"))):
                return jnp.mean((hidden @ params["out"] + params["bias"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, params, gradients), value

    shapes = {"bias": (4,), "layers": {"down": (2, 16, 8), "up": (2, 8, 16)}, "out": (8, 4)}
    params = jax.tree.map(lambda shape: jnp.full(shape, 0.1), shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    automap_jax.export(step, (params, jnp.ones((8, 8))), folder)
    plan = folder / "sharding.json"
    done = automap("search", folder / "model.hlo.pb", "--cluster", "nominal:4", "--mesh", "data=2,model=2", "-o", plan,
                   "--evaluations", 20)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row["path"].split("'")[-2]: row["sharding"] for row in json.loads(plan.read_text())["parameters"]
            if "[" in row["path"]}
    assert rows["out"] == [[], ["data", "model"]] and rows["up"] == [[], [], ["model"]], rows
    states = [one.get("states") for one in json.loads(plan.read_text())["stages"][0]["overrides"]]
    assert {"data": "S(0)", "model": "S(1)"} in states, states


def check_stack(folder):
    """A block of a loop over layers that the step stacks has the weights of all layers."""
    def step(params, x):
        def loss(params):
            def layer(h, weights):
                with automap_jax.split(2):
                    return h + jnp.tanh(h @ weights["up"]) @ weights["down"], None

            stack = jax.tree.map(lambda *rows: jnp.stack(rows), *params["layers"])
            return jnp.mean((jax.lax.scan(layer, x, stack)[0] @ params["out"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, params, gradients), value

    layer = {"down": jnp.full((16, 8), 0.1), "up": jnp.full((8, 16), 0.1)}
    automap_jax.export(step, ({"layers": [layer, layer], "out": jnp.full((8, 4), 0.1)}, jnp.ones((8, 8))), folder)
    plan = folder / "stack.json"
    done = automap("search", folder / "model.hlo.pb", "--cluster", "nominal:4", "-o", plan, "--evaluations", 20)
    assert done.returncode == 0, done.stderr
    rows = {row["path"]: row["sharding"] for row in json.loads(plan.read_text())["parameters"]}
    for k in range(2):
        up, down = (rows[f"params['layers'][{k}]['{name}']"] for name in ("up", "down"))
        assert up[1] and up[1] == down[0] and not up[0] and not down[1], rows


def check_arguments():
    for make in (lambda: automap_jax.split(0), lambda: automap_jax.stage(-1), lambda: automap_jax.devices(),
                 lambda: automap_jax.replicate(True), lambda: automap_jax.split("a/b"), lambda: automap_jax.sharding(),
                 lambda: automap_jax.sharding("a+b"), lambda: automap_jax.value(("a", None)),
                 # fmt: skip
                 lambda: automap_jax.value(1), lambda: automap_jax.sharding(()), lambda: automap_jax.value(("a", "a"))):
        try:
            make()
        except ValueError as error:
            assert "expected" in str(error), error
        else:
            raise AssertionError("a wrong argument is accepted")


def main():
    check_arguments()
    with tempfile.TemporaryDirectory() as folder:
        automap_jax.export(marked_step.step, marked_step.arguments(), folder)
        check_plan(pathlib.Path(folder))
        check_contradiction(pathlib.Path(folder))
        check_sharding(pathlib.Path(folder))
        check_stack(pathlib.Path(folder))
    print("marks hold in the plan of a JAX step")


main()
