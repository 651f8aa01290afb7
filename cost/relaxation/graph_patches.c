/* Groups of labels that improve a plan only if they change together.
 *
 * Several readers of one tensor pay for its resharding once. A reader that changes alone gains
 * nothing, while three readers that change together gain the whole cost. The method is a chain of
 * ejections, as Lin and Kernighan 1973 exchange edges: a class of equal operators takes another of
 * its best labels by the messages, and neighbouring classes respond, one by one, with their best
 * label, as far as responses spread. If the total decreases, the changed labels form a patch. Costs
 * are those of sharding_graph_cost() on the unfolded graph, each resharding paid once; the operators of a
 * class change together.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "cost/relaxation/graph_fold.h"

/* The most classes that start a patch, those with most slack near them; labels of each; the most classes
 * that a start changes with it. */
enum { MOST_SEEDS = 200, SEED_LABELS = 3, MOST_ANSWERS = 60 };
/* The most readers of a tensor that are queued. */
enum { MOST_READERS = 20 };
/* Fractions of the total cost: slack below which no patch starts, and the least gain of a patch. */
#define LEAST_SLACK 1e-5
#define LEAST_GAIN  2e-5

/* Seconds that sums of rounded figures may differ by. */
#define TIE 1e-12

/* Numbers by node or by class. */
typedef struct PatchTable {
    int32_t *first; /* [count + 1] */
    int32_t *items;
} PatchTable;

typedef struct Patcher {
    Arena *arena;
    ShardingGraphFold *fold;
    const ShardingGraph *graph;
    const ShardingGraphWeights *weights;
    const int32_t *before;                    /* [node]: labels of the plan */
    int32_t *labels;                          /* [node]: those now */
    double *reshard;                          /* [node]: seconds of resharding its result, for all readers */
    PatchTable by_producer, by_reader, alike; /* edges by producer, by reader; nodes by class */
    PatchTable touched;     /* nodes by class: its own, and the producers of their operands */
    bool *is_uniform;       /* [class]: its nodes have one label */
    int32_t *twin;          /* [node]: the first one that always has the same `reshard` */
    int32_t *stamps, stamp; /* [node] */
    double *fresh;          /* [twin with the present stamp]: its new `reshard` */
    int32_t *queue;         /* of classes that may answer; a ring of class_count */
    int32_t queue_first, queue_count;
    bool *is_waiting; /* [class]: in the queue, or excluded */
    int32_t *changed; /* classes that have changed, each once */
    int32_t changed_count;
    bool *is_changed; /* [class] */
} Patcher;

/* Items 0 to `count` - 1 by keys of them. */
static bool table_fill(PatchTable *table, Arena *arena, int32_t keys, int32_t count,
                       int32_t (*key)(const Patcher *, int32_t), const Patcher *self) {
    table->first = ARENA_ARRAY(arena, int32_t, keys + 2);
    table->items = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return false;
    for (int32_t k = 0; k < count; k++) table->first[key(self, k) + 2]++;
    for (int32_t k = 0; k < keys; k++) table->first[k + 2] += table->first[k + 1];
    for (int32_t k = 0; k < count; k++) table->items[table->first[key(self, k) + 1]++] = k;
    return true;
}

static int32_t producer_of(const Patcher *self, int32_t edge) {
    return self->graph->edges[edge].producer;
}
static int32_t receiver(const Patcher *self, int32_t edge) {
    return self->graph->edges[edge].reader;
}
static int32_t class_of(const Patcher *self, int32_t node) {
    return self->fold->class_of[node];
}

/* ---- costs ---- */

static double edge_seconds(const Patcher *self, int32_t e) {
    const ShardingGraphEdge *edge = &self->graph->edges[e];
    const Group *group = &self->fold->groups[self->fold->group_of[e]];
    int32_t first = self->labels[group->is_transposed ? edge->reader : edge->producer];
    int32_t second = self->labels[group->is_transposed ? edge->producer : edge->reader];
    const float *seconds = group->alone ? group->alone : group->seconds;
    return seconds[group->ends[0].state[first] * group->ends[1].state_count + group->ends[1].state[second]];
}

/* Returns the seconds of resharding the result or stored value of a node; once for each state, also if
 * several readers need it. */
static double reshard_of(const Patcher *self, int32_t node) {
    const ShardingGraph *graph = self->graph;
    uint64_t paid = 0;
    double seconds = 0;
    for (int32_t k = self->by_producer.first[node]; k < self->by_producer.first[node + 1]; k++) {
        const ShardingGraphEdge *edge = &graph->edges[self->by_producer.items[k]];
        ReshardState needed = edge->needed_states[self->labels[edge->reader]];
        if (graph->nodes[node].is_tensor && (needed == RESHARD_ANY || paid >> needed & 1)) continue;
        if (needed != RESHARD_ANY) paid |= (uint64_t)1 << needed;
        seconds += edge_seconds(self, self->by_producer.items[k]);
    }
    return self->weights->communication * seconds;
}

static double computing_of(const Patcher *self, int32_t node) {
    const float *seconds = self->graph->nodes[node].seconds;
    return seconds ? self->weights->compute * seconds[self->labels[node]] : 0;
}

static int32_t label_of(const Patcher *self, int32_t c) {
    return self->labels[self->alike.items[self->alike.first[c]]];
}

/* Gives all nodes of a class, which have one label, another one, and returns what that adds to the cost. Its
 * addends are those of the single nodes, in their order. */
static double set_label(Patcher *self, int32_t c, int32_t label) {
    int32_t first = self->alike.first[c], end = self->alike.first[c + 1];
    double added = 0, before = computing_of(self, self->alike.items[first]);
    self->stamp++;
    self->labels[self->alike.items[first]] = label;
    const double after = computing_of(self, self->alike.items[first]);
    for (int32_t k = first; k < end; k++) {
        self->labels[self->alike.items[k]] = label;
        added -= before;
        added += after;
    }
    for (int32_t k = self->touched.first[c]; k < self->touched.first[c + 1]; k++) {
        int32_t node = self->touched.items[k], twin = self->twin[node];
        if (self->stamps[twin] != self->stamp) self->fresh[twin] = reshard_of(self, node);
        self->stamps[twin] = self->stamp;
        added += self->fresh[twin] - self->reshard[node];
        self->reshard[node] = self->fresh[twin];
    }
    return added;
}

/* ---- chains ---- */

static void note_change(Patcher *self, int32_t c) {
    if (self->is_changed[c]) return;
    self->is_changed[c] = true;
    self->changed[self->changed_count++] = c;
}

/* Gives a class the label that is cheapest beside all others; what that adds to the cost. */
static double relabel_class(Patcher *self, int32_t c) {
    int32_t was = label_of(self, c), best = was;
    double added = 0, least = 0;
    for (int32_t label = 0; label < self->fold->classes[c].label_count; label++) {
        if (label == was) continue;
        added += set_label(self, c, label);
        if (added >= least - TIE) continue;
        least = added;
        best = label;
    }
    if (best != label_of(self, c)) added += set_label(self, c, best);
    if (best != was) note_change(self, c);
    return added;
}

static void enqueue(Patcher *self, int32_t node) {
    int32_t c = self->fold->class_of[node], most = self->fold->class_count;
    if (self->is_waiting[c] || !self->is_uniform[c]) return;
    self->is_waiting[c] = true;
    self->queue[(self->queue_first + self->queue_count++) % most] = c;
}

/* Queues all readers of the class, all producers of its operands, and the other readers of those. */
static void enqueue_neighbours(Patcher *self, int32_t c) {
    const ShardingGraphEdge *edges = self->graph->edges;
    for (int32_t k = self->alike.first[c]; k < self->alike.first[c + 1]; k++) {
        int32_t node = self->alike.items[k];
        for (int32_t e = self->by_producer.first[node]; e < self->by_producer.first[node + 1]; e++)
            enqueue(self, edges[self->by_producer.items[e]].reader);
        for (int32_t e = self->by_reader.first[node]; e < self->by_reader.first[node + 1]; e++) {
            int32_t source = edges[self->by_reader.items[e]].producer,
                    first = self->by_producer.first[source];
            enqueue(self, source);
            for (int32_t o = first; o < self->by_producer.first[source + 1] && o < first + MOST_READERS; o++)
                enqueue(self, edges[self->by_producer.items[o]].reader);
        }
    }
}

/* Changes the class to the label, lets its neighbours respond, then the class again; returns the
 * change of the total cost. */
static double chain(Patcher *self, int32_t seed, int32_t label) {
    double added = set_label(self, seed, label);
    note_change(self, seed);
    self->is_waiting[seed] = true;
    enqueue_neighbours(self, seed);
    for (int32_t k = 0; k < MOST_ANSWERS && self->queue_count > 0; k++) {
        int32_t c = self->queue[self->queue_first], was = label_of(self, c);
        self->queue_first = (self->queue_first + 1) % self->fold->class_count;
        self->queue_count--;
        self->is_waiting[c] = false;
        added += relabel_class(self, c);
        if (label_of(self, c) != was) enqueue_neighbours(self, c);
    }
    for (; self->queue_count > 0; self->queue_count--) {
        self->is_waiting[self->queue[self->queue_first]] = false;
        self->queue_first = (self->queue_first + 1) % self->fold->class_count;
    }
    self->is_waiting[seed] = false;
    return added + relabel_class(self, seed);
}

/* Restores the plan's label of each class that changed without gain; returns the change of the
 * total cost. */
static double tidy(Patcher *self) {
    double all = 0;
    for (int32_t k = 0; k < self->changed_count; k++) {
        int32_t c = self->changed[k], now = label_of(self, c);
        int32_t was = self->before[self->alike.items[self->alike.first[c]]];
        if (was == now) continue;
        double added = set_label(self, c, was);
        if (added > TIE) added += set_label(self, c, now);
        all += added;
    }
    return all;
}

/* ---- patches ---- */

static int compare_relabels(const void *a, const void *b) {
    const ShardingGraphRelabel *x = a, *y = b;
    return (x->node > y->node) - (x->node < y->node);
}

/* Records the changed labels as a patch; false: there is an equal one, or memory is exhausted. */
static bool make_patch(const Patcher *self, ShardingGraphChange *patch, const ShardingGraphChange *others,
                       int32_t count) {
    ShardingGraphRelabel *relabels = ARENA_ARRAY(self->arena, ShardingGraphRelabel, self->changed_count + 1);
    if (!relabels) return false;
    patch->relabels = relabels;
    patch->count = 0;
    for (int32_t k = 0; k < self->changed_count; k++) {
        int32_t node = self->alike.items[self->alike.first[self->changed[k]]];
        if (self->labels[node] != self->before[node])
            relabels[patch->count++] = (ShardingGraphRelabel){node, self->labels[node]};
    }
    qsort(relabels, (size_t)patch->count, sizeof *relabels, compare_relabels);
    for (int32_t k = 0; k < count; k++)
        if (others[k].count == patch->count &&
            memcmp(others[k].relabels, relabels, sizeof *relabels * (size_t)patch->count) == 0)
            return false;
    return patch->count > 0;
}

/* Patches that begin with a class, for the better of its labels. */
static void find_patches(Patcher *self, int32_t c, double least, ShardingGraphChange *patches,
                         int32_t *count) {
    int32_t was = label_of(self, c), tried[SEED_LABELS + 1];
    tried[0] = was;
    for (int32_t k = 1; k <= SEED_LABELS; k++) {
        sharding_graph_gather(self->fold, c, self->weights);
        tried[k] = sharding_graph_next_label(self->fold, &self->fold->classes[c], tried, k);
        if (tried[k] < 0) return;
        double gain = -chain(self, c, tried[k]);
        gain -= tidy(self);
        if (gain > least && make_patch(self, &patches[*count], patches, *count))
            patches[(*count)++].gain = gain;
        /* The changed classes get the plan's labels again. */
        for (int32_t n = 0; n < self->changed_count; n++) {
            int32_t changed = self->changed[n];
            set_label(self, changed, self->before[self->alike.items[self->alike.first[changed]]]);
            self->is_changed[changed] = false;
        }
        self->changed_count = 0;
    }
}

static int compare_gains(const void *a, const void *b) {
    const ShardingGraphChange *x = a, *y = b;
    if (x->gain != y->gain) return x->gain < y->gain ? 1 : -1;
    return compare_relabels(x->relabels, y->relabels);
}

/* Lists for each class the nodes whose `reshard` depends on its label, each once. */
static bool list_touched(Patcher *self) {
    const ShardingGraph *graph = self->graph;
    PatchTable *touched = &self->touched;
    int32_t count = 0, classes = self->fold->class_count;
    touched->first = ARENA_ARRAY(self->arena, int32_t, classes + 1);
    touched->items = ARENA_ARRAY(self->arena, int32_t, graph->node_count + graph->edge_count + 1);
    if (self->arena->failed) return false;
    for (int32_t c = 0; c < classes; c++) {
        self->stamp++;
        for (int32_t k = self->alike.first[c]; k < self->alike.first[c + 1]; k++) {
            int32_t node = self->alike.items[k];
            if (self->stamps[node] != self->stamp) touched->items[count++] = node;
            self->stamps[node] = self->stamp;
            for (int32_t e = self->by_reader.first[node]; e < self->by_reader.first[node + 1]; e++) {
                int32_t source = graph->edges[self->by_reader.items[e]].producer;
                if (self->stamps[source] != self->stamp) touched->items[count++] = source;
                self->stamps[source] = self->stamp;
            }
        }
        touched->first[c + 1] = count;
    }
    return true;
}

/* Returns a hash of all that reshard_of() of a node depends on: the classes at its edges, which have one
 * label each, and the groups of the edges. A class of several labels makes the hash that of the node alone.
 */
static uint64_t reshard_key(const Patcher *self, int32_t node) {
    const int32_t *class_of = self->fold->class_of;
    uint64_t key = hash_combine((uint64_t)class_of[node], 0);
    bool is_uniform = self->is_uniform[class_of[node]];
    for (int32_t k = self->by_producer.first[node]; k < self->by_producer.first[node + 1]; k++) {
        int32_t e = self->by_producer.items[k], reader = class_of[self->graph->edges[e].reader];
        key = hash_combine(key, (uint64_t)self->fold->group_of[e] << 32 | (uint64_t)reader);
        is_uniform &= self->is_uniform[reader];
    }
    return is_uniform ? key : hash_combine(key, (uint64_t)node);
}

/* Finds the twins: nodes of one class whose edges are of the same groups, to the same classes, in the same
 * order, as in equal layers. */
static bool find_twins(Patcher *self) {
    int32_t nodes = self->graph->node_count;
    int32_t *first = ARENA_ARRAY(self->arena, int32_t, nodes + 1);
    NumberTable numbers;
    if (!first || !number_table_open(&numbers, self->arena, nodes + 1)) return false;
    for (int32_t n = 0; n < nodes; n++) {
        int32_t before = numbers.count, number = number_table_find(&numbers, reshard_key(self, n));
        if (number == before) first[number] = n;
        self->twin[n] = first[number];
    }
    return true;
}

static AmStatus open_patcher(Patcher *self, Arena *arena, ShardingGraphFold *fold, const int32_t *labels,
                             const ShardingGraphWeights *weights, AmError *error) {
    const ShardingGraph *graph = fold->graph;
    int32_t nodes = graph->node_count, classes = fold->class_count;
    *self = (Patcher){.arena = arena,
                      .fold = fold,
                      .graph = graph,
                      .weights = weights,
                      .before = labels,
                      .labels = ARENA_ARRAY(arena, int32_t, nodes + 1),
                      .reshard = ARENA_ARRAY(arena, double, nodes + 1),
                      .is_uniform = ARENA_ARRAY(arena, bool, classes + 1),
                      .twin = ARENA_ARRAY(arena, int32_t, nodes + 1),
                      .stamps = ARENA_ARRAY(arena, int32_t, nodes + 1),
                      .fresh = ARENA_ARRAY(arena, double, nodes + 1),
                      .queue = ARENA_ARRAY(arena, int32_t, classes + 1),
                      .is_waiting = ARENA_ARRAY(arena, bool, classes + 1),
                      .changed = ARENA_ARRAY(arena, int32_t, classes + 1),
                      .is_changed = ARENA_ARRAY(arena, bool, classes + 1)};
    if (arena->failed ||
        !table_fill(&self->by_producer, arena, nodes, graph->edge_count, producer_of, self) ||
        !table_fill(&self->by_reader, arena, nodes, graph->edge_count, receiver, self) ||
        !table_fill(&self->alike, arena, classes, nodes, class_of, self) || !list_touched(self))
        return am_fail_memory(error, nodes);
    memcpy(self->labels, labels, sizeof *labels * (size_t)nodes);
    for (int32_t n = 0; n < nodes; n++) self->reshard[n] = reshard_of(self, n);
    for (int32_t c = 0; c < classes; c++) {
        self->is_uniform[c] = true;
        for (int32_t k = self->alike.first[c]; k < self->alike.first[c + 1]; k++)
            self->is_uniform[c] &= labels[self->alike.items[k]] == label_of(self, c);
    }
    return find_twins(self) ? AM_OK : am_fail_memory(error, nodes);
}

bool sharding_graph_share_a_node(const ShardingGraphChange *a, const ShardingGraphChange *b) {
    for (int32_t i = 0, j = 0; i < a->count && j < b->count;) {
        if (a->relabels[i].node == b->relabels[j].node) return true;
        if (a->relabels[i].node < b->relabels[j].node) i++;
        else j++;
    }
    return false;
}

AmStatus sharding_graph_patches(ShardingGraphChange **patches, int32_t *count, Arena *arena,
                                ShardingGraphFold *fold, const int32_t *labels,
                                const ShardingGraphWeights *weights, AmError *error) {
    Patcher self;
    ShardingGraphSeed *seeds;
    int32_t seed_count;
    double whole = 0;
    TRY(open_patcher(&self, arena, fold, labels, weights, error));
    TRY(sharding_graph_seeds(&seeds, &seed_count, arena, fold, labels, weights, error));
    *patches = ARENA_ARRAY(arena, ShardingGraphChange, MOST_SEEDS * SEED_LABELS);
    *count = 0;
    if (!*patches) return am_fail_memory(error, MOST_SEEDS);
    for (int32_t n = 0; n < fold->graph->node_count; n++) whole += self.reshard[n] + computing_of(&self, n);
    for (int32_t k = 0; k < seed_count && k < MOST_SEEDS && seeds[k].near > LEAST_SLACK * whole; k++) {
        if (fold->stop && stop_wanted(fold->stop)) break;
        if (self.is_uniform[seeds[k].class])
            find_patches(&self, seeds[k].class, LEAST_GAIN * whole, *patches, count);
    }
    if (arena->failed) return am_fail_memory(error, *count);
    qsort(*patches, (size_t)*count, sizeof **patches, compare_gains);
    /* Patches that share nothing with one of more gain come first; both in the order of gains. */
    ShardingGraphChange *rest = ARENA_ARRAY(arena, ShardingGraphChange, *count + 1);
    int32_t first = 0, rest_count = 0;
    if (!rest) return am_fail_memory(error, *count);
    for (int32_t k = 0; k < *count; k++) {
        bool is_apart = true;
        for (int32_t other = 0; other < first; other++)
            is_apart &= !sharding_graph_share_a_node(&(*patches)[k], &(*patches)[other]);
        if (is_apart) (*patches)[first++] = (*patches)[k];
        else rest[rest_count++] = (*patches)[k];
    }
    memcpy(*patches + first, rest, sizeof *rest * (size_t)rest_count);
    return AM_OK;
}
