/* The constraint problem of strict mode, and its propagation.
 *
 * Variables are classes of tensors that element-wise operators make equal, with
 * a bit mask of states (bit 0 is B, bit 1 + d is S(d), of d + STRICT_IN_BLOCKS in
 * blocks). A constraint is one
 * other operator with its rows. Propagation is generalised arc consistency
 * (Mackworth's AC-3): a state stays iff some row of every constraint supports
 * it. A trail makes decisions cheap to take back.
 *
 * Values without a parameter among their ancestors constrain nothing, and a
 * broadcast is copied for each use, so that a shared constant or mask ties
 * nothing together.
 */
#include <string.h>

#include "base/union_find.h"
#include "propagation/groups/strict.h"

typedef uint64_t Domain;

/* States of a tensor: B, and every dimension plainly and in blocks. */
#define STATES (1 + 2 * IR_MAX_RANK)

typedef struct Constraint {
    int32_t instruction;
    int32_t first_slot, slot_count; /* in slots */
    int32_t first_row, row_count;   /* in states: slot_count per row */
} Constraint;

typedef struct Trail {
    int32_t variable;
    Domain before;
} Trail;

struct StrictProblem {
    Arena *arena;
    const PlanContext *context;
    int32_t axis_size;
    bool has_any_cut;       /* sizes need not divide, and dimensions are cut in blocks */
    bool *precedes_product; /* [instruction]: the loss depends on it by way of a later product */
    /* Tensors: (instruction, leaf 0) is `instruction`, copies of broadcasts come after. */
    int32_t *parent; /* union-find; roots are the variables */
    const IrShape **shapes;
    int32_t tensor_count, tensor_capacity, parent_capacity;
    Constraint *constraints;
    int32_t constraint_count, constraint_capacity;
    int32_t *slots; /* tensors, then variables */
    int32_t slot_count, slot_capacity;
    Sbp *states;
    int32_t state_count, state_capacity;
    Domain *domains;              /* [tensor] at the roots */
    int32_t *ruled_out_by;        /* [tensor * STATES] -1: nothing did */
    int32_t *first_use, *uses;    /* constraints of each variable */
    int32_t *queue, queue_length; /* constraints to look at */
    bool *is_queued;
    Trail *trail;
    int32_t trail_count, trail_capacity;
    bool is_recording_root;
    Sbp *state_seen;    /* [tensor] scratch of revise */
    bool *row_is_alive; /* [row] scratch of revise */
};

static Domain bit_of(Sbp sbp) {
    return (Domain)1 << sbp;
}

/* ---- values before a product ---- */

/* Returns whether an instruction is a fusion of products, whose results are split by their readers'
 * tensors. */
static bool is_fused(const Rules *rules, int32_t instruction) {
    return rules->rules[instruction].inner != NULL;
}

/* Adds the arrays of a loop over micro-batches on which the loss depends: by their value after the loop, or
 * by the value that the next iteration reads. A sum of losses precedes no product. */
static void enter_micro_batches(StrictProblem *problem, const PlannedLoop *loop, bool *is_forward) {
    for (int32_t k = 0; k < loop->leaf_count; k++) {
        const LoopLeaf *leaf = &loop->leaves[k];
        const int32_t readers[] = {leaf->afterwards, leaf->in_body};
        for (int32_t r = 0; r < 2; r++) {
            if (readers[r] < 0 || !is_forward[readers[r]]) continue;
            is_forward[leaf->next] = true;
            problem->precedes_product[leaf->next] |= problem->precedes_product[readers[r]];
        }
    }
}

/* Adds the whole body of a loop on which the loss depends; it precedes the products of the next
 * iteration. */
static void enter_loop(StrictProblem *problem, const PlannedLoop *loop, bool *is_forward) {
    const IrModule *module = problem->context->canonical;
    if (problem->context->primary && loop->instruction < problem->context->rules->entry_count) {
        enter_micro_batches(problem, loop, is_forward);
        return;
    }
    bool is_followed = problem->precedes_product[loop->instruction];
    const IrComputation *body = &module->computations[loop->body];
    for (int32_t i = body->first; i < body->first + body->count; i++)
        is_followed |= ir_is_product(module->instructions[i].opcode);
    for (int32_t k = 0; k < loop->leaf_count; k++) {
        is_forward[loop->leaves[k].next] = true;
        problem->precedes_product[loop->leaves[k].next] |= is_followed;
    }
}

/* Marks the operands of all marked instructions, in one pass backwards over the module. Returns the number of
 * marks. */
static int64_t mark_ancestors(StrictProblem *problem, bool *is_forward) {
    const Rules *rules = problem->context->rules;
    const IrModule *module = rules->module;
    int64_t marks = 0;
    for (int32_t c = 0; c < module->computation_count; c++) { /* loops before their computations */
        const IrComputation *computation = &module->computations[c];
        for (int32_t i = computation->first + computation->count - 1;
             rules->is_planned[c] && i >= computation->first; i--) {
            const IrInstruction *instruction = &module->instructions[i];
            if (!is_forward[i] || rules->alias[i] != i) continue;
            for (int32_t k = 0; k < instruction->operand_count; k++) {
                int32_t operand = rules->alias[instruction->operands[k]];
                is_forward[operand] = true;
                problem->precedes_product[operand] |=
                    ir_is_product(instruction->opcode) || is_fused(rules, i) || problem->precedes_product[i];
            }
            const PlannedLoop *loop = rules_loop(rules, i);
            if (loop) enter_loop(problem, loop, is_forward);
            /* The loss depends on the results of the branches of a conditional. */
            const PlannedConditional *conditional = rules_conditional(rules, i);
            for (int32_t n = 0; conditional && n < conditional->branch_count; n++)
                for (int32_t r = 0; r < conditional->result_count; r++) {
                    is_forward[conditional->branches[n].made[r]] = true;
                    problem->precedes_product[conditional->branches[n].made[r]] |=
                        problem->precedes_product[i];
                }
        }
    }
    for (int32_t i = 0; i < rules->count; i++) marks += is_forward[i] + problem->precedes_product[i];
    return marks;
}

/* Finds precedes_product: of the ancestors of the loss, those with a dot or convolution after them. Each pass
 * carries marks through one more iteration of the loops over micro-batches. */
static AmStatus find_values_before_products(StrictProblem *problem, AmError *error) {
    const Rules *rules = problem->context->rules;
    const IrRoles *roles = problem->context->roles;
    problem->precedes_product = ARENA_ARRAY(problem->arena, bool, rules->count);
    bool *is_forward = ARENA_ARRAY(problem->arena, bool, rules->count);
    if (!problem->precedes_product || !is_forward) return am_fail_memory(error, 2 * (int64_t)rules->count);
    if (roles->loss < 0) memset(is_forward, true, (size_t)rules->count);
    else is_forward[rules->alias[roles->outputs[roles->loss]]] = true;
    for (int64_t marks = -1, now = 0; now != marks;) {
        marks = now;
        now = mark_ancestors(problem, is_forward);
    }
    return AM_OK;
}

/* ---- tensors and constraints ---- */

static int32_t add_tensor(StrictProblem *problem, const IrShape *shape) {
    ARENA_RESERVE(problem->arena, problem->parent, problem->tensor_count, problem->parent_capacity);
    ARENA_RESERVE(problem->arena, problem->shapes, problem->tensor_count, problem->tensor_capacity);
    if (problem->arena->failed) return 0;
    problem->parent[problem->tensor_count] = problem->tensor_count;
    problem->shapes[problem->tensor_count] = shape;
    return problem->tensor_count++;
}

/* Returns whether so many elements can be split. */
static bool fits_axis(const StrictProblem *problem, int64_t size) {
    return problem->has_any_cut ? size >= problem->axis_size : size > 0 && size % problem->axis_size == 0;
}

/* Returns the fewest blocks of a class in a dimension of a slot; 1: no blocks; 0: made on demand in any
 * state. */
static int32_t blocks_in(const StrictProblem *problem, int32_t instruction, int32_t slot, int32_t dimension) {
    const Rules *rules = problem->context->rules;
    const Classes *classes = problem->context->classes;
    int64_t size = rules_slot_shape(rules, instruction, slot)->dimensions[dimension];
    if (slot < rules->rules[instruction].operand_count)
        instruction = rules->module->instructions[instruction].operands[slot];
    int32_t class = classes_of(classes, rules, instruction, dimension);
    if (class < 0 && rules->on_demand[rules->alias[instruction]]) return 0;
    const ClassBlocks *found = classes_in_blocks(classes, class, size);
    return found ? found->blocks : 1;
}

/* Returns whether a row is valid: of a factor that splits dimensions (`in_blocks`: their blocks),
 * or that is in blocks of a dimension itself. */
static bool row_fits(const StrictProblem *problem, int32_t instruction, const int32_t *tensors,
                     const Factor *factor, bool in_blocks) {
    const FactorRule *rule = &problem->context->rules->rules[instruction];
    int32_t blocks = 0;
    if ((in_blocks || factor->blocks) && !problem->has_any_cut) return false;
    if (in_blocks && (factor->blocks || factor->indexed)) return false;
    for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
        int32_t d = factor->dimension[slot];
        if (d < 0 || tensors[slot] < 0) continue;
        if (factor_blocks(factor, slot) > 1 &&
            factor_blocks(factor, slot) != blocks_in(problem, instruction, slot, d))
            return false;
        if (!in_blocks) continue;
        int32_t here = blocks_in(problem, instruction, slot, d);
        int64_t size = rules_slot_shape(problem->context->rules, instruction, slot)->dimensions[d];
        if (here == 1 || (blocks > 0 && here > 0 && here != blocks) || size != factor->size) return false;
        if (here > 0) blocks = here;
    }
    return fits_axis(problem, in_blocks && blocks > 0 ? factor->size / blocks : factor->size);
}

/* Adds a row of states: all B without a factor. */
static void add_row(StrictProblem *problem, int32_t instruction, const int32_t *tensors, const Factor *factor,
                    bool in_blocks) {
    const FactorRule *rule = &problem->context->rules->rules[instruction];
    for (int32_t slot = 0; slot < rule->operand_count + rule->result_count; slot++) {
        if (tensors[slot] < 0) continue;
        ARENA_RESERVE(problem->arena, problem->states, problem->state_count, problem->state_capacity);
        if (problem->arena->failed) return;
        int32_t d = factor ? factor->dimension[slot] : -1;
        bool is_cut = d >= 0 && (in_blocks || factor_blocks(factor, slot) > 1);
        problem->states[problem->state_count++] =
            d < 0 ? SBP_B : sbp_split(is_cut ? d + STRICT_IN_BLOCKS : d);
    }
}

/* Adds the operator's constraint on tensors[slots] (-1: none there). Operators with several results stay
 * whole, but for fusions of products. */
static void add_constraint(StrictProblem *problem, int32_t instruction, const int32_t *tensors) {
    const FactorRule *rule = &problem->context->rules->rules[instruction];
    int32_t slots = rule->operand_count + rule->result_count;
    ARENA_RESERVE(problem->arena, problem->constraints, problem->constraint_count,
                  problem->constraint_capacity);
    if (problem->arena->failed) return;
    Constraint *constraint = &problem->constraints[problem->constraint_count++];
    *constraint = (Constraint){
        .instruction = instruction, .first_slot = problem->slot_count, .first_row = problem->state_count};
    for (int32_t slot = 0; slot < slots; slot++) {
        if (tensors[slot] < 0) continue;
        ARENA_RESERVE(problem->arena, problem->slots, problem->slot_count, problem->slot_capacity);
        if (problem->arena->failed) return;
        problem->slots[problem->slot_count++] = tensors[slot];
        constraint->slot_count++;
    }
    add_row(problem, instruction, tensors, NULL, false); /* all B */
    constraint->row_count++;
    for (int32_t f = 0; f < rule->factor_count; f++) {
        const Factor *factor = &rule->factors[f];
        IrOpcode opcode = plan_context_instruction(problem->context, instruction)->opcode;
        bool may_reduce =
            ir_is_matrix_product(opcode) || opcode == IR_GATHER || !problem->precedes_product[instruction];
        bool splits = factor->kind == FACTOR_PARALLEL || (factor->kind == FACTOR_REDUCTION && may_reduce);
        bool is_whole = rule->result_count > 1 && !rule->inner;
        if (!splits || factor->halo || is_whole) continue;
        for (int32_t in_blocks = 0; in_blocks < 2; in_blocks++) {
            if (!row_fits(problem, instruction, tensors, factor, in_blocks)) continue;
            add_row(problem, instruction, tensors, factor, in_blocks);
            constraint->row_count++;
        }
    }
}

/* Returns the tensor that a use of (instruction, leaf) sees: none for free values and scalars, a copy with a
 * constraint of its own for broadcasts. */
static int32_t tensor_of_use(StrictProblem *problem, int32_t instruction) {
    const Rules *rules = problem->context->rules;
    int32_t from = rules->alias[instruction], leaf = rules->leaf[instruction];
    const IrShape *shape = &rules->module->instructions[instruction].shape;
    if (shape->type == DTYPE_TUPLE || shape->rank == 0 || rules->is_free[from]) return -1;
    /* An element of an operator with several results; rule_out() keeps it whole. */
    if (leaf > 0 || rules->module->instructions[from].shape.type == DTYPE_TUPLE) return instruction;
    if (!rules->on_demand[from]) return from;
    int32_t copy = add_tensor(problem, shape);
    int32_t tensors[2] = {tensor_of_use(problem, rules->module->instructions[from].operands[0]), copy};
    add_constraint(problem, from, tensors);
    return copy;
}

/* Returns whether all factors are the same dimension in all slots, so that all tensors are alike. */
static bool is_pointwise(const StrictProblem *problem, const FactorRule *rule, const int32_t *tensors) {
    int32_t slots = rule->operand_count + rule->result_count;
    const IrShape *shape = NULL;
    for (int32_t slot = 0; slot < slots; slot++) {
        if (tensors[slot] < 0) continue;
        const IrShape *other = problem->shapes[tensors[slot]];
        if (!shape) shape = other;
        if (shape->rank != other->rank) return false;
        for (int32_t d = 0; d < shape->rank; d++) {
            if (shape->dimensions[d] != other->dimensions[d]) return false;
        }
    }
    for (int32_t f = 0; f < rule->factor_count; f++) {
        int32_t dimension = -1;
        if (rule->factors[f].kind != FACTOR_PARALLEL) return false;
        for (int32_t slot = 0; slot < slots; slot++) {
            if (tensors[slot] < 0) continue;
            if (dimension < 0) dimension = rule->factors[f].dimension[slot];
            if (dimension < 0 || dimension != rule->factors[f].dimension[slot]) return false;
        }
        if (shape && rule->factors[f].size != shape->dimensions[dimension]) return false;
    }
    return true;
}

/* Finds the tensors of the results of a fusion with several: those of the elements that read them. */
static void find_elements(StrictProblem *problem, int32_t fusion, int32_t *tensors) {
    const Rules *rules = problem->context->rules;
    int32_t found = 0, count = rules->rules[fusion].result_count;
    for (int32_t r = 0; r < count; r++) tensors[r] = -1;
    for (int32_t i = fusion + 1; i < rules->count && found < count; i++) {
        if (rules->alias[i] != fusion || tensors[rules->leaf[i]] >= 0) continue;
        tensors[rules->leaf[i]] = i;
        found++;
    }
}

static AmStatus add_instruction(StrictProblem *problem, int32_t instruction, int32_t *tensors,
                                AmError *error) {
    const Rules *rules = problem->context->rules;
    const FactorRule *rule = &rules->rules[instruction];
    const IrInstruction *value = &rules->module->instructions[instruction];
    if (rules->on_demand[instruction] || rules->alias[instruction] != instruction ||
        rule->result_count == 0 || value->opcode == IR_PARAMETER)
        return AM_OK;
    for (int32_t k = 0; k < rule->operand_count; k++) tensors[k] = tensor_of_use(problem, value->operands[k]);
    bool is_array = value->shape.type != DTYPE_TUPLE;
    tensors[rule->operand_count] = is_array && value->shape.rank > 0 ? instruction : -1;
    for (int32_t leaf = is_array ? 1 : 0; leaf < rule->result_count; leaf++)
        tensors[rule->operand_count + leaf] = -1; /* whole by rule_out() */
    if (!is_array && rule->inner) find_elements(problem, instruction, tensors + rule->operand_count);
    if (is_array && is_pointwise(problem, rule, tensors)) {
        for (int32_t slot = 0; slot < rule->operand_count; slot++) {
            if (tensors[slot] >= 0) union_find_join(problem->parent, tensors[slot], instruction);
        }
    } else {
        add_constraint(problem, instruction, tensors);
    }
    return problem->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

static void join_uses(StrictProblem *problem, int32_t a, int32_t b) {
    if (a < 0 || b < 0) return;
    a = tensor_of_use(problem, a);
    b = tensor_of_use(problem, b);
    if (a >= 0 && b >= 0 && problem->shapes[a]->rank == problem->shapes[b]->rank)
        union_find_join(problem->parent, a, b);
}

/* Makes all values that hold an array of a loop one tensor. */
static void join_carried(StrictProblem *problem, const PlannedLoop *loop) {
    for (int32_t k = 0; k < loop->leaf_count; k++) {
        const LoopLeaf *leaf = &loop->leaves[k];
        if (leaf->initial_leaf > 0 || leaf->next_leaf > 0) continue;
        join_uses(problem, leaf->next, leaf->initial);
        join_uses(problem, leaf->next, leaf->in_body);
        join_uses(problem, leaf->next, leaf->afterwards);
        join_uses(problem, leaf->initial, leaf->in_body);
        join_uses(problem, leaf->initial, leaf->afterwards);
        join_uses(problem, leaf->in_body, leaf->in_condition);
    }
}

/* Joins the inputs of a branch with their readers, and the results of the branches with the
 * conditional's. */
static void join_branches(StrictProblem *problem, const PlannedConditional *conditional) {
    for (int32_t k = 0; k < conditional->branch_count; k++) {
        const PlannedBranch *branch = &conditional->branches[k];
        for (int32_t l = 0; l < branch->leaf_count; l++)
            if (branch->leaves[l].given_leaf == 0)
                join_uses(problem, branch->leaves[l].given, branch->leaves[l].reader);
        for (int32_t r = 0; r < conditional->result_count; r++)
            if (branch->made_leaf[r] == 0) join_uses(problem, branch->made[r], conditional->afterwards[r]);
    }
}

static AmStatus add_all(StrictProblem *problem, AmError *error) {
    const Rules *rules = problem->context->rules;
    int32_t most = 2;
    for (int32_t i = 0; i < rules->count; i++) {
        int32_t slots = rules->rules[i].operand_count + rules->rules[i].result_count;
        if (slots > most) most = slots;
        add_tensor(problem, &rules->module->instructions[i].shape);
    }
    int32_t *tensors = ARENA_ARRAY(problem->arena, int32_t, most);
    if (problem->arena->failed) return am_fail_memory(error, (int64_t)sizeof(int32_t) * most);
    for (int32_t i = 0; i < rules->count; i++) TRY(add_instruction(problem, i, tensors, error));
    for (int32_t k = 0; k < rules->loop_count; k++) join_carried(problem, &rules->loops[k]);
    for (int32_t k = 0; k < rules->conditional_count; k++) join_branches(problem, &rules->conditionals[k]);
    const IrRoles *roles = problem->context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        int32_t parameter = roles->parameters[p].instruction;
        if (roles->parameters[p].output < 0) continue;
        int32_t updated = tensor_of_use(problem, roles->outputs[roles->parameters[p].output]);
        const IrShape *shape = &rules->module->instructions[parameter].shape;
        if (updated >= 0 && shape->type != DTYPE_TUPLE && shape->rank == problem->shapes[updated]->rank)
            union_find_join(problem->parent, parameter, updated);
    }
    return problem->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

/* ---- propagation ---- */

/* Removes states from a variable: the trail, or `ruled_out_by` before the first decision, records it. */
static void narrow(StrictProblem *problem, int32_t variable, Domain domain, int32_t instruction) {
    Domain gone = problem->domains[variable] & ~domain;
    if (problem->is_recording_root) {
        for (int32_t state = 0; state < STATES; state++) {
            if (gone >> state & 1) problem->ruled_out_by[variable * STATES + state] = instruction;
        }
    } else {
        ARENA_RESERVE(problem->arena, problem->trail, problem->trail_count, problem->trail_capacity);
        if (problem->arena->failed) return;
        problem->trail[problem->trail_count++] = (Trail){variable, problem->domains[variable]};
    }
    problem->domains[variable] &= domain;
    for (int32_t k = problem->first_use[variable]; k < problem->first_use[variable + 1]; k++) {
        int32_t constraint = problem->uses[k];
        if (problem->is_queued[constraint]) continue;
        problem->is_queued[constraint] = true;
        problem->queue[problem->queue_length++] = constraint;
    }
}

/* Keeps in every variable what some row supports; false if nothing is left. A
 * variable that is narrowed queues the constraint again. */
static bool revise(StrictProblem *problem, const Constraint *constraint) {
    const int32_t *variables = &problem->slots[constraint->first_slot];
    const Sbp *rows = &problem->states[constraint->first_row];
    for (int32_t r = 0; r < constraint->row_count; r++) {
        const Sbp *row = &rows[(size_t)r * (size_t)constraint->slot_count];
        /* The domains allow the row; a tensor in two slots has one state. */
        bool holds = true;
        for (int32_t slot = 0; slot < constraint->slot_count; slot++)
            problem->state_seen[variables[slot]] = row[slot];
        for (int32_t slot = 0; slot < constraint->slot_count && holds; slot++)
            holds = (problem->domains[variables[slot]] & bit_of(row[slot])) != 0 &&
                    problem->state_seen[variables[slot]] == row[slot];
        problem->row_is_alive[r] = holds;
    }
    for (int32_t slot = 0; slot < constraint->slot_count; slot++) {
        Domain supported = 0;
        for (int32_t r = 0; r < constraint->row_count; r++) {
            if (problem->row_is_alive[r])
                supported |= bit_of(rows[(size_t)r * (size_t)constraint->slot_count + (size_t)slot]);
        }
        if (problem->domains[variables[slot]] & ~supported)
            narrow(problem, variables[slot], supported, constraint->instruction);
        if (problem->domains[variables[slot]] == 0) return false;
    }
    return true;
}

/* Propagates to the fixed point. Returns -1, or the instruction where a domain became empty. */
static int32_t propagate(StrictProblem *problem) {
    int32_t conflict = -1;
    while (problem->queue_length > 0) {
        int32_t index = problem->queue[--problem->queue_length];
        problem->is_queued[index] = false;
        if (conflict < 0 && !revise(problem, &problem->constraints[index]))
            conflict = problem->constraints[index].instruction;
    }
    return conflict;
}

static AmStatus index_uses(StrictProblem *problem, AmError *error) {
    int32_t variables = problem->tensor_count, constraints = problem->constraint_count, most_rows = 1;
    for (int32_t c = 0; c < constraints; c++) {
        if (problem->constraints[c].row_count > most_rows) most_rows = problem->constraints[c].row_count;
    }
    problem->state_seen = ARENA_ARRAY(problem->arena, Sbp, variables);
    problem->row_is_alive = ARENA_ARRAY(problem->arena, bool, most_rows);
    problem->first_use = ARENA_ARRAY(problem->arena, int32_t, variables + 2);
    problem->uses = ARENA_ARRAY(problem->arena, int32_t, problem->slot_count);
    problem->queue = ARENA_ARRAY(problem->arena, int32_t, constraints);
    problem->is_queued = ARENA_ARRAY(problem->arena, bool, constraints);
    problem->domains = ARENA_ARRAY(problem->arena, Domain, variables);
    problem->ruled_out_by = ARENA_ARRAY(problem->arena, int32_t, (int64_t)variables * STATES);
    if (problem->arena->failed) return am_fail_memory(error, (int64_t)variables * 80);
    memset(problem->ruled_out_by, -1, sizeof(int32_t) * (size_t)variables * STATES);
    for (int32_t k = 0; k < problem->slot_count; k++) {
        problem->slots[k] = union_find_root(problem->parent, problem->slots[k]);
        problem->first_use[problem->slots[k] + 2]++;
    }
    for (int32_t v = 2; v < variables + 2; v++) problem->first_use[v] += problem->first_use[v - 1];
    for (int32_t c = 0; c < constraints; c++) {
        const Constraint *constraint = &problem->constraints[c];
        for (int32_t slot = 0; slot < constraint->slot_count; slot++) {
            int32_t variable = problem->slots[constraint->first_slot + slot];
            problem->uses[problem->first_use[variable + 1]++] = c;
        }
    }
    return AM_OK;
}

/* Returns every state that the sizes allow. */
static Domain whole_domain(const StrictProblem *problem, const IrShape *shape) {
    Domain domain = bit_of(SBP_B);
    if (shape->type == DTYPE_TUPLE) return domain;
    for (int32_t d = 0; d < shape->rank; d++) {
        if (!fits_axis(problem, shape->dimensions[d])) continue;
        domain |= bit_of(sbp_split(d));
        if (problem->has_any_cut) domain |= bit_of(sbp_split(d + STRICT_IN_BLOCKS));
    }
    return domain;
}

/* Finds the root fixed point: sizes, roots, and every operator once. */
static AmStatus rule_out(StrictProblem *problem, StrictRoots roots, AmError *error) {
    const Rules *rules = problem->context->rules;
    for (int32_t t = 0; t < problem->tensor_count; t++) {
        problem->domains[t] = whole_domain(problem, problem->shapes[t]);
    }
    for (int32_t i = 0; i < rules->count; i++) { /* leaves of operators without a rule */
        int32_t from = rules->alias[i];
        bool is_leaf = from != i && rules->module->instructions[from].shape.type == DTYPE_TUPLE;
        if (is_leaf && !is_fused(rules, from))
            problem->domains[union_find_root(problem->parent, i)] &= bit_of(SBP_B);
    }
    const IrRoles *all = problem->context->roles;
    for (int32_t p = 0; p < all->parameter_count; p++) {
        IrRole role = all->parameters[p].role;
        bool is_state = role == IR_ROLE_WEIGHT || role == IR_ROLE_OPTIMIZER || role == IR_ROLE_STATE;
        bool is_undecided = roots == STRICT_DATA ? role == IR_ROLE_DATA : is_state;
        if (!is_undecided)
            problem->domains[union_find_root(problem->parent, all->parameters[p].instruction)] &=
                bit_of(SBP_B);
    }
    problem->is_recording_root = true;
    for (int32_t c = 0; c < problem->constraint_count; c++) {
        problem->is_queued[c] = true;
        problem->queue[problem->queue_length++] = c;
    }
    int32_t conflict = propagate(problem);
    problem->is_recording_root = false;
    if (conflict >= 0)
        return am_fail(error, AM_ERROR_INTERNAL, "", "strict mode does not support the module");
    return problem->arena->failed ? am_fail_memory(error, 0) : AM_OK;
}

AmStatus strict_build(StrictProblem **problem, Arena *arena, const PlanContext *context, int32_t axis_size,
                      StrictRoots roots, AmError *error) {
    if (axis_size < 2) {
        return am_fail(error, AM_ERROR_USAGE, "", "axis size %d: expected at least 2 devices", axis_size);
    }
    StrictProblem *built = ARENA_ARRAY(arena, StrictProblem, 1);
    if (!built) return am_fail_memory(error, (int64_t)sizeof *built);
    *built = (StrictProblem){.arena = arena,
                             .context = context,
                             .axis_size = axis_size,
                             .has_any_cut = roots == STRICT_STATE_ANY_CUT};
    TRY(find_values_before_products(built, error));
    TRY(add_all(built, error));
    TRY(index_uses(built, error));
    TRY(rule_out(built, roots, error));
    *problem = built;
    return AM_OK;
}

/* ---- decisions ---- */

static int32_t variable_of(const StrictProblem *problem, int32_t parameter) {
    return union_find_root(problem->parent, plan_context_parameter(problem->context, parameter)->instruction);
}

/* Restricts the states of a parameter, and propagates. Returns -1, or the instruction that has no state
 * left. */
static int32_t decide(StrictProblem *problem, int32_t parameter, Domain domain) {
    int32_t variable = variable_of(problem, parameter);
    int32_t instruction = plan_context_parameter(problem->context, parameter)->instruction;
    if (problem->domains[variable] & ~domain) narrow(problem, variable, domain, instruction);
    if (problem->domains[variable] == 0) {
        propagate(problem); /* empties the queue */
        return instruction;
    }
    return propagate(problem);
}

int32_t strict_partition(StrictProblem *problem, int32_t parameter, int32_t dimension) {
    return decide(problem, parameter, bit_of(sbp_split(dimension)));
}

int32_t strict_replicate(StrictProblem *problem, int32_t parameter, int32_t dimension) {
    return decide(problem, parameter, ~bit_of(sbp_split(dimension)));
}

/* Undoes decisions made after the trail had `count` entries. */
static void undo_to(StrictProblem *problem, int32_t count) {
    while (problem->trail_count > count) {
        Trail last = problem->trail[--problem->trail_count];
        problem->domains[last.variable] = last.before;
    }
}

int32_t strict_variables(const StrictProblem *problem) {
    return problem->tensor_count;
}

int32_t strict_variable(const StrictProblem *problem, int32_t parameter) {
    return variable_of(problem, parameter);
}

int32_t strict_narrowed_count(const StrictProblem *problem) {
    return problem->trail_count;
}

int32_t strict_narrowed(const StrictProblem *problem, int32_t k) {
    return problem->trail[k].variable;
}

void strict_undo(StrictProblem *problem) {
    undo_to(problem, 0);
}

int32_t strict_complete(StrictProblem *problem) {
    for (int32_t variable = 0; variable < problem->tensor_count; variable++) {
        Domain open = problem->domains[variable];
        if (problem->parent[variable] != variable || !(open & (open - 1))) continue;
        int32_t conflict = -1, before = problem->trail_count;
        for (int32_t state = 0; state < STATES; state++) { /* B first */
            if (!(open >> state & 1)) continue;
            narrow(problem, variable, (Domain)1 << state, -1);
            conflict = propagate(problem);
            if (conflict < 0) break;
            undo_to(problem, before);
        }
        if (conflict >= 0) return conflict;
    }
    return -1;
}

Sbp strict_state(const StrictProblem *problem, int32_t instruction) {
    Domain domain =
        problem->domains[union_find_root(problem->parent, problem->context->rules->alias[instruction])];
    for (int32_t state = 1; state < STATES; state++) {
        if (domain == (Domain)1 << state) return sbp_split(state - 1);
    }
    return SBP_B;
}

bool strict_may_split(const StrictProblem *problem, int32_t parameter, int32_t dimension) {
    return problem->domains[variable_of(problem, parameter)] & bit_of(sbp_split(dimension));
}

bool strict_must_split(const StrictProblem *problem, int32_t parameter, int32_t dimension) {
    return problem->domains[variable_of(problem, parameter)] == bit_of(sbp_split(dimension));
}

int32_t strict_ruled_out_by(const StrictProblem *problem, int32_t parameter, int32_t dimension) {
    return problem->ruled_out_by[variable_of(problem, parameter) * STATES + 1 + dimension];
}
