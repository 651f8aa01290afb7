# labels: cpu e2e
# python: jax
"""Every JSON document that the program writes has a format version, and agrees with docs/schemas/FORMAT.json.

Each schema is used by at least one document. A document with an unknown key, or without its version, is refused by its
schema. The validator is fastjsonschema.

Run as `AUTOMAP=build/automap .venv/bin/python tests/e2e/test_schemas.py`.
"""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import FULL, MODELS, automap, skip_where_missing, succeed

with skip_where_missing():
    import fastjsonschema

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = SOURCE / "docs" / "schemas"
names = ("mlp_tiny", "gpt2_tiny", "lstm_tiny", "llama_tiny")
MLP, GPT, LSTM, LLAMA = (MODELS / name / "model.hlo.pb" for name in names)
EVEN = ["--space", "pipeline", "--baseline", "even_pipeline", "--mesh", "data=2", "--micro-batches", 4]
ROW = {"source": "a", "group": "g", "model": "gpt", "layers": 2, "hidden": 64, "heads": 8, "vocab": 512, "sequence": 32,
       "dtype": "f16", "device": "A100-80GB", "devices": 8, "per_server": 8, "global_batch": 8, "micro_batch": 1,
       "data": 8, "tensor": 1, "pipeline": 1, "outcome": "ok", "step_seconds": 0.01}  # fmt: skip


def read_schemas():
    def load(name):
        return json.loads((SCHEMAS / name).read_text())

    schemas = {}
    for path in sorted(SCHEMAS.glob("*.json")):
        schema = load(path.name)
        assert schema["properties"]["format"] == {"const": path.stem}, f"{path.name}: its format is another"
        schemas[path.stem] = fastjsonschema.compile(schema, handlers={"": load})
    return schemas


class Checker:
    """Counts the documents of each format."""

    def __init__(self):
        self.schemas = read_schemas()
        self.counts = dict.fromkeys(self.schemas, 0)

    def check(self, document, where):
        name = document.get("format") if isinstance(document, dict) else None
        assert name in self.schemas, f"{where}: no format with a schema, but {name}"
        try:
            self.schemas[name](document)
        except fastjsonschema.JsonSchemaException as error:
            raise AssertionError(f"{where}: {name}: {error}") from None
        if self.counts[name] == 0:
            self.check_strict(name, document)
        self.counts[name] += 1

    def check_strict(self, name, document):
        """The schema refuses a key that it does not know, and a document without its version."""
        without = {key: value for key, value in document.items() if key != "format"}
        for other in (document | {"surprise": 1}, without):
            try:
                self.schemas[name](other)
            except fastjsonschema.JsonSchemaException:
                continue
            raise AssertionError(f"{name}: its schema accepts a changed document")

    def check_text(self, text, where):
        """One document, or one on each line."""
        lines = [text] if text.startswith("{\n") else text.splitlines()
        assert lines, f"{where}: no output"
        for line in lines:
            self.check(json.loads(line), where)

    def run(self, *words):
        self.check_text(succeed(*words, "--json", "--quiet"), " ".join(map(str, words)))

    def fail(self, *words):
        done = automap(*words, "--json")
        assert done.returncode, words
        self.check_text(done.stderr.splitlines()[-1], " ".join(map(str, words)))

    def file(self, path):
        self.check(json.loads(path.read_text()), path.name)


def check_modules(checker):
    checker.run("info", MLP)
    checker.run("info", LSTM)
    checker.run("info", GPT)
    unbounded = WORK / "unbounded.hlo"
    unbounded.write_text("HloModule m\n\nENTRY e {\n  ROOT p = f32[?,4]{1,0} parameter(0)\n}\n")
    checker.run("info", unbounded)
    for words in ([], ["--strict"], ["--axis-size", 3]):
        checker.run("groups", MLP, *words)
    checker.run("propagate", MLP, "--mesh", "data=2,model=2", "--pin", "*kernel=-,model", "--pin", "*bias=data")
    checker.run("lower", MLP, "--plan", "none")
    for path in MODELS.glob("*/model.roles.json"):
        checker.file(path)


def check_plans(checker):
    """Searches, plans and reports of them."""
    plans = {"one": (MLP, ["--cluster", "nominal:4"]), "even": (GPT, ["--cluster", "nominal:4", *EVEN]),
             "zb_2p": (MLP, ["--cluster", "nominal:4", *EVEN, "--schedule", "zb_2p"]),
             "zero": (MLP, ["--cluster", "h100:1", "--baseline", "zero3"]),
             "offloaded": (GPT, ["--cluster", "h100:1", "--baseline", "zero1", "--offload", "optimizer"]),
             "shares": (MLP, ["--cluster", "whale-dp", "--space", "single_stage"]),
             "measured": (MLP, ["--cluster", "host:2", "--no-probe", "--measure", 2, "--evaluations", 20]),
             "paper": (MLP, ["--cluster", "nominal:4", "--objective", "paper", "--space", "operator",
                             "--evaluations", 20]),
             "rewritten": (LLAMA, ["--cluster", "h100:1", "--evaluations", 5, "--attention", "fused"]),
             "megatron": (GPT, ["--cluster", "nominal:4", "--for", "megatron", "--evaluations", 5]),
             "titan": (GPT, ["--cluster", "nominal:4", "--for", "torchtitan", "--evaluations", 5])}  # fmt: skip
    for name, (module, words) in plans.items():
        file = WORK / f"{name}.json"
        checker.run("search", module, *words, "-o", file)
        checker.file(file)
        checker.run("simulate", file, module, "--verbose")
        checker.run("explain", file, module)
        checker.run("export", file, module, "--format", "automap")
    checker.run("search", MLP, "--cluster", "nominal:4", "--also", f"jax={WORK}/jax.json", "-o", WORK / "a.json")
    checker.file(WORK / "jax.json")
    for name, target in (("one", "jax"), ("even", "jax"), ("zb_2p", "jax"), ("one", "torch"), ("even", "torch"),
                         ("one", "hlo"), ("one", "shardy"), ("megatron", "megatron"), ("titan", "torchtitan")):
        checker.run("export", WORK / f"{name}.json", plans[name][0], "--format", target)
    checker.run("diff", WORK / "even.json", WORK / "megatron.json", GPT)
    checker.run("simulate", "--sweep", GPT, "--cluster", "nominal:4")


def check_runs(checker):
    folder = MODELS / "mlp_tiny"
    source = ["--state", folder / "state.npz", "--data", folder / "data.npz", "--steps", 2]
    checker.run("run", MLP, "--plan", "none", *source, "--log", WORK / "log.jsonl", "--watch", "output[0]")
    checker.run("run", MLP, "--plan", WORK / "one.json", *source, "--profile", WORK / "profile.json", "--trace",
                WORK / "trace.json")
    checker.run("compare", WORK / "one.json", MLP, "--trace", WORK / "trace.json")
    checker.check_text((WORK / "log.jsonl").read_text(), "--log")
    checker.file(WORK / "profile.json")


def check_others(checker):
    checker.run("cluster")
    for name in ("A", "C", "h100:16", "nominal:4", "tpu-v5e:16", "gb200:4"):
        checker.run("cluster", name)
    agent = SOURCE / "datasets" / "agents" / "pipeline.safetensors"
    checker.run("agent", "evaluate", agent, "--count", 2)
    checker.run("agent", "evaluate", agent, GPT, "--cluster", "nominal:4", "--stages", 2)
    if FULL:
        checker.run("agent", "train", "--episodes", 64, "-o", WORK / "agent.safetensors")
    else:
        del checker.counts["automap-cut-training-1"]
    checker.run("agent", "train-search", MLP, "--problems", 1, "-o", WORK / "policy.safetensors")
    rows = WORK / "rows.csv"
    rows.write_text(f"{','.join(ROW)}\n{','.join(map(str, ROW.values()))}\n")
    checker.run("published", rows)
    checker.fail("info", WORK / "absent.hlo")
    checker.fail("search", MLP, "--cluster", "nominal:4", "--memory-fraction", "0.0000001", "-o", WORK / "none.json")


WORK = pathlib.Path(tempfile.mkdtemp())


def main():
    checker = Checker()
    for check in (check_modules, check_plans, check_runs, check_others):
        check(checker)
    unused = [name for name, count in checker.counts.items() if count == 0]
    assert not unused, f"schemas that no document uses: {unused}"
    print(f"{sum(checker.counts.values())} documents of {len(checker.counts)} formats agree with their schemas")


if __name__ == "__main__":
    main()
