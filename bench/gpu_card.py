"""The stages of bench/gpu.sh, in the folder where its pack was unpacked: tests, speed, profiles.

Stages run in order of importance. A stage may take the remaining seconds minus the expected ones of later stages that
can run. A program that does not end in time is shown as "no time", which is no failure; a note counts programs that
reached a limit of their own, as they may hang. A signal to end has the same effect as the end of the time. table.txt
and results.json have the results. Exit status 1 if a test failed, 2 if an option is wrong.

With --dry-run nothing needs a card: programs of the CUDA path run on the stand-in libraries, which play the card
on the host (their times mean nothing), the rest on the CPU.
"""

import argparse
import glob
import importlib.metadata
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Callable

import gpu_profile
import gpu_speed
import gpu_tests
from gpu_visit import Visit

SECONDS = 600  # of a visit, unpacking included
RESERVE = 20  # seconds of them at the end: for the last results and their way back


@dataclass(frozen=True)
class Stage:
    group: str
    name: str
    seconds: int  # expected on a card
    title: str
    run: Callable
    lacks: Callable = lambda visit: None  # why it cannot run here, or None


STAGES = [
    Stage("correctness", "tests", 150, "test programs", gpu_tests.unit_tests),
    Stage("correctness", "training", 200, "losses of 20 steps beside the CPU and JAX", gpu_tests.training),
    Stage("correctness", "nccl", 80, "NCCL ranks on one card", gpu_tests.nccl, gpu_tests.lacks_nccl),
    Stage("correctness", "large", 100, "operators above 2^31 elements", gpu_tests.large, gpu_tests.lacks_large),
    Stage("speed", "jax", 420, "step time beside jax.jit", gpu_speed.beside_jax),
    Stage("speed", "kernels", 45, "single kernels", gpu_speed.kernels),
    Stage("speed", "learning", 50, "updates of the DQN", gpu_speed.learning),
    Stage("speed", "agent", 45, "episodes of agent train", gpu_speed.agent),
    Stage("profile", "probe", 80, "cluster --probe", gpu_profile.probe),
    Stage("profile", "predicted", 60, "predicted beside measured step time", gpu_speed.predicted),
    Stage("profile", "kernel-times", 30, "times of the kernels of GPT-2", gpu_profile.kernel_times),
    Stage("profile", "blas-log", 15, "algorithms of cuBLASLt", gpu_profile.blas_log),
    Stage("profile", "systems", 40, "kernels in graphs, by nsys", gpu_profile.systems, gpu_profile.lacks_tool("nsys")),
    Stage("profile", "sanitizers", 300, "compute-sanitizer", gpu_profile.sanitizers,
          gpu_profile.lacks_tool("compute-sanitizer")),
]


def chosen(text):
    """The stages of a list of groups and names, in order of importance; a ValueError names an unknown word."""
    words = [word for word in text.split(",") if word]
    known = {stage.group for stage in STAGES} | {stage.name for stage in STAGES}
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        raise ValueError(f"--stages: no stage {unknown[0] if unknown else text!r} (expected "
                         f"{', '.join(sorted(known))})")
    return [stage for stage in STAGES if stage.group in words or stage.name in words]


def limit_of(stages, left):
    """Seconds for the first of the stages: its own, and more where the others leave some."""
    return max(0, min(left, max(stages[0].seconds, left - sum(stage.seconds for stage in stages[1:]))))


def output_of(visit, command):
    """The output of a program, or nothing where there is no such program."""
    try:
        done = visit.run(command, 20)
    except OSError:
        return ""
    return done.output.strip() if done.status == 0 else ""


def describe(visit):
    """Notes the card, the driver and the versions of all libraries. A card for one process at a time gets no two."""
    fields = ["name", "compute_cap", "memory.total", "driver_version", "compute_mode"]
    card = output_of(visit, ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"])
    cards = [dict(zip(fields, map(str.strip, line.split(",")))) for line in card.splitlines()]
    lines = [f"card        {line}" for line in (card or "unknown to nvidia-smi").splitlines()]
    if any("Exclusive" in row.get("compute_mode", "") for row in cards):
        visit.parallel = 1
    if visit.is_dry_run:
        cards, lines = [], ["card        none: a dry run, stand-in libraries and the CPU in its place"]
    automap = output_of(visit, ["bin/automap", "--version"]).splitlines()
    lines += [f"automap     {line}" for line in automap]
    packages = {}
    for name in ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    lines.append(f"JAX         {', '.join(f'{name} {version}' for name, version in packages.items()) or 'none'}")
    names = ("libcublasLt.so.", "libnvrtc.so.", "libcudnn.so.", "libnccl.so.")
    files = [path for folder in (os.environ.get("GPU_LIBRARY_PATH") or "").split(":") if folder
             for name in names for path in sorted(glob.glob(f"{folder}/{name}[0-9]*"))]
    lines += [f"library     {path}" for path in files]
    lines.append(f"sanitizer   {gpu_profile.tool('compute-sanitizer') or 'none'}")
    visit.head = lines
    visit.versions = {"cards": cards, "automap": automap, "python": sys.version.split()[0], "packages": packages,
                      "libraries": files}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="stand-ins and the CPU in place of a card")
    parser.add_argument("--stages", default="correctness,speed,profile", metavar="A,B",
                        help="groups or names of stages (default: all); list: print them and end")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of the whole visit (default {SECONDS})")
    parser.add_argument("--begin", type=float, default=time.time(), help="seconds since 1970 when the visit began")
    parser.add_argument("--logs", default="logs", help="folder of the results")
    options = parser.parse_args()
    if options.stages == "list":
        for stage in STAGES:
            print(f"{stage.group:12} {stage.name:13} {stage.seconds:4} s  {stage.title}")
        return 0
    try:
        stages = chosen(options.stages)
    except ValueError as wrong:
        print(f"gpu.sh: {wrong}", file=sys.stderr)
        return 2
    if not 0 < options.seconds < float("inf"):
        print(f"gpu.sh: --seconds: {options.seconds} is no time limit (expected a number above 0)", file=sys.stderr)
        return 2
    begin = time.monotonic() - (time.time() - options.begin)
    end = begin + options.seconds - min(RESERVE, options.seconds / 10)
    try:
        visit = Visit(options.dry_run, options.logs, begin, end)
    except OSError as failure:
        print(f"gpu.sh: {options.logs}: no results can be written there: {failure.strerror}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, visit.stop)
    describe(visit)
    print("\n".join(visit.head))
    for k, stage in enumerate(stages):
        later = [other for other in stages[k + 1:] if not other.lacks(visit)]
        visit.run_stage(stage, limit_of([stage, *later], visit.end - time.monotonic()))
    print("\n" + visit.table())
    return 1 if visit.has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
