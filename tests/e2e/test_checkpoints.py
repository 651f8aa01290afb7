# labels: cpu e2e
# timeout: 600
# cost: 15
"""A run that is killed goes on as if nothing had happened.

The whole process, its ranks threads, is killed (signal 9) after each of 20 steps and at random moments, while
it saves after every step; `--resume` then gives the losses and the final state of the run that was never
interrupted, bit for bit. Plans that compute in integers resume each other, on 1 to 4 ranks and as a pipeline,
bit for bit; others resume themselves so. An interrupt saves the last step; a full disk leaves the checkpoint before,
with an error; the export is the saved state, and damaged checkpoints are refused.

AUTOMAP_FULL=1 kills at more moments and under more plans.
Run as `AUTOMAP=build/automap python3 tests/e2e/test_checkpoints.py`.
"""

import fcntl
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, FULL, MODELS

STEPS = 20
MOMENTS = 100 if FULL else 12
ZERO3 = ["--cluster", "nominal:4", "--baseline", "zero3"]
PIPELINE = ["--cluster", "nominal:4", "--space", "pipeline", "--baseline", "even_pipeline", "--micro-batches", "2"]
MESH = ["--cluster", "nominal:4", "--mesh", "data=2,model=2", "--evaluations", "4"]
# Sums of floats, random keys, loops, bf16: under one plan each is the same again.
CONTINUED = [("gpt2_tiny", ZERO3), ("dropout_tiny", PIPELINE)]
if FULL:
    CONTINUED = [(model, plan) for plan in (ZERO3, PIPELINE, MESH) for model in
                 ("gpt2_tiny", "lstm_tiny", "dropout_tiny", "gpt2_bf16_tiny", "adafactor_tiny", "llama_tiny")]
ONE_PAGE = 4096


class Runner:
    """Runs of one model under one plan, in a folder of their own."""

    def __init__(self, name, plan, directory, draws=False):
        at = MODELS / name
        self.name, self.plan, self.directory = name, plan, pathlib.Path(directory)
        self.folder = self.directory / "checkpoints"
        source = ["--state", "random"] if draws else ["--state", at / "state.npz", "--data", at / "data.npz"]
        self.command = [AUTOMAP, "run", at / "model.hlo.pb", "--plan", plan, *source, "--json", "--threads", "1"]

    def options(self, *more):
        return [*self.command, "--checkpoint", self.folder, *more]

    def run(self, *more, plan=None, **keywords):
        command = [str(plan) if plan and word is self.plan else str(word) for word in self.options(*more)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, **keywords)

    def uninterrupted(self, saved):
        done = subprocess.run([*self.command, "--steps", str(STEPS), "--save", saved], capture_output=True, text=True,
                              timeout=120, check=True)
        return losses(done.stdout)

    def clear(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def losses(lines):
    """The loss by step; a line that was cut off is left out."""
    found = {}
    for line in lines.splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "step" in record:
            found[record["step"]] = record["loss"]
    return found


def check(runner, found, want, what):
    for step, loss in found.items():
        assert loss == want[step], f"{runner.name} {what}: step {step} has loss {loss!r}, expected {want[step]!r}"


def check_resumed(runner, want, saved, what, plan=None):
    """Goes on to the end with the losses and the final state of the uninterrupted run."""
    again = runner.directory / "again.safetensors"
    done = runner.run("--steps", STEPS, "--resume", "--save", again, plan=plan)
    assert done.returncode == 0, f"{runner.name} {what}: {done.stderr}"
    found = losses(done.stdout)
    check(runner, found, want, f"resumed, {what}")
    steps = sorted(found)
    assert steps == list(range(STEPS - len(steps), STEPS)), f"{runner.name} {what}: steps {steps}"
    assert again.read_bytes() == saved.read_bytes(), f"{runner.name} {what}: another final state"


def kill_after(runner, step, want):
    """Kills the run when it has printed `step`. It cannot run ahead: each line, which has a whole weight in it,
    is longer than the pipe holds."""
    process = subprocess.Popen([str(word) for word in runner.options("--steps", STEPS, "--every", 1, "--watch",
                                                                     "output[1]")], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)
    fcntl.fcntl(process.stdout, 1031, ONE_PAGE)  # F_SETPIPE_SZ
    text = b""
    while text.count(b"\n") <= step:
        got = os.read(process.stdout.fileno(), ONE_PAGE)
        if not got:
            break
        text += got
    time.sleep(random.random() * 0.003)
    process.kill()
    process.wait()
    process.stdout.close()
    check(runner, losses(text.decode()), want, f"killed after step {step}")
    return process.returncode


def kill_at(runner, seconds):
    process = subprocess.Popen([str(word) for word in runner.options("--steps", STEPS, "--every", 1)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    process.kill()
    process.wait()
    return process.returncode


def check_kills(runner):
    saved = runner.directory / "saved.safetensors"
    want = runner.uninterrupted(saved)
    assert sorted(want) == list(range(STEPS))
    killed = 0
    for step in range(STEPS):
        runner.clear()
        killed += kill_after(runner, step, want) == -signal.SIGKILL
        check_resumed(runner, want, saved, f"killed after step {step}")
    assert killed >= STEPS - 1, f"{runner.name}: only {killed} of {STEPS} runs were there to be killed"
    runner.clear()
    start = time.monotonic()
    runner.run("--steps", STEPS, "--every", 1)
    span = time.monotonic() - start
    for moment in range(MOMENTS):
        runner.clear()
        kill_at(runner, span * random.random())
        check_resumed(runner, want, saved, f"killed at moment {moment}")
    return STEPS + MOMENTS


def check_chain(runner):
    """Killed again and again, in one folder, until it is through."""
    saved = runner.directory / "saved.safetensors"
    want = runner.uninterrupted(saved)
    runner.clear()
    for _ in range(6):
        process = subprocess.Popen([str(word) for word in runner.options("--steps", STEPS, "--every", 1, "--resume")],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.01 + random.random() * 0.06)
        process.kill()
        process.wait()
    check_resumed(runner, want, saved, "killed six times")


def check_plans(directory, plans):
    """Integers: the losses are the same under every plan, so resuming under another must give them too."""
    saved = pathlib.Path(directory) / "saved.safetensors"
    want = Runner("exact_linear", "none", directory).uninterrupted(saved)
    count = 0
    for start in plans:
        runner = Runner("exact_linear", start, directory)
        for end in plans:
            runner.clear()
            first = runner.run("--steps", 7, "--every", 3)
            assert first.returncode == 0, first.stderr
            check(runner, losses(first.stdout), want, f"under {start}")
            check_resumed(runner, want, saved, f"{start} resumed under {end}", plan=end)
            count += 1
    return count


def check_continued(runner):
    """Stopped in the middle and resumed under the same plan, its data shuffled anew in every epoch."""
    saved = runner.directory / "saved.safetensors"
    runner.command.append("--shuffle")
    want = runner.uninterrupted(saved)
    runner.clear()
    first = runner.run("--steps", 7, "--every", 3)
    assert first.returncode == 0, first.stderr
    check(runner, losses(first.stdout), want, "shuffled")
    check_resumed(runner, want, saved, f"continued under {runner.plan}")


def check_interrupt(runner):
    saved = runner.directory / "saved.safetensors"
    want = runner.uninterrupted(saved)
    runner.clear()
    process = subprocess.Popen([str(word) for word in runner.options("--steps", 10**9)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, process.returncode
    last = max(losses(out), default=0)
    assert (runner.folder / f"step-{last + 1:08d}" / "manifest.json").exists(), f"no checkpoint after step {last}"
    done = runner.run("--steps", last + 3, "--resume")
    assert sorted(losses(done.stdout)) == [last + 1, last + 2], done.stderr
    assert want


def check_export(runner):
    """One file of whole arrays, the same bytes as `--save` writes; damaged files are refused by name."""
    saved, exported = runner.directory / "saved.safetensors", runner.directory / "exported.safetensors"
    want = runner.uninterrupted(saved)
    runner.clear()
    runner.run("--steps", STEPS)
    convert = lambda path: subprocess.run([AUTOMAP, "convert", str(path), str(exported)], capture_output=True,
                                          text=True)
    for path in (runner.folder, runner.folder / f"step-{STEPS:08d}"):
        exported.unlink(missing_ok=True)
        done = convert(path)
        assert done.returncode == 0 and exported.read_bytes() == saved.read_bytes(), f"{path}: {done.stderr}"
    file = runner.folder / f"step-{STEPS:08d}" / "rank-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 16
    file.write_bytes(data)
    for done in (convert(runner.folder), convert(file.parent), runner.run("--steps", 30, "--resume")):
        assert done.returncode == 3 and str(file) in done.stderr and "damaged" in done.stderr, done.stderr
    assert want


def check_one_run_a_folder(runner):
    """A folder that a run writes to, or that holds another's checkpoints, is refused; one that was killed lets it
    go."""
    runner.clear()
    process = subprocess.Popen([str(word) for word in runner.options("--steps", 10**9)], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    process.stdout.readline()
    second = runner.run("--steps", 2, "--resume")
    process.kill()
    process.wait()
    process.stdout.close()
    assert second.returncode == 2 and "another run" in second.stderr, second.stderr
    assert runner.run("--steps", 2).returncode == 0
    third = runner.run("--steps", 4)
    assert third.returncode == 2 and "--resume" in third.stderr, third.stderr


def limit_files():
    """Writing beyond 6,000 bytes fails, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


def check_no_room(runner):
    saved = runner.directory / "saved.safetensors"
    want = runner.uninterrupted(saved)
    runner.clear()
    runner.run("--steps", 4)
    full = runner.run("--steps", 12, "--every", 4, "--resume", preexec_fn=limit_files)
    assert full.returncode == 5, f"{full.returncode}: {full.stderr}"
    assert sorted(losses(full.stdout)) == list(range(4, 12)), f"the run did not go on: {full.stdout} {full.stderr}"
    assert "the checkpoint of step 8 could not be written" in full.stderr, full.stderr
    last = full.stderr.splitlines()[-1]
    assert "rank-00000.safetensors" in last and "File too large" in last, last
    assert [path.name for path in runner.folder.iterdir()] == ["step-00000004"], "something is left behind"
    check_resumed(runner, want, saved, "after a full disk")


def search(model, plan, *options):
    subprocess.run([AUTOMAP, "search", str(MODELS / model / "model.hlo.pb"), *options, "-o", str(plan), "--quiet"],
                   check=True, capture_output=True)
    return plan


def main():
    seed = int(os.environ.get("AUTOMAP_SEED", time.time()))
    random.seed(seed)
    print(f"AUTOMAP_SEED={seed}")
    with tempfile.TemporaryDirectory() as directory:
        at = pathlib.Path(directory)
        two = search("mlp_tiny", at / "two.json", "--cluster", "nominal:2", "--baseline", "data_parallel")
        kills = check_kills(Runner("mlp_tiny", two, directory))
        if FULL:
            kills += check_kills(Runner("mlp_tiny", "none", directory))
            four = search("gpt2_tiny", at / "four.json", "--cluster", "nominal:4", "--evaluations", "8")
            kills += check_kills(Runner("gpt2_tiny", four, directory))
        check_chain(Runner("mlp_tiny", two, directory))
        check_interrupt(Runner("mlp_tiny", two, directory))
        check_export(Runner("mlp_tiny", search("mlp_tiny", at / "zero3.json", *ZERO3), directory))
        check_one_run_a_folder(Runner("mlp_tiny", two, directory))
        for name, options in CONTINUED:
            check_continued(Runner(name, search(name, at / "plan.json", *options), directory))
        check_no_room(Runner("mlp_tiny", "none", directory, draws=True))
        plans = ["none",
                 search("exact_linear", at / "mesh.json", "--cluster", "nominal:4", "--mesh", "data=2,model=2"),
                 search("exact_linear", at / "three.json", "--cluster", "nominal:3", "--baseline", "data_parallel"),
                 search("exact_linear", at / "pipeline.json", "--cluster", "nominal:2", "--space", "pipeline",
                        "--baseline",
                        "even_pipeline", "--micro-batches", "2")]
        if FULL:
            plans.append(search("exact_linear", at / "zero.json", "--cluster", "nominal:4", "--baseline", "zero3"))
        pairs = check_plans(directory, plans)
    print(f"killed {kills} times; {len(CONTINUED)} plans continued; {pairs} pairs of plans")
    return 0


if __name__ == "__main__":
    sys.exit(main())
