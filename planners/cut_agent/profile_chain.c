/* From a profile graph to the places of a chain: its downsets, or one order.
 *
 * Downsets are listed breadth first from the empty one, each with one more node than its
 * predecessor, and kept once, by hash. The transfer at a cut consists of the results of nodes
 * before it that any node after it reads, each once.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planners/cut_agent/profile_graph.h"

/* The downsets found so far, `words` words each, and the graph by node. */
typedef struct Downsets {
    const ProfileGraph *graph;
    Arena *arena;
    int32_t words, count;
    uint64_t *sets;   /* [PROFILE_MOST_DOWNSETS, words] */
    uint64_t *needed; /* [node_count, words]: the producers of each node */
    uint64_t *users;  /* [node_count, words]: the consumers of each node */
    int32_t *table;   /* [2 PROFILE_MOST_DOWNSETS + 1] set + 1, 0 empty */
    double *work;     /* [count] */
    bool is_too_large;
} Downsets;

static bool has_node(const uint64_t *set, int32_t node) {
    return set[node / 64] >> (node % 64) & 1;
}

static bool contains(const uint64_t *outer, const uint64_t *inner, int32_t words) {
    for (int32_t w = 0; w < words; w++)
        if (inner[w] & ~outer[w]) return false;
    return true;
}

static void add_set(Downsets *downsets, const uint64_t *set) {
    enum { TABLE = 2 * PROFILE_MOST_DOWNSETS + 1 };
    int32_t words = downsets->words;
    uint64_t hash = 0;
    for (int32_t w = 0; w < words; w++) hash = (hash ^ set[w]) * 0x9e3779b97f4a7c15u + (hash >> 29);
    int32_t at = (int32_t)(hash % TABLE);
    for (; downsets->table[at]; at = (at + 1) % TABLE)
        if (memcmp(downsets->sets + (int64_t)(downsets->table[at] - 1) * words, set, 8 * (size_t)words) == 0)
            return;
    if (downsets->count == PROFILE_MOST_DOWNSETS) {
        downsets->is_too_large = true;
        return;
    }
    memcpy(downsets->sets + (int64_t)downsets->count++ * words, set, 8 * (size_t)words);
    downsets->table[at] = downsets->count;
}

static AmStatus list_downsets(Downsets *downsets, AmError *error) {
    const ProfileGraph *graph = downsets->graph;
    int32_t words = downsets->words, nodes = graph->node_count;
    Arena *arena = downsets->arena;
    downsets->sets = ARENA_ARRAY(arena, uint64_t, (int64_t)PROFILE_MOST_DOWNSETS * words);
    downsets->needed = ARENA_ARRAY(arena, uint64_t, (int64_t)nodes * words);
    downsets->users = ARENA_ARRAY(arena, uint64_t, (int64_t)nodes * words);
    downsets->table = ARENA_ARRAY(arena, int32_t, 2 * PROFILE_MOST_DOWNSETS + 1);
    uint64_t *next = ARENA_ARRAY(arena, uint64_t, words);
    if (!downsets->sets || !downsets->needed || !downsets->users || !downsets->table || !next)
        return am_fail_memory(error, (int64_t)PROFILE_MOST_DOWNSETS * words * 8);
    for (int32_t edge = 0; edge < graph->edge_count; edge++) {
        int32_t producer = graph->producers[edge], consumer = graph->consumers[edge];
        downsets->needed[(int64_t)consumer * words + producer / 64] |= (uint64_t)1 << (producer % 64);
        downsets->users[(int64_t)producer * words + consumer / 64] |= (uint64_t)1 << (consumer % 64);
    }
    add_set(downsets, next);
    for (int32_t k = 0; k < downsets->count && !downsets->is_too_large; k++) {
        const uint64_t *set = downsets->sets + (int64_t)k * words;
        for (int32_t node = 0; node < nodes; node++) {
            if (has_node(set, node) || !contains(set, downsets->needed + (int64_t)node * words, words))
                continue;
            memcpy(next, set, 8 * (size_t)words);
            next[node / 64] |= (uint64_t)1 << (node % 64);
            add_set(downsets, next);
        }
    }
    return AM_OK;
}

/* Adds a node to the sums at a place. */
static void add_node(Chain *chain, int32_t place, const ProfileNode *node) {
    chain->forward[place] += node->forward;
    chain->backward[place] += node->backward;
    chain->stored[place] += node->activation;
    chain->weight[place] += node->parameter;
}

/* A downset by its work, smaller sets first. */
typedef struct Ranked {
    double work;
    int32_t set, size;
} Ranked;

static int compare_ranked(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->work != y->work) return x->work < y->work ? -1 : 1;
    return x->size != y->size ? x->size - y->size : x->set - y->set;
}

static AmStatus chain_in_a_row(Chain *chain, Arena *arena, const ProfileGraph *graph, AmError *error) {
    int32_t nodes = graph->node_count;
    int32_t *place_of = ARENA_ARRAY(arena, int32_t, nodes), *last_use = ARENA_ARRAY(arena, int32_t, nodes);
    if (!place_of || !last_use) return am_fail_memory(error, 8 * (int64_t)nodes);
    TRY(chain_create(chain, arena, nodes, error));
    for (int32_t k = 0; k < nodes; k++) place_of[graph->order[k]] = k;
    for (int32_t edge = 0; edge < graph->edge_count; edge++) {
        int32_t use = place_of[graph->consumers[edge]];
        if (use > last_use[graph->producers[edge]]) last_use[graph->producers[edge]] = use;
    }
    for (int32_t place = 1; place <= nodes; place++) {
        const ProfileNode *node = &graph->nodes[graph->order[place - 1]];
        double *const sums[] = {chain->forward, chain->backward, chain->stored, chain->weight};
        for (int32_t k = 0; k < 4; k++) sums[k][place] = sums[k][place - 1];
        add_node(chain, place, node);
        /* Its result crosses every cut from after it to its last use; differences first. */
        int32_t last = last_use[graph->order[place - 1]];
        if (last < place) continue;
        chain->activation[place] += node->activation;
        if (last < nodes) chain->activation[last + 1] -= node->activation;
    }
    for (int32_t place = 1; place <= nodes; place++)
        chain->activation[place] = fmax(0, chain->activation[place] + chain->activation[place - 1]);
    chain->activation[nodes] = 0;
    return AM_OK;
}

AmStatus profile_graph_chain(Chain *chain, const char **space, Arena *arena, const ProfileGraph *graph,
                             bool in_a_row, AmError *error) {
    Downsets downsets = {.graph = graph, .arena = arena, .words = (graph->node_count + 63) / 64};
    *space = "linear order";
    if (in_a_row || graph->node_count >= PROFILE_MOST_DOWNSETS)
        return chain_in_a_row(chain, arena, graph, error);
    TRY(list_downsets(&downsets, error));
    if (downsets.is_too_large) return chain_in_a_row(chain, arena, graph, error);
    *space = "downsets";
    int32_t words = downsets.words;
    Ranked *ranked = ARENA_ARRAY(arena, Ranked, downsets.count);
    uint64_t *sets = ARENA_ARRAY(arena, uint64_t, (int64_t)downsets.count * words);
    if (!ranked || !sets) return am_fail_memory(error, (int64_t)downsets.count * words * 8);
    TRY(chain_create(chain, arena, downsets.count - 1, error));
    for (int32_t k = 0; k < downsets.count; k++) {
        ranked[k].set = k;
        for (int32_t n = 0; n < graph->node_count; n++) {
            if (!has_node(downsets.sets + (int64_t)k * words, n)) continue;
            ranked[k].work += graph->nodes[n].forward + graph->nodes[n].backward;
            ranked[k].size++;
        }
    }
    qsort(ranked, (size_t)downsets.count, sizeof(Ranked), compare_ranked);
    for (int32_t place = 0; place < downsets.count; place++) {
        uint64_t *set = sets + (int64_t)place * words;
        memcpy(set, downsets.sets + (int64_t)ranked[place].set * words, 8 * (size_t)words);
        for (int32_t n = 0; n < graph->node_count; n++) {
            if (!has_node(set, n)) continue;
            add_node(chain, place, &graph->nodes[n]);
            if (!contains(set, downsets.users + (int64_t)n * words, words))
                chain->activation[place] += graph->nodes[n].activation;
        }
    }
    chain->sets = sets;
    chain->words = words;
    return AM_OK;
}
