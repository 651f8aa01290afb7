/* Attention regions with random operands, and the errors of their results. */
#ifndef TESTS_SUPPORT_ATTENTION_CASE_H
#define TESTS_SUPPORT_ATTENTION_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "bench/attention_regions.h"
#include "executor/array/scalar64.h"

static inline double attention_number(const void *memory, Dtype type, int64_t i) {
    Scalar64 value;
    scalar64_load(&value, (const char *)memory + i * dtype_bytes(type), type, 1, 1);
    return value.floating;
}

static inline void attention_set_number(void *memory, Dtype type, int64_t i, double number) {
    Scalar64 value = {.floating = number};
    scalar64_store((char *)memory + i * dtype_bytes(type), type, &value, SCALAR64_FLOATING, 1, 1);
}

static inline void attention_open(AttentionRegion *region, KernelDevice *device, const AttentionForm *form) {
    AmError error = {0};
    Text text = attention_text(form);
    if (attention_prepare(region, device, text.data, text.length, &error) != AM_OK)
        fail_msg("%s\n%s", error.text, text.data);
    text_free(&text);
}

/* Random numbers that bf16 represents, so that all types have the same inputs. */
static inline void attention_fill(AttentionRegion *region, int32_t k, uint64_t seed) {
    const IrShape *shape = attention_input(region, k);
    Random random;
    random_seed(&random, seed);
    /* Rows are seven positions after keys of the same number; a fifth of the weights is dropped. */
    for (int64_t i = 0; i < ir_shape_elements(shape) && shape->type == DTYPE_S32; i++)
        ((int32_t *)region->inputs[k])[i] =
            (int32_t)i + (attention_input(region, k - 1)->type == DTYPE_S32 ? 0 : 7);
    for (int64_t i = 0; i < ir_shape_elements(shape) && shape->type == DTYPE_PRED; i++)
        ((bool *)region->inputs[k])[i] = random_below(&random, 5) > 0;
    if (!dtype_is_floating(shape->type)) return;
    for (int64_t i = 0; i < ir_shape_elements(shape); i++)
        attention_set_number(region->inputs[k], shape->type, i, (double)random_below(&random, 33) / 16 - 1);
    /* A bias below masked scores: the first row then reads the masked keys. */
    for (int64_t i = 0; i < shape->dimensions[2] && k == 3 && shape->rank == 3; i++)
        attention_set_number(region->inputs[k], shape->type, i, -2e30);
}

/* Maxima and sums of rows for a backward region, from the forward one. */
static inline void attention_fill_rows(AttentionRegion *backward, KernelDevice *device,
                                       const AttentionForm *form) {
    AttentionRegion forward;
    AttentionForm of_forward = *form;
    AmError error = {0};
    int32_t own = attention_operands(form);
    of_forward.is_backward = false;
    attention_open(&forward, device, &of_forward);
    for (int32_t k = 0; k < own; k++) attention_fill(&forward, k, (uint64_t)k + 1);
    assert_int_equal(attention_run_plain(&forward, &error), AM_OK);
    for (int32_t k = 1; k < 3; k++)
        memcpy(backward->inputs[own + k], executable_output(forward.plain, k),
               (size_t)ir_shape_bytes(attention_output(&forward, k)));
    attention_free(&forward);
}

static inline void attention_load(AttentionRegion *region, KernelDevice *device, const AttentionForm *form) {
    int32_t own = attention_operands(form) + form->is_backward;
    AmError error = {0};
    attention_open(region, device, form);
    for (int32_t k = 0; k < own; k++) attention_fill(region, k, (uint64_t)k + 1);
    if (form->is_backward) attention_fill_rows(region, device, form);
    for (int32_t k = 0; k < region->output_count; k++)
        memset(region->outputs[k], 0x7f, (size_t)ir_shape_bytes(attention_output(region, k)));
    /* Scratch memory holds what earlier steps left there. */
    memset(region->scratch, 0xff, (size_t)region->blocked->scratch_bytes);
    assert_int_equal(attention_run_plain(region, &error), AM_OK);
    region->blocked->run(region->blocked);
}

/* Root mean squares of the differences from the exact output: of both executions. */
static inline void attention_find_errors(double errors[2], const AttentionRegion *region,
                                         const AttentionRegion *exact, int32_t k) {
    const IrShape *shape = attention_output(region, k), *wide = attention_output(exact, k);
    int64_t count = ir_shape_elements(shape);
    errors[0] = errors[1] = 0;
    for (int64_t i = 0; i < count; i++) {
        double right = attention_number(executable_output(exact->plain, k), wide->type, i);
        double plain = attention_number(executable_output(region->plain, k), shape->type, i) - right;
        double blocked = attention_number(region->outputs[k], shape->type, i) - right;
        errors[0] += plain * plain;
        errors[1] += blocked * blocked;
    }
    for (int32_t way = 0; way < 2; way++) errors[way] = sqrt(errors[way] / (double)count);
}

#endif
