/* All loops of one set of vector instructions. */
#include "executor/cpu/vector/vector.h"

extern const VectorLoops VECTOR_NAME(vector_loops);
const VectorLoops VECTOR_NAME(vector_loops) = {
    .name = VECTOR_TITLE,
    .floating = VECTOR_NAME(vector_floating),
    .integer = VECTOR_NAME(vector_integer),
    .compare = VECTOR_NAME(vector_compare),
    .select = VECTOR_NAME(vector_select),
    .clamp = VECTOR_NAME(vector_clamp),
    .convert = VECTOR_NAME(vector_convert),
    .round_bf16 = VECTOR_NAME(vector_round_bf16),
    .round_f16 = VECTOR_NAME(vector_round_f16),
    .fold = VECTOR_NAME(vector_fold),
    .spread_rows = VECTOR_NAME(vector_spread_rows),
    .copy_rows = VECTOR_NAME(vector_copy_rows),
    .stream = VECTOR_NAME(vector_stream),
    .stream_end = VECTOR_NAME(vector_stream_end),
    .pool = &VECTOR_NAME(vector_pool),
};
