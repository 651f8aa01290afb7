/* The command line tool: thin over the library.
 *
 * A command is a row: name, what it takes, its options as a table, and a
 * function. Parsing, --help, errors and output go through here, so that all
 * commands behave alike: data on stdout (or -o FILE), everything else on
 * stderr, exit codes as AmStatus.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "propagation/plan.h"

#define CLI_MAX_ARGUMENTS 3
#define CLI_MAX_REPEATS   64

typedef enum CliKind {
    CLI_FLAG,    /* bool */
    CLI_STRING,  /* const char * */
    CLI_INTEGER, /* int64_t, at least 0 */
    CLI_NUMBER,  /* double, at least 0 */
    CLI_STRINGS  /* CliStrings: may be given again */
} CliKind;

typedef struct CliStrings {
    const char *items[CLI_MAX_REPEATS];
    int32_t count;
} CliStrings;

/* One option: "--mesh", what stands for its value in --help ("MESH"), where the
 * value goes (offset in the command's own options struct) and a line of help. */
typedef struct CliOption {
    const char *name, *value;
    CliKind kind;
    size_t offset;
    const char *help;
} CliOption;

/* What every command understands, beside its own options. */
typedef struct CliCommon {
    const char *arguments[CLI_MAX_ARGUMENTS]; /* positional, NULL where left out */
    int32_t argument_count;
    bool json, quiet;
    const char *output; /* -o, or NULL: the command's default */
} CliCommon;

typedef struct CliCommand {
    const char *name, *arguments, *summary; /* "search", "MODEL", "find the best plan ..." */
    int32_t least_arguments, most_arguments;
    const CliOption *options; /* ends with a NULL name; may be NULL */
    size_t options_size;      /* of the command's options struct, which starts as zeros or as `defaults` */
    const void *defaults;     /* options_size bytes, or NULL */
    const char *more_help;    /* printed after the options, or NULL */
    void (*print_more_help)(Text *text); /* tables that --help prints, or NULL */
    AmStatus (*run)(const CliCommon *common, const void *options, AmError *error);
} CliCommand;

/* The commands, in the order of --help. */
extern const CliCommand cli_info, cli_convert, cli_groups, cli_propagate, cli_lower, cli_cluster, cli_search,
    cli_simulate, cli_explain, cli_export, cli_run;

/* Writes a command's result to -o FILE, or to stdout. Takes `text` over (frees it). */
AmStatus cli_put(const CliCommon *common, Text *text, AmError *error);
/* The same for JSON: one line, or indented into a file. Takes the reference over. */
AmStatus cli_put_json(const CliCommon *common, json_t *root, AmError *error);
/* Warnings to stderr, one line each, unless --quiet. */
void cli_warn(const CliCommon *common, const AmWarnings *warnings);

/* The model's context; warnings are printed. */
AmStatus cli_read_model(PlanContext **context, const CliCommon *common, const char *path,
                        const char *roles_path, AmError *error);

/* Set by the first SIGINT or SIGTERM, once cli_catch_interrupts() was called. */
extern volatile sig_atomic_t cli_interrupted;
void cli_catch_interrupts(void);

#define CLI_ROLES_OPTION(type)                                        \
    {                                                                 \
        "--roles", "FILE", CLI_STRING, offsetof(type, roles),         \
            "the model's roles (default: model.roles.json beside it)" \
    }

#endif
