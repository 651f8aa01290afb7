/* Finds the groups of a work: items of one group are chained, their parts sorted into a class by a signature,
 * and groups of equal signatures counted in one class.
 */
#include "planners/bounds/work_groups.h"

static bool takes_equal_seconds(const BoundGroups *self, const DifferentWork *work, const BoundItem *item) {
    if (work->work.is_run) return true;
    for (int32_t t = 0; t < self->work.type_count && item->type_seconds; t++)
        if (work->type_seconds[t] != item->type_seconds[t]) return false;
    return work->seconds == item->seconds && work->launches == item->launches;
}

static int32_t find_work(BoundGroups *self, const BoundItem *item) {
    bool is_after = item->order == BOUND_AFTER;
    for (int32_t k = 0; k < self->work_count; k++)
        if (self->works[k].is_after == is_after && self->works[k].sum_bytes == item->sum_bytes &&
            operator_work_equals(&self->works[k].work, &item->work) &&
            takes_equal_seconds(self, &self->works[k], item))
            return k;
    self->works[self->work_count] = (DifferentWork){item->work,     item->seconds,   item->type_seconds,
                                                    item->launches, item->sum_bytes, is_after};
    return self->work_count++;
}

/* Puts a group's items into a new class, or into that of a group like it. Returns the class. */
static int32_t find_class(BoundGroups *self, const int32_t *items, int32_t count) {
    GroupClass class = {.count = 1, .first_part = self->part_count, .part_count = count};
    for (int32_t k = 0; k < count; k++) {
        const BoundItem *item = &self->work.items[items[k]];
        GroupPart part = {find_work(self, item), item->is_backward, item->order};
        ARENA_RESERVE(self->arena, self->parts, self->part_count, self->part_capacity);
        if (self->arena->failed) return 0;
        self->parts[self->part_count++] = part;
        class.signature +=
            bound_scramble(((uint64_t)part.work * 2 + part.is_backward) * BOUND_ORDERS + part.order + 1);
    }
    for (int32_t c = 0; c < self->class_count; c++)
        if (self->classes[c].signature == class.signature && self->classes[c].part_count == count) {
            self->classes[c].count++;
            self->part_count = class.first_part;
            return c;
        }
    self->classes[self->class_count] = class;
    return self->class_count++;
}

static void place_group(BoundGroups *self, const int32_t *items, int32_t count) {
    Placed placed = {.class = find_class(self, items, count), .borders = {INT32_MAX, -1}};
    bool is_group = self->work.items[items[0]].group >= 0;
    for (int32_t k = 0; k < count; k++) {
        const BoundItem *item = &self->work.items[items[k]];
        if (item->first < 0) continue;
        if (item->kept_bytes[0] + item->kept_bytes[1] > 0) {
            placed.kept = (BorderInterval){item->first, item->end};
            for (int32_t of = 0; of < 2; of++) placed.kept_bytes[of] = item->kept_bytes[of];
        }
        if (item->first < placed.borders.first) placed.borders.first = item->first;
        if (item->end > placed.borders.end) placed.borders.end = item->end;
        placed.is_placed |= !(is_group && item->is_backward);
    }
    if (placed.borders.end < 0) placed.borders.first = -1;
    self->placed[self->placed_count++] = placed;
}

AmStatus bound_groups_find(BoundGroups *self, AmError *error) {
    const BoundWork *work = &self->work;
    int32_t groups = work->group_count, items = work->item_count;
    int32_t *last = ARENA_ARRAY(self->arena, int32_t, groups + 1); /* items of a group are chained */
    int32_t *before = ARENA_ARRAY(self->arena, int32_t, items + 1);
    int32_t *members = ARENA_ARRAY(self->arena, int32_t, items + 1);
    self->places = work->spine_count[0] + 1;
    self->works = ARENA_ARRAY(self->arena, DifferentWork, items + 1);
    self->classes = ARENA_ARRAY(self->arena, GroupClass, items + 2);
    self->placed = ARENA_ARRAY(self->arena, Placed, items + 1);
    if (self->arena->failed) return am_fail_memory(error, items);
    for (int32_t g = 0; g < groups; g++) last[g] = -1;
    for (int32_t k = 0; k < items; k++) {
        const BoundItem *item = &work->items[k];
        if (item->group < 0) {
            place_group(self, &k, 1);
        } else {
            before[k] = last[item->group];
            last[item->group] = k;
        }
    }
    for (int32_t g = 0; g < groups; g++) {
        int32_t count = 0;
        for (int32_t k = last[g]; k >= 0; k = before[k]) members[count++] = k;
        if (count > 0) place_group(self, members, count);
    }
    return self->arena->failed ? am_fail_memory(error, items) : AM_OK;
}
