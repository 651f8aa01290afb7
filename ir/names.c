/* Names made unique: an open-addressed table from name to the number of copies
 * so far. Every name is entered first, so that a new one never meets an old one;
 * copies are counted on, so that the whole is linear. */
#include "ir/names.h"

#include <string.h>

#include "base/hash.h"

/* The prefix of a longer name that is hashed and copied into new names. The limit bounds the cost
 * of a long name that is copied often. */
#define MAX_PREFIX 256

typedef struct Slot {
    const char *name; /* NULL: free */
    int32_t copies;
} Slot;

typedef struct NameTable {
    Slot *slots;
    uint64_t mask; /* number of slots - 1, a power of two above twice the names */
} NameTable;

/* Returns the slot of `name`, or the free one where it belongs. */
static Slot *find_slot(const NameTable *table, const char *name) {
    uint64_t at = hash_bytes(name, strnlen(name, MAX_PREFIX), 0) & table->mask;
    for (; table->slots[at].name; at = (at + 1) & table->mask)
        if (table->slots[at].name == name || strcmp(table->slots[at].name, name) == 0) break;
    return &table->slots[at];
}

AmStatus ir_unique_names(const char **names, int32_t count, char separator, Arena *arena, AmError *error) {
    Arena scratch = {0};
    AmStatus status = AM_OK;
    NameTable table = {NULL, 63};
    while (table.mask < 4 * (uint64_t)count) table.mask = table.mask * 2 + 1;
    table.slots = ARENA_ARRAY(&scratch, Slot, table.mask + 1);
    Slot **slot_of = ARENA_ARRAY(&scratch, Slot *, count + 1); /* [name] */
    if (scratch.failed) TRY_OR_FAIL(am_fail_memory(error, (int64_t)((table.mask + 1) * sizeof(Slot))));
    for (int32_t i = 0; i < count; i++) {
        slot_of[i] = find_slot(&table, names[i]);
        slot_of[i]->name = names[i];
    }
    for (int32_t i = 0; i < count; i++) {
        Slot *original = slot_of[i], *fresh = original;
        if (original->copies++ == 0) continue;
        const char *name;
        while ((name = arena_format(arena, "%.*s%c%d", MAX_PREFIX, names[i], separator, original->copies)) &&
               (fresh = find_slot(&table, name))->name)
            original->copies++;
        if (!name) TRY_OR_FAIL(am_fail_memory(error, 0));
        *fresh = (Slot){name, 1};
        names[i] = name;
    }
fail:
    arena_free(&scratch);
    return status;
}

AmStatus ir_unique_instruction_names(IrInstruction *instructions, int32_t count, Arena *arena, Arena *scratch,
                                     AmError *error) {
    const char **names = ARENA_ARRAY(scratch, const char *, count + 1);
    if (!names) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) names[i] = instructions[i].name;
    TRY(ir_unique_names(names, count, '.', arena, error));
    for (int32_t i = 0; i < count; i++) instructions[i].name = names[i];
    return AM_OK;
}
