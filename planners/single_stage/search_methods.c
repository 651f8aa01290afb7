/* The searchers, and their common procedure: on every mesh the baselines are priced, the searcher
 * explores, and the best plan is improved; then the meshes compete for the remaining evaluations. */
#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "planners/improve/uneven_shares.h"
#include "planners/single_stage/assignment_search.h"
#include "planners/single_stage/screen.h"
#include "planners/single_stage/searchers.h"
#include "planners/single_stage/single_stage.h"

#define EXHAUSTIVE_LIMIT 200000

/* A given plan for the problem's mesh and number of micro-batches is a start, too. */
static AmStatus price_initial(Problem *problem, const Plan *plan, AmError *error) {
    const PlanStage *stage = &plan->stages[0];
    AxisPlan axis_plan = {0};
    PlanPrice price;
    if (plan->stage_count > 1 || plan_context_used(plan, problem->context) != problem->context) return AM_OK;
    if (stage->mesh.axis_count != problem->mesh.axis_count) return AM_OK;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        if (stage->mesh.axes[axis].size != problem->mesh.axes[axis].size) return AM_OK;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++) {
            const PlanEntry *entry = &stage->axis_priorities[axis].entries[e];
            bool is_storage = entry->kind != PLAN_COMPUTE;
            if (is_storage && axis_plan.storage[axis] < problem_storage_kinds(problem, axis))
                axis_plan.storage[axis]++;
            for (int32_t c = 0; c < problem->candidate_count && !is_storage; c++)
                for (int32_t m = 0; m < problem->candidates[c].class_count; m++)
                    if (problem->candidates[c].classes[m] == entry->class_index)
                        axis_plan_insert(&axis_plan, axis, axis_plan.count[axis], c);
        }
    return problem_price(problem, &axis_plan, &price, error);
}

/* Searches plans of one problem, until it is exhausted or problem_must_stop(). */
typedef AmStatus ExploreFunction(Problem *problem, const SearchOptions *options, double reference_seconds,
                                 Text *log, AmError *error);

/* The exploration of one problem, for parallel_for(). */
typedef struct ExplorationTask {
    AmStatus status;
    AmError error;
    Text log;
} ExplorationTask;

typedef struct Exploration {
    SingleStageSearch *search;
    ExploreFunction *explore;
    double reference; /* seconds of data parallelism */
    ExplorationTask tasks[SEARCH_MOST_MESHES];
    Screening screenings[SEARCH_MOST_MESHES]; /* of the search's problems */
} Exploration;

static AmStatus explore_problem(const Exploration *exploration, const Screening *screening, Problem *problem,
                                Text *log, AmError *error) {
    const SearchOptions *options = exploration->search->options;
    AxisPlan nothing = {0};
    double reference = exploration->reference;
    int64_t before = problem->budget.evaluations;
    /* A search that is stopped at once makes do with one plan (search.c), else each mesh has one at least. */
    if (problem_must_stop(problem)) return AM_OK;
    if (reference == 0 || screening->count == 0) {
        PlanPrice unsplit; /* but for the pins */
        TRY(problem_price(problem, &nothing, &unsplit, error));
        if (reference == 0) reference = unsplit.seconds;
    }
    if (options->initial && !problem_must_stop(problem)) TRY(price_initial(problem, options->initial, error));
    TRY(screen_price(screening, problem, error));
    if (!options->no_seeds) TRY(baseline_price_seeds(problem, error));
    /* A part of the share explores, the rest climbs: meshes differ in the plans that they can
     * reach. */
    int64_t share = problem->budget.limit;
    if (!options->no_polish) problem->budget.limit = before + (share - before) / 3 + 1;
    TRY(exploration->explore(problem, options, reference, log, error));
    problem->budget.limit = share;
    return options->no_polish ? AM_OK : polish_climb(problem, error);
}

static void explore_task(void *user, int32_t k) {
    Exploration *exploration = user;
    ExplorationTask *task = &exploration->tasks[k];
    task->status = explore_problem(exploration, &exploration->screenings[k], exploration->search->problems[k],
                                   &task->log, &task->error);
}

static void screen_task(void *user, int32_t k) {
    Exploration *exploration = user;
    ExplorationTask *task = &exploration->tasks[k];
    const SingleStageSearch *search = exploration->search;
    if (!search->options->no_seeds)
        task->status = screen_search(&exploration->screenings[k], search->problems[k], search->options->seed,
                                     &task->error);
}

static void polish_task(void *user, int32_t k) {
    Exploration *exploration = user;
    ExplorationTask *task = &exploration->tasks[k];
    Problem *problem = exploration->search->problems[k];
    task->status = polish_climb(problem, &task->error);
    if (task->status == AM_OK) task->status = polish_walk(problem, &task->error);
}

/* Runs the tasks side by side, or, where the cap may end them, one after the other, each with what those
 * before have left: then the plans priced are the first ones of a search without a cap, in that order. After
 * each task the best plan of its problem gets unequal shares, where devices are mixed. */
static AmStatus run_all(Exploration *exploration, int32_t count, void (*run)(void *user, int32_t k),
                        bool evaluates, AmError *error) {
    enum { MOST_OVERRUN = 2 * PROBLEM_BATCH };
    SingleStageSearch *self = exploration->search;
    int64_t wanted = 0, left = single_stage_left(self);
    for (int32_t k = 0; k < count; k++) {
        SearchBudget *budget = &self->problems[k]->budget;
        budget->cap = 0;
        if (budget->limit > budget->evaluations) wanted += budget->limit - budget->evaluations + MOST_OVERRUN;
    }
    if (self->sharing > 0) wanted += count * (1 + MESH_MAX_AXES * UNEVEN_SHARES_TRIED);
    bool is_capped = evaluates && wanted > left;
    if (!is_capped) parallel_for(count, 0, run, exploration);
    for (int32_t k = 0; k < count && evaluates; k++) {
        if (is_capped && !single_stage_cap(self, self->problems[k])) break;
        if (is_capped) run(exploration, k);
        self->is_cut |= self->problems[k]->budget.is_cut;
        TRY(single_stage_share_problem(self, self->problems[k], error));
    }
    return AM_OK;
}

/* Runs a task for each of the first `count` problems; hands their logs on in order. */
static AmStatus run_tasks(Exploration *exploration, int32_t count, void (*run)(void *user, int32_t k),
                          AmError *error) {
    const SearchOptions *options = exploration->search->options;
    memset(exploration->tasks, 0, sizeof exploration->tasks);
    AmStatus status = run_all(exploration, count, run, run != screen_task, error);
    for (int32_t k = 0; k < count; k++) {
        ExplorationTask *task = &exploration->tasks[k];
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

/* Gives the first `count` problems `share` more evaluations each and the others `rest`, as long as there are
 * any. */
static void allow(SingleStageSearch *self, int32_t count, int64_t share, int64_t rest) {
    int64_t left = self->limit - single_stage_evaluations(self);
    if (left < 0) left = 0;
    for (int32_t k = 0; k < self->problem_count; k++) {
        SearchBudget *budget = &self->problems[k]->budget;
        int64_t wanted = k < count ? share : rest, given = left < wanted ? left : wanted;
        budget->limit = budget->evaluations + given;
        left -= given;
    }
}

/* Screens every problem, for `explore` to start from. */
static AmStatus open_exploration(Exploration **exploration, SingleStageSearch *self, ExploreFunction *explore,
                                 AmError *error) {
    *exploration = ARENA_ARRAY(self->arena, Exploration, 1);
    if (!*exploration) return am_fail_memory(error, (int64_t)sizeof **exploration);
    TRY(baseline_price(self, BASELINE_DATA_PARALLEL, error));
    double reference = self->result->baselines[BASELINE_DATA_PARALLEL].seconds;
    **exploration =
        (Exploration){.search = self, .explore = explore, .reference = isnan(reference) ? 0 : reference};
    allow(self, self->problem_count, 1, 0);
    return run_tasks(*exploration, self->problem_count, screen_task, error);
}

/* The least that a screened plan may take: half of its communication hidden, where there is more of that half
 * of its computing. */
static double least_seconds(const Screening *screening) {
    const PlanPrice *estimate = &screening->kept[0].estimate;
    return plan_price_score(estimate) -
           0.5 * fmin(estimate->compute_seconds, estimate->communication_seconds);
}

/* Puts the problems first on which a plan may be the best of all, by the estimates, and returns their number.
 */
static int32_t put_promising_first(Exploration *exploration) {
    SingleStageSearch *self = exploration->search;
    Screening *screenings = exploration->screenings;
    const double margin = 1.5; /* estimates may be wrong by so much */
    double rival = margin * self->options->nested.rival_seconds, best = rival > 0 ? rival : INFINITY;
    int32_t promising = 0;
    for (int32_t k = 0; k < self->problem_count; k++)
        if (screenings[k].count > 0) best = fmin(best, plan_price_score(&screenings[k].kept[0].estimate));
    for (int32_t k = 0; k < self->problem_count; k++) {
        if (screenings[k].count > 0 && least_seconds(&screenings[k]) > best) continue;
        Problem *problem = self->problems[k];
        Screening screening = screenings[k];
        for (int32_t place = k; place > promising; place--) {
            self->problems[place] = self->problems[place - 1];
            screenings[place] = screenings[place - 1];
        }
        self->problems[promising] = problem;
        screenings[promising++] = screening;
    }
    return promising;
}

/* Searches by a policy until the search has `until` evaluations, and adds its best plan to the pool. */
static AmStatus run_policy(AssignmentSearch *policy, SingleStageSearch *self, int64_t until, AmError *error) {
    Problem *problem;
    AxisPlan axis_plan;
    TRY(assignment_search_run(policy, until, error));
    bool has_plan = assignment_search_best(policy, &problem, &axis_plan);
    return has_plan ? single_stage_add(self, problem, &axis_plan, PLAN_ORIGIN_POLICY, error) : AM_OK;
}

/* The part of a round's evaluations that SEARCHER_AUTO gives to the policy, within limits. A policy's best
 * plan is among its first ones (bench/searchers.py). */
enum { EPISODE_PARTS = 50, EPISODE_LEAST = 4, EPISODE_MOST = 10, EPISODE_MESHES = 4 };

/* Prices the first plans of the trained policy on the most promising meshes, once in a search. */
static AmStatus price_episode(SingleStageSearch *self, int32_t promising, AmError *error) {
    const SearchOptions *options = self->options;
    int64_t before = single_stage_evaluations(self), most = (self->limit - before) / EPISODE_PARTS;
    AssignmentSearch *policy = NULL;
    if (options->searcher != SEARCHER_AUTO || options->nested.is_trial || self->has_episode) return AM_OK;
    if (most > EPISODE_MOST) most = EPISODE_MOST;
    if (most < EPISODE_LEAST) most = EPISODE_LEAST;
    self->has_episode = true;
    if (self->limit - before < 2 * most || promising == 0) return AM_OK;
    int32_t meshes = promising < EPISODE_MESHES || options->no_seeds ? promising : EPISODE_MESHES;
    AmStatus status = assignment_search_open(&policy, self, meshes, error);
    if (status == AM_OK) status = run_policy(policy, self, before + most, error);
    assignment_search_close(policy);
    return status;
}

/* Successive halving: every round has an equal part of the evaluations, which the remaining meshes
 * share; the better half continues. On meshes that cannot have the best plan, by the estimates, one
 * plan is priced. */
static AmStatus search_exploring(SingleStageSearch *self, ExploreFunction *explore, AmError *error) {
    Exploration *exploration;
    TRY(open_exploration(&exploration, self, explore, error));
    int32_t count = put_promising_first(exploration), rounds = 1;
    TRY(price_episode(self, count, error));
    if (count == 0) { /* by estimates the rival beats all meshes */
        self->refining = 0;
        allow(self, self->problem_count, 1, 0);
        return run_tasks(exploration, self->problem_count, explore_task, error);
    }
    for (int32_t left = count; left > 1 && !self->options->no_polish; left = (left + 1) / 2) rounds++;
    int64_t others = self->problem_count - count, round_limit = self->limit - single_stage_evaluations(self);
    allow(self, count, (round_limit - others) / ((int64_t)rounds * count) + 1, 1);
    TRY(run_tasks(exploration, self->problem_count, explore_task, error));
    if (self->options->no_polish) return AM_OK;
    for (int32_t left = rounds; left > 0 && !self->is_cut; left--) {
        single_stage_sort(self);
        if (left < rounds) count = (count + 1) / 2;
        allow(self, count, (self->limit - single_stage_evaluations(self)) / ((int64_t)left * count), 0);
        TRY(run_tasks(exploration, count, polish_task, error));
    }
    /* Spaces that are exhausted leave evaluations to the others. */
    for (int32_t k = 0; k < self->problem_count && !self->is_cut; k++) {
        SearchBudget *budget = &self->problems[k]->budget;
        budget->limit = budget->evaluations + self->limit - single_stage_evaluations(self);
        if (!single_stage_cap(self, self->problems[k])) break;
        TRY(polish_walk(self->problems[k], error));
        self->is_cut |= budget->is_cut;
    }
    return AM_OK;
}

static AmStatus search_exhaustive(SingleStageSearch *self, ExploreFunction *explore, AmError *error) {
    (void)explore;
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
    self->result->is_exact = !single_stage_must_end(self);
    return AM_OK;
}

/* The starts of one problem, and the local optimum below them: a plan to cut branches with. */
static AmStatus explore_starts(Problem *problem, const SearchOptions *options, double reference_seconds,
                               Text *log, AmError *error) {
    (void)problem, (void)options, (void)reference_seconds, (void)log, (void)error;
    return AM_OK;
}

/* Nodes of a tree that may be visited for each evaluation of its share. */
enum { NODES_PER_EVALUATION = 500 };

typedef struct ExactTask {
    AmStatus status;
    AmError error;
    double open; /* as of exact_search(); 0 before it has run */
} ExactTask;

typedef struct ExactTasks {
    SingleStageSearch *search;
    double cutoff;
    int64_t nodes; /* of each tree, in the pass */
    ExactTask tasks[SEARCH_MOST_MESHES];
} ExactTasks;

/* Seconds of the best plan so far that fits. */
static double best_seconds(const SingleStageSearch *self) {
    double seconds = INFINITY;
    for (int32_t k = 0; k < self->problem_count; k++) {
        const Problem *problem = self->problems[k];
        if (problem->has_best && problem->best_price.excess <= 0)
            seconds = fmin(seconds, problem->best_price.seconds);
    }
    return seconds;
}

static void exact_task(void *user, int32_t k) {
    ExactTasks *self = user;
    ExactTask *task = &self->tasks[k];
    task->status =
        exact_search(self->search->problems[k], self->cutoff, self->nodes, &task->open, &task->error);
}

/* One pass over the trees that are not done, each with `share` more evaluations: side by side, or one after
 * the other where the cap may end them. */
static AmStatus branch_once(SingleStageSearch *self, ExactTasks *tasks, int64_t share, AmError *error) {
    int32_t unfinished[SEARCH_MOST_MESHES], count = 0;
    for (int32_t k = 0; k < self->problem_count; k++) {
        SearchBudget *budget = &self->problems[k]->budget;
        if (isinf(tasks->tasks[k].open)) continue;
        unfinished[count++] = k;
        budget->limit = budget->evaluations + share;
        budget->repeats = 0;
        budget->cap = 0;
    }
    tasks->cutoff = best_seconds(self);
    tasks->nodes = share * NODES_PER_EVALUATION;
    bool is_free = (share + 2 * PROBLEM_BATCH) * count <= single_stage_left(self);
    if (is_free && count == self->problem_count) parallel_for(count, 0, exact_task, tasks);
    for (int32_t k = 0; k < count && !(is_free && count == self->problem_count); k++) {
        Problem *problem = self->problems[unfinished[k]];
        if (!single_stage_cap(self, problem)) break;
        exact_task(tasks, unfinished[k]);
        self->is_cut |= problem->budget.is_cut;
    }
    for (int32_t k = 0; k < count; k++) {
        const ExactTask *task = &tasks->tasks[unfinished[k]];
        if (task->status == AM_OK) continue;
        if (error && error->code == AM_OK) *error = task->error;
        return task->status;
    }
    return AM_OK;
}

/* Passes over all trees, each with twice the evaluations of the one before, until all trees are done or
 * nothing is left. Many nodes may come to few plans, so that the shares of all passes have a limit, too: the
 * time is proportional to the cap. The sizes of the passes do not depend on it. */
static AmStatus branch(SingleStageSearch *self, ExactTasks *tasks, AmError *error) {
    enum { FIRST_SHARE = 16, MOST_GRANTED = 2 /* shares for each evaluation of the cap */ };
    int64_t granted = 0;
    for (int64_t share = FIRST_SHARE;; share *= 2) {
        int32_t unfinished = 0;
        for (int32_t k = 0; k < self->problem_count; k++) unfinished += !isinf(tasks->tasks[k].open);
        bool is_spent = self->is_cut || single_stage_left(self) <= 0 || granted >= MOST_GRANTED * self->cap;
        if (unfinished == 0 || is_spent || single_stage_must_end(self)) return AM_OK;
        granted += share * unfinished;
        TRY(branch_once(self, tasks, share, error));
    }
}

static AmStatus search_exact(SingleStageSearch *self, ExploreFunction *explore, AmError *error) {
    SearchResult *result = self->result;
    Exploration *exploration;
    int64_t starts = SEARCH_EXACT_EVALUATIONS / (4 * self->problem_count) + 1;
    if (self->cap == 0) self->cap = self->limit;
    TRY(open_exploration(&exploration, self, explore, error));
    allow(self, self->problem_count, starts, 0);
    TRY(run_tasks(exploration, self->problem_count, explore_task, error));
    ExactTasks *tasks = ARENA_ARRAY(self->arena, ExactTasks, 1);
    if (!tasks) return am_fail_memory(error, (int64_t)sizeof *tasks);
    tasks->search = self;
    TRY(branch(self, tasks, error));
    result->is_exact = true;
    result->bound_seconds = best_seconds(self);
    for (int32_t k = 0; k < self->problem_count; k++) {
        result->is_exact = result->is_exact && isinf(tasks->tasks[k].open);
        result->bound_seconds = fmin(result->bound_seconds, tasks->tasks[k].open);
    }
    int32_t most = 0;
    for (int32_t k = 0; k < self->problem_count; k++)
        if (self->problems[k]->candidate_count > most) most = self->problems[k]->candidate_count;
    result->exact_space = arena_format(
        self->arena,
        "one stage on %d mesh%s: on each axis every ordered list of at most %d of %d tied dimension classes, "
        "with nothing, optimizer state, gradients or weights in shards",
        self->problem_count, self->problem_count == 1 ? "" : "es", AXIS_PLAN_MAX_ENTRIES, most);
    return result->exact_space ? AM_OK : am_fail_memory(error, 0);
}

/* Takes the first random plan that fits, or the best of a number given by the user. */
static AmStatus search_random(SingleStageSearch *self, ExploreFunction *explore, AmError *error) {
    (void)explore;
    Random random;
    random_seed(&random, self->options->seed);
    bool is_one = self->options->evaluations == 0;
    for (int64_t tries = 0; tries < BUDGET_REPEATS * self->limit && !single_stage_must_end(self); tries++) {
        Problem *problem = self->problems[random_below(&random, self->problem_count)];
        AxisPlan axis_plan;
        PlanPrice price;
        random_axis_plan(problem, &random, &axis_plan);
        TRY(problem_price(problem, &axis_plan, &price, error));
        self->is_cut = single_stage_left(self) <= 0;
        bool is_done = self->is_cut || single_stage_evaluations(self) >= self->limit;
        if (is_done || (is_one && price.excess <= 0)) break;
    }
    return AM_OK;
}

static AmStatus search_baseline(SingleStageSearch *self, ExploreFunction *explore, AmError *error) {
    (void)explore;
    const SearchOptions *options = self->options;
    AxisPlan axis_plan;
    PlanPrice price;
    const char *reason;
    TRY(baseline_price(self, options->baseline, error));
    Problem *problem = self->baseline_problems[options->baseline];
    if (!problem)
        return am_fail(error, AM_ERROR_INFEASIBLE, self->context->module->source, "--baseline %s: %s",
                       options->called ? options->called : baseline_name(options->baseline),
                       self->result->baselines[options->baseline].reason);
    TRY(baseline_axis_plan(problem, options->baseline, &axis_plan, &reason, error));
    axis_plan.gathers_again = true;
    return problem_price(problem, &axis_plan, &price, error);
}

/* The part of the evaluations that belongs to the policy where the baselines and the polish have theirs. */
#define POLICY_PARTS 3

/* Searches by the policy, then by the common procedure. Without polish the policy has the remaining
 * evaluations. */
static AmStatus search_policy(SingleStageSearch *self, ExploreFunction *explore, AmError *error) {
    const SearchOptions *options = self->options;
    AssignmentSearch *search = NULL;
    for (int32_t k = 0; k < self->problem_count && options->initial; k++) /* before the budget ends */
        TRY(price_initial(self->problems[k], options->initial, error));
    int64_t first = single_stage_evaluations(self), share = self->limit - first;
    bool is_alone = options->no_seeds && options->no_polish;
    AmStatus status = assignment_search_open(&search, self, self->problem_count, error);
    if (status == AM_OK)
        status = run_policy(search, self, is_alone ? self->limit : first + share / POLICY_PARTS + 1, error);
    if (status == AM_OK && !is_alone) status = search_exploring(self, explore, error);
    if (status == AM_OK && options->no_polish) status = run_policy(search, self, self->limit, error);
    assignment_search_close(search);
    return status;
}

static AmStatus explore_anneal(Problem *problem, const SearchOptions *options, double reference_seconds,
                               Text *log, AmError *error) {
    (void)reference_seconds, (void)log;
    return anneal_search(problem, options->seed, error);
}

static AmStatus explore_greedy(Problem *problem, const SearchOptions *options, double reference_seconds,
                               Text *log, AmError *error) {
    (void)options, (void)reference_seconds, (void)log;
    return greedy_search(problem, error);
}

static AmStatus search_agent(SingleStageSearch *self, ExploreFunction *explore, AmError *error) {
    (void)self, (void)explore;
    return am_fail(error, AM_ERROR_USAGE, "", "--searcher agent cuts pipelines: it goes with --space hybrid");
}

/* How a searcher goes about it, and how it explores one problem where it does that. */
typedef struct SearchMethod {
    AmStatus (*run)(SingleStageSearch *self, ExploreFunction *explore, AmError *error);
    ExploreFunction *explore;
    bool takes_baselines; /* a baseline's plan is handed out where rounding made that the faster one */
} SearchMethod;

static const SearchMethod methods[SEARCHER_COUNT] = {
    [SEARCHER_AUTO] = {search_exploring, explore_anneal, true},
    [SEARCHER_DQN] = {search_policy, explore_starts, true},
    [SEARCHER_ANNEAL] = {search_exploring, explore_anneal, true},
    [SEARCHER_GREEDY] = {search_exploring, explore_greedy, true},
    [SEARCHER_EXACT] = {search_exact, explore_starts, true},
    [SEARCHER_EXHAUSTIVE] = {search_exhaustive, NULL, true},
    [SEARCHER_RANDOM] = {search_random, NULL, false},
    [SEARCHER_BASELINE] = {search_baseline, NULL, false},
    [SEARCHER_AGENT] = {search_agent, NULL, false},
};

AmStatus search_method_run(SingleStageSearch *self, AmError *error) {
    const SearchMethod *method = &methods[self->options->searcher];
    return method->run(self, method->explore, error);
}

int64_t search_default_evaluations(Searcher searcher) {
    return searcher == SEARCHER_EXACT ? SEARCH_EXACT_EVALUATIONS : SEARCH_DEFAULT_EVALUATIONS;
}

int64_t search_evaluations_for(Searcher searcher, int32_t instructions) {
    int64_t most = search_default_evaluations(searcher);
    int64_t evaluations = SEARCH_DEFAULT_WORK / (instructions > 0 ? instructions : 1);
    if (evaluations > most) return most;
    return evaluations > SEARCH_LEAST_EVALUATIONS ? evaluations : SEARCH_LEAST_EVALUATIONS;
}

bool search_method_takes_baselines(Searcher searcher) {
    return methods[searcher].takes_baselines;
}

bool search_method_explores(Searcher searcher) {
    return methods[searcher].run == search_exploring || methods[searcher].run == search_policy;
}

bool search_method_has_rounds(Searcher searcher) {
    return search_method_explores(searcher) || methods[searcher].run == search_random;
}
