/* Keys of nodes follow from those of their operands, so that a post-order from the results comes first; then
 * a depth-first order with the operands sorted by their keys. Sums over paths double at each branch, so XLA
 * bounds them by the number of instructions and by the bytes of all nodes up to this one; the bounds decide
 * many ties.
 */
#include "cost/step/xla_schedule.h"

#include <stdlib.h>

/* The key of an operand in the depth-first order. */
typedef struct DepthKey {
    int64_t bytes;
    int32_t readers, place, node;
} DepthKey;

static int compare_depth(const void *a, const void *b) {
    const DepthKey *x = a, *y = b;
    if (x->readers != y->readers) return x->readers > y->readers ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

typedef struct DepthFirst {
    const XlaGraph *graph;
    DepthKey *keys; /* [node]; NULL in post-order */
    int32_t *nodes;
    int32_t count;
    int32_t *stack, *next; /* [node] */
    int32_t **operands;    /* [node]: producers of the inputs, in the order in which they are visited */
    int32_t *operand_count;
    bool *seen;
    Arena *arena;
} DepthFirst;

/* Lists the producers of a node's inputs once each. */
static void list_operands(DepthFirst *self, int32_t n, DepthKey *scratch) {
    const XlaNode *node = &self->graph->nodes[n];
    int32_t count = 0;
    for (int32_t k = 0; k < node->input_count; k++) {
        int32_t producer = self->graph->node_of[node->inputs[k]];
        if (producer < 0) continue;
        scratch[count] = self->keys ? self->keys[producer] : (DepthKey){.node = producer};
        scratch[count].place = count;
        count++;
    }
    if (self->keys && count > 1) qsort(scratch, (size_t)count, sizeof *scratch, compare_depth);
    self->operands[n] = ARENA_ARRAY(self->arena, int32_t, count + 1);
    for (int32_t k = 0; k < count && self->operands[n]; k++) self->operands[n][k] = scratch[k].node;
    self->operand_count[n] = count;
}

static void visit_node(DepthFirst *self, int32_t n) {
    int32_t depth = 0;
    if (self->seen[n]) return;
    self->seen[n] = true;
    self->stack[depth++] = n;
    while (depth > 0) {
        int32_t top = self->stack[depth - 1];
        if (self->next[top] == self->operand_count[top]) {
            self->nodes[self->count++] = top;
            depth--;
            continue;
        }
        int32_t operand = self->operands[top][self->next[top]++];
        if (self->seen[operand]) continue;
        self->seen[operand] = true;
        self->stack[depth++] = operand;
    }
}

/* Visits the producers of the outputs, as of the operands of one last node. */
static AmStatus visit_all(DepthFirst *self, AmError *error) {
    const XlaGraph *graph = self->graph;
    DepthKey *roots = ARENA_ARRAY(self->arena, DepthKey, graph->node_count + 1);
    int32_t count = 0, most = 0;
    for (int32_t n = 0; n < graph->node_count; n++)
        most = graph->nodes[n].input_count > most ? graph->nodes[n].input_count : most;
    DepthKey *scratch = ARENA_ARRAY(self->arena, DepthKey, most + 1);
    if (self->arena->failed) return am_fail_memory(error, graph->node_count);
    for (int32_t n = 0; n < graph->node_count; n++) list_operands(self, n, scratch);
    if (self->arena->failed) return am_fail_memory(error, graph->node_count);
    for (int32_t n = 0; n < graph->node_count; n++) {
        bool is_root = false;
        for (int32_t r = 0; r < graph->nodes[n].result_count; r++)
            is_root |= graph->is_output[graph->nodes[n].value + r];
        if (!is_root) continue;
        roots[count] = self->keys ? self->keys[n] : (DepthKey){.node = n};
        roots[count].place = count;
        count++;
    }
    if (self->keys && count > 1) qsort(roots, (size_t)count, sizeof *roots, compare_depth);
    for (int32_t k = 0; k < count; k++) visit_node(self, roots[k].node);
    for (int32_t n = 0; n < graph->node_count; n++) visit_node(self, n);
    return AM_OK;
}

AmStatus xla_schedule(int32_t **order, const XlaGraph *graph, AmError *error) {
    Arena *arena = graph->program->arena;
    int32_t count = graph->node_count + 1;
    int32_t *nodes = *order = ARENA_ARRAY(arena, int32_t, count);
    DepthFirst self = {.graph = graph,
                       .arena = arena,
                       .nodes = nodes,
                       .stack = ARENA_ARRAY(arena, int32_t, count),
                       .next = ARENA_ARRAY(arena, int32_t, count),
                       .operands = ARENA_ARRAY(arena, int32_t *, count),
                       .operand_count = ARENA_ARRAY(arena, int32_t, count),
                       .seen = ARENA_ARRAY(arena, bool, count)};
    if (arena->failed) return am_fail_memory(error, count);
    TRY(visit_all(&self, error));
    /* The post-order is that in which keys follow from those of operands. */
    int32_t *post = ARENA_ARRAY(arena, int32_t, count), *users = ARENA_ARRAY(arena, int32_t, count);
    DepthKey *keys = ARENA_ARRAY(arena, DepthKey, count);
    int32_t most =
        graph->node_count + graph->program->roles->parameter_count; /* so that they do not overflow */
    int64_t total = 0;
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t n = 0; n < graph->node_count; n++)
        for (int32_t k = 0; k < self.operand_count[n]; k++) users[self.operands[n][k]]++;
    for (int32_t k = 0; k < graph->node_count; k++) post[k] = nodes[k];
    for (int32_t p = 0; p < graph->node_count; p++) {
        int32_t n = post[p];
        DepthKey *key = &keys[n];
        for (int32_t r = 0; r < graph->nodes[n].result_count; r++)
            users[n] += graph->is_output[graph->nodes[n].value + r];
        *key = (DepthKey){.node = n, .readers = users[n] > 0 ? users[n] - 1 : 0};
        for (int32_t r = 0; r < graph->nodes[n].result_count; r++)
            key->bytes +=
                ir_shape_bytes(&graph->program->values[graph->value_of[graph->nodes[n].value + r]].shape);
        total += key->bytes;
        for (int32_t k = 0; k < self.operand_count[n]; k++) {
            const DepthKey *operand = &keys[self.operands[n][k]];
            key->bytes += operand->bytes;
            key->readers = key->readers + operand->readers < most ? key->readers + operand->readers : most;
        }
        key->bytes = key->bytes < total ? key->bytes : total;
    }
    for (int32_t n = 0; n < graph->node_count; n++) self.seen[n] = false, self.next[n] = 0;
    self.count = 0;
    self.keys = keys;
    return visit_all(&self, error);
}
