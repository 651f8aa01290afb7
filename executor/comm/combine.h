/* Combines the contributions to a reduction.
 *
 * Every back end on the host reduces by this function, so that a plan's results have the same bits
 * whether its ranks are threads or processes.
 */
#ifndef EXECUTOR_COMM_COMBINE_H
#define EXECUTOR_COMM_COMBINE_H

#include "base/dtype.h"
#include "propagation/sharding/sbp.h"

typedef struct Combine {
    SbpReduction reduction;
    Dtype type;           /* not complex: those are twice as many real ones */
    const char **members; /* [member_count], in group order: the first element of each */
    int32_t member_count;
    char **results; /* [result_count]: each gets the reduction; may be members' memory */
    int32_t result_count;
} Combine;

/* Combines elements first .. first + count - 1 over the members in their order: floating types in double
 * precision and rounded once, integers wrap. An element is read from all members before it is written. */
void combine_run(const Combine *work, int64_t first, int64_t count);

#endif
