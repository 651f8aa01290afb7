# labels: mpi e2e
# timeout: 1800
# cost: 15
"""Processes that mpirun starts train like threads, bit for bit, and like one device.

Plans of every kind - data parallel, tensor parallel, ZeRO, pipelines, micro-batches, random ones - on 1 to 8
ranks, in as many processes or with two ranks in each, by Open MPI and by MPICH: the losses are those of
the same plan with all ranks in one process, exactly, and those of one device within the tolerance of sums in
another order (exactly, on the modules made for that). Without AUTOMAP_FULL a sample is run.

Run as `AUTOMAP=build/automap AUTOMAP_BUILD=build python3 tests/e2e/test_mpi_training.py [MODEL ...]`.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "launch"))
import mpi_launch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, FULL

MODELS = SOURCE / "datasets" / "models"
STEPS = 20 if FULL else 6
INFEASIBLE = 4

# Ranks, mesh, how the plan is found.
PLANS = [
    (2, None, ["--baseline", "data_parallel"]),
    (4, "data=2,model=2", ["--baseline", "megatron"]),
    (4, None, ["--baseline", "data_parallel", "--micro-batches", "2"]),
    (3, None, ["--baseline", "zero1"]),
    (4, None, ["--baseline", "zero3"]),
    (4, "data=2", ["--space", "pipeline", "--baseline", "even_pipeline", "--micro-batches", "2"]),
    (8, "data=2,model=4", ["--searcher", "random", "--seed", "1"]),
    (8, "data=2", ["--space", "pipeline", "--baseline", "even_pipeline", "--micro-batches", "4"]),
    (5, None, ["--searcher", "random", "--seed", "2"]),
    (6, "data=3,model=2", ["--searcher", "random", "--seed", "3"]),
    (7, None, ["--baseline", "zero2"]),
    (2, "data=1", ["--space", "pipeline", "--baseline", "even_pipeline"]),
    (4, "data=2", ["--space", "pipeline", "--baseline", "even_pipeline", "--micro-batches", "4", "--schedule",
                   "zb_h1"]),
    (4, "data=2", ["--space", "pipeline", "--baseline", "even_pipeline", "--micro-batches", "4", "--schedule",
                   "interleaved_1f1b"]),
]
# Model: which of the plans in the short form.
SAMPLE = {"exact_linear": [6, 8], "exact_gather": [4], "mlp_tiny": [3, 7], "gpt2_tiny": [1, 5, 12, 13],
          "lstm_tiny": [2]}
MODELS_IN_FULL = ["exact_linear", "exact_gather", "mlp_tiny", "gpt2_tiny", "bert_tiny", "t5_tiny", "vgg_tiny",
                  "lstm_tiny",
                  "moe_tiny", "llama_tiny", "unet_tiny", "adamw_tiny"]


def tolerance(model):
    """Relative error of a loss, for sums in another order; it holds for twenty steps, later rounding errors grow."""
    return 0 if model.startswith("exact_") else 1e-2 if "llama" in model else 1e-5


def losses(command, model, plan):
    at = MODELS / model
    run = subprocess.run([*map(str, command), "run", str(at / "model.hlo.pb"), "--plan", str(plan), "--state",
                          str(at / "state.npz"), "--data", str(at / "data.npz"), "--steps", str(STEPS), "--json",
                          "--quiet",
                          "--threads", "1"], capture_output=True, text=True, env=mpi_launch.environment(), timeout=300)
    assert run.returncode == 0, f"{' '.join(map(str, command))}: {run.returncode}: {run.stderr[-600:]}"
    values = [step["loss"] for step in map(json.loads, run.stdout.splitlines()) if "loss" in step]
    assert len(values) == STEPS, f"{' '.join(map(str, command))}: {len(values)} losses"
    return values


def check_plan(mpis, model, number, one_device, directory):
    """How many runs; 0: there is no such plan."""
    ranks, mesh, how = PLANS[number]
    plan = pathlib.Path(directory) / "plan.json"
    search = subprocess.run([AUTOMAP, "search", str(MODELS / model / "model.hlo.pb"), "--cluster", f"nominal:{ranks}",
                             *how,
                             *(["--mesh", mesh] if mesh else []), "-o", str(plan), "--quiet"], capture_output=True,
                            text=True)
    if search.returncode == INFEASIBLE:
        return 0
    assert search.returncode == 0, f"{model}, {how}: {search.stderr}"
    threads = losses([AUTOMAP], model, plan)
    for step, (have, want) in enumerate(zip(threads, one_device)):
        assert abs(have - want) <= tolerance(model) * abs(want), (
            f"{model}, {how}: loss {step} is {have!r}, not {want!r}")
    count = 0
    turn = number + len(model) if FULL else number // 2  # in full each plan meets each MPI on some model
    for mpi in mpis if number % 2 and not FULL else mpis[turn % len(mpis):][:1]:
        for processes in sorted({ranks, ranks // 2} if ranks % 2 == 0 and (FULL or number == 6) else {ranks}):
            have = losses(mpi.command(processes, mpi.program), model, plan)
            assert have == threads, (f"{model}, {how}, {processes} processes of {mpi.name}: {have[:3]}, not "
                                     f"{threads[:3]}")
            count += 1
    return count


def main():
    mpis = mpi_launch.found()
    if not mpis:
        print("skipped: neither Open MPI nor MPICH was found by CMake")
        return 77
    passed = failures = 0
    for model in sys.argv[1:] or (MODELS_IN_FULL if FULL else SAMPLE):
        with tempfile.TemporaryDirectory() as directory:
            try:
                one_device = losses([AUTOMAP], model, "none")
                runs = [check_plan(mpis, model, number, one_device, directory)
                        for number in (range(len(PLANS)) if FULL else SAMPLE.get(model, range(len(PLANS))))]
                assert sum(runs) > 0, f"{model}: there is no plan"
                passed += sum(runs)
            except (AssertionError, subprocess.TimeoutExpired) as failure:
                failures += 1
                print(f"FAILED {failure}")
    print(f"{passed} runs under mpirun of {', '.join(mpi.name for mpi in mpis)} passed, {failures} models failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
