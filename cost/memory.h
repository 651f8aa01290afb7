/* Memory of a device: what fills it at the peak, and whether it is enough. */
#ifndef COST_MEMORY_H
#define COST_MEMORY_H

#include "cost/cluster.h"
#include "propagation/program.h"

/* The kinds add up to peak_bytes. */
typedef struct MemoryUse {
    int64_t peak_bytes;
    int64_t weights_bytes;   /* parameters of role weight */
    int64_t optimizer_bytes; /* parameters of role optimizer */
    int64_t gradients_bytes; /* weights' gradients that are alive at the peak */
    int64_t
        activation_bytes; /* all else: activations, temporaries of the update, data, state, constants, gaps */
} MemoryUse;

/* Bytes of a device at the peak: the allocation, and the temporaries inside the
 * loop or conditional that holds most of them, as if it ran when the allocation
 * is fullest (an upper bound). */
int64_t memory_peak(const Program *program);

/* What a device's allocation holds at program->peak_step. Scratch memory is
 * taken from the program's arena and given back. */
AmStatus memory_use(MemoryUse *use, const Program *program, AmError *error);

/* The device that decides whether a program of `peak_bytes` fits. */
typedef struct MemoryFit {
    bool fits;
    int32_t device; /* cluster device: the one with least memory */
    int64_t needed_bytes, limit_bytes;
    double needed_fraction; /* memory fraction at which it would fit; above 1: never on this device */
} MemoryFit;

/* The limit is `fraction` of the memory of the smallest listed device. */
MemoryFit memory_fit(int64_t peak_bytes, const Cluster *cluster, const int32_t *devices, int32_t count,
                     double fraction);
/* AM_ERROR_INFEASIBLE in one line: the device, what it needs, what it has, and
 * what would be enough. */
AmStatus memory_fail(const MemoryFit *fit, const Cluster *cluster, double fraction, AmError *error);

#endif
