/* automap agent: trains the agent that cuts pipelines, grades it, and writes the arrays that it is trained
 * on; trains the policy of --searcher dqn. */
#include <stdio.h>

#include "api/option_rows.h"
#include "cli/commands/search_progress.h"

/* A training with its line of progress; the lines of JSON are printed at its end. */
typedef struct TrainingRun {
    const Cli *cli;
    Text log;
    SearchProgressLine progress;
} TrainingRun;

static void add_line(void *user, const char *json) {
    TrainingRun *self = user;
    if (cli_has(self->cli, "--json")) text_append(&self->log, "%s\n", json);
}

static void note(void *user, AmMessage kind, const char *text) {
    TrainingRun *self = user;
    (void)kind;
    search_progress_hold(&self->progress);
    cli_note(self->cli, "%s", text);
    search_progress_release(&self->progress);
}

static int show(void *user, const AmProgress *progress) {
    return search_progress_show(&((TrainingRun *)user)->progress, progress);
}

/* Writes -o; an interrupted training writes it, too. Other work ends at once when interrupted. */
static AmStatus write_agent(const Cli *cli, AmCommand command, AmError *error) {
    const char *path;
    AmOptions *options = NULL;
    TrainingRun self = {.cli = cli};
    bool is_training = command != AM_COMMAND_AGENT_GENERATE;
    TRY(cli_need(cli, "-o", &path, error));
    AmStatus status = cli_api_options(cli, command, &options, error);
    if (status != AM_OK) return status;
    search_progress_open(&self.progress, cli, PROGRESS_TRAINING, 0);
    const AmCallbacks callbacks = {.size = sizeof callbacks,
                                   .user = &self,
                                   .on_progress = show,
                                   .on_message = note,
                                   .on_episode = add_line,
                                   .cancel = is_training ? cli_catch_interrupts() : NULL};
    status = am_agent_write(cli->arguments, cli->argument_count, path, options, &callbacks, error);
    search_progress_close(&self.progress);
    if ((status == AM_OK || status == AM_INTERRUPTED) && self.log.data) fputs(self.log.data, stdout);
    if (status == AM_INTERRUPTED && error) {
        cli_note(cli, "%s", error->text);
        *error = (AmError){0};
    }
    text_free(&self.log);
    am_options_free(options);
    return status;
}

static AmStatus train(const Cli *cli, AmError *error) {
    return write_agent(cli, AM_COMMAND_AGENT_TRAIN, error);
}

static AmStatus train_search(const Cli *cli, AmError *error) {
    return write_agent(cli, AM_COMMAND_AGENT_TRAIN_SEARCH, error);
}

static AmStatus generate(const Cli *cli, AmError *error) {
    return write_agent(cli, AM_COMMAND_AGENT_GENERATE, error);
}

static AmStatus evaluate(const Cli *cli, AmError *error) {
    return cli_report(cli, AM_COMMAND_AGENT_EVALUATE, NULL, error);
}

static const CliOption train_options[] = {CLI_GROUP("training"),
                                          AGENT_TRAIN_ROWS(CLI_ROW) CLI_GROUP("checkpoints"),
                                          AGENT_CHECKPOINT_ROWS(CLI_ROW, "episodes", "third"){0}};

static const CliOption train_search_options[] = {CLI_GROUP("training"),
                                                 AGENT_TRAIN_SEARCH_ROWS(CLI_ROW) CLI_GROUP("checkpoints"),
                                                 AGENT_CHECKPOINT_ROWS(CLI_ROW, "problems", "tenth"){0}};

static const CliOption evaluate_options[] = {CLI_GROUP("evaluation"), AGENT_EVALUATE_ROWS(CLI_ROW){0}};

static const CliOption generate_options[] = {CLI_GROUP("arrays"), AGENT_GENERATE_ROWS(CLI_ROW){0}};

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
    .run = evaluate};

static const CliCommand generate_command = {.name = "agent generate",
                                            .arguments = "",
                                            .summary = "writes arrays of generated sets to -o",
                                            .options = generate_options,
                                            .examples = "agent generate --count 100 -o arrays.npz",
                                            .run = generate};

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
                              .summary = "trained agents: one that cuts pipelines, and --searcher dqn",
                              .options = no_options,
                              .notes = "automap help agent train lists the options of an action.",
                              .examples = "agent train -o agent.safetensors\n"
                                          "agent evaluate agent.safetensors",
                              .actions = actions};
