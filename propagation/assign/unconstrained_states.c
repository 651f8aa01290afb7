/* Chooses open states by dynamic programming.
 *
 * An open value has states B and S(d). An operator that splits nothing yet takes the factor that
 * gives the state, which determines its operands. Upwards in program order, least[v][s] is the cost
 * of computing value v in state s, with the open values that only it uses in their best states:
 *
 *     least[v][s] = reshard(made -> s) + sum over operands u of
 *                   min over t of (least[u][t] + reshard(t -> need of v in s for u))
 *
 * A partial sum need not be reduced at its definition: pending[v] is the cost of having v partial,
 * if the operators from its source to v carry it (linearity.h), and reshard(partial -> s) in addition
 * is another way to compute v.
 *
 * Downwards, users before their operands, each value takes the state that is cheapest together with
 * the distinct states that its users need (each is computed once). With several users the sum above
 * counts only the moves, which is an estimate. Every connected part is therefore priced at the end
 * and stays replicated if that is as cheap. Costs are bytes (reshard_bytes.h).
 */
#include "propagation/assign/unconstrained_states.h"

#include <string.h>

#include "base/union_find.h"
#include "propagation/assign/reshard_bytes.h"
#include "propagation/assign/split.h"
#include "propagation/rules/linearity.h"

#define MOST_STATES   8 /* B and S(0) to S(6) */
#define MOST_OPERANDS 32
#define LEAST_SAVING  1e-9 /* of a value's bytes: less is rounding */

typedef struct OpenValue {
    int32_t instruction;
    bool is_operator; /* its factor is open; else the factor is chosen, and only its stored state is open */
    Sbp made;         /* the result state of the chosen factor, before it is resharded */
    Sbp chosen;       /* the stored state, by choose() */
    /* Costs of states, upwards (least[v][s] above). */
    uint8_t states;              /* those that it may have (bits) */
    int8_t factors[MOST_STATES]; /* of an operator: the one that gives the state */
    double least[MOST_STATES];   /* the least cost of each of those states */
    /* The value as a partial sum that is not reduced at its definition (pending[v] above). */
    double pending;         /* the cost of having it so; < 0: impossible */
    SbpReduction reduction; /* of that sum */
    uint32_t partial;       /* operands (bits) that are then such sums, too */
    uint32_t beside;        /* operands (bits) that are then resharded to partial (linearity_beside()) */
    bool is_wide;           /* elements of the sum have twice the size */
    uint8_t carried;        /* states (bits) that cost least by reducing that sum here */
    double finished;        /* the least cost of reducing it here or at its sources, all else replicated */
    bool carries_whole;     /* reducing it here costs less than at its sources, all else replicated */
    /* Set downwards. */
    bool left;     /* its only user takes it as a partial sum */
    double change; /* for a part: the cost of the chosen states minus that of staying replicated */
} OpenValue;

typedef struct Opening {
    const PlanContext *context;
    const SplitOptions *split_options;
    Assignment *assignment;
    int32_t axis;
    double parts; /* devices on the axis */
    OpenValue *values;
    int32_t value_count;
    int32_t *part; /* [value]: another one of its connected part, and at last the one that stands for it */
    int32_t *value_of; /* [instruction]: its open value, or -1 */
    uint8_t *fixed;    /* [operand]: its state by the user's chosen factor + 1; 0: not computed yet */
    uint8_t *needs;    /* [instruction]: states (bits) that users need, B where they are unknown */
    int32_t *asked;    /* [instruction]: the number of uses whose states are in `needs` */
} Opening;

/* The cost of resharding from state `made` to state `want`. */
static double made_to(const Opening *self, const OpenValue *value, Sbp made, Sbp want) {
    double bytes = self->split_options->bytes[value->instruction];
    return sbp_is_partial(made) ? reshard_sum_bytes(want, bytes, self->parts, value->is_wide)
                                : reshard_bytes(made, want, bytes, self->parts);
}

static uint8_t bit_of(Sbp sbp) {
    return (uint8_t)(1u << sbp);
}

static size_t place_of(const Opening *self, int32_t i) {
    return (size_t)i * MESH_MAX_AXES + (size_t)self->axis;
}

static const FactorRule *rule_of(const Opening *self, int32_t i) {
    return &self->context->rules->rules[i];
}

static OpenValue *value_of(const Opening *self, int32_t i) {
    return self->value_of[i] < 0 ? NULL : &self->values[self->value_of[i]];
}

/* Returns whether no other axis splits a dimension that the factor is in: two factors of one dimension, one
 * in blocks of it, need not be a state together. */
static bool stands_alone(const Opening *self, int32_t i, int32_t f) {
    const FactorRule *rule = rule_of(self, i);
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        int8_t other = self->assignment->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis];
        if (axis == self->axis || other < 0) continue;
        for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++)
            if (rule->factors[f].dimension[slot] >= 0 &&
                rule->factors[f].dimension[slot] == rule->factors[other].dimension[slot])
                return false;
    }
    return true;
}

/* The parallel factor of i that is result dimension d and divides evenly, or -1. */
static int8_t factor_for(const Opening *self, int32_t i, int32_t d) {
    const FactorRule *rule = rule_of(self, i);
    for (int32_t f = 0; f < rule->factor_count && f <= INT8_MAX; f++) {
        const Factor *factor = &rule->factors[f];
        if (factor->kind != FACTOR_PARALLEL || factor->indexed) continue;
        if (factor->dimension[rule->operand_count] != d) continue;
        bool divides = factor->size % (int64_t)self->parts == 0 && factor->size <= INT32_MAX;
        return divides && stands_alone(self, i, f) ? (int8_t)f : -1;
    }
    return -1;
}

/* Operators that may be split without an entry in an axis priority: their own cost is small. */
static bool follows_its_values(IrOpcode opcode) {
    switch (opcode) {
    case IR_COPY:
    case IR_TRANSPOSE:
    case IR_RESHAPE:
    case IR_REDUCE: return true;
    default: return ir_is_elementwise(opcode);
    }
}

static const PlanOverride *override_of(const Opening *self, int32_t i) {
    const PlanStage *stage = self->assignment->stage;
    for (int32_t k = 0; k < stage->override_count; k++)
        if (stage->overrides[k].instruction == i) return &stage->overrides[k];
    return NULL;
}

static Sbp made_state(const Opening *self, int32_t i) {
    int8_t f = self->assignment->factor[place_of(self, i)];
    if (f < 0) return SBP_B;
    const Factor *factor = &rule_of(self, i)->factors[f];
    if (factor->kind == FACTOR_REDUCTION) return sbp_partial(factor->reduction);
    int8_t d = factor->dimension[rule_of(self, i)->operand_count];
    return d < 0 ? SBP_B : sbp_split(d);
}

/* Returns whether i's result is open, and as what. */
static bool open_value(const Opening *self, int32_t i, OpenValue *value) {
    const IrInstruction *instruction = &self->context->canonical->instructions[i];
    const IrShape *shape = &instruction->shape;
    SbpState stored = self->assignment->stored[i];
    if (stored.axis[self->axis] != SBP_B || instruction->opcode == IR_GET_TUPLE_ELEMENT) return false;
    if (instruction->operand_count == 0 || rule_of(self, i)->result_count != 1) return false;
    if (shape->type == DTYPE_TUPLE) return false;
    if (self->split_options->accumulation_of[i] >= 0) return false; /* an accumulated value stays partial */
    const PlanOverride *override = override_of(self, i);
    if (override && override->has_states) return false;
    bool is_given = override && override->has_factors && override->factors[self->axis] != PLAN_NO_OVERRIDE;
    *value = (OpenValue){.instruction = i,
                         .made = made_state(self, i),
                         .states = bit_of(SBP_B),
                         .pending = -1,
                         .finished = -1};
    value->is_operator = !is_given && self->assignment->factor[place_of(self, i)] < 0 &&
                         follows_its_values(instruction->opcode);
    if (!value->is_operator && value->made == SBP_B) return false;
    for (int32_t d = 0; d < shape->rank && d + 1 < MOST_STATES; d++) {
        bool may = shape->dimensions[d] > 0 && shape->dimensions[d] % (int64_t)self->parts == 0;
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) may = may && stored.axis[axis] != sbp_split(d);
        if (may && value->is_operator) may = (value->factors[d + 1] = factor_for(self, i, d)) >= 0;
        if (may) value->states |= bit_of(sbp_split(d));
    }
    return true;
}

/* The state of operand k that user i needs in state `state`; uneven splits count as replicated. */
static Sbp need_of(const Opening *self, int32_t i, int32_t k, Sbp state) {
    const OpenValue *value = value_of(self, i);
    if (value && value->is_operator) {
        if (state == SBP_B) return SBP_B;
        int8_t d = rule_of(self, i)->factors[value->factors[state]].dimension[k];
        return d < 0 || d + 1 >= MOST_STATES ? SBP_B : sbp_split(d);
    }
    if (self->assignment->factor[place_of(self, i)] < 0) return SBP_B;
    uint8_t *fixed = &self->fixed[self->split_options->first_operand[i] + k];
    if (*fixed == 0) {
        SbpState need = split_operand_state(self->assignment, self->context, i, k);
        bool is_even = need.cut[self->axis].count == 0 && need.axis[self->axis] < MOST_STATES;
        *fixed = (uint8_t)(1 + (is_even ? need.axis[self->axis] : SBP_B));
    }
    return (Sbp)(*fixed - 1);
}

/* The cost of operand `source` in the needed state. */
static double cost_of_operand(const Opening *self, int32_t source, Sbp need) {
    const OpenValue *value = value_of(self, source);
    double bytes = self->split_options->array_bytes[source], least = -1;
    if (!value) {
        if (self->context->rules->on_demand[source]) return 0;
        return reshard_bytes(self->assignment->stored[source].axis[self->axis], need, bytes, self->parts);
    }
    bool is_private = self->split_options->uses[source] == 1;
    for (int32_t s = 0; value->states >> s; s++) {
        if (!(value->states >> s & 1)) continue;
        double cost = (is_private ? value->least[s] : 0) + reshard_bytes((Sbp)s, need, bytes, self->parts);
        if (least < 0 || cost < least) least = cost;
    }
    return least;
}

/* Returns whether the operands `whole` (bits) of i are whole whatever is chosen. */
static bool are_whole(const Opening *self, int32_t i, uint32_t whole) {
    for (int32_t k = 0; whole >> k; k++) {
        int32_t source = split_options_operand(self->split_options, i, k);
        if (!(whole >> k & 1) || self->context->rules->on_demand[source]) continue;
        if (self->value_of[source] >= 0) return false;
        if (self->assignment->stored[source].axis[self->axis] != SBP_B) return false;
    }
    return true;
}

/* Computes which of the value's operands are pending, and whether the value can be pending with
 * them. */
static void weigh_pending(const Opening *self, OpenValue *value) {
    int32_t i = value->instruction;
    const IrInstruction *instruction = &self->context->canonical->instructions[i];
    if (!value->is_operator) {
        if (!sbp_is_partial(value->made)) return;
        value->is_wide = linearity_is_16bit_product(instruction) && !self->assignment->stage->rounds_parts;
        value->pending = 0;
        value->finished = made_to(self, value, sbp_partial(SBP_ADD), SBP_B);
        value->reduction = sbp_reduction(value->made);
        return;
    }
    Linearity linearity = (Linearity)self->split_options->linearity[i];
    if (linearity == LINEARITY_NONE) return;
    bool is_wide = false;
    double above = 0, pending = 0;
    uint32_t partial = 0, whole = 0;
    SbpReduction reduction = SBP_REDUCTION_COUNT;
    for (int32_t k = 0; k < split_options_operand_count(self->split_options, i) && k < MOST_OPERANDS; k++) {
        /* Only an operand that is pending and has no other user counts. */
        const OpenValue *operand = value_of(self, split_options_operand(self->split_options, i, k));
        if (!operand || operand->pending < 0 || self->split_options->uses[operand->instruction] != 1)
            continue;
        if (partial && operand->reduction != reduction) return;
        reduction = operand->reduction;
        partial |= 1u << k;
        above += operand->finished;
        pending += operand->pending;
        is_wide |= operand->is_wide;
    }
    if (!partial) return;
    uint32_t beside = linearity_beside(instruction, partial, reduction);
    if (!(is_wide ? linearity_carries_wide : linearity_carries)(
            self->context->canonical, instruction, linearity, partial | beside, &reduction, &whole))
        return;
    if (!are_whole(self, i, whole)) return;
    for (int32_t k = 0; beside >> k; k++)
        if (beside >> k & 1)
            pending +=
                cost_of_operand(self, split_options_operand(self->split_options, i, k), sbp_partial(SBP_ADD));
    value->pending = pending;
    value->partial = partial;
    value->beside = beside;
    value->reduction = reduction;
    value->is_wide = is_wide && linearity_is_16bit(instruction);
    double here = made_to(self, value, sbp_partial(SBP_ADD), SBP_B);
    value->carries_whole = here < above;
    value->finished = here < above ? here : above;
}

static void weigh(Opening *self, OpenValue *value) {
    int32_t i = value->instruction, operands = split_options_operand_count(self->split_options, i);
    weigh_pending(self, value);
    for (int32_t s = 0; value->states >> s; s++) {
        if (!(value->states >> s & 1)) continue;
        double *least = &value->least[s];
        *least = value->is_operator ? 0 : made_to(self, value, value->made, (Sbp)s);
        for (int32_t k = 0; value->is_operator && k < operands; k++)
            *least += cost_of_operand(self, split_options_operand(self->split_options, i, k),
                                      need_of(self, i, k, (Sbp)s));
        double carried = value->pending + made_to(self, value, sbp_partial(SBP_ADD), (Sbp)s);
        if (!value->is_operator || value->pending < 0 || carried >= *least) continue;
        *least = carried;
        value->carried |= bit_of((Sbp)s);
    }
    for (int32_t k = 0; value->is_operator && k < operands; k++) {
        int32_t operand = self->value_of[split_options_operand(self->split_options, i, k)];
        if (operand >= 0)
            self->part[union_find_root(self->part, operand)] = union_find_root(self->part, self->value_of[i]);
    }
}

/* The cost of the distinct needs of a value's users if it is in `state`. */
static double cost_of_needs(const Opening *self, int32_t i, Sbp state) {
    uint32_t needs = self->needs[i];
    double total = 0;
    if (self->asked[i] < self->split_options->uses[i]) needs |= bit_of(SBP_B);
    for (int32_t s = 0; needs >> s; s++)
        if (needs >> s & 1) total += reshard_bytes(state, (Sbp)s, self->split_options->bytes[i], self->parts);
    return total;
}

/* Records the needs of i at its operands; `carries`: it uses partial ones without a reduction. */
static void tell_operands(const Opening *self, int32_t i, Sbp state, bool carries) {
    uint32_t partial = carries ? value_of(self, i)->partial : 0;
    uint32_t beside = carries ? value_of(self, i)->beside : 0;
    for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
        int32_t source = split_options_operand(self->split_options, i, k);
        OpenValue *operand = value_of(self, source);
        if (!operand) continue;
        self->asked[source]++;
        if (k < MOST_OPERANDS && partial >> k & 1) operand->left = true;
        else if (k >= MOST_OPERANDS || !(beside >> k & 1))
            self->needs[source] |= bit_of(carries ? SBP_B : need_of(self, i, k, state));
    }
}

static void clear_needs(const Opening *self) {
    for (int32_t v = 0; v < self->value_count; v++) {
        self->needs[self->values[v].instruction] = 0;
        self->asked[self->values[v].instruction] = 0;
        self->values[v].left = false;
    }
}

/* The cheapest state of an open value together with the needs of its users. */
static Sbp cheapest(const Opening *self, const OpenValue *value) {
    int32_t i = value->instruction;
    Sbp best = SBP_B;
    double least = value->least[SBP_B] + cost_of_needs(self, i, SBP_B);
    for (int32_t s = 1; value->states >> s; s++) {
        if (!(value->states >> s & 1)) continue;
        double cost = value->least[s] + cost_of_needs(self, i, (Sbp)s);
        if (least - cost <= LEAST_SAVING * self->split_options->bytes[i]) continue;
        best = (Sbp)s;
        least = cost;
    }
    return best;
}

/* Chooses states from the last user to the first value. Returns whether a value is not replicated. */
static bool choose(const Opening *self) {
    bool is_split = false;
    clear_needs(self);
    for (int32_t n = self->split_options->decided_count - 1; n >= 0; n--) {
        int32_t i = self->split_options->decided[n];
        OpenValue *value = value_of(self, i);
        if (value) value->chosen = value->left ? SBP_B : cheapest(self, value);
        Sbp state = value ? value->chosen : SBP_B;
        is_split = is_split || state != SBP_B;
        bool carries = value && value->is_operator && (value->left || value->carried >> state & 1);
        tell_operands(self, i, state, carries);
    }
    return is_split;
}

/* The cost of one open value in `state`, without its open operands. */
static double own_cost(const Opening *self, const OpenValue *value, Sbp state, bool carries) {
    int32_t i = value->instruction;
    Sbp made = carries ? sbp_partial(SBP_ADD) : value->made;
    double total = 0;
    if (!value->left) {
        total = cost_of_needs(self, i, state);
        if (!value->is_operator || carries) total += made_to(self, value, made, state);
    }
    for (int32_t k = 0;
         value->is_operator && !carries && k < split_options_operand_count(self->split_options, i); k++)
        if (!value_of(self, split_options_operand(self->split_options, i, k)))
            total += cost_of_operand(self, split_options_operand(self->split_options, i, k),
                                     need_of(self, i, k, state));
    return total;
}

/* Adds `sign` times the exact cost of the states to the account of each part: the chosen states, or
 * with all open values replicated. */
static void account(Opening *self, double sign, bool whole) {
    clear_needs(self);
    for (int32_t n = self->split_options->decided_count - 1; n >= 0; n--) {
        int32_t i = self->split_options->decided[n];
        OpenValue *value = value_of(self, i);
        Sbp state = value && !whole ? value->chosen : SBP_B;
        bool carries = value && value->is_operator &&
                       (value->left || (whole ? value->carries_whole : value->carried >> state & 1));
        tell_operands(self, i, state, carries);
        if (!value) continue;
        self->values[union_find_root(self->part, self->value_of[i])].change +=
            sign * own_cost(self, value, state, carries);
    }
}

static void take(Opening *self, OpenValue *value) {
    int32_t i = value->instruction;
    double saved = -self->values[union_find_root(self->part, self->value_of[i])].change;
    if (value->chosen == SBP_B || saved <= LEAST_SAVING * self->split_options->bytes[i]) return;
    if (value->is_operator) {
        int8_t f = value->factors[value->chosen];
        self->assignment->factor[place_of(self, i)] = f;
        self->assignment->cut[place_of(self, i)] = (SbpCut){1, (int32_t)rule_of(self, i)->factors[f].size};
    }
    sbp_set(&self->assignment->stored[i], self->axis, value->chosen);
}

/* Returns whether anything is split on the axis. */
static bool is_used(const Opening *self) {
    for (int32_t n = 0; n < self->split_options->decided_count; n++)
        if (self->assignment->factor[place_of(self, self->split_options->decided[n])] >= 0) return true;
    return false;
}

static void choose_on_axis(Opening *self) {
    const SplitOptions *split_options = self->split_options;
    self->value_count = 0;
    memset(self->fixed, 0, (size_t)split_options->first_operand[self->context->rules->count]);
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        int32_t i = split_options->decided[n];
        bool is_open = open_value(self, i, &self->values[self->value_count]);
        self->part[self->value_count] = self->value_count;
        self->value_of[i] = is_open ? self->value_count++ : -1;
    }
    for (int32_t v = 0; v < self->value_count; v++) weigh(self, &self->values[v]);
    if (!choose(self)) return;
    account(self, -1, true);
    account(self, 1, false);
    for (int32_t v = 0; v < self->value_count; v++) take(self, &self->values[v]);
}

AmStatus unconstrained_states_choose(Assignment *assignment, Arena *scratch, const PlanContext *context,
                                     AmError *error) {
    const Mesh *mesh = &assignment->stage->mesh;
    int32_t count = context->rules->count, decided = context->split_options->decided_count;
    ArenaMark mark = arena_mark(scratch);
    Opening self = {.context = context,
                    .split_options = context->split_options,
                    .assignment = assignment,
                    .values = ARENA_ARRAY(scratch, OpenValue, decided + 1),
                    .part = ARENA_ARRAY(scratch, int32_t, decided + 1),
                    .value_of = ARENA_ARRAY(scratch, int32_t, count + 1),
                    .fixed = ARENA_ARRAY(scratch, uint8_t, context->split_options->first_operand[count] + 1),
                    .needs = ARENA_ARRAY(scratch, uint8_t, count + 1),
                    .asked = ARENA_ARRAY(scratch, int32_t, count + 1)};
    if (scratch->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) self.value_of[i] = -1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        self.axis = axis;
        self.parts = mesh->axes[axis].size;
        if (mesh->axes[axis].size > 1 && !mesh->axes[axis].shares && is_used(&self)) choose_on_axis(&self);
    }
    arena_release(scratch, mark);
    return AM_OK;
}
