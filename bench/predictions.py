"""Predicted beside measured: plans of the zoo's small models, simulated on this host as probed, and run.

The host is probed as one, two and four devices (`cluster --probe --devices N`; four share the
processors), several times between the runs, and of each figure the least is taken, as of what is
measured. For every plan:

    predicted   step time by `simulate`, by the probe's curves alone
    profiled    the same with `--profile`: events measured by `run --profile`, in runs that are not timed, between
                the others
    measured    step time of `run --threads 1`, kept to as many processors as the plan has ranks: of the
                steps in some 4 ms the median, of those of a repeat the least, of the repeats the
                least; all plans are run once, then all again, and so on; a repeat beside which other
                programs worked is made again
    spread      the repeats' median above the least, in per cent
    peak        bytes of all devices at their peaks, slots of transfers included: simulated over counted

then the mean absolute error, Kendall's tau over the pairs of plans whose measured times differ by 5 %
or more, and for every model the plan that is predicted to be best beside the one that is.

Run as `AUTOMAP=build/automap python bench/predictions.py [--quick] [MODEL ...]`.
"""

import argparse
import itertools
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
MODELS = SOURCE / "datasets" / "models"
AUTOMAP = os.environ.get("AUTOMAP", str(SOURCE / "build" / "automap"))

# model, ranks, baseline, mesh (None: the baseline's own), micro-batches
PLANS = [
    *[(model, ranks, baseline, mesh, parts)
      for model in ("gpt2_tiny", "bert_tiny")
      for ranks, baseline, mesh, parts in [(1, "data_parallel", None, 1), (2, "data_parallel", None, 1),
                                         (2, "megatron", "model=2", 1), (2, "even_pipeline", None, 2),
                                         (4, "data_parallel", None, 1), (4, "megatron", "data=2,model=2", 1)]],
    *[(model, ranks, baseline, mesh, parts)
      for model in ("t5_tiny", "llama_tiny")
      for ranks, baseline, mesh, parts in [(1, "data_parallel", None, 1), (2, "data_parallel", None, 1),
                                         (2, "megatron", "model=2", 1), (2, "even_pipeline", None, 4)]],
    ("vgg_tiny", 1, "data_parallel", None, 1), ("vgg_tiny", 2, "data_parallel", None, 1),
    ("vgg_tiny", 4, "data_parallel", None, 1),
    ("mlp", 1, "data_parallel", None, 1), ("mlp", 2, "data_parallel", None, 1), ("mlp", 2, "zero1", None, 1),
    ("vit_tiny", 1, "data_parallel", None, 1), ("vit_tiny", 2, "data_parallel", None, 1),
    ("resnet_tiny", 1, "data_parallel", None, 1), ("unet_tiny", 1, "data_parallel", None, 1),
]
# With many small collectives, which show what the probe takes them to be.
ZERO3 = [(model, 2, "zero3", None, 1) for model in ("gpt2_tiny", "bert_tiny", "t5_tiny", "llama_tiny", "vit_tiny",
                                                    "mlp")]
QUICK = [0, 1]
PROBE_UNTIL = 240  # seconds: on a busy machine probes take long, and what there is must do
CALM = 0.1  # processors that others may use in a repeat that is not made again
MOST_TRIES = 4
REPEAT_UNTIL = 300  # seconds: no repeat is made again later


def call(*arguments, processors=None):
    """Writes the output of a command to files: the reader of a pipe would use a core that ranks need."""
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run([AUTOMAP, *map(str, arguments)], stdout=told, stderr=errors,
                              preexec_fn=(lambda: os.sched_setaffinity(0, processors)) if processors else None)
        told.seek(0), errors.seek(0)
        if done.returncode != 0:
            raise SystemExit(f"automap {' '.join(map(str, arguments))}: exit code {done.returncode}\n{errors.read()}")
        return told.read()


class Others:
    """How many processors other programs, and other machines on this one's, had since begun."""

    def __init__(self):
        self.time, self.all, self.own = time.perf_counter(), self.busy(), self.children()

    @staticmethod
    def busy():
        user, nice, system, _, _, irq, soft, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def children():
        used = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
        return sum(one.ru_utime + one.ru_stime for one in used)

    def share(self):
        return (self.busy() - self.all - self.children() + self.own) / (time.perf_counter() - self.time)


class Case:
    """One plan with its predictions and measurements."""

    def __init__(self, folder, number, row):
        self.model, self.ranks, self.baseline, self.mesh, self.parts = row
        self.at = MODELS / self.model
        self.module = self.at / "model.hlo.pb"
        self.plan = folder / f"{number}.plan.json"
        self.cluster = folder / f"host{self.ranks}.json"
        self.profile = folder / f"profile{self.ranks}.json"
        self.repeats = []
        self.disturbed = 0
        self.peak = None

    @property
    def name(self):
        words = [self.baseline, self.mesh or "", f"M={self.parts}" if self.parts > 1 else ""]
        return " ".join(word for word in words if word) if self.ranks > 1 else "one rank"

    def search(self):
        options = ["--mesh", self.mesh] if self.mesh else []
        options += ["--micro-batches", self.parts] if self.parts > 1 else []
        options += ["--space", "pipeline"] if self.baseline == "even_pipeline" else []
        call("search", self.module, "--cluster", self.cluster, "--searcher", "baseline", "--baseline", self.baseline,
             *options, "-o", self.plan, "--quiet")

    def simulate(self, *options):
        told = json.loads(call("simulate", self.plan, self.module, "--cluster", self.cluster, "--json", *options))
        return told["step_seconds"], sum(device["peak_bytes"] + device["channel_bytes"] for device in told["devices"])

    def run(self, steps, *options):
        """Median seconds of a step; notes the executor's bytes of all devices, slots of transfers included."""
        processors = set(sorted(os.sched_getaffinity(0))[:self.ranks])
        told = [json.loads(line) for line in
                call("run", self.module, "--plan", self.plan, "--threads", 1, "--steps", steps, "--json", "--state",
                     self.at / "state.npz", "--data", self.at / "data.npz", *options,
                     processors=processors).splitlines()]
        seconds = [row["seconds"] for row in told if "step" in row]
        self.peak = told[-1]["memory"]["channel_bytes"] + sum(
            device["peak_bytes"] for device in told[-1]["measured"]["devices"])
        return STATISTIC(seconds[len(seconds) // 5:])

    def repeat(self, until):
        """One more repeat; again, a few times, while other programs work beside it."""
        tries = []
        while True:
            others = Others()
            tries.append(self.run(self.steps))
            if others.share() < CALM or len(tries) == MOST_TRIES or time.perf_counter() > until:
                break
            self.disturbed += 1
        self.repeats.append(min(tries))

    @property
    def measured(self):
        return min(self.repeats)

    @property
    def spread(self):
        return statistics.median(self.repeats) / self.measured - 1


def least_median(seconds):
    """Of the steps in some 4 ms, three at least, the median; of those the least: for as long as that a core is
    most often left alone by what else shares it."""
    count = max(3, round(4e-3 / statistics.median(seconds)))
    rows = [seconds[k:k + count] for k in range(0, max(len(seconds) - count + 1, 1), count)]
    return min(statistics.median_low(row) for row in rows)


STATISTIC = least_median


def least(files):
    """Of several probes of one machine: each class at the sizes has its least seconds, all else is the first's."""
    def merge(parts):
        if isinstance(parts[0], dict):
            return {key: [min(times) for times in zip(*(part[key] for part in parts))] if key == "seconds"
                    else merge([part[key] for part in parts])
                    for key in parts[0] if all(key in part for part in parts)}
        return parts[0]
    return merge([json.loads(file.read_text()) for file in files])


class Hosts:
    """The cluster files of this host as 1, 2 and 4 devices, probed again and again."""

    def __init__(self, folder, counts, is_quick):
        self.folder, self.counts, self.is_quick = folder, counts, is_quick
        self.probes = {count: [] for count in counts}
        self.are_given = all((folder / f"host{count}.json").exists() for count in counts)

    def probe(self):
        for count in [] if self.are_given else self.counts:
            file = self.folder / f"probe{count}.{len(self.probes[count])}.json"
            if self.is_quick:
                file.write_text(call("cluster", f"nominal:{count}", "--json"))
            else:
                call("cluster", "--probe", "--device", "cpu", "--devices", count, "-o", file,
                     processors=set(sorted(os.sched_getaffinity(0))[:count]))
            self.probes[count].append(file)
            (self.folder / f"host{count}.json").write_text(json.dumps(least(self.probes[count])))


def kendall(cases, predicted):
    """Tau over the pairs whose measured times differ by 5 % or more."""
    agree = pairs = 0
    for a, b in itertools.combinations(cases, 2):
        if max(a.measured, b.measured) < 1.05 * min(a.measured, b.measured):
            continue
        pairs += 1
        agree += 1 if (a.measured < b.measured) == (predicted(a) < predicted(b)) else -1
    return agree / pairs if pairs else float("nan")


def print_totals(name, cases, predicted):
    errors = [abs(predicted(case) / case.measured - 1) for case in cases]
    print(f"{name}: mean absolute error {100 * statistics.mean(errors):.1f} %, greatest {100 * max(errors):.1f} %, "
          f"Kendall's tau {kendall(cases, predicted):.3f}")
    for model in dict.fromkeys(case.model for case in cases):
        plans = [case for case in cases if case.model == model]
        if len(plans) < 2:
            continue
        chosen, best = min(plans, key=predicted), min(plans, key=lambda case: case.measured)
        print(f"  {model:12} predicted best: {chosen.ranks} {chosen.name}, "
              f"{100 * (chosen.measured / best.measured - 1):.1f} % "
              f"slower than the best measured ({best.ranks} {best.name}; its spread {100 * best.spread:.1f} %)")


def main():
    global STATISTIC
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="only these models' plans")
    parser.add_argument("--only", metavar="TEXT", action="append",
                        help="plans whose line has this text (and that of others given)")
    parser.add_argument("--repeats", type=int, default=7, help="default 7")
    parser.add_argument("--probes", type=int, default=3, help="and profiles, between the repeats (default 3)")
    parser.add_argument("--seconds", type=float, default=0.35, help="of one repeat, about (default 0.35)")
    parser.add_argument("--least", action="store_true", help="a repeat is its least step: on a busy host")
    parser.add_argument("--cluster", metavar="FOLDER",
                        help="take host1.json, host2.json, host4.json from there, or write them there")
    parser.add_argument("--quick", action="store_true", help="two plans, one short repeat, to see that it works")
    parser.add_argument("--zero3", action="store_true",
                        help="ZeRO 3 of the small models on two ranks, in place of the plans")
    parser.add_argument("--json", action="store_true", help="a line of JSON per plan instead of the table")
    options = parser.parse_args()
    STATISTIC = min if options.least else least_median
    rows = [row for row in (ZERO3 if options.zero3 else PLANS) if not options.models or row[0] in options.models]
    if options.only:
        rows = [row for row in rows if any(text in f"{row[0]} {row[1]} {row[2]} {row[3]}" for text in options.only)]
    if options.quick:
        rows, options.repeats, options.seconds = [rows[k] for k in QUICK], 1, 0.05
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(options.cluster or name)
        folder.mkdir(exist_ok=True)
        hosts = Hosts(folder, sorted({row[1] for row in rows}), options.quick)
        hosts.probe()
        cases = [Case(pathlib.Path(name), k, row) for k, row in enumerate(rows)]
        for case in cases:
            case.cluster = folder / f"host{case.ranks}.json"
            case.search()
            case.steps = max(20, min(2000, int(options.seconds / case.run(20))))
        between = set(range(1, options.repeats, max(options.repeats // options.probes, 1)))
        for repeat in range(options.repeats):
            for case in cases:
                case.repeat(begin + REPEAT_UNTIL)
            for case in cases:
                if repeat in between or options.repeats == 1:
                    case.run(min(case.steps, 200), "--profile", case.profile)
            if repeat in between and repeat > 1 and time.perf_counter() - begin < PROBE_UNTIL:
                hosts.probe()
        for case in cases:
            case.predicted, case.predicted_peak = case.simulate()
            case.profiled, _ = case.simulate("--profile", case.profile)
    if options.json:
        for case in cases:
            print(json.dumps({"model": case.model, "ranks": case.ranks, "plan": case.name, "predicted": case.predicted,
                              "profiled": case.profiled, "measured": case.measured, "spread": case.spread,
                              "peak_predicted": case.predicted_peak, "peak_counted": case.peak}))
        return
    print("ms per step")
    print(f"{'model':12}{'ranks':>6}  "
          f"{'plan':32}{'predicted':>10}{'error':>8}{'profiled':>10}{'error':>8}{'measured':>10}"
          f"{'spread':>8}{'peak':>8}")
    for case in cases:
        print(f"{case.model:12}{case.ranks:6}  {case.name:32}{1e3 * case.predicted:10.3f}"
              f"{100 * (case.predicted / case.measured - 1):7.1f}%{1e3 * case.profiled:10.3f}"
              f"{100 * (case.profiled / case.measured - 1):7.1f}%{1e3 * case.measured:10.3f}{100 * case.spread:7.1f}%"
              f"{case.predicted_peak / case.peak:8.4f}")
    print()
    print_totals("without a profile", cases, lambda case: case.predicted)
    print_totals("with a profile", cases, lambda case: case.profiled)
    print(f"{time.perf_counter() - begin:.0f} s in all, {len(cases)} plans, {options.repeats} repeats, "
          f"{sum(case.disturbed for case in cases)} of them again as other programs worked beside them")


if __name__ == "__main__":
    main()
