/* The key "collective_model" of a cluster, which selects NCCL's tuning model (nccl_model.h). */
#ifndef COST_CLUSTER_NCCL_OPTIONS_H
#define COST_CLUSTER_NCCL_OPTIONS_H

#include <jansson.h>

#include "base/arena.h"
#include "base/status.h"

/* The medium of a hop inside a server. */
typedef enum NcclTransport { NCCL_NVLINK, NCCL_PCI, NCCL_NETWORK, NCCL_TRANSPORTS } NcclTransport;

typedef struct NcclModel {
    NcclTransport inside;
    double most_ll; /* bytes per second under LL on one server; 0: no limit */
} NcclModel;

/* Reads the value of "collective_model": "alpha-beta" (*model is NULL) or "nccl", or an object with the key
 * "name" and, of nccl, "inside" ("nvlink" or "pci") and "generation" ("volta", "ampere" or "hopper"). In the
 * arena. AM_ERROR_INPUT with the JSON path. */
AmStatus nccl_model_read(NcclModel **model, Arena *arena, json_t *root, const char *source, AmError *error);

#endif
