/* The memory of a device under a plan for JAX, as automap_jax.run executes it on devices of the type "host".
 *
 * A plan of one program has that of xla_memory.h. Otherwise XLA compiles one function for each pass of each
 * chunk, and for the updates. Between them are in memory:
 *
 *     parameters          always
 *     gradients           from the first backward pass on
 *     kept activations    of each live micro-batch, from its forward pass to the last pass that reads them
 *     slices of the data  likewise
 *
 * A function adds its results and temporary buffers (xla_memory.h). The peak is the most over the passes in
 * the order of the schedule. Kept activations are those of find_again() in datasets/automap_jax/pipelines.py:
 * cheap operators on them run again.
 */
#ifndef COST_MEMORY_JAX_MEMORY_H
#define COST_MEMORY_JAX_MEMORY_H

#include "cost/step/xla_memory.h"

/* Sets allocation.xla of a program of a plan for JAX. Does nothing for other plans, for programs with values
 * on the host, for samples of layers, and for other types than "host". Scratch memory is of the program's
 * arena. */
AmStatus jax_memory(Program *program, const Plan *plan, const ClusterDeviceType *type, AmError *error);

#endif
