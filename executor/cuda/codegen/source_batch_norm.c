/* Batch normalization: training, inference and gradient, by the formulas of
 * executor/cpu/reduce/batch_norm.c, in double. The scratch memory begins with two doubles per feature.
 *
 * The sums over a feature are folds (source_fold.h) whose last kernel also writes
 * what depends on the feature alone, to the results and, in double, to the
 * scratch memory; then one thread per element computes the array.
 */
#include <stdio.h>
#include <string.h>

#include "executor/array/strided.h"
#include "executor/batch_norm_form.h"
#include "executor/cuda/codegen/source_fold.h"

static AmStatus describe(BatchNormForm *self, const KernelCall *call, int32_t operands, uint32_t like_x,
                         int32_t results, AmError *error) {
    if (!cuda_has_arithmetic(call->operand_shapes[0]->type))
        return kernel_call_refuse(call, "not on this type", error);
    return batch_norm_form_read(self, call, operands, like_x, results, error);
}

/* Returns a sum over each feature; the expressions are filled in by the caller. */
static CudaFold new_fold(const BatchNormForm *self, int32_t value_count) {
    return (CudaFold){.kept_rank = 1,
                      .kept = {self->features},
                      .kept_strides = {self->inner},
                      .results = self->features,
                      .reduced_rank = 2,
                      .reduced = {self->outer, self->inner},
                      .reduced_strides = {self->features * self->inner, 1},
                      .reduced_count = self->outer * self->inner,
                      .reduction = SBP_ADD,
                      .kind = SCALAR64_FLOATING,
                      .value_count = value_count};
}

/* Appends a template with these names replaced:
 *
 *     $0 to $4   an element of an operand in double, at the place in brackets: "$1[result]"
 *     $=0 to 2   a store to a result: "$=1[result] = value;"
 *     $n, $f     the numbers of elements of a feature, and of features
 *     $e         epsilon
 */
static void expand(Text *out, const BatchNormForm *self, const char *template) {
    for (const char *c = template; *c; c++) {
        if (*c != '$') {
            text_append_bytes(out, c, 1);
            continue;
        }
        c++;
        if (*c == 'n') text_append(out, "%lld.0", (long long)(self->outer * self->inner));
        if (*c == 'f') text_append(out, "%lldll", (long long)self->features);
        if (*c == 'e') cuda_append_double(out, self->epsilon);
        if (*c >= '0' && *c <= '4') {
            char element[64];
            const char *end = strchr(c, ']') + 1;
            snprintf(element, sizeof element, "in%.*s", (int)(end - c), c);
            text_append_string(out, "(f64)");
            cuda_append_load(out, self->type, element);
            c = end - 1;
        }
        if (*c == '=') {
            const char *end = strchr(c, ']') + 1, *value = end + strlen(" = "), *last = strchr(value, ';');
            char expression[64];
            snprintf(expression, sizeof expression, "%.*s", (int)(last - value), value);
            text_append(out, "out%.*s = ", (int)(end - c - 1), c + 1);
            cuda_append_narrow(out, self->type, SCALAR64_FLOATING, expression);
            c = last - 1;
        }
    }
}

/* The texts of a fold over the elements of a feature: the terms of up to two sums, and the statements that
 * use the sums `value0` and `value1`. */
typedef struct FoldTexts {
    const char *terms[2]; /* NULL: no second sum */
    const char *finish;
} FoldTexts;

static AmStatus launch_fold(CudaSource *source, const KernelCall *call, const BatchNormForm *self,
                            CudaFold *fold, FoldTexts texts, AmError *error) {
    Text elements[2] = {{0}, {0}}, end = {0};
    for (int32_t k = 0; k < 2; k++) expand(&elements[k], self, texts.terms[k] ? texts.terms[k] : "0");
    expand(&end, self, texts.finish);
    for (int32_t k = 0; k < fold->value_count; k++) fold->elements[k] = elements[k].data;
    AmStatus status = elements[0].failed || elements[1].failed || end.failed
                          ? am_fail_memory(error, 1024)
                          : cuda_fold_launch(source, call, fold, "batch_norm_sum", end.data, error);
    for (int32_t k = 0; k < 2; k++) text_free(&elements[k]);
    text_free(&end);
    return status;
}

/* Launches one thread per element i of x, whose feature is `feature`. */
static AmStatus launch_elements(CudaSource *source, const KernelCall *call, const BatchNormForm *self,
                                const char *kind, const char *statements, AmError *error) {
    int64_t elements = ir_shape_elements(call->operand_shapes[0]);
    Text body = {0};
    cuda_append_signature(&body, call, source, "f64", false);
    cuda_append_guard(&body, elements);
    cuda_append_coordinate(&body, "feature", 0, elements, self->inner, self->features);
    expand(&body, self, statements);
    text_append_string(&body, "}\n");
    return cuda_source_launch(source, kind, &body, cuda_blocks(elements), CUDA_THREADS, error);
}

/* y = x * factor + term. */
static const char scale[] = "    const f64 y = $0[i] * scratch[feature0] + scratch[$f + feature0];\n"
                            "    $=0[i] = y;\n";

AmStatus cuda_source_batch_norm_training(CudaSource *source, const KernelCall *call, AmError *error) {
    BatchNormForm self;
    TRY(describe(&self, call, 3, 1, 3, error));
    if (self.features == 0) return AM_OK;
    if (self.outer * self.inner == 0) return kernel_call_refuse(call, "its features have no elements", error);
    CudaFold mean = new_fold(&self, 1), variance = new_fold(&self, 1);
    source->scratch_bytes = 16 * self.features;
    cuda_fold_plan(&mean, source);
    cuda_fold_plan(&variance, source);
    static const FoldTexts mean_texts = {.terms = {"$0[place]"},
                                         .finish = "    const f64 mean = value0 / $n;\n"
                                                   "    ((f64 *)scratch)[$f + result] = mean;\n"
                                                   "    $=1[result] = mean;\n"};
    static const FoldTexts variance_texts = {
        .terms = {"($0[place] - ((const f64 *)scratch)[$f + result]) * "
                  "($0[place] - ((const f64 *)scratch)[$f + result])"},
        .finish = "    const f64 mean = ((const f64 *)scratch)[$f + result], variance = value0 / $n;\n"
                  "    const f64 factor = $1[result] / sqrt(variance + $e);\n"
                  "    ((f64 *)scratch)[result] = factor;\n"
                  "    ((f64 *)scratch)[$f + result] = $2[result] - mean * factor;\n"
                  "    $=2[result] = variance;\n"};
    TRY(launch_fold(source, call, &self, &mean, mean_texts, error));
    TRY(launch_fold(source, call, &self, &variance, variance_texts, error));
    return launch_elements(source, call, &self, "batch_norm_scale", scale, error);
}

AmStatus cuda_source_batch_norm_inference(CudaSource *source, const KernelCall *call, AmError *error) {
    BatchNormForm self;
    TRY(describe(&self, call, 5, 1, 1, error));
    if (ir_shape_elements(call->operand_shapes[0]) == 0) return AM_OK;
    return launch_elements(source, call, &self, "batch_norm",
                           "    const f64 factor = $1[feature0] / sqrt($4[feature0] + $e);\n"
                           "    const f64 y = $0[i] * factor + ($2[feature0] - $3[feature0] * factor);\n"
                           "    $=0[i] = y;\n",
                           error);
}

AmStatus cuda_source_batch_norm_gradient(CudaSource *source, const KernelCall *call, AmError *error) {
    BatchNormForm self;
    TRY(describe(&self, call, 5, 1 | 1 << 4, 3, error));
    if (self.features == 0) return AM_OK;
    if (self.outer * self.inner == 0) return kernel_call_refuse(call, "its features have no elements", error);
    CudaFold sums = new_fold(&self, 2);
    source->scratch_bytes = 16 * self.features;
    cuda_fold_plan(&sums, source);
    static const FoldTexts texts = {.terms = {"$4[place]", "$4[place] * ($0[place] - $2[result])"},
                                    .finish = "    const f64 scale = value1 * (1 / sqrt($3[result] + $e));\n"
                                              "    ((f64 *)scratch)[result] = scale;\n"
                                              "    ((f64 *)scratch)[$f + result] = value0;\n"
                                              "    $=1[result] = scale;\n"
                                              "    $=2[result] = value0;\n"};
    TRY(launch_fold(source, call, &self, &sums, texts, error));
    return launch_elements(
        source, call, &self, "batch_norm_gradient",
        "    const f64 r = 1 / sqrt($3[feature0] + $e), normal = ($0[i] - $2[feature0]) * r;\n"
        "    const f64 y = $1[feature0] * r *\n"
        "                  ($4[i] - scratch[$f + feature0] / $n -\n"
        "                   normal * scratch[feature0] / $n);\n"
        "    $=0[i] = y;\n",
        error);
}
