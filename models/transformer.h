/* Training steps of transformers as HLO modules: GPT, BERT, Llama and T5 of any size.
 *
 * A step is the forward pass, the loss (cross entropy, mean over all tokens), the backward pass and the
 * optimizer, with the same parameters and products as the models of datasets/automap_jax/zoo:
 *
 *   gpt     transformer.py: norms in front of blocks, causal attention, gelu, learned positions
 *   bert    transformer.py: norms after blocks, every token sees all others
 *   llama   llama.py: rotary positions, grouped keys and values, RMS norms, gated MLP
 *   t5      t5.py: encoder and decoder of `layers` each, no biases in attention, relu
 *
 * Dropout keeps 9 of 10 elements, by a hash of their bits. The forward pass keeps one byte an element for the
 * backward pass.
 *
 * Weights and the state of the optimizer are f32. Products, activations and the residual stream have
 * `type`; norms, softmax and loss are f32. Layers are unrolled, each with weights of its own. The backward
 * pass computes norms and activation functions again from their inputs, as fused kernels do.
 */
#ifndef MODELS_TRANSFORMER_H
#define MODELS_TRANSFORMER_H

#include "ir/module.h"

typedef enum TransformerFamily {
    TRANSFORMER_GPT,
    TRANSFORMER_BERT,
    TRANSFORMER_LLAMA,
    TRANSFORMER_T5,
    TRANSFORMER_FAMILIES
} TransformerFamily;
const char *transformer_family_name(TransformerFamily family); /* "gpt", ... */

typedef enum TransformerOptimizer { TRANSFORMER_SGD, TRANSFORMER_ADAM } TransformerOptimizer;

/* Forward values that the backward pass computes again: none; scores and weights of the attention; all of a
 * layer but its input. */
typedef enum TransformerRecompute {
    TRANSFORMER_RECOMPUTE_NONE,
    TRANSFORMER_RECOMPUTE_SELECTIVE,
    TRANSFORMER_RECOMPUTE_FULL
} TransformerRecompute;

/* Kernels that a framework fuses: nothing; norms and the softmax of the attention; attention too, which keeps
 * no scores. Instructions of a fused kernel have its name (cost/operator/fused_kernels.h). */
typedef enum TransformerFused {
    TRANSFORMER_FUSES_NOTHING,
    TRANSFORMER_FUSES_NORMS,
    TRANSFORMER_FUSES_ATTENTION
} TransformerFused;

typedef struct TransformerShape {
    TransformerFamily family;
    int64_t layers, width, heads, kv_heads;
    int64_t head_width; /* 0: width / heads */
    int64_t ffn, vocabulary, sequence;
    int64_t target_sequence; /* of T5's decoder; 0: as `sequence` */
    int64_t batch;
    Dtype type; /* f32, bf16 or f16 */
    TransformerOptimizer optimizer;
    TransformerRecompute recompute;
    TransformerFused fused;
    /* What a framework does beside that; false or DTYPE_INVALID: not. */
    bool has_plain_norms;   /* norms are not fused, whatever `fused` says */
    bool has_plain_softmax; /* the softmax has a kernel for each operator, in f32, and its result is kept in
                               f32 */
    bool uses_flash_1;      /* fused attention has the kernels of FlashAttention 1 */
    bool is_eager;          /* other element-wise operators of a layer are a kernel each */
    bool reads_lengths;     /* the host reads lengths of sequences from the device before each softmax */
    bool joins_products;    /* queries, keys and values are columns of one product */
    bool joins_loss;        /* the loss and its gradient are a kernel each, which read 16-bit logits */
    bool has_dropout;       /* of attention weights (not in fused attention) and of both blocks' results */
    bool recomputes_all;    /* full recomputation includes the last product of a layer, which nothing reads */
    bool recomputes_head;   /* it includes the product of the logits, too */
    bool has_masters;       /* weights have `type`; the optimizer keeps f32 ones beside its state */
    Dtype gradient_type;    /* of gradients until the optimizer; DTYPE_INVALID: f32 */
} TransformerShape;

#define TRANSFORMER_MOST_LAYERS 1024

/* Checks a shape. AM_ERROR_INPUT names the field that is out of range or does not divide another one. */
AmStatus transformer_check(const TransformerShape *shape, AmError *error);

/* Builds the module by the reader of HLO text. The caller owns `*module`: ir_module_free(). */
AmStatus transformer_module(IrModule **module, const TransformerShape *shape, AmError *error);

#endif
