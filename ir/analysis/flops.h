/* The work of one instruction, as XLA's cost analysis counts it.
 *
 * The project uses two conventions, with different names:
 *
 *   IrWork, ir_work(), ir_module_work()   XLA's convention: the computations of a loop
 *       count once for any number of trips, transcendental functions are separate
 *       from FLOPs, and a module is counted as it was read, with dead code
 *   ir_flops(), ir_loop_trips()           the planner's convention: arithmetic of any
 *       kind, and loops multiplied by their trips
 */
#ifndef IR_ANALYSIS_FLOPS_H
#define IR_ANALYSIS_FLOPS_H

#include "ir/module.h"

typedef struct IrWork {
    double flops;
    double transcendentals; /* results of exp, log, tanh, ..., and random numbers */
    double bytes;           /* read plus written */
} IrWork;

/* A computation that instructions call: all its instructions, once. */
typedef struct IrComputationWork {
    IrWork work;
    double fused_bytes;           /* in place of work.bytes where a fusion calls it */
    const double *parameter_read; /* bytes a fusion reads of parameter k; NULL where none calls it */
    bool is_done;
} IrComputationWork;

/* Counts work for given operand and result shapes, which may be those of a shard. `computations` is
 * [computation_count], filled in for those it calls. */
IrWork ir_work(const IrComputationWork *computations, const IrInstruction *instruction,
               const IrShape *operands, const IrShape *result);

/* Returns FLOPs and transcendentals as one number, for pricing; of a canonical module. */
double ir_flops(const IrModule *canonical, const IrInstruction *instruction, const IrShape *operands,
                const IrShape *result);
/* Returns FLOPs and transcendentals of instruction i with the shapes that it has. The arena is used during
 * the call alone; 0 where it has no memory. */
double ir_instruction_flops(const IrModule *canonical, int32_t i, Arena *scratch);

/* Computes the work of a whole module as read; the module must have a canonical form
 * (ir/canonical/canonical.h). The fields are XLA's properties "flops", "transcendentals" and "bytes
 * accessed". */
AmStatus ir_module_work(IrWork *total, const IrModule *module, AmError *error);

/* Sets module->called_work, for ir_canonicalize(), in the module's arena. */
AmStatus ir_find_called_work(IrModule *module, AmError *error);

#endif
