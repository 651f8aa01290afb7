/* Factor rules: for every rule class a small module and its root's rule as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/files/file.h"
#include "ir/canonical/canonical.h"
#include "propagation/rules/rules.h"

/* Operators that to_apply may name. */
#define COMPUTATIONS                                                                                         \
    "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"                       \
    "maximum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }\n"               \
    "and { a = pred[] parameter(0) b = pred[] parameter(1) ROOT c = pred[] and(a, b) }\n"                    \
    "greater { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=GE "   \
    "}\n"                                                                                                    \
    "pair_greater { a = f32[] parameter(0) b = f32[] parameter(1) i = s32[] parameter(2) j = s32[] "         \
    "parameter(3)\n"                                                                                         \
    "  ROOT c = pred[] compare(a, b), direction=GT }\n"                                                      \
    "subtract { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] subtract(a, b) }\n"             \
    "lesser { a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] parameter(3)\n" \
    "  ROOT t = (f32[], s32[]) tuple(b, j) }\n"                                                              \
    "pair { a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] parameter(3)\n"   \
    "  ROOT t = (f32[], s32[]) tuple(a, i) }\n"

/* Scores, their sums over rows, the product with k, and a sum over rows with g. */
#define FUSED                                                                                        \
    "fused { q = f32[2,6,4] parameter(0) k = f32[2,8,4] parameter(1) g = f32[2,6,5] parameter(2)\n"  \
    "  s = f32[2,6,8] dot(q, k), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, " \
    "rhs_contracting_dims={2}\n"                                                                     \
    "  zero = f32[] constant(0) t = f32[2,6] reduce(s, zero), dimensions={2}, to_apply=add\n"        \
    "  b = f32[2,6,8] broadcast(t), dimensions={0,1} p = f32[2,6,8] divide(s, b)\n"                  \
    "  o = f32[2,6,4] dot(p, k), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, " \
    "rhs_contracting_dims={1}\n"                                                                     \
    "  w = f32[2,8,5] dot(p, g), lhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_batch_dims={0}, " \
    "rhs_contracting_dims={1}\n"                                                                     \
    "  ROOT r = (f32[2,6,4], f32[2,8,5]) tuple(o, w) }\n"

typedef struct Derived {
    IrModule *module, *canonical;
    Arena arena;
    Rules *rules;
} Derived;

static Derived derive(const char *body) {
    Derived derived = {0};
    AmError error = {0};
    char text[8192];
    int length =
        snprintf(text, sizeof text, "HloModule test\n" COMPUTATIONS FUSED "ENTRY main {\n%s\n}\n", body);
    if (ir_read_bytes(&derived.module, "test", text, length, &error) != AM_OK)
        fail_msg("%s: line %d: %s\n%s", body, (int)error.line, error.text, error.excerpt);
    assert_int_equal(ir_canonicalize(&derived.canonical, derived.module, &error), AM_OK);
    assert_int_equal(rules_build(&derived.rules, &derived.arena, derived.canonical, &error), AM_OK);
    return derived;
}

static void release(Derived *derived) {
    ir_module_free(derived->canonical);
    ir_module_free(derived->module);
    arena_free(&derived->arena);
}

static int32_t root_of(const Derived *derived) {
    return derived->canonical->computations[derived->canonical->entry].root;
}

typedef struct Case {
    const char *body, *rule;
} Case;

static void check(const Case *cases, size_t count) {
    for (size_t k = 0; k < count; k++) {
        Derived derived = derive(cases[k].body);
        Text text = {0};
        rule_print(&text, &derived.rules->rules[root_of(&derived)]);
        if (strcmp(text.data, cases[k].rule) != 0)
            fail_msg("%s\n     got %s\nexpected %s", cases[k].body, text.data, cases[k].rule);
        text_free(&text);
        release(&derived);
    }
}
#define CHECK(cases) check(cases, sizeof cases / sizeof *cases)

static void test_elementwise(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[4,6] parameter(0) b = f32[4,6] parameter(1) ROOT r = f32[4,6] add(a, b)",
         "([a,b],[a,b])->[a,b]"},
        {"p = pred[4,6] parameter(0) a = f32[4,6] parameter(1) b = f32[4,6] parameter(2)\n"
         "ROOT r = f32[4,6] select(p, a, b)",
         "([a,b],[a,b],[a,b])->[a,b]"},
        {"l = f32[] parameter(0) a = f32[8,1,3] parameter(1) ROOT r = f32[8,1,3] clamp(l, a, l)",
         "([],[a,1,b],[])->[a,1,b]"},
        {"a = f32[4] parameter(0) ROOT r = bf16[4] convert(a)", "([a])->[a]"},
        {"a = f32[] parameter(0) ROOT r = f32[] negate(a)", "([])->[]"},
        {"a = f32[0,4] parameter(0) ROOT r = f32[0,4] negate(a)", "([1,a])->[1,a]"},
    };
    CHECK(cases);
}

static void test_movement(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[6,4] parameter(0) ROOT r = f32[6,5,4] broadcast(a), dimensions={0,2}", "([a,c])->[a,b,c]"},
        {"a = f32[] parameter(0) ROOT r = f32[6,4] broadcast(a), dimensions={}", "([])->[a,b]"},
        {"a = f32[2,3,4] parameter(0) ROOT r = f32[4,2,3] transpose(a), dimensions={2,0,1}",
         "([b,c,a])->[a,b,c]"},
        {"a = f32[8,6] parameter(0) ROOT r = f32[8,2] slice(a), slice={[0:8], [1:5:2]}",
         "([a,b])->[a,b] permute b"},
        {"a = f32[8,6] parameter(0) ROOT r = f32[8,2] slice(a), slice={[0:8], [2:4]}",
         "([a,c])->[a,b] b in 3 of c permute c"},
        {"a = f32[8,2] parameter(0) b = f32[8,2] parameter(1)\n"
         "ROOT r = f32[8,4] concatenate(a, b), dimensions={1}",
         "([a,b],[a,b])->[a,c] b in 2 of c permute c"},
        {"a = f32[8,6] parameter(0) z = f32[] parameter(1) ROOT r = f32[8,9] pad(a, z), padding=0_0x1_2",
         "([a,b],[])->[a,b] permute b"},
        {"a = f32[8,6] parameter(0) z = f32[] parameter(1) ROOT r = f32[8,5] pad(a, z), padding=0_0x-1_0",
         "([a,b],[])->[a,b] permute b"},
        {"a = f32[8,2] parameter(0) b = f32[8,3] parameter(1)\n"
         "ROOT r = f32[8,5] concatenate(a, b), dimensions={1}",
         "([a,b],[a,b])->[a,b] permute b"},
        {"a = f32[8,6] parameter(0) ROOT r = f32[8,6] reverse(a), dimensions={0}",
         "([a,b])->[a,b] permute a"},
        {"a = f32[8,6] parameter(0) i = s32[] parameter(1) ROOT r = f32[8,1] dynamic-slice(a, i, i), "
         "dynamic_slice_sizes={8,1}",
         "([a,b],[],[])->[a] reduce b(add, indexed)"},
        {"a = f32[8,6] parameter(0) u = f32[8,2] parameter(1) i = s32[] parameter(2)\n"
         "ROOT r = f32[8,6] dynamic-update-slice(a, u, i, i)",
         "([a,b],[a,c],[],[])->[a,b] indexed b whole c"},
        {"ROOT r = s32[8,6] iota(), iota_dimension=1", "()->[a,b]"},
        {"ROOT r = f32[3] constant({1, 2, 3})", "()->[a]"},
        {"ROOT r = f32[8,6] parameter(0)", "()->[a,b]"},
    };
    CHECK(cases);
}

static void test_reshape(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[2,3,32] parameter(0) ROOT r = f32[2,3,8,4] reshape(a)", "([a,b,c])->[a,b,c,d] d in 8 of c"},
        {"a = f32[2,3,8,4] parameter(0) ROOT r = f32[2,3,32] reshape(a)", "([a,b,c,d])->[a,b,c] d in 8 of c"},
        {"a = f32[6,5] parameter(0) ROOT r = f32[30] reshape(a)", "([a,b])->[a] b in 6 of a"},
        {"a = f32[2,3,48] parameter(0) ROOT r = f32[2,3,3,4,4] reshape(a)",
         "([a,b,c])->[a,b,c,d,e] d in 3 of c e in 12 of c"},
        {"a = f32[5] parameter(0) ROOT r = f32[1,1,5,1] reshape(a)", "([a])->[1,1,a]"},
        {"a = f32[6,4] parameter(0) ROOT r = f32[4,6] reshape(a)", "([a,b])->[a,b] whole b"},
        {"a = f32[3,5] parameter(0) ROOT r = f32[5,3] reshape(a)", "([a,b])->[a,b] whole a whole b"},
        {"a = f32[6,5,7] parameter(0) ROOT r = f32[30,7] reshape(a)", "([a,b,c])->[a,c] b in 6 of a"},
        {"a = f32[0,4] parameter(0) ROOT r = f32[4,0] reshape(a)", "([1,b])->[a] whole a whole b"},
    };
    CHECK(cases);
}

/* In a split or merged dimension the factor is the major part. */
static void test_reshape_sizes(void **state) {
    (void)state;
    static const struct {
        const char *body;
        int64_t size;
    } cases[] = {
        {"a = f32[32] parameter(0) ROOT r = f32[8,4] reshape(a)", 8},
        {"a = f32[8,4] parameter(0) ROOT r = f32[32] reshape(a)", 8},
        {"a = f32[6,4] parameter(0) ROOT r = f32[4,6] reshape(a)", 2},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Derived derived = derive(cases[k].body);
        const FactorRule *rule = &derived.rules->rules[root_of(&derived)];
        assert_int_equal(rule->factors[0].size, cases[k].size);
        assert_int_equal(rule->factors[0].kind, FACTOR_PARALLEL);
        release(&derived);
    }
}

static void test_dot(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[4,6] parameter(0) b = f32[6,5] parameter(1)\n"
         "ROOT r = f32[4,5] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
         "([a,c],[c,b])->[a,b] reduce c(add)"},
        {"a = f32[2,8,3,4] parameter(0) b = f32[2,8,5,4] parameter(1)\n"
         "ROOT r = f32[2,8,3,5] dot(a, b), lhs_batch_dims={0,1}, lhs_contracting_dims={3}, "
         "rhs_batch_dims={0,1}, rhs_contracting_dims={3}",
         "([a,b,c,e],[a,b,d,e])->[a,b,c,d] reduce e(add)"},
        {"a = f32[2,3,4] parameter(0) b = f32[2,3,5] parameter(1)\n"
         "ROOT r = f32[4,5] dot(a, b), lhs_contracting_dims={0,1}, rhs_contracting_dims={0,1}",
         "([c,d,a],[c,d,b])->[a,b] reduce c(add) reduce d(add)"},
    };
    CHECK(cases);
}

static void test_convolution(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[8,6,6,3] parameter(0) k = f32[3,3,3,16] parameter(1)\n"
         "ROOT r = f32[8,6,6,16] convolution(a, k), window={size=3x3 pad=1_1x1_1}, "
         "dim_labels=b01f_01io->b01f",
         "([a,d,e,c],[f,g,c,b])->[a,d,e,b] reduce c(add) permute d permute e whole f whole g"},
        /* Weight gradient: its input feature dimension is the batch. */
        {"a = f32[8,6,6,3] parameter(0) h = f32[8,6,6,16] parameter(1) g = f32[8,6,6,16] add(h, h)\n"
         "ROOT r = f32[3,3,3,16] convolution(a, g), window={size=6x6 pad=1_1x1_1}, "
         "dim_labels=f01b_i01o->01bf",
         "([c,d,e,a],[c,d,e,b])->[f,g,a,b] reduce c(add) reduce d(add, halo) reduce e(add, halo) whole f "
         "whole g"},
        /* Depthwise: the batch and the groups. */
        {"a = f32[8,6,6,4] parameter(0) k = f32[3,3,1,4] parameter(1)\n"
         "ROOT r = f32[8,6,6,4] convolution(a, k), window={size=3x3 pad=1_1x1_1}, "
         "dim_labels=b01f_01io->b01f, feature_group_count=4",
         "([a,c,d,b],[e,f,1,b])->[a,c,d,b] permute c permute d whole e whole f"},
        {"a = f32[8,6,6,8] parameter(0) k = f32[3,3,2,12] parameter(1)\n"
         "ROOT r = f32[8,6,6,12] convolution(a, k), window={size=3x3 pad=1_1x1_1}, "
         "dim_labels=b01f_01io->b01f, feature_group_count=4",
         "([a,c,d,b],[e,f,g,b])->[a,c,d,b] permute c permute d whole e whole f whole g"},
        {"a = f32[8,5,6] parameter(0) k = f32[3,6,12] parameter(1)\n"
         "ROOT r = f32[2,5,12] convolution(a, k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f, "
         "batch_group_count=4",
         "([a,c,b],[d,b,a])->[d,c,a] reduce b(add) permute c whole d"},
    };
    CHECK(cases);
}

static void test_reduce(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[8,6,4] parameter(0) z = f32[] constant(0)\n"
         "ROOT r = f32[8,4] reduce(a, z), dimensions={1}, to_apply=add",
         "([a,b,c],[])->[a,c] reduce b(add)"},
        {"a = f32[8,6] parameter(0) z = f32[] constant(-inf)\n"
         "ROOT r = f32[6] reduce(a, z), dimensions={0}, to_apply=maximum",
         "([a,b],[])->[b] reduce a(max)"},
        {"a = pred[8] parameter(0) z = pred[] constant(true)\n"
         "ROOT r = pred[] reduce(a, z), dimensions={0}, to_apply=and",
         "([a],[])->[] reduce a(and)"},
        /* An init value that every part would add once more. */
        {"a = f32[8,6] parameter(0) z = f32[] constant(1)\n"
         "ROOT r = f32[6] reduce(a, z), dimensions={0}, to_apply=add",
         "([b,a],[])->[a] whole b"},
        {"a = f32[8,6] parameter(0) z = f32[] parameter(1)\n"
         "ROOT r = f32[6] reduce(a, z), dimensions={0}, to_apply=add",
         "([b,a],[])->[a] whole b"},
        /* The identity behind a conversion and a broadcast. */
        {"a = f32[8,6] parameter(0) c = bf16[] constant(0) d = f32[] convert(c) z = f32[] reshape(d)\n"
         "ROOT r = f32[6] reduce(a, z), dimensions={0}, to_apply=add",
         "([a,b],[])->[b] reduce a(add)"},
        {"a = f32[8,6] parameter(0) z = f32[] constant(0)\n"
         "ROOT r = f32[6] reduce(a, z), dimensions={0}, to_apply=subtract",
         "([b,a],[])->[a] whole b"},
        {"a = f32[8,6] parameter(0) i = s32[8,6] parameter(1) z = f32[] constant(-inf) n = s32[] "
         "constant(0)\n"
         "ROOT r = (f32[8], s32[8]) reduce(a, i, z, n), dimensions={1}, to_apply=pair",
         "([a,b],[a,b],[],[])->([a],[a]) whole b"},
    };
    CHECK(cases);
}

static void test_window(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[8,6,6,3] parameter(0) z = f32[] constant(-inf)\n"
         "ROOT r = f32[8,3,3,3] reduce-window(a, z), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=maximum",
         "([a,b,c,d],[])->[a,b,c,d] permute b permute c"},
        {"a = f32[8,6,3] parameter(0) s = f32[8,3,3] parameter(1) z = f32[] constant(0)\n"
         "ROOT r = f32[8,6,3] select-and-scatter(a, s, z), window={size=1x2x1 stride=1x2x1}, select=greater, "
         "scatter=add",
         "([a,b,c],[a,b,c],[])->[a,b,c] permute b"},
    };
    CHECK(cases);
}

static void test_gather(void **state) {
    (void)state;
    static const Case cases[] = {
        /* Rows of a table. */
        {"t = f32[100,16] parameter(0) i = s32[8,5,1] parameter(1)\n"
         "ROOT r = f32[8,5,16] gather(t, i), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, "
         "index_vector_dim=2, slice_sizes={1,16}",
         "([c,d],[a,b])->[a,b,d] reduce c(add, indexed)"},
        /* take_along_axis: batching dimensions. */
        {"t = f32[8,5,100] parameter(0) i = s32[8,5,1,1] parameter(1)\n"
         "ROOT r = f32[8,5,1] gather(t, i), offset_dims={}, collapsed_slice_dims={2}, start_index_map={2}, "
         "operand_batching_dims={0,1}, start_indices_batching_dims={0,1}, index_vector_dim=3, "
         "slice_sizes={1,1,1}",
         "([a,b,c],[a,b])->[a,b] reduce c(add, indexed)"},
        /* A shard gives what of a slice falls into it. */
        {"t = f32[100,16] parameter(0) i = s32[8,1] parameter(1)\n"
         "ROOT r = f32[8,3,16] gather(t, i), offset_dims={1,2}, collapsed_slice_dims={}, "
         "start_index_map={0}, "
         "index_vector_dim=1, slice_sizes={3,16}",
         "([b,c],[a])->[a,d,c] reduce b(add, indexed) whole d"},
    };
    CHECK(cases);
}

static void test_scatter(void **state) {
    (void)state;
    static const Case cases[] = {
        /* Gradient of a table: into zeros, so parts of the updates add up. */
        {"c = f32[] constant(0) z = f32[100,16] broadcast(c), dimensions={} i = s32[8,5,1] parameter(0)\n"
         "u = f32[8,5,16] parameter(1)\n"
         "ROOT r = f32[100,16] scatter(z, i, u), update_window_dims={2}, inserted_window_dims={0}, "
         "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=add",
         "([a,b],[c,d],[c,d,b])->[a,b] indexed a reduce c(add) reduce d(add)"},
        /* The greatest of anything may be counted more than once. */
        {"z = f32[9,4] parameter(2) i = s32[8,1] parameter(0) u = f32[8,4] parameter(1)\n"
         "ROOT r = f32[9,4] scatter(z, i, u), update_window_dims={1}, inserted_window_dims={0}, "
         "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=maximum",
         "([a,b],[c],[c,b])->[a,b] indexed a reduce c(max)"},
        /* Several operands. */
        {"z = f32[9,4] parameter(0) n = s32[9,4] parameter(1) i = s32[8,1] parameter(2)\n"
         "u = f32[8,4] parameter(3) v = s32[8,4] parameter(4)\n"
         "ROOT r = (f32[9,4], s32[9,4]) scatter(z, n, i, u, v), update_window_dims={1}, "
         "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=lesser",
         "([a,b],[a,b],[c],[c,b],[c,b])->([a,b],[a,b]) indexed a whole c"},
        /* Into something else, which parts would count more than once. */
        {"z = f32[100,16] parameter(2) i = s32[8,5,1] parameter(0) u = f32[8,5,16] parameter(1)\n"
         "ROOT r = f32[100,16] scatter(z, i, u), update_window_dims={2}, inserted_window_dims={0}, "
         "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=add",
         "([a,b],[c,d],[c,d,b])->[a,b] indexed a whole c whole d"},
        {"c = f32[] constant(0) z = f32[8,100] broadcast(c), dimensions={} i = s32[8,1] parameter(0)\n"
         "u = f32[8] parameter(1)\n"
         "ROOT r = f32[8,100] scatter(z, i, u), update_window_dims={}, inserted_window_dims={1}, "
         "scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, "
         "index_vector_dim=1, to_apply=add",
         "([a,b],[a],[a])->[a,b] indexed b"},
    };
    CHECK(cases);
}

static void test_whole_dimensions(void **state) {
    (void)state;
    static const Case cases[] = {
        {"a = f32[8,4,3] parameter(0) i = s32[8,4,3] parameter(1)\n"
         "ROOT r = (f32[8,4,3], s32[8,4,3]) sort(a, i), dimensions={1}, to_apply=pair_greater",
         "([a,c,b],[a,c,b])->([a,c,b],[a,c,b]) whole c"},
        {"a = f32[8,9] parameter(0) ROOT r = (f32[8,5], s32[8,5]) topk(a), k=5, largest=true",
         "([a,b])->([a,b],[a,b]) whole b"},
        {"a = f32[8,9] parameter(0) ROOT r = (f32[8,5], s32[8,5]) custom-call(a), "
         "custom_call_target=\"TopK\"",
         "([a,b])->([a,b],[a,b]) whole b"},
        {"a = f32[3,4,8] parameter(0) ROOT r = c64[3,4,5] fft(a), fft_type=RFFT, fft_length={4,8}",
         "([a,b,c])->[a,b,c] whole b whole c"},
        {"a = f32[4,3,3] parameter(0) ROOT r = f32[4,3,3] cholesky(a), lower=true",
         "([a,b,c])->[a,b,c] whole b whole c"},
        {"a = f32[4,3,3] parameter(0) b = f32[4,3,6] parameter(1)\n"
         "ROOT r = f32[4,3,6] triangular-solve(a, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
         "([a,c,d],[a,c,b])->[a,c,b] whole c whole d"},
        {"a = f32[5,4,6] parameter(0) ROOT r = (f32[5,4,6], s32[5,4], s32[5]) custom-call(a), "
         "custom_call_target=\"lapack_sgetrf_ffi\"",
         "([a,b,c])->([a,b,c],[a,b],[a]) whole b whole c"},
        {"a = f32[4,3,6] parameter(0) s = f32[6] parameter(1) o = f32[6] parameter(2)\n"
         "ROOT r = (f32[4,3,6], f32[6], f32[6]) batch-norm-training(a, s, o), epsilon=0.5, feature_index=2",
         "([b,c,a],[a],[a])->([b,c,a],[a],[a]) whole b whole c"},
        {"s = u64[2] parameter(0) ROOT r = (u64[2], u32[12,4]) rng-bit-generator(s), algorithm=rng_philox",
         "([c])->([c],[a,b]) whole c"},
        {"a = f32[] parameter(0) ROOT r = f32[12,4] rng(a, a), distribution=rng_uniform", "([],[])->[a,b]"},
        {"a = f32[4,6] parameter(0) ROOT r = s32[] get-dimension-size(a), dimensions={1}",
         "([a,b])->[] whole b"},
        {"a = f32[4,6] parameter(0) t = token[] after-all() ROOT r = f32[4,6] add-dependency(a, t)",
         "([a,b],[])->[a,b]"},
        {"a = f32[4,6] parameter(0) ROOT r = u16[4,6,2] bitcast-convert(a)", "([a,b])->[a,b,c] whole c"},
        {"a = f32[12,6] parameter(0) b = f32[3,6,4] parameter(1) g = s32[3] parameter(2)\n"
         "ROOT r = f32[12,4] ragged-dot(a, b, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
         "lhs_ragged_dims={0}, rhs_group_dims={0}",
         "([c,b],[c,b,a],[c])->[c,a] reduce b(add) whole c"},
    };
    CHECK(cases);
}

/* Rows are split in one result and summed over in the other; keys are summed over inside. */
static void test_fusion(void **state) {
    (void)state;
    static const Case cases[] = {
        {"q = f32[2,6,4] parameter(0) k = f32[2,8,4] parameter(1) g = f32[2,6,5] parameter(2)\n"
         "ROOT r = (f32[2,6,4], f32[2,8,5]) fusion(q, k, g), kind=kCustom, calls=fused",
         "([a,b,e],[a,d,e],[a,b,c])->([a,b,e],[a,d,c]) reduce b(add) whole d whole e"},
    };
    CHECK(cases);
}

static void test_without_rule(void **state) {
    (void)state;
    Derived derived =
        derive("a = f32[8,4] parameter(0) b = f32[8,4] custom-call(a), custom_call_target=\"mystery\"\n"
               "ROOT r = f32[8,4] custom-call(b), custom_call_target=\"mystery\"");
    Text text = {0};
    rule_print(&text, &derived.rules->rules[root_of(&derived)]);
    assert_string_equal(text.data, "([a,b])->[a,b] whole a whole b");
    assert_int_equal(derived.canonical->warnings.count, 1);
    assert_non_null(strstr(derived.canonical->warnings.texts[0], "custom-call"));
    text_free(&text);
    release(&derived);
}

/* docs/operators.md has one row for each operator, and says of those without a rule that they are whole. */
static void test_document(void **state) {
    (void)state;
    static const struct {
        const char *name, *rule;
    } operators[] = {
#define OPCODE(name, text, arity, rule) {text, #rule},
#include "ir/opcodes.def"
#undef OPCODE
    };
    FileBytes bytes;
    assert_int_equal(file_read(&bytes, SOURCE_DIR "/docs/operators.md", NULL), AM_OK);
    char *text = calloc(1, (size_t)bytes.length + 1);
    assert_non_null(text);
    memcpy(text, bytes.data, (size_t)bytes.length);
    file_release(&bytes);
    const char *table = strstr(text, "## How each operator is split");
    assert_non_null(table);
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++) {
        char row[128];
        snprintf(row, sizeof row, "\n| `%s` | ", operators[k].name);
        const char *found = strstr(table, row);
        if (!found || strstr(found + 1, row)) fail_msg("no single row for %s", operators[k].name);
        found += strlen(row);
        bool is_whole = strncmp(found, "whole |", 7) == 0, is_through = strncmp(found, "through ", 8) == 0;
        bool is_blocked = strcmp(operators[k].rule, "BLOCKED") == 0;
        if (is_blocked != (is_whole || is_through)) fail_msg("the row of %s is wrong", operators[k].name);
    }
    free(text);
}

static int32_t named(const Derived *derived, const char *name) {
    for (int32_t i = 0; i < derived->rules->count; i++) {
        if (strcmp(derived->canonical->instructions[i].name, name) == 0) return i;
    }
    fail_msg("no instruction %s", name);
    return -1;
}

/* Elements of tuples in tuples, through a barrier on the outer one. */
static void test_nested_tuples(void **state) {
    (void)state;
    Derived derived = derive("a = f32[8] parameter(0) b = f32[4] parameter(1)\n"
                             "i = (f32[8], f32[4]) tuple(a, b)\n"
                             "t = (f32[4], (f32[8], f32[4])) tuple(b, i)\n"
                             "o = (f32[4], (f32[8], f32[4])) opt-barrier(t)\n"
                             "g = (f32[8], f32[4]) get-tuple-element(o), index=1\n"
                             "p = (f32[8], f32[4]) opt-barrier(g)\n"
                             "x = f32[8] get-tuple-element(p), index=0\n"
                             "y = f32[4] get-tuple-element(p), index=1\n"
                             "z = f32[4] get-tuple-element(o), index=0\n"
                             "c = s32[4] iota(), iota_dimension=0\n"
                             "s = (f32[4], s32[4]) sort(y, c), dimensions={0}, to_apply=pair_greater\n"
                             "u = s32[4] get-tuple-element(s), index=1\n"
                             "ROOT r = (f32[8], f32[4], s32[4]) tuple(x, z, u)");
    const Rules *rules = derived.rules;
    assert_int_equal(rules->alias[named(&derived, "x")], named(&derived, "a"));
    assert_int_equal(rules->alias[named(&derived, "y")], named(&derived, "b"));
    assert_int_equal(rules->alias[named(&derived, "z")], named(&derived, "b"));
    assert_int_equal(rules->leaf[named(&derived, "y")], 0);
    assert_int_equal(rules->alias[named(&derived, "u")], named(&derived, "s"));
    assert_int_equal(rules->leaf[named(&derived, "u")], 1);
    release(&derived);
}

static void test_alias_and_free(void **state) {
    (void)state;
    Derived derived =
        derive("a = f32[8] parameter(0) c = f32[] constant(2) z = f32[8] broadcast(c), dimensions={}\n"
               "i = s32[4,8] iota(), iota_dimension=0 s = s32[4,8] add(i, i)\n"
               "w = f32[4,8] broadcast(a), dimensions={1}\n"
               "t = (f32[8], f32[8]) tuple(z, a) o = (f32[8], f32[8]) opt-barrier(t)\n"
               "g0 = f32[8] get-tuple-element(o), index=0\n"
               "g1 = f32[8] get-tuple-element(o), index=1\n"
               "ROOT r = f32[8] add(g0, g1), control-predecessors={s, w}");
    const Rules *rules = derived.rules;
    assert_int_equal(rules->alias[named(&derived, "g0")], named(&derived, "z"));
    assert_int_equal(rules->alias[named(&derived, "g1")], named(&derived, "a"));
    assert_true(rules->is_free[named(&derived, "z")]);
    assert_true(rules->is_free[named(&derived, "g0")]);
    assert_true(rules->is_free[named(&derived, "s")]);
    assert_true(rules->on_demand[named(&derived, "s")]);
    assert_false(rules->is_free[named(&derived, "a")]);
    assert_false(rules->is_free[named(&derived, "g1")]);
    assert_false(rules->on_demand[named(&derived, "g1")]);
    assert_false(rules->is_free[named(&derived, "w")]);
    assert_true(rules->on_demand[named(&derived, "w")]);
    assert_false(rules->on_demand[named(&derived, "r")]);
    int32_t instruction = named(&derived, "w"), leaf = 0, dimension = 1;
    assert_true(rules_resolve(rules, &instruction, &leaf, &dimension));
    assert_int_equal(instruction, named(&derived, "a"));
    assert_int_equal(dimension, 0);
    instruction = named(&derived, "w");
    dimension = 0;
    assert_false(rules_resolve(rules, &instruction, &leaf, &dimension));
    release(&derived);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_movement),
        cmocka_unit_test(test_reshape),
        cmocka_unit_test(test_reshape_sizes),
        cmocka_unit_test(test_dot),
        cmocka_unit_test(test_convolution),
        cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_whole_dimensions),
        cmocka_unit_test(test_fusion),
        cmocka_unit_test(test_without_rule),
        cmocka_unit_test(test_alias_and_free),
        cmocka_unit_test(test_nested_tuples),
        cmocka_unit_test(test_document),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
