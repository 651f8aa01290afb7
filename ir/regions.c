/* The work inside loops and conditionals.
 *
 * A loop does trips x (body + condition), nested loops multiply, and of a
 * conditional's branches the one with the most FLOPs counts, then the one that
 * moves most bytes. Every computation is analysed once:
 *
 * Element-wise instructions of one shape that feed one another are one launch,
 * as in the fusion of the entry (propagation/fuse.c): the level of a value is
 * the number of times that a path to it leaves one index space, and only what
 * is of one level can run in one launch. A chain reads what comes from outside
 * it (a broadcast in its small size), and writes what anybody else needs. So
 * the counter's increment and its comparison are a launch each: what a trip
 * costs by itself. Everything else is a launch of its own that reads its
 * operands and writes its result; slices read as much as they write, a
 * dynamic-update-slice works in the carried array and moves its update only.
 *
 * Memory is the largest sum of temporaries alive at once, walking a body in
 * order; the carried values are the loop's operands and not counted again.
 */
#include "ir/loops.h"

#include <string.h>

#include "ir/dataflow.h"
#include "ir/flops.h"

/* Computations that several loops mention are listed for each of them: rows in
 * proportion to the module, beyond which they are in the sums only. */
#define ALWAYS_WORKS          (1 << 16)
#define WORKS_PER_INSTRUCTION 4

/* More than that is not told apart: sums and prices stay finite. */
#define MOST_WORK  1e30
#define MOST_BYTES (INT64_MAX / 4)

typedef struct Body {
    bool is_done;
    int32_t first_row, row_count; /* in `rows`; of a nested region FLOPs and bytes are its sum */
    double flops, bytes;
    int64_t live_bytes;
} Body;

/* What is known of an instruction while its computation is analysed. */
typedef struct Node {
    int32_t level;
    int32_t taker;   /* element-wise user that it runs together with, or -1 */
    int32_t storage; /* whose memory its value is, or -1: outside's, or none */
    int32_t last;    /* last reader of what it stores */
    bool is_needed;  /* by somebody who reads it from memory */
    double flops, bytes;
} Node;

typedef struct Analyser {
    const IrModule *module;
    Arena scratch; /* bodies and rows */
    Arena frames;  /* nodes of one computation */
    Body *bodies;  /* [computation] */
    IrRegionWork *rows;
    int32_t row_count, row_capacity;
    IrLoops *loops;
    int32_t work_capacity;
    int32_t visits_left; /* rows that may still be looked at for the lists */
} Analyser;

static bool is_region(IrOpcode opcode) {
    return opcode == IR_WHILE || opcode == IR_CONDITIONAL;
}

/* Element-wise with memory of its own only where somebody else reads it. */
static bool is_chained(const IrInstruction *instruction) {
    return ir_is_elementwise(instruction->opcode) && instruction->opcode != IR_COPY &&
           instruction->shape.type != DTYPE_TUPLE;
}

/* What every chain reads in its own way: a stride of 0, a counter, a number. */
static bool is_cloned(const IrInstruction *instruction) {
    return instruction->opcode == IR_BROADCAST || instruction->opcode == IR_IOTA ||
           (instruction->opcode == IR_CONSTANT && ir_is_scalar(&instruction->shape));
}

/* What hands on memory or names it: nothing runs. */
static bool runs_nothing(IrOpcode opcode) {
    static const bool table[IR_OPCODE_COUNT + 1] = {
        [IR_PARAMETER] = true, [IR_CONSTANT] = true,       [IR_TUPLE] = true, [IR_GET_TUPLE_ELEMENT] = true,
        [IR_RESHAPE] = true,   [IR_BITCAST] = true,        [IR_COPY] = true,  [IR_OPT_BARRIER] = true,
        [IR_AFTER_ALL] = true, [IR_ADD_DEPENDENCY] = true,
    };
    return table[opcode];
}

static bool is_outside(IrOpcode opcode) {
    return opcode == IR_PARAMETER || opcode == IR_CONSTANT || opcode == IR_GET_TUPLE_ELEMENT;
}

static bool runs_together(const IrInstruction *producer, const IrInstruction *user) {
    return is_chained(producer) && is_chained(user) && ir_same_dimensions(&producer->shape, &user->shape);
}

static void find_level(const IrModule *module, Node *nodes, int32_t first, int32_t i) {
    const IrInstruction *instruction = &module->instructions[i];
    bool cloned = is_cloned(instruction);
    int32_t level = cloned || is_outside(instruction->opcode) ? -1 : 0;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k];
        bool inner = runs_together(&module->instructions[operand], instruction);
        bool stays = cloned || inner || instruction->opcode == IR_GET_TUPLE_ELEMENT;
        int32_t reached = nodes[operand - first].level + (stays ? 0 : 1);
        if (reached > level) level = reached;
    }
    nodes[i - first].level = level;
}

/* Who reads what from memory, and who runs together with whom. */
static void find_users(const IrModule *module, Node *nodes, const IrComputation *body) {
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *user = &module->instructions[i];
        find_level(module, nodes, body->first, i);
        nodes[i - body->first].taker = -1;
        for (int32_t k = 0; k < user->operand_count; k++) {
            const IrInstruction *producer = &module->instructions[user->operands[k]];
            Node *node = &nodes[user->operands[k] - body->first];
            if (is_cloned(producer) && is_chained(user)) continue;
            bool together = runs_together(producer, user) && node->level == nodes[i - body->first].level;
            if (!together) node->is_needed = true;
            else if (node->taker < 0) node->taker = i;
        }
    }
    nodes[body->root - body->first].is_needed = true;
}

static double bytes_of(const IrInstruction *instruction) {
    return (double)ir_shape_bytes(&instruction->shape);
}

static void add_chained(const IrModule *module, Node *nodes, int32_t first, int32_t i) {
    const IrInstruction *instruction = &module->instructions[i];
    Node *node = &nodes[i - first];
    node->flops += (double)ir_shape_elements(&instruction->shape);
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k];
        const IrInstruction *producer = &module->instructions[operand];
        if (runs_together(producer, instruction) && nodes[operand - first].level == node->level) continue;
        if (!is_cloned(producer)) node->bytes += bytes_of(producer);
        else if (producer->opcode == IR_BROADCAST && !is_cloned(&module->instructions[producer->operands[0]]))
            node->bytes += bytes_of(&module->instructions[producer->operands[0]]);
    }
    if (node->is_needed) node->bytes += bytes_of(instruction);
    if (node->taker >= 0) {
        nodes[node->taker - first].flops += node->flops;
        nodes[node->taker - first].bytes += node->bytes;
    }
}

static AmStatus add_operator(Analyser *self, Node *node, const IrInstruction *instruction, AmError *error) {
    const IrModule *module = self->module;
    ArenaMark mark = arena_mark(&self->frames);
    IrShape *shapes = ARENA_ARRAY(&self->frames, IrShape, instruction->operand_count + 1);
    if (!shapes) return am_fail_memory(error, instruction->operand_count);
    for (int32_t k = 0; k < instruction->operand_count; k++)
        shapes[k] = module->instructions[instruction->operands[k]].shape;
    node->flops = ir_flops(module, instruction, shapes, &instruction->shape);
    bool reads_a_part = instruction->opcode == IR_GATHER || instruction->opcode == IR_SLICE ||
                        instruction->opcode == IR_DYNAMIC_SLICE;
    bool in_place = instruction->opcode == IR_DYNAMIC_UPDATE_SLICE;
    if (reads_a_part) node->bytes = 2 * bytes_of(instruction);
    else if (in_place) node->bytes = (double)ir_shape_bytes(&shapes[1]);
    else node->bytes = bytes_of(instruction);
    for (int32_t k = reads_a_part || in_place ? 1 : 0; k < instruction->operand_count; k++)
        node->bytes += (double)ir_shape_bytes(&shapes[k]);
    arena_release(&self->frames, mark);
    return AM_OK;
}

/* Loops inside loops multiply beyond all numbers. */
static double bounded(double value) {
    return value < MOST_WORK ? value : MOST_WORK;
}

/* Trips of a loop for counting: one where they are unknown. */
static double counted_trips(const IrModule *module, int32_t loop) {
    int64_t trips = ir_loop_trips(module, loop);
    return trips < 0 ? 1 : (double)trips;
}

/* The branch that counts; -1 for a conditional without branches. */
static int32_t dearest_branch(const Analyser *self, const IrInstruction *conditional) {
    int32_t best = -1;
    for (int32_t k = 0; k < conditional->called_count; k++) {
        const Body *branch = &self->bodies[conditional->called[k]];
        const Body *dearest = best < 0 ? NULL : &self->bodies[best];
        if (!dearest || branch->flops > dearest->flops ||
            (branch->flops == dearest->flops && branch->bytes > dearest->bytes))
            best = conditional->called[k];
    }
    return best;
}

static AmStatus analyse(Analyser *self, int32_t computation, AmError *error);

/* Sums over the computations of a region, which are analysed before. */
static AmStatus add_region(Analyser *self, Node *node, int32_t i, int64_t *live_bytes, AmError *error) {
    const IrInstruction *instruction = &self->module->instructions[i];
    double times = instruction->opcode == IR_WHILE ? counted_trips(self->module, i) : 1;
    int32_t dearest = -1;
    for (int32_t k = 0; k < instruction->called_count; k++) TRY(analyse(self, instruction->called[k], error));
    if (instruction->opcode == IR_CONDITIONAL) dearest = dearest_branch(self, instruction);
    *live_bytes = 0;
    for (int32_t k = 0; k < instruction->called_count; k++) {
        const Body *body = &self->bodies[instruction->called[k]];
        if (body->live_bytes > *live_bytes) *live_bytes = body->live_bytes;
        if (dearest >= 0 && instruction->called[k] != dearest) continue;
        node->flops = bounded(node->flops + times * body->flops);
        node->bytes = bounded(node->bytes + times * body->bytes);
        if (dearest >= 0) dearest = INT32_MAX; /* counted; it may be named twice */
    }
    return AM_OK;
}

/* The value whose memory element k of `tuple` is (k < 0: of an array). */
static int32_t storage_of(const IrModule *module, const Node *nodes, int32_t first, int32_t value,
                          int64_t k) {
    for (int32_t depth = 0; depth < 16; depth++) {
        const IrInstruction *instruction = &module->instructions[value];
        if (k < 0) return nodes[value - first].storage;
        if (instruction->opcode == IR_OPT_BARRIER || instruction->opcode == IR_COPY ||
            instruction->opcode == IR_WHILE)
            value = instruction->operands[0];
        else if (instruction->opcode != IR_TUPLE) return nodes[value - first].storage;
        else if (k >= instruction->operand_count) return -1;
        else value = instruction->operands[k], k = -1;
    }
    return -1;
}

/* Fills in whose memory each value is and who reads it last. */
static void find_storage(const IrModule *module, Node *nodes, const IrComputation *body) {
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        Node *node = &nodes[i - body->first];
        IrOpcode opcode = instruction->opcode;
        bool in_place =
            opcode == IR_DYNAMIC_UPDATE_SLICE || opcode == IR_RESHAPE || opcode == IR_BITCAST ||
            (opcode == IR_BROADCAST && !node->is_needed) ||
            ((opcode == IR_COPY || opcode == IR_OPT_BARRIER) && instruction->shape.type != DTYPE_TUPLE);
        node->last = i;
        if (opcode == IR_GET_TUPLE_ELEMENT)
            node->storage = storage_of(module, nodes, body->first, instruction->operands[0],
                                       instruction->attributes->tuple_index);
        else if (in_place) node->storage = nodes[instruction->operands[0] - body->first].storage;
        else if (runs_nothing(opcode) || opcode == IR_WHILE || !node->is_needed) node->storage = -1;
        else node->storage = i;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k], source = nodes[operand - body->first].storage;
            if (source >= 0) nodes[source - body->first].last = i;
            const IrInstruction *tuple = &module->instructions[operand];
            if (opcode == IR_GET_TUPLE_ELEMENT) continue; /* who reads it reads the element */
            for (int32_t e = 0; tuple->opcode == IR_TUPLE && e < tuple->operand_count; e++) {
                source = nodes[tuple->operands[e] - body->first].storage;
                if (source >= 0) nodes[source - body->first].last = i;
            }
        }
    }
}

/* The most that is alive at once; inside[i]: what a region holds while it runs. */
static AmStatus find_live_bytes(Analyser *self, Body *result, Node *nodes, const IrComputation *body,
                                const int64_t *inside, AmError *error) {
    const IrModule *module = self->module;
    double *freed = ARENA_ARRAY(&self->frames, double, body->count + 1), alive = 0, most = 0;
    if (!freed) return am_fail_memory(error, (int64_t)body->count * 8);
    find_storage(module, nodes, body);
    for (int32_t n = 0; n < body->count; n++)
        if (nodes[n].storage == body->first + n)
            freed[nodes[n].last - body->first] += bytes_of(&module->instructions[body->first + n]);
    for (int32_t n = 0; n < body->count; n++) {
        if (nodes[n].storage == body->first + n) alive += bytes_of(&module->instructions[body->first + n]);
        if (alive + (double)inside[n] > most) most = alive + (double)inside[n];
        alive -= freed[n];
    }
    result->live_bytes = most < (double)MOST_BYTES ? (int64_t)most : MOST_BYTES;
    return AM_OK;
}

static AmStatus add_row(Analyser *self, Body *result, int32_t i, const Node *node, AmError *error) {
    ARENA_RESERVE(&self->scratch, self->rows, self->row_count, self->row_capacity);
    if (!self->rows) return am_fail_memory(error, (int64_t)self->row_count * (int64_t)sizeof *self->rows);
    self->rows[self->row_count++] = (IrRegionWork){i, 1, node->flops, node->bytes};
    result->flops += node->flops;
    result->bytes += node->bytes;
    return AM_OK;
}

static bool has_row(const IrInstruction *instruction, const Node *node) {
    if (runs_nothing(instruction->opcode)) return false;
    if (is_chained(instruction)) return node->taker < 0 && node->is_needed;
    return node->is_needed || !is_cloned(instruction);
}

static AmStatus analyse_body(Analyser *self, Body *result, const IrComputation *body, AmError *error) {
    const IrModule *module = self->module;
    Node *nodes = ARENA_ARRAY(&self->frames, Node, body->count + 1);
    int64_t *inside = ARENA_ARRAY(&self->frames, int64_t, body->count + 1);
    if (!nodes || !inside) return am_fail_memory(error, (int64_t)body->count * (int64_t)sizeof *nodes);
    for (int32_t n = 0; n < body->count; n++)
        if (is_region(module->instructions[body->first + n].opcode))
            TRY(add_region(self, &nodes[n], body->first + n, &inside[n], error));
    find_users(module, nodes, body);
    result->first_row = self->row_count;
    for (int32_t n = 0; n < body->count; n++) {
        int32_t i = body->first + n;
        const IrInstruction *instruction = &module->instructions[i];
        if (is_chained(instruction)) add_chained(module, nodes, body->first, i);
        else if (!runs_nothing(instruction->opcode) && !is_region(instruction->opcode))
            TRY(add_operator(self, &nodes[n], instruction, error));
        if (has_row(instruction, &nodes[n])) TRY(add_row(self, result, i, &nodes[n], error));
    }
    result->row_count = self->row_count - result->first_row;
    return find_live_bytes(self, result, nodes, body, inside, error);
}

/* A computation and what is nested in it; the canonical module bounds the nesting. */
static AmStatus analyse(Analyser *self, int32_t computation, AmError *error) {
    Body *result = &self->bodies[computation];
    if (result->is_done) return AM_OK;
    result->is_done = true;
    ArenaMark mark = arena_mark(&self->frames);
    TRY(analyse_body(self, result, &self->module->computations[computation], error));
    arena_release(&self->frames, mark);
    return AM_OK;
}

static AmStatus list_region(Analyser *self, int32_t region, double times, AmError *error);

/* Appends the rows of a computation that runs `times` times. */
static AmStatus list_body(Analyser *self, int32_t computation, double times, AmError *error) {
    const Body *body = &self->bodies[computation];
    IrLoops *loops = self->loops;
    for (int32_t r = body->first_row; r < body->first_row + body->row_count; r++) {
        IrRegionWork work = self->rows[r];
        if (--self->visits_left < 0) return AM_OK;
        if (is_region(self->module->instructions[work.instruction].opcode)) {
            TRY(list_region(self, work.instruction, times, error));
            continue;
        }
        ARENA_RESERVE(&self->scratch, loops->works, loops->work_count, self->work_capacity);
        if (!loops->works) return am_fail_memory(error, loops->work_count);
        work.times = times;
        loops->works[loops->work_count++] = work;
    }
    return AM_OK;
}

static AmStatus list_region(Analyser *self, int32_t region, double times, AmError *error) {
    const IrInstruction *instruction = &self->module->instructions[region];
    if (instruction->opcode == IR_CONDITIONAL) {
        int32_t dearest = dearest_branch(self, instruction);
        return dearest < 0 ? AM_OK : list_body(self, dearest, times, error);
    }
    double trips = counted_trips(self->module, region);
    for (int32_t k = 0; k < instruction->called_count; k++)
        TRY(list_body(self, instruction->called[k], bounded(times * trips), error));
    return AM_OK;
}

static AmStatus find_regions(Analyser *self, int32_t entry_count, AmError *error) {
    IrLoops *loops = self->loops;
    for (int32_t i = 0; i < entry_count; i++) {
        if (!is_region(self->module->instructions[i].opcode)) continue;
        IrRegion *region = &loops->regions[loops->region_count++];
        Node sums = {0};
        region->instruction = i;
        region->first_work = loops->work_count;
        TRY(add_region(self, &sums, i, &region->live_bytes, error));
        TRY(list_region(self, i, 1, error));
        region->work_count = loops->work_count - region->first_work;
        region->flops = sums.flops;
        region->bytes = sums.bytes;
    }
    return AM_OK;
}

AmStatus ir_find_regions(IrLoops *loops, IrModule *module, AmError *error) {
    int32_t count = 0, entry_count = module->computations[module->entry].count;
    for (int32_t i = 0; i < entry_count; i++) count += is_region(module->instructions[i].opcode);
    if (count == 0) return AM_OK;
    Analyser self = {.module = module, .loops = loops};
    int64_t limit = ALWAYS_WORKS + (int64_t)WORKS_PER_INSTRUCTION * module->instruction_count;
    self.visits_left = limit < INT32_MAX / 2 ? (int32_t)limit : INT32_MAX / 2;
    self.bodies = ARENA_ARRAY(&self.scratch, Body, module->computation_count);
    loops->regions = ARENA_ARRAY(&module->arena, IrRegion, count);
    AmStatus status = self.bodies && loops->regions ? AM_OK : am_fail_memory(error, count);
    if (status == AM_OK) status = find_regions(&self, entry_count, error);
    if (status == AM_OK && loops->work_count > 0) {
        const IrRegionWork *listed = loops->works; /* in the scratch arena */
        loops->works = ARENA_ARRAY(&module->arena, IrRegionWork, loops->work_count);
        if (!loops->works) status = am_fail_memory(error, loops->work_count);
        else memcpy(loops->works, listed, sizeof *listed * (size_t)loops->work_count);
    }
    arena_free(&self.frames);
    arena_free(&self.scratch);
    return status;
}

const IrRegion *ir_region_of(const IrModule *module, int32_t instruction) {
    if (!module->loops) return NULL;
    const IrRegion *regions = module->loops->regions;
    int32_t low = 0, high = module->loops->region_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (regions[middle].instruction < instruction) low = middle + 1;
        else high = middle;
    }
    return low < module->loops->region_count && regions[low].instruction == instruction ? &regions[low]
                                                                                        : NULL;
}
