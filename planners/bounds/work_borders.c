/* The borders between stages that each item of work lies between: bound_work_find_borders().
 *
 * The forward product of a group has places on the forward spine. The products of the group in the backward
 * pass are on the same stage, so the backward spine, whose order is reversed, gives all others an interval of
 * stages.
 */
#include "planners/bounds/work_items.h"

/* Finds the least and the greatest place whose stage each product of the backward spine can have: [2 t], [2 t
 * + 1]; t = count is after the last one. */
static void find_backward_places(const BoundWork *work, const int32_t *of_groups, int32_t *places) {
    int32_t count = work->spine_count[1], last = work->spine_count[0];
    for (int32_t t = 0; t <= count; t++) {
        places[2 * t] = 0;
        places[2 * t + 1] = last;
    }
    for (int32_t k = 0; k < work->item_count; k++) {
        const BoundItem *item = &work->items[k];
        bool is_there = item->is_backward && item->order == BOUND_SPINE;
        if (!is_there || item->group < 0 || of_groups[2 * item->group] < 0) continue;
        places[2 * item->after] = of_groups[2 * item->group];
        places[2 * item->after + 1] = of_groups[2 * item->group + 1];
    }
    for (int32_t t = 1; t <= count; t++)
        if (places[2 * t - 1] < places[2 * t + 1]) places[2 * t + 1] = places[2 * t - 1];
    for (int32_t t = count - 1; t >= 0; t--)
        if (places[2 * t + 2] > places[2 * t]) places[2 * t] = places[2 * t + 2];
}

/* Sets the bytes that cross each border if it divides stages: those between the product before it and the
 * next one of a spine, if that product is surely on the stage before the border, and the other one behind. */
static void find_crossing(const BoundWork *work, const int32_t *of_backward) {
    for (int32_t b = 0; b < work->spine_count[0]; b++) {
        work->crossing[0][b] = b + 1 < work->spine_count[0] ? work->sent[0][b] : 0;
        work->crossing[1][b] = 0;
    }
    for (int32_t t = 0; t + 1 < work->spine_count[1]; t++) {
        const int32_t *from = &of_backward[2 * t], *to = &of_backward[2 * t + 2];
        if (to[0] == to[1] && to[0] < from[0]) work->crossing[1][to[0]] = work->sent[1][t];
    }
}

AmStatus bound_work_find_borders(BoundWork *work, AmError *error) {
    Arena arena = {0};
    int32_t *of_groups = ARENA_ARRAY(&arena, int32_t, 2 * work->group_count + 1);
    int32_t *of_backward = ARENA_ARRAY(&arena, int32_t, 2 * work->spine_count[1] + 2);
    if (arena.failed) {
        arena_free(&arena);
        return am_fail_memory(error, work->group_count);
    }
    /* places of the forward spine between which the forward product of group g is; -1: not known */
    for (int32_t g = 0; g < 2 * work->group_count; g++) of_groups[g] = -1;
    for (int32_t k = 0; k < work->item_count; k++) {
        const BoundItem *item = &work->items[k];
        if (item->group < 0 || item->is_backward || item->first < 0) continue;
        of_groups[2 * item->group] = item->first;
        of_groups[2 * item->group + 1] = item->end;
    }
    find_backward_places(work, of_groups, of_backward);
    if (work->crossing[0]) find_crossing(work, of_backward);
    for (int32_t k = 0; k < work->item_count; k++) {
        BoundItem *item = &work->items[k];
        /* Other items may be on any stage before that of their operands. */
        bool is_located = item->group >= 0 && of_groups[2 * item->group] >= 0;
        bool is_sum = item->is_backward && item->first >= 0; /* without users it has no first place */
        if (item->order == BOUND_BEHIND && !is_located && !is_sum) item->order = BOUND_ANYWHERE;
        if (item->order == BOUND_ANYWHERE || item->order == BOUND_AFTER) continue;
        int32_t first = is_sum ? item->first : item->is_backward ? of_backward[2 * item->until] : item->after;
        int32_t end = item->is_backward ? of_backward[2 * item->after + 1] : item->until;
        if (item->first < 0 || first < item->first) item->first = first;
        if (end > item->end) item->end = end;
        if (item->end < item->first) item->end = item->first;
    }
    arena_free(&arena);
    return AM_OK;
}
