/* Makes a value partial: the last step of a reshard to P(op), which moves no data.
 *
 * From S(d): every device pads its shard with the operator's identity to the shard that it would
 * have without that axis. From B: the first device along the axis keeps the value, the others have
 * the identity. Several axes at once are one pad and one selection. (OneFlow, table 2: S -> P and B
 * -> P cost nothing on the same devices.)
 */
#include <string.h>

#include "lowering/spmd/lower_internal.h"
#include "propagation/sharding/reduction_identity.h"

/* Returns whether a shard that `axis` split can be padded: no remaining minor axis splits the same
 * dimension, and no axis splits in blocks (a shard of one block beside pieces of all is no state). */
static bool can_pad(SbpState before, SbpState to, int32_t axis) {
    for (int32_t k = axis + 1; k < MESH_MAX_AXES; k++)
        if (before.axis[k] == before.axis[axis] && !sbp_is_partial(to.axis[k])) return false;
    return sbp_blocks(before, sbp_dimension(before.axis[axis])) == 1;
}

SbpState reshard_before_partial(SbpState from, SbpState to) {
    SbpState before = to;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        if (!sbp_is_partial(to.axis[axis]) || from.axis[axis] == to.axis[axis]) continue;
        sbp_set(&before, axis, SBP_B);
        if (sbp_is_split(from.axis[axis])) sbp_take(&before, from, axis);
    }
    for (int32_t axis = MESH_MAX_AXES - 1; axis >= 0; axis--) {
        bool is_padded = sbp_is_split(before.axis[axis]) && sbp_is_partial(to.axis[axis]);
        if (is_padded && !can_pad(before, to, axis)) sbp_set(&before, axis, SBP_B);
    }
    return before;
}

/* Adds a constant of one element, the same on all devices but for its bytes. */
static int32_t add_constant(Lowering *self, int32_t i, Dtype type, const char *bytes) {
    IrShape *scalar = ARENA_ARRAY(self->arena, IrShape, 1);
    IrLiteral *literal = ARENA_ARRAY(self->arena, IrLiteral, 1);
    char *data = arena_copy_bytes(self->arena, bytes, (size_t)dtype_bytes(type));
    if (self->arena->failed) return 0;
    static const IrAttributes none;
    *scalar = (IrShape){.type = type};
    *literal = (IrLiteral){.data = data, .bytes = dtype_bytes(type)};
    int32_t value = lower_add_value(self, i, LOWERED_HELPER, scalar, (SbpState){.axis = {SBP_B}});
    ProgramInstruction *constant = lower_add_instruction(self);
    constant->kind = PROGRAM_COMPUTE;
    constant->opcode = IR_CONSTANT;
    constant->origin = i;
    constant->result_count = 1;
    constant->first_result = value;
    constant->attributes = &none;
    constant->compute.literal = literal;
    return value;
}

/* Adds an operator that computes the result in this state, and returns its value. */
static int32_t add_operator(Lowering *self, LoweredResult result, SbpState state, IrOpcode opcode,
                            const int32_t *operands, const IrAttributes *attributes) {
    int32_t count = ir_opcode_arity(opcode);
    int32_t *kept = ARENA_ARRAY(self->arena, int32_t, count);
    if (!kept) return 0;
    memcpy(kept, operands, sizeof *kept * (size_t)count);
    int32_t value = lower_add_value(self, result.i, result.leaf, result.global, state);
    ProgramInstruction *instruction = lower_add_instruction(self);
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = opcode;
    instruction->origin = result.i;
    instruction->operand_count = count;
    instruction->operands = kept;
    instruction->result_count = 1;
    instruction->first_result = value;
    instruction->attributes = attributes;
    return value;
}

/* Emits the value `from`, padded to the shard of `padded`, whose axes split fewer dimensions. */
static int32_t pad(Lowering *self, LoweredResult result, SbpState padded, int32_t from, int32_t identity) {
    const IrShape *global = result.global;
    const Mesh *mesh = self->mesh;
    SbpState before = self->program->values[from].state;
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    IrPadding *padding = ARENA_ARRAY(self->arena, IrPadding, global->rank + 1);
    if (self->arena->failed) return 0;
    for (int32_t d = 0; d < global->rank; d++) {
        int64_t start, extent, padded_start, padded_extent;
        sbp_shard(mesh, before, self->device, d, global->dimensions[d], &start, &extent);
        sbp_shard(mesh, padded, self->device, d, global->dimensions[d], &padded_start, &padded_extent);
        padding[d].low = start - padded_start;
        padding[d].high = padded_extent - extent - padding[d].low;
    }
    attributes->padding = padding;
    int32_t operands[] = {from, identity};
    return add_operator(self, result, padded, IR_PAD, operands, attributes);
}

/* Emits the value on devices that keep it, the identity elsewhere. */
static int32_t emit_choice(Lowering *self, LoweredResult result, SbpState chosen, int32_t from,
                           int32_t identity, bool keeps) {
    static const IrAttributes none;
    IrShape *choice = ARENA_ARRAY(self->arena, IrShape, 1);
    if (!choice) return 0;
    SbpState held = self->program->values[from].state;
    *choice = *result.global;
    choice->type = DTYPE_PRED;
    char byte[8] = {keeps};
    int32_t kept = add_constant(self, result.i, DTYPE_PRED, byte), filled = identity;
    if (result.global->rank > 0) {
        const LoweredResult choices = {result.i, LOWERED_HELPER, choice};
        const LoweredResult identities = {result.i, LOWERED_HELPER, result.global};
        kept = add_operator(self, choices, held, IR_BROADCAST, &kept, &none);
        filled = add_operator(self, identities, held, IR_BROADCAST, &identity, &none);
    }
    int32_t operands[] = {kept, from, filled};
    return add_operator(self, result, chosen, IR_SELECT, operands, &none);
}

AmStatus reshard_make_partial(Lowering *self, LoweredResult result, int32_t from, SbpState to, int32_t *value,
                              AmError *error) {
    SbpState before = self->program->values[from].state, padded = before;
    bool keeps = true, pads = false, chooses = false;
    char bytes[16];
    SbpReduction reduction = SBP_ADD;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        if (!sbp_is_partial(to.axis[axis]) || before.axis[axis] == to.axis[axis]) continue;
        if ((pads || chooses) && reduction != sbp_reduction(to.axis[axis]))
            return am_fail(error, AM_ERROR_INTERNAL, self->module->source,
                           "lowering %s: partial by two operators",
                           self->module->instructions[result.i].name);
        reduction = sbp_reduction(to.axis[axis]);
        if (sbp_is_split(before.axis[axis])) {
            sbp_take(&padded, to, axis);
            pads = true;
        } else {
            chooses = true;
            keeps = keeps && mesh_coordinate(self->mesh, self->device, axis) == 0;
        }
    }
    reduction_identity(bytes, result.global->type, reduction);
    int32_t identity = add_constant(self, result.i, result.global->type, bytes);
    LoweredResult between = result;
    if (chooses) between.leaf = LOWERED_HELPER;
    *value = from;
    if (pads) *value = pad(self, between, padded, from, identity);
    if (chooses) *value = emit_choice(self, result, to, *value, identity, keeps);
    return self->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}
