/* A lower bound of the sharding graph by message passing.
 *
 * Nodes are ordered as the program is. With phi(u) = cost(u) + all messages to u and gamma(u) = 1 / max(edges
 * forward, edges back), an edge (u, v) passes forward
 *
 *     to_v(b) = min over a of [ gamma(u) phi(u)(a) - to_u(a) + cost(u, v)(a, b) ]
 *
 * and back alike. Whatever the messages are,
 *
 *     sum over u of (1 - gamma(u) edges forward) min phi(u)
 *   + sum over (u, v) of min over a, b of [ gamma(u) phi(u)(a) - to_u(a) + cost(a, b) - to_v(b) ]
 *
 * is at most the cost of every labelling, since each message is added once and taken away once.
 */
#include <math.h>

#include "base/extremes.h"
#include "cost/relaxation/graph_fold.h"

enum { SWEEPS_PER_BOUND = 4 };

/* A gain of the bound, by so many sweeps as may be, that is not worth going on for. */
#define LEAST_GAIN 0.04

double sharding_graph_gather(const ShardingGraphFold *fold, int32_t c, const ShardingGraphWeights *weights) {
    const Class *class = &fold->classes[c];
    double weight = weights->compute;
    for (int32_t label = 0; label < class->label_count; label++)
        fold->phi[label] = class->seconds ? weight * class->seconds[label] : 0;
    for (int32_t k = class->first_incidence; k < class->first_incidence + class->incidence_count; k++) {
        const Incidence *incidence = &fold->incidences[k];
        const double *message = fold->groups[incidence->group].ends[incidence->end].message;
        for (int32_t label = 0; label < class->label_count; label++)
            fold->phi[label] += incidence->count * message[label];
    }
    int32_t most = class->edges[0] > class->edges[1] ? class->edges[0] : class->edges[1];
    return most > 0 ? 1.0 / most : 0;
}

#define INLINED static inline __attribute__((always_inline))

enum { LANES = 4 };
typedef double Lanes __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
typedef float FloatLanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int64_t LaneMask __attribute__((vector_size(8 * LANES), aligned(8)));

/* Lowers sums to their minimum by way of one state. */
INLINED void lower_all(double *sums, double base, const float *seconds, int32_t count, double weight) {
    for (int32_t k = 0; k < count; k++) sums[k] = smaller(sums[k], base + weight * seconds[k]);
}

/* Returns the least sum. Compilers do not divide a minimum among lanes themselves. */
INLINED double least_sum(const double *base, const float *seconds, int32_t count, double weight) {
    Lanes least = {INFINITY, INFINITY, INFINITY, INFINITY};
    int32_t in_lanes = count - count % LANES;
    for (int32_t k = 0; k < in_lanes; k += LANES) {
        Lanes sums = *(const Lanes *)&base[k] +
                     weight * __builtin_convertvector(*(const FloatLanes *)&seconds[k], Lanes);
        LaneMask less = sums < least;
        least = (Lanes)((less & (LaneMask)sums) | (~less & (LaneMask)least));
    }
    for (int32_t k = in_lanes; k < count; k++) least[0] = smaller(least[0], base[k] + weight * seconds[k]);
    return smaller(smaller(least[0], least[1]), smaller(least[2], least[3]));
}

INLINED double *send(const ShardingGraphFold *fold, const Group *group, int32_t end, double gamma,
                     double weight) {
    const End *from = &group->ends[end], *to = &group->ends[1 - end];
    double *least = fold->best, *sent = fold->best + RESHARD_STATES + 1;
    for (int32_t a = 0; a < from->state_count; a++) least[a] = INFINITY;
    for (int32_t label = 0; label < from->label_count; label++) {
        double value = gamma * fold->phi[label] - from->message[label];
        if (value < least[from->state[label]]) least[from->state[label]] = value;
    }
    for (int32_t b = 0; b < to->state_count; b++) sent[b] = INFINITY;
    int32_t minor = group->ends[1].state_count;
    const float *row = group->seconds;
    if (end == 0)
        for (int32_t a = 0; a < from->state_count; a++, row += minor)
            lower_all(sent, least[a], row, minor, weight);
    else
        for (int32_t b = 0; b < to->state_count; b++, row += minor)
            sent[b] = least_sum(least, row, minor, weight);
    return sent;
}

#if defined __x86_64__
__attribute__((target("avx2"))) static double *send_avx2(const ShardingGraphFold *fold, const Group *group,
                                                         int32_t end, double gamma, double weight) {
    return send(fold, group, end, gamma, weight);
}
#endif

double *sharding_graph_send(const ShardingGraphFold *fold, const Group *group, int32_t end, double gamma,
                            const ShardingGraphWeights *weights) {
#if defined __x86_64__
    if (__builtin_cpu_supports("avx2")) return send_avx2(fold, group, end, gamma, weights->communication);
#endif
    return send(fold, group, end, gamma, weights->communication);
}

/* Makes one sweep; `end` 0 forward, 1 back. */
static void sweep(ShardingGraphFold *fold, int32_t end, const ShardingGraphWeights *weights) {
    for (int32_t n = 0; n < fold->class_count; n++) {
        int32_t c = end == 0 ? n : fold->class_count - 1 - n;
        const Class *class = &fold->classes[c];
        double gamma = sharding_graph_gather(fold, c, weights);
        for (int32_t k = class->first_incidence; k < class->first_incidence + class->incidence_count; k++) {
            const Incidence *incidence = &fold->incidences[k];
            Group *group = &fold->groups[incidence->group];
            if (incidence->end != end || group->ends[end].main != c) continue;
            const double *sent = sharding_graph_send(fold, group, end, gamma, weights);
            End *to = &group->ends[1 - end];
            double least = INFINITY;
            for (int32_t b = 0; b < to->state_count; b++) least = smaller(least, sent[b]);
            for (int32_t label = 0; label < to->label_count; label++)
                to->message[label] = sent[to->state[label]] - least;
        }
    }
}

double sharding_graph_least_phi(const ShardingGraphFold *fold, const Class *class) {
    double least = INFINITY;
    for (int32_t label = 0; label < class->label_count; label++) least = smaller(least, fold->phi[label]);
    return class->label_count > 0 ? least : 0;
}

/* Returns the bound that the messages prove. Pairs use the phi of end `end`. */
static double bound_of_messages(const ShardingGraphFold *fold, int32_t end,
                                const ShardingGraphWeights *weights) {
    double bound = 0;
    for (int32_t c = 0; c < fold->class_count; c++) {
        const Class *class = &fold->classes[c];
        double gamma = sharding_graph_gather(fold, c, weights);
        bound += class->count * (1 - gamma * class->edges[end]) * sharding_graph_least_phi(fold, class);
    }
    int32_t gathered = -1;
    double gamma = 0;
    for (int32_t p = 0; p < fold->pair_count; p++) {
        const Pair *pair = &fold->pairs[p];
        const Group *group = &fold->groups[pair->group];
        int32_t c = end == 0 ? pair->first : pair->second;
        if (c != gathered) gamma = sharding_graph_gather(fold, gathered = c, weights);
        const double *sent = sharding_graph_send(fold, group, end, gamma, weights);
        const End *to = &group->ends[1 - end];
        double least = INFINITY;
        for (int32_t label = 0; label < to->label_count; label++)
            least = smaller(least, sent[to->state[label]] - to->message[label]);
        bound += pair->count * least;
    }
    return bound;
}

double sharding_graph_bound(ShardingGraphFold *fold, const ShardingGraphWeights *weights, int32_t sweeps) {
    double best = 0;
    for (int32_t k = 0; k < sweeps && !(fold->stop && stop_wanted(fold->stop)); k++) {
        sweep(fold, 0, weights);
        sweep(fold, 1, weights);
        if (k % SWEEPS_PER_BOUND != SWEEPS_PER_BOUND - 1 && k != sweeps - 1) continue;
        double bound = bound_of_messages(fold, 1, weights);
        split_reshard_cost(fold, weights);
        bool is_settled = bound <= best * (1 + LEAST_GAIN / sweeps);
        best = fmax(best, bound);
        if (is_settled && k > 2 * SWEEPS_PER_BOUND) break;
    }
    return best;
}
