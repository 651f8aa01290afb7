/* Seconds of 16-bit matrix products and fused attention, by fits and measured shapes of a device.
 *
 * A product [m, k] x [k, n] takes 2 (m + edge) (n + edge) (k + depth) / (share * peak): device_fits.def has
 * the constants of each device and layout. The result is kept between the measured times
 * (product_points.def) of smaller and larger shapes. The fit of a device also serves other types, scaled by
 * the peaks.
 */
#include "cost/measured/measured_device.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { A100, V100, B200, DEVICE_COUNT };

struct MeasuredDevice {
    const char *name;
    double peak;
};

static const MeasuredDevice devices[DEVICE_COUNT] = {
    [A100] = {"A100", 312e12}, [V100] = {"V100", 125e12}, [B200] = {"B200", 2250e12}};

typedef struct ProductFit {
    double share, edge, depth;
} ProductFit;

typedef struct AttentionFit {
    double share, edge;
} AttentionFit;

#define ATTENTION_FIT(device, pass, share, edge)
#define PRODUCT_FIT(device, layout, share, edge, depth) [device][PRODUCT_##layout] = {share, edge, depth},
static const ProductFit product_fits[DEVICE_COUNT][PRODUCT_LAYOUTS] = {
#include "cost/measured/device_fits.def"
};
#undef PRODUCT_FIT
#undef ATTENTION_FIT

#define PRODUCT_FIT(device, layout, share, edge, depth)
#define ATTENTION_FIT(device, pass, share, edge) [device][ATTENTION_##pass] = {share, edge},
static const AttentionFit attention_fits[DEVICE_COUNT][ATTENTION_PASSES] = {
#include "cost/measured/device_fits.def"
};
#undef ATTENTION_FIT
#undef PRODUCT_FIT

typedef struct ProductPoint {
    int32_t device;
    ProductLayout layout;
    double m, n, k, microseconds;
} ProductPoint;

#define PRODUCT_POINT(device, layout, m, n, k, microseconds) \
    {device, PRODUCT_##layout, m, n, k, microseconds},
static const ProductPoint points[] = {
#include "cost/measured/product_points.def"
};
#undef PRODUCT_POINT

const MeasuredDevice *measured_device_find(const char *name) {
    for (int32_t d = 0; d < DEVICE_COUNT; d++)
        if (strcmp(devices[d].name, name) == 0) return &devices[d];
    return NULL;
}

/* Returns the time of the fit, between those of measured shapes that are smaller and larger in every
 * size. */
static double single_product_seconds(int32_t device, const ProductSize *size) {
    const ProductFit *fit = &product_fits[device][size->layout];
    double fitted = 2 * (size->m + fit->edge) * (size->n + fit->edge) * (size->k + fit->depth) /
                    (devices[device].peak * fit->share);
    double least = 0, most = INFINITY;
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        const ProductPoint *point = &points[p];
        if (point->device != device || point->layout != size->layout) continue;
        double seconds = point->microseconds * 1e-6;
        bool is_smaller = point->m <= size->m && point->n <= size->n && point->k <= size->k;
        bool is_larger = point->m >= size->m && point->n >= size->n && point->k >= size->k;
        if (is_smaller && seconds > least) least = seconds;
        if (is_larger && seconds < most) most = seconds;
    }
    return fmin(fmax(fitted, fmin(least, most)), fmax(least, most));
}

double measured_product_seconds(const MeasuredDevice *device, const ProductSize *size, double peak) {
    int32_t number = (int32_t)(device - devices);
    if (size->count != 1) /* small tiles suit them, and one fills the processors that another leaves */
        return 2 * size->count * size->m * size->n * size->k /
               (peak * product_fits[number][size->layout].share);
    return single_product_seconds(number, size) * device->peak / peak;
}

double measured_product_bound(const MeasuredDevice *device, double flops, double peak) {
    int32_t number = (int32_t)(device - devices);
    double best = 0;
    for (int32_t layout = 0; layout < PRODUCT_LAYOUTS; layout++)
        best = fmax(best, product_fits[number][layout].share);
    for (size_t p = 0; p < sizeof points / sizeof *points; p++)
        if (points[p].device == number)
            best = fmax(best, 2 * points[p].m * points[p].n * points[p].k /
                                  (points[p].microseconds * 1e-6 * device->peak));
    return flops / (peak * best);
}

double measured_attention_seconds(const MeasuredDevice *device, AttentionPass pass, const AttentionSize *size,
                                  double peak) {
    const AttentionFit *fit = &attention_fits[device - devices][pass];
    if (fit->share <= 0) fit = &attention_fits[A100][pass];
    double rows = size->batch * size->heads * size->rows + fit->edge,
           passes = pass == ATTENTION_FORWARD ? 1 : ATTENTION_BACKWARD_FLOPS;
    double flops = passes * 2 * rows * size->keys * (size->key_size + size->value_size);
    return flops / (peak * fit->share) * (size->is_causal ? 1 : 2);
}
