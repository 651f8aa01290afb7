/* Orders sums over devices, mainly of gradients, and the computation that overlaps with a
 * collective.
 *
 * A module often lists the weight gradients after the whole backward pass, parameter by parameter,
 * and each update directly after its gradient. A device would then alternate between communication
 * and computation. The order here is
 *
 *   operands of a sum only           as early as possible; the sum then begins
 *   recomputed values among these    when their first user can go on: a layer's values wait for its
 *                                    gathered weights; those of all layers would fill the memory
 *   users of a sum that no other     after REDUCE_EARLY_UNDER_WAY more sums have begun, or
 *   sum, product or loop needs       when no other work is left
 *   (updates)
 *
 * and other instructions keep their order. A gather of a gradient that was reduced in shards begins
 * as early and is awaited as late. Large sums are awaited at once. Gradients that wait for their
 * updates use at most the memory of these sums, and the operands of the weight gradients die
 * earlier.
 *
 * If products wait for collectives (tensor parallelism; latency.h), a device would be idle before
 * each of them, since no work is left by then. The order is then a list schedule on an estimated
 * clock:
 *
 *   the chain that leads to such       keeps its order and has priority
 *   collectives
 *   products that only sums need       are held back near such a collective, to cover its time, and
 *   (weight gradients)                 computed when the chain would be idle
 *   later parts of the chain           run if no product is held back: another branch, another
 *                                      layer's recomputation
 *   sums and gathers without           begin where the next collective of the chain is far, since
 *   near users                         collectives take place one after the other
 *   users of such sums                 run when these have ended, by the clock
 *
 * Instructions that are held back or run early use at most a small fraction of the memory. Programs
 * without such a chain, as in pure data parallelism, follow the first table alone. Time per
 * instruction: that of sets of small numbers (ready_set.h).
 */
#include "lowering/passes/reduce_early.h"

#include <math.h>

#include "ir/analysis/loops.h"
#include "lowering/passes/latency.h"
#include "lowering/passes/ready_set.h"
#include "lowering/program/live_bytes.h"
#include "lowering/program/program_edit.h"

/* The rule by which a ready instruction is scheduled. */
typedef enum Urgency {
    FOR_SUM,
    IN_ORDER,
    BLOCKED,         /* for a sum, and waits for a collective that is under way */
    LATE,            /* waits for a sum that may be waited for late */
    BESIDE,          /* collectives that nothing waits for soon */
    FILLING_FOR_SUM, /* products that are held back */
    FILLING_IN_ORDER,
    URGENCIES
} Urgency;

/* The number of instructions examined for one that can run while the first one waits. */
enum { MOST_LOOKED_AT = 64 };

/* The fraction of the memory for values computed early, and for operands of products and sums that
 * are held back. */
enum { EARLY_PART = 64, HELD_PART = 16 };

/* How many more times its estimate a sum is given before its users come: gradients are added up between
 * servers rather than inside one. */
#define SUM_SLOWNESS 3.0

typedef struct Scheduler {
    Program *program;
    ProgramGraph graph;
    ProgramLatency latency;
    bool *leads;             /* [instruction]: it is a sum, a product or a loop, or one of these needs it */
    bool *is_for_sum;        /* [instruction]: a sum, or needed by nothing else; not of the chain */
    bool *is_beside;         /* [instruction]: a sum that may be waited for late */
    int32_t *first_deferred; /* [instruction]: the first one that waits for it without reading it, or -1 */
    int32_t *next_deferred;  /* [instruction]: another one that waits for the same, or -1 */
    int32_t *waiting;        /* [instruction]: what it waits for and is still to come */
    ReadySet ready[URGENCIES];
    int32_t *held, held_first, held_count; /* a queue: users that wait, in the order of their sums */
    int32_t *held_until;                   /* [place in the queue]: sums that have begun by then */
    int32_t sums;                          /* that have begun */
    int32_t *order, placed;
    bool has_chain;        /* there are awaited collectives; else the following fields are unused */
    double clock, network; /* operations until now, and until the last awaited collective ends */
    double *there_at;      /* [instruction]: when its result is there, 0: with the instruction */
    double *late_at;       /* [instruction]: the same of sums that may be waited for late */
    LatencyFront front;
    double filling;       /* operations of products that are held back */
    double blocked_until; /* when the first of those goes on that wait for a collective under way */
    double late_until;    /* the same for a sum that may be waited for late */
    LiveBytes live;
    int32_t filling_count;               /* of them */
    int32_t beside_count;                /* collectives that are held back */
    int64_t filling_bytes, beside_bytes; /* that they take */
    int64_t early;                       /* bytes made ahead of the front */
    int64_t most;                        /* how full the memory is where only sums begin early */
} Scheduler;

bool program_reduces(const ProgramInstruction *instruction) {
    return instruction->kind == PROGRAM_COLLECTIVE &&
           (instruction->collective->kind == PROGRAM_ALL_REDUCE ||
            instruction->collective->kind == PROGRAM_REDUCE_SCATTER);
}

static int64_t taken_bytes(const Program *program, const ProgramInstruction *instruction) {
    int64_t bytes = 0;
    for (int32_t k = 0; k < instruction->operand_count; k++)
        bytes += program_even_bytes(program, &program->values[instruction->operands[k]]);
    return bytes;
}

bool program_reduces_beside(const Program *program, const ProgramInstruction *instruction) {
    int64_t part = program->summed_bytes / REDUCE_EARLY_PART;
    bool may_be = program_reduces(instruction) || instruction->gathers_late;
    return may_be &&
           taken_bytes(program, instruction) <= (part > REDUCE_EARLY_BYTES ? part : REDUCE_EARLY_BYTES);
}

static bool is_chain(const Scheduler *self, int32_t i) {
    return self->has_chain && self->latency.is_chain[i];
}

/* Users come after their producers. */
static void find_roles(Scheduler *self) {
    const ProgramGraph *graph = &self->graph;
    for (int32_t i = graph->count - 1; i >= 0; i--) {
        ProgramInstruction *instruction = &self->program->instructions[i];
        bool is_sum = program_reduces(instruction), for_sum = graph->first_user[i] < graph->first_user[i + 1];
        self->leads[i] = is_sum || program_is_work(instruction);
        for (int32_t u = graph->first_user[i]; u < graph->first_user[i + 1]; u++) {
            int32_t user = graph->users[u];
            self->leads[i] |= self->leads[user];
            for_sum &= self->is_for_sum[user];
        }
        instruction->gathers_late = program_gathers(instruction) && !self->leads[i];
        self->is_beside[i] = program_reduces_beside(self->program, instruction);
        bool has_producers = graph->first[i] < graph->first[i + 1];
        self->is_for_sum[i] = is_sum || instruction->gathers_late || (for_sum && has_producers);
        self->is_for_sum[i] &= !is_chain(self, i);
    }
}

/* Finds when instructions run if only sums begin early: their operands are computed with the last producer.
 * Constants count like other instructions, or as if they were there from the start. NULL without memory. */
static int32_t *find_times(const Scheduler *self, bool are_constants_there) {
    const ProgramGraph *graph = &self->graph;
    int32_t *time = ARENA_ARRAY(self->program->arena, int32_t, graph->count + 1);
    for (int32_t i = 0; time && i < graph->count; i++) {
        for (int32_t e = graph->first[i]; self->is_for_sum[i] && e < graph->first[i + 1]; e++)
            if (time[graph->producers[e]] > time[i]) time[i] = time[graph->producers[e]];
        bool is_constant = are_constants_there && self->program->instructions[i].operand_count == 0;
        if (!self->is_for_sum[i] && !is_constant) time[i] = i;
    }
    return time;
}

/* Returns whether i recomputes values of the forward pass from others of it, and from no recomputed ones. */
static bool begins_recomputing(const Scheduler *self, int32_t i) {
    const Program *program = self->program;
    const IrPhase *phases = program->roles->phases;
    bool found = false;
    if (!phases || phases[program->instructions[i].origin] != IR_PHASE_RECOMPUTED) return false;
    for (int32_t e = self->graph.first[i]; e < self->graph.first[i + 1]; e++) {
        IrPhase phase = phases[program->instructions[self->graph.producers[e]].origin];
        if (phase == IR_PHASE_RECOMPUTED) return false;
        found |= phase == IR_PHASE_FORWARD;
    }
    return found;
}

/* Defers recomputations that only sums need: each begins after the last of the instructions that keep the
 * program's order and that its first user needs, too. That one does not depend on the recomputation: a sum
 * in between would be an earlier user. Constants do not count, since all layers may share them. */
static AmStatus defer_recomputations(Scheduler *self, AmError *error) {
    const ProgramGraph *graph = &self->graph;
    int32_t *time = find_times(self, true);
    int32_t *used_at = ARENA_ARRAY_RAW(self->program->arena, int32_t, graph->count + 1);
    if (!time || !used_at) return am_fail_memory(error, graph->count);
    for (int32_t i = graph->count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &self->program->instructions[i];
        used_at[i] = time[i];
        if (!self->is_for_sum[i] || program_reduces(instruction) || instruction->gathers_late) continue;
        used_at[i] = INT32_MAX;
        for (int32_t u = graph->first_user[i]; u < graph->first_user[i + 1]; u++) {
            int32_t user = graph->users[u], at = time[user] > time[i] ? time[user] : used_at[user];
            if (at < used_at[i]) used_at[i] = at;
        }
        if (used_at[i] <= time[i] || !begins_recomputing(self, i)) continue;
        self->next_deferred[i] = self->first_deferred[used_at[i]];
        self->first_deferred[used_at[i]] = i;
    }
    return AM_OK;
}

/* Returns whether all collectives that it uses may be waited for late, and there are some. */
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

/* Returns whether products are held back now: awaited collectives are near. */
static bool is_holding(const Scheduler *self) {
    return self->has_chain && self->front.hold > 0;
}

static void hold_instruction(Scheduler *self, int32_t i) {
    ready_add(&self->ready[self->is_for_sum[i] ? FILLING_FOR_SUM : FILLING_IN_ORDER], i);
    self->filling_count++;
    self->filling += self->latency.work[i];
    self->filling_bytes += live_bytes_taken(&self->live, i);
}

static int32_t take_filling(Scheduler *self) {
    int32_t next = ready_take(&self->ready[FILLING_FOR_SUM]);
    if (next < 0) next = ready_take(&self->ready[FILLING_IN_ORDER]);
    if (next < 0) return next;
    self->filling_count--;
    self->filling -= self->latency.work[next];
    self->filling_bytes -= live_bytes_taken(&self->live, next);
    return next;
}

/* Returns the next of the held-back instructions, if there are more than needed. */
static int32_t take_excess(Scheduler *self) {
    bool is_large = self->filling_count > 1 && self->filling_bytes > self->most / HELD_PART;
    if (self->filling_count == 0 || (!is_large && self->filling < self->front.hold)) return -1;
    int32_t next = take_filling(self);
    if (next < 0 || is_large || self->filling >= self->front.hold) return next;
    hold_instruction(self, next);
    return -1;
}

static int32_t take_next_beside(Scheduler *self) {
    int32_t next = ready_take(&self->ready[BESIDE]);
    if (next < 0) return next;
    self->beside_count--;
    self->beside_bytes -= live_bytes_taken(&self->live, next);
    return next;
}

static void move_all(Scheduler *self, Urgency from, Urgency to) {
    for (int32_t i; (i = ready_take(&self->ready[from])) >= 0;) ready_add(&self->ready[to], i);
}

/* Releases all held-back instructions. */
static void release_held(Scheduler *self) {
    if (self->late_until < INFINITY) move_all(self, LATE, FOR_SUM);
    self->late_until = INFINITY;
    if (self->filling_count + self->beside_count == 0) return;
    move_all(self, BESIDE, FOR_SUM);
    move_all(self, FILLING_FOR_SUM, FOR_SUM);
    move_all(self, FILLING_IN_ORDER, IN_ORDER);
    self->filling = 0;
    self->filling_bytes = self->beside_bytes = self->filling_count = self->beside_count = 0;
}

static void add_ready(Scheduler *self, int32_t i) {
    bool for_sum = self->is_for_sum[i];
    if (!for_sum || !is_holding(self)) {
        ready_add(&self->ready[for_sum ? FOR_SUM : IN_ORDER], i);
    } else if (self->program->instructions[i].kind == PROGRAM_COLLECTIVE) {
        ready_add(&self->ready[BESIDE], i);
        self->beside_count++;
        self->beside_bytes += live_bytes_taken(&self->live, i);
    } else if (self->latency.is_filling[i]) {
        hold_instruction(self, i);
    } else {
        ready_add(&self->ready[FOR_SUM], i);
    }
}

static void make_ready(Scheduler *self, int32_t i) {
    if (!self->leads[i] && may_wait(self, i)) {
        self->held[self->held_count] = i;
        self->held_until[self->held_count++] = self->sums + REDUCE_EARLY_UNDER_WAY;
        return;
    }
    add_ready(self, i);
}

/* Returns the time at which all inputs of instruction i are there. */
static double inputs_at(const Scheduler *self, int32_t i) {
    if (self->network <= self->clock) return 0;
    const ProgramInstruction *instruction = &self->program->instructions[i];
    if (program_has_control(instruction) || instruction->kind == PROGRAM_TRANSFER) return self->network;
    double at = 0;
    for (int32_t e = self->graph.first[i]; e < self->graph.first[i + 1]; e++)
        if (self->there_at[self->graph.producers[e]] > at) at = self->there_at[self->graph.producers[e]];
    return at;
}

/* Returns the time at which the last sum that it reads is over, which may be waited for late. */
static double sums_over_at(const Scheduler *self, int32_t i) {
    double at = 0;
    for (int32_t e = self->graph.first[i]; e < self->graph.first[i + 1]; e++)
        if (self->late_at[self->graph.producers[e]] > at) at = self->late_at[self->graph.producers[e]];
    return at;
}

/* Returns whether the device would stand still before it. */
static bool stands_still(const Scheduler *self, int32_t i) {
    ProgramKind kind = self->program->instructions[i].kind;
    return kind != PROGRAM_COLLECTIVE && kind != PROGRAM_VIEW && inputs_at(self, i) > self->clock;
}

/* Returns a ready instruction soon after `first` that can run while the device would wait for `first`;
 * `first` itself without one. */
static int32_t take_meanwhile(Scheduler *self, int32_t first) {
    const double *before = self->latency.chain_before;
    int32_t looked_at[MOST_LOOKED_AT] = {first}, count = 1, found = -1;
    double until = before[first] + LATENCY_NEAR * (inputs_at(self, first) - self->clock);
    while (count < MOST_LOOKED_AT) {
        int32_t next = ready_take(&self->ready[IN_ORDER]);
        if (next < 0) break;
        if (self->latency.is_chain[next] && before[next] <= until && !stands_still(self, next) &&
            !program_has_control(&self->program->instructions[next]) &&
            self->early + live_bytes_made(&self->live, next) <= self->most / EARLY_PART) {
            found = next;
            break;
        }
        looked_at[count++] = next;
        if (before[next] > until) break;
    }
    for (int32_t k = found < 0; k < count; k++) ready_add(&self->ready[IN_ORDER], looked_at[k]);
    if (found >= 0) self->early += live_bytes_made(&self->live, found);
    return found < 0 ? first : found;
}

/* Returns the first of what keeps the program's order and of what waits for a collective. */
static int32_t take_first(Scheduler *self) {
    int32_t next = ready_take(&self->ready[IN_ORDER]), blocked = ready_take(&self->ready[BLOCKED]);
    if (next < 0 || blocked < 0) return next < 0 ? blocked : next;
    bool is_blocked = blocked < next;
    ready_add(&self->ready[is_blocked ? IN_ORDER : BLOCKED], is_blocked ? next : blocked);
    return is_blocked ? blocked : next;
}

/* Returns the next of what keeps the program's order, or what fills the time until it can begin; -1: none is
 * left. */
static int32_t take_in_order(Scheduler *self) {
    int32_t next = take_first(self);
    while (next >= 0 && is_holding(self) && self->latency.is_filling[next]) {
        hold_instruction(self, next);
        int32_t excess = take_excess(self);
        if (excess >= 0) return excess;
        next = take_first(self);
    }
    if (!self->has_chain || (next >= 0 && !stands_still(self, next))) return next;
    int32_t filling = take_filling(self);
    if (filling < 0) return next < 0 ? next : take_meanwhile(self, next);
    if (next >= 0) ready_add(&self->ready[IN_ORDER], next);
    return filling;
}

/* Returns whether it waits for a collective that is under way; then it is put aside. */
static bool put_aside(Scheduler *self, int32_t i) {
    double over = sums_over_at(self, i);
    if (is_holding(self) && over > self->clock && self->program->instructions[i].kind != PROGRAM_VIEW) {
        ready_add(&self->ready[LATE], i);
        self->late_until = fmin(self->late_until, over);
    } else if (stands_still(self, i)) {
        ready_add(&self->ready[BLOCKED], i);
        self->blocked_until = fmin(self->blocked_until, inputs_at(self, i));
    } else {
        return false;
    }
    return true;
}

/* Returns the next of what only sums need, if it waits for no collective that is under way. */
static int32_t take_for_sum(Scheduler *self) {
    if (self->clock >= self->blocked_until) {
        move_all(self, BLOCKED, FOR_SUM);
        self->blocked_until = INFINITY;
    }
    if (self->clock >= self->late_until) {
        move_all(self, LATE, FOR_SUM);
        self->late_until = INFINITY;
    }
    int32_t next = ready_take(&self->ready[FOR_SUM]);
    while (self->has_chain && next >= 0 && put_aside(self, next)) next = ready_take(&self->ready[FOR_SUM]);
    return next;
}

/* Returns the next instruction; -1: none is left. */
static int32_t take_next(Scheduler *self) {
    while (self->held_first < self->held_count && self->held_until[self->held_first] <= self->sums)
        add_ready(self, self->held[self->held_first++]);
    if (!is_holding(self)) release_held(self);
    int32_t next = take_for_sum(self);
    if (next < 0) {
        bool is_far = latency_front_distance(&self->front, &self->latency) >= self->front.longest / 2;
        bool is_held = !is_far && self->beside_bytes <= self->most / HELD_PART;
        if (self->beside_count > 0 && !is_held) next = take_next_beside(self);
    }
    if (next < 0) next = take_excess(self);
    if (next < 0) next = take_in_order(self);
    if (next < 0) next = take_next_beside(self);
    if (next < 0) next = ready_take(&self->ready[LATE]);
    if (next >= 0) return next;
    return self->held_first < self->held_count ? self->held[self->held_first++] : -1;
}

/* Moves the front past the contiguous part of the chain that has been placed. Products and
 * collectives change the part ahead of it. */
static void advance(Scheduler *self) {
    const ProgramLatency *latency = &self->latency;
    int32_t after = self->front.after;
    bool is_new = false;
    while (after + 1 < self->graph.count && (!latency->is_chain[after + 1] || self->waiting[after + 1] < 0)) {
        after++;
        is_new |= latency->is_awaited[after] || program_is_work(&self->program->instructions[after]);
    }
    if (after == self->front.after) return;
    self->early = 0;
    is_new |= latency->filling_before[after + 1] > latency->filling_before[self->front.after + 1];
    if (is_new) latency_front_pass(&self->front, latency, after);
    else self->front.after = after;
}

/* Advances the estimated time by instruction i. */
static void advance_clock(Scheduler *self, int32_t i) {
    double at = inputs_at(self, i), work = self->latency.work[i];
    if (at < self->clock) at = self->clock;
    if (self->latency.is_awaited[i]) {
        self->network = fmax(self->network, at) + work;
        self->there_at[i] = self->network;
    } else if (self->program->instructions[i].kind == PROGRAM_COLLECTIVE) {
        if (self->is_for_sum[i]) {
            self->network = fmax(self->network, at) + work;
            self->late_at[i] = self->network + SUM_SLOWNESS * work;
        }
    } else if (self->program->instructions[i].kind == PROGRAM_VIEW) {
        self->there_at[i] = at;
        self->late_at[i] = sums_over_at(self, i);
    } else {
        self->clock = at + work;
    }
    advance(self);
}

/* Appends an instruction to the order, and readies those that waited for it. */
static void place_instruction(Scheduler *self, int32_t i) {
    const ProgramGraph *graph = &self->graph;
    self->order[self->placed++] = i;
    self->waiting[i] = -1;
    self->sums += program_reduces(&self->program->instructions[i]);
    if (self->has_chain) advance_clock(self, i);
    for (int32_t u = graph->first_user[i]; u < graph->first_user[i + 1]; u++)
        if (--self->waiting[graph->users[u]] == 0) make_ready(self, graph->users[u]);
    for (int32_t k = self->first_deferred[i]; k >= 0; k = self->next_deferred[k])
        if (--self->waiting[k] == 0) make_ready(self, k);
}

static AmStatus order_all(Scheduler *self, AmError *error) {
    Arena *arena = self->program->arena;
    int32_t count = self->graph.count;
    for (Urgency urgency = 0; urgency < URGENCIES; urgency++)
        executable_make(&self->ready[urgency], arena, count);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) {
        self->waiting[i] += self->graph.first[i + 1] - self->graph.first[i];
        for (int32_t k = self->first_deferred[i]; k >= 0; k = self->next_deferred[k]) self->waiting[k]++;
    }
    for (int32_t i = 0; i < count; i++)
        if (self->waiting[i] == 0) make_ready(self, i);
    for (int32_t i; (i = take_next(self)) >= 0;) place_instruction(self, i);
    if (self->placed == count) return AM_OK;
    return am_fail(error, AM_ERROR_INTERNAL, self->program->module->source,
                   "ordering the sums: instructions depend on one another");
}

AmStatus program_reduce_early(Program *program, AmError *error) {
    ArenaMark mark = arena_mark(program->arena);
    AmStatus status = AM_OK;
    Arena *arena = program->arena;
    int32_t count = program->instruction_count, collectives = 0, sums = 0;
    Scheduler self = {
        .program = program, .front.after = -1, .blocked_until = INFINITY, .late_until = INFINITY};
    for (int32_t i = 0; i < count; i++) {
        collectives += program->instructions[i].kind == PROGRAM_COLLECTIVE;
        if (!program_reduces(&program->instructions[i])) continue;
        sums++;
        program->summed_bytes += taken_bytes(program, &program->instructions[i]) *
                                 ir_layers_of(program->module, program->instructions[i].origin);
    }
    if (collectives == 0) goto fail;
    TRY_OR_FAIL(program_graph(&self.graph, arena, program, error));
    TRY_OR_FAIL(program_latency(&self.latency, &self.live, program, &self.graph, error));
    if (sums < 2 && self.latency.awaited_count == 0) goto fail;
    self.leads = ARENA_ARRAY(arena, bool, count + 1);
    self.is_for_sum = ARENA_ARRAY(arena, bool, count + 1);
    self.is_beside = ARENA_ARRAY(arena, bool, count + 1);
    self.first_deferred = ARENA_ARRAY_RAW(arena, int32_t, count + 1);
    self.next_deferred = ARENA_ARRAY_RAW(arena, int32_t, count + 1);
    self.waiting = ARENA_ARRAY(arena, int32_t, count + 1);
    self.held = ARENA_ARRAY(arena, int32_t, count + 1);
    self.held_until = ARENA_ARRAY(arena, int32_t, count + 1);
    self.order = ARENA_ARRAY(arena, int32_t, count + 1);
    self.late_at = ARENA_ARRAY(arena, double, count + 1);
    self.there_at = ARENA_ARRAY(arena, double, count + 1);
    if (arena->failed) TRY_OR_FAIL(am_fail_memory(error, count));
    self.has_chain = self.latency.awaited_count > 0;
    for (int32_t i = 0; i < count; i++) self.first_deferred[i] = self.next_deferred[i] = -1;
    find_roles(&self);
    if (!self.has_chain) TRY_OR_FAIL(defer_recomputations(&self, error));
    if (self.has_chain) {
        /* The peak of the memory without early reductions. */
        const int32_t *time = find_times(&self, false);
        if (!time) TRY_OR_FAIL(am_fail_memory(error, self.graph.count));
        TRY_OR_FAIL(live_bytes_most(&self.most, &self.live, time, error));
    }
    if (self.has_chain) latency_front_pass(&self.front, &self.latency, -1);
    TRY_OR_FAIL(order_all(&self, error));
    bool is_changed = false;
    for (int32_t i = 0; i < count; i++) is_changed |= self.order[i] != i;
    status = is_changed ? program_relist(program, self.order, count, error) : AM_OK;
fail:
    arena_release(program->arena, mark);
    return status;
}
