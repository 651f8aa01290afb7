# labels: jax e2e
# timeout: 600
# cost: 5
"""Models that the papers name train under their plans as on one device.

The small forms of GNMT, ResNet with many classes, face recognition, Wide & Deep, DLRM, M6 and M6-MoE are exported from
the zoo. Losses of a searched plan, of ZeRO-3, of two stages and of the split that the papers use (classes, people, rows
or columns of tables, experts) on 4 ranks are JAX's on one device. So are those of a plan that moves tokens from their
experts by all_to_all, which a search finds for slow links. Without AUTOMAP_FULL=1 three models are run.

Run as `AUTOMAP=build/automap PYTHONPATH=datasets python tests/e2e/test_paper_models.py [MODEL ...]`.
"""

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "launch"))
from program import FULL, losses, skip_where_missing, succeed

with skip_where_missing():
    from automap_jax.command import export_model

STEPS = 6
TOLERANCE = {"faces_tiny": 2e-5}  # logits are scaled by 64
# Splits of the papers over the four devices that hold the replicas.
PINS = {
    "gnmt_tiny": [["head/kernel=-,data"]],
    "resnet_classes_tiny": [["head/kernel=-,data"], ["head/kernel=data,-"]],
    "faces_tiny": [["person_table=data,-"]],
    "wide_deep_tiny": [["deep_table=data,-", "wide_table=data,-"], ["deep_table=-,data"]],
    "dlrm_tiny": [["field_00_table=data,-", "field_01_table=-,data"]],
    "m6_tiny": [["softmax_table=data,-"]],
    "m6_moe_tiny": [["layers/in/kernel=-,data,-,-", "layers/out/kernel=-,data,-,-"]],
}
EXPERTS = "m6_moe_tiny"
SAMPLE = ["wide_deep_tiny", "dlrm_tiny", EXPERTS]


def slow_links(folder):
    """Four devices between which a token moves faster than the weights of an expert."""
    cluster = json.loads(succeed("cluster", "nominal:4", "--json"))
    cluster["links"]["memory"] = {"bytes_per_second": 1e8, "latency_seconds": 1e-8}
    path = folder / "cluster.json"
    path.write_text(json.dumps(cluster))
    return path


def plans(name, folder):
    """Options of searches, and the pins among them."""
    baseline, cluster = ["--baseline"], ["--cluster", "nominal:4"]
    for pins in PINS[name]:
        words = [word for pin in pins for word in ("--pin", pin)]
        yield [*cluster, "--mesh", "data=4", *baseline, "data_parallel", *words], pins
    yield [*cluster, "--evaluations", "30"], []
    yield [*cluster, *baseline, "zero3"], []
    yield [*cluster, "--stages", "2", "--evaluations", "20"], []
    if name == EXPERTS:
        slow = ["--cluster", slow_links(folder), "--mesh", "data=4"]
        yield [*slow, "--space", "single_stage", "--evaluations", "400"], []


def check(name, folder):
    export_model(name, folder, STEPS)
    want = json.loads((folder / "losses.json").read_text())["losses"]
    assert want[-1] != want[0], "the model learns nothing"
    model, source = folder / "model.hlo.pb", ["--state", folder / "state.npz", "--data", folder / "data.npz"]
    for options, pins in plans(name, folder):
        plan = folder / "plan.json"
        succeed("search", model, *options, "-o", plan)
        for pin in pins:
            pattern, sharding = pin.split("=")
            ending = "".join(f"['{word}']" for word in pattern.split("/"))
            found = {str(row["sharding"]) for row in json.loads(plan.read_text())["parameters"]
                     if row["path"].startswith("state['params']") and row["path"].endswith(ending)}
            assert found == {str([[axis] if axis != "-" else [] for axis in sharding.split(",")])}, (pin, found)
        got = losses(model, plan, source, STEPS)
        worst = max(abs(a - b) / abs(b) for a, b in zip(got, want, strict=True))
        assert worst <= TOLERANCE.get(name, 5e-6), f"{name}, {options}: a loss is off by {worst:.1e}"
        yield worst
    if name == EXPERTS:
        lines = succeed("lower", model, "--plan", plan).splitlines()
        assert any("all_to_all" in line and "vmap(ecf,efd->ecd)" in line for line in lines), "no token leaves by one"


def main():
    names = sys.argv[1:] or (PINS if FULL else SAMPLE)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found = list(check(name, pathlib.Path(folder)))
            print(f"{name}: {len(found)} plans, losses off by at most {max(found):.1e}", flush=True)


if __name__ == "__main__":
    main()
