/* Limits on memory from files of control groups below a folder that stands for the root. */
#define _XOPEN_SOURCE 700
#include "base/system/memory_limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[] = "/tmp/automap-limit-XXXXXX";

/* Writes a file below `root` and makes its folders. */
static void put(const char *path, const char *text) {
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *slash = strchr(name + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(name, 0777);
        *slash = '/';
    }
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void put_mounts(const char *group) {
    char text[512];
    snprintf(text, sizeof text,
             "30 23 0:26 / /proc rw - proc proc rw\n"
             "35 30 0:28 %s /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
             "36 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
             group);
    put("/proc/self/mountinfo", text);
}

static void test_version_2(void **state) {
    (void)state;
    put_mounts("/");
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.high", "max\n");
    put("/sys/fs/cgroup/a/memory.max", "50000000\n");
    MemoryLimit limit = memory_limit(root);
    assert_int_equal(limit.bytes, 50000000); /* of the group above */
    assert_string_equal(limit.name, "its control group");
    put("/sys/fs/cgroup/a/b/memory.high", "40000000\n");
    assert_int_equal(memory_limit(root).bytes, 40000000);
    put("/sys/fs/cgroup/a/b/memory.max", "30000000\n");
    assert_int_equal(memory_limit(root).bytes, 30000000);
    put("/sys/fs/cgroup/memory.max", "20000000\n"); /* a container's root */
    assert_int_equal(memory_limit(root).bytes, 20000000);
}

/* In a container the mounted root is a group below the real one, and the path may lie outside of it. */
static void test_container(void **state) {
    (void)state;
    put_mounts("/docker/x");
    put("/proc/self/cgroup", "0::/docker/x/job\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/job/memory.max", "15000000\n");
    assert_int_equal(memory_limit(root).bytes, 15000000);
    put("/proc/self/cgroup", "0::/docker/xy\n");
    put("/sys/fs/cgroup/memory.max", "14000000\n");
    assert_int_equal(memory_limit(root).bytes, 14000000);
}

static void test_version_1(void **state) {
    (void)state;
    put_mounts("/");
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/proc/self/cgroup", "5:cpu,cpuacct:/c\n4:memory:/m/n\n0::/\n");
    put("/sys/fs/cgroup/memory/m/n/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "60000000\n");
    assert_int_equal(memory_limit(root).bytes, 60000000);
}

/* The process's own limit holds at once, also where the files of the system were read just before. */
static void check_own_limit(const char *folder) {
    struct rlimit before, of;
    int64_t machine = memory_limit(folder).bytes;
    assert_true(machine > 0);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    of = before;
    of.rlim_cur = (rlim_t)machine / 2;
    assert_int_equal(setrlimit(RLIMIT_AS, &of), 0);
    MemoryLimit limit = memory_limit(folder);
    setrlimit(RLIMIT_AS, &before);
    assert_int_equal(limit.bytes, machine / 2);
    assert_string_equal(limit.name, "the limit on address space");
    assert_int_equal(memory_limit(folder).bytes, machine);
}

static void test_own_limit(void **state) {
    (void)state;
#ifdef AUTOMAP_SANITIZED
    skip(); /* the address sanitizer maps terabytes */
#endif
    put("/proc/self/cgroup", "0::/none\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    check_own_limit(root);
    check_own_limit("");
}

static void test_no_files(void **state) {
    (void)state;
    assert_true(memory_limit("/nowhere").bytes > 0);
    assert_string_equal(memory_limit("/nowhere").name, "this machine");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_version_2), cmocka_unit_test(test_container),
                                       cmocka_unit_test(test_version_1), cmocka_unit_test(test_own_limit),
                                       cmocka_unit_test(test_no_files)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
