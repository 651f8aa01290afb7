/* Search over all meshes of a cluster; see search.h.
 *
 * On every mesh the expert plans are priced, the searcher explores, and the best
 * plan is polished; then the meshes compete for what evaluations are left.
 */
#include "planners/search.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/parallel.h"
#include "cost/simulate.h"
#include "planners/even_pipeline.h"
#include "planners/expert.h"
#include "planners/searchers.h"
#include "propagation/micro_batches.h"

#define EXHAUSTIVE_LIMIT 200000
#define MAX_MESHES       64

const char *searcher_name(Searcher searcher) {
    static const char *const names[] = {
#define SEARCHER_NAME(name, text, help) text,
        SEARCHER_LIST(SEARCHER_NAME)
#undef SEARCHER_NAME
    };
    return names[searcher];
}

const char *expert_name(Expert expert) {
    static const char *const names[] = {
#define EXPERT_NAME(name, text, help) text,
        EXPERT_LIST(EXPERT_NAME)
#undef EXPERT_NAME
    };
    return names[expert];
}

typedef struct Searching {
    Arena *arena;
    const PlanContext *context;
    const Cluster *cluster;
    const SearchOptions *options;
    int64_t limit; /* evaluations of all problems together */
    double deadline;
    SearchResult *result;
    int32_t *devices; /* 0, 1, ... */
    Problem *problems[MAX_MESHES];
    int32_t problem_count;
    Plan *expert_plans[EXPERT_COUNT]; /* as quoted; NULL where there is none */
    Problem *expert_problems[EXPERT_COUNT];
} Searching;

static AmStatus add_problem(Searching *self, const Mesh *mesh, AmError *error) {
    const SearchOptions *options = self->options;
    ProblemSettings settings = {
        .space = options->space,
        .memory_fraction = options->memory_fraction,
        .budget = {.limit = self->limit, .deadline = self->deadline, .interrupted = options->interrupted},
        .pins = options->pins,
        .pin_count = options->pin_count,
        .kept = options->kept,
        .is_even = options->is_even};
    TRY(problem_create(&self->problems[self->problem_count], self->context, self->cluster, mesh,
                       self->devices, &settings, error));
    self->problem_count++;
    return AM_OK;
}

/* Every ordered split of the devices into data x model on which the pins can
 * hold, or the one mesh asked for. */
static AmStatus create_problems(Searching *self, AmError *error) {
    int32_t devices = self->cluster->device_count;
    if (self->options->mesh) {
        Mesh mesh;
        TRY(mesh_parse(&mesh, self->arena, self->options->mesh, error));
        if (mesh.axis_count > GENOME_AXES)
            return am_fail(error, AM_ERROR_USAGE, "", "--mesh %s: at most %d axes can be searched",
                           self->options->mesh, GENOME_AXES);
        if (mesh.device_count != devices)
            return am_fail(error, AM_ERROR_USAGE, "", "--mesh %s has %d devices, cluster %s has %d",
                           self->options->mesh, mesh.device_count, self->cluster->name, devices);
        return add_problem(self, &mesh, error);
    }
    AmError refusal = {0}; /* of the last mesh left out */
    for (int32_t model = 1; model <= devices && self->problem_count < MAX_MESHES; model++) {
        if (devices % model != 0) continue;
        Mesh mesh = {.axis_count = 2,
                     .axes = {{.name = "data", .size = devices / model}, {.name = "model", .size = model}},
                     .device_count = devices};
        refusal = (AmError){0};
        AmStatus status = add_problem(self, &mesh, &refusal);
        if (status == AM_OK || status == AM_ERROR_INFEASIBLE) continue;
        if (error) *error = refusal;
        return status;
    }
    if (self->problem_count > 0) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, self->context->module->source,
                   "no mesh of data x model can hold the pins; the last that was tried: %s", refusal.text);
}

/* Devices of the first device's server: the model axis of the Megatron-like recipe. */
static int32_t server_size(const Cluster *cluster) {
    int32_t size = 0;
    for (int32_t d = 0; d < cluster->device_count; d++)
        if (cluster->server_of[d] == cluster->server_of[0]) size++;
    return size;
}

/* What makes up a recipe beside the batch. */
typedef struct Recipe {
    bool splits_model, splits_sequence;
    uint8_t storage; /* kinds of storage where the batch is */
} Recipe;

static const Recipe recipes[EXPERT_COUNT] = {[EXPERT_MEGATRON] = {.splits_model = true},
                                             [EXPERT_MEGATRON_SEQUENCE] = {true, true, 0},
                                             [EXPERT_ZERO1] = {.storage = 1},
                                             [EXPERT_ZERO2] = {.storage = 2},
                                             [EXPERT_ZERO3] = {.storage = 3}};

static const char *why_no_storage(const Problem *problem) {
    if (problem->pins.count > 0) return "the pins say where parameters are stored";
    return problem->space == SPACE_OPERATOR ? "the space has operators alone" : "no weight is updated";
}

/* The recipe's genome on this mesh, beside the pins. */
static AmStatus expert_genome(const Problem *problem, Expert expert, Genome *genome, const char **reason,
                              AmError *error) {
    *genome = (Genome){0};
    *reason = NULL;
    const Mesh *mesh = &problem->mesh;
    bool is_pinned = problem->pins.count > 0;
    if (expert == EXPERT_EVEN_PIPELINE) {
        *reason = "it has several stages: --space pipeline prices it";
        return AM_OK;
    }
    const Recipe *recipe = &recipes[expert];
    if (!recipe->splits_model) {
        bool split = false;
        int32_t kinds = recipe->storage;
        for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
            bool here = expert_batch(problem, axis, genome);
            int32_t most = problem_storage_kinds(problem, axis);
            split = split || here;
            if (here && kinds > 0) genome->storage[axis] = (uint8_t)(kinds < most ? kinds : most);
            if (here && kinds > most) *reason = why_no_storage(problem);
        }
        if (!split && mesh->device_count > 1)
            *reason = is_pinned ? "the pins leave it nothing to split"
                                : "no data input has a batch dimension that the devices divide";
        return AM_OK;
    }
    bool found = false;
    if (mesh->device_count == 1) {
        *reason = "there is one device";
        return AM_OK;
    }
    if (mesh->axis_count > 1) expert_batch(problem, 0, genome);
    TRY(expert_megatron(problem, mesh->axis_count - 1, genome, &found, error));
    if (!found)
        *reason = is_pinned ? "the pins leave it nothing to split"
                            : "no weight dimension can be split by the strict rules on the model axis";
    else if (recipe->splits_sequence && !expert_sequence(problem, mesh->axis_count - 1, genome))
        *reason = "no data input has a sequence that the model axis divides";
    return AM_OK;
}

void search_describe_plan(Plan *plan, const PlanContext *context, const Cluster *cluster,
                          const SearchOptions *options) {
    const IrModule *module = plan_context_whole(context)->canonical;
    *plan = (Plan){.module_name = module->name,
                   .module_sha256 = context->sha256,
                   .module_instructions = module->instruction_count,
                   .cluster_name = cluster->name,
                   .cluster_sha256 = cluster->sha256,
                   .cluster_description = cluster->description,
                   .micro_batches = context->whole ? context->micro_batches : 1,
                   .context = context,
                   .schedule = "none",
                   .stage_count = 1,
                   .searcher = searcher_name(options->searcher),
                   .space = plan_space_name(options->space),
                   .seed = options->seed,
                   .bound_seconds = NAN};
}

/* A genome as a plan, simulated in full; the shown figures are always these. */
static AmStatus simulate_genome(Searching *self, const Problem *problem, const Genome *genome, Plan **result,
                                Simulation **simulation, AmError *error) {
    Plan *plan = ARENA_ARRAY(self->arena, Plan, 1);
    PlanStage *stage = ARENA_ARRAY(self->arena, PlanStage, 1);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof *plan);
    problem_stage(problem, genome, self->arena, stage);
    if (self->arena->failed) return am_fail_memory(error, 0);
    search_describe_plan(plan, self->context, self->cluster, self->options);
    plan->stages = stage;
    TRY(micro_batches_state_relaxations(plan, self->arena, self->context, error));
    TRY(simulate_plan(simulation, self->arena, self->context, plan, self->cluster,
                      self->options->memory_fraction, error));
    TRY(simulation_predict(plan, self->arena, *simulation, error));
    *result = plan;
    return AM_OK;
}

static const char *why_too_large(Arena *arena, const MemoryFit *fit) {
    Text text = {0};
    text_append_string(&text, "needs ");
    text_append_bytes_size(&text, (double)fit->needed_bytes);
    text_append_string(&text, " a device, the limit is ");
    text_append_bytes_size(&text, (double)fit->limit_bytes);
    const char *reason = text.failed ? "does not fit" : arena_copy_string(arena, text.data);
    text_free(&text);
    return reason;
}

/* Whether a recipe may be quoted on this mesh: data_parallel with all devices
 * on the first axis, and zero1 to 3; megatron with the model axis inside a server. */
static bool is_expert_mesh(const Searching *self, Expert expert, const Mesh *mesh) {
    if (self->problem_count == 1) return true;
    int32_t model = mesh->axes[1].size;
    return !recipes[expert].splits_model ? model == 1 : model > 1 && model <= server_size(self->cluster);
}

/* The recipes as they are quoted beside the result; not evaluations of the search. */
static AmStatus quote_expert(Searching *self, Expert expert, AmError *error) {
    ExpertResult *result = &self->result->experts[expert];
    *result = (ExpertResult){.seconds = NAN};
    /* The widest model axis first; a narrower one where that does not fit. */
    for (int32_t k = self->problem_count - 1; k >= 0 && isnan(result->seconds); k--) {
        Problem *problem = self->problems[k];
        Genome genome;
        Simulation *simulation;
        const char *reason;
        if (!is_expert_mesh(self, expert, &problem->mesh)) continue;
        TRY(expert_genome(problem, expert, &genome, &reason, error));
        if (!reason) {
            Plan *plan;
            TRY(simulate_genome(self, problem, &genome, &plan, &simulation, error));
            if (simulation->fit.fits) result->seconds = simulation->step_seconds;
            else reason = why_too_large(self->arena, &simulation->fit);
            if (simulation->fit.fits || !self->expert_plans[expert]) {
                self->expert_plans[expert] = plan;
                self->expert_problems[expert] = problem;
            }
        }
        if (!result->reason) result->reason = reason;
    }
    if (!isnan(result->seconds)) result->reason = NULL;
    else if (!result->reason) result->reason = "the devices make no mesh for it";
    return AM_OK;
}

static AmStatus quote_experts(Searching *self, AmError *error) {
    for (int32_t e = 0; e < EXPERT_COUNT; e++) TRY(quote_expert(self, (Expert)e, error));
    return AM_OK;
}

/* Prices every recipe on the problem's mesh, as starts. */
static AmStatus price_seeds(Problem *problem, AmError *error) {
    for (int32_t e = 0; e < EXPERT_COUNT && !problem_must_stop(problem); e++) {
        Genome genome;
        PlanPrice price;
        const char *reason;
        TRY(expert_genome(problem, (Expert)e, &genome, &reason, error));
        if (!reason) TRY(problem_price(problem, &genome, &price, error));
    }
    return AM_OK;
}

/* A given plan for the problem's mesh is a start, too. */
static AmStatus price_initial(Problem *problem, const PlanStage *stage, AmError *error) {
    Genome genome = {0};
    PlanPrice price;
    if (stage->mesh.axis_count != problem->mesh.axis_count) return AM_OK;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        if (stage->mesh.axes[axis].size != problem->mesh.axes[axis].size) return AM_OK;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->lists[axis].count; e++) {
            const PlanEntry *entry = &stage->lists[axis].entries[e];
            bool is_storage = entry->kind != PLAN_COMPUTE;
            if (is_storage && genome.storage[axis] < problem_storage_kinds(problem, axis))
                genome.storage[axis]++;
            for (int32_t c = 0; c < problem->candidate_count && !is_storage; c++)
                for (int32_t m = 0; m < problem->candidates[c].class_count; m++)
                    if (problem->candidates[c].classes[m] == entry->class_index)
                        genome_insert(&genome, axis, genome.count[axis], c);
        }
    return problem_price(problem, &genome, &price, error);
}

/* The exploration of one problem, for parallel_for(). */
typedef struct Task {
    AmStatus status;
    AmError error;
    Text log;
} Task;

typedef struct Exploration {
    Searching *search;
    double reference; /* seconds of data parallelism */
    Task tasks[MAX_MESHES];
} Exploration;

static AmStatus explore(const Exploration *exploration, Problem *problem, Text *log, AmError *error) {
    const SearchOptions *options = exploration->search->options;
    Genome nothing = {0};
    PlanPrice unsplit; /* but for the pins */
    /* Even a search that is stopped at once returns a plan: each mesh has its unsplit one. */
    TRY(problem_price(problem, &nothing, &unsplit, error));
    if (options->initial) TRY(price_initial(problem, &options->initial->stages[0], error));
    if (!options->no_seeds) TRY(price_seeds(problem, error));
    double reference = exploration->reference > 0 ? exploration->reference : unsplit.seconds;
    /* A part of the share explores, the rest climbs: meshes are told apart by what can be reached on them. */
    int64_t share = problem->budget.limit;
    if (!options->no_polish) problem->budget.limit = share / 3 + 1;
    TRY(dqn_search(problem, options->seed, options->device, reference, log, error));
    problem->budget.limit = share;
    return options->no_polish ? AM_OK : polish_climb(problem, error);
}

static void explore_task(void *user, int32_t k) {
    Exploration *exploration = user;
    Task *task = &exploration->tasks[k];
    task->status = explore(exploration, exploration->search->problems[k], &task->log, &task->error);
}

static void polish_task(void *user, int32_t k) {
    Exploration *exploration = user;
    Task *task = &exploration->tasks[k];
    Problem *problem = exploration->search->problems[k];
    task->status = polish_climb(problem, &task->error);
    if (task->status == AM_OK) task->status = polish_walk(problem, &task->error);
}

/* Runs a task for each of the first `count` problems side by side; hands their logs on in order. */
static AmStatus run_tasks(Exploration *exploration, int32_t count, void (*run)(void *user, int32_t k),
                          AmError *error) {
    const SearchOptions *options = exploration->search->options;
    AmStatus status = AM_OK;
    memset(exploration->tasks, 0, sizeof exploration->tasks);
    parallel_for(count, 0, run, exploration);
    for (int32_t k = 0; k < count; k++) {
        Task *task = &exploration->tasks[k];
        if (status == AM_OK && task->status != AM_OK) {
            status = task->status;
            if (error && error->code == AM_OK) *error = task->error;
        }
        char *line = task->log.data;
        while (options->on_episode && line && *line) {
            char *end = strchr(line, '\n');
            if (!end) break;
            *end = '\0';
            options->on_episode(options->user, line);
            line = end + 1;
        }
        text_free(&task->log);
    }
    return status;
}

static int64_t evaluations_of(const Searching *self) {
    int64_t total = 0;
    for (int32_t k = 0; k < self->problem_count; k++) total += self->problems[k]->budget.evaluations;
    return total;
}

/* Problems by their best plan so far, best first. */
static void sort_problems(Searching *self) {
    for (int32_t k = 1; k < self->problem_count; k++) {
        Problem *problem = self->problems[k];
        int32_t place = k;
        for (; place > 0; place--) {
            const Problem *other = self->problems[place - 1];
            bool better = problem->has_best &&
                          (!other->has_best || plan_price_better(&problem->best_price, &other->best_price));
            if (!better) break;
            self->problems[place] = self->problems[place - 1];
        }
        self->problems[place] = problem;
    }
}

/* Gives the first `count` problems `share` more evaluations each. */
static void allow(Searching *self, int32_t count, int64_t share) {
    for (int32_t k = 0; k < count; k++)
        self->problems[k]->budget.limit = self->problems[k]->budget.evaluations + share;
}

/* Successive halving: every round has an equal part of the evaluations, which
 * the meshes that are left share; the better half goes on. */
static AmStatus search_dqn(Searching *self, AmError *error) {
    Exploration *exploration = ARENA_ARRAY(self->arena, Exploration, 1);
    if (!exploration) return am_fail_memory(error, (int64_t)sizeof *exploration);
    const ExpertResult *data_parallel = &self->result->experts[EXPERT_DATA_PARALLEL];
    *exploration = (Exploration){.search = self,
                                 .reference = isnan(data_parallel->seconds) ? 0 : data_parallel->seconds};
    int32_t count = self->problem_count, rounds = 1;
    for (int32_t left = count; left > 1 && !self->options->no_polish; left = (left + 1) / 2) rounds++;
    allow(self, count, self->limit / ((int64_t)rounds * count) + 1);
    TRY(run_tasks(exploration, count, explore_task, error));
    if (self->options->no_polish) return AM_OK;
    for (int32_t left = rounds; left > 0; left--) {
        sort_problems(self);
        if (left < rounds) count = (count + 1) / 2;
        allow(self, count, (self->limit - evaluations_of(self)) / ((int64_t)left * count));
        TRY(run_tasks(exploration, count, polish_task, error));
    }
    /* Spaces that are exhausted leave evaluations to the others. */
    for (int32_t k = 0; k < self->problem_count; k++) {
        allow(self, self->problem_count, self->limit - evaluations_of(self));
        TRY(polish_walk(self->problems[k], error));
    }
    return AM_OK;
}

static AmStatus search_exhaustive(Searching *self, AmError *error) {
    int64_t size = 0;
    for (int32_t k = 0; k < self->problem_count; k++) {
        int64_t one = exhaustive_size(self->problems[k]);
        if (__builtin_add_overflow(size, one, &size)) size = INT64_MAX;
    }
    if (size > EXHAUSTIVE_LIMIT)
        return am_fail(
            error, AM_ERROR_USAGE, "",
            "--searcher exhaustive: the space has more than %d plans; narrow it by --space or --mesh",
            EXHAUSTIVE_LIMIT);
    self->result->space_size = size;
    for (int32_t k = 0; k < self->problem_count; k++) {
        self->problems[k]->budget.limit = INT64_MAX / BUDGET_REPEATS; /* none */
        TRY(exhaustive_search(self->problems[k], error));
    }
    return AM_OK;
}

static AmStatus search_random(Searching *self, AmError *error) {
    Random random;
    random_seed(&random, self->options->seed);
    for (int64_t tries = 0; tries < self->limit; tries++) {
        Problem *problem = self->problems[random_below(&random, self->problem_count)];
        Genome genome;
        PlanPrice price;
        random_genome(problem, &random, &genome);
        TRY(problem_price(problem, &genome, &price, error));
        if (price.excess <= 0) break;
    }
    return AM_OK;
}

static AmStatus run_searcher(Searching *self, AmError *error) {
    const SearchOptions *options = self->options;
    TRY(quote_experts(self, error));
    if (options->searcher == SEARCHER_RANDOM) return search_random(self, error);
    if (options->searcher == SEARCHER_EXPERT) {
        Problem *problem = self->expert_problems[options->expert];
        Genome genome;
        PlanPrice price;
        const char *reason;
        if (!problem)
            return am_fail(error, AM_ERROR_INFEASIBLE, self->context->module->source, "--expert %s: %s",
                           expert_name(options->expert), self->result->experts[options->expert].reason);
        TRY(expert_genome(problem, options->expert, &genome, &reason, error));
        return problem_price(problem, &genome, &price, error);
    }
    return options->searcher == SEARCHER_EXHAUSTIVE ? search_exhaustive(self, error)
                                                    : search_dqn(self, error);
}

/* The best plan found, or a recipe's where rounding made that the faster one. */
static AmStatus make_plan(Searching *self, AmError *error) {
    sort_problems(self);
    Plan *plan;
    Simulation *simulation;
    TRY(simulate_genome(self, self->problems[0], &self->problems[0]->best, &plan, &simulation, error));
    if (!simulation->fit.fits)
        return memory_fail(&simulation->fit, self->cluster, self->options->memory_fraction, error);
    bool may_take_expert = !self->options->no_seeds && (self->options->searcher == SEARCHER_DQN ||
                                                        self->options->searcher == SEARCHER_EXHAUSTIVE);
    for (int32_t e = 0; e < EXPERT_COUNT && may_take_expert; e++)
        if (self->expert_plans[e] && self->result->experts[e].seconds < plan->predicted_step_seconds)
            plan = self->expert_plans[e];
    if (self->result->space_size > 0 && !self->result->interrupted) {
        plan->bound = "exact";
        plan->bound_seconds = plan->predicted_step_seconds;
    }
    plan->evaluations = evaluations_of(self);
    self->result->plan = plan;
    return AM_OK;
}

bool search_has_stages(const SearchOptions *options) {
    return options->space == SPACE_PIPELINE ||
           (options->searcher == SEARCHER_EXPERT && options->expert == EXPERT_EVEN_PIPELINE);
}

/* Several stages: the recipe alone, beside those of one stage on all devices. */
static AmStatus search_pipeline(Searching *self, AmError *error) {
    SearchResult *result = self->result;
    const SearchOptions *options = self->options;
    ExpertResult *quoted = &result->experts[EXPERT_EVEN_PIPELINE];
    bool is_recipe = options->searcher == SEARCHER_EXPERT && options->expert == EXPERT_EVEN_PIPELINE;
    if (!is_recipe)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--space pipeline has one plan so far: --searcher expert --expert even_pipeline");
    for (int32_t e = 0; e < EXPERT_COUNT; e++) result->experts[e] = (ExpertResult){.seconds = NAN};
    if (!options->mesh) { /* which is that of one stage */
        TRY(create_problems(self, error));
        TRY(quote_experts(self, error));
    }
    TRY(even_pipeline_plan(&result->plan, &quoted->reason, &result->evaluations, self->arena, self->context,
                           self->cluster, options, error));
    if (!result->plan)
        return am_fail(error, AM_ERROR_INFEASIBLE, self->context->module->source, "--expert %s: %s",
                       expert_name(EXPERT_EVEN_PIPELINE), quoted->reason);
    quoted->seconds = result->plan->predicted_step_seconds;
    result->plan->evaluations = result->evaluations;
    return AM_OK;
}

AmStatus search(SearchResult *result, Arena *arena, const PlanContext *context, const Cluster *cluster,
                const SearchOptions *options, AmError *error) {
    double start = clock_seconds();
    *result = (SearchResult){0};
    Searching self = {.arena = arena,
                      .context = context,
                      .cluster = cluster,
                      .options = options,
                      .result = result,
                      .devices = ARENA_ARRAY(arena, int32_t, cluster->device_count),
                      .limit = options->evaluations > 0 ? options->evaluations : SEARCH_DEFAULT_EVALUATIONS,
                      .deadline = options->seconds > 0 ? start + options->seconds : 0};
    if (!self.devices) return am_fail_memory(error, cluster->device_count);
    for (int32_t d = 0; d < cluster->device_count; d++) self.devices[d] = d;
    AmStatus status;
    if (search_has_stages(options)) {
        status = search_pipeline(&self, error);
    } else {
        TRY_OR_FAIL(create_problems(&self, error));
        TRY_OR_FAIL(run_searcher(&self, error));
        result->evaluations = evaluations_of(&self);
        result->interrupted = options->interrupted && *options->interrupted;
        status = make_plan(&self, error);
    }
    result->search_seconds = clock_seconds() - start;
fail:
    for (int32_t k = 0; k < self.problem_count; k++) problem_free(self.problems[k]);
    return status;
}
