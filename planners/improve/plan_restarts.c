/* Iterated local search (Lourenco, Martin and Stuetzle 2003) around the best plan of a search. */
#include "planners/improve/plan_restarts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "planners/improve/plan_memo.h"
#include "planners/improve/plan_moves.h"

enum {
    MOST_SHIFTS = 64,
    MOST_COPIES = 32,
    PAIRED = 8,         /* single changes whose pairs are priced */
    MOST_UNKNOWN = 500, /* random draws without a new plan */
    POLISH = 24         /* evaluations of a climb from a slower plan */
};

/* A change between two places: work that moves from part `from` of the pipeline to part `to` (shifts), or the
 * axis priorities of stage `from` on stage `to` (copies). */
typedef struct Exchange {
    int32_t from, to;
} Exchange;

/* The restarts around one plan. */
typedef struct Restarts {
    PlanClimb *climb;
    ClimbBase *base;
    const Plan *plan;
    Random *random;
    Arena candidates; /* plans of the batch */
    const Plan *
        *singles; /* [single_count] changes of the same context; those that are known to be fastest first */
    double *seconds; /* [single_count] INFINITY: not known, or it does not fit */
    int32_t single_count, paired;
    Exchange *shifts, *copies;
    int32_t shift_count, copy_count;
    int64_t next;   /* number in the sequence */
    int32_t missed; /* random draws since the last new plan */
} Restarts;

/* ---- lists of changes ---- */

static double idle_of_part(const Restarts *self, int32_t part) {
    const Explanation *explanation = &self->base->explanation;
    int32_t cuts = explanation->cuts.count, stage = 0;
    if (cuts > 0)
        stage = part < cuts ? explanation->cuts.of[part].stages[0] : explanation->cuts.of[part - 1].stages[1];
    return explanation->stages.of[stage].seconds.idle;
}

static AmStatus list_exchanges(Restarts *self, AmError *error) {
    Arena *arena = self->base->arena;
    int32_t parts = self->base->explanation.cuts.count + 1, stages = self->plan->stage_count;
    int32_t *sorted = ARENA_ARRAY(arena, int32_t, parts);
    self->shifts = ARENA_ARRAY(arena, Exchange, MOST_SHIFTS);
    self->copies = ARENA_ARRAY(arena, Exchange, MOST_COPIES);
    if (arena->failed) return am_fail_memory(error, parts);
    /* Sorts parts by idle time, least first. */
    for (int32_t k = 0; k < parts; k++) {
        int32_t place = k;
        for (; place > 0 && idle_of_part(self, k) < idle_of_part(self, sorted[place - 1]); place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = k;
    }
    for (int32_t sum = 0; sum <= 2 * (parts - 1); sum++)
        for (int32_t busy = 0; busy <= sum && busy < parts; busy++) {
            int32_t idle = sum - busy;
            if (idle >= parts || self->shift_count == MOST_SHIFTS) continue;
            Exchange shift = {sorted[busy], sorted[parts - 1 - idle]};
            if (abs(shift.from - shift.to) < 2) continue; /* a single change */
            self->shifts[self->shift_count++] = shift;
        }
    for (int32_t apart = 1; apart < stages; apart++)
        for (int32_t s = 0; s + apart < stages && self->copy_count + 2 <= MOST_COPIES; s++) {
            self->copies[self->copy_count++] = (Exchange){s, s + apart};
            self->copies[self->copy_count++] = (Exchange){s + apart, s};
        }
    return AM_OK;
}

/* Lists single changes that leave the context, the fastest known ones first. */
static AmStatus list_singles(Restarts *self, AmError *error) {
    const Explainer *explainer = &self->base->explainer;
    int32_t all = explain_most_changes(explainer);
    Arena *arena = self->base->arena;
    self->singles = ARENA_ARRAY(arena, const Plan *, all + 1);
    self->seconds = ARENA_ARRAY(arena, double, all + 1);
    if (arena->failed) return am_fail_memory(error, all);
    for (int32_t k = 0; k < all; k++) {
        const Plan *plan;
        TRY(explain_make_change(&plan, &explainer->changes.of[k], arena, error));
        if (plan->context != self->plan->context) continue;
        const PlanPrice *known = price_memo_find(&self->climb->memo, plan_memo_key(plan));
        double seconds = known && !isnan(known->seconds) ? known->seconds : INFINITY;
        int32_t place = self->single_count++;
        for (; place > 0 && seconds < self->seconds[place - 1]; place--) {
            self->singles[place] = self->singles[place - 1];
            self->seconds[place] = self->seconds[place - 1];
        }
        self->singles[place] = plan;
        self->seconds[place] = seconds;
    }
    while (self->paired < self->single_count && self->paired < PAIRED &&
           isfinite(self->seconds[self->paired]))
        self->paired++;
    return AM_OK;
}

/* ---- the sequence ---- */

static bool find_entry(const Restarts *self, EntryMove *move) {
    int32_t s = (int32_t)random_below(self->random, self->plan->stage_count);
    const PlanStage *stage = &self->plan->stages[s];
    int32_t axis = (int32_t)random_below(self->random, stage->mesh.axis_count);
    int32_t onto = (int32_t)random_below(self->random, stage->mesh.axis_count);
    if (stage->axis_priorities[axis].count == 0) return false;
    *move = (EntryMove){.stage = s,
                        .axis = axis,
                        .entry = (int32_t)random_below(self->random, stage->axis_priorities[axis].count),
                        .onto = onto,
                        .place = (int32_t)random_below(self->random, stage->axis_priorities[onto].count + 1)};
    return true;
}

/* Draws one random change; `*made` NULL: none. */
static AmStatus draw_change(Restarts *self, const Plan **made, AmError *error) {
    enum { SINGLE, SHIFT, COPY, ENTRY, KINDS };
    Arena *arena = &self->candidates;
    EntryMove move;
    *made = NULL;
    int32_t parts = self->base->explanation.cuts.count + 1;
    switch (random_below(self->random, KINDS)) {
    case SINGLE:
        if (self->single_count > 0) *made = self->singles[random_below(self->random, self->single_count)];
        return AM_OK;
    case SHIFT: {
        int32_t from = (int32_t)random_below(self->random, parts);
        int32_t to = (int32_t)random_below(self->random, parts);
        return from == to ? AM_OK : plan_move_shift(made, arena, &self->base->explainer, from, to, error);
    }
    case COPY: {
        int32_t from = (int32_t)random_below(self->random, self->plan->stage_count);
        int32_t to = (int32_t)random_below(self->random, self->plan->stage_count);
        return plan_copy_axis_priorities(made, arena, self->plan, from, to, error);
    }
    default: return find_entry(self, &move) ? plan_move_entry(made, arena, self->plan, &move, error) : AM_OK;
    }
}

/* Finds the next plan of the sequence, or NULL where that has none; `*is_end`: there are no more. */
static AmStatus find_next(Restarts *self, const Plan **made, bool *is_end, AmError *error) {
    Arena *arena = &self->candidates;
    int64_t number = self->next++;
    *is_end = false;
    if (number < self->shift_count) {
        const Exchange *shift = &self->shifts[number];
        return plan_move_shift(made, arena, &self->base->explainer, shift->from, shift->to, error);
    }
    number -= self->shift_count;
    if (number < self->copy_count)
        return plan_copy_axis_priorities(made, arena, self->plan, self->copies[number].from,
                                         self->copies[number].to, error);
    number -= self->copy_count;
    for (int32_t j = 1; j < self->paired; number -= j++)
        if (number < j)
            return plan_move_join(made, arena, self->plan, self->singles[j], self->singles[number], error);
    *is_end = ++self->missed > MOST_UNKNOWN;
    /* One to three random changes, without those that are incompatible with earlier ones: */
    int32_t wanted = 1 + (int32_t)random_below(self->random, 3);
    *made = NULL;
    for (int32_t k = 0; k < wanted; k++) {
        const Plan *change, *both = NULL;
        TRY(draw_change(self, &change, error));
        if (change && *made) TRY(plan_move_join(&both, &self->candidates, self->plan, *made, change, error));
        if (change && !*made) both = change;
        if (both) *made = both;
    }
    return AM_OK;
}

/* ---- restarts ---- */

/* Fills a batch with plans that were not priced before; it stays empty at the end of the sequence. */
static AmStatus fill_batch(Restarts *self, ClimbBatch *batch, double wanted, AmError *error) {
    bool is_end = false;
    while (batch->count < PLAN_CLIMB_BATCH && !is_end) {
        const Plan *made;
        TRY(find_next(self, &made, &is_end, error));
        if (made && plan_climb_add(batch, made, wanted, self->climb)) self->missed = 0;
    }
    return AM_OK;
}

/* Restarts from `*plan` until one is better, which replaces it. */
static AmStatus restart_once(Plan **plan, bool *is_better, Restarts *self, int64_t end, Arena *arena,
                             AmError *error) {
    PlanClimb *climb = self->climb;
    double best = (*plan)->predicted_step_seconds, wanted = best * (1 - PLAN_RESTART_GAIN);
    *is_better = false;
    TRY(list_singles(self, error));
    TRY(list_exchanges(self, error));
    while (!*is_better && !climb->budget.is_cut && climb->budget.used < end) {
        ClimbBatch batch = {0};
        Plan *start = *plan;
        if (stop_wanted(&climb->budget.stop)) climb->budget.is_cut = true;
        if (climb->budget.is_cut) return AM_OK;
        AmStatus status = fill_batch(self, &batch, wanted, error);
        bool is_end = batch.count == 0;
        if (status == AM_OK) status = plan_climb_price(&batch, climb, self->base, error);
        bool is_near = status == AM_OK && batch.best && batch.best->seconds < best * (1 + PLAN_RESTART_NEAR);
        if (is_near) status = plan_climb_take(&start, batch.best, climb, arena, error);
        plan_climb_clear(&batch, climb);
        arena_release(&self->candidates, (ArenaMark){0});
        if (status == AM_OK && is_near)
            status =
                plan_climb(&start, climb, start->predicted_step_seconds < wanted ? 0 : POLISH, arena, error);
        TRY(status);
        *is_better = start->predicted_step_seconds < wanted;
        if (*is_better) *plan = start;
        if (is_end) return AM_OK;
    }
    return AM_OK;
}

AmStatus plan_restarts(Plan **plan, PlanClimb *climb, int64_t size, uint64_t seed, Arena *arena,
                       AmError *error) {
    Arena of_base = {0};
    Random random;
    int64_t end = climb->budget.used + size;
    random_seed(&random, seed);
    TRY(plan_climb(plan, climb, 0, arena, error));
    AmStatus status = AM_OK;
    for (bool is_better = true;
         status == AM_OK && is_better && !climb->budget.is_cut && climb->budget.used < end;) {
        ClimbBase base;
        Restarts self = {.climb = climb, .base = &base, .plan = *plan, .random = &random};
        AmError failure = {0};
        is_better = false;
        status = plan_climb_list(&base, *plan, climb, &of_base, &failure);
        if (status == AM_OK) status = restart_once(plan, &is_better, &self, end, arena, &failure);
        arena_free(&self.candidates);
        plan_climb_unlist(&base);
        if (status == AM_INTERRUPTED) climb->budget.is_cut = true;
        if (status == AM_INTERRUPTED || status == AM_ERROR_INFEASIBLE) status = AM_OK;
        if (status != AM_OK && error) *error = failure;
    }
    arena_free(&of_base);
    return status;
}
