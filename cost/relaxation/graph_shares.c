/* Distributes the cost of resharding a tensor over its readers.
 *
 * The edges by which a tensor is read share the cost of resharding it from the state in which it is
 * kept to each needed state, once. The distribution is free for each state as long as the sum is at
 * most the cost: any shares give a valid bound. An edge whose share has slack, because another
 * choice costs it more, passes the slack to edges for which that choice is decisive. */
#include <math.h>

#include "base/extremes.h"
#include "cost/relaxation/graph_fold.h"

/* The fraction of an edge's slack that is passed on at once; and the rounding error allowed in
 * shares. */
#define SHARE_STEP   0.5
#define SHARE_MARGIN 1e-5

static int32_t producer_end(const Group *group) {
    return group->is_transposed ? 1 : 0;
}

/* Computes fold->slack: the amount by which each cell of a group can decrease without changing the
 * bound. Messages are seen from end 1, as in evaluate(fold, 1). `gamma`: of that end, whose messages are
 * gathered. */
static void find_slack(const ShardingGraphFold *fold, Group *group, double gamma,
                       const ShardingGraphWeights *weights) {
    const End *first = &group->ends[0], *second = &group->ends[1];
    double *kept = fold->best, *given = fold->best + RESHARD_STATES + 1;
    for (int32_t b = 0; b < second->state_count; b++) kept[b] = INFINITY;
    for (int32_t a = 0; a < first->state_count; a++) given[a] = -INFINITY;
    for (int32_t label = 0; label < second->label_count; label++)
        kept[second->state[label]] =
            smaller(kept[second->state[label]], gamma * fold->phi[label] - second->message[label]);
    for (int32_t label = 0; label < first->label_count; label++)
        given[first->state[label]] = larger(given[first->state[label]], first->message[label]);
    int32_t minor = second->state_count, cells = first->state_count * minor;
    float least = INFINITY;
    for (int32_t a = 0; a < first->state_count; a++)
        for (int32_t b = 0; b < minor; b++) {
            double paid = weights->communication * group->seconds[a * minor + b];
            float slack = (float)(kept[b] - given[a] + paid);
            group->slack[a * minor + b] = slack;
            least = slack < least ? slack : least;
        }
    for (int32_t k = 0; k < cells; k++) group->slack[k] -= least;
}

/* Returns the states that sharers need: bits. */
static uint64_t needed_states(const ShardingGraphFold *fold, int32_t sharers) {
    uint64_t needed = 0;
    for (int32_t k = 0; k < sharers; k++) {
        const Group *group = &fold->groups[fold->incidences[fold->sharers[k]].group];
        const End *reader = &group->ends[1 - producer_end(group)];
        for (int32_t s = 0; s < reader->state_count; s++)
            if (reader->values[s] != RESHARD_ANY) needed |= (uint64_t)1 << reader->values[s];
    }
    return needed;
}

/* Lists the sharers that need a state, in fold->sharing. Returns their number. */
static int32_t list_sharing(ShardingGraphFold *fold, int32_t sharers, ReshardState needed) {
    int32_t count = 0;
    for (int32_t k = 0; k < sharers; k++) {
        const Incidence *incidence = &fold->incidences[fold->sharers[k]];
        const Group *group = &fold->groups[incidence->group];
        int32_t state = group->ends[1 - producer_end(group)].number[needed];
        int32_t minor = group->ends[1].state_count;
        int32_t first = group->is_transposed ? state * minor : state;
        if (state < 0) continue;
        fold->sharing[count++] = (Sharing){.seconds = &group->seconds[first],
                                           .alone = &group->alone[first],
                                           .slack = &group->slack[first],
                                           .stride = group->is_transposed ? 1 : minor,
                                           .times = incidence->count};
    }
    return count;
}

/* Lists the cells of the sharers for one kept state in fold->cells. Returns their number. */
static int32_t list_cells(ShardingGraphFold *fold, int32_t sharing, int32_t kept) {
    int32_t count = 0;
    for (int32_t k = 0; k < sharing; k++) {
        const Sharing *of = &fold->sharing[k];
        int32_t cell = kept * of->stride;
        if (!(of->alone[cell] > 0)) continue;
        fold->cells[count++] = (Cell){.seconds = &of->seconds[cell],
                                      .alone = of->alone[cell],
                                      .slack = of->slack[cell],
                                      .times = of->times};
    }
    return count;
}

static double sum_shares(const Cell *cells, int32_t count) {
    double sum = 0;
    for (int32_t k = 0; k < count; k++) sum += cells[k].times * (double)*cells[k].seconds / cells[k].alone;
    return sum;
}

static void share_cells(Cell *cells, int32_t count, double weight) {
    double wanting = 0, all = 0;
    for (int32_t k = 0; k < count; k++) {
        double spare = smaller(*cells[k].seconds, cells[k].slack / weight) * SHARE_STEP;
        *cells[k].seconds -= (float)larger(spare, 0);
        all += cells[k].times;
        if (cells[k].slack <= 0) wanting += cells[k].times;
    }
    double left = (1 - SHARE_MARGIN - sum_shares(cells, count)) / (wanting > 0 ? wanting : all);
    for (int32_t k = 0; k < count; k++)
        if (wanting == 0 || cells[k].slack <= 0)
            *cells[k].seconds = (float)larger(*cells[k].seconds + left * cells[k].alone, 0);
}

void split_reshard_cost(ShardingGraphFold *fold, const ShardingGraphWeights *weights) {
    if (weights->communication <= 0) return;
    int32_t gathered = -1;
    double gamma = 0;
    for (int32_t g = 0; g < fold->group_count; g++) {
        Group *group = &fold->groups[g];
        if (!group->alone) continue;
        if (group->ends[1].main != gathered)
            gamma = sharding_graph_gather(fold, gathered = group->ends[1].main, weights);
        find_slack(fold, group, gamma, weights);
    }
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t c = 0; c < fold->class_count; c++) {
            const Class *class = &fold->classes[c];
            int32_t sharers = 0; /* incidences by which its tensor is read and paid for together */
            for (int32_t k = class->first_incidence; k < class->first_incidence + class->incidence_count;
                 k++) {
                const Group *of = &fold->groups[fold->incidences[k].group];
                if (of->alone && fold->incidences[k].end == producer_end(of)) fold->sharers[sharers++] = k;
            }
            if (sharers == 0) continue;
            const Group *group = &fold->groups[fold->incidences[fold->sharers[0]].group];
            int32_t states = group->ends[producer_end(group)].state_count;
            for (uint64_t left = needed_states(fold, sharers); left != 0; left &= left - 1) {
                int32_t sharing = list_sharing(fold, sharers, (ReshardState)__builtin_ctzll(left));
                for (int32_t kept = 0; kept < states; kept++) {
                    int32_t count = list_cells(fold, sharing, kept);
                    if (pass == 0 && count > 0) share_cells(fold->cells, count, weights->communication);
                    else {
                        /* Nearly equal classes share cells of groups: the gain of one class may be too much
                         * for another. */
                        double sum = sum_shares(fold->cells, count);
                        for (int32_t k = 0; k < count && sum > 1; k++)
                            *fold->cells[k].seconds *= (float)((1 - SHARE_MARGIN) / sum);
                    }
                }
            }
        }
}
