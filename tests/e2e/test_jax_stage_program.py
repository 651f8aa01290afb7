"""Pipelines in JAX as one program: `automap_jax.run(..., form="one_program")` on eight host devices.

Models of the zoo train from their committed state and data. Losses must be the committed ones of one device. The number
of frames is at least that of the micro-batches between the passes. Plans and steps that one program cannot hold are
refused by name.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_jax_stage_program.py`.
"""
# labels: jax e2e
# timeout: 600
# cost: 30

import json
import pathlib
import tempfile

import test_jax_pipelines as pipelines  # before JAX
from program import FULL, MODELS, succeed

import jax
import numpy as np

import automap_jax
from automap_jax import reference
from automap_jax.stage_program import StageProgram, permutes_in_branches

ZERO = ["--stages", "2", "--data", "4", "--micro-batches", "4", "--memory-fraction", "1.3e-4", *pipelines.DEFAULT,
        "--evaluations", "20"]
TENSOR = ["--stages", "2", "--data", "1", "--tensor", "2", "--micro-batches", "2", "--cluster", "nominal:4",
          "--evaluations", "20"]
TWO_AXES = ["--stages", "2", "--data", "2", "--tensor", "2", "--micro-batches", "4", *pipelines.DEFAULT,
            "--evaluations", "20"]
CASES = {"mlp_tiny": {"gpipe": pipelines.MORE["gpipe"], "zb_h1": pipelines.MORE["zb_h1"], "tensor": TENSOR},
         "gpt2_tiny": {"1f1b": pipelines.MORE["1f1b"]}}
if FULL:
    kinds = "gpipe", "1f1b", "zb_h1", "interleaved", "recomputed"
    CASES = {name: {kind: pipelines.OWN.get(name, pipelines.MORE).get(kind, pipelines.MORE[kind]) for kind in kinds
                    if (name, kind) not in pipelines.REFUSED}
             for name in ("mlp_tiny", "gpt2_tiny", "t5_tiny", "bert_tiny", "vgg_tiny")}  # fmt: skip
    CASES["gpt2_tiny"] |= {"zero": ZERO, "tensor": TENSOR}
    CASES["fused_tiny"] = {"masked mean": pipelines.MASKED}


def check(name, what, options, folder):
    step, state, data = pipelines.arguments_of(name)
    document, _ = pipelines.document_of(name, options, folder)
    run = automap_jax.run(document, step, (*state, *data(0)), donate=True, form="one_program")
    assert isinstance(run, StageProgram), type(run)
    wanted, worst = json.loads((MODELS / name / "losses.json").read_text())["losses"][:3], 0
    for number, expected in enumerate(wanted):
        *results, loss = run(*state, *data(number))
        state = reference.successors(state, results)
        worst = max(worst, abs(float(loss) - expected) / abs(expected))
    assert worst <= pipelines.TOLERANCE, f"{name}, {what}: a loss is off by {worst:.1e}"
    live = [pipelines.most_live(stage) for stage in document["stages"]]
    assert run.live == live and run.ticks.frames >= max(live), (run.live, live, run.ticks.frames)
    return f"{name}, {what}: {run.ticks.count} ticks, {run.ticks.frames} frames, losses off by {worst:.1e}"


def refused(reason, document, step, arguments, form="one_program"):
    try:
        automap_jax.run(document, step, arguments, form=form)
    except ValueError as error:
        assert reason in str(error), error
        return
    raise AssertionError(f"not refused: {reason}")


def two_meshes(document, shape):
    """The document of one part with a second stage of another mesh."""
    mesh = {"shape": [shape], "axis_names": ["data"], "devices": list(range(1, 1 + shape))}
    first, = document["stages"]
    return {**document, "parts": 2, "stages": [first, {**first, "mesh": mesh}]}


def check_refusals(folder):
    document = pipelines.document_of_one_part(2, pipelines.TWO_BATCHES)
    arguments = np.float32(2), np.arange(4, dtype=np.float32)

    def step(loss):
        def descend(state, x):
            value, gradient = jax.value_and_grad(lambda state: loss(jax.numpy.tanh(x * state)))(state)
            return state - 0.1 * gradient, value

        return descend

    sums = step(lambda y: (y * y).sum())
    found = automap_jax.run(document, sums, arguments, form="one_program")(*arguments)
    assert np.allclose(found, sums(*arguments)), (found, sums(*arguments))
    refused("form: unknown form", document, sums, arguments, "both")
    refused("stage 1 has the mesh {'data': 2}", two_meshes(document, 2), sums, arguments)
    refused("all micro-batches more than once", document, step(lambda y: ((y - y.mean()) ** 2).sum()), arguments)
    refused("a row for each example", document, lambda state, x: (*sums(state, x), x * state), arguments)
    module = next((MODELS / "mlp_tiny").glob("model.hlo.pb*"))
    plan, file = folder / "plan.json", folder / "jax.json"
    succeed("search", module, "--for", "jax", *TWO_AXES, "-o", plan, "--quiet")
    succeed("export", plan, module, "--format", "jax", "-o", file)
    model, state, data = pipelines.arguments_of("mlp_tiny")
    refused("expected one axis of several devices", json.loads(file.read_text()), model, (*state, *data(0)))


def check_permutes():
    """Permutes of branches, and of what these call, are found, others are not."""
    text = """
%inner (p: f32[2]) -> f32[2] {
  ROOT %bad = f32[2] collective-permute(%p), source_target_pairs={{0,1}}
}
%branch (p: f32[2]) -> f32[2] {
  ROOT %call = f32[2] call(%p), to_apply=%inner
}
ENTRY %main (i: s32[], p: f32[2]) -> f32[2] {
  %good = f32[2] collective-permute(%p), source_target_pairs={{0,1}}
  ROOT %c = f32[2] conditional(%i, %good, %good), branch_computations={%branch, %other}
}
"""
    assert permutes_in_branches(text) == ["bad"], permutes_in_branches(text)
    assert permutes_in_branches(text.replace("branch_computations={%branch, ", "x={")) == []


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_permutes()
        check_refusals(folder)
        for model, plans in CASES.items():
            for what, options in plans.items():
                print(check(model, what, options, folder), flush=True)


if __name__ == "__main__":
    main()
