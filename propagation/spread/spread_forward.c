/* Forward propagation of the shardings that a module carries: the sharding that operands imply for a result,
 * for each class of operators. */
#include "propagation/spread/spread_internal.h"

#include <string.h>

bool spread_is_target(const IrInstruction *instruction, const char *target) {
    const char *name = instruction->attributes->custom_call_target;
    if (instruction->opcode != IR_CUSTOM_CALL || !name) return false;
    return strcmp(name, target) == 0;
}

static bool spread_is_elementwise(const IrInstruction *instruction) {
    return ir_is_elementwise(instruction->opcode) || instruction->opcode == IR_MAP ||
           instruction->opcode == IR_RNG || instruction->opcode == IR_CONSTANT;
}

bool spread_is_spatial(const Spread *self, int32_t i) {
    if (!spread_has(self, i)) return false;
    for (int32_t k = self->first_leaf[i]; k < self->first_leaf[i + 1]; k++)
        if (self->leaves[k]->kind != TILES_MAXIMAL) return true;
    return false;
}

DimensionMap spread_no_map(int32_t rank) {
    DimensionMap map = {.rank = rank};
    for (int32_t d = 0; d < IR_MAX_RANK; d++) map.to[d] = -1;
    return map;
}

const Tiles *spread_apply(Spread *self, const Tiles *from, const DimensionMap *map) {
    return tiles_map(&self->pool, from, map->to, map->rank);
}

bool spread_passes(const IrInstruction *instruction, int32_t level) {
    if (spread_is_elementwise(instruction) || spread_is_target(instruction, "Sharding")) return true;
    switch (instruction->opcode) {
    case IR_CALL:
    case IR_CONCATENATE:
    case IR_DYNAMIC_SLICE:
    case IR_DYNAMIC_UPDATE_SLICE:
    case IR_GET_TUPLE_ELEMENT:
    case IR_OPT_BARRIER:
    case IR_RESHAPE:
    case IR_TUPLE:
    case IR_TRANSPOSE:
    case IR_WHILE: return true;
    case IR_BROADCAST: return level >= 2;
    default: return level >= 1;
    }
}

/* Returns whether the number of users beside the root is 1. */
static bool spread_has_one_user(const Spread *self, int32_t i) {
    int32_t root = self->module->computations[self->parent[i]].root, count = 0;
    for (int32_t u = self->first_user[i]; u < self->first_user[i + 1]; u++) count += self->users[u] != root;
    return count == 1;
}

/* Improves `count` leaves from `first` on by from[]; an instruction without a sharding gets one for all. */
static bool improve_range(Spread *self, int32_t i, int32_t first, int32_t count, const Tiles *const *from,
                          bool may_reshard) {
    int32_t start = self->first_leaf[i] + first;
    bool has_old = spread_has(self, i), is_changed = false;
    bool is_element = ir_instruction(self->module, i)->shape.type == DTYPE_TUPLE;
    for (int32_t k = 0; k < count; k++) {
        const Tiles *old = has_old ? self->leaves[start + k] : NULL, *found = NULL;
        if (!from[k] || from[k] == old || self->is_settled[start + k]) continue;
        found =
            tiles_improve(&self->pool, self->shapes[start + k], old, from[k], self->level > 0, may_reshard);
        if (!found && is_element && from[k]->kind == TILES_MANUAL && old && old->kind == TILES_REPLICATED)
            found = from[k];
        if (!found) continue;
        self->leaves[start + k] = found;
        is_changed = true;
    }
    for (int32_t leaf = self->first_leaf[i]; is_changed && !has_old && leaf < self->first_leaf[i + 1];
         leaf++) {
        const Tiles *given = leaf >= start && leaf < start + count ? from[leaf - start] : NULL;
        if (self->leaves[leaf]) continue;
        self->leaves[leaf] = given && given->kind == TILES_MAXIMAL ? given : self->pool.replicated;
    }
    return is_changed;
}

static bool spread_improve(Spread *self, int32_t i, const Tiles *const *from, bool may_reshard) {
    return improve_range(self, i, 0, spread_leaf_count(self, i), from,
                         may_reshard || ir_instruction(self->module, i)->shape.type == DTYPE_TUPLE);
}

bool spread_improve_leaf(Spread *self, int32_t i, int32_t leaf, const Tiles *from, bool may_reshard) {
    return improve_range(self, i, leaf, 1, &from, may_reshard);
}

bool spread_improve_all(Spread *self, int32_t i, const Tiles *from, bool may_reshard) {
    for (int32_t k = 0; k < spread_leaf_count(self, i); k++) self->scratch[k] = from;
    return spread_improve(self, i, self->scratch, may_reshard);
}

/* Returns whether a custom call hands on the sharding of its only operand. */
static bool is_view_call(const Spread *self, const IrInstruction *instruction) {
    static const char *const any_shape[] = {"Sharding", "X64Combine", "LayoutConstraint", NULL};
    static const char *const same_rank[] = {"ResizeNearest",
                                            "ResizeBilinear",
                                            "ResizeNearestGrad",
                                            "ResizeBilinearGrad",
                                            "Cholesky",
                                            "MoveToDevice",
                                            "MoveToHost",
                                            "annotate_device_placement",
                                            NULL};
    if (instruction->operand_count == 0) return false;
    for (int32_t k = 0; any_shape[k]; k++)
        if (spread_is_target(instruction, any_shape[k])) return true;
    const IrShape *operand = &ir_instruction(self->module, instruction->operands[0])->shape;
    if (instruction->operand_count != 1 || instruction->shape.type == DTYPE_TUPLE ||
        operand->type == DTYPE_TUPLE || operand->rank != instruction->shape.rank)
        return false;
    for (int32_t k = 0; same_rank[k]; k++)
        if (spread_is_target(instruction, same_rank[k])) return true;
    return false;
}

/* Returns whether shardings reach the instruction at all: its operator may be split, and a root's is free. */
static bool is_splittable(const Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    int32_t c = self->parent[i];
    if (self->module->computations[c].root == i && c != self->module->entry && self->caller[c] < 0)
        return false;
    if (spread_is_elementwise(instruction) || ir_opcode_has(instruction->opcode, FACT_SHARDABLE)) return true;
    switch (instruction->opcode) {
    case IR_PARAMETER: return (c == self->module->entry && self->is_second) || self->caller[c] >= 0;
    case IR_CUSTOM_CALL:
        return is_view_call(self, instruction) || spread_is_target(instruction, "ShardBarrierFrom") ||
               spread_is_target(instruction, "ShardBarrierTo");
    default: return false;
    }
}

/* Returns the operand with the most specific sharding; -1: none has one. */
static int32_t best_operand(const Spread *self, const IrInstruction *instruction) {
    int32_t best = -1;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const Tiles *tiles = spread_array(self, instruction->operands[k]);
        if (!tiles) continue;
        if (best < 0 || tiles_more_specific(tiles, spread_array(self, best))) best = instruction->operands[k];
    }
    return best;
}

static bool from_operand(Spread *self, int32_t i, int32_t operand, const DimensionMap *map) {
    if (!spread_is_spatial(self, operand)) return false;
    const Tiles *tiles = spread_array(self, operand);
    if (!tiles) return false;
    if (map) tiles = spread_apply(self, tiles, map);
    return spread_improve_all(self, i, tiles, spread_has_one_user(self, i));
}

static bool tuple_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    bool has_old = spread_has(self, i), is_spatial = false, is_changed = false;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        is_spatial |= spread_is_spatial(self, instruction->operands[k]);
    if (!is_spatial) return false;
    const Tiles **leaf = &self->leaves[self->first_leaf[i]];
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k];
        bool is_known = spread_has(self, operand);
        for (int32_t j = self->first_leaf[operand]; j < self->first_leaf[operand + 1]; j++, leaf++) {
            const Tiles *found = is_known ? self->leaves[j] : NULL;
            if (!has_old) *leaf = found ? found : self->pool.replicated;
            else if (found && tiles_more_specific(found, *leaf)) *leaf = found;
            else continue;
            is_changed = true;
        }
    }
    return is_changed;
}

static bool reduce_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    bool is_changed = false;
    for (int32_t k = 0; k < instruction->operand_count / 2; k++) {
        int32_t operand = instruction->operands[k], out = 0;
        const IrShape *shape = &ir_instruction(self->module, operand)->shape;
        DimensionMap map = spread_no_map(0);
        for (int32_t d = 0; d < shape->rank; d++) {
            bool is_reduced = false;
            for (int32_t j = 0; j < instruction->attributes->dimension_count; j++)
                is_reduced |= instruction->attributes->dimensions[j] == d;
            if (!is_reduced) map.to[d] = out++;
        }
        map.rank = out;
        is_changed |= from_operand(self, i, operand, &map);
    }
    return is_changed;
}

static bool window_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    bool is_changed = false, is_scatter = instruction->opcode == IR_SELECT_AND_SCATTER;
    for (int32_t d = 0; d < instruction->attributes->window_count; d++) {
        const IrWindowDimension *window = &instruction->attributes->window[d];
        if (window->base_dilation > 1 || (!is_scatter && window->window_dilation > 1)) return false;
    }
    if (is_scatter) return from_operand(self, i, instruction->operands[0], NULL);
    for (int32_t k = 0; k < instruction->operand_count / 2; k++)
        is_changed |= from_operand(self, i, instruction->operands[k], NULL);
    return is_changed;
}

static bool broadcast_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const Tiles *tiles = spread_array(self, instruction->operands[0]);
    DimensionMap map = spread_no_map(instruction->shape.rank);
    if (self->level < 3 || !tiles || tiles->kind == TILES_REPLICATED) return false;
    for (int32_t d = 0; d < instruction->attributes->dimension_count; d++)
        map.to[d] = (int32_t)instruction->attributes->dimensions[d];
    return from_operand(self, i, instruction->operands[0], &map);
}

static bool concatenate_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    int32_t best = best_operand(self, instruction);
    if (best < 0 || !spread_is_spatial(self, best)) return false;
    for (int32_t k = 0; self->level == 0 && k < instruction->operand_count; k++) {
        const IrInstruction *operand = ir_instruction(self->module, instruction->operands[k]);
        const Tiles *tiles = spread_array(self, instruction->operands[k]);
        if (operand->opcode != IR_RESHAPE || !tiles || tiles_count(tiles) == 1) return false;
        IrOpcode source = ir_instruction(self->module, operand->operands[0])->opcode;
        if (source != IR_PARAMETER && source != IR_GET_TUPLE_ELEMENT) return false;
        if (tiles->tiles[instruction->attributes->dimensions[0]] > 1) return false;
    }
    return from_operand(self, i, best, NULL);
}

static bool reverse_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    bool is_reversed[IR_MAX_RANK] = {false};
    const Tiles *tiles = spread_array(self, instruction->operands[0]);
    if (!tiles) return false;
    for (int32_t k = 0; k < instruction->attributes->dimension_count; k++)
        is_reversed[instruction->attributes->dimensions[k]] = true;
    return spread_improve_all(self, i, tiles_reverse(&self->pool, tiles, is_reversed),
                              spread_has_one_user(self, i));
}

/* Spreads the sharding of an operand to a sort. A split of the sorted dimension needs another dimension that
 * could be split in its place. */
static bool sort_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    int32_t best = best_operand(self, instruction);
    if (best < 0 || instruction->attributes->dimension_count < 1) return false;
    const Tiles *tiles = spread_array(self, best);
    const IrShape *shape = &ir_instruction(self->module, best)->shape;
    int64_t sorted = instruction->attributes->dimensions[0];
    if (tiles->kind == TILES_TILED && tiles->tiles[sorted] != 1) {
        bool is_movable = false;
        for (int32_t d = 0; d < shape->rank; d++)
            is_movable |=
                d != sorted && shape->dimensions[d] % ((int64_t)tiles->tiles[d] * tiles->tiles[sorted]) == 0;
        if (!is_movable) return false;
    }
    return from_operand(self, i, best, NULL);
}

/* Spreads to a slice from the array that is sliced; to a slice-update from the update (operand 1), then from
 * the updated array (operand 0). */
static bool slice_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    bool is_update = instruction->opcode == IR_DYNAMIC_UPDATE_SLICE, is_changed = false;
    bool is_dropped[IR_MAX_RANK] = {false};
    int32_t operand = instruction->operands[is_update ? 1 : 0];
    const IrShape *shape = &ir_instruction(self->module, operand)->shape;
    const Tiles *tiles = spread_array(self, operand);
    for (int32_t d = 0; d < shape->rank; d++)
        is_dropped[d] = shape->dimensions[d] != instruction->shape.dimensions[d];
    if (tiles && spread_is_spatial(self, operand)) {
        if (tiles->kind == TILES_TILED) tiles = tiles_replicate(&self->pool, tiles, is_dropped);
        is_changed = spread_improve_all(self, i, tiles, spread_has_one_user(self, i));
    }
    tiles = spread_array(self, instruction->operands[0]);
    if (is_update && tiles && spread_is_spatial(self, instruction->operands[0]))
        is_changed |= spread_improve_all(self, i, tiles, false);
    return is_changed;
}

static bool elementwise_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    bool is_changed = false;
    if (self->level == 0) {
        bool is_first = instruction->opcode == IR_MAP || instruction->opcode == IR_POWER ||
                        instruction->opcode == IR_SHIFT_LEFT ||
                        instruction->opcode == IR_SHIFT_RIGHT_ARITHMETIC ||
                        instruction->opcode == IR_SHIFT_RIGHT_LOGICAL;
        int32_t best = is_first ? instruction->operands[0] : best_operand(self, instruction);
        if (instruction->opcode == IR_RNG || best < 0) return false;
        return from_operand(self, i, best, NULL);
    }
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k];
        const Tiles *tiles = spread_array(self, operand);
        if (!tiles || !spread_is_spatial(self, operand)) continue;
        if (instruction->opcode == IR_RNG && tiles->kind == TILES_TILED) tiles = self->pool.replicated;
        is_changed |= spread_improve_all(self, i, tiles,
                                         instruction->operand_count == 1 && spread_has_one_user(self, i));
    }
    return is_changed;
}

/* Makes the result manual if an operand is manual. */
static bool takes_manual(Spread *self, int32_t i, bool *is_changed) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    IrOpcode opcode = instruction->opcode;
    bool is_joint = opcode == IR_REDUCE || opcode == IR_SORT || opcode == IR_REDUCE_WINDOW ||
                    opcode == IR_CUSTOM_CALL || opcode == IR_ASYNC_START || opcode == IR_ASYNC_UPDATE ||
                    opcode == IR_ASYNC_DONE;
    *is_changed = false;
    if (instruction->shape.type == DTYPE_TUPLE && !is_joint) return false;
    for (int32_t k = self->first_leaf[i]; spread_has(self, i) && k < self->first_leaf[i + 1]; k++)
        if (!tiles_is_maximal(self->leaves[k])) return false;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k];
        bool is_manual = spread_has(self, operand);
        for (int32_t j = self->first_leaf[operand]; is_manual && j < self->first_leaf[operand + 1]; j++)
            is_manual = self->leaves[j]->kind == TILES_MANUAL;
        if (!is_manual) continue;
        if (opcode == IR_GET_TUPLE_ELEMENT || spread_is_target(instruction, "SPMDShardToFullShape"))
            return opcode != IR_GET_TUPLE_ELEMENT;
        if (self->level == 0 && (opcode == IR_CONCATENATE || opcode == IR_DYNAMIC_SLICE)) return true;
        for (int32_t j = self->first_leaf[i]; j < self->first_leaf[i + 1]; j++)
            self->leaves[j] = self->pool.manual;
        *is_changed = true;
        return true;
    }
    return false;
}

/* Replicates a result that cannot be split if an operand is replicated. */
static bool unsplit_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    bool has_effect =
        instruction->opcode == IR_OUTFEED || instruction->opcode == IR_SEND ||
        instruction->opcode == IR_RECV || instruction->opcode == IR_RNG_GET_AND_UPDATE_STATE ||
        (instruction->opcode == IR_CUSTOM_CALL && instruction->message->custom_call_has_side_effect);
    if (instruction->shape.type == DTYPE_TUPLE || has_effect ||
        self->module->computations[self->parent[i]].root == i)
        return false;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const Tiles *tiles = spread_array(self, instruction->operands[k]);
        if (tiles && tiles->kind == TILES_REPLICATED) return spread_improve_all(self, i, tiles, false);
    }
    return false;
}

static bool parameter_result(Spread *self, int32_t i) {
    int32_t c = self->parent[i], caller = self->caller[c];
    if (caller < 0) return false;
    const IrInstruction *instruction = ir_instruction(self->module, caller);
    int32_t argument = -1;
    int64_t number = ir_instruction(self->module, i)->attributes->parameter_number;
    if (instruction->opcode == IR_CALL && number < instruction->operand_count)
        argument = instruction->operands[number];
    for (int32_t k = 0; instruction->opcode == IR_CONDITIONAL && k < instruction->called_count; k++)
        if (instruction->called[k] == c && argument < 0 && k + 1 < instruction->operand_count)
            argument = instruction->operands[k + 1];
    if (argument < 0 || !spread_has(self, argument) ||
        spread_leaf_count(self, argument) != spread_leaf_count(self, i))
        return false;
    return spread_improve(self, i, &self->leaves[self->first_leaf[argument]], false);
}

static bool view_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    int32_t operand = instruction->operands[0];
    if (!spread_is_spatial(self, operand)) return false;
    int32_t first = self->first_leaf[operand], count = spread_leaf_count(self, i);
    if (instruction->opcode == IR_GET_TUPLE_ELEMENT) {
        first += spread_element_leaf(self, operand, instruction->attributes->tuple_index);
        if (count == 1 && self->leaves[first]->kind == TILES_MANUAL) {
            bool is_changed = self->leaves[self->first_leaf[i]] != self->leaves[first];
            self->leaves[self->first_leaf[i]] = self->leaves[first];
            return is_changed;
        }
    } else if (count != spread_leaf_count(self, operand)) return false;
    return spread_improve(self, i, &self->leaves[first], spread_has_one_user(self, i));
}

static bool transpose_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    DimensionMap map = spread_no_map(instruction->shape.rank);
    for (int32_t d = 0; d < instruction->shape.rank; d++) map.to[instruction->attributes->dimensions[d]] = d;
    return from_operand(self, i, instruction->operands[0], &map);
}

static bool reshape_result(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    int32_t operand = instruction->operands[0];
    const Tiles *tiles = spread_array(self, operand);
    if (!tiles || !spread_is_spatial(self, operand)) return false;
    tiles =
        tiles_reshape(&self->pool, tiles, &ir_instruction(self->module, operand)->shape, &instruction->shape);
    return spread_improve_all(self, i, tiles, spread_has_one_user(self, i));
}

bool spread_from_operands(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const Tiles *own = spread_array(self, i);
    bool is_changed;
    if (!spread_passes(instruction, self->level) || (own && own->kind == TILES_MANUAL)) return false;
    if (takes_manual(self, i, &is_changed)) return is_changed;
    if (!is_splittable(self, i)) return unsplit_result(self, i);
    switch (instruction->opcode) {
    case IR_GET_TUPLE_ELEMENT:
    case IR_OPT_BARRIER:
    case IR_WHILE: return view_result(self, i);
    case IR_TUPLE: return tuple_result(self, i);
    case IR_REDUCE: return reduce_result(self, i);
    case IR_BROADCAST: return broadcast_result(self, i);
    case IR_CONCATENATE: return concatenate_result(self, i);
    case IR_CONVOLUTION:
    case IR_DOT: return spread_product_result(self, i);
    case IR_TRANSPOSE: return transpose_result(self, i);
    case IR_REDUCE_WINDOW:
    case IR_SELECT_AND_SCATTER: return window_result(self, i);
    case IR_RESHAPE: return reshape_result(self, i);
    case IR_REVERSE: return reverse_result(self, i);
    case IR_PARAMETER: return parameter_result(self, i);
    case IR_SORT: return sort_result(self, i);
    case IR_DYNAMIC_SLICE:
    case IR_DYNAMIC_UPDATE_SLICE: return slice_result(self, i);
    case IR_GATHER: return spread_gather_result(self, i);
    case IR_SCATTER: return spread_scatter_result(self, i);
    case IR_PAD:
    case IR_SLICE: return from_operand(self, i, instruction->operands[0], NULL);
    case IR_ALL_REDUCE:
    case IR_REDUCE_SCATTER:
    case IR_COLLECTIVE_PERMUTE: {
        int32_t best = best_operand(self, instruction);
        return best >= 0 && from_operand(self, i, best, NULL);
    }
    case IR_CUSTOM_CALL:
        return is_view_call(self, instruction) && from_operand(self, i, instruction->operands[0], NULL);
    default:
        if (instruction->shape.type == DTYPE_TUPLE)
            return instruction->opcode == IR_COPY && view_result(self, i);
        return spread_is_elementwise(instruction) && elementwise_result(self, i);
    }
}

/* ---------------------------------------------------------------- From users */

/* Makes the value manual if a user is manual. */
static bool takes_manual_user(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const Tiles *own = spread_array(self, i);
    if (instruction->shape.type == DTYPE_TUPLE || (own && !tiles_is_maximal(own))) return false;
    for (int32_t u = self->first_user[i]; u < self->first_user[i + 1]; u++) {
        int32_t user = self->users[u];
        const Tiles *tiles = spread_array(self, user), *found = NULL;
        if (!spread_has(self, user) ||
            spread_is_target(ir_instruction(self->module, user), "SPMDFullToShardShape"))
            continue;
        bool is_manual = tiles && tiles->kind == TILES_MANUAL;
        if (!is_manual)
            is_manual =
                spread_from_user(self, i, u, self->level, &found) && found && found->kind == TILES_MANUAL;
        if (!is_manual) continue;
        self->leaves[self->first_leaf[i]] = self->pool.manual;
        return true;
    }
    return false;
}

bool spread_from_users(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const Tiles *own = spread_array(self, i);
    bool is_changed = false;
    if (self->level < 2 && instruction->opcode == IR_BROADCAST) return false;
    if (own && own->kind == TILES_MANUAL) return false;
    if (takes_manual_user(self, i)) return true;
    bool is_barrier = spread_is_target(instruction, "ShardBarrierTo");
    bool is_root = self->module->computations[self->parent[i]].root == i;
    if (is_barrier || !is_splittable(self, i) || (is_root && self->parent[i] == self->module->entry))
        return false;
    for (int32_t u = self->first_user[i]; u < self->first_user[i + 1]; u++) {
        int32_t user = self->users[u];
        if (ir_instruction(self->module, user)->opcode == IR_RNG_BIT_GENERATOR) {
            if (instruction->shape.type == DTYPE_TUPLE || own == self->pool.replicated) return false;
            self->leaves[self->first_leaf[i]] = self->pool.replicated;
            return true;
        }
        if (ir_instruction(self->module, user)->opcode == IR_GET_TUPLE_ELEMENT &&
            spread_is_spatial(self, user)) {
            int64_t element = ir_instruction(self->module, user)->attributes->tuple_index;
            is_changed |=
                improve_range(self, i, spread_element_leaf(self, i, element), spread_leaf_count(self, user),
                              &self->leaves[self->first_leaf[user]], true);
        } else if (spread_from_user(self, i, u, self->level, self->related))
            is_changed |= spread_improve(self, i, self->related, false);
    }
    return is_changed;
}
