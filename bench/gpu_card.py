"""The stages of bench/gpu.sh, in the folder where its pack was unpacked: tests, training, figures.

Each stage has a time limit, each program in it one of its own, and all together a deadline; what
does not finish is ended and said so. Results are shown as they come and once more in one table at
the end, with the card, the driver and the libraries. Exit status 1 if a test failed or did not end.

With --dry-run nothing needs a card: programs of the CUDA path run on the stand-in libraries, which
play the card on the host (their times mean nothing), the rest on the CPU.
"""

import argparse
import concurrent.futures
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

import gpu_train

DEADLINE = 570  # seconds of all stages
SKIPPED = 77
PARALLEL = max(2, min(6, (os.cpu_count() or 2) // 2))

# Sanitizers of the toolkit, with what keeps refusals that tests provoke from counting as errors.
SANITIZERS = {
    "memcheck": ["--report-api-errors", "no"],
    "racecheck": [],
    "initcheck": [],
}
SANITIZER_FOUND = 99


@dataclass
class Done:
    """A program that has ended: its status (None: it was ended by its limit), output, seconds."""

    status: int | None
    output: str
    seconds: float
    limit: float

    @property
    def reason(self):
        """One line on what went wrong."""
        if self.status is None:
            return f"did not finish in {self.limit:.0f} s" if self.limit else "no time was left"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        message = re.search(r'"message":"((?:[^"\\]|\\.)*)"', self.output)  # what --json makes of an error
        if message:
            return message[1][:160]
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        told = [line for line in lines if re.search(r"^automap:|error|FAILED|skipped", line, re.IGNORECASE)]
        return (told or lines or [f"exit status {self.status}"])[-1][:160]


@dataclass
class Row:
    stage: str
    name: str
    result: str
    detail: str = ""


@dataclass
class Visit:
    """What all stages share: where programs run, until when, and what was found."""

    dry_run: bool
    log: pathlib.Path  # what all programs printed
    end: float
    rows: list = field(default_factory=list)
    failed: bool = False
    stage: str = ""
    stage_end: float = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def device(self):
        return "cpu" if self.dry_run else "cuda"

    def environment(self, stand_ins=True):
        """For automap's programs: CUDA's libraries, behind the stand-ins where those play the card."""
        folders = [os.path.abspath("stand_in")] if self.dry_run and stand_ins else []
        folders += [folder for folder in (os.environ.get("GPU_LIBRARY_PATH"), os.environ.get("LD_LIBRARY_PATH")) if folder]
        return dict(os.environ, LD_LIBRARY_PATH=":".join(folders), XDG_CACHE_HOME=os.path.abspath("cache"),
                    OPENBLAS_NUM_THREADS=os.environ.get("OPENBLAS_NUM_THREADS", "1"))

    def left(self):
        return max(0.0, min(self.stage_end, self.end) - time.monotonic())

    def run(self, command, limit=60, environment=None):
        """Runs a program with all that it starts; ends it at its limit or the stage's."""
        command = [str(part) for part in command]
        limit, begin = min(limit, self.left()), time.monotonic()
        if limit < 1:
            return Done(None, "", 0, 0)
        with tempfile.TemporaryFile("w+", errors="replace") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env=environment or self.environment(), start_new_session=True)
            try:
                status = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = None
            stream.seek(0)
            done = Done(status, stream.read(), time.monotonic() - begin, limit)
        with self.lock, open(self.log, "a") as log:
            log.write(f"$ {' '.join(command)}\n{done.output[-200000:]}[{status}, {done.seconds:.1f} s]\n\n")
        return done

    def add(self, name, result, detail="", failed=False):
        with self.lock:
            self.rows.append(Row(self.stage, name, result, detail))
            self.failed |= failed
        print(f"  {name}{f': {result}' if result else ''}{f' ({detail})' if detail else ''}")

    def add_test(self, name, done):
        """A test's result by its exit status; not having finished is a failure."""
        if done.status == 0:
            self.add(name, "passed", f"{done.seconds:.1f} s")
        elif done.status == SKIPPED:
            self.add(name, "skipped", done.reason.removeprefix("skipped: "))
        else:
            self.add(name, "not finished" if done.status is None else "FAILED", done.reason, failed=True)

    def each(self, work, items):
        """Runs work(item) for several items at once."""
        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(work, items))


def test_programs():
    return sorted(glob.glob("bin/test_*"))


def has_stand_ins():
    return bool(glob.glob("stand_in/libcuda.so*"))


def unit_tests(visit):
    if visit.dry_run and not has_stand_ins():
        visit.add("all", "not run", "this pack has no stand-in libraries")
        return

    def test(program):
        name = pathlib.Path(program).name
        needs_card = name.startswith("test_cuda_")  # the others are about the real libraries alone
        visit.add_test(name, visit.run([program], 90, visit.environment(stand_ins=needs_card)))

    visit.each(test, test_programs())


def training(visit):
    def report(name, passed, detail):
        visit.add(name, "passed" if passed else "FAILED", detail, failed=not passed)

    def report_stand_ins(name, *result):
        report(f"{name}, stand-ins", *result)

    folder = pathlib.Path("plans")
    folder.mkdir(exist_ok=True)

    def run(command):
        return visit.run(command, 60)

    if visit.dry_run and has_stand_ins():
        gpu_train.train_all(run, ["mlp_tiny"], "cuda", folder, 1, report_stand_ins)
    gpu_train.train_all(run, gpu_train.models(), visit.device, folder, PARALLEL, report)


def leaves(value, name=""):
    """Every number, word and table of a JSON value, with where it stands."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for index, part in enumerate(value):
            yield from leaves(part, f"{name}[{index}]")
    else:
        yield name, value


def probe_once(visit, name, file, device, environment):
    """Probes the machine; without --devices that is all cards. Two or more of them have collectives, too."""
    written = visit.log.with_name(file)
    done = visit.run(["bin/automap", "cluster", "--probe", "--device", device, "-o", written], 58, environment)
    visit.add_test(name, done)
    if done.status != 0:
        return
    cluster = json.loads(written.read_text())
    for warning in re.findall(r"warning: (.*)", done.output):
        visit.add(f"warning: {warning}", "")
    if device == "cuda" and sum(server["devices"] for server in cluster["servers"]) > 1:
        kinds = sorted(cluster["links"]["link"].get("collectives", {}))
        visit.add("collectives", ", ".join(kinds) or "none", failed=len(kinds) != 4)
    for key, value in leaves(cluster):
        visit.add(f"{key}: {value}", "")


def probe(visit):
    if visit.dry_run and has_stand_ins():
        two_cards = dict(visit.environment(), STAND_IN_DEVICES="2", STAND_IN_MEMORY=str(12 << 20))
        probe_once(visit, "cluster --probe, stand-ins", "stand_ins.json", "cuda", two_cards)
    probe_once(visit, "cluster --probe", "cluster.json", visit.device, visit.environment())


def add_table(visit, command, limit):
    """A benchmark's own lines; it may be cut short."""
    by_line = ["stdbuf", "-oL"] if shutil.which("stdbuf") else []
    done = visit.run(by_line + command, limit)
    for line in filter(str.strip, done.output.splitlines()):
        visit.add(line.rstrip(), "")
    if done.status != 0:
        visit.add(pathlib.Path(command[0]).name, "not finished" if done.status is None else "FAILED", done.reason,
                    failed=done.status is not None)


def kernels(visit):
    add_table(visit, ["bin/bench_kernels", "--device", visit.device] + ["--quick"] * visit.dry_run, 60)


def learning(visit):
    add_table(visit, ["bin/bench_dqn", "--device", visit.device], 60)
    for device in dict.fromkeys(("cpu", visit.device)):
        visit.add_test(f"search for gpt2_tiny on {device}", visit.run(
            ["bin/automap", "search", "datasets/models/gpt2_tiny/model.hlo.pb", "--cluster", "nominal:4", "--searcher", "dqn",
             "--seed", 1, "--device", device, "-o", f"plans/search.{device}.json", "--quiet"], 40))


def beside_jax(visit):
    environment = dict(os.environ, PYTHONPATH="datasets", AUTOMAP="bin/automap", PYTHONDONTWRITEBYTECODE="1")
    probe_jax = visit.run([sys.executable, "-c", "import jax; print(jax.__version__, jax.devices())"], 60, environment)
    if probe_jax.status != 0:
        visit.add("jax.jit", "skipped", probe_jax.reason)
        return
    visit.add(f"JAX {probe_jax.output.strip().splitlines()[-1]}", "")
    command = [sys.executable, "-u", "bench/gpu_beside_jax.py", "--json", "--device", visit.device]
    done = visit.run(command + ["mlp", "gpt2_tiny", "gpt2_bf16_tiny"] * visit.dry_run, 400, environment)
    cases = {}
    for line in done.output.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            cases.setdefault((row["model"], row["precision"]), {}).update(row)
    for (model, precision), row in cases.items():
        ours, theirs = row.get("automap_ms"), row.get("jax_ms")
        detail = "   ".join(f"{side} {row[f'{side}_ms']:.3f} ms" if f"{side}_ms" in row
                            else f"{side}: {row.get(f'{side}_failure', 'not finished')}" for side in ("automap", "jax"))
        visit.add(f"{model}, {precision}", f"{ours / theirs:.2f} x JAX" if ours and theirs else "no ratio", detail,
                    failed="automap_failure" in row)
    if done.status is None:
        visit.add("jax.jit", "not finished", done.reason)
    elif done.status != 0:
        visit.add("jax.jit", "FAILED", done.reason, failed=True)


def sanitizer():
    places = ["compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer", *glob.glob("/opt/nvidia/*/compute-sanitizer")]
    return next((found for found in map(shutil.which, places) if found), None)


def sanitizers(visit):
    program = sanitizer()
    if visit.dry_run or not program:
        visit.add("compute-sanitizer", "not run", "needs a card" if visit.dry_run else "not installed here")
        return

    def check(case):
        tool, (what, command) = case
        name = f"{what}, {tool}"
        done = visit.run([program, "--tool", tool, *SANITIZERS[tool], "--error-exitcode", SANITIZER_FOUND,
                            "--require-cuda-init", "no", *command], 90)
        if "not supported" in done.output and done.status != 0:
            visit.add(name, "skipped", "the sanitizer does not support this device or driver")
        elif done.status is None:
            visit.add(name, "not finished", done.reason)
        else:
            visit.add_test(name, done)

    small = [(pathlib.Path(test).name, [test]) for test in test_programs() if "test_cuda_" in test]
    at = "datasets/models/mlp_tiny"
    small.append(("mlp_tiny, 3 steps", ["bin/automap", "run", f"{at}/model.hlo.pb", "--plan", "none", "--state",
                                        f"{at}/state.npz", "--data", f"{at}/data.npz", "--steps", 3, "--device", "cuda"]))
    visit.each(check, [(tool, case) for tool in SANITIZERS for case in small])


# Title, seconds that it may take, what it does. The sanitizers come last: they take what is left.
STAGES = [
    ("GPU tests", 100, unit_tests),
    ("training, 20 steps", 120, training),
    ("sanitizers", 100, sanitizers),
    ("probe", 75, probe),
    ("kernels", 40, kernels),
    ("learning", 40, learning),
    ("step time beside jax.jit", 130, beside_jax),
]


def first_line(visit, command):
    """What a program says of itself, or nothing where there is no such program."""
    try:
        done = visit.run(command, 20)
    except OSError:
        return ""
    return done.output.strip() if done.status == 0 else ""


def describe(visit):
    """The machine and the libraries, as lines of the table's head."""
    card = first_line(visit, ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version",
                                "--format=csv,noheader"])
    if visit.dry_run:
        card = "none: a dry run, stand-in libraries and the CPU in its place"
    lines = [f"card        {line}" for line in (card or "unknown to nvidia-smi").splitlines()]
    version = first_line(visit, ["bin/automap", "--version"]).splitlines()
    lines += [f"automap     {line}" for line in version]
    for line in first_line(visit, ["nvcc", "--version"]).splitlines():
        if "release" in line:
            lines.append(f"nvcc        {line}")
    libraries = ("libcublasLt.so.", "libnvrtc.so.", "libcudnn.so.", "libnccl.so.")
    for folder in (os.environ.get("GPU_LIBRARY_PATH") or "").split(":"):
        names = [os.path.basename(path) for name in libraries for path in sorted(glob.glob(f"{folder}/{name}[0-9]*"))]
        if names:
            lines.append(f"libraries   {folder}: {', '.join(names)}")
    lines.append(f"sanitizer   {sanitizer() or 'none'}")
    return lines


def table(visit, head):
    lines = ["", *head]
    width = max((len(row.name) for row in visit.rows if row.result), default=0)
    for title, _, _ in STAGES:
        rows = [row for row in visit.rows if row.stage == title]
        if all(row.result for row in rows):  # these came as they ended; a benchmark's lines are in order
            rows.sort(key=lambda row: row.name)
        lines += ["", f"== {title}{', without a card' if visit.dry_run else ''}"]
        lines += [f"{row.name:{width}}  {row.result:12}  {row.detail}".rstrip() for row in rows]
    counts = {result: sum(row.result == result for row in visit.rows)
              for result in ("passed", "FAILED", "skipped", "not finished", "not run")}
    lines += ["", ", ".join(f"{count} {result}" for result, count in counts.items() if count)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("logs"),
                        help="for table.txt, programs.log and cluster.json")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    visit = Visit(options.dry_run, options.logs / "programs.log", begin + DEADLINE, stage_end=begin + 30)
    head = describe(visit)
    print("\n".join(head))
    for title, limit, stage in STAGES:
        visit.stage, visit.stage_end = title, time.monotonic() + limit
        print(f"== {title} ({time.monotonic() - begin:.0f} s)")
        if visit.left() < 1:
            visit.add("all", "not run", "out of time")
            continue
        stage(visit)
    result = table(visit, head) + f"{time.monotonic() - begin:.0f} s\n"
    print(result)
    (options.logs / "table.txt").write_text(result)
    return 1 if visit.failed else 0


if __name__ == "__main__":
    sys.exit(main())
