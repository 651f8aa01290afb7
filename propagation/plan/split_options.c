/* SplitOptions: two passes over the canonical module, one for the sizes of the flat
 * arrays and one to fill them; liveness then runs backwards from the outputs. */
#include "propagation/plan/split_options.h"

#include "propagation/rules/rules_builder.h"

const IrShape *split_options_array_shape(const IrInstruction *instruction) {
    const IrShape *shape = &instruction->shape;
    while (shape->type == DTYPE_TUPLE && shape->rank > 0) shape = &shape->elements[0];
    return shape;
}

static void use(SplitOptions *self, int32_t source, int32_t user) {
    if (!self->live[source]) self->user[source] = user;
    self->live[source] = true;
    self->uses[source]++;
}

/* Marks live instructions backwards through each planned computation. A loop precedes its body and
 * condition; if it is live, all their results are. */
static void mark_live(SplitOptions *self, const Rules *rules, const IrRoles *roles) {
    const IrModule *module = rules->module;
    for (int32_t k = 0; k < roles->output_count; k++) use(self, rules->alias[roles->outputs[k]], -1);
    for (int32_t c = 0; c < module->computation_count; c++) {
        const IrComputation *body = &module->computations[c];
        if (!rules->is_planned[c]) continue;
        for (int32_t i = body->first + body->count - 1; i >= body->first; i--) {
            if (!self->live[i]) continue;
            for (int32_t k = self->first_operand[i]; k < self->first_operand[i + 1]; k++)
                use(self, self->operands[k], i);
            /* Any branch may be taken, so all results of all branches are needed. */
            const PlannedConditional *conditional = rules_conditional(rules, i);
            for (int32_t n = 0; conditional && n < conditional->branch_count; n++)
                for (int32_t r = 0; r < conditional->result_count; r++)
                    use(self, conditional->branches[n].made[r], -1);
            const PlannedLoop *loop = rules_loop(rules, i);
            if (!loop) continue;
            use(self, rules->alias[module->computations[loop->condition].root], -1);
            for (int32_t k = 0; k < loop->leaf_count; k++) use(self, loop->leaves[k].next, -1);
        }
    }
}

/* Adds a place that can be split by a class and by those in its blocks. Without an array it only counts. */
static void add_options(SplitOption *split_options, int32_t *made, const Classes *classes, SplitOption choice,
                        bool may_have_blocks) {
    if (split_options) split_options[*made] = choice;
    ++*made;
    for (int32_t k = classes->first_blocks[choice.class_index];
         may_have_blocks && k < classes->first_blocks[choice.class_index + 1]; k++) {
        const ClassBlocks *inside = &classes->blocks[k];
        if (choice.size != inside->size || inside->blocks > SPLIT_OPTION_MOST_BLOCKS) continue;
        if (split_options) {
            split_options[*made] = choice;
            split_options[*made].class_index = inside->class_index;
            split_options[*made].blocks = (uint32_t)inside->blocks;
        }
        ++*made;
    }
}

static void add_dimensions(SplitOption *split_options, int32_t *made, const Rules *rules,
                           const Classes *classes, int32_t i) {
    const IrShape *shape = split_options_array_shape(&rules->module->instructions[i]);
    if (shape->type == DTYPE_TUPLE) return;
    for (int32_t d = 0; d < shape->rank; d++) {
        int32_t class = classes_of(classes, rules, i, d);
        if (class < 0 || shape->dimensions[d] == 0) continue;
        add_options(split_options, made, classes, (SplitOption){shape->dimensions[d], class, (uint32_t)d, 1},
                    true);
    }
}

/* Returns whether a factor of whole dimensions may be split in blocks: each computed element
 * depends on no other element and on no position. */
static bool may_have_blocks(const IrInstruction *instruction, const Factor *factor) {
    bool counts = instruction->opcode == IR_IOTA || instruction->opcode == IR_RNG_BIT_GENERATOR ||
                  instruction->opcode == IR_RNG;
    return !factor->blocks && !factor->indexed && !factor->halo && !counts;
}

static void add_factors(SplitOption *split_options, int32_t *made, const Rules *rules, const Classes *classes,
                        int32_t i) {
    const FactorRule *rule = &rules->rules[i];
    for (int32_t f = 0; f < rule->factor_count && f <= INT8_MAX; f++) {
        const Factor *factor = &rule->factors[f];
        int32_t class = classes_of_factor(classes, i, f);
        if (!factor_may_split(factor)) continue;
        if (class < 0 || factor->size == 0) continue;
        add_options(split_options, made, classes, (SplitOption){factor->size, class, (uint32_t)f, 1},
                    may_have_blocks(&rules->module->instructions[i], factor));
    }
}

/* Returns whether the loop only combines the array with other values, starting from a value that
 * every shard may start from. */
static bool is_accumulation(const SplitOptions *self, const Rules *rules, const LoopLeaf *leaf) {
    bool is_tested = leaf->in_condition >= 0 && self->live[leaf->in_condition];
    if (leaf->in_body < 0 || is_tested || leaf->next_leaf > 0) return false;
    if (self->uses[leaf->in_body] != 1 || self->user[leaf->in_body] != leaf->next) return false;
    SbpReduction reduction = sbp_reduction_of(rules->module->instructions[leaf->next].opcode);
    if (self->uses[leaf->next] != 1 || reduction == SBP_REDUCTION_COUNT) return false;
    return leaf->initial_leaf == 0 && rule_may_repeat(rules->module, leaf->initial, reduction);
}

static AmStatus find_accumulations(SplitOptions *self, Arena *arena, const Rules *rules, AmError *error) {
    int32_t leaves = 0;
    for (int32_t k = 0; k < rules->loop_count; k++) leaves += rules->loops[k].leaf_count;
    self->accumulations = ARENA_ARRAY(arena, Accumulation, leaves + 1);
    self->accumulation_of = ARENA_ARRAY(arena, int32_t, self->count + 1);
    if (arena->failed) return am_fail_memory(error, self->count);
    for (int32_t i = 0; i < self->count; i++) self->accumulation_of[i] = -1;
    for (int32_t k = 0; k < rules->loop_count; k++) {
        for (int32_t l = 0; l < rules->loops[k].leaf_count; l++) {
            const LoopLeaf *leaf = &rules->loops[k].leaves[l];
            if (!is_accumulation(self, rules, leaf)) continue;
            self->accumulation_of[leaf->next] = self->accumulation_count;
            self->accumulations[self->accumulation_count++] =
                (Accumulation){leaf->in_body, leaf->next, leaf->afterwards,
                               sbp_reduction_of(rules->module->instructions[leaf->next].opcode)};
        }
    }
    return AM_OK;
}

AmStatus split_options_build(SplitOptions **split_options, Arena *arena, const Rules *rules,
                             const Classes *classes, const IrRoles *roles, AmError *error) {
    const IrModule *module = rules->module;
    int32_t count = rules->count, operands = 0, dimensions = 0, factors = 0;
    for (int32_t i = 0; i < count; i++) {
        operands += module->instructions[i].operand_count;
        if (rules->on_demand[i]) continue;
        add_dimensions(NULL, &dimensions, rules, classes, i);
        add_factors(NULL, &factors, rules, classes, i);
    }
    SplitOptions *self = ARENA_ARRAY(arena, SplitOptions, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (SplitOptions){.count = count,
                           .decided = ARENA_ARRAY(arena, int32_t, count),
                           .live = ARENA_ARRAY(arena, bool, count),
                           .uses = ARENA_ARRAY(arena, int32_t, count),
                           .user = ARENA_ARRAY(arena, int32_t, count),
                           .linearity = ARENA_ARRAY(arena, uint8_t, count),
                           .takes_tuple = ARENA_ARRAY(arena, bool, count),
                           .bytes = ARENA_ARRAY(arena, double, count),
                           .array_bytes = ARENA_ARRAY(arena, double, count),
                           .first_operand = ARENA_ARRAY(arena, int32_t, count + 1),
                           .operands = ARENA_ARRAY(arena, int32_t, operands),
                           .first_dimension = ARENA_ARRAY(arena, int32_t, count + 1),
                           .first_factor = ARENA_ARRAY(arena, int32_t, count + 1),
                           .dimensions = ARENA_ARRAY(arena, SplitOption, dimensions),
                           .factors = ARENA_ARRAY(arena, SplitOption, factors)};
    if (arena->failed) return am_fail_memory(error, count);
    operands = dimensions = factors = 0;
    for (int32_t i = 0; i < count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        self->linearity[i] = (uint8_t)linearity_of(module, instruction);
        self->bytes[i] = (double)ir_shape_bytes(&instruction->shape);
        self->array_bytes[i] = (double)ir_shape_bytes(split_options_array_shape(instruction));
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            int32_t operand = instruction->operands[k];
            self->operands[operands++] = rules->alias[operand];
            if (module->instructions[operand].shape.type == DTYPE_TUPLE) self->takes_tuple[i] = true;
        }
        if (!rules->on_demand[i]) {
            add_dimensions(self->dimensions, &dimensions, rules, classes, i);
            add_factors(self->factors, &factors, rules, classes, i);
        }
        self->first_operand[i + 1] = operands;
        self->first_dimension[i + 1] = dimensions;
        self->first_factor[i + 1] = factors;
    }
    mark_live(self, rules, roles);
    for (int32_t c = module->computation_count - 1; c >= 0; c--) {
        const IrComputation *body = &module->computations[c];
        for (int32_t i = body->first; i < body->first + body->count; i++)
            if (self->live[i] && !rules->on_demand[i]) self->decided[self->decided_count++] = i;
    }
    *split_options = self;
    TRY(find_accumulations(self, arena, rules, error));
    return storage_find_roles(&self->storage, arena, rules, self, roles, error);
}
