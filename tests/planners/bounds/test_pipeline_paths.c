/* Paths of pipelines are compared with pipelines simulated in the orders of their schedules, with
 * random stages; bounds of random work with pipelines that do it. */
/* cost: 8 seconds */
#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/random.h"
#include "cost/cluster/topology.h"
#include "planners/bounds/bound_pipelines.h"
#include "planners/bounds/pipeline_paths.h"
#include "propagation/plan/pipeline_schedule.h"
#include "tests/support/sample.h"

enum { MOST_STAGES = 8, MOST_ITERATIONS = 64 };

/* Seconds of a stage's iterations; the fraction `early` of unordered work is done before the stage
 * waits for others. */
typedef struct Stage {
    double of[PATH_PASSES][BOUND_ORDERS], early[PATH_PASSES];
    double transfer[PATH_PASSES]; /* to the next stage, and back */
    bool puts_off_anywhere;       /* of the backward pass until W */
    bool is_across;               /* work between others lies across a border: it has no dependents here */
} Stage;

typedef struct Pipeline {
    Stage stages[MOST_STAGES];
    int32_t stage_count, iterations;
    ScheduleKind kind;
} Pipeline;

/* A stage starts an iteration at `now`, when its input comes at `arrival`; `*sent`: the time at
 * which the next stage gets its input. */
static double take_iteration(const Stage *stage, SchedulePass pass, bool has_weights, double now,
                             double arrival, double *sent) {
    const double(*of)[BOUND_ORDERS] = stage->of;
    PathPass side = pass == SCHEDULE_FORWARD ? PATH_FORWARD : PATH_BACKWARD;
    double anywhere = of[side][BOUND_ANYWHERE], behind = of[side][BOUND_BEHIND];
    bool is_split = has_weights && side == PATH_BACKWARD;
    if (pass == SCHEDULE_WEIGHTS) return now + behind + (stage->puts_off_anywhere ? anywhere : 0);
    if (is_split) behind = 0;
    if (is_split && stage->puts_off_anywhere) anywhere = 0;
    double loose = anywhere + (stage->is_across ? of[side][BOUND_BETWEEN] : 0);
    double between = stage->is_across ? 0 : of[side][BOUND_BETWEEN];
    now = fmax(now + stage->early[side] * loose, arrival) + of[side][BOUND_SPINE] + between;
    *sent = now;
    return now + (1 - stage->early[side]) * loose + behind;
}

/* Returns the seconds for which a stage waits for its first input. */
static double first_wait(const Stage *stage, double arrival) {
    const double *of = stage->of[PATH_FORWARD];
    double loose = of[BOUND_ANYWHERE] + (stage->is_across ? of[BOUND_BETWEEN] : 0);
    return fmax(arrival - stage->early[PATH_FORWARD] * loose, 0);
}

/* When the last stage has ended, under zb_2p without its wait for the first input. Iterations are taken as
 * soon as those that they wait for have been. */
static double run(const Pipeline *self) {
    ScheduleIteration *iterations[MOST_STAGES];
    double sent[2][MOST_STAGES][MOST_ITERATIONS], now[MOST_STAGES] = {0}, waited[MOST_STAGES] = {0}, end = 0;
    int32_t done[MOST_STAGES] = {0}, count = 0, stages = self->stage_count;
    Arena arena = {0};
    for (int32_t s = 0; s < stages; s++) {
        const ScheduledStage stage = {
            .kind = self->kind, .stages = stages, .stage = s, .micro_batches = self->iterations, .chunks = 1};
        assert_int_equal(schedule_iterations(&iterations[s], &count, &arena, &stage, NULL), AM_OK);
        for (int32_t m = 0; m < self->iterations; m++) sent[0][s][m] = sent[1][s][m] = INFINITY;
    }
    for (int32_t left = stages * count, before = -1; left > 0 && left != before;) {
        before = left;
        for (int32_t s = 0; s < stages; s++)
            for (; done[s] < count; done[s]++, left--) {
                const ScheduleIteration *iteration = &iterations[s][done[s]];
                int32_t m = iteration->micro_batch;
                double arrival = 0, ignored;
                if (iteration->pass == SCHEDULE_FORWARD && s > 0)
                    arrival = sent[0][s - 1][m] + self->stages[s - 1].transfer[PATH_FORWARD];
                if (iteration->pass == SCHEDULE_BACKWARD)
                    arrival = s + 1 < stages ? sent[1][s + 1][m] + self->stages[s].transfer[PATH_BACKWARD]
                                             : sent[0][s][m];
                if (isinf(arrival)) break;
                double *to = iteration->pass == SCHEDULE_WEIGHTS ? &ignored : &sent[iteration->pass][s][m];
                if (self->kind == SCHEDULE_ZB_2P && done[s] == 0)
                    waited[s] = first_wait(&self->stages[s], arrival);
                now[s] = take_iteration(&self->stages[s], iteration->pass,
                                        schedule_splits_backward(self->kind), now[s], arrival, to);
                end = fmax(end, now[s] - waited[s]);
            }
    }
    for (int32_t s = 0; s < stages; s++) {
        assert_int_equal(done[s], count);
        end = fmax(end, now[s] - waited[s] + self->stages[s].of[PATH_BACKWARD][BOUND_AFTER]);
    }
    arena_free(&arena);
    return end;
}

static double path_seconds(const Pipeline *self, PathKind kind, int32_t stage) {
    const PathCounts on = path_counts(kind, self->stage_count, self->iterations, stage);
    double sum = 0;
    for (int32_t u = 0; u < self->stage_count; u++) {
        const PathCounts counts = path_counts(kind, self->stage_count, self->iterations, u);
        for (int32_t pass = 0; pass < PATH_PASSES && u + 1 < self->stage_count; pass++) {
            double again = u >= stage && path_passes_again(kind) ? on.above[pass] : 0;
            sum += (counts.once[pass][BOUND_SPINE] + again) * self->stages[u].transfer[pass];
        }
        for (int32_t pass = 0; pass < PATH_PASSES; pass++)
            for (int32_t order = 0; order < BOUND_ORDERS; order++) {
                bool is_passed = order == BOUND_SPINE || order == BOUND_BETWEEN;
                bool is_across = order == BOUND_BETWEEN && self->stages[u].is_across;
                double times = counts.once[pass][order] + (u > stage && is_passed ? on.above[pass] : 0) +
                               (u == stage ? on.more[pass][order] : 0);
                if (is_across) times = u == stage ? on.across[pass][order] : 0;
                sum += times * self->stages[u].of[pass][order];
            }
    }
    return sum;
}

/* The longest path of those that hold for a schedule. */
static double longest_path(const Pipeline *self, uint32_t kinds) {
    double longest = 0;
    for (int32_t kind = 0; kind < PATH_KINDS; kind++)
        for (int32_t s = 0; s < self->stage_count && kinds >> kind & 1; s++)
            longest = fmax(longest, path_seconds(self, (PathKind)kind, s));
    return longest;
}

#define FOLLOWING (1u << PATH_PERIOD | 1u << PATH_RETURN)
static const uint32_t every_kind[SCHEDULE_KINDS] = {[SCHEDULE_GPIPE] = (1u << PATH_KINDS) - 1,
                                                    [SCHEDULE_1F1B] = (1u << PATH_KINDS) - 1,
                                                    [SCHEDULE_ZB_H1] = 1u << PATH_WORK | 1u << PATH_WEIGHTS |
                                                                       1u << PATH_STAYS | FOLLOWING,
                                                    [SCHEDULE_ZB_2P] = 1u << PATH_WORK | FOLLOWING};

static double random_seconds(Random *rng) {
    double most = random_below(rng, 3) == 0 ? 0 : random_below(rng, 4) == 0 ? 10 : 1;
    return most * random_uniform(rng);
}

static void test_no_random_pipeline_is_quicker(void **state) {
    (void)state;
    Random rng;
    random_seed(&rng, 1);
    int32_t count = sample_of(200000, 1000);
    for (int32_t k = 0; k < count; k++) {
        static const ScheduleKind kinds[] = {SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_ZB_H1, SCHEDULE_ZB_2P};
        Pipeline pipeline = {.kind = kinds[k % 4],
                             .stage_count = 1 + (int32_t)random_below(&rng, MOST_STAGES),
                             .iterations = 1 + (int32_t)random_below(&rng, 12)};
        for (int32_t s = 0; s < pipeline.stage_count; s++) {
            Stage *stage = &pipeline.stages[s];
            stage->puts_off_anywhere = random_below(&rng, 2) == 0;
            stage->is_across = random_below(&rng, 2) == 0;
            for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
                stage->early[pass] = (double)random_below(&rng, 3) / 2;
                stage->transfer[pass] = random_seconds(&rng);
                for (int32_t order = 0; order < BOUND_ORDERS; order++)
                    stage->of[pass][order] = random_seconds(&rng);
            }
        }
        double seconds = run(&pipeline), longest = longest_path(&pipeline, every_kind[pipeline.kind]);
        if (longest > seconds * (1 + 1e-9))
            fail_msg("%s, %d stages, %d micro-batches: %g s, a path has %g s",
                     schedule_kind_name(pipeline.kind), pipeline.stage_count, pipeline.iterations, seconds,
                     longest);
    }
}

/* With equal stages some path is the step. */
static void test_equal_stages_reach_their_bound(void **state) {
    (void)state;
    static const ScheduleKind kinds[] = {SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_ZB_H1, SCHEDULE_ZB_2P};
    for (int32_t k = 0; k < 4; k++)
        for (int32_t stages = 1; stages <= MOST_STAGES; stages++) {
            const int32_t least[] = {1, 1, stages, 2 * stages - 1};
            for (int32_t iterations = least[k]; iterations <= 16; iterations++) {
                Pipeline pipeline = {.kind = kinds[k], .stage_count = stages, .iterations = iterations};
                for (int32_t s = 0; s < stages; s++)
                    pipeline.stages[s] = (Stage){
                        .of = {[PATH_FORWARD][BOUND_BETWEEN] = 3,
                               [PATH_BACKWARD][BOUND_BETWEEN] = 4,
                               [PATH_BACKWARD][BOUND_BEHIND] = schedule_splits_backward(kinds[k]) ? 2 : 0}};
                assert_float_equal(longest_path(&pipeline, every_kind[kinds[k]]), run(&pipeline), 1e-9);
            }
        }
}

/* ---- work in pipelines ---- */

enum { MOST_SPINE = 14, MOST_ITEMS = 128, DEVICES = 8, MOST_TYPES = 3 };

/* The places of the products of the spines. */
typedef struct Cuts {
    int32_t forward[MOST_SPINE + 1], backward[MOST_SPINE + 1]; /* [place]: stage; one place after */
    int32_t widths[MOST_STAGES];
    int32_t stage_of[DEVICES]; /* on devices of several types */
    double shares[DEVICES];    /* of each device, in any unit */
    bool are_fitted;           /* shares are those of the seconds of each item instead */
    bool are_last, are_first;  /* sums that nothing waits for, of the stages that they may be on */
} Cuts;

static BoundItem *add_item(BoundWork *work, Random *rng, bool is_backward, BoundOrder order, int32_t after,
                           int32_t until) {
    BoundItem *item = &work->items[work->item_count++];
    *item = (BoundItem){.seconds = 1e-3 * random_seconds(rng),
                        .group = -1,
                        .is_backward = is_backward,
                        .order = order,
                        .after = after,
                        .until = until,
                        .first = -1,
                        .end = -1};
    if (random_below(rng, 2) == 0)
        item->work = (OperatorWork){.flops = 1e8 * random_uniform(rng),
                                    .bytes = 1e6 * random_uniform(rng),
                                    .type = DTYPE_F32,
                                    .unit = OPERATOR_DOT,
                                    .is_run = true};
    return item;
}

/* Makes work of one pass and order equal. */
static void make_even(BoundWork *work, Random *rng) {
    double seconds[PATH_PASSES][BOUND_ORDERS];
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++) seconds[pass][order] = random_seconds(rng);
    for (int32_t k = 0; k < work->item_count; k++) {
        BoundItem *item = &work->items[k];
        item->work.is_run = false;
        item->sum_bytes = 0;
        item->seconds = seconds[item->is_backward][item->order];
    }
}

/* Products in a row, many with a weight, and others between and beside them. */
static void make_work(BoundWork *work, BoundItem *items, double (*bytes)[MOST_SPINE], Random *rng) {
    int32_t length = 1 + (int32_t)random_below(rng, MOST_SPINE - 1), others = (int32_t)random_below(rng, 20);
    bool is_plain = random_below(rng, 2) == 0; /* products of any proportions, but no others */
    bool has_sums = random_below(rng, 3) == 0; /* alone */
    bool has_transfers = random_below(rng, 2) == 0;
    *work = (BoundWork){.items = items, .spine_count = {length, length}};
    for (int32_t k = 0; k < 2; k++) {
        work->sent[k] = bytes[k];
        work->crossing[k] = bytes[2 + k];
        for (int32_t p = 0; p < length; p++) bytes[k][p] = has_transfers * 1e10 * random_uniform(rng);
    }
    for (int32_t p = 0; p < length; p++) {
        bool is_group = random_below(rng, 4) > 0;
        int32_t t = length - 1 - p, group = is_group ? work->group_count++ : -1;
        add_item(work, rng, false, BOUND_SPINE, p, p)->group = group;
        add_item(work, rng, true, BOUND_SPINE, t, t)->group = group;
        if (!is_group) continue;
        add_item(work, rng, true, BOUND_AFTER, -1, -1)->group = group;
        BoundItem *sum = add_item(work, rng, true, BOUND_BEHIND, t, t + 1);
        sum->group = group;
        if (sum->work.is_run) sum->sum_bytes = sum->work.bytes * random_uniform(rng);
    }
    for (int32_t k = 0; k < others && !is_plain; k++) {
        int32_t after = (int32_t)random_below(rng, length), left = length - 1 - after;
        bool is_backward = random_below(rng, 2) == 0;
        if (left > 0 && random_below(rng, 4) > 0 && !has_sums)
            add_item(work, rng, is_backward, BOUND_BETWEEN, after,
                     after + 1 + (int32_t)random_below(rng, left));
        else if (has_sums || random_below(rng, 2) == 0) /* the gradients of biases */
            add_item(work, rng, true, BOUND_BEHIND, after, after + 1)->first =
                (int32_t)random_below(rng, length);
        else if (random_below(rng, 2) == 0) add_item(work, rng, is_backward, BOUND_ANYWHERE, -1, -1);
        else add_item(work, rng, true, BOUND_AFTER, -1, -1);
    }
    if (random_below(rng, 2) == 0) make_even(work, rng);
    for (int32_t k = 0; k < work->item_count && has_sums; k++)
        if (items[k].order == BOUND_BEHIND && items[k].group < 0) items[k].seconds *= 10;
    assert_int_equal(bound_work_find_borders(work, NULL), AM_OK);
}

static int32_t random_between(Random *rng, int32_t low, int32_t high) {
    return low + (int32_t)random_below(rng, high - low + 1);
}

/* Gives each device a stage and a share there, near that of its speed. False: not this time. */
static bool make_mixed_widths(Cuts *cuts, const Cluster *cluster, int32_t stages, Random *rng) {
    bool has_device[MOST_STAGES] = {false};
    for (int32_t d = 0; d < cluster->device_count; d++) {
        double speed = cluster_device_type(cluster, d)->flops_per_second[DTYPE_F32];
        cuts->stage_of[d] = (int32_t)random_below(rng, stages);
        cuts->shares[d] = speed * (random_below(rng, 2) == 0 ? 1 : 0.1 + random_uniform(rng));
        has_device[cuts->stage_of[d]] = true;
    }
    cuts->are_fitted = random_below(rng, 2) == 0;
    for (int32_t s = 0; s < stages; s++)
        if (!has_device[s]) return false;
    return true;
}

/* Widths that are powers of two and add up to all devices. False: not this time. */
static bool make_widths(int32_t *widths, int32_t stages, Random *rng) {
    int32_t left = DEVICES;
    for (int32_t s = 0; s < stages; s++) {
        int32_t width = 1 << random_below(rng, 4);
        if (s == stages - 1) width = left;
        if (width < 1 || width > left || (width & (width - 1)) != 0) return false;
        widths[s] = width;
        left -= width;
    }
    return left == 0;
}

/* Cuts anywhere, or near those that are given. False: not this time. */
static bool make_cuts(Cuts *cuts, const Cuts *given, const BoundWork *work, const Cluster *cluster,
                      int32_t stages, Random *rng) {
    int32_t length = work->spine_count[0], *forward = cuts->forward;
    bool is_group[MOST_SPINE] = {false};
    if (given) *cuts = *given;
    cuts->are_last = random_below(rng, 2) == 0;
    cuts->are_first = random_below(rng, 2) == 0;
    if (!given || random_below(rng, 4) == 0) {
        if (work->type_count > 1 ? !make_mixed_widths(cuts, cluster, stages, rng)
                                 : !make_widths(cuts->widths, stages, rng))
            return false;
    }
    for (int32_t p = 0; p < length && !given; p++)
        forward[p] = random_below(rng, 3) == 0 ? (int32_t)random_below(rng, stages) : p * stages / length;
    if (given) forward[random_below(rng, length)] = (int32_t)random_below(rng, stages);
    for (int32_t p = 1; p < length; p++) /* sorted */
        for (int32_t q = p; q > 0 && forward[q] < forward[q - 1]; q--) {
            int32_t stage = forward[q];
            forward[q] = forward[q - 1];
            forward[q - 1] = stage;
        }
    forward[length] = stages - 1;
    for (int32_t k = 0; k < work->item_count; k++)
        if (work->items[k].order == BOUND_SPINE && !work->items[k].is_backward)
            is_group[work->items[k].after] = work->items[k].group >= 0;
    for (int32_t t = 0; t < length; t++) {
        int32_t least = 0, most = t > 0 ? cuts->backward[t - 1] : stages - 1;
        for (int32_t p = length - 1 - t; p >= 0 && least == 0; p--) least = is_group[p] ? forward[p] : 0;
        bool is_known = is_group[length - 1 - t];
        cuts->backward[t] = is_known ? forward[length - 1 - t] : random_between(rng, least, most);
    }
    cuts->backward[length] = 0;
    for (int32_t k = 0; k < work->item_count; k++) {
        const BoundItem *item = &work->items[k];
        bool is_sum = item->order == BOUND_BEHIND && item->group < 0;
        if (is_sum && forward[item->first] > cuts->backward[item->after]) return false;
    }
    return true;
}

/* Returns the seconds of an item in one iteration on a device of a type that has 1 / `devices` of its
 * stage. */
static double part_of(const BoundItem *item, const Cluster *cluster, int32_t device, int32_t iterations,
                      double devices) {
    const ClusterDeviceType *type = cluster_device_type(cluster, device);
    double parts = (item->order == BOUND_AFTER ? 1 : iterations) * devices;
    OperatorWork part = item->work;
    if (!part.is_run) {
        double launch = item->launches * type->kernel_launch_seconds;
        double alone = item->type_seconds ? item->type_seconds[type - cluster->types] : item->seconds;
        return launch + (alone - launch) / parts;
    }
    part.flops /= parts;
    part.bytes =
        (part.bytes - item->sum_bytes) / parts + item->sum_bytes / devices * (iterations > 1 ? 2 : 1);
    return operator_seconds(&part, type);
}

/* The stage of an item, and how it is computed there. */
static int32_t place(const BoundItem *item, const Cuts *cuts, const int32_t *of_groups, int32_t stages,
                     Random *rng, BoundOrder *order) {
    const int32_t *at = item->is_backward ? cuts->backward : cuts->forward;
    *order = item->order;
    bool is_loose = item->order == BOUND_ANYWHERE || item->order == BOUND_AFTER;
    if (is_loose) return item->group >= 0 ? of_groups[item->group] : (int32_t)random_below(rng, stages);
    if (item->order == BOUND_SPINE) return at[item->after];
    if (item->order == BOUND_BEHIND && item->group < 0) {
        int32_t most = at[item->after], least = cuts->are_last ? most : cuts->forward[item->first];
        int32_t stage = random_between(rng, least, cuts->are_first ? least : most);
        if (stage != most) *order = BOUND_ANYWHERE;
        return stage;
    }
    int32_t one = at[item->after], other = at[item->until];
    if (one != other) *order = BOUND_ANYWHERE; /* across a border */
    if (item->order == BOUND_BEHIND) return of_groups[item->group];
    return random_between(rng, one < other ? one : other, one < other ? other : one);
}

/* Returns the seconds of an item on the slowest device of a stage, by the shares of the stage, or by shares
 * with which all devices alone would take equally long. */
static double seconds_of_slowest(const BoundItem *item, const Cuts *cuts, const Cluster *cluster,
                                 int32_t iterations, int32_t stage) {
    double shares[DEVICES], sum = 0, seconds = 0;
    for (int32_t d = 0; d < cluster->device_count; d++) {
        double rest = part_of(item, cluster, d, iterations, 1) - part_of(item, cluster, d, iterations, 1e9);
        shares[d] = cuts->are_fitted && rest > 0 ? 1 / rest : cuts->shares[d];
        if (cuts->stage_of[d] == stage) sum += shares[d];
    }
    for (int32_t d = 0; d < cluster->device_count; d++)
        if (cuts->stage_of[d] == stage)
            seconds = fmax(seconds, part_of(item, cluster, d, iterations, sum / shares[d]));
    return seconds;
}

static int32_t width_of(const BoundWork *work, const Cuts *cuts, const Cluster *cluster, int32_t stage) {
    int32_t width = 0;
    if (work->type_count <= 1) return cuts->widths[stage];
    for (int32_t d = 0; d < cluster->device_count; d++) width += cuts->stage_of[d] == stage;
    return width;
}

/* Sets the seconds between neighbouring products of a spine on different stages: all devices of the earlier
 * stage send, or receive, at once. */
static void fill_transfers(Pipeline *pipeline, const BoundWork *work, const Cuts *cuts,
                           const Cluster *cluster) {
    for (int32_t pass = 0; pass < PATH_PASSES; pass++) {
        const int32_t *at = pass == PATH_FORWARD ? cuts->forward : cuts->backward;
        for (int32_t p = 0; p + 1 < work->spine_count[pass]; p++) {
            int32_t stage = pass == PATH_FORWARD ? at[p] : at[p + 1];
            if (at[p] == at[p + 1]) continue;
            pipeline->stages[stage].transfer[pass] +=
                work->sent[pass][p] / (pipeline->iterations * width_of(work, cuts, cluster, stage) *
                                       topology_fastest_rate(cluster->topology));
        }
    }
}

static void fill_stages(Pipeline *pipeline, const BoundWork *work, const Cuts *cuts, const Cluster *cluster,
                        Random *rng) {
    int32_t of_groups[MOST_SPINE];
    for (int32_t k = 0; k < work->item_count; k++)
        if (work->items[k].order == BOUND_SPINE && !work->items[k].is_backward && work->items[k].group >= 0)
            of_groups[work->items[k].group] = cuts->forward[work->items[k].after];
    for (int32_t s = 0; s < pipeline->stage_count; s++) {
        pipeline->stages[s] = (Stage){.puts_off_anywhere = random_below(rng, 4) == 0};
        for (int32_t pass = 0; pass < PATH_PASSES; pass++)
            pipeline->stages[s].early[pass] = (double)random_below(rng, 3) / 2;
    }
    if (work->sent[0]) fill_transfers(pipeline, work, cuts, cluster);
    for (int32_t k = 0; k < work->item_count; k++) {
        const BoundItem *item = &work->items[k];
        BoundOrder order;
        int32_t s = place(item, cuts, of_groups, pipeline->stage_count, rng, &order);
        pipeline->stages[s].of[item->is_backward][order] +=
            work->type_count > 1 ? seconds_of_slowest(item, cuts, cluster, pipeline->iterations, s)
                                 : part_of(item, cluster, 0, pipeline->iterations, cuts->widths[s]);
    }
}

/* Returns whether the weights of each stage fit on its devices. */
static bool fits(const BoundWork *work, const Cuts *cuts, const Cluster *cluster, int32_t stages) {
    double room[MOST_STAGES] = {0};
    for (int32_t d = 0; d < cluster->device_count && work->type_count > 1; d++)
        room[cuts->stage_of[d]] += 0.9 * (double)cluster_device_type(cluster, d)->memory_bytes;
    for (int32_t s = 0; s < stages && work->type_count <= 1; s++)
        room[s] = 0.9 * cuts->widths[s] * (double)cluster->types[0].memory_bytes;
    for (int32_t k = 0; k < work->item_count; k++)
        if (work->items[k].kept_bytes[0] > 0)
            room[cuts->forward[work->items[k].after]] -=
                work->items[k].kept_bytes[0] + work->items[k].kept_bytes[1];
    for (int32_t s = 0; s < stages; s++)
        if (room[s] < 0) return false;
    return true;
}

static const BoundLaunches no_launches = {0};

/* The bound of the pipelines of one number of stages and micro-batches. */
static double bound_of(const BoundWork *work, const Cluster *cluster, int32_t iterations, int32_t stages,
                       ScheduleKind schedule, double memory_fraction) {
    const BoundSpace space = {.least_stages = stages,
                              .most_stages = stages,
                              .schedule = schedule,
                              .memory.fraction = memory_fraction};
    PipelineBound bound;
    AmError error;
    assert_int_equal(plan_bound_items(&bound, work, cluster, &space, &no_launches, &iterations, 1, &error),
                     AM_OK);
    return stages > 1 ? bound.several_stages : bound.one_stage;
}

/* Gives items launches and weights, and on devices of several types seconds of each type. */
static void add_types(BoundWork *work, const Cluster *cluster, double *type_seconds, double *weights,
                      Random *rng) {
    double scarce = 0; /* bytes of all weights, about */
    for (int32_t d = 0; d < cluster->device_count; d++)
        scarce += 0.8 * (double)cluster_device_type(cluster, d)->memory_bytes;
    if (random_below(rng, 2) == 0) scarce = 0;
    work->type_count = cluster->type_count;
    work->type_weights = weights;
    for (int32_t t = 0; t < cluster->type_count; t++)
        weights[t] = random_below(rng, 2) == 0 ? cluster->types[t].flops_per_second[DTYPE_F32] / 1e12
                                               : 0.1 + random_uniform(rng);
    for (int32_t k = 0; k < work->item_count; k++) {
        BoundItem *item = &work->items[k];
        double rest = item->seconds;
        if (!item->work.is_run) item->launches = (double)random_below(rng, 3);
        if (item->group >= 0 && !item->is_backward && scarce > 0)
            for (int32_t of = 0; of < 2; of++)
                item->kept_bytes[of] = scarce * random_uniform(rng) / work->group_count;
        item->seconds += item->launches * cluster->types[0].kernel_launch_seconds;
        if (cluster->type_count == 1) continue;
        item->type_seconds = &type_seconds[k * cluster->type_count];
        for (int32_t t = 0; t < cluster->type_count; t++)
            item->type_seconds[t] =
                item->launches * cluster->types[t].kernel_launch_seconds +
                rest * cluster->types[0].memory_bytes_per_second / cluster->types[t].memory_bytes_per_second;
    }
}

/* Every pipeline that does some work takes at least as long as the bound of that work. */
static void check_work(const char *name, int32_t count) {
    static const ScheduleKind kinds[] = {SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_ZB_H1, SCHEDULE_ZB_2P};
    Arena arena = {0};
    Cluster *cluster;
    AmError error = {0};
    Random rng;
    int32_t tried = 0, raised = 0, raised_by_transfers = 0; /* pipelines; bounds, by memory and transfers */
    random_seed(&rng, 3);
    assert_int_equal(cluster_read(&cluster, &arena, name, &error), AM_OK);
    for (int32_t k = 0; k < count; k++) {
        BoundItem items[MOST_ITEMS];
        BoundWork work;
        Pipeline pipeline = {.stage_count = 1 + (int32_t)random_below(&rng, 6),
                             .iterations = 1 + (int32_t)random_below(&rng, 8)};
        double type_seconds[MOST_ITEMS * MOST_TYPES], weights[MOST_TYPES], bytes[4][MOST_SPINE];
        make_work(&work, items, bytes, &rng);
        add_types(&work, cluster, type_seconds, weights, &rng);
        int32_t stages = pipeline.stage_count, iterations = pipeline.iterations;
        double of_1f1b = bound_of(&work, cluster, iterations, stages, SCHEDULE_1F1B, 0.9);
        double of_all = bound_of(&work, cluster, iterations, stages, SCHEDULE_ZB_H1, 0.9);
        double of_next = bound_of(&work, cluster, iterations, stages, SCHEDULE_ZB_2P, 0.9);
        raised += of_1f1b > 1.05 * bound_of(&work, cluster, iterations, stages, SCHEDULE_1F1B, 0);
        BoundWork alone = work; /* without transfers */
        alone.crossing[0] = alone.crossing[1] = NULL;
        double without = bound_of(&alone, cluster, iterations, stages, SCHEDULE_1F1B, 0.9);
        assert_true(of_1f1b >= 0.9 * without);
        raised_by_transfers += of_1f1b > 1.01 * without;
        Cuts best[4];
        double least[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
        for (int32_t n = 0; n < 200; n++) {
            Cuts cuts, *near = &best[n % 4];
            if (!make_cuts(&cuts, n > 40 && isfinite(least[n % 4]) ? near : NULL, &work, cluster, stages,
                           &rng))
                continue;
            if (!fits(&work, &cuts, cluster, stages)) continue;
            pipeline.kind = kinds[n % 4];
            fill_stages(&pipeline, &work, &cuts, cluster, &rng);
            double seconds = run(&pipeline), bound = of_next;
            if (pipeline.kind != SCHEDULE_ZB_2P) bound = fmax(bound, of_all);
            if (pipeline.kind == SCHEDULE_GPIPE || pipeline.kind == SCHEDULE_1F1B)
                bound = fmax(bound, of_1f1b);
            if (bound > seconds * (1 + 1e-6))
                fail_msg("work %d, %s, %d stages, %d micro-batches: %g s, the bound is %g s", k,
                         schedule_kind_name(pipeline.kind), stages, iterations, seconds, bound);
            if (seconds < least[n % 4]) {
                least[n % 4] = seconds;
                *near = cuts;
            }
            tried++;
        }
    }
    assert_true(tried >= count * 4);
    assert_true(raised >= count / 20);
    assert_true(raised_by_transfers >= count / 50);
    cluster_free(cluster);
    arena_free(&arena);
}

static void test_no_pipeline_of_work_is_quicker(void **state) {
    (void)state;
    check_work("nominal:8", sample_of(1500, 20));
}

static void test_no_pipeline_on_mixed_devices_is_quicker(void **state) {
    (void)state;
    check_work("tests/data/clusters/three_types.json", sample_of(500, 10));
}

/* Equal products on equal stages reach the bound, if a stage's work is not divided. */
static void test_equal_work_reaches_its_bound(void **state) {
    (void)state;
    Arena arena = {0};
    Cluster *cluster;
    AmError error = {0};
    assert_int_equal(cluster_read(&cluster, &arena, "nominal:8", &error), AM_OK);
    for (int32_t iterations = 16; iterations <= 64; iterations *= 2) {
        enum { LENGTH = 64 };
        BoundItem items[3 * LENGTH];
        BoundWork work = {.items = items, .group_count = LENGTH, .spine_count = {LENGTH, LENGTH}};
        Pipeline pipeline = {.kind = SCHEDULE_1F1B, .stage_count = 8, .iterations = iterations};
        for (int32_t s = 0; s < 8; s++) {
            double each = LENGTH / 8.0 / iterations;
            pipeline.stages[s] = (Stage){.of = {[PATH_FORWARD][BOUND_SPINE] = each,
                                                [PATH_BACKWARD][BOUND_SPINE] = each,
                                                [PATH_BACKWARD][BOUND_BEHIND] = each}};
        }
        for (int32_t p = 0; p < LENGTH; p++) {
            const BoundItem one = {.seconds = 1, .group = p, .first = -1, .end = -1};
            int32_t t = LENGTH - 1 - p;
            for (int32_t k = 0; k < 3; k++) {
                BoundItem *item = &items[work.item_count++];
                *item = one;
                item->is_backward = k > 0;
                item->order = k == 2 ? BOUND_BEHIND : BOUND_SPINE;
                item->after = k == 0 ? p : t;
                item->until = item->after + (k == 2);
            }
        }
        assert_int_equal(bound_work_find_borders(&work, &error), AM_OK);
        double bound = bound_of(&work, cluster, iterations, 8, SCHEDULE_1F1B, 0), equal = run(&pipeline);
        if (bound > equal * (1 + 1e-9) || bound < 0.9 * equal)
            fail_msg("%d micro-batches: the bound is %g, equal stages take %g", iterations, bound, equal);
    }
    cluster_free(cluster);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_random_pipeline_is_quicker),
                                       cmocka_unit_test(test_equal_stages_reach_their_bound),
                                       cmocka_unit_test(test_no_pipeline_of_work_is_quicker),
                                       cmocka_unit_test(test_no_pipeline_on_mixed_devices_is_quicker),
                                       cmocka_unit_test(test_equal_work_reaches_its_bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
