/* Records of calls and of executed work, and failures on demand. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/stand_in/cuda_parts.h"

typedef struct Count {
    char name[96];
    int64_t value;
} Count;
typedef struct Counts {
    Count *rows;
    int32_t count, capacity;
} Counts;
typedef struct Failure {
    char call[64];
    int code;
    int64_t from, to; /* the calls it begins and ends with, counted from 1 */
} Failure;

enum { MOST_FAILURES = 16 };
static Counts calls, runs;
static Failure failures[MOST_FAILURES];
static int failure_count = -1; /* before the environment was read */
static int64_t peak_bytes;

static int64_t *count_of(Counts *counts, const char *name) {
    for (int32_t k = 0; k < counts->count; k++)
        if (strcmp(counts->rows[k].name, name) == 0) return &counts->rows[k].value;
    if (counts->count == counts->capacity) {
        counts->capacity = counts->capacity ? 2 * counts->capacity : 64;
        counts->rows = realloc(counts->rows, sizeof *counts->rows * (size_t)counts->capacity);
        if (!counts->rows) abort();
    }
    Count *row = &counts->rows[counts->count++];
    row->value = 0;
    snprintf(row->name, sizeof row->name, "%s", name);
    return &row->value;
}

int64_t environment_number(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text && text[0] ? strtoll(text, NULL, 10) : otherwise;
}

/* "cuInit=100,cuMemAlloc=2@3,cuMemAlloc=2#7" */
static void read_failures(const char *text) {
    failure_count = 0;
    while (text && *text && failure_count < MOST_FAILURES) {
        Failure *failure = &failures[failure_count];
        int used = 0;
        failure->from = 1;
        failure->to = INT64_MAX;
        if (sscanf(text, "%63[^=]=%d%n", failure->call, &failure->code, &used) != 2) break;
        text += used;
        bool alone = *text == '#';
        if (*text == '@' || alone) failure->from = strtoll(text + 1, (char **)&text, 10);
        if (alone) failure->to = failure->from;
        if (*text == ',') text++;
        failure_count++;
    }
}

int record_enter(const char *call) {
    int64_t *calls_so_far = count_of(&calls, call), number = ++*calls_so_far;
    if (failure_count < 0) read_failures(getenv("STAND_IN_FAIL"));
    for (int k = 0; k < failure_count; k++)
        if (strcmp(failures[k].call, call) == 0 && number >= failures[k].from && number <= failures[k].to)
            return failures[k].code;
    return 0;
}

void record_run(const char *name) {
    ++*count_of(&runs, name);
}

void record_peak(int64_t bytes) {
    if (bytes > peak_bytes) peak_bytes = bytes;
}

static int table_enter(const char *call) {
    pthread_mutex_lock(&stand_in_lock);
    int result = record_enter(call);
    pthread_mutex_unlock(&stand_in_lock);
    return result;
}

static int64_t read_count(Counts *counts, const char *name) {
    pthread_mutex_lock(&stand_in_lock);
    int64_t value = *count_of(counts, name);
    pthread_mutex_unlock(&stand_in_lock);
    return value;
}

static int64_t table_count(const char *call) {
    return read_count(&calls, call);
}

static int64_t table_runs(const char *name) {
    return read_count(&runs, name);
}

static void add_stream(StandInStream *sum, const StandInStream *one) {
    sum->launches += one->launches;
    sum->copies += one->copies;
    sum->sets += one->sets;
    sum->waits += one->waits;
    sum->records += one->records;
    sum->calls += one->calls;
    sum->host_functions += one->host_functions;
    sum->graph_launches += one->graph_launches;
}

static void table_stream(CUstream stream, StandInStream *record) {
    pthread_mutex_lock(&stand_in_lock);
    *record = (StandInStream){0};
    for (CUstream one = all_streams; one; one = one->next)
        if (!stream || one == stream) add_stream(record, &one->record);
    pthread_mutex_unlock(&stand_in_lock);
}

static void table_memory(StandInMemory *memory) {
    pthread_mutex_lock(&stand_in_lock);
    memory_count(memory);
    memory->peak_bytes = peak_bytes;
    pthread_mutex_unlock(&stand_in_lock);
}

static bool table_is_device(const void *pointer, size_t bytes) {
    pthread_mutex_lock(&stand_in_lock);
    bool result = memory_is_device(pointer, bytes);
    pthread_mutex_unlock(&stand_in_lock);
    return result;
}

static bool table_is_held(const void *group) {
    pthread_mutex_lock(&stand_in_lock);
    bool result = graphs_have_group(group);
    pthread_mutex_unlock(&stand_in_lock);
    return result;
}

static CUresult table_enqueue(CUstream stream, const char *name, bool (*run)(void *), const void *argument,
                              size_t bytes, const void *group) {
    pthread_mutex_lock(&stand_in_lock);
    CUresult result = stream_enqueue(stream, name, run, argument, bytes, group);
    pthread_mutex_unlock(&stand_in_lock);
    return result;
}

static void table_fail(const char *text) {
    pthread_mutex_lock(&stand_in_lock);
    read_failures(text);
    pthread_mutex_unlock(&stand_in_lock);
}

/* "SEED:PERCENT:CALL,CALL"; read anew for each question, as the environment may change. */
static char refusals[256];
static bool refusals_read;

static bool is_listed(const char *list, const char *call) {
    size_t length = strlen(call);
    for (const char *at = list; (at = strstr(at, call)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length])) return true;
    return !*list;
}

static bool table_refuses(const char *call, uint64_t problem) {
    unsigned long long seed, sum = UINT64_C(1469598103934665603);
    int percent, used = 0;
    pthread_mutex_lock(&stand_in_lock);
    const char *text = getenv("STAND_IN_REFUSE");
    if (!refusals_read) snprintf(refusals, sizeof refusals, "%s", text ? text : "");
    refusals_read = true;
    bool asked = sscanf(refusals, "%llu:%d%n", &seed, &percent, &used) == 2;
    const char *list = refusals + used;
    if (*list == ':') list++;
    asked = asked && is_listed(list, call);
    pthread_mutex_unlock(&stand_in_lock);
    if (!asked) return false;
    for (const char *at = call; *at; at++) sum = (sum ^ (uint8_t)*at) * UINT64_C(1099511628211);
    sum = (sum ^ problem) * UINT64_C(1099511628211);
    sum = (sum ^ seed) * UINT64_C(1099511628211);
    return (sum >> 33) % 100 < (unsigned)percent;
}

static void table_refuse(const char *text) {
    pthread_mutex_lock(&stand_in_lock);
    snprintf(refusals, sizeof refusals, "%s", text);
    refusals_read = true;
    pthread_mutex_unlock(&stand_in_lock);
}

static void table_reset(void) {
    StandInMemory memory;
    pthread_mutex_lock(&stand_in_lock);
    calls.count = runs.count = 0;
    for (CUstream one = all_streams; one; one = one->next) one->record = (StandInStream){0};
    memory_count(&memory);
    peak_bytes = memory.bytes;
    pthread_mutex_unlock(&stand_in_lock);
}

EXPORT const StandIn *stand_in_table(void);
const StandIn *stand_in_table(void) {
    static const StandIn table = {.enqueue = table_enqueue,
                                  .enter = table_enter,
                                  .refuses = table_refuses,
                                  .refuse = table_refuse,
                                  .loading = device_loading,
                                  .count = table_count,
                                  .runs = table_runs,
                                  .stream = table_stream,
                                  .memory = table_memory,
                                  .is_device = table_is_device,
                                  .is_held = table_is_held,
                                  .fail = table_fail,
                                  .reset = table_reset};
    return &table;
}
