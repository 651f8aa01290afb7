/* The searcher dqn: a pool of plans from episodes of the policy, and the prices from which it learns. */
#include "planners/single_stage/assignment_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planners/rl/trained_agent.h"
#include "planners/single_stage/assignment_policy.h"

#define UNTRAINED          "untrained"
#define MOST_POOL          4096
#define MOST_EPISODES      1024
#define FAMILIAR_EPISODES  24 /* that visit no new plan, one after the other: nothing is left to find */
#define PRICES_PER_EPISODE 2
#define UPDATES_PER_PRICE  4
#define FIRST_TEMPERATURE  0.05
#define LAST_TEMPERATURE   0.4
#define EPSILON            0.05
#define LEARNING_RATE      3e-4
/* Factor of the network's values: estimates are near prices on clusters as they are, and the network errs on
 * modules that it was not trained on. Chosen on modules of the training on clusters A, B and nominal:8. */
#define TRUST           0.3
#define MOST_NEIGHBOURS 8   /* of a new best plan that enter the pool */
#define PRIOR_PRICES    2.0 /* weight of "no error" in the mean error of a mesh */

/* A plan of the pool: plans[place] of an episode. */
typedef struct Pooled {
    int32_t mesh, episode, place;
    int32_t anchor;   /* a priced plan of the pool that is one action away, or -1 */
    double predicted; /* gain by the network */
    double total;     /* the same with the errors at priced plans; the gain itself where it is priced */
    bool is_priced;
} Pooled;

struct AssignmentSearch {
    SingleStageSearch *stages;
    Agent *agent;
    Random random;
    PlanPrice unsplit;
    int32_t mesh_count;
    Problem *problems[SEARCH_MOST_MESHES]; /* in the order of the beginning */
    Assignments assignments[SEARCH_MOST_MESHES];
    double best[SEARCH_MOST_MESHES]; /* largest gain or prediction of each mesh */
    AssignmentEpisode *episodes[MOST_EPISODES];
    int32_t episode_meshes[MOST_EPISODES];
    int32_t episode_count;
    Pooled pool[MOST_POOL];
    int32_t pool_count, familiar;
    double temperature;
    bool is_exhausted;
    AssignmentState state;
    float rows[MOST_POOL][ASSIGNMENT_FEATURES];
    float values[MOST_POOL];
};

static AmStatus make_agent(AssignmentSearch *self, AmError *error) {
    const SearchOptions *options = self->stages->options;
    AgentSettings settings = assignment_settings();
    settings.seed = options->seed;
    settings.device = options->device;
    settings.learning_rate = LEARNING_RATE;
    settings.batch = 16;
    settings.replay_capacity = 4096;
    if (!options->policy) return assignment_agent_built_in(&self->agent, &settings, error);
    if (strcmp(options->policy, UNTRAINED) != 0)
        return assignment_agent_read(&self->agent, &settings, options->policy, error);
    settings.learning_rate = 10 * LEARNING_RATE;
    return trained_agent_create(&self->agent, &settings, ASSIGNMENT_FEATURES, NULL, 0, "", error);
}

AmStatus assignment_search_check(const SearchOptions *options, AmError *error) {
    const AgentSettings settings = assignment_settings();
    Agent *agent;
    if (!options->policy || strcmp(options->policy, UNTRAINED) == 0) return AM_OK;
    TRY(assignment_agent_read(&agent, &settings, options->policy, error));
    agent_free(agent);
    return AM_OK;
}

AmStatus assignment_search_open(AssignmentSearch **search, SingleStageSearch *stages, AmError *error) {
    AssignmentSearch *self = *search = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, sizeof *self);
    self->stages = stages;
    self->temperature = FIRST_TEMPERATURE;
    random_seed(&self->random, stages->options->seed);
    return make_agent(self, error);
}

void assignment_search_close(AssignmentSearch *self) {
    if (!self) return;
    for (int32_t k = 0; k < self->mesh_count; k++) assignments_close(&self->assignments[k]);
    for (int32_t k = 0; k < self->episode_count; k++) free(self->episodes[k]);
    agent_free(self->agent);
    free(self);
}

static bool is_pooled(const AssignmentSearch *self, int32_t mesh, const AxisPlan *axis_plan) {
    for (int32_t k = 0; k < self->pool_count; k++) {
        const Pooled *pooled = &self->pool[k];
        const AxisPlan *plan = &self->episodes[pooled->episode]->plans[pooled->place];
        if (pooled->mesh == mesh && memcmp(plan, axis_plan, sizeof *plan) == 0) return true;
    }
    return false;
}

/* A new episode of a mesh; `*number` -1: there may be no more. */
static AmStatus add_episode(AssignmentSearch *self, int32_t mesh, int32_t *number, AmError *error) {
    *number = -1;
    self->is_exhausted |= self->episode_count == MOST_EPISODES;
    if (self->is_exhausted) return AM_OK;
    AssignmentEpisode *episode = calloc(1, sizeof *episode);
    if (!episode) return am_fail_memory(error, sizeof *episode);
    *number = self->episode_count++;
    self->episodes[*number] = episode;
    self->episode_meshes[*number] = mesh;
    return AM_OK;
}

static void add_plan(AssignmentSearch *self, int32_t episode, int32_t place, int32_t anchor) {
    int32_t mesh = self->episode_meshes[episode];
    const AssignmentEpisode *played = self->episodes[episode];
    self->is_exhausted |= self->pool_count == MOST_POOL;
    if (self->is_exhausted || is_pooled(self, mesh, &played->plans[place])) return;
    double total = played->totals[place];
    self->pool[self->pool_count++] = (Pooled){mesh, episode, place, anchor, total, total, false};
}

/* Plays an episode on a mesh and puts its new plans into the pool. */
static AmStatus play(AssignmentSearch *self, int32_t mesh, const AxisPlan *start,
                     const AssignmentManner *manner, AmError *error) {
    int32_t number, before = self->pool_count;
    TRY(add_episode(self, mesh, &number, error));
    if (number < 0) return AM_OK;
    AssignmentEpisode *episode = self->episodes[number];
    TRY(assignment_play(episode, self->agent, &self->assignments[mesh], start, manner, &self->random,
                        &self->state, error));
    for (int32_t k = 0; k <= episode->count; k++) add_plan(self, number, k, -1);
    self->familiar = self->pool_count > before ? 0 : self->familiar + 1;
    self->is_exhausted |= self->familiar >= FAMILIAR_EPISODES;
    return AM_OK;
}

/* Puts the most promising plans that are one action away from a priced one into the pool. */
static AmStatus expand(AssignmentSearch *self, int32_t anchor, AmError *error) {
    const Pooled base = self->pool[anchor];
    const Assignments *assignments = &self->assignments[base.mesh];
    AssignmentState *state = &self->state;
    const AxisPlan start = self->episodes[base.episode]->plans[base.place];
    double totals[ASSIGNMENT_MOST_ACTIONS];
    TRY(assignment_enter(state, assignments, &start, error));
    TRY(assignment_totals(totals, self->agent, assignments, state, TRUST, error));
    for (int32_t n = 0; n < MOST_NEIGHBOURS; n++) {
        int32_t best = -1, number;
        for (int32_t a = 0; a < state->action_count - 1; a++)
            if (!isinf(totals[a]) && (best < 0 || totals[a] > totals[best])) best = a;
        if (best < 0) return AM_OK;
        TRY(add_episode(self, base.mesh, &number, error));
        if (number < 0) return AM_OK;
        AssignmentEpisode *episode = self->episodes[number];
        const AssignmentAction *action = &state->actions[best];
        *episode = (AssignmentEpisode){.count = 1, .plans = {start, action->next}, .best = {-INFINITY}};
        const PlanPrice *estimates[] = {&state->estimate, &action->estimate};
        memcpy(episode->rows[0], state->features[best], sizeof episode->rows[0]);
        for (int32_t k = 0; k < 2; k++) {
            episode->so_far[k] = assignment_so_far(assignments, estimates[k]);
            assignment_stop_row(episode->stops[k], assignments, &episode->plans[k], estimates[k]);
        }
        episode->totals[1] = totals[best];
        totals[best] = -INFINITY;
        add_plan(self, number, 1, anchor);
    }
    return AM_OK;
}

/* Prices the unsplit plan, which costs the same on every mesh, and plays the first episodes. */
static AmStatus begin(AssignmentSearch *self, AmError *error) {
    SingleStageSearch *stages = self->stages;
    const AxisPlan nothing = {0};
    if (!single_stage_cap(stages, stages->problems[0])) return AM_OK;
    TRY(problem_price(stages->problems[0], &nothing, &self->unsplit, error));
    for (int32_t k = 0; k < stages->problem_count && !single_stage_must_end(stages); k++) {
        self->problems[k] = stages->problems[k];
        self->mesh_count++;
        TRY(assignments_open(&self->assignments[k], self->problems[k], &self->unsplit, true, error));
        const AssignmentManner manners[] = {{.trust = TRUST}, {.trust = 1}};
        for (int32_t m = 0; m < 2 && !single_stage_must_end(stages); m++)
            TRY(play(self, k, &nothing, &manners[m], error));
    }
    return AM_OK;
}

/* Predicts the gains of the pool anew. Those without a price get the error at their anchor, or the mean error
 * of their mesh. */
static AmStatus predict(AssignmentSearch *self, AmError *error) {
    double errors[SEARCH_MOST_MESHES] = {0}, counts[SEARCH_MOST_MESHES];
    for (int32_t k = 0; k < self->mesh_count; k++) {
        self->best[k] = -INFINITY;
        counts[k] = PRIOR_PRICES;
    }
    for (int32_t k = 0; k < self->pool_count; k++) {
        const Pooled *pooled = &self->pool[k];
        memcpy(self->rows[k], self->episodes[pooled->episode]->stops[pooled->place], sizeof self->rows[k]);
    }
    TRY(agent_values(self->agent, self->rows[0], self->pool_count, self->values, error));
    for (int32_t k = 0; k < self->pool_count; k++) {
        Pooled *pooled = &self->pool[k];
        pooled->predicted = self->episodes[pooled->episode]->so_far[pooled->place] + TRUST * self->values[k];
        if (!pooled->is_priced) continue;
        errors[pooled->mesh] += pooled->total - pooled->predicted;
        counts[pooled->mesh]++;
    }
    for (int32_t k = 0; k < self->pool_count; k++) {
        Pooled *pooled = &self->pool[k];
        const Pooled *anchor = pooled->anchor >= 0 ? &self->pool[pooled->anchor] : NULL;
        if (!pooled->is_priced)
            pooled->total = pooled->predicted + (anchor ? anchor->total - anchor->predicted
                                                        : errors[pooled->mesh] / counts[pooled->mesh]);
        self->best[pooled->mesh] = fmax(self->best[pooled->mesh], pooled->total);
    }
    return AM_OK;
}

/* The plan without a price that promises most; -1: none. */
static int32_t next_plan(const AssignmentSearch *self) {
    int32_t best = -1;
    for (int32_t k = 0; k < self->pool_count; k++)
        if (!self->pool[k].is_priced && (best < 0 || self->pool[k].total > self->pool[best].total)) best = k;
    return best;
}

/* A mesh by its best gain, with noise; and where the episode begins. */
static AmStatus play_again(AssignmentSearch *self, AmError *error) {
    int32_t mesh = 0;
    double most = -INFINITY;
    for (int32_t k = 0; k < self->mesh_count; k++) {
        double noise = -log(-log(random_uniform(&self->random) + 1e-12) + 1e-12);
        double total = self->best[k] + self->temperature * noise;
        if (total > most) mesh = k;
        most = fmax(most, total);
    }
    AxisPlan start = {0};
    const Problem *problem = self->problems[mesh];
    if (problem->has_best && random_below(&self->random, 2) == 0) start = problem->best;
    start.gathers_again = 0;
    double trust = self->episode_count % 2 ? TRUST : 1;
    const AssignmentManner manner = {trust, self->temperature, EPSILON};
    return play(self, mesh, &start, &manner, error);
}

static void log_price(const AssignmentSearch *self, double gain) {
    const SingleStageSearch *stages = self->stages;
    const SearchOptions *options = stages->options;
    double seconds = INFINITY;
    char line[256];
    if (!options->on_episode) return;
    for (int32_t k = 0; k < stages->problem_count; k++)
        if (stages->problems[k]->has_best) seconds = fmin(seconds, stages->problems[k]->best_price.seconds);
    snprintf(
        line, sizeof line,
        "{\"evaluations\":%lld,\"reward\":%.6g,\"best\":%.9g,\"epsilon\":%.4g,\"loss\":%.6g,\"episodes\":%d}",
        (long long)single_stage_evaluations(stages), gain, seconds, EPSILON, agent_loss(self->agent),
        self->episode_count);
    options->on_episode(options->user, line);
}

static AmStatus price(AssignmentSearch *self, int32_t place, AmError *error) {
    Pooled *pooled = &self->pool[place];
    Problem *problem = self->problems[pooled->mesh];
    AssignmentEpisode *episode = self->episodes[pooled->episode];
    PlanPrice found;
    pooled->is_priced = true;
    if (!single_stage_cap(self->stages, problem)) return AM_OK;
    TRY(problem_price(problem, &episode->plans[pooled->place], &found, error));
    self->stages->is_cut |= problem->budget.is_cut;
    if (problem->budget.is_cut) return AM_OK;
    double gain = pooled->total = assignment_gain(&self->assignments[pooled->mesh], &found);
    TRY(assignment_observe(episode, self->agent, pooled->place, gain, error));
    agent_learn(self->agent, UPDATES_PER_PRICE);
    log_price(self, gain);
    TRY(agent_check(self->agent, error));
    bool is_best = true;
    for (int32_t k = 0; k < self->pool_count; k++)
        is_best = is_best && (!self->pool[k].is_priced || self->pool[k].total <= gain);
    return is_best ? expand(self, place, error) : AM_OK;
}

static bool is_over(const AssignmentSearch *self, int64_t until) {
    const SingleStageSearch *stages = self->stages;
    return self->is_exhausted || stages->is_cut || single_stage_must_end(stages) ||
           single_stage_evaluations(stages) >= until;
}

AmStatus assignment_search_run(AssignmentSearch *self, int64_t until, AmError *error) {
    if (is_over(self, until)) return AM_OK;
    if (self->mesh_count == 0) TRY(begin(self, error));
    for (int32_t turn = 0; !is_over(self, until); turn++) {
        TRY(predict(self, error));
        int32_t next = next_plan(self);
        if (next < 0 || turn % (PRICES_PER_EPISODE + 1) == PRICES_PER_EPISODE) {
            if (next < 0) self->temperature = fmin(1.2 * self->temperature, LAST_TEMPERATURE);
            TRY(play_again(self, error));
        } else {
            TRY(price(self, next, error));
        }
    }
    return AM_OK;
}
