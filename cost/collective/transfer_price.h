/* Seconds of a transfer between the devices of two stages. */
#ifndef COST_COLLECTIVE_TRANSFER_PRICE_H
#define COST_COLLECTIVE_TRANSFER_PRICE_H

#include "cost/cluster/cluster.h"
#include "lowering/program/program.h"

typedef struct TransferPrice {
    double bytes; /* that leave a device for another */
    double seconds;
} TransferPrice;

/* Prices transfers. `device_of`: rank -> cluster device. Scratch memory is taken from the arena and given
 * back. */
AmStatus transfer_price(TransferPrice *price, Arena *arena, const Cluster *cluster,
                        const ProgramTransfer *transfer, const int32_t *device_of, AmError *error);

/* Adds a line on how that comes about: messages, latency, the busiest link with its load, rate and
 * efficiency. */
AmStatus transfer_describe(Text *text, Arena *arena, const Cluster *cluster, const ProgramTransfer *transfer,
                           const int32_t *device_of, AmError *error);

#endif
