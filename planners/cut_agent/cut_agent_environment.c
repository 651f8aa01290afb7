/* The environment of the agent that cuts pipelines: legal actions, their values and the table of rests.
 *
 * make_next() finds, for each (stages left, first unit, place), the nearest place from which a plan within
 * the memory can be completed; an action that leads elsewhere is masked. Legal actions are narrowed to those
 * within `radius` of the balance of work. A rest is computed once, and kept by (stages left, unit, place).
 */
#include "planners/cut_agent/cut_agent_environment.h"

#include <math.h>
#include <string.h>

#include "planners/cut_agent/cut_agent_features.h"

/* Candidates whose stage or whose balanced rest is longer than this times the best are masked. */
static const double radius = 1.4;

/* Returns the index of (left, unit, place 0) in the arrays of a table. */
static int64_t index_of(const ChainProblem *problem, int32_t left, int32_t unit) {
    return ((int64_t)left * (problem->unit_count + 1) + unit) * (problem->chain->count + 2);
}

static int64_t table_size(const ChainProblem *problem) {
    return index_of(problem, problem->stages + 1, 0);
}

static uint8_t *row_of(const ChainProblem *problem, uint8_t *next, int32_t left, int32_t unit) {
    return next + index_of(problem, left, unit);
}

static AmStatus make_next(uint8_t **table, const ChainProblem *problem, Arena *arena, AmError *error) {
    int32_t count = problem->chain->count, units = problem->unit_count;
    uint8_t *next = *table = ARENA_ARRAY(arena, uint8_t, table_size(problem));
    if (!next) return am_fail_memory(error, table_size(problem));
    for (int32_t unit = 0; unit <= units; unit++) {
        uint8_t *row = row_of(problem, next, 0, unit);
        memset(row, unit == units ? count : count + 1, (size_t)count + 1);
        row[count + 1] = (uint8_t)(count + 1);
    }
    for (int32_t left = 1; left <= problem->stages; left++) {
        for (int32_t unit = 0; unit <= units; unit++) {
            bool can[CUT_AGENT_POINTS + 1] = {false};
            uint8_t *row = row_of(problem, next, left, unit);
            int32_t first_end = left == 1 ? units : unit + 1, last_end = units - left + 1;
            for (int32_t end = first_end; unit < end && end <= last_end; end++) {
                /* Marks the places from which a stage on units unit .. end reaches a place with a next cut.
                 */
                const uint8_t *after = row_of(problem, next, left - 1, end);
                int32_t reach = 0; /* the stage fits up to there */
                for (int32_t first = 0; first < count; first++) {
                    if (reach < first) reach = first;
                    while (reach < count && chain_fits(problem, first, reach + 1, unit, end, left)) reach++;
                    if (after[first + 1] <= reach) can[first] = true;
                }
            }
            row[count + 1] = row[count] = (uint8_t)(count + 1);
            for (int32_t place = count - 1; place >= 0; place--)
                row[place] = can[place] ? (uint8_t)place : row[place + 1];
        }
    }
    return AM_OK;
}

bool cut_agent_is_feasible(const ChainProblem *problem) {
    Arena arena = {0};
    uint8_t *next;
    bool is =
        make_next(&next, problem, &arena, NULL) == AM_OK && row_of(problem, next, problem->stages, 0)[0] == 0;
    arena_free(&arena);
    return is;
}

/* A legal action by its cheapest estimate. */
typedef struct CutAction {
    int32_t place, unit;
    double length;
} CutAction;

/* Keeps the shortest actions, CUT_AGENT_CANDIDATES at most, in the order in which they were added. */
typedef struct CutActions {
    CutAction items[CUT_AGENT_CANDIDATES];
    int32_t count;
    double shortest;
} CutActions;

static void add_action(CutActions *actions, CutAction action) {
    if (action.length < actions->shortest) actions->shortest = action.length;
    if (actions->count == CUT_AGENT_CANDIDATES) {
        int32_t longest = 0;
        for (int32_t k = 1; k < actions->count; k++)
            if (actions->items[k].length > actions->items[longest].length) longest = k;
        if (actions->items[longest].length <= action.length) return;
        memmove(actions->items + longest, actions->items + longest + 1,
                sizeof(CutAction) * (size_t)(actions->count - longest - 1));
        actions->count--;
    }
    actions->items[actions->count++] = action;
}

/* Returns features_balanced_length(), computed once. */
static double balanced_length(const CutAgentState *state, int32_t place, int32_t unit, int32_t left) {
    double *kept = &state->table.balanced[index_of(state->problem, left, unit) + place];
    if (*kept == 0) *kept = features_balanced_length(state->problem, place, unit, left);
    return *kept;
}

/* Adds all legal ends of a stage on units up to `unit_end`. */
static void add_ends(CutAgentState *state, int32_t unit_end, CutActions *actions) {
    const ChainProblem *problem = state->problem;
    int32_t count = problem->chain->count, left = problem->stages - state->chosen;
    int32_t first = state->plan.places[state->chosen], unit = state->plan.units[state->chosen];
    const uint8_t *after = row_of(problem, state->table.next, left - 1, unit_end);
    for (int32_t place = after[first + 1]; place <= count; place = after[place + 1]) {
        if (!chain_fits(problem, first, place, unit, unit_end, left)) break;
        ChainStage stage = chain_stage(problem, first, place, unit, unit_end);
        double rest = left > 1 ? balanced_length(state, place, unit_end, left - 1) : 0;
        double length = chain_length_with(problem, &stage, rest);
        if (length <= radius * actions->shortest)
            add_action(actions, (CutAction){.place = place, .unit = unit_end, .length = length});
        else if (problem->micro_batches * stage.seconds > radius * actions->shortest) break;
        if (place == count) break;
    }
}

/* Returns the rest of `left` stages from the table, filled if it is new; NULL: no memory. */
static CutAgentRest *find_rest(const CutAgentState *state, int32_t place, int32_t unit, int32_t left) {
    const ChainProblem *problem = state->problem;
    CutAgentRest **kept = &state->table.rests[index_of(problem, left, unit) + place];
    if (*kept) return *kept;
    CutAgentRest *rest = ARENA_ARRAY(state->table.arena, CutAgentRest, 1);
    if (!rest) return NULL;
    rest->is_known = rest->is_valued = left == 1;
    if (rest->is_known) {
        ChainStage last = chain_stage(problem, place, problem->chain->count, unit, problem->unit_count);
        rest->estimate = chain_length_with(problem, &last, 0);
    } else {
        rest->estimate = features_fill(problem, place, unit, left, rest->features);
    }
    return *kept = rest;
}

static void take_stage(CutAgentState *state, int32_t place, int32_t unit) {
    ChainStage stage = chain_stage(state->problem, state->plan.places[state->chosen], place,
                                   state->plan.units[state->chosen], unit);
    double alone = state->occupied + chain_length_with(state->problem, &stage, 0);
    state->least = fmax(state->least, alone);
    state->occupied += stage.seconds + 2 * stage.transfer;
    state->chosen++;
    state->plan.places[state->chosen] = place;
    state->plan.units[state->chosen] = unit;
}

static AmStatus list_candidates(CutAgentState *state, AmError *error) {
    const ChainProblem *problem = state->problem;
    int32_t left = problem->stages - state->chosen;
    state->candidate_count = 0;
    if (left == 1) take_stage(state, problem->chain->count, problem->unit_count);
    if (left <= 1) return AM_OK;
    CutActions actions = {.shortest = INFINITY};
    for (int32_t end = state->plan.units[state->chosen] + 1; end <= problem->unit_count - left + 1; end++)
        add_ends(state, end, &actions);
    int32_t place = state->plan.places[state->chosen], unit = state->plan.units[state->chosen];
    for (int32_t k = 0; k < actions.count; k++) {
        const CutAction *action = &actions.items[k];
        if (action->length > radius * actions.shortest) continue;
        CutAgentCandidate *candidate = &state->candidates[state->candidate_count++];
        candidate->place = action->place;
        candidate->unit = action->unit;
        candidate->stage = chain_stage(problem, place, action->place, unit, action->unit);
        candidate->rest = find_rest(state, action->place, action->unit, left - 1);
        if (!candidate->rest) return am_fail_memory(error, sizeof(CutAgentRest));
    }
    return AM_OK;
}

AmStatus cut_agent_reset(CutAgentState *state, const ChainProblem *problem, Arena *arena, AmError *error) {
    if (problem->chain->count > CUT_AGENT_POINTS)
        return am_fail(error, AM_ERROR_USAGE, "", "%d layers; the agent takes at most %d",
                       problem->chain->count, CUT_AGENT_POINTS);
    state->problem = problem;
    state->plan = (ChainPlan){.stages = problem->stages};
    state->chosen = state->candidate_count = 0;
    state->occupied = state->least = 0;
    CutAgentTable *table = &state->table;
    TRY(make_next(&table->next, problem, arena, error));
    if (row_of(problem, table->next, problem->stages, 0)[0] != 0)
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "no partition into %d stages fits the memory",
                       problem->stages);
    table->arena = arena;
    table->balanced = ARENA_ARRAY(arena, double, table_size(problem));
    table->rests = ARENA_ARRAY(arena, CutAgentRest *, table_size(problem));
    if (!table->balanced || !table->rests) return am_fail_memory(error, 16 * table_size(problem));
    return list_candidates(state, error);
}

AmStatus cut_agent_step(CutAgentState *state, int32_t candidate, AmError *error) {
    take_stage(state, state->candidates[candidate].place, state->candidates[candidate].unit);
    return list_candidates(state, error);
}

double cut_agent_rest_length(const CutAgentRest *rest) {
    return rest->estimate * (rest->is_known ? 1 : 1 + rest->output / CUT_AGENT_OUTPUT_SCALE);
}

double cut_agent_length(const CutAgentState *state, int32_t index) {
    const CutAgentCandidate *candidate = &state->candidates[index];
    return chain_length_with(state->problem, &candidate->stage, cut_agent_rest_length(candidate->rest));
}

double cut_agent_total_length(const CutAgentState *state, double length) {
    return fmax(state->least, state->occupied + length);
}

double cut_agent_target(const CutAgentRest *rest, double length) {
    return rest->estimate > 0 ? CUT_AGENT_OUTPUT_SCALE * (length / rest->estimate - 1) : 0;
}
