/* Statements that compute values of a region for one element: the indices of its labels are in variables.
 *
 *     const u32 l0 = ..., l3 = ...;          indices, by the caller
 *     const f32 v0 = in2[l0 * 64u + l3];
 *     const f32 v1 = v0 * v4;
 *
 * Dimensions with one label are one index, so that broadcasts, reshapes and transposes take no statements.
 */
#ifndef EXECUTOR_CUDA_CODEGEN_ATTENTION_REGION_ELEMENT_H
#define EXECUTOR_CUDA_CODEGEN_ATTENTION_REGION_ELEMENT_H

#include "executor/cuda/codegen/attention/region_plan.h"

typedef struct RegionElement {
    const RegionPlan *plan;
    const Program *region; /* of the plan */
    Text *out;
    const char *index;  /* C type of indices */
    const char *scores; /* "[i * 4 + j]": the place of an element in the registers of score products
                           s0, s1, ... by instruction; NULL: the element has no scores */
    int32_t *slots;     /* [value]: v0, v1, ... or -1; cleared by region_element_begin() */
    Dtype *types;       /* [slot] */
    bool *needed;       /* [value] work space */
    int32_t count;
    bool failed; /* some operator has no expression */
} RegionElement;

/* Makes the work space. */
AmStatus region_element_open(RegionElement *self, Arena *arena, const RegionPlan *plan, Text *out,
                             const char *index, AmError *error);

/* Forgets the values of the last element. */
void region_element_begin(RegionElement *self, const char *scores);

/* Appends "const f32 v3 = EXPRESSION;", the value of the region of this type. */
void region_element_set(RegionElement *self, int32_t value, const char *expression);

/* Appends the statements of the values; their slots are set. */
void region_element_append(RegionElement *self, const int32_t *values, int32_t count);

/* Appends "l0 * 64u + l3": the place of an element of an array of the value's shape. */
void region_element_append_place(const RegionElement *self, int32_t value);

/* Appends "out2[PLACE] = bf16_store(v7);" for the value that is in a slot: to an output, or to a sum in the
 * scratch memory. */
void region_element_store_output(const RegionElement *self, int32_t output);
void region_element_store_sum(const RegionElement *self, const RegionSum *sum);

#endif
