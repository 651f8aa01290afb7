/* Tables of parameters, repeated layers in one row; see parameters.h.
 *
 * The numbers in a path are cut out; parameters whose remaining text and other
 * columns agree make one row, which shows each number's range: {0..5}.
 */
#include "cli/parameters.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NUMBERS 8

typedef struct Row {
    const char *key; /* path without numbers, then the other columns */
    const char *path;
    const char *columns;
    int64_t least[MAX_NUMBERS], most[MAX_NUMBERS];
    int32_t count;
} Row;

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Appends the path with its numbers replaced by '#'; notes up to MAX_NUMBERS of them. */
static void cut_numbers(Text *key, const char *path, int64_t *numbers) {
    int32_t count = 0;
    for (const char *c = path; *c;) {
        if (!is_digit(*c) || count == MAX_NUMBERS) {
            text_append_bytes(key, c++, 1);
            continue;
        }
        char *end;
        numbers[count++] = strtoll(c, &end, 10);
        text_append_string(key, "#");
        c = end;
    }
}

/* The path of a row's first parameter with ranges for its numbers. */
static void print_path(Text *text, const Row *row) {
    int32_t count = 0;
    for (const char *c = row->path; *c;) {
        if (!is_digit(*c) || count == MAX_NUMBERS) {
            /* Tabs and line ends would break the table. */
            text_append_bytes(text, (unsigned char)*c < ' ' ? "?" : c, 1);
            c++;
            continue;
        }
        char *end;
        strtoll(c, &end, 10);
        if (row->least[count] == row->most[count]) text_append_bytes(text, c, (size_t)(end - c));
        else text_append(text, "{%lld..%lld}", (long long)row->least[count], (long long)row->most[count]);
        count++;
        c = end;
    }
}

static int compare_keys(const void *left, const void *right) {
    const Row *const *a = left, *const *b = right;
    int order = strcmp((*a)->key, (*b)->key);
    return order ? order : (*a < *b) ? -1 : (*a > *b);
}

/* Joins equal keys into the first of them, in its place; the others get count 0. */
static void join(Row *rows, int32_t count, Arena *arena) {
    Row **sorted = ARENA_ARRAY(arena, Row *, count + 1);
    if (!sorted) return;
    for (int32_t k = 0; k < count; k++) sorted[k] = &rows[k];
    qsort(sorted, (size_t)count, sizeof *sorted, compare_keys);
    Row *first = NULL;
    for (int32_t k = 0; k < count; k++) {
        Row *row = sorted[k];
        if (!first || strcmp(first->key, row->key) != 0) {
            first = row;
            continue;
        }
        for (int32_t n = 0; n < MAX_NUMBERS; n++) {
            if (row->least[n] < first->least[n]) first->least[n] = row->least[n];
            if (row->most[n] > first->most[n]) first->most[n] = row->most[n];
        }
        first->count++;
        row->count = 0;
    }
}

/* The line for the parameters that have no row. */
static void print_left_out(Text *text, int32_t row_count, int32_t left_out, bool has_shardings) {
    if (left_out == 0) return;
    if (!has_shardings) text_append(text, "and %d of the optimizer\n", left_out);
    else if (row_count > 0)
        text_append(text, "and %d that %s whole on every device\n", left_out, left_out == 1 ? "is" : "are");
    else if (left_out == 1) text_append_string(text, "the parameter is whole on every device\n");
    else text_append(text, "all %d parameters are whole on every device\n", left_out);
}

void parameters_print(Text *text, const PlanContext *context, const char *const *sharding) {
    Arena arena = {0};
    const IrRoles *roles = context->roles;
    Row *rows = ARENA_ARRAY(&arena, Row, roles->parameter_count + 1);
    int32_t count = 0, left_out = 0;
    for (int32_t p = 0; rows && p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        if (sharding ? !sharding[p][0] : parameter->role == IR_ROLE_OPTIMIZER) {
            left_out++;
            continue;
        }
        Text columns = {0}, key = {0};
        text_append(&columns, "\t%s\t", ir_role_name(parameter->role));
        ir_shape_append(&columns, &context->canonical->instructions[parameter->instruction].shape);
        if (sharding) text_append(&columns, "\t%s", sharding[p]);
        Row *row = &rows[count++];
        cut_numbers(&key, parameter->path, row->least);
        memcpy(row->most, row->least, sizeof row->most);
        text_append_string(&key, columns.data);
        row->key = arena_copy_string(&arena, key.data);
        row->columns = arena_copy_string(&arena, columns.data);
        row->path = parameter->path;
        row->count = 1;
        text_free(&key);
        text_free(&columns);
    }
    if (!arena.failed && rows) {
        join(rows, count, &arena);
        Text table = {0};
        if (count > 0)
            text_append(&table, "parameter\trole\tshape%s\tnumber\n", sharding ? "\tsharding" : "");
        for (int32_t k = 0; k < count; k++) {
            if (rows[k].count == 0) continue;
            print_path(&table, &rows[k]);
            text_append(&table, "%s\t%d\n", rows[k].columns, rows[k].count);
        }
        if (count > 0) text_append_table(text, table.data);
        text_free(&table);
        print_left_out(text, count, left_out, sharding);
    }
    if (arena.failed) text->failed = true;
    arena_free(&arena);
}
