/* Shardings in HLO text.
 *
 * A sharding is {replicated}, {manual}, {unknown}, {unreduced}, {maximal device=3},
 * {devices=[2,1]0,1}, the equivalent iota {devices=[2,2]<=[2,2]T(1,0)}, a sharding over a mesh of
 * named axes (ir/text/text_mesh.c), or a list of these for a tuple. last_tile_dim_replicate and
 * last_tile_dims={manual, ...} define the trailing tile dimensions; shard_as and shard_like name a
 * group.
 */
#include <string.h>

#include "ir/text/hlo_text.h"

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

/* Reads <=[2,2]T(1,0): the devices count up, reshaped and transposed. */
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
    } else if (count > 1) {
        return ir_scan_fail(scanner, scanner->at, "expected T(...), the order of these dimensions");
    }
    for (size_t i = 0; order && i < count; i++) {
        if (order[i] < 0 || order[i] >= (int64_t)count)
            return ir_scan_fail(scanner, scanner->at, "T(...) names dimension %lld of %zu",
                                (long long)order[i], count);
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

/* Reads one word of a sharding, with its argument. */
static AmStatus read_part(IrScanner *scanner, Hlo__OpSharding *sharding, int64_t start, IrWord word,
                          bool *has_kind) {
    if (find_kind(word, &sharding->type)) {
        *has_kind = true;
        return AM_OK;
    }
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
    if (ir_word_is(word, "devices")) {
        *has_kind = true;
        return read_devices(scanner, sharding);
    }
    if (ir_word_is(word, "last_tile_dims")) return read_last_tiles(scanner, sharding);
    if (ir_word_is(word, "device")) {
        int64_t *device = ir_push(scanner->arena, &sharding->tile_assignment_devices,
                                  &sharding->n_tile_assignment_devices, sizeof *device);
        return device ? ir_scan_integer(scanner, device) : ir_scan_memory(scanner);
    }
    if (ir_word_is(word, "metadata"))
        return ir_read_metadata_list(scanner, &sharding->n_metadata, &sharding->metadata);
    return ir_scan_fail(scanner, start, "unknown part of a sharding");
}

static AmStatus read_sharding(IrScanner *scanner, Hlo__OpSharding **result, int depth) {
    Hlo__OpSharding *sharding = ir_new_message(scanner->arena, &hlo__op_sharding__descriptor);
    if (!sharding) return ir_scan_memory(scanner);
    *result = sharding;
    if (depth > IR_MAX_TUPLE_DEPTH) return ir_scan_fail(scanner, scanner->at, "sharding nested too deeply");
    if (ir_at_named_sharding(scanner)) return ir_read_named_sharding(scanner, &sharding->named_sharding);
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
    bool has_kind = false;
    int64_t begin = scanner->at;
    while (!ir_scan_accept(scanner, "}")) {
        IrWord word;
        ir_scan_space(scanner);
        int64_t start = scanner->at;
        TRY(ir_scan_word(scanner, "a part of a sharding", &word));
        bool had_kind = has_kind;
        has_kind = false;
        TRY(read_part(scanner, sharding, start, word, &has_kind));
        if (had_kind && has_kind) return ir_scan_fail(scanner, start, "a sharding of two kinds");
        has_kind |= had_kind;
    }
    return has_kind ? AM_OK : ir_scan_fail(scanner, begin, "a sharding without its kind or its devices");
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
    if (sharding->named_sharding) {
        ir_write_named_sharding(out, sharding->named_sharding);
        return;
    }
    text_append_string(out, "{");
    for (size_t i = 0; i < sharding->n_tuple_shardings; i++) {
        if (i) text_append_string(out, ", ");
        ir_write_sharding(out, sharding->tuple_shardings[i]);
    }
    bool has_devices = sharding->n_iota_reshape_dims > 0 || sharding->n_tile_assignment_devices > 0;
    if (sharding->type == HLO__OP_SHARDING__TYPE__OTHER && has_devices) {
        write_devices(out, sharding);
    } else if (sharding->type == HLO__OP_SHARDING__TYPE__OTHER) { /* tiles without devices have no meaning */
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
    if (sharding->n_metadata) {
        text_append_string(out, " metadata=");
        ir_write_metadata_list(out, sharding->n_metadata, sharding->metadata);
    }
    text_append_string(out, "}");
}
