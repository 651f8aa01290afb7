/* The searcher dqn: a tree of plans by actions that the policy ranks, and the prices that correct estimates.
 * Where memory is scarce the tree also has plans with more micro-batches.
 */
#include "planners/single_stage/assignment_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planners/single_stage/assignment_policy.h"
#include "planners/single_stage/stage_choices.h"

#define UNTRAINED             "untrained"
#define MOST_NODES            16384
#define MOST_WORSE            2 /* steps of the beginning that find no better plan */
#define BEAM                  3 /* plans of a mesh that are expanded at each step of the beginning */
#define UPDATES_PER_EXPANSION 2
#define FAMILIAR_EXPANSIONS   64  /* without a new plan, one after the other: nothing is left to find */
#define RANDOM_ESTIMATES      3   /* of an expansion that is drawn */
#define MOST_REPEATS          150 /* plans in a row that come to ones priced before */
#define PRICES_PER_EXPANSION  2
#define MOST_UNFIT            2 /* prices in a row without a plan that fits: missing memory weighs more */
#define MOST_STRICTNESS       16
#define MEMORY_BINDS          0.05 /* in the logarithm of seconds */
#define LEARNING_RATE         1e-3
#define MOST_STALE            15 /* prices in a row without a better plan: plans near priced ones have turns */
#define PRICED_TEMPERATURE    0.03
#define NEAR_TEMPERATURE      0.1
#define FIRST_TEMPERATURE     0.02
#define LAST_TEMPERATURE      0.4
#define EXPANDED_PENALTY      0.05 /* per expansion of a plan, in the logarithm of seconds */
/* The error at a plan is the mean of the errors at priced plans, weighted by the distance of their
 * features. */
#define ERROR_DISTANCE 0.3
#define ERROR_PRIOR    0.3 /* weight of "no error" */
#define UNKNOWN_BONUS  0.3 /* in the logarithm of seconds */
#define OTHER_MESH     0.3 /* factor of the weights of plans on other meshes */

/* A plan of the tree. */
typedef struct Node {
    int32_t mesh, parent; /* -1: the plan that splits nothing */
    AxisPlan plan;
    AssignmentValue estimate;
    AssignmentValue expected; /* the estimate with the error that the policy expects */
    AssignmentValue value;    /* its price's, or the expected one with the mean error at priced plans */
    double seconds_errors, memory_errors, weights; /* of that mean: sums */
    int32_t expansions;
    bool is_priced;
    float facts[ASSIGNMENT_FACTS];
} Node;

/* Of a plan that the module does not allow. */
#define NO_VALUE ((AssignmentValue){.gain = -100, .seconds_gain = -100})

struct AssignmentSearch {
    SingleStageSearch *stages;
    AssignmentPolicy policy;
    int32_t estimates; /* of an expansion */
    Random random;
    PlanPrice unsplit;
    int32_t most_meshes, mesh_count;
    StageProblem *problems[SEARCH_MOST_MESHES]; /* in the order of the beginning */
    AssignmentProblem described[SEARCH_MOST_MESHES];
    double unsplit_gains[SEARCH_MOST_MESHES]; /* log of the seconds of the unsplit plan with the least
                                                 micro-batches, over those of the problem's */
    int32_t choices[SEARCH_MOST_MESHES];      /* [mesh] pipeline of the scope's stages; -1: one stage */
    bool is_opened[STAGE_CHOICES_MOST];       /* [pipeline] */
    double table_errors, table_error_count;   /* log of the tables' seconds over the prices': sum; number */
    double stages_seconds;                    /* of the fastest pipeline that fits; INFINITY */
    bool wants_number, has_all_numbers;       /* of micro-batches */
    int32_t node_count, priced_count, expansions, familiar, repeats;
    double temperature;
    double strictness; /* factor of the addend for missing memory */
    int32_t unfit;     /* prices since the start or the last change of strictness, if none fitted */
    int32_t stale;     /* prices since the best one */
    bool has_fitting, is_exhausted;
    AssignmentState state;
    Node nodes[MOST_NODES];
    int32_t priced[MOST_NODES]; /* [priced_count] */
};

AmStatus assignment_search_check(const SearchScope *scope, AmError *error) {
    const SearchRequest *request = scope->request;
    const AgentSettings settings = assignment_settings();
    AssignmentPolicy policy;
    if (!request->method.policy || strcmp(request->method.policy, UNTRAINED) == 0) return AM_OK;
    TRY(assignment_policy_read(&policy, &settings, request->method.policy, error));
    assignment_policy_close(&policy);
    return AM_OK;
}

AmStatus assignment_search_open(AssignmentSearch **search, SingleStageSearch *stages, int32_t meshes,
                                AmError *error) {
    AssignmentSearch *self = *search = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, sizeof *self);
    self->stages = stages;
    self->most_meshes = meshes;
    self->temperature = FIRST_TEMPERATURE;
    self->strictness = 1;
    self->stages_seconds = INFINITY;
    random_seed(&self->random, stages->rounds.seed);
    /* The searcher dqn has the evaluations to correct the network of errors by prices. SEARCHER_AUTO prices
     * at most 10 plans of the policy, so its estimates count uncorrected. */
    const SearchScope *scope = self->stages->scope;
    AgentSettings settings = assignment_settings();
    settings.seed = self->stages->rounds.seed;
    settings.device = scope->request->method.device;
    settings.learning_rate = LEARNING_RATE;
    settings.batch = 16;
    settings.replay_capacity = 4096;
    const char *path = scope->request->method.policy;
    bool expects_errors = scope->searcher == SEARCHER_DQN;
    self->estimates = expects_errors ? ASSIGNMENT_ESTIMATES : ASSIGNMENT_FEW_ESTIMATES;
    if (!path) TRY(assignment_policy_built_in(&self->policy, &settings, error));
    else if (strcmp(path, UNTRAINED) != 0) TRY(assignment_policy_read(&self->policy, &settings, path, error));
    else TRY(assignment_agent_untrained(&self->policy.actions, &settings, ASSIGNMENT_FEATURES, error));
    if (expects_errors) return AM_OK;
    agent_free(self->policy.errors);
    self->policy.errors = NULL;
    return AM_OK;
}

void assignment_search_close(AssignmentSearch *self) {
    if (!self) return;
    assignment_policy_close(&self->policy);
    free(self);
}

static bool is_over(const AssignmentSearch *self, int64_t until) {
    const SingleStageSearch *stages = self->stages;
    return self->is_exhausted || stages->budget.is_cut || single_stage_must_end(stages) ||
           single_stage_evaluations(stages) >= until;
}

static bool is_known(const AssignmentSearch *self, int32_t mesh, const AxisPlan *axis_plan) {
    for (int32_t k = 0; k < self->node_count; k++)
        if (self->nodes[k].mesh == mesh && memcmp(&self->nodes[k].plan, axis_plan, sizeof *axis_plan) == 0)
            return true;
    return false;
}

/* Adds the error at a priced plan to those that correct the estimate of another one. */
static void correct(Node *node, const Node *priced) {
    /* The weight of the error at a priced plan for this one. */
    double square = 0;
    for (int32_t k = 0; k < ASSIGNMENT_FACTS; k++) {
        double difference = (double)priced->facts[k] - (double)node->facts[k];
        square += difference * difference;
    }
    double alone = exp(-square / (2 * ERROR_DISTANCE * ERROR_DISTANCE));
    double weight = priced->mesh == node->mesh ? alone : OTHER_MESH * alone;
    node->seconds_errors += weight * (priced->value.seconds_gain - priced->expected.seconds_gain);
    node->memory_errors += weight * (priced->value.memory - priced->expected.memory);
    node->weights += weight;
    node->value.seconds_gain = node->expected.seconds_gain + node->seconds_errors / node->weights;
    node->value.memory = node->expected.memory + node->memory_errors / node->weights;
}

static double gain_of(const AssignmentSearch *self, const Node *node) {
    return self->unsplit_gains[node->mesh] + node->value.seconds_gain -
           self->strictness * assignment_missing(node->value.memory);
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
static AmStatus expand_node(AssignmentSearch *self, int32_t parent, double temperature, int32_t random_count,
                            AmError *error) {
    Node *from = &self->nodes[parent];
    const AssignmentProblem *described = &self->described[from->mesh];
    AssignmentState *state = &self->state;
    ActionEstimates estimates;
    const AssignmentPlayer player = {.policy = &self->policy,
                                     .problem = described,
                                     .state = state,
                                     .choice = {.best = self->estimates - random_count,
                                                .random = random_count,
                                                .temperature = temperature},
                                     .random = &self->random};
    bool known[ASSIGNMENT_MOST_ACTIONS];
    int32_t before = self->node_count;
    from->expansions++;
    self->expansions++;
    TRY(assignment_enter(state, described, &from->plan, error));
    for (int32_t a = 0; a < state->action_count; a++)
        known[a] = is_known(self, from->mesh, &state->actions[a].next);
    TRY(assignment_estimate_actions(&estimates, &player, known, error));
    for (int32_t n = 0; n < estimates.count; n++) {
        const ActionEstimate *estimated = &estimates.of[n];
        Node node = {.mesh = from->mesh,
                     .parent = parent,
                     .plan = state->actions[estimated->action].next,
                     .estimate = estimated->estimate,
                     .expected = estimated->value,
                     .value = estimated->value};
        memcpy(node.facts, estimated->facts, sizeof node.facts);
        add_node(self, &node);
        TRY(assignment_store(self->policy.actions, state->features[estimated->action],
                             estimated->estimate.gain - from->estimate.gain, error));
    }
    if (!self->stages->scope->request->method.no_learning)
        agent_learn(self->policy.actions, UPDATES_PER_EXPANSION);
    self->familiar = self->node_count > before ? 0 : self->familiar + 1;
    self->is_exhausted |= self->familiar >= FAMILIAR_EXPANSIONS;
    return AM_OK;
}

/* Expands the plans of each step with the largest predicted gain of their further actions, until no
 * prediction exceeds those before. */
static AmStatus search_beam(AssignmentSearch *self, int32_t root, AmError *error) {
    int32_t frontier[BEAM] = {root}, count = 1;
    double most = gain_of(self, &self->nodes[root]);
    int32_t worse = 0;
    for (int32_t step = 0; step < ASSIGNMENT_MOST_STEPS && count > 0; step++) {
        int32_t first = self->node_count;
        for (int32_t k = 0; k < count && !single_stage_must_end(self->stages); k++)
            TRY(expand_node(self, frontier[k], 0, 0, error));
        double before = most;
        count = 0;
        for (int32_t k = first; k < self->node_count; k++) most = fmax(most, gain_of(self, &self->nodes[k]));
        worse = most > before ? 0 : worse + 1;
        if (worse > MOST_WORSE) return AM_OK;
        for (; count < BEAM; count++) {
            int32_t best = -1;
            for (int32_t k = first; k < self->node_count; k++) {
                bool is_taken = false;
                for (int32_t j = 0; j < count; j++) is_taken |= frontier[j] == k;
                if (!is_taken &&
                    (best < 0 || gain_of(self, &self->nodes[k]) > gain_of(self, &self->nodes[best])))
                    best = k;
            }
            if (best < 0) break;
            frontier[count] = best;
        }
    }
    return AM_OK;
}

/* Prices the unsplit plan of a number of micro-batches, which costs the same on every mesh, and searches from
 * it on each mesh. */
static AmStatus begin_number(AssignmentSearch *self, StageProblem *const *problems, int32_t count,
                             AmError *error) {
    SingleStageSearch *stages = self->stages;
    const AxisPlan nothing = {0};
    PlanPrice unsplit;
    if (!single_stage_cap(stages, problems[0])) return AM_OK;
    TRY(problem_price(problems[0], &nothing, &unsplit, error));
    if (self->mesh_count == 0) self->unsplit = unsplit;
    self->has_fitting |= unsplit.excess <= 0;
    for (int32_t n = 0; n < count && !single_stage_must_end(stages); n++) {
        int32_t k = self->mesh_count++;
        self->problems[k] = problems[n];
        self->choices[k] = -1;
        self->unsplit_gains[k] = log(fmax(self->unsplit.seconds, 1e-12) / fmax(unsplit.seconds, 1e-12));
        TRY(assignment_problem_open(&self->described[k], problems[n], &unsplit, error));
        const AssignmentProblem *described = &self->described[k];
        Node root = {.mesh = k, .parent = -1, .is_priced = true};
        TRY(assignment_estimate(&root.estimate, root.facts, described, &nothing, error));
        root.expected = root.estimate;
        root.value = assignment_value(described, &unsplit);
        add_node(self, &root);
        if (self->is_exhausted) return AM_OK;
        note_price(self, self->node_count - 1);
        TRY(search_beam(self, self->node_count - 1, error));
    }
    return AM_OK;
}

/* Returns whether a plan of the largest number of micro-batches, priced or not, would be faster than all
 * plans that fit, and does not fit. */
static bool lacks_memory(const AssignmentSearch *self) {
    double fitting = -INFINITY, unfitting = -INFINITY;
    for (int32_t k = 0; k < self->node_count; k++) {
        const Node *node = &self->nodes[k];
        double gain = self->unsplit_gains[node->mesh] + node->value.seconds_gain;
        bool is_largest =
            self->problems[node->mesh]->context == self->problems[self->mesh_count - 1]->context;
        if (node->value.memory <= 0) fitting = fmax(fitting, gain);
        else if (is_largest) unfitting = fmax(unfitting, gain);
    }
    return unfitting > fitting + MEMORY_BINDS;
}

/* Takes the action of twice as many micro-batches: their plans join the tree. It is masked unless memory
 * keeps faster plans away, since micro-batches cost time and save memory. */
static AmStatus add_number(AssignmentSearch *self, AmError *error) {
    SingleStageSearch *stages = self->stages;
    int32_t first = stages->other_count, count;
    TRY(single_stage_split(stages, self->problems[self->mesh_count - 1], &count, error));
    self->has_all_numbers = count == 0;
    return count > 0 ? begin_number(self, &stages->others[first], count, error) : AM_OK;
}

static AmStatus begin_search(AssignmentSearch *self, int64_t until, AmError *error) {
    TRY(begin_number(self, self->stages->problems, self->most_meshes, error));
    while (!self->has_all_numbers && lacks_memory(self) && !is_over(self, until))
        TRY(add_number(self, error));
    return AM_OK;
}

/* Returns the predicted gain of a plan, with a bonus for plans unlike all priced ones. */
static double promise(const AssignmentSearch *self, const Node *node) {
    return gain_of(self, node) + UNKNOWN_BONUS * sqrt(ERROR_PRIOR / node->weights);
}

/* Expands a plan by its gain, with noise; those that were expanded have a penalty. */
static AmStatus expand_again(AssignmentSearch *self, AmError *error) {
    int32_t chosen = 0;
    double most = -INFINITY;
    for (int32_t k = 0; k < self->node_count; k++) {
        const Node *node = &self->nodes[k];
        double noise = random_gumbel(&self->random);
        double total = gain_of(self, node) + self->temperature * noise - EXPANDED_PENALTY * node->expansions;
        if (total > most) chosen = k;
        most = fmax(most, total);
    }
    return expand_node(self, chosen, self->temperature, RANDOM_ESTIMATES, error);
}

static void log_price(const AssignmentSearch *self, double gain) {
    const SingleStageSearch *stages = self->stages;
    const SearchScope *scope = stages->scope;
    double seconds = self->stages_seconds;
    char line[256];
    if (!scope->request->callbacks.on_episode) return;
    for (int32_t k = 0; k < stages->problem_count + stages->other_count; k++) {
        int32_t other = k - stages->problem_count;
        const StageProblem *problem = other < 0 ? stages->problems[k] : stages->others[other];
        if (problem->best.is_known) seconds = fmin(seconds, problem->best.price.seconds);
    }
    snprintf(
        line, sizeof line,
        "{\"evaluations\":%lld,\"reward\":%.6g,\"best\":%.9g,\"epsilon\":%.4g,\"loss\":%.6g,\"episodes\":%d}",
        (long long)single_stage_evaluations(stages), gain, seconds, self->temperature,
        agent_loss(self->policy.actions), self->expansions);
    scope->request->callbacks.on_episode(scope->request->callbacks.user, line);
}

/* Counts a price of the scope's stages. Infinite seconds are none. */
static void count_stages_price(AssignmentSearch *self, const PlanPrice *price) {
    if (isinf(price->seconds)) return;
    self->stages->budget.used++;
    if (price->excess <= 0) self->stages_seconds = fmin(self->stages_seconds, price->seconds);
}

/* Prices the plan of a node; `price->seconds` is infinite where it has none, or the search is cut. */
static AmStatus price_plan(AssignmentSearch *self, const Node *node, PlanPrice *price, AmError *error) {
    const StageChoices *choices = self->stages->scope->stages;
    StageProblem *problem = self->problems[node->mesh];
    int32_t choice = self->choices[node->mesh];
    price->seconds = INFINITY;
    if (choice >= 0) {
        self->stages->budget.is_cut |= single_stage_left(self->stages) <= 0;
        if (self->stages->budget.is_cut) return AM_OK;
        StagePrice found;
        TRY(choices->price(choices->user, choice, problem, &node->plan, &found, error));
        *price = found.price;
        if (found.is_new) count_stages_price(self, price);
        self->repeats = found.is_new ? 0 : self->repeats + 1;
        self->is_exhausted |= self->repeats >= MOST_REPEATS;
        return AM_OK;
    }
    if (!single_stage_cap(self->stages, problem)) return AM_OK;
    int64_t before = problem->budget.used;
    TRY(problem_price(problem, &node->plan, price, error));
    self->repeats = problem->budget.used > before ? 0 : self->repeats + 1;
    self->is_exhausted |= self->repeats >= MOST_REPEATS;
    self->stages->budget.is_cut |= problem->budget.is_cut;
    if (problem->budget.is_cut) price->seconds = INFINITY;
    return AM_OK;
}

static AmStatus price_node(AssignmentSearch *self, int32_t place, AmError *error) {
    Node *node = &self->nodes[place];
    PlanPrice found;
    node->is_priced = true;
    TRY(price_plan(self, node, &found, error));
    if (isinf(found.seconds)) {
        node->value = NO_VALUE;
        return AM_OK;
    }
    node->value = assignment_value(&self->described[node->mesh], &found);
    note_price(self, place);
    log_price(self, node->value.gain);
    self->has_fitting |= found.excess <= 0;
    if (!self->has_fitting && ++self->unfit >= MOST_UNFIT) { /* missing memory weighs more and more */
        self->strictness = fmin(2 * self->strictness, MOST_STRICTNESS);
        self->unfit = 0;
        self->wants_number = true;
    }
    double gain = gain_of(self, node);
    bool is_best = true;
    for (int32_t k = 0; k < self->node_count; k++)
        is_best = is_best && (!self->nodes[k].is_priced || gain_of(self, &self->nodes[k]) <= gain);
    self->stale = is_best ? 0 : self->stale + 1;
    return is_best && node->expansions == 0 ? expand_node(self, place, 0, 0, error) : AM_OK;
}

/* Draws a priced plan, of a large gain rather than a small one. */
static int32_t draw_priced(AssignmentSearch *self) {
    int32_t chosen = -1;
    double most = -INFINITY;
    for (int32_t k = 0; k < self->priced_count; k++) {
        double total = gain_of(self, &self->nodes[self->priced[k]]);
        total += PRICED_TEMPERATURE * random_gumbel(&self->random);
        if (total > most) chosen = self->priced[k];
        most = fmax(most, total);
    }
    return chosen;
}

/* Takes an action that the network ranks high, with noise, and copies its features to `row`. */
static AmStatus take_action(AssignmentSearch *self, Node *node, bool must_be_new,
                            float row[ASSIGNMENT_FEATURES], bool *is_taken, AmError *error) {
    AssignmentState *state = &self->state;
    const AssignmentProblem *described = &self->described[node->mesh];
    const AssignmentPlayer player = {.policy = &self->policy,
                                     .problem = described,
                                     .state = state,
                                     .choice = {.best = 1, .temperature = NEAR_TEMPERATURE},
                                     .random = &self->random};
    ActionEstimates estimates;
    bool skipped[ASSIGNMENT_MOST_ACTIONS] = {false};
    TRY(assignment_enter(state, described, &node->plan, error));
    for (int32_t a = 0; a < state->action_count && must_be_new; a++)
        skipped[a] = is_known(self, node->mesh, &state->actions[a].next);
    TRY(assignment_estimate_actions(&estimates, &player, skipped, error));
    *is_taken = estimates.count > 0;
    if (!*is_taken) return AM_OK;
    const ActionEstimate *estimated = &estimates.of[0];
    memcpy(row, state->features[estimated->action], sizeof state->features[0]);
    memcpy(node->facts, estimated->facts, sizeof node->facts);
    node->plan = state->actions[estimated->action].next;
    node->estimate = estimated->estimate;
    node->expected = node->value = estimated->value;
    return AM_OK;
}

/* Prices a new plan that is one or two actions away from a priced one, whatever its estimate. The network
 * ranks the actions, and learns the gain of the plan. Without such a plan another one is expanded. */
static AmStatus price_near(AssignmentSearch *self, AmError *error) {
    enum { MOST_ACTIONS = 2, MOST_TRIES = 8 };
    int32_t parent = draw_priced(self);
    float rows[MOST_ACTIONS][ASSIGNMENT_FEATURES];
    for (int32_t tries = 0; tries < MOST_TRIES; tries++) {
        int32_t actions = 1 + (int32_t)random_below(&self->random, MOST_ACTIONS), place = self->node_count;
        Node node = {.mesh = self->nodes[parent].mesh, .parent = parent, .plan = self->nodes[parent].plan};
        bool is_taken = true;
        for (int32_t k = 0; k < actions && is_taken; k++)
            TRY(take_action(self, &node, k == actions - 1, rows[k], &is_taken, error));
        if (!is_taken) continue;
        add_node(self, &node);
        if (self->node_count == place) return AM_OK;
        TRY(price_node(self, place, error));
        if (self->stages->budget.is_cut) return AM_OK;
        double gain = self->nodes[place].value.gain - self->nodes[parent].value.gain;
        for (int32_t k = 0; k < actions; k++)
            TRY(assignment_store(self->policy.actions, rows[k], gain, error));
        return AM_OK;
    }
    return expand_again(self, error);
}

/* Returns the unpriced plan with the largest predicted gain and bonus, on the meshes from `first_mesh` on;
 * -1: there is none. */
static int32_t most_promising(const AssignmentSearch *self, int32_t first_mesh) {
    int32_t best = -1;
    for (int32_t k = 0; k < self->node_count; k++) {
        const Node *node = &self->nodes[k];
        if (node->is_priced || node->mesh < first_mesh) continue;
        if (best < 0 || promise(self, node) > promise(self, &self->nodes[best])) best = k;
    }
    return best;
}

/* Adds a number of micro-batches and prices its most promising plan: other plans seem to fit, and do not. */
static AmStatus price_number(AssignmentSearch *self, AmError *error) {
    int32_t first_mesh = self->mesh_count;
    self->wants_number = false;
    TRY(add_number(self, error));
    int32_t next = most_promising(self, first_mesh);
    return next >= 0 ? price_node(self, next, error) : AM_OK;
}

/* ---- the number of stages ---- */

/* Returns the pipeline, not yet opened, with the largest gain by the tables or by its price; -1: there is
 * none. */
static int32_t next_choice(const AssignmentSearch *self, double *gain) {
    const StageChoices *choices = self->stages->scope->stages;
    double error = self->table_errors / (self->table_error_count + 1);
    int32_t best = -1;
    *gain = -INFINITY;
    for (int32_t k = 0; choices && k < choices->count; k++) {
        double here = log(fmax(self->unsplit.seconds, 1e-12) / choices->seconds[k]);
        if (!choices->is_priced[k]) here += error;
        if (self->is_opened[k] || here <= *gain) continue;
        *gain = here;
        best = k;
    }
    *gain += UNKNOWN_BONUS;
    return best;
}

/* Describes the module on a mesh of a pipeline's stages, and begins the tree there. `root`: the plan to begin
 * with; its price, or that of the plan that splits nothing, which is equal on all meshes. */
static AmStatus begin_mesh(AssignmentSearch *self, int32_t choice, StageProblem *problem,
                           const StageOpening *opening, const PlanPrice *unsplit, AmError *error) {
    const bool is_first = !unsplit;
    int32_t k = self->mesh_count++;
    AssignmentProblem *described = &self->described[k];
    self->problems[k] = problem;
    self->choices[k] = choice;
    TRY(assignment_problem_open(described, problem, is_first ? &self->unsplit : unsplit, error));
    if (is_first) TRY(assignment_problem_anchor(described, &opening->axis_plan, &opening->price, error));
    self->unsplit_gains[k] =
        log(fmax(self->unsplit.seconds, 1e-12) / fmax(described->unsplit.seconds, 1e-12));
    Node root = {.mesh = k, .parent = -1, .is_priced = is_first};
    if (is_first) root.plan = opening->axis_plan;
    TRY(assignment_estimate(&root.estimate, root.facts, described, &root.plan, error));
    root.expected = root.estimate;
    root.value = is_first ? assignment_value(described, &opening->price) : root.estimate;
    add_node(self, &root);
    if (self->is_exhausted) return AM_OK;
    if (is_first) note_price(self, self->node_count - 1);
    return search_beam(self, self->node_count - 1, error);
}

/* Takes the action of a number of stages: simulates its pipeline of the tables, and begins the tree on the
 * meshes of its stages. */
static AmStatus open_choice(AssignmentSearch *self, int32_t choice, AmError *error) {
    SingleStageSearch *stages = self->stages;
    const StageChoices *choices = stages->scope->stages;
    StageOpening opening = {0};
    self->is_opened[choice] = true;
    if (!choices->is_priced[choice]) {
        stages->budget.is_cut |= single_stage_left(stages) <= 0;
        if (stages->budget.is_cut) return AM_OK;
    }
    TRY(choices->open(choices->user, choice, &opening, error));
    if (isinf(opening.price.seconds)) return AM_OK;
    if (!choices->is_priced[choice]) {
        count_stages_price(self, &opening.price);
        self->table_errors += log(choices->seconds[choice] / opening.price.seconds);
        self->table_error_count++;
    } else if (opening.price.excess <= 0) {
        self->stages_seconds = fmin(self->stages_seconds, opening.price.seconds);
    }
    self->has_fitting |= opening.price.excess <= 0;
    int32_t first = self->mesh_count;
    for (int32_t k = 0; k < opening.problem_count && self->mesh_count < SEARCH_MOST_MESHES; k++) {
        if (self->is_exhausted || single_stage_must_end(stages)) break;
        const PlanPrice *unsplit = k > 0 ? &self->described[first].unsplit : NULL;
        TRY(begin_mesh(self, choice, opening.problems[k], &opening, unsplit, error));
    }
    return AM_OK;
}

AmStatus assignment_search_run(AssignmentSearch *self, int64_t until, AmError *error) {
    if (is_over(self, until)) return AM_OK;
    if (self->mesh_count == 0) TRY(begin_search(self, until, error));
    for (int32_t iteration = 0; !is_over(self, until); iteration++) {
        if (self->wants_number && !self->has_all_numbers) {
            TRY(price_number(self, error));
            continue;
        }
        double gain;
        int32_t next = most_promising(self, 0), choice = next_choice(self, &gain);
        if (choice >= 0 && (next < 0 || gain > promise(self, &self->nodes[next]))) {
            TRY(open_choice(self, choice, error));
            continue;
        }
        if (self->has_fitting && self->stale >= MOST_STALE && iteration % 2 == 0) {
            TRY(price_near(self, error));
        } else if (next < 0 || iteration % (PRICES_PER_EXPANSION + 1) == PRICES_PER_EXPANSION) {
            if (next < 0) self->temperature = fmin(1.2 * self->temperature, LAST_TEMPERATURE);
            TRY(expand_again(self, error));
        } else {
            TRY(price_node(self, next, error));
        }
    }
    return AM_OK;
}

bool assignment_search_best(const AssignmentSearch *self, StageProblem **problem, AxisPlan *axis_plan) {
    const Node *best = NULL;
    for (int32_t k = 0; k < self->priced_count; k++) {
        const Node *node = &self->nodes[self->priced[k]];
        if (self->choices[node->mesh] >= 0) continue;
        if (!best || gain_of(self, node) > gain_of(self, best)) best = node;
    }
    if (!best) return false;
    *problem = self->problems[best->mesh];
    *axis_plan = best->plan;
    return true;
}
