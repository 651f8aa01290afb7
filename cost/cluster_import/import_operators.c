/* Measured operators: curves of products and of memory, and Aceso's tables of operators.
 *
 * gpt_1_3B_mbs2_tp1_algo0.csv, times in us, sizes in MiB, products in f16:
 *
 *   op_name,forward-compute,backward-compute,input_size,output_size,weights,activations,fwd_reserved,bwd_reserved
 *   enc-1st-layernorm,63.090,218.985,16.000,32.000,0.000,16.031,0.000,128.000
 *   enc-attention-dense,484.507,810.127,32.000,32.004,8.000,16.000,0.000,64.000
 *
 * The weights W of enc-attention-dense are hidden^2 numbers, the input of enc-1st-layernorm is tokens x
 * hidden numbers. A product forward has 2 x tokens x (numbers of W) FLOPs; backward there are two of them.
 * Layer norms, softmax and gelu read and write as many bytes as they keep. The times contain the launch,
 * which the device type has by itself. A table of tp above 1 has all-reduces in its times.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cost/cluster_import/import.h"

#define MEBI         0x1p20
#define F16_BYTES    2
#define MOST_MEBI    1e9
#define MOST_SECONDS 1e6

void import_curve_add(ImportCurve *curve, double size, double share) {
    int32_t bin = size >= 1 ? ilogb(size) : 0;
    if (bin >= IMPORT_CURVE_BINS) bin = IMPORT_CURVE_BINS - 1;
    curve->sizes[bin] += log(size);
    curve->shares[bin] += share;
    curve->counts[bin]++;
}

json_t *import_curve_json(const Import *import, const ImportCurve *curve, const char *built_in) {
    json_t *measured = json_array(), *points = json_array(), *point;
    size_t k;
    for (int32_t bin = 0; bin < IMPORT_CURVE_BINS; bin++)
        if (curve->counts[bin] > 0)
            json_array_append_new(measured, json_pack("[f, f]", exp(curve->sizes[bin] / curve->counts[bin]),
                                                      curve->shares[bin] / curve->counts[bin]));
    json_t *type = built_in ? cluster_builtin_device_type(import->device_type) : NULL;
    double first = json_number_value(json_array_get(json_array_get(measured, 0), 0));
    double share = json_number_value(json_array_get(json_array_get(measured, 0), 1));
    json_array_foreach(json_object_get(json_object_get(type, "efficiency"), built_in), k, point) {
        double size = json_number_value(json_array_get(point, 0));
        if (size < first)
            json_array_append_new(
                points, json_pack("[f, f]", size, fmin(share, json_number_value(json_array_get(point, 1)))));
    }
    json_array_extend(points, measured);
    json_decref(measured);
    json_decref(type);
    return points;
}

/* ---- tables of Aceso ---- */

enum {
    LAYER_NORM,
    SECOND_LAYER_NORM,
    SOFTMAX,
    GELU,
    QKV,
    DENSE,
    FIRST_PRODUCT,
    SECOND_PRODUCT,
    OPERATOR_COUNT
};

static const char *const operator_names[OPERATOR_COUNT] = {
    [LAYER_NORM] = "enc-1st-layernorm",  [SECOND_LAYER_NORM] = "enc-2nd-layernorm",
    [SOFTMAX] = "enc-attention-softmax", [GELU] = "enc-MLP-gelu",
    [QKV] = "enc-attention-qkv",         [DENSE] = "enc-attention-dense",
    [FIRST_PRODUCT] = "enc-MLP-GEMM-1",  [SECOND_PRODUCT] = "enc-MLP-GEMM-2",
};

typedef struct AcesoOperator {
    double forward, backward;           /* seconds; forward is 0 if there is no row */
    double input, weights, activations; /* bytes */
    int64_t place;                      /* offset of the row */
} AcesoOperator;

typedef struct AcesoTable {
    Import *import;
    const FileBytes *file;
    AmError *error;
    AcesoOperator operators[OPERATOR_COUNT];
} AcesoTable;

static AmStatus fail_at(const AcesoTable *self, int64_t place, const char *expected) {
    return am_fail_at(self->error, AM_ERROR_INPUT, self->file->name, self->file->data, self->file->length,
                      place, "expected %s", expected);
}

static bool is_between(double value, double least, double most) {
    return value >= least && value <= most;
}

/* Reads the row in [line, end) if its operator is used. */
static AmStatus read_row(AcesoTable *self, const char *line, const char *end) {
    char copy[256], name[64];
    double forward, backward, input, output, weights, activations;
    snprintf(copy, sizeof copy, "%.*s", (int)fmin((double)(end - line), sizeof copy - 1), line);
    int64_t place = line - self->file->data;
    if (copy[strspn(copy, " \t\r")] == '\0') return AM_OK;
    if (sscanf(copy, "%63[^,],%lf,%lf,%lf,%lf,%lf,%lf", name, &forward, &backward, &input, &output, &weights,
               &activations) != 7)
        return fail_at(self, place, "a name, two times in us and four sizes in MB");
    for (int32_t k = 0; k < OPERATOR_COUNT; k++) {
        if (strcmp(name, operator_names[k]) != 0) continue;
        AcesoOperator *row = &self->operators[k];
        if (row->forward > 0) return fail_at(self, place, "each operator once");
        if (!is_between(forward, 1e-3, MOST_SECONDS * 1e6) || !is_between(backward, 1e-3, MOST_SECONDS * 1e6))
            return fail_at(self, place, "times above 0, us");
        bool is_product = k >= QKV;
        if (!is_between(input, 1e-3, MOST_MEBI) || !is_between(activations, 1e-3, MOST_MEBI) ||
            !is_between(weights, is_product ? 1e-3 : 0, MOST_MEBI))
            return fail_at(self, place, "sizes above 0, MB");
        *row = (AcesoOperator){forward * 1e-6, backward * 1e-6,    input * MEBI,
                               weights * MEBI, activations * MEBI, place};
    }
    return AM_OK;
}

/* Adds the operators to the curves of the import. */
static AmStatus add_points(AcesoTable *self) {
    Import *import = self->import;
    json_t *type = cluster_builtin_device_type(import->device_type);
    double peak = json_number_value(json_object_get(json_object_get(type, "flops_per_second"), "f16"));
    double memory = json_number_value(json_object_get(type, "memory_bytes_per_second"));
    double launch = json_number_value(json_object_get(type, "kernel_launch_seconds"));
    json_decref(type);
    if (!(peak > 0))
        return am_fail(self->error, AM_ERROR_INPUT, self->file->name,
                       "products in f16, for which %s has no rate (expected another --device-type)",
                       import->device_type);
    double hidden = sqrt(self->operators[DENSE].weights / F16_BYTES);
    double tokens = self->operators[LAYER_NORM].input / F16_BYTES / hidden;
    for (int32_t k = 0; k < OPERATOR_COUNT; k++) {
        const AcesoOperator *row = &self->operators[k];
        double forward = fmax(row->forward - launch, row->forward / 2);
        double backward = fmax(row->backward - 2 * launch, row->backward / 2);
        if (k < QKV) {
            double bytes = 2 * row->activations;
            import_curve_add(&import->memory, bytes, fmin(1, bytes / forward / memory));
            continue;
        }
        double flops = 2 * tokens * row->weights / F16_BYTES;
        double most = fmax(flops / forward, 2 * flops / backward);
        if (most > peak)
            return am_fail_at(self->error, AM_ERROR_INPUT, self->file->name, self->file->data,
                              self->file->length, row->place,
                              "a product of %.4g TFLOP/s (expected at most %.4g TFLOP/s, the f16 peak of %s)",
                              most / 1e12, peak / 1e12, import->device_type);
        import_curve_add(&import->products, flops, flops / forward / peak);
        import_curve_add(&import->products, flops, 2 * flops / backward / peak);
    }
    return AM_OK;
}

AmStatus import_aceso_operators(Import *import, const FileBytes *file, AmError *error) {
    AcesoTable self = {.import = import, .file = file, .error = error};
    const char *degree = strstr(file->name, "_tp");
    int tensor = 0;
    if (!degree || sscanf(degree, "_tp%d", &tensor) != 1 || tensor != 1)
        return am_fail(error, AM_ERROR_INPUT, file->name,
                       "a table of Aceso's operators (expected a file name such as "
                       "gpt_1_3B_mbs2_tp1_algo0.csv; times of tp2 and above contain all-reduces)");
    if (!import->has_aceso_operators)
        TRY(import_claim(import, &import->type_source, file->name, "describes a device type", error));
    import->has_aceso_operators = true;
    const char *line = self.file->data + strcspn(self.file->data, "\n");
    while (*line) {
        line++;
        const char *end = line + strcspn(line, "\n");
        TRY(read_row(&self, line, end));
        line = end;
    }
    for (int32_t k = 0; k < OPERATOR_COUNT; k++)
        if (self.operators[k].forward == 0)
            return am_fail(self.error, AM_ERROR_INPUT, self.file->name,
                           "no row \"%s\" (expected a table of a GPT or T5)", operator_names[k]);
    return add_points(&self);
}

AmStatus import_operators_finish(Import *import, AmError *error) {
    if (!import->has_aceso_operators) return AM_OK;
    json_t *products = import_curve_json(import, &import->products, "dot");
    json_t *memory = import_curve_json(import, &import->memory, "memory");
    import->measured_type = json_pack("{s:{s:O, s:o, s:o}}", "efficiency", "dot_bf16", products, "dot_f16",
                                      products, "memory", memory);
    return import->measured_type ? AM_OK : am_fail_memory(error, 0);
}
