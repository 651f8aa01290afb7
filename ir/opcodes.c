/* Opcodes: their names and facts, from the one table in opcodes.def.
 *
 * Names are looked up through a hash table of 512 slots that is filled once,
 * so that a module of tens of thousands of instructions costs one probe or two
 * for each.
 */
#include <pthread.h>
#include <string.h>

#include "base/hash.h"
#include "ir/module.h"
#include "ir/opcode_hint.h"

enum { SLOT_COUNT = 512 };

typedef struct OpcodeRow {
    const char *name;
    int32_t arity;
    bool is_elementwise;
    uint32_t facts; /* IrOpcodeFact */
} OpcodeRow;

static const OpcodeRow rows[IR_OPCODE_COUNT + 1] = {
#define IS(column, value) (__builtin_strcmp(#column, value) == 0)
#define OPCODE(name, text, arity, rule, linearity, cost, flops, shape, operand_types, result_types, facts) \
    [IR_##name] = {text, arity < 0 ? -1 : arity, IS(rule, "ELEMENTWISE"),                                  \
                   facts | (IS(flops, "none") ? FACT_NO_FLOPS : 0) |                                       \
                       (IS(flops, "transcendental") ? FACT_TRANSCENDENTAL : 0)},
#include "ir/opcodes.def"
#undef OPCODE
#undef IS
    [IR_UNKNOWN] = {"unknown", -1, false, FACT_EFFECT},
};

static int16_t slots[SLOT_COUNT]; /* opcode + 1, or 0 where empty */
static pthread_once_t slots_once = PTHREAD_ONCE_INIT;

static uint32_t first_slot(const char *name) {
    return (uint32_t)(hash_bytes(name, strlen(name), 0) % SLOT_COUNT);
}

static void fill_slots(void) {
    for (int32_t opcode = 0; opcode < IR_OPCODE_COUNT; opcode++) {
        uint32_t slot = first_slot(rows[opcode].name);
        while (slots[slot] != 0) slot = (slot + 1) % SLOT_COUNT;
        slots[slot] = (int16_t)(opcode + 1);
    }
}

const char *ir_opcode_name(IrOpcode opcode) {
    return rows[opcode].name;
}

IrOpcode ir_opcode_from_name(const char *name) {
    pthread_once(&slots_once, fill_slots);
    for (uint32_t slot = first_slot(name); slots[slot] != 0; slot = (slot + 1) % SLOT_COUNT) {
        if (strcmp(rows[slots[slot] - 1].name, name) == 0) return (IrOpcode)(slots[slot] - 1);
    }
    return IR_UNKNOWN;
}

const char *ir_opcode_hint(char hint[SUGGEST_HINT_BYTES], const char *name) {
    const char *names[IR_OPCODE_COUNT];
    hint[0] = '\0';
    if (ir_opcode_from_name(name) != IR_UNKNOWN) return hint;
    for (int32_t k = 0; k < IR_OPCODE_COUNT; k++) names[k] = rows[k].name;
    return suggest_hint(hint, name, names, IR_OPCODE_COUNT);
}

int32_t ir_opcode_arity(IrOpcode opcode) {
    return rows[opcode].arity;
}

bool ir_is_elementwise(IrOpcode opcode) {
    return rows[opcode].is_elementwise;
}

bool ir_opcode_has(IrOpcode opcode, IrOpcodeFact fact) {
    return (rows[opcode].facts & fact) != 0;
}
