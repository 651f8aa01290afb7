/* Trip counts of loops made by hand and by JAX, and the work inside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "ir/analysis/loops.h"
#include "ir/canonical/canonical.h"

typedef struct Read {
    IrModule *module, *canonical;
} Read;

static Read canonicalize(IrModule *module) {
    AmError error = {0};
    Read read = {.module = module};
    if (ir_canonicalize(&read.canonical, module, &error) != AM_OK) fail_msg("%s", error.text);
    return read;
}

static Read read_text(const char *text) {
    AmError error = {0};
    IrModule *module;
    if (ir_read_bytes(&module, "test.hlo.txt", text, (int64_t)strlen(text), &error) != AM_OK)
        fail_msg("line %d: %s", (int)error.line, error.text);
    return canonicalize(module);
}

/* A module that JAX exported, in tests/data/text. */
static Read read_export(const char *name) {
    AmError error = {0};
    IrModule *module;
    char path[512];
    snprintf(path, sizeof path, SOURCE_DIR "/tests/data/text/%s.hlo.txt", name);
    if (ir_read(&module, path, &error) != AM_OK) fail_msg("%s: %s", path, error.text);
    return canonicalize(module);
}

static void release(Read read) {
    ir_module_free(read.canonical);
    ir_module_free(read.module);
}

/* A loop over (type i, type bound, f32[4] x) whose body hands on the bound. */
typedef struct CountedLoop {
    const char *type, *start, *bound;
    const char *condition; /* of i and n, may use c = 3; defines `go` */
    const char *next;      /* of i and n, may use c = 3; defines `next` */
    int64_t trips;
} CountedLoop;

static Read read_counted(const CountedLoop *loop) {
    Text text = {0};
    const char *t = loop->type;
    text_append(&text,
                "HloModule counted\n\n"
                "body {\n"
                "  p = (%s[], %s[], f32[4]{0}) parameter(0)\n"
                "  i = %s[] get-tuple-element(p), index=0\n"
                "  n = %s[] get-tuple-element(p), index=1\n"
                "  x = f32[4]{0} get-tuple-element(p), index=2\n"
                "  c = %s[] constant(3)\n"
                "  %s\n"
                "  y = f32[4]{0} sine(x)\n"
                "  ROOT r = (%s[], %s[], f32[4]{0}) tuple(next, n, y)\n"
                "}\n\n",
                t, t, t, t, t, loop->next, t, t);
    text_append(&text,
                "condition {\n"
                "  p = (%s[], %s[], f32[4]{0}) parameter(0)\n"
                "  i = %s[] get-tuple-element(p), index=0\n"
                "  n = %s[] get-tuple-element(p), index=1\n"
                "  c = %s[] constant(3)\n"
                "  ROOT %s\n"
                "}\n\n",
                t, t, t, t, t, loop->condition);
    text_append(&text,
                "ENTRY main {\n"
                "  x = f32[4]{0} parameter(0)\n"
                "  start = %s[] constant(%s)\n"
                "  bound = %s[] constant(%s)\n"
                "  carry = (%s[], %s[], f32[4]{0}) tuple(start, bound, x)\n"
                "  loop = (%s[], %s[], f32[4]{0}) while(carry), condition=condition, body=body, "
                "metadata={op_name=\"jit(f)/while\" source_file=\"model.py\" source_line=12}\n"
                "  ROOT y = f32[4]{0} get-tuple-element(loop), index=2\n"
                "}\n",
                t, loop->start, t, loop->bound, t, t, t, t);
    Read read = read_text(text.data);
    text_free(&text);
    return read;
}

#define UP      "next = s32[] add(i, c)"
#define DOWN    "next = s32[] subtract(i, c)"
#define LT      "go = pred[] compare(i, n), direction=LT"
#define UNKNOWN IR_TRIPS_UNKNOWN

static const CountedLoop counted[] = {
    {"s32", "0", "9", LT, UP, 3},
    {"s32", "0", "10", LT, UP, 4},
    {"s32", "10", "10", LT, UP, 0},
    {"s32", "-5", "10", "go = pred[] compare(i, n), direction=LE", UP, 6},
    {"s32", "10", "0", "go = pred[] compare(i, n), direction=GT", DOWN, 4},
    {"s32", "9", "0", "go = pred[] compare(i, n), direction=GE", DOWN, 4},
    {"s32", "0", "9", "go = pred[] compare(i, n), direction=NE", UP, 3},
    {"s32", "9", "9", "go = pred[] compare(i, n), direction=EQ", UP, 1},
    {"s32", "8", "9", "go = pred[] compare(i, n), direction=EQ", UP, 0},
    {"s32", "0", "9", "go = pred[] compare(n, i), direction=GT", UP, 3},
    {"s32", "0", "9", "go = pred[] compare(i, c), direction=LT", "next = s32[] add(n, i)", 1},
    {"s32", "0", "2", "go = pred[] compare(i, c), direction=LT", "next = s32[] add(n, i)", 2},
    {"u32", "0", "9", LT, "next = u32[] add(i, c)", 3},
    {"s8", "0", "127", LT, "next = s8[] add(i, c)", UNKNOWN}, /* wraps at 129 */
    {"s8", "0", "124", LT, "next = s8[] add(i, c)", 42},
    {"s32", "0", "10", "go = pred[] compare(i, n), direction=NE", UP, UNKNOWN}, /* steps over */
    {"s32", "0", "10", LT, DOWN, UNKNOWN},                                      /* the wrong way */
    {"s32", "0", "10", LT, "next = s32[] multiply(i, c)", UNKNOWN},             /* geometric */
    {"s32", "0", "10", "go = pred[] compare(n, n), direction=EQ", UP, UNKNOWN}, /* for ever */
    {"s32", "0", "10", "go = pred[] compare(n, c), direction=LT", UP, 0},       /* never */
    {"s32", "0", "10", "go = pred[] compare(i, n), direction=LT", "next = s32[] copy(i)", UNKNOWN},
    {"f32", "0", "10", "go = pred[] compare(i, n), direction=LT", "next = f32[] add(i, c)", UNKNOWN},
};

static void counters_give_trips(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof counted / sizeof *counted; k++) {
        Read read = read_counted(&counted[k]);
        assert_int_equal(read.canonical->loops->loop_count, 1);
        int64_t trips = read.canonical->loops->loops[0].trips;
        if (trips != counted[k].trips) fail_msg("row %d: %d trips", (int)k, (int)trips);
        assert_int_equal(read.canonical->warnings.count, trips < 0);
        release(read);
    }
}

/* A condition after arithmetic, a widening conversion and a fusion, as in compiled modules. */
static void conditions_may_be_computed(void **state) {
    (void)state;
    static const char text[] = "HloModule m\n\n"
                               "wrapped {\n"
                               "  b = s64[] parameter(1)\n"
                               "  a = s64[] parameter(0)\n"
                               "  ROOT lt = pred[] compare(a, b), direction=LT\n"
                               "}\n\n"
                               "next {\n"
                               "  a = s32[] parameter(0)\n"
                               "  two = s32[] constant(2)\n"
                               "  ROOT sum = s32[] add(a, two)\n"
                               "}\n\n"
                               "body {\n"
                               "  p = (s32[]) parameter(0)\n"
                               "  i = s32[] get-tuple-element(p), index=0\n"
                               "  j = s32[] fusion(i), kind=kLoop, calls=next\n"
                               "  ROOT r = (s32[]) tuple(j)\n"
                               "}\n\n"
                               "condition {\n"
                               "  p = (s32[]) parameter(0)\n"
                               "  i = s32[] get-tuple-element(p), index=0\n"
                               "  wide = s64[] convert(i)\n"
                               "  three = s64[] constant(3)\n"
                               "  hundred = s64[] constant(100)\n"
                               "  tripled = s64[] multiply(wide, three)\n"
                               "  ROOT f = pred[] fusion(tripled, hundred), kind=kLoop, calls=wrapped\n"
                               "}\n\n"
                               "ENTRY main {\n"
                               "  zero = s32[] constant(0)\n"
                               "  t = (s32[]) tuple(zero)\n"
                               "  ROOT loop = (s32[]) while(t), condition=condition, body=body\n"
                               "}\n";
    Read read = read_text(text);
    assert_int_equal(read.canonical->loops->loops[0].trips, 17); /* 3i < 100 for i = 0, 2, .. 32 */
    release(read);
}

static void unknown_loops_are_named(void **state) {
    (void)state;
    const CountedLoop loop = {"s32", "0", "10", LT, DOWN, UNKNOWN};
    Read read = read_counted(&loop);
    assert_int_equal(read.canonical->warnings.count, 1);
    assert_string_equal(read.canonical->warnings.texts[0],
                        "loop \"jit(f)/while\" (model.py:12): its trip count is unknown; "
                        "it is priced as one trip (expected a counter with a constant step and limit)");
    assert_int_equal(ir_loop_trips(read.canonical, 0), UNKNOWN);
    release(read);
}

/* lax.scan over six layers with a jit'ed body and its gradient. */
static void jax_scan_is_counted(void **state) {
    (void)state;
    Read read = read_export("scan_layers");
    const IrLoops *loops = read.canonical->loops;
    assert_int_equal(loops->loop_count, 2);
    assert_int_equal(loops->loops[0].trips, 6);
    assert_int_equal(loops->loops[1].trips, 6);
    assert_int_equal(read.canonical->warnings.count, 0);
    release(read);
}

static void nested_loops_multiply(void **state) {
    (void)state;
    Read read = read_export("fori_nested");
    const IrLoops *loops = read.canonical->loops;
    assert_int_equal(loops->loop_count, 2);
    assert_int_equal(loops->loops[0].trips * loops->loops[1].trips, 20);
    release(read);
}

static void bounds_may_be_carried(void **state) {
    (void)state;
    Read read = read_export("while_carried");
    assert_int_equal(read.canonical->loops->loops[0].trips, 9);
    release(read);
    read = read_export("fori_traced"); /* its bound is an argument */
    assert_int_equal(read.canonical->loops->loops[0].trips, UNKNOWN);
    release(read);
}

/* Each of 100 bodies runs the one before twice, in loops of 10^15 trips: each loop
 * is counted once. */
static void deep_nests_are_counted(void **state) {
    (void)state;
    Text text = {0};
    text_append_string(&text, "HloModule deep\n\n"
                              "condition {\n"
                              "  p = (s64[]) parameter(0)\n"
                              "  i = s64[] get-tuple-element(p), index=0\n"
                              "  n = s64[] constant(1000000000000000)\n"
                              "  ROOT go = pred[] compare(i, n), direction=LT\n}\n\n");
    for (int32_t d = 0; d < 100; d++) {
        text_append(&text,
                    "body%d {\n"
                    "  p = (s64[]) parameter(0)\n"
                    "  i = s64[] get-tuple-element(p), index=0\n"
                    "  one = s64[] constant(1)\n"
                    "  zero = s64[] constant(0)\n"
                    "  t = (s64[]) tuple(zero)\n",
                    d);
        for (int32_t k = 0; k < 2 && d > 0; k++)
            text_append(&text, "  w%d = (s64[]) while(t), condition=condition, body=body%d\n", k, d - 1);
        text_append(&text, "  j = s64[] add(i, one)%s\n  ROOT r = (s64[]) tuple(j)\n}\n\n",
                    d > 0 ? ", control-predecessors={w0, w1}" : "");
    }
    text_append_string(&text, "ENTRY main {\n"
                              "  zero = s64[] constant(0)\n"
                              "  t = (s64[]) tuple(zero)\n"
                              "  ROOT w = (s64[]) while(t), condition=condition, body=body99\n}\n");
    Read read = read_text(text.data);
    text_free(&text);
    const IrLoops *loops = read.canonical->loops;
    assert_int_equal(loops->loop_count, 199);
    assert_int_equal(loops->loops[198].trips, INT64_C(1000000000000000));
    release(read);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_give_trips),     cmocka_unit_test(conditions_may_be_computed),
        cmocka_unit_test(unknown_loops_are_named), cmocka_unit_test(jax_scan_is_counted),
        cmocka_unit_test(nested_loops_multiply),   cmocka_unit_test(bounds_may_be_carried),
        cmocka_unit_test(deep_nests_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
