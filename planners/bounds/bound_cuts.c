/* The least cost of a pipeline over all cuts and all widths of stages, as a shortest path over states and
 * places.
 *
 *     least[to][q] = min over steps from -> to and places p <= q of least[from][p] + cost(step, p .. q)
 *
 * A state is the number of stages and devices so far, a step one more stage of some width, and a place an
 * operator of the forward spine. cost() is the weighted seconds of the work between the places, less what the
 * border at q may divide. The weights come from potentials, which subgradient ascent improves (bound_cuts.h).
 */
#include "planners/bounds/bound_cuts.h"

#include <math.h>
#include <string.h>

#include "base/extremes.h"

enum { LONGEST = 8, MOST_STEPS_AND_PLACES = 1 << 22, HALVINGS = 16, COUNTS = PATH_PASSES * BOUND_ORDERS };

/* The relative increase over the best bound that the next step aims for. */
#define ASCENT 0.005

/* Classes that are together at a place or across a border. */
typedef struct ClassSet {
    uint64_t signature;
    int32_t first_member, member_count; /* in CutTables.members */
} ClassSet;

struct CutTables {
    const CutWork *work;
    ClassSet *sets;
    ClassSeconds *seconds; /* [set * width_count + width] */
    int32_t set_count, set_capacity;
    int32_t *members, member_count, member_capacity; /* classes */
    int32_t *at;                                     /* [place]: the set of the items there */
    /* [place * longest + k]: of the items that the border after the place may divide, at the k
     * places up to it. */
    int32_t *across;
    int32_t longest;    /* places that borders of one item lie between */
    int32_t *unplaced;  /* [class]: how many may be on any stage */
    int32_t *divisible; /* [class]: how many of these a border may divide */
    ClassSeconds *all;  /* [width]: of all that is placed, or unplaced */
};

/* ---- tables ---- */

typedef struct Filler {
    CutTables *tables;
    Arena *arena;
    int32_t *first, *next; /* [place], [placed]: lists of the items at a place */
    int32_t *slots, slot_count;
} Filler;

/* The set of the members from `first_member` on: a new one, or that of the same classes, whose members
 * they then are. */
static int32_t find_class_set(Filler *self, int32_t first_member) {
    CutTables *tables = self->tables;
    ClassSet set = {.first_member = first_member, .member_count = tables->member_count - first_member};
    for (int32_t k = first_member; k < tables->member_count; k++)
        set.signature += bound_scramble((uint64_t)tables->members[k] + 1);
    int32_t slot = (int32_t)(set.signature % (uint64_t)self->slot_count);
    for (; self->slots[slot] >= 0; slot = (slot + 1) % self->slot_count) {
        const ClassSet *other = &tables->sets[self->slots[slot]];
        if (other->signature != set.signature || other->member_count != set.member_count) continue;
        tables->member_count = first_member;
        return self->slots[slot];
    }
    ARENA_RESERVE(self->arena, tables->sets, tables->set_count, tables->set_capacity);
    if (self->arena->failed) return 0;
    self->slots[slot] = tables->set_count;
    tables->sets[tables->set_count] = set;
    return tables->set_count++;
}

/* Adds the items that begin at a place: all, or those that cross the border after `border`. */
static void add_members(Filler *self, int32_t place, int32_t border) {
    CutTables *tables = self->tables;
    for (int32_t k = self->first[place]; k >= 0; k = self->next[k]) {
        const Placed *placed = &tables->work->placed[k];
        if (border >= 0 && placed->borders.end <= border) continue;
        ARENA_RESERVE(self->arena, tables->members, tables->member_count, tables->member_capacity);
        if (self->arena->failed) return;
        tables->members[tables->member_count++] = placed->class;
    }
}

static void chain_places(Filler *self) {
    CutTables *tables = self->tables;
    const CutWork *work = tables->work;
    for (int32_t p = 0; p < work->places; p++) self->first[p] = -1;
    tables->longest = 1;
    for (int32_t k = 0; k < work->placed_count; k++) {
        const Placed *placed = &work->placed[k];
        int32_t length = placed->borders.end - placed->borders.first;
        if (!placed->is_placed || length > LONGEST) {
            tables->unplaced[placed->class]++;
            tables->divisible[placed->class] += length > 0;
            continue;
        }
        if (length > tables->longest) tables->longest = length;
        self->next[k] = self->first[placed->borders.first];
        self->first[placed->borders.first] = k;
    }
}

static void find_class_sets(Filler *self) {
    CutTables *tables = self->tables;
    for (int32_t p = 0; p < tables->work->places && !self->arena->failed; p++) {
        int32_t first = tables->member_count;
        add_members(self, p, -1);
        tables->at[p] = find_class_set(self, first);
        for (int32_t k = 0; k < tables->longest; k++) {
            first = tables->member_count;
            for (int32_t q = p - k > 0 ? p - k : 0; q <= p; q++) add_members(self, q, p);
            tables->across[p * tables->longest + k] = find_class_set(self, first);
        }
    }
}

static void add_seconds(ClassSeconds *sum, const ClassSeconds *seconds) {
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            sum->of[pass][order] += seconds->of[pass][order];
}

AmStatus cut_tables_create(CutTables **created, Arena *arena, const CutWork *work, AmError *error) {
    CutTables *tables = *created = ARENA_ARRAY(arena, CutTables, 1);
    if (!tables) return am_fail_memory(error, 1);
    *tables = (CutTables){.work = work,
                          .at = ARENA_ARRAY(arena, int32_t, work->places + 1),
                          .across = ARENA_ARRAY(arena, int32_t, work->places * LONGEST + 1),
                          .unplaced = ARENA_ARRAY(arena, int32_t, work->class_count + 1),
                          .divisible = ARENA_ARRAY(arena, int32_t, work->class_count + 1)};
    Filler filler = {.tables = tables,
                     .arena = arena,
                     .first = ARENA_ARRAY(arena, int32_t, work->places + 1),
                     .next = ARENA_ARRAY(arena, int32_t, work->placed_count + 1),
                     .slot_count = 2 * work->places * (LONGEST + 1) + 1};
    filler.slots = ARENA_ARRAY(arena, int32_t, filler.slot_count);
    if (arena->failed) return am_fail_memory(error, work->places);
    for (int32_t k = 0; k < filler.slot_count; k++) filler.slots[k] = -1;
    chain_places(&filler);
    find_class_sets(&filler);
    int32_t widths = work->width_count;
    tables->seconds = ARENA_ARRAY(arena, ClassSeconds, tables->set_count * widths + 1);
    if (arena->failed) return am_fail_memory(error, tables->set_count);
    tables->all = ARENA_ARRAY(arena, ClassSeconds, widths + 1);
    if (arena->failed) return am_fail_memory(error, widths);
    for (int32_t k = 0; k < work->placed_count; k++)
        for (int32_t w = 0; w < widths; w++)
            add_seconds(&tables->all[w], &work->seconds[work->placed[k].class * widths + w]);
    for (int32_t b = 0; b < tables->set_count; b++)
        for (int32_t k = 0; k < tables->sets[b].member_count; k++)
            for (int32_t w = 0; w < widths; w++)
                add_seconds(&tables->seconds[b * widths + w],
                            &work->seconds[tables->members[tables->sets[b].first_member + k] * widths + w]);
    return AM_OK;
}

/* ---- states ---- */

/* A stage of some width between two states. */
typedef struct Step {
    int32_t stage, width, from, to;
    double weights[COUNTS]; /* of a second of each pass and order there */
    double across[COUNTS];  /* and of items across a border */
} Step;

/* The least weight of a second of one pass and order on stages of a width, or across their borders. */
typedef struct LeastWeights {
    double weights[COUNTS], across[COUNTS];
} LeastWeights;

typedef struct CutSearch {
    const CutTables *tables;
    int32_t stages;
    Step *steps; /* by stages */
    int32_t step_count, step_capacity, state_count;
    PathCounts *counts[PATH_KINDS]; /* [stage] */
    double *potentials[PATH_KINDS]; /* [state]; the last one is the last state */
    /* [state]: what paths of earlier stages add to what is passed, at the least. */
    double *above[PATH_KINDS][PATH_PASSES];
    double *across; /* [class]: its least cost across a border */
    double *least;  /* [state * (places + 1) + places]: least cost of the stages so far */
    /* Scratch. */
    double *set_across, *of_sets;       /* [set] */
    double *sums, *before, *before_any; /* [places + 1] */
    double *balance;                    /* [state] */
    LeastWeights *least_weights;        /* [width] */
    Arena arena;
} CutSearch;

/* Marks the numbers of devices that `stages` stages can have together. */
static void mark_sums(const CutWork *work, int32_t stages, bool *can) {
    int32_t row = work->devices + 1;
    can[0] = true;
    for (int32_t s = 0; s < stages; s++)
        for (int32_t w = 0; w < work->width_count; w++)
            for (int32_t d = 0; d + work->widths[w] < row; d++)
                can[(s + 1) * row + d + work->widths[w]] |= can[s * row + d];
}

/* All steps on the way from no stage to all of them. */
static void find_steps(CutSearch *self) {
    const CutWork *work = self->tables->work;
    int32_t stages = self->stages, devices = work->devices, row = devices + 1;
    bool *can = ARENA_ARRAY(&self->arena, bool, (stages + 1) * row);
    int32_t *state_of = ARENA_ARRAY(&self->arena, int32_t, (stages + 1) * row);
    if (self->arena.failed) return;
    mark_sums(work, stages, can);
    for (int32_t s = 0; s <= stages; s++)
        for (int32_t d = 0; d <= devices; d++) {
            bool is_on_way = can[s * row + d] && can[(stages - s) * row + devices - d];
            state_of[s * row + d] = is_on_way ? self->state_count++ : -1;
        }
    for (int32_t s = 0; s < stages; s++)
        for (int32_t d = 0; d <= devices; d++)
            for (int32_t w = 0; w < work->width_count && d + work->widths[w] <= devices; w++) {
                Step step = {.stage = s,
                             .width = w,
                             .from = state_of[s * row + d],
                             .to = state_of[(s + 1) * row + d + work->widths[w]]};
                if (step.from < 0 || step.to < 0) continue;
                ARENA_RESERVE(&self->arena, self->steps, self->step_count, self->step_capacity);
                if (self->arena.failed) return;
                self->steps[self->step_count++] = step;
            }
}

/* ---- potentials ---- */

/* The counts of all work on stages of a place and width. */
typedef struct StageCounts {
    double once, above, more;
} StageCounts;

static StageCounts count_all(const CutSearch *self, const CutMix *mix, int32_t stage,
                             const ClassSeconds *all) {
    StageCounts sum = {0};
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        const PathCounts *counts = &self->counts[kind][stage];
        for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
            const double *seconds = all->of[pass];
            double share = mix->paths.share[kind];
            sum.above +=
                mix->above * share * counts->above[pass] * (seconds[BOUND_SPINE] + seconds[BOUND_BETWEEN]);
            for (int32_t order = 0; order < BOUND_ORDERS; order++) {
                sum.once += mix->once * share * counts->once[pass][order] * seconds[order];
                sum.more += share * counts->more[pass][order] * seconds[order];
            }
        }
    }
    return sum;
}

/* The greatest potential of the last state if all work together is to count `each` on any stage. */
static double balance_for(CutSearch *self, const StageCounts *counts, double each) {
    for (int32_t k = 0; k < self->state_count; k++) self->balance[k] = 0;
    for (int32_t k = 0; k < self->step_count; k++) {
        const Step *step = &self->steps[k];
        const StageCounts *here = &counts[step->stage * self->tables->work->width_count + step->width];
        double wanted = each - here->once - self->balance[step->from] * here->above;
        double rise = here->more > 0 ? larger(wanted / here->more, 0) : 0;
        self->balance[step->to] = larger(self->balance[step->to], self->balance[step->from] + rise);
    }
    return self->balance[self->state_count - 1];
}

static void set_balanced_potentials(CutSearch *self, const CutMix *mix) {
    const CutWork *work = self->tables->work;
    ArenaMark mark = arena_mark(&self->arena);
    StageCounts *counts = ARENA_ARRAY(&self->arena, StageCounts, self->stages * work->width_count);
    double low = 0, high = 1e-12;
    if (!counts) return;
    for (int32_t s = 0; s < self->stages; s++)
        for (int32_t w = 0; w < work->width_count; w++) {
            StageCounts here = count_all(self, mix, s, &self->tables->all[w]);
            counts[s * work->width_count + w] = here;
            high = larger(high, here.once + here.above + here.more);
        }
    for (int32_t k = 0; k < HALVINGS; k++) {
        double middle = (low + high) / 2;
        if (balance_for(self, counts, middle) <= 1) low = middle;
        else high = middle;
    }
    double end = balance_for(self, counts, high);
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        for (int32_t k = 0; k < self->state_count; k++)
            self->potentials[kind][k] = mix->paths.share[kind] * (end > 0 ? self->balance[k] / end : 1);
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) self->potentials[kind][0] = 0;
    arena_release(&self->arena, mark);
}

/* ---- weights ---- */

/* Sets what counts above each state: the least over the ways there. */
static void set_above(CutSearch *self) {
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
            double *above = self->above[kind][pass];
            for (int32_t k = 0; k < self->state_count; k++) above[k] = k == 0 ? 0 : INFINITY;
            for (int32_t k = 0; k < self->step_count; k++) {
                const Step *step = &self->steps[k];
                double rise = self->potentials[kind][step->to] - self->potentials[kind][step->from];
                double added = rise * self->counts[kind][step->stage].above[pass];
                above[step->to] = smaller(above[step->to], above[step->from] + added);
            }
        }
}

static void weigh_step(const CutSearch *self, Step *step) {
    memset(step->weights, 0, sizeof step->weights);
    memset(step->across, 0, sizeof step->across);
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        const PathCounts *counts = &self->counts[kind][step->stage];
        const double *potentials = self->potentials[kind];
        double end = potentials[self->state_count - 1], rise = potentials[step->to] - potentials[step->from];
        if (end == 0) continue;
        for (int32_t k = 0; k < COUNTS; k++) {
            int32_t pass = k / BOUND_ORDERS, order = k % BOUND_ORDERS;
            bool is_passed = order == BOUND_SPINE || order == BOUND_BETWEEN;
            double weight = end * counts->once[pass][order] + rise * counts->more[pass][order];
            if (is_passed) weight += self->above[kind][pass][step->from];
            bool is_whole = order == BOUND_SPINE || order == BOUND_AFTER;
            step->weights[k] += weight;
            step->across[k] += is_whole ? weight : rise * counts->across[pass][order];
        }
    }
}

static double weighed(const double *counts, const ClassSeconds *seconds) {
    double sum = 0;
    for (int32_t k = 0; k < COUNTS; k++) sum += counts[k] * (&seconds->of[0][0])[k];
    return sum;
}

static void find_least_weights(const CutSearch *self, LeastWeights *least) {
    for (int32_t w = 0; w < self->tables->work->width_count; w++)
        for (int32_t k = 0; k < COUNTS; k++) least[w].weights[k] = least[w].across[k] = INFINITY;
    for (int32_t s = 0; s < self->step_count; s++)
        for (int32_t k = 0; k < COUNTS; k++) {
            LeastWeights *here = &least[self->steps[s].width];
            here->weights[k] = smaller(here->weights[k], self->steps[s].weights[k]);
            here->across[k] = smaller(here->across[k], self->steps[s].across[k]);
        }
}

/* How many passes and orders a class has seconds in; `*last`: one of them. */
static int32_t count_orders(const CutWork *work, int32_t class, int32_t *last) {
    const double *seconds = &work->seconds[class * work->width_count].of[0][0];
    int32_t count = 0;
    *last = 0;
    for (int32_t k = 0; k < COUNTS; k++) {
        if (seconds[k] == 0) continue;
        *last = k;
        count++;
    }
    return count;
}

/* The least cost of a class on any stage, and across a border. */
static void find_least_of_class(const CutSearch *self, const LeastWeights *least, int32_t class,
                                double *anywhere, double *across) {
    const CutWork *work = self->tables->work;
    const ClassSeconds *seconds = &work->seconds[class * work->width_count];
    int32_t only;
    *anywhere = *across = INFINITY;
    if (count_orders(work, class, &only) <= 1) {
        for (int32_t w = 0; w < work->width_count; w++) {
            double of = (&seconds[w].of[0][0])[only];
            if (isinf(least[w].weights[only])) continue;
            *anywhere = smaller(*anywhere, of * least[w].weights[only]);
            *across = smaller(*across, of * least[w].across[only]);
        }
        return;
    }
    for (int32_t k = 0; k < self->step_count; k++) {
        const Step *step = &self->steps[k];
        *anywhere = smaller(*anywhere, weighed(step->weights, &seconds[step->width]));
        *across = smaller(*across, weighed(step->across, &seconds[step->width]));
    }
}

/* Finds the items with the least cost anywhere: across borders, and those of any stage, which
 * are returned. */
static double find_least(CutSearch *self) {
    const CutTables *tables = self->tables;
    double sum = 0;
    find_least_weights(self, self->least_weights);
    for (int32_t c = 0; c < tables->work->class_count; c++) {
        double anywhere, *across = &self->across[c];
        find_least_of_class(self, self->least_weights, c, &anywhere, across);
        sum += (tables->unplaced[c] - tables->divisible[c]) * anywhere +
               tables->divisible[c] * smaller(anywhere, *across);
    }
    for (int32_t b = 0; b < tables->set_count; b++) {
        const ClassSet *set = &tables->sets[b];
        self->set_across[b] = 0;
        for (int32_t k = 0; k < set->member_count; k++)
            self->set_across[b] += self->across[tables->members[set->first_member + k]];
    }
    return sum;
}

/* ---- the path ---- */

/* Sums the costs of all items before each place on a stage, and the reductions by a border after
 * it. */
static void find_sums(CutSearch *self, const Step *step) {
    const CutTables *tables = self->tables;
    for (int32_t b = 0; b < tables->set_count; b++)
        self->of_sets[b] =
            weighed(step->weights, &tables->seconds[b * tables->work->width_count + step->width]);
    for (int32_t p = 0; p < tables->work->places; p++)
        self->sums[p + 1] = self->sums[p] + self->of_sets[tables->at[p]];
    for (int32_t b = 0; b < tables->set_count; b++) self->of_sets[b] -= self->set_across[b];
}

/* Extends the least costs before a stage by those of the stage. */
static void take_step(CutSearch *self, const Step *step) {
    const CutTables *tables = self->tables;
    int32_t places = tables->work->places, longest = tables->longest;
    const double *from = &self->least[step->from * (places + 1)], *sums = self->sums;
    double *to = &self->least[step->to * (places + 1)], *before = self->before, *most = self->before_any;
    find_sums(self, step);
    for (int32_t p = 0; p <= places; p++) {
        before[p] = from[p] - sums[p];
        most[p] = p > 0 ? smaller(most[p - 1], before[p]) : before[p];
    }
    for (int32_t q = step->stage == self->stages - 1 ? places : 0; q <= places; q++) {
        double least = from[q];
        const int32_t *across = q > 0 ? &tables->across[(q - 1) * longest] : NULL;
        for (int32_t k = 0; k < longest - 1 && k < q; k++)
            least = smaller(least, before[q - 1 - k] + sums[q] - self->of_sets[across[k]]);
        if (q >= longest)
            least = smaller(least, most[q - longest] + sums[q] - self->of_sets[across[longest - 1]]);
        to[q] = smaller(to[q], least);
    }
}

/* The least cost of any pipeline. */
static double search_cuts(CutSearch *self) {
    int32_t places = self->tables->work->places;
    set_above(self);
    for (int32_t k = 0; k < self->step_count; k++) weigh_step(self, &self->steps[k]);
    double anywhere = find_least(self);
    for (int32_t k = 0; k < self->state_count * (places + 1); k++) self->least[k] = k == 0 ? 0 : INFINITY;
    for (int32_t k = 0; k < self->step_count; k++) take_step(self, &self->steps[k]);
    return anywhere + self->least[self->state_count * (places + 1) - 1];
}

/* ---- subgradient ascent ---- */

/* A stage of the cheapest pipeline: its seconds per iteration. */
typedef struct PathStage {
    const Step *step;
    int32_t first, end; /* places */
    ClassSeconds seconds;
} PathStage;

/* The first place of a stage that ends with place `end` - 1, for the least cost. */
static double find_first(CutSearch *self, const Step *step, int32_t end, int32_t *first) {
    const CutTables *tables = self->tables;
    int32_t places = tables->work->places, longest = tables->longest;
    const double *from = &self->least[step->from * (places + 1)], *sums = self->sums;
    double least = from[end];
    *first = end;
    find_sums(self, step);
    for (int32_t p = 0; p < end; p++) {
        int32_t k = end - 1 - p < longest ? end - 1 - p : longest - 1;
        double cost = from[p] + sums[end] - sums[p] - self->of_sets[tables->across[(end - 1) * longest + k]];
        if (cost >= least) continue;
        least = cost;
        *first = p;
    }
    return least;
}

/* Computes the stage's seconds; items that its border may divide count by the fraction of their cost there.
 */
static void fill_stage(const CutSearch *self, PathStage *stage) {
    const CutTables *tables = self->tables;
    int32_t widths = tables->work->width_count, w = stage->step->width, length = stage->end - stage->first;
    double *sum = &stage->seconds.of[0][0];
    if (length == 0) return;
    for (int32_t p = stage->first; p < stage->end; p++)
        add_seconds(&stage->seconds, &tables->seconds[tables->at[p] * widths + w]);
    int32_t k = length < tables->longest ? length - 1 : tables->longest - 1;
    int32_t set = tables->across[(stage->end - 1) * tables->longest + k];
    const ClassSeconds *seconds = &tables->seconds[set * widths + w];
    double cost = weighed(stage->step->weights, seconds);
    double lost = cost > 0 ? 1 - self->set_across[set] / cost : 0;
    for (int32_t c = 0; c < COUNTS; c++) sum[c] -= lost * (&seconds->of[0][0])[c];
}

/* The stages of the pipeline of least cost, from the last one on. */
static void find_path(CutSearch *self, PathStage *path) {
    int32_t state = self->state_count - 1, end = self->tables->work->places;
    for (int32_t s = self->stages - 1; s >= 0; s--) {
        double least = INFINITY;
        for (int32_t k = 0; k < self->step_count; k++) {
            int32_t first;
            if (self->steps[k].to != state) continue;
            double cost = find_first(self, &self->steps[k], end, &first);
            if (cost >= least) continue;
            least = cost;
            path[s] = (PathStage){.step = &self->steps[k], .first = first, .end = end};
        }
        fill_stage(self, &path[s]);
        state = path[s].step->from;
        end = path[s].first;
    }
}

/* Seconds of the path of a kind that stays on a stage. */
static double path_seconds(const CutSearch *self, const PathStage *path, int32_t kind, int32_t stage) {
    const PathCounts *on = &self->counts[kind][stage];
    double sum = weighed(&on->more[0][0], &path[stage].seconds);
    for (int32_t u = 0; u < self->stages; u++) {
        sum += weighed(&self->counts[kind][u].once[0][0], &path[u].seconds);
        for (int32_t pass = 0; pass < PATH_PASSES && u > stage; pass++)
            sum += on->above[pass] *
                   (path[u].seconds.of[pass][BOUND_SPINE] + path[u].seconds.of[pass][BOUND_BETWEEN]);
    }
    return sum;
}

/* The derivatives of a pipeline's cost by the potentials of its states; returns the sum of their
 * squares. */
static double find_slopes(const CutSearch *self, const PathStage *path, double *slopes[PATH_KINDS]) {
    int32_t last = self->state_count - 1, used = 0;
    double mean = 0, squares = 0;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        memset(slopes[kind], 0, sizeof **slopes * (size_t)self->state_count);
        if (self->potentials[kind][last] == 0) continue;
        for (int32_t s = 0; s < self->stages; s++) {
            double seconds = path_seconds(self, path, kind, s);
            if (s > 0) slopes[kind][path[s].step->from] -= seconds;
            slopes[kind][path[s].step->to] += seconds;
        }
        mean += slopes[kind][last];
        used++;
    }
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        if (self->potentials[kind][last] > 0) slopes[kind][last] -= mean / used; /* ends add up to 1 */
        for (int32_t k = 0; k <= last; k++) squares += slopes[kind][k] * slopes[kind][k];
    }
    return squares;
}

/* Potentials that do not fall and end with 1 together. */
static void move_potentials(CutSearch *self, double *const slopes[PATH_KINDS], double size) {
    int32_t last = self->state_count - 1;
    double sum = 0;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        double *potentials = self->potentials[kind];
        for (int32_t k = 1; k <= last; k++) potentials[k] = larger(potentials[k] + size * slopes[kind][k], 0);
        for (int32_t k = 0; k < self->step_count; k++)
            potentials[self->steps[k].to] =
                larger(potentials[self->steps[k].to], potentials[self->steps[k].from]);
        sum += potentials[last];
    }
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        for (int32_t k = 1; k <= last && sum > 0; k++) self->potentials[kind][k] /= sum;
}

/* Moves potentials so that the cheapest pipeline would cost slightly more than the best bound so far
 * (Polyak's steps); returns the best bound. */
static double ascend(CutSearch *self, int32_t ascent_steps, double enough) {
    PathStage *path = ARENA_ARRAY(&self->arena, PathStage, self->stages);
    double *slopes[PATH_KINDS], bound = search_cuts(self), best = bound;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        slopes[kind] = ARENA_ARRAY(&self->arena, double, self->state_count);
    for (int32_t k = 0; k < ascent_steps && best < enough && !self->arena.failed; k++) {
        find_path(self, path);
        double squares = find_slopes(self, path, slopes);
        if (squares == 0) break;
        move_potentials(self, slopes, (best * (1 + ASCENT) - bound) / squares);
        bound = search_cuts(self);
        best = larger(best, bound);
    }
    return best;
}

static bool open_search(CutSearch *self) {
    const CutTables *tables = self->tables;
    Arena *arena = &self->arena;
    int32_t row = tables->work->places + 1;
    find_steps(self);
    if (arena->failed || (int64_t)self->step_count * row > MOST_STEPS_AND_PLACES) return false;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++) {
        self->counts[kind] = ARENA_ARRAY(arena, PathCounts, self->stages);
        self->potentials[kind] = ARENA_ARRAY(arena, double, self->state_count + 1);
        for (int32_t pass = 0; pass < PATH_PASSES; pass++)
            self->above[kind][pass] = ARENA_ARRAY(arena, double, self->state_count + 1);
        for (int32_t s = 0; s < self->stages && self->counts[kind]; s++)
            self->counts[kind][s] = path_counts((PathKind)kind, self->stages, tables->work->micro_batches, s);
    }
    self->least_weights = ARENA_ARRAY(arena, LeastWeights, tables->work->width_count + 1);
    self->across = ARENA_ARRAY(arena, double, tables->work->class_count + 1);
    self->set_across = ARENA_ARRAY(arena, double, tables->set_count + 1);
    self->of_sets = ARENA_ARRAY(arena, double, tables->set_count + 1);
    self->balance = ARENA_ARRAY(arena, double, self->state_count + 1);
    self->least = ARENA_ARRAY(arena, double, self->state_count *row + 1);
    self->sums = ARENA_ARRAY(arena, double, row);
    self->before = ARENA_ARRAY(arena, double, row);
    self->before_any = ARENA_ARRAY(arena, double, row);
    return !arena->failed;
}

double cut_tables_bound(const CutTables *tables, int32_t stages, const CutMix *mix, int32_t ascent_steps,
                        double enough) {
    CutSearch self = {.tables = tables, .stages = stages};
    double bound = 0;
    if (open_search(&self)) {
        set_balanced_potentials(&self, mix);
        bound = self.arena.failed ? 0 : self.step_count == 0 ? INFINITY : ascend(&self, ascent_steps, enough);
    }
    arena_free(&self.arena);
    return bound;
}
