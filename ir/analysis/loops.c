/* Trip counts of while loops.
 *
 * A loop is counted if its condition compares a linear function of one carried element with another
 * or with a constant, and its body adds a constant to that element: i = start, start + step, ...
 * while a*i + b < 0 (or <=, !=, ==). Then
 *
 *     trips = ceil(-(a*start + b) / (a*step))   for "< 0"; the others are analogous.
 *
 * Scalars are evaluated symbolically as scale * carried[element] + offset, through tuples,
 * barriers, copies, widening conversions, and fusions. An element that the body returns unchanged
 * keeps its value from before the loop, so that a bound may be carried, also through outer loops.
 * This covers JAX's scan, map, fori_loop and counted while_loop. A loop has no count if its counter
 * would leave the range of its type, if it never ends, or if its end depends on data.
 */
#include "ir/analysis/loops.h"

#include "base/lower_bound.h"

/* The limit of scalars examined for one loop. Conditions of counted loops are short, and hostile
 * ones double at every level. The limit also bounds the depth of recursion. */
#define MAX_LOOKS 400

/* Copies and barriers in a row that are seen through. */
#define MAX_HANDED_ON 16

/* The number of loops without a count that have a warning each; one more warning counts the others. */
#define MAX_NAMED 5

/* Beyond this magnitude nothing is counted; sums and negations stay in range. */
#define MAX_MAGNITUDE (INT64_C(1) << 60)

/* scale * carried[element] + offset; a constant has scale 0 and element NONE. */
typedef struct Linear {
    bool is_known;
    int32_t element;
    int64_t scale, offset;
} Linear;

/* Element WHOLE: the carried value is an array. Caller SEVERAL: more than one caller. */
enum { NONE = -2, WHOLE = -1, SEVERAL = -1 };

/* A fusion under evaluation; its parameters correspond to its operands outside. */
typedef struct Frame {
    const IrInstruction *fusion;
    const struct Frame *outer;
} Frame;

typedef struct LoopFinder {
    const IrModule *module;
    const IrInstruction *loop; /* the loop whose trips are computed */
    int32_t *owners;           /* [instruction]: its computation */
    int32_t *callers;          /* [computation]: the one instruction that calls it, NONE or SEVERAL */
    int32_t looks_left;
    IrLoop found; /* its counter */
} LoopFinder;

static const Linear unknown = {.element = NONE};

static Linear evaluate_value(LoopFinder *finder, const Frame *frame, int32_t value);

static int32_t see_through(const LoopFinder *finder, int32_t value) {
    for (int32_t k = 0; k < MAX_HANDED_ON; k++) {
        const IrInstruction *instruction = ir_instruction(finder->module, value);
        if (instruction->opcode != IR_COPY && instruction->opcode != IR_OPT_BARRIER) break;
        value = instruction->operands[0];
    }
    return value;
}

/* Returns whether the body of `loop` returns carried element k unchanged. */
static bool is_invariant(const LoopFinder *finder, const IrInstruction *loop, int32_t k) {
    const IrComputation *body = &finder->module->computations[loop->called[0]];
    int32_t value = see_through(finder, body->root), parameter = body->parameters[0];
    if (k == WHOLE || value == parameter) return value == parameter;
    const IrInstruction *root = ir_instruction(finder->module, value);
    if (root->opcode != IR_TUPLE || k >= root->operand_count) return false;
    const IrInstruction *element = ir_instruction(finder->module, see_through(finder, root->operands[k]));
    return element->opcode == IR_GET_TUPLE_ELEMENT && element->attributes->tuple_index == k &&
           see_through(finder, element->operands[0]) == parameter;
}

static Linear element_of(LoopFinder *finder, const Frame *frame, int32_t value, int32_t k);

/* Returns element k (or WHOLE) of a parameter of a fusion's or a loop's computation. */
static Linear parameter_element(LoopFinder *finder, const Frame *frame, int32_t parameter, int32_t k) {
    if (frame) {
        int64_t number = ir_instruction(finder->module, parameter)->attributes->parameter_number;
        if (number >= frame->fusion->operand_count) return unknown;
        return element_of(finder, frame->outer, frame->fusion->operands[number], k);
    }
    const IrInstruction *loop = finder->loop;
    int32_t owner = finder->owners[parameter];
    if (owner != loop->called[0] && owner != loop->called[1]) {
        if (finder->callers[owner] < 0) return unknown;
        loop = ir_instruction(finder->module, finder->callers[owner]);
        if (loop->opcode != IR_WHILE) return unknown;
    }
    if (is_invariant(finder, loop, k)) return element_of(finder, NULL, loop->operands[0], k);
    return loop == finder->loop ? (Linear){true, k, 1, 0} : unknown;
}

/* Returns element k of the tuple `value`, or the value itself (WHOLE). */
static Linear element_of(LoopFinder *finder, const Frame *frame, int32_t value, int32_t k) {
    if (k == WHOLE) return evaluate_value(finder, frame, value);
    if (--finder->looks_left < 0) return unknown;
    value = see_through(finder, value);
    const IrInstruction *tuple = ir_instruction(finder->module, value);
    switch (tuple->opcode) {
    case IR_TUPLE:
        return k < tuple->operand_count ? evaluate_value(finder, frame, tuple->operands[k]) : unknown;
    case IR_PARAMETER: return parameter_element(finder, frame, value, k);
    case IR_WHILE:
        if (!is_invariant(finder, tuple, k)) return unknown;
        return element_of(finder, frame, tuple->operands[0], k);
    case IR_FUSION: {
        const Frame inner = {tuple, frame};
        if (tuple->called_count != 1) return unknown;
        return element_of(finder, &inner, finder->module->computations[tuple->called[0]].root, k);
    }
    default: return unknown;
    }
}

/* Returns whether an integer type has the value, and MAX_MAGNITUDE allows it. */
static bool fits_type(Dtype type, int64_t value) {
    int32_t bits = dtype_bits(type) - dtype_is_signed(type);
    int64_t limit = bits >= 60 ? MAX_MAGNITUDE : INT64_C(1) << bits;
    return value < limit && value >= (dtype_is_signed(type) ? -limit : 0);
}

static Linear constant_value(const IrInstruction *constant) {
    const IrLiteral *literal = constant->literal;
    Dtype type = constant->shape.type;
    if (!literal || !literal->data || literal->bytes < dtype_bytes(type)) return unknown;
    Linear result = {.is_known = true, .element = NONE};
    switch (type) {
    case DTYPE_S8: result.offset = *(const int8_t *)literal->data; break;
    case DTYPE_S16: result.offset = *(const int16_t *)literal->data; break;
    case DTYPE_S32: result.offset = *(const int32_t *)literal->data; break;
    case DTYPE_S64: result.offset = *(const int64_t *)literal->data; break;
    case DTYPE_U8: result.offset = *(const uint8_t *)literal->data; break;
    case DTYPE_U16: result.offset = *(const uint16_t *)literal->data; break;
    case DTYPE_U32: result.offset = *(const uint32_t *)literal->data; break;
    case DTYPE_U64: {
        uint64_t value = *(const uint64_t *)literal->data;
        if (value >= (uint64_t)MAX_MAGNITUDE) return unknown;
        result.offset = (int64_t)value;
        break;
    }
    default: return unknown;
    }
    return fits_type(type, result.offset) ? result : unknown;
}

static bool in_bounds(int64_t value) {
    return value <= MAX_MAGNITUDE && value >= -MAX_MAGNITUDE;
}

/* Returns factor * a + b; unknown if they are of different elements. */
static Linear combine_linear(Linear a, int64_t factor, Linear b) {
    Linear result = {.is_known = true};
    if (!a.is_known || !b.is_known) return unknown;
    if (a.element != NONE && b.element != NONE && a.element != b.element) return unknown;
    if (__builtin_mul_overflow(a.scale, factor, &result.scale) ||
        __builtin_mul_overflow(a.offset, factor, &result.offset) ||
        __builtin_add_overflow(result.scale, b.scale, &result.scale) ||
        __builtin_add_overflow(result.offset, b.offset, &result.offset) || !in_bounds(result.scale) ||
        !in_bounds(result.offset))
        return unknown;
    result.element = result.scale == 0 ? NONE : a.element != NONE ? a.element : b.element;
    return result;
}

static Linear extreme(Linear a, Linear b, bool least) {
    if (!a.is_known || !b.is_known || a.element != NONE || b.element != NONE) return unknown;
    return (a.offset < b.offset) == least ? a : b;
}

/* Evaluates an operator as a linear function of the loop's counter. */
static Linear apply_operator(LoopFinder *finder, const Frame *frame, const IrInstruction *instruction) {
    const Linear zero = {.is_known = true, .element = NONE};
    Linear a = evaluate_value(finder, frame, instruction->operands[0]);
    if (instruction->opcode == IR_NEGATE) return combine_linear(a, -1, zero);
    Linear b = evaluate_value(finder, frame, instruction->operands[1]);
    switch (instruction->opcode) {
    case IR_ADD: return combine_linear(a, 1, b);
    case IR_SUBTRACT: return combine_linear(b, -1, a);
    case IR_MULTIPLY:
        if (!a.is_known || !b.is_known) return unknown;
        if (b.element == NONE) return combine_linear(a, b.offset, zero);
        return a.element == NONE ? combine_linear(b, a.offset, zero) : unknown;
    case IR_MINIMUM: return extreme(a, b, true);
    default: return extreme(a, b, false);
    }
}

/* Evaluates a value of one integer, of any origin. */
static Linear evaluate_value(LoopFinder *finder, const Frame *frame, int32_t value) {
    const IrInstruction *instruction = ir_instruction(finder->module, value);
    const IrShape *shape = &instruction->shape;
    if (--finder->looks_left < 0 || !dtype_is_integer(shape->type) || ir_shape_elements(shape) != 1)
        return unknown;
    switch (instruction->opcode) {
    case IR_CONSTANT: return constant_value(instruction);
    case IR_PARAMETER: return parameter_element(finder, frame, value, WHOLE);
    case IR_GET_TUPLE_ELEMENT: {
        int64_t k = instruction->attributes->tuple_index;
        return k <= INT32_MAX ? element_of(finder, frame, instruction->operands[0], (int32_t)k) : unknown;
    }
    case IR_CONVERT: {
        const IrShape *from = &ir_instruction(finder->module, instruction->operands[0])->shape;
        if (dtype_bits(from->type) > dtype_bits(shape->type)) return unknown;
        return evaluate_value(finder, frame, instruction->operands[0]);
    }
    case IR_COPY:
    case IR_OPT_BARRIER:
    case IR_RESHAPE:
    case IR_BROADCAST: return evaluate_value(finder, frame, instruction->operands[0]);
    case IR_FUSION: {
        const Frame inner = {instruction, frame};
        if (instruction->called_count != 1) return unknown;
        return evaluate_value(finder, &inner, finder->module->computations[instruction->called[0]].root);
    }
    case IR_ADD:
    case IR_SUBTRACT:
    case IR_MULTIPLY:
    case IR_NEGATE:
    case IR_MINIMUM:
    case IR_MAXIMUM: return apply_operator(finder, frame, instruction);
    default: return unknown;
    }
}

/* Trips while x COMPARISON 0, for x that grows by `step`. */
static int64_t count_trips(const char *comparison, int64_t x, int64_t step) {
    bool greater = comparison[0] == 'G', or_equal = comparison[1] == 'E';
    if (comparison[0] == 'N') {
        if (x == 0) return 0;
        return step != 0 && -x % step == 0 && -x / step > 0 ? -x / step : IR_TRIPS_UNKNOWN;
    }
    if (comparison[0] == 'E') return x != 0 ? 0 : step != 0 ? 1 : IR_TRIPS_UNKNOWN;
    if (greater) x = -x, step = -step;
    int64_t below = or_equal ? x - 1 : x;
    if (below >= 0) return 0;
    return step > 0 ? (-below + step - 1) / step : IR_TRIPS_UNKNOWN;
}

/* Returns whether `linear` fits the type at the first and the last value of its element. */
static bool stays_in_type(Linear linear, Dtype type, int64_t first, int64_t last) {
    const int64_t ends[] = {first, last};
    for (int32_t k = 0; k < 2; k++) {
        int64_t value;
        if (__builtin_mul_overflow(linear.scale, ends[k], &value) ||
            __builtin_add_overflow(value, linear.offset, &value) || !fits_type(type, value))
            return false;
    }
    return true;
}

static int64_t count_comparison(LoopFinder *finder, const Frame *frame, const IrInstruction *comparison) {
    const IrComputation *body = &finder->module->computations[finder->loop->called[0]];
    Dtype type = ir_instruction(finder->module, comparison->operands[0])->shape.type;
    Linear left = evaluate_value(finder, frame, comparison->operands[0]);
    Linear right = evaluate_value(finder, frame, comparison->operands[1]);
    Linear difference = combine_linear(right, -1, left);
    if (!difference.is_known || !comparison->attributes->comparison) return IR_TRIPS_UNKNOWN;
    if (difference.element == NONE)
        return count_trips(comparison->attributes->comparison, difference.offset, 0);

    int32_t k = difference.element;
    Linear start = element_of(finder, NULL, finder->loop->operands[0], k);
    Linear next = element_of(finder, NULL, body->root, k);
    if (!start.is_known || start.element != NONE || !next.is_known || next.element != k || next.scale != 1)
        return IR_TRIPS_UNKNOWN;
    int64_t x, step, last;
    if (__builtin_mul_overflow(difference.scale, start.offset, &x) ||
        __builtin_add_overflow(x, difference.offset, &x) ||
        __builtin_mul_overflow(difference.scale, next.offset, &step) || !in_bounds(x) || !in_bounds(step))
        return IR_TRIPS_UNKNOWN;
    int64_t trips = count_trips(comparison->attributes->comparison, x, step);
    if (trips < 0 || __builtin_mul_overflow(trips, next.offset, &last) ||
        __builtin_add_overflow(last, start.offset, &last))
        return IR_TRIPS_UNKNOWN;
    const IrShape *carried = &finder->loop->shape;
    Dtype counter = k == WHOLE ? carried->type : carried->elements[k].type;
    bool in_range = fits_type(counter, start.offset) && fits_type(counter, last) &&
                    stays_in_type(left, type, start.offset, last) &&
                    stays_in_type(right, type, start.offset, last);
    if (!in_range) return IR_TRIPS_UNKNOWN;
    finder->found = (IrLoop){.counter = k, .start = start.offset, .step = next.offset};
    return trips;
}

/* Trips by the condition's root, which may stand in a fusion. */
static int64_t count_condition(LoopFinder *finder, const Frame *frame, int32_t root) {
    root = see_through(finder, root);
    const IrInstruction *condition = ir_instruction(finder->module, root);
    if (--finder->looks_left < 0) return IR_TRIPS_UNKNOWN;
    if (condition->opcode == IR_FUSION && condition->called_count == 1) {
        const Frame inner = {condition, frame};
        return count_condition(finder, &inner, finder->module->computations[condition->called[0]].root);
    }
    if (condition->opcode != IR_COMPARE) return IR_TRIPS_UNKNOWN;
    return count_comparison(finder, frame, condition);
}

#define UNKNOWN_TRIPS                                                                                   \
    "its trip count is unknown; it is priced as one trip (expected a counter with a constant step and " \
    "limit)"

static void find_callers(LoopFinder *finder) {
    const IrModule *module = finder->module;
    for (int32_t c = 0; c < module->computation_count; c++) {
        const IrComputation *body = &module->computations[c];
        finder->callers[c] = NONE;
        for (int32_t i = body->first; i < body->first + body->count; i++) finder->owners[i] = c;
    }
    for (int32_t i = 0; i < module->instruction_count; i++) {
        for (int32_t k = 0; k < module->instructions[i].called_count; k++) {
            int32_t *caller = &finder->callers[module->instructions[i].called[k]];
            *caller = *caller == NONE || *caller == i ? i : SEVERAL;
        }
    }
}

AmStatus ir_find_loops(IrModule *module, AmError *error) {
    Arena *arena = &module->arena;
    IrLoops *loops = ARENA_ARRAY(arena, IrLoops, 1);
    if (!loops) return am_fail_memory(error, (int64_t)sizeof *loops);
    for (int32_t i = 0; i < module->instruction_count; i++)
        loops->loop_count += module->instructions[i].opcode == IR_WHILE;
    if (loops->loop_count > 0) {
        Arena scratch = {0};
        LoopFinder finder = {.module = module,
                             .owners = ARENA_ARRAY(&scratch, int32_t, module->instruction_count),
                             .callers = ARENA_ARRAY(&scratch, int32_t, module->computation_count)};
        loops->loops = ARENA_ARRAY(arena, IrLoop, loops->loop_count);
        if (!loops->loops || scratch.failed) {
            arena_free(&scratch);
            return am_fail_memory(error, (int64_t)module->instruction_count * 4);
        }
        find_callers(&finder);
        int32_t count = 0, unknown_count = 0;
        for (int32_t i = 0; i < module->instruction_count; i++) {
            const IrInstruction *loop = &module->instructions[i];
            if (loop->opcode != IR_WHILE) continue;
            finder.loop = loop;
            finder.looks_left = MAX_LOOKS;
            finder.found = (IrLoop){.counter = IR_NO_COUNTER};
            int64_t trips = count_condition(&finder, NULL, module->computations[loop->called[1]].root);
            if (trips < 0 && ++unknown_count <= MAX_NAMED) {
                const char *name = *loop->op_name ? loop->op_name : loop->name;
                if (*loop->source_file)
                    am_warn(&module->warnings, "loop \"%s\" (%s:%d): " UNKNOWN_TRIPS, name, loop->source_file,
                            (int)loop->source_line);
                else am_warn(&module->warnings, "loop \"%s\": " UNKNOWN_TRIPS, name);
            }
            finder.found.instruction = i;
            finder.found.trips = trips;
            loops->loops[count++] = finder.found;
        }
        if (unknown_count > MAX_NAMED)
            am_warn(&module->warnings, "%d more loops have no known trip count", unknown_count - MAX_NAMED);
        arena_free(&scratch);
    }
    module->loops = loops;
    return AM_OK;
}

/* Orders loops by their instruction; `key` is a number of an instruction. */
static int compare_loop(const void *key, const void *loop) {
    int32_t wanted = *(const int32_t *)key, found = ((const IrLoop *)loop)->instruction;
    return (wanted > found) - (wanted < found);
}

const IrLoop *ir_loop(const IrModule *module, int32_t instruction) {
    if (!module->loops) return NULL;
    const IrLoop *loops = module->loops->loops;
    int32_t at = lower_bound(&instruction, loops, module->loops->loop_count, sizeof *loops, compare_loop);
    bool found = at < module->loops->loop_count && loops[at].instruction == instruction;
    return found ? &loops[at] : NULL;
}

int64_t ir_loop_trips(const IrModule *module, int32_t instruction) {
    const IrLoop *loop = ir_loop(module, instruction);
    return loop ? loop->trips : IR_TRIPS_UNKNOWN;
}

AmStatus ir_copy_layers(IrModule *module, const IrModule *from, const int32_t *origins, const IrPhase *phases,
                        AmError *error) {
    int32_t count = module->instruction_count;
    if (!from->loops || !from->loops->layers) return AM_OK;
    int32_t *layers = ARENA_ARRAY(&module->arena, int32_t, count + 1);
    int32_t *layer = ARENA_ARRAY(&module->arena, int32_t, count + 1);
    int32_t *place = ARENA_ARRAY(&module->arena, int32_t, count + 1);
    bool *is_beside = ARENA_ARRAY(&module->arena, bool, count + 1);
    IrLoops *loops = ARENA_ARRAY(&module->arena, IrLoops, 1);
    if (module->arena.failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) {
        layers[i] = ir_layers_of(from, origins[i]);
        layer[i] = from->loops->layer[origins[i]];
        place[i] = from->loops->place[origins[i]];
        is_beside[i] = from->loops->is_beside[origins[i]];
    }
    *loops = *module->loops;
    loops->layers = layers;
    loops->layer = layer;
    loops->layer_count = from->loops->layer_count;
    loops->place = place;
    loops->place_count = from->loops->place_count;
    loops->phases = phases;
    loops->is_beside = is_beside;
    module->loops = loops;
    return AM_OK;
}

int32_t ir_represented(const IrModule *module) {
    int64_t count = 0;
    for (int32_t i = 0; i < module->instruction_count; i++) count += ir_layers_of(module, i);
    return count < INT32_MAX ? (int32_t)count : INT32_MAX;
}
