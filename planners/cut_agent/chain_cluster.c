/* Makes units of a chain's problem from the devices of a cluster, and chains from JSON files of arrays.
 *
 * A file (automap-arrays-1) has "computation", "activation" and "weight", one number for each layer; the
 * chain holds their prefix sums.
 */
#include "planners/cut_agent/chain_cluster.h"

#include <math.h>
#include <string.h>

#include "base/files/json.h"
#include "cost/step/memory.h"

#define MOST_NUMBERS 100000
#define MOST_DEVICES 1024
#define FORWARD_PART (1.0 / 3)
#define ROOMY        1e30

static double bandwidth(const Cluster *cluster, int32_t link) {
    return link < 0 ? INFINITY : cluster->links[link].bytes_per_second;
}

AmStatus chain_cluster_units(ChainProblem *problem, const Cluster *cluster, int32_t most_units,
                             double memory_fraction, AmError *error) {
    int32_t size = 1, count = INT32_MAX;
    double fastest = 0;
    if (cluster->server_count > most_units)
        return am_fail(error, AM_ERROR_USAGE, "",
                       "%d servers; a pipeline over a chain is cut between at most %d", cluster->server_count,
                       most_units);
    for (; count > most_units; size++) {
        count = 0;
        for (int32_t s = 0; s < cluster->server_count; s++)
            count += (cluster->servers[s].device_count + size - 1) / size;
        if (count <= most_units) break;
    }
    for (int32_t t = 0; t < cluster->type_count; t++)
        fastest = fmax(fastest, cluster->types[t].flops_per_second[DTYPE_F32]);
    problem->unit_count = 0;
    for (int32_t s = 0; s < cluster->server_count; s++) {
        const ClusterServer *server = &cluster->servers[s];
        const ClusterDeviceType *type = &cluster->types[server->type];
        double rate = type->flops_per_second[DTYPE_F32] / fastest, inside = bandwidth(cluster, server->link);
        for (int32_t k = 0; k < server->device_count; k += size) {
            int32_t devices = server->device_count - k < size ? server->device_count - k : size;
            int32_t first = server->first_device + k;
            bool is_last = k + size >= server->device_count;
            problem->units[problem->unit_count++] =
                (ChainUnit){.devices = devices,
                            .rate = rate * devices,
                            .fastest = rate,
                            .memory_bytes = memory_usable(cluster, &first, 1, memory_fraction),
                            .inside = inside,
                            .outwards = is_last ? bandwidth(cluster, cluster->between_servers) : inside};
        }
    }
    return AM_OK;
}

/* Reads a key's array of numbers >= 0; *count -1: of any length. */
static AmStatus read_numbers(double **numbers, int32_t *count, json_t *object, const char *key, double least,
                             Arena *arena, const char *source, AmError *error) {
    json_t *array;
    TRY(json_get_array(&array, object, key, source, "$", error));
    size_t length = json_array_size(array);
    if (length < 1 || length > MOST_NUMBERS || (*count >= 0 && length != (size_t)*count))
        return am_fail(error, AM_ERROR_INPUT, source, "$.%s: %zu numbers; expected %s%d", key, length,
                       *count >= 0 ? "" : "1 to ", *count >= 0 ? *count : MOST_NUMBERS);
    *count = (int32_t)length;
    *numbers = ARENA_ARRAY(arena, double, length);
    if (!*numbers) return am_fail_memory(error, 8 * (int64_t)length);
    for (size_t k = 0; k < length; k++) {
        json_t *item = json_array_get(array, k);
        double value = json_number_value(item);
        if (!json_is_number(item) || !(value >= least) || value > 1e30)
            return am_fail(error, AM_ERROR_INPUT, source, "$.%s[%zu]: expected a number from %g to 1e30", key,
                           k, least);
        (*numbers)[k] = value;
    }
    return AM_OK;
}

static AmStatus read_devices(double **rates, int32_t *count, json_t *root, Arena *arena, const char *source,
                             AmError *error) {
    int64_t devices;
    *count = -1;
    if (json_is_array(json_object_get(root, "devices"))) {
        TRY(read_numbers(rates, count, root, "devices", 1e-6, arena, source, error));
        return *count <= MOST_DEVICES
                   ? AM_OK
                   : am_fail(error, AM_ERROR_INPUT, source, "$.devices: %d rates; expected at most %d",
                             *count, MOST_DEVICES);
    }
    TRY(json_get_integer(&devices, root, "devices", 1, MOST_DEVICES, source, "$", error));
    *count = (int32_t)devices;
    *rates = ARENA_ARRAY(arena, double, devices);
    if (!*rates) return am_fail_memory(error, 8 * devices);
    for (int32_t k = 0; k < *count; k++) (*rates)[k] = 1;
    return AM_OK;
}

static AmStatus read_form(ChainProblem *problem, json_t *root, const double *rates, int32_t devices,
                          Arena *arena, const char *source, AmError *error) {
    int64_t stages = devices < 2 ? devices : 2, micro_batches = 8, per_server = devices;
    double inside = 10;
    if (json_object_get(root, "stages"))
        TRY(json_get_integer(&stages, root, "stages", 1, CHAIN_MAX_STAGES, source, "$", error));
    if (json_object_get(root, "micro_batches"))
        TRY(json_get_integer(&micro_batches, root, "micro_batches", 1, 1 << 20, source, "$", error));
    if (json_object_get(root, "per_server"))
        TRY(json_get_integer(&per_server, root, "per_server", 1, devices, source, "$", error));
    if (json_object_get(root, "inside"))
        TRY(json_get_number(&inside, root, "inside", 1e-6, 1e6, source, "$", error));
    double *memory = ARENA_ARRAY(arena, double, devices);
    if (!memory) return am_fail_memory(error, 8 * (int64_t)devices);
    for (int32_t k = 0; k < devices; k++) memory[k] = ROOMY;
    problem->stages = (int32_t)stages;
    problem->micro_batches = (int32_t)micro_batches;
    problem->unit_count = chain_units(problem->units, CHAIN_MAX_UNITS / 2, rates, memory, devices,
                                      (int32_t)per_server, inside, 1);
    return AM_OK;
}

static AmStatus read_arrays(Chain *chain, ChainProblem *problem, json_t *root, Arena *arena,
                            const char *source, AmError *error) {
    static const char *const keys[] = {"format", "computation",   "activation", "weight", "devices",
                                       "stages", "micro_batches", "per_server", "inside", NULL};
    double *computation, *activation, *weight, *rates;
    int32_t count = -1, devices;
    TRY(json_check_format(root, "automap-arrays-1", source, error));
    TRY(json_only_keys(root, keys, source, "$", error));
    TRY(read_numbers(&computation, &count, root, "computation", 0, arena, source, error));
    TRY(read_numbers(&activation, &count, root, "activation", 0, arena, source, error));
    TRY(read_numbers(&weight, &count, root, "weight", 0, arena, source, error));
    TRY(read_devices(&rates, &devices, root, arena, source, error));
    TRY(read_form(problem, root, rates, devices, arena, source, error));
    TRY(chain_create(chain, arena, count, error));
    for (int32_t k = 0; k < count; k++) {
        chain->forward[k + 1] = chain->forward[k] + computation[k] * FORWARD_PART;
        chain->backward[k + 1] = chain->backward[k] + computation[k] * (1 - FORWARD_PART);
        chain->weight[k + 1] = chain->weight[k] + weight[k];
        chain->stored[k + 1] = chain->stored[k] + activation[k];
        if (k + 1 < count) chain->activation[k + 1] = activation[k];
    }
    return AM_OK;
}

AmStatus chain_arrays_parse(Chain *chain, ChainProblem *problem, Arena *arena, const char *source,
                            const char *text, int64_t length, AmError *error) {
    json_t *root;
    *problem = (ChainProblem){.chain = chain};
    TRY(json_parse(&root, source, text, (size_t)length, error));
    AmStatus status = json_is_object(root) ? read_arrays(chain, problem, root, arena, source, error)
                                           : am_fail(error, AM_ERROR_INPUT, source, "$: expected an object");
    json_decref(root);
    return status;
}
