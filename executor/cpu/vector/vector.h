/* Loops over packed elements, compiled once for each set of vector instructions.
 *
 * The files of this folder are built for the oldest processors of the
 * architecture and, on x86-64, for its levels 3 (AVX2) and 4 (AVX-512);
 * VECTOR_SET names the set that a translation unit is for. All sets compute
 * the same operations in the same order without fused multiply-adds, so a
 * result does not depend on the processor. executor/cpu/vector/dispatch.c picks the
 * widest set that the processor has.
 */
#ifndef EXECUTOR_CPU_VECTOR_VECTOR_H
#define EXECUTOR_CPU_VECTOR_VECTOR_H

#include "executor/array/scalar64.h"
#include "executor/cpu/element.h"

/* Before a loop whose iterations are independent: its arrays are disjoint or equal. Other compilers
 * than gcc check the overlap of the arrays at run time. */
#if defined(__GNUC__) && !defined(__clang__)
#define VECTOR_INDEPENDENT _Pragma("GCC ivdep")
#else
#define VECTOR_INDEPENDENT
#endif

/* A reduction of elements of one type. Accumulators are `bytes` wide each:
 * sums and products of floating types are kept in double, those of integers in
 * 64 bits, maxima and minima as the elements are. */
typedef struct VectorFold {
    SbpReduction reduction;
    Dtype type;
    int64_t bytes;
    /* accumulators[i] = value, for i < count */
    void (*begin)(void *accumulators, const Scalar64 *value, int64_t count);
    /* accumulators[r] = accumulators[r] op row r, `stride` elements apart; the kernel, not the data, has the
     * order of the fold */
    void (*rows)(void *accumulators, const void *in, int64_t stride, int64_t rows, int64_t length);
    /* accumulators[j] = accumulators[j] op in[r*stride + j] for all rows r */
    void (*columns)(void *accumulators, const void *in, int64_t stride, int64_t rows, int64_t width);
    void (*finish)(Scalar64 *out, const void *accumulators, int64_t count);
} VectorFold;

typedef bool VectorRows(void *out, const void *in, int64_t element_bytes, int64_t stride, int64_t rows,
                        int64_t length);

/* Places of a line that one cell of a window reaches: `channels` neighbouring f32 at each, `step` elements
 * apart in the image and packed elsewhere. */
typedef struct VectorPlaces {
    int64_t count, step, channels;
} VectorPlaces;

typedef void VectorPoolFold(float *out, const float *in, const VectorPlaces *places);
/* If `chosen` is negative, or the best value so far is replaced, records the cell's number and
 * value. */
typedef void VectorPoolChoose(float *best, int32_t *chosen, const float *in, int32_t cell,
                              const VectorPlaces *places);
typedef struct VectorPool {
    VectorPoolFold *maximum, *minimum, *sum;          /* out = out op in */
    VectorPoolChoose *choose_at_least, *choose_above; /* keep the value that is >= or > the other */
    /* out += source where the cell was chosen */
    void (*add_chosen)(float *out, const int32_t *chosen, const float *source, int32_t cell,
                       const VectorPlaces *places);
} VectorPool;

typedef struct VectorLoops {
    const char *name; /* "x86-64-v4", ... */
    /* Return the loop of this processor for an operator and a type, or NULL; element.h has the loops of any
     * processor. */
    ElementLoop *(*floating)(IrOpcode opcode, Dtype type);
    ElementLoop *(*integer)(IrOpcode opcode, Dtype type);
    ElementLoop *(*compare)(const char *direction, bool total_order, Dtype type);
    ElementLoop *(*select)(Dtype type);
    ElementLoop *(*clamp)(Dtype type);
    ElementLoop *(*convert)(Dtype from, Dtype to);
    ElementLoop *round_bf16, *round_f16;
    const VectorFold *(*fold)(SbpReduction reduction, Dtype type);
    /* Row r of `length` elements repeats in[r*stride], and less than 64 bytes are written after the
     * last row; or copies the elements from in + r*stride on. False: unsupported size of elements. */
    VectorRows *spread_rows, *copy_rows;
    /* A copy past the caches; the end of a series of them makes them visible to other threads. */
    void (*stream)(void *out, const void *in, int64_t bytes);
    void (*stream_end)(void);
    const VectorPool *pool;
} VectorLoops;

/* Returns the set for this processor; set k, NULL where the processor lacks it or there are no more. */
const VectorLoops *vector_loops(void);
const VectorLoops *vector_loops_at(int32_t k);
enum { VECTOR_SETS = 3 };

/* Files that the build does not compile for a set, and tools that read a file alone, see the oldest one. */
#ifndef VECTOR_SET
#define VECTOR_SET baseline
#endif
#define VECTOR_PASTE(name, set)  name##_##set
#define VECTOR_EXPAND(name, set) VECTOR_PASTE(name, set)
#define VECTOR_NAME(name)        VECTOR_EXPAND(name, VECTOR_SET)

/* Returns the loops of this set of instructions, which VectorLoops lists; NULL: the set has none for the
 * type. */
ElementLoop *VECTOR_NAME(vector_floating)(IrOpcode opcode, Dtype type);
ElementLoop *VECTOR_NAME(vector_integer)(IrOpcode opcode, Dtype type);
ElementLoop *VECTOR_NAME(vector_compare)(const char *direction, bool total_order, Dtype type);
ElementLoop *VECTOR_NAME(vector_select)(Dtype type);
ElementLoop *VECTOR_NAME(vector_clamp)(Dtype type);
ElementLoop *VECTOR_NAME(vector_convert)(Dtype from, Dtype to);
ElementLoop VECTOR_NAME(vector_round_bf16), VECTOR_NAME(vector_round_f16);
const VectorFold *VECTOR_NAME(vector_fold)(SbpReduction reduction, Dtype type);
VectorRows VECTOR_NAME(vector_spread_rows), VECTOR_NAME(vector_copy_rows);
void VECTOR_NAME(vector_stream)(void *out, const void *in, int64_t bytes);
void VECTOR_NAME(vector_stream_end)(void);
extern const VectorPool VECTOR_NAME(vector_pool);

/* Every loop has these parameters, used or not. */
#define LOOP_ARGUMENTS                                                     \
    void *out, const void *a, const void *b, const void *c, int64_t count, \
        const ElementParameter *parameter, const ElementTile *tile
#define UNUSED_ARGUMENTS (void)a, (void)b, (void)c, (void)parameter, (void)tile

#endif
