/* automap run: trains a module under a plan, or runs it on one device. */
#include <stdlib.h>
#include <string.h>

#include "api/option_rows.h"
#include "api/run_settings.h"
#include "cli/run/run_profile.h"
#include "cli/run/run_report.h"
#include "cli/run/run_watch.h"
#include "cost/simulate/simulate.h"
#include "executor/data/feed.h"
#include "executor/processes/world.h"

/* --watch 'output[2]'. */
static AmStatus read_watch(const Cli *cli, const PlanContext *context, int32_t *watch, int32_t *count,
                           AmError *error) {
    const char *const *values;
    *count = cli_texts(cli, "--watch", &values);
    for (int32_t k = 0; k < *count; k++) {
        char *end = NULL;
        long output = strncmp(values[k], "output[", 7) == 0 ? strtol(values[k] + 7, &end, 10) : -1;
        if (!end || end == values[k] + 7 || strcmp(end, "]") != 0 || output < 0 ||
            output >= context->roles->output_count)
            return am_fail(error, AM_ERROR_USAGE, "", "--watch %.60s: expected output[0] to output[%d]",
                           values[k], context->roles->output_count - 1);
        watch[k] = (int32_t)output;
    }
    return AM_OK;
}

typedef struct Running {
    Arena arena, warnings_arena;
    World *world; /* process 0 alone prints and writes */
    AmModule *module, *evaluation;
    AmOptions *options;
    AmPlan *plan; /* NULL: the whole module on one device */
    RunWatch watch;
    RunProfile profile;
    AmWarnings warnings;
} Running;

static AmStatus open_world(const Cli *cli, Running *self, AmError *error) {
    WorldOptions options = {0};
    TRY(cli_number(cli, "--join-seconds", 0.1, 1e6, &options.join_seconds, error));
    TRY(world_open(&self->world, &options, error));
    if (self->world->is_open && self->world->process == 0)
        cli_note(cli,
                 "warning: anyone who reaches this machine's port can join the run: set AUTOMAP_SECRET to "
                 "the same words for all processes");
    return AM_OK;
}

static AmStatus read_inputs(const Cli *cli, Running *self, AmError *error) {
    const char *plan_path;
    TRY(cli_need(cli, "--plan", &plan_path, error));
    if (self->world->process == 0) TRY(cli_read_module(cli, 0, &self->module, error));
    else TRY(am_module_read(&self->module, cli->arguments[0], cli_text(cli, "--roles"), error));
    if (strcmp(plan_path, "none") == 0) return AM_OK;
    TRY(am_plan_read(&self->plan, self->module, plan_path, error));
    bool is_inference = json_is_true(json_object_get(self->plan->plan->settings, "inference"));
    return is_inference ? AM_OK : cli_check_trains(cli, self->module, error);
}

/* --eval and its options; the module of an evaluation may train nothing. */
static AmStatus read_evaluation(const Cli *cli, Running *self, AmRunEvaluation *evaluation, AmError *error) {
    static const char *const others[] = {"--eval-data", "--eval-every", "--eval-roles"};
    const char *path = cli_text(cli, "--eval");
    for (size_t k = 0; k < sizeof others / sizeof *others && !path; k++)
        if (cli_has(cli, others[k]))
            return am_fail(error, AM_ERROR_USAGE, "",
                           "%s: no module to evaluate with (expected --eval MODEL)", others[k]);
    if (!path) return AM_OK;
    evaluation->data_count = cli_texts(cli, "--eval-data", &evaluation->data_paths);
    if (evaluation->data_count == 0)
        return am_fail(error, AM_ERROR_USAGE, "", "--eval: no held-out data (expected --eval-data FILE)");
    TRY(cli_integer(cli, "--eval-every", 1, INT64_MAX, &evaluation->every, error));
    TRY(am_module_read(&self->evaluation, path, cli_text(cli, "--eval-roles"), error));
    evaluation->context = self->evaluation->context;
    TRY(api_check_module(self->evaluation, error));
    if (self->world->process == 0) cli_warn(cli, &evaluation->context->canonical->warnings);
    return AM_OK;
}

static AmStatus write_results(const Cli *cli, Running *self, const AmRunReport *report, const Plan *plan,
                              AmError *error) {
    RunStream *stream = &self->watch.stream;
    if (stream->is_json) run_report_json(stream, report, plan);
    else if (!cli_has(cli, "--quiet")) run_report_text(stream, report, plan);
    return run_watch_commit(&self->watch, error);
}

/* The plan with its prediction. If the file was edited by hand, its prediction belongs to other
 * decisions and is computed again; the plan itself is unchanged, since processes compare it. */
static AmStatus predict(Running *self, Plan *predicted, const Plan *plan, AmError *error) {
    const SimulationOptions options = {.memory_fraction = CLUSTER_DEFAULT_MEMORY_FRACTION,
                                       .with_details = true};
    Arena scratch = {0};
    Cluster *cluster = NULL;
    Simulation *simulation;
    *predicted = *plan;
    if (!plan->is_changed) return AM_OK;
    AmStatus status = cluster_from_json(&cluster, &scratch, plan->cluster_description, "the plan", error);
    if (status == AM_OK)
        status =
            simulate_plan_with(&simulation, &scratch, self->module->context, plan, cluster, &options, error);
    if (status == AM_OK) status = simulation_predict(predicted, &self->arena, simulation, error);
    cluster_free(cluster);
    arena_free(&scratch);
    return status;
}

static AmStatus run_all(const Cli *cli, Running *self, AmError *error) {
    Plan predicted;
    int32_t watch[CLI_MAX_REPEATS];
    AmRunReport report = {0};
    AmRunOptions options = {.world = self->world,
                            .watch = watch,
                            .on_step = run_watch_step,
                            .on_note = run_watch_note,
                            .user = &self->watch,
                            .warnings = &self->warnings};
    TRY(cli_api_options(cli, AM_COMMAND_RUN, &self->options, error));
    TRY(run_settings_read(&options, self->options, error));
    TRY(read_inputs(cli, self, error));
    const Plan *plan = self->plan ? self->plan->plan : NULL;
    options.plan = plan;
    bool writes = self->world->process == 0;
    if (writes && plan) TRY(predict(self, &predicted, plan, error));
    options.interrupted = cli_catch_interrupts();
    TRY(read_evaluation(cli, self, &options.evaluation, error));
    TRY(read_watch(cli, self->module->context, watch, &options.watch_count, error));
    if (writes) TRY(run_watch_open(&self->watch, cli, &options, options.resume, error));
    if (writes)
        TRY(run_profile_open(&self->profile, &self->arena, cli_text(cli, "--profile"), &options, error));
    AmStatus status = run_module(self->module->context, &options, &self->arena, &report, error);
    if (writes) run_watch_end(&self->watch);
    if (writes) cli_warn(cli, &self->warnings);
    if (status != AM_OK && status != AM_INTERRUPTED) return status;
    if (writes) TRY(run_profile_end(&self->profile, error));
    if (writes) TRY(write_results(cli, self, &report, plan ? &predicted : NULL, error));
    return status;
}

static AmStatus run(const Cli *cli, AmError *error) {
    Running self = {0};
    self.warnings.arena = &self.warnings_arena;
    AmStatus status = open_world(cli, &self, error);
    /* A launcher that loses a process sends SIGTERM to the others: they are to end by themselves. */
    if (status == AM_OK && self.world->count > 1) cli_catch_interrupts();
    if (status == AM_OK) status = run_all(cli, &self, error);
    if (self.world && status != AM_OK && status != AM_INTERRUPTED) world_abort_for(self.world, error);
    run_watch_close(&self.watch);
    run_profile_close(&self.profile);
    world_close(self.world);
    am_plan_free(self.plan);
    am_options_free(self.options);
    am_module_free(self.module);
    am_module_free(self.evaluation);
    arena_free(&self.warnings_arena);
    arena_free(&self.arena);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("training"),
    {"--plan", "PLAN", "plan; none: the module on one device; required", false},
    RUN_TRAINING_ROWS(CLI_ROW) CLI_OPTION_ROLES,
    CLI_OPTION_INFERENCE,
    CLI_GROUP("data"),
    RUN_DATA_ROWS(CLI_ROW) CLI_GROUP("evaluation"),
    {"--eval", "MODEL", "module that runs over held-out data after the last step", false},
    {"--eval-data", "[NAME=]FILE", "held-out examples, in the forms of --data", true},
    {"--eval-every", "K", "an evaluation after every K steps, too", false},
    {"--eval-roles", "FILE", "its parameter roles (default: model.roles.json beside it)", false},
    CLI_GROUP("checkpoints"),
    RUN_CHECKPOINT_ROWS(CLI_ROW) CLI_GROUP("watching"),
    {"--watch", "'output[K]'", "value of output K at every step", true},
    RUN_OUTPUT_ROWS(CLI_ROW){"--log", "LOG.jsonl", "line of JSON per step: loss, rates, memory", false},
    {"--tensorboard", "DIR", "folder for an event file of TensorBoard", false},
    RUN_TRACE_ROWS(CLI_ROW){"--profile", "FILE",
                            "profile that receives operator times, for simulate --profile", false},
    CLI_GROUP("devices"),
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
