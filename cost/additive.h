/* The additive model: what a plan of one stage costs as a sum over operators and edges (method, section 6).
 *
 * It is a graph. A node is an operator, whose labels are the ways to split it (on each mesh axis a factor,
 * nothing, or operands taken partial), or a tensor that several read or that a parameter is, whose labels
 * are the states in which it is kept. A label costs seconds of computing, an edge seconds of boxing between
 * the state that one end makes and the state that the other needs. Labels are chosen freely, instruction by
 * instruction, so every completion of every lists, with whatever exceptions, is one choice of labels.
 *
 * Both figures are at most what the lowered program is priced at:
 *   products, reductions   local FLOPs and bytes by the roofline of cost/operator.c
 *   element-wise operators what a fusion cannot help: a launch for each group (separation.h); a result that
 * is needed outside is written once, and read by each group as often as its readers must be in different
 * fusions, at the memory's rate for as many bytes as a fusion of the group can move
 *   steps that move arrays concatenations and their like: local bytes and a launch
 *   everything else        nothing
 *   boxing                 box_costs.h; a tensor's boxing from the state in which it is kept is paid in equal
 *                          parts by those that need it, so that it is paid once if all need it so
 * What lies in a loop counts as often as it runs.
 */
#ifndef COST_ADDITIVE_H
#define COST_ADDITIVE_H

#include "cost/box_costs.h"
#include "propagation/lower.h"

typedef struct AdditiveNode {
    int32_t instruction;
    bool is_tensor;
    int32_t label_count;
    const float *seconds; /* [label_count] of computing, in a step; NULL: 0 */
} AdditiveNode;

/* From the node that makes to the node that takes. */
typedef struct AdditiveEdge {
    int32_t made, taken;             /* nodes */
    const BoxState *made_in, *needs; /* [labels of `made`], [labels of `taken`] */
    float scale;                     /* bytes of the whole tensor, times runs */
    float share;                     /* of that, where others read the same; 1: nobody else */
    bool is_wide;                    /* sums are moved in elements of twice the size */
} AdditiveEdge;

typedef struct AdditiveModel {
    const PlanContext *context;
    const Mesh *mesh;
    const BoxCosts *boxes;
    AdditiveNode *nodes;
    AdditiveEdge *edges; /* by `taken` */
    int32_t node_count, edge_count;
    struct AdditiveParts *parts; /* additive.c's: what plans are looked up with */
} AdditiveModel;

/* The model of `context` on a mesh of devices of one type; everything lives in the arena. `*model` NULL: the
 * mesh splits along more than two axes, has unequal shares, devices of several types, or of a type whose
 * operators were measured one by one: then nothing is claimed. */
AmStatus additive_create(AdditiveModel **model, Arena *arena, const PlanContext *context, const Mesh *mesh,
                         const Cluster *cluster, const int32_t *devices, AmError *error);

typedef struct AdditiveCost {
    double compute_seconds, communication_seconds;
    double kept_bytes; /* of parameters that the step updates: a device has no less than these all the time */
} AdditiveCost;

/* What a completion on that mesh costs in the model; boxing is paid once for each tensor and state needed. */
AdditiveCost additive_cost(const AdditiveModel *model, const Completion *completion);

/* What a completion has each node do: labels [node], in the arena. */
AmStatus additive_labels(int32_t **labels, Arena *arena, const AdditiveModel *model,
                         const Completion *completion, AmError *error);
/* The factors that a label of an operator splits on the mesh's axes, -1 for none. False: it takes operands
 * partial, which nobody can ask for. */
bool additive_label_factors(const AdditiveModel *model, int32_t node, int32_t label,
                            int32_t factors[MESH_MAX_AXES]);
/* The state in which a label of a tensor keeps it. False: any will do, or it waits for its sum. */
bool additive_label_state(const AdditiveModel *model, int32_t node, int32_t label, SbpState *state);
/* Where the only reader of operator i's result takes it in a state to which it is brought by way of another:
 * the former. False: there is no such state, or it waits for its sum. */
bool additive_wanted_state(const AdditiveModel *model, const Completion *completion, int32_t i,
                           SbpState *state);

/* A sample of the model's instructions that stands for all of them: with what is near by one of each kind, as
 * often as there are such. What a completion of the sample's context costs comes near to what one of the
 * model's costs, in a fraction of the time; it is neither above nor below it. */
typedef struct AdditiveSample AdditiveSample;
/* In the arena, which the model's outlives. */
AmStatus additive_sample(AdditiveSample **sample, Arena *arena, const AdditiveModel *model, AmError *error);
/* The model's context, in which completions decide about the sample alone. */
const PlanContext *additive_sample_context(const AdditiveSample *sample);
/* How many instructions are decided about. */
int32_t additive_sample_size(const AdditiveSample *sample);
AdditiveCost additive_sample_cost(const AdditiveSample *sample, const Completion *completion);

#endif
