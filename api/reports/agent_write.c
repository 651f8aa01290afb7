/* am_agent_write(): trains the agent that cuts pipelines or the policy of --searcher dqn, or writes the
 * arrays of generated cut problems. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/reports/reports.h"
#include "base/files/array_file.h"
#include "base/system/clock.h"
#include "planners/cut_agent/cut_agent_file.h"
#include "planners/cut_agent/cut_agent_grade.h"
#include "planners/cut_agent/cut_agent_train.h"
#include "planners/single_stage/assignment_train.h"

#define DEFAULT_EPISODES    60000
#define DEFAULT_PROBLEMS    1000
#define DEFAULT_REPORTS     3
#define DEFAULT_SETS        1000
#define REPORT_SETS         500
#define VALIDATION_PROBLEMS 24
#define REPORT_SEED         1000003 /* sets that no training under a smaller seed has seen */

/* A call, with the clocks of its training. */
typedef struct AgentCall {
    const char *const *files;
    int32_t file_count;
    const char *path;
    const AmOptions *options;
    const AmCallbacks *callbacks;
    SearchWatch *watch;
    const volatile sig_atomic_t *stop;
    double start, grading; /* seconds: start of the training, sum over its gradings */
} AgentCall;

/* Calls on_episode with a line of JSON. */
static void report_line(const AgentCall *call, Text *line) {
    if (!line->failed && call->callbacks->on_episode)
        call->callbacks->on_episode(call->callbacks->user, line->data);
    text_free(line);
}

/* ---- the agent that cuts pipelines ---- */

static AmStatus report_progress(void *user, const CutAgentProgress *progress, AmError *error) {
    AgentCall *call = user;
    CutAgentGrade grade;
    Text line = {0};
    double now = clock_seconds(), training = now - call->start - call->grading;
    AmError refusal = {0};
    AmStatus status = cut_agent_grade(&grade, progress->agent, CUT_AGENT_WIDTH, REPORT_SEED, REPORT_SETS,
                                      call->stop, &refusal);
    if (status == AM_INTERRUPTED) return AM_OK; /* the training ends, and its agent is written */
    TRY(am_pass_error(status, &refusal, error));
    call->grading += clock_seconds() - now;
    text_append(&line,
                "{\"format\":\"automap-cut-training-1\",\"episodes\":%lld,\"seconds\":%.6g,\"loss\":%.6g,"
                "\"return\":%.6g,\"mean_gap\":%.6g,"
                "\"percentile_95_gap\":%.6g}",
                (long long)progress->episodes, training, progress->loss, progress->estimate, grade.mean,
                grade.percentile_95);
    report_line(call, &line);
    api_message(call->callbacks, AM_NOTE,
                "%lld of %lld episodes, %.0f s: loss %.5f, %d sets: mean %.2f %%, 95th percentile %.2f %%",
                (long long)progress->episodes, (long long)progress->episode_count,
                clock_seconds() - call->start, progress->loss, REPORT_SETS, 100 * grade.mean,
                100 * grade.percentile_95);
    return AM_OK;
}

/* Checks the file of the result and the options of a training. */
static AmStatus check_training(const AgentCall *call, AmError *error) {
    const char *suffix = strrchr(call->path, '.');
    if (!suffix || strcmp(suffix, ".safetensors") != 0)
        return am_fail(error, AM_ERROR_USAGE, call->path, "expected a name ending in .safetensors");
    TRY(array_file_check_writable(call->path, error));
    if (option_has(call->options, "resume") && !option_has(call->options, "checkpoint"))
        return am_fail(error, AM_ERROR_USAGE, "", "--resume goes with --checkpoint");
    return AM_OK;
}

static AmStatus train(AgentCall *call, AmError *error) {
    int64_t seed = 0, episodes = DEFAULT_EPISODES, done;
    int32_t device = DQN_CPU;
    Agent *agent;
    char about[128];
    option_integer(call->options, "seed", &seed);
    option_integer(call->options, "episodes", &episodes);
    option_choice(call->options, "device", &device);
    TRY(dqn_device_check((DqnDevice)device, error));
    TRY(check_training(call, error));
    int64_t every = episodes / DEFAULT_REPORTS;
    option_integer(call->options, "report", &every);
    const CutAgentTraining training = {.seed = (uint64_t)seed,
                                       .episodes = episodes,
                                       .device = (DqnDevice)device,
                                       .learner = option_text(call->options, "learner"),
                                       .checkpoint = option_text(call->options, "checkpoint"),
                                       .resume = option_has(call->options, "resume"),
                                       .interrupted = call->stop,
                                       .watch = call->watch,
                                       .report_every = every < CUT_AGENT_ROUND ? CUT_AGENT_ROUND : every,
                                       .on_report = report_progress,
                                       .user = call};
    TRY(cut_agent_train(&agent, &done, &training, error));
    snprintf(about, sizeof(about), "automap agent train --episodes %lld --seed %lld%s", (long long)episodes,
             (long long)seed, done < episodes ? ", interrupted" : "");
    AmStatus status = cut_agent_write(agent, call->path, about, error);
    agent_free(agent);
    if (status != AM_OK || !stop_flag_is_set(call->stop)) return status;
    return am_fail(error, AM_INTERRUPTED, "",
                   "interrupted after %lld of %lld episodes; the agent so far is in %s", (long long)done,
                   (long long)episodes, call->path);
}

/* ---- the policy of --searcher dqn ---- */

static void report_assignments(void *user, const AssignmentProgress *progress) {
    const AgentCall *call = user;
    double seconds = clock_seconds() - call->start;
    Text line = {0};
    text_append(&line,
                "{\"format\":\"automap-search-training-1\",\"problems\":%lld,\"seconds\":%.6g,\"loss\":%.6g,"
                "\"gain\":%.6g,\"error\":%.6g,\"regret\":%.6g}",
                (long long)progress->problems, seconds, progress->loss, progress->gain, progress->error,
                progress->regret);
    report_line(call, &line);
    api_message(
        call->callbacks, AM_NOTE,
        "%lld of %lld problems, %.0f s: loss %.4f; unseen problems: first plan %.2f times as quick as no "
        "split, %.3f times the step of annealing",
        (long long)progress->problems, (long long)progress->problem_count, seconds, progress->loss,
        exp(progress->gain), exp(progress->regret));
}

/* Trains until the problems are done or the caller stops, and writes the policy. */
static AmStatus train_policy(AgentCall *call, const AssignmentTraining *training, AmError *error) {
    AssignmentPolicy policy;
    int64_t done;
    char about[128], prices[ASSIGNMENT_PRICES_BYTES];
    TRY(assignment_prices_text(prices, &training->modules[0], error));
    TRY(assignment_train(&policy, &done, training, error));
    snprintf(about, sizeof(about), "automap agent train-search --problems %lld --seed %lld%s, %lld done",
             (long long)training->problems, (long long)training->seed,
             training->is_supervised ? " --supervised" : "", (long long)done);
    AmStatus status = assignment_policy_write(&policy, call->path, about, prices, error);
    assignment_policy_close(&policy);
    if (status != AM_OK || !stop_flag_is_set(call->stop)) return status;
    return am_fail(error, AM_INTERRUPTED, "",
                   "interrupted after %lld of %lld problems; the policy so far is in %s", (long long)done,
                   (long long)training->problems, call->path);
}

static AmStatus train_search(AgentCall *call, AmError *error) {
    int64_t seed = 0, problems = DEFAULT_PROBLEMS;
    Arena arena = {0};
    option_integer(call->options, "seed", &seed);
    option_integer(call->options, "problems", &problems);
    TRY(check_training(call, error));
    int64_t every = problems / 10 + 1;
    option_integer(call->options, "report", &every);
    AssignmentModule *modules = ARENA_ARRAY(&arena, AssignmentModule, call->file_count);
    PlanContext **contexts = ARENA_ARRAY(&arena, PlanContext *, call->file_count);
    AmStatus status = modules && contexts ? AM_OK : am_fail_memory(error, call->file_count);
    AssignmentTraining training = {.modules = modules,
                                   .seed = (uint64_t)seed,
                                   .problems = problems,
                                   .learner = option_text(call->options, "learner"),
                                   .is_supervised = option_has(call->options, "supervised"),
                                   .checkpoint = option_text(call->options, "checkpoint"),
                                   .resume = option_has(call->options, "resume"),
                                   .report_every = every,
                                   .validation_problems = VALIDATION_PROBLEMS,
                                   .interrupted = call->stop,
                                   .watch = call->watch,
                                   .on_report = report_assignments,
                                   .user = call};
    for (int32_t k = 0; k < call->file_count && status == AM_OK; k++) {
        status = plan_context_read(&contexts[k], call->files[k], NULL, error);
        if (status == AM_OK) status = api_check_trains(&(AmModule){.context = contexts[k]}, error);
        if (status == AM_OK) status = assignment_module_measure(&modules[k], contexts[k], error);
        training.module_count = k + 1;
    }
    call->start = clock_seconds();
    if (status == AM_OK) status = train_policy(call, &training, error);
    for (int32_t k = 0; contexts && k < call->file_count; k++) plan_context_free(contexts[k]);
    arena_free(&arena);
    return status;
}

/* ---- generated problems ---- */

static AmStatus train_or_generate(ApiWork *work, AmError *error) {
    AgentCall *call = work->user;
    call->watch = work->watch;
    call->stop = api_work_flag(work);
    call->start = clock_seconds();
    if (call->options->command == AM_COMMAND_AGENT_TRAIN) return train(call, error);
    if (call->options->command == AM_COMMAND_AGENT_TRAIN_SEARCH) return train_search(call, error);
    int64_t seed = 0, count = DEFAULT_SETS;
    option_integer(call->options, "seed", &seed);
    option_integer(call->options, "count", &count);
    TRY(array_file_check_writable(call->path, error));
    return cut_agent_file_write(call->path, (uint64_t)seed, (int32_t)count, call->stop, error);
}

AmStatus am_agent_write(const char *const *files, int32_t file_count, const char *path,
                        const AmOptions *options, const AmCallbacks *callbacks, AmError *error) {
    AmCallbacks own;
    api_begin(error);
    TRY(api_require(options, "options", error));
    TRY(api_require(path, "path", error));
    AmCommand command = options->command;
    if (command != AM_COMMAND_AGENT_TRAIN && command != AM_COMMAND_AGENT_TRAIN_SEARCH &&
        command != AM_COMMAND_AGENT_GENERATE)
        return am_fail(error, AM_ERROR_USAGE, "", "options: of a command that writes no agent");
    bool has_files = command == AM_COMMAND_AGENT_TRAIN_SEARCH;
    if (has_files ? file_count < 1 : file_count != 0)
        return am_fail(error, AM_ERROR_USAGE, "", "file_count %d: expected %s", (int)file_count,
                       has_files ? "at least one module" : "no file");
    for (int32_t k = 0; k < file_count; k++) TRY(api_require(files ? files[k] : NULL, "files", error));
    TRY(api_copy_callbacks(&own, callbacks, error));
    AgentCall call = {files, file_count, path, options, &own, NULL, NULL, 0, 0};
    ApiWork work = {.callbacks = &own, .run = train_or_generate, .user = &call};
    return api_work_run(&work, 0, error);
}
