# labels: mpi e2e
# timeout: 3600
"""Processes that are killed: the others end and name them, and the run is resumed bit for bit.

Under mpirun of each MPI each process is killed (SIGKILL) at a step, and while a checkpoint is being written.
Every survivor must end by itself within 10 s with exit code 5 and a line that names the process; `--resume`
must then give exactly the losses of an undisturbed run. The same with all ranks in one process,
which is killed as a whole. AUTOMAP_FULL=1: each process at each of 20 steps; else a sample.

Run as `AUTOMAP=build/automap AUTOMAP_BUILD=build python3 tests/e2e/process_faults.py`.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "launch"))
import mpi_launch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, FULL

PROCESSES = 3
STEPS = 20
LIMIT = 10  # seconds for a survivor
# Collectives in every step; transfers between stages that work on different turns.
PLANS = [["--baseline", "zero3"], ["--space", "pipeline", "--baseline", "even_pipeline", "--micro-batches", "4"]]
ENDLESS = 10**9
AT = SOURCE / "datasets" / "models" / "mlp_tiny"


def arguments(plan, steps, *more):
    return ["run", AT / "model.hlo.pb", "--plan", plan, "--state", AT / "state.npz", "--data", AT / "data.npz",
            "--steps",
            steps, "--json", "--quiet", "--threads", 1, *more]


def losses_of(text):
    """Returns the loss by step from the output of a run, whose last line may be incomplete."""
    losses = {}
    for line in text.splitlines():
        try:
            step = json.loads(line)
        except json.JSONDecodeError:
            break
        if "loss" in step:
            losses[step["step"]] = step["loss"]
    return losses


class Job:
    """A run under mpirun, or of one process (`mpi` None), each process watched."""

    def __init__(self, mpi, plan, steps, *more):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        self.count = PROCESSES if mpi else 1
        words = [SOURCE / "tests" / "launch" / "watched.sh", self.folder, mpi.program if mpi else AUTOMAP,
                 *arguments(plan, steps, *more)]
        command = mpi.command(self.count, *words, survive=True) if mpi else list(map(str, words))
        self.process = subprocess.Popen(command, env=mpi_launch.environment(), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def text(self, name):
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def wait_for(self, what, condition):
        deadline = time.time() + 60
        while not condition():
            assert time.time() < deadline, f"{what} did not come: {self.text('err.0')[:300]}"
            assert self.process.poll() is None, f"ended before {what}: {self.text('err.0')[:300]}"
            time.sleep(0.001)

    def kill(self, process):
        os.kill(int(self.text(f"pid.{process}")), signal.SIGKILL)
        return time.time()

    def check_end(self, victim, killed):
        """Checks the exit codes and messages of the survivors."""
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            names = sorted(path.name for path in self.folder.iterdir())
            raise AssertionError(f"mpirun has not ended; {names}") from None
        for process in range(self.count):
            ended = self.text(f"exit.{process}").split()
            assert ended, f"process {process} was killed by mpirun"
            status, seconds, said = int(ended[0]), float(ended[1]) - killed, self.text(f"err.{process}")
            if process == victim:
                assert status == 128 + signal.SIGKILL, f"the victim ended with {status}"
                continue
            assert status == 5, f"process {process} ended with {status}: {said[:300]}"
            assert seconds < LIMIT, f"process {process} took {seconds:.1f} s"
            assert f"process {victim} (rank {victim})" in said, (
                f"process {process} does not name {victim}: {said[:300]}")


def check_kill(mpi, plan, victim, step):
    job = Job(mpi, plan, ENDLESS)
    job.wait_for(f"step {step}", lambda: job.text("out.0").count("\n") > step)
    job.check_end(victim, job.kill(victim))


def check_resume(mpi, plan, expected, victim, wait, directory):
    """Kills while checkpoints are written after every step, `wait` seconds after the first; then resumes."""
    folder = pathlib.Path(directory) / f"checkpoints_{mpi.name if mpi else 'threads'}_{victim}_{wait:.6f}"
    job = Job(mpi, plan, ENDLESS, "--checkpoint", folder, "--every", 1)
    job.wait_for("a checkpoint", lambda: any(folder.glob("step-????????")))
    time.sleep(wait)
    deadline = time.time() + 5
    while not any(folder.glob("*.part")) and time.time() < deadline:
        pass
    job.check_end(victim, job.kill(victim))
    before = losses_of(job.text("out.0"))
    saved = [int(path.name[5:]) for path in folder.glob("step-????????")]
    steps = max(saved) + STEPS
    words = arguments(plan, steps, "--checkpoint", folder, "--resume")
    command = mpi.command(PROCESSES, mpi.program, *words) if mpi else [AUTOMAP, *map(str, words)]
    run = subprocess.run(command, env=mpi_launch.environment(), capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, f"--resume ended with {run.returncode}: {run.stderr[:400]}"
    after = losses_of(run.stdout)
    assert sorted(after) == list(range(max(saved), steps)), f"resumed after {max(saved)}: steps {sorted(after)[:3]} ..."
    known = expected(steps)
    for step, loss in sorted((before | after).items()):
        if step < steps:
            assert loss == known[step], f"loss of step {step} is {loss!r}, undisturbed {known[step]!r}"


class Undisturbed:
    """The losses of an undisturbed run, all ranks in one process."""

    def __init__(self, plan):
        self.plan, self.losses = plan, {}

    def __call__(self, steps):
        if len(self.losses) < steps:
            run = subprocess.run([AUTOMAP, *map(str, arguments(self.plan, steps))], capture_output=True, text=True)
            assert run.returncode == 0, run.stderr
            self.losses = losses_of(run.stdout)
        return self.losses


def main():
    mpis = mpi_launch.found()
    if not mpis:
        print("skipped: neither Open MPI nor MPICH was found by CMake")
        return 77
    chance = random.Random(1)
    failures, done = [], 0
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TMPDIR"] = directory
        plans = []
        for number, how in enumerate(PLANS):
            plans.append(pathlib.Path(directory) / f"plan_{number}.json")
            subprocess.run([AUTOMAP, "search", str(AT / "model.hlo.pb"), "--cluster", f"nominal:{PROCESSES}", *how,
                            "-o",
                            str(plans[-1]), "--quiet"], check=True)
        undisturbed = [Undisturbed(plan) for plan in plans]
        kills = [(mpi, victim, step) for mpi in mpis for victim in range(PROCESSES) for step in range(STEPS)]
        saves = [(mpi, victim, chance.random() * 0.3) for mpi in [*mpis, None]
                 for victim in range(PROCESSES if mpi else 1)
                 for _ in range(10 if FULL else 1)]
        if not FULL:
            kills = [(mpi, victim, 8 * victim + k) for k, mpi in enumerate(mpis) for victim in range(PROCESSES)]
            saves = [saves[0], saves[len(saves) // 2], saves[-1]]
        cases = [(f"{mpi.name}: plan {(victim + step) % 2}, process {victim} killed at step {step}", check_kill,
                  (mpi, plans[(victim + step) % 2], victim, step)) for mpi, victim, step in kills]
        cases += [(f"{mpi.name if mpi else 'threads'}: plan {k % 2}, process {victim} killed while saving, after "
                   f"{wait:.3f} s",
                   check_resume, (mpi, plans[k % 2], undisturbed[k % 2], victim, wait, directory))
                  for k, (mpi, victim, wait) in enumerate(saves)]
        for name, check, words in cases:
            try:
                check(*words)
                done += 1
            except (AssertionError, subprocess.TimeoutExpired) as failure:
                failures.append(f"FAILED {name}: {failure}")
                print(failures[-1], flush=True)
    print(f"{done} faults passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
