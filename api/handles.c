/* Parts that all calls of the API share.
 *
 * Calls begin with api_begin() and check their arguments here: handles, indices, options of a command,
 * formats. Structs of callers have a size of their own: api_copy_facts() copies the members that both sides
 * know. api_end_text() and api_give_json() hand a text over in memory that am_free() releases. api_message()
 * and api_warn() report to the caller's callbacks.
 */
#include "api/handles.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "api/options.h"

void api_begin(AmError *error) {
    if (error) *error = (AmError){.code = AM_OK};
}

AmStatus api_require(const void *argument, const char *name, AmError *error) {
    if (argument) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "%s: NULL (expected a pointer)", name);
}

AmStatus api_check_index(int32_t k, int32_t count, const char *what, AmError *error) {
    if (k >= 0 && k < count) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "%s %d: expected a number below %d", what, k, count);
}

AmStatus api_copy_facts(void *facts, size_t size, const void *all, size_t all_size, AmError *error) {
    if (size < sizeof size)
        return am_fail(error, AM_ERROR_USAGE, "", "size %zu: expected sizeof of the struct", size);
    memset(facts, 0, size);
    memcpy(facts, all, size < all_size ? size : all_size);
    memcpy(facts, &size, sizeof size);
    return AM_OK;
}

AmStatus api_copy_callbacks(AmCallbacks *own, const AmCallbacks *callbacks, AmError *error) {
    *own = (AmCallbacks){0};
    if (!callbacks) return AM_OK;
    if (callbacks->size < sizeof callbacks->size)
        return am_fail(error, AM_ERROR_USAGE, "", "callbacks: size %zu (expected sizeof(AmCallbacks))",
                       callbacks->size);
    memcpy(own, callbacks, callbacks->size < sizeof *own ? callbacks->size : sizeof *own);
    own->size = sizeof *own;
    return AM_OK;
}

static const char *name_of_command(AmCommand command) {
    static const char *const names[] = {[AM_COMMAND_SEARCH] = "SEARCH",
                                        [AM_COMMAND_SIMULATE] = "SIMULATE",
                                        [AM_COMMAND_EXPLAIN] = "EXPLAIN",
                                        [AM_COMMAND_EXPORT] = "EXPORT",
                                        [AM_COMMAND_RUN] = "RUN",
                                        [AM_COMMAND_SWEEP] = "SWEEP",
                                        [AM_COMMAND_INFO] = "INFO",
                                        [AM_COMMAND_GROUPS] = "GROUPS",
                                        [AM_COMMAND_PROPAGATE] = "PROPAGATE",
                                        [AM_COMMAND_LOWER] = "LOWER",
                                        [AM_COMMAND_CLUSTER] = "CLUSTER",
                                        [AM_COMMAND_PUBLISHED] = "PUBLISHED",
                                        [AM_COMMAND_AGENT_TRAIN] = "AGENT_TRAIN",
                                        [AM_COMMAND_AGENT_TRAIN_SEARCH] = "AGENT_TRAIN_SEARCH",
                                        [AM_COMMAND_AGENT_EVALUATE] = "AGENT_EVALUATE",
                                        [AM_COMMAND_AGENT_GENERATE] = "AGENT_GENERATE",
                                        [AM_COMMAND_COMPARE] = "COMPARE",
                                        [AM_COMMAND_CONVERT] = "CONVERT"};
    bool is_known = command >= 0 && (size_t)command < sizeof names / sizeof *names && names[command];
    return is_known ? names[command] : "(unknown)";
}

AmStatus api_check_options(const AmOptions *options, AmCommand command, AmError *error) {
    if (!options || options->command == command) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "",
                   "options: expected those of AM_COMMAND_%s, got those of AM_COMMAND_%s",
                   name_of_command(command), name_of_command(options->command));
}

AmStatus api_check_format(AmFormat format, bool has_html, AmError *error) {
    if (format == AM_FORMAT_TEXT || format == AM_FORMAT_JSON || format == AM_FORMAT_TERMINAL ||
        (has_html && format == AM_FORMAT_HTML))
        return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "format %d: expected text, JSON%s", (int)format,
                   has_html ? ", HTML or text for a terminal" : " or text for a terminal");
}

AmStatus api_give_text(char **buffer, size_t *bytes, Text *text, AmError *error) {
    *buffer = NULL;
    if (bytes) *bytes = 0;
    if (!text->data && !text->failed) text_append_string(text, "");
    if (text->failed) {
        AmStatus status = am_fail_memory(error, (int64_t)text->capacity);
        text_free(text);
        *text = (Text){0};
        return status;
    }
    *buffer = text->data;
    if (bytes) *bytes = text->length;
    *text = (Text){0};
    return AM_OK;
}

AmStatus api_end_text(AmStatus status, char **buffer, size_t *bytes, Text *text, AmError *error) {
    if (status == AM_OK) return api_give_text(buffer, bytes, text, error);
    text_free(text);
    return status;
}

AmStatus api_append_json(Text *text, json_t *root, JsonStyle style, AmError *error) {
    if (!root) return am_fail_memory(error, 0);
    json_write(text, root, style);
    json_decref(root);
    text_append_string(text, "\n");
    return AM_OK;
}

AmStatus api_give_json(char **buffer, size_t *bytes, json_t *root, JsonStyle style, AmError *error) {
    Text text = {0};
    *buffer = NULL;
    AmStatus status = api_append_json(&text, root, style, error);
    return api_end_text(status, buffer, bytes, &text, error);
}

void api_message(const AmCallbacks *callbacks, AmMessage kind, const char *format, ...) {
    Text text = {0};
    va_list arguments;
    if (!callbacks->on_message) return;
    va_start(arguments, format);
    text_append_arguments(&text, format, arguments);
    va_end(arguments);
    if (text.data && !text.failed) callbacks->on_message(callbacks->user, kind, text.data);
    text_free(&text);
}

void api_note_carried(const AmCallbacks *callbacks, const AmPlan *plan) {
    const Plan *from = plan->plan;
    const PlanContext *to = plan->module;
    if (!from->carried_sha256) return;
    api_message(
        callbacks, AM_NOTE,
        "%s is for module %.100s (sha256 %.12s); its decisions apply by name to %.100s of %s (sha256 %.12s), "
        "which has the same parameters",
        from->source, from->module_name, from->carried_sha256, to->canonical->name, to->module->source,
        to->sha256);
}

json_t *api_carried_to_json(const AmPlan *plan) {
    const Plan *from = plan->plan;
    const PlanContext *to = plan->module;
    if (!from->carried_sha256) return NULL;
    return json_pack("{s:{s:s, s:s}, s:{s:s, s:s}}", "from", "module", from->module_name, "sha256",
                     from->carried_sha256, "to", "module", to->canonical->name, "sha256", to->sha256);
}

void api_warn(const AmCallbacks *callbacks, const AmWarnings *warnings) {
    for (int32_t k = 0; k < warnings->count; k++)
        api_message(callbacks, AM_WARNING, "%s", warnings->texts[k]);
}

const char *am_version(void) {
    return AM_VERSION;
}

void am_free(void *buffer) {
    free(buffer);
}
