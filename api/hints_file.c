/* Reads a file of hints as pins.
 *
 * Each decision of the file becomes the text of a pin, such as "layer_3/.*=split(model)", and is read as if
 * it came from the command line (propagation/propagate/pins.h). The pin keeps its place in the file,
 * "$.hints[2]", for errors.
 */
#include "api/hints_file.h"

#include <stdio.h>
#include <sys/stat.h>

#include "base/files/file.h"
#include "base/files/file_format.h"
#include "base/files/json.h"
#include "lowering/micro_batch/micro_batches.h"

typedef struct HintsReader {
    Arena *arena;
    const char *source;
    HintsFile *hints;
    int32_t capacity;
    char where[48]; /* "$.hints[2]" */
} HintsReader;

static AmStatus add_pin(HintsReader *self, const char *pattern, const char *sharding, const char *key,
                        AmError *error) {
    HintsFile *hints = self->hints;
    Text text = {0}, place = {0};
    text_append(&text, "%s=%s", pattern, sharding);
    text_append(&place, "%s.%s", self->where, key);
    ARENA_RESERVE(self->arena, hints->pins, hints->pin_count, self->capacity);
    bool has_memory = !self->arena->failed && !text.failed && !place.failed;
    AmStatus status = has_memory ? AM_OK : am_fail_memory(error, hints->pin_count);
    AmError refusal = {0};
    PropagationPin pin;
    if (status == AM_OK) status = propagation_parse_pin(&pin, self->arena, text.data, &refusal);
    if (refusal.code != AM_OK)
        status = am_fail(error, AM_ERROR_INPUT, self->source, "%s.%s: %s", self->where, key, refusal.text);
    if (status == AM_OK) {
        pin.file = self->source;
        pin.place = arena_copy_string(self->arena, place.data);
        hints->pins[hints->pin_count++] = pin;
        if (!pin.place) status = am_fail_memory(error, (int64_t)place.length);
    }
    text_free(&text);
    text_free(&place);
    return status;
}

static AmStatus fail_value(const HintsReader *self, const char *key, const char *expected, AmError *error) {
    return am_fail(error, AM_ERROR_INPUT, self->source, "%s.%s: expected %s", self->where, key, expected);
}

/* Appends one device of a list: a number or the name of a type. */
static bool append_device(Text *text, const json_t *item) {
    if (json_is_integer(item)) text_append(text, "%lld", (long long)json_integer_value(item));
    else if (json_is_string(item)) text_append_string(text, json_string_value(item));
    else return false;
    return true;
}

static AmStatus write_devices(Text *text, const HintsReader *self, const json_t *value, AmError *error) {
    bool is_list = json_is_array(value), is_valid = true;
    text_append_string(text, "devices(");
    if (!is_list) is_valid = append_device(text, value);
    for (size_t k = 0; is_list && k < json_array_size(value); k++) {
        if (k > 0) text_append_string(text, ",");
        is_valid &= append_device(text, json_array_get(value, k));
    }
    text_append_string(text, ")");
    if (!is_valid || (is_list && json_array_size(value) == 0))
        return fail_value(self, "devices", "a device type, a number, or a list of these", error);
    return text->failed ? am_fail_memory(error, 0) : AM_OK;
}

/* Adds the pins of a hint for one of its scopes. */
static AmStatus add_scope(HintsReader *self, const json_t *hint, const char *scope, AmError *error) {
    static const struct {
        const char *key;
        bool takes_word, takes_true;
        const char *expected;
    } calls[] = {{"replicate", false, true, "true or a number of devices"},
                 {"split", true, false, "a number of devices or an axis of the mesh"},
                 {"stage", false, false, "the number of a stage, from 0 on"}};
    int32_t before = self->hints->pin_count;
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
        const json_t *value = json_object_get(hint, calls[k].key);
        Text text = {0};
        if (!value) continue;
        bool is_number = json_is_integer(value) && json_integer_value(value) >= 0 &&
                         json_integer_value(value) <= PIN_MOST_NUMBER;
        AmStatus status = AM_OK;
        if (calls[k].takes_true && json_is_true(value)) text_append_string(&text, calls[k].key);
        else if (is_number) text_append(&text, "%s(%d)", calls[k].key, (int)json_integer_value(value));
        else if (calls[k].takes_word && json_is_string(value))
            text_append(&text, "%s(%s)", calls[k].key, json_string_value(value));
        else status = fail_value(self, calls[k].key, calls[k].expected, error);
        if (text.failed) status = am_fail_memory(error, 0);
        if (status == AM_OK) status = add_pin(self, scope, text.data, calls[k].key, error);
        text_free(&text);
        TRY(status);
    }
    static const char *const shardings[] = {"sharding", "value"};
    for (size_t k = 0; k < sizeof shardings / sizeof *shardings; k++) {
        const json_t *sharding = json_object_get(hint, shardings[k]);
        Text text = {0};
        if (!sharding) continue;
        if (!json_is_string(sharding))
            return fail_value(self, shardings[k], "- or an axis per dimension", error);
        text_append(&text, "%s(%s)", shardings[k], json_string_value(sharding));
        AmStatus status =
            text.failed ? am_fail_memory(error, 0) : add_pin(self, scope, text.data, shardings[k], error);
        text_free(&text);
        TRY(status);
    }
    const json_t *devices = json_object_get(hint, "devices");
    if (devices) {
        Text text = {0};
        AmStatus status = write_devices(&text, self, devices, error);
        if (status == AM_OK) status = add_pin(self, scope, text.data, "devices", error);
        text_free(&text);
        TRY(status);
    }
    if (self->hints->pin_count > before) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, self->source,
                   "%s: expected replicate, split, sharding, value, stage or devices", self->where);
}

static AmStatus read_hint(HintsReader *self, json_t *hint, AmError *error) {
    static const char *const of_scope[] = {"scope", "replicate", "split",   "sharding",
                                           "value", "stage",     "devices", NULL};
    static const char *const of_parameter[] = {"parameter", "sharding", NULL};
    if (!json_is_object(hint))
        return am_fail(error, AM_ERROR_INPUT, self->source, "%s: expected an object", self->where);
    if (json_object_get(hint, "parameter")) {
        const char *path, *sharding;
        TRY(json_only_keys(hint, of_parameter, self->source, self->where, error));
        TRY(json_get_string(&path, hint, "parameter", self->source, self->where, error));
        TRY(json_get_string(&sharding, hint, "sharding", self->source, self->where, error));
        if (!*path) return fail_value(self, "parameter", "the path of a parameter", error);
        if (!*sharding) return fail_value(self, "sharding", "- or an axis per dimension", error);
        return add_pin(self, path, sharding, "sharding", error);
    }
    TRY(json_only_keys(hint, of_scope, self->source, self->where, error));
    const json_t *scopes = json_object_get(hint, "scope");
    size_t count = json_is_string(scopes) ? 1 : json_array_size(scopes);
    if (count == 0) return fail_value(self, "scope", "a scope or a list of scopes", error);
    for (size_t k = 0; k < count; k++) {
        const char *scope = json_string_value(json_is_string(scopes) ? scopes : json_array_get(scopes, k));
        if (!scope || !*scope) return fail_value(self, "scope", "a scope or a list of scopes", error);
        TRY(add_scope(self, hint, scope, error));
    }
    return AM_OK;
}

/* Reads a number of the file, if it is there. `*place` is then "hints.json: $.stages" in the arena. */
static AmStatus read_number(const HintsReader *self, int32_t *value, const char **place, json_t *root,
                            const char *key, int64_t most, AmError *error) {
    int64_t number;
    Text text = {0};
    if (!json_object_get(root, key)) return AM_OK;
    TRY(json_get_integer(&number, root, key, 1, most, self->source, "$", error));
    text_append(&text, "%s: $.%s", self->source, key);
    *value = (int32_t)number;
    *place = text.failed ? NULL : arena_copy_string(self->arena, text.data);
    text_free(&text);
    return *place ? AM_OK : am_fail_memory(error, 0);
}

static AmStatus read_root(HintsReader *self, json_t *root, AmError *error) {
    static const char *const keys[] = {
        "stages", "devices_per_stage", "data", "tensor", "micro_batches", "hints", NULL};
    HintsFile *hints = self->hints;
    if (!json_is_object(root)) return am_fail(error, AM_ERROR_INPUT, self->source, "$: expected an object");
    TRY(json_only_keys(root, keys, self->source, "$", error));
    for (int32_t k = 0; k < DEGREE_KINDS; k++)
        TRY(read_number(self, &hints->degrees.values[k], &hints->degrees.origins[k], root, degree_rows[k].key,
                        degree_rows[k].most, error));
    TRY(read_number(self, &hints->micro_batches, &hints->micro_batches_place, root, "micro_batches",
                    MICRO_BATCHES_MOST, error));
    json_t *list;
    if (!json_object_get(root, "hints")) return AM_OK;
    TRY(json_get_array(&list, root, "hints", self->source, "$", error));
    for (size_t k = 0; k < json_array_size(list); k++) {
        snprintf(self->where, sizeof self->where, "$.hints[%zu]", k);
        TRY(read_hint(self, json_array_get(list, k), error));
    }
    return AM_OK;
}

AmStatus hints_file_read(HintsFile *hints, Arena *arena, const char *path, AmError *error) {
    FileBytes bytes;
    json_t *root = NULL;
    AmStatus status;
    *hints = (HintsFile){0};
    struct stat about;
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return am_fail(error, AM_ERROR_INPUT, path, "expected a regular file of hints");
    TRY(file_read(&bytes, path, error));
    HintsReader self = {.arena = arena, .source = arena_copy_string(arena, bytes.name), .hints = hints};
    TRY_OR_FAIL(self.source ? AM_OK : am_fail_memory(error, 0));
    TRY_OR_FAIL(file_format_expect(FILE_FORMAT_HINTS, self.source, bytes.data, bytes.length, error));
    TRY_OR_FAIL(json_parse(&root, bytes.name, bytes.data, (size_t)bytes.length, error));
    TRY_OR_FAIL(read_root(&self, root, error));
fail:
    json_decref(root);
    file_release(&bytes);
    return status;
}
