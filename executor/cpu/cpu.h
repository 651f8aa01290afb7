/* The CPU back end's kernels, one pair per family of operators.
 *
 * prepare() computes everything that depends on shapes and attributes alone (call->compiled, in the
 * arena), sets call->run and call->scratch_bytes, or refuses. The table opcode -> prepare is in
 * kernels_cpu.c. Each file's head describes the operators of the family and their algorithms.
 */
#ifndef EXECUTOR_CPU_CPU_H
#define EXECUTOR_CPU_CPU_H

#include "executor/kernels.h"

typedef AmStatus CpuPrepare(KernelCall *call, Arena *arena, AmError *error);

CpuPrepare cpu_prepare_fusion; /* fusion.c */
CpuPrepare cpu_prepare_single; /* fusion.c: one element-wise instruction */
/* Computes elements [first, end) of a prepared fusion that is a step of a row group, by one thread. begin()
 * comes first, for any number of ranges of at most `most` elements, which begin at blocks of the group;
 * `scratch` is of cpu_fusion_scratch() bytes. */
int64_t cpu_fusion_scratch(const KernelCall *call);
void cpu_fusion_begin(const KernelCall *call, int64_t most, void *scratch);
void cpu_fusion_run(const KernelCall *call, int64_t first, int64_t end, void *scratch);
double cpu_fusion_nanoseconds(const KernelCall *call); /* of all elements on one thread, roughly */
CpuPrepare cpu_prepare_dot;                            /* dot.c */
CpuPrepare cpu_prepare_blocked_region;                 /* blocked_region.c */
CpuPrepare cpu_prepare_convolution;                    /* convolution.c */
CpuPrepare cpu_prepare_ragged_dot;                     /* ragged_dot.c */
CpuPrepare cpu_prepare_reduce;                         /* reduce.c */
/* Computes results [first, end) of a prepared reduction, if it can compute a range of them. */
bool cpu_reduce_has_ranges(const KernelCall *call);
void cpu_reduce_run(const KernelCall *call, int64_t first, int64_t end);
/* Implements KernelBackEnd.join_rows (rows/row_group.c) */
AmStatus cpu_join_rows(KernelCall *const *calls, Arena *arena, AmError *error);
CpuPrepare cpu_prepare_gather;                                        /* gather.c */
CpuPrepare cpu_prepare_scatter;                                       /* scatter.c */
CpuPrepare cpu_prepare_reduce_window, cpu_prepare_select_and_scatter; /* window.c */
CpuPrepare cpu_prepare_fft;                                           /* fft.c */
CpuPrepare cpu_prepare_random_bits;                                   /* random_bits.c */
CpuPrepare cpu_prepare_sort, cpu_prepare_topk;                        /* sort.c */
CpuPrepare cpu_prepare_cholesky, cpu_prepare_triangular_solve;        /* linear_algebra.c */
CpuPrepare cpu_prepare_lapack; /* lapack.c: custom calls of its targets */
bool cpu_covers_lapack(const char *target);
CpuPrepare cpu_prepare_bitcast_convert; /* bitcast.c */
CpuPrepare cpu_prepare_map;             /* map.c */
CpuPrepare cpu_prepare_rng;             /* rng.c */
/* dynamic.c */
CpuPrepare cpu_prepare_get_dimension_size;
CpuPrepare cpu_prepare_dynamic; /* set-dimension-size, dynamic-reshape */
/* batch_norm.c */
CpuPrepare cpu_prepare_batch_norm_training, cpu_prepare_batch_norm_inference, cpu_prepare_batch_norm_gradient;
/* move.c */
CpuPrepare cpu_prepare_broadcast, cpu_prepare_transpose, cpu_prepare_slice, cpu_prepare_pad,
    cpu_prepare_concatenate, cpu_prepare_reverse, cpu_prepare_reshape, cpu_prepare_constant, cpu_prepare_iota,
    cpu_prepare_dynamic_slice, cpu_prepare_dynamic_update_slice;
CpuPrepare cpu_prepare_dynamic_part; /* dynamic_part.c: the latter two of a shard */

#endif
