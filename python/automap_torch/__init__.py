"""automap for PyTorch users: a training step as files that automap plans, and the plan on the model.

    export(model, loss, optimizer, batch, directory)   the module, its roles, its state and its data
    parallelize(model, plan)                           the parameters as DTensors, on every rank

`loss(model, *batch)` gives a scalar. Optimizers are those of `RULES` in optimizers.py.
"""

from .export import export
from .parallelize import parallelize

__all__ = ["export", "parallelize"]
