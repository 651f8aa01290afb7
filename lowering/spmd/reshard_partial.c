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

/* The value that an operator of a reshard computes. */
typedef struct ReshardResult {
    int32_t leaf;
    const IrShape *global;
    SbpState state;
} ReshardResult;

static int32_t add_operator(Lowering *self, int32_t i, ReshardResult result, IrOpcode opcode,
                            const int32_t *operands, int32_t count, const IrAttributes *attributes) {
    int32_t *kept = ARENA_ARRAY(self->arena, int32_t, count);
    if (!kept) return 0;
    memcpy(kept, operands, sizeof *kept * (size_t)count);
    int32_t value = lower_add_value(self, i, result.leaf, result.global, result.state);
    ProgramInstruction *instruction = lower_add_instruction(self);
    instruction->kind = PROGRAM_COMPUTE;
    instruction->opcode = opcode;
    instruction->origin = i;
    instruction->operand_count = count;
    instruction->operands = kept;
    instruction->result_count = 1;
    instruction->first_result = value;
    instruction->attributes = attributes;
    return value;
}

/* Emits the value of a state whose `axes` (bits) split dimensions, padded to a shard without them. */
static int32_t pad(Lowering *self, int32_t i, ReshardResult result, int32_t from, int32_t identity) {
    const IrShape *global = result.global;
    const Mesh *mesh = self->mesh;
    SbpState before = self->program->values[from].state;
    IrAttributes *attributes = ARENA_ARRAY(self->arena, IrAttributes, 1);
    IrPadding *padding = ARENA_ARRAY(self->arena, IrPadding, global->rank + 1);
    if (self->arena->failed) return 0;
    for (int32_t d = 0; d < global->rank; d++) {
        int64_t start, extent, padded_start, padded_extent;
        sbp_shard(mesh, before, self->device, d, global->dimensions[d], &start, &extent);
        sbp_shard(mesh, result.state, self->device, d, global->dimensions[d], &padded_start, &padded_extent);
        padding[d].low = start - padded_start;
        padding[d].high = padded_extent - extent - padding[d].low;
    }
    attributes->padding = padding;
    int32_t operands[] = {from, identity};
    return add_operator(self, i, result, IR_PAD, operands, 2, attributes);
}

/* Emits the value on devices that keep it, the identity elsewhere. */
static int32_t emit_choice(Lowering *self, int32_t i, ReshardResult result, int32_t from, int32_t identity,
                           bool keeps) {
    static const IrAttributes none;
    IrShape *choice = ARENA_ARRAY(self->arena, IrShape, 1);
    if (!choice) return 0;
    SbpState held = self->program->values[from].state;
    *choice = *result.global;
    choice->type = DTYPE_PRED;
    char byte[8] = {keeps};
    int32_t kept = add_constant(self, i, DTYPE_PRED, byte), filled = identity;
    if (result.global->rank > 0) {
        const ReshardResult choices = {.leaf = LOWERED_HELPER, .global = choice, .state = held};
        const ReshardResult identities = {.leaf = LOWERED_HELPER, .global = result.global, .state = held};
        kept = add_operator(self, i, choices, IR_BROADCAST, &kept, 1, &none);
        filled = add_operator(self, i, identities, IR_BROADCAST, &identity, 1, &none);
    }
    int32_t operands[] = {kept, from, filled};
    return add_operator(self, i, result, IR_SELECT, operands, 3, &none);
}

AmStatus reshard_make_partial(Lowering *self, int32_t i, int32_t leaf, const IrShape *global, int32_t from,
                              SbpState to, int32_t *value, AmError *error) {
    SbpState before = self->program->values[from].state, padded = before;
    bool keeps = true, pads = false, chooses = false;
    char bytes[16];
    SbpReduction reduction = SBP_ADD;
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) {
        if (!sbp_is_partial(to.axis[axis]) || before.axis[axis] == to.axis[axis]) continue;
        if ((pads || chooses) && reduction != sbp_reduction(to.axis[axis]))
            return am_fail(error, AM_ERROR_INTERNAL, self->module->source,
                           "lowering %s: partial by two operators", self->module->instructions[i].name);
        reduction = sbp_reduction(to.axis[axis]);
        if (sbp_is_split(before.axis[axis])) {
            sbp_take(&padded, to, axis);
            pads = true;
        } else {
            chooses = true;
            keeps = keeps && mesh_coordinate(self->mesh, self->device, axis) == 0;
        }
    }
    reduction_identity(bytes, global->type, reduction);
    int32_t identity = add_constant(self, i, global->type, bytes);
    *value = from;
    ReshardResult padded_result = {
        .leaf = chooses ? LOWERED_HELPER : leaf, .global = global, .state = padded};
    ReshardResult chosen = {.leaf = leaf, .global = global, .state = to};
    if (pads) *value = pad(self, i, padded_result, from, identity);
    if (chooses) *value = emit_choice(self, i, chosen, *value, identity, keeps);
    return self->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}
