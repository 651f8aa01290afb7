/* Building blocks of transformer steps: weights, norms, dropout, attention and MLP, forward and backward.
 *
 * A block has a struct of its weights and of the forward values that its backward pass reads. Recomputation
 * emits the forward pass again into the same struct. A backward function takes the gradient of the block's
 * result, adds those of its weights, and returns the gradient of its input.
 */
#ifndef MODELS_TRANSFORMER_BLOCKS_H
#define MODELS_TRANSFORMER_BLOCKS_H

#include "base/arena.h"
#include "models/emit.h"
#include "models/transformer.h"

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

typedef struct Linear {
    int32_t kernel, bias; /* bias -1: none */
    EmitValue input, weight;
} Linear;

typedef struct Norm {
    int32_t scale, bias; /* bias -1: RMS norm, without a mean */
    EmitValue input, mean, deviation;
    EmitValue centered, normal; /* kept for the backward pass where norms are not fused */
} Norm;

typedef struct Dropout {
    bool is_used;
    EmitValue is_kept;
} Dropout;

typedef struct Attention {
    Linear query, key, value, output;
    bool is_causal, is_self;
    Dropout dropout;
    EmitValue q, k, v, weights, kept;               /* split into heads; after the softmax; after dropout */
    EmitValue mixed, merged;                        /* means of the values, with heads and side by side */
    EmitValue q_before_rotation, k_before_rotation; /* before rotary embedding */
    EmitValue f32_weights;                          /* in f32 */
} Attention;

typedef struct Mlp {
    Linear in, gate, out;
    EmitValue inner, gate_inner; /* before the function */
    EmitValue silu;              /* of the gate */
} Mlp;

/* Returns the number of a new weight [rows, columns], or [columns] if rows is 0. */
int32_t transformer_add_weight(Model *self, int64_t rows, int64_t columns, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void transformer_add_gradient(Model *self, int32_t number, EmitValue gradient);
/* Converts to the type of products; in f32. */
EmitValue transformer_narrow(Model *self, EmitValue value);
EmitValue transformer_f32(Model *self, EmitValue value);
/* Begins a fused kernel where the framework has one; emit_end_kernel() ends it. The other is for operators of
 * a layer that an eager framework runs as one kernel. */
void transformer_begin_kernel(Model *self, const char *kind);
void transformer_begin_eager(Model *self);
/* Returns an operation of x [b, s, h] and row values [b, s]. */
EmitValue transformer_with_rows(Model *self, const char *operation, EmitValue x, EmitValue rows);
Norm transformer_norm_make(Model *self, const char *path);
EmitValue transformer_norm_forward(Model *self, Norm *norm, EmitValue x);
EmitValue transformer_norm_backward(Model *self, const Norm *norm, EmitValue dy);
/* Adds the kept elements of y to x, with the bias of y's product. */
EmitValue transformer_dropout_add(Model *self, Dropout *dropout, const Linear *product, EmitValue x,
                                  EmitValue y);
EmitValue transformer_dropout_backward(Model *self, const Dropout *dropout, EmitValue dy);
Attention transformer_attention_make(Model *self, bool is_causal, bool is_self, const char *path);
/* Emits attention without the bias of the last product. */
EmitValue transformer_attention_forward(Model *self, Attention *attention, EmitValue x, EmitValue memory);
/* Returns the gradient of x; that of the memory is added to *dmemory, or to x's if they are one. */
EmitValue transformer_attention_backward(Model *self, Attention *attention, EmitValue dy, EmitValue *dmemory);
Mlp transformer_mlp_make(Model *self, const char *path);
/* Emits the perceptron without the bias of the last product. */
EmitValue transformer_mlp_forward(Model *self, Mlp *mlp, EmitValue x);
EmitValue transformer_mlp_backward(Model *self, const Mlp *mlp, EmitValue dy);

#endif
