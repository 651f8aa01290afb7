/* fft: discrete Fourier transforms over the last one to three dimensions.
 *
 * A line of n numbers is transformed in double precision by decimation in time
 * over the prime factors of n (Cooley and Tukey 1965): with n = p m,
 *   X[k + q m] = sum_r w_n^(r (k + q m)) Y_r[k],   Y_r the transform of x[r], x[r + p], ...
 * A length with a prime factor beyond LARGEST_FACTOR is a convolution with the
 * chirp w_n^(k^2 / 2) instead (Bluestein 1970), done over a power of two. Inverse
 * transforms conjugate before and after and divide by n. Real results and
 * operands hold half of a line, n / 2 + 1 numbers; the other half are conjugates.
 */
#include <complex.h>
#include <string.h>

#include "executor/cpu/cpu.h"

typedef double complex Number;

enum { LARGEST_FACTOR = 61, MOST_AXES = 3 };

/* Forward transforms of n numbers. */
typedef struct Transform {
    int64_t n;
    const Number *roots;                   /* [n]: w_n^k = exp(-2 pi i k / n) */
    const struct Transform *convolution;   /* over a power of two; NULL: by factors */
    const Number *chirp, *chirp_transform; /* [n], [convolution->n] */
} Transform;

typedef struct FftKernel {
    IrFftType type;
    int32_t axes;
    int64_t length[MOST_AXES], lines; /* full lengths, the last axis last; items of the batch */
    int64_t elements, half;           /* product of the lengths; n / 2 + 1 of the last one */
    const Transform *transforms[MOST_AXES];
    Dtype operand, result;
    int64_t line_at, work_at; /* in the scratch memory, after the item */
} FftKernel;

#ifndef CMPLX /* glibc defines it for GCC alone */
#define CMPLX(real, imaginary) __builtin_complex((double)(real), (double)(imaginary))
#endif

static int64_t smallest_factor(int64_t n) {
    for (int64_t p = 2; p * p <= n && p <= LARGEST_FACTOR; p++)
        if (n % p == 0) return p;
    return n;
}

static bool has_small_factors(int64_t n) {
    while (n > 1) {
        int64_t p = smallest_factor(n);
        if (p > LARGEST_FACTOR) return false;
        n /= p;
    }
    return true;
}

static Number multiply(Number x, Number y) {
    double a = creal(x), b = cimag(x), c = creal(y), d = cimag(y);
    return CMPLX(a * c - b * d, a * d + b * c);
}

/* Computes out[n] = the transform of in[0], in[stride], ...; `spread` times n is the length that roots are
 * for. */
static void by_factors(const Number *roots, int64_t n, int64_t spread, const Number *in, int64_t stride,
                       Number *out) {
    if (n == 1) {
        *out = *in;
        return;
    }
    int64_t p = smallest_factor(n), m = n / p, whole = n * spread;
    for (int64_t r = 0; r < p; r++)
        by_factors(roots, m, spread * p, in + r * stride, stride * p, out + r * m);
    for (int64_t k = 0; k < m; k++) {
        Number parts[LARGEST_FACTOR];
        for (int64_t r = 0; r < p; r++) parts[r] = out[r * m + k];
        for (int64_t q = 0; q < p; q++) {
            Number sum = parts[0];
            for (int64_t r = 1, at = 0; r < p; r++) {
                at += (k + q * m) * spread;
                at -= at >= whole ? whole : 0;
                sum += multiply(roots[at], parts[r]);
            }
            out[q * m + k] = sum;
        }
    }
}

/* work[2 * convolution->n]. */
static void by_chirp(const Transform *self, const Number *in, Number *out, Number *work) {
    const Transform *power = self->convolution;
    Number *padded = work, *transformed = work + power->n;
    memset(padded, 0, sizeof(Number) * (size_t)power->n);
    for (int64_t k = 0; k < self->n; k++) padded[k] = multiply(in[k], self->chirp[k]);
    by_factors(power->roots, power->n, 1, padded, 1, transformed);
    for (int64_t k = 0; k < power->n; k++)
        padded[k] = conj(multiply(transformed[k], self->chirp_transform[k]));
    by_factors(power->roots, power->n, 1, padded, 1, transformed);
    for (int64_t k = 0; k < self->n; k++)
        out[k] = multiply(conj(transformed[k]) / (double)power->n, self->chirp[k]);
}

/* Returns exp(-pi i k / n); k is any number of half turns. */
static Number half_root(int64_t k, int64_t n) {
    static const double pi = 3.14159265358979323846;
    double angle = -pi * (double)(k % (2 * n)) / (double)n;
    return cexp(CMPLX(0, angle));
}

static AmStatus make_transform(const Transform **result, Arena *arena, int64_t n, AmError *error) {
    Transform *self = ARENA_ARRAY(arena, Transform, 1);
    bool direct = has_small_factors(n);
    Number *roots = direct ? ARENA_ARRAY(arena, Number, n) : NULL;
    if (arena->failed) return am_fail_memory(error, n * (int64_t)sizeof(Number));
    *self = (Transform){.n = n, .roots = roots};
    for (int64_t k = 0; direct && k < n; k++) roots[k] = half_root(2 * k, n);
    *result = self;
    if (direct) return AM_OK;
    int64_t padded = 1;
    while (padded < 2 * n - 1) padded *= 2;
    TRY(make_transform(&self->convolution, arena, padded, error));
    Number *chirp = ARENA_ARRAY(arena, Number, n), *spectrum = ARENA_ARRAY(arena, Number, padded);
    Number *kernel = ARENA_ARRAY(arena, Number, padded);
    if (arena->failed) return am_fail_memory(error, padded * (int64_t)sizeof(Number));
    for (int64_t k = 0; k < n; k++) {
        /* k * k modulo 2 n without overflow: n is at most 2^31. */
        chirp[k] = half_root(k * k % (2 * n), n);
        kernel[k] = kernel[k ? padded - k : 0] = conj(chirp[k]);
    }
    by_factors(self->convolution->roots, padded, 1, kernel, 1, spectrum);
    self->chirp = chirp;
    self->chirp_transform = spectrum;
    return AM_OK;
}

static Number load_number(const void *data, Dtype type, int64_t at) {
    switch (type) {
    case DTYPE_F32: return ((const float *)data)[at];
    case DTYPE_F64: return ((const double *)data)[at];
    case DTYPE_C64: return CMPLX(((const float *)data)[2 * at], ((const float *)data)[2 * at + 1]);
    default: return CMPLX(((const double *)data)[2 * at], ((const double *)data)[2 * at + 1]);
    }
}

static void store_number(void *data, Dtype type, int64_t at, Number value) {
    switch (type) {
    case DTYPE_F32: ((float *)data)[at] = (float)creal(value); break;
    case DTYPE_F64: ((double *)data)[at] = creal(value); break;
    case DTYPE_C64:
        ((float *)data)[2 * at] = (float)creal(value);
        ((float *)data)[2 * at + 1] = (float)cimag(value);
        break;
    default: ((double *)data)[2 * at] = creal(value); ((double *)data)[2 * at + 1] = cimag(value);
    }
}

/* Transforms all lines of the item along one axis. */
static void along(const FftKernel *kernel, int32_t axis, Number *item, Number *line, Number *work) {
    int64_t n = kernel->length[axis], inner = 1;
    bool inverse = kernel->type == IR_FFT_INVERSE || kernel->type == IR_FFT_INVERSE_REAL;
    bool from_half = kernel->type == IR_FFT_INVERSE_REAL && axis == kernel->axes - 1;
    for (int32_t a = axis + 1; a < kernel->axes; a++) inner *= kernel->length[a];
    for (int64_t k = 0; k < kernel->elements / n; k++) {
        Number *first = item + k / inner * inner * n + k % inner;
        for (int64_t i = 0; i < n; i++) {
            bool mirrored = from_half && i >= kernel->half;
            Number value = first[(mirrored ? n - i : i) * inner];
            line[i] = inverse != mirrored ? conj(value) : value;
        }
        if (from_half) { /* terms that are their own mirror images are real: X[k] = conj(X[n - k]) */
            line[0] = creal(line[0]);
            if (n % 2 == 0) line[n / 2] = creal(line[n / 2]);
        }
        const Transform *transform = kernel->transforms[axis];
        if (transform->convolution) by_chirp(transform, line, line + n, work);
        else by_factors(transform->roots, transform->n, 1, line, 1, line + n);
        for (int64_t i = 0; i < n; i++)
            first[i * inner] = inverse ? conj(line[n + i]) / (double)n : line[n + i];
    }
}

static void run_fft(const KernelCall *call) {
    const FftKernel *kernel = call->compiled;
    int64_t last = kernel->length[kernel->axes - 1], rows = last > 0 ? kernel->elements / last : 0;
    int64_t columns_in = kernel->type == IR_FFT_INVERSE_REAL ? kernel->half : last;
    int64_t columns_out = kernel->type == IR_FFT_REAL ? kernel->half : last;
    Number *item = call->scratch, *line = item + kernel->line_at, *work = item + kernel->work_at;
    for (int64_t b = 0; b < kernel->lines; b++) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns_in; c++)
                item[r * last + c] =
                    load_number(call->operands[0], kernel->operand, (b * rows + r) * columns_in + c);
        for (int32_t axis = 0; axis < kernel->axes; axis++) along(kernel, axis, item, line, work);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns_out; c++)
                store_number(call->results[0], kernel->result, (b * rows + r) * columns_out + c,
                             item[r * last + c]);
    }
}

/* Checks operand and result of each kind: which are real, and which has half a line. */
static bool shapes_fit(const KernelCall *call, const FftKernel *kernel) {
    const IrShape *in = call->operand_shapes[0], *out = call->result_shapes[0];
    bool real_in = kernel->type == IR_FFT_REAL, real_out = kernel->type == IR_FFT_INVERSE_REAL;
    if (in->rank != out->rank || kernel->axes > in->rank) return false;
    if (dtype_is_complex(in->type) == real_in || dtype_is_complex(out->type) == real_out) return false;
    for (int32_t d = 0; d < in->rank; d++) {
        int32_t axis = d - (in->rank - kernel->axes);
        int64_t whole = axis < 0 ? in->dimensions[d] : kernel->length[axis];
        bool halved = axis == kernel->axes - 1;
        if (in->dimensions[d] != (halved && real_out ? kernel->half : whole) ||
            out->dimensions[d] != (halved && real_in ? kernel->half : whole))
            return false;
    }
    return true;
}

static bool is_precise(Dtype type) {
    return type == DTYPE_F32 || type == DTYPE_F64 || type == DTYPE_C64 || type == DTYPE_C128;
}

AmStatus cpu_prepare_fft(KernelCall *call, Arena *arena, AmError *error) {
    const IrOptions *options = call->attributes->options;
    FftKernel *kernel = ARENA_ARRAY(arena, FftKernel, 1);
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    if (!options || options->fft_rank < 1 || options->fft_rank > MOST_AXES)
        return kernel_call_refuse(call, "it transforms less than one or more than three dimensions", error);
    *kernel = (FftKernel){.type = options->fft_type,
                          .axes = options->fft_rank,
                          .elements = 1,
                          .operand = call->operand_shapes[0]->type,
                          .result = call->result_shapes[0]->type};
    int64_t longest = 0, work = 0;
    for (int32_t a = 0; a < kernel->axes; a++) {
        int64_t n = kernel->length[a] = options->fft_length[a];
        if (n < 0 || n > INT32_MAX || (n > 0 && kernel->elements > INT64_MAX / 256 / n))
            return kernel_call_refuse(call, "a length out of range", error);
        kernel->elements *= n;
        if (n > longest) longest = n;
    }
    kernel->half = kernel->length[kernel->axes - 1] / 2 + 1;
    if (!is_precise(kernel->operand) || !is_precise(kernel->result) || !shapes_fit(call, kernel))
        return kernel_call_refuse(call, "its types or lengths do not fit its shapes", error);
    if (kernel->elements > 0) kernel->lines = 1;
    for (int32_t d = 0; d < call->result_shapes[0]->rank - kernel->axes; d++)
        kernel->lines *= call->result_shapes[0]->dimensions[d];
    for (int32_t a = 0; a < kernel->axes && kernel->elements > 0; a++) {
        TRY(make_transform(&kernel->transforms[a], arena, kernel->length[a], error));
        const Transform *convolution = kernel->transforms[a]->convolution;
        if (convolution && 2 * convolution->n > work) work = 2 * convolution->n;
    }
    kernel->line_at = kernel->elements;
    kernel->work_at = kernel->elements + 2 * longest;
    call->scratch_bytes = (kernel->work_at + work) * (int64_t)sizeof(Number);
    call->compiled = kernel;
    call->run = run_fft;
    return AM_OK;
}
