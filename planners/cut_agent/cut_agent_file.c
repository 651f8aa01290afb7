/* Files of generated sets (cut_agent_arrays.h), as .npz or .safetensors: the training data of the agent, for
 * inspection and for evaluating agents. */
#include "planners/cut_agent/cut_agent_file.h"

#include <math.h>
#include <stddef.h>

#include "base/files/array_file.h"

#define MOST_NUMBER        1e31 /* memory without a limit is 1e30 */
#define MOST_MICRO_BATCHES (1 << 20)

/* The arrays of a file: where CutAgentFile points to them, and the length of a row (0: one number). */
typedef struct Column {
    const char *name;
    size_t place;
    Dtype type;
    int32_t width;
} Column;

#define COLUMN(name, type, width) \
    { #name, offsetof(CutAgentFile, name), type, width }
static const Column columns[] = {COLUMN(computation, DTYPE_F32, CUT_AGENT_POINTS),
                                 COLUMN(activation, DTYPE_F32, CUT_AGENT_POINTS),
                                 COLUMN(weight, DTYPE_F32, CUT_AGENT_POINTS),
                                 COLUMN(stored, DTYPE_F32, CUT_AGENT_POINTS),
                                 COLUMN(rates, DTYPE_F32, CUT_AGENT_DEVICES),
                                 COLUMN(inside, DTYPE_F32, 0),
                                 COLUMN(memory, DTYPE_F32, 0),
                                 COLUMN(stages, DTYPE_S32, 0),
                                 COLUMN(micro_batches, DTYPE_S32, 0),
                                 COLUMN(per_server, DTYPE_S32, 0)};
#define COLUMN_COUNT ((int32_t)(sizeof(columns) / sizeof(*columns)))

/* Reserves memory for `count` rows of a column; NULL if memory is exhausted. */
static void *reserve_rows(CutAgentFile *file, const Column *column, int64_t count, Arena *arena) {
    int64_t numbers = count * (column->width ? column->width : 1);
    char *place = (char *)file + column->place;
    if (column->type == DTYPE_F32) return *(float **)(void *)place = ARENA_ARRAY(arena, float, numbers);
    return *(int32_t **)(void *)place = ARENA_ARRAY(arena, int32_t, numbers);
}

static void put_set(const CutAgentFile *file, const CutAgentSet *set, int32_t row) {
    const Chain *chain = &set->chain;
    for (int32_t i = 0; i < CUT_AGENT_POINTS; i++) {
        int64_t at = (int64_t)row * CUT_AGENT_POINTS + i;
        file->computation[at] = (float)(chain->forward[i + 1] + chain->backward[i + 1]);
        file->activation[at] = (float)chain->activation[i + 1];
        file->weight[at] = (float)chain->weight[i + 1];
        file->stored[at] = (float)chain->stored[i + 1];
    }
    for (int32_t k = 0; k < set->device_count; k++)
        file->rates[(int64_t)row * CUT_AGENT_DEVICES + k] = (float)set->rates[k];
    file->inside[row] = (float)set->inside;
    file->memory[row] = (float)set->memory;
    file->stages[row] = set->problem.stages;
    file->micro_batches[row] = set->problem.micro_batches;
    file->per_server[row] = set->per_server;
}

AmStatus cut_agent_file_write(const char *path, uint64_t seed, int32_t count,
                              const volatile sig_atomic_t *stop, AmError *error) {
    Arena arena = {0};
    AmStatus status = AM_OK;
    CutAgentFile file = {.path = path, .count = count};
    ArrayToWrite arrays[sizeof(columns) / sizeof(*columns)];
    int64_t shapes[sizeof(columns) / sizeof(*columns)][2];
    CutAgentSet *set = ARENA_ARRAY(&arena, CutAgentSet, 1);
    for (int32_t k = 0; k < COLUMN_COUNT; k++) {
        const Column *column = &columns[k];
        shapes[k][0] = count;
        shapes[k][1] = column->width;
        arrays[k] = (ArrayToWrite){.name = column->name,
                                   .type = column->type,
                                   .rank = column->width ? 2 : 1,
                                   .dimensions = shapes[k],
                                   .data = reserve_rows(&file, column, count, &arena)};
    }
    if (arena.failed || !set) {
        status = am_fail_memory(error, (int64_t)count * CUT_AGENT_POINTS * 4);
        goto fail;
    }
    for (int32_t row = 0; row < count; row++) {
        if (stop && *stop) {
            status = am_fail(error, AM_INTERRUPTED, "", "interrupted: nothing was written");
            goto fail;
        }
        cut_agent_generate(set, seed, (uint64_t)row, false);
        put_set(&file, set, row);
    }
    status = array_file_write(path, arrays, COLUMN_COUNT, NULL, error);
fail:
    arena_free(&arena);
    return status;
}

static AmStatus read_column(CutAgentFile *file, ArrayFile *arrays, const Column *column, Arena *arena,
                            AmError *error) {
    const ArrayEntry *entry = array_file_find(arrays, column->name);
    if (!entry)
        return am_fail(error, AM_ERROR_INPUT, file->path, "expected an array %s, as agent generate writes",
                       column->name);
    int64_t count = entry->rank > 0 ? entry->dimensions[0] : 0;
    if (column == columns && count >= 1 && count <= CUT_AGENT_FILE_MOST_SETS) file->count = (int32_t)count;
    if (entry->type != column->type || entry->rank != (column->width ? 2 : 1) || count < 1 ||
        count != file->count || (column->width && entry->dimensions[1] != column->width))
        return am_fail(
            error, AM_ERROR_INPUT, file->path,
            "array %s: expected %s of 1 to %d sets, as many as the other arrays have, in rows of %d",
            column->name, dtype_name(column->type), CUT_AGENT_FILE_MOST_SETS,
            column->width ? column->width : 1);
    void *data = reserve_rows(file, column, count, arena);
    return data ? array_file_read(arrays, entry, data, error) : am_fail_memory(error, entry->bytes);
}

AmStatus cut_agent_file_read(CutAgentFile *file, Arena *arena, const char *path, AmError *error) {
    ArrayFile arrays;
    AmStatus status = AM_OK;
    *file = (CutAgentFile){.path = arena_copy_string(arena, path)};
    if (!file->path) return am_fail_memory(error, (int64_t)sizeof(*file));
    TRY(array_file_open(&arrays, path, error));
    for (int32_t k = 0; k < COLUMN_COUNT && status == AM_OK; k++)
        status = read_column(file, &arrays, &columns[k], arena, error);
    array_file_close(&arrays);
    return status;
}

static bool is_number(double value) {
    return value >= 0 && value <= MOST_NUMBER;
}

/* Reads one point of the set's chain; false: a value is no number, or a sum decreases. */
static bool take_point(CutAgentSet *set, const CutAgentFile *file, int64_t at, int32_t i) {
    Chain *chain = &set->chain;
    double computation = file->computation[at];
    chain->forward[i] = computation * CUT_AGENT_FORWARD_PART;
    chain->backward[i] = computation - chain->forward[i];
    chain->activation[i] = file->activation[at];
    chain->weight[i] = file->weight[at];
    chain->stored[i] = file->stored[at];
    return is_number(computation) && is_number(chain->activation[i]) && is_number(chain->weight[i]) &&
           is_number(chain->stored[i]) && chain->forward[i] >= chain->forward[i - 1] &&
           chain->backward[i] >= chain->backward[i - 1] && chain->weight[i] >= chain->weight[i - 1] &&
           chain->stored[i] >= chain->stored[i - 1];
}

/* Reads the devices of the set; false: the set has none, or one has no rate. */
static bool take_devices(CutAgentSet *set, const CutAgentFile *file, int32_t row) {
    const float *rates = file->rates + (int64_t)row * CUT_AGENT_DEVICES;
    set->device_count = 0;
    for (int32_t k = 0; k < CUT_AGENT_DEVICES; k++) {
        set->rates[k] = rates[k];
        if (rates[k] == 0) continue;
        if (!(rates[k] >= 1e-6 && rates[k] <= 1e6) || set->device_count++ != k) return false;
    }
    set->per_server = file->per_server[row];
    set->inside = file->inside[row];
    set->memory = file->memory[row];
    return set->device_count > 0 && set->per_server >= 1 && set->per_server <= set->device_count &&
           set->inside >= 1e-6 && set->inside <= 1e6 && set->memory > 0 && is_number(set->memory);
}

AmStatus cut_agent_file_set(CutAgentSet *set, const CutAgentFile *file, int32_t row, AmError *error) {
    cut_agent_empty_set(set, CUT_AGENT_POINTS);
    set->problem.stages = file->stages[row];
    set->problem.micro_batches = file->micro_batches[row];
    if (!take_devices(set, file, row))
        return am_fail(
            error, AM_ERROR_INPUT, file->path,
            "expected rates of 1 to %d devices in a row, their per_server, inside and memory above 0",
            CUT_AGENT_DEVICES);
    if (set->problem.stages < 1 || set->problem.stages > CHAIN_MAX_STAGES || set->problem.micro_batches < 1 ||
        set->problem.micro_batches > MOST_MICRO_BATCHES)
        return am_fail(error, AM_ERROR_INPUT, file->path, "expected 1 to %d stages, 1 to %d micro-batches",
                       CHAIN_MAX_STAGES, MOST_MICRO_BATCHES);
    for (int32_t i = 1; i <= CUT_AGENT_POINTS; i++)
        if (!take_point(set, file, (int64_t)row * CUT_AGENT_POINTS + i - 1, i))
            return am_fail(error, AM_ERROR_INPUT, file->path,
                           "point %d: expected finite numbers, and sums that do not fall", i - 1);
    return cut_agent_make_units(set, error);
}
