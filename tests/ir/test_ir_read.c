/* Encodings: the same module from binary and JSON in all their variants, and damaged files of
 * either kind, which must end in one line with the position.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/file.h"
#include "base/random.h"
#include "ir/canonical/canonical.h"
#include "ir/encodings.h"

#define MODELS SOURCE_DIR "/datasets/models/"

static IrModule *read_path(const char *path) {
    IrModule *module;
    AmError error = {0};
    if (ir_read(&module, path, &error) != AM_OK) fail_msg("%s: %s", error.source, error.text);
    return module;
}

static IrModule *read_bytes(const char *data, size_t length) {
    IrModule *module;
    AmError error = {0};
    if (ir_read_bytes(&module, "m", data, (int64_t)length, &error) != AM_OK) fail_msg("%s", error.text);
    return module;
}

static void assert_same_bytes(const Text *a, const Text *b) {
    assert_int_equal(a->length, b->length);
    assert_memory_equal(a->data, b->data, a->length);
}

static void assert_same_hash(const IrModule *a, const IrModule *b) {
    const IrModule *modules[2] = {a, b};
    char hex[2][65];
    for (int i = 0; i < 2; i++) {
        IrModule *canonical;
        AmError error = {0};
        assert_int_equal(ir_canonicalize(&canonical, modules[i], &error), AM_OK);
        ir_hash(canonical, hex[i]);
        ir_module_free(canonical);
    }
    assert_string_equal(hex[0], hex[1]);
}

static void committed_models_are_read(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int32_t instructions, aliases;
    } models[] = {
        {MODELS "mlp_tiny/model.hlo.pb", 175, 6},
        {MODELS "t5_tiny/model.hlo.pb", 3319, 202},
        {MODELS "vgg19/model.hlo.pb.zst", 739, 38},
        {MODELS "t5_paper_6/model.hlo.pb.zst", 8667, 562},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        IrModule *module = read_path(models[i].path);
        assert_int_equal(module->instruction_count, models[i].instructions);
        assert_int_equal(module->alias_count, models[i].aliases);
        const IrComputation *entry = &module->computations[module->entry];
        assert_int_equal(module->instructions[entry->root].opcode, IR_TUPLE);
        for (int32_t k = 0; k < entry->parameter_count; k++) {
            assert_int_equal(module->instructions[entry->parameters[k]].attributes->parameter_number, k);
        }
        assert_int_equal(module->warnings.count, 0);
        ir_module_free(module);
    }
}

static void binary_and_json_round_trip(void **state) {
    (void)state;
    static const char *const names[] = {"mlp_tiny", "vgg_tiny", "t5_tiny", "exact_gather"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        snprintf(path, sizeof path, MODELS "%s/model.hlo.pb", names[i]);
        IrModule *module = read_path(path);
        Text binary = {0}, json = {0}, again = {0};
        assert_int_equal(ir_print_pb(&binary, module->message, NULL), AM_OK);
        assert_int_equal(ir_print_json(&json, module->message, NULL), AM_OK);
        IrModule *from_json = read_bytes(json.data, json.length);
        assert_int_equal(ir_print_pb(&again, from_json->message, NULL), AM_OK);
        assert_same_bytes(&binary, &again);
        assert_same_hash(module, from_json);
        text_free(&binary);
        text_free(&json);
        text_free(&again);
        ir_module_free(module);
        ir_module_free(from_json);
    }
}

static void suffixes_choose_the_encoding(void **state) {
    (void)state;
    static const struct {
        const char *suffix, *magic;
    } files[] = {
        {".hlo.pb", "\x0a\x08jit_step"},     {".hlo.json", "{"},
        {".hlo.txt", "HloModule jit_step"},  {".hlo.json.gz", "\x1f\x8b"},
        {".hlo.pb.zst", "\x28\xb5\x2f\xfd"}, {".hlo.txt.gz", "\x1f\x8b"},
    };
    char folder[] = "/tmp/automap_ir_XXXXXX";
    assert_non_null(mkdtemp(folder));
    IrModule *module = read_path(MODELS "mlp_tiny/model.hlo.pb");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[256], start[32] = "";
        snprintf(path, sizeof path, "%s/m%s", folder, files[i].suffix);
        assert_int_equal(ir_write(module, path, NULL), AM_OK);
        FILE *stream = fopen(path, "rb");
        assert_non_null(stream);
        assert_true(fread(start, 1, sizeof start, stream) == sizeof start);
        fclose(stream);
        assert_memory_equal(start, files[i].magic, strlen(files[i].magic));
        IrModule *again = read_path(path);
        assert_same_hash(module, again);
        ir_module_free(again);
        remove(path);
    }
    AmError error = {0};
    assert_int_equal(ir_write(module, "model.onnx", &error), AM_ERROR_USAGE);
    assert_non_null(strstr(error.text, ".hlo.pb"));
    rmdir(folder);
    ir_module_free(module);
}

static void append_varint(Text *text, uint64_t value) {
    do {
        char byte = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        text_append_bytes(text, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

/* `bytes` as field `number` of a message around it. */
static Text wrapped(const Text *bytes, uint32_t number) {
    Text text = {0};
    append_varint(&text, number << 3 | 2);
    append_varint(&text, bytes->length);
    text_append_bytes(&text, bytes->data, bytes->length);
    return text;
}

static void wrapped_binary_is_read(void **state) {
    (void)state;
    IrModule *module = read_path(MODELS "mlp_tiny/model.hlo.pb");
    Text bare = {0};
    assert_int_equal(ir_print_pb(&bare, module->message, NULL), AM_OK);
    Text proto = wrapped(&bare, 1), snapshot = wrapped(&proto, 1);
    IrModule *from_proto = read_bytes(proto.data, proto.length);
    IrModule *from_snapshot = read_bytes(snapshot.data, snapshot.length);
    assert_same_hash(module, from_proto);
    assert_same_hash(module, from_snapshot);

    /* Cut where the module inside ends but its stated length does not. */
    AmError error = {0};
    IrModule *none;
    assert_int_equal(ir_read_bytes(&none, "m", proto.data, (int64_t)proto.length - 1, &error),
                     AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "byte "));
    ir_module_free(module);
    ir_module_free(from_proto);
    ir_module_free(from_snapshot);
    text_free(&bare);
    text_free(&proto);
    text_free(&snapshot);
}

/* y = x + 1 for f32[2], three ways: with ids of both schemes, keys of both
 * kinds, and numbers in every form that writers use. */
static const char plain_json[] =
    "{\"name\":\"m\",\"entryComputationName\":\"main\",\"entryComputationId\":\"3\",\"computations\":[{"
    "\"name\":\"main\",\"id\":\"3\",\"rootId\":\"12884901891\",\"instructions\":["
    "{\"name\":\"x\",\"opcode\":\"parameter\",\"id\":\"12884901889\","
    "\"shape\":{\"elementType\":\"F32\",\"dimensions\":[\"2\"],\"layout\":{\"minorToMajor\":[\"0\"]}}},"
    "{\"name\":\"c\",\"opcode\":\"constant\",\"id\":\"12884901890\","
    "\"shape\":{\"elementType\":\"F32\",\"dimensions\":[\"2\"],\"layout\":{\"minorToMajor\":[\"0\"]}},"
    "\"literal\":{\"shape\":{\"elementType\":\"F32\",\"dimensions\":[\"2\"],\"layout\":{\"minorToMajor\":["
    "\"0\"]}},"
    "\"f32s\":[1,1]}},"
    "{\"name\":\"y\",\"opcode\":\"add\",\"id\":\"12884901891\",\"operandIds\":[\"12884901889\","
    "\"12884901890\"],"
    "\"shape\":{\"elementType\":\"F32\",\"dimensions\":[\"2\"],\"layout\":{\"minorToMajor\":[\"0\"]}}}]}]}";

static const char old_json[] =
    " {\"hlo_module\":{\"name\":\"m\",\"entry_computation_name\":\"main\",\"id\":\"0\",\"entry_computation_"
    "id\":3,"
    "\"schedule\":null,\"computations\":[{"
    "\"name\":\"main\",\"id\":3,\"root_id\":2,\"is_fusion_computation\":false,\"instructions\":["
    "{\"name\":\"x\",\"opcode\":\"parameter\",\"tuple_index\":\"0\",\"dimensions\":[],\"metadata\":null,"
    "\"shape\":{\"element_type\":11,\"dimensions\":[2],\"tuple_shapes\":[],\"layout\":{\"minor_to_major\":[0]"
    "}}},"
    "{\"name\":\"c\",\"opcode\":\"constant\",\"id\":1.0,"
    "\"shape\":{\"element_type\":\"11\",\"dimensions\":[2e0],\"layout\":{\"minor_to_major\":[0]}},"
    "\"literal\":{\"shape\":{\"element_type\":\"F32\",\"dimensions\":[2],\"layout\":{\"minor_to_major\":[0]}}"
    ","
    "\"f32s\":[\"1\",1.0]}},"
    "{\"name\":\"y\",\"opcode\":\"add\",\"id\":2,\"operand_ids\":[0,1],"
    "\"shape\":{\"element_type\":11,\"dimensions\":[2],\"layout\":{\"minor_to_major\":[0]}}}]}]},"
    "\"buffer_assignment\":{}}";

static void json_variants_mean_the_same(void **state) {
    (void)state;
    Text numeric = {0}; /* element types as numbers only: "11" is not a name */
    for (const char *c = old_json; *c != '\0'; c++) {
        if (strncmp(c, "\"11\"", 4) == 0) {
            text_append_string(&numeric, "11");
            c += 3;
        } else {
            text_append_bytes(&numeric, c, 1);
        }
    }
    IrModule *plain = read_bytes(plain_json, sizeof plain_json - 1);
    IrModule *old = read_bytes(numeric.data, numeric.length);
    assert_same_hash(plain, old);
    assert_int_equal(plain->instruction_count, 3);
    assert_int_equal(plain->instructions[2].operands[0], 0);
    assert_int_equal(plain->instructions[2].operands[1], 1);
    assert_true(((const float *)old->instructions[1].literal->data)[1] == 1.0f);
    text_free(&numeric);
    ir_module_free(plain);
    ir_module_free(old);
}

static void assert_refused(const char *json, const char *message) {
    IrModule *module;
    AmError error = {0};
    assert_int_equal(ir_read_bytes(&module, "m.json", json, (int64_t)strlen(json), &error), AM_ERROR_INPUT);
    assert_null(module);
    if (strstr(error.text, message) == NULL) fail_msg("found: %s\nexpected: %s", error.text, message);
    assert_string_equal(error.source, "m.json");
}

static void json_errors_name_the_path(void **state) {
    (void)state;
    assert_refused("{}", "$: expected an HLO module");
    assert_refused("{\"computations\":3}", "$.computations: expected an array");
    assert_refused("{\"hlo_module\":{\"computations\":[3]}}",
                   "$.hlo_module.computations[0]: expected an object");
    assert_refused("{\"computations\":[{\"id\":\"x\"}]}", "$.computations[0].id: expected an integer");
    assert_refused("{\"computations\":[{\"id\":\"9223372036854775808\"}]}", "$.computations[0].id");
    assert_refused("{\"computations\":[{\"id\":1.5}]}", "$.computations[0].id: expected an integer");
    assert_refused("{\"computations\":[{\"name\":1}]}", "$.computations[0].name: expected a string");
    assert_refused("{\"computations\":[{\"instructions\":[{\"epsilon\":\"x\"}]}]}",
                   "$.computations[0].instructions[0].epsilon: expected a number");
    assert_refused("{\"computations\":[{\"instructions\":[{\"exponentBits\":2147483648}]}]}", "of 32 bits");
    assert_refused("{\"computations\":[{\"instructions\":[{\"isStable\":1}]}]}", "expected true or false");
    assert_refused("{\"computations\":[{\"instructions\":[{\"backendConfig\":\"*\"}]}]}", "base64");
    assert_refused("{\"computations\":[], \"payloads\":[\"AAAAA\"]}",
                   "$.payloads[0]: expected a string of base64");
    assert_refused("{\"computations\":[{\"instructions\":[{\"resultAccuracy\":{\"mode\":\"HIGHEST\","
                   "\"tolerance\":{}}}]}]}",
                   "exclude one another");
    assert_refused("{\"computations\":[", "JSON");
}

static void unknown_keys_are_skipped_with_one_warning(void **state) {
    (void)state;
    Text text = {0};
    text_append(&text, "{\"fromTheFuture\":[1,{}],%s", plain_json + 1);
    IrModule *module = read_bytes(text.data, text.length);
    assert_int_equal(module->warnings.count, 1);
    assert_non_null(strstr(module->warnings.texts[0], "fromTheFuture"));
    text_free(&text);
    ir_module_free(module);
}

static void json_values_keep_their_bits(void **state) {
    (void)state;
    static const char json[] =
        "{\"computations\":[{\"name\":\"main\",\"instructions\":[{\"name\":\"c\\u00e9\\n\\\"\",\"opcode\":"
        "\"constant\","
        "\"shape\":{\"elementType\":\"F32\",\"dimensions\":[\"6\"]},\"backendConfig\":\"_-8\","
        "\"frontendAttributes\":{\"map\":{\"b\":\"2\",\"a\":\"\"}},"
        "\"literal\":{\"f32s\":[\"NaN\",\"Infinity\",\"-Infinity\",0.1,-0.0,3.4028235e38]}}]}],"
        "\"schedule\":{\"sequences\":{\"7\":{\"instructionIds\":[\"4\"]}}},\"pjrtId\":\"0\"}";
    IrModule *module = read_bytes(json, sizeof json - 1);
    Text printed = {0}, again = {0};
    assert_int_equal(ir_print_json(&printed, module->message, NULL), AM_OK);
    IrModule *second = read_bytes(printed.data, printed.length);
    assert_int_equal(ir_print_json(&again, second->message, NULL), AM_OK);
    assert_same_bytes(&printed, &again);
    assert_non_null(strstr(printed.data, "\"backendConfig\": \"/+8=\""));
    assert_non_null(strstr(printed.data, "{\"map\": {\"b\": \"2\", \"a\": \"\"}}"));
    assert_non_null(strstr(printed.data, "[\"NaN\", \"Infinity\", \"-Infinity\", 0.1, -0.0, 3.4028235e+38]"));
    assert_non_null(strstr(printed.data, "\"pjrtId\": \"0\""));
    assert_int_equal(module->message->schedule->sequences[0]->key, 7);
    const float *values = module->instructions[0].literal->data;
    assert_memory_equal(values, second->instructions[0].literal->data, 6 * sizeof *values);
    text_free(&printed);
    text_free(&again);
    ir_module_free(module);
    ir_module_free(second);
}

/* Any cut of a binary file, and many damaged copies, end in an error of the
 * input or in a module, never elsewhere. */
static void damaged_files_are_refused(void **state) {
    (void)state;
    FileBytes bytes;
    assert_int_equal(file_read(&bytes, MODELS "mlp_tiny/model.hlo.pb", NULL), AM_OK);
    Random random;
    random_seed(&random, 7);
    for (int64_t i = 0; i < 400; i++) {
        int64_t length = i < 200 ? bytes.length * i / 200 : bytes.length;
        char *copy = malloc((size_t)length + 1);
        memcpy(copy, bytes.data, (size_t)length);
        for (int32_t k = 0; k < 3 && i >= 200; k++) {
            copy[random_below(&random, length)] = (char)random_bits(&random);
        }
        IrModule *module;
        AmError error = {0};
        AmStatus status = ir_read_bytes(&module, "m", copy, length, &error);
        if (i < 200) assert_int_equal(status, AM_ERROR_INPUT);
        assert_true(status == AM_OK || status == AM_ERROR_INPUT);
        assert_true(status == AM_OK || error.text[0] != '\0');
        if (status == AM_OK) ir_module_free(module);
        free(copy);
    }
    file_release(&bytes);
}

/* Messages inside messages: a HloModuleProto whose shape has tuples in tuples. */
static void deep_nesting_is_refused(void **state) {
    (void)state;
    Text shape = {0};
    text_append_bytes(&shape, "\x10\x0d", 2); /* element_type: TUPLE */
    for (int32_t i = 0; i < 5000; i++) {
        Text outer = wrapped(&shape, 4);
        text_append_bytes(&outer, "\x10\x0d", 2);
        text_free(&shape);
        shape = outer;
    }
    Text instruction = wrapped(&shape, 3);
    text_append_bytes(&instruction,
                      "\x12\x03"
                      "add",
                      5);
    Text computation = wrapped(&instruction, 2), module = wrapped(&computation, 3);
    IrModule *none;
    AmError error = {0};
    assert_int_equal(ir_read_bytes(&none, "m", module.data, (int64_t)module.length, &error), AM_ERROR_INPUT);
    assert_non_null(strstr(error.text, "nested"));
    text_free(&shape);
    text_free(&instruction);
    text_free(&computation);
    text_free(&module);

    Text json = {0};
    text_append_string(&json, "{\"computations\":[{\"instructions\":[{\"shape\":");
    for (int32_t i = 0; i < 500; i++) text_append_string(&json, "{\"tupleShapes\":[");
    for (int32_t i = 0; i < 500; i++) text_append_string(&json, "]}");
    text_append_string(&json, "}]}]}");
    assert_refused(json.data, "nested");
    text_free(&json);
}

static void other_files_are_refused(void **state) {
    (void)state;
    assert_refused("", "empty");
    assert_refused("\x89PNG\r\n\x1a\n", "expected an HLO module");
    assert_refused("hello", "expected an HLO module");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_models_are_read),
        cmocka_unit_test(binary_and_json_round_trip),
        cmocka_unit_test(suffixes_choose_the_encoding),
        cmocka_unit_test(wrapped_binary_is_read),
        cmocka_unit_test(json_variants_mean_the_same),
        cmocka_unit_test(json_errors_name_the_path),
        cmocka_unit_test(unknown_keys_are_skipped_with_one_warning),
        cmocka_unit_test(json_values_keep_their_bits),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
