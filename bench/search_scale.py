"""How the time of a search grows with instructions and with devices.

Writes training steps of N equal blocks as HLO text: a scaled input, a gated MLP (two products in, one out) and a
residual connection, forward and backward, with Adam for its four parameters, about 105 instructions a block. They are
searched with the defaults of `automap search` on servers of 8 devices, 200 GB/s inside and 25 GB/s between. Each row is
one search: instructions, devices, seconds to read, to search and in all, those of all processors, plans priced, seconds
of the step.

With --models, steps of large models of the zoo are searched instead, exported by JAX; a row also has the peak memory
and the gap. --write replaces the rows of these models in the document.

    AUTOMAP=build/automap python bench/search_scale.py [--quick] [--evaluations N]
    AUTOMAP=build/automap python bench/search_scale.py --models [NAME...] [--write bench/README.md]
"""

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import device_orders
import marked_section

AUTOMAP = os.environ.get("AUTOMAP", "build/automap")
TOKENS, WIDTH, HIDDEN = 8192, 1024, 4096
LIMIT_SECONDS = 60  # of 10^5 instructions on 1,024 devices
BY_INSTRUCTIONS = [1_000, 3_000, 10_000, 30_000, 100_000]
BY_DEVICES = [8, 64, 256, 1_024]
INSTRUCTIONS_PER_BLOCK = 105

LLAMA_70B = (80, 8192, 64, 8, 28672, 128256, 128, 8192)
OPT_350M = (24, 1024, 16, 50272, 2048, 2048)
LLAMA_405B = (126, 16384, 128, 8, 53248, 128256, 512, 8192)
# Servers of three types, 256 devices.
MIXED = [("H100", 8)] * 10 + [("A100", 8)] * 11 + [("V100", 8)] * 11
# name: of llama.model(), and whether its layers are unrolled, or None for GPT with 175 billion weights; cluster.
# OPT-350M has the sizes of megatron.model() and the servers of a cluster file.
MODELS = {
    "llama_70b_scan": (LLAMA_70B, False, "h100:16"),
    "llama_70b": (LLAMA_70B, True, "h100:16"),
    "llama_405b_scan": (LLAMA_405B, False, "h100:64"),
    "llama_405b": (LLAMA_405B, True, "h100:64"),
    "llama_405b_scan_2048": ((*LLAMA_405B[:6], 16384, 8192), False, "h100:2048"),
    "gpt_175b": (None, True, "a100:64"),
    "opt_350m": (OPT_350M, False, MIXED),
}
LABELS = {
    "llama_70b_scan": "Llama 3 70B, scanned",
    "llama_70b": "Llama 3 70B, unrolled",
    "llama_405b_scan": "Llama 3 405B, scanned",
    "llama_405b": "Llama 3 405B, unrolled",
    "llama_405b_scan_2048": "Llama 3 405B, scanned, batch of 16,384",
    "gpt_175b": "GPT 175B, unrolled",
    "opt_350m": "OPT-350M, scanned, three types",
}

SUM = """HloModule blocks

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY main {
"""


class Emitter:
    """Instructions of the entry computation, in order."""

    def __init__(self):
        self.lines, self.count, self.parameters, self.shapes = [], 0, 0, {}

    def emit(self, shape, opcode, operands, attributes=""):
        name = f"x{self.count}"
        self.count += 1
        self.shapes[name] = shape
        text = ",".join(map(str, shape))
        self.lines.append(f"  {name} = f32[{text}] {opcode}({', '.join(operands)}){attributes}")
        return name

    def parameter(self, shape):
        self.parameters += 1
        return self.emit(shape, "parameter", [str(self.parameters - 1)])

    def apply(self, opcode, *operands):
        return self.emit(self.shapes[operands[0]], opcode, operands)

    def spread(self, value, shape, dimensions=""):
        return self.emit(shape, "broadcast", [value], f", dimensions={{{dimensions}}}")

    def dot(self, a, b, left, right):
        one, other = self.shapes[a], self.shapes[b]
        shape = (one[1 - left], other[1 - right])
        sides = f", lhs_contracting_dims={{{left}}}, rhs_contracting_dims={{{right}}}"
        return self.emit(shape, "dot", [a, b], sides)


def forward(e, block, h):
    g, w_in, w_gate, w_out = block["weights"]
    scale = e.spread(g, (TOKENS, WIDTH), "1")
    n = e.apply("multiply", h, scale)
    u, v = e.dot(n, w_in, 1, 0), e.dot(n, w_gate, 1, 0)
    s = e.apply("logistic", u)
    a = e.apply("multiply", u, s)
    m = e.apply("multiply", a, v)
    block["kept"] = (h, scale, n, u, v, s, a, m)
    return e.apply("add", h, e.dot(m, w_out, 1, 0))


def backward(e, block, dh, one, zero):
    g, w_in, w_gate, w_out = block["weights"]
    h, scale, n, u, v, s, a, m = block["kept"]
    dm, d_out = e.dot(dh, w_out, 1, 1), e.dot(m, dh, 0, 0)
    da, dv = e.apply("multiply", dm, v), e.apply("multiply", dm, a)
    rest = e.apply("subtract", e.spread(one, (TOKENS, HIDDEN)), s)
    inner = e.apply("multiply", u, rest)
    slope = e.apply("multiply", s, e.apply("add", e.spread(one, (TOKENS, HIDDEN)), inner))
    du = e.apply("multiply", da, slope)
    dn = e.apply("add", e.dot(du, w_in, 1, 1), e.dot(dv, w_gate, 1, 1))
    d_in, d_gate = e.dot(n, du, 0, 0), e.dot(n, dv, 0, 0)
    products = e.apply("multiply", dn, h)
    d_g = e.emit((WIDTH,), "reduce", [products, zero], ", dimensions={0}, to_apply=sum")
    block["gradients"] = (d_g, d_in, d_gate, d_out)
    return e.apply("add", dh, e.apply("multiply", dn, scale))


def adam(e, weight, mean, square, gradient, constants):
    shape = e.shapes[weight]
    keep, take, keep_square, take_square, rate, small = (e.spread(c, shape) for c in constants)
    new_mean = e.apply("add", e.apply("multiply", mean, keep), e.apply("multiply", gradient, take))
    squared = e.apply("multiply", gradient, gradient)
    new_square = e.apply("add", e.apply("multiply", square, keep_square), e.apply("multiply", squared, take_square))
    root = e.apply("add", e.apply("sqrt", new_square), small)
    step = e.apply("multiply", e.apply("divide", new_mean, root), rate)
    return e.apply("subtract", weight, step), new_mean, new_square


def write_module(path, instructions):
    blocks_wanted = max(1, round(instructions / INSTRUCTIONS_PER_BLOCK))
    e = Emitter()
    shapes = [(WIDTH,), (WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    blocks = []
    for _ in range(blocks_wanted):
        groups = [[e.parameter(shape) for shape in shapes] for _ in range(3)]
        blocks.append({"weights": groups[0], "means": groups[1], "squares": groups[2]})
    h = e.parameter((TOKENS, WIDTH))
    constants = [e.emit((), "constant", [c]) for c in ("0.9", "0.1", "0.99", "0.01", "0.001", "1e-08")]
    one, zero = e.emit((), "constant", ["1"]), e.emit((), "constant", ["0"])
    for block in blocks:
        h = forward(e, block, h)
    loss = e.emit((), "reduce", [h, zero], ", dimensions={0,1}, to_apply=sum")
    dh = e.spread(one, (TOKENS, WIDTH))
    for block in reversed(blocks):
        dh = backward(e, block, dh, one, zero)
    outputs = []
    for block in blocks:
        updated = [adam(e, *parts, constants) for parts in zip(*list(block.values())[:3], block["gradients"])]
        outputs += [part[k] for k in range(3) for part in updated]
    results = outputs + [loss]
    shape = ", ".join(f"f32[{','.join(map(str, e.shapes[r]))}]" for r in results)
    e.lines.append(f"  ROOT out = ({shape}) tuple({', '.join(results)})\n}}")
    path.write_text(SUM + "\n".join(e.lines) + "\n")
    return e.count + 1


def write_cluster(path, devices):
    device = {"memory_bytes": 10**12, "memory_bytes_per_second": 2e12, "flops_per_second": {"f32": 100e12},
              "kernel_launch_seconds": 3e-6}
    links = {"inside": {"bytes_per_second": 200e9, "latency_seconds": 3e-6},
             "between": {"bytes_per_second": 25e9, "latency_seconds": 1e-5}}
    servers = [{"count": devices // 8, "device_type": "device", "devices": 8, "link": "inside"}]
    cluster = {"format": "automap-cluster-1", "name": f"{devices} devices", "device_types": {"device": device},
               "links": links, "servers": servers}
    if devices > 8:
        cluster["between_servers"] = "between"
    path.write_text(json.dumps(cluster))


def processor_seconds():
    """The peak memory of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(model, cluster, plan, evaluations):
    """The result of a search, its wall time in all and the seconds of all processors."""
    begin, before = time.monotonic(), processor_seconds()
    words = [AUTOMAP, "search", str(model), "--cluster", str(cluster), "-o", str(plan), "--json"]
    words += ["--evaluations", str(evaluations)] if evaluations else []
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, said = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {said}")
    return json.loads(out), time.monotonic() - begin, processor_seconds() - before


def export(name, folder):
    """Exports a model of MODELS."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "datasets"))
    from automap_jax.exporter import write_module
    from automap_jax.zoo import llama, megatron, transformer

    sizes, is_unrolled, _ = MODELS[name]
    if name == "opt_350m":
        model = megatron.model(*sizes, "float16")
    elif sizes:
        model = llama.model(*sizes, unrolled=is_unrolled)
    else:
        model = transformer.model(transformer.gpt2_logits, transformer.next_tokens, 96, 12288, 96, 49152, 50257, 512,
                                  2048)
    write_module(model.step, model.arguments, folder, constants=model.constants)


def write_row(path, row):
    """Replaces the row of a table with the same first column; others stay."""
    _, section, _ = marked_section.split(path, "search_scale")
    label = row.split("|")[1]
    lines = [row if line.split("|")[1:2] == [label] else line for line in section.splitlines()]
    marked_section.write(path, "search_scale", "\n".join(lines) + "\n")


def measure_models(names, folder, document=None):
    """Prints a row for each model. The document, if there is one, gets the processor time and not the wall time, which
    other programs lengthen."""
    print("model\tcluster\tall s\tprocessor s\tMB\tplans\tstep s\tgap %")
    for name in names:
        # In a process of its own: the peak memory of a child counts what its parent held when it was started.
        exporter = multiprocessing.get_context("spawn").Process(target=export, args=(name, folder / name))
        exporter.start()
        exporter.join()
        if exporter.exitcode != 0:
            raise SystemExit(f"the export of {name} failed")
        model, cluster = folder / name / "model.hlo.pb", MODELS[name][2]
        label = f"`{cluster}`"
        if not isinstance(cluster, str):
            counts = collections.Counter(kind for kind, _ in cluster)
            label = ", ".join(f"{8 * servers} {kind}" for kind, servers in counts.items())
            cluster = device_orders.write_cluster(str(folder / "mixed.json"), cluster)
        words = [AUTOMAP, "search", str(model), "--cluster", cluster, "-o", os.devnull, "--json"]
        begin = time.monotonic()
        with open(folder / "result.json", "w+") as out:
            process = subprocess.Popen(words, stdout=out)
            _, status, used = os.wait4(process.pid, 0)
            if status != 0:
                raise SystemExit(f"{' '.join(words)}: status {status}")
            out.seek(0)
            found = json.load(out)
        print(f"{name}\t{cluster}\t{time.monotonic() - begin:.1f}\t{used.ru_utime + used.ru_stime:.1f}"
              f"\t{used.ru_maxrss / 1e3:.0f}\t{found['evaluations']}\t{found['step_seconds']:.3f}"
              f"\t{100 * found['gap']:.1f}",
              flush=True)
        row = (f"| {LABELS[name]} | {label} | {used.ru_utime + used.ru_stime:.1f} | {used.ru_maxrss / 1e3:,.0f} "
               f"| {found['evaluations']} | {found['step_seconds']:.3f} | {100 * found['gap']:.1f} % |")
        if document:
            write_row(document, row)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--evaluations", type=int, default=0)
    parser.add_argument("--only", type=int, nargs=2, metavar=("INSTRUCTIONS", "DEVICES"))
    parser.add_argument("--models", nargs="*", choices=MODELS)
    parser.add_argument("--write", metavar="FILE.md", help="with --models: the document that gets the rows")
    options = parser.parse_args()
    if options.models is not None:
        with tempfile.TemporaryDirectory() as folder:
            measure_models(options.models or MODELS, pathlib.Path(folder), options.write)
        return
    cases = [(n, 64) for n in BY_INSTRUCTIONS] + [(10_000, d) for d in BY_DEVICES if d != 64] + [(100_000, 1_024)]
    if options.quick:
        cases = [(1_000, 8), (1_000, 64)]
    if options.only:
        cases = [tuple(options.only)]
    print("instructions\tdevices\tread s\tsearch s\tall s\tprocessor s\tplans\tstep s")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for instructions, devices in cases:
            count = write_module(work / "model.hlo.txt", instructions)
            write_cluster(work / "cluster.json", devices)
            found, seconds, processor = measure(work / "model.hlo.txt", work / "cluster.json", work / "plan.json",
                                                options.evaluations)
            print(f"{count}\t{devices}\t{found['import_seconds']:.2f}\t{found['search_seconds']:.2f}\t{seconds:.2f}"
                  f"\t{processor:.2f}\t{found['evaluations']}\t{found['step_seconds']:.4f}", flush=True)
            if instructions == 100_000 and devices == 1_024:
                verdict = "ok" if seconds <= LIMIT_SECONDS else "no"
                print(f"10^5 instructions on 1,024 devices: {seconds:.1f} s, limit {LIMIT_SECONDS} s, {verdict}",
                      file=sys.stderr)


if __name__ == "__main__":
    main()
