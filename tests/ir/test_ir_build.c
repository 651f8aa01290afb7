/* The builder and the verifier on small modules written as JSON: ids of both
 * schemes, literals, source positions, cycles, and shapes that do not fit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "ir/encodings.h"

/* A module with one computation; instructions get ids 0, 1, ... by their place,
 * and the last one is the root. `more` is further keys of the module. */
static Text module_of(const char *const *instructions, size_t count, const char *more) {
    Text text = {0};
    text_append(&text, "{%s\"computations\":[{\"name\":\"main\",\"rootId\":%zu,\"instructions\":[", more,
                count - 1);
    for (size_t i = 0; i < count; i++) {
        text_append(&text, "%s{\"id\":%zu,%s}", i > 0 ? "," : "", i, instructions[i]);
    }
    text_append_string(&text, "]}]}");
    return text;
}

static IrModule *read_json(const char *json) {
    IrModule *module;
    AmError error = {0};
    if (ir_read_bytes(&module, "m", json, (int64_t)strlen(json), &error) != AM_OK) fail_msg("%s", error.text);
    return module;
}

static void assert_json_refused(const char *json, const char *message) {
    IrModule *module;
    AmError error = {0};
    AmStatus status = ir_read_bytes(&module, "m", json, (int64_t)strlen(json), &error);
    if (status == AM_OK) fail_msg("read, expected: %s", message);
    assert_int_equal(status, AM_ERROR_INPUT);
    if (strstr(error.text, message) == NULL) fail_msg("found: %s\nexpected: %s", error.text, message);
}

#define INSTRUCTIONS(...) \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

static IrModule *build(const char *const *instructions, size_t count) {
    Text text = module_of(instructions, count, "");
    IrModule *module = read_json(text.data);
    text_free(&text);
    return module;
}

static void refuse(const char *message, const char *const *instructions, size_t count) {
    Text text = module_of(instructions, count, "");
    assert_json_refused(text.data, message);
    text_free(&text);
}

#define F32(...)         "\"shape\":{\"elementType\":\"F32\",\"dimensions\":[" __VA_ARGS__ "]}"
#define TYPED(type, ...) "\"shape\":{\"elementType\":\"" type "\",\"dimensions\":[" __VA_ARGS__ "]}"
#define PARAMETER(number, ...) \
    "\"name\":\"p" number "\",\"opcode\":\"parameter\",\"parameterNumber\":" number "," __VA_ARGS__
#define NAMED(name, opcode, operands, ...) \
    "\"name\":\"" name "\",\"opcode\":\"" opcode "\",\"operandIds\":[" operands "]," __VA_ARGS__

static void opcodes_have_names(void **state) {
    (void)state;
    for (int32_t opcode = 0; opcode < IR_OPCODE_COUNT; opcode++) {
        assert_int_equal(ir_opcode_from_name(ir_opcode_name((IrOpcode)opcode)), opcode);
    }
    assert_int_equal(ir_opcode_from_name("clz"), IR_UNKNOWN);
    assert_int_equal(ir_opcode_from_name(""), IR_UNKNOWN);
    assert_int_equal(ir_opcode_arity(IR_SELECT), 3);
    assert_int_equal(ir_opcode_arity(IR_TUPLE), -1);
}

/* The facts of products agree with the classes of their sharding rules, which split a contracted
 * dimension. */
static void products_have_rules_of_products(void **state) {
    (void)state;
    static const char *const rules[] = {
#define OPCODE(name, text, arity, rule, ...) #rule,
#include "ir/opcodes.def"
#undef OPCODE
    };
    for (int32_t opcode = 0; opcode < IR_OPCODE_COUNT; opcode++) {
        bool is_dot = strcmp(rules[opcode], "DOT") == 0;
        assert_int_equal(ir_is_matrix_product((IrOpcode)opcode), is_dot);
        assert_int_equal(ir_is_product((IrOpcode)opcode),
                         is_dot || strcmp(rules[opcode], "CONVOLUTION") == 0);
    }
}

static void shapes_have_sizes_and_text(void **state) {
    (void)state;
    const int64_t sizes[] = {2, 3};
    IrShape parts[] = {{.type = DTYPE_BF16, .rank = 2, .dimensions = sizes}, {.type = DTYPE_S32}};
    IrShape tuple = {.type = DTYPE_TUPLE, .rank = 2, .elements = parts};
    assert_int_equal(ir_shape_elements(&parts[0]), 6);
    assert_int_equal(ir_shape_elements(&parts[1]), 1);
    assert_int_equal(ir_shape_bytes(&tuple), 16);
    Text text = {0};
    ir_shape_append(&text, &tuple);
    assert_string_equal(text.data, "(bf16[2,3], s32[])");
    text_free(&text);
    assert_true(ir_shape_equal(&tuple, &tuple));
    assert_false(ir_shape_equal(&parts[0], &parts[1]));
}

static void unknown_opcodes_keep_their_name(void **state) {
    (void)state;
    IrModule *module =
        build(INSTRUCTIONS(PARAMETER("0", F32("2")), NAMED("y", "frobnicate", "0,0", F32("5"))));
    assert_int_equal(module->instructions[1].opcode, IR_UNKNOWN);
    assert_string_equal(module->instructions[1].opcode_name, "frobnicate");
    assert_non_null(module->instructions[1].attributes);
    ir_module_free(module);
}

/* A schedule is the order in which instructions are taken, if it is one. */
static void check_scheduled(const char *ids, const char *first) {
    Text more = {0};
    text_append(&more, "\"schedule\":{\"sequences\":{\"0\":{\"instructionIds\":[%s]}}},", ids);
    Text text =
        module_of(INSTRUCTIONS(PARAMETER("0", F32("2")), NAMED("a", "negate", "0", F32("2")),
                               NAMED("b", "cosine", "0", F32("2")), NAMED("c", "add", "1,2", F32("2"))),
                  more.data);
    IrModule *module = read_json(text.data);
    assert_string_equal(module->instructions[1].name, first);
    assert_string_equal(module->instructions[3].name, "c");
    assert_string_equal(module->instructions[module->instructions[3].operands[0]].name, "a");
    ir_module_free(module);
    text_free(&text);
    text_free(&more);
}

static void schedules_give_the_order(void **state) {
    (void)state;
    check_scheduled("0,2,1,3", "b");
    check_scheduled("4294967296,4294967298,4294967297,4294967299", "b"); /* the low halves count */
    check_scheduled("0,1,2", "a");                                       /* not all */
    check_scheduled("0,2,2,3", "a");                                     /* one twice */
    check_scheduled("2,0,1,3", "a");                                     /* an operand after its user */
}

/* backend_config may stand in the module's table of payloads. */
static void payloads_are_resolved(void **state) {
    (void)state;
    static const char config[] = "\"backendConfigPayload\":{\"id\":%d},";
    for (int row = 0; row < 2; row++) {
        char own[64];
        snprintf(own, sizeof own, config, row);
        Text line = {0};
        text_append(&line, "%s" PARAMETER("0", F32("2")), own);
        Text text = module_of((const char *const[]){line.data}, 1, "\"payloads\":[\"YWJj\"],");
        IrModule *module = read_json(text.data);
        const Hlo__HloInstructionProto *message = module->instructions[0].message;
        assert_int_equal(message->backend_config.len, row == 0 ? 3 : 0); /* there is one row alone */
        if (row == 0) assert_memory_equal(message->backend_config.data, "abc", 3);
        ir_module_free(module);
        text_free(&text);
        text_free(&line);
    }
}

/* The root may be any instruction, and parameters stand in any order. */
static void parameters_in_any_order(void **state) {
    (void)state;
    IrModule *module = build(INSTRUCTIONS(PARAMETER("1", F32("2")), PARAMETER("0", F32("2")),
                                          NAMED("z", "negate", "0", F32("2"))));
    assert_int_equal(module->computations[0].parameters[0], 1);
    assert_int_equal(module->computations[0].parameters[1], 0);
    ir_module_free(module);
}

static void bad_ids_are_refused(void **state) {
    (void)state;
    refuse("instruction y (negate): operand 0 has id 7", INSTRUCTIONS(NAMED("y", "negate", "7", F32("2"))));
    refuse("operand 0 has id 1, which is this instruction or a later one",
           INSTRUCTIONS(NAMED("a", "negate", "1", F32("2")), NAMED("b", "negate", "0", F32("2"))));
    refuse("operand 0 has id 0, which is this", INSTRUCTIONS(NAMED("a", "negate", "0", F32("2"))));
    refuse("control predecessor 0 has id 1, which is",
           INSTRUCTIONS(PARAMETER("0", F32("2") ",\"controlPredecessorIds\":[1]"),
                        NAMED("b", "negate", "0", F32("2"))));
    refuse("calls the computation with id 9",
           INSTRUCTIONS(NAMED("y", "call", "", F32("2") ",\"calledComputationIds\":[9]")));
    refuse("calls itself", INSTRUCTIONS(NAMED("y", "call", "", F32("2") ",\"calledComputationIds\":[0]")));
    refuse("it has no opcode", INSTRUCTIONS("\"name\":\"x\"," F32("2")));
    refuse("parameter number 1", INSTRUCTIONS(PARAMETER("1", F32("2"))));
    refuse("parameter number 0 is taken", INSTRUCTIONS(PARAMETER("0", F32("2")), PARAMETER("0", F32("2"))));
    assert_json_refused("{\"computations\":[{\"name\":\"main\",\"rootId\":4,\"instructions\":[]}]}",
                        "its root has id 4");
    assert_json_refused("{\"computations\":[{\"name\":\"main\"}],\"entryComputationId\":\"2\"}",
                        "entry computation");
    assert_json_refused("{\"computations\":[{\"name\":\"a\"},{\"name\":\"b\"}]}",
                        "its id 0 is already taken");
    assert_json_refused("{\"computations\":[{\"instructions\":[{\"id\":3},{\"id\":\"4294967299\"}]}]}",
                        "its id 4294967299 is already taken");
    assert_json_refused("{\"computations\":[]}", "no computations");
}

static void bad_shapes_are_refused(void **state) {
    (void)state;
    refuse("it has no shape", INSTRUCTIONS("\"opcode\":\"parameter\",\"name\":\"x\""));
    refuse("element type 99", INSTRUCTIONS(PARAMETER("0", "\"shape\":{\"elementType\":99}")));
    refuse("is negative", INSTRUCTIONS(PARAMETER("0", F32("-2"))));
    refuse("is negative", INSTRUCTIONS(PARAMETER("0", F32("\"-9223372036854775808\""))));
    refuse("2^62", INSTRUCTIONS(PARAMETER("0", F32("\"4294967296\",\"4294967296\""))));
    refuse("at most 16", INSTRUCTIONS(PARAMETER("0", F32("1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"))));
    refuse("no permutation",
           INSTRUCTIONS(PARAMETER("0", "\"shape\":{\"elementType\":\"F32\",\"dimensions\":[2,2],"
                                       "\"layout\":{\"minorToMajor\":[1,1]}}")));
}

static void dynamic_and_opaque_shapes_are_kept(void **state) {
    (void)state;
    IrModule *module = build(INSTRUCTIONS(
        PARAMETER("0",
                  "\"shape\":{\"elementType\":\"F32\",\"dimensions\":[8],\"isDynamicDimension\":[true]}"),
        NAMED("t", "after-all", "", "\"shape\":{\"elementType\":\"TOKEN\"}"),
        NAMED("o", "custom-call", "1",
              "\"shape\":{\"elementType\":\"OPAQUE_TYPE\"},\"customCallTarget\":\"f\"")));
    assert_int_equal(module->instructions[1].shape.type, DTYPE_TOKEN);
    assert_int_equal(ir_shape_bytes(&module->instructions[1].shape), 0);
    assert_string_equal(module->instructions[2].attributes->custom_call_target, "f");
    ir_module_free(module);
}

#define CONSTANT(shape, values) "\"name\":\"c\",\"opcode\":\"constant\"," shape ",\"literal\":{" values "}"

static IrModule *constant(const char *instruction) {
    return build(&instruction, 1);
}

static void assert_literal(const char *instruction, const void *expected, int64_t bytes) {
    IrModule *module = constant(instruction);
    const IrLiteral *literal = module->instructions[0].literal;
    assert_int_equal(literal->bytes, bytes);
    assert_memory_equal(literal->data, expected, (size_t)bytes);
    ir_module_free(module);
}

static void literals_become_row_major(void **state) {
    (void)state;
    assert_literal(CONSTANT(F32("2"), "\"f32s\":[1,2]"), (const float[]){1, 2}, 8);
    assert_literal(CONSTANT(TYPED("S32", "2,3"),
                            "\"shape\":{\"elementType\":\"S32\",\"dimensions\":[2,3],"
                            "\"layout\":{\"minorToMajor\":[0,1]}},\"s32s\":[1,4,2,5,3,6]"),
                   (const int32_t[]){1, 2, 3, 4, 5, 6}, 24);
    assert_literal(CONSTANT(TYPED("PRED", "3"), "\"preds\":[true,false,true]"), "\1\0\1", 3);
    assert_literal(CONSTANT(TYPED("C64", "2"), "\"c64s\":[1,2,3,-4]"), (const float[]){1, 2, 3, -4}, 16);
    assert_literal(CONSTANT(TYPED("BF16", "2"), "\"bf16s\":\"gD8AQA==\""), "\x80\x3f\x00\x40", 4);
    assert_literal(CONSTANT(TYPED("U64", "1"), "\"u64s\":[\"18446744073709551615\"]"),
                   "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    assert_literal(CONSTANT(F32("0"), "\"f32s\":[]"), "", 0);
}

/* One byte each or packed, low bits first: 1, 2, -3, 4, 5 either way. */
static void narrow_literals_take_a_byte_each(void **state) {
    (void)state;
    assert_literal(CONSTANT(TYPED("S4", "5"), "\"s4s\":\"AQINBAU=\""), "\x01\x02\xfd\x04\x05", 5);
    assert_literal(CONSTANT(TYPED("S4", "5"), "\"s4s\":\"IU0F\""), "\x01\x02\xfd\x04\x05", 5);
    assert_literal(CONSTANT(TYPED("U4", "3"), "\"u4s\":\"IQ8=\""), "\x01\x02\x0f", 3);
}

static void literals_may_be_elided_but_not_wrong(void **state) {
    (void)state;
    IrModule *module = constant(CONSTANT(F32("1000000,1000000,1000"), ""));
    assert_non_null(module->instructions[0].literal);
    assert_null(module->instructions[0].literal->data);
    ir_module_free(module);
    module = constant("\"name\":\"c\",\"opcode\":\"constant\"," F32("4"));
    assert_null(module->instructions[0].literal->data);
    ir_module_free(module);
    refuse("instruction c (constant): its literal has 1 values of type f32, expected 2",
           INSTRUCTIONS(CONSTANT(F32("2"), "\"f32s\":[1]")));
    refuse("another shape",
           INSTRUCTIONS(CONSTANT(F32("2"), "\"shape\":{\"elementType\":\"F32\",\"dimensions\":[3]}")));
}

static void sources_come_from_metadata_frames_or_payloads(void **state) {
    (void)state;
    static const char *const instructions[] = {
        PARAMETER("0", F32("") ",\"metadata\":{\"opName\":\"x\",\"sourceFile\":\"a.py\",\"sourceLine\":4}"),
        NAMED("f", "negate", "0", F32("") ",\"metadata\":{\"opName\":\"neg\",\"stackFrameId\":2}"),
        NAMED("g", "negate", "1", F32("") ",\"metadata\":{\"metadataPayload\":{\"id\":\"0\"}}"),
        NAMED("h", "negate", "2", F32("") ",\"metadata\":{\"stackFrameId\":77}"),
    };
    /* The payload is an OpMetadata with op_name "p" and source_file "q". */
    Text text =
        module_of(instructions, 4,
                  "\"payloads\":[\"EgFwGgFx\"],\"stackFrameIndex\":{\"fileNames\":[\"one.py\",\"two.py\"],"
                  "\"fileLocations\":[{\"fileNameId\":1,\"line\":1},{\"fileNameId\":2,\"line\":30}],"
                  "\"stackFrames\":[{\"fileLocationId\":1},{\"fileLocationId\":2,\"parentFrameId\":1}]},");
    IrModule *module = read_json(text.data);
    const IrInstruction *built = module->instructions;
    assert_string_equal(built[0].op_name, "x");
    assert_string_equal(built[0].source_file, "a.py");
    assert_int_equal(built[0].source_line, 4);
    assert_string_equal(built[1].source_file, "two.py");
    assert_int_equal(built[1].source_line, 30);
    assert_string_equal(built[2].op_name, "p");
    assert_string_equal(built[2].source_file, "q");
    assert_string_equal(built[3].source_file, "");
    text_free(&text);
    ir_module_free(module);
}

static void aliases_name_outputs_and_parameters(void **state) {
    (void)state;
    static const char *const instructions[] = {
        PARAMETER("0", F32("2")),
        PARAMETER("1", F32("2")),
        NAMED("t", "tuple", "0,1",
              "\"shape\":{\"elementType\":\"TUPLE\",\"tupleShapes\":["
              "{\"elementType\":\"F32\",\"dimensions\":[2]},{\"elementType\":\"F32\",\"dimensions\":[2]}]}"),
    };
    Text good = module_of(instructions, 3,
                          "\"inputOutputAlias\":{\"entries\":[{\"outputShapeIndex\":[1],"
                          "\"parameterNumber\":0,\"kind\":\"MAY_ALIAS\"}]},");
    IrModule *module = read_json(good.data);
    assert_int_equal(module->alias_count, 1);
    assert_int_equal(module->aliases[0].output, 1);
    assert_int_equal(module->aliases[0].parameter, 0);
    ir_module_free(module);
    Text bad = module_of(instructions, 3, "\"inputOutputAlias\":{\"entries\":[{\"outputShapeIndex\":[2]}]},");
    assert_json_refused(bad.data, "alias 0");
    text_free(&good);
    text_free(&bad);
}

/* reduce over a sum, whose computation has id 1 and its operator is found. */
static void computations_have_an_operator(void **state) {
    (void)state;
    static const char json[] =
        "{\"computations\":[{\"name\":\"sum\",\"id\":1,\"rootId\":2,\"instructions\":["
        "{\"id\":0," PARAMETER("0", F32("")) "},{\"id\":1," PARAMETER(
            "1", F32("")) "},"
                          "{\"id\":2," NAMED(
                              "s", "add", "1,0",
                              F32("")) "}]},"
                                       "{\"name\":\"main\",\"id\":2,\"rootId\":\"8589934594\","
                                       "\"instructions\":["
                                       "{\"id\":\"8589934592\"," PARAMETER(
                                           "0", F32("3,4")) "},"
                                                            "{\"id\":\"8589934593\",\"name\":\"c\","
                                                            "\"opcode\":\"constant\"," F32(
                                                                "") ",\"literal\":{\"f32s\":[0]}},"
                                                                    "{\"id\":\"8589934594\"," NAMED(
                                                                        "r", "reduce",
                                                                        "\"8589934592\",\"8589934593\"",
                                                                        F32("3") ",\"dimensions\":[1],"
                                                                                 "\"calledComputationIds\":["
                                                                                 "1]") "}]}],"
                                                                                       "\"entryComputationId"
                                                                                       "\":2}";
    IrModule *module = read_json(json);
    assert_int_equal(module->entry, 1);
    assert_int_equal(ir_computation_operator(module, 0), IR_ADD);
    assert_int_equal(ir_computation_operator(module, 1), IR_UNKNOWN);
    assert_int_equal(module->instructions[5].called[0], 0);
    ir_module_free(module);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opcodes_have_names),
        cmocka_unit_test(products_have_rules_of_products),
        cmocka_unit_test(shapes_have_sizes_and_text),
        cmocka_unit_test(unknown_opcodes_keep_their_name),
        cmocka_unit_test(schedules_give_the_order),
        cmocka_unit_test(payloads_are_resolved),
        cmocka_unit_test(parameters_in_any_order),
        cmocka_unit_test(bad_ids_are_refused),
        cmocka_unit_test(bad_shapes_are_refused),
        cmocka_unit_test(dynamic_and_opaque_shapes_are_kept),
        cmocka_unit_test(literals_become_row_major),
        cmocka_unit_test(narrow_literals_take_a_byte_each),
        cmocka_unit_test(literals_may_be_elided_but_not_wrong),
        cmocka_unit_test(sources_come_from_metadata_frames_or_payloads),
        cmocka_unit_test(aliases_name_outputs_and_parameters),
        cmocka_unit_test(computations_have_an_operator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
