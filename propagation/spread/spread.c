/* The fixed point over a module as read: seeds, order, called computations.
 *
 * A computation that a while, conditional or call runs is tied to it. The parameter and root of a while's
 * body and the parameter of its condition have the sharding of the while. Roots of branches have that of the
 * conditional, and parameters those of the operands. Given shardings do not change.
 */
#include "propagation/spread/spread.h"
#include "ir/encodings.h"
#include "propagation/propagate/read_shardy.h"
#include "propagation/spread/spread_internal.h"

#include <string.h>

#define LEVELS 4

int32_t spread_shape_leaves(const IrShape *shape) {
    int32_t count = 0;
    if (shape->type != DTYPE_TUPLE) return 1;
    for (int32_t k = 0; k < shape->rank; k++) count += spread_shape_leaves(&shape->elements[k]);
    return count;
}

int32_t spread_element_leaf(const Spread *self, int32_t tuple, int64_t element) {
    const IrShape *shape = &ir_instruction(self->module, tuple)->shape;
    int32_t leaf = 0;
    bool is_array = element < spread_leaf_count(self, tuple) && element < shape->rank &&
                    self->shapes[self->first_leaf[tuple] + element] == &shape->elements[element];
    if (is_array) return (int32_t)element; /* as many leaves as elements before it */
    for (int32_t k = 0; k < element && k < shape->rank; k++) leaf += spread_shape_leaves(&shape->elements[k]);
    return leaf;
}

TilesPool *spread_pool(Spread *self) {
    return &self->pool;
}

const Tiles *spread_sharding(const Spread *self, int32_t instruction, int32_t leaf) {
    return self->leaves[self->first_leaf[instruction] + leaf];
}

/* ---------------------------------------------------------------- Structure of the module */

/* Orders a computation: depth first from the instructions without users, operands in their order. */
static AmStatus order_computation(Spread *self, const IrComputation *computation, bool *is_seen, int32_t *at,
                                  AmError *error) {
    typedef struct Frame {
        int32_t instruction, next;
    } Frame;
    ArenaMark mark = arena_mark(self->arena);
    Frame *stack = ARENA_ARRAY(self->arena, Frame, computation->count + 1);
    if (!stack) return am_fail_memory(error, computation->count);
    for (int32_t pass = 0; pass < 2; pass++) /* the second pass visits instructions in cycles */
        for (int32_t k = 0; k < computation->count; k++) {
            int32_t root = computation->first + k, depth = 0;
            bool is_used = self->first_user[root] < self->first_user[root + 1];
            if (is_seen[root] || (pass == 0 && is_used)) continue;
            is_seen[root] = true;
            stack[depth++] = (Frame){root, 0};
            while (depth > 0) {
                Frame *top = &stack[depth - 1];
                const IrInstruction *instruction = ir_instruction(self->module, top->instruction);
                if (top->next == instruction->operand_count) {
                    self->order[(*at)++] = top->instruction;
                    depth--;
                    continue;
                }
                int32_t operand = instruction->operands[top->next++];
                if (is_seen[operand]) continue;
                is_seen[operand] = true;
                stack[depth++] = (Frame){operand, 0};
            }
        }
    arena_release(self->arena, mark);
    return AM_OK;
}

static AmStatus find_structure(Spread *self, AmError *error) {
    const IrModule *module = self->module;
    int32_t at = 0;
    bool *is_seen = ARENA_ARRAY(self->arena, bool, module->instruction_count + 1);
    if (!is_seen) return am_fail_memory(error, module->instruction_count);
    int32_t *next = self->order, *last = self->path; /* free until the order is found */
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < module->instruction_count; i++) {
            const IrInstruction *user = &module->instructions[i];
            for (int32_t k = 0; k < user->operand_count; k++) {
                int32_t mark = 2 * i + pass + 1;
                int32_t operand = user->operands[k];
                if (last[operand] == mark) { /* an operand used twice */
                    if (pass == 1 && self->used_as[next[operand] - 1] >= 0)
                        self->used_as[next[operand] - 1] = -1 - self->used_as[next[operand] - 1];
                    continue;
                }
                last[operand] = mark;
                if (pass == 0) {
                    self->first_user[operand + 1]++;
                    continue;
                }
                self->used_as[next[operand]] = k;
                self->users[next[operand]++] = i;
            }
        }
        for (int32_t i = 0; pass == 0 && i < module->instruction_count; i++) {
            self->first_user[i + 1] += self->first_user[i];
            next[i] = self->first_user[i];
        }
    }
    for (int32_t c = 0; c < module->computation_count; c++) self->caller[c] = -1;
    for (int32_t c = 0; c < module->computation_count; c++) {
        const IrComputation *computation = &module->computations[c];
        for (int32_t i = computation->first; i < computation->first + computation->count; i++) {
            const IrInstruction *instruction = &module->instructions[i];
            self->parent[i] = c;
            if (instruction->opcode != IR_WHILE && instruction->opcode != IR_CONDITIONAL &&
                instruction->opcode != IR_CALL)
                continue;
            for (int32_t k = 0; k < instruction->called_count; k++) self->caller[instruction->called[k]] = i;
        }
        TRY(order_computation(self, computation, is_seen, &at, error));
    }
    return AM_OK;
}

/* ---------------------------------------------------------------- Seeds */

static AmStatus fail_at(const Spread *self, int32_t i, const char *what, AmError *error) {
    const IrInstruction *value = ir_instruction(self->module, i);
    return am_fail(error, AM_ERROR_INPUT, self->module->source, "%s: %s",
                   value->op_name[0] ? value->op_name : value->name, what);
}

/* Appends the shardings of a message's leaves, nested tuples in a row; returns their number, or -1. */
static int32_t list_messages(const Hlo__OpSharding **list, int32_t count, int32_t room,
                             const Hlo__OpSharding *message) {
    if (message->type != HLO__OP_SHARDING__TYPE__TUPLE) {
        if (count == room) return -1;
        list[count] = message;
        return count + 1;
    }
    for (size_t k = 0; k < message->n_tuple_shardings && count >= 0; k++)
        count = list_messages(list, count, room, message->tuple_shardings[k]);
    return count;
}

/* Appends the shapes of the arrays in a shape to those of the leaves. */
static void list_shapes(Spread *self, int32_t *leaf, const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) self->shapes[(*leaf)++] = shape;
    for (int32_t k = 0; shape->type == DTYPE_TUPLE && k < shape->rank; k++)
        list_shapes(self, leaf, &shape->elements[k]);
}

AmStatus spread_give(Spread *self, int32_t instruction, const Hlo__OpSharding *message, AmError *error) {
    self->spelling[instruction] = message;
    bool *is_known = &self->is_given[instruction];
    const IrShape *shape = &ir_instruction(self->module, instruction)->shape;
    int32_t leaves = spread_leaf_count(self, instruction);
    bool is_tuple = message->type == HLO__OP_SHARDING__TYPE__TUPLE;
    *is_known = !is_tuple && message->type != HLO__OP_SHARDING__TYPE__UNKNOWN;
    if (leaves == 0) return AM_OK;
    const Hlo__OpSharding **list = ARENA_ARRAY(self->arena, const Hlo__OpSharding *, leaves + 1);
    if (!list) return am_fail_memory(error, leaves);
    if (is_tuple) {
        int32_t count = list_messages(list, 0, leaves, message);
        if (shape->type != DTYPE_TUPLE || count != leaves)
            return fail_at(self, instruction, "its sharding and its shape differ in the number of elements",
                           error);
    }
    for (int32_t leaf = 0; leaf < leaves; leaf++) {
        const Tiles **tiles = &self->leaves[self->first_leaf[instruction] + leaf];
        const Hlo__OpSharding *element = is_tuple ? list[leaf] : message;
        AmError reason = {0};
        if (tiles_read(tiles, &self->pool, element, &reason) != AM_OK)
            return fail_at(self, instruction, reason.text, error);
        const IrShape *array = self->shapes[self->first_leaf[instruction] + leaf];
        if ((*tiles)->kind == TILES_TILED && (*tiles)->rank != array->rank)
            return fail_at(self, instruction, "its sharding is for another rank", error);
        *is_known |= element->type != HLO__OP_SHARDING__TYPE__UNKNOWN;
    }
    return AM_OK;
}

/* Returns whether `i` is a replicated parameter of a branch or function. XLA refines parameters; those of
 * loops are tied to the loop, and others that are split were meant so. */
static bool is_default_of_branch(const Spread *self, int32_t i) {
    int32_t caller = self->caller[self->parent[i]];
    bool is_loop = caller >= 0 && ir_instruction(self->module, caller)->opcode == IR_WHILE;
    if (ir_instruction(self->module, i)->opcode != IR_PARAMETER || caller < 0 || is_loop) return false;
    for (int32_t k = 0; k < spread_leaf_count(self, i); k++) {
        const Tiles *tiles = self->leaves[self->first_leaf[i] + k];
        if (tiles && tiles->kind != TILES_REPLICATED) return false;
    }
    return true;
}

static AmStatus read_given(Spread *self, AmError *error) {
    const IrModule *module = self->module;
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        const Hlo__OpSharding *message = instruction->message->sharding;
        if (!message) {
            Hlo__OpSharding *read = NULL;
            AmError reason = {0};
            if (shardy_read(&read, self->arena, module->message, instruction->message, &reason) != AM_OK)
                return fail_at(self, i, reason.text, error);
            message = read;
        }
        if (!message) continue;
        /* The operands of an outfeed have its sharding; the token has none. */
        if (instruction->opcode != IR_OUTFEED) TRY(spread_give(self, i, message, error));
        self->spelling[i] = message;
        if (is_default_of_branch(self, i)) self->is_given[i] = false;
    }
    /* An annotated value that has no sharding of its own takes that of its annotation. */
    for (int32_t at = module->instruction_count - 1; at >= 0; at--) {
        int32_t i = self->order[at], operand;
        const IrInstruction *instruction = &module->instructions[i];
        if (!spread_is_target(instruction, "Sharding") || instruction->operand_count != 1 ||
            !self->is_given[i] || self->open[i] != 0)
            continue;
        operand = instruction->operands[0];
        if (spread_has(self, operand) || spread_leaf_count(self, operand) != spread_leaf_count(self, i))
            continue;
        for (int32_t k = 0; k < spread_leaf_count(self, i); k++)
            self->leaves[self->first_leaf[operand] + k] = self->leaves[self->first_leaf[i] + k];
        const IrInstruction *value = &module->instructions[operand];
        self->is_given[operand] = value->opcode != IR_PARAMETER;
    }
    return AM_OK;
}

AmStatus spread_create(Spread **spread, Arena *arena, const IrModule *module, bool is_kept, AmError *error) {
    Spread *self = ARENA_ARRAY(arena, Spread, 1);
    int32_t count = module->instruction_count, most = 1;
    int64_t leaves = 0, operands = 0;
    if (!self) return am_fail_memory(error, sizeof *self);
    self->arena = arena;
    self->module = module;
    TRY(tiles_pool_create(&self->pool, arena, error));
    self->first_leaf = ARENA_ARRAY(arena, int32_t, count + 1);
    if (!self->first_leaf) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) {
        int32_t own = spread_shape_leaves(&module->instructions[i].shape);
        leaves += own;
        operands += module->instructions[i].operand_count;
        if (leaves > INT32_MAX / 2) return am_fail_memory(error, leaves);
        self->first_leaf[i + 1] = (int32_t)leaves;
        if (own > most) most = own;
    }
    self->leaves = ARENA_ARRAY(arena, const Tiles *, leaves + 1);
    self->spelling = ARENA_ARRAY(arena, const Hlo__OpSharding *, count + 1);
    self->is_given = ARENA_ARRAY(arena, bool, count + 1);
    self->first_user = ARENA_ARRAY(arena, int32_t, count + 1);
    self->users = ARENA_ARRAY(arena, int32_t, operands + 1);
    self->used_as = ARENA_ARRAY(arena, int32_t, operands + 1);
    self->shapes = ARENA_ARRAY(arena, const IrShape *, leaves + 1);
    self->parent = ARENA_ARRAY(arena, int32_t, count + 1);
    self->caller = ARENA_ARRAY(arena, int32_t, module->computation_count + 1);
    self->order = ARENA_ARRAY(arena, int32_t, count + 1);
    self->operands_done = ARENA_ARRAY(arena, bool, count + 1);
    self->users_done = ARENA_ARRAY(arena, bool, count + 1);
    self->is_settled = ARENA_ARRAY(arena, bool, leaves + 1);
    self->scratch = ARENA_ARRAY(arena, const Tiles *, most);
    self->related = ARENA_ARRAY(arena, const Tiles *, most);
    self->path = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0, leaf = 0; i < count; i++) list_shapes(self, &leaf, &module->instructions[i].shape);
    TRY(find_structure(self, error));
    TRY(spread_read_groups(self, error));
    if (is_kept) TRY(read_given(self, error));
    *spread = self;
    return arena->failed ? am_fail_memory(error, count) : AM_OK;
}

/* ---------------------------------------------------------------- Called computations */

/* Lists up to `room` instructions that share a sharding with `i` as the caller of computations. */
static int32_t list_related(const Spread *self, int32_t i, int32_t *list, int32_t room) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const IrComputation *computations = self->module->computations;
    bool is_while = instruction->opcode == IR_WHILE;
    int32_t count = 0;
    list[count++] = i;
    for (int32_t k = 0; k < instruction->called_count && count + 1 < room; k++) {
        const IrComputation *called = &computations[instruction->called[k]];
        if (!is_while || k == 0) list[count++] = called->root; /* the second is the condition */
        if (is_while && called->parameter_count == 1) list[count++] = called->parameters[0];
    }
    return count;
}

static bool same_leaves(const Spread *self, int32_t a, int32_t b) {
    int32_t count = spread_leaf_count(self, a);
    if (count != spread_leaf_count(self, b)) return false;
    return count == 0 || memcmp(&self->leaves[self->first_leaf[a]], &self->leaves[self->first_leaf[b]],
                                sizeof *self->leaves * (size_t)count) == 0;
}

static void forget_done(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    for (int32_t k = 0; k < instruction->operand_count; k++)
        self->users_done[instruction->operands[k]] = false;
    for (int32_t u = self->first_user[i]; u < self->first_user[i + 1]; u++) {
        const IrInstruction *user = ir_instruction(self->module, self->users[u]);
        self->operands_done[self->users[u]] = false;
        for (int32_t c = 0; c < user->called_count; c++) {
            const IrComputation *called = &self->module->computations[user->called[c]];
            for (int32_t p = 0; p < called->parameter_count; p++)
                self->operands_done[called->parameters[p]] = false;
        }
    }
}

static void notify_related(Spread *self, int32_t i);

/* Copies the sharding of `from` to an instruction that is tied to it. */
static void copy_related(Spread *self, int32_t from, int32_t to) {
    if (to == from || self->is_given[to] || same_leaves(self, from, to)) return;
    if (spread_leaf_count(self, from) != spread_leaf_count(self, to)) return;
    memcpy(&self->leaves[self->first_leaf[to]], &self->leaves[self->first_leaf[from]],
           sizeof *self->leaves * (size_t)spread_leaf_count(self, from));
    forget_done(self, to);
    notify_related(self, to);
}

static void notify_all_related(Spread *self, int32_t caller, int32_t i) {
    int32_t room = 2 + 2 * ir_instruction(self->module, caller)->called_count;
    ArenaMark mark = arena_mark(self->arena);
    int32_t *list = ARENA_ARRAY(self->arena, int32_t, room);
    bool is_member = false;
    if (!list) return;
    int32_t count = list_related(self, caller, list, room);
    for (int32_t k = 0; k < count; k++) is_member |= list[k] == i;
    for (int32_t k = 0; is_member && k < count; k++) copy_related(self, i, list[k]);
    arena_release(self->arena, mark); /* no sharding is made meanwhile */
}

/* Returns the operand of a conditional or call that a parameter of a called computation stands for; -1. */
static int32_t argument_of(const Spread *self, int32_t parameter) {
    int32_t c = self->parent[parameter], caller = self->caller[c];
    if (caller < 0) return -1;
    const IrInstruction *instruction = ir_instruction(self->module, caller);
    int64_t number = ir_instruction(self->module, parameter)->attributes->parameter_number;
    if (instruction->opcode == IR_CALL)
        return number < instruction->operand_count ? instruction->operands[number] : -1;
    for (int32_t k = 0; instruction->opcode == IR_CONDITIONAL && k < instruction->called_count; k++)
        if (instruction->called[k] == c && k + 1 < instruction->operand_count)
            return instruction->operands[k + 1];
    return -1;
}

/* Hands a changed sharding on to the instructions that are tied to it. */
static void notify_related(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    int32_t c = self->parent[i];
    if (instruction->opcode == IR_WHILE || instruction->opcode == IR_CONDITIONAL ||
        instruction->opcode == IR_CALL)
        notify_all_related(self, i, i);
    bool is_root = self->module->computations[c].root == i;
    if ((instruction->opcode != IR_PARAMETER && !is_root) || self->caller[c] < 0) return;
    notify_all_related(self, self->caller[c], i);
    if (instruction->opcode != IR_PARAMETER) return;
    int32_t argument = argument_of(self, i);
    if (argument >= 0) copy_related(self, i, argument);
}

/* Ties given shardings at the start: all members get the first sharding of the group. */
static void tie_given(Spread *self) {
    for (int32_t i = 0; i < self->module->instruction_count; i++) {
        const IrInstruction *instruction = ir_instruction(self->module, i);
        if (instruction->opcode != IR_WHILE && instruction->opcode != IR_CONDITIONAL &&
            instruction->opcode != IR_CALL)
            continue;
        int32_t room = 2 + 2 * instruction->called_count, source = -1;
        int32_t *list = ARENA_ARRAY(self->arena, int32_t, room);
        if (!list) return;
        int32_t count = list_related(self, i, list, room);
        for (int32_t k = 0; k < count && source < 0; k++)
            if (spread_has(self, list[k])) source = list[k];
        for (int32_t k = 0; source >= 0 && k < count; k++) {
            int32_t to = list[k], leaves = spread_leaf_count(self, source);
            if (to == source || spread_has(self, to) || spread_leaf_count(self, to) != leaves) continue;
            memcpy(&self->leaves[self->first_leaf[to]], &self->leaves[self->first_leaf[source]],
                   sizeof *self->leaves * (size_t)leaves);
            bool is_given = self->is_given[source] || self->spelling[source];
            self->is_given[to] = is_given && ir_instruction(self->module, to)->opcode != IR_PARAMETER;
        }
    }
}

/* ---------------------------------------------------------------- The fixed point */

static void note_change(Spread *self, int32_t i) {
    notify_related(self, i);
    forget_done(self, i);
}

/* Returns whether a given sharding may be refined along some dimensions now. */
static bool is_open(const Spread *self, int32_t i) {
    return self->level > 0 && self->open[i] != 0 && spread_leaf_count(self, i) == 1;
}

/* Makes one pass over a computation in each direction. Returns whether something changed. */
static bool pass_over(Spread *self, int32_t first, int32_t count) {
    bool is_changed = false;
    for (int32_t k = 0; self->member_count > 0 && k < count; k++) {
        int32_t i = self->order[first + k];
        if (!spread_from_group(self, i)) continue;
        note_change(self, i);
        is_changed = true;
    }
    for (int32_t k = 0; k < count; k++) {
        int32_t i = self->order[first + k];
        if (self->operands_done[i] || (self->is_given[i] && !is_open(self, i))) continue;
        self->operands_done[i] = true;
        const IrInstruction *instruction = ir_instruction(self->module, i);
        const Tiles *annotated = NULL; /* the value that an annotation is about */
        if (self->is_given[i] && instruction->operand_count > 0)
            annotated = spread_array(self, instruction->operands[0]);
        if (!(self->is_given[i] ? spread_refine(self, i, annotated) : spread_from_operands(self, i)))
            continue;
        note_change(self, i);
        is_changed = true;
    }
    for (int32_t k = count - 1; k >= 0; k--) {
        int32_t i = self->order[first + k];
        if (self->users_done[i] || (self->is_given[i] && !is_open(self, i))) continue;
        self->users_done[i] = true;
        if (!(self->is_given[i] ? spread_refine_from_users(self, i) : spread_from_users(self, i))) continue;
        note_change(self, i);
        is_changed = true;
    }
    return is_changed;
}

/* Raises the level step by step, to a fixed point at each. */
static void run_levels(Spread *self) {
    const IrModule *module = self->module;
    /* Each change is a refinement or has more parts, so that the passes end; the bound is for the
     * contrary. */
    int64_t budget = 64 + 8 * (int64_t)module->instruction_count;
    for (int32_t round = 0; round <= LEVELS; round++) {
        self->level = round < LEVELS ? round : LEVELS - 1;
        if (round == LEVELS) spread_align_groups(self);
        memset(self->operands_done, 0, (size_t)module->instruction_count);
        memset(self->users_done, 0, (size_t)module->instruction_count);
        for (bool is_changed = true; is_changed && budget > 0 && !self->arena->failed; budget--) {
            is_changed = false;
            int32_t first = 0;
            for (int32_t c = 0; c < module->computation_count; c++) {
                is_changed |= pass_over(self, first, module->computations[c].count);
                first += module->computations[c].count;
            }
        }
    }
}

AmStatus spread_run(Spread *self, AmError *error) {
    const IrComputation *entry = &self->module->computations[self->module->entry];
    bool has_open = false;
    tie_given(self);
    run_levels(self);
    for (int32_t p = 0; p < entry->parameter_count; p++) has_open |= !self->is_given[entry->parameters[p]];
    if (has_open) {
        for (int32_t k = 0; k < self->first_leaf[self->module->instruction_count]; k++)
            self->is_settled[k] = self->leaves[k] && self->leaves[k]->kind != TILES_REPLICATED;
        self->is_second = true;
        run_levels(self);
    }
    /* Changes by a later caller of the same computation have no effect on earlier ones. */
    for (int32_t i = 0; i < self->module->instruction_count; i++) {
        const IrInstruction *instruction = ir_instruction(self->module, i);
        if ((instruction->opcode != IR_WHILE && instruction->opcode != IR_CONDITIONAL) ||
            instruction->called_count == 0)
            continue;
        copy_related(self, self->module->computations[instruction->called[0]].root, i);
    }
    return self->arena->failed ? am_fail_memory(error, (int64_t)self->arena->used) : AM_OK;
}

/* ---------------------------------------------------------------- The module with shardings */

static Hlo__OpSharding *leaf_message(Spread *self, const Tiles *tiles) {
    return tiles_message(&self->pool, tiles ? tiles : self->pool.replicated);
}

/* Returns the sharding to print: as the module has it where it is given. */
static const Hlo__OpSharding *message_of(Spread *self, int32_t i) {
    const IrInstruction *instruction = ir_instruction(self->module, i);
    const Hlo__OpSharding *spelling = self->spelling[i];
    if (spelling && spelling->type != HLO__OP_SHARDING__TYPE__UNKNOWN &&
        (self->is_given[i] || spread_leaf_count(self, i) == 0 || instruction->opcode == IR_OUTFEED))
        return spelling;
    int32_t count = spread_leaf_count(self, i);
    if (instruction->shape.type != DTYPE_TUPLE || count == 0)
        return leaf_message(self, count ? self->leaves[self->first_leaf[i]] : NULL);
    Hlo__OpSharding *message = leaf_message(self, NULL);
    if (!message) return NULL;
    message->type = HLO__OP_SHARDING__TYPE__TUPLE;
    message->tuple_shardings = ARENA_ARRAY(self->arena, Hlo__OpSharding *, count);
    for (int32_t k = 0; message->tuple_shardings && k < count; k++)
        message->tuple_shardings[message->n_tuple_shardings++] =
            leaf_message(self, self->leaves[self->first_leaf[i] + k]);
    return message;
}

/* Returns a copy of a computation whose instructions have their shardings. */
static Hlo__HloComputationProto *copy_computation(Spread *self, const Hlo__HloComputationProto *from,
                                                  const IrComputation *computation) {
    Hlo__HloComputationProto *message = ARENA_ARRAY(self->arena, Hlo__HloComputationProto, 1);
    Hlo__HloInstructionProto *copies =
        ARENA_ARRAY(self->arena, Hlo__HloInstructionProto, computation->count + 1);
    if (self->arena->failed) return NULL;
    *message = *from;
    message->instructions = ARENA_ARRAY(self->arena, Hlo__HloInstructionProto *, computation->count + 1);
    if (!message->instructions) return NULL;
    for (int32_t k = 0; k < computation->count; k++) {
        copies[k] = *ir_instruction(self->module, computation->first + k)->message;
        copies[k].sharding = (Hlo__OpSharding *)message_of(self, computation->first + k);
        message->instructions[k] = &copies[k];
    }
    message->n_instructions = (size_t)computation->count;
    return message;
}

AmStatus spread_text(Text *text, Spread *self, AmError *error) {
    const IrModule *module = self->module;
    Hlo__HloModuleProto message = *module->message;
    message.computations =
        ARENA_ARRAY(self->arena, Hlo__HloComputationProto *, module->computation_count + 1);
    for (int32_t c = 0; message.computations && c < module->computation_count; c++)
        message.computations[c] =
            copy_computation(self, module->message->computations[c], &module->computations[c]);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)self->arena->used);
    return ir_print_text(text, &message, error);
}
