/* automap: the program. Finds the command in a table, parses its options, runs it
 * and makes its status the exit code. -h anywhere prints help. Everything else is
 * in the library or in cmd_*.c. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/suggest.h"
#include "base/system/parallel.h"
#include "cli/common.h"
#include "cli/end_without_memory.h"
#include "cli/files.h"
#include "cli/help.h"
#include "cli/hints.h"
#include "cli/terminal.h"

enum { MOST_NAMES = 32 };

/* Appends to names[0..MOST_NAMES) and returns the new count. */
static size_t add_names(const char **names, size_t count, const CliCommand *const *commands) {
    for (; *commands && count < MOST_NAMES; commands++) names[count++] = (*commands)->name;
    return count;
}

static const CliCommand *find_in(const CliCommand *const *commands, const char *name) {
    while (*commands && strcmp((*commands)->name, name) != 0) commands++;
    return *commands;
}

/* Options that stand alone, without a command. */
static const char *const first_options[] = {"--help", "--version"};
enum { FIRST_OPTIONS = sizeof first_options / sizeof *first_options };

static AmStatus fail_unknown_command(const char *name, AmError *error) {
    const char *names[MOST_NAMES] = {"help", "version"};
    char hint[SUGGEST_HINT_BYTES];
    size_t count = 2;
    for (const CliSection *section = cli_sections; section->title; section++)
        count = add_names(names, count, section->commands);
    if (name[0] == '-' && name[1] && *suggest_hint(hint, name, first_options, FIRST_OPTIONS))
        return am_fail(error, AM_ERROR_USAGE, "", "unknown option %.100s%s", name, hint);
    if (name[0] == '-' && name[1])
        return am_fail(error, AM_ERROR_USAGE, "",
                       "%.100s: an option before the command (expected automap COMMAND ARGUMENT... %.100s)",
                       name, name);
    if (*name && !*suggest_hint(hint, name, names, count) && hint_is_file(name))
        return am_fail(error, AM_ERROR_USAGE, "",
                       "%.200s: a file without a command (expected one, such as automap info %.200s)", name,
                       name);
    if (*name && *suggest_hint(hint, name, names, count))
        return am_fail(error, AM_ERROR_USAGE, "", "unknown command %.100s%s", name, hint);
    return am_fail(error, AM_ERROR_USAGE, "", "unknown command %.100s; automap --help lists them",
                   *name ? name : "(empty)");
}

/* Finds the command of words[0..count), with its action ("agent train"); `*used` words name it. An action is
 * required unless `is_help`. */
static AmStatus find_command(const CliCommand **command, int *used, int count, char **words, bool is_help,
                             AmError *error) {
    char name[128], hint[SUGGEST_HINT_BYTES];
    const char *names[MOST_NAMES];
    *command = NULL;
    for (const CliSection *section = cli_sections; section->title && !*command; section++)
        *command = find_in(section->commands, words[0]);
    if (!*command) return fail_unknown_command(words[0], error);
    *used = 1;
    if (!(*command)->actions || (is_help && count < 2)) return AM_OK;
    size_t known = add_names(names, 0, (*command)->actions), prefix = strlen(words[0]) + 1;
    if (count < 2)
        return am_fail(error, AM_ERROR_USAGE, "", "expected automap %s %s", words[0], (*command)->arguments);
    snprintf(name, sizeof name, "%.40s %.80s", words[0], words[1]);
    const CliCommand *action = find_in((*command)->actions, name);
    if (!action) {
        suggest_hint(hint, name, names, known);
        return am_fail(error, AM_ERROR_USAGE, "", "unknown action %.80s; expected %s%s", name + prefix,
                       (*command)->arguments, hint);
    }
    *command = action;
    *used = 2;
    return AM_OK;
}

static AmStatus print(Text *text, AmError *error) {
    AmStatus status = text->failed ? am_fail_memory(error, (int64_t)text->capacity) : AM_OK;
    if (status == AM_OK) fputs(text->data, stdout);
    text_free(text);
    return status;
}

/* Prints the help of the command that words[0..count) begin with, or the list of commands. */
static AmStatus print_help(int count, char **words, AmError *error) {
    const CliCommand *command;
    Text text = {.is_styled = terminal_is_styled(NULL, stdout)};
    int used;
    bool is_plain = count == 1 && (strcmp(words[0], "help") == 0 || strcmp(words[0], "version") == 0);
    if (count == 0 || is_plain) { /* commands without options of their own */
        help_append_usage(&text);
        return print(&text, error);
    }
    TRY(find_command(&command, &used, count, words, true, error));
    if (count > used && words[used][0] != '-')
        return am_fail(error, AM_ERROR_USAGE, "",
                       "help: one argument too many: %.200s (expected automap help %s)", words[used],
                       command->name);
    help_append_command(&text, command);
    return print(&text, error);
}

/* Counts the words before "--" and the first "-h" or "--help"; `*is_help`: there is one. */
static int count_before_help(int count, char **words, bool *is_help) {
    *is_help = false;
    for (int k = 0; k < count && strcmp(words[k], "--") != 0; k++) {
        *is_help = strcmp(words[k], "-h") == 0 || strcmp(words[k], "--help") == 0;
        if (*is_help) return k;
    }
    return count;
}

static bool wants_json(int count, char **words) {
    for (int k = 0; k < count && strcmp(words[k], "--") != 0; k++)
        if (strcmp(words[k], "--json") == 0) return true;
    return false;
}

static AmStatus run_command(int count, char **words, AmError *error) {
    const CliCommand *command;
    static Cli cli;
    CliNotes notes = {0};
    int used;
    TRY(find_command(&command, &used, count, words, false, error));
    TRY(cli_parse(&cli, command, count - used, words + used, error));
    cli.notes = &notes;
    TRY(terminal_check_color(&cli, error));
    if (!parallel_threads_are_valid())
        cli_note(&cli, "warning: AUTOMAP_THREADS=%.40s: expected an integer of at least 1; ignored",
                 getenv("AUTOMAP_THREADS"));
    TRY(cli_check_files(&cli, NULL, error));
    AmStatus status = command->run(&cli, error);
    bool is_refused = status == AM_ERROR_USAGE || status == AM_ERROR_INPUT || status == AM_ERROR_INFEASIBLE;
    if (!is_refused) cli_release_notes(&cli);
    text_free(&notes.held);
    am_error_source(error, cli_main_input(&cli));
    return status;
}

/* Flushes stdout; AM_ERROR_RUNTIME where writing has failed, as on a full disk. A reader that has closed the
 * pipe, as `head` does, needs no more. */
static AmStatus close_output(AmStatus status) {
    errno = 0;
    bool arrived = fflush(stdout) == 0 && !ferror(stdout);
    if (arrived || errno == EPIPE || status != AM_OK) return status;
    fputs("automap: <stdout>: writing failed\n", stderr);
    return AM_ERROR_RUNTIME;
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
    if (!am_processes_end(orderly, patience_seconds, leave_at_once)) leave_at_once();
    return status;
}

/* Answers words[0..count), the command line without the program's name. */
static AmStatus answer(int count, char **words, AmError *error) {
    bool is_help;
    int before = count_before_help(count, words, &is_help);
    if (strcmp(words[0], "help") == 0) {
        /* Options after the command do not change its help. */
        while (before > 1 && words[before - 1][0] == '-') before--;
        return print_help(before - 1, words + 1, error);
    }
    if (is_help) {
        /* The words after the command are arguments, unless they name its action. */
        bool has_action = before > 1 && words[1][0] != '-';
        if (has_action && print_help(2, words, NULL) == AM_OK) return AM_OK;
        return print_help(before > 0 && words[0][0] != '-' ? 1 : 0, words, error);
    }
    if (strcmp(words[0], "version") == 0 || strcmp(words[0], "--version") == 0 ||
        strcmp(words[0], "-V") == 0) {
        if (count > 1)
            return am_fail(error, AM_ERROR_USAGE, "", "one argument too many: %.200s (expected automap %s)",
                           words[1], words[0]);
        char *features;
        TRY(am_features(&features, NULL, error));
        printf("automap %s\n%s", am_version(), features);
        am_free(features);
        return AM_OK;
    }
    return run_command(count, words, error);
}

int main(int count, char **words) {
    AmError error = {0};
    if (count < 2) {
        Text text = {.is_styled = terminal_is_styled(NULL, stderr)};
        help_append_usage(&text);
        if (!text.failed) fputs(text.data, stderr);
        text_free(&text);
        return AM_ERROR_USAGE;
    }
    cli_leave_when_interrupted();
    cli_end_without_memory(wants_json(count, words));
    AmStatus status = answer(count - 1, words + 1, &error);
    if (status != AM_OK && error.code != AM_OK) cli_print_error(&error, wants_json(count, words));
    return leave(close_output(status));
}
