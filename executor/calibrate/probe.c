/* Measures this host and its GPUs: from measured times to the rates of a cluster file.
 *
 * probe_measure() measures each kind of device once, in parts: products, element-wise operators and launches
 * give peaks and curves (measure_peaks()), kernels of ranks give classes of operators, and ranks and copies
 * give links and collectives (measure_links()). probe_measure_host() measures the host alone, as `host:N`
 * needs it. `begin_part` divides time and progress among the parts.
 */
#include "executor/calibrate/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "automap_features.h"
#include "base/files/json_digits.h"
#include "base/system/clock.h"
#include "executor/calibrate/probe_collectives.h"

enum { MOST_POINTS = 24, MOST_DEVICES = 256 };
static const int64_t small_copy = 1 << 18; /* bytes */
const ProbePace probe_full_pace = {.series = 6,
                                   .series_seconds = 0.02,
                                   .long_seconds = 0.1,
                                   .learning_seconds = 0.4,
                                   .operator_seconds = 0.008,
                                   .late_seconds = 8,
                                   .least_series = 2,
                                   .collective_seconds = 0.1};
const ProbePace probe_short_pace = {.series = 3,
                                    .series_seconds = 0.004,
                                    .long_seconds = 0.02,
                                    .learning_seconds = 0.2,
                                    .operator_seconds = 0.002,
                                    .late_seconds = 0.5,
                                    .least_series = 1,
                                    .is_sparse = true,
                                    .collective_seconds = 0.03};

static const double link_seconds = 3;  /* there is so much time for a link, however late it is */
static const double most_seconds = 10; /* for its collectives, and never less than for a link */
/* Approximate fractions of the time, for progress: the kernels that determine peaks, with those
 * that ranks run (or, on devices without ranks, alone), and the link. */
static const double peaks_part = 0.12, devices_part = 0.85;

typedef struct Series {
    double sizes[MOST_POINTS], seconds[MOST_POINTS]; /* FLOPs or bytes of one run, and its time */
    int32_t count;
} Series;

typedef struct Probe {
    const ProbeBackEnd *back_end;
    const ProbePace *pace;
    ProbeDevice *device;
    double end;    /* no larger size is begun later */
    int32_t share; /* devices of the cluster to a device of the machine */
    ProbeListener listener;
    AmError *error;
} Probe;

typedef enum Work { WORK_PRODUCT, WORK_ELEMENTS, WORK_LAUNCH, WORK_COPY } Work;

static AmStatus run_work(Probe *self, Work work, int32_t detail, int64_t size, int32_t repeats,
                         double *seconds) {
    const ProbeBackEnd *back_end = self->back_end;
    AmError *error = self->error;
    switch (work) {
    case WORK_PRODUCT: return back_end->product(self->device, (Dtype)detail, size, repeats, seconds, error);
    case WORK_ELEMENTS: return back_end->element_wise(self->device, size, repeats, seconds, error);
    case WORK_LAUNCH: return back_end->launch(self->device, repeats, seconds, error);
    default: return back_end->copy(self->device, detail, size, repeats, seconds, error);
    }
}

/* Returns the time of one run: the best of some series, each as long as the clock needs by the best so far,
 * so that one slow first run does not shorten them. The first run of all warms up, and counts if runs are
 * long. */
static AmStatus measure_run(Probe *self, Work work, int32_t detail, int64_t size, double *seconds) {
    double first;
    TRY(run_work(self, work, detail, size, 1, &first));
    *seconds = first;
    if (first > self->pace->long_seconds) return AM_OK;
    TRY(run_work(self, work, detail, size, 1, seconds));
    for (int32_t k = 0; k < self->pace->series; k++) {
        double all, repeats = ceil(self->pace->series_seconds / fmax(*seconds, 1e-7));
        /* Enough rounds for a median, also where the first ones were disturbed. */
        if (work == WORK_COPY && size <= small_copy) repeats = fmax(repeats, 32);
        int32_t count = repeats < 1 ? 1 : repeats > 1000 ? 1000 : (int32_t)repeats;
        TRY(run_work(self, work, detail, size, count, &all));
        *seconds = fmin(*seconds, all / count);
    }
    *seconds = fmax(*seconds, 1e-9);
    return AM_OK;
}

/* Sizes that grow by `factor` as long as memory, patience and time last. A size has work * size^work_power
 * FLOPs or bytes of work, and memory * size^memory_power bytes of memory. */
typedef struct Growth {
    int64_t first, last, factor;
    double work, work_power, memory, memory_power;
} Growth;

static AmStatus measure_series(Probe *self, Series *series, Work work, int32_t detail, const Growth *growth) {
    series->count = 0;
    for (int64_t size = growth->first; size <= growth->last && series->count < MOST_POINTS;
         size *= growth->factor) {
        bool fits =
            growth->memory * pow((double)size, growth->memory_power) <= (double)self->device->usable_bytes;
        bool late = clock_seconds() > self->end;
        bool is_long = series->count > 0 && series->seconds[series->count - 1] > self->pace->long_seconds;
        if (series->count > 0 && (!fits || late || is_long)) break;
        TRY(measure_run(self, work, detail, size, &series->seconds[series->count]));
        series->sizes[series->count++] = growth->work * pow((double)size, growth->work_power);
    }
    return AM_OK;
}

static double rate_of(const Series *series, int32_t k, double launch) {
    return series->sizes[k] / fmax(series->seconds[k] - launch, 0.1 * series->seconds[k]);
}

/* Returns the best rate among runs that are long compared with a launch; in short ones the remainder is
 * mostly noise. */
static double best_rate(const Series *series, double launch) {
    double best = 0;
    for (int32_t k = 0; k < series->count; k++)
        if (series->seconds[k] >= 2 * launch) best = fmax(best, rate_of(series, k, launch));
    return best > 0 ? best : rate_of(series, series->count - 1, launch);
}

/* Returns [size, fraction of the peak] as JSON. */
static json_t *curve(const Series *series, double launch) {
    json_t *points = json_array();
    double peak = best_rate(series, launch);
    for (int32_t k = 0; k < series->count; k++) {
        double fraction = fmin(1, fmax(rate_of(series, k, launch) / peak, 1e-4));
        json_array_append_new(
            points, json_pack("[o, o]", json_four_digits(series->sizes[k]), json_four_digits(fraction)));
    }
    return points;
}

static AmStatus measure_products(Probe *self, json_t *rates, json_t *efficiency, double launch) {
    static const Dtype types[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        double width = (double)dtype_bytes(types[k]);
        Growth growth = {32, 16384, 2, 2, 3, 3 * width, 2};
        Series series;
        if (!self->back_end->has_type(types[k])) continue;
        if (types[k] != DTYPE_F32) growth.factor = 4;
        AmStatus status = measure_series(self, &series, WORK_PRODUCT, (int32_t)types[k], &growth);
        if (status == AM_ERROR_INPUT && types[k] != DTYPE_F32) {
            if (self->error) *self->error = (AmError){0};
            continue;
        }
        if (status != AM_OK) return status;
        int64_t side = growth.first; /* where operators are not measured, as ranks run them */
        for (int32_t s = 0; s < series.count && !self->back_end->operators; s++, side *= growth.factor)
            TRY(probe_report_product(&self->listener, types[k], side, series.seconds[s] * self->share,
                                     self->error));
        probe_progress(&self->listener, (double)(k + 1) / (sizeof types / sizeof *types));
        double rate = best_rate(&series, launch) / self->share;
        json_object_set_new(rates, dtype_name(types[k]), json_four_digits(rate));
        char key[32] = "dot";
        if (types[k] != DTYPE_F32) snprintf(key, sizeof key, "dot_%s", dtype_name(types[k]));
        json_object_set_new(efficiency, key, curve(&series, launch));
    }
    return AM_OK;
}

/* Measures operators on as many ranks at once as there are devices, or processors for them. */
static AmStatus measure_operators(Probe *self, json_t *type) {
    int32_t processors = self->back_end->processors(), ranks = self->share;
    json_t *operators = NULL;
    self->listener.from = peaks_part;
    self->listener.part = devices_part - peaks_part;
    AmStatus status = self->back_end->operators(&operators, ranks < processors ? ranks : processors,
                                                ranks < processors ? processors / ranks : 1, self->end,
                                                self->pace, &self->listener, self->error);
    json_object_set_new(type, "operators", operators);
    json_object_set_new(type, "overlaps_communication", json_false());
    if (ranks > processors)
        json_object_set_new(type, "processors", json_four_digits((double)processors / (double)ranks));
    return status;
}

/* Rates and launches of the open device. */
static AmStatus measure_peaks(Probe *self, json_t **type) {
    static const Growth elements = {1 << 10, 1 << 26, 4, 12, 1, 8, 1};
    double launch;
    Series memory;
    *type = json_object();
    json_t *rates = json_object(), *efficiency = json_object();
    json_object_set_new(*type, "memory_bytes", json_integer(self->device->memory_bytes / self->share));
    json_object_set_new(*type, "flops_per_second", rates);
    json_object_set_new(*type, "efficiency", efficiency);
    TRY(measure_run(self, WORK_LAUNCH, 0, 1, &launch));
    TRY(measure_series(self, &memory, WORK_ELEMENTS, 0, &elements));
    TRY(measure_products(self, rates, efficiency, launch));
    json_object_set_new(*type, "kernel_launch_seconds", json_four_digits(launch));
    json_object_set_new(*type, "memory_bytes_per_second",
                        json_four_digits(best_rate(&memory, launch) / self->share));
    json_object_set_new(efficiency, "memory", curve(&memory, launch));
    return AM_OK;
}

static json_t *link_of(const Probe *self, const Series *series, double latency) {
    return json_pack("{s:o, s:o, s:o}", "bytes_per_second",
                     json_four_digits(best_rate(series, latency) / self->share), "latency_seconds",
                     json_four_digits(latency), "efficiency", curve(series, latency));
}

/* Measures copies from the open device to another: the time of the smallest copy is latency. */
static AmStatus measure_copies(Probe *self, int32_t peer, json_t **link) {
    static const Growth bytes = {1 << 12, 1 << 28, 8, 1, 1, 2, 1};
    double latency;
    Series series;
    TRY(measure_run(self, WORK_COPY, peer, 4, &latency));
    TRY(measure_series(self, &series, WORK_COPY, peer, &bytes));
    *link = link_of(self, &series, latency);
    return AM_OK;
}

static AmStatus open_device(Probe *self, int32_t index) {
    if (self->device) self->back_end->close(self->device);
    self->device = NULL;
    TRY(self->back_end->open(&self->device, index, self->error));
    self->listener.type = self->device->name;
    return AM_OK;
}

static AmStatus choose_back_end(const ProbeBackEnd **back_end, const char *device, AmError *error) {
    *back_end = &probe_cpu;
    if (device && strcmp(device, "cpu") == 0) return AM_OK;
    if (device && strcmp(device, "cuda") != 0)
        return am_fail(error, AM_ERROR_USAGE, "", "there is no device '%s': cpu or cuda", device);
#ifdef AUTOMAP_HAVE_CUDA
    int32_t count = 0;
    AmStatus status = probe_cuda.count(&count, device ? error : NULL);
    if (status == AM_OK) *back_end = &probe_cuda;
    return device ? status : AM_OK;
#else
    if (!device) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "",
                   "device cuda: this build has no CUDA (configure it with -DAUTOMAP_CUDA=ON)");
#endif
}

/* Measures one server for each run of equal devices; those of one name once. */
static AmStatus measure_servers(Probe *self, json_t *types, json_t *servers, int32_t count) {
    json_t *server = NULL;
    for (int32_t k = 0; k < count; k++) {
        TRY(open_device(self, k));
        const char *name = self->device->name;
        if (!json_object_get(types, name)) {
            json_t *type = NULL;
            self->listener.part = self->back_end->operators ? peaks_part : devices_part;
            AmStatus status = measure_peaks(self, &type);
            if (status == AM_OK && self->back_end->operators) status = measure_operators(self, type);
            json_object_set_new(types, name, type);
            if (status != AM_OK) return status;
        }
        const char *before = server ? json_string_value(json_object_get(server, "device_type")) : "";
        if (strcmp(before, name) != 0) {
            server = json_pack("{s:i, s:s, s:i}", "count", 1, "device_type", name, "devices", 0);
            json_array_append_new(servers, server);
        }
        json_int_t devices = json_integer_value(json_object_get(server, "devices")) + self->share;
        json_object_set_new(server, "devices", json_integer(devices));
    }
    return AM_OK;
}

/* Finds the first back end by which ranks can communicate; false, with warnings, if there is none. */
static bool find_ranks(Probe *self, ProbeRanks *ranks, int32_t count) {
    for (int32_t way = 0; self->back_end->find_ranks(ranks, way, count * self->share, count); way++) {
        AmError error = {0};
        ranks->most_bytes = self->device->usable_bytes;
        if (!ranks->stopwatch || probe_try_ranks(ranks, &error) == AM_OK) return true;
        am_warn(self->listener.warnings, "collectives '%s' are not measured: %s", ranks->comm->name,
                error.text);
    }
    return false;
}

static AmStatus measure_collectives(Probe *self, const ProbeRanks *ranks, double seconds, json_t *link) {
    json_t *collectives = NULL;
    AmStatus status =
        probe_collectives(&collectives, ranks, clock_seconds() + seconds, &self->listener, self->error);
    if (status == AM_OK && json_object_size(collectives) > 0)
        return json_object_set_new(link, "collectives", collectives) == 0 ? AM_OK
                                                                          : am_fail_memory(self->error, 64);
    json_decref(collectives);
    if (status == AM_OK) am_warn(self->listener.warnings, "there was no time to measure collectives");
    return status;
}

/* Measures the link between neighbours, for all links. */
static AmStatus measure_link(Probe *self, int32_t count, double seconds, json_t **link) {
    ProbeRanks ranks;
    TRY(open_device(self, 0));
    bool communicates = find_ranks(self, &ranks, count);
    if (communicates && ranks.stopwatch) { /* by transfers between stages, where there is time for them */
        Series series;
        double end = clock_seconds() + link_seconds;
        TRY(probe_transfers(series.sizes, series.seconds, &series.count, &ranks, end, self->error));
        if (series.count > 1) *link = link_of(self, &series, series.seconds[0]);
    }
    if (!*link) TRY(measure_copies(self, count > 1 ? 1 : 0, link));
    return communicates ? measure_collectives(self, &ranks, seconds, *link) : AM_OK;
}

static AmStatus measure_links(Probe *self, json_t *root, json_t *servers, int32_t count, double seconds) {
    json_t *link = NULL, *server;
    size_t k;
    if (count * self->share < 2) {
        if (self->back_end != &probe_cpu)
            am_warn(self->listener.warnings,
                    "there is one %s: no link and no collectives to measure (--devices N: N that share it)",
                    self->device->name);
        return AM_OK;
    }
    self->listener.from = devices_part;
    self->listener.part = 1 - devices_part;
    self->end = fmax(self->end, clock_seconds() + link_seconds);
    AmStatus status = measure_link(self, count, fmax(link_seconds, fmin(most_seconds, seconds / 2)), &link);
    if (status != AM_OK) json_decref(link);
    TRY(status);
    json_object_set_new(root, "links", json_pack("{s:o}", "link", link));
    json_array_foreach(servers, k, server) if (json_integer_value(json_object_get(server, "devices")) > 1)
        json_object_set_new(server, "link", json_string("link"));
    if (json_array_size(servers) > 1) json_object_set_new(root, "between_servers", json_string("link"));
    return AM_OK;
}

AmStatus probe_measure(json_t **description, const char *device, int32_t devices, double seconds,
                       const ProbeListener *listener, AmError *error) {
    const ProbeListener no_listener = {0};
    Probe self = {.pace = &probe_full_pace,
                  .end = clock_seconds() + seconds,
                  .listener = listener ? *listener : no_listener,
                  .error = error,
                  .share = 1};
    int32_t count = 0;
    AmStatus status;
    *description = NULL;
    json_t *root = json_pack("{s:s, s:s}", "format", "automap-cluster-1", "name", "this host");
    json_t *types = json_object(), *servers = json_array();
    json_object_set_new(root, "device_types", types);
    json_object_set_new(root, "servers", servers);
    TRY_OR_FAIL(choose_back_end(&self.back_end, device, error));
    TRY_OR_FAIL(self.back_end->count(&count, error));
    if (count > MOST_DEVICES) count = MOST_DEVICES;
    if (devices > 0 && devices < count) count = devices;
    if (devices > count) {
        self.share = devices / count;
        if (devices % count != 0) {
            status = am_fail(error, AM_ERROR_USAGE, "", "%d devices cannot share %d evenly", devices, count);
            goto fail;
        }
    }
    TRY_OR_FAIL(measure_servers(&self, types, servers, count));
    TRY_OR_FAIL(measure_links(&self, root, servers, count, seconds));
    self.listener.from = 1;
    probe_progress(&self.listener, 0);
    *description = json_incref(root);
fail:
    if (self.device) self.back_end->close(self.device);
    json_decref(root);
    return status;
}

/* Begins the part of the progress from `from` to `to`, and sets the time until which it is measured. */
static void begin_part(Probe *self, double begun, double seconds, double from, double to) {
    self->listener.from = from;
    self->listener.part = to - from;
    self->end = begun + to * seconds;
}

/* Operators of a type as `ranks` ranks run them, each with its share of the processors. */
static AmStatus measure_host_operators(Probe *self, json_t *type, int32_t ranks) {
    json_t *operators = NULL;
    int32_t threads = self->back_end->processors() / ranks;
    AmStatus status = self->back_end->operators(&operators, ranks, threads > 0 ? threads : 1, self->end,
                                                self->pace, &self->listener, self->error);
    json_object_set_new(type, "operators", operators);
    return status;
}

/* Adds the collectives of `count` ranks to a link. */
static AmStatus measure_host_collectives(Probe *self, json_t *link, int32_t count) {
    static const int64_t sizes[] = {256, 4096, 32768, 262144, 2097152, 0};
    ProbeRanks ranks;
    if (!self->back_end->find_ranks(&ranks, 0, count, 1)) return AM_OK;
    ranks.sizes = sizes;
    ranks.most_bytes = self->device->usable_bytes;
    ranks.patience = self->pace->collective_seconds;
    json_t *collectives = NULL;
    AmStatus status = probe_collectives(&collectives, &ranks, self->end, &self->listener, self->error);
    if (status == AM_OK && json_object_size(collectives) > 0)
        json_object_set(link, "collectives", collectives);
    json_decref(collectives);
    return status;
}

AmStatus probe_measure_host(json_t **measurement, double seconds, const ProbeListener *listener,
                            AmError *error) {
    const ProbeListener no_listener = {0};
    Probe self = {.pace = &probe_short_pace,
                  .back_end = &probe_cpu,
                  .listener = listener ? *listener : no_listener,
                  .error = error,
                  .share = 1};
    double begun = clock_seconds();
    int32_t processors = self.back_end->processors();
    int32_t ranks = processors < PROBE_MOST_RANKS ? processors : PROBE_MOST_RANKS;
    json_t *alone = NULL, *together = NULL, *link = NULL, *shared = json_object();
    AmStatus status;
    *measurement = NULL;
    TRY_OR_FAIL(open_device(&self, 0));
    begin_part(&self, begun, seconds, 0, 0.08);
    TRY_OR_FAIL(measure_peaks(&self, &alone));
    together = ranks > 1 ? json_object() : NULL;
    begin_part(&self, begun, seconds, 0.08, 0.5);
    if (together) TRY_OR_FAIL(measure_host_operators(&self, together, ranks));
    begin_part(&self, begun, seconds, 0.5, 0.56);
    TRY_OR_FAIL(measure_copies(&self, 0, &link));
    begin_part(&self, begun, seconds, 0.56, 0.72);
    if (ranks > 1) TRY_OR_FAIL(measure_host_collectives(&self, link, ranks));
    begin_part(&self, begun, seconds, 0.72, 0.84);
    if (2 * ranks <= PROBE_MOST_RANKS) TRY_OR_FAIL(measure_host_collectives(&self, shared, 2 * ranks));
    /* The last part; time that is not used here comes from `together`. */
    begin_part(&self, begun, seconds, 0.84, 1);
    TRY_OR_FAIL(measure_host_operators(&self, alone, 1));
    self.listener.from = 1;
    probe_progress(&self.listener, 0);
    *measurement = json_pack("{s:i, s:O, s:O?, s:O, s:O}", "processors", processors, "alone", alone,
                             "together", together, "link", link, "shared", shared);
    if (*measurement && !together) json_object_del(*measurement, "together");
    if (!*measurement) status = am_fail_memory(error, 0);
fail:
    if (self.device) self.back_end->close(self.device);
    json_decref(alone);
    json_decref(together);
    json_decref(link);
    json_decref(shared);
    return status;
}
