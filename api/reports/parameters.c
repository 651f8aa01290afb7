/* Tables of parameters with repeated layers and states of the optimizer in one row.
 *
 * The numbers in a path are cut out; parameters whose remaining text and other
 * columns agree make one row, which shows each number's range: {0..5}.
 *
 * The path of a state of the optimizer ends as the path of its weight does:
 * opt.mu['dense']['kernel'] as params['dense']['kernel']. States with the same end
 * and columns whose beginnings differ in one word share a row: opt.{mu,nu}['dense']...
 */
#include "api/reports/parameters.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NUMBERS 8

typedef struct ParameterRow {
    const char *key; /* path without numbers, then the other columns */
    const char *path;
    const char *columns;
    int64_t least[MAX_NUMBERS], most[MAX_NUMBERS];
    int32_t count;
    bool is_optimizer;
    size_t head;             /* bytes of the path before the end that a weight has, too */
    const char *words;       /* "mu,nu" of folded rows, or NULL */
    size_t word, word_bytes; /* place of the first of them in the path */
} ParameterRow;

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

/* Prints the path of a row's first parameter, with ranges for its numbers. */
static void print_path(Text *text, const ParameterRow *row) {
    int32_t count = 0;
    for (const char *c = row->path; *c;) {
        if (row->words && c == row->path + row->word) {
            text_append(text, "{%s}", row->words);
            c += row->word_bytes;
            continue;
        }
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
    const ParameterRow *const *a = left, *const *b = right;
    int order = strcmp((*a)->key, (*b)->key);
    return order ? order : (*a < *b) ? -1 : (*a > *b);
}

/* Joins equal keys into the first of them, in its place; the others get count 0. */
static void join(ParameterRow *rows, int32_t count, Arena *arena) {
    ParameterRow **sorted = ARENA_ARRAY(arena, ParameterRow *, count + 1);
    if (!sorted) return;
    for (int32_t k = 0; k < count; k++) sorted[k] = &rows[k];
    qsort(sorted, (size_t)count, sizeof *sorted, compare_keys);
    ParameterRow *first = NULL;
    for (int32_t k = 0; k < count; k++) {
        ParameterRow *row = sorted[k];
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

/* ---- states of the optimizer ---- */

static bool is_word(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Returns the bytes of the longest common end of both paths that begins between words. */
static size_t common_end(const char *a, const char *b) {
    size_t a_length = strlen(a), b_length = strlen(b), common = 0;
    while (common < a_length && common < b_length && a[a_length - 1 - common] == b[b_length - 1 - common])
        common++;
    while (common > 0 && common < a_length && is_word(a[a_length - common]) &&
           is_word(a[a_length - common - 1]))
        common--;
    return common;
}

static void find_head(ParameterRow *row, const IrRoles *roles) {
    size_t most = 0;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        if (roles->parameters[p].role != IR_ROLE_WEIGHT) continue;
        size_t end = common_end(row->path, roles->parameters[p].path);
        if (end > most) most = end;
    }
    row->head = strlen(row->path) - most;
}

/* Returns true for rows whose heads differ in one word without digits; sets its place and bytes. */
static bool differ_in_word(const ParameterRow *a, const ParameterRow *b, size_t *at, size_t *a_bytes,
                           size_t *b_bytes) {
    size_t start = 0;
    while (start < a->head && start < b->head && a->path[start] == b->path[start]) start++;
    while (start > 0 && is_word(a->path[start - 1])) start--;
    size_t a_end = start, b_end = start;
    while (a_end < a->head && is_word(a->path[a_end]) && !is_digit(a->path[a_end])) a_end++;
    while (b_end < b->head && is_word(b->path[b_end]) && !is_digit(b->path[b_end])) b_end++;
    *at = start;
    *a_bytes = a_end - start;
    *b_bytes = b_end - start;
    return a_end > start && b_end > start && strcmp(a->path + a_end, b->path + b_end) == 0;
}

/* Joins `other` into `row` where both are states of the same weights. */
static bool fold_row(ParameterRow *row, ParameterRow *other, Arena *arena) {
    size_t at, bytes, other_bytes;
    if (strcmp(row->columns, other->columns) != 0 ||
        memcmp(row->least, other->least, sizeof row->least) != 0 ||
        memcmp(row->most, other->most, sizeof row->most) != 0)
        return false;
    if (!differ_in_word(row, other, &at, &bytes, &other_bytes)) return false;
    if (row->words && at != row->word) return false;
    const char *before = row->words ? row->words : arena_format(arena, "%.*s", (int)bytes, row->path + at);
    row->words = arena_format(arena, "%s,%.*s", before ? before : "", (int)other_bytes, other->path + at);
    row->word = at;
    row->word_bytes = bytes;
    row->count += other->count;
    other->count = 0;
    return true;
}

static void fold_states(ParameterRow *rows, int32_t count, const IrRoles *roles, Arena *arena) {
    static const int64_t MOST_COMPARISONS = 1 << 22; /* more rows than that are no repeated layers */
    int32_t states = 0;
    for (int32_t k = 0; k < count; k++) states += rows[k].count > 0 && rows[k].is_optimizer;
    if ((int64_t)states * (roles->parameter_count + states) > MOST_COMPARISONS) return;
    for (int32_t k = 0; k < count; k++)
        if (rows[k].count > 0 && rows[k].is_optimizer) find_head(&rows[k], roles);
    for (int32_t k = 0; k < count && !arena->failed; k++)
        for (int32_t j = k + 1; j < count && rows[k].count > 0 && rows[k].is_optimizer && rows[k].head > 0;
             j++)
            if (rows[j].count > 0 && rows[j].is_optimizer && rows[j].head > 0)
                fold_row(&rows[k], &rows[j], arena);
}

void parameters_print(Text *text, const PlanContext *context, const char *const *sharding, bool is_verbose) {
    Arena arena = {0};
    const IrRoles *roles = context->roles;
    ParameterRow *rows = ARENA_ARRAY(&arena, ParameterRow, roles->parameter_count + 1);
    int32_t count = 0, left_out = 0;
    for (int32_t p = 0; rows && p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        if (sharding ? !sharding[p][0] : parameter->role == IR_ROLE_OPTIMIZER) {
            left_out++;
            continue;
        }
        Text columns = {0}, key = {0};
        text_append(&columns, "\t%s\t", ir_role_name(parameter->role));
        ir_shape_append(&columns, &plan_context_instruction(context, parameter->instruction)->shape);
        if (sharding) text_append(&columns, "\t%s", sharding[p]);
        ParameterRow *row = &rows[count++];
        cut_numbers(&key, parameter->path, row->least);
        memcpy(row->most, row->least, sizeof row->most);
        text_append_string(&key, columns.data);
        row->key = arena_copy_string(&arena, key.data);
        row->columns = arena_copy_string(&arena, columns.data);
        row->path = parameter->path;
        row->count = 1;
        row->is_optimizer = parameter->role == IR_ROLE_OPTIMIZER;
        if (columns.failed || key.failed) arena.failed = true;
        text_free(&key);
        text_free(&columns);
    }
    if (!arena.failed && rows) {
        join(rows, count, &arena);
        if (!is_verbose) fold_states(rows, count, roles, &arena);
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
        if (left_out != 0) {
            if (!sharding) text_append(text, "and %d of the optimizer\n", left_out);
            else if (count > 0)
                text_append(text, "and %d replicated parameter%s\n", left_out, left_out == 1 ? "" : "s");
            else if (left_out == 1) text_append_string(text, "the parameter is replicated\n");
            else text_append(text, "all %d parameters are replicated\n", left_out);
        }
    }
    if (arena.failed) text->failed = true;
    arena_free(&arena);
}
