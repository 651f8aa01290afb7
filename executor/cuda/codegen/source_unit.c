/* Translation units: the types, the helpers that kernels call, and naming.
 *
 * NVRTC has no standard headers, so the types are built in and the helpers are
 * short. A helper goes into a unit if its name stands in a kernel or in a
 * helper that goes in; the table is in the order of definition, so one pass
 * from its end finds them all.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "executor/cuda/codegen/source_text.h"

static const char types[] = "typedef unsigned char pred, u8;\n"
                            "typedef unsigned short u16;\n"
                            "typedef unsigned int u32;\n"
                            "typedef unsigned long long u64;\n"
                            "typedef signed char s8;\n"
                            "typedef short s16;\n"
                            "typedef int s32;\n"
                            "typedef long long s64;\n"
                            "typedef float f32;\n"
                            "typedef double f64;\n";

static const struct {
    const char *name, *text;
} helpers[] = {
    {"b128", "struct alignas(16) b128 { u64 low, high; };\n"},
    {"Group", "template <typename T, int N> struct alignas(N * sizeof(T)) Group { T at[N]; };\n"},
    /* Functions of complex numbers are computed in f64. */
    {"c128",
     "struct alignas(16) c128 { f64 re, im; };\n"
     "__device__ c128 operator+(c128 x, c128 y) { return c128{x.re + y.re, x.im + y.im}; }\n"
     "__device__ c128 operator-(c128 x, c128 y) { return c128{x.re - y.re, x.im - y.im}; }\n"
     "__device__ c128 operator*(c128 x, c128 y) {\n"
     "    return c128{x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};\n"
     "}\n"
     "__device__ c128 operator/(c128 x, c128 y) {\n"
     "    s32 by = 0;\n"
     "    const f64 size = fmax(fabs(y.re), fabs(y.im));\n"
     "    if (size > 0 && size - size == 0) by = -ilogb(size);\n"
     "    const f64 c = ldexp(y.re, by), d = ldexp(y.im, by), norm = c * c + d * d;\n"
     "    return c128{ldexp((x.re * c + x.im * d) / norm, by), ldexp((x.im * c - x.re * d) / norm, by)};\n"
     "}\n"},
    {"c64", "struct alignas(8) c64 { f32 re, im; };\n"
            "__device__ c64 operator+(c64 x, c64 y) { return c64{x.re + y.re, x.im + y.im}; }\n"
            "__device__ c64 operator-(c64 x, c64 y) { return c64{x.re - y.re, x.im - y.im}; }\n"
            "__device__ c64 operator*(c64 x, c64 y) {\n"
            "    return c64{x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};\n"
            "}\n"
            "__device__ c64 operator/(c64 x, c64 y) {\n"
            "    const f64 a = x.re, b = x.im, c = y.re, d = y.im, norm = c * c + d * d;\n"
            "    return c64{(f32)((a * c + b * d) / norm), (f32)((b * c - a * d) / norm)};\n"
            "}\n"},
    {"widened", "__device__ c128 widened(c64 x) { return c128{x.re, x.im}; }\n"},
    {"narrowed", "__device__ c64 narrowed(c128 x) { return c64{(f32)x.re, (f32)x.im}; }\n"},
    /* Products with i and -i. */
    {"complex_turned", "__device__ c128 complex_turned(c128 x) { return c128{-x.im, x.re}; }\n"},
    {"complex_turned_back", "__device__ c128 complex_turned_back(c128 x) { return c128{x.im, -x.re}; }\n"},
    {"complex_exponential", "__device__ c128 complex_exponential(c128 x) {\n"
                            "    const f64 size = exp(x.re);\n"
                            "    return c128{size * cos(x.im), x.im == 0 ? x.im : size * sin(x.im)};\n"
                            "}\n"},
    {"complex_exponential_minus_one",
     "__device__ c128 complex_exponential_minus_one(c128 x) {\n"
     "    const f64 half = sin(x.im / 2), imaginary = x.im == 0 ? x.im : exp(x.re) * sin(x.im);\n"
     "    return c128{expm1(x.re) * cos(x.im) - 2 * half * half, imaginary};\n"
     "}\n"},
    {"complex_logarithm", "__device__ c128 complex_logarithm(c128 x) {\n"
                          "    return c128{log(hypot(x.re, x.im)), atan2(x.im, x.re)};\n"
                          "}\n"},
    {"complex_logarithm_plus_one",
     "__device__ c128 complex_logarithm_plus_one(c128 x) {\n"
     "    const f64 a = x.re, b = x.im;\n"
     "    const f64 re = fabs(a) + fabs(b) < 0.5 ? log1p(a * (2 + a) + b * b) / 2 : log(hypot(1 + a, b));\n"
     "    return c128{re, atan2(b, 1 + a)};\n"
     "}\n"},
    {"complex_power", "__device__ c128 complex_power(c128 x, c128 y) {\n"
                      "    return complex_exponential(y * complex_logarithm(x));\n"
                      "}\n"},
    {"complex_root", "__device__ c128 complex_root(c128 x) {\n"
                     "    const f64 a = x.re, b = x.im, size = sqrt((fabs(a) + hypot(a, b)) / 2);\n"
                     "    if (size == 0) return c128{0, b};\n"
                     "    if (a >= 0) return c128{size, b / (2 * size)};\n"
                     "    return c128{fabs(b) / (2 * size), copysign(size, b)};\n"
                     "}\n"},
    {"complex_reciprocal_root", "__device__ c128 complex_reciprocal_root(c128 x) {\n"
                                "    return c128{1, 0} / complex_root(x);\n"
                                "}\n"},
    {"complex_logistic", "__device__ c128 complex_logistic(c128 x) {\n"
                         "    return c128{1, 0} / (c128{1, 0} + complex_exponential(c128{-x.re, -x.im}));\n"
                         "}\n"},
    {"complex_sine", "__device__ c128 complex_sine(c128 x) {\n"
                     "    return c128{sin(x.re) * cosh(x.im), cos(x.re) * sinh(x.im)};\n"
                     "}\n"},
    {"complex_cosine", "__device__ c128 complex_cosine(c128 x) {\n"
                       "    return c128{cos(x.re) * cosh(x.im), -sin(x.re) * sinh(x.im)};\n"
                       "}\n"},
    {"complex_sinh", "__device__ c128 complex_sinh(c128 x) {\n"
                     "    return c128{sinh(x.re) * cos(x.im), cosh(x.re) * sin(x.im)};\n"
                     "}\n"},
    {"complex_cosh", "__device__ c128 complex_cosh(c128 x) {\n"
                     "    return c128{cosh(x.re) * cos(x.im), sinh(x.re) * sin(x.im)};\n"
                     "}\n"},
    {"complex_tanh", "__device__ c128 complex_tanh(c128 x) {\n"
                     "    const f64 a = x.re, b = x.im;\n"
                     "    if (fabs(a) > 40)\n"
                     "        return c128{copysign(1.0, a), 4 * sin(b) * cos(b) * exp(-2 * fabs(a))};\n"
                     "    const f64 norm = sinh(a) * sinh(a) + cos(b) * cos(b);\n"
                     "    return c128{sinh(a) * cosh(a) / norm, sin(b) * cos(b) / norm};\n"
                     "}\n"},
    {"complex_tan", "__device__ c128 complex_tan(c128 x) {\n"
                    "    return complex_turned_back(complex_tanh(complex_turned(x)));\n"
                    "}\n"},
    /* Inverse functions by the roots of 1 + x and 1 - x, whose cuts are on the right sides. */
    {"complex_asin", "__device__ c128 complex_asin(c128 x) {\n"
                     "    const c128 p = complex_root(c128{1 + x.re, x.im});\n"
                     "    const c128 q = complex_root(c128{1 - x.re, -x.im});\n"
                     "    return c128{atan2(x.re, (p * q).re), asinh((c128{q.re, -q.im} * p).im)};\n"
                     "}\n"},
    {"complex_acos", "__device__ c128 complex_acos(c128 x) {\n"
                     "    const c128 p = complex_root(c128{1 + x.re, x.im});\n"
                     "    const c128 q = complex_root(c128{1 - x.re, -x.im});\n"
                     "    return c128{2 * atan2(q.re, p.re), asinh((c128{p.re, -p.im} * q).im)};\n"
                     "}\n"},
    {"complex_asinh", "__device__ c128 complex_asinh(c128 x) {\n"
                      "    return complex_turned_back(complex_asin(complex_turned(x)));\n"
                      "}\n"},
    {"complex_acosh", "__device__ c128 complex_acosh(c128 x) {\n"
                      "    const c128 p = complex_root(c128{x.re + 1, x.im});\n"
                      "    const c128 q = complex_root(c128{x.re - 1, x.im});\n"
                      "    return c128{asinh((c128{q.re, -q.im} * p).re), 2 * atan2(q.im, p.re)};\n"
                      "}\n"},
    {"complex_atanh", "__device__ c128 complex_atanh(c128 x) {\n"
                      "    const f64 a = x.re, b = x.im;\n"
                      "    return c128{log1p(4 * a / ((1 - a) * (1 - a) + b * b)) / 4,\n"
                      "                atan2(2 * b, (1 - a) * (1 + a) - b * b) / 2};\n"
                      "}\n"},
    {"complex_atan", "__device__ c128 complex_atan(c128 x) {\n"
                     "    return complex_turned_back(complex_atanh(complex_turned(x)));\n"
                     "}\n"},
    {"complex_angle",
     "__device__ c128 complex_angle(c128 y, c128 x) {\n"
     "    const c128 turned = x + complex_turned(y);\n"
     "    return complex_turned_back(complex_logarithm(turned / complex_root(x * x + y * y)));\n"
     "}\n"},
    {"complex_sign", "template <typename C> __device__ C complex_sign(C x) {\n"
                     "    const f64 size = hypot((f64)x.re, (f64)x.im);\n"
                     "    if (size == 0) return x;\n"
                     "    x.re = x.re / size;\n"
                     "    x.im = x.im / size;\n"
                     "    return x;\n"
                     "}\n"},
    {"complex_precedes", "template <typename C> __device__ bool complex_precedes(C x, C y) {\n"
                         "    return x.re < y.re || (x.re == y.re && x.im < y.im);\n"
                         "}\n"},
    {"complex_has_nan",
     "template <typename C> __device__ bool complex_has_nan(C x) { return x.re != x.re || x.im != x.im; }\n"},
    {"complex_larger", "template <typename C> __device__ C complex_larger(C x, C y) {\n"
                       "    return complex_has_nan(x) || complex_precedes(y, x) ? x : y;\n"
                       "}\n"},
    {"complex_smaller", "template <typename C> __device__ C complex_smaller(C x, C y) {\n"
                        "    return complex_has_nan(x) || complex_precedes(x, y) ? x : y;\n"
                        "}\n"},
    {"index_of_u64", "__device__ s64 index_of_u64(u64 index) {\n"
                     "    return index > 0x7fffffffffffffffull ? 0x7fffffffffffffffll : (s64)index;\n"
                     "}\n"},
    {"clamped_index", "__device__ s64 clamped_index(s64 index, s64 most) {\n"
                      "    if (index > most) index = most;\n"
                      "    return index < 0 ? 0 : index;\n"
                      "}\n"},
    {"bits_as", "template <typename To, typename From> __device__ To bits_as(From value) {\n"
                "    union { From from; To to; } word;\n"
                "    word.from = value;\n"
                "    return word.to;\n"
                "}\n"},
    {"bf16_load", "__device__ f32 bf16_load(u16 bits) { return bits_as<f32>((u32)bits << 16); }\n"},
    /* Rounds to nearest even; the result for NaN is undefined. */
    {"bf16_nearest", "__device__ u16 bf16_nearest(f32 value) {\n"
                     "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800\n"
                     "    u16 nearest;\n"
                     "    asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(nearest) : \"f\"(value));\n"
                     "    return nearest;\n"
                     "#else\n"
                     "    const u32 bits = bits_as<u32>(value);\n"
                     "    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);\n"
                     "#endif\n"
                     "}\n"},
    {"bf16_store", "__device__ u16 bf16_store(f32 value) {\n"
                   "    const u16 quiet = (u16)(bits_as<u32>(value) >> 16 | 0x40u);\n"
                   "    return value != value ? quiet : bf16_nearest(value);\n"
                   "}\n"},
    {"bf16_round", "__device__ f32 bf16_round(f32 value) { return bf16_load(bf16_store(value)); }\n"},
    /* Rounds a sum, difference or product. On a card their NaN has all bits set, as the result of the
     * instruction has. */
    {"bf16_round_result", "__device__ f32 bf16_round_result(f32 value) {\n"
                          "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800\n"
                          "    return bf16_load(bf16_nearest(value));\n"
                          "#else\n"
                          "    return bf16_round(value);\n"
                          "#endif\n"
                          "}\n"},
    /* Converts a value that is a bf16, with quiet NaN. */
    {"bf16_bits", "__device__ u16 bf16_bits(f32 value) { return (u16)(bits_as<u32>(value) >> 16); }\n"},
    {"f16_load",
     "__device__ f32 f16_load(u16 bits) {\n"
     "    const u32 sign = (u32)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u;\n"
     "    const u32 fraction = bits & 0x3ffu;\n"
     "    if (exponent == 31u) return bits_as<f32>(sign | 0x7f800000u | fraction << 13);\n"
     "    if (exponent > 0u) return bits_as<f32>(sign | (exponent + 112u) << 23 | fraction << 13);\n"
     "    const f32 subnormal = (f32)fraction * 5.9604644775390625e-8f;\n"
     "    return sign ? -subnormal : subnormal;\n"
     "}\n"},
    {"f16_store", "__device__ u16 f16_store(f32 value) {\n"
                  "    const u32 bits = bits_as<u32>(value), sign = bits >> 16 & 0x8000u;\n"
                  "    const u32 size = bits & 0x7fffffffu;\n"
                  "    if (size > 0x7f800000u) return (u16)(sign | 0x7e00u | (size >> 13 & 0x3ffu));\n"
                  "    if (size >= 0x477ff000u) return (u16)(sign | 0x7c00u);\n"
                  "    if (size < 0x38800000u)\n"
                  "        return (u16)(sign | (bits_as<u32>(bits_as<f32>(size) + 0.5f) - 0x3f000000u));\n"
                  "    return (u16)(sign | ((size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13));\n"
                  "}\n"},
    {"f16_round", "__device__ f32 f16_round(f32 value) { return f16_load(f16_store(value)); }\n"},
    {"greatest_of", "template <typename T> __device__ T greatest_of(T x, T y) { return x > y || x != x ? x : "
                    "y; }\n"},
    {"least_of", "template <typename T> __device__ T least_of(T x, T y) { return x < y || x != x ? x : y; "
                 "}\n"},
    {"saturate", "template <typename T, typename F> __device__ T saturate(F value, T least, T most) {\n"
                 "    if (value != value) return 0;\n"
                 "    if (value <= (F)least) return least;\n"
                 "    return value >= (F)most ? most : (T)value;\n"
                 "}\n"},
    {"total_order", "__device__ s32 total_order(f32 value) {\n"
                    "    const s32 bits = bits_as<s32>(value);\n"
                    "    return bits < 0 ? -(bits & 0x7fffffff) - 1 : bits;\n"
                    "}\n"
                    "__device__ s64 total_order(f64 value) {\n"
                    "    const s64 bits = bits_as<s64>(value);\n"
                    "    return bits < 0 ? -(bits & 0x7fffffffffffffffll) - 1 : bits;\n"
                    "}\n"},
    {"reduce_precision",
     "template <typename F, typename U, typename S, int EXPONENT, int FRACTION>\n"
     "__device__ F reduce_precision(F value, s32 exponent_bits, s32 mantissa_bits) {\n"
     "    const U one = 1, specials = ((one << EXPONENT) - 1) << FRACTION;\n"
     "    const U sign = bits_as<U>(value) & one << (EXPONENT + FRACTION);\n"
     "    U bits = bits_as<U>(value);\n"
     "    if ((bits & specials) == specials) return value;\n"
     "    const s32 dropped = FRACTION - mantissa_bits;\n"
     "    if (dropped > 0) {\n"
     "        bits += ((one << (dropped - 1)) - 1) + (bits >> dropped & 1);\n"
     "        bits &= ~((one << dropped) - 1);\n"
     "    }\n"
     "    const s32 most = (1 << (exponent_bits - 1)) - 1;\n"
     "    const s32 exponent = (s32)(bits >> FRACTION & ((one << EXPONENT) - 1)) - ((1 << (EXPONENT - 1)) - "
     "1);\n"
     "    if (exponent_bits < EXPONENT && exponent > most) return bits_as<F>(sign | specials);\n"
     "    if (exponent_bits < EXPONENT && exponent < 1 - most) return bits_as<F>(sign);\n"
     "    return bits_as<F>(bits);\n"
     "}\n"},
    {"stochastic", "__device__ f64 stochastic(f64 value, u64 random, s32 bits) {\n"
                   "    const f64 whole = trunc(value), rest = fabs(value - whole);\n"
                   "    return (f64)random < ldexp(rest, bits) ? whole + copysign(1.0, value) : whole;\n"
                   "}\n"},
    {"high_unsigned", "__device__ u64 high_unsigned(u64 x, u64 y, s32 bits) {\n"
                      "    if (bits < 64) return x * y >> bits;\n"
                      "    const u64 a = x >> 32, b = (u32)x, c = y >> 32, d = (u32)y;\n"
                      "    const u64 middle = a * d + (b * d >> 32), other = b * c + (u32)middle;\n"
                      "    return a * c + (middle >> 32) + (other >> 32);\n"
                      "}\n"},
    {"high_signed", "__device__ s64 high_signed(s64 x, s64 y, s32 bits) {\n"
                    "    if (bits < 64) return x * y >> bits;\n"
                    "    u64 high = high_unsigned((u64)x, (u64)y, bits);\n"
                    "    if (x < 0) high -= (u64)y;\n"
                    "    if (y < 0) high -= (u64)x;\n"
                    "    return (s64)high;\n"
                    "}\n"},
    {"divide_signed", "template <typename T> __device__ T divide_signed(T x, T y) {\n"
                      "    if (y == 0) return -1;\n"
                      "    return y == -1 ? (T)(0 - (u64)x) : (T)(x / y);\n"
                      "}\n"},
    {"divide_unsigned", "template <typename T> __device__ T divide_unsigned(T x, T y) {\n"
                        "    return y == 0 ? (T)~(T)0 : (T)(x / y);\n"
                        "}\n"},
    {"remainder_signed", "template <typename T> __device__ T remainder_signed(T x, T y) {\n"
                         "    if (y == 0) return x;\n"
                         "    return y == -1 ? (T)0 : (T)(x % y);\n"
                         "}\n"},
    {"remainder_unsigned", "template <typename T> __device__ T remainder_unsigned(T x, T y) {\n"
                           "    return y == 0 ? x : (T)(x % y);\n"
                           "}\n"},
    {"threefry",
     "__device__ void threefry(u32 *words, u64 key, u64 counter) {\n"
     "    const u32 rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};\n"
     "    const u32 k0 = (u32)key, k1 = (u32)(key >> 32), keys[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDAu};\n"
     "    u32 a = (u32)counter + keys[0], b = (u32)(counter >> 32) + keys[1];\n"
     "    for (u32 group = 0; group < 5; group++) {\n"
     "        for (u32 round = 0; round < 4; round++) {\n"
     "            const u32 by = rotations[group % 2][round];\n"
     "            a += b;\n"
     "            b = (b << by | b >> (32 - by)) ^ a;\n"
     "        }\n"
     "        a += keys[(group + 1) % 3];\n"
     "        b += keys[(group + 2) % 3] + group + 1;\n"
     "    }\n"
     "    words[0] = a;\n"
     "    words[1] = b;\n"
     "}\n"},
    {"philox", "__device__ void philox(u32 *words, u64 key, u64 low, u64 high) {\n"
               "    u32 k0 = (u32)key, k1 = (u32)(key >> 32);\n"
               "    u32 c0 = (u32)low, c1 = (u32)(low >> 32), c2 = (u32)high, c3 = (u32)(high >> 32);\n"
               "    for (u32 round = 0; round < 10; round++) {\n"
               "        const u64 p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;\n"
               "        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;\n"
               "        c1 = (u32)p1;\n"
               "        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;\n"
               "        c3 = (u32)p0;\n"
               "        k0 += 0x9E3779B9u;\n"
               "        k1 += 0xBB67AE85u;\n"
               "    }\n"
               "    words[0] = c0;\n"
               "    words[1] = c1;\n"
               "    words[2] = c2;\n"
               "    words[3] = c3;\n"
               "}\n"},
    {"power_unsigned", "__device__ u64 power_unsigned(u64 base, u64 exponent) {\n"
                       "    u64 result = 1;\n"
                       "    for (; exponent; exponent >>= 1, base *= base)\n"
                       "        if (exponent & 1) result *= base;\n"
                       "    return result;\n"
                       "}\n"},
    {"power_signed", "__device__ s64 power_signed(s64 base, s64 exponent) {\n"
                     "    if (exponent >= 0) return (s64)power_unsigned((u64)base, (u64)exponent);\n"
                     "    if (base == 1) return 1;\n"
                     "    return base == -1 ? (exponent & 1 ? -1 : 1) : 0;\n"
                     "}\n"},
};
enum { HELPER_COUNT = sizeof helpers / sizeof *helpers };

/* Kernels in a unit on average, and the most units: each unit has a fixed cost. */
enum { KERNELS_OF_UNIT = 12, MOST_UNITS = 32 };

/* Returns whether `name` is a word of the text. */
static bool names(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *at = text; (at = strstr(at, name)) != NULL; at += length) {
        char before = at == text ? ' ' : at[-1], after = at[length];
        if (!isalnum((unsigned char)before) && before != '_' && !isalnum((unsigned char)after) &&
            after != '_')
            return true;
    }
    return false;
}

/* The different kernels of all sources. */
typedef struct Kernels {
    const CudaLaunch **list;
    int32_t count;
} Kernels;

static AmStatus find_kernels(Kernels *self, Arena *arena, const CudaSource *sources, int32_t count,
                             AmError *error) {
    int32_t launches = 0;
    for (int32_t s = 0; s < count; s++) launches += sources[s].launch_count;
    *self = (Kernels){.list = ARENA_ARRAY(arena, const CudaLaunch *, launches + 1)};
    if (!self->list) return am_fail_memory(error, (int64_t)launches * 8);
    for (int32_t s = 0; s < count; s++)
        for (int32_t k = 0; k < sources[s].launch_count; k++) {
            const CudaLaunch *launch = &sources[s].launches[k];
            bool repeated = false;
            for (int32_t before = 0; before < self->count && !repeated; before++)
                repeated = strcmp(self->list[before]->name, launch->name) == 0;
            if (!repeated) self->list[self->count++] = launch;
        }
    return AM_OK;
}

int32_t cuda_source_unit_of(const char *name, int32_t count) {
    const char *digest = strrchr(name, '_');
    uint64_t number = digest ? strtoull(digest + 1, NULL, 16) : 0;
    return (int32_t)(number % (uint64_t)count);
}

/* Writes the unit of part `part` of `parts` of the kernels; NULL: the part is empty. */
static AmStatus write_unit(const char **unit, Arena *arena, const Kernels *kernels, int32_t part,
                           int32_t parts, AmError *error) {
    bool used[HELPER_COUNT] = {false};
    int32_t count = 0;
    const CudaLaunch **list = ARENA_ARRAY(arena, const CudaLaunch *, kernels->count + 1);
    if (!list) return am_fail_memory(error, kernels->count * 8);
    for (int32_t k = 0; k < kernels->count; k++)
        if (cuda_source_unit_of(kernels->list[k]->name, parts) == part) list[count++] = kernels->list[k];
    *unit = NULL;
    if (count == 0) return AM_OK;
    for (int32_t h = HELPER_COUNT - 1; h >= 0; h--) {
        for (int32_t k = 0; k < count && !used[h]; k++) used[h] = names(list[k]->text, helpers[h].name);
        for (int32_t later = h + 1; later < HELPER_COUNT && !used[h]; later++)
            used[h] = used[later] && names(helpers[later].text, helpers[h].name);
    }
    Text text = {0};
    text_append_string(&text, types);
    for (int32_t h = 0; h < HELPER_COUNT; h++)
        if (used[h]) text_append(&text, "\n%s", helpers[h].text);
    for (int32_t k = 0; k < count; k++) text_append(&text, "\n%s", list[k]->text);
    *unit = text.failed ? NULL : arena_copy_bytes(arena, text.data, text.length);
    text_free(&text);
    return *unit ? AM_OK : am_fail_memory(error, 1 << 16);
}

AmStatus cuda_source_unit(const char **unit, Arena *arena, const CudaSource *sources, int32_t count,
                          AmError *error) {
    Kernels kernels;
    TRY(find_kernels(&kernels, arena, sources, count, error));
    TRY(write_unit(unit, arena, &kernels, 0, 1, error));
    if (!*unit) *unit = "";
    return AM_OK;
}

AmStatus cuda_source_units(const char ***units, int32_t *unit_count, Arena *arena, const CudaSource *sources,
                           int32_t count, AmError *error) {
    Kernels kernels;
    TRY(find_kernels(&kernels, arena, sources, count, error));
    int32_t parts = kernels.count / KERNELS_OF_UNIT;
    parts = parts < 1 ? 1 : parts > MOST_UNITS ? MOST_UNITS : parts;
    *units = ARENA_ARRAY(arena, const char *, parts);
    if (!*units) return am_fail_memory(error, parts * 8);
    for (int32_t part = 0; part < parts; part++)
        TRY(write_unit(&(*units)[part], arena, &kernels, part, parts, error));
    *unit_count = parts;
    return AM_OK;
}

/* Returns the value that owns the memory of operand or result k of a call. */
static const ProgramValue *storage_of(const KernelCall *call, int32_t k, bool is_result) {
    const ProgramValue *values = call->program->values;
    int32_t value = call->fusion
                        ? (is_result ? call->fusion->output_values[k] : call->fusion->inputs[k].value)
                        : (is_result ? call->instruction->first_result + k : call->instruction->operands[k]);
    return &values[values[value].storage];
}

/* Returns whether the buffer plan keeps operand k apart from all results. False for operand 0 of an operator
 * that updates it in place. */
static bool is_apart(const KernelCall *call, int32_t k) {
    IrOpcode opcode = call->instruction ? call->instruction->opcode : IR_UNKNOWN;
    if (k == 0 && (opcode == IR_SCATTER || opcode == IR_DYNAMIC_UPDATE_SLICE)) return false;
    const ProgramValue *operand = storage_of(call, k, false);
    for (int32_t r = 0; r < call->result_count; r++) {
        const ProgramValue *result = storage_of(call, r, true);
        bool planned = operand->offset >= 0 && result->offset >= 0;
        if (operand == result || (planned && operand->offset < result->offset + result->bytes &&
                                  result->offset < operand->offset + operand->bytes))
            return false;
    }
    return true;
}

void cuda_append_signature(Text *out, const KernelCall *call, const CudaSource *source, const char *scratch,
                           bool numbered) {
    const char *separator = "(";
    for (int32_t k = 0; k < call->operand_count; k++, separator = ", ")
        text_append(out, "%sconst %s *%sin%d", separator, cuda_memory_type(call->operand_shapes[k]->type),
                    is_apart(call, k) ? "__restrict__ " : "", k);
    for (int32_t k = 0; k < call->result_count; k++, separator = ", ")
        text_append(out, "%s%s *out%d", separator, cuda_memory_type(call->result_shapes[k]->type), k);
    if (source->scratch_bytes > 0) text_append(out, ", %s *scratch", scratch ? scratch : "void");
    if (source->upload_bytes > 0) text_append_string(out, ", const u8 *upload");
    text_append(out, "%s) {\n", numbered ? ", s64 number" : "");
}

AmStatus cuda_source_add(CudaSource *source, const CudaLaunch *launch, AmError *error) {
    int32_t count = source->launch_count;
    if (launch->blocks > CUDA_MOST_BLOCKS)
        return am_fail(error, AM_ERROR_INPUT, "", "a kernel of %lld blocks is more than a grid holds",
                       (long long)launch->blocks);
    ARENA_RESERVE(source->arena, source->launches, count, source->launch_capacity);
    if (!source->launches) return am_fail_memory(error, (int64_t)sizeof *launch * (count + 1));
    source->launches[source->launch_count++] = *launch;
    return AM_OK;
}

/* Adds a launch, with the name and text of its kernel. `bounds`: of __launch_bounds__(). */
static AmStatus add_kernel(CudaSource *source, const char *kind, const char *bounds, Text *body,
                           CudaLaunch launch, AmError *error) {
    char digest[65];
    Sha256 hash;
    bool failed = body->failed;
    if (!failed && launch.blocks > 0) {
        sha256_begin(&hash);
        sha256_add(&hash, body->data, body->length);
        sha256_end(&hash, digest);
        digest[16] = '\0';
        launch.name = arena_format(source->arena, "%s_%s", kind, digest);
        launch.text =
            arena_format(source->arena, "extern \"C\" __global__ void __launch_bounds__(%s) %s_%s%s", bounds,
                         kind, digest, body->data);
        failed = !launch.name || !launch.text;
    }
    text_free(body);
    if (failed) return am_fail_memory(error, 1 << 14);
    return launch.blocks > 0 ? cuda_source_add(source, &launch, error) : AM_OK;
}

AmStatus cuda_source_launch(CudaSource *source, const char *kind, Text *body, int64_t blocks, int32_t threads,
                            AmError *error) {
    char bounds[16];
    snprintf(bounds, sizeof bounds, "%d", threads);
    return add_kernel(source, kind, bounds, body, (CudaLaunch){.blocks = blocks, .threads = threads}, error);
}

AmStatus cuda_source_launch_long(CudaSource *source, const char *kind, Text *body, int64_t blocks,
                                 int32_t threads, AmError *error) {
    char bounds[16];
    snprintf(bounds, sizeof bounds, "%d, 1", threads);
    return add_kernel(source, kind, bounds, body, (CudaLaunch){.blocks = blocks, .threads = threads}, error);
}
