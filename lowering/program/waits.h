/* The collectives for which each step of a program waits, on devices that communicate while they
 * compute.
 *
 * A collective is issued at its position in the order, after all steps before it, and later steps
 * continue. A later step must wait if it reads a result of the collective, or writes its operands
 * or results. Values share memory over time, so that addresses decide (executor/program/overlap.h does the
 * same for bound calls). Collectives take place one after the other, so that waiting for one means
 * waiting for all before it. A step with regions of its own and a transfer wait for all running
 * collectives.
 */
#ifndef LOWERING_PROGRAM_WAITS_H
#define LOWERING_PROGRAM_WAITS_H

#include "lowering/program/program.h"

/* Finds waits[s], [step_count]: the step of the collective that step s waits for, or -1; in the arena. Time:
 * steps x collectives under way. Regions are programs of their own. */
AmStatus program_find_waits(int32_t **waits, Arena *arena, const Program *program, AmError *error);

#endif
