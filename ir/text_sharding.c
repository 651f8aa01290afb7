/* Shardings, metadata and frontend attributes in HLO text.
 *
 * A sharding is {replicated}, {manual}, {unknown}, {unreduced}, {maximal device=3},
 * {devices=[2,1]0,1}, the same as an iota {devices=[2,2]<=[2,2]T(1,0)}, or a list
 * of these for a tuple; last_tile_dim_replicate and last_tile_dims={manual, ...}
 * name what the trailing tile dimensions mean, shard_as and shard_like a group.
 * Metadata is {key=value key=value}; unknown keys are skipped.
 */
#include <string.h>

#include "ir/text.h"

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

void ir_write_integers(Text *out, size_t count, const int64_t *values) {
    for (size_t i = 0; i < count; i++) text_append(out, i ? ",%lld" : "%lld", (long long)values[i]);
}

/* ---------------------------------------------------------------- Shardings */

static const struct {
    const char *name;
    Hlo__OpSharding__Type type;
} KINDS[] = {
    {"replicated", HLO__OP_SHARDING__TYPE__REPLICATED}, {"manual", HLO__OP_SHARDING__TYPE__MANUAL},
    {"unknown", HLO__OP_SHARDING__TYPE__UNKNOWN},       {"unreduced", HLO__OP_SHARDING__TYPE__UNREDUCED},
    {"maximal", HLO__OP_SHARDING__TYPE__MAXIMAL},
};
#define KIND_COUNT (sizeof KINDS / sizeof KINDS[0])

static bool find_kind(IrWord word, Hlo__OpSharding__Type *type) {
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (!ir_word_is(word, KINDS[i].name)) continue;
        *type = KINDS[i].type;
        return true;
    }
    return false;
}

static const char *kind_name(Hlo__OpSharding__Type type) {
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (KINDS[i].type == type) return KINDS[i].name;
    }
    return "unknown";
}

static AmStatus read_sharding(IrScanner *scanner, Hlo__OpSharding **result, int depth);

/* <=[2,2]T(1,0): the devices count up, reshaped and transposed. */
static AmStatus read_iota(IrScanner *scanner, Hlo__OpSharding *sharding) {
    TRY(ir_scan_integers(scanner, "[", "]", &sharding->n_iota_reshape_dims, &sharding->iota_reshape_dims));
    size_t count = sharding->n_iota_reshape_dims;
    int64_t *order = NULL;
    if (ir_scan_accept(scanner, "T")) {
        TRY(ir_scan_integers(scanner, "(", ")", &count, &order));
        if (count != sharding->n_iota_reshape_dims) {
            return ir_scan_fail(scanner, scanner->at,
                                "the transposition and the dimensions differ in length");
        }
    }
    sharding->iota_transpose_perm = ARENA_ARRAY(scanner->arena, int32_t, count ? count : 1);
    if (!sharding->iota_transpose_perm) return ir_scan_memory(scanner);
    sharding->n_iota_transpose_perm = count;
    for (size_t i = 0; i < count; i++) {
        sharding->iota_transpose_perm[i] = (int32_t)(order ? order[i] : (int64_t)i);
    }
    return AM_OK;
}

static AmStatus read_devices(IrScanner *scanner, Hlo__OpSharding *sharding) {
    sharding->type = HLO__OP_SHARDING__TYPE__OTHER;
    TRY(ir_scan_integers(scanner, "[", "]", &sharding->n_tile_assignment_dimensions,
                         &sharding->tile_assignment_dimensions));
    if (ir_scan_accept(scanner, "<=")) return read_iota(scanner, sharding);
    do {
        int64_t *device = ir_push(scanner->arena, &sharding->tile_assignment_devices,
                                  &sharding->n_tile_assignment_devices, sizeof *device);
        if (!device) return ir_scan_memory(scanner);
        TRY(ir_scan_integer(scanner, device));
    } while (ir_scan_accept(scanner, ","));
    return AM_OK;
}

static AmStatus read_last_tiles(IrScanner *scanner, Hlo__OpSharding *sharding) {
    TRY(ir_scan_expect(scanner, "{"));
    do {
        Hlo__OpSharding__Type *type =
            ir_push(scanner->arena, &sharding->last_tile_dims, &sharding->n_last_tile_dims, sizeof *type);
        if (!type) return ir_scan_memory(scanner);
        IrWord word;
        TRY(ir_scan_word(scanner, "a kind of sharding", &word));
        if (!find_kind(word, type)) return ir_scan_fail(scanner, scanner->at, "unknown kind of sharding");
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}

/* One word of a sharding, with what belongs to it. */
static AmStatus read_part(IrScanner *scanner, Hlo__OpSharding *sharding, int64_t start, IrWord word) {
    if (find_kind(word, &sharding->type)) return AM_OK;
    if (ir_word_is(word, "last_tile_dim_replicate")) {
        sharding->replicate_on_last_tile_dim = true;
        return AM_OK;
    }
    bool is_like = ir_word_is(word, "shard_like");
    if (is_like || ir_word_is(word, "shard_as")) {
        sharding->is_shard_group = true;
        sharding->shard_group_type =
            is_like ? HLO__OP_SHARDING__SHARD_GROUP_TYPE__LIKE : HLO__OP_SHARDING__SHARD_GROUP_TYPE__AS;
        return ir_scan_integer(scanner, &sharding->shard_group_id);
    }
    if (!ir_scan_accept(scanner, "=")) return ir_scan_fail(scanner, start, "unknown part of a sharding");
    if (ir_word_is(word, "devices")) return read_devices(scanner, sharding);
    if (ir_word_is(word, "last_tile_dims")) return read_last_tiles(scanner, sharding);
    if (ir_word_is(word, "device")) {
        int64_t *device = ir_push(scanner->arena, &sharding->tile_assignment_devices,
                                  &sharding->n_tile_assignment_devices, sizeof *device);
        return device ? ir_scan_integer(scanner, device) : ir_scan_memory(scanner);
    }
    if (ir_word_is(word, "metadata")) {
        IrWord skipped;
        return ir_scan_braced(scanner, &skipped);
    }
    return ir_scan_fail(scanner, start, "unknown part of a sharding");
}

static AmStatus read_sharding(IrScanner *scanner, Hlo__OpSharding **result, int depth) {
    Hlo__OpSharding *sharding = ir_new_message(scanner->arena, &hlo__op_sharding__descriptor);
    if (!sharding) return ir_scan_memory(scanner);
    *result = sharding;
    if (depth > IR_MAX_TUPLE_DEPTH) return ir_scan_fail(scanner, scanner->at, "sharding nested too deeply");
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_peek(scanner) == '{' || ir_scan_peek(scanner) == '}') {
        sharding->type = HLO__OP_SHARDING__TYPE__TUPLE;
        if (ir_scan_accept(scanner, "}")) return AM_OK;
        do {
            Hlo__OpSharding **element = ir_push(scanner->arena, &sharding->tuple_shardings,
                                                &sharding->n_tuple_shardings, sizeof *element);
            if (!element) return ir_scan_memory(scanner);
            TRY(read_sharding(scanner, element, depth + 1));
        } while (ir_scan_accept(scanner, ","));
        return ir_scan_expect(scanner, "}");
    }
    while (!ir_scan_accept(scanner, "}")) {
        IrWord word;
        ir_scan_space(scanner);
        int64_t start = scanner->at;
        TRY(ir_scan_word(scanner, "a part of a sharding", &word));
        TRY(read_part(scanner, sharding, start, word));
    }
    return AM_OK;
}

AmStatus ir_read_sharding(IrScanner *scanner, Hlo__OpSharding **sharding) {
    return read_sharding(scanner, sharding, 0);
}

static void write_devices(Text *out, const Hlo__OpSharding *sharding) {
    text_append_string(out, "devices=[");
    ir_write_integers(out, sharding->n_tile_assignment_dimensions, sharding->tile_assignment_dimensions);
    text_append_string(out, "]");
    if (sharding->n_iota_reshape_dims == 0) {
        ir_write_integers(out, sharding->n_tile_assignment_devices, sharding->tile_assignment_devices);
        return;
    }
    text_append_string(out, "<=[");
    ir_write_integers(out, sharding->n_iota_reshape_dims, sharding->iota_reshape_dims);
    text_append_string(out, "]");
    if (sharding->n_iota_transpose_perm > 1) {
        for (size_t i = 0; i < sharding->n_iota_transpose_perm; i++) {
            text_append(out, i ? ",%d" : "T(%d", (int)sharding->iota_transpose_perm[i]);
        }
        text_append_string(out, ")");
    }
}

void ir_write_sharding(Text *out, const Hlo__OpSharding *sharding) {
    text_append_string(out, "{");
    for (size_t i = 0; i < sharding->n_tuple_shardings; i++) {
        if (i) text_append_string(out, ", ");
        ir_write_sharding(out, sharding->tuple_shardings[i]);
    }
    bool has_devices = sharding->n_iota_reshape_dims > 0 || sharding->n_tile_assignment_devices > 0;
    if (sharding->type == HLO__OP_SHARDING__TYPE__OTHER && has_devices) {
        write_devices(out, sharding);
    } else if (sharding->type == HLO__OP_SHARDING__TYPE__OTHER) { /* tiles without devices say nothing */
        text_append_string(out, kind_name(HLO__OP_SHARDING__TYPE__UNKNOWN));
    } else if (sharding->type != HLO__OP_SHARDING__TYPE__TUPLE) {
        text_append_string(out, kind_name(sharding->type));
    }
    if (sharding->type == HLO__OP_SHARDING__TYPE__MAXIMAL && sharding->n_tile_assignment_devices) {
        text_append(out, " device=%lld", (long long)sharding->tile_assignment_devices[0]);
    }
    if (sharding->replicate_on_last_tile_dim) text_append_string(out, " last_tile_dim_replicate");
    for (size_t i = 0; i < sharding->n_last_tile_dims; i++) {
        text_append(out, i ? ", %s" : " last_tile_dims={%s", kind_name(sharding->last_tile_dims[i]));
    }
    if (sharding->n_last_tile_dims) text_append_string(out, "}");
    if (sharding->is_shard_group) {
        bool is_like = sharding->shard_group_type == HLO__OP_SHARDING__SHARD_GROUP_TYPE__LIKE;
        text_append(out, " %s %lld", is_like ? "shard_like" : "shard_as",
                    (long long)sharding->shard_group_id);
    }
    text_append_string(out, "}");
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
        } else {
            TRY(skip_plain_value(scanner));
        }
        ir_scan_accept(scanner, ",");
    }
    return AM_OK;
}

void ir_write_metadata(Text *out, const Hlo__OpMetadata *metadata) {
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
        text_append(out, "%s%s=", has_any ? " " : ", metadata={", METADATA[row].name);
        has_any = true;
        if (text) {
            ir_write_string(out, text, strlen(text));
        } else {
            text_append(out, "%d", (int)number);
        }
    }
    if (has_any) text_append_string(out, "}");
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
        TRY(ir_scan_word(scanner, "the name of a frontend attribute", &word));
        (*entry)->key = ir_word_copy(scanner, word);
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
        text_append(out, "%s=", entry->key);
        ir_write_string(out, entry->value, strlen(entry->value));
    }
    text_append_string(out, "}");
}
