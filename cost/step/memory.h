/* Memory of a device: its contents at the peak, and whether it is enough.
 *
 * memory_use() divides the peak of a program's one allocation (lowering/passes/buffers.c) by kinds of
 * values; memory_fit() compares the need of devices with their memory.
 */
#ifndef COST_STEP_MEMORY_H
#define COST_STEP_MEMORY_H

#include "cost/cluster/cluster.h"
#include "lowering/program/program.h"

/* The first four kinds add up to peak_bytes; the last three are in the activations. */
typedef struct MemoryUse {
    int64_t peak_bytes;    /* of the one allocation (lowering/passes/buffers.c), with temporaries of loops */
    int64_t weights_bytes; /* parameters of role weight */
    int64_t optimizer_bytes;  /* parameters of role optimizer */
    int64_t gradients_bytes;  /* weights' gradients that are alive at the peak */
    int64_t activation_bytes; /* the rest: activations, temporaries, data, state, constants, gaps */
    int64_t in_flight_bytes;  /* kept for the backward pass, of all micro-batches */
    int64_t collective_bytes; /* what collectives fill: gathered weights, reduced values */
    int64_t host_bytes;       /* of the host's memory, besides */
    int64_t spare_bytes;      /* of the activations: Program.spare_bytes, at most all of them */
} MemoryUse;

/* Leaves out values that an executor computes again because they are cheap (Plan.is_for_jax). */
static inline void memory_use_drop_spare(MemoryUse *use) {
    use->peak_bytes -= use->spare_bytes;
    use->activation_bytes -= use->spare_bytes;
    use->in_flight_bytes -= use->spare_bytes < use->in_flight_bytes ? use->spare_bytes : use->in_flight_bytes;
    use->spare_bytes = 0;
}

/* Returns which instructions of a module's entry make gradients: given to memory_use() as often as one likes.
 * In the arena; NULL: no memory. */
uint8_t *memory_find_gradients(Arena *arena, const IrModule *module, const IrRoles *roles);

/* Computes the use of a device's memory at program->allocation.peak_step. `gradients` may be NULL. Scratch
 * memory is taken from the program's arena and released. */
AmStatus memory_use(MemoryUse *use, const Program *program, const uint8_t *gradients, AmError *error);

typedef enum MemoryKind {
    MEMORY_WEIGHT,
    MEMORY_OPTIMIZER,
    MEMORY_PARAMETER, /* of another role */
    MEMORY_GRADIENT,
    MEMORY_IN_FLIGHT,
    MEMORY_COLLECTIVE,
    MEMORY_ACTIVATION,
    MEMORY_KINDS
} MemoryKind;
const char *memory_kind_name(MemoryKind kind); /* "weight", ..., "in flight", ... */

/* A tensor that is there at the peak, in the program itself or in a loop that runs then. */
typedef struct MemoryTensor {
    const Program *program;
    int32_t value;
    MemoryKind kind;
    int64_t bytes;
} MemoryTensor;

enum { MEMORY_MOST_TENSORS = 10 };

typedef struct MemoryPeak {
    const Program *program;                    /* the innermost program that runs at the peak */
    int32_t step;                              /* the step of `program` at the peak */
    MemoryTensor tensors[MEMORY_MOST_TENSORS]; /* the largest, largest first */
    int32_t tensor_count;
} MemoryPeak;

/* Finds the peak of the allocation and its largest values. Scratch memory is taken
 * from the program's arena and released. */
AmStatus memory_find_peak(MemoryPeak *peak, const Program *program, AmError *error);

/* Returns the bytes that a plan may use of each listed device (NULL: all of the cluster): `fraction` of the
 * memory of the smallest one. */
double memory_usable(const Cluster *cluster, const int32_t *devices, int32_t count, double fraction);

/* The server whose host has the least room for the data of its devices. */
typedef struct HostFit {
    bool fits;
    int32_t server;
    int64_t needed_bytes, limit_bytes, memory_bytes; /* all 0: no device keeps anything there */
} HostFit;

/* The device that decides whether a program of `peak_bytes` fits. */
typedef struct MemoryFit {
    bool fits;
    int32_t device; /* cluster device: the one with least memory */
    int64_t needed_bytes, limit_bytes;
    double needed_fraction; /* memory fraction at which it would fit; above 1: never on this device */
    HostFit host;           /* of simulate_plan() alone: if it does not fit, nothing does; else zero */
} MemoryFit;

/* Finds that server. `bytes` [count] of the host's memory, by the listed devices; `fraction` of it may be
 * used. AM_ERROR_INTERNAL: no memory. */
AmStatus memory_host_fit(HostFit *fit, Arena *arena, const int64_t *bytes, const int32_t *devices,
                         int32_t count, const Cluster *cluster, double fraction, AmError *error);
/* Returns the fraction by which the need exceeds the limit: 0 if it fits; at most 1e6, as where the host has
 * no memory. */
double memory_host_excess(const HostFit *fit);
/* Fails with AM_ERROR_INPUT, in one line, if the cluster has no rate of copies between a listed device and
 * its host. */
AmStatus memory_check_host(const Cluster *cluster, const int32_t *devices, int32_t count, AmError *error);

/* Returns the limit is memory_usable(). */
MemoryFit memory_fit(int64_t peak_bytes, const Cluster *cluster, const int32_t *devices, int32_t count,
                     double fraction);
/* Appends "4.24 GB of 77.3 GB (0.9 of 85.9 GB)": the need, the limit, and the size of a device's
 * memory. */
void memory_append_use(Text *text, int64_t needed, int64_t limit, int64_t memory);
/* Returns the least memory fraction of three digits with which the plan fits; above 1: none. */
double memory_enough_fraction(const MemoryFit *fit, const Cluster *cluster);
/* Fails with AM_ERROR_INFEASIBLE in one line: the device, its need, its memory, and a sufficient fraction for
 * the same plan. */
AmStatus memory_fail(const MemoryFit *fit, const Cluster *cluster, double fraction, AmError *error);

#endif
