"""Runs a step under a plan: `automap_jax.run`."""

from .exporter import traced_step
from .one_program import OneProgram, is_one_program
from .pipelines import Run
from .stage_program import StageProgram
from .steps import Step

FORMS = {"functions": Run, "one_program": StageProgram}


def run(document, step, example_arguments, devices=None, donate=False, form="functions"):
    """The step under a plan: a function of the step's arguments that gives its results. Plans of one stage and one
    micro-batch without recomputation are one program in every form.

    document           what `automap export --format jax` wrote, parsed
    example_arguments  arguments of the step, a whole batch among them
    devices            JAX devices by their number in the cluster; default jax.devices()
    donate             the state that the step replaces is overwritten, as by donate_argnums, if it is on its devices
    form               "functions": a jitted function for each part and pass; "one_program": one jitted program of
                       `jax.shard_map`, for stages of equal meshes (`StageProgram` has the refusals). The memory
                       that a plan predicts is that of functions. A program took 1.1 to 2.1 times as much:
                       `peak_bytes` of the result

    The new state is on the devices of its stages. `jax.device_get` makes arrays of it that any other function takes.

    Objects of NNX among the arguments are updated in place. Modules of Equinox keep their static leaves. ValueError: an
    unknown form, or a plan or a step that the form cannot run.
    """
    if form not in FORMS:
        raise ValueError(f"form: unknown form (expected {' or '.join(FORMS)}, got {form})")
    kind = OneProgram if is_one_program(document) else FORMS[form]
    if Step(step, example_arguments).is_plain:
        return kind(document, step, example_arguments, devices, donate)
    example = traced_step(step, example_arguments, None)
    arrays = kind(document, example.function(None, example.step.function), example.step.arguments, devices, donate)
    filtered = example.step.filtered

    def run_objects(*arguments):
        call = Step(step, arguments, scalars_static=filtered).call
        return example.step.finished(arrays(*call.trees), call)

    return run_objects
