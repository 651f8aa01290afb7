/* Which steps of a program wait for which collectives, where a device communicates while it computes.
 *
 * A collective is issued in its place in the order, after all steps before it, and the steps behind
 * it go on. A later step must wait if it reads what the collective writes, or writes what
 * the collective reads or writes; the memory of values is shared over time, so the question is
 * put to addresses (executor/overlap.h asks it of the bound calls). Collectives take place one
 * after the other, so waiting for one is waiting for all before it. A step with
 * regions of its own and a transfer wait for all that is under way.
 */
#ifndef PROPAGATION_WAITS_H
#define PROPAGATION_WAITS_H

#include "propagation/program.h"

/* waits[s], [step_count]: the step of the collective that step s waits for, or -1; in the arena. Time: steps
 * x collectives under way. Regions are programs of their own. */
AmStatus program_find_waits(int32_t **waits, Arena *arena, const Program *program, AmError *error);

#endif
