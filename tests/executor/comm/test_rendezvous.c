/* Meetings of threads: no thread passes before all have come, letters are complete until the next
 * rendezvous, and a failure releases waiting threads. As many threads as processors poll, and more sleep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/system/process.h"
#include "executor/comm/rendezvous.h"

enum { MOST_MEMBERS = 8, LETTER_WORDS = 20 };

typedef struct Member {
    Rendezvous *rendezvous;
    RendezvousGroup *group;
    int32_t position, turns;
    int64_t wrong; /* words of letters that were not of this meeting */
    AmStatus status;
    AmError error;
    pthread_t thread;
} Member;

static int64_t word_of(uint64_t round, int32_t position, int32_t k) {
    return (int64_t)round * 1000 + position * 100 + k;
}

static void *meet_again_and_again(void *argument) {
    Member *self = argument;
    for (int32_t turn = 0; turn < self->turns && self->status == AM_OK; turn++) {
        uint64_t round = rendezvous_round(self->group);
        int64_t *own = (int64_t *)rendezvous_letter(self->group, round, self->position);
        for (int32_t k = 0; k < LETTER_WORDS; k++) own[k] = word_of((uint64_t)turn, self->position, k);
        self->status = rendezvous_wait(self->rendezvous, self->group, self->position, &self->error);
        for (int32_t m = 0; m < self->group->count && self->status == AM_OK; m++) {
            const int64_t *letter = (const int64_t *)rendezvous_letter(self->group, round, m);
            for (int32_t k = 0; k < LETTER_WORDS; k++)
                self->wrong += letter[k] != word_of((uint64_t)turn, m, k);
        }
    }
    return NULL;
}

static Rendezvous *open_group(Member *members, int32_t count, int32_t turns) {
    static const int32_t ranks[MOST_MEMBERS] = {0, 1, 2, 3, 4, 5, 6, 7};
    Rendezvous *rendezvous;
    AmError error = {0};
    int32_t name;
    assert_int_equal(rendezvous_open(&rendezvous, 0, count, &error), AM_OK);
    assert_int_equal(rendezvous_join(rendezvous, ranks, count, &name, &error), AM_OK);
    RendezvousGroup *group = rendezvous_group(rendezvous, name);
    int64_t bytes = LETTER_WORDS * (int64_t)sizeof(int64_t);
    assert_int_equal(rendezvous_reserve_letters(rendezvous, group, 8, &error), AM_OK);
    assert_int_equal(rendezvous_reserve_letters(rendezvous, group, bytes, &error), AM_OK);
    for (int32_t m = 0; m < count; m++)
        members[m] = (Member){.rendezvous = rendezvous, .group = group, .position = m, .turns = turns};
    return rendezvous;
}

static void check(int32_t count, int32_t turns) {
    Member members[MOST_MEMBERS];
    Rendezvous *rendezvous = open_group(members, count, turns);
    for (int32_t m = 0; m < count; m++)
        assert_int_equal(pthread_create(&members[m].thread, NULL, meet_again_and_again, &members[m]), 0);
    for (int32_t m = 0; m < count; m++) {
        pthread_join(members[m].thread, NULL);
        assert_int_equal(members[m].status, AM_OK);
        assert_int_equal(members[m].wrong, 0);
    }
    assert_int_equal(rendezvous_round(members[0].group), turns);
    rendezvous_close(rendezvous);
}

static void test_letters_of_all_members(void **state) {
    (void)state;
    int32_t processors = process_processors();
    check(1, 100);
    check(2, 20000);
    check(processors < MOST_MEMBERS ? processors : MOST_MEMBERS, 2000);
    check(MOST_MEMBERS, 500);
}

static void check_release(int32_t count, bool before) {
    Member members[MOST_MEMBERS];
    Rendezvous *rendezvous = open_group(members, count, 1000);
    if (before) rendezvous_abort(rendezvous);
    for (int32_t m = 0; m < count - 1; m++)
        assert_int_equal(pthread_create(&members[m].thread, NULL, meet_again_and_again, &members[m]), 0);
    rendezvous_abort(rendezvous);
    for (int32_t m = 0; m < count - 1; m++) {
        pthread_join(members[m].thread, NULL);
        assert_int_equal(members[m].status, AM_ERROR_RUNTIME);
        assert_non_null(strstr(members[m].error.text, "because another rank failed"));
    }
    rendezvous_close(rendezvous);
}

static void test_failure_releases_all(void **state) {
    (void)state;
    for (int32_t k = 0; k < 50; k++) {
        check_release(2, k % 2);
        check_release(MOST_MEMBERS, k % 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_letters_of_all_members),
        cmocka_unit_test(test_failure_releases_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
