/* The flows of each pattern, one function a pattern; the fractions and messages
 * are those of the header's table. */
#include "cost/collective/collective_pattern.h"

#include <math.h>

enum { MOST_DIRECT = 16 }; /* beyond it the messages of all pairs delay one another */

/* Adds a transfer of a fraction of S from device a to b. Returns the latency of the way. */
static double add_transfer(CollectiveWalk *walk, int32_t a, int32_t b, double fraction) {
    return walk->follows ? edge_loads_follow(walk->loads) : edge_loads_add(walk->loads, a, b, fraction);
}

static void raise_to(CollectiveWalk *walk, int32_t messages, double latency) {
    if (messages > walk->messages) walk->messages = messages;
    if (latency > walk->latency) walk->latency = latency;
}

static bool is_power_of_two(int32_t count) {
    return count > 0 && (count & (count - 1)) == 0;
}

static int32_t logarithm(int32_t count) {
    int32_t bits = 0;
    while (count >> (bits + 1)) bits++;
    return bits;
}

static int32_t part_size(const CollectiveGroup *group, int32_t s) {
    return group->first[s + 1] - group->first[s];
}

static bool is_hierarchical(const CollectiveGroup *group) {
    return group->parts > 1 && group->most > 1;
}

/* Returns the devices at place j of each part. */
static const int32_t *column_of(const CollectiveGroup *group, int32_t j) {
    for (int32_t s = 0; s < group->parts; s++) group->column[s] = group->members[group->first[s] + j];
    return group->column;
}

static void walk_ring(CollectiveWalk *walk, const int32_t *list, int32_t count, double fraction) {
    double sum = 0, least = 0;
    if (count < 2) return;
    for (int32_t k = 0; k < count; k++) {
        double latency = add_transfer(walk, list[k], list[(k + 1) % count], fraction);
        if (k == 0 || latency < least) least = latency;
        sum += latency;
    }
    raise_to(walk, count - 1, sum - least);
}

/* Walks halving: in step k half of the remaining bytes goes to the device at distance 2^k. */
static void walk_halving(CollectiveWalk *walk, const int32_t *list, int32_t count, int32_t step,
                         double fraction) {
    int32_t distance = 1 << step;
    for (int32_t k = 0; k < count; k++)
        raise_to(walk, 1, add_transfer(walk, list[k], list[k ^ distance], fraction / (2 * (double)distance)));
}

static int32_t one_step(const CollectiveGroup *group) {
    (void)group;
    return 1;
}

static int32_t hierarchical_step(const CollectiveGroup *group) {
    return is_hierarchical(group) ? 1 : 0;
}

static void ring(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    double n = group->devices;
    walk_ring(walk, group->members, group->devices, (n - 1) / n);
}

static int32_t rings_steps(const CollectiveGroup *group) {
    return group->ring_count > 0 ? 1 : 0;
}

/* Walks all rings of the group at once, half of the bytes in each direction. */
static void rings(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    int32_t n = group->devices;
    double fraction = (n - 1) / (double)n / (2 * group->ring_count), slowest = 0;
    for (int32_t r = 0; r < group->ring_count; r++) {
        const int32_t *ring = group->rings + r * n;
        double sum = 0, least = INFINITY;
        for (int32_t k = 0; k < n; k++) {
            double latency = add_transfer(walk, ring[k], ring[(k + 1) % n], fraction);
            add_transfer(walk, ring[(k + 1) % n], ring[k], fraction);
            sum += latency;
            if (latency < least) least = latency;
        }
        if (sum - least > slowest) slowest = sum - least;
    }
    raise_to(walk, n - 1, slowest);
}

static int32_t halving_steps(const CollectiveGroup *group) {
    return is_power_of_two(group->devices) && !group->is_vast ? logarithm(group->devices) : 0;
}

static void halving(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    walk_halving(walk, group->members, group->devices, step, 1);
}

/* Devices after the first `least` of a part send their bytes to those, round-robin. */
static void hand_to_first(CollectiveWalk *walk, const CollectiveGroup *group, int32_t s) {
    int32_t size = part_size(group, s), heads = group->least;
    const int32_t *list = group->members + group->first[s];
    double latency = 0;
    for (int32_t k = heads; k < size; k++) {
        double way = add_transfer(walk, list[k], list[k % heads], 1 / (double)size);
        if (way > latency) latency = way;
    }
    int32_t messages = (size - 1) / heads;
    raise_to(walk, messages, messages * latency);
}

/* Returns the steps of the ring inside a part: a second one where parts have unequal numbers. */
static int32_t inside_ring_steps(const CollectiveGroup *group) {
    return !is_hierarchical(group) ? 0 : group->least < group->most ? 2 : 1;
}

static void inside_ring(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    for (int32_t s = 0; s < group->parts; s++) {
        double g = part_size(group, s);
        if (step == 0) walk_ring(walk, group->members + group->first[s], part_size(group, s), (g - 1) / g);
        else hand_to_first(walk, group, s);
    }
}

static int32_t inside_halving_steps(const CollectiveGroup *group) {
    bool is_even = is_hierarchical(group) && group->least == group->most && is_power_of_two(group->most);
    return is_even ? logarithm(group->most) : 0;
}

static void inside_halving(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    for (int32_t s = 0; s < group->parts; s++)
        walk_halving(walk, group->members + group->first[s], part_size(group, s), step, 1);
}

static void across_ring(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    double m = group->parts;
    for (int32_t j = 0; j < group->least; j++)
        walk_ring(walk, column_of(group, j), group->parts, (m - 1) / m / group->least);
}

static int32_t across_halving_steps(const CollectiveGroup *group) {
    bool is_used = is_hierarchical(group) && is_power_of_two(group->parts) && !group->is_vast;
    return is_used ? logarithm(group->parts) : 0;
}

static void across_halving(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    for (int32_t j = 0; j < group->least; j++)
        walk_halving(walk, column_of(group, j), group->parts, step, 1 / (double)group->least);
}

/* Returns the parent in an in-order binary tree over 0 .. count-1: odd numbers are leaves, 0 is the root. */
static int32_t parent_of(int32_t k, int32_t count) {
    int32_t lowest = k & -k, parent = (k ^ lowest) | (lowest << 1);
    return parent < count ? parent : k ^ lowest;
}

static double walk_up_and_down(CollectiveWalk *walk, int32_t a, int32_t b, double fraction) {
    return add_transfer(walk, a, b, fraction) + add_transfer(walk, b, a, fraction);
}

/* Returns the rank in the second tree: counted backwards where the number is even, else from one further on.
 * A leaf of one tree is then no leaf of the other. */
static int32_t second_tree(int32_t k, int32_t count) {
    return count % 2 == 0 ? count - 1 - k : (k + 1) % count;
}

/* Walks a tree and its mirror image that begin at place `place` of each part and move 2 x `fraction` of
 * S. */
static void walk_tree(CollectiveWalk *walk, const CollectiveGroup *group, int32_t place, double fraction) {
    int32_t parts = group->parts, deepest = 0;
    double chain = 0, slowest = 0;
    for (int32_t p = 0; p < parts; p++) {
        int32_t size = part_size(group, p);
        const int32_t *list = group->members + group->first[p];
        double latency = 0;
        for (int32_t k = 1; k < size; k++)
            latency +=
                walk_up_and_down(walk, list[(place + k) % size], list[(place + k - 1) % size], 2 * fraction);
        if (latency > chain) chain = latency;
    }
    const int32_t *heads = column_of(group, place);
    for (int32_t k = 1; k < parts; k++) {
        int32_t depth = 0, parent = parent_of(k, parts);
        double way = walk_up_and_down(walk, heads[k], heads[parent], fraction);
        double other =
            walk_up_and_down(walk, heads[second_tree(k, parts)], heads[second_tree(parent, parts)], fraction);
        if (way > slowest) slowest = way;
        if (other > slowest) slowest = other;
        for (int32_t at = k; at > 0; at = parent_of(at, parts)) depth++;
        if (depth > deepest) deepest = depth;
    }
    raise_to(walk, 2 * (group->most - 1 + deepest), chain + deepest * slowest);
}

/* Walks trees from places of each part; one place is enough where all devices of a server share its link. */
static void tree(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    bool is_spread = group->parts > 1 && !group->is_vast && !walk->loads->cluster->topology->is_derived;
    int32_t places = is_spread ? group->least : 1;
    for (int32_t j = 0; j < places; j++) walk_tree(walk, group, j, 0.5 / places);
}

static int32_t direct_steps(const CollectiveGroup *group) {
    return group->devices <= MOST_DIRECT ? 1 : 0;
}

/* Walks the sends of device k of a list to every other but those at first .. end-1, a fraction of S each. In
 * a long list a sample of them, at equal distances around it, stands for all. */
static void walk_sender(CollectiveWalk *walk, const int32_t *list, int32_t count, int32_t k, int32_t first,
                        int32_t end, double fraction) {
    int32_t others = count - 1 < walk->partners ? count - 1 : walk->partners;
    int32_t wanted = count - (end - first), partners = 0, chosen[COLLECTIVE_MOST_PARTNERS];
    for (int32_t j = 0; j < others; j++) {
        int64_t to = (k + 1 + (int64_t)j * (count - 1) / others) % count;
        if (to < first || to >= end) chosen[partners++] = list[to];
    }
    double latency = 0, scale = partners ? (double)wanted / partners : 0;
    for (int32_t j = 0; j < partners; j++)
        latency += add_transfer(walk, list[k], chosen[j], fraction * scale);
    raise_to(walk, wanted, latency * scale);
}

/* Walks the sends of each device of a list to each other one, a fraction of S; in a tree the loads are
 * counted. */
static void walk_pairs(CollectiveWalk *walk, const int32_t *list, int32_t count, double fraction) {
    if (count < 2) return;
    if (!walk->loads->cluster->topology->is_tree) {
        for (int32_t k = 0; k < count; k++) walk_sender(walk, list, count, k, k, k + 1, fraction);
        return;
    }
    double longest = walk->follows ? edge_loads_follow_pairs(walk->loads, list, count)
                                   : edge_loads_add_pairs(walk->loads, list, count, fraction);
    raise_to(walk, count - 1, (count - 1) * longest);
}

static void direct(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    walk_pairs(walk, group->members, group->devices, 1 / (double)group->devices);
}

static void inside_pairs(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    double n = group->devices;
    for (int32_t s = 0; s < group->parts; s++)
        walk_pairs(walk, group->members + group->first[s], part_size(group, s), 1 / (n * n));
}

/* Walks the pairs across parts: in a tree all pairs, less those inside parts. */
static void across_pairs(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    double n = group->devices, fraction = 1 / (n * n);
    if (group->parts < 2) return;
    if (!walk->loads->cluster->topology->is_tree) {
        for (int32_t p = 0; p < group->parts; p++)
            for (int32_t k = group->first[p]; k < group->first[p + 1]; k++)
                walk_sender(walk, group->members, group->devices, k, group->first[p], group->first[p + 1],
                            fraction);
        return;
    }
    walk_pairs(walk, group->members, group->devices, fraction);
    double latency = walk->latency / (n - 1);
    for (int32_t s = 0; s < group->parts && !walk->follows; s++)
        walk_pairs(walk, group->members + group->first[s], part_size(group, s), -fraction);
    walk->messages = group->devices - group->least;
    walk->latency = walk->messages * latency;
}

static int32_t share_steps(const CollectiveGroup *group) {
    return is_hierarchical(group) && group->least == group->most ? 1 : 0;
}

static void inside_share(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    for (int32_t s = 0; s < group->parts; s++)
        walk_pairs(walk, group->members + group->first[s], group->most,
                   1 / (double)group->most / group->devices);
}

static void across_share(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    for (int32_t j = 0; j < group->most; j++)
        walk_pairs(walk, column_of(group, j), group->parts, 1 / (double)group->parts / group->devices);
}

static void neighbours(CollectiveWalk *walk, const CollectiveGroup *group, int32_t step) {
    (void)step;
    int32_t messages = group->devices < 3 ? group->devices - 1 : 2;
    for (int32_t k = 0; k + 1 < group->devices; k++)
        raise_to(walk, messages, messages * add_transfer(walk, group->members[k], group->members[k + 1], 1));
}

const CollectivePattern collective_patterns[COLLECTIVE_PATTERNS] = {
    [PATTERN_RING] = {"ring", one_step, ring},
    [PATTERN_RINGS] = {"rings", rings_steps, rings},
    [PATTERN_HALVING] = {"halving", halving_steps, halving},
    [PATTERN_INSIDE_RING] = {"ring inside", inside_ring_steps, inside_ring},
    [PATTERN_INSIDE_HALVING] = {"halving inside", inside_halving_steps, inside_halving},
    [PATTERN_ACROSS_RING] = {"ring between", hierarchical_step, across_ring},
    [PATTERN_ACROSS_HALVING] = {"halving between", across_halving_steps, across_halving},
    [PATTERN_TREE] = {"tree", one_step, tree},
    [PATTERN_DIRECT] = {"all pairs", direct_steps, direct},
    [PATTERN_INSIDE_PAIRS] = {"pairs inside", one_step, inside_pairs},
    [PATTERN_ACROSS_PAIRS] = {"pairs between", one_step, across_pairs},
    [PATTERN_INSIDE_SHARE] = {"sharing out inside", share_steps, inside_share},
    [PATTERN_ACROSS_SHARE] = {"between equal places", share_steps, across_share},
    [PATTERN_NEIGHBOURS] = {"neighbours", one_step, neighbours},
};
