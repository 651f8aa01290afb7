/* Targets: the systems that run plans, and the plans that each of them can run.
 *
 * One table states the capabilities. `search --for` restricts the space by it, `export` refuses plans by it,
 * and docs/commands.md prints it. Checks of single tensors are in target_checks.h.
 */
#ifndef PLANNERS_TARGETS_TARGET_H
#define PLANNERS_TARGETS_TARGET_H

#include "propagation/plan/plan.h"

typedef enum Target {
    TARGET_AUTOMAP,
    TARGET_JAX,
    TARGET_HLO,
    TARGET_SHARDY,
    TARGET_TORCH,
    TARGET_MEGATRON,
    TARGET_TORCHTITAN,
    TARGET_COUNT
} Target;

typedef enum TargetStages {
    TARGET_ONE_STAGE,
    TARGET_ALIKE_STAGES, /* all on meshes of the same axes and sizes */
    TARGET_ANY_STAGES
} TargetStages;

/* Parts of a transformer layer that trainers recompute selectively, bits of a set
 * (planners/baselines/layer_modules.h). */
typedef enum LayerModule {
    LAYER_CORE_ATTENTION = 1,
    LAYER_NORMS = 2,
    LAYER_MLP = 4,
    LAYER_LIGHT_OPERATORS = 8 /* not together with others */
} LayerModule;

enum { TARGET_SELECTIVE = 7 };

/* Plans that may have optimizer state in the host's memory. */
typedef enum TargetOffload {
    TARGET_NO_OFFLOAD,
    TARGET_OFFLOADS_ONE_PROGRAM, /* one stage and micro-batch, without recomputation */
    TARGET_OFFLOADS
} TargetOffload;

typedef struct TargetRow {
    const char *name;  /* of --for and --format */
    const char *alias; /* another one, or NULL */
    const char *form;  /* in messages: "shardings of HLO" */
    TargetStages stages;
    bool has_micro_batches; /* more than one */
    bool has_equal_shards;  /* equal and contiguous */
    bool has_leading_batch; /* batches are cut along their first dimension */
    bool has_own_examples;  /* operators of a micro-batch have its examples alone, but for sums */
    bool has_plain_pools;   /* gradients of overlapping windows may not be split in space */
    bool splits_layers;     /* stacked parameters may have a plan for each layer (ir/layers/layers.h) */
    TargetOffload offload;
    uint32_t schedules; /* bits by ScheduleKind, of several stages */
    /* The trainer of transformers that runs the target: Megatron-LM's splits alone, cut between whole layers,
     * searched by strategies; or NULL. */
    const char *trainer;
    uint32_t zero_levels; /* bits: the levels of ZeRO that the trainer has, 0 among them */
    bool recomputes_some; /* the first layers of each part; else all layers, or none */
    /* LayerModule: sets of parts of layers that the trainer recomputes selectively, the least work first; 0
     * ends the list. */
    uint8_t selective[TARGET_SELECTIVE];
} TargetRow;

const TargetRow *target_row(Target target);
/* Returns whether XLA compiles the programs of the target. It runs attention as separate operators. */
static inline bool target_is_xla(Target target) {
    return target == TARGET_JAX || target == TARGET_HLO || target == TARGET_SHARDY;
}
/* Returns name k of all names: those of the targets in order, then the aliases; NULL beyond the last. */
const char *target_name(int32_t k);
enum { TARGET_NAMES = TARGET_COUNT + 1 };
/* Returns the target of name k. */
Target target_of_name(int32_t k);

/* Returns AM_ERROR_INFEASIBLE, with the reason, for a plan whose stages, micro-batches, schedule, shares or
 * devices the target cannot run. Shardings of tensors are not checked. */
AmStatus target_check_plan(Target target, const Plan *plan, AmError *error);
/* Returns AM_ERROR_INFEASIBLE, with the reason, if the target can run no plan of the module. */
AmStatus target_check_module(Target target, const PlanContext *context, AmError *error);

#endif
