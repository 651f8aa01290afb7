/* Reports collectives; those of one kind, one size and the same axes share a line.
 *
 * Lines are sorted by the seconds of all times in the slowest group; collective_describe.c writes the
 * algorithm.
 */
#include "cost/simulate/collective_report.h"

#include <stdlib.h>

enum { MOST_ROWS = 24 };

typedef struct CollectiveRow {
    ProgramCollectiveKind kind;
    uint32_t axes;
    double bytes, times, seconds; /* bytes each time; seconds of all times, in the slowest group */
    int32_t group;                /* that one */
} CollectiveRow;

static int by_name(const void *a, const void *b) {
    const CollectiveRow *x = a, *y = b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->axes != y->axes) return x->axes < y->axes ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_seconds(const void *a, const void *b) {
    const CollectiveRow *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return by_name(a, b);
}

static CollectiveRow row_of(const StageCosts *stage, int32_t step, const ProgramCollective *collective) {
    const ProgramEvents *costs = &stage->programs[0];
    const CollectivePartition *partition = &stage->partitions[collective->axes];
    CollectiveRow row = {.kind = collective_priced_kind(costs->steps[step].instruction),
                         .axes = collective->axes,
                         .bytes = costs->tensor_bytes[step],
                         .times = costs->iterations[step] * costs->steps[step].times};
    for (int32_t g = 1; g < (stage->is_uniform ? 1 : partition->group_count); g++)
        if (stage->collectives[step][g] > stage->collectives[step][row.group]) row.group = g;
    row.seconds = costs->iterations[step] * seconds_of_ticks(stage->collectives[step][row.group]);
    return row;
}

static void append_one(Text *text, const StageCosts *stage, const CollectiveRow *row) {
    const Mesh *mesh = &stage->stage->mesh;
    if (row->kind >= PROGRAM_DEVICE_COLLECTIVES) {
        text_append(text, "%s of ", program_collective_name(row->kind));
        text_append_bytes_size(text, row->bytes);
        text_append(text, ", %.0f a step, ", row->times);
        text_append_seconds(text, row->seconds);
        text_append_string(text, " in all\n");
        return;
    }
    text_append_string(text, "over");
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (row->axes >> axis & 1) text_append(text, " %s", mesh->axes[axis].name);
    text_append(text, ", %.0f a step, ", row->times);
    text_append_seconds(text, row->seconds);
    text_append_string(text, " in all:\n");
    collective_describe(text, row->kind, row->bytes, &stage->partitions[row->axes].topologies[row->group],
                        stage->cluster);
}

AmStatus collective_report(Text *text, Arena *arena, const StageCosts *stage, int32_t stage_number,
                           AmError *error) {
    const ProgramEvents *costs = &stage->programs[0];
    ArenaMark mark = arena_mark(arena);
    CollectiveRow *rows = ARENA_ARRAY(arena, CollectiveRow, costs->step_count + 1);
    int32_t count = 0, merged = 0;
    if (!rows) return am_fail_memory(error, costs->step_count);
    for (int32_t s = 0; s < costs->step_count; s++) {
        const ProgramInstruction *instruction = executed_collective(&costs->steps[s]);
        if (instruction) rows[count++] = row_of(stage, s, instruction->collective);
    }
    qsort(rows, (size_t)count, sizeof *rows, by_name);
    for (int32_t k = 0; k < count; k++) {
        if (merged == 0 || by_name(&rows[merged - 1], &rows[k]) != 0) {
            rows[merged++] = rows[k];
            continue;
        }
        rows[merged - 1].times += rows[k].times;
        rows[merged - 1].seconds += rows[k].seconds;
    }
    qsort(rows, (size_t)merged, sizeof *rows, by_seconds);
    if (merged > 0) text_append(text, "\ncollectives of stage %d\n", stage_number);
    for (int32_t k = 0; k < merged && k < MOST_ROWS; k++) append_one(text, stage, &rows[k]);
    if (merged > MOST_ROWS) text_append(text, "and %d kinds and sizes more\n", merged - MOST_ROWS);
    arena_release(arena, mark);
    return text->failed ? am_fail_memory(error, 0) : AM_OK;
}
