/* The memory that XLA's back end for CPUs takes for a program that it compiles as a whole, such as a plan of
 * one program for JAX: arguments, results beside them, and temporary buffers, as compiled.memory_analysis()
 * has them.
 *
 * Nodes run in the order of xla_schedule.h. Buffers live from their node to their last reader. A result
 * overwrites an operand that ends there and is read element by element. Collectives run one at a time, beside
 * their operands. The memory of a parameter that is replaced, and of a result, is free for temporary buffers
 * of at most its size until the new value is there. A loop has the memory of its body's temporary buffers
 * while it runs.
 */
#ifndef COST_STEP_XLA_MEMORY_H
#define COST_STEP_XLA_MEMORY_H

#include "cost/cluster/cluster.h"
#include "cost/step/xla_graph.h"
#include "lowering/program/program.h"
#include "propagation/plan/plan.h"

enum { XLA_ALIGNMENT = 64 };

typedef struct XlaMemory {
    int64_t peak_bytes; /* of a device, with parameters */
    const int32_t
        *alive; /* [alive_count]: values with temporary buffers at the peak, copies of parameters too */
    int32_t alive_count;
    int32_t step;       /* of the program, with the result that is made at the peak */
    bool has_functions; /* of several functions (cost/memory/jax_memory.h), for which these are known: */
    int64_t gradients_bytes, kept_bytes; /* sums of gradients, and what backward passes read, at the peak */
} XlaMemory;

/* Sets allocation.xla of a program that JAX runs as one: all of a plan for JAX without pipeline,
 * micro-batches and recomputation by the plan. Does nothing for other plans, for programs with values on the
 * host, for samples of layers, and for device types other than "host": XLA's back ends for GPUs fuse and
 * order otherwise. */
AmStatus xla_memory(Program *program, const Plan *plan, const ClusterDeviceType *type, AmError *error);
/* Finds the bytes of results that overwrite no parameter, and of temporary buffers, of a program. */
AmStatus xla_function_bytes(int64_t *bytes, const Program *program, const XlaPair *pairs, int32_t pair_count,
                            AmError *error);
/* Finds the bytes of temporary buffers of an instruction's regions: the most of one of them. */
AmStatus xla_workspace(int64_t *bytes, const ProgramInstruction *instruction, AmError *error);

#endif
