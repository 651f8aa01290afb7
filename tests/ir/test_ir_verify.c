/* The verifier: one line of HLO text per case, valid ones that must pass and invalid ones with the
 * expected error. Every case has the operands and the computations of tests/data/verify/module.hlo.txt.
 * Element-wise operators are tried with every kind of element type, by the table's own rows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "ir/canonical/canonical.h"
#include "ir/verify/verify_parts.h"

/* Before a message: XLA accepts the instruction. It is read, and the canonical module refused. */
#define UNPLANNED "(no plan) "

/* Refused for its missing done alone: its own rule holds. */
#define ALONE "it has 0 users"

typedef struct Case {
    const char *instruction;
    const char *message; /* NULL: it must pass */
} Case;

static const Case cases[] = {
    /* Element-wise. */
    {"f32[2,3] add(m, m)", NULL},
    {"f32[2,3] add(m, n)", "r (add): found the shape f32[3,4], expected f32[2,3]"},
    {"f32[3,2] negate(m)", "found the shape f32[2,3], expected f32[3,2]"},
    {"s32[2,3] add(m, m)", "found the shape f32[2,3], expected s32[2,3]"},
    {"f32[2,3] add(m)", "it has 1 operands, expected 2"},
    {"f32[2,3] select(p, m, m)", NULL},
    {"f32[2,3] select(q, m, m)", NULL},
    /* Modules that only XLA accepts. */
    {"f32[2,3] add(m, bm)", UNPLANNED "found the shape bf16[2,3], expected f32[2,3]"},
    {"bf16[3,2] transpose(m), dimensions={1,0}", UNPLANNED "found the shape bf16[3,2], expected f32[3,2]"},
    {"(bf16[2,3]) tuple(m)", "found the shape bf16[2,3], expected f32[2,3]"},
    {"f32[1073741824,1073741824] broadcast(z), dimensions={}", UNPLANNED "more than 2^58 bytes"},
    {"f32[7] bitcast(m)", UNPLANNED "it makes 28 bytes of 24"},
    {"f32[2,3] fusion(m, m), kind=kLoop, calls=one", UNPLANNED "takes 1 parameters, expected 2"},
    {"bf16[2,3] fusion(m), kind=kLoop, calls=one", "found the shape bf16[2,3], expected f32[2,3]"},
    {"f32[2,3] map(m, z), dimensions={0,1}, to_apply=add",
     UNPLANNED "found the shape f32[], expected f32[2,3]"},
    {"f32[3,2] add-dependency(m, o)", UNPLANNED "found the shape f32[3,2], expected f32[2,3]"},
    {"f32[3] gather(n, s3), offset_dims={}, collapsed_slice_dims={1}, operand_batching_dims={0}, "
     "start_indices_batching_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,1}",
     UNPLANNED "addressed by the indices"},
    {"f32[2,3] select(m, m, m)", "found the type f32, expected pred"},
    {"pred[2,3] compare(m, m), direction=LT", NULL},
    {"f32[2,3] compare(m, m), direction=LT", "found the type f32, expected pred"},
    {"pred[2,3] compare(m, m), direction=XX", "XX"},
    {"pred[2,3] compare(m, i), direction=EQ", "found the shape s32[2,3], expected f32[2,3]"},
    {"pred[2,3] is-finite(m)", NULL},
    {"bf16[2,3] convert(m)", NULL},
    {"bf16[3,2] convert(m)", "found the shape bf16[3,2], expected bf16[2,3]"},
    {"f32[2,3] clamp(z, m, z)", NULL},
    {"f32[2,3] clamp(k, m, z)", "found the type s32, expected f32"},
    {"f32[2,3] real(c)", NULL},
    {"c64[2,3] real(c)", "its shape has the type c64, expected floating"},
    {"c64[2,3] complex(m, m)", NULL},
    {"s32[2,3] bitcast-convert(m)", NULL},
    {"s16[2,3,2] bitcast-convert(m)", NULL},
    {"s16[2,6] bitcast-convert(m)", "the 2 parts of each element"},
    {"f32[2,3] negate(t)", "operand 0 is not an array"},
    {"(f32[2,3], s32[]) negate(t)", "not an array"},
    /* Movement. */
    {"f32[2,5,3] broadcast(m), dimensions={0,2}", NULL},
    {"f32[2,5,3] broadcast(m), dimensions={0,1}", "dimension 1 has size 5, expected 3"},
    {"f32[2,5,3] broadcast(m), dimensions={0}", "it maps 1 dimensions, its operand has 2"},
    {"f32[2,5,3] broadcast(m), dimensions={0,7}", "names dimension 7"},
    {"f32[6] reshape(m)", NULL},
    {"f32[7] reshape(m)", "it makes 7 elements of 6"},
    {"s32[6] reshape(m)", "found the type s32, expected f32"},
    {"f32[3,2] transpose(m), dimensions={1,0}", NULL},
    {"f32[3,2] transpose(m), dimensions={0,1}", "expected f32[2,3]"},
    {"f32[3,2] transpose(m), dimensions={1,1}", "names dimension 1 twice"},
    {"f32[2,3] reverse(m), dimensions={1}", NULL},
    {"f32[2,3] reverse(m), dimensions={2}", "names dimension 2"},
    {"f32[1,2] slice(m), slice={[1:2], [0:3:2]}", NULL},
    {"f32[1,1] slice(m), slice={[1:2], [0:3:2]}", "expected f32[1,2]"},
    {"f32[1,4] slice(m), slice={[1:2], [0:4]}", "it ends at 4 in dimension 1, which has size 3"},
    {"f32[5,2] pad(m, z), padding=1_1_1x-1_0", NULL},
    {"f32[4,2] pad(m, z), padding=1_1_1x-1_0", "expected f32[5,2]"},
    {"f32[2,0] pad(m, z), padding=0_0x-2_-2", "no valid size"},
    {"f32[4,3] concatenate(m, m), dimensions={0}", NULL},
    {"f32[5,3] concatenate(m, m), dimensions={0}", "expected f32[4,3]"},
    {"f32[5,3] concatenate(m, n), dimensions={0}", "found the shape f32[3,4]"},
    {"s32[2,3] iota(), iota_dimension=1", NULL},
    {"s32[2,3] iota(), iota_dimension=2", "names dimension 2"},
    {"f32[1,3] dynamic-slice(m, k, k), dynamic_slice_sizes={1,3}", NULL},
    {"f32[3,3] dynamic-slice(m, k, k), dynamic_slice_sizes={3,3}", "larger than its operand"},
    {"f32[1,3] dynamic-slice(m, k), dynamic_slice_sizes={1,3}", "it has 1 start indices, expected 2"},
    {"f32[1,3] dynamic-slice(m, z, z), dynamic_slice_sizes={1,3}", "no integers"},
    {"f32[2,3] dynamic-update-slice(m, m, k, k)", NULL},
    {"f32[2,3] dynamic-update-slice(m, n, k, k)", "larger than its operand"},
    /* Contraction. */
    {"f32[2,4] dot(m, n), lhs_contracting_dims={1}, rhs_contracting_dims={0}", NULL},
    {"f32[4,2] dot(m, n), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "expected f32[2,4]"},
    {"f32[2,4] dot(m, n), lhs_contracting_dims={0}, rhs_contracting_dims={0}", "size 2 on the left"},
    {"f32[2,4] dot(m, n), lhs_contracting_dims={5}, rhs_contracting_dims={0}", "names dimension 5"},
    {"f32[2,4] dot(m, h), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, "
     "rhs_contracting_dims={1}",
     NULL},
    {"f32[8,8,8,16] convolution(x, w), window={size=3x3}, dim_labels=b01f_01io->b01f", NULL},
    {"f32[8,5,5,16] convolution(x, w), window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
     NULL},
    {"f32[8,8,8,15] convolution(x, w), window={size=3x3}, dim_labels=b01f_01io->b01f",
     "expected f32[8,8,8,16]"},
    {"f32[8,8,8,16] convolution(x, w), window={size=2x3}, dim_labels=b01f_01io->b01f",
     "its window has size 2 in dimension 0, its kernel 3"},
    {"f32[8,8,8,16] convolution(x, w), window={size=3x3}, dim_labels=b01f_01oi->b01f",
     "its input has 3 features"},
    {"f32[8,8,8,16] convolution(x, m), window={size=3x3}, dim_labels=b01f_01io->b01f",
     "the kernel has rank 2"},
    {"f32[2] reduce(m, z), dimensions={1}, to_apply=add", NULL},
    {"f32[3] reduce(m, z), dimensions={1}, to_apply=add", "found the shape f32[3], expected f32[2]"},
    {"f32[2] reduce(m, k), dimensions={1}, to_apply=add", "found the shape s32[], expected f32[]"},
    {"f32[2] reduce(m, z), dimensions={2}, to_apply=add", "names dimension 2"},
    {"f32[2] reduce(m, z), dimensions={1}, to_apply=one", "computation one takes 1 parameters, expected 2"},
    {"f32[2] reduce(m, m, z), dimensions={1}, to_apply=add", "it has 3 operands"},
    /* Windows. */
    {"f32[4,5,5,3] reduce-window(y, z), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=add", NULL},
    {"f32[4,9,9,3] reduce-window(y, z), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=add",
     "expected f32[4,5,5,3]"},
    {"f32[4,5,5,3] reduce-window(y, z), window={size=2x2}, to_apply=add", "its window has 2 dimensions"},
    {"f32[4,10,10,3] select-and-scatter(y, g, z), window={size=1x2x2x1 stride=1x2x2x1}, select=ge, "
     "scatter=add",
     NULL},
    {"f32[4,10,10,3] select-and-scatter(y, y, z), window={size=1x2x2x1 stride=1x2x2x1}, select=ge, "
     "scatter=add",
     "expected f32[4,5,5,3]"},
    /* Indexing: rows of n by j. */
    {"f32[5,4] gather(n, j), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, "
     "slice_sizes={1,4}",
     NULL},
    {"f32[4,5] gather(n, j), offset_dims={0}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, "
     "slice_sizes={1,4}",
     NULL},
    {"f32[4,5] gather(n, j), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, "
     "slice_sizes={1,4}",
     "expected f32[5,4]"},
    {"f32[5,9] gather(n, j), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, "
     "slice_sizes={1,9}",
     "its slice has size 9 in dimension 1 of size 4"},
    {"f32[5,4] gather(n, j), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0,1}, "
     "index_vector_dim=1, "
     "slice_sizes={1,4}",
     "its index vectors have 1 elements, expected 2"},
    {"f32[5,4] gather(n, m), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, "
     "slice_sizes={1,4}",
     "its indices are no integers"},
    {"f32[3,4] scatter(n, j, u), update_window_dims={1}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, "
     "index_vector_dim=1, to_apply=add",
     NULL},
    {"f32[4,4] scatter(n, j, u), update_window_dims={1}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, "
     "index_vector_dim=1, to_apply=add",
     "found the shape f32[4,4], expected f32[3,4]"},
    {"f32[3,4] scatter(n, j, n), update_window_dims={1}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, "
     "index_vector_dim=1, to_apply=add",
     "found the shape f32[3,4], expected f32[5,4]"},
    /* Structure. */
    {"(f32[2,3], f32[]) tuple(m, z)", NULL},
    {"(f32[2,3]) tuple(m, z)", "no tuple of 2 elements"},
    {"(f32[2,3], s32[]) tuple(m, z)", "found the shape s32[], expected f32[]"},
    {"s32[] get-tuple-element(t), index=1", NULL},
    {"s32[] get-tuple-element(t), index=0", "expected f32[2,3]"},
    {"s32[] get-tuple-element(t), index=2", "no tuple with an element 2"},
    {"s32[] get-tuple-element(m), index=0", "no tuple with an element 0"},
    {"f32[2,3] call(m), to_apply=one", NULL},
    {"f32[2,3] call(n), to_apply=one", "found the shape f32[3,4], expected f32[2,3]"},
    {"f32[2,3] call(m, m), to_apply=one", "takes 1 parameters, expected 2"},
    {"f32[2,3] while(m), condition=yes, body=one", NULL},
    {"f32[2,3] while(m), condition=one, body=one", "expected pred[]"},
    {"f32[3,4] while(n), condition=yes, body=one", "found the shape f32[2,3], expected f32[3,4]"},
    {"f32[2,3] conditional(q, m, m), true_computation=one, false_computation=one", NULL},
    {"f32[2,3] conditional(k, m, m), branch_computations={one, one}", NULL},
    {"f32[2,3] conditional(z, m, m), branch_computations={one, one}", "its selector"},
    {"f32[3,4] sort(n), dimensions={0}, to_apply=ge", NULL},
    {"f32[3,4] sort(n), dimensions={2}, to_apply=ge", "names dimension 2"},
    /* Element-wise. */
    {"f32[2,3] reduce-precision(m), exponent_bits=8, mantissa_bits=7", NULL},
    {"f32[2,3] reduce-precision(m), exponent_bits=0, mantissa_bits=7",
     "it keeps 0 bits of the exponent and 7 of the mantissa, expected 1 or more and 0 or more"},
    {"f32[2,3] reduce-precision(m), exponent_bits=8, mantissa_bits=-1",
     "it keeps 8 bits of the exponent and -1 of the mantissa, expected 1 or more and 0 or more"},
    {"f32[2,3] stochastic-convert(m, um)", NULL},
    {"bf16[2,3] stochastic-convert(m, um)", NULL},
    {"f32[2,3] stochastic-convert(m, i)",
     "it converts f32 by s32, expected floating by unsigned of the same width"},
    {"bf16[2,3] stochastic-convert(m, uu)", "found the shape bf16[2,3], expected bf16[]"},
    {"f32[2,3] clamp(m, m, z)", NULL},
    {"f32[2,3] clamp(f3, m, f3)", "found the shape f32[3], expected f32[2,3]"},
    {"pred[2,3] compare(c, c), direction=LT", NULL},
    {"pred[2,3] compare(m, m), direction=LT, type=SIGNED",
     "it compares as SIGNED, which is not for the type f32"},
    {"pred[2,3] compare(i, i), direction=LT, type=TOTALORDER",
     "it compares as TOTALORDER, which is not for the type s32"},
    {"s32[2,3] convert(c)", NULL},
    {"f32[3,2] convert(m)", "found the shape f32[3,2], expected f32[2,3]"},
    {"f32[2,3] domain(m), domain={kind=\"sharding\", entry={replicated}, exit={replicated}}", NULL},
    {"f32[3,2] domain(m), domain={kind=\"sharding\", entry={replicated}, exit={replicated}}",
     "found the shape f32[2,3], expected f32[3,2]"},
    {"f32[2,3] opt-barrier(m)", NULL},
    {"bf16[2,3] opt-barrier(m)", "found the shape f32[2,3], expected bf16[2,3]"},
    {"f32[2,3] copy(d)", NULL},
    {"f32[2] copy(m)", "found the shape f32[2,3], expected f32[2]"},
    {"c64[2,3] complex(m, sm)", "found the shape f64[2,3], expected f32[2,3]"},
    {"c128[2,3] complex(m, m)", "found the type f32, expected f64"},
    /* Movement, again: sizes that are operands. */
    {"f32[6] bitcast(m)", NULL},
    {"s32[2,3] bitcast(m)", NULL},
    {"f16[2,3,2] bitcast(m)", NULL},
    {"f32[<=6] dynamic-reshape(m, k)", NULL},
    {"f32[<=3,2] dynamic-reshape(m, k)", "it has 1 sizes, expected 2"},
    {"f32[<=3,<=2] dynamic-reshape(m, k, z)", "found the type f32, expected s32"},
    {"f32[<=4,2] dynamic-reshape(m, k, k)", "it makes 8 elements of 6"},
    {"s32[] get-dimension-size(m), dimensions={1}", NULL},
    {"s32[] get-dimension-size(m), dimensions={2}",
     "dimensions names dimension 2 twice or outside of rank 2"},
    {"s64[] get-dimension-size(m), dimensions={1}", "found the shape s64[], expected s32[]"},
    {"f32[2,<=3] set-dimension-size(m, k), dimensions={1}", NULL},
    {"f32[<=2,3] set-dimension-size(m, dim), dimensions={0}", "found the shape s64[], expected s32[]"},
    {"f32[2,3] set-dimension-size(m, k), dimensions={2}",
     "dimensions names dimension 2 twice or outside of rank 2"},
    {"f32[] constant(1)", NULL},
    {"f32[2] constant({1,2})", NULL},
    /* Contraction and windows, again. */
    {"f32[6,4] ragged-dot(r6, h2, gs), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
     "lhs_ragged_dims={0}, rhs_group_dims={0}",
     NULL},
    {"f32[6,4] ragged-dot(r6, h2, gs), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
     "lhs_ragged_dims={0}, rhs_group_dims={}",
     "it has 0 group dimensions, expected 1"},
    {"f32[6,4] ragged-dot(r6, h2, gs), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
     "lhs_ragged_dims={0,1}, rhs_group_dims={0}",
     "it has 2 ragged dimensions, expected 1"},
    {"f32[6,4] ragged-dot(r6, h2, s3), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
     "lhs_ragged_dims={0}, rhs_group_dims={0}",
     "its group dimension 0 has size 2, expected 3"},
    {"f32[6,4] ragged-dot(r6, h2, gs), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
     "lhs_ragged_dims={0}, rhs_group_dims={1}",
     "its group dimension 1 is also a batch or contracting dimension"},
    {"f32[6,5] ragged-dot(r6, h2, gs), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
     "lhs_ragged_dims={0}, rhs_group_dims={0}",
     "found the shape f32[6,5], expected f32[6,4]"},
    {"f32[6,4] ragged-dot(r6, h2, k), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
     "lhs_ragged_dims={0}, rhs_group_dims={0}",
     "its group sizes are a scalar"},
    {"f32[6,4] ragged-dot(r6, h2, gs), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
     "lhs_ragged_dims={2}, rhs_group_dims={0}",
     "lhs_ragged_dims names dimension 2 twice or outside of rank 2"},
    {"f32[2,4] scaled-dot(m, n, m, n), lhs_contracting_dims={1}, rhs_contracting_dims={0}", NULL},
    {"f32[2,3] scaled-dot(m, n, m, n), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
     "found the shape f32[2,3], expected f32[2,4]"},
    {"f32[2,4] scaled-dot(m, n, bz, bz), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
     "the scales of operand 0 have rank 0, expected 2"},
    {"f32[2,4] scaled-dot(m, n, ww, n), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
     "operand 0 has size 2 in dimension 0, which its 3 scales do not divide"},
    {"f32[] reduce(m, z), dimensions={1,0}, to_apply=add", NULL},
    {"f32[2] reduce(m, z), dimensions={-1}, to_apply=add",
     "dimensions names dimension -1 twice or outside of rank 2"},
    {"f32[2] reduce(m, z), dimensions={1,1}, to_apply=add",
     "dimensions names dimension 1 twice or outside of rank 2"},
    {"f32[2] reduce(m, z), dimensions={1}, to_apply=adds32",
     "parameter 0 of computation adds32: found the shape s32[], expected f32[]"},
    {"f32[2] reduce(m, z), dimensions={1}, to_apply=ge",
     "the result of computation ge: found the shape pred[], expected f32[]"},
    {"f32[4,10,10,3] select-and-scatter(y, g, z), window={size=1x2x2x1 stride=1x2x2x1}, select=ge, "
     "scatter=add",
     NULL},
    {"f32[4,10,10,3] select-and-scatter(y, g, k), window={size=1x2x2x1 stride=1x2x2x1}, select=ge, "
     "scatter=add",
     "found the shape s32[], expected f32[]"},
    {"f32[4,10,10,3] select-and-scatter(y, g, z), window={size=1x2x2x1 stride=1x2x2x1}, select=add, "
     "scatter=add",
     "the result of computation add: found the shape f32[], expected pred[]"},
    {"f32[2,3] all-reduce(m), replica_groups={{0,1}}, to_apply=add", NULL},
    {"f32[2,3] all-reduce(m), replica_groups={{0,0}}, to_apply=add",
     "its replica groups name 0 twice or outside of the 2 they have"},
    {"f32[2,3] all-reduce(m), replica_groups={{0},{}}, to_apply=add", "replica group 1 is empty"},
    {"f32[3,2] all-reduce(m), replica_groups={}, to_apply=add",
     "found the shape f32[3,2], expected f32[2,3]"},
    {"(f32[2,3]) all-reduce(m), replica_groups={}, to_apply=add",
     "found the shape (f32[2,3]), expected f32[2,3]"},
    {"f32[2,3] all-reduce(m, m), replica_groups={}, to_apply=add", "its shape is no tuple of 2 elements"},
    {"token[] all-reduce(o), replica_groups={}, to_apply=add", "operand 0 is not an array"},
    {"bf16[8,8,8,16] convolution(x, w), window={size=3x3}, dim_labels=b01f_01io->b01f", NULL},
    {"f32[8,10,10,16] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, "
     "feature_group_count=3",
     "its input has 3 features in 3 groups, its kernel takes 3"},
    /* Indices, again. */
    {"f32[1,3] dynamic-slice(m, sa), dynamic_slice_sizes={1,3}", NULL},
    {"f32[1,3] dynamic-slice(m, k, dim), dynamic_slice_sizes={1,3}", NULL},
    {"f32[5,4] gather(n, j), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
     "index_vector_dim=1, slice_sizes={1,4}",
     NULL},
    {"f32[1,5,4] gather(n, j), offset_dims={2,0}, collapsed_slice_dims={}, start_index_map={0}, "
     "index_vector_dim=1, slice_sizes={1,4}",
     "the window names dimension 0 after 2, expected ascending ones"},
    {"f32[5] gather(n, j), offset_dims={}, collapsed_slice_dims={1,0}, start_index_map={0}, "
     "index_vector_dim=1, slice_sizes={1,1}",
     "collapsed names dimension 0 after 1, expected ascending ones"},
    {"f32[3,4] scatter(n, j, u), update_window_dims={1}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add",
     NULL},
    {"f32[3,4] scatter(n, j, u), update_window_dims={1}, inserted_window_dims={0}, "
     "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=adds32",
     "parameter 0 of computation adds32: found the shape s32[], expected f32[]"},
    /* What is called. */
    {"f32[2,3] conditional(k, m), branch_computations={one}", NULL},
    {"f32[2,3] conditional(dim, m, m), branch_computations={one, one}",
     "its selector is no scalar pred or s32"},
    {"f32[2,3] fusion(m), kind=kLoop, calls=one", NULL},
    {"f32[2,3] fusion(m), kind=kCustom, calls=one", NULL},
    {"f32[2,3] fusion(n), kind=kLoop, calls=one", "found the shape f32[3,4], expected f32[2,3]"},
    {"f32[2,3] map(m), dimensions={0,1}, to_apply=sq", NULL},
    {"f32[2,3] map(m, n), dimensions={0,1}, to_apply=add", "found the shape f32[3,4], expected f32[2,3]"},
    {"f32[2,3] map(m, i), dimensions={0,1}, to_apply=add",
     "parameter 1 of computation add: found the shape f32[], expected s32[]"},
    {"f32[2,3] map(m, m), dimensions={0,1}, to_apply=ge",
     "the result of computation ge: found the shape pred[], expected f32[]"},
    {"(f32[2,3], s32[2,3]) sort(m, i), dimensions={0}, to_apply=less2", NULL},
    {"f32[3,4] sort(n), dimensions={0,1}, to_apply=ge", "it names 2 dimensions, expected 1"},
    {"f32[3,4] sort(n), dimensions={0}, to_apply=add",
     "the result of computation add: found the shape f32[], expected pred[]"},
    {"s32[2,3] sort(i), dimensions={0}, to_apply=ge",
     "parameter 0 of computation ge: found the shape f32[], expected s32[]"},
    {"(f32[2], f32[]) scan(f2, z), num_carries=1, dimensions={0}, to_apply=scanner", NULL},
    {"(f32[], f32[2]) scan(f2, z), num_carries=1, dimensions={0}, to_apply=scanner",
     "it scans dimension 0 of a value without dimensions"},
    {"(f32[2], f32[]) scan(f2, z), num_carries=2, dimensions={0}, to_apply=scanner",
     "it carries 2 of 2 operands and 2 results"},
    {"(f32[2], f32[]) scan(f2, z), num_carries=-1, dimensions={0}, to_apply=scanner",
     "it carries -1 of 2 operands and 2 results"},
    {"(f32[3], f32[]) scan(f2, z), num_carries=1, dimensions={0}, to_apply=scanner",
     "it scans 3 elements, and elsewhere 2"},
    {"(f32[2], f32[2]) scan(f2, z), num_carries=1, dimensions={0}, to_apply=scanner",
     "found the shape f32[2], expected f32[]"},
    /* Linear algebra, normalisation, random numbers. */
    {"(f32[2,2], s32[2,2]) topk(m), k=2, largest=true", NULL},
    {"(f32[2,4], s32[2,4]) topk(m), k=4, largest=true",
     "it takes 4 of a last dimension that has not as many"},
    {"(f32[2,2], s32[2,2]) topk(m), k=-1, largest=true",
     "it takes -1 of a last dimension that has not as many"},
    {"(f32[2,3], s32[2,3]) topk(m), k=2, largest=true",
     "found the shape (f32[2,3], s32[2,3]), expected (f32[2,2], s32[2,2])"},
    {"f32[5,5] cholesky(s5), lower=true", NULL},
    {"f32[2,3] cholesky(m), lower=true", "its first operand is no square matrix or batch of such"},
    {"s32[2,3] cholesky(i), lower=true", "operand 0 has the type s32, expected floating or complex"},
    {"f32[5,2] triangular-solve(s5, b5), left_side=true, lower=true, transpose_a=NO_TRANSPOSE", NULL},
    {"f32[2,5] triangular-solve(s5, b25), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
     "its operands have sizes 5 and 2 in dimension 0"},
    {"f32[5,2] triangular-solve(s5, b5), left_side=true, lower=true, transpose_a=TRANSPOSE_INVALID",
     "it does not say NO_TRANSPOSE, TRANSPOSE or ADJOINT of its matrix"},
    {"f32[2,3] triangular-solve(m, m), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
     "its first operand is no square matrix or batch of such"},
    {"f32[5,2] triangular-solve(s, b5), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
     "its operands differ in rank"},
    {"s32[2,2] triangular-solve(i22, i22), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
     "operand 0 has the type s32, expected floating or complex"},
    {"c64[2,3] fft(c), fft_type=FFT, fft_length={3}", NULL},
    {"c64[2,3] fft(c), fft_type=FFT, fft_length={2,3}", NULL},
    {"c64[2,3] fft(c), fft_type=FFT, fft_length={4}", NULL},
    {"c64[2,3] fft(c), fft_type=IFFT, fft_length={3}", NULL},
    {"c64[2,3] fft(c), fft_type=IFFT, fft_length={2}", NULL},
    {"c64[2,2] fft(m), fft_type=RFFT, fft_length={3}", NULL},
    {"c64[2,3] fft(c), fft_type=FFT, fft_length={}", "it has 0 lengths, expected 1 to 3 of the 2 dimensions"},
    {"c64[2,3] fft(m), fft_type=FFT, fft_length={3}", "found the type f32, expected c64"},
    {"c64[2,2] fft(m), fft_type=RFFT, fft_length={4}", "dimension 1 has size 3, expected 4 for the length 4"},
    {"c64[2,3] fft(m), fft_type=RFFT, fft_length={3}", "found the shape c64[2,3], expected c64[2,2]"},
    {"(f32[2,3], f32[3], f32[3]) batch-norm-training(m, f3, f3), epsilon=0.001, feature_index=1", NULL},
    {"(f32[2,3], f32[3], f32[3]) batch-norm-training(m, f3, f3), epsilon=0.001, feature_index=2",
     "its feature_index 2 is not below rank 2"},
    {"(f32[2,3], f32[3], f32[3]) batch-norm-training(m, f3, f3), epsilon=0.001, feature_index=-1",
     "its feature_index -1 is not below rank 2"},
    {"(f32[2,3], f32[3], f32[3]) batch-norm-training(m, f3, f3), epsilon=0.001, feature_index=0",
     "found the shape f32[3], expected f32[2]"},
    {"f32[2,3] batch-norm-inference(m, f3, f3, f3, f3), epsilon=0.001, feature_index=1", NULL},
    {"f32[2,3] batch-norm-inference(m, f3, f3, f3, f2), epsilon=0.001, feature_index=1",
     "found the shape f32[2], expected f32[3]"},
    {"f32[2,3] batch-norm-inference(m, f3, f3, f3, f3), epsilon=0.001, feature_index=3",
     "its feature_index 3 is not below rank 2"},
    {"(f32[2,3], f32[3], f32[3]) batch-norm-grad(m, f3, f3, f3, m), epsilon=0.001, feature_index=1", NULL},
    {"(f32[2,3], f32[3], f32[3]) batch-norm-grad(m, f3, f3, f3, n), epsilon=0.001, feature_index=1",
     "found the shape f32[3,4], expected f32[2,3]"},
    {"(f32[2,3], f32[3], f32[2]) batch-norm-grad(m, f3, f3, f3, m), epsilon=0.001, feature_index=1",
     "found the shape (f32[2,3], f32[3], f32[2]), expected (f32[2,3], f32[3], f32[3])"},
    {"f32[2,3] rng(z, z), distribution=rng_uniform", NULL},
    {"f32[2,3] rng(z), distribution=rng_normal", "it has 1 operands, expected 2 or more"},
    {"s32[2,3] rng(k, k), distribution=rng_normal", "its distribution is normal and its type not floating"},
    {"c64[2,3] rng(cz, cz), distribution=rng_uniform",
     "operand 0 has the type c64, expected pred, signed, unsigned or floating"},
    {"f32[2,3] rng(k, k), distribution=rng_uniform", "found the shape s32[], expected f32[]"},
    {"(u64[2], u32[3]) rng-bit-generator(v), algorithm=rng_three_fry", NULL},
    {"(u64[2], u32[3]) rng-bit-generator(v), algorithm=rng_default", NULL},
    {"(u64[3], u32[3]) rng-bit-generator(v), algorithm=rng_three_fry",
     "found the shape u64[3], expected u64[2]"},
    {"(u64[2], u32[3], u32[3]) rng-bit-generator(v), algorithm=rng_three_fry",
     "its shape is no tuple of a state and bits"},
    {"u64[2] rng-get-and-update-state(), delta=1", NULL},
    {"u64[2] rng-get-and-update-state(), delta=0", NULL},
    {"u64[3] rng-get-and-update-state(), delta=1", "found the shape u64[3], expected u64[2]"},
    /* Collectives. */
    {"f32[2,3] all-reduce-done(m)", "its operand is custom-call, expected all-reduce-start"},
    {"(f32[2,3], f32[2,3]) all-reduce-start(m), replica_groups={}, to_apply=add",
     "found the shape (f32[2,3], f32[2,3]), expected f32[2,3]"},
    {"f32[2,3] all-gather(m), replica_groups={{0}}, dimensions={0}", NULL},
    {"f32[2,6] all-gather(m), replica_groups={{0,1}}, dimensions={2}",
     "dimensions names dimension 2 twice or outside of rank 2"},
    {"f32[2,6] all-gather(m), replica_groups={{0,1}}, dimensions={0}",
     "dimension 0 has size 2 in the whole and 2 in one of 2 shards"},
    {"f32[2,6] all-gather(m), replica_groups={{0,1}}, dimensions={0,1}", "it names 2 dimensions, expected 1"},
    {"f32[4,3] all-gather(m), replica_groups={{0,1},{2}}, dimensions={0}",
     "its replica groups have 2 and 1 members"},
    {"f32[2,6] all-gather(m), replica_groups={{0,1}}, dimensions={1}, use_global_device_ids=true",
     "it uses global device ids, which takes groups of them and a channel"},
    {"f32[4,3] all-gather-start(m), replica_groups={{0,1}}, dimensions={0}",
     "its shape is no tuple of operands and results"},
    {"f32[1,3] reduce-scatter(m), replica_groups={{0,1}}, dimensions={0}, to_apply=add", NULL},
    {"f32[2,3] reduce-scatter(m), replica_groups={{0,1}}, dimensions={0}, to_apply=add",
     "dimension 0 has size 2 in the whole and 2 in one of 2 shards"},
    {"f32[1,3] reduce-scatter(m), replica_groups={{0,1}}, dimensions={2}, to_apply=add",
     "dimensions names dimension 2 twice or outside of rank 2"},
    {"f32[1,3] reduce-scatter(m), replica_groups={{0,1},{2}}, dimensions={0}, to_apply=add",
     "its replica groups have 2 and 1 members"},
    {"(f32[2,3], f32[2,3]) all-to-all(m, m), replica_groups={{0,1}}", NULL},
    {"(f32[2,3], f32[3,4]) all-to-all(m, n), replica_groups={{0,1}}",
     "found the shape f32[3,4], expected f32[2,3]"},
    {"(f32[2,3], f32[2,3]) all-to-all(m, m), replica_groups={{0,1,2}}",
     "its 2 operands are not one per member of a group"},
    {"f32[2,3] all-to-all(m), replica_groups={{0,1}}, dimensions={1}", "it splits size 3 into 2"},
    {"f32[2,3] all-to-all(m), replica_groups={{0,1}}, dimensions={2}",
     "dimensions names dimension 2 twice or outside of rank 2"},
    {"(f32[2,3], f32[2,3]) all-to-all(m, m), replica_groups={{0,1},{2}}",
     "its replica groups have 2 and 1 members"},
    {"f32[2,3] collective-permute(m), source_target_pairs={{0,1},{1,0}}", NULL},
    {"f32[2,3] collective-permute(m), source_target_pairs={{0,1},{0,2}}",
     "its pair of source 0 and target 2 has one of them more than 1 times or below 0"},
    {"f32[2,3] collective-permute(m), source_target_pairs={{-1,1}}",
     "its pair of source -1 and target 1 has one of them more than 1 times or below 0"},
    {"f32[3,2] collective-permute(m), source_target_pairs={{0,1},{1,0}}",
     "found the shape f32[3,2], expected f32[2,3]"},
    {"(f32[2,3], f32[3,2]) collective-permute-start(m), source_target_pairs={{0,1}}",
     "found the shape f32[3,2], expected f32[2,3]"},
    {"f32[2,3] collective-permute-done(cp)", "its operand is custom-call, expected collective-permute-start"},
    {"f32[2,3] collective-broadcast(m), replica_groups={{0,1}}", NULL},
    {"f32[3,2] collective-broadcast(m), replica_groups={{0,1}}",
     "found the shape f32[3,2], expected f32[2,3]"},
    {"u32[] partition-id()", NULL},
    {"s32[] partition-id()", "found the shape s32[], expected u32[]"},
    {"u32[] replica-id()", NULL},
    {"u32[2] replica-id()", "found the shape u32[2], expected u32[]"},
    {"f32[8] ragged-all-to-all(f8, f8, r4, r4, r4, r4), replica_groups={{0,1}}", NULL},
    {"f32[8] ragged-all-to-all(f8, f8, r4, r4, r4, f64v), replica_groups={{0,1}}",
     "found the shape s64[4], expected s32[4]"},
    {"f32[8] ragged-all-to-all(f8, f8, r4, r4, r4, r4), replica_groups={{0,0}}",
     "its replica groups name 0 twice or outside of the 2 they have"},
    {"(f32[8], f32[8]) ragged-all-to-all(f8, f8, r4, r4, r4, r4), replica_groups={{0,1}}",
     "its shape is not an array"},
    /* In two halves, tokens, calls to the outside. */
    {"f32[2,3] add-dependency(m, o)", NULL},
    {"token[] add-dependency(o, o)", NULL},
    {"f32[2,3] add-dependency(m, m)", "operand 1 is not a token"},
    {"(f32[2,3], f32[3,2], u32[]) copy-start(m)",
     "found the shape (f32[2,3], f32[3,2], u32[]), expected (f32[2,3], f32[2,3], u32[])"},
    {"f32[2,3] copy-start(m)", "found the shape f32[2,3], expected (f32[2,3], f32[2,3], u32[])"},
    {"f32[2,3] copy-done(bu)", "its operand is custom-call, expected copy-start"},
    {"((f32[2,3]), f32[3,2], u32[]) async-start(m), calls=async_one",
     "the result of computation async_one: found the shape f32[2,3], expected f32[3,2]"},
    {"((f32[2,3]), f32[2,3], u32[]) async-start(m, k), calls=async_two",
     "its shape does not begin with a tuple of its 2 operands and its result"},
    {"((f32[3,4]), f32[2,3], u32[]) async-start(n), calls=async_one",
     "parameter 0 of computation async_one: found the shape f32[2,3], expected f32[3,4]"},
    {"f32[2,3] async-done(as1)", "its operand is custom-call, expected async-start"},
    {"((f32[2,3]), f32[2,3], u32[]) async-update(as1)", "its operand is custom-call, expected async-start"},
    {"(f32[2,3], token[]) infeed(o)", NULL},
    {"f32[2,3] infeed(o)", "its shape is no tuple of data and a token"},
    {"(f32[2,3], token[]) infeed(m)", "operand 0 is not a token"},
    {"token[] outfeed(m, o), outfeed_shape=f32[2,3]", NULL},
    {"token[] outfeed(m, o), outfeed_shape=f32[3,2]", "its outfeed_shape is not that of its operand"},
    {"token[] outfeed(m, m), outfeed_shape=f32[2,3]", "operand 1 is not a token"},
    {"token[] after-all()", NULL},
    {"(f32[9], token[]) custom-call(t, o), custom_call_target=\"f\"", NULL},
    {"f32[9] custom-call(m), custom_call_target=\"\"", NULL},
    {"f32[9] custom-call(m), custom_call_target=\"f\", operand_layout_constraints={f32[3,2]{1,0}}",
     "its layout of operand 0 is for another shape"},
    {"f32[9] custom-call(m), custom_call_target=\"f\", operand_layout_constraints={}",
     "it constrains the layouts of 0 operands, expected 1"},
    {"f32[9] custom-call(m), custom_call_target=\"f\", output_to_operand_aliasing={{}: (0, {})}",
     "it lets a result share the memory of operand 0, which has not its shape"},
    /* Accepted. */
    {"f32[2,3] all-reduce(m), replica_groups={}, to_apply=add", NULL},
    {"f32[9] not-known(m)", NULL},
    {"f32[2,3] negate(m), origin={(({}, {\"v2\"}), {\"v3\"})}", "leaf 0 of its origin is none of its shape"},
    {"f32[2,3] negate(m), origin={{\"v2\"}}", NULL},
    {"(f32[2,3], f32[2,3]) tuple(m, m), origin={{\"v2\"}}", "leaf 0 of its origin is none of its shape"},
    {"(f32[2,3], f32[2,3]) tuple(m, m), origin={({\"v2\"}, {})}", NULL},
    {"(f32[2,3], u32[], token[]) send(m, o), channel_id=1", ALONE},
    {"(f32[2,3], u32[], token[]) recv(o), channel_id=1", ALONE},
};

/* Second halves, each after its first. */
typedef struct Half {
    const char *start;
    Case done;
} Half;

static const Half halves[] = {
    {"start = f32[2,3] all-reduce-start(m), replica_groups={}, to_apply=add",
     {"f32[2,3] all-reduce-done(start)", NULL}},
    {"start = f32[2,3] all-reduce-start(m), replica_groups={}, to_apply=add",
     {"f32[3,2] all-reduce-done(start)", "found the shape f32[3,2], expected f32[2,3]"}},
    {"start = (f32[2,3], f32[4,3]) all-gather-start(m), replica_groups={{0,1}}, dimensions={0}",
     {"f32[4,3] all-gather-done(start)", NULL}},
    {"start = (f32[2,3], f32[4,3]) all-gather-start(m), replica_groups={{0,1}}, dimensions={0}",
     {"f32[2,3] all-gather-done(start)", "found the shape f32[2,3], expected f32[4,3]"}},
    {"start = f32[2,3] all-reduce-start(m), replica_groups={}, to_apply=add",
     {"f32[2,3] all-gather-done(start)", "its operand is all-reduce-start, expected all-gather-start"}},
    {"start = (f32[2,3], f32[2,3]) collective-permute-start(m), source_target_pairs={{0,1}}",
     {"f32[2,3] collective-permute-done(start)", NULL}},
    {"start = (f32[2,3], f32[2,3]) collective-permute-start(m), source_target_pairs={{0,1}}",
     {"f32[3,2] collective-permute-done(start)", "found the shape f32[3,2], expected f32[2,3]"}},
    {"start = (f32[2,3], f32[2,3], u32[]) copy-start(m)", {"f32[2,3] copy-done(start)", NULL}},
    {"start = (f32[2,3], f32[2,3], u32[]) copy-start(m)",
     {"f32[3,2] copy-done(start)", "found the shape f32[3,2], expected f32[2,3]"}},
    {"start = ((f32[2,3]), f32[2,3], u32[]) async-start(m), calls=async_one",
     {"f32[2,3] async-done(start)", NULL}},
    {"start = ((f32[2,3]), f32[2,3], u32[]) async-start(m), calls=async_one",
     {"f32[2,3] async-done(start), calls=async_one", NULL}},
    {"start = ((f32[2,3]), f32[2,3], u32[]) async-start(m), calls=async_one",
     {"f32[3,2] async-done(start)", "found the shape f32[3,2], expected f32[2,3]"}},
    {"start = (f32[2,3], u32[], token[]) send(m, o), channel_id=1",
     {"token[] send-done(start), channel_id=1", NULL}},
    {"start = (f32[2,3], u32[], token[]) send(m, o), channel_id=1",
     {"f32[2,3] send-done(start), channel_id=1", NULL}},
    {"start = (f32[2,3], u32[], token[]) recv(o), channel_id=1",
     {"(f32[2,3], token[]) recv-done(start), channel_id=1", NULL}},
    {"start = (f32[2,3], u32[], token[]) recv(o), channel_id=1",
     {"(f32[3,2], token[]) recv-done(start), channel_id=1", NULL}},
};

/* Computations and operands that the cases may use: the file without its first line. */
static void append_before(Text *text) {
    FILE *file = fopen(SOURCE_DIR "/tests/data/verify/module.hlo.txt", "r");
    assert_non_null(file);
    char line[512];
    assert_non_null(fgets(line, sizeof line, file));
    while (fgets(line, sizeof line, file)) text_append_string(text, line);
    fclose(file);
}

static int32_t count_lines(const Text *text) {
    int32_t lines = 0;
    for (size_t i = 0; i < text->length; i++) lines += text->data[i] == '\n';
    return lines;
}

/* The error that a command gets which needs a plan. */
static AmStatus read_to_plan(const Text *text, bool *is_read, AmError *error) {
    IrModule *module, *canonical = NULL;
    AmStatus status = ir_read_bytes(&module, "m.txt", text->data, (int64_t)text->length, error);
    *is_read = status == AM_OK;
    if (*is_read) {
        if (module->unplanned) status = ir_canonicalize(&canonical, module, error);
        ir_module_free(module);
    }
    return status;
}

/* `start`: an instruction before it, or NULL. */
static void check_case(const Text *before, const char *start, const Case *row) {
    Text text = {0};
    text_append_string(&text, before->data);
    if (start != NULL) text_append(&text, "  %s\n", start);
    int32_t line = count_lines(&text) + 1;
    text_append(&text, "  ROOT r = %s\n}\n", row->instruction);
    AmError error = {0};
    bool is_read;
    AmStatus status = read_to_plan(&text, &is_read, &error);
    text_free(&text);
    if (row->message == NULL) {
        if (status != AM_OK) fail_msg("%s: %s", row->instruction, error.text);
        return;
    }
    if (status == AM_OK) fail_msg("%s: passed, expected: %s", row->instruction, row->message);
    assert_int_equal(status, AM_ERROR_INPUT);
    bool is_unplanned = strncmp(row->message, UNPLANNED, strlen(UNPLANNED)) == 0;
    if (is_read != is_unplanned)
        fail_msg("%s is %s: %s", row->instruction, is_read ? "read" : "refused", error.text);
    if (strstr(error.text, row->message + (is_unplanned ? strlen(UNPLANNED) : 0)) == NULL)
        fail_msg("%s: found: %s, expected: %s", row->instruction, error.text, row->message);
    assert_int_equal(error.line, line); /* of the case's own line, after the indent */
    assert_int_equal(error.column, 3);
    assert_non_null(strstr(error.excerpt, "ROOT r = "));
}

static void every_case(void **state) {
    (void)state;
    Text before = {0};
    append_before(&before);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&before, NULL, &cases[i]);
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        check_case(&before, halves[i].start, &halves[i].done);
    text_free(&before);
}

static void every_opcode_has_a_row(void **state) {
    (void)state;
    for (int32_t opcode = 0; opcode <= IR_UNKNOWN; opcode++) {
        const VerifyRow *row = &verify_rows[opcode];
        if (row->function == NULL || row->operands == 0 || row->result == 0)
            fail_msg("%s has no row", ir_opcode_name((IrOpcode)opcode));
    }
}

/* `count` operands of shape `operand`, the result `result`. */
static AmStatus read_one(IrOpcode opcode, int32_t count, const char *operand, const char *result) {
    Text text = {0};
    IrModule *module = NULL;
    text_append(&text, "HloModule m\nENTRY main {\n  x = %s parameter(0)\n  ROOT r = %s %s(", operand, result,
                ir_opcode_name(opcode));
    for (int32_t k = 0; k < count; k++) text_append(&text, k > 0 ? ", x" : "x");
    text_append(&text, ")\n}\n");
    AmStatus status = ir_read_bytes(&module, "m.txt", text.data, (int64_t)text.length, NULL);
    text_free(&text);
    if (status == AM_OK) ir_module_free(module);
    return status;
}

/* All that have the result's shape for every operand. */
static void element_wise(void **state) {
    (void)state;
    static const char *const types[] = {"pred[2,3]", "s32[2,3]", "u32[2,3]", "f32[2,3]", "c64[2,3]"};
    static const char *const others[] = {"pred[3,2]", "s32[6]", "u32[2]", "f32[2,4]", "c64[]"};
    int32_t tried = 0;
    for (IrOpcode opcode = 0; opcode < IR_UNKNOWN; opcode++) {
        const VerifyRow *row = &verify_rows[opcode];
        int32_t arity = ir_opcode_arity(opcode);
        if (row->function != verify_alike || arity < 1) continue;
        for (int32_t i = 0; i < 5; i++) {
            AmStatus expected = row->operands >> i & 1 ? AM_OK : AM_ERROR_INPUT;
            if (read_one(opcode, arity, types[i], types[i]) != expected)
                fail_msg("%s of %s: expected %s", ir_opcode_name(opcode), types[i],
                         expected == AM_OK ? "to pass" : "to be refused");
            assert_int_equal(read_one(opcode, arity, types[i], others[i]), AM_ERROR_INPUT);
            assert_int_equal(read_one(opcode, arity, types[i], types[(i + 1) % 5]), AM_ERROR_INPUT);
            assert_int_equal(read_one(opcode, arity + 1, types[i], types[i]), AM_ERROR_INPUT);
        }
        tried++;
    }
    assert_true(tried >= 50);
}

/* A wrong module in the other encodings: the path of the instruction. */
static void other_encodings(void **state) {
    (void)state;
    static const char right[] = "HloModule m\none {\n  ROOT a = f32[] parameter(0)\n}\n"
                                "ENTRY main {\n  a = f32[2] parameter(0)\n  ROOT r = f32[2] negate(a)\n}\n";
    IrModule *module, *read;
    Hlo__ShapeProto *shape;
    assert_int_equal(ir_read_bytes(&module, "m.txt", right, sizeof right - 1, NULL), AM_OK);
    shape = hlo__shape_proto__unpack(NULL, 4, (const uint8_t *)"\x10\x0b\x18\x03"); /* f32[3] */
    assert_non_null(shape);
    module->message->computations[1]->instructions[1]->shape = shape;
    for (int32_t binary = 0; binary < 2; binary++) {
        Text text = {0};
        AmError error = {0};
        assert_int_equal(binary ? ir_print_pb(&text, module->message, NULL)
                                : ir_print_json(&text, module->message, NULL),
                         AM_OK);
        assert_int_equal(ir_read_bytes(&read, "m", text.data, (int64_t)text.length, &error), AM_ERROR_INPUT);
        assert_string_equal(error.text, "computations[1].instructions[1]: instruction r (negate): found the "
                                        "shape f32[2], expected f32[3]");
        assert_int_equal(error.line, 0);
        text_free(&text);
    }
    hlo__shape_proto__free_unpacked(shape, NULL);
    ir_module_free(module);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case), cmocka_unit_test(every_opcode_has_a_row),
                                       cmocka_unit_test(element_wise), cmocka_unit_test(other_encodings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
