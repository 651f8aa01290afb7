# labels: cpu e2e
# timeout: 300
"""`automap explain` has the figures that `automap simulate` has for the compared plans.

Every change that it prices (a cut moved, another number of micro-batches, another schedule, a decision or an
override taken out) is made in the plan file and simulated; stages, transfers and memory are held against the simulation
of the plan itself. The page is well formed and needs nothing from outside.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_explain.py`.
"""

import html.parser
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import AUTOMAP, MODELS

VOID = {"meta", "line", "rect", "input"}
PIPELINE = ["--space", "pipeline", "--baseline", "even_pipeline", "--mesh", "data=2"]
CASES = [
    ("gpt2_tiny", ["--cluster", "nominal:4", *PIPELINE, "--micro-batches", "4"]),
    ("gpt2_tiny", ["--cluster", "nominal:4", *PIPELINE, "--micro-batches", "1"]),
    ("gpt2_tiny", ["--cluster", "nominal:4", *PIPELINE, "--micro-batches", "4", "--schedule", "interleaved_1f1b"]),
    ("t5_tiny", ["--cluster", "whale-pp", "--space", "hybrid", "--micro-batches", "4"]),
    ("gpt2_tiny", ["--cluster", "nominal:2", "--space", "single_stage", "--evaluations", "20", "--micro-batches", "2"]),
    ("mlp_tiny", ["--cluster", "nominal:4", "--space", "operator", "--evaluations", "40"]),
    ("llama_tiny", ["--cluster", "nominal:4", "--baseline", "zero3"]),
    ("mlp_tiny", ["--cluster", "C", "--mesh", "data=4,model=8", "--evaluations", "40"]),
    ("gpt2", ["--cluster", "C", "--mesh", "data=4,model=8", "--space", "single_stage", "--evaluations", "60"]),
]


def automap(*arguments, **environment):
    done = subprocess.run([AUTOMAP, *map(str, arguments)], capture_output=True, text=True,
                          env=os.environ | environment)  # fmt: skip
    assert done.returncode == 0, f"automap {' '.join(map(str, arguments))}: {done.returncode}\n{done.stderr}"
    return done.stdout


def near(a, b):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-15)


def simulated(root, model, path):
    """Step seconds of an edited plan."""
    changed = {key: value for key, value in root.items() if key not in ("parameters", "decisions")}
    path.write_text(json.dumps(changed))
    return json.loads(automap("simulate", path, model, "--json"))["step_seconds"]


def copy(root):
    return json.loads(json.dumps(root))


def with_cut(root, old, new):
    changed = copy(root)
    for stage in changed["stages"]:
        stage["ranges"] = [[new if place == old else place for place in pair] for pair in stage["ranges"]]
    return changed


def without(root, decision):
    """The plan without a decision of one entry; None where it has several."""
    if decision["classes"] != 1:
        return None
    changed = copy(root)
    entries = changed["stages"][decision["stage"]]["axis_priorities"][decision["axis"]]
    found = [e for e in entries if e["class"] == decision["class"] and e["kind"] == decision["kind"]]
    assert len(found) == 1, f"{decision}: {len(found)} entries"
    entries.remove(found[0])
    return changed


def without_overrides(root, instructions):
    changed = copy(root)
    for stage in changed["stages"]:
        stage["overrides"] = [e for e in stage["overrides"] if e["instruction"] not in instructions]
    return changed


def add_overrides(root, model, path):
    """A plan some of whose operators, in every stage, are whole on the first axis."""
    changed = {key: value for key, value in copy(root).items() if key not in ("parameters", "decisions")}
    for stage in changed["stages"]:
        axis = stage["mesh"][0]["axis"]
        for first, end in stage["ranges"]:
            places = range(first, min(end, first + 40), 5)
            stage["overrides"] += [{"instruction": i, "factor": {axis: None}} for i in places]
    path.write_text(json.dumps(changed))
    automap("simulate", path, model, "--json")
    return changed


def check_changes(root, model, told, path):
    """How many changes were compared."""
    compared = []

    def compare(what, changed, row, key="step_seconds"):
        if changed is None or row is None or row[key] is None:
            return
        seconds = simulated(changed, model, path)
        assert near(seconds, row[key]), f"{what}: {row[key]} is told, {seconds} simulated"
        compared.append(what)

    for cut in told["cuts"]:
        for side in ("earlier", "later"):
            if cut[side]:
                moved = with_cut(root, cut["instruction"], cut[side]["instruction"])
                compare(f"cut {cut['instruction']} {side}", moved, cut[side])
    for row in told["alternatives"]:
        changed = copy(root)
        if row["what"] == "attention":  # numbers of another module: test_attention.py
            continue
        if row["what"] == "gathered weights":
            for stage in changed["stages"]:
                stage["keeps_gathered_weights"] = row["value"] == "kept"
            compare(f"gathered weights {row['value']}", changed, row)
            continue
        key = {"micro-batches": "micro_batches", "schedule": "schedule"}[row["what"]]
        changed[key] = int(row["value"]) if key == "micro_batches" else row["value"]
        compare(f"{row['what']} {row['value']}", changed, row)
    for decision in told["decisions"]:
        compare(f"without {decision['path']}", without(root, decision), decision, "seconds_without")
    listed = [e["instruction"] for stage in root["stages"] for e in stage["overrides"]]
    rows = told["overrides"]
    assert sorted(listed) == sorted(i for row in rows for i in row["instructions"]), "overrides are missing"
    for row in rows:
        assert row["how"] != row["instead"], row
        compare(f"override {row['how']}", without_overrides(root, row["instructions"]), row["without"])
    compare("overrides", without_overrides(root, listed), told["without_overrides"])
    return compared


def check_stages(root, model, told, plan):
    seen = json.loads(automap("simulate", plan, model, "--json"))
    assert told["step_seconds"] == seen["step_seconds"] and told["peak_bytes"] == seen["peak_bytes"]
    assert len(told["stages"]) == len(root["stages"])
    assert near(sum(stage["flops_share"] for stage in told["stages"]), 1)
    assert near(sum(stage["weight_share"] for stage in told["stages"]), 1)
    for stage in told["stages"]:
        first, count = stage["first_rank"], stage["devices"]
        devices = seen["devices"][first : first + count]
        assert {d["stage"] for d in devices} == {stage["stage"]}
        for key in ("compute_seconds", "communication_seconds", "idle_seconds"):
            assert math.isclose(stage[key], sum(d[key] for d in devices) / count, rel_tol=1e-6, abs_tol=1e-12), key
        assert stage["memory"]["peak_bytes"] == max(d["peak_bytes"] for d in devices)
        fullest = max(devices, key=lambda d: d["needed_bytes"] / d["memory_bytes"])
        assert fullest["needed_bytes"] == fullest["peak_bytes"] + fullest["channel_bytes"]
        for key in ("needed_bytes", "limit_bytes", "memory_bytes", "channel_bytes"):
            assert stage["memory"][key] == fullest[key], key
    assert near(sum(row["bytes"] for row in told["transfers"]), seen["transfers"]["bytes"])
    assert sum(row["count"] for row in told["transfers"]) == seen["transfers"]["count"]
    if len(told["stages"]) == 2 and len(told["cuts"]) == 1:
        cut = told["cuts"][0]
        assert near(cut["up"]["bytes"] + cut["down"]["bytes"], seen["transfers"]["bytes"])


class Page(html.parser.HTMLParser):
    """Checks that opened elements are closed, and counts the boxes of the timeline."""

    def __init__(self):
        super().__init__()
        self.open, self.boxes, self.tables = [], {}, 0

    def handle_starttag(self, tag, attributes):
        assert tag not in ("link", "img", "iframe"), f"<{tag}>"
        attributes = dict(attributes)
        assert tag != "script" or not attributes, attributes
        assert not {"src", "href", "onload"} & set(attributes), attributes
        self.tables += tag == "table"
        if tag == "rect" and "y" in attributes:
            self.boxes.setdefault(attributes["class"], []).append(attributes)
        if tag not in VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID or tag == "rect":
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()


def check_page(root, model, plan, path, step):
    automap("explain", plan, model, "--html", path, SOURCE_DATE_EPOCH="1000000000")
    page, text = Page(), path.read_text()
    page.feed(text)
    page.close()
    assert not page.open, page.open
    assert "http" not in text and "@import" not in text, "the page takes something from outside"
    assert page.tables >= 5
    check_own_sections(root, text, f"automap explain {plan} {model} --html {path}", step)
    check_contrast(text)
    turns = root["micro_batches"]
    for work in ("forward", "backward"):
        boxes = page.boxes[work]
        least = turns * len(root["stages"])
        assert least <= len(boxes) <= 32 * least, f"{len(boxes)} boxes of {least} turns of the {work} pass"
        assert f"{work} pass {turns - 1}," in text and f"{work} pass {turns}," not in text, f"{turns} turns"
    check_timeline(root, text)


def rows_of(text, title):
    """The cells of the rows of the table after a title."""
    table = text.split(f"<h2>{title}</h2>")[1].split("</table>")[0]
    return [[html.unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)", row)] for row in table.split("<tr>")[2:]]


def check_own_sections(root, text, command, step):
    """The page has its origin, the bound and each baseline of the plan file, every parameter, and the cluster."""
    assert "automap 0.1.0, 2001-09-09: <code>" + command in html.unescape(text), "no origin"
    told = {row[0]: float(row[2]) for row in rows_of(text, "Baselines and bound")}
    wanted = {"this plan": step, "lower bound": root["search"]["bound_seconds"]}
    wanted |= root["search"]["settings"]["baselines"]
    wanted = {name: seconds / wanted["this plan"] for name, seconds in wanted.items() if seconds}
    assert told.keys() == wanted.keys(), (told, wanted)
    assert all(abs(told[name] - wanted[name]) <= 0.006 for name in told), (told, wanted)
    assert list(told.values()) == sorted(told.values()), told
    shown = [(row[0], int(row[3]), row[4]) for row in rows_of(text, "Parameters")]
    written = [(row["path"], row["stage"], "[" + ",".join("+".join(axes) or "-" for axes in row["sharding"]) + "]")
               for row in root.get("parameters", [])]  # a plan with overrides by hand has none
    assert shown and written in ([], shown), shown
    servers = [(int(row[0]), int(row[1]), row[2]) for row in rows_of(text, "Cluster")]
    assert servers == [(row.get("count", 1), row["devices"], row["device_type"])
                       for row in root["cluster"]["description"]["servers"]], servers


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    parts = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), parts))


def check_contrast(text):
    """WCAG 2 AA in light and dark: 4.5 for text, on the page and on boxes; 3 for boxes on the page."""
    light, dark = re.findall(r":root\{(.*?)\}", text, re.DOTALL)[:2]
    for block in (light, dark):
        colours = dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", block))
        boxes = ("forward", "backward", "update", "other", "collective", "transfer")
        pairs = [("ink", "page", 4.5), ("faint", "page", 4.5)]
        pairs += [(box, "page", 3) for box in boxes] + [("box", box, 4.5) for box in boxes[:4]]
        for one, other, least in pairs:
            low, high = sorted((luminance(colours[one]), luminance(colours[other])))
            assert (high + 0.05) / (low + 0.05) >= least, (one, other)


def check_passes(root, text):
    """Every micro-batch of a pipeline has a forward and a backward pass in the picture."""
    shown = set(re.findall(r"<title>(forward|backward) pass (\d+),", text))
    wanted = {(work, str(number)) for work in ("forward", "backward") for number in range(root["micro_batches"])}
    assert shown == wanted, f"{root['schedule']}: {sorted(wanted - shown)} are missing"


def check_gpipe(root, model, changed, page):
    """Under GPipe the passes of a stage are separate loops."""
    if len(root["stages"]) == 1 or root["schedule"] != "1f1b":
        return
    changed.write_text(json.dumps({**root, "schedule": "gpipe"}))
    automap("explain", changed, model, "--html", page, "--evaluations", "1")
    check_passes({**root, "schedule": "gpipe"}, page.read_text())


def check_timeline(root, text):
    """No pass begins with constants, and micro-batches follow one another."""
    boxes = re.findall(r'<rect class="(\w+)" x="([\d.]+)%"', text.split("<h2>Memory")[0])
    first = {work: min(float(x) for kind, x in boxes if kind == work) for work in ("forward", "backward", "other")}
    assert first["forward"] < first["backward"], first
    if root["micro_batches"] == 1 or len(root["stages"]) > 1:
        check_passes(root, text)
        return
    works = [kind for kind, _ in boxes if kind in ("forward", "backward", "update")]
    updates = works[works.index("update") :] if "update" in works else []
    assert len(root["stages"]) > 1 or set(updates) <= {"update"}, (
        f"a shard of a weight for its update is of another pass: {updates}")
    names = re.findall(r"<title>(forward|backward) pass (\d+),", text)
    turns = [int(number) for _, number in names if number != "0"]
    assert turns == sorted(turns) and turns, f"micro-batches are not in order: {names}"
    after = names[[number for _, number in names].index("1") :]
    assert {work for work, number in after if number == "1"} == {"forward", "backward"}, names


def check_budget(model, plan, told):
    few = json.loads(automap("explain", plan, model, "--json", "--evaluations", "1"))
    assert few["simulated"] == 1 and few["simulated"] + few["left_out"] == told["simulated"] + told["left_out"]
    if told["decisions"]:
        assert few["decisions"][-1]["seconds_without"] is None
        assert "not taken out; --evaluations" in automap("explain", plan, model, "--evaluations", "1")


def check_kept(root, model, path):
    """Bytes that the training system holds outside of the step are in the peak of their stage alone."""
    held = 123456789
    changed = copy(root)
    changed["stages"][0]["kept_bytes"] = held
    path.write_text(json.dumps({key: value for key, value in changed.items()
                                if key not in ("parameters", "decisions")}))
    memories = [stage["memory"]
                for stage in json.loads(automap("explain", path, model, "--json", "--evaluations", "1"))["stages"]]
    assert [memory["kept_bytes"] for memory in memories] == [held] + [0] * (len(memories) - 1)
    for memory in memories:
        assert memory["needed_bytes"] == memory["peak_bytes"] + memory["channel_bytes"] + memory["kept_bytes"]
    assert "held outside of the step" in automap("explain", path, model, "--evaluations", "1")


def check_sources(model, plan, directory):
    """The text has the ends of source paths, and the JSON has the paths."""
    text = directory / "model.hlo.txt"
    automap("convert", model, text)
    written = text.read_text()
    for path, shown in (("/home/a/site-packages/optax/losses/mean.py", "optax/losses/mean.py"),
                        ("/home/a/project/train.py", "project/train.py"), ("/train.py", "/train.py"),
                        ("zoo/train.py", "zoo/train.py")):
        text.write_text(written.replace('"automap_jax/zoo/llama.py"', f'"{path}"'))
        report = automap("explain", plan, text, "--evaluations", "1")
        assert re.search(rf" {shown}:\d", report) and "/home/" not in report, report
        assert f'"{path}:' in automap("explain", plan, text, "--json", "--evaluations", "1"), path


def check_case(name, options, directory):
    model = next((MODELS / name).glob("model.hlo.pb*"))
    plan, changed, page = directory / "plan.json", directory / "changed.json", directory / "page.html"
    automap("search", model, *options, "-o", plan)
    root = json.loads(plan.read_text())
    if options[-1] == "1":
        root = add_overrides(root, model, plan)
    text = automap("explain", plan, model, "--json")
    assert text == automap("explain", plan, model, "--json", AUTOMAP_THREADS="1"), "threads change what is told"
    told = json.loads(text)
    check_stages(root, model, told, plan)
    compared = check_changes(root, model, told, changed)
    check_page(root, model, plan, page, told["step_seconds"])
    check_gpipe(root, model, changed, page)
    if name == "llama_tiny":
        check_sources(model, plan, directory)
    if name == "t5_tiny":
        check_kept(root, model, changed)
    check_budget(model, plan, told)
    print(f"{name}, {len(root['stages'])} stages, {root['schedule']}: {len(compared)} changes as simulated")
    return compared


def main():
    compared = []
    with tempfile.TemporaryDirectory() as directory:
        for name, options in CASES:
            compared += check_case(name, options, pathlib.Path(directory))
    for what in ("cut", "micro-batches", "schedule", "gathered weights", "without", "override "):
        assert any(row.startswith(what) for row in compared), f"no {what} was compared"
    return 0


if __name__ == "__main__":
    sys.exit(main())
