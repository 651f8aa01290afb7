/* Folding: equal nodes and edges of a sharding graph become one node or edge with a count, so
 * that bounds of deep models take the memory of a few layers. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "cost/relaxation/graph_fold.h"

enum { FOLD_ROUNDS = 8 };

bool number_table_open(NumberTable *self, Arena *arena, int32_t most) {
    *self = (NumberTable){.capacity = 64};
    while (self->capacity < 2 * most) self->capacity *= 2;
    self->keys = ARENA_ARRAY(arena, uint64_t, self->capacity);
    self->numbers = ARENA_ARRAY(arena, int32_t, self->capacity);
    return !arena->failed;
}

int32_t number_table_find(NumberTable *self, uint64_t key) {
    if (key == 0) key = 1;
    int32_t slot = (int32_t)(key * 0x9e3779b97f4a7c15u >> 33) & (self->capacity - 1);
    while (self->keys[slot] != 0 && self->keys[slot] != key) slot = (slot + 1) & (self->capacity - 1);
    if (self->keys[slot] == 0) {
        self->keys[slot] = key;
        self->numbers[slot] = self->count++;
    }
    return self->numbers[slot];
}

typedef struct Folder {
    Arena *arena;
    const ShardingGraph *graph;
    ShardingGraphFold *fold;
    int32_t *order;                     /* [node]: nodes in the order of the program */
    int32_t *place;                     /* [node]: where in it */
    uint64_t *signature, *color, *next; /* [edge], [node], [node] */
    uint64_t *former;                   /* [node]: colors of the round before the last */
    int32_t *class_of, *group_of;       /* [node], [edge] */
    int32_t *pair_of;                   /* [edge] */
} Folder;

static bool is_transposed(const Folder *self, const ShardingGraphEdge *edge) {
    return self->place[edge->producer] > self->place[edge->reader];
}

/* Updates the color of every node from the colors at the other ends of its edges. */
static void refine_colors(Folder *self) {
    const ShardingGraph *graph = self->graph;
    memcpy(self->next, self->color, sizeof *self->next * (size_t)graph->node_count);
    for (int32_t e = 0; e < graph->edge_count; e++) {
        const ShardingGraphEdge *edge = &graph->edges[e];
        uint64_t here = hash_combine(self->signature[e], self->color[edge->reader]);
        uint64_t there = hash_combine(self->signature[e] + 1, self->color[edge->producer]);
        self->next[edge->producer] += hash_combine(here, 1); /* sums do not depend on the order of edges */
        self->next[edge->reader] += hash_combine(there, 2);
    }
    memcpy(self->former, self->color, sizeof *self->former * (size_t)graph->node_count);
    for (int32_t n = 0; n < graph->node_count; n++) self->color[n] = hash_combine(self->next[n], 3);
}

static AmStatus find_classes(Folder *self, AmError *error) {
    const ShardingGraph *graph = self->graph;
    ShardingGraphFold *fold = self->fold;
    NumberTable numbering;
    if (!number_table_open(&numbering, self->arena, graph->node_count + 1))
        return am_fail_memory(error, graph->node_count);
    for (int32_t k = 0; k < graph->node_count; k++) {
        int32_t n = self->order[k];
        self->class_of[n] = number_table_find(&numbering, self->color[n]);
    }
    fold->class_count = numbering.count;
    fold->classes = ARENA_ARRAY(self->arena, Class, numbering.count + 1);
    if (!fold->classes) return am_fail_memory(error, numbering.count);
    for (int32_t n = 0; n < graph->node_count; n++) {
        Class *class = &fold->classes[self->class_of[n]];
        class->count++;
        class->label_count = graph->nodes[n].label_count;
        class->seconds = graph->nodes[n].seconds;
    }
    return AM_OK;
}

/* Numbers the states that occur at an end: state[label] and their values. */
static void list_states(Arena *arena, End *end, const ReshardState *states) {
    uint8_t *state = ARENA_ARRAY(arena, uint8_t, end->label_count + 1);
    ReshardState *values = ARENA_ARRAY(arena, ReshardState, RESHARD_STATES + 1);
    int8_t *number = ARENA_ARRAY(arena, int8_t, RESHARD_STATES + 1);
    if (arena->failed) return;
    memset(number, -1, RESHARD_STATES + 1);
    for (int32_t label = 0; label < end->label_count; label++) {
        if (number[states[label]] < 0) {
            values[end->state_count] = states[label];
            number[states[label]] = (int8_t)end->state_count++;
        }
        state[label] = (uint8_t)number[states[label]];
    }
    end->state = state;
    end->values = values;
    end->number = number;
}

static void open_group(Folder *self, Group *group, const ShardingGraphEdge *edge) {
    const ShardingGraph *graph = self->graph;
    int32_t nodes[2] = {edge->producer, edge->reader};
    const ReshardState *states[2] = {edge->produced_states, edge->needed_states};
    group->is_transposed = is_transposed(self, edge);
    for (int32_t k = 0; k < 2; k++) {
        int32_t from = group->is_transposed ? 1 - k : k;
        End *end = &group->ends[k];
        end->label_count = graph->nodes[nodes[from]].label_count;
        end->message = ARENA_ARRAY(self->arena, double, end->label_count + 1);
        list_states(self->arena, end, states[from]);
    }
    int32_t minor = group->ends[1].state_count, cells = group->ends[0].state_count * minor;
    float *alone = ARENA_ARRAY(self->arena, float, cells + 1), most = 0;
    group->seconds = ARENA_ARRAY(self->arena, float, cells + 1);
    if (self->arena->failed) return;
    for (int32_t a = 0; a < group->ends[0].state_count; a++)
        for (int32_t b = 0; b < minor; b++) {
            ReshardState first = group->ends[0].values[a], second = group->ends[1].values[b];
            ReshardState produced = group->is_transposed ? second : first,
                         needed = group->is_transposed ? first : second;
            bool is_any = produced == RESHARD_ANY || needed == RESHARD_ANY;
            float cost =
                is_any ? 0 : graph->reshards->seconds[edge->is_f32_sum][produced][needed] * edge->scale;
            alone[a * minor + b] = cost;
            if (isfinite(cost) && cost > most) most = cost;
        }
    for (int32_t k = 0; k < cells; k++) {
        if (!isfinite(alone[k])) alone[k] = most;
        group->seconds[k] = alone[k] * edge->share;
    }
    if (edge->share == 1) return;
    group->alone = alone;
    group->slack = ARENA_ARRAY(self->arena, float, cells + 1);
}

/* Edges with equal signatures, between nodes of equal colors one round ago, share a group. */
static AmStatus find_groups(Folder *self, AmError *error) {
    const ShardingGraph *graph = self->graph;
    ShardingGraphFold *fold = self->fold;
    NumberTable groups, pairs;
    int32_t edges = graph->edge_count;
    fold->groups = ARENA_ARRAY(self->arena, Group, edges + 1);
    fold->pairs = ARENA_ARRAY(self->arena, Pair, edges + 1);
    if (!number_table_open(&groups, self->arena, edges + 1) ||
        !number_table_open(&pairs, self->arena, edges + 1))
        return am_fail_memory(error, edges);
    for (int32_t e = 0; e < edges && !self->arena->failed; e++) {
        const ShardingGraphEdge *edge = &graph->edges[e];
        uint64_t key = hash_combine(hash_combine(self->signature[e], self->former[edge->producer]),
                                    self->former[edge->reader]);
        int32_t before = groups.count, group = self->group_of[e] = number_table_find(&groups, key);
        if (group == before) open_group(self, &fold->groups[group], edge);
        bool turned = fold->groups[group].is_transposed;
        int32_t ends[2] = {self->class_of[turned ? edge->reader : edge->producer],
                           self->class_of[turned ? edge->producer : edge->reader]};
        before = pairs.count;
        const int32_t parts[] = {group, ends[0], ends[1]};
        int32_t pair = number_table_find(&pairs, hash_bytes(parts, sizeof parts, 0));
        if (pair == before) fold->pairs[pair] = (Pair){.group = group, .first = ends[0], .second = ends[1]};
        self->pair_of[e] = pair;
        fold->pairs[pair].count++;
    }
    fold->group_count = groups.count;
    fold->pair_count = pairs.count;
    double *most = ARENA_ARRAY(self->arena, double, groups.count + 1);
    if (!most) return am_fail_memory(error, groups.count);
    for (int32_t p = 0; p < fold->pair_count; p++) {
        const Pair *pair = &fold->pairs[p];
        if (pair->count <= most[pair->group]) continue;
        most[pair->group] = pair->count;
        fold->groups[pair->group].ends[0].main = pair->first;
        fold->groups[pair->group].ends[1].main = pair->second;
    }
    return AM_OK;
}

/* Finds the groups incident to each class, from one of its nodes, since all are equal. */
static AmStatus find_incidences(Folder *self, AmError *error) {
    const ShardingGraph *graph = self->graph;
    ShardingGraphFold *fold = self->fold;
    int32_t most = 0, most_incidences = 0;
    int32_t *first = ARENA_ARRAY(self->arena, int32_t, graph->node_count + 2);
    int32_t *touching = ARENA_ARRAY(self->arena, int32_t, 2 * graph->edge_count + 1);
    bool *is_done = ARENA_ARRAY(self->arena, bool, fold->class_count + 1);
    if (self->arena->failed) return am_fail_memory(error, graph->edge_count);
    for (int32_t e = 0; e < graph->edge_count; e++) {
        first[graph->edges[e].producer + 1]++;
        first[graph->edges[e].reader + 1]++;
    }
    for (int32_t n = 0; n < graph->node_count; n++) first[n + 1] += first[n];
    for (int32_t e = 0; e < graph->edge_count; e++) { /* the direction of an edge distinguishes its ends */
        touching[first[graph->edges[e].producer]++] = e;
        touching[first[graph->edges[e].reader]++] = -1 - e;
    }
    for (int32_t n = graph->node_count; n > 0; n--) first[n] = first[n - 1];
    first[0] = 0;
    fold->incidences = ARENA_ARRAY(self->arena, Incidence, 2 * graph->edge_count + 1);
    if (!fold->incidences) return am_fail_memory(error, graph->edge_count);
    for (int32_t k = 0; k < graph->node_count; k++) {
        int32_t n = self->order[k];
        Class *class = &fold->classes[self->class_of[n]];
        if (is_done[self->class_of[n]]) continue;
        is_done[self->class_of[n]] = true;
        class->first_incidence = fold->incidence_count;
        for (int32_t t = first[n]; t < first[n + 1]; t++) {
            int32_t e = touching[t] < 0 ? -1 - touching[t] : touching[t];
            int32_t group = self->group_of[e], end = (touching[t] < 0) ^ fold->groups[group].is_transposed,
                    at;
            for (at = class->first_incidence; at < fold->incidence_count; at++)
                if (fold->incidences[at].group == group && fold->incidences[at].end == end) break;
            if (at == fold->incidence_count)
                fold->incidences[fold->incidence_count++] = (Incidence){.group = group, .end = end};
            fold->incidences[at].count++;
            class->edges[end]++;
        }
        class->incidence_count = fold->incidence_count - class->first_incidence;
        if (class->label_count > most) most = class->label_count;
        if (class->incidence_count > most_incidences) most_incidences = class->incidence_count;
    }
    fold->phi = ARENA_ARRAY(self->arena, double, most + 1);
    fold->best = ARENA_ARRAY(self->arena, double, 2 * (RESHARD_STATES + 1));
    fold->sharers = ARENA_ARRAY(self->arena, int32_t, most_incidences + 1);
    fold->sharing = ARENA_ARRAY(self->arena, Sharing, most_incidences + 1);
    fold->cells = ARENA_ARRAY(self->arena, Cell, most_incidences + 1);
    return self->arena->failed ? am_fail_memory(error, most) : AM_OK;
}

/* Colors nodes by their kind and by their neighbourhood up to a distance of `rounds` edges. */
static AmStatus find_colors(Folder *self, int32_t rounds, AmError *error) {
    const ShardingGraph *graph = self->graph;
    /* Operators by instruction, each before the tensor that it makes. */
    int32_t keys = 2 * plan_context_count(graph->context), next = 0;
    int32_t *node_of = ARENA_ARRAY(self->arena, int32_t, keys + 1);
    if (!node_of) return am_fail_memory(error, keys);
    for (int32_t k = 0; k < keys; k++) node_of[k] = -1;
    for (int32_t n = 0; n < graph->node_count; n++)
        node_of[2 * graph->nodes[n].instruction + graph->nodes[n].is_tensor] = n;
    for (int32_t k = 0; k < keys; k++) {
        if (node_of[k] < 0) continue;
        self->place[node_of[k]] = next;
        self->order[next++] = node_of[k];
    }
    for (int32_t n = 0; n < graph->node_count; n++) {
        const ShardingGraphNode *node = &graph->nodes[n];
        const int32_t parts[] = {node->label_count, node->is_tensor};
        self->color[n] = hash_bytes(parts, sizeof parts, 0);
        if (node->seconds)
            self->color[n] =
                hash_bytes(node->seconds, sizeof(float) * (size_t)node->label_count, self->color[n]);
    }
    for (int32_t e = 0; e < graph->edge_count; e++) {
        const ShardingGraphEdge *edge = &graph->edges[e];
        const float parts[] = {edge->scale, edge->share};
        uint64_t hash = hash_bytes(parts, sizeof parts, edge->is_f32_sum + 2u * is_transposed(self, edge));
        hash = hash_bytes(edge->produced_states, (size_t)graph->nodes[edge->producer].label_count, hash);
        self->signature[e] =
            hash_bytes(edge->needed_states, (size_t)graph->nodes[edge->reader].label_count, hash);
    }
    for (int32_t round = 0; round < rounds; round++) refine_colors(self);
    return AM_OK;
}

static AmStatus folder_open(Folder *self, Arena *arena, const ShardingGraph *graph, AmError *error) {
    int32_t nodes = graph->node_count + 1, edges = graph->edge_count + 1;
    *self = (Folder){.arena = arena,
                     .graph = graph,
                     .fold = ARENA_ARRAY(arena, ShardingGraphFold, 1),
                     .order = ARENA_ARRAY(arena, int32_t, nodes),
                     .place = ARENA_ARRAY(arena, int32_t, nodes),
                     .signature = ARENA_ARRAY(arena, uint64_t, edges),
                     .color = ARENA_ARRAY(arena, uint64_t, nodes),
                     .next = ARENA_ARRAY(arena, uint64_t, nodes),
                     .former = ARENA_ARRAY(arena, uint64_t, nodes),
                     .class_of = ARENA_ARRAY(arena, int32_t, nodes),
                     .group_of = ARENA_ARRAY(arena, int32_t, edges),
                     .pair_of = ARENA_ARRAY(arena, int32_t, edges)};
    return arena->failed ? am_fail_memory(error, (int64_t)nodes + edges) : AM_OK;
}

AmStatus sharding_graph_fold(ShardingGraphFold **fold, Arena *arena, const ShardingGraph *graph,
                             AmError *error) {
    Folder self;
    TRY(folder_open(&self, arena, graph, error));
    TRY(find_colors(&self, FOLD_ROUNDS, error));
    TRY(find_classes(&self, error));
    TRY(find_groups(&self, error));
    TRY(find_incidences(&self, error));
    self.fold->graph = graph;
    self.fold->class_of = self.class_of;
    self.fold->group_of = self.group_of;
    self.fold->pair_of = self.pair_of;
    *fold = self.fold;
    return AM_OK;
}

AmStatus sharding_graph_kinds(int32_t **kinds, int32_t *kind_count, Arena *arena, const ShardingGraph *graph,
                              const uint64_t *looks, int32_t rounds, AmError *error) {
    Folder self;
    TRY(folder_open(&self, arena, graph, error));
    TRY(find_colors(&self, rounds, error));
    for (int32_t n = 0; n < graph->node_count; n++)
        self.color[n] = hash_combine(self.color[n], looks[graph->nodes[n].instruction]);
    TRY(find_classes(&self, error));
    *kinds = self.class_of;
    *kind_count = self.fold->class_count;
    return AM_OK;
}

void sharding_graph_fold_watch(ShardingGraphFold *fold, const StopSignal *stop) {
    fold->stop = stop;
}
