/* The bound over pipelines; see bound_pipelines.h and docs/optimality.md.
 *
 * For a number of micro-batches M and of stages S the step T is at least, for every stage s, what one turn of
 * all stages takes and what s does in its other turns while the rest of the pipeline waits for it. So for any
 * weights over the stages that add up to at most 1,
 *
 *     T >= sum over groups of items, on stage s of d devices: passed + turns(s) weight(s, d) seconds(d)
 *
 * and the least that each group may pay somewhere is a bound for all cuts at once. Weights are a function of
 * a stage's place and width; they are chosen so that every stage would be worth the same, as large as the
 * widths that add up to all devices allow, which a dynamic program says.
 */
#include "planners/bound_pipelines.h"

#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "cost/additive.h"
#include "planners/border_loss.h"
#include "planners/bound_work.h"
#include "planners/pipeline_paths.h"
#include "propagation/micro_batches.h"

enum { MOST_STAGES = 64, MOST_WIDTHS = 31, MOST_DEVICES = 256 };
enum { HALVINGS = 16, MOST_SETS = 7 };

/* Of one item or several. */
typedef struct DifferentWork {
    OperatorWork work;
    double seconds; /* where that is not run */
    double sum_bytes;
} DifferentWork;

/* Groups that are alike. */
typedef struct GroupClass {
    uint64_t signature;
    int32_t count;
    int32_t first_part, part_count; /* in Bounding.parts */
} GroupClass;

/* An item of a group: one of the different works. */
typedef struct GroupPart {
    int32_t work;
    bool is_backward;
    BoundOrder order;
} GroupPart;

/* Where groups may lie across borders of a pass's spine. */
typedef struct Crossings {
    BorderInterval *intervals;
    int32_t *classes; /* of each */
    int32_t count, interval_capacity, class_capacity;
} Crossings;

/* What stages of one width take for a class in one turn. */
typedef struct ClassSeconds {
    double of[PATH_PASSES][BOUND_ORDERS];
} ClassSeconds;

typedef struct Bounding {
    Arena *arena;
    const PlanContext *whole;
    const Cluster *cluster;
    const ClusterDeviceType *type;
    const BoundSpace *space;
    BoundWork work;
    DifferentWork *works;
    int32_t work_count;
    GroupClass *classes;
    int32_t class_count;
    GroupPart *parts;
    int32_t part_count, part_capacity;
    Crossings crossings[PATH_PASSES];
    int32_t widths[MOST_WIDTHS]; /* devices */
    uint32_t paths;              /* bits by PathKind: those of all schedules that the space has */
    int32_t width_count, most_stages, most_borders;
} Bounding;

/* ---- classes ---- */

static int32_t find_work(Bounding *self, const BoundItem *item) {
    double seconds = item->work.is_run ? 0 : item->seconds;
    for (int32_t k = 0; k < self->work_count; k++)
        if (self->works[k].seconds == seconds && self->works[k].sum_bytes == item->sum_bytes &&
            operator_work_equals(&self->works[k].work, &item->work))
            return k;
    self->works[self->work_count] = (DifferentWork){item->work, seconds, item->sum_bytes};
    return self->work_count++;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

/* A group's items into a class of its own, or that of a group like it. */
static int32_t find_class(Bounding *self, const int32_t *items, int32_t count) {
    GroupClass class = {.count = 1, .first_part = self->part_count, .part_count = count};
    for (int32_t k = 0; k < count; k++) {
        const BoundItem *item = &self->work.items[items[k]];
        GroupPart part = {find_work(self, item), item->is_backward, item->order};
        ARENA_RESERVE(self->arena, self->parts, self->part_count, self->part_capacity);
        if (self->arena->failed) return 0;
        self->parts[self->part_count++] = part;
        class.signature += mix(((uint64_t)part.work * 2 + part.is_backward) * BOUND_ORDERS + part.order + 1);
    }
    for (int32_t c = 0; c < self->class_count; c++)
        if (self->classes[c].signature == class.signature && self->classes[c].part_count == count) {
            self->classes[c].count++;
            self->part_count = class.first_part;
            return c;
        }
    self->classes[self->class_count] = class;
    return self->class_count++;
}

/* Where the items of a group may lie across. */
static void add_crossings(Bounding *self, int32_t class, const int32_t *items, int32_t count) {
    for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
        Crossings *to = &self->crossings[pass];
        BorderInterval hull = {INT32_MAX, 0};
        for (int32_t k = 0; k < count; k++) {
            const BoundItem *item = &self->work.items[items[k]];
            if (item->order == BOUND_ANYWHERE || item->is_backward != (pass == PATH_BACKWARD)) continue;
            if (item->after == item->until) continue; /* on the spine itself */
            if (item->after < hull.first) hull.first = item->after;
            if (item->until > hull.end) hull.end = item->until;
        }
        if (hull.first >= hull.end) continue;
        ARENA_RESERVE(self->arena, to->intervals, to->count, to->interval_capacity);
        ARENA_RESERVE(self->arena, to->classes, to->count, to->class_capacity);
        if (self->arena->failed) return;
        to->intervals[to->count] = hull;
        to->classes[to->count++] = class;
    }
}

static AmStatus find_classes(Bounding *self, AmError *error) {
    const BoundWork *work = &self->work;
    int32_t groups = work->group_count, items = work->item_count;
    int32_t *last = ARENA_ARRAY(self->arena, int32_t, groups + 1); /* items of a group are chained */
    int32_t *before = ARENA_ARRAY(self->arena, int32_t, items + 1);
    int32_t *members = ARENA_ARRAY(self->arena, int32_t, items + 1);
    self->works = ARENA_ARRAY(self->arena, DifferentWork, items + 1);
    self->classes = ARENA_ARRAY(self->arena, GroupClass, items + 2);
    if (self->arena->failed) return am_fail_memory(error, items);
    for (int32_t g = 0; g < groups; g++) last[g] = -1;
    for (int32_t k = 0; k < items; k++) {
        const BoundItem *item = &work->items[k];
        if (item->group < 0) {
            add_crossings(self, find_class(self, &k, 1), &k, 1);
        } else {
            before[k] = last[item->group];
            last[item->group] = k;
        }
    }
    for (int32_t g = 0; g < groups; g++) {
        int32_t count = 0;
        for (int32_t k = last[g]; k >= 0; k = before[k]) members[count++] = k;
        if (count > 0) add_crossings(self, find_class(self, members, count), members, count);
    }
    return self->arena->failed ? am_fail_memory(error, items) : AM_OK;
}

/* ---- widths ---- */

static void list_widths(Bounding *self) {
    int32_t devices = self->cluster->device_count;
    for (int32_t width = 1; width <= devices && self->width_count < MOST_WIDTHS; width++)
        if (devices % width == 0 || (width & (width - 1)) == 0) self->widths[self->width_count++] = width;
    self->most_stages = self->space->most_stages < MOST_STAGES ? self->space->most_stages : MOST_STAGES;
    if (self->most_stages > devices) self->most_stages = devices;
}

/* Paths of every schedule that the space has. */
static uint32_t paths_of(ScheduleKind schedule) {
    switch (schedule) {
    case SCHEDULE_GPIPE:
    case SCHEDULE_1F1B: return 1u << PATH_WORK | 1u << PATH_TURNS | 1u << PATH_LAST;
    case SCHEDULE_ZB_H1: return 1u << PATH_WORK | 1u << PATH_WEIGHTS | 1u << PATH_STAYS;
    default: return 1u << PATH_WORK;
    }
}

/* ---- one number of micro-batches ---- */

/* The tables of a number of micro-batches M: what classes take by width. */
typedef struct Turn {
    const Bounding *of;
    int32_t micro_batches;
    double least;          /* over all numbers of stages */
    ClassSeconds *seconds; /* [class * width_count + width] */
    ClassSeconds all[MOST_WIDTHS];
    AmStatus status;
    AmError error;
    Arena arena;
} Turn;

typedef struct TurnScratch {
    double *lost;         /* [class * PATH_PASSES + pass] where it lies across a border */
    double *of_intervals; /* of the crossings of a pass */
    BorderLoss losses[PATH_PASSES];
} TurnScratch;

static void fill_class(Turn *self, int32_t c, int32_t w, const double *of_works) {
    const Bounding *of = self->of;
    const GroupClass *class = &of->classes[c];
    ClassSeconds *seconds = &self->seconds[c * of->width_count + w];
    for (int32_t k = class->first_part; k < class->first_part + class->part_count; k++) {
        const GroupPart *part = &of->parts[k];
        seconds->of[part->is_backward][part->order] += of_works[part->work];
    }
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            self->all[w].of[pass][order] += class->count * seconds->of[pass][order];
}

/* Seconds of a device's part of one turn. A sum over the batch is read and written in every turn, wherever it
 * is added up. */
static double part_seconds(const Turn *self, const DifferentWork *whole, int32_t devices) {
    double parts = (double)devices * self->micro_batches;
    OperatorWork part = whole->work;
    if (!part.is_run) return whole->seconds / parts;
    part.flops /= parts;
    part.bytes /= parts;
    if (self->micro_batches > 1) part.bytes += whole->sum_bytes * (2 - 1.0 / self->micro_batches) / devices;
    return operator_seconds(&part, self->of->type);
}

static AmStatus fill_turn(Turn *self, AmError *error) {
    const Bounding *of = self->of;
    double *of_works = ARENA_ARRAY(&self->arena, double, of->work_count + 1);
    self->seconds = ARENA_ARRAY(&self->arena, ClassSeconds, of->class_count * of->width_count);
    if (self->arena.failed) return am_fail_memory(error, of->class_count);
    for (int32_t w = 0; w < of->width_count; w++) {
        for (int32_t k = 0; k < of->work_count; k++)
            of_works[k] = part_seconds(self, &of->works[k], of->widths[w]);
        for (int32_t c = 0; c < of->class_count; c++) fill_class(self, c, w, of_works);
    }
    return AM_OK;
}

/* ---- one number of stages ---- */

typedef struct Case {
    const Turn *turn;
    int32_t stages;
    PathKind path;
    uint32_t widths; /* bits: those that stages may have */
    bool is_usable[MOST_WIDTHS];
    bool all_have_to; /* widths have to be there */
    double weight[MOST_STAGES][MOST_WIDTHS];
    double above[MOST_STAGES + 1][PATH_PASSES]; /* at least what weights of the stages before add */
    PathCounts counts[MOST_STAGES];
} Case;

/* Widths that, with those of the other stages, add up to all devices. False: none does, or, where all have
 * to, one does not. */
static bool find_usable(Case *self) {
    const Bounding *of = self->turn->of;
    int32_t devices = of->cluster->device_count, count = 0, wanted = 0;
    bool can[2][MOST_DEVICES + 1] = {{true}};
    for (int32_t s = 1; s < self->stages; s++) {
        bool *from = can[(s - 1) % 2], *to = can[s % 2];
        memset(to, 0, sizeof can[0]);
        for (int32_t w = 0; w < of->width_count; w++)
            for (int32_t d = 0; (self->widths >> w & 1) && d + of->widths[w] <= devices; d++)
                to[d + of->widths[w]] |= from[d];
    }
    for (int32_t w = 0; w < of->width_count; w++) {
        bool is_left = can[(self->stages - 1) % 2][devices - of->widths[w]];
        self->is_usable[w] = (self->widths >> w & 1) && is_left;
        count += self->is_usable[w];
        wanted += self->widths >> w & 1;
    }
    return count > 0 && (count == wanted || !self->all_have_to);
}

static double sum_counts(const double (*counts)[BOUND_ORDERS], const ClassSeconds *seconds) {
    double sum = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            sum += counts[pass][order] * seconds->of[pass][order];
    return sum;
}

/* What stages before a class's add to its passing. */
static double sum_above(const double above[PATH_PASSES], const ClassSeconds *seconds) {
    double sum = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++) sum += above[pass] * seconds->of[pass][BOUND_BETWEEN];
    return sum;
}

static void set_above(Case *self, int32_t s) {
    double least = INFINITY;
    for (int32_t w = 0; w < self->turn->of->width_count; w++)
        if (self->is_usable[w]) least = fmin(least, self->weight[s][w]);
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        self->above[s + 1][pass] = self->above[s][pass] + least * self->counts[s].above[pass];
}

/* Weights by which all groups together would pay `each` on any stage. */
static void set_weights(Case *self, double each) {
    const Turn *turn = self->turn;
    for (int32_t s = 0; s < self->stages; s++) {
        const PathCounts *counts = &self->counts[s];
        for (int32_t w = 0; w < turn->of->width_count; w++) {
            const ClassSeconds *all = &turn->all[w];
            double wanted = each - sum_counts(counts->once, all) - sum_above(self->above[s], all);
            double more = sum_counts(counts->more, all);
            self->weight[s][w] = more > 0 ? fmax(wanted / more, 0) : 0;
        }
        set_above(self, s);
    }
}

/* The most that the weights of a pipeline add up to; -1: no widths add up to all devices. */
static double heaviest(const Case *self) {
    const Bounding *of = self->turn->of;
    int32_t devices = of->cluster->device_count;
    double sums[2][MOST_DEVICES + 1]; /* [before, after a stage][devices] */
    for (int32_t d = 0; d <= devices; d++) sums[0][d] = d == 0 ? 0 : -1;
    for (int32_t s = 0; s < self->stages; s++) {
        double *from = sums[s % 2], *to = sums[(s + 1) % 2];
        for (int32_t d = 0; d <= devices; d++) to[d] = -1;
        for (int32_t w = 0; w < of->width_count; w++)
            for (int32_t d = 0; self->is_usable[w] && d + of->widths[w] <= devices; d++)
                if (from[d] >= 0)
                    to[d + of->widths[w]] = fmax(to[d + of->widths[w]], from[d] + self->weight[s][w]);
    }
    return sums[self->stages % 2][devices];
}

/* What a class pays on a stage of some width; `lost`: what it does not where it lies across a border of a
 * pass.
 */
static double class_pays(const Case *self, int32_t c, int32_t s, int32_t w, double lost[PATH_PASSES]) {
    const PathCounts *counts = &self->counts[s];
    const Turn *turn = self->turn;
    const ClassSeconds *seconds = &turn->seconds[c * turn->of->width_count + w];
    double weight = self->weight[s][w], pays = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
        lost[pass] = self->above[s][pass] * seconds->of[pass][BOUND_BETWEEN];
        pays += lost[pass];
        for (int32_t order = 0; order < BOUND_ORDERS; order++) {
            double once = counts->once[pass][order], more = weight * counts->more[pass][order];
            pays += (once + more) * seconds->of[pass][order];
            lost[pass] += (once + more - weight * counts->across[pass][order]) * seconds->of[pass][order];
        }
    }
    return pays;
}

/* What a class pays at the least; `lost`: how much less it may be where it lies across a border of a pass. */
static double least_of_class(const Case *self, int32_t c, double lost[PATH_PASSES]) {
    double least[1 << PATH_PASSES] = {INFINITY, INFINITY, INFINITY, INFINITY}; /* across borders of (bits) */
    for (int32_t s = 0; s < self->stages; s++)
        for (int32_t w = 0; w < self->turn->of->width_count; w++) {
            double here[PATH_PASSES], pays;
            if (!self->is_usable[w]) continue;
            pays = class_pays(self, c, s, w, here);
            least[0] = fmin(least[0], pays);
            least[1] = fmin(least[1], pays - here[PATH_FORWARD]);
            least[2] = fmin(least[2], pays - here[PATH_BACKWARD]);
            least[3] = fmin(least[3], pays - here[PATH_FORWARD] - here[PATH_BACKWARD]);
        }
    lost[PATH_FORWARD] = least[0] - least[1];
    lost[PATH_BACKWARD] = fmax(least[0] - least[2], least[1] - least[3]);
    return least[0];
}

/* Weights by which groups pay as much as the widths that add up to all devices allow. */
static void set_balanced_weights(Case *self) {
    const Turn *turn = self->turn;
    const double every[PATH_PASSES][BOUND_ORDERS] = {{1, 1, 1}, {1, 1, 1}};
    double low = 0, high = 1;
    for (int32_t k = 0; k < self->stages; k++)
        self->counts[k] = path_counts(self->path, self->stages, turn->micro_batches, k);
    for (int32_t w = 0; w < turn->of->width_count; w++)
        high = fmax(high, (turn->micro_batches + 1) * sum_counts(every, &turn->all[w]));
    for (int32_t k = 0; k < HALVINGS; k++) {
        double middle = (low + high) / 2;
        set_weights(self, middle);
        if (heaviest(self) <= 1) low = middle;
        else high = middle;
    }
    set_weights(self, low);
}

/* With the weights that are set; `lost`: of each class in each pass. */
static double sum_classes(const Case *self, double *lost) {
    const Bounding *of = self->turn->of;
    double sum = 0;
    for (int32_t c = 0; c < of->class_count; c++)
        sum += of->classes[c].count * least_of_class(self, c, &lost[PATH_PASSES * c]);
    return sum;
}

/* What all groups pay, less what may lie across borders: for each pass at most what S - 1 places of its spine
 * meet, each group once, as it has one passing. Not worked out where less or more of it is of no use:
 * `best` is known already and `enough` is enough. */
static double bound_case(Case *self, double best, double enough, TurnScratch *scratch) {
    const Turn *turn = self->turn;
    double of_one = 0, of_each = 0, least = 0;
    set_balanced_weights(self);
    if (heaviest(self) < 0) return INFINITY;
    double sum = sum_classes(self, scratch->lost);
    if (self->path == PATH_WORK || sum <= best) return sum;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
        const Crossings *crossings = &turn->of->crossings[pass];
        double all = 0;
        for (int32_t k = 0; k < crossings->count; k++) {
            scratch->of_intervals[k] = scratch->lost[PATH_PASSES * crossings->classes[k] + pass];
            all += scratch->of_intervals[k];
        }
        border_loss_weigh(&scratch->losses[pass], scratch->of_intervals);
        double one = border_loss_of_one(&scratch->losses[pass]);
        of_one += one;
        of_each += fmin((self->stages - 1) * one, all);
    }
    if (self->stages == 1) return sum;
    if (sum - of_one <= best || sum - of_each >= enough || self->stages == 2) return sum - of_each;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        least += border_loss_of(&scratch->losses[pass], self->stages - 1);
    return sum - fmin(least, of_each);
}

/* The best over the paths, or the first that is enough. */
static double bound_widths(Case *self, double enough, TurnScratch *scratch) {
    double best = 0;
    for (int32_t path = PATH_KINDS - 1; path >= 0 && best < enough; path--) {
        bool is_one = path != PATH_WORK && self->stages == 1;
        if (is_one || !(self->turn->of->paths >> path & 1)) continue;
        self->path = (PathKind)path;
        best = fmax(best, bound_case(self, best, enough, scratch));
    }
    return best;
}

/* The least over all sets of widths that pipelines of so many stages can have, or `least`. Where there are
 * many widths, over all of them at once. */
static double bound_stages(const Turn *turn, int32_t stages, double least, TurnScratch *scratch) {
    int32_t widths = turn->of->width_count;
    uint32_t all = (1u << widths) - 1, first = widths <= MOST_SETS ? 1 : all;
    for (uint32_t set = first; set <= all; set++) {
        Case here = {.turn = turn, .stages = stages, .widths = set, .all_have_to = first == 1};
        if (find_usable(&here)) least = fmin(least, bound_widths(&here, least, scratch));
    }
    return least;
}

static AmStatus open_scratch(TurnScratch *scratch, Turn *self, AmError *error) {
    const Bounding *of = self->of;
    int32_t most = 0;
    for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
        const Crossings *crossings = &of->crossings[pass];
        if (crossings->count > most) most = crossings->count;
        scratch->losses[pass] =
            border_loss_create(&self->arena, crossings->intervals, crossings->count, of->most_borders);
    }
    scratch->lost = ARENA_ARRAY(&self->arena, double, PATH_PASSES * of->class_count);
    scratch->of_intervals = ARENA_ARRAY(&self->arena, double, most + 1);
    return self->arena.failed ? am_fail_memory(error, of->class_count) : AM_OK;
}

static void turn_task(void *user, int32_t k) {
    Turn *self = (Turn *)user + k;
    TurnScratch scratch;
    self->least = INFINITY;
    self->status = open_scratch(&scratch, self, &self->error);
    if (self->status == AM_OK) self->status = fill_turn(self, &self->error);
    for (int32_t stages = 1; stages <= self->of->most_stages && self->status == AM_OK; stages++)
        self->least = bound_stages(self, stages, self->least, &scratch);
    arena_free(&self->arena);
}

/* ---- all of it ---- */

static AmStatus bound_numbers(double *seconds, Bounding *self, AmError *error) {
    int32_t numbers[MICRO_BATCHES_MOST_NUMBERS];
    int32_t count = micro_batches_numbers(numbers, self->whole, self->space->micro_batches);
    Turn *turns = ARENA_ARRAY(self->arena, Turn, count);
    if (!turns) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++) turns[k] = (Turn){.of = self, .micro_batches = numbers[k]};
    parallel_for(count, 0, turn_task, turns);
    double least = INFINITY;
    for (int32_t k = 0; k < count; k++) {
        if (turns[k].status != AM_OK && error) *error = turns[k].error;
        TRY(turns[k].status);
        least = fmin(least, turns[k].least);
    }
    *seconds = least;
    return AM_OK;
}

static bool is_simple(const Cluster *cluster) {
    return cluster->type_count == 1 && cluster->device_count > 1 && cluster->device_count <= MOST_DEVICES;
}

static AmStatus bound_pipelines(double *seconds, Arena *arena, const PlanContext *whole,
                                const Cluster *cluster, const BoundSpace *space, AmError *error) {
    const ClusterDeviceType *type = cluster_device_type(cluster, 0);
    Bounding self = {.arena = arena,
                     .whole = whole,
                     .cluster = cluster,
                     .type = type,
                     .space = space,
                     .paths = paths_of(space->schedule)};
    bool known;
    TRY(bound_work_find(&self.work, &known, arena, whole, cluster, 0, error));
    if (!known) return AM_OK;
    self.most_borders = self.work.spine_count[0] + self.work.spine_count[1];
    TRY(find_classes(&self, error));
    list_widths(&self);
    return bound_numbers(seconds, &self, error);
}

AmStatus plan_bound_pipelines(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                              const BoundSpace *space, AmError *error) {
    Arena arena = {0};
    double seconds = 0;
    AmStatus status = plan_bound_of_work(bound, whole, cluster, error);
    if (status == AM_OK && !isnan(bound->seconds) && is_simple(cluster))
        status = bound_pipelines(&seconds, &arena, whole, cluster, space, error);
    if (status == AM_OK && isfinite(seconds)) bound->seconds = fmax(bound->seconds, seconds);
    arena_free(&arena);
    return status;
}

/* ---- work alone ---- */

/* Work in parts is less efficient than whole, or as efficient. */
static bool is_rising(const ClusterCurve *curve) {
    for (int32_t k = 1; k < curve->count; k++)
        if (curve->fractions[k] < curve->fractions[k - 1]) return false;
    return true;
}

static double least_label(const AdditiveNode *node) {
    double least = INFINITY;
    for (int32_t label = 0; label < node->label_count; label++) least = fmin(least, node->seconds[label]);
    return least;
}

/* What each operator takes on one device of a type, whole: seconds[node]. NULL where nothing is claimed. */
static AmStatus whole_seconds(double **seconds, int32_t *count, Arena *arena, const PlanContext *whole,
                              const Cluster *cluster, int32_t device, AmError *error) {
    const Mesh alone = {.axis_count = 1, .axes = {{.name = "data", .size = 1}}, .device_count = 1};
    const ClusterDeviceType *type = cluster_device_type(cluster, device);
    AdditiveModel *model = NULL;
    *seconds = NULL;
    if (is_rising(&type->dot) && is_rising(&type->convolution) && is_rising(&type->memory))
        TRY(additive_create(&model, arena, whole, &alone, cluster, &device, error));
    if (!model) return AM_OK;
    *count = model->node_count;
    *seconds = ARENA_ARRAY(arena, double, model->node_count + 1);
    if (!*seconds) return am_fail_memory(error, model->node_count);
    for (int32_t n = 0; n < model->node_count; n++)
        (*seconds)[n] = model->nodes[n].seconds ? least_label(&model->nodes[n]) : 0;
    return AM_OK;
}

static AmStatus bound_work(PlanBound *bound, Arena *arena, const PlanContext *whole, const Cluster *cluster,
                           AmError *error) {
    double **seconds = ARENA_ARRAY(arena, double *, cluster->type_count);
    double *weight = ARENA_ARRAY(arena, double, cluster->type_count);
    int32_t count = 0;
    double weights = 0;
    if (arena->failed) return am_fail_memory(error, cluster->type_count);
    for (int32_t d = 0; d < cluster->device_count; d++) {
        int32_t t = (int32_t)(cluster_device_type(cluster, d) - cluster->types);
        if (!seconds[t]) TRY(whole_seconds(&seconds[t], &count, arena, whole, cluster, d, error));
        if (!seconds[t]) return AM_OK;
        double all = 0;
        for (int32_t n = 0; n < count && weight[t] == 0; n++) all += seconds[t][n];
        if (weight[t] == 0) weight[t] = all > 0 ? 1 / all : 1;
        weights += weight[t];
    }
    /* Of a step of T seconds all devices together have weights x T; each operator takes of that the least
     * that some type takes for it. */
    double least = 0;
    for (int32_t n = 0; n < count; n++) {
        double here = INFINITY;
        for (int32_t t = 0; t < cluster->type_count; t++)
            if (seconds[t]) here = fmin(here, weight[t] * seconds[t][n]);
        least += here;
    }
    bound->seconds = least / weights;
    return AM_OK;
}

AmStatus plan_bound_of_work(PlanBound *bound, const PlanContext *whole, const Cluster *cluster,
                            AmError *error) {
    Arena arena = {0};
    *bound = (PlanBound){NAN, NAN};
    AmStatus status = bound_work(bound, &arena, whole, cluster, error);
    arena_free(&arena);
    return status;
}
