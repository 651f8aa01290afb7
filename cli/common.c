/* Parts of all commands: reading of modules, options for the API, output and notes, errors and interrupts.
 *
 * cli_print_error() writes an error with its line and a caret, or as JSON with --json.
 * cli_catch_interrupts(): the first signal sets a flag, which the calls of the API read; the second one ends
 * the program at once.
 */
#include "cli/common.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/files/file.h"
#include "cli/terminal.h"

void cli_note(const Cli *cli, const char *format, ...) {
    if (cli_has(cli, "--quiet")) return;
    va_list arguments;
    Text *held = &cli->notes->held;
    va_start(arguments, format);
    text_append_string(held, "automap: ");
    text_append_arguments(held, format, arguments);
    text_append_string(held, "\n");
    va_end(arguments);
    if (cli->notes->is_released) cli_release_notes(cli);
}

void cli_release_notes(const Cli *cli) {
    CliNotes *notes = cli->notes;
    if (notes->held.data) fputs(notes->held.data, stderr);
    text_free(&notes->held);
    notes->held = (Text){0};
    notes->is_released = true;
}

AmStatus cli_read_module(const Cli *cli, int32_t argument, AmModule **module, AmError *error) {
    TRY(am_module_read(module, cli->arguments[argument], cli_text(cli, "--roles"), error));
    for (int32_t k = 0; k < am_module_warning_count(*module); k++)
        cli_note(cli, "warning: %s", am_module_warning(*module, k));
    return AM_OK;
}

AmStatus cli_api_options(const Cli *cli, AmCommand command, AmOptions **options, AmError *error) {
    TRY(am_options_new(options, command, error));
    for (int32_t row = 0; row < am_option_count(command); row++) {
        AmOptionFacts facts = {.size = sizeof facts};
        char name[64];
        const char *const *values;
        TRY(am_option(command, row, &facts, error));
        snprintf(name, sizeof name, "--%s", facts.key);
        int32_t count = cli_texts(cli, name, &values);
        for (int32_t k = 0; k < count; k++)
            TRY(am_options_set(*options, name, facts.value ? values[k] : NULL, error));
    }
    return AM_OK;
}

void cli_on_message(void *cli, AmMessage kind, const char *text) {
    cli_note(cli, "%s: %s", kind == AM_WARNING ? "warning" : "note", text);
}

AmCallbacks cli_callbacks(const Cli *cli) {
    return (AmCallbacks){.size = sizeof(AmCallbacks), .user = (void *)cli, .on_message = cli_on_message};
}

AmFormat cli_format(const Cli *cli) {
    if (cli_has(cli, "--json")) return AM_FORMAT_JSON;
    return terminal_output_is_styled(cli) ? AM_FORMAT_TERMINAL : AM_FORMAT_TEXT;
}

AmStatus cli_report(const Cli *cli, AmCommand command, const AmCallbacks *callbacks, AmError *error) {
    const AmCallbacks own = cli_callbacks(cli);
    AmOptions *options = NULL;
    char *text;
    size_t bytes;
    AmStatus status = cli_api_options(cli, command, &options, error);
    if (status == AM_OK)
        status = am_report(command, cli->arguments, cli->argument_count, cli_format(cli), options,
                           callbacks ? callbacks : &own, &text, &bytes, error);
    am_options_free(options);
    return status == AM_OK ? cli_output_buffer(cli, text, bytes, error) : status;
}

void cli_append_command(const Cli *cli, Text *text) {
    text_append(text, "automap %s", cli->command->name);
    for (int32_t k = 0; k < cli->argument_count; k++) text_append(text, " %s", cli->arguments[k]);
    for (int32_t k = 0; k < cli->given_count; k++)
        for (int32_t v = 0; v < cli->given[k].count; v++) {
            const CliOption *option = cli->given[k].option;
            text_append(text, " %s", option->name);
            if (option->value) text_append(text, " %s", cli->given[k].values[v]);
        }
}

AmStatus cli_output_buffer(const Cli *cli, char *buffer, size_t bytes, AmError *error) {
    const char *path = cli_text(cli, "-o");
    AmStatus status = file_write(path ? path : "-", buffer, bytes, error);
    if (status == AM_OK) cli_release_notes(cli);
    am_free(buffer);
    return status;
}

static json_t *error_details;

void cli_explain_error(json_t *details) {
    json_decref(error_details);
    error_details = details;
}

/* Prints a JSON string without an allocation; bytes that are not UTF-8, and control characters, become
 * '?'. */
static void print_json_string(FILE *stream, const char *string) {
    fputc('"', stream);
    for (const unsigned char *c = (const unsigned char *)string; *c;) {
        int more = *c < 0x80 ? 0 : *c >= 0xC2 && *c < 0xE0 ? 1 : (*c & 0xF0) == 0xE0 ? 2 : *c < 0xF5 ? 3 : -1;
        bool is_valid = more >= 0 && (*c < 0x80 || *c >= 0xC2);
        for (int k = 1; k <= more && is_valid; k++) is_valid = (c[k] & 0xC0) == 0x80;
        if (is_valid && *c == 0xE0) is_valid = c[1] >= 0xA0;
        if (is_valid && *c == 0xED) is_valid = c[1] < 0xA0;
        if (is_valid && *c == 0xF0) is_valid = c[1] >= 0x90;
        if (is_valid && *c == 0xF4) is_valid = c[1] < 0x90;
        if (*c == '"' || *c == '\\') fputc('\\', stream);
        if (!is_valid || *c < ' ') fputc('?', stream);
        else fwrite(c, 1, (size_t)more + 1, stream);
        c += is_valid ? more + 1 : 1;
    }
    fputc('"', stream);
}

static void print_json_error(FILE *stream, const AmError *error) {
    Text details = {0};
    if (error_details) json_write(&details, error_details, JSON_STYLE_COMPACT);
    cli_explain_error(NULL);
    fprintf(stream, "{\"format\":\"automap-error-1\",\"error\":{\"code\":%d,\"message\":", (int)error->code);
    print_json_string(stream, error->text);
    fputs(",\"source\":", stream);
    print_json_string(stream, error->source);
    fprintf(stream, ",\"line\":%lld,\"column\":%lld", (long long)error->line, (long long)error->column);
    bool has_details = details.data && !details.failed && details.length > 2;
    fprintf(stream, "%s%s}\n", has_details ? "," : "", has_details ? details.data + 1 : "}");
    text_free(&details);
}

void cli_print_error(const AmError *error, bool as_json) {
    if (as_json) {
        print_json_error(stderr, error);
        return;
    }
    fputs("automap: ", stderr);
    if (error->source[0]) fprintf(stderr, "%s:", error->source);
    if (error->line > 0) fprintf(stderr, "%lld:%lld:", (long long)error->line, (long long)error->column);
    fprintf(stderr, "%s%s\n", error->source[0] ? " " : "", error->text);
    if (error->excerpt[0]) fprintf(stderr, "  %s\n", error->excerpt);
    /* The excerpt begins at the line's beginning unless the line is long. */
    if (error->excerpt[0] && error->column > 0 && error->column <= (int64_t)strlen(error->excerpt) + 1)
        fprintf(stderr, "  %*s^\n", (int)(error->column - 1), "");
}

static volatile sig_atomic_t interrupted;

/* Ends the program: outputs are renamed when they are complete, so that none is half written. */
static void leave_interrupted(int number) {
    static const char line[] = "automap: interrupted\n";
    (void)number;
    ssize_t written = write(2, line, sizeof line - 1);
    (void)written;
    _exit(AM_INTERRUPTED);
}

static void note_interrupt(int number) {
    interrupted = 1;
    signal(number, leave_interrupted);
}

void cli_leave_when_interrupted(void) {
    signal(SIGINT, leave_interrupted);
    signal(SIGTERM, leave_interrupted);
    signal(SIGHUP, leave_interrupted);
    signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe fails instead */
}

void cli_leave_if_interrupted(void) {
    if (interrupted) leave_interrupted(SIGINT);
}

void cli_interrupt(void) {
    interrupted = 1;
}

const volatile sig_atomic_t *cli_catch_interrupts(void) {
    signal(SIGINT, note_interrupt);
    signal(SIGTERM, note_interrupt);
    signal(SIGHUP, note_interrupt); /* the terminal is gone */
    return &interrupted;
}
