/* Parsing options by tables, printing help, errors and output; see common.h. */
#include "cli/common.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static const CliOption common_options[] = {
    {"-o", "FILE", "where the result goes; - is stdout", false},
    {"--json", NULL, "JSON instead of text", false},
    {"--quiet", NULL, "no notes and warnings", false},
    {"--help", NULL, "this text", false},
    {0},
};

static const CliOption *find_option(const CliOption *options, const char *name, size_t length) {
    for (const CliOption *option = options; option->name; option++)
        if (strlen(option->name) == length && strncmp(option->name, name, length) == 0) return option;
    return NULL;
}

static AmStatus usage_error(const Cli *cli, AmError *error, const char *text, const char *what) {
    return am_fail(error, AM_ERROR_USAGE, "", "%s%.200s; see automap %s --help", text, what,
                   cli->command->name);
}

static AmStatus add_value(Cli *cli, const CliOption *option, const char *value, AmError *error) {
    int32_t k = 0;
    while (k < cli->given_count && cli->given[k].option != option) k++;
    if (k == cli->given_count) {
        if (k == CLI_MAX_OPTIONS) return usage_error(cli, error, "too many options at ", option->name);
        cli->given[k].option = option;
        cli->given[k].count = 0;
        cli->given_count++;
    } else if (option->value && !option->is_repeatable) {
        return usage_error(cli, error, "given twice: ", option->name);
    }
    if (cli->given[k].count == CLI_MAX_REPEATS) return usage_error(cli, error, "too often: ", option->name);
    cli->given[k].values[cli->given[k].count++] = value;
    return AM_OK;
}

AmStatus cli_parse(Cli *cli, const CliCommand *command, int count, char **arguments, AmError *error) {
    *cli = (Cli){.command = command};
    bool only_arguments = false;
    for (int k = 0; k < count; k++) {
        const char *word = arguments[k];
        if (!only_arguments && strcmp(word, "--") == 0) {
            only_arguments = true;
            continue;
        }
        if (only_arguments || word[0] != '-' || word[1] == '\0') {
            if (cli->argument_count == command->most_arguments)
                return usage_error(cli, error, "one argument too many: ", word);
            cli->arguments[cli->argument_count++] = word;
            continue;
        }
        size_t length = strcspn(word, "=");
        const CliOption *option = find_option(command->options, word, length);
        if (!option) option = find_option(common_options, word, length);
        if (!option) return usage_error(cli, error, "unknown option ", word);
        const char *value = option->name;
        if (option->value && word[length] == '=') value = word + length + 1;
        else if (option->value && ++k == count) return usage_error(cli, error, "needs an argument: ", word);
        else if (option->value) value = arguments[k];
        else if (word[length] == '=') return usage_error(cli, error, "takes no argument: ", option->name);
        TRY(add_value(cli, option, value, error));
    }
    cli->wants_help = cli_has(cli, "--help");
    if (!cli->wants_help && cli->argument_count < command->least_arguments)
        return usage_error(cli, error, "expected ", command->arguments);
    return AM_OK;
}

static void print_options(Text *rows, const CliOption *options) {
    for (const CliOption *option = options; option->name; option++)
        text_append(rows, "  %s %s\t%s%s\n", option->name, option->value ? option->value : "", option->help,
                    option->is_repeatable ? " (may be repeated)" : "");
}

void cli_print_help(Text *text, const CliCommand *command) {
    Text rows = {0};
    text_append(text, "usage: automap %s %s [OPTION...]\n\n%s\n\noptions:\n", command->name,
                command->arguments, command->summary);
    print_options(&rows, command->options);
    print_options(&rows, common_options);
    text_append_table(text, rows.data);
    text_free(&rows);
    if (command->notes) text_append(text, "\n%s\n", command->notes);
}

int32_t cli_texts(const Cli *cli, const char *name, const char *const **values) {
    for (int32_t k = 0; k < cli->given_count; k++) {
        if (strcmp(cli->given[k].option->name, name) != 0) continue;
        *values = cli->given[k].values;
        return cli->given[k].count;
    }
    *values = NULL;
    return 0;
}

const char *cli_text(const Cli *cli, const char *name) {
    const char *const *values;
    return cli_texts(cli, name, &values) > 0 ? values[0] : NULL;
}

bool cli_has(const Cli *cli, const char *name) {
    return cli_text(cli, name) != NULL;
}

AmStatus cli_need(const Cli *cli, const char *name, const char **value, AmError *error) {
    *value = cli_text(cli, name);
    return *value ? AM_OK : usage_error(cli, error, "expected ", name);
}

AmStatus cli_integer(const Cli *cli, const char *name, int64_t least, int64_t most, int64_t *value,
                     AmError *error) {
    const char *text = cli_text(cli, name);
    if (!text) return AM_OK;
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end || number < least || number > most)
        return am_fail(error, AM_ERROR_USAGE, "", "%s %.100s: expected an integer from %lld to %lld", name,
                       text, (long long)least, (long long)most);
    *value = number;
    return AM_OK;
}

AmStatus cli_number(const Cli *cli, const char *name, double least, double most, double *value,
                    AmError *error) {
    const char *text = cli_text(cli, name);
    if (!text) return AM_OK;
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= least && number <= most))
        return am_fail(error, AM_ERROR_USAGE, "", "%s %.100s: expected a number from %g to %g", name, text,
                       least, most);
    *value = number;
    return AM_OK;
}

AmStatus cli_choice(const Cli *cli, const char *name, const char *(*name_of)(int32_t), int32_t count,
                    int32_t *choice, AmError *error) {
    const char *text = cli_text(cli, name);
    if (!text) return AM_OK;
    for (int32_t k = 0; k < count; k++)
        if (strcmp(name_of(k), text) == 0) {
            *choice = k;
            return AM_OK;
        }
    Text names = {0};
    for (int32_t k = 0; k < count; k++) text_append(&names, "%s%s", k ? ", " : "", name_of(k));
    am_fail(error, AM_ERROR_USAGE, "", "%s %.100s: expected one of %s", name, text, names.data);
    text_free(&names);
    return AM_ERROR_USAGE;
}

void cli_note(const Cli *cli, const char *format, ...) {
    if (cli_has(cli, "--quiet")) return;
    va_list arguments;
    va_start(arguments, format);
    fputs("automap: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

void cli_warn(const Cli *cli, const AmWarnings *warnings) {
    for (int32_t k = 0; k < warnings->count; k++) cli_note(cli, "warning: %s", warnings->texts[k]);
}

AmStatus cli_read_model(const Cli *cli, int32_t argument, PlanContext **context, AmError *error) {
    TRY(plan_context_read(context, cli->arguments[argument], cli_text(cli, "--roles"), error));
    cli_warn(cli, &(*context)->module->warnings);
    cli_warn(cli, &(*context)->canonical->warnings);
    return AM_OK;
}

AmStatus cli_output(const Cli *cli, const Text *text, AmError *error) {
    const char *path = cli_text(cli, "-o");
    if (text->failed) return am_fail_memory(error, (int64_t)text->capacity);
    return file_write(path ? path : "-", text->data ? text->data : "", text->length, error);
}

AmStatus cli_output_json(const Cli *cli, json_t *root, JsonStyle style, AmError *error) {
    if (!root) return am_fail_memory(error, 0);
    Text text = {0};
    json_write(&text, root, style);
    json_decref(root);
    text_append_string(&text, "\n");
    AmStatus status = cli_output(cli, &text, error);
    text_free(&text);
    return status;
}

static json_t *text_to_json(const char *string) {
    json_t *value = json_string(string);
    return value ? value : json_string("(not UTF-8)");
}

static json_t *error_details;

void cli_explain_error(json_t *details) {
    json_decref(error_details);
    error_details = details;
}

void cli_print_error(const AmError *error, bool as_json) {
    Text text = {0};
    if (as_json) {
        json_t *root = json_pack("{s:{s:i, s:o, s:o, s:I, s:I}}", "error", "code", (int)error->code,
                                 "message", text_to_json(error->text), "source", text_to_json(error->source),
                                 "line", (json_int_t)error->line, "column", (json_int_t)error->column);
        if (error_details) json_object_update(json_object_get(root, "error"), error_details);
        cli_explain_error(NULL);
        json_write(&text, root, JSON_STYLE_COMPACT);
        json_decref(root);
        text_append_string(&text, "\n");
    } else {
        text_append_string(&text, "automap: ");
        if (error->source[0]) text_append(&text, "%s:", error->source);
        if (error->line > 0)
            text_append(&text, "%lld:%lld:", (long long)error->line, (long long)error->column);
        text_append(&text, "%s%s\n", error->source[0] ? " " : "", error->text);
        if (error->excerpt[0]) text_append(&text, "  %s\n", error->excerpt);
        /* The excerpt begins at the line's beginning unless the line is long. */
        if (error->excerpt[0] && error->column > 0 && error->column <= (int64_t)strlen(error->excerpt) + 1)
            text_append(&text, "  %*s^\n", (int)(error->column - 1), "");
    }
    if (text.data) fputs(text.data, stderr);
    text_free(&text);
}

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number) {
    interrupted = 1;
    signal(number, SIG_DFL);
}

const volatile sig_atomic_t *cli_catch_interrupts(void) {
    signal(SIGINT, note_interrupt);
    signal(SIGTERM, note_interrupt);
    signal(SIGHUP, note_interrupt); /* the terminal is gone */
    return &interrupted;
}
