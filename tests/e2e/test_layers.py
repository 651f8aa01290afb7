# labels: jax e2e
# timeout: 300
# cost: 35
"""Plans with one parameter for each layer of a stack (search --layers split).

A stack of integer-valued matrices, run by a scan forwards and backwards, gives the same bits with and without the
rewriting on one device. A GPT and a Llama whose layers are a scan with recomputation, or slices of stacked
parameters, lose the same under plans of one stage, searched pipelines and even pipelines with micro-batches. State
files and checkpoints hold the stacked arrays, whichever plan writes and reads them.

Run as `AUTOMAP=build/automap python tests/e2e/test_layers.py`.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "bench"), str(SOURCE / "datasets")]

import jax
import jax.numpy as jnp
import numpy as np

import automap_jax
import layers as forms

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
SIZES = (3, 16, 2, 32, 4, 8, 20)


def automap(*words, expect=0):
    run = subprocess.run([AUTOMAP, *map(str, words)], capture_output=True, text=True)
    assert run.returncode == expect, f"automap {' '.join(map(str, words))}: {run.returncode}\n{run.stderr}"
    return run


def search(model, plan, *options, cluster="h100:4"):
    automap("search", model, "--cluster", cluster, "-o", plan, "--quiet", *options)
    return json.loads(plan.read_text())


def train(model, plan, steps, *options):
    """(losses, final state)"""
    saved = model.parent / "saved.npz"
    run = automap("run", model, "--plan", plan, "--steps", steps, "--json", "--save", saved, *options)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines if "step" in line and "loss" in line], dict(np.load(saved))


def export_integers(folder, is_reversed, is_sorted=False):
    """w <- w - gradient / 8 of a sum of products with a stack of matrices, all numbers small integers. A sort needs
    a stack as one array."""
    def loss(w, x):
        body = lambda x, pair: (x @ pair[0] + pair[1], x.sum())
        last, sums = jax.lax.scan(body, x, (w["matrix"], w["bias"]), reverse=is_reversed)
        least = sum(jnp.sort(w[name], axis=0)[0].sum() for name in w) if is_sorted else 0
        return last.sum() + sums.sum() + least

    def step(w, x):
        value, gradient = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda a, b: a - b, w, gradient), value

    shape = lambda *dimensions: jax.ShapeDtypeStruct(dimensions, jnp.float32)
    automap_jax.export(step, ({"matrix": shape(4, 3, 3), "bias": shape(4, 3)}, shape(2, 3)), str(folder))
    rng = np.random.default_rng(1)
    whole = lambda *dimensions: rng.integers(-1, 2, dimensions).astype(np.float32)
    np.savez(folder / "state.npz", **{"w['matrix']": whole(4, 3, 3), "w['bias']": whole(4, 3)})
    np.savez(folder / "data.npz", x=whole(2, 3))
    return folder / "model.hlo.pb"


def check_exact(folder):
    for is_reversed in (False, True):
        model = export_integers(folder / f"integers_{is_reversed}", is_reversed)
        given = ["--state", model.parent / "state.npz", "--data", model.parent / "data.npz"]
        plan = model.parent / "split.json"
        document = search(model, plan, "--layers", "split", "--space", "single_stage", cluster="h100:1")
        assert document["rewriting"] == {"layers": "split"}, document.get("rewriting")
        before, state = train(model, "none", 2, *given)
        after, split_state = train(model, plan, 2, *given)
        assert before == after and len(before) == 2, (before, after)
        assert state.keys() == split_state.keys() == {"w['matrix']", "w['bias']"}, split_state.keys()
        for name, array in state.items():
            np.testing.assert_array_equal(array, split_state[name], name)


def check_info(folder):
    """The layers, and why a loop over layers is not cut."""
    model = export_integers(folder / "info", False)
    layers = json.loads(automap("info", model, "--json").stdout)["layers"]
    assert layers == {"count": 4, "stacked_parameters": 2, "reason": None}, layers
    # the two words of a random key are no layers
    key = SOURCE / "datasets" / "models" / "flax_tiny" / "model.hlo.pb"
    layers = json.loads(automap("info", key, "--json").stdout)["layers"]
    assert layers == {"count": 0, "stacked_parameters": 0, "reason": None}, layers
    model = export_integers(folder / "info_sorted", False, is_sorted=True)
    text = automap("info", model).stdout
    line = next(line for line in text.splitlines() if line.startswith("layers"))
    assert "not cut between them" in line and "(sort) needs the stacked array" in line, line


def check_loops(folder):
    """`explain` gives the reason why a loop is one unit: over layers, over layers that stay together, and over time."""
    def over_time(w, x):
        value, gradient = jax.value_and_grad(lambda w: jax.lax.scan(lambda y, _: (jnp.tanh(y @ w), None), x, None,
                                                                    5)[0].sum())(w)
        return w - gradient, value

    shape = lambda *dimensions: jax.ShapeDtypeStruct(dimensions, jnp.float32)
    automap_jax.export(over_time, (shape(8, 8), shape(4, 8)), str(folder / "time"))
    models = {export_integers(folder / "loops", False): "expected --layers split",
              export_integers(folder / "loops_sorted", False, is_sorted=True): "(sort) needs the stacked array",
              folder / "time" / "model.hlo.pb": "reads the same weights, such as w"}
    for model, reason in models.items():
        plan = model.parent / "loop.json"
        search(model, plan, "--layers", "loop", "--evaluations", 4, cluster="nominal:2")
        explanation = json.loads(automap("explain", plan, model, "--json", "--evaluations", 1).stdout)
        loops = explanation["loops"]
        assert loops and all(reason in loop["reason"] for loop in loops), (reason, loops)
        assert {loop["trips"] for loop in loops} == {5 if "time" in str(model.parent) else 4}, loops


def make_state(model):
    """Options with a state of stacked arrays and examples."""
    rng = np.random.default_rng(2)
    drawn = train(model, "none", 1, "--state", "random")[1]
    values = {path: (0.1 * rng.standard_normal(array.shape) + ("gain" in path)).astype(np.float32)
              for path, array in drawn.items()}
    np.savez(model.parent / "state.npz", **values)
    tokens = rng.integers(0, SIZES[6], (4, SIZES[4], SIZES[5] + 1)).astype(np.int32)
    np.savez(model.parent / "data.npz", tokens=tokens[..., :-1], targets=tokens[..., 1:])
    return ["--state", model.parent / "state.npz", "--data", model.parent / "data.npz"]


def check_training(folder, name, form):
    model = forms.export(name, form, SIZES, folder / f"{name}_{form}", forms.sgd)
    plan, given = model.parent / "plan.json", make_state(model)
    losses, state = train(model, "none", 4, *given)
    plans = {"split": ["--layers", "split"], "pipeline": ["--layers", "split", "--baseline", "even_pipeline",
                                                          "--micro-batches", "2"]}
    for kind, options in plans.items():
        limit = ["--evaluations", 30] if kind == "split" else []
        document = search(model, plan, *options, *limit)
        undone = {"recomputation": "undone"} if kind == "split" else {}  # a baseline keeps what the source prescribes
        assert document["rewriting"] == {"layers": "split"} | undone, document["rewriting"]
        assert kind == "split" or len(document["stages"]) > 1
        found, split_state = train(model, plan, 4, *given)
        np.testing.assert_allclose(found, losses, rtol=2e-5, err_msg=f"{name} {form} {kind}")
        assert state.keys() == split_state.keys()
        for path, array in state.items():
            np.testing.assert_allclose(array, split_state[path], rtol=1e-4, atol=1e-5, err_msg=f"{kind} {path}")
    return model, plan, losses, given


def check_choice(model):
    """The default and a requested baseline keep a one-stage plan of split layers that is faster than that of loops."""
    for words in (["--evaluations", 60], ["--baseline", "data_parallel"]):
        seconds = {}
        for form in ("split", "loop", "auto"):
            plan = model.parent / "choice.json"
            document = search(model, plan, "--layers", form, *words, cluster="nominal:2")
            seconds[form] = document["predicted"]["step_seconds"]
            assert len(document["stages"]) == 1, (form, words)
        assert seconds["auto"] == seconds["split"] < seconds["loop"], (seconds, words)
        assert document["rewriting"]["layers"] == "split", (document["rewriting"], words)


def check_small(folder):
    """The default of a small module is not slower than either form, also where the split form has a pipeline."""
    model, plan = SOURCE / "datasets" / "models" / "dropout_tiny" / "model.hlo.pb", folder / "small.json"
    found = {form: search(model, plan, "--layers", form, cluster="h100:1") for form in ("split", "loop", "auto")}
    seconds = {form: document["predicted"]["step_seconds"] for form, document in found.items()}
    assert len(found["split"]["stages"]) > 1, found["split"]["stages"]
    assert seconds["auto"] == seconds["loop"] < seconds["split"], seconds


def check_schedules(model, losses, given):
    """Stages of single layers lose the same under every schedule of stages without chunks."""
    for schedule in ("gpipe", "1f1b", "zb_h1"):
        plan = model.parent / f"{schedule}.json"
        document = search(model, plan, "--layers", "split", "--baseline", "even_pipeline", "--micro-batches", "4",
                          "--schedule", schedule, cluster="nominal:4")
        assert document["schedule"] == schedule and len(document["stages"]) > 1, document["schedule"]
        found = train(model, plan, 4, *given)[0]
        np.testing.assert_allclose(found, losses, rtol=2e-5, err_msg=schedule)


def check_recomputation(folder):
    """Without the recomputation of the source a plan loses the same, is not slower, and is automap's own."""
    model = forms.export("gpt", "trees", SIZES, folder / "remat", forms.sgd)
    undone, kept, given = model.parent / "undone.json", model.parent / "kept.json", make_state(model)
    document = search(model, undone, "--evaluations", 30)
    assert document["rewriting"] == {"recomputation": "undone"}, document.get("rewriting")
    other = search(model, kept, "--evaluations", 30, "--keep-remat")
    assert "rewriting" not in other, other["rewriting"]
    assert document["predicted"]["step_seconds"] < other["predicted"]["step_seconds"]
    losses, state = train(model, "none", 3, *given)
    for plan in (undone, kept):
        found, saved = train(model, plan, 3, *given)
        np.testing.assert_allclose(found, losses, rtol=2e-5, err_msg=plan.name)
        for path, array in state.items():
            np.testing.assert_allclose(array, saved[path], rtol=1e-4, atol=1e-5, err_msg=path)
    run = automap("export", undone, model, "--format", "jax", "-o", "-", expect=4)
    assert "--keep-remat" in run.stderr, run.stderr
    rows = automap("diff", undone, kept, model).stdout
    assert "recomputation of the source" in rows, rows


def check_checkpoints(model, plan, losses, given):
    """A checkpoint of one form of the plan is read by the other."""
    for number, (first, second) in enumerate((("none", plan), (plan, "none"))):
        folder = model.parent / f"checkpoints_{number}"
        half = train(model, first, 2, *given, "--checkpoint", folder)[0]
        rest = train(model, second, 4, *given, "--checkpoint", folder, "--resume")[0]
        np.testing.assert_allclose(half + rest, losses, rtol=2e-5)


def check_refusals(model, plan):
    trees = forms.export("gpt", "trees", SIZES, model.parent / "trees", forms.sgd)
    run = automap("search", trees, "--cluster", "h100:4", "--layers", "split", "-o", plan.parent / "no.json", expect=4)
    assert "its layers cannot be split" in run.stderr, run.stderr
    document = json.loads(plan.read_text())
    broken = plan.parent / "broken.json"
    for rewriting in ({"layers": "join"}, {"other": 1}, 3):
        broken.write_text(json.dumps(document | {"rewriting": rewriting}))
        run = automap("run", model, "--plan", broken, "--state", "random", expect=3)
        assert "$.rewriting" in run.stderr and run.stderr.count("\n") == 1, run.stderr
    broken.write_text(json.dumps({key: value for key, value in document.items() if key != "rewriting"}))
    automap("run", model, "--plan", broken, "--state", "random", expect=3)


def unstack(state, layers):
    """The arrays of a stacked state by the paths of the form with one tree for each layer."""
    trees = {}
    for path, array in state.items():
        for k in range(layers if "['decoder']" in path else 0):
            trees[path.replace("['decoder']", f"['decoder'][{k}]")] = array[k]
        if "['decoder']" not in path:
            trees[path] = array
    return trees


def step_seconds(plan, model):
    return json.loads(automap("simulate", plan, model, "--json").stdout)["step_seconds"]


def check_other_form(folder, scan, losses, given):
    """Plans of a scan on the model with one tree for each layer, and back. On the same state all lose the same."""
    trees = forms.export("gpt", "trees", SIZES, folder / "gpt_trees", forms.sgd)
    np.savez(trees.parent / "state.npz", **unstack(dict(np.load(given[1])), SIZES[0]))
    options = {scan: given, trees: ["--state", trees.parent / "state.npz", *given[2:]]}
    pipeline = ["--stages", "2", "--micro-batches", "2", "--evaluations", "8"]
    plans = {"zero3": ["--baseline", "zero3", "--layers", "loop"], "pipeline": pipeline,
             "kept": [*pipeline, "--keep-remat"],
             "one": ["--space", "single_stage", "--evaluations", "8"]}
    for kind, words in plans.items():
        for own, other in ((scan, trees), (trees, scan)):
            plan = own.parent / f"{kind}.json"
            search(own, plan, *words, cluster="nominal:2")
            found = train(other, plan, 4, *options[other])[0]
            np.testing.assert_allclose(found, losses, rtol=2e-5, err_msg=f"{kind} of {own}")
    search(trees, trees.parent / "again.json", "--init-plan", scan.parent / "pipeline.json", "--evaluations", 4,
           cluster="nominal:2")
    exported = scan.parent / "exported.json"
    automap("export", scan.parent / "zero3.json", scan, "--format", "automap", "-o", exported)
    document = json.loads((scan.parent / "zero3.json").read_text())
    assert json.loads(exported.read_text())["names"] == document["names"]
    exported.write_text(json.dumps({**document, "names": 1}))
    assert "$.names: expected" in automap("simulate", exported, scan, expect=3).stderr
    stack = next(row["number"] for row in document["parameters"] if row["path"].endswith("['up']"))
    document["stages"][0]["axis_priorities"]["data"] = [{"class": ["parameter", stack, 0], "kind": "weights"}]
    broken = scan.parent / "broken.json"
    broken.write_text(json.dumps({key: value for key, value in document.items() if key != "decisions"}))
    run = automap("simulate", broken, trees, expect=3)
    assert "it divides the layers of" in run.stderr and run.stderr.count("\n") == 1, run.stderr
    narrow = forms.export("gpt", "trees", (3, 8, *SIZES[2:]), folder / "narrow", forms.sgd)
    run = automap("simulate", scan.parent / "zero3.json", narrow, expect=3)
    assert "the plan is for module" in run.stderr, run.stderr


def check_notes(folder):
    """Reports name both modules if a plan is carried to another one, and neither if it is not."""
    first, other = (forms.export("gpt", form, SIZES, folder / f"notes_{form}", forms.sgd) for form in ("scan", "trees"))
    plan = folder / "notes.json"
    own = search(first, plan, "--baseline", "data_parallel", "--layers", "split", cluster="nominal:2")["module"]
    there = search(other, folder / "other.json", "--baseline", "data_parallel", cluster="nominal:2")
    both = {"from": {key: own["sha256" if key == "sha256" else "name"] for key in ("module", "sha256")},
            "to": {"module": there["module"]["name"], "sha256": there["module"]["sha256"]}}
    tokens = np.zeros(SIZES[4:6], np.int32)
    np.savez(folder / "tokens.npz", tokens=tokens, targets=tokens)
    random = ["--state", "random", "--data", folder / "tokens.npz", "--steps", 1]
    commands = [["simulate", plan, None, "--json"], ["explain", plan, None, "--json"],
                ["export", plan, None, "--format", "jax"],
                ["run", None, "--plan", plan, "--json", *random]]
    for words in commands:
        for model in (other,) if words[0] == "export" else (first, other):
            run = automap(*(model if word is None else word for word in words))
            text = run.stdout if words[0] != "run" else run.stdout.strip().splitlines()[-1]
            document = json.loads(text)
            found = document.get("carried_from" if words[0] == "run" else "carried")
            expected = None if model == first else both["from"] if words[0] == "run" else both
            assert found == expected, (words, found)
            hashes = [side["sha256"][:12] in run.stderr for side in both.values()]
            assert hashes == [model == other] * 2, (words, run.stderr)


def check_borders(folder):
    """A plan whose borders have another order in the module at hand is refused for that reason."""
    sizes = (4, *SIZES[1:])
    first, other = (forms.export("gpt", form, sizes, folder / f"borders_{form}", forms.sgd)
                    for form in ("trees", "sliced"))
    plan = folder / "borders.json"
    document = search(first, plan, "--space", "pipeline", "--baseline", "even_pipeline", "--mesh", "data=1",
                      "--micro-batches", 2, cluster="nominal:4")
    borders = document["names"]["borders"]
    assert len(borders) == 3, borders
    borders[0][1], borders[1][1] = borders[1][1], borders[0][1]
    plan.write_text(json.dumps(document))
    run = automap("simulate", plan, other, expect=3)
    assert "have the other order here" in run.stderr and run.stderr.count("\n") == 1, run.stderr


def check_numbers(folder):
    """A plan applies by its names if another version of automap numbered the instructions of split layers."""
    model = forms.export("gpt", "scan", (4, *SIZES[1:]), folder / "numbers", forms.sgd)
    plan = folder / "numbers.json"
    document = search(model, plan, "--space", "pipeline", "--baseline", "even_pipeline", "--mesh", "data=1",
                      "--micro-batches", 2, cluster="nominal:4")
    assert document["rewriting"]["layers"] == "split" and len(document["names"]["borders"]) == 3
    seconds = step_seconds(plan, model)
    borders = [number for number, _ in document["names"]["borders"]]
    for row in [*document["names"]["borders"], *(row for stage in document["stages"] for row in stage["ranges"])]:
        row[:] = [item + 40 if item in borders else item for item in row]
    plan.write_text(json.dumps(document))
    assert step_seconds(plan, model) == seconds
    document["names"]["borders"][0][1] = "forward dot f32[1] 1/1 at nowhere"
    plan.write_text(json.dumps(document))
    assert "no operator is" in automap("simulate", plan, model, expect=3).stderr


def check_unrolled_scans(folder):
    """Loops with several layers in a trip, and loops in loops, keep their stacks; a refused plan gives the reason."""
    trees = forms.export("gpt", "trees", (4, *SIZES[1:]), folder / "unrolled_trees", forms.sgd)
    plan = folder / "unrolled.json"
    search(trees, plan, "--baseline", "data_parallel", cluster="nominal:2")
    run_layers = forms.run_layers

    def scan(unroll, form, heads, causal, x, layers, memory=None):
        one = lambda x, p: (forms.layer(heads, causal, memory, x, p), None)
        if unroll:
            return jax.lax.scan(one, x, layers, unroll=2)[0]
        pairs = jax.tree.map(lambda stack: stack.reshape(2, 2, *stack.shape[1:]), layers)
        return jax.lax.scan(lambda x, pair: (jax.lax.scan(one, x, pair)[0], None), x, pairs)[0]

    for unroll in (True, False):
        forms.run_layers = functools.partial(scan, unroll)
        model = forms.export("gpt", "scan", (4, *SIZES[1:]), folder / f"unrolled_{unroll}", forms.sgd)
        run = automap("simulate", plan, model, expect=3)
        assert "as scan does without unroll" in run.stderr and run.stderr.count("\n") == 1, run.stderr
    forms.run_layers = run_layers


def check_budgets(folder):
    """A budget that ends in the first form has the baselines of the others: no plan is slower than those of a loop."""
    model = forms.export("gpt", "scan", (12, 1024, 16, 4096, 32, 512, 32000), folder / "budgets")
    description = json.loads(automap("cluster", "a100:1", "--json").stdout)
    cluster, plan = folder / "scarce.json", folder / "scarce.plan.json"
    device = next(iter(description["device_types"].values()))
    device["memory_bytes"] = 1 << 30
    cluster.write_text(json.dumps(description))
    for space in ("single_stage", "auto"):
        words = ["--space", space, "--evaluations"]
        loop = search(model, plan, *words, 1, "--layers", "loop", cluster=cluster)["predicted"]["step_seconds"]
        found = [search(model, plan, *words, n, cluster=cluster)["predicted"]["step_seconds"] for n in (1, 30)]
        assert max(found) <= loop and found == sorted(found, reverse=True), (space, loop, found)


def check_prices(folder):
    """A plan takes as long on the other form, where operators take longer than their launches."""
    sizes = (3, 256, 4, 1024, 16, 64, 500)
    models = {form: forms.export("gpt", form, sizes, folder / f"wide_{form}", forms.sgd) for form in ("trees", "scan")}
    pipeline = ["--stages", "2", "--micro-batches", "2", "--evaluations", "8"]
    one = ["--space", "single_stage", "--evaluations", "8"]
    for own, other, limit, words in (("trees", "scan", 0.02, ["--baseline", "zero3"]), ("scan", "trees", 0.02, one),
                                     ("trees", "scan", 0.08, pipeline), ("scan", "trees", 0.08, pipeline)):
        plan = folder / "wide.json"
        search(models[own], plan, *words, cluster="nominal:2")
        ratio = step_seconds(plan, models[other]) / step_seconds(plan, models[own])
        assert abs(ratio - 1) <= limit, (own, words, ratio)


def check_encoder(folder):
    """A decoder that reads the encoder: 1F1B pipelines whose transfers wait for one another are left out."""
    model = forms.export("t5", "trees", forms.QUICK["t5"], folder / "t5_trees", forms.sgd)
    search(model, model.parent / "plan.json", "--micro-batches", "4", "--evaluations", 30, cluster="nominal:4")


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        check_exact(folder)
        check_info(folder)
        check_loops(folder)
        check_small(folder)
        for name, form in (("gpt", "scan"), ("llama", "scan"), ("gpt", "sliced")):
            model, plan, losses, given = check_training(folder, name, form)
            if form == "scan":
                check_schedules(model, losses, given)
            if (name, form) == ("gpt", "scan"):
                check_choice(model)
                check_other_form(folder, model, losses, given)
        check_recomputation(folder)
        check_notes(folder)
        check_borders(folder)
        check_numbers(folder)
        check_unrolled_scans(folder)
        check_budgets(folder)
        check_prices(folder)
        check_encoder(folder)
        check_checkpoints(model, plan, losses, given)
        check_refusals(model, plan)
    print("layers: ok")


if __name__ == "__main__":
    main()
