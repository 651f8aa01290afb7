/* Matches the parameters of a validation module with the values of a training, by the words of their paths.
 */
#include "executor/run/validation_match.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { LISTED_AT_MOST = 5, MOST_OTHER_WORDS = 2 };

static bool separates(char c) {
    return strchr("[]()'\"./, ", c) != NULL;
}

/* Moves *end to the beginning of the last word of path[0 .. *end - 1]. Returns its length, or 0
 * without a word. */
static size_t take_last_word(const char *path, size_t *end) {
    while (*end > 0 && separates(path[*end - 1])) --*end;
    size_t last = *end;
    while (*end > 0 && !separates(path[*end - 1])) --*end;
    return last - *end;
}

static int32_t count_words(const char *path, size_t end) {
    int32_t count = 0;
    while (take_last_word(path, &end) > 0) count++;
    return count;
}

int32_t validation_common_words(const char *a, const char *b) {
    size_t end_a = strlen(a), end_b = strlen(b);
    int32_t common = 0;
    for (;;) {
        size_t next_a = end_a, next_b = end_b;
        size_t length = take_last_word(a, &next_a);
        if (length == 0 || take_last_word(b, &next_b) != length ||
            memcmp(a + next_a, b + next_b, length) != 0)
            break;
        end_a = next_a;
        end_b = next_b;
        common++;
    }
    if (common == 0) return 0;
    int32_t other_a = count_words(a, end_a), other_b = count_words(b, end_b);
    int32_t least = other_a < other_b ? other_a : other_b, most = other_a < other_b ? other_b : other_a;
    return least <= 1 && most <= MOST_OTHER_WORDS ? common : 0;
}

static const IrShape *shape_of(const PlanContext *context, int32_t parameter) {
    return plan_context_parameter_shape(context, parameter);
}

/* Returns the similarity of the path with that of parameter k of the training; 0: no common word. */
static int64_t rate(const PlanContext *training, int32_t k, const char *path) {
    const IrParameter *candidate = &training->roles->parameters[k];
    if (candidate->role == IR_ROLE_DATA) return 0;
    if (strcmp(candidate->path, path) == 0) return INT64_MAX;
    int64_t common = validation_common_words(candidate->path, path);
    return common == 0 ? 0 : 2 * common + (candidate->role == IR_ROLE_WEIGHT ? 1 : 0);
}

/* Sets *source to the parameter of the training that has the value of parameter k, or to -1. */
static AmStatus find_source(int32_t *source, const PlanContext *training, const PlanContext *module,
                            int32_t k, AmError *error) {
    const char *path = module->roles->parameters[k].path;
    const IrParameter *parameters = training->roles->parameters;
    int64_t best = 0;
    int32_t rival = -1;
    *source = -1;
    for (int32_t t = 0; t < training->roles->parameter_count; t++) {
        int64_t suits = rate(training, t, path);
        if (suits == 0 || suits < best) continue;
        rival = suits == best ? t : -1;
        if (suits > best) *source = t;
        best = suits;
    }
    if (rival >= 0)
        return am_fail(
            error, AM_ERROR_INPUT, module->canonical->source,
            "parameter '%s' matches '%s' and '%s' of the training: expected one path with its last words",
            path, parameters[*source].path, parameters[rival].path);
    if (*source < 0 || ir_shape_equal(shape_of(module, k), shape_of(training, *source))) return AM_OK;
    Text text = {0};
    text_append(&text, "parameter '%s' is ", path);
    ir_shape_append(&text, shape_of(module, k));
    text_append(&text, ", expected ");
    ir_shape_append(&text, shape_of(training, *source));
    text_append(&text, " as '%s' of the training", parameters[*source].path);
    AmStatus status = text.failed
                          ? am_fail_memory(error, 0)
                          : am_fail(error, AM_ERROR_INPUT, module->canonical->source, "%s", text.data);
    text_free(&text);
    return status;
}

/* Refuses two parameters with one source: one of them would have a wrong value. */
static AmStatus check_distinct(const int32_t *sources, const PlanContext *training, const PlanContext *module,
                               AmError *error) {
    const IrParameter *parameters = module->roles->parameters;
    int64_t count = training->roles->parameter_count;
    const char **receivers = calloc((size_t)count + 1, sizeof *receivers);
    AmStatus status = receivers ? AM_OK : am_fail_memory(error, count * (int64_t)sizeof *receivers);
    for (int32_t k = 0; k < module->roles->parameter_count && status == AM_OK; k++) {
        if (sources[k] < 0) continue;
        const char **receiver = &receivers[sources[k]];
        if (*receiver)
            status = am_fail(error, AM_ERROR_INPUT, module->canonical->source,
                             "parameters '%s' and '%s' both match '%s' of the training", *receiver,
                             parameters[k].path, training->roles->parameters[sources[k]].path);
        *receiver = parameters[k].path;
    }
    free(receivers);
    return status;
}

AmStatus validation_match(int32_t *sources, const PlanContext *training, const PlanContext *module,
                          const bool *is_in_data, AmError *error) {
    Text missing = {0};
    int32_t count = 0;
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < module->roles->parameter_count && status == AM_OK; k++) {
        const IrParameter *parameter = &module->roles->parameters[k];
        sources[k] = -1;
        if (parameter->role == IR_ROLE_DATA && is_in_data[k]) continue;
        status = find_source(&sources[k], training, module, k, error);
        if (sources[k] >= 0 || (is_in_data[k] && parameter->output < 0) || count++ >= LISTED_AT_MOST)
            continue;
        text_append(&missing, "%s'%s' (%s, ", count > 1 ? ", " : "", parameter->path,
                    ir_role_name(parameter->role));
        ir_shape_append(&missing, shape_of(module, k));
        text_append_string(&missing, ")");
    }
    if (count > LISTED_AT_MOST) text_append(&missing, " and %d more", count - LISTED_AT_MOST);
    if (status == AM_OK && missing.failed) status = am_fail_memory(error, 0);
    if (status == AM_OK && count > 0)
        status = am_fail(error, AM_ERROR_INPUT, module->canonical->source,
                         "no value for %s: expected the path in the training or an array in --eval-data",
                         missing.data);
    text_free(&missing);
    return status == AM_OK ? check_distinct(sources, training, module, error) : status;
}
