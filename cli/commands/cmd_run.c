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

static void report(void *user, const AmRunResult *result) {
    RunWatch *watch = user;
    run_watch_end(watch);
    if (watch->stream.is_json) run_report_json(&watch->stream, result);
    else if (!cli_has(watch->cli, "--quiet")) run_report_text(&watch->stream, result);
}

static AmStatus run_training(const Cli *cli, AmError *error) {
    AmProcesses *processes = NULL;
    AmModule *module = NULL;
    AmOptions *options = NULL;
    AmPlan *plan = NULL; /* NULL: the whole module on one device */
    RunWatch watch = {0};
    AmCallbacks callbacks = {.size = sizeof callbacks,
                             .user = &watch,
                             .on_step = run_watch_step,
                             .on_message = run_watch_message,
                             .on_result = report};
    const char *plan_path;
    double join_seconds = 0;
    AmStatus status;
    TRY_OR_FAIL(cli_number(cli, "--join-seconds", 0.1, 1e6, &join_seconds, error));
    TRY_OR_FAIL(am_processes_join(&processes, join_seconds, error));
    /* A launcher that loses a process sends SIGTERM to the others: they are to end by themselves. */
    if (am_processes_count(processes) > 1) cli_catch_interrupts();
    bool writes = am_processes_index(processes) == 0;
    TRY_OR_FAIL(cli_api_options(cli, AM_COMMAND_RUN, &options, error));
    TRY_OR_FAIL(cli_need(cli, "--plan", &plan_path, error));
    if (writes) TRY_OR_FAIL(cli_read_module(cli, 0, &module, error));
    else TRY_OR_FAIL(am_module_read(&module, cli->arguments[0], cli_text(cli, "--roles"), error));
    if (strcmp(plan_path, "none") != 0) TRY_OR_FAIL(am_plan_read(&plan, module, plan_path, error));
    callbacks.cancel = cli_catch_interrupts();
    if (writes) TRY_OR_FAIL(run_watch_open(&watch, cli, module, error));
    status = am_processes_run(processes, module, plan, options, &callbacks, NULL, error);
    if (writes) run_watch_end(&watch);
    if (writes && (status == AM_OK || status == AM_INTERRUPTED)) {
        AmStatus written = run_watch_commit(&watch, error);
        if (written != AM_OK) status = written;
    }
fail:
    run_watch_close(&watch);
    am_processes_leave(processes, status != AM_OK && status != AM_INTERRUPTED ? error : NULL);
    am_plan_free(plan);
    am_options_free(options);
    am_module_free(module);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("training"),
    {"--plan", "PLAN", "plan; none: the module on one device; required", false},
    RUN_TRAINING_ROWS(CLI_ROW) OPTION_ROW_ROLES(CLI_ROW) OPTION_ROW_INFERENCE(CLI_ROW) CLI_GROUP("data"),
    RUN_DATA_ROWS(CLI_ROW) CLI_GROUP("validation"),
    RUN_VALIDATION_ROWS(CLI_ROW) CLI_GROUP("checkpoints"),
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
    .run = run_training};
