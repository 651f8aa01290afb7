"""Stages of bench/gpu.sh that look inside: the probe, times of kernels, libraries' choices, sanitizers."""

import collections
import glob
import json
import pathlib
import re
import shutil
import statistics

import gpu_beside_jax
import gpu_tests
from gpu_visit import NO_TIME

GPT2 = "gpt2_bf16_batch8"
MOST_KERNELS = 30  # lines of a table
MOST_VALUE = 120  # characters of a value in the table
TRACED_STEPS = 3
WITHOUT_MODEL = "the pack has no module of this model; the stage jax exports it, where JAX is installed"

# Sanitizers of the toolkit, with options that keep provoked refusals from counting as errors; then the programs
# beside the training runs. The order is that of importance.
SANITIZERS = {
    "memcheck": (["--report-api-errors", "no"], "test_cuda_"),
    "racecheck": ([], "test_cuda_(kernels|comm|dqn)"),
    "synccheck": ([], "test_cuda_(kernels|comm|dqn)"),
    "initcheck": ([], "test_cuda_(kernels|comm|dqn)"),
}
SANITIZER_FOUND = 99
SANITIZER_SECONDS = 120
SANITIZED_MODELS = {"mlp_tiny": 3, "gpt2_tiny": 3}  # steps
TOOL_FOLDERS = ["/usr/local/cuda/bin/", "/opt/nvidia/*/", "/opt/nvidia/*/*/", "/opt/nvidia/*/*/bin/"]


def tool(name):
    """The path of a program of the toolkit, or None."""
    places = [name, *(place for folder in TOOL_FOLDERS for place in sorted(glob.glob(folder + name)))]
    return next((found for found in map(shutil.which, places) if found), None)


def leaves(value, name=""):
    """Every number, word and table of a JSON value, with its place."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        for index, part in enumerate(value):
            yield from leaves(part, f"{name}[{index}]")
    else:
        yield name, value


def shortened(value):
    """A value of a cluster file; a long list by its count, which the file has in full."""
    text = str(value)
    return text if len(text) <= MOST_VALUE else f"{text[:MOST_VALUE // 2]} ... ({text.count(',') + 1} numbers)"


def probe_once(visit, name, file, device, environment):
    """Probes the machine; without --devices that is all cards. Two or more of them have collectives, too."""
    written = visit.folder / file
    done = visit.run(["bin/automap", "cluster", "--probe", "--device", device, "-o", written], 120, environment)
    visit.add_test(name, done)
    if done.status != 0:
        return
    cluster = json.loads(written.read_text())
    for warning in re.findall(r"warning: (.*)", done.output):
        visit.add(f"warning: {warning}")
    if device == "cuda" and sum(server["devices"] for server in cluster["servers"]) > 1:
        kinds = sorted(cluster["links"]["link"].get("collectives", {}))
        visit.add("collectives", ", ".join(kinds) or "none") if len(kinds) == 4 else visit.add(
            "collectives", "FAILED", f"expected 4 kinds, got {', '.join(kinds) or 'none'}")
    for key, value in leaves(cluster):
        visit.add(f"{key}: {shortened(value)}")


def probe(visit):
    if visit.is_dry_run and gpu_tests.has_stand_ins():
        two_cards = visit.environment(STAND_IN_DEVICES="2", STAND_IN_MEMORY=str(12 << 20))
        probe_once(visit, "cluster --probe, stand-ins", "stand_ins.json", "cuda", two_cards)
    probe_once(visit, "cluster --probe", visit.cluster.name, visit.device, visit.environment())


def run_command(visit, name, steps, *options):
    """`automap run` of a model of the pack on one device."""
    at = gpu_beside_jax.find_module(name)
    values = ["--state", at / "state.npz", "--data",
              at / "data.npz"] if (at / "state.npz").exists() else ["--state", "random"]
    return ["bin/automap", "run", at / "model.hlo.pb", "--plan", "none", *values, "--steps", steps, "--device",
            visit.device,
            "--json", "--quiet", *options]


def has_model(visit, name):
    """Adds a row where the pack lacks a model and the stage `jax` has not exported it here."""
    if gpu_beside_jax.find_module(name):
        return True
    visit.add(name, "not run", WITHOUT_MODEL)
    return False


def kernel_rows(events, steps):
    """(microseconds of a step, count, name) of each kind of kernel and of each kernel, longest first.

    A kernel's time is the median over the traced steps, times its runs in a step. A kind is the kernel's name
    in the trace: an operator, or a fusion by its last operator and size."""
    times = collections.defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and "instruction" in event.get("args", {}):
            place = event["args"]
            times[event["name"], place["instruction"], place.get("op_name", "")].append(event["dur"])
    kinds, single = collections.Counter(), []
    counts = collections.Counter()
    for (name, instruction, op_name), durations in times.items():
        own = statistics.median(durations) * len(durations) / steps
        kinds[name] += own
        counts[name] += 1
        single.append((own, 1, f"{name} {instruction} {op_name}"))
    return sorted(((own, counts[name], name) for name, own in kinds.items()),
                  reverse=True), sorted(single, reverse=True)


def kernel_times(visit):
    """Times of GPT-2's kernels: the traced run waits after each of them, so small ones seem longer than they are."""
    name = "gpt2_tiny" if visit.is_dry_run else GPT2
    if not has_model(visit, name):
        return
    trace = visit.folder / "trace.json"
    done = visit.run(run_command(visit, name, 6, "--trace", trace, "--trace-steps", TRACED_STEPS), 90)
    if done.status != 0:
        visit.add_model(f"trace of {name}", done)
        return
    kinds, single = kernel_rows(json.loads(trace.read_text())["traceEvents"], TRACED_STEPS)
    total = sum(row[0] for row in kinds)
    visit.add(f"{name}: {sum(row[1] for row in kinds)} kernels, {total / 1e3:.3f} ms in all, one after the other",
              kinds=kinds, kernels=single[:200])
    for title, rows in (("kind", kinds), ("kernel", single)):
        visit.add(f"{'us':>10} {'share':>7} {'count':>6}  {title}")
        for own, count, text in rows[:MOST_KERNELS]:
            visit.add(f"{own:10.1f} {100 * own / total:6.1f}% {count:6}  {text[:100]}")


def blas_log(visit):
    """cuBLASLt's own log of a short run: the algorithms of its products."""
    log = visit.folder / "cublaslt.log"
    name = "gpt2_tiny" if visit.is_dry_run else GPT2
    if not has_model(visit, name):
        return
    environment = visit.environment(CUBLASLT_LOG_LEVEL="5", CUBLASLT_LOG_FILE=str(log))
    done = visit.run(run_command(visit, name, 1), 60, environment)
    visit.add_model(f"{name}, one step", done)
    text = log.read_text(errors="replace") if log.exists() else ""
    if done.status == 0 and text:
        calls = re.findall(r"\[(cublasLt\w+)\]", text)
        for call, count in collections.Counter(calls).most_common():
            visit.add(f"{count:8} {call}")
        for algorithm, count in collections.Counter(re.findall(r"algo=\[([^]]*)\]", text)).most_common(MOST_KERNELS):
            visit.add(f"{count:8} {algorithm}")
    elif done.status == 0:
        visit.add("cublaslt.log", "not run", "the library wrote no log")


def lacks_tool(name):
    """A function that returns why a stage of this program cannot run, or None."""
    return lambda visit: "needs a card" if visit.is_dry_run else None if tool(name) else "not installed here"


def systems(visit):
    """Times of kernels inside their graphs, by nsys where it is installed."""
    program, reason = tool("nsys"), lacks_tool("nsys")(visit)
    if reason:
        visit.add("nsys", "not run", reason)
        return
    if not has_model(visit, GPT2):
        return
    report = visit.folder / "gpt2"
    done = visit.run([program, "profile", "--force-overwrite", "true", "--cuda-graph-trace", "node", "-o", report,
                      *run_command(visit, GPT2, 8)], 120)
    if done.status != 0:
        visit.add("nsys", NO_TIME if done.is_out_of_time else "skipped", done.reason)
        return
    table = visit.run([program, "stats", "--force-export", "true", "--report", "cuda_gpu_kern_sum",
                       f"{report}.nsys-rep"], 90)
    for line in list(filter(str.strip, table.output.splitlines()))[:MOST_KERNELS + 5]:
        visit.add(line.rstrip()[:160])


def sanitizers(visit):
    program, reason = tool("compute-sanitizer"), lacks_tool("compute-sanitizer")(visit)
    if reason:
        visit.add("compute-sanitizer", "not run", reason)
        return

    def check(case):
        name, what, command = case
        done = visit.run([program, "--tool", name, *SANITIZERS[name][0], "--error-exitcode", SANITIZER_FOUND,
                          "--require-cuda-init", "no", *command], SANITIZER_SECONDS)
        if "not supported" in done.output and done.status != 0:
            visit.add(f"{what}, {name}", "skipped", "the sanitizer does not support this device or driver")
        else:
            visit.add_test(f"{what}, {name}", done)

    models = [(f"{model}, {steps} steps", run_command(visit, model, steps))
              for model, steps in SANITIZED_MODELS.items()]
    tests = [(pathlib.Path(test).name, [test]) for test in gpu_tests.test_programs()]
    visit.each(check, [(name, what, command) for name, (_, pattern) in SANITIZERS.items()
                       for what, command in models + [test for test in tests if re.match(pattern, test[0])]])
