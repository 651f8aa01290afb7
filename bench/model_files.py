"""The modules of the models in datasets/models, for benchmarks that run in the source folder."""

import os

ZOO = "datasets/models"


def find_model(name):
    """The path of a model's module, or None."""
    paths = (os.path.join(ZOO, name, binary) for binary in ("model.hlo.pb.zst", "model.hlo.pb"))
    return next(filter(os.path.exists, paths), None)


def model_file(name):
    """The path of a model's module; ends the program where the model has no module."""
    path = find_model(name)
    if not path:
        raise SystemExit(f"{name}: no module (expected {ZOO}/{name}/model.hlo.pb or .zst)")
    return path
