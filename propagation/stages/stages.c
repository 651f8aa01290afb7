/* From the stages that compute to the stages that hold and need values: passes backwards over all
 * planned computations until a fixed point.
 *
 * An instruction's operands are needed on the stages that compute it. An instruction without a seed
 * is computed on the stages that need it: on all of them if it is cheap, else on one. A loop is on
 * every stage that has or needs a value of its body. Among the arrays that it carries
 *   - those that the condition reads are on all stages of the loop, so that every stage counts its
 *     iterations. Where no other value places the loop, their first reader after it does;
 *   - invariant ones are on the stages that read them: sent once, not in every iteration;
 *   - others are on the stages that compute their next value.
 * A conditional is computed as one operator, with its branches. Needs only grow, so that the passes
 * end; nested loops take several passes, other modules two. A pass after the first leaves out instructions
 * whose stages stayed.
 */
#include "propagation/stages/stages.h"

#include <string.h>

typedef struct Spreader {
    const PlanContext *context;
    const IrModule *module;
    const Rules *rules;
    const SplitOptions *split_options;
    const StageSeeds *seeds;
    StageMap *map;
    StageSet *on;   /* [planned loop]: stages that it is on */
    bool *is_stale; /* [instruction]: it is on new stages since it was spread last */
    bool changed;
    bool places_loops; /* the readers of a loop that is on no stage place it */
} Spreader;

bool stages_is_transparent(const PlanContext *context, int32_t i) {
    const Rules *rules = context->rules;
    IrOpcode opcode = plan_context_instruction(context, i)->opcode;
    if (rules->on_demand[i] || rules->alias[i] != i) return true;
    return rules->rules[i].result_count == 0 && rules->loop_of[i] < 0 && rules->conditional_of[i] < 0 &&
           opcode != IR_PARAMETER;
}

static void add_stages(Spreader *self, StageSet *set, StageSet more) {
    if ((*set | more) == *set) return;
    *set |= more;
    self->changed = true;
}

/* Adds stages to instruction i's set of `sets`: those that hold it, or those that need it. */
static void add_to(Spreader *self, StageSet *sets, int32_t i, StageSet more) {
    if ((sets[i] | more) == sets[i]) return;
    sets[i] |= more;
    self->is_stale[i] = self->changed = true;
}

int32_t stages_repeated(const PlanContext *context, int32_t i) {
    if (context->primary || !context->roles->repeats) return -1;
    int32_t forward = context->roles->repeats[i];
    return i < context->rules->entry_count && forward < context->rules->entry_count ? forward : -1;
}

int32_t stages_stand_in(const PlanContext *context, const StageMap *map, int32_t i, int32_t stage) {
    int32_t forward = stages_repeated(context, i);
    if (forward < 0 || stage_in(map->held[i] | map->needed[i], stage)) return i;
    return forward;
}

/* Adds a need. A recomputed value is used only on its own stage; other stages use the original. */
static void need(Spreader *self, int32_t i, StageSet where) {
    int32_t forward = self->seeds->held[i] ? stages_repeated(self->context, i) : -1;
    if (forward >= 0) {
        add_to(self, self->map->needed, forward, where & ~self->seeds->held[i]);
        where &= self->seeds->held[i];
    }
    add_to(self, self->map->needed, i, where);
}

/* Returns the stages on which an instruction without a seed is computed. */
static StageSet choose(const Spreader *self, int32_t i) {
    StageSet needed = self->map->needed[i], allowed = self->seeds->allowed[i];
    if (needed == 0) return 0;
    if (allowed == 0) return self->seeds->is_cheap[i] ? needed : stage_bit(stage_first(needed));
    if (!(needed & allowed)) return stage_bit(stage_last(allowed));
    return self->seeds->is_cheap[i] ? needed & allowed : stage_bit(stage_last(needed & allowed));
}

static StageSet needed_by(const Spreader *self, int32_t reader) {
    return reader < 0 || !self->split_options->live[reader] ? 0 : self->map->needed[reader];
}

static StageSet carried_on(const Spreader *self, const PlannedLoop *loop, const LoopLeaf *leaf, StageSet on) {
    StageSet read = needed_by(self, leaf->in_body) | needed_by(self, leaf->afterwards);
    if (leaf->in_condition >= 0 && self->split_options->live[leaf->in_condition])
        return self->places_loops && !on && read ? stage_bit(stage_first(read)) : on;
    if (leaf->is_invariant || leaf->next == leaf->in_body) return read;
    if (self->rules->on_demand[leaf->next]) return read;
    for (int32_t k = 0; k < loop->leaf_count; k++)
        if (loop->leaves[k].in_body == leaf->next) return self->map->held[leaf->next] | read;
    if (stages_is_transparent(self->context, leaf->next) ||
        self->module->instructions[leaf->next].opcode == IR_PARAMETER)
        return on;
    return self->seeds->held[leaf->next] ? self->seeds->held[leaf->next] : read;
}

static void spread_loop(Spreader *self, const PlannedLoop *loop) {
    int32_t number = (int32_t)(loop - self->rules->loops);
    StageMap *map = self->map;
    StageSet on = self->on[number];
    add_to(self, map->held, loop->instruction, on);
    need(self, self->rules->alias[self->module->computations[loop->condition].root], on);
    for (int32_t k = 0; k < loop->leaf_count; k++) {
        const LoopLeaf *leaf = &loop->leaves[k];
        StageSet *carried = &map->carried[number][k];
        const int32_t readers[] = {leaf->in_body, leaf->in_condition, leaf->afterwards};
        add_stages(self, carried, carried_on(self, loop, leaf, on));
        add_stages(self, &self->on[number], *carried);
        need(self, leaf->initial, *carried);
        if (!leaf->is_invariant) need(self, leaf->next, *carried);
        for (int32_t r = 0; r < 3; r++)
            if (readers[r] >= 0) add_to(self, map->held, readers[r], *carried);
    }
}

/* Spreads an instruction to stages. `everywhere`: it is computed there, whatever its seed; 0: as it says. */
static void spread_instruction(Spreader *self, int32_t i, StageSet everywhere) {
    const IrInstruction *instruction = &self->module->instructions[i];
    StageMap *map = self->map;
    const PlannedLoop *loop = rules_loop(self->rules, i);
    if (loop) {
        spread_loop(self, loop);
        return;
    }
    bool is_held_elsewhere = stages_is_transparent(self->context, i);
    if (instruction->opcode == IR_PARAMETER) return;
    /* An array of a loop or conditional: that says who has it. */
    if (!is_held_elsewhere && instruction->opcode == IR_GET_TUPLE_ELEMENT) return;
    StageSet seed = everywhere ? everywhere : self->seeds->held[i];
    const PlannedConditional *conditional = rules_conditional(self->rules, i);
    for (int32_t r = 0; conditional && r < conditional->result_count; r++)
        need(self, i, needed_by(self, conditional->afterwards[r]));
    if (!is_held_elsewhere) map->held[i] = seed ? seed : choose(self, i);
    for (int32_t r = 0; conditional && r < conditional->result_count; r++)
        if (conditional->afterwards[r] >= 0)
            add_to(self, map->held, conditional->afterwards[r], map->held[i]);
    StageSet where = is_held_elsewhere ? map->needed[i] : map->held[i];
    for (int32_t k = self->split_options->first_operand[i]; k < self->split_options->first_operand[i + 1];
         k++)
        need(self, self->split_options->operands[k], where);
}

static void spread_computation(Spreader *self, int32_t c) {
    const IrComputation *body = &self->module->computations[c];
    int32_t number = self->rules->region_of[c];
    bool is_condition = number >= 0 && self->rules->loops[number].condition == c;
    for (int32_t i = body->first + body->count - 1; i >= body->first; i--) {
        /* a loop and a conditional have other values' needs, a condition the stages of its loop */
        bool is_stale = self->is_stale[i] || is_condition || self->rules->loop_of[i] >= 0 ||
                        self->rules->conditional_of[i] >= 0;
        if (!is_stale || !self->split_options->live[i]) continue;
        self->is_stale[i] = false;
        spread_instruction(self, i, is_condition ? self->on[number] : 0);
        if (number < 0 || is_condition) continue;
        add_stages(self, &self->on[number], self->map->held[i]);
        if (!stages_is_transparent(self->context, i))
            add_stages(self, &self->on[number], self->map->needed[i]);
    }
}

/* Spreads stages from values to their operands until nothing changes. */
static void spread(Spreader *self) {
    do {
        self->changed = false;
        for (int32_t c = self->module->computation_count - 1; c >= 0; c--)
            if (self->rules->is_planned[c]) spread_computation(self, c);
    } while (self->changed);
}

/* Parameters and outputs are on one stage; `last`: those that nothing has decided too. */
static void place_parameters(Spreader *self, bool last) {
    const IrRoles *roles = self->context->roles;
    StageMap *map = self->map;
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        int32_t i = roles->parameters[k].instruction, output = roles->parameters[k].output;
        if (map->owner[k] >= 0) continue;
        StageSet made = output < 0 ? 0 : map->held[self->rules->alias[roles->outputs[output]]];
        if (made == 0 && last) made = map->needed[i] ? map->needed[i] : stage_bit(0);
        if (made == 0) continue;
        map->owner[k] = stage_first(made);
    }
    for (int32_t k = 0; k < roles->parameter_count; k++) {
        int32_t i = roles->parameters[k].instruction, output = roles->parameters[k].output;
        if (map->owner[k] < 0) continue;
        map->held[i] = stage_bit(map->owner[k]);
        if (output >= 0) map->output[output] = map->owner[k];
    }
    for (int32_t k = 0; k < roles->output_count; k++) {
        int32_t value = self->rules->alias[roles->outputs[k]];
        if (map->output[k] < 0 && map->held[value]) map->output[k] = stage_first(map->held[value]);
        if (map->output[k] < 0 && last) map->output[k] = 0;
        if (map->output[k] >= 0) need(self, value, stage_bit(map->output[k]));
    }
}

AmStatus stages_spread(StageMap **result, Arena *arena, const PlanContext *context, const StageSeeds *seeds,
                       int32_t stage_count, AmError *error) {
    const Rules *rules = context->rules;
    const IrRoles *roles = context->roles;
    StageMap *map = ARENA_ARRAY(arena, StageMap, 1);
    if (!map) return am_fail_memory(error, (int64_t)sizeof *map);
    *map = (StageMap){.stage_count = stage_count,
                      .chunks = 1,
                      .held = ARENA_ARRAY(arena, StageSet, rules->count + 1),
                      .needed = ARENA_ARRAY(arena, StageSet, rules->count + 1),
                      .carried = ARENA_ARRAY(arena, StageSet *, rules->loop_count + 1),
                      .owner = ARENA_ARRAY(arena, int32_t, roles->parameter_count + 1),
                      .output = ARENA_ARRAY(arena, int32_t, roles->output_count + 1)};
    Spreader self = {.context = context,
                     .module = context->canonical,
                     .rules = rules,
                     .split_options = context->split_options,
                     .seeds = seeds,
                     .map = map,
                     .on = ARENA_ARRAY(arena, StageSet, rules->loop_count + 1),
                     .is_stale = ARENA_ARRAY(arena, bool, rules->count + 1)};
    if (arena->failed) return am_fail_memory(error, (int64_t)rules->count * 16);
    memset(self.is_stale, true, (size_t)rules->count);
    for (int32_t k = 0; k < rules->loop_count; k++) {
        map->carried[k] = ARENA_ARRAY(arena, StageSet, rules->loops[k].leaf_count + 1);
        if (!map->carried[k]) return am_fail_memory(error, rules->loops[k].leaf_count);
    }
    for (int32_t i = 0; i < rules->count; i++) map->held[i] = seeds->held[i];
    for (int32_t k = 0; k < roles->parameter_count; k++) map->owner[k] = seeds->owner[k];
    for (int32_t k = 0; k < roles->output_count; k++) map->output[k] = -1;
    place_parameters(&self, false);
    spread(&self);
    place_parameters(&self, true);
    spread(&self);
    self.places_loops = true;
    if (rules->loop_count > 0) spread(&self);
    *result = map;
    return AM_OK;
}

AmStatus stages_assign(StageMap **map, Arena *arena, const PlanContext *context, const Plan *plan,
                       AmError *error) {
    StageSeeds seeds;
    TRY(context->replica_of ? stages_seed_replicas(&seeds, arena, context, plan, error)
        : context->primary  ? stages_seed_split(&seeds, arena, context, plan, error)
                            : stages_seed(&seeds, arena, context, plan, error));
    TRY(stages_spread(map, arena, context, &seeds, plan->stage_count, error));
    (*map)->first_rank = ARENA_ARRAY(arena, int32_t, plan->stage_count + 1);
    if (!(*map)->first_rank) return am_fail_memory(error, plan->stage_count);
    for (int32_t s = 0; s < plan->stage_count; s++)
        (*map)->first_rank[s + 1] = (*map)->first_rank[s] + plan->stages[s].mesh.device_count;
    return AM_OK;
}
