/* Training steps of transformers. A block has a struct of its weights and of the forward
 * values that its backward pass reads; recomputation emits the forward pass again into the same struct. */
#include "models/transformer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "models/emit.h"

/* ---- weights ---- */

typedef struct Weight {
    EmitValue value, master, mean, variance, gradient; /* number 0: none */
    int32_t parameter;                                 /* number of `value`; the optimizer's follow */
} Weight;

typedef struct Model {
    const TransformerShape *shape;
    Arena arena;
    Emitter emitter;
    Weight *weights;
    int32_t weight_count, weight_capacity;
    EmitValue count; /* of steps, for Adam */
} Model;

/* Returns the number of a new weight [rows, columns], or [columns] if rows is 0. */
static int32_t add_weight(Model *self, int64_t rows, int64_t columns, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int32_t add_weight(Model *self, int64_t rows, int64_t columns, const char *format, ...) {
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

static void add_gradient(Model *self, int32_t number, EmitValue gradient) {
    EmitValue *sum = &self->weights[number].gradient;
    Dtype type = self->shape->gradient_type == DTYPE_INVALID ? DTYPE_F32 : self->shape->gradient_type;
    gradient = emit_convert(&self->emitter, gradient, type);
    *sum = sum->number ? emit_binary(&self->emitter, "add", *sum, gradient) : gradient;
}

/* In the type of products. */
static EmitValue narrow(Model *self, EmitValue value) {
    return emit_convert(&self->emitter, value, self->shape->type);
}

static EmitValue wide(Model *self, EmitValue value) {
    return emit_convert(&self->emitter, value, DTYPE_F32);
}

/* Begins a fused kernel where the framework has one; emit_end_kernel() ends it. */
static void begin_kernel(Model *self, const char *kind) {
    if (self->shape->fused != TRANSFORMER_FUSES_NOTHING) emit_begin_kernel(&self->emitter, kind);
}

/* The same for operators of a layer that an eager framework runs as one kernel. */
static void begin_eager(Model *self) {
    if (self->shape->is_eager) emit_begin_kernel(&self->emitter, "kernel");
}

static void begin_norm(Model *self) {
    const TransformerShape *shape = self->shape;
    if (!shape->has_plain_norms) begin_kernel(self, "kernel");
    else if (shape->is_eager) emit_begin_separate_kernels(&self->emitter);
}

static bool is_flash(const Model *self) {
    return self->shape->fused == TRANSFORMER_FUSES_ATTENTION;
}

static const int32_t first_two[] = {0, 1};

/* ---- products with a weight ---- */

typedef struct Linear {
    int32_t kernel, bias; /* bias -1: none */
    EmitValue input, weight;
} Linear;

static Linear linear_make(Model *self, int64_t inputs, int64_t outputs, bool has_bias, const char *path) {
    Linear linear = {.bias = -1};
    linear.kernel = add_weight(self, inputs, outputs, "%s['kernel']", path);
    if (has_bias) linear.bias = add_weight(self, 0, outputs, "%s['bias']", path);
    return linear;
}

static EmitValue linear_forward(Model *self, Linear *linear, EmitValue x) {
    static const EmitDot dot = {.contracting_count = 1, .lhs_contracting = {2}, .rhs_contracting = {0}};
    static const int32_t last[] = {2};
    Emitter *emitter = &self->emitter;
    linear->input = x;
    linear->weight = narrow(self, self->weights[linear->kernel].value);
    EmitValue y = emit_dot(emitter, x, linear->weight, &dot);
    if (linear->bias < 0) return y;
    EmitValue bias = narrow(self, self->weights[linear->bias].value);
    return emit_binary(emitter, "add", y, emit_broadcast(emitter, bias, y, last));
}

/* Returns the gradient of the input. */
static EmitValue linear_backward(Model *self, const Linear *linear, EmitValue dy) {
    static const EmitDot of_input = {.contracting_count = 1, .lhs_contracting = {2}, .rhs_contracting = {1}};
    static const EmitDot of_kernel = {
        .contracting_count = 2, .lhs_contracting = {0, 1}, .rhs_contracting = {0, 1}};
    Emitter *emitter = &self->emitter;
    if (linear->bias >= 0)
        add_gradient(self, linear->bias, emit_reduce(emitter, "add", wide(self, dy), 2, first_two));
    add_gradient(self, linear->kernel, emit_dot(emitter, linear->input, dy, &of_kernel));
    return emit_dot(emitter, dy, linear->weight, &of_input);
}

/* ---- norms over the last dimension ---- */

typedef struct Norm {
    int32_t scale, bias; /* bias -1: RMS norm, without a mean */
    EmitValue input, mean, deviation;
    EmitValue wide, normal; /* kept for the backward pass where norms are not fused */
} Norm;

static Norm norm_make(Model *self, const char *path) {
    Norm norm = {.bias = -1};
    norm.scale = add_weight(self, 0, self->shape->width, "%s['scale']", path);
    if (self->shape->family != TRANSFORMER_LLAMA)
        norm.bias = add_weight(self, 0, self->shape->width, "%s['bias']", path);
    return norm;
}

static EmitValue mean_of(Model *self, EmitValue x) {
    static const int32_t last[] = {2};
    EmitValue sum = emit_reduce(&self->emitter, "add", x, 1, last);
    return emit_scaled(&self->emitter, "divide", sum, (double)x.dimensions[2]);
}

/* x [b, s, h] and row values [b, s]. */
static EmitValue with_rows(Model *self, const char *operation, EmitValue x, EmitValue rows) {
    return emit_binary(&self->emitter, operation, x, emit_broadcast(&self->emitter, rows, x, first_two));
}

/* x [b, s, h] and a weight [h]. */
static EmitValue with_weight(Model *self, const char *operation, EmitValue x, int32_t weight) {
    static const int32_t last[] = {2};
    EmitValue value = wide(self, self->weights[weight].value);
    return emit_binary(&self->emitter, operation, x, emit_broadcast(&self->emitter, value, x, last));
}

static EmitValue norm_centered(Model *self, const Norm *norm) {
    EmitValue x = wide(self, norm->input);
    return norm->bias >= 0 ? with_rows(self, "subtract", x, norm->mean) : x;
}

static EmitValue norm_forward(Model *self, Norm *norm, EmitValue x) {
    Emitter *emitter = &self->emitter;
    norm->input = x;
    begin_norm(self);
    if (norm->bias >= 0) norm->mean = mean_of(self, wide(self, x));
    EmitValue centered = norm_centered(self, norm);
    EmitValue variance = mean_of(self, emit_binary(emitter, "multiply", centered, centered));
    norm->deviation = emit_unary(emitter, "rsqrt", emit_scaled(emitter, "add", variance, 1e-6));
    EmitValue y = with_rows(self, "multiply", centered, norm->deviation);
    norm->wide = centered;
    norm->normal = y;
    y = with_weight(self, "multiply", y, norm->scale);
    if (norm->bias >= 0) y = with_weight(self, "add", y, norm->bias);
    y = narrow(self, y);
    emit_end_kernel(emitter);
    return y;
}

/* dx = r (g - mean(g) - x' mean(g x')) with g = scale dy and the normalised x'; no mean(g) in an RMS norm. */
static EmitValue norm_backward(Model *self, const Norm *norm, EmitValue dy) {
    Emitter *emitter = &self->emitter;
    begin_norm(self);
    dy = wide(self, dy);
    bool is_kept = self->shape->has_plain_norms;
    EmitValue x =
        is_kept ? norm->normal : with_rows(self, "multiply", norm_centered(self, norm), norm->deviation);
    EmitValue of_scale = emit_binary(emitter, "multiply", dy, x);
    add_gradient(self, norm->scale, emit_reduce(emitter, "add", of_scale, 2, first_two));
    if (norm->bias >= 0) add_gradient(self, norm->bias, emit_reduce(emitter, "add", dy, 2, first_two));
    EmitValue g = with_weight(self, "multiply", dy, norm->scale);
    EmitValue along = mean_of(self, emit_binary(emitter, "multiply", g, x));
    if (is_kept) { /* the same in terms of the input in f32, which PyTorch keeps */
        x = norm->wide;
        along = emit_binary(emitter, "multiply", along, norm->deviation);
    }
    EmitValue dx = emit_binary(emitter, "subtract", g, with_rows(self, "multiply", x, along));
    if (norm->bias >= 0) dx = with_rows(self, "subtract", dx, mean_of(self, g));
    dx = narrow(self, with_rows(self, "multiply", dx, norm->deviation));
    emit_end_kernel(emitter);
    return dx;
}

/* ---- dropout ---- */

#define DROPOUT_SHARE  0.1
#define DROPOUT_FACTOR 40503 /* of bits, which are taken modulo 65536 */

typedef struct Dropout {
    bool is_used;
    EmitValue is_kept;
} Dropout;

/* The kept elements of x over their share. */
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

/* Adds the kept elements of y to x. */
static EmitValue dropout_add(Model *self, Dropout *dropout, EmitValue x, EmitValue y) {
    if (dropout->is_used) begin_kernel(self, "kernel");
    else begin_eager(self);
    EmitValue sum = emit_binary(&self->emitter, "add", x, dropout_forward(self, dropout, y));
    emit_end_kernel(&self->emitter);
    return sum;
}

static EmitValue dropout_backward(Model *self, const Dropout *dropout, EmitValue dy) {
    if (dropout->is_used) begin_kernel(self, "kernel");
    EmitValue dx = dropout_apply(self, dropout, dy);
    emit_end_kernel(&self->emitter);
    return dx;
}

/* ---- attention ---- */

typedef struct Attention {
    Linear query, key, value, output;
    bool is_causal, is_self;
    Dropout dropout;
    EmitValue q, k, v, weights, kept; /* split into heads; after the softmax; after dropout */
} Attention;

static Attention attention_make(Model *self, bool is_causal, bool is_self, const char *path) {
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

/* y [b, t, heads e] as [b, t, heads, e], or [b, t, groups, heads / groups, e] where several share a key. */
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

/* Rotary positions (Su et al. 2021) on [b, t, heads, e]; `sign` -1 turns back, for the gradient. */
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
    EmitValue a = wide(self, emit_slice(emitter, x, 3, 0, half));
    EmitValue b = wide(self, emit_slice(emitter, x, 3, half, 2 * half));
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

static EmitValue causal_mask(Model *self, EmitValue scores) {
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
    return emit_select(emitter, all, scores, emit_fill(emitter, -1e9, scores));
}

static double score_scale(const Attention *self) {
    return 1 / sqrt((double)self->q.dimensions[self->q.rank - 1]);
}

/* Weights of the attention, softmax(q k' / sqrt(e)). */
static void weights_forward(Model *self, Attention *attention) {
    Emitter *emitter = &self->emitter;
    bool grouped = attention->q.rank == 5;
    EmitValue scores = emit_dot(emitter, attention->q, attention->k, &scores_dot[grouped]);
    if (!is_flash(self)) begin_kernel(self, "kernel");
    scores = wide(self, scores);
    const int32_t last[] = {scores.rank - 1}, rows[] = {0, 1, 2, 3};
    scores = emit_scaled(emitter, "multiply", scores, score_scale(attention));
    if (attention->is_causal) scores = causal_mask(self, scores);
    EmitValue most = emit_reduce(emitter, "maximum", scores, 1, last);
    scores = emit_binary(emitter, "subtract", scores, emit_broadcast(emitter, most, scores, rows));
    EmitValue powers = emit_unary(emitter, "exponential", scores);
    EmitValue sum = emit_reduce(emitter, "add", powers, 1, last);
    EmitValue weights = emit_binary(emitter, "divide", powers, emit_broadcast(emitter, sum, powers, rows));
    attention->weights = attention->kept = narrow(self, weights);
    if (!is_flash(self)) emit_end_kernel(emitter);
    if (!attention->dropout.is_used) return;
    begin_kernel(self, "kernel");
    attention->kept = dropout_forward(self, &attention->dropout, attention->weights);
    emit_end_kernel(emitter);
}

/* Begins fused attention: KIND, or KIND_1 by the kernels of FlashAttention 1. */
static void begin_attention(Model *self, const char *kind) {
    static const char *const first[][2] = {{"causal_forward", "causal_forward_1"},
                                           {"causal_backward", "causal_backward_1"},
                                           {"attention_forward", "attention_forward_1"},
                                           {"attention_backward", "attention_backward_1"}};
    for (size_t k = 0; k < 4 && self->shape->has_first_flash; k++)
        if (strcmp(first[k][0], kind) == 0) kind = first[k][1];
    begin_kernel(self, kind);
}

/* Means of the values by these weights: [b, t, d]. */
static EmitValue core_forward(Model *self, Attention *attention) {
    const EmitDot *dot = &mixed_dot[attention->q.rank == 5];
    if (is_flash(self)) begin_attention(self, attention->is_causal ? "causal_forward" : "attention_forward");
    weights_forward(self, attention);
    EmitValue mixed = emit_dot(&self->emitter, attention->kept, attention->v, dot);
    emit_end_kernel(&self->emitter);
    return merge_heads(self, emit_transpose(&self->emitter, mixed, swapped));
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
    if (is_flash(self))
        begin_attention(self, attention->is_causal ? "causal_backward" : "attention_backward");
    if (recomputes) weights_forward(self, attention);
    EmitValue dweights = emit_dot(emitter, dy, attention->v, &scores_dot[grouped]);
    *dv = emit_transpose(emitter, emit_dot(emitter, attention->kept, dy, &keys_dot[grouped]), swapped);
    if (!is_flash(self)) dweights = dropout_backward(self, &attention->dropout, dweights);
    if (!is_flash(self)) begin_kernel(self, "kernel");
    EmitValue weights = wide(self, attention->weights);
    const int32_t last[] = {weights.rank - 1}, rows[] = {0, 1, 2, 3};
    dweights = wide(self, dweights);
    EmitValue sum = emit_reduce(emitter, "add", emit_binary(emitter, "multiply", dweights, weights), 1, last);
    EmitValue centered =
        emit_binary(emitter, "subtract", dweights, emit_broadcast(emitter, sum, dweights, rows));
    EmitValue dscores = emit_binary(emitter, "multiply", centered, weights);
    dscores = narrow(self, emit_scaled(emitter, "multiply", dscores, score_scale(attention)));
    if (!is_flash(self)) emit_end_kernel(emitter);
    *dq = emit_transpose(emitter, emit_dot(emitter, dscores, attention->k, &mixed_dot[grouped]), swapped);
    *dk = emit_transpose(emitter, emit_dot(emitter, dscores, attention->q, &keys_dot[grouped]), swapped);
    emit_end_kernel(emitter);
}

static EmitValue attention_forward(Model *self, Attention *attention, EmitValue x, EmitValue memory) {
    const TransformerShape *shape = self->shape;
    int64_t heads = shape->heads, groups = shape->kv_heads;
    bool rotates = shape->family == TRANSFORMER_LLAMA;
    EmitValue q = split_heads(self, linear_forward(self, &attention->query, x), heads, heads);
    attention->k = split_heads(self, linear_forward(self, &attention->key, memory), groups, groups);
    attention->v = split_heads(self, linear_forward(self, &attention->value, memory), groups, groups);
    if (rotates) {
        q = rotate(self, q, 1);
        attention->k = rotate(self, attention->k, 1);
    }
    attention->q = heads == groups ? q : split_heads(self, merge_heads(self, q), heads, groups);
    return linear_forward(self, &attention->output, core_forward(self, attention));
}

/* Returns the gradient of x; that of the memory is added to *dmemory, or to x's if they are one. */
static EmitValue attention_backward(Model *self, Attention *attention, EmitValue dy, EmitValue *dmemory) {
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
    EmitValue dx = linear_backward(self, &attention->query, merge_heads(self, dq));
    EmitValue of_key = linear_backward(self, &attention->key, merge_heads(self, dk));
    EmitValue of_value = linear_backward(self, &attention->value, merge_heads(self, dv));
    EmitValue of_memory = emit_binary(emitter, "add", of_key, of_value);
    if (attention->is_self) return emit_binary(emitter, "add", dx, of_memory);
    *dmemory = dmemory->number ? emit_binary(emitter, "add", *dmemory, of_memory) : of_memory;
    return dx;
}

/* ---- MLP ---- */

typedef struct Mlp {
    Linear in, gate, out;
    EmitValue inner, gate_inner; /* before the function */
    EmitValue silu;              /* of the gate */
} Mlp;

static Mlp mlp_make(Model *self, const char *path) {
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

/* tanh of gelu's approximation, sqrt(2 / pi) (x + 0.044715 x^3). */
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

/* dy (s + x (1 - t^2) (a + 3 a c x^2) / 2) with t = tanh(a (x + c x^3)) and s = (1 + t) / 2. */
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

static EmitValue mlp_forward(Model *self, Mlp *mlp, EmitValue x) {
    Emitter *emitter = &self->emitter;
    EmitValue inner, y;
    mlp->inner = inner = linear_forward(self, &mlp->in, x);
    if (self->shape->family == TRANSFORMER_LLAMA) {
        EmitValue gate = mlp->gate_inner = linear_forward(self, &mlp->gate, x);
        begin_eager(self);
        gate = emit_binary(emitter, "multiply", gate, emit_unary(emitter, "logistic", gate));
        mlp->silu = gate;
        begin_eager(self);
        y = emit_binary(emitter, "multiply", gate, inner);
        emit_end_kernel(emitter);
    } else if (self->shape->family == TRANSFORMER_T5) {
        y = emit_select(emitter, relu_mask(emitter, inner), inner, emit_fill(emitter, 0, inner));
    } else {
        y = gelu_forward(emitter, inner);
    }
    return linear_forward(self, &mlp->out, y);
}

static EmitValue mlp_backward(Model *self, const Mlp *mlp, EmitValue dy) {
    Emitter *emitter = &self->emitter;
    EmitValue d = linear_backward(self, &mlp->out, dy), inner = mlp->inner;
    if (self->shape->family == TRANSFORMER_T5) {
        d = emit_select(emitter, relu_mask(emitter, inner), d, emit_fill(emitter, 0, d));
        return linear_backward(self, &mlp->in, d);
    }
    if (self->shape->family != TRANSFORMER_LLAMA)
        return linear_backward(self, &mlp->in, gelu_backward(emitter, inner, d));
    begin_eager(self);
    EmitValue gate = mlp->gate_inner, sigmoid = emit_unary(emitter, "logistic", gate);
    EmitValue silu = self->shape->is_eager ? mlp->silu : emit_binary(emitter, "multiply", gate, sigmoid);
    EmitValue of_inner = emit_binary(emitter, "multiply", d, silu);
    begin_eager(self);
    EmitValue of_silu = emit_binary(emitter, "multiply", d, inner);
    begin_eager(self);
    EmitValue slope = emit_binary(emitter, "subtract", emit_fill(emitter, 1, sigmoid), sigmoid);
    slope = emit_scaled(emitter, "add", emit_binary(emitter, "multiply", gate, slope), 1);
    slope = emit_binary(emitter, "multiply", sigmoid, slope);
    EmitValue dgate = emit_binary(emitter, "multiply", of_silu, slope);
    emit_end_kernel(emitter);
    EmitValue dx = linear_backward(self, &mlp->in, of_inner);
    return emit_binary(emitter, "add", dx, linear_backward(self, &mlp->gate, dgate));
}

/* ---- layers ---- */

typedef struct Layer {
    Norm attention_norm, cross_norm, mlp_norm;
    Attention attention, cross;
    Mlp mlp;
    Dropout after_attention, after_cross, after_mlp;
    bool has_cross;
    EmitValue input, memory;
} Layer;

static Layer layer_make(Model *self, const char *stack, int32_t number, bool is_causal, bool has_cross) {
    Layer layer = {.has_cross = has_cross};
    layer.after_attention.is_used = layer.after_mlp.is_used = self->shape->has_dropout;
    layer.after_cross.is_used = self->shape->has_dropout;
    char path[48], name[80];
    snprintf(path, sizeof path, "['%s'][%d]", stack, (int)number);
    bool is_llama = self->shape->family == TRANSFORMER_LLAMA;
    snprintf(name, sizeof name, "%s%s", path, is_llama ? "" : "['attention']");
    layer.attention = attention_make(self, is_causal, true, name);
    snprintf(name, sizeof name, "%s['attention_norm']", path);
    layer.attention_norm = norm_make(self, name);
    if (has_cross) {
        snprintf(name, sizeof name, "%s['cross_attention']", path);
        layer.cross = attention_make(self, false, false, name);
        snprintf(name, sizeof name, "%s['cross_attention_norm']", path);
        layer.cross_norm = norm_make(self, name);
    }
    layer.mlp = mlp_make(self, path);
    snprintf(name, sizeof name, "%s['mlp_norm']", path);
    layer.mlp_norm = norm_make(self, name);
    return layer;
}

static EmitValue layer_forward(Model *self, Layer *layer, EmitValue x, EmitValue memory) {
    layer->input = x;
    layer->memory = memory;
    if (self->shape->family == TRANSFORMER_BERT) {
        x = dropout_add(self, &layer->after_attention, x, attention_forward(self, &layer->attention, x, x));
        x = norm_forward(self, &layer->attention_norm, x);
        x = dropout_add(self, &layer->after_mlp, x, mlp_forward(self, &layer->mlp, x));
        return norm_forward(self, &layer->mlp_norm, x);
    }
    EmitValue y = norm_forward(self, &layer->attention_norm, x);
    x = dropout_add(self, &layer->after_attention, x, attention_forward(self, &layer->attention, y, y));
    if (layer->has_cross) {
        y = norm_forward(self, &layer->cross_norm, x);
        x = dropout_add(self, &layer->after_cross, x, attention_forward(self, &layer->cross, y, memory));
    }
    y = norm_forward(self, &layer->mlp_norm, x);
    return dropout_add(self, &layer->after_mlp, x, mlp_forward(self, &layer->mlp, y));
}

/* Emits the forward pass of the layer again, behind the gradient of its result. Returns the result. */
static EmitValue layer_recompute(Model *self, Layer *layer, EmitValue *dy) {
    EmitValue *kept[] = {&layer->input, dy, &layer->memory};
    emit_barrier(&self->emitter, kept, layer->has_cross ? 3 : 2);
    return layer_forward(self, layer, layer->input, layer->memory);
}

/* A framework runs all of the forward pass again. 0 times its result, added to a gradient of the layer, keeps
 * the last product. */
static EmitValue keep_result(Model *self, EmitValue gradient, EmitValue y) {
    if (!y.number || !self->shape->recomputes_all) return gradient;
    begin_kernel(self, "kernel");
    gradient = emit_binary(&self->emitter, "add", gradient, emit_scaled(&self->emitter, "multiply", y, 0));
    emit_end_kernel(&self->emitter);
    return gradient;
}

static EmitValue add_gradients(Model *self, EmitValue a, EmitValue b) {
    begin_eager(self);
    EmitValue sum = emit_binary(&self->emitter, "add", a, b);
    emit_end_kernel(&self->emitter);
    return sum;
}

/* Returns the gradient of the layer's input; that of the memory is added to *dmemory. */
static EmitValue layer_backward(Model *self, Layer *layer, EmitValue dy, EmitValue *dmemory) {
    EmitValue d, y = {0};
    if (self->shape->recompute == TRANSFORMER_RECOMPUTE_FULL) y = layer_recompute(self, layer, &dy);
    if (self->shape->family == TRANSFORMER_BERT) {
        d = norm_backward(self, &layer->mlp_norm, dy);
        dy = dropout_backward(self, &layer->after_mlp, d);
        d = add_gradients(self, d, keep_result(self, mlp_backward(self, &layer->mlp, dy), y));
        d = norm_backward(self, &layer->attention_norm, d);
        dy = dropout_backward(self, &layer->after_attention, d);
        return add_gradients(self, d, attention_backward(self, &layer->attention, dy, dmemory));
    }
    d = mlp_backward(self, &layer->mlp, dropout_backward(self, &layer->after_mlp, dy));
    d = keep_result(self, d, y);
    dy = add_gradients(self, dy, norm_backward(self, &layer->mlp_norm, d));
    if (layer->has_cross) {
        d = attention_backward(self, &layer->cross, dropout_backward(self, &layer->after_cross, dy), dmemory);
        dy = add_gradients(self, dy, norm_backward(self, &layer->cross_norm, d));
    }
    d = dropout_backward(self, &layer->after_attention, dy);
    d = attention_backward(self, &layer->attention, d, dmemory);
    return add_gradients(self, dy, norm_backward(self, &layer->attention_norm, d));
}

/* ---- tables and loss ---- */

typedef struct Embedding {
    int32_t table, positions; /* positions -1: none */
    EmitValue tokens;
} Embedding;

static EmitValue embedding_forward(Model *self, const Embedding *embedding) {
    static const int32_t last_two[] = {1, 2};
    Emitter *emitter = &self->emitter;
    EmitValue x = emit_gather_rows(emitter, self->weights[embedding->table].value, embedding->tokens);
    if (embedding->positions >= 0) {
        EmitValue positions = self->weights[embedding->positions].value;
        x = emit_binary(emitter, "add", x, emit_broadcast(emitter, positions, x, last_two));
    }
    return narrow(self, x);
}

static void embedding_backward(Model *self, const Embedding *embedding, EmitValue dy) {
    static const int32_t batch[] = {0};
    Emitter *emitter = &self->emitter;
    dy = wide(self, dy);
    if (embedding->positions >= 0)
        add_gradient(self, embedding->positions, emit_reduce(emitter, "add", dy, 1, batch));
    EmitValue table = self->weights[embedding->table].value;
    table.type = DTYPE_F32;
    add_gradient(self, embedding->table, emit_scatter_rows(emitter, table, embedding->tokens, dy));
}

/* Cross entropy of x times the transposed table; *dx is the gradient of x. The loss is f32[]. */
static EmitValue loss(Model *self, int32_t table, EmitValue x, EmitValue targets, EmitValue *dx) {
    static const EmitDot logits_dot = {
        .contracting_count = 1, .lhs_contracting = {2}, .rhs_contracting = {1}};
    static const EmitDot dx_dot = {.contracting_count = 1, .lhs_contracting = {2}, .rhs_contracting = {0}};
    static const EmitDot table_dot = {
        .contracting_count = 2, .lhs_contracting = {0, 1}, .rhs_contracting = {0, 1}};
    static const int32_t last[] = {2};
    Emitter *emitter = &self->emitter;
    EmitValue weight = narrow(self, self->weights[table].value);
    EmitValue logits = wide(self, emit_dot(emitter, x, weight, &logits_dot));
    EmitValue most = emit_reduce(emitter, "maximum", logits, 1, last);
    EmitValue shifted = with_rows(self, "subtract", logits, most);
    EmitValue powers = emit_unary(emitter, "exponential", shifted);
    EmitValue sum = emit_reduce(emitter, "add", powers, 1, last), labels = logits;
    labels.type = DTYPE_S32;
    EmitValue is_label = emit_compare(emitter, "EQ", emit_iota(emitter, labels, 2),
                                      emit_broadcast(emitter, targets, labels, first_two));
    EmitValue chosen = emit_select(emitter, is_label, shifted, emit_fill(emitter, 0, shifted));
    chosen = emit_reduce(emitter, "add", chosen, 1, last);
    EmitValue losses = emit_binary(emitter, "subtract", emit_unary(emitter, "log", sum), chosen);
    double count = (double)(losses.dimensions[0] * losses.dimensions[1]);
    EmitValue value = emit_reduce(emitter, "add", losses, 2, first_two);
    value = emit_scaled(emitter, "divide", value, count);
    EmitValue d = with_rows(self, "divide", powers, sum);
    d = emit_binary(emitter, "subtract", d, emit_convert(emitter, is_label, DTYPE_F32));
    d = narrow(self, emit_scaled(emitter, "multiply", d, 1 / count));
    *dx = emit_dot(emitter, d, weight, &dx_dot);
    add_gradient(self, table, emit_dot(emitter, d, x, &table_dot));
    return value;
}

/* ---- optimizers ---- */

static EmitValue fill_like(Emitter *emitter, EmitValue scalar, EmitValue like) {
    return emit_broadcast(emitter, scalar, like, NULL);
}

/* 1 - decay^step */
static EmitValue correction(Emitter *emitter, EmitValue step, double decay) {
    EmitValue power = emit_binary(emitter, "power", emit_fill(emitter, decay, step), step);
    return emit_binary(emitter, "subtract", emit_fill(emitter, 1, step), power);
}

/* Appends the new state to the results, behind each other as the parameters are. */
static void optimize(Model *self, EmitValue *results, int32_t *aliases, int32_t *count) {
    Emitter *emitter = &self->emitter;
    bool is_adam = self->shape->optimizer == TRANSFORMER_ADAM;
    double learning_rate = self->shape->family == TRANSFORMER_LLAMA ? 0.003 : 0.001; /* as in the zoo */
    EmitValue rate = {0};
    if (is_adam) {
        EmitValue next = emit_scaled(emitter, "add", self->count, 1);
        EmitValue step = wide(self, next);
        EmitValue root = emit_unary(emitter, "sqrt", correction(emitter, step, 0.999));
        rate = emit_binary(emitter, "divide", root, correction(emitter, step, 0.9));
        rate = emit_scaled(emitter, "multiply", rate, learning_rate);
        aliases[*count] = 0;
        results[(*count)++] = next;
    }
    for (int32_t k = 0; k < self->weight_count; k++) {
        const Weight *weight = &self->weights[k];
        EmitValue g = wide(self, weight->gradient), change;
        bool has_master = weight->master.number;
        int32_t first = *count, parameter = weight->parameter;
        *count += 1 + has_master;
        if (is_adam) {
            EmitValue mean = emit_scaled(emitter, "multiply", weight->mean, 0.9);
            mean = emit_binary(emitter, "add", mean, emit_scaled(emitter, "multiply", g, 1 - 0.9));
            EmitValue square =
                emit_binary(emitter, "multiply", emit_scaled(emitter, "multiply", g, 1 - 0.999), g);
            EmitValue variance = emit_scaled(emitter, "multiply", weight->variance, 0.999);
            variance = emit_binary(emitter, "add", variance, square);
            EmitValue below = emit_scaled(emitter, "add", emit_unary(emitter, "sqrt", variance), 1e-6);
            change = emit_binary(emitter, "multiply", mean, fill_like(emitter, rate, mean));
            change = emit_binary(emitter, "divide", change, below);
            aliases[*count] = parameter + 1 + has_master;
            results[(*count)++] = mean;
            aliases[*count] = parameter + 2 + has_master;
            results[(*count)++] = variance;
        } else {
            change = emit_scaled(emitter, "multiply", g, learning_rate);
        }
        EmitValue next =
            emit_binary(emitter, "subtract", has_master ? weight->master : weight->value, change);
        results[first] = emit_convert(emitter, next, weight->value.type);
        aliases[first] = parameter;
        if (!has_master) continue;
        results[first + 1] = next;
        aliases[first + 1] = parameter + 1;
    }
}

/* ---- models ---- */

static EmitValue emit_tokens(Model *self, int64_t length, const char *name) {
    const int64_t dimensions[] = {self->shape->batch, length};
    return emit_parameter(&self->emitter, emit_shape(DTYPE_S32, 2, dimensions), name);
}

static Embedding embedding_make(Model *self, const char *table, bool has_positions, EmitValue tokens) {
    const TransformerShape *shape = self->shape;
    Embedding embedding = {.positions = -1, .tokens = tokens};
    embedding.table = add_weight(self, shape->vocabulary, shape->width, "['%s']", table);
    if (has_positions)
        embedding.positions = add_weight(self, shape->sequence, shape->width, "['position_table']");
    return embedding;
}

/* GPT, BERT and Llama. Returns the loss. */
static EmitValue emit_decoder(Model *self, Layer *layers) {
    const TransformerShape *shape = self->shape;
    bool is_bert = shape->family == TRANSFORMER_BERT, is_llama = shape->family == TRANSFORMER_LLAMA;
    EmitValue dx, none = {0};
    EmitValue tokens = emit_tokens(self, shape->sequence, "tokens");
    EmitValue targets = emit_tokens(self, shape->sequence, "targets");
    Embedding embedding = embedding_make(self, "token_table", !is_llama, tokens);
    Norm norm = norm_make(self, "['norm']");
    for (int32_t k = 0; k < shape->layers; k++) layers[k] = layer_make(self, "layers", k, !is_bert, false);
    int32_t table = add_weight(self, shape->vocabulary, shape->width, "['%s']",
                               is_llama ? "head_table" : "softmax_table");
    if (!self->weights) return none;
    EmitValue x = embedding_forward(self, &embedding);
    if (is_bert) x = norm_forward(self, &norm, x);
    for (int32_t k = 0; k < shape->layers; k++) x = layer_forward(self, &layers[k], x, none);
    if (!is_bert) x = norm_forward(self, &norm, x);
    EmitValue value = loss(self, table, x, targets, &dx);
    if (!is_bert) dx = norm_backward(self, &norm, dx);
    for (int32_t k = (int32_t)shape->layers; k-- > 0;) dx = layer_backward(self, &layers[k], dx, NULL);
    if (is_bert) dx = norm_backward(self, &norm, dx);
    embedding_backward(self, &embedding, dx);
    return value;
}

/* `layers` has room for encoder and decoder. Returns the loss. */
static EmitValue emit_t5(Model *self, Layer *layers) {
    const TransformerShape *shape = self->shape;
    int32_t count = (int32_t)shape->layers;
    int64_t length = shape->target_sequence ? shape->target_sequence : shape->sequence;
    EmitValue dx, none = {0}, dmemory = {0};
    EmitValue inputs = emit_tokens(self, shape->sequence, "inputs");
    EmitValue shifted = emit_tokens(self, length, "shifted"), targets = emit_tokens(self, length, "targets");
    Embedding reading = embedding_make(self, "encoder_table", false, inputs);
    Embedding writing = embedding_make(self, "decoder_table", false, shifted);
    for (int32_t k = 0; k < count; k++) layers[k] = layer_make(self, "encoder", k, false, false);
    for (int32_t k = 0; k < count; k++) layers[count + k] = layer_make(self, "decoder", k, true, true);
    Norm norms[] = {norm_make(self, "['encoder_norm']"), norm_make(self, "['decoder_norm']")};
    int32_t table = add_weight(self, shape->vocabulary, shape->width, "['softmax_table']");
    if (!self->weights) return none;
    EmitValue x = embedding_forward(self, &reading);
    for (int32_t k = 0; k < count; k++) x = layer_forward(self, &layers[k], x, none);
    EmitValue memory = norm_forward(self, &norms[0], x);
    x = embedding_forward(self, &writing);
    for (int32_t k = 0; k < count; k++) x = layer_forward(self, &layers[count + k], x, memory);
    EmitValue value = loss(self, table, norm_forward(self, &norms[1], x), targets, &dx);
    dx = norm_backward(self, &norms[1], dx);
    for (int32_t k = count; k-- > 0;) dx = layer_backward(self, &layers[count + k], dx, &dmemory);
    embedding_backward(self, &writing, dx);
    dx = norm_backward(self, &norms[0], dmemory);
    for (int32_t k = count; k-- > 0;) dx = layer_backward(self, &layers[k], dx, NULL);
    embedding_backward(self, &reading, dx);
    return value;
}

static const char *const family_names[TRANSFORMER_FAMILIES] = {"gpt", "bert", "llama", "t5"};

const char *transformer_family_name(TransformerFamily family) {
    return family_names[family];
}

AmStatus transformer_check(const TransformerShape *shape, AmError *error) {
    const struct {
        const char *name;
        int64_t value, most;
    } fields[] = {{"layers", shape->layers, TRANSFORMER_MOST_LAYERS},
                  {"width", shape->width, 1 << 20},
                  {"heads", shape->heads, 1 << 16},
                  {"kv_heads", shape->kv_heads, 1 << 16},
                  {"ffn", shape->ffn, 1 << 24},
                  {"vocabulary", shape->vocabulary, 1 << 24},
                  {"sequence", shape->sequence, 1 << 24},
                  {"batch", shape->batch, 1 << 24}};
    for (size_t k = 0; k < sizeof fields / sizeof *fields; k++)
        if (fields[k].value < 1 || fields[k].value > fields[k].most)
            return am_fail(error, AM_ERROR_INPUT, "", "%s: expected 1 to %lld, got %lld", fields[k].name,
                           (long long)fields[k].most, (long long)fields[k].value);
    if (!shape->head_width && shape->width % shape->heads != 0)
        return am_fail(error, AM_ERROR_INPUT, "", "width %lld: expected a multiple of %lld heads",
                       (long long)shape->width, (long long)shape->heads);
    if (shape->heads % shape->kv_heads != 0)
        return am_fail(error, AM_ERROR_INPUT, "", "heads %lld: expected a multiple of %lld kv_heads",
                       (long long)shape->heads, (long long)shape->kv_heads);
    if (shape->family == TRANSFORMER_LLAMA && (shape->width / shape->heads) % 2 != 0)
        return am_fail(error, AM_ERROR_INPUT, "", "width %lld: expected heads of an even size",
                       (long long)shape->width);
    return AM_OK;
}

AmStatus transformer_module(IrModule **module, const TransformerShape *shape, AmError *error) {
    Model self = {.shape = shape};
    Text text = {0};
    AmStatus status;
    TRY(transformer_check(shape, error));
    bool is_t5 = shape->family == TRANSFORMER_T5;
    Layer *layers = ARENA_ARRAY(&self.arena, Layer, shape->layers * (is_t5 ? 2 : 1));
    if (shape->optimizer == TRANSFORMER_ADAM)
        self.count = emit_parameter(&self.emitter, emit_shape(DTYPE_S32, 0, NULL), "state['count']");
    EmitValue value = {0};
    if (layers) value = is_t5 ? emit_t5(&self, layers) : emit_decoder(&self, layers);
    EmitValue *results = ARENA_ARRAY(&self.arena, EmitValue, 4 * self.weight_count + 2);
    int32_t *aliases = ARENA_ARRAY(&self.arena, int32_t, 4 * self.weight_count + 2), count = 0;
    if (self.arena.failed) {
        status = am_fail_memory(error, (int64_t)self.arena.used);
        goto fail;
    }
    optimize(&self, results, aliases, &count);
    aliases[count] = -1;
    results[count++] = value;
    emit_module(&text, &self.emitter, transformer_family_name(shape->family), results, aliases, count);
    status = text.failed ? am_fail_memory(error, (int64_t)text.length)
                         : ir_read_bytes(module, transformer_family_name(shape->family), text.data,
                                         (int64_t)text.length, error);
fail:
    text_free(&text);
    text_free(&self.emitter.text);
    arena_free(&self.arena);
    return status;
}
