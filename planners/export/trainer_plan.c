/* A plan as the degrees of a trainer of transformers.
 *
 * Such a trainer numbers its ranks tensor first, then data, then pipeline, and has one degree of each for the
 * whole model: so every stage has the same mesh, on devices in order. Inside, tensor parallelism splits
 * heads, MLP width and vocabulary, which is the baseline "megatron" (planners/baselines/baseline.h); a plan
 * of other lists is refused. ZeRO is over the data axis. Stages hold whole layers of one stack.
 */
#include "planners/export/trainer_plan.h"

#include "lowering/micro_batch/micro_batches.h"
#include "lowering/spmd/ranks.h"
#include "planners/baselines/baseline.h"
#include "planners/baselines/layer_spans.h"
#include "planners/targets/target_checks.h"
#include "propagation/assign/storage.h"

/* The end of a message; its argument is the target's name. */
#define REMEDY "search --for %s finds plans that can be exported"

/* Layers are numbered below this. */
enum { MOST_LAYERS = 65536 };

enum { DATA, MODEL, ROLES };
static const char *const axis_names[ROLES] = {"data", "model"};

typedef struct Reader {
    Arena *arena;
    Target target;
    const TargetRow *row; /* of the target */
    const PlanContext *context;
    const Plan *plan;
    PlanRanks ranks;
    int32_t axes[ROLES]; /* of the plan's meshes; -1: no axis of that name */
    int32_t sizes[ROLES];
    int32_t zero_level;
    bool splits_sequence;
    int32_t *layers;    /* [part] how many */
    int32_t recomputed; /* the most first layers of a part */
    bool recomputes_all;
    AmError *error;
} Reader;

/* ---- devices ---- */

static AmStatus find_axes(Reader *self) {
    const Mesh *mesh = &self->plan->stages[0].mesh;
    int32_t found = 0;
    for (int32_t role = 0; role < ROLES; role++) {
        self->axes[role] = -1;
        self->sizes[role] = 1;
        for (int32_t axis = 0; axis < mesh->axis_count; axis++)
            if (strcmp(mesh->axes[axis].name, axis_names[role]) == 0) self->axes[role] = axis;
        if (self->axes[role] < 0) continue;
        self->sizes[role] = mesh->axes[self->axes[role]].size;
        found++;
    }
    if (found == mesh->axis_count && (found < ROLES || self->axes[DATA] < self->axes[MODEL])) return AM_OK;
    return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                   "%s are for meshes data x model, and the plan's has other axes; " REMEDY, self->row->form,
                   self->row->name);
}

static AmStatus check_devices(const Reader *self) {
    const Plan *plan = self->plan;
    for (int32_t s = 0, next = 0; s < plan->stage_count; s++) {
        const PlanStage *stage = &plan->stages[s];
        if (stage->override_count > 0 || stage->reshard_count > 0)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           "%s cannot represent the plan's overrides of stage %d", self->row->form, s);
        for (int32_t d = 0; d < stage->mesh.device_count; d++, next++)
            if (stage->devices[d] != next)
                return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                               "%s number devices in order, and the plan has device %d as rank %d; " REMEDY,
                               self->row->form, stage->devices[d], next, self->row->name);
    }
    return AM_OK;
}

static AmStatus check_schedule(const Reader *self) {
    const Plan *plan = self->plan;
    ScheduleKind kind = plan_schedule(plan);
    if (plan->stage_count == 1 || plan->micro_batches == 1) return AM_OK;
    if (kind == SCHEDULE_INTERLEAVED && plan->micro_batches % plan->stage_count != 0)
        return am_fail(
            self->error, AM_ERROR_INFEASIBLE, "",
            "%s interleaves chunks where the stages divide the micro-batches, and %d do not divide %d",
            self->row->trainer, plan->stage_count, plan->micro_batches);
    return AM_OK;
}

/* ---- lists ---- */

static bool has_entry(const PlanAxisPriority *list, const PlanEntry *entry) {
    for (int32_t k = 0; k < list->count; k++)
        if (list->entries[k].kind == entry->kind && list->entries[k].class_index == entry->class_index)
            return true;
    return false;
}

/* Returns whether the lists decide the same about operators, in whatever order. */
static bool same_operators(const PlanAxisPriority *a, const PlanAxisPriority *b) {
    for (int32_t k = 0; k < a->count; k++)
        if (a->entries[k].kind == PLAN_COMPUTE && !has_entry(b, &a->entries[k])) return false;
    for (int32_t k = 0; k < b->count; k++)
        if (b->entries[k].kind == PLAN_COMPUTE && !has_entry(a, &b->entries[k])) return false;
    return true;
}

/* Returns whether all stages have the baseline's lists. */
static bool has_lists(const Reader *self, const PlanStage *baseline) {
    for (int32_t s = 0; s < self->plan->stage_count; s++)
        for (int32_t role = 0; role < ROLES; role++)
            if (self->sizes[role] > 1 &&
                !same_operators(&self->plan->stages[s].lists[self->axes[role]], &baseline->lists[role]))
                return false;
    return true;
}

/* Compares with the baseline's lists, without and with sequence parallelism. */
static AmStatus compare_lists(Reader *self, Problem *problem) {
    AxisPlan axis_plan = {0};
    PlanStage baseline = {0};
    bool found = true;
    if (self->sizes[MODEL] > 1) TRY(baseline_megatron(problem, MODEL, &axis_plan, &found, self->error));
    for (int32_t with_sequence = 0; found && with_sequence < 2; with_sequence++) {
        AxisPlan lists = axis_plan;
        if (with_sequence && (self->sizes[MODEL] == 1 || !baseline_sequence(problem, MODEL, &lists))) break;
        if (self->sizes[DATA] > 1 && !baseline_batch(problem, DATA, &lists)) break;
        problem_stage(problem, &lists, self->arena, &baseline);
        if (self->arena->failed) return am_fail_memory(self->error, 0);
        if (!has_lists(self, &baseline)) continue;
        self->splits_sequence = with_sequence;
        return AM_OK;
    }
    return am_fail(
        self->error, AM_ERROR_INFEASIBLE, "",
        "%s split heads, MLP width, vocabulary and batch, and the plan splits something else; " REMEDY,
        self->row->form, self->row->name);
}

static AmStatus check_lists(Reader *self, const Cluster *cluster) {
    const PlanStage *stage = &self->plan->stages[0];
    const ProblemSettings settings = {
        .space = SPACE_AUTO, .memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION, .budget = {.limit = 1}};
    const Mesh mesh = {
        .axis_count = ROLES,
        .axes = {{.name = "data", .size = self->sizes[DATA]}, {.name = "model", .size = self->sizes[MODEL]}},
        .device_count = stage->mesh.device_count};
    Problem *problem;
    TRY(problem_create(&problem, self->context, cluster, &mesh, stage->devices, &settings, self->error));
    AmStatus status = compare_lists(self, problem);
    problem_free(problem);
    return status;
}

/* Refuses storage in shards over another axis than that of the batch. */
static AmStatus check_storage_axes(const Reader *self, int32_t s) {
    const PlanStage *stage = &self->plan->stages[s];
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->lists[axis].count && axis != self->axes[DATA]; e++) {
            PlanEntryKind kind = stage->lists[axis].entries[e].kind;
            if (kind != PLAN_COMPUTE)
                return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                               "%s has ZeRO over the batch's devices, and the plan has %s of stage %d in "
                               "shards over axis %s; " REMEDY,
                               self->row->trainer, plan_entry_kind_name(kind), s, stage->mesh.axes[axis].name,
                               self->row->name);
        }
    return AM_OK;
}

/* Accepts one of the trainer's levels of ZeRO, the same on all stages. */
static AmStatus check_storage(Reader *self) {
    for (int32_t s = 0; s < self->plan->stage_count; s++) {
        int32_t level = storage_zero_level(&self->plan->stages[s]);
        TRY(check_storage_axes(self, s));
        if (!(self->row->zero_levels >> level & 1))
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           "%s has no ZeRO %d, which stage %d of the plan has; " REMEDY, self->row->trainer,
                           level, s, self->row->name);
        if (s > 0 && level != self->zero_level)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           "%s give all stages the same level of ZeRO, and the plan has %d and %d; " REMEDY,
                           self->row->form, self->zero_level, level, self->row->name);
        self->zero_level = level;
    }
    return AM_OK;
}

/* ---- layers ---- */

/* The only stack of several layers, by the first weight in it. */
static AmStatus find_stack(const Reader *self, LayerPath *stack) {
    const IrRoles *roles = self->context->roles;
    bool has_stack = false;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].role != IR_ROLE_WEIGHT) continue;
        LayerPath path = layer_path(roles->parameters[p].path);
        if (path.number <= 0 || (has_stack && layer_path_is_same(stack, &path))) continue;
        if (has_stack)
            return am_fail(
                self->error, AM_ERROR_INFEASIBLE, self->context->module->source,
                "%s count the layers of one stack, and the module has %.*s and %.*s; --format torch "
                "can hold its stages",
                self->row->form, stack->end, stack->path, path.end, path.path);
        *stack = path;
        has_stack = true;
    }
    if (has_stack) return AM_OK;
    return am_fail(
        self->error, AM_ERROR_INFEASIBLE, self->context->module->source,
        "%s count layers, and no paths of weights do (as in layer[0], layer[1]); --format torch can "
        "hold its stages",
        self->row->form);
}

static AmStatus fail_inside(const Reader *self, const LayerPath *path, int32_t a, int32_t b) {
    return am_fail(
        self->error, AM_ERROR_INFEASIBLE, "",
        "%s cuts between layers, and the plan has parts of %.*s on stages %d and %d; export --whole-layers "
        "moves the cuts",
        self->row->trainer, path->end, path->path, a % self->plan->stage_count, b % self->plan->stage_count);
}

/* Finds the part of each layer, and checks that weights outside layers are at an end. */
static AmStatus find_parts(Reader *self, const LayerPath *stack, int32_t *part_of, int32_t *count) {
    const IrRoles *roles = self->context->roles;
    int32_t last = self->ranks.parts->stage_count - 1;
    for (int32_t k = 0; k < MOST_LAYERS; k++) part_of[k] = -1;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        int32_t part = self->ranks.map->owner[p];
        if (parameter->role != IR_ROLE_WEIGHT) continue;
        LayerPath path = layer_path(parameter->path);
        if (path.number < 0 || !layer_path_is_same(stack, &path)) {
            if (part == 0 || part == last) continue;
            return am_fail(
                self->error, AM_ERROR_INFEASIBLE, "",
                "%s places parameters outside layers on the first and the last stage, and the plan has %s on "
                "stage %d",
                self->row->trainer, parameter->path, part % self->plan->stage_count);
        }
        if (path.number >= MOST_LAYERS)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "", "%s are for fewer than %d layers",
                           self->row->form, MOST_LAYERS);
        int32_t *of = &part_of[path.number];
        if (*of >= 0 && *of != part) return fail_inside(self, &path, *of, part);
        *of = part;
        if (path.number >= *count) *count = (int32_t)path.number + 1;
    }
    return AM_OK;
}

static AmStatus count_layers(Reader *self) {
    int32_t *part_of = ARENA_ARRAY(self->arena, int32_t, MOST_LAYERS), count = 0;
    self->layers = ARENA_ARRAY(self->arena, int32_t, self->ranks.parts->stage_count);
    LayerPath stack;
    if (self->arena->failed) return am_fail_memory(self->error, MOST_LAYERS);
    TRY(find_stack(self, &stack));
    TRY(find_parts(self, &stack, part_of, &count));
    for (int32_t k = 0; k < count; k++) {
        if (part_of[k] < 0 || (k > 0 && part_of[k] < part_of[k - 1]))
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           "%s have layers in order, and layer %d of %.*s is %s", self->row->form, k,
                           stack.before, stack.path, part_of[k] < 0 ? "missing" : "before its predecessor");
        self->layers[part_of[k]]++;
    }
    return AM_OK;
}

/* ---- recomputation ---- */

static AmStatus fail_ranges(const Reader *self, int32_t s, const char *reason) {
    return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                   "%s recomputes whole layers one by one, and on stage %d the plan %s; " REMEDY,
                   self->row->trainer, s, reason, self->row->name);
}

static bool is_inside(int32_t place, const int32_t places[2]) {
    return place >= places[0] && place <= places[1];
}

/* The layer that a range recomputes, or -1. */
static int32_t layer_of_range(const LayerSpans *spans, const int32_t range[2]) {
    for (int32_t k = 0; k < spans->count; k++) {
        int32_t before[2], behind[2];
        layer_spans_boundary(spans, k, before);
        layer_spans_boundary(spans, k + 1, behind);
        if (is_inside(range[0], before) && is_inside(range[1], behind)) return k;
    }
    return -1;
}

/* The layers that begin in a part, and how many of them are recomputed. */
typedef struct PartLayers {
    int32_t layers, recomputed;
} PartLayers;

/* Counts the layers of a part. The recomputed ones must come first. */
static AmStatus count_recomputed(const Reader *self, PartLayers *counts, const LayerSpans *spans,
                                 const bool *is_recomputed, int32_t part) {
    int32_t s = part % self->plan->stage_count;
    const PlanStage *stage = &self->plan->stages[s];
    const int32_t entry[2] = {0, spans->work.count};
    const int32_t *range =
        self->plan->stage_count > 1 ? stage->ranges[part / self->plan->stage_count] : entry;
    for (int32_t k = 0; k < spans->count; k++) {
        if (spans->layers[k].first < range[0] || spans->layers[k].first >= range[1]) continue;
        if (is_recomputed[k] && counts->recomputed < counts->layers)
            return fail_ranges(self, s, "recomputes a layer behind one that it keeps");
        counts->layers++;
        counts->recomputed += is_recomputed[k];
    }
    return AM_OK;
}

/* Accepts recomputation that the source prescribes (jax.checkpoint) if it repeats most products of layers. */
static AmStatus check_source_recomputation(Reader *self, int32_t ranges) {
    const PlanContext *whole = plan_context_whole(self->context);
    int64_t products = 0, again = 0;
    for (int32_t i = 0; i < whole->canonical->instruction_count; i++) {
        if (whole->canonical->instructions[i].opcode != IR_DOT) continue;
        products += whole->roles->phases[i] == IR_PHASE_FORWARD;
        again += whole->roles->phases[i] == IR_PHASE_RECOMPUTED;
    }
    if (again == 0) return AM_OK;
    if (ranges > 0)
        return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                       "%s recomputes layers once, and both the module and the plan do; " REMEDY,
                       self->row->trainer, self->row->name);
    if (2 * again < products)
        return am_fail(self->error, AM_ERROR_INFEASIBLE, self->context->module->source,
                       "%s recomputes whole layers, and the module repeats %lld of %lld products "
                       "(jax.checkpoint with a policy)",
                       self->row->trainer, (long long)again, (long long)products);
    self->recomputed = INT32_MAX;
    self->recomputes_all = true;
    return AM_OK;
}

/* Finds how many layers each part recomputes. */
static AmStatus check_recomputation(Reader *self) {
    const Plan *plan = self->plan;
    const PlanContext *whole = plan_context_whole(self->context);
    LayerSpans spans;
    int32_t ranges = 0, parts = plan->stage_count * (plan->stage_count > 1 ? plan->stages[0].range_count : 1);
    bool is_all = true;
    for (int32_t s = 0; s < plan->stage_count; s++) ranges += plan->stages[s].recompute.range_count;
    TRY(check_source_recomputation(self, ranges));
    if (ranges == 0) return AM_OK;
    TRY(layer_spans_find(&spans, self->arena, whole, self->error));
    bool *is_recomputed = ARENA_ARRAY(self->arena, bool, spans.count + 1);
    PartLayers *counts = ARENA_ARRAY(self->arena, PartLayers, parts);
    if (self->arena->failed) return am_fail_memory(self->error, spans.count);
    for (int32_t s = 0; s < plan->stage_count; s++) {
        const PlanRecomputation *recompute = &plan->stages[s].recompute;
        if (recompute->saved_count > 0) return fail_ranges(self, s, "keeps single values");
        for (int32_t r = 0; r < recompute->range_count; r++) {
            int32_t layer = layer_of_range(&spans, recompute->ranges[r]);
            if (layer < 0) return fail_ranges(self, s, "has other ranges");
            is_recomputed[layer] = true;
        }
    }
    for (int32_t p = 0; p < parts; p++) {
        TRY(count_recomputed(self, &counts[p], &spans, is_recomputed, p));
        if (counts[p].recomputed > self->recomputed) self->recomputed = counts[p].recomputed;
        is_all = is_all && counts[p].recomputed == counts[p].layers;
    }
    for (int32_t p = 0; p < parts; p++)
        if (counts[p].recomputed < self->recomputed && counts[p].recomputed < counts[p].layers)
            return fail_ranges(self, p % plan->stage_count, "recomputes fewer than elsewhere");
    if (!is_all && !self->row->recomputes_some)
        return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                       "%s recomputes all layers or none, and the plan some; " REMEDY, self->row->trainer,
                       self->row->name);
    self->recomputes_all = is_all;
    return AM_OK;
}

/* A table of the vocabulary, which is in no layer, is padded to equal shards; heads and widths must divide.
 */
static AmStatus check_weights(const Reader *self) {
    const IrRoles *roles = self->context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *weight = &roles->parameters[p];
        if (weight->role != IR_ROLE_WEIGHT || layer_path(weight->path).number < 0) continue;
        const Assignment *assignment =
            self->ranks.assignments[self->ranks.map ? self->ranks.map->owner[p] : 0];
        AmError why = {0};
        if (target_check_even(self->target, &assignment->stage->mesh, assignment->stored[weight->instruction],
                              &self->context->canonical->instructions[weight->instruction], &why) != AM_OK)
            return am_fail(
                self->error, AM_ERROR_INFEASIBLE, "",
                "%s's tensor degree divides heads and widths, and %d does not divide those of %s; search "
                "--mesh data=D,model=T chooses another degree T",
                self->row->trainer, self->sizes[MODEL], weight->path);
    }
    return AM_OK;
}

/* ---- the degrees ---- */

static AmStatus check(Reader *self, const Cluster *cluster) {
    TRY(target_check_module(self->target, self->context, self->error));
    TRY(target_check_plan(self->target, self->plan, self->error));
    TRY(find_axes(self));
    TRY(check_devices(self));
    TRY(check_schedule(self));
    TRY(check_storage(self));
    TRY(check_lists(self, cluster));
    TRY(plan_ranks(&self->ranks, self->arena, self->context, self->plan, self->error));
    TRY(check_weights(self));
    TRY(check_recomputation(self));
    return self->plan->stage_count > 1 ? count_layers(self) : AM_OK;
}

/* Micro-batches are equal on all data ranks. */
static AmStatus count_examples(const Reader *self, TrainerPlan *degrees) {
    int64_t batch = micro_batches_limit(plan_context_whole(self->context));
    int64_t shares = (int64_t)self->plan->micro_batches * self->sizes[DATA];
    if (batch % shares != 0)
        return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                       "%s's micro-batches are equal, and %d micro-batches on %d devices do not divide %lld "
                       "examples",
                       self->row->trainer, self->plan->micro_batches, self->sizes[DATA], (long long)batch);
    degrees->examples = batch / shares;
    degrees->batch = batch;
    return AM_OK;
}

AmStatus trainer_plan_read(TrainerPlan *degrees, Arena *arena, Target target, const PlanContext *context,
                           const Plan *plan, AmError *error) {
    Reader self = {.arena = arena,
                   .target = target,
                   .row = target_row(target),
                   .context = plan_context_used(plan, context),
                   .plan = plan,
                   .error = error};
    Cluster *cluster;
    TRY(cluster_from_json(&cluster, arena, plan->cluster_description, "the plan", error));
    AmStatus status = check(&self, cluster);
    cluster_free(cluster);
    TRY(status);
    *degrees = (TrainerPlan){.data = self.sizes[DATA],
                             .tensor = self.sizes[MODEL],
                             .stages = plan->stage_count,
                             .parts = self.ranks.parts->stage_count,
                             .ranks = self.ranks.rank_count,
                             .schedule = plan_schedule(plan),
                             .zero_level = self.zero_level,
                             .splits_sequence = self.splits_sequence,
                             .micro_batches = plan->micro_batches,
                             .layers = self.layers,
                             .recomputed = self.recomputed,
                             .recomputes_all = self.recomputes_all};
    return count_examples(&self, degrees);
}

json_t *trainer_plan_layers(const TrainerPlan *degrees) {
    json_t *layers = json_array();
    for (int32_t p = 0; degrees->layers && p < degrees->parts; p++)
        json_array_append_new(layers, json_integer(degrees->layers[p]));
    return layers;
}
