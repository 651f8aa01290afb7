"""The command line as a new user meets it: help, misspelt words, files in the wrong place, and terminals.

Every help text is checked for its form, and every option that it lists is accepted by the parser. A table of
mistakes has the exit code and a part of the answer for each. Files of other frameworks are recognised by their
content. Progress and colours are seen on a pseudo-terminal, and are absent from pipes and files.
"""
# labels: cpu e2e
# timeout: 200
# cost: 30

import io
import json
import os
import pathlib
import pickle
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, need_program

need_program()
MODELS = pathlib.Path(os.environ["AUTOMAP_SOURCE"]) / "datasets" / "models"
MLP = MODELS / "mlp_tiny" / "model.hlo.pb"
GPT = MODELS / "gpt2_tiny" / "model.hlo.pb"
PLAIN = {**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, "TERM": "xterm",
         "OPENBLAS_NUM_THREADS": "1"}
ERROR = '{"format":"automap-error-1","error":{"code":'
FOLDER = tempfile.TemporaryDirectory()
WORK = pathlib.Path(FOLDER.name)


def automap(*arguments, **environment):
    return subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL,
                          cwd=WORK, env={**PLAIN, **environment})


def on_terminal(*arguments, stdout_too=False, **environment):
    """Runs with stderr on a pseudo-terminal, stdout there or in a pipe; returns what both have received."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([AUTOMAP, *map(str, arguments)], stdin=subprocess.DEVNULL, stderr=theirs, cwd=WORK,
                               stdout=theirs if stdout_too else subprocess.PIPE, env={**PLAIN, **environment})
    os.close(theirs)
    terminal, output = b"", b""
    streams = [ours] + ([] if stdout_too else [process.stdout])
    while streams:
        for stream in select.select(streams, [], [], 60)[0]:
            try:
                data = os.read(stream if stream == ours else stream.fileno(), 65536)
            except OSError:  # the other end of the terminal is closed
                data = b""
            if not data:
                streams.remove(stream)
            elif stream == ours:
                terminal += data
            else:
                output += data
    assert process.wait(60) == 0, terminal
    os.close(ours)
    return terminal.decode().replace("\r\n", "\n"), output.decode()


# ---- help ----

COMMANDS = ["info", "convert", "groups", "propagate", "lower", "cluster", "search", "simulate", "explain", "diff",
            "compare", "export", "published", "run", "agent", "agent train", "agent train-search", "agent evaluate",
            "agent generate"]


def check_help(command):
    words = command.split()
    done = automap(*words, "--help")
    assert (done.returncode, done.stderr) == (0, ""), (command, done)
    for form in (["help", *words], [*words, "-h"], [*words, "no-such-file", "--no-such-option", "-h"],
                 ["help", *words, "--json"]):
        other = automap(*form)
        assert (other.returncode, other.stdout, other.stderr) == (0, done.stdout, ""), (form, other.stderr)
    assert done.stdout.startswith(f"usage: automap {command} "), done.stdout
    assert "\nexample" in done.stdout, command
    for line in done.stdout.splitlines():
        assert len(line) <= 100, (command, line)
        option = re.match(r"  (-\S+)( \S+)? {2,}(.*)", line)
        if not option:
            continue
        name, value, text = option.groups()
        assert len(text.replace(" (repeatable)", "")) <= 70, (command, line)
        # A switch refuses a value, others need one: neither is unknown.
        if command != "agent" and name not in ("--help", "-o"):
            answer = automap(*words, f"{name}=x" if not value else name).stderr
            assert ("needs an argument" if value else "takes no argument") in answer, (command, name, answer)


def test_help():
    usage = automap("--help")
    assert usage.returncode == 0 and all(len(line) <= 100 for line in usage.stdout.splitlines())
    for form in (["-h"], ["help"], ["help", "--help"], ["help", "help"], ["help", "version"], ["version", "-h"]):
        other = automap(*form)
        assert (other.returncode, other.stdout) == (0, usage.stdout), form
    for command in COMMANDS:
        assert f"  {command.split()[0]} " in usage.stdout
        check_help(command)
    assert automap("search", "--", "-h").returncode != 0
    versions = [automap(form) for form in ("version", "--version", "-V")]
    assert all(v.returncode == 0 and v.stdout.startswith("automap ") and v.stdout == versions[0].stdout
               for v in versions)
    nothing = automap()
    assert (nothing.returncode, nothing.stdout) == (2, "") and "usage: automap" in nothing.stderr


def test_pin_of_help():
    """The pin that the help shows holds for a model with layers."""
    pin = re.search(r"--pin .*'(.*)'", automap("search", "--help").stdout).group(1)
    done = automap("search", GPT, "--cluster", "nominal:2", "--mesh", "data=1,model=2", "--pin", pin, "--evaluations",
                   "1", "-o", "pin.json")
    assert done.returncode == 0 and "['mlp_in']['kernel'] " in done.stdout and "[-,model]" in done.stdout, done
    assert re.search(r"^and \d+ replicated parameters$", done.stdout, re.M), done.stdout


def test_cluster_file():
    """-o FILE.json gives a cluster file without --json, too."""
    for more in ([], ["--json"]):
        assert automap("cluster", "nominal:2", "-o", "file.json", *more).returncode == 0
        assert automap("cluster", "file.json").stdout.startswith("cluster nominal:2: 2 devices on 1 server\n"), more
    assert automap("cluster", "nominal:2", "-o", "file.txt").returncode == 0
    assert (WORK / "file.txt").read_text().startswith("cluster nominal:2")


def test_stage_table():
    done = automap("search", MLP, "--cluster", "nominal:2", "--baseline", "even_pipeline", "-o", "stages.json")
    assert done.returncode == 0 and re.search(r"^stage +devices +mesh +ZeRO +peak +busy\n +0 +0 +data=1( model=1)? +0 ",
                                              done.stdout, re.M), done
    assert automap("cluster", "nominal:1").stdout.startswith("cluster nominal:1: 1 device on 1 server\n")


def test_one_baseline():
    """A search of one baseline prints no step of 0 s for those that it leaves out."""
    model = MODELS / "accumulated_tiny" / "model.hlo.pb"
    done = automap("search", model, "--cluster", "nominal:4", "--baseline", "data_parallel", "-o", "one.json", "--json")
    steps = json.loads(done.stdout)["baselines"]
    assert steps["data_parallel"] > 0 and all(step is None or step > 0 for step in steps.values()), steps


# ---- mistakes ----

def test_mistakes():
    plan, cluster, folder = WORK / "p.json", WORK / "c.json", MLP.parent
    assert automap("search", MLP, "--cluster", "nominal:2", "-o", plan).returncode == 0
    assert automap("cluster", "nominal:2", "--json", "-o", cluster).returncode == 0
    search = ["search", MLP, "--cluster", "nominal:2", "-o", "out.json"]
    (WORK / "link.json").symlink_to("out.json")
    run = ["run", MLP, "--plan", "none", "--state", "random"]
    cases = [
        # words
        (["serach", MLP], 2, r"unknown command serach; did you mean search\?"),
        (["SEARCH", MLP], 2, r"did you mean search\?"),
        (["sim", plan, MLP], 2, r"did you mean simulate\?"),
        (["frobnicate"], 2, r"unknown command frobnicate; automap --help"),
        ([""], 2, r"unknown command \(empty\)"),
        (["help", "serach"], 2, r"did you mean search\?"),
        (["agent", "trian"], 2, r"did you mean agent train\?"),
        (["agent"], 2, r"expected automap agent train"),
        (["agent", "generate", "--episodes", "3"], 2, r"unknown option --episodes"),
        (["--quiet", "info", MLP], 2, r"--quiet: an option before the command"),
        ([MLP], 2, r"a file without a command"),
        (["search", MLP, "--clustr", "C"], 2, r"unknown option --clustr; did you mean --cluster\?"),
        (["search", MLP, "--cluster", "A", "--tp", "4"], 2, r"unknown option --tp; did you mean --tensor\?"),
        (["search", MLP, "--cluster", "A", "--output=x"], 2, r"unknown option --output; did you mean -o\?"),
        (["search", "--model", MLP], 2, r"unknown option --model \(expected automap search MODEL\)"),
        (["search", MLP, "-c", "C"], 2, r"unknown option -c; see automap search --help$"),
        (["search", MLP, "-cluster", "C"], 2, r"did you mean --cluster\?"),
        (["search", MLP, "--micro_batches=2"], 2, r"unknown option --micro_batches; did you mean --micro-batches\?"),
        (["search", MLP, "-oplan.json"], 2, r"did you mean -o plan.json\?"),
        (["search", MLP, "\u2014cluster", "C"], 2, r"typographic dash \(expected --cluster\)"),
        (["search", MLP, "cluster=C"], 2, r"did you mean --cluster=C\?"),
        (["search", MLP, "h100:4"], 2, r"one argument too many: h100:4; did you mean --cluster h100:4\?"),
        (["search", "C", MLP], 2, r"one argument too many: C; did you mean --cluster C\?"),
        (["search", MLP, "--", "--cluster", "C"], 2, r"--cluster: an option after --"),
        # values
        (["search", MLP, "--cluster"], 2, r"--cluster needs an argument \(expected --cluster CLUSTER\)"),
        (["search", MLP, "--cluster", "--json"], 2, r"--cluster needs an argument .* before --json"),
        (["search", MLP, "--cluster", ""], 2, r"--cluster: the value is empty"),
        (["search", MLP, "--cluster="], 2, r"--cluster: the value is empty"),
        (["info", ""], 2, r"argument 1 is empty"),
        (["info", MLP, "--json=yes"], 2, r"--json takes no argument \(got yes\)"),
        ([*search, "--searcher", "annael"], 2, r"one of auto, dqn, .*did you mean anneal\?"),
        ([*search, "--space", "single"], 2, r"did you mean single_stage\?"),
        ([*search, "--schedule", "1f1"], 2, r"did you mean 1f1b\?"),
        ([*search, "--baseline", "zero-3"], 2, r"did you mean zero3\?"),
        ([*search, "--objective", "tiem"], 2, r"did you mean time\?"),
        ([*search, "--relax", "batch"], 2, r"expected one of batch_statistics_per_micro_batch, rounded_sums"),
        ([*search, "--micro-batches", "atuo"], 2, r"expected auto or an integer from 1"),
        ([*search, "--evaluations=5k"], 2, r"5k: expected an integer from 1 to 1000000000, without a unit"),
        ([*search, "--evaluations", "0"], 2, r"expected an integer from 1"),
        ([*search, "--evaluations", "1e99"], 2, r"expected an integer from 1"),
        ([*search, "--evaluations", "9" * 30], 2, r"expected an integer of at most 1000000000$"),
        ([*search, "--also", "megatorn=x.json"], 2,
         r"megatorn is no target \(expected one of .*; did you mean megatron\?\)"),
        ([*search, "--also", "jax="], 2, r"expected TARGET=FILE"),
        ([*search, "--also", "jax=a.json", "--also", "torch=./a.json"], 2,
         r"--also a.json and --also ./a.json are one file"),
        ([*search, "--also", "jax=link.json"], 2, r"-o out.json and --also link.json are one file"),
        ([*search, "--also", "jax=./out.json"], 2, r"-o out.json and --also ./out.json are one file"),
        ([*search, "--also", f"jax={MLP}"], 2, r"would replace the module that is read"),
        ([*search, "--also", "jax=-"], 2, r"the report is on stdout"),
        ([*search, "--quota", "host", "=", "1"], 2, r"one argument too many: = \(expected"),
        (["propagate", MLP], 2, r"expected --mesh .*, or --keep-shardings"),
        ([*search, "--seconds", "1,5"], 2, r"expected a number from .* without a comma"),
        ([*search, "--seconds", "10s"], 2, r"expected a number from .* without a unit"),
        ([*search, "--seconds", "nan"], 2, r"expected a number"),
        ([*search, "--memory-fraction", "90%"], 2, r"from 1e-06 to 1, without a unit"),
        ([*search, "--seed", "-1"], 2, r"--seed -1: expected an integer of at least 0"),
        ([*search, "--seed", "1", "--seed", "2"], 2, r"--seed: given twice \(1 and 2\)"),
        ([*search, "--color", "nevr"], 2, r"did you mean never\?"),
        ([*search, "--mesh", "2x2"], 2, r'expected AXIS=SIZE at "2x2", such as data=2,model=4'),
        ([*search, "--pin", "*kernel*=-,modle"], 2, r"did you mean model\?"),
        ([*search, "--pin", "none*=-,model"], 2, r"the nearest are state"),
        ([*search, "--pin", "params/0=vaule(data,-)"], 2,
         r'pin "params/0=vaule.*: "vaule" is no hint .*; did you mean value\?'),
        ([*search, "--pin", "params/0=split(mdoel)"], 2, r"split\(DEVICES\); did you mean model\?"),
        ([*search, "--hints", MLP], 3, r"this is a binary HLO module, expected hints"),
        ([*run, "--device", "Cuda"], 2, r"did you mean cuda\?"),
        ([*run, "--comm", "NCCL"], 2, r"did you mean nccl\?"),
        ([*run, "--steps", "ten"], 2, r"--steps ten: expected an integer of at least 1"),
        ([*run, "--device", "gpu"], 2, r"did you mean cuda\?"),
        ([*search, "--device", "gpu"], 2, r"did you mean cuda\?"),
        (["cluster", "--probe", "--device", "gpu"], 2, r"--device gpu: expected one of cpu, cuda; did you mean cuda\?"),
        (["run", MLP, "--plan", "none", "--state", folder], 3,
         r"is a folder, expected a file of arrays \(automap convert writes"),
        (["run", MLP, "--plan", "none", "--state", folder / "losses.json"], 3,
         r"expected a file in npz, npy or safetensors format"),
        ([*run, "--keep", "3"], 2, r"--every, --keep and --resume need --checkpoint"),
        ([*run, "--trace-steps", "3"], 2, r"--trace-steps needs --trace"),
        ([*run, "--checkpoint", GPT], 2, r"model\.hlo\.pb: is a file, expected a folder"),
        ([*run, "--data", f"batch={folder / 'data.npz'}"], 2,
         r'no parameter "batch" \(expected NAME=FILE or INPUTS,TARGETS=FILE\)'),
        (["run", GPT, "--plan", "none", "--state", "random", "--data", f"token={folder / 'data.npz'}"], 2,
         r"did you mean tokens\?"),
        (["run", MLP, "--plan", "none"], 3, r'no array named "state.*expected in --state FILE, or --state random'),
        (["run", MLP, "--plan", "none", "--state", folder / "state.npz"], 3, r"state\.npz: .*expected in --data FILE"),
        ([*search, "--space", "pipeline"], 2,
         r"expected a baseline of several stages, such as --baseline even_pipeline, or --objective paper"),
        (["search", GPT, "--cluster", "nominal:2", "--mesh", "data=1,model=2", "--pin", "layers/*/kernel=-,model", "-o",
          "out.json"], 4,
         r"cannot have this sharding on mesh data=1 model=2: the pins of other parameters (prevent|set) model in "
         r"dimension [01]$"),
        ([*search, "--mesh", "data=1,model=2", "--pin", "params/0/kernel=data,-"], 4, r": axis data has one device$"),
        (["help", "search", "run"], 2, r"one argument too many: run \(expected automap help search\)"),
        (["help", "agent", "train", "x"], 2, r"one argument too many: x \(expected automap help agent train\)"),
        # files
        (["info", folder], 3, r"is a directory, expected a file; did you mean .*model\.hlo\.pb\?"),
        (["info", WORK], 3, r"is a directory, expected a file$"),
        (["info", folder / "modle.hlo.pb"], 3, r"did you mean model\.hlo\.pb\?"),
        (["info", MODELS / "mlp_tny" / "model.hlo.pb"], 3, r"did you mean .*/datasets/models/mlp_tiny\?"),
        (["search", MODELS / "mlp_tny" / "model.hlo.pb", "--cluster", "host:2"], 3, r"cannot be opened: .*mlp_tiny\?"),
        (["search", MLP, "--cluster", "nominal:2", "-o", folder], 2, r"cannot be written: Is a directory"),
        (["simulate", MLP, plan], 3, r"this is a plan, expected an HLO module; PLAN stands before MODEL"),
        (["explain", MLP, plan], 3, r"PLAN stands before MODEL"),
        (["export", MLP, plan, "--format", "jax"], 3, r"PLAN stands before MODEL"),
        (["lower", plan, "--plan", MLP], 3, r"PLAN stands before MODEL"),
        (["run", MLP, plan], 2, r"did you mean --plan .*p\.json\?"),
        (["run", MLP, "--plan", MLP], 3, r"this is a binary HLO module, expected a plan$"),
        (["run", MLP, "--plan", cluster], 3, r"this is a cluster, expected a plan; a cluster is given by --cluster"),
        (["search", MLP, "--cluster", plan], 3, r"this is a plan, expected a cluster"),
        (["info", MLP, "--roles", plan], 3, r"this is a plan, expected a roles file"),
        (["simulate", folder / "model.roles.json", MLP], 3,
         r"this is a roles file, expected a plan; roles are given by --roles"),
        (["info", folder / "data.npz"], 3, r"NumPy archive.*arrays are given by run --state or --data"),
        (["explain", plan], 2, r"expected automap explain PLAN MODEL, got one argument"),
        (["simulate", "--sweep", MLP, MLP], 2, r"expected automap simulate --sweep MODEL, got 2 arguments"),
        (["simulate", plan, MLP, "--relax", "x"], 2, r"--relax applies to --sweep"),
    ]
    for arguments, code, pattern in cases:
        done = automap(*arguments)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("automap: note:")]
        assert done.returncode == code, (arguments, done)
        assert len(lines) == 1 and re.search(pattern, lines[0]), (arguments, pattern, done.stderr)
        assert not (WORK / "out.json").exists(), arguments
        as_json = automap(*arguments,
                          "--json") if "--" not in map(str, arguments) and "--json" not in map(str, arguments) else None
        if as_json and len(arguments) > 1 and arguments[0] != "help":
            assert as_json.returncode == code and as_json.stderr.splitlines()[-1].startswith(ERROR), as_json
    # Forms that are right.
    for arguments in (["info", MLP, "--json", "--json"], ["info", "--", MLP],
                      [*search, "--evaluations=1e1", "--seed=3"]):
        assert automap(*arguments).returncode == 0, arguments
    # Unknown keys of JSON files.
    for source, key, wrong in ((cluster, "memory_bytes", "memory_byte"), (plan, "micro_batches", "microbatches")):
        (WORK / "wrong.json").write_text(source.read_text().replace(f'"{key}"', f'"{wrong}"', 1))
        done = automap(*(["simulate", WORK / "wrong.json", MLP] if source
                         == plan else ["cluster", WORK / "wrong.json"]))
        assert done.returncode == 3 and f"did you mean {key}?" in done.stderr, done


# ---- files of other frameworks ----

def archive(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"content")
    return buffer.getvalue()


def test_formats():
    files = {
        "StableHLO text": b'#loc = loc(unknown)\nmodule @jit_f attributes {mhlo.num_partitions = 1 : i32} {\n}\n',
        "MLIR bytecode": b"ML\xefR\x0dStableHLO_v1.15.0\0\x01\x02",
        "jax.export": b"\x3c\0\0\0\x38\0\x60\0" + bytes(120) + b"ML\xefR\x0dStableHLO" + bytes(60),
        "jaxpr": b"{ lambda ; a:f32[8,8]. let\n  b:f32[8,8] = tanh a in (b,) }",
        "SavedModel": b"\x08\x01\x12\xff\x10\x0a\x02\x01\x00",
        "ONNX": b"\x08\x08\x12\x07pytorch\x1a\x051.9.0\x00",
        "PyTorch archive": archive("model/data.pkl", "model/data/0"),
        "torch.export": archive("model/archive_format", "model/models/model.json"),
        "safetensors": (2).to_bytes(8, "little") + b"{}",
        "pickle": pickle.dumps({"weights": [1.0, 2.0]}),
        "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(16),
        "Python source": b"import jax\n",
        "memory report of XLA": b"Total bytes used: 53492 (52.2KiB)\n\nUsed values:\n",
        "live ranges of XLA": b"HloLiveRange (max 110):\n  InstructionSequence:\n",
        "options of XLA": b'xla_cpu_enable_fast_min_max: false\nxla_dump_to: "dump"\n',
        "LLVM code": b"; ModuleID = '__compute_module'\n",
    }
    path = WORK / "model"
    commands = [["info", path], ["search", path, "--cluster", "nominal:2"], ["run", path, "--plan", "none"],
                ["groups", path],
                ["propagate", path, "--mesh", "data=2"], ["lower", path, "--plan", "none"],
                ["convert", path, "out.hlo.txt"]]
    for name, data in files.items():
        path.write_bytes(data)
        for command in commands if name in ("StableHLO text", "pickle") else commands[:1]:
            done = automap(*command)
            assert (done.returncode, done.stdout) == (3, ""), (name, command, done)
            assert re.search(f"model: this is .*{name}.*, expected an HLO module; .", done.stderr), (name, done.stderr)
            assert len(done.stderr.splitlines()) == 1, (name, done.stderr)
    folder = WORK / "saved"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(files["SavedModel"])
    assert "SavedModel" in automap("info", folder).stderr


OPTIMIZED = """HloModule jit_f, is_scheduled=true

fused {
  p = f32[8,8] parameter(0)
  ROOT t = f32[8,8] tanh(p)
}

ENTRY main {
  x = f32[8,8] parameter(0)
  ROOT y = f32[8,8] fusion(x), kind=kLoop, calls=fused
}
"""


def test_optimized_modules():
    path = WORK / "optimized.hlo.txt"
    path.write_text(OPTIMIZED)
    info = automap("info", path)
    assert info.returncode == 0 and info.stderr.count("warning") == 1 and "before_optimizations" in info.stderr, (
        info.stderr)
    for command in (["search", path, "--cluster", "nominal:2"], ["run", path, "--plan", "none", "--state", "random"],
                    ["groups", path],
                    ["propagate", path, "--mesh", "data=2"], ["lower", path, "--plan", "none"]):
        done = automap(*command)
        assert (done.returncode, done.stdout) == (3, ""), done
        assert "--xla_dump_to" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert automap("convert", path, "converted.hlo.pb").returncode == 0
    assert "before_optimizations" in automap("info", "converted.hlo.pb").stderr
    (WORK / "unscheduled.hlo.txt").write_text(OPTIMIZED.replace(", is_scheduled=true", ""))
    assert "before_optimizations" in automap("info", "unscheduled.hlo.txt").stderr


# ---- warnings and tables ----

def test_tuple_parameter():
    """A parameter that is a tuple is named before the module is searched, also where it trains nothing."""
    path = WORK / "tuple.hlo.txt"
    path.write_text("HloModule m\nENTRY main {\n  p = (f32[8], f32[8]) parameter(0)\n"
                    "  x = f32[8] get-tuple-element(p), index=0\n  ROOT r = f32[8] negate(x)\n}\n")
    for command in (["search", path], ["simulate", "--sweep", path]):
        done = automap(*command, "--cluster", "nominal:2", "-o", WORK / "o.json")
        assert done.returncode == 3 and "parameter p is a tuple (expected" in done.stderr, (command, done)


def test_warnings():
    for command in (["info"], ["search", "--cluster", "nominal:2", "-o", "d.json"]):
        done = automap(command[0], MODELS / "dropout_tiny" / "model.hlo.pb", *command[1:])
        assert (done.returncode, done.stderr) == (0, ""), done  # loops over a random key
    call = ('  c{} = f32[{},64] custom-call(x), custom_call_target="mine", metadata={{op_name="jit(f)/mine{}" '
            'source_file="f.py" '
            'source_line={}}}\n')
    path = WORK / "calls.hlo.txt"
    path.write_text("HloModule m\nENTRY main {\n  x = f32[512,64] parameter(0)\n" + call.format(1, 512, 1, 7)
                    + call.format(2, 1024, 2, 8) +
                    "  ROOT t = (f32[512,64], f32[1024,64]) tuple(c1, c2)\n}\n")
    for command in (["info"], ["search", "--cluster", "nominal:2", "-o", "d.json"], ["groups"]):
        done = automap(command[0], path, *command[1:])
        assert done.returncode == 0 and len(done.stderr.splitlines()) == 1, done
        assert re.search(r'warning: operator "custom-call" has no partitioning rule: "jit\(f\)/mine2" \(f.py:8, 262 '
                         r'kB\) and 1 other '
                         r"are computed on every device; .", done.stderr), done.stderr
    assert automap("info", path, "--quiet").stderr == ""
    # Eight loops that end by the data: five are named, the others are counted.
    text = ("HloModule m\ncond {\n  c = (pred[], f32[8]) parameter(0)\n  ROOT r = pred[] get-tuple-element(c), "
            "index=0\n}\n")
    text += ("body {\n  ROOT b = (pred[], f32[8]) parameter(0)\n}\nENTRY main {\n  p = pred[] parameter(0)\n  x = "
             "f32[8] parameter(1)\n")
    text += "  l0 = (pred[], f32[8]) tuple(p, x)\n"
    for k in range(1, 9):
        text += f"  {'ROOT ' if k == 8 else ''}l{k} = (pred[], f32[8]) while(l{k - 1}), condition=cond, body=body\n"
    path.write_text(text + "}\n")
    lines = automap("info", path).stderr.splitlines()
    assert len(lines) == 6 and "trip count is unknown" in lines[0] and "3 more loops" in lines[5], lines


def test_tables():
    loop = """
cond{k} {{
  c = (s32[], f32[{k}]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}}
body{k} {{
  b = (s32[], f32[{k}]) parameter(0)
  i = s32[] get-tuple-element(b), index=0
  v = f32[{k}] get-tuple-element(b), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  w = f32[{k}] tanh(v)
  ROOT t = (s32[], f32[{k}]) tuple(next, w)
}}
"""
    entry = "ENTRY main {\n  zero = s32[] constant(0)\n"
    for k in range(1, 8):
        entry += f"  x{k} = f32[{k}] parameter({k - 1})\n  s{k} = (s32[], f32[{k}]) tuple(zero, x{k})\n"
        entry += f"  loop{k} = (s32[], f32[{k}]) while(s{k}), condition=cond{k}, body=body{k}\n"
        entry += f"  y{k} = f32[{k}] get-tuple-element(loop{k}), index=1\n"
    types = ", ".join(f"f32[{k}]" for k in range(1, 8))
    entry += f"  ROOT r = ({types}) tuple({', '.join(f'y{k}' for k in range(1, 8))})\n}}\n"
    path = WORK / "loops.hlo.txt"
    path.write_text("HloModule loops\n" + "".join(loop.format(k=k) for k in range(1, 8)) + entry)
    info, all_loops = automap("info", path).stdout, automap("info", path, "--verbose").stdout
    assert re.findall(r"^loop(\d) ", info, re.M) == ["7", "6", "5", "4", "3"], info
    assert "and 2 more with less work (--verbose: all)" in info
    assert re.findall(r"^loop(\d) ", all_loops, re.M) == list("1234567") and "--verbose" not in all_loops
    assert automap("info", path, "--json").stdout.count('"trips":3') == 7

    search = ["search", GPT, "--cluster", "nominal:4", "--baseline", "zero1", "-o", "zero.json"]
    folded, every = automap(*search).stdout, automap(*search, "--verbose").stdout
    row = r"^state\['{}'\]\['token_table'\] +optimizer +f32\[128,32\] +\[\S+\] +{}$"
    assert re.search(row.format(r"\{mean,variance\}", 2), folded, re.M) and "['mean']" not in folded, folded
    assert re.search(row.format("mean", 1), every, re.M) and re.search(row.format("variance", 1), every, re.M), every

    def parameters(text):
        return sum(int(number) for number in re.findall(r" optimizer .* (\d+)$", text, re.M))

    assert parameters(folded) == parameters(every) > 0


# ---- terminals ----

SEARCH = ["search", GPT, "--cluster", "C", "--space", "single_stage", "--evaluations", "100000000", "--seconds", "1.5",
          "-o", "t.json"]


def test_progress():
    terminal, output = on_terminal(*SEARCH)
    lines = re.findall(r"\r(search [^\r\x1b]*)\x1b\[K", terminal)
    assert lines and terminal.endswith("\r\x1b[K"), terminal
    assert re.fullmatch(r"search \d+ s   [a-z ]+   (no plan yet|best [\d.]+ \ws)   \d+ of 100000000 evaluations(   gap "
                        r"\S+ %)?(   \d+ \w+ left)?",
                        lines[-1]), lines
    assert all("   gap " in line for line in lines if "   best " in line) and "   best " in lines[-1], lines
    assert re.search("evaluations? in ", output) and not re.search("[\r\x1b]", output), output
    assert "\rsearch" in on_terminal(*SEARCH, "--json")[0]
    sweep = on_terminal("simulate", "--sweep", GPT, "--cluster", "h100:64")[0]
    assert re.search(r"\rsweep \d+ s   (no plan yet|best [\d.]+ \ws)   \d+( of \d+)? strategies",
                     sweep) and sweep.endswith("\r\x1b[K"), sweep
    # A note of a search that goes on is printed while it searches, in a line of its own.
    noted = on_terminal("search", MLP, "--cluster", "nominal:4", *SEARCH[6:], "--even")[0]
    assert re.search(r"(^|\r\x1b\[K)automap: note: --even applies [^\n]*\n\rsearch ", noted), noted
    for arguments, environment in ((["--quiet"], {}), ([], {"TERM": "dumb"})):
        assert on_terminal(*SEARCH, *arguments, **environment)[0] == "", (arguments, environment)
    done = automap(*SEARCH)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_progress_of_explain():
    """Many changes of a plan are counted on a terminal, and nowhere else."""
    model = MODELS / "t5_paper_24_3b" / "model.hlo.pb.zst"
    assert automap("search", model, "--cluster", "h100:8", "--baseline", "even_pipeline", "-o",
                   "e.json").returncode == 0
    for _ in range(5):  # the line appears after 0.2 s, which a fast machine may not need
        terminal, output = on_terminal("explain", "e.json", model)
        counted = re.search(r"\rexplain \d+ s   \d+ of \d+ changes(   \d+ s left)?\x1b\[K", terminal)
        if counted:
            break
    assert counted and terminal.endswith("\r\x1b[K"), terminal
    assert output and not re.search("[\r\x1b]", output), output
    done = automap("explain", "e.json", model)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", output), done.stderr


def test_progress_of_training():
    """The line gives way to the note about the interrupt, and to the reports before it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([AUTOMAP, "agent", "train", "--episodes", "1000000", "-o", "a.safetensors"],
                               stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=theirs, cwd=WORK, env=PLAIN)
    os.close(theirs)
    terminal, is_sent = b"", False
    try:
        while data := os.read(ours, 65536):
            terminal += data
            if not is_sent and re.search(rb"training \d+ s   [1-9]\d* of 1000000 episodes", terminal):
                process.send_signal(signal.SIGTERM)  # a second one would end it at once
                is_sent = True
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 130, terminal
    assert re.search(rb"\r\x1b\[Kautomap: interrupted after \d+ of 1000000 episodes", terminal), terminal


def without_styles(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_colors():
    plan = WORK / "p.json"
    simulate = ["simulate", plan, MLP]
    plain = automap(*simulate).stdout
    assert "\x1b" not in plain
    styled = on_terminal(*simulate, stdout_too=True)[0]
    assert "\x1b[1m" in styled and without_styles(styled) == plain, styled
    assert automap(*simulate, "--color", "always").stdout == styled
    assert automap(*simulate, "--color=always", NO_COLOR="1").stdout == styled
    for arguments, environment in (([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"}), (["--color", "never"], {}),
                                   (["--json"], {}),
                                   (["--json", "--color", "always"], {})):
        shown = on_terminal(*simulate, *arguments, stdout_too=True, **environment)[0]
        assert "\x1b" not in shown, (arguments, environment)
    assert automap(*simulate, "--color", "always", "-o",
                   "text").returncode == 0 and b"\x1b" not in (WORK / "text").read_bytes()
    tiny = automap(*simulate, "--memory-fraction", "1e-6", "--color", "always").stdout
    assert "\x1b[1;31m: DOES NOT FIT\x1b[0m" in tiny, tiny
    search = ["search", MLP, "--cluster", "nominal:2", "--baseline", "data_parallel", "-o", "s.json"]
    styled, plain = automap(*search, "--color", "always").stdout, automap(*search).stdout
    assert "\x1b[1;32mthis one" in styled
    # The columns stay; the times of the search differ.
    assert without_styles(styled).splitlines()[:-2] == plain.splitlines()[:-2]
    assert "\x1b" not in automap(*search, "--color", "always", "--json").stdout
    assert "\x1b[1m" in on_terminal("--help", stdout_too=True)[0]


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("passed:", name)
