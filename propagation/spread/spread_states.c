/* States of canonical values on a mesh, as shardings of the module that was read.
 *
 * A canonical instruction keeps the message of the instruction that it comes
 * from. One that comes from a computation inlined several times has its first state.
 */
#include "propagation/spread/spread_states.h"
#include "propagation/propagate/read_sharding.h"
#include "propagation/propagate/sharded_module.h"

#include <stdlib.h>

typedef struct Origin {
    const Hlo__HloInstructionProto *message;
    int32_t instruction;
} Origin;

static int compare_origins(const void *a, const void *b) {
    uintptr_t left = (uintptr_t)((const Origin *)a)->message, right = (uintptr_t)((const Origin *)b)->message;
    return left < right ? -1 : left > right;
}

static bool is_split(const Hlo__OpSharding *message) {
    for (size_t k = 0; k < message->n_tuple_shardings; k++)
        if (is_split(message->tuple_shardings[k])) return true;
    return message->type == HLO__OP_SHARDING__TYPE__OTHER;
}

AmStatus spread_give_states(Spread *spread, const PlanContext *context, const Mesh *mesh,
                            const SbpState *states, bool splits_only, AmError *error) {
    const IrModule *module = context->module, *canonical = context->canonical;
    Arena *arena = spread_pool(spread)->arena;
    Hlo__OpSharding **shardings;
    Origin *origins = ARENA_ARRAY(arena, Origin, module->instruction_count + 1);
    bool *is_done = ARENA_ARRAY(arena, bool, module->instruction_count + 1);
    if (arena->failed) return am_fail_memory(error, module->instruction_count);
    TRY(propagation_value_shardings(&shardings, arena, context, mesh, states, error));
    for (int32_t i = 0; i < module->instruction_count; i++)
        origins[i] = (Origin){module->instructions[i].message, i};
    qsort(origins, (size_t)module->instruction_count, sizeof *origins, compare_origins);
    for (int32_t i = 0; i < canonical->instruction_count; i++) {
        Origin wanted = {canonical->instructions[i].message, -1};
        if (!shardings[i] || (splits_only && !is_split(shardings[i]))) continue;
        const Origin *origin =
            bsearch(&wanted, origins, (size_t)module->instruction_count, sizeof *origins, compare_origins);
        if (!origin || is_done[origin->instruction]) continue;
        const IrShape *a = &module->instructions[origin->instruction].shape;
        const IrShape *b = &canonical->instructions[i].shape;
        bool is_tuple = a->type == DTYPE_TUPLE || b->type == DTYPE_TUPLE;
        if (is_tuple ? a->type != b->type || a->rank != b->rank : !ir_shape_equal(a, b)) continue;
        is_done[origin->instruction] = true;
        TRY(spread_give(spread, origin->instruction, shardings[i], error));
    }
    return AM_OK;
}

/* Returns whether axes of the mesh, in their order, give a sharding. `place` has room for every device. */
static bool fits_mesh(const Tiles *tiles, const Mesh *mesh, int32_t *place) {
    SbpState state;
    if (tiles->kind != TILES_TILED) return true;
    if (tiles->manual > 1 || tiles->device_count != mesh->device_count) return false;
    DeviceTiles device = {.rank = tiles->rank, .device_count = tiles->device_count, .place = place};
    for (int32_t k = 0; k < tiles->device_count; k++) {
        if (tiles->devices[k] >= tiles->device_count) return false;
        place[tiles->devices[k]] = k;
    }
    int32_t stride = tiles->device_count;
    for (int32_t d = 0; d < tiles->rank; d++) {
        device.tiles[d] = tiles->tiles[d];
        device.stride[d] = stride /= tiles->tiles[d];
    }
    return sharding_to_state(&state, &device, mesh);
}

AmStatus spread_check_mesh(Spread *spread, const IrModule *module, const Mesh *mesh, AmError *error) {
    int32_t *place = ARENA_ARRAY(spread_pool(spread)->arena, int32_t, TILES_MAX_DEVICES);
    if (!place) return am_fail_memory(error, TILES_MAX_DEVICES);
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *value = &module->instructions[i];
        for (int32_t leaf = 0; leaf < spread_shape_leaves(&value->shape); leaf++) {
            const Tiles *tiles = spread_sharding(spread, i, leaf);
            if (tiles && !fits_mesh(tiles, mesh, place))
                return am_fail(error, AM_ERROR_INPUT, module->source,
                               "%s: axes of the mesh, in their order, cannot give its sharding",
                               value->op_name[0] ? value->op_name : value->name);
        }
    }
    return AM_OK;
}
