/* Explanations of a plan: the contents and work of each stage, the value of each decision, cut and
 * number against the next best, and the collectives and transfers. */
#ifndef PLANNERS_EXPLAIN_EXPLAIN_PLAN_H
#define PLANNERS_EXPLAIN_EXPLAIN_PLAN_H

#include <jansson.h>

#include "base/system/stop.h"
#include "base/text.h"
#include "cost/simulate/simulate.h"
#include "planners/problem/search_watch.h"

/* The effect of one change on the step: everything is assigned, lowered and simulated again. */
typedef struct ExplainedChange {
    double seconds; /* of the step */
    int64_t peak_bytes;
    bool is_known;      /* otherwise `reason` explains the missing figure */
    bool fits;          /* in the memory of every device */
    const char *reason; /* "" where it was left out because there are too many */
} ExplainedChange;

/* Entries of one axis priority that repeated layers share: decided as one. */
typedef struct ExplainedDecision {
    int32_t stage;
    const char *axis;
    const PlanEntry *entry;       /* the first of them */
    int32_t class_count;          /* that the stage has */
    const char *path;             /* a weight that it splits, else what names the class; "" for any */
    int32_t dimension;            /* of that */
    const char *op_name, *source; /* of what names the class; "file:line" or "" */
    ExplainedChange without;      /* the step if they were taken out of the list */
} ExplainedDecision;

/* Operators that have overrides of the axis priorities, alike in repeated layers. */
typedef struct ExplainedOverride {
    int32_t stage;
    const char *how, *instead; /* "model splits dimension 1"; `instead` by the axis priorities, "" where they
                                  say the same or cannot do without */
    int32_t count, *instructions;         /* numbers of the module's operators */
    const char *shape, *op_name, *source; /* of the first of them */
    ExplainedChange without;              /* the step if they did as the axis priorities say */
} ExplainedOverride;

/* Collectives of one kind over the same axes of a stage that serve operators of one name, by the same
 * reshard. A merged collective serves several: each has its tensors and, by their bytes, its share of the
 * time. */
typedef struct ExplainedCollective {
    int32_t stage;
    const char *kind, *axes;
    const char *op_name, *source; /* of the first operator */
    const char *before, *after;   /* sharding of the value: "[data,-] partial(model)", "[data,-]" */
    int64_t count;                /* collectives with tensors of these operators */
    int64_t tensors;
    double bytes, seconds; /* all together */
    int32_t last_step;     /* of the program that was counted; keeps a collective from counting twice */
} ExplainedCollective;

typedef struct ExplainedStage {
    int32_t first_rank, device_count;
    const char *devices, *mesh;     /* "server0/V100-32GB-0 to server0/V100-32GB-7"; "data=4 model=2" */
    const char *weights;            /* the layers in ranges: "params['layer'][{0..5}]" */
    const char *first_op, *last_op; /* op_names of its first and last forward operator with FLOPs */
    int32_t zero_level;             /* 0 to 3 */
    double flops_share;             /* of what all devices compute */
    double weight_share;            /* of the bytes of all weights, each once */
    int64_t weight_bytes;
    struct {
        double compute, communication, hidden, idle;
    } seconds; /* means over its devices */
    struct {
        int32_t rank;
        MemoryUse use;
        int64_t channel_bytes; /* slots of transfers */
        int64_t kept_bytes;    /* bytes that the training system keeps */
        int64_t needed_bytes, limit_bytes,
            memory_bytes; /* the peak with them; the limit; the device's memory */
    } fullest;            /* of its devices: the one with least room */
} ExplainedStage;

/* A place to which a cut could go. */
typedef struct ExplainedMove {
    int32_t instruction; /* the first after it; -1: none */
    const char *op_name, *source;
    ExplainedChange change;
} ExplainedMove;

/* A border between two parts of the model, usually stages. Values cross it upwards in the forward
 * pass and downwards in the backward pass; seconds are the sum over all values, whose transfers may
 * overlap. */
typedef struct ExplainedCut {
    int32_t part;        /* before it; where stages are in chunks, chunk c of stage s is part c S + s */
    int32_t stages[2];   /* before and after it */
    int32_t instruction; /* the first after it */
    const char *op_name, *source; /* of the first operator after it that has a name */
    const char *weight;           /* path of the first weight that an operator after it uses, or "" */
    TransferTotal up, down;
    ExplainedMove earlier, later; /* one unit */
} ExplainedCut;

/* A loop of the module: one unit, without cuts inside. */
typedef struct ExplainedLoop {
    int32_t instruction;
    int64_t trips; /* -1: unknown */
    const char *op_name, *source;
    const char *reason; /* why it is not cut */
} ExplainedLoop;

/* Values of one name that go from one part to another. */
typedef struct ExplainedTransfer {
    int32_t sender, receiver; /* parts */
    const char *op_name, *source;
    const char *sent, *received; /* sharding of the value on both: "[data,-]"; "" where it is unknown */
    TransferTotal total;
} ExplainedTransfer;

/* Another number of micro-batches, another schedule, attention in the other form, or gathered weights "kept"
 * instead of "repeated" (plan.h).
 */
typedef struct ExplainedAlternative {
    const char *what, *value; /* "micro-batches", "32" */
    ExplainedChange change;
} ExplainedAlternative;

/* Something that the first device of a stage does without a pause of another kind. */
typedef enum ExplainedWork {
    EXPLAINED_FORWARD,
    EXPLAINED_BACKWARD,
    EXPLAINED_UPDATE,
    EXPLAINED_OTHER, /* constants, and values that depend on constants alone */
    EXPLAINED_COLLECTIVE,
    EXPLAINED_TRANSFER,
    EXPLAINED_WORKS
} ExplainedWork;

typedef struct ExplainedSpan {
    int32_t stage;
    ExplainedWork work;
    int32_t iteration; /* of its loop; of several chunks each counts for itself */
    double start, end;
} ExplainedSpan;

/* The plan as a whole. */
typedef struct ExplainedPlan {
    double step_seconds;
    int64_t peak_bytes;
    bool fits_host;         /* the hosts have room for the state that devices keep there */
    double memory_fraction; /* of a device that a plan may use */
    double bubble_fraction; /* of all devices' time, that they are idle */
    int32_t device_count, micro_batches;
    const char *schedule;
    PlanReplicas replicas;
} ExplainedPlan;

typedef struct Explanation {
    ExplainedPlan plan;
    struct {
        ExplainedStage *of;
        int32_t count;
    } stages;
    struct {
        ExplainedCut *of;
        int32_t count;
    } cuts;
    struct {
        ExplainedLoop *of; /* by instruction, without those inside of others */
        int32_t count;
    } loops;
    struct {
        ExplainedTransfer *of; /* by parts, then most bytes first */
        int32_t count;
    } transfers;
    struct {
        ExplainedAlternative *of;
        int32_t count;
    } alternatives;
    struct {
        ExplainedDecision *of; /* in the plan's order */
        int32_t count;
    } decisions;
    struct {
        ExplainedOverride *of; /* in the plan's order */
        int32_t count;
        ExplainedChange without; /* the plan without any, where it has some */
    } overrides;
    struct {
        ExplainedCollective *of; /* by stage, most time first */
        int32_t count;
    } collectives;
    struct {
        ExplainedSpan *of; /* by stage, if the timeline was requested */
        int32_t count;
    } spans;
    struct {
        int32_t simulated, left_out;
    } changes;
} Explanation;

typedef struct ExplainOptions {
    int64_t simulations; /* of changes, at most; 0: by the size of the module */
    bool with_timeline;
    bool without_changes;   /* the plan alone: no other plan is listed or simulated */
    SearchWatch *watch;     /* counts the changes simulated; or NULL */
    const StopSignal *stop; /* or NULL; AM_INTERRUPTED where it is set */
} ExplainOptions;

/* Simulates the plan, and as many changes of it as the options allow: numbers of micro-batches and schedules
 * first, then cuts, overrides and decisions, those of the busiest stages first. `root` is the plan's
 * document (plan_read). Makes contexts that `context`, the module as read, then owns. All memory is the
 * arena's. */
AmStatus explain_plan(Explanation **explanation, Arena *arena, PlanContext *context, const Plan *plan,
                      const json_t *root, const Cluster *cluster, const ExplainOptions *options,
                      AmError *error);

/* Returns the caller's reference. */
json_t *explanation_to_json(const Explanation *explanation, const Classes *classes);
void explanation_print(Text *text, const Explanation *explanation);

/* The contents of a page besides the explanation. Texts are plain. */
typedef struct ExplainPage {
    const char *title, *date;
    const char *command;        /* the command line that wrote the page; or NULL */
    const Plan *plan;           /* with bound, baselines and the description of the cluster */
    const PlanContext *context; /* of the plan's names */
} ExplainPage;

/* Prints a page that needs no other file. */
AmStatus explanation_print_html(Text *text, const Explanation *explanation, const ExplainPage *page,
                                AmError *error);

#endif
