/* Dimension classes by union-find over the ties of all factor rules.
 *
 * A tie is refused if it would put two dimensions of one tensor into a class (classes.h). The order of the
 * ties decides which one that is. Ties are made in rounds, so that those of attention are refused, not those
 * around it. Parameters are tied to their new values first, then the values that loops and conditionals hand
 * on. The factors of operators follow, by round_of():
 *
 *   1  operators other than dots
 *   2  dots without batch dimensions: projections and their gradients
 *   3  dots with batch dimensions
 *   4  dimensions that windows reach: positions of an image
 *   5  slices and pads that shift these positions by little
 *
 * Each set keeps a ring of its members, and a union walks the smaller one: O(n log n) in all.
 */
#include "propagation/classes/classes.h"

#include <stdlib.h>

#include "base/integers.h"
#include "base/union_find.h"
#include "ir/analysis/flops.h"
#include "ir/analysis/loops.h"
#include "propagation/classes/ties.h"

typedef struct Node {
    int32_t parent, next, set_size;
    int32_t array, array_rank; /* first node and rank of its tensor */
    bool is_spatial;           /* of a set: an overlapping window ties its dimensions */
    bool has_weight;           /* of a set: a weight has a dimension in it */
} Node;

/* Properties collected for each set, under its root. */
typedef struct SetFacts {
    int64_t divisor, least; /* of the factors' sizes: greatest common divisor, smallest */
    bool matters;           /* has a parameter, or an operator that is not element-wise */
    DimensionClass entry;
} SetFacts;

typedef struct ClassBuilder {
    Arena scratch;
    const IrModule *module;
    const Rules *rules; /* of the module */
    const IrRoles *roles;
    Classes *classes;
    Node *nodes;
    SetFacts *facts;
    int32_t *class_of_root;
    int32_t node_count;
    uint8_t *rounds; /* [instruction]: bit r: a factor makes ties in round r */
} ClassBuilder;

/* Returns the node of a dimension of a leaf of an instruction. */
static int32_t node_of(const Classes *classes, const Rules *rules, int32_t instruction, int32_t leaf,
                       int32_t dimension) {
    int32_t node = classes->first_node[instruction] + dimension;
    const IrShape *shape = &rules->module->instructions[instruction].shape;
    for (int32_t k = 0; k < leaf; k++) node += rules_leaf(shape, k)->rank;
    return node;
}

/* Returns the node of factor f in a slot of an instruction; -1 if none is stored there. */
static int32_t node_of_slot(const Classes *classes, const Rules *rules, int32_t instruction,
                            const Factor *factor, int32_t slot) {
    const FactorRule *rule = &rules->rules[instruction];
    int32_t dimension = factor->dimension[slot], leaf = 0;
    if (dimension < 0) return -1;
    if (slot < rule->operand_count) instruction = rules->module->instructions[instruction].operands[slot];
    else leaf = slot - rule->operand_count;
    if (!rules_resolve(rules, &instruction, &leaf, &dimension)) return -1;
    if (rules->rules[instruction].result_count == 0) return -1;
    return node_of(classes, rules, instruction, leaf, dimension);
}

/* Returns the root of a node's set (union-find). */
static int32_t set_root(Node *nodes, int32_t node) {
    while (nodes[node].parent != node) {
        nodes[node].parent = nodes[nodes[node].parent].parent;
        node = nodes[node].parent;
    }
    return node;
}

/* Returns whether some tensor has dimensions in both sets; walks the smaller one. */
static bool share_tensor(Node *nodes, int32_t small, int32_t large) {
    int32_t member = small;
    do {
        for (int32_t d = 0; d < nodes[member].array_rank; d++) {
            if (set_root(nodes, nodes[member].array + d) == large) return true;
        }
        member = nodes[member].next;
    } while (member != small);
    return false;
}

/* Joins the sets of two nodes, unless one tensor would then have two dimensions in one class. */
static void tie(Node *nodes, int32_t a, int32_t b) {
    int32_t small = set_root(nodes, a), large = set_root(nodes, b);
    if (small == large) return;
    if (nodes[small].set_size > nodes[large].set_size) {
        int32_t swap = small;
        small = large;
        large = swap;
    }
    if (share_tensor(nodes, small, large)) return;
    nodes[small].parent = large;
    nodes[large].set_size += nodes[small].set_size;
    nodes[large].is_spatial |= nodes[small].is_spatial;
    nodes[large].has_weight |= nodes[small].has_weight;
    int32_t next = nodes[small].next;
    nodes[small].next = nodes[large].next;
    nodes[large].next = next;
}

/* Returns the round in which a factor's ties are made, from 1; 0: it makes none. */
static int32_t round_of(const IrInstruction *instruction, const Factor *factor) {
    static const int32_t of_halo[] = {[HALO_PATCH] = 4, [HALO_OVERLAP] = 4, [HALO_NEAR] = 5, [HALO_FAR] = 0};
    if (!factor_may_split(factor)) return 0;
    if (factor->halo != HALO_NONE) return of_halo[factor->halo];
    if (!ir_is_matrix_product(instruction->opcode)) return 1;
    return instruction->attributes->dot && instruction->attributes->dot->batch_count > 0 ? 3 : 2;
}

enum { ROUNDS = 5 };

/* Ties two dimensions of a shift if windows reach them as well. A dimension of a weight (positions
 * turned into features, learned positions) is not split because an image is. */
static void tie_halo(Node *nodes, const Factor *factor, int32_t a, int32_t b) {
    bool is_spatial = nodes[set_root(nodes, a)].is_spatial || nodes[set_root(nodes, b)].is_spatial;
    if (nodes[set_root(nodes, a)].has_weight || nodes[set_root(nodes, b)].has_weight) return;
    if (factor->halo == HALO_NEAR && !is_spatial) return;
    tie(nodes, a, b);
    if (is_spatial || factor->halo == HALO_OVERLAP)
        nodes[set_root(nodes, a)].is_spatial = nodes[set_root(nodes, b)].is_spatial = true;
}

/* Ties those of an instruction's factors that are of a round, and only in its second operand or not. */
static void tie_some(ClassBuilder *builder, int32_t instruction, int32_t round, bool of_second) {
    const FactorRule *rule = &builder->rules->rules[instruction];
    for (int32_t f = 0; f < rule->factor_count; f++) {
        const Factor *factor = &rule->factors[f];
        int32_t first = -1;
        if (round_of(&builder->module->instructions[instruction], factor) != round) continue;
        if ((rule->operand_count > 1 && factor->dimension[0] < 0) != of_second) continue;
        for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
            if (factor_blocks(factor, slot) > 1) continue;
            int32_t node = node_of_slot(builder->classes, builder->rules, instruction, factor, slot);
            if (node < 0) continue;
            if (first < 0) first = node;
            else if (factor->halo == HALO_NONE) tie(builder->nodes, first, node);
            else tie_halo(builder->nodes, factor, first, node);
        }
    }
}

/* Ties the factors of operators. A product's larger operand goes first: the queries of grouped queries and
 * their fewer keys. */
static void tie_factors(ClassBuilder *builder, int32_t instruction, int32_t round) {
    const IrInstruction *self = &builder->module->instructions[instruction];
    const IrInstruction *all = builder->module->instructions;
    bool second_first =
        ir_is_matrix_product(self->opcode) &&
        ir_shape_elements(&all[self->operands[1]].shape) > ir_shape_elements(&all[self->operands[0]].shape);
    tie_some(builder, instruction, round, second_first);
    tie_some(builder, instruction, round, !second_first);
}

/* Ties a parameter and the output that updates it, which are one tensor. */
static void tie_paired(ClassBuilder *builder) {
    const Rules *rules = builder->rules;
    for (int32_t p = 0; p < builder->roles->parameter_count; p++) {
        const IrParameter *parameter = &builder->roles->parameters[p];
        const IrShape *shape = &rules->module->instructions[parameter->instruction].shape;
        if (parameter->output < 0 || shape->type == DTYPE_TUPLE) continue;
        for (int32_t d = 0; d < shape->rank; d++) {
            int32_t output = builder->roles->outputs[parameter->output], leaf = 0, dimension = d;
            const IrShape *updated = &rules->module->instructions[output].shape;
            if (updated->type == DTYPE_TUPLE || updated->rank != shape->rank) break;
            if (shape->dimensions[d] > 1 && rules_resolve(rules, &output, &leaf, &dimension))
                tie(builder->nodes, node_of(builder->classes, rules, parameter->instruction, 0, d),
                    node_of(builder->classes, rules, output, leaf, dimension));
        }
    }
}

/* Ties dimension d of two values, if both are stored. */
static void tie_values(ClassBuilder *builder, int32_t a, int32_t a_leaf, int32_t b, int32_t b_leaf,
                       int32_t d) {
    const Rules *rules = builder->rules;
    int32_t a_dimension = d, b_dimension = d;
    if (a < 0 || b < 0) return;
    if (!rules_resolve(rules, &a, &a_leaf, &a_dimension) || rules->rules[a].result_count == 0) return;
    if (!rules_resolve(rules, &b, &b_leaf, &b_dimension) || rules->rules[b].result_count == 0) return;
    tie(builder->nodes, node_of(builder->classes, rules, a, a_leaf, a_dimension),
        node_of(builder->classes, rules, b, b_leaf, b_dimension));
}

/* Ties the initial value, the parameter, the next value and the final value of a carried array:
 * they are one tensor. */
static void tie_carried(ClassBuilder *builder) {
    const Rules *rules = builder->rules;
    for (int32_t k = 0; k < rules->loop_count; k++) {
        for (int32_t l = 0; l < rules->loops[k].leaf_count; l++) {
            const LoopLeaf *leaf = &rules->loops[k].leaves[l];
            for (int32_t d = 0; d < leaf->shape->rank && leaf->shape->type != DTYPE_TUPLE; d++) {
                if (leaf->shape->dimensions[d] <= 1) continue;
                tie_values(builder, leaf->in_body, 0, leaf->next, leaf->next_leaf, d);
                tie_values(builder, leaf->in_body, 0, leaf->afterwards, 0, d);
                tie_values(builder, leaf->in_body, 0, leaf->in_condition, 0, d);
                tie_values(builder, leaf->in_body, 0, leaf->initial, leaf->initial_leaf, d);
                tie_values(builder, leaf->next, leaf->next_leaf, leaf->afterwards, 0, d);
                tie_values(builder, leaf->initial, leaf->initial_leaf, leaf->afterwards, 0, d);
            }
        }
    }
}

static void tie_arrays(ClassBuilder *builder, const IrShape *shape, int32_t a, int32_t a_leaf, int32_t b) {
    for (int32_t d = 0; d < shape->rank; d++)
        if (shape->dimensions[d] > 1) tie_values(builder, a, a_leaf, b, 0, d);
}

/* Ties a branch's inputs with the values read inside, and the results of all branches with the
 * conditional's. */
static void tie_branches(ClassBuilder *builder) {
    const Rules *rules = builder->rules;
    for (int32_t c = 0; c < rules->conditional_count; c++) {
        const PlannedConditional *conditional = &rules->conditionals[c];
        for (int32_t k = 0; k < conditional->branch_count; k++) {
            const PlannedBranch *branch = &conditional->branches[k];
            for (int32_t l = 0; l < branch->leaf_count; l++)
                tie_arrays(builder, branch->leaves[l].shape, branch->leaves[l].given,
                           branch->leaves[l].given_leaf, branch->leaves[l].reader);
            for (int32_t r = 0; r < conditional->result_count; r++)
                tie_arrays(builder, conditional->result_shapes[r], branch->made[r], branch->made_leaf[r],
                           conditional->afterwards[r]);
        }
    }
}

static void tie_all(ClassBuilder *builder) {
    for (int32_t p = 0; p < builder->roles->parameter_count; p++) {
        const IrParameter *parameter = &builder->roles->parameters[p];
        const IrShape *shape = &builder->module->instructions[parameter->instruction].shape;
        if (parameter->role != IR_ROLE_WEIGHT || shape->type == DTYPE_TUPLE) continue;
        for (int32_t d = 0; d < shape->rank; d++)
            builder->nodes[node_of(builder->classes, builder->rules, parameter->instruction, 0, d)]
                .has_weight = true;
    }
    tie_paired(builder);
    tie_carried(builder);
    tie_branches(builder);
    for (int32_t i = 0; i < builder->rules->count; i++) {
        const FactorRule *rule = &builder->rules->rules[i];
        const IrInstruction *instruction = &builder->module->instructions[i];
        for (int32_t f = 0; f < rule->factor_count && !builder->rules->on_demand[i]; f++)
            builder->rounds[i] |= (uint8_t)(1 << round_of(instruction, &rule->factors[f]));
    }
    for (int32_t round = 1; round <= ROUNDS; round++)
        for (int32_t i = 0; i < builder->rules->count; i++)
            if (builder->rounds[i] >> round & 1) tie_factors(builder, i, round);
}

static AmStatus make_nodes(ClassBuilder *builder, Arena *arena, AmError *error) {
    const Rules *rules = builder->rules;
    Classes *classes = builder->classes;
    classes->first_node = ARENA_ARRAY(arena, int32_t, rules->count + 1);
    if (!classes->first_node) return am_fail_memory(error, (int64_t)sizeof(int32_t) * rules->count);
    int64_t count = 0;
    for (int32_t pass = 0; pass < 2; pass++) {
        count = 0;
        for (int32_t i = 0; i < rules->count; i++) {
            const IrShape *shape = &rules->module->instructions[i].shape;
            bool makes = rules->rules[i].result_count > 0; /* tuple plumbing makes nothing */
            if (pass == 0) classes->first_node[i] = (int32_t)count;
            for (int32_t leaf = 0; makes && leaf < rules->rules[i].result_count; leaf++) {
                int32_t rank = rules_leaf(shape, leaf)->rank;
                for (int32_t d = 0; pass == 1 && d < rank; d++) {
                    int32_t node = (int32_t)count + d;
                    builder->nodes[node] = (Node){.parent = node,
                                                  .next = node,
                                                  .set_size = 1,
                                                  .array = (int32_t)count,
                                                  .array_rank = rank};
                }
                count += rank;
            }
            if (count > INT32_MAX / 2) return am_fail(error, AM_ERROR_INPUT, "", "too many dimensions");
        }
        if (pass == 1) break;
        classes->first_node[rules->count] = (int32_t)count;
        builder->nodes = ARENA_ARRAY(&builder->scratch, Node, count);
        builder->facts = ARENA_ARRAY(&builder->scratch, SetFacts, count);
        builder->class_of_root = ARENA_ARRAY(&builder->scratch, int32_t, count);
        builder->rounds = ARENA_ARRAY(&builder->scratch, uint8_t, rules->count + 1);
        classes->class_of = ARENA_ARRAY(arena, int32_t, count);
        if (builder->scratch.failed || !classes->class_of)
            return am_fail_memory(error, count * (int64_t)(sizeof(Node) + sizeof(SetFacts)));
    }
    builder->node_count = (int32_t)count;
    return AM_OK;
}

/* Returns the FLOPs of a product of a planned computation in all its runs. */
static double flops_of_step(ClassBuilder *builder, int32_t computation, int32_t i) {
    const Rules *rules = builder->rules;
    return rules->times[computation] * ir_instruction_flops(rules->module, i, &builder->scratch) *
           ir_layers_of(rules->module, i);
}

/* Finds the divisor and the weight of the operators of a set, and whether the set matters. */
static AmStatus gather_operators(ClassBuilder *builder, AmError *error) {
    const Rules *rules = builder->rules;
    int32_t computation = 0;
    for (int32_t i = 0; i < rules->count; i++) {
        const FactorRule *rule = &rules->rules[i];
        const IrComputation *within = &rules->module->computations[computation];
        if (i >= within->first + within->count) computation++;
        if (rules->on_demand[i] || !rules->is_planned[computation]) continue;
        const IrInstruction *instruction = &rules->module->instructions[i];
        bool is_product = ir_is_product(instruction->opcode);
        double flops = is_product ? flops_of_step(builder, computation, i) : 0;
        for (int32_t f = 0; f < rule->factor_count; f++) {
            const Factor *factor = &rule->factors[f];
            if (!factor_may_split(factor)) continue;
            int32_t strand = -1;
            for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
                if (factor_blocks(factor, slot) > 1) continue;
                int32_t node = node_of_slot(builder->classes, rules, i, factor, slot);
                if (node < 0) continue;
                int32_t root = set_root(builder->nodes, node);
                bool is_shift = factor->halo == HALO_FAR || factor->halo == HALO_NEAR;
                if (is_shift && !builder->nodes[root].is_spatial) continue;
                SetFacts *facts = &builder->facts[root];
                facts->divisor = common_divisor(facts->divisor, factor->size);
                if (facts->least == 0 || factor->size < facts->least) facts->least = factor->size;
                facts->matters |= is_product || instruction->opcode == IR_GATHER ||
                                  instruction->opcode == IR_SCATTER || instruction->opcode == IR_REDUCE;
                if (strand < 0 || builder->nodes[root].set_size < builder->nodes[strand].set_size)
                    strand = root;
            }
            if (strand >= 0 && factor->halo == HALO_NONE) builder->facts[strand].entry.flops += flops;
        }
    }
    return builder->scratch.failed ? am_fail_memory(error, 0) : AM_OK;
}

/* Names and counts. Instructions first, in order, then parameters by number, so
 * that the first to come is the smallest; a parameter's name wins. */
static void gather_tensors(ClassBuilder *builder) {
    const Rules *rules = builder->rules;
    for (int32_t p = 0; p < builder->roles->parameter_count; p++) {
        const IrParameter *parameter = &builder->roles->parameters[p];
        const IrShape *shape = &rules->module->instructions[parameter->instruction].shape;
        if (shape->type == DTYPE_TUPLE) continue;
        for (int32_t d = 0; d < shape->rank; d++) {
            int32_t node = node_of(builder->classes, rules, parameter->instruction, 0, d);
            SetFacts *facts = &builder->facts[set_root(builder->nodes, node)];
            facts->matters = true;
            if (!facts->entry.named_by_parameter) {
                facts->entry.named_by_parameter = true;
                facts->entry.number = p;
                facts->entry.dimension = d;
            }
            facts->entry.data_count += parameter->role == IR_ROLE_DATA;
            if (parameter->role != IR_ROLE_WEIGHT) continue;
            facts->entry.weight_count++;
            facts->entry.weight_elements +=
                ir_shape_elements(shape) * ir_layers_of(rules->module, parameter->instruction);
        }
    }
    for (int32_t i = rules->count - 1; i >= 0; i--) {
        for (int32_t node = builder->classes->first_node[i + 1] - 1; node >= builder->classes->first_node[i];
             node--) {
            DimensionClass *entry = &builder->facts[set_root(builder->nodes, node)].entry;
            if (entry->named_by_parameter) continue;
            entry->number = i;
            entry->dimension = node - builder->classes->first_node[i];
        }
    }
}

/* Adds the dimensions of data inputs in another form: a batch that is divided into micro-batches (reshaped,
 * then scanned) is split by the remainder of each. */
static void gather_reshaped_data(ClassBuilder *builder) {
    const Rules *rules = builder->rules;
    bool *is_data = ARENA_ARRAY(&builder->scratch, bool, rules->count);
    for (int32_t p = 0; is_data && p < builder->roles->parameter_count; p++)
        if (builder->roles->parameters[p].role == IR_ROLE_DATA)
            is_data[builder->roles->parameters[p].instruction] = true;
    for (int32_t i = 0; is_data && i < rules->entry_count; i++) {
        const IrInstruction *reshape = &rules->module->instructions[i];
        if (reshape->opcode != IR_RESHAPE || !is_data[rules->alias[reshape->operands[0]]]) continue;
        for (int32_t d = 0; d < reshape->shape.rank; d++) {
            int32_t node = node_of(builder->classes, rules, i, 0, d);
            SetFacts *facts = &builder->facts[set_root(builder->nodes, node)];
            if (reshape->shape.dimensions[d] <= 1 || facts->entry.data_count > 0) continue;
            facts->matters = true;
            facts->entry.data_count++;
        }
    }
}

static int compare_classes(const void *left, const void *right) {
    const DimensionClass *a = left, *b = right;
    if (a->named_by_parameter != b->named_by_parameter) return a->named_by_parameter ? -1 : 1;
    if (a->number != b->number) return a->number < b->number ? -1 : 1;
    return a->dimension - b->dimension;
}

/* Keeps the sets that can be split and matter, in the order of their names. */
static AmStatus make_classes(ClassBuilder *builder, Arena *arena, AmError *error) {
    Classes *classes = builder->classes;
    for (int32_t pass = 0; pass < 2; pass++) {
        classes->count = 0;
        for (int32_t node = 0; node < builder->node_count; node++) {
            SetFacts *facts = &builder->facts[node];
            if (builder->nodes[node].parent != node || facts->divisor == 0 || !facts->matters) continue;
            if (pass == 1) {
                facts->entry.is_spatial = builder->nodes[node].is_spatial;
                facts->entry.size = facts->entry.is_spatial ? facts->least : facts->divisor;
                facts->entry.node_count = builder->nodes[node].set_size;
                facts->entry.tie = node; /* its root, until ties are found */
                classes->classes[classes->count] = facts->entry;
            }
            classes->count++;
        }
        if (pass == 0) classes->classes = ARENA_ARRAY(arena, DimensionClass, classes->count);
        if (!classes->classes) return am_fail_memory(error, (int64_t)sizeof(DimensionClass) * classes->count);
    }
    qsort(classes->classes, (size_t)classes->count, sizeof *classes->classes, compare_classes);
    for (int32_t node = 0; node < builder->node_count; node++) builder->class_of_root[node] = -1;
    for (int32_t c = 0; c < classes->count; c++) builder->class_of_root[classes->classes[c].tie] = c;
    for (int32_t node = 0; node < builder->node_count; node++)
        classes->class_of[node] = builder->class_of_root[set_root(builder->nodes, node)];
    return AM_OK;
}

static int32_t find_factor_class(const Classes *classes, const Rules *rules, int32_t instruction,
                                 int32_t factor) {
    const FactorRule *rule = &rules->rules[instruction];
    int32_t strand = -1;
    if (!factor_may_split(&rule->factors[factor])) return -1;
    if (rule->factors[factor].kind ==
        FACTOR_PERMUTATION) { /* the definition decides, wherever the value is read */
        int32_t node = node_of_slot(classes, rules, instruction, &rule->factors[factor], rule->operand_count);
        return node < 0 ? -1 : classes->class_of[node];
    }
    for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
        if (factor_blocks(&rule->factors[factor], slot) > 1) continue;
        int32_t node = node_of_slot(classes, rules, instruction, &rule->factors[factor], slot);
        int32_t found = node < 0 ? -1 : classes->class_of[node];
        if (found < 0) continue;
        if (strand < 0 || classes->classes[found].node_count < classes->classes[strand].node_count)
            strand = found;
    }
    return strand;
}

/* Stores the class of every factor, which every priced plan looks up. */
static AmStatus index_factors(Classes *classes, const Rules *rules, Arena *arena, AmError *error) {
    classes->first_factor = ARENA_ARRAY(arena, int32_t, rules->count + 1);
    if (!classes->first_factor) return am_fail_memory(error, rules->count);
    for (int32_t i = 0; i < rules->count; i++)
        classes->first_factor[i + 1] = classes->first_factor[i] + rules->rules[i].factor_count;
    classes->class_of_factor = ARENA_ARRAY(arena, int32_t, classes->first_factor[rules->count] + 1);
    if (!classes->class_of_factor) return am_fail_memory(error, classes->first_factor[rules->count]);
    for (int32_t i = 0; i < rules->count; i++)
        for (int32_t f = 0; f < rules->rules[i].factor_count; f++)
            classes->class_of_factor[classes->first_factor[i] + f] = find_factor_class(classes, rules, i, f);
    return AM_OK;
}

static int compare_blocks(const ClassBlocks *a, const ClassBlocks *b) {
    if (a->blocks != b->blocks) return a->blocks < b->blocks ? -1 : 1;
    if (a->class_index != b->class_index) return a->class_index < b->class_index ? -1 : 1;
    return a->size < b->size ? -1 : a->size > b->size;
}

/* Adds one to those kept of a class, in order. */
static void add_blocks(ClassBlocks *kept, int32_t *count, ClassBlocks added) {
    int32_t place = 0;
    while (place < *count && compare_blocks(&kept[place], &added) < 0) place++;
    if (place == CLASS_MAX_BLOCKS) return;
    if (place < *count && compare_blocks(&kept[place], &added) == 0) return;
    if (*count < CLASS_MAX_BLOCKS) ++*count;
    for (int32_t k = *count - 1; k > place; k--) kept[k] = kept[k - 1];
    kept[place] = added;
}

/* Lists the classes that form blocks of others, by the factors in blocks of a slot. */
static AmStatus index_blocks(Classes *classes, const Rules *rules, Arena *scratch, Arena *arena,
                             AmError *error) {
    size_t most = (size_t)classes->count * CLASS_MAX_BLOCKS;
    ClassBlocks *kept = ARENA_ARRAY(scratch, ClassBlocks, most + 1);
    int32_t *count = ARENA_ARRAY(scratch, int32_t, classes->count + 1);
    classes->first_blocks = ARENA_ARRAY(arena, int32_t, classes->count + 1);
    if (scratch->failed || !classes->first_blocks) return am_fail_memory(error, (int64_t)most);
    for (int32_t i = 0; i < rules->count; i++) {
        const FactorRule *rule = &rules->rules[i];
        for (int32_t f = 0; f < rule->factor_count; f++) {
            const Factor *factor = &rule->factors[f];
            int32_t inside = factor->blocks ? classes_of_factor(classes, i, f) : -1;
            for (int32_t slot = 0; inside >= 0 && slot < rule->operand_count + rule->result_count; slot++) {
                if (factor_blocks(factor, slot) == 1) continue;
                int32_t node = node_of_slot(classes, rules, i, factor, slot);
                int32_t outside = node < 0 ? -1 : classes->class_of[node];
                if (outside < 0) continue;
                add_blocks(
                    &kept[(size_t)outside * CLASS_MAX_BLOCKS], &count[outside],
                    (ClassBlocks){inside, factor_blocks(factor, slot),
                                  rules_slot_shape(rules, i, slot)->dimensions[factor->dimension[slot]]});
            }
        }
    }
    for (int32_t c = 0; c < classes->count; c++)
        classes->first_blocks[c + 1] = classes->first_blocks[c] + count[c];
    classes->blocks = ARENA_ARRAY(arena, ClassBlocks, classes->first_blocks[classes->count] + 1);
    if (!classes->blocks) return am_fail_memory(error, (int64_t)most);
    for (int32_t c = 0; c < classes->count; c++)
        for (int32_t k = 0; k < count[c]; k++)
            classes->blocks[classes->first_blocks[c] + k] = kept[(size_t)c * CLASS_MAX_BLOCKS + (size_t)k];
    return AM_OK;
}

/* Joins classes in the same blocks of the same dimensions. A product ties the major part of a merged
 * dimension alone, so that the minor part, such as the batch in rows of positions, is another class after it.
 * Returns [class]: union-find; NULL without memory. */
static int32_t *join_minor_parts(Arena *scratch, const Classes *classes) {
    int32_t *joined = ARENA_ARRAY(scratch, int32_t, classes->count + 1);
    if (!joined) return NULL;
    union_find_begin(joined, classes->count);
    for (int32_t c = 0; c < classes->count; c++)
        for (int32_t k = classes->first_blocks[c]; k < classes->first_blocks[c + 1]; k++)
            for (int32_t other = classes->first_blocks[c]; other < k; other++) {
                const ClassBlocks *a = &classes->blocks[other], *b = &classes->blocks[k];
                if (a->blocks != b->blocks || a->size != b->size) continue;
                union_find_join(joined, a->class_index, b->class_index);
            }
    return joined;
}

/* FLOPs of products by joined classes: a product counts once for those of its factors and for those in blocks
 * of its dimensions. */
typedef struct MergedFlops {
    int32_t *joined, *last; /* [class]: union-find, the last product counted + 1 */
    double *sums;           /* [class] */
} MergedFlops;

static void count_product(const MergedFlops *merged, int32_t class, int32_t product, double flops) {
    int32_t root = union_find_root(merged->joined, class);
    if (merged->last[root] != product + 1) merged->sums[root] += flops;
    merged->last[root] = product + 1;
}

static AmStatus gather_merged_flops(ClassBuilder *builder, AmError *error) {
    const Rules *rules = builder->rules;
    const Classes *classes = builder->classes;
    const MergedFlops merged = {.joined = join_minor_parts(&builder->scratch, classes),
                                .last = ARENA_ARRAY(&builder->scratch, int32_t, classes->count + 1),
                                .sums = ARENA_ARRAY(&builder->scratch, double, classes->count + 1)};
    if (builder->scratch.failed) return am_fail_memory(error, classes->count);
    int32_t computation = 0;
    for (int32_t i = 0; i < rules->count; i++) {
        const IrComputation *within = &rules->module->computations[computation];
        if (i >= within->first + within->count) computation++;
        if (rules->on_demand[i] || !rules->is_planned[computation]) continue;
        if (!ir_is_product(rules->module->instructions[i].opcode)) continue;
        double flops = flops_of_step(builder, computation, i);
        for (int32_t f = 0; f < rules->rules[i].factor_count; f++) {
            const Factor *factor = &rules->rules[i].factors[f];
            int32_t class = classes_of_factor(classes, i, f);
            if (class < 0 || factor->halo != HALO_NONE) continue;
            count_product(&merged, class, i, flops);
            for (int32_t k = classes->first_blocks[class]; k < classes->first_blocks[class + 1]; k++)
                if (classes->blocks[k].size == factor->size)
                    count_product(&merged, classes->blocks[k].class_index, i, flops);
        }
    }
    for (int32_t c = 0; c < classes->count; c++)
        classes->classes[c].merged_flops = merged.sums[union_find_root(merged.joined, c)];
    return builder->scratch.failed ? am_fail_memory(error, 0) : AM_OK;
}

AmStatus classes_build(Classes **classes, Arena *arena, const Rules *rules, const IrRoles *roles,
                       AmError *error) {
    ClassBuilder builder = {
        .module = rules->module, .rules = rules, .roles = roles, .classes = ARENA_ARRAY(arena, Classes, 1)};
    if (!builder.classes) return am_fail_memory(error, (int64_t)sizeof(Classes));
    AmStatus status;
    TRY_OR_FAIL(make_nodes(&builder, arena, error));
    tie_all(&builder);
    TRY_OR_FAIL(gather_operators(&builder, error));
    gather_tensors(&builder);
    gather_reshaped_data(&builder);
    TRY_OR_FAIL(make_classes(&builder, arena, error));
    TRY_OR_FAIL(index_factors(builder.classes, rules, arena, error));
    TRY_OR_FAIL(index_blocks(builder.classes, rules, &builder.scratch, arena, error));
    TRY_OR_FAIL(gather_merged_flops(&builder, error));
    TRY_OR_FAIL(ties_find(builder.classes, rules, error));
    *classes = builder.classes;
fail:
    arena_free(&builder.scratch);
    return status;
}

int32_t classes_of(const Classes *classes, const Rules *rules, int32_t instruction, int32_t dimension) {
    int32_t leaf = 0;
    if (!rules_resolve(rules, &instruction, &leaf, &dimension)) return -1;
    if (rules->rules[instruction].result_count == 0) return -1;
    return classes->class_of[node_of(classes, rules, instruction, leaf, dimension)];
}

int32_t classes_find(const Classes *classes, bool by_parameter, int32_t number, int32_t dimension) {
    for (int32_t c = 0; c < classes->count; c++) {
        const DimensionClass *entry = &classes->classes[c];
        if (entry->named_by_parameter == by_parameter && entry->number == number &&
            entry->dimension == dimension)
            return c;
    }
    return -1;
}

const ClassBlocks *classes_in_blocks(const Classes *classes, int32_t class_index, int64_t size) {
    if (class_index < 0) return NULL;
    for (int32_t k = classes->first_blocks[class_index]; k < classes->first_blocks[class_index + 1]; k++)
        if (classes->blocks[k].size == size) return &classes->blocks[k];
    return NULL;
}
