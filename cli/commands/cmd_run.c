/* automap run: trains a module under a plan, or runs it on one device.
 *
 * Joins the processes of the run first (am_processes_join()), then reads the module and the plan, and runs
 * with the observers of cli/run. Process 0 alone prints and writes.
 */
#include <string.h>

#include "api/option_rows.h"
#include "automap.h"
#include "cli/run/run_report.h"
#include "cli/run/run_watch.h"

typedef struct Running {
    AmProcesses *processes; /* process 0 alone prints and writes */
    AmModule *module;
    AmOptions *options;
    AmPlan *plan; /* NULL: the whole module on one device */
    RunWatch watch;
} Running;

static AmStatus read_inputs(const Cli *cli, Running *self, bool writes, AmError *error) {
    const char *plan_path;
    TRY(cli_need(cli, "--plan", &plan_path, error));
    if (writes) TRY(cli_read_module(cli, 0, &self->module, error));
    else TRY(am_module_read(&self->module, cli->arguments[0], cli_text(cli, "--roles"), error));
    if (strcmp(plan_path, "none") == 0) return AM_OK;
    return am_plan_read(&self->plan, self->module, plan_path, error);
}

static void report(void *user, const AmRunResult *result) {
    RunWatch *watch = user;
    run_watch_end(watch);
    if (watch->stream.is_json) run_report_json(&watch->stream, result);
    else if (!cli_has(watch->cli, "--quiet")) run_report_text(&watch->stream, result);
}

static AmStatus run_all(const Cli *cli, Running *self, AmError *error) {
    AmCallbacks callbacks = {.size = sizeof callbacks,
                             .user = &self->watch,
                             .on_step = run_watch_step,
                             .on_message = run_watch_message,
                             .on_result = report};
    double join_seconds = 0;
    TRY(cli_number(cli, "--join-seconds", 0.1, 1e6, &join_seconds, error));
    TRY(am_processes_join(&self->processes, join_seconds, error));
    /* A launcher that loses a process sends SIGTERM to the others: they are to end by themselves. */
    if (am_processes_count(self->processes) > 1) cli_catch_interrupts();
    bool writes = am_processes_index(self->processes) == 0;
    TRY(cli_api_options(cli, AM_COMMAND_RUN, &self->options, error));
    TRY(read_inputs(cli, self, writes, error));
    callbacks.cancel = cli_catch_interrupts();
    if (writes) TRY(run_watch_open(&self->watch, cli, self->module, error));
    AmStatus status =
        am_processes_run(self->processes, self->module, self->plan, self->options, &callbacks, NULL, error);
    if (writes) run_watch_end(&self->watch);
    if (status != AM_OK && status != AM_INTERRUPTED) return status;
    if (writes) TRY(run_watch_commit(&self->watch, error));
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    Running self = {0};
    AmStatus status = run_all(cli, &self, error);
    run_watch_close(&self.watch);
    am_processes_leave(self.processes, status != AM_OK && status != AM_INTERRUPTED ? error : NULL);
    am_plan_free(self.plan);
    am_options_free(self.options);
    am_module_free(self.module);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("training"),
    {"--plan", "PLAN", "plan; none: the module on one device; required", false},
    RUN_TRAINING_ROWS(CLI_ROW) OPTION_ROW_ROLES(CLI_ROW) OPTION_ROW_INFERENCE(CLI_ROW) CLI_GROUP("data"),
    RUN_DATA_ROWS(CLI_ROW) CLI_GROUP("evaluation"),
    RUN_EVALUATION_ROWS(CLI_ROW) CLI_GROUP("checkpoints"),
    RUN_CHECKPOINT_ROWS(CLI_ROW) CLI_GROUP("watching"),
    RUN_OUTPUT_ROWS(CLI_ROW){"--log", "LOG.jsonl", "line of JSON per step: loss, rates, memory", false},
    {"--tensorboard", "DIR", "folder for an event file of TensorBoard", false},
    RUN_TRACE_ROWS(CLI_ROW) CLI_GROUP("devices"),
    RUN_DEVICE_ROWS(CLI_ROW){"--join-seconds", "S", "longest wait of processes for one another (default 60)",
                             false},
    RUN_PRECISION_ROWS(CLI_ROW){0}};

const CliCommand CLI_RUN = {
    .name = "run",
    .arguments = "MODEL",
    .summary = "trains under a plan: a line per step, then measured next to predicted",
    .least_arguments = 1,
    .most_arguments = 1,
    .options = options,
    .examples = "run model.hlo.pb --plan plan.json --state random --data data.npz --steps 100\n"
                "run model.hlo.pb --plan none --state state.npz --data data.npz",
    .notes =
        "Each device of the plan is a thread. An interrupt ends the run after the current step: the state "
        "is\n"
        "saved where an option names a file or folder, the exit code is 130.\n"
        "\n"
        "Started by mpirun, torchrun (--no-python) or srun, the processes share the plan's devices evenly;\n"
        "on the CPU they use MPI, so mpirun starts them (or srun --mpi=pmix). Process 0 prints and writes.\n"
        "When one fails, all others end with exit code 5 and a line that names it; this needs the option\n"
        "--enable-recovery of Open MPI or -disable-auto-cleanup of MPICH. On a shared network, set\n"
        "AUTOMAP_SECRET to the same words for all; AUTOMAP_PORT replaces the port of process 0.",
    .run = run};
