/* Nearest names: swaps, case, prefixes, the limit of the distance, and hints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/suggest.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *const names[] = {"search",    "simulate",       "--cluster", "--evaluations",
                                    "H100-80GB", "H100-80GB-PCIe", "A100-40GB", "A100-80GB",
                                    NULL,        "anneal",         "dqn",       ""};

static void test_finds_the_nearest_name(void **state) {
    static const struct {
        const char *word, *expected;
    } cases[] = {
        {"serach", "search"},        /* a swap is one edit */
        {"saerhc", "search"},        /* two swaps */
        {"SEARCH", "search"},        /* case */
        {"--clustr", "--cluster"},   /* an insertion */
        {"annael", "anneal"},        /* a swap */
        {"simulatee", "simulate"},   /* a deletion */
        {"--eval", "--evaluations"}, /* the only one with this prefix */
        {"h100", "H100-80GB"},       /* the others with this prefix continue it */
        {"a100", NULL},              /* two names with this prefix */
        {"A100-8", "A100-80GB"},
        {"qdn", "dqn"},
        {"d", "dqn"},
        {"q", NULL}, /* two edits */
        {"xyz", NULL},
        {"searching-for", NULL},
        {"", NULL},
        {NULL, NULL},
    };
    (void)state;
    for (size_t k = 0; k < COUNT(cases); k++) {
        const char *found = suggest_nearest(cases[k].word, names, COUNT(names));
        if (!cases[k].expected) assert_null(found);
        else assert_non_null(found);
        if (found) assert_string_equal(found, cases[k].expected);
    }
}

static void test_prefers_the_least_distance(void **state) {
    static const char *const close[] = {"--trace", "--grace", "--place"};
    (void)state;
    assert_string_equal(suggest_nearest("--plaxe", close, COUNT(close)), "--place");
    assert_string_equal(suggest_nearest("--xrace", close, COUNT(close)), "--trace"); /* a tie: the first */
    assert_null(suggest_nearest("b", (const char *const[]){"a"}, 1));
    assert_string_equal(suggest_nearest("ba", (const char *const[]){"ab"}, 1), "ab");
}

static void test_bounds_the_lengths(void **state) {
    char word[4096], known[4096];
    const char *const candidates[] = {known};
    (void)state;
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    memcpy(known, word, sizeof word);
    assert_null(suggest_nearest(word, candidates, 1));
    word[96] = '\0';
    known[96] = '\0';
    known[95] = 'b';
    assert_string_equal(suggest_nearest(word, candidates, 1), known);
}

static void test_writes_a_hint(void **state) {
    char buffer[SUGGEST_HINT_BYTES];
    (void)state;
    assert_string_equal(suggest_hint(buffer, "serach", names, COUNT(names)), "; did you mean search?");
    assert_string_equal(suggest_hint(buffer, "nothing-like-it", names, COUNT(names)), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_the_nearest_name),
        cmocka_unit_test(test_prefers_the_least_distance),
        cmocka_unit_test(test_bounds_the_lengths),
        cmocka_unit_test(test_writes_a_hint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
