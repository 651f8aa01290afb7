/* The searcher dqn: a tree of plans by actions that the policy ranks, and the prices that correct estimates.
 */
#include "planners/single_stage/assignment_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planners/rl/trained_agent.h"
#include "planners/single_stage/assignment_policy.h"

#define UNTRAINED             "untrained"
#define MOST_NODES            4096
#define MOST_WORSE            2 /* steps of the beginning that find no better plan */
#define BEAM                  3 /* plans of a mesh that are expanded at each step of the beginning */
#define UPDATES_PER_EXPANSION 2
#define FAMILIAR_EXPANSIONS   64  /* without a new plan, one after the other: nothing is left to find */
#define RANDOM_LOOKS          3   /* of an expansion that is drawn */
#define MOST_REPEATS          150 /* plans in a row that come to ones priced before */
#define PRICES_PER_EXPANSION  2
#define LEARNING_RATE         1e-3
#define FIRST_TEMPERATURE     0.02
#define LAST_TEMPERATURE      0.4
#define EXPANDED_PENALTY      0.05 /* per expansion of a plan, in the logarithm of seconds */
/* The error at a plan is the mean of the errors at priced plans, weighted by the distance of their features.
 */
#define ERROR_DISTANCE 0.3
#define ERROR_PRIOR    0.3 /* weight of "no error" */
#define UNKNOWN_BONUS  0.3 /* in the logarithm of seconds */
#define OTHER_MESH     0.3 /* factor of the weights of plans on other meshes */

/* A plan of the tree. */
typedef struct Node {
    int32_t mesh, parent; /* -1: the plan that splits nothing */
    AxisPlan plan;
    double estimated;       /* its gain */
    double gain;            /* its gain, or the estimated one with the mean of the errors at priced plans */
    double errors, weights; /* of that mean: sums */
    int32_t expansions;
    bool is_priced;
    float facts[ASSIGNMENT_FACTS];
} Node;

struct AssignmentSearch {
    SingleStageSearch *stages;
    Agent *agent;
    Random random;
    PlanPrice unsplit;
    int32_t most_meshes, mesh_count;
    StageProblem *problems[SEARCH_MOST_MESHES]; /* in the order of the beginning */
    Assignments assignments[SEARCH_MOST_MESHES];
    int32_t node_count, priced_count, expansions, familiar, repeats;
    double temperature;
    bool is_exhausted;
    AssignmentState state;
    Node nodes[MOST_NODES];
    int32_t priced[MOST_NODES]; /* [priced_count] */
};

static AmStatus make_agent(AssignmentSearch *self, AmError *error) {
    const SearchOptions *options = self->stages->options;
    AgentSettings settings = assignment_settings();
    settings.seed = options->seed;
    settings.device = options->request->method.device;
    settings.learning_rate = LEARNING_RATE;
    settings.batch = 16;
    settings.replay_capacity = 4096;
    if (!options->request->method.policy) return assignment_agent_built_in(&self->agent, &settings, error);
    if (strcmp(options->request->method.policy, UNTRAINED) != 0)
        return assignment_agent_read(&self->agent, &settings, options->request->method.policy, error);
    return assignment_agent_untrained(&self->agent, &settings, error);
}

AmStatus assignment_search_check(const SearchOptions *options, AmError *error) {
    const AgentSettings settings = assignment_settings();
    Agent *agent;
    if (!options->request->method.policy || strcmp(options->request->method.policy, UNTRAINED) == 0)
        return AM_OK;
    TRY(assignment_agent_read(&agent, &settings, options->request->method.policy, error));
    agent_free(agent);
    return AM_OK;
}

AmStatus assignment_search_open(AssignmentSearch **search, SingleStageSearch *stages, int32_t meshes,
                                AmError *error) {
    AssignmentSearch *self = *search = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, sizeof *self);
    self->stages = stages;
    self->most_meshes = meshes;
    self->temperature = FIRST_TEMPERATURE;
    random_seed(&self->random, stages->options->seed);
    return make_agent(self, error);
}

void assignment_search_close(AssignmentSearch *self) {
    if (!self) return;
    for (int32_t k = 0; k < self->mesh_count; k++) assignments_close(&self->assignments[k]);
    agent_free(self->agent);
    free(self);
}

static bool is_known(const AssignmentSearch *self, int32_t mesh, const AxisPlan *axis_plan) {
    for (int32_t k = 0; k < self->node_count; k++)
        if (self->nodes[k].mesh == mesh && memcmp(&self->nodes[k].plan, axis_plan, sizeof *axis_plan) == 0)
            return true;
    return false;
}

/* Returns the weight of the error at a priced plan for another plan. */
static double weight_of(const Node *priced, const Node *node) {
    double square = 0;
    for (int32_t k = 0; k < ASSIGNMENT_FACTS; k++) {
        double difference = (double)priced->facts[k] - (double)node->facts[k];
        square += difference * difference;
    }
    double weight = exp(-square / (2 * ERROR_DISTANCE * ERROR_DISTANCE));
    return priced->mesh == node->mesh ? weight : OTHER_MESH * weight;
}

/* Adds the error at a priced plan to those that correct the estimate of another one. */
static void correct(Node *node, const Node *priced) {
    double weight = weight_of(priced, node);
    node->errors += weight * (priced->gain - priced->estimated);
    node->weights += weight;
    node->gain = node->estimated + node->errors / node->weights;
}

static void add_node(AssignmentSearch *self, const Node *added) {
    self->is_exhausted |= self->node_count == MOST_NODES;
    if (self->is_exhausted) return;
    Node *node = &self->nodes[self->node_count++];
    *node = *added;
    node->weights = ERROR_PRIOR;
    for (int32_t k = 0; k < self->priced_count && !node->is_priced; k++)
        correct(node, &self->nodes[self->priced[k]]);
}

/* Corrects the estimates of all plans by the price of one. */
static void note_price(AssignmentSearch *self, int32_t place) {
    self->priced[self->priced_count++] = place;
    for (int32_t k = 0; k < self->node_count; k++)
        if (!self->nodes[k].is_priced) correct(&self->nodes[k], &self->nodes[place]);
}

/* Adds new plans that are one action away from a plan: those of the actions that the network ranks first. */
static AmStatus expand(AssignmentSearch *self, int32_t parent, double temperature, int32_t random_looks,
                       AmError *error) {
    Node *from = &self->nodes[parent];
    const Assignments *assignments = &self->assignments[from->mesh];
    AssignmentState *state = &self->state;
    AssignmentLooks looks;
    const AssignmentManner manner = {
        .best = ASSIGNMENT_LOOKS - random_looks, .random = random_looks, .temperature = temperature};
    bool known[ASSIGNMENT_MOST_ACTIONS];
    int32_t before = self->node_count;
    from->expansions++;
    self->expansions++;
    TRY(assignment_enter(state, assignments, &from->plan, error));
    for (int32_t a = 0; a < state->action_count; a++)
        known[a] = is_known(self, from->mesh, &state->actions[a].next);
    TRY(assignment_look(&looks, self->agent, assignments, state, &manner, known, &self->random, error));
    for (int32_t n = 0; n < looks.count; n++) {
        const AssignmentLook *look = &looks.of[n];
        Node node = {.mesh = from->mesh,
                     .parent = parent,
                     .plan = state->actions[look->action].next,
                     .estimated = look->gain,
                     .gain = look->gain};
        memcpy(node.facts, look->facts, sizeof node.facts);
        add_node(self, &node);
        TRY(assignment_store(self->agent, state->features[look->action], look->gain - from->estimated,
                             error));
    }
    if (!self->stages->options->request->method.no_learning) agent_learn(self->agent, UPDATES_PER_EXPANSION);
    self->familiar = self->node_count > before ? 0 : self->familiar + 1;
    self->is_exhausted |= self->familiar >= FAMILIAR_EXPANSIONS;
    return AM_OK;
}

/* Expands the plans of each step with the largest predicted gain of their further actions, until no
 * prediction exceeds those before. */
static AmStatus search_beam(AssignmentSearch *self, int32_t root, AmError *error) {
    int32_t frontier[BEAM] = {root}, count = 1;
    double most = self->nodes[root].gain;
    int32_t worse = 0;
    for (int32_t step = 0; step < ASSIGNMENT_MOST_STEPS && count > 0; step++) {
        int32_t first = self->node_count;
        for (int32_t k = 0; k < count && !single_stage_must_end(self->stages); k++)
            TRY(expand(self, frontier[k], 0, 0, error));
        double before = most;
        count = 0;
        for (int32_t k = first; k < self->node_count; k++) most = fmax(most, self->nodes[k].gain);
        worse = most > before ? 0 : worse + 1;
        if (worse > MOST_WORSE) return AM_OK;
        for (; count < BEAM; count++) {
            int32_t best = -1;
            for (int32_t k = first; k < self->node_count; k++) {
                bool is_taken = false;
                for (int32_t j = 0; j < count; j++) is_taken |= frontier[j] == k;
                if (!is_taken && (best < 0 || self->nodes[k].gain > self->nodes[best].gain)) best = k;
            }
            if (best < 0) break;
            frontier[count] = best;
        }
    }
    return AM_OK;
}

/* Prices the unsplit plan, which costs the same on every mesh, and searches from it on each mesh. */
static AmStatus begin(AssignmentSearch *self, AmError *error) {
    SingleStageSearch *stages = self->stages;
    const AxisPlan nothing = {0};
    if (!single_stage_cap(stages, stages->problems[0])) return AM_OK;
    TRY(problem_price(stages->problems[0], &nothing, &self->unsplit, error));
    for (int32_t k = 0; k < self->most_meshes && !single_stage_must_end(stages); k++) {
        self->problems[k] = stages->problems[k];
        self->mesh_count++;
        TRY(assignments_open(&self->assignments[k], self->problems[k], &self->unsplit, error));
        const Assignments *assignments = &self->assignments[k];
        Node root = {.mesh = k, .parent = -1, .is_priced = true};
        TRY(assignment_estimate(&root.estimated, root.facts, assignments, &nothing, error));
        add_node(self, &root);
        if (self->is_exhausted) return AM_OK;
        note_price(self, self->node_count - 1);
        TRY(search_beam(self, self->node_count - 1, error));
    }
    return AM_OK;
}

/* Returns the predicted gain of a plan, with a bonus for plans unlike all priced ones. */
static double promise(const Node *node) {
    return node->gain + UNKNOWN_BONUS * sqrt(ERROR_PRIOR / node->weights);
}

/* Returns the unpriced plan with the largest predicted gain and bonus; -1: none. */
static int32_t next_plan(const AssignmentSearch *self) {
    int32_t best = -1;
    for (int32_t k = 0; k < self->node_count; k++) {
        const Node *node = &self->nodes[k];
        if (!node->is_priced && (best < 0 || promise(node) > promise(&self->nodes[best]))) best = k;
    }
    return best;
}

/* Expands a plan by its gain, with noise; those that were expanded have a penalty. */
static AmStatus expand_again(AssignmentSearch *self, AmError *error) {
    int32_t chosen = 0;
    double most = -INFINITY;
    for (int32_t k = 0; k < self->node_count; k++) {
        const Node *node = &self->nodes[k];
        double noise = -log(-log(random_uniform(&self->random) + 1e-12) + 1e-12);
        double total = node->gain + self->temperature * noise - EXPANDED_PENALTY * node->expansions;
        if (total > most) chosen = k;
        most = fmax(most, total);
    }
    return expand(self, chosen, self->temperature, RANDOM_LOOKS, error);
}

static void log_price(const AssignmentSearch *self, double gain) {
    const SingleStageSearch *stages = self->stages;
    const SearchOptions *options = stages->options;
    double seconds = INFINITY;
    char line[256];
    if (!options->request->callbacks.on_episode) return;
    for (int32_t k = 0; k < stages->problem_count; k++)
        if (stages->problems[k]->best.is_known)
            seconds = fmin(seconds, stages->problems[k]->best.price.seconds);
    snprintf(
        line, sizeof line,
        "{\"evaluations\":%lld,\"reward\":%.6g,\"best\":%.9g,\"epsilon\":%.4g,\"loss\":%.6g,\"episodes\":%d}",
        (long long)single_stage_evaluations(stages), gain, seconds, self->temperature,
        agent_loss(self->agent), self->expansions);
    options->request->callbacks.on_episode(options->request->callbacks.user, line);
}

static AmStatus price(AssignmentSearch *self, int32_t place, AmError *error) {
    Node *node = &self->nodes[place];
    StageProblem *problem = self->problems[node->mesh];
    PlanPrice found;
    node->is_priced = true;
    if (!single_stage_cap(self->stages, problem)) return AM_OK;
    int64_t before = problem->budget.used;
    TRY(problem_price(problem, &node->plan, &found, error));
    self->repeats = problem->budget.used > before ? 0 : self->repeats + 1;
    self->is_exhausted |= self->repeats >= MOST_REPEATS;
    self->stages->budget.is_cut |= problem->budget.is_cut;
    if (problem->budget.is_cut) return AM_OK;
    double gain = node->gain = assignment_gain(&self->assignments[node->mesh], &found);
    note_price(self, place);
    log_price(self, gain);
    bool is_best = true;
    for (int32_t k = 0; k < self->node_count; k++)
        is_best = is_best && (!self->nodes[k].is_priced || self->nodes[k].gain <= gain);
    return is_best && node->expansions == 0 ? expand(self, place, 0, 0, error) : AM_OK;
}

static bool is_over(const AssignmentSearch *self, int64_t until) {
    const SingleStageSearch *stages = self->stages;
    return self->is_exhausted || stages->budget.is_cut || single_stage_must_end(stages) ||
           single_stage_evaluations(stages) >= until;
}

AmStatus assignment_search_run(AssignmentSearch *self, int64_t until, AmError *error) {
    if (is_over(self, until)) return AM_OK;
    if (self->mesh_count == 0) TRY(begin(self, error));
    for (int32_t iteration = 0; !is_over(self, until); iteration++) {
        int32_t next = next_plan(self);
        if (next < 0 || iteration % (PRICES_PER_EXPANSION + 1) == PRICES_PER_EXPANSION) {
            if (next < 0) self->temperature = fmin(1.2 * self->temperature, LAST_TEMPERATURE);
            TRY(expand_again(self, error));
        } else {
            TRY(price(self, next, error));
        }
    }
    return AM_OK;
}

bool assignment_search_best(const AssignmentSearch *self, StageProblem **problem, AxisPlan *axis_plan) {
    const Node *best = NULL;
    for (int32_t k = 0; k < self->priced_count; k++) {
        const Node *node = &self->nodes[self->priced[k]];
        if (!best || node->gain > best->gain) best = node;
    }
    if (!best) return false;
    *problem = self->problems[best->mesh];
    *axis_plan = best->plan;
    return true;
}
