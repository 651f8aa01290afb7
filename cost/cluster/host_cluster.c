/* From a measurement of this machine to a cluster file for N ranks; the formulas are in host_cluster.h.
 *
 * All numbers are rounded to four digits, so that a description read from the cache equals the first one.
 */
#include "cost/cluster/host_cluster.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/files/json.h"
#include "base/files/json_digits.h"
#include "cost/cluster/cluster.h"

typedef struct HostScale {
    json_t *measurement;
    int64_t memory_bytes;
    const char *source;
    AmError *error;
    int32_t ranks, processors;
    double sharing; /* ranks of a processor, at least 1 */
    double weight;  /* of "together" */
} HostScale;

AmStatus host_cluster_ranks(int32_t *ranks, const char *name, AmError *error) {
    *ranks = 0;
    if (strncasecmp(name, "host:", 5) != 0) return AM_OK;
    char *end;
    long value = name[5] >= '0' && name[5] <= '9' ? strtol(name + 5, &end, 10) : 0;
    if (value < 1 || value > HOST_MOST_RANKS || *end != '\0')
        return am_fail(error, AM_ERROR_USAGE, "", "cluster \"%s\": expected host:N with N from 1 to %d", name,
                       HOST_MOST_RANKS);
    *ranks = (int32_t)value;
    return AM_OK;
}

/* Interpolates between two times that are alike in order of magnitude. */
static double between(double alone, double together, double weight) {
    if (alone > 0 && together > 0) return exp((1 - weight) * log(alone) + weight * log(together));
    return (1 - weight) * alone + weight * together;
}

/* Returns the curve of one class for ranks between one and all processors; the caller's reference. */
static json_t *mix_curves(json_t *alone, json_t *together, double weight) {
    json_t *from = json_object_get(alone, "seconds"), *to = json_object_get(together, "seconds");
    if (!alone || !to || !json_equal(json_object_get(alone, "sizes"), json_object_get(together, "sizes")) ||
        json_array_size(from) != json_array_size(to))
        return json_incref(together ? together : alone);
    json_t *seconds = json_array();
    for (size_t k = 0; k < json_array_size(to); k++)
        json_array_append_new(seconds,
                              json_four_digits(between(json_number_value(json_array_get(from, k)),
                                                       json_number_value(json_array_get(to, k)), weight)));
    return json_pack("{s:O, s:o}", "sizes", json_object_get(together, "sizes"), "seconds", seconds);
}

static json_t *mix_operators(json_t *alone, json_t *together, double weight) {
    json_t *mixed = json_object(), *curve;
    const char *name;
    json_object_foreach(alone, name, curve) {
        json_t *other = json_object_get(together, name);
        json_object_set_new(mixed, name, mix_curves(curve, other, weight));
    }
    json_object_foreach(together, name, curve) if (!json_object_get(mixed, name))
        json_object_set(mixed, name, curve);
    return mixed;
}

static AmStatus describe_type(json_t **type, const HostScale *scale) {
    json_t *alone, *together = json_object_get(scale->measurement, "together"), *rates, *rate, *operators;
    const char *source = scale->source, *name;
    double memory_rate;
    TRY(json_get_object(&alone, scale->measurement, "alone", source, "$", scale->error));
    TRY(json_get_object(&rates, alone, "flops_per_second", source, "$.alone", scale->error));
    TRY(json_get_number(&memory_rate, alone, "memory_bytes_per_second", 1, 1e30, source, "$.alone",
                        scale->error));
    TRY(json_get_object(&operators, alone, "operators", source, "$.alone", scale->error));
    if (scale->processors > 1)
        TRY(json_get_object(&together, scale->measurement, "together", source, "$", scale->error));
    if (together) TRY(json_get_object(&together, together, "operators", source, "$.together", scale->error));
    json_t *own_rates = json_object();
    json_object_foreach(rates, name, rate)
        json_object_set_new(own_rates, name, json_four_digits(json_number_value(rate) / scale->ranks));
    /* One thread's loops make the rate of memory, so ranks lose of it only where they share processors. */
    *type = json_pack("{s:I, s:o, s:o, s:O*, s:O*, s:b, s:o}", "memory_bytes",
                      (json_int_t)(scale->memory_bytes / scale->ranks), "memory_bytes_per_second",
                      json_four_digits(memory_rate / scale->sharing), "flops_per_second", own_rates,
                      "kernel_launch_seconds", json_object_get(alone, "kernel_launch_seconds"), "efficiency",
                      json_object_get(alone, "efficiency"), "overlaps_communication", 0, "operators",
                      mix_operators(operators, together, scale->weight));
    if (!*type) return am_fail_memory(scale->error, 0);
    if (scale->sharing > 1) json_object_set_new(*type, "processors", json_four_digits(1 / scale->sharing));
    return AM_OK;
}

/* Returns true for a curve over numbers of ranks and bytes with a time for each pair. */
static bool is_curve(json_t *curve) {
    json_t *sizes = json_object_get(curve, "sizes");
    size_t points = json_array_size(json_array_get(sizes, 0)) * json_array_size(json_array_get(sizes, 1));
    return json_array_size(sizes) == 2 && points > 0 &&
           json_array_size(json_object_get(curve, "seconds")) == points;
}

/* Returns the seconds of a collective of so many ranks and bytes by a curve that has both; below 0
 * otherwise. */
static double find_seconds(json_t *curve, json_t *ranks, json_t *bytes) {
    json_t *sizes = json_object_get(curve, "sizes"), *rows, *columns, *value;
    size_t row, column;
    if (!is_curve(curve)) return -1;
    rows = json_array_get(sizes, 0);
    columns = json_array_get(sizes, 1);
    json_array_foreach(rows, row, value) if (json_equal(value, ranks)) break;
    json_array_foreach(columns, column, value) if (json_equal(value, bytes)) break;
    if (row == json_array_size(rows) || column == json_array_size(columns)) return -1;
    return json_number_value(
        json_array_get(json_object_get(curve, "seconds"), row * json_array_size(columns) + column));
}

/* Returns the curve of one kind of collective of ranks that share processors. */
static json_t *share_curve(json_t *own, json_t *shared, double sharing) {
    bool has_shared = is_curve(shared);
    json_t *sizes = json_object_get(has_shared ? shared : own, "sizes");
    json_t *seconds = json_array(), *ranks, *bytes;
    size_t row, column;
    json_array_foreach(json_array_get(sizes, 0), row, ranks) {
        json_array_foreach(json_array_get(sizes, 1), column, bytes) {
            double one = find_seconds(own, ranks, bytes), two = find_seconds(shared, ranks, bytes), value;
            if (!has_shared) value = one * sharing;
            else if (sharing >= 2 || one < 0) value = two * fmax(sharing, 2) / 2;
            else value = one + (sharing - 1) * (two - one);
            json_array_append_new(seconds, json_four_digits(fmax(value, 1e-9)));
        }
    }
    return json_pack("{s:O, s:o}", "sizes", sizes, "seconds", seconds);
}

static double second_of(json_t *curve, size_t k) {
    return json_number_value(json_array_get(json_object_get(curve, "seconds"), k));
}

/* Bounds the time of each collective by those that give the same result: a reduce-scatter and an all-gather
 * make an all-reduce, and an all-reduce makes either. A single disturbed figure then decides nothing. */
static json_t *bound_collectives(json_t *collectives) {
    json_t *reduce = json_object_get(collectives, "all_reduce");
    json_t *parts[2] = {json_object_get(collectives, "all_gather"),
                        json_object_get(collectives, "reduce_scatter")};
    json_t *sizes = json_object_get(reduce, "sizes");
    if (!is_curve(reduce) || !is_curve(parts[0]) || !is_curve(parts[1]) ||
        !json_equal(sizes, json_object_get(parts[0], "sizes")) ||
        !json_equal(sizes, json_object_get(parts[1], "sizes")))
        return json_incref(collectives);
    json_t *bounded = json_deep_copy(collectives);
    for (size_t k = 0; k < json_array_size(json_object_get(reduce, "seconds")); k++) {
        double both = second_of(parts[0], k) + second_of(parts[1], k), all = fmin(second_of(reduce, k), both);
        static const char *const names[] = {"all_gather", "reduce_scatter"};
        for (int p = 0; p < 2; p++)
            json_array_set_new(json_object_get(json_object_get(bounded, names[p]), "seconds"), k,
                               json_four_digits(fmin(second_of(parts[p], k), all)));
        json_array_set_new(json_object_get(json_object_get(bounded, "all_reduce"), "seconds"), k,
                           json_four_digits(all));
    }
    return bounded;
}

/* Ranks with a processor each are no slower than ranks that share one: a longer time was disturbed. */
static json_t *bound_by_shared(json_t *own, json_t *shared) {
    json_t *bounded = json_deep_copy(own), *curve, *ranks, *bytes;
    const char *kind;
    size_t row, column;
    json_object_foreach(bounded, kind, curve) {
        json_t *sizes = json_object_get(curve, "sizes"), *seconds = json_object_get(curve, "seconds");
        json_t *columns = json_array_get(sizes, 1);
        if (!is_curve(curve)) continue;
        json_array_foreach(json_array_get(sizes, 0), row, ranks) {
            json_array_foreach(columns, column, bytes) {
                size_t k = row * json_array_size(columns) + column;
                double other = find_seconds(json_object_get(shared, kind), ranks, bytes);
                if (other > 0 && other < second_of(curve, k))
                    json_array_set_new(seconds, k, json_four_digits(other));
            }
        }
    }
    return bounded;
}

static json_t *describe_collectives(const HostScale *scale, json_t *own, json_t *shared) {
    if (scale->sharing <= 1) return bound_by_shared(own, shared);
    json_t *described = json_object(), *curve;
    const char *kind;
    json_object_foreach(own ? own : shared, kind, curve) {
        json_t *of_own = json_object_get(own, kind), *of_shared = json_object_get(shared, kind);
        if (is_curve(of_own) || is_curve(of_shared))
            json_object_set_new(described, kind, share_curve(of_own, of_shared, scale->sharing));
    }
    return described;
}

static AmStatus describe_link(json_t **description, const HostScale *scale) {
    json_t *link, *shared = json_object_get(scale->measurement, "shared");
    double rate, latency;
    const char *source = scale->source;
    TRY(json_get_object(&link, scale->measurement, "link", source, "$", scale->error));
    TRY(json_get_number(&rate, link, "bytes_per_second", 1, 1e30, source, "$.link", scale->error));
    TRY(json_get_number(&latency, link, "latency_seconds", 0, 3600, source, "$.link", scale->error));
    json_t *own = json_object_get(link, "collectives"), *of_shared = json_object_get(shared, "collectives");
    /* A transfer copies its bytes twice. */
    *description =
        json_pack("{s:o, s:o, s:O*}", "bytes_per_second", json_four_digits(rate / (2 * scale->sharing)),
                  "latency_seconds", json_four_digits(latency * scale->sharing), "efficiency",
                  json_object_get(link, "efficiency"));
    if (!*description) return am_fail_memory(scale->error, 0);
    json_t *collectives = describe_collectives(scale, own, of_shared);
    if (json_object_size(collectives) > 0)
        json_object_set_new(*description, "collectives", bound_collectives(collectives));
    json_decref(collectives);
    return AM_OK;
}

AmStatus host_cluster_describe(json_t **description, json_t *measurement, const Machine *machine,
                               int32_t ranks, const char *source, AmError *error) {
    int64_t processors;
    json_t *type = NULL, *link = NULL;
    char name[32];
    AmStatus status;
    *description = NULL;
    TRY(json_get_integer(&processors, measurement, "processors", 1, 1 << 20, source, "$", error));
    HostScale scale = {.measurement = measurement,
                       .memory_bytes = machine->memory_bytes,
                       .source = source,
                       .error = error,
                       .ranks = ranks,
                       .processors = (int32_t)processors,
                       .sharing = fmax(1, (double)ranks / (double)processors)};
    if (processors > 1) scale.weight = fmin(1, log(ranks) / log((double)processors));
    TRY_OR_FAIL(describe_type(&type, &scale));
    snprintf(name, sizeof name, "host:%d", ranks);
    *description =
        json_pack("{s:s, s:s, s:{s:O}, s:[{s:s, s:i}]}", "format", "automap-cluster-1", "name", name,
                  "device_types", "host", type, "servers", "device_type", "host", "devices", ranks);
    if (!*description) status = am_fail_memory(error, 0);
    if (status == AM_OK && ranks > 1) {
        TRY_OR_FAIL(describe_link(&link, &scale));
        json_object_set_new(*description, "links", json_pack("{s:O}", "memory", link));
        json_object_set_new(json_array_get(json_object_get(*description, "servers"), 0), "link",
                            json_string("memory"));
    }
fail:
    json_decref(type);
    json_decref(link);
    if (status != AM_OK) {
        json_decref(*description);
        *description = NULL;
    }
    return status;
}

AmStatus host_cluster_check(json_t *measurement, const Machine *machine, const char *source, AmError *error) {
    int32_t processors = (int32_t)json_integer_value(json_object_get(measurement, "processors"));
    const int32_t ranks[] = {1, processors, 2 * processors};
    AmStatus status = AM_OK;
    for (int k = 0; k < 3 && status == AM_OK; k++) {
        Arena arena = {0};
        json_t *description = NULL;
        Cluster *cluster = NULL;
        int32_t count = ranks[k] < 1 ? 1 : ranks[k] > HOST_MOST_RANKS ? HOST_MOST_RANKS : ranks[k];
        status = host_cluster_describe(&description, measurement, machine, count, source, error);
        if (status == AM_OK) status = cluster_from_json(&cluster, &arena, description, source, error);
        cluster_free(cluster);
        json_decref(description);
        arena_free(&arena);
    }
    return status;
}
