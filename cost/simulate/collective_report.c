/* Reports collectives; those of one kind, one size and the same axes share a line. */
#include "cost/simulate/collective_report.h"

#include <stdlib.h>

enum { MOST_TOLD = 24 };

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

static CollectiveRow tell(const StageCosts *stage, int32_t step, const ProgramCollective *collective) {
    const ProgramEvents *costs = &stage->programs[0];
    const CollectivePartition *partition = &stage->partitions[collective->axes];
    CollectiveRow told = {.kind = collective_priced_kind(costs->steps[step].instruction),
                          .axes = collective->axes,
                          .bytes = costs->tensor_bytes[step],
                          .times = costs->iterations[step] * costs->steps[step].times};
    for (int32_t g = 1; g < (stage->is_uniform ? 1 : partition->group_count); g++)
        if (stage->collectives[step][g] > stage->collectives[step][told.group]) told.group = g;
    told.seconds = costs->iterations[step] * seconds_of_ticks(stage->collectives[step][told.group]);
    return told;
}

static void append_one(Text *text, const StageCosts *stage, const CollectiveRow *told) {
    const Mesh *mesh = &stage->stage->mesh;
    text_append_string(text, "over");
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        if (told->axes >> axis & 1) text_append(text, " %s", mesh->axes[axis].name);
    text_append(text, ", %.0f a step, ", told->times);
    text_append_seconds(text, told->seconds);
    text_append_string(text, " in all:\n");
    collective_describe(text, told->kind, told->bytes, &stage->partitions[told->axes].topologies[told->group],
                        stage->cluster);
}

AmStatus collective_report(Text *text, Arena *arena, const StageCosts *stage, int32_t stage_number,
                           AmError *error) {
    const ProgramEvents *costs = &stage->programs[0];
    ArenaMark mark = arena_mark(arena);
    CollectiveRow *told = ARENA_ARRAY(arena, CollectiveRow, costs->step_count + 1);
    int32_t count = 0, merged = 0;
    if (!told) return am_fail_memory(error, costs->step_count);
    for (int32_t s = 0; s < costs->step_count; s++) {
        const ProgramInstruction *instruction = executed_collective(&costs->steps[s]);
        if (instruction) told[count++] = tell(stage, s, instruction->collective);
    }
    qsort(told, (size_t)count, sizeof *told, by_name);
    for (int32_t k = 0; k < count; k++) {
        if (merged == 0 || by_name(&told[merged - 1], &told[k]) != 0) {
            told[merged++] = told[k];
            continue;
        }
        told[merged - 1].times += told[k].times;
        told[merged - 1].seconds += told[k].seconds;
    }
    qsort(told, (size_t)merged, sizeof *told, by_seconds);
    if (merged > 0) text_append(text, "\ncollectives of stage %d\n", stage_number);
    for (int32_t k = 0; k < merged && k < MOST_TOLD; k++) append_one(text, stage, &told[k]);
    if (merged > MOST_TOLD) text_append(text, "and %d kinds and sizes more\n", merged - MOST_TOLD);
    arena_release(arena, mark);
    return text->failed ? am_fail_memory(error, 0) : AM_OK;
}
