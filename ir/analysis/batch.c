/* Finds the batch dimension by data flow.
 *
 * Each dimension of each value is a node. Operators join the nodes of dimensions that correspond
 * (union-find; a simple form of the dimension classes that propagation derives from factor rules).
 * The batch occurs in nearly every dot and convolution, is rarely contracted, and occurs in no
 * weight. The batch is therefore chosen among the classes that a candidate parameter has and no
 * weight has, by these criteria in order: the number of dots and convolutions that keep the class
 * minus those that contract it; the number of candidates in which it is the leading dimension; the
 * order of the candidates.
 *
 * Loops are included: a carried value has the dimensions of its initial value, and a slice or an
 * update of a scanned array has the dimensions that it takes whole.
 *
 * Values without a parameter among their ancestors join no nodes, since one broadcast constant may
 * have unrelated users of the same shape.
 */
#include "ir/analysis/batch.h"

#include "base/int_list.h"
#include "base/union_find.h"

typedef struct Batch {
    const IrFlowGraph *graph;
    const IrDataflow *flow;
    const IrModule *module;
    int64_t *first;   /* per instruction: node of its dimension 0 */
    int32_t *parents; /* per node: union-find */
    bool *free;       /* per instruction: no parameter among its ancestors */
    bool *given;      /* per instruction: candidates alone among them, and at least one */
    /* per node, of use at class representatives */
    int32_t *score;   /* dots and convolutions that keep it, less those that contract it */
    int32_t *stamp;   /* 1 + the last instruction that counted it */
    int32_t *leading; /* candidates with it as dimension 0 */
    bool *has_weight;
} Batch;

static int32_t root_of(const Batch *batch, int64_t node) {
    return union_find_root(batch->parents, (int32_t)node);
}

static const IrShape *shape_of(const Batch *batch, int32_t value) {
    return &batch->module->instructions[value].shape;
}

/* Ties dimension `d` of `value` to dimension `e` of `other`; out of range ties nothing. */
static void tie(const Batch *batch, int32_t value, int64_t d, int32_t other, int64_t e) {
    const IrShape *a = shape_of(batch, value), *b = shape_of(batch, other);
    if (a->type == DTYPE_TUPLE || b->type == DTYPE_TUPLE || batch->free[value] || batch->free[other]) return;
    if (d < 0 || e < 0 || d >= a->rank || e >= b->rank) return;
    batch->parents[root_of(batch, batch->first[value] + d)] = root_of(batch, batch->first[other] + e);
}

/* Ties all dimensions that have equal sizes in both, position by position. */
static void tie_equal(const Batch *batch, int32_t value, int32_t other) {
    const IrShape *a = shape_of(batch, value), *b = shape_of(batch, other);
    if (a->type == DTYPE_TUPLE || b->type == DTYPE_TUPLE || a->rank != b->rank) return;
    for (int32_t d = 0; d < a->rank; d++)
        if (a->dimensions[d] == b->dimensions[d]) tie(batch, value, d, other, d);
}

/* Joins the major parts of merged and split dimensions. Both parts of a split batch belong to the
 * batch. */
static void tie_reshape(const Batch *batch, int32_t value, int32_t operand) {
    const IrShape *to = shape_of(batch, value), *from = shape_of(batch, operand);
    if (from->type == DTYPE_TUPLE || to->type == DTYPE_TUPLE) return;
    for (int32_t i = 0, j = 0; i < from->rank && j < to->rank;) {
        if (from->dimensions[i] <= 1) {
            i++;
        } else if (to->dimensions[j] <= 1) {
            j++;
        } else {
            int64_t a = from->dimensions[i], b = to->dimensions[j];
            if (a % b == 0 || b % a == 0) tie(batch, operand, i, value, j);
            i++, j++;
            while (a != b) {
                if (a < b && i < from->rank && from->dimensions[i] > 0) a *= from->dimensions[i++];
                else if (b < a && j < to->rank && to->dimensions[j] > 0) {
                    if (batch->given[operand]) tie(batch, operand, i - 1, value, j);
                    b *= to->dimensions[j++];
                } else return;
            }
        }
    }
}

/* Ties the operand dimensions that a reduction keeps, in order, to those of the result. */
static void tie_kept(const Batch *batch, int32_t value, int32_t operand, const IrAttributes *attributes) {
    const IrShape *from = shape_of(batch, operand);
    for (int32_t d = 0, kept = 0; d < from->rank && from->type != DTYPE_TUPLE; d++)
        if (!int_list_contains(attributes->dimensions, attributes->dimension_count, d))
            tie(batch, operand, d, value, kept++);
}

static void tie_dot(const Batch *batch, int32_t value, int32_t lhs, int32_t rhs, const IrDot *dot) {
    int32_t result = dot->batch_count;
    for (int32_t k = 0; k < dot->batch_count; k++) {
        tie(batch, lhs, dot->lhs_batch[k], value, k);
        tie(batch, rhs, dot->rhs_batch[k], value, k);
    }
    for (int32_t k = 0; k < dot->contracting_count; k++)
        tie(batch, lhs, dot->lhs_contracting[k], rhs, dot->rhs_contracting[k]);
    for (int32_t d = 0; d < shape_of(batch, lhs)->rank; d++)
        if (!int_list_contains(dot->lhs_batch, dot->batch_count, d) &&
            !int_list_contains(dot->lhs_contracting, dot->contracting_count, d))
            tie(batch, lhs, d, value, result++);
    for (int32_t d = 0; d < shape_of(batch, rhs)->rank; d++)
        if (!int_list_contains(dot->rhs_batch, dot->batch_count, d) &&
            !int_list_contains(dot->rhs_contracting, dot->contracting_count, d))
            tie(batch, rhs, d, value, result++);
}

static void tie_convolution(const Batch *batch, int32_t value, int32_t lhs, int32_t rhs,
                            const IrConvolution *c) {
    if (c->batch_group_count <= 1) tie(batch, lhs, c->input_batch, value, c->output_batch);
    tie(batch, rhs, c->kernel_output_feature, value, c->output_feature);
    if (c->feature_group_count <= 1) tie(batch, lhs, c->input_feature, rhs, c->kernel_input_feature);
}

/* Ties dimensions of which a gather takes all to those of the result, whose others are those of the
 * indices. */
static void tie_gather(const Batch *batch, int32_t value, int32_t operand, int32_t indices,
                       const IrGather *gather) {
    const IrShape *from = shape_of(batch, operand), *index_shape = shape_of(batch, indices);
    int32_t offset = 0, index_dimension = 0;
    for (int32_t d = 0; d < from->rank; d++) {
        if (int_list_contains(gather->collapsed_dimensions, gather->collapsed_count, d)) continue;
        if (int_list_contains(gather->operand_batching, gather->batching_count, d)) continue;
        if (offset < gather->offset_count && gather->slice_sizes &&
            gather->slice_sizes[d] == from->dimensions[d])
            tie(batch, operand, d, value, gather->offset_dimensions[offset]);
        offset++;
    }
    for (int32_t d = 0; d < shape_of(batch, value)->rank; d++) {
        if (int_list_contains(gather->offset_dimensions, gather->offset_count, d)) continue;
        if (index_dimension == gather->index_vector_dimension) index_dimension++;
        if (index_dimension < index_shape->rank) tie(batch, indices, index_dimension, value, d);
        index_dimension++;
    }
    for (int32_t k = 0; k < gather->batching_count; k++)
        tie(batch, operand, gather->operand_batching[k], indices, gather->indices_batching[k]);
}

/* Joins the dimensions of a value that a loop carries, or that enters or leaves a branch, with
 * those of its sources. */
static void tie_carried(const Batch *batch, int32_t value) {
    const IrFlowGraph *graph = batch->graph;
    for (int64_t e = graph->first_operand[value]; e < graph->first_operand[value + 1]; e++)
        tie_equal(batch, value, graph->operands[e]);
}

/* Ties an element of the tuple of a reduction, a sort, a loop or a branch. */
static void tie_tuple_element(const Batch *batch, int32_t value, const IrInstruction *element) {
    const IrInstruction *producer =
        &batch->module->instructions[ir_dataflow_operand(batch->flow, element, 0)];
    if (ir_flow_producer(batch->graph, value) >= 0) tie_carried(batch, value);
    else if (producer->opcode == IR_REDUCE)
        tie_kept(batch, value, ir_dataflow_operand(batch->flow, producer, 0), producer->attributes);
    else if (producer->opcode == IR_SORT)
        tie_equal(batch, value, ir_dataflow_operand(batch->flow, producer, 0));
}

/* Joins values that depend on candidates alone and enter a loop with equal leading sizes. The loop
 * scans them together: they are the micro-batches whose gradients are accumulated. */
static void tie_scanned(const Batch *batch, int32_t loop) {
    const IrInstruction *instruction = &batch->module->instructions[loop];
    int32_t tuple = ir_dataflow_operand(batch->flow, instruction, 0), before = -1;
    if (instruction->shape.type != DTYPE_TUPLE) tie_carried(batch, loop);
    const IrShape *shape = shape_of(batch, tuple);
    for (int32_t e = 0; shape->type == DTYPE_TUPLE && e < shape->rank; e++) {
        int32_t value = ir_dataflow_element(batch->flow, tuple, e);
        if (value < 0 || !batch->given[value] || shape_of(batch, value)->type == DTYPE_TUPLE) continue;
        if (shape_of(batch, value)->rank == 0) continue;
        if (before >= 0 && shape_of(batch, value)->dimensions[0] == shape_of(batch, before)->dimensions[0])
            tie(batch, value, 0, before, 0);
        before = value;
    }
}

static void tie_instruction(const Batch *batch, int32_t value) {
    const IrInstruction *instruction = &batch->module->instructions[value];
    const IrAttributes *attributes = instruction->attributes;
    int32_t operand = instruction->operand_count > 0 ? ir_dataflow_operand(batch->flow, instruction, 0) : -1;
    int32_t second = instruction->operand_count > 1 ? ir_dataflow_operand(batch->flow, instruction, 1) : -1;
    if (ir_is_elementwise(instruction->opcode)) {
        for (int32_t k = 0; k < instruction->operand_count; k++)
            tie_equal(batch, value, ir_dataflow_operand(batch->flow, instruction, k));
        return;
    }
    if (instruction->opcode == IR_PARAMETER) tie_carried(batch, value);
    if (operand < 0) return;
    switch (instruction->opcode) {
    case IR_BROADCAST:
        for (int32_t d = 0; d < attributes->dimension_count; d++)
            tie(batch, operand, d, value, attributes->dimensions[d]);
        return;
    case IR_TRANSPOSE:
        for (int32_t d = 0; d < attributes->dimension_count; d++)
            tie(batch, operand, attributes->dimensions[d], value, d);
        return;
    case IR_RESHAPE:
    case IR_BITCAST: tie_reshape(batch, value, operand); return;
    case IR_REDUCE:
        if (instruction->shape.type != DTYPE_TUPLE) tie_kept(batch, value, operand, attributes);
        return;
    case IR_DOT: tie_dot(batch, value, operand, second, attributes->dot); return;
    case IR_CONVOLUTION: tie_convolution(batch, value, operand, second, attributes->convolution); return;
    case IR_GATHER: tie_gather(batch, value, operand, second, attributes->gather); return;
    case IR_WHILE: tie_scanned(batch, value); return;
    case IR_CONDITIONAL: tie_carried(batch, value); return;
    case IR_GET_TUPLE_ELEMENT: tie_tuple_element(batch, value, instruction); return;
    case IR_CONCATENATE:
        for (int32_t k = 0; k < instruction->operand_count; k++)
            tie_equal(batch, value, ir_dataflow_operand(batch->flow, instruction, k));
        return;
    /* Windows, slices and padding keep the dimensions whose size they keep. */
    case IR_SLICE:
    case IR_DYNAMIC_SLICE:
    case IR_PAD:
    case IR_REVERSE:
    case IR_SORT:
    case IR_SCATTER:
    case IR_REDUCE_WINDOW:
    case IR_SELECT_AND_SCATTER:
    case IR_CUSTOM_CALL: tie_equal(batch, value, operand); return;
    case IR_DYNAMIC_UPDATE_SLICE:
        tie_equal(batch, value, operand);
        tie_equal(batch, value, second);
        return;
    default: return;
    }
}

/* Counts a class once per dot; a contraction counts negatively. */
static void count_dimension(const Batch *batch, int32_t value, int64_t dimension, int32_t dot, int32_t sign) {
    if (batch->free[value] || dimension < 0 || dimension >= shape_of(batch, value)->rank) return;
    int32_t class = root_of(batch, batch->first[value] + dimension);
    if (batch->stamp[class] == dot + 1) return;
    batch->stamp[class] = dot + 1;
    batch->score[class] += sign;
}

static void count_uses(const Batch *batch, int32_t value) {
    const IrInstruction *instruction = &batch->module->instructions[value];
    if (instruction->opcode == IR_DOT) {
        const IrDot *dot = instruction->attributes->dot;
        int32_t lhs = ir_dataflow_operand(batch->flow, instruction, 0);
        for (int32_t k = 0; k < dot->contracting_count; k++)
            count_dimension(batch, lhs, dot->lhs_contracting[k], value, -1);
        for (int32_t d = 0; d < instruction->shape.rank; d++) count_dimension(batch, value, d, value, 1);
    } else if (instruction->opcode == IR_CONVOLUTION) {
        const IrConvolution *convolution = instruction->attributes->convolution;
        count_dimension(batch, ir_dataflow_operand(batch->flow, instruction, 0), convolution->input_feature,
                        value, -1);
        count_dimension(batch, value, convolution->output_batch, value, 1);
        count_dimension(batch, value, convolution->output_feature, value, 1);
    }
}

/* Returns the representative of the batch class, or -1. */
static int32_t choose_class(const Batch *batch, const IrComputation *entry, const bool *is_candidate) {
    int32_t best = -1;
    for (int32_t p = 0; p < entry->parameter_count; p++) {
        int32_t value = entry->parameters[p];
        const IrShape *shape = shape_of(batch, value);
        for (int32_t d = 0; is_candidate[p] && shape->type != DTYPE_TUPLE && d < shape->rank; d++) {
            int32_t class = root_of(batch, batch->first[value] + d);
            if (batch->has_weight[class] || class == best) continue;
            if (best < 0 || batch->score[class] > batch->score[best] ||
                (batch->score[class] == batch->score[best] && batch->leading[class] > batch->leading[best]))
                best = class;
        }
    }
    return best;
}

/* Marks the values that depend on no parameter and those that depend on candidates alone; numbers
 * the nodes. */
static int64_t number_nodes(Batch *batch, const bool *is_candidate, bool *others) {
    const IrFlowGraph *graph = batch->graph;
    const IrComputation *entry = &batch->module->computations[batch->module->entry];
    int64_t nodes = 0;
    for (int32_t p = 0; p < entry->parameter_count; p++)
        (is_candidate[p] ? batch->given : others)[entry->parameters[p]] = true;
    ir_flow_mark_dependents(graph, batch->given);
    ir_flow_mark_dependents(graph, others);
    for (int32_t i = 0; i < graph->count; i++) {
        batch->free[i] = !batch->given[i] && !others[i];
        batch->given[i] = batch->given[i] && !others[i];
        batch->first[i] = nodes;
        if (shape_of(batch, i)->type != DTYPE_TUPLE) nodes += shape_of(batch, i)->rank;
    }
    return nodes;
}

AmStatus ir_find_batch(bool *is_data, Arena *arena, const IrFlowGraph *graph, const bool *looked_at,
                       const bool *is_weight, const bool *is_candidate, AmError *error) {
    const IrModule *module = graph->module;
    const IrComputation *entry = &module->computations[module->entry];
    Batch batch = {.graph = graph, .flow = graph->flow, .module = module};
    batch.first = ARENA_ARRAY(arena, int64_t, graph->count);
    batch.free = ARENA_ARRAY(arena, bool, graph->count);
    batch.given = ARENA_ARRAY(arena, bool, graph->count);
    bool *others = ARENA_ARRAY(arena, bool, graph->count);
    if (arena->failed) return am_fail_memory(error, (int64_t)graph->count * 11);
    int64_t nodes = number_nodes(&batch, is_candidate, others);
    batch.parents = ARENA_ARRAY(arena, int32_t, nodes);
    batch.score = ARENA_ARRAY(arena, int32_t, nodes);
    batch.stamp = ARENA_ARRAY(arena, int32_t, nodes);
    batch.leading = ARENA_ARRAY(arena, int32_t, nodes);
    batch.has_weight = ARENA_ARRAY(arena, bool, nodes);
    if (arena->failed || nodes > INT32_MAX) return am_fail_memory(error, nodes * 17);
    union_find_begin(batch.parents, nodes);
    for (int32_t i = 0; i < graph->count; i++)
        if (looked_at[i]) tie_instruction(&batch, i);
    for (int32_t i = 0; i < graph->count; i++)
        if (looked_at[i]) count_uses(&batch, i);
    for (int32_t p = 0; p < entry->parameter_count; p++) {
        int32_t value = entry->parameters[p];
        const IrShape *shape = shape_of(&batch, value);
        if (shape->type == DTYPE_TUPLE) continue;
        for (int32_t d = 0; d < shape->rank && is_weight[p]; d++)
            batch.has_weight[root_of(&batch, batch.first[value] + d)] = true;
        if (is_candidate[p] && shape->rank > 0) batch.leading[root_of(&batch, batch.first[value])]++;
    }
    int32_t chosen = choose_class(&batch, entry, is_candidate);
    for (int32_t p = 0; p < entry->parameter_count && chosen >= 0; p++) {
        int32_t value = entry->parameters[p];
        const IrShape *shape = shape_of(&batch, value);
        for (int32_t d = 0; is_candidate[p] && shape->type != DTYPE_TUPLE && d < shape->rank; d++)
            if (root_of(&batch, batch.first[value] + d) == chosen) is_data[p] = true;
    }
    return AM_OK;
}
