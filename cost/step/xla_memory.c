/* Lifetimes in XLA's order, and their most bytes.
 *
 * XLA assigns buffers largest first, each to the smallest allocation that is free then; a parameter that is
 * replaced has one, from the last reader of its old value to the new one. The others share one allocation,
 * whose size is near the most bytes at one time: gaps are left out here.
 */
#include "cost/step/xla_memory.h"

#include <stdlib.h>
#include <string.h>

#include "base/integers.h"
#include "cost/step/xla_schedule.h"
#include "ir/analysis/loops.h"

/* Places in an order at which buffers are in memory. */
typedef struct Lifetimes {
    int32_t *from, *until; /* [buffer]: the first and the last place; from -1: never */
} Lifetimes;

typedef struct XlaPlanner {
    const Program *program;
    Arena *arena;
    XlaGraph graph;
    int32_t *order; /* [node_count] */
    Lifetimes lives;
    int64_t *bytes_at; /* [node_count + 1] */
} XlaPlanner;

/* Finds the lifetimes of buffers. A result that overwrites an operand takes its place from there on. */
static void find_lives(XlaPlanner *self) {
    const XlaGraph *graph = &self->graph;
    const int32_t *order = self->order;
    Lifetimes *lives = &self->lives;
    for (int32_t b = 0; b < graph->buffer_count; b++) lives->from[b] = lives->until[b] = -1;
    for (int32_t t = 0; t < graph->node_count; t++) {
        const XlaNode *node = &graph->nodes[order[t]];
        for (int32_t r = 0; r < node->result_count; r++)
            lives->from[node->value + r] = lives->until[node->value + r] = t;
        for (int32_t k = 0; k < node->input_count; k++) lives->until[node->inputs[k]] = t;
    }
    for (int32_t b = 0; b < graph->buffer_count; b++)
        if (graph->is_output[b]) lives->until[b] = graph->node_count;
    for (int32_t t = 0; t < graph->node_count; t++) {
        const XlaNode *node = &graph->nodes[order[t]];
        for (int32_t r = 0; r < node->result_count; r++)
            for (int32_t k = 0; k < node->input_count; k++) {
                int32_t input = node->inputs[k];
                bool ends = node->is_in_place[k] && lives->until[input] == t && lives->from[input] >= 0;
                if (!ends || graph->bytes[input] != graph->bytes[node->value + r]) continue;
                lives->until[input] = t - 1;
                break;
            }
    }
}

/* Returns the most bytes of temporary buffers, and their place in the order. */
static int64_t most_bytes(XlaPlanner *self, int32_t *place) {
    const XlaGraph *graph = &self->graph;
    const int32_t *order = self->order;
    int64_t bytes = 0, most = 0;
    *place = 0;
    for (int32_t t = 0; t <= graph->node_count; t++) self->bytes_at[t] = 0;
    for (int32_t b = 0; b < graph->buffer_count; b++) {
        int32_t from = self->lives.from[b], until = self->lives.until[b];
        if (from < 0 || until < from || graph->is_update[b]) continue;
        self->bytes_at[from] += graph->bytes[b];
        if (until < graph->node_count) self->bytes_at[until + 1] -= graph->bytes[b];
    }
    for (int32_t t = 0; t < graph->node_count; t++) {
        bytes += self->bytes_at[t];
        int64_t all = bytes + graph->nodes[order[t]].workspace;
        if (all > most) most = all, *place = t;
    }
    return most;
}

/* The memory of a parameter that is replaced, or of a result, while it is free. */
typedef struct FreeMemory {
    int64_t bytes;
    int32_t from, end; /* places: of those in [from, end) */
    int32_t first;     /* buffers that lie there, linked; -1 */
} FreeMemory;

static int by_bytes(const void *a, const void *b) {
    const FreeMemory *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

typedef struct SizedBuffer {
    int64_t bytes;
    int32_t buffer;
} SizedBuffer;

static int largest_first(const void *a, const void *b) {
    const SizedBuffer *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

/* Lists the free memory of parameters and results; the new values have no bytes of their own then. `*beside`:
 * the bytes of results that replace no parameter. */
static int32_t list_free(XlaPlanner *self, FreeMemory *free, int64_t *beside) {
    XlaGraph *graph = &self->graph;
    int32_t count = 0;
    *beside = 0;
    for (int32_t v = 0; v < self->program->value_count; v++) {
        int32_t update = graph->updated_by[v];
        if (update >= 0)
            free[count++] =
                (FreeMemory){graph->bytes[update], self->lives.until[v] + 1, self->lives.from[update], v};
    }
    for (int32_t b = 0; b < graph->buffer_count; b++) {
        if (!graph->is_output[b] || graph->bytes[b] == 0 || graph->is_update[b]) continue;
        free[count++] = (FreeMemory){graph->bytes[b], 0, self->lives.from[b], b};
        *beside += graph->bytes[b];
        graph->bytes[b] = 0;
    }
    qsort(free, (size_t)count, sizeof *free, by_bytes);
    for (int32_t k = 0; k < count; k++) free[k].first = -1;
    return count;
}

/* Places buffers in free memory of at least their size, large buffers first, the least memory first; they
 * have no bytes of their own then. Returns the bytes of results beside. */
static AmStatus use_free_memory(XlaPlanner *self, int64_t *beside, AmError *error) {
    XlaGraph *graph = &self->graph;
    const Lifetimes *lives = &self->lives;
    FreeMemory *free = ARENA_ARRAY(self->arena, FreeMemory, graph->buffer_count + 1);
    SizedBuffer *sized = ARENA_ARRAY(self->arena, SizedBuffer, graph->buffer_count + 1);
    int32_t *next = ARENA_ARRAY(self->arena, int32_t, graph->buffer_count + 1), count = 0;
    if (self->arena->failed) return am_fail_memory(error, graph->buffer_count);
    int32_t free_count = list_free(self, free, beside);
    for (int32_t b = 0; b < graph->buffer_count; b++)
        if (graph->bytes[b] > 0 && lives->from[b] >= 0 && lives->until[b] >= lives->from[b] &&
            !graph->is_update[b])
            sized[count++] = (SizedBuffer){graph->bytes[b], b};
    qsort(sized, (size_t)count, sizeof *sized, largest_first);
    for (int32_t k = 0; k < count; k++) {
        int32_t b = sized[k].buffer;
        for (int32_t f = 0; f < free_count; f++) {
            if (free[f].bytes < sized[k].bytes) continue;
            bool fits = lives->from[b] >= free[f].from && lives->until[b] < free[f].end;
            for (int32_t other = free[f].first; fits && other >= 0; other = next[other])
                fits = lives->until[other] < lives->from[b] || lives->until[b] < lives->from[other];
            if (!fits) continue;
            next[b] = free[f].first;
            free[f].first = b;
            graph->bytes[b] = 0;
            break;
        }
    }
    return AM_OK;
}

/* Finds the most bytes of temporary buffers, the place of the peak in self->order, and the bytes of results
 * that replace no parameter. */
static AmStatus find_peak(XlaPlanner *self, const XlaPair *pairs, int32_t pair_count, int64_t *temporary,
                          int64_t *beside, int32_t *place, AmError *error) {
    const Program *program = self->program;
    self->arena = program->arena;
    TRY(xla_graph(&self->graph, program, pairs, pair_count, error));
    self->lives.from = ARENA_ARRAY(self->arena, int32_t, self->graph.buffer_count + 1);
    self->lives.until = ARENA_ARRAY(self->arena, int32_t, self->graph.buffer_count + 1);
    self->bytes_at = ARENA_ARRAY(self->arena, int64_t, self->graph.node_count + 2);
    if (self->arena->failed) return am_fail_memory(error, program->value_count);
    TRY(xla_schedule(&self->order, &self->graph, error));
    find_lives(self);
    TRY(use_free_memory(self, beside, error));
    *temporary = most_bytes(self, place);
    return AM_OK;
}

AmStatus xla_function_bytes(int64_t *bytes, const Program *program, const XlaPair *pairs, int32_t pair_count,
                            AmError *error) {
    XlaPlanner self = {.program = program};
    int64_t temporary, beside;
    int32_t place;
    TRY(find_peak(&self, pairs, pair_count, &temporary, &beside, &place, error));
    *bytes = temporary + beside;
    return AM_OK;
}

AmStatus xla_workspace(int64_t *bytes, const ProgramInstruction *instruction, AmError *error) {
    bool is_loop = instruction->opcode == IR_WHILE;
    *bytes = 0;
    for (int32_t k = 0; k < instruction->regions.count && !instruction->regions.in_blocks; k++) {
        XlaPlanner self = {.program = instruction->regions.programs[k]};
        const Program *region = self.program;
        ArenaMark mark = arena_mark(region->arena);
        int32_t count = 0, place;
        int64_t temporary, beside;
        XlaPair *pairs = ARENA_ARRAY(region->arena, XlaPair, region->roles->output_count + 1);
        if (!pairs) return am_fail_memory(error, region->roles->output_count);
        for (int32_t p = 0; is_loop && k == 0 && p < region->roles->output_count; p++)
            pairs[count++] = (XlaPair){region->parameters[p], region->outputs[p]};
        AmStatus status = find_peak(&self, pairs, count, &temporary, &beside, &place, error);
        arena_release(region->arena, mark);
        TRY(status);
        *bytes = larger_integer(*bytes, temporary);
    }
    return AM_OK;
}

static AmStatus describe_peak(XlaMemory *memory, XlaPlanner *self, const XlaPair *pairs, int32_t count,
                              int32_t *alive, AmError *error) {
    const Program *program = self->program;
    int64_t temporary, beside;
    int32_t place;
    TRY(find_peak(self, pairs, count, &temporary, &beside, &place, error));
    const XlaGraph *graph = &self->graph;
    /* JAX counts the table of results, a pointer for each. */
    memory->peak_bytes = temporary + beside + program->roles->output_count * (int64_t)sizeof(void *);
    for (int32_t k = 0; k < program->roles->parameter_count; k++)
        if (program->parameters[k] >= 0)
            memory->peak_bytes += ir_shape_bytes(&program->values[program->parameters[k]].shape);
    for (int32_t b = 0; b < graph->buffer_count; b++)
        if (graph->bytes[b] > 0 && !graph->is_update[b] && self->lives.from[b] >= 0 &&
            self->lives.from[b] <= place && self->lives.until[b] >= place)
            alive[memory->alive_count++] = graph->value_of[b];
    memory->alive = alive;
    const ProgramExecution *execution = &program->execution;
    int32_t made = place < graph->node_count ? graph->value_of[graph->nodes[self->order[place]].value] : -1;
    memory->step = program->allocation.peak_step;
    for (int32_t s = 0; s < execution->step_count; s++)
        for (int32_t r = 0; r < program_step_results(program, &execution->steps[s]); r++)
            if (program_step_result(program, &execution->steps[s], r) == made) memory->step = s;
    return AM_OK;
}

AmStatus xla_memory(Program *program, const Plan *plan, const ClusterDeviceType *type, AmError *error) {
    bool is_one = plan->is_for_jax && strcmp(type->name, "host") == 0 && plan->stage_count == 1 &&
                  plan->micro_batches == 1 && plan->stages[0].recompute.range_count == 0;
    Arena *arena = program->arena;
    int32_t count = 0;
    if (!is_one || program->allocation.host_bytes > 0 ||
        (program->module->loops && program->module->loops->phases))
        return AM_OK;
    XlaPlanner self = {.program = program};
    XlaMemory *memory = ARENA_ARRAY(arena, XlaMemory, 1);
    int32_t *alive = ARENA_ARRAY(arena, int32_t, xla_most_buffers(program));
    if (arena->failed) return am_fail_memory(error, program->value_count);
    ArenaMark mark = arena_mark(arena);
    XlaPair *pairs = ARENA_ARRAY(arena, XlaPair, program->execution.update_count + 1);
    if (!pairs) return am_fail_memory(error, program->execution.update_count);
    for (int32_t k = 0; k < program->execution.update_count; k++) {
        const ProgramUpdate *update = &program->execution.updates[k];
        pairs[count++] = (XlaPair){program->parameters[update->parameter], update->value};
    }
    AmStatus status = describe_peak(memory, &self, pairs, count, alive, error);
    arena_release(arena, mark);
    if (status == AM_OK) program->allocation.xla = memory;
    return status;
}
