/* The number of a process, from the variables of torchrun and Slurm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/processes/bootstrap.h"
#include "executor/processes/mpi_wire.h"

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "MPI_LOCALNRANKS",
                                        "MPI_LOCALRANKID",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_LOCALID",
                                        "SLURM_NODEID",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_JOB_NODELIST",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "AUTOMAP_SECRET",
                                        "AUTOMAP_PORT"};

/* "NAME=value ..." becomes the environment. */
static void set(const char *assignments) {
    char copy[1024], *rest = copy;
    for (size_t k = 0; k < sizeof variables / sizeof variables[0]; k++) unsetenv(variables[k]);
    strcpy(copy, assignments);
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
}

static ProcessPlace read_place(const char *assignments) {
    ProcessPlace place;
    AmError error = {0};
    set(assignments);
    if (bootstrap_read(&place, &error) != AM_OK) fail_msg("%s: %s", assignments, error.text);
    return place;
}

static void expect_error(const char *assignments, const char *text) {
    ProcessPlace place;
    AmError error = {0};
    set(assignments);
    assert_int_equal(bootstrap_read(&place, &error), AM_ERROR_USAGE);
    if (!strstr(error.text, text)) fail_msg("%s: '%s', expected '%s'", assignments, error.text, text);
}

#define TORCHRUN "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node7 MASTER_PORT=29500"

static void test_torchrun(void **state) {
    (void)state;
    ProcessPlace place = read_place(TORCHRUN);
    assert_string_equal(place.launcher, "torchrun");
    assert_int_equal(place.process, 5);
    assert_int_equal(place.count, 8);
    assert_int_equal(place.local_process, 1);
    assert_int_equal(place.local_count, 4);
    assert_string_equal(place.host, "node7");
    assert_int_equal(place.port, 29500);
    assert_int_equal(read_place(TORCHRUN " TORCHELASTIC_USE_AGENT_STORE=True").port, 29501);
    assert_int_equal(read_place(TORCHRUN " AUTOMAP_PORT=4000").port, 4000);
    ProcessPlace other = read_place(TORCHRUN " TORCHELASTIC_RUN_ID=other");
    assert_string_not_equal(place.secret, other.secret);
    other = read_place(TORCHRUN " AUTOMAP_SECRET=mine");
    assert_string_not_equal(place.secret, other.secret);
    assert_int_equal(strlen(place.secret), 64);
    expect_error("RANK=8 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", "RANK is 8: expected");
    expect_error("RANK=1 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", "MASTER_ADDR is missing");
    expect_error("RANK=1 WORLD_SIZE=8 LOCAL_RANK=1", "LOCAL_WORLD_SIZE is missing");
    expect_error("RANK=1 WORLD_SIZE=9999999999999 LOCAL_RANK=1", "WORLD_SIZE is 9999999999999");
    expect_error(TORCHRUN " AUTOMAP_PORT=70000", "AUTOMAP_PORT");
}

#define SLURM                                                                       \
    "SLURM_PROCID=3 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_JOB_ID=77 " \
    "SLURM_JOB_NODELIST=login,gpu[1-4] SLURM_STEP_NODELIST=gpu[003-004,9]-ib,x "    \
    "SLURM_STEP_TASKS_PER_NODE=2(x2),4"

static void test_slurm(void **state) {
    (void)state;
    ProcessPlace place = read_place(SLURM " SLURM_STEP_ID=2");
    assert_string_equal(place.launcher, "Slurm");
    assert_int_equal(place.process, 3);
    assert_int_equal(place.count, 8);
    assert_int_equal(place.local_process, 1);
    assert_int_equal(place.local_count, 2);
    assert_string_equal(place.host, "gpu003-ib");
    assert_true(place.port >= 1024 && place.port < 32768);
    ProcessPlace other = read_place(SLURM " SLURM_STEP_ID=3");
    assert_true(place.port != other.port);
    assert_string_not_equal(place.secret, other.secret);
    assert_int_equal(read_place(SLURM " SLURM_STEP_ID=2 SLURM_STEP_NUM_TASKS=4").count, 4);
    /* The batch script itself runs before any step. */
    assert_int_equal(read_place(SLURM).count, 1);
    assert_string_equal(read_place("").launcher, "none");
}

static void test_node_lists(void **state) {
    (void)state;
    static const char *const lists[][2] = {{"node1", "node1"},
                                           {"node1,node2", "node1"},
                                           {"node[1-3]", "node1"},
                                           {"node[007,9-12]", "node007"},
                                           {"r[1-2]n[05-06],x", "r1n05"},
                                           {"a.b-c_d", "a.b-c_d"},
                                           {"n[12]", "n12"},
                                           {"gpu-a100-[3,5]", "gpu-a100-3"}};
    static const char *const wrong[] = {"",     ",a",   "a[",   "a[]", "a[-3]", "a[1",
                                        "a[1-", "a[x]", "a]1[", "a b", "a;rm"};
    char host[BOOTSTRAP_HOST];
    for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++) {
        assert_int_equal(bootstrap_first_node(host, lists[k][0], NULL), AM_OK);
        assert_string_equal(host, lists[k][1]);
    }
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++)
        assert_int_equal(bootstrap_first_node(host, wrong[k], NULL), AM_ERROR_USAGE);
    char *endless = malloc(10001);
    memset(endless, 'a', 10000);
    endless[10000] = '\0';
    assert_int_equal(bootstrap_first_node(host, endless, NULL), AM_ERROR_USAGE);
    free(endless);
}

#define OPEN_MPI       "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8"
#define OPEN_MPI_LOCAL OPEN_MPI " OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4"
#define MPICH          "PMI_RANK=5 PMI_SIZE=8"
#define MPICH_LOCAL    MPICH " MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4"

static void test_mpirun(void **state) {
    (void)state;
    static const char *const both[] = {OPEN_MPI_LOCAL, MPICH_LOCAL};
    for (int k = 0; k < 2; k++) {
        if (!mpi_wire_name()) {
            expect_error(both[k], "this program was built without MPI");
            continue;
        }
        ProcessPlace place = read_place(both[k]);
        assert_string_equal(place.launcher, "mpirun");
        assert_int_equal(place.process, 5);
        assert_int_equal(place.count, 8);
        assert_int_equal(place.local_process, 1);
        assert_int_equal(place.local_count, 4);
        assert_non_null(place.share);
    }
    if (mpi_wire_name()) {
        /* All on one host need no network. */
        assert_string_equal(read_place("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2").host,
                            "127.0.0.1");
        assert_int_equal(read_place(MPICH).local_count, 1);
        assert_string_equal(read_place(OPEN_MPI " " SLURM " SLURM_STEP_ID=2").launcher, "mpirun");
        assert_string_equal(read_place(MPICH_LOCAL " " SLURM " SLURM_STEP_ID=2").launcher, "mpirun");
    }
    /* A single process needs no MPI; under srun PMI_* belong to Slurm, under torchrun they are
     * ignored. */
    assert_null(read_place("PMI_RANK=0 PMI_SIZE=1").share);
    assert_string_equal(read_place(MPICH " " SLURM " SLURM_STEP_ID=2").launcher, "Slurm");
    assert_string_equal(read_place(MPICH_LOCAL " " TORCHRUN).launcher, "torchrun");
    expect_error("PMI_RANK=8 PMI_SIZE=8", "PMI_RANK is 8: expected");
    expect_error("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=0", "OMPI_COMM_WORLD_SIZE is 0");
    expect_error(OPEN_MPI " OMPI_COMM_WORLD_LOCAL_RANK=4 OMPI_COMM_WORLD_LOCAL_SIZE=4", "LOCAL_RANK is 4");
}

static void test_open_process_groups(void **state) {
    (void)state;
    static const char torchrun[] = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_PORT=29500";
    char text[300];
    static const struct {
        const char *more;
        bool is_open;
    } cases[] = {{"MASTER_ADDR=node1", true},
                 {"MASTER_ADDR=10.0.0.1", true},
                 {"MASTER_ADDR=10.0.0.1 AUTOMAP_SECRET=word", false},
                 {"MASTER_ADDR=127.0.0.1", false},
                 {"MASTER_ADDR=localhost", false}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        snprintf(text, sizeof text, "%s %s", torchrun, cases[k].more);
        ProcessPlace place = read_place(text);
        if (strstr(text, "SECRET")) setenv("AUTOMAP_SECRET", "word", 1);
        assert_int_equal(bootstrap_is_open(&place), cases[k].is_open);
        unsetenv("AUTOMAP_SECRET");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_torchrun), cmocka_unit_test(test_slurm),
                                       cmocka_unit_test(test_mpirun), cmocka_unit_test(test_node_lists),
                                       cmocka_unit_test(test_open_process_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
