# labels: cpu e2e
# timeout: 300
# cost: 30
"""A search without options is over every space: its plan is no slower than those of the single spaces, the same
bytes with any number of threads, and within the evaluations and seconds that are allowed (AUTOMAP_FULL: more models and
numbers); options that only plans of one stage can keep leave those alone, and say so; a plan to start from is never
lost.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_search_spaces.py [MODEL ...]`.
"""

import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from clusters import write_cluster
from program import FULL, MODELS, automap

CASES = {"mlp_tiny": "nominal:4", "gpt2_tiny": "whale-pp"}
CASES |= {"moe_tiny": "B", "t5_tiny": "A", "bert_tiny": "whale-pp"} if FULL else {}
NUMBERS = [1, 2, 7, 30, 100]
MODEL = MODELS / "gpt2_tiny" / "model.hlo.pb"
SLACK_SECONDS = 1.5  # of a search that is out of time, on a crowded machine


def search(model, *options, **more):
    """Returns the output of --json, and standard error."""
    done = automap("search", model, "--json", *options, **more)
    assert done.returncode == 0, f"search {' '.join(map(str, options))}: {done.returncode}\n{done.stderr}"
    return json.loads(done.stdout), done.stderr


def check_spaces(name, cluster, work):
    """Returns the number of stages and the step of the plan that a search without options finds."""
    model, plan, again = MODELS / name / "model.hlo.pb", work / f"{name}.json", work / "again.json"
    found, said = search(model, "--cluster", cluster, "-o", plan)
    assert found["space"] == "auto" and "note" not in said, f"{name}: {found['space']}, {said}"
    shown = automap("search", model, "--cluster", cluster, "-o", again, threads=1).stdout
    assert plan.read_bytes() == again.read_bytes(), f"{name}: one thread gives another plan"
    for space in ("single_stage", "hybrid", "data", "operator") if FULL or name == "gpt2_tiny" else ("hybrid",):
        other = search(model, "--cluster", cluster, "--space", space, "-o", os.devnull)[0]
        assert other["space"] == space
        assert found["step_seconds"] <= other["step_seconds"], f"{name}: {space} has a quicker plan"
        assert not found["bound_seconds"] or found["bound_seconds"] <= other["step_seconds"], f"{name}: no bound"
    for baseline, seconds in found["baselines"].items():
        assert seconds is None or found["step_seconds"] <= seconds, f"{name}: {baseline} is quicker"
    stages = json.loads(plan.read_text())["stages"]
    assert (f", {len(stages)} stages" in shown) == (len(stages) > 1), shown
    assert found["model_gap"] is None or found["model_gap"] >= 0, f"{name}: model gap {found['model_gap']}"
    return len(stages), found["step_seconds"]


def check_narrowing(work):
    """Options that leave plans of one stage alone."""
    plan = work / "narrow.json"
    for options in (["--even"], ["--mesh", "data=4,model=2"], ["--searcher", "random"]):
        found, said = search(MODEL, "--cluster", "whale-pp", "--evaluations", 60, "-o", plan, *options)
        assert found["space"] == "single_stage" and len(json.loads(plan.read_text())["stages"]) == 1, options
        assert options[0] in said and "pipelines are not searched" in said, f"{options}: {said}"
    search(MODEL, "--cluster", "nominal:4", "--even", "--evaluations", 60, "-o", plan)
    exported = automap("export", plan, MODEL, "--format", "jax", "-o", os.devnull)
    assert exported.returncode == 0, exported.stderr
    refused = automap("search", MODEL, "--cluster", "nominal:4", "--mesh", "data=4", "--schedule", "gpipe", "-o", plan)
    assert refused.returncode == 2 and "a schedule applies to pipelines" in refused.stderr, refused.stderr


def check_initial(start, best, work):
    """A search without time for a better plan returns the pipeline to start from, whose step takes `best` seconds."""
    plan = work / "plan.json"
    found = search(MODEL, "--cluster", "whale-pp", "--evaluations", 1, "--init-plan", start, "-o", plan)[0]
    assert found["step_seconds"] <= best, "the plan to start from was lost"
    refused = automap("search", MODEL, "--cluster", "nominal:2", "--init-plan", start, "-o", plan)
    assert refused.returncode == 3, f"{refused.returncode}: {refused.stderr}"
    assert "a plan for" in refused.stderr and "the 2 of cluster" in refused.stderr, refused.stderr


def check_limits():
    """Evaluations never exceed their limit in any space, and seconds by little."""
    searches = ([], ["--space", "hybrid"], ["--space", "single_stage"], ["--searcher", "anneal"],
                ["--searcher", "greedy"], ["--searcher", "exact"], ["--searcher", "random"],
                ["--micro-batches", 2], ["--space", "single_stage", "--micro-batches", "auto"])  # fmt: skip
    for k, options in enumerate(searches):
        for most in NUMBERS if FULL else [NUMBERS[k % 5]]:
            words = ["--cluster", "whale-dp", "--evaluations", most, "-o", os.devnull, *options]
            found = search(MODEL, *words)[0]
            assert found["evaluations"] <= most, f"{options}: {found['evaluations']} evaluations of {most}"
    for options in ([], ["--space", "hybrid"], ["--space", "single_stage"]):
        words = ["--cluster", "C", "--evaluations", 10**8, "--seconds", 0.4, "-o", os.devnull, *options]
        seconds = search(MODEL, *words)[0]["search_seconds"]
        assert seconds <= 0.4 + SLACK_SECONDS, f"{options}: {seconds} s instead of 0.4"


def check_random():
    """Returns a plan that fits, or the best of the requested number of plans."""
    words = ["--cluster", "nominal:4", "--searcher", "random", "-o", os.devnull]
    found = [search(MODEL, *words, *options)[0] for options in ([], ["--evaluations", 5], ["--evaluations", 40])]
    assert [one["evaluations"] for one in found] == [1, 5, 40], found
    seconds = [one["step_seconds"] for one in found]
    assert seconds[0] >= seconds[1] >= seconds[2] and seconds[0] > seconds[2], seconds


def check_mixed():
    """Devices of several types: no plan of any search is below the bound of any."""
    for cluster in ("whale-dp", "whale-pp") if FULL else ("whale-dp",):
        words = ["--cluster", cluster, "--space", "single_stage", "-o", os.devnull]
        found = [search(MODEL, *words, "--searcher", method)[0] for method in ("greedy", "exact")]
        bounds, seconds = ([one[key] for one in found] for key in ("bound_seconds", "step_seconds"))
        assert 0 < min(bounds) and max(bounds) <= min(seconds), f"{cluster}: {bounds} of {seconds}"


def check_sequences():
    """Features are no sequence, positions that have a table are one; a baseline that does not apply has a reason."""
    words = ["--cluster", "nominal:4", "--mesh", "data=2,model=2", "-o", os.devnull]
    for name, has_sequence in (("mlp_tiny", False), ("dropout_tiny", False), ("llama_tiny", True), ("gpt2_tiny", True)):
        for baseline in ("context_zero3", "megatron_sequence"):
            for number in ("auto", 1, 2):
                options = ["--baseline", baseline, "--micro-batches", number]
                done = automap("search", MODELS / name / "model.hlo.pb", *words, *options)
                assert (done.returncode == 0) == has_sequence, f"{name} {options}: {done.stderr}"
                assert has_sequence or "has a sequence" in done.stderr, f"{name} {options}: {done.stderr}"
    done = automap("search", MODEL, "--cluster", "nominal:4", "--baseline", "megatron_3d", "-o", os.devnull)
    assert done.returncode == 4 and "expected servers for 2 to 8 equal stages" in done.stderr, done.stderr


def check_groups(work):
    """Weights are in shards inside a group of servers, optimizer state in a group or over all devices; the group is the
    fastest one that fits, and no search is slower."""
    cluster, plan = work / "servers.json", work / "groups.json"
    write_cluster(cluster, (("V100", 2),) * 4, slower=1e3, inside=1e10)
    words = [MODEL, "--cluster", cluster, "--micro-batches", 1]
    limit = search(*words, "-o", plan)[0]["step_seconds"]
    whole = sizes_of(search(*words, "--baseline", "data_parallel", "-o", plan), plan)
    for baseline, kinds in (("hsdp", 1), ("hsdp_zero2", 4)):
        steps = {}
        for group in (2, 4):
            mesh = f"data={8 // group},model={group}"
            found = search(*words, "--baseline", baseline, "--mesh", mesh, "-o", plan)
            steps[group] = found[0]["step_seconds"]
            weights, optimizer = sizes_of(found, plan)
            parts = group if kinds == 1 else 8
            assert 0.9 * whole[0] / group < weights < 1.2 * whole[0] / group, f"{baseline} {mesh}: {weights} of {whole}"
            assert 0.9 * whole[1] / parts < optimizer < 1.2 * whole[1] / parts, f"{baseline} {mesh}: {optimizer}"
        seconds = search(*words, "--baseline", baseline, "-o", plan)[0]["step_seconds"]
        assert abs(seconds / min(steps.values()) - 1) < 1e-9, f"{baseline}: {seconds} s of {steps}"
        assert limit <= seconds, f"{baseline}: {seconds} s, the search has {limit} s"
    done = automap("search", MODEL, "--cluster", "nominal:4", "--baseline", "hsdp", "-o", os.devnull)
    assert done.returncode == 4 and "make no groups of servers" in done.stderr, done.stderr


def sizes_of(found, plan):
    """Returns bytes of weights and optimizer state of the fullest device."""
    assert found[0]["step_seconds"] > 0
    devices = json.loads(plan.read_text())["predicted"]["devices"]
    return tuple(max(device[key] for device in devices) for key in ("weights_bytes", "optimizer_bytes"))


def check_bare(work):
    """--no-seeds and --no-polish are noted in the plan, and leave a search of few evaluations with less."""
    plan, steps = work / "bare.json", {}
    for options in ([], ["--no-seeds"], ["--no-polish"], ["--no-seeds", "--no-polish"]):
        found = search(MODEL, "--cluster", "nominal:8", "--space", "single_stage", "--searcher", "anneal",
                       "--evaluations", 8,
                       "-o", plan, *options)[0]  # fmt: skip
        settings = json.loads(plan.read_text())["search"]["settings"]
        noted = {key for key in ("no_seeds", "no_polish") if settings.get(key) is True}
        assert noted == {option[2:].replace("-", "_") for option in options}, f"{options}: {settings}"
        steps[len(options)] = max(found["step_seconds"], steps.get(len(options), 0))
    assert steps[2] > steps[0], f"a bare search of 8 plans is as good as the full one: {steps}"


def check_baseline_numbers():
    """A baseline by name has its fastest number of micro-batches, as in the table of a search."""
    for baseline, slower, numbers in (("even_pipeline", 1, (1, 2, 4, 8)), ("zero3", 2, (1, 2))):
        options = (MODELS / "gpt2" / "model.hlo.pb.zst", "--cluster", "C", "--baseline", baseline, "-o", os.devnull)
        steps = {number: search(*options, "--micro-batches", number)[0]["step_seconds"] for number in numbers}
        found = search(*options)[0]["step_seconds"]
        assert found <= min(steps.values()), f"{baseline}: {found}, by micro-batches {steps}"
        assert found < steps[slower], f"{baseline}: {slower} micro-batches are no slower: {steps}"


def main():
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        found = {name: check_spaces(name, CASES[name], work) for name in sys.argv[1:] or CASES}
        stages = {name: count for name, (count, _) in found.items()}
        assert max(stages.values()) > 1, f"no plan has several stages: {stages}"
        check_narrowing(work)
        if "gpt2_tiny" in found:
            check_initial(work / "gpt2_tiny.json", found["gpt2_tiny"][1], work)
        check_baseline_numbers()
        check_limits()
        check_random()
        check_mixed()
        check_sequences()
        check_groups(work)
        check_bare(work)
    print(f"stages of the plans: {stages}")


if __name__ == "__main__":
    main()
