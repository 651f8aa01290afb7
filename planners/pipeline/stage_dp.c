/* The dynamic program over stages.
 *
 * It has one number of micro-batches M and a limit on the longest iteration. least[s][p][u] is the least sum
 * of iterations of s stages with the units from u on and the devices from p on. Stages are added at the
 * front, so that s determines the number of iterations that the first of them keeps. The limit increases
 * from the least possible one in steps of 1.05, while (M - 1) limits plus the least sum of all may be less
 * than the best found.
 */
#include "planners/pipeline/stage_dp.h"

#include <math.h>
#include <string.h>

#include "base/system/parallel.h"
#include "planners/pipeline/stage_model.h"

enum {
    /* Tensor degrees, the sequence split or not, ZeRO 0 to 3, recomputation of nothing, of all or by a
     * level. */
    MOST_STRATEGIES = PIPELINE_MOST_TENSORS * 2 * 4 * (2 + RECOMPUTE_MOST_LEVELS),
    MOST_LIMITS = 48,
    MOST_KEPT = 32,
    OF_A_KIND = 2
};
#define LIMIT_STEP 1.05

/* The quickest strategy for units [u, j) of a class of places with so many iterations kept. */
typedef struct BestStage {
    float iteration, rest; /* rest by M */
    int16_t strategy;      /* -1: none fits */
} BestStage;

typedef struct DynamicChoice {
    int16_t place, end_unit;
} DynamicChoice;

/* The work on one number of micro-batches. */
typedef struct StageDp {
    const StageModel *model;
    Arena arena; /* of the tables, freed with the end of this work */
    int32_t micro_batches, most_stages, units, devices;
    struct {
        int32_t width, tensor; /* of all stages that are considered; 0: any */
        int32_t replicas;      /* of the stages whose number of devices is pinned; 0: no stage has a pin */
    } fixed;
    StageStrategy strategies[MOST_STRATEGIES];
    int32_t strategy_count;
    StagePricing *pricings; /* [class * MOST_STRATEGIES + strategy]; units NULL: none */
    BestStage *best;        /* [((class * most_stages + kept - 1) * units + u) * (units + 1) + j] */
    double *transfer;       /* [device * (units + 1) + cut]: up and down */
    double *least;          /* [(s * (devices + 1) + p) * (units + 1) + u] */
    DynamicChoice *choices; /* the same */
    struct {
        Arena arena;        /* of the pipelines */
        PipelineLayout *of; /* [MOST_KEPT] different ones, quickest first */
        int32_t count;
        double least;
    } found;
    AmStatus status;
    AmError error;
} StageDp;

static AmStatus open_pricings(StageDp *self, AmError *error) {
    const StageModel *model = self->model;
    self->pricings = ARENA_ARRAY(&self->arena, StagePricing, model->class_count * MOST_STRATEGIES);
    if (!self->pricings) return am_fail_memory(error, model->class_count * MOST_STRATEGIES);
    for (int32_t c = 0; c < model->class_count; c++)
        for (int32_t r = 0; r < self->strategy_count; r++) {
            StagePricing *pricing = &self->pricings[c * MOST_STRATEGIES + r];
            const StageStrategy *strategy = &self->strategies[r], *before = strategy - 1;
            bool is_same = r > 0 && before->tensor == strategy->tensor &&
                           before->splits_sequence == strategy->splits_sequence;
            if (is_same) { /* only storage and kept values differ */
                *pricing = pricing[-1];
                pricing->strategy = *strategy;
            } else if (!stage_pricing_open(pricing, model, &self->arena, self->micro_batches, c, strategy)) {
                pricing->units = NULL;
            }
        }
    return self->arena.failed ? am_fail_memory(error, 0) : AM_OK;
}

static bool is_open(const StageDp *self, const StagePricing *pricing) {
    const Degrees *degrees = &self->model->settings.degrees;
    return pricing->units && (self->fixed.tensor == 0 || pricing->strategy.tensor == self->fixed.tensor) &&
           degrees_allow_mesh(degrees, pricing->class->place.width, pricing->strategy.tensor) &&
           (pricing->strategy.storage == 0 || pricing->data > 1);
}

static BestStage *best_of(const StageDp *self, int32_t class, int32_t kept, int32_t unit) {
    int32_t row = (class * self->most_stages + kept - 1) * self->units + unit;
    return &self->best[(size_t)row * (size_t)(self->units + 1)];
}

/* Prices all stages that begin at `unit`, with one strategy. */
static void price_from(StageDp *self, int32_t class, int32_t strategy, int32_t unit) {
    const StageModel *model = self->model;
    const StagePricing *pricing = &self->pricings[class * MOST_STRATEGIES + strategy];
    double limit = pricing->class->limit;
    StageSums sums = {0};
    for (int32_t end = unit + 1; end <= self->units; end++) {
        StageCost cost;
        stage_sums_add(&sums, &pricing->units[end - 1]);
        stage_sums_cost(model, pricing, &sums, unit, &cost);
        float iteration = (float)(cost.forward + cost.backward),
              rest = (float)(cost.rest / self->micro_batches);
        for (int32_t kept = 1; kept <= self->most_stages; kept++) {
            int32_t iterations = kept < self->micro_batches ? kept : self->micro_batches;
            if (cost.fixed_bytes + iterations * cost.iteration_bytes > limit) break;
            BestStage *best = best_of(self, class, kept, unit) + end;
            if (best->strategy >= 0 && best->iteration + best->rest <= iteration + rest) continue;
            *best = (BestStage){iteration, rest, (int16_t)strategy};
        }
    }
}

static AmStatus price_stages(StageDp *self, AmError *error) {
    const StageModel *model = self->model;
    size_t count = (size_t)(model->class_count * self->most_stages * self->units) * (size_t)(self->units + 1);
    if (!self->best) self->best = ARENA_ARRAY(&self->arena, BestStage, count);
    if (!self->best) return am_fail_memory(error, (int64_t)(count * sizeof *self->best));
    for (size_t k = 0; k < count; k++) self->best[k].strategy = -1;
    for (int32_t c = 0; c < model->class_count; c++)
        for (int32_t r = 0; r < self->strategy_count; r++)
            for (int32_t u = 0; u < self->units && is_open(self, &self->pricings[c * MOST_STRATEGIES + r]);
                 u++) {
                if (stop_wanted(&model->costs->stop)) return AM_OK;
                price_from(self, c, r, u);
            }
    return AM_OK;
}

static size_t state_of(const StageDp *self, int32_t stages, int32_t device, int32_t unit) {
    return ((size_t)stages * (size_t)(self->devices + 1) + (size_t)device) * (size_t)(self->units + 1) +
           (size_t)unit;
}

/* Returns whether a unit may be on a place, on the stage with so many stages from it to the last. */
static bool may_be_on(const StageDp *self, int32_t stages, int32_t place, int32_t unit) {
    const LayerCosts *costs = self->model->costs;
    const DeviceRange *range = &self->model->places[place];
    const RangePlacement *placed = &costs->units.placed[unit];
    int32_t count = self->model->settings.degrees.stages; /* known where pins have stages */
    if (placed->is_contradicted || (placed->stage >= 0 && placed->stage != count - stages)) return false;
    for (int32_t d = range->first; placed->on_devices && d < range->first + range->width; d++)
        if (!placement_allows_devices(costs->pins.placement, costs->units.cuts[unit],
                                      costs->units.cuts[unit + 1], stage_model_device(self->model, d), 1))
            return false;
    return true;
}

/* Adds a stage on a place before the pipelines with one stage less that begin after it. */
static void add_stage(StageDp *self, int32_t stages, int32_t number, double limit, bool finds_limit) {
    const DeviceRange *place = &self->model->places[number];
    int32_t first_after = place->first + place->width;
    const double *after = &self->least[state_of(self, stages - 1, first_after, 0)];
    const double *transfer = &self->transfer[(size_t)first_after * (size_t)(self->units + 1)];
    const RangePlacement *placed = self->model->costs->units.placed;
    double *least = &self->least[state_of(self, stages, place->first, 0)];
    DynamicChoice *choices = &self->choices[state_of(self, stages, place->first, 0)];
    for (int32_t u = 0; u < self->units; u++) {
        const BestStage *best = best_of(self, place->class, stages, u);
        int32_t devices = 0; /* of one replica, by pins */
        for (int32_t end = u + 1; end <= self->units; end++) {
            if (placed && !may_be_on(self, stages, number, end - 1)) break;
            if (placed && placed[end - 1].number > devices) devices = placed[end - 1].number;
            if (devices > 0 && place->width != devices * self->fixed.replicas) continue;
            if (best[end].strategy < 0 || after[end] == INFINITY) continue;
            double longest = best[end].iteration + best[end].rest;
            if (transfer[end] > longest) longest = transfer[end];
            if (longest > limit) continue;
            double value =
                finds_limit ? fmax(longest, after[end]) : best[end].iteration + transfer[end] + after[end];
            if (value >= least[u]) continue;
            least[u] = value;
            choices[u] = (DynamicChoice){(int16_t)number, (int16_t)end};
        }
    }
}

/* Fills least[][][]: sums of iterations under a limit, or the least limit that is possible. */
static void fill_least_sums(StageDp *self, double limit, bool finds_limit) {
    size_t count = state_of(self, self->most_stages + 1, 0, 0);
    for (size_t k = 0; k < count; k++) self->least[k] = INFINITY;
    self->least[state_of(self, 0, self->devices, self->units)] = 0;
    for (int32_t s = 1; s <= self->most_stages; s++)
        for (int32_t p = 0; p < self->model->place_count; p++)
            if (self->fixed.width == 0 || self->model->places[p].width == self->fixed.width)
                add_stage(self, s, p, limit, finds_limit);
}

/* Follows the choices from the first stage on; false where there is no pipeline of so many stages. */
static bool follow_choices(const StageDp *self, int32_t stages, PipelineLayout *pipeline, StageCost *costs) {
    if (self->least[state_of(self, stages, 0, 0)] == INFINITY) return false;
    *pipeline = (PipelineLayout){.micro_batches = self->micro_batches,
                                 .stage_count = stages,
                                 .order = self->model->devices ? self->model : NULL};
    for (int32_t s = 0, device = 0, unit = 0; s < stages; s++) {
        const DynamicChoice *choice = &self->choices[state_of(self, stages - s, device, unit)];
        const DeviceRange *place = &self->model->places[choice->place];
        const BestStage *best = best_of(self, place->class, stages - s, unit) + choice->end_unit;
        const StagePricing *pricing = &self->pricings[place->class * MOST_STRATEGIES + best->strategy];
        StageSums sums = {0};
        for (int32_t u = unit; u < choice->end_unit; u++) stage_sums_add(&sums, &pricing->units[u]);
        stage_sums_cost(self->model, pricing, &sums, unit, &costs[s]);
        pipeline->stages[s] = (StageLayout){.first_unit = unit,
                                            .end_unit = choice->end_unit,
                                            .place = *place,
                                            .strategy = self->strategies[best->strategy]};
        device += place->width;
        unit = choice->end_unit;
    }
    return true;
}

/* Returns whether two pipelines differ in nothing but their cuts. */
static bool same_shape(const PipelineLayout *a, const PipelineLayout *b) {
    if (a->micro_batches != b->micro_batches || a->stage_count != b->stage_count) return false;
    for (int32_t s = 0; s < a->stage_count; s++) {
        const StageLayout *x = &a->stages[s], *y = &b->stages[s];
        if (x->place.first != y->place.first || x->place.width != y->place.width) return false;
        if (memcmp(&x->strategy, &y->strategy, sizeof x->strategy) != 0) return false;
    }
    return true;
}

/* Drops the slowest of OF_A_KIND where that is slower; false where the new one is. */
static bool make_room(PipelineLayout *kept, int32_t *count, const PipelineLayout *pipeline, int32_t place) {
    int32_t alike = 0, last = -1;
    for (int32_t k = 0; k < *count; k++) {
        if (kept[k].micro_batches != pipeline->micro_batches || kept[k].stage_count != pipeline->stage_count)
            continue;
        alike++;
        last = k;
    }
    if (alike < OF_A_KIND) return true;
    if (last < place) return false;
    memmove(&kept[last], &kept[last + 1], sizeof *kept * (size_t)(*count - last - 1));
    --*count;
    return true;
}

/* Keeps the quickest of each shape, in order, and of as many micro-batches and stages at most OF_A_KIND. */
static void keep_layout(PipelineLayout *kept, int32_t *count, int32_t most, const PipelineLayout *pipeline) {
    int32_t place = *count;
    for (int32_t k = 0; k < *count; k++) {
        if (!same_shape(&kept[k], pipeline)) continue;
        if (kept[k].seconds <= pipeline->seconds) return;
        memmove(&kept[k], &kept[k + 1], sizeof *kept * (size_t)(*count - k - 1));
        place = --*count;
        break;
    }
    while (place > 0 && kept[place - 1].seconds > pipeline->seconds) place--;
    if (place == most || !make_room(kept, count, pipeline, place)) return;
    if (*count == most) --*count;
    memmove(&kept[place + 1], &kept[place], sizeof *kept * (size_t)(*count - place));
    kept[place] = *pipeline;
    ++*count;
}

static bool has_stages(const StageDp *self, int32_t stages) {
    return degrees_allow_stages(&self->model->settings.degrees, stages);
}

/* Collects the results of the program, for each number of stages; returns the minimum of its
 * objective. */
static double collect_layouts(StageDp *self, double limit) {
    double least = INFINITY;
    for (int32_t s = 1; s <= self->most_stages; s++) {
        PipelineLayout pipeline;
        StageCost costs[PIPELINE_MOST_STAGES];
        if (!has_stages(self, s) || !follow_choices(self, s, &pipeline, costs)) continue;
        double up[PIPELINE_MOST_STAGES], down[PIPELINE_MOST_STAGES];
        for (int32_t k = 0; k < s; k++) {
            const StageLayout *stage = &pipeline.stages[k];
            up[k] = stage_model_transfer(self->model, self->micro_batches, stage->first_unit,
                                         stage->place.first, false);
            down[k] = stage_model_transfer(self->model, self->micro_batches, stage->first_unit,
                                           stage->place.first, true);
        }
        pipeline.seconds = stage_model_clock(costs, up, down, s, self->micro_batches);
        keep_layout(self->found.of, &self->found.count, MOST_KEPT, &pipeline);
        least = fmin(least, self->least[state_of(self, s, 0, 0)] + (self->micro_batches - 1) * limit);
    }
    return least;
}

static double least_of_all(const StageDp *self) {
    double least = INFINITY;
    for (int32_t s = 1; s <= self->most_stages; s++)
        if (has_stages(self, s)) least = fmin(least, self->least[state_of(self, s, 0, 0)]);
    return least;
}

/* Collects pipelines under growing limits, of the stages that are priced. */
static void search_limits(StageDp *self) {
    fill_least_sums(self, INFINITY, false);
    double least_sum = least_of_all(self);
    if (least_sum == INFINITY) return;
    fill_least_sums(self, INFINITY, true);
    double limit = least_of_all(self) * (1 + 1e-6), best = INFINITY;
    for (int32_t k = 0; k < MOST_LIMITS; k++) {
        if (least_sum + (self->micro_batches - 1) * limit / LIMIT_STEP > best) break;
        if (stop_wanted(&self->model->costs->stop)) break;
        fill_least_sums(self, limit, false);
        best = fmin(best, collect_layouts(self, limit));
        limit *= LIMIT_STEP;
    }
    self->found.least = fmin(self->found.least, best);
}

/* Searches each number of replicas. Pins may set the devices of one replica of a stage: R replicas then have
 * R times these. Without such pins one search covers all places. */
static void search_replicas(StageDp *self) {
    const LayerCosts *costs = self->model->costs;
    int32_t least = 0;
    for (int32_t u = 0; costs->units.placed && u < self->units; u++) {
        int32_t number = costs->units.placed[u].number;
        if (number > 0 && (least == 0 || number < least)) least = number;
    }
    if (least == 0) search_limits(self);
    for (self->fixed.replicas = 1; least > 0 && self->fixed.replicas * least <= self->devices;
         self->fixed.replicas++)
        search_limits(self);
}

/* Searches stages of one width and one tensor degree after another. */
static AmStatus search_alike(StageDp *self, AmError *error) {
    const StageModel *model = self->model;
    for (int32_t k = 0; k < model->tensor_count; k++) {
        self->fixed.tensor = model->tensors[k];
        TRY(price_stages(self, error));
        for (self->fixed.width = self->fixed.tensor; self->fixed.width <= self->devices; self->fixed.width++)
            if (self->devices % self->fixed.width == 0 && self->fixed.width % self->fixed.tensor == 0)
                search_replicas(self);
    }
    return AM_OK;
}

static AmStatus find_layouts(StageDp *self, AmError *error) {
    const StageModel *model = self->model;
    self->units = model->costs->units.count;
    self->devices = model->cluster->device_count;
    self->most_stages =
        PIPELINE_MOST_STAGES < self->micro_batches ? PIPELINE_MOST_STAGES : self->micro_batches;
    if (model->settings.has_few_iterations && self->most_stages < PIPELINE_FEW_ITERATIONS)
        self->most_stages = PIPELINE_FEW_ITERATIONS;
    if (model->settings.degrees.stages > 0) self->most_stages = model->settings.degrees.stages;
    if (self->most_stages > PIPELINE_MOST_STAGES) self->most_stages = PIPELINE_MOST_STAGES;
    if (self->devices < self->most_stages) self->most_stages = self->devices;
    if (self->units < self->most_stages) self->most_stages = self->units;
    size_t states = state_of(self, self->most_stages + 1, 0, 0);
    self->least = ARENA_ARRAY(&self->arena, double, states);
    self->choices = ARENA_ARRAY(&self->arena, DynamicChoice, states);
    self->found.of = ARENA_ARRAY(&self->found.arena, PipelineLayout, MOST_KEPT);
    if (self->arena.failed || !self->found.of) return am_fail_memory(error, (int64_t)states * 12);
    const StageModelSettings *settings = &self->model->settings;
    int32_t ways =
        settings->may_recompute ? RECOMPUTE_LEVELS + self->model->costs->recompute.levels.count : 1;
    for (int32_t k = 0; k < 2 * self->model->tensor_count; k++) {
        StageStrategy strategy = {.tensor = self->model->tensors[k / 2], .splits_sequence = k % 2 == 1};
        if (strategy.tensor == 1 && strategy.splits_sequence) continue;
        for (int32_t r = 0; r < ways; r++)
            for (int32_t storage = 0; storage <= 3 * settings->may_shard_storage; storage++) {
                strategy.recompute = (uint8_t)r;
                strategy.storage = (uint8_t)storage;
                self->strategies[self->strategy_count++] = strategy;
            }
    }
    TRY(open_pricings(self, error));
    size_t row = (size_t)self->units + 1;
    self->transfer = ARENA_ARRAY(&self->arena, double, (size_t)(self->devices + 1) * row);
    if (!self->transfer) return am_fail_memory(error, (int64_t)row * self->devices);
    for (int32_t d = 1; d < self->devices; d++)
        for (int32_t u = 1; u < self->units; u++)
            self->transfer[(size_t)d * row + (size_t)u] =
                stage_model_transfer(self->model, self->micro_batches, u, d, false) +
                stage_model_transfer(self->model, self->micro_batches, u, d, true);
    if (model->settings.are_alike) return search_alike(self, error);
    TRY(price_stages(self, error));
    if (!stop_wanted(&model->costs->stop)) search_replicas(self);
    return AM_OK;
}

static void find_task(void *user, int32_t k) {
    StageDp *self = (StageDp *)user + k;
    self->status = find_layouts(self, &self->error);
    arena_free(&self->arena);
}

AmStatus stage_dp_find(const StageModel *model, PipelineLayout *pipelines, int32_t most, int32_t *count,
                       double *least, AmError *error) {
    Arena arena = {0};
    StageDp *finders = ARENA_ARRAY(&arena, StageDp, model->number_count);
    AmStatus status = AM_OK;
    *count = 0;
    if (!finders) return am_fail_memory(error, (int64_t)sizeof *finders * model->number_count);
    for (int32_t n = 0; n < model->number_count; n++)
        finders[n] = (StageDp){.model = model, .micro_batches = model->numbers[n], .found.least = INFINITY};
    parallel_for(model->number_count, model->settings.threads, find_task, finders);
    for (int32_t n = 0; n < model->number_count; n++) {
        if (status == AM_OK) status = am_pass_error(finders[n].status, &finders[n].error, error);
        for (int32_t k = 0; k < finders[n].found.count; k++)
            keep_layout(pipelines, count, most, &finders[n].found.of[k]);
        if (least) least[n] = finders[n].found.least;
        arena_free(&finders[n].found.arena);
    }
    arena_free(&arena);
    return status;
}
