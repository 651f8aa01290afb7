/* Measurements: output of nccl-tests, as JSON (all_reduce_perf -J FILE) or as a table, and tables of vTrain
 * and Aceso.
 *
 * Each row gives for a size S the microseconds t of the collective and its "bus bandwidth", the
 * bytes sent by a rank over t: 2(n-1)/n S for an all-reduce, (n-1)/n S for the others. In
 *
 *     t = steps x latency + sent / (B x efficiency(S))
 *
 * an all-reduce has 2(n-1) steps, and the others have n-1. The smallest size gives the latency. The
 * best remaining rate is B, and the quotient is the curve. On several hosts the link is that of a
 * server: with m of them, 2(m-1)/m S or (m-1)/m S cross it in as many steps as a ring of m has.
 *
 * Of "out_of_place" and "in_place", the first that exists counts. "devices" lists the ranks and
 * their hosts; in the table these are the lines "# Rank 0 ... on HOST". If no other file lists
 * servers, they are the servers: each host with its ranks.
 *
 * A table of vTrain ("size(B),count,type,time(ns),busbw(GB/s),...") has all-reduces of one server, of n =
 * 2 / (2 - busbw t / S) ranks. Where the smallest size is large, half of the least time is latency, and every
 * size is a point of the curve.
 *
 * A table of Aceso has the kind and the ranks in its name: prim_MODEL_all_reduce_4gpus.csv has rows
 * "data_size(MB),time(ms)" of one server, in any order. p2p_intra_node.csv and p2p_inter_node.csv have a line
 * of sizes in MB and a line of GB/s. A transfer counts as an all-reduce of two ranks, which sends as many
 * bytes.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/json.h"
#include "cost/cluster_import/import.h"

enum { MOST_ROWS = 4096, MOST_POINTS = 64, MOST_RANKS = 65536, LONGEST_LINE = 1000 };

typedef struct NcclTestRow {
    double bytes, seconds, sent_per_byte; /* by a rank, of a byte of S */
    int64_t place;                        /* offset of its line in a table */
} NcclTestRow;

typedef struct MeasurementReader {
    Import *import;
    const char *source;
    const FileBytes *file;
    int64_t place; /* offset of the line that is read, in a table */
    AmError *error;
    NcclTestRow *rows;
    int32_t row_count, row_capacity, ranks, hosts;
    int32_t time_column; /* of the table, counted from 0; algbw and busbw follow */
    json_t *host_names;  /* name -> ranks */
} MeasurementReader;

/* Fails at a JSON path, or without one at the line that is read. */
static AmStatus fail_at(const MeasurementReader *self, const char *where, const char *expected) {
    if (!where)
        return am_fail_at(self->error, AM_ERROR_INPUT, self->source, self->file->data, self->file->length,
                          self->place, "expected %s", expected);
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: expected %s", where, expected);
}

/* Adds one size: microseconds, and GB/s of S and of the bytes that a rank sent. */
static AmStatus add_row(MeasurementReader *self, const char *where, double bytes, double microseconds,
                        double algorithm, double bus) {
    if (!(bytes >= 0 && bytes <= 0x1p53)) return fail_at(self, where, "\"size\", bytes");
    if (!(microseconds > 0 && microseconds < 1e12))
        return fail_at(self, where, "\"time\", microseconds above 0");
    if (!(algorithm >= 0 && algorithm < 1e9) || !(bus >= 0 && bus < 1e9))
        return fail_at(self, where, "\"alg_bw\" and \"bus_bw\", GB/s");
    if (bytes == 0 || algorithm == 0) return AM_OK; /* too small for the digits that are written */
    /* algbw is S over t, with two digits after the point. */
    if (fabs(bytes / microseconds / 1e3 - algorithm) > 0.1 * algorithm + 0.02)
        return fail_at(self, where, "\"algbw\" of size over time, GB/s (other columns are in its place)");
    if (self->row_count > 0 && bytes <= self->rows[self->row_count - 1].bytes)
        return fail_at(self, where, "a size above that of the row before");
    if (self->row_count == MOST_ROWS) return fail_at(self, where, "at most 4096 rows");
    ARENA_RESERVE(self->import->arena, self->rows, self->row_count, self->row_capacity);
    if (self->import->arena->failed) return am_fail_memory(self->error, MOST_ROWS);
    self->rows[self->row_count++] = (NcclTestRow){bytes, microseconds * 1e-6, bus / algorithm, self->place};
    return AM_OK;
}

static AmStatus add_rank(MeasurementReader *self, const char *where, const char *host) {
    if (++self->ranks > MOST_RANKS) return fail_at(self, where, "at most 65536 ranks");
    json_int_t known = json_integer_value(json_object_get(self->host_names, host));
    if (json_object_set_new(self->host_names, host, json_integer(known + 1)) != 0)
        return fail_at(self, where, "the name of a host");
    return AM_OK;
}

/* Returns the member by the first of two names that is there. */
static double number_of(const json_t *object, const char *name, const char *other) {
    json_t *value = json_object_get(object, name);
    if (!value) value = json_object_get(object, other);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static AmStatus read_json(MeasurementReader *self, json_t *root) {
    json_t *list, *row, *device;
    size_t k;
    char where[64];
    TRY(json_get_array(&list, root, "results", self->source, "$", self->error));
    json_array_foreach(list, k, row) {
        json_t *figures = json_object_get(row, "out_of_place");
        if (!figures) figures = json_object_get(row, "in_place");
        snprintf(where, sizeof where, "$.results[%zu]", k);
        TRY(add_row(self, where, number_of(row, "size", "size_bytes"), number_of(figures, "time", "time_us"),
                    number_of(figures, "alg_bw", "algbw"), number_of(figures, "bus_bw", "busbw")));
    }
    TRY(json_get_array(&list, root, "devices", self->source, "$", self->error));
    json_array_foreach(list, k, device) {
        json_t *host = json_object_get(device, "hostname");
        if (!host) host = json_object_get(device, "host");
        snprintf(where, sizeof where, "$.devices[%zu].hostname", k);
        if (!json_is_string(host)) return fail_at(self, where, "a string");
        TRY(add_rank(self, where, json_string_value(host)));
    }
    return AM_OK;
}

/* Reads the head "# size count type redop root time algbw busbw ...": tables of different releases and
 * collectives have different columns in front of the time. */
static void read_head(MeasurementReader *self, const char *line) {
    int32_t column = 0;
    if (!strstr(line, "algbw")) return;
    for (const char *at = line + 1; *at; column++) {
        at += strspn(at, " \t\r");
        size_t length = strcspn(at, " \t\r");
        if (length == 4 && strncmp(at, "time", 4) == 0) {
            self->time_column = column;
            return;
        }
        at += length;
    }
}

/* Reads "# Rank 0 Group 0 Pid 4711 on worker-1 device 0 [0x1b] NVIDIA A100", or a comment. */
static AmStatus read_comment(MeasurementReader *self, const char *line) {
    char host[256];
    read_head(self, line);
    if (sscanf(line, "# Rank %*d Group %*d Pid %*d on %255s", host) != 1 &&
        sscanf(line, "# Rank %*d Pid %*d on %255s", host) != 1)
        return AM_OK;
    return add_rank(self, NULL, host);
}

/* Reads "1024 256 float sum -1 12.3 0.08 0.15 0 ...": size, count, type, operation, root, time, rates. */
static AmStatus read_table_row(MeasurementReader *self, const char *line) {
    double bytes = strtod(line, NULL), figures[3];
    const char *at = line;
    for (int32_t k = 0; k < self->time_column; k++) {
        at += strspn(at, " \t\r");
        at += strcspn(at, " \t\r");
    }
    if (sscanf(at, "%lf %lf %lf", &figures[0], &figures[1], &figures[2]) != 3)
        return fail_at(self, NULL, "size, count, type, operation, root, time, algbw and busbw");
    return add_row(self, NULL, bytes, figures[0], figures[1], figures[2]);
}

static AmStatus read_table(MeasurementReader *self, const FileBytes *file) {
    for (const char *line = file->data; *line;) {
        char copy[LONGEST_LINE + 1];
        size_t length = strcspn(line, "\n");
        snprintf(copy, sizeof copy, "%.*s", (int)(length < LONGEST_LINE ? length : LONGEST_LINE), line);
        self->place = line - file->data;
        const char *first = copy + strspn(copy, " \t\r");
        if (*first == '#') TRY(read_comment(self, first));
        else if (*first >= '0' && *first <= '9') TRY(read_table_row(self, first));
        line += length + (line[length] == '\n');
    }
    return AM_OK;
}

static AmStatus read_vtrain(MeasurementReader *self, const FileBytes *file) {
    for (const char *line = file->data; *line;) {
        char copy[LONGEST_LINE + 1];
        size_t length = strcspn(line, "\n");
        snprintf(copy, sizeof copy, "%.*s", (int)(length < LONGEST_LINE ? length : LONGEST_LINE), line);
        self->place = line - file->data;
        if (line != file->data && copy[strspn(copy, " \t\r")]) {
            /* "1048576,262144,float,51400,30.60,52740,29.82": nanoseconds and GB/s, out of place and in
             * place */
            double bytes, nanoseconds, bus;
            if (sscanf(copy, "%lf,%*[^,],%*[^,],%lf,%lf", &bytes, &nanoseconds, &bus) != 3 || !(bytes > 0))
                return fail_at(self, NULL, "size, count, type, time in ns and busbw in GB/s");
            if (!(nanoseconds > 0 && nanoseconds < 1e15))
                return fail_at(self, NULL, "\"time(ns)\", nanoseconds above 0");
            if (!(bus >= 0 && bus < 1e9)) return fail_at(self, NULL, "\"busbw(GB/s)\", GB/s");
            TRY(add_row(self, NULL, bytes, nanoseconds * 1e-3, bytes / nanoseconds, bus));
        }
        line += length + (line[length] == '\n');
    }
    /* The ranks follow from the bytes that each sends of a byte of S, 2(n-1)/n. The largest size
     * has the most digits; the others have to agree with it. */
    double sent = self->row_count > 0 ? self->rows[self->row_count - 1].sent_per_byte : 0;
    double ranks = sent < 2 ? round(2 / (2 - sent)) : 0;
    if (self->row_count == 0) return AM_OK;
    if (ranks < 2 || ranks > MOST_RANKS || fabs(2 - 2 / ranks - sent) > 0.02 / ranks)
        return fail_at(self, NULL, "busbw of 2(n-1)/n of the size over the time, for n ranks");
    for (int32_t k = 0; k < self->row_count; k++) {
        const NcclTestRow *row = &self->rows[k];
        double digit = 0.01e9 * row->seconds / row->bytes; /* of the rate, which has two after the point */
        self->place = row->place;
        if (fabs(row->sent_per_byte - sent) > 0.02 + digit)
            return am_fail_at(self->error, AM_ERROR_INPUT, self->source, self->file->data, self->file->length,
                              self->place,
                              "busbw of another number of ranks (expected %.0f, as in the last row)", ranks);
    }
    for (int32_t k = 0; k < (int32_t)ranks; k++) TRY(add_rank(self, NULL, "server"));
    return AM_OK;
}

/* ---- tables of Aceso ---- */

#define MEBI 0x1p20

static int by_bytes(const void *left, const void *right) {
    double a = ((const NcclTestRow *)left)->bytes, b = ((const NcclTestRow *)right)->bytes;
    return (a > b) - (a < b);
}

/* Adds a size in MB; `sent`: bytes that a rank sends of a byte of it. */
static AmStatus add_aceso_row(MeasurementReader *self, double mebi, double seconds, double sent) {
    if (!(mebi * MEBI >= 1 && mebi < 1e9)) return fail_at(self, NULL, "a size of one byte to 10^9 MB");
    if (!(seconds > 0 && seconds < 1e6)) return fail_at(self, NULL, "a time or a rate above 0");
    if (!(mebi * MEBI / seconds < 1e15)) return fail_at(self, NULL, "a rate below 1,000,000 GB/s");
    if (self->row_count == MOST_ROWS) return fail_at(self, NULL, "at most 4096 rows");
    ARENA_RESERVE(self->import->arena, self->rows, self->row_count, self->row_capacity);
    if (self->import->arena->failed) return am_fail_memory(self->error, MOST_ROWS);
    self->rows[self->row_count++] = (NcclTestRow){mebi * MEBI, seconds, sent, self->place};
    return AM_OK;
}

/* Reads "12,2.237": MB and milliseconds. */
static AmStatus read_aceso_collective(MeasurementReader *self, const FileBytes *file) {
    const char *kind = strstr(file->name, "all_reduce_");
    int ranks = 0, matched = 0;
    if (!kind || sscanf(kind, "all_reduce_%dgpus%n", &ranks, &matched) != 1 || matched == 0 || ranks < 2 ||
        ranks > MOST_RANKS)
        return am_fail(
            self->error, AM_ERROR_INPUT, file->name,
            "a table of Aceso (expected a file name such as prim_gpt_all_reduce_4gpus.csv, which has "
            "the collective and the ranks)");
    for (const char *line = file->data; *line;) {
        const char *end = line + strcspn(line, "\n"), *place = line + strspn(line, " \t\r");
        char *behind_size = NULL, *behind_time = NULL;
        double mebi = place < end ? strtod(place, &behind_size) : 0, milliseconds = 0;
        if (behind_size && behind_size != place && *behind_size == ',')
            milliseconds = strtod(behind_size + 1, &behind_time);
        bool is_row = behind_time && behind_time != behind_size + 1 && behind_time <= end;
        self->place = line - file->data;
        if (!is_row && line != file->data && place < end)
            return fail_at(self, NULL, "a size in MB and a time in ms");
        if (is_row) TRY(add_aceso_row(self, mebi, milliseconds * 1e-3, 2 * (ranks - 1.0) / ranks));
        line = end + (*end == '\n');
    }
    for (int k = 0; k < ranks; k++) TRY(add_rank(self, NULL, "server"));
    return AM_OK;
}

/* Reads "1,2,4" and below it "17.2, 24.8, 31.3": MB and GB/s. */
static AmStatus read_aceso_transfers(MeasurementReader *self, const FileBytes *file) {
    const char *size = file->data, *end = strchr(file->data, '\n'), *rate = end ? end + 1 : NULL;
    const char *end_of_rates = rate ? rate + strcspn(rate, "\n") : NULL;
    bool is_between = strstr(file->name, IMPORT_ACESO_BETWEEN) != NULL;
    while (rate && size < end) {
        char *behind_size, *behind_rate;
        double mebi = strtod(size, &behind_size), giga = strtod(rate, &behind_rate);
        self->place = size - file->data;
        if (behind_size == size || behind_rate == rate || behind_size > end || behind_rate > end_of_rates)
            return fail_at(self, NULL, "a line of sizes in MB, and as many rates in GB/s below it");
        TRY(add_aceso_row(self, mebi, mebi * MEBI / giga / 1e9, 1));
        size = behind_size + strspn(behind_size, ", \t\r");
        rate = behind_rate + strspn(behind_rate, ", \t\r");
    }
    const char *rest = rate ? rate + strspn(rate, " \t\r\n") : file->data + file->length;
    self->place = rest - file->data;
    if (*rest && rest < end_of_rates) return fail_at(self, NULL, "as many rates in GB/s as sizes");
    if (*rest) return fail_at(self, NULL, "nothing after the line of rates");
    TRY(add_rank(self, NULL, "server"));
    return add_rank(self, NULL, is_between ? "another" : "server");
}

static AmStatus read_aceso(MeasurementReader *self, const FileBytes *file) {
    bool is_collective = strncmp(file->data, IMPORT_ACESO_HEAD, strlen(IMPORT_ACESO_HEAD)) == 0;
    TRY(is_collective ? read_aceso_collective(self, file) : read_aceso_transfers(self, file));
    if (self->row_count > 0) qsort(self->rows, (size_t)self->row_count, sizeof *self->rows, by_bytes);
    for (int32_t k = 1; k < self->row_count; k++) {
        self->place = self->rows[k].place;
        if (self->rows[k].bytes == self->rows[k - 1].bytes) return fail_at(self, NULL, "each size once");
    }
    return AM_OK;
}

/* The least size whose time is not latency alone. */
#define LARGE_BYTES 65536

/* Fits a link to the measured times. */
static json_t *fit_link(const MeasurementReader *self) {
    /* An all-reduce sends 2(n-1)/n bytes a byte, another collective (n-1)/n. The figures of the largest size
     * have the most digits. */
    double one = (self->ranks - 1.0) / self->ranks;
    double rounds = self->rows[self->row_count - 1].sent_per_byte > 1.5 * one ? 2 : 1,
           n = self->hosts > 1 ? self->hosts : self->ranks;
    bool is_large = self->rows[0].bytes >= LARGE_BYTES;
    double delay = self->rows[0].seconds, best = 0, rates[MOST_POINTS];
    for (int32_t k = 0; is_large && k < self->row_count; k++) delay = fmin(delay, self->rows[k].seconds / 2);
    double latency = delay / (rounds * (n - 1));
    int32_t points = 0, stride = (self->row_count + MOST_POINTS - 1) / MOST_POINTS;
    for (int32_t k = self->row_count - 1; k > (is_large ? -1 : 0); k -= stride) {
        const NcclTestRow *row = &self->rows[k];
        /* Noise must not make small sizes fast: at least half of the time is transfer. */
        double transfer = fmax(row->seconds - delay, row->seconds / 2);
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

static AmStatus add_link(MeasurementReader *self) {
    Import *import = self->import;
    if (self->row_count < 2) return fail_at(self, "measurements", "at least two sizes");
    if (self->ranks < 2) return fail_at(self, "measurements", "at least two ranks");
    self->hosts = (int32_t)json_object_size(self->host_names);
    json_t **link = self->hosts > 1 ? &import->measured_between : &import->measured_inside;
    if (*link)
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "measures the link %s servers, as another file does",
                       self->hosts > 1 ? "between" : "inside");
    *link = fit_link(self);
    const char *source = arena_copy_string(import->arena, self->source);
    *(self->hosts > 1 ? &import->between_source : &import->inside_source) = source;
    if (self->hosts > (int32_t)json_object_size(import->measured_hosts)) {
        json_decref(import->measured_hosts);
        import->measured_hosts = json_incref(self->host_names);
        import->measured_source = source;
    }
    return *link && source ? AM_OK : am_fail_memory(self->error, 0);
}

bool import_is_aceso(const FileBytes *file) {
    bool has_name = strstr(file->name, IMPORT_ACESO_INSIDE) || strstr(file->name, IMPORT_ACESO_BETWEEN);
    return has_name || strncmp(file->data, IMPORT_ACESO_HEAD, strlen(IMPORT_ACESO_HEAD)) == 0;
}

AmStatus import_measurements(Import *import, const FileBytes *file, AmError *error) {
    MeasurementReader self = {.import = import,
                              .source = file->name,
                              .file = file,
                              .error = error,
                              .time_column = 5,
                              .host_names = json_object()};
    json_t *root = NULL;
    AmStatus status;
    if (file->data[strspn(file->data, " \t\r\n")] == '{') {
        TRY_OR_FAIL(json_parse(&root, file->name, file->data, (size_t)file->length, error));
        TRY_OR_FAIL(read_json(&self, root));
    } else if (strstr(file->data, IMPORT_VTRAIN_HEAD)) {
        TRY_OR_FAIL(read_vtrain(&self, file));
    } else if (import_is_aceso(file)) {
        TRY_OR_FAIL(read_aceso(&self, file));
    } else {
        TRY_OR_FAIL(read_table(&self, file));
    }
    TRY_OR_FAIL(add_link(&self));
fail:
    json_decref(root);
    json_decref(self.host_names);
    return status;
}
