/* Rules of several instructions together.
 *
 * A start has one done. Computations run on the thread of their caller. An asynchronous
 * computation holds one operator. All-reduces of a module constrain their layouts, or
 * none does. Sends, receives and asynchronous chains may pass tuples and loops. Host
 * transfers of one channel are alike. Origins have the tuples of their shapes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ir/encodings.h"
#include "ir/verify/verify_parts.h"

/* The users of each instruction, each user once. */
typedef struct Users {
    int32_t *count;  /* [instruction_count] */
    int32_t *last;   /* a user of it; -1: none */
    int32_t *chains; /* of them those that go on with an asynchronous chain */
} Users;

static AmStatus find_users(const Verifier *verifier, Users *users) {
    const IrModule *module = verifier->module;
    Arena *arena = &verifier->module->arena;
    int32_t count = module->instruction_count;
    users->count = ARENA_ARRAY(arena, int32_t, count + 1);
    users->last = ARENA_ARRAY(arena, int32_t, count + 1);
    users->chains = ARENA_ARRAY(arena, int32_t, count + 1);
    if (!users->count || !users->last || !users->chains)
        return am_fail_memory(verifier->error, (int64_t)count * 16);
    for (int32_t i = 0; i < count; i++) users->last[i] = -1;
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        const char *target = instruction->attributes->custom_call_target;
        if (instruction->opcode == IR_CUSTOM_CALL && target && strcmp(target, "control_dep") == 0) continue;
        bool is_chain = instruction->opcode == IR_ASYNC_DONE || instruction->opcode == IR_ASYNC_UPDATE;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k];
            if (users->last[operand] == i) continue;
            users->last[operand] = i;
            users->count[operand]++;
            users->chains[operand] += is_chain;
        }
    }
    return AM_OK;
}

/* ------------------------------------------------------------------ Buffers */

static int64_t buffers_in(const IrShape *shape) {
    int64_t count = shape->type == DTYPE_BUFFER;
    for (int32_t i = 0; shape->type == DTYPE_TUPLE && i < shape->rank; i++)
        count += buffers_in(&shape->elements[i]);
    return count;
}

/* The buffers in the results of a computation's instructions, in the order of their shapes. A buffer that
 * tuples hand on has the number of its first place. */
typedef struct Buffers {
    int64_t *first;   /* [count + 1] the place of an instruction's first buffer */
    int32_t *number;  /* [places] */
    int32_t *writers; /* [places], by number */
} Buffers;

/* Modules with more places are not examined. */
#define MOST_BUFFERS ((int64_t)1 << 24)

static void number_buffers(const Buffers *self, const IrModule *module, int32_t index) {
    const IrInstruction *instruction = &module->instructions[index];
    int64_t at = self->first[index], end = self->first[index + 1];
    for (int64_t k = at; k < end; k++) self->number[k] = (int32_t)k;
    if (instruction->opcode == IR_GET_TUPLE_ELEMENT && instruction->operands[0] < index) {
        int32_t tuple = instruction->operands[0];
        const IrShape *shape = &module->instructions[tuple].shape;
        int64_t from = self->first[tuple];
        int64_t element = instruction->message->tuple_index;
        if (shape->type != DTYPE_TUPLE || element >= shape->rank) return;
        for (int64_t k = 0; k < element; k++) from += buffers_in(&shape->elements[k]);
        for (; at < end && from < self->first[tuple + 1]; at++) self->number[at] = self->number[from++];
    }
    for (int32_t k = 0; instruction->opcode == IR_TUPLE && k < instruction->operand_count; k++) {
        int32_t operand = instruction->operands[k];
        if (operand >= index) return;
        for (int64_t from = self->first[operand]; at < end && from < self->first[operand + 1];)
            self->number[at++] = self->number[from++];
    }
}

/* Counts a writer of each buffer in the result of the instruction. */
static void write_buffers(const Buffers *self, int32_t index) {
    for (int64_t k = self->first[index]; k < self->first[index + 1]; k++) self->writers[self->number[k]]++;
}

/* Checks that each buffer has one writer and none enters the module. Custom calls and loops write the
 * buffers that they take, as does the root of a loop's body. */
static AmStatus verify_buffer_writers(const Verifier *verifier) {
    const IrModule *module = verifier->module;
    Arena *arena = &verifier->module->arena;
    int32_t count = module->instruction_count;
    int64_t places = 0;
    Buffers self = {.first = ARENA_ARRAY(arena, int64_t, (int64_t)count + 1)};
    if (!self.first) return am_fail_memory(verifier->error, (int64_t)count * 8);
    for (int32_t i = 0; i < count; i++) {
        self.first[i] = places;
        places += buffers_in(&module->instructions[i].shape);
    }
    self.first[count] = places;
    if (places == 0 || places > MOST_BUFFERS) return AM_OK;
    self.number = ARENA_ARRAY(arena, int32_t, places);
    self.writers = ARENA_ARRAY(arena, int32_t, places);
    if (!self.number || !self.writers) return am_fail_memory(verifier->error, places * 8);
    for (int32_t i = 0; i < count; i++) number_buffers(&self, module, i);
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        bool writes = instruction->opcode == IR_CUSTOM_CALL || instruction->opcode == IR_WHILE;
        for (int32_t k = 0; writes && k < instruction->operand_count; k++)
            write_buffers(&self, instruction->operands[k]);
        for (int32_t k = 0; instruction->opcode == IR_WHILE && k < instruction->called_count; k++)
            write_buffers(&self, module->computations[instruction->called[k]].root);
    }
    for (int32_t i = 0; i < count; i++) {
        for (int64_t k = self.first[i]; k < self.first[i + 1]; k++)
            if (self.writers[k] > 1)
                return verify_refuse(verifier, &module->instructions[i],
                                     "its buffer has %d writers, expected 1", self.writers[k]);
    }
    const IrComputation *entry = &module->computations[module->entry];
    for (int32_t i = entry->first; i < entry->first + entry->count; i++)
        if (module->instructions[i].opcode == IR_PARAMETER && self.first[i] < self.first[i + 1])
            return verify_refuse(verifier, &module->instructions[i],
                                 "it is a buffer, expected an array: nothing pins it");
    return AM_OK;
}

/* Returns whether the instruction forwards an unfinished operation: tuples and control flow. */
static bool hands_on(const IrInstruction *instruction) {
    switch (instruction->opcode) {
    case IR_TUPLE:
    case IR_GET_TUPLE_ELEMENT:
    case IR_OPT_BARRIER:
    case IR_COPY:
    case IR_WHILE: return true;
    case IR_CUSTOM_CALL: return instruction->operand_count == 1;
    default: return false;
    }
}

/* Checks for one user, which is `done` or hands the value on. */
static AmStatus verify_one_user(const Verifier *verifier, const Users *users, int32_t index, IrOpcode done) {
    const IrModule *module = verifier->module;
    const IrInstruction *instruction = &module->instructions[index];
    if (users->count[index] != 1) {
        return verify_refuse(verifier, instruction, "it has %d users, expected one %s", users->count[index],
                             ir_opcode_name(done));
    }
    const IrInstruction *user = &module->instructions[users->last[index]];
    if (user->opcode == done || hands_on(user)) return AM_OK;
    return verify_refuse(verifier, instruction, "its user is %s, expected %s", user->opcode_name,
                         ir_opcode_name(done));
}

/* Checks that an asynchronous chain goes on once; a loop's body may leave that to the next step. */
static AmStatus verify_chain(const Verifier *verifier, const Users *users, int32_t index, bool is_body_root) {
    const IrInstruction *instruction = &verifier->module->instructions[index];
    if (users->chains[index] <= 1 && (users->count[index] > 0 || is_body_root)) return AM_OK;
    return verify_refuse(verifier, instruction,
                         "it has %d users that are async-update or async-done, expected 1",
                         users->chains[index]);
}

static AmStatus verify_pair(const Verifier *verifier, const Users *users, int32_t index, bool is_inner_root) {
    const IrInstruction *instruction = &verifier->module->instructions[index];
    switch (instruction->opcode) {
    case IR_ALL_REDUCE_START: return verify_one_user(verifier, users, index, IR_ALL_REDUCE_DONE);
    case IR_ALL_GATHER_START: return verify_one_user(verifier, users, index, IR_ALL_GATHER_DONE);
    case IR_COPY_START: return verify_one_user(verifier, users, index, IR_COPY_DONE);
    case IR_COLLECTIVE_PERMUTE_START:
        return verify_one_user(verifier, users, index, IR_COLLECTIVE_PERMUTE_DONE);
    case IR_SEND: return is_inner_root ? AM_OK : verify_one_user(verifier, users, index, IR_SEND_DONE);
    case IR_RECV: return is_inner_root ? AM_OK : verify_one_user(verifier, users, index, IR_RECV_DONE);
    case IR_ASYNC_START:
    case IR_ASYNC_UPDATE: return verify_chain(verifier, users, index, is_inner_root);
    default: return AM_OK;
    }
}

/* ------------------------------------------------------ Called computations */

static const char *thread_of(const Verifier *verifier, int32_t computation) {
    const char *name = verifier->module->message->computations[computation]->execution_thread;
    return name && *name ? name : "main";
}

static AmStatus verify_thread(const Verifier *verifier, const IrInstruction *instruction, int32_t caller) {
    bool is_bound = instruction->opcode == IR_FUSION || instruction->opcode == IR_WHILE ||
                    instruction->opcode == IR_CONDITIONAL;
    for (int32_t k = 0; is_bound && k < instruction->called_count; k++) {
        const char *found = thread_of(verifier, instruction->called[k]);
        const char *expected = thread_of(verifier, caller);
        if (strcmp(found, expected) == 0) continue;
        return verify_refuse(verifier, instruction, "computation %.80s runs on thread %.80s, expected %.80s",
                             verify_called(verifier, instruction, k)->name, found, expected);
    }
    return AM_OK;
}

/* Checks for one operator beside parameters and tuples. A group of transfers and one that has attributes of
 * its own may hold several. */
static AmStatus verify_async_body(const Verifier *verifier, const IrInstruction *instruction) {
    const IrComputation *body = verify_called(verifier, instruction, 0);
    const Hlo__FrontendAttributes *attributes = instruction->message->frontend_attributes;
    int32_t operators = 0;
    if (strcmp(thread_of(verifier, instruction->called[0]), "main") != 0) return AM_OK;
    if (attributes && attributes->n_map > 0) return AM_OK;
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        switch (verifier->module->instructions[i].opcode) {
        case IR_SEND:
        case IR_RECV:
        case IR_SEND_DONE:
        case IR_RECV_DONE: return AM_OK;
        case IR_PARAMETER:
        case IR_GET_TUPLE_ELEMENT:
        case IR_TUPLE: break;
        default: operators++;
        }
    }
    if (operators <= 1) return AM_OK;
    return verify_refuse(verifier, instruction, "computation %.100s has %d operators, expected one",
                         body->name, operators);
}

/* Checks that a composite call has the name of its operation and a version of at least 0. */
static AmStatus verify_composite(const Verifier *verifier, const IrInstruction *instruction) {
    if (!instruction->message->is_composite) return AM_OK;
    const char *name = ir_frontend_attribute(instruction->message->frontend_attributes, "composite.name");
    const char *version =
        ir_frontend_attribute(instruction->message->frontend_attributes, "composite.version");
    if (!name || !*name)
        return verify_refuse(verifier, instruction, "its frontend attributes have no composite.name");
    if (!version) return AM_OK;
    char *end;
    errno = 0;
    long number = strtol(version, &end, 10);
    if (end != version && !*end && number >= 0 && errno == 0) return AM_OK;
    return verify_refuse(verifier, instruction,
                         "its composite.version is '%.40s', expected an integer of 0 or more", version);
}

/* -------------------------------------------------------------------- Module */

static int32_t leaves_of(const IrShape *shape) {
    if (shape->type != DTYPE_TUPLE) return 1;
    int32_t count = 0;
    for (int32_t i = 0; i < shape->rank; i++) count += leaves_of(&shape->elements[i]);
    return count;
}

static AmStatus verify_replication(const Verifier *verifier, const IrInstruction *instruction) {
    const Hlo__ParameterReplication *replication = instruction->message->parameter_replication;
    size_t count = replication ? replication->n_replicated_at_leaf_buffers : 0;
    if (count == 0 || count == (size_t)leaves_of(&instruction->shape)) return AM_OK;
    return verify_refuse(verifier, instruction, "parameter_replication has %zu values, expected %d", count,
                         leaves_of(&instruction->shape));
}

/* Returns whether a path of an original value ends at a leaf of a shape. */
static bool is_leaf(const IrShape *shape, const Hlo__OriginalValueElementProto *element) {
    for (size_t d = 0; d < element->n_shape_index; d++) {
        int64_t k = element->shape_index[d];
        if (shape->type != DTYPE_TUPLE || k < 0 || k >= shape->rank) return false;
        shape = &shape->elements[k];
    }
    return shape->type != DTYPE_TUPLE;
}

/* Checks that every leaf of an original value is one of the instruction's shape. */
static AmStatus verify_origin(const Verifier *verifier, const IrInstruction *instruction) {
    const Hlo__OriginalValueProto *origin = instruction->message->original_value;
    if (!origin || origin->is_synthetic_call) return AM_OK;
    for (size_t k = 0; k < origin->n_elements; k++)
        if (!is_leaf(&instruction->shape, origin->elements[k]))
            return verify_refuse(verifier, instruction,
                                 "leaf %zu of its origin is none of its shape (expected the same tuples)", k);
    return AM_OK;
}

static bool has_same_attributes(const Hlo__FrontendAttributes *a, const Hlo__FrontendAttributes *b) {
    size_t count = a ? a->n_map : 0;
    if (count != (b ? b->n_map : 0)) return false;
    for (size_t k = 0; k < count; k++) {
        const char *other = ir_frontend_attribute(b, a->map[k]->key);
        if (!other || strcmp(a->map[k]->value, other) != 0) return false;
    }
    return true;
}

/* Transfers between host and device, by channel and then by place. */
static int compare_channels(const void *left, const void *right) {
    const IrInstruction *a = *(const IrInstruction *const *)left, *b = *(const IrInstruction *const *)right;
    int64_t x = a->message->channel_id, y = b->message->channel_id;
    return x != y ? (x > y) - (x < y) : (a > b) - (a < b);
}

/* Checks that host transfers of one channel are alike but for their operands. */
static AmStatus verify_host_transfers(const Verifier *verifier) {
    IrModule *module = verifier->module;
    const IrInstruction **found =
        ARENA_ARRAY(&module->arena, const IrInstruction *, module->instruction_count + 1);
    size_t count = 0, first = 0;
    if (!found) return am_fail_memory(verifier->error, module->instruction_count);
    for (int32_t i = 0; i < module->instruction_count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        bool is_transfer = instruction->opcode == IR_SEND || instruction->opcode == IR_RECV;
        if (is_transfer && instruction->message->is_host_transfer && instruction->message->channel_id > 0)
            found[count++] = instruction;
    }
    qsort(found, count, sizeof *found, compare_channels);
    for (size_t k = 1; k < count; k++) {
        const IrInstruction *a = found[first], *b = found[k];
        if (a->message->channel_id != b->message->channel_id) first = k;
        else if (a->opcode != b->opcode || !ir_shape_equal(&a->shape, &b->shape) ||
                 !has_same_attributes(a->message->frontend_attributes, b->message->frontend_attributes))
            return verify_refuse(verifier, b, "it differs from %s, a host transfer of the same channel %lld",
                                 a->name, (long long)a->message->channel_id);
    }
    return AM_OK;
}

/* Counts, by callee, the async-starts; each has a computation of its own. */
static AmStatus verify_async_owner(const Verifier *verifier, const IrInstruction *instruction,
                                   int32_t *starts) {
    if (instruction->opcode != IR_ASYNC_START) return AM_OK;
    TRY(verify_async_body(verifier, instruction));
    if (++starts[instruction->called[0]] == 1) return AM_OK;
    return verify_refuse(verifier, instruction, "computation %.100s belongs to another async-start",
                         verify_called(verifier, instruction, 0)->name);
}

static AmStatus verify_constrained(const Verifier *verifier, const IrInstruction *instruction,
                                   const IrInstruction **first) {
    if (instruction->opcode != IR_ALL_REDUCE && instruction->opcode != IR_ALL_REDUCE_START) return AM_OK;
    if (!*first) *first = instruction;
    if ((*first)->message->constrain_layout == instruction->message->constrain_layout) return AM_OK;
    return verify_refuse(verifier, instruction, "it differs from %s in constrain_layout", (*first)->name);
}

AmStatus verify_module(const Verifier *verifier) {
    const IrModule *module = verifier->module;
    Arena *arena = &verifier->module->arena;
    ArenaMark mark = arena_mark(arena);
    const IrInstruction *reduce = NULL;
    Users users;
    int32_t *starts = ARENA_ARRAY(arena, int32_t, module->computation_count + 1);
    AmStatus status = starts ? find_users(verifier, &users) : am_fail_memory(verifier->error, 0);
    if (status == AM_OK) status = verify_buffer_writers(verifier);
    if (status == AM_OK) status = verify_host_transfers(verifier);
    for (int32_t c = 0; c < module->computation_count && status == AM_OK; c++) {
        const IrComputation *computation = &module->computations[c];
        for (int32_t i = computation->first; i < computation->first + computation->count; i++) {
            const IrInstruction *instruction = &module->instructions[i];
            bool is_inner_root = i == computation->root && c != module->entry;
            status = verify_pair(verifier, &users, i, is_inner_root);
            if (status == AM_OK) status = verify_thread(verifier, instruction, c);
            if (status == AM_OK) status = verify_composite(verifier, instruction);
            if (status == AM_OK) status = verify_replication(verifier, instruction);
            if (status == AM_OK) status = verify_origin(verifier, instruction);
            if (status == AM_OK) status = verify_async_owner(verifier, instruction, starts);
            if (status == AM_OK) status = verify_constrained(verifier, instruction, &reduce);
            if (status != AM_OK) break;
        }
    }
    arena_release(arena, mark);
    return status;
}
