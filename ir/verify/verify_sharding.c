/* Rules of shardings: each fits the shape of its instruction, and the instructions of a
 * loop or a conditional have one.
 *
 *   f32[8,6]                 {devices=[2,1,4]<=[8] last_tile_dim_replicate}
 *   (f32[8], s32[])          {{devices=[2]0,1}, {replicated}}
 *
 * A tiled sharding has one tile dimension for each dimension, then those of its
 * subgroups; as many devices as tiles, each once. A tuple has one sharding for each leaf,
 * or none of its own: a plain sharding on a tuple holds for every leaf, and fits each.
 */
#include <string.h>

#include "base/integers.h"
#include "ir/build/id_map.h"
#include "ir/verify/verify_parts.h"

typedef struct Sharded {
    const Verifier *verifier;
    const IrInstruction *instruction;
} Sharded;

static AmStatus fail(const Sharded *self, const char *problem) {
    return verify_refuse(self->verifier, self->instruction, "its sharding %s", problem);
}

static bool is_permutation(const int32_t *order, size_t count) {
    uint64_t seen = 0;
    for (size_t i = 0; i < count; i++) {
        if (count > 64 || order[i] < 0 || (size_t)order[i] >= count || (seen >> order[i] & 1)) return false;
        seen |= UINT64_C(1) << order[i];
    }
    return true;
}

static AmStatus verify_device_list(const Sharded *self, const int64_t *devices, size_t count) {
    Arena *arena = &self->verifier->module->arena;
    ArenaMark mark = arena_mark(arena);
    IdMap seen;
    if (!id_map_create(&seen, arena, (int64_t)count))
        return am_fail_memory(self->verifier->error, (int64_t)count);
    id_map_clear(&seen, (int64_t)count);
    AmStatus status = AM_OK;
    for (size_t i = 0; i < count && status == AM_OK; i++) {
        if (devices[i] < 0) status = fail(self, "has a negative device");
        if (status == AM_OK && !id_map_add(&seen, devices[i], 0)) status = fail(self, "has a device twice");
    }
    arena_release(arena, mark);
    return status;
}

/* Returns the number of tile dimensions after those of the array. */
static size_t subgroup_count(const Hlo__OpSharding *sharding) {
    if (sharding->n_last_tile_dims > 0) return sharding->n_last_tile_dims;
    return sharding->replicate_on_last_tile_dim ? 1 : 0;
}

/* Verifies the parts of a tiled sharding against one another. */
static AmStatus verify_tiles(const Sharded *self, const Hlo__OpSharding *sharding) {
    size_t count = sharding->n_tile_assignment_dimensions;
    int64_t tiles = bounded_product(sharding->tile_assignment_dimensions, count, INT64_MAX);
    if (count == 0) return fail(self, "has no tile dimensions");
    if (tiles < 1) return fail(self, "has a tile dimension below 1 or too many tiles");
    if (subgroup_count(sharding) > count) return fail(self, "has more subgroups than tile dimensions");
    if (sharding->replicate_on_last_tile_dim && sharding->n_last_tile_dims > 0 &&
        (sharding->n_last_tile_dims > 1 || sharding->last_tile_dims[0] != HLO__OP_SHARDING__TYPE__REPLICATED))
        return fail(self, "has last_tile_dim_replicate beside other last_tile_dims");
    if (sharding->n_iota_reshape_dims > 0) {
        if (bounded_product(sharding->iota_reshape_dims, sharding->n_iota_reshape_dims, INT64_MAX) != tiles)
            return fail(self, "has another number of devices than of tiles");
        if (sharding->n_iota_transpose_perm != sharding->n_iota_reshape_dims ||
            !is_permutation(sharding->iota_transpose_perm, sharding->n_iota_transpose_perm))
            return fail(self, "has an order T(...) that is no permutation of its dimensions");
    } else if ((int64_t)sharding->n_tile_assignment_devices != tiles) {
        return fail(self, "has another number of devices than of tiles");
    } else {
        TRY(verify_device_list(self, sharding->tile_assignment_devices, sharding->n_tile_assignment_devices));
    }
    if (tiles == 1 && sharding->n_iota_reshape_dims == 0)
        return fail(self, "has one tile (expected replicated or maximal)");
    return AM_OK;
}

static AmStatus verify_tiled(const Sharded *self, const Hlo__OpSharding *sharding, const IrShape *shape) {
    size_t rank = dtype_bits(shape->type) > 0 ? (size_t)shape->rank : 0;
    TRY(verify_tiles(self, sharding));
    size_t count = sharding->n_tile_assignment_dimensions - subgroup_count(sharding);
    if (count == rank) return AM_OK;
    return verify_refuse(self->verifier, self->instruction,
                         "its sharding has %zu tile dimensions, expected %zu", count, rank);
}

static AmStatus verify_named(const Sharded *self, const Hlo__NamedShardingProto *sharding,
                             const IrShape *shape) {
    size_t rank = dtype_bits(shape->type) > 0 ? (size_t)shape->rank : 0, axes = 0;
    for (size_t i = 0; i < sharding->n_dim_shardings; i++) axes += sharding->dim_shardings[i]->n_axes;
    if (axes == 0 || sharding->n_dim_shardings == rank) return AM_OK;
    return verify_refuse(self->verifier, self->instruction, "its sharding has %zu dimensions, expected %zu",
                         sharding->n_dim_shardings, rank);
}

/* Verifies the tiles of a sharding of unknown shapes: that of an outfeed is for the operands, not for its
 * token. */
static AmStatus verify_token(const Sharded *self, const Hlo__OpSharding *sharding) {
    if (sharding->named_sharding) return AM_OK;
    for (size_t i = 0; i < sharding->n_tuple_shardings; i++)
        TRY(verify_token(self, sharding->tuple_shardings[i]));
    return sharding->type == HLO__OP_SHARDING__TYPE__OTHER ? verify_tiles(self, sharding) : AM_OK;
}

static AmStatus verify_leaf(const Sharded *self, const Hlo__OpSharding *sharding, const IrShape *shape) {
    if (shape->type == DTYPE_TOKEN) return verify_token(self, sharding);
    if (sharding->named_sharding) return verify_named(self, sharding->named_sharding, shape);
    switch (sharding->type) {
    case HLO__OP_SHARDING__TYPE__OTHER: return verify_tiled(self, sharding, shape);
    case HLO__OP_SHARDING__TYPE__MAXIMAL:
        if (sharding->n_tile_assignment_devices > 1) return fail(self, "has several devices, expected one");
        return verify_device_list(self, sharding->tile_assignment_devices,
                                  sharding->n_tile_assignment_devices);
    case HLO__OP_SHARDING__TYPE__TUPLE: return fail(self, "is a tuple, the shape is not");
    default:
        return sharding->n_tile_assignment_devices == 0 ? AM_OK : fail(self, "has devices, expected none");
    }
}

/* Takes one sharding after the other for the leaves; *next counts them. */
static AmStatus verify_leaves(const Sharded *self, const Hlo__OpSharding *sharding, const IrShape *shape,
                              size_t *next) {
    if (shape->type != DTYPE_TUPLE) {
        if (*next >= sharding->n_tuple_shardings) {
            ++*next;
            return AM_OK;
        }
        return verify_leaf(self, sharding->tuple_shardings[(*next)++], shape);
    }
    for (int32_t i = 0; i < shape->rank; i++) TRY(verify_leaves(self, sharding, &shape->elements[i], next));
    return AM_OK;
}

/* Verifies a sharding that holds for every leaf of a shape. */
static AmStatus verify_each_leaf(const Sharded *self, const Hlo__OpSharding *sharding, const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) return verify_leaf(self, sharding, shape);
    for (int32_t i = 0; i < shape->rank; i++) TRY(verify_each_leaf(self, sharding, &shape->elements[i]));
    return AM_OK;
}

static AmStatus verify_sharding(const Verifier *verifier, const IrInstruction *instruction) {
    const Hlo__OpSharding *sharding = instruction->message->sharding;
    Sharded self = {verifier, instruction};
    if (!sharding) return AM_OK;
    bool is_tuple = sharding->type == HLO__OP_SHARDING__TYPE__TUPLE && !sharding->named_sharding;
    if (!is_tuple || instruction->shape.type == DTYPE_TOKEN)
        return verify_each_leaf(&self, sharding, &instruction->shape);
    if (instruction->shape.type != DTYPE_TUPLE) return fail(&self, "is a tuple, the shape is not");
    size_t leaves = 0;
    TRY(verify_leaves(&self, sharding, &instruction->shape, &leaves));
    if (sharding->n_tuple_shardings == leaves || (leaves == 0 && sharding->n_tuple_shardings == 1))
        return AM_OK;
    return verify_refuse(verifier, instruction, "its sharding has %zu parts, expected %zu",
                         sharding->n_tuple_shardings, leaves);
}

/* ------------------------------------------------------------- Agreement */

/* Returns whether two shardings certainly differ: an iota and a list of devices may be equal. */
static bool differ(const Hlo__OpSharding *a, const Hlo__OpSharding *b) {
    if (a->named_sharding || b->named_sharding) return false;
    if (a->type != b->type) return true;
    if (a->type == HLO__OP_SHARDING__TYPE__TUPLE) {
        if (a->n_tuple_shardings != b->n_tuple_shardings) return true;
        for (size_t i = 0; i < a->n_tuple_shardings; i++)
            if (differ(a->tuple_shardings[i], b->tuple_shardings[i])) return true;
        return false;
    }
    size_t count = a->n_tile_assignment_dimensions;
    if (count != b->n_tile_assignment_dimensions) return true;
    for (size_t i = 0; i < count; i++)
        if (a->tile_assignment_dimensions[i] != b->tile_assignment_dimensions[i]) return true;
    if (a->n_iota_reshape_dims || b->n_iota_reshape_dims) return false;
    count = a->n_tile_assignment_devices;
    if (count != b->n_tile_assignment_devices) return true;
    for (size_t i = 0; i < count; i++)
        if (a->tile_assignment_devices[i] != b->tile_assignment_devices[i]) return true;
    return false;
}

/* Checks a sharding against the earlier ones. `*first` is the sharded instruction so far, or NULL. */
static AmStatus verify_agrees(const Verifier *verifier, const IrInstruction *owner, int32_t index,
                              const IrInstruction **first) {
    const IrInstruction *instruction = &verifier->module->instructions[index];
    /* A plain sharding of a tuple is that of each leaf, and not compared with a tuple of shardings. */
    if (!instruction->message->sharding ||
        (instruction->shape.type == DTYPE_TUPLE &&
         instruction->message->sharding->type != HLO__OP_SHARDING__TYPE__TUPLE))
        return AM_OK;
    if (!*first) *first = instruction;
    if (!differ((*first)->message->sharding, instruction->message->sharding)) return AM_OK;
    return verify_refuse(verifier, owner, "its %s and %s differ in sharding", (*first)->name,
                         instruction->name);
}

static AmStatus verify_owner(const Verifier *verifier, int32_t index) {
    const IrInstruction *owner = &verifier->module->instructions[index], *first = NULL;
    if (owner->opcode != IR_WHILE && owner->opcode != IR_CONDITIONAL) return AM_OK;
    TRY(verify_agrees(verifier, owner, index, &first));
    for (int32_t k = 0; k < owner->called_count; k++) {
        const IrComputation *called = verify_called(verifier, owner, k);
        bool has_result = owner->opcode == IR_CONDITIONAL || k == 0; /* a loop's condition gives a flag */
        if (has_result) TRY(verify_agrees(verifier, owner, called->root, &first));
        if (owner->opcode == IR_WHILE && called->parameter_count == 1)
            TRY(verify_agrees(verifier, owner, called->parameters[0], &first));
    }
    return AM_OK;
}

AmStatus verify_shardings(const Verifier *verifier) {
    for (int32_t i = 0; i < verifier->module->instruction_count; i++) {
        TRY(verify_sharding(verifier, &verifier->module->instructions[i]));
        TRY(verify_owner(verifier, i));
    }
    return AM_OK;
}
