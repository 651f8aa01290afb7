/* System files of SimuMax: measured products, memory and links of a server.
 *
 *   "num_per_node": 8                                       devices of a server
 *   "accelerator": {"mem_gbs": 80,                          GiB of a device
 *     "op": {"matmul": {"tflops": 312, "efficient_factor": 0.75, "accurate_efficient_factor":
 *       {"b=1, m=4096, k=5120, n=1536, layout=TN, ...": 0.79}}},        share of the peak
 *     "bandwidth": {"default": {"gbps": 1600, "efficient_factor": 0.9}}}         GB/s
 *   "networks": {"high_intra_node": {"bandwidth": {"gbps": 900, "efficient_factor": 1, "latency_us": 8},
 *     "op": {"all_reduce": {"efficient_factor": 0.55, "latency_us": 8}}}, "inter_node": {...}}
 *
 * Products of similar FLOPs become one point of the curve of 16-bit products: their mean share. Without
 * shapes the one factor is the curve. The rate of a link is gbps times the factor of all_reduce, else that of
 * its bandwidth; the latency is divided by the steps of a ring. "inter_node" is per device. Other members are
 * not used: attention and grouped products keep the figures of the device type. A file without "networks" has
 * no links, and its "num_per_node" is not used.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/files/json.h"
#include "cost/cluster_import/import.h"

enum { MOST_PRODUCTS = 65536 };
#define LEAST_NUMBER 1e-9
#define MOST_NUMBER  1e9
#define MOST_SIZE    0x1p40

typedef struct SystemReader {
    Import *import;
    const char *source;
    AmError *error;
} SystemReader;

static AmStatus read_number(const SystemReader *self, double *value, json_t *object, const char *key,
                            double most, const char *where) {
    return json_get_number(value, object, key, LEAST_NUMBER, most, self->source, where, self->error);
}

/* ---- products ---- */

static AmStatus add_product(const SystemReader *self, const char *key, const json_t *value) {
    double sizes[4], flops = 2, share = json_is_number(value) ? json_number_value(value) : NAN;
    bool has_sizes =
        sscanf(key, "b=%lf, m=%lf, k=%lf, n=%lf,", &sizes[0], &sizes[1], &sizes[2], &sizes[3]) == 4;
    for (int32_t k = 0; k < 4 && has_sizes; k++) {
        has_sizes = sizes[k] >= 1 && sizes[k] <= MOST_SIZE;
        flops *= sizes[k];
    }
    if (!has_sizes || !(share > 0 && share <= 1))
        return am_fail(
            self->error, AM_ERROR_INPUT, self->source,
            "$.accelerator.op.matmul.accurate_efficient_factor: \"%.80s\" (expected \"b=1, m=4096, "
            "k=5120, n=1536, ...\" and a share of the peak, above 0 and at most 1)",
            key);
    import_curve_add(&self->import->products, flops, share);
    return AM_OK;
}

/* Reads the curve of products; the caller's reference. */
static AmStatus read_products(const SystemReader *self, json_t **curve, json_t *matmul) {
    static const char where[] = "$.accelerator.op.matmul";
    json_t *shapes = json_object_get(matmul, "accurate_efficient_factor"), *value;
    const char *key;
    double share;
    TRY(read_number(self, &share, matmul, "efficient_factor", 1, where));
    if (shapes) {
        TRY(json_get_object(&shapes, matmul, "accurate_efficient_factor", self->source, where, self->error));
        if (json_object_size(shapes) > MOST_PRODUCTS)
            return am_fail(self->error, AM_ERROR_INPUT, self->source,
                           "%s.accurate_efficient_factor: expected at most %d shapes", where, MOST_PRODUCTS);
        json_object_foreach(shapes, key, value) TRY(add_product(self, key, value));
    }
    *curve = import_curve_json(self->import, &self->import->products, NULL);
    if (json_array_size(*curve) == 0) json_array_append_new(*curve, json_pack("[f, f]", 1.0, share));
    return AM_OK;
}

/* ---- the device ---- */

static AmStatus read_device(SystemReader *self, json_t *root) {
    static const char where[] = "$.accelerator";
    json_t *accelerator, *operators, *matmul, *bandwidth, *memory, *curve = NULL;
    double tera, gibi, rate, share;
    TRY(json_get_object(&accelerator, root, "accelerator", self->source, "$", self->error));
    TRY(json_get_object(&operators, accelerator, "op", self->source, where, self->error));
    TRY(json_get_object(&matmul, operators, "matmul", self->source, "$.accelerator.op", self->error));
    TRY(read_number(self, &tera, matmul, "tflops", MOST_NUMBER, "$.accelerator.op.matmul"));
    TRY(read_number(self, &gibi, accelerator, "mem_gbs", 1e6, where));
    TRY(json_get_object(&bandwidth, accelerator, "bandwidth", self->source, where, self->error));
    TRY(json_get_object(&memory, bandwidth, "default", self->source, "$.accelerator.bandwidth", self->error));
    TRY(read_number(self, &rate, memory, "gbps", MOST_NUMBER, "$.accelerator.bandwidth.default"));
    TRY(read_number(self, &share, memory, "efficient_factor", 1, "$.accelerator.bandwidth.default"));
    TRY(read_products(self, &curve, matmul));
    self->import->memory_bytes = (int64_t)(gibi * 0x1p30);
    self->import->measured_type =
        json_pack("{s:f, s:{s:f, s:f}, s:{s:O, s:o, s:[[f, f]]}}", "memory_bytes_per_second", rate * 1e9,
                  "flops_per_second", "bf16", tera * 1e12, "f16", tera * 1e12, "efficiency", "dot_bf16",
                  curve, "dot_f16", curve, "memory", 1.0, share);
    return self->import->measured_type ? AM_OK : am_fail_memory(self->error, 0);
}

/* ---- links ---- */

/* Returns the name of the link inside servers: NVLink's, else the PCIe link of all devices of a server. */
static const char *inside_of(Arena *arena, json_t *networks, int64_t devices) {
    const char *const names[] = {"high_intra_node",
                                 arena_format(arena, "intra_node_pcie_%lldx", (long long)devices),
                                 "low_intra_node"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (names[k] && json_object_get(networks, names[k])) return names[k];
    return NULL;
}

/* Reads the description of a link that `devices` share in a ring of `ranks`. */
static AmStatus read_link(const SystemReader *self, json_t **link, json_t *network, const char *key,
                          int64_t ranks, int64_t devices) {
    char where[96];
    json_t *bandwidth, *figures;
    double rate, share, microseconds;
    snprintf(where, sizeof where, "$.networks.%.48s", key);
    if (!json_is_object(network))
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: expected an object", where);
    TRY(json_get_object(&bandwidth, network, "bandwidth", self->source, where, self->error));
    figures = json_object_get(json_object_get(network, "op"), "all_reduce");
    snprintf(where, sizeof where, "$.networks.%.48s.bandwidth", key);
    TRY(read_number(self, &rate, bandwidth, "gbps", MOST_NUMBER, where));
    if (!json_object_get(figures, "efficient_factor")) figures = bandwidth;
    else snprintf(where, sizeof where, "$.networks.%.48s.op.all_reduce", key);
    TRY(read_number(self, &share, figures, "efficient_factor", 1, where));
    if (!json_object_get(figures, "latency_us")) figures = bandwidth;
    TRY(read_number(self, &microseconds, figures, "latency_us", MOST_NUMBER, where));
    double steps = ranks > 1 ? 2.0 * (double)(ranks - 1) : 2;
    *link = json_pack("{s:f, s:f}", "bytes_per_second", rate * share * 1e9 * (double)devices,
                      "latency_seconds", microseconds * 1e-6 / steps);
    return *link ? AM_OK : am_fail_memory(self->error, 0);
}

static AmStatus read_links(SystemReader *self, json_t *root) {
    Import *import = self->import;
    json_t *networks;
    int64_t devices;
    if (!json_object_get(root, "networks")) return AM_OK;
    TRY(json_get_integer(&devices, root, "num_per_node", 1, IMPORT_MOST_GPUS, self->source, "$",
                         self->error));
    TRY(json_get_object(&networks, root, "networks", self->source, "$", self->error));
    if (import->measured_inside || import->measured_between)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "measures links, as another file does (a file without \"networks\" measures none)");
    const char *inside = inside_of(import->arena, networks, devices);
    if (inside)
        TRY(read_link(self, &import->measured_inside, json_object_get(networks, inside), inside, devices, 1));
    json_t *between = json_object_get(networks, "inter_node");
    if (between) TRY(read_link(self, &import->measured_between, between, "inter_node", 2, devices));
    import->inside_source = import->between_source = import->measured_source = self->source;
    import->has_both_links = true;
    import->measured_hosts = json_pack("{s:I}", "server", (json_int_t)devices);
    return import->measured_hosts ? AM_OK : am_fail_memory(self->error, 0);
}

AmStatus import_simumax(Import *import, const FileBytes *file, AmError *error) {
    SystemReader self = {import, arena_copy_string(import->arena, file->name), error};
    json_t *root = NULL;
    AmStatus status;
    if (!self.source) return am_fail_memory(error, 0);
    TRY(import_claim(import, &import->type_source, file->name, "describes a device type", error));
    TRY(json_parse(&root, file->name, file->data, (size_t)file->length, error));
    TRY_OR_FAIL(read_device(&self, root));
    TRY_OR_FAIL(read_links(&self, root));
fail:
    json_decref(root);
    return status;
}
