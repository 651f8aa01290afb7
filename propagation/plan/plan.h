/* A plan: the distribution of a training step on a cluster, and its file.
 *
 * Lowering is a pure function of the module and of `stages`, `micro_batches`, `schedule` and
 * `relaxations`. Other fields are derived for readers or describe the search. Memory is the
 * caller's arena.
 */
#ifndef PROPAGATION_PLAN_PLAN_H
#define PROPAGATION_PLAN_PLAN_H

#include <jansson.h>
#include <string.h>

#include "ir/analysis/roles.h"
#include "ir/attention/attention.h"
#include "ir/layers/layers.h"
#include "propagation/plan/pipeline_schedule.h"
#include "propagation/plan/split_options.h"
#include "propagation/sharding/mesh.h"
#include "propagation/sharding/sbp.h"

/* The subject of an entry: all tensors and operators, or the storage of values of one role
 * (storage.h). */
typedef enum PlanEntryKind { PLAN_COMPUTE, PLAN_WEIGHTS, PLAN_GRADIENTS, PLAN_OPTIMIZER } PlanEntryKind;
#define PLAN_ENTRY_KINDS 4
const char *plan_entry_kind_name(PlanEntryKind kind); /* "compute", "weights", ... */

/* One entry of an axis priority: this class is split over the axis.
 * PLAN_ANY_CLASS ("*"), storage only: of each tensor the largest free dimension
 * that divides. Compute entries come first. */
#define PLAN_ANY_CLASS (-1)
typedef struct PlanEntry {
    int32_t class_index; /* in Classes, or PLAN_ANY_CLASS */
    PlanEntryKind kind;
} PlanEntry;

typedef struct PlanAxisPriority {
    int32_t count;
    PlanEntry *entries;
} PlanAxisPriority;
static inline bool plan_axis_priority_equal(const PlanAxisPriority *a, const PlanAxisPriority *b) {
    if (a->count != b->count) return false;
    for (int32_t e = 0; e < a->count; e++)
        if (a->entries[e].class_index != b->entries[e].class_index ||
            a->entries[e].kind != b->entries[e].kind)
            return false;
    return true;
}

/* A decision about one instruction that overrides the axis priorities: the factor it
 * splits on each axis (-1 none, PLAN_NO_OVERRIDE by the axis priorities), or the
 * state its result is stored in. Where that is pinned, its operator is split to give the state if it can, and
 * the result is resharded where it is computed: its users find it in no other state. */
#define PLAN_NO_OVERRIDE (-2)
typedef struct PlanOverride {
    int32_t instruction;
    bool has_factors, has_states;
    bool is_pinned; /* with has_states */
    int32_t factors[MESH_MAX_AXES];
    SbpState states;
} PlanOverride;

/* When a value that users need in another state is brought into it. */
typedef enum ReshardPlace {
    PLAN_BEFORE,  /* of an array that a loop reads unchanged: once, before the loop */
    PLAN_KEPT,    /* at its first use, and kept for all others, backward included */
    PLAN_REPEATED /* anew for the forward and for the backward pass, with what that computes once more */
} ReshardPlace;
#define RESHARD_PLACES 3
const char *reshard_place_name(ReshardPlace place); /* "before", ... */

/* The place of one value's resharding, where it is not the default (storage.h). */
typedef struct PlanReshard {
    int32_t instruction;
    ReshardPlace place;
} PlanReshard;

/* Forward operators that the backward pass computes again (recompute.h), in instructions of the module as
 * read. */
typedef struct PlanRecomputation {
    int32_t (*ranges)[2]; /* [range_count] first, end; disjoint */
    int32_t range_count;
    int32_t *saved; /* [saved_count] operators in the ranges whose values are kept nevertheless, ascending */
    int32_t saved_count;
} PlanRecomputation;

/* Replicas of the whole model, each on the devices of a stage of its own, with a mesh of its own. Of every
 * `sum of parts` rows of the batch replica r has parts[r] (lowering/micro_batch/emit_replicas.c). A parameter
 * and its optimizer state are on one replica, which gets the gradients of the others and sends them the new
 * value. */
typedef struct PlanReplicas {
    const int32_t *parts; /* [count] */
    int32_t count;        /* 0: the plan has none */
} PlanReplicas;
static inline bool plan_replicas_equal(const PlanReplicas *a, const PlanReplicas *b) {
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->parts, b->parts, sizeof *a->parts * (size_t)a->count) == 0);
}

/* Appends such as "2 replicas with 10 + 6 of 16 examples". */
void plan_replicas_append(Text *text, const PlanReplicas *replicas);

typedef struct PlanStage {
    int32_t (*ranges)[2]; /* [range_count] first, end of canonical instructions */
    int32_t range_count;
    int32_t *devices; /* [mesh.device_count] indices in the cluster */
    Mesh mesh;
    bool is_even; /* no dimension is cut unevenly, between granules or in blocks: what does not divide is
                     whole */
    bool keeps_gathered_weights; /* weights are gathered once a step and kept for the backward pass; else
                            values that storage entries keep in shards are gathered again, also for
                            recomputation */
    bool rounds_parts; /* addends of a 16-bit product are rounded before the sum over devices, which then
                          moves half the bytes; else they stay in f32 */
    bool all_reduces_gradients; /* on axes with storage entries: an all_reduce in place of a
                           reduce_scatter, after which each device keeps its shard */
    bool reduces_in_f32;        /* 16-bit sums on such axes are converted to f32 for the reduction alone */
    bool offloads_optimizer;    /* arrays of role optimizer are in the host's memory
                                   (lowering/offload/offload.h) */
    int64_t kept_bytes;         /* that the training system holds on each device outside of the step */
    PlanAxisPriority axis_priorities[MESH_MAX_AXES];
    PlanOverride *overrides;
    int32_t override_count;
    PlanReshard *reshard;
    int32_t reshard_count;
    PlanRecomputation recompute;
} PlanStage;

/* Searches keep a row for each device of each plan: the bits share a word. */
typedef struct PlanDevicePrediction {
    int64_t peak_bytes, weights_bytes, gradients_bytes, optimizer_bytes, activation_bytes;
    int64_t channel_bytes;   /* slots of transfers that come in, besides */
    int64_t host_bytes : 63; /* of the host's memory, besides */
    bool is_even : 1;        /* by a simulation, all devices of the stage have this memory */
    double compute_seconds, communication_seconds, idle_seconds;
} PlanDevicePrediction;

/* The parts of a search that find plans: name, description. */
#define PLAN_ORIGIN_LIST(X)                                                                \
    X(BASELINE, "baseline", "a standard baseline, unchanged")                              \
    X(POLICY, "policy", "the trained policy, before annealing and polish")                 \
    X(SINGLE_STAGE, "single_stage", "the search of one-stage plans on one mesh")           \
    X(STAGES, "stages", "the dynamic program over cuts, devices and strategies of stages") \
    X(AGENT, "agent", "the cuts that the trained agent proposes")                          \
    X(IMPROVEMENT, "improvement", "local changes of a plan of another part")               \
    X(GIVEN, "given", "the initial plan, unchanged")                                       \
    X(PAPER, "paper", "the rules and rewards of Auto-MAP")
typedef enum PlanOrigin {
    PLAN_ORIGIN_UNKNOWN,
#define PLAN_ORIGIN_ENUM(name, text, help) PLAN_ORIGIN_##name,
    PLAN_ORIGIN_LIST(PLAN_ORIGIN_ENUM)
#undef PLAN_ORIGIN_ENUM
        PLAN_ORIGIN_COUNT
} PlanOrigin;
/* Returns the name in plan files; NULL for PLAN_ORIGIN_UNKNOWN. */
const char *plan_origin_name(PlanOrigin origin);

/* Exact rewritings of the module as read, which a plan chooses before all else: its instruction numbers are
 * those of the rewritten module. */
typedef struct PlanRewrites {
    bool splits_layers;        /* one parameter for each layer of a stack (ir/layers/layers.h) */
    bool undoes_recomputation; /* then the source recomputes nothing (ir/recomputation/undo.h) */
    bool fuses_attention;      /* then each attention operator is one fusion (ir/attention/attention.h) */
} PlanRewrites;
static inline bool plan_rewriting_is_none(PlanRewrites rewriting) {
    return !rewriting.splits_layers && !rewriting.undoes_recomputation && !rewriting.fuses_attention;
}
static inline bool plan_rewriting_equal(PlanRewrites a, PlanRewrites b) {
    return a.splits_layers == b.splits_layers && a.undoes_recomputation == b.undoes_recomputation &&
           a.fuses_attention == b.fuses_attention;
}

typedef struct Plan {
    const char *source; /* the file that it was read from, for errors; NULL: none */
    const char *module_name, *module_sha256;
    int32_t module_instructions;
    const char *carried_sha256; /* module of the file, if its names were carried to another one; or NULL */
    const char *cluster_name, *cluster_sha256;
    json_t *cluster_description; /* borrowed from the cluster, or owned by the plan file (see plan_read) */
    int32_t micro_batches;
    const char *schedule; /* "none" for one stage, "gpipe", "1f1b", ... for several */
    PlanStage *stages;
    int32_t stage_count;
    PlanReplicas replicas; /* one for each stage, all of which have the same ranges */
    const char **relaxations;
    int32_t relaxation_count;
    double predicted_step_seconds;
    PlanDevicePrediction *predicted; /* per device across stages, in order */
    int32_t device_count;
    bool is_for_jax; /* its memory is that of automap_jax.run, which holds less than automap's program */
    bool is_changed; /* read from a file whose decisions differ from those of `predicted` */
    /* how it was found */
    const char *searcher, *space;
    PlanOrigin origin;                       /* the part of the search that found it */
    double found_seconds[PLAN_ORIGIN_COUNT]; /* step of the fastest plan of each part; 0: it found none */
    uint64_t seed;
    int64_t evaluations;
    double bound_seconds;              /* NAN: none */
    const char *bound;                 /* "lower", "exact" or NULL */
    json_t *settings;                  /* object or NULL */
    const struct PlanContext *context; /* the context of its names; NULL: that of its use */
} Plan;

/* The context of a plan's names: one canonical module and its derived properties.
 *
 *     source     has the module as read
 *     rewritten  has the source's module in another form (plan_context_rewrite)
 *     derived    has the module of one of these two with micro-batches or recomputation
 *
 * Sources and rewritten contexts are primary. A primary context owns those that are derived from it.
 * Plans refer to a rewritten context as to a source: their numbers are by its instructions.
 */
typedef struct PlanContext {
    Arena arena;      /* owns rules, classes and roles */
    IrModule *module; /* as read */
    IrModule *canonical;
    char sha256[65]; /* of the module as read */
    IrRoles *roles;
    Rules *rules;
    Classes *classes;
    SplitOptions *split_options; /* the options of an assignment */
    IrAttentions *attention;     /* of the canonical module; NULL until it is looked for */

    /* Derived contexts (micro_batches.h, recompute.h). */
    const struct PlanContext *primary; /* from which this one is derived; NULL: this one is primary */
    const struct PlanContext *base; /* has the module that was changed: `primary`, or one that recomputes */
    int32_t *original; /* [instruction]: its number in `primary`, or in `unfused` where attention is fused */
    int32_t micro_batches;        /* 1: recomputation alone; 0: not derived */
    uint32_t relaxations;         /* bits by Relaxation: those that the micro-batches needed */
    uint32_t allowed_relaxations; /* bits by Relaxation: those that the settings allowed */
    bool separate_backward;       /* the requested setting */
    PlanRecomputation recompute;  /* as in PlanStage, across stages */
    PlanReplicas replicas;        /* as in Plan */
    int32_t *replica_of; /* [instruction]: the replica that computes it for itself, or -1; NULL: there are
                            none */

    /* Rewritten contexts. */
    struct PlanContext *source; /* has the module as read and owns this one; NULL: not rewritten */
    PlanRewrites rewriting;
    const IrLayerMap *layer_map; /* parameters and outputs of `source`; NULL: they are the same */
    struct PlanContext *unfused; /* has the same rewriting with unfused attention; NULL: nothing is fused */

    /* Sources. */
    const char *layers_reason; /* why the layers were not split; or NULL */
    bool keeps_data_apart;     /* new micro-batches combine no examples of the data (micro_batches.h) */
    bool keeps_examples_apart; /* new micro-batches run operators on their own examples alone */

    /* The contexts that this one owns, in lists linked by `next_split`. */
    struct PlanContext *splits;     /* is the first one derived from this one */
    struct PlanContext *rewritten;  /* is the first one rewritten from this one */
    struct PlanContext *next_split; /* follows this one in the list of its owner */
} PlanContext;

/* Returns the file of the module, for errors. */
static inline const char *plan_context_file(const PlanContext *context) {
    return context->module->source;
}

/* Returns the number of instructions of the canonical module. */
static inline int32_t plan_context_count(const PlanContext *context) {
    return context->canonical->instruction_count;
}

/* Returns an instruction of the canonical module. */
static inline const IrInstruction *plan_context_instruction(const PlanContext *context, int32_t i) {
    return &context->canonical->instructions[i];
}

/* Returns a parameter of the entry computation. */
static inline const IrParameter *plan_context_parameter(const PlanContext *context, int32_t k) {
    return &context->roles->parameters[k];
}

/* Returns the global shape of a parameter. */
static inline const IrShape *plan_context_parameter_shape(const PlanContext *context, int32_t k) {
    return &plan_context_instruction(context, plan_context_parameter(context, k)->instruction)->shape;
}

/* Returns whether an instruction computes a value of the forward pass that is needed. */
static inline bool plan_context_in_forward(const PlanContext *context, int32_t i) {
    return context->split_options->live[i] && context->roles->phases[i] == IR_PHASE_FORWARD;
}

/* Returns the primary context of a context, whose instructions number plans. */
static inline const PlanContext *plan_context_primary(const PlanContext *context) {
    return context->primary ? context->primary : context;
}
/* Returns the number of micro-batches of a context's module. */
static inline int32_t plan_context_micro_batches(const PlanContext *context) {
    return context->primary ? context->micro_batches : 1;
}
/* Returns the context of the module as read, whose parameters files and callers name. */
static inline const PlanContext *plan_context_source(const PlanContext *context) {
    context = plan_context_primary(context);
    return context->source ? context->source : context;
}
/* Returns the part of the source's parameter, or output, that parameter or output k of a context is. */
static inline IrLayerPart plan_source_parameter(const PlanContext *context, int32_t k) {
    const IrLayerMap *map = plan_context_primary(context)->layer_map;
    return map ? map->parameters[k] : (IrLayerPart){k, 0, -1};
}
static inline IrLayerPart plan_source_output(const PlanContext *context, int32_t k) {
    const IrLayerMap *map = plan_context_primary(context)->layer_map;
    return map ? map->outputs[k] : (IrLayerPart){k, 0, -1};
}
/* Returns the schedule of a plan; gpipe for one stage. */
static inline ScheduleKind plan_schedule(const Plan *plan) {
    ScheduleKind kind = plan->schedule ? schedule_kind_find(plan->schedule) : SCHEDULE_GPIPE;
    return kind == SCHEDULE_KINDS ? SCHEDULE_GPIPE : kind;
}

/* Returns whether iterations of the backward pass alternate with those of the forward pass. */
static inline bool plan_interleaves(const Plan *plan) {
    return plan_schedule(plan) != SCHEDULE_GPIPE;
}

/* Returns the context that a plan is used with. */
static inline const PlanContext *plan_context_used(const Plan *plan, const PlanContext *context) {
    return plan && plan->context ? plan->context : context;
}

/* Returns the name of the roles file that is read beside a model (model.*), whether or not it is there; NULL
 * for files of other names. */
const char *plan_context_roles_path(Arena *arena, const char *path);
/* Returns the exporter's roles file in the model's folder, where the model is the exporter's own (model.*)
 * and the file is there; else NULL. */
const char *plan_context_roles(Arena *arena, const char *path);
/* Reads the module and derives all of the above. `roles_path`: --roles, or NULL
 * for the model.roles.json beside `path` where there is one. */
AmStatus plan_context_read(PlanContext **context, const char *path, const char *roles_path, AmError *error);
/* Derives the context of a module in memory, which the context then owns, on failure too. `roles_path` may
 * be NULL. */
AmStatus plan_context_of(PlanContext **context, IrModule *module, const char *roles_path, AmError *error);
/* Reads the module in data[0..length), which a NUL follows, without a file of roles, and derives its
 * context. `source` names it in errors. */
AmStatus plan_context_parse(PlanContext **context, const char *source, const char *data, int64_t length,
                            AmError *error);
void plan_context_free(PlanContext *context);
/* Creates the context of the rewritten module, made at its first use and owned by `source`, which is as read;
 * `source` itself where nothing is rewritten. sha256, and thus the module of plans, is the source's. Several
 * threads may fuse attention at once, each in another unfused context. AM_ERROR_INFEASIBLE: the module cannot
 * be rewritten so; the text says why. */
AmStatus plan_context_rewrite(PlanContext **rewritten, PlanContext *source, PlanRewrites rewriting,
                              AmError *error);
/* Releases a rewritten context, to which no plan and no other context may refer. plan_context_rewrite() makes
 * it again. */
void plan_context_forget(PlanContext *rewritten);
/* Attention as separate operators or as one (ir/attention/attention.h). */
typedef enum AttentionChoice { ATTENTION_AUTO, ATTENTION_FUSED, ATTENTION_UNFUSED } AttentionChoice;
#define ATTENTION_CHOICES 3
const char *attention_choice_name(AttentionChoice choice); /* "auto", ... */
/* Finds the attention operators of the module that was read: context->attention. */
AmStatus plan_context_find_attention(PlanContext *context, AmError *error);
/* Creates the context of the same module with each attention operator as one fusion, as
 * plan_context_rewrite() makes it; `context` itself where there is no operator, or where it is fused. */
AmStatus plan_context_fuse(PlanContext **fused, PlanContext *context, AmError *error);
/* Moves the roles of a module that was made from that of `from`: `original` [instruction] has the instruction
 * of `from` which each one serves. Parameters and outputs keep their numbers; `repeats` stays that of
 * `from`. */
AmStatus plan_context_move_roles(IrRoles **roles, Arena *arena, const PlanContext *from,
                                 const IrModule *module, const int32_t *original, AmError *error);

/* Writes the plan as JSON (the caller's reference), with the derived parts. */
AmStatus plan_to_json(json_t **root, const Plan *plan, const PlanContext *context, AmError *error);
/* Sets *root to the plan as JSON (the caller's reference) without the parts that follow from the stages
 * ("parameters" and "decisions"). */
AmStatus plan_stages_to_json(json_t **root, const Plan *plan, const PlanContext *context, AmError *error);
/* Writes the JSON of plan_to_json() to a file. */
AmStatus plan_write_json(const json_t *root, const char *path, AmError *error);
AmStatus plan_write(const Plan *plan, const PlanContext *context, const char *path, AmError *error);
/* Reads a plan and checks it against the module, which is `context` as read: another module is
 * refused with both names and hashes. The context for using the plan is plan->context: that of its
 * micro-batches, which `context` owns. cluster_description stays valid while *root is held. */
AmStatus plan_read(Plan **plan, json_t **root, Arena *arena, PlanContext *context, const char *path,
                   AmError *error);
/* Reads a plan from the text of a file in memory and checks it against the module, as plan_read().
 * `source` names it in errors. */
AmStatus plan_parse(Plan **plan, json_t **root, Arena *arena, PlanContext *context, const char *source,
                    const char *data, int64_t length, AmError *error);
/* Reads the JSON of plan_stages_to_json(), without assigning the stages. */
AmStatus plan_stages_from_json(Plan **plan, json_t *root, Arena *arena, PlanContext *context,
                               const char *source, AmError *error);

#endif
