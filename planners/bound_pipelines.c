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
#include "cost/collective.h"
#include "planners/bound_work.h"
#include "propagation/micro_batches.h"

enum { MOST_STAGES = 64, MOST_WIDTHS = 31, MOST_NUMBERS = 17, MOST_DEVICES = 256, MOST_CLASSES = 4096 };
enum { FORWARD, BACKWARD, PASSES };
enum { HALVINGS = 16, MOST_SETS = 7 };

/* Of one item or several. */
typedef struct DifferentWork {
    OperatorWork work;
    double seconds; /* where that is not run */
} DifferentWork;

/* Groups that are alike. */
typedef struct GroupClass {
    uint64_t signature;
    int32_t count;
    int32_t first_part, part_count; /* in Bounding.parts */
    double weight_bytes;
} GroupClass;

/* An item of a group: one of the different works. */
typedef struct GroupPart {
    int32_t work;
    bool is_backward;
    BoundOrder order;
} GroupPart;

/* A class that may lie across a border of a pass's spine. */
typedef struct Crossing {
    int32_t pass, border, class;
} Crossing;

/* What stages of one width take for a class in one turn; `reduce`: once, to add up its gradients. */
typedef struct ClassSeconds {
    double of[PASSES][BOUND_ORDERS], reduce;
} ClassSeconds;

typedef struct Width {
    int32_t devices;
    bool is_wide;           /* than any server: its gradients go between servers */
    double reduce_per_byte; /* seconds that they take at the least; 0: not known */
} Width;

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
    Crossing *crossings;
    int32_t crossing_count, crossing_capacity;
    Width widths[MOST_WIDTHS];
    uint32_t wide_widths; /* bits */
    int32_t width_count, most_stages, most_borders;
    double memory_rate; /* the best */
} Bounding;

/* ---- classes ---- */

static int32_t find_work(Bounding *self, const BoundItem *item) {
    double seconds = item->work.is_run ? 0 : item->seconds;
    for (int32_t k = 0; k < self->work_count; k++)
        if (self->works[k].seconds == seconds && operator_work_equals(&self->works[k].work, &item->work))
            return k;
    self->works[self->work_count] = (DifferentWork){item->work, seconds};
    return self->work_count++;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

/* A group's items into a class of its own, or that of a group like it. */
static int32_t find_class(Bounding *self, const int32_t *items, int32_t count, double weight_bytes) {
    GroupClass class = {.count = 1, .first_part = self->part_count, .weight_bytes = weight_bytes};
    uint64_t bytes;
    memcpy(&bytes, &weight_bytes, sizeof bytes);
    class.signature = mix(bytes);
    for (int32_t k = 0; k < count; k++) {
        const BoundItem *item = &self->work.items[items[k]];
        GroupPart part = {find_work(self, item), item->is_backward, item->order};
        ARENA_RESERVE(self->arena, self->parts, self->part_count, self->part_capacity);
        if (self->arena->failed) return 0;
        self->parts[self->part_count++] = part;
        class.signature += mix(((uint64_t)part.work * 2 + part.is_backward) * BOUND_ORDERS + part.order + 1);
    }
    class.part_count = count;
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
    for (int32_t pass = 0; pass < PASSES; pass++) {
        int32_t first = INT32_MAX, end = 0;
        for (int32_t k = 0; k < count; k++) {
            const BoundItem *item = &self->work.items[items[k]];
            if (item->order == BOUND_ANYWHERE || item->is_backward != (pass == BACKWARD)) continue;
            if (item->after < first) first = item->after;
            if (item->until > end) end = item->until;
        }
        for (int32_t border = first; border < end; border++) {
            ARENA_RESERVE(self->arena, self->crossings, self->crossing_count, self->crossing_capacity);
            if (self->arena->failed) return;
            self->crossings[self->crossing_count++] = (Crossing){pass, border, class};
        }
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
            add_crossings(self, find_class(self, &k, 1, 0), &k, 1);
        } else {
            before[k] = last[item->group];
            last[item->group] = k;
        }
    }
    for (int32_t g = 0; g < groups; g++) {
        int32_t count = 0;
        for (int32_t k = last[g]; k >= 0; k = before[k]) members[count++] = k;
        if (count > 0)
            add_crossings(self, find_class(self, members, count, work->weight_bytes[g]), members, count);
    }
    return self->arena->failed ? am_fail_memory(error, items) : AM_OK;
}

/* ---- widths ---- */

static int32_t largest_server(const Cluster *cluster) {
    int32_t most = 1;
    for (int32_t s = 0; s < cluster->server_count; s++)
        if (cluster->servers[s].device_count > most) most = cluster->servers[s].device_count;
    return most;
}

static void list_widths(Bounding *self) {
    int32_t devices = self->cluster->device_count, most = largest_server(self->cluster);
    for (int32_t width = 1; width <= devices && self->width_count < MOST_WIDTHS; width++)
        if (devices % width == 0 || (width & (width - 1)) == 0)
            self->widths[self->width_count++] = (Width){.devices = width, .is_wide = width > most};
    for (int32_t k = 0; k < self->width_count; k++)
        self->wide_widths |= (uint32_t)self->widths[k].is_wide << k;
    self->most_stages = self->space->most_stages < MOST_STAGES ? self->space->most_stages : MOST_STAGES;
    if (self->most_stages > devices) self->most_stages = devices;
}

static bool has_equal_servers(const Cluster *cluster) {
    for (int32_t s = 1; s < cluster->server_count; s++)
        if (cluster->servers[s].device_count != cluster->servers[0].device_count ||
            cluster->servers[s].link != cluster->servers[0].link)
            return false;
    return true;
}

/* Seconds for each byte of a weight whose gradients a stage of this width adds up: at least a reduce-scatter
 * over the devices that share the batch, by the tensor degree at which that is quickest. */
static AmStatus find_reduction(const Bounding *self, Width *width, AmError *error) {
    const double many = 1e15; /* past all latencies and bends of curves */
    int32_t most = largest_server(self->cluster), count = width->devices;
    int32_t *devices = ARENA_ARRAY(self->arena, int32_t, count);
    if (!devices) return am_fail_memory(error, count);
    for (int32_t d = 0; d < count; d++) devices[d] = d;
    width->reduce_per_byte = INFINITY;
    for (int32_t tensor = 1; tensor <= most; tensor++) {
        CollectivePartition partition;
        if (count % tensor != 0) continue;
        const Mesh mesh = {
            .axis_count = 2,
            .axes = {{.name = "data", .size = count / tensor}, {.name = "model", .size = tensor}},
            .device_count = count};
        TRY(collective_partition(&partition, self->arena, self->cluster, &mesh, devices, 1, error));
        double seconds = 0;
        for (int32_t g = 0; g < partition.distinct_count; g++)
            seconds = fmax(seconds, collective_seconds(PROGRAM_REDUCE_SCATTER, many, &partition.distinct[g],
                                                       self->cluster));
        width->reduce_per_byte = fmin(width->reduce_per_byte, seconds / many / tensor);
    }
    return AM_OK;
}

static AmStatus find_widths(Bounding *self, AmError *error) {
    list_widths(self);
    for (int32_t k = 0; k < self->width_count; k++)
        if (self->widths[k].is_wide && !self->space->any_lists && has_equal_servers(self->cluster))
            TRY(find_reduction(self, &self->widths[k], error));
    return AM_OK;
}

/* ---- one number of micro-batches ---- */

/* The tables of a number of micro-batches M: what classes take by width. */
typedef struct Turn {
    const Bounding *of;
    int32_t micro_batches;
    double least;          /* over all numbers of stages */
    ClassSeconds *seconds; /* [class * width_count + width] */
    ClassSeconds all[MOST_WIDTHS];
    bool is_possible[MOST_WIDTHS];
    AmStatus status;
    AmError error;
    Arena arena;
} Turn;

static void fill_class(Turn *self, int32_t c, int32_t w, const double *of_works) {
    const Bounding *of = self->of;
    const GroupClass *class = &of->classes[c];
    double devices = of->widths[w].devices;
    ClassSeconds *seconds = &self->seconds[c * of->width_count + w];
    for (int32_t k = class->first_part; k < class->first_part + class->part_count; k++) {
        const GroupPart *part = &of->parts[k];
        seconds->of[part->is_backward][part->order] += of_works[part->work];
    }
    /* Sums of gradients are read, added to and written in every turn. */
    if (self->micro_batches > 1)
        seconds->of[BACKWARD][BOUND_BEHIND] += 3 * class->weight_bytes / devices / of->memory_rate;
    seconds->reduce = class->weight_bytes * of->widths[w].reduce_per_byte;
    for (int32_t pass = 0; pass < PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            self->all[w].of[pass][order] += class->count * seconds->of[pass][order];
}

static AmStatus fill_turn(Turn *self, AmError *error) {
    const Bounding *of = self->of;
    double *of_works = ARENA_ARRAY(&self->arena, double, of->work_count + 1);
    int32_t most = largest_server(of->cluster);
    int64_t batch = micro_batches_limit(of->whole);
    self->seconds = ARENA_ARRAY(&self->arena, ClassSeconds, of->class_count * of->width_count);
    if (self->arena.failed) return am_fail_memory(error, of->class_count);
    for (int32_t w = 0; w < of->width_count; w++) {
        int32_t devices = of->widths[w].devices, data = (devices + most - 1) / most;
        self->is_possible[w] = of->space->any_lists || devices == 1 || self->micro_batches == 1 ||
                               (int64_t)data * self->micro_batches <= batch;
        for (int32_t k = 0; k < of->work_count; k++) {
            double parts = (double)devices * self->micro_batches;
            OperatorWork part = of->works[k].work;
            part.flops /= parts;
            part.bytes /= parts;
            of_works[k] = part.is_run ? operator_seconds(&part, of->type) : of->works[k].seconds / parts;
        }
        for (int32_t c = 0; c < of->class_count; c++) fill_class(self, c, w, of_works);
    }
    return AM_OK;
}

/* ---- one number of stages ---- */

/* What a turn counts: T is at least what all stages pass once and what stage s does in its other turns. */
typedef enum Filling {
    FILLS,          /* 1F1B and GPipe */
    FILLS_FORWARDS, /* ZB-H1: what gives the weights' gradients waits */
    FILLS_NOTHING   /* any schedule */
} Filling;

/* What counts of a turn: once, whichever stage counts, and as often as said for the stage that counts. */
typedef struct Counts {
    double once[PASSES][BOUND_ORDERS], more[PASSES][BOUND_ORDERS];
    double across[PASSES][BOUND_ORDERS]; /* as `more`, of what lies across a border */
} Counts;

typedef struct Case {
    const Turn *turn;
    int32_t stages;
    Filling filling;
    uint32_t widths;      /* bits: those that stages may have */
    bool has_wide;        /* stages, one at least; or none */
    double of_reductions; /* weight of what wide stages take to add up gradients */
    bool is_usable[MOST_WIDTHS];
    int32_t most_wide;
    bool all_have_to;   /* widths have to be there */
    bool by_reductions; /* and nothing else that they do */
    double weight[MOST_STAGES][MOST_WIDTHS];
    Counts counts[MOST_STAGES];
} Case;

/* Turns of the forward pass before the first of the backward pass. */
static int32_t turns_ahead(const Case *self, int32_t stage) {
    int32_t turns = self->turn->micro_batches, behind = self->stages - stage;
    return turns < behind ? turns : behind;
}

static bool is_allowed(const Case *self, int32_t w) {
    bool is_listed = self->widths >> w & 1 && self->turn->is_possible[w];
    return is_listed && (self->has_wide || !self->turn->of->widths[w].is_wide);
}

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
            for (int32_t d = 0; is_allowed(self, w) && d + of->widths[w].devices <= devices; d++)
                to[d + of->widths[w].devices] |= from[d];
    }
    for (int32_t w = 0; w < of->width_count; w++) {
        bool is_left = can[(self->stages - 1) % 2][devices - of->widths[w].devices];
        self->is_usable[w] = is_allowed(self, w) && is_left;
        count += self->is_usable[w];
        wanted += self->widths >> w & 1;
    }
    return count > 0 && (count == wanted || !self->all_have_to);
}

static Counts counts_of(const Case *self, int32_t stage) {
    double turns = self->turn->micro_batches, left = turns - turns_ahead(self, stage);
    Counts counts = {0};
    if (self->filling == FILLS_NOTHING) {
        for (int32_t pass = 0; pass < PASSES; pass++)
            for (int32_t order = 0; order < BOUND_ORDERS; order++)
                counts.more[pass][order] = counts.across[pass][order] = turns;
        return counts;
    }
    counts.once[FORWARD][BOUND_BETWEEN] = 1;
    counts.once[BACKWARD][BOUND_BETWEEN] = self->filling == FILLS;
    for (int32_t order = 0; order < BOUND_ORDERS; order++)
        counts.more[FORWARD][order] = counts.across[FORWARD][order] = left;
    double last = self->filling == FILLS ? 1 : 0; /* turns that may be behind what the stage before takes */
    counts.more[BACKWARD][BOUND_ANYWHERE] = fmax(turns - 1 - last, 0);
    counts.more[BACKWARD][BOUND_BETWEEN] = turns - last;
    counts.more[BACKWARD][BOUND_BEHIND] = turns - last;
    counts.across[BACKWARD][BOUND_ANYWHERE] = fmax(turns - 1 - last, 0);
    counts.across[BACKWARD][BOUND_BETWEEN] = turns - 1;
    counts.across[BACKWARD][BOUND_BEHIND] = fmax(turns - 1 - last, 0);
    return counts;
}

static double sum_counts(const double (*counts)[BOUND_ORDERS], const ClassSeconds *seconds) {
    double sum = 0;
    for (int32_t pass = 0; pass < PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            sum += counts[pass][order] * seconds->of[pass][order];
    return sum;
}

/* Stages that can be wide at once. Where all widths have to be there, the others leave so many devices less.
 */
static int32_t most_wide(const Case *self) {
    const Bounding *of = self->turn->of;
    int32_t left = of->cluster->device_count, narrowest = left;
    for (int32_t w = 0; w < of->width_count; w++) {
        if (!(self->widths >> w & 1)) continue;
        if (!of->widths[w].is_wide) left -= self->all_have_to ? of->widths[w].devices : 0;
        else if (of->widths[w].devices < narrowest) narrowest = of->widths[w].devices;
    }
    int32_t most = left / narrowest;
    if (most > self->stages) most = self->stages;
    return most > 1 ? most : 1;
}

/* Weights by which all groups together would pay `each` on any stage. */
static void set_weights(Case *self, double each) {
    const Turn *turn = self->turn;
    for (int32_t s = 0; s < self->stages; s++) {
        const Counts *counts = &self->counts[s];
        for (int32_t w = 0; w < turn->of->width_count; w++) {
            double wanted = each - sum_counts(counts->once, &turn->all[w]);
            double more = sum_counts(counts->more, &turn->all[w]);
            if (self->by_reductions && turn->of->widths[w].is_wide) more = 0;
            self->weight[s][w] = more > 0 ? fmax(wanted / more, 0) : 0;
        }
    }
}

/* The most that the weights of a pipeline add up to; -1: no widths add up to all devices. */
static double heaviest(const Case *self) {
    const Bounding *of = self->turn->of;
    int32_t devices = of->cluster->device_count;
    double sums[2][2][MOST_DEVICES + 1]; /* [before, after a stage][whether one is wide][devices] */
    for (int32_t k = 0; k < 2; k++)
        for (int32_t d = 0; d <= devices; d++) sums[0][k][d] = k == 0 && d == 0 ? 0 : -1;
    for (int32_t s = 0; s < self->stages; s++) {
        double(*from)[MOST_DEVICES + 1] = sums[s % 2], (*to)[MOST_DEVICES + 1] = sums[(s + 1) % 2];
        for (int32_t k = 0; k < 2; k++)
            for (int32_t d = 0; d <= devices; d++) to[k][d] = -1;
        for (int32_t w = 0; w < of->width_count; w++) {
            int32_t width = of->widths[w].devices;
            for (int32_t k = 0; k < 2 && self->is_usable[w]; k++)
                for (int32_t d = 0; d + width <= devices; d++) {
                    double *sum = &to[of->widths[w].is_wide ? 1 : k][d + width];
                    if (from[k][d] >= 0) *sum = fmax(*sum, from[k][d] + self->weight[s][w]);
                }
        }
    }
    return sums[self->stages % 2][self->has_wide][devices];
}

/* What a class loses where it lies across a border of a pass. */
static double lost_across(const Counts *counts, const ClassSeconds *seconds, double rest, double weight,
                          int32_t pass) {
    double lost = 0;
    for (int32_t order = 0; order < BOUND_ORDERS; order++)
        lost +=
            seconds->of[pass][order] * (rest * counts->once[pass][order] +
                                        weight * (counts->more[pass][order] - counts->across[pass][order]));
    return lost;
}

/* What a class pays at the least; `lost`: how much less it may be where it lies across a border of a pass. */
static double least_of_class(const Case *self, int32_t c, double lost[PASSES]) {
    const Turn *turn = self->turn;
    const Bounding *of = turn->of;
    double rest = 1 - self->of_reductions;
    double least[1 << PASSES] = {INFINITY, INFINITY, INFINITY,
                                 INFINITY}; /* across borders of passes (bits) */
    for (int32_t s = 0; s < self->stages; s++) {
        const Counts *counts = &self->counts[s];
        for (int32_t w = 0; w < of->width_count; w++) {
            const ClassSeconds *seconds = &turn->seconds[c * of->width_count + w];
            if (!self->is_usable[w]) continue;
            double weight = self->weight[s][w], reduction = 0;
            if (of->widths[w].is_wide) reduction = self->of_reductions / self->most_wide * seconds->reduce;
            double pays = rest * sum_counts(counts->once, seconds) +
                          weight * sum_counts(counts->more, seconds) + reduction;
            double forward = lost_across(counts, seconds, rest, weight, FORWARD);
            double backward = lost_across(counts, seconds, rest, weight, BACKWARD);
            least[0] = fmin(least[0], pays);
            least[1] = fmin(least[1], pays - forward);
            least[2] = fmin(least[2], pays - backward);
            least[3] = fmin(least[3], pays - forward - backward);
        }
    }
    lost[FORWARD] = least[0] - least[1];
    lost[BACKWARD] = fmax(least[0] - least[2], least[1] - least[3]);
    return least[0];
}

/* With the weights that are set. */
static double sum_classes(const Case *self, double *across) {
    const Bounding *of = self->turn->of;
    double sum = 0;
    for (int32_t c = 0; c < of->class_count; c++)
        sum += of->classes[c].count * least_of_class(self, c, &across[PASSES * c]);
    return sum;
}

/* The most that a border of each pass's spine may have across it. */
static double most_across(const Bounding *of, const double *across, double *of_border) {
    double most = 0;
    for (int32_t pass = 0; pass < PASSES; pass++) {
        double here = 0;
        memset(of_border, 0, sizeof *of_border * (size_t)(of->most_borders + 1));
        for (int32_t k = 0; k < of->crossing_count; k++) {
            const Crossing *crossing = &of->crossings[k];
            if (crossing->pass != pass) continue;
            of_border[crossing->border] += across[PASSES * crossing->class + pass];
            here = fmax(here, of_border[crossing->border]);
        }
        most += here;
    }
    return most;
}

static double bound_case(Case *self, double *across, double *of_border) {
    const Turn *turn = self->turn;
    double low = 0, high = 1, rest = 1 - self->of_reductions;
    self->most_wide = most_wide(self);
    for (int32_t k = 0; k < self->stages; k++) self->counts[k] = counts_of(self, k);
    set_weights(self, 0);
    if (heaviest(self) < 0) return INFINITY;
    const double every[PASSES][BOUND_ORDERS] = {{1, 1, 1}, {1, 1, 1}};
    for (int32_t w = 0; w < turn->of->width_count; w++)
        high = fmax(high, (turn->micro_batches + 1) * sum_counts(every, &turn->all[w]));
    for (int32_t k = 0; k < HALVINGS; k++) {
        double middle = (low + high) / 2;
        set_weights(self, middle);
        if (heaviest(self) <= rest) low = middle;
        else high = middle;
    }
    set_weights(self, low);
    double sum = sum_classes(self, across);
    if (self->filling == FILLS_NOTHING) return sum;
    return sum - (self->stages - 1) * most_across(turn->of, across, of_border);
}

/* The best over what counts, or the first that is enough: how much what wide stages take to add up gradients,
 * and whether a pipeline fills. */
static double bound_widths(Case *self, Filling filling, double enough, double *across, double *of_border) {
    static const struct {
        double of_reductions;
        bool by_reductions;
    } tried[] = {{0.15, true}, {0.2, true}, {0.1, true}, {0.3, true}, {0.5, false}, {0.02, false}};
    /* One stage with one turn may have any lists. */
    bool reduces = self->has_wide && (self->stages > 1 || self->turn->micro_batches > 1);
    double best = 0;
    for (size_t k = 0; k < (reduces ? sizeof tried / sizeof *tried : 1) && best < enough; k++)
        for (int32_t plain = 0; plain < 2 && best < enough; plain++) {
            if (plain == 0 && self->stages == 1) continue;
            self->of_reductions = reduces ? tried[k].of_reductions : 0;
            self->by_reductions = reduces && tried[k].by_reductions;
            self->filling = plain == 1 ? FILLS_NOTHING : filling;
            best = fmax(best, bound_case(self, across, of_border));
        }
    return best;
}

/* The least over all sets of widths that pipelines of so many stages can have, or `least`. Where there are
 * many widths, over all of them at once. */
static double bound_stages(const Turn *turn, int32_t stages, Filling filling, double least, double *across,
                           double *of_border) {
    int32_t widths = turn->of->width_count;
    uint32_t all = (1u << widths) - 1, first = widths <= MOST_SETS ? 1 : all;
    for (uint32_t set = first; set <= all; set++)
        for (int32_t has_wide = 0; has_wide < 2; has_wide++) {
            Case here = {.turn = turn,
                         .stages = stages,
                         .widths = set,
                         .has_wide = has_wide == 1,
                         .all_have_to = first == 1};
            if (first == 1 && has_wide != ((set & turn->of->wide_widths) != 0)) continue;
            if (!find_usable(&here)) continue;
            least = fmin(least, bound_widths(&here, filling, least, across, of_border));
        }
    return least;
}

static void turn_task(void *user, int32_t k) {
    Turn *self = (Turn *)user + k;
    const Bounding *of = self->of;
    double *across = ARENA_ARRAY(&self->arena, double, PASSES * of->class_count);
    double *of_border = ARENA_ARRAY(&self->arena, double, of->most_borders + 1);
    Filling filling = of->space->schedule == SCHEDULE_1F1B || of->space->schedule == SCHEDULE_GPIPE ? FILLS
                      : of->space->schedule == SCHEDULE_ZB_H1 ? FILLS_FORWARDS
                                                              : FILLS_NOTHING;
    self->least = INFINITY;
    self->status =
        self->arena.failed ? am_fail_memory(&self->error, of->class_count) : fill_turn(self, &self->error);
    for (int32_t stages = 1; stages <= of->most_stages; stages++)
        if (self->status == AM_OK)
            self->least = bound_stages(self, stages, filling, self->least, across, of_border);
    arena_free(&self->arena);
}

/* ---- all of it ---- */

static int32_t list_numbers(int32_t *numbers, const PlanContext *whole, const BoundSpace *space) {
    int32_t count = 0;
    int64_t batch = micro_batches_limit(whole);
    if (space->micro_batches > 0) {
        numbers[0] = space->micro_batches;
        return 1;
    }
    for (int64_t m = 1; m <= MICRO_BATCHES_MOST && (m == 1 || batch % m == 0) && count < MOST_NUMBERS; m *= 2)
        numbers[count++] = (int32_t)m;
    return count;
}

static AmStatus bound_numbers(double *seconds, Bounding *self, AmError *error) {
    int32_t numbers[MOST_NUMBERS], count = list_numbers(numbers, self->whole, self->space);
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

static double best_memory_rate(const ClusterDeviceType *type) {
    double best = type->memory.count > 0 ? 0 : 1;
    for (int32_t k = 0; k < type->memory.count; k++) best = fmax(best, type->memory.fractions[k]);
    return type->memory_bytes_per_second * best;
}

static AmStatus bound_pipelines(double *seconds, Arena *arena, const PlanContext *whole,
                                const Cluster *cluster, const BoundSpace *space, AmError *error) {
    const ClusterDeviceType *type = cluster_device_type(cluster, 0);
    Bounding self = {.arena = arena,
                     .whole = whole,
                     .cluster = cluster,
                     .type = type,
                     .space = space,
                     .memory_rate = best_memory_rate(type)};
    bool known;
    TRY(bound_work_find(&self.work, &known, arena, whole, cluster, 0, error));
    if (!known) return AM_OK;
    self.most_borders = self.work.spine_count[0] + self.work.spine_count[1];
    TRY(find_classes(&self, error));
    TRY(find_widths(&self, error));
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
