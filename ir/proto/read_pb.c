/* The binary encoding: protobuf's wire format (ir/proto/unpack.c).
 *
 * A file contains a HloModuleProto, or one inside a HloProto (field 1), or inside a HloSnapshot
 * (field 1 of field 1). The three share field numbers. They are distinguished by the position of an
 * instruction: computations = 3, instructions = 2, opcode = 2, and the opcode must be a word of
 * lower-case letters.
 */
#include <string.h>

#include "ir/encodings.h"
#include "ir/proto/unpack.h"

/* Finds the first field `number` that holds bytes; cut off files are searched too. */
static bool find_bytes(const uint8_t *data, int64_t at, int64_t end, uint32_t number, IrWireField *field) {
    while (at < end) {
        const char *problem = ir_wire_next(data, end, &at, field);
        bool found = field->number == number && field->wire == IR_WIRE_BYTES;
        if (found && (problem == NULL || field->cut)) return true;
        if (problem != NULL) return false;
    }
    return false;
}

static bool holds_module(const uint8_t *data, int64_t start, int64_t end) {
    IrWireField computation, instruction, opcode;
    if (!find_bytes(data, start, end, 3, &computation)) return false;
    if (!find_bytes(data, computation.start, computation.end, 2, &instruction)) return false;
    if (!find_bytes(data, instruction.start, instruction.end, 2, &opcode)) return false;
    if (opcode.start == opcode.end) return false;
    for (int64_t i = opcode.start; i < opcode.end; i++) {
        uint8_t c = data[i];
        bool word = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
        if (!word) return false;
    }
    return true;
}

static void *allocate(void *arena, size_t bytes) {
    return arena_alloc(arena, bytes);
}

static void keep(void *arena, void *memory) {
    (void)arena;
    (void)memory;
}

ProtobufCAllocator ir_arena_allocator(Arena *arena) {
    return (ProtobufCAllocator){.alloc = allocate, .free = keep, .allocator_data = arena};
}

/* Kinds of unknown fields that are warned about, each once. */
#define MOST_UNKNOWN 20

typedef struct Unknown {
    const char *type;
    uint32_t number;
} Unknown;

static void warn_of_unknown(AmWarnings *warnings, const char *source, Unknown *known, int32_t *count,
                            const ProtobufCMessage *message) {
    for (unsigned i = 0; i < message->n_unknown_fields; i++) {
        const Unknown found = {message->descriptor->short_name, message->unknown_fields[i].tag};
        int32_t at = 0;
        while (at < *count && (known[at].type != found.type || known[at].number != found.number)) at++;
        if (at < *count || at == MOST_UNKNOWN) continue;
        known[(*count)++] = found;
        am_warn(warnings, "%s: the unknown field %u of %s is kept in binary, left out of JSON and text",
                source, (unsigned)found.number, found.type);
    }
}

/* Warns of fields that only newer writers know, in the messages that newer versions extend most. */
static void warn_of_unknown_fields(AmWarnings *warnings, const char *source,
                                   const Hlo__HloModuleProto *module) {
    Unknown known[MOST_UNKNOWN];
    int32_t count = 0;
    warn_of_unknown(warnings, source, known, &count, &module->base);
    for (size_t c = 0; c < module->n_computations; c++) {
        const Hlo__HloComputationProto *computation = module->computations[c];
        warn_of_unknown(warnings, source, known, &count, &computation->base);
        for (size_t i = 0; i < computation->n_instructions; i++)
            warn_of_unknown(warnings, source, known, &count, &computation->instructions[i]->base);
    }
}

AmStatus ir_parse_pb(Hlo__HloModuleProto **message, Arena *arena, AmWarnings *warnings, const char *source,
                     const char *data, int64_t length, AmError *error) {
    const uint8_t *bytes = (const uint8_t *)data;
    IrWireField module = {.start = 0, .end = length};
    bool found = holds_module(bytes, 0, length);
    for (int32_t wrapper = 0; wrapper < 2 && !found; wrapper++) {
        if (!find_bytes(bytes, module.start, module.end, 1, &module)) break;
        found = holds_module(bytes, module.start, module.end);
    }
    if (!found) {
        return am_fail(error, AM_ERROR_INPUT, source,
                       "expected an HLO module: a HloModuleProto, HloProto or "
                       "HloSnapshot in binary or JSON, or "
                       "text that starts with HloModule");
    }
    if (module.cut) {
        return am_fail(error, AM_ERROR_INPUT, source, "byte %lld: the file ends inside the HLO module",
                       (long long)length);
    }

    /* Structures are larger than their wire form, empty messages most of all;
     * real modules stay far below this bound. */
    size_t limit_before = arena->limit;
    arena->limit = arena->used + ((size_t)64 << 20) + 64 * (size_t)length;
    void *unpacked;
    AmStatus status = ir_unpack(&unpacked, arena, &hlo__hlo_module_proto__descriptor, source, bytes,
                                module.start, module.end, error);
    arena->limit = limit_before;
    *message = unpacked;
    if (status == AM_OK) warn_of_unknown_fields(warnings, source, *message);
    return status;
}
