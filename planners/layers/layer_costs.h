/* The cost of a module's layers, by the way in which a stage would hold them.
 *
 * The forward operators have the order of the module. They are cut into at most LAYER_MOST_UNITS
 * units of about equal FLOPs, each at the cheapest cut within its range; stages_assign() determines
 * the unit of all other instructions. A table is the whole module assigned and lowered once, for
 * one device of a mesh of `local batches` x tensor: splitting a batch of B over M micro-batches and
 * d devices gives a device the shapes of splitting it over M d devices. A table therefore serves
 * every stage of that tensor degree and those local examples, for any micro-batches, devices and
 * units. Its seconds are by device type; collectives are listed, and priced once the position of
 * the devices is known.
 */
#ifndef PLANNERS_LAYERS_LAYER_COSTS_H
#define PLANNERS_LAYERS_LAYER_COSTS_H

#include "base/system/stop.h"
#include "lowering/program/program.h"
#include "planners/layers/recompute_levels.h"
#include "planners/problem/placement.h"
#include "planners/problem/problem.h"
#include "propagation/stages/stages.h"

#define LAYER_MOST_UNITS STAGES_MOST

typedef enum LayerPass { LAYER_FORWARD, LAYER_BACKWARD, LAYER_UPDATE, LAYER_PASSES } LayerPass;

/* A collective of a unit in one iteration; reductions of gradients are omitted, since they follow
 * from `gradients`. */
typedef struct LayerCollective {
    ProgramCollectiveKind kind;
    LayerPass pass;
    bool over_batch; /* among the devices that share the batch; else among those that share the operators */
    int32_t unit;
    double bytes, times;
} LayerCollective;

/* Bytes of one device for one unit. In a sample (ir/layers/sample_layers.h) a unit represents several equal
 * layers. */
typedef struct LayerBytes {
    double weights, gradients, optimizer;
    double kept;    /* forward values that the backward pass reads, of all layers, in one iteration */
    double working; /* the most that one step reads and writes, without parameters */
    double again;   /* as `kept`, of one layer: recomputation computes one layer at a time again */
    double casts;   /* in samples: forward values of one layer that depend on weights alone, such as converted
                       weights; they are not in `kept`. Else 0 */
    double gathered; /* in samples, under ZeRO 3: the casts of two layers and the gradients of one. Else 0 */
} LayerBytes;

typedef struct LayerTable {
    int32_t local_batch, tensor;
    bool splits_sequence;
    bool found;      /* the module can be split so */
    bool *fails;     /* [unit]: a pin of its parameters cannot hold on the tensor axis; NULL: none */
    double *seconds; /* [(pass * units.count + unit) * type_count + type], one iteration; updates: one step */
    LayerBytes *bytes;
    LayerCollective *collectives;
    int32_t collective_count, collective_capacity;
    AmStatus status;
    AmError error;
    Arena arena;
} LayerTable;

/* The priorities of the tensor axis at one degree. */
typedef struct LayerTensor {
    int32_t size;
    bool splits_sequence, found;
    AxisPlan axis_plan; /* its axis 1 */
} LayerTensor;
enum { LAYER_MOST_TENSORS = 32 };

/* The pins that all plans keep. */
typedef struct LayerPins {
    const PropagationPin *pins; /* [count] */
    int32_t count;
    const Placement *placement; /* or NULL */
} LayerPins;

typedef struct LayerCosts {
    Arena arena;
    const PlanContext *context; /* as read */
    const Cluster *cluster;
    StageProblem *problem; /* class sets of a mesh data x model */
    int64_t batch;
    struct {
        int32_t count;
        int32_t *cuts;    /* [count + 1] unit u is instructions [cuts[u], cuts[u + 1]) */
        double *crossing; /* [count + 1] bytes of the whole batch that go up over a cut in the forward pass */
        double *returning;      /* [count + 1] and down in the backward pass */
        StageMap *map;          /* of units */
        bool *is_pinned;        /* [count]: it has a parameter with a pinned state; NULL: no unit has */
        RangePlacement *placed; /* [count]; NULL: all may be anywhere */
    } units;
    /* Cuts with few crossing bytes: a stage with recomputation keeps the values across these cuts,
     * and recomputes those in between, a layer or its half at a time. */
    struct {
        bool *is_at;   /* [units.count + 1] */
        double *bytes; /* [units.count] of the whole batch, made in the unit, that cross the next one */
    } checkpoints;
    /* Selective recomputation: each level's share of a unit's kept bytes that it saves, and of its forward
     * seconds that it computes again. */
    struct {
        RecomputeLevels levels;
        double *saved_share[RECOMPUTE_MOST_LEVELS], *again_share[RECOMPUTE_MOST_LEVELS]; /* [level][unit] */
    } recompute;
    struct {
        LayerTensor of[LAYER_MOST_TENSORS];
        int32_t count;
    } tensors;
    LayerPins pins;
    uint8_t *gradients; /* memory_find_gradients() */
    struct Scratch *scratch;
    StopSignal stop; /* set by the caller; when it requests a stop, tables stay empty */
} LayerCosts;

/* Prices the layers. AM_ERROR_INFEASIBLE: the module has too few forward operators for a pipeline. Units
 * begin where the placement requires a cut. `settings` has no pins. */
AmStatus layer_costs_open(LayerCosts **costs, const PlanContext *context, const Cluster *cluster,
                          const ProblemSettings *settings, const LayerPins *pins, AmError *error);
void layer_costs_close(LayerCosts *costs);

/* Fills the tables concurrently; their first three members identify them. */
AmStatus layer_costs_fill(const LayerCosts *costs, LayerTable *tables, int32_t count, int32_t threads,
                          AmError *error);
void layer_tables_free(LayerTable *tables, int32_t count);

static inline double layer_seconds(const LayerCosts *costs, const LayerTable *table, LayerPass pass,
                                   int32_t unit, int32_t type) {
    return table->seconds[((int32_t)pass * costs->units.count + unit) * costs->cluster->type_count + type];
}

/* Finds what tensor axes of these sizes split, with and without the sequence, side by side. */
AmStatus layer_costs_find_tensors(LayerCosts *costs, const int32_t *sizes, int32_t count, int32_t threads,
                                  AmError *error);

#endif
