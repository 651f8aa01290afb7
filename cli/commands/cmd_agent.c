/* automap agent: trains the pipeline inference agent, grades it, and writes the arrays that it is trained on;
 * trains the policy of --searcher dqn. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/files/array_file.h"
#include "base/system/clock.h"
#include "cli/commands/agent_evaluate.h"
#include "cli/commands/search_progress.h"
#include "cli/host.h"
#include "planners/cut_agent/cut_agent_file.h"
#include "planners/cut_agent/cut_agent_grade.h"
#include "planners/cut_agent/cut_agent_train.h"
#include "planners/single_stage/assignment_train.h"

#define DEFAULT_EPISODES    60000
#define DEFAULT_PROBLEMS    1000
#define DEFAULT_REPORTS     3
#define REPORT_SETS         500
#define VALIDATION_PROBLEMS 24
#define REPORT_SEED         1000003 /* sets that no training under a smaller seed has seen */

/* Clocks of a training and the texts of its reports. */
typedef struct Report {
    const Cli *cli;
    double start, grading; /* seconds: start of the training, sum over its gradings */
    Text log;
    SearchProgressLine progress;
} Report;

static AmStatus report_progress(void *user, const CutAgentProgress *progress, AmError *error) {
    Report *report = user;
    CutAgentGrade grade;
    double now = clock_seconds(), training = now - report->start - report->grading;
    TRY(cut_agent_grade(&grade, progress->agent, CUT_AGENT_WIDTH, REPORT_SEED, REPORT_SETS, error));
    report->grading += clock_seconds() - now;
    if (cli_has(report->cli, "--json")) {
        text_append(&report->log,
                    "{\"format\":\"automap-cut-training-1\",\"episodes\":%lld,\"seconds\":%.6g,\"loss\":%.6g,"
                    "\"return\":%.6g,\"mean_gap\":%.6g,"
                    "\"percentile_95_"
                    "gap\":%.6g}\n",
                    (long long)progress->episodes, training, progress->loss, progress->estimate, grade.mean,
                    grade.percentile_95);
    }
    search_progress_hold(&report->progress);
    cli_note(report->cli,
             "%lld of %lld episodes, %.0f s: loss %.5f, %d sets: mean %.2f %%, 95th percentile %.2f %%",
             (long long)progress->episodes, (long long)progress->episode_count,
             clock_seconds() - report->start, progress->loss, REPORT_SETS, 100 * grade.mean,
             100 * grade.percentile_95);
    search_progress_release(&report->progress);
    return AM_OK;
}

static const char *device_of(int32_t k) {
    return dqn_device_name((DqnDevice)k);
}

static AmStatus train(const Cli *cli, AmError *error) {
    const char *path;
    int64_t seed = 0, episodes = DEFAULT_EPISODES, done;
    int32_t device = DQN_CPU;
    TRY(cli_need(cli, "-o", &path, error));
    TRY(cli_integer(cli, "--seed", 0, 1000000, &seed, error));
    TRY(cli_integer(cli, "--episodes", 1, 1000000000, &episodes, error));
    TRY(cli_choice(cli, "--device", device_of, DQN_DEVICE_COUNT, &device, error));
    TRY(dqn_device_check((DqnDevice)device, error));
    const char *suffix = strrchr(path, '.');
    if (!suffix || strcmp(suffix, ".safetensors") != 0)
        return am_fail(error, AM_ERROR_USAGE, path, "expected a name ending in .safetensors");
    TRY(array_file_check_writable(path, error));
    int64_t every = episodes / DEFAULT_REPORTS;
    TRY(cli_integer(cli, "--report", 1, 1000000000, &every, error));
    Report report = {.cli = cli, .start = clock_seconds()};
    CutAgentTraining training = {.seed = (uint64_t)seed,
                                 .episodes = episodes,
                                 .device = (DqnDevice)device,
                                 .learner = cli_text(cli, "--learner"),
                                 .checkpoint = cli_text(cli, "--checkpoint"),
                                 .resume = cli_has(cli, "--resume"),
                                 .interrupted = cli_catch_interrupts(),
                                 .report_every = every < CUT_AGENT_ROUND ? CUT_AGENT_ROUND : every,
                                 .on_report = report_progress,
                                 .user = &report};
    if (training.resume && !training.checkpoint)
        return am_fail(error, AM_ERROR_USAGE, "", "--resume goes with --checkpoint");
    Agent *agent;
    cli_release_notes(cli);
    search_progress_begin(&report.progress, cli, PROGRESS_TRAINING);
    training.watch = report.progress.watch;
    AmStatus trained = cut_agent_train(&agent, &done, &training, error);
    search_progress_end(&report.progress);
    TRY(trained);
    char about[128];
    snprintf(about, sizeof(about), "automap agent train --episodes %lld --seed %lld%s", (long long)episodes,
             (long long)seed, done < episodes ? ", interrupted" : "");
    AmStatus status = cut_agent_write(agent, path, about, error);
    agent_free(agent);
    if (status == AM_OK && report.log.data) fputs(report.log.data, stdout);
    text_free(&report.log);
    if (status != AM_OK || !*training.interrupted) return status;
    cli_note(cli, "interrupted after %lld of %lld episodes; the agent so far is in %s", (long long)done,
             (long long)episodes, path);
    return AM_INTERRUPTED;
}

/* Reports the progress of a training of the assignment policy. */
static void report_assignments(void *user, const AssignmentProgress *progress) {
    Report *report = user;
    double seconds = clock_seconds() - report->start;
    if (cli_has(report->cli, "--json"))
        text_append(&report->log,
                    "{\"format\":\"automap-search-training-1\",\"problems\":%lld,\"seconds\":%.6g,\"loss\":%."
                    "6g,\"gain\":%.6g,\"error\":%.6g,"
                    "\"regret\":%.6g}\n",
                    (long long)progress->problems, seconds, progress->loss, progress->gain, progress->error,
                    progress->regret);
    search_progress_hold(&report->progress);
    cli_note(
        report->cli,
        "%lld of %lld problems, %.0f s: loss %.4f; unseen problems: first plan %.2f times as quick as no "
        "split, %.3f times the step of annealing",
        (long long)progress->problems, (long long)progress->problem_count, seconds, progress->loss,
        exp(progress->gain), exp(progress->regret));
    search_progress_release(&report->progress);
}

/* Trains until the problems are done or the user interrupts, and writes the policy. */
static AmStatus train_policy(const Cli *cli, AssignmentTraining *training, const char *path, AmError *error) {
    Agent *agent;
    int64_t done;
    Report report = {.cli = cli, .start = clock_seconds()};
    training->interrupted = cli_catch_interrupts();
    training->on_report = report_assignments;
    training->user = &report;
    cli_release_notes(cli);
    search_progress_begin(&report.progress, cli, PROGRESS_TRAINING);
    training->watch = report.progress.watch;
    AmStatus trained = assignment_train(&agent, &done, training, error);
    search_progress_end(&report.progress);
    TRY(trained);
    char about[128];
    snprintf(about, sizeof(about), "automap agent train-search --problems %lld --seed %lld%s, %lld done",
             (long long)training->problems, (long long)training->seed,
             training->is_supervised ? " --supervised" : "", (long long)done);
    AmStatus status = assignment_agent_write(agent, path, about, error);
    agent_free(agent);
    if (status == AM_OK && report.log.data) fputs(report.log.data, stdout);
    text_free(&report.log);
    if (status != AM_OK || !stop_flag_is_set(training->interrupted)) return status;
    cli_note(cli, "interrupted after %lld of %lld problems; the policy so far is in %s", (long long)done,
             (long long)training->problems, path);
    return AM_INTERRUPTED;
}

static AmStatus train_search(const Cli *cli, AmError *error) {
    const char *path;
    int64_t seed = 0, problems = DEFAULT_PROBLEMS;
    TRY(cli_need(cli, "-o", &path, error));
    TRY(cli_integer(cli, "--seed", 0, 1000000, &seed, error));
    TRY(cli_integer(cli, "--problems", 1, 1000000000, &problems, error));
    const char *suffix = strrchr(path, '.');
    if (!suffix || strcmp(suffix, ".safetensors") != 0)
        return am_fail(error, AM_ERROR_USAGE, path, "expected a name ending in .safetensors");
    TRY(array_file_check_writable(path, error));
    int64_t every = problems / 10 + 1;
    TRY(cli_integer(cli, "--report", 1, 1000000000, &every, error));
    AssignmentModule modules[CLI_MAX_ARGUMENTS];
    AssignmentTraining training = {.modules = modules,
                                   .seed = (uint64_t)seed,
                                   .problems = problems,
                                   .learner = cli_text(cli, "--learner"),
                                   .is_supervised = cli_has(cli, "--supervised"),
                                   .checkpoint = cli_text(cli, "--checkpoint"),
                                   .resume = cli_has(cli, "--resume"),
                                   .report_every = every,
                                   .validation_problems = VALIDATION_PROBLEMS};
    if (training.resume && !training.checkpoint)
        return am_fail(error, AM_ERROR_USAGE, "", "--resume goes with --checkpoint");
    PlanContext *contexts[CLI_MAX_ARGUMENTS] = {NULL};
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < cli->argument_count && status == AM_OK; k++) {
        status = plan_context_read(&contexts[k], cli->arguments[k], NULL, error);
        if (status == AM_OK) status = cli_check_trains(cli, &(AmModule){.context = contexts[k]}, error);
        if (status == AM_OK) status = assignment_module_measure(&modules[k], contexts[k], error);
        training.module_count = k + 1;
    }
    if (status == AM_OK) status = train_policy(cli, &training, path, error);
    for (int32_t k = 0; k < cli->argument_count; k++) plan_context_free(contexts[k]);
    return status;
}

static AmStatus generate(const Cli *cli, AmError *error) {
    const char *path;
    int64_t seed = 0, count = 1000;
    TRY(cli_need(cli, "-o", &path, error));
    TRY(cli_integer(cli, "--seed", 0, 1000000, &seed, error));
    TRY(cli_integer(cli, "--count", 1, CUT_AGENT_FILE_MOST_SETS, &count, error));
    TRY(array_file_check_writable(path, error));
    return cut_agent_file_write(path, (uint64_t)seed, (int32_t)count, error);
}

static const CliOption train_options[] = {
    CLI_GROUP("training"),
    {"--episodes", "N", "episodes in all (default 60000)", false},
    CLI_OPTION_SEED,
    {"--device", "cpu|cuda", "device for the training (default cpu)", false},
    {"--learner", "PARTS", "parts of Rainbow: prioritized=off,n-step=N,noisy,atoms=N", false},
    CLI_GROUP("checkpoints"),
    {"--report", "N", "episodes between reports and checkpoints (default: a third)", false},
    {"--checkpoint", "FILE", "state to continue from, written at every report", false},
    {"--resume", NULL, "training continues from --checkpoint", false},
    {0}};

static const CliOption evaluate_options[] = {
    CLI_GROUP("evaluation"),
    {"--cluster", "CLUSTER", "devices of profile graphs and modules (default C)", false},
    CLI_OPTION_NO_PROBE,
    {"--stages", "N", "stages of files (default: one per server; arrays have their own)", false},
    {"--micro-batches", "M", "micro-batches of files (default 16, modules 8; arrays have their own)", false},
    {"--width", "N", "partial plans side by side (default 64; 1: the policy alone)", false},
    {"--count", "N", "unseen sets (default 10000)", false},
    CLI_OPTION_SEED,
    {0}};

static const CliOption generate_options[] = {
    CLI_GROUP("arrays"), {"--count", "N", "sets (default 1000)", false}, CLI_OPTION_SEED, {0}};

static const CliCommand train_command = {.name = "agent train",
                                         .arguments = "",
                                         .summary =
                                             "trains the agent on generated arrays and writes it to -o",
                                         .options = train_options,
                                         .examples = "agent train --episodes 60000 -o agent.safetensors",
                                         .run = train};

static const CliCommand evaluate_command = {
    .name = "agent evaluate",
    .arguments = "AGENT [FILE...]",
    .summary = "grades the agent beside the exact optimum",
    .least_arguments = 1,
    .most_arguments = CLI_MAX_ARGUMENTS,
    .options = evaluate_options,
    .notes = "FILE: arrays, a profile graph or a module; without FILE unseen sets are generated.",
    .examples = "agent evaluate agent.safetensors\n"
                "agent evaluate agent.safetensors gpt2.hlo.pb --cluster h100:4",
    .run = agent_evaluate};

static const CliCommand generate_command = {.name = "agent generate",
                                            .arguments = "",
                                            .summary = "writes arrays of generated sets to -o",
                                            .options = generate_options,
                                            .examples = "agent generate --count 100 -o arrays.npz",
                                            .run = generate};

static const CliOption train_search_options[] = {
    CLI_GROUP("training"),
    {"--problems", "N", "generated problems (default 1000)", false},
    CLI_OPTION_SEED,
    {"--learner", "PARTS", "parts of Rainbow: n-step=N,double,prioritized=off,noisy,atoms=N", false},
    {"--supervised", NULL, "regression on the teacher's plans, without episodes", false},
    CLI_GROUP("checkpoints"),
    {"--report", "N", "problems between reports and checkpoints (default: a tenth)", false},
    {"--checkpoint", "FILE", "state to continue from, written at every report", false},
    {"--resume", NULL, "training continues from --checkpoint", false},
    {0}};

static const CliCommand train_search_command = {
    .name = "agent train-search",
    .arguments = "MODEL...",
    .summary = "trains the policy of --searcher dqn and writes it to -o",
    .least_arguments = 1,
    .most_arguments = CLI_MAX_ARGUMENTS,
    .options = train_search_options,
    .notes = "A problem is one of the modules on a random cluster and mesh.",
    .examples = "agent train-search bert_tiny.hlo.pb mlp.hlo.pb --problems 200 -o policy.safetensors",
    .run = train_search};

static const CliCommand *const actions[] = {&train_command, &train_search_command, &evaluate_command,
                                            &generate_command, NULL};
static const CliOption no_options[] = {{0}};

const CliCommand CLI_AGENT = {.name = "agent",
                              .arguments =
                                  "train | train-search MODEL... | evaluate AGENT [FILE...] | generate",
                              .summary = "trained agents: pipelines by inference, and --searcher dqn",
                              .options = no_options,
                              .notes = "automap help agent train lists the options of an action.",
                              .examples = "agent train -o agent.safetensors\n"
                                          "agent evaluate agent.safetensors",
                              .actions = actions};
