/* Assignment: derives a decision for every instruction from the axis priorities of a stage
 * (docs/method.md).
 *
 * On each axis a tensor is stored split along the dimension whose class comes first in the axis's
 * list. An operator splits the factor whose class comes first among all its factors, including
 * contracted ones. A size that does not divide is split unevenly, between the granules common to
 * all dimensions of the class (heads, not elements of heads); a size below that of the axis is
 * skipped, tensor by tensor. Storage entries (storage.h) are applied next, then the common needs of
 * a value's users (states_of_users.h). Partial results are then carried along linear chains of single use to
 * the cheapest place to reduce them; that choice is exact, since such chains form trees.
 */
#include "propagation/assign/assign.h"

#include <limits.h>
#include <string.h>

#include "propagation/assign/reshard_bytes.h"
#include "propagation/assign/split.h"
#include "propagation/assign/states_of_users.h"
#include "propagation/assign/storage.h"
#include "propagation/assign/unconstrained_states.h"
#include "propagation/rules/linearity.h"

typedef struct Assigner {
    const PlanContext *context;
    const StageMap *map; /* NULL: the stage has everything */
    const IrModule *module;
    const Rules *rules;
    const SplitOptions *split_options;
    const PlanStage *stage;
    const Storage *storage; /* NULL: no storage entries */
    int32_t count;
    uint8_t *given_factors; /* [instruction]: axes (bits) on which an override says its factor; or NULL */
    int32_t *rank[MESH_MAX_AXES]; /* [class]: place in the axis priority, INT_MAX if not in it */
    Assignment *result;
} Assigner;

/* Returns whether an override determines the factor that instruction i splits on the axis. */
static bool has_given_factor(const Assigner *self, int32_t i, int32_t axis) {
    return self->given_factors && self->given_factors[i] >> axis & 1;
}

/* Returns the number of granules between which a further axis splits `size` elements into `ways` parts, if a
 * class splits them between `granules`; 0: too few. */
static int64_t choose_granules(int64_t size, int64_t granules, int64_t ways) {
    int64_t chosen = granules >= ways && size % granules == 0 ? granules : size >= ways ? size : 0;
    return chosen <= INT32_MAX ? chosen : 0;
}

static int64_t class_granules(const Assigner *self, const SplitOption *choice) {
    const DimensionClass *class =
        choice->class_index < 0 ? NULL : &self->context->classes->classes[choice->class_index];
    return !class || class->is_spatial ? choice->size : class->size;
}

/* Splits a dimension of instruction i's stored result over the axis; false where that cannot be. */
static bool store_split(Assigner *self, int32_t i, int32_t axis, const SplitOption *choice) {
    const Mesh *mesh = &self->stage->mesh;
    SbpState *state = &self->result->stored[i];
    int32_t d = choice->place, ways_before = sbp_ways(mesh, *state, d);
    if (self->stage->is_even) {
        bool is_plain =
            choice->blocks == 1 && choice->size % ((int64_t)ways_before * mesh->axes[axis].size) == 0;
        if (is_plain) sbp_set_split(state, axis, d, (SbpCut){0, 0});
        return is_plain;
    }
    if (ways_before > 1 && sbp_blocks(*state, d) != choice->blocks) {
        if (!sbp_splits_into(mesh, *state, d, choice->size, choice->blocks)) return false;
        ways_before = 1; /* of the one block that is left */
    }
    int64_t granules = choose_granules(choice->size / choice->blocks, class_granules(self, choice),
                                       (int64_t)ways_before * mesh->axes[axis].size);
    if (granules == 0) return false;
    sbp_set_split(state, axis, d, sbp_cut(mesh, *state, axis, d, choice->size, choice->blocks, granules));
    return true;
}

/* Returns whether every slot of instruction i, split so far, can have this factor split too. */
static bool agrees_with_earlier(const Assigner *self, int32_t i, int32_t axis, const SplitOption *choice) {
    const FactorRule *rule = &self->rules->rules[i];
    const Factor *factor = &rule->factors[choice->place];
    const SbpCut *cuts = &self->result->cut[(size_t)i * MESH_MAX_AXES];
    for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
        int8_t d = factor->dimension[slot];
        int32_t blocks = factor_blocks(factor, slot) * choice->blocks, ways = 1;
        bool differs = false, is_even = true;
        for (int32_t earlier = 0; earlier < axis && d >= 0; earlier++) {
            int8_t f = self->result->factor[(size_t)i * MESH_MAX_AXES + (size_t)earlier];
            if (f < 0 || rule->factors[f].dimension[slot] != d) continue;
            /* The elements of a halo are counted in the global dimension. */
            if (f != choice->place && (factor->halo || rule->factors[f].halo)) return false;
            int32_t outer = factor_blocks(&rule->factors[f], slot) * cuts[earlier].outer;
            ways *= self->stage->mesh.axes[earlier].size;
            is_even &=
                outer == 1 && cuts[earlier].count % ways == 0 && !self->stage->mesh.axes[earlier].shares;
            differs |= outer != blocks;
        }
        /* Blocks of a dimension by one axis and the insides of the blocks by another are a
         * state only where one block is left to cut. */
        if (differs && !(is_even && ways == blocks)) return false;
    }
    return true;
}

/* Lets instruction i split a factor over the axis; false where that cannot be. */
static bool take_factor(Assigner *self, int32_t i, int32_t axis, const SplitOption *choice) {
    const Mesh *mesh = &self->stage->mesh;
    int8_t *chosen = &self->result->factor[(size_t)i * MESH_MAX_AXES];
    int64_t ways = mesh->axes[axis].size;
    for (int32_t earlier = 0; earlier < axis; earlier++)
        if (chosen[earlier] == choice->place &&
            self->result->cut[(size_t)i * MESH_MAX_AXES + (size_t)earlier].outer == choice->blocks)
            ways *= mesh->axes[earlier].size;
    bool in_blocks = choice->blocks > 1 || self->rules->rules[i].factors[choice->place].blocks;
    if (self->stage->is_even && (in_blocks || choice->size % ways != 0)) return false;
    int64_t granules = self->stage->is_even ? choice->size
                                            : choose_granules(choice->size / choice->blocks,
                                                              class_granules(self, choice), ways);
    if (granules == 0 || !agrees_with_earlier(self, i, axis, choice)) return false;
    chosen[axis] = (int8_t)choice->place;
    self->result->cut[(size_t)i * MESH_MAX_AXES + (size_t)axis] = (SbpCut){choice->blocks, (int32_t)granules};
    return true;
}

static void choose_stored(Assigner *self, int32_t i, int32_t axis) {
    const SplitOptions *split_options = self->split_options;
    int32_t best = INT_MAX;
    for (int32_t k = split_options->first_dimension[i]; k < split_options->first_dimension[i + 1]; k++) {
        const SplitOption *choice = &split_options->dimensions[k];
        int32_t rank = self->rank[axis][choice->class_index];
        if (rank >= best) continue;
        SbpState *state = &self->result->stored[i], before = *state;
        sbp_set(state, axis, SBP_B); /* for the axis's current split; without success, the state stays */
        if (store_split(self, i, axis, choice)) best = rank;
        else *state = before;
    }
}

static Sbp factor_sbp(const Factor *factor, int32_t place) {
    int8_t dimension = factor->dimension[place];
    return dimension < 0 ? SBP_B : sbp_split(dimension);
}

static Sbp factor_result(const Factor *factor, const FactorRule *rule) {
    if (factor_leaves_partial(factor, rule->operand_count)) return sbp_partial(factor->reduction);
    return factor_sbp(factor, rule->operand_count);
}

static double factor_reshard(const Assigner *self, int32_t i, int32_t f, int32_t axis) {
    const SplitOptions *split_options = self->split_options;
    const FactorRule *rule = &self->rules->rules[i];
    const Factor *factor = &rule->factors[f];
    const int32_t *operands = &split_options->operands[split_options->first_operand[i]];
    int32_t operand_count = split_options->first_operand[i + 1] - split_options->first_operand[i];
    double parts = self->stage->mesh.axes[axis].size;
    double total = reshard_bytes(factor_result(factor, rule), self->result->stored[i].axis[axis],
                                 split_options->bytes[i], parts);
    for (int32_t k = 0; k < operand_count; k++) {
        int32_t source = operands[k];
        if (self->rules->on_demand[source]) continue;
        total += reshard_bytes(self->result->stored[source].axis[axis], factor_sbp(factor, k),
                               split_options->array_bytes[source], parts);
    }
    return total;
}

/* Chooses the factor that moves the fewest bytes among those whose classes come equally early. */
static void choose_factor(Assigner *self, int32_t i, int32_t axis) {
    const SplitOptions *split_options = self->split_options;
    const int8_t *chosen = &self->result->factor[(size_t)i * MESH_MAX_AXES];
    int32_t best = INT_MAX;
    for (int32_t k = split_options->first_factor[i]; k < split_options->first_factor[i + 1]; k++) {
        const SplitOption *choice = &split_options->factors[k];
        int32_t rank = self->rank[axis][choice->class_index];
        if (rank > best || rank == INT_MAX) continue;
        if (rank == best &&
            factor_reshard(self, i, choice->place, axis) >= factor_reshard(self, i, chosen[axis], axis))
            continue;
        if (take_factor(self, i, axis, choice)) best = rank;
    }
}

/* Returns the first of some choices of a dimension or factor; a choice without a class if all are others. */
static SplitOption choice_of(const SplitOption *split_options, int32_t from, int32_t to, int32_t place,
                             int64_t size) {
    for (int32_t k = from; k < to; k++)
        if (split_options[k].place == place) return split_options[k];
    return (SplitOption){.size = size, .class_index = -1, .place = place, .blocks = 1};
}

/* Finds the state that an override gives instruction i on an axis. */
static AmStatus override_state(Assigner *self, int32_t i, int32_t axis, Sbp sbp, AmError *error) {
    const IrInstruction *instruction = &self->module->instructions[i];
    const IrShape *shape = split_options_array_shape(instruction);
    if (sbp_is_partial(sbp) || (sbp_is_split(sbp) && sbp_dimension(sbp) >= shape->rank))
        return am_fail(error, AM_ERROR_INPUT, self->module->source,
                       "override for %s: its result cannot be stored in that state", instruction->name);
    sbp_set(&self->result->stored[i], axis, SBP_B);
    if (sbp == SBP_B) return AM_OK;
    int32_t d = sbp_dimension(sbp);
    const SplitOptions *split_options = self->split_options;
    SplitOption choice = choice_of(split_options->dimensions, split_options->first_dimension[i],
                                   split_options->first_dimension[i + 1], d, shape->dimensions[d]);
    if (!store_split(self, i, axis, &choice))
        return am_fail(error, AM_ERROR_INPUT, self->module->source,
                       "override for %s: dimension %d of size %lld has fewer elements than parts",
                       instruction->name, d, (long long)shape->dimensions[d]);
    return AM_OK;
}

/* Finds the factor that an override lets instruction i split over an axis; -1: none. */
static AmStatus override_factor(Assigner *self, int32_t i, int32_t axis, int32_t f, AmError *error) {
    const FactorRule *rule = &self->rules->rules[i];
    self->result->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis] = -1;
    if (f == -1) return AM_OK;
    bool may_split = f >= 0 && f < rule->factor_count && f <= INT8_MAX && factor_may_split(&rule->factors[f]);
    const SplitOptions *split_options = self->split_options;
    SplitOption choice =
        choice_of(split_options->factors, split_options->first_factor[i], split_options->first_factor[i + 1],
                  f, may_split ? rule->factors[f].size : 0);
    if (may_split && take_factor(self, i, axis, &choice)) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, self->module->source, "override for %s: factor %d cannot be split",
                   self->module->instructions[i].name, f);
}

/* Returns the factor by which instruction i is split over an axis if its result is pinned to a state there:
 * one that gives the state. For a contraction it follows from the axis priorities, since its sum is reduced
 * to the state. */
static int32_t factor_of_pin(const Assigner *self, int32_t i, int32_t axis, Sbp pinned) {
    const FactorRule *rule = &self->rules->rules[i];
    int32_t listed = self->result->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis];
    if (listed >= 0 && rule->factors[listed].kind == FACTOR_REDUCTION) return listed;
    for (int32_t f = 0; sbp_is_split(pinned) && f < rule->factor_count && f <= INT8_MAX; f++)
        if (factor_may_split(&rule->factors[f]) && factor_result(&rule->factors[f], rule) == pinned) return f;
    return ir_is_elementwise(self->module->instructions[i].opcode) ? -1 : listed;
}

/* Splits an operator as its pinned result, on axes without a factor of the override. */
static AmStatus pin_result(Assigner *self, Arena *arena, const PlanOverride *override, AmError *error) {
    Assignment *result = self->result;
    const SplitOptions *split_options = self->split_options;
    int32_t i = override->instruction, axes = self->stage->mesh.axis_count, factors[MESH_MAX_AXES];
    int8_t *chosen = &result->factor[(size_t)i * MESH_MAX_AXES];
    if (!result->pinned) result->pinned = ARENA_ARRAY(arena, bool, self->count);
    if (!result->pinned) return am_fail_memory(error, self->count);
    result->pinned[i] = true;
    for (int32_t axis = 0; axis < axes; axis++)
        factors[axis] = has_given_factor(self, i, axis)
                            ? chosen[axis]
                            : factor_of_pin(self, i, axis, override->states.axis[axis]);
    for (int32_t axis = 0; axis < axes; axis++) chosen[axis] = -1;
    for (int32_t axis = 0; axis < axes; axis++) {
        if (factors[axis] < 0 || self->stage->mesh.axes[axis].size == 1) continue;
        SplitOption choice = choice_of(split_options->factors, split_options->first_factor[i],
                                       split_options->first_factor[i + 1], factors[axis],
                                       self->rules->rules[i].factors[factors[axis]].size);
        take_factor(self, i, axis, &choice);
    }
    return AM_OK;
}

static AmStatus apply_overrides(Assigner *self, Arena *arena, AmError *error) {
    if (self->stage->override_count == 0) return AM_OK;
    self->given_factors = ARENA_ARRAY(arena, uint8_t, self->count);
    if (!self->given_factors) return am_fail_memory(error, self->count);
    for (int32_t k = 0; k < self->stage->override_count; k++) {
        const PlanOverride *override = &self->stage->overrides[k];
        int32_t i = override->instruction;
        if (i < 0 || i >= self->count)
            return am_fail(error, AM_ERROR_INPUT, self->module->source,
                           "override for instruction %d: the module has %d", i, self->count);
        for (int32_t axis = 0; axis < self->stage->mesh.axis_count; axis++) {
            if (override->has_states) TRY(override_state(self, i, axis, override->states.axis[axis], error));
            if (!override->has_factors || override->factors[axis] == PLAN_NO_OVERRIDE) continue;
            TRY(override_factor(self, i, axis, override->factors[axis], error));
            self->given_factors[i] |= (uint8_t)(1u << axis);
        }
        if (override->is_pinned) TRY(pin_result(self, arena, override, error));
    }
    return AM_OK;
}

SbpState assignment_carried(const Assignment *assignment, const LoopLeaf *leaf) {
    int32_t reader = loop_leaf_reader(leaf);
    if (reader < 0) return (SbpState){.axis = {SBP_B}};
    SbpState state = assignment->stored[reader];
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (assignment->deferred[reader] >> axis & 1)
            sbp_set(&state, axis,
                    sbp_partial(assignment->partial[(size_t)reader * MESH_MAX_AXES + (size_t)axis]));
    return state;
}

/* Gives all values that hold an array of a loop one state. */
static void join_carried(Assigner *self) {
    SbpState *stored = self->result->stored;
    for (int32_t k = 0; k < self->rules->loop_count; k++) {
        const PlannedLoop *loop = &self->rules->loops[k];
        for (int32_t l = 0; l < loop->leaf_count; l++) {
            const LoopLeaf *leaf = &loop->leaves[l];
            SbpState state = assignment_carried(self->result, leaf); /* nothing is deferred yet */
            if (leaf->in_condition >= 0) stored[leaf->in_condition] = state;
            if (leaf->afterwards >= 0) stored[leaf->afterwards] = state;
        }
    }
}

static SbpReduction *partial_of(const Assigner *self, int32_t i, int32_t axis) {
    return &self->result->partial[(size_t)i * MESH_MAX_AXES + (size_t)axis];
}

/* Returns whether the operands `replicated` (bits) of instruction i are stored replicated on the axis, or
 * made so. */
static bool are_replicated(const Assigner *self, int32_t i, int32_t axis, uint32_t replicated) {
    const int32_t *operands = &self->split_options->operands[self->split_options->first_operand[i]];
    for (int32_t k = 0; replicated >> k; k++)
        if (replicated >> k & 1 && !self->rules->on_demand[operands[k]] &&
            self->result->stored[operands[k]].axis[axis] != SBP_B)
            return false;
    return true;
}

/* Returns whether parts of the operands `beside` (bits) of instruction i can be had without moving anything:
 * of a shard by padding, unless it is cut in blocks or another axis cuts the same dimension. */
static bool become_parts(const Assigner *self, int32_t i, int32_t axis, uint32_t beside) {
    const int32_t *operands = &self->split_options->operands[self->split_options->first_operand[i]];
    for (int32_t k = 0; beside >> k; k++) {
        SbpState state = self->result->stored[operands[k]];
        if (!(beside >> k & 1) || self->rules->on_demand[operands[k]] || state.axis[axis] == SBP_B) continue;
        if (state.cut[axis].outer > 1) return false;
        for (int32_t other = 0; other < MESH_MAX_AXES; other++)
            if (other != axis && state.axis[other] == state.axis[axis]) return false;
    }
    return true;
}

/* Returns the cost of resharding the operands `beside` (bits) of instruction i to the states that its factor
 * needs. */
static double beside_weight(const Assigner *self, int32_t i, int32_t axis, uint32_t beside) {
    const int32_t *operands = &self->split_options->operands[self->split_options->first_operand[i]];
    int8_t chosen = self->result->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis];
    double total = 0;
    for (int32_t k = 0; beside >> k; k++) {
        if (!(beside >> k & 1) || self->rules->on_demand[operands[k]]) continue;
        Sbp want = chosen < 0 ? SBP_B : factor_sbp(&self->rules->rules[i].factors[chosen], k);
        total +=
            reshard_bytes(self->result->stored[operands[k]].axis[axis], want,
                          self->split_options->array_bytes[operands[k]], self->stage->mesh.axes[axis].size);
    }
    return total;
}

/* Returns the cost of reducing the partial result of i on the axis; `is_f32_sum`: its addends are in f32. */
static double finish_weight(const Assigner *self, int32_t i, int32_t axis, bool is_f32_sum) {
    return reshard_sum_bytes(self->result->stored[i].axis[axis], self->split_options->bytes[i],
                             self->stage->mesh.axes[axis].size, is_f32_sum);
}

/* Returns whether a value is read by no other stage and has no pinned state. */
static bool stays_here(const Assigner *self, int32_t i) {
    if (self->result->pinned && self->result->pinned[i]) return false;
    return !self->map || (self->map->needed[i] & ~self->map->held[i]) == 0;
}

/* Returns whether `source` is a partial result on the axis with u as its only user. */
static bool is_private_partial(const Assigner *self, const double *best, int32_t u, int32_t source) {
    return stays_here(self, source) && best[source] >= 0 && self->split_options->uses[source] == 1 &&
           self->split_options->user[source] == u;
}

/* Per-instruction results of placing the reductions of one axis. */
typedef struct AxisPlacement {
    double *best;     /* cheapest finish at or above i; < 0: not P */
    bool *may_carry;  /* i can use its P operands without a reduction */
    bool *carry_wins; /* i may carry, and finishing at i is cheaper than above */
    bool *carried;    /* i's user takes i's result unfinished */
    bool *is_f32_sum; /* i is of a 16-bit type, and its parts are in f32 */
} AxisPlacement;

/* Weighs where instruction i is reduced, when all above it are known. */
static void weigh_reduction(const Assigner *self, AxisPlacement *placing, int32_t i, int32_t axis) {
    const SplitOptions *split_options = self->split_options;
    const IrInstruction *instruction = &self->module->instructions[i];
    int8_t chosen = self->result->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis];
    if (chosen >= 0) {
        const Factor *factor = &self->rules->rules[i].factors[chosen];
        if (factor->kind == FACTOR_REDUCTION) {
            if (self->rules->rules[i].result_count > 1) return; /* each sum is finished where it is made */
            *partial_of(self, i, axis) = factor->reduction;
            placing->is_f32_sum[i] = linearity_is_16bit_product(instruction) && !self->stage->rounds_parts;
            placing->best[i] = finish_weight(self, i, axis, placing->is_f32_sum[i]);
            return;
        }
        /* A dot or convolution that the axis splits is not replicated to save a collective. */
        IrOpcode opcode = self->module->instructions[i].opcode;
        if (ir_is_product(opcode)) return;
    }
    if (split_options->linearity[i] == LINEARITY_NONE || linearity_is_16bit_product(instruction)) return;
    const int32_t *operands = &split_options->operands[split_options->first_operand[i]];
    int32_t operand_count = split_options->first_operand[i + 1] - split_options->first_operand[i];
    SbpReduction reduction = SBP_REDUCTION_COUNT;
    uint32_t partial = 0, replicated;
    double above = 0;
    bool is_f32_sum = false;
    for (int32_t k = 0; k < operand_count; k++) {
        if (!is_private_partial(self, placing->best, i, operands[k])) continue;
        SbpReduction of_operand = *partial_of(self, operands[k], axis);
        if (partial && of_operand != reduction) return;
        reduction = of_operand;
        partial |= 1u << k;
        above += placing->best[operands[k]];
        is_f32_sum |= placing->is_f32_sum[operands[k]];
    }
    if (!partial) return;
    /* A carried value has its own type. */
    if (is_f32_sum && linearity_is_16bit(instruction) && split_options->accumulation_of[i] >= 0) return;
    uint32_t beside = linearity_beside(instruction, partial, reduction);
    if (!(is_f32_sum ? linearity_carries_f32 : linearity_carries)(self->module, instruction,
                                                                  (Linearity)split_options->linearity[i],
                                                                  partial | beside, &reduction, &replicated))
        return;
    if (!are_replicated(self, i, axis, replicated) || !become_parts(self, i, axis, beside) ||
        has_given_factor(self, i, axis))
        return;
    *partial_of(self, i, axis) = reduction;
    above += beside_weight(self, i, axis, beside);
    placing->is_f32_sum[i] = is_f32_sum && linearity_is_16bit(instruction);
    double here = finish_weight(self, i, axis, placing->is_f32_sum[i]);
    placing->may_carry[i] = true;
    placing->carry_wins[i] = here < above;
    placing->best[i] = here < above ? here : above;
}

/* Keeps a loop's result partial if all addends are partial: one reduction replaces one per iteration. */
static void close_accumulation(Assigner *self, AxisPlacement *placing, int32_t next, int32_t axis) {
    const SplitOptions *split_options = self->split_options;
    if (split_options->accumulation_of[next] < 0 || !placing->may_carry[next]) return;
    for (int32_t k = split_options->first_operand[next]; k < split_options->first_operand[next + 1]; k++)
        if (!is_private_partial(self, placing->best, next, split_options->operands[k])) return;
    int32_t afterwards = split_options->accumulations[split_options->accumulation_of[next]].afterwards;
    placing->carried[next] = true;
    self->result->deferred[next] |= (uint8_t)(1u << axis);
    if (afterwards >= 0 && self->storage) storage_keep(self->storage, afterwards, axis);
    if (afterwards < 0) return;
    placing->best[afterwards] = finish_weight(self, afterwards, axis, false);
    *partial_of(self, afterwards, axis) =
        split_options->accumulations[split_options->accumulation_of[next]].reduction;
}

/* Finds best[i], the cheapest way to finish all partial results that flow into i privately, at i or above
 * it. A carrier reads its operands unfinished. Whether that is cheaper is known when all above it is, and
 * decided from the roots down. */
static void place_reductions(Assigner *self, Arena *scratch, int32_t axis) {
    const SplitOptions *split_options = self->split_options;
    AxisPlacement placing = {.best = ARENA_ARRAY(scratch, double, self->count),
                             .may_carry = ARENA_ARRAY(scratch, bool, self->count),
                             .carry_wins = ARENA_ARRAY(scratch, bool, self->count),
                             .carried = ARENA_ARRAY(scratch, bool, self->count),
                             .is_f32_sum = ARENA_ARRAY(scratch, bool, self->count)};
    if (scratch->failed) return;
    for (int32_t i = 0; i < self->count; i++) placing.best[i] = -1;
    /* An accumulated array may be partial in the loop, as its addends are. */
    for (int32_t k = 0; k < self->split_options->accumulation_count; k++) {
        int32_t reader = self->split_options->accumulations[k].reader;
        if (!stays_here(self, reader) || !stays_here(self, self->split_options->accumulations[k].next))
            continue;
        if (self->result->stored[reader].axis[axis] != SBP_B) continue;
        placing.best[reader] = 0;
        *partial_of(self, reader, axis) = self->split_options->accumulations[k].reduction;
    }
    for (int32_t d = 0; d < split_options->decided_count; d++) {
        weigh_reduction(self, &placing, split_options->decided[d], axis);
        close_accumulation(self, &placing, split_options->decided[d], axis);
    }
    for (int32_t d = split_options->decided_count - 1; d >= 0; d--) {
        int32_t i = split_options->decided[d];
        if (!placing.may_carry[i] || !(placing.carried[i] || placing.carry_wins[i])) continue;
        self->result->carries[i] |= (uint8_t)(1u << axis);
        self->result->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis] = -1;
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
            int32_t source = split_options->operands[k];
            if (!is_private_partial(self, placing.best, i, source)) continue;
            self->result->deferred[source] |= (uint8_t)(1u << axis);
            placing.carried[source] = true;
        }
    }
}

/* Returns whether instruction i is split over several axes, in blocks by one of them. */
static bool mixes_blocks(const Assigner *self, int32_t i) {
    const Assignment *result = self->result;
    int32_t axes = 0;
    bool in_blocks = false;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        size_t place = (size_t)i * MESH_MAX_AXES + (size_t)axis;
        if (result->factor[place] < 0) continue;
        in_blocks |=
            result->cut[place].outer > 1 || self->rules->rules[i].factors[result->factor[place]].blocks;
        axes++;
    }
    return in_blocks && axes > 1;
}

/* Resolves collisions between unconstrained values and storage entries, which are chosen axis by axis: the
 * later of two incompatible choices becomes replicated. */
static void part_collisions(Assigner *self) {
    for (int32_t k = 0; k < self->split_options->decided_count; k++) {
        int32_t i = self->split_options->decided[k], axis;
        const FactorRule *rule = &self->rules->rules[i];
        while ((axis = sbp_colliding_axis(self->result->stored[i])) >= 0)
            sbp_set(&self->result->stored[i], axis, SBP_B);
        if (!mixes_blocks(self, i)) continue;
        for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++)
            while ((axis = sbp_colliding_axis(split_state(self->rules, &self->stage->mesh, i,
                                                          split_of(self->result, i), slot))) >= 0)
                self->result->factor[(size_t)i * MESH_MAX_AXES + (size_t)axis] = -1;
    }
}

AmStatus plan_assign(Assignment **assignment, Arena *arena, const PlanContext *context,
                     const PlanStage *stage, AmError *error) {
    return plan_assign_stage(assignment, arena, context, stage, NULL, error);
}

/* Returns a new assignment that splits nothing, NULL without memory. */
static Assignment *new_assignment(Arena *arena, const PlanContext *context, const PlanStage *stage) {
    int32_t count = context->rules->count;
    Assignment *result = ARENA_ARRAY(arena, Assignment, 1);
    if (!result) return NULL;
    *result = (Assignment){.stage = stage,
                           .factor = ARENA_ARRAY(arena, int8_t, (size_t)count * MESH_MAX_AXES),
                           .cut = ARENA_ARRAY(arena, SbpCut, (size_t)count * MESH_MAX_AXES),
                           .stored = ARENA_ARRAY(arena, SbpState, count),
                           .carries = ARENA_ARRAY(arena, uint8_t, count),
                           .deferred = ARENA_ARRAY(arena, uint8_t, count),
                           .partial = ARENA_ARRAY(arena, SbpReduction, (size_t)count * MESH_MAX_AXES),
                           .regathered = ARENA_ARRAY(arena, bool, count),
                           .live = context->split_options->live};
    if (arena->failed) return NULL;
    memset(result->factor, -1, (size_t)count * MESH_MAX_AXES);
    return result;
}

/* Ranks the classes by their place in the axis priorities; INT_MAX: not listed. */
static AmStatus rank_classes(Assigner *self, Arena *arena, AmError *error) {
    const PlanStage *stage = self->stage;
    int32_t classes = self->context->classes->count;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        self->rank[axis] = ARENA_ARRAY(arena, int32_t, classes + 1);
        if (arena->failed) return am_fail_memory(error, classes);
        for (int32_t c = 0; c < classes; c++) self->rank[axis][c] = INT_MAX;
        for (int32_t k = stage->axis_priorities[axis].count - 1; k >= 0; k--)
            if (stage->axis_priorities[axis].entries[k].kind == PLAN_COMPUTE)
                self->rank[axis][stage->axis_priorities[axis].entries[k].class_index] = k;
    }
    return AM_OK;
}

/* Makes a choice for each instruction on each axis that is split, axis by axis. */
static void choose_on_axes(Assigner *self, void (*choose)(Assigner *self, int32_t i, int32_t axis)) {
    const PlanStage *stage = self->stage;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        if (stage->mesh.axes[axis].size == 1 || stage->axis_priorities[axis].count == 0) continue;
        for (int32_t k = 0; k < self->split_options->decided_count; k++)
            choose(self, self->split_options->decided[k], axis);
    }
}

/* The phases in order; each reads fields that earlier phases wrote.
 *
 *      phase                       reads                          writes
 *   1  rank_classes                axis priorities                rank
 *   2  choose_stored               rank                           stored, of computed values
 *   3  storage_choose_states       storage entries, stored        stored, regathered, of ZeRO's roles
 *   4  storage_apply_places        reshards of the plan           regathered; stored, of loops' arrays
 *   5  join_carried                stored, of a loop's reader     stored, where a loop's array is held
 *   6  choose_factor               rank, stored                   factor, cut
 *   7  storage_choose_factors,     stored, factor                 factor, cut, of the optimizer
 *      storage_follow_overrides    states of weights              stored, factor, cut, of their roles
 *   8  apply_overrides             overrides                      stored, factor, cut, pinned
 *   9  join_carried                as 5                           as 5
 *  10  unconstrained_states_choose stored, factor, of neighbours  stored, factor, cut, if replicated
 *      states_follow_users         factor, of users               stored, if replicated
 *  11  part_collisions             stored, factor, cut            stored, factor: replicated
 *  12  place_reductions            stored, factor                 carries, deferred, partial
 */
AmStatus plan_assign_stage(Assignment **assignment, Arena *arena, const PlanContext *context,
                           const PlanStage *stage, const StageMap *map, AmError *error) {
    int32_t count = context->rules->count;
    Assignment *result = new_assignment(arena, context, stage);
    if (!result) return am_fail_memory(error, (int64_t)count * MESH_MAX_AXES);
    Assigner self = {.context = context,
                     .map = map,
                     .module = context->canonical,
                     .rules = context->rules,
                     .split_options = context->split_options,
                     .stage = stage,
                     .count = count,
                     .result = result};
    Storage storage;
    bool is_stored_split = storage_is_used(stage);
    TRY(rank_classes(&self, arena, error));
    choose_on_axes(&self, choose_stored);
    if (is_stored_split) {
        TRY(storage_begin(&storage, arena, context, result, error));
        storage_choose_states(&storage);
        self.storage = &storage;
    }
    if (is_stored_split || stage->reshard_count > 0 || context->split_options->storage->reread_count > 0)
        TRY(storage_apply_places(result, context, error));
    join_carried(&self);
    choose_on_axes(&self, choose_factor);
    if (is_stored_split) {
        storage_choose_factors(&storage);
        TRY(storage_follow_overrides(&storage, arena, error));
    }
    TRY(apply_overrides(&self, arena, error));
    if (stage->override_count > 0) join_carried(&self);
    TRY(unconstrained_states_choose(result, arena, context, error));
    TRY(states_follow_users(result, arena, context, error));
    part_collisions(&self);
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        ArenaMark mark = arena_mark(arena);
        if (stage->mesh.axes[axis].size > 1) place_reductions(&self, arena, axis);
        if (arena->failed) return am_fail_memory(error, count);
        arena_release(arena, mark);
    }
    *assignment = result;
    return AM_OK;
}
