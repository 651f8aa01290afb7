"""automap for JAX users: write a training step as files that automap plans, and use the plan.

    export(step, example_arguments, directory)   the module, its roles, its state and its data
    plan(step, example_arguments, cluster)       the shardings that automap finds for jax.jit
    run(document, step, example_arguments)       the step under a plan of stages and micro-batches
    checkpoint(document, function)               jax.checkpoint of a function, with the recomputation of a plan
    constrain(document, step)                    the step with the shardings of intermediate values of a plan
    compiler_options()                           options of XLA for CPUs, with which a step takes less memory
    place(arguments, shardings)                  the arguments on the devices of such a plan
    LayerStack                                   a stacked array that `run` gives, with its layers on their stages
    stage(n), devices(...), replicate(k), split(k), sharding(...), pin(...)
                                                 context managers that decide where a part of the step runs, and how

Steps are functions of trees of arrays, of objects of Flax NNX, or of Equinox modules.
"""

from .exporter import export
from .hints import devices, pin, replicate, sharding, split, stage, value
from .layers import LayerStack
from .operators import compiler_options
from .planning import constrain, place, plan, shardings
from .recomputation import checkpoint
from .running import run

__all__ = ["LayerStack", "checkpoint", "compiler_options", "constrain", "devices", "export", "pin", "place", "plan",
           "replicate", "run", "sharding", "shardings", "split", "stage"]
