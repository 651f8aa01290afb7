/* The end of a benchmark at a failed call: one line on standard error, exit code 1. */
#ifndef BENCH_CHECK_H
#define BENCH_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

/* Ends the program; `what` names the work. */
static inline _Noreturn void bench_fail(const char *what, const AmError *error) {
    fprintf(stderr, "%s: %s\n", what, error->text);
    exit(1);
}

/* Ends the program unless the status is AM_OK. */
static inline void bench_check(AmStatus status, const AmError *error) {
    if (status != AM_OK) bench_fail("benchmark", error);
}

#endif
