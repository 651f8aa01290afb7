/* Reads profile graphs, the text format in which PipeDream and DAPPLE publish measured networks.
 *
 * A line is split at " -- ". Names of nodes go into a hash table, so that edges may precede their nodes.
 */
#include "planners/cut_agent/profile_graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/file.h"
#include "base/hash.h"

#define NUMBERS 4

static const char *const keys[NUMBERS] = {"forward_compute_time", "backward_compute_time", "activation_size",
                                          "parameter_size"};

/* A graph on its way in. */
typedef struct ProfileGraphReader {
    ProfileGraph *graph;
    Arena *arena;
    const char *text;
    int64_t length;
    int32_t node_capacity, line_capacity, edge_capacity;
    const char **lines; /* [node_count] of the nodes */
    int64_t *places;    /* [edge_count] byte of each edge's line */
    const char **ends;  /* [2 edge_count] names of producer and consumer */
    int32_t end_count, end_capacity;
    int32_t *table; /* open addressing over names: node + 1, 0 empty */
    int32_t table_size;
    AmError *error;
} ProfileGraphReader;

static AmStatus fail(const ProfileGraphReader *reader, const char *at, const char *what) {
    return am_fail_at(reader->error, AM_ERROR_INPUT, reader->graph->source, reader->text, reader->length,
                      at - reader->text, "%s", what);
}

static bool is_plain(const char *text, const char *end) {
    for (; text < end; text++)
        if ((unsigned char)*text < ' ') return false;
    return true;
}

/* Returns the next " -- " in text .. end; NULL: none. */
static const char *find_separator(const char *text, const char *end) {
    for (; text + 4 <= end; text++)
        if (memcmp(text, " -- ", 4) == 0) return text;
    return NULL;
}

static AmStatus read_number(ProfileGraphReader *reader, const char **at, const char *end, double *value) {
    char copy[64], *rest;
    size_t length = 0;
    const char *text = *at;
    while (text + length < end && length < sizeof(copy) - 1 && strchr("0123456789+-.eE", text[length]) &&
           text[length])
        length++;
    memcpy(copy, text, length);
    copy[length] = '\0';
    *value = strtod(copy, &rest);
    if (length == 0 || *rest) return fail(reader, text, "expected a number");
    if (!(*value >= 0) || isinf(*value))
        return fail(reader, text, "expected a finite number that is not negative");
    *at += length;
    return AM_OK;
}

/* Reads a number, or the sum of a list in brackets. */
static AmStatus read_value(ProfileGraphReader *reader, const char **at, const char *end, double *value) {
    if (*at == end || **at != '[') return read_number(reader, at, end, value);
    *value = 0;
    for (++*at;;) {
        double item;
        while (*at < end && **at == ' ') ++*at;
        TRY(read_number(reader, at, end, &item));
        *value += item;
        if (*at == end || (**at != ';' && **at != ']')) return fail(reader, *at, "expected ; or ]");
        if (*(*at)++ == ']') return AM_OK;
    }
}

static AmStatus read_node(ProfileGraphReader *reader, const char *line, const char *end) {
    ProfileGraph *graph = reader->graph;
    double values[NUMBERS];
    const char *name_end = find_separator(line, end), *at = NULL;
    if (!name_end || name_end == line) return fail(reader, line, "expected NODE -- DESCRIPTION -- FIGURES");
    const char *description = name_end + 4, *description_end = NULL;
    for (const char *next = find_separator(name_end + 3, end); next; next = find_separator(next + 3, end)) {
        size_t length = strlen(keys[0]);
        if ((size_t)(end - next) < 4 + length || memcmp(next + 4, keys[0], length) != 0) continue;
        description_end = next;
        at = next + 4;
    }
    if (!at) return fail(reader, end, "expected -- forward_compute_time= and the other figures");
    if (description_end < description) description_end = description;
    for (int32_t k = 0; k < NUMBERS; k++) {
        size_t length = strlen(keys[k]);
        while (at < end && (*at == ' ' || (k > 0 && *at == ','))) ++at;
        if ((size_t)(end - at) <= length || memcmp(at, keys[k], length) != 0 || at[length] != '=') {
            char what[64];
            snprintf(what, sizeof(what), "expected %s=", keys[k]);
            return fail(reader, at, what);
        }
        at += length + 1;
        TRY(read_value(reader, &at, end, &values[k]));
    }
    if (at < end && (end - at < 13 || memcmp(at, " -- stage_id=", 13) != 0))
        return fail(reader, at, "expected the end of the line");
    if (graph->node_count == PROFILE_MOST_NODES) return fail(reader, line, "more nodes than can be read");
    ARENA_RESERVE(reader->arena, graph->nodes, graph->node_count, reader->node_capacity);
    ARENA_RESERVE(reader->arena, reader->lines, graph->node_count, reader->line_capacity);
    if (!graph->nodes || !reader->lines) return am_fail_memory(reader->error, reader->length);
    reader->lines[graph->node_count] = line;
    graph->nodes[graph->node_count++] = (ProfileNode){
        .name = arena_copy_bytes(reader->arena, line, (size_t)(name_end - line)),
        .description = arena_copy_bytes(reader->arena, description, (size_t)(description_end - description)),
        .forward = values[0] * 1e-3,
        .backward = values[1] * 1e-3,
        .activation = values[2],
        .parameter = values[3]};
    return reader->arena->failed ? am_fail_memory(reader->error, reader->length) : AM_OK;
}

static AmStatus read_edge(ProfileGraphReader *reader, const char *line, const char *end) {
    while (line < end && *line == '\t') line++;
    const char *separator = find_separator(line, end);
    if (!separator || separator == line || separator + 4 == end || find_separator(separator + 1, end))
        return fail(reader, line, "expected PRODUCER -- CONSUMER");
    ProfileGraph *graph = reader->graph;
    ARENA_RESERVE(reader->arena, reader->places, graph->edge_count, reader->edge_capacity);
    for (int32_t k = 0; k < 2; k++) {
        const char *name = k ? separator + 4 : line, *name_end = k ? end : separator;
        ARENA_RESERVE(reader->arena, reader->ends, reader->end_count, reader->end_capacity);
        if (!reader->places || !reader->ends) return am_fail_memory(reader->error, reader->length);
        reader->ends[reader->end_count++] = arena_copy_bytes(reader->arena, name, (size_t)(name_end - name));
    }
    reader->places[graph->edge_count++] = line - reader->text;
    return reader->arena->failed ? am_fail_memory(reader->error, reader->length) : AM_OK;
}

static AmStatus read_lines(ProfileGraphReader *reader) {
    const char *end = reader->text + reader->length;
    for (const char *line = reader->text; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        const char *next = stop ? stop + 1 : end;
        if (!stop) stop = end;
        if (stop > line && stop[-1] == '\r') stop--;
        if (!is_plain(line + (line < stop && *line == '\t'), stop))
            return fail(reader, line, "expected text without control characters");
        if (line < stop) {
            if (*line == '\t') TRY(read_edge(reader, line, stop));
            else TRY(read_node(reader, line, stop));
        }
        line = next;
    }
    if (reader->graph->node_count == 0) return fail(reader, reader->text, "expected at least one node");
    return AM_OK;
}

/* Returns the place of a name in the table: of its node, or empty. */
static int32_t *find_name(const ProfileGraphReader *reader, const char *name) {
    int32_t at = (int32_t)(hash_bytes(name, strlen(name), 0) % (uint64_t)reader->table_size);
    while (reader->table[at] && strcmp(reader->graph->nodes[reader->table[at] - 1].name, name) != 0)
        at = (at + 1) % reader->table_size;
    return &reader->table[at];
}

static AmStatus index_names(ProfileGraphReader *reader) {
    const ProfileGraph *graph = reader->graph;
    reader->table_size = 2 * graph->node_count + 1;
    reader->table = ARENA_ARRAY(reader->arena, int32_t, reader->table_size);
    if (!reader->table) return am_fail_memory(reader->error, 4 * (int64_t)reader->table_size);
    for (int32_t k = 0; k < graph->node_count; k++) {
        int32_t *place = find_name(reader, graph->nodes[k].name);
        if (*place) {
            char what[128];
            snprintf(what, sizeof(what), "node %.100s is listed twice", graph->nodes[k].name);
            return fail(reader, reader->lines[k], what);
        }
        *place = k + 1;
    }
    return AM_OK;
}

static AmStatus resolve_edges(ProfileGraphReader *reader) {
    ProfileGraph *graph = reader->graph;
    graph->producers = ARENA_ARRAY(reader->arena, int32_t, graph->edge_count + 1);
    graph->consumers = ARENA_ARRAY(reader->arena, int32_t, graph->edge_count + 1);
    if (!graph->producers || !graph->consumers) return am_fail_memory(reader->error, reader->length);
    for (int32_t edge = 0; edge < graph->edge_count; edge++) {
        const char *line = reader->text + reader->places[edge];
        int32_t ends[2];
        for (int32_t k = 0; k < 2; k++) {
            ends[k] = *find_name(reader, reader->ends[2 * edge + k]) - 1;
            if (ends[k] < 0)
                return fail(reader, line, k ? "its consumer is not a node" : "its producer is not a node");
        }
        if (ends[0] == ends[1]) return fail(reader, line, "expected an edge between two nodes");
        graph->producers[edge] = ends[0];
        graph->consumers[edge] = ends[1];
    }
    return AM_OK;
}

/* Moves a node up or down a heap of nodes, the first in the file at its top. */
static void heap_add(int32_t *heap, int32_t *count, int32_t node) {
    int32_t at = (*count)++;
    for (; at > 0 && heap[(at - 1) / 2] > node; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = node;
}

static int32_t heap_take(int32_t *heap, int32_t *count) {
    int32_t top = heap[0], last = heap[--*count], at = 0;
    for (int32_t child; (child = 2 * at + 1) < *count; at = child) {
        if (child + 1 < *count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[at] = heap[child];
    }
    if (*count > 0) heap[at] = last;
    return top;
}

static AmStatus sort_nodes(ProfileGraphReader *reader) {
    ProfileGraph *graph = reader->graph;
    int32_t *starts, *list, heap_count = 0, done = 0;
    /* Edges sorted by producer: of node n those in list[starts[n]] .. list[starts[n + 1]]. */
    starts = ARENA_ARRAY(reader->arena, int32_t, graph->node_count + 2);
    list = ARENA_ARRAY(reader->arena, int32_t, graph->edge_count + 1);
    if (!starts || !list)
        return am_fail_memory(reader->error, 4 * ((int64_t)graph->node_count + graph->edge_count));
    for (int32_t edge = 0; edge < graph->edge_count; edge++) starts[graph->producers[edge] + 2]++;
    for (int32_t n = 0; n < graph->node_count; n++) starts[n + 2] += starts[n + 1];
    for (int32_t edge = 0; edge < graph->edge_count; edge++)
        list[starts[graph->producers[edge] + 1]++] = edge;
    int32_t *waiting = ARENA_ARRAY(reader->arena, int32_t, graph->node_count);
    int32_t *heap = ARENA_ARRAY(reader->arena, int32_t, graph->node_count + 1);
    int32_t *seen = ARENA_ARRAY(reader->arena, int32_t, graph->node_count);
    graph->order = ARENA_ARRAY(reader->arena, int32_t, graph->node_count);
    if (!waiting || !heap || !seen || !graph->order)
        return am_fail_memory(reader->error, 16 * (int64_t)graph->node_count);
    for (int32_t edge = 0; edge < graph->edge_count; edge++) waiting[graph->consumers[edge]]++;
    for (int32_t n = 0; n < graph->node_count; n++)
        if (waiting[n] == 0) heap_add(heap, &heap_count, n);
    while (heap_count > 0) {
        int32_t node = heap_take(heap, &heap_count);
        graph->order[done++] = node;
        for (int32_t k = starts[node]; k < starts[node + 1]; k++) {
            int32_t consumer = graph->consumers[list[k]];
            if (seen[consumer] == node + 1)
                return fail(reader, reader->text + reader->places[list[k]], "this edge is listed twice");
            seen[consumer] = node + 1;
            if (--waiting[consumer] == 0) heap_add(heap, &heap_count, consumer);
        }
    }
    for (int32_t edge = 0; done < graph->node_count && edge < graph->edge_count; edge++)
        if (waiting[graph->consumers[edge]] > 0)
            return fail(reader, reader->text + reader->places[edge],
                        "its consumer waits for itself: a cycle");
    return AM_OK;
}

AmStatus profile_graph_parse(ProfileGraph *graph, Arena *arena, const char *source, const char *text,
                             int64_t length, AmError *error) {
    *graph = (ProfileGraph){.source = arena_copy_string(arena, source)};
    ProfileGraphReader reader = {
        .graph = graph, .arena = arena, .text = text, .length = length, .error = error};
    TRY(read_lines(&reader));
    TRY(index_names(&reader));
    TRY(resolve_edges(&reader));
    return sort_nodes(&reader);
}
