/* Paths over separate steps, 256 steps at a time.
 *
 * Readers of one value that are in different steps form chains: each waits for a step that waits
 * for the previous reader. The value is read once per reader of a chain. The longest chain counts.
 *
 * One bit set per instruction marks which of 256 steps wait for it, and another one for which of them
 * it waits; one pass over the module finds both. If the sets of an operand and of its reader
 * intersect, a path leads from the one to the other over that step.
 */
#include "cost/relaxation/fusion_groups.h"

#include <math.h>
#include <string.h>

#include "base/union_find.h"
#include "lowering/program/program.h"

enum { STEPS_AT_ONCE = 256, STEPS_OF_WORD = 64 };

/* A set of steps. */
typedef uint64_t StepSet __attribute__((vector_size(STEPS_AT_ONCE / 8), aligned(8), may_alias));

bool fusion_groups_reduces_ones(const IrModule *module, int32_t i) {
    const IrInstruction *instruction = &module->instructions[i];
    return instruction->opcode == IR_REDUCE && instruction->shape.type != DTYPE_TUPLE &&
           ir_shape_elements(&instruction->shape) ==
               ir_shape_elements(&module->instructions[instruction->operands[0]].shape);
}

bool fusion_groups_is_element_wise(const IrModule *module, int32_t i) {
    const IrInstruction *instruction = &module->instructions[i];
    return ir_is_elementwise(instruction->opcode) && instruction->opcode != IR_COPY &&
           instruction->operand_count <= 3;
}

bool fusion_groups_may_be_taken(const PlanContext *context, int32_t i) {
    const IrModule *module = context->canonical;
    const SplitOptions *split_options = context->split_options;
    Dtype type = module->instructions[i].shape.type;
    if (module->instructions[i].opcode != IR_ADD || (type != DTYPE_F32 && !dtype_is_16bit_float(type)))
        return false;
    for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
        int32_t producer = split_options->operands[k];
        while (module->instructions[producer].opcode == IR_TRANSPOSE)
            producer = split_options->operands[split_options->first_operand[producer]];
        if (ir_is_matrix_product(module->instructions[producer].opcode)) return true;
    }
    return false;
}

static bool is_widening(const IrModule *module, int32_t i) {
    const IrInstruction *instruction = &module->instructions[i];
    return instruction->opcode == IR_CONVERT &&
           dtype_is_16bit_float(module->instructions[instruction->operands[0]].shape.type);
}

bool fusion_groups_may_vanish(const PlanContext *context, int32_t i) {
    return is_widening(context->canonical, i) || fusion_groups_may_be_taken(context, i);
}

/* Returns whether the instruction is a step of its own in every plan. Views, values recomputed at
 * their users, and transposes, which may become part of a product, are excluded. */
static bool is_step(const PlanContext *context, int32_t i) {
    const IrModule *module = context->canonical;
    if (context->rules->on_demand[i] || fusion_groups_is_element_wise(module, i)) return false;
    switch (module->instructions[i].opcode) {
    case IR_PARAMETER:
    case IR_CONSTANT:
    case IR_TUPLE:
    case IR_GET_TUPLE_ELEMENT:
    case IR_COPY:
    case IR_RESHAPE:
    case IR_BITCAST:
    case IR_BROADCAST:
    case IR_TRANSPOSE:
    case IR_OPT_BARRIER: return false;
    default: return !fusion_groups_reduces_ones(module, i);
    }
}

enum { MOST_READERS = 32 };

/* An element-wise reader of a value. */
typedef struct FusionReader {
    int32_t place;  /* in choices->operands */
    int32_t reader; /* instruction */
    uint32_t
        later; /* readers of the same value (bits, in their order) that wait for a step that waits for it */
} FusionReader;

typedef struct Paths {
    Arena *arena;
    const PlanContext *context;
    StepSet *is_one;     /* [instruction]: itself, if it is among the current steps */
    StepSet *waited_for; /* [instruction]: steps that wait for it */
    StepSet *waits_for;  /* [instruction]: steps that it waits for */
    bool *is_cut;        /* place in choices->operands: reader and operand are never in one fusion */
    bool *is_wanted; /* [instruction]: other operators than element-wise ones read it, or it is an output */
    int32_t *leaf;   /* [instruction]: see find_leaf() */
    double *amount;  /* [instruction]: bytes that a fusion reads of it or of its leaf at least */
    int32_t *rounded_for; /* [instruction]: an element-wise reader, where may_be_rounded() */
    int32_t *first;       /* [instruction + 1]: its readers */
    FusionReader *readers;
} Paths;

/* A reader that recomputes a value in its fusion reads at least one of the value's operands, or
 * their sources; the one with the most bytes represents it. Values without operands cost nothing. */
enum { NOT_RECOMPUTED = -1, OF_NOTHING = -2 };
enum { MOST_OPERANDS = 3 };

/* Sets leaf and amount of an element-wise operator. */
static void find_leaf(const Paths *self, int32_t i) {
    const SplitOptions *split_options = self->context->split_options;
    int32_t leaves[MOST_OPERANDS], count = 0, first = split_options->first_operand[i], best = -1;
    double amounts[MOST_OPERANDS], made_of = 0;
    for (int32_t k = first; k < split_options->first_operand[i + 1] && k < first + MOST_OPERANDS; k++) {
        int32_t source = split_options->operands[k], n = 0;
        int32_t leaf = self->leaf[source] == NOT_RECOMPUTED ? source : self->leaf[source];
        if (self->context->rules->on_demand[source] || leaf == OF_NOTHING) continue;
        while (n < count && leaves[n] != leaf) n++;
        if (n == count) amounts[count++] = 0;
        leaves[n] = leaf;
        amounts[n] = fmax(amounts[n], self->amount[source]);
    }
    for (int32_t n = 0; n < count; n++) {
        made_of += amounts[n];
        if (best < 0 || amounts[n] > amounts[best] ||
            (amounts[n] == amounts[best] && leaves[n] > leaves[best])) /* the later: fewer are made of it */
            best = n;
    }
    /* The value is in memory in every plan and has no more bytes than its sources. Such a value is not
     * recomputed, since choose_recomputed() of lowering/passes/fuse.c would save nothing, and its sources are
     * not examined. */
    if (self->is_wanted[i] && made_of >= self->context->split_options->array_bytes[i]) return;
    self->leaf[i] = best < 0 ? OF_NOTHING : leaves[best];
    if (best >= 0) self->amount[i] = fmin(self->amount[i], amounts[best]);
}

static void find_leaves(const Paths *self) {
    const PlanContext *context = self->context;
    /* Values that other operators than element-wise ones read, or that are outputs: */
    const SplitOptions *split_options = self->context->split_options;
    const IrRoles *roles = self->context->roles;
    for (int32_t i = 0; i < split_options->count; i++) {
        if (!split_options->live[i] || fusion_groups_is_element_wise(self->context->canonical, i)) continue;
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++)
            self->is_wanted[split_options->operands[k]] = true;
    }
    for (int32_t k = 0; k < roles->output_count; k++)
        self->is_wanted[self->context->rules->alias[roles->outputs[k]]] = true;
    for (int32_t i = 0; i < context->split_options->count; i++) {
        self->leaf[i] = NOT_RECOMPUTED;
        self->amount[i] = context->split_options->array_bytes[i];
    }
    for (int32_t n = 0; n < context->split_options->decided_count; n++) {
        int32_t i = context->split_options->decided[n];
        if (fusion_groups_is_element_wise(context->canonical, i) &&
            ir_opcode_has(plan_context_instruction(context, i)->opcode, FACT_RECOMPUTABLE))
            find_leaf(self, i);
    }
}

/* Returns the value that an element-wise reader pays for, in place of an operand that it may make again. */
static int32_t paid_value(const Paths *self, int32_t place) {
    int32_t source = self->context->split_options->operands[place], leaf = self->leaf[source];
    return leaf == NOT_RECOMPUTED ? source : leaf;
}

/* Finds the paths over the current steps, the instructions from `first` to `last`: nothing before these waits
 * for them, and they wait for nothing after them. */
static void find_paths(const Paths *self, int32_t first, int32_t last) {
    const SplitOptions *split_options = self->context->split_options;
    memset(self->waited_for, 0, sizeof *self->waited_for * ((size_t)last + 1));
    memset(self->waits_for, 0, sizeof *self->waits_for * ((size_t)first + 1));
    for (int32_t i = first + 1; i < split_options->count; i++) {
        StepSet steps = {0};
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++)
            steps |= self->waits_for[split_options->operands[k]] | self->is_one[split_options->operands[k]];
        self->waits_for[i] = steps;
    }
    for (int32_t i = last; i >= 0; i--)
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++)
            self->waited_for[split_options->operands[k]] |= self->waited_for[i] | self->is_one[i];
}

static bool reads(const Paths *self, int32_t i, int32_t place) {
    return fusion_groups_is_element_wise(self->context->canonical, i) &&
           !self->context->rules->on_demand[self->context->split_options->operands[place]] &&
           paid_value(self, place) != OF_NOTHING;
}

/* Lists readers by the values that they read, in the order of the program. */
static AmStatus list_readers(Paths *self, AmError *error) {
    const SplitOptions *split_options = self->context->split_options;
    int32_t count = plan_context_count(self->context);
    self->first = ARENA_ARRAY(self->arena, int32_t, count + 2);
    self->readers = ARENA_ARRAY(self->arena, FusionReader, split_options->first_operand[count] + 1);
    if (self->arena->failed) return am_fail_memory(error, count);
    for (int32_t n = 0; n < split_options->decided_count; n++)
        for (int32_t i = split_options->decided[n], k = split_options->first_operand[i];
             k < split_options->first_operand[i + 1]; k++)
            if (reads(self, i, k)) self->first[paid_value(self, k) + 2]++;
    for (int32_t i = 0; i < count; i++) self->first[i + 2] += self->first[i + 1];
    for (int32_t n = 0; n < split_options->decided_count; n++)
        for (int32_t i = split_options->decided[n], k = split_options->first_operand[i];
             k < split_options->first_operand[i + 1]; k++)
            if (reads(self, i, k))
                self->readers[self->first[paid_value(self, k) + 1]++] =
                    (FusionReader){.place = k, .reader = i};
    return AM_OK;
}

static bool is_between(const Paths *self, int32_t before, int32_t after) {
    const StepSet both = self->waited_for[before] & self->waits_for[after];
    return (both[0] | both[1] | both[2] | both[3]) != 0;
}

/* Marks the operands that the current steps, from `first` to `last`, separate from their readers. */
static void separate(const Paths *self, bool *is_from_memory, int32_t first, int32_t last) {
    const SplitOptions *split_options = self->context->split_options;
    for (int32_t i = first + 1; i < split_options->count; i++)
        for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++)
            self->is_cut[k] |= is_between(self, split_options->operands[k], i);
    for (int32_t source = 0; source < last; source++) {
        FusionReader *readers = &self->readers[self->first[source]];
        int32_t count = self->first[source + 1] - self->first[source];
        for (int32_t a = 0; a < count; a++) {
            is_from_memory[readers[a].place] |= is_between(self, source, readers[a].reader);
            for (int32_t b = a + 1; b < count && b < MOST_READERS; b++)
                if (is_between(self, readers[a].reader, readers[b].reader)) readers[a].later |= 1u << b;
        }
    }
}

/* Finds the longest chain among the readers of one group that take a value from memory, preferring
 * readers that run in every plan: if another vanishes, its users read the value instead. */
static void choose_chain(const FusionReader *readers, int32_t count, int32_t group,
                         FusionGroups *fusion_groups, const PlanContext *context) {
    enum { LINK = MOST_READERS + 1 }; /* one more reader counts more than all that run */
    int32_t worth[MOST_READERS], next[MOST_READERS], best = -1;
    for (int32_t a = count - 1; a >= 0; a--) {
        worth[a] = 0;
        if (!fusion_groups->is_from_memory[readers[a].place] ||
            fusion_groups->group[readers[a].reader] != group)
            continue;
        int32_t own = LINK + !fusion_groups_may_vanish(context, readers[a].reader);
        worth[a] = own;
        next[a] = -1;
        for (int32_t b = a + 1; b < count; b++)
            if (readers[a].later >> b & 1 && worth[b] > 0 && own + worth[b] > worth[a]) {
                worth[a] = own + worth[b];
                next[a] = b;
            }
        if (best < 0 || worth[a] >= worth[best]) best = a;
    }
    int32_t launches = best < 0 ? 0 : worth[best] % LINK;
    for (; best >= 0; best = next[best]) fusion_groups->is_paid[readers[best].place] = true;
    if (launches > fusion_groups->launches[group]) fusion_groups->launches[group] = launches;
}

/* Readers of different groups read a value each for itself. */
static void choose_chains(const FusionReader *readers, int32_t count, FusionGroups *fusion_groups,
                          const PlanContext *context) {
    if (count > MOST_READERS) count = MOST_READERS;
    for (int32_t a = 0; a < count; a++) {
        int32_t group = fusion_groups->group[readers[a].reader];
        bool is_done = false;
        for (int32_t b = 0; b < a && !is_done; b++)
            is_done = fusion_groups->group[readers[b].reader] == group;
        if (!is_done) choose_chain(readers, count, group, fusion_groups, context);
    }
}

/* ---- groups ---- */

static void find_groups(const Paths *self, int32_t *group) {
    int32_t *rounded_for = self->rounded_for;
    const SplitOptions *split_options = self->context->split_options;
    const IrModule *module = self->context->canonical;
    for (int32_t i = 0; i < split_options->count; i++) {
        bool is_member = split_options->live[i] && self->context->rules->alias[i] == i &&
                         fusion_groups_is_element_wise(module, i);
        group[i] = is_member ? i : -1;
        rounded_for[i] = -1;
    }
    for (int32_t i = 0; i < split_options->count; i++)
        for (int32_t k = split_options->first_operand[i];
             k < split_options->first_operand[i + 1] && group[i] >= 0; k++) {
            int32_t source = split_options->operands[k];
            if (group[source] >= 0 && !self->is_cut[k]) union_find_join(group, i, source);
            /* A conversion of its own may round the f32 sum of a value's parts. It may be in one fusion with
             * any reader, and so brings all of them together. */
            const IrInstruction *summed = plan_context_instruction(self->context, source);
            bool may_be_rounded =
                dtype_is_16bit_float(summed->shape.type) &&
                (ir_is_matrix_product(summed->opcode) || split_options->linearity[source] != LINEARITY_NONE);
            if (group[source] >= 0 || !may_be_rounded) continue;
            if (rounded_for[source] >= 0) union_find_join(group, i, rounded_for[source]);
            rounded_for[source] = i;
        }
    for (int32_t i = 0; i < split_options->count; i++)
        if (group[i] >= 0) group[i] = union_find_root(group, i);
}

/* Returns whether the instruction runs in every plan. Scalars are excluded: they may be indices
 * without readers. */
static bool runs_always(const FusionGroups *fusion_groups, const PlanContext *context, int32_t i) {
    return fusion_groups->group[i] >= 0 && plan_context_instruction(context, i)->shape.rank > 0 &&
           !fusion_groups_may_vanish(context, i);
}

static void find_read_on(const Paths *self, const FusionGroups *fusion_groups) {
    const PlanContext *context = self->context;
    const SplitOptions *split_options = context->split_options;
    for (int32_t i = split_options->count - 1; i >= 0; i--) {
        bool hands_on = runs_always(fusion_groups, context, i) ||
                        (fusion_groups->is_read_on[i] && is_widening(context->canonical, i));
        for (int32_t k = split_options->first_operand[i]; hands_on && k < split_options->first_operand[i + 1];
             k++)
            if (fusion_groups->group[split_options->operands[k]] == fusion_groups->group[i] &&
                !self->is_cut[k])
                fusion_groups->is_read_on[split_options->operands[k]] = true;
    }
}

/* Counts a launch for each group that runs, or as many as the longest chain of its readers; at the
 * group's first decided operator, or else at its first operator made on demand. */
static AmStatus count_launches(FusionGroups *fusion_groups, Arena *arena, const PlanContext *context,
                               AmError *error) {
    const SplitOptions *split_options = context->split_options;
    int32_t *at = ARENA_ARRAY(arena, int32_t, split_options->count + 1);
    int32_t *launches = ARENA_ARRAY(arena, int32_t, split_options->count + 1);
    if (arena->failed) return am_fail_memory(error, split_options->count);
    for (int32_t i = 0; i < split_options->count; i++) at[i] = -1;
    for (int32_t n = split_options->decided_count - 1; n >= 0; n--) {
        int32_t i = split_options->decided[n];
        if (runs_always(fusion_groups, context, i)) at[fusion_groups->group[i]] = i;
    }
    for (int32_t i = split_options->count - 1; i >= 0; i--)
        if (context->rules->on_demand[i] && runs_always(fusion_groups, context, i) &&
            (at[fusion_groups->group[i]] < 0 || context->rules->on_demand[at[fusion_groups->group[i]]]))
            at[fusion_groups->group[i]] = i;
    /* One launch for an iota that is read through a broadcast: it is written in a step of its own. */
    const IrInstruction *instructions = context->canonical->instructions;
    for (int32_t i = 0; i < split_options->count; i++)
        for (int32_t k = split_options->first_operand[i];
             k < split_options->first_operand[i + 1] && runs_always(fusion_groups, context, i); k++) {
            int32_t source = split_options->operands[k];
            if (instructions[source].opcode != IR_BROADCAST) continue;
            do source = split_options->operands[split_options->first_operand[source]];
            while (instructions[source].opcode == IR_RESHAPE);
            if (instructions[source].opcode == IR_IOTA) launches[source] = 1;
        }
    for (int32_t g = 0; g < split_options->count; g++)
        if (at[g] >= 0) launches[at[g]] = fusion_groups->launches[g] > 0 ? fusion_groups->launches[g] : 1;
    fusion_groups->launches = launches;
    return AM_OK;
}

AmStatus fusion_groups_find(FusionGroups *fusion_groups, Arena *arena, const PlanContext *context,
                            AmError *error) {
    int32_t count = context->rules->count, places = context->split_options->first_operand[count];
    *fusion_groups = (FusionGroups){.is_from_memory = ARENA_ARRAY(arena, bool, places + 1),
                                    .is_paid = ARENA_ARRAY(arena, bool, places + 1),
                                    .is_recomputed = ARENA_ARRAY(arena, bool, places + 1),
                                    .share = ARENA_ARRAY(arena, float, places + 1),
                                    .group = ARENA_ARRAY(arena, int32_t, count + 1),
                                    .launches = ARENA_ARRAY(arena, int32_t, count + 1),
                                    .is_read_on = ARENA_ARRAY(arena, bool, count + 1)};
    ArenaMark mark = arena_mark(arena);
    Paths self = {.arena = arena,
                  .context = context,
                  .is_cut = ARENA_ARRAY(arena, bool, places + 1),
                  .is_wanted = ARENA_ARRAY(arena, bool, count + 1),
                  .leaf = ARENA_ARRAY(arena, int32_t, count + 1),
                  .amount = ARENA_ARRAY(arena, double, count + 1),
                  .rounded_for = ARENA_ARRAY(arena, int32_t, count + 1),
                  .is_one = ARENA_ARRAY(arena, StepSet, count + 1),
                  .waited_for = ARENA_ARRAY(arena, StepSet, count + 1),
                  .waits_for = ARENA_ARRAY(arena, StepSet, count + 1)};
    if (arena->failed) return am_fail_memory(error, (int64_t)count * 64);
    find_leaves(&self);
    const SplitOptions *split_options = self.context->split_options;
    for (int32_t place = 0; place < split_options->first_operand[split_options->count]; place++) {
        int32_t source = split_options->operands[place], leaf = self.leaf[source];
        fusion_groups->is_recomputed[place] = leaf != NOT_RECOMPUTED;
        fusion_groups->share[place] = 1;
        if (leaf >= 0)
            fusion_groups->share[place] = (float)(self.amount[source] / split_options->array_bytes[source]);
    }
    TRY(list_readers(&self, error));
    for (int32_t next = 0; next < count;) {
        int32_t looked_at = 0, first = next;
        for (; next < count && looked_at < STEPS_AT_ONCE; next++) {
            if (!context->split_options->live[next] || !is_step(context, next)) continue;
            self.is_one[next][looked_at / STEPS_OF_WORD] = (uint64_t)1 << looked_at % STEPS_OF_WORD;
            looked_at++;
        }
        if (looked_at == 0) break;
        find_paths(&self, first, next - 1);
        separate(&self, fusion_groups->is_from_memory, first, next - 1);
        memset(&self.is_one[first], 0, sizeof *self.is_one * (size_t)(next - first));
    }
    find_groups(&self, fusion_groups->group);
    for (int32_t source = 0; source < count; source++) {
        const FusionReader *readers = &self.readers[self.first[source]];
        int32_t reader_count = self.first[source + 1] - self.first[source];
        if (!fusion_groups_is_element_wise(context->canonical, source))
            for (int32_t k = 0; k < reader_count; k++) fusion_groups->is_from_memory[readers[k].place] = true;
        choose_chains(readers, reader_count, fusion_groups, context);
    }
    find_read_on(&self, fusion_groups);
    arena_release(arena, mark);
    return count_launches(fusion_groups, arena, context, error);
}
