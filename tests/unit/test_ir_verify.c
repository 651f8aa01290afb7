/* The verifier: one line of HLO text per case, right ones that must pass and
 * wrong ones with what the error must say. Every case has the same operands.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "ir/encodings.h"

/* Computations and operands that the cases may use. */
static const char before[] = "HloModule m\n"
                             "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
                             "  ROOT s = f32[] add(a, b)\n}\n"
                             "ge {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
                             "  ROOT c = pred[] compare(a, b), direction=GE\n}\n"
                             "one {\n  a = f32[2,3] parameter(0)\n  ROOT n = f32[2,3] negate(a)\n}\n"
                             "yes {\n  a = f32[2,3] parameter(0)\n  ROOT c = pred[] constant(true)\n}\n"
                             "ENTRY main {\n"
                             "  m = f32[2,3] parameter(0)\n"
                             "  n = f32[3,4] parameter(1)\n"
                             "  z = f32[] parameter(2)\n"
                             "  i = s32[2,3] parameter(3)\n"
                             "  p = pred[2,3] parameter(4)\n"
                             "  x = f32[8,10,10,3] parameter(5)\n"
                             "  w = f32[3,3,3,16] parameter(6)\n"
                             "  k = s32[] parameter(7)\n"
                             "  j = s32[5,1] parameter(8)\n"
                             "  u = f32[5,4] parameter(9)\n"
                             "  q = pred[] parameter(10)\n"
                             "  g = f32[4,5,5,3] parameter(11)\n"
                             "  t = (f32[2,3], s32[]) parameter(12)\n"
                             "  h = f32[2,3,4] parameter(13)\n"
                             "  c64 = c64[2,3] parameter(14)\n"
                             "  y = f32[4,10,10,3] parameter(15)\n";

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
    {"f32[2,3] real(c64)", NULL},
    {"c64[2,3] real(c64)", "its shape has the type c64, expected floating"},
    {"c64[2,3] complex(m, m)", NULL},
    {"s32[2,3] bitcast-convert(m)", NULL},
    {"s16[2,3,2] bitcast-convert(m)", NULL},
    {"s16[2,6] bitcast-convert(m)", "the 2 parts of each element"},
    {"f32[2,3] negate(t)", "operand 0 is no array"},
    {"(f32[2,3], s32[]) negate(t)", "no array"},
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
    {"f32[2,3] conditional(z, m, m), true_computation=one, false_computation=one", "its selector"},
    {"f32[3,4] sort(n), dimensions={0}, to_apply=ge", NULL},
    {"f32[3,4] sort(n), dimensions={2}, to_apply=ge", "names dimension 2"},
    /* Not known, or without a rule: taken as they are. */
    {"f32[9] custom-call(m), custom_call_target=\"f\"", NULL},
    {"f32[2,3] all-reduce(m), replica_groups={}, to_apply=add", NULL},
};

static void every_case(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Text text = {0};
        text_append(&text, "%s  ROOT r = %s\n}\n", before, cases[i].instruction);
        IrModule *module;
        AmError error = {0};
        AmStatus status = ir_read_bytes(&module, "m.txt", text.data, (int64_t)text.length, &error);
        text_free(&text);
        if (cases[i].message == NULL) {
            if (status != AM_OK) fail_msg("%s: %s", cases[i].instruction, error.text);
            ir_module_free(module);
            continue;
        }
        if (status == AM_OK) fail_msg("%s: passed, expected: %s", cases[i].instruction, cases[i].message);
        assert_int_equal(status, AM_ERROR_INPUT);
        if (strstr(error.text, cases[i].message) == NULL) {
            fail_msg("%s: found: %s, expected: %s", cases[i].instruction, error.text, cases[i].message);
        }
        assert_int_equal(error.line, 37); /* of the case's own line, behind the indent */
        assert_int_equal(error.column, 3);
        assert_non_null(strstr(error.excerpt, "ROOT r = "));
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case), cmocka_unit_test(other_encodings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
