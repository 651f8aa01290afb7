/* Fusion of element-wise chains, for prices and both back ends.
 *
 * The level of an instruction is the number of times that a path to it changes the index space or
 * passes an operator that cannot be fused. Connected element-wise instructions of one level and
 * shape form a fusion. A path that left the group and returned would have raised the level, so that
 * a group can always run as one step. Values that depend on parameters alone have the level of
 * their users. Broadcasts, iotas and scalar constants are not members: every fusion reads them in
 * its own form (a stride of 0, a counter, a number), and they need memory only if another operator
 * reads them whole.
 *
 * A fusion's result that later fusions read may be cheaper to recompute there than to read: a
 * conversion of 16-bit scores, a quotient that only the gradient needs. Such an instruction is
 * recomputed from its sources in every fusion that reads it, and needs memory only if another
 * operator reads it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/union_find.h"
#include "lowering/passes/accumulate.h"
#include "lowering/passes/instruction_order.h"
#include "lowering/passes/passes.h"
#include "lowering/passes/places.h"

typedef enum Form { FORM_PLAIN, FORM_ELEMENT_WISE, FORM_CLONED } Form;

/* Strides that some value has been read with; see input_strides(). */
typedef struct KnownStrides {
    const int64_t *dimensions;     /* of the value */
    const IrAttributes *broadcast; /* that it passes, or NULL */
    int32_t value_rank, rank;      /* of the value, and of the index space */
    const int64_t *strides;        /* [rank]; NULL: the place is free */
} KnownStrides;

enum { KNOWN_STRIDES = 64 };

typedef struct Fuser {
    Program *program;
    Arena *arena;   /* of the program */
    Arena *scratch; /* freed after the pass */
    int32_t count;
    ProgramGraph graph;
    bool *inner;            /* [edge of the graph]: inside one index space */
    uint8_t *form;          /* [instruction]: Form */
    const bool *unused;     /* [instruction]: its result has no readers (places.h); NULL: none */
    const int32_t *kernel;  /* [instruction]: of a framework, that it is part of; -1: none. NULL: none is */
    int32_t *level;         /* [instruction] */
    int32_t *leader;        /* [instruction]: smallest member of its group */
    int32_t *size;          /* [leader]: members */
    bool *needed;           /* [value]: takes memory, as somebody outside its step reads it */
    int32_t *slot;          /* [value]: its slot in the fusion being built, -1 elsewhere */
    int32_t *constant_slot; /* [instruction]: also for cloned constants, iotas, recomputed values */
    bool *wanted;           /* [value]: is in memory, as far as is known */
    bool *is_recomputed;    /* [instruction]: other fusions make its result themselves */
    bool *is_used;          /* [instruction]: by its own fusion */
    KnownStrides known_strides[KNOWN_STRIDES]; /* by where the dimensions lie */
} Fuser;

static bool same_dimensions(const IrShape *a, const IrShape *b) {
    return a->rank == b->rank &&
           (a->rank == 0 || a->dimensions == b->dimensions ||
            memcmp(a->dimensions, b->dimensions, sizeof(int64_t) * (size_t)a->rank) == 0);
}

static const IrShape *value_shape(const Fuser *self, int32_t value) {
    return &self->program->values[value].shape;
}

static int32_t producer_of(const Fuser *self, int32_t value) {
    return self->graph.producer[value];
}

static Form form_of(const Fuser *self, const ProgramInstruction *instruction) {
    if (instruction->kind != PROGRAM_COMPUTE) return FORM_PLAIN;
    const IrShape *shape = value_shape(self, instruction->first_result);
    switch (instruction->opcode) {
    case IR_BROADCAST:
    case IR_IOTA: return FORM_CLONED;
    case IR_CONSTANT: return shape->rank == 0 ? FORM_CLONED : FORM_PLAIN;
    default: break;
    }
    if (!ir_is_elementwise(instruction->opcode) || instruction->operand_count > 3) return FORM_PLAIN;
    for (int32_t k = 0; k < instruction->operand_count; k++) {
        const IrShape *operand = value_shape(self, instruction->operands[k]);
        if (operand->rank != 0 && !same_dimensions(operand, shape)) return FORM_PLAIN;
        if (instruction->opcode == IR_BITCAST_CONVERT && operand->rank != shape->rank) return FORM_PLAIN;
    }
    return FORM_ELEMENT_WISE;
}

/* Returns whether i recomputes values of the forward pass from `producer`: a fusion of both would
 * keep i's results until the backward pass. */
static bool is_recomputed_from(const Fuser *self, int32_t producer, int32_t i) {
    const Program *program = self->program;
    const IrPhase *phases = program->roles->phases;
    return phases && phases[program->instructions[i].origin] == IR_PHASE_RECOMPUTED &&
           phases[program->instructions[producer].origin] == IR_PHASE_FORWARD;
}

/* Instructions of different kernels of a framework are not fused. */
static void find_kernels(Fuser *self) {
    const Program *program = self->program;
    int32_t *kernel = ARENA_ARRAY(self->scratch, int32_t, self->count + 1);
    bool is_any = false;
    for (int32_t i = 0; i < self->count && kernel; i++) {
        /* A kernel's name is such as "fused/kernel/12", with its number (cost/operator/fused_kernels.h). */
        const char *name = program->module->instructions[program->instructions[i].origin].op_name;
        const char *number = strncmp(name, "fused/", strlen("fused/")) == 0 ? strrchr(name, '/') : NULL;
        kernel[i] = number ? (int32_t)strtol(number + 1, NULL, 10) : -1;
        is_any |= kernel[i] >= 0;
    }
    self->kernel = is_any ? kernel : NULL;
}

static void find_levels(Fuser *self) {
    int32_t edge = 0;
    for (int32_t i = 0; i < self->count; i++) {
        const ProgramInstruction *instruction = &self->program->instructions[i];
        Form form = self->unused && self->unused[i] ? FORM_CLONED : form_of(self, instruction);
        self->form[i] = (uint8_t)form;
        /* Clones of constants weigh nothing: their users start at level 0. */
        int32_t level = form == FORM_CLONED ? -1 : 0;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t value = instruction->operands[k], producer = producer_of(self, value);
            if (producer < 0) continue;
            bool inner =
                form == FORM_ELEMENT_WISE && self->form[producer] == FORM_ELEMENT_WISE &&
                same_dimensions(value_shape(self, value), value_shape(self, instruction->first_result)) &&
                !is_recomputed_from(self, producer, i) &&
                (!self->kernel || self->kernel[producer] == self->kernel[i]);
            self->inner[edge++] = inner;
            int32_t step = form == FORM_CLONED || inner ? 0 : 1;
            if (self->level[producer] + step > level) level = self->level[producer] + step;
        }
        for (; edge < self->graph.first[i + 1]; edge++) { /* a transfer after another, a joined loop */
            int32_t above = self->level[self->graph.producers[edge]] + 1;
            self->inner[edge] = false;
            if (above > level) level = above;
        }
        self->level[i] = level;
    }
}

/* Returns the level up to which an operand is to be read: a parameter's new value overwrites its old one. */
static int32_t level_of_update(const Fuser *self, const int32_t *update_of, int32_t value) {
    int32_t update = update_of[value];
    if (update < 0 || value_shape(self, value)->rank == 0) return INT32_MAX;
    int32_t producer = producer_of(self, self->program->execution.updates[update].value);
    if (producer < 0) return INT32_MAX;
    return self->form[producer] == FORM_ELEMENT_WISE ? self->level[producer] : self->level[producer] - 1;
}

/* Raises the levels of values that depend on parameters and constants alone, which could run at any
 * time: to the highest level that their users allow, so that they are computed at their use (an
 * optimizer's decayed mean, a mask). */
static AmStatus raise_levels(Fuser *self, AmError *error) {
    const Program *program = self->program;
    int32_t *bound = ARENA_ARRAY(self->scratch, int32_t, self->count + 1);
    int32_t *update_of = ARENA_ARRAY(self->scratch, int32_t, program->value_count + 1);
    bool *is_free = ARENA_ARRAY(self->scratch, bool, self->count + 1);
    if (self->scratch->failed) return am_fail_memory(error, self->count);
    for (int32_t v = 0; v < program->value_count; v++) update_of[v] = -1;
    for (int32_t k = 0; k < program->execution.update_count; k++)
        update_of[program->parameters[program->execution.updates[k].parameter]] = k;
    for (int32_t i = 0; i < self->count; i++) {
        bound[i] = INT32_MAX;
        is_free[i] = self->form[i] != FORM_PLAIN || program->instructions[i].opcode == IR_CONSTANT;
        for (int32_t e = self->graph.first[i]; e < self->graph.first[i + 1]; e++)
            is_free[i] = is_free[i] && is_free[self->graph.producers[e]];
    }
    for (int32_t i = self->count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &program->instructions[i];
        for (int32_t k = 0; is_free[i] && k < instruction->operand_count; k++) {
            int32_t last = level_of_update(self, update_of, instruction->operands[k]);
            if (last < bound[i]) bound[i] = last;
        }
        if (is_free[i] && bound[i] != INT32_MAX && bound[i] > self->level[i]) self->level[i] = bound[i];
        for (int32_t e = self->graph.first[i]; e < self->graph.first[i + 1]; e++) {
            int32_t producer = self->graph.producers[e];
            int32_t below = self->level[i] - (self->form[i] == FORM_CLONED || self->inner[e] ? 0 : 1);
            if (below < bound[producer]) bound[producer] = below;
        }
    }
    return AM_OK;
}

static void form_groups(Fuser *self) {
    for (int32_t i = 0; i < self->count; i++) self->leader[i] = i, self->size[i] = 1;
    for (int32_t i = 0; i < self->count; i++) {
        for (int32_t e = self->graph.first[i]; e < self->graph.first[i + 1]; e++) {
            int32_t producer = self->graph.producers[e];
            if (!self->inner[e] || self->level[producer] != self->level[i]) continue;
            int32_t a = union_find_root(self->leader, producer), b = union_find_root(self->leader, i);
            if (a == b) continue;
            int32_t first = a < b ? a : b, second = a < b ? b : a;
            self->leader[second] = first;
            self->size[first] += self->size[second];
        }
    }
    for (int32_t i = 0; i < self->count; i++) self->leader[i] = union_find_root(self->leader, i);
}

/* How a fusion reads operand `value` that comes from outside: a cloned
 * constant or iota (`clone`), or a value in memory with the strides that its
 * broadcast gives it. */
typedef struct Outside {
    int32_t clone; /* instruction, or -1 */
    int32_t value;
    const ProgramInstruction *broadcast; /* or NULL */
} Outside;

static Outside outside_of(const Fuser *self, int32_t value) {
    Outside outside = {.clone = -1, .value = value};
    int32_t producer = producer_of(self, value);
    if (producer < 0 || self->form[producer] != FORM_CLONED) return outside;
    const ProgramInstruction *instruction = &self->program->instructions[producer];
    if (instruction->opcode != IR_BROADCAST) {
        outside.clone = producer;
        return outside;
    }
    outside.value = instruction->operands[0];
    outside.broadcast = instruction;
    producer = producer_of(self, outside.value);
    if (producer >= 0 && self->program->instructions[producer].opcode == IR_CONSTANT &&
        self->form[producer] == FORM_CLONED)
        outside.clone = producer;
    return outside;
}

/* ---- recomputed values ---- */

enum { MOST_RECOMPUTED = 8, NEAR = 32 /* instructions */ };

/* The cost of recomputing an instruction in another fusion. */
typedef struct RecomputationCost {
    int32_t values[MOST_RECOMPUTED], value_count;             /* that are read */
    int32_t instructions[MOST_RECOMPUTED], instruction_count; /* that are recomputed */
    double bytes;                                             /* of the values */
    bool is_possible;
} RecomputationCost;

/* Returns the bytes of a value relative to others of its fusion. Shards of different sizes count as equal;
 * otherwise devices would get different programs. */
static double value_bytes(const Fuser *self, int32_t value) {
    const IrShape *shape = value_shape(self, value);
    return (double)(self->program->is_uneven ? dtype_bytes(shape->type) : ir_shape_bytes(shape));
}

static bool is_wanted(const Fuser *self, int32_t i) {
    return self->wanted[self->program->instructions[i].first_result];
}

/* Returns whether a value stays unchanged until late readers: it is no parameter, which takes its
 * new value, and no reader overwrites it. */
static bool is_lasting(const Fuser *self, int32_t value) {
    int32_t producer = producer_of(self, value);
    for (int32_t u = producer < 0 ? 0 : self->graph.first_user[producer];
         producer >= 0 && u < self->graph.first_user[producer + 1]; u++) {
        const ProgramInstruction *user = &self->program->instructions[self->graph.users[u]];
        bool is_product = ir_is_product(user->opcode);
        if (user->opcode == IR_DYNAMIC_UPDATE_SLICE || user->opcode == IR_SCATTER ||
            user->regions.count > 0 || (is_product && user->operand_count > 2))
            return false;
    }
    return producer >= 0;
}

static void read_value(const Fuser *self, RecomputationCost *cost, int32_t value) {
    for (int32_t k = 0; k < cost->value_count; k++)
        if (cost->values[k] == value) return;
    if (!is_lasting(self, value) || cost->value_count == MOST_RECOMPUTED) cost->is_possible = false;
    else cost->values[cost->value_count++] = value;
    cost->bytes += value_bytes(self, value);
}

/* Follows the sources of instruction i to values that are in memory anyway. */
static void follow_sources(const Fuser *self, RecomputationCost *cost, int32_t i) {
    const ProgramInstruction *instruction = &self->program->instructions[i];
    if (!ir_opcode_has(instruction->opcode, FACT_RECOMPUTABLE) || cost->instruction_count == MOST_RECOMPUTED)
        cost->is_possible = false;
    else cost->instructions[cost->instruction_count++] = i;
    for (int32_t k = 0; k < instruction->operand_count && cost->is_possible; k++) {
        const Outside outside = outside_of(self, instruction->operands[k]);
        if (outside.clone >= 0) continue;
        int32_t producer = producer_of(self, outside.value);
        bool is_inside =
            !outside.broadcast && producer >= 0 && self->form[producer] == FORM_ELEMENT_WISE &&
            same_dimensions(value_shape(self, outside.value), value_shape(self, instruction->first_result));
        if (is_inside && !is_wanted(self, producer)) follow_sources(self, cost, producer);
        else read_value(self, cost, outside.value);
    }
}

/* Counts the other fusions that read i's result; `*is_near`: none is far after it. */
static int32_t count_readers(const Fuser *self, int32_t i, bool *is_near) {
    int32_t count = 0, before = -1;
    *is_near = true;
    for (int32_t u = self->graph.first_user[i]; u < self->graph.first_user[i + 1]; u++) {
        int32_t user = self->graph.users[u];
        if (self->form[user] != FORM_ELEMENT_WISE || self->leader[user] == self->leader[i]) continue;
        if (!same_dimensions(value_shape(self, self->program->instructions[user].first_result),
                             value_shape(self, self->program->instructions[i].first_result)))
            return 0;
        count += self->leader[user] != before;
        before = self->leader[user];
        *is_near &= user - i <= NEAR;
    }
    return count;
}

/* Chooses the recomputed values, from the last to the first, so that all uses of a value's sources
 * are known. A value in memory is recomputed only if it is read soon, since its operands live until
 * then. */
static AmStatus choose_recomputed(Fuser *self, AmError *error) {
    self->wanted = ARENA_ARRAY(self->scratch, bool, self->program->value_count + 1);
    if (!self->wanted) return am_fail_memory(error, self->program->value_count);
    /* Marks values that other steps than fusions read, also through a broadcast, and outputs. */
    const Program *program = self->program;
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) self->wanted[program->outputs[k]] = true;
    for (int32_t i = self->count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &program->instructions[i];
        if (self->form[i] == FORM_CLONED && !is_wanted(self, i)) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t value = instruction->operands[k];
            if (self->form[i] == FORM_ELEMENT_WISE) {
                const Outside outside = outside_of(self, value);
                bool is_whole =
                    same_dimensions(value_shape(self, value), value_shape(self, instruction->first_result));
                if (outside.clone >= 0 || (!outside.broadcast && is_whole)) continue;
                value = outside.value;
            }
            self->wanted[value] = true;
        }
    }
    /* Values that are too expensive to recompute are in memory, so that others may be made of them. */
    for (int32_t i = 0; i < self->count && self->program->execution.fuses_rows; i++) {
        bool is_near;
        if (self->form[i] == FORM_ELEMENT_WISE &&
            !ir_opcode_has(self->program->instructions[i].opcode, FACT_RECOMPUTABLE) &&
            count_readers(self, i, &is_near) > 0)
            self->wanted[self->program->instructions[i].first_result] = true;
    }
    for (int32_t i = self->count - 1; i >= 0; i--) {
        bool is_near;
        if (self->form[i] != FORM_ELEMENT_WISE || self->is_recomputed[i]) continue;
        if (self->kernel && self->kernel[i] >= 0) continue;
        int32_t value = self->program->instructions[i].first_result;
        int32_t readers = count_readers(self, i, &is_near);
        if (readers == 0 || value_shape(self, value)->rank == 0) continue;
        RecomputationCost cost = {.is_possible = true};
        follow_sources(self, &cost, i);
        double kept = value_bytes(self, value) * (readers + !is_wanted(self, i));
        bool is_better = cost.is_possible && cost.bytes * readers < kept;
        if (is_better && (is_near || !is_wanted(self, i))) {
            for (int32_t k = 0; k < cost.instruction_count; k++)
                self->is_recomputed[cost.instructions[k]] = true;
            for (int32_t k = 0; k < cost.value_count; k++) self->wanted[cost.values[k]] = true;
        } else {
            self->wanted[value] = true;
        }
    }
    return AM_OK;
}

/* Returns whether the fusion of `leader` makes what another one makes, too. */
static bool recomputes(const Fuser *self, int32_t leader, int32_t producer) {
    return producer >= 0 && self->leader[producer] != leader && self->is_recomputed[producer];
}

/* Marks the values that the fusion of `leader` reads or recomputes. */
static void mark_read(Fuser *self, int32_t leader, int32_t value) {
    int32_t producer = producer_of(self, value);
    if (producer >= 0 && self->leader[producer] == leader) {
        self->is_used[producer] = true;
    } else if (recomputes(self, leader, producer)) {
        const ProgramInstruction *instruction = &self->program->instructions[producer];
        for (int32_t k = 0; k < instruction->operand_count; k++)
            mark_read(self, leader, instruction->operands[k]);
    } else {
        const Outside outside = outside_of(self, value);
        if (outside.clone < 0) self->needed[outside.value] = true;
    }
}

/* Returns whether a member of a fusion has no readers left. */
static bool is_left_out(const Fuser *self, int32_t i) {
    return self->form[i] == FORM_ELEMENT_WISE && !self->is_used[i] &&
           !self->needed[self->program->instructions[i].first_result];
}

/* Marks the values that steps need in memory, from the last step to the first. */
static void mark_needed(Fuser *self, const int32_t *order) {
    Program *program = self->program;
    for (int32_t k = 0; k < program->roles->output_count; k++)
        if (program->outputs[k] >= 0) self->needed[program->outputs[k]] = true;
    for (int32_t place = self->count - 1; place >= 0; place--) {
        int32_t i = order[place];
        const ProgramInstruction *instruction = &program->instructions[i];
        if (self->form[i] == FORM_CLONED && !self->needed[instruction->first_result]) continue;
        if (is_left_out(self, i)) continue;
        for (int32_t k = 0; k < program_operands_read(instruction); k++) {
            int32_t value = instruction->operands[k], producer = producer_of(self, value);
            if (instruction->loop.unset && instruction->loop.unset[k] && producer >= 0 &&
                self->form[producer] == FORM_CLONED)
                continue; /* zeros without readers */
            if (self->form[i] != FORM_ELEMENT_WISE) self->needed[value] = true;
            else mark_read(self, self->leader[i], value);
        }
    }
}

/* Strides with which the index space (result dimensions) walks a value that is
 * row-major in its own shape: directly, broadcast, or as a scalar. Values whose dimensions are the same
 * memory are read alike. */
static const int64_t *input_strides(Fuser *self, const Outside *outside, int32_t rank) {
    const IrShape *shape = value_shape(self, outside->value);
    const IrAttributes *broadcast = outside->broadcast ? outside->broadcast->attributes : NULL;
    uint64_t place = hash_combine((uintptr_t)shape->dimensions, (uintptr_t)broadcast) % KNOWN_STRIDES;
    KnownStrides *known = &self->known_strides[place];
    if (known->strides && known->dimensions == shape->dimensions && known->broadcast == broadcast &&
        known->value_rank == shape->rank && known->rank == rank)
        return known->strides;
    int64_t *strides = ARENA_ARRAY(self->arena, int64_t, rank + 1), step = 1;
    if (!strides) return NULL;
    for (int32_t d = shape->rank - 1; d >= 0; d--) {
        int64_t target = broadcast ? broadcast->dimensions[d] : d;
        strides[target] = shape->dimensions[d] == 1 ? 0 : step;
        step *= shape->dimensions[d];
    }
    *known = (KnownStrides){shape->dimensions, broadcast, shape->rank, rank, strides};
    return strides;
}

/* The fusion being built; its arrays serve one fusion after the other. */
typedef struct FusionDraft {
    ProgramFusion fusion;
    ProgramFusionInput *inputs;
    ProgramFusionOp *ops;
    int32_t *clones; /* [clone_count] instructions that are operators of this fusion too */
    int32_t input_capacity, op_capacity, clone_capacity, clone_count;
} FusionDraft;

static int32_t add_input(Fuser *self, FusionDraft *draft, const Outside *outside) {
    const int64_t *strides = input_strides(self, outside, draft->fusion.rank);
    if (!strides) return 0;
    size_t bytes = sizeof(int64_t) * (size_t)draft->fusion.rank;
    for (int32_t k = 0; k < draft->fusion.input_count; k++) {
        const ProgramFusionInput *input = &draft->inputs[k];
        if (input->value != outside->value) continue;
        if (input->strides == strides || memcmp(input->strides, strides, bytes) == 0) return k;
    }
    ARENA_RESERVE(self->arena, draft->inputs, draft->fusion.input_count, draft->input_capacity);
    if (self->arena->failed) return 0;
    draft->inputs[draft->fusion.input_count] =
        (ProgramFusionInput){.value = outside->value, .strides = strides};
    return draft->fusion.input_count++;
}

/* Appends an operator and returns its slot. While inputs are still being added, operators are counted from 0
 * and have negative slots: slot ~k is operator k. */
static int32_t add_op(Fuser *self, FusionDraft *draft, const ProgramFusionOp *op) {
    ARENA_RESERVE(self->arena, draft->ops, draft->fusion.op_count, draft->op_capacity);
    if (self->arena->failed) return ~0;
    draft->ops[draft->fusion.op_count] = *op;
    return ~draft->fusion.op_count++;
}

static ProgramFusionOp member_op(const Fuser *self, int32_t i) {
    const ProgramInstruction *instruction = &self->program->instructions[i];
    return (ProgramFusionOp){.opcode = instruction->opcode,
                             .type = value_shape(self, instruction->first_result)->type,
                             .operand_count = instruction->operand_count,
                             .attributes = instruction->attributes,
                             .origin = instruction->origin};
}

static int32_t add_clone(Fuser *self, FusionDraft *draft, int32_t i) {
    if (self->constant_slot[i] != 0) return self->constant_slot[i];
    const ProgramInstruction *instruction = &self->program->instructions[i];
    ProgramFusionOp op = {.opcode = instruction->opcode,
                          .type = value_shape(self, instruction->first_result)->type,
                          .attributes = instruction->attributes,
                          .literal = instruction->compute.literal,
                          .origin = instruction->origin};
    if (instruction->opcode == IR_IOTA && instruction->compute.shard)
        op.iota_start = instruction->compute.shard->start[instruction->attributes->dimensions[0]];
    ARENA_RESERVE(self->arena, draft->clones, draft->clone_count, draft->clone_capacity);
    if (self->arena->failed) return ~0;
    draft->clones[draft->clone_count++] = i;
    return self->constant_slot[i] = add_op(self, draft, &op);
}

/* Returns the slot of a value in the fusion of `leader`: a member, recomputed, or read. */
static int32_t operand_slot(Fuser *self, FusionDraft *draft, int32_t leader, int32_t value);

static int32_t add_recomputed(Fuser *self, FusionDraft *draft, int32_t leader, int32_t i) {
    const ProgramInstruction *instruction = &self->program->instructions[i];
    if (self->constant_slot[i] != 0) return self->constant_slot[i];
    ProgramFusionOp op = member_op(self, i);
    for (int32_t k = 0; k < instruction->operand_count; k++)
        op.operands[k] = operand_slot(self, draft, leader, instruction->operands[k]);
    ARENA_RESERVE(self->arena, draft->clones, draft->clone_count, draft->clone_capacity);
    if (self->arena->failed) return ~0;
    draft->clones[draft->clone_count++] = i;
    return self->constant_slot[i] = add_op(self, draft, &op);
}

static int32_t operand_slot(Fuser *self, FusionDraft *draft, int32_t leader, int32_t value) {
    int32_t producer = producer_of(self, value);
    if (producer >= 0 && self->leader[producer] == leader) return self->slot[value];
    if (recomputes(self, leader, producer)) return add_recomputed(self, draft, leader, producer);
    const Outside outside = outside_of(self, value);
    return outside.clone >= 0 ? add_clone(self, draft, outside.clone) : add_input(self, draft, &outside);
}

static int32_t final_slot(const FusionDraft *draft, int32_t slot) {
    return slot < 0 ? draft->fusion.input_count + ~slot : slot;
}

static AmStatus build_fusion(Fuser *self, FusionDraft *draft, const int32_t *members, int32_t count,
                             AmError *error) {
    Program *program = self->program;
    const IrShape *space = value_shape(self, program->instructions[members[0]].first_result);
    ProgramFusion *fusion = &draft->fusion;
    *fusion = (ProgramFusion){
        .rank = space->rank, .dimensions = space->dimensions, .elements = ir_shape_elements(space)};
    draft->clone_count = 0;
    int32_t needed = 0;
    for (int32_t m = 0; m < count; m++)
        needed += self->needed[program->instructions[members[m]].first_result];
    int32_t *output_slots = ARENA_ARRAY(self->arena, int32_t, needed);
    int32_t *output_values = ARENA_ARRAY(self->arena, int32_t, needed);
    if (self->arena->failed) return am_fail_memory(error, count);
    for (int32_t m = 0; m < count; m++) {
        const ProgramInstruction *instruction = &program->instructions[members[m]];
        int32_t result = instruction->first_result;
        if (is_left_out(self, members[m])) {
            program->values[result].kind = PROGRAM_VALUE_INTERNAL;
            continue;
        }
        ProgramFusionOp op = member_op(self, members[m]);
        for (int32_t k = 0; k < instruction->operand_count; k++)
            op.operands[k] = operand_slot(self, draft, self->leader[members[m]], instruction->operands[k]);
        self->slot[result] = add_op(self, draft, &op);
        if (self->needed[result]) {
            output_values[fusion->output_count] = result;
            output_slots[fusion->output_count++] = self->slot[result];
        } else {
            program->values[result].kind = PROGRAM_VALUE_INTERNAL;
        }
    }
    if (self->arena->failed) return am_fail_memory(error, count);
    if (fusion->op_count == 0) return AM_OK; /* all of it is recomputed elsewhere */
    for (int32_t k = 0; k < fusion->op_count; k++)
        for (int32_t o = 0; o < draft->ops[k].operand_count; o++)
            draft->ops[k].operands[o] = final_slot(draft, draft->ops[k].operands[o]);
    for (int32_t k = 0; k < fusion->output_count; k++) output_slots[k] = final_slot(draft, output_slots[k]);
    for (int32_t k = 0; k < draft->clone_count; k++) self->constant_slot[draft->clones[k]] = 0;
    ProgramFusionInput *inputs = ARENA_ARRAY(self->arena, ProgramFusionInput, fusion->input_count);
    ProgramFusionOp *ops = ARENA_ARRAY(self->arena, ProgramFusionOp, fusion->op_count);
    if (self->arena->failed) return am_fail_memory(error, count);
    for (int32_t k = 0; k < fusion->input_count; k++) inputs[k] = draft->inputs[k];
    for (int32_t k = 0; k < fusion->op_count; k++) ops[k] = draft->ops[k];
    fusion->inputs = inputs;
    fusion->ops = ops;
    fusion->output_slots = output_slots;
    fusion->output_values = output_values;
    program->execution.fusions[program->execution.fusion_count] = *fusion;
    program->execution.steps[program->execution.step_count++] =
        (ProgramStep){.instruction = -1, .fusion = program->execution.fusion_count++};
    return AM_OK;
}

static AmStatus build_steps(Fuser *self, const int32_t *order, AmError *error) {
    Program *program = self->program;
    int32_t fusions = 0;
    for (int32_t i = 0; i < self->count; i++)
        fusions += self->leader[i] == i && self->form[i] == FORM_ELEMENT_WISE;
    FusionDraft draft = {0};
    program->execution.fusions = ARENA_ARRAY(self->arena, ProgramFusion, fusions);
    program->execution.steps = ARENA_ARRAY(self->arena, ProgramStep, self->count + 1);
    if (self->arena->failed) return am_fail_memory(error, self->count);
    for (int32_t place = 0; place < self->count;) {
        int32_t i = order[place];
        const ProgramInstruction *instruction = &program->instructions[i];
        int32_t together = self->size[i];
        if (self->form[i] == FORM_ELEMENT_WISE) {
            TRY(build_fusion(self, &draft, &order[place], together, error));
        } else if (self->form[i] == FORM_CLONED && !self->needed[instruction->first_result]) {
            program->values[instruction->first_result].kind = PROGRAM_VALUE_INTERNAL;
        } else if (!program_is_view(instruction)) {
            program->execution.steps[program->execution.step_count++] =
                (ProgramStep){.instruction = i, .fusion = -1};
        }
        place += self->form[i] == FORM_ELEMENT_WISE ? together : 1;
    }
    return AM_OK;
}

/* Moves joined loops directly after the first of them: all that they read comes before. */
static void join_loops(Program *program) {
    for (int32_t s = 0; s < program->execution.step_count; s++)
        for (int32_t k = 1; k < program_steps_together(program, s); k++) {
            int32_t from = s + k;
            while (program->execution.steps[from].instruction != program->execution.steps[s].instruction + k)
                from++;
            ProgramStep step = program->execution.steps[from];
            memmove(&program->execution.steps[s + k + 1], &program->execution.steps[s + k],
                    sizeof step * (size_t)(from - s - k));
            program->execution.steps[s + k] = step;
        }
}

/* Removes the groups of sums that were folded into products. */
static AmStatus accumulate_products(Fuser *self, AmError *error) {
    bool *taken;
    TRY(program_accumulate_products(&taken, self->program, self->leader, self->size, error));
    if (!taken) return AM_OK;
    for (int32_t i = 0; i < self->count; i++)
        if (taken[i]) self->form[i] = FORM_PLAIN;
    return program_graph(&self->graph, self->scratch, self->program, error);
}

AmStatus program_fuse(Program *program, AmError *error) {
    Arena scratch = {0};
    AmStatus status = AM_OK;
    int32_t count = program->instruction_count;
    bool *unused;
    TRY_OR_FAIL(program_find_places(program, error));
    TRY_OR_FAIL(program_find_unset(program, error));
    TRY_OR_FAIL(program_unused_indices(&unused, program, error));
    Fuser self = {.program = program,
                  .arena = program->arena,
                  .scratch = &scratch,
                  .count = count,
                  .form = ARENA_ARRAY(&scratch, uint8_t, count + 1),
                  .unused = unused,
                  .level = ARENA_ARRAY(&scratch, int32_t, count + 1),
                  .leader = ARENA_ARRAY(&scratch, int32_t, count + 1),
                  .size = ARENA_ARRAY(&scratch, int32_t, count + 1),
                  .needed = ARENA_ARRAY(&scratch, bool, program->value_count + 1),
                  .slot = ARENA_ARRAY(&scratch, int32_t, program->value_count + 1),
                  .constant_slot = ARENA_ARRAY(&scratch, int32_t, count + 1),
                  .is_recomputed = ARENA_ARRAY(&scratch, bool, count + 1),
                  .is_used = ARENA_ARRAY(&scratch, bool, count + 1)};
    TRY_OR_FAIL(program_graph(&self.graph, &scratch, program, error));
    self.inner = ARENA_ARRAY(&scratch, bool, self.graph.first[count]);
    if (scratch.failed || program->arena->failed) TRY_OR_FAIL(am_fail_memory(error, count));
    find_kernels(&self);
    find_levels(&self);
    TRY_OR_FAIL(raise_levels(&self, error));
    form_groups(&self);
    TRY_OR_FAIL(accumulate_products(&self, error));
    TRY_OR_FAIL(choose_recomputed(&self, error));
    const int32_t *order;
    TRY_OR_FAIL(program_order_steps(&order, &scratch, program, &self.graph, self.leader, error));
    mark_needed(&self, order);
    TRY_OR_FAIL(build_steps(&self, order, error));
    join_loops(program);
    TRY_OR_FAIL(program_sort_end(program, &self.graph, error));
    program->execution.row_group_count = 0;
    if (!program->execution.fuses_rows) goto fail;
    TRY_OR_FAIL(program_delay_steps(program, &self.graph, error));
    status = program_find_row_groups(program, error);
fail:
    arena_free(&scratch);
    return status;
}
