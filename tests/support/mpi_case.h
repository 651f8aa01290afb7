/* A test program that is its own processes: started by ctest it starts itself by mpirun,
 * once for each number of processes; started by mpirun it is one of them. */
#ifndef TESTS_SUPPORT_MPI_CASE_H
#define TESTS_SUPPORT_MPI_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/processes/mpi_wire.h"
#include "executor/processes/process_group.h"

static inline void mpi_case_give_up(void) {
    _exit(9);
}

/* One process: its part of the test, between the coming together of all and their leave. */
static inline int mpi_case_process(AmStatus (*work)(ProcessGroup *processes, AmError *error)) {
    AmError error = {0};
    ProcessGroup *processes = NULL;
    AmStatus status = process_group_open(&processes, NULL, &error);
    if (status == AM_OK) status = work(processes, &error);
    if (status == AM_OK) status = process_group_barrier(processes, &error);
    if (status != AM_OK) fprintf(stderr, "%s\n", error.text);
    if (status != AM_OK && processes) process_group_abort(processes, error.text);
    process_group_close(processes);
    if (!mpi_wire_end(status == AM_OK, 10, mpi_case_give_up)) _exit(status);
    return status;
}

static inline void mpi_case_run(int processes) {
    char path[4096], count[16];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    int status;
    assert_true(length > 0);
    path[length] = '\0';
    snprintf(count, sizeof count, "%d", processes);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("OMPI_MCA_plm_rsh_agent", "false", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    pid_t pid = fork();
    if (pid == 0) {
        execl(MPIRUN, MPIRUN, "-n", count, path, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%d processes: status %d", processes, status);
}

#endif
