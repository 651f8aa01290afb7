/* Instructions that simplification folds and drops, and those that it must keep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/text.h"
#include "ir/canonical/canonical.h"

/* The canonical module of a text, and the module it refers to. */
typedef struct Read {
    IrModule *module, *canonical;
} Read;

static Read read_text(const char *text) {
    AmError error = {0};
    Read read;
    if (ir_read_bytes(&read.module, "test.hlo.txt", text, (int64_t)strlen(text), &error) != AM_OK)
        fail_msg("line %d: %s", (int)error.line, error.text);
    if (ir_canonicalize(&read.canonical, read.module, &error) != AM_OK) fail_msg("%s", error.text);
    return read;
}

static void release(Read read) {
    ir_module_free(read.canonical);
    ir_module_free(read.module);
}

/* "name(operand names)" of a computation, the root with a star. */
static void describe(Text *text, const IrModule *module, int32_t computation) {
    const IrComputation *body = &module->computations[computation];
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        text_append(text, "%s%s%s(", i > body->first ? " " : "", instruction->name,
                    i == body->root ? "*" : "");
        for (int32_t k = 0; k < instruction->operand_count; k++)
            text_append(text, "%s%s", k ? " " : "", module->instructions[instruction->operands[k]].name);
        text_append_string(text, ")");
    }
}

static void assert_computation(const char *module_text, int32_t computation, const char *expected) {
    Read read = read_text(module_text);
    Text text = {0};
    describe(&text, read.canonical, computation);
    assert_string_equal(text.data, expected);
    text_free(&text);
    release(read);
}

static void assert_entry(const char *entry, const char *expected) {
    Text text = {0};
    text_append(&text, "HloModule m\n\nENTRY main {\n%s}\n", entry);
    assert_computation(text.data, 0, expected);
    text_free(&text);
}

static void dead_code_is_dropped(void **state) {
    (void)state;
    assert_entry("  x = f32[4] parameter(0)\n"
                 "  unused = f32[4] parameter(1)\n"
                 "  a = f32[4] sine(x)\n"
                 "  b = f32[4] cosine(a)\n"
                 "  ROOT y = f32[4] negate(x)\n",
                 "x() unused() y*(x)");
    /* Computations that only dead code mentions go with it. */
    Read read = read_text("HloModule m\n\nadd_up {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
                          "  ROOT c = f32[] add(a, b)\n}\n\nENTRY main {\n  x = f32[4] parameter(0)\n"
                          "  zero = f32[] constant(0)\n"
                          "  sum = f32[] reduce(x, zero), dimensions={0}, to_apply=add_up\n"
                          "  ROOT y = f32[4] negate(x)\n}\n");
    assert_int_equal(read.canonical->computation_count, 1);
    assert_int_equal(read.canonical->instruction_count, 2);
    release(read);
}

static void effects_stay(void **state) {
    (void)state;
    assert_entry("  x = f32[4] parameter(0)\n"
                 "  t = token[] after-all()\n"
                 "  told = token[] outfeed(x, t), outfeed_shape=f32[4]{0}\n"
                 "  pure = f32[4] custom-call(x), custom_call_target=\"pure\"\n"
                 "  twice = f32[4] add(x, x)\n"
                 "  loud = f32[4] custom-call(twice), custom_call_target=\"loud\", "
                 "custom_call_has_side_effect=true\n"
                 "  ROOT y = f32[4] negate(x)\n",
                 "x() t() told(x t) twice(x x) loud(twice) y*(x)");
    /* Also inside called computations. */
    assert_computation("HloModule m\n\nbody {\n  x = f32[4] parameter(0)\n  t = token[] after-all()\n"
                       "  told = token[] outfeed(x, t), outfeed_shape=f32[4]{0}\n"
                       "  ROOT y = f32[4] negate(x)\n}\n\n"
                       "forever {\n  x = f32[4] parameter(0)\n  ROOT c = pred[] constant(true)\n}\n\n"
                       "quiet {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] negate(x)\n}\n\n"
                       "ENTRY main {\n  x = f32[4] parameter(0)\n"
                       "  w = f32[4] while(x), condition=forever, body=body\n"
                       "  v = f32[4] while(x), condition=forever, body=quiet\n"
                       "  ROOT y = f32[4] negate(x)\n}\n",
                       0, "x() w(x) y*(x)");
}

static void elements_stand_for_what_was_put_in(void **state) {
    (void)state;
    assert_entry("  x = f32[4] parameter(0)\n"
                 "  y = f32[4] sine(x)\n"
                 "  inner = (f32[4], f32[4]) tuple(y, x)\n"
                 "  outer = ((f32[4], f32[4]), f32[4]) tuple(inner, x)\n"
                 "  back = (f32[4], f32[4]) get-tuple-element(outer), index=0\n"
                 "  z = f32[4] get-tuple-element(back), index=0\n"
                 "  w = f32[4] get-tuple-element(back), index=1\n"
                 "  s = f32[4] add(z, w)\n"
                 "  ROOT r = (f32[4], f32[4]) tuple(s, z)\n",
                 "x() y(x) s(y x) r*(s y)");
    /* Not through a barrier, which says that they belong together. */
    assert_entry("  x = f32[4] parameter(0)\n"
                 "  y = f32[4] sine(x)\n"
                 "  t = (f32[4], f32[4]) tuple(x, y)\n"
                 "  u = (f32[4], f32[4]) opt-barrier(t)\n"
                 "  z = f32[4] get-tuple-element(u), index=0\n"
                 "  ROOT w = f32[4] negate(z)\n",
                 "x() y(x) t(x y) u(t) z(u) w*(z)");
}

/* `operation` stands between a sine and the negation of its result; whether it stays. */
static void assert_stays(const char *operation, bool stays) {
    int shape = (int)(strchr(operation, ' ') - operation);
    Text text = {0};
    text_append(&text,
                "HloModule m\n\nENTRY main {\n"
                "  p = f32[4,6]{1,0} parameter(0)\n"
                "  i = s32[] parameter(1)\n"
                "  n = f32[] constant(0)\n"
                "  x = f32[4,6]{1,0} sine(p)\n"
                "  y = %s\n"
                "  ROOT z = %.*s negate(y)\n}\n",
                operation, shape, operation);
    Read read = read_text(text.data);
    bool found = false;
    for (int32_t k = 0; k < read.canonical->instruction_count; k++)
        found |= strcmp(read.canonical->instructions[k].name, "y") == 0;
    if (found != stays) fail_msg("%s: %s", operation, found ? "stays" : "is folded");
    release(read);
    text_free(&text);
}

static void what_changes_nothing_is_folded(void **state) {
    (void)state;
    static const char *const folded[] = {
        "f32[4,6]{1,0} copy(x)",
        "f32[4,6]{0,1} copy(x)",
        "f32[4,6]{1,0} convert(x)",
        "f32[4,6]{1,0} bitcast-convert(x)",
        "f32[4,6]{1,0} bitcast(x)",
        "f32[4,6]{1,0} reshape(x)",
        "f32[4,6]{1,0} transpose(x), dimensions={0,1}",
        "f32[4,6]{1,0} broadcast(x), dimensions={0,1}",
        "f32[4,6]{1,0} slice(x), slice={[0:4], [0:6]}",
        "f32[4,6]{1,0} pad(x, n), padding=0_0x0_0",
        "f32[4,6]{1,0} reverse(x), dimensions={}",
        "f32[4,6]{1,0} concatenate(x), dimensions={1}",
        "f32[4,6]{1,0} dynamic-slice(x, i, i), dynamic_slice_sizes={4,6}",
        "f32[4,6]{1,0} dynamic-update-slice(p, x, i, i)",
    };
    static const char *const kept[] = {
        "bf16[4,6]{1,0} convert(x)",
        "s32[4,6]{1,0} bitcast-convert(x)",
        "f32[4,6]{0,1} bitcast(x)",
        "f32[6,4]{1,0} reshape(x)",
        "f32[6,4]{1,0} transpose(x), dimensions={1,0}",
        "f32[4,6]{1,0} pad(x, n), padding=-1_1x0_0",
        "f32[4,6]{1,0} reverse(x), dimensions={0}",
        "f32[4,5]{1,0} slice(x), slice={[0:4], [0:5]}",
        "f32[4,6]{1,0} opt-barrier(x)",
        "f32[4,6]{1,0} reduce-precision(x), exponent_bits=8, mantissa_bits=23",
        "f32[4,6]{1,0} copy(x), sharding={replicated}",
        "f32[4,6]{1,0} reshape(x), control-predecessors={p}",
        "f32[4,6]{1,0} custom-call(x), custom_call_target=\"Sharding\", sharding={replicated}",
    };
    for (size_t k = 0; k < sizeof folded / sizeof *folded; k++) assert_stays(folded[k], false);
    for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) assert_stays(kept[k], true);
}

/* Square in shape, not in order. */
static void squares_keep_their_order(void **state) {
    (void)state;
    assert_entry("  x = f32[4,4]{1,0} parameter(0)\n"
                 "  y = f32[4,4]{1,0} transpose(x), dimensions={1,0}\n"
                 "  z = f32[4,4]{1,0} broadcast(y), dimensions={0,1}\n"
                 "  ROOT w = f32[4,4]{1,0} negate(z)\n",
                 "x() y(x) w*(y)");
}

/* Outputs keep their names, even if they only hand on; control dependencies stay alive. */
static void outputs_and_orders_stay(void **state) {
    (void)state;
    assert_entry("  x = f32[4]{0} parameter(0)\n"
                 "  y = f32[4]{0} copy(x)\n"
                 "  z = f32[4]{0} copy(y)\n"
                 "  ROOT t = (f32[4]{0}, f32[4]{0}) tuple(z, x)\n",
                 "x() z(x) t*(z x)");
    assert_entry("  x = f32[4]{0} parameter(0)\n  ROOT y = f32[4]{0} copy(x)\n", "x() y*(x)");
    assert_entry("  x = f32[4] parameter(0)\n"
                 "  first = f32[4] sine(x)\n"
                 "  ROOT second = f32[4] cosine(x), control-predecessors={first}\n",
                 "x() first(x) second*(x)");
}

/* Inside of computations that are kept as well. */
static void bodies_are_simplified(void **state) {
    (void)state;
    assert_computation("HloModule m\n\nadd_up {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
                       "  c = f32[] convert(b)\n  d = f32[] sine(a)\n  ROOT e = f32[] add(a, c)\n}\n\n"
                       "ENTRY main {\n  x = f32[4] parameter(0)\n  zero = f32[] constant(0)\n"
                       "  ROOT sum = f32[] reduce(x, zero), dimensions={0}, to_apply=add_up\n}\n",
                       1, "a() b() e*(a b)");
    /* A value that a loop passes to itself is not an output of the module. */
    assert_computation(
        "HloModule m\n\nbody {\n  t = (f32[4], f32[4]) parameter(0)\n"
        "  x = f32[4] get-tuple-element(t), index=0\n  y = f32[4] sine(x)\n"
        "  z = f32[4] copy(y)\n  ROOT r = (f32[4], f32[4]) tuple(z, x)\n}\n\n"
        "forever {\n  t = (f32[4], f32[4]) parameter(0)\n  ROOT c = pred[] constant(true)\n}\n\n"
        "ENTRY main {\n  t = (f32[4], f32[4]) parameter(0)\n"
        "  ROOT w = (f32[4], f32[4]) while(t), condition=forever, body=body\n}\n",
        1, "t() x(t) y(x) r*(y x)");
}

/* A reshape back, whether ones were added by a reshape or a broadcast. */
static void reshapes_back_are_folded(void **state) {
    (void)state;
    assert_entry("  x = f32[6] parameter(0)\n"
                 "  a = f32[2,3] reshape(x)\n"
                 "  b = f32[6] reshape(a)\n"
                 "  ROOT y = f32[6] negate(b)\n",
                 "x() y*(x)");
    assert_entry("  x = f32[6] parameter(0)\n"
                 "  a = f32[1,6] broadcast(x), dimensions={1}\n"
                 "  b = f32[6] reshape(a)\n"
                 "  ROOT y = f32[6] negate(b)\n",
                 "x() y*(x)");
    /* Other shapes, more elements, another order stay. */
    assert_entry("  x = f32[6] parameter(0)\n"
                 "  a = f32[2,3] reshape(x)\n"
                 "  b = f32[3,2] reshape(a)\n"
                 "  ROOT y = f32[3,2] negate(b)\n",
                 "x() a(x) b(a) y*(b)");
    assert_entry("  x = f32[3,3] parameter(0)\n"
                 "  a = f32[3,3] broadcast(x), dimensions={1,0}\n"
                 "  b = f32[9] reshape(a)\n"
                 "  c = f32[3,3] reshape(b)\n"
                 "  ROOT y = f32[3,3] negate(c)\n",
                 "x() a(x) y*(a)");
}

/* A second pass's forms of parameters after a barrier equal the first one's. */
static void forms_of_parameters_are_shared(void **state) {
    (void)state;
    assert_entry("  w = f32[4,2] parameter(0)\n"
                 "  c = bf16[4,2] convert(w)\n"
                 "  v = bf16[2,4] transpose(c), dimensions={1,0}\n"
                 "  t = (f32[4,2], bf16[2,4]) tuple(w, v)\n"
                 "  b = (f32[4,2], bf16[2,4]) opt-barrier(t)\n"
                 "  again = f32[4,2] get-tuple-element(b), index=0\n"
                 "  d = bf16[4,2] convert(again)\n"
                 "  u = bf16[2,4] transpose(d), dimensions={1,0}\n"
                 "  s = bf16[2,4] add(u, v)\n"
                 "  ROOT r = bf16[2,4] negate(s)\n",
                 "w() c(w) v(c) s(v v) r*(s)");
    /* Another type, another order, another parameter, an output, a computed value. */
    assert_entry("  w = f32[4,4] parameter(0)\n"
                 "  z = f32[4,4] parameter(1)\n"
                 "  c = bf16[4,4] convert(w)\n"
                 "  d = f16[4,4] convert(w)\n"
                 "  e = bf16[4,4] convert(z)\n"
                 "  n = f32[4,4] negate(w)\n"
                 "  m = f32[4,4] negate(w)\n"
                 "  v = f32[4,4] transpose(w), dimensions={1,0}\n"
                 "  f = bf16[4,4] convert(w)\n"
                 "  ROOT r = (bf16[4,4], f16[4,4], bf16[4,4], f32[4,4], f32[4,4], f32[4,4], bf16[4,4]) "
                 "tuple(c, d, e, n, m, v, f)\n",
                 "w() z() c(w) d(w) e(z) n(w) m(w) v(w) f(w) r*(c d e n m v f)");
    assert_entry("  w = f32[2,2,2] parameter(0)\n"
                 "  u = f32[2,2,2] transpose(w), dimensions={1,0,2}\n"
                 "  v = f32[2,2,2] transpose(w), dimensions={0,2,1}\n"
                 "  ROOT s = f32[2,2,2] add(u, v)\n",
                 "w() u(w) v(w) s*(u v)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reshapes_back_are_folded),
        cmocka_unit_test(dead_code_is_dropped),
        cmocka_unit_test(effects_stay),
        cmocka_unit_test(elements_stand_for_what_was_put_in),
        cmocka_unit_test(what_changes_nothing_is_folded),
        cmocka_unit_test(squares_keep_their_order),
        cmocka_unit_test(outputs_and_orders_stay),
        cmocka_unit_test(bodies_are_simplified),
        cmocka_unit_test(forms_of_parameters_are_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
