/* The writer of a region's kernels: state that the kernels by tiles and those by elements share. */
#ifndef EXECUTOR_CUDA_CODEGEN_ATTENTION_REGION_WRITER_H
#define EXECUTOR_CUDA_CODEGEN_ATTENTION_REGION_WRITER_H

#include "executor/cuda/codegen/attention/region_element.h"

typedef struct RegionWriter {
    const RegionPlan *plan;
    const Program *region; /* of the plan */
    const KernelCall *call;
    Arena *arena;
    CudaSource *source;
    Text body;                           /* of the kernel at hand */
    RegionElement element;               /* writes to the body */
    const char *index, *suffix, *number; /* C types of indices and of products, suffix of index literals */
} RegionWriter;

/* Appends "const u32 l3 = NAME / 4u % 8u;" for the labels of a list, whose row-major number is in a
 * variable. */
void region_writer_append_labels(RegionWriter *self, const int32_t *list, int32_t count, const char *name);

/* Appends the rest of a sum's element, whose number is in the variable "sum": an initial value or an addend,
 * then everything that is stored. */
void region_writer_finish(RegionWriter *self, const RegionSum *sum);

/* Appends "greatest_of(A, B)" for the fold of a reduction; a dot adds. */
void region_writer_append_fold(RegionWriter *self, const RegionSum *sum, const char *a, const char *b);
/* Returns the number that a fold begins with, of type f64. */
const char *region_writer_identity(const RegionWriter *self, const RegionSum *sum);
/* Appends "(f64)v3 * (f64)v4": a summand, whose statements are there. */
void region_writer_append_summand(RegionWriter *self, const RegionSum *sum);

/* Writes the kernel of all sums that are alike (region_plan_alike()) with `first`. */
AmStatus region_writer_tiles(RegionWriter *self, const RegionSum *first, AmError *error);

/* Writes the kernel of one sum without tiles, or of an output that belongs to no sum. */
AmStatus region_writer_flat_sum(RegionWriter *self, const RegionSum *sum, AmError *error);
AmStatus region_writer_flat_output(RegionWriter *self, int32_t output, AmError *error);

#endif
