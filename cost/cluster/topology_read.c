/* The key `topology` of a cluster file: edges by templates.
 *
 *   "topology": {"edges": [
 *     {"for": {"s": [0, 4], "d": [0, 8]}, "where": "d % 2 == 0",
 *      "from": "server{s}/device{d}", "to": "server{s}/pcie{d/4}", "link": "pcie", "width": 2}]}
 *
 * A template stands for one edge for every choice of its variables for which `where` is not 0. A variable
 * takes the values from its first number up to, but without, its second. The first variable in the order of
 * the alphabet varies slowest. serverS/deviceD is a device. Any other name is a switch, which exists from its
 * first mention on. `width` is the number of parallel links, 1 where it is absent; a number below 1 is a part
 * of a link. Edges have their link's whole latency. The number of edges is known, and bounded, before the
 * first one is made.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/json.h"
#include "base/hash.h"
#include "cost/cluster/topology.h"
#include "cost/cluster/topology_expression.h"

enum { LONGEST_NAME = 128, LONGEST_TEXT = 256, LONGEST_VARIABLE = 16 };

typedef struct TopologyReader {
    TopologyDraft *draft;
    const char *source;
    AmError *error;
    int32_t table_size;    /* a power of two, more than twice the number of entries */
    int32_t *switch_table; /* switches by name: vertices, 0 where free (no switch is vertex 0) */
    uint64_t *pair_table;  /* edges by their ends: lower end << 32 | higher end, 0 where free */
} TopologyReader;

/* One template. */
typedef struct EdgeRow {
    TopologyVariables variables;
    int64_t first[TOPOLOGY_MOST_VARIABLES], end[TOPOLOGY_MOST_VARIABLES];
    int64_t edges; /* choices of the variables */
    const char *where, *from, *to;
    int32_t link;
    double width;
    char path[64]; /* JSON path */
} EdgeRow;

static AmStatus fail_at(TopologyReader *self, const EdgeRow *row, const char *key, const char *fault) {
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s.%s: %s", row->path, key, fault);
}

/* Fails at a key of a row for one choice of the variables, which the message contains. */
static AmStatus fail_for(TopologyReader *self, const EdgeRow *row, const char *key, const char *name,
                         const char *fault) {
    char choice[128] = "";
    for (int32_t k = 0; k < row->variables.count; k++) {
        size_t used = strlen(choice);
        snprintf(choice + used, sizeof choice - used, "%s%s = %lld", k ? ", " : " for ",
                 row->variables.names[k], (long long)row->variables.values[k]);
    }
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s.%s: %s: \"%s\"%s", row->path, key, fault,
                   name, choice);
}

static bool is_variable_name(const char *name) {
    if (!islower((unsigned char)name[0]) || strlen(name) > LONGEST_VARIABLE) return false;
    for (; *name; name++)
        if (!islower((unsigned char)*name) && !isdigit((unsigned char)*name) && *name != '_') return false;
    return true;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static AmStatus read_variables(TopologyReader *self, EdgeRow *row, json_t *object) {
    json_t *range, *all;
    const char *name;
    row->edges = 1;
    if (!json_object_get(object, "for")) return AM_OK;
    TRY(json_get_object(&all, object, "for", self->source, row->path, self->error));
    json_object_foreach(all, name, range) {
        if (!is_variable_name(name))
            return fail_at(self, row, "for", "expected names of at most 16 small letters, digits and _");
        if (row->variables.count == TOPOLOGY_MOST_VARIABLES)
            return fail_at(self, row, "for", "more than 4 variables");
        row->variables.names[row->variables.count++] = name;
    }
    qsort(row->variables.names, (size_t)row->variables.count, sizeof *row->variables.names, compare_names);
    for (int32_t k = 0; k < row->variables.count; k++) {
        name = row->variables.names[k];
        range = json_object_get(all, name);
        json_t *first = json_array_get(range, 0), *end = json_array_get(range, 1);
        if (json_array_size(range) != 2 || !json_is_integer(first) || !json_is_integer(end))
            return am_fail(self->error, AM_ERROR_INPUT, self->source,
                           "%s.for.%s: expected [first, end without itself], two integers", row->path, name);
        row->first[k] = json_integer_value(first);
        row->end[k] = json_integer_value(end);
        if (row->first[k] < 0 || row->end[k] <= row->first[k])
            return am_fail(self->error, AM_ERROR_INPUT, self->source,
                           "%s.for.%s: expected a first value of at least 0 and an end above it", row->path,
                           name);
        if (__builtin_mul_overflow(row->edges, row->end[k] - row->first[k], &row->edges))
            row->edges = INT64_MAX;
    }
    return AM_OK;
}

static AmStatus read_text(TopologyReader *self, const char **text, json_t *object, const char *key,
                          const EdgeRow *row) {
    TRY(json_get_string(text, object, key, self->source, row->path, self->error));
    size_t length = strlen(*text);
    if (length == 0 || length > LONGEST_TEXT)
        return fail_at(self, row, key, "expected a text of 1 to 256 characters");
    return AM_OK;
}

static AmStatus read_row(TopologyReader *self, EdgeRow *row, json_t *object) {
    static const char *const keys[] = {"for", "where", "from", "to", "link", "width", NULL};
    const Cluster *cluster = self->draft->cluster;
    const char *link;
    if (!json_is_object(object))
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: expected an object", row->path);
    TRY(json_only_keys(object, keys, self->source, row->path, self->error));
    TRY(read_variables(self, row, object));
    if (json_object_get(object, "where")) TRY(read_text(self, &row->where, object, "where", row));
    TRY(read_text(self, &row->from, object, "from", row));
    TRY(read_text(self, &row->to, object, "to", row));
    row->width = 1;
    if (json_object_get(object, "width"))
        TRY(json_get_number(&row->width, object, "width", 1e-6, 1e6, self->source, row->path, self->error));
    TRY(json_get_string(&link, object, "link", self->source, row->path, self->error));
    for (row->link = 0; row->link < cluster->link_count; row->link++)
        if (strcmp(cluster->links[row->link].name, link) == 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s.link: no link \"%s\" in $.links", row->path,
                   link);
}

/* Reads a number without sign or leading zeros; -1 without one. */
static int64_t take_number(const char **text) {
    int64_t value = 0;
    const char *start = *text;
    while (isdigit((unsigned char)**text) && *text - start < 9) value = value * 10 + (*(*text)++ - '0');
    return *text == start || (*start == '0' && *text - start > 1) ? -1 : value;
}

/* Returns whether the name has the form serverS/deviceD; `device` is -1 if there is no such device. */
static bool is_device_name(const Cluster *cluster, const char *name, int32_t *device) {
    *device = -1;
    if (strncmp(name, "server", 6) != 0) return false;
    name += 6;
    int64_t server = take_number(&name);
    if (server < 0 || strncmp(name, "/device", 7) != 0) return false;
    name += 7;
    int64_t index = take_number(&name);
    if (index < 0 || *name) return false;
    if (server < cluster->server_count && index < cluster->servers[server].device_count)
        *device = cluster->servers[server].first_device + (int32_t)index;
    return true;
}

/* Returns the place of a switch in the table: where it is or may be put. */
static int32_t *switch_place(TopologyReader *self, const char *name) {
    uint64_t at = hash_bytes(name, strlen(name), 0);
    for (;; at++) {
        int32_t *place = &self->switch_table[at & (uint64_t)(self->table_size - 1)];
        if (*place == 0 ||
            strcmp(self->draft->switches[*place - self->draft->cluster->device_count], name) == 0)
            return place;
    }
}

static AmStatus find_vertex(TopologyReader *self, int32_t *vertex, const EdgeRow *row, const char *key,
                            const char *format) {
    char name[LONGEST_NAME];
    const char *fault = topology_format(name, sizeof name, format, &row->variables);
    if (fault) return fail_for(self, row, key, format, fault);
    if (is_device_name(self->draft->cluster, name, vertex))
        return *vertex < 0 ? fail_for(self, row, key, name, "no such device") : AM_OK;
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("/-_.:", *c))
            return fail_for(self, row, key, name, "expected letters, digits and / - _ . :");
    int32_t *place = switch_place(self, name);
    if (*place == 0) *place = topology_add_switch(self->draft, name);
    *vertex = *place;
    return *vertex < 0 ? am_fail_memory(self->error, LONGEST_NAME) : AM_OK;
}

/* Marks two places as joined. Returns false if they are joined already. */
static bool take_pair(TopologyReader *self, int32_t a, int32_t b) {
    uint64_t pair = (uint64_t)(a < b ? a : b) << 32 | (uint64_t)(a < b ? b : a);
    uint64_t at = pair * 0x9e3779b97f4a7c15u >> 20;
    for (;; at++) {
        uint64_t *place = &self->pair_table[at & (uint64_t)(self->table_size - 1)];
        if (*place == pair) return false;
        if (*place != 0) continue;
        *place = pair;
        return true;
    }
}

static AmStatus add_edge(TopologyReader *self, const EdgeRow *row) {
    int32_t from, to;
    if (row->where) {
        int64_t holds;
        const char *fault = topology_expression(&holds, row->where, strlen(row->where), &row->variables);
        if (fault) return fail_for(self, row, "where", row->where, fault);
        if (!holds) return AM_OK;
    }
    TRY(find_vertex(self, &from, row, "from", row->from));
    TRY(find_vertex(self, &to, row, "to", row->to));
    if (from == to) return fail_for(self, row, "to", row->to, "an edge from a place to itself");
    if (!take_pair(self, from, to))
        return fail_for(self, row, "to", row->to,
                        "these two are joined already (\"width\" is for parallel links)");
    topology_add_edge(self->draft, from, to, row->link, row->width,
                      self->draft->cluster->links[row->link].latency_seconds);
    return self->draft->arena->failed ? am_fail_memory(self->error, sizeof(TopologyEdge)) : AM_OK;
}

/* Adds the edges for every choice of the variables, the last one fastest. */
static AmStatus add_edges(TopologyReader *self, EdgeRow *row) {
    TopologyVariables *variables = &row->variables;
    memcpy(variables->values, row->first, sizeof row->first);
    for (int64_t k = 0; k < row->edges; k++) {
        TRY(add_edge(self, row));
        for (int32_t v = variables->count; v-- > 0;) {
            if (++variables->values[v] < row->end[v]) break;
            variables->values[v] = row->first[v];
        }
    }
    return AM_OK;
}

AmStatus topology_read(TopologyDraft *draft, json_t *description, const char *source, AmError *error) {
    static const char *const keys[] = {"edges", NULL};
    TopologyReader self = {.draft = draft, .source = source, .error = error};
    json_t *list;
    int64_t edges = 0;
    if (!json_is_object(description))
        return am_fail(error, AM_ERROR_INPUT, source, "$.topology: expected an object");
    TRY(json_only_keys(description, keys, source, "$.topology", error));
    TRY(json_get_array(&list, description, "edges", source, "$.topology", error));
    size_t count = json_array_size(list);
    EdgeRow *rows = ARENA_ARRAY(draft->arena, EdgeRow, count);
    if (!rows) return am_fail_memory(error, (int64_t)count);
    for (size_t k = 0; k < count; k++) {
        snprintf(rows[k].path, sizeof rows[k].path, "$.topology.edges[%zu]", k);
        TRY(read_row(&self, &rows[k], json_array_get(list, k)));
        if (rows[k].edges > TOPOLOGY_MOST_EDGES - edges)
            return am_fail(error, AM_ERROR_INPUT, source, "%s: more than %d edges in all", rows[k].path,
                           TOPOLOGY_MOST_EDGES);
        edges += rows[k].edges;
    }
    /* Tables for the draft and `edges` more. */
    int64_t most = 2 * edges + draft->edge_count + draft->switch_count;
    self.table_size = 16;
    while (self.table_size < 2 * most) self.table_size *= 2;
    self.switch_table = ARENA_ARRAY(draft->arena, int32_t, self.table_size);
    self.pair_table = ARENA_ARRAY(draft->arena, uint64_t, self.table_size);
    if (draft->arena->failed) return am_fail_memory(self.error, self.table_size);
    for (int32_t k = 0; k < draft->switch_count; k++)
        *switch_place(&self, draft->switches[k]) = draft->cluster->device_count + k;
    for (int32_t k = 0; k < draft->edge_count; k++)
        take_pair(&self, draft->edges[k].from, draft->edges[k].to);
    for (size_t k = 0; k < count; k++) TRY(add_edges(&self, &rows[k]));
    return AM_OK;
}
