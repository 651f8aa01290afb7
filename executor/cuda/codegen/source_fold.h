/* Folds: common code of every reduction by one operator (add, max, ...).
 *
 * A fold has results and, for each, elements to combine. It is described by the box of the results
 * and the box of the elements, each with strides in the operand, and by the C expression of an
 * element.
 */
#ifndef EXECUTOR_CUDA_CODEGEN_SOURCE_FOLD_H
#define EXECUTOR_CUDA_CODEGEN_SOURCE_FOLD_H

#include "executor/array/scalar64.h"
#include "executor/cuda/codegen/source_text.h"

enum { CUDA_FOLD_VALUES = 2 };

typedef struct CudaFold {
    int32_t kept_rank, reduced_rank;
    int64_t kept[IR_MAX_RANK], kept_strides[IR_MAX_RANK], results;
    int64_t reduced[IR_MAX_RANK], reduced_strides[IR_MAX_RANK], reduced_count; /* > 0 */
    SbpReduction reduction;
    Scalar64Kind kind;
    int32_t value_count; /* values folded side by side, 1 or 2 */
    /* Expressions of type Scalar64 for the element at offset "place" of result number "result". */
    const char *elements[CUDA_FOLD_VALUES];
    /* Set by cuda_fold_plan(). */
    const char *index, *suffix; /* C type of indices and suffix of its literals */
    int64_t columns, lanes;     /* of a block: results, and threads for each */
    bool by_columns;            /* neighbouring threads have neighbouring results, not elements of one */
    int64_t parts, part;        /* launches of their own fold `part` elements each; 1: there is one part */
    int64_t scratch_at;         /* of the parts, in units of 8 bytes */
} CudaFold;

/* Chooses blocks and parts from the boxes and joins dimensions; takes the scratch memory that the parts
 * want from `source`. To be called for all folds of a source before its first launch. */
void cuda_fold_plan(CudaFold *fold, CudaSource *source);

/* Launches the fold. `finish`: statements for one result, number "result", of the folded values,
 * "value0" and "value1" of type Scalar64. */
AmStatus cuda_fold_launch(CudaSource *source, const KernelCall *call, const CudaFold *fold, const char *kind,
                          const char *finish, AmError *error);

/* Appends the fold of rows "first" to "end" by the threads of a block, each result one row; `finish` as in
 * cuda_fold_launch(). The lanes meet in the shared array "lanes". A row has the same order of sums as in a
 * launch of one part. Returns false, and appends nothing, where neighbouring threads would have
 * neighbouring results. */
bool cuda_append_fold_rows(Text *out, CudaFold *fold, const char *finish);

/* Appends "a + b" for the fold's operator in its 64-bit type. */
void cuda_append_combination(Text *out, const CudaFold *fold, const char *a, const char *b);
/* Appends "k / 7u * 21u ...": for element `number` of a box the sum of its indices times the strides. */
void cuda_append_offset(Text *out, const char *number, const char *suffix, const int64_t *dimensions,
                        const int64_t *strides, int32_t rank);
/* Appends "(s8)value": a Scalar64 as the type in memory. */
void cuda_append_narrow(Text *out, Dtype type, Scalar64Kind kind, const char *value);

#endif
