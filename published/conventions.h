/* Properties of a training system that a table of runs rarely names, as options of a run.
 *
 * An option has the first of these values that exists: that of its column; that of a phrase of the note; the
 * usual one of the source; a default that follows from the type, ZeRO's level and the attention. No option
 * depends on a single row. docs/published.md lists them.
 */
#ifndef PUBLISHED_CONVENTIONS_H
#define PUBLISHED_CONVENTIONS_H

#include "published/runs.h"

typedef struct PublishedConventions {
    bool fuses_norms, fuses_softmax; /* one kernel each */
    bool is_eager;                   /* other operators of a layer are a kernel each */
    bool is_flash;                   /* fused attention */
    bool uses_flash_1;               /* by the kernels of FlashAttention 1 */
    bool has_dropout;
    bool has_f32_gradients;     /* gradients are added in f32, also over devices */
    bool has_f32_reductions;    /* gradients are added in f32 over devices */
    bool all_reduces_gradients; /* by an all-reduce, where ZeRO needs shards alone */
    bool keeps_outputs;         /* of the last stage, until a later micro-batch takes their place */
    bool gathers_logits;        /* over the tensor axis, in front of the loss */
    bool recomputes_head;       /* full recomputation includes the product of the logits */
    bool reads_lengths;         /* the host reads lengths of sequences in front of each attention */
    bool joins_loss;            /* the loss and its gradient are one kernel each */
    bool joins_products;        /* queries, keys and values are columns of one product */
    bool counts_tables; /* stages have equal numbers of modules, tables and the last norm among them */
    bool overlaps;      /* it computes while gradients are reduced and weights gathered */
} PublishedConventions;

/* Reads the conventions of a run. AM_ERROR_INPUT names a column with an unknown value. */
AmStatus published_conventions(PublishedConventions *conventions, const PublishedRun *run, AmError *error);

#endif
