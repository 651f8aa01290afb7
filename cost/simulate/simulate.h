/* Simulation of a plan: the activity of every device during one step.
 *
 * simulate_plan() lowers every stage, prices its steps (cost/step), and lets the ranks run them: computation
 * and collectives are streams of a device, and transfers between stages wait for both ends. The result has
 * seconds, memory and communication of every device, and the critical path.
 */
#ifndef COST_SIMULATE_SIMULATE_H
#define COST_SIMULATE_SIMULATE_H

#include "cost/step/memory.h"
#include "cost/step/price.h"
#include "lowering/spmd/ranks.h"

typedef struct SimulatedDevice {
    int32_t device; /* in the cluster */
    int32_t stage;
    const char *name; /* "server0/V100-32GB-3" */
    double compute_seconds, communication_seconds;
    double hidden_seconds; /* of both: it computed and communicated at once */
    double idle_seconds;   /* waiting for other devices: the rest of the step */
    MemoryUse memory;
    bool is_even;          /* all devices of the stage have this memory */
    int64_t channel_bytes; /* slots of transfers that come in, outside `memory` */
    int64_t kept_bytes;    /* what the training system keeps (PlanStage), outside `memory` */
    int64_t needed_bytes;  /* the peak of the allocation, slots and kept bytes */
    int64_t limit_bytes;   /* the limit for plans: memory fraction times */
    int64_t memory_bytes;  /* the memory of the device */
    double flops;          /* that it computes, including work that other devices repeat */
} SimulatedDevice;

/* Between stages, all of a step together. */
typedef struct TransferTotal {
    int64_t count;
    double bytes; /* that leave a device for another */
    double seconds;
} TransferTotal;

/* One value that goes from stage to stage, all of a step together. */
typedef struct SimulatedTransfer {
    int32_t sender, receiver; /* stages, or parts of a model whose stages are in chunks */
    int32_t origin;           /* canonical instruction that makes the value */
    TransferTotal total;
} SimulatedTransfer;

typedef struct Simulation {
    const char *module_name, *cluster_name;
    double step_seconds;
    int32_t device_count; /* devices across stages, in order */
    SimulatedDevice *devices;
    CollectivePrice collectives[PRICE_COLLECTIVE_KINDS]; /* of each stage's first device, added */
    TransferTotal transfers;
    SimulatedTransfer *values; /* [value_count] that they move */
    int32_t value_count;
    double flops;          /* of the module: useful work, however it is cut */
    double executed_flops; /* of all devices together, with what several of them repeat */
    double memory_fraction;
    MemoryFit fit;                      /* of the device with least room; not if its host has too little */
    HostFit host;                       /* of the server whose host has least room */
    double bubble_fraction;             /* of all devices' time, that they are idle */
    struct CriticalPath *critical_path; /* or NULL */
    MemoryPeak peak;                    /* of the device with least room, `fullest` */
    int32_t fullest;
    AmWarnings warnings;
    bool is_left; /* only step_seconds is set: a lower bound above SimulationOptions.most_seconds */
} Simulation;

/* Something that a device does in the step (or that is under way to or from it), from `start` to `end`
 * seconds. */
typedef struct SimulatedSlice {
    int32_t rank;
    const struct ExecutedStep *executed; /* its step may be the updates that end the program */
    double start, end;
    int32_t micro_batch;   /* in a loop over micro-batches of a one-stage plan; else 0 */
    double times;          /* runs of the step that this slice stands for */
    const Program *entry;  /* the rank's program, which `executed` belongs to */
    int64_t channel_bytes; /* slots of transfers that come in to the rank, in bytes */
} SimulatedSlice;

/* Receives every slice; the slices of one stream of a rank arrive in order. */
typedef struct SimulationObserver {
    void (*on_slice)(void *user, const SimulatedSlice *slice);
    void *user;
} SimulationObserver;

typedef struct SimulationOptions {
    double memory_fraction; /* of a device's memory that a plan may fill */
    const SimulationObserver *observer;
    bool with_details; /* find the critical path, for which every iteration is simulated step by step, and
                          what fills the memory */
    double jitter;     /* mean random delay of operators, as a fraction, exponential */
    uint64_t seed;
    Text *collectives;       /* or NULL: gets how each different collective and transfer is priced */
    const StopSignal *stop;  /* or NULL; AM_INTERRUPTED where it is set before all is lowered */
    const PlanRanks *known;  /* of a plan that shares stages with this one (plan_ranks_beside()), or NULL */
    const double *slowdowns; /* [device of the cluster]: how many times longer it takes; NULL: none */
    double most_seconds;     /* a plan with a stage that is busy for longer is left; 0: none is */
    bool in_parallel;        /* stages are lowered side by side: no other plan is simulated meanwhile */
} SimulationOptions;

/* Fails with AM_ERROR_INPUT if a stage names a device that the cluster does not have. */
AmStatus plan_check_devices(const Plan *plan, const Cluster *cluster, AmError *error);
/* Fails with AM_ERROR_INPUT if a stage names a device that the cluster in the plan file does not have. */
AmStatus plan_check_own_devices(const Plan *plan, AmError *error);

/* The lowered programs of a plan with their prices: the input of any number of simulations. */
typedef struct PlanCosts PlanCosts;

/* Lowers and prices the plan on the cluster (the plan's own or another one; it must have the devices that
 * the plan names: AM_ERROR_INPUT). Everything lives in the arena, and refers to the ranks. */
AmStatus plan_costs_lower(PlanCosts **costs, Arena *arena, const PlanRanks *ranks, const Cluster *cluster,
                          AmError *error);
AmStatus plan_costs_price(PlanCosts *costs, AmError *error);
/* Returns the lowered program of a rank. */
const Program *plan_costs_program(const PlanCosts *costs, int32_t rank);
/* Simulates one step. A plan that does not fit is simulated too; see `fit`. */
AmStatus simulate_costs(Simulation **simulation, Arena *arena, const PlanCosts *costs,
                        const SimulationOptions *options, AmError *error);

/* The same, with the memory of each rank (rank_memory.h) in place of that of the first one of its stage. */
AmStatus simulate_costs_by_rank(Simulation **simulation, Arena *arena, const PlanCosts *costs,
                                const SimulationOptions *options, AmError *error);

/* Lowers, prices and simulates a plan. All memory is the arena's. Without details a device has the memory of
 * the first rank of its stage, unless that leaves little room and the shards differ. */
AmStatus simulate_plan(Simulation **simulation, Arena *arena, const PlanContext *context, const Plan *plan,
                       const Cluster *cluster, const SimulationOptions *options, AmError *error);

/* Lowers, prices and simulates a plan whose stages are assigned and whose devices the cluster has. */
AmStatus simulate_ranks(Simulation **simulation, Arena *arena, const PlanRanks *ranks, const Cluster *cluster,
                        const SimulationOptions *options, AmError *error);

/* Returns the part of a step in which a device computes. */
static inline double simulation_busy_fraction(double compute_seconds, double step_seconds) {
    double busy = step_seconds > 0 ? compute_seconds / step_seconds : 0;
    return busy > 1 ? 1 : busy; /* sums in another order may differ in the last digit */
}

/* Sets predicted_step_seconds, predicted and device_count; arrays in the arena. */
AmStatus simulation_predict(Plan *plan, Arena *arena, const Simulation *simulation, AmError *error);

/* Returns the object of `simulate --json`: step_seconds, devices, collectives, memory; the caller's
 * reference. */
json_t *simulation_to_json(const Simulation *simulation);
/* Appends a simulation as text: a summary, the collectives, a line per device. */
void simulation_print(Text *text, const Simulation *simulation);

#endif
