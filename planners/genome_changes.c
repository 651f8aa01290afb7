/* Random single changes; see genome_changes.h. */
#include "planners/genome_changes.h"

static int32_t any(Random *random, int32_t count) {
    return (int32_t)random_below(random, count);
}

/* A random candidate that the axis can be split by; -1: none was drawn. */
static int32_t draw_candidate(const Problem *problem, Random *random, int32_t axis) {
    if (problem->candidate_count == 0) return -1;
    int32_t candidate = any(random, problem->candidate_count);
    return problem_usable(problem, candidate, axis) ? candidate : -1;
}

static bool insert_any(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    int32_t candidate = draw_candidate(problem, random, axis);
    int32_t place = any(random, genome->count[axis] + 1);
    return candidate >= 0 && genome_insert(genome, axis, place, candidate);
}

static bool remove_any(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    (void)problem;
    if (genome->count[axis] == 0) return false;
    genome_remove(genome, axis, any(random, genome->count[axis]));
    return true;
}

static bool replace_any(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    int32_t candidate = draw_candidate(problem, random, axis);
    if (genome->count[axis] == 0 || candidate < 0) return false;
    int32_t place = any(random, genome->count[axis]);
    genome_remove(genome, axis, place);
    return genome_insert(genome, axis, place, candidate);
}

/* To another place, of this axis or another one. */
static bool move_any(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    if (genome->count[axis] == 0) return false;
    int32_t place = any(random, genome->count[axis]), target = any(random, problem->mesh.axis_count);
    int32_t candidate = genome->entries[axis][place];
    if (!problem_usable(problem, candidate, target)) return false;
    genome_remove(genome, axis, place);
    return genome_insert(genome, target, any(random, genome->count[target] + 1), candidate);
}

static bool change_storage(const Problem *problem, Random *random, Genome *genome, int32_t axis) {
    int32_t kinds = problem_storage_kinds(problem, axis);
    if (kinds == 0) return false;
    uint8_t drawn = (uint8_t)any(random, kinds + 1);
    bool differs = drawn != genome->storage[axis];
    genome->storage[axis] = drawn;
    return differs;
}

typedef bool Change(const Problem *problem, Random *random, Genome *genome, int32_t axis);
static Change *const changes[] = {insert_any, remove_any, replace_any, move_any, change_storage};
#define CHANGE_COUNT ((int32_t)(sizeof changes / sizeof changes[0]))

bool genome_change(const Problem *problem, Random *random, Genome *genome) {
    Change *change = changes[any(random, CHANGE_COUNT)];
    return change(problem, random, genome, any(random, problem->mesh.axis_count));
}
