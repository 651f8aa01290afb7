/* Metadata, frontend attributes and strings in HLO text.
 *
 * Metadata is {key=value key=value}; unknown keys are skipped. Frontend attributes
 * are {name="value",name={..}}; values in braces are kept as they stand.
 */
#include <string.h>

#include "ir/text/hlo_text.h"

/* ------------------------------------------------------------------ Strings */

void ir_write_string(Text *out, const void *bytes, size_t count) {
    const unsigned char *at = bytes;
    text_append_string(out, "\"");
    for (size_t i = 0; i < count; i++) {
        switch (at[i]) {
        case '"': text_append_string(out, "\\\""); break;
        case '\\': text_append_string(out, "\\\\"); break;
        case '\n': text_append_string(out, "\\n"); break;
        case '\r': text_append_string(out, "\\r"); break;
        case '\t': text_append_string(out, "\\t"); break;
        default:
            if (at[i] >= 0x20 && at[i] < 0x7F) {
                text_append_bytes(out, (const char *)at + i, 1);
            } else {
                text_append(out, "\\%03o", at[i]);
            }
        }
    }
    text_append_string(out, "\"");
}

/* ----------------------------------------------------------------- Metadata */

static const struct {
    const char *name;
    size_t field;
    bool is_string;
} METADATA[] = {
    {"op_type", offsetof(Hlo__OpMetadata, op_type), true},
    {"op_name", offsetof(Hlo__OpMetadata, op_name), true},
    {"source_file", offsetof(Hlo__OpMetadata, source_file), true},
    {"source_line", offsetof(Hlo__OpMetadata, source_line), false},
    {"source_end_line", offsetof(Hlo__OpMetadata, source_end_line), false},
    {"source_column", offsetof(Hlo__OpMetadata, source_column), false},
    {"source_end_column", offsetof(Hlo__OpMetadata, source_end_column), false},
    {"stack_frame_id", offsetof(Hlo__OpMetadata, stack_frame_id), false},
    {"deduplicated_name", offsetof(Hlo__OpMetadata, deduplicated_name), true},
    {"scheduling_name", offsetof(Hlo__OpMetadata, scheduling_name), true},
};
#define METADATA_COUNT (sizeof METADATA / sizeof METADATA[0])

/* Skips "key=value" pairs' values of any form. */
static AmStatus skip_plain_value(IrScanner *scanner) {
    IrWord word;
    ProtobufCBinaryData bytes;
    char next = ir_scan_peek(scanner);
    if (next == '{') return ir_scan_braced(scanner, &word);
    return next == '"' ? ir_scan_string(scanner, &bytes) : ir_scan_word(scanner, "a value", &word);
}

static AmStatus read_metadata_field(IrScanner *scanner, Hlo__OpMetadata *metadata, size_t row) {
    if (!METADATA[row].is_string) {
        int64_t value;
        TRY(ir_scan_integer(scanner, &value));
        *(int32_t *)((char *)metadata + METADATA[row].field) = (int32_t)value;
        return AM_OK;
    }
    ProtobufCBinaryData bytes;
    TRY(ir_scan_string(scanner, &bytes));
    char *text = arena_copy_bytes(scanner->arena, bytes.data, bytes.len);
    if (!text) return ir_scan_memory(scanner);
    memcpy((char *)metadata + METADATA[row].field, &text, sizeof text);
    return AM_OK;
}

AmStatus ir_read_metadata(IrScanner *scanner, Hlo__OpMetadata **result) {
    Hlo__OpMetadata *metadata = ir_new_message(scanner->arena, &hlo__op_metadata__descriptor);
    if (!metadata) return ir_scan_memory(scanner);
    *result = metadata;
    TRY(ir_scan_expect(scanner, "{"));
    while (!ir_scan_accept(scanner, "}")) {
        IrWord key;
        size_t row = 0;
        TRY(ir_scan_word(scanner, "a key of the metadata", &key));
        TRY(ir_scan_expect(scanner, "="));
        while (row < METADATA_COUNT && !ir_word_is(key, METADATA[row].name)) row++;
        if (row < METADATA_COUNT) {
            TRY(read_metadata_field(scanner, metadata, row));
        } else if (ir_word_is(key, "profile_type")) {
            size_t count;
            int64_t *values;
            TRY(ir_scan_integers(scanner, "{", "}", &count, &values));
            metadata->profile_type = ARENA_ARRAY(scanner->arena, Hlo__ProfileType, count + 1);
            if (!metadata->profile_type) return ir_scan_memory(scanner);
            for (size_t i = 0; i < count; i++) metadata->profile_type[i] = (Hlo__ProfileType)values[i];
            metadata->n_profile_type = count;
        } else if (ir_word_is(key, "metadata_payload")) {
            /* Text has the payload itself, where a binary file often has its place in a table. */
            Hlo__Payload *payload = ir_new_message(scanner->arena, &hlo__payload__descriptor);
            if (!payload) return ir_scan_memory(scanner);
            metadata->metadata_payload = payload;
            payload->payload_source_case = HLO__PAYLOAD__PAYLOAD_SOURCE_VALUE;
            TRY(ir_scan_string(scanner, &payload->value));
        } else {
            TRY(skip_plain_value(scanner));
        }
        ir_scan_accept(scanner, ",");
    }
    return AM_OK;
}

AmStatus ir_read_metadata_list(IrScanner *scanner, size_t *count, Hlo__OpMetadata ***list) {
    IrScanner ahead = *scanner;
    bool is_list = ir_scan_accept(&ahead, "{") && ir_scan_peek(&ahead) == '{';
    if (is_list) TRY(ir_scan_expect(scanner, "{"));
    do {
        Hlo__OpMetadata **metadata = ir_push(scanner->arena, list, count, sizeof *metadata);
        if (!metadata) return ir_scan_memory(scanner);
        TRY(ir_read_metadata(scanner, metadata));
    } while (is_list && ir_scan_accept(scanner, ","));
    return is_list ? ir_scan_expect(scanner, "}") : AM_OK;
}

/* Writes "key=", after a blank unless it is the first. */
static void write_key(Text *out, bool *has_any, const char *name) {
    text_append(out, *has_any ? " %s=" : "%s=", name);
    *has_any = true;
}

bool ir_metadata_is_empty(const Hlo__OpMetadata *metadata) {
    if (metadata->op_name[0] || metadata->metadata_payload) return false;
    Text text = {0};
    ir_write_metadata(&text, metadata, NULL);
    bool is_empty = text.length == 0 && !text.failed;
    text_free(&text);
    return is_empty;
}

void ir_write_metadata(Text *out, const Hlo__OpMetadata *metadata, const Hlo__HloModuleProto *module) {
    bool has_any = false;
    for (size_t row = 0; row < METADATA_COUNT; row++) {
        const char *field = (const char *)metadata + METADATA[row].field;
        const char *text = NULL;
        int32_t number = 0;
        if (METADATA[row].is_string) {
            memcpy(&text, field, sizeof text);
        } else {
            memcpy(&number, field, sizeof number);
        }
        if (number == 0 && (!text || !*text)) continue;
        write_key(out, &has_any, METADATA[row].name);
        if (text) {
            ir_write_string(out, text, strlen(text));
        } else {
            text_append(out, "%d", (int)number);
        }
    }
    if (metadata->n_profile_type) {
        write_key(out, &has_any, "profile_type");
        for (size_t i = 0; i < metadata->n_profile_type; i++)
            text_append(out, i ? ",%d" : "{%d", (int)metadata->profile_type[i]);
        text_append_string(out, "}");
    }
    const ProtobufCBinaryData *payload = ir_payload(module, metadata->metadata_payload);
    if (payload) {
        write_key(out, &has_any, "metadata_payload");
        ir_write_string(out, payload->data, payload->len);
    }
}

void ir_write_metadata_list(Text *out, size_t count, Hlo__OpMetadata *const *list) {
    if (count != 1) text_append_string(out, "{");
    for (size_t i = 0; i < count; i++) {
        text_append_string(out, i ? ", {" : "{");
        ir_write_metadata(out, list[i], NULL);
        text_append_string(out, "}");
    }
    if (count != 1) text_append_string(out, "}");
}

/* ------------------------------------------------------ Frontend attributes */

AmStatus ir_read_frontend(IrScanner *scanner, Hlo__FrontendAttributes **result) {
    Hlo__FrontendAttributes *attributes =
        ir_new_message(scanner->arena, &hlo__frontend_attributes__descriptor);
    if (!attributes) return ir_scan_memory(scanner);
    *result = attributes;
    TRY(ir_scan_expect(scanner, "{"));
    while (!ir_scan_accept(scanner, "}")) {
        IrWord word;
        ProtobufCBinaryData bytes;
        Hlo__FrontendAttributes__MapEntry **entry =
            ir_push(scanner->arena, &attributes->map, &attributes->n_map, sizeof *entry);
        if (!entry ||
            !(*entry = ir_new_message(scanner->arena, &hlo__frontend_attributes__map_entry__descriptor))) {
            return ir_scan_memory(scanner);
        }
        if (ir_scan_peek(scanner) == '"') {
            TRY(ir_scan_string(scanner, &bytes));
            (*entry)->key = arena_copy_bytes(scanner->arena, bytes.data, bytes.len);
        } else {
            TRY(ir_scan_word(scanner, "the name of a frontend attribute", &word));
            (*entry)->key = ir_word_copy(scanner, word);
        }
        TRY(ir_scan_expect(scanner, "="));
        if (ir_scan_peek(scanner) == '{') {
            TRY(ir_scan_braced(scanner, &word));
            (*entry)->value = ir_word_copy(scanner, word);
        } else {
            TRY(ir_scan_string(scanner, &bytes));
            (*entry)->value = arena_copy_bytes(scanner->arena, bytes.data, bytes.len);
        }
        if (!(*entry)->key || !(*entry)->value) return ir_scan_memory(scanner);
        if (!ir_scan_accept(scanner, ",") && ir_scan_peek(scanner) != '}') {
            return ir_scan_fail(scanner, scanner->at, "expected ',' or '}'");
        }
    }
    return AM_OK;
}

void ir_write_frontend(Text *out, const Hlo__FrontendAttributes *attributes) {
    text_append_string(out, "{");
    for (size_t i = 0; i < attributes->n_map; i++) {
        const Hlo__FrontendAttributes__MapEntry *entry = attributes->map[i];
        if (i) text_append_string(out, ",");
        if (ir_is_word(entry->key)) text_append_string(out, entry->key);
        else ir_write_string(out, entry->key, strlen(entry->key));
        text_append_string(out, "=");
        ir_write_string(out, entry->value, strlen(entry->value));
    }
    text_append_string(out, "}");
}
