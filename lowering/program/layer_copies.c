/* Compares the lifetimes of values at the same place of kept layers. Loops, and programs with few kept
 * layers, have rules instead.
 */
#include "lowering/program/layer_copies.h"

#include "ir/analysis/loops.h"

/* ---- steps ---- */

/* Returns the origin of a step, of a fusion that of its last operator; -1: it has none. */
static int32_t origin_of(const Program *program, int32_t s) {
    const ProgramStep *step = &program->execution.steps[s];
    if (step->fusion < 0) return program->instructions[step->instruction].origin;
    const ProgramFusion *fusion = &program->execution.fusions[step->fusion];
    return fusion->op_count > 0 ? fusion->ops[fusion->op_count - 1].origin : -1;
}

static IrPhase phase_of(const Program *program, int32_t s) {
    int32_t origin = origin_of(program, s);
    return origin < 0 ? IR_PHASE_OTHER : program->module->loops->phases[origin];
}

static bool computes(const Program *program, int32_t s) {
    const ProgramStep *step = &program->execution.steps[s];
    return step->fusion >= 0 || program->instructions[step->instruction].kind != PROGRAM_COLLECTIVE;
}

/* Counts the steps of each layer, and finds the ends of its passes. */
static AmStatus find_steps(LayerCopies *self, Arena *arena, AmError *error) {
    const Program *program = self->program;
    const IrLoops *loops = program->module->loops;
    size_t row = (size_t)program->execution.step_count + 1;
    self->steps_of = ARENA_ARRAY(arena, int32_t, row * (size_t)loops->layer_count + 1);
    if (!self->steps_of) return am_fail_memory(error, program->execution.step_count);
    self->forward_steps = ARENA_ARRAY(arena, int32_t, row);
    self->forward_end = ARENA_ARRAY(arena, int32_t, loops->layer_count + 1);
    self->backward_end = ARENA_ARRAY(arena, int32_t, loops->layer_count + 1);
    bool *is_here = ARENA_ARRAY(arena, bool, loops->layer_count + 1);
    if (arena->failed) return am_fail_memory(error, program->execution.step_count);
    for (int32_t l = 0; l < loops->layer_count; l++) self->forward_end[l] = self->backward_end[l] = -1;
    for (int32_t s = 0; s < program->execution.step_count; s++) {
        int32_t origin = origin_of(program, s), layer = origin < 0 ? -1 : loops->layer[origin];
        IrPhase phase = phase_of(program, s);
        self->forward_steps[s + 1] = self->forward_steps[s] + (phase == IR_PHASE_FORWARD);
        for (int32_t l = 0; l < loops->layer_count; l++)
            self->steps_of[row * (size_t)l + (size_t)s + 1] =
                self->steps_of[row * (size_t)l + (size_t)s] + (layer >= l - 1 && layer <= l + 1);
        if (layer < 0) continue;
        if (phase == IR_PHASE_FORWARD && computes(program, s)) self->forward_end[layer] = s;
        if (phase == IR_PHASE_BACKWARD && computes(program, s)) self->backward_end[layer] = s;
        self->layer_count += !is_here[layer];
        is_here[layer] = true;
    }
    return AM_OK;
}

/* Returns whether other layers of the sample, not the next ones to `layer`, run between two steps. */
static bool has_others_between(const LayerCopies *self, int32_t layer, int32_t s, int32_t end) {
    const Program *program = self->program;
    if (layer < 0 || self->layer_count == 0) return false;
    const int32_t *steps = self->steps_of + ((size_t)program->execution.step_count + 1) * (size_t)layer;
    return end - s - (steps[end] - steps[s]) > program->execution.step_count / self->layer_count;
}

/* ---- values at the same place ---- */

enum { MOST_ALIKE = 8, LEAST_ALIKE = 4, MOST_OF_ORIGIN = 6, QUARTER = 4 };

/* Values at the same place of kept layers: those that an instruction has in several states are told apart by
 * their order. */
typedef struct AlikeValues {
    int32_t values[MOST_ALIKE];
    int32_t count;
} AlikeValues;

/* Returns whether all but one of the values exist at one moment. */
static bool exist_at_once(const LayerCopies *self, const AlikeValues *alike) {
    for (int32_t k = 0; k < alike->count; k++) {
        int32_t moment = self->made_at[alike->values[k]], count = 0;
        for (int32_t m = 0; m < alike->count; m++)
            count += self->made_at[alike->values[m]] <= moment && self->last_use[alike->values[m]] >= moment;
        if (count >= alike->count - 1) return true;
    }
    return false;
}

/* Returns whether one of the values exists for more than a quarter of the steps. */
static bool is_long(const LayerCopies *self, const AlikeValues *alike) {
    for (int32_t k = 0; k < alike->count; k++) {
        int32_t value = alike->values[k];
        if (self->last_use[value] - self->made_at[value] > self->program->execution.step_count / QUARTER)
            return true;
    }
    return false;
}

/* Returns whether a program is the body of a loop, or around one. Loops carry sums of gradients. */
static bool is_near_loop(const LayerCopies *self) {
    return !self->program->roles->phases || self->has_loop;
}

/* Returns whether the copies of all layers exist at one moment. Buckets of collectives span several layers:
 * weights and gradients that wait for one are not of all. */
static bool exist_for_all(const LayerCopies *self, const AlikeValues *alike) {
    const IrLoops *loops = self->program->module->loops;
    const ProgramValue *value = &self->program->values[alike->values[0]];
    if (!exist_at_once(self, alike)) return false;
    if (!loops->is_beside[value->origin]) return true;
    bool is_gradient = loops->phases[value->origin] == IR_PHASE_BACKWARD;
    bool is_reduced = self->program->instructions[value->instruction].kind == PROGRAM_COLLECTIVE;
    return is_long(self, alike) && (!is_gradient || is_reduced || !is_near_loop(self));
}

/* Returns the fewest steps between two of the numbers steps[values[k]]: from one layer to the next. */
static int32_t least_gap(const AlikeValues *alike, const int32_t *steps) {
    int32_t least = INT32_MAX;
    for (int32_t k = 0; k < alike->count; k++)
        for (int32_t m = 0; m < alike->count; m++) {
            int32_t gap = steps[alike->values[m]] - steps[alike->values[k]];
            if (gap > 0 && gap < least) least = gap;
        }
    return least;
}

AmStatus layer_copies_find(LayerCopies *self, Arena *arena, AmError *error) {
    const IrLoops *loops = self->program->module->loops;
    if (!loops || !loops->phases) return AM_OK;
    TRY(find_steps(self, arena, error));
    const Program *program = self->program;
    int32_t places = program->module->loops->place_count * MOST_OF_ORIGIN;
    AlikeValues *alike = ARENA_ARRAY(arena, AlikeValues, places + 1);
    self->compared = ARENA_ARRAY(arena, ComparedValue, program->value_count + 1);
    if (arena->failed) return am_fail_memory(error, program->value_count);
    /* The values of each place that have memory of their own. */
    int32_t *seen = ARENA_ARRAY(arena, int32_t, program->module->instruction_count + 1);
    if (!seen) return am_fail_memory(error, program->module->instruction_count);
    for (int32_t v = 0; v < program->value_count; v++) {
        int32_t origin = program->values[v].origin, place = origin < 0 ? -1 : loops->place[origin];
        if (place < 0 || seen[origin] == MOST_OF_ORIGIN) continue;
        AlikeValues *at = &alike[place * MOST_OF_ORIGIN + seen[origin]++];
        bool has_memory = program->values[v].kind == PROGRAM_VALUE_TEMPORARY && self->storage[v] == v;
        if (has_memory && self->made_at[v] >= 0 && at->count < MOST_ALIKE) at->values[at->count++] = v;
    }
    for (int32_t k = 0; k < places; k++) {
        if (alike[k].count < LEAST_ALIKE) continue;
        const ComparedValue found = {.is_compared = true,
                                     .exists_for_all = exist_for_all(self, &alike[k]),
                                     .made_gap = least_gap(&alike[k], self->made_at),
                                     .freed_gap = least_gap(&alike[k], self->last_use)};
        for (int32_t m = 0; m < alike[k].count; m++) self->compared[alike[k].values[m]] = found;
    }
    return AM_OK;
}

/* ---- loops ---- */

/* Returns how many layers a value represents that a loop carries as one of its results. */
static int32_t layers_carried(const Program *program, const ProgramInstruction *loop, int32_t value) {
    const Program *body = loop->regions.programs[0];
    int32_t operand = program_changed_operand(loop, value);
    int32_t output = operand < 0 ? -1 : body->outputs[operand];
    int32_t of_output = output < 0 ? 1 : ir_layers_of(body->module, body->values[output].origin);
    int32_t initial = operand < 0 ? -1 : program->values[loop->operands[operand]].origin;
    bool is_shared = initial >= 0 && program->module->instructions[initial].opcode == IR_BROADCAST;
    int32_t of_operand = is_shared ? 1 : ir_layers_of(program->module, initial);
    return of_output > of_operand ? of_output : of_operand;
}

/* Returns how many layers a value represents that the loop at step s reads: all at once, or those of the
 * result that takes its place. 0: no loop is there. */
static int32_t layers_read(const LayerCopies *self, int32_t s, int32_t value) {
    const Program *program = self->program;
    int32_t layers = 0, end = s + program_steps_together(program, s);
    for (const ProgramStep *step = &program->execution.steps[s]; step < &program->execution.steps[end];
         step++) {
        const ProgramInstruction *loop = step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
        if (!loop || loop->opcode != IR_WHILE) continue;
        layers = ir_layers_of(program->module, program->values[value].origin);
        for (int32_t k = 0; k < loop->result_count; k++) {
            int32_t operand = program_changed_operand(loop, loop->first_result + k);
            if (operand >= 0 && self->storage[loop->operands[operand]] == value)
                return layers_carried(program, loop, loop->first_result + k);
        }
    }
    return layers;
}

/* ---- copies ---- */

/* Returns whether the value replaces a parameter. */
static bool is_update(const LayerCopies *self, int32_t value) {
    const Program *program = self->program;
    for (int32_t k = 0; k < program->execution.update_count; k++)
        if (self->storage[program->execution.updates[k].value] == value) return true;
    return false;
}

/* Returns whether the copies of all layers exist at once, by rules for programs with too few kept layers:
 *
 *   - gathered weight: if it is last read more than a quarter of the steps later
 *   - other value of one weight: if other layers run before it is last read
 *   - gradient of a weight: as a gathered weight, since gradients are reduced in buckets; near loops, which
 *     carry their sums, no
 *   - recomputed value: if other layers, and steps of the forward pass, run before it is last read
 *   - other value of the backward pass: if other layers run before it is last read
 *   - forward value: if a later pass reads it
 */
static bool exists_for_all(const LayerCopies *self, const ProgramInstruction *producer, int32_t s,
                           int32_t value) {
    const Program *program = self->program;
    const IrLoops *loops = program->module->loops;
    int32_t origin = program->values[value].origin, last = self->last_use[value];
    IrPhase made = loops->phases[origin], used = phase_of(program, last);
    bool has_others = has_others_between(self, loops->layer[origin], s, last);
    bool stays_long = last - s > program->execution.step_count / QUARTER;
    bool is_beside = loops->is_beside[origin]; /* of one weight, or a gradient */
    if (producer && program_gathers(producer)) return stays_long;
    if (is_beside && made != IR_PHASE_BACKWARD) return has_others;
    if (is_beside) return stays_long && !is_near_loop(self);
    if (made == IR_PHASE_RECOMPUTED) return has_others && self->forward_steps[last] > self->forward_steps[s];
    if (made != IR_PHASE_FORWARD) return has_others;
    return !ir_phase_is_with_forward(used);
}

/* Returns the step `end`, if it is later than step s, but at most `gap` steps later. */
static int32_t later(int32_t s, int32_t end, int32_t gap) {
    if (end <= s) return s;
    return end - s <= gap ? end : s + gap;
}

/* Sets the steps from and until which the other copies of a value exist. */
static void set_others(ValueCopies *copies, const LayerCopies *self, int32_t s, int32_t value) {
    const Program *program = self->program;
    const IrLoops *loops = program->module->loops;
    int32_t origin = program->values[value].origin, layer = loops->layer[origin];
    copies->from = s;
    copies->until = self->last_use[value];
    if (layer < 0) return;
    IrPhase made = loops->phases[origin], used = phase_of(program, copies->until);
    const ComparedValue *compared = &self->compared[value];
    int32_t end = made == IR_PHASE_FORWARD    ? self->forward_end[layer]
                  : made == IR_PHASE_BACKWARD ? self->backward_end[layer]
                                              : -1;
    copies->from = later(s, end, compared->is_compared ? compared->made_gap : INT32_MAX);
    bool is_backward = used == IR_PHASE_BACKWARD || used == IR_PHASE_RECOMPUTED;
    end = is_backward ? self->backward_end[layer] : -1;
    copies->until = later(copies->until, end, compared->is_compared ? compared->freed_gap : INT32_MAX);
}

ValueCopies layer_copies_of(const LayerCopies *self, const ProgramStep *step, int32_t s, int32_t value) {
    const Program *program = self->program;
    const IrModule *module = program->module;
    ValueCopies copies = {.own = 1};
    if (!self->steps_of) return copies;
    int32_t last = self->last_use[value];
    const ProgramInstruction *instruction =
        step->fusion < 0 ? &program->instructions[step->instruction] : NULL;
    if (instruction && instruction->opcode == IR_WHILE) {
        copies.own = layers_carried(program, instruction, value);
        return copies;
    }
    int32_t layers = ir_layers_of(module, program->values[value].origin);
    int32_t read = last >= 0 && last < program->execution.step_count ? layers_read(self, last, value) : 0;
    if (read > 0) copies.own = read;
    if (read > 0 || layers <= 1 || last < 0 || is_update(self, value)) return copies;
    if (last >= program->execution.step_count) {
        copies.own = layers;
        return copies;
    }
    const ComparedValue *compared = &self->compared[value];
    bool exists =
        compared->is_compared ? compared->exists_for_all : exists_for_all(self, instruction, s, value);
    if (!exists) return copies;
    copies.others = layers - 1;
    set_others(&copies, self, s, value);
    if (copies.until <= copies.from) copies.others = 0;
    return copies;
}
