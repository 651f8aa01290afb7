/* Partial values and the operators through which they pass: one producer of each kind, named p, and
 * operators on p, named r, as HLO text with open sizes (rule_cases.h). */
#ifndef TESTS_SUPPORT_CARRIER_CASES_H
#define TESTS_SUPPORT_CARRIER_CASES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct CarrierCase {
    const char *name;
    const char *types; /* of p: f32, half (bf16), s32, predicate; a letter each */
    const char *text;
} CarrierCase;

static const CarrierCase producer_cases[] = {
    {"sum", "f",
     "x = f32[<a>,<c>] parameter(0) y = f32[<c>,<b>] parameter(1) p = f32[<a>,<b>] dot(x, y),\n"
     "  lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  "},
    {"sum of halves", "h",
     "x = bf16[<a>,<c>] parameter(0) y = bf16[<c>,<b>] parameter(1) p = bf16[<a>,<b>] dot(x, y),\n"
     "  lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  "},
    {"largest", "f",
     "x = f32[<a>,<b>,<c>] parameter(0) y = f32[] constant(-inf)\n"
     "  p = f32[<a>,<b>] reduce(x, y), dimensions={2}, to_apply=max\n  "},
    {"least", "f",
     "x = f32[<c>,<a>,<b>] parameter(0) y = f32[] constant(inf)\n"
     "  p = f32[<a>,<b>] reduce(x, y), dimensions={0}, to_apply=min\n  "},
    {"rows scattered", "f",
     "index = s32[<c>,1] parameter(0) y = f32[<c>,<b>] parameter(1) none = f32[] constant(0)\n"
     "  x = f32[<a>,<b>] broadcast(none), dimensions={} p = f32[<a>,<b>] scatter(x, index, y),\n"
     "  update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},\n"
     "  index_vector_dim=1, to_apply=add\n  "},
    {"rows gathered", "f",
     "x = f32[<c>,<b>] parameter(0) index = s32[<a>] parameter(1) p = f32[<a>,<b>] gather(x, index),\n"
     "  offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,\n"
     "  slice_sizes={1,<b>}\n  "},
    {"product", "s",
     "x = s32[<a>,<b>,<c>] parameter(0) y = s32[] constant(1)\n"
     "  p = s32[<a>,<b>] reduce(x, y), dimensions={2}, to_apply=multiply_int\n  "},
    {"sum of whole numbers", "s",
     "x = s32[<a>,<b>,<c>] parameter(0) y = s32[] constant(0)\n"
     "  p = s32[<a>,<b>] reduce(x, y), dimensions={2}, to_apply=add_int\n  "},
    {"all", "p",
     "x = pred[<a>,<b>,<c>] parameter(0) y = pred[] constant(true)\n"
     "  p = pred[<a>,<b>] reduce(x, y), dimensions={2}, to_apply=both\n  "},
    {"any", "p",
     "x = pred[<a>,<c>,<b>] parameter(0) y = pred[] constant(false)\n"
     "  p = pred[<a>,<b>] reduce(x, y), dimensions={1}, to_apply=either\n  "},
};
enum { PRODUCER_CASE_COUNT = sizeof producer_cases / sizeof *producer_cases };

#define WITH_V "v = T[<a>,<b>] parameter(2) "
#define ZEROS  "zero = T[] constant(0) "
/* T stands for the type of p; parameters are numbered from 2, as if the producer had two. */
static const CarrierCase carrier_cases[] = {
    {"copy", "fhsp", "ROOT r = T[<a>,<b>] copy(p)"},
    {"reshape", "fhsp", "ROOT r = T[<a*b>] reshape(p)"},
    {"transpose", "fhsp", "ROOT r = T[<b>,<a>] transpose(p), dimensions={1,0}"},
    {"broadcast", "fhsp",
     "w = T[<a>,<d>,<b>] broadcast(p), dimensions={0,2} ROOT r = T[<a>,<d>,<b>] copy(w)"},
    {"slice", "fhsp", "ROOT r = T[<a>,<b-1>] slice(p), slice={[0:<a>], [1:<b>]}"},
    {"reverse", "fhsp", "ROOT r = T[<a>,<b>] reverse(p), dimensions={0}"},
    {"dynamic-slice", "fhsp",
     "index_i = s32[] parameter(2) n = s32[] constant(0)\n"
     "  ROOT r = T[2,<b>] dynamic-slice(p, index_i, n), dynamic_slice_sizes={2,<b>}"},
    {"gather", "fhsp",
     "index_i = s32[<d>] parameter(2) ROOT r = T[<d>,<b>] gather(p, index_i), offset_dims={1},\n"
     "  collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,<b>}"},
    {"concatenate with itself", "fhsp",
     "n = T[<a>,<b>] copy(p) ROOT r = T[<2*a>,<b>] concatenate(p, n), dimensions={0}"},
    {"concatenate", "fhsp", WITH_V "ROOT r = T[<2*a>,<b>] concatenate(p, v), dimensions={0}"},
    {"dynamic-update-slice into zeros", "fhs",
     ZEROS "z = T[<a+2>,<b>] broadcast(zero), dimensions={} n = s32[] constant(1)\n"
           "  ROOT r = T[<a+2>,<b>] dynamic-update-slice(z, p, n, n)"},
    {"dynamic-update-slice", "fhs",
     "v = T[2,<b>] parameter(2) n = s32[] constant(0)\n"
     "  ROOT r = T[<a>,<b>] dynamic-update-slice(p, v, n, n)"},
    {"pad with zeros", "fhs", ZEROS "ROOT r = T[<a+3>,<b>] pad(p, zero), padding=1_2x0_0"},
    {"pad", "fhsp", "v = T[] parameter(2) ROOT r = T[<a+3>,<b>] pad(p, v), padding=1_2x0_0"},
    {"select", "fhs", WITH_V "c = pred[<a>,<b>] parameter(3) ROOT r = T[<a>,<b>] select(c, p, v)"},
    {"select from zeros", "fhs",
     ZEROS "z = T[<a>,<b>] broadcast(zero), dimensions={} c = pred[<a>,<b>] parameter(2)\n"
           "  ROOT r = T[<a>,<b>] select(c, z, p)"},
    {"select by it", "p",
     "v = f32[<a>,<b>] parameter(2) w = f32[<a>,<b>] parameter(3) ROOT r = f32[<a>,<b>] select(p, v, w)"},
    {"add", "fhs", WITH_V "ROOT r = T[<a>,<b>] add(p, v)"},
    {"add to itself", "fhs",
     "n = T[<a>,<b>] negate(p) m = T[<a>,<b>] add(n, p) ROOT r = T[<a>,<b>] add(m, p)"},
    {"subtract", "fhs", WITH_V "ROOT r = T[<a>,<b>] subtract(p, v)"},
    {"maximum", "fhs", WITH_V "ROOT r = T[<a>,<b>] maximum(v, p)"},
    {"minimum", "fs", WITH_V "ROOT r = T[<a>,<b>] minimum(p, v)"},
    {"and", "sp", WITH_V "ROOT r = T[<a>,<b>] and(p, v)"},
    {"or", "sp", WITH_V "ROOT r = T[<a>,<b>] or(v, p)"},
    {"reduce by adding", "f", ZEROS "ROOT r = f32[<b>] reduce(p, zero), dimensions={0}, to_apply=add"},
    {"reduce to the largest", "f",
     "o = f32[] constant(-inf) ROOT r = f32[<a>] reduce(p, o), dimensions={1}, to_apply=max"},
    {"reduce by multiplying", "s",
     "o = s32[] constant(1) ROOT r = s32[<a>] reduce(p, o), dimensions={1}, to_apply=multiply_int"},
    {"reduce to any", "p",
     "o = pred[] constant(false) ROOT r = pred[<a>] reduce(p, o), dimensions={1}, to_apply=either"},
    {"reduce-window", "f",
     ZEROS "ROOT r = f32[<a>,<b>] reduce-window(p, zero), window={size=3x1 pad=1_1x0_0}, to_apply=add"},
    {"divide", "f",
     "n = f32[] constant(4) w = f32[<a>,<b>] broadcast(n), dimensions={} ROOT r = f32[<a>,<b>] divide(p, w)"},
    {"divide by it", "f", WITH_V "ROOT r = f32[<a>,<b>] divide(v, p)"},
    {"multiply", "fhs", WITH_V "ROOT r = T[<a>,<b>] multiply(p, v)"},
    {"multiply by itself", "fs", "ROOT r = T[<a>,<b>] multiply(p, p)"},
    {"dot", "f",
     "v = f32[<b>,<d>] parameter(2) ROOT r = f32[<a>,<d>] dot(p, v), lhs_contracting_dims={1},\n"
     "  rhs_contracting_dims={0}"},
    {"dot with itself", "f",
     "ROOT r = f32[<a>,<a>] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={1}"},
    {"convolution", "f",
     "q = f32[<a>,<b>,1] reshape(p) v = f32[3,1,2] parameter(2) ROOT r = f32[<a>,<b>,2] convolution(q, v),\n"
     "  window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f"},
    {"complex", "f", "w = c64[<a>,<b>] complex(p, p) i = f32[<a>,<b>] imag(w) ROOT r = f32[<a>,<b>] copy(i)"},
    {"complex with another", "f",
     WITH_V "w = c64[<a>,<b>] complex(p, v) i = f32[<a>,<b>] real(w) ROOT r = f32[<a>,<b>] copy(i)"},
    {"convert to whole numbers", "f", "ROOT r = s32[<a>,<b>] convert(p)"},
    {"convert from halves", "h", "ROOT r = f32[<a>,<b>] convert(p)"},
    {"convert from halves and add", "h",
     "w = f32[<a>,<b>] parameter(2) n = bf16[<a>,<b>] negate(p) c = f32[<a>,<b>] convert(n)\n"
     "  s = f32[<a>,<b>] add(c, w) ROOT r = f32[<b>,<a>] transpose(s), dimensions={1,0}"},
    {"convert to halves", "fs", "ROOT r = bf16[<a>,<b>] convert(p)"},
    {"convert to bytes", "s", "ROOT r = s8[<a>,<b>] convert(p)"},
    {"convert to wide", "s", "ROOT r = s64[<a>,<b>] convert(p)"},
    {"convert to numbers", "p", "ROOT r = f32[<a>,<b>] convert(p)"},
    {"floor", "f", "ROOT r = f32[<a>,<b>] floor(p)"},
    {"sign", "fs", "ROOT r = T[<a>,<b>] sign(p)"},
    {"negate", "fhs", "ROOT r = T[<a>,<b>] negate(p)"},
    {"not", "sp", "ROOT r = T[<a>,<b>] not(p)"},
    {"tanh", "f", "ROOT r = f32[<a>,<b>] tanh(p)"},
    {"used twice", "fhs",
     WITH_V "n = T[<a>,<b>] negate(p) m = T[<a>,<b>] multiply(p, v)\n"
            "  ROOT r = (T[<a>,<b>], T[<a>,<b>]) tuple(n, m)"},
};
enum { CARRIER_CASE_COUNT = sizeof carrier_cases / sizeof *carrier_cases };

/* The entry of a producer with an operator on its result; false if the types do not match. */
static inline bool carrier_case_entry(char *out, const CarrierCase *producer, const CarrierCase *carrier) {
    const char *type = producer->types[0] == 'f'   ? "f32"
                       : producer->types[0] == 'h' ? "bf16"
                       : producer->types[0] == 's' ? "s32"
                                                   : "pred";
    static const char parameter[] = "parameter(";
    if (!strchr(carrier->types, producer->types[0])) return false;
    int32_t parameters = 0;
    for (const char *at = producer->text; (at = strstr(at, parameter)); at++) parameters++;
    out += sprintf(out, "%s", producer->text);
    for (const char *at = carrier->text; *at; at++) {
        if (at[0] == 'T' && at[1] == '[') {
            out += sprintf(out, "%s", type);
        } else if (strncmp(at, parameter, strlen(parameter)) == 0) {
            at += strlen(parameter);
            out += sprintf(out, "%s%d", parameter, *at - '2' + parameters);
        } else {
            *out++ = *at;
        }
    }
    *out = '\0';
    return true;
}

#endif
