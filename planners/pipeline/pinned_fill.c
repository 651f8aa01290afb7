/* The places of stages that pins on numbers of devices need, found by a shortest path.
 *
 * A state is a border between devices, and the set of pinned numbers that divide the width of a stage before
 * it. A step appends the stage of a place. With replicate(3) on 8 devices, places of 6 and 2 devices are a
 * shortest path.
 */
#include "planners/pipeline/pinned_fill.h"

enum { MOST_NUMBERS = 4, SETS = 1 << MOST_NUMBERS };

/* Lists the distinct numbers of devices of pins. Returns how many; 0 where they are too many, too. */
static int32_t list_numbers(int32_t numbers[MOST_NUMBERS], const StageModel *model) {
    const RangePlacement *placed = model->costs->units.placed;
    int32_t count = 0;
    for (int32_t u = 0; placed && u < model->costs->units.count; u++) {
        int32_t k = 0;
        if (placed[u].number == 0) continue;
        while (k < count && numbers[k] != placed[u].number) k++;
        if (k == MOST_NUMBERS) return 0;
        if (k == count) numbers[count++] = placed[u].number;
    }
    return count;
}

AmStatus pinned_fill_find(bool **classes, int32_t *stages, Arena *arena, const StageModel *model,
                          AmError *error) {
    const int32_t devices = model->cluster->device_count;
    int32_t numbers[MOST_NUMBERS], number_count = list_numbers(numbers, model);
    *classes = NULL;
    *stages = 0;
    if (number_count == 0) return AM_OK;
    int32_t state_count = (devices + 1) * SETS, end = devices * SETS + (1 << number_count) - 1;
    int32_t *fewest = ARENA_ARRAY(arena, int32_t, state_count); /* stages plus one; 0: no path */
    int32_t *before = ARENA_ARRAY(arena, int32_t, state_count),
            *last = ARENA_ARRAY(arena, int32_t, state_count);
    bool *found = ARENA_ARRAY(arena, bool, PIPELINE_MOST_CLASSES);
    if (arena->failed) return am_fail_memory(error, state_count);
    fewest[0] = 1;
    for (int32_t state = 0; state < devices * SETS; state++)
        for (int32_t k = 0; fewest[state] > 0 && k < model->place_count; k++) {
            const DeviceRange *place = &model->places[k];
            int32_t set = state % SETS;
            if (place->first != state / SETS) continue;
            for (int32_t n = 0; n < number_count; n++) set |= (place->width % numbers[n] == 0) << n;
            int32_t next = (place->first + place->width) * SETS + set;
            if (fewest[next] > 0 && fewest[next] <= fewest[state] + 1) continue;
            fewest[next] = fewest[state] + 1;
            before[next] = state;
            last[next] = place->class;
        }
    if (fewest[end] == 0) return AM_OK;
    *stages = fewest[end] - 1;
    for (int32_t state = end; state > 0; state = before[state]) found[last[state]] = true;
    *classes = found;
    return AM_OK;
}
