/* The results of a collective, from the operands of all members in one address space.
 *
 * Each member computes its own results from the calls that all members of its group have published in
 * `brought` (rendezvous.h). No result overlaps an operand. An all_reduce may be in place, and threads divide
 * it among themselves: comm_local.c computes it.
 */
#ifndef EXECUTOR_COMM_COLLECTIVE_COMPUTE_H
#define EXECUTOR_COMM_COLLECTIVE_COMPUTE_H

#include "executor/comm/combine.h"
#include "executor/comm/comm.h"
#include "executor/comm/rendezvous.h"

/* The places of one array at a time: [members of the group]. */
typedef struct CollectiveScratch {
    const char **members;
    char **results;
} CollectiveScratch;

/* Returns the call that the member at `position` of the group runs. */
static inline const CommCall *collective_call(const RendezvousGroup *group, int32_t position) {
    return group->brought[position];
}

/* Computes the results of one call from the calls of all members. It is no all_reduce. */
void collective_compute(const RendezvousGroup *group, const CommCall *call, const CollectiveScratch *scratch);

/* Returns the reduction of operand k, without the places of its arrays. */
Combine collective_combine(const CommCall *call, int32_t k, const CollectiveScratch *scratch);
/* Returns the number of real elements of an array: a complex number has two. */
int64_t collective_real_elements(const IrShape *shape);

#endif
