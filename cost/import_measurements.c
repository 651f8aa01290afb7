/* Measurements: the JSON that nccl-tests write (all_reduce_perf -J FILE).
 *
 * Each row tells for a size S how many microseconds t the collective took and its
 * "bus bandwidth", which is what a rank sent over t: 2(n-1)/n S for an all-reduce,
 * (n-1)/n S for the others. With t = steps x latency + sent / (B x efficiency(S)),
 * where an all-reduce has 2(n-1) steps and the others n-1, the smallest size gives
 * the latency, the best rate of what remains is B, and the curve is the rest. On
 * several hosts the link is that of a server: with m of them, 2(m-1)/m S or
 * (m-1)/m S cross it in as many steps as a ring of m has.
 *
 * Of "out_of_place" and "in_place" the first that is there counts. "devices" tells
 * the ranks and their hosts.
 */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "cost/import.h"

enum { MOST_ROWS = 4096, MOST_POINTS = 64, MOST_RANKS = 65536 };

typedef struct Row {
    double bytes, seconds, sent_per_byte; /* by a rank, of a byte of S */
} Row;

typedef struct MeasurementReader {
    Import *import;
    const char *source;
    AmError *error;
    Row *rows;
    int32_t row_count, ranks, hosts;
} MeasurementReader;

static AmStatus fail_at(const MeasurementReader *self, size_t row, const char *expected) {
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.results[%zu]: %s", row, expected);
}

/* The member by the first of two names that is there. */
static double number_of(const json_t *object, const char *name, const char *other) {
    json_t *value = json_object_get(object, name);
    if (!value) value = json_object_get(object, other);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static AmStatus read_rows(MeasurementReader *self, json_t *root) {
    json_t *list, *row;
    size_t k;
    TRY(json_get_array(&list, root, "results", self->source, "$", self->error));
    if (json_array_size(list) > MOST_ROWS)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.results: more than %d rows", MOST_ROWS);
    self->rows = ARENA_ARRAY(self->import->arena, Row, json_array_size(list) + 1);
    if (!self->rows) return am_fail_memory(self->error, MOST_ROWS);
    json_array_foreach(list, k, row) {
        json_t *figures = json_object_get(row, "out_of_place");
        if (!figures) figures = json_object_get(row, "in_place");
        double bytes = number_of(row, "size", "size_bytes"), time = number_of(figures, "time", "time_us");
        double algorithm = number_of(figures, "alg_bw", "algbw"), bus = number_of(figures, "bus_bw", "busbw");
        if (!(bytes >= 0 && bytes <= 0x1p53)) return fail_at(self, k, "expected \"size\", bytes");
        if (!(time > 0 && time < 1e12)) return fail_at(self, k, "expected \"time\", microseconds above 0");
        if (!(algorithm >= 0 && algorithm < 1e9) || !(bus >= 0 && bus < 1e9))
            return fail_at(self, k, "expected \"alg_bw\" and \"bus_bw\", GB/s");
        if (bytes == 0 || algorithm == 0) continue; /* too small for the digits that are written */
        if (self->row_count > 0 && bytes <= self->rows[self->row_count - 1].bytes)
            return fail_at(self, k, "expected a size above that of the row before");
        self->rows[self->row_count++] = (Row){bytes, time * 1e-6, bus / algorithm};
    }
    if (self->row_count < 2)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.results: expected at least two sizes");
    return AM_OK;
}

static AmStatus read_ranks(MeasurementReader *self, json_t *root) {
    json_t *list, *device;
    size_t k;
    TRY(json_get_array(&list, root, "devices", self->source, "$", self->error));
    if (json_array_size(list) < 2 || json_array_size(list) > MOST_RANKS)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "$.devices: expected 2 to %d ranks",
                       MOST_RANKS);
    json_t *hosts = json_object();
    json_array_foreach(list, k, device) {
        json_t *host = json_object_get(device, "hostname");
        if (!host) host = json_object_get(device, "host");
        if (!json_is_string(host)) {
            json_decref(hosts);
            return am_fail(self->error, AM_ERROR_INPUT, self->source,
                           "$.devices[%zu].hostname: missing, expected a string", k);
        }
        json_object_set(hosts, json_string_value(host), json_true());
    }
    self->ranks = (int32_t)json_array_size(list);
    self->hosts = (int32_t)json_object_size(hosts);
    json_decref(hosts);
    return AM_OK;
}

/* Of the largest size, whose figures have the most digits: 2(n-1)/n for an all-reduce. */
static bool is_all_reduce(const MeasurementReader *self) {
    return self->rows[self->row_count - 1].sent_per_byte > 0.995;
}

/* The link that gives these times. */
static json_t *fit(const MeasurementReader *self) {
    double rounds = is_all_reduce(self) ? 2 : 1, n = self->hosts > 1 ? self->hosts : self->ranks;
    double latency = self->rows[0].seconds / (rounds * (n - 1)), best = 0;
    double rates[MOST_POINTS];
    int32_t points = 0, stride = (self->row_count + MOST_POINTS - 1) / MOST_POINTS;
    for (int32_t k = self->row_count - 1; k > 0; k -= stride) {
        const Row *row = &self->rows[k];
        /* Noise must not make small sizes fast: at least half of the time is transfer. */
        double transfer = fmax(row->seconds - self->rows[0].seconds, row->seconds / 2);
        rates[points] = rounds * (n - 1) / n * row->bytes / transfer;
        best = fmax(best, rates[points++]);
    }
    json_t *curve = json_array();
    while (points-- > 0) {
        double size = self->rows[self->row_count - 1 - points * stride].bytes;
        json_array_append_new(curve, json_pack("[f, f]", size, rates[points] / best));
    }
    return json_pack("{s:f, s:f, s:o}", "bytes_per_second", best, "latency_seconds", latency, "efficiency",
                     curve);
}

AmStatus import_measurements(Import *import, const FileBytes *file, AmError *error) {
    MeasurementReader self = {.import = import, .source = file->name, .error = error};
    json_t *root;
    TRY(json_parse(&root, file->name, file->data, (size_t)file->length, error));
    AmStatus status = read_rows(&self, root);
    if (status == AM_OK) status = read_ranks(&self, root);
    json_decref(root);
    TRY(status);
    json_t **link = self.hosts > 1 ? &import->measured_between : &import->measured_inside;
    if (*link)
        return am_fail(error, AM_ERROR_INPUT, file->name,
                       "measures the link %s servers, as another file does",
                       self.hosts > 1 ? "between" : "inside");
    *link = fit(&self);
    return *link ? AM_OK : am_fail_memory(error, 0);
}
