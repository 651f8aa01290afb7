/* Combines the contributions of all members to a reduction, with the same bits on every back end.
 *
 * Sums of f32 and f64, which gradients are, have loops of their own over vectors that stay in
 * registers; all else goes through 64-bit scalars. Two f32 are added in f32: their sum in double
 * precision, rounded to f32, is the same bits, as 53 digits are at least 2 * 24 + 2 (Figueroa, "When is
 * double rounding innocuous?", SIGNUM Newsletter 30, 1995).
 */
#include "executor/comm/combine.h"

#include <string.h>

#include "executor/array/scalar64.h"

enum { LANES = 8 };

typedef float Singles __attribute__((vector_size(LANES * sizeof(float))));
typedef double Doubles __attribute__((vector_size(LANES * sizeof(double))));

/* Adds f32 of two members. */
static void add_two(const Combine *work, int64_t first, int64_t count) {
    const float *a = (const float *)work->members[0], *b = (const float *)work->members[1];
    int64_t i = first, end = first + count;
    for (; i + LANES <= end; i += LANES) {
        Singles sum, other;
        memcpy(&sum, a + i, sizeof sum);
        memcpy(&other, b + i, sizeof other);
        sum += other;
        for (int32_t r = 0; r < work->result_count; r++)
            memcpy((float *)work->results[r] + i, &sum, sizeof sum);
    }
    for (; i < end; i++) {
        float sum = a[i] + b[i];
        for (int32_t r = 0; r < work->result_count; r++) ((float *)work->results[r])[i] = sum;
    }
}

static void add_singles(const Combine *work, int64_t first, int64_t count) {
    int64_t i = first, end = first + count;
    for (; i + LANES <= end; i += LANES) {
        Singles next;
        Doubles sum;
        memcpy(&next, (const float *)work->members[0] + i, sizeof next);
        sum = __builtin_convertvector(next, Doubles);
        for (int32_t m = 1; m < work->member_count; m++) {
            memcpy(&next, (const float *)work->members[m] + i, sizeof next);
            sum += __builtin_convertvector(next, Doubles);
        }
        next = __builtin_convertvector(sum, Singles);
        for (int32_t r = 0; r < work->result_count; r++)
            memcpy((float *)work->results[r] + i, &next, sizeof next);
    }
    for (; i < end; i++) {
        double sum = ((const float *)work->members[0])[i];
        for (int32_t m = 1; m < work->member_count; m++) sum += ((const float *)work->members[m])[i];
        for (int32_t r = 0; r < work->result_count; r++) ((float *)work->results[r])[i] = (float)sum;
    }
}

static void add_doubles(const Combine *work, int64_t first, int64_t count) {
    int64_t i = first, end = first + count;
    for (; i + LANES <= end; i += LANES) {
        Doubles sum, next;
        memcpy(&sum, (const double *)work->members[0] + i, sizeof sum);
        for (int32_t m = 1; m < work->member_count; m++) {
            memcpy(&next, (const double *)work->members[m] + i, sizeof next);
            sum += next;
        }
        for (int32_t r = 0; r < work->result_count; r++)
            memcpy((double *)work->results[r] + i, &sum, sizeof sum);
    }
    for (; i < end; i++) {
        double sum = ((const double *)work->members[0])[i];
        for (int32_t m = 1; m < work->member_count; m++) sum += ((const double *)work->members[m])[i];
        for (int32_t r = 0; r < work->result_count; r++) ((double *)work->results[r])[i] = sum;
    }
}

static void combine_scalars(const Combine *work, int64_t first, int64_t count) {
    Scalar64 sum[SCALAR64_RUN], run[SCALAR64_RUN];
    Scalar64Kind kind = scalar64_kind(work->type);
    int64_t bytes = dtype_bytes(work->type);
    for (int64_t i = first, end = first + count, n; i < end; i += n) {
        n = end - i < SCALAR64_RUN ? end - i : SCALAR64_RUN;
        for (int32_t m = 0; m < work->member_count; m++) {
            scalar64_load(m == 0 ? sum : run, work->members[m] + i * bytes, work->type, n, 1);
            if (m > 0) scalar64_fold(sum, run, kind, work->reduction, n);
        }
        for (int32_t r = 0; r < work->result_count; r++)
            scalar64_store(work->results[r] + i * bytes, work->type, sum, kind, n, 1);
    }
}

void combine_run(const Combine *work, int64_t first, int64_t count) {
    bool adds = work->reduction == SBP_ADD;
    if (adds && work->type == DTYPE_F32 && work->member_count == 2) add_two(work, first, count);
    else if (adds && work->type == DTYPE_F32) add_singles(work, first, count);
    else if (adds && work->type == DTYPE_F64) add_doubles(work, first, count);
    else combine_scalars(work, first, count);
}
