/* Fused kernels of a module, for prices: its instructions are named "fused/KIND/NUMBER", as those of
 * models/transformer.h are.
 *
 * All steps of a kernel are one launch. They read each operand once, and values that no other step reads stay
 * in registers: they have neither bytes nor memory. KIND attention contains products; it has the measured
 * time of fused attention (cost/measured). The products of "columns" have one left operand, and are priced as
 * one product with all columns. Those of "depth" are added, and are one product with all of their depths. The
 * executor runs the same instructions as separate kernels.
 */
#ifndef COST_OPERATOR_FUSED_KERNELS_H
#define COST_OPERATOR_FUSED_KERNELS_H

#include "lowering/program/program.h"

typedef enum FusedKind {
    FUSED_NONE,
    FUSED_COLUMNS,         /* "fused/columns/12" */
    FUSED_DEPTH,           /* "fused/depth/12" */
    FUSED_PLAIN,           /* "fused/kernel/12" */
    FUSED_FORWARD,         /* "fused/attention_forward/12" */
    FUSED_FORWARD_CAUSAL,  /* "fused/causal_forward/12" */
    FUSED_BACKWARD,        /* "fused/attention_backward/12" */
    FUSED_BACKWARD_CAUSAL, /* "fused/causal_backward/12" */
    /* by the kernels of FlashAttention 1, "fused/attention_forward_1/12" and so on */
    FUSED_FLASH1_FORWARD,
    FUSED_FLASH1_FORWARD_CAUSAL,
    FUSED_FLASH1_BACKWARD,
    FUSED_FLASH1_BACKWARD_CAUSAL,
    FUSED_KINDS
} FusedKind;

/* A step as part of a kernel. */
typedef struct FusedStep {
    FusedKind kind;
    bool launches;         /* the first step of the kernel */
    uint64_t read_before;  /* bits by operand: an earlier step of the kernel has read it */
    uint64_t in_registers; /* bits by result: it never reaches memory */
    bool waits;            /* the host waits for the device in front of the kernel, "fused/kernel/waits/12" */
    double products; /* of the first step of joined products: all columns (depths) over its own; else 0 */
} FusedStep;

/* Finds the kernels of a program and its regions, and plans their memory again without values in registers.
 * Joined loops share the memory inside: a framework runs one micro-batch of one direction at a time.
 * program->execution.fused stays NULL where no instruction has such a name. `is_serial`: joined loops share
 * the memory in any case, as under automap_jax.run. Such a program is for prices alone. */
AmStatus fused_kernels_find(Program *program, bool is_serial, AmError *error);

#endif
