/* Random numbers: xoshiro256++ (Blackman and Vigna, 2019) seeded by splitmix64
 * (Steele et al., 2014), and a counter-based generator made of splitmix64's
 * mixing function over (seed, stream, index).
 *
 * Normal values are the inverse of the normal distribution function at one
 * uniform value (Wichura, algorithm AS 241, 1988; relative error about 1e-16).
 * It and the logarithm it needs use only + - * / and sqrt, which IEEE 754
 * rounds correctly, so every machine draws the same bits; the C library's log
 * and cos may differ in the last place from one processor to the next.
 */
#include "base/random.h"

#include <math.h>

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

static uint64_t rotate_left(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

void random_seed(Random *random, uint64_t seed) {
    for (int i = 0; i < 4; i++) random->state[i] = mix(seed += GOLDEN);
}

uint64_t random_bits(Random *random) {
    uint64_t *s = random->state;
    uint64_t result = rotate_left(s[0] + s[3], 23) + s[0];
    uint64_t shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

/* Scales 53 random bits to [0, 1). */
static double to_uniform(uint64_t bits) {
    return (double)(bits >> 11) * 0x1p-53;
}

double random_uniform(Random *random) {
    return to_uniform(random_bits(random));
}

/* Values from the incomplete last copy of [0, bound) are drawn again. */
int64_t random_below(Random *random, int64_t bound) {
    if (bound <= 1) return 0;
    uint64_t range = (uint64_t)bound;
    uint64_t least = (0 - range) % range; /* 2^64 mod bound */
    uint64_t bits;
    do bits = random_bits(random);
    while (bits < least);
    return (int64_t)(bits % range);
}

/* Returns ln x for x in (0, 1]: x = 2^e m with m in [sqrt(1/2), sqrt(2)), then ln m = 2 atanh((m - 1) / (m +
 * 1)), whose series ends below 1e-17 after 11 terms because its argument is at most 0.172. */
static double natural_logarithm(double x) {
    int exponent;
    double m = frexp(x, &exponent);
    if (m < 0.70710678118654752) {
        m *= 2;
        exponent--;
    }
    double t = (m - 1) / (m + 1), square = t * t, sum = 0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
    return exponent * 0.69314718055994531 + 2 * t * sum;
}

typedef struct Rational {
    double numerator[8], denominator[8]; /* highest power first */
} Rational;

/* Evaluates a rational function by Horner's scheme. */
static double evaluate(const Rational *ratio, double x) {
    double above = 0, below = 0;
    for (int i = 0; i < 8; i++) {
        above = above * x + ratio->numerator[i];
        below = below * x + ratio->denominator[i];
    }
    return above / below;
}

/* AS 241's three approximations: |u - 1/2| <= 0.425, and two for the tails in
 * r = sqrt(-ln min(u, 1 - u)), up to 5 and beyond. */
static const Rational CENTRE = {
    {2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0},
    {5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0}};
static const Rational TAIL = {{7.74545014278341407640e-4, 2.27238449892691845833e-2,
                               2.41780725177450611770e-1, 1.27045825245236838258e0, 3.64784832476320460504e0,
                               5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0},
                              {1.05075007164441684324e-9, 5.47593808499534494600e-4,
                               1.51986665636164571966e-2, 1.48103976427480074590e-1,
                               6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0,
                               1.0}};
static const Rational FAR_TAIL = {
    {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
     2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0,
     6.65790464350110377720e0},
    {2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
     7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
     5.99832206555887937690e-1, 1.0}};

/* Returns the u-quantile of the normal distribution; u is moved off 0 by half a step so that it lies
 * strictly between 0 and 1. */
static double to_normal(uint64_t bits) {
    double u = ((double)(bits >> 12) + 0.5) * 0x1p-52;
    double q = u - 0.5;
    if (fabs(q) <= 0.425) return q * evaluate(&CENTRE, 0.180625 - q * q);
    double r = sqrt(-natural_logarithm(q < 0 ? u : 1 - u));
    double value = r <= 5 ? evaluate(&TAIL, r - 1.6) : evaluate(&FAR_TAIL, r - 5);
    return q < 0 ? -value : value;
}

double random_gumbel(Random *random) {
    return -log(-log(random_uniform(random) + 1e-12) + 1e-12);
}

double random_normal(Random *random) {
    return to_normal(random_bits(random));
}

uint64_t random_at(uint64_t seed, uint64_t stream, uint64_t index) {
    uint64_t key = mix(mix(seed + GOLDEN) + (stream + 1) * GOLDEN);
    return mix(key + (index + 1) * GOLDEN);
}

double random_uniform_at(uint64_t seed, uint64_t stream, uint64_t index) {
    return to_uniform(random_at(seed, stream, index));
}

double random_normal_at(uint64_t seed, uint64_t stream, uint64_t index) {
    return to_normal(random_at(seed, stream, index));
}
