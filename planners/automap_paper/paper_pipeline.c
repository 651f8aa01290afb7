/* Pipelines as Auto-MAP cuts them.
 *
 * Actions count from the first pivot of the cut's window, so that the network has as many values as the
 * widest window has pivots and not as many as the module has: pivots outside it are masked in any case.
 */
#include "planners/automap_paper/paper_pipeline.h"

#include <math.h>
#include <string.h>

#include "cost/collective/collective.h"
#include "cost/simulate/clock_1f1b.h"
#include "planners/problem/candidate_pool.h"
#include "propagation/plan/pipeline_schedule.h"
#include "propagation/stages/stages.h"

#define FEATURES          3
#define MOST_PIVOTS       8192
#define WALKED_ITERATIONS 64

typedef struct Stage {
    const PaperPivot *first, *end; /* the sums before its begin and its end */
    int32_t first_device, end_device;
} Stage;

typedef struct Window {
    int32_t *pivots; /* [count] ascending */
    int32_t count;
} Window;

typedef struct PipelineCutter {
    PaperPipeline shared;
    Arena *arena;
    const Cluster *cluster;
    double memory_fraction;
    int32_t *device_of; /* [pivot]: its device cut */
    Window windows[STAGES_MOST];
    const CollectiveTopology **topologies; /* [first device * (devices + 1) + end device] */
    double *reduced; /* [begin * (pivots + 2) + end] 1 + seconds of a stage's all-reduce; 0: not known yet */
    PaperCut cuts[STAGES_MOST];
    int32_t cut_count;
} PipelineCutter;

static const PaperPivot nothing;

/* ---- prices ---- */

/* Returns the seconds of one iteration of a pass of a stage, whose devices share the micro-batch. */
static double iteration_seconds(const PipelineCutter *self, const Stage *stage, PaperPass pass) {
    double shares = (double)self->shared.chain->parts / self->shared.micro_batches;
    return (stage->end->seconds[pass] - stage->first->seconds[pass]) * shares /
           (stage->end_device - stage->first_device);
}

/* Returns 0 for the begin of the module, then 1, 2, ... for the pivots, then one more for its end. */
static size_t ordinal_of(const PipelineCutter *self, const PaperPivot *pivot) {
    const PaperChain *chain = self->shared.chain;
    if (pivot == &nothing) return 0;
    return pivot == &chain->end ? (size_t)chain->count + 1 : (size_t)(pivot - chain->pivots) + 1;
}

/* Returns the seconds of a stage's all-reduce of gradients. They are computed once for each pair of cuts,
 * which determine the stage's devices. */
static double all_reduce_seconds(const PipelineCutter *self, const Stage *stage) {
    size_t width = (size_t)self->shared.chain->count + 2;
    double *known = &self->reduced[ordinal_of(self, stage->first) * width + ordinal_of(self, stage->end)];
    int32_t count = self->cluster->device_count + 1;
    const CollectiveTopology *topology = self->topologies[stage->first_device * count + stage->end_device];
    if (*known == 0 && topology)
        *known =
            1 + collective_seconds(PROGRAM_ALL_REDUCE, stage->end->weight_bytes - stage->first->weight_bytes,
                                   topology, self->cluster);
    return *known > 0 ? *known - 1 : 0;
}

/* Activations of a micro-batch over the cut after a stage, one way. */
static double transfer_seconds(const PipelineCutter *self, const Stage *stage) {
    int32_t index = cluster_link_between(self->cluster, stage->end_device - 1, stage->end_device);
    if (index < 0) return 0;
    const ClusterLink *link = &self->cluster->links[index];
    double bytes = stage->end->crossing / self->shared.micro_batches;
    if (bytes <= 0) return 0;
    return link->latency_seconds +
           bytes / (link->bytes_per_second * cluster_efficiency(&link->efficiency, bytes));
}

/* Returns the bytes of a device of stage s at the peak: 1F1B keeps the activations of at most S - s
 * iterations. */
static double memory_of(const PipelineCutter *self, const Stage *stage, int32_t s) {
    int32_t iterations = schedule_kept_for_backward(self->shared.stage_count, s, self->shared.micro_batches);
    int32_t devices = stage->end_device - stage->first_device;
    double weights = stage->end->weight_bytes - stage->first->weight_bytes; /* of gradients, too */
    double kept = stage->end->kept_bytes - stage->first->kept_bytes;
    return 2 * weights + stage->end->state_bytes - stage->first->state_bytes +
           kept * iterations / self->shared.micro_batches / devices;
}

static int32_t list_stages(const PipelineCutter *self, Stage *stages, const PaperCut *cuts, int32_t count) {
    Stage stage = {.first = &nothing};
    for (int32_t k = 0; k <= count; k++) {
        bool is_last = k == count;
        stage.end = is_last ? &self->shared.chain->end : &self->shared.chain->pivots[cuts[k].pivot];
        stage.end_device = is_last ? self->cluster->device_count : cuts[k].device;
        stages[k] = stage;
        stage.first = stage.end;
        stage.first_device = stage.end_device;
    }
    return count + 1;
}

/* Returns whether a stage's devices are on several servers. */
static bool is_spread(const PipelineCutter *self, const Stage *stage) {
    return self->cluster->server_of[stage->first_device] != self->cluster->server_of[stage->end_device - 1];
}

/* Returns the seconds of the all-reduces that delay a stage's own: of stages on several servers all, as they
 * share links. */
static double reduced_after(const PipelineCutter *self, const Stage *stages, int32_t count, int32_t s) {
    double seconds = 0;
    if (!is_spread(self, &stages[s])) return all_reduce_seconds(self, &stages[s]);
    for (int32_t u = 0; u < count; u++)
        if (is_spread(self, &stages[u])) seconds += all_reduce_seconds(self, &stages[u]);
    return seconds;
}

/* Returns the length L of the stages (paper_pipeline.h). With very many iterations each of the last ones is
 * as long as the longest stage. */
static double length_of(const PipelineCutter *self, const Stage *stages, int32_t count) {
    ClockStage clock[STAGES_MOST];
    int32_t walked =
        self->shared.micro_batches < WALKED_ITERATIONS ? self->shared.micro_batches : WALKED_ITERATIONS;
    double longest = 0, length = 0;
    for (int32_t s = 0; s < count; s++) {
        clock[s] = (ClockStage){.forward = iteration_seconds(self, &stages[s], PAPER_FORWARD),
                                .backward = iteration_seconds(self, &stages[s], PAPER_BACKWARD),
                                .weights = iteration_seconds(self, &stages[s], PAPER_GRADIENTS),
                                .to_next = s + 1 < count ? transfer_seconds(self, &stages[s]) : 0,
                                .to_previous = s > 0 ? clock[s - 1].to_next : 0};
        longest = fmax(longest, clock[s].forward + clock[s].backward + clock[s].weights);
    }
    if (!clock_1f1b(clock, count, walked, false)) return INFINITY;
    for (int32_t s = 0; s < count; s++) {
        double update = stages[s].end->seconds[PAPER_UPDATE] - stages[s].first->seconds[PAPER_UPDATE];
        double reduced = reduced_after(self, stages, count, s);
        int32_t weights = stages[s].end->weights - stages[s].first->weights;
        double after =
            fmax(weights > 0 ? reduced / weights : reduced, reduced - clock[s].backward - clock[s].weights);
        length = fmax(length, clock[s].end + after + update);
    }
    return length + (self->shared.micro_batches - walked) * longest;
}

/* Returns whether all stages fit; else `fit`, where given, is of the one that lacks most. */
static bool check_memory(const PipelineCutter *self, const Stage *stages, int32_t count, MemoryFit *fit) {
    bool fits = true;
    for (int32_t s = 0; s < count; s++) {
        int32_t devices[1] = {stages[s].first_device};
        for (int32_t d = stages[s].first_device; d < stages[s].end_device; d++)
            if (cluster_device_type(self->cluster, d)->memory_bytes <
                cluster_device_type(self->cluster, devices[0])->memory_bytes)
                devices[0] = d;
        MemoryFit here = memory_fit((int64_t)memory_of(self, &stages[s], s), self->cluster, devices, 1,
                                    self->memory_fraction);
        if (fit && (s == 0 || here.needed_fraction > fit->needed_fraction)) *fit = here;
        fits = fits && here.fits;
    }
    return fits;
}

double paper_pipeline_seconds(const PaperPipeline *pipeline, const PaperCut *cuts, bool *fits) {
    const PipelineCutter *self = (const PipelineCutter *)pipeline;
    Stage stages[STAGES_MOST];
    int32_t count = list_stages(self, stages, cuts, pipeline->stage_count - 1);
    *fits = check_memory(self, stages, count, NULL);
    return length_of(self, stages, count);
}

/* ---- the environment ---- */

static AmStatus reset_cuts(Environment *environment, AmError *error) {
    (void)error;
    ((PipelineCutter *)environment)->cut_count = 0;
    return AM_OK;
}

/* Returns whether the next cut may be at this pivot: after the last one, with a device, and weights in every
 * stage that it ends. */
static bool is_legal(const PipelineCutter *self, int32_t pivot) {
    const PaperCut *last = self->cut_count > 0 ? &self->cuts[self->cut_count - 1] : NULL;
    const PaperChain *chain = self->shared.chain;
    int32_t weights = chain->pivots[pivot].weights, before = last ? chain->pivots[last->pivot].weights : 0;
    int32_t device = last ? last->device : 0;
    return weights > before && weights < chain->end.weights && self->device_of[pivot] > device;
}

/* Masks the pivots that cannot be the next cut. If none can, the last pivot of the window stays, as a stage
 * that does not fit. */
static void mask(const Environment *environment, uint8_t *legal) {
    const PipelineCutter *self = (const PipelineCutter *)environment;
    memset(legal, 0, (size_t)environment->action_count);
    if (self->cut_count == self->shared.stage_count - 1) return;
    const Window *window = &self->windows[self->cut_count];
    bool any = false;
    for (int32_t k = 0; k < window->count; k++) any |= legal[k] = is_legal(self, window->pivots[k]);
    if (!any) legal[window->count - 1] = 1;
}

static float squashed(double x) {
    return (float)(x / (1 + x));
}

/* Writes the three features of a pivot, if it were the next cut. */
static void describe_pivot(const PipelineCutter *self, int32_t pivot, float *features, int32_t stride) {
    PaperCut cuts[STAGES_MOST];
    Stage stages[STAGES_MOST];
    memcpy(cuts, self->cuts, sizeof *cuts * (size_t)self->cut_count);
    cuts[self->cut_count] = (PaperCut){pivot, self->device_of[pivot]};
    int32_t count = list_stages(self, stages, cuts, self->cut_count + 1);
    double reduced = 0, sent = 0, shortest = INFINITY, longest = 0;
    for (int32_t s = 0; s < count; s++) {
        double iteration = iteration_seconds(self, &stages[s], PAPER_FORWARD) +
                           iteration_seconds(self, &stages[s], PAPER_BACKWARD) +
                           iteration_seconds(self, &stages[s], PAPER_GRADIENTS);
        reduced += all_reduce_seconds(self, &stages[s]);
        if (s + 1 < count) sent = fmax(sent, transfer_seconds(self, &stages[s]));
        shortest = fmin(shortest, iteration);
        longest = fmax(longest, iteration);
    }
    features[0] = squashed(reduced / self->shared.unit);
    features[stride] = squashed(sent * self->shared.micro_batches / self->shared.unit);
    features[2 * stride] = longest > 0 ? (float)(shortest / longest) : 0;
}

static void observe_cuts(const Environment *environment, float *observation) {
    const PipelineCutter *self = (const PipelineCutter *)environment;
    int32_t width = environment->action_count;
    memset(observation, 0, sizeof *observation * (size_t)environment->observation_size);
    observation[FEATURES * width] = (float)self->cut_count / (float)self->shared.stage_count;
    if (self->cut_count == self->shared.stage_count - 1) return;
    const Window *window = &self->windows[self->cut_count];
    for (int32_t k = 0; k < window->count; k++)
        if (is_legal(self, window->pivots[k]))
            describe_pivot(self, window->pivots[k], &observation[k], width);
}

/* Returns the reward of the pipeline when all cuts are made. */
static double reward_of_cuts(PipelineCutter *self) {
    PaperPipeline *shared = &self->shared;
    Stage stages[STAGES_MOST];
    MemoryFit fit;
    int32_t count = list_stages(self, stages, self->cuts, self->cut_count);
    double seconds = length_of(self, stages, count);
    fit.fits = check_memory(self, stages, count, &fit);
    if (shared->best_seconds == 0 || plan_is_better(seconds, &fit, shared->best_seconds, &shared->best_fit)) {
        shared->best_seconds = seconds;
        shared->best_fit = fit;
        memcpy(shared->best, self->cuts, sizeof *self->cuts * (size_t)self->cut_count);
    }
    if (fit.fits) return shared->unit / seconds;
    shared->failures++;
    return -sqrt(shared->unit / seconds);
}

static AmStatus step_cuts(Environment *environment, int32_t action, double *reward, bool *done,
                          AmError *error) {
    (void)error;
    PipelineCutter *self = (PipelineCutter *)environment;
    int32_t pivot = self->windows[self->cut_count].pivots[action];
    bool is_open = is_legal(self, pivot);
    if (is_open) self->cuts[self->cut_count++] = (PaperCut){pivot, self->device_of[pivot]};
    *done = !is_open || self->cut_count == self->shared.stage_count - 1;
    *reward = !*done ? 0 : is_open ? reward_of_cuts(self) : -1;
    return AM_OK;
}

bool paper_pipeline_is_tight(const PaperPipeline *pipeline) {
    const PipelineCutter *self = (const PipelineCutter *)pipeline;
    Stage stages[STAGES_MOST];
    int32_t count = list_stages(self, stages, pipeline->best, pipeline->stage_count - 1);
    double room = memory_usable(self->cluster, NULL, 0, self->memory_fraction);
    bool is_tight = false;
    for (int32_t s = 0; s < count; s++) {
        double gradients = stages[s].end->weight_bytes - stages[s].first->weight_bytes;
        is_tight = is_tight || memory_of(self, &stages[s], s) + gradients > room;
    }
    return is_tight;
}

#define MOST_PIPELINES 1000000

double paper_pipeline_shortest(const PaperPipeline *pipeline) {
    PipelineCutter walk = *(const PipelineCutter *)pipeline; /* whose cuts are moved here */
    int32_t places[STAGES_MOST] = {0}, last = pipeline->stage_count - 1;
    double shortest = INFINITY, count = 1;
    for (int32_t k = 0; k < last; k++) count *= walk.windows[k].count;
    if (count > MOST_PIPELINES) return NAN;
    walk.cut_count = 0;
    for (int32_t k = 0; k >= 0;) {
        walk.cut_count = k;
        if (k == last) {
            bool fits;
            double seconds = paper_pipeline_seconds(&walk.shared, walk.cuts, &fits);
            if (fits) shortest = fmin(shortest, seconds);
            k--;
        } else if (places[k] == walk.windows[k].count) {
            places[k--] = 0;
        } else {
            int32_t pivot = walk.windows[k].pivots[places[k]++];
            if (!is_legal(&walk, pivot)) continue;
            walk.cuts[k] = (PaperCut){pivot, walk.device_of[pivot]};
            k++;
        }
    }
    return isfinite(shortest) ? shortest : NAN;
}

/* ---- making one ---- */

/* Returns whether less crosses at a pivot than, or as much as, at both of its neighbours. */
static bool is_narrow(const PaperChain *chain, int32_t p) {
    double crossing = chain->pivots[p].crossing;
    return (p == 0 || crossing <= chain->pivots[p - 1].crossing) &&
           (p + 1 == chain->count || crossing <= chain->pivots[p + 1].crossing);
}

/* Lists the pivots whose device cut is near a boundary: the narrow ones, or else all of them. */
static AmStatus fill_window(PipelineCutter *self, Window *window, int32_t boundary, AmError *error) {
    const PaperChain *chain = self->shared.chain;
    window->pivots = ARENA_ARRAY(self->arena, int32_t, chain->count);
    if (!window->pivots) return am_fail_memory(error, chain->count * 4);
    for (int32_t all = 0; all < 2 && window->count == 0; all++)
        for (int32_t p = 0; p < chain->count; p++)
            if (abs(self->device_of[p] - boundary) <= PAPER_RADIUS && (all || is_narrow(chain, p)))
                window->pivots[window->count++] = p;
    if (window->count > 0) return AM_OK;
    return am_fail(error, AM_ERROR_INFEASIBLE, "",
                   "no pipeline: no cut leaves the devices within %d of number %d, where a server begins",
                   PAPER_RADIUS, boundary);
}

static AmStatus find_windows(PipelineCutter *self, AmError *error) {
    const PaperChain *chain = self->shared.chain;
    double all = paper_iteration_seconds(&chain->end);
    for (int32_t p = 0; p < chain->count; p++) {
        double part = all > 0 ? paper_iteration_seconds(&chain->pivots[p]) / all : 0;
        self->device_of[p] = (int32_t)lround(part * self->cluster->device_count);
    }
    for (int32_t k = 0; k + 1 < self->shared.stage_count; k++) {
        Window *window = &self->windows[k];
        TRY(fill_window(self, window, self->cluster->servers[k + 1].first_device, error));
        self->shared.pivot_count += window->count;
        if (window->count > self->shared.base.action_count) self->shared.base.action_count = window->count;
    }
    return AM_OK;
}

/* Finds the topology of each range of consecutive devices that two device cuts may leave to a stage. */
static AmStatus find_topologies(PipelineCutter *self, AmError *error) {
    int32_t count = self->cluster->device_count, stages = self->shared.stage_count;
    int32_t *devices = ARENA_ARRAY(self->arena, int32_t, count);
    self->topologies =
        arena_alloc(self->arena, sizeof *self->topologies * (size_t)(count + 1) * (size_t)count);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)count * count * 8);
    for (int32_t d = 0; d < count; d++) devices[d] = d;
    for (int32_t s = 0; s < stages; s++) {
        int32_t begin = s == 0 ? 0 : self->cluster->servers[s].first_device;
        for (int32_t first = begin - PAPER_RADIUS; first <= begin + PAPER_RADIUS; first++) {
            if (first < 0 || (s == 0 && first > 0)) continue;
            for (int32_t end = first + 2; end <= count; end++) {
                Mesh mesh = {.axis_count = 1,
                             .axes = {{.name = "data", .size = end - first}},
                             .device_count = end - first};
                CollectivePartition partition;
                TRY(collective_partition(&partition, self->arena, self->cluster, &mesh, &devices[first], 1,
                                         error));
                self->topologies[first * (count + 1) + end] = &partition.topologies[0];
            }
        }
    }
    return AM_OK;
}

AmStatus paper_pipeline_create(PaperPipeline **pipeline, Arena *arena, const PaperChain *chain,
                               const Cluster *cluster, int32_t micro_batches, double memory_fraction,
                               AmError *error) {
    static const EnvironmentMethods methods = {reset_cuts, observe_cuts, mask, step_cuts};
    if (cluster->server_count < 2 || cluster->server_count > STAGES_MOST)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--objective paper cuts a pipeline into a stage per server: cluster %s has %d",
                       cluster->name, cluster->server_count);
    for (int32_t s = 1; s < cluster->server_count; s++)
        if (cluster->servers[s].device_count != cluster->servers[0].device_count)
            return am_fail(error, AM_ERROR_USAGE, "",
                           "--objective paper: the servers of cluster %s have different numbers of devices",
                           cluster->name);
    PipelineCutter *self = ARENA_ARRAY(arena, PipelineCutter, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (PipelineCutter){.shared = {.base = {.methods = &methods},
                                        .chain = chain,
                                        .stage_count = cluster->server_count,
                                        .micro_batches = micro_batches,
                                        .best = ARENA_ARRAY(arena, PaperCut, cluster->server_count)},
                             .arena = arena,
                             .cluster = cluster,
                             .memory_fraction = memory_fraction,
                             .device_of = ARENA_ARRAY(arena, int32_t, chain->count + 1)};
    size_t ends = (size_t)chain->count + 2;
    if (ends > MOST_PIVOTS)
        return am_fail(error, AM_ERROR_INPUT, "", "no pipeline: more than %d products", MOST_PIVOTS);
    self->reduced = arena_alloc(arena, sizeof *self->reduced * ends * ends);
    if (arena->failed) return am_fail_memory(error, chain->count);
    double iteration =
        paper_iteration_seconds(&chain->end) * chain->parts / micro_batches / cluster->device_count;
    self->shared.unit = iteration > 0 ? iteration * micro_batches : 1;
    TRY(find_windows(self, error));
    TRY(find_topologies(self, error));
    self->shared.base.observation_size = FEATURES * self->shared.base.action_count + 1;
    *pipeline = &self->shared;
    return AM_OK;
}
