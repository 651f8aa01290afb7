/* Pairs parameters with the outputs that update them, without metadata.
 *
 * 1. Data flow. A breadth-first search from each output follows element-wise operators
 *    and views of the output's dimensions backward. Parameters of the output's shape
 *    that it reaches are candidates; their distance is the number of operators between:
 *    w - lr * g has distance one from w; b * m + (1 - b) * g has distance two from m;
 *    in Adam the new w also has small distances from m and v. The nearest candidates are
 *    accepted first, so that m and v are paired with their own updates. In-place updates
 *    (dynamic-update-slice, scatter) and loop carries count as one operator. Branches and
 *    bodies of loops are searched like the surrounding code; a slice represents its array.
 *    If free parameters are as near to an output as its own, as a frozen weight is to the
 *    average of it that a teacher keeps, the one whose place fits the neighbouring pairs
 *    is chosen.
 * 2. Order. The remaining outputs and parameters are paired if they have the same
 *    neighbouring pairs in both lists, are on the same side of the loss, have equal
 *    shapes and equal numbers of candidates, and if the output depends on the parameter.
 *    These conditions suffice for random keys that are returned. A result with the shape
 *    of its data (a prediction, a reconstruction) must also be donated, or be next to a
 *    pair in both lists. A parameter without users, such as optimizer state that some
 *    weights do not need, is paired with the output at its place between two pairs; a
 *    constant output also if only a pair precedes it.
 * 3. Donations pair the rest; in earlier steps they only break ties.
 *
 * Two kinds of outputs resemble updates. The first is a loss that a scalar parameter multiplies:
 * scalars whose floating value depends on array parameters are therefore paired last, and one
 * scalar remains for the loss. The second is the result of a residual network without a loss: if a
 * module has no other output, an update that is not donated must not depend on a dot or a
 * convolution.
 *
 * The search from one output is bounded, and the sum over all outputs too: optimizers need about
 * twenty operators.
 */
#include "ir/analysis/pairing.h"

#include <stdlib.h>

#define MAX_VISITS_PER_OUTPUT 4096
#define MAX_ANCESTOR_PASSES   256
#define MAX_BRANCHES          64 /* branches of a conditional that are searched for one value */

typedef struct Candidate {
    int32_t parameter, output, distance;
    bool follows_arrays; /* a scalar that may well be the loss */
    bool is_aliased;
} Candidate;

typedef struct Matcher {
    const IrFlowGraph *graph;
    const IrDataflow *flow;
    const IrModule *module;
    const IrComputation *entry;
    IrPairing *pairing;
    Arena *arena;
    int32_t *alias_of;       /* per output: donated parameter or -1 */
    bool *follows_parameter; /* per instruction of the module: depends on any */
    Candidate *candidates;
    int32_t candidate_count, candidate_capacity;
    /* the search: a double-ended queue as two stacks would need two passes, so
     * one level of distance after another */
    int32_t *seen;    /* per instruction of the module: 1 + the last output that reached it */
    int32_t *callers; /* per computation: the region through which the search entered it */
    int32_t *level, *next;
    int64_t visits_left;
    int32_t passes_left;
} Matcher;

static const IrShape *parameter_shape(const Matcher *matcher, int32_t parameter) {
    return &matcher->module->instructions[matcher->entry->parameters[parameter]].shape;
}

static const IrShape *output_shape(const Matcher *matcher, int32_t output) {
    return &matcher->module->instructions[matcher->flow->outputs[output]].shape;
}

/* Returns whether an instruction keeps all elements: a conversion, a copy, a reshape that changes nothing. */
static bool is_view(const IrInstruction *instruction) {
    if (ir_opcode_has(instruction->opcode, FACT_VIEW)) return true;
    switch (instruction->opcode) {
    case IR_CONVERT:
    case IR_REDUCE_PRECISION:
    case IR_OPT_BARRIER: return true;
    case IR_CUSTOM_CALL: return instruction->operand_count == 1; /* annotations of sharding */
    default: return false;
    }
}

/* Returns how many of the first operands are searched further. In a body, a loop over the layers of stacked
 * weights slices the old ones and stacks up the new ones. */
static int32_t searched_operands(const IrInstruction *instruction, bool in_body) {
    if (is_view(instruction)) return 1;
    if (in_body && instruction->opcode == IR_DYNAMIC_SLICE) return 1;
    if (instruction->opcode == IR_DYNAMIC_UPDATE_SLICE) return in_body ? 2 : 1;
    if (instruction->opcode == IR_SCATTER) return 1;
    return ir_is_elementwise(instruction->opcode) ? instruction->operand_count : 0;
}

/* Returns the value with which a loop's element starts, if `instruction` takes one from a while. */
static int32_t loop_start(const Matcher *matcher, const IrInstruction *instruction) {
    if (instruction->opcode != IR_GET_TUPLE_ELEMENT) return -1;
    const IrInstruction *loop =
        &matcher->module->instructions[ir_dataflow_operand(matcher->flow, instruction, 0)];
    if (loop->opcode != IR_WHILE || loop->operand_count != 1) return -1;
    return ir_dataflow_element(matcher->flow, ir_dataflow_operand(matcher->flow, loop, 0),
                               instruction->attributes->tuple_index);
}

typedef struct Frontier {
    int32_t level_count, next_count;
} Frontier;

static bool is_in_body(const Matcher *matcher, int32_t value) {
    return matcher->graph->owners[value] != matcher->module->entry;
}

/* Returns whether a shape is a slice along the first dimension of an array, with that dimension or
 * without. */
static bool is_slice_of(const IrShape *slice, const IrShape *whole) {
    if (slice->type == DTYPE_TUPLE || whole->type == DTYPE_TUPLE || whole->rank == 0) return false;
    int32_t dropped = whole->rank - slice->rank;
    if (dropped < 0 || dropped > 1 || (dropped == 0 && slice->dimensions[0] != 1)) return false;
    for (int32_t d = 1; d < whole->rank; d++)
        if (slice->dimensions[d - dropped] != whole->dimensions[d]) return false;
    return true;
}

/* Adds a value to the search if it can be a part of the output. */
static void reach(Matcher *matcher, Frontier *frontier, int32_t value, int32_t output, bool is_free) {
    const IrShape *shape = &matcher->module->instructions[value].shape;
    const IrShape *wanted = output_shape(matcher, output);
    if (matcher->seen[value] == output + 1) return;
    if (!ir_same_dimensions(shape, wanted) && !(is_in_body(matcher, value) && is_slice_of(shape, wanted)))
        return;
    if (shape->type == DTYPE_PRED && wanted->type != DTYPE_PRED) return; /* a mask */
    matcher->seen[value] = output + 1;
    if (is_free) matcher->level[frontier->level_count++] = value;
    else matcher->next[frontier->next_count++] = value;
}

static void add_candidate(Matcher *matcher, int32_t value, int32_t output, int32_t distance) {
    const IrInstruction *instruction = &matcher->module->instructions[value];
    int32_t parameter = (int32_t)instruction->attributes->parameter_number;
    if (!ir_shape_equal(&instruction->shape, output_shape(matcher, output))) return;
    ARENA_RESERVE(matcher->arena, matcher->candidates, matcher->candidate_count, matcher->candidate_capacity);
    if (!matcher->candidates) return;
    matcher->candidates[matcher->candidate_count++] =
        (Candidate){parameter, output, distance,
                    ir_is_scalar(&instruction->shape) &&
                        matcher->pairing->depends_on_arrays[matcher->flow->output_values[output]],
                    matcher->alias_of[output] == parameter};
}

/* Returns the initial value outside for a value inside a branch or the body of a loop: the operand
 * for the parameter, an element of that operand for an element of the parameter. */
static int32_t outside_of_body(const Matcher *matcher, const IrInstruction *value) {
    const IrInstruction *parameter = value;
    if (value->opcode == IR_GET_TUPLE_ELEMENT)
        parameter = &matcher->module->instructions[ir_dataflow_operand(matcher->flow, value, 0)];
    if (parameter->opcode != IR_PARAMETER) return -1;
    int32_t body = matcher->graph->owners[parameter - matcher->module->instructions];
    if (body == matcher->module->entry) return -1;
    const IrInstruction *region = &matcher->module->instructions[matcher->callers[body]];
    int32_t operand = -1;
    if (region->opcode == IR_WHILE) operand = ir_dataflow_operand(matcher->flow, region, 0);
    int32_t bodies = region->called_count < MAX_BRANCHES ? region->called_count : MAX_BRANCHES;
    for (int32_t b = 0; operand < 0 && b < bodies && b + 1 < region->operand_count; b++)
        if (region->called[b] == body) operand = ir_dataflow_operand(matcher->flow, region, b + 1);
    if (operand < 0 || parameter == value) return operand;
    return ir_dataflow_element(matcher->flow, operand, value->attributes->tuple_index);
}

/* Goes on to the results of the branches or of the body, if a conditional or a loop made the value. */
static void enter_bodies(Matcher *matcher, Frontier *frontier, int32_t value, int32_t output) {
    const IrInstruction *instruction = &matcher->module->instructions[value];
    bool is_element = instruction->opcode == IR_GET_TUPLE_ELEMENT;
    int32_t producer = is_element ? ir_dataflow_operand(matcher->flow, instruction, 0) : value;
    const IrInstruction *region = &matcher->module->instructions[producer];
    if (region->opcode != IR_CONDITIONAL && region->opcode != IR_WHILE) return;
    int32_t bodies = region->opcode == IR_WHILE ? 1 : region->called_count;
    matcher->visits_left -= bodies;
    for (int32_t b = 0; matcher->visits_left > 0 && b < bodies; b++) {
        int32_t root = matcher->flow->sources[matcher->module->computations[region->called[b]].root];
        if (is_element) root = ir_dataflow_element(matcher->flow, root, instruction->attributes->tuple_index);
        matcher->callers[region->called[b]] = producer;
        if (root >= 0) reach(matcher, frontier, root, output, true);
    }
}

/* Goes on from one value to those that it is an element-wise function of. */
static void search_value(Matcher *matcher, Frontier *frontier, int32_t value, int32_t output,
                         int32_t distance) {
    const IrInstruction *instruction = &matcher->module->instructions[value];
    if (instruction->opcode == IR_PARAMETER && matcher->graph->owners[value] == matcher->module->entry)
        add_candidate(matcher, value, output, distance);
    int32_t count = searched_operands(instruction, is_in_body(matcher, value));
    for (int32_t k = 0; k < count; k++)
        reach(matcher, frontier, ir_dataflow_operand(matcher->flow, instruction, k), output,
              is_view(instruction));
    int32_t start = loop_start(matcher, instruction);
    if (start >= 0) reach(matcher, frontier, start, output, false);
    int32_t outside = outside_of_body(matcher, instruction);
    if (outside >= 0) reach(matcher, frontier, outside, output, true);
    enter_bodies(matcher, frontier, value, output);
}

/* Finds all parameters that the output may update element-wise. Chains of views may place a value
 * a level too far; levels only rank candidates. */
static void search_candidates(Matcher *matcher, int32_t output) {
    int32_t visits = 0;
    Frontier frontier = {0, 0};
    if (output_shape(matcher, output)->type == DTYPE_TUPLE) return;
    reach(matcher, &frontier, matcher->flow->output_values[output], output, true);
    for (int32_t distance = 0; frontier.level_count > 0; distance++) {
        for (int32_t at = 0; at < frontier.level_count; at++) {
            if (++visits > MAX_VISITS_PER_OUTPUT || --matcher->visits_left < 0) return;
            search_value(matcher, &frontier, matcher->level[at], output, distance);
        }
        int32_t *swap = matcher->level;
        matcher->level = matcher->next;
        matcher->next = swap;
        frontier = (Frontier){frontier.next_count, 0};
    }
}

/* Orders likelier pairs first; the last keys only make the order total. */
static int compare_candidates(const void *left, const void *right) {
    const Candidate *a = left, *b = right;
    if (a->follows_arrays != b->follows_arrays) return a->follows_arrays ? 1 : -1;
    if (a->distance != b->distance) return a->distance < b->distance ? -1 : 1;
    if (a->is_aliased != b->is_aliased) return a->is_aliased ? -1 : 1;
    if (a->parameter != b->parameter) return a->parameter < b->parameter ? -1 : 1;
    return (a->output > b->output) - (a->output < b->output);
}

static void set_pair(Matcher *matcher, int32_t parameter, int32_t output, const char *by) {
    matcher->pairing->output_of[parameter] = output;
    matcher->pairing->parameter_of[output] = parameter;
    matcher->pairing->paired_by[parameter] = by;
}

static void clear_pair(Matcher *matcher, int32_t output) {
    int32_t parameter = matcher->pairing->parameter_of[output];
    matcher->pairing->output_of[parameter] = -1;
    matcher->pairing->parameter_of[output] = -1;
    matcher->pairing->paired_by[parameter] = "";
}

static void accept_candidates(Matcher *matcher, const Candidate **accepted) {
    for (int32_t c = 0; c < matcher->candidate_count; c++) {
        const Candidate *candidate = &matcher->candidates[c];
        if (matcher->pairing->output_of[candidate->parameter] >= 0) continue;
        if (matcher->pairing->parameter_of[candidate->output] >= 0) continue;
        set_pair(matcher, candidate->parameter, candidate->output, "data flow");
        accepted[candidate->output] = candidate;
    }
}

/* Returns whether the candidate fits its output as well as the accepted one, and its parameter is free. A
 * donation is no evidence against a later parameter: JAX gives a buffer of equal shape to the first. */
static bool is_rival(const Matcher *matcher, const Candidate **accepted, const Candidate *candidate) {
    const Candidate *other = accepted[candidate->output];
    if (!other || matcher->pairing->output_of[candidate->parameter] >= 0) return false;
    if (candidate->distance != other->distance) return false;
    return candidate->is_aliased == other->is_aliased || candidate->parameter > other->parameter;
}

/* Parameters between which those of an output's neighbours suggest its own. */
typedef struct Bounds {
    int32_t after, before;
} Bounds;

/* Finds bounds by the nearest outputs before and after that have a pair without a rival. */
static void find_bounds(const Matcher *matcher, Bounds *bounds) {
    const IrPairing *pairing = matcher->pairing;
    int32_t count = matcher->flow->output_count, after = -1, before = matcher->entry->parameter_count;
    for (int32_t o = 0; o < count; o++) {
        bounds[o].after = after;
        if (pairing->parameter_of[o] >= 0 && pairing->rival_of[o] < 0) after = pairing->parameter_of[o];
    }
    for (int32_t o = count - 1; o >= 0; o--) {
        bounds[o].before = before;
        if (pairing->parameter_of[o] >= 0 && pairing->rival_of[o] < 0) before = pairing->parameter_of[o];
    }
}

static bool is_within(Bounds bounds, int32_t parameter) {
    return bounds.after < parameter && parameter < bounds.before;
}

/* Notes for each pair a free parameter that fits the output as well, and exchanges the two if only the other
 * is between its neighbours' parameters. */
static AmStatus choose_between_rivals(Matcher *matcher, const Candidate **accepted, AmError *error) {
    IrPairing *pairing = matcher->pairing;
    Bounds *bounds = ARENA_ARRAY(matcher->arena, Bounds, matcher->flow->output_count);
    if (!bounds) return am_fail_memory(error, (int64_t)matcher->flow->output_count * 8);
    for (int32_t c = 0; c < matcher->candidate_count; c++) {
        const Candidate *candidate = &matcher->candidates[c];
        if (is_rival(matcher, accepted, candidate) && pairing->rival_of[candidate->output] < 0)
            pairing->rival_of[candidate->output] = candidate->parameter;
    }
    find_bounds(matcher, bounds);
    for (int32_t c = 0; c < matcher->candidate_count; c++) {
        const Candidate *candidate = &matcher->candidates[c];
        int32_t output = candidate->output, parameter = pairing->parameter_of[output];
        if (!is_rival(matcher, accepted, candidate) || is_within(bounds[output], parameter)) continue;
        if (!is_within(bounds[output], candidate->parameter)) continue;
        clear_pair(matcher, output);
        set_pair(matcher, candidate->parameter, output, "data flow");
        pairing->rival_of[output] = parameter;
    }
    /* Where the donation and the order agree, nothing is in doubt. */
    for (int32_t o = 0; o < matcher->flow->output_count; o++) {
        int32_t rival = pairing->rival_of[o];
        if (rival >= 0 && matcher->alias_of[o] == pairing->parameter_of[o] && !is_within(bounds[o], rival))
            pairing->rival_of[o] = -1;
    }
    return AM_OK;
}

static AmStatus pair_by_data_flow(Matcher *matcher, AmError *error) {
    const Candidate **accepted = ARENA_ARRAY(matcher->arena, const Candidate *, matcher->flow->output_count);
    for (int32_t o = 0; o < matcher->flow->output_count; o++) search_candidates(matcher, o);
    if (matcher->arena->failed) return am_fail_memory(error, (int64_t)matcher->candidate_capacity * 20);
    if (matcher->candidate_count > 0)
        qsort(matcher->candidates, (size_t)matcher->candidate_count, sizeof(Candidate), compare_candidates);
    accept_candidates(matcher, accepted);
    TRY(choose_between_rivals(matcher, accepted, error));
    accept_candidates(matcher, accepted); /* of the parameters that the choice set free */
    return AM_OK;
}

static bool is_free_scalar(const Matcher *matcher, int32_t output, bool floating) {
    const IrShape *shape = output_shape(matcher, output);
    return matcher->pairing->parameter_of[output] < 0 && ir_is_scalar(shape) &&
           (!floating || dtype_is_floating(shape->type));
}

/* Clears the pair of the loss if every scalar has one: of the first that depends on arrays and is not
 * donated. */
static void leave_a_loss(Matcher *matcher) {
    const IrDataflow *flow = matcher->flow;
    for (int32_t o = 0; o < flow->output_count; o++)
        if (is_free_scalar(matcher, o, true)) return;
    for (int32_t o = 0; o < flow->output_count; o++) {
        const IrShape *shape = output_shape(matcher, o);
        int32_t value = flow->output_values[o], parameter = matcher->pairing->parameter_of[o];
        if (parameter < 0 || !ir_is_scalar(shape) || !dtype_is_floating(shape->type)) continue;
        if (!matcher->pairing->depends_on_arrays[value] || matcher->alias_of[o] == parameter) continue;
        clear_pair(matcher, o);
        return;
    }
}

/* Drops pairs of outputs that depend on a dot or convolution, where the module has no scalar result. */
static AmStatus drop_results(Matcher *matcher, AmError *error) {
    const IrDataflow *flow = matcher->flow;
    for (int32_t o = 0; o < flow->output_count; o++)
        if (is_free_scalar(matcher, o, false)) return AM_OK;
    bool *depends = ARENA_ARRAY(matcher->arena, bool, flow->count);
    if (!depends) return am_fail_memory(error, flow->count);
    for (int32_t i = 0; i < flow->count; i++) {
        const IrInstruction *instruction = &matcher->module->instructions[i];
        depends[i] = ir_is_product(instruction->opcode);
        for (int32_t k = 0; k < instruction->operand_count && !depends[i]; k++)
            depends[i] = depends[ir_dataflow_operand(flow, instruction, k)];
    }
    for (int32_t o = 0; o < flow->output_count; o++) {
        int32_t parameter = matcher->pairing->parameter_of[o];
        if (parameter >= 0 && depends[flow->output_values[o]] && matcher->alias_of[o] != parameter)
            clear_pair(matcher, o);
    }
    return AM_OK;
}

/* Returns whether the output depends on the parameter; false if the budget of searches is exhausted. */
static bool depends_on_parameter(Matcher *matcher, int32_t output, int32_t parameter) {
    if (matcher->passes_left-- <= 0) return false;
    ArenaMark mark = arena_mark(matcher->arena);
    bool *marks = ARENA_ARRAY(matcher->arena, bool, matcher->graph->count);
    bool depends = false;
    if (marks) {
        marks[matcher->flow->output_values[output]] = true;
        ir_flow_mark_ancestors(matcher->graph, marks);
        depends = marks[matcher->entry->parameters[parameter]];
    }
    arena_release(matcher->arena, mark);
    return depends;
}

static bool follows_pair(const Matcher *matcher, int32_t output, int32_t parameter) {
    return output > 0 && parameter > 0 && matcher->pairing->parameter_of[output - 1] == parameter - 1;
}

/* Returns whether the position of the output matches that of the parameter: a donation, the next of a pair,
 * or any position for unsigned integers, which are random keys. */
static bool is_in_place(const Matcher *matcher, int32_t output, int32_t parameter) {
    const IrPairing *pairing = matcher->pairing;
    Dtype type = output_shape(matcher, output)->type;
    if (dtype_is_integer(type) && !dtype_is_signed(type)) return true;
    if (matcher->alias_of[output] == parameter) return true;
    bool precedes =
        output + 1 < matcher->flow->output_count && pairing->parameter_of[output + 1] == parameter + 1;
    return follows_pair(matcher, output, parameter) || precedes;
}

/* Pairs unpaired outputs in [from, to) with unpaired parameters in (after, before): equal shapes in
 * order, where both lists have equally many of that shape. An output that does not depend on an
 * unused parameter is its update only between two pairs with equally many entries of all shapes; a
 * constant output also directly after a pair. */
static void pair_gap(Matcher *matcher, int32_t from, int32_t to, int32_t after, int32_t before) {
    bool is_between_pairs =
        to < matcher->flow->output_count && to - from == before - after - 1 && (after >= 0 || from == 0);
    IrPairing *pairing = matcher->pairing;
    /* Outputs and parameters of the gap are unpaired and have equal shapes, position by position. */
    bool are_in_place = is_between_pairs;
    for (int32_t o = from, p = after + 1; o < to && are_in_place; o++, p++)
        are_in_place = pairing->output_of[p] < 0 &&
                       ir_shape_equal(parameter_shape(matcher, p), output_shape(matcher, o));
    for (int32_t o = from; o < to; o++) {
        if (pairing->parameter_of[o] >= 0 || output_shape(matcher, o)->type == DTYPE_TUPLE) continue;
        int32_t wanted = 0, offered = 0, chosen = -1;
        for (int32_t other = o; other < to; other++)
            if (pairing->parameter_of[other] < 0 &&
                ir_shape_equal(output_shape(matcher, other), output_shape(matcher, o)))
                wanted++;
        for (int32_t p = after + 1; p < before; p++) {
            if (pairing->output_of[p] >= 0 ||
                !ir_shape_equal(parameter_shape(matcher, p), output_shape(matcher, o)))
                continue;
            if (chosen < 0) chosen = p;
            offered++;
        }
        if (wanted != offered) continue;
        bool is_reset = !matcher->follows_parameter[matcher->flow->output_values[o]] &&
                        (is_between_pairs || follows_pair(matcher, o, chosen));
        const int64_t *users = &matcher->graph->first_user[matcher->entry->parameters[chosen]];
        bool is_replaced = is_between_pairs && users[0] == users[1]; /* it has no user */
        if (is_reset || is_replaced ||
            ((are_in_place || is_in_place(matcher, o, chosen)) && depends_on_parameter(matcher, o, chosen)))
            set_pair(matcher, chosen, o, "order");
    }
}

/* Runs of free outputs next to a paired one, without a free floating scalar (the loss) between. */
static void pair_by_order(Matcher *matcher) {
    const IrPairing *pairing = matcher->pairing;
    int32_t outputs = matcher->flow->output_count, parameters = matcher->entry->parameter_count;
    int64_t work_left = 16 * ((int64_t)outputs + parameters) + 65536;
    for (int32_t from = 0; from < outputs;) {
        if (pairing->parameter_of[from] >= 0 || is_free_scalar(matcher, from, true)) {
            from++;
            continue;
        }
        int32_t to = from;
        while (to < outputs && pairing->parameter_of[to] < 0 && !is_free_scalar(matcher, to, true)) to++;
        int32_t after = from > 0 ? pairing->parameter_of[from - 1] : -1;
        int32_t before = to < outputs ? pairing->parameter_of[to] : -1;
        bool has_neighbour = after >= 0 || before >= 0;
        if (before < 0) before = parameters;
        work_left -= (int64_t)(to - from) * ((to - from) + (before > after ? before - after : 0));
        if (work_left < 0) return;
        if (has_neighbour && after < before) pair_gap(matcher, from, to, after, before);
        from = to;
    }
}

static void pair_by_alias(Matcher *matcher) {
    for (int32_t o = 0; o < matcher->flow->output_count; o++) {
        int32_t parameter = matcher->alias_of[o];
        if (parameter < 0 || matcher->pairing->parameter_of[o] >= 0 ||
            matcher->pairing->output_of[parameter] >= 0)
            continue;
        if (ir_shape_equal(parameter_shape(matcher, parameter), output_shape(matcher, o)))
            set_pair(matcher, parameter, o, "alias");
    }
}

/* Finds the floating values that depend on an array parameter through floating operands alone: a selection
 * between constants by "is finite" does not. */
static void find_dependence_on_arrays(const IrDataflow *flow, bool *depends) {
    for (int32_t i = 0; i < flow->count; i++) {
        const IrInstruction *instruction = &flow->module->instructions[i];
        Dtype type = instruction->shape.type;
        bool is_tuple = type == DTYPE_TUPLE;
        if (!dtype_is_floating(type) && !dtype_is_complex(type) && !is_tuple) continue;
        depends[i] = instruction->opcode == IR_PARAMETER && !ir_is_scalar(&instruction->shape);
        for (int32_t k = 0; k < instruction->operand_count && !depends[i]; k++)
            depends[i] = depends[ir_dataflow_operand(flow, instruction, k)];
    }
}

AmStatus ir_pair_parameters(IrPairing *pairing, Arena *arena, const IrFlowGraph *graph, AmError *error) {
    const IrDataflow *flow = graph->flow;
    const IrModule *module = graph->module;
    const IrComputation *entry = &module->computations[module->entry];
    int32_t parameters = entry->parameter_count, outputs = flow->output_count;
    *pairing = (IrPairing){ARENA_ARRAY(arena, int32_t, parameters),
                           ARENA_ARRAY(arena, const char *, parameters), ARENA_ARRAY(arena, int32_t, outputs),
                           ARENA_ARRAY(arena, int32_t, outputs), ARENA_ARRAY(arena, bool, flow->count)};
    Matcher matcher = {.graph = graph,
                       .flow = flow,
                       .module = module,
                       .entry = entry,
                       .pairing = pairing,
                       .arena = arena,
                       .alias_of = ARENA_ARRAY(arena, int32_t, outputs),
                       .follows_parameter = ARENA_ARRAY(arena, bool, module->instruction_count),
                       .seen = ARENA_ARRAY(arena, int32_t, module->instruction_count),
                       .callers = ARENA_ARRAY(arena, int32_t, module->computation_count),
                       .level = ARENA_ARRAY(arena, int32_t, module->instruction_count),
                       .next = ARENA_ARRAY(arena, int32_t, module->instruction_count),
                       .visits_left = 64 * (int64_t)flow->count + MAX_VISITS_PER_OUTPUT,
                       .passes_left = MAX_ANCESTOR_PASSES};
    if (arena->failed) return am_fail_memory(error, (int64_t)module->instruction_count * 16);
    for (int32_t p = 0; p < parameters; p++) {
        pairing->output_of[p] = -1;
        pairing->paired_by[p] = "";
    }
    for (int32_t o = 0; o < outputs; o++)
        pairing->parameter_of[o] = pairing->rival_of[o] = matcher.alias_of[o] = -1;
    for (int32_t a = 0; a < module->alias_count; a++) {
        IrAlias alias = module->aliases[a];
        int32_t output = alias.output < 0 ? 0 : alias.output;
        if (output < outputs && alias.parameter >= 0 && alias.parameter < parameters)
            matcher.alias_of[output] = alias.parameter;
    }
    for (int32_t p = 0; p < parameters; p++) matcher.follows_parameter[entry->parameters[p]] = true;
    ir_flow_mark_dependents(graph, matcher.follows_parameter);
    find_dependence_on_arrays(flow, pairing->depends_on_arrays);
    TRY(pair_by_data_flow(&matcher, error));
    leave_a_loss(&matcher);
    TRY(drop_results(&matcher, error));
    pair_by_order(&matcher);
    pair_by_alias(&matcher);
    return arena->failed ? am_fail_memory(error, (int64_t)matcher.candidate_capacity * 20) : AM_OK;
}
