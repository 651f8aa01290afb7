/* Loops over micro-batches are the loops of the entry with as many trips as the plan has
 * micro-batches. A loop with very many slices is passed on as simulated, so that a trace stays
 * readable.
 */
#include "cost/simulate/micro_batch_slices.h"

#include <math.h>

#include "cost/step/executed.h"
#include "ir/analysis/loops.h"

enum { NO_LOOP = -1, MOST_SLICES = 100000 };

static void add_regions(MicroBatchSlices *self, const ProgramInstruction *instruction, int32_t loop) {
    for (int32_t r = 0; r < instruction->regions.count; r++) {
        const Program *region = instruction->regions.programs[r];
        ARENA_RESERVE(self->arena, self->regions, self->region_count, self->region_capacity);
        if (self->arena->failed) return;
        self->regions[self->region_count++] = (LoopRegion){region, loop};
        for (int32_t i = 0; i < region->instruction_count; i++)
            add_regions(self, &region->instructions[i], loop);
    }
}

AmStatus micro_batch_slices_open(MicroBatchSlices *self, Arena *arena, const PlanCosts *costs,
                                 const PlanRanks *ranks, const SimulationObserver *observer, AmError *error) {
    const Program *last = NULL;
    *self = (MicroBatchSlices){.observer = observer,
                               .arena = arena,
                               .ranks = ARENA_ARRAY(arena, KeptSlices, ranks->rank_count),
                               .rank_count = ranks->rank_count,
                               .micro_batches = ranks->plan->micro_batches};
    bool has_loops = ranks->plan->stage_count == 1 && self->micro_batches > 1;
    for (int32_t r = 0; r < ranks->rank_count && has_loops; r++) {
        const Program *program = plan_costs_program(costs, r);
        for (int32_t i = 0; i < program->instruction_count && program != last; i++) {
            const ProgramInstruction *instruction = &program->instructions[i];
            bool is_loop = instruction->opcode == IR_WHILE && instruction->regions.count > 0;
            if (is_loop && ir_loop_trips(program->module, instruction->origin) == self->micro_batches)
                add_regions(self, instruction, i);
        }
        last = program;
    }
    return arena->failed ? am_fail_memory(error, ranks->rank_count) : AM_OK;
}

static void pass(const MicroBatchSlices *self, const SimulatedSlice *slice) {
    self->observer->on_slice(self->observer->user, slice);
}

static void pass_kept(MicroBatchSlices *self, KeptSlices *kept) {
    double first = INFINITY, last = 0;
    for (int32_t k = 0; k < kept->count; k++) {
        first = fmin(first, kept->slices[k].start);
        last = fmax(last, kept->slices[k].end);
    }
    bool is_short = (double)kept->count * self->micro_batches <= MOST_SLICES;
    int32_t parts = is_short ? self->micro_batches : 1;
    double length = (last - first) / parts;
    for (int32_t m = 0; m < parts; m++)
        for (int32_t k = 0; k < kept->count; k++) {
            SimulatedSlice slice = kept->slices[k];
            slice.start = first + m * length + (slice.start - first) / parts;
            slice.end = first + m * length + (slice.end - first) / parts;
            slice.times /= parts;
            slice.micro_batch = m;
            pass(self, &slice);
        }
    kept->count = 0;
}

void micro_batch_slices_add(MicroBatchSlices *self, const SimulatedSlice *slice) {
    KeptSlices *kept = &self->ranks[slice->rank];
    int32_t loop = NO_LOOP;
    for (int32_t k = 0; k < self->region_count && slice->executed && loop == NO_LOOP; k++)
        if (self->regions[k].program == slice->executed->program) loop = self->regions[k].loop;
    if (kept->count > 0 && kept->loop != loop) pass_kept(self, kept);
    if (loop == NO_LOOP) {
        pass(self, slice);
        return;
    }
    ARENA_RESERVE(self->arena, kept->slices, kept->count, kept->capacity);
    if (self->arena->failed) return;
    kept->loop = loop;
    kept->slices[kept->count++] = *slice;
}

void micro_batch_slices_end(MicroBatchSlices *self) {
    for (int32_t r = 0; r < self->rank_count; r++)
        if (self->ranks[r].count > 0) pass_kept(self, &self->ranks[r]);
}
