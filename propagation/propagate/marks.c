/* Reads marks of automap_jax from the names of a module's operators.
 *
 * marks_read() finds the words of each name scope, and add_mark() writes each as the text of a pin:
 * "automap-stage-1" becomes "stage(1)". The place of the pin is the line of the user's program.
 */
#include "propagation/propagate/marks.h"

#include <stdio.h>
#include <string.h>

#include "propagation/propagate/scopes.h"

typedef struct MarkReader {
    Arena *arena;
    const IrModule *module;
    PropagationPin *pins;
    int32_t count, capacity;
} MarkReader;

/* Writes "stage-1" as "stage(1)", and "sharding-data--model_-" as "sharding(data+model,-)". */
static void write_call(char *call, size_t size, const char *mark) {
    size_t name = strcspn(mark, "-");
    if (mark[name] == '\0') snprintf(call, size, "%s", mark);
    else snprintf(call, size, "%.*s(%s)", (int)name, mark, mark + name + 1);
    bool has_axes = strncmp(call, "sharding(", strlen("sharding(")) == 0 ||
                    strncmp(call, "value(", strlen("value(")) == 0;
    char *to = call;
    for (const char *at = call; *at; at++, to++) {
        bool joins = has_axes && at[0] == '-' && at[1] == '-';
        *to = *at == '_' ? ',' : joins ? '+' : *at;
        at += joins;
    }
    *to = '\0';
}

static AmStatus add_mark(MarkReader *self, const IrInstruction *instruction, const char *word, size_t length,
                         AmError *error) {
    char call[PIN_ARGUMENT_BYTES + 32], place[PIN_LABEL_BYTES], text[PIN_ARGUMENT_BYTES];
    const char *file = instruction->source_file ? strrchr(instruction->source_file, '/') : NULL;
    PropagationPin pin;
    AmError refusal = {0};
    if (length >= sizeof text)
        return am_fail(error, AM_ERROR_INPUT, self->module->source,
                       "%s: a mark of at most %d characters is expected", instruction->name,
                       PIN_ARGUMENT_BYTES - 1);
    snprintf(text, sizeof text, "%.*s", (int)length, word);
    write_call(call, sizeof call, text + strlen(SCOPES_MARK));
    if (file) snprintf(place, sizeof place, "%.40s at %.60s:%d", call, file + 1, instruction->source_line);
    else snprintf(place, sizeof place, "%.40s of %.60s", call, instruction->name);
    Text written = {0};
    text_append(&written, "%s=%s", text, call);
    ARENA_RESERVE(self->arena, self->pins, self->count, self->capacity);
    bool has_memory = !self->arena->failed && !written.failed;
    AmStatus status = has_memory ? propagation_parse_pin(&pin, self->arena, written.data, &refusal)
                                 : am_fail_memory(error, self->count);
    text_free(&written);
    if (status == AM_OK && pin_kind(&pin) == PIN_SHARDING) status = AM_ERROR_USAGE;
    if (status == AM_ERROR_USAGE)
        return am_fail(error, AM_ERROR_INPUT, self->module->source,
                       "%s: the scope \"%s\" is no mark (expected %sstage-N, replicate-K, split-K, "
                       "sharding-S, value-S or devices-D)",
                       instruction->name, text, SCOPES_MARK);
    TRY(status);
    pin.file = self->module->source;
    pin.place = arena_copy_string(self->arena, place);
    if (!pin.place) return am_fail_memory(error, (int64_t)sizeof place);
    self->pins[self->count++] = pin;
    return AM_OK;
}

AmStatus marks_read(PropagationPin **pins, int32_t *count, Arena *arena, const IrModule *module,
                    AmError *error) {
    MarkReader self = {.arena = arena, .module = module};
    const char *previous = NULL; /* many instructions in a row have one name */
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const char *name = module->instructions[i].op_name;
        bool is_new = name[0] && !(previous && strcmp(previous, name) == 0);
        previous = name;
        if (!is_new || module->instructions[i].opcode == IR_PARAMETER) continue;
        for (const char *at = strstr(name, SCOPES_MARK); at; at = strstr(at, SCOPES_MARK)) {
            size_t length = 0;
            while (scopes_is_word(at[length])) length++;
            bool is_word = at == name || !scopes_is_word(at[-1]);
            for (int32_t k = 0; k < self.count && is_word; k++)
                is_word =
                    strlen(self.pins[k].pattern) != length || strncmp(self.pins[k].pattern, at, length) != 0;
            if (is_word) TRY(add_mark(&self, &module->instructions[i], at, length, error));
            at += length;
        }
    }
    *pins = self.pins;
    *count = self.count;
    return AM_OK;
}
