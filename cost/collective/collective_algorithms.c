/* The algorithms of collectives, and the loads that they put on links.
 *
 * collective_find_loads() walks every step of every pattern twice: by all groups to load the edges, then by
 * each group to find the busiest edges that it crosses. Consecutive steps are added where each term is the
 * same multiple of the other step's: the sum of maxima is then the maximum of sums, whatever the
 * efficiencies. Groups with equal loads share one LinkLoads. collective_choose() prices the algorithms of the
 * table `algorithms` from them, and takes the fastest.
 */
#include "cost/collective/collective_algorithms.h"

#include <math.h>
#include <string.h>

/* Groups are compared with so many different ones; a copy more does no harm. */
enum { MOST_COMPARED = 64, MOST_EFFICIENCIES = 8 };
/* Above this number of devices in a general graph, which needs a search per route, fewer partners
 * are used. */
enum { MOST_ROUTED = 2048, FEW_PARTNERS = 2 };

#define KIND(kind) (1u << (kind))
#define SCATTERED  (KIND(PROGRAM_ALL_REDUCE) | KIND(PROGRAM_ALL_GATHER) | KIND(PROGRAM_REDUCE_SCATTER))

static const CollectiveAlgorithm algorithms[] = {
    {"ring", SCATTERED, 1, {PATTERN_RING}, false, false},
    {"rings", SCATTERED, 1, {PATTERN_RINGS}, false, false},
    {"halving-doubling", SCATTERED, 1, {PATTERN_HALVING}, false, false},
    {"hierarchical (rings)", SCATTERED, 2, {PATTERN_INSIDE_RING, PATTERN_ACROSS_RING}, false, false},
    {"hierarchical (ring inside)", SCATTERED, 2, {PATTERN_INSIDE_RING, PATTERN_ACROSS_HALVING}, false, false},
    {"hierarchical (ring between)",
     SCATTERED,
     2,
     {PATTERN_INSIDE_HALVING, PATTERN_ACROSS_RING},
     false,
     false},
    {"tree", KIND(PROGRAM_ALL_REDUCE), 1, {PATTERN_TREE}, true, false},
    {"direct", SCATTERED, 1, {PATTERN_DIRECT}, false, false},
    {"all to everyone", KIND(PROGRAM_ALL_REDUCE), 1, {PATTERN_DIRECT}, true, true},
    {"pairwise", KIND(PROGRAM_ALL_TO_ALL), 2, {PATTERN_INSIDE_PAIRS, PATTERN_ACROSS_PAIRS}, false, false},
    {"hierarchical", KIND(PROGRAM_ALL_TO_ALL), 2, {PATTERN_INSIDE_SHARE, PATTERN_ACROSS_SHARE}, false, false},
    {"neighbours", KIND(PROGRAM_HALO_EXCHANGE), 1, {PATTERN_NEIGHBOURS}, false, false},
};

const CollectiveAlgorithm *collective_algorithms(int32_t *count) {
    *count = (int32_t)(sizeof algorithms / sizeof *algorithms);
    return algorithms;
}

static bool is_possible(const CollectiveAlgorithm *algorithm, const LinkLoads *loads) {
    for (int32_t k = 0; k < algorithm->pattern_count; k++)
        if (!loads->moves[algorithm->patterns[k]].is_possible) return false;
    return true;
}

bool collective_can_use(const CollectiveAlgorithm *algorithm, ProgramCollectiveKind kind,
                        const CollectiveTopology *topology) {
    const LinkLoads *loads = topology->loads;
    if (!(algorithm->kinds >> kind & 1) || topology->devices < 2) return false;
    while (loads && !is_possible(algorithm, loads)) loads = loads->next;
    return loads != NULL;
}

int32_t collective_rounds(const CollectiveAlgorithm *algorithm, ProgramCollectiveKind kind) {
    return kind == PROGRAM_ALL_REDUCE && !algorithm->is_both_ways ? 2 : 1;
}

/* Efficiencies at one size, each looked up once. */
typedef struct Efficiencies {
    const Cluster *cluster;
    double bytes, of_link[MOST_EFFICIENCIES]; /* 0: not yet */
} Efficiencies;

static double efficiency_of(Efficiencies *self, int32_t link) {
    const ClusterCurve *curve = &self->cluster->links[link].efficiency;
    if (link >= MOST_EFFICIENCIES) return cluster_efficiency(curve, self->bytes);
    if (self->of_link[link] == 0) self->of_link[link] = cluster_efficiency(curve, self->bytes);
    return self->of_link[link];
}

/* Returns the seconds of an algorithm with one division of the group into islands. */
static double seconds_with(const CollectiveAlgorithm *algorithm, ProgramCollectiveKind kind, int32_t devices,
                           const LinkLoads *loads, Efficiencies *efficiencies) {
    double seconds = 0, bytes = efficiencies->bytes * (algorithm->moves_whole ? devices : 1);
    for (int32_t p = 0; p < algorithm->pattern_count; p++) {
        const CollectiveMove *move = &loads->moves[algorithm->patterns[p]];
        for (int32_t k = 0; k < move->step_count; k++) {
            const CollectiveStep *step = &move->steps[k];
            double slowest = 0;
            for (int32_t t = 0; t < step->term_count; t++) {
                double one = step->terms[t].seconds_per_byte * bytes /
                             efficiency_of(efficiencies, step->terms[t].link);
                if (one > slowest) slowest = one;
            }
            seconds += step->latency + slowest;
        }
    }
    return collective_rounds(algorithm, kind) * seconds;
}

/* Returns the seconds of an algorithm that can be used, with the best division into islands. */
static double algorithm_seconds(const CollectiveAlgorithm *algorithm, const LinkLoads **islands,
                                ProgramCollectiveKind kind, const CollectiveTopology *topology,
                                Efficiencies *efficiencies) {
    double seconds = INFINITY;
    for (const LinkLoads *loads = topology->loads; loads; loads = loads->next) {
        if (!is_possible(algorithm, loads)) continue;
        double one = seconds_with(algorithm, kind, topology->devices, loads, efficiencies);
        if (one >= seconds) continue;
        seconds = one;
        *islands = loads;
    }
    return seconds;
}

static double at_least_one(double bytes) {
    return bytes < 1 ? 1 : bytes;
}

double collective_algorithm_seconds(const CollectiveAlgorithm *algorithm, ProgramCollectiveKind kind,
                                    double bytes, const CollectiveTopology *topology,
                                    const Cluster *cluster) {
    Efficiencies efficiencies = {.cluster = cluster, .bytes = at_least_one(bytes)};
    const LinkLoads *islands;
    return algorithm_seconds(algorithm, &islands, kind, topology, &efficiencies);
}

const CollectiveAlgorithm *collective_choose(double *seconds, const LinkLoads **islands,
                                             ProgramCollectiveKind kind, double bytes,
                                             const CollectiveTopology *topology, const Cluster *cluster) {
    Efficiencies efficiencies = {.cluster = cluster, .bytes = at_least_one(bytes)};
    const CollectiveAlgorithm *best = NULL;
    *seconds = 0;
    *islands = NULL;
    for (size_t k = 0; k < sizeof algorithms / sizeof *algorithms; k++) {
        if (!collective_can_use(&algorithms[k], kind, topology)) continue;
        const LinkLoads *with = NULL;
        double one = algorithm_seconds(&algorithms[k], &with, kind, topology, &efficiencies);
        if (best && one >= *seconds) continue;
        *seconds = one;
        *islands = with;
        best = &algorithms[k];
    }
    return best;
}

/* Everything that one call makes and forgets. */
typedef struct LoadBuilder {
    Arena *arena;
    const Cluster *cluster;
    EdgeLoads loads;
    CollectiveGroup *groups;
    LinkLoads *link_loads; /* [group_count] in scratch memory, of the islands that are walked */
    int32_t group_count;
    int32_t partners; /* CollectiveWalk */
} LoadBuilder;

/* Returns whether b's terms are a's times one number; that number. */
static bool is_multiple(const CollectiveStep *a, const CollectiveStep *b, double *factor) {
    if (a->term_count != b->term_count || a->term_count == 0) return false;
    *factor = b->terms[0].seconds_per_byte / a->terms[0].seconds_per_byte;
    if (!isfinite(*factor)) return false;
    for (int32_t k = 0; k < a->term_count; k++) {
        double expected = a->terms[k].seconds_per_byte * *factor;
        if (a->terms[k].link != b->terms[k].link) return false;
        if (fabs(b->terms[k].seconds_per_byte - expected) > 1e-13 * expected) return false;
    }
    return true;
}

/* Adds the step that has just been followed; AM_ERROR_INTERNAL without memory. */
static AmStatus add_step(LoadBuilder *self, CollectiveMove *move, const CollectiveWalk *walk,
                         AmError *error) {
    const EdgeLoads *loads = &self->loads;
    CollectiveStep step = {.messages = walk->messages, .latency = walk->latency, .terms = loads->terms};
    step.term_count = loads->term_count;
    if (step.messages == 0) return AM_OK;
    double factor;
    CollectiveStep *last = move->step_count > 0 ? &move->steps[move->step_count - 1] : NULL;
    if (last && is_multiple(last, &step, &factor)) {
        EdgeTerm *terms = (EdgeTerm *)last->terms;
        for (int32_t k = 0; k < step.term_count; k++)
            terms[k].seconds_per_byte += loads->terms[k].seconds_per_byte;
        last->messages += step.messages;
        last->latency += step.latency;
        return AM_OK;
    }
    EdgeTerm *terms = ARENA_ARRAY(self->arena, EdgeTerm, step.term_count + 1);
    if (!terms) return am_fail_memory(error, step.term_count);
    memcpy(terms, loads->terms, sizeof *terms * (size_t)step.term_count);
    step.terms = terms;
    move->steps[move->step_count++] = step;
    return AM_OK;
}

/* Walks step `step` of a pattern: loads by all groups, terms of each. */
static AmStatus walk_step(LoadBuilder *self, const CollectivePattern *pattern, CollectivePatternKind kind,
                          int32_t step, AmError *error) {
    CollectiveWalk walk = {.loads = &self->loads, .partners = self->partners};
    for (int32_t g = 0; g < self->group_count; g++)
        if (step < pattern->steps(&self->groups[g])) pattern->walk(&walk, &self->groups[g], step);
    for (int32_t g = 0; g < self->group_count; g++) {
        if (step >= pattern->steps(&self->groups[g])) continue;
        walk = (CollectiveWalk){.loads = &self->loads, .follows = true, .partners = self->partners};
        pattern->walk(&walk, &self->groups[g], step);
        TRY(add_step(self, &self->link_loads[g].moves[kind], &walk, error));
        edge_loads_forget(&self->loads);
    }
    edge_loads_clear(&self->loads);
    return self->arena->failed ? am_fail_memory(error, self->group_count) : AM_OK;
}

static AmStatus walk_pattern(LoadBuilder *self, CollectivePatternKind kind, AmError *error) {
    const CollectivePattern *pattern = &collective_patterns[kind];
    int32_t most = 0;
    for (int32_t g = 0; g < self->group_count; g++) {
        CollectiveMove *move = &self->link_loads[g].moves[kind];
        int32_t steps = pattern->steps(&self->groups[g]);
        move->is_possible = steps > 0;
        if (steps > 0) move->steps = ARENA_ARRAY(self->arena, CollectiveStep, steps);
        if (self->arena->failed) return am_fail_memory(error, steps);
        if (steps > most) most = steps;
    }
    for (int32_t step = 0; step < most; step++) TRY(walk_step(self, pattern, kind, step, error));
    return AM_OK;
}

static bool is_equal_step(const CollectiveStep *a, const CollectiveStep *b) {
    if (a->messages != b->messages || a->latency != b->latency || a->term_count != b->term_count)
        return false;
    for (int32_t k = 0; k < a->term_count; k++)
        if (a->terms[k].link != b->terms[k].link ||
            a->terms[k].seconds_per_byte != b->terms[k].seconds_per_byte)
            return false;
    return true;
}

static bool is_equal(const LinkLoads *a, const LinkLoads *b) {
    if (!a || !b) return a == b;
    for (int32_t p = 0; p < COLLECTIVE_PATTERNS; p++) {
        const CollectiveMove *x = &a->moves[p], *y = &b->moves[p];
        if (x->is_possible != y->is_possible || x->step_count != y->step_count) return false;
        for (int32_t k = 0; k < x->step_count; k++)
            if (!is_equal_step(&x->steps[k], &y->steps[k])) return false;
    }
    return is_equal(a->next, b->next);
}

/* Copies link loads out of scratch memory; NULL without memory. */
static const LinkLoads *copy_loads(Arena *arena, const LinkLoads *loads) {
    LinkLoads *copy = ARENA_ARRAY(arena, LinkLoads, 1);
    if (!copy) return NULL;
    *copy = *loads;
    for (int32_t p = 0; p < COLLECTIVE_PATTERNS; p++) {
        CollectiveMove *move = &copy->moves[p];
        move->steps = ARENA_ARRAY(arena, CollectiveStep, move->step_count + 1);
        for (int32_t k = 0; k < move->step_count && move->steps; k++) {
            const CollectiveStep *step = &loads->moves[p].steps[k];
            EdgeTerm *terms = ARENA_ARRAY(arena, EdgeTerm, step->term_count + 1);
            if (!terms) return NULL;
            memcpy(terms, step->terms, sizeof *terms * (size_t)step->term_count);
            move->steps[k] = *step;
            move->steps[k].terms = terms;
        }
    }
    if (copy->next) copy->next = copy_loads(arena, copy->next);
    return arena->failed ? NULL : copy;
}

AmStatus collective_find_loads(CollectiveTopology *topologies, Arena *arena, const Cluster *cluster,
                               const int32_t *members, int32_t group_count, int32_t group_size,
                               AmError *error) {
    Arena scratch = {0};
    LoadBuilder self = {.arena = &scratch, .cluster = cluster, .group_count = group_count};
    CollectiveGroup *groups = ARENA_ARRAY(&scratch, CollectiveGroup, group_count * COLLECTIVE_MOST_GROUPINGS);
    LinkLoads *all_loads = ARENA_ARRAY(&scratch, LinkLoads, group_count * COLLECTIVE_MOST_GROUPINGS);
    int32_t *groupings = ARENA_ARRAY(&scratch, int32_t, group_count), most = 1;
    self.groups = ARENA_ARRAY(&scratch, CollectiveGroup, group_count);
    const LinkLoads *different[MOST_COMPARED];
    int32_t different_count = 0;
    AmStatus status = scratch.failed ? am_fail_memory(error, group_count)
                                     : edge_loads_open(&self.loads, &scratch, cluster, error);
    for (int32_t g = 0; g < group_count && status == AM_OK; g++) {
        status = collective_groupings(&groups[g * COLLECTIVE_MOST_GROUPINGS], &groupings[g], &scratch,
                                      cluster, members + (int64_t)g * group_size, group_size, error);
        if (groupings[g] > most) most = groupings[g];
    }
    bool is_vast = !cluster->topology->is_tree && group_count > MOST_ROUTED / group_size;
    self.partners = is_vast ? FEW_PARTNERS : COLLECTIVE_MOST_PARTNERS;
    /* All groups in their first islands, all in their second ones, ... */
    for (int32_t v = 0; v < most && status == AM_OK; v++) {
        self.link_loads = &all_loads[v * group_count];
        for (int32_t g = 0; g < group_count; g++) {
            int32_t last = groupings[g] - 1;
            self.groups[g] = groups[g * COLLECTIVE_MOST_GROUPINGS + (v < last ? v : last)];
            self.groups[g].is_vast = is_vast;
            if (v + 1 < most) self.link_loads[g].next = &all_loads[(v + 1) * group_count + g];
        }
        for (int32_t p = 0; p < COLLECTIVE_PATTERNS && status == AM_OK && group_size > 1; p++)
            status = walk_pattern(&self, (CollectivePatternKind)p, error);
    }
    self.link_loads = all_loads;
    for (int32_t g = 0; g < group_count && status == AM_OK; g++) {
        int32_t k = 0;
        while (k < different_count && !is_equal(different[k], &self.link_loads[g])) k++;
        const LinkLoads *loads = k < different_count ? different[k] : copy_loads(arena, &self.link_loads[g]);
        if (!loads) status = am_fail_memory(error, (int64_t)sizeof *loads);
        if (k == different_count && k < MOST_COMPARED && loads) different[different_count++] = loads;
        topologies[g] = (CollectiveTopology){
            .devices = group_size,
            .servers = self.groups[g].servers,
            .per_server = self.groups[g].servers > 1 ? self.groups[g].most : self.groups[g].devices,
            .loads = loads};
    }
    arena_free(&scratch);
    return status;
}
