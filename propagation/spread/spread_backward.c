/* Backward propagation of the shardings that a module carries: the sharding that a user of a value implies
 * for it, for each class of operators. */
#include "propagation/spread/spread_internal.h"

#include <string.h>

static bool same_dimensions(const IrShape *a, const IrShape *b) {
    if (a->rank != b->rank || (a->type == DTYPE_TUPLE) != (b->type == DTYPE_TUPLE)) return false;
    for (int32_t k = 0; k < a->rank; k++) {
        if (a->type == DTYPE_TUPLE ? !same_dimensions(&a->elements[k], &b->elements[k])
                                   : a->dimensions[k] != b->dimensions[k])
            return false;
    }
    return true;
}

static const Tiles *broadcast_operand(Spread *self, const IrInstruction *user, const Tiles *tiles) {
    DimensionMap map = spread_no_map(user->attributes->dimension_count);
    for (int32_t d = 0; d < user->attributes->dimension_count; d++)
        map.to[user->attributes->dimensions[d]] = d;
    return spread_apply(self, tiles, &map);
}

static const Tiles *transpose_operand(Spread *self, const IrInstruction *user, const Tiles *tiles) {
    DimensionMap map = spread_no_map(user->shape.rank);
    for (int32_t d = 0; d < user->shape.rank; d++) map.to[d] = (int32_t)user->attributes->dimensions[d];
    return spread_apply(self, tiles, &map);
}

static const Tiles *reverse_operand(Spread *self, const IrInstruction *user, const Tiles *tiles) {
    bool is_reversed[IR_MAX_RANK] = {false};
    for (int32_t k = 0; k < user->attributes->dimension_count; k++)
        is_reversed[user->attributes->dimensions[k]] = true;
    return tiles_reverse(&self->pool, tiles, is_reversed);
}

/* Returns the sharding of input i of a reduce: that of the result, merged with those of the other inputs,
 * since inputs agree. */
static const Tiles *reduce_operand(Spread *self, const IrInstruction *user, int32_t i, const Tiles *tiles) {
    const IrShape *shape = &ir_instruction(self->module, i)->shape;
    DimensionMap map = spread_no_map(shape->rank);
    int32_t out = 0;
    if (shape->rank == 0) return NULL;
    for (int32_t d = 0; d < shape->rank; d++) {
        bool is_reduced = false;
        for (int32_t j = 0; j < user->attributes->dimension_count; j++)
            is_reduced |= user->attributes->dimensions[j] == d;
        if (!is_reduced) map.to[out++] = d;
    }
    tiles = spread_apply(self, tiles, &map);
    for (int32_t k = 0; k < user->operand_count / 2; k++) {
        const Tiles *other = spread_array(self, user->operands[k]);
        if (user->operands[k] == i || !other) continue;
        const Tiles *merged = tiles_merge(&self->pool, other, tiles, tiles_count(tiles) + 1);
        if (merged) tiles = merged;
    }
    return tiles;
}

static const Tiles *slice_operand(Spread *self, const IrInstruction *user, int32_t i, const Tiles *tiles,
                                  int32_t level) {
    bool is_update = user->opcode == IR_DYNAMIC_UPDATE_SLICE, is_dropped[IR_MAX_RANK] = {false};
    int32_t operand = user->operands[is_update ? 1 : 0];
    if (level == 0) return NULL;
    if (tiles->kind == TILES_REPLICATED || (is_update && i == user->operands[0])) return tiles;
    if (i != operand || tiles->kind != TILES_TILED) return NULL;
    const IrShape *shape = &ir_instruction(self->module, operand)->shape;
    for (int32_t d = 0; d < shape->rank; d++)
        is_dropped[d] = shape->dimensions[d] != user->shape.dimensions[d];
    return tiles_replicate(&self->pool, tiles, is_dropped);
}

/* Finds the most specific sharding for each leaf of an operand of a tuple, among those of the elements that
 * it is. */
static bool tuple_operand(const Spread *self, int32_t i, int32_t use, const Tiles **out) {
    int32_t user = self->users[use], count = spread_leaf_count(self, i), used_as = self->used_as[use];
    const IrInstruction *tuple = ir_instruction(self->module, user);
    for (int32_t k = 0; k < count; k++) out[k] = NULL;
    int32_t first = used_as < 0 ? -1 - used_as : used_as;
    int32_t leaf = self->first_leaf[user] + spread_element_leaf(self, user, first);
    for (int32_t k = first; k < tuple->operand_count; leaf += spread_leaf_count(self, tuple->operands[k++])) {
        if (tuple->operands[k] != i) continue;
        for (int32_t j = 0; j < count; j++)
            if (!out[j] || tiles_more_specific(self->leaves[leaf + j], out[j]))
                out[j] = self->leaves[leaf + j];
        if (used_as >= 0) break;
    }
    return count > 0;
}

/* Returns the sharding of an outfeed's first operand, an array of `rank`: the first of a tuple over the
 * operands. */
static const Tiles *outfeed_operand(Spread *self, const IrInstruction *user, int32_t operand, int32_t rank) {
    const Hlo__OpSharding *message = user->message->sharding;
    const Tiles *tiles = NULL;
    AmError ignored = {0};
    if (!message || operand != 0) return NULL;
    while (message->type == HLO__OP_SHARDING__TYPE__TUPLE && message->n_tuple_shardings > 0)
        message = message->tuple_shardings[0];
    if (tiles_read(&tiles, &self->pool, message, &ignored) != AM_OK) return NULL;
    return tiles->kind == TILES_TILED && tiles->rank != rank ? NULL : tiles;
}

/* Returns the sharding of an array operand; `tiles` is that of the user, of its element for this operand in
 * a tuple. */
static const Tiles *array_operand(Spread *self, int32_t i, int32_t user_index, int32_t operand, int32_t level,
                                  const Tiles *tiles) {
    const IrInstruction *user = ir_instruction(self->module, user_index);
    const IrShape *shape = &ir_instruction(self->module, i)->shape;
    switch (user->opcode) {
    case IR_BROADCAST: return broadcast_operand(self, user, tiles);
    case IR_CONCATENATE: return level == 0 ? NULL : tiles;
    case IR_CONVOLUTION:
    case IR_DOT: return spread_product_operand(self, user_index, operand);
    case IR_DYNAMIC_SLICE:
    case IR_DYNAMIC_UPDATE_SLICE: return slice_operand(self, user, i, tiles, level);
    case IR_REDUCE_WINDOW: return operand < user->operand_count / 2 ? tiles : NULL;
    case IR_RESHAPE: return tiles_reshape(&self->pool, tiles, &user->shape, shape);
    case IR_PAD: return operand == 0 ? tiles : NULL;
    case IR_SLICE:
    case IR_SORT: return tiles;
    case IR_TRANSPOSE: return transpose_operand(self, user, tiles);
    case IR_REDUCE: return operand < user->operand_count / 2 ? reduce_operand(self, user, i, tiles) : NULL;
    case IR_REVERSE: return reverse_operand(self, user, tiles);
    case IR_GATHER: return spread_gather_operand(self, user_index, operand);
    case IR_SCATTER: return spread_scatter_operand(self, user_index, operand);
    case IR_CUSTOM_CALL:
        if (spread_is_target(user, "ShardBarrierFrom") || spread_is_target(user, "ShardBarrierTo"))
            return NULL;
        return same_dimensions(shape, &user->shape) ? tiles : NULL;
    default: return same_dimensions(shape, &user->shape) ? tiles : NULL;
    }
}

bool spread_from_user(Spread *self, int32_t i, int32_t use, int32_t level, const Tiles **out) {
    int32_t user_index = self->users[use];
    int32_t operand = self->used_as[use] < 0 ? -1 - self->used_as[use] : self->used_as[use];
    const IrInstruction *user = ir_instruction(self->module, user_index);
    out[0] = NULL;
    if (!spread_passes(user, level) || spread_leaf_count(self, i) == 0) return false;
    if (user->opcode == IR_OUTFEED) {
        if (spread_leaf_count(self, i) == 1)
            out[0] = outfeed_operand(self, user, operand, self->shapes[self->first_leaf[i]]->rank);
        return out[0] != NULL;
    }
    if (!spread_is_spatial(self, user_index)) return false;
    if (user->opcode == IR_TUPLE) return tuple_operand(self, i, use, out);
    if (user->opcode == IR_GET_TUPLE_ELEMENT) {
        int32_t first =
            spread_element_leaf(self, i, ir_instruction(self->module, user_index)->attributes->tuple_index);
        for (int32_t k = 0; k < spread_leaf_count(self, i); k++) out[k] = NULL;
        for (int32_t k = 0; k < spread_leaf_count(self, user_index); k++)
            out[first + k] = self->leaves[self->first_leaf[user_index] + k];
        return spread_leaf_count(self, user_index) > 0;
    }
    const IrInstruction *value = ir_instruction(self->module, i);
    if (value->shape.type == DTYPE_TUPLE) {
        if (!same_dimensions(&value->shape, &user->shape)) return false;
        memcpy(out, &self->leaves[self->first_leaf[user_index]],
               sizeof *out * (size_t)spread_leaf_count(self, i));
        return true;
    }
    bool is_joint = user->opcode == IR_REDUCE || user->opcode == IR_REDUCE_WINDOW ||
                    user->opcode == IR_SORT || user->opcode == IR_SCATTER;
    int32_t leaf = self->first_leaf[user_index];
    if (user->shape.type == DTYPE_TUPLE && is_joint && operand < user->shape.rank) leaf += operand;
    out[0] = array_operand(self, i, user_index, operand, level, self->leaves[leaf]);
    return out[0] != NULL;
}
