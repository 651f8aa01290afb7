/* Renames the keys of earlier versions, and renumbers the instructions and parameters of a parsed plan.
 *
 * Both modules have the same instructions in the same order once unused parameters are left out. So a number
 * of the plan's module is first the rank among the used ones, then the number of that rank in the other
 * module.
 */
#include "lowering/plan_file/plan_adapt.h"

#include <stdlib.h>
#include <string.h>

#include "base/compare.h"
#include "ir/canonical/canonical.h"
#include "lowering/plan_file/plan_parts.h"

/* Old and new numbers of instructions, or of parameters. */
typedef struct NumberMap {
    const int32_t *before, *after; /* left out in the plan's module and in the other, ascending */
    int32_t before_count, after_count;
} NumberMap;

/* Returns the new number, or -1 for one that is left out; a `boundary` is the place before a number. */
static json_int_t renumber(const NumberMap *self, json_int_t number, bool is_boundary) {
    json_int_t rank = number;
    if (is_boundary && number == 0) return 0;
    for (int32_t k = 0; k < self->before_count && self->before[k] <= number; k++) {
        if (self->before[k] < number) rank--;
        else if (!is_boundary) return -1;
    }
    for (int32_t k = 0; k < self->after_count && self->after[k] <= rank; k++) rank++;
    return rank;
}

typedef struct Adapter {
    NumberMap instructions, parameters;
    json_int_t count_before, count_after; /* instructions */
} Adapter;

/* Returns column `column` of the rows, sorted. */
static int32_t *sorted(Arena *arena, int32_t (*rows)[2], int32_t count, int32_t column) {
    int32_t *values = ARENA_ARRAY(arena, int32_t, count + 1);
    for (int32_t k = 0; values && k < count; k++) values[k] = rows[k][column];
    if (values) qsort(values, (size_t)count, sizeof *values, compare_integers);
    return values;
}

static AmStatus read_unused(IrUnused *unused, Arena *arena, json_t *list, json_int_t instructions,
                            const char *source, AmError *error) {
    size_t count = json_array_size(list);
    bool is_good = json_is_array(list) && (json_int_t)count <= instructions;
    unused->rows = arena_alloc(arena, sizeof *unused->rows * (count + 1));
    if (!unused->rows) return am_fail_memory(error, (int64_t)count);
    for (size_t k = 0; is_good && k < count; k++) {
        const json_t *row = json_array_get(list, k);
        for (size_t column = 0; column < 2; column++) {
            const json_t *value = json_array_get(row, column);
            json_int_t number = json_integer_value(value);
            is_good = is_good && json_array_size(row) == 2 && json_is_integer(value) && number >= 0 &&
                      number < instructions;
            unused->rows[k][column] = is_good ? (int32_t)number : 0;
        }
    }
    unused->count = (int32_t)count;
    return is_good ? AM_OK
                   : am_fail(error, AM_ERROR_INPUT, source,
                             "$.module.structure.unused: expected rows [parameter number, instruction]");
}

/* Replaces element `index` of a list by its new number; false: it is left out or no number. */
static bool renumber_element(json_t *list, size_t index, const NumberMap *by, bool is_boundary) {
    const json_t *element = json_array_get(list, index);
    json_int_t number =
        json_is_integer(element) ? renumber(by, json_integer_value(element), is_boundary) : -1;
    if (number >= 0) json_array_set_new(list, index, json_integer(number));
    return number >= 0;
}

static void adapt_ranges(json_t *ranges, const Adapter *self) {
    json_t *range;
    size_t k;
    json_array_foreach(ranges, k, range) {
        renumber_element(range, 0, &self->instructions, true);
        if (json_integer_value(json_array_get(range, 1)) == self->count_before)
            json_array_set_new(range, 1, json_integer(self->count_after));
        else renumber_element(range, 1, &self->instructions, true);
    }
}

/* Adapts the number of a class: a plan with micro-batches counts in multiples of the module's
 * instructions. */
static bool adapt_class(json_t *class, const Adapter *self) {
    const char *kind = json_string_value(json_array_get(class, 0));
    if (!kind) return true;
    if (strcmp(kind, "parameter") == 0) return renumber_element(class, 1, &self->parameters, false);
    json_int_t number = json_integer_value(json_array_get(class, 1));
    if (number < 0 || self->count_before == 0) return false;
    json_int_t copy = number / self->count_before, within = number % self->count_before;
    json_int_t found = renumber(&self->instructions, within, false);
    if (found >= 0) json_array_set_new(class, 1, json_integer(copy * self->count_after + found));
    return found >= 0;
}

/* Renumbers the rows of a list and removes those of unused parameters. */
static void adapt_instructions(json_t *list, const Adapter *self) {
    for (size_t k = 0; k < json_array_size(list);) {
        json_t *row = json_array_get(list, k), *number = json_object_get(row, "instruction");
        json_int_t found = renumber(&self->instructions, json_integer_value(number), false);
        if (json_is_integer(number) && found < 0) {
            json_array_remove(list, k);
            continue;
        }
        if (json_is_integer(number)) json_object_set_new(row, "instruction", json_integer(found));
        k++;
    }
}

static void adapt_stage(json_t *stage, const Adapter *self) {
    const char *axis;
    json_t *entries;
    adapt_ranges(json_object_get(stage, "ranges"), self);
    adapt_ranges(json_object_get(stage, "recompute"), self);
    json_t *saved = json_object_get(stage, "saved");
    for (size_t k = 0; k < json_array_size(saved);) {
        if (renumber_element(saved, k, &self->instructions, false)) k++;
        else json_array_remove(saved, k);
    }
    adapt_instructions(json_object_get(stage, "overrides"), self);
    adapt_instructions(json_object_get(stage, "reshards"), self);
    json_object_foreach(json_object_get(stage, "axis_priorities"), axis, entries) {
        for (size_t k = 0; k < json_array_size(entries);) {
            json_t *class = json_object_get(json_array_get(entries, k), "class");
            if (adapt_class(class, self)) k++;
            else json_array_remove(entries, k);
        }
    }
}

/* Renames the keys of a stage; returns whether it had any of an earlier version. */
static bool rename_keys(json_t *stage) {
    static const char *const names[][2] = {{"lists", "axis_priorities"},
                                           {"exceptions", "overrides"},
                                           {"boxing", "reshards"},
                                           {"keeps_gathered", "keeps_gathered_weights"},
                                           {"reduces_whole", "all_reduces_gradients"},
                                           {"reduces_wide", "reduces_in_f32"}};
    bool is_renamed = false;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        json_t *value = json_object_get(stage, names[k][0]);
        if (!value || json_object_get(stage, names[k][1])) continue;
        json_object_set(stage, names[k][1], value);
        json_object_del(stage, names[k][0]);
        is_renamed = true;
    }
    json_t *reshard;
    size_t k;
    json_array_foreach(json_object_get(stage, "reshards"), k, reshard) {
        const char *place = json_string_value(json_object_get(reshard, "place"));
        if (!place || strcmp(place, "redone") != 0) continue;
        json_object_set_new(reshard, "place", json_string("repeated"));
        is_renamed = true;
    }
    return is_renamed;
}

/* Notes the hash of changed decisions, for which the prediction stays valid; `before`: theirs until now. */
static AmStatus keep_prediction(json_t *root, const char *before, AmError *error) {
    char after[65];
    json_t *predicted = json_object_get(root, "predicted");
    const char *of = json_string_value(json_object_get(predicted, "of"));
    TRY(plan_decided_sha256(after, root, error));
    if (of && strcmp(of, before) == 0) json_object_set_new(predicted, "of", json_string(after));
    return AM_OK;
}

AmStatus plan_rename_keys(json_t *root, AmError *error) {
    char before[65];
    json_t *stage;
    size_t s;
    bool is_renamed = false;
    TRY(plan_decided_sha256(before, root, error));
    json_array_foreach(json_object_get(root, "stages"), s, stage) is_renamed |= rename_keys(stage);
    return is_renamed ? keep_prediction(root, before, error) : AM_OK;
}

json_t *plan_structure_to_json(const PlanContext *primary) {
    Arena arena = {0};
    IrUnused unused;
    char hex[65];
    ir_hash_structure(primary->canonical, hex, &arena, &unused);
    json_t *rows = json_array();
    for (int32_t k = 0; k < unused.count; k++)
        json_array_append_new(rows, json_pack("[i, i]", unused.rows[k][0], unused.rows[k][1]));
    json_t *structure = hex[0] ? json_pack("{s:s, s:O}", "sha256", hex, "unused", rows) : NULL;
    json_decref(rows);
    arena_free(&arena);
    return structure;
}

/* Renumbers all stages and removes the derived parts. The prediction stays valid. */
static AmStatus adapt_all(json_t *root, const Adapter *self, AmError *error) {
    char before[65];
    json_t *stage;
    size_t s;
    TRY(plan_decided_sha256(before, root, error));
    json_array_foreach(json_object_get(root, "stages"), s, stage) adapt_stage(stage, self);
    json_object_del(root, "parameters");
    json_object_del(root, "decisions");
    return keep_prediction(root, before, error);
}

AmStatus plan_adapt(json_t *root, const PlanContext *primary, const char *source, AmError *error) {
    if (json_object_get(root, "rewriting")) return AM_OK; /* its numbers are those of another module */
    json_t *module = json_object_get(root, "module"), *structure = json_object_get(module, "structure");
    const char *sha256 = json_string_value(json_object_get(module, "sha256"));
    const char *wanted = json_string_value(json_object_get(structure, "sha256"));
    json_int_t count = json_integer_value(json_object_get(module, "instructions"));
    Arena arena = {0};
    IrUnused before = {0}, after;
    char hex[65];
    if (!sha256 || !structure || strcmp(sha256, primary->sha256) == 0) return AM_OK;
    if (!wanted)
        return am_fail(error, AM_ERROR_INPUT, source, "$.module.structure.sha256: expected a string");
    ir_hash_structure(primary->canonical, hex, &arena, &after);
    AmStatus status = hex[0] ? AM_OK : am_fail_memory(error, count);
    if (status == AM_OK && strcmp(hex, wanted) == 0) {
        status = read_unused(&before, &arena, json_object_get(structure, "unused"), count, source, error);
        Adapter self = {.count_before = count, .count_after = primary->canonical->instruction_count};
        if (status == AM_OK) {
            self.instructions =
                (NumberMap){sorted(&arena, before.rows, before.count, 1),
                            sorted(&arena, after.rows, after.count, 1), before.count, after.count};
            self.parameters =
                (NumberMap){sorted(&arena, before.rows, before.count, 0),
                            sorted(&arena, after.rows, after.count, 0), before.count, after.count};
            status = arena.failed ? am_fail_memory(error, count) : adapt_all(root, &self, error);
        }
        if (status == AM_OK) {
            json_object_set_new(module, "sha256", json_string(primary->sha256));
            json_object_set_new(module, "instructions", json_integer(self.count_after));
        }
    }
    arena_free(&arena);
    return status;
}

/* Returns true if $.module.structure.unused has the parameter. */
static bool is_unused_there(const json_t *root, size_t number) {
    const json_t *unused =
        json_object_get(json_object_get(json_object_get(root, "module"), "structure"), "unused");
    const json_t *row;
    size_t k;
    json_array_foreach(unused, k,
                       row) if (json_integer_value(json_array_get(row, 0)) == (json_int_t)number) return true;
    return false;
}

void plan_append_difference(Text *text, const json_t *root, const PlanContext *primary) {
    const json_t *rows = json_object_get(root, "parameters");
    const IrRoles *roles = primary->roles;
    Arena arena = {0};
    IrUnused unused;
    char hex[65];
    int32_t here = 0, left_out = 0;
    bool is_found = false;
    ir_hash_structure(primary->canonical, hex, &arena, &unused);
    for (size_t k = 0; k < json_array_size(rows) && hex[0] && !is_found; k++) {
        const char *path = json_string_value(json_object_get(json_array_get(rows, k), "path"));
        if (is_unused_there(root, k)) continue;
        for (; left_out < unused.count && unused.rows[left_out][0] == here; left_out++) here++;
        const IrParameter *parameter = here < roles->parameter_count ? &roles->parameters[here++] : NULL;
        /* A module without metadata has no paths. */
        bool has_path = parameter && plan_context_instruction(primary, parameter->instruction)->op_name[0];
        if (!path || (parameter && (!has_path || strcmp(path, parameter->path) == 0))) continue;
        text_append(text, "; parameter %zu is %.200s in the plan, %.200s here", k, path,
                    parameter ? parameter->path : "missing");
        is_found = true;
    }
    arena_free(&arena);
    json_int_t count = json_integer_value(json_object_get(json_object_get(root, "module"), "instructions"));
    if (!is_found)
        text_append(text, "; the plan's module has %lld instructions, this one %d", (long long)count,
                    primary->canonical->instruction_count);
}
