/* The computation while products wait for collectives: on chains of tensor-parallel layers, on
 * data-parallel programs, whose order follows one rule, on random programs and on a model of the
 * zoo. */
#include "tests/support/model_case.h"

#include "base/random.h"
#include "lowering/passes/instruction_order.h"
#include "lowering/passes/reduce_early.h"

enum { MOST = 200, EXTENT = 4096 };

/* Instruction i makes value i, a square matrix. */
typedef struct Made {
    IrModule module;
    IrInstruction whole[MOST];
    IrRoles roles;
    Mesh mesh;
    Program program;
    ProgramValue values[MOST];
    ProgramInstruction instructions[MOST];
    int32_t operands[MOST][2], count;
} Made;

typedef enum Kind { ELEMENT_WISE, PRODUCT, SUM, GATHER, TRANSFER } Kind;

static const int64_t extents[] = {EXTENT, EXTENT};

static void begin(Made *self, Arena *arena) {
    *self = (Made){.module.instructions = self->whole,
                   .program = {.arena = arena,
                               .module = &self->module,
                               .roles = &self->roles,
                               .mesh = &self->mesh,
                               .values = self->values,
                               .instructions = self->instructions}};
}

/* Adds an instruction on the results of `a` and `b`, -1: no operand. */
static int32_t add(Made *self, Kind kind, int32_t a, int32_t b) {
    static const ProgramCollective sum = {.kind = PROGRAM_ALL_REDUCE}, gather = {.kind = PROGRAM_ALL_GATHER};
    static const ProgramTransfer transfer;
    static const IrDot dot;
    static const IrAttributes attributes = {.dot = &dot};
    int32_t i = self->count++;
    self->whole[i].shape = (IrShape){.type = DTYPE_F32, .rank = 2, .dimensions = extents};
    self->values[i] = (ProgramValue){.shape = self->whole[i].shape,
                                     .origin = i,
                                     .instruction = i,
                                     .kind = PROGRAM_VALUE_TEMPORARY,
                                     .storage = i};
    self->operands[i][0] = a;
    self->operands[i][1] = b;
    self->instructions[i] = (ProgramInstruction){.kind = kind == TRANSFER                ? PROGRAM_TRANSFER
                                                         : kind == SUM || kind == GATHER ? PROGRAM_COLLECTIVE
                                                                                         : PROGRAM_COMPUTE,
                                                 .opcode = kind == PRODUCT ? IR_DOT : IR_ADD,
                                                 .origin = i,
                                                 .operand_count = (a >= 0) + (b >= 0),
                                                 .operands = self->operands[i],
                                                 .result_count = 1,
                                                 .first_result = i,
                                                 .attributes = &attributes,
                                                 .collective = kind == SUM      ? &sum
                                                               : kind == GATHER ? &gather
                                                                                : NULL,
                                                 .transfer = kind == TRANSFER ? &transfer : NULL};
    self->program.value_count = self->program.instruction_count = self->count;
    return i;
}

/* order[place]: the instruction of the original list, which is unchanged. */
static void find_order(Made *self, int32_t *order) {
    AmError error = {0};
    ProgramInstruction original[MOST];
    memcpy(original, self->instructions, sizeof original);
    if (program_reduce_early(&self->program, &error) != AM_OK) fail_msg("%s", error.text);
    assert_int_equal(self->program.instruction_count, self->count);
    for (int32_t place = 0; place < self->count; place++)
        order[place] = self->program.instructions[place].first_result;
    memcpy(self->instructions, original, sizeof original);
}

static void check_valid(const Made *self, const int32_t *order) {
    bool is_placed[MOST] = {false};
    int32_t last = -1;
    for (int32_t place = 0; place < self->count; place++) {
        int32_t i = order[place];
        const ProgramInstruction *instruction = &self->instructions[i];
        assert_false(is_placed[i]);
        is_placed[i] = true;
        for (int32_t k = 0; k < instruction->operand_count; k++)
            assert_true(instruction->operands[k] >= self->count || is_placed[instruction->operands[k]]);
        if (instruction->kind != PROGRAM_TRANSFER) continue;
        assert_true(i > last);
        last = i;
    }
}

/* The gradient of a weight, its sum and its update. */
static void add_weight(Made *self, int32_t gradient, int32_t input) {
    add(self, ELEMENT_WISE, add(self, SUM, add(self, PRODUCT, gradient, input), -1), -1);
}

/* A forward pass that keeps its inputs, and a backward pass followed by the gradients of weights,
 * or each gradient after its layer. */
static void make_layers(Made *self, Arena *arena, int32_t layers, bool is_split, bool is_behind) {
    int32_t gradients[MOST], inputs[MOST];
    begin(self, arena);
    for (int32_t l = 0; l < layers; l++) inputs[l] = add(self, ELEMENT_WISE, l > 0 ? inputs[l - 1] : -1, -1);
    int32_t gradient = add(self, ELEMENT_WISE, inputs[layers - 1], -1);
    for (int32_t l = 0; l < layers; l++) {
        gradients[l] = gradient;
        gradient = add(self, PRODUCT, gradient, gradient);
        if (is_split) gradient = add(self, SUM, gradient, -1);
        gradient = add(self, ELEMENT_WISE, gradient, -1);
        if (!is_behind) add_weight(self, gradients[l], inputs[layers - 1 - l]);
    }
    for (int32_t l = 0; l < layers && is_behind; l++) add_weight(self, gradients[l], inputs[layers - 1 - l]);
}

/* While a sum that the next layer waits for is under way, the gradient of a weight is computed. */
static void test_gradients_hide_the_chain(void **state) {
    (void)state;
    enum { LAYERS = 16 };
    Arena arena = {0};
    Made made;
    int32_t order[MOST], hidden = 0;
    make_layers(&made, &arena, LAYERS, true, true);
    find_order(&made, order);
    check_valid(&made, order);
    for (int32_t place = 0; place < made.count; place++) {
        int32_t sum = order[place], products = 0;
        if (made.instructions[sum].kind != PROGRAM_COLLECTIVE || sum > 4 * LAYERS) continue;
        for (int32_t next = place + 1; next < made.count && order[next] != sum + 1; next++)
            products += made.instructions[order[next]].opcode == IR_DOT;
        hidden += products > 0;
    }
    assert_true(hidden >= LAYERS - 2);
    arena_free(&arena);
}

/* Layers are recomputed one after the other, each when its weight is gathered, although their inputs are
 * there since the forward pass. */
static void test_recomputation_waits_for_its_weight(void **state) {
    (void)state;
    enum { LAYERS = 6, WEIGHT = MOST - 1 /* a value that no instruction makes */ };
    Arena arena = {0};
    Made made;
    IrPhase phases[MOST] = {IR_PHASE_FORWARD};
    int32_t order[MOST], place_of[MOST], inputs[LAYERS + 1], weights[LAYERS], begins[LAYERS];
    begin(&made, &arena);
    made.roles.phases = phases;
    inputs[0] = add(&made, ELEMENT_WISE, WEIGHT, -1);
    for (int32_t l = 0; l < LAYERS; l++)
        inputs[l + 1] = add(&made, PRODUCT, inputs[l], add(&made, GATHER, WEIGHT, -1));
    int32_t gradient = add(&made, ELEMENT_WISE, inputs[LAYERS], -1), gradients[LAYERS];
    for (int32_t l = LAYERS - 1; l >= 0; l--) {
        gradients[l] = gradient;
        weights[l] = add(&made, GATHER, WEIGHT, -1);
        begins[l] = add(&made, ELEMENT_WISE, inputs[l], -1);
        int32_t normal = add(&made, ELEMENT_WISE, begins[l], -1);
        int32_t output = add(&made, PRODUCT, normal, weights[l]);
        for (int32_t i = begins[l]; i <= output; i++) phases[i] = IR_PHASE_RECOMPUTED;
        gradient = add(&made, PRODUCT, gradient, output);
        add_weight(&made, gradient, normal);
        for (int32_t i = output + 1; i < made.count; i++) phases[i] = IR_PHASE_BACKWARD;
    }
    made.program.value_count = MOST;
    find_order(&made, order);
    for (int32_t place = 0; place < made.count; place++) place_of[order[place]] = place;
    for (int32_t l = 0; l < LAYERS; l++) {
        assert_true(place_of[begins[l]] > place_of[weights[l]]);
        assert_true(l == LAYERS - 1 || place_of[begins[l]] > place_of[gradients[l + 1]]);
    }
    arena_free(&arena);
}

/* The rule for programs without such a chain, step by step: the first that only a sum needs, else the first;
 * updates when two more sums have begun, or nothing else is left. */
static void follow_rule(const Made *self, int32_t *order) {
    bool is_placed[MOST] = {false}, for_sum[MOST], has_users[MOST] = {false}, leads[MOST] = {false};
    int32_t sums = 0, until[MOST], waiting[MOST], waiting_count = 0;
    for (int32_t i = 0; i < self->count; i++) for_sum[i] = true, until[i] = -1;
    for (int32_t i = self->count - 1; i >= 0; i--) {
        const ProgramInstruction *instruction = &self->instructions[i];
        bool is_sum = instruction->kind == PROGRAM_COLLECTIVE;
        for_sum[i] = is_sum || (for_sum[i] && has_users[i] && instruction->operand_count > 0);
        leads[i] |= is_sum || instruction->opcode == IR_DOT;
        for (int32_t k = 0; k < instruction->operand_count; k++) {
            has_users[instruction->operands[k]] = true;
            for_sum[instruction->operands[k]] &= for_sum[i];
            leads[instruction->operands[k]] |= leads[i];
        }
    }
    for (int32_t place = 0; place < self->count; place++) {
        int32_t best = -1;
        for (int32_t i = 0; i < self->count; i++) {
            const ProgramInstruction *instruction = &self->instructions[i];
            bool is_ready = !is_placed[i], is_update = false;
            for (int32_t k = 0; k < instruction->operand_count; k++) {
                is_ready &= is_placed[instruction->operands[k]];
                is_update |= self->instructions[instruction->operands[k]].kind == PROGRAM_COLLECTIVE;
            }
            if (!is_ready) continue;
            if (is_update && !leads[i] && until[i] < 0) {
                until[i] = sums + REDUCE_EARLY_UNDER_WAY;
                waiting[waiting_count++] = i;
            }
            if (until[i] > sums) continue;
            if (best < 0 || for_sum[i] > for_sum[best]) best = i;
        }
        for (int32_t w = 0; w < waiting_count && best < 0; w++)
            if (!is_placed[waiting[w]]) best = waiting[w];
        is_placed[best] = true;
        sums += self->instructions[best].kind == PROGRAM_COLLECTIVE;
        order[place] = best;
    }
}

static void test_data_parallel_order_follows_its_rule(void **state) {
    (void)state;
    for (int32_t layers = 2; layers <= 30; layers += 4) {
        Arena arena = {0};
        Made made;
        int32_t order[MOST], expected[MOST];
        make_layers(&made, &arena, layers, false, layers % 3 > 0);
        follow_rule(&made, expected);
        find_order(&made, order);
        assert_memory_equal(order, expected, sizeof *order * (size_t)made.count);
        arena_free(&arena);
    }
}

static void make_program(Made *self, Arena *arena, Random *random) {
    static const Kind kinds[] = {ELEMENT_WISE, ELEMENT_WISE, PRODUCT, PRODUCT, SUM, GATHER, TRANSFER};
    begin(self, arena);
    int32_t count = 2 + (int32_t)random_below(random, MOST - 2), last = 0;
    add(self, ELEMENT_WISE, -1, -1);
    while (self->count < count) {
        Kind kind = kinds[random_below(random, sizeof kinds / sizeof *kinds)];
        int32_t a = random_below(random, 3) > 0 ? last : (int32_t)random_below(random, (uint32_t)self->count);
        int32_t b = (int32_t)random_below(random, (uint32_t)self->count);
        int32_t i = add(self, kind, a, kind == PRODUCT || kind == ELEMENT_WISE ? b : -1);
        if (random_below(random, 3) > 0) last = i;
    }
}

/* Sums that only updates wait for, and gathers of stored weights. */
static void make_stored(Made *self, Arena *arena, Random *random) {
    enum { LONGEST = MOST - 4 };
    int32_t values[MOST], count = 0;
    begin(self, arena);
    values[count++] = add(self, ELEMENT_WISE, MOST - 1, -1);
    while (self->count < LONGEST) {
        int32_t a = values[random_below(random, count)], b = values[random_below(random, count)];
        int64_t kind = random_below(random, 4);
        if (kind == 0) add_weight(self, a, b);
        else if (kind == 1) values[count++] = add(self, GATHER, MOST - 1, -1);
        else values[count++] = add(self, kind == 2 ? PRODUCT : ELEMENT_WISE, a, b);
    }
    for (int32_t k = 0; k < count && self->count < MOST - 1; k++) add(self, SUM, values[count - 1 - k], -1);
    self->program.value_count = MOST;
}

static void test_random_programs(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        Arena arena = {0};
        Random random;
        Made made;
        int32_t order[MOST], again[MOST];
        random_seed(&random, seed);
        IrPhase phases[MOST];
        if (seed % 2) make_program(&made, &arena, &random);
        else make_stored(&made, &arena, &random);
        made.roles.phases = phases;
        for (int32_t i = 0; i < made.count; i++) phases[i] = (IrPhase)random_below(&random, IR_PHASE_OTHER);
        find_order(&made, order);
        check_valid(&made, order);
        made.program.instructions = made.instructions;
        find_order(&made, again);
        assert_memory_equal(order, again, sizeof *order * (size_t)made.count);
        arena_free(&arena);
    }
}

/* ---- the end of a program ---- */

enum { SUMS = 3, LOCAL = 6, SUM_SECONDS = 4 };

/* Returns when local steps in this order end, which take one second each; sums take place one after another.
 * 0: a step comes before its operand. */
static int32_t seconds_of(const Made *self, const int32_t *order) {
    int32_t seconds = 0;
    bool is_placed[MOST] = {false};
    for (int32_t i = 0; i <= SUMS; i++) is_placed[i] = true;
    for (int32_t k = 0; k < LOCAL; k++) {
        const ProgramInstruction *step = &self->instructions[order[k]];
        for (int32_t o = 0; o < step->operand_count; o++) {
            int32_t operand = step->operands[o];
            if (!is_placed[operand]) return 0;
            if (operand <= SUMS && seconds < operand * SUM_SECONDS) seconds = operand * SUM_SECONDS;
        }
        is_placed[order[k]] = true;
        seconds++;
    }
    return seconds;
}

static int32_t least_seconds(const Made *self, int32_t *order, int32_t from) {
    int32_t least = from == LOCAL ? seconds_of(self, order) : 0;
    for (int32_t k = from; k < LOCAL; k++) {
        int32_t kept = order[from];
        order[from] = order[k], order[k] = kept;
        int32_t seconds = least_seconds(self, order, from + 1);
        if (seconds > 0 && (least == 0 || seconds < least)) least = seconds;
        order[k] = order[from], order[from] = kept;
    }
    return least;
}

/* No order of the steps behind three sums ends earlier. */
static void test_the_end_fills_waits(void **state) {
    (void)state;
    int32_t changed = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        Arena arena = {0};
        AmError error = {0};
        Random random;
        Made made;
        ProgramGraph graph;
        ProgramStep steps[SUMS + LOCAL + 1];
        int32_t order[LOCAL], found[LOCAL];
        random_seed(&random, seed);
        begin(&made, &arena);
        add(&made, PRODUCT, -1, -1);
        for (int32_t k = 0; k < SUMS; k++) add(&made, SUM, 0, -1);
        for (int32_t k = 0; k < LOCAL; k++)
            add(&made, ELEMENT_WISE, (int32_t)random_below(&random, made.count),
                (int32_t)random_below(&random, made.count));
        for (int32_t i = 0; i < made.count; i++) steps[i] = (ProgramStep){.instruction = i, .fusion = -1};
        made.program.execution = (ProgramExecution){.steps = steps, .step_count = made.count};
        assert_int_equal(program_graph(&graph, &arena, &made.program, &error), AM_OK);
        assert_int_equal(program_sort_end(&made.program, &graph, &error), AM_OK);
        for (int32_t i = 0; i <= SUMS; i++) assert_int_equal(steps[i].instruction, i);
        for (int32_t k = 0; k < LOCAL; k++) {
            order[k] = SUMS + 1 + k;
            found[k] = steps[SUMS + 1 + k].instruction;
            changed += found[k] != order[k];
        }
        int32_t seconds = seconds_of(&made, found);
        assert_true(seconds > 0);
        assert_int_equal(seconds, least_seconds(&made, order, 0));
        arena_free(&arena);
    }
    assert_true(changed > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_hide_the_chain),
        cmocka_unit_test(test_recomputation_waits_for_its_weight),
        cmocka_unit_test(test_data_parallel_order_follows_its_rule),
        cmocka_unit_test(test_random_programs),
        cmocka_unit_test(test_the_end_fills_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
