/* The form of a command, its options, output and errors.
 *
 * A command is a row of a table (cli/main.c): names, positional arguments,
 * options and a function. One table both parses the options and prints --help. Data goes to
 * stdout or -o; progress, warnings and errors go to stderr.
 */
#ifndef CLI_COMMON_H
#define CLI_COMMON_H

#include <jansson.h>
#include <signal.h>

#include "automap.h"
#include "base/files/json.h"
#include "base/status.h"
#include "base/text.h"

#define CLI_MAX_ARGUMENTS 18
#define CLI_MAX_OPTIONS   64
#define CLI_MAX_REPEATS   64

/* One option. `value` names its argument in --help; NULL for a switch. A row with an empty name is a heading
 * of
 * --help, with the text in `help`. */
typedef struct CliOption {
    const char *name;
    const char *value;
    const char *help;
    bool is_repeatable;
} CliOption;

#define CLI_GROUP(title) \
    { "", NULL, title, false }
/* A row of the API's tables of options (api/option_rows.h). */
#define CLI_ROW(key, value, help, is_repeatable, ...) {"--" key, value, help, is_repeatable},

typedef struct Cli Cli;

/* Notes that wait for the decision whether the command goes on: a refusal is one line, without them. */
typedef struct CliNotes {
    Text held;        /* lines */
    bool is_released; /* notes go to stderr at once */
} CliNotes;

typedef struct CliCommand {
    const char *name, *arguments, *summary; /* name: "search", "agent train" */
    int32_t least_arguments, most_arguments;
    const CliOption *options;                /* ends with a row without a name */
    const char *notes;                       /* further lines of --help, or NULL */
    const char *examples;                    /* one command line a line, without "automap" */
    const struct CliCommand *const *actions; /* NULL-ended: the first argument names one; or NULL */
    AmStatus (*run)(const Cli *cli, AmError *error);
} CliCommand;

/* A command line after parsing. */
struct Cli {
    const CliCommand *command;
    const char *arguments[CLI_MAX_ARGUMENTS];
    int32_t argument_count;
    struct {
        const CliOption *option;
        const char *values[CLI_MAX_REPEATS]; /* of a switch: its own name */
        int32_t count;
    } given[CLI_MAX_OPTIONS];
    int32_t given_count;
    CliNotes *notes;
};

extern const CliCommand CLI_INFO, CLI_CONVERT, CLI_GROUPS, CLI_PROPAGATE, CLI_LOWER, CLI_CLUSTER, CLI_SEARCH,
    CLI_SIMULATE, CLI_EXPLAIN, CLI_DIFF, CLI_COMPARE, CLI_EXPORT, CLI_RUN, CLI_AGENT, CLI_PUBLISHED;

extern const CliOption cli_common_options[];

/* Parses arguments[0..count) for the command. AM_ERROR_USAGE names the argument and the expectation. */
AmStatus cli_parse(Cli *cli, const CliCommand *command, int count, char **arguments, AmError *error);

/* Returns the option's argument, or NULL where it is not given. */
const char *cli_text(const Cli *cli, const char *name);
bool cli_has(const Cli *cli, const char *name);
/* Finds all arguments of a repeatable option; returns their number. */
int32_t cli_texts(const Cli *cli, const char *name, const char *const **values);
AmStatus cli_need(const Cli *cli, const char *name, const char **value, AmError *error);
/* Reads an integer. Leaves *value unchanged if the option is not given. */
AmStatus cli_integer(const Cli *cli, const char *name, int64_t least, int64_t most, int64_t *value,
                     AmError *error);
AmStatus cli_number(const Cli *cli, const char *name, double least, double most, double *value,
                    AmError *error);
/* Sets *choice to the index of the argument among `count` names (at most 64). */
AmStatus cli_choice(const Cli *cli, const char *name, const char *(*name_of)(int32_t), int32_t count,
                    int32_t *choice, AmError *error);
/* Makes options of the API from those of the command line that its table of `command` has; the caller's
 * am_options_free(). Errors name options with "--". */
AmStatus cli_api_options(const Cli *cli, AmCommand command, AmOptions **options, AmError *error);
/* Writes a note to stderr: AmCallbacks.on_message of the command, whose `user` is the Cli. */
void cli_on_message(void *cli, AmMessage kind, const char *text);
/* Callbacks with cli_on_message(). */
AmCallbacks cli_callbacks(const Cli *cli);
/* Returns the format of the output: JSON, or text, with colours on a terminal. */
AmFormat cli_format(const Cli *cli);
/* Writes the report of a command on files, am_report(). `callbacks` NULL: those of cli_callbacks(). */
AmStatus cli_report(const Cli *cli, AmCommand command, const AmCallbacks *callbacks, AmError *error);
/* Appends the command line with all its arguments. */
void cli_append_command(const Cli *cli, Text *text);
/* Writes a buffer of the API to -o or stdout, and frees it. */
AmStatus cli_output_buffer(const Cli *cli, char *buffer, size_t bytes, AmError *error);

/* Reads the module as a handle of the API; its warnings go to stderr unless --quiet. */
AmStatus cli_read_module(const Cli *cli, int32_t argument, AmModule **module, AmError *error);
/* Adds a line for stderr, unless --quiet; it is held until cli_release_notes(). */
void cli_note(const Cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints the notes held, and from then on each note at once: the command goes on. Called before the first
 * output; main() calls it at the end of a command that is not refused (exit codes 2, 3, 4). */
void cli_release_notes(const Cli *cli);

/* Adds the keys of this object, whose reference is taken, to the error object of --json. */
void cli_explain_error(json_t *details);

/* Prints one line, then the excerpt with a caret; or {"error": {...}}. To stderr. */
void cli_print_error(const AmError *error, bool as_json);

/* Lets an interrupt set the flag that is returned; a second one ends the program. */
const volatile sig_atomic_t *cli_catch_interrupts(void);
/* Ends the program if the flag is set: in a measurement, whose result would come seconds later. */
void cli_leave_if_interrupted(void);
/* Sets that flag, as an interrupt does. */
void cli_interrupt(void);
/* Lets an interrupt end the program with exit code 130 and one line, until cli_catch_interrupts(), and in
 * commands that keep no state. A closed pipe is an error of the write to it. */
void cli_leave_when_interrupted(void);

#endif
