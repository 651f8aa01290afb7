# labels: jax e2e
# timeout: 600
# cost: 5
"""Models that the papers name train under their plans as on one device.

The small forms of GNMT, ResNet with many classes, face recognition, Wide & Deep, DLRM, M6 and M6-MoE are exported from
the zoo. Losses of a searched plan, of ZeRO-3, of two stages and of the split that the papers use (classes, people, rows
or columns of tables, experts) on 4 ranks are JAX's on one device. Without AUTOMAP_FULL=1 two models are run.

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
SAMPLE = ["wide_deep_tiny", "dlrm_tiny"]


def plans(name):
    """Options of searches, and the pins among them."""
    baseline = ["--baseline"]
    for pins in PINS[name]:
        yield ["--mesh", "data=4", *baseline, "data_parallel", *(word for pin in pins for word in ("--pin", pin))], pins
    yield ["--evaluations", "30"], []
    yield [*baseline, "zero3"], []
    yield ["--stages", "2", "--evaluations", "20"], []


def check(name, folder):
    export_model(name, folder, STEPS)
    want = json.loads((folder / "losses.json").read_text())["losses"]
    assert want[-1] != want[0], "the model learns nothing"
    model, source = folder / "model.hlo.pb", ["--state", folder / "state.npz", "--data", folder / "data.npz"]
    for options, pins in plans(name):
        plan = folder / "plan.json"
        succeed("search", model, "--cluster", "nominal:4", *options, "-o", plan)
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


def main():
    names = sys.argv[1:] or (PINS if FULL else SAMPLE)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found = list(check(name, pathlib.Path(folder)))
            print(f"{name}: {len(found)} plans, losses off by at most {max(found):.1e}", flush=True)


if __name__ == "__main__":
    main()
