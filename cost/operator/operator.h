/* Seconds of one step of a lowered program on one device.
 *
 * operator_work() describes the step. operator_seconds() takes the first of these prices that the operator
 * has on the device:
 *
 *   1. its event in the profile, recorded by a run (profile.h)
 *   2. the curves of its classes in the cluster file (operator_terms.h)
 *   3. its event in the profile, recorded by a probe
 *   4. the steps of its blocks, for attention by blocks on a device with curves
 *   5. measured attention, for the steps of a fused kernel of the module (fused_kernels.h)
 *   6. measured attention, for attention by blocks in 16-bit types (attention_work.h)
 *   7. measured products, for a product of 16-bit types (cost/measured/measured_device.h)
 *   8. the roofline:
 *
 *         seconds = launch + max(FLOPs / (peak e), bytes / (rate e))    e: efficiency at that size
 */
#ifndef COST_OPERATOR_OPERATOR_H
#define COST_OPERATOR_OPERATOR_H

#include "cost/cluster/cluster.h"
#include "cost/measured/measured_device.h"
#include "cost/operator/attention_work.h"
#include "cost/operator/fused_kernels.h"
#include "lowering/program/program.h"

typedef enum OperatorUnit {
    OPERATOR_VECTOR,     /* element-wise arithmetic, reductions, and what moves data only */
    OPERATOR_DOT,        /* the matrix units, by the curve "dot" */
    OPERATOR_CONVOLUTION /* the same by the curve "convolution" */
} OperatorUnit;
/* Returns the unit of a device that computes the operator. */
OperatorUnit operator_unit(IrOpcode opcode);

/* The work of a step, independent of the device. */
typedef struct OperatorWork {
    double flops, bytes; /* bytes read plus written */
    OperatorUnit unit;
    Dtype type;              /* of the operands; decides the peak */
    ProductSize product;     /* of a dot; `count` 0: not known */
    AttentionWork attention; /* of an operator by blocks; `rows` 0: another operator */
    FusedKind fused;         /* the kernel that it is part of (fused_kernels.h) */
    bool is_continued;       /* an earlier step has launched that kernel */
    bool waits;              /* the host waits for the device in front of that kernel */
    bool is_run;             /* false: nothing is launched (a view) */
    const Program *program;  /* of the step, or NULL: only the figures above are known */
    const ProgramStep *step;
} OperatorWork;

/* Returns whether two works take equally long on every device type that no measurements are known of. */
static inline bool operator_work_equals(const OperatorWork *a, const OperatorWork *b) {
    return a->flops == b->flops && a->bytes == b->bytes && a->unit == b->unit && a->type == b->type &&
           a->is_run == b->is_run && a->fused == b->fused && a->is_continued == b->is_continued &&
           a->waits == b->waits && a->product.layout == b->product.layout &&
           a->product.count == b->product.count && a->product.m == b->product.m &&
           a->product.n == b->product.n && a->product.k == b->product.k &&
           a->attention.rows == b->attention.rows && a->attention.keys == b->attention.keys &&
           a->attention.is_causal == b->attention.is_causal;
}

/* Finds the work of a step that computes; collectives have none (cost/collective/collective.h). */
void operator_work(OperatorWork *work, const Program *program, const ProgramStep *step);
double operator_seconds(const OperatorWork *work, const ClusterDeviceType *type);

#endif
