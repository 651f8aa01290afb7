"""Facts about JAX's operators for pipelines.py, and the options with which XLA compiles them."""

import functools

import jax
import numpy as np

from .step_graph import Constant

SUMS = {"dot_general", "reduce_sum", "conv_general_dilated", "scatter-add", "scan", "ragged_dot_general"}
# Operators over the batch whose results of the micro-batches are joined in another way than by addition.
FOLDS = {"reduce_max": jax.numpy.maximum, "reduce_min": jax.numpy.minimum, "reduce_prod": jax.numpy.multiply,
         "reduce_and": jax.numpy.bitwise_and, "reduce_or": jax.numpy.bitwise_or,
         "reduce_xor": jax.numpy.bitwise_xor}  # fmt: skip

# Operators that XLA fuses with their users at little cost: a backward pass computes them again from values that it has
# anyway. Divisions and functions such as exp are kept, as in automap's programs.
CHEAP = {"abs", "add", "and", "broadcast_in_dim", "convert_element_type", "copy", "copy_p", "eq", "expand_dims", "ge",
         "gt", "is_finite", "le", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "reshape", "select_n", "sign",
         "square", "squeeze", "stop_gradient", "sub", "transpose", "xor"}  # fmt: skip
# Operators that a pass for weights is worth.
HEAVY = {"cond", "conv_general_dilated", "dot_general", "ragged_dot_general", "scan", "scatter", "scatter-add",
         "scatter-mul", "while"}  # fmt: skip
# XLA's back end for CPUs joins the sums of all gradients of a function and orders operators for parallel execution.
# Then all gradients exist twice at once. These options reduce each gradient by itself, soon after its product.
LEAN = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner",
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


@functools.cache
def compiler_options():
    """LEAN where JAX runs on CPUs and this version of XLA has the options, else None."""
    try:
        jax.jit(lambda: 0, compiler_options=LEAN)()
    except (TypeError, jax.errors.JaxRuntimeError):
        return None
    return LEAN if jax.default_backend() == "cpu" else None


def key_of(node):
    """Equal for operators that give equal results."""
    inputs = tuple((np.shape(value.value), np.asarray(value.value).tobytes()) if isinstance(value, Constant) else value
                   for value in node.inputs)
    return node.primitive, tuple(sorted(node.params.items(), key=lambda row: row[0])), inputs
