# labels: cpu e2e
# timeout: 300
# cost: 10
"""Validations during a training: their values are those of a separate run of the module, and the losses stay the same.

mlp learns the digits under plans for one device, a mesh, ZeRO and a pipeline, in one process and under mpirun;
mlp_evaluate counts the right answers on held-out digits after some steps. gpt2_tiny and two_swapped are their own
validation, over several batches. Other cases: a resumed training, other first words of the paths, an interrupt, and bad
input with its exit code.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_validation.py`.
"""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "launch"))
import mpi_launch

AUTOMAP = os.path.abspath(os.environ.get("AUTOMAP", "build/automap"))
MODELS = SOURCE / "datasets" / "models"
TEST = SOURCE / "datasets" / "digits" / "test.npz"
MLP, GRADER = MODELS / "mlp", MODELS / "mlp_evaluate" / "model.hlo.pb"
GRADE = ["--eval", GRADER, "--eval-data", TEST]
STEPS = 24
PLANS = {
    "mesh": ["--cluster", "nominal:4", "--mesh", "data=2,model=2"],
    "zero3": ["--cluster", "nominal:2", "--baseline", "zero3"],
    "pipeline": ["--cluster", "nominal:2", "--space", "pipeline", "--baseline", "even_pipeline", "--micro-batches",
                 "2"],
}


def automap(*words, launch=None):
    return subprocess.run([*(launch or [AUTOMAP]), *map(str, words)], capture_output=True, text=True, timeout=120,
                          env=mpi_launch.environment() if launch else None)


def lines(result):
    assert result.returncode == 0, f"exit code {result.returncode}: {result.stderr}"
    return [line for line in map(json.loads, result.stdout.splitlines()) if "step" in line]


def train(plan, *options, model=MLP, steps=STEPS, **more):
    return lines(automap("run", model / "model.hlo.pb", "--plan", plan, "--state", model / "state.npz", "--data",
                         model / "data.npz", "--steps", steps, "--json", "--quiet", *options, **more))


def losses(steps):
    return [step["loss"] for step in steps]


def validations(steps):
    """Returns the validations by step, without their seconds."""
    return {step["step"]: {name: value for name, value in step["eval"].items() if name != "seconds"}
            for step in steps if "eval" in step}


def right_answers(state):
    """Returns the values of a separate run of the module."""
    graded = lines(automap("run", GRADER, "--inference", "--plan", "none", "--state", state, "--data", TEST,
                           "--watch", "output[0]",
                           "--json"))
    return {"output[0]": int(graded[0]["output[0]"]), "batches": 1}


def check_plan(at, name, plan):
    """Returns the validations after every five steps."""
    plain = train(plan, "--save", at / "last.safetensors")
    early = at / "early.safetensors"
    train(plan, "--save", early, steps=10)
    graded = train(plan, *GRADE, "--eval-every", 5)
    assert losses(graded) == losses(plain), f"{name}: a validation changes the losses"
    found = validations(graded)
    assert sorted(found) == [4, 9, 14, 19, STEPS - 1], f"{name}: validations at {sorted(found)}"
    assert found[9] == right_answers(early), f"{name}: {found[9]} after 10 steps"
    assert found[STEPS - 1] == right_answers(at / "last.safetensors"), f"{name}: {found} at the end"
    assert found[4] != found[STEPS - 1], f"{name}: the validations do not follow the training"
    only_last = validations(train(plan, *GRADE))
    assert only_last == {STEPS - 1: found[STEPS - 1]}, f"{name}: without --eval-every {only_last}"
    return found


def check_processes(plan, want):
    mpis = mpi_launch.found()
    for mpi in mpis[:1]:
        steps = train(plan, *GRADE, "--eval-every", 5, launch=mpi.command(2, mpi.program))
        assert validations(steps) == want, f"two processes of {mpi.name}: {validations(steps)}, not {want}"
    return len(mpis[:1])


def check_outputs(at):
    """Text, log and events have the values of the stream."""
    text = automap("run", MLP / "model.hlo.pb", "--plan", "none", "--state", MLP / "state.npz", "--data",
                   MLP / "data.npz", "--steps", 4, *GRADE, "--eval-every", 2, "--log", at / "log.jsonl",
                   "--tensorboard", at / "events")
    assert text.returncode == 0, text.stderr
    logged = validations(map(json.loads, (at / "log.jsonl").read_text().splitlines()))
    assert sorted(logged) == [1, 3], logged
    events = b"".join(path.read_bytes() for path in (at / "events").iterdir())
    shown = [line for line in text.stdout.splitlines() if line.startswith("step") and " eval " in line]
    assert len(shown) == 2, text.stdout
    for line, step in zip(shown, sorted(logged)):
        right = logged[step]["output[0]"]
        assert line.endswith(f"   eval output[0] {right}"), line
        assert b"eval/output[0]\x15" + struct.pack("<f", right) in events, f"no event with {right}"


def check_batches(at, name, held_out):
    """The module of the training as its validation: the mean of the losses of four batches, and no update is kept."""
    model, single = MODELS / name, []
    np.savez(at / "four.npz", **held_out)
    graded = train("none", "--save", at / "own.safetensors", "--eval", model / "model.hlo.pb", "--eval-data",
                   at / "four.npz", "--eval-every", 2, model=model, steps=4)
    assert losses(graded) == losses(train("none", model=model, steps=4)), f"a validation changes the losses of {name}"
    for batch in range(4):
        np.savez(at / "one.npz", **{path: array[batch] for path, array in held_out.items()})
        single += losses(lines(automap("run", model / "model.hlo.pb", "--plan", "none", "--state",
                                       at / "own.safetensors", "--data", at / "one.npz", "--steps", 1, "--json")))
    found = validations(graded)[3]
    assert found["batches"] == 4 and abs(found["loss"] - sum(single) / 4) < 1e-12, f"{name}: {found}, not {single}"
    assert set(found) == {"loss", "batches"}, f"{name}: outputs that are updates: {found}"


def check_resumed(at, want):
    folder, log = at / "checkpoints", at / "resumed.jsonl"
    options = [*GRADE, "--eval-every", 5, "--checkpoint", folder, "--log", log]
    train("none", *options, steps=12)
    train("none", *options, "--resume")
    found = validations(map(json.loads, log.read_text().splitlines()))
    assert found.pop(11) and found == want, f"a resumed training: {found}, not {want}"


def renamed_grader(at, old, new):
    """mlp_evaluate with other paths; the options of a validation with it."""
    text, roles = at / "renamed.hlo.txt", at / "renamed.roles.json"
    assert automap("convert", GRADER, text).returncode == 0
    text.write_text(text.read_text().replace("\\'", "'").replace(old, new))
    roles.write_text((GRADER.parent / "model.roles.json").read_text().replace(old, new))
    return ["--eval", text, "--eval-roles", roles, "--eval-data", TEST]


def check_first_words(at, want):
    """Paths that differ in their first words; unknown ones are listed."""
    for old, new in [("state['params']", "params"), ("state['params']", "model.state['params']"),
                     ("state['", "model['")]:
        found = validations(train("none", *renamed_grader(at, old, new)))
        assert found == {STEPS - 1: want}, f"{new}: {found}"
    result = automap("run", MLP / "model.hlo.pb", "--plan", "none", "--state", MLP / "state.npz", "--data",
                     MLP / "data.npz", *renamed_grader(at, "kernel", "matrix"))
    assert result.returncode == 3 and result.stderr.count("matrix") == 3, f"{result.returncode}: {result.stderr}"
    assert "'state['params'][0]['matrix']' (constant, f32[64,256])" in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


def check_mistakes(at):
    np.savez(at / "narrow.npz", x=np.zeros((384, 63), np.float32), y=np.zeros(384, np.int32))
    np.savez(at / "half.npz", x=np.zeros((384, 64), np.float32))
    cases = [
        (["--eval-every", 2], 2, "--eval-every: no module to validate with (expected --eval MODEL)"),
        (["--eval-data", TEST], 2, "--eval-data: no module to validate with"),
        (["--eval-roles", TEST], 2, "--eval-roles: no module to validate with"),
        (["--eval", GRADER], 2, "--eval: no held-out data (expected --eval-data FILE)"),
        ([*GRADE, "--eval-every", 0], 2, "--eval-every 0: expected an integer of at least 1"),
        (["--eval", at / "none.pb", "--eval-data", TEST], 3, "none.pb: cannot be opened"),
        (["--eval", TEST, "--eval-data", TEST], 3, "test.npz: "),
        (["--eval", GRADER, "--eval-data", at / "none.npz"], 3, "none.npz: validation: cannot be opened"),
        (["--eval", GRADER, "--eval-data", at / "narrow.npz"], 3, "array 'x' is f32[384,63], expected f32[384,64]"),
        (["--eval", GRADER, "--eval-data", at / "half.npz"], 3, "no value for 'y' (data, s32[384])"),
        ([*GRADE, "--eval-data", at / "half.npz"], 3, "half.npz: validation: feeds 'x', and so does"),
        (["--eval", MODELS / "mlp_tiny" / "model.hlo.pb", "--eval-data", TEST], 3,
         "is f32[32], expected f32[256] as 'state['params'][0]['bias']' of the training"),
        (["--eval", MODELS / "gpt2_tiny" / "model.hlo.pb", "--eval-data", TEST], 3, " more: expected the path"),
    ]
    for options, code, words in cases:
        result = automap("run", MLP / "model.hlo.pb", "--plan", "none", "--state", MLP / "state.npz", "--data",
                         MLP / "data.npz", "--save", at / "unsaved.npz", *options)
        title = " ".join(map(str, options))
        assert result.returncode == code, f"{title}: exit code {result.returncode}, expected {code}: {result.stderr}"
        assert words in result.stderr and result.stderr.count("\n") == 1, f"{title}: {result.stderr}"
        assert not (at / "unsaved.npz").exists(), f"{title}: the state was written"


def check_interrupt(at):
    """An interrupt ends a long validation, too; the state is saved."""
    rows = 384 * 5000
    with open(at / "x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 64)})
        file.truncate(file.tell() + rows * 64 * 4)
    np.save(at / "y.npy", np.zeros(rows, np.int32))
    words = ["run", MLP / "model.hlo.pb", "--plan", "none", "--state", MLP / "state.npz", "--data", MLP / "data.npz",
             "--steps", 4, "--save", at / "saved.npz", "--eval", GRADER, "--eval-data", f"x={at / 'x.npy'}",
             "--eval-data", f"y={at / 'y.npy'}", "--eval-every", 2]
    process = subprocess.Popen([AUTOMAP, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("step      0")
    time.sleep(0.3)  # by then it validates
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and (at / "saved.npz").exists(), f"{process.returncode}: {errors}"
    assert "eval" not in output, output


def main():
    with tempfile.TemporaryDirectory() as directory:
        at = pathlib.Path(directory)
        want = check_plan(at, "one device", "none")
        for name, options in PLANS.items():
            plan = at / f"{name}.json"
            result = automap("search", MLP / "model.hlo.pb", *options, "-o", plan, "--quiet")
            assert result.returncode == 0, f"{name}: {result.stderr}"
            check_plan(at, name, plan)
        processes = check_processes(at / "mesh.json", validations(train(at / "mesh.json", *GRADE, "--eval-every", 5)))
        check_outputs(at)
        rng = np.random.default_rng(5)
        for name in ["gpt2_tiny", "two_swapped"]:
            data = np.load(MODELS / name / "data.npz")
            check_batches(at, name, {path: rng.permuted(data[path][:4], axis=1) for path in data})
        check_resumed(at, want)
        check_first_words(at, want[STEPS - 1])
        check_mistakes(at)
        check_interrupt(at)
    print(f"validations under {len(PLANS) + 1} plans and {processes} MPI passed")


if __name__ == "__main__":
    main()
