/* simulate --sweep: the results, as a table and as JSON. Infeasible strategies are listed below the
 * table; numbers of micro-batches with the same reason share a line. */
#include "cli/commands/simulate_sweep.h"

#include <string.h>

#include "base/files/file.h"
#include "base/text.h"
#include "cli/commands/search_progress.h"
#include "cli/host.h"
#include "cli/terminal.h"
#include "cost/operator/profile.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/sweep.h"

AmStatus simulate_sweep_wanted(bool *wanted, const Cli *cli, AmError *error) {
    static const char *const of_plans[] = {"--trace", "--verbose", "--jitter", "--seed", "--slow"};
    static const char *const of_sweeps[] = {"--micro-batches", "--relax", "--schedule", "--plan"};
    *wanted = cli_has(cli, "--sweep");
    if (*wanted && cli->argument_count != 1)
        return am_fail(error, AM_ERROR_USAGE, "", "expected automap simulate --sweep MODEL, got %d arguments",
                       cli->argument_count);
    if (!*wanted && cli->argument_count != 2)
        return am_fail(error, AM_ERROR_USAGE, "", "expected automap simulate PLAN MODEL, got %d argument%s",
                       cli->argument_count, cli->argument_count == 1 ? "" : "s");
    for (size_t k = 0; *wanted && k < sizeof of_plans / sizeof *of_plans; k++)
        if (cli_has(cli, of_plans[k]))
            return am_fail(error, AM_ERROR_USAGE, "", "%s applies to one plan, not to --sweep", of_plans[k]);
    for (size_t k = 0; !*wanted && k < sizeof of_sweeps / sizeof *of_sweeps; k++)
        if (cli_has(cli, of_sweeps[k]))
            return am_fail(error, AM_ERROR_USAGE, "", "%s applies to --sweep; a plan has its own",
                           of_sweeps[k]);
    return AM_OK;
}

static AmStatus read_options(const Cli *cli, SweepOptions *options, AmError *error) {
    int64_t micro_batches = 0;
    *options = (SweepOptions){.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION};
    TRY(cli_number(cli, "--memory-fraction", 1e-6, 1, &options->memory_fraction, error));
    TRY(cli_integer(cli, "--micro-batches", 1, MICRO_BATCHES_MOST, &micro_batches, error));
    options->micro_batches = (int32_t)micro_batches;
    TRY(cli_relaxations(cli, &options->relaxations, error));
    TRY(cli_schedules(cli, &options->schedules, error));
    return AM_OK;
}

/* ---- text ---- */

static void append_row(Text *rows, const SweepRow *row) {
    text_append(rows, "%d\t%d\t%d\t%d\t%s\t", row->data, row->tensor, row->stages, row->micro_batches,
                row->schedule);
    text_append_seconds(rows, row->step_seconds);
    text_append_string(rows, "\t");
    if (row->examples_per_second > 0) text_append_count(rows, row->examples_per_second);
    text_append_string(rows, "\t");
    text_append_bytes_size(rows, (double)row->peak_bytes);
    text_append_string(rows, "\t");
    if (!row->fits) text_append_style(rows, TEXT_RED);
    text_append_string(rows, row->fits ? "yes" : "no");
    if (!row->fits) text_append_style(rows, TEXT_PLAIN);
    text_append_string(rows, "\n");
}

static bool same_but_micro_batches(const SweepRow *a, const SweepRow *b) {
    return a->data == b->data && a->tensor == b->tensor && a->stages == b->stages &&
           strcmp(a->reason, b->reason) == 0;
}

/* Rows `from` and after have reasons and stand by degrees. */
static void append_impossible(Text *text, const Sweep *sweep, int32_t from) {
    Text rows = {0};
    text_append_string(&rows, "data\ttensor\tstages\tmicro-batches\timpossible\n");
    for (int32_t k = from; k < sweep->row_count;) {
        const SweepRow *first = &sweep->rows[k];
        text_append(&rows, "%d\t%d\t%d\t%d", first->data, first->tensor, first->stages, first->micro_batches);
        for (k++; k < sweep->row_count && same_but_micro_batches(first, &sweep->rows[k]); k++)
            text_append(&rows, ", %d", sweep->rows[k].micro_batches);
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
    for (; simulated < sweep->row_count && !sweep->rows[simulated].reason; simulated++)
        append_row(&rows, &sweep->rows[simulated]);
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
    return json_pack("{s:s, s:s, s:i, s:I, s:o, s:s?, s:{s:f, s:f, s:f, s:f, s:f, s:f}}", "module",
                     sweep->module_name, "cluster", sweep->cluster_name, "devices", sweep->device_count,
                     "batch", (json_int_t)sweep->batch, "strategies", rows, "refusal", sweep->refusal,
                     "seconds", "wall", sweep->wall_seconds, "split", sweep->seconds.split, "recipe",
                     sweep->seconds.recipe, "lower", sweep->seconds.lower, "price", sweep->seconds.price,
                     "simulate", sweep->seconds.simulate);
}

/* --plan: of the first row, if that fits. */
static AmStatus write_best(const Cli *cli, Arena *arena, PlanContext *whole, const Cluster *cluster,
                           const SweepOptions *options, const Sweep *found, AmError *error) {
    const char *path = cli_text(cli, "--plan");
    Plan *plan;
    if (!path) return AM_OK;
    if (found->row_count == 0 || found->rows[0].reason || !found->rows[0].fits)
        return am_fail(error, AM_ERROR_INFEASIBLE, "", "--plan: no strategy of the sweep fits");
    TRY(sweep_plan(&plan, arena, whole, cluster, options, &found->rows[0], error));
    return plan_write(plan, whole, path, error);
}

static AmStatus run_sweep(const Cli *cli, Arena *arena, PlanContext **context, Cluster **cluster,
                          Profile *profile, AmError *error) {
    SweepOptions options;
    Sweep found;
    const char *name;
    TRY(cli_need(cli, "--cluster", &name, error));
    TRY(read_options(cli, &options, error));
    if (cli_has(cli, "--plan")) TRY(file_check_writable(cli_text(cli, "--plan"), error));
    TRY(cli_read_cluster(cli, cluster, arena, name, error));
    const char *measured = cli_text(cli, "--profile");
    if (measured) TRY(profile_read(profile, measured, error));
    if (measured) TRY(profile_attach(profile, *cluster, measured, error));
    TRY(cli_read_model(cli, 0, context, error));
    SearchProgressLine progress;
    search_progress_begin(&progress, cli, PROGRESS_SWEEP);
    options.watch = progress.watch;
    AmStatus swept = sweep(&found, arena, *context, *cluster, &options, error);
    search_progress_end(&progress);
    options.watch = NULL;
    TRY(swept);
    TRY(write_best(cli, arena, *context, *cluster, &options, &found, error));
    if (cli_has(cli, "--json")) return cli_output_json(cli, to_json(&found), JSON_STYLE_COMPACT, error);
    Text text = {.is_styled = terminal_output_is_styled(cli)};
    print(&text, &found);
    AmStatus status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

AmStatus simulate_sweep(const Cli *cli, AmError *error) {
    Arena arena = {0};
    PlanContext *context = NULL;
    Cluster *cluster = NULL;
    Profile *profile = NULL;
    AmStatus status = profile_open(&profile, error);
    if (status == AM_OK) status = run_sweep(cli, &arena, &context, &cluster, profile, error);
    profile_close(profile);
    cluster_free(cluster);
    plan_context_free(context);
    arena_free(&arena);
    return status;
}
