/* The memory of a rank over its steps.
 *
 * While a step of a loop's body runs, the memory is that around the loop and, in the loop's workspace, that
 * of the body. Conditionals and calls count with their whole workspace.
 */
#include "lowering/program/memory_counter.h"

#include "base/files/trace.h"

static void add_region(MemoryCounter *self, MemoryRegion region) {
    int32_t own = self->region_count;
    ARENA_RESERVE(self->arena, self->regions, self->region_count, self->region_capacity);
    if (self->arena->failed) return;
    region.last = -1;
    self->regions[self->region_count++] = region;
    for (int32_t s = 0; s < region.program->execution.step_count; s++) {
        if (region.program->execution.steps[s].fusion >= 0) continue;
        const ProgramInstruction *instruction =
            &region.program->instructions[region.program->execution.steps[s].instruction];
        for (int32_t r = 0; r < instruction->regions.count && !instruction->regions.in_blocks; r++)
            add_region(self, (MemoryRegion){.program = instruction->regions.programs[r],
                                            .instruction = instruction,
                                            .parent = own,
                                            .parent_step = s});
    }
}

AmStatus memory_counter_open(MemoryCounter *counter, Arena *arena, const Program *program,
                             int64_t channel_bytes, AmError *error) {
    *counter = (MemoryCounter){.arena = arena, .channel_bytes = channel_bytes};
    add_region(counter, (MemoryRegion){.program = program, .parent = -1});
    return arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

/* Returns the extent in the rank's whole allocation while a step of a region runs. */
static ProgramExtent whole_extent(const MemoryCounter *self, const MemoryRegion *region, int32_t step) {
    ProgramExtent extent = region->program->allocation.memory[step].inside;
    for (; region->parent >= 0; region = &self->regions[region->parent]) {
        const ProgramMemory *parent =
            &self->regions[region->parent].program->allocation.memory[region->parent_step];
        if (region->instruction->opcode != IR_WHILE) {
            extent = parent->inside;
            continue;
        }
        int64_t kept = region->program->allocation.parameter_bytes;
        int64_t end = region->instruction->regions.workspace + extent.end - kept;
        extent.used = parent->around.used + extent.used - kept;
        extent.end = extent.end > kept && end > parent->around.end ? end : parent->around.end;
    }
    return extent;
}

/* Includes the steps of a region after the latest one, before `end`. */
static void include(const MemoryCounter *self, MemoryRegion *region, int32_t end, ProgramExtent *most) {
    while (region->last + 1 < end) {
        ProgramExtent extent = whole_extent(self, region, ++region->last);
        if (extent.end > most->end) *most = extent;
    }
}

static void append(Text *text, MemoryCounter *self, int32_t device, ProgramExtent extent, double seconds) {
    if (self->has_shown && extent.used == self->shown.used && extent.end == self->shown.end) return;
    double parameters = (double)self->regions[0].program->allocation.parameter_bytes;
    const TraceNote notes[] = {{"parameters", NULL, parameters},
                               {"temporaries", NULL, (double)extent.used - parameters},
                               {"gaps", NULL, (double)(extent.end - extent.used)},
                               {"transfers", NULL, (double)self->channel_bytes}};
    trace_append_counter(text, device, "memory", seconds, notes, sizeof notes / sizeof *notes);
    self->shown = extent;
    self->has_shown = true;
}

void memory_counter_append(Text *text, MemoryCounter *self, int32_t device, const Program *program,
                           int32_t step, double seconds) {
    ProgramExtent most = {0};
    MemoryRegion *region = self->regions, *end = self->regions + self->region_count;
    while (region < end && region->program != program) region++;
    if (region == end) return;
    if (region->parent >= 0 && step <= region->last) region->last = -1; /* the next iteration */
    if (step > region->last) include(self, region, step + 1, &most);
    else most = whole_extent(self, region, step);
    while (region->parent >= 0) {
        int32_t around = region->parent_step;
        region = &self->regions[region->parent];
        include(self, region, around, &most);
        if (region->last < around) region->last = around;
    }
    append(text, self, device, most, seconds);
}

void memory_counter_end(Text *text, MemoryCounter *self, int32_t device, double seconds) {
    ProgramExtent most = {0};
    MemoryRegion *entry = self->regions;
    include(self, entry, entry->program->execution.step_count + 1, &most);
    if (most.end > 0) append(text, self, device, most, seconds);
    for (int32_t k = 0; k < self->region_count; k++) self->regions[k].last = -1;
}
