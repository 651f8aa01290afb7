/* Places of stages on a cluster and their costs by tables: seconds of the passes, bytes at the peak,
 * transfers, and the step of a pipeline of such stages. */
#include <math.h>
#include <string.h>

#include "cost/simulate/clock_1f1b.h"
#include "cost/step/memory.h"
#include "planners/pipeline/pinned_fill.h"
#include "planners/pipeline/stage_model.h"
#include "propagation/plan/pipeline_schedule.h"

/* ---- places ---- */

static int32_t servers_of(const Cluster *cluster, int32_t first, int32_t width) {
    int32_t count = 0;
    for (int32_t d = first; d < first + width; d++)
        if (d == first || cluster->server_of[d] != cluster->server_of[d - 1]) count++;
    return count;
}

/* Returns whether a stage may have this width by a pin on the devices of a scope: the number of one of
 * `copies` equal parts of the cluster, times the copies. With pins of 1 and 2, 12 devices have stages of 4
 * and 8. `first`: the place, which begins at a multiple of the copies; 0 for any. */
static bool is_pinned_width(const StageModel *self, int32_t first, int32_t width) {
    const RangePlacement *placed = self->costs->units.placed;
    for (int32_t u = 0; placed && !self->ignores_pinned_widths && u < self->costs->units.count; u++) {
        int32_t copies = placed[u].number > 0 && width % placed[u].number == 0 ? width / placed[u].number : 0;
        if (copies > 0 && self->cluster->device_count % copies == 0 && first % copies == 0) return true;
    }
    return false;
}

/* Returns whether a stage has all devices beside a stage of a pinned number: 3 of 8 beside replicate(5). */
static bool is_beside_pinned(const StageModel *self, int32_t first, int32_t width) {
    int32_t devices = self->cluster->device_count, rest = devices - width;
    if (rest < 1) return false;
    return (first == 0 && is_pinned_width(self, width, rest)) ||
           (first == rest && is_pinned_width(self, 0, rest));
}

/* Stages of pinned numbers of devices may begin at more places: those of 1 and of 2 fill 3 devices. */
static bool may_be_place(const StageModel *self, int32_t first, int32_t width) {
    if (first + width > self->cluster->device_count) return false;
    return first % width == 0 || first == 0 ||
           self->cluster->server_of[first] != self->cluster->server_of[first - 1] ||
           is_pinned_width(self, first, width) || is_beside_pinned(self, first, width) ||
           (self->pinned_borders && self->pinned_borders[first] && self->pinned_borders[first + width]);
}

/* Returns whether both have as many devices of each type, and on as many servers. */
static bool same_kind(const Cluster *cluster, const DeviceRange *a, const DeviceRange *b) {
    if (a->width != b->width) return false;
    if (servers_of(cluster, a->first, a->width) != servers_of(cluster, b->first, b->width)) return false;
    for (int32_t t = 0; t < cluster->type_count; t++) {
        int32_t difference = 0;
        for (int32_t d = 0; d < a->width; d++) {
            difference += cluster_device_type(cluster, a->first + d) == &cluster->types[t];
            difference -= cluster_device_type(cluster, b->first + d) == &cluster->types[t];
        }
        if (difference != 0) return false;
    }
    return true;
}

/* Returns whether two borders of pins are so many devices apart. */
static bool is_between_borders(const StageModel *self, int32_t width) {
    for (int32_t end = width; self->pinned_borders && end <= self->cluster->device_count; end++)
        if (self->pinned_borders[end - width] && self->pinned_borders[end]) return true;
    return false;
}

/* Returns whether stages may be so wide, by the fixed degrees, too. The sequence is judged on places as wide
 * as the tensor degree (whole_iteration()). */
static bool is_width(const StageModel *self, int32_t width) {
    const Degrees *degrees = &self->settings.degrees;
    if (!degrees_allow_width(degrees, width) && width != degrees->tensor) return false;
    return self->cluster->device_count % width == 0 || (width & (width - 1)) == 0 ||
           is_pinned_width(self, 0, width) || is_beside_pinned(self, 0, width) ||
           is_beside_pinned(self, self->cluster->device_count - width, width) ||
           is_between_borders(self, width);
}

/* Returns the least width of stages at which the number of places, over it and all larger widths, is within
 * the limit. On a large cluster this omits narrow stages, which would leave many devices idle. */
static int32_t least_width(const StageModel *self) {
    int32_t least = self->cluster->device_count, places = 0;
    for (int32_t width = least; width >= 1; width--) {
        if (!is_width(self, width)) continue;
        for (int32_t first = 0; first < self->cluster->device_count; first++)
            places += may_be_place(self, first, width);
        if (places > PIPELINE_MOST_PLACES) break;
        least = width;
    }
    return least;
}

/* Returns the least width. Pinned numbers of devices add widths and places only if no other width is omitted
 * for them. */
static int32_t limit_pinned_widths(StageModel *self) {
    int32_t with = least_width(self);
    self->ignores_pinned_widths = true;
    int32_t without = least_width(self);
    self->ignores_pinned_widths = without < with;
    return self->ignores_pinned_widths ? without : with;
}

/* Finds where stages may begin and end if pins put scopes on devices: at borders of servers, and where the
 * devices of a pin begin or end. No borders without such pins. */
static AmStatus find_pinned_borders(StageModel *self, AmError *error) {
    const LayerCosts *costs = self->costs;
    const Cluster *cluster = self->cluster;
    int32_t devices = cluster->device_count;
    for (int32_t u = 0; costs->units.placed && u < costs->units.count; u++) {
        bool before = false; /* whether the unit may be on the device before */
        if (!costs->units.placed[u].on_devices) continue;
        if (!self->pinned_borders) self->pinned_borders = ARENA_ARRAY(&self->arena, bool, devices + 1);
        if (!self->pinned_borders) return am_fail_memory(error, devices);
        for (int32_t d = 0; d < devices; d++) {
            bool is_here = placement_allows_devices(costs->pins.placement, costs->units.cuts[u],
                                                    costs->units.cuts[u + 1], stage_model_device(self, d), 1);
            bool is_new_server = d > 0 && cluster->server_of[d] != cluster->server_of[d - 1];
            self->pinned_borders[d] |= d == 0 || is_new_server || is_here != before;
            before = is_here;
        }
        self->pinned_borders[devices] = true;
    }
    return AM_OK;
}

static void list_places(StageModel *self) {
    const Cluster *cluster = self->cluster;
    int32_t devices = cluster->device_count;
    for (int32_t width = limit_pinned_widths(self); width <= devices; width++) {
        if (!is_width(self, width)) continue;
        for (int32_t first = 0; first < devices; first++) {
            DeviceRange place = {.first = first, .width = width, .class = -1};
            if (!may_be_place(self, first, width)) continue;
            for (int32_t c = 0; c < self->class_count && place.class < 0; c++)
                if (same_kind(cluster, &place, &self->classes[c].place)) place.class = c;
            if (place.class < 0) {
                if (self->class_count == PIPELINE_MOST_CLASSES) continue;
                place.class = self->class_count++;
                self->classes[place.class].place = place;
            }
            self->places[self->place_count++] = place;
        }
    }
}

bool stage_model_range(const StageModel *self, int32_t first, int32_t width, DeviceRange *place) {
    for (int32_t k = 0; k < self->place_count; k++)
        if (self->places[k].first == first && self->places[k].width == width) {
            *place = self->places[k];
            return true;
        }
    return false;
}

/* Describes the position of a class's devices along the axes of each tensor degree. */
static AmStatus describe_class(StageModel *self, PlaceClass *class, AmError *error) {
    const Cluster *cluster = self->cluster;
    int32_t width = class->place.width;
    int32_t *devices = ARENA_ARRAY(&self->arena, int32_t, width);
    if (!devices) return am_fail_memory(error, width);
    for (int32_t d = 0; d < width; d++) {
        const ClusterDeviceType *type = cluster_device_type(cluster, class->place.first + d);
        devices[d] = class->place.first + d;
        class->has_type[type - cluster->types] = true;
        class->memory_bytes_per_second =
            class->memory_bytes_per_second > 0
                ? fmin(class->memory_bytes_per_second, type->memory_bytes_per_second)
                : type->memory_bytes_per_second;
    }
    class->limit = memory_usable(cluster, devices, width, self->settings.memory_fraction);
    for (int32_t k = 0; k < self->tensor_count; k++) {
        int32_t tensor = self->tensors[k];
        if (width % tensor != 0) continue;
        const Mesh mesh = {
            .axis_count = 2,
            .axes = {{.name = "data", .size = width / tensor}, {.name = "model", .size = tensor}},
            .device_count = width};
        for (uint32_t axis = 0; axis < 2; axis++)
            if (mesh.axes[axis].size > 1)
                TRY(collective_partition(&class->partitions[k][axis], &self->arena, cluster, &mesh, devices,
                                         1u << axis, error));
    }
    return AM_OK;
}

static void add_tensor(StageModel *self, int32_t tensor) {
    for (int32_t k = 0; k < self->tensor_count; k++)
        if (self->tensors[k] == tensor) return;
    if (self->tensor_count < PIPELINE_MOST_TENSORS - 1) self->tensors[self->tensor_count++] = tensor;
}

/* Lists the degrees of tensor parallelism: the fixed one; else 1, those of pins, powers of two that fit into
 * a server, and the whole server. */
static void list_tensors(StageModel *self) {
    const LayerPins *pins = &self->costs->pins;
    int32_t most = 1, fixed = self->settings.degrees.tensor;
    for (int32_t s = 0; s < self->cluster->server_count; s++)
        if (self->cluster->servers[s].device_count > most) most = self->cluster->servers[s].device_count;
    if (fixed > 0) {
        self->tensors[self->tensor_count++] = fixed;
        return;
    }
    if (most > 1) add_tensor(self, 1);
    for (int32_t k = 0; k < pins->count; k++) {
        int32_t number = pin_split_number(&pins->pins[k]);
        if (number > 0 && number < most) add_tensor(self, number);
    }
    for (int32_t tensor = 2; tensor < most; tensor *= 2) add_tensor(self, tensor);
    self->tensors[self->tensor_count++] = most;
}

/* ---- tables ---- */

/* Examples of a device in an iteration; 0: fewer than devices. */
static int32_t stage_model_batch(const StageModel *self, int32_t micro_batches, int32_t data) {
    int64_t iteration = self->costs->batch / micro_batches;
    if (iteration < data) return 0;
    return (int32_t)((iteration + data - 1) / data);
}

/* Returns a table, or NULL where the module cannot be split so. */
static const LayerTable *stage_model_table(const StageModel *self, int32_t local_batch,
                                           const StageStrategy *strategy) {
    for (int32_t k = 0; k < self->table_count; k++) {
        const LayerTable *table = &self->tables[k];
        if (table->local_batch == local_batch && table->tensor == strategy->tensor &&
            table->splits_sequence == strategy->splits_sequence)
            return table->found ? table : NULL;
    }
    return NULL;
}

/* Widths that a pipeline of at most `micro_batches` stages would have: with fewer iterations than stages most
 * wait. */
static bool is_wide_enough(const StageModel *self, int32_t micro_batches, int32_t width) {
    enum { UNEVENNESS = 4 };
    if (self->settings.degrees.stages > 0) return true;
    if (self->settings.has_few_iterations)
        return (int64_t)width * PIPELINE_FEW_ITERATIONS >= self->cluster->device_count;
    return (int64_t)width * micro_batches * UNEVENNESS >= self->cluster->device_count &&
           (micro_batches > 1 || width == self->cluster->device_count);
}

/* Lists the table of the n-th number of micro-batches, the k-th tensor degree and class c, unless it is
 * known or not needed. */
static void list_table(StageModel *self, bool splits_sequence, int32_t n, int32_t c, int32_t k) {
    int32_t width = self->classes[c].place.width;
    LayerTable table = {.tensor = self->tensors[k]};
    table.splits_sequence = splits_sequence && table.tensor > 1;
    if (!degrees_allow_mesh(&self->settings.degrees, width, table.tensor)) return;
    if (!is_wide_enough(self, self->numbers[n], width)) return;
    table.local_batch = stage_model_batch(self, self->numbers[n], width / table.tensor);
    if (table.local_batch == 0) return;
    for (int32_t t = 0; t < self->table_count; t++)
        if (self->tables[t].local_batch == table.local_batch && self->tables[t].tensor == table.tensor &&
            self->tables[t].splits_sequence == table.splits_sequence)
            return;
    if (self->table_count == self->settings.most_tables) self->lacks_tables = true;
    else self->tables[self->table_count++] = table;
}

/* Returns the seconds of a table's iteration inside a server, all units together. */
static double whole_iteration(const StageModel *self, const LayerTable *table) {
    Arena scratch = {0};
    const StageStrategy strategy = {.tensor = table->tensor, .splits_sequence = table->splits_sequence};
    StagePricing pricing;
    double seconds = INFINITY;
    for (int32_t c = 0; c < self->class_count && seconds == INFINITY; c++) {
        if (self->classes[c].place.width != table->tensor) continue;
        int32_t iterations = (int32_t)(self->costs->batch / table->local_batch);
        if (!stage_pricing_open(&pricing, self, &scratch, iterations, c, &strategy)) continue;
        seconds = 0;
        for (int32_t u = 0; u < self->costs->units.count; u++)
            seconds += pricing.units[u].forward + pricing.units[u].backward;
    }
    arena_free(&scratch);
    return seconds;
}

/* Returns whether the sequence is split, too, which saves memory and moves as much: seen on the widest tensor
 * axis.
 */
static AmStatus choose_sequence(StageModel *self, bool *splits, AmError *error) {
    const DeviceRange all = {.width = self->cluster->device_count};
    int32_t tensor = self->tensors[self->tensor_count - 1],
            iterations = self->numbers[self->number_count - 1];
    int32_t local_batch = (int32_t)(self->costs->batch / iterations);
    *splits = false;
    if (tensor == 1 || all.width % tensor != 0) return AM_OK;
    for (int32_t k = 0; k < 2; k++)
        self->tables[self->table_count++] =
            (LayerTable){.tensor = tensor, .local_batch = local_batch, .splits_sequence = k == 1};
    TRY(layer_costs_fill(self->costs, self->tables, 2, self->settings.threads, error));
    *splits = self->tables[1].found &&
              whole_iteration(self, &self->tables[1]) < 1.02 * whole_iteration(self, &self->tables[0]);
    return AM_OK;
}

/* Makes the tables of all stages, as many as are allowed, first those of stages that pins on numbers of
 * devices need. Where few are allowed, those of the sequence give way to these. */
static AmStatus make_tables(StageModel *self, AmError *error) {
    enum { FEW_TABLES = 8 };
    bool *pinned, splits_sequence = false;
    int32_t stages, filled;
    TRY(pinned_fill_find(&pinned, &stages, &self->arena, self, error));
    if (!pinned || self->settings.most_tables > FEW_TABLES)
        TRY(choose_sequence(self, &splits_sequence, error));
    filled = self->table_count;
    for (int32_t n = 0; pinned && n < self->number_count; n++)
        for (int32_t k = 0; self->numbers[n] >= stages && k < self->tensor_count; k++)
            for (int32_t c = 0; c < self->class_count; c++)
                if (pinned[c]) list_table(self, splits_sequence, n, c, k);
    for (int32_t n = 0; n < self->number_count; n++)
        for (int32_t c = 0; c < self->class_count; c++)
            for (int32_t k = 0; k < self->tensor_count; k++) list_table(self, splits_sequence, n, c, k);
    return layer_costs_fill(self->costs, self->tables + filled, self->table_count - filled,
                            self->settings.threads, error);
}

AmStatus stage_model_open(StageModel **model, LayerCosts *costs, const int32_t *micro_batches, int32_t count,
                          const StageModelSettings *settings, AmError *error) {
    Arena arena = {0};
    StageModel *self = ARENA_ARRAY(&arena, StageModel, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (StageModel){.arena = arena, .costs = costs, .cluster = costs->cluster, .settings = *settings};
    self->number_count = count < MICRO_BATCHES_MOST_NUMBERS ? count : MICRO_BATCHES_MOST_NUMBERS;
    if (settings->most_tables == 0) self->settings.most_tables = PIPELINE_MOST_TABLES;
    memcpy(self->numbers, micro_batches, sizeof *micro_batches * (size_t)self->number_count);
    AmStatus status;
    if (costs->cluster->type_count > PIPELINE_MOST_TYPES) {
        status = am_fail(error, AM_ERROR_INFEASIBLE, "",
                         "cluster %s has %d device types: hybrid plans mix at most %d", costs->cluster->name,
                         costs->cluster->type_count, PIPELINE_MOST_TYPES);
        goto fail;
    }
    list_tensors(self);
    TRY_OR_FAIL(find_pinned_borders(self, error));
    list_places(self);
    for (int32_t c = 0; c < self->class_count; c++)
        TRY_OR_FAIL(describe_class(self, &self->classes[c], error));
    TRY_OR_FAIL(layer_costs_find_tensors(costs, self->tensors, self->tensor_count, settings->threads, error));
    self->tables = ARENA_ARRAY(&self->arena, LayerTable, PIPELINE_MOST_TABLES);
    if (!self->tables) TRY_OR_FAIL(am_fail_memory(error, PIPELINE_MOST_TABLES));
    TRY_OR_FAIL(make_tables(self, error));
    *model = self;
    return AM_OK;
fail:
    stage_model_close(self);
    return status;
}

AmStatus stage_model_reorder(StageModel **model, const StageModel *of, const int32_t *devices,
                             const int32_t *micro_batches, int32_t count, AmError *error) {
    Arena arena = {0};
    StageModel *self = ARENA_ARRAY(&arena, StageModel, 1);
    int32_t *own = ARENA_ARRAY(&arena, int32_t, of->cluster->device_count);
    AmStatus status;
    *model = NULL;
    if (arena.failed) {
        arena_free(&arena);
        return am_fail_memory(error, (int64_t)sizeof *self);
    }
    memcpy(own, devices, sizeof *own * (size_t)of->cluster->device_count);
    *self = (StageModel){.arena = arena,
                         .costs = of->costs,
                         .devices = own,
                         .settings = of->settings,
                         .number_count = count,
                         .tensor_count = of->tensor_count,
                         .tables = of->tables,
                         .table_count = of->table_count};
    memcpy(self->numbers, micro_batches, sizeof *micro_batches * (size_t)count);
    memcpy(self->tensors, of->tensors, sizeof of->tensors);
    TRY_OR_FAIL(cluster_part(&self->part, &self->arena, of->cluster, own, of->cluster->device_count, error));
    self->cluster = self->part;
    TRY_OR_FAIL(find_pinned_borders(self, error));
    list_places(self);
    for (int32_t c = 0; c < self->class_count; c++)
        TRY_OR_FAIL(describe_class(self, &self->classes[c], error));
    *model = self;
    return AM_OK;
fail:
    stage_model_close(self);
    return status;
}

int32_t stage_model_device(const StageModel *model, int32_t position) {
    return model && model->devices ? model->devices[position] : position;
}

int64_t stage_model_evaluations(const StageModel *self) {
    int64_t count = 0;
    for (int32_t k = 0; k < self->table_count; k++) count += self->tables[k].found;
    return count;
}

void stage_model_close(StageModel *model) {
    if (!model) return;
    if (!model->devices) layer_tables_free(model->tables, model->table_count);
    cluster_free(model->part);
    Arena arena = model->arena;
    arena_free(&arena);
}

/* ---- stages ---- */

static double collective_of(const StageModel *self, const StagePricing *pricing, uint32_t axis,
                            ProgramCollectiveKind kind, double bytes) {
    const CollectivePartition *partition = &pricing->class->partitions[pricing->tensor][axis];
    double seconds = 0;
    for (int32_t k = 0; k < partition->distinct_count; k++)
        seconds = fmax(seconds, collective_seconds(kind, bytes, &partition->distinct[k], self->cluster));
    return seconds;
}

/* Returns the fraction of a cut's values that one device has in an iteration: its shard of the batch. */
static double local_share(const StageModel *self, const StagePricing *pricing) {
    double share = (double)pricing->local_batch / (double)self->costs->batch;
    return pricing->strategy.splits_sequence ? share / pricing->strategy.tensor : share;
}

/* Returns whether a stage with this strategy may have a unit by the user's pins. */
static bool keeps_pins(const StagePricing *pricing, const LayerCosts *costs, int32_t unit) {
    if (pricing->table->fails && pricing->table->fails[unit]) return false;
    if (costs->units.is_pinned && costs->units.is_pinned[unit] && pricing->strategy.storage > 0) return false;
    if (!costs->units.placed || costs->units.placed[unit].number == 0) return true;
    return pricing->class->place.width % costs->units.placed[unit].number == 0;
}

bool stage_pricing_open(StagePricing *pricing, const StageModel *self, Arena *arena, int32_t micro_batches,
                        int32_t class, const StageStrategy *strategy) {
    const LayerCosts *costs = self->costs;
    *pricing =
        (StagePricing){.class = &self->classes[class], .strategy = *strategy, .micro_batches = micro_batches};
    int32_t width = pricing->class->place.width;
    if (width % strategy->tensor != 0) return false;
    pricing->data = width / strategy->tensor;
    pricing->local_batch = stage_model_batch(self, micro_batches, pricing->data);
    pricing->table = stage_model_table(self, pricing->local_batch, strategy);
    while (self->tensors[pricing->tensor] != strategy->tensor) pricing->tensor++;
    if (!pricing->table || (strategy->storage > 0 && pricing->data == 1)) return false;
    pricing->units = ARENA_ARRAY(arena, UnitCost, costs->units.count);
    if (!pricing->units) return false;
    for (int32_t u = 0; u < costs->units.count; u++) {
        UnitCost *unit = &pricing->units[u];
        double seconds[LAYER_PASSES] = {0};
        for (int32_t pass = 0; pass < LAYER_PASSES; pass++)
            for (int32_t t = 0; t < self->cluster->type_count; t++)
                if (pricing->class->has_type[t])
                    seconds[pass] =
                        fmax(seconds[pass], layer_seconds(costs, pricing->table, (LayerPass)pass, u, t));
        unit->forward = seconds[LAYER_FORWARD];
        unit->backward = seconds[LAYER_BACKWARD];
        unit->update = seconds[LAYER_UPDATE];
        unit->bytes = pricing->table->bytes[u];
        unit->checkpoint_bytes = costs->checkpoints.bytes[u] * local_share(self, pricing);
        unit->ends_segment = costs->checkpoints.is_at[u + 1];
        /* Sums of gradients are read and written in every iteration. */
        if (micro_batches > 1)
            unit->backward += 3 * unit->bytes.gradients / pricing->class->memory_bytes_per_second;
    }
    for (int32_t k = 0; k < pricing->table->collective_count; k++) {
        const LayerCollective *collective = &pricing->table->collectives[k];
        UnitCost *unit = &pricing->units[collective->unit];
        uint32_t axis = collective->over_batch ? 0 : 1;
        double *passes[] = {&unit->forward, &unit->backward, &unit->update};
        if ((axis == 0 ? pricing->data : strategy->tensor) == 1) continue;
        *passes[collective->pass] +=
            collective->times * collective_of(self, pricing, axis, collective->kind, collective->bytes);
    }
    for (int32_t u = 0; u < costs->units.count; u++) {
        UnitCost *unit = &pricing->units[u];
        for (int32_t k = 0; k < costs->recompute.levels.count; k++) { /* of recomputation */
            unit->saved_bytes[k] = costs->recompute.saved_share[k][u] * unit->bytes.kept;
            unit->again[k] = costs->recompute.again_share[k][u] * unit->forward;
        }
        if (!keeps_pins(pricing, costs, u)) pricing->units[u].forward = INFINITY;
    }
    /* Two points of the reduction of gradients. */
    if (pricing->data > 1) {
        const double small = 1e6, large = 1e9;
        double a = collective_of(self, pricing, 0, PROGRAM_ALL_REDUCE, small);
        double b = collective_of(self, pricing, 0, PROGRAM_ALL_REDUCE, large);
        pricing->reduce_per_byte = (b - a) / (large - small);
        pricing->reduce_latency = a - small * pricing->reduce_per_byte;
    }
    return true;
}

void stage_sums_add(StageSums *sums, const UnitCost *unit) {
    if (sums->segment_ended) {
        sums->checkpoint_bytes += sums->segment_checkpoint;
        sums->segment_checkpoint = sums->segment_kept = 0;
    }
    sums->segment_ended = unit->ends_segment;
    sums->segment_checkpoint += unit->checkpoint_bytes;
    sums->segment_kept += unit->bytes.again;
    sums->most_segment_kept = fmax(sums->most_segment_kept, sums->segment_kept);
    for (int32_t k = 0; k < RECOMPUTE_MOST_LEVELS; k++) {
        sums->saved_bytes[k] += unit->saved_bytes[k];
        sums->again[k] += unit->again[k];
    }
    sums->forward += unit->forward;
    sums->backward += unit->backward;
    sums->update += unit->update;
    sums->bytes.weights += unit->bytes.weights;
    sums->bytes.gradients += unit->bytes.gradients;
    sums->bytes.optimizer += unit->bytes.optimizer;
    sums->bytes.kept += unit->bytes.kept;
    sums->bytes.casts += unit->bytes.casts;
    sums->bytes.gathered = fmax(sums->bytes.gathered, unit->bytes.gathered);
    sums->bytes.working = fmax(sums->bytes.working, unit->bytes.working);
}

void stage_sums_cost(const StageModel *self, const StagePricing *pricing, const StageSums *sums,
                     int32_t first_unit, StageCost *cost) {
    const StageStrategy *strategy = &pricing->strategy;
    double data = pricing->data, iterations = pricing->micro_batches;
    double reduce =
        pricing->data > 1 ? pricing->reduce_latency + pricing->reduce_per_byte * sums->bytes.gradients : 0;
    double shards = strategy->storage >= 1 ? data : 1;
    LayerBytes bytes = sums->bytes;
    double entering = self->costs->units.crossing[first_unit] * local_share(self, pricing);
    *cost = (StageCost){.forward = sums->forward, .backward = sums->backward};
    cost->rest = sums->update / shards;
    bytes.optimizer /= shards;
    if (strategy->storage >= 2) bytes.gradients /= data;
    if (strategy->storage >= 3) bytes.weights /= data;
    bytes.weights += strategy->storage >= 3 ? bytes.gathered : bytes.casts;
    /* Halves of an all-reduce: gradients are scattered every iteration, weights are gathered once or every
     * iteration.
     */
    if (strategy->storage >= 2) cost->backward += reduce / 2;
    if (strategy->storage >= 3) {
        cost->forward += reduce / 2;
        cost->backward += reduce / 2;
    }
    if (strategy->storage < 2) cost->rest += strategy->storage == 1 || iterations > 1 ? reduce : 0;
    if (strategy->storage == 2) cost->rest += reduce / 2;
    /* With one micro-batch it overlaps with the rest of the backward pass. */
    if (iterations == 1 && strategy->storage == 0)
        cost->rest += fmax(reduce - 0.7 * sums->backward, 0.1 * reduce);
    double kept = bytes.kept + entering;
    double working = 2 * bytes.working;
    if (strategy->recompute != RECOMPUTE_NONE) {
        int32_t level = strategy->recompute - RECOMPUTE_LEVELS; /* below 0: full */
        kept = entering + sums->checkpoint_bytes + (level >= 0 ? sums->saved_bytes[level] : 0);
        working += sums->most_segment_kept;
        cost->backward += level >= 0 ? sums->again[level] : sums->forward;
    }
    /* With one micro-batch, gradients are used when they are computed, without being kept. */
    double gradients_there = iterations > 1 || pricing->data > 1 ? bytes.gradients : 0.5 * bytes.gradients;
    cost->fixed_bytes = bytes.weights + bytes.optimizer + gradients_there + working;
    cost->iteration_bytes = kept;
}

bool stage_model_cost(const StageModel *self, int32_t micro_batches, const StageLayout *stage,
                      StageCost *cost) {
    Arena scratch = {0};
    StagePricing pricing;
    StageSums sums = {0};
    bool found =
        degrees_allow_mesh(&self->settings.degrees, stage->place.width, stage->strategy.tensor) &&
        stage_pricing_open(&pricing, self, &scratch, micro_batches, stage->place.class, &stage->strategy);
    for (int32_t u = stage->first_unit; found && u < stage->end_unit; u++)
        stage_sums_add(&sums, &pricing.units[u]);
    if (found) stage_sums_cost(self, &pricing, &sums, stage->first_unit, cost);
    arena_free(&scratch);
    return found;
}

double stage_model_transfer(const StageModel *self, int32_t micro_batches, int32_t cut, int32_t device,
                            bool returns) {
    const Cluster *cluster = self->cluster;
    double bytes =
        (returns ? self->costs->units.returning : self->costs->units.crossing)[cut] / micro_batches;
    if (device <= 0 || device >= cluster->device_count) return 0;
    int32_t link = cluster_link_between(cluster, device - 1, device);
    if (link < 0 || bytes <= 0) return 0;
    const ClusterLink *of = &cluster->links[link];
    return of->latency_seconds + bytes / (of->bytes_per_second * cluster_efficiency(&of->efficiency, bytes));
}

/* ---- pipelines ---- */

double stage_model_clock(const StageCost *costs, const double *up, const double *down, int32_t stages,
                         int32_t iterations) {
    ClockStage clock[PIPELINE_MOST_STAGES];
    double end = 0;
    for (int32_t s = 0; s < stages; s++)
        clock[s] = (ClockStage){.forward = costs[s].forward,
                                .backward = costs[s].backward,
                                .to_next = s + 1 < stages ? up[s + 1] : 0,
                                .to_previous = down[s]};
    if (!clock_1f1b(clock, stages, iterations, false)) return INFINITY;
    for (int32_t s = 0; s < stages; s++) end = fmax(end, clock[s].end + costs[s].rest);
    return end;
}

double stage_model_seconds(const StageModel *model, const PipelineLayout *pipeline, double *excess) {
    const StageModel *self = stage_model_of(model, pipeline);
    StageCost costs[PIPELINE_MOST_STAGES];
    double up[PIPELINE_MOST_STAGES + 1] = {0}, down[PIPELINE_MOST_STAGES + 1] = {0};
    *excess = 0;
    for (int32_t s = 0; s < pipeline->stage_count; s++) {
        const StageLayout *stage = &pipeline->stages[s];
        int32_t kept = schedule_kept_for_backward(pipeline->stage_count, s, pipeline->micro_batches);
        if (!stage_model_cost(self, pipeline->micro_batches, stage, &costs[s])) return INFINITY;
        double bytes = (costs[s].fixed_bytes + kept * costs[s].iteration_bytes);
        *excess = fmax(*excess, bytes / self->classes[stage->place.class].limit - 1);
        up[s] =
            stage_model_transfer(self, pipeline->micro_batches, stage->first_unit, stage->place.first, false);
        down[s] =
            stage_model_transfer(self, pipeline->micro_batches, stage->first_unit, stage->place.first, true);
    }
    return stage_model_clock(costs, up, down, pipeline->stage_count, pipeline->micro_batches);
}
