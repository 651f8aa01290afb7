/* Order of sums over devices: gradients above all.
 *
 * A module often lists the weight gradients after the whole backward pass, parameter by parameter, and
 * each update right behind its gradient. A device would then communicate and compute in turns. Here
 *
 *   what only a sum needs            is computed as soon as it can be, and the sum begins
 *   users of a sum that no other     wait until REDUCE_EARLY_UNDER_WAY more sums have begun,
 *   sum, product or loop needs       or nothing else is left
 *   (updates)
 *
 * and all else keeps its order. What gathers a gradient that was added up in shards begins as early
 * and is waited for as late. Large sums are waited for at once. Gradients that wait for their updates fill
 * no more memory than these sums have, and what the weight gradients are made of dies earlier.
 */
#include "propagation/reduce_early.h"

#include "propagation/interleave.h"
#include "propagation/lower_internal.h"
#include "propagation/order.h"
#include "propagation/ready_set.h"

typedef enum Urgency { FOR_SUM, IN_ORDER, URGENCIES } Urgency;

typedef struct Scheduler {
    Program *program;
    ProgramGraph graph;
    bool *leads;      /* [instruction]: it is a sum, a product or a loop, or one of these needs it */
    bool *is_for_sum; /* [instruction]: a sum, or needed by nothing else */
    bool *is_beside;  /* [instruction]: a sum that may be waited for late */
    int32_t *waiting; /* [instruction]: producers still to come */
    ReadySet ready[URGENCIES];
    int32_t *held, held_first, held_count; /* a queue: users that wait, in the order of their sums */
    int32_t *held_until;                   /* [place in the queue]: sums that have begun by then */
    int32_t sums;                          /* that have begun */
    int32_t *order, placed;
} Scheduler;

bool program_reduces(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_COLLECTIVE &&
           (instruction->collective->kind == PROGRAM_ALL_REDUCE ||
            instruction->collective->kind == PROGRAM_REDUCE_SCATTER);
}

bool program_reduces_beside(const Program *program, const ProgramInstruction *instruction) {
    int64_t bytes = 0;
    bool may_be = program_reduces(instruction) || instruction->gathers_late;
    for (int32_t k = 0; may_be && k < instruction->operand_count; k++)
        bytes += program_even_bytes(program, &program->values[instruction->operands[k]]);
    return may_be && bytes <= REDUCE_EARLY_BYTES;
}

static bool is_gather(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_COLLECTIVE && instruction->collective->kind == PROGRAM_ALL_GATHER;
}

/* What takes long: a step may not stand still before it. */
static bool is_work(const ProgramInstruction *instruction) {
    return instruction->region_count > 0 || instruction->kind == PROGRAM_TRANSFER ||
           instruction->opcode == IR_DOT || instruction->opcode == IR_CONVOLUTION;
}

/* Users come after their producers. */
static void find_roles(Scheduler *self) {
    const ProgramGraph *graph = &self->graph;
    for (int32_t i = graph->count - 1; i >= 0; i--) {
        ProgramInstruction *instruction = &self->program->instructions[i];
        bool is_sum = program_reduces(instruction), for_sum = graph->first_user[i] < graph->first_user[i + 1];
        self->leads[i] = is_sum || is_work(instruction);
        for (int32_t u = graph->first_user[i]; u < graph->first_user[i + 1]; u++) {
            int32_t user = graph->users[u];
            self->leads[i] |= self->leads[user];
            for_sum &= self->is_for_sum[user];
        }
        instruction->gathers_late = is_gather(instruction) && !self->leads[i];
        self->is_beside[i] = program_reduces_beside(self->program, instruction);
        bool has_producers = graph->first[i] < graph->first[i + 1];
        self->is_for_sum[i] = is_sum || instruction->gathers_late || (for_sum && has_producers);
        self->waiting[i] = graph->first[i + 1] - graph->first[i];
    }
}

/* Whether all collectives that it uses may be waited for late, and there are some. */
static bool may_wait(const Scheduler *self, int32_t i) {
    bool found = false;
    for (int32_t e = self->graph.first[i]; e < self->graph.first[i + 1]; e++) {
        int32_t producer = self->graph.producers[e];
        if (self->program->instructions[producer].kind != PROGRAM_COLLECTIVE) continue;
        if (!self->is_beside[producer]) return false;
        found = true;
    }
    return found;
}

static void add_ready(Scheduler *self, int32_t i) {
    ready_add(&self->ready[self->is_for_sum[i] ? FOR_SUM : IN_ORDER], i);
}

static void make_ready(Scheduler *self, int32_t i) {
    if (!self->leads[i] && may_wait(self, i)) {
        self->held[self->held_count] = i;
        self->held_until[self->held_count++] = self->sums + REDUCE_EARLY_UNDER_WAY;
        return;
    }
    add_ready(self, i);
}

/* The next instruction; -1: none is left. */
static int32_t take(Scheduler *self) {
    while (self->held_first < self->held_count && self->held_until[self->held_first] <= self->sums)
        add_ready(self, self->held[self->held_first++]);
    for (Urgency urgency = 0; urgency < URGENCIES; urgency++) {
        int32_t next = ready_take(&self->ready[urgency]);
        if (next >= 0) return next;
    }
    return self->held_first < self->held_count ? self->held[self->held_first++] : -1;
}

static void place(Scheduler *self, int32_t i) {
    const ProgramGraph *graph = &self->graph;
    self->order[self->placed++] = i;
    self->sums += program_reduces(&self->program->instructions[i]);
    for (int32_t u = graph->first_user[i]; u < graph->first_user[i + 1]; u++)
        if (--self->waiting[graph->users[u]] == 0) make_ready(self, graph->users[u]);
}

AmStatus program_reduce_early(Program *program, AmError *error) {
    Arena *arena = program->arena;
    int32_t count = program->instruction_count, sums = 0;
    for (int32_t i = 0; i < count; i++) sums += program_reduces(&program->instructions[i]);
    if (sums < 2) return AM_OK;
    Scheduler self = {.program = program};
    TRY(program_graph(&self.graph, program, error));
    self.leads = ARENA_ARRAY(arena, bool, count + 1);
    self.is_for_sum = ARENA_ARRAY(arena, bool, count + 1);
    self.is_beside = ARENA_ARRAY(arena, bool, count + 1);
    self.waiting = ARENA_ARRAY(arena, int32_t, count + 1);
    self.held = ARENA_ARRAY(arena, int32_t, count + 1);
    self.held_until = ARENA_ARRAY(arena, int32_t, count + 1);
    self.order = ARENA_ARRAY(arena, int32_t, count + 1);
    for (Urgency urgency = 0; urgency < URGENCIES; urgency++) ready_make(&self.ready[urgency], arena, count);
    if (arena->failed) return am_fail_memory(error, count);
    find_roles(&self);
    for (int32_t i = 0; i < count; i++)
        if (self.waiting[i] == 0) make_ready(&self, i);
    for (int32_t i; (i = take(&self)) >= 0;) place(&self, i);
    if (self.placed != count)
        return am_fail(error, AM_ERROR_INTERNAL, program->module->source,
                       "ordering the sums: instructions depend on one another");
    bool is_changed = false;
    for (int32_t i = 0; i < count; i++) is_changed |= self.order[i] != i;
    return is_changed ? program_relist(program, self.order, count, error) : AM_OK;
}
