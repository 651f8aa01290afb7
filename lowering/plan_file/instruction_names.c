/* Finds the weight of each instruction by data flow, and its place in its group by depth. One pass over the
 * entry each; names are looked up by the hash of their group.
 */
#include "lowering/plan_file/instruction_names.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/lower_bound.h"
#include "ir/dataflow.h"

enum { NO_WEIGHT = -1 };

typedef struct NameBuilder {
    InstructionNames *names;
    const IrModule *module;
    const IrRoles *roles;
    IrDataflow flow;
    int32_t *rank;    /* [parameter]: place of a weight in the order of first uses, or -1 */
    int32_t *by_rank; /* [weight]: parameter */
} NameBuilder;

static bool is_arithmetic(const IrInstruction *instruction) {
    return instruction->opcode != IR_PARAMETER && instruction->opcode != IR_TUPLE &&
           instruction->opcode != IR_GET_TUPLE_ELEMENT && instruction->opcode != IR_OPT_BARRIER &&
           !ir_opcode_has(instruction->opcode, FACT_MOVES | FACT_NO_FLOPS);
}

static void find_depths(const NameBuilder *self) {
    int32_t *depth = self->names->depth;
    for (int32_t i = 0; i < self->names->count; i++) {
        const IrInstruction *instruction = &self->module->instructions[i];
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = ir_dataflow_operand(&self->flow, instruction, k);
            if (depth[i] < depth[operand]) depth[i] = depth[operand];
        }
        depth[i] += is_arithmetic(instruction);
    }
}

/* A weight in the order of first uses. */
typedef struct WeightUse {
    int32_t depth, parameter;
    const char *path;
} WeightUse;

/* Returns a hash of a path that is the same for all orders of its words and numbers. */
static uint64_t hash_unordered(const char *path) {
    uint64_t sum = 0, word = 0;
    for (; *path; path++) {
        bool is_letter = (*path >= 'a' && *path <= 'z') || (*path >= 'A' && *path <= 'Z');
        bool is_digit = *path >= '0' && *path <= '9';
        if (is_letter || is_digit) word = hash_combine(word, (uint64_t)*path);
        else sum += word, word = 0;
    }
    return sum + word;
}

static int compare_uses(const void *left, const void *right) {
    const WeightUse *a = left, *b = right;
    if (a->depth != b->depth) return a->depth < b->depth ? -1 : 1;
    uint64_t x = hash_unordered(a->path), y = hash_unordered(b->path);
    if (x != y) return x < y ? -1 : 1;
    return (a->parameter > b->parameter) - (a->parameter < b->parameter);
}

/* Orders the weights by the depth of the first forward arithmetic operator that reads each. */
static AmStatus rank_weights(NameBuilder *self, Arena *arena, AmError *error) {
    int32_t count = self->names->count, parameters = self->roles->parameter_count, weights = 0;
    int32_t *carried =
        ARENA_ARRAY(arena, int32_t, count + 1); /* the weight behind a value that is a view; -1: none */
    WeightUse *uses = ARENA_ARRAY(arena, WeightUse, parameters + 1);
    self->rank = ARENA_ARRAY(arena, int32_t, parameters + 1);
    self->by_rank = ARENA_ARRAY(arena, int32_t, parameters + 1);
    if (arena->failed) return am_fail_memory(error, count);
    for (int32_t i = 0; i < count; i++) carried[i] = -1;
    for (int32_t p = 0; p < parameters; p++) {
        const IrParameter *parameter = &self->roles->parameters[p];
        uses[p] = (WeightUse){INT32_MAX, p, parameter->path};
        if (parameter->role == IR_ROLE_WEIGHT) carried[parameter->instruction] = p;
        self->rank[p] = -1;
    }
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *instruction = &self->module->instructions[i];
        bool is_work = is_arithmetic(instruction) || instruction->operand_count > 1;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t weight = carried[ir_dataflow_operand(&self->flow, instruction, k)];
            if (weight < 0) continue;
            if (!is_work) carried[i] = weight;
            else if (self->roles->phases[i] == IR_PHASE_FORWARD && self->names->depth[i] < uses[weight].depth)
                uses[weight].depth = self->names->depth[i];
        }
    }
    for (int32_t p = 0; p < parameters; p++)
        if (self->roles->parameters[p].role == IR_ROLE_WEIGHT) uses[weights++] = uses[p];
    qsort(uses, (size_t)weights, sizeof *uses, compare_uses);
    for (int32_t k = 0; k < weights; k++) {
        self->rank[uses[k].parameter] = k;
        self->by_rank[k] = uses[k].parameter;
    }
    return AM_OK;
}

/* Sets [instruction] to the rank of the last weight among its ancestors. */
static void find_last_read(const NameBuilder *self, int32_t *last) {
    for (int32_t i = 0; i < self->names->count; i++) {
        const IrInstruction *instruction = &self->module->instructions[i];
        last[i] = NO_WEIGHT;
        if (instruction->opcode == IR_PARAMETER) {
            last[i] = self->rank[instruction->attributes->parameter_number];
            continue;
        }
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = ir_dataflow_operand(&self->flow, instruction, k);
            if (last[i] < last[operand]) last[i] = last[operand];
        }
    }
}

static void take_updated(int32_t *updated, int32_t rank, bool is_first) {
    bool is_better = is_first ? rank < *updated : rank > *updated;
    if (rank != NO_WEIGHT && (*updated == NO_WEIGHT || is_better)) *updated = rank;
}

/* Sets [instruction] to the rank of a weight whose new value needs it: the first one for the update, where
 * norms of all gradients meet, else the last one. */
static void find_updated(const NameBuilder *self, int32_t *updated) {
    const IrRoles *roles = self->roles;
    for (int32_t i = 0; i < self->names->count; i++) updated[i] = NO_WEIGHT;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t output = roles->parameters[p].output;
        if (self->rank[p] >= 0 && output >= 0)
            take_updated(&updated[self->flow.sources[roles->outputs[output]]], self->rank[p], true);
    }
    for (int32_t i = self->names->count - 1; i >= 0; i--) {
        const IrInstruction *instruction = &self->module->instructions[i];
        if (updated[i] == NO_WEIGHT) continue;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = ir_dataflow_operand(&self->flow, instruction, k);
            take_updated(&updated[operand], updated[i], roles->phases[operand] == IR_PHASE_OPTIMIZER);
        }
    }
}

static void find_anchors(const NameBuilder *self, const int32_t *last, const int32_t *updated) {
    const int32_t *repeats = self->roles->repeats;
    for (int32_t i = 0; i < self->names->count; i++) {
        IrPhase phase = self->roles->phases[i];
        bool is_made_once = phase == IR_PHASE_BACKWARD || phase == IR_PHASE_OPTIMIZER;
        bool is_repeat =
            phase == IR_PHASE_RECOMPUTED && repeats && repeats[i] >= 0 && repeats[i] < self->names->count;
        int32_t rank =
            is_made_once && updated[i] != NO_WEIGHT ? updated[i] : last[is_repeat ? repeats[i] : i];
        self->names->anchor[i] = rank == NO_WEIGHT ? -1 : self->by_rank[rank];
    }
}

/* An instruction in the order of groups, then of places. */
struct NamedInstruction {
    uint64_t group; /* hash of phase, opcode, shape and weight */
    int32_t depth, instruction;
};
typedef struct NamedInstruction NamedInstruction;

static int compare_named(const void *left, const void *right) {
    const NamedInstruction *a = left, *b = right;
    if (a->group != b->group) return a->group < b->group ? -1 : 1;
    if (a->depth != b->depth) return a->depth < b->depth ? -1 : 1;
    return (a->instruction > b->instruction) - (a->instruction < b->instruction);
}

static void append_kind(Text *text, const PlanContext *context, int32_t instruction) {
    const IrInstruction *named = plan_context_instruction(context, instruction);
    text_append(text, "%s %s ", ir_phase_name(context->roles->phases[instruction]), named->opcode_name);
    ir_shape_append(text, &named->shape);
}

static uint64_t hash_group(const char *kind, size_t length, int32_t anchor) {
    return hash_combine(hash_bytes(kind, length, 1), (uint64_t)anchor);
}

static AmStatus sort_names(InstructionNames *names, Arena *arena, AmError *error) {
    Text kind = {0};
    names->sorted = ARENA_ARRAY(arena, NamedInstruction, names->count + 1);
    if (!names->sorted) return am_fail_memory(error, names->count);
    for (int32_t i = 0; i < names->count; i++) {
        kind.length = 0;
        append_kind(&kind, names->context, i);
        uint64_t group = kind.failed ? 0 : hash_group(kind.data, kind.length, names->anchor[i]);
        names->sorted[i] = (NamedInstruction){group, names->depth[i], i};
    }
    AmStatus status = kind.failed ? am_fail_memory(error, names->count) : AM_OK;
    text_free(&kind);
    TRY(status);
    qsort(names->sorted, (size_t)names->count, sizeof *names->sorted, compare_named);
    for (int32_t first = 0, end; first < names->count; first = end) {
        end = first + 1;
        while (end < names->count && names->sorted[end].group == names->sorted[first].group) end++;
        for (int32_t k = first; k < end; k++) {
            names->place[names->sorted[k].instruction] = k - first + 1;
            names->group[names->sorted[k].instruction] = end - first;
        }
    }
    return AM_OK;
}

AmStatus instruction_names_make(InstructionNames *names, Arena *arena, const PlanContext *context,
                                AmError *error) {
    int32_t count = context->rules->entry_count;
    NameBuilder self = {.names = names, .module = context->canonical, .roles = context->roles};
    *names = (InstructionNames){.context = context,
                                .count = count,
                                .anchor = ARENA_ARRAY(arena, int32_t, count + 1),
                                .depth = ARENA_ARRAY(arena, int32_t, count + 1),
                                .place = ARENA_ARRAY(arena, int32_t, count + 1),
                                .group = ARENA_ARRAY(arena, int32_t, count + 1)};
    int32_t *last = ARENA_ARRAY(arena, int32_t, count + 1), *updated = ARENA_ARRAY(arena, int32_t, count + 1);
    if (arena->failed) return am_fail_memory(error, count);
    TRY(ir_dataflow_make(&self.flow, arena, context->canonical, error));
    find_depths(&self);
    TRY(rank_weights(&self, arena, error));
    find_last_read(&self, last);
    find_updated(&self, updated);
    find_anchors(&self, last, updated);
    return sort_names(names, arena, error);
}

#define ANCHOR_WORD " at "

void instruction_names_append(Text *text, const InstructionNames *names, int32_t instruction) {
    int32_t anchor = names->anchor[instruction];
    append_kind(text, names->context, instruction);
    text_append(text, " %d/%d", names->place[instruction], names->group[instruction]);
    if (anchor >= 0)
        text_append(text, ANCHOR_WORD "%s", plan_context_parameter(names->context, anchor)->path);
}

int32_t instruction_names_find(const InstructionNames *names, const ParameterKeys *keys, const char *name) {
    const char *path = strstr(name, ANCHOR_WORD), *end = path ? path : name + strlen(name), *kind = end;
    int place, group;
    while (kind > name && *kind != ' ') kind--;
    if (path && kind == path)
        for (kind--; kind > name && *kind != ' ';) kind--;
    if (sscanf(kind, " %d/%d", &place, &group) != 2) return -1;
    int32_t anchor = path ? parameter_keys_find(keys, path + strlen(ANCHOR_WORD)) : -1;
    if (path && anchor < 0) return -1;
    uint64_t wanted = hash_group(name, (size_t)(kind - name), anchor);
    const NamedInstruction key = {.group = wanted, .depth = -1};
    int32_t first = lower_bound(&key, names->sorted, names->count, sizeof key, compare_named);
    if (first == names->count || names->sorted[first].group != wanted || place < 1 || place > group)
        return -1;
    int32_t found = names->sorted[first].instruction;
    return names->group[found] == group ? names->sorted[first + place - 1].instruction : -1;
}

int32_t instruction_names_at_or_after(const InstructionNames *names, int32_t place) {
    const PlanContext *context = names->context;
    for (int32_t i = place; i < names->count; i++)
        if (context->roles->phases[i] == IR_PHASE_FORWARD &&
            is_arithmetic(plan_context_instruction(context, i)))
            return i;
    return -1;
}
