/* Reads the shardings that Shardy writes into a module.
 *
 *   module       xla.sdy.meshes="{mesh = #sdy.mesh<["data"=2, "model"=4]>}"
 *   parameter    xla.sdy.sharding="#sdy.sharding<@mesh, [{"data"}, {?}]>"
 *   operator     xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{"data"}p1, {}]>]>"
 *
 * Each dimension names its axes, major first. '?' leaves it open to more axes, and p1 is a priority
 * in Shardy's own propagation. A seed ignores both, and the part after the dimensions (axes that
 * stay replicated).
 */
#include "propagation/propagate/read_shardy.h"

#include <stdlib.h>
#include <string.h>

#include "ir/encodings.h"

#define MAX_AXES 16

typedef struct ShardyReader {
    const char *at;
    Arena *arena;
    Hlo__MeshProto *mesh;
} ShardyReader;

/* Skips white space and then the token. Returns false if another token is next. */
static bool accept(ShardyReader *reader, const char *token) {
    while (*reader->at == ' ' || *reader->at == '\n' || *reader->at == '\\') reader->at++;
    size_t length = strlen(token);
    if (strncmp(reader->at, token, length) != 0) return false;
    reader->at += length;
    return true;
}

/* Returns a name in quotes, which may be escaped; NULL without a name. */
static const char *read_name(ShardyReader *reader) {
    if (!accept(reader, "\"")) return NULL;
    size_t length = strcspn(reader->at, "\"\\");
    const char *name = arena_copy_bytes(reader->arena, reader->at, length);
    reader->at += length;
    return accept(reader, "\"") ? name : NULL;
}

/* Reads ["data"=2, "model"=4]. */
static bool read_axes_of_mesh(ShardyReader *reader) {
    Hlo__MeshProto *mesh = reader->mesh;
    if (!accept(reader, "[")) return false;
    if (accept(reader, "]")) return true;
    do {
        Hlo__MeshProto__MeshAxis *axis = ARENA_ARRAY(reader->arena, Hlo__MeshProto__MeshAxis, 1);
        const char *name = read_name(reader);
        char *end;
        if (!axis || !name || mesh->n_axes == MAX_AXES || !accept(reader, "=")) return false;
        hlo__mesh_proto__mesh_axis__init(axis);
        axis->name = (char *)name;
        axis->size = strtoll(reader->at, &end, 10);
        if (end == reader->at) return false;
        reader->at = end;
        mesh->axes[mesh->n_axes++] = axis;
    } while (accept(reader, ","));
    return accept(reader, "]");
}

/* Reads the mesh `name` of the module's meshes. */
static bool read_mesh(ShardyReader *reader, const char *meshes, const char *name, size_t length) {
    ShardyReader inner = {.at = meshes, .arena = reader->arena};
    inner.mesh = ARENA_ARRAY(reader->arena, Hlo__MeshProto, 1);
    if (!inner.mesh) return false;
    hlo__mesh_proto__init(inner.mesh);
    inner.mesh->axes = ARENA_ARRAY(reader->arena, Hlo__MeshProto__MeshAxis *, MAX_AXES);
    if (!inner.mesh->axes || !accept(&inner, "{")) return false;
    do {
        accept(&inner, "");
        bool is_wanted = strncmp(inner.at, name, length) == 0 && strcspn(inner.at, " =") == length;
        inner.at += strcspn(inner.at, " =");
        inner.mesh->n_axes = 0;
        if (!accept(&inner, "=") || !accept(&inner, "#sdy.mesh<") || !read_axes_of_mesh(&inner)) return false;
        reader->mesh = inner.mesh;
        if (is_wanted) return accept(&inner, ">");
        inner.at += strcspn(inner.at, ">");
    } while (accept(&inner, ">") && accept(&inner, ","));
    return false;
}

static bool append_axis(ShardyReader *reader, Hlo__NamedShardingProto__DimensionSharding *dimension,
                        const char *name) {
    Hlo__AxisRefProto *axis = ARENA_ARRAY(reader->arena, Hlo__AxisRefProto, 1);
    if (!axis || dimension->n_axes == MAX_AXES) return false;
    hlo__axis_ref_proto__init(axis);
    for (size_t k = 0; k < reader->mesh->n_axes; k++) {
        if (strcmp(reader->mesh->axes[k]->name, name) != 0) continue;
        axis->mesh_axis_index = (int64_t)k;
        dimension->axes[dimension->n_axes++] = axis;
        return true;
    }
    return false;
}

/* Reads {"data", "model", ?}p1. */
static bool read_dimension(ShardyReader *reader, Hlo__NamedShardingProto *named) {
    Hlo__NamedShardingProto__DimensionSharding *dimension =
        ARENA_ARRAY(reader->arena, Hlo__NamedShardingProto__DimensionSharding, 1);
    if (!dimension || named->n_dim_shardings == MAX_AXES || !accept(reader, "{")) return false;
    hlo__named_sharding_proto__dimension_sharding__init(dimension);
    dimension->is_closed = true;
    dimension->axes = ARENA_ARRAY(reader->arena, Hlo__AxisRefProto *, MAX_AXES);
    named->dim_shardings[named->n_dim_shardings++] = dimension;
    while (dimension->axes && !accept(reader, "}")) {
        const char *name = accept(reader, "?") ? NULL : read_name(reader);
        if (name ? !append_axis(reader, dimension, name) : reader->at[-1] != '?') return false;
        accept(reader, ",");
    }
    if (accept(reader, "p")) reader->at += strspn(reader->at, "0123456789");
    return dimension->axes != NULL;
}

static bool read_text(ShardyReader *reader, const char *meshes, Hlo__NamedShardingProto *named) {
    bool is_result = accept(reader, "#sdy.sharding_per_value<[<");
    if ((!is_result && !accept(reader, "#sdy.sharding<")) || !accept(reader, "@")) return false;
    const char *name = reader->at;
    size_t length = strcspn(name, ", ");
    reader->at += length;
    if (!read_mesh(reader, meshes, name, length) || !accept(reader, ",") || !accept(reader, "["))
        return false;
    named->mesh = reader->mesh;
    while (!accept(reader, "]")) {
        if (!read_dimension(reader, named)) return false;
        accept(reader, ",");
    }
    return !is_result || strstr(reader->at, "<@") == NULL; /* one value */
}

AmStatus shardy_read(Hlo__OpSharding **message, Arena *arena, const Hlo__HloModuleProto *module,
                     const Hlo__HloInstructionProto *instruction, AmError *error) {
    const char *text = ir_frontend_attribute(instruction->frontend_attributes, "xla.sdy.sharding");
    const char *meshes = ir_frontend_attribute(module->frontend_attributes, "xla.sdy.meshes");
    *message = NULL;
    if (!text) return AM_OK;
    Hlo__NamedShardingProto *named = ARENA_ARRAY(arena, Hlo__NamedShardingProto, 1);
    Hlo__OpSharding *sharding = ARENA_ARRAY(arena, Hlo__OpSharding, 1);
    if (!named || !sharding) return am_fail_memory(error, 0);
    hlo__op_sharding__init(sharding);
    hlo__named_sharding_proto__init(named);
    named->dim_shardings = ARENA_ARRAY(arena, Hlo__NamedShardingProto__DimensionSharding *, MAX_AXES);
    sharding->named_sharding = named;
    ShardyReader reader = {.at = text, .arena = arena};
    if (!named->dim_shardings || !meshes || !read_text(&reader, meshes, named))
        return am_fail(
            error, AM_ERROR_INPUT, "",
            "xla.sdy.sharding \"%.200s\": expected one sharding over axes of a mesh in xla.sdy.meshes", text);
    *message = sharding;
    return AM_OK;
}
