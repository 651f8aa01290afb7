/* Writes plan files ("automap-plan-1").
 *
 * Keys stand in the order of the format's description, numbers in the one form
 * of json_write(), and nothing depends on the clock: the same plan is the same
 * bytes.
 */
#include <math.h>

#include "automap.h"
#include "base/files/file.h"
#include "base/files/json.h"
#include "lowering/micro_batch/micro_batches.h"
#include "lowering/plan_file/plan_adapt.h"
#include "lowering/plan_file/plan_names.h"
#include "lowering/plan_file/plan_parts.h"
#include "lowering/plan_file/stage_switches.h"

static json_t *mesh_to_json(const Mesh *mesh) {
    json_t *axes = json_array();
    for (int32_t k = 0; k < mesh->axis_count; k++) {
        const MeshAxis *axis = &mesh->axes[k];
        json_t *shares = axis->shares ? json_array() : json_null();
        for (int32_t part = 0; axis->shares && part < axis->size; part++)
            json_array_append_new(shares, json_real(axis->shares[part]));
        json_array_append_new(
            axes, json_pack("{s:s, s:i, s:o}", "axis", axis->name, "size", axis->size, "shares", shares));
    }
    return axes;
}

static json_t *axis_priorities_to_json(const PlanStage *stage, const Classes *classes) {
    json_t *lists = json_object();
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++) {
        json_t *entries = json_array();
        for (int32_t e = 0; e < stage->axis_priorities[axis].count; e++) {
            const PlanEntry *entry = &stage->axis_priorities[axis].entries[e];
            json_array_append_new(entries,
                                  json_pack("{s:o, s:s}", "class", plan_entry_class_to_json(entry, classes),
                                            "kind", plan_entry_kind_name(entry->kind)));
        }
        json_object_set_new(lists, stage->mesh.axes[axis].name, entries);
    }
    return lists;
}

/* Returns {"instruction", "factor": {axis: factor or null}} or {"instruction", "states": {axis: state}},
 * which may be pinned. */
static json_t *override_to_json(const PlanOverride *override, const PlanContext *context, const Mesh *mesh) {
    json_t *object = json_pack("{s:i}", "instruction", plan_number_of(context, override->instruction));
    if (override->has_factors) {
        json_t *factors = json_object();
        for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
            int32_t factor = override->factors[axis];
            if (factor == PLAN_NO_OVERRIDE) continue;
            json_object_set_new(factors, mesh->axes[axis].name,
                                factor < 0 ? json_null() : json_integer(factor));
        }
        json_object_set_new(object, "factor", factors);
    }
    if (override->has_states) {
        json_t *states = json_object();
        for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
            Text text = {0};
            sbp_print_axis(&text, override->states.axis[axis]);
            json_object_set_new(states, mesh->axes[axis].name, json_string(text.data ? text.data : "B"));
            text_free(&text);
        }
        json_object_set_new(object, "states", states);
    }
    if (override->is_pinned) json_object_set_new(object, "pinned", json_true());
    return object;
}

static json_t *reshard_to_json(const PlanStage *stage, const PlanContext *context) {
    json_t *reshard = json_array();
    for (int32_t k = 0; k < stage->reshard_count; k++)
        json_array_append_new(reshard, json_pack("{s:i, s:s}", "instruction",
                                                 plan_number_of(context, stage->reshard[k].instruction),
                                                 "place", reshard_place_name(stage->reshard[k].place)));
    return reshard;
}

static json_t *stage_to_json(const PlanStage *stage, const PlanContext *context) {
    json_t *ranges = json_array(), *overrides = json_array(), *recompute = json_array();
    const PlanRecomputation *recomputed = &stage->recompute;
    for (int32_t r = 0; r < stage->range_count; r++)
        json_array_append_new(ranges, json_pack("[i, i]", stage->ranges[r][0], stage->ranges[r][1]));
    for (int32_t k = 0; k < stage->override_count; k++)
        json_array_append_new(overrides, override_to_json(&stage->overrides[k], context, &stage->mesh));
    for (int32_t r = 0; r < recomputed->range_count; r++)
        json_array_append_new(recompute,
                              json_pack("[i, i]", recomputed->ranges[r][0], recomputed->ranges[r][1]));
    json_t *object =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "ranges", ranges, "devices",
                  json_integers(stage->devices, stage->mesh.device_count), "mesh", mesh_to_json(&stage->mesh),
                  "axis_priorities", axis_priorities_to_json(stage, context->classes), "overrides", overrides,
                  "reshards", reshard_to_json(stage, context), "recompute", recompute);
    if (object && recomputed->saved_count > 0)
        json_object_set_new(object, "saved", json_integers(recomputed->saved, recomputed->saved_count));
    if (object) stage_switches_write(object, stage);
    return object;
}

static json_t *predicted_to_json(const Plan *plan) {
    json_t *devices = json_array();
    for (int32_t d = 0; d < plan->device_count; d++) {
        const PlanDevicePrediction *device = &plan->predicted[d];
        json_t *object = json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "peak_bytes", (json_int_t)device->peak_bytes,
            "weights_bytes", (json_int_t)device->weights_bytes, "gradients_bytes",
            (json_int_t)device->gradients_bytes, "optimizer_bytes", (json_int_t)device->optimizer_bytes,
            "activation_bytes", (json_int_t)device->activation_bytes, "compute_seconds",
            device->compute_seconds, "communication_seconds", device->communication_seconds, "idle_seconds",
            device->idle_seconds);
        if (object && device->channel_bytes > 0)
            json_object_set_new(object, "channel_bytes", json_integer((json_int_t)device->channel_bytes));
        if (object && device->host_bytes > 0)
            json_object_set_new(object, "host_bytes", json_integer((json_int_t)device->host_bytes));
        json_array_append_new(devices, object);
    }
    return json_pack("{s:f, s:o}", "step_seconds", plan->predicted_step_seconds, "devices", devices);
}

const char *plan_origin_name(PlanOrigin origin) {
    static const char *const names[PLAN_ORIGIN_COUNT] = {NULL,
#define PLAN_ORIGIN_NAME(name, text, help) text,
                                                         PLAN_ORIGIN_LIST(PLAN_ORIGIN_NAME)
#undef PLAN_ORIGIN_NAME
    };
    return names[origin];
}

static json_t *search_to_json(const Plan *plan) {
    json_t *bound = isnan(plan->bound_seconds) ? json_null() : json_real(plan->bound_seconds);
    json_t *search = json_pack("{s:s, s:I, s:I, s:o, s:s?, s:s, s:o}", "searcher", plan->searcher, "seed",
                               (json_int_t)plan->seed, "evaluations", (json_int_t)plan->evaluations,
                               "bound_seconds", bound, "bound", plan->bound, "space", plan->space, "settings",
                               plan->settings ? json_incref(plan->settings) : json_object());
    if (!search || plan->origin == PLAN_ORIGIN_UNKNOWN) return search;
    json_t *found = json_object();
    for (int32_t k = 1; k < PLAN_ORIGIN_COUNT; k++)
        if (plan->found_seconds[k] > 0)
            json_object_set_new(found, plan_origin_name((PlanOrigin)k), json_real(plan->found_seconds[k]));
    json_object_set_new(search, "origin", json_string(plan_origin_name(plan->origin)));
    json_object_set_new(search, "found_seconds", found);
    return search;
}

json_t *plan_rewriting_to_json(PlanRewrites rewriting) {
    if (plan_rewriting_is_none(rewriting)) return NULL;
    return json_pack("{s:s*, s:s*, s:s*}", "layers", rewriting.splits_layers ? "split" : NULL,
                     "recomputation", rewriting.undoes_recomputation ? "undone" : NULL, "attention",
                     rewriting.fuses_attention ? "fused" : NULL);
}

/* Makes the document; takes the references of the derived parts, which are NULL where it has none. */
static AmStatus make_document(json_t **root, const Plan *plan, const PlanContext *context, json_t *parameters,
                              json_t *decisions, AmError *error) {
    json_t *stages = json_array(), *relaxations = json_array();
    for (int32_t s = 0; s < plan->stage_count; s++)
        json_array_append_new(stages, stage_to_json(&plan->stages[s], context));
    for (int32_t k = 0; k < plan->relaxation_count; k++)
        json_array_append_new(relaxations, json_string(plan->relaxations[k]));
    json_t *object = json_pack(
        "{s:s, s:s, s:{s:o, s:s, s:i}, s:{s:o, s:s, s:O}, s:i, s:s, s:o, s:o, s:o*, s:o*, s:o, s:o}",
        "format", "automap-plan-1", "automap_version", AM_VERSION, "module", "name",
        plan_string_to_json(plan->module_name), "sha256", plan->module_sha256, "instructions",
        plan->module_instructions, "cluster", "name", plan_string_to_json(plan->cluster_name), "sha256",
        plan->cluster_sha256, "description", plan->cluster_description, "micro_batches", plan->micro_batches,
        "schedule", plan->schedule, "stages", stages, "relaxations", relaxations, "parameters", parameters,
        "decisions", decisions, "predicted", predicted_to_json(plan), "search", search_to_json(plan));
    const PlanContext *primary = plan_context_primary(context);
    json_t *rewriting = plan_rewriting_to_json(primary->rewriting);
    /* The instruction numbers of a rewritten module are not those of a module that can be read. */
    json_t *structure = object && !rewriting ? plan_structure_to_json(primary) : NULL;
    if (!object || (!structure && !rewriting)) {
        json_decref(object);
        json_decref(rewriting);
        return am_fail_memory(error, 0);
    }
    if (plan->replicas.count > 0)
        json_object_set_new(object, "replicas", plan_replicas_to_json(&plan->replicas));
    if (structure) json_object_set_new(json_object_get(object, "module"), "structure", structure);
    if (rewriting) json_object_set_new(object, "rewriting", rewriting);
    char decided[65];
    AmStatus status = plan_decided_sha256(decided, object, error);
    json_object_set_new(json_object_get(object, "predicted"), "of", json_string(decided));
    if (status == AM_OK) *root = object;
    else json_decref(object);
    return status;
}

AmStatus plan_to_json(json_t **root, const Plan *plan, const PlanContext *context, AmError *error) {
    json_t *parameters = NULL, *decisions = NULL;
    context = plan_context_used(plan, context);
    AmStatus status = plan_parameters_to_json(&parameters, plan, context, error);
    if (status == AM_OK) status = plan_decisions_to_json(&decisions, plan, context, error);
    if (status == AM_OK) {
        /* Other forms of the model take the plan by its names. */
        json_t *document, *names;
        TRY(make_document(&document, plan, context, parameters, decisions, error));
        AmStatus named = plan_names_to_json(&names, json_object_get(document, "stages"),
                                            plan_context_primary(context), error);
        if (names) json_object_set_new(document, "names", names);
        if (named == AM_OK) *root = document;
        else json_decref(document);
        return named;
    }
    json_decref(parameters);
    json_decref(decisions);
    return status;
}

AmStatus plan_stages_to_json(json_t **root, const Plan *plan, const PlanContext *context, AmError *error) {
    return make_document(root, plan, plan_context_used(plan, context), NULL, NULL, error);
}

AmStatus plan_write_json(const json_t *root, const char *path, AmError *error) {
    Text text = {0};
    json_write(&text, root, JSON_STYLE_INDENTED);
    text_append_string(&text, "\n");
    AmStatus status =
        text.failed ? am_fail_memory(error, 0) : file_write(path, text.data, text.length, error);
    text_free(&text);
    return status;
}

AmStatus plan_write(const Plan *plan, const PlanContext *context, const char *path, AmError *error) {
    json_t *root = NULL;
    TRY(plan_to_json(&root, plan, context, error));
    AmStatus status = plan_write_json(root, path, error);
    json_decref(root);
    return status;
}
