/* Red zones beside values, which show a write or a read out of bounds. The zones are the gaps between the
 * places of the buffer plan, each place cut to the bytes of its value. */
#include "executor/program/red_zones.h"

#include <stdlib.h>
#include <string.h>

enum { FILL = 0xFF };

/* A place of the buffer plan, or the zone after one. */
typedef struct Span {
    int64_t offset, end;
    int32_t value; /* whose place it is, or is before the zone; -1: none's */
} Span;

struct RedZones {
    const Program *program;
    KernelDevice *device;
    char *memory;
    int64_t first, bytes; /* of the plan: memory[0] is at offset `first` */
    Span *zones;
    int32_t count;
};

static int by_offset(const void *a, const void *b) {
    const Span *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Places of values, workspaces of regions, and the staging of updates. Returns their number. */
static int32_t list_places(Span *places, const Program *program) {
    int32_t count = 0;
    for (int32_t v = 0; v < program->value_count; v++) {
        const ProgramValue *value = &program->values[v];
        if (value->kind == PROGRAM_VALUE_INTERNAL || value->storage != v || value->offset < 0) continue;
        places[count++] = (Span){value->offset, value->offset + ir_shape_bytes(&value->shape), v};
    }
    for (int32_t k = 0; k < program->instruction_count; k++) {
        const ProgramInstruction *instruction = &program->instructions[k];
        if (instruction->regions.workspace_bytes > 0)
            places[count++] = (Span){instruction->regions.workspace,
                                     instruction->regions.workspace + instruction->regions.workspace_bytes,
                                     instruction->first_result};
    }
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        const ProgramUpdate *update = &program->execution.updates[k];
        if (update->staging >= 0)
            places[count++] = (Span){update->staging,
                                     update->staging + ir_shape_bytes(&program->values[update->value].shape),
                                     update->value};
    }
    return count;
}

AmStatus red_zones_find(RedZones **result, Arena *arena, const Program *program, KernelDevice *device,
                        char *memory, int64_t first, AmError *error) {
    int32_t most = program->value_count + program->instruction_count + program->execution.update_count + 1;
    *result = NULL;
    if (program->allocation.red_zone == 0) return AM_OK;
    RedZones *self = ARENA_ARRAY(arena, RedZones, 1);
    Span *places = ARENA_ARRAY(arena, Span, most), *zones = ARENA_ARRAY(arena, Span, most + 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof(Span) * 2 * most);
    *self = (RedZones){.program = program,
                       .device = device,
                       .memory = memory,
                       .first = first,
                       .bytes = program->allocation.bytes - first,
                       .zones = zones};
    int32_t count = list_places(places, program), before = -1;
    int64_t end = first;
    qsort(places, (size_t)count, sizeof *places, by_offset);
    for (int32_t k = 0; k <= count; k++) {
        int64_t offset = k < count ? places[k].offset : program->allocation.bytes;
        if (offset > end) zones[self->count++] = (Span){end, offset, before};
        if (k < count && places[k].end > end) end = places[k].end, before = places[k].value;
    }
    *result = self;
    return AM_OK;
}

void red_zones_fill(const RedZones *self) {
    int64_t most = 1;
    for (int32_t k = 0; k < self->count; k++)
        if (self->zones[k].end - self->zones[k].offset > most)
            most = self->zones[k].end - self->zones[k].offset;
    char *fill = malloc((size_t)most);
    if (!fill) return;
    memset(fill, FILL, (size_t)most);
    for (int32_t k = 0; k < self->count; k++)
        device_copy_in(self->device, self->memory + self->zones[k].offset - self->first, fill,
                       self->zones[k].end - self->zones[k].offset);
    free(fill);
}

static const char *name_of(const Program *program, int32_t origin) {
    bool known = program->module && origin >= 0 && origin < program->module->instruction_count;
    return known ? program->module->instructions[origin].name : "an instruction";
}

/* Fails with the step that has written into a red zone. */
static AmStatus report(const RedZones *self, const Span *zone, int64_t byte, int32_t s, AmError *error) {
    const Program *program = self->program;
    const ProgramStep *step = &program->execution.steps[s];
    const ProgramFusion *fusion = step->fusion >= 0 ? &program->execution.fusions[step->fusion] : NULL;
    int32_t made = fusion ? fusion->output_values[0] : program->instructions[step->instruction].first_result;
    const char *owner = zone->value >= 0 ? name_of(program, program->values[zone->value].origin) : "nothing";
    int32_t origin = fusion ? program->values[made].origin : program->instructions[step->instruction].origin;
    return am_fail(error, AM_ERROR_INTERNAL, "",
                   "step %d (%s): byte %lld after value %d of %s was written (expected a red zone of %lld "
                   "bytes, unchanged)",
                   s, name_of(program, origin), (long long)byte, zone->value, owner,
                   (long long)(zone->end - zone->offset));
}

AmStatus red_zones_check(const RedZones *self, int32_t s, AmError *error) {
    TRY(device_synchronize(self->device, error));
    unsigned char *host = malloc((size_t)self->bytes + 1);
    if (!host) return am_fail_memory(error, self->bytes);
    device_copy_out(self->device, host, self->memory, self->bytes);
    AmStatus status = AM_OK;
    for (int32_t k = 0; k < self->count && status == AM_OK; k++) {
        const Span *zone = &self->zones[k];
        for (int64_t at = zone->offset; at < zone->end && status == AM_OK; at++)
            if (host[at - self->first] != FILL) status = report(self, zone, at - zone->offset, s, error);
    }
    free(host);
    return status;
}
