"""Stages of bench/gpu.sh that check results: test programs, training, several ranks by NCCL."""

import glob
import os
import pathlib
import shutil

import gpu_train
from gpu_visit import NO_TIME

TEST_SECONDS = 120
WITHOUT_STAND_INS = "stand-in libraries need c++, and a pack that has them"
TRAINING_SECONDS = 90
LARGE_RESERVE = 30  # seconds for the operator that runs at the end
LONG_TESTS = {"test_cuda_opcodes": 400}
NCCL_MODELS = ["mlp_tiny", "gpt2_tiny", "moe_tiny"]
NCCL_RANKS = (2, 4)


def test_programs():
    return sorted(glob.glob("bin/test_*"))


def has_stand_ins():
    """Returns whether the pack has stand-in libraries, and this machine the compiler that they need."""
    return bool(glob.glob("stand_in/libcuda.so*")) and shutil.which("c++") is not None


def unit_tests(visit):
    """Every test program of the pack, each with a time limit of its own; those that take long first."""
    if visit.is_dry_run and not has_stand_ins():
        visit.add("all", "not run", WITHOUT_STAND_INS)
        return

    def test(program):
        name = pathlib.Path(program).name
        needs_card = name.startswith("test_cuda_")  # the others are about the real libraries alone
        limit = LONG_TESTS.get(name, TEST_SECONDS)
        visit.add_test(name, visit.run([program], limit, visit.environment(stand_ins=needs_card)))

    visit.each(test, sorted(test_programs(), key=lambda program: pathlib.Path(program).name not in LONG_TESTS))


def lacks_large(visit):
    """Why large() cannot run, or None."""
    return "needs a card: on stand-ins the sizes are small, in the stage tests" if visit.is_dry_run else None


def large(visit):
    """Operators on more than 2^31 elements, those that find time."""
    if lacks_large(visit):
        visit.add("all", "not run", lacks_large(visit))
        return
    visit.add_lines(["bin/test_cuda_opcodes", "--family", "large", "--seconds", f"{visit.left() - LARGE_RESERVE:.0f}"],
                    visit.left())


def train(visit, rows, device, each, environment=None, options=(), note=""):
    """Adds a row for each training run of gpu_train.cases()."""

    def report(name, passed, detail, done):
        result = "passed" if passed else NO_TIME if done.is_out_of_time else "FAILED"
        visit.add(name + note, result, detail)

    gpu_train.train(lambda command: visit.run([*command, *options], TRAINING_SECONDS, environment), rows, device, each,
                    report)


def training(visit):
    """Losses of every small model beside the CPU's and JAX's; one rank of all models first."""
    if visit.is_dry_run and has_stand_ins():
        train(visit, gpu_train.cases(["mlp_tiny"]), "cuda", visit.each, note=", stand-ins")
    train(visit, gpu_train.cases(gpu_train.models()), visit.device, visit.each)


def lacks_nccl(visit):
    """Why nccl() cannot run, or None."""
    if not os.path.exists("nccl/libnccl.so.2"):
        return "the pack has no NCCL of its own (--pack DIR --nccl FILE)"
    return WITHOUT_STAND_INS if visit.is_dry_run and not has_stand_ins() else None


def nccl(visit):
    """Collectives and training with several NCCL ranks on one card, by the pack's own NCCL."""
    if lacks_nccl(visit):
        visit.add("all", "not run", lacks_nccl(visit))
        return
    first = [] if visit.is_dry_run else [os.path.abspath("nccl")]
    environment = visit.environment(first=first, NCCL_MULTI_RANK_GPU_ENABLE="1", NCCL_ALGO="Ring",
                                    NCCL_PROTO="Simple")
    visit.add_test("test_cuda_nccl", visit.run(["bin/test_cuda_nccl"], TEST_SECONDS, environment))
    rows = [(model, f"{ranks} ranks, NCCL", gpu_train.plan_name(ranks, "data parallel"), "f32")
            for model in NCCL_MODELS for ranks in NCCL_RANKS]

    def in_turn(work, items):  # a run has a kernel of each of its ranks on the card at once
        for item in items:
            work(item)

    train(visit, rows, "cuda", in_turn, environment, ["--comm", "nccl"])
