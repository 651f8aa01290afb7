/* What the layers of a module cost, by the way in which a stage would hold them.
 *
 * The forward operators stand in the order of the module. They are cut into at most LAYER_MOST_UNITS units
 * of about equal FLOPs, each cut where least crosses within its reach; stages_assign() says to which unit
 * everything else belongs. A table is the whole module completed and lowered once, for one device of a mesh
 * of `local batches` x tensor: splitting a batch of B over M micro-batches and d devices gives a device the
 * shapes that splitting it over M d devices does. So a table serves every stage of that tensor degree and
 * those local examples, whatever its micro-batches, devices and units. Its seconds are by device type;
 * collectives are listed and priced where it is known how the devices lie.
 */
#ifndef PLANNERS_LAYER_COSTS_H
#define PLANNERS_LAYER_COSTS_H

#include "base/stop.h"
#include "planners/problem.h"
#include "propagation/program.h"
#include "propagation/stages.h"

#define LAYER_MOST_UNITS STAGES_MOST

typedef enum LayerPass { LAYER_FORWARD, LAYER_BACKWARD, LAYER_UPDATE, LAYER_PASSES } LayerPass;

/* Of a unit in one turn; those that reduce gradients are left out, since they follow from `gradients`. */
typedef struct LayerCollective {
    ProgramCollectiveKind kind;
    LayerPass pass;
    bool over_batch; /* among the devices that share the batch; else among those that share the operators */
    int32_t unit;
    double bytes, times;
} LayerCollective;

/* Bytes of one device for one unit. */
typedef struct LayerBytes {
    double weights, gradients, optimizer;
    double kept;    /* from the forward to the backward pass, of one turn */
    double working; /* the most that one step reads and writes, parameters apart */
} LayerBytes;

typedef struct LayerTable {
    int32_t local_batch, tensor;
    bool splits_sequence;
    bool found;      /* the module can be split so */
    double *seconds; /* [(pass * unit_count + unit) * type_count + type], one turn; updates: one step */
    LayerBytes *bytes;
    LayerCollective *collectives;
    int32_t collective_count, collective_capacity;
    AmStatus status;
    AmError error;
    Arena arena;
} LayerTable;

/* What the tensor axis splits at one degree. */
typedef struct LayerTensor {
    int32_t size;
    bool splits_sequence, found;
    Genome genome; /* its axis 1 */
} LayerTensor;
enum { LAYER_MOST_TENSORS = 32 };

typedef struct LayerCosts {
    Arena arena;
    const PlanContext *context; /* as read */
    const Cluster *cluster;
    Problem *problem; /* candidates of a mesh data x model */
    int64_t batch;
    int32_t unit_count;
    int32_t *cuts; /* [unit_count + 1] unit u is instructions [cuts[u], cuts[u + 1]) */
    double
        *crossing; /* [unit_count + 1] bytes of the whole batch that go up over a cut in the forward pass */
    double *returning; /* and down in the backward pass */
    /* Where little crosses: a stage that recomputes keeps what crosses these cuts, and makes again what is
     * between them, a layer or its half at a time. */
    bool *is_checkpoint;      /* [unit_count + 1] */
    double *checkpoint_bytes; /* [unit_count] of the whole batch, made in the unit, that cross the next one */
    StageMap *map;            /* of units */
    uint8_t *gradients;       /* memory_find_gradients() */
    struct Scratch *scratch;
    StopSignal stop; /* set by the caller; where it says so, tables are left unfilled, as if not found */
    LayerTensor tensors[LAYER_MOST_TENSORS];
    int32_t tensor_count;
} LayerCosts;

/* AM_ERROR_INFEASIBLE: the module has too few forward operators to cut. */
AmStatus layer_costs_open(LayerCosts **costs, const PlanContext *context, const Cluster *cluster,
                          const ProblemSettings *settings, AmError *error);
void layer_costs_close(LayerCosts *costs);

/* Fills the tables, whose first three members say which they are, side by side. */
AmStatus layer_costs_fill(const LayerCosts *costs, LayerTable *tables, int32_t count, int32_t threads,
                          AmError *error);
void layer_tables_free(LayerTable *tables, int32_t count);

static inline double layer_seconds(const LayerCosts *costs, const LayerTable *table, LayerPass pass,
                                   int32_t unit, int32_t type) {
    return table->seconds[((int32_t)pass * costs->unit_count + unit) * costs->cluster->type_count + type];
}

/* Finds what tensor axes of these sizes split, with and without the sequence, side by side. */
AmStatus layer_costs_find_tensors(LayerCosts *costs, const int32_t *sizes, int32_t count, int32_t threads,
                                  AmError *error);

#endif
