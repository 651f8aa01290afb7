/* am_sweep(): the strategies of a module on a cluster, as numbers, text or JSON. Infeasible strategies are
 * listed below the table; numbers of micro-batches with the same reason share a line. */
#include <stdlib.h>
#include <string.h>

#include "api/handles.h"
#include "api/options.h"
#include "api/work.h"
#include "planners/baselines/degree_sweep.h"

struct AmSweep {
    Arena arena;
    AmModule *module;
    Cluster *cluster; /* own: rows and plans refer to it; with measured operators of the option "profile" */
    Profile *profile; /* or NULL */
    SweepOptions options;
    Sweep sweep;
};

static AmStatus read_options(AmSweep *self, const AmCluster *cluster, const AmOptions *options,
                             AmError *error) {
    const char *profile = option_text(options, "profile");
    int64_t micro_batches = 0;
    self->options = (SweepOptions){.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION,
                                   .relaxations = option_choices(options, "relax"),
                                   .schedules = option_choices(options, "schedule")};
    option_number(options, "memory-fraction", &self->options.memory_fraction);
    option_integer(options, "micro-batches", &micro_batches);
    self->options.micro_batches = (int32_t)micro_batches;
    TRY(cluster_from_json(&self->cluster, &self->arena, cluster->cluster->description, cluster->cluster->name,
                          error));
    if (!profile) return AM_OK;
    TRY(profile_open(&self->profile, error));
    TRY(profile_read(self->profile, profile, error));
    return profile_attach(self->profile, self->cluster, profile, error);
}

static AmStatus run_sweep(ApiWork *work, AmError *error) {
    AmSweep *self = work->user;
    self->options.watch = work->watch;
    self->options.interrupted = api_work_flag(work);
    AmStatus status =
        sweep(&self->sweep, &self->arena, self->module->context, self->cluster, &self->options, error);
    self->options.watch = NULL;
    self->options.interrupted = NULL;
    return status;
}

AmStatus am_sweep(AmSweep **swept, AmModule *module, const AmCluster *cluster, const AmOptions *options,
                  const AmCallbacks *callbacks, AmError *error) {
    AmCallbacks own;
    AmStatus status;
    api_begin(error);
    TRY(api_require(swept, "sweep", error));
    *swept = NULL;
    TRY(api_require(module, "module", error));
    TRY(api_require(cluster, "cluster", error));
    TRY(api_check_options(options, AM_COMMAND_SWEEP, error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    TRY(api_check_module(module, error));
    TRY(api_check_arrays(module, error));
    AmSweep *self = calloc(1, sizeof *self);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    self->module = module;
    ApiWork work = {.callbacks = &own, .run = run_sweep, .user = self};
    API_IN_C_LOCALE(status, read_options(self, cluster, options, error), error);
    if (status == AM_OK) status = api_work_run(&work, 0, error);
    if (status == AM_OK) *swept = self;
    else am_sweep_free(self);
    return status;
}

void am_sweep_free(AmSweep *self) {
    if (!self) return;
    cluster_free(self->cluster);
    profile_close(self->profile);
    arena_free(&self->arena);
    free(self);
}

int32_t am_sweep_count(const AmSweep *self) {
    return self ? self->sweep.row_count : 0;
}

AmStatus am_sweep_strategy(const AmSweep *self, int32_t k, AmStrategy *facts, AmError *error) {
    api_begin(error);
    TRY(api_require(self, "sweep", error));
    TRY(api_require(facts, "facts", error));
    TRY(api_check_index(k, self->sweep.row_count, "strategy", error));
    const SweepRow *row = &self->sweep.rows[k];
    const AmStrategy all = {.data = row->data,
                            .tensor = row->tensor,
                            .stages = row->stages,
                            .micro_batches = row->micro_batches,
                            .schedule = row->schedule,
                            .reason = row->reason,
                            .step_seconds = row->step_seconds,
                            .examples_per_second = row->examples_per_second,
                            .peak_bytes = row->peak_bytes,
                            .fits = row->fits};
    return api_copy_facts(facts, facts->size, &all, sizeof all, error);
}

AmStatus am_sweep_plan(AmPlan **plan, const AmSweep *self, int32_t k, AmError *error) {
    AmStatus status;
    api_begin(error);
    TRY(api_require(plan, "plan", error));
    *plan = NULL;
    TRY(api_require(self, "sweep", error));
    TRY(api_check_index(k, self->sweep.row_count, "strategy", error));
    const SweepRow *row = &self->sweep.rows[k];
    if (row->reason) return am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", row->reason);
    AmPlan *made = api_new_plan(self->module, error);
    if (!made) return AM_ERROR_INTERNAL;
    status = cluster_from_json(&made->cluster, &made->arena, self->cluster->description, self->cluster->name,
                               error);
    if (status == AM_OK && self->profile)
        status = profile_attach(self->profile, made->cluster, "the profile", error);
    if (status == AM_OK)
        API_IN_C_LOCALE(
            status,
            sweep_plan(&made->plan, &made->arena, made->primary, made->cluster, &self->options, row, error),
            error);
    if (status == AM_OK) *plan = made;
    else am_plan_free(made);
    return status;
}

/* ---- text ---- */

/* Rows `from` and after have reasons and stand by degrees. */
static void append_impossible(Text *text, const Sweep *sweep, int32_t from) {
    Text rows = {0};
    text_append_string(&rows, "data\ttensor\tstages\tmicro-batches\timpossible\n");
    for (int32_t k = from; k < sweep->row_count;) {
        const SweepRow *first = &sweep->rows[k];
        text_append(&rows, "%d\t%d\t%d\t%d", first->data, first->tensor, first->stages, first->micro_batches);
        for (k++; k < sweep->row_count; k++) { /* rows that differ in micro-batches alone */
            const SweepRow *row = &sweep->rows[k];
            if (row->data != first->data || row->tensor != first->tensor || row->stages != first->stages ||
                strcmp(row->reason, first->reason) != 0)
                break;
            text_append(&rows, ", %d", row->micro_batches);
        }
        text_append(&rows, "\t%s\n", first->reason);
    }
    text_append_string(text, "\n");
    if (rows.failed) text->failed = true;
    else text_append_table(text, rows.data);
    text_free(&rows);
}

static void print(Text *text, const Sweep *sweep) {
    Text rows = {.is_styled = text->is_styled};
    int32_t simulated = 0;
    text_append_string(
        &rows, "data\ttensor\tstages\tmicro-batches\tschedule\tstep\texamples/s\tpeak memory\tfits\n");
    for (; simulated < sweep->row_count && !sweep->rows[simulated].reason; simulated++) {
        const SweepRow *row = &sweep->rows[simulated];
        text_append(&rows, "%d\t%d\t%d\t%d\t%s\t", row->data, row->tensor, row->stages, row->micro_batches,
                    row->schedule);
        text_append_seconds(&rows, row->step_seconds);
        text_append_string(&rows, "\t");
        if (row->examples_per_second > 0) text_append_count(&rows, row->examples_per_second);
        text_append_string(&rows, "\t");
        text_append_bytes_size(&rows, (double)row->peak_bytes);
        text_append_string(&rows, "\t");
        if (!row->fits) text_append_style(&rows, TEXT_RED);
        text_append_string(&rows, row->fits ? "yes" : "no");
        if (!row->fits) text_append_style(&rows, TEXT_PLAIN);
        text_append_string(&rows, "\n");
    }
    text_append(text, "%s on cluster %s, %d devices, batch of %lld\n\n", sweep->module_name,
                sweep->cluster_name, sweep->device_count, (long long)sweep->batch);
    if (rows.failed) text->failed = true;
    else text_append_table(text, rows.data);
    text_free(&rows);
    if (simulated < sweep->row_count) append_impossible(text, sweep, simulated);
    if (sweep->refusal) text_append(text, "\nno %d micro-batches: %s\n", (int)sweep->refused, sweep->refusal);
    text_append(text, "\n%d strategies simulated in ", simulated);
    text_append_seconds(text, sweep->wall_seconds);
    text_append_string(text, "\n");
}

/* ---- JSON ---- */

static json_t *row_to_json(const SweepRow *row) {
    json_t *object =
        json_pack("{s:i, s:i, s:i, s:i, s:s}", "data", row->data, "tensor", row->tensor, "stages",
                  row->stages, "micro_batches", row->micro_batches, "schedule", row->schedule);
    if (!object) return NULL;
    if (row->reason) {
        json_object_set_new(object, "reason", json_string(row->reason));
        return object;
    }
    json_object_set_new(object, "step_seconds", json_real(row->step_seconds));
    if (row->examples_per_second > 0)
        json_object_set_new(object, "examples_per_second", json_real(row->examples_per_second));
    json_object_set_new(object, "peak_bytes", json_integer(row->peak_bytes));
    json_object_set_new(object, "fits", json_boolean(row->fits));
    return object;
}

static json_t *to_json(const Sweep *sweep) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < sweep->row_count; k++) json_array_append_new(rows, row_to_json(&sweep->rows[k]));
    return json_pack("{s:s, s:s, s:s, s:i, s:I, s:o, s:s?, s:{s:f, s:f, s:f, s:f, s:f, s:f}}", "format",
                     "automap-sweep-1", "module", sweep->module_name, "cluster", sweep->cluster_name,
                     "devices", sweep->device_count, "batch", (json_int_t)sweep->batch, "strategies", rows,
                     "refusal", sweep->refusal, "seconds", "wall", sweep->wall_seconds, "split",
                     sweep->seconds.split, "baseline", sweep->seconds.baseline, "lower", sweep->seconds.lower,
                     "price", sweep->seconds.price, "simulate", sweep->seconds.simulate);
}

/* ---- both ---- */

static AmStatus append_sweep(Text *text, const AmSweep *self, AmFormat format, AmError *error) {
    if (format != AM_FORMAT_JSON) {
        print(text, &self->sweep);
        return AM_OK;
    }
    return api_append_json(text, to_json(&self->sweep), JSON_STYLE_COMPACT, error);
}

AmStatus am_sweep_print(const AmSweep *self, AmFormat format, char **text, size_t *bytes, AmError *error) {
    api_begin(error);
    TRY(api_require(text, "text", error));
    *text = NULL;
    TRY(api_require(self, "sweep", error));
    TRY(api_check_format(format, false, error));
    AmStatus status;
    Text all = {.is_styled = format == AM_FORMAT_TERMINAL};
    API_IN_C_LOCALE(status, append_sweep(&all, self, format, error), error);
    return api_end_text(status, text, bytes, &all, error);
}
