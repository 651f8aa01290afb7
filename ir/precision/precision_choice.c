/* Choice of types, by data flow between values.
 *
 * 1. collect() gives each value a kind, and lists the flows: value `from` is read to make value `to`. Other
 *    readers only mark the value that they read as read in f32 or in bf16.
 * 2. Marks spread along the flows, each in linear time:
 *    unsafe        follows from something other than products, weights and constants
 *    is_wanted     a product reads it, directly or through computed and moved values
 *    is_wide       moved elements that were f32 before
 *    is_read_wide  some reader of a moved value needs f32
 * 3. A computed value is bf16 if it is safe and wanted. A moved one is bf16 if its sources are, and also if
 *    it is wanted and all its readers read bf16.
 * A weight that a loop updates is read in f32 by its update, which is of the optimizer, and so stays f32.
 */
#include "ir/precision/precision_choice.h"

#include <math.h>
#include <string.h>

#include "base/union_find.h"
#include "ir/hlo.pb-c.h"

enum { NO_READER = -1, SEVERAL = -2 };

/* A flow between roots. */
typedef struct Flow {
    int32_t from, to;
} Flow;

/* Flows by one of their ends. */
typedef struct FlowList {
    int32_t *first; /* [value + 1] */
    int32_t *other; /* [flow]: the other end */
} FlowList;

typedef struct Chooser {
    PrecisionChoice *choice;
    const IrModule *module; /* of the choice */
    Arena scratch;
    Flow *flows;
    int32_t flow_count, flow_capacity;
    FlowList readers, sources;
    int32_t *stack;        /* [value] */
    const IrShape *summed; /* the tuple whose leaves `sums` counts */
    int32_t *sums, sum_capacity;
    bool *is_weight;  /* [value]: a parameter that is a weight */
    bool *is_inexact; /* [value]: it must not follow from integers or other types */
    bool *reads_f32;  /* [value]: some reader without a flow needs f32 */
    bool *reads_bf16; /* [value]: a product, or a conversion of the source, reads bf16 */
    int32_t *reader;  /* [instruction]: its only reader, or SEVERAL */
    bool *is_called;  /* [computation]: by other operators than loops and conditionals */
    bool *unsafe, *is_wanted, *is_wide, *is_read_wide;
} Chooser;

int32_t precision_leaf_count(const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) return 1;
    int32_t count = 0;
    for (int32_t k = 0; k < shape->rank; k++) count += precision_leaf_count(&shape->elements[k]);
    return count;
}

/* Returns the number of leaves before element k of a tuple. The sums of the last tuple are kept: elements of
 * one tuple follow one another. */
static int32_t leaves_before(Chooser *self, const IrShape *tuple, int64_t k) {
    if (self->summed != tuple) {
        if (self->sum_capacity <= tuple->rank) {
            self->sum_capacity = 2 * tuple->rank + 8;
            self->sums = ARENA_ARRAY(&self->scratch, int32_t, self->sum_capacity);
            if (!self->sums) return 0;
        }
        self->sums[0] = 0;
        for (int32_t e = 0; e < tuple->rank; e++)
            self->sums[e + 1] = self->sums[e] + precision_leaf_count(&tuple->elements[e]);
        self->summed = tuple;
    }
    return self->sums[k];
}

int32_t precision_value(const PrecisionChoice *choice, int32_t instruction, int32_t leaf) {
    return union_find_root(choice->set, choice->first[instruction] + leaf);
}

/* Returns whether a dot product sums several elements for several results. Others, such as the outer product
 * of positions and frequencies, do no more work than an element-wise operator, and gain nothing in bf16. */
static bool sums_for_several(const IrInstruction *product, const IrShape *lhs) {
    const IrDot *dot = product->attributes->dot;
    bool sums = false;
    for (int32_t k = 0; k < dot->contracting_count; k++) sums |= lhs->dimensions[dot->lhs_contracting[k]] > 1;
    return sums && ir_shape_elements(&product->shape) > 1;
}

bool precision_is_product(const PrecisionChoice *choice, int32_t i) {
    const IrInstruction *instruction = &choice->module->instructions[i];
    const IrInstruction *all = choice->module->instructions;
    bool is_product = ir_is_product(instruction->opcode) || instruction->opcode == IR_RAGGED_DOT;
    if (instruction->opcode == IR_DOT && !sums_for_several(instruction, &all[instruction->operands[0]].shape))
        return false;
    return is_product && precision_is_f32(&instruction->shape) &&
           precision_is_f32(&all[instruction->operands[0]].shape) &&
           precision_is_f32(&all[instruction->operands[1]].shape) &&
           choice->roles->phases[i] != IR_PHASE_OPTIMIZER;
}

/* ---- values ---- */

static bool passes_values(IrOpcode opcode) {
    return opcode == IR_WHILE || opcode == IR_CONDITIONAL;
}

/* Marks the computations that are rewritten, and those that other operators call. */
static void find_computations(Chooser *self) {
    PrecisionChoice *choice = self->choice;
    const IrModule *module = choice->module;
    choice->is_rewritten[module->entry] = true;
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (int32_t c = 0; c < module->computation_count; c++)
            for (int32_t n = 0; choice->is_rewritten[c] && n < module->computations[c].count; n++) {
                const IrInstruction *caller = &module->instructions[module->computations[c].first + n];
                for (int32_t k = 0; passes_values(caller->opcode) && k < caller->called_count; k++) {
                    goes_on |= !choice->is_rewritten[caller->called[k]];
                    choice->is_rewritten[caller->called[k]] = true;
                }
            }
    }
    for (int32_t c = 0; c < module->computation_count; c++)
        for (int32_t n = 0; n < module->computations[c].count; n++) {
            const IrInstruction *caller = &module->instructions[module->computations[c].first + n];
            bool is_rewritten = choice->is_rewritten[c] && passes_values(caller->opcode);
            for (int32_t k = 0; !is_rewritten && k < caller->called_count; k++)
                self->is_called[caller->called[k]] = true;
        }
}

static void mark_f32(bool *is_f32, int32_t *value, const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) is_f32[(*value)++] = precision_is_f32(shape);
    for (int32_t k = 0; shape->type == DTYPE_TUPLE && k < shape->rank; k++)
        mark_f32(is_f32, value, &shape->elements[k]);
}

/* Numbers the values of the rewritten computations. */
static AmStatus number_values(Chooser *self, AmError *error) {
    PrecisionChoice *choice = self->choice;
    const IrModule *module = choice->module;
    int64_t count = 0;
    choice->first = ARENA_ARRAY(choice->arena, int32_t, module->instruction_count + 1);
    if (!choice->first) return am_fail_memory(error, module->instruction_count);
    for (int32_t c = 0; c < module->computation_count; c++)
        for (int32_t k = 0; k < module->computations[c].count; k++) {
            int32_t i = module->computations[c].first + k;
            choice->first[i] = (int32_t)count;
            if (choice->is_rewritten[c]) count += precision_leaf_count(&module->instructions[i].shape);
            if (count >= INT32_MAX / 2) return am_fail_memory(error, count);
        }
    choice->value_count = (int32_t)count;
    choice->set = ARENA_ARRAY(choice->arena, int32_t, count + 1);
    choice->kinds = ARENA_ARRAY(choice->arena, ValueKind, count + 1);
    choice->is_f32 = ARENA_ARRAY(choice->arena, bool, count + 1);
    choice->is_bf16 = ARENA_ARRAY(choice->arena, bool, count + 1);
    choice->is_bf16_reader = ARENA_ARRAY(choice->arena, bool, module->instruction_count + 1);
    bool **marks[] = {&self->is_weight, &self->is_inexact, &self->reads_f32, &self->reads_bf16,
                      &self->unsafe,    &self->is_wanted,  &self->is_wide,   &self->is_read_wide};
    for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
        *marks[k] = ARENA_ARRAY(&self->scratch, bool, count + 1);
    self->stack = ARENA_ARRAY(&self->scratch, int32_t, count + 1);
    if (choice->arena->failed || self->scratch.failed) return am_fail_memory(error, count);
    union_find_begin(choice->set, (int32_t)count);
    for (int32_t c = 0; c < module->computation_count; c++)
        for (int32_t k = 0; choice->is_rewritten[c] && k < module->computations[c].count; k++) {
            int32_t i = module->computations[c].first + k, value = choice->first[i];
            mark_f32(choice->is_f32, &value, &module->instructions[i].shape);
        }
    return AM_OK;
}

/* Joins the leaves of an instruction with as many of another, from leaf `leaf` on. */
static void join_leaves(Chooser *self, int32_t a, int32_t b, int32_t leaf) {
    PrecisionChoice *choice = self->choice;
    int32_t count = precision_leaf_count(&choice->module->instructions[a].shape);
    for (int32_t k = 0; k < count; k++)
        union_find_join(choice->set, choice->first[a] + k, choice->first[b] + leaf + k);
}

static void join_loop(Chooser *self, int32_t i) {
    const IrModule *module = self->module;
    const IrInstruction *loop = &module->instructions[i];
    const IrComputation *body = &module->computations[loop->called[0]];
    const IrComputation *condition = &module->computations[loop->called[1]];
    join_leaves(self, i, loop->operands[0], 0);
    join_leaves(self, i, body->parameters[0], 0);
    join_leaves(self, i, body->root, 0);
    join_leaves(self, i, condition->parameters[0], 0);
}

static void join_branches(Chooser *self, int32_t i) {
    const IrModule *module = self->module;
    const IrInstruction *conditional = &module->instructions[i];
    for (int32_t k = 0; k < conditional->called_count; k++) {
        const IrComputation *branch = &module->computations[conditional->called[k]];
        int32_t operand = conditional->operands[k + 1];
        if (module->instructions[operand].shape.type == DTYPE_TUPLE)
            join_leaves(self, operand, branch->parameters[0], 0);
        if (conditional->shape.type == DTYPE_TUPLE) join_leaves(self, i, branch->root, 0);
    }
}

/* Joins the leaves that are one array: nothing is converted between them. */
static void join_values(Chooser *self) {
    const IrModule *module = self->module;
    for (int32_t c = 0; c < module->computation_count; c++)
        for (int32_t n = 0; self->choice->is_rewritten[c] && n < module->computations[c].count; n++) {
            int32_t i = module->computations[c].first + n;
            const IrInstruction *instruction = &module->instructions[i];
            bool is_tuple = instruction->shape.type == DTYPE_TUPLE;
            if (instruction->opcode == IR_GET_TUPLE_ELEMENT) {
                const IrShape *tuple = &module->instructions[instruction->operands[0]].shape;
                join_leaves(self, i, instruction->operands[0],
                            leaves_before(self, tuple, instruction->attributes->tuple_index));
            } else if (instruction->opcode == IR_TUPLE) {
                int32_t leaf = 0;
                for (int32_t k = 0; k < instruction->operand_count; k++) {
                    const IrShape *element = &instruction->shape.elements[k];
                    if (element->type == DTYPE_TUPLE) join_leaves(self, instruction->operands[k], i, leaf);
                    leaf += precision_leaf_count(element);
                }
            } else if (instruction->opcode == IR_OPT_BARRIER && is_tuple) {
                join_leaves(self, i, instruction->operands[0], 0);
            } else if (instruction->opcode == IR_WHILE && is_tuple) {
                join_loop(self, i);
            } else if (instruction->opcode == IR_CONDITIONAL) {
                join_branches(self, i);
            }
        }
}

/* ---- kinds and flows ---- */

static void add_flow(Chooser *self, int32_t from, int32_t to) {
    ARENA_RESERVE(&self->scratch, self->flows, self->flow_count, self->flow_capacity);
    if (!self->scratch.failed && from != to) self->flows[self->flow_count++] = (Flow){from, to};
}

static void set_kind(Chooser *self, int32_t i, ValueKind kind) {
    self->choice->kinds[precision_value(self->choice, i, 0)] = kind;
}

static void fix(Chooser *self, int32_t i) {
    int32_t count = precision_leaf_count(&self->module->instructions[i].shape);
    for (int32_t k = 0; k < count; k++)
        self->choice->kinds[precision_value(self->choice, i, k)] = VALUE_FIXED;
}

/* Marks the arrays that instruction i reads; leaves of tuples that it reads keep their types. */
static void read_operands(Chooser *self, int32_t i, bool *reads) {
    const IrInstruction *instruction = &self->module->instructions[i];
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k];
        if (self->module->instructions[operand].shape.type == DTYPE_TUPLE) fix(self, operand);
        else reads[precision_value(self->choice, operand, 0)] = true;
    }
}

/* Adds flows from the f32 operands of instruction i to its value. */
static void flow_operands(Chooser *self, int32_t i) {
    const PrecisionChoice *choice = self->choice;
    const IrInstruction *instruction = &choice->module->instructions[i];
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k];
        if (precision_is_f32(&choice->module->instructions[operand].shape))
            add_flow(self, precision_value(choice, operand, 0), precision_value(choice, i, 0));
    }
}

static void keep_f32(Chooser *self, int32_t i) {
    fix(self, i);
    read_operands(self, i, self->reads_f32);
}

static void collect_conversion(Chooser *self, int32_t i) {
    const IrModule *module = self->module;
    const IrInstruction *instruction = &module->instructions[i];
    Dtype from = module->instructions[instruction->operands[0]].shape.type, to = instruction->shape.type;
    if (to != DTYPE_F32) {
        fix(self, i);
        read_operands(self, i, to == DTYPE_BF16 && from == DTYPE_F32 ? self->reads_bf16 : self->reads_f32);
    } else if (from == DTYPE_BF16) {
        set_kind(self, i, VALUE_WIDENED);
    } else if (from == DTYPE_F32) {
        flow_operands(self, i);
    } else if (from != DTYPE_PRED && !dtype_is_integer(from)) {
        keep_f32(self, i);
    } else {
        self->is_inexact[precision_value(self->choice, i, 0)] = from != DTYPE_PRED;
    }
}

/* Returns whether a finite element of the literal would be infinite in bf16. */
static bool overflows(const IrInstruction *constant) {
    const float *elements = constant->literal->data;
    int64_t count = ir_shape_elements(&constant->shape);
    for (int64_t k = 0; k < count; k++)
        if (isfinite(elements[k]) && isinf(dtype_bf16_to_float(dtype_float_to_bf16(elements[k]))))
            return true;
    return false;
}

/* Returns whether a constant, or the broadcast of a constant, can be made in both types. Constants come
 * before their broadcasts. */
static bool is_constant(const Chooser *self, const IrInstruction *instruction) {
    if (!precision_is_f32(&instruction->shape) || instruction->control_count > 0 ||
        instruction->message->sharding)
        return false;
    if (instruction->opcode == IR_BROADCAST)
        return self->choice->kinds[precision_value(self->choice, instruction->operands[0], 0)] ==
               VALUE_CONSTANT;
    return instruction->opcode == IR_CONSTANT && instruction->literal && instruction->literal->data &&
           !overflows(instruction);
}

/* Returns the f32 number that a constant, or the broadcast of one, has in every element; else NULL. */
static const float *number_of(const IrModule *module, int32_t i) {
    const IrInstruction *constant = &module->instructions[i];
    if (constant->opcode == IR_BROADCAST) constant = &module->instructions[constant->operands[0]];
    bool is_number = constant->opcode == IR_CONSTANT && precision_is_f32(&constant->shape) &&
                     constant->shape.rank == 0 && constant->literal;
    return is_number ? constant->literal->data : NULL;
}

static AmStatus find_readers(Chooser *self, AmError *error) {
    const IrModule *module = self->module;
    self->reader = ARENA_ARRAY(&self->scratch, int32_t, module->instruction_count + 1);
    if (!self->reader) return am_fail_memory(error, module->instruction_count);
    for (int32_t i = 0; i < module->instruction_count; i++) self->reader[i] = NO_READER;
    for (int32_t i = 0; i < module->instruction_count; i++)
        for (int32_t k = 0; k < module->instructions[i].operand_count; k++) {
            int32_t *reader = &self->reader[module->instructions[i].operands[k]];
            *reader = *reader == NO_READER || *reader == i ? i : SEVERAL;
        }
    return AM_OK;
}

/* Returns whether the exponential is that of 1 / (1 + exp(-x)), as JAX writes the logistic function. In bf16
 * the quotient has the error of a few roundings: the sum is at least 1, and infinity gives 0. */
static bool is_of_logistic(const Chooser *self, int32_t i) {
    const IrModule *module = self->module;
    if (module->instructions[i].opcode != IR_EXPONENTIAL || self->reader[i] < 0) return false;
    const IrInstruction *sum = &module->instructions[self->reader[i]];
    if (sum->opcode != IR_ADD || self->reader[self->reader[i]] < 0) return false;
    const float *one = number_of(module, sum->operands[sum->operands[0] == i]);
    const IrInstruction *quotient = &module->instructions[self->reader[self->reader[i]]];
    return one && *one == 1 && quotient->opcode == IR_DIVIDE && quotient->operands[1] == self->reader[i] &&
           quotient->operands[0] != quotient->operands[1];
}

static void collect_array(Chooser *self, int32_t i) {
    PrecisionChoice *choice = self->choice;
    const IrModule *module = choice->module;
    const IrInstruction *instruction = &module->instructions[i];
    IrOpcode opcode = instruction->opcode;
    bool is_f32 = precision_is_f32(&instruction->shape);
    bool reads_f32 = instruction->operand_count > 0 &&
                     precision_is_f32(&module->instructions[instruction->operands[0]].shape);
    if (is_constant(self, instruction)) {
        set_kind(self, i, VALUE_CONSTANT);
    } else if (precision_is_product(choice, i)) {
        set_kind(self, i, VALUE_PRODUCT);
        read_operands(self, i, self->reads_bf16);
    } else if (opcode == IR_CONVERT) {
        collect_conversion(self, i);
    } else if (is_f32 && (ir_opcode_has(opcode, FACT_16BIT_SAFE) || is_of_logistic(self, i)) &&
               choice->roles->phases[i] != IR_PHASE_OPTIMIZER) {
        set_kind(self, i, VALUE_COMPUTED);
        flow_operands(self, i);
    } else if (is_f32 && reads_f32 && opcode == IR_GATHER) {
        set_kind(self, i, VALUE_GATHERED);
        flow_operands(self, i);
    } else if (is_f32 && reads_f32 && ir_opcode_has(opcode, FACT_MOVES)) {
        flow_operands(self, i);
    } else {
        keep_f32(self, i);
    }
}

static void collect_tuple(Chooser *self, int32_t i) {
    const PrecisionChoice *choice = self->choice;
    const IrInstruction *instruction = &choice->module->instructions[i];
    int32_t leaf = 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrShape *element = &instruction->shape.elements[k];
        if (element->type != DTYPE_TUPLE)
            add_flow(self, precision_value(choice, instruction->operands[k], 0),
                     precision_value(choice, i, leaf));
        leaf += precision_leaf_count(element);
    }
}

static void collect_loop(Chooser *self, int32_t i) {
    const PrecisionChoice *choice = self->choice;
    const IrInstruction *loop = &choice->module->instructions[i];
    if (loop->shape.type == DTYPE_TUPLE) return; /* its leaves are joined */
    keep_f32(self, i);
    for (int32_t k = 0; k < loop->called_count; k++)
        fix(self, choice->module->computations[loop->called[k]].parameters[0]);
}

static void collect_conditional(Chooser *self, int32_t i) {
    const PrecisionChoice *choice = self->choice;
    const IrModule *module = choice->module;
    const IrInstruction *conditional = &module->instructions[i];
    if (conditional->shape.type != DTYPE_TUPLE) fix(self, i);
    for (int32_t k = 0; k < conditional->called_count; k++) {
        int32_t operand = conditional->operands[k + 1];
        if (module->instructions[operand].shape.type == DTYPE_TUPLE) continue;
        self->reads_f32[precision_value(choice, operand, 0)] = true;
        fix(self, module->computations[conditional->called[k]].parameters[0]);
    }
}

static void collect_instruction(Chooser *self, int32_t i) {
    const IrInstruction *instruction = &self->module->instructions[i];
    bool is_tuple = instruction->shape.type == DTYPE_TUPLE;
    switch (instruction->opcode) {
    case IR_PARAMETER: /* by its callers */
    case IR_GET_TUPLE_ELEMENT: break;
    case IR_TUPLE: collect_tuple(self, i); break;
    case IR_WHILE: collect_loop(self, i); break;
    case IR_CONDITIONAL: collect_conditional(self, i); break;
    case IR_OPT_BARRIER:
        if (!is_tuple) flow_operands(self, i);
        break;
    default:
        if (is_tuple) keep_f32(self, i);
        else collect_array(self, i);
    }
}

/* Kinds of the parameters and the result of the entry, and of computations that other operators call. */
static void collect_borders(Chooser *self) {
    const PrecisionChoice *choice = self->choice;
    const IrModule *module = choice->module;
    for (int32_t c = 0; c < module->computation_count; c++) {
        const IrComputation *computation = &module->computations[c];
        if (!choice->is_rewritten[c]) continue;
        /* An array is converted where it is the result, the leaves of a tuple where they enter it. */
        if (module->instructions[computation->root].shape.type != DTYPE_TUPLE)
            self->reads_f32[precision_value(choice, computation->root, 0)] = true;
        if (c != module->entry && !self->is_called[c]) continue;
        if (module->instructions[computation->root].shape.type == DTYPE_TUPLE) fix(self, computation->root);
        for (int32_t k = 0; k < computation->parameter_count; k++) fix(self, computation->parameters[k]);
    }
    for (int32_t p = 0; p < choice->roles->parameter_count; p++) {
        const IrParameter *parameter = &choice->roles->parameters[p];
        if (module->instructions[parameter->instruction].shape.type != DTYPE_TUPLE)
            self->is_weight[precision_value(choice, parameter->instruction, 0)] =
                parameter->role == IR_ROLE_WEIGHT;
    }
}

/* ---- spreading ---- */

static AmStatus list_flows(Chooser *self, FlowList *list, bool by_source, AmError *error) {
    int32_t values = self->choice->value_count;
    list->first = ARENA_ARRAY(&self->scratch, int32_t, values + 2);
    list->other = ARENA_ARRAY(&self->scratch, int32_t, self->flow_count + 1);
    if (self->scratch.failed) return am_fail_memory(error, self->flow_count);
    for (int32_t k = 0; k < self->flow_count; k++)
        list->first[(by_source ? self->flows[k].from : self->flows[k].to) + 2]++;
    for (int32_t v = 0; v < values; v++) list->first[v + 2] += list->first[v + 1];
    for (int32_t k = 0; k < self->flow_count; k++) {
        int32_t end = by_source ? self->flows[k].from : self->flows[k].to;
        list->other[list->first[end + 1]++] = by_source ? self->flows[k].to : self->flows[k].from;
    }
    return AM_OK;
}

static bool is_moved(const Chooser *self, int32_t value) {
    ValueKind kind = self->choice->kinds[value];
    return kind == VALUE_MOVED || kind == VALUE_GATHERED;
}

static bool is_made_of_operands(const Chooser *self, int32_t value) {
    return is_moved(self, value) || self->choice->kinds[value] == VALUE_COMPUTED;
}

static bool passes_wants(const Chooser *self, int32_t value) {
    return is_moved(self, value) || (self->choice->kinds[value] == VALUE_COMPUTED && !self->unsafe[value]);
}

static bool passes_all(const Chooser *self, int32_t value) {
    (void)self, (void)value;
    return true;
}

/* Spreads a mark along the flows of `list`, from values that leave() accepts to those that enter()
 * accepts. */
static void spread_mark(Chooser *self, bool *is_marked, const FlowList *list,
                        bool (*leave)(const Chooser *, int32_t), bool (*enter)(const Chooser *, int32_t)) {
    int32_t depth = 0;
    for (int32_t v = 0; v < self->choice->value_count; v++)
        if (is_marked[v]) self->stack[depth++] = v;
    while (depth > 0) {
        int32_t v = self->stack[--depth];
        for (int32_t k = list->first[v]; leave(self, v) && k < list->first[v + 1]; k++) {
            int32_t other = list->other[k];
            if (is_marked[other] || !enter(self, other)) continue;
            is_marked[other] = true;
            self->stack[depth++] = other;
        }
    }
}

/* Returns whether some source of a moved value is no constant. */
static bool has_source(const Chooser *self, int32_t value) {
    for (int32_t k = self->sources.first[value]; k < self->sources.first[value + 1]; k++)
        if (self->choice->kinds[self->sources.other[k]] != VALUE_CONSTANT) return true;
    return false;
}

static bool has_wide_reader(const Chooser *self, int32_t value) {
    if (self->reads_f32[value]) return true;
    for (int32_t k = self->readers.first[value]; k < self->readers.first[value + 1]; k++) {
        int32_t reader = self->readers.other[k];
        if (!is_moved(self, reader) && !self->choice->is_bf16[reader]) return true;
    }
    return false;
}

static void choose_values(Chooser *self) {
    PrecisionChoice *choice = self->choice;
    int32_t count = choice->value_count;
    for (int32_t v = 0; v < count; v++) {
        ValueKind kind = choice->kinds[v];
        self->unsafe[v] =
            (kind == VALUE_FIXED && !self->is_weight[v]) || kind == VALUE_WIDENED || self->is_inexact[v];
        self->is_wanted[v] = self->reads_bf16[v];
    }
    spread_mark(self, self->unsafe, &self->readers, passes_all, is_made_of_operands);
    spread_mark(self, self->is_wanted, &self->sources, passes_wants, passes_all);
    for (int32_t v = 0; v < count; v++) {
        ValueKind kind = choice->kinds[v];
        bool is_safe = kind == VALUE_COMPUTED && !self->unsafe[v] && self->is_wanted[v];
        choice->is_bf16[v] = choice->is_f32[v] && (kind == VALUE_PRODUCT || kind == VALUE_WIDENED || is_safe);
        self->is_wide[v] = kind == VALUE_FIXED || (kind == VALUE_COMPUTED && !is_safe) ||
                           (is_moved(self, v) && !has_source(self, v));
    }
    spread_mark(self, self->is_wide, &self->readers, passes_all, is_moved);
    for (int32_t v = 0; v < count; v++)
        self->is_read_wide[v] = is_moved(self, v) && (!self->is_wanted[v] || has_wide_reader(self, v));
    spread_mark(self, self->is_read_wide, &self->sources, passes_all, is_moved);
    for (int32_t v = 0; v < count; v++)
        if (choice->is_f32[v] && choice->kinds[v] == VALUE_MOVED)
            choice->is_bf16[v] = !self->is_wide[v] || !self->is_read_wide[v];
    /* Gathered rows are in bf16 if their table has another reader in bf16, and thus a conversion. */
    for (int32_t v = 0; v < choice->value_count; v++)
        for (int32_t k = self->sources.first[v]; choice->is_bf16[v] && k < self->sources.first[v + 1]; k++)
            self->reads_bf16[self->sources.other[k]] = true;
    for (int32_t v = 0; v < choice->value_count; v++) {
        if (!choice->is_f32[v] || choice->kinds[v] != VALUE_GATHERED) continue;
        int32_t table = self->sources.other[self->sources.first[v]];
        choice->is_bf16[v] = !self->is_wide[v] || (!self->is_read_wide[v] && self->reads_bf16[table]);
    }
}

/* Returns whether instruction i is one number in all elements, and a number of bf16. */
static bool is_exact(const IrModule *module, int32_t i) {
    const float *number = number_of(module, i);
    return number && dtype_bf16_to_float(dtype_float_to_bf16(*number)) == *number;
}

/* Marks comparisons of values that are bf16 with one another, or with constants. */
static void choose_comparisons(PrecisionChoice *choice) {
    const IrModule *module = choice->module;
    for (int32_t c = 0; c < module->computation_count; c++)
        for (int32_t n = 0; choice->is_rewritten[c] && n < module->computations[c].count; n++) {
            int32_t i = module->computations[c].first + n;
            const IrInstruction *instruction = &module->instructions[i];
            bool has_bf16 = false, has_other = false;
            if (instruction->opcode != IR_COMPARE) continue;
            for (int32_t k = 0; k < instruction->operand_count; k++) {
                int32_t value = precision_value(choice, instruction->operands[k], 0);
                has_bf16 |= choice->is_bf16[value];
                has_other |= !choice->is_bf16[value] && (choice->kinds[value] != VALUE_CONSTANT ||
                                                         !is_exact(module, instruction->operands[k]));
            }
            choice->is_bf16_reader[i] = has_bf16 && !has_other;
        }
}

AmStatus precision_choose(PrecisionChoice *choice, Arena *arena, const IrModule *canonical,
                          const IrRoles *roles, AmError *error) {
    *choice = (PrecisionChoice){.module = canonical, .roles = roles, .arena = arena};
    Chooser self = {.choice = choice, .module = canonical};
    AmStatus status = AM_OK;
    self.is_called = ARENA_ARRAY(&self.scratch, bool, canonical->computation_count + 1);
    choice->is_rewritten = ARENA_ARRAY(arena, bool, canonical->computation_count + 1);
    if (!self.is_called || !choice->is_rewritten)
        TRY_OR_FAIL(am_fail_memory(error, canonical->computation_count));
    find_computations(&self);
    TRY_OR_FAIL(number_values(&self, error));
    join_values(&self);
    TRY_OR_FAIL(find_readers(&self, error));
    if (self.scratch.failed) TRY_OR_FAIL(am_fail_memory(error, choice->value_count));
    for (int32_t c = 0; c < canonical->computation_count; c++)
        for (int32_t n = 0; choice->is_rewritten[c] && n < canonical->computations[c].count; n++)
            collect_instruction(&self, canonical->computations[c].first + n);
    collect_borders(&self);
    TRY_OR_FAIL(list_flows(&self, &self.readers, true, error));
    TRY_OR_FAIL(list_flows(&self, &self.sources, false, error));
    choose_values(&self);
    choose_comparisons(choice);
fail:
    arena_free(&self.scratch);
    return status;
}
