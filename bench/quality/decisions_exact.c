/* The exact optimum of decision problems by elimination, and branch and bound.
 *
 * Tables over the frontier of open edges give the least cost of the remaining decisions for a price per byte
 * of memory: a Lagrangian bound. branch() tries the strategies of each decision in the order of this bound,
 * and cuts those that cannot be better than the best plan.
 */
#include "bench/quality/decisions_exact.h"

#include <math.h>

#define PRICES       5
#define PRICE_SEARCH 40 /* steps of the search for the best price of a byte */

static int32_t table_index(const DecisionBound *bound, const DecisionPlan *plan, int32_t p) {
    int32_t index = 0;
    for (int32_t f = 0; f < bound->width[p]; f++) index |= plan->choice[bound->frontier[p][f]] << (3 * f);
    return index;
}

AmStatus decision_bound_create(DecisionBound *bound, Arena *arena, const Decisions *decisions,
                               AmError *error) {
    *bound = (DecisionBound){.count = decisions->count};
    for (int32_t p = 0; p <= decisions->count; p++) {
        for (int32_t j = 0; j < p; j++) {
            bool is_needed = false;
            for (int32_t e = decisions->first_edge[p]; e < decisions->edge_count; e++)
                is_needed = is_needed || decisions->edges[e].from == j;
            if (!is_needed) continue;
            if (bound->width[p] == DECISIONS_MOST_FRONTIER)
                return am_fail(error, AM_ERROR_USAGE, "",
                               "decisions from %d on exchange data with more than %d earlier ones", p,
                               DECISIONS_MOST_FRONTIER);
            bound->frontier[p][bound->width[p]++] = (int8_t)j;
        }
        int64_t size = (int64_t)1 << (3 * bound->width[p]);
        bound->table[p] = ARENA_ARRAY(arena, double, size);
        if (!bound->table[p]) return am_fail_memory(error, size * (int64_t)sizeof(double));
    }
    return AM_OK;
}

/* Least of decision p and those after it for one set of choices of its frontier. */
static double least_of(const DecisionBound *bound, const Decisions *decisions, DecisionPlan *plan,
                       int32_t p) {
    double values[DECISIONS_MOST_STRATEGIES], least = INFINITY;
    int32_t strategies = decisions->strategies[p], width = bound->width[p + 1];
    for (int32_t k = 0; k < strategies; k++)
        values[k] = decisions->seconds[p][k] + bound->byte_price * decisions->bytes[p][k];
    for (int32_t e = decisions->first_edge[p]; e < decisions->first_edge[p + 1]; e++) {
        const double *reshard = decisions->edges[e].seconds[plan->choice[decisions->edges[e].from]];
        for (int32_t k = 0; k < strategies; k++) values[k] += reshard[k];
    }
    /* p itself can only be the last in the next frontier. */
    bool is_last = width > 0 && bound->frontier[p + 1][width - 1] == p;
    plan->choice[p] = 0;
    const double *after = &bound->table[p + 1][table_index(bound, plan, p + 1)];
    int32_t stride = is_last ? 1 << (3 * (width - 1)) : 0;
    for (int32_t k = 0; k < strategies; k++) {
        double value = values[k] + after[k * stride];
        if (value < least) least = value;
    }
    plan->choice[p] = DECISION_OPEN;
    return least;
}

void decision_bound_fill(DecisionBound *bound, const Decisions *decisions, double byte_price) {
    bound->byte_price = byte_price;
    bound->table[decisions->count][0] = 0;
    for (int32_t p = decisions->count - 1; p >= 0; p--) {
        DecisionPlan plan = decision_plan_open();
        const int8_t *frontier = bound->frontier[p];
        int32_t width = bound->width[p], f = 0;
        for (int32_t j = 0; j < width; j++) plan.choice[frontier[j]] = 0;
        do {
            bound->table[p][table_index(bound, &plan, p)] = least_of(bound, decisions, &plan, p);
            for (f = 0; f < width && ++plan.choice[frontier[f]] == decisions->strategies[frontier[f]]; f++)
                plan.choice[frontier[f]] = 0;
        } while (f < width);
    }
}

double decision_bound_after(const DecisionBound *bound, const DecisionPlan *plan, int32_t p) {
    return bound->table[p][table_index(bound, plan, p)];
}

static double bound_at(DecisionBound *bound, const Decisions *decisions, double byte_price) {
    decision_bound_fill(bound, decisions, byte_price);
    return bound->table[0][0] - byte_price * decisions->memory;
}

/* The price per byte at which the bound of the open plan is largest. */
static double decision_bound_best_price(DecisionBound *bound, const Decisions *decisions) {
    /* Above this price the least memory is worth any seconds. */
    double most_seconds = 0, least_difference = INFINITY;
    for (int32_t i = 0; i < decisions->count; i++)
        for (int32_t k = 0; k < decisions->strategies[i]; k++) {
            most_seconds = fmax(most_seconds, decisions->seconds[i][k]);
            for (int32_t other = 0; other < k; other++) {
                double difference = fabs(decisions->bytes[i][k] - decisions->bytes[i][other]);
                if (difference > 0) least_difference = fmin(least_difference, difference);
            }
        }
    double low = 0, high = isfinite(least_difference) ? most_seconds / least_difference : 0;
    for (int32_t step = 0; step < PRICE_SEARCH && high > 0; step++) { /* concave in the price */
        double left = low + (high - low) * 0.382, right = low + (high - low) * 0.618;
        if (bound_at(bound, decisions, left) < bound_at(bound, decisions, right)) low = left;
        else high = right;
    }
    return (low + high) / 2;
}

typedef struct Tree {
    const Decisions *decisions;
    DecisionBound bounds[PRICES];
    DecisionPlan plan, best_plan;
    double best;
    int64_t nodes, most_nodes;
} Tree;

/* Bound of the tree's plan, whose decisions before p are taken at these seconds and bytes. */
static double bound_of(const Tree *tree, int32_t p, double seconds, double bytes) {
    double most = 0;
    for (int32_t b = 0; b < PRICES; b++) {
        const DecisionBound *bound = &tree->bounds[b];
        double value = seconds + decision_bound_after(bound, &tree->plan, p) -
                       bound->byte_price * (tree->decisions->memory - bytes);
        if (value > most) most = value;
    }
    return most;
}

/* Tries the strategies of decision p, the most promising first. False: too many nodes. */
static bool branch(Tree *tree, int32_t p, double seconds, double bytes) {
    const Decisions *decisions = tree->decisions;
    if (p == decisions->count) {
        if (seconds < tree->best) tree->best = seconds, tree->best_plan = tree->plan;
        return true;
    }
    double bounds[DECISIONS_MOST_STRATEGIES], after[DECISIONS_MOST_STRATEGIES];
    for (int32_t k = 0; k < decisions->strategies[p]; k++) {
        tree->plan.choice[p] = (int8_t)k;
        after[k] = seconds + decisions->seconds[p][k];
        for (int32_t e = decisions->first_edge[p]; e < decisions->first_edge[p + 1]; e++)
            after[k] += decisions->edges[e].seconds[tree->plan.choice[decisions->edges[e].from]][k];
        double more = bytes + decisions->bytes[p][k];
        bool fits = more + decisions->least_after[p + 1] <= decisions->memory;
        bounds[k] = fits ? bound_of(tree, p + 1, after[k], more) : INFINITY;
    }
    for (int32_t iteration = 0; iteration < decisions->strategies[p]; iteration++) {
        int32_t next = 0;
        for (int32_t k = 1; k < decisions->strategies[p]; k++)
            if (bounds[k] < bounds[next]) next = k;
        if (bounds[next] >= tree->best * (1 - 1e-12)) break;
        if (++tree->nodes > tree->most_nodes) return false;
        tree->plan.choice[p] = (int8_t)next;
        bounds[next] = INFINITY;
        if (!branch(tree, p + 1, after[next], bytes + decisions->bytes[p][next])) return false;
    }
    tree->plan.choice[p] = DECISION_OPEN;
    return true;
}

AmStatus decisions_exact(DecisionPlan *plan, double *seconds, const Decisions *decisions, int64_t most_nodes,
                         AmError *error) {
    static const double share[PRICES] = {1, 0, 0.5, 0.8, 1.3};
    Tree tree = {.decisions = decisions,
                 .plan = decision_plan_open(),
                 .best_plan = decision_plan_open(),
                 .best = INFINITY,
                 .most_nodes = most_nodes};
    Arena arena = {0};
    AmStatus status = AM_OK;
    for (int32_t b = 0; b < PRICES; b++)
        TRY_OR_FAIL(decision_bound_create(&tree.bounds[b], &arena, decisions, error));
    double price = decision_bound_best_price(&tree.bounds[0], decisions);
    for (int32_t b = 0; b < PRICES; b++) decision_bound_fill(&tree.bounds[b], decisions, share[b] * price);
    if (!branch(&tree, 0, 0, 0))
        status = am_fail(error, AM_ERROR_RUNTIME, "", "no optimum proven within %lld nodes",
                         (long long)most_nodes);
    else if (!isfinite(tree.best))
        status = am_fail(error, AM_ERROR_INFEASIBLE, "",
                         "the least memory of all decisions is above %.6g bytes", decisions->memory);
    *plan = tree.best_plan;
    *seconds = tree.best;
fail:
    arena_free(&arena);
    return status;
}
