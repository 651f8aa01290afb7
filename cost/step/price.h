/* The price of a lowered program: seconds of a step and bytes of memory.
 *
 * price_program() sums the steps of one program on the compute and the communication stream of a device
 * (device_streams.h). It prices one-stage plans; pipelines are simulated (cost/simulate/simulate.h).
 */
#ifndef COST_STEP_PRICE_H
#define COST_STEP_PRICE_H

#include "cost/collective/collective.h"
#include "cost/operator/operator.h"
#include "cost/step/executed.h"

#define PRICE_COLLECTIVE_KINDS PROGRAM_COLLECTIVE_KINDS

typedef struct CollectivePrice {
    int64_t count;       /* in a loop every time counts */
    double tensor_bytes; /* of the global tensors */
    double sent_bytes;   /* that each device sends */
    double seconds;
} CollectivePrice;

typedef struct StepPrice {
    double step_seconds; /* at most the sum of the next two: they may overlap */
    double compute_seconds, communication_seconds;
    int64_t peak_bytes;   /* of one device: its allocation */
    int64_t memory_bytes; /* of the smallest device that runs the program */
    double flops, bytes;  /* that one device computes and moves through its memory */
    CollectivePrice collectives[PRICE_COLLECTIVE_KINDS]; /* by ProgramCollectiveKind */
} StepPrice;

/* Prices one step. `devices`: mesh device -> cluster device. With equal shares
 * all devices run this program and the slowest decides; with unequal ones it is
 * the program of program->device alone. Scratch memory is taken from the
 * program's arena and given back. AM_ERROR_INTERNAL without memory. */
AmStatus price_program(StepPrice *price, const Program *program, const Cluster *cluster,
                       const int32_t *devices, AmError *error);

/* The cost of one execution of a step. */
typedef struct StepCost {
    ExecutedStep executed; /* which it is, and how often it runs */
    double seconds;        /* on the slowest device, or in the slowest group */
    double flops;          /* 0 for collectives */
    double bytes;          /* through memory; of collectives the global tensor */
    bool is_collective;
    ProgramCollectiveKind kind; /* collectives only */
    uint32_t axes;              /* that a collective spans */
} StepCost;

/* Prices every executed step by itself: `*count` rows, in the arena. */
AmStatus price_steps(StepCost **costs, int32_t *count, Arena *arena, const Program *program,
                     const Cluster *cluster, const int32_t *devices, AmError *error);

/* Returns the seconds that a device spends on copying new values over parameters that the buffer plan could
 * not put in place. */
double price_updates(const Program *program, const ClusterDeviceType *type);

/* Warns of products in element types whose rate the cluster does not name. */
void price_warn_types(AmWarnings *warnings, const Program *program, const Cluster *cluster);

#endif
