"""Pipelines in JAX as one program: `automap_jax.run(..., form="one_program")` on eight host devices.

Models of the zoo train from their committed state and data, one of them also on two processes. Losses must be the
committed ones of one device. The number of frames is at least that of the micro-batches between the passes. Plans and
steps that one program cannot hold are refused by name.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_jax_stage_program.py`.
"""
# labels: jax e2e
# timeout: 600
# cost: 30

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import test_jax_pipelines as pipelines  # before JAX
from program import FULL, MODELS, succeed

import jax
import numpy as np

import automap_jax
from automap_jax import reference
from automap_jax.stage_program import StageProgram, other_permutes

ZERO = ["--stages", "2", "--data", "4", "--micro-batches", "4", "--memory-fraction", "1.3e-4", *pipelines.DEFAULT,
        "--evaluations", "20"]
TENSOR = ["--stages", "2", "--data", "1", "--tensor", "2", "--micro-batches", "2", "--cluster", "nominal:4",
          "--evaluations", "20"]
TWO_AXES = ["--stages", "2", "--data", "2", "--tensor", "2", "--micro-batches", "4", *pipelines.DEFAULT,
            "--evaluations", "20"]
CASES = {"mlp_tiny": {"gpipe": pipelines.MORE["gpipe"], "zb_h1": pipelines.MORE["zb_h1"], "tensor": TENSOR},
         "gpt2_tiny": {"1f1b": pipelines.MORE["1f1b"]}, "dropout_tiny": {"1f1b": pipelines.MORE["1f1b"]}}
if FULL:
    kinds = "gpipe", "1f1b", "zb_h1", "interleaved", "recomputed"
    CASES = {name: {kind: pipelines.OWN.get(name, pipelines.MORE).get(kind, pipelines.MORE[kind]) for kind in kinds
                    if (name, kind) not in pipelines.REFUSED}
             for name in ("mlp_tiny", "gpt2_tiny", "t5_tiny", "bert_tiny", "vgg_tiny")}  # fmt: skip
    CASES["gpt2_tiny"] |= {"zero": ZERO, "tensor": TENSOR}
    CASES["dropout_tiny"] = {kind: pipelines.MORE[kind] for kind in ("gpipe", "1f1b")}
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
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / len(jax.devices())
    assert run.peak_bytes > held, (run.peak_bytes, held)
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
    for model in sums, lambda state, x: (*sums(state, x), x.max(), x.sum()):  # the last ones of data alone
        found = automap_jax.run(document, model, arguments, form="one_program")(*arguments)
        assert np.allclose(found, model(*arguments)), (found, model(*arguments))
    refused("form: unknown form", document, sums, arguments, "both")
    refused("stage 1 has the mesh {'data': 2}", two_meshes(document, 2), sums, arguments)
    refused("all micro-batches more than once", document, step(lambda y: ((y - y.mean()) ** 2).sum()), arguments)
    refused("a row for each example", document, lambda state, x: (*sums(state, x), x * state), arguments)
    refused("an array of type key<fry>", document, lambda key, x: (
        jax.random.split(key)[0], (x * jax.random.normal(key)).sum()), (jax.random.key(1), arguments[1]))
    module = next((MODELS / "mlp_tiny").glob("model.hlo.pb*"))
    plan, file = folder / "plan.json", folder / "jax.json"
    succeed("search", module, "--for", "jax", *TWO_AXES, "-o", plan, "--quiet")
    succeed("export", plan, module, "--format", "jax", "-o", file)
    model, state, data = pipelines.arguments_of("mlp_tiny")
    refused("expected one axis of several devices", json.loads(file.read_text()), model, (*state, *data(0)))


def check_permutes():
    """Permutes of the partitioner are found, those of ppermute are not."""
    text = """
  %own = f32[2]{0} collective-permute(%p), source_target_pairs={{0,1}}, metadata={op_name="jit(f)/while/body/ppermute"}
  ROOT %bad = f32[2]{0} collective-permute(%own), source_target_pairs={{0,1}}, metadata={op_name="jit(f)/cond/sub"}
  %worse = (f32[2]{0}, f32[2]{0}) collective-permute-start(%own), source_target_pairs={{0,1}}
"""
    assert other_permutes(text) == ["bad", "worse"], other_permutes(text)


def run_process(rank, port, file):
    """One of two processes with four devices each, which have two of the four stages. Prints the losses."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
    step, state, data = pipelines.arguments_of("mlp_tiny")
    document = json.loads(pathlib.Path(file).read_text())
    run = automap_jax.run(document, step, (*state, *data(0)), donate=True, form="one_program")
    losses = []
    for number in range(3):
        *results, loss = run(*state, *data(number))
        state = reference.successors(state, results)
        losses.append(float(loss))
    print(json.dumps(losses), flush=True)


def check_processes(folder):
    """Both processes have the losses of one device."""
    document, _ = pipelines.document_of("mlp_tiny", pipelines.MORE["gpipe"], folder)
    file = folder / "jax.json"
    file.write_text(json.dumps(document))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, __file__, "process", str(rank), str(port), file], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    wanted = json.loads((MODELS / "mlp_tiny" / "losses.json").read_text())["losses"][:3]
    for rank, (text, errors) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, errors[-2000:]
        losses = json.loads(text.splitlines()[-1])
        assert np.allclose(losses, wanted, rtol=pipelines.TOLERANCE), (losses, wanted)
    print("mlp_tiny, gpipe on two processes: losses of one device", flush=True)


def main():
    if sys.argv[1:2] == ["process"]:
        return run_process(*sys.argv[2:])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_permutes()
        check_refusals(folder)
        check_processes(folder)
        for model, plans in CASES.items():
            for what, options in plans.items():
                print(check(model, what, options, folder), flush=True)


if __name__ == "__main__":
    main()
