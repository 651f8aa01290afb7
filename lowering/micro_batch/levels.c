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
        if (self->states[s].kind != TIME_WHOLE) return true;
    return false;
}

int32_t micro_batch_component(const MicroBatchRewrite *self, int32_t i) {
    return union_find_root(self->component, i);
}

bool micro_batch_is_written(const MicroBatchRewrite *self, int32_t i) {
    return self->split_options->live[i] && self->rules->alias[i] == i && !micro_batch_is_plumbing(self, i);
}

/* Calls `visit` for every array that instruction i takes. */
typedef void Visit(MicroBatchRewrite *self, int32_t i, int32_t producer, int32_t leaf, void *data);

static void visit_operands(MicroBatchRewrite *self, int32_t i, Visit *visit, void *data) {
    const PlannedLoop *loop = rules_loop(self->rules, i);
    for (int32_t l = 0; loop && l < loop->leaf_count; l++)
        visit(self, i, loop->leaves[l].initial, loop->leaves[l].initial_leaf, data);
    if (loop || micro_batch_is_reader(self, i)) return;
    for (int32_t k = 0; k < self->module->instructions[i].operand_count; k++)
        for (int32_t leaf = 0; leaf < micro_batch_operand_leaves(self, i, k); leaf++) {
            int32_t producer, producer_leaf;
            micro_batch_operand(self, i, k, leaf, &producer, &producer_leaf);
            visit(self, i, producer, producer_leaf, data);
        }
}

/* ---- what depends on a weight ---- */

static void derive(MicroBatchRewrite *self, int32_t i, int32_t producer, int32_t leaf, void *data) {
    (void)leaf;
    (void)data;
    self->is_derived[i] |= self->is_derived[producer];
}

static void find_derived(MicroBatchRewrite *self) {
    const IrRoles *roles = self->context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t i = roles->parameters[p].instruction;
        const IrParameter *parameter = &roles->parameters[p];
        const IrShape *shape = &self->module->instructions[i].shape;
        /* A frozen weight, or one of inference, has the role of a constant. */
        bool is_frozen = parameter->role == IR_ROLE_CONSTANT && shape->type != DTYPE_TUPLE &&
                         shape->rank >= 2 && dtype_is_floating(shape->type);
        self->is_derived[i] =
            parameter->role == IR_ROLE_WEIGHT || parameter->role == IR_ROLE_OPTIMIZER || is_frozen;
    }
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        if (!micro_batch_is_written(self, i)) continue;
        visit_operands(self, i, derive, NULL);
        for (int32_t l = 0; l < micro_batch_given_count(self, i); l++) {
            int32_t reader = micro_batch_given_reader(self, i, l);
            if (reader >= 0) self->is_derived[reader] = self->is_derived[i];
        }
    }
}

/* ---- components ---- */

static bool is_backward(const MicroBatchRewrite *self, int32_t i) {
    int32_t loop = self->reader_loop[i]; /* what reads an array of a loop has its user's phase */
    IrPhase phase = self->context->roles->phases[loop >= 0 ? self->rules->loops[loop].instruction : i];
    return phase == IR_PHASE_BACKWARD || phase == IR_PHASE_RECOMPUTED || phase == IR_PHASE_OPTIMIZER;
}

/* A forward value that the backward pass takes, whose iterations are to be others. */
static bool is_apart(const MicroBatchRewrite *self, int32_t i, int32_t producer) {
    return self->settings.separate_backward && micro_batch_in_entry(self, producer) &&
           self->module->instructions[producer].shape.type != DTYPE_TUPLE && is_backward(self, i) &&
           !is_backward(self, producer);
}

static void unite_operand(MicroBatchRewrite *self, int32_t i, int32_t producer, int32_t leaf, void *data) {
    (void)data;
    MicroBatchKind kind = micro_batch_state(self, producer, leaf)->kind;
    bool is_taken =
        (kind == TIME_SPLIT && !is_apart(self, i, producer)) || (kind == TIME_PARTIAL && self->carries[i]);
    if (is_taken && self->is_derived[producer]) union_find_join(self->component, i, producer);
}

static void find_components(MicroBatchRewrite *self) {
    union_find_begin(self->component, self->rules->entry_count);
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        if (!micro_batch_is_written(self, i) || !micro_batch_in_loop(self, i)) continue;
        visit_operands(self, i, unite_operand, NULL);
        const PlannedLoop *loop = rules_loop(self->rules, i);
        for (int32_t l = 0; loop && l < loop->leaf_count; l++)
            if (loop->leaves[l].afterwards >= 0)
                union_find_join(self->component, i, loop->leaves[l].afterwards);
    }
}

/* ---- levels ---- */

/* Loops that must be over before i can take this value. */
static void raise_level(MicroBatchRewrite *self, int32_t i, int32_t producer, int32_t leaf, void *data) {
    int32_t *needed = data, before = 0;
    /* The iterations of i's loop use their own estimate of `producer`. */
    if (self->estimating >= 0 && self->is_estimated[producer] && micro_batch_in_loop(self, i) &&
        micro_batch_component(self, i) == self->estimating)
        return;
    switch (micro_batch_state(self, producer, leaf)->kind) {
    case TIME_SPLIT:
        before = micro_batch_level(self, producer);
        if (self->is_derived[producer] && (self->gathers[i] || is_apart(self, i, producer))) before++;
        break;
    case TIME_PARTIAL: before = micro_batch_level(self, producer) + (self->carries[i] ? 0 : 1); break;
    case TIME_WHOLE: before = self->available[producer]; break;
    }
    if (before > *needed) *needed = before;
}

/* One pass; true if some level rose. */
static bool raise_levels(MicroBatchRewrite *self) {
    bool changed = false;
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        int32_t needed = 0;
        if (!micro_batch_is_written(self, i)) continue;
        visit_operands(self, i, raise_level, &needed);
        if (micro_batch_in_loop(self, i)) {
            int32_t *level = &self->level[micro_batch_component(self, i)];
            changed |= needed > *level;
            if (needed > *level) *level = needed;
            const PlannedLoop *loop = rules_loop(self->rules, i);
            for (int32_t l = 0; loop && l < loop->leaf_count; l++)
                if (loop->leaves[l].afterwards >= 0) self->available[loop->leaves[l].afterwards] = *level + 1;
        } else if (!micro_batch_is_reader(self, i) && needed > self->available[i]) {
            self->available[i] = needed;
            changed = true;
            for (int32_t l = 0; l < micro_batch_given_count(self, i); l++) {
                int32_t reader = micro_batch_given_reader(self, i, l);
                if (reader >= 0) self->available[reader] = needed;
            }
        }
    }
    return changed;
}

/* Loops that must be over before i can take a value that depends on no weight. */
static void raise_count(MicroBatchRewrite *self, int32_t i, int32_t producer, int32_t leaf, void *data) {
    int32_t *needed = data;
    bool is_whole = micro_batch_state(self, producer, leaf)->kind == TIME_WHOLE;
    int32_t before = is_whole ? self->available[producer] : micro_batch_level(self, producer);
    (void)i;
    if (!self->is_derived[producer] && before > *needed) *needed = before;
}

/* Raises the level of a forward component to the `needed` one of a backward component that takes from it. */
static void raise_forward(MicroBatchRewrite *self, int32_t i, int32_t producer, int32_t leaf, void *data) {
    const int32_t *needed = data;
    bool is_taken = micro_batch_state(self, producer, leaf)->kind == TIME_SPLIT && self->is_derived[producer];
    if (!is_taken || !is_apart(self, i, producer)) return;
    int32_t *level = &self->level[micro_batch_component(self, producer)];
    if (*level < needed[micro_batch_component(self, i)]) *level = needed[micro_batch_component(self, i)];
}

/* Moves the forward pass behind the sums of data that the backward pass takes, such as the count of targets
 * of a masked mean, which then have a loop of their own: iterations of both passes can alternate. Returns
 * whether some level rose. `needed`: [component], scratch memory. */
static bool postpone_forward(MicroBatchRewrite *self, int32_t *needed) {
    int32_t count = self->rules->entry_count;
    int64_t before = 0, after = 0;
    for (int32_t i = 0; i < count; i++) before += self->level[i], needed[i] = 0;
    for (int32_t i = 0; i < count; i++)
        if (micro_batch_is_written(self, i) && micro_batch_in_loop(self, i) && self->is_derived[i])
            visit_operands(self, i, raise_count, &needed[micro_batch_component(self, i)]);
    for (int32_t i = 0; i < count; i++)
        if (micro_batch_is_written(self, i) && micro_batch_in_loop(self, i))
            visit_operands(self, i, raise_forward, needed);
    for (int32_t i = 0; i < count; i++) after += self->level[i];
    return after > before;
}

/* Returns false if some component would have to run after itself. `needed`: [component], scratch memory. */
static bool find_levels(MicroBatchRewrite *self, int32_t *needed) {
    for (int32_t i = 0; i < self->rules->entry_count; i++) self->level[i] = self->available[i] = 0;
    do {
        while (raise_levels(self))
            for (int32_t i = 0; i < self->rules->entry_count; i++)
                if (self->level[i] > TIME_MOST_LEVELS) return false;
    } while (self->settings.separate_backward && postpone_forward(self, needed));
    return true;
}

/* ---- what cannot be split ---- */

/* How a component comes to need its own results. */
typedef struct Recurrence {
    int32_t component;
    int32_t *cause; /* [instruction]: the sum, or the operator that takes all examples, it depends on; -1 */
    int32_t found;  /* the cause that the component itself needs, -1 */
    int32_t user;
} Recurrence;

static void find_cause(MicroBatchRewrite *self, int32_t i, int32_t producer, int32_t leaf, void *data) {
    Recurrence *recurrence = data;
    MicroBatchKind kind = micro_batch_state(self, producer, leaf)->kind;
    int32_t cause = recurrence->cause[producer];
    bool is_own =
        micro_batch_in_loop(self, producer) && micro_batch_component(self, producer) == recurrence->component;
    if (kind == TIME_PARTIAL) cause = is_own && !self->carries[i] ? producer : -1;
    if (kind == TIME_SPLIT) cause = is_own && self->gathers[i] ? i : -1;
    if (cause >= 0 && recurrence->cause[i] < 0) recurrence->cause[i] = cause;
}

/* Follows the component's reduced sums; `found` is the instruction by which they reach it again. */
static AmStatus find_recurrence(MicroBatchRewrite *self, Recurrence *recurrence, AmError *error) {
    recurrence->cause = ARENA_ARRAY(self->arena, int32_t, self->rules->entry_count + 1);
    if (!recurrence->cause) return am_fail_memory(error, self->rules->entry_count);
    recurrence->found = -1;
    for (int32_t i = 0; i < self->rules->entry_count; i++) recurrence->cause[i] = -1;
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        if (!micro_batch_is_written(self, i)) continue;
        visit_operands(self, i, find_cause, recurrence);
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

static AmStatus refuse_recurrence(const MicroBatchRewrite *self, const Recurrence *recurrence,
                                  AmError *error) {
    int32_t cause = recurrence->found;
    if (self->gathers[cause])
        return micro_batch_refuse(self, cause, "needs all examples of the batch at once", NULL, error);
    return micro_batch_refuse(
        self, cause, "combines the whole batch, and values of each example depend on it",
        micro_batch_state(self, cause, 0)->reduction == SBP_ADD ? batch_statistics : NULL, error);
}

/* Lets the component use estimates of what depends on its own sums, if that is allowed. */
static AmStatus estimate(MicroBatchRewrite *self, const Recurrence *recurrence, AmError *error) {
    int32_t cause = recurrence->found;
    bool is_allowed = self->settings.relaxations >> RELAXATION_BATCH_STATISTICS_PER_MICRO_BATCH & 1;
    if (!is_allowed || self->estimating >= 0 || self->gathers[cause])
        return refuse_recurrence(self, recurrence, error);
    self->estimating = recurrence->component;
    for (int32_t i = 0; i < self->rules->entry_count; i++) {
        int32_t from = recurrence->cause[i];
        bool is_own_sum = micro_batch_is_written(self, i) && micro_batch_in_loop(self, i) &&
                          micro_batch_component(self, i) == recurrence->component &&
                          micro_batch_state(self, i, 0)->kind == TIME_PARTIAL && !rules_loop(self->rules, i);
        bool is_of_conditional = self->reader_conditional[i] >= 0 || rules_conditional(self->rules, i);
        if (from >= 0 && (self->gathers[from] || rules_loop(self->rules, i) || is_of_conditional)) continue;
        if (is_own_sum && micro_batch_state(self, i, 0)->reduction != SBP_ADD) continue;
        self->is_estimated[i] = from >= 0 || is_own_sum;
    }
    return AM_OK;
}

AmStatus micro_batch_find_levels(MicroBatchRewrite *self, AmError *error) {
    find_derived(self);
    find_components(self);
    self->estimating = -1;
    int32_t *needed = ARENA_ARRAY(self->arena, int32_t, self->rules->entry_count + 1);
    if (!needed) return am_fail_memory(error, self->rules->entry_count);
    while (!find_levels(self, needed)) {
        Recurrence recurrence = {.found = -1};
        int32_t late = -1;
        for (int32_t i = 0; i < self->rules->entry_count && recurrence.found < 0; i++) {
            if (self->level[i] <= TIME_MOST_LEVELS / 2 || micro_batch_component(self, i) != i) continue;
            if (!micro_batch_is_written(self, i) || !micro_batch_in_loop(self, i)) continue;
            if (late < 0) late = i;
            recurrence.component = i;
            TRY(find_recurrence(self, &recurrence, error));
        }
        if (recurrence.found < 0 || micro_batch_component(self, recurrence.component) == self->estimating)
            return micro_batch_refuse(self, recurrence.found < 0 ? late : recurrence.found,
                                      "depends on the whole batch by way of other sums over it", NULL, error);
        TRY(estimate(self, &recurrence, error));
    }
    return AM_OK;
}
