/* The transfers between stages as text, and how each comes to its price. */
#ifndef COST_SIMULATE_EXCHANGE_REPORT_H
#define COST_SIMULATE_EXCHANGE_REPORT_H

#include "cost/collective/exchange.h"

/* A value that goes from stage to stage. */
typedef struct ExchangeRow {
    const ProgramTransfer *transfer;
    int32_t sender, receiver;     /* stages */
    double count, bytes, seconds; /* of the step: how often, and in all */
} ExchangeRow;

/* Adds each distinct transfer, longest first; transfers between two stages with equal times share a
 * line. `rows` [count] is reordered. `device_of`: rank -> cluster device. */
AmStatus exchange_report(Text *text, Arena *arena, const Cluster *cluster, ExchangeRow *rows, int32_t count,
                         const int32_t *device_of, AmError *error);

#endif
