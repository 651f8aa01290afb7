/* Recognition of files by content: frameworks' formats, automap's JSON files, HLO, and what stays unknown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/files/file_format.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define BYTES(text)  text, sizeof text - 1

static void test_recognises_formats(void **state) {
    static const struct {
        const char *data;
        size_t length;
        FileFormat format;
        const char *name; /* a part of it, or NULL */
    } cases[] = {
        {BYTES("HloModule m\n"), FILE_FORMAT_HLO, "HLO"},
        {BYTES("\n  HloModule m, is_scheduled=true\n"), FILE_FORMAT_HLO, "HLO"},
        {BYTES("\x0a\x05jit_f\x12\x04main"), FILE_FORMAT_HLO, "HLO"},
        {BYTES("{\"name\": \"m\", \"computations\": []}"), FILE_FORMAT_HLO, "HLO"},
        {BYTES("{\"format\": \"automap-plan-1\"}"), FILE_FORMAT_PLAN, "plan"},
        {BYTES("{\n \"name\": 1,\n \"format\" :\n\"automap-cluster-1\"}"), FILE_FORMAT_CLUSTER, "cluster"},
        {BYTES("{\"format\":\"automap-roles-1\"}"), FILE_FORMAT_ROLES, "roles"},
        {BYTES("{\"format\":\"automap-profile-1\"}"), FILE_FORMAT_PROFILE, "profile"},
        {BYTES("{\"format\":\"automap-jax-1\"}"), FILE_FORMAT_OTHER, "exported"},
        {BYTES("{\"format\":\"automap-planet-1\"}"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("{\"cluster\": {\"format\": \"automap-cluster-1\"}}"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("{\"a\": \"\\\"}{\", \"format\": \"automap-plan-1\"}"), FILE_FORMAT_PLAN, "plan"},
        {BYTES("\xef\xbb\xbf{\"format\": \"automap-plan-1\"}"), FILE_FORMAT_PLAN, "plan"},
        {BYTES("\xff\xfe{\0}\0"), FILE_FORMAT_OTHER, "UTF-16"},
        {BYTES("{\"format\": 7}"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("{\"format\""), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("{\"format\":"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("{}"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("module @jit_f attributes {} {"), FILE_FORMAT_OTHER, "StableHLO"},
        {BYTES("module {\n"), FILE_FORMAT_OTHER, "StableHLO"},
        {BYTES("// comment\n#loc1 = loc(\"w\")\nmodule {"), FILE_FORMAT_OTHER, "StableHLO"},
        {BYTES("module_name = 1"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("{ lambda ; a:f32[8]. let"), FILE_FORMAT_OTHER, "jaxpr"},
        {BYTES("# comment\nimport jax\n"), FILE_FORMAT_OTHER, "Python"},
        {BYTES("imported"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("ML\xefR\x0dStableHLO"), FILE_FORMAT_OTHER, "bytecode"},
        {BYTES("\x93NUMPY\x01\x00"), FILE_FORMAT_OTHER, "NumPy array"},
        {BYTES("PK\x03\x04\x14\x00\x00\x00w.npy"), FILE_FORMAT_OTHER, "npz"},
        {BYTES("PK\x03\x04\x00\x00model/data.pkl"), FILE_FORMAT_OTHER, "PyTorch"},
        {BYTES("PK\x03\x04\x00\x00m/archive_format"), FILE_FORMAT_OTHER, "torch.export"},
        {BYTES("PK\x03\x04\x00\x00other"), FILE_FORMAT_OTHER, "zip"},
        {BYTES("\x80\x04\x95\x10\x00."), FILE_FORMAT_OTHER, "pickle"},
        {BYTES("\x80\x04\x95\x10\x00"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("\x02\0\0\0\0\0\0\0{}"), FILE_FORMAT_OTHER, "safetensors"},
        {BYTES("\xff\0\0\0\0\0\0\0{}"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("\x08\x01\x12\x10\x0a\x04"), FILE_FORMAT_OTHER, "SavedModel"},
        {BYTES("\x08\x08\x12\x07pytorch"), FILE_FORMAT_OTHER, "ONNX"},
        {BYTES("\x01\x02\x03"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES("\x01"), FILE_FORMAT_UNKNOWN, NULL},
        {BYTES(""), FILE_FORMAT_UNKNOWN, NULL},
    };
    (void)state;
    for (size_t k = 0; k < COUNT(cases); k++) {
        const char *name;
        FileFormat format = file_format_of(cases[k].data, (int64_t)cases[k].length, &name);
        if (format != cases[k].format) print_message("case %zu: %.40s\n", k, cases[k].data);
        assert_int_equal(format, cases[k].format);
        if (!cases[k].name) assert_null(name);
        else assert_non_null(strstr(name, cases[k].name));
    }
}

static void test_recognises_jax_export(void **state) {
    char data[256] = {0x3c};
    const char *name;
    (void)state;
    assert_int_equal(file_format_of(data, sizeof data, &name), FILE_FORMAT_UNKNOWN);
    memcpy(data + 200, "ML\xefR", 4);
    assert_int_equal(file_format_of(data, sizeof data, &name), FILE_FORMAT_OTHER);
    assert_non_null(strstr(name, "jax.export"));
}

/* Every prefix is read within its bounds (for sanitizers) and never as a plan before its kind is complete. */
static void test_reads_no_further_than_the_data(void **state) {
    static const char text[] = "{\"format\": \"automap-plan-1\"}";
    char copy[sizeof text];
    (void)state;
    for (size_t length = 0; length < sizeof text; length++) {
        memset(copy, '"', sizeof copy);
        memcpy(copy, text, length);
        FileFormat expected =
            length > strlen("{\"format\": \"automap-plan") ? FILE_FORMAT_PLAN : FILE_FORMAT_UNKNOWN;
        assert_int_equal(file_format_of(copy, (int64_t)length, NULL), expected);
    }
    /* Only white space: exactly as long as its allocation. */
    char *blank = malloc(1);
    assert_non_null(blank);
    *blank = '\t';
    assert_int_equal(file_format_of(blank, 1, NULL), FILE_FORMAT_UNKNOWN);
    free(blank);
}

static void test_names_both_formats(void **state) {
    static const char plan[] = "{\"format\": \"automap-plan-1\"}", foreign[] = "module {}", noise[] = "{}";
    AmError error = {0};
    (void)state;
    assert_int_equal(file_format_expect(FILE_FORMAT_PLAN, "p", plan, sizeof plan - 1, &error), AM_OK);
    assert_int_equal(file_format_expect(FILE_FORMAT_PLAN, "p", noise, sizeof noise - 1, &error), AM_OK);
    assert_int_equal(file_format_expect(FILE_FORMAT_HLO, "p", plan, sizeof plan - 1, &error), AM_ERROR_INPUT);
    assert_string_equal(error.source, "p");
    assert_string_equal(error.text,
                        "this is a plan, expected an HLO module; PLAN stands before MODEL or after "
                        "--plan");
    error = (AmError){0};
    assert_int_equal(file_format_expect(FILE_FORMAT_CLUSTER, "p", foreign, sizeof foreign - 1, &error),
                     AM_ERROR_INPUT);
    assert_string_equal(error.text, "this is StableHLO text (MLIR), expected a cluster");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recognises_formats),
        cmocka_unit_test(test_recognises_jax_export),
        cmocka_unit_test(test_reads_no_further_than_the_data),
        cmocka_unit_test(test_names_both_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
