/* A user's hints on scopes of operators: replicate, and split over an axis.
 *
 * Names are compared as paths of words. JAX wraps a component in its transforms,
 * "transpose(jvp(layer))", and writes a parameter's path as a Python expression. Characters other
 * than letters, digits, '_' and '-' separate words, and the names of transforms before '(' are
 * dropped.
 */
#include "propagation/propagate/scopes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/suggest.h"
#include "propagation/groups/strict.h"
#include "propagation/propagate/path_pattern.h"

bool scopes_is_scope(const PropagationPin *pin) {
    PinKind kind = pin_kind(pin);
    return kind == PIN_REPLICATE || kind == PIN_SPLIT || kind == PIN_SCOPE_SHARDING;
}

bool scopes_is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Returns the path as words with '/' before each and one after the last, with or without marks; the C
 * heap's, NULL without memory. */
static char *words_of(const char *path, bool keeps_marks) {
    size_t length = strlen(path), made = 0;
    char *words = malloc(length * 2 + 3);
    if (!words) return NULL;
    for (size_t at = 0; at < length;) {
        size_t end = at;
        while (scopes_is_word(path[end])) end++;
        bool is_mark = strncmp(path + at, SCOPES_MARK, strlen(SCOPES_MARK)) == 0;
        if (end > at && path[end] != '(' && (keeps_marks || !is_mark)) {
            words[made++] = '/';
            memcpy(words + made, path + at, end - at);
            made += end - at;
        }
        at = end > at ? end : at + 1;
    }
    words[made++] = '/';
    words[made] = '\0';
    return words;
}

/* Returns whether pattern matches a beginning of the text that ends where a word does;
 * '*' and ".*" are any text. Only the last wildcard is ever tried again. */
static bool matches_words(const char *pattern, const char *text) {
    const char *star = NULL, *retry = NULL;
    for (;;) {
        if (*pattern == '\0' && (*text == '/' || *text == '\0')) return true;
        if (*pattern == '*' || (pattern[0] == '.' && pattern[1] == '*')) {
            pattern += *pattern == '*' ? 1 : 2;
            star = pattern;
            retry = text;
        } else if (*text != '\0' && *pattern == *text) {
            pattern++;
            text++;
        } else if (star && *retry != '\0') {
            pattern = star;
            text = ++retry;
        } else {
            return false;
        }
    }
}

bool scopes_match(const char *pattern, const char *path) {
    char *words = words_of(path, strncmp(pattern, SCOPES_MARK, strlen(SCOPES_MARK)) == 0);
    bool is_match = false;
    while (*pattern == '/') pattern++;
    for (const char *at = words; at && *at && !is_match; at++)
        if (*at == '/' && at[1]) is_match = matches_words(pattern, at + 1);
    free(words);
    return is_match;
}

/* Returns whether a pattern "model.py:57" is the source line of an operator. */
static bool is_at_line(const char *pattern, const IrInstruction *instruction) {
    const char *colon = strrchr(pattern, ':'), *file = instruction->source_file;
    size_t length = colon ? (size_t)(colon - pattern) : 0, whole = file ? strlen(file) : 0;
    if (length == 0 || length > whole || instruction->source_line <= 0) return false;
    if (strtol(colon + 1, NULL, 10) != instruction->source_line) return false;
    if (strncmp(file + whole - length, pattern, length) != 0) return false;
    return length == whole || file[whole - length - 1] == '/';
}

typedef struct Resolver {
    Arena *arena;
    const PlanContext *context;
    const IrRoles *roles; /* of the context, like the rules */
    const Rules *rules;
    const Mesh *mesh;
    const PropagationPin *pins;
    int32_t count;
    bool **holds;          /* [pin]: [parameter] is in its scope; NULL for a pin without a scope */
    int32_t *size;         /* [pin]: weights in its scope */
    int32_t *weight_of;    /* [instruction]: the weight that it is a view of, or -1 */
    int32_t *stack_of;     /* [instruction]: the concatenation of weights that it is a view of, or -1 */
    int32_t *axis;         /* [pin]: that split(...) names, or -1 */
    SbpState *states;      /* [pin]: of sharding(...) */
    const char **refusals; /* [pin]: why its scope cannot be split; or NULL */
    PinnedParameter *pinned;
} Resolver;

/* Notes that the scope of pin k cannot be split. */
__attribute__((format(printf, 4, 5))) static AmStatus refuse(Resolver *self, int32_t k, AmError *error,
                                                             const char *format, ...) {
    char text[PIN_LABEL_BYTES + 256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    self->refusals[k] = arena_copy_string(self->arena, text);
    return self->refusals[k] ? AM_OK : am_fail_memory(error, (int64_t)sizeof text);
}

/* Returns whether an operator passes on elements of its operand. */
static bool is_view(IrOpcode opcode) {
    return ir_opcode_has(opcode, FACT_VIEW) || opcode == IR_CONVERT || opcode == IR_TRANSPOSE ||
           opcode == IR_BROADCAST || opcode == IR_SLICE || opcode == IR_DYNAMIC_SLICE;
}

/* Makes instruction i a view of what another one is. */
static void view(Resolver *self, int32_t i, int32_t of) {
    self->weight_of[i] = self->weight_of[of];
    self->stack_of[i] = self->stack_of[of];
}

/* Returns whether a concatenation joins weights alone, such as layers that are stacked for a loop. */
static bool is_stack(const Resolver *self, const IrInstruction *instruction) {
    bool joins = instruction->opcode == IR_CONCATENATE;
    for (int32_t o = 0; o < instruction->operand_count; o++) {
        int32_t operand = self->rules->alias[instruction->operands[o]];
        joins &= self->weight_of[operand] >= 0 || self->stack_of[operand] >= 0;
    }
    return joins;
}

static void find_views(Resolver *self) {
    const PlanContext *context = self->context;
    const Rules *rules = context->rules;
    for (int32_t i = 0; i < rules->count; i++) self->weight_of[i] = self->stack_of[i] = -1;
    for (int32_t p = 0; p < context->roles->parameter_count; p++)
        if (context->roles->parameters[p].role == IR_ROLE_WEIGHT)
            self->weight_of[context->roles->parameters[p].instruction] = p;
    for (int32_t i = 0; i < rules->count; i++) {
        const IrInstruction *instruction = plan_context_instruction(context, i);
        /* Passes on what goes into a loop or conditional, whose computations follow it. */
        const PlannedLoop *loop = rules_loop(rules, i);
        const PlannedConditional *conditional = rules_conditional(rules, i);
        for (int32_t l = 0; loop && l < loop->leaf_count; l++) {
            const LoopLeaf *leaf = &loop->leaves[l];
            if (leaf->in_body >= 0 && leaf->initial >= 0 && leaf->initial_leaf == 0)
                view(self, leaf->in_body, rules->alias[leaf->initial]);
        }
        for (int32_t k = 0; conditional && k < conditional->branch_count; k++)
            for (int32_t l = 0; l < conditional->branches[k].leaf_count; l++) {
                const BranchLeaf *leaf = &conditional->branches[k].leaves[l];
                if (leaf->reader >= 0 && leaf->given_leaf == 0)
                    view(self, leaf->reader, rules->alias[leaf->given]);
            }
        if (self->weight_of[i] >= 0 || self->stack_of[i] >= 0) continue;
        if (rules->alias[i] != i) view(self, i, rules->alias[i]);
        else if (is_view(instruction->opcode)) view(self, i, rules->alias[instruction->operands[0]]);
        else if (is_stack(self, instruction)) self->stack_of[i] = i;
    }
}

/* Puts the weights that an instruction views into the scope of pin k. */
static void hold_weights(Resolver *self, int32_t k, int32_t i) {
    if (self->weight_of[i] >= 0) self->holds[k][self->weight_of[i]] = true;
    if (self->stack_of[i] < 0) return;
    const IrInstruction *stack = plan_context_instruction(self->context, self->stack_of[i]);
    for (int32_t o = 0; o < stack->operand_count; o++)
        hold_weights(self, k, self->rules->alias[stack->operands[o]]);
}

/* Marks the instructions in a scope by their names or source lines. The instructions of a
 * loop or conditional are also in its scopes. */
void scopes_find_named(bool *is_in, const PlanContext *context, const char *pattern) {
    const IrModule *module = context->canonical;
    const Rules *rules = context->rules;
    bool is_line = strchr(pattern, ':') != NULL;
    for (int32_t c = 0; c < module->computation_count; c++) {
        const IrComputation *computation = &module->computations[c];
        int32_t caller = rules_caller(rules, c);
        bool is_inside = caller >= 0 && is_in[caller], is_match = false;
        const char *previous = NULL; /* many instructions in a row have one name */
        for (int32_t i = computation->first; i < computation->first + computation->count && i < rules->count;
             i++) {
            const IrInstruction *instruction = &module->instructions[i];
            if (is_line) is_match = is_at_line(pattern, instruction);
            else if (!previous || strcmp(previous, instruction->op_name) != 0)
                is_match = instruction->op_name[0] && scopes_match(pattern, instruction->op_name);
            previous = instruction->op_name;
            is_in[i] = (is_match || is_inside) && instruction->opcode != IR_PARAMETER;
        }
    }
}

/* Marks the weights in the scope of pin k. */
static AmStatus find_weights(Resolver *self, int32_t k, AmError *error) {
    const IrModule *module = self->context->canonical;
    const IrRoles *roles = self->roles;
    const char *pattern = self->pins[k].pattern;
    bool *is_in = ARENA_ARRAY(self->arena, bool, plan_context_count(self->context) + 1);
    if (!is_in) return am_fail_memory(error, plan_context_count(self->context));
    for (int32_t p = 0; p < roles->parameter_count; p++)
        if (roles->parameters[p].role == IR_ROLE_WEIGHT)
            self->holds[k][p] = scopes_match(pattern, roles->parameters[p].path);
    scopes_find_named(is_in, self->context, pattern);
    for (int32_t i = 0; i < plan_context_count(self->context); i++)
        for (int32_t o = 0; is_in[i] && o < module->instructions[i].operand_count; o++)
            hold_weights(self, k, module->instructions[i].operands[o]);
    for (int32_t p = 0; p < roles->parameter_count; p++) self->size[k] += self->holds[k][p];
    return AM_OK;
}

/* Reads sharding(...) of pin k, and leaves the weights of other ranks out of its scope. */
static AmStatus read_sharding(Resolver *self, int32_t k, AmError *error) {
    const PropagationPin *pin = &self->pins[k];
    char text[PIN_ARGUMENT_BYTES], label[PIN_LABEL_BYTES];
    int32_t rank, before = self->size[k];
    AmError refusal = {0};
    AmStatus status =
        propagation_parse_sharding(&self->states[k], &rank, self->mesh, pin_argument(text, pin), &refusal);
    if (status != AM_OK)
        return am_fail(error, pin_error(pin), pin_file(pin), "%s: %s", pin_place(label, pin), refusal.text);
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        int32_t instruction = plan_context_parameter(self->context, p)->instruction;
        if (!self->holds[k][p] || plan_context_instruction(self->context, instruction)->shape.rank == rank)
            continue;
        self->holds[k][p] = false;
        self->size[k]--;
    }
    if (self->size[k] > 0 || before == 0) return AM_OK;
    return am_fail(error, pin_error(pin), pin_file(pin), "%s: no weight of the scope has %d dimension%s",
                   pin_place(label, pin), rank, rank == 1 ? "" : "s");
}

/* Finds the axis over which the scope of pin k is split. By a number of devices it is the last axis of that
 * size. */
static AmStatus find_axis(Resolver *self, int32_t k, AmError *error) {
    char name[PIN_ARGUMENT_BYTES], label[PIN_LABEL_BYTES];
    int32_t devices = pin_number(&self->pins[k]);
    self->axis[k] = -1;
    if (pin_kind(&self->pins[k]) != PIN_SPLIT || devices == 1) return AM_OK;
    pin_argument(name, &self->pins[k]);
    for (int32_t axis = 0; axis < self->mesh->axis_count; axis++) {
        const MeshAxis *of = &self->mesh->axes[axis];
        if (devices > 0 ? of->size == devices : strcmp(of->name, name) == 0) self->axis[k] = axis;
    }
    if (self->axis[k] >= 0) return AM_OK;
    if (devices < 0) {
        const char *names[MESH_MAX_AXES];
        char hint[SUGGEST_HINT_BYTES];
        for (int32_t axis = 0; axis < self->mesh->axis_count; axis++)
            names[axis] = self->mesh->axes[axis].name;
        suggest_hint(hint, name, names, (size_t)self->mesh->axis_count);
        return am_fail(error, pin_error(&self->pins[k]), pin_file(&self->pins[k]),
                       "%s: expected split(AXIS) with an axis of the mesh, or split(DEVICES)%s",
                       pin_place(label, &self->pins[k]), hint);
    }
    return refuse(self, k, error, "%s: no axis of the mesh has %d devices", pin_label(label, &self->pins[k]),
                  devices);
}

static AmStatus read_scopes(Resolver *self, AmError *error) {
    for (int32_t k = 0; k < self->count; k++) {
        if (!scopes_is_scope(&self->pins[k])) continue;
        TRY(find_axis(self, k, error));
        self->holds[k] = ARENA_ARRAY(self->arena, bool, self->roles->parameter_count);
        if (!self->holds[k]) return am_fail_memory(error, self->roles->parameter_count);
        TRY(find_weights(self, k, error));
        if (pin_kind(&self->pins[k]) == PIN_SCOPE_SHARDING) TRY(read_sharding(self, k, error));
        if (self->size[k] > 0) continue;
        Text nearest = {0};
        path_append_nearest(&nearest, self->roles, self->pins[k].pattern);
        char label[PIN_LABEL_BYTES];
        am_fail(error, pin_error(&self->pins[k]), pin_file(&self->pins[k]),
                "%s: no weight is in the scope \"%s\"%s", pin_place(label, &self->pins[k]),
                self->pins[k].pattern, nearest.data ? nearest.data : "");
        text_free(&nearest);
        return pin_error(&self->pins[k]);
    }
    return AM_OK;
}

static bool is_within(const Resolver *self, int32_t inner, int32_t outer) {
    for (int32_t p = 0; p < self->roles->parameter_count; p++)
        if (self->holds[inner][p] && !self->holds[outer][p]) return false;
    return true;
}

/* Returns whether two pins on the same weights require the same. */
static bool pins_agree(const Resolver *self, int32_t a, int32_t b) {
    bool has_sharding =
        pin_kind(&self->pins[a]) == PIN_SCOPE_SHARDING || pin_kind(&self->pins[b]) == PIN_SCOPE_SHARDING;
    if (has_sharding) return strcmp(self->pins[a].sharding, self->pins[b].sharding) == 0;
    return self->axis[a] == self->axis[b] && pin_number(&self->pins[a]) == pin_number(&self->pins[b]);
}

/* Finds the scope of each weight: the innermost of those that hold it. */
static AmStatus find_innermost(Resolver *self, AmError *error) {
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        int32_t inner = -1;
        for (int32_t k = 0; k < self->count; k++) {
            if (!self->holds[k] || !self->holds[k][p]) continue;
            if (inner < 0) {
                inner = k;
                continue;
            }
            bool is_inner = self->size[k] < self->size[inner];
            bool is_nested = is_inner ? is_within(self, k, inner) : is_within(self, inner, k);
            bool is_same = self->size[k] == self->size[inner];
            if (!is_nested || (is_same && !pins_agree(self, k, inner))) {
                char first[PIN_LABEL_BYTES], second[PIN_LABEL_BYTES];
                const char *problem = is_nested ? " contradict each other: they are on the same weights"
                                                : ": the scopes overlap, and neither lies inside the other";
                return am_fail(error, pin_error(&self->pins[inner]), pin_file(&self->pins[inner]),
                               "%s and %s%s", pin_place(first, &self->pins[inner]),
                               pin_label(second, &self->pins[k]), problem);
            }
            if (is_inner) inner = k;
        }
        if (inner < 0) continue;
        self->pinned[p].pin = &self->pins[inner];
        if (pin_kind(&self->pins[inner]) == PIN_SCOPE_SHARDING) self->pinned[p].state = self->states[inner];
    }
    return AM_OK;
}

/* Returns whether all weights of a group are in scopes that are split over the axis. */
static bool is_pinned_to(const Resolver *self, const LinkageGroup *group, int32_t axis) {
    for (int32_t m = 0; m < group->member_count; m++) {
        const PropagationPin *pin = self->pinned[group->members[m].parameter].pin;
        if (!pin || self->axis[pin - self->pins] != axis) return false;
    }
    return true;
}

/* Splits the weights in scopes of one axis: groups by size, the largest first. */
static AmStatus split_axis(Resolver *self, int32_t axis, AmError *error) {
    LinkageGroups *groups;
    TRY(strict_groups(&groups, self->arena, self->context, self->mesh->axes[axis].size, STRICT_STATE, error));
    bool *is_excluded = ARENA_ARRAY(self->arena, bool, groups->group_count + 1);
    if (!is_excluded) return am_fail_memory(error, groups->group_count);
    for (;;) {
        int32_t best = -1;
        for (int32_t g = 0; g < groups->group_count; g++) {
            const LinkageGroup *group = &groups->groups[g];
            if (best >= 0 && group->member_count <= groups->groups[best].member_count) continue;
            if (!is_excluded[g] && is_pinned_to(self, group, axis)) best = g;
        }
        if (best < 0) return AM_OK;
        const LinkageGroup *group = &groups->groups[best];
        is_excluded[best] = true;
        for (int32_t k = 0; k < group->exclude_count; k++) is_excluded[group->excludes[k]] = true;
        for (int32_t m = 0; m < group->member_count; m++)
            sbp_set(&self->pinned[group->members[m].parameter].state, axis,
                    sbp_split(group->members[m].dimension));
    }
}

/* Releases the weights of a split scope that nothing splits; where that is all of them, or the mesh has no
 * axis for the scope, its weights get the refusal. */
static AmStatus settle_scope(Resolver *self, int32_t k, AmError *error) {
    char label[PIN_LABEL_BYTES];
    int32_t split = 0, count = 0;
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        if (self->pinned[p].pin != &self->pins[k]) continue;
        count++;
        split += sbp_has_split(self->pinned[p].state);
    }
    if (count > 0 && split == 0 && self->axis[k] >= 0)
        TRY(refuse(self, k, error,
                   "%s: no linkage group of strict rules splits weights of this scope alone over %d devices",
                   pin_label(label, &self->pins[k]), self->mesh->axes[self->axis[k]].size));
    for (int32_t p = 0; p < self->roles->parameter_count; p++) {
        PinnedParameter *of = &self->pinned[p];
        if (of->pin != &self->pins[k]) continue;
        of->refusal = self->refusals[k];
        if (self->axis[k] >= 0 && split > 0 && !sbp_has_split(of->state)) of->pin = NULL;
    }
    return AM_OK;
}

static AmStatus split_scopes(Resolver *self, AmError *error) {
    bool is_done[MESH_MAX_AXES] = {false};
    for (int32_t k = 0; k < self->count; k++) {
        int32_t axis = self->holds[k] ? self->axis[k] : -1;
        if (axis < 0 || is_done[axis]) continue;
        is_done[axis] = true;
        if (self->mesh->axes[axis].size > 1) TRY(split_axis(self, axis, error));
    }
    for (int32_t k = 0; k < self->count; k++)
        if (self->holds[k]) TRY(settle_scope(self, k, error));
    return AM_OK;
}

AmStatus scopes_resolve(PinnedParameter **pinned, Arena *arena, const PlanContext *context, const Mesh *mesh,
                        const PropagationPin *pins, int32_t count, AmError *error) {
    int32_t parameters = context->roles->parameter_count;
    Resolver self = {.arena = arena,
                     .context = context,
                     .roles = context->roles,
                     .rules = context->rules,
                     .mesh = mesh,
                     .pins = pins,
                     .count = count,
                     .holds = ARENA_ARRAY(arena, bool *, count + 1),
                     .size = ARENA_ARRAY(arena, int32_t, count + 1),
                     .weight_of = ARENA_ARRAY(arena, int32_t, context->rules->count + 1),
                     .stack_of = ARENA_ARRAY(arena, int32_t, context->rules->count + 1),
                     .axis = ARENA_ARRAY(arena, int32_t, count + 1),
                     .states = ARENA_ARRAY(arena, SbpState, count + 1),
                     .refusals = ARENA_ARRAY(arena, const char *, count + 1),
                     .pinned = ARENA_ARRAY(arena, PinnedParameter, parameters + 1)};
    if (arena->failed) return am_fail_memory(error, context->rules->count);
    find_views(&self);
    TRY(read_scopes(&self, error));
    TRY(find_innermost(&self, error));
    for (int32_t k = 0; k < count; k++)
        for (int32_t p = 0; pin_kind(&pins[k]) == PIN_SHARDING && p < parameters; p++)
            if (path_matches(pins[k].pattern, context->roles->parameters[p].path)) self.pinned[p].pin = NULL;
    TRY(split_scopes(&self, error));
    *pinned = self.pinned;
    return AM_OK;
}

/* ---- operators ---- */

AmStatus scopes_find_members(bool *is_in, Arena *scratch, const PlanContext *context, const char *pattern,
                             AmError *error) {
    int32_t count = context->rules->count;
    bool *holds = ARENA_ARRAY(scratch, bool, context->roles->parameter_count + 1);
    Resolver self = {.context = context,
                     .roles = context->roles,
                     .rules = context->rules,
                     .holds = &holds,
                     .weight_of = ARENA_ARRAY(scratch, int32_t, count + 1),
                     .stack_of = ARENA_ARRAY(scratch, int32_t, count + 1)};
    if (scratch->failed) return am_fail_memory(error, count);
    find_views(&self);
    for (int32_t p = 0; p < context->roles->parameter_count; p++)
        holds[p] = scopes_match(pattern, context->roles->parameters[p].path);
    scopes_find_named(is_in, context, pattern);
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *instruction = plan_context_instruction(context, i);
        if (instruction->opcode == IR_PARAMETER || self.weight_of[i] >= 0) {
            is_in[i] = false;
            continue;
        }
        for (int32_t o = 0; o < instruction->operand_count; o++) { /* a weight, directly or through views */
            int32_t weight = self.weight_of[instruction->operands[o]];
            is_in[i] |= weight >= 0 && self.holds[0][weight];
        }
    }
    return AM_OK;
}

AmStatus scopes_find_operators(bool *is_in, int32_t *count, Arena *scratch, const PlanContext *context,
                               const char *pattern, AmError *error) {
    const Rules *rules = context->rules;
    bool *is_member = ARENA_ARRAY(scratch, bool, rules->count + 1);
    int32_t *outermost = ARENA_ARRAY(scratch, int32_t, rules->count + 1);
    if (scratch->failed) return am_fail_memory(error, rules->count);
    rules_find_outermost(rules, outermost);
    TRY(scopes_find_members(is_member, scratch, context, pattern, error));
    *count = 0;
    for (int32_t i = 0; i < rules->count; i++) {
        if (!is_member[i] || rules->on_demand[i]) continue;
        int32_t at = outermost[i];
        bool is_forward = at >= 0 && plan_context_in_forward(context, at);
        if (!is_forward || is_in[at]) continue;
        is_in[at] = true;
        ++*count;
    }
    return AM_OK;
}
