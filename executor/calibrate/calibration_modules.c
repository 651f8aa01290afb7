/* The modules that measure each class of operators (the classes of cost/cluster/operator_curves.h).
 *
 * A cost inside a fusion is the difference of two measurements. A chain of CHAIN operators on one input has
 * as many inputs and outputs as a chain of one, and CHAIN - 1 more operators. A sum of CHAIN inputs has as
 * many operators as a chain that adds one input repeatedly, and more inputs. Sizes are steps of 4 or 8: costs
 * are nearly polynomial in them, and values in between are interpolated.
 */
#include "executor/calibrate/calibration_modules.h"

#include <inttypes.h>

enum { CHAIN = 9 };

static int64_t over(int64_t all, int64_t part) {
    return all > part ? all / part : 1;
}

static void begin_module(Text *text) {
    text_append_string(text, "HloModule probe\n\nENTRY main {\n");
}

static void end_module(Text *text) {
    text_append_string(text, "}\n");
}

/* Appends v1 = x op x, v2 = v1 op x, ...; functions take one operand and end the chain. */
static void append_chain(Text *text, const char *operation, int64_t n, int32_t length, const char *type,
                         bool is_unary) {
    begin_module(text);
    text_append(text, "  v0 = %s[%" PRId64 "]{0} parameter(0)\n", type, n);
    for (int32_t k = 1; k <= length; k++) {
        text_append(text, "  %sv%d = %s[%" PRId64 "]{0} %s(v%d", k == length ? "ROOT " : "", k, type, n,
                    operation, k - 1);
        text_append_string(text, is_unary ? ")\n" : ", v0)\n");
    }
    end_module(text);
}

static void one_operator(Text *text, const char *operation, const int64_t *n) {
    append_chain(text, operation, n[0], 1, "f32", false);
}

static void chain(Text *text, const char *operation, const int64_t *n) {
    append_chain(text, operation, n[0], CHAIN, "f32", false);
}

static void one_function(Text *text, const char *operation, const int64_t *n) {
    append_chain(text, operation, n[0], 1, "f32", true);
}

static void functions(Text *text, const char *operation, const int64_t *n) {
    append_chain(text, operation, n[0], CHAIN, "f32", true);
}

static void one_narrow(Text *text, const char *operation, const int64_t *n) {
    append_chain(text, operation, n[0], 1, "bf16", false);
}

static void narrow_chain(Text *text, const char *operation, const int64_t *n) {
    append_chain(text, operation, n[0], CHAIN, "bf16", false);
}

/* Appends conversions to s32 and back. */
static void append_conversions(Text *text, int64_t n, int32_t length) {
    begin_module(text);
    text_append(text, "  v0 = f32[%" PRId64 "]{0} parameter(0)\n", n);
    for (int32_t k = 1; k <= length; k++)
        text_append(text, "  %sv%d = %s[%" PRId64 "]{0} convert(v%d)\n", k == length ? "ROOT " : "", k,
                    k % 2 ? "s32" : "f32", n, k - 1);
    end_module(text);
}

static void one_conversion(Text *text, const char *operation, const int64_t *n) {
    (void)operation;
    append_conversions(text, n[0], 1);
}

static void conversions(Text *text, const char *operation, const int64_t *n) {
    (void)operation;
    append_conversions(text, n[0], CHAIN);
}

/* Appends the sum of CHAIN parameters. */
static void many_inputs(Text *text, const char *operation, const int64_t *n) {
    begin_module(text);
    for (int32_t k = 0; k < CHAIN; k++)
        text_append(text, "  p%d = f32[%" PRId64 "]{0} parameter(%d)\n", k, n[0], k);
    text_append(text, "  v1 = f32[%" PRId64 "]{0} %s(p0, p1)\n", n[0], operation);
    for (int32_t k = 2; k < CHAIN; k++)
        text_append(text, "  %sv%d = f32[%" PRId64 "]{0} %s(v%d, p%d)\n", k == CHAIN - 1 ? "ROOT " : "", k,
                    n[0], operation, k - 1, k);
    end_module(text);
}

static void shorter_chain(Text *text, const char *operation, const int64_t *n) {
    append_chain(text, operation, n[0], CHAIN - 1, "f32", false);
}

/* Appends a chain with a constant for each operator but the first. */
static void constants(Text *text, const char *operation, const int64_t *n) {
    begin_module(text);
    text_append(text, "  v0 = f32[%" PRId64 "]{0} parameter(0)\n  v1 = f32[%" PRId64 "]{0} %s(v0, v0)\n",
                n[0], n[0], operation);
    for (int32_t k = 2; k <= CHAIN; k++)
        text_append(text,
                    "  c%d = f32[] constant(0.%d)\n  b%d = f32[%" PRId64
                    "]{0} broadcast(c%d), dimensions={}\n  %sv%d = f32[%" PRId64 "]{0} %s(v%d, b%d)\n",
                    k, k, k, n[0], k, k == CHAIN ? "ROOT " : "", k, n[0], operation, k - 1, k);
    end_module(text);
}

/* Appends a chain with a vector of sixteen for each operator but the first, the same in every row. */
static void repeated_inputs(Text *text, const char *operation, const int64_t *n) {
    int64_t r = 16, rows = over(n[0], r);
    begin_module(text);
    text_append(text,
                "  v0 = f32[%" PRId64 ",%" PRId64 "]{1,0} parameter(0)\n  v1 = f32[%" PRId64 ",%" PRId64
                "]{1,0} %s(v0, v0)\n",
                rows, r, rows, r, operation);
    for (int32_t k = 2; k <= CHAIN; k++)
        text_append(text,
                    "  p%d = f32[%" PRId64 "]{0} parameter(%d)\n  b%d = f32[%" PRId64 ",%" PRId64
                    "]{1,0} broadcast(p%d), dimensions={1}\n  %sv%d = f32[%" PRId64 ",%" PRId64
                    "]{1,0} %s(v%d, b%d)\n",
                    k, r, k - 1, k, rows, r, k, k == CHAIN ? "ROOT " : "", k, rows, r, operation, k - 1, k);
    end_module(text);
}

/* Appends a chain of four, all of whose values are outputs. */
static void four_outputs(Text *text, const char *operation, const int64_t *n) {
    begin_module(text);
    text_append(text, "  v0 = f32[%" PRId64 "]{0} parameter(0)\n", n[0]);
    for (int32_t k = 1; k <= 4; k++)
        text_append(text, "  v%d = f32[%" PRId64 "]{0} %s(v%d, v0)\n", k, n[0], operation, k - 1);
    text_append(text,
                "  ROOT r = (f32[%" PRId64 "]{0}, f32[%" PRId64 "]{0}, f32[%" PRId64 "]{0}, f32[%" PRId64
                "]{0}) tuple(v1, v2, v3, v4)\n",
                n[0], n[0], n[0], n[0]);
    end_module(text);
}

static void chain_of_four(Text *text, const char *operation, const int64_t *n) {
    append_chain(text, operation, n[0], 4, "f32", false);
}

/* Appends x + rows of which n[2] equal ones follow each other: [n / row / rows, rows, row]. */
static void row_input(Text *text, const char *operation, const int64_t *n) {
    int64_t row = n[1], rows = n[2], sequences = over(n[0], row * rows);
    begin_module(text);
    text_append(text,
                "  p0 = f32[%" PRId64 ",%" PRId64 ",%" PRId64 "]{2,1,0} parameter(0)\n  p1 = f32[%" PRId64
                ",%" PRId64 "]{1,0} parameter(1)\n  b = f32[%" PRId64 ",%" PRId64 ",%" PRId64
                "]{2,1,0} broadcast(p1), dimensions={0,2}\n  ROOT r = f32[%" PRId64 ",%" PRId64 ",%" PRId64
                "]{2,1,0} %s(p0, b)\n",
                sequences, rows, row, sequences, row, sequences, rows, row, sequences, rows, row, operation);
    end_module(text);
}

static void no_row_input(Text *text, const char *operation, const int64_t *n) {
    append_chain(text, operation, over(n[0], n[1] * n[2]) * n[1] * n[2], 1, "f32", false);
}

/* Appends x + a transposed matrix. */
static void strided_input(Text *text, const char *operation, const int64_t *n) {
    int64_t columns = 32, rows = over(n[0], columns);
    begin_module(text);
    text_append(text,
                "  p0 = f32[%" PRId64 ",%" PRId64 "]{1,0} parameter(0)\n  p1 = f32[%" PRId64 ",%" PRId64
                "]{1,0} parameter(1)\n  t = f32[%" PRId64 ",%" PRId64
                "]{1,0} broadcast(p1), dimensions={1,0}\n  ROOT r = f32[%" PRId64 ",%" PRId64
                "]{1,0} %s(p0, t)\n",
                rows, columns, columns, rows, rows, columns, rows, columns, operation);
    end_module(text);
}

/* Appends a product [products, rows, depth] by [products, depth, columns], or with the last two dimensions
 * exchanged; one product has no first dimension. */
static void append_product(Text *text, const char *type, const int64_t *n, bool left_transposed,
                           bool right_transposed) {
    int64_t left_rows = left_transposed ? n[3] : n[1], left_columns = left_transposed ? n[1] : n[3];
    int64_t right_rows = right_transposed ? n[2] : n[3], right_columns = right_transposed ? n[3] : n[2];
    begin_module(text);
    if (n[0] == 1) {
        text_append(text,
                    "  a = %s[%" PRId64 ",%" PRId64 "]{1,0} parameter(0)\n  b = %s[%" PRId64 ",%" PRId64
                    "]{1,0} parameter(1)\n  ROOT r = %s[%" PRId64 ",%" PRId64
                    "]{1,0} dot(a, b), lhs_contracting_dims={%d}, rhs_contracting_dims={%d}\n",
                    type, left_rows, left_columns, type, right_rows, right_columns, type, n[1], n[2],
                    left_transposed ? 0 : 1, right_transposed ? 1 : 0);
        end_module(text);
        return;
    }
    text_append(text,
                "  a = %s[%" PRId64 ",%" PRId64 ",%" PRId64 "]{2,1,0} parameter(0)\n  b = %s[%" PRId64
                ",%" PRId64 ",%" PRId64 "]{2,1,0} parameter(1)\n  ROOT r = %s[%" PRId64 ",%" PRId64
                ",%" PRId64
                "]{2,1,0} dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={%d}, "
                "rhs_contracting_dims={%d}\n",
                type, n[0], left_rows, left_columns, type, n[0], right_rows, right_columns, type, n[0], n[1],
                n[2], left_transposed ? 1 : 2, right_transposed ? 2 : 1);
    end_module(text);
}

static void product(Text *text, const char *type, const int64_t *n) {
    append_product(text, type, n, false, false);
}

static void product_right_turned(Text *text, const char *type, const int64_t *n) {
    append_product(text, type, n, false, true);
}

static void product_left_turned(Text *text, const char *type, const int64_t *n) {
    append_product(text, type, n, true, false);
}

static void product_both_turned(Text *text, const char *type, const int64_t *n) {
    append_product(text, type, n, true, true);
}

/* Returns the side of images with that many positions: 8 x 8, or 16 x 16 if those would be many. */
static int64_t image_side(int64_t positions) {
    return positions >= 16 * 256 ? 16 : 8;
}

/* Appends a convolution to such images by windows of 1 x 1, or of 3 x 3 with padding. */
static void convolution(Text *text, const char *operation, const int64_t *n) {
    int64_t image = image_side(n[0]), images = over(n[0], image * image), side = n[1] >= 9 ? 3 : 1;
    int64_t in = n[2], out = n[3];
    (void)operation;
    begin_module(text);
    text_append(text,
                "  x = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} parameter(0)\n  w = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} parameter(1)\n",
                images, image, image, in, side, side, in, out);
    text_append(text,
                "  ROOT r = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} convolution(x, w), window={size=%" PRId64 "x%" PRId64
                "%s}, dim_labels=b01f_01io->b01f\n",
                images, image, image, out, side, side, side > 1 ? " pad=1_1x1_1" : "");
    end_module(text);
}

/* Appends the gradient for the weights of such a convolution, without padding: the input is counted. */
static void weights_gradient(Text *text, const char *operation, const int64_t *n) {
    int64_t image = image_side(n[0]), images = over(n[0], image * image), side = n[1] >= 9 ? 3 : 1;
    int64_t in = n[2], out = n[3], whole = image + side - 1;
    (void)operation;
    begin_module(text);
    text_append(text,
                "  x = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} parameter(0)\n  g = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} parameter(1)\n",
                images, whole, whole, in, images, image, image, out);
    text_append(text,
                "  ROOT r = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} convolution(x, g), window={size=%" PRId64 "x%" PRId64
                "}, dim_labels=f01b_i01o->01bf\n",
                side, side, in, out, image, image);
    end_module(text);
}

static void begin_with_computation(Text *text, const char *operation) {
    text_append(text,
                "HloModule probe\n\nfold {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = "
                "f32[] %s(a, b)\n}\n\n",
                operation);
}

static void reduce_rows(Text *text, const char *operation, const int64_t *n) {
    begin_with_computation(text, operation);
    text_append(text,
                "ENTRY main {\n  x = f32[%" PRId64 ",%" PRId64
                "]{1,0} parameter(0)\n  z = f32[] parameter(1)\n  ROOT r = f32[%" PRId64
                "]{0} reduce(x, z), dimensions={1}, to_apply=fold\n",
                n[0], n[1], n[0]);
    end_module(text);
}

static void reduce_columns(Text *text, const char *operation, const int64_t *n) {
    begin_with_computation(text, operation);
    text_append(text,
                "ENTRY main {\n  x = f32[%" PRId64 ",%" PRId64 ",%" PRId64
                "]{2,1,0} parameter(0)\n  z = f32[] parameter(1)\n  ROOT r = f32[%" PRId64 ",%" PRId64
                "]{1,0} reduce(x, z), dimensions={1}, to_apply=fold\n",
                n[0], n[1], n[2], n[0], n[2]);
    end_module(text);
}

/* Transposes n elements in runs of r: [32, n / 32 / r, r] -> [n / 32 / r, 32, r]. */
static void transpose(Text *text, const char *operation, const int64_t *n) {
    int64_t rows = 16, run = n[1], columns = over(n[0], rows * run);
    (void)operation;
    begin_module(text);
    text_append(text,
                "  x = f32[%" PRId64 ",%" PRId64 ",%" PRId64 "]{2,1,0} parameter(0)\n  ROOT r = f32[%" PRId64
                ",%" PRId64 ",%" PRId64 "]{2,1,0} transpose(x), dimensions={1,0,2}\n",
                rows, columns, run, columns, rows, run);
    end_module(text);
}

/* Appends a slice: the first r of every 2 r. */
static void append_slice(Text *text, const char *operation, const int64_t *n) {
    int64_t run = n[1], rows = over(n[0], run);
    (void)operation;
    begin_module(text);
    text_append(text,
                "  x = f32[%" PRId64 ",%" PRId64 "]{1,0} parameter(0)\n  ROOT r = f32[%" PRId64 ",%" PRId64
                "]{1,0} slice(x), slice={[0:%" PRId64 "], [0:%" PRId64 "]}\n",
                rows, 2 * run, rows, run, rows, run);
    end_module(text);
}

/* Appends a broadcast of n elements, each value r times side by side. */
static void append_broadcast(Text *text, const char *operation, const int64_t *n) {
    int64_t run = n[1], rows = over(n[0], run);
    (void)operation;
    begin_module(text);
    text_append(text,
                "  x = f32[%" PRId64 "]{0} parameter(0)\n  ROOT r = f32[%" PRId64 ",%" PRId64
                "]{1,0} broadcast(x), dimensions={0}\n",
                rows, rows, run);
    end_module(text);
}

static void append_gather(Text *text, const char *operation, const int64_t *n) {
    (void)operation;
    begin_module(text);
    text_append(text,
                "  x = f32[128,%" PRId64 "]{1,0} parameter(0)\n  i = s32[%" PRId64
                ",1]{1,0} parameter(1)\n  ROOT r = f32[%" PRId64 ",%" PRId64
                "]{1,0} gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
                "index_vector_dim=1, slice_sizes={1,%" PRId64 "}\n",
                n[1], n[0], n[0], n[1], n[1]);
    end_module(text);
}

/* Appends a scatter into an operand of sixteen rows, whose copy is small. */
static void append_scatter(Text *text, const char *operation, const int64_t *n) {
    begin_with_computation(text, operation);
    text_append(text,
                "ENTRY main {\n  x = f32[16,%" PRId64 "]{1,0} parameter(0)\n  i = s32[%" PRId64
                ",1]{1,0} parameter(1)\n  u = f32[%" PRId64 ",%" PRId64
                "]{1,0} parameter(2)\n  ROOT r = f32[16,%" PRId64
                "]{1,0} scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, "
                "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=fold\n",
                n[1], n[0], n[0], n[1], n[1]);
    end_module(text);
}

/* Windows of w x w, 4 x 4 of them on an image of n[2] features, or, where images would be many, 8 x 8. */
static int64_t windows_aside(const int64_t *n) {
    return n[0] >= 256 * 64 ? 8 : 4;
}

static void pool(Text *text, const char *operation, const int64_t *n) {
    int64_t features = n[2], aside = windows_aside(n), images = over(n[0], aside * aside * features);
    int64_t side = n[1] >= 9 ? 3 : 2;
    begin_with_computation(text, operation);
    text_append(text,
                "ENTRY main {\n  x = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} parameter(0)\n  z = f32[] parameter(1)\n  ROOT r = f32[%" PRId64 ",%" PRId64
                ",%" PRId64 ",%" PRId64 "]{3,2,1,0} reduce-window(x, z), window={size=1x%" PRId64 "x%" PRId64
                "x1 stride=1x%" PRId64 "x%" PRId64 "x1}, to_apply=fold\n",
                images, aside * side, aside * side, features, images, aside, aside, features, side, side,
                side, side);
    end_module(text);
}

static void select_and_scatter(Text *text, const char *operation, const int64_t *n) {
    int64_t features = n[2], aside = windows_aside(n), images = over(n[0], aside * aside * features);
    int64_t side = n[1] >= 9 ? 3 : 2;
    begin_with_computation(text, operation);
    text_append(text,
                "ge {\n  c = f32[] parameter(0)\n  d = f32[] parameter(1)\n  ROOT s = pred[] compare(c, d), "
                "direction=GE\n}\n\nENTRY main {\n  x = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} parameter(0)\n  y = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} parameter(1)\n  z = f32[] parameter(2)\n",
                images, aside * side, aside * side, features, images, aside, aside, features);
    text_append(text,
                "  ROOT r = f32[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "]{3,2,1,0} select-and-scatter(x, y, z), window={size=1x%" PRId64 "x%" PRId64
                "x1 stride=1x%" PRId64 "x%" PRId64 "x1}, select=ge, scatter=fold\n",
                images, aside * side, aside * side, features, side, side, side, side);
    end_module(text);
}

const char probe_between[] =
    "HloModule between\n\nmost {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
    "  ROOT r = f32[] maximum(a, b)\n}\n\nENTRY main {\n"
    "  x = f32[32,64]{1,0} parameter(0)\n  w = f32[64,48]{1,0} parameter(1)\n  z = f32[] parameter(2)\n"
    "  i = s32[16,1]{1,0} parameter(3)\n"
    "  d = f32[32,48]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  m = f32[32]{0} reduce(d, z), dimensions={1}, to_apply=most\n"
    "  b = f32[32,48]{1,0} broadcast(m), dimensions={0}\n"
    "  s = f32[32,48]{1,0} subtract(d, b)\n  e = f32[32,48]{1,0} exponential(s)\n"
    "  t = f32[48,32]{1,0} transpose(e), dimensions={1,0}\n"
    "  c = f32[48]{0} reduce(e, z), dimensions={0}, to_apply=most\n"
    "  p = f32[24,32]{1,0} slice(t), slice={[0:24], [0:32]}\n"
    "  g = f32[16,48]{1,0} gather(e, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
    "index_vector_dim=1, slice_sizes={1,48}\n"
    "  ROOT r = (f32[24,32]{1,0}, f32[48]{0}, f32[16,48]{1,0}) tuple(p, c, g)\n}\n";

#define ELEMENTS                       \
    {                                  \
        { 16, 128, 1024, 8192, 65536 } \
    }
#define MORE_ELEMENTS                                   \
    {                                                   \
        { 16, 128, 1024, 8192, 65536, 524288, 4194304 } \
    }
#define FUNCTION(name, operation) \
    { name, 1, 1, ELEMENTS, functions, one_function, operation, CHAIN - 1 }
#define OPERATOR(name, operation) \
    { name, 1, 1, ELEMENTS, chain, one_operator, operation, CHAIN - 1 }

#define PRODUCT(name, text)                 \
    {                                       \
        name, 4, 2,                         \
            {{1, 32},                       \
             {4, 8, 16, 32, 64, 128, 256},  \
             {4, 8, 16, 32, 64, 128, 256},  \
             {4, 8, 16, 32, 64, 128, 256}}, \
            text, NULL, "f32", 1            \
    }

/* Steps of registers are in the columns: fewer of them may take longer. */
#define NARROW_PRODUCT(name, text)                                                                        \
    {                                                                                                     \
        name, 4, 2, {{1, 32}, {4, 8, 16, 32, 128}, {4, 8, 16, 32, 128}, {4, 8, 16, 32, 128}}, text, NULL, \
            "bf16", 1                                                                                     \
    }

/* In the order in which a probe measures them: those that most steps need come first, for a probe that ends
 * early leaves out the last ones. */
const ProbeClass probe_classes[] = {
    {"fusion", 1, 1, MORE_ELEMENTS, one_operator, NULL, "add", 1},
    OPERATOR("cheap", "add"),
    {"read", 1, 1, MORE_ELEMENTS, many_inputs, shorter_chain, "add", CHAIN - 1},
    {"write", 1, 1, ELEMENTS, four_outputs, chain_of_four, "add", 3},
    {"reduce_rows", 2, 1, {{1, 16, 256, 4096}, {2, 8, 12, 16, 32, 128, 1024}}, reduce_rows, NULL, "add", 1},
    {"reduce_columns",
     3,
     3,
     {{1, 8}, {2, 16, 128, 512}, {2, 8, 32, 128, 512}},
     reduce_columns,
     NULL,
     "add",
     1},
    {"move", 2, 1, {{16, 256, 4096, 65536, 1048576}, {1, 4, 16, 64, 1024}}, append_slice, NULL, "", 1},
    {"transpose", 2, 1, {{256, 4096, 65536}, {1, 4, 16, 64}}, transpose, NULL, "", 1},
    {"fill", 2, 1, {{16, 256, 4096, 65536, 1048576}, {1, 4, 16, 64, 1024}}, append_broadcast, NULL, "", 1},
    FUNCTION("exponential", "exponential"),
    OPERATOR("divide", "divide"),
    {"gather", 2, 2, {{4, 32, 256}, {1, 32, 256}}, append_gather, NULL, "", 1},
    {"scatter", 2, 2, {{4, 32, 256}, {1, 32, 256}}, append_scatter, NULL, "add", 1},
    PRODUCT("dot_nn", product),
    PRODUCT("dot_nt", product_right_turned),
    PRODUCT("dot_tn", product_left_turned),
    {"convolution",
     4,
     3,
     {{64, 512, 4096}, {1, 9}, {2, 4, 8, 32, 128}, {4, 8, 16, 64}},
     convolution,
     NULL,
     "",
     1},
    {"convolution_weights",
     4,
     3,
     {{64, 512, 4096}, {1, 9}, {2, 4, 8, 32, 128}, {4, 8, 16, 64}},
     weights_gradient,
     NULL,
     "",
     1},
    {"reduce_rows_maximum",
     2,
     1,
     {{1, 16, 256, 4096}, {2, 8, 12, 16, 32, 128, 1024}},
     reduce_rows,
     NULL,
     "maximum",
     1},
    {"read_rows",
     3,
     1,
     {{512, 4096, 65536}, {1, 4, 8, 16, 64, 256}, {2, 4, 8, 16, 128}},
     row_input,
     no_row_input,
     "add",
     1},
    {"read_strided", 1, 1, {{256, 4096, 65536}}, strided_input, one_operator, "add", 1},
    {"reduce_window", 3, 2, {{1024, 16384}, {4, 9}, {4, 8, 16, 64}}, pool, NULL, "maximum", 1},
    {"select_and_scatter", 3, 2, {{1024, 16384}, {4, 9}, {4, 8, 16, 64}}, select_and_scatter, NULL, "add", 1},
    {"repeated", 1, 0, {{16, 128, 1024}}, repeated_inputs, chain, "add", CHAIN - 1},
    {"constant", 1, 0, {{16, 128, 1024}}, constants, chain, "add", CHAIN - 1},
    FUNCTION("square_root", "sqrt"),
    FUNCTION("logarithm", "log"),
    FUNCTION("tanh", "tanh"),
    FUNCTION("logistic", "logistic"),
    FUNCTION("erf", "erf"),
    OPERATOR("power", "power"),
    FUNCTION("sine", "sine"),
    {"cheap_bf16", 1, 1, ELEMENTS, narrow_chain, one_narrow, "add", CHAIN - 1},
    {"convert", 1, 1, ELEMENTS, conversions, one_conversion, "", CHAIN - 1},
    PRODUCT("dot_tt", product_both_turned),
    NARROW_PRODUCT("dot_bf16", product),
    NARROW_PRODUCT("dot_bf16_nt", product_right_turned),
    NARROW_PRODUCT("dot_bf16_tn", product_left_turned),
    NARROW_PRODUCT("dot_bf16_tt", product_both_turned),
};
const int32_t probe_class_count = sizeof probe_classes / sizeof *probe_classes;
