/* Sum tree: draws an index with probability proportional to its mass in O(log n) (Schaul et al. 2016,
 * appendix B.2.1). A write climbs from the leaf to the root, a search descends from the root. */
#include "dqn/sum_tree.h"

#define MAX_CAPACITY (1 << 29)

AmStatus sum_tree_create(SumTree *tree, Arena *arena, int32_t capacity, AmError *error) {
    if (capacity < 1 || capacity > MAX_CAPACITY)
        return am_fail(error, AM_ERROR_USAGE, "", "replay: a capacity of %d; expected 1 to %d", capacity,
                       MAX_CAPACITY);
    int32_t width = 1;
    while (width < capacity) width *= 2;
    *tree = (SumTree){.capacity = capacity, .width = width};
    tree->nodes = ARENA_ARRAY(arena, double, 2 * (int64_t)width);
    if (!tree->nodes) return am_fail_memory(error, 2 * (int64_t)width * (int64_t)sizeof(double));
    return AM_OK;
}

void sum_tree_set(SumTree *tree, int32_t index, double mass) {
    int32_t node = tree->width + index;
    tree->nodes[node] = mass;
    for (node /= 2; node >= 1; node /= 2)
        tree->nodes[node] = tree->nodes[2 * node] + tree->nodes[2 * node + 1];
}

double sum_tree_get(const SumTree *tree, int32_t index) {
    return tree->nodes[tree->width + index];
}

double sum_tree_total(const SumTree *tree) {
    return tree->nodes[1];
}

int32_t sum_tree_find(const SumTree *tree, double position) {
    if (!(tree->nodes[1] > 0)) return -1;
    int32_t node = 1;
    while (node < tree->width) {
        double left = tree->nodes[2 * node], right = tree->nodes[2 * node + 1];
        node *= 2;
        if (right > 0 && (left <= 0 || position >= left)) {
            position -= left;
            node++;
        }
    }
    return node - tree->width;
}
