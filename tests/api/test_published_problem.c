/* Rows of a table of runs that have the same model and cluster, and so share a search. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "api/reports/published_rows.h"

#define HEAD                                                                                        \
    "source,model,device,layers,hidden,heads,vocab,sequence,devices,global_batch,data,micro_batch," \
    "network_gbit_per_device,zero,dtype\n"

static PublishedRun *read_rows(Arena *arena, const char *text, int32_t *count) {
    PublishedRun *runs;
    AmError error = {0};
    if (published_read(&runs, count, arena, "runs.csv", text, (int64_t)strlen(text), &error) != AM_OK)
        fail_msg("%s", error.text);
    return runs;
}

/* Strategies are no part of the problem. A missing rate equals a missing rate. */
static void test_same(void **state) {
    (void)state;
    Arena arena = {0};
    int32_t count;
    const PublishedRun *runs = read_rows(&arena,
                                         HEAD "a,gpt,A100-80GB,2,64,4,100,32,8,64,8,1,,0,f16\n"
                                              "b,gpt,A100-80GB,2,64,4,100,32,8,64,2,4,,1,f16\n"
                                              "c,gpt,A100-80GB,2,64,4,100,32,8,64,,,,,f16\n",
                                         &count);
    for (int32_t k = 1; k < count; k++) assert_true(published_is_same_problem(&runs[0], &runs[k]));
    arena_free(&arena);
}

/* Each row differs from the first in one field; ZeRO 3 has no copies of weights, and overlaps. */
static void test_different(void **state) {
    (void)state;
    Arena arena = {0};
    int32_t count;
    const PublishedRun *runs = read_rows(&arena,
                                         HEAD "a,gpt,A100-80GB,2,64,4,100,32,16,64,8,1,100,0,f16\n"
                                              "a,bert,A100-80GB,2,64,4,100,32,16,64,8,1,100,0,f16\n"
                                              "a,gpt,V100,2,64,4,100,32,16,64,8,1,100,0,f16\n"
                                              "a,gpt,A100-80GB,3,64,4,100,32,16,64,8,1,100,0,f16\n"
                                              "a,gpt,A100-80GB,2,64,4,100,32,8,64,8,1,100,0,f16\n"
                                              "a,gpt,A100-80GB,2,64,4,100,32,16,32,8,1,100,0,f16\n"
                                              "a,gpt,A100-80GB,2,64,4,100,32,16,64,8,1,200,0,f16\n"
                                              "a,gpt,A100-80GB,2,64,4,100,32,16,64,8,1,,0,f16\n"
                                              "a,gpt,A100-80GB,2,64,4,100,32,16,64,8,1,100,3,f16\n"
                                              "a,gpt,A100-80GB,2,64,4,,32,16,64,8,1,100,0,f16\n"
                                              "a,gpt,A100-80GB,2,64,4,100,32,16,64,8,1,100,0,f32\n",
                                         &count);
    assert_true(published_is_same_problem(&runs[0], &runs[0]));
    for (int32_t k = 1; k < count; k++) {
        if (published_is_same_problem(&runs[0], &runs[k])) fail_msg("line %d", (int)runs[k].line);
        if (published_is_same_problem(&runs[k], &runs[0])) fail_msg("line %d, reversed", (int)runs[k].line);
    }
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_different)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
