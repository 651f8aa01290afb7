/* Training steps of transformers: layers, tables, loss, optimizer and whole models.
 *
 * A layer has blocks (transformer_blocks.h). The forward pass emits all layers in order, the backward pass in
 * reverse, with the forward pass of a layer again where it is recomputed. The optimizer appends the new
 * state.
 */
#include "models/transformer.h"

#include <math.h>
#include <stdio.h>

#include "models/transformer_blocks.h"

static const int32_t first_two[] = {0, 1};

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
    layer.attention = transformer_attention_make(self, is_causal, true, name);
    snprintf(name, sizeof name, "%s['attention_norm']", path);
    layer.attention_norm = transformer_norm_make(self, name);
    if (has_cross) {
        snprintf(name, sizeof name, "%s['cross_attention']", path);
        layer.cross = transformer_attention_make(self, false, false, name);
        snprintf(name, sizeof name, "%s['cross_attention_norm']", path);
        layer.cross_norm = transformer_norm_make(self, name);
    }
    layer.mlp = transformer_mlp_make(self, path);
    snprintf(name, sizeof name, "%s['mlp_norm']", path);
    layer.mlp_norm = transformer_norm_make(self, name);
    return layer;
}

static EmitValue layer_forward(Model *self, Layer *layer, EmitValue x, EmitValue memory) {
    layer->input = x;
    layer->memory = memory;
    if (self->shape->family == TRANSFORMER_BERT) {
        x = transformer_dropout_add(self, &layer->after_attention, &layer->attention.output, x,
                                    transformer_attention_forward(self, &layer->attention, x, x));
        x = transformer_norm_forward(self, &layer->attention_norm, x);
        x = transformer_dropout_add(self, &layer->after_mlp, &layer->mlp.out, x,
                                    transformer_mlp_forward(self, &layer->mlp, x));
        return transformer_norm_forward(self, &layer->mlp_norm, x);
    }
    EmitValue y = transformer_norm_forward(self, &layer->attention_norm, x);
    x = transformer_dropout_add(self, &layer->after_attention, &layer->attention.output, x,
                                transformer_attention_forward(self, &layer->attention, y, y));
    if (layer->has_cross) {
        y = transformer_norm_forward(self, &layer->cross_norm, x);
        x = transformer_dropout_add(self, &layer->after_cross, &layer->cross.output, x,
                                    transformer_attention_forward(self, &layer->cross, y, memory));
    }
    y = transformer_norm_forward(self, &layer->mlp_norm, x);
    return transformer_dropout_add(self, &layer->after_mlp, &layer->mlp.out, x,
                                   transformer_mlp_forward(self, &layer->mlp, y));
}

/* Emits the forward pass of the layer again, after the gradient of its result. Returns the result. */
static EmitValue layer_recompute(Model *self, Layer *layer, EmitValue *dy) {
    EmitValue *kept[] = {&layer->input, dy, &layer->memory};
    emit_barrier(&self->emitter, kept, layer->has_cross ? 3 : 2);
    return layer_forward(self, layer, layer->input, layer->memory);
}

/* A framework runs all of the forward pass again. min(0, size of the result), which is 0, is added to a
 * gradient of the layer, and keeps the last product. It is not linear, so that parts of the result are summed
 * first. */
static EmitValue keep_result(Model *self, EmitValue gradient, EmitValue y) {
    if (!y.number || !self->shape->recomputes_all) return gradient;
    transformer_begin_kernel(self, "kernel");
    EmitValue size = emit_unary(&self->emitter, "abs", y);
    gradient = emit_binary(&self->emitter, "add", gradient, emit_scaled(&self->emitter, "minimum", size, 0));
    emit_end_kernel(&self->emitter);
    return gradient;
}

static EmitValue add_gradients(Model *self, EmitValue a, EmitValue b) {
    transformer_begin_eager(self);
    EmitValue sum = emit_binary(&self->emitter, "add", a, b);
    emit_end_kernel(&self->emitter);
    return sum;
}

/* Returns the gradient of the layer's input; that of the memory is added to *dmemory. */
static EmitValue layer_backward(Model *self, Layer *layer, EmitValue dy, EmitValue *dmemory) {
    EmitValue d, y = {0};
    if (self->shape->recompute == TRANSFORMER_RECOMPUTE_FULL) y = layer_recompute(self, layer, &dy);
    if (self->shape->family == TRANSFORMER_BERT) {
        d = transformer_norm_backward(self, &layer->mlp_norm, dy);
        dy = transformer_dropout_backward(self, &layer->after_mlp, d);
        d = add_gradients(self, d, keep_result(self, transformer_mlp_backward(self, &layer->mlp, dy), y));
        d = transformer_norm_backward(self, &layer->attention_norm, d);
        dy = transformer_dropout_backward(self, &layer->after_attention, d);
        return add_gradients(self, d, transformer_attention_backward(self, &layer->attention, dy, dmemory));
    }
    d = transformer_mlp_backward(self, &layer->mlp,
                                 transformer_dropout_backward(self, &layer->after_mlp, dy));
    d = keep_result(self, d, y);
    dy = add_gradients(self, dy, transformer_norm_backward(self, &layer->mlp_norm, d));
    if (layer->has_cross) {
        d = transformer_attention_backward(
            self, &layer->cross, transformer_dropout_backward(self, &layer->after_cross, dy), dmemory);
        dy = add_gradients(self, dy, transformer_norm_backward(self, &layer->cross_norm, d));
    }
    d = transformer_dropout_backward(self, &layer->after_attention, dy);
    d = transformer_attention_backward(self, &layer->attention, d, dmemory);
    return add_gradients(self, dy, transformer_norm_backward(self, &layer->attention_norm, d));
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
    return transformer_narrow(self, x);
}

static void embedding_backward(Model *self, const Embedding *embedding, EmitValue dy) {
    static const int32_t batch[] = {0};
    Emitter *emitter = &self->emitter;
    Dtype type = self->shape->gradient_type == DTYPE_INVALID ? DTYPE_F32 : self->shape->gradient_type;
    if (embedding->positions >= 0)
        transformer_add_gradient(self, embedding->positions,
                                 emit_reduce(emitter, "add", transformer_f32(self, dy), 1, batch));
    dy = emit_convert(emitter, dy, type);
    EmitValue table = self->weights[embedding->table].value;
    table.type = type;
    transformer_add_gradient(self, embedding->table,
                             emit_scatter_rows(emitter, table, embedding->tokens, dy));
}

/* The parts of a cross entropy. An eager framework has logarithms of shares in place of shares. */
typedef struct Entropy {
    EmitValue shifted, powers, sum; /* logits minus their maximum, exp() of that, and the sum of the powers */
    EmitValue shares, at_label; /* powers over their sum, which the gradient reads; `shifted` at the labels */
    EmitValue log_shares;
} Entropy;

/* Begins the next operator of a loss as a kernel, as in Megatron-LM (VocabParallelCrossEntropy of
 * megatron/core/tensor_parallel/cross_entropy.py): logits in f32, their maximum, minus that, powers, sum and
 * shares; for the gradient shares minus labels, in 16 bits. */
static void next_loss_operator(Model *self) {
    if (!self->shape->joins_loss && !self->shape->is_eager) transformer_begin_kernel(self, "kernel");
}

static EmitValue find_labels(Model *self, EmitValue logits, EmitValue targets) {
    Emitter *emitter = &self->emitter;
    logits.type = DTYPE_S32;
    return emit_compare(emitter, "EQ", emit_iota(emitter, logits, 2),
                        emit_broadcast(emitter, targets, logits, first_two));
}

/* Elements at the labels. */
static EmitValue choose(Model *self, EmitValue values, EmitValue targets) {
    static const int32_t last[] = {2};
    Emitter *emitter = &self->emitter;
    EmitValue is_label = find_labels(self, values, targets);
    values = emit_select(emitter, is_label, values, emit_fill(emitter, 0, values));
    return emit_reduce(emitter, "add", values, 1, last);
}

/* Emits exp(logits - maximum) and its sum. Megatron-LM reads the elements at the labels alone. */
static void entropy_powers(Model *self, Entropy *entropy, EmitValue logits, EmitValue targets) {
    static const int32_t last[] = {2};
    Emitter *emitter = &self->emitter;
    EmitValue most = emit_reduce(emitter, "maximum", logits, 1, last);
    next_loss_operator(self);
    entropy->shifted = transformer_with_rows(self, "subtract", logits, most);
    next_loss_operator(self);
    entropy->powers = emit_unary(emitter, "exponential", entropy->shifted);
    if (!self->shape->is_eager) entropy->at_label = choose(self, entropy->shifted, targets);
    next_loss_operator(self);
    entropy->sum = emit_reduce(emitter, "add", entropy->powers, 1, last);
}

/* Losses of all tokens [b, s]. A fused kernel of the gradient finds the shares again. */
static EmitValue entropy_forward(Model *self, Entropy *entropy, EmitValue logits, EmitValue targets) {
    Emitter *emitter = &self->emitter;
    bool is_eager = self->shape->is_eager, is_joined = self->shape->joins_loss;
    if (is_joined) emit_begin_kernel(emitter, "kernel");
    else transformer_begin_eager(self);
    next_loss_operator(self);
    logits = transformer_f32(self, logits);
    if (!is_joined) transformer_begin_eager(self);
    next_loss_operator(self);
    entropy_powers(self, entropy, logits, targets);
    EmitValue normal = emit_unary(emitter, "log", entropy->sum), losses;
    if (is_eager) {
        entropy->log_shares = transformer_with_rows(self, "subtract", entropy->shifted, normal);
        transformer_begin_eager(self);
        losses = emit_unary(emitter, "negate", choose(self, entropy->log_shares, targets));
    } else {
        losses = emit_binary(emitter, "subtract", normal, entropy->at_label);
    }
    next_loss_operator(self);
    if (!is_eager && !is_joined)
        entropy->shares = transformer_with_rows(self, "divide", entropy->powers, entropy->sum);
    emit_end_kernel(emitter);
    return losses;
}

/* The gradient of the mean loss by the logits: shares minus labels over the number of tokens. An eager
 * framework makes the gradient by the logarithms of shares, and then that by the logits, in f32. */
static EmitValue entropy_backward(Model *self, Entropy *entropy, EmitValue logits, EmitValue targets,
                                  double count) {
    Emitter *emitter = &self->emitter;
    EmitValue d;
    if (self->shape->is_eager) {
        transformer_begin_eager(self);
        EmitValue by_log = emit_select(emitter, find_labels(self, logits, targets),
                                       emit_fill(emitter, -1 / count, entropy->log_shares),
                                       emit_fill(emitter, 0, entropy->log_shares));
        transformer_begin_eager(self);
        d = emit_scaled(emitter, "multiply", emit_unary(emitter, "exponential", entropy->log_shares),
                        1 / count);
        d = emit_binary(emitter, "add", d, by_log);
        transformer_begin_eager(self);
    } else {
        if (self->shape->joins_loss) {
            EmitValue *kept[] = {&logits};
            emit_barrier(emitter, kept, 1);
            emit_begin_kernel(emitter, "kernel");
            entropy_powers(self, entropy, transformer_f32(self, logits), targets);
            entropy->shares = transformer_with_rows(self, "divide", entropy->powers, entropy->sum);
        }
        next_loss_operator(self);
        EmitValue is_label = find_labels(self, logits, targets);
        d = emit_binary(emitter, "subtract", entropy->shares, emit_convert(emitter, is_label, DTYPE_F32));
        d = emit_scaled(emitter, "multiply", d, 1 / count);
    }
    next_loss_operator(self);
    d = transformer_narrow(self, d);
    emit_end_kernel(emitter);
    return d;
}

/* Cross entropy of x times the transposed table; *dx is the gradient of x. The loss is f32[]. */
static EmitValue loss(Model *self, int32_t table, EmitValue x, EmitValue targets, EmitValue *dx) {
    static const EmitDot logits_dot = {
        .contracting_count = 1, .lhs_contracting = {2}, .rhs_contracting = {1}};
    static const EmitDot dx_dot = {.contracting_count = 1, .lhs_contracting = {2}, .rhs_contracting = {0}};
    static const EmitDot table_dot = {
        .contracting_count = 2, .lhs_contracting = {0, 1}, .rhs_contracting = {0, 1}};
    Emitter *emitter = &self->emitter;
    Entropy entropy = {0};
    EmitValue weight = transformer_narrow(self, self->weights[table].value);
    EmitValue logits = emit_dot(emitter, x, weight, &logits_dot);
    EmitValue losses = entropy_forward(self, &entropy, logits, targets);
    double count = (double)(losses.dimensions[0] * losses.dimensions[1]);
    EmitValue value = emit_reduce(emitter, "add", losses, 2, first_two);
    value = emit_scaled(emitter, "divide", value, count);
    EmitValue d = entropy_backward(self, &entropy, logits, targets, count);
    if (self->shape->recomputes_head) {
        EmitValue *kept[] = {&x, &d};
        emit_barrier(emitter, kept, 2);
        d = keep_result(self, d, emit_dot(emitter, x, weight, &logits_dot));
    }
    *dx = emit_dot(emitter, d, weight, &dx_dot);
    transformer_add_gradient(self, table, emit_dot(emitter, d, x, &table_dot));
    return value;
}

/* ---- optimizers ---- */

/* Emits 1 - decay^step. */
static EmitValue correction(Emitter *emitter, EmitValue step, double decay) {
    EmitValue power = emit_binary(emitter, "power", emit_fill(emitter, decay, step), step);
    return emit_binary(emitter, "subtract", emit_fill(emitter, 1, step), power);
}

/* Appends the new state to the results, one after another as the parameters are. */
static void optimize(Model *self, EmitValue *results, int32_t *aliases, int32_t *count) {
    Emitter *emitter = &self->emitter;
    bool is_adam = self->shape->optimizer == TRANSFORMER_ADAM;
    double learning_rate = self->shape->family == TRANSFORMER_LLAMA ? 0.003 : 0.001; /* as in the zoo */
    EmitValue rate = {0};
    if (is_adam) {
        EmitValue next = emit_scaled(emitter, "add", self->count, 1);
        EmitValue step = transformer_f32(self, next);
        EmitValue root = emit_unary(emitter, "sqrt", correction(emitter, step, 0.999));
        rate = emit_binary(emitter, "divide", root, correction(emitter, step, 0.9));
        rate = emit_scaled(emitter, "multiply", rate, learning_rate);
        aliases[*count] = 0;
        results[(*count)++] = next;
    }
    for (int32_t k = 0; k < self->weight_count; k++) {
        const Weight *weight = &self->weights[k];
        EmitValue g = transformer_f32(self, weight->gradient), change;
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
            change = emit_binary(emitter, "multiply", mean, emit_broadcast(emitter, rate, mean, NULL));
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
    embedding.table = transformer_add_weight(self, shape->vocabulary, shape->width, "['%s']", table);
    if (has_positions)
        embedding.positions =
            transformer_add_weight(self, shape->sequence, shape->width, "['position_table']");
    return embedding;
}

/* Emits GPT, BERT and Llama. Returns the loss. */
static EmitValue emit_decoder(Model *self, Layer *layers) {
    const TransformerShape *shape = self->shape;
    bool is_bert = shape->family == TRANSFORMER_BERT, is_llama = shape->family == TRANSFORMER_LLAMA;
    EmitValue dx, none = {0};
    EmitValue tokens = emit_tokens(self, shape->sequence, "tokens");
    EmitValue targets = emit_tokens(self, shape->sequence, "targets");
    Embedding embedding = embedding_make(self, "token_table", !is_llama, tokens);
    Norm norm = transformer_norm_make(self, "['norm']");
    for (int32_t k = 0; k < shape->layers; k++) layers[k] = layer_make(self, "layers", k, !is_bert, false);
    int32_t table = transformer_add_weight(self, shape->vocabulary, shape->width, "['%s']",
                                           is_llama ? "head_table" : "softmax_table");
    if (!self->weights) return none;
    EmitValue x = embedding_forward(self, &embedding);
    if (is_bert) x = transformer_norm_forward(self, &norm, x);
    for (int32_t k = 0; k < shape->layers; k++) x = layer_forward(self, &layers[k], x, none);
    if (!is_bert) x = transformer_norm_forward(self, &norm, x);
    EmitValue value = loss(self, table, x, targets, &dx);
    if (!is_bert) dx = transformer_norm_backward(self, &norm, dx);
    for (int32_t k = (int32_t)shape->layers; k-- > 0;) dx = layer_backward(self, &layers[k], dx, NULL);
    if (is_bert) dx = transformer_norm_backward(self, &norm, dx);
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
    Norm norms[] = {transformer_norm_make(self, "['encoder_norm']"),
                    transformer_norm_make(self, "['decoder_norm']")};
    int32_t table = transformer_add_weight(self, shape->vocabulary, shape->width, "['softmax_table']");
    if (!self->weights) return none;
    EmitValue x = embedding_forward(self, &reading);
    for (int32_t k = 0; k < count; k++) x = layer_forward(self, &layers[k], x, none);
    EmitValue memory = transformer_norm_forward(self, &norms[0], x);
    x = embedding_forward(self, &writing);
    for (int32_t k = 0; k < count; k++) x = layer_forward(self, &layers[count + k], x, memory);
    EmitValue value = loss(self, table, transformer_norm_forward(self, &norms[1], x), targets, &dx);
    dx = transformer_norm_backward(self, &norms[1], dx);
    for (int32_t k = count; k-- > 0;) dx = layer_backward(self, &layers[count + k], dx, &dmemory);
    embedding_backward(self, &writing, dx);
    dx = transformer_norm_backward(self, &norms[0], dmemory);
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
