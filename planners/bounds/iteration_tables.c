/* Seconds of one iteration: each device of a stage of width d runs a part 1 / (M d) of an item, at the rate
 * of that size. A class has the sum of its parts, for each width, pass and order.
 */
#include "planners/bounds/iteration_tables.h"

static void fill_class(BoundIteration *self, int32_t c, int32_t w, const double *of_works) {
    const BoundPipelines *of = self->of;
    const GroupClass *class = &of->groups.classes[c];
    ClassSeconds *seconds = &self->seconds[c * of->width_count + w];
    for (int32_t k = class->first_part; k < class->first_part + class->part_count; k++) {
        const GroupPart *part = &of->groups.parts[k];
        seconds->of[part->is_backward][part->order] += of_works[part->work];
    }
    for (int32_t pass = 0; pass < PATH_PASSES; pass++)
        for (int32_t order = 0; order < BOUND_ORDERS; order++)
            self->all[w].of[pass][order] += class->count * seconds->of[pass][order];
}

/* Returns the seconds of a device's part of one iteration. Each iteration reads and writes a sum over the
 * batch, wherever it is added up. */
static double part_seconds(const BoundIteration *self, const DifferentWork *whole, int32_t devices) {
    double parts = (double)devices * (whole->is_after ? 1 : self->micro_batches);
    OperatorWork part = whole->work;
    if (!part.is_run) return whole->seconds / parts;
    part.flops /= parts;
    part.bytes /= parts;
    if (self->micro_batches > 1) part.bytes += whole->sum_bytes * (2 - 1.0 / self->micro_batches) / devices;
    return operator_seconds(&part, self->of->type);
}

AmStatus bound_iteration_fill(BoundIteration *self, AmError *error) {
    const BoundPipelines *of = self->of;
    double *of_works = ARENA_ARRAY(&self->arena, double, of->groups.work_count + 1);
    self->seconds = ARENA_ARRAY(&self->arena, ClassSeconds, of->groups.class_count * of->width_count);
    self->all = ARENA_ARRAY(&self->arena, ClassSeconds, of->width_count);
    if (self->arena.failed) return am_fail_memory(error, of->groups.class_count);
    for (int32_t w = 0; w < of->width_count; w++) {
        for (int32_t k = 0; k < of->groups.work_count; k++)
            of_works[k] = part_seconds(self, &of->groups.works[k], of->widths[w]);
        for (int32_t c = 0; c < of->groups.class_count; c++) fill_class(self, c, w, of_works);
    }
    /* all iterations on one stage that has all devices, and the work after them */
    const PathCounts counts = path_counts(PATH_WORK, 1, self->micro_batches, 0);
    self->of_one_stage = class_seconds_weighed(&counts.more[0][0], &self->all[of->width_count - 1]);
    self->cut_work = (CutWork){.micro_batches = self->micro_batches,
                               .devices = of->cluster->device_count,
                               .places = of->groups.places,
                               .width_count = of->width_count,
                               .class_count = of->groups.class_count,
                               .placed_count = of->groups.placed_count,
                               .widths = of->widths,
                               .seconds = self->seconds,
                               .placed = of->groups.placed};
    return cut_tables_create(&self->cuts, &self->arena, &self->cut_work, error);
}
