"""A refusal is one line, whatever would have been noted before it.

A table of wrong command lines and files, with the exit code and a part of the answer for each. Stderr has exactly
one line; texts that are read by line have two more, the line in question and a caret. Stdout stays empty. Under
--json the line is an error object. Notes and warnings of commands that go on are printed.
"""
# labels: cpu e2e
# timeout: 200
# cost: 20

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, need_program

need_program()
MODELS = pathlib.Path(os.environ["AUTOMAP_SOURCE"]) / "datasets" / "models"
MLP = MODELS / "mlp_tiny" / "model.hlo.pb"
GPT = MODELS / "gpt2_tiny" / "model.hlo.pb"
STATE, DATA = MODELS / "mlp_tiny" / "state.npz", MODELS / "mlp_tiny" / "data.npz"
FOLDER = tempfile.TemporaryDirectory()
WORK = pathlib.Path(FOLDER.name)


def automap(*words):
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "XDG_CACHE_HOME": str(WORK / "cache"),
                                "AUTOMAP_NO_PROBE": "1"}
    return subprocess.run([AUTOMAP, *map(str, words)], capture_output=True, text=True, timeout=60, cwd=WORK,
                          stdin=subprocess.DEVNULL, env=environment)


def make_files():
    assert automap("search", MLP, "--cluster", "nominal:2", "-o", "plan.json").returncode == 0
    assert automap("search", GPT, "--cluster", "nominal:4", "--baseline", "data_parallel", "-o",
                   "gpt.json").returncode == 0
    assert automap("cluster", "nominal:2", "--json", "-o", "cluster.json").returncode == 0
    assert automap("convert", MLP, "module.hlo.txt").returncode == 0
    words = ("--plan", "none", "--state", STATE, "--data", DATA, "--checkpoint", "ck")
    assert automap("run", MLP, *words).returncode == 0
    (WORK / "folder").mkdir()
    (WORK / "half.json").write_text((WORK / "plan.json").read_text()[:400])
    (WORK / "half.hlo.txt").write_text((WORK / "module.hlo.txt").read_text()[:9000])
    (WORK / "half.npz").write_bytes(STATE.read_bytes()[:500])
    (WORK / "hosts").write_text("a slots=x\n")
    (WORK / "wide.json").write_text((WORK / "plan.json").read_text(), "utf-16")
    cluster = (WORK / "cluster.json").read_text()
    (WORK / "nan.json").write_text(cluster.replace('"memory_bytes": ', '"memory_bytes": NaN, "x": ', 1))


def changed(kind, *path_and_value):
    """A plan or cluster with one value replaced; returns its name."""
    *path, last, value = path_and_value
    root = json.loads((WORK / f"{kind}.json").read_text())
    at = root
    for key in path:
        at = at[key]
    at[last] = value
    name = f"{kind}_{'_'.join(map(str, path_and_value))}.json"
    name = re.sub(r"[^a-z0-9_.]", "", name)
    (WORK / name).write_text(json.dumps(root))
    return name


def digits(model):
    return json.loads(automap("info", model, "--json").stdout)["sha256"][:12]


def mistakes():
    search = ("search", MLP, "--cluster", "nominal:2", "-o", "out.json")
    on = ("search", MLP, "-o", "out.json", "--cluster")
    simulate, run = ("simulate",), ("run", MLP, "--plan", "none", "--state", STATE, "--data", DATA)
    return [
        # The reason is that of the form that was searched, not of forms with baselines alone.
        (4, "cannot be split exactly into 2 micro-batches", "search", MODELS / "flax_tiny" / "model.hlo.pb",
         "--cluster", "nominal:4", "--micro-batches", "2", "--evaluations", "10", "-o", "out.json"),
        # Options that narrow the search have a note where it goes on.
        (2, "nosuch", *search, "--pin", "nosuch=data"),
        (4, "prevent data in dimension 1", *search, "--pin", "*kernel=-,data"),
        (3, "hosts: expected a cluster in JSON; automap cluster --import reads hostfiles", *on, "./hosts"),
        (3, "did you mean cluster.json?", *on, "clustr.json"),
        (3, f"is of module {digits(MLP)}, and the one to be trained is {digits(GPT)}", "run", GPT, "--plan", "none",
         "--state", "random", "--data", GPT.parent / "data.npz", "--checkpoint", "ck", "--resume"),
        (4, "Megatron-LM trains transformers", "export", "plan.json", MLP, "--format",
         "megatron", "-o", "out"),
        (2, 'pin "*bias=-" and pin "*bias=data" contradict each other', "search", MLP, "-o", "out.json", "--cluster",
         "nominal:4", "--pin",
         "*bias=-", "--pin", "*bias=data"),
        (2, "3 devices, cluster nominal:2 has 2", *search, "--mesh", "data=3"),
        (2, "named twice", *search, "--mesh", "data=2,data=1"),
        (2, "expected AXIS=SIZE", *search, "--mesh", "data"),
        (2, "size of at least 1", *search, "--mesh", "data=0"),
        (2, '"model" is no axis of the mesh (expected - or data)', *search, "--mesh", "data=2", "--pin",
         "*kernel=model,-"),
        (2, '"data" is used twice', *search, "--mesh", "data=2", "--pin", "*kernel=data,data"),
        (2, "has rank 2", *search, "--mesh", "data=2", "--pin", "*kernel=data"),
        (2, "expected PATTERN=SHARDING", *search, "--mesh", "data=2", "--pin", "*kernel"),
        (2, "nosuch", *search, "--searcher", "exact", "--pin", "nosuch=data"),
        (4, "no plan of", *search, "--memory-fraction", "1e-6", "--even", "--evaluations", "9"),
        (4, "no baseline fits, ", *search, "--memory-fraction", "1e-6", "--evaluations", "1"),
        # A baseline with recomputation, over several numbers of micro-batches: not the last one's reason.
        (4, "--baseline megatron_full: there is one device", "search", MODELS / "flax_tiny" / "model.hlo.pb",
         "--cluster", "nominal:1", "--baseline", "megatron_full", "-o", "out.json"),
        (4, "--baseline zero3_full: needs ", "search", GPT, *search[2:], "--baseline", "zero3_full",
         "--memory-fraction", "5e-5"),
        (3, "give --mesh", *search, "--keep-shardings"),
        (3, "gpt.json: $.module", *search, "--init-plan", "gpt.json", "--even"),
        (3, "the module trains nothing", "search", MODELS / "mlp_evaluate" / "model.hlo.pb", "--even", *search[2:]),
        (2, "neither a file nor built in", *on, "nosuch", "--even"),
        (3, "cannot be opened", "search", "nosuch.hlo.pb", "--even", *search[2:]),
        (2, "--micro-batches 0", *search, "--even", "--micro-batches", "0"),
        (2, "cuts pipelines", *search, "--even", "--agent", "nosuch"),
        (2, "applies to pipelines", *search, "--even", "--schedule", "gpipe"),
        # Values.
        (2, "nan: expected a number", *search, "--memory-fraction", "nan"),
        (2, "inf: expected a number", *search, "--seconds", "inf"),
        (2, "expected an integer", *search, "--evaluations", "1.5"),
        (2, "did you mean", *search, "--searcher", "annael"),
        (2, "did you mean rtx-4090:2?", *on, "rtx-4980:2"),
        (2, "N from 1 to 2048", *on, "h100:0"),
        (2, "N from 1 to 1024", *on, "nominal:99999999999"),
        # Files of another kind, cut ones, wrong types.
        (3, "plan.json: this is a plan, expected a cluster", *on, "plan.json"),
        (3, "binary HLO module, expected a cluster", *on, MLP),
        (3, "folder: is a directory", *on, "folder"),
        (3, "wide.json: this is UTF-16 text (expected UTF-8)", *search, "--hints", "wide.json"),
        (3, "nan.json:6:25: not valid JSON", *on, "nan.json"),
        (3, "$.servers: expected at least one", *on, changed("cluster", "servers", [])),
        (3, "$.servers[0].count: expected an integer", *on, changed("cluster", "servers", 0, "count", "1")),
        (3, "no device type", *on, changed("cluster", "servers", 0, "device_type", "nosuch")),
        (3, "half.json:", *simulate, "half.json", MLP),
        (3, "PLAN stands before MODEL", *simulate, MLP, "plan.json"),
        (3, "plan.json: $.module", *simulate, "plan.json", GPT),
        (3, "$.stages[0].devices: expected an array", *simulate, changed("plan", "stages", 0, "devices", "0"), MLP),
        (3, "$.stages[0].mesh[0].size", *simulate, changed("plan", "stages", 0, "mesh", 0, "size", "2"), MLP),
        (3, "$.surprise: unknown key", *simulate, changed("plan", "surprise", 1), MLP),
        (3, '$.relaxations[0]: "x" is no relaxation (expected batch_statistics', *simulate,
         changed("plan", "relaxations", ["x"]), MLP),
        (3, "half.npz: is not a readable zip archive", *run[:5], "half.npz"),
        (3, "half.hlo.txt:", "info", "half.hlo.txt"),
        (3, "hosts:1:9:", "cluster", "--import", "hosts", "--device-type", "T4"),
        # A plan that does not suit: each command names the plan's file and the place in it.
        *((3, "plan_stages_0_devices_05.json: $.stages[0].devices: 5 is not a device of cluster nominal:2 (expected 0 "
              "to 1)", *words)
          for plan in [changed("plan", "stages", 0, "devices", [0, 5])]
          for words in (("simulate", plan, MLP), ("explain", plan, MLP),
                        ("run", MLP, "--plan", plan, "--state", "random"))),
        (3, "plan_stages_0_devices_05.json: $.stages: 5 is not a device of cluster nominal:2", *search, "--init-plan",
         "plan_stages_0_devices_05.json"),
        (3, "plan.json: $.stages: a plan for 2 devices", *on, "nominal:4", "--init-plan", "plan.json"),
        *((3, "plan_micro_batches_3.json: $.micro_batches: a batch of 16 cannot be split", *words)
          for plan in [changed("plan", "micro_batches", 3)]
          for words in (("simulate", plan, MLP), ("explain", plan, MLP), ("export", plan, MLP, "--format", "jax"),
                        ("lower", MLP, "--plan", plan), ("run", MLP, "--plan", plan, "--state", "random"))),
        (4, "model.hlo.pb: Megatron-LM trains transformers", "export", "plan.json", MLP, "--format", "megatron"),
        # Warnings of a state file come before its own refusal.
        (3, "no array named", "run", MLP, "--plan", "none", "--state", MODELS / "gpt2_tiny" / "state.npz", "--data",
         DATA),
        (2, "output[99]", *run, "--watch", "output[99]"),
        (2, "need --checkpoint", *run, "--resume"),
        (2, "expected --eval MODEL", *run, "--eval-every", "2"),
        (2, "below 2", *simulate, "plan.json", MLP, "--slow", "9=2"),
        (2, "both be on stdout", "explain", "plan.json", MLP, "--html", "-"),
        (2, "did you mean agent train", "agent", "trian"),
        (2, "unknown command", "probe"),
        (2, "got 2 arguments", "diff", "plan.json", "gpt.json"),
        (2, "expected automap version", "version", "3"),
        (2, "did you mean --help?", "--hlp"),
        (2, "-1: expected an integer", *simulate, "plan.json", MLP, "--seed", "-1"),
        # The policy is read before the search, which may be too short to need it.
        (3, "nosuch: cannot be opened", *search, "--policy", "nosuch", "--evaluations", "5"),
        (3, "half.npz", *search, "--policy", "half.npz", "--evaluations", "5", "--even"),
        (2, "--baseline zero1 and --searcher exact: a baseline is priced without a search", *search, "--baseline",
         "zero1", "--searcher", "exact"),
        (2, "--baseline fsdp: the latter starts from no plan", *search, "--baseline", "fsdp", "--init-plan",
         "plan.json"),
        # Files that are read are not replaced.
        (2, "would replace the policy", "search", MLP, "--cluster", "nominal:2", "--policy", "half.npz", "-o",
         "half.npz"),
        (2, "would replace the data", *run, "--eval", MLP, "--eval-data", "half.npz", "--log", "half.npz"),
        (2, "would replace the module", *run, "--eval", "module.hlo.txt", "--eval-data", DATA, "--log",
         "module.hlo.txt"),
        (2, "would replace the module", "agent", "train-search", "module.hlo.txt", "--checkpoint", "module.hlo.txt",
         "-o",
         "x.safetensors"),
        (2, "a file without a command", MLP),
    ]


def check_line(code, part, words):
    done = automap(*words)
    lines = done.stderr.splitlines()
    place = re.match(r"automap: .*?:\d+:\d+: ", done.stderr)
    is_text = place and not re.match(r"automap: [^ ]*\.json:", done.stderr)  # with the line and a caret
    assert done.returncode == code and part in lines[0], f"{words}: {done.returncode}, {done.stderr}"
    assert len(lines) == (3 if is_text else 1), f"{words}: {len(lines)} lines: {done.stderr}"
    assert lines[0].startswith("automap: ") and done.stdout == "", f"{words}: {done.stdout[:200]}"


def check_json(code, part, words):
    done = automap(*words, "--json")
    assert len(done.stderr.splitlines()) == 1, f"{words}: {done.stderr}"
    error = json.loads(done.stderr)["error"]
    assert error["code"] == code, f"{words}: {done.stderr}"


def check_notes():
    """Notes of a command that goes on: a search with an option that narrows it, a run with a warning."""
    done = automap("search", MLP, "--cluster", "nominal:2", "--even", "--evaluations", "9", "-o", "even.json")
    note = "automap: note: --even applies to one-stage plans: pipelines are not searched\n"
    assert (done.returncode, done.stderr) == (0, note), done.stderr
    done = automap("search", MLP, "--cluster", "host:2", "--evaluations", "9", "-o", "host.json", "--quiet")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    done = automap("cluster", "host:1000")
    assert done.returncode == 0 and "nominal figures" in done.stderr, done.stderr
    done = automap("run", MLP, "--plan", "none", "--state", STATE, "--data", DATA, "--tf32")
    assert done.returncode == 0 and "warning: device cpu multiplies f32 in f32" in done.stderr, done.stderr
    done = automap("export", "even.json", MLP, "--format", "jax", "-o", "shardings.json")
    assert done.returncode == 0 and done.stderr.startswith("automap: note: "), done.stderr


def check_names():
    """A name with nothing but the suffix of a file is no misspelling of it."""
    done = automap("simulate", "pump.json", MLP)
    assert done.stderr.endswith("No such file or directory\n"), done.stderr


make_files()
check_names()
TABLE = mistakes()
for code, part, *words in TABLE:
    check_line(code, part, words)
for code, part, *words in TABLE[:20]:
    check_json(code, part, words)
check_notes()
print(f"{len(TABLE)} refusals of one line")
