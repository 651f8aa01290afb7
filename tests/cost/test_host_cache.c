/* The measurement of a machine on disk: written and read, of other machines, damaged, links and other users'
 * files, folders that cannot be used, two processes at once. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "cost/cluster/host_cache.h"
#include "tests/support/host_case.h"

static const Machine machine = {.processor = "first", .processors = 4, .memory_bytes = (int64_t)8 << 30};

static char base[64];
static Arena arena;
static AmWarnings warnings;

static int begin_test(void **state) {
    (void)state;
    strcpy(base, "/tmp/automap-host-XXXXXX");
    arena = (Arena){0};
    warnings = (AmWarnings){.arena = &arena};
    return mkdtemp(base) ? 0 : -1;
}

static int end_test(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", base);
    arena_free(&arena);
    return system(command);
}

static void open_cache(HostCache *cache, const Machine *of) {
    assert_int_equal(host_cache_open(cache, of, base, true, &warnings, NULL), AM_OK);
}

static bool has_warning(const char *part) {
    for (int32_t k = 0; k < warnings.count; k++)
        if (strstr(warnings.texts[k], part)) return true;
    for (int32_t k = 0; k < warnings.count; k++) print_message("warning: %s\n", warnings.texts[k]);
    return false;
}

static void keep(const Machine *of, const char *text) {
    HostCache cache;
    json_t *measurement = host_measurement(text);
    open_cache(&cache, of);
    assert_true(host_cache_write(&cache, measurement, &warnings));
    host_cache_close(&cache);
    json_decref(measurement);
}

static bool is_kept(const Machine *of) {
    HostCache cache;
    open_cache(&cache, of);
    json_t *found = host_cache_read(&cache, &warnings);
    host_cache_close(&cache);
    json_decref(found);
    return found != NULL;
}

static void a_measurement_is_read_back(void **state) {
    (void)state;
    HostCache cache;
    struct stat facts;
    assert_false(is_kept(&machine));
    keep(&machine, HOST_MEASUREMENT);
    open_cache(&cache, &machine);
    json_t *found = host_cache_read(&cache, &warnings), *expected = host_measurement(HOST_MEASUREMENT);
    json_t *ranks = json_object_get(json_object_get(found, "link"), "collectives");
    assert_true(json_equal(ranks, json_object_get(json_object_get(expected, "link"), "collectives")));
    json_decref(expected);
    json_decref(found);
    assert_int_equal(stat(cache.path, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
    host_cache_close(&cache);
    assert_int_equal(warnings.count, 0);
}

static void every_part_of_the_machine_counts(void **state) {
    (void)state;
    Machine others[5];
    keep(&machine, HOST_MEASUREMENT);
    for (int k = 0; k < 5; k++) others[k] = machine;
    strcpy(others[0].processor, "second");
    others[1].processors = 3;
    others[2].memory_bytes /= 2;
    strcpy(others[3].vectors, "avx2");
    strcpy(others[4].blas, "another");
    for (int k = 0; k < 5; k++) assert_false(is_kept(&others[k]));
    assert_true(is_kept(&machine));
    HostCache cache;
    keep(&others[0], HOST_MEASUREMENT);
    open_cache(&cache, &machine);
    assert_int_equal(host_cache_forget(&cache, &warnings), 2);
    host_cache_close(&cache);
    assert_false(is_kept(&machine));
    assert_false(is_kept(&others[0]));
    assert_int_equal(warnings.count, 0);
}

static void damaged_files_are_not_used(void **state) {
    (void)state;
    static const char *const texts[] = {"", "{", "[]", "{\"format\": \"automap-host-1\"}",
                                        "\x7f"
                                        "ELF"};
    HostCache cache;
    keep(&machine, HOST_MEASUREMENT);
    open_cache(&cache, &machine);
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        FILE *file = fopen(cache.path, "w");
        fputs(texts[k], file);
        fclose(file);
        warnings.count = 0;
        assert_null(host_cache_read(&cache, &warnings));
        assert_true(has_warning("it is not used"));
    }
    host_cache_close(&cache);
    keep(&machine, HOST_MEASUREMENT); /* a new measurement replaces it */
    assert_true(is_kept(&machine));
    /* The same hash in the name, but of another machine; and a measurement without a part. */
    Machine second = machine;
    strcpy(second.processor, "second");
    HostCache other;
    open_cache(&cache, &machine);
    open_cache(&other, &second);
    assert_int_equal(rename(cache.path, other.path), 0);
    assert_null(host_cache_read(&other, &warnings));
    assert_true(has_warning("another machine or version"));
    json_t *broken = host_measurement(HOST_MEASUREMENT);
    json_object_del(broken, "link");
    assert_true(host_cache_write(&cache, broken, &warnings));
    assert_null(host_cache_read(&cache, &warnings));
    assert_true(has_warning("$.link: missing"));
    json_decref(broken);
    host_cache_close(&cache);
    host_cache_close(&other);
}

static void links_are_not_followed(void **state) {
    (void)state;
    HostCache cache;
    char real[256], folder[128];
    struct stat facts;
    keep(&machine, HOST_MEASUREMENT);
    open_cache(&cache, &machine);
    snprintf(real, sizeof real, "%s/elsewhere.json", base);
    assert_int_equal(rename(cache.path, real), 0);
    assert_int_equal(symlink(real, cache.path), 0);
    assert_null(host_cache_read(&cache, &warnings));
    assert_true(has_warning("is a link"));
    /* Writing replaces the link and leaves its target. */
    json_t *measurement = host_measurement(HOST_MEASUREMENT);
    assert_int_equal(truncate(real, 0), 0);
    assert_true(host_cache_write(&cache, measurement, &warnings));
    json_decref(measurement);
    assert_int_equal(stat(real, &facts), 0);
    assert_int_equal(facts.st_size, 0);
    assert_true(is_kept(&machine));
    /* A link instead of the lock file is refused too. */
    char lock[4200];
    snprintf(lock, sizeof lock, "%s/automap/%s", base, cache.lock_name);
    assert_int_equal(symlink(real, lock), 0);
    assert_false(host_cache_lock(&cache, 0, NULL, NULL, &warnings));
    assert_true(has_warning("cannot be locked"));
    host_cache_close(&cache);
    /* Nor is the folder itself a link. */
    char moved[128];
    snprintf(folder, sizeof folder, "%s/automap", base);
    snprintf(moved, sizeof moved, "%s/moved", base);
    assert_int_equal(rename(folder, moved), 0);
    assert_int_equal(symlink(moved, folder), 0);
    open_cache(&cache, &machine);
    assert_int_equal(cache.folder, -1);
    assert_true(has_warning("is not a folder"));
    assert_null(host_cache_read(&cache, &warnings));
    host_cache_close(&cache);
}

static void unusable_folders_keep_nothing(void **state) {
    (void)state;
    HostCache cache;
    char folder[128];
    snprintf(folder, sizeof folder, "%s/automap", base);
    json_t *measurement = host_measurement(HOST_MEASUREMENT);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    open_cache(&cache, &machine);
    assert_true(has_warning("is writable by other users"));
    assert_false(host_cache_lock(&cache, 0, NULL, NULL, &warnings));
    assert_false(host_cache_write(&cache, measurement, &warnings));
    host_cache_close(&cache);
    assert_int_equal(rmdir(folder), 0);
    FILE *file = fopen(folder, "w"); /* in the way */
    fclose(file);
    warnings.count = 0;
    open_cache(&cache, &machine);
    assert_true(has_warning("is not a folder"));
    host_cache_close(&cache);
    /* Without HOME there is no cache. */
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    char *cache_home = getenv("XDG_CACHE_HOME") ? strdup(getenv("XDG_CACHE_HOME")) : NULL;
    unsetenv("HOME");
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(host_cache_open(&cache, &machine, NULL, true, &warnings, NULL), AM_OK);
    assert_int_equal(cache.folder, -1);
    assert_true(has_warning("neither XDG_CACHE_HOME nor HOME is set"));
    host_cache_close(&cache);
    if (home) setenv("HOME", home, 1);
    if (cache_home) setenv("XDG_CACHE_HOME", cache_home, 1);
    free(home);
    free(cache_home);
    json_decref(measurement);
}

/* Keeps a measurement as a command does: once, by the process that has the lock. Returns 1 if it
 * measured. */
static int measure_once(void) {
    HostCache cache;
    json_t *found = NULL;
    int measured = 0;
    open_cache(&cache, &machine);
    bool locked = host_cache_lock(&cache, 30, NULL, NULL, &warnings);
    if (locked) found = host_cache_read(&cache, &warnings);
    if (!found) {
        usleep(200000);
        found = host_measurement(HOST_MEASUREMENT);
        measured = host_cache_write(&cache, found, &warnings) && locked;
    }
    json_decref(found);
    host_cache_close(&cache);
    return measured;
}

static void two_processes_measure_once(void **state) {
    (void)state;
    int measured = 0;
    for (int k = 0; k < 4; k++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(measure_once());
    }
    for (int k = 0; k < 4; k++) {
        int code;
        assert_true(wait(&code) > 0);
        assert_true(WIFEXITED(code));
        measured += WEXITSTATUS(code);
    }
    assert_int_equal(measured, 1);
    assert_true(is_kept(&machine));
}

static void note_waiting(void *user) {
    ++*(int *)user;
}

static void waiting_ends(void **state) {
    (void)state;
    HostCache first, second;
    int waited = 0;
    open_cache(&first, &machine);
    open_cache(&second, &machine);
    assert_true(host_cache_lock(&first, 0, NULL, NULL, &warnings));
    assert_false(host_cache_lock(&second, 0.12, note_waiting, &waited, &warnings));
    assert_int_equal(waited, 1);
    assert_true(has_warning("another process"));
    host_cache_close(&first);
    assert_true(host_cache_lock(&second, 0, note_waiting, &waited, &warnings));
    host_cache_close(&second);
    assert_int_equal(waited, 1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin_test, end_test)
    const struct CMUnitTest tests[] = {
        TEST(a_measurement_is_read_back),
        TEST(every_part_of_the_machine_counts),
        TEST(damaged_files_are_not_used),
        TEST(links_are_not_followed),
        TEST(unusable_folders_keep_nothing),
        TEST(two_processes_measure_once),
        TEST(waiting_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
