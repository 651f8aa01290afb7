/* Assigns the files of --state and --data to parameters.
 *
 * Data parameters are searched in the data files first, all others in the state file first.
 */
#define _POSIX_C_SOURCE 200809L
#include "executor/data/feed_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/suggest.h"
#include "base/text.h"

enum { NAMED_AT_MOST = 5 };

static const IrShape *shape_of(const FeedSource *source, int32_t k) {
    return plan_context_parameter_shape(source->context, k);
}

static int32_t find_parameter(const FeedSource *source, const char *name, size_t length) {
    const IrRoles *roles = source->context->roles;
    for (int32_t k = 0; k < roles->parameter_count; k++)
        if (strlen(roles->parameters[k].path) == length &&
            strncmp(roles->parameters[k].path, name, length) == 0)
            return k;
    return -1;
}

/* Refuses the `length` bytes of `option` before "=", none of the parameters; proposes the nearest path of the
 * data. */
static AmStatus fail_unknown_names(const FeedSource *source, const char *option, size_t length,
                                   AmError *error) {
    enum { MOST_PATHS = 64 };
    const IrRoles *roles = source->context->roles;
    const char *paths[MOST_PATHS];
    char name[100], hint[SUGGEST_HINT_BYTES];
    size_t count = 0;
    for (int32_t k = 0; k < roles->parameter_count && count < MOST_PATHS; k++)
        if (roles->parameters[k].role == IR_ROLE_DATA) paths[count++] = roles->parameters[k].path;
    snprintf(name, sizeof name, "%.*s", (int)length, option);
    return am_fail(error, AM_ERROR_USAGE, "",
                   "--data %.200s: no parameter \"%s\" (expected NAME=FILE or INPUTS,TARGETS=FILE)%s", option,
                   name, suggest_hint(hint, name, paths, count));
}

/* Parses NAME=FILE or NAME,NAME=FILE; an argument that is an existing file has no names. A path may
 * contain commas, so that the whole left side is tried first. */
static AmStatus read_names(FeedFile *file, const FeedSource *source, const char *option, AmError *error) {
    const char *equals = strchr(option, '=');
    file->path = option;
    file->inputs = file->targets = -1;
    if (!equals || access(option, F_OK) == 0) return AM_OK;
    file->path = equals + 1;
    file->inputs = find_parameter(source, option, (size_t)(equals - option));
    if (file->inputs >= 0) return AM_OK;
    for (const char *comma = strchr(option, ','); comma && comma < equals; comma = strchr(comma + 1, ',')) {
        file->inputs = find_parameter(source, option, (size_t)(comma - option));
        file->targets = find_parameter(source, comma + 1, (size_t)(equals - comma - 1));
        if (file->inputs >= 0 && file->targets >= 0) return AM_OK;
    }
    return fail_unknown_names(source, option, (size_t)(equals - option), error);
}

static bool same_shape(const IrShape *a, const IrShape *b) {
    return a->rank == b->rank && memcmp(a->dimensions, b->dimensions, sizeof(int64_t) * (size_t)a->rank) == 0;
}

/* Returns whether the name is that of prediction targets. */
static bool names_targets(const char *path) {
    static const char *const words[] = {"target", "label", "next"};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++)
        if (strstr(path, words[k])) return true;
    return strcmp(path, "y") == 0;
}

/* Finds the parameters of a token file without names: the integer data parameters, if there is one,
 * or two of one shape. */
static AmStatus find_token_parameters(FeedFile *file, const FeedSource *source, AmError *error) {
    const IrRoles *roles = source->context->roles;
    int32_t found[3], count = 0;
    for (int32_t k = 0; k < roles->parameter_count && count < 3; k++) {
        const IrShape *shape = shape_of(source, k);
        if (roles->parameters[k].role == IR_ROLE_DATA && dtype_is_integer(shape->type) && shape->rank >= 1)
            found[count++] = k;
    }
    if (count == 1) {
        file->inputs = found[0];
        return AM_OK;
    }
    if (count == 2 && same_shape(shape_of(source, found[0]), shape_of(source, found[1]))) {
        int32_t targets = names_targets(roles->parameters[found[1]].path) ? 1 : 0;
        file->inputs = found[1 - targets];
        file->targets = found[targets];
        if (names_targets(roles->parameters[file->targets].path) &&
            !names_targets(roles->parameters[file->inputs].path))
            return AM_OK;
    }
    return am_fail(error, AM_ERROR_INPUT, file->path,
                   "holds tokens, and the module has %s: say --data INPUTS,TARGETS=FILE, or INPUTS=FILE",
                   count == 0 ? "no data parameter of integers"
                              : "several data parameters of integers that could take them");
}

/* Returns whether a .npy of one row of integers feeds a parameter of more dimensions with tokens. */
static bool is_token_row(const FeedFile *file, const FeedSource *source) {
    const ArrayEntry *entry = file->arrays.entries;
    if (file->arrays.count != 1 || entry->rank != 1 || !dtype_is_integer(entry->type) ||
        file->arrays.metadata)
        return false;
    size_t length = strlen(file->path);
    if (length < 4 || strcmp(file->path + length - 4, ".npy") != 0) return false;
    if (file->inputs >= 0) return file->targets >= 0 || shape_of(source, file->inputs)->rank >= 2;
    return find_parameter(source, entry->name, strlen(entry->name)) < 0;
}

static AmStatus open_data(FeedFile *file, const FeedSource *source, const char *option, AmError *error) {
    TRY(read_names(file, source, option, error));
    file->is_tokens = token_file_is(file->path);
    if (!file->is_tokens) {
        TRY(array_file_open(&file->arrays, file->path, error));
        file->is_tokens = is_token_row(file, source);
    }
    if (!file->is_tokens) {
        if (file->targets >= 0)
            return am_fail(error, AM_ERROR_INPUT, file->path,
                           "holds arrays: expected tokens for two parameters");
        if (file->inputs < 0 || file->arrays.count == 1) return AM_OK;
        return am_fail(error, AM_ERROR_INPUT, file->path,
                       "holds %d arrays: expected one for the parameter named", file->arrays.count);
    }
    if (file->inputs < 0) TRY(find_token_parameters(file, source, error));
    /* Tokens fit a parameter of integers whose last dimension is the length of a window. */
    const int32_t both[2] = {file->inputs, file->targets};
    for (int k = 0; k < 2; k++) {
        if (both[k] < 0) continue;
        const IrShape *shape = shape_of(source, both[k]);
        if (!dtype_is_integer(shape->type) || dtype_bits(shape->type) < 8 || shape->rank < 1 ||
            ir_shape_elements(shape) == 0)
            return am_fail(error, AM_ERROR_INPUT, file->path,
                           "holds tokens, which '%s' cannot take: expected integers of one dimension or more",
                           plan_context_parameter(source->context, both[k])->path);
    }
    if (file->targets < 0 || same_shape(shape_of(source, file->inputs), shape_of(source, file->targets)))
        return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, file->path,
                   "'%s' and '%s' have different shapes: expected the same",
                   plan_context_parameter(source->context, file->inputs)->path,
                   plan_context_parameter(source->context, file->targets)->path);
}

/* Arrays that no parameter is named by. */
static void warn_of_extra(const FeedFile *file, const FeedSource *source) {
    Text names = {0};
    int32_t count = 0;
    if (file->is_tokens || file->inputs >= 0 || !source->options->warnings) return;
    for (int32_t k = 0; k < file->arrays.count; k++) {
        const char *name = file->arrays.entries[k].name;
        if (find_parameter(source, name, strlen(name)) >= 0) continue;
        if (count++ < NAMED_AT_MOST) text_append(&names, "%s'%s'", count > 1 ? ", " : "", name);
    }
    if (count > NAMED_AT_MOST) text_append(&names, " and %d more", count - NAMED_AT_MOST);
    if (count > 0)
        am_warn(source->options->warnings, "%s: no parameter of the module is named %s", file->path,
                names.data ? names.data : "so");
    text_free(&names);
}

AmStatus feed_source_open(FeedSource *source, const PlanContext *context, const RunOptions *options,
                          Arena *arena, AmError *error) {
    *source = (FeedSource){.context = context, .options = options, .arena = arena};
    int32_t count = options->data_count + (options->data_path ? 1 : 0);
    source->data = ARENA_ARRAY(arena, FeedFile, count + 1);
    if (!source->data) return am_fail_memory(error, (int64_t)sizeof(FeedFile) * count);
    if (options->state_path && strcmp(options->state_path, "random") != 0) {
        source->has_state = true;
        source->state = (FeedFile){.path = options->state_path, .inputs = -1, .targets = -1};
        TRY(array_file_open(&source->state.arrays, options->state_path, error));
        warn_of_extra(&source->state, source);
    }
    for (int32_t k = 0; k < count; k++) {
        int32_t more = options->data_path ? k - 1 : k;
        FeedFile *file = &source->data[source->data_count++];
        TRY(open_data(file, source, more < 0 ? options->data_path : options->data_paths[more], error));
        warn_of_extra(file, source);
    }
    return AM_OK;
}

void feed_source_close(FeedSource *source) {
    if (source->has_state) array_file_close(&source->state.arrays);
    for (int32_t k = 0; k < source->data_count; k++) array_file_close(&source->data[k].arrays);
    source->data_count = 0;
    source->has_state = false;
}

/* Returns whether a file feeds the parameter; `*entry`: with which array, NULL for tokens. */
static bool feeds_parameter(FeedFile *file, const IrParameter *parameter, const ArrayEntry **entry) {
    *entry = NULL;
    if (file->is_tokens) return file->inputs == parameter->number || file->targets == parameter->number;
    if (file->inputs >= 0) *entry = file->inputs == parameter->number ? file->arrays.entries : NULL;
    else *entry = array_file_find(&file->arrays, parameter->path);
    return *entry != NULL;
}

/* Finds the array in the data files. Two for one parameter are an error. */
static AmStatus find_in_data(FeedFile **file, const ArrayEntry **entry, const FeedSource *source,
                             const IrParameter *parameter, AmError *error) {
    for (int32_t k = 0; k < source->data_count; k++) {
        const ArrayEntry *found;
        if (!feeds_parameter(&source->data[k], parameter, &found)) continue;
        if (*file)
            return am_fail(error, AM_ERROR_INPUT, source->data[k].path, "feeds '%s', and so does %s",
                           parameter->path, (*file)->path);
        *file = &source->data[k];
        *entry = found;
    }
    return AM_OK;
}

AmStatus feed_source_find(FeedFile **file, const ArrayEntry **entry, FeedSource *source, int32_t number,
                          AmError *error) {
    const IrParameter *parameter = plan_context_parameter(source->context, number);
    const char *state = source->options->state_path;
    bool is_data = parameter->role == IR_ROLE_DATA;
    *file = NULL;
    *entry = NULL;
    if (is_data) TRY(find_in_data(file, entry, source, parameter, error));
    if (!*file && source->has_state && feeds_parameter(&source->state, parameter, entry))
        *file = &source->state;
    if (!*file && !is_data) TRY(find_in_data(file, entry, source, parameter, error));
    if (*file || (state && strcmp(state, "random") == 0)) return AM_OK;
    bool in_data = source->data_count > 0 && (is_data || !source->has_state);
    const char *source_path = in_data ? source->data[0].path : source->has_state ? source->state.path : "";
    return am_fail(error, AM_ERROR_INPUT, source_path,
                   "no array named \"%s\" (%s, entry parameter %d); expected in --%s FILE, or --state random "
                   "to draw missing arrays",
                   parameter->path, ir_role_name(parameter->role), parameter->number,
                   is_data ? "data" : "state");
}
