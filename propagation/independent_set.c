/* Maximum weight independent set, component by component.
 *
 * A connected component of at most 64 groups is solved by branch and bound on
 * bit masks: heaviest group first, taken or not, cut where even all that is
 * left does not reach the best so far. Larger components, and searches that
 * take too many steps, give the best set found (greedily, heaviest first).
 */
#include "propagation/independent_set.h"

#define EXACT_COUNT 64
#define EXACT_STEPS 2000000

typedef struct Search {
    int32_t count;
    int64_t weights[EXACT_COUNT];
    uint64_t excludes[EXACT_COUNT];
    uint64_t best;
    int64_t best_weight;
    int32_t steps;
} Search;

static void branch(Search *search, int32_t next, uint64_t taken, uint64_t allowed, int64_t weight) {
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

/* Everything connected to `first`, in `component`. */
static int32_t gather(const bool *excludes, int32_t count, int32_t first, bool *is_seen, int32_t *component) {
    int32_t found = 0;
    component[found++] = first;
    is_seen[first] = true;
    for (int32_t k = 0; k < found; k++) {
        for (int32_t other = 0; other < count; other++) {
            if (is_seen[other] || !excludes[(size_t)component[k] * (size_t)count + (size_t)other]) continue;
            is_seen[other] = true;
            component[found++] = other;
        }
    }
    return found;
}

static void sort_by_weight(int32_t *component, int32_t count, const int64_t *weights) {
    for (int32_t k = 1; k < count; k++) {
        int32_t group = component[k], at = k;
        for (; at > 0; at--) {
            int32_t before = component[at - 1];
            bool is_in_order =
                weights[before] > weights[group] || (weights[before] == weights[group] && before < group);
            if (is_in_order) break;
            component[at] = before;
        }
        component[at] = group;
    }
}

AmStatus independent_set(bool *is_chosen, bool *is_exact, const bool *excludes, const int64_t *weights,
                         int32_t count, AmError *error) {
    Arena scratch = {0};
    bool *is_seen = ARENA_ARRAY(&scratch, bool, count);
    int32_t *component = ARENA_ARRAY(&scratch, int32_t, count);
    if (scratch.failed) {
        arena_free(&scratch);
        return am_fail_memory(error, (int64_t)count * 5);
    }
    *is_exact = true;
    for (int32_t first = 0; first < count; first++) {
        if (is_seen[first]) continue;
        int32_t size = gather(excludes, count, first, is_seen, component);
        sort_by_weight(component, size, weights);
        if (size > EXACT_COUNT) {
            *is_exact = false;
            for (int32_t k = 0; k < size; k++) {
                bool fits = true;
                for (int32_t other = 0; other < k; other++)
                    fits &= !is_chosen[component[other]] ||
                            !excludes[(size_t)component[k] * (size_t)count + (size_t)component[other]];
                is_chosen[component[k]] = fits;
            }
            continue;
        }
        Search search = {.count = size};
        for (int32_t k = 0; k < size; k++) {
            search.weights[k] = weights[component[k]];
            for (int32_t other = 0; other < size; other++)
                if (excludes[(size_t)component[k] * (size_t)count + (size_t)component[other]])
                    search.excludes[k] |= (uint64_t)1 << other;
        }
        branch(&search, 0, 0, size == EXACT_COUNT ? UINT64_MAX : ((uint64_t)1 << size) - 1, 0);
        *is_exact &= search.steps <= EXACT_STEPS;
        for (int32_t k = 0; k < size; k++) is_chosen[component[k]] = search.best >> k & 1;
    }
    arena_free(&scratch);
    return AM_OK;
}
