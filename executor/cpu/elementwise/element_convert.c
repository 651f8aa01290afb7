/* Loops that convert or make values: convert, stochastic-convert, bitcast-convert,
 * rounding, iota, constant. The common pairs of types have vectorized loops of
 * their own (vector/convert.c).
 */
#include <math.h>
#include <string.h>

#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/element.h"
#include "executor/cpu/vector/vector.h"

void element_convert(LOOP_ARGUMENTS) {
    (void)b, (void)c, (void)tile;
    Scalar64 run[SCALAR64_RUN];
    int64_t from = dtype_bytes(parameter->from), to = dtype_bytes(parameter->to);
    for (int64_t at = 0; at < count; at += SCALAR64_RUN) {
        int64_t n = count - at < SCALAR64_RUN ? count - at : SCALAR64_RUN;
        scalar64_load(run, (const char *)a + at * from, parameter->from, n, 1);
        scalar64_store((char *)out + at * to, parameter->to, run, scalar64_kind(parameter->from), n, 1);
    }
}

/* Rounds towards zero, or away from it with the probability of the discarded part. */
void element_stochastic_convert(LOOP_ARGUMENTS) {
    (void)c, (void)tile;
    Scalar64 run[SCALAR64_RUN], random[SCALAR64_RUN];
    int64_t from = dtype_bytes(parameter->from), to = dtype_bytes(parameter->to);
    int64_t random_bytes = dtype_bytes(parameter->random);
    for (int64_t at = 0; at < count; at += SCALAR64_RUN) {
        int64_t n = count - at < SCALAR64_RUN ? count - at : SCALAR64_RUN;
        scalar64_load(run, (const char *)a + at * from, parameter->from, n, 1);
        scalar64_load(random, (const char *)b + at * random_bytes, parameter->random, n, 1);
        for (int64_t i = 0; i < n; i++) {
            double whole = trunc(run[i].floating), rest = fabs(run[i].floating - whole);
            bool away = (double)random[i].as_unsigned < ldexp(rest, dtype_bits(parameter->random));
            run[i].floating = away ? whole + copysign(1, run[i].floating) : whole;
        }
        scalar64_store((char *)out + at * to, parameter->to, run, SCALAR64_FLOATING, n, 1);
    }
}

void element_round(LOOP_ARGUMENTS) {
    (void)b, (void)c, (void)tile;
    Scalar64 run[SCALAR64_RUN];
    uint8_t narrow[SCALAR64_RUN];
    int64_t bytes = dtype_bytes(parameter->from);
    for (int64_t at = 0; at < count; at += SCALAR64_RUN) {
        int64_t n = count - at < SCALAR64_RUN ? count - at : SCALAR64_RUN;
        scalar64_load(run, (const char *)a + at * bytes, parameter->from, n, 1);
        scalar64_store(narrow, parameter->to, run, scalar64_kind(parameter->from), n, 1);
        scalar64_load(run, narrow, parameter->to, n, 1);
        scalar64_store((char *)out + at * bytes, parameter->from, run, scalar64_kind(parameter->to), n, 1);
    }
}

/* Types as in memory: bf16 and f16 are converted around this by the program. */
void element_bitcast(LOOP_ARGUMENTS) {
    (void)b, (void)c, (void)tile;
    if (out != a) memcpy(out, a, (size_t)(count * dtype_bytes(parameter->to)));
}

static Dtype held_as(Dtype type) {
    return dtype_is_floating(type) ? DTYPE_F32 : dtype_is_signed(type) ? DTYPE_S8 : DTYPE_U8;
}

/* Converts to the bits in memory, and back as the other type. */
void element_bitcast_narrow(LOOP_ARGUMENTS) {
    (void)b, (void)c, (void)tile;
    uint16_t bits[SCALAR64_RUN];
    Dtype from = held_as(parameter->from), to = held_as(parameter->to);
    const ElementParameter down = {.from = from, .to = parameter->from},
                           up = {.from = parameter->to, .to = to};
    for (int64_t at = 0; at < count; at += SCALAR64_RUN) {
        int64_t n = count - at < SCALAR64_RUN ? count - at : SCALAR64_RUN;
        element_convert(bits, (const char *)a + at * dtype_bytes(from), NULL, NULL, n, &down, NULL);
        element_convert((char *)out + at * dtype_bytes(to), bits, NULL, NULL, n, &up, NULL);
    }
}

/* The state of an iota: the value of its dimension, and the number of elements made with that
 * value. */
typedef struct IotaPlace {
    int64_t value, made;
} IotaPlace;

/* Writes `count` values; each comes `inner` times in a row, after the last of `size` values the first. */
static void make_iota(Scalar64 *out, int64_t count, IotaPlace *place, int64_t inner, int64_t size,
                      int64_t start) {
    for (int64_t i = 0; i < count;) {
        int64_t left = inner == 1 ? size - place->value : inner - place->made;
        int64_t n = left < count - i ? left : count - i;
        int64_t step = inner == 1, first = start + place->value;
        for (int64_t k = 0; k < n; k++) out[i + k].as_signed = first + k * step;
        i += n;
        place->made = inner == 1 ? 0 : (place->made + n) % inner;
        place->value += inner == 1 ? n : place->made == 0;
        if (place->value == size) place->value = 0;
    }
}

void element_iota(LOOP_ARGUMENTS) {
    (void)a, (void)b, (void)c;
    Scalar64 run[SCALAR64_RUN];
    Dtype part = dtype_real_part(parameter->to);
    int64_t inner = 1, bytes = dtype_bytes(parameter->to), parts = bytes / dtype_bytes(part);
    for (int32_t d = parameter->iota_dimension + 1; d < tile->rank; d++) inner *= tile->dimensions[d];
    int64_t size = tile->dimensions[parameter->iota_dimension];
    IotaPlace place = {tile->first / inner % size, tile->first % inner};
    for (int64_t at = 0; at < count; at += SCALAR64_RUN) {
        int64_t n = count - at < SCALAR64_RUN ? count - at : SCALAR64_RUN;
        make_iota(run, n, &place, inner, size, parameter->iota_start);
        if (parts > 1) memset((char *)out + at * bytes, 0, (size_t)(n * bytes));
        scalar64_store((char *)out + at * bytes, part, run, SCALAR64_SIGNED, n, parts);
    }
}

void element_constant(LOOP_ARGUMENTS) {
    (void)a, (void)b, (void)c, (void)tile;
    strided_fill(out, parameter->constant, count, dtype_bytes(parameter->to));
}
