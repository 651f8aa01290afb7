/* The one-stage plans on one mesh as a problem: class sets, axis plans and their prices.
 *
 * problem_price() assigns, lowers and prices an axis plan once. The memo finds it again by its lists, and the
 * price memo by its assignment, since many axis plans give the same assignment.
 */
#include "planners/problem/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/system/parallel.h"
#include "cost/simulate/simulate.h"
#include "cost/step/price.h"
#include "ir/analysis/loops.h"
#include "lowering/spmd/lower.h"
#include "planners/targets/target_checks.h"

typedef struct MemoEntry {
    AxisPlan axis_plan;
    PlanPrice price;
    bool used, tried;
} MemoEntry;

/* A plan whose changes may not have been tried. */
typedef struct UntriedPlan {
    double score;
    AxisPlan axis_plan;
} UntriedPlan;

typedef struct ProblemMemo {
    MemoEntry *entries; /* open addressing, capacity a power of two */
    int32_t count, capacity;
    UntriedPlan
        *untried; /* a heap, the cheapest first; those that have been tried leave it when they are first */
    int32_t untried_count, untried_capacity;
} ProblemMemo;

enum { WORTH_THREADS = 1000 }; /* instructions */

static const char *const space_names[SPACE_COUNT] = {"auto", "single_stage", "operator",
                                                     "data", "pipeline",     "hybrid"};

const char *plan_space_name(PlanSpace space) {
    return space_names[space];
}

/* Returns whether class set a precedes b: larger linkage groups first (Auto-MAP section 4.2), then more
 * weight, then the smaller name. */
static bool comes_before(const ClassSet *a, const ClassSet *b) {
    if (a->linkage_size != b->linkage_size) return a->linkage_size > b->linkage_size;
    if (a->weight_share != b->weight_share) return a->weight_share > b->weight_share;
    return a->classes[0] < b->classes[0];
}

/* Lists the classes of each tie one after the other: of tie t they are members[first[t]] to members[first[t
 * + 1] - 1], ascending. */
static AmStatus group_by_tie(const Classes *classes, Arena *arena, int32_t **first, int32_t **members,
                             AmError *error) {
    *first = ARENA_ARRAY(arena, int32_t, classes->tie_count + 2);
    *members = ARENA_ARRAY(arena, int32_t, classes->count + 1);
    if (arena->failed) return am_fail_memory(error, classes->count);
    for (int32_t c = 0; c < classes->count; c++) (*first)[classes->classes[c].tie + 2]++;
    for (int32_t t = 0; t < classes->tie_count; t++) (*first)[t + 1] += (*first)[t];
    for (int32_t c = 0; c < classes->count; c++) (*members)[(*first)[classes->classes[c].tie + 1]++] = c;
    return AM_OK;
}

static AmStatus find_class_sets(StageProblem *self, PlanSpace space, AmError *error) {
    const Classes *classes = self->context->classes;
    const IrModule *module = self->context->canonical;
    double weights = 0, flops = 1; /* elements of all weights */
    for (int32_t k = 0; k < self->context->roles->parameter_count; k++) {
        int32_t instruction = plan_context_parameter(self->context, k)->instruction;
        if (plan_context_parameter(self->context, k)->role != IR_ROLE_WEIGHT) continue;
        weights += (double)ir_shape_elements(&module->instructions[instruction].shape) *
                   ir_layers_of(module, instruction);
    }
    if (weights == 0) weights = 1;
    for (int32_t c = 0; c < classes->count; c++) flops += classes->classes[c].flops;
    self->class_sets = ARENA_ARRAY(&self->arena, ClassSet, classes->tie_count + 1);
    if (self->arena.failed) return am_fail_memory(error, classes->tie_count);
    int32_t *first, *of_tie;
    TRY(group_by_tie(classes, &self->arena, &first, &of_tie, error));
    for (int32_t tie = 0; tie < classes->tie_count; tie++) {
        ClassSet class_set = {0};
        int32_t *members = ARENA_ARRAY(&self->arena, int32_t, first[tie + 1] - first[tie] + 1);
        if (!members) return am_fail_memory(error, classes->count);
        for (int32_t k = first[tie]; k < first[tie + 1]; k++) {
            int32_t c = of_tie[k];
            const DimensionClass *class = &classes->classes[c];
            if (self->pins.is_pinned[c]) continue;
            members[class_set.class_count++] = c;
            class_set.linkage_size += class->weight_count;
            class_set.splits_data = class_set.splits_data || class->data_count > 0;
            class_set.splits_weights = class_set.splits_weights || class->weight_count > 0;
            class_set.weight_share += (double)class->weight_elements / weights;
            class_set.flops_share += class->flops / flops;
            if (class_set.size == 0 || (double)class->size < class_set.size)
                class_set.size = (double)class->size;
        }
        class_set.classes = members;
        bool wanted = class_set.class_count > 0 && (class_set.splits_data || class_set.splits_weights);
        /* Positions of an image, which no product is split by but with halos: left to pins and overrides. */
        if (!class_set.splits_weights && class_set.flops_share == 0 && flops > 1) wanted = false;
        if (space == SPACE_OPERATOR) wanted = wanted && class_set.splits_weights;
        if (space == SPACE_DATA) wanted = wanted && class_set.splits_data;
        if (!wanted || self->class_set_count == UINT8_MAX) continue;
        int32_t place = self->class_set_count++;
        for (; place > 0 && comes_before(&class_set, &self->class_sets[place - 1]); place--)
            self->class_sets[place] = self->class_sets[place - 1];
        self->class_sets[place] = class_set;
    }
    return AM_OK;
}

/* The largest fraction of a device's memory for gathered weights, all of them replicated, that are kept
 * from one pass to the next. */
#define MOST_KEPT 0.25

/* Returns the bytes of gathered weights: each in the narrowest of the types to which it is converted. */
static double gathered_bytes(const PlanContext *context, Arena *scratch) {
    const StorageRoles *roles = context->split_options->storage;
    ArenaMark mark = arena_mark(scratch);
    double *least = ARENA_ARRAY(scratch, double, context->rules->entry_count + 1), sum = 0;
    if (!least) return INFINITY;
    for (int32_t i = 0; i < context->rules->entry_count; i++) {
        if (roles->role[i] != STORAGE_WEIGHT || roles->weight[i] < 0 || !context->split_options->live[i])
            continue;
        double *of_weight = &least[context->roles->parameters[roles->weight[i]].instruction];
        if (*of_weight == 0 || context->split_options->array_bytes[i] < *of_weight)
            *of_weight = context->split_options->array_bytes[i];
    }
    for (int32_t i = 0; i < context->rules->entry_count; i++)
        sum += least[i] * ir_layers_of(context->canonical, i);
    arena_release(scratch, mark);
    return sum;
}

double problem_memory_limit(const StageProblem *problem) {
    return memory_usable(problem->cluster, problem->devices, problem->mesh.device_count,
                         problem->constraints.memory_fraction);
}

AmStatus problem_create(StageProblem **problem, const PlanContext *context, const Cluster *cluster,
                        const Mesh *mesh, const int32_t *devices, const ProblemSettings *settings,
                        AmError *error) {
    Arena arena = {0};
    StageProblem *self = ARENA_ARRAY(&arena, StageProblem, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (StageProblem){.arena = arena,
                           .context = context,
                           .cluster = cluster,
                           .mesh = *mesh,
                           .devices = devices,
                           .constraints = settings->constraints,
                           .space = settings->space,
                           .scratch = settings->scratch,
                           .budget = settings->budget,
                           .watch = settings->watch};
    AmStatus status = AM_OK;
    if (!self->scratch) self->scratch = self->own_scratch = scratch_create();
    if (!self->scratch) status = am_fail_memory(error, (int64_t)sizeof *self->scratch);
    if (status != AM_OK) goto fail;
    const PinSet pins = {.pins = settings->constraints.pins,
                         .count = settings->constraints.pin_count,
                         .kept = settings->constraints.kept,
                         .is_even = settings->constraints.is_even};
    TRY_OR_FAIL(pins_on_mesh(&self->pins, &self->arena, context, mesh, &pins, error));
    TRY_OR_FAIL(find_class_sets(self, settings->space, error));
    bool updates_weights = false;
    for (int32_t k = 0; k < context->roles->parameter_count; k++)
        updates_weights |=
            context->roles->parameters[k].role == IR_ROLE_WEIGHT && context->roles->parameters[k].output >= 0;
    self->has_storage = settings->space != SPACE_OPERATOR && self->pins.count == 0 && updates_weights;
    self->gathered.bytes = gathered_bytes(context, &self->arena);
    self->gathered.may_stay =
        !context->primary && self->gathered.bytes <= MOST_KEPT * problem_memory_limit(self);
    self->priced.axis_plans = ARENA_ARRAY(&self->arena, ProblemMemo, 1);
    self->strict = ARENA_ARRAY(&self->arena, StrictClassSets, MESH_MAX_AXES);
    if (self->priced.axis_plans) self->priced.axis_plans->capacity = 256;
    if (self->priced.axis_plans)
        self->priced.axis_plans->entries =
            ARENA_ARRAY(&self->arena, MemoEntry, self->priced.axis_plans->capacity);
    status = self->arena.failed ? am_fail_memory(error, 0) : AM_OK;
    if (status != AM_OK) goto fail;
    self->priced.plans = (PriceMemo){.arena = &self->arena};
    *problem = self;
    return AM_OK;
fail:
    problem_free(self);
    return status;
}

void problem_free(StageProblem *problem) {
    if (!problem) return;
    scratch_free(problem->own_scratch);
    Arena arena = problem->arena;
    arena_free(&arena);
}

static MemoEntry *memo_find(const ProblemMemo *memo, const AxisPlan *axis_plan) {
    uint64_t at = hash_bytes(axis_plan, sizeof *axis_plan, 0);
    for (;; at++) {
        MemoEntry *entry = &memo->entries[at & (uint64_t)(memo->capacity - 1)];
        if (!entry->used || memcmp(&entry->axis_plan, axis_plan, sizeof *axis_plan) == 0) return entry;
    }
}

/* Returns whether a precedes b: by price, and at equal prices, which are common, not by the order of the
 * table. */
static bool is_before(const UntriedPlan *a, const UntriedPlan *b) {
    if (a->score != b->score) return a->score < b->score;
    return memcmp(&a->axis_plan, &b->axis_plan, sizeof a->axis_plan) < 0;
}

static void untried_pop(ProblemMemo *memo) {
    UntriedPlan *heap = memo->untried;
    const UntriedPlan last = heap[--memo->untried_count];
    int32_t at = 0, count = memo->untried_count;
    for (int32_t below = 1; below < count; below = 2 * at + 1) {
        if (below + 1 < count && is_before(&heap[below + 1], &heap[below])) below++;
        if (!is_before(&heap[below], &last)) break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = last;
}

int32_t problem_fastest(AxisPlan *fastest, const StageProblem *problem, int32_t most) {
    const ProblemMemo *memo = problem->priced.axis_plans;
    int32_t count = 0;
    for (double before = 0; count < most;) {
        const MemoEntry *next = NULL;
        for (int32_t k = 0; k < memo->capacity; k++) {
            const MemoEntry *entry = &memo->entries[k];
            bool is_later = entry->used && entry->price.excess <= 0 && entry->price.seconds > before;
            if (!is_later || !isfinite(entry->price.seconds)) continue;
            if (!next || entry->price.seconds < next->price.seconds ||
                (entry->price.seconds == next->price.seconds &&
                 memcmp(&entry->axis_plan, &next->axis_plan, sizeof next->axis_plan) < 0))
                next = entry;
        }
        if (!next) break;
        before = next->price.seconds;
        fastest[count++] = next->axis_plan;
    }
    return count;
}

bool problem_best_untried(StageProblem *problem, AxisPlan *axis_plan) {
    ProblemMemo *memo = problem->priced.axis_plans;
    while (memo->untried_count > 0 && memo_find(memo, &memo->untried[0].axis_plan)->tried) untried_pop(memo);
    if (memo->untried_count > 0) *axis_plan = memo->untried[0].axis_plan;
    return memo->untried_count > 0;
}

void problem_set_tried(StageProblem *problem, const AxisPlan *axis_plan) {
    memo_find(problem->priced.axis_plans, axis_plan)->tried = true;
}

void problem_stage(const StageProblem *problem, const AxisPlan *axis_plan, Arena *arena, PlanStage *stage) {
    static const PlanEntryKind kinds[AXIS_PLAN_STORAGE_KINDS] = {PLAN_OPTIMIZER, PLAN_GRADIENTS,
                                                                 PLAN_WEIGHTS};
    *stage = (PlanStage){.mesh = problem->mesh,
                         .is_even = problem->constraints.is_even,
                         .offloads_optimizer = problem->constraints.offloads_optimizer};
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++)
        stage->keeps_gathered_weights |= axis_plan->storage[axis] == AXIS_PLAN_STORAGE_KINDS;
    stage->keeps_gathered_weights |= problem->context->split_options->storage->reread_count > 0;
    stage->keeps_gathered_weights &= problem->gathered.may_stay && !axis_plan->gathers_again;
    stage->devices = ARENA_ARRAY(arena, int32_t, problem->mesh.device_count);
    stage->ranges = arena_alloc(arena, sizeof *stage->ranges);
    if (arena->failed) return;
    stage->ranges[0][1] = plan_context_primary(problem->context)->rules->entry_count;
    stage->range_count = 1;
    memcpy(stage->devices, problem->devices, sizeof(int32_t) * (size_t)problem->mesh.device_count);
    stage->override_count = problem->pins.override_count;
    stage->overrides = ARENA_ARRAY(arena, PlanOverride, stage->override_count + 1);
    if (!stage->overrides) return;
    for (int32_t k = 0; k < stage->override_count; k++) stage->overrides[k] = problem->pins.overrides[k];
    for (int32_t axis = 0; axis < problem->mesh.axis_count; axis++) {
        PlanAxisPriority *priority = &stage->axis_priorities[axis];
        const PlanAxisPriority *prefix = &problem->pins.prefix[axis];
        int32_t total = prefix->count;
        for (int32_t k = 0; k < axis_plan->count[axis]; k++)
            total += problem->class_sets[axis_plan->entries[axis][k]].class_count;
        priority->entries = ARENA_ARRAY(arena, PlanEntry, total + AXIS_PLAN_STORAGE_KINDS + 1);
        if (!priority->entries) return;
        for (int32_t k = 0; k < prefix->count; k++) priority->entries[priority->count++] = prefix->entries[k];
        for (int32_t k = 0; k < axis_plan->count[axis]; k++) {
            const ClassSet *class_set = &problem->class_sets[axis_plan->entries[axis][k]];
            for (int32_t c = 0; c < class_set->class_count; c++)
                if (!problem->pins.is_pinned[class_set->classes[c]])
                    priority->entries[priority->count++] = (PlanEntry){.class_index = class_set->classes[c]};
        }
        for (int32_t k = 0; k < axis_plan->storage[axis]; k++)
            priority->entries[priority->count++] =
                (PlanEntry){.class_index = PLAN_ANY_CLASS, .kind = kinds[k]};
    }
}

double plan_price_score(const PlanPrice *price) {
    return price->excess > 0 ? price->seconds * (10 + 10 * price->excess) : price->seconds;
}

bool plan_price_better(const PlanPrice *a, const PlanPrice *b) {
    if ((a->excess > 0) != (b->excess > 0)) return b->excess > 0;
    if (a->excess > 0 && a->excess != b->excess) return a->excess < b->excess;
    return a->seconds < b->seconds;
}

static void keep_best(StageProblem *self, const AxisPlan *axis_plan, const PlanPrice *price) {
    if (!isfinite(price->seconds)) return;
    if (self->best.is_known && !plan_price_better(price, &self->best.price)) return;
    self->best.axis_plan = *axis_plan;
    self->best.axis_plan.gathers_again |= price->gathers_again;
    self->best.price = *price;
    self->best.is_known = true;
}

/* Lists that differ only in entries or order without effect come to the same. */
uint64_t problem_assignment_key(const StageProblem *self, const Assignment *assignment) {
    size_t count = (size_t)plan_context_count(self->context);
    uint64_t key = hash_bytes(assignment->factor, count * MESH_MAX_AXES, 1);
    key = hash_bytes(assignment->stored, count * sizeof *assignment->stored, key);
    key = hash_bytes(assignment->regathered, count * sizeof *assignment->regathered, key);
    key = hash_bytes(assignment->carries, count, key);
    if (assignment->pinned) key = hash_bytes(assignment->pinned, count * sizeof *assignment->pinned, key);
    return hash_bytes(assignment->deferred, count, key);
}

/* The result of one evaluation. */
typedef struct Evaluation {
    AxisPlan axis_plan;
    PlanPrice price;
    uint64_t key;
    int32_t priced; /* plans */
    AmStatus status;
    AmError error;
} Evaluation;

/* Returns by which fraction devices with `bytes` each in their host exceed the limit of the fullest host. */
static AmStatus find_host_excess(double *excess, const StageProblem *self, Arena *scratch, int64_t bytes,
                                 AmError *error) {
    int32_t count = self->mesh.device_count;
    HostFit fit;
    *excess = 0;
    if (bytes == 0) return AM_OK;
    int64_t *of_device = ARENA_ARRAY(scratch, int64_t, count);
    if (!of_device) return am_fail_memory(error, count);
    for (int32_t d = 0; d < count; d++) of_device[d] = bytes;
    TRY(memory_host_fit(&fit, scratch, of_device, self->devices, count, self->cluster,
                        self->constraints.memory_fraction, error));
    *excess = memory_host_excess(&fit);
    return AM_OK;
}

AmStatus problem_price_assignment(PlanPrice *price, const StageProblem *problem, Arena *scratch,
                                  const Assignment *assignment, AmError *error) {
    Program *program;
    StepPrice step;
    TRY(plan_lower(&program, scratch, problem->context, assignment, 0, error));
    TRY(price_program(&step, program, problem->cluster, problem->devices, error));
    double limit = problem_memory_limit(problem);
    *price = (PlanPrice){.seconds = step.step_seconds,
                         .compute_seconds = step.compute_seconds,
                         .communication_seconds = step.communication_seconds,
                         .peak_bytes = step.peak_bytes,
                         .excess = (double)step.peak_bytes > limit ? (double)step.peak_bytes / limit - 1 : 0};
    double of_host;
    TRY(find_host_excess(&of_host, problem, scratch, program->allocation.host_bytes, error));
    price->excess = fmax(price->excess, of_host);
    return AM_OK;
}

/* Devices with unequal shares run programs of their own, so the stage is simulated. */
static AmStatus simulate_stage(PlanPrice *price, const StageProblem *self, Arena *scratch, PlanStage *stage,
                               AmError *error) {
    const Plan plan = {.stages = stage,
                       .stage_count = 1,
                       .micro_batches = plan_context_micro_batches(self->context),
                       .schedule = "none",
                       .context = self->context};
    Simulation *simulation;
    TRY(simulate_plan(&simulation, scratch, self->context, &plan, self->cluster,
                      &(SimulationOptions){.memory_fraction = self->constraints.memory_fraction}, error));
    const SimulatedDevice *fullest = &simulation->devices[simulation->fullest];
    double needed = simulation->fit.needed_fraction / self->constraints.memory_fraction;
    *price = (PlanPrice){.seconds = simulation->step_seconds,
                         .compute_seconds = fullest->compute_seconds,
                         .communication_seconds = fullest->communication_seconds,
                         .peak_bytes = simulation->fit.needed_bytes,
                         .excess = fmax(needed - 1, memory_host_excess(&simulation->host))};
    return AM_OK;
}

static AmStatus price_stage(const StageProblem *self, Arena *scratch, PlanStage *stage,
                            Evaluation *evaluation, AmError *error) {
    Assignment *assignment;
    TRY(plan_assign(&assignment, scratch, self->context, stage, error));
    evaluation->key = problem_assignment_key(self, assignment);
    const PlanPrice *known = price_memo_find(&self->priced.plans, evaluation->key);
    if (known) {
        evaluation->price = *known;
        return AM_OK;
    }
    evaluation->priced++;
    if (target_check_pools(self->constraints.target, self->context, assignment->stored, NULL) != AM_OK) {
        evaluation->price = (PlanPrice){.seconds = INFINITY};
        return AM_OK;
    }
    if (!mesh_has_equal_shares(&self->mesh))
        return simulate_stage(&evaluation->price, self, scratch, stage, error);
    return problem_price_assignment(&evaluation->price, self, scratch, assignment, error);
}

/* Evaluates with gathered weights kept, if allowed; or gathered again if only that fits. */
static AmStatus evaluate_in(const StageProblem *self, Arena *scratch, Evaluation *evaluation,
                            AmError *error) {
    PlanStage *stage = ARENA_ARRAY(scratch, PlanStage, 1);
    if (!stage) return am_fail_memory(error, (int64_t)sizeof *stage);
    problem_stage(self, &evaluation->axis_plan, scratch, stage);
    if (scratch->failed) return am_fail_memory(error, 0);
    if (!degrees_allow_stage(&self->constraints.degrees, self->context, stage)) {
        evaluation->price = (PlanPrice){.seconds = INFINITY};
        return AM_OK;
    }
    TRY(price_stage(self, scratch, stage, evaluation, error));
    double over = evaluation->price.excess * problem_memory_limit(self);
    if (!stage->keeps_gathered_weights || over <= 0 || over > self->gathered.bytes) return AM_OK;
    stage->keeps_gathered_weights = false;
    TRY(price_stage(self, scratch, stage, evaluation, error));
    evaluation->price.gathers_again = true;
    return AM_OK;
}

/* Assigns, lowers and prices an axis plan. Leaves the problem unchanged, so that threads may call it. */
static void evaluate_plan(const StageProblem *self, Evaluation *evaluation) {
    Arena *scratch = scratch_take(self->scratch);
    evaluation->status = evaluate_in(self, scratch, evaluation, &evaluation->error);
    scratch_give(self->scratch, scratch);
}

static AmStatus keep_price(StageProblem *self, const Evaluation *evaluation, AmError *error) {
    TRY(am_pass_error(evaluation->status, &evaluation->error, error));
    /* Others of its batch may have come to the same plan. */
    bool is_repeat = price_memo_find(&self->priced.plans, evaluation->key) != NULL;
    if (is_repeat) self->priced.repeats++;
    else self->budget.used += evaluation->priced;
    search_watch_count(self->watch, is_repeat ? 0 : evaluation->priced,
                       evaluation->price.excess > 0 ? NAN : evaluation->price.seconds);
    if (!price_memo_add(&self->priced.plans, evaluation->key, &evaluation->price))
        return am_fail_memory(error, 0);
    ProblemMemo *memo = self->priced.axis_plans;
    if (2 * memo->count >= memo->capacity) {
        ProblemMemo larger = *memo;
        larger.capacity *= 2;
        larger.entries = ARENA_ARRAY(&self->arena, MemoEntry, larger.capacity);
        if (!larger.entries) return am_fail_memory(error, larger.capacity);
        for (int32_t k = 0; k < memo->capacity; k++)
            if (memo->entries[k].used) *memo_find(&larger, &memo->entries[k].axis_plan) = memo->entries[k];
        *memo = larger;
    }
    *memo_find(memo, &evaluation->axis_plan) =
        (MemoEntry){.axis_plan = evaluation->axis_plan, .price = evaluation->price, .used = true};
    memo->count++;
    const UntriedPlan plan = {plan_price_score(&evaluation->price), evaluation->axis_plan};
    ARENA_RESERVE(&self->arena, memo->untried, memo->untried_count, memo->untried_capacity);
    if (self->arena.failed) return am_fail_memory(error, memo->untried_count);
    int32_t at = memo->untried_count++;
    for (; at > 0 && is_before(&plan, &memo->untried[(at - 1) / 2]); at = (at - 1) / 2)
        memo->untried[at] = memo->untried[(at - 1) / 2];
    memo->untried[at] = plan;
    keep_best(self, &evaluation->axis_plan, &evaluation->price);
    return AM_OK;
}

bool problem_known(const StageProblem *self, const AxisPlan *axis_plan, PlanPrice *price) {
    const MemoEntry *seen = memo_find(self->priced.axis_plans, axis_plan);
    if (seen->used) *price = seen->price;
    return seen->used;
}

AmStatus problem_price(StageProblem *self, const AxisPlan *axis_plan, PlanPrice *price, AmError *error) {
    const MemoEntry *seen = memo_find(self->priced.axis_plans, axis_plan);
    if (seen->used) {
        *price = seen->price;
        keep_best(self, axis_plan, price);
        return AM_OK;
    }
    if (!budget_try_take(&self->budget, 1)) {
        *price = (PlanPrice){.seconds = INFINITY, .compute_seconds = INFINITY};
        return AM_OK;
    }
    Evaluation evaluation = {.axis_plan = *axis_plan};
    evaluate_plan(self, &evaluation);
    TRY(keep_price(self, &evaluation, error));
    *price = evaluation.price;
    return AM_OK;
}

typedef struct Batch {
    StageProblem *problem;
    Evaluation evaluations[PROBLEM_BATCH];
    int32_t count;
} Batch;

static void evaluate_one(void *user, int32_t k) {
    Batch *batch = user;
    evaluate_plan(batch->problem, &batch->evaluations[k]);
}

AmStatus problem_price_batch(StageProblem *self, const AxisPlan *axis_plans, int32_t count, AmError *error) {
    Batch *batch = calloc(1, sizeof *batch);
    AmStatus status = AM_OK;
    if (!batch) return am_fail_memory(error, (int64_t)sizeof *batch);
    batch->problem = self;
    const int32_t most_of_one =
        self->gathered.may_stay ? 2 : 1; /* prices: weights kept gathered, and gathered again */
    for (int32_t k = 0; k < count; k++) {
        bool is_known = memo_find(self->priced.axis_plans, &axis_plans[k])->used;
        for (int32_t other = 0; other < batch->count && !is_known; other++)
            is_known = memcmp(&batch->evaluations[other].axis_plan, &axis_plans[k], sizeof *axis_plans) == 0;
        if (is_known) continue;
        if (self->budget.used + batch->count >= self->budget.limit) break;
        if (!budget_try_take(&self->budget, most_of_one * (batch->count + 1))) break;
        batch->evaluations[batch->count++].axis_plan = axis_plans[k];
    }
    /* A thread takes longer to start than a small module to be priced. */
    int32_t threads = plan_context_count(self->context) < WORTH_THREADS ? 1 : 0;
    parallel_for(batch->count, threads, evaluate_one, batch);
    for (int32_t k = 0; k < batch->count && status == AM_OK; k++)
        status = keep_price(self, &batch->evaluations[k], error);
    free(batch);
    return status;
}

bool problem_can_split(const StageProblem *problem, int32_t class_set, int32_t axis) {
    int32_t size = problem->mesh.axes[axis].size;
    const ClassSet *self = &problem->class_sets[class_set];
    if (size == 1) return false;
    for (int32_t k = 0; k < self->class_count; k++) {
        int64_t elements = problem->context->classes->classes[self->classes[k]].size;
        if (problem->constraints.is_even ? elements % size == 0 : elements >= size) return true;
    }
    return false;
}

int32_t problem_storage_kinds(const StageProblem *problem, int32_t axis) {
    return problem->has_storage && problem->mesh.axes[axis].size > 1 ? AXIS_PLAN_STORAGE_KINDS : 0;
}

bool problem_must_stop(const StageProblem *problem) {
    const SearchBudget *budget = &problem->budget;
    bool is_complete =
        budget->used >= budget->limit || problem->priced.repeats >= BUDGET_REPEATS * budget->limit;
    return is_complete || budget_is_over(budget);
}

bool axis_plan_has(const AxisPlan *axis_plan, int32_t axis, int32_t class_set) {
    for (int32_t k = 0; k < axis_plan->count[axis]; k++)
        if (axis_plan->entries[axis][k] == class_set) return true;
    return false;
}

bool axis_plan_insert(AxisPlan *axis_plan, int32_t axis, int32_t place, int32_t class_set) {
    if (axis_plan->count[axis] == AXIS_PLAN_MAX_ENTRIES || axis_plan_has(axis_plan, axis, class_set))
        return false;
    uint8_t *entries = axis_plan->entries[axis];
    memmove(&entries[place + 1], &entries[place], (size_t)(axis_plan->count[axis] - place));
    entries[place] = (uint8_t)class_set;
    axis_plan->count[axis]++;
    return true;
}

void axis_plan_remove(AxisPlan *axis_plan, int32_t axis, int32_t place) {
    uint8_t *entries = axis_plan->entries[axis];
    axis_plan->count[axis]--;
    memmove(&entries[place], &entries[place + 1], (size_t)(axis_plan->count[axis] - place));
    entries[axis_plan->count[axis]] = 0; /* equal axis priorities are equal bytes */
}
