# labels: cpu e2e
# timeout: 120
"""automap published: rows become modules and plans that simulate prices alike, modules train as the zoo's, empty
fields take the fastest value, and rows that cannot be planned are named by line.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_published.py`.
"""

import csv
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import MODELS, automap, module

WORK = pathlib.Path(tempfile.mkdtemp())

COMMON = dict(source="paper", group="g", model="gpt", layers=4, hidden=64, heads=8, kv_heads=8, ffn=256, vocab=512,
              sequence=32, dtype="f16", device="A100-80GB", devices=8, per_server=8, global_batch=32, micro_batch=2,
              data=8,
              tensor=1, pipeline=1, schedule="none", zero=0, sequence_parallel="no", recompute="none",
              attention="unfused", outcome="ok", step_seconds=0.01)  # fmt: skip

OPTIONS = ["chunks", "context", "expert", "network_gbit_per_device", "row", "norms", "eager", "dropout", "gradients",
           "overlap", "reductions", "gradient_sum", "cuts", "logits", "outputs", "kernels", "loss",
           "qkv", "note", "optimizer"]  # fmt: skip

PLANNED = [
    dict(),
    dict(data=2, tensor=4, group="h", step_seconds=0.02),
    dict(data=2, tensor=4, sequence_parallel="yes", recompute="selective"),
    dict(data=2, pipeline=4, schedule="1f1b", recompute="full"),
    dict(data=2, tensor=2, pipeline=2, chunks=2, schedule="interleaved_1f1b", micro_batch=4),
    dict(data=4, pipeline=2, schedule="zb_1p", micro_batch=2),
    dict(zero=3, model="llama", kv_heads=4, dtype="bf16", attention="flash"),
    dict(devices=16, per_server=8, network_gbit_per_device=100, data=16, zero=1),
    dict(data=2, tensor=2, pipeline=2, schedule="1f1b", zero=1),
    dict(data=4, tensor=2, zero=2, model="llama", recompute="full"),
    dict(model="t5", layers=2, dtype="f32"),
    dict(model="bert", tensor=2, data=4, outcome="oom", step_seconds=""),
    dict(data=4, pipeline=2, schedule="zb_2p", micro_batch=2),
    dict(data=2, context=4, model="llama", attention="flash"),
    dict(data=2, context=2, tensor=2, sequence_parallel="yes", zero=1),
    dict(data=2, pipeline=4, schedule="interleaved_1f1b", chunks="", micro_batch="", eager="yes", norms="unfused"),
    dict(data=4, tensor=2, gradients="f32", overlap="yes", dropout="no", note="kernel torch", recompute="full"),
    dict(data=4, tensor=2, attention="flash1", model="llama", eager="yes"),
    dict(data=2, tensor=2, pipeline=2, schedule="1f1b", zero=1, gradients="f16", reductions="f32",
         gradient_sum="all_reduce", cuts="modules", logits="gathered", outputs="kept", eager="yes", model="llama",
         attention="flash"),
    dict(data=4, tensor=2, zero=1, gradients="f16", gradient_sum="all_reduce", loss="fused", qkv="separate"),
    dict(data=2, pipeline=4, layers=6, chunks=2, schedule="interleaved_1f1b", micro_batch=4),
    dict(per_server="", kv_heads="", ffn="", zero="", recompute="", attention="", schedule="", chunks=""),
]
REFUSED = [
    (dict(device="Z9000"), "unknown device Z9000"),
    (dict(data=4), "expected 8 devices"),
    (dict(micro_batch=3), "expected a multiple of data 8 x micro_batch 3"),
    (dict(model="rnn"), "unknown model rnn"),
    (dict(schedule="wave", pipeline=2, data=4), "schedule wave cannot be planned"),
    (dict(devices=16, data=16, zero=1), "without a network rate"),
    (dict(expert=4), "the models have no experts to split"),
    (dict(dropout="maybe"), "unknown dropout maybe (expected yes or no)"),
    (dict(devices=16416, data=16416, global_batch=16416, micro_batch=1), "expected at most 16384"),
    (dict(outcome="slow"), "unknown outcome slow (expected ok or oom)"),
    (dict(attention="fast"), "unknown attention fast (expected flash, flash1 or unfused)"),
    (dict(vocab=""), "column vocab is empty"),
    (dict(heads=7), "expected a multiple of 7 heads"),
    (dict(chunks=2), "expected schedule interleaved_1f1b"),
    (dict(pipeline=8, data=1, schedule="1f1b"), "layers: 4 cannot be cut into 8 stages or chunks"),
    (dict(data="", tensor="", pipeline=""), "no strategy is given"),
]


def write_runs(name, rows):
    path = WORK / name
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, sorted({*COMMON, *OPTIONS}))
        writer.writeheader()
        for number, row in enumerate(rows):
            writer.writerow({**COMMON, "row": f"r{number}", **row})
    return path


def succeed(*words):
    done = automap(*words)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr}"
    return done.stdout


def published(path, *options):
    return [json.loads(line) for line in succeed("published", path, "--json", *options).splitlines()]


def check_same_figures(path, found):
    """--write-module and --write-plan, then simulate."""
    module, plan = WORK / "m.hlo.pb", WORK / "p.json"
    for k, row in enumerate(found[: len(PLANNED)]):
        assert row["error"] is None, row
        one = published(path, "--row", k + 2, "--write-module", module, "--write-plan", plan)
        assert one == [row], (one, row)
        simulated = json.loads(succeed("simulate", plan, module, "--json"))
        assert simulated["step_seconds"] == row["predicted_seconds"], (PLANNED[k], row, simulated["step_seconds"])
        peak = max(d["peak_bytes"] + d["channel_bytes"] for d in simulated["devices"])
        assert abs(peak / 2**30 - row["predicted_peak_gib"]) < 1e-12, (PLANNED[k], peak, row)
        assert simulated["fits"] == row["fits"]


def check_refused(found):
    for row, (changes, words) in zip(found[len(PLANNED) :], REFUSED, strict=True):
        assert words in row["error"] and row["predicted_seconds"] is None, (changes, row)


def check_text(path):
    text = succeed("published", path)
    for k, (changes, words) in enumerate(REFUSED):
        line = next(line for line in text.splitlines() if line.startswith(f"line {len(PLANNED) + k + 2}:"))
        assert words in line, (changes, line)
    summary = next(line for line in text.splitlines() if line.startswith("all ")).split()
    measured = len(PLANNED) - 1 + len(REFUSED) - 1
    assert [int(word) for word in summary[1:3]] == [measured, len(REFUSED) - 1], summary


def check_empty(path):
    """The fastest of all micro-batches and chunks, also one chunk as 1f1b; where none fits, the least memory."""
    base = dict(data=2, tensor=1, pipeline=4, schedule="interleaved_1f1b", layers=8, micro_batch="", chunks="")
    given = [dict(base, micro_batch=m, schedule=schedule, chunks=chunks) for m in (1, 2, 4, 8, 16)
             for schedule, chunks in (("interleaved_1f1b", 2), ("1f1b", 1))]  # fmt: skip
    found = published(write_runs("empty.csv", [base, *given]))
    times = [row["predicted_seconds"] for row in found[1:] if row["predicted_seconds"]]
    assert times and found[0]["predicted_seconds"] == min(times), found
    found = published(write_runs("empty.csv", [base, *given]), "--memory-fraction", 1e-6)
    peaks = [row["predicted_peak_gib"] for row in found[1:] if row["predicted_seconds"]]
    assert not found[0]["fits"] and found[0]["predicted_peak_gib"] == min(peaks) < max(peaks), found


def check_zero_bubble():
    """The next step fills the bubble of zb_2p, for more memory: a step is shorter than under zb_h1, and no shorter
    than the work of a stage. Its trace has the wait of the last stage, too."""
    rows = [dict(device="A100-80GB", devices=4, data=1, pipeline=4, layers=16, hidden=2048, heads=16, kv_heads=16,
                 ffn=8192,
                 sequence=512, global_batch=64, micro_batch=4, schedule=schedule)
            for schedule in ("1f1b", "zb_h1", "zb_2p")]  # fmt: skip
    path = write_runs("bubbles.csv", rows)
    alternating, less, none = published(path)
    assert none["predicted_seconds"] < 0.97 * less["predicted_seconds"] < 0.97 * alternating["predicted_seconds"]
    assert none["predicted_peak_gib"] > 1.3 * less["predicted_peak_gib"]
    module, plan = WORK / "m.hlo.pb", WORK / "p.json"
    published(path, "--row", 4, "--write-module", module, "--write-plan", plan)
    found = json.loads(succeed("simulate", plan, module, "--json"))
    busy = [d["compute_seconds"] + d["communication_seconds"] - d["hidden_seconds"] for d in found["devices"]]
    assert max(busy) <= found["step_seconds"] < 1.1 * max(busy), found
    assert all(d["idle_seconds"] >= 0 for d in found["devices"]), found


def check_search():
    """A search is not slower than the strategy that is given, and needs none."""
    small = dict(devices=2, data=1, tensor=2, layers=2, global_batch=8, micro_batch=1)
    path = write_runs("search.csv", [small, dict(small, data="", tensor="", pipeline=""), dict(small, device="Z9000")])
    found = published(path, "--search", "--seconds", 2)
    assert found[0]["searched_seconds"] <= found[0]["predicted_seconds"], found
    assert found[1]["predicted_seconds"] is None and found[1]["searched_plan"].startswith("1 stage, "), found
    assert found[2]["searched_plan"] is None and "Z9000" in found[2]["search_error"], found
    assert "plans of a search" in succeed("published", path, "--search", "--seconds", 2)


def check_losses():
    """The modules train as the zoo's from the same values, whatever is recomputed."""
    tiny = dict(layers=2, hidden=32, heads=8, kv_heads=8, ffn=64, vocab=128, sequence=16, dtype="f32", devices=1,
                data=1,
                global_batch=16, micro_batch=16, dropout="no")  # fmt: skip
    plain = dict(norms="unfused", eager="yes", qkv="separate", kernels="unfused")
    flash = dict(attention="flash", eager="yes")
    rows = [dict(tiny, model=model, recompute=kind, **options) for model in ("gpt", "bert")
            # fmt: skip
            for kind, options in (("none", {}), ("selective", dict(loss="fused")), ("full", flash), ("full", plain))]
    path, module = write_runs("tiny.csv", rows), WORK / "tiny.hlo.pb"
    for k, row in enumerate(rows):
        folder = MODELS / {"gpt": "gpt2_tiny", "bert": "bert_tiny"}[row["model"]]
        published(path, "--row", k + 2, "--write-module", module)
        output = succeed("run", module, "--plan", "none", "--state", folder / "state.npz", "--data",
                         folder / "data.npz",
                         "--steps", 4, "--json")  # fmt: skip
        losses = [json.loads(line)["loss"] for line in output.splitlines() if '"loss"' in line][:4]
        expected = json.loads((folder / "losses.json").read_text())["losses"][:4]
        assert len(losses) == 4
        for loss, want in zip(losses, expected):
            assert abs(loss - want) < 2e-5 * want, (row, losses, expected)


def check_sums():
    """A stage with all_reduces_gradients has no reduce_scatter; with reduces_in_f32 16-bit gradients are f32 meanwhile;
    the losses stay."""
    model, first, second = module("gpt2_bf16_tiny"), WORK / "zero2.json", WORK / "whole.json"
    succeed("search", model, "--cluster", "nominal:4", "--baseline", "zero2", "-o", first)
    plan = json.loads(first.read_text())
    del plan["parameters"], plan["decisions"]
    losses, kinds = [], []
    for flags in ({}, {"rounds_parts": True, "all_reduces_gradients": True},
                  {"rounds_parts": True, "all_reduces_gradients": True, "reduces_in_f32": True}):  # fmt: skip
        plan["stages"][0].update(flags)
        second.write_text(json.dumps(plan))
        output = succeed("run", model, "--plan", second, "--state", "random", "--steps", 3, "--seed", 3, "--json")
        losses.append([json.loads(line)["loss"] for line in output.splitlines() if '"loss"' in line][:3])
        sums = [line.split(" over data")[0] for line in succeed("lower", model, "--plan", second).splitlines()
                if ("reduce_scatter(" in line or "all_reduce(" in line) and "[]" not in line]  # fmt: skip
        kinds.append((any("reduce_scatter" in line for line in sums), any("bf16" in line for line in sums)))
    assert kinds == [(True, True), (False, True), (False, False)], kinds
    for found in losses[1:]:
        assert all(abs(a - b) < 2e-3 * a for a, b in zip(losses[0], found, strict=True)), losses


def check_messages(path):
    bad = WORK / "bad.csv"
    cases = [
        ("source,model\n", 3, "bad.csv:1"),
        (write_runs("word.csv", [dict(layers="many")]).read_text(), 3, "bad.csv:2"),
        ("\0\1", 3, "bad.csv"),
        (path.read_text().splitlines()[0] + "\n", 3, "expected rows below the first line"),
    ]
    for text, code, words in cases:
        bad.write_text(text)
        done = automap("published", bad)
        assert done.returncode == code and words in done.stderr and len(done.stderr) < 600, (words, done)
    for options, words in ((["--row", 99], "no row is on this line"), (["--source", "x"], "no row has this source"),
                           (["--write-plan", WORK / "p.json"], "need --row"),
                           (["--row", 2, "--write-plan", path], "would replace the file that is read"),
                           # fmt: skip
                           (["--row", 2, "--write-plan", WORK / "x", "--write-module", WORK / "x"], "both")):
        done = automap("published", path, *options)
        assert done.returncode == 2 and words in done.stderr, (options, done)
    done = automap("published", path, "--row", len(PLANNED) + 2, "--write-plan", WORK / "p.json")
    assert done.returncode == 3 and "unknown device" in done.stderr, done
    for changes, line, words in (([dict(model="gtp")], 2, "unknown model gtp (expected gpt,"),
                                 ([dict(device="A100-80G")], 2, "did you mean A100-80GB?"),
                                 ([dict(data="", tensor="", pipeline=""), dict(heads=7)], 3, "a multiple of 7 heads")):
        done = automap("published", write_runs("none.csv", changes))
        assert done.returncode == 3 and not done.stdout, done
        assert f"none.csv:{line}:1: " in done.stderr and words in done.stderr, done


runs = write_runs("runs.csv", [*PLANNED, *(changes for changes, _ in REFUSED)])
rows = published(runs)
assert [row["row"] for row in rows] == [f"r{k}" for k in range(len(rows))]
check_same_figures(runs, rows)
check_refused(rows)
check_text(runs)
check_empty(runs)
check_zero_bubble()
check_search()
check_losses()
check_sums()
check_messages(runs)
print(f"{len(rows)} rows")
