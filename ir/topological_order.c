/* Topological order: Kahn's algorithm, O(edges + n log n).
 *
 * Edges run from operands and control predecessors to their users. The ready
 * instructions wait in a binary heap keyed by position, so that a list which
 * already has operands first comes out as it went in.
 */
#include "ir/topological_order.h"

typedef struct Heap {
    int32_t *items;
    int32_t count;
    const int64_t *positions; /* NULL: the item itself */
} Heap;

static int64_t position_of(const Heap *heap, int32_t item) {
    return heap->positions ? heap->positions[item] : item;
}

static void heap_push(Heap *heap, int32_t item) {
    int32_t at = heap->count++;
    int64_t position = position_of(heap, item);
    while (at > 0) {
        int32_t parent = (at - 1) / 2;
        if (position_of(heap, heap->items[parent]) <= position) break;
        heap->items[at] = heap->items[parent];
        at = parent;
    }
    heap->items[at] = item;
}

static int32_t heap_pop(Heap *heap) {
    int32_t top = heap->items[0];
    int32_t last = heap->items[--heap->count];
    int64_t position = position_of(heap, last);
    int32_t at = 0;
    for (int32_t child = 1; child < heap->count; child = 2 * at + 1) {
        if (child + 1 < heap->count &&
            position_of(heap, heap->items[child + 1]) < position_of(heap, heap->items[child]))
            child++;
        if (position_of(heap, heap->items[child]) >= position) break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    return top;
}

int32_t ir_topological_order(int32_t *order, const IrInstruction *instructions, int32_t count, int32_t base,
                             const int64_t *positions, Arena *scratch) {
    /* Users of instruction i stand in users[first_user[i] .. first_user[i + 1]). */
    int32_t *first_user = ARENA_ARRAY(scratch, int32_t, (int64_t)count + 2);
    int32_t *waiting = ARENA_ARRAY(scratch, int32_t, count);
    Heap heap = {ARENA_ARRAY(scratch, int32_t, count), 0, positions};
    if (!first_user || !waiting || !heap.items) return -1;
    int64_t edges = 0;
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *user = &instructions[i];
        waiting[i] = user->operand_count + user->control_count;
        edges += waiting[i];
        for (int32_t k = 0; k < user->operand_count; k++) first_user[user->operands[k] - base + 2]++;
        for (int32_t k = 0; k < user->control_count; k++) first_user[user->control[k] - base + 2]++;
    }
    int32_t *users = ARENA_ARRAY(scratch, int32_t, edges);
    if (!users && edges > 0) return -1;
    for (int32_t i = 0; i < count; i++) first_user[i + 2] += first_user[i + 1];
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *user = &instructions[i];
        for (int32_t k = 0; k < user->operand_count; k++)
            users[first_user[user->operands[k] - base + 1]++] = i;
        for (int32_t k = 0; k < user->control_count; k++)
            users[first_user[user->control[k] - base + 1]++] = i;
        if (waiting[i] == 0) heap_push(&heap, i);
    }
    int32_t ordered = 0;
    while (heap.count > 0) {
        int32_t next = heap_pop(&heap);
        order[ordered++] = next;
        for (int32_t k = first_user[next]; k < first_user[next + 1]; k++)
            if (--waiting[users[k]] == 0) heap_push(&heap, users[k]);
    }
    return ordered;
}
