"""Models and figures of the papers beside what automap predicts: a table of docs/published.md.

Figures 11 to 16 and 19 of Whale, M6-MoE, models of OneFlow's figures 12 and 13, and figure 3 of DistSim.
bench/published.py has Whale's figures 17 and 18 and DistSim's table 2; bench_paper and bench_agent have Auto-MAP's
tables.

Run as `AUTOMAP=build/automap python3 bench/papers.py [--row PART] [--keep DIR]`; it needs JAX.
"""

import json

import published
from model_files import model_file
from published import DoesNotFit, automap, percent, row

GIGABYTE = 1e9


class Models(published.Models):
    def zoo(self, name, *arguments, **settings):
        """A model of the zoo, by module and function."""
        import importlib

        folder, function = name.split(".")
        key = "_".join([name, *map(str, arguments), *(f"{k}{v}" for k, v in settings.items())])
        make = getattr(importlib.import_module(f"automap_jax.zoo.{folder}"), function)
        return self.path(key, lambda: make(*arguments, **settings))


def v100_servers(models, servers, base="whale-dp"):
    """Servers of 8 V100 with the links and the network of a built-in cluster."""
    cluster = automap("cluster", base)
    cluster["name"] = f"{base}-{servers}"
    cluster["servers"] = [cluster["servers"][0] | {"count": servers, "devices": 8}]
    cluster["links"] = {name: link for name, link in cluster["links"].items() if name != "nvlink-p100"}
    if servers == 1:
        del cluster["between_servers"]
        cluster["links"] = {name: link for name, link in cluster["links"].items() if name.startswith("nvlink")}
    return models.file(f"{cluster['name']}.json", cluster)


def plan(models, model, cluster, *options):
    """Step time of the plan that a search finds, and the simulation's JSON."""
    path = models.folder / "row.plan.json"
    found = automap("search", model, "--cluster", cluster, *options, "-o", path)
    return found["step_seconds"], automap("simulate", path, model)


def sent_seconds(simulation, *kinds):
    return sum(entry["seconds"] for kind, entry in simulation["collectives"].items() if kind in kinds)


# ---- Auto-MAP ----


def auto_map_cut(models):
    """T5 on C with the paper's third device cut, 22, and with the one found: the best place in the chain for each."""
    model, path = model_file("t5_pipeline_6"), models.folder / "cut.plan.json"
    automap("search", model, "--cluster", "C", "--objective", "paper", "--space", "pipeline", "-o", path)
    found = json.loads(path.read_text())
    del found["parameters"]
    steps = {}
    for device in (22, 24):
        before, after = found["stages"][2:]
        for stage, devices in ((before, range(16, device)), (after, range(device, 32))):
            stage["devices"] = list(devices)
            stage["mesh"][0]["size"] = len(devices)
        first, last = before["ranges"][0][0], found["stages"][3]["ranges"][0][1]
        for cut in range(first + 278, min(first + 520, last), 20):  # 60 to 75 % of the arithmetic
            before["ranges"][0][1] = after["ranges"][0][0] = cut
            path.write_text(json.dumps(found))
            steps[device] = min(steps.get(device, float("inf")), automap("simulate", path, model)["step_seconds"])
    row("Auto-MAP, table 7", "T5 on C, third cut at device 22: step", "-", f"{1e3 * steps[22]:.1f} ms", "")
    row("Auto-MAP, table 7", "the same at device 24", "-", f"{1e3 * steps[24]:.1f} ms", "")


# ---- Whale: many classes ----


def whale_classes(models):
    """32 images a device; the head's classes are split over the devices that hold the replicas."""
    paper = {8: (1.13, 1.6), 16: (1.66, None), 32: (2.43, 3.75)}
    overhead = {8: "6 %", 32: "10 %"}
    for servers in (1, 2, 4):
        devices = 8 * servers
        model = models.zoo("classes.resnet_with", 100000, 32 * devices)
        cluster, mesh = v100_servers(models, servers), ("--mesh", f"data={devices}", "--searcher", "baseline")
        data, whole = plan(models, model, cluster, *mesh, "--baseline", "data_parallel")
        columns, split = plan(models, model, cluster, *mesh, "--baseline", "data_parallel", "--pin",
                              "head/kernel=-,data")
        rows, _ = plan(models, model, cluster, *mesh, "--baseline", "data_parallel", "--pin", "head/kernel=data,-")
        gain, patterns = paper[devices]
        row("Whale, figure 13", f"split head over data parallelism, {devices} V100", f"{gain}x",
            f"{data / columns:.2f}x",
            percent(data / columns, gain))  # fmt: skip
        if patterns:
            row("Whale, figure 15", f"columns over rows of the head, {devices} V100", f"{patterns}x",
                f"{rows / columns:.2f}x", percent(rows / columns, patterns))  # fmt: skip
        if devices in overhead:
            bridges = sent_seconds(split, "all_gather", "reduce_scatter", "all_to_all")
            row("Whale, figure 16", f"bridges of the step, {devices} V100", overhead[devices],
                f"{100 * bridges / columns:.1f} %", "")  # fmt: skip
        if devices == 32:
            bridges = sent_seconds(split, "all_gather", "reduce_scatter", "all_to_all")
            gradients = sent_seconds(whole, "all_reduce")
            row("Whale, figure 16", "sums of gradients under data parallelism over bridges, 32 V100", "6x",
                f"{gradients / bridges:.1f}x", percent(gradients / bridges, 6))  # fmt: skip


def whale_million(models):
    """A million classes: 32 images a device (the paper gives no batch)."""
    steps = {}
    for servers in (1, 4):
        devices = 8 * servers
        model = models.zoo("classes.resnet_with", 1000000, 32 * devices)
        cluster, mesh = v100_servers(models, servers), ("--mesh", f"data={devices}", "--searcher", "baseline")
        try:
            _, simulation = plan(models, model, cluster, *mesh, "--baseline", "data_parallel")
            fits = f"fits, {simulation['peak_bytes'] / GIGABYTE:.1f} GB"
        except DoesNotFit:
            fits = "out of memory"
        row("Whale, figure 14", f"data parallelism with a million classes, {devices} V100", "out of memory", fits, "")
        steps[devices], _ = plan(models, model, cluster, *mesh, "--baseline", "data_parallel", "--pin",
                                 "head/kernel=-,data")
    scaling = 100 * steps[8] / steps[32]
    row("Whale, figure 14", "throughput of 32 V100 over four times that of 8", "95 %", f"{scaling:.0f} %",
        percent(scaling, 95))  # fmt: skip


# ---- Whale: pipelines ----


def whale_pipelines(models):
    """BERT-Large, 128 tokens, 16 micro-batches of 8 sequences (the paper gives neither)."""
    for stages, paper in (4, 1.45), (8, 1.14):
        model = models.bert(24, 128, 128)
        cluster = v100_servers(models, 1)
        seconds = {}
        for schedule in "gpipe", "1f1b":
            seconds[schedule], _ = plan(models, model, cluster, "--space", "pipeline", "--searcher", "baseline",
                                        "--baseline",
                                        "even_pipeline", "--mesh", f"data={8 // stages}", "--micro-batches", 16,
                                        "--schedule", schedule)  # fmt: skip
        ratio = seconds["gpipe"] / seconds["1f1b"]
        row("Whale, figure 11", f"1F1B over GPipe, BERT-Large, {stages} stages", f"{paper}x", f"{ratio:.2f}x",
            percent(ratio, paper))  # fmt: skip
    for servers in (1, 2, 4):
        devices = 8 * servers
        model, cluster = models.bert(24, 16 * devices, 128), v100_servers(models, servers)
        rates = {}
        for stages in (2, 4, 8):
            rates[stages] = plan(models, model, cluster, "--space", "pipeline", "--searcher", "baseline", "--baseline",
                                 "even_pipeline", "--mesh", f"data={devices // stages}", "--micro-batches", 8,
                                 "--schedule", "1f1b")[0]  # fmt: skip
        ours = " : ".join(f"{rates[2] / rates[stages]:.2f}" for stages in rates)
        row("Whale, figure 12", f"throughput of 2 : 4 : 8 stages, BERT-Large, {devices} V100", "8 stages slower", ours,
            "")


# ---- Whale: M6 ----


def in_f16(model):
    """The step with its products in f16: the rewriting to bf16, which has the same size, with the other type's name.

    V100 compute in f16 and have no bf16. The file is for predictions alone: losses in f16 need a scale.
    """
    path = model.parent / "f16" / "model.hlo.txt"
    path.parent.mkdir(exist_ok=True)
    automap("convert", model, path, "--mixed-precision", "bf16")
    path.write_text(path.read_text().replace("bf16[", "f16["))
    return path


def replicas_in_servers(models, model, servers):
    """Step time of 8 stages, 35 micro-batches and everything recomputed, with a replica on each server.

    The 8 stages of a server sum their gradients at the same time. The simulator prices them one by one, so each has
    an eighth of the network.
    """
    path = v100_servers(models, servers)
    cluster = json.loads(path.read_text())
    cluster["links"][cluster["between_servers"]]["bytes_per_second"] /= 8
    path.write_text(json.dumps(cluster))
    options = "--space", "pipeline", "--micro-batches", 35, "--schedule", "1f1b"
    plan_path, _ = published.baseline_plan(models, model, path, "even_pipeline", f"data={servers}", *options)
    placed = published.read_plan(plan_path)
    for place, stage in enumerate(placed["stages"]):
        stage["devices"] = [8 * server + place for server in range(servers)]
    return automap("simulate", models.file("placed.plan.json", placed), model)["step_seconds"]


def whale_m6(models):
    """One sequence a micro-batch and replica. The paper names no precision for this model."""
    for precision, rewrite in ("f32", lambda model: model), ("f16", in_f16):
        steps = [
            replicas_in_servers(models, rewrite(models.zoo("m6.m6_10b", 35 * servers)), servers) for servers in (8, 32)
        ]
        ours = 100 * steps[0] / steps[1]
        row("Whale, figure 19", f"scaling of M6-10B from 8 to 32 servers, {precision}", "91 %", f"{ours:.0f} %",
            percent(ours, 91))  # fmt: skip


def whale_m6_moe(models):
    """100 million samples on 128 V100 in 1.5 days are 772 samples/s; 512 sequences of 128 tokens."""
    batch = 512
    model, cluster = in_f16(models.zoo("m6.m6_moe_100b", batch)), v100_servers(models, 16)
    options = "--mesh", "data=128", "--space", "single_stage"
    pins = [word for kernel in ("in", "out") for word in ("--pin", f"layers/{kernel}/kernel=-,data,-,-")]
    for kind, more in (
        ("experts split by pins", (*pins, "--searcher", "baseline", "--baseline", "data_parallel")),
        ("experts split by pins, the rest searched", (*pins, "--evaluations", 500)),
        ("searched", ("--evaluations", 500)),
    ):
        step, _ = plan(models, model, cluster, *options, *more)
        row("Whale, section 5.3.2", f"M6-MoE-100B on 128 V100, {kind}: samples/s", 772, f"{batch / step:.0f}",
            percent(batch / step, 772))  # fmt: skip


def whale_m6_trillion(models):
    """480 V100 with optimizer state in the memory of the hosts; 1,920 sequences of 128 tokens."""
    batch = 1920
    model, cluster = in_f16(models.zoo("m6.m6_moe_1t", batch)), v100_servers(models, 60)
    step, simulation = plan(models, model, cluster, "--mesh", "data=480", "--space", "single_stage", "--evaluations",
                            200, "--offload", "optimizer")  # fmt: skip
    row("Whale, section 5.3.2", "M6-MoE-1T on 480 V100, optimizer state in hosts", "trained",
        f"{simulation['peak_bytes'] / GIGABYTE:.1f} GB, {batch / step:.0f} samples/s", "")  # fmt: skip


# ---- OneFlow ----


def oneflow_wide_deep(models):
    """Rows of the table that fit 8 V100 of 16 GB, by the split of the table."""
    for millions in (3.2, 12.8, 51.2, 204.8):
        model = models.zoo("recommend.wide_deep", round(millions * 1e6))
        cluster, told = v100_servers(models, 1, "oneflow"), []
        for pins in ("data,-", "-,data"):
            try:
                step, simulation = plan(models, model, cluster, "--mesh", "data=8", "--searcher", "baseline",
                                        "--baseline",
                                        "data_parallel", "--pin", f"deep_table={pins}", "--pin",
                                        "wide_table=data,-")  # fmt: skip
                told.append(f"{1e3 * step:.1f} ms, {simulation['peak_bytes'] / GIGABYTE:.2f} GB")
            except DoesNotFit:
                told.append("out of memory")
        row("OneFlow, figure 13", f"Wide & Deep, {millions} M rows, 8 V100: S(0); S(1)", "no numbers", "; ".join(told),
            "")


def oneflow_faces(models):
    """Glint360K on V100 of 16 GB, 16 faces a device."""
    for servers in (1, 4):
        devices = 8 * servers
        model, cluster = models.zoo("classes.faces", 16 * devices), v100_servers(models, servers, "oneflow")
        mesh = ("--mesh", f"data={devices}", "--searcher", "baseline", "--baseline", "data_parallel")
        try:
            whole = f"{16 * devices / plan(models, model, cluster, *mesh)[0]:.0f}"
        except DoesNotFit:
            whole = "out of memory"
        split, _ = plan(models, model, cluster, *mesh, "--pin", "person_table=data,-")
        row("OneFlow, figure 12", f"faces/s, split people; data parallelism, {devices} V100", "no numbers",
            f"{16 * devices / split:.0f}; {whole}", "")  # fmt: skip


def dlrm(models):
    """MLPerf's DLRM on 16 A100 of 80 GB: the plan of the search."""
    model = models.zoo("recommend.dlrm")
    step, simulation = plan(models, model, "a100:2", "--space", "single_stage", "--evaluations", 100)
    row("DLRM", "searched plan on 16 A100, batch 65,536", "-",
        f"{1e3 * step:.0f} ms, {simulation['peak_bytes'] / GIGABYTE:.1f} GB", "")  # fmt: skip


# ---- Choices that were made to match published numbers ----


def split_dimensions(model, devices):
    return automap("groups", model, "--strict", "--axis-size", devices)["best"]["partitioned"]


def auto_map_choices(models):
    """Auto-MAP's table 5 counts 432 split dimensions of T5 with 24 + 24 layers; it does not give the vocabulary."""
    for words in (32100, 32128):
        model = models.zoo("t5.model", 24, 1024, 32, 128, 16384, words, positions=True)
        row("Auto-MAP, table 5", f"T5-3B with {words} words, dimensions on 8 devices", 432, split_dimensions(model, 8),
            "")


def distsim_network(models):
    """DistSim's table 2 by networks between the four servers, which the paper does not name."""
    model, built_in = models.bert(48, 16, 512), automap("cluster", "distsim-search")
    for name, rate, latency in ("RoCE, 12 GB/s", 12e9,
                                15e-6), ("TCP, 4.5 GB/s", 4.5e9, 25e-6), ("as built in", None, None):
        cluster = json.loads(json.dumps(built_in))
        link = cluster["links"][cluster["between_servers"]]
        if rate:
            link.clear()
            link.update(bytes_per_second=rate, latency_seconds=latency)
        found = automap("simulate", "--sweep", model, "--cluster", models.file("network.json", cluster))
        fastest = {}
        for strategy in found["strategies"]:
            if strategy.get("fits"):
                fastest.setdefault(published.name_of(strategy), strategy["step_seconds"])
        ratio = max(fastest.values()) / min(fastest.values())
        row("DistSim, table 2", f"worst over best step, {name}; best {min(fastest, key=fastest.get)}", "7.37x",
            f"{ratio:.2f}x", percent(ratio, 7.37))  # fmt: skip


# ---- DistSim ----


def distsim_analytical(models):
    """Steps of BERT-Large on 16 A40 by FLOPs over the peak and bytes over the rates of links, beside the simulator's.

    The model is a cluster whose devices and links are fully used: without launches, latencies and bytes of memory.
    """
    model, cluster, fastest = models.bert(24, 16, 512), automap("cluster", "distsim"), {}
    for kind in "simulated", "analytical":
        if kind == "analytical":
            for device in cluster["device_types"].values():
                device.update(memory_bytes_per_second=1e18, kernel_launch_seconds=0)
                del device["efficiency"], device["measured"]
            for link in cluster["links"].values():
                link["latency_seconds"] = 0
                del link["efficiency"]
        found = automap("simulate", "--sweep", model, "--cluster", models.file("analytical.json", cluster))
        fastest[kind] = {}
        for strategy in found["strategies"]:
            if strategy.get("fits"):
                fastest[kind].setdefault(published.name_of(strategy), strategy["step_seconds"])
    errors = [abs(fastest["analytical"][name] / seconds - 1) for name, seconds in fastest["simulated"].items()]
    mean, most = 100 * sum(errors) / len(errors), 100 * max(errors)
    row("DistSim, figure 3", f"error of an analytical model, {len(errors)} strategies: mean, most", "26.1 %, 40.4 %",
        f"{mean:.1f} %, {most:.1f} %", percent(mean, 26.1))  # fmt: skip


ROWS = {
    "auto-map-cut": auto_map_cut,
    "whale-classes": whale_classes,
    "whale-million": whale_million,
    "whale-pipelines": whale_pipelines,
    "whale-m6": whale_m6,
    "whale-m6-moe": whale_m6_moe,
    "whale-m6-trillion": whale_m6_trillion,
    "oneflow-wide-deep": oneflow_wide_deep,
    "oneflow-faces": oneflow_faces,
    "dlrm": dlrm,
    "distsim-analytical": distsim_analytical,
    "auto-map-choices": auto_map_choices,
    "distsim-network": distsim_network,
}


if __name__ == "__main__":
    published.print_table(__doc__, ROWS, Models)
