/* The differences of two plans.
 *
 * Decisions are compared as plan files have them. The cost of a decision is found by a plan file that is the
 * first plan's but for that decision: it is read and simulated like any other. The stages of plans
 * with different cuts are one decision.
 */
#include "planners/explain/plan_difference.h"

#include <stdlib.h>
#include <string.h>

#include "lowering/plan_file/plan_parts.h"
#include "planners/explain/layer_names.h"

typedef struct Differ {
    Arena *arena;
    PlanContext *context;        /* of the first plan's module, rewritten */
    const DifferenceSide *sides; /* [2] */
    const StopSignal *stop;      /* or NULL */
    const Explanation *explained[2];
    int32_t decision_capacity;
    PlanDifference *result;
    AmError *error;
} Differ;

/* ---- predictions ---- */

static void add_figure(Differ *self, const char *name, DifferenceUnit unit, double first, double second) {
    self->result->figures[self->result->figure_count++] = (DifferenceFigure){name, unit, {first, second}};
}

/* Means over the devices of all stages. */
static ExplainedStage mean_stage(const Explanation *of) {
    ExplainedStage mean = {0};
    for (int32_t s = 0; s < of->stages.count; s++) {
        const ExplainedStage *stage = &of->stages.of[s];
        double share = (double)stage->device_count / of->plan.device_count;
        mean.seconds.compute += share * stage->seconds.compute;
        mean.seconds.communication += share * stage->seconds.communication;
        mean.seconds.hidden += share * stage->seconds.hidden;
        mean.seconds.idle += share * stage->seconds.idle;
    }
    return mean;
}

static const ExplainedStage *fullest_stage(const Explanation *of) {
    const ExplainedStage *fullest = &of->stages.of[0];
    for (int32_t s = 1; s < of->stages.count; s++) {
        const ExplainedStage *stage = &of->stages.of[s];
        double fullness = (double)stage->fullest.needed_bytes / (double)stage->fullest.memory_bytes;
        if (fullness > (double)fullest->fullest.needed_bytes / (double)fullest->fullest.memory_bytes)
            fullest = stage;
    }
    return fullest;
}

static AmStatus add_figures(Differ *self) {
    enum { FIGURES = 12 };
    const Explanation *a = self->explained[0], *b = self->explained[1];
    const ExplainedStage first = mean_stage(a), second = mean_stage(b);
    const ExplainedStage *full[2] = {fullest_stage(a), fullest_stage(b)};
    self->result->figures = ARENA_ARRAY(self->arena, DifferenceFigure, FIGURES);
    if (!self->result->figures) return am_fail_memory(self->error, FIGURES);
    add_figure(self, "step", DIFFERENCE_SECONDS, a->plan.step_seconds, b->plan.step_seconds);
    add_figure(self, "compute", DIFFERENCE_SECONDS, first.seconds.compute, second.seconds.compute);
    add_figure(self, "communication", DIFFERENCE_SECONDS, first.seconds.communication,
               second.seconds.communication);
    add_figure(self, "hidden", DIFFERENCE_SECONDS, first.seconds.hidden, second.seconds.hidden);
    add_figure(self, "idle", DIFFERENCE_SECONDS, first.seconds.idle, second.seconds.idle);
    add_figure(self, "peak memory", DIFFERENCE_BYTES, (double)full[0]->fullest.needed_bytes,
               (double)full[1]->fullest.needed_bytes);
    add_figure(self, "weights", DIFFERENCE_BYTES, (double)full[0]->fullest.use.weights_bytes,
               (double)full[1]->fullest.use.weights_bytes);
    add_figure(self, "gradients", DIFFERENCE_BYTES, (double)full[0]->fullest.use.gradients_bytes,
               (double)full[1]->fullest.use.gradients_bytes);
    add_figure(self, "optimizer", DIFFERENCE_BYTES, (double)full[0]->fullest.use.optimizer_bytes,
               (double)full[1]->fullest.use.optimizer_bytes);
    add_figure(self, "activations", DIFFERENCE_BYTES, (double)full[0]->fullest.use.activation_bytes,
               (double)full[1]->fullest.use.activation_bytes);
    add_figure(self, "transfer slots", DIFFERENCE_BYTES, (double)full[0]->fullest.channel_bytes,
               (double)full[1]->fullest.channel_bytes);
    add_figure(self, "memory of the host", DIFFERENCE_BYTES, (double)full[0]->fullest.use.host_bytes,
               (double)full[1]->fullest.use.host_bytes);
    for (int32_t k = 0; k < 2; k++)
        self->result->fits[k] = full[k]->fullest.needed_bytes <= full[k]->fullest.limit_bytes &&
                                self->explained[k]->plan.fits_host;
    return AM_OK;
}

/* ---- decisions ---- */

/* Simulates the first plan with the changed document. A plan that cannot be made is a reason, not an
 * error. */
static AmStatus simulate_changed(Differ *self, ExplainedChange *change, json_t *document) {
    const SimulationOptions options = {.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION,
                                       .stop = self->stop};
    Arena arena = {0};
    AmError why = {0};
    Plan *plan;
    Simulation *simulation;
    AmStatus status = plan_stages_from_json(&plan, document, &arena, self->context, "the changed plan", &why);
    if (status == AM_OK)
        status =
            simulate_plan(&simulation, &arena, self->context, plan, self->sides[0].cluster, &options, &why);
    if (status == AM_OK)
        *change = (ExplainedChange){.seconds = simulation->step_seconds,
                                    .peak_bytes = simulation->fit.needed_bytes,
                                    .is_known = true,
                                    .fits = simulation->fit.fits,
                                    .reason = ""};
    else change->reason = arena_copy_string(self->arena, why.text);
    arena_free(&arena);
    if (status == AM_INTERRUPTED) return am_fail(self->error, AM_INTERRUPTED, "", "interrupted");
    if (status == AM_ERROR_INTERNAL) *self->error = why;
    else if (!change->reason) return am_fail_memory(self->error, 0);
    return status == AM_ERROR_INTERNAL ? status : AM_OK;
}

/* Adds a decision. `document` is the first plan's with that decision of the second, and its reference is
 * taken; NULL: it has no cost of its own. */
static AmStatus add_decision(Differ *self, const char *name, const char *first, const char *second,
                             json_t *document) {
    AmStatus status = AM_OK;
    ARENA_RESERVE(self->arena, self->result->decisions, self->result->decision_count,
                  self->decision_capacity);
    if (!self->result->decisions || !name || !first || !second) {
        json_decref(document);
        return am_fail_memory(self->error, 0);
    }
    DifferenceDecision *row = &self->result->decisions[self->result->decision_count++];
    *row = (DifferenceDecision){name, {first, second}, {.reason = "it has no cost of its own"}};
    if (document) status = simulate_changed(self, &row->change, document);
    json_decref(document);
    return status;
}

/* Returns the first plan's document without the members that follow from its decisions; the caller's
 * reference. */
static json_t *copy_document(const Differ *self) {
    json_t *copy = json_deep_copy(self->sides[0].document);
    json_object_del(copy, "parameters");
    json_object_del(copy, "decisions");
    return copy;
}

/* Sets each of `keys`, which ends with NULL, as in `from`. */
static void take_keys(json_t *to, const json_t *from, const char *const *keys) {
    for (; *keys; keys++) {
        json_t *value = json_object_get(from, *keys);
        if (value) json_object_set(to, *keys, value);
        else json_object_del(to, *keys);
    }
}

static bool keys_equal(const json_t *a, const json_t *b, const char *const *keys) {
    for (; *keys; keys++) {
        const json_t *first = json_object_get(a, *keys), *second = json_object_get(b, *keys);
        if ((first || second) && !(first && second && json_equal(first, second))) return false;
    }
    return true;
}

static json_t *stage_of(const json_t *document, int32_t stage) {
    return json_array_get(json_object_get(document, "stages"), (size_t)stage);
}

/* Returns whether the stages of both plans run the same instructions. */
static bool cuts_are_equal(const Differ *self) {
    static const char *const ranges[] = {"ranges", NULL};
    const json_t *a = self->sides[0].document, *b = self->sides[1].document;
    int32_t count = self->sides[0].plan->stage_count;
    bool are_equal = count == self->sides[1].plan->stage_count;
    for (int32_t s = 0; s < count && are_equal; s++)
        are_equal = keys_equal(stage_of(a, s), stage_of(b, s), ranges);
    return are_equal;
}

/* Returns "12 dimension classes, ZeRO 1" for the axis priorities of a stage. */
static const char *axis_priorities_text(const Differ *self, int32_t side, int32_t s) {
    const PlanStage *stage = &self->sides[side].plan->stages[s];
    int32_t count = 0;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++)
            count += stage->axis_priorities[axis].entries[e].class_index != PLAN_ANY_CLASS;
    return arena_format(self->arena, "%d class%s, ZeRO %d", count, count == 1 ? "" : "es",
                        self->explained[side]->stages.of[s].zero_level);
}

static const char *kept_text(const Differ *self, int32_t side, int32_t s) {
    return arena_format(self->arena, "%lld", (long long)self->sides[side].plan->stages[s].kept_bytes);
}

static const char *mesh_of(const Differ *self, int32_t side, int32_t s) {
    const ExplainedStage *stage = &self->explained[side]->stages.of[s];
    return arena_format(self->arena, "%s on %s", stage->mesh, stage->devices);
}

static const char *count_of(const Differ *self, int32_t side, int32_t s, const char *key) {
    const json_t *value = json_object_get(stage_of(self->sides[side].document, s), key);
    if (json_is_array(value)) return arena_format(self->arena, "%d", (int)json_array_size(value));
    return json_is_true(value) ? "yes" : "no";
}

/* Parts of a stage that are compared. Another mesh has other axes, which axis priorities and overrides name,
 * so that these parts change with it. */
static const struct StagePart {
    const char *name;
    const char *keys[6];
    const char *(*text)(const Differ *self, int32_t side, int32_t s);
} parts[] = {
    {"mesh", {"mesh", "devices", "axis_priorities", "overrides", "reshards"}, mesh_of},
    {"axis priorities", {"axis_priorities"}, axis_priorities_text},
    {"overrides", {"overrides"}, NULL},
    {"resharding places", {"reshards"}, NULL},
    {"recomputation", {"recompute", "saved"}, NULL},
    {"equal shards", {"even"}, NULL},
    {"gathered weights kept", {"keeps_gathered_weights"}, NULL},
    {"addends rounded before sums", {"rounds_parts"}, NULL},
    {"gradients all-reduced", {"all_reduces_gradients"}, NULL},
    {"16-bit sums reduced in f32", {"reduces_in_f32"}, NULL},
    {"optimizer state in host memory", {"offloads_optimizer"}, NULL},
    {"bytes held outside of the step", {"kept_bytes"}, kept_text},
};

/* Returns the number of devices in all stages. */
static int32_t count_devices(const Plan *plan) {
    int32_t count = 0;
    for (int32_t s = 0; s < plan->stage_count; s++) count += plan->stages[s].mesh.device_count;
    return count;
}

static AmStatus add_stage(Differ *self, int32_t s) {
    static const char *const mesh[] = {"mesh", "devices", NULL};
    const json_t *a = stage_of(self->sides[0].document, s), *b = stage_of(self->sides[1].document, s);
    bool is_same_mesh = keys_equal(a, b, mesh);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        const struct StagePart *part = &parts[k];
        bool goes_with_mesh = k > 0 && k < 4;
        const char *name = part->name, *first, *second;
        if (k == 0 ? is_same_mesh : keys_equal(a, b, part->keys) || (goes_with_mesh && !is_same_mesh))
            continue;
        json_t *document = copy_document(self);
        take_keys(stage_of(document, s), b, part->keys);
        if (self->sides[0].plan->stage_count > 1)
            name = arena_format(self->arena, "stage %d: %s", s, part->name);
        first = part->text ? part->text(self, 0, s) : count_of(self, 0, s, part->keys[0]);
        second = part->text ? part->text(self, 1, s) : count_of(self, 1, s, part->keys[0]);
        TRY(add_decision(self, name, first, second, document));
    }
    return AM_OK;
}

/* Returns "2 x data=2, 1 x data=4 model=2". */
static const char *stages_text(const Differ *self, int32_t side) {
    const Explanation *of = self->explained[side];
    const char *text = "";
    for (int32_t s = 0, next; s < of->stages.count && text; s = next) {
        for (next = s + 1;
             next < of->stages.count && strcmp(of->stages.of[next].mesh, of->stages.of[s].mesh) == 0;)
            next++;
        text = arena_format(self->arena, "%s%s%d x %s", text, s ? ", " : "", next - s, of->stages.of[s].mesh);
    }
    return text;
}

/* Returns "3 + 1", the parts of the batch that the replicas have. */
static const char *replicas_text(const Differ *self, int32_t side) {
    const PlanReplicas *replicas = &self->sides[side].plan->replicas;
    const char *text = "";
    for (int32_t r = 0; r < replicas->count && text; r++)
        text = arena_format(self->arena, "%s%s%d", text, r > 0 ? " + " : "", replicas->parts[r]);
    return text;
}

/* Adds the parts of the batch, of two plans with replicas. */
static AmStatus add_replicas(Differ *self) {
    static const char *const replicas[] = {"replicas", NULL};
    const DifferenceSide *a = &self->sides[0], *b = &self->sides[1];
    if (plan_replicas_equal(&a->plan->replicas, &b->plan->replicas)) return AM_OK;
    json_t *document = copy_document(self);
    take_keys(document, b->document, replicas);
    return add_decision(self, "replicas", replicas_text(self, 0), replicas_text(self, 1), document);
}

static AmStatus add_decisions(Differ *self) {
    static const char *const number[] = {"micro_batches", NULL}, *const schedule[] = {"schedule", NULL},
                             *const stages[] = {"stages", "schedule", "replicas", NULL};
    const DifferenceSide *a = &self->sides[0], *b = &self->sides[1];
    bool is_same_cluster = strcmp(a->plan->cluster_sha256, b->plan->cluster_sha256) == 0;
    const PlanRewrites form_a = a->primary->rewriting, form_b = b->primary->rewriting;
    bool is_same_form = plan_rewriting_equal(form_a, form_b);
    bool has_same_devices = count_devices(a->plan) == count_devices(b->plan);
    bool has_same_cuts = is_same_form && has_same_devices && cuts_are_equal(self);
    if (!is_same_cluster)
        TRY(add_decision(self, "cluster", a->plan->cluster_name, b->plan->cluster_name, NULL));
    if (form_a.undoes_recomputation != form_b.undoes_recomputation)
        TRY(add_decision(self, "recomputation of the source", form_a.undoes_recomputation ? "undone" : "kept",
                         form_b.undoes_recomputation ? "undone" : "kept", NULL));
    if (form_a.fuses_attention != form_b.fuses_attention)
        TRY(add_decision(self, "attention", form_a.fuses_attention ? "fused" : "unfused",
                         form_b.fuses_attention ? "fused" : "unfused", NULL));
    if (!has_same_cuts) {
        /* The instruction numbers of another form of the module, and more devices, mean nothing in the first
         * plan. */
        json_t *document = is_same_form && has_same_devices ? copy_document(self) : NULL;
        if (document) take_keys(document, b->document, stages);
        TRY(add_decision(self, "stages", stages_text(self, 0), stages_text(self, 1), document));
    } else if (!keys_equal(a->document, b->document, schedule)) {
        json_t *document = copy_document(self);
        take_keys(document, b->document, schedule);
        TRY(add_decision(self, "schedule", a->plan->schedule, b->plan->schedule, document));
    }
    if (has_same_cuts) TRY(add_replicas(self));
    if (a->plan->micro_batches != b->plan->micro_batches) {
        json_t *document = copy_document(self);
        take_keys(document, b->document, number);
        TRY(add_decision(self, "micro-batches", arena_format(self->arena, "%d", a->plan->micro_batches),
                         arena_format(self->arena, "%d", b->plan->micro_batches), document));
    }
    for (int32_t s = 0; has_same_cuts && s < a->plan->stage_count; s++) TRY(add_stage(self, s));
    return AM_OK;
}

/* ---- parameters ---- */

/* Returns "stage 1 [data,-,data+model]". */
static const char *parameter_text(const Differ *self, int32_t side, int32_t p) {
    const json_t *row = json_array_get(json_object_get(self->sides[side].document, "parameters"), (size_t)p);
    const json_t *sharding = json_object_get(row, "sharding");
    const char *text = "";
    if (self->sides[0].plan->stage_count > 1 || self->sides[1].plan->stage_count > 1)
        text = arena_format(self->arena, "stage %d ", (int)json_integer_value(json_object_get(row, "stage")));
    for (size_t d = 0; text && d < json_array_size(sharding); d++) {
        const char *axes = plan_axes_text(self->arena, json_array_get(sharding, d));
        text = axes ? arena_format(self->arena, "%s%s%s", text, d ? "," : "[", *axes ? axes : "-") : NULL;
    }
    return text ? arena_format(self->arena, json_array_size(sharding) ? "%s]" : "%s[]", text) : NULL;
}

/* A row of the result while its layers are collected. */
typedef struct ParameterGroup {
    LayerName name;
    const char *rest; /* of the path, after the layer's name */
} ParameterGroup;

/* Weights first, then by bytes, then by path. */
static int compare_parameters(const void *first, const void *second) {
    const DifferenceParameters *a = first, *b = second;
    int a_is_weight = strcmp(a->role, ir_role_name(IR_ROLE_WEIGHT)) == 0;
    int b_is_weight = strcmp(b->role, ir_role_name(IR_ROLE_WEIGHT)) == 0;
    if (a_is_weight != b_is_weight) return b_is_weight - a_is_weight;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    int order = strcmp(a->path, b->path);
    return order != 0 ? order : strcmp(a->values[1], b->values[1]);
}

static AmStatus add_parameters(Differ *self) {
    const IrRoles *roles = self->context->roles;
    PlanDifference *result = self->result;
    result->parameters = ARENA_ARRAY(self->arena, DifferenceParameters, roles->parameter_count + 1);
    ParameterGroup *groups = ARENA_ARRAY(self->arena, ParameterGroup, roles->parameter_count + 1);
    if (!groups || !result->parameters) return am_fail_memory(self->error, roles->parameter_count);
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        const char *values[2] = {parameter_text(self, 0, p), parameter_text(self, 1, p)};
        const char *role = ir_role_name(parameter->role);
        const LayerPath path = layer_path(parameter->path);
        if (!values[0] || !values[1]) return am_fail_memory(self->error, p);
        if (strcmp(values[0], values[1]) == 0) continue;
        int32_t k = 0;
        for (; k < result->parameter_count; k++) {
            const DifferenceParameters *row = &result->parameters[k];
            if (layer_path_is_same(&groups[k].name.path, &path) &&
                strcmp(groups[k].rest, path.path + path.end) == 0 && strcmp(row->role, role) == 0 &&
                strcmp(row->values[0], values[0]) == 0 && strcmp(row->values[1], values[1]) == 0)
                break;
        }
        if (k == result->parameter_count) {
            groups[k] = (ParameterGroup){.name = {.path = path}, .rest = path.path + path.end};
            result->parameters[k] = (DifferenceParameters){.role = role, .values = {values[0], values[1]}};
            result->parameter_count++;
        }
        layer_name_add(self->arena, &groups[k].name, path.number);
        result->parameters[k].count++;
        result->parameters[k].bytes +=
            ir_shape_bytes(&plan_context_instruction(self->context, parameter->instruction)->shape);
        result->parameter_total++;
    }
    for (int32_t k = 0; k < self->result->parameter_count; k++) {
        Text text = {0};
        layer_name_append(&text, &groups[k].name, (int32_t)strlen(groups[k].name.path.path));
        self->result->parameters[k].path = arena_copy_string(self->arena, text.data);
        text_free(&text);
        if (!self->result->parameters[k].path) return am_fail_memory(self->error, 0);
    }
    qsort(result->parameters, (size_t)result->parameter_count, sizeof *result->parameters,
          compare_parameters);
    return AM_OK;
}

/* ---- collectives ---- */

static AmStatus add_collectives(Differ *self) {
    PlanDifference *result = self->result;
    int32_t capacity = self->explained[0]->collectives.count + self->explained[1]->collectives.count;
    result->collectives = ARENA_ARRAY(self->arena, DifferenceCollectives, capacity + 1);
    if (!result->collectives) return am_fail_memory(self->error, capacity);
    for (int32_t side = 0; side < 2; side++)
        for (int32_t k = 0; k < self->explained[side]->collectives.count; k++) {
            const ExplainedCollective *from = &self->explained[side]->collectives.of[k];
            DifferenceCollectives *end = result->collectives + result->collective_count, *row;
            for (row = result->collectives; row < end; row++)
                if (strcmp(row->kind, from->kind) == 0 && strcmp(row->axes, from->axes) == 0) break;
            if (row == end) {
                *row = (DifferenceCollectives){.kind = from->kind, .axes = from->axes};
                result->collective_count++;
            }
            row->counts[side] += from->count;
            row->bytes[side] += from->bytes;
            row->seconds[side] += from->seconds;
        }
    return AM_OK;
}

AmStatus plan_difference(PlanDifference **difference, Arena *arena, const DifferenceSide sides[2],
                         const StopSignal *stop, AmError *error) {
    AmError failure = {0};
    const ExplainOptions options = {.without_changes = true, .stop = stop};
    Differ self = {.arena = arena,
                   .context = sides[0].primary,
                   .sides = sides,
                   .stop = stop,
                   .result = ARENA_ARRAY(arena, PlanDifference, 1),
                   .error = error ? error : &failure};
    *difference = self.result;
    if (!self.result) return am_fail_memory(error, (int64_t)sizeof *self.result);
    if (sides[0].primary->rewriting.splits_layers != sides[1].primary->rewriting.splits_layers)
        return am_fail(error, AM_ERROR_INPUT, sides[1].name,
                       "its parameters are not those of the first plan: only one of them splits layers "
                       "(expected plans of search with the same --layers)");
    self.result->module = sides[0].plan->module_name;
    for (int32_t k = 0; k < 2; k++) {
        Explanation *explanation;
        TRY(explain_plan(&explanation, arena, sides[k].primary, sides[k].plan, sides[k].document,
                         sides[k].cluster, &options, self.error));
        self.explained[k] = explanation;
        self.result->names[k] = sides[k].name;
    }
    TRY(add_figures(&self));
    TRY(add_decisions(&self));
    TRY(add_parameters(&self));
    TRY(add_collectives(&self));
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}
