/* Writes the binary encoding: protobuf-c packs the message directly into the output text. Fields
 * outside the schema are written as read.
 *
 * XLA refuses a binary in which two instructions of the module have one name, while names in text
 * and JSON are unique per computation. A repeated name gets a number appended, in a copy of the
 * message; the entry keeps its names.
 */
#include "ir/encodings.h"
#include "ir/text/hlo_text.h"

#include <string.h>

typedef struct TextBuffer {
    ProtobufCBuffer base; /* first, so that protobuf-c's pointer is ours */
    Text *text;
} TextBuffer;

static void append(ProtobufCBuffer *buffer, size_t length, const uint8_t *data) {
    text_append_bytes(((TextBuffer *)(void *)buffer)->text, (const char *)data, length);
}

/* Gives a message its own array, with its own copy of the element at `index`. Returns that copy; NULL: no
 * memory. */
static void *own_element(Arena *arena, void ***array, size_t count, size_t index, void *const *shared) {
    if (*array == shared) {
        *array = ARENA_ARRAY(arena, void *, count);
        if (!*array) return NULL;
        memcpy(*array, shared, count * sizeof **array);
    }
    if ((*array)[index] != shared[index]) return (*array)[index];
    const ProtobufCMessage *from = shared[index];
    size_t size = from->descriptor->sizeof_message;
    void *copy = arena_alloc(arena, size);
    if (copy) memcpy(copy, from, size);
    return (*array)[index] = copy;
}

static AmStatus rename(Arena *arena, Hlo__HloModuleProto *copy, const Hlo__HloModuleProto *message, size_t c,
                       size_t i, const char *name, AmError *error) {
    const Hlo__HloComputationProto *from = message->computations[c];
    Hlo__HloComputationProto *computation =
        own_element(arena, (void ***)(void *)&copy->computations, message->n_computations, c,
                    (void *const *)(void *)message->computations);
    Hlo__HloInstructionProto *instruction =
        computation ? own_element(arena, (void ***)(void *)&computation->instructions, from->n_instructions,
                                  i, (void *const *)(void *)from->instructions)
                    : NULL;
    if (!instruction) return am_fail_memory(error, 0);
    instruction->name = (char *)(uintptr_t)name;
    return AM_OK;
}

AmStatus ir_print_pb(Text *out, const Hlo__HloModuleProto *message, AmError *error) {
    TextBuffer buffer = {{append}, out};
    Arena arena = {0};
    Hlo__HloModuleProto copy = *message;
    AmStatus status = AM_OK;
    /* XLA requires names that are unique in the module: a repeated one gets a number. */
    IrNames names = {0};
    int64_t suffix = 0;
    size_t entry = 0;
    while (entry < message->n_computations &&
           message->computations[entry]->id != message->entry_computation_id)
        entry++;
    if (entry == message->n_computations) entry = 0;
    for (size_t k = 0; k < message->n_computations; k++) {
        size_t c = k == 0 ? entry : k <= entry ? k - 1 : k; /* the entry, then the others */
        const Hlo__HloComputationProto *computation = message->computations[c];
        for (size_t i = 0; i < computation->n_instructions; i++) {
            const char *written = computation->instructions[i]->name, *name = written;
            if (!*written) continue; /* XLA gives it one */
            while (name && ir_names_find(&names, (IrWord){name, (int64_t)strlen(name)}) >= 0)
                name = arena_format(&arena, "%s.%lld", written, (long long)++suffix);
            if (!name || !ir_names_add(&names, &arena, (IrWord){name, (int64_t)strlen(name)}, 0))
                TRY_OR_FAIL(am_fail_memory(error, 0));
            if (name != written) TRY_OR_FAIL(rename(&arena, &copy, message, c, i, name, error));
        }
    }
    hlo__hlo_module_proto__pack_to_buffer(&copy, &buffer.base);
    if (out->failed) status = am_fail_memory(error, (int64_t)out->length);
fail:
    arena_free(&arena);
    return status;
}
