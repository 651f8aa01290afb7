/* Lowering: from the assignment of a stage to the program of one device.
 *
 * Each instruction is computed on the shards that its factors give. Where an operand is in another state,
 * reshard_value() (reshard.c) inserts collectives. Passes (lowering/passes) then merge, fuse and order
 * instructions and plan buffers. plan_lower() lowers a one-stage plan, plan_lower_stage() one stage of
 * several, and plan_lower_one_device() the reference on one device.
 */
#ifndef LOWERING_SPMD_LOWER_H
#define LOWERING_SPMD_LOWER_H

#include "lowering/program/program.h"
#include "propagation/assign/assign.h"

/* Lowers one stage for one device of its mesh: local instructions and
 * collectives, merged, fused, with buffers. Everything lives in the arena. */
AmStatus plan_lower(Program **program, Arena *arena, const PlanContext *context, const Assignment *assignment,
                    int32_t device, AmError *error);

/* All stages of a plan, assigned. */
typedef struct AssignedStages {
    const PlanContext *context;
    const StageMap *map;
    Assignment *const *assignments; /* [stage]; with chunks those of the chunks of all stages */
    ScheduleKind schedule;
} AssignedStages;

/* Lowers one stage of several: its computation, and its transfers, in the order of the module; except for
 * gpipe the loops of the passes are joined (interleave.h). */
AmStatus plan_lower_stage(Program **program, Arena *arena, const AssignedStages *all, int32_t stage,
                          int32_t device, AmError *error);

/* Lowers one stage in chunks (lower_chunks.h). */
AmStatus plan_lower_chunks(Program **program, Arena *arena, const AssignedStages *all, int32_t stage,
                           int32_t device, AmError *error);

/* Lowers the reference: the module on one device (`--plan none`). */
AmStatus plan_lower_one_device(Program **program, Arena *arena, const PlanContext *context, AmError *error);

/* Lowers a called computation of the canonical module as a program of its own on one device, with every
 * value replicated. Its parameters and outputs are the leaves of the computation's, in order; `repeats`:
 * output k is the next value of parameter k. `roles` holds no more than their numbers and `mesh` is NULL.
 * AM_ERROR_INPUT: the computations inside one another multiply beyond all proportion. */
AmStatus program_from_computation(Program **program, Arena *arena, const IrModule *module,
                                  int32_t computation, bool repeats, AmError *error);
/* Lowers a fusion's computation on a device that has a part of it: `shapes` [instruction of the
 * computation] are local (rules_shapes_inside()). The program has no steps and buffers yet. */
AmStatus program_from_local_computation(Program **program, Arena *arena, const IrModule *module,
                                        int32_t computation, const IrShape *shapes, AmError *error);

#endif
