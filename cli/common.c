/* Output, notes, warnings, errors and interrupts of all commands. */
#include "cli/common.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

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
    if ((*context)->module->is_optimized && strcmp(cli->command->name, "info") != 0) {
        am_fail(error, AM_ERROR_INPUT, (*context)->module->source, "%s", IR_OPTIMIZED_TEXT);
        plan_context_free(*context);
        *context = NULL;
        return AM_ERROR_INPUT;
    }
    cli_warn(cli, &(*context)->canonical->warnings); /* with those of the module as it was read */
    return AM_OK;
}

AmStatus cli_check_trains(const Cli *cli, const PlanContext *context, AmError *error) {
    Arena arena = {0};
    const char *reason = cli_has(cli, "--inference") ? NULL : ir_no_training(&arena, context->roles);
    if (reason)
        am_fail(error, AM_ERROR_INPUT, context->module->source,
                "the module trains nothing: %s (expected a step that returns updated weights and a loss; "
                "--inference accepts any module)",
                reason);
    arena_free(&arena);
    return reason ? AM_ERROR_INPUT : AM_OK;
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
