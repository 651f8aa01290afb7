/* Cuts a chain by the trained agent, and reads and writes the agent's file.
 *
 * An episode chooses one stage after another: the environment lists the legal ends of the next stage, the
 * network values the remaining layers after each, and the best `width` partial plans stay. run_episode() is
 * this beam search; a longer chain is coarsened before, and the cuts are mapped back to its layers.
 */
#include "planners/cut_agent/cut_agent.h"

#include <stdlib.h>
#include <string.h>

#include "automap_agent.h"
#include "base/files/array_file.h"
#include "planners/rl/trained_agent.h"

#define FORMAT    "automap-agent-1"
#define MOST_SIZE 4096 /* of a hidden layer in a file */

AgentSettings cut_agent_settings(void) {
    return trained_agent_settings(128, 1 << 17);
}

AmStatus cut_agent_write(Agent *agent, const char *path, const char *about, AmError *error) {
    return trained_agent_write(agent, NULL, path, FORMAT, about, NULL, error);
}

/* Makes an agent of these layers and parameters. */
static AmStatus make_agent(Agent **agent, const int32_t *hidden, int64_t hidden_count, const char *parts,
                           const float *parameters, int64_t count, const char *source, AmError *error) {
    AgentSettings settings = cut_agent_settings();
    TRY(trained_agent_parts(&settings, parts, source, error));
    if (hidden_count > NETWORK_MAX_HIDDEN)
        return am_fail(error, AM_ERROR_INPUT, source, "%lld hidden layers; expected at most %d",
                       (long long)hidden_count, NETWORK_MAX_HIDDEN);
    settings.hidden_count = (int32_t)hidden_count;
    settings.replay_capacity = settings.batch; /* it learns no more */
    for (int32_t k = 0; k < settings.hidden_count; k++) {
        settings.hidden[k] = hidden[k];
        if (hidden[k] < 1 || hidden[k] > MOST_SIZE)
            return am_fail(error, AM_ERROR_INPUT, source, "hidden[%d] is %d; expected 1 to %d", k, hidden[k],
                           MOST_SIZE);
    }
    return trained_agent_create(agent, &settings, CUT_AGENT_FEATURES, parameters, count, source, error);
}

AmStatus cut_agent_read(Agent **agent, const char *path, AmError *error) {
    ArrayFile file;
    AmStatus status;
    *agent = NULL;
    TRY(array_file_open(&file, path, error));
    const ArrayEntry *hidden = array_file_find(&file, "hidden"),
                     *entry = array_file_find(&file, "parameters");
    const char *format = array_file_metadata(&file, "format");
    if (!format || strcmp(format, FORMAT) != 0 || !hidden || !entry || hidden->type != DTYPE_S32 ||
        hidden->rank != 1 || entry->type != DTYPE_F32 || entry->rank != 1) {
        status = am_fail(error, AM_ERROR_INPUT, file.path, "expected a trained agent (%s)", FORMAT);
        goto fail;
    }
    int32_t *sizes = arena_alloc(&file.arena, (size_t)hidden->bytes + 1);
    float *parameters = arena_alloc(&file.arena, (size_t)entry->bytes + 1);
    if (!sizes || !parameters) TRY_OR_FAIL(am_fail_memory(error, hidden->bytes + entry->bytes));
    TRY_OR_FAIL(array_file_read(&file, hidden, sizes, error));
    TRY_OR_FAIL(array_file_read(&file, entry, parameters, error));
    status = make_agent(agent, sizes, hidden->dimensions[0], array_file_metadata(&file, "learner"),
                        parameters, entry->dimensions[0], file.path, error);
fail:
    array_file_close(&file);
    return status;
}

AmStatus cut_agent_built_in(Agent **agent, AmError *error) {
    static const char source[] = "the agent built in";
    ArrayImage image;
    int64_t hidden_bytes, bytes;
    int32_t hidden[NETWORK_MAX_HIDDEN];
    *agent = NULL;
    TRY(array_image_open(&image, pipeline_agent, source, error));
    const void *sizes = array_image_find(&image, "hidden", &hidden_bytes);
    const void *values = array_image_find(&image, "parameters", &bytes);
    array_image_close(&image);
    float *parameters = malloc((size_t)bytes + 1);
    if (!parameters) return am_fail_memory(error, bytes);
    if (hidden_bytes > (int64_t)sizeof(hidden)) hidden_bytes = sizeof(hidden);
    memcpy(hidden, sizes, (size_t)hidden_bytes);
    memcpy(parameters, values, (size_t)bytes);
    AmStatus status = make_agent(agent, hidden, hidden_bytes / (int64_t)sizeof(int32_t), NULL, parameters,
                                 bytes / (int64_t)sizeof(float), source, error);
    free(parameters);
    return status;
}

AmStatus cut_agent_batch_create(CutAgentBatch *batch, Arena *arena, int32_t count, AmError *error) {
    int64_t rows = (int64_t)count * CUT_AGENT_CANDIDATES;
    *batch = (CutAgentBatch){.states = ARENA_ARRAY(arena, CutAgentState, count),
                             .rests = ARENA_ARRAY(arena, CutAgentRest *, rows),
                             .features = ARENA_ARRAY(arena, float, rows *CUT_AGENT_FEATURES),
                             .outputs = ARENA_ARRAY(arena, float, rows),
                             .count = count};
    if (!batch->states || !batch->rests || !batch->features || !batch->outputs)
        return am_fail_memory(error, rows * (int64_t)sizeof(float) * CUT_AGENT_FEATURES);
    return AM_OK;
}

AmStatus cut_agent_choose(CutAgentBatch *batch, Agent *agent, int32_t *chosen,
                          double (*lengths)[CUT_AGENT_CANDIDATES], AmError *error) {
    /* Values the rests that no other candidate had before. */
    int32_t rows = 0;
    for (int32_t s = 0; s < batch->count; s++)
        for (int32_t k = 0; k < batch->states[s].candidate_count; k++) {
            CutAgentRest *rest = batch->states[s].candidates[k].rest;
            if (rest->is_valued) continue;
            rest->is_valued = true;
            memcpy(batch->features + (int64_t)rows * CUT_AGENT_FEATURES, rest->features,
                   sizeof(rest->features));
            batch->rests[rows++] = rest;
        }
    if (rows > 0) TRY(agent_values(agent, batch->features, rows, batch->outputs, error));
    for (int32_t row = 0; row < rows; row++) batch->rests[row]->output = batch->outputs[row];
    for (int32_t s = 0; s < batch->count; s++) {
        const CutAgentState *state = &batch->states[s];
        double shortest = 0;
        chosen[s] = -1;
        for (int32_t k = 0; k < state->candidate_count; k++) {
            double length = cut_agent_length(state, k);
            if (lengths) lengths[s][k] = length;
            if (chosen[s] >= 0 && !(length < shortest)) continue;
            chosen[s] = k;
            shortest = length;
        }
    }
    return AM_OK;
}

/* A way to go on from one of the partial plans. */
typedef struct Branch {
    int32_t state, candidate;
    double whole, length; /* of the pipeline by the agent's estimate, and of its open part */
} Branch;

static int compare_branches(const void *a, const void *b) {
    const Branch *x = a, *y = b;
    if (x->whole != y->whole) return x->whole < y->whole ? -1 : 1;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    if (x->state != y->state) return x->state - y->state;
    return x->candidate - y->candidate;
}

/* Returns whether one of the branches goes on from the same place and unit. */
static bool is_listed(const CutAgentState *states, const Branch *branches, int32_t count,
                      const Branch *branch) {
    const CutAgentCandidate *candidate = &states[branch->state].candidates[branch->candidate];
    for (int32_t k = 0; k < count; k++) {
        const CutAgentCandidate *other = &states[branches[k].state].candidates[branches[k].candidate];
        if (other->place == candidate->place && other->unit == candidate->unit) return true;
    }
    return false;
}

/* Replaces the partial plans in batch->states[count] by those that the agent values most. */
static AmStatus go_on(CutAgentBatch *batch, CutAgentState *next, Branch *branches,
                      double (*lengths)[CUT_AGENT_CANDIDATES], int32_t width, AmError *error) {
    int32_t count = 0, kept = 0;
    for (int32_t s = 0; s < batch->count; s++)
        for (int32_t k = 0; k < batch->states[s].candidate_count; k++)
            branches[count++] = (Branch){.state = s,
                                         .candidate = k,
                                         .whole = cut_agent_total_length(&batch->states[s], lengths[s][k]),
                                         .length = lengths[s][k]};
    qsort(branches, (size_t)count, sizeof(Branch), compare_branches);
    for (int32_t k = 0; k < count && kept < width; k++)
        if (!is_listed(batch->states, branches, kept, &branches[k])) branches[kept++] = branches[k];
    for (int32_t k = 0; k < kept; k++) {
        next[k] = batch->states[branches[k].state];
        TRY(cut_agent_step(&next[k], branches[k].candidate, error));
    }
    memcpy(batch->states, next, sizeof(CutAgentState) * (size_t)kept);
    batch->count = kept;
    return AM_OK;
}

/* Runs the one episode of a problem of at most CUT_AGENT_POINTS layers, `width` partial plans side by
 * side. */
static AmStatus run_episode(ChainPlan *plan, const ChainProblem *problem, Agent *agent, int32_t width,
                            Arena *arena, AmError *error) {
    CutAgentBatch batch;
    TRY(cut_agent_batch_create(&batch, arena, width, error));
    CutAgentState *next = ARENA_ARRAY(arena, CutAgentState, width);
    Branch *branches = ARENA_ARRAY(arena, Branch, (int64_t)width * CUT_AGENT_CANDIDATES);
    double(*lengths)[CUT_AGENT_CANDIDATES] = arena_alloc(arena, (size_t)width * sizeof(*lengths));
    int32_t *chosen = ARENA_ARRAY(arena, int32_t, width);
    if (!next || !branches || !lengths || !chosen)
        return am_fail_memory(error, width * (int64_t)sizeof(CutAgentState));
    TRY(cut_agent_reset(batch.states, problem, arena, error));
    batch.count = 1;
    while (batch.states->candidate_count > 0) {
        TRY(cut_agent_choose(&batch, agent, chosen, lengths, error));
        TRY(go_on(&batch, next, branches, lengths, width, error));
    }
    *plan = batch.states->plan;
    return AM_OK;
}

AmStatus cut_agent_plan(ChainPlan *plan, const ChainProblem *problem, Agent *agent, int32_t width,
                        AmError *error) {
    if (problem->chain->sets)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "the agent cuts chains, not graphs: put the layers in a row");
    Arena arena = {0};
    Chain coarse;
    AmStatus status = AM_OK;
    int32_t places[CUT_AGENT_POINTS + 1];
    ChainProblem *within = ARENA_ARRAY(&arena, ChainProblem, 1);
    if (!within) {
        status = am_fail_memory(error, sizeof(*within));
        goto fail;
    }
    *within = *problem;
    within->chain = &coarse;
    TRY_OR_FAIL(cut_agent_coarsen(&coarse, places, problem->chain, &arena, error));
    TRY_OR_FAIL(run_episode(plan, within, agent, width, &arena, error));
    for (int32_t s = 0; s <= plan->stages; s++) plan->places[s] = places[plan->places[s]];
fail:
    arena_free(&arena);
    return status;
}
