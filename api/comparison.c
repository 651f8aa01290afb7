/* am_compare(): the predicted timeline of a plan beside the trace of a run.
 *
 * Reads the trace, simulates one step of the plan with its operators (api/simulation.c), and has both
 * compared operator by operator (cost/simulate/trace_error.h). The result is text or JSON.
 */
#include <stdlib.h>

#include "api/handles.h"
#include "api/options.h"
#include "api/simulate_trace.h"
#include "cost/simulate/trace_error.h"

/* The handles of a comparison under way. */
typedef struct ComparisonHandles {
    AmSimulation simulation;
    Arena arena; /* of the events: a simulation releases what came into its own while it ran */
    Text text;
} ComparisonHandles;

static AmStatus compare(ComparisonHandles *self, const AmPlan *plan, const AmCluster *cluster,
                        const AmOptions *options, AmFormat format, const AmCallbacks *callbacks,
                        AmError *error) {
    const char *path = option_text(options, "trace");
    TraceEvents predicted = {.arena = &self->arena}, measured = {.arena = &self->arena};
    const SimulateOutput output = {.events = &predicted};
    TraceError *result;
    TRY(trace_events_read(&measured, path, error));
    TRY(api_simulate(&self->simulation, plan, cluster, options, &output, callbacks, error));
    const Simulation *found = self->simulation.simulation;
    TRY(trace_error_find(&result, &self->arena, &predicted, &measured, path, error));
    for (int32_t d = 0; d < result->device_count; d++) result->devices[d].name = found->devices[d].name;
    if (format == AM_FORMAT_JSON)
        return api_append_json(&self->text,
                               trace_error_to_json(result, found->module_name, found->cluster_name),
                               JSON_STYLE_COMPACT, error);
    trace_error_print(&self->text, result, found->module_name, found->cluster_name);
    return AM_OK;
}

AmStatus am_compare(const AmPlan *plan, const AmCluster *cluster, AmFormat format, const AmOptions *options,
                    const AmCallbacks *callbacks, char **text, size_t *bytes, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    api_begin(error);
    TRY(api_require(text, "text", error));
    *text = NULL;
    TRY(api_require(plan, "plan", error));
    TRY(api_check_options(options, AM_COMMAND_COMPARE, error));
    if (!option_text(options, "trace"))
        return am_fail(error, AM_ERROR_USAGE, "", "%strace RUN.json is required",
                       options ? options->dashes : "");
    TRY(api_copy_callbacks(&own, callbacks, error));
    TRY(api_check_format(format, false, error));
    ComparisonHandles *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->text.is_styled = format == AM_FORMAT_TERMINAL;
    API_IN_C_LOCALE(status, compare(self, plan, cluster, options, format, &own, error), error);
    status = api_end_text(status, text, bytes, &self->text, error);
    arena_free(&self->arena);
    api_close_simulation(&self->simulation);
    free(self);
    return status;
}
