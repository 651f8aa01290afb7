"""automap for JAX users: write a training step as files that automap plans, and use the plan.

    export(step, example_arguments, directory)   the module, its roles, its state and its data
    plan(step, example_arguments, cluster)       the shardings that automap finds for jax.jit
"""

from .exporter import export
from .planning import plan, shardings

__all__ = ["export", "plan", "shardings"]
