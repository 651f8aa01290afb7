/* LAPACK's routines with one interface: a row per custom-call target. */
#ifndef EXECUTOR_CPU_MATMUL_LAPACK_ROUTINES_H
#define EXECUTOR_CPU_MATMUL_LAPACK_ROUTINES_H

#include "base/dtype.h"

/* One matrix of the batch. Matrices lie column by column, without gaps. */
typedef struct LapackJob {
    void (*routine)(void); /* the Fortran routine for `type` */
    Dtype type;            /* f32, f64, c64 or c128 */
    int m, n;              /* of the first matrix; n alone where it is square */
    int p, u, v;           /* columns of a right side, of U and rows of V^T */
    int low, high;         /* gehrd: the rows that are to be reduced, from 1 */
    char uplo, mode, side, trans, diag, left, right;
    bool is_query; /* asks for the sizes of the working memory; nothing else is touched */
    void *operands[6], *results[6];
    void *work;      /* [work_count] of `type` */
    void *real_work; /* [real_count] of its real type */
    int *integer_work;
    int work_count, real_count, integer_count;
} LapackJob;

typedef struct LapackRoutine {
    const char *target; /* "lapack_sgesdd_ffi" */
    Dtype type;
    /* One word per array: T the type, R its real type, C its complex type, I s32;
     * then a letter per dimension: m, n, p, u, v are free, k = min(m, n), a = n - 1. */
    const char *operands, *results;
    int8_t starts_as[6]; /* [result] 1 + the operand whose copy it starts as, 0: zeros */
    bool (*fits)(const LapackJob *job);
    void (*run)(LapackJob *job);
    void (*function)(void); /* Fortran's */
} LapackRoutine;

/* Returns the row of a custom-call target, or NULL. */
const LapackRoutine *lapack_find(const char *target);

#endif
