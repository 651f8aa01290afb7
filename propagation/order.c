/* Kahn's algorithm over groups of instructions, with a binary heap on the
 * place of each group's first member: deterministic, and as near to the given
 * order as the groups allow. A group's members keep their own relative order,
 * which respects operands inside the group since it is the program's order. */
#include "propagation/order.h"

typedef struct Heap {
    int32_t *items; /* group leaders; a leader is its group's smallest member */
    int32_t count;
} Heap;

static void heap_push(Heap *heap, int32_t item) {
    int32_t at = heap->count++;
    for (; at > 0 && heap->items[(at - 1) / 2] > item; at = (at - 1) / 2)
        heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = item;
}

static int32_t heap_pop(Heap *heap) {
    int32_t top = heap->items[0], last = heap->items[--heap->count], at = 0;
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && heap->items[child + 1] < heap->items[child]) child++;
        if (heap->items[child] >= last) break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    return top;
}

/* No groups: the program's own order will do. */
static bool is_ungrouped(const int32_t *leader, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (leader[i] != i) return false;
    return true;
}

AmStatus program_order(const int32_t **order, const Program *program, const int32_t *leader, AmError *error) {
    Arena *arena = program->arena;
    int32_t count = program->instruction_count, edges = 0;
    int32_t *waiting = ARENA_ARRAY(arena, int32_t, count + 1);   /* [leader]: operands still to come */
    int32_t *first_use = ARENA_ARRAY(arena, int32_t, count + 3); /* [leader]: range in uses */
    int32_t *next_member = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *last_member = ARENA_ARRAY(arena, int32_t, count + 1);
    int32_t *result = ARENA_ARRAY(arena, int32_t, count + 1);
    Heap heap = {.items = ARENA_ARRAY(arena, int32_t, count + 1)};
    if (arena->failed) return am_fail_memory(error, count);
    if (is_ungrouped(leader, count)) {
        for (int32_t i = 0; i < count; i++) result[i] = i;
        *order = result;
        return AM_OK;
    }
    for (int32_t i = 0; i < count; i++) {
        next_member[i] = -1;
        if (leader[i] != i) next_member[last_member[leader[i]]] = i;
        last_member[leader[i]] = i;
        const ProgramInstruction *instruction = &program->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t producer = program->values[instruction->operands[k]].instruction;
            if (producer < 0 || leader[producer] == leader[i]) continue;
            first_use[leader[producer] + 2]++;
            waiting[leader[i]]++;
            edges++;
        }
    }
    int32_t *uses = ARENA_ARRAY(arena, int32_t, edges + 1);
    if (!uses) return am_fail_memory(error, edges);
    for (int32_t i = 0; i < count; i++) first_use[i + 2] += first_use[i + 1];
    for (int32_t i = 0; i < count; i++) {
        const ProgramInstruction *instruction = &program->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t producer = program->values[instruction->operands[k]].instruction;
            if (producer < 0 || leader[producer] == leader[i]) continue;
            uses[first_use[leader[producer] + 1]++] = leader[i];
        }
    }
    for (int32_t i = 0; i < count; i++)
        if (leader[i] == i && waiting[i] == 0) heap_push(&heap, i);
    int32_t placed = 0;
    while (heap.count > 0) {
        int32_t group = heap_pop(&heap);
        for (int32_t member = group; member >= 0; member = next_member[member]) result[placed++] = member;
        for (int32_t u = first_use[group]; u < first_use[group + 1]; u++)
            if (--waiting[uses[u]] == 0) heap_push(&heap, uses[u]);
    }
    if (placed != count)
        return am_fail(error, AM_ERROR_INTERNAL, program->module->source,
                       "ordering the program: groups of instructions depend on one another");
    *order = result;
    return AM_OK;
}
