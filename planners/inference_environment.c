/* States, masks and features of pipelines by inference (see inference_environment.h). */
#include "planners/inference_environment.h"

#include <math.h>
#include <string.h>

#include "planners/inference_features.h"

/* Candidates whose stage or whose balanced rest is longer than this times the best are masked. */
static const double radius = 1.4;

static uint8_t *row_of(const ChainProblem *problem, uint8_t *next, int32_t left, int32_t unit) {
    return next + ((int64_t)left * (problem->unit_count + 1) + unit) * (problem->chain->count + 2);
}

/* Marks in can[place] from where a stage on units unit .. unit_end can reach a place in `behind`. */
static void mark_reachable(const ChainProblem *problem, int32_t left, int32_t unit, int32_t unit_end,
                           const uint8_t *behind, bool *can) {
    int32_t count = problem->chain->count, reach = 0; /* the stage fits up to there */
    for (int32_t first = 0; first < count; first++) {
        if (reach < first) reach = first;
        while (reach < count && chain_fits(problem, first, reach + 1, unit, unit_end, left)) reach++;
        if (behind[first + 1] <= reach) can[first] = true;
    }
}

static void fill_next(const ChainProblem *problem, uint8_t *next) {
    int32_t count = problem->chain->count, units = problem->unit_count;
    for (int32_t unit = 0; unit <= units; unit++) {
        uint8_t *row = row_of(problem, next, 0, unit);
        memset(row, unit == units ? count : count + 1, (size_t)count + 1);
        row[count + 1] = (uint8_t)(count + 1);
    }
    for (int32_t left = 1; left <= problem->stages; left++) {
        for (int32_t unit = 0; unit <= units; unit++) {
            bool can[INFERENCE_POINTS + 1] = {false};
            uint8_t *row = row_of(problem, next, left, unit);
            int32_t first_end = left == 1 ? units : unit + 1, last_end = units - left + 1;
            for (int32_t end = first_end; unit < end && end <= last_end; end++)
                mark_reachable(problem, left, unit, end, row_of(problem, next, left - 1, end), can);
            row[count + 1] = row[count] = (uint8_t)(count + 1);
            for (int32_t place = count - 1; place >= 0; place--)
                row[place] = can[place] ? (uint8_t)place : row[place + 1];
        }
    }
}

static AmStatus make_next(uint8_t **next, const ChainProblem *problem, Arena *arena, AmError *error) {
    int64_t bytes = (int64_t)(problem->stages + 1) * (problem->unit_count + 1) * (problem->chain->count + 2);
    *next = ARENA_ARRAY(arena, uint8_t, bytes);
    if (!*next) return am_fail_memory(error, bytes);
    fill_next(problem, *next);
    return AM_OK;
}

bool inference_is_feasible(const ChainProblem *problem) {
    Arena arena = {0};
    uint8_t *next;
    bool is =
        make_next(&next, problem, &arena, NULL) == AM_OK && row_of(problem, next, problem->stages, 0)[0] == 0;
    arena_free(&arena);
    return is;
}

/* A legal action by its cheapest estimate. */
typedef struct Option {
    int32_t place, unit;
    double length;
} Option;

/* Keeps the `most` shortest options, in the order in which they were added. */
typedef struct Options {
    Option items[INFERENCE_CANDIDATES];
    int32_t count;
    double shortest;
} Options;

static void add_option(Options *options, Option option) {
    if (option.length < options->shortest) options->shortest = option.length;
    if (options->count == INFERENCE_CANDIDATES) {
        int32_t longest = 0;
        for (int32_t k = 1; k < options->count; k++)
            if (options->items[k].length > options->items[longest].length) longest = k;
        if (options->items[longest].length <= option.length) return;
        memmove(options->items + longest, options->items + longest + 1,
                sizeof(Option) * (size_t)(options->count - longest - 1));
        options->count--;
    }
    options->items[options->count++] = option;
}

/* All legal ends of a stage on units up to `unit_end`. */
static void add_ends(InferenceState *state, int32_t unit_end, Options *options) {
    const ChainProblem *problem = state->problem;
    int32_t count = problem->chain->count, left = problem->stages - state->chosen;
    int32_t first = state->plan.places[state->chosen], unit = state->plan.units[state->chosen];
    const uint8_t *behind = row_of(problem, state->next, left - 1, unit_end);
    for (int32_t place = behind[first + 1]; place <= count; place = behind[place + 1]) {
        if (!chain_fits(problem, first, place, unit, unit_end, left)) break;
        ChainStage stage = chain_stage(problem, first, place, unit, unit_end);
        double rest = left > 1 ? features_balanced_length(problem, place, unit_end, left - 1) : 0;
        double length = chain_length_with(problem, &stage, rest);
        if (length <= radius * options->shortest)
            add_option(options, (Option){.place = place, .unit = unit_end, .length = length});
        else if (problem->micro_batches * stage.seconds > radius * options->shortest) break;
        if (place == count) break;
    }
}

static void make_candidate(InferenceState *state, const Option *option) {
    const ChainProblem *problem = state->problem;
    int32_t left = problem->stages - state->chosen - 1;
    InferenceCandidate *candidate = &state->candidates[state->candidate_count++];
    candidate->place = option->place;
    candidate->unit = option->unit;
    candidate->stage = chain_stage(problem, state->plan.places[state->chosen], option->place,
                                   state->plan.units[state->chosen], option->unit);
    candidate->is_known = left == 1;
    if (candidate->is_known) {
        ChainStage last =
            chain_stage(problem, option->place, problem->chain->count, option->unit, problem->unit_count);
        candidate->estimate = chain_length_with(problem, &last, 0);
    } else {
        candidate->estimate = features_fill(problem, option->place, option->unit, left, candidate->features);
    }
}

static void take(InferenceState *state, int32_t place, int32_t unit) {
    ChainStage stage = chain_stage(state->problem, state->plan.places[state->chosen], place,
                                   state->plan.units[state->chosen], unit);
    double alone = state->occupied + chain_length_with(state->problem, &stage, 0);
    state->least = fmax(state->least, alone);
    state->occupied += stage.seconds + 2 * stage.transfer;
    state->chosen++;
    state->plan.places[state->chosen] = place;
    state->plan.units[state->chosen] = unit;
}

static void list_candidates(InferenceState *state) {
    const ChainProblem *problem = state->problem;
    int32_t left = problem->stages - state->chosen;
    state->candidate_count = 0;
    if (left == 1) take(state, problem->chain->count, problem->unit_count);
    if (left <= 1) return;
    Options options = {.shortest = INFINITY};
    for (int32_t end = state->plan.units[state->chosen] + 1; end <= problem->unit_count - left + 1; end++)
        add_ends(state, end, &options);
    for (int32_t k = 0; k < options.count; k++)
        if (options.items[k].length <= radius * options.shortest) make_candidate(state, &options.items[k]);
}

AmStatus inference_reset(InferenceState *state, const ChainProblem *problem, Arena *arena, AmError *error) {
    if (problem->chain->count > INFERENCE_POINTS)
        return am_fail(error, AM_ERROR_USAGE, "", "%d layers; the agent takes at most %d",
                       problem->chain->count, INFERENCE_POINTS);
    state->problem = problem;
    state->plan = (ChainPlan){.stages = problem->stages};
    state->chosen = state->candidate_count = 0;
    state->occupied = state->least = 0;
    TRY(make_next(&state->next, problem, arena, error));
    if (row_of(problem, state->next, problem->stages, 0)[0] != 0)
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "no partition into %d stages fits the memory",
                       problem->stages);
    list_candidates(state);
    return AM_OK;
}

void inference_step(InferenceState *state, int32_t candidate) {
    take(state, state->candidates[candidate].place, state->candidates[candidate].unit);
    list_candidates(state);
}

double inference_length(const InferenceState *state, int32_t index, double output) {
    const InferenceCandidate *candidate = &state->candidates[index];
    double rest = candidate->estimate * (candidate->is_known ? 1 : 1 + output / INFERENCE_OUTPUT_SCALE);
    return chain_length_with(state->problem, &candidate->stage, rest);
}

double inference_whole(const InferenceState *state, double length) {
    return fmax(state->least, state->occupied + length);
}

double inference_target(const InferenceCandidate *candidate, double rest) {
    return candidate->estimate > 0 ? INFERENCE_OUTPUT_SCALE * (rest / candidate->estimate - 1) : 0;
}
