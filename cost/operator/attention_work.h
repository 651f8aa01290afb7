/* Work of fused attention: the region of one operator, by its products and its reductions over keys.
 *
 *     scores [R rows, K keys]; the FLOPs of all products are 2 R K times the sizes of their heads
 */
#ifndef COST_OPERATOR_ATTENTION_WORK_H
#define COST_OPERATOR_ATTENTION_WORK_H

#include "cost/measured/measured_device.h"
#include "lowering/program/program.h"

typedef struct AttentionWork {
    Dtype type;        /* of the products' operands */
    double rows, keys; /* rows of all heads and examples; 0: not known */
    double flops;      /* of the products, without a mask */
    bool is_backward;  /* more than two products */
    bool is_causal;    /* a mask compares two positions */
} AttentionWork;

/* Finds the work of a region that is computed by blocks (ProgramRegions.in_blocks). */
void attention_work(AttentionWork *work, const Program *region);
/* Finds the work of a fused attention of a module, on one device. Keys may be masked: is_causal is set. */
void attention_work_unsharded(AttentionWork *work, const IrModule *module, int32_t fusion);
/* Returns the seconds after the launch on a device with this peak, for 16-bit types and known rows. */
double attention_work_seconds(const AttentionWork *work, const MeasuredDevice *device, double peak);

#endif
