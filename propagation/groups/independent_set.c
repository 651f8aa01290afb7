/* Maximum weight independent set, component by component.
 *
 * A connected component of at most 64 groups is solved by branch and bound on
 * bit masks: heaviest group first, taken or not, cut where even all that is
 * left does not reach the best so far. Larger components, and searches that
 * take too many steps, give the best set found (greedily, heaviest first).
 */
#include "propagation/groups/independent_set.h"

#include <stdlib.h>

#define EXACT_COUNT 64
#define EXACT_STEPS 2000000

typedef struct SetSearch {
    int32_t count;
    int64_t weights[EXACT_COUNT];
    uint64_t excludes[EXACT_COUNT];
    uint64_t best;
    int64_t best_weight;
    int32_t steps;
} SetSearch;

/* Takes or leaves the next group; a branch ends where even all remaining weights cannot beat the best set. */
static void branch(SetSearch *search, int32_t next, uint64_t taken, uint64_t allowed, int64_t weight) {
    if (weight > search->best_weight) {
        search->best_weight = weight;
        search->best = taken;
    }
    while (next < search->count && !(allowed >> next & 1)) next++;
    int64_t rest = 0;
    for (int32_t k = next; k < search->count; k++) rest += allowed >> k & 1 ? search->weights[k] : 0;
    if (next == search->count || weight + rest <= search->best_weight || ++search->steps > EXACT_STEPS)
        return;
    uint64_t self = (uint64_t)1 << next;
    branch(search, next + 1, taken | self, allowed & ~search->excludes[next], weight + search->weights[next]);
    branch(search, next + 1, taken, allowed & ~self, weight);
}

/* A group of a component, as sorted. */
typedef struct Weighted {
    int64_t weight;
    int32_t group;
} Weighted;

/* Lists everything connected to `first` in `component`. */
static int32_t gather(const ExclusionGraph *graph, int32_t first, bool *is_seen, Weighted *component) {
    int32_t found = 0;
    component[found++] = (Weighted){graph->weights[first], first};
    is_seen[first] = true;
    for (int32_t k = 0; k < found; k++) {
        int32_t group = component[k].group;
        for (int32_t e = graph->first[group]; e < graph->first[group + 1]; e++) {
            int32_t other = graph->others[e];
            if (is_seen[other]) continue;
            is_seen[other] = true;
            component[found++] = (Weighted){graph->weights[other], other};
        }
    }
    return found;
}

/* Compares for sorting: heaviest first, then earliest. */
static int compare_weighted(const void *left, const void *right) {
    const Weighted *a = left, *b = right;
    if (a->weight != b->weight) return a->weight > b->weight ? -1 : 1;
    return (a->group > b->group) - (a->group < b->group);
}

static bool choose_exactly(const ExclusionGraph *graph, const Weighted *component, int32_t size,
                           int32_t *place, bool *is_chosen) {
    SetSearch search = {.count = size};
    for (int32_t k = 0; k < size; k++) place[component[k].group] = k;
    for (int32_t k = 0; k < size; k++) {
        int32_t group = component[k].group;
        search.weights[k] = component[k].weight;
        for (int32_t e = graph->first[group]; e < graph->first[group + 1]; e++)
            search.excludes[k] |= (uint64_t)1 << place[graph->others[e]];
    }
    branch(&search, 0, 0, size == EXACT_COUNT ? UINT64_MAX : ((uint64_t)1 << size) - 1, 0);
    for (int32_t k = 0; k < size; k++) is_chosen[component[k].group] = search.best >> k & 1;
    return search.steps <= EXACT_STEPS;
}

AmStatus independent_set(bool *is_chosen, bool *is_exact, const ExclusionGraph *graph, AmError *error) {
    Arena scratch = {0};
    bool *is_seen = ARENA_ARRAY(&scratch, bool, graph->count + 1);
    int32_t *place = ARENA_ARRAY(&scratch, int32_t, graph->count + 1);
    Weighted *component = ARENA_ARRAY(&scratch, Weighted, graph->count + 1);
    AmStatus status = scratch.failed ? am_fail_memory(error, (int64_t)graph->count * 21) : AM_OK;
    *is_exact = true;
    for (int32_t first = 0; status == AM_OK && first < graph->count; first++) {
        if (is_seen[first]) continue;
        int32_t size = gather(graph, first, is_seen, component);
        qsort(component, (size_t)size, sizeof *component, compare_weighted);
        if (size > EXACT_COUNT) {
            *is_exact = false;
            /* Each node that no chosen one excludes is chosen. */
            for (int32_t k = 0; k < size; k++) {
                int32_t group = component[k].group;
                bool fits = true;
                for (int32_t e = graph->first[group]; e < graph->first[group + 1]; e++)
                    fits = fits && !is_chosen[graph->others[e]];
                is_chosen[group] = fits;
            }
        } else if (!choose_exactly(graph, component, size, place, is_chosen)) {
            *is_exact = false;
        }
    }
    arena_free(&scratch);
    return status;
}
