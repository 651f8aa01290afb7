/* HLO text: reading, printing and reading again gives equal bytes; both spellings give one message;
 * values keep their bits; errors name the position; hostile text is refused without harm. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/files/file.h"
#include "base/float_format.h"
#include "base/system/clock.h"
#include "ir/canonical/canonical.h"
#include "ir/text/hlo_text.h"
#include "tests/support/sample.h"

typedef struct Packed {
    uint8_t *data;
    size_t length;
} Packed;

static Packed pack(const Hlo__HloModuleProto *message) {
    Packed packed = {.length = protobuf_c_message_get_packed_size(&message->base)};
    packed.data = malloc(packed.length);
    protobuf_c_message_pack(&message->base, packed.data);
    return packed;
}

static void check_equal(const Hlo__HloModuleProto *a, const Hlo__HloModuleProto *b) {
    Packed left = pack(a), right = pack(b);
    assert_int_equal(left.length, right.length);
    assert_memory_equal(left.data, right.data, left.length);
    free(left.data);
    free(right.data);
}

static Hlo__HloModuleProto *parse(Arena *arena, AmWarnings *warnings, const char *text, size_t length) {
    AmError error = {0};
    Hlo__HloModuleProto *message = NULL;
    AmStatus status = ir_parse_text(&message, arena, warnings, "test", text, (int64_t)length, &error);
    if (status != AM_OK) {
        fail_msg("%lld:%lld: %s: %s", (long long)error.line, (long long)error.column, error.text,
                 error.excerpt);
    }
    return message;
}

static Hlo__HloModuleProto *parse_file(Arena *arena, AmWarnings *warnings, const char *name) {
    char path[512];
    AmError error = {0};
    FileBytes bytes;
    snprintf(path, sizeof path, SOURCE_DIR "/tests/data/text/%s.hlo.txt", name);
    assert_int_equal(file_read(&bytes, path, &error), AM_OK);
    Hlo__HloModuleProto *message = parse(arena, warnings, bytes.data, (size_t)bytes.length);
    file_release(&bytes);
    return message;
}

static void check_round_trip(const char *name) {
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    AmError error = {0};
    Text text = {0};
    const Hlo__HloModuleProto *first = parse_file(&arena, &warnings, name);
    assert_int_equal(warnings.count, 0);
    assert_int_equal(ir_print_text(&text, first, &error), AM_OK);
    check_equal(first, parse(&arena, &warnings, text.data, text.length));
    assert_int_equal(warnings.count, 0);
    text_free(&text);
    arena_free(&arena);
}

static void test_round_trips(void **state) {
    (void)state;
    check_round_trip("attributes");
    check_round_trip("old_style");
    check_round_trip("literals");
}

static void test_spellings_agree(void **state) {
    (void)state;
    Arena arena = {0};
    check_equal(parse_file(&arena, NULL, "old_style"), parse_file(&arena, NULL, "new_style"));
    arena_free(&arena);
}

static const Hlo__HloInstructionProto *find(const Hlo__HloModuleProto *module, const char *name) {
    for (size_t c = 0; c < module->n_computations; c++) {
        for (size_t i = 0; i < module->computations[c]->n_instructions; i++) {
            const Hlo__HloInstructionProto *instruction = module->computations[c]->instructions[i];
            if (strcmp(instruction->name, name) == 0) return instruction;
        }
    }
    fail_msg("no instruction %s", name);
    return NULL;
}

static void test_attributes_land_in_their_fields(void **state) {
    (void)state;
    Arena arena = {0};
    const Hlo__HloModuleProto *module = parse_file(&arena, NULL, "attributes");
    assert_string_equal(module->name, "attributes");
    assert_string_equal(module->entry_computation_name, "main");
    assert_int_equal(module->input_output_alias->n_entries, 2);
    assert_int_equal(module->input_output_alias->entries[1]->kind, HLO__KIND__MUST_ALIAS);
    assert_int_equal(module->stack_frame_index->stack_frames[1]->parent_frame_id, 1);
    assert_int_equal(module->stack_frame_index->file_locations[0]->end_line, 25);
    const Hlo__HloInstructionProto *dilated = find(module, "dilated");
    assert_int_equal(dilated->window->n_dimensions, 2);
    assert_int_equal(dilated->window->dimensions[1]->padding_low, -1);
    assert_int_equal(dilated->window->dimensions[1]->base_dilation, 2);
    assert_int_equal(dilated->window->dimensions[1]->window_dilation, 1);
    assert_int_equal(dilated->convolution_dimension_numbers->kernel_output_feature_dimension, 3);
    assert_int_equal(dilated->convolution_dimension_numbers->input_spatial_dimensions[1], 2);
    const Hlo__HloInstructionProto *slice = find(module, "slice");
    assert_int_equal(slice->slice_dimensions[0]->stride, 2);
    assert_int_equal(slice->slice_dimensions[1]->start, 1);
    assert_int_equal(slice->slice_dimensions[1]->stride, 1);
    const Hlo__HloInstructionProto *loop = find(module, "loop");
    assert_string_equal(module->computations[loop->called_computation_ids[0] - 1]->name, "body");
    assert_string_equal(module->computations[loop->called_computation_ids[1] - 1]->name, "condition");
    assert_int_equal(find(module, "kernel")->sharding->iota_transpose_perm[0], 1);
    assert_int_equal(find(module, "tiled")->shape->layout->tiles[1]->dimensions[0], 2);
    assert_int_equal(find(module, "pad")->padding_config->dimensions[1]->interior_padding, 1);
    assert_int_equal(find(module, "scatter")->scatter_dimension_numbers->index_vector_dim, 1);
    assert_string_equal(find(module, "ge")->comparison_type, "FLOAT");
    assert_string_equal(find(module, "c.3")->comparison_type, "SIGNED");
    assert_string_equal(find(module, "lt")->comparison_type, "TOTALORDER");
    assert_memory_equal(find(module, "custom")->backend_config.data, "{uplo = 76 : ui8}", 17);
    assert_string_equal(find(module, "custom")->custom_call_target, "solve\n");
    assert_true(
        module->computations[find(module, "fusion")->called_computation_ids[0] - 1]->is_fusion_computation);
    arena_free(&arena);
}

static void test_literal_values(void **state) {
    (void)state;
    Arena arena = {0};
    const Hlo__HloModuleProto *module = parse_file(&arena, NULL, "literals");
    const float values[] = {0.1f, -0.0f, 1e-45f, 3.40282347e+38f};
    assert_memory_equal(find(module, "c.11")->literal->f32s, values, sizeof values);
    uint32_t bits[9];
    memcpy(bits, find(module, "c.11")->literal->f32s, sizeof bits);
    assert_int_equal(bits[6], 0x7FC00000);
    assert_int_equal(bits[7], 0xFFC00000);
    assert_int_equal(bits[8], 0x7F800123);
    assert_memory_equal(find(module, "c.9")->literal->s4s.data, "\x08\x07\x0F\x00", 4);
    assert_memory_equal(find(module, "c.13")->literal->f16s.data, "\x19\x14\xFF\x7B\x01\x00\x00\x7C\x00\x7E",
                        10);
    assert_memory_equal(find(module, "c.15")->literal->f8e4m3fns.data, "\x2A\x7E\x80\x7F", 4);
    assert_memory_equal(find(module, "c.16")->literal->f8e5m2s.data, "\x7B\x01\x7C\x7E", 4);
    assert_true(find(module, "c.8")->literal->u64s[0] == UINT64_MAX);
    assert_true(find(module, "c.7")->literal->s64s[0] == INT64_MIN);
    assert_int_equal(find(module, "c.5")->literal->s32s[2], 3);
    assert_int_equal(find(module, "c.24")->literal->n_f32s, 0);
    assert_int_equal(find(module, "c.20")->literal->n_c64s, 4);
    arena_free(&arena);
}

/* XLA itself prints "-0" but reads it as 0; ours comes back either way. */
static void test_negative_zero(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Text text = {0};
    const char *source = "HloModule m\nENTRY e {\n  ROOT c = f32[] constant(-0)\n}\n";
    const Hlo__HloModuleProto *module = parse(&arena, NULL, source, strlen(source));
    assert_true(signbit(find(module, "c")->literal->f32s[0]));
    assert_int_equal(ir_print_text(&text, module, &error), AM_OK);
    assert_non_null(strstr(text.data, "constant(-0.0)"));
    text_free(&text);
    arena_free(&arena);
}

/* A literal whose own layout is column-major is printed in logical order. */
static void test_literal_layout(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Text text = {0};
    const char *source = "HloModule m\nENTRY e {\n  ROOT c = s32[2,3] constant({ "
                         "{1, 2, 3}, {4, 5, 6} })\n}\n";
    Hlo__HloModuleProto *module = parse(&arena, NULL, source, strlen(source));
    Hlo__LiteralProto *literal = module->computations[0]->instructions[0]->literal;
    literal->shape->layout->minor_to_major[0] = 0;
    literal->shape->layout->minor_to_major[1] = 1;
    assert_int_equal(ir_print_text(&text, module, &error), AM_OK);
    assert_non_null(strstr(text.data, "constant({ {1, 3, 5}, {2, 4, 6} })"));
    text_free(&text);
    arena_free(&arena);
}

static void test_every_code_of_small_floats_comes_back(void **state) {
    (void)state;
    static const Dtype types[] = {DTYPE_F16,        DTYPE_BF16,      DTYPE_F8E5M2,        DTYPE_F8E4M3,
                                  DTYPE_F8E3M4,     DTYPE_F8E4M3FN,  DTYPE_F8E4M3B11FNUZ, DTYPE_F8E5M2FNUZ,
                                  DTYPE_F8E4M3FNUZ, DTYPE_F8E8M0FNU, DTYPE_F4E2M1FN};
    Arena arena = {0};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (uint64_t code = 0; code < (uint64_t)1 << dtype_bits(types[t]); code++) {
            Text text = {0};
            double value;
            uint64_t payload, again;
            ir_float_write(&text, types[t], code);
            IrScanner scanner = {"test", text.data, (int64_t)text.length, 0, &arena, NULL, NULL, 0};
            assert_int_equal(ir_scan_real(&scanner, &value, &payload), AM_OK);
            assert_int_equal(scanner.at, scanner.length);
            assert_true(float_format_encode(types[t], value, payload, &again));
            if (again != code)
                fail_msg("%s: %s is %llx", dtype_name(types[t]), text.data, (unsigned long long)code);
            text_free(&text);
        }
    }
    arena_free(&arena);
}

static void test_rounding_of_small_floats(void **state) {
    (void)state;
    uint64_t bits;
    assert_true(float_format_encode(DTYPE_F8E4M3FN, 17, 0, &bits)); /* a tie between 16 and 18: to even */
    assert_int_equal(bits, 0x58);
    assert_true(float_format_encode(DTYPE_F8E4M3FN, 19, 0, &bits));
    assert_int_equal(bits, 0x5A);
    assert_true(float_format_encode(DTYPE_F16, 65519, 0, &bits)); /* rounds down to the largest */
    assert_int_equal(bits, 0x7BFF);
    assert_false(float_format_encode(DTYPE_F16, 65520, 0, &bits)); /* would round up past it */
    assert_false(float_format_encode(DTYPE_F8E4M3FN, 1e9, 0, &bits));
}

typedef struct BadText {
    const char *text;
    int line, column;
    const char *message;
} BadText;

#define MAIN "HloModule m\nENTRY e {\n  p = f32[2] parameter(0)\n"

static const BadText BAD_TEXTS[] = {
    {"HloModule m\n", 2, 1, "expected a computation"},
    {MAIN "  ROOT a = f32[2] add(p, q)\n}\n", 4, 26,
     "no instruction 'q' above this line in this computation"},
    {MAIN "  ROOT a = f32[2] paramter(1)\n}\n", 4, 28,
     "the opcode 'paramter' is unknown; did you mean parameter?"},
    {MAIN "  ROOT a = f33[2] add(p, p)\n}\n", 4, 12, "unknown element type 'f33'"},
    {MAIN "  ROOT a = f32[2] negate(p\n}\n", 5, 1, "expected ')'"},
    {MAIN "  ROOT a = f32[2]{1} negate(p)\n}\n", 4, 18, "not a permutation"},
    {MAIN "  ROOT a = f32[-2] negate(p)\n}\n", 4, 16, "negative"},
    {MAIN "  ROOT a = f32[99999999999999999999] negate(p)\n}\n", 4, 16, "64 bits"},
    {MAIN "  ROOT a = bitcast(p)\n}\n", 4, 12, "expected the shape"},
    {MAIN "  p = f32[2] negate(p)\n}\n", 4, 3, "a second instruction"},
    {MAIN "  ROOT a = f32[2] map(p), to_apply=f\n}\n", 4, 36, "no computation 'f'"},
    {MAIN "  ROOT a = f32[2] constant({1})\n}\n", 4, 30, "expected 2 values"},
    {MAIN "  ROOT a = f32[2] constant({1, 2, 3})\n}\n", 4, 33, "expected '}'"},
    {MAIN "  a = f32[4096,2048] constant(1)\n  ROOT b = f32[4096,2049] constant(1)\n}\n", 5, 36,
     "have more than 67108864 bytes"},
    {MAIN "  ROOT a = s8[] constant(128)\n}\n", 4, 26, "out of range of s8"},
    {MAIN "  ROOT a = s1[] constant(1)\n}\n", 4, 26, "out of range of s1"},
    {MAIN "  ROOT a = u8[] constant(-1)\n}\n", 4, 26, "out of range of u8"},
    {MAIN "  ROOT a = f32[] constant(1e39)\n}\n", 4, 27, "out of range of f32"},
    {MAIN "  ROOT a = f32[] constant(one)\n}\n", 4, 27, "expected a number"},
    {MAIN "  ROOT a = token[] constant(1)\n}\n", 4, 29, "cannot have this type"},
    {MAIN "  ROOT a = f32[2] negate(p), metadata={op_name=\"x}\n}\n", 4, 48, "does not end"},
    {MAIN "  ROOT a = f32[2] negate(p), backend_config={{}\n", 4, 45, "never closed"},
    {MAIN "  ROOT a = f32[2] negate(p), unheard_of={[(\n}\n", 4, 41, "never closed"},
    {MAIN "  ROOT a = f32[2] convolution(p, p), dim_labels=bb_io->bf\n}\n", 4, 50, "twice"},
    {MAIN "  ROOT a = f32[2] convolution(p, p), dim_labels=b1f_io->bf\n}\n", 4, 49, "expected the labels"},
    {MAIN "  ROOT a = f32[2] negate(p), sharding={devices=[2]0,1 around}\n}\n", 4, 55, "part of a sharding"},
    {MAIN "  ROOT a = f32[2] while(p), condition=e\n}\n", 4, 39, "no computation 'e'"},
    {MAIN "  q = f32[2] parameter(2)\n}\n", 2, 1, "not numbered"},
    {MAIN "  ROOT a = f32[2] negate(p)\n  ROOT b = f32[2] negate(p)\n}\n", 5, 3, "a second ROOT"},
    {MAIN "}\nENTRY f {\n  p = f32[2] parameter(0)\n}\n", 5, 1, "a second ENTRY"},
    {MAIN, 4, 1, "expected an instruction"},
    {"HloModule m\nENTRY e {\n}\n", 2, 1, "without instructions"},
    {"HloModule m, input_output_alias={ {0}: (0, {}, can-alias) }\n", 1, 48, "may-alias"},
};

static void test_errors_name_the_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof BAD_TEXTS / sizeof BAD_TEXTS[0]; i++) {
        const BadText *bad = &BAD_TEXTS[i];
        Arena arena = {0};
        AmError error = {0};
        Hlo__HloModuleProto *message = NULL;
        AmStatus status = ir_parse_text(&message, &arena, NULL, "bad.hlo.txt", bad->text,
                                        (int64_t)strlen(bad->text), &error);
        if (status != AM_ERROR_INPUT || error.line != bad->line || error.column != bad->column ||
            !strstr(error.text, bad->message)) {
            fail_msg("text %zu: status %d, %lld:%lld: %s", i, status, (long long)error.line,
                     (long long)error.column, error.text);
        }
        assert_string_equal(error.source, "bad.hlo.txt");
        arena_free(&arena);
    }
}

static void test_unknown_attributes_are_skipped_with_a_warning(void **state) {
    (void)state;
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    const char *source = "HloModule m, novel={ {1}, \"}\" }\nENTRY e {\n  p = "
                         "f32[2] parameter(0)\n"
                         "  b = f32[2] negate(p), novel=1\n"
                         "  ROOT a = f32[2] new-opcode(b), novel={x=[1,2], "
                         "y=\")\"}, other=3x4, sharding={manual}\n}\n";
    const Hlo__HloModuleProto *module = parse(&arena, &warnings, source, strlen(source));
    assert_int_equal(warnings.count, 3);
    assert_non_null(strstr(warnings.texts[1], "'novel' of 'negate'")); /* each once */
    assert_string_equal(find(module, "a")->opcode, "new-opcode");
    assert_int_equal(find(module, "a")->sharding->type, HLO__OP_SHARDING__TYPE__MANUAL);
    arena_free(&arena);
}

/* Reading, printing and reading again gives the same text, which contains `expected`. */
static void check_line(const char *head, const char *line, const char *expected) {
    Arena arena = {0};
    AmWarnings warnings = {.arena = &arena};
    AmError error = {0};
    Text source = {0}, text = {0};
    text_append(&source,
                "HloModule m%s\n\nneg {\n  n = f32[4] parameter(0)\n  ROOT r = "
                "f32[4] negate(n)\n}\n\n"
                "ENTRY e {\n  x = f32[4] parameter(0)\n  ROOT a = %s\n}\n",
                head, line);
    const Hlo__HloModuleProto *module = parse(&arena, &warnings, source.data, source.length);
    assert_int_equal(ir_print_text(&text, module, &error), AM_OK);
    if (!strstr(text.data, expected)) fail_msg("%s\nhas no %s", text.data, expected);
    Hlo__HloModuleProto *again = parse(&arena, &warnings, text.data, text.length);
    if (!strstr(line, "-start(")) check_equal(module, again); /* else ids are dealt in another order */
    assert_int_equal(warnings.count, 0);
    text_free(&source);
    text_free(&text);
    arena_free(&arena);
}

static void test_attributes_of_any_instruction(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"f32[4] cosine(x), result_accuracy={mode=highest}", "result_accuracy={mode=highest}"},
        {"f32[4] cosine(x), "
         "result_accuracy={tolerance={atol=0.5,rtol=1e-05,ulps=2}}",
         "rtol=1e-05,ulps=2}}"},
        {"f32[4] negate(x), statistics={visualizing_index=1,a=0.5,b=2}", "{visualizing_index=1,a=0.5,b=2}"},
        {"f32[4] negate(x), origin={{\"x\" {0,1}}}", "origin={{\"x\" {0,1}}}"},
        {"(f32[4], (s32[])) custom-call(x), custom_call_target=\"t\", "
         "origin={({\"x\"}, ({}))}",
         "origin={({\"x\"}, ({}))}"},
        {"f32[4] negate(x), origin={[synthetic_call]}", "origin={[synthetic_call]}"},
        {"f32[4] custom-call(x), custom_call_target=\"t\", literal=( s32[2]{0} "
         "{1, 2}, pred[] true )",
         "literal=( s32[2]{0} {1, 2}, pred[] true )"},
        {"f32[4] negate(x), metadata={op_name=\"a\" profile_type={1,2} "
         "metadata_payload=\"\\001b\"}",
         "profile_type={1,2} metadata_payload=\"\\001b\"}"},
        {"f32[4] negate(x), sharding={replicated metadata={{op_name=\"a\"}, "
         "{op_name=\"b\"}}}",
         "{replicated metadata={{op_name=\"a\"}, {op_name=\"b\"}}}"},
        {"f32[4] negate(x), sharding={mesh['a'=2,'b'=4], [{'a', 'b':(2)2, ?}], "
         "unreduced={'b'}}",
         "{mesh['a'=2,'b'=4], [{'a', 'b':(2)2, ?}], unreduced={'b'}}"},
        {"f32[4] negate(x), sharding={mesh['a'=2,'b'=4], "
         "device_ids=([4,2]T(1,0)), replicated}",
         "{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), replicated}"},
        {"f32[4] negate(x), sharding={maximal_mesh[device_id=3]}", "{maximal_mesh[device_id=3]}"},
        {"f32[4] collective-broadcast(x), replica_groups=mesh['a'=2], "
         "device_ids=(1,0) {'a'}",
         "replica_groups=mesh['a'=2], device_ids=(1,0) {'a'}"},
        {"f32[4]{0:T(8)L(2)#(u32)*(u64)E(16)S(1)SC(0:2,3)M(4)} negate(x)",
         "f32[4]{0:T(8)L(2)#(u32)*(u64)E(16)S(1)SC(0:2,3)M(4)} negate"},
        {"f32[4] reshape(x), inferred_dimension=0", "inferred_dimension=0"},
        {"f32[4] collective-permute(x, x, x, x), source_target_pairs={}, "
         "slice_sizes={{2,3}}",
         "source_target_pairs={}, slice_sizes={{2,3}}"},
        {"s32[2,2]{0,1} constant({ {1, 2}, {3, 4} })", "s32[2,2]{0,1} constant({ {1, 2}, {3, 4} })"},
        {"((f32[4]), f32[4], s32[]) call-start(x), to_apply=neg, "
         "async_execution_thread=\"t\"",
         "calls=%async_wrapped.0, async_execution_thread=\"t\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_line("", rows[i][0], rows[i][1]);
    check_line(", is_scheduled=true", "f32[4] negate(x)", "HloModule m, is_scheduled=true");
}

/* Every innermost tuple of start indices is a slice, also in tuples of tuples. */
static void test_slices_have_start_indices(void **state) {
    (void)state;
    static const char *const sizes = "slice_sizes={{1,8,128},{1,8,128},{2,8,128},{2,8,128}}";
    Arena arena = {0};
    AmError error = {0};
    Text source = {0}, text = {0};
    text_append(
        &source,
        "HloModule m\nENTRY e {\n"
        "  p = (u32[2,8,128], u32[2,8,128]) parameter(0)\n"
        "  q = (u32[2,8,128], u32[4,8,128]) parameter(1)\n"
        "  i = (s32[], s32[], s32[]) parameter(2)\n"
        "  k = ((s32[], s32[], s32[]), (s32[], s32[], s32[])) tuple(i, i)\n"
        "  o = (((s32[], s32[], s32[]), (s32[], s32[], s32[])), ((s32[], s32[], s32[]), (s32[], s32[], "
        "s32[]))) tuple(k, k)\n"
        "  ROOT r = (u32[2,8,128], u32[4,8,128]) collective-permute(p, q, o, o), "
        "source_target_pairs={{0,1}}, %s\n}\n",
        sizes);
    const Hlo__HloModuleProto *module = parse(&arena, NULL, source.data, source.length);
    assert_int_equal(ir_print_text(&text, module, &error), AM_OK);
    if (!strstr(text.data, sizes)) fail_msg("%s", text.data);
    text_free(&source);
    text_free(&text);
    arena_free(&arena);
}

static void test_literals_take_the_layout(void **state) {
    (void)state;
    Arena arena = {0};
    const char *source = "HloModule m\nENTRY e {\n  ROOT c = s32[2,3]{0,1} "
                         "constant({ {1, 2, 3}, {4, 5, 6} })\n}\n";
    const Hlo__HloModuleProto *module = parse(&arena, NULL, source, strlen(source));
    const int32_t expected[] = {1, 4, 2, 5, 3, 6};
    assert_memory_equal(find(module, "c")->literal->s32s, expected, sizeof expected);
    arena_free(&arena);
}

static void test_names_are_made_fit_and_unique(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    Text text = {0};
    const char *source = "HloModule m\nENTRY e {\n  p = f32[2] parameter(0)\n  q "
                         "= f32[2] negate(p)\n"
                         "  ROOT r = f32[2] add(p, q)\n}\n";
    Hlo__HloModuleProto *module = parse(&arena, NULL, source, strlen(source));
    module->computations[0]->instructions[0]->name = arena_copy_string(&arena, "state['w'].x");
    module->computations[0]->instructions[1]->name = arena_copy_string(&arena, "state['w'].x");
    assert_int_equal(ir_print_text(&text, module, &error), AM_OK);
    assert_non_null(strstr(text.data, "add(%state__w__.x, %state__w__.x.1)"));
    parse(&arena, NULL, text.data, text.length);
    text_free(&text);
    arena_free(&arena);
}

/* Messages from elsewhere may have dangling references; printing reports them. */
static void test_dangling_references_are_not_printed(void **state) {
    (void)state;
    Arena arena = {0};
    const char *source = "HloModule m\nf {\n  q = f32[] parameter(0)\n}\nENTRY e "
                         "{\n  p = f32[] parameter(0)\n"
                         "  ROOT r = f32[] call(p), to_apply=f\n}\n";
    Hlo__HloModuleProto *module = parse(&arena, NULL, source, strlen(source));
    Hlo__HloInstructionProto *call = module->computations[1]->instructions[1];
    int64_t *const references[] = {&call->called_computation_ids[0], &call->operand_ids[0],
                                   &module->computations[1]->root_id, &module->entry_computation_id};
    for (size_t i = 0; i < sizeof references / sizeof references[0]; i++) {
        Text text = {0};
        AmError error = {0};
        int64_t id = *references[i];
        *references[i] = 77;
        assert_int_equal(ir_print_text(&text, module, &error), AM_ERROR_INPUT);
        assert_true(error.text[0] != '\0');
        *references[i] = id;
        text_free(&text);
    }
    arena_free(&arena);
}

/* Every prefix of a text ends in an error or a module, never in a crash. */
static void test_truncated_texts(void **state) {
    (void)state;
    AmError error = {0};
    FileBytes bytes;
    assert_int_equal(file_read(&bytes, SOURCE_DIR "/tests/data/text/attributes.hlo.txt", &error), AM_OK);
    for (int64_t length = 0; length < bytes.length; length += 7) {
        Arena arena = {0};
        Hlo__HloModuleProto *message = NULL;
        char *prefix = malloc((size_t)length + 1); /* without a terminating NUL */
        memcpy(prefix, bytes.data, (size_t)length);
        AmError own = {0};
        AmStatus status = ir_parse_text(&message, &arena, NULL, "prefix", prefix, length, &own);
        assert_true(status == AM_ERROR_INPUT || message);
        free(prefix);
        arena_free(&arena);
    }
    file_release(&bytes);
}

static void check_refused(const char *head, char repeated, size_t count) {
    Arena arena = {0};
    AmError error = {0};
    Hlo__HloModuleProto *message = NULL;
    size_t length = strlen(head);
    char *text = malloc(length + count);
    memcpy(text, head, length);
    memset(text + length, repeated, count);
    assert_int_equal(ir_parse_text(&message, &arena, NULL, "deep", text, (int64_t)(length + count), &error),
                     AM_ERROR_INPUT);
    assert_true(arena.used < 64 * (length + count) + (1 << 20));
    free(text);
    arena_free(&arena);
}

static void test_hostile_texts(void **state) {
    (void)state;
    check_refused(MAIN "  a = ", '(', 1000000);
    check_refused(MAIN "  a = f32[2] negate(p), sharding=", '{', 1000000);
    check_refused(MAIN "  a = f32[2] negate(p), novel=", '[', 1000000);
    check_refused(MAIN "  a = f32[1000000000000,1000000000000] constant(", '{', 1000);
    check_refused(MAIN "  a = f32[4000000000000] constant({1, 2", ' ', 1000);
    check_refused("", '\0', 1000);
}

static void hash_of(const char *path, char hex[65], const char *written) {
    AmError error = {0};
    IrModule *module, *canonical;
    if (ir_read(&module, path, &error) != AM_OK) fail_msg("%s: %s", error.source, error.text);
    assert_int_equal(ir_canonicalize(&canonical, module, &error), AM_OK);
    ir_hash(canonical, hex);
    if (written) assert_int_equal(ir_write(module, written, &error), AM_OK);
    ir_module_free(canonical);
    ir_module_free(module);
}

/* The binary, the text written of it and, where there are any, jaxlib's
 * texts. */
static void check_hashes(const char *name, bool has_texts) {
    char path[512], binary[65], text[65];
    const char *written = "test_ir_text_written.hlo.txt";
    snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/model.hlo.pb", name);
    hash_of(path, binary, written);
    hash_of(written, text, NULL);
    remove(written);
    assert_string_equal(binary, text);
    static const char *const files[] = {"model.hlo.txt.zst", "model.metadata.hlo.txt.zst"};
    for (int i = 0; has_texts && i < 2; i++) {
        snprintf(path, sizeof path, SOURCE_DIR "/datasets/models/%s/%s", name, files[i]);
        hash_of(path, text, NULL);
        assert_string_equal(binary, text);
    }
}

static void test_text_and_binary_hash_alike(void **state) {
    (void)state;
    check_hashes("mlp_tiny", true);
    check_hashes("t5_tiny", true);
    check_hashes("vgg_tiny", false);
    check_hashes("exact_gather", false);
}

static void test_large_text_is_quick(void **state) {
    (void)state;
    enum { COUNT = 30000 };
    Arena arena = {0};
    Text text = {0}, printed = {0};
    AmError error = {0};
    text_append_string(&text, "HloModule large\n\nENTRY e {\n  n0 = f32[8,16]{1,0} parameter(0)\n");
    for (int i = 1; i < COUNT; i++) {
        text_append(&text,
                    "  n%d = f32[8,16]{1,0} add(n%d, n%d), "
                    "metadata={op_name=\"jit(step)/layer/add\" "
                    "stack_frame_id=%d}\n",
                    i, i - 1, i / 2, i);
    }
    text_append_string(&text, "}\n");
    double start = clock_cpu_seconds();
    const Hlo__HloModuleProto *module = parse(&arena, NULL, text.data, text.length);
    assert_int_equal(module->computations[0]->n_instructions, COUNT);
    assert_int_equal(ir_print_text(&printed, module, &error), AM_OK);
    assert_true(clock_cpu_seconds() - start < sample_of(1, 10));
    text_free(&text);
    text_free(&printed);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_spellings_agree),
        cmocka_unit_test(test_attributes_land_in_their_fields),
        cmocka_unit_test(test_literal_values),
        cmocka_unit_test(test_negative_zero),
        cmocka_unit_test(test_literal_layout),
        cmocka_unit_test(test_every_code_of_small_floats_comes_back),
        cmocka_unit_test(test_rounding_of_small_floats),
        cmocka_unit_test(test_errors_name_the_place),
        cmocka_unit_test(test_unknown_attributes_are_skipped_with_a_warning),
        cmocka_unit_test(test_attributes_of_any_instruction),
        cmocka_unit_test(test_slices_have_start_indices),
        cmocka_unit_test(test_literals_take_the_layout),
        cmocka_unit_test(test_names_are_made_fit_and_unique),
        cmocka_unit_test(test_dangling_references_are_not_printed),
        cmocka_unit_test(test_truncated_texts),
        cmocka_unit_test(test_hostile_texts),
        cmocka_unit_test(test_text_and_binary_hash_alike),
        cmocka_unit_test(test_large_text_is_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
