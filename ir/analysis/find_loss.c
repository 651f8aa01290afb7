/* Finds the loss among the scalars that a step returns.
 *
 * Candidates are floating scalars that update no parameter. A loss is differentiable: the weights
 * influence it through floating values alone, unlike an accuracy computed from comparisons. The
 * candidates are ordered by these criteria: it depends on weights; products (dots and convolutions)
 * precede it, unlike a norm of the weights; it depends on the most weights, unlike an auxiliary
 * loss; the fewest products precede it, unlike a norm of the gradients, which follows the backward
 * pass. The order of the outputs decides between equal candidates.
 */
#include "ir/analysis/find_loss.h"

/* More candidates than this are not compared: one search through the module each. */
#define MAX_CANDIDATES 16

typedef struct Rank {
    int32_t weights, products;
} Rank;

static bool is_candidate(const IrFlowGraph *graph, const IrPairing *pairing, int32_t output) {
    const IrShape *shape = &graph->module->instructions[graph->flow->outputs[output]].shape;
    return pairing->parameter_of[output] < 0 && ir_is_scalar(shape) && dtype_is_floating(shape->type);
}

static Rank rank_of(const IrFlowGraph *graph, const IrPairing *pairing, int32_t output, bool *marks) {
    const IrModule *module = graph->module;
    const IrComputation *entry = &module->computations[module->entry];
    Rank rank = {0, 0};
    for (int32_t i = 0; i < graph->count; i++) marks[i] = false;
    marks[graph->flow->output_values[output]] = true;
    ir_flow_mark_floating_ancestors(graph, marks);
    for (int32_t p = 0; p < entry->parameter_count; p++)
        rank.weights += pairing->output_of[p] >= 0 && marks[entry->parameters[p]];
    for (int32_t i = 0; i < graph->count; i++) {
        IrOpcode opcode = module->instructions[i].opcode;
        rank.products += marks[i] && (ir_is_product(opcode));
    }
    return rank;
}

/* Returns a positive number if `a` goes before `b`, a negative one if after it, 0 if they are equal. */
static int32_t compare_ranks(Rank a, Rank b) {
    if ((a.weights > 0) != (b.weights > 0)) return a.weights > 0 ? 1 : -1;
    if (a.weights == 0) return 0;
    if ((a.products > 0) != (b.products > 0)) return a.products > 0 ? 1 : -1;
    if (a.weights != b.weights) return a.weights - b.weights;
    return b.products - a.products;
}

AmStatus ir_find_loss(int32_t *loss, int32_t *possible, Arena *scratch, const IrFlowGraph *graph,
                      const IrPairing *pairing, AmError *error) {
    int32_t outputs = graph->flow->output_count, candidates = 0;
    Rank best = {0, 0};
    *loss = -1;
    *possible = 0;
    for (int32_t o = outputs - 1; o >= 0; o--) {
        if (!is_candidate(graph, pairing, o)) continue;
        candidates++;
        *loss = o;
    }
    *possible = candidates;
    if (candidates < 2 || candidates > MAX_CANDIDATES) return AM_OK;
    bool *marks = ARENA_ARRAY(scratch, bool, graph->count);
    if (!marks) return am_fail_memory(error, graph->count);
    *possible = 0;
    for (int32_t o = *loss; o < outputs; o++) {
        if (!is_candidate(graph, pairing, o)) continue;
        Rank rank = rank_of(graph, pairing, o, marks);
        int32_t order = *possible == 0 ? 1 : compare_ranks(rank, best);
        if (order > 0) {
            *loss = o;
            *possible = 0;
            best = rank;
        }
        *possible += order >= 0;
    }
    return AM_OK;
}
