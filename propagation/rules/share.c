/* Sharing: equal data of repeated layers is stored once.
 *
 * A module of 20,000 instructions has a few hundred different shapes, factor lists and attributes.
 * Assignment and lowering read all of them for every plan, and memory latency dominates: shared
 * data stays in the nearest cache. Arrays are found by their bytes in a hash table with open
 * addressing; the first represents all equal ones.
 */
#include "propagation/rules/share.h"

#include <string.h>

#include "base/hash.h"

typedef struct SharedArray {
    const void *bytes;
    size_t unit, count; /* of an element, which distinguishes arrays of different types, and of all; bytes */
    uint64_t hash;
} SharedArray;

typedef struct ArrayTable {
    Arena *arena;
    SharedArray *table; /* [capacity], a power of two */
    int32_t count, capacity;
} ArrayTable;

/* Returns the entry of equal bytes, or the free one in which they belong. */
static SharedArray *find_entry(const ArrayTable *self, const void *bytes, size_t unit, size_t count,
                               uint64_t hash) {
    for (uint64_t at = hash;; at++) {
        SharedArray *entry = &self->table[at & (uint64_t)(self->capacity - 1)];
        if (!entry->bytes) return entry;
        if (entry->hash == hash && entry->unit == unit && entry->count == count &&
            memcmp(entry->bytes, bytes, count) == 0)
            return entry;
    }
}

static void grow(ArrayTable *self) {
    ArrayTable larger = *self;
    larger.capacity = self->capacity ? self->capacity * 2 : 1024;
    larger.table = ARENA_ARRAY(self->arena, SharedArray, larger.capacity);
    if (!larger.table) return;
    for (int32_t k = 0; k < self->capacity; k++) {
        const SharedArray *entry = &self->table[k];
        if (entry->bytes) *find_entry(&larger, entry->bytes, entry->unit, entry->count, entry->hash) = *entry;
    }
    *self = larger;
}

/* Returns the array that stands for this one: the first equal one, or this one itself, copied if it does not
 * last. Without memory arrays stand for themselves. */
static const void *share_bytes(ArrayTable *self, const void *bytes, size_t unit, size_t count, bool lasts) {
    if (2 * self->count >= self->capacity) grow(self);
    if (self->arena->failed) return lasts ? bytes : NULL;
    uint64_t hash = hash_bytes(bytes, count, 0);
    SharedArray *entry = find_entry(self, bytes, unit, count, hash);
    if (entry->bytes) return entry->bytes;
    *entry = (SharedArray){lasts ? bytes : arena_copy_bytes(self->arena, bytes, count), unit, count, hash};
    self->count++;
    return entry->bytes;
}

static const void *share(ArrayTable *self, const void *bytes, size_t size, int32_t count) {
    return bytes && count > 0 ? share_bytes(self, bytes, size, size * (size_t)count, true) : bytes;
}

/* Shares a copy of an array that does not last. */
static const void *share_copy(ArrayTable *self, const void *bytes, size_t size, int32_t count) {
    return bytes && count > 0 ? share_bytes(self, bytes, size, size * (size_t)count, false) : NULL;
}

static const IrDot *share_dot(ArrayTable *self, const IrDot *dot) {
    IrDot own = *dot;
    own.lhs_batch = share(self, own.lhs_batch, sizeof *own.lhs_batch, own.batch_count);
    own.rhs_batch = share(self, own.rhs_batch, sizeof *own.rhs_batch, own.batch_count);
    own.lhs_contracting =
        share(self, own.lhs_contracting, sizeof *own.lhs_contracting, own.contracting_count);
    own.rhs_contracting =
        share(self, own.rhs_contracting, sizeof *own.rhs_contracting, own.contracting_count);
    return share_bytes(self, &own, sizeof own, sizeof own, false);
}

/* Room for one rule. */
typedef struct RuleRoom {
    Factor *factors; /* [the most of any rule] */
    int64_t *extent; /* [the most slots of any rule] */
} RuleRoom;

static void share_factors(ArrayTable *self, const Rules *rules, int32_t i, const RuleRoom *room) {
    FactorRule *rule = &rules->rules[i];
    int32_t slots = rule->operand_count + rule->result_count;
    for (int32_t f = 0; f < rule->factor_count; f++) {
        Factor *own = &room->factors[f];
        *own = rule->factors[f];
        for (int32_t slot = 0; slot < slots; slot++) {
            int8_t d = own->dimension[slot];
            room->extent[slot] = d < 0 ? 0 : rules_slot_shape(rules, i, slot)->dimensions[d];
        }
        own->dimension = share_copy(self, own->dimension, sizeof *own->dimension, slots);
        own->extent = share_copy(self, room->extent, sizeof *room->extent, slots);
        own->blocks = share_copy(self, own->blocks, sizeof *own->blocks, slots);
    }
    rule->factors = share_copy(self, room->factors, sizeof *room->factors, rule->factor_count);
    if (!rule->inner) return;
    const IrModule *module = rules->module;
    int32_t places = module->computations[module->instructions[i].called[0]].count * IR_MAX_RANK;
    rule->inner = share_copy(self, rule->inner, sizeof *rule->inner, places);
}

AmStatus rules_share(Rules *rules, IrModule *canonical, Arena *arena, AmError *error) {
    ArrayTable of_module = {.arena = &canonical->arena}, of_rules = {.arena = arena};
    RuleRoom room;
    int32_t factors = 1, slots = 1;
    for (int32_t i = 0; i < rules->count; i++) {
        const FactorRule *rule = &rules->rules[i];
        if (rule->factor_count > factors) factors = rule->factor_count;
        if (rule->operand_count + rule->result_count > slots)
            slots = rule->operand_count + rule->result_count;
    }
    room = (RuleRoom){ARENA_ARRAY(arena, Factor, factors), ARENA_ARRAY(arena, int64_t, slots)};
    if (arena->failed) return am_fail_memory(error, factors);
    for (int32_t i = 0; i < rules->count && !arena->failed && !canonical->arena.failed; i++) {
        IrInstruction *instruction = &canonical->instructions[i];
        IrShape *shape = &instruction->shape;
        if (shape->type != DTYPE_TUPLE)
            shape->dimensions = share(&of_module, shape->dimensions, sizeof *shape->dimensions, shape->rank);
        /* Attributes of the operators that stand in every layer; what those of others point to stays their
         * own. */
        IrAttributes own = *instruction->attributes;
        own.dimensions = share(&of_module, own.dimensions, sizeof *own.dimensions, own.dimension_count);
        if (own.dot) own.dot = share_dot(&of_module, own.dot);
        instruction->attributes = share_bytes(&of_module, &own, sizeof own, sizeof own, false);
        share_factors(&of_rules, rules, i, &room);
    }
    return arena->failed || canonical->arena.failed ? am_fail_memory(error, of_rules.count) : AM_OK;
}
