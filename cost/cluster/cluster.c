/* Cluster files: a strict reader of "automap-cluster-1".
 *
 * Every key is known or refused by name, because an option that is silently
 * ignored is a trap; every error gives the JSON path. A type that
 * "flops_per_second" leaves out takes the rate of the next wider one (integers
 * end at the floating types: they have no units of their own to price), and
 * where there is no wider one that of the widest floating type that is named.
 * Missing efficiency curves mean the peak; "convolution" falls back to "dot",
 * and "dot_bf16" stands for "dot" with that element type.
 */
#include "cost/cluster/cluster.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/files/file.h"
#include "base/files/file_format.h"
#include "base/files/json.h"
#include "base/hash.h"
#include "base/suggest.h"
#include "cost/cluster/builtin_devices.h"
#include "cost/cluster/nccl_options.h"
#include "cost/cluster/operator_curves.h"
#include "cost/cluster/topology.h"
#include "cost/measured/measured_device.h"
#include "propagation/sharding/mesh.h"

enum { MOST_CURVE_POINTS = 64 };
#define MOST_MEMORY_BYTES ((int64_t)1 << 53)
#define LEAST_FRACTION    1e-9 /* of a peak rate */

/* The object under construction, for messages. */
typedef struct ClusterReader {
    Cluster *cluster;
    Arena *arena;
    const char *source;
    AmError *error;
    bool has_topology; /* links may be left to its edges */
} ClusterReader;

/* Returns the JSON path of a member, "$.links.nvlink", or of an element. */
static const char *where_member(ClusterReader *self, const char *parent, const char *key) {
    const char *where = arena_format(self->arena, "%s.%s", parent, key);
    return where ? where : parent;
}

static const char *where_element(ClusterReader *self, const char *parent, size_t index) {
    const char *where = arena_format(self->arena, "%s[%zu]", parent, index);
    return where ? where : parent;
}

static AmStatus fail_at(ClusterReader *self, const char *where, const char *expected) {
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: %s", where, expected);
}

/* The type whose rate stands in for one that is not named. */
static const Dtype next_wider[DTYPE_COUNT] = {
    [DTYPE_PRED] = DTYPE_S8,        [DTYPE_S1] = DTYPE_S2,
    [DTYPE_S2] = DTYPE_S4,          [DTYPE_S4] = DTYPE_S8,
    [DTYPE_S8] = DTYPE_S16,         [DTYPE_S16] = DTYPE_S32,
    [DTYPE_S32] = DTYPE_F32,        [DTYPE_S64] = DTYPE_F64,
    [DTYPE_U1] = DTYPE_U2,          [DTYPE_U2] = DTYPE_U4,
    [DTYPE_U4] = DTYPE_U8,          [DTYPE_U8] = DTYPE_U16,
    [DTYPE_U16] = DTYPE_U32,        [DTYPE_U32] = DTYPE_F32,
    [DTYPE_U64] = DTYPE_F64,        [DTYPE_F4E2M1FN] = DTYPE_F8E4M3FN,
    [DTYPE_F8E8M0FNU] = DTYPE_F16,  [DTYPE_F8E5M2] = DTYPE_F16,
    [DTYPE_F8E4M3FN] = DTYPE_F16,   [DTYPE_F8E4M3B11FNUZ] = DTYPE_F16,
    [DTYPE_F8E5M2FNUZ] = DTYPE_F16, [DTYPE_F8E4M3FNUZ] = DTYPE_F16,
    [DTYPE_F8E4M3] = DTYPE_F16,     [DTYPE_F8E3M4] = DTYPE_F16,
    [DTYPE_F16] = DTYPE_F32,        [DTYPE_BF16] = DTYPE_F32,
    [DTYPE_F32] = DTYPE_F64,        [DTYPE_C64] = DTYPE_F32,
    [DTYPE_C128] = DTYPE_F64,
};

/* Reads a list of [size, fraction] points; `holder[key]` may be absent. */
static AmStatus read_curve(ClusterReader *self, ClusterCurve *curve, json_t *holder, const char *key,
                           const char *where) {
    if (!json_object_get(holder, key)) return AM_OK;
    json_t *points;
    TRY(json_get_array(&points, holder, key, self->source, where, self->error));
    const char *list = where_member(self, where, key);
    size_t count = json_array_size(points);
    if (count < 1 || count > MOST_CURVE_POINTS)
        return fail_at(self, list, "expected 1 to 64 points [size, fraction of peak]");
    double *log_sizes = ARENA_ARRAY(self->arena, double, count);
    double *fractions = ARENA_ARRAY(self->arena, double, count);
    if (self->arena->failed) return am_fail_memory(self->error, (int64_t)count);
    double last = 0;
    for (size_t k = 0; k < count; k++) {
        const char *point = where_element(self, list, k);
        json_t *pair = json_array_get(points, k);
        json_t *size = json_array_get(pair, 0), *fraction = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_number(size) || !json_is_number(fraction))
            return fail_at(self, point, "expected [size, fraction of peak]");
        double value = json_number_value(size), part = json_number_value(fraction);
        if (!(value > last) || !isfinite(value))
            return fail_at(self, point, "expected a size above 0 and above that of the point before");
        if (!(part >= LEAST_FRACTION && part <= 1))
            return fail_at(self, point, "expected a fraction of at least 1e-9 and at most 1");
        last = value;
        log_sizes[k] = log2(value);
        fractions[k] = part;
    }
    *curve = (ClusterCurve){.count = (int32_t)count,
                            .least = json_number_value(json_array_get(json_array_get(points, 0), 0)),
                            .most = last,
                            .log_sizes = log_sizes,
                            .fractions = fractions};
    return AM_OK;
}

static AmStatus read_flops(ClusterReader *self, ClusterDeviceType *type, json_t *object, const char *where) {
    json_t *rates, *rate;
    const char *key;
    TRY(json_get_object(&rates, object, "flops_per_second", self->source, where, self->error));
    const char *inside = where_member(self, where, "flops_per_second");
    if (json_object_size(rates) == 0)
        return fail_at(self, inside, "expected the rate of at least one element type, such as \"f32\"");
    json_object_foreach(rates, key, rate) {
        Dtype dtype = dtype_from_name(key);
        if (dtype == DTYPE_INVALID || dtype_bits(dtype) == 0) {
            const char *member = where_member(self, inside, key);
            return fail_at(self, member, "unknown element type, expected one such as f32, f16, bf16, s8");
        }
        TRY(json_get_number(&type->flops_per_second[dtype], rates, key, 1, 1e30, self->source, inside,
                            self->error));
        type->named[dtype] = true;
    }
    static const Dtype widest_first[] = {DTYPE_F64, DTYPE_F32,      DTYPE_BF16,
                                         DTYPE_F16, DTYPE_F8E4M3FN, DTYPE_F8E5M2};
    double last_resort = 0;
    for (int32_t t = 0; t < DTYPE_COUNT && last_resort == 0; t++)
        if (type->named[t]) last_resort = type->flops_per_second[t];
    for (size_t k = sizeof widest_first / sizeof *widest_first; k-- > 0;)
        if (type->named[widest_first[k]]) last_resort = type->flops_per_second[widest_first[k]];
    for (int32_t t = 0; t < DTYPE_COUNT; t++) {
        Dtype from = (Dtype)t;
        while (from != DTYPE_INVALID && !type->named[from]) from = next_wider[from];
        if (!type->named[t])
            type->flops_per_second[t] = from == DTYPE_INVALID ? last_resort : type->flops_per_second[from];
    }
    return AM_OK;
}

static AmStatus read_optional_seconds(ClusterReader *self, double *seconds, json_t *object, const char *key,
                                      const char *where) {
    if (!json_object_get(object, key)) return AM_OK;
    return json_get_number(seconds, object, key, 0, 3600, self->source, where, self->error);
}

/* Returns the element type of a key such as "dot_bf16"; DTYPE_INVALID for other keys. */
static Dtype type_of_key(const char *key, const char *of) {
    size_t length = strlen(of);
    if (strncmp(key, of, length) != 0 || key[length] != '_') return DTYPE_INVALID;
    Dtype type = dtype_from_name(key + length + 1);
    return type != DTYPE_INVALID && dtype_bits(type) > 0 ? type : DTYPE_INVALID;
}

/* Reads the curves of products: the curve of all types, then those of single types, which replace
 * it. */
static AmStatus read_product_curves(ClusterReader *self, ClusterCurve *curves, json_t *efficiency,
                                    const char *of, const char *where) {
    ClusterCurve all = {0};
    const char *key;
    json_t *value;
    TRY(read_curve(self, &all, efficiency, of, where));
    for (int32_t t = 0; t < DTYPE_COUNT && all.count > 0; t++) curves[t] = all;
    json_object_foreach(efficiency, key, value) {
        Dtype type = type_of_key(key, of);
        if (type != DTYPE_INVALID) TRY(read_curve(self, &curves[type], efficiency, key, where));
    }
    return AM_OK;
}

static AmStatus read_efficiency(ClusterReader *self, ClusterDeviceType *type, json_t *efficiency,
                                const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach(efficiency, key, value) {
        bool is_known = strcmp(key, "dot") == 0 || strcmp(key, "convolution") == 0 ||
                        strcmp(key, "memory") == 0 || type_of_key(key, "dot") != DTYPE_INVALID ||
                        type_of_key(key, "convolution") != DTYPE_INVALID;
        if (!is_known)
            return fail_at(self, where_member(self, where, key),
                           "unknown key, expected dot, convolution or memory, or one such as dot_bf16");
    }
    TRY(read_product_curves(self, type->dot, efficiency, "dot", where));
    memcpy(type->convolution, type->dot, sizeof type->convolution);
    TRY(read_product_curves(self, type->convolution, efficiency, "convolution", where));
    return read_curve(self, &type->memory, efficiency, "memory", where);
}

/* Reads "measured": {"device": "A100", "rate": 1.1}. */
static AmStatus read_measured(ClusterReader *self, ClusterDeviceType *type, json_t *object,
                              const char *where) {
    static const char *const keys[] = {"device", "rate", NULL};
    json_t *measured = json_object_get(object, "measured");
    type->measured_rate = 1;
    if (!measured) return AM_OK;
    where = where_member(self, where, "measured");
    if (!json_is_object(measured)) return fail_at(self, where, "expected an object");
    TRY(json_only_keys(measured, keys, self->source, where, self->error));
    const char *name = json_string_value(json_object_get(measured, "device"));
    type->measured = name ? measured_device_find(name) : NULL;
    if (!type->measured)
        return fail_at(self, where_member(self, where, "device"), "expected \"A100\", \"V100\" or \"B200\"");
    if (json_object_get(measured, "rate"))
        TRY(json_get_number(&type->measured_rate, measured, "rate", 0.01, 100, self->source, where,
                            self->error));
    return AM_OK;
}

static AmStatus read_type(ClusterReader *self, ClusterDeviceType *type, json_t *object, const char *where) {
    static const char *const keys[] = {"memory_bytes",
                                       "memory_bytes_per_second",
                                       "flops_per_second",
                                       "kernel_launch_seconds",
                                       "overlaps_communication",
                                       "efficiency",
                                       "operators",
                                       "measured",
                                       "host_kernel_seconds",
                                       "processors",
                                       "price_per_hour",
                                       "host_bytes_per_second",
                                       "host_latency_seconds",
                                       NULL};
    if (!json_is_object(object)) return fail_at(self, where, "expected an object");
    TRY(json_only_keys(object, keys, self->source, where, self->error));
    TRY(json_get_integer(&type->memory_bytes, object, "memory_bytes", 1, MOST_MEMORY_BYTES, self->source,
                         where, self->error));
    TRY(json_get_number(&type->memory_bytes_per_second, object, "memory_bytes_per_second", 1, 1e30,
                        self->source, where, self->error));
    TRY(read_flops(self, type, object, where));
    TRY(read_optional_seconds(self, &type->kernel_launch_seconds, object, "kernel_launch_seconds", where));
    TRY(read_optional_seconds(self, &type->host_kernel_seconds, object, "host_kernel_seconds", where));
    /* A device overlaps unless the file has `false`. */
    const json_t *value = json_object_get(object, "overlaps_communication");
    if (value && !json_is_boolean(value))
        return fail_at(self, where_member(self, where, "overlaps_communication"), "expected true or false");
    type->overlaps_communication = !value || json_is_true(value);
    TRY(read_measured(self, type, object, where));
    type->processors = 1;
    if (json_object_get(object, "processors"))
        TRY(json_get_number(&type->processors, object, "processors", 1e-3, 1, self->source, where,
                            self->error));
    int64_t ignored;
    cluster_builtin_device_host(type->name, &type->host_bytes_per_second, &type->host_latency_seconds,
                                &ignored);
    TRY(read_optional_seconds(self, &type->host_latency_seconds, object, "host_latency_seconds", where));
    if (json_object_get(object, "host_bytes_per_second"))
        TRY(json_get_number(&type->host_bytes_per_second, object, "host_bytes_per_second", 1, 1e30,
                            self->source, where, self->error));
    type->price_per_hour = NAN;
    if (json_object_get(object, "price_per_hour"))
        TRY(json_get_number(&type->price_per_hour, object, "price_per_hour", 0, 1e9, self->source, where,
                            self->error));
    if (json_object_get(object, "operators")) {
        json_t *operators;
        TRY(json_get_object(&operators, object, "operators", self->source, where, self->error));
        TRY(operator_curves_read(&type->operators, self->arena, operators, false, self->source,
                                 where_member(self, where, "operators"), self->error));
    }
    if (!json_object_get(object, "efficiency")) return AM_OK;
    json_t *efficiency;
    TRY(json_get_object(&efficiency, object, "efficiency", self->source, where, self->error));
    return read_efficiency(self, type, efficiency, where_member(self, where, "efficiency"));
}

/* Names stand in tables, messages and other files: one line, and something on it. */
static AmStatus check_name(ClusterReader *self, const char *name, const char *where) {
    bool is_blank = true;
    for (const char *c = name; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127)
            return fail_at(self, where, "expected a name without control characters");
        is_blank &= *c == ' ';
    }
    return is_blank ? fail_at(self, where, "expected a name, found an empty one") : AM_OK;
}

static AmStatus read_links(ClusterReader *self, json_t *root) {
    static const char *const keys[] = {"bytes_per_second", "latency_seconds", "efficiency", "collectives",
                                       NULL};
    json_t *links, *value;
    const char *key;
    if (!json_object_get(root, "links")) return AM_OK;
    TRY(json_get_object(&links, root, "links", self->source, "$", self->error));
    self->cluster->links = ARENA_ARRAY(self->arena, ClusterLink, json_object_size(links) + 1);
    if (self->arena->failed) return am_fail_memory(self->error, (int64_t)json_object_size(links));
    json_object_foreach(links, key, value) {
        ClusterLink *link = &self->cluster->links[self->cluster->link_count++];
        const char *where = where_member(self, "$.links", key);
        TRY(check_name(self, key, where));
        link->name = arena_copy_string(self->arena, key);
        if (!json_is_object(value)) return fail_at(self, where, "expected an object");
        TRY(json_only_keys(value, keys, self->source, where, self->error));
        TRY(json_get_number(&link->bytes_per_second, value, "bytes_per_second", 1, 1e30, self->source, where,
                            self->error));
        TRY(read_optional_seconds(self, &link->latency_seconds, value, "latency_seconds", where));
        TRY(read_curve(self, &link->efficiency, value, "efficiency", where));
        if (!json_object_get(value, "collectives")) continue;
        json_t *collectives;
        TRY(json_get_object(&collectives, value, "collectives", self->source, where, self->error));
        TRY(operator_curves_read(&link->collectives, self->arena, collectives, true, self->source,
                                 where_member(self, where, "collectives"), self->error));
    }
    return AM_OK;
}

/* Finds the link that holder[key] names. */
static AmStatus find_link(ClusterReader *self, int32_t *link, json_t *holder, const char *key,
                          const char *where) {
    const char *name;
    TRY(json_get_string(&name, holder, key, self->source, where, self->error));
    for (*link = 0; *link < self->cluster->link_count; ++*link)
        if (strcmp(self->cluster->links[*link].name, name) == 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s.%s: no link \"%s\" in $.links", where, key,
                   name);
}

static AmStatus find_type(ClusterReader *self, int32_t *type, json_t *holder, const char *where) {
    const char *name;
    TRY(json_get_string(&name, holder, "device_type", self->source, where, self->error));
    for (*type = 0; *type < self->cluster->type_count; ++*type)
        if (strcmp(self->cluster->types[*type].name, name) == 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source,
                   "%s.device_type: no device type \"%s\" in $.device_types", where, name);
}

/* Reads the shares of a server's devices in its host; without keys the usual part of the type, or as many
 * bytes for each device as the device has. */
static AmStatus read_host(ClusterReader *self, ClusterServer *server, json_t *row, const char *where) {
    const ClusterDeviceType *type = &self->cluster->types[server->type];
    double rate = 0, latency;
    int64_t part = -1;
    cluster_builtin_device_host(type->name, &rate, &latency, &part);
    if (part < 0) part = type->memory_bytes;
    server->host_memory_bytes =
        part > MOST_MEMORY_BYTES / server->device_count ? MOST_MEMORY_BYTES : part * server->device_count;
    server->host_bytes_per_second = type->host_bytes_per_second;
    if (json_object_get(row, "host_memory_bytes"))
        TRY(json_get_integer(&server->host_memory_bytes, row, "host_memory_bytes", 0, MOST_MEMORY_BYTES,
                             self->source, where, self->error));
    if (!json_object_get(row, "host_bytes_per_second")) return AM_OK;
    TRY(json_get_number(&rate, row, "host_bytes_per_second", 1, 1e30, self->source, where, self->error));
    rate /= server->device_count;
    if (server->host_bytes_per_second <= 0 || rate < server->host_bytes_per_second)
        server->host_bytes_per_second = rate;
    return AM_OK;
}

static AmStatus read_server_row(ClusterReader *self, json_t *row, const char *where,
                                int32_t *server_capacity) {
    static const char *const keys[] = {
        "count", "device_type", "devices", "link", "host_memory_bytes", "host_bytes_per_second", NULL};
    Cluster *cluster = self->cluster;
    ClusterServer server = {.link = -1, .width = 1};
    int64_t count = 1, devices;
    if (!json_is_object(row)) return fail_at(self, where, "expected an object");
    TRY(json_only_keys(row, keys, self->source, where, self->error));
    if (json_object_get(row, "count"))
        TRY(json_get_integer(&count, row, "count", 1, MESH_MAX_DEVICES, self->source, where, self->error));
    TRY(json_get_integer(&devices, row, "devices", 1, MESH_MAX_DEVICES, self->source, where, self->error));
    TRY(find_type(self, &server.type, row, where));
    if ((devices > 1 && !self->has_topology) || json_object_get(row, "link"))
        TRY(find_link(self, &server.link, row, "link", where));
    if (cluster->device_count + count * devices > MESH_MAX_DEVICES)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: more than %d devices in all", where,
                       MESH_MAX_DEVICES);
    server.device_count = (int32_t)devices;
    TRY(read_host(self, &server, row, where));
    for (int64_t k = 0; k < count; k++) {
        ARENA_RESERVE(self->arena, cluster->servers, cluster->server_count, *server_capacity);
        if (self->arena->failed) return am_fail_memory(self->error, count);
        server.first_device = cluster->device_count;
        cluster->servers[cluster->server_count++] = server;
        cluster->device_count += server.device_count;
    }
    return AM_OK;
}

static AmStatus read_servers(ClusterReader *self, json_t *root) {
    Cluster *cluster = self->cluster;
    json_t *rows;
    int32_t capacity = 0;
    TRY(json_get_array(&rows, root, "servers", self->source, "$", self->error));
    if (json_array_size(rows) == 0) return fail_at(self, "$.servers", "expected at least one server");
    for (size_t k = 0; k < json_array_size(rows); k++) {
        const char *where = where_element(self, "$.servers", k);
        TRY(read_server_row(self, json_array_get(rows, k), where, &capacity));
    }
    int32_t *server_of = ARENA_ARRAY(self->arena, int32_t, cluster->device_count);
    if (!server_of) return am_fail_memory(self->error, cluster->device_count);
    for (int32_t s = 0; s < cluster->server_count; s++)
        for (int32_t k = 0; k < cluster->servers[s].device_count; k++)
            server_of[cluster->servers[s].first_device + k] = s;
    cluster->server_of = server_of;
    json_t *between = json_object_get(root, "between_servers");
    cluster->between_servers = -1;
    bool is_needed = cluster->server_count > 1 && !self->has_topology;
    if (!is_needed && (!between || json_is_null(between))) return AM_OK;
    return find_link(self, &cluster->between_servers, root, "between_servers", "$");
}

/* Finds whether all devices of a server have one link between them, once, since every price needs it. */
void cluster_find_sole_links(Cluster *cluster) {
    const Topology *topology = cluster->topology;
    int32_t first = -1;
    bool is_only = cluster->server_count == 1, are_alike = topology->is_derived;
    for (int32_t s = 0; s < cluster->server_count; s++) {
        if (cluster->servers[s].device_count < 2) continue;
        if (first < 0) first = cluster->servers[s].link;
        are_alike &= cluster->servers[s].link == first;
    }
    for (int32_t e = 0; e < topology->edge_count && !topology->is_derived; e++)
        is_only &= topology->edges[e].link == first;
    cluster->only_link = is_only ? first : -1;
    cluster->inside_link = are_alike ? first : cluster->only_link;
}

static AmStatus read_root(ClusterReader *self, json_t *root) {
    static const char *const keys[] = {"format",          "name",     "device_types",     "links", "servers",
                                       "between_servers", "topology", "collective_model", NULL};
    const char *name;
    if (!json_is_object(root)) return fail_at(self, "$", "expected a cluster, an object");
    TRY(json_check_format(root, "automap-cluster-1", self->source, self->error));
    TRY(json_only_keys(root, keys, self->source, "$", self->error));
    TRY(json_get_string(&name, root, "name", self->source, "$", self->error));
    TRY(check_name(self, name, "$.name"));
    self->cluster->name = arena_copy_string(self->arena, name);
    json_t *types, *value;
    const char *key;
    TRY(json_get_object(&types, root, "device_types", self->source, "$", self->error));
    size_t count = json_object_size(types);
    if (count == 0) return fail_at(self, "$.device_types", "expected at least one device type");
    self->cluster->types = ARENA_ARRAY(self->arena, ClusterDeviceType, count);
    if (self->arena->failed) return am_fail_memory(self->error, (int64_t)count);
    json_object_foreach(types, key, value) {
        ClusterDeviceType *type = &self->cluster->types[self->cluster->type_count++];
        type->name = arena_copy_string(self->arena, key);
        const char *where = where_member(self, "$.device_types", key);
        TRY(check_name(self, key, where));
        TRY(read_type(self, type, value, where));
    }
    TRY(read_links(self, root));
    TRY(nccl_model_read(&self->cluster->nccl, self->arena, root, self->source, self->error));
    self->has_topology = json_object_get(root, "topology") != NULL;
    TRY(read_servers(self, root));
    if (self->arena->failed) return am_fail_memory(self->error, 0);
    TRY(topology_build(&self->cluster->topology, self->arena, self->cluster,
                       json_object_get(root, "topology"), self->source, self->error));
    cluster_find_sole_links(self->cluster);
    return AM_OK;
}

AmStatus cluster_from_json(Cluster **cluster, Arena *arena, json_t *description, const char *source,
                           AmError *error) {
    *cluster = NULL;
    Cluster *self = ARENA_ARRAY(arena, Cluster, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    ClusterReader reader = {.cluster = self, .arena = arena, .source = source, .error = error};
    TRY(read_root(&reader, description));
    self->description = description;
    Text text = {0};
    json_write(&text, self->description, JSON_STYLE_CANONICAL);
    AmStatus status = text.failed ? am_fail_memory(error, (int64_t)text.capacity) : AM_OK;
    if (status == AM_OK) {
        Sha256 hash;
        sha256_begin(&hash);
        sha256_add(&hash, text.data, text.length);
        sha256_end(&hash, self->sha256);
    }
    text_free(&text);
    TRY(status);
    self->collectives = collective_cache_create();
    if (!self->collectives) return am_fail_memory(error, 0);
    json_incref(description);
    *cluster = self;
    return AM_OK;
}

/* Writes the built-in cluster nearest to a name into `near`: "hots:4" gives "; did you mean host:4?". ""
 * without one. */
static void suggest_builtin(char near[SUGGEST_HINT_BYTES], const char *name) {
    enum { MOST_BUILTINS = 64, LONGEST_NAME = 32 };
    int32_t count;
    const ClusterBuiltin *builtins = cluster_builtins(&count);
    char stems[MOST_BUILTINS][LONGEST_NAME], stem[LONGEST_NAME];
    const char *candidates[MOST_BUILTINS];
    for (int32_t k = 0; k < count && k < MOST_BUILTINS; k++) {
        int length = (int)strcspn(builtins[k].name, ":");
        snprintf(stems[k], sizeof stems[k], "%.*s", length < LONGEST_NAME ? length : 0, builtins[k].name);
        candidates[k] = stems[k];
    }
    near[0] = '\0';
    size_t length = strcspn(name, ":");
    if (length >= sizeof stem) return;
    snprintf(stem, sizeof stem, "%.*s", (int)length, name);
    const char *nearest =
        suggest_nearest(stem, candidates, (size_t)(count < MOST_BUILTINS ? count : MOST_BUILTINS));
    if (!nearest) return;
    int32_t k = 0;
    while (candidates[k] != nearest) k++;
    bool is_family = strchr(builtins[k].name, ':') != NULL;
    bool has_count = is_family && name[length] == ':' && name[length + 1];
    snprintf(near, SUGGEST_HINT_BYTES, "; did you mean %s%.16s?", has_count ? nearest : builtins[k].name,
             has_count ? name + length : "");
}

/* Fails for a name that is neither built in nor a file. */
static AmStatus fail_unknown(const char *name, AmError *error) {
    char near[SUGGEST_HINT_BYTES];
    suggest_builtin(near, name);
    int32_t count;
    const ClusterBuiltin *builtins = cluster_builtins(&count);
    char list[512] = "";
    for (int32_t k = 0; k < count; k++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", k ? ", " : "", builtins[k].name);
    }
    return am_fail(error, AM_ERROR_USAGE, "", "cluster \"%s\": neither a file nor built in (%s)%s", name,
                   list, near);
}

/* Returns whether the name is a path: it contains a dot or a slash, or such a file exists. */
static bool is_path(const char *name) {
    if (strcmp(name, "-") == 0 || strpbrk(name, "./")) return true;
    struct stat facts;
    return stat(name, &facts) == 0;
}

AmStatus cluster_read(Cluster **cluster, Arena *arena, const char *name_or_path, AmError *error) {
    json_t *root = NULL;
    *cluster = NULL;
    TRY(cluster_builtin(&root, name_or_path, error));
    if (!root) {
        FileBytes bytes = {0};
        if (!is_path(name_or_path)) return fail_unknown(name_or_path, error);
        TRY(file_read(&bytes, name_or_path, error));
        AmStatus parsed =
            file_format_expect(FILE_FORMAT_CLUSTER, bytes.name, bytes.data, bytes.length, error);
        if (parsed == AM_OK) parsed = json_parse(&root, bytes.name, bytes.data, (size_t)bytes.length, error);
        file_release(&bytes);
        TRY(parsed);
    }
    AmStatus status =
        cluster_from_json(cluster, arena, root, strcmp(name_or_path, "-") ? name_or_path : "<stdin>", error);
    json_decref(root);
    return status;
}

void cluster_free(Cluster *cluster) {
    if (!cluster) return;
    json_decref(cluster->description);
    cluster->description = NULL;
    collective_cache_free(cluster->collectives);
    cluster->collectives = NULL;
}

json_t *cluster_to_json(const Cluster *cluster) {
    return json_incref(cluster->description);
}
