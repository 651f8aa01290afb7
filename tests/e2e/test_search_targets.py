# labels: cpu e2e
# timeout: 300
# cost: 20
# python: plain
"""`search --for TARGET` finds plans that `export --format TARGET` accepts, or gives the reason for their lack.

Searches of small budgets over models and targets are exported; refusals are those of the table in docs/commands.md.
The best of 200 random plans of a target's space is at most 5 % faster than its plan. `--also` writes the plans that a
search without a target lists.

Run as `AUTOMAP=build/automap python3 tests/e2e/test_search_targets.py`.
"""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import FULL, MODELS, automap, losses, module, need_program, succeed

TRAINERS = {"megatron": "Megatron-LM", "torchtitan": "torchtitan"}
TARGETS = ("jax", "hlo", "shardy", "torch", *TRAINERS)
SMALL = [("gpt2_tiny", "C", TARGETS), ("vgg_tiny", "h100:4", ("torch", *TRAINERS)),
         ("resnet_tiny", "h100:4", ("hlo",)), ("mlp_tiny", "h100:4", ("shardy", "megatron"))]
LARGE = {"llama3_8b", "t5_paper_24_11b", "t5_paper_24_3b", "t5_pipeline_24_11b", "t5_pipeline_24_3b", "bert48"}
NOT_TRANSFORMERS = {"adafactor_tiny", "adamw_tiny", "digits", "exact_gather", "exact_linear", "lion_tiny", "lstm_tiny",
                    "mlp", "mlp_evaluate", "mlp_tiny", "resnet50_batch16", "resnet_tiny", "two_swapped", "unet_tiny",
                    "vgg19", "vgg_tiny"}
BUDGET = ["--evaluations", "12"]
NEAR = 1.05


def cases():
    if not FULL:
        return SMALL
    names = sorted(path.parent.name for path in MODELS.glob("*/model.hlo.pb*"))
    return [(name, cluster, TARGETS) for name in names if name not in LARGE for cluster in ("C", "h100:4")]


def search(folder, name, cluster, target, *options):
    """The report of a search for the target, whose plan is exported; or the refusal."""
    plan, trains = folder / "plan.json", ["--inference"] if name == "mlp_evaluate" else []
    done = automap("search", module(name), "--cluster", cluster, "--for", target, *options, *trains, "-o", plan,
                   "--json")
    report = json.loads(done.stdout or done.stderr.splitlines()[-1])
    if done.returncode != 0:
        assert done.returncode == 4, f"{name} on {cluster} for {target}: {done.returncode} {done.stdout}{done.stderr}"
        return report
    succeed("export", plan, module(name), "--format", target, "-o", folder / "exported")
    assert json.loads(plan.read_text())["search"]["settings"]["for"] == target
    return report


def check_exports(folder):
    for name, cluster, targets in cases():
        for target in targets:
            report = search(folder, name, cluster, target, *BUDGET)
            refused = target in TRAINERS and name in NOT_TRANSFORMERS
            assert ("error" in report) == refused, f"{name} on {cluster} for {target}: {report.get('error')}"
            if refused:
                assert f"{TRAINERS[target]} trains transformers" in report["error"]["message"]
            elif "unrestricted_seconds" in report:
                is_slower = report["step_seconds"] > report["unrestricted_seconds"]
                assert report["restriction"] or not is_slower, f"{name} for {target}: nothing says why it is slower"


def check_refusals(folder):
    """A plan that is not for Megatron-LM is refused by `export`, too, with the name of the search for it."""
    plan = folder / "plan.json"
    for name in ("vgg_tiny", "mlp_tiny"):
        succeed("search", module(name), "--cluster", "nominal:2", *BUDGET, "-o", plan, "--quiet")
        done = automap("export", plan, module(name), "--format", "megatron")
        assert done.returncode == 4 and "trains transformers" in done.stderr, done.stderr
    for words in (["--schedule", "zb_h1", "--for", "torch"], ["--micro-batches", "4", "--for", "hlo"],
                  ["--also", "jax", "--quiet"], ["--also", "tpu=x"], ["--for", "pytorch"],
                  ["--for", "megatron", "--baseline", "zero1"]):
        done = automap("search", module("mlp_tiny"), "--cluster", "nominal:2", *words, "-o", plan)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, f"{words}: {done.returncode} {done.stderr}"


def check_layers(folder):
    """Stages of strategies have whole layers: loops over layers are split, and refused with their file where not."""
    words = ["--cluster", "nominal:4", "--for", "torchtitan", "--stages", "2", "-o", folder / "plan.json", "--quiet"]
    succeed("search", module("llama_tiny"), *words)
    done = automap("search", module("llama_tiny"), *words, "--layers", "loop")
    assert done.returncode == 4 and "model.hlo" in done.stderr and "whole layers" in done.stderr, done.stderr
    succeed("search", module("gpt2_tiny"), "--cluster", "nominal:2", *BUDGET, "--for", "torch", "-o",
            folder / "plan.json")
    done = automap("export", folder / "plan.json", module("gpt2_tiny"), "--format", "torch", "-o",
                   folder / "none" / "x")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, f"a note precedes the refusal: {done.stderr}"


def products(model, plan):
    """How many products the first device computes under a plan."""
    return succeed("lower", model, "--plan", plan, "--quiet").count(" dot(")


def check_recomputation(folder):
    """Plans that recompute the first layers, all, or parts of all; trainers refuse others with the reason. A part
    repeats as many products as its definition says: of each of the two layers' six with weights and two of
    attention."""
    model, plan = module("gpt2_tiny"), folder / "plan.json"
    source = ["--state", MODELS / "gpt2_tiny" / "state.npz", "--data", MODELS / "gpt2_tiny" / "data.npz"]
    expected = losses(model, "none", source, 2)
    selective = "--recompute-granularity selective\n--recompute-modules "
    for target, attention, fraction, repeated, said in (
            ("megatron", "unfused", "1", 0, "global-batch-size 16\n"),
            ("megatron", "unfused", "1.7e-4", 2, f"{selective}core_attn\n"),
            ("megatron", "unfused", "1.4e-4", 2, f"{selective}core_attn layernorm\n"),
            ("megatron", "unfused", "1.25e-4", 4, f"{selective}core_attn layernorm mlp\n"),
            ("megatron", "fused", "1.05e-4", None, "--recompute-method uniform\n--recompute-num-layers 1\n"),
            ("megatron", "fused", "1.1e-4", None, "--recompute-method block\n--recompute-num-layers 1\n"),
            ("torchtitan", "unfused", "1.3e-4", 4, "activation_checkpoint = SelectiveAC.Config()\n"),
            ("torchtitan", "fused", "1.05e-4", None, "activation_checkpoint = FullAC.Config()\n")):  # fmt: skip
        succeed("search", model, "--cluster", "nominal:4", "--for", target, "--data", "4", "--stages", "1",
                "--attention",
                # fmt: skip
                attention, "--micro-batches", "1", "--evaluations", "60", "--memory-fraction", fraction, "-o", plan)
        assert said in succeed("export", plan, model, "--format", target, "--quiet"), (target, fraction)
        if fraction == "1":
            least = products(model, plan)
        elif repeated is not None:
            assert products(model, plan) == least + repeated, (target, fraction, products(model, plan), least)
            selected = json.loads(plan.read_text())
        for own, other in zip(losses(model, plan, source, 2), expected):
            assert abs(own - other) < 1e-5 * other, f"recomputation changes the loss: {own}, {other}"
    document = json.loads(plan.read_text())
    first, second = document["stages"][0]["recompute"]
    ranges, saved = selected["stages"][0]["recompute"], selected["stages"][0]["saved"]
    for base, changes, reason in (
            (document, {"recompute": [first]}, "all layers or none"),
            (document, {"recompute": [[first[0], first[1] - 40], second]}, "has other ranges"),
            (document, {"recompute": [[first[0] - 9, first[1]], second]}, "has other ranges"),
            (selected, {"recompute": ranges[:1], "saved": [k for k in saved if k < ranges[0][1]]},
             "parts of all layers"),
            (selected, {"saved": saved[1:]}, "keeps other values")):  # fmt: skip
        moved = {**base, "stages": [{**base["stages"][0], **changes}]}
        (folder / "moved.json").write_text(json.dumps(moved))
        done = automap("export", folder / "moved.json", model, "--format", "torchtitan")
        assert done.returncode == 4 and reason in done.stderr, f"{changes}: {done.stderr}"


def check_random(folder):
    """No target's plan is far above random ones."""
    for target in TARGETS if FULL else ("hlo", "megatron"):
        budget = [] if FULL else ["--evaluations", "40"]
        model = "gpt2_tiny" if FULL or target == "megatron" else "mlp_tiny"
        found = search(folder, model, "h100:4", target, *budget)["step_seconds"]
        random = ["--searcher", "random", "--evaluations", "200" if FULL else "20"]
        best = search(folder, model, "h100:4", target, *random)["step_seconds"]
        assert found <= NEAR * best, f"{target}: {found} s, and a random plan takes {best} s"


def check_also(folder):
    """The plans that a search lists for other targets."""
    model, files = module("gpt2_tiny"), {target: folder / f"{target}.json" for target in ("jax", "torch")}
    also = [word for target, file in files.items() for word in ("--also", f"{target}={file}")]
    words = ["search", model, "--cluster", "h100:4", *also, *BUDGET, "-o", folder / "plan.json", "--json"]
    report = json.loads(succeed(*words))
    assert report["targets"]["automap"] == report["step_seconds"]
    for target, file in files.items():
        assert json.loads(file.read_text())["predicted"]["step_seconds"] == report["targets"][target]
        succeed("export", file, model, "--format", target, "-o", folder / "exported")


def check_also_refused(folder):
    """A target that cannot hold the module is refused before the search; one without a plan keeps the others."""
    plan, jax, other = folder / "result.json", folder / "also_jax.json", folder / "other.json"
    also = ["--also", f"megatron={other}", "--also", f"jax={jax}", "-o", plan]
    done = automap("search", module("mlp_tiny"), "--cluster", "nominal:2", *BUDGET, *also)
    assert done.returncode == 4 and not plan.exists() and not done.stdout, done
    assert f"--also megatron={other}: " in done.stderr and "trains transformers" in done.stderr, done.stderr
    words = ["search", module("gpt2_tiny"), "--cluster", "nominal:2", "--baseline", "zero3"]
    done = automap(*words, "--json", *also)
    assert done.returncode == 4 and jax.exists() and not other.exists(), done
    assert json.loads(done.stdout)["plan_file"] == str(plan) and plan.exists()
    message = json.loads(done.stderr)["error"]["message"]
    assert message.startswith(f"the plan is in {plan}, but --also megatron={other}: none of the priced"), message


def main():
    need_program()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_exports(folder)
        check_refusals(folder)
        check_layers(folder)
        check_recomputation(folder)
        check_random(folder)
        check_also(folder)
        check_also_refused(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
