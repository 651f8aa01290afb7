/* Data flow through loops and conditionals: ir/analysis/flow_graph.h.
 *
 * Two passes go over the instructions: one counts edges, one fills them in. The same edges are then listed by
 * user. Elements of loops and of conditionals are followed one by one, unless many places mention a body or a
 * conditional has many branches. There each element depends on the entire result, and that on all inputs. So
 * the number of edges is proportional to the size of the module. Marking is a search with a stack: linear.
 *
 * A body that several loops mention is one set of instructions. A mark that enters it at one loop would leave
 * it at all others. So marks enter and do not leave, in both directions, and the results of such a loop
 * depend on all its inputs.
 */
#include "ir/analysis/flow_graph.h"

/* More callers or branches than this are not followed element by element. */
#define MAX_FOLLOWED 8

/* The arrays of edges; NULL in the pass that counts them. */
typedef struct Edges {
    int32_t *operands;
    int64_t count;
} Edges;

static void add_edge(Edges *edges, int32_t operand) {
    if (edges->operands) edges->operands[edges->count] = operand;
    edges->count++;
}

static int32_t source_of(const IrFlowGraph *graph, int32_t value) {
    return graph->flow->sources[value];
}

static int32_t root_of(const IrFlowGraph *graph, int32_t computation) {
    return source_of(graph, graph->module->computations[computation].root);
}

static bool is_region(const IrInstruction *instruction) {
    return (instruction->opcode == IR_WHILE && instruction->called_count == 2 &&
            instruction->operand_count == 1) ||
           (instruction->opcode == IR_CONDITIONAL &&
            instruction->operand_count == instruction->called_count + 1);
}

int32_t ir_flow_producer(const IrFlowGraph *graph, int32_t value) {
    const IrInstruction *instruction = ir_instruction(graph->module, value);
    if (instruction->opcode != IR_GET_TUPLE_ELEMENT) return -1;
    int32_t producer = source_of(graph, instruction->operands[0]);
    const IrInstruction *tuple = ir_instruction(graph->module, producer);
    bool is_carried = tuple->opcode == IR_PARAMETER && graph->owners[producer] != graph->module->entry;
    return is_carried || is_region(tuple) ? producer : -1;
}

/* Returns the one loop whose carried element `value` is, or -1. */
static int32_t loop_around(const IrFlowGraph *graph, int32_t value) {
    int32_t producer = ir_flow_producer(graph, value);
    if (producer < 0 || ir_instruction(graph->module, producer)->opcode != IR_PARAMETER) return -1;
    int32_t body = graph->owners[producer];
    if (graph->first_caller[body + 1] - graph->first_caller[body] != 1) return -1;
    IrCaller caller = graph->callers[graph->first_caller[body]];
    bool is_body = ir_instruction(graph->module, caller.region)->opcode == IR_WHILE && caller.place == 0;
    return is_body ? caller.region : -1;
}

/* Returns the element of the result of the loop's body that corresponds to `value`. */
static int32_t returned_element(const IrFlowGraph *graph, int32_t loop, int32_t value) {
    int64_t k = ir_instruction(graph->module, value)->attributes->tuple_index;
    return ir_dataflow_element(graph->flow, root_of(graph, ir_instruction(graph->module, loop)->called[0]),
                               k);
}

int32_t ir_flow_value_in_body(const IrFlowGraph *graph, int32_t value) {
    int32_t producer = ir_flow_producer(graph, value);
    if (producer < 0 || ir_instruction(graph->module, producer)->opcode != IR_WHILE) return -1;
    return returned_element(graph, producer, value);
}

int32_t ir_flow_next_value(const IrFlowGraph *graph, int32_t value) {
    int32_t loop = loop_around(graph, value);
    return loop < 0 ? -1 : returned_element(graph, loop, value);
}

int32_t ir_flow_start_value(const IrFlowGraph *graph, int32_t value) {
    int32_t loop = loop_around(graph, value);
    if (loop < 0) return -1;
    int64_t k = ir_instruction(graph->module, value)->attributes->tuple_index;
    return ir_dataflow_element(graph->flow,
                               source_of(graph, ir_instruction(graph->module, loop)->operands[0]), k);
}

/* Adds element k of `tuple`, or all of it where that is not known. */
static void add_element(const IrFlowGraph *graph, Edges *edges, int32_t tuple, int64_t k) {
    int32_t element = ir_dataflow_element(graph->flow, tuple, k);
    add_edge(edges, element >= 0 ? element : tuple);
}

/* Adds the edges into a parameter from one caller of its computation; k < 0: the whole parameter. */
static void add_argument(const IrFlowGraph *graph, Edges *edges, IrCaller caller, int64_t k) {
    const IrInstruction *region = ir_instruction(graph->module, caller.region);
    bool is_loop = region->opcode == IR_WHILE;
    int32_t operand = source_of(graph, region->operands[is_loop ? 0 : caller.place + 1]);
    add_element(graph, edges, operand, k);
    if (is_loop) add_element(graph, edges, root_of(graph, region->called[0]), k);
}

static bool is_shared(const IrFlowGraph *graph, int32_t computation) {
    return graph->first_caller[computation + 1] - graph->first_caller[computation] > 1;
}

/* Adds element k of the region's result. */
static void add_result(const IrFlowGraph *graph, Edges *edges, int32_t region, int64_t k) {
    const IrInstruction *instruction = ir_instruction(graph->module, region);
    bool around = false;
    for (int32_t b = 0; b < instruction->called_count; b++)
        around |= is_shared(graph, instruction->called[b]);
    for (int32_t o = 0; around && o < instruction->operand_count; o++)
        add_edge(edges, source_of(graph, instruction->operands[o]));
    if (instruction->opcode == IR_WHILE) {
        if (!around) add_element(graph, edges, source_of(graph, instruction->operands[0]), k);
        add_element(graph, edges, root_of(graph, instruction->called[0]), k);
        add_edge(edges, root_of(graph, instruction->called[1]));
        return;
    }
    if (!around) add_edge(edges, source_of(graph, instruction->operands[0]));
    for (int32_t b = 0; b < instruction->called_count; b++)
        add_element(graph, edges, root_of(graph, instruction->called[b]), k);
}

static void add_edges(const IrFlowGraph *graph, Edges *edges, int32_t value) {
    const IrInstruction *instruction = ir_instruction(graph->module, value);
    int32_t computation = graph->owners[value];
    int64_t first = graph->first_caller[computation], last = graph->first_caller[computation + 1];
    int32_t producer = ir_flow_producer(graph, value);
    if (producer >= 0) {
        const IrInstruction *tuple = ir_instruction(graph->module, producer);
        int64_t k = instruction->attributes->tuple_index;
        bool is_carried = tuple->opcode == IR_PARAMETER;
        if (is_carried && last - first <= MAX_FOLLOWED) {
            for (int64_t c = first; c < last; c++) add_argument(graph, edges, graph->callers[c], k);
            return;
        }
        if (!is_carried && tuple->called_count <= MAX_FOLLOWED) {
            add_result(graph, edges, producer, k);
            return;
        }
    }
    for (int32_t k = 0; k < instruction->operand_count; k++)
        add_edge(edges, source_of(graph, instruction->operands[k]));
    if (is_region(instruction))
        for (int32_t b = 0; b < instruction->called_count; b++)
            add_edge(edges, root_of(graph, instruction->called[b]));
    if (instruction->opcode == IR_PARAMETER)
        for (int64_t c = first; c < last; c++) add_argument(graph, edges, graph->callers[c], -1);
}

/* Sums up counts[1 ..] so that counts[c + 1] is the place of the first one of c; filling them in
 * moves each on to the end of its own, which is the first of the next. */
static void sum_up(int64_t *counts, int32_t count) {
    int64_t sum = 0;
    for (int32_t c = 0; c < count; c++) {
        int64_t own = counts[c + 1];
        counts[c + 1] = sum;
        sum += own;
    }
}

static void list_callers(IrFlowGraph *graph) {
    int64_t *first = graph->first_caller;
    for (int32_t i = 0; i < graph->count; i++) {
        const IrInstruction *region = ir_instruction(graph->module, i);
        for (int32_t b = 0; is_region(region) && b < region->called_count; b++)
            first[region->called[b] + 1]++;
    }
    sum_up(first, graph->module->computation_count);
    for (int32_t i = 0; i < graph->count; i++) {
        const IrInstruction *region = ir_instruction(graph->module, i);
        for (int32_t b = 0; is_region(region) && b < region->called_count; b++)
            graph->callers[first[region->called[b] + 1]++] = (IrCaller){i, b};
    }
}

static void list_users(IrFlowGraph *graph) {
    int64_t edges = graph->first_operand[graph->count];
    for (int64_t e = 0; e < edges; e++) graph->first_user[graph->operands[e] + 1]++;
    sum_up(graph->first_user, graph->count);
    for (int32_t i = 0; i < graph->count; i++)
        for (int64_t e = graph->first_operand[i]; e < graph->first_operand[i + 1]; e++)
            graph->users[graph->first_user[graph->operands[e] + 1]++] = i;
}

AmStatus ir_flow_graph_make(IrFlowGraph *graph, Arena *arena, const IrDataflow *flow, AmError *error) {
    const IrModule *module = flow->module;
    int32_t count = module->instruction_count;
    int64_t mentions = 0;
    for (int32_t i = 0; i < count; i++) mentions += module->instructions[i].called_count;
    *graph =
        (IrFlowGraph){.flow = flow,
                      .module = module,
                      .count = count,
                      .owners = ARENA_ARRAY(arena, int32_t, count),
                      .first_operand = ARENA_ARRAY(arena, int64_t, (int64_t)count + 1),
                      .first_user = ARENA_ARRAY(arena, int64_t, (int64_t)count + 1),
                      .first_caller = ARENA_ARRAY(arena, int64_t, (int64_t)module->computation_count + 1),
                      .callers = ARENA_ARRAY(arena, IrCaller, mentions + 1),
                      .is_cut = ARENA_ARRAY(arena, bool, count),
                      .stack = ARENA_ARRAY(arena, int32_t, count)};
    if (arena->failed) return am_fail_memory(error, (int64_t)count * 25);
    for (int32_t c = 0; c < module->computation_count; c++)
        for (int32_t i = 0; i < module->computations[c].count; i++)
            graph->owners[module->computations[c].first + i] = c;
    list_callers(graph);
    Edges edges = {0};
    for (int32_t i = 0; i < count; i++) add_edges(graph, &edges, i);
    graph->operands = ARENA_ARRAY(arena, int32_t, edges.count + 1);
    graph->users = ARENA_ARRAY(arena, int32_t, edges.count + 1);
    if (arena->failed) return am_fail_memory(error, edges.count * 8);
    edges = (Edges){graph->operands, 0};
    for (int32_t i = 0; i < count; i++) {
        add_edges(graph, &edges, i);
        graph->first_operand[i + 1] = edges.count;
    }
    list_users(graph);
    return AM_OK;
}

static int32_t push_marked(const IrFlowGraph *graph, const bool *marks) {
    int32_t top = 0;
    for (int32_t i = 0; i < graph->count; i++)
        if (marks[i]) graph->stack[top++] = i;
    return top;
}

/* Returns whether marks do not follow an edge. Marks stop at the back edge of a cut carried element and at
 * the border of a shared body: at its inputs for ancestors, at its results for dependents. */
static bool is_closed(const IrFlowGraph *graph, int32_t user, int32_t operand, bool to_ancestors) {
    int32_t inner = graph->owners[user], outer = graph->owners[operand];
    if (inner == outer) return graph->is_cut[user];
    /* An input of a computation is its parameter, or an element of it. */
    int32_t producer = ir_flow_producer(graph, user);
    bool enters = ir_instruction(graph->module, producer >= 0 ? producer : user)->opcode == IR_PARAMETER;
    return enters == to_ancestors && is_shared(graph, enters ? inner : outer);
}

static void mark_ancestors(const IrFlowGraph *graph, bool *marks, bool floating_only) {
    int32_t top = push_marked(graph, marks);
    while (top > 0) {
        int32_t user = graph->stack[--top];
        for (int64_t e = graph->first_operand[user]; e < graph->first_operand[user + 1]; e++) {
            int32_t operand = graph->operands[e];
            if (marks[operand] || is_closed(graph, user, operand, true)) continue;
            Dtype type = ir_instruction(graph->module, operand)->shape.type;
            bool has_derivative = dtype_is_floating(type) || dtype_is_complex(type) || type == DTYPE_TUPLE;
            if (floating_only && !has_derivative) continue;
            marks[operand] = true;
            graph->stack[top++] = operand;
        }
    }
}

void ir_flow_mark_ancestors(const IrFlowGraph *graph, bool *marks) {
    mark_ancestors(graph, marks, false);
}

void ir_flow_mark_floating_ancestors(const IrFlowGraph *graph, bool *marks) {
    mark_ancestors(graph, marks, true);
}

void ir_flow_mark_dependents(const IrFlowGraph *graph, bool *marks) {
    int32_t top = push_marked(graph, marks);
    while (top > 0) {
        int32_t operand = graph->stack[--top];
        for (int64_t e = graph->first_user[operand]; e < graph->first_user[operand + 1]; e++) {
            int32_t user = graph->users[e];
            if (marks[user] || is_closed(graph, user, operand, false)) continue;
            marks[user] = true;
            graph->stack[top++] = user;
        }
    }
}
