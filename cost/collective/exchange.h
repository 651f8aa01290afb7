/* Seconds of a transfer between the devices of two stages. */
#ifndef COST_COLLECTIVE_EXCHANGE_H
#define COST_COLLECTIVE_EXCHANGE_H

#include "cost/cluster/cluster.h"
#include "lowering/program/program.h"

typedef struct ExchangePrice {
    double bytes; /* that leave a device for another */
    double seconds;
} ExchangePrice;

/* `device_of`: rank -> cluster device. Scratch memory is taken from the arena and given back. */
AmStatus exchange_price(ExchangePrice *price, Arena *arena, const Cluster *cluster,
                        const ProgramTransfer *transfer, const int32_t *device_of, AmError *error);

/* Adds a line on how that comes about: messages, latency, the busiest link with its load, rate and
 * efficiency. */
AmStatus exchange_describe(Text *text, Arena *arena, const Cluster *cluster, const ProgramTransfer *transfer,
                           const int32_t *device_of, AmError *error);

#endif
