/* Assigns values to loops: levels.
 *
 * A value that is split or partial and depends on a weight is computed in one loop only, since
 * another computation would repeat all the work: such values are joined to components by the splits
 * that pass between them. Values that depend on data, keys and constants alone (the padding mask of
 * a masked mean) are computed again in every loop that needs them. A loop runs after the loops
 * whose reduced sums it needs:
 *
 *     level(c) = max over operands of c of: level of the sum's component + 1
 *
 * If the backward pass has iterations of its own, splits that pass to it join nothing: they are
 * stacked, and its loop runs later.
 *
 * A component that needs its own reduced sum has no level: the module cannot be split exactly. If a
 * relaxation allows it, that component uses an estimate of the sum from its own micro-batch.
 */
#include "base/union_find.h"
#include "lowering/micro_batch/micro_batch_rewrite.h"

static const char *const batch_statistics = "batch_statistics_per_micro_batch";

bool micro_batch_in_loop(const MicroBatchRewrite *self, int32_t i) {
    if (rules_loop(self->rules, i)) return self->is_split[self->rules->loop_of[i]];
    for (int32_t s = self->first_state[i]; s < self->first_state[i + 1]; s++)
        if (self->states[s].kind != TIME_FULL) return true;
    return false;
}

int32_t micro_batch_component(const MicroBatchRewrite *self, int32_t i) {
    return union_find_root(self->component, i);
}

bool micro_batch_is_written(const MicroBatchRewrite *self, int32_t i) {
    return self->split_options->live[i] && self->rules->alias[i] == i &&
           !micro_batch_forwards_values(self, i);
}

/* An array that an instruction reads: a leaf of its producer. */
typedef struct InputArray {
    int32_t producer, leaf;
} InputArray;

typedef struct Levels {
    MicroBatchRewrite *rewrite;
    InputArray *inputs;      /* instruction i reads those from first_input[i] to first_input[i + 1] */
    int32_t *first_input;    /* [instruction + 1] */
    int32_t count, capacity; /* of inputs */
    int32_t *needed;         /* [component], scratch memory */
} Levels;

/* Lists the arrays that instructions read. */
static AmStatus list_inputs(Levels *self, AmError *error) {
    const MicroBatchRewrite *rewrite = self->rewrite;
    Arena *arena = rewrite->arena;
    for (int32_t i = 0; i < rewrite->rules->entry_count; i++) {
        const PlannedLoop *loop = rules_loop(rewrite->rules, i);
        bool reads_operands = !loop && !micro_batch_is_reader(rewrite, i);
        self->first_input[i] = self->count;
        if (!micro_batch_is_written(rewrite, i)) continue;
        for (int32_t l = 0; loop && l < loop->leaf_count; l++) {
            ARENA_RESERVE(arena, self->inputs, self->count, self->capacity);
            if (arena->failed) return am_fail_memory(error, self->count);
            self->inputs[self->count++] = (InputArray){loop->leaves[l].initial, loop->leaves[l].initial_leaf};
        }
        for (int32_t k = 0; reads_operands && k < rewrite->module->instructions[i].operand_count; k++)
            for (int32_t leaf = 0; leaf < micro_batch_operand_leaves(rewrite, i, k); leaf++) {
                InputArray input;
                micro_batch_operand(rewrite, i, k, leaf, &input.producer, &input.leaf);
                ARENA_RESERVE(arena, self->inputs, self->count, self->capacity);
                if (arena->failed) return am_fail_memory(error, self->count);
                self->inputs[self->count++] = input;
            }
    }
    self->first_input[rewrite->rules->entry_count] = self->count;
    return AM_OK;
}

/* ---- values that depend on a weight ---- */

/* Marks the values that depend on a weight or on optimizer state. */
static void find_weight_dependents(const Levels *levels) {
    MicroBatchRewrite *self = levels->rewrite;
    const IrRoles *roles = self->context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t i = roles->parameters[p].instruction;
        const IrParameter *parameter = &roles->parameters[p];
        const IrShape *shape = &self->module->instructions[i].shape;
        /* A frozen weight, or one of inference, has the role of a constant. */
        bool is_frozen = parameter->role == IR_ROLE_CONSTANT && shape->type != DTYPE_TUPLE &&
                         shape->rank >= 2 && dtype_is_floating(shape->type);
        self->has_weight[i] =
            parameter->role == IR_ROLE_WEIGHT || parameter->role == IR_ROLE_OPTIMIZER || is_frozen;
    }
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        if (!micro_batch_is_written(self, i)) continue;
        for (int32_t k = levels->first_input[i]; k < levels->first_input[i + 1]; k++)
            self->has_weight[i] |= self->has_weight[levels->inputs[k].producer];
        for (int32_t l = 0; l < micro_batch_given_count(self, i); l++) {
            int32_t reader = micro_batch_given_reader(self, i, l);
            if (reader >= 0) self->has_weight[reader] = self->has_weight[i];
        }
    }
}

/* ---- components ---- */

static bool is_backward(const MicroBatchRewrite *self, int32_t i) {
    int32_t loop = self->reader_loop[i]; /* what reads an array of a loop has its user's phase */
    IrPhase phase = self->context->roles->phases[loop >= 0 ? self->rules->loops[loop].instruction : i];
    return phase == IR_PHASE_BACKWARD || phase == IR_PHASE_RECOMPUTED || phase == IR_PHASE_OPTIMIZER;
}

/* Returns whether `producer` is a forward value that a backward operator reads in another loop. */
static bool is_apart(const MicroBatchRewrite *self, int32_t i, int32_t producer) {
    return self->settings.separate_backward && micro_batch_in_entry(self, producer) && is_backward(self, i) &&
           !is_backward(self, producer);
}

/* Joins the values that one loop has to compute. */
static void find_components(const Levels *levels) {
    MicroBatchRewrite *self = levels->rewrite;
    union_find_begin(self->component, self->rules->entry_count);
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        if (!micro_batch_is_written(self, i) || !micro_batch_in_loop(self, i)) continue;
        for (int32_t k = levels->first_input[i]; k < levels->first_input[i + 1]; k++) {
            int32_t producer = levels->inputs[k].producer;
            MicroBatchKind kind = micro_batch_state(self, producer, levels->inputs[k].leaf)->kind;
            bool is_joined = (kind == TIME_SPLIT && !is_apart(self, i, producer)) ||
                             (kind == TIME_PARTIAL && self->keeps_partial[i]);
            if (is_joined && self->has_weight[producer]) union_find_join(self->component, i, producer);
        }
        const PlannedLoop *loop = rules_loop(self->rules, i);
        for (int32_t l = 0; loop && l < loop->leaf_count; l++)
            if (loop->leaves[l].afterwards >= 0)
                union_find_join(self->component, i, loop->leaves[l].afterwards);
    }
}

/* ---- levels ---- */

/* Returns the number of loops that must have run before instruction i can read this array. */
static int32_t loops_before(const MicroBatchRewrite *self, int32_t i, const InputArray *input) {
    int32_t producer = input->producer;
    /* The iterations of i's loop use their own estimate of `producer`. */
    if (self->estimating >= 0 && self->is_estimated[producer] && micro_batch_in_loop(self, i) &&
        micro_batch_component(self, i) == self->estimating)
        return 0;
    switch (micro_batch_state(self, producer, input->leaf)->kind) {
    case TIME_SPLIT: {
        bool is_later = self->has_weight[producer] && (self->takes_full[i] || is_apart(self, i, producer));
        return micro_batch_level(self, producer) + is_later;
    }
    case TIME_PARTIAL: return micro_batch_level(self, producer) + !self->keeps_partial[i];
    default: {
        /* A loop of the module gives the array, in the iteration that runs this loop. The array may be the
         * same in every iteration, such as functions of weights beside those of examples. */
        int32_t loop = self->reader_loop[producer];
        bool is_in_same_iteration = loop >= 0 && self->is_split[loop] && micro_batch_in_loop(self, i) &&
                                    micro_batch_component(self, i) == micro_batch_component(self, producer);
        return is_in_same_iteration ? micro_batch_level(self, producer) : self->loops_before[producer];
    }
    }
}

/* Raises levels in one pass over all instructions. Returns whether some level rose. */
static bool raise_levels(const Levels *levels) {
    MicroBatchRewrite *self = levels->rewrite;
    bool changed = false;
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        int32_t needed = 0;
        if (!micro_batch_is_written(self, i)) continue;
        for (int32_t k = levels->first_input[i]; k < levels->first_input[i + 1]; k++) {
            int32_t before = loops_before(self, i, &levels->inputs[k]);
            if (before > needed) needed = before;
        }
        if (micro_batch_in_loop(self, i)) {
            int32_t *level = &self->level[micro_batch_component(self, i)];
            changed |= needed > *level;
            if (needed > *level) *level = needed;
            const PlannedLoop *loop = rules_loop(self->rules, i);
            for (int32_t l = 0; loop && l < loop->leaf_count; l++)
                if (loop->leaves[l].afterwards >= 0)
                    self->loops_before[loop->leaves[l].afterwards] = *level + 1;
        } else if (!micro_batch_is_reader(self, i) && needed > self->loops_before[i]) {
            self->loops_before[i] = needed;
            changed = true;
            for (int32_t l = 0; l < micro_batch_given_count(self, i); l++) {
                int32_t reader = micro_batch_given_reader(self, i, l);
                if (reader >= 0) self->loops_before[reader] = needed;
            }
        }
    }
    return changed;
}

/* Moves the forward pass after the sums of data that the backward pass reads, such as the count of targets
 * of a masked mean, which then have a loop of their own: iterations of both passes can alternate. Returns
 * whether some level rose. */
static bool postpone_forward(const Levels *levels) {
    MicroBatchRewrite *self = levels->rewrite;
    int32_t count = self->rules->entry_count, *needed = levels->needed;
    int64_t before = 0, after = 0;
    for (int32_t i = 0; i < count; i++) before += self->level[i], needed[i] = 0;
    /* The loops before each component because of values that depend on no weight. */
    for (int32_t i = 0; i < count; i++) {
        if (!micro_batch_is_written(self, i) || !micro_batch_in_loop(self, i) || !self->has_weight[i])
            continue;
        int32_t *own = &needed[micro_batch_component(self, i)];
        for (int32_t k = levels->first_input[i]; k < levels->first_input[i + 1]; k++) {
            int32_t producer = levels->inputs[k].producer;
            bool is_full = micro_batch_state(self, producer, levels->inputs[k].leaf)->kind == TIME_FULL;
            int32_t loops = is_full ? self->loops_before[producer] : micro_batch_level(self, producer);
            if (!self->has_weight[producer] && loops > *own) *own = loops;
        }
    }
    /* A forward component gets the level that a backward component, which reads from it, needs. */
    for (int32_t i = 0; i < count; i++) {
        if (!micro_batch_is_written(self, i) || !micro_batch_in_loop(self, i)) continue;
        int32_t own = needed[micro_batch_component(self, i)];
        for (int32_t k = levels->first_input[i]; k < levels->first_input[i + 1]; k++) {
            int32_t producer = levels->inputs[k].producer;
            bool is_split = micro_batch_state(self, producer, levels->inputs[k].leaf)->kind == TIME_SPLIT;
            if (!is_split || !self->has_weight[producer] || !is_apart(self, i, producer)) continue;
            int32_t *level = &self->level[micro_batch_component(self, producer)];
            if (*level < own) *level = own;
        }
    }
    for (int32_t i = 0; i < count; i++) after += self->level[i];
    return after > before;
}

/* Returns false if some component would have to run after itself. */
static bool find_levels(const Levels *levels) {
    MicroBatchRewrite *self = levels->rewrite;
    for (int32_t i = 0; i < self->rules->entry_count; i++) self->level[i] = self->loops_before[i] = 0;
    do {
        while (raise_levels(levels))
            for (int32_t i = 0; i < self->rules->entry_count; i++)
                if (self->level[i] > TIME_MOST_LEVELS) return false;
    } while (self->settings.separate_backward && postpone_forward(levels));
    return true;
}

/* ---- modules that cannot be split ---- */

/* The way by which a component needs its own results. */
typedef struct Recurrence {
    int32_t component;
    int32_t *cause; /* [instruction]: the sum, or the operator of all examples, on which it depends; -1 */
    int32_t found;  /* the cause that the component itself needs, -1 */
    int32_t user;
} Recurrence;

/* Finds the cause by which instruction i depends on the component through this array; -1: none. */
static int32_t cause_of_input(const MicroBatchRewrite *self, const Recurrence *recurrence, int32_t i,
                              const InputArray *input) {
    int32_t producer = input->producer;
    bool is_own =
        micro_batch_in_loop(self, producer) && micro_batch_component(self, producer) == recurrence->component;
    switch (micro_batch_state(self, producer, input->leaf)->kind) {
    case TIME_PARTIAL: return is_own && !self->keeps_partial[i] ? producer : -1;
    case TIME_SPLIT: return is_own && self->takes_full[i] ? i : -1;
    default: return recurrence->cause[producer];
    }
}

/* Follows the component's reduced sums; `found` is the instruction by which they reach it again. */
static AmStatus find_recurrence(const Levels *levels, Recurrence *recurrence, AmError *error) {
    MicroBatchRewrite *self = levels->rewrite;
    recurrence->cause = ARENA_ARRAY(self->arena, int32_t, self->rules->entry_count + 1);
    if (!recurrence->cause) return am_fail_memory(error, self->rules->entry_count);
    recurrence->found = -1;
    for (int32_t i = 0; i < self->rules->entry_count; i++) recurrence->cause[i] = -1;
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        if (!micro_batch_is_written(self, i)) continue;
        for (int32_t k = levels->first_input[i]; k < levels->first_input[i + 1] && recurrence->cause[i] < 0;
             k++)
            recurrence->cause[i] = cause_of_input(self, recurrence, i, &levels->inputs[k]);
        for (int32_t l = 0; !micro_batch_in_loop(self, i) && l < micro_batch_given_count(self, i); l++) {
            int32_t reader = micro_batch_given_reader(self, i, l);
            if (reader >= 0) recurrence->cause[reader] = recurrence->cause[i];
        }
        if (!micro_batch_in_loop(self, i)) continue;
        bool is_own = micro_batch_component(self, i) == recurrence->component;
        if (is_own && recurrence->cause[i] >= 0 && recurrence->found < 0) {
            recurrence->found = recurrence->cause[i];
            recurrence->user = i;
        }
        recurrence->cause[i] = -1;
    }
    return AM_OK;
}

/* Lets the component use estimates of what depends on its own sums, if that is allowed. */
static AmStatus estimate(MicroBatchRewrite *self, const Recurrence *recurrence, AmError *error) {
    int32_t cause = recurrence->found;
    bool is_allowed = self->settings.relaxations >> RELAXATION_BATCH_STATISTICS_PER_MICRO_BATCH & 1;
    if (self->takes_full[cause])
        return micro_batch_refuse(self, cause, "needs all examples of the batch at once", NULL, error);
    if (!is_allowed || self->estimating >= 0)
        return micro_batch_refuse(
            self, cause, "combines the whole batch, and values of each example depend on it",
            micro_batch_state(self, cause, 0)->reduction == SBP_ADD ? batch_statistics : NULL, error);
    self->estimating = recurrence->component;
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        int32_t from = recurrence->cause[i];
        bool is_own_sum = micro_batch_is_written(self, i) && micro_batch_in_loop(self, i) &&
                          micro_batch_component(self, i) == recurrence->component &&
                          micro_batch_state(self, i, 0)->kind == TIME_PARTIAL && !rules_loop(self->rules, i);
        bool is_of_conditional = self->reader_conditional[i] >= 0 || rules_conditional(self->rules, i);
        if (from >= 0 && (self->takes_full[from] || rules_loop(self->rules, i) || is_of_conditional))
            continue;
        if (is_own_sum && micro_batch_state(self, i, 0)->reduction != SBP_ADD) continue;
        self->is_estimated[i] = from >= 0 || is_own_sum;
    }
    return AM_OK;
}

AmStatus micro_batch_find_levels(MicroBatchRewrite *self, AmError *error) {
    int32_t count = self->rules->entry_count;
    Levels levels = {.rewrite = self,
                     .first_input = ARENA_ARRAY(self->arena, int32_t, count + 1),
                     .needed = ARENA_ARRAY(self->arena, int32_t, count + 1)};
    if (self->arena->failed) return am_fail_memory(error, count);
    TRY(list_inputs(&levels, error));
    find_weight_dependents(&levels);
    find_components(&levels);
    self->estimating = -1;
    while (!find_levels(&levels)) {
        Recurrence recurrence = {.found = -1};
        int32_t late = -1;
        for (int32_t i = 0; i < count && recurrence.found < 0; i++) {
            if (self->level[i] <= TIME_MOST_LEVELS / 2 || micro_batch_component(self, i) != i) continue;
            if (!micro_batch_is_written(self, i) || !micro_batch_in_loop(self, i)) continue;
            if (late < 0) late = i;
            recurrence.component = i;
            TRY(find_recurrence(&levels, &recurrence, error));
        }
        if (recurrence.found < 0 || micro_batch_component(self, recurrence.component) == self->estimating)
            return micro_batch_refuse(self, recurrence.found < 0 ? late : recurrence.found,
                                      "depends on the whole batch by way of other sums over it", NULL, error);
        TRY(estimate(self, &recurrence, error));
    }
    return AM_OK;
}
