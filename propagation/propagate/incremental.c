/* Propagates single decisions through a module.
 *
 * A claim is the effect of a seed on a dimension of a value. Its key is made of level, priority and
 * seed; a smaller key is stronger. Level 0 is stored at the node (value, dimension), level 1 at the
 * strand, the nodes that element-wise operators and views tie, level 2 at the class. Per axis, only
 * the strongest key of a node, strand or class is kept, and a value's state follows from the keys
 * of its own dimensions alone. A new seed therefore changes at most three keys, and affects only
 * the members of the sets whose keys changed.
 */
#include "propagation/propagate/incremental.h"

#include <stdlib.h>
#include <string.h>

#include "base/union_find.h"

#define NO_CLAIM    UINT64_MAX
#define LEVEL_SHIFT 60
#define OWN_SHIFT   40
#define NOT_CHOSEN  (-1)

typedef struct Sets {
    int32_t count;
    int32_t *set_of;  /* [node] */
    int32_t *first;   /* [count + 1] ranges in members */
    int32_t *members; /* nodes */
    uint64_t *keys[MESH_MAX_AXES];
} Sets;

struct Incremental {
    const PlanContext *context;
    const SplitOptions *split_options;
    Mesh mesh;
    int32_t node_count;
    int32_t *value_of;              /* [node]: instruction */
    uint64_t *seeds[MESH_MAX_AXES]; /* [node]: its key at level 0, or NO_CLAIM */
    Sets strands, classes;
    int8_t (*chosen)[MESH_MAX_AXES]; /* [instruction]: which of its nodes the axis splits, or NOT_CHOSEN */
};

static uint64_t key_at(int32_t level, uint64_t own) {
    return own == NO_CLAIM ? NO_CLAIM : (uint64_t)level << LEVEL_SHIFT | own;
}

/* --------------------------------------------------------------- One value */

/* Returns the strongest claim on a node: a seed, else one of its strand, else one of its class. */
static uint64_t strongest(const Incremental *self, int32_t node, int32_t axis) {
    uint64_t best = self->seeds[axis][node];
    if (best != NO_CLAIM || self->classes.set_of[node] < 0) return best;
    uint64_t strand = self->strands.keys[axis][self->strands.set_of[node]];
    return strand != NO_CLAIM ? key_at(1, strand)
                              : key_at(2, self->classes.keys[axis][self->classes.set_of[node]]);
}

/* Returns whether an axis can split the choice beside what earlier axes split of the value. */
static bool has_room(const Incremental *self, int32_t first, const int8_t *chosen, int32_t axis,
                     const SplitOption *choice) {
    int64_t ways = self->mesh.axes[axis].size;
    for (int32_t earlier = 0; earlier < axis; earlier++) {
        if (chosen[earlier] < 0) continue;
        const SplitOption *other = &self->split_options->dimensions[first + chosen[earlier]];
        if (other->place != choice->place) continue;
        if (other->blocks != choice->blocks) return false;
        ways *= self->mesh.axes[earlier].size;
    }
    return choice->size / choice->blocks >= ways;
}

/* Finds the state of a value from the keys of its dimensions, on `from` and the axes after it: only the
 * splits of earlier axes affect later ones. */
static void resolve(Incremental *self, int32_t i, int32_t from) {
    int32_t first = self->split_options->first_dimension[i],
            end = self->split_options->first_dimension[i + 1];
    int8_t chosen[MESH_MAX_AXES] = {NOT_CHOSEN, NOT_CHOSEN, NOT_CHOSEN, NOT_CHOSEN};
    memcpy(chosen, self->chosen[i], (size_t)from);
    for (int32_t axis = from; axis < self->mesh.axis_count; axis++) {
        if (self->mesh.axes[axis].size == 1) continue;
        uint64_t best = NO_CLAIM;
        for (int32_t node = first; node < end && node - first <= INT8_MAX; node++) {
            uint64_t key = strongest(self, node, axis);
            if (key >= best || !has_room(self, first, chosen, axis, &self->split_options->dimensions[node]))
                continue;
            best = key;
            chosen[axis] = (int8_t)(node - first);
        }
    }
    memcpy(self->chosen[i], chosen, sizeof chosen);
}

static void resolve_members(Incremental *self, const Sets *sets, int32_t set, int32_t axis) {
    int32_t last = -1; /* a dimension in blocks may be in a class twice */
    for (int32_t k = sets->first[set]; k < sets->first[set + 1]; k++) {
        int32_t value = self->value_of[sets->members[k]];
        if (value != last) resolve(self, value, axis);
        last = value;
    }
}

/* ------------------------------------------------------------------- Seeds */

/* Returns the strongest seed among the members of a set. */
static uint64_t strongest_seed(const Incremental *self, const Sets *sets, int32_t set, int32_t axis) {
    uint64_t best = NO_CLAIM;
    for (int32_t k = sets->first[set]; k < sets->first[set + 1]; k++) {
        uint64_t key = self->seeds[axis][sets->members[k]];
        if (key < best) best = key;
    }
    return best;
}

/* Returns the node of a dimension; -1: nothing can split it. */
static int32_t find_node(const Incremental *self, int32_t instruction, int32_t dimension) {
    const SplitOptions *split_options = self->split_options;
    if (instruction < 0 || instruction >= split_options->count || !split_options->live[instruction])
        return -1;
    for (int32_t k = split_options->first_dimension[instruction];
         k < split_options->first_dimension[instruction + 1]; k++)
        if (split_options->dimensions[k].place == dimension && split_options->dimensions[k].blocks == 1 &&
            self->classes.set_of[k] >= 0)
            return k;
    return -1;
}

bool incremental_add(Incremental *incremental, int32_t axis, int32_t instruction, int32_t dimension,
                     int32_t priority) {
    int32_t node = find_node(incremental, instruction, dimension);
    if (node < 0 || incremental->mesh.axes[axis].size == 1) return false;
    uint64_t key = (uint64_t)priority << OWN_SHIFT | (uint64_t)node;
    /* The key becomes the seed of the node; the sets and values that it reaches are updated. */
    int32_t strand = incremental->strands.set_of[node], class = incremental->classes.set_of[node];
    uint64_t *of_strand = &incremental->strands.keys[axis][strand],
             *of_class = &incremental->classes.keys[axis][class];
    uint64_t before = incremental->seeds[axis][node];
    incremental->seeds[axis][node] = key;
    bool rises = key < before; /* a weaker seed on the same node may leave its sets to another member */
    uint64_t new_strand = rises ? (key < *of_strand ? key : *of_strand)
                                : strongest_seed(incremental, &incremental->strands, strand, axis);
    uint64_t new_class = rises ? (key < *of_class ? key : *of_class)
                               : strongest_seed(incremental, &incremental->classes, class, axis);
    bool strand_changed = new_strand != *of_strand, class_changed = new_class != *of_class;
    *of_strand = new_strand;
    *of_class = new_class;
    if (class_changed) resolve_members(incremental, &incremental->classes, class, axis);
    else if (strand_changed) resolve_members(incremental, &incremental->strands, strand, axis);
    else resolve(incremental, incremental->value_of[node], axis);
    return true;
}

/* ---------------------------------------------------------------- Building */

/* Returns the node of a value's dimension that is in a class; -1: none. */
static int32_t node_in_class(const Incremental *self, int32_t instruction, int32_t dimension, int32_t class) {
    const SplitOptions *split_options = self->split_options;
    for (int32_t k = split_options->first_dimension[instruction];
         k < split_options->first_dimension[instruction + 1]; k++)
        if (split_options->dimensions[k].place == dimension &&
            split_options->dimensions[k].class_index == class)
            return k;
    return -1;
}

/* Joins what cheap operators tie; parent[] is over nodes. */
static void join_strands(const Incremental *self, int32_t *parent) {
    const PlanContext *context = self->context;
    const SplitOptions *split_options = self->split_options;
    for (int32_t d = 0; d < split_options->decided_count; d++) {
        int32_t i = split_options->decided[d];
        const FactorRule *rule = &context->rules->rules[i];
        IrOpcode opcode = plan_context_instruction(context, i)->opcode;
        bool passes_through = ir_is_elementwise(opcode) || opcode == IR_TRANSPOSE || opcode == IR_RESHAPE ||
                              opcode == IR_BITCAST;
        if (!passes_through || rule->result_count != 1) continue;
        const int32_t *operands = &split_options->operands[split_options->first_operand[i]];
        for (int32_t f = 0; f < rule->factor_count; f++) {
            const Factor *factor = &rule->factors[f];
            int32_t class = classes_of_factor(context->classes, i, f);
            int8_t at = factor->dimension[rule->operand_count];
            if (factor->kind != FACTOR_PARALLEL || class < 0 || at < 0) continue;
            int32_t result = node_in_class(self, i, at, class);
            for (int32_t k = 0; result >= 0 && k < rule->operand_count; k++) {
                if (factor->dimension[k] < 0 || context->rules->on_demand[operands[k]]) continue;
                int32_t operand = node_in_class(self, operands[k], factor->dimension[k], class);
                if (operand >= 0) parent[union_find_root(parent, operand)] = union_find_root(parent, result);
            }
        }
    }
}

/* Members of each set, ascending, and its keys; set_of is known, -1: in none. */
static AmStatus index_sets(Incremental *self, Sets *sets, Arena *arena, AmError *error) {
    sets->first = ARENA_ARRAY(arena, int32_t, sets->count + 2);
    sets->members = ARENA_ARRAY(arena, int32_t, self->node_count + 1);
    for (int32_t axis = 0; axis < self->mesh.axis_count; axis++)
        sets->keys[axis] = ARENA_ARRAY(arena, uint64_t, sets->count + 1);
    if (arena->failed) return am_fail_memory(error, self->node_count);
    for (int32_t axis = 0; axis < self->mesh.axis_count; axis++)
        for (int32_t s = 0; s < sets->count; s++) sets->keys[axis][s] = NO_CLAIM;
    for (int32_t node = 0; node < self->node_count; node++)
        if (sets->set_of[node] >= 0) sets->first[sets->set_of[node] + 2]++;
    for (int32_t s = 0; s < sets->count; s++) sets->first[s + 2] += sets->first[s + 1];
    for (int32_t node = 0; node < self->node_count; node++)
        if (sets->set_of[node] >= 0) sets->members[sets->first[sets->set_of[node] + 1]++] = node;
    return AM_OK;
}

static AmStatus build_sets(Incremental *self, Arena *arena, AmError *error) {
    int32_t *parent = ARENA_ARRAY(arena, int32_t, self->node_count + 1);
    self->strands.set_of = ARENA_ARRAY(arena, int32_t, self->node_count + 1);
    self->classes.set_of = ARENA_ARRAY(arena, int32_t, self->node_count + 1);
    if (arena->failed) return am_fail_memory(error, self->node_count);
    union_find_begin(parent, self->node_count);
    /* Joins all values that hold an array of a loop. */
    const Rules *rules = self->context->rules;
    for (int32_t l = 0; l < rules->loop_count; l++) {
        for (int32_t k = 0; k < rules->loops[l].leaf_count; k++) {
            const LoopLeaf *leaf = &rules->loops[l].leaves[k];
            int32_t reader = loop_leaf_reader(leaf), others[2] = {leaf->in_condition, leaf->afterwards};
            for (int32_t o = 0; reader >= 0 && o < 2; o++) {
                for (int32_t d = 0; others[o] >= 0 && d < leaf->shape->rank; d++) {
                    int32_t class = classes_of(self->context->classes, rules, reader, d);
                    int32_t a = node_in_class(self, reader, d, class);
                    int32_t b = node_in_class(self, others[o], d, class);
                    if (class >= 0 && a >= 0 && b >= 0)
                        parent[union_find_root(parent, b)] = union_find_root(parent, a);
                }
            }
        }
    }
    join_strands(self, parent);
    self->classes.count = self->context->classes->count;
    for (int32_t node = 0; node < self->node_count; node++) {
        bool is_live = self->split_options->live[self->value_of[node]];
        self->classes.set_of[node] = is_live ? self->split_options->dimensions[node].class_index : -1;
        self->strands.set_of[node] = parent[node] == node ? self->strands.count++ : -1;
    }
    for (int32_t node = 0; node < self->node_count; node++)
        self->strands.set_of[node] = self->strands.set_of[union_find_root(parent, node)];
    for (int32_t node = 0; node < self->node_count; node++)
        if (self->classes.set_of[node] < 0) self->strands.set_of[node] = -1;
    TRY(index_sets(self, &self->strands, arena, error));
    return index_sets(self, &self->classes, arena, error);
}

AmStatus incremental_create(Incremental **incremental, Arena *arena, const PlanContext *context,
                            const Mesh *mesh, AmError *error) {
    const SplitOptions *split_options = context->split_options;
    Incremental *self = ARENA_ARRAY(arena, Incremental, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (Incremental){.context = context,
                          .split_options = split_options,
                          .mesh = *mesh,
                          .node_count = split_options->first_dimension[split_options->count]};
    self->value_of = ARENA_ARRAY(arena, int32_t, self->node_count + 1);
    self->chosen = arena_alloc(arena, sizeof *self->chosen * ((size_t)split_options->count + 1));
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        self->seeds[axis] = ARENA_ARRAY(arena, uint64_t, self->node_count + 1);
    if (arena->failed) return am_fail_memory(error, self->node_count);
    memset(self->chosen, NOT_CHOSEN, sizeof *self->chosen * ((size_t)split_options->count + 1));
    for (int32_t axis = 0; axis < mesh->axis_count; axis++)
        for (int32_t node = 0; node < self->node_count; node++) self->seeds[axis][node] = NO_CLAIM;
    for (int32_t i = 0; i < split_options->count; i++)
        for (int32_t k = split_options->first_dimension[i]; k < split_options->first_dimension[i + 1]; k++)
            self->value_of[k] = i;
    *incremental = self;
    return build_sets(self, arena, error);
}

/* ----------------------------------------------------------------- Results */

/* Returns the number of granules between which a dimension is split `ways` ways: those of its class, or its
 * elements. */
static int64_t granules_of(const Incremental *self, const SplitOption *choice, int64_t ways) {
    int64_t size = choice->size / choice->blocks;
    int64_t granules = self->context->classes->classes[choice->class_index].size;
    return granules >= ways && size % granules == 0 ? granules : size;
}

SbpState incremental_state(const Incremental *incremental, int32_t instruction) {
    const Mesh *mesh = &incremental->mesh;
    SbpState state = {.axis = {SBP_B}};
    for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
        int8_t chosen = incremental->chosen[instruction][axis];
        if (chosen < 0) continue;
        const SplitOption *choice =
            &incremental->split_options
                 ->dimensions[incremental->split_options->first_dimension[instruction] + chosen];
        int64_t ways = (int64_t)sbp_ways(mesh, state, choice->place) * mesh->axes[axis].size;
        sbp_set_split(&state, axis, choice->place,
                      sbp_cut(mesh, state, axis, choice->place, choice->size, choice->blocks,
                              granules_of(incremental, choice, ways)));
    }
    return state;
}

/* Calls for every conflict; `list` NULL: counts only. */
static int32_t list_conflicts(const Incremental *self, IncrementalConflict *list) {
    const SplitOptions *split_options = self->split_options;
    int32_t count = 0;
    for (int32_t i = 0; i < split_options->count; i++) {
        for (int32_t axis = 0; axis < self->mesh.axis_count; axis++) {
            int8_t chosen = self->chosen[i][axis];
            double size = self->mesh.axes[axis].size;
            if (chosen < 0) continue;
            int32_t kept = split_options->first_dimension[i] + chosen;
            for (int32_t node = split_options->first_dimension[i];
                 node < split_options->first_dimension[i + 1]; node++) {
                uint64_t key = node == kept ? NO_CLAIM : strongest(self, node, axis);
                int32_t level = key == NO_CLAIM ? -1 : (int32_t)(key >> LEVEL_SHIFT);
                if (level < 0 ||
                    split_options->dimensions[node].place == split_options->dimensions[kept].place)
                    continue;
                if (list)
                    list[count] =
                        (IncrementalConflict){.instruction = i,
                                              .axis = axis,
                                              .kept = split_options->dimensions[kept].place,
                                              .refused = split_options->dimensions[node].place,
                                              .level = level,
                                              .bytes = split_options->array_bytes[i] * (size - 1) / size};
                count++;
            }
        }
    }
    return count;
}

AmStatus incremental_conflicts(IncrementalConflict **conflicts, int32_t *count, Arena *arena,
                               const Incremental *incremental, AmError *error) {
    *count = list_conflicts(incremental, NULL);
    *conflicts = ARENA_ARRAY(arena, IncrementalConflict, *count + 1);
    if (!*conflicts) return am_fail_memory(error, *count);
    list_conflicts(incremental, *conflicts);
    return AM_OK;
}

typedef struct RankedClass {
    uint64_t key;
    int32_t class_index;
} RankedClass;

static int compare_ranked(const void *left, const void *right) {
    const RankedClass *a = left, *b = right;
    return (a->key > b->key) - (a->key < b->key);
}

/* At a seeded value, the class that is split precedes those that are refused there. */
typedef struct Before {
    int32_t kept, refused; /* classes */
} Before;

/* Returns the pairs of an axis; `pairs` NULL: counts only. */
static int32_t list_pairs(const Incremental *self, int32_t axis, Before *pairs) {
    const SplitOptions *split_options = self->split_options;
    int32_t count = 0;
    for (int32_t i = 0; i < split_options->count; i++) {
        int8_t chosen = self->chosen[i][axis];
        int32_t kept = chosen < 0 ? -1 : split_options->first_dimension[i] + chosen;
        if (kept < 0 || self->seeds[axis][kept] == NO_CLAIM) continue;
        for (int32_t node = split_options->first_dimension[i]; node < split_options->first_dimension[i + 1];
             node++) {
            int32_t class = self->classes.set_of[node];
            if (class < 0 || class == self->classes.set_of[kept] ||
                self->classes.keys[axis][class] == NO_CLAIM)
                continue;
            if (pairs) pairs[count] = (Before){self->classes.set_of[kept], class};
            count++;
        }
    }
    return count;
}

static void take(PlanAxisPriority *priority, int32_t *rank, int32_t class) {
    rank[class] = priority->count;
    priority->entries[priority->count++] = (PlanEntry){.class_index = class};
}

/* Puts the ranked classes in an order that keeps the pairs, the strongest first where they
 * leave it open; a cycle is cut at the strongest. rank[class] is its place, INT32_MAX: none. */
static void order_classes(RankedClass *ranked, int32_t count, const Before *pairs, int32_t pair_count,
                          int32_t *rank, bool *is_later, PlanAxisPriority *priority) {
    for (int32_t left = count; left > 0;) {
        int32_t before = left;
        for (int32_t k = 0; k < count; k++) is_later[ranked[k].class_index] = false;
        for (int32_t p = 0; p < pair_count; p++)
            if (rank[pairs[p].kept] == INT32_MAX) is_later[pairs[p].refused] = true;
        for (int32_t k = 0; k < count; k++) {
            int32_t class = ranked[k].class_index;
            if (rank[class] != INT32_MAX || is_later[class]) continue;
            take(priority, rank, class);
            left--;
        }
        for (int32_t k = 0; k < count && before == left; k++) {
            if (rank[ranked[k].class_index] != INT32_MAX) continue;
            take(priority, rank, ranked[k].class_index);
            left--;
        }
    }
}

static AmStatus append_classes(PlanStage *stage, Arena *arena, const Incremental *self, int32_t axis,
                               int32_t *rank, AmError *error) {
    PlanAxisPriority *priority = &stage->axis_priorities[axis];
    int32_t classes = self->classes.count, count = 0, pair_count = list_pairs(self, axis, NULL);
    RankedClass *ranked = ARENA_ARRAY(arena, RankedClass, classes + 1);
    PlanEntry *entries = ARENA_ARRAY(arena, PlanEntry, priority->count + classes + 1);
    Before *pairs = ARENA_ARRAY(arena, Before, pair_count + 1);
    bool *is_later = ARENA_ARRAY(arena, bool, classes + 1);
    if (arena->failed) return am_fail_memory(error, classes);
    list_pairs(self, axis, pairs);
    for (int32_t c = 0; c < classes; c++) {
        rank[c] = INT32_MAX;
        if (self->classes.keys[axis][c] != NO_CLAIM)
            ranked[count++] = (RankedClass){self->classes.keys[axis][c], c};
    }
    qsort(ranked, (size_t)count, sizeof *ranked, compare_ranked);
    if (priority->count > 0) memcpy(entries, priority->entries, sizeof *entries * (size_t)priority->count);
    priority->entries = entries;
    order_classes(ranked, count, pairs, pair_count, rank, is_later, priority);
    return AM_OK;
}

/* Returns whether some axis splits the value otherwise than the axis priorities would. */
static bool is_excepted(const Incremental *self, int32_t *const *rank, int32_t i) {
    const SplitOptions *split_options = self->split_options;
    for (int32_t axis = 0; axis < self->mesh.axis_count; axis++) {
        int8_t chosen = self->chosen[i][axis];
        if (chosen < 0) continue;
        int32_t kept = rank[axis][self->classes.set_of[split_options->first_dimension[i] + chosen]];
        for (int32_t node = split_options->first_dimension[i]; node < split_options->first_dimension[i + 1];
             node++)
            if (self->classes.set_of[node] >= 0 && rank[axis][self->classes.set_of[node]] < kept) return true;
    }
    return false;
}

AmStatus incremental_to_stage(PlanStage *stage, Arena *arena, const Incremental *incremental,
                              AmError *error) {
    const SplitOptions *split_options = incremental->split_options;
    int32_t *rank[MESH_MAX_AXES] = {NULL}, count = 0;
    for (int32_t axis = 0; axis < incremental->mesh.axis_count; axis++) {
        rank[axis] = ARENA_ARRAY(arena, int32_t, incremental->classes.count + 1);
        if (!rank[axis]) return am_fail_memory(error, incremental->classes.count);
        TRY(append_classes(stage, arena, incremental, axis, rank[axis], error));
    }
    for (int32_t i = 0; i < split_options->count; i++) count += is_excepted(incremental, rank, i);
    PlanOverride *overrides = ARENA_ARRAY(arena, PlanOverride, stage->override_count + count + 1);
    if (!overrides) return am_fail_memory(error, count);
    if (stage->override_count > 0)
        memcpy(overrides, stage->overrides, sizeof *overrides * (size_t)stage->override_count);
    stage->overrides = overrides;
    for (int32_t i = 0; i < split_options->count; i++)
        if (is_excepted(incremental, rank, i))
            overrides[stage->override_count++] = (PlanOverride){
                .instruction = i, .has_states = true, .states = incremental_state(incremental, i)};
    return AM_OK;
}
