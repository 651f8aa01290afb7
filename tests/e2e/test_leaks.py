# labels: cpu e2e
# timeout: 300
# cost: 20
"""No command leaks memory, whether it succeeds or fails (program automap_leaks, linked with LeakSanitizer)."""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("AUTOMAP_SOURCE", os.path.join(HERE, "..", ".."))
BUILD = os.environ.get("AUTOMAP_BUILD", os.path.join(SOURCE, "build"))
PROGRAM = os.environ.get("AUTOMAP_LEAKS", os.path.join(BUILD, "automap_leaks"))
sys.path.insert(0, HERE)
os.environ["AUTOMAP_TIGHT"] = PROGRAM
import test_low_memory as low  # noqa: E402  (its commands and their inputs)

LEAK = 23
MLP = low.MLP
STATE = os.path.join(os.path.dirname(MLP), "state.npz")
DATA = os.path.join(os.path.dirname(MLP), "data.npz")
TRAIN = ["run", MLP, "--state", STATE, "--data", DATA, "--steps", "3"]
MORE = [
    [*TRAIN, "--plan", "none", "--save", "s.npz", "--log", "l.jsonl", "--tensorboard", "tb", "--trace", "t.json"],
    [*TRAIN, "--plan", "plan.json", "--checkpoint", "ck", "--every", "1", "--json"],
    [*TRAIN, "--plan", "plan.json", "--checkpoint", "ck"],
    [*TRAIN, "--plan", "plan.json", "--eval", MLP, "--eval-data", DATA, "--eval-every", "1"],
    [*TRAIN, "--plan", "none", "--eval", MLP, "--eval-data", STATE],
    [*TRAIN, "--plan", "none", "--eval", low.BERT, "--eval-data", DATA],
    [*TRAIN, "--plan", "pipeline.json", "--checkpoint", "ck", "--resume", "--steps", "5"],
    [*TRAIN, "--plan", "pipeline.json", "--profile", "profile.jsonl"],
    ["simulate", "plan.json", MLP, "--profile", "profile.jsonl"],
    ["convert", "ck", "whole.safetensors"],
    ["convert", MLP, "model.hlo.pb", "--mixed-precision", "bf16"],
    ["convert", "model.hlo.pb", "again.hlo.pb", "--mixed-precision", "bf16"],
    ["convert", low.BERT, "model.hlo.pb", "--mixed-precision", "bf16"],
    ["info", "nowhere"], ["info", "bad.json"], ["info", "cut.pb"], ["info", "cut.txt"], ["info", "cut.json"],
    ["simulate", "bad.json", MLP], ["simulate", "cut.plan.json", MLP], ["cluster", "bad.json"],
    ["cluster", "cut.cl.json"],
    ["search", MLP, "--cluster", "nowhere"], ["search", MLP, "--cluster", "nominal:4", "--searcher", "x"],
    ["search", MLP, "--cluster", "nominal:4", "--memory-fraction", "1e-9"],
    ["run", MLP, "--plan", "none", "--state", "bad.json"], ["run", MLP, "--plan", "plan.json", "--state", "cut.npz"],
    ["run", MLP, "--plan", "none", "--state", STATE], ["run", MLP],
    ["export", "pipeline.json", MLP, "--format", "jax"], ["export", "plan.json", MLP, "--format", "x"],
    ["lower", MLP, "--plan", "plan.json", "--device", "99"], ["explain", "cut.plan.json", MLP],
    ["propagate", MLP, "--mesh", "data=2", "--pin", "*nothing=data"], ["cluster", "--import", "bad.json"],
    ["compare", "plan.json", MLP, "--trace", "t.json"], ["compare", "plan.json", MLP, "--trace", "bad.json"],
    ["diff", "plan.json", "pipeline.json", MLP], ["diff", "plan.json", MLP, "plan.json"],
    ["published", "runs.csv", "--row", "2", "--write-module", "run.hlo.pb", "--write-plan", "run.json"],
    ["published", "bad.csv"], ["published", "bad.json"],
    ["agent", "train-search", MLP, "--problems", "2", "-o", "policy.safetensors"],
    ["search", MLP, "--cluster", "nominal:2", "--policy", "policy.safetensors", "--evaluations", "4", "-o", "out.json"],
    ["search", MLP, "--cluster", "nominal:2", "--policy", "cut.npz", "--evaluations", "4", "-o", "out.json"],
    ["--help"], ["search", "--help"], ["--version"], ["x"],
]
RUNS = """source,model,layers,hidden,heads,vocab,sequence,device,devices,global_batch,data,tensor,pipeline,schedule
paper,gpt,4,64,8,512,32,A100-80GB,8,32,4,2,1,none
"""


def cut(source, target):
    """Writes the first two thirds of a file."""
    data = open(source, "rb").read()
    with open(target, "wb") as file:
        file.write(data[:len(data) * 2 // 3])


def main():
    if not os.path.exists(PROGRAM):
        print("skipped: this compiler has no leak checker")
        return 77
    environment = dict(os.environ, LSAN_OPTIONS=f"exitcode={LEAK}", AUTOMAP_THREADS="1")
    failures = count = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["LSAN_OPTIONS"] = f"exitcode={LEAK}"
        probe = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, env=environment)
        if "fatal error" in probe.stderr:
            print("skipped: the leak checker cannot run here:", probe.stderr.strip()[:200])
            return 77
        low.prepare(folder)
        with open("bad.json", "w") as file:
            file.write('{"format": "automap-plan-9", "stages": [{}]}')
        for name, text in (("runs.csv", RUNS), ("bad.csv", RUNS.replace("gpt", "gtp"))):
            with open(name, "w") as file:
                file.write(text)
        for source, target in ((MLP, "cut.pb"), ("model.hlo.txt", "cut.txt"), ("model.hlo.json", "cut.json"),
                               ("plan.json", "cut.plan.json"), ("cluster.json", "cut.cl.json"), (STATE, "cut.npz")):
            cut(source, target)
        for arguments in [*(row[0] for row in low.COMMANDS.values()), *MORE]:
            result = subprocess.run([PROGRAM, *arguments], capture_output=True, env=environment)
            text = result.stderr.decode(errors="replace")
            count += 1
            if result.returncode == LEAK or "LeakSanitizer" in text or result.returncode < 0:
                failures += 1
                print(f"{' '.join(arguments)}: exit {result.returncode}\n{text[:3000]}", flush=True)
    print(f"{count} commands, {failures} with leaks")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
