/* Halos: lowering of factors whose shards read ranges of the operands' dimensions.
 *
 * Each device computes its shard of the result's dimension, which reads a range of elements of an
 * operand's (halo_ranges.h). Every operand is resharded to these ranges by one halo_exchange, or by
 * a local slice if every range is within the own shard; then the operator runs with the attributes
 * that the ranges imply. A replicated operand stays so, and an exchanged value serves all users
 * that read the same ranges. All devices emit the same instructions: decisions depend on the ranges
 * of all members of the group. select-and-scatter computes all elements that its windows cover, and
 * is then sliced to the shard.
 */
#include <string.h>

#include "lowering/spmd/lower_internal.h"
#include "propagation/rules/halo_ranges.h"

/* ---- bringing an operand to its ranges ---- */

/* Returns the shards of dimension d of a value on the members of a halo's group. */
static HaloRange *find_parts(Lowering *self, const Halo *halo, SbpState state, int32_t d, int64_t size) {
    HaloRange *parts = ARENA_ARRAY(self->arena, HaloRange, halo->count);
    for (int32_t m = 0; parts && m < halo->count; m++)
        sbp_shard(self->mesh, state, halo->group[m], d, size, &parts[m].start, &parts[m].extent);
    return parts;
}

/* Adds a value like `value`, of another extent along dimension d, made by the next instruction. */
static int32_t add_brought(Lowering *self, int32_t value, int32_t d, int64_t extent) {
    IrShape shape = self->program->values[value].shape;
    int64_t *dimensions = ARENA_ARRAY(self->arena, int64_t, shape.rank);
    if (!dimensions) return 0;
    memcpy(dimensions, shape.dimensions, sizeof(int64_t) * (size_t)shape.rank);
    dimensions[d] = extent;
    shape.dimensions = dimensions;
    SbpState state = self->program->values[value].state;
    *self->is_uneven = true; /* what devices read differs in size, at the edges */
    int32_t made = lower_add_value(self, self->program->values[value].origin, LOWERED_HALO, &shape,
                                   (SbpState){.axis = {SBP_B}});
    if (!self->arena->failed) self->program->values[made].state = state;
    return made;
}

static ProgramInstruction *add_mover(Lowering *self, int32_t from, int32_t to) {
    static const IrAttributes none;
    int32_t *operand = ARENA_ARRAY(self->arena, int32_t, 1);
    ProgramInstruction *instruction = lower_add_instruction(self);
    if (self->arena->failed) return instruction;
    *operand = from;
    instruction->origin = self->program->values[from].origin;
    instruction->operand_count = instruction->result_count = 1;
    instruction->operands = operand;
    instruction->first_result = to;
    instruction->attributes = &none;
    return instruction;
}

/* Keeps of a value the box that begins at `starts` [rank] and has the shape of `to`. */
static AmStatus emit_slice(Lowering *self, int32_t from, const int64_t *starts, int32_t to, AmError *error) {
    const IrShape *shape = &self->program->values[to].shape;
    int32_t rank = shape->rank;
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int64_t *numbers = ARENA_ARRAY(self->arena, int64_t, 3 * rank + 1);
    if (self->arena->failed) return am_fail_memory(error, rank);
    for (int32_t d = 0; d < rank; d++) {
        numbers[d] = starts[d];
        numbers[rank + d] = starts[d] + shape->dimensions[d];
        numbers[2 * rank + d] = 1;
    }
    *attributes = (IrAttributes){
        .slice_start = numbers, .slice_limit = numbers + rank, .slice_stride = numbers + 2 * rank};
    ProgramInstruction *instruction = add_mover(self, from, to);
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = IR_SLICE;
    instruction->attributes = attributes;
    return self->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

static bool is_same_exchange(const ProgramMovement *a, const ProgramMovement *b, int32_t count) {
    size_t bytes = sizeof(int64_t) * (size_t)count;
    return a->dimension == b->dimension && memcmp(a->range_start, b->range_start, bytes) == 0 &&
           memcmp(a->range_extent, b->range_extent, bytes) == 0;
}

/* Returns the result of an earlier equal exchange of the value, or -1. */
static int32_t find_exchanged(const Lowering *self, int32_t value, const ProgramMovement *movement,
                              int32_t count) {
    const Program *program = self->program;
    for (int32_t held = self->newest[program->values[value].origin]; held >= 0;
         held = self->states[held].older) {
        if (self->states[held].leaf != LOWERED_HALO) continue;
        const ProgramInstruction *producer = &program->instructions[program->values[held].instruction];
        if (producer->kind == PROGRAM_COLLECTIVE && producer->operands[0] == value &&
            is_same_exchange(movement, &producer->collective->movements[0], count))
            return held;
    }
    return -1;
}

/* Brings the halo of an operand by an exchange with neighbours; `*value` is then the wider shard. */
static AmStatus exchange(Lowering *self, const Halo *halo, const HaloRange *parts, int32_t slot,
                         int32_t *value, AmError *error) {
    const HaloRange *ranges = &halo->ranges[slot * halo->count];
    int32_t count = halo->count, d = halo->factor->dimension[slot];
    int64_t *numbers = ARENA_ARRAY(self->arena, int64_t, 3 * count);
    if (!numbers) return am_fail_memory(error, count);
    for (int32_t m = 0; m < count; m++) {
        numbers[m] = parts[m].extent;
        numbers[count + m] = ranges[m].start;
        numbers[2 * count + m] = ranges[m].extent;
    }
    ProgramMovement wanted = {.dimension = d,
                              .parts = numbers,
                              .range_start = numbers + count,
                              .range_extent = numbers + 2 * count};
    int32_t held = find_exchanged(self, *value, &wanted, count);
    if (held < 0) {
        ProgramCollective *collective = ARENA_ARRAY(self->arena, ProgramCollective, 1);
        ProgramMovement *movement = ARENA_ARRAY(self->arena, ProgramMovement, 1);
        held = add_brought(self, *value, d, halo_own_range(halo, slot).extent);
        ProgramInstruction *instruction = add_mover(self, *value, held);
        if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof *collective);
        *movement = wanted;
        *collective = (ProgramCollective){.kind = PROGRAM_HALO_EXCHANGE,
                                          .axes = halo->axes,
                                          .group_count = count,
                                          .group = halo->group,
                                          .movements = movement};
        instruction->kind = PROGRAM_COLLECTIVE;
        instruction->collective = collective;
    }
    *value = held;
    return AM_OK;
}

/* Brings an operand to the ranges found, or, where they are within the parts and
 * need not be exact, sets the ranges to the parts. */
static AmStatus bring(Lowering *self, Halo *halo, bool is_exact, int32_t slot, int32_t *value,
                      AmError *error) {
    HaloRange *ranges = &halo->ranges[slot * halo->count];
    int32_t d = halo->factor->dimension[slot];
    SbpState state = self->program->values[*value].state;
    const HaloRange *parts = find_parts(self, halo, state, d, halo_operand_size(halo, slot));
    if (!parts) return am_fail_memory(error, halo->count);
    bool are_equal = true, are_within = true;
    for (int32_t m = 0; m < halo->count; m++) {
        if (ranges[m].extent == 0) ranges[m].start = parts[m].start;
        int64_t end = ranges[m].start + ranges[m].extent, part_end = parts[m].start + parts[m].extent;
        are_equal &= ranges[m].start == parts[m].start && end == part_end;
        are_within &= ranges[m].start >= parts[m].start && end <= part_end;
    }
    if (are_equal || (are_within && !is_exact)) {
        memcpy(ranges, parts, sizeof *ranges * (size_t)halo->count);
        return AM_OK;
    }
    if (!are_within) return exchange(self, halo, parts, slot, value, error);
    int64_t starts[IR_MAX_RANK] = {0};
    starts[d] = halo_own_range(halo, slot).start - parts[halo->position].start;
    int32_t cut = add_brought(self, *value, d, halo_own_range(halo, slot).extent);
    TRY(emit_slice(self, *value, starts, cut, error));
    *value = cut;
    return AM_OK;
}

/* ---- the instruction ---- */

/* Returns the slot whose dimension the parts are of: the result's, or a reduction's kernel. */
static int32_t part_slot(const FactorRule *rule, const Factor *factor) {
    return factor->kind == FACTOR_PERMUTATION ? rule->operand_count : 1;
}

static bool is_brought(const FactorRule *rule, const Factor *factor, int32_t slot) {
    return factor->dimension[slot] >= 0 && slot != part_slot(rule, factor);
}

static AmStatus open_halo(Halo *halo, Lowering *self, int32_t i, int32_t f, uint32_t axes,
                          SbpState part_state, AmError *error) {
    const Mesh *mesh = self->mesh;
    const FactorRule *rule = &self->rules->rules[i];
    int32_t *group = ARENA_ARRAY(self->arena, int32_t, mesh->device_count);
    if (!group) return am_fail_memory(error, mesh->device_count);
    int32_t count = mesh_group(mesh, self->program->device, axes, group);
    *halo = (Halo){.module = self->module,
                   .source = &self->module->instructions[i],
                   .rule = rule,
                   .factor = &rule->factors[f],
                   .axes = axes,
                   .group = group,
                   .count = count,
                   .ranges = ARENA_ARRAY(self->arena, HaloRange, (int64_t)count * rule->operand_count)};
    while (group[halo->position] != self->program->device) halo->position++;
    /* A reversed window meets the end of its kernel first. */
    int32_t slot = part_slot(halo->rule, halo->factor), d = halo->factor->dimension[slot];
    bool is_kernel = slot < halo->rule->operand_count;
    int64_t size =
        is_kernel ? halo_operand_size(halo, slot) : rules_leaf(&halo->source->shape, 0)->dimensions[d];
    HaloRange *parts = find_parts(self, halo, part_state, d, size);
    for (int32_t m = 0; parts && is_kernel && halo_is_reversed(halo) && m < halo->count; m++)
        parts[m].start = size - parts[m].start - parts[m].extent;
    halo->parts = parts;
    return self->arena->failed ? am_fail_memory(error, count) : AM_OK;
}

/* Returns a copy of the attributes, with the slices of dimensions that are split without a halo as long as
 * these are here. NULL without memory. */
static LocalAttributes *copy_attributes(Lowering *self, const IrInstruction *source,
                                        const IrShape *local_operand) {
    const IrAttributes *global = source->attributes;
    const IrShape *operand = &self->module->instructions[source->operands[0]].shape;
    int32_t rank = local_operand->rank;
    LocalAttributes *local = ARENA_ARRAY(self->arena, LocalAttributes, 1);
    if (!local) return NULL;
    *local =
        (LocalAttributes){.attributes = *global,
                          .slice_start = ARENA_ARRAY(self->arena, int64_t, rank + 1),
                          .slice_limit = ARENA_ARRAY(self->arena, int64_t, rank + 1),
                          .padding = ARENA_ARRAY(self->arena, IrPadding, rank + 1),
                          .window = ARENA_ARRAY(self->arena, IrWindowDimension, global->window_count + 1)};
    if (self->arena->failed) return NULL;
    if (global->padding) {
        memcpy(local->padding, global->padding, sizeof *global->padding * (size_t)rank);
        local->attributes.padding = local->padding;
    }
    if (global->window) {
        memcpy(local->window, global->window, sizeof *global->window * (size_t)global->window_count);
        local->attributes.window = local->window;
    }
    for (int32_t d = 0; d < rank && source->opcode == IR_SLICE; d++) {
        bool takes_all = global->slice_limit[d] - global->slice_start[d] == operand->dimensions[d];
        local->slice_start[d] = global->slice_start[d];
        local->slice_limit[d] = takes_all ? local_operand->dimensions[d] : global->slice_limit[d];
        local->attributes.slice_start = local->slice_start;
        local->attributes.slice_limit = local->slice_limit;
    }
    return local;
}

bool lower_has_halo(const Lowering *self, int32_t i, const int8_t *factors) {
    for (int32_t axis = 0; axis < self->mesh->axis_count; axis++)
        if (factors[axis] >= 0 && self->rules->rules[i].factors[factors[axis]].halo) return true;
    return false;
}

SbpState lower_halo_state(const Lowering *self, int32_t i, const int8_t *factors, int32_t slot,
                          SbpState state) {
    const FactorRule *rule = &self->rules->rules[i];
    int32_t producer = self->split_options->operands[self->split_options->first_operand[i] + slot];
    const SbpState *stored = &self->assignment->stored[producer];
    for (int32_t axis = 0; axis < self->mesh->axis_count; axis++) {
        const Factor *factor = factors[axis] < 0 ? NULL : &rule->factors[factors[axis]];
        if (!factor || !factor->halo || !is_brought(rule, factor, slot)) continue;
        Sbp split = sbp_split(factor->dimension[slot]);
        bool is_there = sbp_blocks(*stored, factor->dimension[slot]) == 1, takes_all = true;
        for (int32_t k = 0; k < MESH_MAX_AXES; k++) {
            bool is_along = k < self->mesh->axis_count && factors[k] == factors[axis];
            is_there &= (stored->axis[k] == split) == is_along;
            takes_all &= !is_along || stored->axis[k] == SBP_B;
        }
        if (self->rules->on_demand[producer] || takes_all) sbp_set(&state, axis, SBP_B);
        else if (is_there) sbp_take(&state, *stored, axis);
    }
    return state;
}

/* Emits the instruction itself, on operands with their halos. */
static AmStatus emit_local(Lowering *self, int32_t i, int32_t *operands, int32_t first_result,
                           const Halo *halos, int32_t halo_count, AmError *error) {
    const IrInstruction *source = &self->module->instructions[i];
    LocalAttributes *local = copy_attributes(self, source, &self->program->values[operands[0]].shape);
    ProgramInstruction *instruction = lower_add_instruction(self);
    if (self->arena->failed) return am_fail_memory(error, 0);
    for (int32_t k = 0; k < halo_count; k++) halo_localise(local, &halos[k]);
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = source->opcode;
    instruction->origin = i;
    instruction->operand_count = source->operand_count;
    instruction->operands = operands;
    instruction->result_count = self->rules->rules[i].result_count;
    instruction->first_result = first_result;
    instruction->attributes = &local->attributes;
    if (source->called_count > 0) instruction->compute.called = source->called[0];
    if (source->called_count > 1) instruction->compute.called_second = source->called[1];
    if (halo_is_slice_done(halos, halo_count)) {
        instruction->kind = PROGRAM_VIEW;
        instruction->opcode = IR_COPY;
    }
    return lower_local_groups(self, instruction, source, error);
}

AmStatus lower_halo(Lowering *self, int32_t i, const int8_t *factors, int32_t *operands,
                    SbpState result_state, AmError *error) {
    const IrInstruction *source = &self->module->instructions[i];
    const FactorRule *rule = &self->rules->rules[i];
    int64_t starts[IR_MAX_RANK] = {0};
    Halo halos[MESH_MAX_AXES];
    int32_t halo_count = 0, axis_count = self->mesh->axis_count;
    bool is_cut = false;
    uint32_t done = 0;
    if (!halo_is_known(source->opcode))
        return am_fail(error, AM_ERROR_INTERNAL, self->module->source, "lowering %s: its halo is not known",
                       source->name);
    for (int32_t axis = 0; axis < axis_count; axis++) {
        if (factors[axis] < 0 || done >> axis & 1 || !rule->factors[factors[axis]].halo) continue;
        Halo *halo = &halos[halo_count++];
        int32_t slot = part_slot(rule, &rule->factors[factors[axis]]);
        /* The axes that split the same factor as this one. */
        uint32_t axes = 0;
        for (int32_t n = 0; n < axis_count; n++)
            if (factors[n] == factors[axis]) axes |= 1u << n;
        SbpState parts =
            slot < rule->operand_count ? self->program->values[operands[slot]].state : result_state;
        done |= axes;
        TRY(open_halo(halo, self, i, factors[axis], axes, parts, error));
        for (int32_t k = 0; k < rule->operand_count; k++) {
            if (!is_brought(rule, halo->factor, k)) continue;
            halo_find_ranges(halo, k);
            TRY(bring(self, halo, halo_is_exact(halo), k, &operands[k], error));
        }
        if (source->opcode != IR_SELECT_AND_SCATTER) continue;
        for (int32_t m = 0; m < halo->count; m++) is_cut |= halo->ranges[m].extent != halo->parts[m].extent;
        if (halo_own_part(halo).extent > 0) /* the shard in the computed range */
            starts[halo->factor->dimension[0]] = halo_own_part(halo).start - halo_own_range(halo, 0).start;
    }
    if (is_cut) { /* computes a result of operand 0's extents, and cuts it to the shard */
        int32_t computed = lower_add_value(self, i, LOWERED_HALO, &self->program->values[operands[0]].shape,
                                           (SbpState){.axis = {SBP_B}});
        if (self->arena->failed) return am_fail_memory(error, 0);
        self->program->values[computed].state = result_state;
        TRY(emit_local(self, i, operands, computed, halos, halo_count, error));
        int32_t kept = lower_add_value(self, i, 0, &self->module->instructions[i].shape, result_state);
        return self->arena->failed ? am_fail_memory(error, 0)
                                   : emit_slice(self, computed, starts, kept, error);
    }
    int32_t first_result = self->program->value_count;
    for (int32_t leaf = 0; leaf < rule->result_count; leaf++)
        lower_add_value(self, i, leaf, rules_leaf(&source->shape, leaf), result_state);
    return emit_local(self, i, operands, first_result, halos, halo_count, error);
}
