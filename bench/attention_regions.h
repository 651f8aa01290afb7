/* Attention and its gradient as regions: HLO text of any size, and their execution instruction by instruction
 * and by blocks. Shared by bench_attention.c and the tests. */
#ifndef BENCH_ATTENTION_REGIONS_H
#define BENCH_ATTENTION_REGIONS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/text.h"
#include "executor/program/executable.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"

typedef struct AttentionForm {
    int32_t batch, heads, groups, rows, keys, width; /* query heads are heads * groups */
    const char *type;                                /* "f32", "f64", "bf16", "f16" */
    bool is_backward, is_causal, has_bias, has_cap;
    bool heads_first;   /* operands are [batch, heads, rows, width], else [batch, rows, heads, width] */
    bool has_positions; /* a causal mask compares vectors that are operands */
    bool has_drops;     /* the last operand marks the probabilities that are kept */
    int32_t window;     /* keys that a row sees under a causal mask; 0: all */
} AttentionForm;

/* Returns the operands of the forward region; those of the gradient follow. */
static inline int32_t attention_operands(const AttentionForm *form) {
    return 3 + form->has_bias + 2 * form->has_positions + form->has_drops;
}

enum { REGION_MOST_ARRAYS = 12 };

/* A region and its two executions. */
typedef struct AttentionRegion {
    Arena arena;
    IrModule *module, *canonical;
    Program *region, wrapper;
    ProgramInstruction fusion;
    KernelDevice *device;
    Executable *plain;
    KernelCall *blocked;
    char *plain_memory, *scratch;
    int32_t input_count, output_count;
    void *inputs[REGION_MOST_ARRAYS], *outputs[REGION_MOST_ARRAYS];
} AttentionRegion;

/* Appends "name = type[dims] ", with the dimensions of scores, of rows, of queries or of keys. */
static inline void attention_declare(Text *text, const AttentionForm *form, const char *name,
                                     const char *type, char kind) {
    const char *groups = "";
    char number[16];
    if (form->groups > 1) {
        snprintf(number, sizeof number, ",%d", form->groups);
        groups = number;
    }
    text_append(text, " %s = %s[%d,", name, type, form->batch);
    if (kind == 's') text_append(text, "%d,%d%s,%d] ", form->heads, form->rows, groups, form->keys);
    if (kind == 'r') text_append(text, "%d,%d%s] ", form->heads, form->rows, groups);
    if (kind == 'o') text_append(text, "%d,%d%s,%d] ", form->heads, form->rows, groups, form->width);
    if (kind == 'g') text_append(text, "%d,%d,%d] ", form->heads, form->keys, form->width);
    if (kind == 'q' && form->heads_first)
        text_append(text, "%d,%d,%d] ", form->heads * form->groups, form->rows, form->width);
    if (kind == 'q' && !form->heads_first)
        text_append(text, "%d,%d,%d] ", form->rows, form->heads * form->groups, form->width);
    if (kind == 'k' && form->heads_first)
        text_append(text, "%d,%d,%d] ", form->heads, form->keys, form->width);
    if (kind == 'k' && !form->heads_first)
        text_append(text, "%d,%d,%d] ", form->keys, form->heads, form->width);
}

/* Queries with a dimension of their own for groups: [batch, heads, groups, rows, width] or
 * [batch, rows, heads, groups, width]. */
static inline void attention_divide_queries(Text *text, const AttentionForm *form, const char *name,
                                            const char *from) {
    int32_t rows = form->rows, heads = form->heads;
    if (form->heads_first)
        text_append(text, " %s = %s[%d,%d,%d,%d,%d] reshape(%s)\n", name, form->type, form->batch, heads,
                    form->groups, rows, form->width, from);
    else
        text_append(text, " %s = %s[%d,%d,%d,%d,%d] reshape(%s)\n", name, form->type, form->batch, rows,
                    heads, form->groups, form->width, from);
}

/* Emits a product of queries and keys, or of the gradient and values: scores. */
static inline void attention_scores(Text *text, const AttentionForm *form, const char *name,
                                    const char *queries, const char *keys) {
    bool groups = form->groups > 1;
    if (!groups) {
        int32_t head = form->heads_first ? 1 : 2;
        attention_declare(text, form, name, form->type, 's');
        text_append(text,
                    "dot(%s, %s), lhs_batch_dims={0,%d}, rhs_batch_dims={0,%d}, lhs_contracting_dims={3}, "
                    "rhs_contracting_dims={3}\n",
                    queries, keys, head, head);
        return;
    }
    if (!form->heads_first) {
        attention_declare(text, form, name, form->type, 's');
        text_append(text,
                    "dot(%s, %s), lhs_batch_dims={0,2}, rhs_batch_dims={0,2}, lhs_contracting_dims={4}, "
                    "rhs_contracting_dims={3}\n",
                    queries, keys);
        return;
    }
    text_append(text,
                " %s_t = %s[%d,%d,%d,%d,%d] dot(%s, %s), lhs_batch_dims={0,1}, rhs_batch_dims={0,1}, "
                "lhs_contracting_dims={4}, rhs_contracting_dims={3}\n",
                name, form->type, form->batch, form->heads, form->groups, form->rows, form->keys, queries,
                keys);
    attention_declare(text, form, name, form->type, 's');
    text_append(text, "transpose(%s_t), dimensions={0,1,3,2,4}\n", name);
}

static inline void attention_broadcast(Text *text, const AttentionForm *form, const char *name,
                                       const char *type, const char *from, bool is_row) {
    attention_declare(text, form, name, type, 's');
    text_append(text, "broadcast(%s), dimensions={%s}\n", from,
                !is_row            ? ""
                : form->groups > 1 ? "0,1,2,3"
                                   : "0,1,2");
}

/* Emits masked, capped, biased scores as `wide` (f32 or f64). */
static inline void attention_masked(Text *text, const AttentionForm *form, const char *wide) {
    attention_scores(text, form, "s0", form->groups > 1 ? "q5" : "q", "k");
    attention_declare(text, form, "s1", wide, 's');
    text_append(text, "convert(s0)\n c_scale = %s[] constant(0.125)\n", wide);
    attention_broadcast(text, form, "b_scale", wide, "c_scale", false);
    attention_declare(text, form, "s2", wide, 's');
    text_append_string(text, "multiply(s1, b_scale)\n");
    const char *last = "s2";
    if (form->has_cap) {
        text_append(text, " c_cap = %s[] constant(2.5)\n", wide);
        attention_broadcast(text, form, "b_cap", wide, "c_cap", false);
        attention_declare(text, form, "s3", wide, 's');
        text_append_string(text, "divide(s2, b_cap)\n");
        attention_declare(text, form, "tanh", wide, 's');
        text_append_string(text, "tanh(s3)\n");
        attention_declare(text, form, "s4", wide, 's');
        text_append_string(text, "multiply(tanh, b_cap)\n");
        last = "s4";
    }
    if (form->has_bias) {
        attention_declare(text, form, "b_bias", wide, 's');
        text_append(text, "broadcast(bias), dimensions={1,2,%d}\n", form->groups > 1 ? 4 : 3);
        attention_declare(text, form, "s5", wide, 's');
        text_append(text, "add(%s, b_bias)\n", last);
        last = "s5";
    }
    if (form->is_causal) {
        if (!form->has_positions)
            text_append(
                text,
                " i_row = s32[%d] iota(), iota_dimension=0\n i_key = s32[%d] iota(), iota_dimension=0\n",
                form->rows, form->keys);
        attention_declare(text, form, "b_row", "s32", 's');
        text_append_string(text, "broadcast(i_row), dimensions={2}\n");
        attention_declare(text, form, "b_key", "s32", 's');
        text_append(text, "broadcast(i_key), dimensions={%d}\n", form->groups > 1 ? 4 : 3);
        attention_declare(text, form, form->window ? "causal" : "mask", "pred", 's');
        text_append(text, "compare(b_row, b_key), direction=GE\n c_low = %s[] constant(-1e30)\n", wide);
        if (form->window > 0) {
            text_append(text, " c_window = s32[] constant(%d)\n", form->window);
            attention_broadcast(text, form, "b_window", "s32", "c_window", false);
            attention_declare(text, form, "distance", "s32", 's');
            text_append_string(text, "subtract(b_row, b_key)\n");
            attention_declare(text, form, "near", "pred", 's');
            text_append_string(text, "compare(distance, b_window), direction=LT\n");
            attention_declare(text, form, "mask", "pred", 's');
            text_append_string(text, "and(causal, near)\n");
        }
        attention_broadcast(text, form, "b_low", wide, "c_low", false);
        attention_declare(text, form, "masked", wide, 's');
        text_append(text, "select(mask, %s, b_low)\n", last);
        return;
    }
    attention_declare(text, form, "masked", wide, 's');
    text_append(text, "copy(%s)\n", last);
}

/* Appends the scaled elements of `from` that are kept, and zeros. */
static inline void attention_drop(Text *text, const AttentionForm *form, const char *name, const char *from,
                                  const char *wide) {
    char scaled[32];
    snprintf(scaled, sizeof scaled, "%s_scaled", name);
    attention_declare(text, form, scaled, wide, 's');
    text_append(text, "multiply(%s, b_kept)\n", from);
    attention_declare(text, form, name, wide, 's');
    text_append(text, "select(drops, %s, b_none)\n", scaled);
}

/* Probabilities from the row maximum and sum; `p` in the operands' type. */
static inline void attention_probabilities(Text *text, const AttentionForm *form, const char *wide) {
    attention_broadcast(text, form, "b_max", wide, "max", true);
    attention_declare(text, form, "shifted", wide, 's');
    text_append_string(text, "subtract(masked, b_max)\n");
    attention_declare(text, form, "e", wide, 's');
    text_append_string(text, "exponential(shifted)\n");
    if (!form->is_backward) {
        attention_declare(text, form, "sum", wide, 'r');
        text_append(text, "reduce(e, zero), dimensions={%d}, to_apply=plus\n", form->groups > 1 ? 4 : 3);
    }
    attention_broadcast(text, form, "b_sum", wide, "sum", true);
    attention_declare(text, form, "p_wide", wide, 's');
    text_append_string(text, "divide(e, b_sum)\n");
    if (form->has_drops) {
        text_append(text, " c_kept = %s[] constant(1.25)\n", wide);
        attention_broadcast(text, form, "b_kept", wide, "c_kept", false);
        attention_broadcast(text, form, "b_none", wide, "zero", false);
        attention_drop(text, form, "p_left", "p_wide", wide);
    }
    attention_declare(text, form, "p", form->type, 's');
    text_append(text, "convert(%s)\n", form->has_drops ? "p_left" : "p_wide");
}

static inline void attention_gradients(Text *text, const AttentionForm *form, const char *wide) {
    bool groups = form->groups > 1;
    int32_t head = form->heads_first ? 1 : 2, last = groups ? 4 : 3;
    const char *queries = groups ? "q5" : "q", *gradient = groups ? "do5" : "do";
    const char *summed = !groups ? "2" : "2,3", *of_queries = form->heads_first ? (groups ? "3,2" : "2")
                                                              : groups          ? "1,3"
                                                                                : "1";
    attention_scores(text, form, "dp0", gradient, "v");
    attention_declare(text, form, "dv", form->type, 'g');
    text_append(text,
                "dot(p, %s), lhs_batch_dims={0,1}, rhs_batch_dims={0,%d}, lhs_contracting_dims={%s}, "
                "rhs_contracting_dims={%s}\n",
                gradient, head, summed, of_queries);
    attention_declare(text, form, form->has_drops ? "dp1" : "dp", wide, 's');
    text_append_string(text, "convert(dp0)\n");
    if (form->has_drops) attention_drop(text, form, "dp", "dp1", wide);
    attention_declare(text, form, "dpp", wide, 's');
    text_append_string(text, "multiply(dp, p_wide)\n");
    attention_declare(text, form, "delta", wide, 'r');
    text_append(text, "reduce(dpp, zero), dimensions={%d}, to_apply=plus\n", last);
    attention_broadcast(text, form, "b_delta", wide, "delta", true);
    attention_declare(text, form, "dpd", wide, 's');
    text_append_string(text, "subtract(dp, b_delta)\n");
    attention_declare(text, form, "ds0", wide, 's');
    text_append_string(text, "multiply(dpd, p_wide)\n");
    const char *at = "ds0";
    if (form->is_causal) {
        attention_broadcast(text, form, "b_zero", wide, "zero", false);
        attention_declare(text, form, "ds1", wide, 's');
        text_append_string(text, "select(mask, ds0, b_zero)\n");
        at = "ds1";
    }
    if (form->has_bias)
        text_append(text, " dbias = %s[%d,%d,%d] reduce(%s, zero), dimensions={%s}, to_apply=plus\n", wide,
                    form->heads, form->rows, form->keys, at, groups ? "0,3" : "0");
    if (form->has_cap) {
        attention_declare(text, form, "square", wide, 's');
        text_append_string(text, "multiply(tanh, tanh)\n");
        text_append(text, " c_one = %s[] constant(1)\n", wide);
        attention_broadcast(text, form, "b_one", wide, "c_one", false);
        attention_declare(text, form, "slope", wide, 's');
        text_append_string(text, "subtract(b_one, square)\n");
        attention_declare(text, form, "ds2", wide, 's');
        text_append(text, "multiply(%s, slope)\n", at);
        at = "ds2";
    }
    attention_declare(text, form, "ds3", wide, 's');
    text_append(text, "multiply(%s, b_scale)\n", at);
    attention_declare(text, form, "ds", form->type, 's');
    text_append_string(text, "convert(ds3)\n");
    attention_declare(text, form, "dq", form->type, 'o');
    text_append(text,
                "dot(ds, k), lhs_batch_dims={0,1}, rhs_batch_dims={0,%d}, lhs_contracting_dims={%d}, "
                "rhs_contracting_dims={%d}\n",
                head, last, form->heads_first ? 2 : 1);
    attention_declare(text, form, "dk", form->type, 'g');
    text_append(text,
                "dot(ds, %s), lhs_batch_dims={0,1}, rhs_batch_dims={0,%d}, lhs_contracting_dims={%s}, "
                "rhs_contracting_dims={%s}\n",
                queries, head, summed, of_queries);
}

/* Returns the text of a module whose entry is the region. The caller releases it. */
static inline Text attention_text(const AttentionForm *form) {
    Text text = {0};
    const char *wide = strcmp(form->type, "f64") == 0 ? "f64" : "f32";
    int32_t number = 3;
    text_append(
        &text,
        "HloModule m\n\nplus {\n x = %s[] parameter(0)\n y = %s[] parameter(1)\n ROOT z = %s[] add(x, "
        "y)\n}\n\nlarger {\n x = %s[] parameter(0)\n y = %s[] parameter(1)\n ROOT z = %s[] maximum(x, "
        "y)\n}\n\nENTRY region {\n",
        wide, wide, wide, wide, wide, wide);
    attention_declare(&text, form, "q", form->type, 'q');
    text_append_string(&text, "parameter(0)\n");
    attention_declare(&text, form, "k", form->type, 'k');
    text_append_string(&text, "parameter(1)\n");
    attention_declare(&text, form, "v", form->type, 'k');
    text_append_string(&text, "parameter(2)\n");
    if (form->has_bias)
        text_append(&text, " bias = %s[%d,%d,%d] parameter(%d)\n", wide, form->heads, form->rows, form->keys,
                    number++);
    if (form->has_positions) {
        text_append(&text, " i_row = s32[%d] parameter(%d)\n", form->rows, number++);
        text_append(&text, " i_key = s32[%d] parameter(%d)\n", form->keys, number++);
    }
    if (form->has_drops) {
        attention_declare(&text, form, "drops", "pred", 's');
        text_append(&text, "parameter(%d)\n", number++);
    }
    if (form->is_backward) {
        attention_declare(&text, form, "do", form->type, 'q');
        text_append(&text, "parameter(%d)\n", number++);
        attention_declare(&text, form, "max", wide, 'r');
        text_append(&text, "parameter(%d)\n", number++);
        attention_declare(&text, form, "sum", wide, 'r');
        text_append(&text, "parameter(%d)\n", number++);
    }
    text_append(&text, " zero = %s[] constant(0)\n least = %s[] constant(-inf)\n", wide, wide);
    if (form->groups > 1) attention_divide_queries(&text, form, "q5", "q");
    if (form->groups > 1 && form->is_backward) attention_divide_queries(&text, form, "do5", "do");
    attention_masked(&text, form, wide);
    if (!form->is_backward) {
        attention_declare(&text, form, "max", wide, 'r');
        text_append(&text, "reduce(masked, least), dimensions={%d}, to_apply=larger\n",
                    form->groups > 1 ? 4 : 3);
    }
    attention_probabilities(&text, form, wide);
    if (form->is_backward) attention_gradients(&text, form, wide);
    else {
        attention_declare(&text, form, "out", form->type, 'o');
        text_append(&text,
                    "dot(p, v), lhs_batch_dims={0,1}, rhs_batch_dims={0,%d}, lhs_contracting_dims={%d}, "
                    "rhs_contracting_dims={%d}\n",
                    form->heads_first ? 1 : 2, form->groups > 1 ? 4 : 3, form->heads_first ? 2 : 1);
    }
    text_append_string(&text, " ROOT result = (");
    Text types = {0};
    const char *outputs = !form->is_backward ? "out, max, sum"
                          : form->has_bias   ? "dq, dk, dv, dbias"
                                             : "dq, dk, dv";
    attention_declare(&types, form, "", form->type, 'o');
    if (!form->is_backward) {
        attention_declare(&types, form, ",", wide, 'r');
        attention_declare(&types, form, ",", wide, 'r');
    } else {
        attention_declare(&types, form, ",", form->type, 'g');
        attention_declare(&types, form, ",", form->type, 'g');
        if (form->has_bias)
            text_append(&types, " , = %s[%d,%d,%d]", wide, form->heads, form->rows, form->keys);
    }
    for (size_t k = 0; k < types.length; k++)
        if (types.data[k] != '=' && types.data[k] != ' ') text_append(&text, "%c", types.data[k]);
    text_append(&text, ") tuple(%s)\n}\n", outputs);
    text_free(&types);
    return text;
}

static inline void attention_free(AttentionRegion *self) {
    if (self->plain_memory) self->device->back_end->release(self->device, self->plain_memory);
    free(self->scratch);
    arena_free(&self->arena);
    ir_module_free(self->canonical);
    ir_module_free(self->module);
}

/* Prepares both executions on the device, with zeroed arrays. attention_free() releases them, after a failure
 * too. */
static inline AmStatus attention_prepare(AttentionRegion *self, KernelDevice *device, const char *text,
                                         size_t length, AmError *error) {
    *self = (AttentionRegion){.device = device};
    TRY(ir_read_bytes(&self->module, "region", text, length, error));
    TRY(ir_canonicalize(&self->canonical, self->module, error));
    TRY(program_from_computation(&self->region, &self->arena, self->canonical, self->canonical->entry, false,
                                 error));
    const Program *region = self->region;
    self->input_count = region->roles->parameter_count;
    self->output_count = region->roles->output_count;
    int32_t count = self->input_count + self->output_count,
            *operands = ARENA_ARRAY(&self->arena, int32_t, count);
    static const IrAttributes nothing;
    if (!operands || self->input_count > REGION_MOST_ARRAYS || self->output_count > REGION_MOST_ARRAYS)
        return am_fail_memory(error, count);
    self->wrapper = (Program){.arena = &self->arena,
                              .module = self->canonical,
                              .values = ARENA_ARRAY(&self->arena, ProgramValue, count),
                              .instructions = &self->fusion,
                              .value_count = count,
                              .instruction_count = 1};
    if (!self->wrapper.values) return am_fail_memory(error, count * 64);
    for (int32_t k = 0; k < count; k++) {
        int32_t inner =
            k < self->input_count ? region->parameters[k] : region->outputs[k - self->input_count];
        operands[k] = k;
        self->wrapper.values[k] = (ProgramValue){.shape = region->values[inner].shape, .storage = k};
        void *memory = arena_alloc(&self->arena, (size_t)ir_shape_bytes(&region->values[inner].shape) + 1);
        if (!memory) return am_fail_memory(error, ir_shape_bytes(&region->values[inner].shape));
        if (k < self->input_count) self->inputs[k] = memory;
        else self->outputs[k - self->input_count] = memory;
    }
    self->fusion = (ProgramInstruction){.kind = PROGRAM_COMPUTE,
                                        .opcode = IR_FUSION,
                                        .origin = -1,
                                        .operand_count = self->input_count,
                                        .result_count = self->output_count,
                                        .operands = operands,
                                        .first_result = self->input_count,
                                        .attributes = &nothing,
                                        .compute.called = -1,
                                        .compute.called_second = -1,
                                        .regions.count = 1,
                                        .regions.programs = &self->region};
    TRY(executable_prepare(&self->plain, &self->arena, device, NULL, self->region, false, error));
    TRY(executable_allocate(self->plain, &self->plain_memory, NULL, error));
    ProgramStep step = {.instruction = 0, .fusion = -1};
    TRY(kernel_prepare(&self->blocked, &self->arena, device, &self->wrapper, &step, error));
    for (int32_t k = 0; k < self->input_count; k++) self->blocked->operands[k] = self->inputs[k];
    for (int32_t k = 0; k < self->output_count; k++) self->blocked->results[k] = self->outputs[k];
    self->scratch = aligned_alloc(64, (size_t)kernel_align(self->blocked->scratch_bytes + 1));
    self->blocked->scratch = self->scratch;
    return self->scratch ? AM_OK : am_fail_memory(error, self->blocked->scratch_bytes);
}

static inline const IrShape *attention_input(const AttentionRegion *self, int32_t k) {
    return &self->region->values[self->region->parameters[k]].shape;
}

static inline const IrShape *attention_output(const AttentionRegion *self, int32_t k) {
    return &self->region->values[self->region->outputs[k]].shape;
}

/* Runs instruction by instruction, on the same inputs. */
static inline AmStatus attention_run_plain(AttentionRegion *self, AmError *error) {
    for (int32_t k = 0; k < self->input_count; k++)
        memcpy(executable_parameter(self->plain, k), self->inputs[k],
               (size_t)ir_shape_bytes(attention_input(self, k)));
    return executable_issue(self->plain, error);
}

#endif
