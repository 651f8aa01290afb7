"""Stages of bench/gpu.sh that measure speed: step times beside JAX, single kernels, learning."""

import json
import os
import pathlib
import sys

import gpu_beside_jax
import gpu_profile
from gpu_visit import NO_MEMORY, NO_TIME

JAX_SECONDS = 150  # of one model: start, compilation and autotuning, steps
AUTOMAP_SECONDS = 90
DRY_CASES = ["gpt2_bf16_tiny:bf16", "mlp:f32"]
AGENT_EPISODES = 640


def one_side(visit, case, side, limit):
    """Returns the figures of one side of a case, or the reason why it has no figures."""
    environment = dict(os.environ, PYTHONPATH="datasets", AUTOMAP="bin/automap", PYTHONDONTWRITEBYTECODE="1")
    if side == "automap":
        environment["XDG_CACHE_HOME"] = os.path.abspath("cache")
    done = visit.run([sys.executable, "-u", "bench/gpu_beside_jax.py", case, "--json", "--side", side, "--device",
                      visit.device], limit, environment)
    rows = done.json_lines()
    return (rows[-1] if rows else {f"{side}_failure": NO_TIME if done.is_out_of_time else done.reason}), done


def beside_jax(visit):
    """Each case by JAX, then by automap; one process each, which gives the card's memory back."""
    for case in DRY_CASES if visit.is_dry_run else gpu_beside_jax.CASES:
        theirs, end = one_side(visit, case, "jax", JAX_SECONDS)
        ours, our_end = one_side(visit, case, "automap", AUTOMAP_SECONDS)
        row = {**theirs, **ours}
        ratio = gpu_beside_jax.ratio_of(row)
        if ratio:
            result = f"{ratio:.2f} x JAX"
        elif end.is_out_of_time or our_end.is_out_of_time:
            result = NO_TIME
        elif "No module named" in row.get("automap_failure", "") or NO_MEMORY.search(row.get("automap_failure", "")):
            result = "not run"  # neither the pack nor this machine's JAX has the module, or the card has no room
        else:
            result = "FAILED" if "automap" not in row else "no ratio"
        visit.add(case.replace(":", ", "), result, gpu_beside_jax.text(row), **row)


def kernels(visit):
    visit.add_lines(["bin/bench_kernels", "--device", visit.device, *["--quick"] * visit.is_dry_run], 90)


def learning(visit):
    """Updates per second of the DQN, and searches that train it."""
    visit.add_lines(["bin/bench_dqn", "--device", visit.device], 90)
    for device in dict.fromkeys(("cpu", visit.device)):
        visit.add_test(f"search for gpt2_tiny on {device}", visit.run(
            ["bin/automap", "search", "datasets/models/gpt2_tiny/model.hlo.pb", "--cluster", "nominal:4", "--searcher",
             "dqn",
             "--seed", 1, "--device", device, "-o", f"search.{device}.json", "--quiet"], 60))


def agent(visit):
    """Episodes per second of `automap agent train`."""
    episodes = AGENT_EPISODES // 5 if visit.is_dry_run else AGENT_EPISODES
    for device in dict.fromkeys((visit.device, "cpu")):
        done = visit.run(["bin/automap", "agent", "train", "--episodes", episodes, "--report", episodes, "--device",
                          device,
                          "--json", "--quiet", "-o", f"agent.{device}.safetensors"], 120)
        rows = done.json_lines()
        if done.status != 0:
            visit.add_test(f"agent train on {device}", done)
            continue
        if not rows:
            visit.add(f"agent train on {device}", "FAILED", "no line of --json")
            continue
        rate = rows[-1]["episodes"] / rows[-1]["seconds"]
        visit.add(f"agent train on {device}", f"{rate:.0f} /s", f"{rows[-1]['episodes']} episodes",
                  episodes_per_second=rate)


def predicted(visit):
    """Predicted beside measured seconds of a step, on the cluster that the probe stage measured."""
    probed = visit.cluster
    if not probed.exists():
        visit.add("all", "not run", f"the stage probe has left no {probed.name}")
        return
    description = json.loads(probed.read_text())
    description["servers"] = [{**description["servers"][0], "count": 1, "devices": 1}]
    cluster = pathlib.Path("one_device.json")
    cluster.write_text(json.dumps(description))
    names = ["gpt2_tiny", "mlp"] if visit.is_dry_run else [
        "gpt2_bf16_batch8", "gpt2_batch8", "bert_large", "llama_layers", "resnet50_batch64", "vgg19", "gpt2_tiny",
        "mlp"]
    for name in names:
        if not gpu_profile.has_model(visit, name):
            continue
        at = gpu_beside_jax.find_module(name)
        module, plan = at / "model.hlo.pb", f"predicted.{name}.json"
        searched = visit.run(["bin/automap", "search", module, "--cluster", cluster, "--searcher", "baseline",
                              "--baseline",
                              "data_parallel", "-o", plan, "--quiet"], 60)
        told = searched.status == 0 and visit.run(["bin/automap", "simulate", plan, module, "--cluster", cluster,
                                                   "--json",
                                                   "--quiet"], 60)
        done = told and told.status == 0 and visit.run(
            ["bin/automap", "run", module, "--plan", "none", *gpu_beside_jax.values_of(at), "--device", visit.device,
             "--json",
             "--quiet"], 90)
        ends = [end for end in (searched, told, done) if end]
        if len(ends) < 3 or done.status != 0:
            visit.add_model(name, ends[-1])
            continue
        expected = 1e3 * json.loads(told.output)["step_seconds"]
        seconds = 1e3 * gpu_beside_jax.typical_seconds(done.json_lines())
        visit.add(name, f"{100 * (expected / seconds - 1):+.1f} %",
                  f"predicted {expected:.3f} ms, measured {seconds:.3f} ms",
                  predicted_ms=expected, measured_ms=seconds)
