/* Where a plan is dearer than the messages prove, and what they would have instead; see additive_bound.h. */
#include <math.h>
#include <stdlib.h>

#include "cost/additive_fold.h"

/* Slack of an edge by the labels of its ends, looked at from end 1 as evaluate(fold, 1) does. */
static double edge_slack(AdditiveFold *fold, int32_t e, const int32_t *labels,
                         const AdditiveWeights *weights) {
    const AdditiveEdge *edge = &fold->model->edges[e];
    const Group *group = &fold->groups[fold->group_of[e]];
    int32_t first = group->is_turned ? edge->taken : edge->made;
    int32_t second = group->is_turned ? edge->made : edge->taken;
    const End *to = &group->ends[0], *from = &group->ends[1];
    double gamma = additive_gather(fold, fold->class_of[second], weights), least = INFINITY;
    const double *sent = additive_send(fold, group, 1, gamma, weights);
    for (int32_t label = 0; label < to->label_count; label++)
        least = fmin(least, sent[to->state[label]] - to->message[label]);
    double moved = group->seconds[to->state[labels[first]] * from->state_count + from->state[labels[second]]];
    return gamma * fold->phi[labels[second]] - from->message[labels[second]] +
           weights->communication * moved - to->message[labels[first]] - least;
}

static void find_class_slack(AdditiveFold *fold, double *slack, const int32_t *labels,
                             const AdditiveWeights *weights) {
    const AdditiveModel *model = fold->model;
    for (int32_t n = 0; n < model->node_count; n++) {
        const Class *class = &fold->classes[fold->class_of[n]];
        double gamma = additive_gather(fold, fold->class_of[n], weights);
        slack[fold->class_of[n]] +=
            (1 - gamma * class->edges[1]) * (fold->phi[labels[n]] - additive_least_phi(fold, class));
    }
    for (int32_t e = 0; e < model->edge_count; e++) {
        double here = edge_slack(fold, e, labels, weights);
        slack[fold->class_of[model->edges[e].made]] += here;
        slack[fold->class_of[model->edges[e].taken]] += here;
    }
}

static int compare_changes(const void *a, const void *b) {
    const AdditiveChange *x = a, *y = b;
    if (x->slack != y->slack) return x->slack < y->slack ? 1 : -1;
    return x->node != y->node ? (x->node > y->node) - (x->node < y->node) : 0;
}

/* The label of a class that costs least by its messages, beside two others. */
static int32_t next_label(const AdditiveFold *fold, const Class *class, int32_t but, int32_t nor) {
    int32_t best = -1;
    for (int32_t label = 0; label < class->label_count; label++)
        if (label != but && label != nor && (best < 0 || fold->phi[label] < fold->phi[best])) best = label;
    return best;
}

AmStatus additive_changes(AdditiveChange **changes, int32_t *count, Arena *arena, AdditiveFold *fold,
                          const int32_t *labels, const AdditiveWeights *weights, AmError *error) {
    const AdditiveModel *model = fold->model;
    double *slack = ARENA_ARRAY(arena, double, fold->class_count + 1);
    bool *is_done = ARENA_ARRAY(arena, bool, fold->class_count + 1);
    *changes = ARENA_ARRAY(arena, AdditiveChange, 2 * fold->class_count + 1);
    *count = 0;
    if (arena->failed) return am_fail_memory(error, fold->class_count);
    find_class_slack(fold, slack, labels, weights);
    for (int32_t n = 0; n < model->node_count; n++) {
        int32_t c = fold->class_of[n], label = labels[n];
        if (is_done[c] || model->nodes[n].is_tensor || !(slack[c] > 0)) continue;
        is_done[c] = true;
        additive_gather(fold, c, weights);
        for (int32_t k = 0, before = -1; k < 2; k++) {
            int32_t other = next_label(fold, &fold->classes[c], label, before);
            if (other < 0) break;
            (*changes)[(*count)++] = (AdditiveChange){.node = n, .label = other, .slack = slack[c]};
            before = other;
        }
    }
    qsort(*changes, (size_t)*count, sizeof **changes, compare_changes);
    return AM_OK;
}

bool additive_is_alike(const AdditiveFold *fold, int32_t node, int32_t other) {
    return fold->class_of[node] == fold->class_of[other];
}
