/* Files of Sailor: coefficients of links, times of layers, and the sizes of the model whose layers they are.
 *
 *   network_coeffs.json   {"intra": {"A100-40": {"2": [[0.8, 16.4, 33.0], 248e9], "4": ...}}, "inter": {...}}
 *   profile.json          {"8": {"1": {"0": [1e-4, 2e-6, 3e-3], "1": [...], ...}, "2": ...}, "16": ...}
 *   training_config.json  {"type": "gpt2", "hidden_size": 1024, "sequence_length": 2048, "heads": 16, ...}
 *
 * A link has for a number of devices the coefficients of a polynomial in log2(size in MB), GB/s, and the
 * largest rate in bytes/s. Inside a server the least number counts, one pair of devices. Between servers the
 * largest one counts, all devices of a server. Sailor fits sizes up to 1 GiB; the curve begins at 1 MiB,
 * where all fits of its files are above 0. Latencies are those usual for the device type.
 *
 * A profile has for a micro-batch, a tensor degree and a layer the seconds forward, backward and of the
 * update. The layer in the middle, of tensor degree 1, gives a point of the curve of products:
 *
 *   flops = b (24 s h^2 + 4 s^2 h)                  of the six products forward
 *   bytes = b ((4 e + 1) a s^2 + (22 e + 2) s h)    of softmax, dropout, layer norms, gelu and sums
 *   rate  = flops / (seconds - bytes / memory rate)
 *
 * with micro-batch b, sequence s, width h, heads a and e bytes of a number: 2 if the file's name has "fp16",
 * else 4. Products of f32 faster than the device's f32 peak ran in TF32; the fastest rate is then the peak.
 * The backward time is not used, because it may contain a recomputation.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/json.h"
#include "cost/cluster_import/import.h"

enum { COEFFICIENTS = 3, LEAST_EXPONENT = 20, MOST_EXPONENT = 30, MOST_LAYER_TABLES = 64, PRODUCTS = 6 };
#define MOST_RATE    1e15
#define MOST_SECONDS 1e6

typedef struct SailorReader {
    Import *import;
    const char *source;
    AmError *error;
} SailorReader;

static AmStatus fail_at(const SailorReader *self, const char *where, const char *expected) {
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: expected %s", where, expected);
}

/* Returns the value of a key that is a number from 1 to `most`; 0 for other keys. */
static int64_t number_of_key(const char *key, int64_t most) {
    char *end;
    long long value = strtoll(key, &end, 10);
    return end != key && *end == '\0' && value >= 1 && value <= most ? value : 0;
}

/* ---- links ---- */

typedef struct LinkCoefficients {
    double values[COEFFICIENTS], peak;
} LinkCoefficients;

/* Reads the coefficients of one number of devices. */
static AmStatus read_coefficients(const SailorReader *self, LinkCoefficients *made, json_t *row,
                                  const char *where) {
    json_t *list = json_array_get(row, 0);
    made->peak = json_number_value(json_array_get(row, 1));
    bool is_row = json_array_size(row) == 2 && json_array_size(list) == COEFFICIENTS;
    for (int32_t k = 0; k < COEFFICIENTS && is_row; k++) {
        made->values[k] = json_number_value(json_array_get(list, (size_t)k));
        is_row = json_is_number(json_array_get(list, (size_t)k)) && fabs(made->values[k]) < MOST_RATE;
    }
    if (is_row && made->peak >= 1 && made->peak <= MOST_RATE) return AM_OK;
    return fail_at(self, where, "[[a, b, c], bytes per second] with a rate above 0");
}

/* Checks the keys and coefficients of a device type. */
static AmStatus check_counts(const SailorReader *self, json_t *counts, const char *where, const char *type) {
    const char *count;
    json_t *row;
    json_object_foreach(counts, count, row) {
        LinkCoefficients coefficients;
        char of_row[160];
        if (number_of_key(count, IMPORT_MOST_GPUS) == 0)
            return fail_at(self, where, "numbers of devices as keys");
        snprintf(of_row, sizeof of_row, "%.20s.%.40s.%.20s", where, type, count);
        TRY(read_coefficients(self, &coefficients, row, of_row));
    }
    return AM_OK;
}

/* Checks the members of all device types and finds that of the import's, whose names lack "GB" in Sailor
 * ("A100-40"). */
static AmStatus find_type(const SailorReader *self, json_t **counts, json_t *types, const char *where) {
    const char *key;
    json_t *value;
    *counts = NULL;
    json_object_foreach(types, key, value) {
        char longer[64];
        snprintf(longer, sizeof longer, "%.56sGB", key);
        const char *name = cluster_builtin_device_named(key);
        if (!name) name = cluster_builtin_device_named(longer);
        if (!json_is_object(value)) return fail_at(self, where, "an object for each device type");
        TRY(check_counts(self, value, where, key));
        if (name && strcmp(name, self->import->device_type) == 0) *counts = value;
    }
    if (*counts) return AM_OK;
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: no device type is %s (--device-type)",
                   where, self->import->device_type);
}

/* Reads "intra" or "inter" into `link`; raises *devices to the largest number of devices. */
static AmStatus read_link(const SailorReader *self, json_t **link, json_t *root, const char *key,
                          int64_t *devices) {
    bool is_inside = strcmp(key, "intra") == 0;
    const char *usual = is_inside ? self->import->usual->inside : self->import->usual->between, *count;
    char where[96];
    json_t *types, *counts, *row, *chosen = NULL;
    LinkCoefficients coefficients;
    int64_t chosen_count = 0;
    snprintf(where, sizeof where, "$.%.5s", key);
    if (!json_object_get(root, key)) return AM_OK;
    TRY(json_get_object(&types, root, key, self->source, "$", self->error));
    TRY(find_type(self, &counts, types, where));
    json_object_foreach(counts, count, row) {
        int64_t number = number_of_key(count, IMPORT_MOST_GPUS);
        if (number > *devices) *devices = number;
        if (chosen && (is_inside ? number >= chosen_count : number <= chosen_count)) continue;
        chosen = row;
        chosen_count = number;
    }
    snprintf(where, sizeof where, "$.%.5s.%.40s.%lld", key, self->import->device_type,
             (long long)chosen_count);
    if (!chosen) return fail_at(self, where, "a number of devices");
    TRY(read_coefficients(self, &coefficients, chosen, where));
    json_t *built_in = cluster_builtin_link(usual);
    double latency = json_number_value(json_object_get(built_in, "latency_seconds"));
    json_decref(built_in);
    /* The description of a link: its coefficients sampled at powers of two. */
    const double *values = coefficients.values, peak = coefficients.peak;
    json_t *curve = json_array();
    for (int32_t exponent = LEAST_EXPONENT; exponent <= MOST_EXPONENT; exponent++) {
        double bytes = ldexp(1, exponent), x = log2(bytes / 1e6);
        double rate = ((values[0] * x + values[1]) * x + values[2]) * 1e9;
        if (!(rate > 0)) {
            json_decref(curve);
            return fail_at(self, where, "coefficients of rates above 0, from 1 MB to 1 GB");
        }
        json_array_append_new(curve, json_pack("[f, f]", bytes, fmin(1, rate / peak)));
    }
    *link = json_pack("{s:f, s:f, s:o}", "bytes_per_second", peak, "latency_seconds", latency, "efficiency",
                      curve);
    return *link ? AM_OK : am_fail_memory(self->error, 0);
}

static AmStatus read_links(const SailorReader *self, json_t *root) {
    Import *import = self->import;
    int64_t devices = 1;
    if (import->measured_inside || import->measured_between)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "measures links, as another file does");
    TRY(read_link(self, &import->measured_inside, root, "intra", &devices));
    TRY(read_link(self, &import->measured_between, root, "inter", &devices));
    import->inside_source = import->between_source = import->measured_source = self->source;
    import->has_both_links = true;
    import->measured_hosts = json_pack("{s:I}", "server", (json_int_t)devices);
    return import->measured_hosts ? AM_OK : am_fail_memory(self->error, 0);
}

/* ---- layers ---- */

/* Reads the forward seconds of the middle layer with tensor degree 1; 0: the micro-batch has no such
 * degree. */
static AmStatus read_layer(const SailorReader *self, double *seconds, json_t *degrees, const char *batch) {
    char where[64], middle[16];
    *seconds = 0;
    snprintf(where, sizeof where, "$.%.24s", batch);
    if (!json_is_object(degrees)) return fail_at(self, where, "an object of tensor degrees");
    json_t *layers = json_object_get(degrees, "1");
    if (!layers) return AM_OK;
    snprintf(middle, sizeof middle, "%d", (int)(json_object_size(layers) / 2));
    json_t *times = json_object_get(layers, middle);
    snprintf(where, sizeof where, "$.%.24s.1.%s", batch, middle);
    *seconds = json_number_value(json_array_get(times, 0));
    if (json_array_size(times) != 3 || !(*seconds > 0 && *seconds < MOST_SECONDS))
        return fail_at(self, where, "seconds above 0: forward, backward, update");
    return AM_OK;
}

typedef struct ModelSizes {
    int64_t hidden, sequence, heads;
} ModelSizes;

/* Adds the points of all micro-batches to rates[0..*count): FLOPs of one product, and FLOPs a second. */
static AmStatus read_rates(const SailorReader *self, double (*rates)[2], int32_t *count,
                           const ModelSizes *sizes, double memory) {
    double number_bytes = strstr(self->source, "fp16") ? 2 : 4;
    double s = (double)sizes->sequence, h = (double)sizes->hidden, a = (double)sizes->heads, seconds;
    const char *key;
    json_t *degrees;
    *count = 0;
    json_object_foreach(self->import->sailor_layers, key, degrees) {
        double b = (double)number_of_key(key, 1 << 20);
        if (b == 0) return fail_at(self, "$", "micro-batches as keys");
        TRY(read_layer(self, &seconds, degrees, key));
        if (seconds == 0) continue;
        if (*count == MOST_LAYER_TABLES) return fail_at(self, "$", "at most 64 micro-batches");
        double flops = b * (24 * s * h * h + 4 * s * s * h);
        double bytes = b * ((4 * number_bytes + 1) * a * s * s + (22 * number_bytes + 2) * s * h);
        if (seconds <= bytes / memory)
            return am_fail(
                self->error, AM_ERROR_INPUT, self->source,
                "$.%.24s.1: a layer faster than its memory traffic on %s (expected another --device-type "
                "or another model)",
                key, self->import->device_type);
        rates[*count][0] = flops / PRODUCTS;
        rates[(*count)++][1] = flops / (seconds - bytes / memory);
    }
    return *count > 0 ? AM_OK : fail_at(self, "$", "a micro-batch with tensor degree \"1\"");
}

AmStatus import_sailor_finish(Import *import, AmError *error) {
    SailorReader self = {import, import->sailor_layers_source, error};
    double rates[MOST_LAYER_TABLES][2], peak = 0;
    int32_t count;
    ModelSizes sizes;
    if (!import->sailor_layers && !import->sailor_model) return AM_OK;
    if (!import->sailor_layers)
        return am_fail(error, AM_ERROR_INPUT, import->sailor_model_source,
                       "the sizes of a model (expected a second --import of Sailor's profile.json)");
    if (!import->sailor_model)
        return am_fail(error, AM_ERROR_INPUT, self.source,
                       "times of layers (expected a second --import of Sailor's training_config.json, with "
                       "hidden_size, sequence_length and heads)");
    json_t *model = self.import->sailor_model;
    const char *source = self.import->sailor_model_source, *kind = NULL;
    enum { MOST = 1 << 20 };
    if (json_object_get(model, "type")) {
        TRY(json_get_string(&kind, model, "type", source, "$", self.error));
        if (strcmp(kind, "gpt2") != 0)
            return am_fail(self.error, AM_ERROR_INPUT, source,
                           "$.type: \"%.40s\" (expected \"gpt2\", whose layers have six products)", kind);
    }
    TRY(json_get_integer(&sizes.hidden, model, "hidden_size", 1, MOST, source, "$", self.error));
    TRY(json_get_integer(&sizes.sequence, model, "sequence_length", 1, MOST, source, "$", self.error));
    TRY(json_get_integer(&sizes.heads, model, "heads", 1, MOST, source, "$", self.error));
    json_t *type = cluster_builtin_device_type(import->device_type);
    bool is_16_bit = strstr(self.source, "fp16") != NULL;
    peak = json_number_value(
        json_object_get(json_object_get(type, "flops_per_second"), is_16_bit ? "f16" : "f32"));
    double memory = json_number_value(json_object_get(type, "memory_bytes_per_second"));
    json_decref(type);
    TRY(read_rates(&self, rates, &count, &sizes, memory));
    for (int32_t k = 0; k < count && !is_16_bit; k++) peak = fmax(peak, rates[k][1]);
    for (int32_t k = 0; k < count; k++) {
        if (rates[k][1] > peak)
            return am_fail(error, AM_ERROR_INPUT, self.source,
                           "products faster than the peak of %s (--device-type)", import->device_type);
        import_curve_add(&import->products, rates[k][0], rates[k][1] / peak);
    }
    json_t *curve = import_curve_json(import, &import->products, "dot");
    import->measured_type =
        is_16_bit ? json_pack("{s:{s:O, s:o}}", "efficiency", "dot_bf16", curve, "dot_f16", curve)
                  : json_pack("{s:{s:f}, s:{s:o}}", "flops_per_second", "f32", peak, "efficiency", "dot_f32",
                              curve);
    return import->measured_type ? AM_OK : am_fail_memory(error, 0);
}

bool import_is_sailor(const FileBytes *file) {
    const char *first = file->data + strspn(file->data, " \t\r\n");
    if (*first != '{') return false;
    first++;
    first += strspn(first, " \t\r\n");
    bool has_number = *first == '"' && first[1] >= '0' && first[1] <= '9';
    return has_number || strstr(file->data, "\"intra\"") || strstr(file->data, "\"inter\"") ||
           strstr(file->data, "\"hidden_size\"");
}

AmStatus import_sailor(Import *import, const FileBytes *file, AmError *error) {
    SailorReader self = {import, arena_copy_string(import->arena, file->name), error};
    json_t *root = NULL;
    AmStatus status;
    if (!self.source) return am_fail_memory(error, 0);
    TRY(json_parse(&root, file->name, file->data, (size_t)file->length, error));
    bool is_model = json_object_get(root, "hidden_size") != NULL;
    if (json_object_get(root, "intra") || json_object_get(root, "inter")) {
        TRY_OR_FAIL(read_links(&self, root));
    } else if (is_model) {
        if (import->sailor_model)
            TRY_OR_FAIL(am_fail(error, AM_ERROR_INPUT, file->name, "the sizes of a model, as %s has them",
                                import->sailor_model_source));
        import->sailor_model = json_incref(root);
        import->sailor_model_source = self.source;
    } else {
        TRY_OR_FAIL(
            import_claim(import, &import->type_source, self.source, "describes a device type", error));
        import->sailor_layers = json_incref(root);
        import->sailor_layers_source = self.source;
    }
    status = AM_OK;
fail:
    json_decref(root);
    return status;
}
