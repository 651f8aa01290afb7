/* A plan as arguments of Megatron-LM.
 *
 * Megatron-LM numbers its ranks tensor first, then data, then pipeline, and has one degree of each for the
 * whole model: so every stage has the same mesh, on devices in order. Inside, tensor parallelism splits
 * heads, MLP width and vocabulary, which is the baseline of that name (planners/baselines/baseline.h); a plan
 * of other lists is refused. Optimizer state in shards over the data axis is its distributed optimizer.
 * Stages hold whole layers of one stack, as many each, but for the first and the last one.
 */
#include "planners/export/export_megatron.h"

#include "lowering/micro_batch/micro_batches.h"
#include "lowering/spmd/ranks.h"
#include "planners/baselines/baseline.h"
#include "planners/baselines/layer_path.h"
#include "planners/targets/target_checks.h"

#define FORM     "arguments of Megatron-LM"
#define HOW_3D   "search --for megatron finds plans that can be exported"
#define HOW_CUTS "export --whole-layers moves the cuts"

/* Layers are numbered below this. */
enum { MOST_LAYERS = 65536 };

enum { DATA, MODEL, ROLES };
static const char *const axis_names[ROLES] = {"data", "model"};

typedef struct Exporter {
    Arena arena;
    const PlanContext *context;
    const Plan *plan;
    PlanRanks ranks;
    int32_t axes[ROLES]; /* of the plan's meshes; -1: no axis of that name */
    int32_t sizes[ROLES];
    int32_t zero_level;
    bool splits_sequence;
    int32_t *layers; /* [part] how many */
    AmError *error;
} Exporter;

/* ---- devices ---- */

static AmStatus find_axes(Exporter *self) {
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
                   FORM " are for meshes data x model, and the plan's has other axes; " HOW_3D);
}

static AmStatus check_devices(const Exporter *self) {
    const Plan *plan = self->plan;
    for (int32_t s = 0, next = 0; s < plan->stage_count; s++) {
        const PlanStage *stage = &plan->stages[s];
        if (stage->recompute.range_count > 0)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           FORM " recompute the same in every layer, and the plan has its own ranges on "
                                "stage %d; " HOW_3D,
                           s);
        if (stage->override_count > 0 || stage->reshard_count > 0)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           FORM " cannot represent the plan's overrides of stage %d", s);
        for (int32_t d = 0; d < stage->mesh.device_count; d++, next++)
            if (stage->devices[d] != next)
                return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                               FORM
                               " number devices in order, and the plan has device %d as rank %d; " HOW_3D,
                               stage->devices[d], next);
    }
    return AM_OK;
}

static AmStatus check_schedule(const Exporter *self) {
    const Plan *plan = self->plan;
    ScheduleKind kind = plan_schedule(plan);
    if (plan->stage_count == 1 || plan->micro_batches == 1) return AM_OK;
    if (kind == SCHEDULE_INTERLEAVED && plan->micro_batches % plan->stage_count != 0)
        return am_fail(
            self->error, AM_ERROR_INFEASIBLE, "",
            "Megatron-LM interleaves chunks where the stages divide the micro-batches, and %d do not "
            "divide %d",
            plan->stage_count, plan->micro_batches);
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
static bool has_lists(const Exporter *self, const PlanStage *baseline) {
    for (int32_t s = 0; s < self->plan->stage_count; s++)
        for (int32_t role = 0; role < ROLES; role++)
            if (self->sizes[role] > 1 &&
                !same_operators(&self->plan->stages[s].lists[self->axes[role]], &baseline->lists[role]))
                return false;
    return true;
}

/* Compares with the baseline's lists, without and with sequence parallelism. */
static AmStatus compare_lists(Exporter *self, Problem *problem) {
    AxisPlan axis_plan = {0};
    PlanStage baseline = {0};
    bool found = true;
    if (self->sizes[MODEL] > 1) TRY(baseline_megatron(problem, MODEL, &axis_plan, &found, self->error));
    for (int32_t with_sequence = 0; found && with_sequence < 2; with_sequence++) {
        AxisPlan lists = axis_plan;
        if (with_sequence && (self->sizes[MODEL] == 1 || !baseline_sequence(problem, MODEL, &lists))) break;
        if (self->sizes[DATA] > 1 && !baseline_batch(problem, DATA, &lists)) break;
        problem_stage(problem, &lists, &self->arena, &baseline);
        if (self->arena.failed) return am_fail_memory(self->error, 0);
        if (!has_lists(self, &baseline)) continue;
        self->splits_sequence = with_sequence;
        return AM_OK;
    }
    return am_fail(
        self->error, AM_ERROR_INFEASIBLE, "",
        FORM " split heads, MLP width, vocabulary and batch, and the plan splits something else; " HOW_3D);
}

static AmStatus check_lists(Exporter *self, const Cluster *cluster) {
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

/* Accepts only optimizer state over the data axis, on all stages or on none. */
static AmStatus check_storage(Exporter *self) {
    const Plan *plan = self->plan;
    for (int32_t s = 0; s < plan->stage_count; s++) {
        int32_t level = 0;
        for (int32_t axis = 0; axis < plan->stages[s].mesh.axis_count; axis++)
            for (int32_t e = 0; e < plan->stages[s].lists[axis].count; e++) {
                const PlanEntry *entry = &plan->stages[s].lists[axis].entries[e];
                if (entry->kind == PLAN_COMPUTE) continue;
                bool is_known = entry->kind == PLAN_OPTIMIZER && axis == self->axes[DATA];
                if (!is_known)
                    return am_fail(
                        self->error, AM_ERROR_INFEASIBLE, "",
                        "Megatron-LM's distributed optimizer keeps optimizer state in shards over the "
                        "batch's devices, and the plan keeps %s of stage %d so; " HOW_3D,
                        plan_entry_kind_name(entry->kind), s);
                level = 1;
            }
        if (s > 0 && level != self->zero_level)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           FORM " give all stages the distributed optimizer or none; " HOW_3D);
        self->zero_level = level;
    }
    return AM_OK;
}

/* ---- layers ---- */

/* The only stack of several layers, by the first weight in it. */
static AmStatus find_stack(const Exporter *self, LayerPath *stack) {
    const IrRoles *roles = self->context->roles;
    bool has_stack = false;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].role != IR_ROLE_WEIGHT) continue;
        LayerPath path = layer_path(roles->parameters[p].path);
        if (path.number <= 0 || (has_stack && layer_path_is_same(stack, &path))) continue;
        if (has_stack)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, self->context->module->source,
                           FORM " count the layers of one stack, and the module has %.*s and %.*s; --format "
                                "torch can hold its stages",
                           stack->end, stack->path, path.end, path.path);
        *stack = path;
        has_stack = true;
    }
    if (has_stack) return AM_OK;
    return am_fail(self->error, AM_ERROR_INFEASIBLE, self->context->module->source,
                   FORM
                   " count layers, and no paths of weights do (as in layer[0], layer[1]); --format torch "
                   "can hold its stages");
}

static AmStatus fail_inside(const Exporter *self, const LayerPath *path, int32_t a, int32_t b) {
    return am_fail(
        self->error, AM_ERROR_INFEASIBLE, "",
        "Megatron-LM cuts between layers, and the plan has parts of %.*s on stages %d and %d; " HOW_CUTS,
        path->end, path->path, a % self->plan->stage_count, b % self->plan->stage_count);
}

/* Finds the part of each layer, and checks that weights outside layers are at an end. */
static AmStatus find_parts(Exporter *self, const LayerPath *stack, int32_t *part_of, int32_t *count) {
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
                "Megatron-LM places parameters outside layers on the first and the last stage, and the "
                "plan has %s on stage %d",
                parameter->path, part % self->plan->stage_count);
        }
        if (path.number >= MOST_LAYERS)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "", FORM " are for fewer than %d layers",
                           MOST_LAYERS);
        int32_t *of = &part_of[path.number];
        if (*of >= 0 && *of != part) return fail_inside(self, &path, *of, part);
        *of = part;
        if (path.number >= *count) *count = (int32_t)path.number + 1;
    }
    return AM_OK;
}

static AmStatus count_layers(Exporter *self) {
    int32_t *part_of = ARENA_ARRAY(&self->arena, int32_t, MOST_LAYERS), count = 0;
    self->layers = ARENA_ARRAY(&self->arena, int32_t, self->ranks.parts->stage_count);
    LayerPath stack;
    if (self->arena.failed) return am_fail_memory(self->error, MOST_LAYERS);
    TRY(find_stack(self, &stack));
    TRY(find_parts(self, &stack, part_of, &count));
    for (int32_t k = 0; k < count; k++) {
        if (part_of[k] < 0 || (k > 0 && part_of[k] < part_of[k - 1]))
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           FORM " have layers in order, and layer %d of %.*s is %s", k, stack.before,
                           stack.path, part_of[k] < 0 ? "missing" : "before its predecessor");
        self->layers[part_of[k]]++;
    }
    return AM_OK;
}

/* ---- arguments ---- */

static void set_number(json_t *arguments, const char *name, int64_t value) {
    json_object_set_new(arguments, name, json_integer((json_int_t)value));
}

/* How the layers are dealt: evenly, but for the ends. */
static AmStatus set_layers(const Exporter *self, json_t *arguments) {
    const int32_t *layers = self->layers, parts = self->ranks.parts->stage_count,
                  stages = self->plan->stage_count;
    int32_t total = 0, middle = layers[parts > 2 ? 1 : parts - 1];
    for (int32_t p = 0; p < parts; p++) total += layers[p];
    bool is_even = true;
    for (int32_t p = 1; p + 1 < parts; p++) is_even = is_even && layers[p] == middle;
    bool first_differs = layers[0] != middle, last_differs = layers[parts - 1] != middle;
    if (!is_even || (parts > stages && (first_differs || last_differs)))
        return am_fail(
            self->error, AM_ERROR_INFEASIBLE, "",
            "Megatron-LM deals layers evenly%s, and the plan's stages have %d, %d, ..., %d; " HOW_3D,
            parts > stages ? " to chunks" : " but to the first and the last stage", layers[0], layers[1],
            layers[parts - 1]);
    set_number(arguments, "--num-layers", total);
    if (parts > stages) set_number(arguments, "--num-layers-per-virtual-pipeline-stage", middle);
    else if (first_differs) set_number(arguments, "--decoder-first-pipeline-num-layers", layers[0]);
    if (parts == stages && last_differs)
        set_number(arguments, "--decoder-last-pipeline-num-layers", layers[parts - 1]);
    return AM_OK;
}

/* Examples of a turn on one device. */
static AmStatus set_batch(const Exporter *self, json_t *arguments) {
    int64_t batch = micro_batches_limit(plan_context_whole(self->context));
    int64_t shares = (int64_t)self->plan->micro_batches * self->sizes[DATA];
    if (batch % shares != 0)
        return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                       "Megatron-LM's micro-batches are equal, and %lld examples are not for %d turns of %d "
                       "devices",
                       (long long)batch, self->plan->micro_batches, self->sizes[DATA]);
    set_number(arguments, "--micro-batch-size", batch / shares);
    set_number(arguments, "--global-batch-size", batch);
    return AM_OK;
}

static AmStatus set_arguments(const Exporter *self, json_t *arguments) {
    set_number(arguments, "--tensor-model-parallel-size", self->sizes[MODEL]);
    set_number(arguments, "--pipeline-model-parallel-size", self->plan->stage_count);
    if (self->layers) TRY(set_layers(self, arguments));
    TRY(set_batch(self, arguments));
    if (self->splits_sequence) json_object_set_new(arguments, "--sequence-parallel", json_true());
    if (self->zero_level > 0) json_object_set_new(arguments, "--use-distributed-optimizer", json_true());
    return AM_OK;
}

/* A table of the vocabulary, which is in no layer, is padded to equal shards; heads and widths must divide.
 */
static AmStatus check_weights(const Exporter *self) {
    const IrRoles *roles = self->context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *weight = &roles->parameters[p];
        if (weight->role != IR_ROLE_WEIGHT || layer_path(weight->path).number < 0) continue;
        const Assignment *assignment =
            self->ranks.assignments[self->ranks.map ? self->ranks.map->owner[p] : 0];
        AmError why = {0};
        if (target_check_even(TARGET_MEGATRON, &assignment->stage->mesh,
                              assignment->stored[weight->instruction],
                              &self->context->canonical->instructions[weight->instruction], &why) != AM_OK)
            return am_fail(
                self->error, AM_ERROR_INFEASIBLE, "",
                "Megatron-LM's tensor degree divides heads and widths, and %d does not divide those of "
                "%s; search --mesh data=D,model=T chooses another degree T",
                self->sizes[MODEL], weight->path);
    }
    return AM_OK;
}

static AmStatus check(Exporter *self, const Cluster *cluster) {
    TRY(target_check_module(TARGET_MEGATRON, self->context, self->error));
    TRY(target_check_plan(TARGET_MEGATRON, self->plan, self->error));
    TRY(find_axes(self));
    TRY(check_devices(self));
    TRY(check_schedule(self));
    TRY(check_storage(self));
    TRY(check_lists(self, cluster));
    TRY(plan_ranks(&self->ranks, &self->arena, self->context, self->plan, self->error));
    TRY(check_weights(self));
    return self->plan->stage_count > 1 ? count_layers(self) : AM_OK;
}

static AmStatus write(Exporter *self, const Cluster *cluster, json_t **root) {
    json_t *arguments = json_object(), *layers = json_array();
    AmStatus status = check(self, cluster);
    if (status == AM_OK) status = set_arguments(self, arguments);
    for (int32_t p = 0; self->layers && p < self->ranks.parts->stage_count; p++)
        json_array_append_new(layers, json_integer(self->layers[p]));
    if (status == AM_OK) {
        *root = json_pack("{s:s, s:i, s:O, s:O}", "format", "automap-megatron-1", "world_size",
                          self->ranks.rank_count, "arguments", arguments, "layers", layers);
        if (!*root) status = am_fail_memory(self->error, 0);
    }
    json_decref(arguments);
    json_decref(layers);
    return status;
}

AmStatus export_megatron(json_t **root, const PlanContext *context, const Plan *plan, AmError *error) {
    Exporter self = {.context = plan_context_used(plan, context), .plan = plan, .error = error};
    Cluster *cluster = NULL;
    AmStatus status = cluster_from_json(&cluster, &self.arena, plan->cluster_description, "the plan", error);
    if (status == AM_OK) status = write(&self, cluster, root);
    cluster_free(cluster);
    arena_free(&self.arena);
    return status;
}

void export_megatron_print(Text *text, const json_t *root) {
    const char *name;
    const json_t *value;
    json_object_foreach(json_object_get(root, "arguments"), name, value) {
        text_append_string(text, name);
        if (json_is_integer(value)) text_append(text, " %lld", (long long)json_integer_value(value));
        text_append_string(text, "\n");
    }
}
