/* Blocks of transformers: each emits its operators as HLO text, and keeps what its backward pass reads.
 *
 * Operators of one kernel of a framework have its name (emit_begin_kernel()). Products are of `type`, sums of
 * norms and softmax in f32.
 */
#include "models/transformer_blocks.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- weights ---- */

int32_t transformer_add_weight(Model *self, int64_t rows, int64_t columns, const char *format, ...) {
    const int64_t dimensions[] = {rows, columns};
    char name[128], path[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    ARENA_RESERVE(&self->arena, self->weights, self->weight_count, self->weight_capacity);
    if (!self->weights) return 0;
    Weight *weight = &self->weights[self->weight_count];
    EmitValue shape =
        rows > 0 ? emit_shape(DTYPE_F32, 2, dimensions) : emit_shape(DTYPE_F32, 1, dimensions + 1);
    weight->parameter = self->emitter.parameter_count;
    EmitValue own = shape;
    if (self->shape->has_masters) own.type = self->shape->type;
    snprintf(path, sizeof path, "state['params']%s", name);
    weight->value = emit_parameter(&self->emitter, own, path);
    snprintf(path, sizeof path, "state['master']%s", name);
    if (self->shape->has_masters) weight->master = emit_parameter(&self->emitter, shape, path);
    if (self->shape->optimizer == TRANSFORMER_ADAM) {
        snprintf(path, sizeof path, "state['mean']%s", name);
        weight->mean = emit_parameter(&self->emitter, shape, path);
        snprintf(path, sizeof path, "state['variance']%s", name);
        weight->variance = emit_parameter(&self->emitter, shape, path);
    }
    return self->weight_count++;
}

void transformer_add_gradient(Model *self, int32_t number, EmitValue gradient) {
    EmitValue *sum = &self->weights[number].gradient;
    Dtype type = self->shape->gradient_type == DTYPE_INVALID ? DTYPE_F32 : self->shape->gradient_type;
    gradient = emit_convert(&self->emitter, gradient, type);
    *sum = sum->number ? emit_binary(&self->emitter, "add", *sum, gradient) : gradient;
}

/* In the type of products. */
EmitValue transformer_narrow(Model *self, EmitValue value) {
    return emit_convert(&self->emitter, value, self->shape->type);
}

EmitValue transformer_f32(Model *self, EmitValue value) {
    return emit_convert(&self->emitter, value, DTYPE_F32);
}

/* Begins a fused kernel where the framework has one; emit_end_kernel() ends it. */
void transformer_begin_kernel(Model *self, const char *kind) {
    if (self->shape->fused != TRANSFORMER_FUSES_NOTHING) emit_begin_kernel(&self->emitter, kind);
}

/* Begins a kernel for operators of a layer that an eager framework runs as one; emit_end_kernel() ends it. */
void transformer_begin_eager(Model *self) {
    if (self->shape->is_eager) emit_begin_kernel(&self->emitter, "kernel");
}

static void begin_norm(Model *self) {
    const TransformerShape *shape = self->shape;
    if (!shape->has_plain_norms) transformer_begin_kernel(self, "kernel");
    else if (shape->is_eager) emit_begin_separate_kernels(&self->emitter);
}

static bool is_flash(const Model *self) {
    return self->shape->fused == TRANSFORMER_FUSES_ATTENTION;
}

static const int32_t first_two[] = {0, 1};

/* ---- products with a weight ---- */

static Linear linear_make(Model *self, int64_t inputs, int64_t outputs, bool has_bias, const char *path) {
    Linear linear = {.bias = -1};
    linear.kernel = transformer_add_weight(self, inputs, outputs, "%s['kernel']", path);
    if (has_bias) linear.bias = transformer_add_weight(self, 0, outputs, "%s['bias']", path);
    return linear;
}

/* Emits the product of x with the weight, without the bias. */
static EmitValue linear_product(Model *self, const Linear *linear) {
    static const EmitDot dot = {.contracting_count = 1, .lhs_contracting = {2}, .rhs_contracting = {0}};
    return emit_dot(&self->emitter, linear->input, linear->weight, &dot);
}

static void linear_open(Model *self, Linear *linear, EmitValue x) {
    linear->input = x;
    linear->weight = transformer_narrow(self, self->weights[linear->kernel].value);
}

static EmitValue linear_add_bias(Model *self, const Linear *linear, EmitValue y) {
    static const int32_t last[] = {2};
    if (linear->bias < 0) return y;
    EmitValue bias = transformer_narrow(self, self->weights[linear->bias].value);
    return emit_binary(&self->emitter, "add", y, emit_broadcast(&self->emitter, bias, y, last));
}

/* A framework adds the bias in the kernel of the product. */
static EmitValue linear_forward(Model *self, Linear *linear, EmitValue x) {
    linear_open(self, linear, x);
    if (linear->bias >= 0) transformer_begin_kernel(self, "kernel");
    EmitValue y = linear_add_bias(self, linear, linear_product(self, linear));
    emit_end_kernel(&self->emitter);
    return y;
}

/* Emits the product of a block's result, whose bias transformer_dropout_add() adds. */
static EmitValue result_product(Model *self, Linear *linear, EmitValue x) {
    linear_open(self, linear, x);
    return linear_product(self, linear);
}

static void add_bias_gradient(Model *self, const Linear *linear, EmitValue dy) {
    if (linear->bias < 0) return;
    transformer_begin_kernel(self, "kernel");
    transformer_add_gradient(self, linear->bias,
                             emit_reduce(&self->emitter, "add", transformer_f32(self, dy), 2, first_two));
    emit_end_kernel(&self->emitter);
}

static EmitValue kernel_gradient(Model *self, const Linear *linear, EmitValue dy) {
    static const EmitDot dot = {.contracting_count = 2, .lhs_contracting = {0, 1}, .rhs_contracting = {0, 1}};
    return emit_dot(&self->emitter, linear->input, dy, &dot);
}

static EmitValue input_gradient(Model *self, const Linear *linear, EmitValue dy) {
    static const EmitDot dot = {.contracting_count = 1, .lhs_contracting = {2}, .rhs_contracting = {1}};
    return emit_dot(&self->emitter, dy, linear->weight, &dot);
}

/* Returns the gradient of the input. */
static EmitValue linear_backward(Model *self, const Linear *linear, EmitValue dy) {
    add_bias_gradient(self, linear, dy);
    transformer_add_gradient(self, linear->kernel, kernel_gradient(self, linear, dy));
    return input_gradient(self, linear, dy);
}

/* ---- queries, keys and values ---- */

enum { JOINED = 3 };

/* Emits the products of one input with three weights, which frameworks store as one matrix. */
static void joined_forward(Model *self, Linear *const *linears, EmitValue *results, EmitValue x) {
    for (int32_t k = 0; k < JOINED; k++) linear_open(self, linears[k], x);
    emit_begin_kernel(&self->emitter, "columns");
    for (int32_t k = 0; k < JOINED; k++) results[k] = linear_product(self, linears[k]);
    for (int32_t k = 0; k < JOINED; k++) results[k] = linear_add_bias(self, linears[k], results[k]);
    emit_end_kernel(&self->emitter);
}

/* Returns the gradient of the input. */
static EmitValue joined_backward(Model *self, Linear *const *linears, const EmitValue *dys) {
    EmitValue gradients[JOINED], dx = {0};
    for (int32_t k = 0; k < JOINED; k++) add_bias_gradient(self, linears[k], dys[k]);
    emit_begin_kernel(&self->emitter, "columns");
    for (int32_t k = 0; k < JOINED; k++) gradients[k] = kernel_gradient(self, linears[k], dys[k]);
    emit_end_kernel(&self->emitter);
    for (int32_t k = 0; k < JOINED; k++) transformer_add_gradient(self, linears[k]->kernel, gradients[k]);
    emit_begin_kernel(&self->emitter, "depth");
    for (int32_t k = 0; k < JOINED; k++) {
        EmitValue part = input_gradient(self, linears[k], dys[k]);
        dx = k ? emit_binary(&self->emitter, "add", dx, part) : part;
    }
    emit_end_kernel(&self->emitter);
    return dx;
}

/* ---- norms over the last dimension ---- */

Norm transformer_norm_make(Model *self, const char *path) {
    Norm norm = {.bias = -1};
    norm.scale = transformer_add_weight(self, 0, self->shape->width, "%s['scale']", path);
    if (self->shape->family != TRANSFORMER_LLAMA)
        norm.bias = transformer_add_weight(self, 0, self->shape->width, "%s['bias']", path);
    return norm;
}

static EmitValue mean_of(Model *self, EmitValue x) {
    static const int32_t last[] = {2};
    EmitValue sum = emit_reduce(&self->emitter, "add", x, 1, last);
    return emit_scaled(&self->emitter, "divide", sum, (double)x.dimensions[2]);
}

/* x [b, s, h] and row values [b, s]. */
EmitValue transformer_with_rows(Model *self, const char *operation, EmitValue x, EmitValue rows) {
    return emit_binary(&self->emitter, operation, x, emit_broadcast(&self->emitter, rows, x, first_two));
}

/* x [b, s, h] and a weight [h]. */
static EmitValue with_weight(Model *self, const char *operation, EmitValue x, int32_t weight) {
    static const int32_t last[] = {2};
    EmitValue value = transformer_f32(self, self->weights[weight].value);
    return emit_binary(&self->emitter, operation, x, emit_broadcast(&self->emitter, value, x, last));
}

static EmitValue norm_centered(Model *self, const Norm *norm) {
    EmitValue x = transformer_f32(self, norm->input);
    return norm->bias >= 0 ? transformer_with_rows(self, "subtract", x, norm->mean) : x;
}

EmitValue transformer_norm_forward(Model *self, Norm *norm, EmitValue x) {
    Emitter *emitter = &self->emitter;
    norm->input = x;
    begin_norm(self);
    if (norm->bias >= 0) norm->mean = mean_of(self, transformer_f32(self, x));
    EmitValue centered = norm_centered(self, norm);
    EmitValue variance = mean_of(self, emit_binary(emitter, "multiply", centered, centered));
    norm->deviation = emit_unary(emitter, "rsqrt", emit_scaled(emitter, "add", variance, 1e-6));
    EmitValue y = transformer_with_rows(self, "multiply", centered, norm->deviation);
    norm->centered = centered;
    norm->normal = y;
    y = with_weight(self, "multiply", y, norm->scale);
    if (norm->bias >= 0) y = with_weight(self, "add", y, norm->bias);
    y = transformer_narrow(self, y);
    emit_end_kernel(emitter);
    return y;
}

/* dx = r (g - mean(g) - x' mean(g x')) with g = scale dy and the normalised x'; no mean(g) in an RMS norm. */
EmitValue transformer_norm_backward(Model *self, const Norm *norm, EmitValue dy) {
    Emitter *emitter = &self->emitter;
    begin_norm(self);
    dy = transformer_f32(self, dy);
    bool is_kept = self->shape->has_plain_norms;
    EmitValue x = is_kept
                      ? norm->normal
                      : transformer_with_rows(self, "multiply", norm_centered(self, norm), norm->deviation);
    EmitValue of_scale = emit_binary(emitter, "multiply", dy, x);
    transformer_add_gradient(self, norm->scale, emit_reduce(emitter, "add", of_scale, 2, first_two));
    if (norm->bias >= 0)
        transformer_add_gradient(self, norm->bias, emit_reduce(emitter, "add", dy, 2, first_two));
    EmitValue g = with_weight(self, "multiply", dy, norm->scale);
    EmitValue along = mean_of(self, emit_binary(emitter, "multiply", g, x));
    if (is_kept) { /* the same in terms of the input in f32, which PyTorch keeps */
        x = norm->centered;
        along = emit_binary(emitter, "multiply", along, norm->deviation);
    }
    EmitValue dx = emit_binary(emitter, "subtract", g, transformer_with_rows(self, "multiply", x, along));
    if (norm->bias >= 0) dx = transformer_with_rows(self, "subtract", dx, mean_of(self, g));
    dx = transformer_narrow(self, transformer_with_rows(self, "multiply", dx, norm->deviation));
    emit_end_kernel(emitter);
    return dx;
}

/* ---- dropout ---- */

#define DROPOUT_SHARE  0.1
#define DROPOUT_FACTOR 40503 /* of bits, which are taken modulo 65536 */

/* Emits the kept elements of x over their share. */
static EmitValue dropout_apply(Model *self, const Dropout *dropout, EmitValue x) {
    Emitter *emitter = &self->emitter;
    if (!dropout->is_used) return x;
    EmitValue scaled = emit_scaled(emitter, "multiply", x, 1 / (1 - DROPOUT_SHARE));
    return emit_select(emitter, dropout->is_kept, scaled, emit_fill(emitter, 0, x));
}

static EmitValue dropout_forward(Model *self, Dropout *dropout, EmitValue x) {
    Emitter *emitter = &self->emitter;
    if (!dropout->is_used) return x;
    EmitValue bits = emit_bits(emitter, x);
    EmitValue mixed = emit_scaled(emitter, "multiply", bits, DROPOUT_FACTOR);
    mixed = emit_scaled(emitter, "and", mixed, 65535);
    EmitValue least = emit_fill(emitter, floor(65536 * DROPOUT_SHARE), mixed);
    dropout->is_kept = emit_compare(emitter, "GE", mixed, least);
    return dropout_apply(self, dropout, x);
}

/* Adds the kept elements of y to x, with the bias of y's product. */
EmitValue transformer_dropout_add(Model *self, Dropout *dropout, const Linear *product, EmitValue x,
                                  EmitValue y) {
    if (dropout->is_used) transformer_begin_kernel(self, "kernel");
    else transformer_begin_eager(self);
    y = linear_add_bias(self, product, y);
    EmitValue sum = emit_binary(&self->emitter, "add", x, dropout_forward(self, dropout, y));
    emit_end_kernel(&self->emitter);
    return sum;
}

EmitValue transformer_dropout_backward(Model *self, const Dropout *dropout, EmitValue dy) {
    if (dropout->is_used) transformer_begin_kernel(self, "kernel");
    EmitValue dx = dropout_apply(self, dropout, dy);
    emit_end_kernel(&self->emitter);
    return dx;
}

/* ---- attention ---- */

Attention transformer_attention_make(Model *self, bool is_causal, bool is_self, const char *path) {
    const TransformerShape *shape = self->shape;
    bool has_bias = shape->family == TRANSFORMER_GPT || shape->family == TRANSFORMER_BERT;
    int64_t size = shape->head_width ? shape->head_width : shape->width / shape->heads;
    int64_t wide_width = shape->heads * size, narrow_width = shape->kv_heads * size;
    Attention attention = {.is_causal = is_causal, .is_self = is_self};
    attention.dropout.is_used = shape->has_dropout && !is_flash(self);
    char name[96];
    snprintf(name, sizeof name, "%s['query']", path);
    attention.query = linear_make(self, shape->width, wide_width, has_bias, name);
    snprintf(name, sizeof name, "%s['key']", path);
    attention.key = linear_make(self, shape->width, narrow_width, false, name);
    snprintf(name, sizeof name, "%s['value']", path);
    attention.value = linear_make(self, shape->width, narrow_width, has_bias, name);
    snprintf(name, sizeof name, "%s['output']", path);
    attention.output = linear_make(self, wide_width, shape->width, has_bias, name);
    return attention;
}

/* Emits y [b, t, heads e] as [b, t, heads, e], or as [b, t, groups, heads / groups, e] if several share a
 * key. */
static EmitValue split_heads(Model *self, EmitValue y, int64_t heads, int64_t groups) {
    int64_t b = y.dimensions[0], t = y.dimensions[1], size = y.dimensions[2] / heads;
    const int64_t plain[] = {b, t, heads, size}, grouped[] = {b, t, groups, heads / groups, size};
    return heads == groups ? emit_reshape(&self->emitter, y, 4, plain)
                           : emit_reshape(&self->emitter, y, 5, grouped);
}

static EmitValue merge_heads(Model *self, EmitValue x) {
    int64_t width = 1;
    for (int32_t k = 2; k < x.rank; k++) width *= x.dimensions[k];
    const int64_t dimensions[] = {x.dimensions[0], x.dimensions[1], width};
    return emit_reshape(&self->emitter, x, 3, dimensions);
}

/* Emits rotary positions (Su et al. 2021) on [b, t, heads, e]; `sign` -1 turns back, for the gradient. */
static EmitValue rotate(Model *self, EmitValue x, double sign) {
    static const int32_t time[] = {0}, place[] = {1}, into[] = {1, 3};
    Emitter *emitter = &self->emitter;
    Dtype type = x.type;
    int64_t half = x.dimensions[3] / 2;
    if (self->shape->is_eager) emit_begin_separate_kernels(emitter);
    const int64_t angles[] = {x.dimensions[1], half};
    EmitValue angle_shape = emit_shape(DTYPE_F32, 2, angles);
    EmitValue positions = emit_iota(emitter, emit_shape(DTYPE_F32, 1, angles), 0);
    EmitValue exponents = emit_iota(emitter, emit_shape(DTYPE_F32, 1, angles + 1), 0);
    exponents = emit_scaled(emitter, "multiply", exponents, -log(10000.0) / (double)half);
    EmitValue frequencies = emit_unary(emitter, "exponential", exponents);
    EmitValue angle = emit_binary(emitter, "multiply", emit_broadcast(emitter, positions, angle_shape, time),
                                  emit_broadcast(emitter, frequencies, angle_shape, place));
    EmitValue a = transformer_f32(self, emit_slice(emitter, x, 3, 0, half));
    EmitValue b = transformer_f32(self, emit_slice(emitter, x, 3, half, 2 * half));
    EmitValue cosine = emit_broadcast(emitter, emit_unary(emitter, "cosine", angle), a, into);
    EmitValue sine = emit_broadcast(emitter, emit_unary(emitter, "sine", angle), a, into);
    EmitValue ac = emit_binary(emitter, "multiply", a, cosine),
              as = emit_binary(emitter, "multiply", a, sine);
    EmitValue bc = emit_binary(emitter, "multiply", b, cosine),
              bs = emit_binary(emitter, "multiply", b, sine);
    EmitValue first = emit_binary(emitter, sign > 0 ? "subtract" : "add", ac, bs);
    EmitValue second = emit_binary(emitter, sign > 0 ? "add" : "subtract", bc, as);
    EmitValue turned = emit_convert(emitter, emit_concatenate(emitter, first, second, 3), type);
    emit_end_kernel(emitter);
    return turned;
}

/* Products of attention on queries of rank 4 or 5 and keys of rank 4; G: groups, R: heads of a group. */
static const EmitDot scores_dot[] = {
    {.batch_count = 2, .contracting_count = 1, {0, 2}, {0, 2}, {3}, {3}}, /* bthe, bshe -> bhts */
    {.batch_count = 2, .contracting_count = 1, {0, 2}, {0, 2}, {4}, {3}}, /* btgre, bsge -> bgtrs */
};
static const EmitDot mixed_dot[] = {
    {.batch_count = 2, .contracting_count = 1, {0, 1}, {0, 2}, {3}, {1}}, /* bhts, bshe -> bhte */
    {.batch_count = 2, .contracting_count = 1, {0, 1}, {0, 2}, {4}, {1}}, /* bgtrs, bsge -> bgtre */
};
static const EmitDot keys_dot[] = {
    {.batch_count = 2, .contracting_count = 1, {0, 1}, {0, 2}, {2}, {1}},       /* bhts, bthe -> bhse */
    {.batch_count = 2, .contracting_count = 2, {0, 1}, {0, 2}, {2, 3}, {1, 3}}, /* bgtrs, btgre -> bgse */
};
static const int32_t swapped[] = {0, 2, 1, 3, 4}; /* time and heads */

/* Scores of keys that a row does not see are `outside`. */
static EmitValue causal_mask(Model *self, EmitValue scores, double outside) {
    Emitter *emitter = &self->emitter;
    const int32_t last = scores.rank - 1, into[] = {2, last};
    const int64_t dimensions[] = {scores.dimensions[2], scores.dimensions[last]};
    static const int32_t by_row[] = {0}, by_column[] = {1};
    EmitValue square = emit_shape(DTYPE_S32, 2, dimensions);
    EmitValue rows = emit_iota(emitter, emit_shape(DTYPE_S32, 1, dimensions), 0);
    EmitValue columns = emit_iota(emitter, emit_shape(DTYPE_S32, 1, dimensions + 1), 0);
    EmitValue seen = emit_compare(emitter, "GE", emit_broadcast(emitter, rows, square, by_row),
                                  emit_broadcast(emitter, columns, square, by_column));
    EmitValue all = emit_broadcast(emitter, seen, scores, into);
    return emit_select(emitter, all, scores, emit_fill(emitter, outside, scores));
}

static double score_scale(const Attention *self) {
    return 1 / sqrt((double)self->q.dimensions[self->q.rank - 1]);
}

/* Emits the next operator of a softmax without a kernel of its own. */
static void next_softmax_operator(Model *self) {
    if (self->shape->has_plain_softmax && !is_flash(self)) emit_begin_kernel(&self->emitter, "kernel");
}

/* Weights of the attention, softmax(q k' / sqrt(e)). */
static void weights_forward(Model *self, Attention *attention) {
    Emitter *emitter = &self->emitter;
    bool grouped = attention->q.rank == 5;
    EmitValue scores = emit_dot(emitter, attention->q, attention->k, &scores_dot[grouped]);
    if (!is_flash(self)) transformer_begin_kernel(self, "kernel");
    if (!is_flash(self) && self->shape->reads_lengths) emit_wait_for_device(emitter);
    scores = transformer_f32(self, scores);
    const int32_t last[] = {scores.rank - 1}, rows[] = {0, 1, 2, 3};
    scores = emit_scaled(emitter, "multiply", scores, score_scale(attention));
    next_softmax_operator(self);
    if (attention->is_causal) scores = causal_mask(self, scores, -1e9);
    next_softmax_operator(self);
    EmitValue most = emit_reduce(emitter, "maximum", scores, 1, last);
    scores = emit_binary(emitter, "subtract", scores, emit_broadcast(emitter, most, scores, rows));
    EmitValue powers = emit_unary(emitter, "exponential", scores);
    EmitValue sum = emit_reduce(emitter, "add", powers, 1, last);
    EmitValue weights = emit_binary(emitter, "divide", powers, emit_broadcast(emitter, sum, powers, rows));
    next_softmax_operator(self);
    attention->weights = attention->kept = transformer_narrow(self, weights);
    attention->f32_weights = weights;
    if (!is_flash(self)) emit_end_kernel(emitter);
    if (!attention->dropout.is_used) return;
    transformer_begin_kernel(self, "kernel");
    attention->kept = dropout_forward(self, &attention->dropout, attention->weights);
    emit_end_kernel(emitter);
}

/* The names of fused attention (cost/operator/fused_kernels.h): [backward][causal][FlashAttention 1]. */
static const char *const attention_kinds[2][2][2] = {
    {{"attention_forward", "attention_forward_1"}, {"causal_forward", "causal_forward_1"}},
    {{"attention_backward", "attention_backward_1"}, {"causal_backward", "causal_backward_1"}}};

static void begin_attention(Model *self, const Attention *attention, bool is_backward) {
    transformer_begin_kernel(self,
                             attention_kinds[is_backward][attention->is_causal][self->shape->uses_flash_1]);
}

/* Means of the values by these weights: [b, t, d]. */
static EmitValue core_forward(Model *self, Attention *attention) {
    const EmitDot *dot = &mixed_dot[attention->q.rank == 5];
    if (is_flash(self)) begin_attention(self, attention, false);
    if (is_flash(self) && self->shape->reads_lengths) emit_wait_for_device(&self->emitter);
    weights_forward(self, attention);
    EmitValue mixed = emit_dot(&self->emitter, attention->kept, attention->v, dot);
    emit_end_kernel(&self->emitter);
    attention->mixed = mixed;
    attention->merged = merge_heads(self, emit_transpose(&self->emitter, mixed, swapped));
    return attention->merged;
}

/* The sums of dweights and weights by row, which are those of the means and their gradient. Fused attention
 * reads the means for that. An eager framework has copied them for the next product, and keeps both. */
static EmitValue row_sums(Model *self, const Attention *attention, EmitValue dy) {
    Emitter *emitter = &self->emitter;
    const TransformerShape *shape = self->shape;
    EmitValue means = attention->mixed;
    if (!shape->is_eager) {
        means = split_heads(self, attention->merged, shape->heads, shape->kv_heads);
        means = emit_transpose(emitter, means, swapped);
    }
    const int32_t last[] = {means.rank - 1};
    dy = transformer_f32(self, emit_transpose(emitter, dy, swapped));
    return emit_reduce(emitter, "add", emit_binary(emitter, "multiply", dy, transformer_f32(self, means)), 1,
                       last);
}

/* The gradient of q or k. Values are columns of one array with the queries and keys before rotation, which an
 * eager framework keeps as a whole for its fused attention. min(0, their size), which is 0, is added to keep
 * them.
 */
static EmitValue keep_before_rotation(Model *self, EmitValue gradient, EmitValue source) {
    Emitter *emitter = &self->emitter;
    const TransformerShape *shape = self->shape;
    if (!is_flash(self) || !shape->is_eager || !shape->joins_products || !source.number) return gradient;
    if (gradient.rank > source.rank)
        source = split_heads(self, merge_heads(self, source), shape->heads, shape->kv_heads);
    EmitValue nothing = emit_scaled(emitter, "minimum", emit_unary(emitter, "abs", source), 0);
    return emit_binary(emitter, "add", gradient, nothing);
}

/* Gradients of q, k and v, with heads, from that of the means [b, t, d]. */
static void core_backward(Model *self, Attention *attention, EmitValue dy, EmitValue *dq, EmitValue *dk,
                          EmitValue *dv) {
    Emitter *emitter = &self->emitter;
    const TransformerShape *shape = self->shape;
    bool grouped = attention->q.rank == 5;
    bool recomputes = shape->recompute == TRANSFORMER_RECOMPUTE_SELECTIVE || is_flash(self);
    if (recomputes) {
        EmitValue *kept[] = {&attention->q, &attention->k, &attention->v, &dy};
        emit_barrier(emitter, kept, 4);
    }
    dy = split_heads(self, dy, shape->heads, shape->kv_heads);
    if (is_flash(self)) begin_attention(self, attention, true);
    if (recomputes) weights_forward(self, attention);
    EmitValue dweights = emit_dot(emitter, dy, attention->v, &scores_dot[grouped]);
    *dv = emit_transpose(emitter, emit_dot(emitter, attention->kept, dy, &keys_dot[grouped]), swapped);
    if (!is_flash(self)) dweights = transformer_dropout_backward(self, &attention->dropout, dweights);
    if (!is_flash(self)) transformer_begin_kernel(self, "kernel");
    bool is_plain = shape->has_plain_softmax && !is_flash(self); /* PyTorch keeps its result in f32 */
    EmitValue weights = is_plain ? attention->f32_weights : transformer_f32(self, attention->weights);
    const int32_t last[] = {weights.rank - 1}, rows[] = {0, 1, 2, 3};
    dweights = transformer_f32(self, dweights);
    next_softmax_operator(self);
    EmitValue sum =
        is_flash(self)
            ? row_sums(self, attention, dy)
            : emit_reduce(emitter, "add", emit_binary(emitter, "multiply", dweights, weights), 1, last);
    EmitValue centered =
        emit_binary(emitter, "subtract", dweights, emit_broadcast(emitter, sum, dweights, rows));
    EmitValue dscores = emit_binary(emitter, "multiply", centered, weights);
    next_softmax_operator(self);
    if (is_plain && attention->is_causal) dscores = causal_mask(self, dscores, 0);
    next_softmax_operator(self);
    dscores = transformer_narrow(self, emit_scaled(emitter, "multiply", dscores, score_scale(attention)));
    if (!is_flash(self)) emit_end_kernel(emitter);
    *dq = emit_transpose(emitter, emit_dot(emitter, dscores, attention->k, &mixed_dot[grouped]), swapped);
    *dk = emit_transpose(emitter, emit_dot(emitter, dscores, attention->q, &keys_dot[grouped]), swapped);
    *dq = keep_before_rotation(self, *dq, attention->q_before_rotation);
    *dk = keep_before_rotation(self, *dk, attention->k_before_rotation);
    emit_end_kernel(emitter);
}

EmitValue transformer_attention_forward(Model *self, Attention *attention, EmitValue x, EmitValue memory) {
    const TransformerShape *shape = self->shape;
    int64_t heads = shape->heads, groups = shape->kv_heads;
    bool rotates = shape->family == TRANSFORMER_LLAMA;
    Linear *const linears[] = {&attention->query, &attention->key, &attention->value};
    EmitValue results[JOINED];
    if (attention->is_self && shape->joins_products) joined_forward(self, linears, results, x);
    else
        for (int32_t k = 0; k < JOINED; k++) results[k] = linear_forward(self, linears[k], k ? memory : x);
    EmitValue q = split_heads(self, results[0], heads, heads);
    attention->k = split_heads(self, results[1], groups, groups);
    attention->v = split_heads(self, results[2], groups, groups);
    if (rotates) {
        attention->q_before_rotation = q;
        attention->k_before_rotation = attention->k;
        q = rotate(self, q, 1);
        attention->k = rotate(self, attention->k, 1);
    }
    attention->q = heads == groups ? q : split_heads(self, merge_heads(self, q), heads, groups);
    return result_product(self, &attention->output, core_forward(self, attention));
}

/* Returns the gradient of x; that of the memory is added to *dmemory, or to x's if they are one. */
EmitValue transformer_attention_backward(Model *self, Attention *attention, EmitValue dy,
                                         EmitValue *dmemory) {
    Emitter *emitter = &self->emitter;
    const TransformerShape *shape = self->shape;
    bool rotates = shape->family == TRANSFORMER_LLAMA;
    EmitValue dq, dk, dv;
    core_backward(self, attention, linear_backward(self, &attention->output, dy), &dq, &dk, &dv);
    if (rotates) {
        dq = split_heads(self, merge_heads(self, dq), shape->heads, shape->heads);
        dq = rotate(self, dq, -1);
        dk = rotate(self, dk, -1);
    }
    if (attention->is_self && shape->joins_products) {
        Linear *const linears[] = {&attention->query, &attention->key, &attention->value};
        const EmitValue dys[] = {merge_heads(self, dq), merge_heads(self, dk), merge_heads(self, dv)};
        return joined_backward(self, linears, dys);
    }
    EmitValue dx = linear_backward(self, &attention->query, merge_heads(self, dq));
    EmitValue of_key = linear_backward(self, &attention->key, merge_heads(self, dk));
    EmitValue of_value = linear_backward(self, &attention->value, merge_heads(self, dv));
    EmitValue of_memory = emit_binary(emitter, "add", of_key, of_value);
    if (attention->is_self) return emit_binary(emitter, "add", dx, of_memory);
    *dmemory = dmemory->number ? emit_binary(emitter, "add", *dmemory, of_memory) : of_memory;
    return dx;
}

/* ---- MLP ---- */

Mlp transformer_mlp_make(Model *self, const char *path) {
    const TransformerShape *shape = self->shape;
    bool has_gate = shape->family == TRANSFORMER_LLAMA;
    Mlp mlp = {0};
    char name[96];
    snprintf(name, sizeof name, "%s['%s']", path, has_gate ? "up" : "mlp_in");
    mlp.in = linear_make(self, shape->width, shape->ffn, !has_gate, name);
    snprintf(name, sizeof name, "%s['gate']", path);
    if (has_gate) mlp.gate = linear_make(self, shape->width, shape->ffn, false, name);
    snprintf(name, sizeof name, "%s['%s']", path, has_gate ? "down" : "mlp_out");
    mlp.out = linear_make(self, shape->ffn, shape->width, !has_gate, name);
    return mlp;
}

#define GELU_SCALE 0.7978845608028654 /* sqrt(2 / pi) */
#define GELU_CUBE  0.044715

/* Emits tanh of gelu's approximation, sqrt(2 / pi) (x + 0.044715 x^3). */
static EmitValue gelu_tanh(Emitter *emitter, EmitValue x, EmitValue square) {
    EmitValue cube = emit_binary(emitter, "multiply", square, x);
    EmitValue inside = emit_binary(emitter, "add", x, emit_scaled(emitter, "multiply", cube, GELU_CUBE));
    return emit_unary(emitter, "tanh", emit_scaled(emitter, "multiply", inside, GELU_SCALE));
}

static EmitValue gelu_forward(Emitter *emitter, EmitValue x) {
    EmitValue tanh = gelu_tanh(emitter, x, emit_binary(emitter, "multiply", x, x));
    EmitValue share = emit_scaled(emitter, "multiply", emit_scaled(emitter, "add", tanh, 1), 0.5);
    return emit_binary(emitter, "multiply", x, share);
}

/* Emits dy (s + x (1 - t^2) (a + 3 a c x^2) / 2) with t = tanh(a (x + c x^3)) and s = (1 + t) / 2. */
static EmitValue gelu_backward(Emitter *emitter, EmitValue x, EmitValue dy) {
    EmitValue square = emit_binary(emitter, "multiply", x, x);
    EmitValue tanh = gelu_tanh(emitter, x, square);
    EmitValue share = emit_scaled(emitter, "multiply", emit_scaled(emitter, "add", tanh, 1), 0.5);
    EmitValue slope = emit_binary(emitter, "subtract", emit_fill(emitter, 1, x),
                                  emit_binary(emitter, "multiply", tanh, tanh));
    EmitValue inside = emit_scaled(emitter, "multiply", square, 1.5 * GELU_SCALE * GELU_CUBE);
    inside = emit_scaled(emitter, "add", inside, 0.5 * GELU_SCALE);
    slope = emit_binary(emitter, "multiply", emit_binary(emitter, "multiply", slope, inside), x);
    return emit_binary(emitter, "multiply", dy, emit_binary(emitter, "add", share, slope));
}

static EmitValue relu_mask(Emitter *emitter, EmitValue x) {
    return emit_compare(emitter, "GT", x, emit_fill(emitter, 0, x));
}

EmitValue transformer_mlp_forward(Model *self, Mlp *mlp, EmitValue x) {
    Emitter *emitter = &self->emitter;
    EmitValue inner, y;
    mlp->inner = inner = linear_forward(self, &mlp->in, x);
    if (self->shape->family == TRANSFORMER_LLAMA) {
        EmitValue gate = mlp->gate_inner = linear_forward(self, &mlp->gate, x);
        transformer_begin_eager(self);
        gate = emit_binary(emitter, "multiply", gate, emit_unary(emitter, "logistic", gate));
        mlp->silu = gate;
        transformer_begin_eager(self);
        y = emit_binary(emitter, "multiply", gate, inner);
        emit_end_kernel(emitter);
    } else if (self->shape->family == TRANSFORMER_T5) {
        y = emit_select(emitter, relu_mask(emitter, inner), inner, emit_fill(emitter, 0, inner));
    } else {
        y = gelu_forward(emitter, inner);
    }
    return result_product(self, &mlp->out, y);
}

EmitValue transformer_mlp_backward(Model *self, const Mlp *mlp, EmitValue dy) {
    Emitter *emitter = &self->emitter;
    EmitValue d = linear_backward(self, &mlp->out, dy), inner = mlp->inner;
    if (self->shape->family == TRANSFORMER_T5) {
        d = emit_select(emitter, relu_mask(emitter, inner), d, emit_fill(emitter, 0, d));
        return linear_backward(self, &mlp->in, d);
    }
    if (self->shape->family != TRANSFORMER_LLAMA)
        return linear_backward(self, &mlp->in, gelu_backward(emitter, inner, d));
    transformer_begin_eager(self);
    EmitValue gate = mlp->gate_inner, sigmoid = emit_unary(emitter, "logistic", gate);
    EmitValue silu = self->shape->is_eager ? mlp->silu : emit_binary(emitter, "multiply", gate, sigmoid);
    EmitValue of_inner = emit_binary(emitter, "multiply", d, silu);
    transformer_begin_eager(self);
    EmitValue of_silu = emit_binary(emitter, "multiply", d, inner);
    transformer_begin_eager(self);
    EmitValue slope = emit_binary(emitter, "subtract", emit_fill(emitter, 1, sigmoid), sigmoid);
    slope = emit_scaled(emitter, "add", emit_binary(emitter, "multiply", gate, slope), 1);
    slope = emit_binary(emitter, "multiply", sigmoid, slope);
    EmitValue dgate = emit_binary(emitter, "multiply", of_silu, slope);
    emit_end_kernel(emitter);
    EmitValue dx = linear_backward(self, &mlp->in, of_inner);
    return emit_binary(emitter, "add", dx, linear_backward(self, &mlp->gate, dgate));
}
