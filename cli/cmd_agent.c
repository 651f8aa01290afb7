/* automap agent: trains the pipeline inference agent, grades it, and writes the arrays that it is trained on.
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/array_file.h"
#include "base/clock.h"
#include "cli/agent_evaluate.h"
#include "cli/common.h"
#include "cli/host.h"
#include "planners/inference_file.h"
#include "planners/inference_grade.h"
#include "planners/inference_train.h"

#define DEFAULT_EPISODES 60000
#define DEFAULT_REPORTS  3
#define REPORT_SETS      500
#define REPORT_SEED      1000003 /* sets that no training under a smaller seed has seen */

/* The start of training, for its reports. */
typedef struct Report {
    const Cli *cli;
    double start;
    Text log;
} Report;

static AmStatus report_progress(void *user, const InferenceProgress *progress, AmError *error) {
    Report *report = user;
    InferenceGrade grade;
    TRY(inference_grade(&grade, progress->agent, INFERENCE_WIDTH, REPORT_SEED, REPORT_SETS, error));
    if (cli_has(report->cli, "--json")) {
        text_append(&report->log,
                    "{\"episodes\":%lld,\"loss\":%.6g,\"return\":%.6g,\"mean_gap\":%.6g,\"percentile_95_"
                    "gap\":%.6g}\n",
                    (long long)progress->episodes, progress->loss, progress->estimate, grade.mean,
                    grade.percentile_95);
    }
    cli_note(report->cli,
             "%lld of %lld episodes, %.0f s: loss %.5f, %d sets: mean %.2f %%, 95th percentile %.2f %%",
             (long long)progress->episodes, (long long)progress->episode_count,
             clock_seconds() - report->start, progress->loss, REPORT_SETS, 100 * grade.mean,
             100 * grade.percentile_95);
    return AM_OK;
}

static AmStatus train(const Cli *cli, AmError *error) {
    const char *path;
    int64_t seed = 0, episodes = DEFAULT_EPISODES, done;
    TRY(cli_need(cli, "-o", &path, error));
    TRY(cli_integer(cli, "--seed", 0, 1000000, &seed, error));
    TRY(cli_integer(cli, "--episodes", 1, 1000000000, &episodes, error));
    const char *suffix = strrchr(path, '.');
    if (!suffix || strcmp(suffix, ".safetensors") != 0)
        return am_fail(error, AM_ERROR_USAGE, path, "expected a name ending in .safetensors");
    TRY(array_file_check_writable(path, error));
    int64_t every = episodes / DEFAULT_REPORTS;
    TRY(cli_integer(cli, "--report", 1, 1000000000, &every, error));
    Report report = {.cli = cli, .start = clock_seconds()};
    InferenceTraining training = {.seed = (uint64_t)seed,
                                  .episodes = episodes,
                                  .checkpoint = cli_text(cli, "--checkpoint"),
                                  .resume = cli_has(cli, "--resume"),
                                  .interrupted = cli_catch_interrupts(),
                                  .report_every = every < INFERENCE_ROUND ? INFERENCE_ROUND : every,
                                  .on_report = report_progress,
                                  .user = &report};
    if (training.resume && !training.checkpoint)
        return am_fail(error, AM_ERROR_USAGE, "", "--resume goes with --checkpoint");
    Agent *agent;
    TRY(inference_train(&agent, &done, &training, error));
    char about[128];
    snprintf(about, sizeof(about), "automap agent train --episodes %lld --seed %lld%s", (long long)episodes,
             (long long)seed, done < episodes ? ", interrupted" : "");
    AmStatus status = inference_agent_write(agent, path, about, error);
    agent_free(agent);
    if (status == AM_OK && report.log.data) fputs(report.log.data, stdout);
    text_free(&report.log);
    if (status != AM_OK || !*training.interrupted) return status;
    cli_note(cli, "interrupted after %lld of %lld episodes; the agent so far is in %s", (long long)done,
             (long long)episodes, path);
    return AM_INTERRUPTED;
}

static AmStatus generate(const Cli *cli, AmError *error) {
    const char *path;
    int64_t seed = 0, count = 1000;
    TRY(cli_need(cli, "-o", &path, error));
    TRY(cli_integer(cli, "--seed", 0, 1000000, &seed, error));
    TRY(cli_integer(cli, "--count", 1, INFERENCE_FILE_MOST_SETS, &count, error));
    TRY(array_file_check_writable(path, error));
    return inference_file_write(path, (uint64_t)seed, (int32_t)count, error);
}

static const struct {
    const char *name;
    AmStatus (*run)(const Cli *cli, AmError *error);
} actions[] = {{"train", train}, {"evaluate", agent_evaluate}, {"generate", generate}};

static AmStatus run(const Cli *cli, AmError *error) {
    for (size_t k = 0; k < sizeof(actions) / sizeof(*actions); k++)
        if (strcmp(cli->arguments[0], actions[k].name) == 0) return actions[k].run(cli, error);
    return am_fail(error, AM_ERROR_USAGE, "", "unknown action %.100s; expected train, evaluate or generate",
                   cli->arguments[0]);
}

static const CliOption options[] = {
    {"--episodes", "N", "train: episodes in all (default 60000)", false},
    {"--report", "N", "train: episodes between reports and checkpoints (default: a third)", false},
    {"--checkpoint", "FILE", "train: state to continue from, written at every report", false},
    {"--resume", NULL, "train: goes on from --checkpoint", false},
    {"--cluster", "CLUSTER", "evaluate: the devices of profile graphs and modules (default C)", false},
    CLI_OPTION_NO_PROBE,
    {"--stages", "N", "evaluate: stages of files (default: one for each server; as arrays say)", false},
    {"--micro-batches", "M", "evaluate: of files (default 16, modules 8; as arrays say)", false},
    {"--width", "N", "evaluate: partial plans side by side (default 64; 1: the policy alone)", false},
    {"--count", "N", "evaluate: unseen sets (default 10000); generate: sets (default 1000)", false},
    CLI_OPTION_SEED,
    {0}};

const CliCommand CLI_AGENT = {.name = "agent",
                              .arguments = "train | evaluate AGENT [FILE...] | generate",
                              .summary =
                                  "the agent that cuts pipelines by inference: trains it on generated arrays "
                                  "(-o AGENT), grades it beside the exact optimum (evaluate AGENT), writes "
                                  "the arrays (generate -o ARRAYS.npz)",
                              .least_arguments = 1,
                              .most_arguments = CLI_MAX_ARGUMENTS,
                              .options = options,
                              .run = run};
