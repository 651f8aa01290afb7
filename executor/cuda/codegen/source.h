/* CUDA C text of generated kernels: every operator that is no matrix product, no
 * convolution and no control flow.
 *
 * One step of a lowered program is one or a few kernels, launched one after the
 * other on one stream. Shapes and strides are numbers in their text, so they
 * take little more than addresses. A kernel is named after the SHA-256 of its
 * text: equal steps share kernels, and the text of a program is the same on
 * every machine. The results are those of executor/cpu, with which tests compare
 * them: bf16 and f16 are computed in f32 and rounded after every operator,
 * reductions fold in f64 or in 64-bit integers, and results depend on shapes and
 * values alone. The generator needs neither a CUDA header nor a GPU.
 */
#ifndef EXECUTOR_CUDA_CODEGEN_SOURCE_H
#define EXECUTOR_CUDA_CODEGEN_SOURCE_H

#include "executor/kernels.h"

/* One launch of a kernel on a one-dimensional grid. */
typedef struct CudaLaunch {
    const char *name; /* of the kernel, an extern "C" function */
    const char *text; /* its definition, without the types and helpers that it uses */
    int64_t blocks;   /* > 0 */
    int32_t threads;  /* per block */
    bool numbered;    /* the kernel takes `number`, a 64-bit integer, as its last argument */
    bool copies;      /* operand 0 to result 0: skipped if both have the same address */
    int64_t number;
} CudaLaunch;

/* The kernels of a step. All take the same arguments, each of 8 bytes: the
 * addresses of the operands and of the results (`parameters` in all), then of
 * the scratch memory if there is some, then of the uploaded bytes if there are
 * some, then the launch's number if it has one.
 * Scratch memory belongs to the step while its launches run and is undefined
 * before. Scratch memory and `upload` are aligned to 64 bytes. The caller copies
 * `upload` to the device once, before the first launch, and keeps it there as long
 * as the kernels are used. Only a step of random numbers changes it: it counts its
 * runs there. */
typedef struct CudaSource {
    Arena *arena; /* of texts, names and the list of launches */
    CudaLaunch *launches;
    int32_t launch_count; /* 0: nothing to compute */
    int32_t launch_capacity;
    int32_t parameters;
    int64_t scratch_bytes;
    const void *upload; /* upload_bytes on the host, living as long as the program does */
    int64_t upload_bytes;
} CudaSource;

/* Returns whether cuda_source_make() has a kernel for this opcode (except for types). */
bool cuda_source_covers(IrOpcode opcode);

/* Creates the kernels of a call: a fusion, or an instruction that cuda_source_covers(). Texts and names live
 * in the arena. AM_ERROR_INPUT as kernel_refuse(). */
AmStatus cuda_source_make(CudaSource *source, Arena *arena, const KernelCall *call, AmError *error);

/* Writes the one kernel of a row group, whose steps have these calls. Argument k is `*(*slots)[k]`, an
 * operand or a result of one of them that is bound when the kernel is launched; the scratch memory follows.
 * AM_ERROR_INPUT: it has no such kernel. */
AmStatus cuda_source_rows(CudaSource *source, void ****slots, Arena *arena, KernelCall *const *calls,
                          AmError *error);

/* Writes one translation unit: types, the helpers that are used, then the kernels in the given order, equal
 * ones once. Compile it without contraction of products and sums (NVRTC: --fmad=false), or results differ
 * from the CPU's. */
AmStatus cuda_source_unit(const char **unit, Arena *arena, const CudaSource *sources, int32_t count,
                          AmError *error);

/* Writes the same kernels as several units that compile separately. `units` [*unit_count]: NULL if a unit is
 * empty. The hash of its name and the number of kernels select the unit of a kernel, on every machine alike.
 */
AmStatus cuda_source_units(const char ***units, int32_t *unit_count, Arena *arena, const CudaSource *sources,
                           int32_t count, AmError *error);
/* Returns the unit, of `count`, that holds the kernel of this name. */
int32_t cuda_source_unit_of(const char *name, int32_t count);

#endif
