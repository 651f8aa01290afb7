/* Propagation of annotations that leave a sharding open.
 *
 * Instructions of a group (shard_as, shard_like) take the shardings of each
 * other; those of a shard_as group get one sharding in the end. An annotation
 * with unspecified dimensions takes what reaches it along those.
 */
#include "propagation/spread/spread_internal.h"

#include <stdlib.h>
#include <string.h>

#define UNSPECIFIED "unspecified_dims=["

static int compare_members(const void *a, const void *b) {
    const GroupMember *left = a, *right = b;
    if (left->group != right->group) return left->group < right->group ? -1 : 1;
    return left->instruction < right->instruction ? -1 : left->instruction > right->instruction;
}

/* Returns the dimensions that an annotation leaves open, as bits. */
static uint32_t read_open(const IrInstruction *instruction) {
    const ProtobufCBinaryData *config = &instruction->message->backend_config;
    size_t length = sizeof UNSPECIFIED - 1, at = 0;
    uint32_t open = 0;
    if (!spread_is_target(instruction, "Sharding")) return 0;
    while (at + length <= config->len && memcmp(config->data + at, UNSPECIFIED, length) != 0) at++;
    if (at + length > config->len) return 0;
    int64_t value = -1;
    for (at += length; at < config->len; at++) {
        char c = (char)config->data[at];
        if (c >= '0' && c <= '9' && value < IR_MAX_RANK) value = (value < 0 ? 0 : value * 10) + (c - '0');
        else if (c == ',' || c == ']') {
            if (value >= 0 && value < IR_MAX_RANK) open |= 1u << value;
            value = -1;
        }
        if (c == ']') break;
    }
    return open;
}

AmStatus spread_read_groups(Spread *self, AmError *error) {
    const IrModule *module = self->module;
    int32_t capacity = 0;
    self->open = ARENA_ARRAY(self->arena, uint32_t, module->instruction_count + 1);
    self->group_of = ARENA_ARRAY(self->arena, int32_t, module->instruction_count + 1);
    if (self->arena->failed) return am_fail_memory(error, module->instruction_count);
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        const Hlo__OpSharding *message = instruction->message->sharding;
        self->open[i] = read_open(instruction);
        self->group_of[i] = -1;
        if (!message || !message->is_shard_group) continue;
        int32_t member = i;
        /* An annotation without other information represents its operand. */
        if (spread_is_target(instruction, "Sharding") && instruction->operand_count == 1 &&
            message->type == HLO__OP_SHARDING__TYPE__UNKNOWN &&
            ir_instruction(self->module, instruction->operands[0])->opcode != IR_PARAMETER)
            member = instruction->operands[0];
        ARENA_RESERVE(self->arena, self->members, self->member_count, capacity);
        if (!self->members) return am_fail_memory(error, self->member_count);
        bool is_as = message->shard_group_type == HLO__OP_SHARDING__SHARD_GROUP_TYPE__AS;
        self->members[self->member_count++] = (GroupMember){message->shard_group_id, member, is_as};
    }
    if (self->member_count > 0)
        qsort(self->members, (size_t)self->member_count, sizeof *self->members, compare_members);
    for (int32_t k = self->member_count - 1; k >= 0; k--) {
        bool is_first = k == 0 || self->members[k - 1].group != self->members[k].group;
        for (int32_t j = k; is_first && j < self->member_count; j++)
            if (self->members[j].group == self->members[k].group)
                self->group_of[self->members[j].instruction] = k;
    }
    return AM_OK;
}

static bool is_last(const Spread *self, int32_t member) {
    return member == self->member_count ||
           (member > 0 && self->members[member].group != self->members[member - 1].group);
}

bool spread_refine(Spread *self, int32_t i, const Tiles *found) {
    const Tiles *own = spread_array(self, i);
    bool is_dropped[IR_MAX_RANK];
    if (!found || !own || found->kind != TILES_TILED || found->rank != own->rank) return false;
    for (int32_t d = 0; d < found->rank; d++) is_dropped[d] = !(self->open[i] >> d & 1);
    found = tiles_replicate(&self->pool, found, is_dropped);
    const Tiles *merged = tiles_merge(&self->pool, found, own, tiles_count(own) + 1);
    if (!merged || merged == own) return false;
    self->leaves[self->first_leaf[i]] = merged;
    self->spelling[i] = NULL;
    return true;
}

bool spread_refine_from_users(Spread *self, int32_t i) {
    bool is_changed = false;
    for (int32_t u = self->first_user[i]; u < self->first_user[i + 1]; u++) {
        const Tiles *found = NULL;
        if (spread_from_user(self, i, u, self->level, &found)) is_changed |= spread_refine(self, i, found);
    }
    return is_changed;
}

bool spread_from_group(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    int32_t first = self->group_of[i];
    bool is_changed = false;
    if (first < 0 || !spread_passes(instruction, self->level) || spread_leaf_count(self, i) != 1 ||
        spread_is_target(instruction, "ShardBarrierTo"))
        return false;
    for (int32_t k = first; k == first || !is_last(self, k); k++) {
        int32_t member = self->members[k].instruction;
        const Tiles *tiles = spread_array(self, member);
        if (member == i || !tiles ||
            spread_is_target(ir_instruction(self->module, member), "ShardBarrierFrom"))
            continue;
        if (self->is_given[i]) is_changed |= self->open[i] && spread_refine(self, i, tiles);
        else is_changed |= spread_improve_all(self, i, tiles, false);
    }
    return is_changed;
}

/* Returns the refinement of the members' shardings, or the first without one. */
static const Tiles *common_sharding(Spread *self, int32_t first) {
    const Tiles *common = NULL, *chosen = NULL;
    bool is_common = true;
    for (int32_t k = first; k == first || !is_last(self, k); k++) {
        const Tiles *tiles = spread_array(self, self->members[k].instruction);
        if (!tiles) continue;
        if (!chosen || chosen->kind == TILES_REPLICATED) chosen = tiles;
        if (!common || common == tiles) common = tiles;
        else {
            const Tiles *merged = tiles_merge(&self->pool, tiles, common, tiles_count(common) + 1);
            is_common &= merged != NULL;
            if (merged) common = merged;
        }
    }
    return is_common ? common : chosen;
}

void spread_align_groups(Spread *self) {
    for (int32_t first = 0, k; first < self->member_count; first = k) {
        const Tiles *common = self->members[first].is_as ? common_sharding(self, first) : NULL;
        for (k = first; k == first || !is_last(self, k); k++) {
            int32_t i = self->members[k].instruction;
            bool is_open =
                !self->is_given[i] && !spread_is_target(ir_instruction(self->module, i), "ShardBarrierTo");
            if (!common || !is_open || spread_leaf_count(self, i) != 1) continue;
            if (common->kind == TILES_TILED && common->rank != ir_instruction(self->module, i)->shape.rank)
                continue;
            self->leaves[self->first_leaf[i]] = common;
        }
    }
}
