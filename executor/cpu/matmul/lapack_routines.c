/* LAPACK's routines with one interface.
 *
 * One function per routine calls it for all four types: their Fortran
 * interfaces are the same but for a real working array that complex ones take.
 * After the arguments Fortran expects the length of every string.
 */
#include "executor/cpu/matmul/lapack_routines.h"

#include <complex.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#define REAL_TYPES(X, NAME)    X(s##NAME##_) X(d##NAME##_)
#define COMPLEX_TYPES(X, NAME) X(c##NAME##_) X(z##NAME##_)
#define ALL_TYPES(X, NAME)     REAL_TYPES(X, NAME) COMPLEX_TYPES(X, NAME)

/* The Fortran routines; their addresses are called as the types below. */
#define DECLARE(NAME) extern void NAME(void);
ALL_TYPES(DECLARE, potrf)
ALL_TYPES(DECLARE, geqrf)
ALL_TYPES(DECLARE, geqp3)
REAL_TYPES(DECLARE, orgqr)
COMPLEX_TYPES(DECLARE, ungqr)
ALL_TYPES(DECLARE, gesdd)
ALL_TYPES(DECLARE, gesvd)
REAL_TYPES(DECLARE, syevd)
COMPLEX_TYPES(DECLARE, heevd)
ALL_TYPES(DECLARE, geev)
ALL_TYPES(DECLARE, gees)
ALL_TYPES(DECLARE, gehrd)
REAL_TYPES(DECLARE, sytrd)
COMPLEX_TYPES(DECLARE, hetrd)
ALL_TYPES(DECLARE, getrf)
ALL_TYPES(DECLARE, gtsv)
ALL_TYPES(DECLARE, trsm)

static bool is_complex(const LapackJob *job) {
    return dtype_is_complex(job->type);
}

static int at_least_one(int value) {
    return value > 1 ? value : 1;
}

static int smaller(const LapackJob *job) {
    return job->m < job->n ? job->m : job->n;
}

static bool all_finite(const LapackJob *job, const void *matrix) {
    bool single = job->type == DTYPE_F32 || job->type == DTYPE_C64;
    int64_t count = (int64_t)job->m * job->n * (is_complex(job) ? 2 : 1);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(single ? ((const float *)matrix)[i] : ((const double *)matrix)[i])) return false;
    return true;
}

static bool fits_always(const LapackJob *job) {
    (void)job;
    return true;
}

static void run_potrf(LapackJob *job) {
    typedef void Potrf(const char *, const int *, void *, const int *, int *, size_t);
    if (!job->is_query)
        ((Potrf *)job->routine)(&job->uplo, &job->n, job->results[0], &job->n, job->results[1], 1);
}

static void run_getrf(LapackJob *job) {
    typedef void Getrf(const int *, const int *, void *, const int *, int *, int *);
    if (!job->is_query)
        ((Getrf *)job->routine)(&job->m, &job->n, job->results[0], &job->m, job->results[1], job->results[2]);
}

static void run_geqrf(LapackJob *job) {
    typedef void Geqrf(const int *, const int *, void *, const int *, void *, void *, const int *, int *);
    int info;
    ((Geqrf *)job->routine)(&job->m, &job->n, job->results[0], &job->m, job->results[1], job->work,
                            &job->work_count, &info);
}

/* Runs QR with column pivoting; columns that the permutation names (not 0) are brought to the front first. */
static void run_geqp3(LapackJob *job) {
    typedef void Real(const int *, const int *, void *, const int *, int *, void *, void *, const int *,
                      int *);
    typedef void Complex(const int *, const int *, void *, const int *, int *, void *, void *, const int *,
                         void *, int *);
    int info;
    job->real_count = is_complex(job) ? 2 * job->n : 0;
    if (is_complex(job))
        ((Complex *)job->routine)(&job->m, &job->n, job->results[0], &job->m, job->results[1],
                                  job->results[2], job->work, &job->work_count, job->real_work, &info);
    else
        ((Real *)job->routine)(&job->m, &job->n, job->results[0], &job->m, job->results[1], job->results[2],
                               job->work, &job->work_count, &info);
}

static bool fits_orgqr(const LapackJob *job) {
    return job->p <= job->n && job->n <= job->m;
}

static void run_orgqr(LapackJob *job) {
    typedef void Orgqr(const int *, const int *, const int *, void *, const int *, const void *, void *,
                       const int *, int *);
    int info;
    ((Orgqr *)job->routine)(&job->m, &job->n, &job->p, job->results[0], &job->m, job->operands[1], job->work,
                            &job->work_count, &info);
}

/* Checks the shapes of an SVD. 'A': whole U and V^T, 'S': their first min(m, n) columns and rows, 'N':
 * neither. */
static bool fits_svd(const LapackJob *job) {
    int k = smaller(job);
    if (job->mode == 'A') return job->u == job->m && job->v == job->n;
    return job->mode == 'N' || (job->mode == 'S' && job->u == k && job->v == k);
}

static void run_gesdd(LapackJob *job) {
    typedef void Real(const char *, const int *, const int *, void *, const int *, void *, void *,
                      const int *, void *, const int *, void *, const int *, int *, int *, size_t);
    typedef void Complex(const char *, const int *, const int *, void *, const int *, void *, void *,
                         const int *, void *, const int *, void *, const int *, void *, int *, int *, size_t);
    int k = smaller(job), most = job->m > job->n ? job->m : job->n, rows = at_least_one(job->v);
    int with_vectors = 5 * k * k + 5 * k, by_size = 2 * most * k + 2 * k * k + k;
    job->integer_count = 8 * k;
    if (is_complex(job)) {
        job->real_count = job->mode == 'N' ? 7 * k : with_vectors > by_size ? with_vectors : by_size;
        ((Complex *)job->routine)(&job->mode, &job->m, &job->n, job->results[0], &job->m, job->results[1],
                                  job->results[2], &job->m, job->results[3], &rows, job->work,
                                  &job->work_count, job->real_work, job->integer_work, job->results[4], 1);
    } else {
        ((Real *)job->routine)(&job->mode, &job->m, &job->n, job->results[0], &job->m, job->results[1],
                               job->results[2], &job->m, job->results[3], &rows, job->work, &job->work_count,
                               job->integer_work, job->results[4], 1);
    }
}

static void run_gesvd(LapackJob *job) {
    typedef void Real(const char *, const char *, const int *, const int *, void *, const int *, void *,
                      void *, const int *, void *, const int *, void *, const int *, int *, size_t, size_t);
    typedef void Complex(const char *, const char *, const int *, const int *, void *, const int *, void *,
                         void *, const int *, void *, const int *, void *, const int *, void *, int *, size_t,
                         size_t);
    int rows = at_least_one(job->v);
    job->real_count = is_complex(job) ? 5 * smaller(job) : 0;
    if (is_complex(job))
        ((Complex *)job->routine)(&job->mode, &job->mode, &job->m, &job->n, job->results[0], &job->m,
                                  job->results[1], job->results[2], &job->m, job->results[3], &rows,
                                  job->work, &job->work_count, job->real_work, job->results[4], 1, 1);
    else
        ((Real *)job->routine)(&job->mode, &job->mode, &job->m, &job->n, job->results[0], &job->m,
                               job->results[1], job->results[2], &job->m, job->results[3], &rows, job->work,
                               &job->work_count, job->results[4], 1, 1);
}

static bool fits_vectors(const LapackJob *job) {
    return job->mode == 'V' || job->mode == 'N';
}

/* Runs SYEVD with LAPACK's documented least sizes of the integer and the real working arrays. */
static void run_syevd(LapackJob *job) {
    typedef void Real(const char *, const char *, const int *, void *, const int *, void *, void *,
                      const int *, int *, const int *, int *, size_t, size_t);
    typedef void Complex(const char *, const char *, const int *, void *, const int *, void *, void *,
                         const int *, void *, const int *, int *, const int *, int *, size_t, size_t);
    int n = job->n;
    job->integer_count = 3 + 5 * n;
    job->real_count = is_complex(job) ? 1 + 5 * n + 2 * n * n : 0;
    int integers = job->is_query ? -1 : job->integer_count, reals = job->is_query ? -1 : job->real_count;
    if (is_complex(job))
        ((Complex *)job->routine)(&job->mode, &job->uplo, &n, job->results[0], &n, job->results[1], job->work,
                                  &job->work_count, job->real_work, &reals, job->integer_work, &integers,
                                  job->results[2], 1, 1);
    else
        ((Real *)job->routine)(&job->mode, &job->uplo, &n, job->results[0], &n, job->results[1], job->work,
                               &job->work_count, job->integer_work, &integers, job->results[2], 1, 1);
}

/* A pair of conjugate eigenvalues has its eigenvectors' real parts in one column
 * and their imaginary parts in the next (LAPACK, geev). */
#define DEFINE_UNPACK(NAME, REAL)                                                                      \
    static void NAME(REAL *out, const REAL *packed, const REAL *imaginary, int n) {                    \
        for (int j = 0; j < n; j++) {                                                                  \
            bool is_pair = imaginary[j] != 0 && j + 1 < n;                                             \
            for (int i = 0; i < n; i++) {                                                              \
                REAL x = packed[j * (size_t)n + i], y = is_pair ? packed[(j + 1) * (size_t)n + i] : 0; \
                REAL *at = out + 2 * (j * (size_t)n + i);                                              \
                at[0] = x;                                                                             \
                at[1] = y;                                                                             \
                if (!is_pair) continue;                                                                \
                at[2 * (size_t)n] = x;                                                                 \
                at[2 * (size_t)n + 1] = -y;                                                            \
            }                                                                                          \
            j += is_pair;                                                                              \
        }                                                                                              \
    }
DEFINE_UNPACK(unpack_single, float)
DEFINE_UNPACK(unpack_double, double)

/* Runs GEEV. Results: eigenvalues' real parts, imaginary parts, left and right eigenvectors, status. */
static void run_real_geev(LapackJob *job) {
    typedef void Geev(const char *, const char *, const int *, void *, const int *, void *, void *, void *,
                      const int *, void *, const int *, void *, const int *, int *, size_t, size_t);
    size_t square = (size_t)job->n * (size_t)job->n;
    bool single = job->type == DTYPE_F32;
    void *left = job->real_work;
    job->real_count = 2 * job->n * job->n;
    void *right = job->is_query ? NULL : (char *)left + square * (single ? sizeof(float) : sizeof(double));
    int *status = job->results[4];
    if (!job->is_query && !all_finite(job, job->operands[0])) {
        *status = -4;
        return;
    }
    ((Geev *)job->routine)(&job->left, &job->right, &job->n, job->operands[0], &job->n, job->results[0],
                           job->results[1], left, &job->n, right, &job->n, job->work, &job->work_count,
                           status, 1, 1);
    if (job->is_query || *status != 0) return;
    for (int k = 0; k < 2; k++) {
        if ((k == 0 ? job->left : job->right) == 'N') continue;
        void *packed = k == 0 ? left : right, *out = job->results[2 + k];
        if (single) unpack_single(out, packed, job->results[1], job->n);
        else unpack_double(out, packed, job->results[1], job->n);
    }
}

static void run_complex_geev(LapackJob *job) {
    typedef void Geev(const char *, const char *, const int *, void *, const int *, void *, void *,
                      const int *, void *, const int *, void *, const int *, void *, int *, size_t, size_t);
    int *status = job->results[3];
    job->real_count = 2 * job->n;
    if (!job->is_query && !all_finite(job, job->operands[0])) {
        *status = -4;
        return;
    }
    ((Geev *)job->routine)(&job->left, &job->right, &job->n, job->operands[0], &job->n, job->results[0],
                           job->results[1], &job->n, job->results[2], &job->n, job->work, &job->work_count,
                           job->real_work, status, 1, 1);
}

/* Runs GEES: the Schur form without reordering, so that no function selects eigenvalues. */
static void run_real_gees(LapackJob *job) {
    typedef void Gees(const char *, const char *, void (*)(void), const int *, void *, const int *, int *,
                      void *, void *, void *, const int *, void *, const int *, int *, int *, size_t, size_t);
    ((Gees *)job->routine)(&job->mode, "N", NULL, &job->n, job->results[0], &job->n, job->results[4],
                           job->results[2], job->results[3], job->results[1], &job->n, job->work,
                           &job->work_count, NULL, job->results[5], 1, 1);
}

static void run_complex_gees(LapackJob *job) {
    typedef void Gees(const char *, const char *, void (*)(void), const int *, void *, const int *, int *,
                      void *, void *, const int *, void *, const int *, void *, int *, int *, size_t, size_t);
    job->real_count = job->n;
    ((Gees *)job->routine)(&job->mode, "N", NULL, &job->n, job->results[0], &job->n, job->results[3],
                           job->results[2], job->results[1], &job->n, job->work, &job->work_count,
                           job->real_work, NULL, job->results[4], 1, 1);
}

static bool fits_gehrd(const LapackJob *job) {
    return job->n == 0 || (job->low >= 1 && job->low <= job->high && job->high <= job->n);
}

static void run_gehrd(LapackJob *job) {
    typedef void Gehrd(const int *, const int *, const int *, void *, const int *, void *, void *,
                       const int *, int *);
    ((Gehrd *)job->routine)(&job->n, &job->low, &job->high, job->results[0], &job->n, job->results[1],
                            job->work, &job->work_count, job->results[2]);
}

static void run_sytrd(LapackJob *job) {
    typedef void Sytrd(const char *, const int *, void *, const int *, void *, void *, void *, void *,
                       const int *, int *, size_t);
    ((Sytrd *)job->routine)(&job->uplo, &job->n, job->results[0], &job->n, job->results[1], job->results[2],
                            job->results[3], job->work, &job->work_count, job->results[4], 1);
}

/* Runs GTSV. The diagonal below begins with an element that is not part of it. */
static void run_gtsv(LapackJob *job) {
    typedef void Gtsv(const int *, const int *, void *, void *, void *, void *, const int *, int *);
    if (job->is_query) return;
    ((Gtsv *)job->routine)(&job->n, &job->p, (char *)job->results[0] + dtype_bytes(job->type),
                           job->results[1], job->results[2], job->results[3], &job->n, job->results[4]);
}

static bool fits_trsm(const LapackJob *job) {
    return job->p == (job->side == 'L' ? job->m : job->n);
}

static void run_trsm(LapackJob *job) {
    typedef void Trsm(const char *, const char *, const char *, const char *, const int *, const int *,
                      const void *, const void *, const int *, void *, const int *, size_t, size_t, size_t,
                      size_t);
    static const float single_one[2] = {1, 0};
    static const double one[2] = {1, 0};
    bool single = job->type == DTYPE_F32 || job->type == DTYPE_C64;
    if (job->is_query) return;
    ((Trsm *)job->routine)(&job->side, &job->uplo, &job->trans, &job->diag, &job->m, &job->n,
                           single ? (const void *)single_one : (const void *)one, job->operands[0], &job->p,
                           job->results[0], &job->m, 1, 1, 1, 1);
}

#define ROW(LETTER, TYPE, NAME, OPERANDS, RESULTS, FITS, RUN, ...) \
    {"lapack_" #LETTER #NAME "_ffi",                               \
     DTYPE_##TYPE,                                                 \
     OPERANDS,                                                     \
     RESULTS,                                                      \
     {__VA_ARGS__},                                                \
     FITS,                                                         \
     RUN,                                                          \
     LETTER##NAME##_},
#define REAL_ROWS(...)    ROW(s, F32, __VA_ARGS__) ROW(d, F64, __VA_ARGS__)
#define COMPLEX_ROWS(...) ROW(c, C64, __VA_ARGS__) ROW(z, C128, __VA_ARGS__)
#define ALL_ROWS(...)     REAL_ROWS(__VA_ARGS__) COMPLEX_ROWS(__VA_ARGS__)

static const LapackRoutine rows[] = {
    ALL_ROWS(potrf, "Tnn", "Tnn I", fits_always, run_potrf,
             1) ALL_ROWS(getrf, "Tmn", "Tmn Ik I", fits_always, run_getrf,
                         1) ALL_ROWS(geqrf, "Tmn", "Tmn Tk", fits_always, run_geqrf,
                                     1) ALL_ROWS(geqp3, "Tmn In", "Tmn In Tk", fits_always, run_geqp3, 1, 2)
        REAL_ROWS(orgqr, "Tmn Tp", "Tmn", fits_orgqr, run_orgqr,
                  1) COMPLEX_ROWS(ungqr, "Tmn Tp", "Tmn", fits_orgqr, run_orgqr,
                                  1) ALL_ROWS(gesdd, "Tmn", "Tmn Rk Tmu Tvn I", fits_svd, run_gesdd, 1)
            ALL_ROWS(gesvd, "Tmn", "Tmn Rk Tmu Tvn I", fits_svd, run_gesvd,
                     1) REAL_ROWS(syevd, "Tnn", "Tnn Rn I", fits_vectors, run_syevd, 1)
                COMPLEX_ROWS(heevd, "Tnn", "Tnn Rn I", fits_vectors, run_syevd,
                             1) REAL_ROWS(geev, "Tnn", "Rn Rn Cnn Cnn I", fits_always, run_real_geev, 0)
                    COMPLEX_ROWS(geev, "Tnn", "Tn Tnn Tnn I", fits_always, run_complex_geev, 0)
                        REAL_ROWS(gees, "Tnn", "Tnn Tnn Rn Rn I I", fits_vectors, run_real_gees, 1)
                            COMPLEX_ROWS(gees, "Tnn", "Tnn Tnn Tn I I", fits_vectors, run_complex_gees,
                                         1) ALL_ROWS(gehrd, "Tnn", "Tnn Ta I", fits_gehrd, run_gehrd, 1)
                                REAL_ROWS(sytrd, "Tnn", "Tnn Rn Ra Ta I", fits_always, run_sytrd, 1)
                                    COMPLEX_ROWS(hetrd, "Tnn", "Tnn Rn Ra Ta I", fits_always, run_sytrd, 1)
                                        ALL_ROWS(gtsv, "Tn Tn Tn Tnp", "Tn Tn Tn Tnp I", fits_always,
                                                 run_gtsv, 1, 2, 3, 4)
                                            ALL_ROWS(trsm, "Tpp Tmn", "Tmn", fits_trsm, run_trsm, 2)};

const LapackRoutine *lapack_find(const char *target) {
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (strcmp(rows[k].target, target) == 0) return &rows[k];
    return NULL;
}
