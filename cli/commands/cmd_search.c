/* automap search: from a module and a cluster to a plan file. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/option_rows.h"
#include "api/search_settings.h"
#include "base/files/file.h"
#include "base/suggest.h"
#include "base/system/clock.h"
#include "cli/commands/search_progress.h"
#include "cli/common.h"
#include "cli/files.h"
#include "cli/host.h"
#include "cli/parameters.h"
#include "cli/terminal.h"
#include "cost/operator/profile.h"
#include "cost/simulate/simulate.h"
#include "lowering/plan_file/plan_parts.h"
#include "planners/automap_paper/paper_search.h"
#include "planners/infeasible.h"
#include "planners/plan_search.h"
#include "propagation/stages/stages.h"

/* Everything that one search needs and leaves. */
typedef struct Searched {
    Arena arena;
    AmModule *module;
    AmCluster *cluster;
    AmOptions *options;
    AmPlan *plan;
    double memory_fraction;
    const char *plan_file;
    double import_seconds;
    Text log;
    SearchProgressLine progress;
    const Cli *cli;
} Searched;

/* MODEL's stem in its folder: model.hlo.pb.zst gives model.plan.json. */
static const char *default_plan_file(Arena *arena, const char *model) {
    static const char *const suffixes[] = {".gz", ".zst", ".pb", ".json", ".txt", ".hlo"};
    if (strcmp(model, "-") == 0) return "model.plan.json";
    char *stem = arena_copy_string(arena, model);
    for (size_t k = 0; stem && k < sizeof suffixes / sizeof suffixes[0]; k++) {
        size_t length = strlen(stem), tail = strlen(suffixes[k]);
        if (length > tail && stem[length - tail - 1] != '/' && strcmp(stem + length - tail, suffixes[k]) == 0)
            stem[length - tail] = '\0';
    }
    return stem ? arena_format(arena, "%s.plan.json", stem) : NULL;
}

static double gap_of(const Plan *plan) {
    return plan->predicted_step_seconds / plan->bound_seconds - 1;
}

static json_t *number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* "[data,-,model]" per parameter; "" where it is replicated. */
static AmStatus sharding_columns(const char ***columns, Searched *self, AmError *error) {
    int32_t count = am_plan_parameter_count(self->plan);
    *columns = ARENA_ARRAY(&self->arena, const char *, count + 1);
    if (!*columns) return am_fail_memory(error, count);
    for (int32_t p = 0; p < count; p++) {
        AmPlanParameter row = {.size = sizeof row};
        TRY(am_plan_parameter(self->plan, p, &row, error));
        bool is_split = false;
        for (int32_t d = 0; d < row.rank; d++) is_split = is_split || *row.axes[d];
        (*columns)[p] = is_split ? row.sharding : "";
    }
    return AM_OK;
}

static void print_times(Text *text, const Searched *self) {
    const Plan *plan = self->plan->plan;
    Text rows = {.is_styled = text->is_styled};
    text_append_string(&rows, "plan\tstep time\trelative\tremark\n");
    text_append_style(&rows, TEXT_GREEN);
    text_append_string(&rows, "this one\t");
    text_append_seconds(&rows, plan->predicted_step_seconds);
    text_append_string(&rows, "\t1.000");
    text_append_style(&rows, TEXT_PLAIN);
    text_append_string(&rows, "\t\n");
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *baseline = &self->plan->result.baselines[e];
        text_append(&rows, "%s\t", baseline_name((Baseline)e));
        if (isnan(baseline->seconds)) {
            text_append(&rows, "-\t-\t%s\n", baseline->reason ? baseline->reason : "");
        } else {
            text_append_seconds(&rows, baseline->seconds);
            text_append(&rows, "\t%.3f\t\n", baseline->seconds / plan->predicted_step_seconds);
        }
    }
    text_append_table(text, rows.data);
    text_free(&rows);
}

/* The need of a device, with its transfer slots, and its memory. */
typedef struct DeviceMemory {
    const PlanDevicePrediction *device;
    int64_t needed_bytes, limit_bytes, memory_bytes;
} DeviceMemory;

static DeviceMemory memory_of(const Searched *self, const PlanDevicePrediction *device, int32_t in_cluster) {
    int64_t needed = device->peak_bytes + device->channel_bytes;
    const Cluster *cluster = self->cluster->cluster;
    const MemoryFit fit = memory_fit(needed, cluster, &in_cluster, 1, self->memory_fraction);
    return (DeviceMemory){device, needed, fit.limit_bytes,
                          cluster_device_type(cluster, in_cluster)->memory_bytes};
}

/* The device with the largest fraction of used memory, as in simulate; `only`: of this stage, or
 * -1. */
static DeviceMemory fullest_device(const Searched *self, int32_t only) {
    const Plan *plan = self->plan->plan;
    const PlanDevicePrediction *device = plan->predicted;
    DeviceMemory fullest = {0};
    double most = -1;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++, device++) {
            const DeviceMemory memory = memory_of(self, device, plan->stages[s].devices[d]);
            double fullness = (double)memory.needed_bytes / (double)memory.memory_bytes;
            if ((only >= 0 && only != s) || fullness <= most) continue;
            most = fullness;
            fullest = memory;
        }
    return fullest;
}

static void print_memory(Text *text, const Searched *self) {
    const DeviceMemory memory = fullest_device(self, -1);
    const PlanDevicePrediction *device = memory.device;
    const struct {
        const char *name;
        int64_t bytes;
    } parts[] = {{"weights", device->weights_bytes},
                 {"gradients", device->gradients_bytes},
                 {"optimizer", device->optimizer_bytes},
                 {"activations", device->activation_bytes}};
    text_append_string(text, "memory  ");
    memory_append_use(text, memory.needed_bytes, memory.limit_bytes, memory.memory_bytes);
    text_append_string(text, " at the peak of the fullest device:");
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
        text_append(text, "%s %s ", k ? "," : "", parts[k].name);
        text_append_bytes_size(text, (double)parts[k].bytes);
    }
    if (device->channel_bytes > 0) {
        text_append_string(text, ", transfer slots ");
        text_append_bytes_size(text, (double)device->channel_bytes);
    }
    text_append_string(text, "\n");
}

static void print_mesh(Text *text, const Mesh *mesh) {
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        text_append(text, "%s%s=%d", axis ? " " : "", mesh->axes[axis].name, mesh->axes[axis].size);
}

/* Devices that follow one another as their first and last. */
static void print_devices(Text *text, const PlanStage *stage) {
    for (int32_t d = 0, first = 0, count = stage->mesh.device_count; d < count; d++) {
        if (d + 1 < count && stage->devices[d + 1] == stage->devices[d] + 1) continue;
        text_append(text, "%s%d", first ? "," : "", stage->devices[first]);
        if (d > first) text_append(text, "-%d", stage->devices[d]);
        first = d + 1;
    }
}

/* Returns ZeRO's level, the highest of all axes: 1 shards the optimizer, 2 gradients too, 3 weights too. */
static int32_t zero_level(const PlanStage *stage) {
    static const int32_t levels[PLAN_ENTRY_KINDS] = {
        [PLAN_COMPUTE] = 0, [PLAN_OPTIMIZER] = 1, [PLAN_GRADIENTS] = 2, [PLAN_WEIGHTS] = 3};
    PlanEntryKind most = PLAN_COMPUTE;
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->lists[axis].count; e++) {
            PlanEntryKind kind = stage->lists[axis].entries[e].kind;
            if (kind != PLAN_COMPUTE && (most == PLAN_COMPUTE || kind < most)) most = kind;
        }
    return levels[most];
}

/* One row for each stage of several. */
static void print_stages(Text *text, const Searched *self) {
    const Plan *plan = self->plan->plan;
    Text rows = {0};
    text_append_string(&rows, "stage\tdevices\tmesh\tZeRO\tpeak\tbusy\n");
    for (int32_t s = 0, first = 0; s < plan->stage_count; s++) {
        const PlanStage *stage = &plan->stages[s];
        double busy = 0;
        for (int32_t d = first; d < first + stage->mesh.device_count; d++)
            busy = fmax(busy, plan->predicted[d].compute_seconds);
        first += stage->mesh.device_count;
        text_append(&rows, "%d\t", s);
        print_devices(&rows, stage);
        text_append_string(&rows, "\t");
        print_mesh(&rows, &stage->mesh);
        text_append(&rows, "\t%d\t", zero_level(stage));
        text_append_bytes_size(&rows, (double)fullest_device(self, s).needed_bytes);
        text_append(&rows, "\t%.0f %%\n", 100 * simulation_busy_fraction(busy, plan->predicted_step_seconds));
    }
    text_append_table(text, rows.data);
    text_free(&rows);
}

/* The largest gap that is informative about the plan. */
#define MOST_USEFUL_GAP 10.0

static void print_bound(Text *text, const Plan *plan) {
    bool is_useful = gap_of(plan) <= MOST_USEFUL_GAP;
    text_append_string(text, "bound   ");
    if (!is_useful) text_append_string(text, "no useful bound is known: the work of every plan takes ");
    text_append_seconds(text, plan->bound_seconds);
    if (is_useful) text_append(text, " (%s), gap %.2f %%\n", plan->bound, 100 * gap_of(plan));
    else text_append_string(text, ", and latency and waiting are not bounded\n");
}

/* The part of the search that found the plan, and the best plans of the other parts. */
static void print_origin(Text *text, const Plan *plan) {
    bool is_first = true;
    text_append(text, "found   by %s", plan_origin_name(plan->origin));
    for (int32_t k = 1; k < PLAN_ORIGIN_COUNT; k++) {
        if (k == (int32_t)plan->origin || !(plan->found_seconds[k] > 0)) continue;
        text_append(text, "%s%s ", is_first ? "; best of the others: " : ", ",
                    plan_origin_name((PlanOrigin)k));
        text_append_seconds(text, plan->found_seconds[k]);
        is_first = false;
    }
    text_append_string(text, "\n");
}

/* The price of --for; without it, the fastest plan that was found for each target. */
static void print_targets(Text *text, const Searched *self) {
    const AmPlan *plan = self->plan;
    if (plan->free_seconds > 0) {
        double seconds = plan->plan->predicted_step_seconds;
        text_append_string(text, "target  without --for ");
        text_append_seconds(text, plan->free_seconds);
        double price = seconds / plan->free_seconds - 1;
        if (!plan->lack) text_append_string(text, ", and the plan is for the target, too\n");
        else if (price <= 0) text_append(text, ", which is no better; %s\n", plan->lack);
        else text_append(text, ": %.1f %% is the price; %s\n", 100 * price, plan->lack);
        return;
    }
    if (!plan->on[TARGET_AUTOMAP]) return;
    text_append_string(text, "runs on ");
    for (int32_t target = 0; target < TARGET_COUNT; target++) {
        const Plan *on = plan->on[target];
        text_append(text, "%s%s ", target ? ", " : "", target_row((Target)target)->name);
        if (on) text_append_seconds(text, on->predicted_step_seconds);
        else text_append_string(text, "-");
    }
    text_append_string(text, " (of the plans priced; --for TARGET searches for one)\n");
}

static AmStatus print_summary(Text *text, Searched *self, bool is_verbose, AmError *error) {
    const Plan *plan = self->plan->plan;
    const char **columns;
    TRY(sharding_columns(&columns, self, error));
    text_append_style(text, TEXT_BOLD);
    text_append(text, "%s on cluster %s, ", plan->module_name, plan->cluster_name);
    if (plan->stage_count > 1) {
        text_append(text, "%d stages", plan->stage_count);
    } else {
        text_append_string(text, "mesh ");
        print_mesh(text, &plan->stages[0].mesh);
    }
    if (plan->micro_batches > 1) text_append(text, ", %d micro-batches", plan->micro_batches);
    if (plan->stage_count > 1) text_append(text, ", schedule %s", plan->schedule);
    if (self->plan->whole->unfused) text_append_string(text, ", fused attention");
    if (self->plan->whole->rewriting.undoes_recomputation)
        text_append_string(text, ", recomputation of the source undone");
    text_append_style(text, TEXT_PLAIN);
    for (int32_t k = 0; k < plan->relaxation_count; k++)
        text_append(text, "%s%s", k ? ", " : "\nrelaxed: ", plan->relaxations[k]);
    text_append_string(text, "\n\n");
    if (plan->stage_count > 1) {
        print_stages(text, self);
        text_append_string(text, "\n");
    }
    parameters_print(text, self->module->context, columns, is_verbose);
    text_append_string(text, "\n");
    if (self->plan->result.paper) {
        text_append(text, "step    ");
        text_append_seconds(text, plan->predicted_step_seconds);
        text_append_string(text, "\n");
        paper_report_print(text, self->plan->result.paper);
    } else {
        print_times(text, self);
        text_append_string(text, "\n");
    }
    print_memory(text, self);
    if (!isnan(plan->bound_seconds)) {
        print_bound(text, plan);
    }
    if (plan->origin != PLAN_ORIGIN_UNKNOWN) print_origin(text, plan);
    print_targets(text, self);
    if (!isnan(self->plan->result.model_gap)) {
        text_append(text, "model   at most %.2f %% over the best sum of computing and communication\n",
                    100 * self->plan->result.model_gap);
    }
    return AM_OK;
}

static json_t *devices_to_json(Searched *self) {
    const Plan *plan = self->plan->plan;
    json_t *devices = json_array();
    for (int32_t d = 0, stage = 0, at = 0; d < plan->device_count; d++, at++) {
        const PlanDevicePrediction *device = &plan->predicted[d];
        if (at == plan->stages[stage].mesh.device_count) {
            stage++;
            at = 0;
        }
        double busy = simulation_busy_fraction(device->compute_seconds, plan->predicted_step_seconds);
        const DeviceMemory memory = memory_of(self, device, plan->stages[stage].devices[at]);
        json_array_append_new(devices,
                              json_pack("{s:s, s:I, s:I, s:I, s:I, s:f}", "name",
                                        cluster_device_name(self->cluster->cluster, &self->arena,
                                                            plan->stages[stage].devices[at]),
                                        "peak_bytes", (json_int_t)device->peak_bytes, "channel_bytes",
                                        (json_int_t)device->channel_bytes, "needed_bytes",
                                        (json_int_t)memory.needed_bytes, "limit_bytes",
                                        (json_int_t)memory.limit_bytes, "busy_fraction", busy));
    }
    return devices;
}

static json_t *result_to_json(Searched *self, const char *summary) {
    const Plan *plan = self->plan->plan;
    json_t *baselines = json_object(), *reasons = json_object();
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *baseline = &self->plan->result.baselines[e];
        json_object_set_new(baselines, baseline_name((Baseline)e), number_or_null(baseline->seconds));
        if (baseline->reason)
            json_object_set_new(reasons, baseline_name((Baseline)e), plan_string_to_json(baseline->reason));
    }
    json_t *root = json_pack(
        "{s:s, s:o, s:f, s:o, s:s?, s:o, s:o, s:s, s:s, s:I, s:f, s:f, s:o, s:o, s:o, s:o}", "format",
        "automap-search-1", "plan_file", plan_string_to_json(self->plan_file), "step_seconds",
        plan->predicted_step_seconds, "bound_seconds", number_or_null(plan->bound_seconds), "bound",
        plan->bound, "gap", number_or_null(gap_of(plan)), "model_gap",
        number_or_null(self->plan->result.model_gap), "searcher", plan->searcher, "space", plan->space,
        "evaluations", (json_int_t)self->plan->result.evaluations, "search_seconds",
        self->plan->result.search_seconds, "import_seconds", self->import_seconds, "baselines", baselines,
        "baseline_reasons", reasons, "devices", devices_to_json(self), "summary",
        plan_string_to_json(summary));
    json_t *found = root ? json_object() : NULL;
    for (int32_t k = 1; k < PLAN_ORIGIN_COUNT && found; k++)
        if (plan->found_seconds[k] > 0)
            json_object_set_new(found, plan_origin_name((PlanOrigin)k), json_real(plan->found_seconds[k]));
    json_t *targets = root ? json_object() : NULL;
    for (int32_t target = 0; target < TARGET_COUNT && targets; target++) {
        const Plan *on = self->plan->on[target];
        if (self->plan->on[TARGET_AUTOMAP])
            json_object_set_new(targets, target_row((Target)target)->name,
                                on ? json_real(on->predicted_step_seconds) : json_null());
    }
    if (targets) json_object_set_new(root, "targets", targets);
    if (self->plan->free_seconds > 0) {
        json_object_set_new(root, "unrestricted_seconds", json_real(self->plan->free_seconds));
        json_object_set_new(root, "restriction",
                            self->plan->lack ? plan_string_to_json(self->plan->lack) : json_null());
    }
    if (found) json_object_set_new(root, "origin", json_string(plan_origin_name(plan->origin)));
    if (found) json_object_set_new(root, "found_seconds", found);
    if (root && self->plan->result.paper)
        json_object_set_new(root, "paper",
                            paper_report_to_json(self->plan->result.paper, self->module->context));
    return root;
}

static void log_episode(void *user, const char *line) {
    text_append(&((Searched *)user)->log, "%s\n", line);
}

static int show_progress(void *user, const AmProgress *progress) {
    return search_progress_show(&((Searched *)user)->progress, progress);
}

static void on_message(void *user, AmMessage kind, const char *text) {
    cli_on_message((void *)((Searched *)user)->cli, kind, text);
}

/* The changes that would fit, for the error of --json. */
static void keep_details(void *user, const char *json) {
    (void)user;
    cli_explain_error(json_loads(json, 0, NULL));
}

/* Writes the plan to -o, and the report to stdout unless the plan is there. */
static AmStatus report(const Cli *cli, Searched *self, AmError *error) {
    FILE *stream = strcmp(self->plan_file, "-") == 0 ? stderr : stdout;
    Text text = {.is_styled = !cli_has(cli, "--json") && terminal_is_styled(cli, stream)};
    AmStatus status = print_summary(&text, self, cli_has(cli, "--verbose"), error);
    cli_release_notes(cli);
    if (status == AM_OK && cli_has(cli, "--json")) {
        json_t *root = result_to_json(self, text.data ? text.data : "");
        text_free(&text);
        text = (Text){0};
        if (root) json_write(&text, root, JSON_STYLE_COMPACT);
        else text.failed = true;
        json_decref(root);
        text_append_string(&text, "\n");
    } else if (status == AM_OK) {
        text_append(&text, "search  %lld evaluation%s in ", (long long)self->plan->result.evaluations,
                    self->plan->result.evaluations == 1 ? "" : "s");
        text_append_seconds(&text, self->plan->result.search_seconds);
        text_append_string(&text, ", import ");
        text_append_seconds(&text, self->import_seconds);
        bool to_stdout = strcmp(self->plan_file, "-") == 0;
        text_append(&text, "\nplan    %s\n", to_stdout ? "on standard output" : self->plan_file);
    }
    bool wanted = cli_has(cli, "--json") || !cli_has(cli, "--quiet");
    if (status == AM_OK && text.failed) status = am_fail_memory(error, 0);
    if (status == AM_OK && wanted) fputs(text.data, stream);
    text_free(&text);
    return status;
}

/* The target and the file of "jax=FILE". */
static AmStatus read_also(Target *target, const char **file, const char *text, AmError *error) {
    const char *equals = strchr(text, '=');
    for (int32_t k = 0; equals && equals[1] && k < TARGET_NAMES; k++) {
        size_t length = (size_t)(equals - text);
        if (strncmp(target_name(k), text, length) != 0 || target_name(k)[length]) continue;
        *target = target_of_name(k);
        *file = equals + 1;
        return AM_OK;
    }
    const char *names[TARGET_NAMES];
    char word[32], near[SUGGEST_HINT_BYTES];
    for (int32_t k = 0; k < TARGET_NAMES; k++) names[k] = target_name(k);
    snprintf(word, sizeof word, "%.*s", (int)strcspn(text, "="), text);
    return am_fail(error, AM_ERROR_USAGE, "", "--also %.100s: expected TARGET=FILE, such as jax=plan.json%s",
                   text, equals ? suggest_hint(near, word, names, TARGET_NAMES) : "");
}

static AmStatus check_also(const Cli *cli, const char *plan_file, AmError *error) {
    const char *const *texts;
    int32_t count = cli_texts(cli, "--also", &texts);
    for (int32_t k = 0; k < count; k++) {
        Target target;
        const char *file;
        TRY(read_also(&target, &file, texts[k], error));
        if (strcmp(file, cli->arguments[0]) == 0 || strcmp(file, plan_file) == 0)
            return am_fail(error, AM_ERROR_USAGE, "", "--also %.100s: the file is in use already", texts[k]);
        TRY(file_check_writable(file, error));
    }
    if (count > 0 && cli_has(cli, "--for"))
        return am_fail(error, AM_ERROR_USAGE, "", "--also is for searches without --for");
    return AM_OK;
}

/* Writes the plans of other targets. AM_ERROR_INFEASIBLE where none was found. */
static AmStatus write_also(const Cli *cli, const Searched *self, AmError *error) {
    const char *const *texts;
    int32_t count = cli_texts(cli, "--also", &texts);
    for (int32_t k = 0; k < count; k++) {
        Target target;
        const char *file;
        TRY(read_also(&target, &file, texts[k], error));
        Plan *plan = self->plan->on[target];
        if (!plan)
            return am_fail(error, AM_ERROR_INFEASIBLE, "",
                           "--also %s: no plan of those priced; --for %s searches for one", texts[k],
                           target_row(target)->name);
        plan->settings = self->plan->plan->settings;
        TRY(plan_write(plan, self->plan->whole, file, error));
    }
    return AM_OK;
}

/* Checks the options before any file is read, and notes what they leave out. */
static AmStatus check_options(const Cli *cli, Searched *self, AmError *error) {
    SearchSettings settings;
    const char *log = cli_text(cli, "--log");
    TRY(cli_api_options(cli, AM_COMMAND_SEARCH, &self->options, error));
    TRY(search_settings_read(&settings, &self->arena, NULL, self->options, error));
    self->memory_fraction = settings.options.memory_fraction;
    self->plan_file = cli_text(cli, "-o");
    if (!self->plan_file) self->plan_file = default_plan_file(&self->arena, cli->arguments[0]);
    if (!self->plan_file) return am_fail_memory(error, 0);
    TRY(cli_check_files(cli, self->plan_file, error));
    TRY(file_check_writable(self->plan_file, error));
    if (log) TRY(file_check_writable(log, error));
    TRY(check_also(cli, self->plan_file, error));
    if (settings.narrowed_by)
        cli_note(cli, "note: %s applies to one-stage plans: pipelines are not searched",
                 settings.narrowed_by);
    self->options->has_noted = true;
    search_progress_open(&self->progress, cli, PROGRESS_SEARCH, settings.options.seconds);
    return AM_OK;
}

static AmStatus search_and_write(const Cli *cli, Searched *self, AmError *error) {
    const char *cluster, *log = cli_text(cli, "--log");
    const volatile sig_atomic_t *interrupted = cli_catch_interrupts(); /* reading, too, ends in a plan */
    TRY(cli_need(cli, "--cluster", &cluster, error));
    TRY(check_options(cli, self, error));
    double started = clock_seconds();
    TRY(cli_open_cluster(cli, &self->cluster, cluster, error));
    TRY(cli_read_module(cli, 0, &self->module, error));
    TRY(cli_check_trains(cli, self->module, error));
    self->import_seconds = clock_seconds() - started;
    const AmCallbacks callbacks = {.size = sizeof callbacks,
                                   .user = self,
                                   .on_progress = self->progress.line.is_shown ? show_progress : NULL,
                                   .on_message = on_message,
                                   .on_episode = log ? log_episode : NULL,
                                   .on_infeasible = keep_details,
                                   .cancel = interrupted};
    self->progress.started = clock_seconds();
    AmStatus status = am_search(&self->plan, self->module, self->cluster, self->options, &callbacks, error);
    search_progress_close(&self->progress);
    if (!self->plan) return status;
    if (error) *error = (AmError){0}; /* an interrupted search has a plan */
    TRY(am_plan_write(self->plan, self->plan_file, error));
    TRY(write_also(cli, self, error));
    if (log) TRY(file_write(log, self->log.data ? self->log.data : "", self->log.length, error));
    TRY(report(cli, self, error));
    if (status == AM_INTERRUPTED)
        cli_note(cli, "interrupted; the best plan so far is in %s", self->plan_file);
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    Searched self = {.cli = cli};
    AmStatus status = search_and_write(cli, &self, error);
    text_free(&self.log);
    am_plan_free(self.plan);
    am_options_free(self.options);
    am_cluster_free(self.cluster);
    am_module_free(self.module);
    arena_free(&self.arena);
    return status;
}

#define TEXT_OF(x)  #x
#define VALUE_OF(x) TEXT_OF(x)
static const CliOption options[] = {
    CLI_GROUP("space"),
    {"--cluster", "CLUSTER", "cluster file or built-in name (automap cluster lists them); required", false},
    CLI_OPTION_NO_PROBE,
    SEARCH_SPACE_ROWS(CLI_ROW) CLI_GROUP("search"),
    SEARCH_METHOD_ROWS(CLI_ROW) CLI_GROUP("memory"),
    OPTION_ROW_MEMORY_FRACTION(CLI_ROW) CLI_GROUP("pipeline"),
    SEARCH_ATTENTION_ROWS(CLI_ROW) SEARCH_PIPELINE_ROWS(CLI_ROW) CLI_GROUP("input"),
    SEARCH_INPUT_ROWS(CLI_ROW) CLI_OPTION_ROLES,
    CLI_OPTION_INFERENCE,
    CLI_GROUP("output"),
    {"--also", "TARGET=FILE", "fastest plan found that the target can run, as a plan file", true},
    {"--log", "LOG.jsonl", "line per episode: evaluations, reward, best, epsilon, loss", false},
    {"--verbose", NULL, "a row per parameter group, optimizer state included", false},
    {0}};

const CliCommand CLI_SEARCH = {
    .name = "search",
    .arguments = "MODEL",
    .summary = "finds a plan for a module on a cluster",
    .least_arguments = 1,
    .most_arguments = 1,
    .options = options,
    .notes = "The plan is written to -o (default: MODEL's stem + .plan.json).\n"
             "--baseline: data_parallel, megatron, megatron_sequence, zero1, zero2, zero3 (or fsdp),\n"
             "megatron_zero1, megatron_zero2, megatron_zero3, context_zero3, even_pipeline, megatron_3d.\n"
             "--evaluations: " VALUE_OF(
                 SEARCH_DEFAULT_EVALUATIONS) " for a single stage, fewer for large "
                                             "modules; " VALUE_OF(SEARCH_EXACT_EVALUATIONS) " for "
                                                                                            "--searcher "
                                                                                            "exact.\n"
                                                                                            "--micro-"
                                                                                            "batches: auto "
                                                                                            "where several "
                                                                                            "stages are "
                                                                                            "searched, else "
                                                                                            "1.\n"
                                                                                            "An interrupt "
                                                                                            "ends the "
                                                                                            "search: the "
                                                                                            "best plan so "
                                                                                            "far is "
                                                                                            "written, the "
                                                                                            "exit code is "
                                                                                            "130.",
    .examples = "search model.hlo.pb --cluster h100:4 -o plan.json\n"
                "search model.hlo.pb --cluster nominal:8 --space single_stage --evaluations 200",
    .run = run};
