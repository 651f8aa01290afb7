/* Finds the nodes where a plan costs more than the messages prove, and the cheaper labels; see
 * graph_bound.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cost/relaxation/graph_fold.h"

/* Values of the messages, by class and by pair. */
typedef struct Messages {
    int32_t *first; /* [class]: of its labels in `phi` */
    double *phi, *gamma, *least;
    double *pair_least; /* seen from end 1, as in evaluate(fold, 1) */
} Messages;

/* Returns the slack of an edge by the labels of its ends. */
static double edge_slack(const ShardingGraphFold *fold, const Messages *messages, int32_t e,
                         const int32_t *labels, const ShardingGraphWeights *weights) {
    const ShardingGraphEdge *edge = &fold->graph->edges[e];
    const Pair *pair = &fold->pairs[fold->pair_of[e]];
    const Group *group = &fold->groups[pair->group];
    int32_t first = labels[group->is_transposed ? edge->reader : edge->producer];
    int32_t second = labels[group->is_transposed ? edge->producer : edge->reader];
    const End *to = &group->ends[0], *from = &group->ends[1];
    double phi = messages->phi[messages->first[pair->second] + second];
    double moved = group->seconds[to->state[first] * from->state_count + from->state[second]];
    return messages->gamma[pair->second] * phi - from->message[second] + weights->communication * moved -
           to->message[first] - messages->pair_least[fold->pair_of[e]];
}

static AmStatus find_class_slack(Arena *arena, const ShardingGraphFold *fold, double *slack,
                                 const int32_t *labels, const ShardingGraphWeights *weights, AmError *error) {
    const ShardingGraph *graph = fold->graph;
    Messages messages = {0};
    size_t classes = (size_t)fold->class_count;
    messages.first = ARENA_ARRAY(arena, int32_t, classes + 1);
    if (!messages.first) return am_fail_memory(error, fold->class_count);
    for (size_t c = 0; c < classes; c++)
        messages.first[c + 1] = messages.first[c] + fold->classes[c].label_count;
    messages.phi = ARENA_ARRAY(arena, double, messages.first[classes] + 1);
    messages.gamma = ARENA_ARRAY(arena, double, classes + 1);
    messages.least = ARENA_ARRAY(arena, double, classes + 1);
    messages.pair_least = ARENA_ARRAY(arena, double, fold->pair_count + 1);
    if (arena->failed) return am_fail_memory(error, fold->class_count);
    for (int32_t c = 0; c < fold->class_count; c++) {
        const Class *class = &fold->classes[c];
        messages.gamma[c] = sharding_graph_gather(fold, c, weights);
        messages.least[c] = sharding_graph_least_phi(fold, class);
        memcpy(&messages.phi[messages.first[c]], fold->phi, sizeof(double) * (size_t) class->label_count);
    }
    for (int32_t p = 0; p < fold->pair_count; p++) {
        const Group *group = &fold->groups[fold->pairs[p].group];
        const End *to = &group->ends[0];
        double gamma = sharding_graph_gather(fold, fold->pairs[p].second, weights), least = INFINITY;
        const double *sent = sharding_graph_send(fold, group, 1, gamma, weights);
        for (int32_t label = 0; label < to->label_count; label++)
            least = fmin(least, sent[to->state[label]] - to->message[label]);
        messages.pair_least[p] = least;
    }
    for (int32_t n = 0; n < graph->node_count; n++) {
        int32_t c = fold->class_of[n];
        double phi = messages.phi[messages.first[c] + labels[n]];
        slack[c] += (1 - messages.gamma[c] * fold->classes[c].edges[1]) * (phi - messages.least[c]);
    }
    for (int32_t e = 0; e < graph->edge_count; e++) {
        double here = edge_slack(fold, &messages, e, labels, weights);
        slack[fold->class_of[graph->edges[e].producer]] += here;
        slack[fold->class_of[graph->edges[e].reader]] += here;
    }
    return AM_OK;
}

static int compare_seeds(const void *a, const void *b) {
    const ShardingGraphSeed *x = a, *y = b;
    if (x->near != y->near) return x->near < y->near ? 1 : -1;
    return x->class - y->class;
}

AmStatus sharding_graph_seeds(ShardingGraphSeed **seeds, int32_t *count, Arena *arena,
                              ShardingGraphFold *fold, const int32_t *labels,
                              const ShardingGraphWeights *weights, AmError *error) {
    double *slack = ARENA_ARRAY(arena, double, fold->class_count + 1);
    *seeds = ARENA_ARRAY(arena, ShardingGraphSeed, fold->class_count + 1);
    *count = fold->class_count;
    if (arena->failed) return am_fail_memory(error, fold->class_count);
    TRY(find_class_slack(arena, fold, slack, labels, weights, error));
    for (int32_t c = 0; c < fold->class_count; c++) (*seeds)[c] = (ShardingGraphSeed){c, slack[c], slack[c]};
    for (int32_t e = 0; e < fold->graph->edge_count; e++) {
        int32_t producer = fold->class_of[fold->graph->edges[e].producer];
        int32_t reader = fold->class_of[fold->graph->edges[e].reader];
        (*seeds)[producer].near = fmax((*seeds)[producer].near, slack[reader]);
        (*seeds)[reader].near = fmax((*seeds)[reader].near, slack[producer]);
    }
    qsort(*seeds, (size_t)*count, sizeof **seeds, compare_seeds);
    return AM_OK;
}

int32_t sharding_graph_next_label(const ShardingGraphFold *fold, const Class *class, const int32_t *others,
                                  int32_t count) {
    int32_t best = -1;
    for (int32_t label = 0; label < class->label_count; label++) {
        bool is_new = true;
        for (int32_t k = 0; k < count; k++) is_new &= others[k] != label;
        if (is_new && (best < 0 || fold->phi[label] < fold->phi[best])) best = label;
    }
    return best;
}

AmStatus sharding_graph_changes(ShardingGraphChange **changes, int32_t *count, Arena *arena,
                                ShardingGraphFold *fold, const int32_t *labels,
                                const ShardingGraphWeights *weights, AmError *error) {
    ShardingGraphSeed *seeds;
    int32_t seed_count, *first = ARENA_ARRAY(arena, int32_t, fold->class_count + 1);
    /* The first node of every class, in the order of nodes. */
    for (int32_t n = fold->graph->node_count - 1; first && n >= 0; n--) first[fold->class_of[n]] = n;
    TRY(sharding_graph_seeds(&seeds, &seed_count, arena, fold, labels, weights, error));
    ShardingGraphRelabel *relabels = ARENA_ARRAY(arena, ShardingGraphRelabel, 2 * seed_count + 1);
    *changes = ARENA_ARRAY(arena, ShardingGraphChange, 2 * seed_count + 1);
    *count = 0;
    if (arena->failed) return am_fail_memory(error, seed_count);
    for (int32_t k = 0; k < seed_count && seeds[k].slack > 0; k++) {
        int32_t c = seeds[k].class, n = first[c], tried[3] = {labels[n]};
        if (fold->graph->nodes[n].is_tensor) continue;
        sharding_graph_gather(fold, c, weights);
        for (int32_t t = 1; t < 3; t++) {
            tried[t] = sharding_graph_next_label(fold, &fold->classes[c], tried, t);
            if (tried[t] < 0) break;
            relabels[*count] = (ShardingGraphRelabel){n, tried[t]};
            (*changes)[*count] =
                (ShardingGraphChange){.relabels = &relabels[*count], .count = 1, .slack = seeds[k].slack};
            (*count)++;
        }
    }
    return AM_OK;
}

bool sharding_graph_is_alike(const ShardingGraphFold *fold, int32_t node, int32_t other) {
    return fold->class_of[node] == fold->class_of[other];
}
