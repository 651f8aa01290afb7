/* Overlap: the collectives for which each step of a program waits, and the capture regions of steps that a
 * device may record. Overlaps are found by addresses. */
#include "executor/program/overlap.h"

#include <stdlib.h>

#include "executor/program/control_flow.h"

/* The most iterations that are recorded separately because their addresses differ. */
enum { MOST_RECORDS = 64 };

static bool ranges_overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes) {
    uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    return first < second + (uintptr_t)b_bytes && second < first + (uintptr_t)a_bytes;
}

static bool any_overlaps(const void *address, const IrShape *shape, void *const *others,
                         const IrShape *const *other_shapes, int32_t count) {
    for (int32_t k = 0; k < count; k++)
        if (ranges_overlap(address, ir_shape_bytes(shape), others[k], ir_shape_bytes(other_shapes[k])))
            return true;
    return false;
}

/* Returns whether a step and a call under way access the same memory, and one of them writes it. */
static bool conflict(const ExecutableStep *step, const CommCall *call) {
    const KernelCall *kernel = step->kernel;
    for (int32_t k = 0; k < call->result_count; k++)
        if (any_overlaps(call->results[k], call->result_shapes[k], kernel->operands, kernel->operand_shapes,
                         kernel->operand_count) ||
            any_overlaps(call->results[k], call->result_shapes[k], kernel->results, kernel->result_shapes,
                         kernel->result_count))
            return true;
    for (int32_t k = 0; k < call->operand_count; k++)
        if (any_overlaps(call->operands[k], call->operand_shapes[k], kernel->results, kernel->result_shapes,
                         kernel->result_count))
            return true;
    /* The call may access an array while the kernel uses one slice of it, selected by the iteration. */
    for (int32_t k = 0; k < step->placed_count; k++)
        for (int32_t j = 0; j < call->operand_count + call->result_count; j++) {
            bool is_result = j >= call->operand_count;
            const void *address = is_result ? call->results[j - call->operand_count] : call->operands[j];
            const IrShape *shape =
                is_result ? call->result_shapes[j - call->operand_count] : call->operand_shapes[j];
            if (ranges_overlap(step->placed[k].array, step->placed[k].bytes, address, ir_shape_bytes(shape)))
                return true;
        }
    return false;
}

AmStatus overlap_find_waits(ExecutableStep *steps, int32_t count, const CommCall **last, AmError *error) {
    int32_t under_way = 0; /* of pending[], in the order of issue */
    const CommCall **pending = malloc(sizeof *pending * (size_t)(count + 1));
    if (!pending) return am_fail_memory(error, (int64_t)sizeof *pending * count);
    for (int32_t s = 0; s < count; s++) {
        if (steps[s].collective) {
            pending[under_way++] = steps[s].collective;
            continue;
        }
        int32_t newest = under_way - 1;
        while (steps[s].kernel && newest >= 0 && !conflict(&steps[s], pending[newest])) newest--;
        if (newest < 0) continue;
        steps[s].wait = pending[newest];
        for (int32_t k = newest + 1; k < under_way; k++) pending[k - newest - 1] = pending[k];
        under_way -= newest + 1;
    }
    *last = under_way > 0 ? pending[under_way - 1] : NULL;
    free(pending);
    return AM_OK;
}

static bool same_addresses(const ExecutableStep *steps, const CaptureRegion *region, int64_t iteration,
                           int64_t other) {
    for (int32_t s = region->first; s < region->end; s++)
        for (int32_t k = 0; k < steps[s].placed_count; k++) {
            const int64_t *offset = steps[s].placed[k].place->offset;
            if (offset[iteration] != offset[other]) return false;
        }
    return true;
}

/* Finds the records that a capture region needs. */
static AmStatus find_records(CaptureRegion *region, Arena *arena, const ExecutableStep *steps,
                             AmError *error) {
    int64_t iterations = 0, firsts[MOST_RECORDS];
    int32_t count = 0, *record_of;
    for (int32_t s = region->first; s < region->end; s++)
        if (steps[s].placed_count > 0) iterations = steps[s].placed[0].place->iterations;
    region->records = ARENA_ARRAY(arena, void *, iterations < 1 ? 1 : MOST_RECORDS);
    record_of = ARENA_ARRAY(arena, int32_t, iterations + 1);
    if (arena->failed) return am_fail_memory(error, iterations);
    for (int64_t iteration = 0; iteration < iterations && region->recordable; iteration++) {
        int32_t k = 0;
        while (k < count && !same_addresses(steps, region, iteration, firsts[k])) k++;
        if (k == MOST_RECORDS) region->recordable = false;
        else if (k == count) firsts[count++] = iteration;
        record_of[iteration] = k;
    }
    if (iterations > 0) region->record_of = record_of;
    return AM_OK;
}

AmStatus overlap_find_capture_regions(CaptureRegion **result, int32_t *capture_region_count, Arena *arena,
                                      const ExecutableStep *steps, int32_t count, bool waits_on_ranks,
                                      AmError *error) {
    CaptureRegion *regions = ARENA_ARRAY(arena, CaptureRegion, count + 1);
    int32_t n = 0;
    if (!regions) return am_fail_memory(error, (int64_t)sizeof *regions * count);
    for (int32_t s = 0; s < count; s++) {
        bool waits =
            steps[s].control ? steps[s].control->waits_on_host : steps[s].collective && waits_on_ranks;
        if (n == 0 || regions[n - 1].recordable == waits)
            regions[n++] = (CaptureRegion){.first = s, .recordable = !waits};
        regions[n - 1].end = s + 1;
    }
    for (int32_t k = 0; k < n; k++) TRY(find_records(&regions[k], arena, steps, error));
    *result = regions;
    *capture_region_count = n;
    return AM_OK;
}
