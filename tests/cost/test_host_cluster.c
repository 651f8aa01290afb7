/* host:N from a measurement: ranks up to the processors, between one and all of them, and more than
 * them; the required parts of a measurement; the machine from copies of the files of the system. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files/json.h"
#include "base/system/process.h"
#include "cost/cluster/cluster.h"
#include "cost/cluster/host_cluster.h"
#include "cost/cluster/operator_curves.h"
#include "tests/support/host_case.h"

static const Machine machine = {.processor = "test", .processors = 4, .memory_bytes = (int64_t)16 << 30};

typedef struct Described {
    Arena arena;
    json_t *description;
    Cluster *cluster;
} Described;

static void describe(Described *self, const char *text, int32_t ranks) {
    AmError error = {0};
    *self = (Described){0};
    json_t *measurement = host_measurement(text);
    AmStatus status = host_cluster_describe(&self->description, measurement, &machine, ranks, "test", &error);
    if (status == AM_OK)
        status = cluster_from_json(&self->cluster, &self->arena, self->description, "test", &error);
    if (status != AM_OK) fail_msg("%s", error.text);
    json_decref(measurement);
}

static void end(Described *self) {
    cluster_free(self->cluster);
    json_decref(self->description);
    arena_free(&self->arena);
}

static void assert_near(double value, double expected) {
    if (!(fabs(value - expected) < 1e-3 * expected)) fail_msg("%g, expected %g", value, expected);
}

static double product_seconds(const Described *self) {
    const double sizes[] = {1, 4, 4, 4};
    return operator_curve_seconds(self->cluster->types[0].operators, OPERATOR_CLASS_DOT_NN, sizes);
}

static double reduce_seconds(const Described *self, double ranks, double bytes) {
    const double sizes[] = {ranks, bytes, 0, 0};
    return operator_curve_seconds(self->cluster->links[0].collectives, OPERATOR_CLASS_ALL_REDUCE, sizes);
}

static void ranks_up_to_the_processors(void **state) {
    (void)state;
    Described self;
    describe(&self, HOST_MEASUREMENT, 1);
    assert_string_equal(self.cluster->name, "host:1");
    assert_int_equal(self.cluster->link_count, 0);
    assert_near(product_seconds(&self), 1e-6);
    assert_int_equal(self.cluster->types[0].memory_bytes, (int64_t)16 << 30);
    end(&self);
    describe(&self, HOST_MEASUREMENT, 4);
    assert_int_equal(self.cluster->device_count, 4);
    assert_near(product_seconds(&self), 4e-6);
    assert_near(self.cluster->types[0].flops_per_second[DTYPE_F32], 100e9);
    assert_true(self.cluster->types[0].processors == 1);
    assert_false(self.cluster->types[0].overlaps_communication);
    assert_int_equal(self.cluster->types[0].memory_bytes, (int64_t)4 << 30);
    assert_near(reduce_seconds(&self, 4, 4096), 3e-6);
    assert_near(self.cluster->links[0].bytes_per_second, 5e9);
    end(&self);
    /* w = log 2 / log 4 = 1/2: the geometric mean. */
    describe(&self, HOST_MEASUREMENT, 2);
    assert_near(product_seconds(&self), 2e-6);
    assert_near(reduce_seconds(&self, 2, 4096), 2e-6);
    assert_true(self.cluster->types[0].processors == 1);
    end(&self);
}

static void more_ranks_than_processors(void **state) {
    (void)state;
    Described self;
    describe(&self, HOST_MEASUREMENT, 6); /* s = 1.5: half-way between both curves */
    assert_near(self.cluster->types[0].processors, 4.0 / 6);
    assert_near(product_seconds(&self), 4e-6); /* divided by `processors` where it is priced */
    assert_near(reduce_seconds(&self, 4, 4096), 3e-6 + 0.5 * (40e-6 - 3e-6));
    assert_near(reduce_seconds(&self, 8, 4096), 80e-6);
    end(&self);
    describe(&self, HOST_MEASUREMENT, 8);
    assert_near(self.cluster->types[0].processors, 0.5);
    assert_near(reduce_seconds(&self, 4, 4096), 40e-6);
    assert_near(self.cluster->links[0].bytes_per_second, 2.5e9);
    assert_near(self.cluster->links[0].latency_seconds, 2e-6);
    end(&self);
    describe(&self, HOST_MEASUREMENT, 16); /* s = 4: twice what s = 2 takes */
    assert_near(self.cluster->types[0].processors, 0.25);
    assert_near(reduce_seconds(&self, 4, 4096), 80e-6);
    assert_near(reduce_seconds(&self, 8, 256), 32e-6);
    assert_int_equal(self.cluster->types[0].memory_bytes, (int64_t)1 << 30);
    end(&self);
}

/* One figure that was disturbed: an all-reduce takes no longer than its two halves, these no longer than
 * it. */
static void collectives_bound_one_another(void **state) {
    (void)state;
    static const char *const kinds[] = {"all_reduce", "all_gather", "reduce_scatter"};
    static const double seconds[][2] = {{90e-6, 2e-6}, {3e-6, 1e-6}, {4e-6, 50e-6}};
    static const OperatorClass classes[] = {OPERATOR_CLASS_ALL_REDUCE, OPERATOR_CLASS_ALL_GATHER,
                                            OPERATOR_CLASS_REDUCE_SCATTER};
    static const double expected[][2] = {{7e-6, 2e-6}, {3e-6, 1e-6}, {4e-6, 2e-6}};
    json_t *measurement = host_measurement(HOST_MEASUREMENT), *curves = json_object();
    for (int k = 0; k < 3; k++)
        json_object_set_new(curves, kinds[k],
                            json_pack("{s:[[i], [i, i]], s:[f, f]}", "sizes", 4, 256, 4096, "seconds",
                                      seconds[k][0], seconds[k][1]));
    json_object_set_new(json_object_get(measurement, "link"), "collectives", curves);
    char *text = json_dumps(measurement, 0);
    Described self;
    describe(&self, text, 4);
    for (int k = 0; k < 3; k++)
        for (int s = 0; s < 2; s++) {
            const double sizes[] = {4, s == 0 ? 256 : 4096, 0, 0};
            assert_near(operator_curve_seconds(self.cluster->links[0].collectives, classes[k], sizes),
                        expected[k][s]);
        }
    end(&self);
    free(text);
    json_decref(measurement);
}

/* Two ranks per processor are measured quicker than one: the figure of one was disturbed. */
static void sharing_is_no_quicker(void **state) {
    (void)state;
    json_t *measurement = host_measurement(HOST_MEASUREMENT);
    json_t *link = json_object_get(json_object_get(measurement, "link"), "collectives");
    json_array_set_new(json_object_get(json_object_get(link, "all_reduce"), "seconds"), 3, json_real(1e-3));
    char *text = json_dumps(measurement, 0);
    Described self;
    describe(&self, text, 4);
    assert_near(reduce_seconds(&self, 4, 4096), 40e-6);
    assert_near(reduce_seconds(&self, 4, 256), 2e-6);
    end(&self);
    free(text);
    json_decref(measurement);
}

static void a_description_is_the_same_each_time(void **state) {
    (void)state;
    Described first, second;
    describe(&first, HOST_MEASUREMENT, 3);
    describe(&second, HOST_MEASUREMENT, 3);
    assert_string_equal(first.cluster->sha256, second.cluster->sha256);
    end(&first);
    end(&second);
}

static void what_lacks_a_part_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *name, *message;
    } rows[] = {
        {"processors", "$.processors: missing"},
        {"alone", "$.alone: missing"},
        {"together", "$.together: missing"},
        {"link", "$.link: missing"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        AmError error = {0};
        json_t *measurement = host_measurement(HOST_MEASUREMENT);
        json_object_del(measurement, rows[k].name);
        assert_int_equal(host_cluster_check(measurement, &machine, "test", &error), AM_ERROR_INPUT);
        if (!strstr(error.text, rows[k].message))
            fail_msg("\"%s\" is not in: %s", rows[k].message, error.text);
        json_decref(measurement);
    }
    /* Without collectives of ranks that share processors those of ranks that do not are scaled. */
    Described self;
    json_t *measurement = host_measurement(HOST_MEASUREMENT);
    json_object_del(measurement, "shared");
    char *text = json_dumps(measurement, 0);
    describe(&self, text, 8);
    assert_near(reduce_seconds(&self, 4, 4096), 6e-6);
    end(&self);
    free(text);
    json_decref(measurement);
}

static void names_are_recognised(void **state) {
    (void)state;
    AmError error = {0};
    int32_t ranks;
    static const char *const bad[] = {"host:", "host:0", "host:-1", "host:1025", "host:2x", "host: 2"};
    assert_int_equal(host_cluster_ranks(&ranks, "host:1024", &error), AM_OK);
    assert_int_equal(ranks, 1024);
    assert_int_equal(host_cluster_ranks(&ranks, "nominal:4", &error), AM_OK);
    assert_int_equal(ranks, 0);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        assert_int_equal(host_cluster_ranks(&ranks, bad[k], &error), AM_ERROR_USAGE);
}

static void write_below(const char *root, const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* A quota above, or of, the group; version 1 and 2. */
static void control_groups_limit_the_machine(void **state) {
    (void)state;
    Machine found;
    char root[] = "/tmp/automap-machine-XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    machine_find(&found, root);
    assert_int_equal(found.processors, process_processors());
    int64_t memory = found.memory_bytes;
    write_below(root, "/proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast \t2\nmodel name\t: Other\n");
    write_below(root, "/proc/self/cgroup", "0::/user/job\n");
    write_below(root, "/sys/fs/cgroup/user/cpu.max", "90000 100000\n");
    write_below(root, "/sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
    write_below(root, "/sys/fs/cgroup/user/job/memory.max", "1610612736\n");
    machine_find(&found, root);
    assert_int_equal(found.processors, 1);
    assert_int_equal(found.memory_bytes, (int64_t)3 << 29);
    assert_string_equal(found.processor, "Fast ?2");
    write_below(root, "/proc/self/cgroup", "4:memory:/a\n3:cpuacct,cpu:/b\n2:cpuset:/../..\n0::/\n");
    write_below(root, "/sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "-1\n");
    write_below(root, "/sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n");
    write_below(root, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    machine_find(&found, root);
    assert_int_equal(found.processors, process_processors());
    assert_int_equal(found.memory_bytes, memory);
    write_below(root, "/sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "50000\n");
    write_below(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n");
    machine_find(&found, root);
    assert_int_equal(found.processors, 1);
    assert_int_equal(found.memory_bytes, 1 << 20);
    /* In a container the mounted root is the group itself, and its files are at the top. */
    write_below(root, "/proc/self/cgroup", "0::/docker/x/job\n");
    write_below(root, "/proc/self/mountinfo",
                "35 30 0:28 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    write_below(root, "/sys/fs/cgroup/cpu.max", "max 100000\n");
    write_below(root, "/sys/fs/cgroup/memory.max", "8388608\n");
    write_below(root, "/sys/fs/cgroup/job/cpu.max", "10000 100000\n");
    write_below(root, "/sys/fs/cgroup/job/memory.max", "4194304\n");
    machine_find(&found, root);
    assert_int_equal(found.processors, 1);
    assert_int_equal(found.memory_bytes, 4 << 20);
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_up_to_the_processors),
        cmocka_unit_test(more_ranks_than_processors),
        cmocka_unit_test(collectives_bound_one_another),
        cmocka_unit_test(sharing_is_no_quicker),
        cmocka_unit_test(a_description_is_the_same_each_time),
        cmocka_unit_test(what_lacks_a_part_is_refused),
        cmocka_unit_test(names_are_recognised),
        cmocka_unit_test(control_groups_limit_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
