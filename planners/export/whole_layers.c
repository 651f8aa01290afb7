/* Moves the cuts of a pipeline to the nearest layer boundaries.
 *
 * The forward operators that take weights with numbered paths stand in the order of the module. Between two
 * of them of different layers a cut may lie, if no layer has one before and one after: at that of the
 * places there where least crosses. The plan's cuts are matched with such places in order, by dynamic
 * programming, so that the distances, counted in operators' FLOPs, add up to least.
 */
#include "planners/export/whole_layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "planners/baselines/even_pipeline.h"
#include "planners/baselines/layer_path.h"

/* More layers are refused. */
enum { MOST_LAYERS = 4096 };

/* A forward operator that takes a weight of a layer. */
typedef struct LayerUse {
    int32_t instruction, layer;
} LayerUse;

typedef struct Layer {
    const char *path; /* of a weight of it */
    int32_t last;     /* use */
} Layer;

typedef struct Mover {
    Arena *arena;
    const PlanContext *primary;
    const Plan *plan;
    PipelineWork work;
    double *done; /* [count + 1] FLOPs before each instruction */
    LayerUse *uses;
    int32_t use_count, use_capacity;
    Layer *layers; /* in the order of their first uses */
    int32_t layer_count, layer_capacity;
    int32_t *places; /* where cuts may lie, ascending */
    int32_t place_count;
    int32_t *cuts, *chosen; /* [cut_count], ascending: the plan's and the new ones */
    int32_t cut_count;
    AmError *error;
} Mover;

/* Notes that the operator at `instruction` takes a weight of that path. */
static AmStatus add_use(Mover *self, int32_t instruction, const char *path) {
    int32_t use = self->use_count, layer = self->layer_count - 1; /* mostly that of the use before */
    const LayerPath own = layer_path(path);
    for (; layer >= 0; layer--) {
        const LayerPath other = layer_path(self->layers[layer].path);
        if (other.number == own.number && layer_path_is_same(&other, &own)) break;
    }
    if (layer < 0 && self->layer_count == MOST_LAYERS)
        return am_fail(self->error, AM_ERROR_INFEASIBLE, plan_context_file(self->primary),
                       "it has over %d layers", MOST_LAYERS);
    ARENA_RESERVE(self->arena, self->layers, self->layer_count, self->layer_capacity);
    ARENA_RESERVE(self->arena, self->uses, self->use_count, self->use_capacity);
    if (self->arena->failed) return am_fail_memory(self->error, use);
    if (layer < 0) {
        layer = self->layer_count++;
        self->layers[layer].path = path;
    }
    self->layers[layer].last = use;
    self->uses[self->use_count++] = (LayerUse){instruction, layer};
    return AM_OK;
}

/* Returns the place between two uses where least crosses, or -1. */
static int32_t best_place(const Mover *self, int32_t before, int32_t after) {
    int32_t best = -1;
    for (int32_t i = self->uses[before].instruction + 1; i <= self->uses[after].instruction; i++)
        if (self->work.is_cut[i] && (best < 0 || self->work.crossing[i] < self->work.crossing[best]))
            best = i;
    return best;
}

/* Lists the beginnings of ranges, except the first. */
static AmStatus list_cuts(Mover *self) {
    const Plan *plan = self->plan;
    int32_t count = 0;
    for (int32_t s = 0; s < plan->stage_count; s++) count += plan->stages[s].range_count;
    self->cuts = ARENA_ARRAY(self->arena, int32_t, count + 1);
    self->chosen = ARENA_ARRAY(self->arena, int32_t, count + 1);
    if (self->arena->failed) return am_fail_memory(self->error, count);
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t r = 0; r < plan->stages[s].range_count; r++)
            if (plan->stages[s].ranges[r][0] > 0)
                self->cuts[self->cut_count++] = plan->stages[s].ranges[r][0];
    qsort(self->cuts, (size_t)self->cut_count, sizeof *self->cuts, compare_integers);
    if (self->cut_count <= self->place_count) return AM_OK;
    return am_fail(
        self->error, AM_ERROR_INFEASIBLE, plan_context_file(self->primary),
        "the plan has %d cut%s, but only %d fit between layers (expected numbers of layers in the paths "
        "of weights, as in layer[0])",
        self->cut_count, self->cut_count == 1 ? "" : "s", self->place_count);
}

/* Matches cuts with places. least[c][k]: sum of distances of cuts up to c with cut c at place k; from[c][k]:
 * the place of the cut before. */
static AmStatus match_cuts(Mover *self) {
    int32_t cuts = self->cut_count, places = self->place_count;
    double *least = ARENA_ARRAY(self->arena, double, (int64_t)cuts *places + 1);
    int32_t *from = ARENA_ARRAY(self->arena, int32_t, (int64_t)cuts * places + 1);
    if (self->arena->failed) return am_fail_memory(self->error, (int64_t)cuts * places * 12);
    for (int32_t c = 0; c < cuts; c++) {
        int32_t best = -1; /* of the places before k, where the cut before ends best */
        for (int32_t k = 0; k < places; k++) {
            double distance = fabs(self->done[self->places[k]] - self->done[self->cuts[c]]);
            if (c > 0 && k > 0 && isfinite(least[(c - 1) * places + k - 1]) &&
                (best < 0 || least[(c - 1) * places + k - 1] < least[(c - 1) * places + best]))
                best = k - 1;
            bool is_possible = c == 0 || best >= 0;
            double before = c == 0 ? 0 : is_possible ? least[(c - 1) * places + best] : INFINITY;
            least[c * places + k] = is_possible ? before + distance : INFINITY;
            from[c * places + k] = best;
        }
    }
    int32_t at = 0;
    for (int32_t k = 1; cuts > 0 && k < places; k++)
        if (least[(cuts - 1) * places + k] < least[(cuts - 1) * places + at]) at = k;
    for (int32_t c = cuts - 1; c >= 0; c--) {
        self->chosen[c] = self->places[at];
        at = from[c * places + at];
    }
    return AM_OK;
}

/* Finds the nearest progression of places, each `step` layers after the previous one. If parts are
 * chunks, the first and the last one have as many layers as the others, too. */
static AmStatus match_evenly(Mover *self) {
    int32_t cuts = self->cut_count, places = self->place_count;
    bool in_chunks = plan_schedule(self->plan) == SCHEDULE_INTERLEAVED;
    double least = INFINITY;
    for (int32_t step = 1; cuts > 0 && step <= places && (int64_t)step * (cuts - 1) < places; step++)
        for (int32_t first = 0; first + step * (cuts - 1) < places; first++) {
            bool is_equal = first + 1 == step && step * (cuts + 1) == places + 1;
            double distance = 0;
            for (int32_t c = 0; c < cuts; c++)
                distance += fabs(self->done[self->places[first + c * step]] - self->done[self->cuts[c]]);
            if (distance >= least || (in_chunks && !is_equal)) continue;
            least = distance;
            for (int32_t c = 0; c < cuts; c++) self->chosen[c] = self->places[first + c * step];
        }
    if (cuts == 0 || least < INFINITY) return AM_OK;
    return am_fail(self->error, AM_ERROR_INFEASIBLE, plan_context_file(self->primary),
                   "%d layers cannot be dealt to %d chunks evenly", places + 1, cuts + 1);
}

static int32_t moved_place(const Mover *self, int32_t place) {
    for (int32_t c = 0; c < self->cut_count; c++)
        if (self->cuts[c] == place) return self->chosen[c];
    return place;
}

AmStatus plan_with_whole_layers(Plan **moved, int32_t *moved_count, Arena *arena, const PlanContext *primary,
                                const Plan *plan, bool evenly, AmError *error) {
    Mover self = {.arena = arena, .primary = primary, .plan = plan, .error = error};
    TRY(even_pipeline_work(&self.work, arena, primary, error));
    self.done = ARENA_ARRAY(arena, double, self.work.count + 1);
    if (!self.done) return am_fail_memory(error, self.work.count);
    for (int32_t i = 0; i < self.work.count; i++) self.done[i + 1] = self.done[i] + self.work.flops[i];
    for (int32_t i = 0; i < self.work.count; i++) {
        const char *path = layer_weight_of(primary, i);
        if (path[0] && layer_path(path).number >= 0) TRY(add_use(&self, i, path));
    }
    self.places = ARENA_ARRAY(self.arena, int32_t, self.use_count + 1);
    if (!self.places) return am_fail_memory(self.error, self.use_count);
    for (int32_t k = 0, last = -1; k + 1 < self.use_count; k++) {
        const Layer *layer = &self.layers[self.uses[k].layer];
        if (layer->last > last) last = layer->last;
        int32_t place = last > k ? -1 : best_place(&self, k, k + 1);
        if (place >= 0) self.places[self.place_count++] = place;
    }
    TRY(list_cuts(&self));
    TRY(evenly ? match_evenly(&self) : match_cuts(&self));
    Plan *made = *moved = ARENA_ARRAY(self.arena, Plan, 1);
    PlanStage *stages = ARENA_ARRAY(self.arena, PlanStage, self.plan->stage_count);
    if (self.arena->failed) return am_fail_memory(self.error, self.plan->stage_count);
    *made = *self.plan;
    made->stages = stages;
    for (int32_t s = 0; s < made->stage_count; s++) {
        stages[s] = self.plan->stages[s];
        stages[s].ranges = arena_alloc(self.arena, sizeof *stages[s].ranges * (size_t)stages[s].range_count);
        if (!stages[s].ranges) return am_fail_memory(self.error, stages[s].range_count);
        for (int32_t r = 0; r < stages[s].range_count; r++)
            for (int32_t side = 0; side < 2; side++)
                stages[s].ranges[r][side] = moved_place(&self, self.plan->stages[s].ranges[r][side]);
    }
    *moved_count = 0;
    for (int32_t c = 0; c < self.cut_count; c++) *moved_count += self.chosen[c] != self.cuts[c];
    return AM_OK;
}
