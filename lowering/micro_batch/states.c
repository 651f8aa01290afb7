/* States over time, forward from the data's batch dimensions.
 *
 * An operator with split operands splits their common factor; replicated operands are sliced to
 * match, which costs nothing. Without a common factor it uses its operands in full: data are full
 * before the iterations, and the parts of other values are concatenated after them (levels.c
 * decides whether that is in time). Partial sums are reduced at their definition, unless their only
 * user is linear and no larger. In the body of a loop no sum can be reduced, so that every user of
 * a partial sum there must be linear. Loops are fixed points: an array that starts replicated may
 * become split, one that starts at zero partial.
 */
#include <math.h>

#include "lowering/micro_batch/micro_batch_rewrite.h"
#include "propagation/rules/rules_builder.h"

/* The limit of visited instructions in the fixed points of loops, per instruction of the module. */
#define STEPS_PER_INSTRUCTION 64

static const MicroBatchState full = {.kind = TIME_FULL};

bool micro_batch_forwards_values(const MicroBatchRewrite *self, int32_t i) {
    IrOpcode opcode = self->module->instructions[i].opcode;
    return self->rules->rules[i].result_count == 0 && micro_batch_given_count(self, i) == 0 &&
           opcode != IR_PARAMETER;
}

bool micro_batch_is_reader(const MicroBatchRewrite *self, int32_t i) {
    IrOpcode opcode = self->module->instructions[i].opcode;
    return opcode == IR_PARAMETER || opcode == IR_GET_TUPLE_ELEMENT;
}

int32_t micro_batch_given_count(const MicroBatchRewrite *self, int32_t i) {
    const PlannedLoop *loop = rules_loop(self->rules, i);
    const PlannedConditional *conditional = rules_conditional(self->rules, i);
    return loop ? loop->leaf_count : conditional ? conditional->result_count : 0;
}

int32_t micro_batch_given_reader(const MicroBatchRewrite *self, int32_t i, int32_t leaf) {
    const PlannedLoop *loop = rules_loop(self->rules, i);
    return loop ? loop->leaves[leaf].afterwards : rules_conditional(self->rules, i)->afterwards[leaf];
}

void micro_batch_operand(const MicroBatchRewrite *self, int32_t i, int32_t k, int32_t leaf, int32_t *producer,
                         int32_t *producer_leaf) {
    int32_t operand = self->module->instructions[i].operands[k];
    *producer = operand;
    *producer_leaf = leaf;
    if (self->module->instructions[operand].shape.type == DTYPE_TUPLE) {
        rules_find_value(self->rules, producer, producer_leaf);
        return;
    }
    *producer = self->rules->alias[operand];
    *producer_leaf = *producer == operand ? 0 : self->rules->leaf[operand];
}

int32_t micro_batch_operand_leaves(const MicroBatchRewrite *self, int32_t i, int32_t k) {
    return rules_leaf_count(&self->module->instructions[self->module->instructions[i].operands[k]].shape);
}

AmStatus micro_batch_refuse(const MicroBatchRewrite *self, int32_t i, const char *why, const char *allow,
                            AmError *error) {
    const IrInstruction *at = &self->module->instructions[i];
    const char *name = *at->op_name ? at->op_name : at->name;
    Text text = {0};
    bool is_for_replicas = self->settings.replicas.count > 0;
    text_append(&text, "cannot be split exactly into %d %s: %s \"%.200s\"", self->settings.micro_batches,
                is_for_replicas ? "parts" : "micro-batches", ir_opcode_name(at->opcode), name);
    if (*at->source_file) text_append(&text, " (%.200s:%d)", at->source_file, (int)at->source_line);
    text_append(&text, " %s", why);
    if (allow && !is_for_replicas && !plan_context_primary(self->context)->keeps_examples_apart)
        text_append(&text, "; --relax %s would allow it", allow);
    AmStatus status = text.failed
                          ? am_fail_memory(error, 0)
                          : am_fail(error, AM_ERROR_INFEASIBLE, self->module->source, "%s", text.data);
    text_free(&text);
    return status;
}

/* ---- one operator ---- */

typedef struct Operands {
    bool has_split, has_partial;
} Operands;

static Operands describe_operands(const MicroBatchRewrite *self, int32_t i) {
    const IrInstruction *instruction = &self->module->instructions[i];
    Operands found = {0};
    for (int32_t k = 0; k < instruction->operand_count; k++)
        for (int32_t leaf = 0; leaf < micro_batch_operand_leaves(self, i, k); leaf++) {
            int32_t producer, producer_leaf;
            micro_batch_operand(self, i, k, leaf, &producer, &producer_leaf);
            MicroBatchKind kind = micro_batch_state(self, producer, producer_leaf)->kind;
            found.has_split |= kind == TIME_SPLIT;
            found.has_partial |= kind == TIME_PARTIAL;
        }
    return found;
}

bool micro_batch_reshape(MicroBatchState *to, const IrShape *to_shape, MicroBatchState state,
                         const IrShape *shape, int64_t iterations) {
    int64_t unit = state.unit, minor = 1;
    for (int32_t d = state.dimension + 1; d < shape->rank; d++) unit *= shape->dimensions[d];
    for (int32_t d = to_shape->rank - 1; d >= 0; d--) {
        int64_t size = to_shape->dimensions[d];
        if (size > 1 && unit < minor * size) {
            if (unit % minor != 0 || size % (unit / minor * iterations) != 0) return false;
            *to = (MicroBatchState){.kind = TIME_SPLIT, .dimension = d, .unit = unit / minor};
            return true;
        }
        minor *= size;
    }
    return false;
}

bool micro_batch_factor_usable(const MicroBatchRewrite *self, int32_t i, const Factor *factor) {
    const FactorRule *rule = &self->rules->rules[i];
    if (factor->kind != FACTOR_PARALLEL && factor->kind != FACTOR_REDUCTION) return false;
    if (factor->indexed || factor->halo) return false;
    for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
        if (factor->dimension[slot] < 0) continue;
        const IrShape *shape = rules_slot_shape(self->rules, i, slot);
        if (shape->type == DTYPE_TUPLE || shape->dimensions[factor->dimension[slot]] != factor->size)
            return false;
    }
    return true;
}

/* Returns whether all split operands are split along the factor, alike; *unit is theirs. */
static bool factor_fits(const MicroBatchRewrite *self, int32_t i, const Factor *factor, int64_t *unit) {
    const IrInstruction *instruction = &self->module->instructions[i];
    *unit = 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t producer, leaf;
        if (instruction->operand_count != self->rules->rules[i].operand_count) return false;
        if (self->module->instructions[instruction->operands[k]].shape.type == DTYPE_TUPLE) return false;
        micro_batch_operand(self, i, k, 0, &producer, &leaf);
        MicroBatchState state = *micro_batch_state(self, producer, leaf);
        if (state.kind != TIME_SPLIT) continue;
        if (factor->dimension[k] != state.dimension || (*unit && *unit != state.unit)) return false;
        *unit = state.unit;
    }
    return *unit > 0;
}

static bool is_plain_reshape(const MicroBatchRewrite *self, int32_t i) {
    const IrInstruction *instruction = &self->module->instructions[i];
    if (instruction->opcode == IR_RESHAPE) return true;
    const IrShape *operand = rules_slot_shape(self->rules, i, 0);
    return instruction->opcode == IR_BITCAST && operand->type == instruction->shape.type &&
           !operand->minor_to_major && !instruction->shape.minor_to_major;
}

/* Returns the state of a slice or pad whose bounds along the split dimension are multiples of the rows of all
 * micro-batches: part m of the result is the slice or pad of part m. False for others. */
static bool split_bounds(const MicroBatchRewrite *self, int32_t i, MicroBatchState *state) {
    const IrInstruction *instruction = &self->module->instructions[i];
    const IrAttributes *attributes = instruction->attributes;
    bool is_slice = instruction->opcode == IR_SLICE;
    int32_t producer, leaf;
    if (!is_slice && instruction->opcode != IR_PAD) return false;
    micro_batch_operand(self, i, 0, 0, &producer, &leaf);
    MicroBatchState held = *micro_batch_state(self, producer, leaf);
    if (held.kind != TIME_SPLIT) return false;
    int32_t d = held.dimension;
    int64_t rows = held.unit * self->settings.micro_batches;
    int64_t low = is_slice ? attributes->slice_start[d] : attributes->padding[d].low;
    int64_t high = is_slice ? attributes->slice_limit[d] : attributes->padding[d].high;
    bool is_dense = is_slice ? attributes->slice_stride[d] == 1 : attributes->padding[d].interior == 0;
    if (!is_dense || low % rows != 0 || high % rows != 0 || instruction->shape.dimensions[d] == 0)
        return false;
    *state = held;
    return true;
}

/* Splits the common factor of the split operands; false without such a factor. */
static bool split_operator(MicroBatchRewrite *self, int32_t i) {
    const FactorRule *rule = &self->rules->rules[i];
    int64_t unit;
    if (is_plain_reshape(self, i)) {
        int32_t producer, leaf;
        micro_batch_operand(self, i, 0, 0, &producer, &leaf);
        return micro_batch_reshape(micro_batch_state(self, i, 0), rules_slot_shape(self->rules, i, 1),
                                   *micro_batch_state(self, producer, leaf),
                                   rules_slot_shape(self->rules, i, 0), self->settings.micro_batches);
    }
    for (int32_t f = 0; f < rule->factor_count && f <= INT8_MAX; f++) {
        const Factor *factor = &rule->factors[f];
        if (!micro_batch_factor_usable(self, i, factor) || !factor_fits(self, i, factor, &unit)) continue;
        self->factor[i] = (int8_t)f;
        for (int32_t leaf = 0; leaf < rule->result_count; leaf++) {
            int32_t dimension = factor->dimension[rule->operand_count + leaf];
            MicroBatchState *state = micro_batch_state(self, i, leaf);
            if (factor_leaves_partial(factor, rule->operand_count + leaf))
                *state = (MicroBatchState){.kind = TIME_PARTIAL, .reduction = factor->reduction};
            else if (dimension >= 0)
                *state = (MicroBatchState){.kind = TIME_SPLIT, .dimension = dimension, .unit = unit};
            else return false;
        }
        return true;
    }
    return split_bounds(self, i, micro_batch_state(self, i, 0));
}

/* Returns whether i is a view of one result of several. */
static bool is_element_view(const MicroBatchRewrite *self, int32_t i) {
    int32_t producer, leaf;
    if (!is_plain_reshape(self, i)) return false;
    micro_batch_operand(self, i, 0, 0, &producer, &leaf);
    return self->module->instructions[producer].shape.type == DTYPE_TUPLE;
}

/* Returns whether carrying the partial operands is useful: they have no other users. */
static bool is_private(const MicroBatchRewrite *self, int32_t i) {
    double bytes = 0;
    if (is_element_view(self, i)) return true;
    for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
         k++) {
        int32_t producer = self->split_options->operands[k];
        if (micro_batch_state(self, producer, 0)->kind != TIME_PARTIAL) continue;
        if (self->split_options->uses[producer] != 1 || rules_loop(self->rules, producer)) return false;
        bytes += self->split_options->bytes[producer];
    }
    return self->split_options->bytes[i] <= bytes;
}

static AmStatus find_state(MicroBatchRewrite *self, int32_t i, AmError *error) {
    Operands operands = describe_operands(self, i);
    bool in_entry = micro_batch_in_entry(self, i);
    SbpReduction reduction;
    self->factor[i] = -1;
    self->keeps_partial[i] = self->takes_full[i] = false;
    for (int32_t s = self->first_state[i]; s < self->first_state[i + 1]; s++) self->states[s] = full;
    if (operands.has_partial && !(in_entry && operands.has_split) && (!in_entry || is_private(self, i)) &&
        micro_batch_is_linear(self, i, &reduction)) {
        self->keeps_partial[i] = true;
        *micro_batch_state(self, i, 0) = (MicroBatchState){.kind = TIME_PARTIAL, .reduction = reduction};
        return AM_OK;
    }
    if (operands.has_partial && !in_entry)
        return micro_batch_refuse(self, i, "needs a sum over the batch within a loop", NULL, error);
    if (!operands.has_split || split_operator(self, i)) return AM_OK;
    for (int32_t s = self->first_state[i]; s < self->first_state[i + 1]; s++) self->states[s] = full;
    self->factor[i] = -1;
    if (!in_entry)
        return micro_batch_refuse(self, i, "needs all examples of the batch within a loop", NULL, error);
    self->takes_full[i] = true;
    return AM_OK;
}

/* ---- loops ---- */

static AmStatus find_states_of(MicroBatchRewrite *self, int32_t computation, AmError *error);

static bool is_zero(const MicroBatchRewrite *self, int32_t instruction) {
    return self->module->instructions[instruction].shape.type != DTYPE_TUPLE &&
           rule_is_identity(self->module, instruction, SBP_ADD);
}

/* Sets the state of all values that hold array l of the loop. */
static void set_leaf(MicroBatchRewrite *self, const PlannedLoop *loop, int32_t l, MicroBatchState state,
                     bool afterwards) {
    const LoopLeaf *leaf = &loop->leaves[l];
    const int32_t regions[] = {loop->body, loop->condition};
    for (int32_t k = 0; k < 2; k++)
        *micro_batch_state(self, self->module->computations[regions[k]].parameters[0], l) = state;
    if (leaf->in_body >= 0) *micro_batch_state(self, leaf->in_body, 0) = state;
    if (leaf->in_condition >= 0) *micro_batch_state(self, leaf->in_condition, 0) = state;
    if (!afterwards) return;
    *micro_batch_state(self, loop->instruction, l) = state;
    if (leaf->afterwards >= 0) *micro_batch_state(self, leaf->afterwards, 0) = state;
}

/* Joins the state of an array that was `now` with its state `next` after the body. Returns false if they
 * contradict. */
static bool join_states(const MicroBatchRewrite *self, const LoopLeaf *leaf, MicroBatchState *now,
                        MicroBatchState next) {
    if (micro_batch_equal(*now, next)) return true;
    bool stays_full = now->kind == TIME_FULL && next.kind == TIME_FULL;
    bool becomes_sum = now->is_zero && next.kind == TIME_PARTIAL && next.reduction == SBP_ADD;
    if (stays_full) *now = full;
    else if ((now->kind == TIME_FULL && next.kind == TIME_SPLIT) || becomes_sum) *now = next;
    else if (now->kind == TIME_PARTIAL) return next.kind == TIME_FULL && is_zero(self, leaf->next);
    else return now->kind == TIME_SPLIT && next.kind == TIME_FULL;
    return true;
}

static AmStatus find_loop_states(MicroBatchRewrite *self, const PlannedLoop *loop, AmError *error) {
    bool in_entry = micro_batch_in_entry(self, loop->instruction), is_split = false, changed = true;
    MicroBatchState *now = ARENA_ARRAY(self->arena, MicroBatchState, loop->leaf_count + 1);
    if (!now) return am_fail_memory(error, loop->leaf_count);
    for (int32_t l = 0; l < loop->leaf_count; l++) {
        now[l] = *micro_batch_state(self, loop->leaves[l].initial, loop->leaves[l].initial_leaf);
        if (in_entry && now[l].kind == TIME_PARTIAL) now[l] = full;
        const LoopLeaf *leaf = &loop->leaves[l];
        if (now[l].kind == TIME_FULL)
            now[l].is_zero = leaf->initial_leaf == 0 &&
                             self->module->instructions[leaf->initial].shape.type != DTYPE_TUPLE &&
                             rule_is_identity(self->module, leaf->initial, SBP_ADD);
        is_split |= now[l].kind != TIME_FULL;
    }
    self->is_split[loop - self->rules->loops] = is_split;
    while (changed) {
        changed = false;
        for (int32_t l = 0; l < loop->leaf_count; l++) set_leaf(self, loop, l, now[l], false);
        TRY(find_states_of(self, loop->body, error));
        for (int32_t l = 0; l < loop->leaf_count; l++) {
            const LoopLeaf *leaf = &loop->leaves[l];
            MicroBatchState before = now[l];
            if (!join_states(self, leaf, &now[l], *micro_batch_state(self, leaf->next, leaf->next_leaf)))
                return micro_batch_refuse(
                    self, loop->instruction,
                    "carries an array that depends on the batch otherwise than by a sum", NULL, error);
            changed |= !micro_batch_equal(before, now[l]);
        }
    }
    TRY(find_states_of(self, loop->condition, error));
    int32_t root = self->rules->alias[self->module->computations[loop->condition].root];
    if (is_split && micro_batch_state(self, root, 0)->kind != TIME_FULL)
        return micro_batch_refuse(self, loop->instruction, "ends by a condition on the batch", NULL, error);
    for (int32_t l = 0; l < loop->leaf_count; l++) set_leaf(self, loop, l, now[l], true);
    return AM_OK;
}

static AmStatus find_states_of(MicroBatchRewrite *self, int32_t computation, AmError *error) {
    const IrComputation *body = &self->module->computations[computation];
    self->steps_left -= body->count;
    if (self->steps_left < 0)
        return am_fail(error, AM_ERROR_INPUT, self->module->source,
                       "loops within loops take too long to be split into micro-batches");
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        if (!self->split_options->live[i] || self->rules->alias[i] != i) continue;
        if (micro_batch_forwards_values(self, i) || micro_batch_is_reader(self, i)) continue;
        const PlannedLoop *loop = rules_loop(self->rules, i);
        TRY(loop ? find_loop_states(self, loop, error) : find_state(self, i, error));
    }
    return AM_OK;
}

/* ---- the data ---- */

/* The batch is in every product that examples are in. Classes with less than this
 * share of the most are something else: the steps of a scan over data, say. */
#define LEAST_SHARE 0.95

static const IrShape *data_shape(const PlanContext *context, int32_t p) {
    const IrParameter *parameter = &context->roles->parameters[p];
    const IrShape *shape = &plan_context_instruction(context, parameter->instruction)->shape;
    return parameter->role == IR_ROLE_DATA && shape->type != DTYPE_TUPLE ? shape : NULL;
}

static int32_t data_class(const PlanContext *context, int32_t p, int32_t dimension) {
    return classes_of(context->classes, context->rules, context->roles->parameters[p].instruction, dimension);
}

/* Counts the data inputs whose first dimension is of the class. */
static int32_t count_leading(const PlanContext *context, int32_t class) {
    int32_t count = 0;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrShape *shape = data_shape(context, p);
        count += shape && shape->rank > 0 && data_class(context, p, 0) == class;
    }
    return count;
}

static double class_flops(const PlanContext *context, int32_t class) {
    bool is_examples = class >= 0 && context->classes->classes[class].weight_count == 0;
    return is_examples ? context->classes->classes[class].merged_flops : 0;
}

/* Returns the batch class. Candidates are the classes of data dimensions that occur in many products, also as
 * the minor part of rows. Of these, it is the first dimension of most inputs, and the earliest at a tie.
 * *size is the dimension's, 0 without one. Class -1: dimensions of no other tensor. */
static int32_t batch_class(const PlanContext *context, int64_t *size) {
    int32_t best = -1, most = -1;
    double flops = 0;
    *size = 0;
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrShape *shape = data_shape(context, p);
        for (int32_t d = 0; shape && d < shape->rank; d++)
            flops = fmax(flops, class_flops(context, data_class(context, p, d)));
    }
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrShape *shape = data_shape(context, p);
        for (int32_t d = 0; shape && d < shape->rank; d++) {
            int32_t class = data_class(context, p, d), leading = count_leading(context, class);
            if (class_flops(context, class) < LEAST_SHARE * flops || leading <= most) continue;
            if (class < 0 && d > 0) continue;
            most = leading;
            best = class;
            *size = shape->dimensions[d];
        }
    }
    return best;
}

int64_t micro_batches_limit(const PlanContext *context) {
    int64_t size;
    batch_class(context, &size);
    return size > 0 ? size : 1;
}

int32_t micro_batches_numbers(int32_t numbers[MICRO_BATCHES_MOST_NUMBERS], const PlanContext *context,
                              int32_t requested) {
    int32_t count = 1;
    numbers[0] = requested > 0 ? requested : 1;
    if (requested > 0) return count;
    int64_t batch = micro_batches_limit(context);
    for (int64_t m = 2; m <= MICRO_BATCHES_MOST && batch % m == 0 && count < MICRO_BATCHES_MOST_NUMBERS;
         m *= 2)
        numbers[count++] = (int32_t)m;
    return count;
}

/* Returns the dimension of a data input that has the batch class, or the first one where that has no name;
 * -1: none of this size. */
static int32_t batch_dimension(const PlanContext *context, int32_t instruction, int32_t class, int64_t size) {
    const IrShape *shape = &plan_context_instruction(context, instruction)->shape;
    for (int32_t d = 0; d < shape->rank; d++) {
        bool is_batch =
            class >= 0 ? classes_of(context->classes, context->rules, instruction, d) == class : d == 0;
        if (is_batch && shape->dimensions[d] == size) return d;
    }
    return -1;
}

int32_t micro_batches_dimension(const PlanContext *context, int32_t parameter) {
    int64_t size;
    if (!data_shape(context, parameter)) return -1;
    int32_t class = batch_class(context, &size);
    if (size == 0) return -1;
    return batch_dimension(context, context->roles->parameters[parameter].instruction, class, size);
}

AmStatus micro_batch_find_states(MicroBatchRewrite *self, AmError *error) {
    self->steps_left = (int64_t)STEPS_PER_INSTRUCTION * self->count;
    /* Data inputs are split along the batch class, or along their first dimension where that has no name. */
    const PlanContext *context = self->context;
    const IrRoles *roles = context->roles;
    int64_t size;
    int32_t class = batch_class(context, &size);
    if (size == 0)
        return am_fail(error, AM_ERROR_INFEASIBLE, self->module->source,
                       "cannot be split into micro-batches: no data input has a batch dimension");
    /* Replicas cut every `unit` rows: those of a micro-batch stay together. */
    int64_t unit = context->replicas.count > 0 ? 0 : 1;
    for (int32_t r = 0; r < context->replicas.count; r++) unit += context->replicas.parts[r];
    bool is_for_replicas = unit > 1 || self->settings.replicas.count > 0;
    if (size % (unit * self->settings.micro_batches) != 0)
        return am_fail(error, AM_ERROR_INFEASIBLE, self->module->source,
                       "a batch of %lld cannot be split into %lld equal %s", (long long)size,
                       (long long)(unit * self->settings.micro_batches),
                       is_for_replicas ? "parts (the sum of the entries times micro_batches)"
                                       : "micro-batches");
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t i = roles->parameters[p].instruction;
        const IrShape *shape = data_shape(context, p);
        int32_t d = shape ? batch_dimension(context, i, class, size) : -1;
        if (d < 0 && self->cuts_equal_data && shape && shape->rank > 0 && shape->dimensions[0] == size) d = 0;
        if (d < 0) continue;
        *micro_batch_state(self, i, 0) = (MicroBatchState){.kind = TIME_SPLIT, .dimension = d, .unit = unit};
    }
    return find_states_of(self, self->module->entry, error);
}
