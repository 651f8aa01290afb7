/* Resharding (boxing in OneFlow, section 3.2): from one state of a tensor to another by the
 * cheapest sequence of collectives.
 *
 * reshard_path.c finds the sequence; here it becomes instructions. A shard that is a
 * piece of each of several blocks of a dimension (SbpCut) is moved in another view
 * of the tensor, which has the blocks as a dimension.
 */
#include "lowering/spmd/lower_internal.h"

/* Extents along `dimension` of the members of the group over `axes`. */
static const int64_t *group_parts(Lowering *self, uint32_t axes, SbpState state, int32_t dimension,
                                  int64_t size) {
    return lower_memo_parts(self->memo, self->arena, self->mesh, self->program->device, axes, state,
                            dimension, size);
}

/* Computes the range that each member of a halo_exchange needs, relative to the start of the
 * group's first shard. */
static void find_ranges(Lowering *self, ProgramMovement *movement, const ProgramCollective *collective,
                        const IrShape *global, SbpState from, const ReshardStep *step) {
    const Mesh *mesh = self->mesh;
    int32_t count = collective->group_count, d = step->dimension;
    int64_t *starts = ARENA_ARRAY(self->arena, int64_t, count + 1), first, part;
    int64_t *extents = ARENA_ARRAY(self->arena, int64_t, count + 1);
    if (self->arena->failed) return;
    sbp_shard(mesh, from, collective->group[0], d, global->dimensions[d], &first, &part);
    for (int32_t k = 0; k < count; k++) {
        sbp_shard(mesh, step->state, collective->group[k], d, global->dimensions[d], &starts[k], &extents[k]);
        starts[k] -= first;
    }
    movement->range_start = starts;
    movement->range_extent = extents;
}

static AmStatus emit_collective(Lowering *self, ProgramInstruction *instruction, const IrShape *global,
                                SbpState from, const ReshardStep *step, AmError *error) {
    const Mesh *mesh = self->mesh;
    ProgramCollective *collective = ARENA_ARRAY(self->arena, ProgramCollective, 1);
    const KnownGroup *group =
        lower_memo_group(self->memo, self->arena, mesh, self->program->device, step->axes);
    ProgramMovement *movement = ARENA_ARRAY(self->arena, ProgramMovement, 1);
    if (self->arena->failed) return am_fail_memory(error, mesh->device_count);
    *collective = (ProgramCollective){.kind = (ProgramCollectiveKind)step->kind,
                                      .reduction = step->reduction,
                                      .axes = step->axes,
                                      .group_count = group->count,
                                      .group = group->devices};
    if (step->kind != PROGRAM_ALL_REDUCE) {
        SbpState split = step->kind == PROGRAM_REDUCE_SCATTER ? step->state : from;
        movement->dimension = step->dimension;
        movement->parts =
            group_parts(self, step->axes, split, step->dimension, global->dimensions[step->dimension]);
        if (step->kind == PROGRAM_ALL_TO_ALL) {
            movement->other = step->other;
            movement->other_parts =
                group_parts(self, step->axes, step->state, step->other, global->dimensions[step->other]);
        }
        if (step->kind == PROGRAM_HALO_EXCHANGE) find_ranges(self, movement, collective, global, from, step);
        collective->movements = movement;
    }
    instruction->kind = PROGRAM_COLLECTIVE;
    instruction->collective = collective;
    return self->arena->failed ? am_fail_memory(error, group->count) : AM_OK;
}

/* Emits a slice that keeps the shard under `to` of a shard under `from`. */
static AmStatus emit_cut(Lowering *self, ProgramInstruction *instruction, const IrShape *global,
                         SbpState from, SbpState to, AmError *error) {
    int32_t rank = global->rank;
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    int64_t *numbers = ARENA_ARRAY(self->arena, int64_t, 3 * rank + 1);
    if (self->arena->failed) return am_fail_memory(error, rank);
    for (int32_t d = 0; d < rank; d++) {
        int64_t from_start, from_extent, to_start, to_extent;
        sbp_shard(self->mesh, from, self->program->device, d, global->dimensions[d], &from_start,
                  &from_extent);
        sbp_shard(self->mesh, to, self->program->device, d, global->dimensions[d], &to_start, &to_extent);
        numbers[d] = to_start - from_start;
        numbers[rank + d] = numbers[d] + to_extent;
        numbers[2 * rank + d] = 1;
    }
    *attributes = (IrAttributes){
        .slice_start = numbers, .slice_limit = numbers + rank, .slice_stride = numbers + 2 * rank};
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = IR_SLICE;
    instruction->attributes = attributes;
    return AM_OK;
}

/* A tensor with every dimension that a state cuts in blocks seen as two. */
typedef struct BlockView {
    IrShape shape;
    int32_t place[IR_MAX_RANK]; /* dimension -> that of the view, the second of two */
} BlockView;

/* Writes the view in blocks. Returns false where the view would have too many dimensions. */
static bool view_in_blocks(BlockView *view, int64_t *dimensions, const IrShape *global, SbpState from,
                           SbpState to) {
    int32_t rank = 0;
    for (int32_t d = 0; d < global->rank; d++) {
        int64_t blocks = sbp_blocks(from, d);
        if (blocks == 1) blocks = sbp_blocks(to, d);
        if (rank + 2 > IR_MAX_RANK) return false;
        if (blocks > 1) dimensions[rank++] = blocks;
        view->place[d] = rank;
        dimensions[rank++] = global->dimensions[d] / blocks;
    }
    view->shape = (IrShape){.type = global->type, .rank = rank, .dimensions = dimensions};
    return true;
}

/* Returns a state of the tensor as one of the view. */
static SbpState state_in_view(const Mesh *mesh, const BlockView *view, SbpState state) {
    SbpState seen = state;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        if (!sbp_is_split(state.axis[axis])) continue;
        int32_t d = view->place[sbp_dimension(state.axis[axis])];
        SbpCut cut = state.cut[axis];
        sbp_set(&seen, axis, SBP_B);
        if (cut.outer > 1) cut = sbp_cut(mesh, seen, axis, d, view->shape.dimensions[d], 1, cut.count);
        sbp_set_split(&seen, axis, d, cut);
    }
    return seen;
}

/* Adds an instruction on `*value` that gives the result in this state, as the new `*value`. */
static ProgramInstruction *add_step(Lowering *self, LoweredResult result, SbpState state, int32_t *value) {
    static const IrAttributes none;
    int32_t *operands = ARENA_ARRAY(self->arena, int32_t, 1);
    int32_t added = lower_add_value(self, result.i, result.leaf, result.global, state);
    ProgramInstruction *instruction = lower_add_instruction(self);
    if (!operands) return instruction; /* the arena has failed */
    *operands = *value;
    instruction->origin = result.i;
    instruction->operand_count = instruction->result_count = 1;
    instruction->operands = operands;
    instruction->first_result = *value = added;
    instruction->attributes = &none;
    return instruction;
}

/* Adds a view of `*value` under the shape of `result`. */
static void add_view(Lowering *self, LoweredResult result, SbpState state, int32_t *value) {
    ProgramInstruction *view = add_step(self, result, state, value);
    view->kind = PROGRAM_VIEW;
    view->opcode = IR_RESHAPE;
}

/* Emits one step on a value; gives the value in the step's state. */
static AmStatus emit_step(Lowering *self, LoweredResult result, SbpState from, const ReshardStep *step,
                          int32_t *value, AmError *error) {
    ProgramInstruction *instruction = add_step(self, result, step->state, value);
    if (self->arena->failed) return am_fail_memory(error, 0);
    return step->kind < 0 ? emit_cut(self, instruction, result.global, from, step->state, error)
                          : emit_collective(self, instruction, result.global, from, step, error);
}

/* Emits one step on a value whose state before or after cuts in blocks: on a view of the value. */
static AmStatus emit_step_in_blocks(Lowering *self, LoweredResult result, SbpState from,
                                    const ReshardStep *step, int32_t *value, AmError *error) {
    const Mesh *mesh = self->mesh;
    BlockView view;
    int64_t *dimensions = ARENA_ARRAY(self->arena, int64_t, IR_MAX_RANK);
    if (!dimensions) return am_fail_memory(error, IR_MAX_RANK);
    if (!view_in_blocks(&view, dimensions, result.global, from, step->state))
        return am_fail(error, AM_ERROR_INPUT, self->module->source,
                       "lowering %s: cut in blocks, its %d dimensions may become more than %d",
                       self->module->instructions[result.i].name, result.global->rank, IR_MAX_RANK);
    const LoweredResult in_blocks = {result.i, LOWERED_IN_BLOCKS, &view.shape};
    SbpState before = state_in_view(mesh, &view, from);
    ReshardStep seen = *step;
    seen.state = state_in_view(mesh, &view, step->state);
    seen.dimension = view.place[step->dimension];
    seen.other = view.place[step->other];
    add_view(self, in_blocks, before, value);
    TRY(emit_step(self, in_blocks, before, &seen, value, error));
    add_view(self, result, step->state, value);
    return self->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

static bool has_blocks(SbpState state) {
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++)
        if (sbp_is_split(state.axis[axis]) && state.cut[axis].outer > 1) return true;
    return false;
}

/* Returns the state after the sums over axes with storage entries, where the stage decides how they are made
 * (PlanStage, all_reduces_gradients and reduces_in_f32); else `state`. */
static SbpState state_behind_sums(const Lowering *self, SbpState state, SbpState to) {
    const PlanStage *stage = self->assignment->stage;
    bool decides = stage->all_reduces_gradients || stage->reduces_in_f32;
    for (int32_t axis = 0; decides && axis < self->mesh->axis_count; axis++) {
        const PlanAxisPriority *priority = &stage->axis_priorities[axis];
        bool stores_shards = false;
        for (int32_t e = 0; e < priority->count; e++)
            stores_shards |= priority->entries[e].kind != PLAN_COMPUTE;
        if (!sbp_is_partial(state.axis[axis]) || sbp_is_partial(to.axis[axis]) || !stores_shards) continue;
        if (stage->all_reduces_gradients || !sbp_is_split(to.axis[axis])) sbp_set(&state, axis, SBP_B);
        else sbp_take(&state, to, axis);
    }
    return state;
}

/* Emits the steps on `*value`, of a result in state `from`, to state `to`. */
static AmStatus follow_path(Lowering *self, LoweredResult result, SbpState from, SbpState to, int32_t *value,
                            AmError *error) {
    const ReshardPath *path = lower_memo_path(self->memo, self->arena, self->mesh, result.global, from, to);
    if (!path)
        return am_fail(error, AM_ERROR_INTERNAL, self->module->source,
                       "lowering %s: cannot reshard its value, no steps lead to the state of its reader",
                       self->module->instructions[result.i].name);
    for (int32_t k = 0; k < path->count; k++) {
        const ReshardStep *step = &path->steps[k];
        bool moves = step->kind != PROGRAM_ALL_REDUCE; /* an all_reduce works on any shard */
        bool in_blocks = moves && (has_blocks(from) || has_blocks(step->state));
        TRY(in_blocks ? emit_step_in_blocks(self, result, from, step, value, error)
                      : emit_step(self, result, from, step, value, error));
        from = step->state;
    }
    return AM_OK;
}

AmStatus reshard_value(Lowering *self, LoweredResult result, int32_t from, SbpState to, int32_t *value,
                       AmError *error) {
    *value = from;
    SbpState state = self->program->values[from].state, before = reshard_before_partial(state, to);
    SbpState summed = state_behind_sums(self, state, before);
    bool is_f32 = dtype_is_16bit_float(result.global->type) && self->assignment->stage->reduces_in_f32;
    if (!sbp_equal(state, summed) && is_f32) { /* sums of 16-bit floats are made in f32 */
        IrShape f32 = lower_f32_shape(result.global);
        const LoweredResult in_f32 = {result.i, LOWERED_HELPER, &f32};
        TRY(lower_convert(self, in_f32, *value, value, error));
        TRY(follow_path(self, in_f32, state, summed, value, error));
        TRY(lower_convert(self, result, *value, value, error));
    } else if (!sbp_equal(state, summed)) {
        TRY(follow_path(self, result, state, summed, value, error));
    }
    TRY(follow_path(self, result, summed, before, value, error));
    return sbp_equal(before, to) ? AM_OK : reshard_make_partial(self, result, *value, to, value, error);
}
