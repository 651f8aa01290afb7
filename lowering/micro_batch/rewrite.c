/* The context of a module that was rewritten: with recomputation (recompute.c), in micro-batches, or both.
 *
 * rewrite_in_micro_batches() lists the steps: states.c finds which values are split, levels.c the loops that
 * compute them, demand.c the values that each loop needs, and emit_loops.c writes the new module. Its roles
 * have the instructions' new numbers, and the context derives everything else from both.
 */
#include <string.h>

#include "ir/analysis/loops.h"
#include "lowering/micro_batch/micro_batch_rewrite.h"
#include "lowering/micro_batch/recompute.h"

static const struct {
    const char *name;
} relaxations[RELAXATION_COUNT] = {
#define RELAXATION_ROW(name, text, help) [RELAXATION_##name] = {text},
    RELAXATION_LIST(RELAXATION_ROW)
#undef RELAXATION_ROW
};

const char *relaxation_name(Relaxation relaxation) {
    return relaxations[relaxation].name;
}

Relaxation relaxation_from_name(const char *name) {
    int32_t k = 0;
    while (k < RELAXATION_COUNT && strcmp(name, relaxations[k].name) != 0) k++;
    return (Relaxation)k;
}

AmStatus micro_batches_state_relaxations(Plan *plan, Arena *arena, const PlanContext *context,
                                         AmError *error) {
    plan->relaxations = ARENA_ARRAY(arena, const char *, RELAXATION_COUNT + 1);
    if (!plan->relaxations) return am_fail_memory(error, RELAXATION_COUNT);
    plan->relaxation_count = 0;
    for (int32_t k = 0; k < RELAXATION_COUNT; k++)
        if (context->relaxations >> k & 1)
            plan->relaxations[plan->relaxation_count++] = relaxation_name((Relaxation)k);
    return AM_OK;
}

/* Finds the get-tuple-elements that read the leaves of loops and the results of conditionals. */
static void find_readers(MicroBatchRewrite *self) {
    const Rules *rules = self->rules;
    memset(self->reader_loop, -1, sizeof(int32_t) * (size_t)self->count);
    for (int32_t k = 0; k < rules->loop_count; k++)
        for (int32_t l = 0; l < rules->loops[k].leaf_count; l++) {
            int32_t reader = rules->loops[k].leaves[l].afterwards;
            if (reader < 0) continue;
            self->reader_loop[reader] = k;
            self->reader_leaf[reader] = l;
        }
    memset(self->reader_conditional, -1, sizeof(int32_t) * (size_t)self->count);
    for (int32_t k = 0; k < rules->conditional_count; k++)
        for (int32_t r = 0; r < rules->conditionals[k].result_count; r++) {
            int32_t from = rules->conditionals[k].instruction, reader = rules->conditionals[k].afterwards[r];
            if (reader < 0 || reader == from) continue;
            self->reader_conditional[reader] = from;
            self->reader_leaf[reader] = r;
        }
}

static AmStatus make_rewrite(MicroBatchRewrite **rewrite, Arena *arena, const PlanContext *primary,
                             const MicroBatchSettings *settings, AmError *error) {
    const Rules *rules = primary->rules;
    int32_t count = rules->count, entry = rules->entry_count, states = 0;
    MicroBatchRewrite *self = ARENA_ARRAY(arena, MicroBatchRewrite, 1);
    int32_t *first_state = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) {
        int32_t leaves = rules_leaf_count(&plan_context_instruction(primary, i)->shape);
        first_state[i] = states;
        if (__builtin_add_overflow(states, leaves > 0 ? leaves : 1, &states))
            return am_fail_memory(error, INT32_MAX);
    }
    first_state[count] = states;
    *self = (MicroBatchRewrite){.arena = arena,
                                .context = primary,
                                .module = primary->canonical,
                                .rules = rules,
                                .split_options = primary->split_options,
                                .settings = *settings,
                                .count = count,
                                .first_state = first_state,
                                .states = ARENA_ARRAY(arena, MicroBatchState, states + 1),
                                .factor = ARENA_ARRAY(arena, int8_t, count + 1),
                                .keeps_partial = ARENA_ARRAY(arena, bool, count + 1),
                                .takes_full = ARENA_ARRAY(arena, bool, count + 1),
                                .is_split = ARENA_ARRAY(arena, bool, rules->loop_count + 1),
                                .has_weight = ARENA_ARRAY(arena, bool, count + 1),
                                .reader_loop = ARENA_ARRAY(arena, int32_t, count + 1),
                                .reader_leaf = ARENA_ARRAY(arena, int32_t, count + 1),
                                .reader_conditional = ARENA_ARRAY(arena, int32_t, count + 1),
                                .component = ARENA_ARRAY(arena, int32_t, entry + 1),
                                .level = ARENA_ARRAY(arena, int32_t, entry + 1),
                                .loops_before = ARENA_ARRAY(arena, int32_t, entry + 1),
                                .is_estimated = ARENA_ARRAY(arena, bool, entry + 1),
                                .estimating = -1,
                                .is_averaged = ARENA_ARRAY(arena, bool, count + 1),
                                .is_demanded = ARENA_ARRAY(arena, bool, rules->loop_count + 1),
                                .needs = ARENA_ARRAY(arena, uint8_t, count + 1),
                                .is_stacked = ARENA_ARRAY(arena, bool, states + 1),
                                .reads_whole = ARENA_ARRAY(arena, bool, count + 1),
                                .in_levels = ARENA_ARRAY(arena, uint32_t, count + 1),
                                .first_copy = ARENA_ARRAY(arena, int32_t, count + 1)};
    if (arena->failed) return am_fail_memory(error, count);
    memset(self->factor, -1, (size_t)count);
    memset(self->first_copy, -1, sizeof(int32_t) * (size_t)count);
    find_readers(self);
    *rewrite = self;
    return AM_OK;
}

/* Checks ranks: cutting out a part needs two more dimensions for a moment. */
static AmStatus check_ranks(const IrModule *module, AmError *error) {
    for (int32_t i = 0; i < module->instruction_count; i++)
        if (module->instructions[i].shape.type != DTYPE_TUPLE &&
            module->instructions[i].shape.rank > IR_MAX_RANK - 2)
            return am_fail(error, AM_ERROR_INFEASIBLE, module->source,
                           "cannot be split into micro-batches: %s has more than %d dimensions",
                           module->instructions[i].name, IR_MAX_RANK - 2);
    return AM_OK;
}

/* Rewrites of large modules take tenths of a second; their steps can be interrupted. */
static AmStatus check_stop(const StopSignal *stop, AmError *error) {
    if (!stop || !stop_wanted(stop)) return AM_OK;
    return am_fail(error, AM_INTERRUPTED, "", "interrupted while a module was rewritten");
}

/* Returns whether a sum that leaves its loop is rounded after each micro-batch. */
static bool rounds_sums(const MicroBatchRewrite *rewrite) {
    for (int32_t i = 0; i < rewrite->rules->entry_count; i++) {
        const MicroBatchState *state = micro_batch_state(rewrite, i, 0);
        bool is_sum = state->kind == TIME_PARTIAL && state->reduction == SBP_ADD;
        if (is_sum && rewrite->needs[i] & TIME_NEED_FULL &&
            micro_batch_rounds_sum(rewrite, rewrite->module->instructions[i].shape.type))
            return true;
    }
    return false;
}

/* Refuses steps that the exporter says to need the whole batch, as of a table with a row for each example. */
static AmStatus check_whole_batch(const PlanContext *primary, AmError *error) {
    if (!primary->roles->whole_batch) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, primary->canonical->source,
                   "cannot be split into micro-batches: %s", primary->roles->whole_batch);
}

/* Refuses operators that mix examples of the data before any weight: loops may follow their results, parts
 * may not. */
static AmStatus check_data(const MicroBatchRewrite *rewrite, AmError *error) {
    for (int32_t i = 0; i < rewrite->rules->entry_count; i++) {
        if (!micro_batch_is_written(rewrite, i) || rewrite->has_weight[i]) continue;
        const IrShape *shape = &rewrite->module->instructions[i].shape;
        bool is_array = shape->type == DTYPE_TUPLE || shape->rank > 0;
        if (rewrite->takes_full[i] || (is_array && micro_batch_state(rewrite, i, 0)->kind == TIME_PARTIAL))
            return micro_batch_refuse(rewrite, i, "combines examples of the data", NULL, error);
    }
    return AM_OK;
}

static AmStatus find_levels_of(MicroBatchRewrite **rewrite, Arena *scratch, const PlanContext *primary,
                               const MicroBatchSettings *settings, AmError *error) {
    TRY(check_ranks(primary->canonical, error));
    TRY(make_rewrite(rewrite, scratch, primary, settings, error));
    TRY(micro_batch_find_states(*rewrite, error));
    return micro_batch_find_levels(*rewrite, error);
}

/* The same up to the demands, where micro-batches have their own examples alone. Data of as many rows as the
 * batch are cut, too, if that is not so otherwise. dimensions [parameter] becomes that of the examples. */
static AmStatus find_demands_apart(MicroBatchRewrite **rewrite, int32_t *dimensions, Arena *scratch,
                                   const PlanContext *primary, const MicroBatchSettings *settings,
                                   AmError *error) {
    AmError first = {0};
    AmStatus status = AM_ERROR_INFEASIBLE;
    TRY(check_ranks(primary->canonical, error));
    for (int32_t k = 0; k < 2 && status == AM_ERROR_INFEASIBLE; k++) {
        AmError refusal = {0};
        TRY(make_rewrite(rewrite, scratch, primary, settings, error));
        (*rewrite)->cuts_equal_data = k == 1;
        status = micro_batch_find_states(*rewrite, &refusal);
        if (status == AM_OK) status = micro_batch_check_operators(*rewrite, &refusal);
        if (status == AM_OK) status = micro_batch_find_levels(*rewrite, &refusal);
        if (status == AM_OK) status = micro_batch_find_demands(*rewrite, &refusal);
        if (status == AM_OK) status = micro_batch_check_examples(dimensions, *rewrite, &refusal);
        if (k == 0) first = refusal;
    }
    if (status == AM_OK) return check_whole_batch(plan_context_primary(primary), error);
    if (error) *error = first;
    return status;
}

AmStatus micro_batches_check_apart(const PlanContext *primary, int32_t parts, AmError *error) {
    const MicroBatchSettings settings = {.micro_batches = parts,
                                         .relaxations = 1u << RELAXATION_ROUNDED_SUMS};
    Arena scratch = {0};
    MicroBatchRewrite *rewrite;
    TRY(check_whole_batch(primary, error));
    AmStatus status = find_levels_of(&rewrite, &scratch, primary, &settings, error);
    if (status == AM_OK) status = check_data(rewrite, error);
    arena_free(&scratch);
    return status;
}

AmStatus micro_batches_check_data(const PlanContext *primary, int32_t parts, AmError *error) {
    const MicroBatchSettings settings = {.micro_batches = parts, .relaxations = (1u << RELAXATION_COUNT) - 1};
    Arena scratch = {0};
    MicroBatchRewrite *rewrite;
    AmError other = {0}; /* the obstacle is a weight, not the data */
    TRY(check_whole_batch(primary, error));
    AmStatus status = find_levels_of(&rewrite, &scratch, primary, &settings, &other);
    if (status == AM_OK) status = check_data(rewrite, error);
    else if (status == AM_ERROR_INFEASIBLE) status = AM_OK;
    else if (error) *error = other;
    arena_free(&scratch);
    return status;
}

AmStatus micro_batches_check_examples(int32_t *dimensions, const PlanContext *primary, int32_t parts,
                                      AmError *error) {
    MicroBatchSettings settings = {
        .micro_batches = parts, .relaxations = 1u << RELAXATION_ROUNDED_SUMS, .separate_backward = true};
    Arena scratch = {0};
    MicroBatchRewrite *rewrite;
    AmError other = {0};
    AmStatus status = find_demands_apart(&rewrite, dimensions, &scratch, primary, &settings, error);
    settings.separate_backward = false;
    if (status == AM_ERROR_INFEASIBLE)
        status = find_demands_apart(&rewrite, dimensions, &scratch, primary, &settings, &other);
    arena_free(&scratch);
    return status;
}

/* Rewrites a module into micro-batches: states, loops, demands, then the new module. */
static AmStatus rewrite_in_micro_batches(PlanContext *self, int32_t **origins, Arena *scratch,
                                         const MicroBatchSettings *settings, AmError *error) {
    const PlanContext *base = self->base;
    MicroBatchRewrite *rewrite = NULL;
    if (self->primary->keeps_examples_apart) {
        int32_t *dimensions = ARENA_ARRAY(scratch, int32_t, base->roles->parameter_count + 1);
        if (!dimensions) return am_fail_memory(error, base->roles->parameter_count);
        TRY(find_demands_apart(&rewrite, dimensions, scratch, base, settings, error));
    } else {
        if (self->primary->keeps_data_apart) TRY(check_whole_batch(self->primary, error));
        TRY(find_levels_of(&rewrite, scratch, base, settings, error));
        if (self->primary->keeps_data_apart) TRY(check_data(rewrite, error));
        TRY(micro_batch_find_demands(rewrite, error));
    }
    TRY(check_stop(settings->stop, error));
    if (rewrite->estimating >= 0) self->relaxations = 1u << RELAXATION_BATCH_STATISTICS_PER_MICRO_BATCH;
    if (rounds_sums(rewrite)) self->relaxations |= 1u << RELAXATION_ROUNDED_SUMS;
    return micro_batch_emit(&self->canonical, origins, rewrite, NULL, error);
}

int32_t plan_number_of(const PlanContext *context, int32_t instruction) {
    return context->primary ? context->original[instruction] : instruction;
}

int32_t plan_instruction_of(const PlanContext *context, int32_t number) {
    if (!context->primary) return number;
    const IrModule *original = context->primary->canonical, *module = context->canonical;
    int32_t found = -1;
    for (int32_t i = 0; i < module->instruction_count && found < 0; i++)
        if (context->original[i] == number &&
            module->instructions[i].opcode == original->instructions[number].opcode)
            found = i;
    return found;
}

bool recomputation_is_same(const PlanRecomputation *a, const PlanRecomputation *b) {
    if (a->range_count != b->range_count || a->saved_count != b->saved_count) return false;
    for (int32_t r = 0; r < a->range_count; r++)
        if (a->ranges[r][0] != b->ranges[r][0] || a->ranges[r][1] != b->ranges[r][1]) return false;
    for (int32_t k = 0; k < a->saved_count; k++)
        if (a->saved[k] != b->saved[k]) return false;
    return true;
}

static AmStatus copy_recomputation(PlanRecomputation *copy, Arena *arena, const PlanRecomputation *from,
                                   AmError *error) {
    *copy = *from;
    copy->ranges = arena_alloc(arena, sizeof *copy->ranges * (size_t)(from->range_count + 1));
    copy->saved = ARENA_ARRAY(arena, int32_t, from->saved_count + 1);
    if (arena->failed) return am_fail_memory(error, from->range_count);
    for (int32_t r = 0; r < from->range_count; r++)
        memcpy(copy->ranges[r], from->ranges[r], sizeof *copy->ranges);
    for (int32_t k = 0; k < from->saved_count; k++) copy->saved[k] = from->saved[k];
    return AM_OK;
}

/* Derives the context of the rewritten module. `is_copy` [entry instruction]: it makes another one's value
 * again; NULL: none does. */
static AmStatus derive(PlanContext *self, const bool *is_copy, const StopSignal *stop, AmError *error) {
    TRY(check_stop(stop, error));
    TRY(plan_context_move_roles(&self->roles, &self->arena, self->base, self->canonical, self->original,
                                error));
    if (self->base->replica_of) {
        self->replicas = self->base->replicas;
        self->replica_of = ARENA_ARRAY(&self->arena, int32_t, self->canonical->instruction_count + 1);
        if (!self->replica_of) return am_fail_memory(error, self->canonical->instruction_count);
        for (int32_t i = 0; i < self->canonical->instruction_count; i++)
            self->replica_of[i] = self->base->replica_of[self->original[i]];
    }
    for (int32_t i = 0; self->base->primary && i < self->canonical->instruction_count; i++)
        self->original[i] = self->base->original[self->original[i]]; /* that of the module as read */
    int32_t entry = self->canonical->computations[self->canonical->entry].count;
    for (int32_t i = 0; is_copy && i < entry; i++)
        if (is_copy[i]) self->roles->phases[i] = IR_PHASE_RECOMPUTED;
    TRY(ir_copy_layers(self->canonical, self->primary->canonical, self->original, self->roles->phases,
                       error));
    TRY(rules_build(&self->rules, &self->arena, self->canonical, error));
    TRY(check_stop(stop, error));
    TRY(classes_build(&self->classes, &self->arena, self->rules, self->roles, error));
    TRY(check_stop(stop, error));
    TRY(split_options_build(&self->split_options, &self->arena, self->rules, self->classes, self->roles,
                            error));
    /* A class has the name of the original's; if that is taken, a number beyond the original's. */
    const Classes *classes = self->classes;
    for (int32_t c = 0; c < classes->count; c++) {
        DimensionClass *class = &classes->classes[c];
        if (class->named_by_parameter) continue;
        int32_t own = class->number, original = self->original[own];
        class->number = -1;
        bool is_taken = classes_find(classes, false, original, class->dimension) >= 0;
        class->number = is_taken ? plan_context_count(self->primary) + own : original;
    }
    return AM_OK;
}

static AmStatus open_context(PlanContext **context, const PlanContext *base, AmError *error) {
    Arena arena = {0};
    PlanContext *self = ARENA_ARRAY(&arena, PlanContext, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->arena = arena;
    self->primary = plan_context_primary(base);
    self->base = base;
    self->module = base->module;
    memcpy(self->sha256, base->sha256, sizeof self->sha256);
    *context = self;
    return AM_OK;
}

AmStatus plan_context_recompute(PlanContext **context, const PlanContext *primary,
                                const PlanRecomputation *recomputed, const StopSignal *stop, AmError *error) {
    PlanContext *self;
    int32_t *origins;
    bool *is_copy;
    AmStatus status;
    TRY(check_stop(stop, error));
    TRY(open_context(&self, primary, error));
    self->micro_batches = 1;
    TRY_OR_FAIL(copy_recomputation(&self->recompute, &self->arena, recomputed, error));
    TRY_OR_FAIL(recompute_emit(&self->canonical, &origins, &is_copy, primary, recomputed, error));
    self->original = origins;
    TRY_OR_FAIL(derive(self, is_copy, stop, error));
    *context = self;
    return AM_OK;
fail:
    plan_context_free(self);
    return status;
}

/* Copies the replicas of the entry's instructions, and gives bodies and branches that of their callers. */
static AmStatus set_replicas(PlanContext *self, const MicroBatchReplicas *made, AmError *error) {
    const IrModule *module = self->canonical;
    int32_t count = module->instruction_count, entry = module->computations[module->entry].count;
    int32_t *parts = ARENA_ARRAY(&self->arena, int32_t, made->count);
    self->replica_of = ARENA_ARRAY(&self->arena, int32_t, count + 1);
    if (!parts || !self->replica_of) return am_fail_memory(error, count);
    memcpy(parts, made->parts, sizeof *parts * (size_t)made->count);
    self->replicas = (PlanReplicas){.parts = parts, .count = made->count};
    for (int32_t i = 0; i < count; i++) self->replica_of[i] = i < entry ? made->replica_of[i] : -1;
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *caller = &module->instructions[i];
        for (int32_t k = 0; self->replica_of[i] >= 0 && k < caller->called_count; k++) {
            const IrComputation *called = &module->computations[caller->called[k]];
            for (int32_t j = called->first; j < called->first + called->count; j++)
                self->replica_of[j] = self->replica_of[i];
        }
    }
    return AM_OK;
}

AmStatus plan_context_replicate(PlanContext **context, const PlanContext *base, const PlanReplicas *replicas,
                                const StopSignal *stop, AmError *error) {
    MicroBatchSettings settings = {.stop = stop, .replicas = *replicas};
    MicroBatchReplicas made = {.parts = replicas->parts, .count = replicas->count};
    MicroBatchRewrite *rewrite;
    Arena scratch = {0};
    PlanContext *self;
    AmStatus status;
    for (int32_t r = 0; r < replicas->count; r++) settings.micro_batches += replicas->parts[r];
    TRY(open_context(&self, base, error));
    self->micro_batches = 1;
    TRY_OR_FAIL(find_levels_of(&rewrite, &scratch, base, &settings, error));
    TRY_OR_FAIL(micro_batch_find_demands(rewrite, error));
    TRY_OR_FAIL(check_stop(stop, error));
    TRY_OR_FAIL(micro_batch_emit(&self->canonical, &self->original, rewrite, &made, error));
    TRY_OR_FAIL(set_replicas(self, &made, error));
    TRY_OR_FAIL(derive(self, NULL, stop, error));
    *context = self;
    arena_free(&scratch);
    return AM_OK;
fail:
    arena_free(&scratch);
    plan_context_free(self);
    return status;
}

void plan_context_adopt(PlanContext *primary, PlanContext *split) {
    split->next_split = primary->splits;
    primary->splits = split;
}

void plan_context_keep_only(PlanContext *primary, const PlanContext *known, const PlanContext *const *used,
                            int32_t count) {
    for (PlanContext **place = &primary->splits; *place != known;) {
        PlanContext *split = *place;
        bool is_used = false;
        for (int32_t k = 0; k < count; k++) is_used |= split == used[k] || split == used[k]->base;
        if (is_used) {
            place = &split->next_split;
            continue;
        }
        *place = split->next_split;
        plan_context_free(split);
    }
}

const PlanContext *plan_context_find_recomputed(const PlanContext *primary,
                                                const PlanRecomputation *recomputed) {
    const PlanContext *split = primary->splits;
    while (split && (split->micro_batches != 1 || split->replica_of ||
                     !recomputation_is_same(&split->recompute, recomputed)))
        split = split->next_split;
    return split;
}

/* Returns the context of these replicas of `base`, or NULL. */
static const PlanContext *find_replicated(const PlanContext *base, const PlanReplicas *replicas) {
    const PlanContext *split = plan_context_primary(base)->splits;
    while (split && (split->base != base || split->micro_batches != 1 ||
                     !plan_replicas_equal(&split->replicas, replicas)))
        split = split->next_split;
    return split;
}

const PlanContext *plan_context_find_split(const PlanContext *base, const MicroBatchSettings *settings) {
    const PlanContext *split = plan_context_primary(base)->splits;
    while (split && (split->micro_batches != settings->micro_batches || split->base != base ||
                     split->allowed_relaxations != settings->relaxations ||
                     split->separate_backward != settings->separate_backward))
        split = split->next_split;
    return split;
}

AmStatus plan_context_for(const PlanContext **context, PlanContext *primary,
                          const MicroBatchSettings *settings, AmError *error) {
    PlanContext *made;
    *context = primary;
    if (settings->recomputed.range_count > 0) {
        *context = plan_context_find_recomputed(primary, &settings->recomputed);
        if (!*context) {
            TRY(plan_context_recompute(&made, primary, &settings->recomputed, settings->stop, error));
            plan_context_adopt(primary, made);
            *context = made;
        }
    }
    if (settings->replicas.count > 0) {
        const PlanContext *replicated = find_replicated(*context, &settings->replicas);
        if (!replicated) {
            TRY(plan_context_replicate(&made, *context, &settings->replicas, settings->stop, error));
            plan_context_adopt(primary, made);
            replicated = made;
        }
        *context = replicated;
    }
    if (settings->micro_batches <= 1) return AM_OK;
    const PlanContext *base = *context;
    *context = plan_context_find_split(base, settings);
    if (*context) return AM_OK;
    AmStatus status = plan_context_split(&made, base, settings, error);
    *context = status == AM_OK ? made : base;
    if (status == AM_OK) plan_context_adopt(primary, made);
    return status;
}

AmStatus plan_context_split(PlanContext **split, const PlanContext *base, const MicroBatchSettings *settings,
                            AmError *error) {
    Arena scratch = {0};
    int32_t *origins;
    PlanContext *self;
    TRY(open_context(&self, base, error));
    self->micro_batches = settings->micro_batches;
    self->allowed_relaxations = settings->relaxations;
    AmStatus status;
    MicroBatchSettings tried = *settings;
    AmError refusal = {0};
    self->separate_backward = settings->separate_backward;
    status = rewrite_in_micro_batches(self, &origins, &scratch, &tried,
                                      settings->separate_backward ? &refusal : error);
    if (status == AM_ERROR_INFEASIBLE && settings->separate_backward) {
        tried.separate_backward = false;
        status = rewrite_in_micro_batches(self, &origins, &scratch, &tried, error);
        if (status != AM_OK && self->primary->keeps_examples_apart && error) *error = refusal;
    } else if (status != AM_OK && settings->separate_backward && error) {
        *error = refusal;
    }
    if (status != AM_OK) goto fail;
    self->original = origins;
    TRY_OR_FAIL(derive(self, NULL, settings->stop, error));
    *split = self;
    arena_free(&scratch);
    return AM_OK;
fail:
    arena_free(&scratch);
    plan_context_free(self);
    return status;
}
