/* automap: the program. It finds the command in a table, parses its options,
 * runs it and turns its status into the exit code. Everything else is in the
 * library or in cmd_*.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "automap_features.h"
#include "base/parallel.h"
#include "cli/common.h"
#include "cli/files.h"
#include "executor/mpi_wire.h"
#ifdef AUTOMAP_HAVE_CUDA
#include "executor/cuda/versions.h"
#endif

static const CliCommand *const commands[] = {
    &CLI_INFO,   &CLI_CONVERT,  &CLI_GROUPS,  &CLI_PROPAGATE, &CLI_LOWER, &CLI_CLUSTER,
    &CLI_SEARCH, &CLI_SIMULATE, &CLI_EXPLAIN, &CLI_EXPORT,    &CLI_RUN,   &CLI_AGENT,
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_usage(FILE *stream) {
    Text text = {0}, rows = {0};
    text_append_string(&text, "usage: automap COMMAND ARGUMENT... [OPTION...]\n\n"
                              "Plans distributed training of XLA HLO modules, and runs it.\n\ncommands:\n");
    for (size_t k = 0; k < COMMAND_COUNT; k++)
        text_append(&rows, "  %s %s\t%s\n", commands[k]->name, commands[k]->arguments, commands[k]->summary);
    text_append_table(&text, rows.data);
    text_append_string(&text,
                       "\nautomap COMMAND --help tells more; automap --version lists the features built in.\n"
                       "exit codes: 0 ok, 1 internal, 2 usage, 3 bad input file, 4 no feasible plan,\n"
                       "5 failure at run time, 130 interrupted\n");
    if (text.data) fputs(text.data, stream);
    text_free(&rows);
    text_free(&text);
}

static const CliCommand *find_command(const char *name) {
    for (size_t k = 0; k < COMMAND_COUNT; k++)
        if (strcmp(commands[k]->name, name) == 0) return commands[k];
    return NULL;
}

static bool wants_json(int count, char **words) {
    for (int k = 0; k < count; k++)
        if (strcmp(words[k], "--json") == 0) return true;
    return false;
}

static AmStatus run_command(int count, char **words, AmError *error) {
    const CliCommand *command = find_command(words[1]);
    if (!command)
        return am_fail(error, AM_ERROR_USAGE, "", "unknown command %.100s; automap --help lists them",
                       words[1]);
    static Cli cli;
    TRY(cli_parse(&cli, command, count - 2, words + 2, error));
    if (!cli.wants_help && !parallel_threads_are_valid())
        cli_note(&cli, "warning: AUTOMAP_THREADS=%.40s: expected an integer of at least 1; ignored",
                 getenv("AUTOMAP_THREADS"));
    if (!cli.wants_help) {
        TRY(cli_check_files(&cli, NULL, error));
        return command->run(&cli, error);
    }
    Text text = {0};
    cli_print_help(&text, command);
    fputs(text.data, stdout);
    text_free(&text);
    return AM_OK;
}

/* What was printed must have arrived: a full disk is a failure. */
static AmStatus close_output(AmStatus status) {
    bool arrived = fflush(stdout) == 0 && !ferror(stdout);
    if (arrived || status != AM_OK) return status;
    fputs("automap: <stdout>: writing failed\n", stderr);
    return AM_ERROR_RUNTIME;
}

static void print_version(void) {
    const char *mpi = mpi_wire_name();
    printf("automap %s\n%s%s%s\n", AM_VERSION, AUTOMAP_FEATURES, mpi ? ", " : "", mpi ? mpi : "");
#ifdef AUTOMAP_HAVE_CUDA
    Text text = {0};
    cuda_versions(&text);
    if (!text.failed) printf("found on this machine: %s\n", text.data);
    text_free(&text);
#endif
}

static AmStatus exit_status;

static void leave_at_once(void) {
    fflush(NULL);
    _exit(exit_status);
}

/* Ends MPI, which waits for all processes: so not after one was lost, nor for long. */
static int leave(AmStatus status) {
    static const double patience_seconds = 5;
    exit_status = status;
    bool orderly = status != AM_ERROR_RUNTIME && status != AM_ERROR_INTERNAL;
    if (!mpi_wire_end(orderly, patience_seconds, leave_at_once)) leave_at_once();
    return status;
}

int main(int count, char **words) {
    if (count < 2) {
        print_usage(stderr);
        return AM_ERROR_USAGE;
    }
    if (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0) {
        print_usage(stdout);
        return close_output(AM_OK);
    }
    if (strcmp(words[1], "--version") == 0) {
        print_version();
        return close_output(AM_OK);
    }
    AmError error = {0};
    AmStatus status = run_command(count, words, &error);
    if (status != AM_OK && error.code != AM_OK) cli_print_error(&error, wants_json(count, words));
    return leave(close_output(status));
}
