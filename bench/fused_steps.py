"""Steps with and without fused kernels on the CPU: where their time goes.

For every model the program plans one device (host:1) with `--attention unfused` and `--attention fused`, and trains
both plans in turn with one thread. `run --trace` records each step of the program. The least time of a step over all
training steps counts, so that a passing load weighs little. The table has milliseconds of a training step:

    products   dots outside of attention; for the unfused plan all dots
    attention  the fused operators
    optimizer  updates of the weights
    rest       all else: norms, softmax, cross-entropy, activation functions, moves
    priced     all of it, as the plan predicts
    memory     activations at the peak, of the plan's prediction

Run as `AUTOMAP=build/automap python3 bench/fused_steps.py [--steps 3] [--rounds 2] [MODEL ...]`.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))
FORMS = ["unfused", "fused"]
KINDS = ["products", "attention", "optimizer", "rest"]


def module_of(model):
    for folder in ("datasets/models", "bench/models"):
        for name in ("model.hlo.pb", "model.hlo.pb.zst"):
            if (SOURCE / folder / model / name).exists():
                return SOURCE / folder / model / name
    raise SystemExit(f"fused_steps: there is no model {model}")


def kind_of(event):
    if event["cat"] == "optimizer":
        return "optimizer"
    return {"dot": "products", "fusion": "attention"}.get(event["name"], "rest")


def run(module, plan, steps, folder):
    """Kind and microseconds of every step of the program, in order; the least of the training steps."""
    trace, state = folder / "trace.json", module.parent / "state.npz"
    values = ["--state", state, "--data", module.parent / "data.npz"] if state.exists() else ["--state", "random"]
    command = [AUTOMAP, "run", module, "--plan", plan, "--steps", steps, "--threads", 1, "--quiet", "--trace", trace,
               "--trace-steps", steps, *values]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    events = json.loads(trace.read_text())
    events = [event for event in (events["traceEvents"] if isinstance(events, dict) else events)
              if event.get("ph") == "X" and event.get("cat") and event["name"] != "while"]
    events.sort(key=lambda event: event["ts"])
    count = len(events) // steps
    return [(kind_of(events[k]), min(events[k + count * step]["dur"] for step in range(steps))) for k in range(count)]


def measure(model, steps, rounds, folder):
    module, plans, least = module_of(model), {}, {}
    for form in FORMS:
        plans[form] = folder / f"{form}.json"
        subprocess.run([AUTOMAP, "search", module, "--cluster", "host:1", "--attention", form, "-o", plans[form],
                        "--quiet"], check=True, stdout=subprocess.DEVNULL)
    for _ in range(rounds):
        for form in FORMS:
            rows = run(module, plans[form], steps, folder)
            least[form] = [min(pair, key=lambda row: row[1]) for pair in zip(rows, least.get(form, rows))]
    for form in FORMS:
        sums = collections.Counter()
        for kind, microseconds in least[form]:
            sums[kind] += microseconds / 1e3
        predicted = json.loads(plans[form].read_text())["predicted"]
        memory = predicted["devices"][0]["activation_bytes"] / 1e6
        times = "".join(f"{sums[kind]:11.2f}" for kind in KINDS)
        times += f"{sum(sums.values()):11.2f}{predicted['step_seconds'] * 1e3:11.2f}"
        print(f"{model:14}{form:9}{times}{memory:10.1f} MB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL",
                        default=["bert_tiny", "gpt2_tiny", "gpt2_small", "gpt2_batch1"])
    parser.add_argument("--steps", type=int, default=3, help="training steps of a run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each plan")
    options = parser.parse_args()
    print(f"{'model':14}{'form':9}" + "".join(f"{kind:>11}" for kind in KINDS)
          + f"{'all, ms':>11}{'priced':>11}{'memory':>13}")
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            measure(model, options.steps, options.rounds, pathlib.Path(folder))


if __name__ == "__main__":
    main()
