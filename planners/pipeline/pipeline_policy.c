/* Pipelines as choices of the policy of one-stage plans.
 *
 * A pipeline of the tables has cuts, widths, micro-batches and a strategy for each stage. The policy opens
 * it, and changes the axis plan of its largest group of stages with equal meshes and axis plans, all at once.
 * On that mesh the module has the same actions as a plan of one stage. An opened pipeline adds those that
 * differ from it by one decision: micro-batches, cuts, recomputation or schedule.
 */
#include "planners/pipeline/pipeline_policy.h"

#include <math.h>
#include <string.h>

#include "planners/pipeline/pipeline_balance.h"
#include "planners/pipeline/pipeline_even.h"
#include "planners/pipeline/pipeline_improve.h"
#include "planners/pipeline/stage_model.h"

typedef struct Choice {
    PipelineCandidate *root;               /* the pipeline as the tables have it, simulated or not */
    bool is_grouped[PIPELINE_MOST_STAGES]; /* [stage] */
    StageProblem *problems[STAGE_CHOICES_MESHES];
    int32_t problem_count;
} Choice;

struct PipelinePolicy {
    PipelineCandidates *candidates;
    Choice of[STAGE_CHOICES_MOST];
    StageChoices choices;
};

/* Pipelines that differ from a simulated one by one decision. */
enum { MOST_PROPOSALS = 3 + PIPELINE_SCHEDULES };
typedef struct Proposals {
    PipelineCandidate *of; /* [MOST_PROPOSALS] */
    int32_t count;
} Proposals;

/* Adds a copy of a simulated pipeline, not simulated, for the caller to change. */
static PipelineCandidate *propose(Proposals *proposals, const PipelineCandidate *root) {
    PipelineCandidate *proposed = &proposals->of[proposals->count++];
    *proposed = (PipelineCandidate){.pipeline = root->pipeline,
                                    .origin = PLAN_ORIGIN_POLICY,
                                    .schedule = root->schedule,
                                    .is_strict = root->is_strict,
                                    .chunks = root->chunks,
                                    .cuts = root->cuts};
    return proposed;
}

/* Adds a pipeline, simulated or not, that no choice is equal to. */
static void add_choice(PipelinePolicy *self, PipelineCandidate *root) {
    StageChoices *choices = &self->choices;
    const PipelineLayout *layout = &root->pipeline;
    bool is_known = layout->stage_count == 1 && layout->micro_batches == 1; /* a plan of one stage */
    for (int32_t k = 0; k < choices->count; k++) {
        const PipelineCandidate *other = self->of[k].root;
        bool is_other =
            root->is_strict != other->is_strict || (root->is_strict && root->schedule != other->schedule);
        is_known |=
            !is_other && pipeline_same_layout(&other->pipeline, layout) && pipeline_same_cuts(other, root);
    }
    if (is_known || choices->count == STAGE_CHOICES_MOST) return;
    self->of[choices->count].root = root;
    choices->seconds[choices->count] = root->plan ? root->seconds : layout->seconds;
    choices->is_priced[choices->count++] = root->plan != NULL;
}

/* Returns the price of a simulated candidate. */
static PlanPrice price_of(const PipelineCandidate *candidate) {
    const MemoryFit *fit = &candidate->fit;
    PlanPrice price = {.seconds = INFINITY};
    if (!candidate->plan) return price;
    double excess = (double)fit->needed_bytes / fmax((double)fit->limit_bytes, 1) - 1;
    price.seconds = candidate->seconds;
    price.peak_bytes = fit->needed_bytes;
    if (!fit->fits) price.excess = fmax(excess, fmax(memory_host_excess(&fit->host), 1e-3));
    return price;
}

/* Simulates a candidate, whose evaluation the caller counts. */
static AmStatus simulate(PipelinePolicy *self, PipelineCandidate *candidate, AmError *error) {
    PipelineCandidates *candidates = self->candidates;
    int64_t used = candidates->budget.used;
    if (candidates->priced_count == PIPELINE_MOST_PRICED) return AM_OK;
    AmStatus status = pipeline_price_one(candidates, candidate, error);
    candidates->budget.used = used;
    return status;
}

/* Finds the most stages of one mesh and one axis plan. Returns the first of them. */
static int32_t find_group(Choice *choice) {
    const PipelineLayout *layout = &choice->root->pipeline;
    int32_t first = 0, most = 0;
    for (int32_t s = 0; s < layout->stage_count; s++) {
        bool is_grouped[PIPELINE_MOST_STAGES] = {false};
        int32_t size = 0;
        for (int32_t t = 0; t < layout->stage_count; t++) {
            const StageLayout *a = &layout->stages[s], *b = &layout->stages[t];
            is_grouped[t] = a->place.width == b->place.width && a->strategy.tensor == b->strategy.tensor &&
                            memcmp(&choice->root->axis_plans[s], &choice->root->axis_plans[t],
                                   sizeof *choice->root->axis_plans) == 0;
            size += is_grouped[t];
        }
        if (size <= most) continue;
        first = s;
        most = size;
        memcpy(choice->is_grouped, is_grouped, sizeof is_grouped);
    }
    return first;
}

/* Makes the problem of the module on a mesh of the group, that of the pipeline first. */
static AmStatus make_problems(PipelinePolicy *self, Choice *choice, int32_t stage, AmError *error) {
    PipelinePlans *plans = &self->candidates->plans;
    const PlanConstraints *constraints = &plans->request->constraints;
    const StageLayout *layout = &choice->root->pipeline.stages[stage];
    ProblemSettings settings = problem_settings(SPACE_AUTO, constraints->memory_fraction);
    int32_t width = layout->place.width, *devices = ARENA_ARRAY(plans->arena, int32_t, width);
    if (!devices) return am_fail_memory(error, width);
    settings.constraints.is_even = constraints->is_even;
    settings.constraints.offloads_optimizer = constraints->offloads_optimizer;
    for (int32_t d = 0; d < width; d++)
        devices[d] = stage_model_device(choice->root->pipeline.order, layout->place.first + d);
    for (int32_t tensor = 0; tensor <= width && choice->problem_count < STAGE_CHOICES_MESHES; tensor++) {
        int32_t size = tensor == 0 ? layout->strategy.tensor : tensor;
        bool is_repeated = tensor == layout->strategy.tensor;
        if (width % size != 0 || is_repeated || !degrees_allow_mesh(&constraints->degrees, width, size))
            continue;
        const Mesh mesh = {.axis_count = 2,
                           .axes = {{.name = "data", .size = width / size}, {.name = "model", .size = size}},
                           .device_count = width};
        TRY(problem_create(&choice->problems[choice->problem_count], choice->root->plan->context,
                           plans->cluster, &mesh, devices, &settings, error));
        choice->problem_count++;
    }
    return AM_OK;
}

/* Returns the time of a pipeline over that without its bubble, which takes as long as `waits` micro-batches.
 */
static double bubble_factor(double micro_batches, double waits) {
    return (micro_batches + waits) / micro_batches;
}

/* Adds the pipeline with twice the micro-batches, which no table need have: its step by the bubble alone. */
static void propose_twice(Proposals *proposals, const PipelinePolicy *self, const PipelineCandidate *root) {
    const PipelineCandidates *candidates = self->candidates;
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], micro_batches = root->pipeline.micro_batches;
    int32_t count =
        micro_batches_numbers(numbers, candidates->costs->context, candidates->plans.scope->micro_batches);
    double waits = root->pipeline.stage_count - 1;
    bool is_there = false;
    for (int32_t k = 0; k < count; k++) is_there |= numbers[k] == 2 * micro_batches;
    if (!is_there || waits == 0) return;
    PipelineCandidate *twice = propose(proposals, root);
    twice->pipeline.micro_batches *= 2;
    twice->pipeline.seconds =
        root->seconds * bubble_factor(2 * micro_batches, waits) / bubble_factor(micro_batches, waits);
}

/* Adds the pipeline with cuts that balance its simulated stages. */
static void propose_cuts(Proposals *proposals, const PipelinePolicy *self, const PipelineCandidate *root) {
    PipelineScales scales;
    PipelineLayout moved = root->pipeline;
    if (moved.stage_count == 1 || root->is_strict || self->candidates->best != root) return;
    pipeline_scales(&scales, self->candidates->model, &moved, root->seconds, root->busy, root->peak_bytes);
    if (!pipeline_balance(self->candidates->model, &moved, &scales)) return;
    PipelineCandidate *proposed = propose(proposals, root);
    proposed->pipeline = moved;
    proposed->cuts = NULL;
}

/* Adds the pipeline with more recomputation in its stages that lack memory. */
static void propose_recomputation(Proposals *proposals, const PipelinePolicy *self,
                                  const PipelineCandidate *root) {
    PipelineLayout eased;
    double excess;
    if (root->fit.fits || !pipeline_recomputes_more(&eased, self->candidates, root)) return;
    double before = stage_model_seconds(self->candidates->model, &root->pipeline, &excess);
    double after = stage_model_seconds(self->candidates->model, &eased, &excess);
    if (!isfinite(after) || !(before > 0)) return;
    PipelineCandidate *proposed = propose(proposals, root);
    proposed->pipeline = eased;
    proposed->pipeline.seconds = root->seconds * after / before;
}

/* Adds the pipeline under schedules with a smaller bubble, where it is the best that fits. */
static void propose_schedules(Proposals *proposals, const PipelinePolicy *self,
                              const PipelineCandidate *root) {
    const PipelineLayout *layout = &root->pipeline;
    double waits = layout->stage_count - 1, micro_batches = layout->micro_batches;
    PipelineCandidate varied[PIPELINE_SCHEDULES];
    int32_t count = 0;
    if (self->candidates->best != root || self->candidates->plans.request->space.schedule) return;
    pipeline_list_schedules(varied, &count, self->candidates, root);
    for (int32_t k = 0; k < count; k++) {
        PipelineCandidate *proposed = propose(proposals, root);
        double fewer = varied[k].chunks.count > 1 ? waits / varied[k].chunks.count : waits / 3;
        proposed->schedule = varied[k].schedule;
        proposed->chunks = varied[k].chunks;
        proposed->is_strict = true;
        proposed->pipeline.seconds =
            root->seconds * bubble_factor(micro_batches, fewer) / bubble_factor(micro_batches, waits);
    }
}

/* Adds the choices that are one change of a simulated pipeline away from it. */
static AmStatus add_near(PipelinePolicy *self, const PipelineCandidate *root, AmError *error) {
    Proposals proposals = {.of =
                               ARENA_ARRAY(self->candidates->plans.arena, PipelineCandidate, MOST_PROPOSALS)};
    if (!proposals.of) return am_fail_memory(error, (int64_t)sizeof *proposals.of * MOST_PROPOSALS);
    propose_twice(&proposals, self, root);
    if (self->candidates->plans.request->method.changes_stages) {
        propose_cuts(&proposals, self, root);
        propose_recomputation(&proposals, self, root);
        propose_schedules(&proposals, self, root);
    }
    for (int32_t k = 0; k < proposals.count; k++) add_choice(self, &proposals.of[k]);
    return AM_OK;
}

/* Returns the problem's hash of the program that an axis plan comes to, by which its prices are remembered.
 */
static AmStatus find_key(uint64_t *key, const StageProblem *problem, const AxisPlan *axis_plan,
                         AmError *error) {
    Arena *scratch = scratch_take(problem->scratch);
    PlanStage stage = {0};
    Assignment *assignment;
    problem_stage(problem, axis_plan, scratch, &stage);
    AmStatus status = scratch->failed ? am_fail_memory(error, 0)
                                      : plan_assign(&assignment, scratch, problem->context, &stage, error);
    if (status == AM_OK) *key = problem_assignment_key(problem, assignment);
    scratch_give(problem->scratch, scratch);
    return status;
}

static AmStatus remember(StageProblem *problem, const AxisPlan *axis_plan, const PlanPrice *price,
                         AmError *error) {
    uint64_t key;
    TRY(find_key(&key, problem, axis_plan, error));
    return price_memo_add(&problem->priced.plans, key, price) ? AM_OK : am_fail_memory(error, 0);
}

static AmStatus open_choice(void *user, int32_t number, StageOpening *opening, AmError *error) {
    PipelinePolicy *self = user;
    Choice *choice = &self->of[number];
    if (!choice->root->plan) TRY(simulate(self, choice->root, error));
    opening->price = price_of(choice->root);
    if (!choice->root->plan) return AM_OK;
    TRY(add_near(self, choice->root, error));
    int32_t stage = find_group(choice);
    TRY(make_problems(self, choice, stage, error));
    opening->axis_plan = choice->root->axis_plans[stage];
    opening->problem_count = choice->problem_count;
    TRY(remember(choice->problems[0], &opening->axis_plan, &opening->price, error));
    memcpy(opening->problems, choice->problems, sizeof choice->problems);
    return AM_OK;
}

static AmStatus price_choice(void *user, int32_t number, StageProblem *problem, const AxisPlan *axis_plan,
                             StagePrice *price, AmError *error) {
    PipelinePolicy *self = user;
    const Choice *choice = &self->of[number];
    uint64_t key;
    TRY(find_key(&key, problem, axis_plan, error));
    const PlanPrice *known = price_memo_find(&problem->priced.plans, key);
    if (known) {
        *price = (StagePrice){.price = *known};
        return AM_OK;
    }
    Arena *arena = self->candidates->plans.arena;
    int32_t stages = choice->root->pipeline.stage_count;
    PipelineCandidate *candidate = ARENA_ARRAY(arena, PipelineCandidate, 1);
    AxisPlan *axis_plans = ARENA_ARRAY(arena, AxisPlan, stages);
    if (!candidate || !axis_plans) return am_fail_memory(error, (int64_t)sizeof *candidate);
    *candidate = (PipelineCandidate){.pipeline = choice->root->pipeline,
                                     .origin = PLAN_ORIGIN_POLICY,
                                     .schedule = choice->root->schedule,
                                     .is_strict = choice->root->is_strict,
                                     .chunks = choice->root->chunks,
                                     .is_apart = true,
                                     .cuts = choice->root->cuts,
                                     .axis_plans = axis_plans};
    for (int32_t s = 0; s < stages; s++) {
        axis_plans[s] = choice->is_grouped[s] ? *axis_plan : choice->root->axis_plans[s];
        if (choice->is_grouped[s]) candidate->pipeline.stages[s].strategy.tensor = problem->mesh.axes[1].size;
    }
    TRY(simulate(self, candidate, error));
    *price = (StagePrice){.price = price_of(candidate), .is_new = candidate->plan != NULL};
    return remember(problem, axis_plan, &price->price, error);
}

static bool has_choices(const PipelineCandidates *candidates) {
    const PlanConstraints *constraints = &candidates->plans.request->constraints;
    return constraints->pin_count == 0 && constraints->target == TARGET_AUTOMAP;
}

bool pipeline_policy_chooses(const PipelineCandidates *candidates) {
    return candidates->plans.scope->purpose == PURPOSE_STAGES && has_choices(candidates);
}

/* Adds the pipelines of the baselines, with their own cuts, in the fastest number of micro-batches by the
 * tables. */
static AmStatus add_baselines(PipelinePolicy *self, AmError *error) {
    enum { MOST = 8 };
    const PipelineCandidates *candidates = self->candidates;
    PipelineEven *even = ARENA_ARRAY(candidates->plans.arena, PipelineEven, MOST);
    PipelineCandidate *roots = ARENA_ARRAY(candidates->plans.arena, PipelineCandidate, MOST);
    int32_t count = 0;
    if (!even || !roots) return am_fail_memory(error, (int64_t)sizeof *roots * MOST);
    if (candidates->model) TRY(pipeline_even_list(even, MOST, &count, candidates->model, error));
    for (int32_t k = 0; k < count; k++) {
        roots[k] = (PipelineCandidate){.pipeline = even[k].pipeline,
                                       .origin = PLAN_ORIGIN_BASELINE,
                                       .schedule = pipeline_wanted_schedule(candidates->plans.scope),
                                       .cuts = even[k].cuts};
        add_choice(self, &roots[k]);
    }
    return AM_OK;
}

/* Adds the pipelines that the tables found. */
static AmStatus add_found(PipelinePolicy *self, AmError *error) {
    const PipelineCandidates *candidates = self->candidates;
    PipelineCandidate *roots =
        ARENA_ARRAY(candidates->plans.arena, PipelineCandidate, candidates->found_count + 1);
    if (!roots) return am_fail_memory(error, candidates->found_count);
    for (int32_t k = 0; k < candidates->found_count; k++) {
        roots[k] = (PipelineCandidate){.pipeline = candidates->found[k],
                                       .origin = PLAN_ORIGIN_POLICY,
                                       .schedule = pipeline_wanted_schedule(candidates->plans.scope)};
        add_choice(self, &roots[k]);
    }
    return AM_OK;
}

AmStatus pipeline_policy_open(PipelinePolicy **policy, PipelineCandidates *candidates, AmError *error) {
    PipelinePolicy *self = *policy = ARENA_ARRAY(candidates->plans.arena, PipelinePolicy, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->candidates = candidates;
    self->choices = (StageChoices){.user = self, .open = open_choice, .price = price_choice};
    if (!has_choices(candidates)) return AM_OK;
    for (int32_t k = 0; k < candidates->priced_count; k++) {
        PipelineCandidate *priced = candidates->priced[k];
        bool is_of_tables = !priced->given && !priced->is_apart && priced->chunks.count <= 1;
        if (is_of_tables && priced->plan) add_choice(self, priced);
    }
    TRY(add_baselines(self, error));
    return add_found(self, error);
}

void pipeline_policy_close(PipelinePolicy *policy) {
    for (int32_t k = 0; policy && k < policy->choices.count; k++)
        for (int32_t p = 0; p < policy->of[k].problem_count; p++) problem_free(policy->of[k].problems[p]);
}

const StageChoices *pipeline_policy_choices(const PipelinePolicy *policy) {
    return policy->choices.count > 0 ? &policy->choices : NULL;
}
