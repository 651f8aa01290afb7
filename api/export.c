/* am_export(): a plan in the form of another system, in a buffer.
 *
 * `formats` has the exporter of each target (planners/export) and a note for the user. For targets whose
 * stages hold entire layers, move_cuts() moves the plan's cuts between layers, and simulates the step before
 * and after.
 */
#include "api/handles.h"
#include "api/options.h"
#include "cost/simulate/simulate.h"
#include "lowering/plan_file/plan_names.h"
#include "planners/export/export_check.h"
#include "planners/export/export_dtensor.h"
#include "planners/export/export_hlo.h"
#include "planners/export/export_jax.h"
#include "planners/export/export_megatron.h"
#include "planners/export/export_torchtitan.h"
#include "planners/export/whole_layers.h"

static AmStatus export_automap(json_t **root, const PlanContext *context, const Plan *plan, AmError *error) {
    return plan_to_json(root, plan, context, error);
}

/* How plans are written for a target: the function, as JSON or as text, and its note for the user. */
typedef struct Format {
    AmStatus (*write_json)(json_t **root, const PlanContext *context, const Plan *plan, AmError *error);
    void (*print)(Text *text,
                  const json_t *root);      /* instead of JSON, if the caller requests no JSON; or NULL */
    ShardingSpelling spelling;              /* of text */
    int32_t first_spelling, spelling_count; /* those that the option "spelling" may choose */
    bool deals_evenly; /* "whole-layers" gives stages as many layers each, but for the ends */
    const char *note;
    const char *fused; /* the remedy of a plan with fused attention, which the format does not carry itself */
} Format;

static const Format formats[TARGET_COUNT] = {
    [TARGET_AUTOMAP] = {export_automap, NULL, 0, 0, 0, false, "this is the plan file itself", NULL},
    [TARGET_JAX] = {export_jax, NULL, 0, 0, 0, false, "XLA sets the shardings of values without a constraint",
                    "call jax.nn.dot_product_attention(..., implementation=\"cudnn\") in the step"},
    [TARGET_HLO] = {NULL, NULL, SHARDING_TILES, 0, 2, false,
                    "XLA's propagation sets the shardings without a constraint",
                    "the text has its operators one by one, which XLA does not fuse"},
    [TARGET_SHARDY] = {NULL, NULL, SHARDING_SHARDY, 2, 2, false,
                       "Shardy's propagation sets the shardings without a constraint",
                       "the text has its operators one by one, which XLA does not fuse"},
    [TARGET_TORCH] = {export_dtensor, NULL, 0, 0, 0, false,
                      "placements of intermediate values are left to DTensor's operators",
                      "call torch.nn.functional.scaled_dot_product_attention in the model"},
    [TARGET_MEGATRON] = {export_megatron, export_megatron_print, 0, 0, 0, true,
                         "add the arguments for the model, the data and the optimizer",
                         "add --attention-backend flash"},
    [TARGET_TORCHTITAN] = {export_torchtitan, export_torchtitan_print, 0, 0, 0, false,
                           "call configure() on the configuration of the model, the data and the optimizer",
                           NULL},
};

typedef struct Export {
    Target target;
    const Format *format;
    ShardingSpelling spelling;
    bool as_json;
    const AmPlan *from;
    const AmCallbacks *callbacks;
    Arena arena;
} Export;

static AmStatus step_seconds(double *seconds, Export *self, const Plan *plan, const Cluster *cluster,
                             AmError *error) {
    Simulation *simulation;
    TRY(simulate_plan(&simulation, &self->arena, self->from->primary, plan, cluster,
                      &(SimulationOptions){.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION}, error));
    *seconds = simulation->step_seconds;
    return AM_OK;
}

/* Moves the plan's cuts between layers, and reports the effect on the step. */
static AmStatus move_cuts(Export *self, Plan **plan, AmError *error) {
    const Plan *before = self->from->plan;
    Plan *moved;
    int32_t count;
    double old_seconds, new_seconds;
    Cluster *cluster = NULL;
    Text note = {0};
    TRY(plan_with_whole_layers(&moved, &count, &self->arena, self->from->primary, before,
                               self->format->deals_evenly, error));
    if (count == 0) return AM_OK;
    AmStatus status;
    TRY_OR_FAIL(cluster_from_json(&cluster, &self->arena, before->cluster_description,
                                  before->source ? before->source : "the plan", error));
    TRY_OR_FAIL(step_seconds(&old_seconds, self, before, cluster, error));
    TRY_OR_FAIL(step_seconds(&new_seconds, self, moved, cluster, error));
    text_append(&note, "%d cut%s moved between layers: the step becomes ", count, count == 1 ? "" : "s");
    text_append_seconds(&note, new_seconds);
    text_append_string(&note, ", it was ");
    text_append_seconds(&note, old_seconds);
    api_message(self->callbacks, AM_NOTE, "%s", note.data ? note.data : "");
    *plan = moved;
fail:
    text_free(&note);
    cluster_free(cluster);
    return status;
}

static AmStatus write_json(Export *self, const Plan *plan, char **buffer, size_t *bytes, AmError *error) {
    json_t *exported = NULL;
    Text text = {0};
    if (self->target == TARGET_AUTOMAP)
        TRY(plan_names_prepare(self->from->module, self->from->primary->rewriting, error));
    TRY(self->format->write_json(&exported, self->from->primary, plan, error));
    bool has_key = self->target == TARGET_JAX || self->target == TARGET_TORCH;
    if (has_key && self->from->primary->unfused)
        json_object_set_new(exported, "attention", json_string("fused"));
    json_t *carried = self->target == TARGET_AUTOMAP ? NULL : api_carried_to_json(self->from);
    if (carried) json_object_set_new(exported, "carried", carried);
    if (!self->format->print || self->as_json)
        return api_give_json(buffer, bytes, exported, JSON_STYLE_INDENTED, error);
    self->format->print(&text, exported);
    json_decref(exported);
    return api_give_text(buffer, bytes, &text, error);
}

static AmStatus write_text(Export *self, const Plan *plan, char **buffer, size_t *bytes, AmError *error) {
    Text text = {0};
    AmStatus status = export_hlo(&text, self->from->primary, plan, self->spelling, error);
    if (status == AM_OK && !self->as_json) return api_give_text(buffer, bytes, &text, error);
    if (status == AM_OK)
        status = api_give_json(buffer, bytes,
                               json_pack("{s:s, s:s}", "format", "automap-export-1", "text", text.data),
                               JSON_STYLE_COMPACT, error);
    text_free(&text);
    return status;
}

static AmStatus export_plan(Export *self, const AmOptions *options, char **buffer, size_t *bytes,
                            AmError *error) {
    Plan *plan = self->from->plan;
    TRY(export_check_form(self->target, self->from->primary, error));
    TRY(plan_check_own_devices(plan, error));
    if (option_has(options, "whole-layers")) TRY(move_cuts(self, &plan, error));
    if (self->format->write_json) TRY(write_json(self, plan, buffer, bytes, error));
    else TRY(write_text(self, plan, buffer, bytes, error));
    api_note_carried(self->callbacks, self->from);
    api_message(self->callbacks, AM_NOTE, "%s", self->format->note);
    if (self->from->primary->unfused && self->format->fused)
        api_message(self->callbacks, AM_WARNING,
                    "the plan's time and memory are those of fused attention: %s (or search with --attention "
                    "unfused)",
                    self->format->fused);
    return AM_OK;
}

/* Finds the format, and checks that the options apply to it. */
static AmStatus read_settings(Export *self, const char *format, const AmOptions *options, AmError *error) {
    static const ShardingSpelling spellings[] = {SHARDING_TILES, SHARDING_NAMED, SHARDING_SHARDY,
                                                 SHARDING_SHARDY_OPEN};
    int32_t chosen = 0, spelling = 0;
    TRY(option_parse_choice("format", format, target_name, TARGET_NAMES, &chosen, error));
    self->target = target_of_name(chosen);
    self->format = &formats[self->target];
    self->spelling = self->format->spelling;
    self->as_json = option_has(options, "json");
    if (!option_has(options, "spelling")) return AM_OK;
    option_choice(options, "spelling", &spelling);
    if (self->format->spelling_count == 0)
        return am_fail(error, AM_ERROR_USAGE, "", "--spelling is for --format hlo and shardy");
    int32_t first = self->format->first_spelling;
    if (spelling < first || spelling >= first + self->format->spelling_count)
        return am_fail(error, AM_ERROR_USAGE, "", "--spelling %s: expected %s or %s with --format %s",
                       option_spelling_name(spelling), option_spelling_name(first),
                       option_spelling_name(first + 1), target_name(chosen));
    self->spelling = spellings[spelling];
    return AM_OK;
}

AmStatus export_options_check(const AmOptions *options, AmError *error) {
    const char *format = option_text(options, "format");
    Export self = {0};
    return format ? read_settings(&self, format, options, error) : AM_OK;
}

AmStatus am_export(const AmPlan *plan, const char *target, const AmOptions *options,
                   const AmCallbacks *callbacks, char **text, size_t *bytes, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    Export self = {.from = plan, .callbacks = &own};
    api_begin(error);
    TRY(api_require(text, "text", error));
    *text = NULL;
    TRY(api_require(plan, "plan", error));
    TRY(api_require(target, "target", error));
    TRY(api_check_options(options, AM_COMMAND_EXPORT, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    TRY(read_settings(&self, target, options, error));
    API_IN_C_LOCALE(status, export_plan(&self, options, text, bytes, error), error);
    arena_free(&self.arena);
    return status;
}
