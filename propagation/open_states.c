/* Open states by dynamic programming; see open_states.h.
 *
 * An open value has states B and S(d); an operator that splits nothing yet takes
 * the factor that gives the state, and so needs its operands accordingly. Upwards
 * in program order, least[v][s] is what it costs to have value v made in state s,
 * with the open values that only it uses in their best states:
 *
 *     least[v][s] = move(made -> s) + sum over operands u of
 *                   min over t of (least[u][t] + move(t -> need of v in s for u))
 *
 * A partial sum need not be finished where it arises: pending[v] is what it costs
 * to have v partial, if operators from its source to v carry that (linearity.h),
 * and move(partial -> s) on top of it is another way to make v.
 *
 * Downwards, users before what they use, each value takes the state that is cheapest
 * together with the different states that its users need (each is made once).
 * With several users the sum above counts the moves alone, which is a guess, so
 * every connected part is priced in the end and left whole if that is as cheap. Move
 * costs are bytes that a device sends, by the formulas of collectives.
 */
#include "propagation/open_states.h"

#include "propagation/lower_internal.h"
#include "propagation/settle.h"

#define MOST_STATES 8 /* B and S(0) to S(6) */

typedef struct Opening {
    const PlanContext *context;
    const Choices *choices;
    Completion *completion;
    int32_t axis;
    double parts;       /* devices on the axis */
    int32_t node_count; /* open values */
    int32_t *node_of;   /* [instruction]: its node, or -1 */
    int32_t *nodes;     /* [node]: instruction */
    double *least;      /* [node * MOST_STATES]; < 0: not in this state */
    double *pending;    /* [node]: of having it partial; < 0: it is not */
    double *finished; /* [node]: of finishing all partial sums in it if everything open is whole; < 0: none */
    uint8_t *reduction;  /* [node]: of what is pending */
    uint32_t *partial;   /* [node]: operands (bits) that are pending, too */
    uint8_t *carried;    /* [node]: states (bits) best made from what is pending */
    bool *carries_whole; /* [node]: so is the whole value if everything open is whole */
    bool *left;          /* [node]: its user takes it partial */
    int32_t *part;       /* [node]: the connected part, by a node of it */
    Sbp *chosen;         /* [node] */
    uint8_t *needs;      /* [instruction]: states (bits) that users need, B where they are unknown */
    int32_t *asked;      /* [instruction]: uses that have said so */
    double *change;      /* [node of a part]: what the chosen states cost less what leaving it whole does */
} Opening;

static double move(const Opening *self, Sbp have, Sbp want, double bytes) {
    double n = self->parts;
    if (have == want || have == SBP_B) return 0;
    if (sbp_is_partial(have)) return (want == SBP_B ? 2 : 1) * (n - 1) / n * bytes;
    return want == SBP_B ? (n - 1) / n * bytes : (n - 1) / (n * n) * bytes;
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

/* The parallel factor of i that is result dimension d and divides evenly, or -1. */
static int32_t factor_for(const Opening *self, int32_t i, int32_t d) {
    const FactorRule *rule = rule_of(self, i);
    for (int32_t f = 0; f < rule->factor_count && f <= INT8_MAX; f++) {
        const Factor *factor = &rule->factors[f];
        if (factor->kind != FACTOR_PARALLEL || factor->indexed) continue;
        if (factor->dimension[rule->operand_count] != d) continue;
        return factor->size % (int64_t)self->parts == 0 && factor->size <= INT32_MAX ? f : -1;
    }
    return -1;
}

/* Operators that may split what the lists say nothing about: they cost little themselves. */
static bool follows_its_values(IrOpcode opcode) {
    switch (opcode) {
    case IR_COPY:
    case IR_TRANSPOSE:
    case IR_RESHAPE:
    case IR_REDUCE: return true;
    default: return ir_is_elementwise(opcode);
    }
}

static const PlanException *exception_of(const Opening *self, int32_t i) {
    const PlanStage *stage = self->completion->stage;
    for (int32_t k = 0; k < stage->exception_count; k++)
        if (stage->exceptions[k].instruction == i) return &stage->exceptions[k];
    return NULL;
}

static bool is_operator_open(const Opening *self, int32_t i) {
    if (self->completion->factor[place_of(self, i)] >= 0) return false;
    if (!follows_its_values(self->context->canonical->instructions[i].opcode)) return false;
    const PlanException *exception = exception_of(self, i);
    return !exception || !exception->has_factors || exception->factors[self->axis] == PLAN_NO_OVERRIDE;
}

static Sbp made_state(const Opening *self, int32_t i) {
    int8_t f = self->completion->factor[place_of(self, i)];
    if (f < 0) return SBP_B;
    const Factor *factor = &rule_of(self, i)->factors[f];
    if (factor->kind == FACTOR_REDUCTION) return sbp_partial(factor->reduction);
    int8_t d = factor->dimension[rule_of(self, i)->operand_count];
    return d < 0 ? SBP_B : sbp_split(d);
}

static bool is_open(const Opening *self, int32_t i) {
    const IrInstruction *instruction = &self->context->canonical->instructions[i];
    const PlanException *exception = exception_of(self, i);
    if (instruction->operand_count == 0 || instruction->opcode == IR_GET_TUPLE_ELEMENT) return false;
    if (rule_of(self, i)->result_count != 1 || instruction->shape.type == DTYPE_TUPLE) return false;
    if (self->completion->stored[i].axis[self->axis] != SBP_B) return false;
    if (self->choices->accumulation_of[i] >= 0) return false; /* what is added up is left partial */
    if (!is_operator_open(self, i) && made_state(self, i) == SBP_B) return false;
    return !exception || !exception->has_states;
}

/* Whether open value i may be S(d): evenly, and no other axis is on that dimension. */
static bool may_split(const Opening *self, int32_t i, int32_t d) {
    const IrShape *shape = &self->context->canonical->instructions[i].shape;
    SbpState state = self->completion->stored[i];
    if (shape->dimensions[d] < 1 || shape->dimensions[d] % (int64_t)self->parts != 0) return false;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (state.axis[axis] == sbp_split(d)) return false;
    return !is_operator_open(self, i) || factor_for(self, i, d) >= 0;
}

/* What user i in state `state` needs operand k to be; cuts that are not even count as whole. */
static Sbp need_of(const Opening *self, int32_t i, int32_t k, Sbp state) {
    if (self->node_of[i] >= 0 && is_operator_open(self, i)) {
        if (state == SBP_B) return SBP_B;
        int32_t f = factor_for(self, i, sbp_dimension(state));
        int8_t d = rule_of(self, i)->factors[f].dimension[k];
        return d < 0 ? SBP_B : sbp_split(d);
    }
    SbpState need = settle_operand_state(self->completion, self->context, i, k);
    bool is_even = need.cut[self->axis].count == 0 && need.axis[self->axis] < MOST_STATES;
    return is_even ? need.axis[self->axis] : SBP_B;
}

/* What operand `source` costs in the state that is needed. */
static double cost_of_operand(const Opening *self, int32_t source, Sbp need) {
    int32_t node = self->node_of[source];
    double bytes = self->choices->array_bytes[source], least = -1;
    if (self->context->rules->on_demand[source]) return 0;
    if (node < 0) return move(self, self->completion->stored[source].axis[self->axis], need, bytes);
    for (int32_t s = 0; s < MOST_STATES; s++) {
        double made = self->least[node * MOST_STATES + s];
        if (made < 0) continue;
        double cost = (self->choices->uses[source] == 1 ? made : 0) + move(self, (Sbp)s, need, bytes);
        if (least < 0 || cost < least) least = cost;
    }
    return least;
}

static int32_t find_part(Opening *self, int32_t node) {
    while (self->part[node] != node) node = self->part[node] = self->part[self->part[node]];
    return node;
}

/* Operand k of i if it is pending and i alone uses it: its node, or -1. */
static int32_t pending_operand(const Opening *self, int32_t i, int32_t k) {
    int32_t source = self->choices->operands[self->choices->first_operand[i] + k];
    int32_t node = self->node_of[source];
    return node >= 0 && self->pending[node] >= 0 && self->choices->uses[source] == 1 ? node : -1;
}

/* Whether the operands `whole` (bits) of i are whole whatever is chosen. */
static bool are_whole(const Opening *self, int32_t i, uint32_t whole) {
    const int32_t *operands = &self->choices->operands[self->choices->first_operand[i]];
    for (int32_t k = 0; whole >> k; k++) {
        if (!(whole >> k & 1) || self->context->rules->on_demand[operands[k]]) continue;
        if (self->node_of[operands[k]] >= 0) return false;
        if (self->completion->stored[operands[k]].axis[self->axis] != SBP_B) return false;
    }
    return true;
}

/* What of i's operands is pending, and whether i can be so with them. */
static void weigh_pending(Opening *self, int32_t i) {
    const IrInstruction *instruction = &self->context->canonical->instructions[i];
    int32_t node = self->node_of[i];
    int32_t count = self->choices->first_operand[i + 1] - self->choices->first_operand[i];
    Sbp made = made_state(self, i);
    double above = 0, pending = 0, finish = move(self, sbp_partial(SBP_ADD), SBP_B, self->choices->bytes[i]);
    uint32_t partial = 0, whole = 0;
    SbpReduction reduction = SBP_REDUCTION_COUNT;
    self->pending[node] = self->finished[node] = -1;
    self->carries_whole[node] = false;
    if (sbp_is_partial(made) && !lower_is_half_product(instruction)) {
        self->pending[node] = 0;
        self->finished[node] = finish;
        self->reduction[node] = (uint8_t)sbp_reduction(made);
    }
    for (int32_t k = 0; is_operator_open(self, i) && k < count && k < 32; k++) {
        int32_t other = pending_operand(self, i, k);
        if (other < 0) continue;
        if (partial && self->reduction[other] != (uint8_t)reduction) return;
        reduction = (SbpReduction)self->reduction[other];
        partial |= 1u << k;
        above += self->finished[other];
        pending += self->pending[other];
    }
    if (!partial || !linearity_carries(self->context->canonical, instruction,
                                       (Linearity)self->choices->linearity[i], partial, &reduction, &whole))
        return;
    if (!are_whole(self, i, whole)) return;
    self->pending[node] = pending;
    self->partial[node] = partial;
    self->reduction[node] = (uint8_t)reduction;
    self->carries_whole[node] = finish < above;
    self->finished[node] = finish < above ? finish : above;
}

static void weigh(Opening *self, int32_t i) {
    int32_t node = self->node_of[i], first = self->choices->first_operand[i];
    const IrShape *shape = &self->context->canonical->instructions[i].shape;
    bool is_operator = is_operator_open(self, i);
    double bytes = self->choices->bytes[i];
    weigh_pending(self, i);
    self->carried[node] = 0;
    for (int32_t s = 0; s < MOST_STATES; s++) {
        double *least = &self->least[node * MOST_STATES + s];
        *least = -1;
        if (s > shape->rank || (s > 0 && !may_split(self, i, s - 1))) continue;
        *least = is_operator ? 0 : move(self, made_state(self, i), (Sbp)s, bytes);
        for (int32_t k = 0; is_operator && first + k < self->choices->first_operand[i + 1]; k++)
            *least += cost_of_operand(self, self->choices->operands[first + k], need_of(self, i, k, (Sbp)s));
        double carried = self->pending[node] + move(self, sbp_partial(SBP_ADD), (Sbp)s, bytes);
        if (!is_operator || self->pending[node] < 0 || carried >= *least) continue;
        *least = carried;
        self->carried[node] |= bit_of((Sbp)s);
    }
    for (int32_t k = first; is_operator && k < self->choices->first_operand[i + 1]; k++) {
        int32_t other = self->node_of[self->choices->operands[k]];
        if (other >= 0) self->part[find_part(self, other)] = find_part(self, node);
    }
}

/* What the different needs of a value's users cost if it is in `state`. */
static double cost_of_needs(const Opening *self, int32_t i, Sbp state) {
    uint8_t needs = self->needs[i];
    double total = 0;
    if (self->asked[i] < self->choices->uses[i]) needs |= bit_of(SBP_B);
    for (int32_t s = 0; s < MOST_STATES; s++)
        if (needs >> s & 1) total += move(self, state, (Sbp)s, self->choices->bytes[i]);
    return total;
}

/* Tells the operands of i what it needs of them; `carries`: it takes partial ones as they are. */
static void tell_operands(Opening *self, int32_t i, Sbp state, bool carries) {
    int32_t first = self->choices->first_operand[i], own = self->node_of[i];
    for (int32_t k = 0; first + k < self->choices->first_operand[i + 1]; k++) {
        int32_t source = self->choices->operands[first + k], node = self->node_of[source];
        if (node < 0) continue;
        self->asked[source]++;
        if (carries && k < 32 && self->partial[own] >> k & 1) self->left[node] = true;
        else self->needs[source] |= bit_of(carries ? SBP_B : need_of(self, i, k, state));
    }
}

static void clear_needs(Opening *self) {
    for (int32_t node = 0; node < self->node_count; node++) {
        self->needs[self->nodes[node]] = 0;
        self->asked[self->nodes[node]] = 0;
        self->left[node] = false;
    }
}

/* The cheapest state of an open value together with what its users need. */
static Sbp cheapest(const Opening *self, int32_t node) {
    int32_t i = self->nodes[node];
    const double *least = &self->least[node * MOST_STATES];
    Sbp best = SBP_B;
    for (int32_t s = 1; s < MOST_STATES; s++) {
        if (least[s] < 0) continue;
        double saved = least[best] + cost_of_needs(self, i, best) - least[s] - cost_of_needs(self, i, (Sbp)s);
        if (saved > 1e-9 * self->choices->bytes[i]) best = (Sbp)s;
    }
    return best;
}

/* From the last user to the first value. */
static void choose(Opening *self) {
    clear_needs(self);
    for (int32_t n = self->choices->decided_count - 1; n >= 0; n--) {
        int32_t i = self->choices->decided[n], node = self->node_of[i];
        if (node >= 0) self->chosen[node] = self->left[node] ? SBP_B : cheapest(self, node);
        Sbp state = node < 0 ? SBP_B : self->chosen[node];
        bool carries =
            node >= 0 && is_operator_open(self, i) && (self->left[node] || self->carried[node] >> state & 1);
        tell_operands(self, i, state, carries);
    }
}

/* Adds `sign` times what the chosen states really cost to the account of each part; `whole`: what leaving
 * everything open whole does. */
static void account(Opening *self, double sign, bool whole) {
    clear_needs(self);
    for (int32_t n = self->choices->decided_count - 1; n >= 0; n--) {
        int32_t i = self->choices->decided[n], node = self->node_of[i];
        int32_t first = self->choices->first_operand[i];
        Sbp state = node < 0 || whole ? SBP_B : self->chosen[node];
        bool is_operator = node >= 0 && is_operator_open(self, i), carries = false;
        if (is_operator)
            carries = self->left[node] ||
                      (whole ? self->carries_whole[node] : (self->carried[node] >> state & 1) != 0);
        tell_operands(self, i, state, carries);
        if (node < 0) continue;
        double *change = &self->change[find_part(self, node)];
        if (!self->left[node]) {
            *change += sign * cost_of_needs(self, i, state);
            Sbp made = carries ? sbp_partial(SBP_ADD) : made_state(self, i);
            if (!is_operator || carries) *change += sign * move(self, made, state, self->choices->bytes[i]);
        }
        for (int32_t k = 0; is_operator && !carries && first + k < self->choices->first_operand[i + 1]; k++)
            if (self->node_of[self->choices->operands[first + k]] < 0)
                *change += sign * cost_of_operand(self, self->choices->operands[first + k],
                                                  need_of(self, i, k, state));
    }
}

static void take(Opening *self, int32_t node) {
    int32_t i = self->nodes[node];
    Sbp state = self->chosen[node];
    if (state == SBP_B || self->change[find_part(self, node)] >= -1e-9 * self->choices->bytes[i]) return;
    if (is_operator_open(self, i)) {
        int32_t f = factor_for(self, i, sbp_dimension(state));
        self->completion->factor[place_of(self, i)] = (int8_t)f;
        self->completion->cut[place_of(self, i)] = (SbpCut){1, (int32_t)rule_of(self, i)->factors[f].size};
    }
    sbp_set(&self->completion->stored[i], self->axis, state);
}

static void settle_axis(Opening *self) {
    const Choices *choices = self->choices;
    self->node_count = 0;
    for (int32_t n = 0; n < choices->decided_count; n++) {
        int32_t i = choices->decided[n];
        self->node_of[i] = -1;
        if (!is_open(self, i)) continue;
        self->node_of[i] = self->node_count;
        self->part[self->node_count] = self->node_count;
        self->change[self->node_count] = 0;
        self->nodes[self->node_count++] = i;
    }
    for (int32_t node = 0; node < self->node_count; node++) weigh(self, self->nodes[node]);
    account(self, -1, true);
    choose(self);
    account(self, 1, false);
    for (int32_t node = 0; node < self->node_count; node++) take(self, node);
}

AmStatus open_states_choose(Completion *completion, Arena *scratch, const PlanContext *context,
                            AmError *error) {
    const Mesh *mesh = &completion->stage->mesh;
    int32_t count = context->rules->count, decided = context->choices->decided_count;
    ArenaMark mark = arena_mark(scratch);
    Opening self = {.context = context,
                    .choices = context->choices,
                    .completion = completion,
                    .node_of = ARENA_ARRAY(scratch, int32_t, count + 1),
                    .nodes = ARENA_ARRAY(scratch, int32_t, decided + 1),
                    .least = ARENA_ARRAY(scratch, double, (size_t)(decided + 1) * MOST_STATES),
                    .pending = ARENA_ARRAY(scratch, double, decided + 1),
                    .finished = ARENA_ARRAY(scratch, double, decided + 1),
                    .reduction = ARENA_ARRAY(scratch, uint8_t, decided + 1),
                    .partial = ARENA_ARRAY(scratch, uint32_t, decided + 1),
                    .carried = ARENA_ARRAY(scratch, uint8_t, decided + 1),
                    .carries_whole = ARENA_ARRAY(scratch, bool, decided + 1),
                    .left = ARENA_ARRAY(scratch, bool, decided + 1),
                    .part = ARENA_ARRAY(scratch, int32_t, decided + 1),
                    .chosen = ARENA_ARRAY(scratch, Sbp, decided + 1),
                    .needs = ARENA_ARRAY(scratch, uint8_t, count + 1),
                    .asked = ARENA_ARRAY(scratch, int32_t, count + 1),
                    .change = ARENA_ARRAY(scratch, double, decided + 1)};
    if (scratch->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) self.node_of[i] = -1;
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        self.axis = axis;
        self.parts = mesh->axes[axis].size;
        if (mesh->axes[axis].size > 1 && !mesh->axes[axis].shares) settle_axis(&self);
    }
    arena_release(scratch, mark);
    return AM_OK;
}
