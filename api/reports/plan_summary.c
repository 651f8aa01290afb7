/* am_plan_print(): a plan after a search or from a file, as text or JSON.
 *
 * Text: step time, baselines, bound and gap, the part of the search that found the plan, memory, stages,
 * devices, prices in money, targets, and a table of parameters. Each print function writes one of these
 * sections; result_to_json() writes the same facts for --json.
 */
#include <math.h>
#include <string.h>

#include "api/measure.h"
#include "api/reports/parameters.h"
#include "api/reports/reports.h"
#include "lowering/plan_file/plan_parts.h"
#include "planners/automap_paper/paper_search.h"
#include "propagation/assign/storage.h"

/* The plan with its cluster, while it is printed. */
typedef struct Summary {
    const AmPlan *plan;
    const Cluster *cluster;
    Arena *arena;
} Summary;

static double gap_of(const Plan *plan) {
    return plan->predicted_step_seconds / plan->bound_seconds - 1;
}

static json_t *number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* Writes "[data,-,model]" for each parameter; "" for a replicated one. */
static AmStatus sharding_columns(const char ***columns, const Summary *self, AmError *error) {
    int32_t count = am_plan_parameter_count(self->plan);
    *columns = ARENA_ARRAY(self->arena, const char *, count + 1);
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

static void print_times(Text *text, const Summary *self) {
    const Plan *plan = self->plan->plan;
    if (!self->plan->is_searched) return;
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
            text_append(&rows, "\t%.3f\t%s%s%s%s\n", baseline->seconds / plan->predicted_step_seconds,
                        baseline->recompute ? baseline->recompute : "",
                        baseline->recompute ? " recomputation" : "",
                        baseline->recompute && baseline->is_of_other_form ? ", " : "",
                        baseline->is_of_other_form ? "another form of the module" : "");
        }
    }
    text_append_table(text, rows.data);
    text_free(&rows);
}

/* Names the fastest baseline if it is faster than the plan: a search that does not start from baselines
 * prices them for comparison alone. */
static void print_faster_baseline(Text *text, const Summary *self) {
    double fastest = self->plan->plan->predicted_step_seconds;
    int32_t faster = -1;
    for (int32_t e = 0; e < BASELINE_COUNT && self->plan->is_searched; e++) {
        double seconds = self->plan->result.baselines[e].seconds;
        if (!(seconds > 0 && seconds < fastest)) continue;
        fastest = seconds;
        faster = e;
    }
    if (faster < 0) return;
    const char *name = baseline_name((Baseline)faster);
    text_append(text, "slower  than %s, from which this search did not start: --baseline %s plans that\n",
                name, name);
}

/* The need of a device, with its transfer slots, and its memory. */
typedef struct DeviceMemory {
    const PlanDevicePrediction *device;
    int64_t needed_bytes, limit_bytes, memory_bytes;
} DeviceMemory;

static DeviceMemory memory_of(const Summary *self, const PlanDevicePrediction *device, int32_t in_cluster) {
    int64_t needed = device->peak_bytes + device->channel_bytes;
    const Cluster *cluster = self->cluster;
    const MemoryFit fit = memory_fit(needed, cluster, &in_cluster, 1, self->plan->memory_fraction);
    return (DeviceMemory){device, needed, fit.limit_bytes,
                          cluster_device_type(cluster, in_cluster)->memory_bytes};
}

/* Returns the device with the largest fraction of used memory, as in simulate; `only`: of this stage, or
 * -1. */
static DeviceMemory fullest_device(const Summary *self, int32_t only) {
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

static void print_memory(Text *text, const Summary *self) {
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
    if (device->host_bytes > 0) {
        text_append_string(text, "; optimizer state in the host's memory ");
        text_append_bytes_size(text, (double)device->host_bytes);
    }
    text_append_string(text, "\n");
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

/* Prints one row for each stage, if there are several. */
static void print_stages(Text *text, const Summary *self) {
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
        mesh_append(&rows, &stage->mesh, " ");
        text_append(&rows, "\t%d\t", storage_zero_level(stage));
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

/* Prints the part of the search that found the plan, and the best plans of the other parts. */
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

/* Appends "8 V100, 4 P100". */
static void append_types(Text *text, const Cluster *cluster, const int32_t *of_type) {
    bool is_first = true;
    for (int32_t t = 0; t < cluster->type_count; t++) {
        if (of_type[t] == 0) continue;
        text_append(text, "%s%d %s", is_first ? "" : ", ", of_type[t], cluster->types[t].name);
        is_first = false;
    }
}

/* Returns the price of the plan's devices in an hour; NAN: a type has none. */
static double price_per_hour(const Summary *self) {
    const Plan *plan = self->plan->plan;
    double price = 0;
    for (int32_t s = 0; s < plan->stage_count; s++)
        for (int32_t d = 0; d < plan->stages[s].mesh.device_count; d++)
            price += cluster_device_type(self->cluster, plan->stages[s].devices[d])->price_per_hour;
    return price;
}

static double price_per_step(const Summary *self) {
    return price_per_hour(self) * self->plan->plan->predicted_step_seconds / 3600;
}

/* Prints the price of a step, and the front: the plans for which no other one is both faster and cheaper. */
static void print_prices(Text *text, const Summary *self) {
    const DeviceFront *front = self->plan->result.front;
    if (isnan(price_per_hour(self))) return;
    text_append(text, "price   %.4g for a step, %.4g in an hour\n", price_per_step(self),
                price_per_hour(self));
    if (!front) return;
    Text rows = {.is_styled = text->is_styled};
    text_append_string(&rows, "devices\tstep time\tprice of a step\tremark\n");
    for (int32_t k = 0; k < front->count; k++) {
        append_types(&rows, self->cluster, front->rows[k].of_type);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, front->rows[k].seconds);
        text_append(&rows, "\t%.4g\t%s\n", front->rows[k].price_per_step,
                    front->rows[k].is_chosen ? "this one" : "");
    }
    text_append_table(text, rows.data);
    text_free(&rows);
}

static json_t *front_to_json(const Summary *self) {
    const DeviceFront *front = self->plan->result.front;
    json_t *list = json_array();
    for (int32_t k = 0; k < front->count; k++) {
        const DeviceFrontRow *row = &front->rows[k];
        json_t *types = json_object();
        for (int32_t t = 0; t < self->cluster->type_count; t++)
            if (row->of_type[t] > 0)
                json_object_set_new(types, self->cluster->types[t].name, json_integer(row->of_type[t]));
        json_array_append_new(list, json_pack("{s:o, s:f, s:f, s:b}", "devices", types, "step_seconds",
                                              row->seconds, "price_per_step", row->price_per_step, "chosen",
                                              row->is_chosen));
    }
    return list;
}

/* Prints the price of --for; without it, the fastest plan that was found for each target. */
static void print_targets(Text *text, const Summary *self) {
    const AmPlan *plan = self->plan;
    if (plan->targets.free_seconds > 0) {
        double seconds = plan->plan->predicted_step_seconds;
        text_append_string(text, "target  without --for ");
        text_append_seconds(text, plan->targets.free_seconds);
        double price = seconds / plan->targets.free_seconds - 1;
        if (!plan->targets.lack) text_append_string(text, ", and the plan is for the target, too\n");
        else if (price <= 0) text_append(text, ", which is no better; %s\n", plan->targets.lack);
        else text_append(text, ": %.1f %% is the price; %s\n", 100 * price, plan->targets.lack);
        return;
    }
    if (!plan->targets.on[TARGET_AUTOMAP]) return;
    text_append_string(text, "runs on ");
    for (int32_t target = 0; target < TARGET_COUNT; target++) {
        const Plan *on = plan->targets.on[target];
        text_append(text, "%s%s ", target ? ", " : "", target_row((Target)target)->name);
        if (on) text_append_seconds(text, on->predicted_step_seconds);
        else text_append_string(text, "-");
    }
    text_append_string(text, " (of the plans priced; --for TARGET searches for one)\n");
}

static AmStatus print_summary(Text *text, const Summary *self, bool is_verbose, AmError *error) {
    const Plan *plan = self->plan->plan;
    const char **columns;
    TRY(sharding_columns(&columns, self, error));
    text_append_style(text, TEXT_BOLD);
    text_append(text, "%s on cluster %s, ", plan->module_name, plan->cluster_name);
    if (plan->replicas.count > 0) {
        plan_replicas_append(text, &plan->replicas);
    } else if (plan->stage_count > 1) {
        text_append(text, "%d stages", plan->stage_count);
    } else {
        text_append_string(text, "mesh ");
        mesh_append(text, &plan->stages[0].mesh, " ");
    }
    if (plan->micro_batches > 1) text_append(text, ", %d micro-batches", plan->micro_batches);
    if (plan->stage_count > 1 && plan->replicas.count == 0)
        text_append(text, ", schedule %s", plan->schedule);
    if (self->plan->primary->unfused) text_append_string(text, ", fused attention");
    if (self->plan->primary->rewriting.undoes_recomputation)
        text_append_string(text, ", recomputation of the source undone");
    text_append_style(text, TEXT_PLAIN);
    for (int32_t k = 0; k < plan->relaxation_count; k++)
        text_append(text, "%s%s", k ? ", " : "\nrelaxed: ", plan->relaxations[k]);
    text_append_string(text, "\n\n");
    if (plan->stage_count > 1) {
        print_stages(text, self);
        text_append_string(text, "\n");
    }
    parameters_print(text, self->plan->primary, columns, is_verbose);
    text_append_string(text, "\n");
    if (self->plan->result.paper) {
        text_append(text, "step    ");
        text_append_seconds(text, plan->predicted_step_seconds);
        text_append_string(text, "\n");
        paper_report_print(text, self->plan->result.paper);
    } else {
        print_times(text, self);
        text_append_string(text, "\n");
        print_faster_baseline(text, self);
    }
    if (self->plan->measurements) {
        measurements_print(text, self->plan->measurements);
        text_append_string(text, "\n");
    }
    print_memory(text, self);
    if (!isnan(plan->bound_seconds)) {
        print_bound(text, plan);
    }
    if (plan->origin != PLAN_ORIGIN_UNKNOWN) print_origin(text, plan);
    print_prices(text, self);
    print_targets(text, self);
    if (self->plan->is_searched && !isnan(self->plan->result.model_gap)) {
        text_append(text, "model   at most %.2f %% over the best sum of computing and communication\n",
                    100 * self->plan->result.model_gap);
    }
    return AM_OK;
}

static json_t *devices_to_json(const Summary *self) {
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
        json_t *object =
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:f}", "name",
                      cluster_device_name(self->cluster, self->arena, plan->stages[stage].devices[at]),
                      "peak_bytes", (json_int_t)device->peak_bytes, "channel_bytes",
                      (json_int_t)device->channel_bytes, "needed_bytes", (json_int_t)memory.needed_bytes,
                      "limit_bytes", (json_int_t)memory.limit_bytes, "busy_fraction", busy);
        if (object && device->host_bytes > 0)
            json_object_set_new(object, "host_bytes", json_integer((json_int_t)device->host_bytes));
        json_array_append_new(devices, object);
    }
    return devices;
}

static json_t *result_to_json(const Summary *self, const char *summary) {
    const Plan *plan = self->plan->plan;
    json_t *baselines = json_object(), *reasons = json_object();
    for (int32_t e = 0; e < BASELINE_COUNT; e++) {
        const BaselineResult *baseline = &self->plan->result.baselines[e];
        json_object_set_new(baselines, baseline_name((Baseline)e), number_or_null(baseline->seconds));
        if (baseline->reason)
            json_object_set_new(reasons, baseline_name((Baseline)e), plan_string_to_json(baseline->reason));
    }
    json_t *root = json_pack(
        "{s:s, s:f, s:o, s:s?, s:o, s:o, s:s, s:s, s:I, s:f, s:o, s:o, s:o, s:o}", "format",
        "automap-search-1", "step_seconds", plan->predicted_step_seconds, "bound_seconds",
        number_or_null(plan->bound_seconds), "bound", plan->bound, "gap", number_or_null(gap_of(plan)),
        "model_gap", number_or_null(self->plan->result.model_gap), "searcher", plan->searcher, "space",
        plan->space, "evaluations", (json_int_t)self->plan->result.evaluations, "search_seconds",
        self->plan->result.search_seconds, "baselines", baselines, "baseline_reasons", reasons, "devices",
        devices_to_json(self), "summary", plan_string_to_json(summary));
    json_t *found = root ? json_object() : NULL;
    for (int32_t k = 1; k < PLAN_ORIGIN_COUNT && found; k++)
        if (plan->found_seconds[k] > 0)
            json_object_set_new(found, plan_origin_name((PlanOrigin)k), json_real(plan->found_seconds[k]));
    json_t *targets = root ? json_object() : NULL;
    for (int32_t target = 0; target < TARGET_COUNT && targets; target++) {
        const Plan *on = self->plan->targets.on[target];
        if (self->plan->targets.on[TARGET_AUTOMAP])
            json_object_set_new(targets, target_row((Target)target)->name,
                                on ? json_real(on->predicted_step_seconds) : json_null());
    }
    if (targets) json_object_set_new(root, "targets", targets);
    if (self->plan->targets.free_seconds > 0) {
        json_object_set_new(root, "unrestricted_seconds", json_real(self->plan->targets.free_seconds));
        json_object_set_new(root, "restriction",
                            self->plan->targets.lack ? plan_string_to_json(self->plan->targets.lack)
                                                     : json_null());
    }
    if (found) json_object_set_new(root, "origin", json_string(plan_origin_name(plan->origin)));
    if (found) json_object_set_new(root, "found_seconds", found);
    if (root && !isnan(price_per_hour(self))) {
        json_object_set_new(root, "price_per_hour", json_real(price_per_hour(self)));
        json_object_set_new(root, "price_per_step", json_real(price_per_step(self)));
        if (self->plan->result.front) json_object_set_new(root, "pareto", front_to_json(self));
    }
    if (root && self->plan->measurements)
        json_object_set_new(root, "measurements", measurements_to_json(self->plan->measurements, true));
    if (root && self->plan->result.paper)
        json_object_set_new(root, "paper",
                            paper_report_to_json(self->plan->result.paper, self->plan->primary));
    return root;
}

static AmStatus append_summary(Text *text, const AmPlan *plan, bool is_verbose, AmFormat format,
                               AmError *error) {
    Arena arena = {0};
    Cluster *cluster = NULL;
    Summary self = {plan, NULL, &arena};
    Text summary = {0};
    AmStatus status = cluster_from_json(&cluster, &arena, plan->plan->cluster_description,
                                        plan->plan->source ? plan->plan->source : "the plan", error);
    self.cluster = cluster;
    if (status == AM_OK && format != AM_FORMAT_JSON) {
        status = print_summary(text, &self, is_verbose, error);
    } else if (status == AM_OK) {
        status = print_summary(&summary, &self, is_verbose, error);
        if (status == AM_OK)
            status = api_append_json(text, result_to_json(&self, summary.data ? summary.data : ""),
                                     JSON_STYLE_COMPACT, error);
    }
    text_free(&summary);
    cluster_free(cluster);
    arena_free(&arena);
    return status;
}

AmStatus am_plan_print(const AmPlan *plan, AmFormat format, int is_verbose, char **text, size_t *bytes,
                       AmError *error) {
    AmStatus status;
    api_begin(error);
    TRY(api_require(text, "text", error));
    *text = NULL;
    TRY(api_require(plan, "plan", error));
    TRY(api_check_format(format, false, error));
    Text all = {.is_styled = format == AM_FORMAT_TERMINAL};
    API_IN_C_LOCALE(status, append_summary(&all, plan, is_verbose, format, error), error);
    return api_end_text(status, text, bytes, &all, error);
}
