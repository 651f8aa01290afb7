"""Training steps of kinds that the zoo does not have are planned and trained like JAX trains them.

tests/oracle/training_steps.py has them: state spaces, recommenders, graphs, Fourier operators, optimizers with
eigenvalues or loops, policies, contrastive losses, ... Each is exported as a user would, planned by searches, baselines
and at random, and run; the losses of four steps are those that JAX's jit has of the same step. A baseline may have
nothing to do in a module, which it must say.

AUTOMAP_FULL=1: all kinds, else a few. `python3 tests/e2e/test_kinds_of_steps.py [KIND ...]`.
"""
# labels: jax e2e
# timeout: 600
# cost: 30

import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, FULL, skip_where_missing

with skip_where_missing():
    import jax
    import numpy as np
    import optax  # noqa: F401, of one kind

import automap_jax

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
from training_steps import STEPS, Values

SAMPLE = ["graph", "shampoo", "state_space"]
TRAINED, TOLERANCE = 4, 5e-6
PLANS = {
    "searched for 2": ["--cluster", "nominal:2"],
    "searched for 4": ["--cluster", "nominal:4"],
    "random 1": ["--cluster", "nominal:4", "--searcher", "random", "--seed", "1"],
    "random 2": ["--cluster", "nominal:4", "--searcher", "random", "--seed", "2"],
    **{name: ["--cluster", "nominal:4", "--baseline", name]
       for name in ("data_parallel", "zero3", "megatron", "megatron_zero3", "megatron_sequence", "even_pipeline")},
}
# Steps in which baselines have nothing to split, and words of the reason.
REFUSALS = {"megatron": "no weight dimension", "megatron_zero3": "no weight dimension",
            "megatron_sequence": "no data input has a sequence|no weight dimension"}


def automap(*arguments):
    return subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True)


def losses_of_jax(step, state, data):
    jitted, losses = jax.jit(step), []
    for _ in range(TRAINED):
        state, loss = jitted(state, *data)
        losses.append(float(loss))
    return losses


def is_refused(name, done):
    return done.returncode == 4 and any(words in done.stderr for words in REFUSALS.get(name, "-").split("|"))


def check_plan(folder, name, expected):
    """Returns whether the plan was trained; a failure is an exception."""
    module, plan = folder / "model.hlo.pb", folder / "plan.json"
    done = automap("search", module, *PLANS[name], "-o", plan, "--quiet")
    if is_refused(name, done):
        return False
    assert done.returncode == 0, done.stderr
    done = automap("run", module, "--plan", plan, "--state", folder / "state.npz", "--data", folder / "data.npz",
                   "--steps", TRAINED, "--json")
    assert done.returncode == 0, done.stderr
    losses = [json.loads(line)["loss"] for line in done.stdout.splitlines() if '"loss"' in line]
    assert np.allclose(losses, expected, rtol=TOLERANCE, atol=TOLERANCE), (losses, expected)
    return True


def main():
    kinds, failures, trained = sys.argv[1:] or (list(STEPS) if FULL else SAMPLE), [], 0
    for kind in kinds:
        step, state, data = STEPS[kind](Values(np.random.default_rng(0)))
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            automap_jax.export(step, (state, *data), folder)
            expected = losses_of_jax(step, state, data)
            for name in PLANS:
                try:
                    trained += check_plan(folder, name, expected)
                except AssertionError as error:
                    failures.append(f"{kind}, {name}: {error}")
                    print("FAILED:", failures[-1])
    print(f"{trained} plans of {len(kinds)} kinds, {len(failures)} failures")
    sys.exit(bool(failures) or trained < 6 * len(kinds))


if __name__ == "__main__":
    main()
