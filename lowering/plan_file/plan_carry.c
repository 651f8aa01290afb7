/* Carries a plan to another form of its model by the names in the file.
 *
 * Names are looked up in the module at hand with separate layers. The numbers in the stages are then
 * replaced, so that the plan is read as one of this module:
 *
 * - A class of the stack params['up'] becomes those of params['up'][0], params['up'][1], ...
 * - An override of an instruction of a loop becomes one for each layer.
 * - The end of a range becomes the operator after the border.
 */
#include <stdlib.h>
#include <string.h>

#include "base/files/json.h"
#include "base/lower_bound.h"
#include "lowering/plan_file/instruction_names.h"
#include "lowering/plan_file/plan_names.h"

/* A number of the plan and an instruction of this module. */
typedef struct CarriedNumber {
    int64_t number;
    int32_t instruction; /* of a border without an operator after it: the number of instructions */
    int32_t order;
} CarriedNumber;

typedef struct CarriedNumbers {
    CarriedNumber *rows; /* ascending */
    int32_t count;
} CarriedNumbers;

typedef struct Carrier {
    Arena arena;
    const PlanContext *context; /* with separate layers */
    const char *file;
    const json_t *parameters; /* of the plan */
    int64_t end;              /* of the entry of the plan's module */
    InstructionNames names;
    ParameterKeys keys;
    CarriedNumbers instructions, borders;
    AmError *error;
} Carrier;

static AmStatus refuse_plan(const Carrier *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static AmStatus refuse_plan(const Carrier *self, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return am_fail(self->error, AM_ERROR_INPUT, self->file,
                   "the plan is of another form of this model (%s) and does not apply: %s",
                   plan_context_file(self->context), text);
}

static int compare_numbers(const void *left, const void *right) {
    const CarriedNumber *a = left, *b = right;
    if (a->number != b->number) return a->number < b->number ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

/* Finds the instructions of rows [number, name]. */
static AmStatus find_numbers(Carrier *self, CarriedNumbers *numbers, const json_t *rows, const char *key) {
    int32_t count = self->names.count;
    const json_t *row;
    size_t k;
    numbers->rows = ARENA_ARRAY(&self->arena, CarriedNumber, json_array_size(rows) + 1);
    if (!numbers->rows) return am_fail_memory(self->error, count);
    json_array_foreach(rows, k, row) {
        const json_t *number = json_array_get(row, 0), *value = json_array_get(row, 1);
        const char *name = json_string_value(value);
        if (!json_is_integer(number) || !(name || json_is_null(value)))
            return am_fail(self->error, AM_ERROR_INPUT, self->file,
                           "$.names.%s[%zu]: expected [number, name]", key, k);
        int32_t found = name ? instruction_names_find(&self->names, &self->keys, name) : count;
        if (found < 0) return refuse_plan(self, "no operator is \"%.300s\"", name);
        numbers->rows[numbers->count] = (CarriedNumber){json_integer_value(number), found, numbers->count};
        numbers->count++;
    }
    qsort(numbers->rows, (size_t)numbers->count, sizeof *numbers->rows, compare_numbers);
    return AM_OK;
}

/* Returns the first row of a number; NULL: it has none. */
static const CarriedNumber *find_rows(const CarriedNumbers *numbers, int64_t number) {
    const CarriedNumber key = {.number = number};
    int32_t first = lower_bound(&key, numbers->rows, numbers->count, sizeof key, compare_numbers);
    return first < numbers->count && numbers->rows[first].number == number ? &numbers->rows[first] : NULL;
}

static bool is_last_row(const CarriedNumbers *numbers, const CarriedNumber *row) {
    return row + 1 == numbers->rows + numbers->count || row[1].number != row->number;
}

static AmStatus find_instruction(const Carrier *self, const CarriedNumber **rows, const json_t *value) {
    *rows = find_rows(&self->instructions, json_integer_value(value));
    if (*rows && json_is_integer(value)) return AM_OK;
    return refuse_plan(self, "instruction %lld has no name in the plan",
                       (long long)json_integer_value(value));
}

/* Replaces a list of objects about instructions, or of plain instructions. */
static AmStatus carry_list(const Carrier *self, json_t *stage, const char *key) {
    json_t *list = json_object_get(stage, key), *carried = json_array(), *row;
    AmStatus status = AM_OK;
    size_t k;
    if (!list) {
        json_decref(carried);
        return AM_OK;
    }
    json_array_foreach(list, k, row) {
        const CarriedNumber *found;
        const json_t *number = json_is_object(row) ? json_object_get(row, "instruction") : row;
        TRY_OR_FAIL(find_instruction(self, &found, number));
        for (;; found++) {
            json_t *instruction = json_integer(found->instruction);
            json_t *copy = json_is_object(row) ? json_copy(row) : json_incref(instruction);
            if (json_is_object(row)) json_object_set(copy, "instruction", instruction);
            json_decref(instruction);
            json_array_append_new(carried, copy);
            if (json_array_size(carried) > (size_t)self->names.count)
                TRY_OR_FAIL(refuse_plan(self, "%s has more entries than this module has operators", key));
            if (is_last_row(&self->instructions, found)) break;
        }
    }
    json_object_set(stage, key, carried);
fail:
    json_decref(carried);
    return status;
}

/* Entries of one axis, each class once for each kind. */
typedef struct CarriedEntries {
    json_t *list;
    bool *taken; /* [PLAN_ENTRY_KINDS x classes] */
} CarriedEntries;

/* Appends the entry with the class of a dimension of an instruction. */
static AmStatus add_class(const Carrier *self, CarriedEntries *entries, json_t *entry, int32_t instruction,
                          int64_t dimension) {
    const Classes *classes = self->context->classes;
    const char *kind = json_string_value(json_object_get(entry, "kind"));
    int32_t k = 0, rank = plan_context_instruction(self->context, instruction)->shape.rank;
    while (kind && k < PLAN_ENTRY_KINDS - 1 && strcmp(kind, plan_entry_kind_name((PlanEntryKind)k)) != 0) k++;
    int32_t found = dimension >= 0 && dimension < rank
                        ? classes_of(classes, self->context->rules, instruction, (int32_t)dimension)
                        : -1;
    if (found < 0)
        return refuse_plan(self, "dimension %lld of %s cannot be split", (long long)dimension,
                           plan_context_instruction(self->context, instruction)->name);
    bool *taken = &entries->taken[k * classes->count + found];
    if (*taken) return AM_OK;
    *taken = true;
    const DimensionClass *class = &classes->classes[found];
    json_t *copy = json_copy(entry);
    json_object_set_new(copy, "class",
                        json_pack("[s, i, i]", class->named_by_parameter ? "parameter" : "instruction",
                                  class->number, class->dimension));
    json_array_append_new(entries->list, copy);
    return AM_OK;
}

static AmStatus carry_parameter(Carrier *self, CarriedEntries *entries, json_t *entry, json_int_t number,
                                json_int_t dimension) {
    const IrRoles *roles = self->context->roles;
    const json_t *row = number < 0 ? NULL : json_array_get(self->parameters, (size_t)number);
    const char *path = json_string_value(json_object_get(row, "path"));
    int32_t rank = (int32_t)json_array_size(json_object_get(row, "sharding")), *layers;
    if (!path) return refuse_plan(self, "parameter %lld has no path in $.parameters", (long long)number);
    int32_t single = parameter_keys_find(&self->keys, path);
    if (single >= 0) {
        int32_t instruction = roles->parameters[single].instruction;
        if (plan_context_instruction(self->context, instruction)->shape.rank == rank)
            return add_class(self, entries, entry, instruction, dimension);
    }
    int32_t count = parameter_keys_layers(&self->keys, &self->arena, &layers, path);
    if (count == 0) return refuse_plan(self, "no parameter is %.300s", path);
    if (dimension == 0) return refuse_plan(self, "it divides the layers of %.300s among devices", path);
    for (int32_t k = 0; k < count; k++)
        TRY(add_class(self, entries, entry, roles->parameters[layers[k]].instruction, dimension - 1));
    return AM_OK;
}

static AmStatus carry_entry(Carrier *self, CarriedEntries *entries, json_t *entry) {
    const json_t *class = json_object_get(entry, "class");
    const char *kind = json_string_value(json_array_get(class, 0));
    json_int_t number = json_integer_value(json_array_get(class, 1));
    json_int_t dimension = json_integer_value(json_array_get(class, 2));
    if (!kind) {
        json_array_append(entries->list, entry); /* any class */
        return AM_OK;
    }
    if (!json_is_integer(json_array_get(class, 1)) || !json_is_integer(json_array_get(class, 2)))
        return am_fail(self->error, AM_ERROR_INPUT, self->file,
                       "$.stages: expected a class [kind, number, dimension]");
    if (strcmp(kind, "parameter") == 0) return carry_parameter(self, entries, entry, number, dimension);
    const CarriedNumber *row;
    TRY(find_instruction(self, &row, json_array_get(class, 1)));
    for (;; row++) {
        TRY(add_class(self, entries, entry, row->instruction, dimension));
        if (is_last_row(&self->instructions, row)) return AM_OK;
    }
}

static AmStatus carry_priorities(Carrier *self, json_t *stage) {
    const char *axis;
    void *next;
    json_t *list, *entry, *lists = json_object_get(stage, "axis_priorities");
    size_t k;
    json_object_foreach_safe(lists, next, axis, list) {
        AmStatus status = AM_OK;
        CarriedEntries entries = {
            json_array(),
            ARENA_ARRAY(&self->arena, bool, PLAN_ENTRY_KINDS *(self->context->classes->count + 1))};
        if (!entries.taken) status = am_fail_memory(self->error, self->context->classes->count);
        json_array_foreach(list, k, entry) if (status == AM_OK) status = carry_entry(self, &entries, entry);
        if (status == AM_OK) json_object_set(lists, axis, entries.list);
        json_decref(entries.list);
        TRY(status);
    }
    return AM_OK;
}

static AmStatus carry_border(const Carrier *self, json_t *range, size_t which) {
    json_int_t number = json_integer_value(json_array_get(range, which)), carried = 0;
    const CarriedNumber *row = find_rows(&self->borders, number);
    if (!json_is_integer(json_array_get(range, which))) return AM_OK; /* refused where it is read */
    if (number >= self->end) carried = self->names.count;
    else if (row) carried = row->instruction;
    else if (number > 0)
        return refuse_plan(self, "the border at instruction %lld has no name", (long long)number);
    json_array_set_new(range, which, json_integer(carried));
    return AM_OK;
}

static AmStatus carry_ranges(const Carrier *self, json_t *ranges) {
    for (size_t k = 0; k < json_array_size(ranges);) {
        json_t *range = json_array_get(ranges, k);
        if (!json_is_array(range) || json_array_size(range) != 2) return AM_OK; /* refused where it is read */
        json_int_t first = json_integer_value(json_array_get(range, 0));
        json_int_t behind = json_integer_value(json_array_get(range, 1));
        TRY(carry_border(self, range, 0));
        TRY(carry_border(self, range, 1));
        json_int_t carried_first = json_integer_value(json_array_get(range, 0));
        json_int_t carried_behind = json_integer_value(json_array_get(range, 1));
        if (carried_first > carried_behind && first <= behind)
            return refuse_plan(self, "the operators at its borders %lld and %lld have the other order here",
                               (long long)first, (long long)behind);
        if (carried_first == carried_behind) json_array_remove(ranges, k);
        else k++;
    }
    return AM_OK;
}

/* Returns the last border of the ranges, which is the end of the entry. */
static int64_t end_of_entry(const json_t *stages) {
    int64_t end = 0;
    const json_t *stage, *range;
    size_t s, r;
    json_array_foreach(stages, s, stage) {
        json_array_foreach(json_object_get(stage, "ranges"), r, range) {
            int64_t border = json_integer_value(json_array_get(range, 1));
            if (border > end) end = border;
        }
    }
    return end;
}

/* Returns whether all names are those of the numbers in this module. */
static bool has_same_numbers(const Carrier *self) {
    bool is_same = true;
    for (int32_t k = 0; k < self->instructions.count; k++)
        is_same &= self->instructions.rows[k].number == self->instructions.rows[k].instruction;
    for (int32_t k = 0; k < self->borders.count; k++) {
        int64_t number = self->borders.rows[k].number;
        int32_t found = number < 0 || number >= self->names.count
                            ? -1
                            : instruction_names_at_or_after(&self->names, (int32_t)number);
        is_same &= self->borders.rows[k].instruction == (found < 0 ? self->names.count : found);
    }
    return is_same;
}

/* Replaces the numbers of instructions in the plan's stages by those of this module, and its hash. A plan of
 * this very module does not change, unless another version of automap numbered the split layers. */
static AmStatus carry(Carrier *self, json_t *root, const json_t *names, bool is_same_module) {
    json_t *stages = json_object_get(root, "stages"), *module = json_object_get(root, "module"), *stage;
    size_t s;
    self->parameters = json_object_get(root, "parameters");
    self->end = end_of_entry(stages);
    TRY(instruction_names_make(&self->names, &self->arena, self->context, self->error));
    TRY(parameter_keys_make(&self->keys, &self->arena, self->context->roles, self->error));
    TRY(find_numbers(self, &self->instructions, json_object_get(names, "instructions"), "instructions"));
    TRY(find_numbers(self, &self->borders, json_object_get(names, "borders"), "borders"));
    if (is_same_module && has_same_numbers(self)) return AM_OK;
    json_array_foreach(stages, s, stage) {
        TRY(carry_priorities(self, stage));
        TRY(carry_list(self, stage, "overrides"));
        TRY(carry_list(self, stage, "reshards"));
        TRY(carry_list(self, stage, "saved"));
        TRY(carry_ranges(self, json_object_get(stage, "ranges")));
        TRY(carry_ranges(self, json_object_get(stage, "recompute")));
    }
    json_object_del(root, "parameters");
    json_object_del(root, "decisions");
    json_object_set_new(module, "sha256", json_string(self->context->sha256));
    json_object_set_new(module, "instructions", json_integer(plan_context_count(self->context)));
    return AM_OK;
}

/* Makes the context with separate layers and the plan's other rewritings, and notes it in the plan. */
static AmStatus rewrite_context(Carrier *self, json_t *root, PlanContext *source, PlanRewrites rewriting) {
    json_t *object = json_object_get(root, "rewriting");
    PlanContext *made;
    AmError own = {0};
    rewriting.undoes_recomputation = json_object_get(object, "recomputation") != NULL;
    rewriting.fuses_attention = json_object_get(object, "attention") != NULL;
    AmStatus status = plan_context_rewrite(&made, source, rewriting, &own);
    if (status == AM_ERROR_INFEASIBLE) return refuse_plan(self, "%.400s", own.text);
    TRY(am_pass_error(status, &own, self->error));
    self->context = made;
    if (!object && rewriting.splits_layers) json_object_set_new(root, "rewriting", object = json_object());
    if (rewriting.splits_layers) json_object_set_new(object, "layers", json_string("split"));
    else json_object_del(object, "layers");
    if (object && json_object_size(object) == 0) json_object_del(root, "rewriting");
    return AM_OK;
}

AmStatus plan_names_carry(json_t *root, PlanContext *source, const char *file, AmError *error) {
    const json_t *names = json_object_get(root, "names"), *module = json_object_get(root, "module");
    const char *sha256 = json_string_value(json_object_get(module, "sha256"));
    const char *parameters = json_string_value(json_object_get(names, "parameters"));
    Carrier self = {.context = source, .file = file, .error = error};
    PlanRewrites rewriting = {.splits_layers = true};
    PlanContext *layers;
    AmError own = {0};
    char hex[65];
    if (names && !parameters)
        return am_fail(error, AM_ERROR_INPUT, file,
                       "$.names: expected an object with parameters, instructions and borders");
    const char *form = json_string_value(json_object_get(json_object_get(root, "rewriting"), "layers"));
    bool is_same_module = sha256 && strcmp(sha256, source->sha256) == 0;
    if (!parameters || !sha256 || (is_same_module && !(form && strcmp(form, "split") == 0))) return AM_OK;
    AmStatus status = plan_context_rewrite(&layers, source, rewriting, &own);
    rewriting.splits_layers = status == AM_OK;
    if (status == AM_ERROR_INFEASIBLE) layers = source;
    else TRY(am_pass_error(status, &own, error));
    TRY_OR_FAIL(plan_names_hash_parameters(hex, &self.arena, layers, error));
    if (strcmp(hex, parameters) != 0) goto fail; /* another model */
    TRY_OR_FAIL(rewrite_context(&self, root, source, rewriting));
    status = carry(&self, root, names, is_same_module);
fail:
    arena_free(&self.arena);
    return status;
}
