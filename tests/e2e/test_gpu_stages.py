"""bench/gpu.sh keeps its limits: a pack of small scripts in place of programs, without a card.

A stage that runs out of time is no failure. A program that reaches its own limit gives a note and no failure; the table
and results.json are there after every stage and after a signal; the exit status is 1 only after a failure; folders of
an inherited LD_LIBRARY_PATH arrive at the programs, after the stand-ins. Results of earlier runs are kept. A mistake in
the call is one line.

Run as `python3 tests/e2e/test_gpu_stages.py`.
"""

# labels: cpu e2e
# cost: 20

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import types
import unittest.mock

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "bench"))

import gpu_card
import gpu_profile
import gpu_speed
import gpu_tests
import gpu_train
import gpu_visit

AUTOMAP = """#!/bin/sh
case $1 in
  --version) echo "automap 0"; echo "found on this machine: $LD_LIBRARY_PATH" ;;
  cluster) echo '{"servers": []}' >stand_ins.json; for last; do :; done; echo '{"servers": []}' >"$last" ;;
  run) sleep "${RUN_SECONDS:-0}"; echo '{"step":0,"loss":2.5,"seconds":0.1}' ;;
esac
"""

# Stands in for automap_jax.command: exports an empty module, and notes it.
EXPORTER = """
import os, pathlib

def export_model(name, at):
    at.mkdir()
    (at / "model.hlo.pb").touch()
    with open(os.environ["EXPORTS"], "a") as file:
        file.write(name + " ")
"""


def pack(folder, programs):
    """A folder like that of `gpu.sh --pack`, in which bin/ has shell scripts."""
    tree = folder / "tree"
    for name in ("bin", "bench", "stand_in", "prepared", "datasets/models/toy", "datasets/automap_jax"):
        (tree / name).mkdir(parents=True)
    for name, text in {"automap": AUTOMAP, **{name: f"#!/bin/sh\n{text}\n" for name, text in programs.items()}}.items():
        (tree / "bin" / name).write_text(text)
        (tree / "bin" / name).chmod(0o755)
    (tree / "stand_in" / "libcuda.so.1").touch()
    (tree / "datasets" / "automap_jax" / "command.py").write_text(EXPORTER)
    for path in SOURCE.glob("bench/gpu_*.*"):
        shutil.copy(path, tree / "bench")
    target = folder / "pack"
    target.mkdir()
    with tarfile.open(target / "payload.tar.gz", "w:gz") as payload:
        payload.add(tree, ".")
    shutil.copy(SOURCE / "bench" / "gpu.sh", target)
    return target


@contextlib.contextmanager
def packed(**programs):
    with tempfile.TemporaryDirectory() as name:
        yield pack(pathlib.Path(name), programs), pathlib.Path(name) / "out"


def command(target, out, *arguments, dry=True, **variables):
    environment = dict(os.environ, OUT=str(out), AUTOMAP_PYTHON=sys.executable, **variables)
    return subprocess.Popen(["bash", target / "gpu.sh", *["--dry-run"] * dry, *arguments], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def visit(target, out, *arguments, **variables):
    """Exit status and results.json of a run."""
    process = command(target, out, *arguments, **variables)
    output, _ = process.communicate(timeout=60)
    results = out / "results.json"
    return process.returncode, json.loads(results.read_text()) if results.exists() else output


def rows(results, stage):
    found = next(entry for entry in results["stages"] if entry["name"] == stage)
    return found["status"], {row["name"]: row["result"] for row in found["rows"]}


def check_passing_and_failing():
    with packed(test_cuda_one="exit 0", test_cuda_two="exit 77") as (target, out):
        status, results = visit(target, out, "--stages", "tests")
        assert (status, *rows(results, "tests")) == (
            0, "done", {"test_cuda_one": "passed", "test_cuda_two": "skipped"}), results
    with packed(test_cuda_one="exit 0", test_cuda_two="echo error: two; exit 3") as (target, out):
        status, results = visit(target, out, "--stages", "tests,blas-log")
        assert status == 1 and results["failed"], results
        assert rows(results, "tests") == ("FAILED", {"test_cuda_one": "passed", "test_cuda_two": "FAILED"}), results
        assert [stage["name"] for stage in results["stages"]] == ["tests", "blas-log"], "a failure ends no other stage"
        table = (out / "table.txt").read_text()
        assert "error: two" in table and "1 passed, 1 FAILED, 1 not run" in table, table


def check_library_path():
    with packed(test_cuda_path='case $LD_LIBRARY_PATH in *stand_in:/inherited/one*) exit 0;; esac; exit 1',
                test_nvrtc_path='case $LD_LIBRARY_PATH in /inherited/one*) exit 0;; esac; exit 1') as (target, out):
        status, results = visit(target, out, "--stages", "tests", LD_LIBRARY_PATH="/inherited/one")
        assert status == 0, results
        assert "stand_in:/inherited/one" in results["automap"][1], results["automap"]
    environment = subprocess.run(
        [sys.executable, "-c", "import gpu_beside_jax; print(gpu_beside_jax.automap_environment()['LD_LIBRARY_PATH'])"],
        env=dict(os.environ, PYTHONPATH=str(SOURCE / "bench"), GPU_LIBRARY_PATH="/cuda/lib64",
                 LD_LIBRARY_PATH="/driver"),
        capture_output=True, text=True)
    assert environment.stdout.strip() == "/driver:/cuda/lib64", environment


def check_deadline():
    with packed(test_cuda_long="sleep 60", test_cuda_short="exit 0") as (target, out):
        begin = time.monotonic()
        status, results = visit(target, out, "--stages", "tests,blas-log", "--seconds", "12")
        assert status == 0 and not results["failed"], results
        assert rows(results, "tests") == ("no time", {"test_cuda_long": "no time", "test_cuda_short": "passed"}), (
            results)
        assert rows(results, "blas-log") == ("no time", {"all": "no time"}), results
        assert time.monotonic() - begin < 40, "the limit of 12 s was not kept"
        assert "1 passed, 2 no time" in (out / "table.txt").read_text()


def check_own_limit():
    with tempfile.TemporaryDirectory() as name:
        now = time.monotonic()
        one = gpu_visit.Visit(True, name, now, now + 100)

        def stage(visit):
            visit.add_test("hangs", visit.run(["sleep", "60"], 1))
            visit.add_test("fails", visit.run(["false"], 1))
            gpu_tests.train(visit, [("toy", "1 rank", "none", "f32")], "cuda", visit.each)

        folder = pathlib.Path(name)
        for at, losses in ((folder / "prepared" / "toy.losses.json", [1]),
                           (folder / "datasets/models/toy/losses.json", [1])):
            at.parent.mkdir(parents=True)
            at.write_text(json.dumps({"losses": losses}))
        (folder / "bin").mkdir()
        (folder / "bin" / "automap").write_text("#!/bin/sh\nexec sleep 60\n")
        (folder / "bin" / "automap").chmod(0o755)
        os.chdir(folder)
        with unittest.mock.patch.object(gpu_tests, "TRAINING_SECONDS", 1):
            one.run_stage(gpu_card.Stage("group", "slow", 1, "slow", stage), 10)
        os.chdir(SOURCE)
        found = {row.name: (row.result, row.detail) for row in one.stage.rows}
        late = ("no time", "did not end in 1 s")
        assert found == {"hangs": late, "fails": ("FAILED", "exit status 1"), "toy, 1 rank": late}, found
        table = (folder / "table.txt").read_text()
        assert "note: 2 programs did not end within their own limit" in table and "1 FAILED, 2 no time" in table, table
        assert json.loads((folder / "results.json").read_text())["stages"][0]["own_limits"] == 2
        one.stage.rows = [row for row in one.stage.rows if row.name != "fails"]
        assert not one.has_failed, "a limit is no failure"


def check_signal():
    with packed(test_cuda_long="sleep 60", test_cuda_short="exit 0") as (target, out):
        process = command(target, out, "--stages", "correctness")
        until = time.monotonic() + 30
        while not (out / "table.txt").exists() and time.monotonic() < until:  # at the first result
            time.sleep(0.05)
        assert "test_cuda_short" in (out / "table.txt").read_text(), "no table while a stage runs"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
        results = json.loads((out / "results.json").read_text())
        assert process.returncode == 0 and results["stopped"], (process.returncode, output)
        assert rows(results, "tests") == ("no time", {"test_cuda_long": "no time", "test_cuda_short": "passed"}), (
            results)
        assert rows(results, "training") == ("no time", {"all": "no time"}), results


def check_exported_models():
    """Models that the pack lacks are exported once, for later runs with the same pack."""
    with packed() as (target, out):
        for _ in range(2):
            visit(target, out, "--stages", "jax", EXPORTS=str(target / "exports"))
        assert (target / "exports").read_text() == "gpt2_bf16_tiny mlp ", (target / "exports").read_text()
        found = sorted(str(path.relative_to(target)).split("/", 1)[1] for path in target.glob("exported-*/**/*.pb"))
        assert found == ["gpt2_bf16_tiny/model.hlo.pb", "mlp/model.hlo.pb"], found
        assert len(list(target.glob("exported-*/*"))) == 2, "parts of exports are left"


def check_table_after_each_stage():
    """The second stage reads the table that the first has left."""
    with tempfile.TemporaryDirectory() as name:
        now, seen = time.monotonic(), []
        one = gpu_visit.Visit(True, name, now, now + 100)

        def first(visit):
            visit.written = time.monotonic() + 1000  # no table between the stages' ends
            visit.add("row of the first", "passed")

        def second(visit):
            seen.append((pathlib.Path(name) / "table.txt").read_text())
            raise RuntimeError("a mistake in a stage")

        for run in (first, second):
            one.run_stage(gpu_card.Stage("group", run.__name__, 1, run.__name__, run), 10)
        assert "row of the first" in seen[0], seen
        results = json.loads((pathlib.Path(name) / "results.json").read_text())
        assert [stage["status"] for stage in results["stages"]] == ["done", "FAILED"], results


def check_stage_names():
    listed = subprocess.run(["bash", SOURCE / "bench" / "gpu.sh", "--stages", "list"], capture_output=True, text=True)
    assert [line.split()[1] for line in listed.stdout.splitlines()] == [stage.name for stage in gpu_card.STAGES], listed
    with packed() as (target, out):
        assert subprocess.run(["bash", target / "gpu.sh", "--stages", "list"], capture_output=True,
                              text=True).stdout == listed.stdout
        status, output = visit(target, out, "--stages", "tests,none")
        assert status == 2 and "no stage 'none'" in output, output
    for group in ("correctness", "speed", "profile"):
        stages = gpu_card.chosen(group)
        total = sum(stage.seconds for stage in stages)
        assert total <= gpu_card.SECONDS - gpu_card.RESERVE, f"{group} takes {total} s"
        assert gpu_card.limit_of(stages, 580) == stages[0].seconds + 580 - total
        assert gpu_card.limit_of(stages, 10) == 10
    # neither NCCL nor a card: their seconds are the first stage's
    with packed(test_cuda_one="exit 0") as (target, out):
        _, results = visit(target, out, "--stages", "tests,nccl,large")
        given = next(stage for stage in results["stages"] if stage["name"] == "tests")["limit"]
        assert given > 550, results
    assert [stage.name for stage in gpu_card.chosen("predicted,correctness,probe")][-2:] == ["probe", "predicted"]


def check_results_folder():
    with packed(test_cuda_one="exit 0") as (target, out):
        os.chdir(target.parent)
        for number in (1, 2, 3):  # a relative folder, and earlier results in it
            status, results = visit(target, pathlib.Path("out"), "--stages", "tests" if number == 1 else "blas-log")
            assert status == 0, results
            names = {path.name for path in out.iterdir()}
            kept = {f"{stem}.{k}.{end}" for k in range(1, number) for stem, end in
                    (("table", "txt"), ("results", "json"), ("programs", "log"))}
            assert kept <= names and len(names) == 3 * number, names
        assert "test_cuda_one" in (out / "table.1.txt").read_text() and "blas-log" in (out / "table.2.txt").read_text()
        os.chdir(SOURCE)


def check_mistakes():
    """One line, an exit status that is not 0, and nothing done."""
    with packed() as (target, out):
        file = target / "file"
        file.touch()
        damaged = target.parent / "damaged"
        damaged.mkdir()
        (damaged / "payload.tar.gz").write_bytes((target / "payload.tar.gz").read_bytes()[:1000])
        cases = [(1, "no results can be written there", [], {"OUT": str(file / "out")}),
                 (1, "no results can be written there", [], {"OUT": str(file)}),
                 (1, "is no Python of version 3.10 or later", [], {"AUTOMAP_PYTHON": "/bin/false"}),
                 (1, "no /nonexistent: name one by AUTOMAP_PYTHON", [], {"AUTOMAP_PYTHON": "/nonexistent"}),
                 (1, "payload.tar.gz is damaged", [damaged], {}),
                 (1, "no payload.tar.gz in /nonexistent", ["/nonexistent"], {}),
                 (1, "no folder for the programs in /nonexistent: TMPDIR names", [], {"TMPDIR": "/nonexistent"}),
                 (1, "two folders", [target, damaged], {}),
                 (1, "--stages needs a value", ["--stages"], {}),
                 (1, "no option --dry", ["--dry"], {}),
                 (2, "--seconds: nan is no time limit", ["--seconds", "nan"], {}),
                 (2, "--seconds: 0.0 is no time limit", ["--seconds", "0"], {}),
                 (2, "invalid float value: 'ten'", ["--seconds", "ten"], {}),
                 (2, "no stage 'speeds'", ["--stages", "speeds"], {})]
        for expected, words, arguments, variables in cases:
            environment = dict(os.environ, OUT=str(out), AUTOMAP_PYTHON=sys.executable) | variables
            done = subprocess.run(["bash", target / "gpu.sh", "--dry-run", *arguments], env=environment, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert done.returncode == expected and words in done.stdout, (words, done)
            assert "Traceback" not in done.stdout and not out.exists(), (words, done)


def check_machine():
    """Programs that the machine cannot start are one line; without c++ the stand-ins are left out."""
    with packed(automap="echo 'libm.so.6: version GLIBC_9 not found' >&2; exit 1") as (target, out):
        status, output = visit(target, out, "--stages", "tests")
        assert status == 1 and "gpu.sh: the pack's programs do not start here: libm.so.6: version" in output, output
    with packed(test_cuda_one="exit 0") as (target, out):
        bare = target.parent / "path"
        bare.mkdir()
        for name in ("bash", "dirname", "date", "realpath", "mktemp", "rm", "tar", "gzip", "awk", "paste", "python3",
                     "sleep"):
            (bare / name).symlink_to(shutil.which(name))
        status, results = visit(target, out, "--stages", "tests,blas-log", PATH=str(bare))
        assert status == 0 and rows(results, "tests") == ("done", {"all": "not run"}), results


DRIVER = """
int cuInit(unsigned flags) { return flags ? 1 : %d; }
int cuDriverGetVersion(int *version) { return *version = %d, 0; }
"""


def check_driver():
    """A run that is not dry needs a driver that starts and serves the pack's CUDA; else the line has each answer."""
    compiler = shutil.which("cc")
    if not compiler or any(os.path.exists(f"{folder}/libcuda.so.1") for folder in
                           ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64",
                            "/usr/local/cuda/compat")):
        print("no compiler, or a driver: check_driver is left out")
        return
    automap = 'case $1 in --version) echo "zlib 1, cuda 13.0.88, cublas 1" ;; esac'
    with packed(automap=automap, test_cuda_one="exit 0") as (target, out):
        folders = {}
        for name, failed, version in (("broken", 803, 13000), ("old", 0, 12040), ("works", 0, 13020)):
            folders[name] = target.parent / name
            folders[name].mkdir()
            subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", folders[name] / "libcuda.so.1"],
                           input=DRIVER % (failed, version), text=True, check=True)
        for path, words in (("", "libcuda.so.1: cannot open shared object file"),
                            (folders["broken"], "fails with error 803"),
                            (folders["old"], "libcuda.so.1: serves CUDA 12.4, the pack needs 13")):
            status, output = visit(target, out, "--stages", "tests", dry=False, LD_LIBRARY_PATH=str(path))
            assert status == 1 and "gpu.sh: no card here that a driver opens" in output and words in output, output
        status, output = visit(target, out, dry=False, LD_LIBRARY_PATH="", CUDA_VISIBLE_DEVICES="7")
        assert "CUDA_VISIBLE_DEVICES: '7'" in output, output
        status, results = visit(target, out, "--stages", "tests", dry=False, LD_LIBRARY_PATH=str(folders["works"]))
        assert status == 0 and rows(results, "tests") == ("done", {"test_cuda_one": "passed"}), results


def check_kernel_rows():
    def event(name, instruction, microseconds):
        return {"ph": "X", "name": name, "dur": microseconds, "args": {"instruction": instruction}}

    # Two steps: dot.1 takes 4 and 6 us, add.2 runs twice in each; a row without an instruction is no kernel.
    events = [event("dot", "dot.1", 4), event("dot", "dot.1", 6), *[event("add", "add.2", 1) for _ in range(4)],
              {"ph": "X", "name": "feed 0", "dur": 100, "args": {"number": 0}}]
    kinds, kernels = gpu_profile.kernel_rows(events, 2)
    assert kinds == [(5, 1, "dot"), (2, 1, "add")], kinds
    assert [row[0] for row in kernels] == [5, 2], kernels
    assert gpu_profile.shortened([[1, 2]]) == "[[1, 2]]"
    assert gpu_profile.shortened(list(range(1000))).endswith("... (1000 numbers)")


def check_order_of_speed():
    """JAX before automap, and GPT-2 in bf16 before all other models."""
    calls = []

    def one_side(visit, case, side, limit):
        calls.append((case, side))
        return {}, types.SimpleNamespace(is_out_of_time=False)

    with tempfile.TemporaryDirectory() as name, unittest.mock.patch.object(gpu_speed, "one_side", one_side):
        gpu_speed.beside_jax(gpu_visit.Visit(False, name, 0, 0))
    assert calls[:2] == [("gpt2_bf16_batch8:bf16", "jax"), ("gpt2_bf16_batch8:bf16", "automap")], calls
    assert gpu_card.chosen("speed")[0].name == "jax", "the comparison comes first"


def check_small_card():
    """Models that do not fit on the card, such as a part of one, are no failures; a wrong exit status is."""
    no_room = ("automap: out of memory on GPU 0 (H200): 9 GB are wanted, 8 GB of 18 GB are free",
               "automap: no plan of 1 fits: device 0 (H200, server 0) needs 46.2 GB and may use 16 GB")
    with tempfile.TemporaryDirectory() as name:
        visit = gpu_visit.Visit(False, name, 0, 0)
        for words, result in ((no_room[0], "not run"), (no_room[1], "not run"), ("automap: no plan", "FAILED")):
            visit.add_model("model", gpu_visit.Done(5, words, 1, 60))
            assert visit.stage.rows[-1].result == result, visit.stage.rows[-1]
            sides = [({"jax": {"ms": 1}}, None), ({"automap_failure": words.removeprefix("automap: ")}, None)]
            done = types.SimpleNamespace(is_out_of_time=False)
            with (unittest.mock.patch.object(gpu_speed, "one_side", lambda *_: (sides.pop(0)[0], done)),
                  unittest.mock.patch.object(gpu_speed.gpu_beside_jax, "CASES", ["mlp:f32"]),
                  unittest.mock.patch.object(gpu_speed.gpu_beside_jax, "text", str)):
                gpu_speed.beside_jax(visit)
            assert visit.stage.rows[-1].result == result, visit.stage.rows[-1]


def check_exclusive_card():
    """A card whose mode allows one process gets one at a time."""
    with tempfile.TemporaryDirectory() as name:
        for mode, most in (("Exclusive_Process", 1), ("Default", gpu_visit.PARALLEL)):
            visit = gpu_visit.Visit(False, name, 0, 0)
            with unittest.mock.patch.object(gpu_card, "output_of", lambda visit,
                                            command: f"H200, 9.0, 1 MiB, 580, {mode}"):
                gpu_card.describe(visit)
            assert visit.parallel == most, (mode, visit.parallel)


def check_training_order():
    rows = gpu_train.cases(["a", "b"])
    assert rows[:2] == [("a", "1 rank", "none", "f32"), ("b", "1 rank", "none", "f32")], rows
    assert len(rows) == 2 * (2 + len(gpu_train.RANKS) * len(gpu_train.PLANS)) == len(set(rows)), rows
    fused = [row for row in gpu_train.cases(gpu_train.FUSED_MODELS) if row[1].endswith("fused attention")]
    assert len(fused) == len(gpu_train.FUSED_MODELS) * len(gpu_train.RANKS), fused


def main():
    for check in (check_passing_and_failing, check_library_path, check_deadline, check_own_limit, check_signal,
                  check_exported_models, check_table_after_each_stage, check_stage_names, check_results_folder,
                  check_mistakes, check_machine,
                  check_driver, check_kernel_rows, check_order_of_speed, check_small_card, check_exclusive_card,
                  check_training_order):
        check()
        print(f"{check.__name__}: passed")


if __name__ == "__main__":
    main()
