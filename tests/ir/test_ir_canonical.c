/* Canonical order, inlining of calls, and the hash that refers to them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "ir/canonical/canonical.h"
#include "ir/hlo.pb-c.h"

#define MODELS SOURCE_DIR "/datasets/models"

static IrModule *read_text(const char *text) {
    AmError error = {0};
    IrModule *module;
    if (ir_read_bytes(&module, "test.hlo.txt", text, (int64_t)strlen(text), &error) != AM_OK)
        fail_msg("line %d: %s", (int)error.line, error.text);
    return module;
}

static IrModule *canonical_of(const IrModule *module) {
    AmError error = {0};
    IrModule *canonical;
    if (ir_canonicalize(&canonical, module, &error) != AM_OK) fail_msg("%s", error.text);
    return canonical;
}

static void hash_file(const char *path, char hex[65]) {
    AmError error = {0};
    IrModule *module;
    if (ir_read(&module, path, &error) != AM_OK) fail_msg("%s: %s", path, error.text);
    IrModule *canonical = canonical_of(module);
    ir_hash(canonical, hex);
    ir_module_free(canonical);
    ir_module_free(module);
}

static void hash_text(const char *text, char hex[65]) {
    IrModule *module = read_text(text);
    IrModule *canonical = canonical_of(module);
    ir_hash(canonical, hex);
    assert_int_equal(strlen(hex), 64);
    ir_module_free(canonical);
    ir_module_free(module);
}

/* "name opcode(operand, ...)" of all instructions of a computation, for comparison at a glance. */
static void describe(Text *text, const IrModule *module, int32_t computation) {
    const IrComputation *body = &module->computations[computation];
    for (int32_t i = body->first; i < body->first + body->count; i++) {
        const IrInstruction *instruction = &module->instructions[i];
        text_append(text, "%s%s %s(", i == body->root ? "ROOT " : "", instruction->name,
                    instruction->opcode_name);
        for (int32_t k = 0; k < instruction->operand_count; k++)
            text_append(text, "%s%d", k ? " " : "", instruction->operands[k] - body->first);
        text_append(text, ")\n");
    }
}

static const char nested_calls[] =
    "HloModule nested\n"
    "\n"
    "add_up {\n"
    "  a = f32[] parameter(0)\n"
    "  b = f32[] parameter(1)\n"
    "  ROOT sum = f32[] add(a, b)\n"
    "}\n"
    "\n"
    "identity {\n"
    "  ROOT it = f32[4]{0} parameter(0)\n"
    "}\n"
    "\n"
    "inner {\n"
    "  x = f32[4]{0} parameter(0)\n"
    "  s = f32[4]{0} sine(x), metadata={op_name=\"sin\"}\n"
    "  same = f32[4]{0} call(x), to_apply=identity\n"
    "  ROOT n = f32[4]{0} add(s, same), metadata={op_name=\"neg\" source_file=\"inner.py\" source_line=7}\n"
    "}\n"
    "\n"
    "outer {\n"
    "  y = f32[4]{0} parameter(1)\n"
    "  z = f32[4]{0} parameter(0)\n"
    "  first = f32[4]{0} call(y), to_apply=inner, metadata={op_name=\"jit(inner)\"}\n"
    "  zero = f32[] constant(0)\n"
    "  r = f32[] reduce(first, zero), dimensions={0}, to_apply=add_up, "
    "metadata={op_name=\"jit(f)/absolute\"}\n"
    "  s = f32[4]{0} broadcast(r), dimensions={}\n"
    "  ROOT t = (f32[4]{0}, f32[4]{0}) tuple(s, z)\n"
    "}\n"
    "\n"
    "ENTRY main {\n"
    "  p = f32[4]{0} parameter(0)\n"
    "  q = f32[4]{0} parameter(1)\n"
    "  c = (f32[4]{0}, f32[4]{0}) call(p, q), to_apply=outer, "
    "metadata={op_name=\"jit(f)/jit(outer)\" source_file=\"outer.py\" source_line=3}\n"
    "  g = f32[4]{0} get-tuple-element(c), index=0\n"
    "  n = f32[4]{0} call(g), to_apply=inner\n"
    "  ROOT e = f32[4]{0} add(n, q)\n"
    "}\n";

static void calls_are_inlined(void **state) {
    (void)state;
    IrModule *module = read_text(nested_calls), *canonical = canonical_of(module);
    Text text = {0};
    describe(&text, canonical, 0);
    assert_string_equal(text.data, "p parameter()\n"
                                   "q parameter()\n"
                                   "s sine(1)\n"
                                   "n add(2 1)\n"
                                   "zero constant()\n"
                                   "r reduce(3 4)\n"
                                   "s.2 broadcast(5)\n"
                                   "s.3 sine(6)\n"
                                   "n.2 add(7 6)\n"
                                   "ROOT e add(8 1)\n");
    /* The reduction's computation stays, those that were only called are gone. */
    assert_int_equal(canonical->entry, 0);
    assert_int_equal(canonical->computation_count, 2);
    assert_string_equal(canonical->computations[1].name, "add_up");
    assert_int_equal(canonical->instructions[5].called[0], 1);
    assert_int_equal(canonical->computations[0].parameters[1], 1);
    /* Names of the calls are put in front; an absolute name and a source line of its own stay. */
    const IrInstruction *instructions = canonical->instructions;
    assert_string_equal(instructions[2].op_name, "jit(f)/jit(outer)/jit(inner)/sin");
    assert_string_equal(instructions[2].source_file, "outer.py");
    assert_int_equal(instructions[2].source_line, 3);
    assert_string_equal(instructions[3].op_name, "jit(f)/jit(outer)/jit(inner)/neg");
    assert_string_equal(instructions[3].source_file, "inner.py");
    assert_int_equal(instructions[3].source_line, 7);
    assert_string_equal(instructions[5].op_name, "jit(f)/absolute");
    assert_string_equal(instructions[6].op_name, "jit(f)/jit(outer)");
    assert_string_equal(instructions[8].op_name, "neg");
    text_free(&text);
    ir_module_free(canonical);
    ir_module_free(module);
}

/* Independent instructions keep their order in the file. */
static const char shuffled[] =
    "{\"name\": \"shuffled\", \"entryComputationName\": \"main\", \"entryComputationId\": \"1\", "
    "\"computations\": [{"
    "\"name\": \"main\", \"id\": \"1\", \"rootId\": \"5\", \"instructions\": ["
    "{\"name\": \"x\", \"opcode\": \"parameter\", \"id\": \"1\", \"shape\": {\"elementType\": \"F32\"}},"
    "{\"name\": \"b\", \"opcode\": \"negate\", \"id\": \"3\", \"operandIds\": [\"1\"], "
    "\"shape\": {\"elementType\": \"F32\"}},"
    "{\"name\": \"dead\", \"opcode\": \"sine\", \"id\": \"4\", \"operandIds\": [\"1\"], "
    "\"shape\": {\"elementType\": \"F32\"}},"
    "{\"name\": \"a\", \"opcode\": \"cosine\", \"id\": \"2\", \"operandIds\": [\"1\"], "
    "\"shape\": {\"elementType\": \"F32\"}},"
    "{\"name\": \"last\", \"opcode\": \"add\", \"id\": \"5\", \"operandIds\": [\"3\", \"2\"], "
    "\"shape\": {\"elementType\": \"F32\"}}]}]}";

static void numbered_topologically(void **state) {
    (void)state;
    IrModule *module = read_text(shuffled), *canonical = canonical_of(module);
    Text text = {0};
    describe(&text, canonical, 0);
    assert_string_equal(text.data, "x parameter()\nb negate(0)\na cosine(0)\nROOT last add(1 2)\n");
    text_free(&text);
    ir_module_free(canonical);
    ir_module_free(module);
}

/* Reading or canonicalizing must refuse it; neither may hang or crash. */
static void assert_refused(const char *text) {
    AmError error = {0};
    IrModule *module = NULL, *canonical = NULL;
    AmStatus status = ir_read_bytes(&module, "test", text, (int64_t)strlen(text), &error);
    if (status == AM_OK) status = ir_canonicalize(&canonical, module, &error);
    assert_int_equal(status, AM_ERROR_INPUT);
    assert_null(canonical);
    assert_true(strlen(error.text) > 0);
    ir_module_free(module);
}

static void cycles_are_refused(void **state) {
    (void)state;
    static const char operands_in_a_circle[] =
        "{\"name\": \"m\", \"entryComputationName\": \"main\", \"entryComputationId\": \"1\", "
        "\"computations\": [{"
        "\"name\": \"main\", \"id\": \"1\", \"rootId\": \"1\", \"instructions\": ["
        "{\"name\": \"a\", \"opcode\": \"negate\", \"id\": \"1\", \"operandIds\": [\"2\"], "
        "\"shape\": {\"elementType\": \"F32\"}},"
        "{\"name\": \"b\", \"opcode\": \"negate\", \"id\": \"2\", \"operandIds\": [\"1\"], "
        "\"shape\": {\"elementType\": \"F32\"}}]}]}";
    static const char calls_itself[] =
        "{\"name\": \"m\", \"entryComputationName\": \"main\", \"entryComputationId\": \"1\", "
        "\"computations\": [{"
        "\"name\": \"main\", \"id\": \"1\", \"rootId\": \"2\", \"instructions\": ["
        "{\"name\": \"x\", \"opcode\": \"parameter\", \"id\": \"1\", \"shape\": {\"elementType\": \"F32\"}},"
        "{\"name\": \"c\", \"opcode\": \"call\", \"id\": \"2\", \"operandIds\": [\"1\"], "
        "\"calledComputationIds\": [\"1\"], \"shape\": {\"elementType\": \"F32\"}}]}]}";
    assert_refused(operands_in_a_circle);
    assert_refused(calls_itself);
}

/* Forty computations that each call the one before twice: 2^40 instructions. */
static void expansion_is_bounded(void **state) {
    (void)state;
    Text text = {0};
    text_append(&text, "HloModule bomb\n\nf0 {\n  x = f32[] parameter(0)\n  ROOT y = f32[] negate(x)\n}\n");
    for (int level = 1; level <= 40; level++)
        text_append(&text,
                    "\nf%d {\n  x = f32[] parameter(0)\n  y = f32[] call(x), to_apply=f%d\n"
                    "  ROOT z = f32[] call(y), to_apply=f%d\n}\n",
                    level, level - 1, level - 1);
    text_append(&text,
                "\nENTRY main {\n  x = f32[] parameter(0)\n  ROOT y = f32[] call(x), to_apply=f40\n}\n");
    assert_refused(text.data);
    text_free(&text);
}

static void one_hash_in_every_encoding(void **state) {
    (void)state;
    static const char *const models[] = {"mlp_tiny", "t5_tiny"};
    static const char *const files[] = {"model.hlo.txt.zst", "model.metadata.hlo.txt.zst"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char path[512], expected[65], hex[65];
        AmError error = {0};
        IrModule *module;
        snprintf(path, sizeof path, MODELS "/%s/model.hlo.pb", models[m]);
        hash_file(path, expected);
        assert_int_equal(ir_read(&module, path, &error), AM_OK);
        for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
            snprintf(path, sizeof path, MODELS "/%s/%s", models[m], files[f]);
            hash_file(path, hex);
            assert_string_equal(hex, expected);
        }
        static const char *const suffixes[] = {"json", "txt.gz", "pb.zst"};
        for (size_t s = 0; s < sizeof suffixes / sizeof *suffixes; s++) {
            snprintf(path, sizeof path, "/tmp/automap_test_canonical.%d.hlo.%s", (int)getpid(), suffixes[s]);
            assert_int_equal(ir_write(module, path, &error), AM_OK);
            hash_file(path, hex);
            remove(path);
            assert_string_equal(hex, expected);
        }
        ir_module_free(module);
    }
}

#define SMALL(header, operator, literal, dimensions, result)                                   \
    "HloModule m" header "\n\ncombine {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n" \
    "  ROOT c = f32[] "                                                                        \
    operator"(a, b)\n}\n\nENTRY main {\n  p = f32[3,3]{1,0} parameter(0)\n"                    \
            "  q = f32[3,3]{1,0} parameter(1)\n  k = f32[] constant(" literal ")\n"            \
            "  r = f32[3]{0} reduce(p, k), dimensions={" dimensions "}, to_apply=combine\n"    \
            "  ROOT t = (f32[3,3]{1,0}, f32[3]{0}) tuple(" result ", r)\n}\n"

static void hash_sees_what_is_computed(void **state) {
    (void)state;
    static const char plain[] = SMALL("", "add", "0", "0", "p");
    static const char *const different[] = {
        SMALL("", "maximum", "0", "0", "p"),
        SMALL("", "add", "1", "0", "p"),
        SMALL("", "add", "0", "1", "p"),
        SMALL("", "add", "0", "0", "q"),
        SMALL(", input_output_alias={ {0}: (0, {}, may-alias) }", "add", "0", "0", "p"),
        SMALL(", input_output_alias={ {0}: (1, {}, may-alias) }", "add", "0", "0", "p"),
    };
    char hex[65], others[6][65];
    hash_text(plain, hex);
    for (int i = 0; i < 6; i++) {
        hash_text(different[i], others[i]);
        assert_string_not_equal(hex, others[i]);
        for (int k = 0; k < i; k++) assert_string_not_equal(others[i], others[k]);
    }
    /* Other names, layouts and metadata, and the computation called instead of written out. */
    static const char same[] =
        "HloModule other\n\nbigger {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n"
        "  ROOT z = f32[] maximum(x, y)\n}\n\nsmaller {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n"
        "  ROOT z = f32[] add(x, y), metadata={op_name=\"plus\"}\n}\n\n"
        "body {\n  u = f32[3,3]{0,1} parameter(0)\n  zero = f32[] constant(0)\n"
        "  ROOT sums = f32[3]{0} reduce(u, zero), dimensions={0}, to_apply=smaller\n}\n\n"
        "ENTRY start {\n  first = f32[3,3]{0,1} parameter(0)\n  second = f32[3,3]{1,0} parameter(1)\n"
        "  sums = f32[3]{0} call(first), to_apply=body\n"
        "  ROOT both = (f32[3,3]{0,1}, f32[3]{0}) tuple(first, sums)\n}\n";
    char renamed[65];
    hash_text(same, renamed);
    assert_string_equal(hex, renamed);
}

/* A gather of [rows] and labels, and one of [rows] and columns where the rows of the operand are more. */
#define GATHER_OF_ROWS(rows)                                                                             \
    "HloModule rows\n\nENTRY main {\n  x = f32[" rows ",8] parameter(0)\n  y = s32[6] parameter(1)\n"    \
    "  zero = s32[] constant(0)\n  zeros = s32[6] broadcast(zero), dimensions={}\n"                      \
    "  many = s32[] constant(" rows ")\n  shift = s32[6] broadcast(many), dimensions={}\n"               \
    "  count = s32[6] iota(), iota_dimension=0\n  below = pred[6] compare(count, zeros), direction=LT\n" \
    "  after = s32[6] add(count, shift)\n  row = s32[6] select(below, after, count)\n"                   \
    "  a = s32[6,1] reshape(row)\n  b = s32[6,1] reshape(y)\n"                                           \
    "  index = s32[6,2] concatenate(a, b), dimensions={1}\n"                                             \
    "  ROOT found = f32[6] gather(x, index), offset_dims={}, collapsed_slice_dims={0,1}, "               \
    "start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}\n}\n"

/* Rows that an index counts become a batching dimension, if each of them has one index. */
static void counted_rows_are_batched(void **state) {
    (void)state;
    static const char *const texts[] = {GATHER_OF_ROWS("6"), GATHER_OF_ROWS("7")};
    for (int32_t k = 0; k < 2; k++) {
        IrModule *module = read_text(texts[k]), *canonical = canonical_of(module);
        const IrInstruction *found = &canonical->instructions[canonical->computations[0].root];
        const IrGather *gather = found->attributes->gather;
        assert_int_equal(gather->batching_count, k == 0);
        assert_int_equal(gather->index_map_count, k == 0 ? 1 : 2);
        assert_int_equal(gather->collapsed_count, k == 0 ? 1 : 2);
        assert_int_equal(canonical->instructions[found->operands[1]].shape.dimensions[1], k == 0 ? 1 : 2);
        assert_int_equal(found->message->gather_dimension_numbers->n_operand_batching_dims, k == 0);
        if (k == 0) {
            assert_int_equal(gather->operand_batching[0], 0);
            assert_int_equal(gather->indices_batching[0], 0);
            assert_int_equal(gather->start_index_map[0], 1);
            assert_int_equal(gather->collapsed_dimensions[0], 1);
        }
        ir_module_free(canonical);
        ir_module_free(module);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_inlined),          cmocka_unit_test(numbered_topologically),
        cmocka_unit_test(cycles_are_refused),         cmocka_unit_test(expansion_is_bounded),
        cmocka_unit_test(one_hash_in_every_encoding), cmocka_unit_test(hash_sees_what_is_computed),
        cmocka_unit_test(counted_rows_are_batched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
