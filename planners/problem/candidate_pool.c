/* The candidate pool. The lists of targets, shapes, orders and structures are sorted by
 * candidate_is_better(). A list of shapes, orders or structures holds the best candidate of each.
 */
#include "planners/problem/candidate_pool.h"

bool plan_is_better(double seconds, const MemoryFit *fit, double than_seconds, const MemoryFit *than_fit) {
    if (fit->fits != than_fit->fits) return fit->fits;
    return fit->fits ? seconds < than_seconds : fit->needed_fraction < than_fit->needed_fraction;
}

bool candidate_is_better(const PlanCandidate *a, const PlanCandidate *b) {
    if (!a->plan || !b->plan) return a->plan && !b->plan;
    return plan_is_better(a->seconds, &a->fit, b->seconds, &b->fit);
}

/* Puts a candidate among those of a target, unless it is there. */
static void add_on(PlanCandidate *on, const PlanCandidate *candidate) {
    int32_t at = POOL_OF_TARGET;
    for (int32_t k = 0; k < POOL_OF_TARGET; k++)
        if (on[k].plan == candidate->plan) return;
    while (at > 0 && candidate_is_better(candidate, &on[at - 1])) at--;
    for (int32_t k = POOL_OF_TARGET - 1; k > at; k--) on[k] = on[k - 1];
    if (at < POOL_OF_TARGET) on[at] = *candidate;
}

bool plan_has_same_shape(const Plan *a, const Plan *b) {
    return a->stage_count == b->stage_count && a->micro_batches == b->micro_batches;
}

/* Returns device k of all stages, one after another; -1: there are fewer. */
static int32_t device_at(const Plan *plan, int32_t k) {
    for (int32_t s = 0; s < plan->stage_count; k -= plan->stages[s++].mesh.device_count)
        if (k < plan->stages[s].mesh.device_count) return plan->stages[s].devices[k];
    return -1;
}

bool plan_has_same_order(const Plan *a, const Plan *b) {
    for (int32_t k = 0;; k++) {
        int32_t device = device_at(a, k);
        if (device != device_at(b, k)) return false;
        if (device < 0) return true;
    }
}

/* The main decisions of an axis priority: its first classes, and the storage in shards. */
enum { FIRST_CLASSES = 2 };
typedef struct AxisForm {
    int32_t size, classes[FIRST_CLASSES], class_count;
    PlanEntryKind storage;
} AxisForm;

static AxisForm axis_form(const PlanStage *stage, int32_t axis) {
    AxisForm form = {.size = stage->mesh.axes[axis].size};
    const PlanAxisPriority *priority = &stage->axis_priorities[axis];
    for (int32_t k = 0; k < priority->count; k++) {
        const PlanEntry *entry = &priority->entries[k];
        bool is_stronger = form.storage == PLAN_COMPUTE || entry->kind < form.storage;
        if (entry->kind != PLAN_COMPUTE && is_stronger) form.storage = entry->kind;
        if (entry->kind == PLAN_COMPUTE && form.class_count < FIRST_CLASSES)
            form.classes[form.class_count++] = entry->class_index;
    }
    return form;
}

static bool has_same_form(const AxisForm *a, const AxisForm *b) {
    for (int32_t k = 0; k < FIRST_CLASSES; k++)
        if (a->classes[k] != b->classes[k]) return false;
    return a->size == b->size && a->class_count == b->class_count && a->storage == b->storage;
}

/* Returns the first axis from `axis` on that has several devices; axis_count: no axis has. */
static int32_t proper_axis(const Mesh *mesh, int32_t axis) {
    while (axis < mesh->axis_count && mesh->axes[axis].size == 1) axis++;
    return axis;
}

/* Compares the axes with several devices, in order. */
static bool has_same_axes(const PlanStage *a, const PlanStage *b) {
    int32_t of_a = proper_axis(&a->mesh, 0), of_b = proper_axis(&b->mesh, 0);
    while (of_a < a->mesh.axis_count && of_b < b->mesh.axis_count) {
        const AxisForm form_a = axis_form(a, of_a), form_b = axis_form(b, of_b);
        if (!has_same_form(&form_a, &form_b)) return false;
        of_a = proper_axis(&a->mesh, of_a + 1);
        of_b = proper_axis(&b->mesh, of_b + 1);
    }
    return of_a == a->mesh.axis_count && of_b == b->mesh.axis_count;
}

bool plan_has_same_structure(const Plan *a, const Plan *b) {
    if (!plan_has_same_shape(a, b) || plan_schedule(a) != plan_schedule(b)) return false;
    for (int32_t s = 0; s < a->stage_count; s++) {
        const PlanStage *of_a = &a->stages[s], *of_b = &b->stages[s];
        if (!has_same_axes(of_a, of_b) ||
            (of_a->recompute.range_count > 0) != (of_b->recompute.range_count > 0))
            return false;
    }
    return true;
}

/* Puts a candidate among the fastest of different kinds, in place of a slower one of its own. */
static void add_kind(PlanCandidate *of, int32_t most, bool (*is_same)(const Plan *a, const Plan *b),
                     const PlanCandidate *candidate) {
    int32_t at = 0, last = 0;
    while (at < most && of[at].plan && !candidate_is_better(candidate, &of[at])) {
        if (is_same(of[at].plan, candidate->plan)) return;
        at++;
    }
    if (at == most) return;
    for (last = at; last < most - 1 && of[last].plan; last++)
        if (is_same(of[last].plan, candidate->plan)) break;
    for (int32_t k = last; k > at; k--) of[k] = of[k - 1];
    of[at] = *candidate;
}

static void add_kinds(CandidatePool *pool, const PlanCandidate *candidate) {
    add_kind(pool->shapes, POOL_SHAPES, plan_has_same_shape, candidate);
    add_kind(pool->orders, POOL_ORDERS, plan_has_same_order, candidate);
    add_kind(pool->structures, POOL_STRUCTURES, plan_has_same_structure, candidate);
}

static void add_candidate(CandidatePool *pool, const PlanCandidate *candidate) {
    PlanCandidate *of = &pool->of[candidate->origin];
    if (candidate_is_better(candidate, of)) *of = *candidate;
    if (candidate_is_better(candidate, &pool->best)) pool->best = *candidate;
}

void pool_add(CandidatePool *pool, Plan *plan, const MemoryFit *fit, PlanOrigin origin, const char *note) {
    const PlanCandidate candidate = {plan, plan->predicted_step_seconds, *fit, origin, note};
    add_candidate(pool, &candidate);
    for (int32_t target = 0; target < TARGET_COUNT && candidate.fit.fits; target++)
        if (target_check_plan((Target)target, candidate.plan, NULL) == AM_OK)
            add_on(pool->on[target], &candidate);
    if (fit->fits) add_kinds(pool, &candidate);
}

void pool_merge(CandidatePool *pool, const CandidatePool *other) {
    if (other->best.plan) add_candidate(pool, &other->best);
    for (int32_t k = 0; k < PLAN_ORIGIN_COUNT; k++)
        if (other->of[k].plan) add_candidate(pool, &other->of[k]);
    for (int32_t target = 0; target < TARGET_COUNT; target++)
        for (int32_t k = 0; k < POOL_OF_TARGET && other->on[target][k].plan; k++)
            add_on(pool->on[target], &other->on[target][k]);
    for (int32_t k = 0; k < POOL_SHAPES && other->shapes[k].plan; k++) add_kinds(pool, &other->shapes[k]);
    for (int32_t k = 0; k < POOL_ORDERS && other->orders[k].plan; k++) add_kinds(pool, &other->orders[k]);
    for (int32_t k = 0; k < POOL_STRUCTURES && other->structures[k].plan; k++)
        add_kinds(pool, &other->structures[k]);
}

static bool has_plan(const PlanCandidate *of, int32_t count, const Plan *plan) {
    for (int32_t k = 0; k < count; k++)
        if (of[k].plan == plan) return true;
    return false;
}

bool pool_has(const CandidatePool *pool, const Plan *plan) {
    for (int32_t target = 0; target < TARGET_COUNT; target++)
        if (has_plan(pool->on[target], POOL_OF_TARGET, plan)) return true;
    return pool->best.plan == plan || has_plan(pool->of, PLAN_ORIGIN_COUNT, plan) ||
           has_plan(pool->shapes, POOL_SHAPES, plan) || has_plan(pool->orders, POOL_ORDERS, plan) ||
           has_plan(pool->structures, POOL_STRUCTURES, plan);
}

/* Appends the contexts of candidates[0..count) to contexts[0..known) and returns the new number. */
static int32_t append_contexts(const PlanContext **contexts, int32_t known, const PlanCandidate *candidates,
                               int32_t count) {
    for (int32_t k = 0; k < count; k++)
        if (candidates[k].plan && candidates[k].plan->context)
            contexts[known++] = candidates[k].plan->context;
    return known;
}

int32_t pool_contexts(const PlanContext **contexts, const CandidatePool *pool) {
    int32_t count = append_contexts(contexts, 0, &pool->best, 1);
    count = append_contexts(contexts, count, pool->of, PLAN_ORIGIN_COUNT);
    for (int32_t target = 0; target < TARGET_COUNT; target++)
        count = append_contexts(contexts, count, pool->on[target], POOL_OF_TARGET);
    count = append_contexts(contexts, count, pool->shapes, POOL_SHAPES);
    count = append_contexts(contexts, count, pool->orders, POOL_ORDERS);
    return append_contexts(contexts, count, pool->structures, POOL_STRUCTURES);
}

Plan *pool_best(const CandidatePool *pool) {
    return pool->best.fit.fits ? pool->best.plan : NULL;
}

Plan *pool_leanest(const CandidatePool *pool, double near) {
    const PlanCandidate *leanest = &pool->best;
    for (int32_t k = 0; k < POOL_STRUCTURES && pool->structures[k].plan; k++) {
        const PlanCandidate *other = &pool->structures[k];
        bool is_near = other->fit.needed_bytes > 0 && other->seconds <= near * pool->best.seconds;
        if (is_near && other->fit.needed_bytes < leanest->fit.needed_bytes) leanest = other;
    }
    return leanest == &pool->best ? NULL : leanest->plan;
}

const PlanCandidate *pool_nearest(const CandidatePool *pool) {
    return pool->best.plan && !pool->best.fit.fits ? &pool->best : NULL;
}

void pool_record(const CandidatePool *pool) {
    Plan *plan = pool_best(pool);
    if (!plan) return;
    plan->origin = pool->best.origin;
    for (int32_t k = 0; k < PLAN_ORIGIN_COUNT; k++)
        plan->found_seconds[k] = pool->of[k].fit.fits ? pool->of[k].seconds : 0;
}
