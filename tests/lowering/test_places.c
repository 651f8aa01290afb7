/* Slices whose index the iteration selects: those that are views of the array, their cost, and
 * results equal to those of copies, computed here by hand. */
#include "lowering/passes/places.h"
#include "tests/support/module_case.h"

enum { ITERATIONS = 4, WIDTH = 16 };

#define STATE "(s32[], f32[4,16], f32[4,16], f32[16])"

/* Iteration i of four: reads x (row INDEX), adds it to sum, and writes to rows; MORE is the written
 * value and its place.
 */
#define LOOP(MORE)                                                                                         \
    "HloModule m\n"                                                                                        \
    "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"                     \
    "more { s = " STATE " parameter(0) i = s32[] get-tuple-element(s), index=0 n = s32[] constant(4)\n"    \
    "  ROOT c = pred[] compare(i, n), direction=LT }\n"                                                    \
    "turn { s = " STATE " parameter(0)\n"                                                                  \
    "  i = s32[] get-tuple-element(s), index=0 x = f32[4,16] get-tuple-element(s), index=1\n"              \
    "  rows = f32[4,16] get-tuple-element(s), index=2 sum = f32[16] get-tuple-element(s), index=3\n"       \
    "  zero = s32[] constant(0) one = s32[] constant(1) three = s32[] constant(3) j = s32[] add(i, one)\n" \
    "  two = f32[] constant(2) nothing = f32[] constant(0)\n" MORE "}\n"                                   \
    "ENTRY main { x = f32[4,16] parameter(0) rows = f32[4,16] parameter(1) sum = f32[16] parameter(2)\n"   \
    "  zero = s32[] constant(0) t = " STATE " tuple(zero, x, rows, sum)\n"                                 \
    "  w = " STATE " while(t), condition=more, body=turn\n"                                                \
    "  all = f32[4,16] get-tuple-element(w), index=2 total = f32[16] get-tuple-element(w), index=3\n"      \
    "  flat = f32[1,16] reshape(total) ROOT r = f32[5,16] concatenate(all, flat), dimensions={0} }\n"

#define READ(index) "  part = f32[1,16] dynamic-slice(x, " index ", zero), dynamic_slice_sizes={1,16}\n"
#define TWICE                                                                      \
    "  own = f32[16] reshape(part) twos = f32[16] broadcast(two), dimensions={}\n" \
    "  twice = f32[16] multiply(own, twos) row = f32[1,16] reshape(twice)\n"
#define SUM   "  next = f32[16] add(sum, twice)\n"
#define WRITE "  kept = f32[4,16] dynamic-update-slice(rows, row, i, zero)\n"
#define ROOT  "  ROOT r = " STATE " tuple(j, x, kept, next) "

static const Program *body_of(const ModuleCase *c) {
    for (int32_t i = 0; i < c->program->instruction_count; i++)
        if (c->program->instructions[i].opcode == IR_WHILE)
            return c->program->instructions[i].regions.programs[0];
    fail_msg("no loop");
    return NULL;
}

/* The only instruction of that opcode. */
static const ProgramInstruction *find(const Program *program, IrOpcode opcode) {
    const ProgramInstruction *found = NULL;
    for (int32_t i = 0; i < program->instruction_count; i++) {
        if (program->instructions[i].opcode != opcode) continue;
        assert_null(found);
        found = &program->instructions[i];
    }
    assert_non_null(found);
    return found;
}

/* Steps of the body that move a part: those of slices that are copied. */
static int32_t count_copies(const Program *body) {
    int32_t count = 0;
    for (int32_t s = 0; s < body->execution.step_count; s++) {
        if (body->execution.steps[s].fusion >= 0) continue;
        IrOpcode opcode = body->instructions[body->execution.steps[s].instruction].opcode;
        count += opcode == IR_DYNAMIC_SLICE || opcode == IR_DYNAMIC_UPDATE_SLICE;
    }
    return count;
}

static void open_case(ModuleCase *c, const char *text) {
    if (module_open(c, text) != AM_OK) fail_msg("%s", c->error.text);
}

/* x counts from 1, rows are -1, sum is 0; `expected` of the rows and then of the sum. */
static void check(ModuleCase *c, const float (*expected)[WIDTH]) {
    float x[ITERATIONS][WIDTH], rows[ITERATIONS][WIDTH], sum[WIDTH] = {0};
    for (int32_t k = 0; k < ITERATIONS * WIDTH; k++)
        x[k / WIDTH][k % WIDTH] = (float)(k + 1), rows[k / WIDTH][k % WIDTH] = -1;
    for (int32_t run = 0; run < 2; run++)
        check_run(c, (const void *[]){x, rows, sum}, expected, sizeof x + sizeof sum);
}

/* rows[t] = 2 x[index[t]] and their sum. */
static void check_doubled(ModuleCase *c, const int32_t *index) {
    float expected[ITERATIONS + 1][WIDTH] = {{0}};
    for (int32_t t = 0; t < ITERATIONS; t++)
        for (int32_t k = 0; k < WIDTH; k++) {
            expected[t][k] = 2 * (float)(index[t] * WIDTH + k + 1);
            expected[ITERATIONS][k] += expected[t][k];
        }
    check(c, (const float(*)[WIDTH])expected);
}

/* Both are views: nothing moves but by what computes, and neither has memory of its own. */
static void test_both(void **state) {
    (void)state;
    ModuleCase c;
    const int32_t in_order[] = {0, 1, 2, 3};
    open_case(&c, LOOP(READ("i") TWICE SUM WRITE ROOT));
    const Program *body = body_of(&c);
    const ProgramInstruction *read = find(body, IR_DYNAMIC_SLICE);
    const ProgramInstruction *write = find(body, IR_DYNAMIC_UPDATE_SLICE);
    assert_int_equal(count_copies(body), 0);
    assert_int_equal(body->execution.step_count, 2); /* the counter, and twice and next */
    assert_int_equal(read->compute.place->iterations, ITERATIONS);
    for (int32_t t = 0; t < ITERATIONS; t++) {
        assert_int_equal(read->compute.place->offset[t], 64 * t);
        assert_int_equal(write->compute.place->offset[t], 64 * t);
    }
    assert_int_equal(body->values[read->first_result].storage, body->parameters[1]);
    assert_int_equal(body->values[write->operands[1]].storage, body->parameters[2]);
    for (int32_t u = 0; u < body->execution.update_count; u++)
        assert_true(body->execution.updates[u].in_place);
    assert_int_equal(body->allocation.bytes, body->allocation.parameter_bytes);
    check_doubled(&c, in_order);
    module_close(&c);
}

/* Backwards, as JAX counts negative numbers from the end; beyond the end, clamped; out of range in an
 * iteration. */
static void test_indices(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t index[ITERATIONS];
    } rows[] = {
        {LOOP("k = s32[] subtract(three, i)\n" READ("k") TWICE SUM WRITE ROOT), {3, 2, 1, 0}},
        {LOOP("minus = s32[] negate(i) k = s32[] subtract(minus, one) low = pred[] compare(k, zero), "
              "direction=LT\n four = s32[] constant(4) up = s32[] add(k, four) at = s32[] select(low, up, "
              "k)\n" READ("at") TWICE SUM WRITE ROOT),
         {3, 2, 1, 0}},
        {LOOP(READ("j") TWICE SUM WRITE ROOT), {1, 2, 3, 3}},
        {LOOP("m = s32[] constant(2) k = s32[] remainder(i, m)\n" READ("k") TWICE SUM WRITE ROOT),
         {0, 1, 0, 1}},
        {LOOP("k = s32[] subtract(i, three)\n" READ("k") TWICE SUM WRITE ROOT), {0, 0, 0, 0}},
        {LOOP("k = s32[] clamp(one, i, three)\n" READ("k") TWICE SUM WRITE ROOT), {1, 1, 2, 3}},
        {LOOP("k = s32[] multiply(i, i)\n" READ("k") TWICE SUM WRITE ROOT), {0, 1, 3, 3}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        ModuleCase c;
        open_case(&c, rows[r].text);
        assert_int_equal(count_copies(body_of(&c)), 0);
        for (int32_t t = 0; t < ITERATIONS; t++)
            assert_int_equal(find(body_of(&c), IR_DYNAMIC_SLICE)->compute.place->offset[t],
                             64 * rows[r].index[t]);
        check_doubled(&c, rows[r].index);
        module_close(&c);
    }
}

/* The array is overwritten while the slice lives: rows[i] = 2 rows[i], next = old rows[i] + 2 rows[i]. */
static void test_overwritten(void **state) {
    (void)state;
    ModuleCase c;
    float expected[ITERATIONS + 1][WIDTH];
    open_case(&c, LOOP("  part = f32[1,16] dynamic-slice(rows, i, zero), dynamic_slice_sizes={1,16}\n" TWICE
                       "  kept = f32[4,16] dynamic-update-slice(rows, row, i, zero)\n"
                       "  after = f32[1,16] dynamic-slice(kept, i, zero), dynamic_slice_sizes={1,16}\n"
                       "  new = f32[16] reshape(after) change = f32[16] subtract(own, new)\n"
                       "  next = f32[16] add(sum, change)\n" ROOT));
    assert_int_equal(count_copies(body_of(&c)), 3);
    for (int32_t t = 0; t <= ITERATIONS; t++)
        for (int32_t k = 0; k < WIDTH; k++) expected[t][k] = t < ITERATIONS ? -2 : ITERATIONS * (-1 - -2);
    check(&c, (const float(*)[WIDTH])expected);
    module_close(&c);
}

/* Copies are made for other users of the array or the value, for users without a new address per
 * iteration, and for slices that are not aligned or whose index depends on data. */
static void test_copies(void **state) {
    (void)state;
    static const struct {
        const char *what, *text;
        int32_t copies;
    } rows[] = {
        {"the array is read as a whole",
         LOOP(READ("i") TWICE "  every = f32[16] reduce(rows, nothing), dimensions={0}, to_apply=add\n"
                              "  next = f32[16] add(every, twice)\n" WRITE ROOT),
         1},
        {"the value is carried as well", LOOP(READ("i") TWICE "  next = f32[16] copy(twice)\n" WRITE ROOT),
         1},
        {"a carried value is kept",
         LOOP(READ("i") TWICE SUM
              "  row_before = f32[1,16] reshape(sum)\n"
              "  kept = f32[4,16] dynamic-update-slice(rows, row_before, i, zero)\n" ROOT),
         1},
        {"the slice is carried",
         LOOP(READ("i") "  next = f32[16] reshape(part) kept = f32[4,16] negate(rows)\n" ROOT), 1},
        {"parts that are 8 elements apart",
         LOOP("  wide = f32[8,8] reshape(x) part = f32[1,8] dynamic-slice(wide, i, zero), "
              "dynamic_slice_sizes={1,8}\n  both = f32[1,16] concatenate(part, part), dimensions={1}\n"
              "  next = f32[16] reshape(both) kept = f32[4,16] negate(rows)\n" ROOT),
         1},
        {"parts that do not lie together",
         LOOP("  wide = f32[2,4,8] reshape(x)\n"
              "  part = f32[2,1,8] dynamic-slice(wide, zero, i, zero), dynamic_slice_sizes={2,1,8}\n"
              "  own = f32[16] reshape(part) next = f32[16] add(sum, own) kept = f32[4,16] "
              "negate(rows)\n" ROOT),
         1},
        {"an index from the data",
         LOOP("  corner = f32[1,1] slice(x), slice={[0:1],[0:1]} number = f32[] reshape(corner)\n"
              "  k = s32[] convert(number)\n" READ("k") TWICE SUM WRITE ROOT),
         1},
        {"two writes",
         LOOP(READ("i") TWICE SUM "  first = f32[4,16] dynamic-update-slice(rows, row, i, zero)\n"
                                  "  kept = f32[4,16] dynamic-update-slice(first, row, zero, zero)\n" ROOT),
         2},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        ModuleCase c;
        open_case(&c, rows[r].text);
        if (count_copies(body_of(&c)) != rows[r].copies)
            fail_msg("%s: %d copies", rows[r].what, (int)count_copies(body_of(&c)));
        module_close(&c);
    }
}

static const ProgramInstruction *loop_of(const ModuleCase *c) {
    return find(c->program, IR_WHILE);
}

/* An array that is written completely is not copied before; an array with unwritten places is. */
static void test_filled(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t at[ITERATIONS]; /* the place of every iteration */
        bool unset;
    } rows[] = {
        {LOOP(READ("i") TWICE SUM WRITE ROOT), {0, 1, 2, 3}, true},
        {LOOP("k = s32[] subtract(three, i)\n" READ("i") TWICE SUM
              "  kept = f32[4,16] dynamic-update-slice(rows, row, k, zero)\n" ROOT),
         {3, 2, 1, 0},
         true},
        {LOOP("m = s32[] constant(3) k = s32[] remainder(i, m)\n" READ("i") TWICE SUM
              "  kept = f32[4,16] dynamic-update-slice(rows, row, k, zero)\n" ROOT),
         {0, 1, 2, 0},
         false},
        {LOOP(READ("i") TWICE SUM "  kept = f32[4,16] dynamic-update-slice(rows, row, j, zero)\n" ROOT),
         {1, 2, 3, 3},
         false},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        ModuleCase c;
        float expected[ITERATIONS + 1][WIDTH] = {{0}};
        open_case(&c, rows[r].text);
        assert_int_equal(count_copies(body_of(&c)), 0);
        assert_true(loop_of(&c)->loop.unset && loop_of(&c)->loop.unset[2] == rows[r].unset);
        assert_false(loop_of(&c)->loop.unset[1] || loop_of(&c)->loop.unset[3]);
        for (int32_t t = 0; t < ITERATIONS; t++)
            for (int32_t k = 0; k < WIDTH; k++) expected[t][k] = -1;
        for (int32_t t = 0; t < ITERATIONS; t++)
            for (int32_t k = 0; k < WIDTH; k++) {
                expected[rows[r].at[t]][k] = 2 * (float)(t * WIDTH + k + 1);
                expected[ITERATIONS][k] += 2 * (float)(t * WIDTH + k + 1);
            }
        check(&c, (const float(*)[WIDTH])expected);
        module_close(&c);
    }
}

/* Zeros that are filled are not made: the entry runs the loop and puts its results together. */
static void test_zeros_are_not_made(void **state) {
    (void)state;
    ModuleCase c;
    static const char zeros[] = "zeros = f32[4,16] broadcast(none), dimensions={}",
                      given[] = "tuple(zero, x, rows,";
    char text[4096];
    const char *whole = LOOP(READ("i") TWICE SUM WRITE ROOT), *at = strstr(whole, given);
    snprintf(text, sizeof text, "%.*stuple(zero, x, zeros,%s", (int)(at - whole), whole, at + strlen(given));
    char *tuple = strstr(text, "zero = s32[] constant(0) t = "), rest[4096];
    snprintf(rest, sizeof rest, "%s", tuple);
    snprintf(tuple, sizeof text - (size_t)(tuple - text), "none = f32[] constant(0) %s\n  %s", zeros, rest);
    const int32_t in_order[] = {0, 1, 2, 3};
    open_case(&c, text);
    for (int32_t s = 0; s < c.program->execution.step_count; s++) {
        assert_true(c.program->execution.steps[s].instruction >= 0);
        assert_int_not_equal(c.program->instructions[c.program->execution.steps[s].instruction].opcode,
                             IR_BROADCAST);
    }
    check_doubled(&c, in_order);
    module_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both),        cmocka_unit_test(test_indices),
        cmocka_unit_test(test_overwritten), cmocka_unit_test(test_copies),
        cmocka_unit_test(test_filled),      cmocka_unit_test(test_zeros_are_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
