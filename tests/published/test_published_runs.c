/* The reader of published runs: columns in any order, quotes, empty fields, and one line for a bad file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "published/runs.h"

#define HEAD  "source,model,device,layers,hidden,heads,vocab,sequence,devices,global_batch"
#define FIRST "paper,gpt,A100-80GB,24,1024,16,51200,1024,8,64"

static AmStatus read_text(PublishedRun **runs, int32_t *count, Arena *arena, const char *text,
                          AmError *error) {
    *error = (AmError){0};
    return published_read(runs, count, arena, "runs.csv", text, (int64_t)strlen(text), error);
}

static void test_read(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error;
    PublishedRun *runs;
    int32_t count;
    const char *text = "\xef\xbb\xbfnote,sequence_parallel,step_seconds,group," HEAD "\r\n"
                       "\"a, \"\"b\"\"\nc\",yes,0.5,,  paper ,gpt,A100-80GB,24,1024,16,51200,1024,8,64\r\n"
                       "\n"
                       ",,,\"g,1\"," FIRST;
    assert_int_equal(read_text(&runs, &count, &arena, text, &error), AM_OK);
    assert_int_equal(count, 2);
    assert_int_equal(runs[0].line, 2);
    assert_string_equal(runs[0].source, "paper");
    assert_string_equal(runs[0].group, "");
    assert_int_equal(runs[0].splits_sequence, 1);
    assert_true(runs[0].step_seconds == 0.5);
    assert_int_equal(runs[0].layers, 24);
    assert_int_equal(runs[0].global_batch, 64);
    assert_int_equal(runs[0].micro_batch, -1);
    assert_true(isnan(runs[0].peak_gib));
    assert_int_equal(runs[1].line, 5);
    assert_string_equal(runs[1].group, "g,1");
    assert_int_equal(runs[1].splits_sequence, -1);
    assert_true(isnan(runs[1].step_seconds));
    arena_free(&arena);
}

/* The first empty column that a row needs is kept, and the rows after it are read. */
static void test_missing(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error;
    PublishedRun *runs;
    int32_t count;
    const char *text =
        HEAD "\npaper,gpt,A100-80GB,,1024,16,,1024,8,64\n,gpt,A100-80GB,24,1024,16,1,1024,8,64\n" FIRST;
    assert_int_equal(read_text(&runs, &count, &arena, text, &error), AM_OK);
    assert_int_equal(count, 3);
    assert_string_equal(runs[0].missing, "layers");
    assert_int_equal(runs[0].layers, -1);
    assert_string_equal(runs[1].missing, "source");
    assert_null(runs[2].missing);
    arena_free(&arena);
}

static void check_refused(const char *text, int line, const char *words) {
    Arena arena = {0};
    AmError error;
    PublishedRun *runs;
    int32_t count;
    assert_int_equal(read_text(&runs, &count, &arena, text, &error), AM_ERROR_INPUT);
    assert_string_equal(error.source, "runs.csv");
    if (!strstr(error.text, words)) fail_msg("%s: expected %s", error.text, words);
    assert_int_equal(error.line, line);
    arena_free(&arena);
}

static void test_refused(void **state) {
    (void)state;
    check_refused("", 1, "expected a column source");
    check_refused("source,model\n", 1, "expected a column device");
    check_refused(HEAD ",vocab\n", 1, "column vocab is named twice");
    check_refused(HEAD "\n" FIRST "\npaper,gpt\n", 3, "expected 10 fields as in the first line, got 2");
    check_refused(HEAD "\npaper,gpt,A100,many,1,1,1,1,1,1\n", 2,
                  "layers: expected an integer from 1 to 1e9, got many");
    check_refused(HEAD "\npaper,gpt,A100,1.5,1,1,1,1,1,1\n", 2, "layers: expected an integer");
    check_refused(HEAD "\npaper,gpt,A100,0,1,1,1,1,1,1\n", 2, "layers: expected an integer");
    check_refused(HEAD "\npaper,gpt,A100,1e30,1,1,1,1,1,1\n", 2, "layers: expected an integer");
    check_refused("step_seconds," HEAD "\n-1," FIRST "\n", 2, "step_seconds: expected a number above 0");
    check_refused("step_seconds," HEAD "\ninf," FIRST "\n", 2, "step_seconds: expected a number above 0");
    check_refused("sequence_parallel," HEAD "\nmaybe," FIRST "\n", 2, "expected yes, no or nothing");
    check_refused(HEAD "\n" FIRST "\n\"paper,gpt\n", 3, "expected a closing quote");
    check_refused(HEAD "\n\"paper\"x,gpt\n", 2, "expected a comma or the end of the line");
}

static void test_binary(void **state) {
    (void)state;
    Arena arena = {0};
    AmError error = {0};
    PublishedRun *runs;
    int32_t count;
    static const char text[] = HEAD "\n\0\n";
    assert_int_equal(published_read(&runs, &count, &arena, "x", text, sizeof text, &error), AM_ERROR_INPUT);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_read), cmocka_unit_test(test_missing),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_binary)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
