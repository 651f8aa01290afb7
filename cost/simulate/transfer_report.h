/* The transfers between stages as text: count, bytes, seconds, and the origin of each price
 * (transfer_price.h). */
#ifndef COST_SIMULATE_TRANSFER_REPORT_H
#define COST_SIMULATE_TRANSFER_REPORT_H

#include "cost/collective/transfer_price.h"

/* A value that goes from stage to stage. */
typedef struct TransferRow {
    const ProgramTransfer *transfer;
    int32_t sender, receiver;     /* stages */
    double count, bytes, seconds; /* of the step: how often, and in all */
} TransferRow;

/* Adds each distinct transfer, longest first; transfers between two stages with equal times share a
 * line. `rows` [count] is reordered. `device_of`: rank -> cluster device. */
AmStatus transfer_report(Text *text, Arena *arena, const Cluster *cluster, TransferRow *rows, int32_t count,
                         const int32_t *device_of, AmError *error);

#endif
