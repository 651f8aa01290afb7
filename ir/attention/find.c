/* Recognises attention in a module. For each computation:
 *
 * 1. Values are scores: dots larger than both operands, and what element-wise operators make of
 *    them in the same shape. Reductions of them, and small values made of these, may be row
 *    statistics: they are if they are broadcast to scores again.
 * 2. Scores and statistics that use one another form a group. A group is attention if it has an
 *    exponential, statistics and either a dot that consumes it in the phase in which it was made,
 *    or two dots that make scores (a gradient with recomputation).
 * 3. The ancestors of that consumer are the forward operator, the rest is the backward one.
 * 4. Masks and constants of the scores' shape are computed inside, also those that a loop carries
 *    (loop_constants.c). Anything else of that size that is an operand or a result makes the group a
 *    near miss.
 */
#include <stdlib.h>
#include <string.h>

#include "base/union_find.h"
#include "ir/attention/loop_constants.h"
#include "ir/dataflow.h"

enum { FREE_DEPTH = 64 }; /* operators between a constant and its use inside */

typedef enum Kind { KIND_NONE, KIND_SCORES, KIND_CANDIDATE, KIND_ROW } Kind;

typedef struct AttentionFinder {
    const IrModule *module;
    const IrComputation *body;
    const IrInstruction *at; /* the body's instructions */
    const IrPhase *phases;
    IrAttentions *found;
    int32_t capacity;
    Arena *arena;
    Arena scratch;
    /* per instruction of the body */
    Kind *kinds;
    int32_t *model; /* an instruction with the shape of the scores to which it belongs */
    int32_t *group; /* union-find */
    int32_t *first_user, *users;
    bool *inside, *marked;
    bool *is_own;     /* inside, and computed nowhere else */
    int8_t *is_cheap; /* can be computed inside: 1, 0, or -1: unknown */
} AttentionFinder;

static bool is_array(const IrShape *shape) {
    return shape->type != DTYPE_TUPLE && shape->type != DTYPE_TOKEN;
}

static int compare_sizes(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static int32_t sorted_sizes(int64_t sizes[IR_MAX_RANK], const IrShape *shape) {
    int32_t count = 0;
    for (int32_t d = 0; d < shape->rank; d++)
        if (shape->dimensions[d] != 1) sizes[count++] = shape->dimensions[d];
    qsort(sizes, (size_t)count, sizeof *sizes, compare_sizes);
    return count;
}

/* Returns whether two arrays have the same dimensions in any order, without those of size 1. */
static bool same_sizes(const IrShape *a, const IrShape *b) {
    int64_t sizes_a[IR_MAX_RANK], sizes_b[IR_MAX_RANK];
    if (!is_array(a) || !is_array(b) || a->rank > IR_MAX_RANK || b->rank > IR_MAX_RANK) return false;
    int32_t count = sorted_sizes(sizes_a, a);
    return count == sorted_sizes(sizes_b, b) &&
           memcmp(sizes_a, sizes_b, sizeof *sizes_a * (size_t)count) == 0;
}

/* Operators that keep a value in the shape of the scores, or of a row statistic. */
static bool keeps_shape(const IrInstruction *instruction) {
    if (ir_is_elementwise(instruction->opcode)) return true;
    switch (instruction->opcode) {
    case IR_BROADCAST:
    case IR_TRANSPOSE:
    case IR_RESHAPE:
    case IR_COPY: return true;
    default: return false;
    }
}

static bool makes_scores(const AttentionFinder *self, const IrInstruction *dot) {
    if (!ir_is_matrix_product(dot->opcode) || !dtype_is_floating(dot->shape.type) || dot->shape.rank < 2)
        return false;
    int64_t elements = ir_shape_elements(&dot->shape);
    return elements > ir_shape_elements(&self->at[dot->operands[0] - self->body->first].shape) &&
           elements > ir_shape_elements(&self->at[dot->operands[1] - self->body->first].shape);
}

static int32_t body_operand(const AttentionFinder *self, int32_t i, int32_t k) {
    return self->at[i].operands[k] - self->body->first;
}

/* Finds the kind of instruction i from those of its operands. */
static void classify(AttentionFinder *self, int32_t i) {
    const IrInstruction *instruction = &self->at[i];
    self->model[i] = i;
    if (!is_array(&instruction->shape)) return;
    if (makes_scores(self, instruction)) {
        self->kinds[i] = KIND_SCORES;
        return;
    }
    bool is_sum = instruction->opcode == IR_REDUCE && instruction->operand_count == 2;
    if (!is_sum && !keeps_shape(instruction)) return;
    for (int32_t k = 0; k < (is_sum ? 1 : instruction->operand_count); k++) {
        int32_t operand = body_operand(self, i, k);
        if (self->kinds[operand] == KIND_NONE || self->kinds[i] == KIND_SCORES) continue;
        int32_t model = self->model[operand];
        bool is_small = ir_shape_elements(&instruction->shape) < ir_shape_elements(&self->at[model].shape);
        if (same_sizes(&instruction->shape, &self->at[model].shape)) self->kinds[i] = KIND_SCORES;
        else if (is_small && (is_sum || self->kinds[operand] != KIND_SCORES)) self->kinds[i] = KIND_CANDIDATE;
        if (self->kinds[i] != KIND_NONE) self->model[i] = model;
    }
}

static bool belongs(const AttentionFinder *self, int32_t i) {
    return self->kinds[i] == KIND_SCORES || self->kinds[i] == KIND_ROW;
}

/* Returns whether the value is the same in every iteration of its loop, and made of constants outside. */
static bool is_loop_constant(const AttentionFinder *self, int32_t i) {
    return self->found->same[self->body->first + i] >= 0;
}

static AmStatus list_users(AttentionFinder *self, AmError *error) {
    int32_t count = self->body->count, edges = 0;
    self->first_user = ARENA_ARRAY(&self->scratch, int32_t, count + 2);
    for (int32_t i = 0; i < count; i++) edges += self->at[i].operand_count;
    self->users = ARENA_ARRAY(&self->scratch, int32_t, edges + 1);
    if (self->scratch.failed) return am_fail_memory(error, edges);
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < self->at[i].operand_count; k++)
            self->first_user[body_operand(self, i, k) + 2]++;
    for (int32_t i = 0; i < count; i++) self->first_user[i + 2] += self->first_user[i + 1];
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < self->at[i].operand_count; k++)
            self->users[self->first_user[body_operand(self, i, k) + 1]++] = i;
    return AM_OK;
}

/* Kinds and groups of the body's instructions. */
static AmStatus find_groups(AttentionFinder *self, AmError *error) {
    int32_t count = self->body->count;
    self->kinds = ARENA_ARRAY(&self->scratch, Kind, count + 1);
    self->model = ARENA_ARRAY(&self->scratch, int32_t, count + 1);
    self->group = ARENA_ARRAY(&self->scratch, int32_t, count + 1);
    self->inside = ARENA_ARRAY(&self->scratch, bool, count + 1);
    self->marked = ARENA_ARRAY(&self->scratch, bool, count + 1);
    self->is_own = ARENA_ARRAY(&self->scratch, bool, count + 1);
    self->is_cheap = ARENA_ARRAY(&self->scratch, int8_t, count + 1);
    if (self->scratch.failed) return am_fail_memory(error, count);
    memset(self->is_cheap, -1, (size_t)count + 1);
    TRY(list_users(self, error));
    for (int32_t i = 0; i < count; i++) classify(self, i);
    for (int32_t i = count - 1; i >= 0; i--) {
        if (!belongs(self, i)) continue;
        bool is_sum = self->at[i].opcode == IR_REDUCE;
        for (int32_t k = 0; k < (is_sum ? 1 : self->at[i].operand_count); k++) {
            int32_t operand = body_operand(self, i, k);
            if (self->kinds[operand] == KIND_CANDIDATE) self->kinds[operand] = KIND_ROW;
        }
    }
    union_find_begin(self->group, count);
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; belongs(self, i) && k < self->at[i].operand_count; k++) {
            int32_t operand = body_operand(self, i, k);
            if (belongs(self, operand))
                self->group[union_find_root(self->group, i)] = union_find_root(self->group, operand);
        }
    return AM_OK;
}

/* ---- one group ---- */

typedef struct AttentionGroup {
    int32_t *members; /* [count] ascending */
    int32_t count;
    int32_t consumer; /* the forward operator's last dot, or -1 */
    const char *reason;
} AttentionGroup;

/* Marks the ancestors of member i within its group; returns whether they are a softmax. */
static bool mark_ancestors(AttentionFinder *self, const AttentionGroup *group, int32_t i) {
    bool has_exponential = false, has_row = false, has_dot = false;
    for (int32_t k = 0; k < group->count; k++) self->marked[group->members[k]] = false;
    self->marked[i] = true;
    for (int32_t k = group->count - 1; k >= 0; k--) {
        int32_t member = group->members[k];
        if (!self->marked[member]) continue;
        has_exponential |= self->at[member].opcode == IR_EXPONENTIAL;
        has_row |= self->kinds[member] == KIND_ROW;
        has_dot |= ir_is_matrix_product(self->at[member].opcode);
        for (int32_t o = 0; o < self->at[member].operand_count; o++) {
            int32_t operand = body_operand(self, member, o);
            if (belongs(self, operand)) self->marked[operand] = true;
        }
    }
    return has_exponential && has_row && has_dot;
}

static IrPhase phase_of(const AttentionFinder *self, int32_t i) {
    return self->phases[self->body->first + i];
}

/* Finds the first dot that consumes a softmax of the group in the phase that computes its scores. */
static void find_consumer(AttentionFinder *self, AttentionGroup *group) {
    int32_t best = INT32_MAX, from = -1;
    for (int32_t k = 0; k < group->count; k++) {
        int32_t member = group->members[k];
        if (self->kinds[member] != KIND_SCORES) continue;
        for (int32_t u = self->first_user[member]; u < self->first_user[member + 1]; u++) {
            int32_t user = self->users[u];
            if (user >= best || !ir_is_matrix_product(self->at[user].opcode) || belongs(self, user)) continue;
            if (phase_of(self, user) != phase_of(self, group->members[0])) continue;
            if (!mark_ancestors(self, group, member)) continue;
            best = user;
            from = member;
        }
    }
    group->consumer = from < 0 ? -1 : best;
    if (from >= 0) mark_ancestors(self, group, from);
    else
        for (int32_t k = 0; k < group->count; k++) self->marked[group->members[k]] = false;
}

/* Returns whether an operator may have a large value as an operand: a mask, of one byte per element. */
static bool is_mask(const IrShape *shape) {
    return is_array(shape) && dtype_bytes(shape->type) == 1;
}

/* Returns whether a value that no scores are an ancestor of can be computed inside: a scalar constant, or
 * element-wise operators on such values, on smaller ones (a mask of two vectors of positions) and, in the
 * shape of the scores, on masks. */
static bool is_cheap(AttentionFinder *self, int32_t i, int64_t elements, int32_t depth) {
    const IrInstruction *instruction = &self->at[i];
    if (!is_array(&instruction->shape) || depth > FREE_DEPTH) return false;
    if (is_loop_constant(self, i)) return true;
    if (instruction->opcode == IR_CONSTANT) return ir_shape_elements(&instruction->shape) == 1;
    int64_t own = ir_shape_elements(&instruction->shape);
    bool is_large = own >= elements;
    if (!keeps_shape(instruction) || belongs(self, i)) return false;
    if (self->is_cheap[i] >= 0) return self->is_cheap[i];
    bool cheap = true;
    for (int32_t k = 0; cheap && k < instruction->operand_count; k++) {
        int32_t operand = body_operand(self, i, k);
        const IrShape *shape = &self->at[operand].shape;
        bool is_operand = is_array(shape) && (ir_shape_elements(shape) < own || (is_large && is_mask(shape)));
        cheap = is_operand || is_cheap(self, operand, elements, depth + 1);
    }
    self->is_cheap[i] = cheap;
    return cheap;
}

/* Adds member i, and the values that it needs inside, to the operator that is being collected. Small operands
 * stay outside. Returns why that is impossible, or NULL. */
static const char *include(AttentionFinder *self, int32_t i, int64_t elements, int32_t depth) {
    if (self->inside[i]) return NULL;
    if (depth > 4 * FREE_DEPTH) return "its values depend on one another through too many operators";
    self->inside[i] = true;
    for (int32_t k = 0; k < self->at[i].operand_count && !is_loop_constant(self, i); k++) {
        int32_t operand = body_operand(self, i, k);
        const IrInstruction *value = &self->at[operand];
        if (self->inside[operand]) continue;
        const char *reason = NULL;
        if (self->kinds[operand] == KIND_SCORES) reason = include(self, operand, elements, depth + 1);
        else if (self->kinds[operand] == KIND_ROW) continue;
        else if (is_cheap(self, operand, elements, 0)) reason = include(self, operand, elements, depth + 1);
        else if (!ir_is_matrix_product(self->at[i].opcode) && ir_shape_elements(&value->shape) >= elements &&
                 !is_mask(&value->shape))
            return arena_format(self->arena, "it reads %s (%s), which has the size of the scores",
                                value->name, ir_opcode_name(value->opcode));
        if (reason) return reason;
    }
    return NULL;
}

/* Returns the first marked instruction from `from` on; body->count: there is none. An operator has few of the
 * instructions of a deep model, so that the search for them takes most of the time. */
static int32_t next_marked(const AttentionFinder *self, const bool *is_in, int32_t from) {
    const bool *next = memchr(is_in + from, true, (size_t)(self->body->count - from));
    return next ? (int32_t)(next - is_in) : self->body->count;
}

static int32_t *list_marked(AttentionFinder *self, const bool *is_in, int32_t *count) {
    int32_t total = 0, n = self->body->count;
    for (int32_t i = next_marked(self, is_in, 0); i < n; i = next_marked(self, is_in, i + 1)) total++;
    int32_t *list = ARENA_ARRAY(self->arena, int32_t, total + 1);
    *count = 0;
    for (int32_t i = next_marked(self, is_in, 0); list && i < n; i = next_marked(self, is_in, i + 1))
        list[(*count)++] = self->body->first + i;
    return list;
}

/* Adds the vectors of indices that a loop constant is made of to the positions of a row. */
static void add_positions(AttentionFinder *self, IrAttention *row, int32_t *capacity, int32_t i) {
    const IrInstruction *instruction = &self->module->instructions[i];
    for (int32_t k = 0; k < instruction->operand_count; k++)
        add_positions(self, row, capacity, instruction->operands[k]);
    if (instruction->opcode != IR_IOTA) return;
    for (int32_t k = 0; k < row->position_count; k++)
        if (row->positions[k] == i) return;
    ARENA_RESERVE(self->arena, row->positions, row->position_count, *capacity);
    if (!self->arena->failed) row->positions[row->position_count++] = i;
}

/* Returns whether a member gives a vector or a mask from outside other dimensions. */
static bool moves_operand(const AttentionFinder *self, int32_t member) {
    const IrInstruction *instruction = &self->at[member];
    bool moves = instruction->opcode == IR_BROADCAST || instruction->opcode == IR_RESHAPE ||
                 instruction->opcode == IR_TRANSPOSE;
    if (!moves || is_loop_constant(self, member) || self->inside[body_operand(self, member, 0)]) return false;
    const IrShape *shape = &self->at[body_operand(self, member, 0)].shape;
    return shape->rank > 0 && (shape->rank == 1 || !dtype_is_floating(shape->type));
}

/* Adds a row of the instructions that are inside; `self->marked` is spent. */
static AmStatus add_row(AttentionFinder *self, int32_t scores, bool is_backward, const char *reason,
                        AmError *error) {
    ARENA_RESERVE(self->arena, self->found->rows, self->found->count, self->capacity);
    if (self->arena->failed) return am_fail_memory(error, (int64_t)sizeof(IrAttention));
    IrAttention *row = &self->found->rows[self->found->count++];
    *row = (IrAttention){.computation = (int32_t)(self->body - self->module->computations),
                         .scores = self->body->first + scores,
                         .is_backward = is_backward,
                         .reason = reason};
    if (reason) return AM_OK;
    int32_t positions = 0;
    row->members = list_marked(self, self->inside, &row->member_count);
    memset(self->marked, 0, sizeof(bool) * (size_t)self->body->count);
    for (int32_t k = 0; k < row->member_count; k++) {
        int32_t member = row->members[k] - self->body->first;
        if (is_loop_constant(self, member)) {
            add_positions(self, row, &positions, self->found->same[row->members[k]]);
            continue;
        }
        for (int32_t o = 0; o < self->at[member].operand_count; o++)
            if (!self->inside[body_operand(self, member, o)])
                self->marked[body_operand(self, member, o)] = true;
    }
    row->operands = list_marked(self, self->marked, &row->operand_count);
    /* Repeats are the members that move an operand which an earlier member moves, too. */
    memset(self->marked, 0, sizeof(bool) * (size_t)self->body->count);
    row->repeats = ARENA_ARRAY(self->arena, int32_t, row->member_count + 1);
    for (int32_t k = 0; row->repeats && k < row->member_count; k++) {
        int32_t member = row->members[k] - self->body->first;
        if (!moves_operand(self, member)) continue;
        bool *is_moved = &self->marked[body_operand(self, member, 0)];
        if (*is_moved) row->repeats[row->repeat_count++] = row->members[k];
        *is_moved = true;
    }
    return self->arena->failed ? am_fail_memory(error, row->member_count) : AM_OK;
}

/* Returns why a value of the group cannot stay inside, or NULL. */
static const char *check_users(AttentionFinder *self, const AttentionGroup *group) {
    for (int32_t k = 0; k < group->count; k++) {
        int32_t member = group->members[k];
        if (self->kinds[member] != KIND_SCORES) continue;
        if (self->body->first + member == self->body->root)
            return "its scores are a result of the computation";
        for (int32_t u = self->first_user[member]; u < self->first_user[member + 1]; u++) {
            const IrInstruction *user = &self->at[self->users[u]];
            bool is_sum = user->opcode == IR_REDUCE && user->operand_count == 2;
            if (belongs(self, self->users[u]) || is_sum) continue;
            if (!ir_is_matrix_product(user->opcode))
                return arena_format(self->arena, "its scores are read by %s", ir_opcode_name(user->opcode));
        }
    }
    return NULL;
}

/* Marks everything outside that follows from the operator's values; returns whether the operator reads any
 * of it, so that it cannot be one instruction. */
static bool depends_on_itself(AttentionFinder *self) {
    int32_t count = self->body->count, last = -1;
    for (int32_t i = next_marked(self, self->inside, 0); i < count;
         i = next_marked(self, self->inside, i + 1))
        last = i;
    memset(self->marked, 0, sizeof(bool) * (size_t)count);
    for (int32_t i = next_marked(self, self->is_own, 0); i <= last; i++) {
        for (int32_t k = 0; k < self->at[i].operand_count; k++) {
            int32_t operand = body_operand(self, i, k);
            if (self->inside[i] && self->marked[operand] && !self->inside[operand]) return true;
            self->marked[i] |= !self->is_own[i] && (self->marked[operand] || self->is_own[operand]);
        }
    }
    return false;
}

/* Adds the row statistics of the forward phase to the forward operator, also those that its last dot does not
 * need: the sum by which the result is divided outside. */
static void add_forward_rows(AttentionFinder *self, const AttentionGroup *group, bool *is_forward) {
    int64_t elements = ir_shape_elements(&self->at[group->members[0]].shape);
    memset(self->is_cheap, -1, (size_t)self->body->count);
    for (int32_t k = 0; group->consumer >= 0 && k < group->count; k++) {
        int32_t member = group->members[k];
        bool is_row =
            self->kinds[member] == KIND_ROW && phase_of(self, member) == phase_of(self, group->consumer);
        for (int32_t o = 0; is_row && o < self->at[member].operand_count; o++) {
            int32_t operand = body_operand(self, member, o);
            is_row = belongs(self, operand) ? is_forward[operand] : is_cheap(self, operand, elements, 0);
        }
        is_forward[member] |= is_row;
    }
}

/* Returns whether a user of the forward scores `member` is of the forward operator too: the dot that consumes
 * them, or their sum by rows, by which the result is divided outside. */
static bool is_forward_user(const AttentionFinder *self, const AttentionGroup *group, const bool *is_forward,
                            int32_t member, int32_t user) {
    if (user == group->consumer) return true;
    return group->consumer >= 0 && is_forward[member] && self->at[user].opcode == IR_REDUCE &&
           phase_of(self, user) == phase_of(self, group->consumer);
}

/* Returns whether an exponential follows from value i by way of operators that keep or widen its shape. */
static bool reaches_exponential(AttentionFinder *self, int32_t i, int32_t depth) {
    if (self->marked[i] || depth > FREE_DEPTH) return false;
    self->marked[i] = true;
    for (int32_t u = self->first_user[i]; u < self->first_user[i + 1]; u++) {
        const IrInstruction *user = &self->at[self->users[u]];
        if (user->opcode == IR_EXPONENTIAL) return true;
        bool follows = keeps_shape(user) || user->opcode == IR_CONCATENATE || user->opcode == IR_PAD;
        if (follows && reaches_exponential(self, self->users[u], depth + 1)) return true;
    }
    return false;
}

/* Adds a near miss: a softmax over scores and other values side by side, such as with an attention sink. */
static AmStatus add_widened(AttentionFinder *self, const AttentionGroup *group, AmError *error) {
    memset(self->marked, 0, sizeof(bool) * (size_t)self->body->count);
    for (int32_t k = 0; k < group->count; k++) {
        int32_t member = group->members[k];
        for (int32_t u = self->first_user[member]; u < self->first_user[member + 1]; u++) {
            const IrInstruction *user = &self->at[self->users[u]];
            if (user->opcode != IR_CONCATENATE && user->opcode != IR_PAD) continue;
            if (!reaches_exponential(self, self->users[u], 0)) continue;
            const char *reason =
                arena_format(self->arena, "its scores are read by %s", ir_opcode_name(user->opcode));
            if (!reason) return am_fail_memory(error, 64);
            return add_row(self, group->members[0], false, reason, error);
        }
    }
    return AM_OK;
}

static AmStatus add_group(AttentionFinder *self, AttentionGroup *group, AmError *error) {
    int32_t scores = group->members[0], dots = 0, first_row = self->found->count;
    bool has_exponential = false, has_row = false;
    int64_t elements = ir_shape_elements(&self->at[scores].shape);
    for (int32_t k = 0; k < group->count; k++) {
        const IrInstruction *member = &self->at[group->members[k]];
        dots += ir_is_matrix_product(member->opcode);
        has_exponential |= member->opcode == IR_EXPONENTIAL;
        has_row |= self->kinds[group->members[k]] == KIND_ROW;
    }
    if (!has_exponential || !has_row) return has_exponential ? AM_OK : add_widened(self, group, error);
    find_consumer(self, group);
    if (group->consumer < 0 && dots < 2) return AM_OK;
    ArenaMark mark = arena_mark(&self->scratch);
    bool *is_forward = ARENA_ARRAY(&self->scratch, bool, self->body->count + 1);
    if (!is_forward) return am_fail_memory(error, self->body->count);
    memcpy(is_forward, self->marked, sizeof(bool) * (size_t)self->body->count);
    add_forward_rows(self, group, is_forward);
    const char *reason = check_users(self, group);
    bool has_rest = false;
    for (int32_t part = 0; part < 2 && !reason; part++) {
        bool is_backward = part == 1;
        if (!is_backward && group->consumer < 0) continue;
        memset(self->inside, 0, sizeof(bool) * (size_t)self->body->count);
        memset(self->is_cheap, -1, (size_t)self->body->count);
        for (int32_t k = 0; k < group->count && !reason; k++) {
            int32_t member = group->members[k];
            bool is_own = group->consumer >= 0 && is_forward[member];
            has_rest |= is_own != is_backward && is_backward;
            if (is_own != is_backward) reason = include(self, member, elements, 0);
            for (int32_t u = self->first_user[member]; u < self->first_user[member + 1] && !reason; u++) {
                int32_t user = self->users[u];
                if (self->kinds[member] != KIND_SCORES || belongs(self, user)) continue;
                if (is_forward_user(self, group, is_forward, member, user) == is_backward) continue;
                has_rest |= is_backward;
                reason = include(self, user, elements, 0);
            }
        }
        if (is_backward && !has_rest) break;
        memset(self->is_own, 0, sizeof(bool) * (size_t)self->body->count);
        for (int32_t i = next_marked(self, self->inside, 0); i < self->body->count;
             i = next_marked(self, self->inside, i + 1))
            self->is_own[i] = belongs(self, i) ? (group->consumer >= 0 && is_forward[i]) != is_backward
                                               : !is_cheap(self, i, elements, 0);
        if (!reason && depends_on_itself(self)) reason = "an operator outside computes between its parts";
        if (!reason) TRY(add_row(self, scores, is_backward, NULL, error));
        for (int32_t i = next_marked(self, self->is_own, 0); !reason && i < self->body->count;
             i = next_marked(self, self->is_own, i + 1))
            self->found->owner[self->body->first + i] = self->found->count - 1;
    }
    if (reason) {
        for (int32_t i = 0; i < self->body->count; i++)
            if (self->found->owner[self->body->first + i] >= first_row)
                self->found->owner[self->body->first + i] = -1;
        self->found->count = first_row;
        TRY(add_row(self, scores, false, reason, error));
    }
    arena_release(&self->scratch, mark);
    return AM_OK;
}

/* Finds the members that others read: instructions that stay, or other operators. */
static AmStatus find_results(AttentionFinder *self, int32_t first_row, AmError *error) {
    for (int32_t r = first_row; r < self->found->count; r++) {
        IrAttention *row = &self->found->rows[r];
        if (row->reason) continue;
        memset(self->marked, 0, sizeof(bool) * (size_t)self->body->count);
        for (int32_t k = 0; k < row->member_count; k++) {
            int32_t member = row->members[k] - self->body->first;
            if (self->found->owner[row->members[k]] != r) continue;
            self->marked[member] = row->members[k] == self->body->root;
            for (int32_t u = self->first_user[member]; u < self->first_user[member + 1]; u++)
                self->marked[member] |= self->found->owner[self->body->first + self->users[u]] < 0;
        }
        for (int32_t other = first_row; other < self->found->count; other++)
            for (int32_t k = 0; other != r && k < self->found->rows[other].operand_count; k++)
                if (self->found->owner[self->found->rows[other].operands[k]] == r)
                    self->marked[self->found->rows[other].operands[k] - self->body->first] = true;
        row->results = list_marked(self, self->marked, &row->result_count);
    }
    return self->arena->failed ? am_fail_memory(error, self->body->count) : AM_OK;
}

static AmStatus find_in(AttentionFinder *self, AmError *error) {
    int32_t count = self->body->count, first_row = self->found->count;
    TRY(find_groups(self, error));
    int32_t *sizes = ARENA_ARRAY(&self->scratch, int32_t, count + 1);
    int32_t *members = ARENA_ARRAY(&self->scratch, int32_t, count + 1);
    int32_t *first = ARENA_ARRAY(&self->scratch, int32_t, count + 1);
    if (self->scratch.failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++)
        if (belongs(self, i)) sizes[union_find_root(self->group, i)]++;
    for (int32_t i = 0, at = 0; i < count; at += sizes[i++]) first[i] = at;
    memset(sizes, 0, sizeof *sizes * (size_t)count);
    for (int32_t i = 0; i < count; i++)
        if (belongs(self, i))
            members[first[union_find_root(self->group, i)] + sizes[union_find_root(self->group, i)]++] = i;
    for (int32_t i = 0; i < count; i++) {
        if (sizes[i] == 0) continue;
        AttentionGroup group = {.members = members + first[i], .count = sizes[i], .consumer = -1};
        TRY(add_group(self, &group, error));
    }
    return find_results(self, first_row, error);
}

/* Marks the entry and the computations of loops and branches. */
static AmStatus mark_bodies(const IrModule *module, bool *is_body, Arena *scratch, AmError *error) {
    int32_t *stack = ARENA_ARRAY(scratch, int32_t, module->computation_count + 1), depth = 0;
    if (!stack) return am_fail_memory(error, module->computation_count);
    is_body[module->entry] = true;
    stack[depth++] = module->entry;
    while (depth > 0) {
        const IrComputation *body = &module->computations[stack[--depth]];
        for (int32_t i = body->first; i < body->first + body->count; i++) {
            const IrInstruction *instruction = &module->instructions[i];
            if (instruction->opcode != IR_WHILE && instruction->opcode != IR_CONDITIONAL) continue;
            for (int32_t k = 0; k < instruction->called_count; k++) {
                if (is_body[instruction->called[k]]) continue;
                is_body[instruction->called[k]] = true;
                stack[depth++] = instruction->called[k];
            }
        }
    }
    return AM_OK;
}

AmStatus ir_find_attention(IrAttentions **found, Arena *arena, const IrModule *canonical,
                           const IrPhase *phases, AmError *error) {
    IrAttentions *made = ARENA_ARRAY(arena, IrAttentions, 1);
    int32_t *owner = ARENA_ARRAY(arena, int32_t, canonical->instruction_count + 1);
    AttentionFinder self = {.module = canonical, .phases = phases, .found = made, .arena = arena};
    bool *is_body = ARENA_ARRAY(&self.scratch, bool, canonical->computation_count + 1);
    AmStatus status = AM_OK;
    if (!made || !owner || !is_body) status = am_fail_memory(error, canonical->instruction_count);
    else status = mark_bodies(canonical, is_body, &self.scratch, error);
    if (status == AM_OK)
        made->owner = memset(owner, -1, sizeof *owner * (size_t)canonical->instruction_count);
    if (status == AM_OK) status = ir_find_loop_constants(&made->same, arena, canonical, is_body, error);
    for (int32_t c = 0; status == AM_OK && c < canonical->computation_count; c++) {
        if (!is_body[c]) continue;
        ArenaMark mark = arena_mark(&self.scratch);
        self.body = &canonical->computations[c];
        self.at = canonical->instructions + self.body->first;
        status = find_in(&self, error);
        arena_release(&self.scratch, mark);
    }
    arena_free(&self.scratch);
    *found = made;
    return status;
}

int32_t ir_count_attention(const IrAttentions *found) {
    int32_t count = 0;
    for (int32_t r = 0; r < found->count; r++) count += !found->rows[r].reason;
    return count;
}
