/* automap search: from a module and a cluster to a plan file. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/files/file.h"
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
    PlanContext *context;
    Cluster *cluster;
    Profile *profile; /* or NULL */
    SearchOptions options;
    MicroBatching micro_batching;
    PropagationPin pins[CLI_MAX_REPEATS];
    SearchResult result;
    json_t *initial_root, *plan_root; /* files of the initial plan, and of the result */
    const char *plan_file;
    double import_seconds;
    Text log;
} Searched;

static const char *objective_of(int32_t k) {
    return search_objective_name((SearchObjective)k);
}

static const char *space_of(int32_t k) {
    return plan_space_name((PlanSpace)k);
}

static const char *searcher_of(int32_t k) {
    return searcher_name((Searcher)k);
}

/* Recipes, then their other names. */
static const char *baseline_of(int32_t k) {
    Baseline baseline;
    return k < BASELINE_COUNT ? baseline_name((Baseline)k) : baseline_alias(k - BASELINE_COUNT, &baseline);
}

static const char *device_of(int32_t k) {
    return dqn_device_name((DqnDevice)k);
}

static AmStatus read_options(const Cli *cli, SearchOptions *options, AmError *error) {
    int32_t objective = OBJECTIVE_TIME, space = SPACE_AUTO, searcher = SEARCHER_DQN,
            baseline = BASELINE_DATA_PARALLEL, device = DQN_CPU;
    int64_t seed = 0;
    *options =
        (SearchOptions){.mesh = cli_text(cli, "--mesh"), .memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION};
    TRY(cli_choice(cli, "--objective", objective_of, OBJECTIVE_COUNT, &objective, error));
    TRY(cli_choice(cli, "--space", space_of, SPACE_COUNT, &space, error));
    TRY(cli_choice(cli, "--searcher", searcher_of, SEARCHER_COUNT, &searcher, error));
    TRY(cli_choice(cli, "--expert", baseline_of, BASELINE_COUNT + BASELINE_ALIAS_COUNT, &baseline, error));
    TRY(cli_choice(cli, "--device", device_of, DQN_DEVICE_COUNT, &device, error));
    TRY(cli_number(cli, "--seconds", 1e-3, 1e9, &options->seconds, error));
    TRY(cli_number(cli, "--memory-fraction", 1e-6, 1, &options->memory_fraction, error));
    TRY(cli_integer(cli, "--seed", 0, INT64_MAX, &seed, error));
    options->evaluations =
        objective == OBJECTIVE_PAPER ? SEARCH_PAPER_EPISODES : search_default_evaluations((Searcher)searcher);
    TRY(cli_integer(cli, "--evaluations", 1, 1000000000, &options->evaluations, error));
    if (cli_has(cli, "--expert") && !cli_has(cli, "--searcher")) searcher = SEARCHER_BASELINE;
    if (cli_has(cli, "--expert") != (searcher == SEARCHER_BASELINE))
        return am_fail(error, AM_ERROR_USAGE, "", "--searcher expert and --expert NAME go together");
    if (cli_has(cli, "--evaluations") && searcher == SEARCHER_EXHAUSTIVE)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--searcher exhaustive prices every plan: --evaluations does not apply");
    if (cli_has(cli, "--device") && searcher != SEARCHER_DQN)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--device is where the DQN is trained: --searcher %s has none",
                       searcher_name((Searcher)searcher));
    TRY(dqn_device_check((DqnDevice)device, error));
    options->agent = cli_text(cli, "--agent");
    options->is_even = cli_has(cli, "--even");
    options->no_overrides = cli_has(cli, "--no-exceptions");
    options->objective = (SearchObjective)objective;
    options->space = (PlanSpace)space;
    options->searcher = (Searcher)searcher;
    options->baseline = (Baseline)baseline;
    options->called = baseline_of(baseline);
    if (baseline >= BASELINE_COUNT) baseline_alias(baseline - BASELINE_COUNT, &options->baseline);
    options->device = (DqnDevice)device;
    options->seed = (uint64_t)seed;
    return AM_OK;
}

/* The spaces that the options allow, and the limiting option. Shardings to keep are not read yet. */
static AmStatus narrow(const Cli *cli, SearchOptions *options, const char **narrowed_by, AmError *error) {
    const char *option = search_narrow(options);
    bool is_joint = search_spans_stages(options);
    if (is_joint && options->space == SPACE_AUTO && cli_has(cli, "--keep-shardings")) {
        options->space = SPACE_SINGLE_STAGE;
        option = "--keep-shardings";
        is_joint = false;
    }
    *narrowed_by = option;
    if (options->agent && !is_joint)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--agent cuts pipelines: it goes with --space auto or hybrid");
    if (is_joint && !cli_has(cli, "--evaluations")) options->evaluations = 0; /* by the module */
    return AM_OK;
}

static AmStatus read_pins(const Cli *cli, Searched *self, AmError *error) {
    const char *const *texts;
    int32_t count = cli_texts(cli, "--pin", &texts);
    for (int32_t k = 0; k < count; k++)
        TRY(propagation_parse_pin(&self->pins[k], &self->arena, texts[k], error));
    self->options.pins = self->pins;
    self->options.pin_count = count;
    return AM_OK;
}

/* --keep-shardings: the module's own, on the mesh of --mesh or the one that they imply. */
static AmStatus read_kept(const Cli *cli, Searched *self, AmError *error) {
    if (!cli_has(cli, "--keep-shardings")) return AM_OK;
    KeptShardings *kept;
    TRY(propagation_read_shardings(&kept, &self->arena, self->context, error));
    self->options.kept = kept;
    if (self->options.mesh) return AM_OK;
    Mesh mesh;
    Text text = {0};
    TRY(propagation_infer_mesh(&mesh, &self->arena, kept, error));
    for (int32_t k = 0; k < mesh.axis_count; k++)
        text_append(&text, "%s%s=%d", k ? "," : "", mesh.axes[k].name, mesh.axes[k].size);
    self->options.mesh = text.data ? arena_copy_string(&self->arena, text.data) : NULL;
    text_free(&text);
    return self->options.mesh ? AM_OK : am_fail_memory(error, 0);
}

static AmStatus read_schedule(const Cli *cli, SearchOptions *options, AmError *error) {
    int64_t chunks = 0;
    options->schedule = cli_text(cli, "--schedule");
    ScheduleKind kind = SCHEDULE_1F1B;
    uint32_t schedules;
    TRY(cli_schedules(cli, &schedules, error));
    if (options->schedule) kind = schedule_kind_find(options->schedule);
    if (options->schedule && !search_has_stages(options))
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--schedule applies to pipelines: this search covers one-stage plans only");
    if (!cli_has(cli, "--chunks")) return AM_OK;
    if (kind != SCHEDULE_INTERLEAVED)
        return am_fail(error, AM_ERROR_USAGE, "", "--chunks needs --schedule interleaved_1f1b");
    TRY(cli_integer(cli, "--chunks", 1, STAGES_MOST / 2, &chunks, error));
    options->chunks = (int32_t)chunks;
    return AM_OK;
}

/* --micro-batches M|auto and --relax NAME. */
static AmStatus read_micro_batching(const Cli *cli, const SearchOptions *options, MicroBatching *settings,
                                    AmError *error) {
    const char *text = cli_text(cli, "--micro-batches");
    bool is_paper = options->objective == OBJECTIVE_PAPER && options->space == SPACE_PIPELINE;
    bool is_searched = is_paper || search_spans_stages(options); /* as many as suit the search */
    int64_t micro_batches = is_searched ? 0 : 1;
    if (text && strcmp(text, "auto") == 0) micro_batches = 0;
    else if (text && !isdigit((unsigned char)*text))
        return am_fail(error, AM_ERROR_USAGE, "",
                       "--micro-batches %.60s: expected auto or an integer from 1 to %d", text,
                       MICRO_BATCHES_MOST);
    else TRY(cli_integer(cli, "--micro-batches", 1, MICRO_BATCHES_MOST, &micro_batches, error));
    settings->micro_batches = (int32_t)micro_batches;
    if (micro_batches != 1 && cli_has(cli, "--keep-shardings"))
        return am_fail(error, AM_ERROR_USAGE, "", "--keep-shardings is for plans of one micro-batch");
    TRY(cli_relaxations(cli, &settings->relaxations, error));
    return AM_OK;
}

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

/* The settings of the search, for the plan file; independent of the clock. */
static json_t *settings_to_json(const SearchOptions *options) {
    json_t *settings = json_pack("{s:o, s:f, s:s?}", "evaluations",
                                 options->evaluations > 0 ? json_integer(options->evaluations) : json_null(),
                                 "memory_fraction", options->memory_fraction, "mesh", options->mesh);
    if (settings && options->searcher == SEARCHER_BASELINE)
        json_object_set_new(settings, "expert", json_string(baseline_name(options->baseline)));
    if (settings && options->objective != OBJECTIVE_TIME)
        json_object_set_new(settings, "objective", json_string(search_objective_name(options->objective)));
    json_t *pins = options->pin_count > 0 ? json_array() : NULL;
    for (int32_t k = 0; k < options->pin_count; k++)
        json_array_append_new(pins,
                              json_sprintf("%s=%s", options->pins[k].pattern, options->pins[k].sharding));
    if (settings && pins) json_object_set_new(settings, "pins", pins);
    if (settings && options->kept) json_object_set_new(settings, "keep_shardings", json_true());
    if (settings && options->is_even) json_object_set_new(settings, "even", json_true());
    if (settings && options->no_overrides) json_object_set_new(settings, "no_exceptions", json_true());
    if (settings && options->seconds > 0)
        json_object_set_new(settings, "seconds", json_real(options->seconds));
    return settings;
}

static double gap_of(const Plan *plan) {
    return plan->predicted_step_seconds / plan->bound_seconds - 1;
}

static json_t *number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* "[data,-,model]" per parameter; "" where it is replicated. */
static AmStatus sharding_columns(const char ***columns, Arena *arena, const json_t *parameters,
                                 AmError *error) {
    size_t count = json_array_size(parameters);
    *columns = ARENA_ARRAY(arena, const char *, count + 1);
    for (size_t p = 0; *columns && p < count; p++) {
        const json_t *sharding = json_object_get(json_array_get(parameters, p), "sharding");
        Text text = {0};
        bool is_split = false;
        text_append_string(&text, "[");
        for (size_t d = 0; d < json_array_size(sharding); d++) {
            const json_t *axes = json_array_get(sharding, d);
            text_append_string(&text, d ? "," : "");
            for (size_t a = 0; a < json_array_size(axes); a++)
                text_append(&text, "%s%s", a ? "+" : "", json_string_value(json_array_get(axes, a)));
            if (json_array_size(axes) == 0) text_append_string(&text, "-");
            is_split = is_split || json_array_size(axes) > 0;
        }
        text_append_string(&text, "]");
        (*columns)[p] = is_split && text.data ? arena_copy_string(arena, text.data) : "";
        text_free(&text);
    }
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

static void print_times(Text *text, const Searched *self) {
    const Plan *plan = self->result.plan;
    Text rows = {.is_styled = text->is_styled};
    text_append_string(&rows, "plan\tstep time\trelative\tremark\n");
    text_append_style(&rows, TEXT_GREEN);
    text_append_string(&rows, "this one\t");
    text_append_seconds(&rows, plan->predicted_step_seconds);
    text_append_string(&rows, "\t1.000");
    text_append_style(&rows, TEXT_PLAIN);
    text_append_string(&rows, "\t\n");
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *baseline = &self->result.baselines[e];
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
    const MemoryFit fit = memory_fit(needed, self->cluster, &in_cluster, 1, self->options.memory_fraction);
    return (DeviceMemory){device, needed, fit.limit_bytes,
                          cluster_device_type(self->cluster, in_cluster)->memory_bytes};
}

/* The device with the largest fraction of used memory, as in simulate; `only`: of this stage, or
 * -1. */
static DeviceMemory fullest_device(const Searched *self, int32_t only) {
    const Plan *plan = self->result.plan;
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
    const Plan *plan = self->result.plan;
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

static AmStatus print_summary(Text *text, Searched *self, bool is_verbose, AmError *error) {
    const Plan *plan = self->result.plan;
    const char **columns;
    TRY(sharding_columns(&columns, &self->arena, json_object_get(self->plan_root, "parameters"), error));
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
    text_append_style(text, TEXT_PLAIN);
    for (int32_t k = 0; k < plan->relaxation_count; k++)
        text_append(text, "%s%s", k ? ", " : "\nrelaxed: ", plan->relaxations[k]);
    text_append_string(text, "\n\n");
    if (plan->stage_count > 1) {
        print_stages(text, self);
        text_append_string(text, "\n");
    }
    parameters_print(text, self->context, columns, is_verbose);
    text_append_string(text, "\n");
    if (self->result.paper) {
        text_append(text, "step    ");
        text_append_seconds(text, plan->predicted_step_seconds);
        text_append_string(text, "\n");
        paper_report_print(text, self->result.paper);
    } else {
        print_times(text, self);
        text_append_string(text, "\n");
    }
    print_memory(text, self);
    if (!isnan(plan->bound_seconds)) {
        print_bound(text, plan);
    }
    if (plan->origin != PLAN_ORIGIN_UNKNOWN) print_origin(text, plan);
    if (!isnan(self->result.model_gap)) {
        text_append(text, "model   at most %.2f %% over the best sum of computing and communication\n",
                    100 * self->result.model_gap);
    }
    return AM_OK;
}

static json_t *devices_to_json(Searched *self) {
    const Plan *plan = self->result.plan;
    json_t *devices = json_array();
    for (int32_t d = 0, stage = 0, at = 0; d < plan->device_count; d++, at++) {
        const PlanDevicePrediction *device = &plan->predicted[d];
        if (at == plan->stages[stage].mesh.device_count) {
            stage++;
            at = 0;
        }
        double busy = simulation_busy_fraction(device->compute_seconds, plan->predicted_step_seconds);
        const DeviceMemory memory = memory_of(self, device, plan->stages[stage].devices[at]);
        json_array_append_new(
            devices,
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:f}", "name",
                      cluster_device_name(self->cluster, &self->arena, plan->stages[stage].devices[at]),
                      "peak_bytes", (json_int_t)device->peak_bytes, "channel_bytes",
                      (json_int_t)device->channel_bytes, "needed_bytes", (json_int_t)memory.needed_bytes,
                      "limit_bytes", (json_int_t)memory.limit_bytes, "busy_fraction", busy));
    }
    return devices;
}

static json_t *result_to_json(Searched *self, const char *summary) {
    const Plan *plan = self->result.plan;
    json_t *baselines = json_object(), *reasons = json_object();
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *baseline = &self->result.baselines[e];
        json_object_set_new(baselines, baseline_name((Baseline)e), number_or_null(baseline->seconds));
        if (baseline->reason)
            json_object_set_new(reasons, baseline_name((Baseline)e), plan_string_to_json(baseline->reason));
    }
    json_t *root = json_pack(
        "{s:o, s:f, s:o, s:s?, s:o, s:o, s:s, s:s, s:I, s:f, s:f, s:o, s:o, s:o, s:o}", "plan_file",
        plan_string_to_json(self->plan_file), "step_seconds", plan->predicted_step_seconds, "bound_seconds",
        number_or_null(plan->bound_seconds), "bound", plan->bound, "gap", number_or_null(gap_of(plan)),
        "model_gap", number_or_null(self->result.model_gap), "searcher", plan->searcher, "space", plan->space,
        "evaluations", (json_int_t)self->result.evaluations, "search_seconds", self->result.search_seconds,
        "import_seconds", self->import_seconds, "expert", baselines, "expert_reasons", reasons, "devices",
        devices_to_json(self), "summary", plan_string_to_json(summary));
    json_t *found = root ? json_object() : NULL;
    for (int32_t k = 1; k < PLAN_ORIGIN_COUNT && found; k++)
        if (plan->found_seconds[k] > 0)
            json_object_set_new(found, plan_origin_name((PlanOrigin)k), json_real(plan->found_seconds[k]));
    if (found) json_object_set_new(root, "origin", json_string(plan_origin_name(plan->origin)));
    if (found) json_object_set_new(root, "found_seconds", found);
    if (root && self->result.paper)
        json_object_set_new(root, "paper", paper_report_to_json(self->result.paper, self->context));
    return root;
}

static void log_episode(void *user, const char *line) {
    text_append((Text *)user, "%s\n", line);
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
        text_append(&text, "search  %lld evaluation%s in ", (long long)self->result.evaluations,
                    self->result.evaluations == 1 ? "" : "s");
        text_append_seconds(&text, self->result.search_seconds);
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

/* Why nothing fits and what would, in place of the search's own error. */
static AmStatus explain_infeasible(Searched *self, AmError *error) {
    Text line = {0};
    json_t *details = NULL;
    AmError explained = {0};
    AmStatus status = infeasible_report(&details, &line, &self->arena, self->context, self->cluster,
                                        &self->options, &self->micro_batching, &self->result, &explained);
    cli_explain_error(details);
    if (status == AM_OK && !line.failed) {
        *error = (AmError){0};
        am_fail(error, AM_ERROR_INFEASIBLE, "", "%s", line.data);
    }
    text_free(&line);
    return AM_ERROR_INFEASIBLE;
}

/* Measured operators, used where they have an answer. */
static AmStatus read_profile(Searched *self, const char *path, AmError *error) {
    TRY(profile_open(&self->profile, error));
    TRY(profile_read(self->profile, path, error));
    return profile_attach(self->profile, self->cluster, path, error);
}

static AmStatus search_and_write(const Cli *cli, Searched *self, AmError *error) {
    const char *cluster, *log = cli_text(cli, "--log"), *initial = cli_text(cli, "--init-plan");
    const char *profile = cli_text(cli, "--profile"), *narrowed_by;
    Plan *plan = NULL;
    const volatile sig_atomic_t *interrupted = cli_catch_interrupts(); /* reading, too, ends in a plan */
    TRY(cli_need(cli, "--cluster", &cluster, error));
    TRY(read_options(cli, &self->options, error));
    self->options.interrupted = interrupted;
    TRY(read_pins(cli, self, error));
    TRY(narrow(cli, &self->options, &narrowed_by, error));
    TRY(read_micro_batching(cli, &self->options, &self->micro_batching, error));
    TRY(read_schedule(cli, &self->options, error));
    self->plan_file = cli_text(cli, "-o");
    if (!self->plan_file) self->plan_file = default_plan_file(&self->arena, cli->arguments[0]);
    if (!self->plan_file) return am_fail_memory(error, 0);
    TRY(cli_check_files(cli, self->plan_file, error));
    TRY(file_check_writable(self->plan_file, error));
    if (log) TRY(file_check_writable(log, error));
    if (narrowed_by)
        cli_note(cli, "note: %s applies to one-stage plans: pipelines are not searched", narrowed_by);
    double started = clock_seconds();
    TRY(cli_read_cluster(cli, &self->cluster, &self->arena, cluster, error));
    if (profile) TRY(read_profile(self, profile, error));
    TRY(cli_read_model(cli, 0, &self->context, error));
    TRY(cli_check_trains(cli, self->context, error));
    self->import_seconds = clock_seconds() - started;
    TRY(read_kept(cli, self, error));
    bool is_scaled = !cli_has(cli, "--evaluations") && !cli_has(cli, "--objective");
    bool is_one = self->options.searcher == SEARCHER_RANDOM && !cli_has(cli, "--evaluations");
    self->options.is_default_limit = is_scaled;
    self->options.may_add_micro_batches = !cli_has(cli, "--micro-batches");
    if (is_one) self->options.evaluations = 0; /* until a plan fits */
    else if (is_scaled && !search_spans_stages(&self->options))
        self->options.evaluations =
            search_evaluations_for(self->options.searcher, self->context->canonical->instruction_count);
    bool is_fixed = self->options.searcher == SEARCHER_BASELINE || self->options.searcher == SEARCHER_RANDOM;
    if (initial && is_fixed)
        return am_fail(error, AM_ERROR_USAGE, "", "--init-plan: --searcher %s starts from no plan",
                       searcher_name(self->options.searcher));
    if (initial) TRY(plan_read(&plan, &self->initial_root, &self->arena, self->context, initial, error));
    self->options.initial = plan;
    if (log) {
        self->options.on_episode = log_episode;
        self->options.user = &self->log;
    }
    SearchProgressLine progress;
    search_progress_begin(&progress, cli, PROGRESS_SEARCH, self->options.evaluations, self->options.seconds);
    self->options.watch = progress.watch;
    AmStatus status = plan_search(&self->result, &self->arena, self->context, self->cluster, &self->options,
                                  &self->micro_batching, error);
    bool is_explained = status == AM_ERROR_INFEASIBLE && self->result.nearest;
    if (is_explained) status = explain_infeasible(self, error);
    search_progress_end(&progress);
    self->options.watch = NULL;
    if (status != AM_OK) return status;
    self->result.plan->settings = settings_to_json(&self->options);
    if (cli_has(cli, "--inference"))
        json_object_set_new(self->result.plan->settings, "inference", json_true());
    if (self->result.exact_space)
        json_object_set_new(self->result.plan->settings, "exact_space",
                            json_string(self->result.exact_space));
    if (!self->result.plan->settings) return am_fail_memory(error, 0);
    TRY(plan_to_json(&self->plan_root, self->result.plan, self->context, error));
    TRY(plan_write_json(self->plan_root, self->plan_file, error));
    if (log) TRY(file_write(log, self->log.data ? self->log.data : "", self->log.length, error));
    TRY(report(cli, self, error));
    if (!self->result.interrupted) return AM_OK;
    cli_note(cli, "interrupted; the best plan so far is in %s", self->plan_file);
    return AM_INTERRUPTED;
}

static AmStatus run(const Cli *cli, AmError *error) {
    Searched self = {0};
    AmStatus status = search_and_write(cli, &self, error);
    if (self.result.plan) json_decref(self.result.plan->settings);
    json_decref(self.initial_root);
    json_decref(self.plan_root);
    text_free(&self.log);
    cluster_free(self.cluster);
    profile_close(self.profile);
    plan_context_free(self.context);
    arena_free(&self.arena);
    return status;
}

#define TEXT_OF(x)  #x
#define VALUE_OF(x) TEXT_OF(x)
static const CliOption options[] = {
    CLI_GROUP("space"),
    {"--cluster", "CLUSTER", "cluster file or built-in name (automap cluster lists them); required", false},
    CLI_OPTION_NO_PROBE,
    {"--space", "SPACE", "auto (default), single_stage, operator, data, pipeline or hybrid", false},
    {"--mesh", "data=4,model=8", "mesh of one-stage plans (default: every split of the devices)", false},
    {"--pin", "PATTERN=SHARDING", "sharding of parameters: 'layers/*/mlp_in/kernel=-,model'", true},
    {"--keep-shardings", NULL, "shardings of the module kept in every plan", false},
    {"--even", NULL, "equal contiguous shards, of one stage unless --space hybrid", false},
    {"--no-exceptions", NULL, "no overrides for single operators", false},
    CLI_GROUP("search"),
    {"--searcher", "NAME", "dqn (default), anneal, greedy, exact, exhaustive, random or agent", false},
    {"--expert", "NAME", "only this baseline, priced (the names are below)", false},
    {"--objective", "NAME", "time (default), or paper: states and rewards of Auto-MAP", false},
    {"--evaluations", "N", "most plans priced (default: by the module's size; see below)", false},
    {"--seconds", "S", "time limit in seconds; the plan then depends on the machine", false},
    {"--agent", "AGENT", "trained agent for pipelines (default: the built-in one)", false},
    {"--device", "cpu|cuda", "device for the training of the DQN (default cpu)", false},
    CLI_OPTION_SEED,
    CLI_GROUP("memory"),
    {"--memory-fraction", "F", "usable part of a device's memory (default 0.9)", false},
    CLI_GROUP("pipeline"),
    {"--micro-batches", "M|auto", "number of micro-batches; auto: the fastest power of two that fits", false},
    {"--schedule", "NAME", "1f1b (default), gpipe, zb_h1 or interleaved_1f1b", false},
    {"--chunks", "V", "chunks per stage of interleaved_1f1b (default 2)", false},
    {"--relax", "NAME", "permitted change: batch_statistics_per_micro_batch", true},
    CLI_GROUP("input"),
    {"--init-plan", "PLAN", "further plan to start from", false},
    {"--profile", "FILE", "measured operator times (from run --profile)", false},
    CLI_OPTION_ROLES,
    CLI_OPTION_INFERENCE,
    CLI_GROUP("output"),
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
             "--expert: data_parallel, megatron, megatron_sequence, zero1, zero2, zero3 (or fsdp), "
             "megatron_zero1,\n"
             "megatron_zero2, megatron_zero3, context_zero3, even_pipeline, megatron_3d.\n"
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
