/* Small modules, one or more for every opcode with a factor rule, as HLO text with open sizes: <a>,
 * <b+1>, <2*a*b> are evaluated for the sizes of a test (a, b, c and d). "index..." parameters
 * contain valid indices, "positive..." 1 to 4, "sign..." -1 and 1, others -3 to 3. */
#ifndef TESTS_SUPPORT_RULE_CASES_H
#define TESTS_SUPPORT_RULE_CASES_H

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/alike_opcodes.h"

typedef struct RuleCase {
    const char *name;
    const char *text; /* the entry's instructions */
} RuleCase;

/* What entries call. */
static const char rule_case_computations[] =
    "add { p = f32[] parameter(0) q = f32[] parameter(1) ROOT r = f32[] add(p, q) }\n"
    "add_int { p = s32[] parameter(0) q = s32[] parameter(1) ROOT r = s32[] add(p, q) }\n"
    "multiply_int { p = s32[] parameter(0) q = s32[] parameter(1) ROOT r = s32[] multiply(p, q) }\n"
    "max { p = f32[] parameter(0) q = f32[] parameter(1) ROOT r = f32[] maximum(p, q) }\n"
    "min { p = f32[] parameter(0) q = f32[] parameter(1) ROOT r = f32[] minimum(p, q) }\n"
    "both { p = pred[] parameter(0) q = pred[] parameter(1) ROOT r = pred[] and(p, q) }\n"
    "either { p = pred[] parameter(0) q = pred[] parameter(1) ROOT r = pred[] or(p, q) }\n"
    "second { p = f32[] parameter(0) ROOT q = f32[] parameter(1) }\n"
    "greater { p = f32[] parameter(0) q = f32[] parameter(1) ROOT r = pred[] compare(p, q), direction=GE }\n"
    "order { p = f32[] parameter(0) q = f32[] parameter(1) u = s32[] parameter(2) v = s32[] parameter(3)\n"
    "  ROOT r = pred[] compare(p, q), direction=LT }\n"
    "arg_max { p = f32[] parameter(0) u = s32[] parameter(1) q = f32[] parameter(2) v = s32[] parameter(3)\n"
    "  gt = pred[] compare(p, q), direction=GT eq = pred[] compare(p, q), direction=EQ\n"
    "  lt = pred[] compare(u, v), direction=LT tie = pred[] and(eq, lt) first = pred[] or(gt, tie)\n"
    "  w = f32[] select(first, p, q) n = s32[] select(first, u, v) ROOT t = (f32[], s32[]) tuple(w, n) }\n"
    "mapped { p = f32[] parameter(0) q = f32[] parameter(1) s = f32[] multiply(p, q)\n"
    "  ROOT r = f32[] subtract(s, q) }\n"
    "negative { p = f32[<a>,<b>] parameter(0) ROOT r = f32[<a>,<b>] negate(p) }\n"
    "same { ROOT p = f32[<a>,<b>] parameter(0) }\n"
    "below { s = (s32[], f32[<a>,<b>], f32[<b>,<b>]) parameter(0)\n"
    "  i = s32[] get-tuple-element(s), index=0 n = s32[] constant(2)\n"
    "  ROOT r = pred[] compare(i, n), direction=LT }\n"
    "layer { s = (s32[], f32[<a>,<b>], f32[<b>,<b>]) parameter(0)\n"
    "  i = s32[] get-tuple-element(s), index=0 x = f32[<a>,<b>] get-tuple-element(s), index=1\n"
    "  w = f32[<b>,<b>] get-tuple-element(s), index=2 one = s32[] constant(1) j = s32[] add(i, one)\n"
    "  y = f32[<a>,<b>] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  ROOT r = (s32[], f32[<a>,<b>], f32[<b>,<b>]) tuple(j, y, w) }\n"
    "below_sum { s = (s32[], f32[<b>,<c>], f32[<a>,<b>], f32[<a>,<c>]) parameter(0)\n"
    "  i = s32[] get-tuple-element(s), index=0 n = s32[] constant(3)\n"
    "  ROOT r = pred[] compare(i, n), direction=LT }\n"
    "sum { s = (s32[], f32[<b>,<c>], f32[<a>,<b>], f32[<a>,<c>]) parameter(0)\n"
    "  i = s32[] get-tuple-element(s), index=0 g = f32[<b>,<c>] get-tuple-element(s), index=1\n"
    "  x = f32[<a>,<b>] get-tuple-element(s), index=2 y = f32[<a>,<c>] get-tuple-element(s), index=3\n"
    "  one = s32[] constant(1) j = s32[] add(i, one)\n"
    "  d = f32[<b>,<c>] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
    "  h = f32[<b>,<c>] add(g, d)\n"
    "  ROOT r = (s32[], f32[<b>,<c>], f32[<a>,<b>], f32[<a>,<c>]) tuple(j, h, x, y) }\n"

    /* the same of halves, added up in f32 and in halves */
    "below_halves { s = (s32[], f32[<b>,<c>], bf16[<b>,<c>], bf16[<a>,<b>], bf16[<a>,<c>]) parameter(0)\n"
    "  i = s32[] get-tuple-element(s), index=0 n = s32[] constant(2)\n"
    "  ROOT r = pred[] compare(i, n), direction=LT }\n"
    "halves { s = (s32[], f32[<b>,<c>], bf16[<b>,<c>], bf16[<a>,<b>], bf16[<a>,<c>]) parameter(0)\n"
    "  i = s32[] get-tuple-element(s), index=0 g = f32[<b>,<c>] get-tuple-element(s), index=1\n"
    "  l = bf16[<b>,<c>] get-tuple-element(s), index=2 x = bf16[<a>,<b>] get-tuple-element(s), index=3\n"
    "  y = bf16[<a>,<c>] get-tuple-element(s), index=4 one = s32[] constant(1) j = s32[] add(i, one)\n"
    "  d = bf16[<b>,<c>] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
    "  e = bf16[<b>,<c>] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
    "  n = bf16[<b>,<c>] negate(e) w = f32[<b>,<c>] convert(d) h = f32[<b>,<c>] add(g, w)\n"
    "  m = bf16[<b>,<c>] add(l, n)\n"
    "  ROOT r = (s32[], f32[<b>,<c>], bf16[<b>,<c>], bf16[<a>,<b>], bf16[<a>,<c>]) tuple(j, h, m, x, y) }\n";

/* What fusions call. */
static const char rule_case_fusions[] =
    "fused { q = f32[<a>,<d>] parameter(0) k = f32[<b>,<d>] parameter(1)\n"
    "  s = f32[<a>,<b>] dot(q, k), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
    "  z = f32[] constant(0) t = f32[<a>] reduce(s, z), dimensions={1}, to_apply=add\n"
    "  p = f32[<a>,<b>] broadcast(t), dimensions={0}\n"
    "  o = f32[<a>,<d>] dot(p, k), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  w = f32[<b>,<d>] dot(p, q), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
    "  ROOT r = (f32[<a>,<d>], f32[<b>,<d>]) tuple(o, w) }\n";

#define X_AB  "x = f32[<a>,<b>] parameter(0) "
#define X_ABC "x = f32[<a>,<b>,<c>] parameter(0) "
#define ZERO  "z = f32[] constant(0) "

static const RuleCase rule_cases[] = {
    /* moves */
    {"broadcast",
     X_AB "y = f32[<a>,<c>,<b>] parameter(1) w = f32[<a>,<c>,<b>] broadcast(x), dimensions={0,2}\n"
          "  ROOT r = f32[<a>,<c>,<b>] multiply(w, y)"},
    {"broadcast output", "x = f32[<b>] parameter(0) ROOT r = f32[<a>,<b>] broadcast(x), dimensions={1}"},
    {"broadcast of one",
     "x = f32[<a>,1] parameter(0) y = f32[<a>,1,<b>] parameter(1)\n"
     "  w = f32[<a>,1,<b>] broadcast(x), dimensions={0,1} ROOT r = f32[<a>,1,<b>] add(w, y)"},
    {"iota", X_AB "w = f32[<a>,<b>] iota(), iota_dimension=1 v = f32[<a>,<b>] iota(), iota_dimension=0\n"
                  "  s = f32[<a>,<b>] multiply(v, w) ROOT r = f32[<a>,<b>] add(s, x)"},
    {"constant",
     "x = f32[4,6] parameter(0) w = f32[4,6] constant({{1,2,3,4,5,6},{7,8,9,1,2,3},{4,5,6,7,8,9},\n"
     "  {2,3,5,7,1,3}}) ROOT r = f32[4,6] add(x, w)"},
    {"reshape split", "x = f32[<a>,<b*c>] parameter(0) ROOT r = f32[<a>,<b>,<c>] reshape(x)"},
    {"reshape merge", X_ABC "ROOT r = f32[<a*b>,<c>] reshape(x)"},
    {"reshape all", X_ABC "ROOT r = f32[<a*b*c>] reshape(x)"},
    {"reshape ones", "x = f32[<a>,1,<b>] parameter(0) ROOT r = f32[1,<a>,<b>,1] reshape(x)"},
    {"reshape across", "x = f32[<2*a>,<b>] parameter(0) ROOT r = f32[<a>,<2*b>] reshape(x)"},
    {"reshape of a product",
     "x = f32[<a>,<d>] parameter(0) w = f32[<d>,<b*c>] parameter(1)\n"
     "  y = f32[<a>,<b*c>] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
     "  ROOT r = f32[<a>,<b>,<c>] reshape(y)"},
    {"bitcast", X_AB "ROOT r = f32[<a>,1,<b>] bitcast(x)"},
    {"transpose", X_ABC "ROOT r = f32[<c>,<a>,<b>] transpose(x), dimensions={2,0,1}"},
    {"copy", X_AB "ROOT r = f32[<a>,<b>] copy(x)"},
    {"slice", X_ABC "ROOT r = f32[<a>,<b-1>,<c>] slice(x), slice={[0:<a>], [1:<b>], [0:<c>]}"},
    {"slice strided",
     "x = f32[<2*a>,<b>] parameter(0) ROOT r = f32[<a>,<b>] slice(x), slice={[1:<2*a>:2], [0:<b>]}"},
    {"slice halves",
     "x = f32[<2*a>,<b>] parameter(0) y = f32[<a>,<b>] slice(x), slice={[0:<a>], [0:<b>]}\n"
     "  w = f32[<a>,<b>] slice(x), slice={[<a>:<2*a>], [0:<b>]} ROOT r = f32[<a>,<b>] multiply(y, w)"},
    {"dynamic-slice",
     X_AB "index = s32[] parameter(1) zero = s32[] constant(0)\n"
          "  ROOT r = f32[2,<b>] dynamic-slice(x, index, zero), dynamic_slice_sizes={2,<b>}"},
    {"dynamic-update-slice",
     X_AB "y = f32[2,<b>] parameter(1) index = s32[] parameter(2) zero = s32[] constant(0)\n"
          "  ROOT r = f32[<a>,<b>] dynamic-update-slice(x, y, index, zero)"},
    {"pad", X_AB ZERO "ROOT r = f32[<a+3>,<b>] pad(x, z), padding=1_2x0_0"},
    {"pad inside", X_AB ZERO "ROOT r = f32[<2*a+1>,<b>] pad(x, z), padding=2_0_1x0_0"},
    {"pad cuts", X_AB "v = f32[] parameter(1) ROOT r = f32[<a>,<b>] pad(x, v), padding=-1_1x0_0"},
    {"concatenate", X_AB "y = f32[<c>,<b>] parameter(1) w = f32[<a>,<b>] parameter(2)\n"
                         "  ROOT r = f32[<2*a+c>,<b>] concatenate(x, y, w), dimensions={0}"},
    {"reverse", X_ABC "ROOT r = f32[<a>,<b>,<c>] reverse(x), dimensions={0,2}"},
    {"tuple",
     X_AB "y = f32[<a>,<b>] parameter(1) s = f32[<a>,<b>] add(x, y)\n"
          "  t = (f32[<a>,<b>], f32[<a>,<b>]) tuple(s, x) o = (f32[<a>,<b>], f32[<a>,<b>]) opt-barrier(t)\n"
          "  u = f32[<a>,<b>] get-tuple-element(o), index=0 v = f32[<a>,<b>] get-tuple-element(o), index=1\n"
          "  w = f32[<a>,<b>] multiply(u, v) ROOT r = (f32[<a>,<b>], f32[<a>,<b>]) tuple(w, u)"},
    /* products */
    {"dot", X_AB "y = f32[<b>,<c>] parameter(1)\n"
                 "  ROOT r = f32[<a>,<c>] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"},
    {"dot batched",
     X_ABC "y = f32[<a>,<d>,<c>] parameter(1) ROOT r = f32[<a>,<b>,<d>] dot(x, y),\n"
           "  lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}"},
    {"dot contracting two", X_ABC "y = f32[<d>,<c>,<b>] parameter(1) ROOT r = f32[<a>,<d>] dot(x, y),\n"
                                  "  lhs_contracting_dims={1,2}, rhs_contracting_dims={2,1}"},
    {"dot of whole numbers",
     "x = s32[<a>,<b>] parameter(0) y = s32[<b>] parameter(1)\n"
     "  ROOT r = s32[<a>] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"},
    {"dot of halves",
     "x = bf16[<a>,<b>] parameter(0) y = bf16[<b>,<c>] parameter(1)\n"
     "  ROOT r = bf16[<a>,<c>] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"},
    {"convolution", "x = f32[<a>,5,4,<b>] parameter(0) y = f32[3,3,<b>,<c>] parameter(1)\n"
                    "  ROOT r = f32[<a>,5,4,<c>] convolution(x, y), window={size=3x3 pad=1_1x1_1}, "
                    "dim_labels=b01f_01io->b01f"},
    {"convolution in space",
     "x = f32[2,<2*a>,<b>,1] parameter(0) y = f32[3,2,1,2] parameter(1)\n"
     "  ROOT r = f32[2,<a>,<b-1>,2] convolution(x, y), window={size=3x2 stride=2x1 pad=1_0x0_0},\n"
     "  dim_labels=b01f_01io->b01f"},
    {"convolution dilated",
     "x = f32[2,<a>,2] parameter(0) y = f32[2,2,3] parameter(1)\n"
     "  ROOT r = f32[2,<2*a-1>,3] convolution(x, y), window={size=2 pad=1_1 lhs_dilate=2 rhs_dilate=2},\n"
     "  dim_labels=b0f_0io->b0f"},
    {"convolution in groups",
     "x = f32[<a>,4,<2*b>] parameter(0) y = f32[2,2,<b*2>] parameter(1)\n"
     "  ROOT r = f32[<a>,3,<2*b>] convolution(x, y), window={size=2}, dim_labels=b0f_0io->b0f,\n"
     "  feature_group_count=<b>"},
    {"convolution of a gradient",
     "x = f32[<a>,6,<b>] parameter(0) y = f32[<a>,4,<c>] parameter(1)\n"
     "  ROOT r = f32[3,<b>,<c>] convolution(x, y), window={size=4}, dim_labels=f0b_i0o->0bf"},
    {"convolution in batch groups",
     "x = f32[<2*a>,4,<b>] parameter(0) y = f32[2,<b>,<2*c>] parameter(1)\n"
     "  ROOT r = f32[<a>,3,<2*c>] convolution(x, y), window={size=2}, dim_labels=b0f_0io->b0f,\n"
     "  batch_group_count=2"},
    /* reductions */
    {"reduce", X_ABC ZERO "ROOT r = f32[<a>] reduce(x, z), dimensions={1,2}, to_apply=add"},
    {"reduce max",
     X_ABC "z = f32[] constant(-inf) ROOT r = f32[<b>,<c>] reduce(x, z), dimensions={0}, to_apply=max"},
    {"reduce min",
     X_AB "z = f32[] constant(inf) ROOT r = f32[<a>] reduce(x, z), dimensions={1}, to_apply=min"},
    {"reduce multiply", "x = s32[<a>,<b>] parameter(0) z = s32[] constant(1)\n"
                        "  ROOT r = s32[<b>] reduce(x, z), dimensions={0}, to_apply=multiply_int"},
    {"reduce and", "positive_x = s32[<a>,<b>] parameter(0) n = s32[] constant(4) m = s32[<a>,<b>] "
                   "broadcast(n), dimensions={}\n"
                   "  p = pred[<a>,<b>] compare(positive_x, m), direction=LT z = pred[] constant(true)\n"
                   "  ROOT r = pred[<b>] reduce(p, z), dimensions={0}, to_apply=both"},
    {"reduce or", "x = pred[<a>,<b>] parameter(0) z = pred[] constant(false)\n"
                  "  ROOT r = pred[<a>] reduce(x, z), dimensions={1}, to_apply=either"},
    {"reduce to a scalar", X_AB ZERO "ROOT r = f32[] reduce(x, z), dimensions={0,1}, to_apply=add"},
    {"reduce from a value",
     X_AB "z = f32[] parameter(1) ROOT r = f32[<b>] reduce(x, z), dimensions={0}, to_apply=add"},
    {"reduce of two",
     X_AB "y = s32[<a>,<b>] iota(), iota_dimension=0 z = f32[] constant(-inf) n = s32[] constant(0)\n"
          "  o = (f32[<b>], s32[<b>]) reduce(x, y, z, n), dimensions={0}, to_apply=arg_max\n"
          "  o0 = f32[<b>] get-tuple-element(o), index=0 o1 = s32[<b>] get-tuple-element(o), index=1 ROOT r "
          "= (f32[<b>], s32[<b>]) tuple(o0, o1)"},
    {"reduce-window",
     "x = f32[<a>,<2*b>,<c>] parameter(0) z = f32[] constant(-inf)\n"
     "  ROOT r = f32[<a>,<b>,<c>] reduce-window(x, z), window={size=1x2x1 stride=1x2x1}, to_apply=max"},
    {"reduce-window overlapping",
     X_AB ZERO "ROOT r = f32[<a>,<b>] reduce-window(x, z), window={size=3x1 pad=1_1x0_0}, to_apply=add"},
    {"reduce-window cumulative", X_AB ZERO "ROOT r = f32[<a>,<b>] reduce-window(x, z),\n"
                                           "  window={size=1x<b> pad=0_0x<b-1>_0}, to_apply=add"},
    {"select-and-scatter",
     "x = f32[<a>,<2*b>,<c>] parameter(0) y = f32[<a>,<b>,<c>] parameter(1)\n" ZERO
     "  ROOT r = f32[<a>,<2*b>,<c>] select-and-scatter(x, y, z), window={size=1x2x1 stride=1x2x1},\n"
     "  select=greater, scatter=add"},
    /* indices */
    {"gather of rows",
     X_AB "index = s32[<c>] parameter(1) ROOT r = f32[<c>,<b>] gather(x, index), offset_dims={1},\n"
          "  collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,<b>}"},
    {"gather of positions",
     X_AB "index = s32[<c>,<d>,2] parameter(1) ROOT r = f32[<c>,<d>] gather(x, index), offset_dims={},\n"
          "  collapsed_slice_dims={0,1}, start_index_map={0,1}, index_vector_dim=2, slice_sizes={1,1}"},
    {"gather along an axis",
     X_AB "index = s32[<a>,<c>,1] parameter(1) ROOT r = f32[<a>,<c>] gather(x, index), offset_dims={},\n"
          "  collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0},\n"
          "  start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1}"},
    {"gather of windows",
     X_AB "index = s32[<c>,1] parameter(1) ROOT r = f32[<c>,2,<b>] gather(x, index), offset_dims={1,2},\n"
          "  collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={2,<b>}"},
    {"gather of truths",
     "x = pred[<a>,<b>] parameter(0) index = s32[<c>] parameter(1)\n"
     "  ROOT r = pred[<c>,<b>] gather(x, index), offset_dims={1},\n"
     "  collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,<b>}"},
    {"scatter into zeros",
     "index = s32[<c>,1] parameter(0) y = f32[<c>,<b>] parameter(1)\n" ZERO
     "  x = f32[<a>,<b>] broadcast(z), dimensions={} ROOT r = f32[<a>,<b>] scatter(x, index, y),\n"
     "  update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
     "index_vector_dim=1,\n"
     "  to_apply=add"},
    {"scatter into values",
     X_AB "index = s32[<c>,1] parameter(1) y = f32[<c>,<b>] parameter(2)\n"
          "  ROOT r = f32[<a>,<b>] scatter(x, index, y), update_window_dims={1}, inserted_window_dims={0},\n"
          "  scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=max"},
    {"scatter along an axis",
     X_AB "index = s32[<a>,<c>,1] parameter(1) y = f32[<a>,<c>] parameter(2)\n"
          "  ROOT r = f32[<a>,<b>] scatter(x, index, y), update_window_dims={}, inserted_window_dims={1},\n"
          "  scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0},\n"
          "  index_vector_dim=2, to_apply=add"},
    {"scatter of windows",
     X_AB "index = s32[<c>,1] parameter(1) y = f32[<c>,2,<b>] parameter(2)\n"
          "  ROOT r = f32[<a>,<b>] scatter(x, index, y), update_window_dims={1,2}, inserted_window_dims={},\n"
          "  scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add"},
    /* whole dimensions */
    {"sort", "x = f32[<a>,<b>] parameter(0) y = s32[<a>,<b>] parameter(1)\n"
             "  o = (f32[<a>,<b>], s32[<a>,<b>]) sort(x, y), dimensions={1}, is_stable=true, to_apply=order\n"
             "  o0 = f32[<a>,<b>] get-tuple-element(o), index=0 o1 = s32[<a>,<b>] get-tuple-element(o), "
             "index=1 ROOT r = (f32[<a>,<b>], s32[<a>,<b>]) tuple(o0, o1)"},
    {"topk", X_AB "o = (f32[<a>,2], s32[<a>,2]) topk(x), k=2, largest=true\n"
                  "  o0 = f32[<a>,2] get-tuple-element(o), index=0 o1 = s32[<a>,2] get-tuple-element(o), "
                  "index=1 ROOT r = (f32[<a>,2], s32[<a>,2]) tuple(o0, o1)"},
    {"fft", X_AB "y = f32[<a>,<b>] parameter(1) w = c64[<a>,<b>] complex(x, y)\n"
                 "  f = c64[<a>,<b>] fft(w), fft_type=FFT, fft_length={<b>} ROOT r = f32[<a>,<b>] real(f)"},
    {"cholesky",
     "x = f32[<a>,3,3] parameter(0) t = f32[<a>,3,3] transpose(x), dimensions={0,2,1}\n"
     "  s = f32[<a>,3,3] dot(x, t), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2},\n"
     "  rhs_contracting_dims={1} n = f32[] constant(8) m = f32[<a>,3,3] broadcast(n), dimensions={}\n"
     "  v = s32[3,3] iota(), iota_dimension=0 w = s32[3,3] iota(), iota_dimension=1\n"
     "  on = pred[3,3] compare(v, w), direction=EQ o = pred[<a>,3,3] broadcast(on), dimensions={1,2}\n" ZERO
     "  zs = f32[<a>,3,3] broadcast(z), dimensions={} e = f32[<a>,3,3] select(o, m, zs)\n"
     "  g = f32[<a>,3,3] add(s, e) ROOT r = f32[<a>,3,3] cholesky(g), lower=true"},
    {"triangular-solve",
     "positive_x = f32[<a>,3,3] parameter(0) y = f32[<a>,3,<b>] parameter(1)\n"
     "  ROOT r = f32[<a>,3,<b>] triangular-solve(positive_x, y), left_side=true, lower=true,\n"
     "  transpose_a=NO_TRANSPOSE"},
    {"batch-norm-training", X_AB
     "s = f32[<b>] parameter(1) t = f32[<b>] parameter(2)\n"
     "  o = (f32[<a>,<b>], f32[<b>], f32[<b>]) batch-norm-training(x, s, t), epsilon=1,\n"
     "  feature_index=1\n"
     "  o0 = f32[<a>,<b>] get-tuple-element(o), index=0 o1 = f32[<b>] get-tuple-element(o), index=1 o2 = "
     "f32[<b>] get-tuple-element(o), index=2 ROOT r = (f32[<a>,<b>], f32[<b>], f32[<b>]) tuple(o0, o1, o2)"},
    {"batch-norm-inference",
     X_AB "s = f32[<b>] parameter(1) t = f32[<b>] parameter(2) m = f32[<b>] parameter(3)\n"
          "  positive_v = f32[<b>] parameter(4) ROOT r = f32[<a>,<b>] batch-norm-inference(x, s, t, m, "
          "positive_v),\n"
          "  epsilon=1, feature_index=1"},
    {"batch-norm-grad", X_AB
     "s = f32[<b>] parameter(1) m = f32[<b>] parameter(2) positive_v = f32[<b>] parameter(3)\n"
     "  y = f32[<a>,<b>] parameter(4)\n"
     "  o = (f32[<a>,<b>], f32[<b>], f32[<b>]) batch-norm-grad(x, s, m, positive_v, y), epsilon=1,\n"
     "  feature_index=1\n"
     "  o0 = f32[<a>,<b>] get-tuple-element(o), index=0 o1 = f32[<b>] get-tuple-element(o), index=1 o2 = "
     "f32[<b>] get-tuple-element(o), index=2 ROOT r = (f32[<a>,<b>], f32[<b>], f32[<b>]) tuple(o0, o1, o2)"},
    {"map",
     X_AB "y = f32[<a>,<b>] parameter(1) ROOT r = f32[<a>,<b>] map(x, y), dimensions={0,1}, to_apply=mapped"},
    {"rng-bit-generator",
     "x = u64[2] parameter(0) y = u32[<a>,<b>] parameter(1)\n"
     "  g = (u64[2], u32[<a>,<b>]) rng-bit-generator(x), algorithm=rng_three_fry\n"
     "  s = u64[2] get-tuple-element(g), index=0 v = u32[<a>,<b>] get-tuple-element(g), index=1\n"
     "  w = u32[<a>,<b>] add(v, y) ROOT r = (u64[2], u32[<a>,<b>]) tuple(s, w)"},
    {"rng-bit-generator philox",
     "x = u64[3] parameter(0) g = (u64[3], u32[<a>,<b>]) rng-bit-generator(x), algorithm=rng_philox\n"
     "  ROOT v = u32[<a>,<b>] get-tuple-element(g), index=1"},
    {"fusion of products", "q = f32[<a>,<d>] parameter(0) k = f32[<b>,<d>] parameter(1)\n"
                           "  f = (f32[<a>,<d>], f32[<b>,<d>]) fusion(q, k), kind=kCustom, calls=fused\n"
                           "  o = f32[<a>,<d>] get-tuple-element(f), index=0\n"
                           "  w = f32[<b>,<d>] get-tuple-element(f), index=1\n"
                           "  ROOT r = (f32[<a>,<d>], f32[<b>,<d>]) tuple(o, w)"},
    {"ragged-dot",
     "x = f32[<a>,<b>] parameter(0) y = f32[2,<b>,<c>] parameter(1) positive_g = s32[2] parameter(2)\n"
     "  ROOT r = f32[<a>,<c>] ragged-dot(x, y, positive_g), lhs_contracting_dims={1}, "
     "rhs_contracting_dims={1},\n"
     "  lhs_ragged_dims={0}, rhs_group_dims={0}"},
    {"get-dimension-size",
     X_AB "n = s32[] get-dimension-size(x), dimensions={1} v = s32[<a>] parameter(1)\n"
          "  w = s32[<a>] broadcast(n), dimensions={} ROOT r = s32[<a>] multiply(w, v)"},
    {"set-dimension-size",
     X_AB "n = s32[] constant(<a>) ROOT r = f32[<a>,<b>] set-dimension-size(x, n), dimensions={0}"},
    {"add-dependency", X_AB "t = token[] after-all() ROOT r = f32[<a>,<b>] add-dependency(x, t)"},
    {"domain", X_AB
     "ROOT r = f32[<a>,<b>] domain(x), domain={kind=\"sharding\", entry={replicated}, exit={replicated}}"},
    {"custom-call of the largest",
     X_AB "o = (f32[<a>,2], s32[<a>,2]) custom-call(x), custom_call_target=\"TopK\"\n"
          "  o0 = f32[<a>,2] get-tuple-element(o), index=0 o1 = s32[<a>,2] get-tuple-element(o), index=1\n"
          "  ROOT r = (f32[<a>,2], s32[<a>,2]) tuple(o0, o1)"},
    /* computations */
    {"conditional",
     "b = pred[] parameter(0) x = f32[<a>,<b>] parameter(1) y = f32[<a>,<b>] parameter(2)\n"
     "  ROOT r = f32[<a>,<b>] conditional(b, x, y), true_computation=negative, false_computation=same"},
    {"while", X_AB "w = f32[<b>,<b>] parameter(1) n = s32[] constant(0)\n"
                   "  t = (s32[], f32[<a>,<b>], f32[<b>,<b>]) tuple(n, x, w)\n"
                   "  l = (s32[], f32[<a>,<b>], f32[<b>,<b>]) while(t), condition=below, body=layer\n"
                   "  ROOT r = f32[<a>,<b>] get-tuple-element(l), index=1"},
    {"while that adds",
     X_AB "y = f32[<a>,<c>] parameter(1) n = s32[] constant(0)\n" ZERO
          "  g = f32[<b>,<c>] broadcast(z), dimensions={}\n"
          "  t = (s32[], f32[<b>,<c>], f32[<a>,<b>], f32[<a>,<c>]) tuple(n, g, x, y)\n"
          "  l = (s32[], f32[<b>,<c>], f32[<a>,<b>], f32[<a>,<c>]) while(t), condition=below_sum, body=sum\n"
          "  ROOT r = f32[<b>,<c>] get-tuple-element(l), index=1"},
    {"sum of halves in a loop",
     "x = bf16[<a>,<b>] parameter(0) y = bf16[<a>,<c>] parameter(1) n = s32[] constant(0)\n" ZERO
     "  g = f32[<b>,<c>] broadcast(z), dimensions={} o = bf16[] constant(0)\n"
     "  m = bf16[<b>,<c>] broadcast(o), dimensions={}\n"
     "  t = (s32[], f32[<b>,<c>], bf16[<b>,<c>], bf16[<a>,<b>], bf16[<a>,<c>]) tuple(n, g, m, x, y)\n"
     "  l = (s32[], f32[<b>,<c>], bf16[<b>,<c>], bf16[<a>,<b>], bf16[<a>,<c>]) while(t),\n"
     "  condition=below_halves, body=halves u = f32[<b>,<c>] get-tuple-element(l), index=1\n"
     "  v = bf16[<b>,<c>] get-tuple-element(l), index=2\n"
     "  ROOT r = (f32[<b>,<c>], bf16[<b>,<c>]) tuple(u, v)"},
    {"sums of halves",
     "x = bf16[<a>,<c>] parameter(0) y = bf16[<c>,<b>] parameter(1) u = bf16[<a>,<d>] parameter(2)\n"
     "  v = bf16[<d>,<b>] parameter(3) w = bf16[<b>,<a>] parameter(4)\n"
     "  p = bf16[<a>,<b>] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
     "  q = bf16[<a>,<b>] dot(u, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
     "  s = bf16[<a>,<b>] subtract(p, q) t = bf16[<b>,<a>] transpose(s), dimensions={1,0}\n"
     "  n = bf16[<b>,<a>] add(w, t) m = bf16[<b*a>] reshape(n) ROOT r = f32[<b*a>] convert(m)"},
    {"call", X_AB "c = f32[<a>,<b>] call(x), to_apply=negative ROOT r = f32[<a>,<b>] multiply(c, x)"},
    /* partial sums that go on */
    {"sum of products",
     X_AB "y = f32[<b>,<c>] parameter(1) u = f32[<a>,<d>] parameter(2) v = f32[<d>,<c>] parameter(3)\n"
          "  p = f32[<a>,<c>] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
          "  q = f32[<a>,<c>] dot(u, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
          "  ROOT r = f32[<a>,<c>] subtract(p, q)"},
    {"product with a bias",
     X_AB "y = f32[<b>,<c>] parameter(1) v = f32[<c>] parameter(2)\n"
          "  p = f32[<a>,<c>] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
          "  w = f32[<a>,<c>] broadcast(v), dimensions={1} ROOT r = f32[<a>,<c>] add(p, w)"},
    {"product moved",
     X_AB "y = f32[<b>,<c*d>] parameter(1) v = f32[<d>,<c>,<a>] parameter(2)\n"
          "  p = f32[<a>,<c*d>] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
          "  n = f32[<a>,<c*d>] negate(p) q = f32[<a>,<c>,<d>] reshape(n)\n"
          "  t = f32[<d>,<c>,<a>] transpose(q), dimensions={2,1,0} m = f32[<d>,<c>,<a>] multiply(t, v)\n" ZERO
          "  ROOT r = f32[<d>] reduce(m, z), dimensions={1,2}, to_apply=add"},
    {"product divided",
     X_AB "y = f32[<b>,<c>] parameter(1) four = f32[] constant(4)\n"
          "  p = f32[<a>,<c>] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
          "  w = f32[<a>,<c>] broadcast(four), dimensions={} ROOT r = f32[<a>,<c>] divide(p, w)"},
    {"product of products",
     X_AB "y = f32[<b>,<c>] parameter(1) v = f32[<c>,<d>] parameter(2)\n"
          "  p = f32[<a>,<c>] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n" ZERO
          "  zs = f32[<a>,<c>] broadcast(z), dimensions={} m = f32[<a>,<c>] maximum(p, zs)\n"
          "  ROOT r = f32[<a>,<d>] dot(m, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}"},
    {"sum of largest",
     X_ABC "z = f32[] constant(-inf) m = f32[<a>,<b>] reduce(x, z), dimensions={2}, to_apply=max\n"
           "  w = f32[<a>,<b>,<c>] broadcast(m), dimensions={0,1} s = f32[<a>,<b>,<c>] subtract(x, w)\n"
           "  o = f32[] constant(0) ROOT r = f32[<a>] reduce(s, o), dimensions={1,2}, to_apply=add"},
    {"gather and product",
     "index = s32[<a>] parameter(0) x = f32[<d>,<b>] parameter(1) y = f32[<b>,<c>] parameter(2)\n"
     "  g = f32[<a>,<b>] gather(x, index), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},\n"
     "  index_vector_dim=1, slice_sizes={1,<b>}\n"
     "  ROOT r = f32[<a>,<c>] dot(g, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"},
};
enum { RULE_CASE_COUNT = sizeof rule_cases / sizeof *rule_cases };

/* Element-wise operators: opcode with its attributes, and the types of result and operands (a letter
 * each: f32, half bf16, s32, unsigned u32, predicate, complex c64; capital: a scalar operand). */
typedef struct ElementwiseCase {
    const char *opcode, *attributes, *types;
} ElementwiseCase;

/* The cases beside elementwise_case_alike(). */
static const ElementwiseCase elementwise_cases[] = {
    {"abs", "", "ff"},
    {"is-finite", "", "pf"},
    {"convert", "", "sf"},
    {"convert", "", "hf"},
    {"bitcast-convert", "", "sf"},
    {"reduce-precision", ", exponent_bits=5, mantissa_bits=10", "ff"},
    {"real", "", "fc"},
    {"imag", "", "fc"},
    {"stochastic-convert", "", "sfu"},
    {"complex", "", "cff"},
    {"multiply", "", "sss"},
    {"remainder", "", "sss"},
    {"or", "", "ppp"},
    {"shift-right-logical", "", "uuu"},
    {"compare", ", direction=LT", "pff"},
    {"select", "", "fpff"},
    {"select", "", "fPff"},
    {"clamp", "", "ffff"},
    {"clamp", "", "fFfF"},
};
enum { ELEMENTWISE_CASE_COUNT = sizeof elementwise_cases / sizeof *elementwise_cases };

/* Writes the case of an opcode whose operands and result have one shape and type: f32 if its kernels take it,
 * else s32. Returns false for other opcodes. */
static inline bool elementwise_case_alike(ElementwiseCase *self, const AlikeOpcode *opcode) {
    static const char *const on_bits[] = {"mulhi", "shift-left", "shift-right-arithmetic",
                                          "shift-right-logical"};
    bool has_floats = alike_takes_floats(opcode);
    if (!alike_is(opcode)) return false;
    for (size_t k = 0; k < sizeof on_bits / sizeof *on_bits; k++)
        has_floats &= strcmp(opcode->name, on_bits[k]) != 0; /* XLA's verifier takes floating numbers, too */
    const char *types = has_floats ? "fff" : "sss";
    *self = (ElementwiseCase){opcode->name, "", opcode->operands == 1 ? types + 1 : types};
    return true;
}

/* sum := product { ('+' | '-') product }; product := unit { '*' unit }; unit := number | letter. */
static inline int64_t rule_case_product(const char **at, const int64_t *sizes) {
    int64_t product = 1;
    for (;; ++*at) {
        int64_t unit = 0;
        if (isdigit((unsigned char)**at))
            while (isdigit((unsigned char)**at)) unit = unit * 10 + *(*at)++ - '0';
        else unit = sizes[*(*at)++ - 'a'];
        product *= unit;
        if (**at != '*') return product;
    }
}

static inline int64_t rule_case_size(const char **at, const int64_t *sizes) {
    int64_t sum = rule_case_product(at, sizes);
    while (**at == '+' || **at == '-') {
        int64_t sign = *(*at)++ == '+' ? 1 : -1;
        sum += sign * rule_case_product(at, sizes);
    }
    return sum;
}

/* Copies a text with its sizes worked out. */
static inline char *rule_case_expand(char *out, const char *text, const int64_t *sizes) {
    for (const char *at = text; *at; at++) {
        if (*at != '<') {
            *out++ = *at;
            continue;
        }
        at++;
        out += sprintf(out, "%lld", (long long)rule_case_size(&at, sizes));
    }
    *out = '\0';
    return out;
}

/* The module of a case as text; `out` has room for RULE_CASE_TEXT bytes. */
enum { RULE_CASE_TEXT = 16384 };

static inline void rule_case_text(char *out, const char *entry, const int64_t *sizes) {
    out += sprintf(out, "HloModule m\n");
    out = rule_case_expand(out, rule_case_computations, sizes);
    out = rule_case_expand(out, rule_case_fusions, sizes);
    out += sprintf(out, "ENTRY e {\n  ");
    out = rule_case_expand(out, entry, sizes);
    sprintf(out, "\n}\n");
}

/* The entry of an element-wise case. */
static inline void elementwise_case_entry(char *out, const ElementwiseCase *self) {
    static const char letters[] = "fhsupc";
    static const char *const types[] = {"f32", "bf16", "s32", "u32", "pred", "c64"};
    char operands[64] = "";
    int32_t parameter = 0;
    for (const char *type = self->types + 1; *type; type++) {
        bool is_scalar = isupper((unsigned char)*type);
        int32_t kind = (int32_t)(strchr(letters, tolower((unsigned char)*type)) - letters);
        const char *shape = is_scalar ? "[]" : "[<a>,<b>]";
        if (types[kind][0] == 'c') {
            out += sprintf(out, "g%d = f32[<a>,<b>] parameter(%d) h%d = f32[<a>,<b>] parameter(%d)\n  ",
                           parameter, parameter, parameter, parameter + 1);
            out += sprintf(out, "x%d = c64[<a>,<b>] complex(g%d, h%d)\n  ", parameter, parameter, parameter);
            sprintf(operands + strlen(operands), "x%d", parameter);
            parameter += 2;
        } else {
            out += sprintf(out, "x%d = %s%s parameter(%d)\n  ", parameter, types[kind], shape, parameter);
            sprintf(operands + strlen(operands), "%sx%d", parameter ? ", " : "", parameter);
            parameter++;
        }
    }
    const char *type = types[strchr(letters, self->types[0]) - letters];
    sprintf(out, "ROOT r = %s[<a>,<b>] %s(%s)%s", type, self->opcode, operands, self->attributes);
}

#endif
