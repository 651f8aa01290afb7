/* simulate --sweep: all strategies of a module on a cluster, as a table.
 *
 * The API simulates and prints the rows; this file chooses the output and writes the fastest plan that fits
 * to --plan.
 */
#include "cli/commands/simulate_sweep.h"

#include "base/files/file.h"
#include "cli/commands/search_progress.h"
#include "cli/open_cluster.h"

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

typedef struct Sweeping {
    AmModule *module;
    AmCluster *cluster;
    AmOptions *options;
    AmSweep *sweep;
    AmPlan *plan; /* --plan */
} Sweeping;

static AmStatus write_best(const Cli *cli, Sweeping *self, AmError *error) {
    const char *path = cli_text(cli, "--plan");
    AmStrategy best = {.size = sizeof best};
    if (!path) return AM_OK;
    if (am_sweep_count(self->sweep) > 0) TRY(am_sweep_strategy(self->sweep, 0, &best, error));
    if (!best.fits) return am_fail(error, AM_ERROR_INFEASIBLE, "", "--plan: no strategy of the sweep fits");
    TRY(am_sweep_plan(&self->plan, self->sweep, 0, error));
    return am_plan_write(self->plan, path, error);
}

static AmStatus run_sweep(const Cli *cli, Sweeping *self, AmError *error) {
    const char *name;
    SearchProgressLine progress;
    char *text;
    size_t bytes;
    TRY(cli_need(cli, "--cluster", &name, error));
    TRY(cli_api_options(cli, AM_COMMAND_SWEEP, &self->options, error));
    if (cli_has(cli, "--plan")) TRY(file_check_writable(cli_text(cli, "--plan"), error));
    TRY(cli_open_cluster(cli, &self->cluster, name, NULL, error));
    TRY(cli_read_module(cli, 0, &self->module, error));
    bool is_shown = search_progress_open(&progress, cli, PROGRESS_SWEEP, 0);
    const AmCallbacks callbacks = {
        .size = sizeof callbacks, .user = &progress, .on_progress = is_shown ? search_progress_show : NULL};
    AmStatus status = am_sweep(&self->sweep, self->module, self->cluster, self->options, &callbacks, error);
    search_progress_close(&progress);
    TRY(status);
    TRY(write_best(cli, self, error));
    TRY(am_sweep_print(self->sweep, cli_format(cli), &text, &bytes, error));
    return cli_output_buffer(cli, text, bytes, error);
}

AmStatus simulate_sweep(const Cli *cli, AmError *error) {
    Sweeping self = {0};
    AmStatus status = run_sweep(cli, &self, error);
    am_plan_free(self.plan);
    am_sweep_free(self.sweep);
    am_options_free(self.options);
    am_cluster_free(self.cluster);
    am_module_free(self.module);
    return status;
}
