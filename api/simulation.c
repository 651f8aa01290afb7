/* am_simulate(), its accessors and am_simulation_print(): a predicted step of a plan.
 *
 * api_simulate() is shared with am_compare(): it chooses the cluster (the caller's, or that of the plan
 * file), reads slowed devices and events from the options, and calls simulate_plan() of cost/simulate.
 */
#include <stdlib.h>
#include <string.h>

#include "api/handles.h"
#include "api/options.h"
#include "api/simulate_trace.h"

static AmStatus read_settings(SimulationOptions *settings, Arena *arena, const AmOptions *options,
                              const Cluster *cluster, AmError *error) {
    int64_t seed = 0;
    *settings = (SimulationOptions){.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION, .with_details = true};
    option_number(options, "memory-fraction", &settings->memory_fraction);
    option_number(options, "jitter", &settings->jitter);
    option_integer(options, "seed", &seed);
    settings->seed = (uint64_t)seed;
    /* "DEVICE=FACTOR,...": the factor by which a device is slower than its type */
    const char *text = option_text(options, "slow");
    if (!text) return AM_OK;
    double *slowdowns = ARENA_ARRAY(arena, double, cluster->device_count);
    if (!slowdowns) return am_fail_memory(error, cluster->device_count);
    for (const char *at = text; at;) {
        char *end;
        long device = strtol(at, &end, 10);
        bool has_factor = end != at && *end == '=' && device >= 0 && device < cluster->device_count;
        double factor = has_factor ? strtod(at = end + 1, &end) : 0;
        if (!has_factor || end == at || !(factor >= 1e-3 && factor <= 1e3) || (*end != ',' && *end != '\0'))
            return am_fail(
                error, AM_ERROR_USAGE, "",
                "%sslow %s: expected DEVICE=FACTOR,... with devices below %d and factors from 0.001 to 1000",
                options->dashes, text, cluster->device_count);
        if (slowdowns[device] != 0)
            return am_fail(error, AM_ERROR_USAGE, "", "%sslow %s: device %ld is named twice", options->dashes,
                           text, device);
        slowdowns[device] = factor;
        at = *end == ',' ? end + 1 : NULL;
    }
    for (int32_t d = 0; d < cluster->device_count; d++)
        if (slowdowns[d] == 0) slowdowns[d] = 1;
    settings->slowdowns = slowdowns;
    return AM_OK;
}

/* Returns the file of the plan, for errors. */
static const char *source_of(const AmPlan *plan) {
    return plan->plan->source ? plan->plan->source : "the plan";
}

/* Finds the cluster to simulate on: the caller's or the plan's own, copied if it gets a profile. */
static AmStatus find_cluster(const Cluster **found, AmSimulation *self, const AmPlan *plan,
                             const AmCluster *cluster, const AmOptions *options, AmError *error) {
    const char *profile = option_text(options, "profile");
    *found = cluster ? cluster->cluster : NULL;
    if (cluster && !profile) return AM_OK;
    json_t *description = cluster ? cluster->cluster->description : plan->plan->cluster_description;
    TRY(cluster_from_json(&self->cluster, &self->arena, description,
                          cluster ? cluster->cluster->name : source_of(plan), error));
    *found = self->cluster;
    if (!profile) return AM_OK;
    TRY(profile_open(&self->profile, error));
    TRY(profile_read(self->profile, profile, error));
    return profile_attach(self->profile, self->cluster, profile, error);
}

AmStatus api_simulate(AmSimulation *self, const AmPlan *plan, const AmCluster *cluster,
                      const AmOptions *options, const SimulateOutput *output, const AmCallbacks *callbacks,
                      AmError *error) {
    const Cluster *on;
    SimulationOptions settings;
    SimulateTrace trace = {0};
    const SimulationObserver observer = {simulate_trace_slice, &trace};
    const StopSignal stop = {.interrupted = callbacks->cancel};
    TRY(find_cluster(&on, self, plan, cluster, options, error));
    TRY(read_settings(&settings, &self->arena, options, on, error));
    settings.stop = callbacks->cancel ? &stop : NULL;
    if (output->derives) settings.collectives = &self->collectives;
    if (output->path || output->events) {
        settings.observer = &observer;
        TRY(simulate_trace_open(&trace, &self->arena, output->path, output->events,
                                plan_context_used(plan->plan, plan->primary), plan->plan, error));
    }
    AmStatus status =
        simulate_plan(&self->simulation, &self->arena, plan->primary, plan->plan, on, &settings, error);
    if (status == AM_INTERRUPTED) am_fail(error, AM_INTERRUPTED, "", "interrupted");
    if (status != AM_OK) am_error_source(error, source_of(plan));
    if (status == AM_OK && settings.observer) status = simulate_trace_end(&trace, self->simulation);
    simulate_trace_close(&trace);
    return status;
}

AmStatus am_simulate(AmSimulation **simulation, const AmPlan *plan, const AmCluster *cluster,
                     const AmOptions *options, const AmCallbacks *callbacks, AmError *error) {
    AmCallbacks own;
    api_begin(error);
    TRY(api_require(simulation, "simulation", error));
    *simulation = NULL;
    TRY(api_require(plan, "plan", error));
    TRY(api_check_options(options, AM_COMMAND_SIMULATE, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    AmSimulation *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    AmStatus status;
    const SimulateOutput output = {.path = option_text(options, "trace"),
                                   .derives = option_has(options, "verbose")};
    API_IN_C_LOCALE(status, api_simulate(self, plan, cluster, options, &output, &own, error), error);
    if (status != AM_OK) {
        am_simulation_free(self);
        return status;
    }
    self->carried = api_carried_to_json(plan);
    api_note_carried(&own, plan);
    api_warn(&own, &self->simulation->warnings);
    *simulation = self;
    return AM_OK;
}

void api_close_simulation(AmSimulation *simulation) {
    text_free(&simulation->collectives);
    json_decref(simulation->carried);
    cluster_free(simulation->cluster);
    profile_close(simulation->profile);
    arena_free(&simulation->arena);
}

void am_simulation_free(AmSimulation *simulation) {
    if (!simulation) return;
    api_close_simulation(simulation);
    free(simulation);
}

double am_simulation_step_seconds(const AmSimulation *simulation) {
    return simulation->simulation->step_seconds;
}

int am_simulation_fits(const AmSimulation *simulation) {
    return simulation->simulation->fit.fits;
}

int32_t am_simulation_device_count(const AmSimulation *simulation) {
    return simulation->simulation->device_count;
}

AmStatus am_simulation_device(const AmSimulation *simulation, int32_t k, AmDevice *facts, AmError *error) {
    api_begin(error);
    TRY(api_require(simulation, "simulation", error));
    TRY(api_require(facts, "facts", error));
    TRY(api_check_index(k, simulation->simulation->device_count, "device", error));
    const SimulatedDevice *from = &simulation->simulation->devices[k];
    const AmDevice all = {.device = from->device,
                          .stage = from->stage,
                          .peak_bytes = from->needed_bytes,
                          .weights_bytes = from->memory.weights_bytes,
                          .gradients_bytes = from->memory.gradients_bytes,
                          .optimizer_bytes = from->memory.optimizer_bytes,
                          .activation_bytes = from->memory.activation_bytes,
                          .slot_bytes = from->channel_bytes,
                          .compute_seconds = from->compute_seconds,
                          .communication_seconds = from->communication_seconds,
                          .idle_seconds = from->idle_seconds,
                          .host_bytes = from->memory.host_bytes};
    return api_copy_facts(facts, facts->size, &all, sizeof all, error);
}

/* Returns the lines of a text as an array of strings. */
static json_t *lines_to_json(const char *text) {
    json_t *lines = json_array();
    while (*text) {
        size_t length = strcspn(text, "\n");
        json_array_append_new(lines, json_stringn(text, length));
        text += length + (text[length] == '\n');
    }
    return lines;
}

static AmStatus append_simulation(Text *text, const AmSimulation *self, AmFormat format, AmError *error) {
    if (format == AM_FORMAT_JSON) {
        json_t *json = simulation_to_json(self->simulation);
        if (json && self->collectives.data)
            json_object_set_new(json, "derivation", lines_to_json(self->collectives.data));
        if (self->carried) json_object_set(json, "carried", self->carried);
        return api_append_json(text, json, JSON_STYLE_COMPACT, error);
    }
    simulation_print(text, self->simulation);
    if (self->collectives.data) text_append_string(text, self->collectives.data);
    return AM_OK;
}

AmStatus am_simulation_print(const AmSimulation *simulation, AmFormat format, char **text, size_t *bytes,
                             AmError *error) {
    api_begin(error);
    TRY(api_require(text, "text", error));
    *text = NULL;
    TRY(api_require(simulation, "simulation", error));
    TRY(api_check_format(format, false, error));
    AmStatus status;
    Text all = {.is_styled = format == AM_FORMAT_TERMINAL};
    API_IN_C_LOCALE(status, append_simulation(&all, simulation, format, error), error);
    return api_end_text(status, text, bytes, &all, error);
}
