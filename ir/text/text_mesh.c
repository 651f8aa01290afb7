/* Meshes of named axes in HLO text, in shardings and in groups of devices:
 *
 *   mesh['data'=2,'model'=4]                              devices 0, 1, ..., last axis fastest
 *   mesh['data'=2,'model'=4], device_ids=(3,2,1,0)        in this order
 *   mesh['data'=2,'model'=4], device_ids=([4,2]T(1,0))    counted up, reshaped, transposed
 *   'model', 'model':(2)2       an axis; a part of one: (product of the parts before it) its size
 *   {mesh['data'=2], [{'data'}, {?}], replicated={..}, unreduced={..}, manual={..}, metadata={..}}
 *   {mesh['data'=2], replicated}, {mesh['data'=2], unreduced}, {mesh['data'=2], manual}
 *   {maximal_mesh[device_id=3]}
 *
 * A sharding gives each dimension its axes, major first; '?' leaves it open to more. Without a list,
 * `unreduced` and `manual` mean all axes. The comma after a mesh may be left out.
 */
#include <string.h>

#include "ir/text/hlo_text.h"

#define NEW(scanner, descriptor) ir_new_message((scanner)->arena, &(descriptor))

/* ------------------------------------------------------------------ Reading */

static AmStatus read_device_order(IrScanner *scanner, Hlo__MeshProto *mesh) {
    if (ir_scan_peek(scanner) == '(') {
        IrScanner ahead = *scanner;
        ahead.at++;
        if (ir_scan_peek(&ahead) != '[')
            return ir_scan_integers(scanner, "(", ")", &mesh->n_device_ids, &mesh->device_ids);
    }
    Hlo__MeshProto__IotaTransform *iota = NEW(scanner, hlo__mesh_proto__iota_transform__descriptor);
    if (!iota) return ir_scan_memory(scanner);
    mesh->iota_transform = iota;
    TRY(ir_scan_expect(scanner, "("));
    TRY(ir_scan_integers(scanner, "[", "]", &iota->n_reshape_dims, &iota->reshape_dims));
    if (ir_scan_accept(scanner, "T"))
        TRY(ir_scan_integers(scanner, "(", ")", &iota->n_transpose_perm, &iota->transpose_perm));
    return ir_scan_expect(scanner, ")");
}

static AmStatus read_axis_sizes(IrScanner *scanner, Hlo__MeshProto *mesh) {
    TRY(ir_scan_expect(scanner, "["));
    if (ir_scan_accept(scanner, "]")) return AM_OK;
    do {
        ProtobufCBinaryData name;
        Hlo__MeshProto__MeshAxis **axis = ir_push(scanner->arena, &mesh->axes, &mesh->n_axes, sizeof *axis);
        if (!axis || !(*axis = NEW(scanner, hlo__mesh_proto__mesh_axis__descriptor)))
            return ir_scan_memory(scanner);
        TRY(ir_scan_string(scanner, &name));
        (*axis)->name = arena_copy_bytes(scanner->arena, name.data, name.len);
        if (!(*axis)->name) return ir_scan_memory(scanner);
        TRY(ir_scan_expect(scanner, "="));
        TRY(ir_scan_integer(scanner, &(*axis)->size));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "]");
}

/* Takes ", NAME=" if that is next. */
static bool accept_key(IrScanner *scanner, const char *name) {
    IrScanner ahead = *scanner;
    IrWord word;
    bool is_next = ir_scan_accept(&ahead, ",") && ir_scan_take_word(&ahead, &word) &&
                   ir_word_is(word, name) && ir_scan_accept(&ahead, "=");
    if (is_next) scanner->at = ahead.at;
    return is_next;
}

AmStatus ir_read_mesh(IrScanner *scanner, Hlo__MeshProto **result) {
    Hlo__MeshProto *mesh = NEW(scanner, hlo__mesh_proto__descriptor);
    if (!mesh) return ir_scan_memory(scanner);
    *result = mesh;
    TRY(ir_scan_expect(scanner, "mesh"));
    TRY(read_axis_sizes(scanner, mesh));
    return accept_key(scanner, "device_ids") ? read_device_order(scanner, mesh) : AM_OK;
}

static AmStatus read_axis(IrScanner *scanner, const Hlo__MeshProto *mesh, Hlo__AxisRefProto *axis) {
    ProtobufCBinaryData name;
    ir_scan_space(scanner);
    int64_t start = scanner->at;
    TRY(ir_scan_string(scanner, &name));
    size_t index = 0;
    while (index < mesh->n_axes && (strlen(mesh->axes[index]->name) != name.len ||
                                    memcmp(mesh->axes[index]->name, name.data, name.len) != 0))
        index++;
    if (index == mesh->n_axes) return ir_scan_fail(scanner, start, "the mesh has no axis of this name");
    axis->mesh_axis_index = (int64_t)index;
    if (!ir_scan_accept(scanner, ":")) return AM_OK;
    axis->sub_axis_info = NEW(scanner, hlo__axis_ref_proto__sub_axis__descriptor);
    if (!axis->sub_axis_info) return ir_scan_memory(scanner);
    TRY(ir_scan_expect(scanner, "("));
    TRY(ir_scan_integer(scanner, &axis->sub_axis_info->pre_size));
    TRY(ir_scan_expect(scanner, ")"));
    return ir_scan_integer(scanner, &axis->sub_axis_info->size);
}

AmStatus ir_read_axes(IrScanner *scanner, const Hlo__MeshProto *mesh, size_t *count,
                      Hlo__AxisRefProto ***axes, bool *is_open) {
    *is_open = false;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_accept(scanner, "}")) return AM_OK;
    do {
        *is_open = ir_scan_accept(scanner, "?");
        if (*is_open) break;
        Hlo__AxisRefProto **axis = ir_push(scanner->arena, axes, count, sizeof *axis);
        if (!axis || !(*axis = NEW(scanner, hlo__axis_ref_proto__descriptor))) return ir_scan_memory(scanner);
        TRY(read_axis(scanner, mesh, *axis));
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "}");
}

static AmStatus read_dimensions(IrScanner *scanner, Hlo__NamedShardingProto *sharding) {
    TRY(ir_scan_expect(scanner, "["));
    if (ir_scan_accept(scanner, "]")) return AM_OK;
    do {
        Hlo__NamedShardingProto__DimensionSharding **dimension =
            ir_push(scanner->arena, &sharding->dim_shardings, &sharding->n_dim_shardings, sizeof *dimension);
        bool is_open;
        if (!dimension ||
            !(*dimension = NEW(scanner, hlo__named_sharding_proto__dimension_sharding__descriptor)))
            return ir_scan_memory(scanner);
        TRY(ir_read_axes(scanner, sharding->mesh, &(*dimension)->n_axes, &(*dimension)->axes, &is_open));
        (*dimension)->is_closed = !is_open;
    } while (ir_scan_accept(scanner, ","));
    return ir_scan_expect(scanner, "]");
}

/* The lists of axes that belong to no dimension. */
static const struct {
    const char *name;
    size_t axes, count;
} AXIS_LISTS[] = {
#define AXIS_LIST(name)                                        \
    {                                                          \
#name, offsetof(Hlo__NamedShardingProto, name##_axes), \
            offsetof(Hlo__NamedShardingProto, n_##name##_axes) \
    }
    AXIS_LIST(replicated),
    AXIS_LIST(unreduced),
    AXIS_LIST(manual),
#undef AXIS_LIST
};
#define AXIS_LIST_COUNT (sizeof AXIS_LISTS / sizeof AXIS_LISTS[0])

static AmStatus read_maximal_mesh(IrScanner *scanner, Hlo__NamedShardingProto *sharding) {
    Hlo__MeshProto *mesh = NEW(scanner, hlo__mesh_proto__descriptor);
    int64_t *device =
        mesh ? ir_push(scanner->arena, &mesh->device_ids, &mesh->n_device_ids, sizeof *device) : NULL;
    if (!device) return ir_scan_memory(scanner);
    sharding->mesh = mesh;
    TRY(ir_scan_expect(scanner, "maximal_mesh"));
    TRY(ir_scan_expect(scanner, "["));
    TRY(ir_scan_expect(scanner, "device_id"));
    TRY(ir_scan_expect(scanner, "="));
    TRY(ir_scan_integer(scanner, device));
    return ir_scan_expect(scanner, "]");
}

static size_t *axis_count_of(const Hlo__NamedShardingProto *sharding, size_t list) {
    return (size_t *)(void *)((char *)(uintptr_t)sharding + AXIS_LISTS[list].count);
}

static Hlo__AxisRefProto ***axes_of(const Hlo__NamedShardingProto *sharding, size_t list) {
    return (Hlo__AxisRefProto ***)(void *)((char *)(uintptr_t)sharding + AXIS_LISTS[list].axes);
}

/* Adds all axes for `unreduced` or `manual` without a list. */
static AmStatus add_all_axes(IrScanner *scanner, Hlo__NamedShardingProto *sharding, size_t list) {
    for (size_t i = 0; i < sharding->mesh->n_axes; i++) {
        Hlo__AxisRefProto **axis =
            ir_push(scanner->arena, axes_of(sharding, list), axis_count_of(sharding, list), sizeof *axis);
        if (!axis || !(*axis = NEW(scanner, hlo__axis_ref_proto__descriptor))) return ir_scan_memory(scanner);
        (*axis)->mesh_axis_index = (int64_t)i;
    }
    return AM_OK;
}

/* Reads the part of a sharding after its mesh. */
static AmStatus read_use_of_mesh(IrScanner *scanner, Hlo__NamedShardingProto *sharding) {
    bool is_first = ir_scan_peek(scanner) != '}';
    for (; ir_scan_accept(scanner, ",") || is_first; is_first = false) {
        if (ir_scan_peek(scanner) == '[') {
            TRY(read_dimensions(scanner, sharding));
            continue;
        }
        IrWord word;
        size_t list = 0;
        ir_scan_space(scanner);
        int64_t start = scanner->at;
        TRY(ir_scan_word(scanner, "a part of a sharding", &word));
        bool has_value = ir_scan_accept(scanner, "=");
        if (!has_value && ir_word_is(word, "replicated")) continue;
        if (has_value && ir_word_is(word, "metadata")) {
            TRY(ir_read_metadata_list(scanner, &sharding->n_metadata, &sharding->metadata));
            continue;
        }
        while (list < AXIS_LIST_COUNT && !ir_word_is(word, AXIS_LISTS[list].name)) list++;
        if (list == AXIS_LIST_COUNT || (!has_value && !is_first))
            return ir_scan_fail(scanner, start, "unknown part of a sharding over a mesh");
        bool is_open;
        if (!has_value) {
            TRY(add_all_axes(scanner, sharding, list));
            continue;
        }
        TRY(ir_read_axes(scanner, sharding->mesh, axis_count_of(sharding, list), axes_of(sharding, list),
                         &is_open));
    }
    return AM_OK;
}

bool ir_at_named_sharding(const IrScanner *scanner) {
    IrScanner ahead = *scanner;
    IrWord word;
    return ir_scan_accept(&ahead, "{") && ir_scan_take_word(&ahead, &word) &&
           (ir_word_is(word, "mesh") || ir_word_is(word, "maximal_mesh"));
}

AmStatus ir_read_named_sharding(IrScanner *scanner, Hlo__NamedShardingProto **result) {
    Hlo__NamedShardingProto *sharding = NEW(scanner, hlo__named_sharding_proto__descriptor);
    if (!sharding) return ir_scan_memory(scanner);
    *result = sharding;
    TRY(ir_scan_expect(scanner, "{"));
    if (ir_scan_peek(scanner) == 'm' && scanner->text[scanner->at + 1] == 'a') {
        TRY(read_maximal_mesh(scanner, sharding));
    } else {
        TRY(ir_read_mesh(scanner, &sharding->mesh));
    }
    TRY(read_use_of_mesh(scanner, sharding));
    return ir_scan_expect(scanner, "}");
}

/* ----------------------------------------------------------------- Printing */

static void write_axis_name(Text *out, const char *name) {
    text_append_string(out, "'");
    for (const char *at = name; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '\'' || c == '\\') text_append_string(out, "\\");
        if (c < 0x20 || c >= 0x7F) {
            text_append(out, "\\%03o", c);
        } else {
            text_append_bytes(out, at, 1);
        }
    }
    text_append_string(out, "'");
}

void ir_write_mesh(Text *out, const Hlo__MeshProto *mesh) {
    text_append_string(out, "mesh[");
    for (size_t i = 0; i < mesh->n_axes; i++) {
        if (i) text_append_string(out, ",");
        write_axis_name(out, mesh->axes[i]->name);
        text_append(out, "=%lld", (long long)mesh->axes[i]->size);
    }
    text_append_string(out, "]");
    const Hlo__MeshProto__IotaTransform *iota = mesh->iota_transform;
    if (iota && iota->n_reshape_dims) {
        text_append_string(out, ", device_ids=([");
        ir_write_integers(out, iota->n_reshape_dims, iota->reshape_dims);
        text_append_string(out, "]");
        if (iota->n_transpose_perm) {
            text_append_string(out, "T(");
            ir_write_integers(out, iota->n_transpose_perm, iota->transpose_perm);
            text_append_string(out, ")");
        }
        text_append_string(out, ")");
    } else if (mesh->n_device_ids) {
        text_append_string(out, ", device_ids=(");
        ir_write_integers(out, mesh->n_device_ids, mesh->device_ids);
        text_append_string(out, ")");
    }
}

/* Axes that the mesh does not have are left out: nothing has checked the message. */
void ir_write_axes(Text *out, const Hlo__MeshProto *mesh, size_t count, Hlo__AxisRefProto *const *axes,
                   bool is_open) {
    bool has_any = false;
    text_append_string(out, "{");
    for (size_t i = 0; i < count; i++) {
        int64_t index = axes[i]->mesh_axis_index;
        if (index < 0 || index >= (int64_t)mesh->n_axes) continue;
        if (has_any) text_append_string(out, ", ");
        has_any = true;
        write_axis_name(out, mesh->axes[index]->name);
        const Hlo__AxisRefProto__SubAxis *part = axes[i]->sub_axis_info;
        if (part) text_append(out, ":(%lld)%lld", (long long)part->pre_size, (long long)part->size);
    }
    if (is_open) text_append_string(out, has_any ? ", ?" : "?");
    text_append_string(out, "}");
}

/* Returns whether a list has all axes of the mesh, in order. */
static bool has_all_axes(const Hlo__NamedShardingProto *sharding, const Hlo__MeshProto *mesh, size_t list) {
    size_t count = *axis_count_of(sharding, list);
    for (size_t i = 0; i < count; i++) {
        const Hlo__AxisRefProto *axis = (*axes_of(sharding, list))[i];
        if (axis->mesh_axis_index != (int64_t)i || axis->sub_axis_info) return false;
    }
    return count > 0 && count == mesh->n_axes;
}

/* Returns the word for a sharding of all dimensions: nothing is listed, or all axes in one list. */
static const char *find_word(const Hlo__NamedShardingProto *sharding, const Hlo__MeshProto *mesh) {
    const char *word = "replicated";
    if (sharding->n_dim_shardings > 0) return NULL;
    for (size_t list = 0; list < AXIS_LIST_COUNT; list++) {
        if (*axis_count_of(sharding, list) == 0) continue;
        if (list == 0 || strcmp(word, "replicated") != 0 || !has_all_axes(sharding, mesh, list)) return NULL;
        word = AXIS_LISTS[list].name;
    }
    return word;
}

static void write_use_of_mesh(Text *out, const Hlo__NamedShardingProto *sharding,
                              const Hlo__MeshProto *mesh) {
    const char *word = find_word(sharding, mesh);
    if (word) {
        text_append(out, ", %s", word);
        return;
    }
    text_append_string(out, ", [");
    for (size_t d = 0; d < sharding->n_dim_shardings; d++) {
        const Hlo__NamedShardingProto__DimensionSharding *dimension = sharding->dim_shardings[d];
        if (d) text_append_string(out, ", ");
        ir_write_axes(out, mesh, dimension->n_axes, dimension->axes, !dimension->is_closed);
    }
    text_append_string(out, "]");
    for (size_t list = 0; list < AXIS_LIST_COUNT; list++) {
        size_t count = *axis_count_of(sharding, list);
        if (!count) continue;
        text_append(out, ", %s=", AXIS_LISTS[list].name);
        ir_write_axes(out, mesh, count, *axes_of(sharding, list), false);
    }
}

void ir_write_named_sharding(Text *out, const Hlo__NamedShardingProto *sharding) {
    static const Hlo__MeshProto no_mesh = HLO__MESH_PROTO__INIT;
    const Hlo__MeshProto *mesh = sharding->mesh ? sharding->mesh : &no_mesh;
    text_append_string(out, "{");
    if (sharding->n_tuple_shardings) {
        for (size_t i = 0; i < sharding->n_tuple_shardings; i++) {
            if (i) text_append_string(out, ", ");
            ir_write_named_sharding(out, sharding->tuple_shardings[i]);
        }
    } else if (mesh->n_axes == 0 && mesh->n_device_ids == 1) {
        text_append(out, "maximal_mesh[device_id=%lld]", (long long)mesh->device_ids[0]);
    } else {
        ir_write_mesh(out, mesh);
        write_use_of_mesh(out, sharding, mesh);
    }
    if (sharding->n_metadata) {
        text_append_string(out, ", metadata=");
        ir_write_metadata_list(out, sharding->n_metadata, sharding->metadata);
    }
    text_append_string(out, "}");
}
