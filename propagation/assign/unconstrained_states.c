/* Chooses the states that axis priorities leave unconstrained, by dynamic programming over one mesh axis.
 *
 * An unconstrained value may be replicated or split: B or S(d). An operator that splits nothing yet takes the
 * factor that produces the state of its result, which determines the states of its operands. In program
 * order, least[v][s] is the least cost of value v in state s, with the unconstrained values that only v uses:
 *
 *     least[v][s] = reshard(produced -> s) + sum over operands u of
 *                   min over t of (least[u][t] + reshard(t -> state of u that v needs in state s))
 *
 * A partial sum need not be reduced where it is produced: partial_cost[v] is the cost of v as a partial sum,
 * which linear operators pass on from the source to v (linearity.h). Reducing it at v costs reshard(partial
 * -> s) in addition, and is another way to compute v.
 *
 * In reverse order, each value takes the state that is cheapest together with the distinct states that its
 * users need, each computed once. With several users the sum above counts only the reshards, which is an
 * estimate. Every connected part of unconstrained values is therefore priced at the end, and stays replicated
 * if that costs as little. Costs are bytes (reshard_bytes.h).
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

typedef struct UnconstrainedValue {
    int32_t instruction;
    bool is_operator; /* its factor is unconstrained; else it has a factor, and only its stored state is */
    Sbp produced;     /* the result state of its factor, before it is resharded */
    Sbp chosen;       /* the stored state, by choose_states() */
    /* In program order: the costs of states. */
    uint8_t states;              /* the possible states (bits) */
    int8_t factors[MOST_STATES]; /* of an operator: the factor that produces each state */
    double least[MOST_STATES];   /* the least cost of each state */
    /* The value as a partial sum that is not reduced where it is produced. */
    double partial_cost;    /* < 0: impossible */
    SbpReduction reduction; /* of that sum */
    uint32_t partial;       /* operands (bits) that are then partial sums, too */
    uint32_t beside;        /* operands (bits) that are then resharded to partial (linearity_beside()) */
    bool is_f32_sum;        /* elements of the sum have twice the size */
    uint8_t reduced_here;   /* states (bits) that cost least by reducing that sum here */
    /* With all other values replicated: */
    double reduced_cost;          /* the least cost of reducing the sum, here or at its sources */
    bool reduces_here_replicated; /* reducing it here costs less than at its sources */
    /* In reverse order. */
    bool stays_partial; /* its only user takes it as a partial sum */
    double change;      /* for a part: the cost of the chosen states minus that of staying replicated */
} UnconstrainedValue;

typedef struct StateChoice {
    const PlanContext *context;
    const SplitOptions *split_options;
    Assignment *assignment;
    int32_t axis;
    double parts; /* devices on the axis */
    UnconstrainedValue *values;
    int32_t value_count;
    int32_t *part;         /* [value]: union-find over the connected parts */
    int32_t *value_of;     /* [instruction]: its unconstrained value, or -1 */
    uint8_t *fixed_needs;  /* [operand]: 1 + the state that the user's factor needs; 0: not computed yet */
    uint8_t *needs;        /* [instruction]: states (bits) that its users need */
    int32_t *counted_uses; /* [instruction]: uses whose states are in `needs`; all others need B */
} StateChoice;

/* Returns the bytes of resharding a value from state `produced` to state `want`. */
static double reshard_cost(const StateChoice *self, const UnconstrainedValue *value, Sbp produced, Sbp want) {
    double bytes = self->split_options->bytes[value->instruction];
    return sbp_is_partial(produced) ? reshard_sum_bytes(want, bytes, self->parts, value->is_f32_sum)
                                    : reshard_bytes(produced, want, bytes, self->parts);
}

static uint8_t state_bit(Sbp sbp) {
    return (uint8_t)(1u << sbp);
}

static size_t factor_index(const StateChoice *self, int32_t i) {
    return (size_t)i * MESH_MAX_AXES + (size_t)self->axis;
}

static const FactorRule *rule_of(const StateChoice *self, int32_t i) {
    return &self->context->rules->rules[i];
}

static UnconstrainedValue *value_of(const StateChoice *self, int32_t i) {
    return self->value_of[i] < 0 ? NULL : &self->values[self->value_of[i]];
}

/* Returns whether no other axis splits a dimension of the factor: two factors of one dimension, one in blocks
 * of it, need not form a state. */
static bool shares_no_dimension(const StateChoice *self, int32_t i, int32_t f) {
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

/* Returns the parallel factor of operator i that splits result dimension d evenly, or -1. */
static int8_t factor_for(const StateChoice *self, int32_t i, int32_t d) {
    const FactorRule *rule = rule_of(self, i);
    for (int32_t f = 0; f < rule->factor_count && f <= INT8_MAX; f++) {
        const Factor *factor = &rule->factors[f];
        if (factor->kind != FACTOR_PARALLEL || factor->indexed) continue;
        if (factor->dimension[rule->operand_count] != d) continue;
        bool divides = factor->size % (int64_t)self->parts == 0 && factor->size <= INT32_MAX;
        return divides && shares_no_dimension(self, i, f) ? (int8_t)f : -1;
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

static Sbp produced_state(const StateChoice *self, int32_t i) {
    int8_t f = self->assignment->factor[factor_index(self, i)];
    if (f < 0) return SBP_B;
    const Factor *factor = &rule_of(self, i)->factors[f];
    if (factor->kind == FACTOR_REDUCTION) return sbp_partial(factor->reduction);
    int8_t d = factor->dimension[rule_of(self, i)->operand_count];
    return d < 0 ? SBP_B : sbp_split(d);
}

/* Returns whether the result of i is unconstrained, and describes it. */
static bool describe_value(const StateChoice *self, int32_t i, UnconstrainedValue *value) {
    const IrInstruction *instruction = plan_context_instruction(self->context, i);
    const IrShape *shape = &instruction->shape;
    SbpState stored = self->assignment->stored[i];
    if (stored.axis[self->axis] != SBP_B || instruction->opcode == IR_GET_TUPLE_ELEMENT) return false;
    if (instruction->operand_count == 0 || rule_of(self, i)->result_count != 1) return false;
    if (shape->type == DTYPE_TUPLE) return false;
    if (self->split_options->accumulation_of[i] >= 0) return false; /* an accumulated value stays partial */
    const PlanStage *stage = self->assignment->stage;
    const PlanOverride *override = NULL;
    for (int32_t k = 0; k < stage->override_count && !override; k++)
        if (stage->overrides[k].instruction == i) override = &stage->overrides[k];
    if (override && override->has_states) return false;
    bool is_given = override && override->has_factors && override->factors[self->axis] != PLAN_NO_OVERRIDE;
    *value = (UnconstrainedValue){.instruction = i,
                                  .produced = produced_state(self, i),
                                  .states = state_bit(SBP_B),
                                  .partial_cost = -1,
                                  .reduced_cost = -1};
    value->is_operator = !is_given && self->assignment->factor[factor_index(self, i)] < 0 &&
                         follows_its_values(instruction->opcode);
    if (!value->is_operator && value->produced == SBP_B) return false;
    for (int32_t d = 0; d < shape->rank && d + 1 < MOST_STATES; d++) {
        bool may = shape->dimensions[d] > 0 && shape->dimensions[d] % (int64_t)self->parts == 0;
        for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) may = may && stored.axis[axis] != sbp_split(d);
        if (may && value->is_operator) may = (value->factors[d + 1] = factor_for(self, i, d)) >= 0;
        if (may) value->states |= state_bit(sbp_split(d));
    }
    return true;
}

/* Returns the state of operand k that user i needs in state `state`; uneven splits count as replicated. */
static Sbp need_of(const StateChoice *self, int32_t i, int32_t k, Sbp state) {
    const UnconstrainedValue *value = value_of(self, i);
    if (value && value->is_operator) {
        if (state == SBP_B) return SBP_B;
        int8_t d = rule_of(self, i)->factors[value->factors[state]].dimension[k];
        return d < 0 || d + 1 >= MOST_STATES ? SBP_B : sbp_split(d);
    }
    if (self->assignment->factor[factor_index(self, i)] < 0) return SBP_B;
    uint8_t *fixed_needs = &self->fixed_needs[self->split_options->first_operand[i] + k];
    if (*fixed_needs == 0) {
        SbpState need = split_operand_state(self->assignment, self->context, i, k);
        bool is_even = need.cut[self->axis].count == 0 && need.axis[self->axis] < MOST_STATES;
        *fixed_needs = (uint8_t)(1 + (is_even ? need.axis[self->axis] : SBP_B));
    }
    return (Sbp)(*fixed_needs - 1);
}

/* Returns the cost of operand `source` in the needed state. */
static double cost_of_operand(const StateChoice *self, int32_t source, Sbp need) {
    const UnconstrainedValue *value = value_of(self, source);
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

/* Returns whether the `operands` (bits) of i are replicated under every choice. */
static bool are_replicated(const StateChoice *self, int32_t i, uint32_t operands) {
    for (int32_t k = 0; operands >> k; k++) {
        int32_t source = split_options_operand(self->split_options, i, k);
        if (!(operands >> k & 1) || self->context->rules->on_demand[source]) continue;
        if (self->value_of[source] >= 0) return false;
        if (self->assignment->stored[source].axis[self->axis] != SBP_B) return false;
    }
    return true;
}

/* Finds the operands that may stay partial sums, and the cost of the value as a partial sum of them. */
static void price_partial(const StateChoice *self, UnconstrainedValue *value) {
    int32_t i = value->instruction;
    const IrInstruction *instruction = plan_context_instruction(self->context, i);
    if (!value->is_operator) {
        if (!sbp_is_partial(value->produced)) return;
        value->is_f32_sum = linearity_is_16bit_product(instruction) && !self->assignment->stage->rounds_parts;
        value->partial_cost = 0;
        value->reduced_cost = reshard_cost(self, value, sbp_partial(SBP_ADD), SBP_B);
        value->reduction = sbp_reduction(value->produced);
        return;
    }
    Linearity linearity = (Linearity)self->split_options->linearity[i];
    if (linearity == LINEARITY_NONE) return;
    bool is_f32_sum = false;
    double at_sources = 0, partial_cost = 0;
    uint32_t partial = 0, replicated = 0;
    SbpReduction reduction = SBP_REDUCTION_COUNT;
    for (int32_t k = 0; k < split_options_operand_count(self->split_options, i) && k < MOST_OPERANDS; k++) {
        /* Only an operand without other users can stay partial. */
        const UnconstrainedValue *operand = value_of(self, split_options_operand(self->split_options, i, k));
        if (!operand || operand->partial_cost < 0 || self->split_options->uses[operand->instruction] != 1)
            continue;
        if (partial && operand->reduction != reduction) return;
        reduction = operand->reduction;
        partial |= 1u << k;
        at_sources += operand->reduced_cost;
        partial_cost += operand->partial_cost;
        is_f32_sum |= operand->is_f32_sum;
    }
    if (!partial) return;
    uint32_t beside = linearity_beside(instruction, partial, reduction);
    if (!(is_f32_sum ? linearity_carries_f32 : linearity_carries)(
            self->context->canonical, instruction, linearity, partial | beside, &reduction, &replicated))
        return;
    if (!are_replicated(self, i, replicated)) return;
    for (int32_t k = 0; beside >> k; k++)
        if (beside >> k & 1)
            partial_cost +=
                cost_of_operand(self, split_options_operand(self->split_options, i, k), sbp_partial(SBP_ADD));
    value->partial_cost = partial_cost;
    value->partial = partial;
    value->beside = beside;
    value->reduction = reduction;
    value->is_f32_sum = is_f32_sum && linearity_is_16bit(instruction);
    double here = reshard_cost(self, value, sbp_partial(SBP_ADD), SBP_B);
    value->reduces_here_replicated = here < at_sources;
    value->reduced_cost = here < at_sources ? here : at_sources;
}

/* Prices the states of a value, and joins it with its unconstrained operands. */
static void price_states(StateChoice *self, UnconstrainedValue *value) {
    int32_t i = value->instruction, operands = split_options_operand_count(self->split_options, i);
    price_partial(self, value);
    for (int32_t s = 0; value->states >> s; s++) {
        if (!(value->states >> s & 1)) continue;
        double *least = &value->least[s];
        *least = value->is_operator ? 0 : reshard_cost(self, value, value->produced, (Sbp)s);
        for (int32_t k = 0; value->is_operator && k < operands; k++)
            *least += cost_of_operand(self, split_options_operand(self->split_options, i, k),
                                      need_of(self, i, k, (Sbp)s));
        double reduced_here = value->partial_cost + reshard_cost(self, value, sbp_partial(SBP_ADD), (Sbp)s);
        if (!value->is_operator || value->partial_cost < 0 || reduced_here >= *least) continue;
        *least = reduced_here;
        value->reduced_here |= state_bit((Sbp)s);
    }
    for (int32_t k = 0; value->is_operator && k < operands; k++) {
        int32_t operand = self->value_of[split_options_operand(self->split_options, i, k)];
        if (operand >= 0)
            self->part[union_find_root(self->part, operand)] = union_find_root(self->part, self->value_of[i]);
    }
}

/* Returns the cost of the distinct needs of a value's users if it is in `state`. */
static double cost_of_needs(const StateChoice *self, int32_t i, Sbp state) {
    uint32_t needs = self->needs[i];
    double total = 0;
    if (self->counted_uses[i] < self->split_options->uses[i]) needs |= state_bit(SBP_B);
    for (int32_t s = 0; needs >> s; s++)
        if (needs >> s & 1) total += reshard_bytes(state, (Sbp)s, self->split_options->bytes[i], self->parts);
    return total;
}

/* Records the states that i needs of its operands; `carries`: it reads partial sums without a reduction. */
static void record_needs(const StateChoice *self, int32_t i, Sbp state, bool carries) {
    uint32_t partial = carries ? value_of(self, i)->partial : 0;
    uint32_t beside = carries ? value_of(self, i)->beside : 0;
    for (int32_t k = 0; k < split_options_operand_count(self->split_options, i); k++) {
        int32_t source = split_options_operand(self->split_options, i, k);
        UnconstrainedValue *operand = value_of(self, source);
        if (!operand) continue;
        self->counted_uses[source]++;
        if (k < MOST_OPERANDS && partial >> k & 1) operand->stays_partial = true;
        else if (k >= MOST_OPERANDS || !(beside >> k & 1))
            self->needs[source] |= state_bit(carries ? SBP_B : need_of(self, i, k, state));
    }
}

static void clear_needs(const StateChoice *self) {
    for (int32_t v = 0; v < self->value_count; v++) {
        self->needs[self->values[v].instruction] = 0;
        self->counted_uses[self->values[v].instruction] = 0;
        self->values[v].stays_partial = false;
    }
}

/* Returns the cheapest state of a value together with the needs of its users. */
static Sbp cheapest_state(const StateChoice *self, const UnconstrainedValue *value) {
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
static bool choose_states(const StateChoice *self) {
    bool is_split = false;
    clear_needs(self);
    for (int32_t n = self->split_options->decided_count - 1; n >= 0; n--) {
        int32_t i = self->split_options->decided[n];
        UnconstrainedValue *value = value_of(self, i);
        if (value) value->chosen = value->stays_partial ? SBP_B : cheapest_state(self, value);
        Sbp state = value ? value->chosen : SBP_B;
        is_split = is_split || state != SBP_B;
        bool carries =
            value && value->is_operator && (value->stays_partial || value->reduced_here >> state & 1);
        record_needs(self, i, state, carries);
    }
    return is_split;
}

/* Returns the cost of one value in `state`, without its unconstrained operands. */
static double own_cost(const StateChoice *self, const UnconstrainedValue *value, Sbp state, bool carries) {
    int32_t i = value->instruction;
    Sbp produced = carries ? sbp_partial(SBP_ADD) : value->produced;
    double total = 0;
    if (!value->stays_partial) {
        total = cost_of_needs(self, i, state);
        if (!value->is_operator || carries) total += reshard_cost(self, value, produced, state);
    }
    for (int32_t k = 0;
         value->is_operator && !carries && k < split_options_operand_count(self->split_options, i); k++)
        if (!value_of(self, split_options_operand(self->split_options, i, k)))
            total += cost_of_operand(self, split_options_operand(self->split_options, i, k),
                                     need_of(self, i, k, state));
    return total;
}

/* Adds `sign` times the exact cost of each connected part to its `change`: with the chosen states, or with
 * all values replicated. */
static void add_costs(StateChoice *self, double sign, bool is_replicated) {
    clear_needs(self);
    for (int32_t n = self->split_options->decided_count - 1; n >= 0; n--) {
        int32_t i = self->split_options->decided[n];
        UnconstrainedValue *value = value_of(self, i);
        Sbp state = value && !is_replicated ? value->chosen : SBP_B;
        bool carries = value && value->is_operator &&
                       (value->stays_partial ||
                        (is_replicated ? value->reduces_here_replicated : value->reduced_here >> state & 1));
        record_needs(self, i, state, carries);
        if (!value) continue;
        self->values[union_find_root(self->part, self->value_of[i])].change +=
            sign * own_cost(self, value, state, carries);
    }
}

/* Applies the state of a value, if its connected part saves bytes. */
static void apply(StateChoice *self, UnconstrainedValue *value) {
    int32_t i = value->instruction;
    double saved = -self->values[union_find_root(self->part, self->value_of[i])].change;
    if (value->chosen == SBP_B || saved <= LEAST_SAVING * self->split_options->bytes[i]) return;
    if (value->is_operator) {
        int8_t f = value->factors[value->chosen];
        self->assignment->factor[factor_index(self, i)] = f;
        self->assignment->cut[factor_index(self, i)] =
            (SbpCut){1, (int32_t)rule_of(self, i)->factors[f].size};
    }
    sbp_set(&self->assignment->stored[i], self->axis, value->chosen);
}

static void choose_on_axis(StateChoice *self) {
    const SplitOptions *split_options = self->split_options;
    self->value_count = 0;
    memset(self->fixed_needs, 0, (size_t)split_options->first_operand[plan_context_count(self->context)]);
    for (int32_t n = 0; n < split_options->decided_count; n++) {
        int32_t i = split_options->decided[n];
        bool is_unconstrained = describe_value(self, i, &self->values[self->value_count]);
        self->part[self->value_count] = self->value_count;
        self->value_of[i] = is_unconstrained ? self->value_count++ : -1;
    }
    for (int32_t v = 0; v < self->value_count; v++) price_states(self, &self->values[v]);
    if (!choose_states(self)) return;
    add_costs(self, -1, true);
    add_costs(self, 1, false);
    for (int32_t v = 0; v < self->value_count; v++) apply(self, &self->values[v]);
}

AmStatus unconstrained_states_choose(Assignment *assignment, Arena *scratch, const PlanContext *context,
                                     AmError *error) {
    const Mesh *mesh = &assignment->stage->mesh;
    int32_t count = context->rules->count, decided = context->split_options->decided_count;
    ArenaMark mark = arena_mark(scratch);
    StateChoice self = {.context = context,
                        .split_options = context->split_options,
                        .assignment = assignment,
                        .values = ARENA_ARRAY(scratch, UnconstrainedValue, decided + 1),
                        .part = ARENA_ARRAY(scratch, int32_t, decided + 1),
                        .value_of = ARENA_ARRAY(scratch, int32_t, count + 1),
                        .fixed_needs =
                            ARENA_ARRAY(scratch, uint8_t, context->split_options->first_operand[count] + 1),
                        .needs = ARENA_ARRAY(scratch, uint8_t, count + 1),
                        .counted_uses = ARENA_ARRAY(scratch, int32_t, count + 1)};
    if (scratch->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) self.value_of[i] = -1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        self.axis = axis;
        self.parts = mesh->axes[axis].size;
        if (mesh->axes[axis].size <= 1 || mesh->axes[axis].shares) continue;
        bool is_used = false; /* something is split on the axis */
        for (int32_t n = 0; n < self.split_options->decided_count && !is_used; n++)
            is_used = self.assignment->factor[factor_index(&self, self.split_options->decided[n])] >= 0;
        if (is_used) choose_on_axis(&self);
    }
    arena_release(scratch, mark);
    return AM_OK;
}
