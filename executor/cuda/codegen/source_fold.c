/* Folds in lanes: a block is a table of results (columns) by lanes.
 *
 * Every lane folds its share of the elements of its result, then the lanes are
 * folded in shared memory, halving each time. If neighbouring results are
 * neighbours in memory, neighbouring threads have neighbouring results; else they
 * have neighbouring elements of one result. If the results alone would not fill
 * the device, the elements are cut in parts: the fold of each part goes to the
 * scratch memory, and a second kernel folds these. Folding is in f64 or in 64-bit
 * integers as on the CPU, in an order that depends on the shapes alone.
 */
#include "executor/cuda/codegen/source_fold.h"

#include <stdio.h>

#include "executor/array/strided.h"

enum {
    MOST_COLUMNS = 32,
    LANE_ELEMENTS = 4,   /* least number per lane that pays for more lanes */
    MORE_ELEMENTS = 16,  /* the same number where results fill the device */
    PART_ELEMENTS = 8,   /* least number per lane that pays for more parts */
    ENOUGH_BLOCKS = 512, /* that fill a large device */
};

static const char *const scalar64_types[] = {
    [SCALAR64_FLOATING] = "f64", [SCALAR64_SIGNED] = "s64", [SCALAR64_UNSIGNED] = "u64"};

/* $1 op $2 and its neutral element in the 64-bit type. Sums and products of integers wrap. */
static const struct {
    SbpReduction reduction;
    Scalar64Kind kind;
    const char *expression, *neutral;
} operators[] = {
    {SBP_ADD, SCALAR64_FLOATING, "$1 + $2", "-0.0"},
    {SBP_ADD, SCALAR64_SIGNED, "(Scalar64)((u64)$1 + (u64)$2)", "0"},
    {SBP_ADD, SCALAR64_UNSIGNED, "$1 + $2", "0"},
    {SBP_MULTIPLY, SCALAR64_FLOATING, "$1 * $2", "1"},
    {SBP_MULTIPLY, SCALAR64_SIGNED, "(Scalar64)((u64)$1 * (u64)$2)", "1"},
    {SBP_MULTIPLY, SCALAR64_UNSIGNED, "$1 * $2", "1"},
    {SBP_MAX, SCALAR64_FLOATING, "greatest_of($1, $2)", "bits_as<f64>(0xfff0000000000000ull)"},
    {SBP_MAX, SCALAR64_SIGNED, "greatest_of($1, $2)", "-9223372036854775807ll - 1"},
    {SBP_MAX, SCALAR64_UNSIGNED, "greatest_of($1, $2)", "0"},
    {SBP_MIN, SCALAR64_FLOATING, "least_of($1, $2)", "bits_as<f64>(0x7ff0000000000000ull)"},
    {SBP_MIN, SCALAR64_SIGNED, "least_of($1, $2)", "9223372036854775807ll"},
    {SBP_MIN, SCALAR64_UNSIGNED, "least_of($1, $2)", "~0ull"},
    {SBP_AND, SCALAR64_FLOATING, "(Scalar64)($1 != 0 && $2 != 0)", "1"},
    {SBP_AND, SCALAR64_SIGNED, "$1 & $2", "-1"},
    {SBP_AND, SCALAR64_UNSIGNED, "$1 & $2", "~0ull"},
    {SBP_OR, SCALAR64_FLOATING, "(Scalar64)($1 != 0 || $2 != 0)", "0"},
    {SBP_OR, SCALAR64_SIGNED, "$1 | $2", "0"},
    {SBP_OR, SCALAR64_UNSIGNED, "$1 | $2", "0"},
};

/* Returns the C type of one of the three kinds. */
static const char *scalar64_type(Scalar64Kind kind) {
    return scalar64_types[kind];
}

static size_t operator_row(const CudaFold *fold) {
    size_t k = 0;
    while (operators[k].reduction != fold->reduction || operators[k].kind != fold->kind) k++;
    return k;
}

void cuda_append_combination(Text *out, const CudaFold *fold, const char *a, const char *b) {
    for (const char *c = operators[operator_row(fold)].expression; *c; c++) {
        if (*c != '$') text_append_bytes(out, c, 1);
        else text_append_string(out, *++c == '1' ? a : b);
    }
}

void cuda_append_narrow(Text *out, Dtype type, Scalar64Kind kind, const char *value) {
    static const Dtype types[] = {
        [SCALAR64_FLOATING] = DTYPE_F64, [SCALAR64_SIGNED] = DTYPE_S64, [SCALAR64_UNSIGNED] = DTYPE_U64};
    Text converted = {0};
    cuda_append_convert(&converted, types[kind], type, value);
    cuda_append_store(out, type, converted.failed ? "" : converted.data);
    out->failed = out->failed || converted.failed;
    text_free(&converted);
}

void cuda_append_offset(Text *out, const char *number, const char *suffix, const int64_t *dimensions,
                        const int64_t *strides, int32_t rank) {
    int64_t inner = strided_elements(dimensions, rank);
    if (rank == 0) text_append_string(out, "0");
    for (int32_t d = 0; d < rank; d++) {
        inner /= dimensions[d] > 0 ? dimensions[d] : 1; /* 0: the text is never run */
        text_append(out, "%s%s", d > 0 ? " + " : "", number);
        if (inner != 1) text_append(out, " / %lld%s", (long long)inner, suffix);
        if (d > 0) text_append(out, " %% %lld%s", (long long)dimensions[d], suffix);
        if (strides[d] != 1) text_append(out, " * %lld%s", (long long)strides[d], suffix);
    }
}

static int64_t power_of_two(int64_t at_least, int64_t most) {
    int64_t power = 1;
    while (power < at_least && power < most) power *= 2;
    return power;
}

static int64_t blocks_of(const CudaFold *fold) {
    return fold->results / fold->columns + (fold->results % fold->columns > 0);
}

static void choose_block(CudaFold *fold) {
    int32_t inner = fold->kept_rank - 1;
    fold->by_columns = fold->kept_rank > 0 && fold->kept_strides[inner] == 1;
    if (fold->by_columns) {
        fold->columns = power_of_two(fold->kept[inner], MOST_COLUMNS);
        fold->lanes = CUDA_THREADS / fold->columns;
    } else {
        int64_t enough = fold->results * fold->reduced_count / MORE_ELEMENTS / CUDA_THREADS > ENOUGH_BLOCKS
                             ? MORE_ELEMENTS
                             : LANE_ELEMENTS;
        fold->lanes = power_of_two((fold->reduced_count + enough - 1) / enough, CUDA_THREADS);
        fold->columns = CUDA_THREADS / fold->lanes;
    }
}

void cuda_fold_plan(CudaFold *fold, CudaSource *source) {
    int64_t elements = fold->results * fold->reduced_count;
    fold->kept_rank = strided_coalesce(fold->kept, fold->kept_strides, NULL, fold->kept_rank);
    fold->reduced_rank = strided_coalesce(fold->reduced, fold->reduced_strides, NULL, fold->reduced_rank);
    bool narrow = elements < INT32_MAX - CUDA_THREADS * (int64_t)MOST_COLUMNS;
    fold->index = narrow ? "u32" : "s64";
    fold->suffix = narrow ? "u" : "ll";
    choose_block(fold);
    int64_t blocks = blocks_of(fold), parts = blocks > 0 ? ENOUGH_BLOCKS / blocks : 1;
    if (parts > fold->reduced_count / (fold->lanes * PART_ELEMENTS))
        parts = fold->reduced_count / (fold->lanes * PART_ELEMENTS);
    if (parts < 1) parts = 1;
    fold->part = (fold->reduced_count + parts - 1) / parts;
    fold->parts = fold->reduced_count / fold->part + (fold->reduced_count % fold->part > 0);
    fold->scratch_at = source->scratch_bytes / 8;
    if (fold->parts > 1) source->scratch_bytes += 8 * fold->parts * fold->results * fold->value_count;
}

/* Appends "value0 = value0 + OTHER0;" for every value; "value" and `other` are numbered by SUFFIX after
 * them. */
static void append_combinations(Text *out, const CudaFold *fold, const char *indent, const char *target,
                                const char *target_at, const char *other, const char *other_at) {
    for (int32_t k = 0; k < fold->value_count; k++) {
        char a[48], b[48];
        snprintf(a, sizeof a, "%s%d%s", target, k, target_at);
        snprintf(b, sizeof b, "%s%d%s", other, k, other_at);
        text_append(out, "%s%s = ", indent, a);
        cuda_append_combination(out, fold, a, b);
        text_append_string(out, ";\n");
    }
}

/* Appends the fold of a lane's share of the elements of a result below `end`. */
static void append_share(Text *out, const CudaFold *fold, const char *end) {
    const char *suffix = fold->suffix;
    text_append(out, "    if (result < %s) {\n        const %s base = ", end, fold->index);
    cuda_append_offset(out, "result", suffix, fold->kept, fold->kept_strides, fold->kept_rank);
    text_append_string(out, ";\n");
    if (fold->parts > 1)
        text_append(out, "        const %s first = part * %lld%s, end = least_of(first + %lld%s, %lld%s);\n",
                    fold->index, (long long)fold->part, suffix, (long long)fold->part, suffix,
                    (long long)fold->reduced_count, suffix);
    text_append(out, "        for (%s k = %slane; k < ", fold->index, fold->parts > 1 ? "first + " : "");
    if (fold->parts > 1) text_append_string(out, "end");
    else text_append(out, "%lld%s", (long long)fold->reduced_count, suffix);
    text_append(out, "; k += %lld) {\n            const %s place = base + ", (long long)fold->lanes,
                fold->index);
    cuda_append_offset(out, "k", suffix, fold->reduced, fold->reduced_strides, fold->reduced_rank);
    text_append_string(out, ";\n");
    for (int32_t k = 0; k < fold->value_count; k++)
        text_append(out, "            const Scalar64 next%d = %s;\n", k, fold->elements[k]);
    append_combinations(out, fold, "            ", "value", "", "next", "");
    text_append_string(out, "        }\n    }\n");
}

/* Appends the fold of the lanes, in the first lane of each result. */
static void append_lanes(Text *out, const CudaFold *fold) {
    char other[48];
    long long stride = (long long)(fold->by_columns ? fold->columns : 1);
    if (fold->lanes == 1) return;
    for (int32_t k = 0; k < fold->value_count; k++) text_append(out, "    partial%d[t] = value%d;\n", k, k);
    text_append(out,
                "    __syncthreads();\n"
                "    for (u32 half = %lld; half > 0; half /= 2) {\n"
                "        if (lane < half) {\n",
                (long long)fold->lanes / 2);
    if (stride == 1) snprintf(other, sizeof other, "[t + half]");
    else snprintf(other, sizeof other, "[t + half * %lldu]", stride);
    append_combinations(out, fold, "            ", "partial", "[t]", "partial", other);
    text_append_string(out, "        }\n        __syncthreads();\n    }\n");
}

bool cuda_append_fold_rows(Text *out, CudaFold *fold, const char *finish) {
    CudaSource unused = {0};
    char end[32];
    cuda_fold_plan(fold, &unused);
    if (fold->by_columns || fold->value_count != 1) return false;
    fold->parts = 1;
    snprintf(end, sizeof end, "(%s)end", fold->index);
    text_append(out, "    typedef %s Scalar64;\n", scalar64_type(fold->kind));
    if (fold->lanes > 1) text_append_string(out, "    Scalar64 *const partial0 = (Scalar64 *)lanes;\n");
    text_append(out,
                "    const u32 t = threadIdx.x, lane = t %% %lldu;\n"
                "    for (s64 at = first; at < end; at += %lld) {\n"
                "    const %s result = (%s)at + t / %lldu;\n    Scalar64 value0 = %s;\n",
                (long long)fold->lanes, (long long)fold->columns, fold->index, fold->index,
                (long long)fold->lanes, operators[operator_row(fold)].neutral);
    append_share(out, fold, end);
    append_lanes(out, fold);
    text_append(out, "    if (lane == 0 && result < %s) {\n", end);
    if (fold->lanes > 1) text_append_string(out, "    value0 = partial0[t];\n");
    text_append(out, "%s    }\n", finish);
    if (fold->lanes > 1) text_append_string(out, "    __syncthreads();\n");
    text_append_string(out, "    }\n");
    return true;
}

/* Writes a kernel that folds and then runs the statements `finish`. */
static AmStatus launch(CudaSource *source, const KernelCall *call, const CudaFold *fold, const char *kind,
                       const char *finish, AmError *error) {
    Text body = {0};
    cuda_append_signature(&body, call, source, "void", false);
    /* Appends types, shared memory, and the result and lane of this thread. */
    text_append(&body, "    typedef %s Scalar64;\n", scalar64_type(fold->kind));
    for (int32_t k = 0; k < fold->value_count && fold->lanes > 1; k++)
        text_append(&body, "    __shared__ Scalar64 partial%d[%d];\n", k, CUDA_THREADS);
    const char *within = fold->by_columns ? "%" : "/", *lane = fold->by_columns ? "/" : "%";
    long long step = (long long)(fold->by_columns ? fold->columns : fold->lanes);
    text_append(&body, "    const u32 t = threadIdx.x, lane = t %s %lldu;\n", lane, step);
    if (fold->parts > 1)
        text_append(&body, "    const %s part = blockIdx.x / %lld%s, block = blockIdx.x %% %lld%s;\n",
                    fold->index, (long long)blocks_of(fold), fold->suffix, (long long)blocks_of(fold),
                    fold->suffix);
    text_append(&body, "    const %s result = (%s)%s * %lld + t %s %lldu;\n", fold->index, fold->index,
                fold->parts > 1 ? "block" : "blockIdx.x", (long long)fold->columns, within, step);
    for (int32_t k = 0; k < fold->value_count; k++)
        text_append(&body, "    Scalar64 value%d = %s;\n", k, operators[operator_row(fold)].neutral);
    char end[32];
    snprintf(end, sizeof end, "%lld%s", (long long)fold->results, fold->suffix);
    append_share(&body, fold, end);
    append_lanes(&body, fold);
    text_append(&body, "    if (lane > 0 || result >= %s) return;\n", end);
    for (int32_t k = 0; k < fold->value_count && fold->lanes > 1; k++)
        text_append(&body, "    value%d = partial%d[t];\n", k, k);
    text_append_string(&body, finish);
    text_append_string(&body, "}\n");
    return cuda_source_launch(source, kind, &body, blocks_of(fold) * fold->parts, CUDA_THREADS, error);
}

AmStatus cuda_fold_launch(CudaSource *source, const KernelCall *call, const CudaFold *fold, const char *kind,
                          const char *finish, AmError *error) {
    if (fold->parts == 1) return launch(source, call, fold, kind, finish, error);
    char elements[CUDA_FOLD_VALUES][96];
    CudaFold last = {.kept_rank = 1,
                     .kept = {fold->results},
                     .kept_strides = {1},
                     .results = fold->results,
                     .reduced_rank = 1,
                     .reduced = {fold->parts},
                     .reduced_strides = {fold->results},
                     .reduced_count = fold->parts,
                     .reduction = fold->reduction,
                     .kind = fold->kind,
                     .value_count = fold->value_count,
                     .index = fold->index,
                     .suffix = fold->suffix,
                     .parts = 1};
    for (int32_t k = 0; k < fold->value_count; k++) {
        snprintf(elements[k], sizeof elements[k], "((const Scalar64 *)scratch)[%lldll + place]",
                 (long long)(fold->scratch_at + k * fold->parts * fold->results));
        last.elements[k] = elements[k];
    }
    choose_block(&last);
    /* Launches the folds of parts, which are [value, part, result] in the scratch memory. */
    Text store = {0};
    for (int32_t k = 0; k < fold->value_count; k++)
        text_append(&store, "    ((Scalar64 *)scratch)[%lldll + (s64)part * %lldll + result] = value%d;\n",
                    (long long)(fold->scratch_at + k * fold->parts * fold->results), (long long)fold->results,
                    k);
    AmStatus status = store.failed ? am_fail_memory(error, 256)
                                   : launch(source, call, fold, "fold_parts", store.data, error);
    text_free(&store);
    TRY(status);
    return launch(source, call, &last, kind, finish, error);
}
