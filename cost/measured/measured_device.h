/* Matrix products and fused attention in 16-bit types by measurements of a device.
 *
 *     product of m x k and k x n    2 (m + a) (n + a) (k + b) / (peak e) seconds
 *     fused attention               2 c (R + a) K (d + d') / (peak e) seconds
 *
 * e, a and b are fitted for a device and a layout (device_fits.def, by bench/fit_products.py). At measured
 * shapes a product takes the measured time. It takes no more than measured shapes that are larger in every
 * size, and no less than those that are smaller. So a time never falls when a size grows. Where measurements
 * contradict that, the time lies between them.
 *
 * Fused attention keeps scores in the registers. It has R rows of queries, K keys, and sizes d and d' of a
 * head of keys and of values. c is 1 forward and 2.5 backward. The fits are of causal attention; without a
 * mask it takes twice as long.
 */
#ifndef COST_MEASURED_MEASURED_DEVICE_H
#define COST_MEASURED_MEASURED_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

/* How row-major operands m x k and k x n lie: as named, or the right one transposed (n x k), or the left one
 * (k x m). The last is the gradient of a weight. */
typedef enum ProductLayout { PRODUCT_NN, PRODUCT_TN, PRODUCT_NT, PRODUCT_LAYOUTS } ProductLayout;

typedef enum AttentionPass { ATTENTION_FORWARD, ATTENTION_BACKWARD, ATTENTION_PASSES } AttentionPass;

/* FLOPs of a backward pass of attention over those of a forward pass: five products, not two. */
#define ATTENTION_BACKWARD_FLOPS 2.5

typedef struct ProductSize {
    ProductLayout layout;
    double count, m, n, k; /* `count` products of one size, in one kernel */
} ProductSize;

typedef struct AttentionSize {
    double batch, heads, kv_heads; /* on one device */
    double rows, keys;             /* of a sequence */
    double key_size, value_size;   /* of a head */
    bool is_causal;
} AttentionSize;

/* "A100", "V100" or "B200"; NULL for other names. */
typedef struct MeasuredDevice MeasuredDevice;
/* Returns the fits of a device type ("A100"), or NULL. */
const MeasuredDevice *measured_device_find(const char *name);

/* Returns the seconds after the launch, on a device with this peak of the type in FLOP/s; the measured one's
 * is 312e12, 125e12 and 2250e12. */
double measured_product_seconds(const MeasuredDevice *device, const ProductSize *size, double peak);
/* Returns a bound: no product of so many FLOPs takes less. */
double measured_product_bound(const MeasuredDevice *device, double flops, double peak);
/* Returns the seconds after the launch; a device without measured attention takes the A100's share of its
 * peak. */
double measured_attention_seconds(const MeasuredDevice *device, AttentionPass pass, const AttentionSize *size,
                                  double peak);

#endif
