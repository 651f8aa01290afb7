/* Micro-batches: time as one more mesh axis.
 *
 * A module is rewritten, exactly, so that its step runs in M iterations over parts of the batch.
 * Values that are split over time are computed once per iteration, partial sums are accumulated
 * over the iterations, and other values are computed once before or after the iterations. The
 * result is an ordinary module with one or more loops of M iterations, which all later stages of
 * the program plan, price and run as any other.
 */
#ifndef LOWERING_MICRO_BATCH_MICRO_BATCHES_H
#define LOWERING_MICRO_BATCH_MICRO_BATCHES_H

#include "base/system/stop.h"
#include "propagation/plan/plan.h"

#define MICRO_BATCHES_MOST 65536

/* Changes of meaning that a user may allow; a plan states them. */
#define RELAXATION_LIST(X)                                                                       \
    X(BATCH_STATISTICS_PER_MICRO_BATCH, "batch_statistics_per_micro_batch",                      \
      "sums over the batch that the same step computes with are estimated from one micro-batch") \
    X(ROUNDED_SUMS, "rounded_sums",                                                              \
      "sums of 16-bit values over micro-batches are rounded to 16 bits after each of them")
typedef enum Relaxation {
#define RELAXATION_ENUM(name, text, help) RELAXATION_##name,
    RELAXATION_LIST(RELAXATION_ENUM)
#undef RELAXATION_ENUM
        RELAXATION_COUNT
} Relaxation;
const char *relaxation_name(Relaxation relaxation);
/* Returns RELAXATION_COUNT for an unknown name. */
Relaxation relaxation_from_name(const char *name);

typedef struct MicroBatchSettings {
    int32_t micro_batches;        /* >= 1 */
    PlanRecomputation recomputed; /* before the batch is cut up */
    uint32_t relaxations;         /* bits by Relaxation */
    /* The backward pass has iterations of its own, after all of the forward pass: fill and drain of
     * a pipeline. Values between the passes are kept for all iterations. Without effect if the
     * passes cannot be distinguished. */
    bool separate_backward;
    PlanReplicas replicas;  /* before the batch is cut up */
    const StopSignal *stop; /* or NULL; once it requests a stop, contexts are not made */
} MicroBatchSettings;

/* Creates the context of the module `base` rewritten in micro-batches. It refers to `base`, which must
 * outlive it and is as read, or with recomputation: sha256, and thus plans, are the original's; original[i]
 * is the instruction of the original from which i was derived. Parameters and outputs keep their numbers.
 * AM_ERROR_INFEASIBLE: the module cannot be split exactly; the message names the operator, its source line
 * and the relaxation that would allow it. AM_INTERRUPTED: by settings->stop. */
AmStatus plan_context_split(PlanContext **split, const PlanContext *base, const MicroBatchSettings *settings,
                            AmError *error);

/* Checks that values of one example depend on no other examples, in `parts` parts of the batch: each part may
 * run the model alone. Sums that become scalars of the data, such as counts of targets, are allowed.
 * `primary` is as read. AM_ERROR_INFEASIBLE: the message names the operator that mixes examples. */
AmStatus micro_batches_check_apart(const PlanContext *primary, int32_t parts, AmError *error);
/* Checks the same of values of the data alone, which depend on no weight. */
AmStatus micro_batches_check_data(const PlanContext *primary, int32_t parts, AmError *error);
/* Checks that operators of a micro-batch need no examples of others but for sums over the batch, in `parts`
 * parts. dimensions [parameter] becomes the dimension of the examples of data, -1 for what each micro-batch
 * reads whole. AM_ERROR_INFEASIBLE: the message names the operator that mixes examples. */
AmStatus micro_batches_check_examples(int32_t *dimensions, const PlanContext *primary, int32_t parts,
                                      AmError *error);

/* Creates the context of the module with recomputation, whose batch may then be split. AM_INTERRUPTED: by
 * `stop`, which may be NULL. */
AmStatus plan_context_recompute(PlanContext **context, const PlanContext *primary,
                                const PlanRecomputation *recomputed, const StopSignal *stop, AmError *error);

/* Creates the context of the module of `base`, which is as read, in replicas (emit_replicas.c): an ordinary
 * module without additional loops. AM_ERROR_INFEASIBLE: the batch cannot be divided so exactly; the message
 * names the operator. AM_INTERRUPTED: by `stop`, which may be NULL. */
AmStatus plan_context_replicate(PlanContext **context, const PlanContext *base, const PlanReplicas *replicas,
                                const StopSignal *stop, AmError *error);

/* Returns whether both recompute the same operators. */
bool recomputation_is_same(const PlanRecomputation *a, const PlanRecomputation *b);

/* Finds the context with the recomputation and the micro-batches of `settings`, made on first use and
 * owned by `primary`, which threads may not share meanwhile; `primary` itself where there is neither. */
AmStatus plan_context_for(const PlanContext **context, PlanContext *primary,
                          const MicroBatchSettings *settings, AmError *error);

/* Gives `primary` a context with recomputation or micro-batches of it, which it then owns and
 * plan_context_for() finds. */
void plan_context_adopt(PlanContext *primary, PlanContext *split);
/* Releases the contexts that `primary` has adopted since primary->splits was `known` (NULL: all), but for
 * those in `used` and those that they were made from; no other plan may refer to one. */
void plan_context_keep_only(PlanContext *primary, const PlanContext *known, const PlanContext *const *used,
                            int32_t count);
/* Returns the context that `primary` has adopted with this recomputation, or that of `base`, which is
 * `primary` or has a recomputation, in micro-batches. NULL: there is none. */
const PlanContext *plan_context_find_recomputed(const PlanContext *primary,
                                                const PlanRecomputation *recomputed);
const PlanContext *plan_context_find_split(const PlanContext *base, const MicroBatchSettings *settings);

/* Sets the plan's relaxations, by name, to the context's. */
AmStatus micro_batches_state_relaxations(Plan *plan, Arena *arena, const PlanContext *context,
                                         AmError *error);

/* Writes and reads instruction numbers of plan files, which are the original's. */
int32_t plan_number_of(const PlanContext *context, int32_t instruction);
int32_t plan_instruction_of(const PlanContext *context, int32_t number); /* -1: none serves it */

/* Returns the largest useful number of micro-batches: the size of the batch; 1 without a batch. */
int64_t micro_batches_limit(const PlanContext *primary);
/* Returns the dimension of a data parameter that micro-batches cut; -1 for others. */
int32_t micro_batches_dimension(const PlanContext *primary, int32_t parameter);

/* Numbers of micro-batches that a search tries, returned with their count: the `requested` one, or,
 * where that is 0, 1, 2, 4, ... as far as they divide the batch. */
enum { MICRO_BATCHES_MOST_NUMBERS = 17 };
int32_t micro_batches_numbers(int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], const PlanContext *primary,
                              int32_t requested);

#endif
