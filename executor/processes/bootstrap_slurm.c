/* Slurm: tasks of one step that srun started.
 *
 * A batch script itself has SLURM_PROCID=0 and the job's SLURM_NTASKS although no other task runs
 * yet; only a step has SLURM_STEP_ID. Process 0 is on the first host of the step's node list, which
 * Slurm writes with brackets and ranges. The port is derived from the job and the step, so that all
 * processes agree and two steps on one host rarely collide.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "executor/processes/bootstrap.h"

enum { FIRST_PORT = 20000, PORT_COUNT = 12000 }; /* below the ports of outgoing connections */

static const char *first_set(const char *name, const char *other) {
    const char *value = getenv(name);
    return value && *value ? name : other;
}

bool bootstrap_slurm_is_present(void) {
    return getenv("SLURM_PROCID") && getenv("SLURM_STEP_ID");
}

static AmStatus fail_list(const char *list, AmError *error) {
    return am_fail(error, AM_ERROR_USAGE, "", "Slurm's node list %.100s: expected hosts as in a[1-3,7],b",
                   list);
}

static bool is_name(char c) {
    return isalnum((unsigned char)c) || c == '-' || c == '_' || c == '.';
}

/* Returns the first node: each pair of brackets is replaced by its first number, as written. */
AmStatus bootstrap_first_node(char host[BOOTSTRAP_HOST], const char *list, AmError *error) {
    size_t length = 0;
    const char *at = list;
    while (*at && *at != ',') {
        size_t count = 0;
        if (*at == '[') {
            at++;
            while (isdigit((unsigned char)at[count])) count++;
            if (count == 0 || !strchr("-,]", at[count]) || !at[count] || !strchr(at, ']'))
                return fail_list(list, error);
        } else {
            while (is_name(at[count])) count++;
            if (count == 0) return fail_list(list, error);
        }
        if (length + count >= BOOTSTRAP_HOST) return fail_list(list, error);
        memcpy(host + length, at, count);
        length += count;
        bool in_brackets = at > list && at[-1] == '[';
        at = in_brackets ? strchr(at, ']') + 1 : at + count;
    }
    host[length] = '\0';
    return length > 0 ? AM_OK : fail_list(list, error);
}

/* Tasks on a node, from "2(x3),1": two on each of the first three, one on the fourth. 0: not known. */
static int64_t tasks_of_node(const char *list, int64_t node) {
    while (isdigit((unsigned char)*list)) {
        char *end;
        int64_t tasks = strtoll(list, &end, 10), times = 1;
        if (strncmp(end, "(x", 2) == 0) times = strtoll(end + 2, &end, 10);
        if (*end == ')') end++;
        if (node < times) return tasks;
        node -= times;
        list = *end == ',' ? end + 1 : end;
    }
    return 0;
}

AmStatus bootstrap_slurm(ProcessPlace *place, AmError *error) {
    int64_t count, process, local_process, local_count = 1;
    const char *count_name = first_set("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
    const char *list = getenv(first_set("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"));
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    char name[128];
    TRY(bootstrap_integer(count_name, 1, BOOTSTRAP_MOST_PROCESSES, &count, error));
    TRY(bootstrap_integer("SLURM_PROCID", 0, count - 1, &process, error));
    TRY(bootstrap_integer("SLURM_LOCALID", 0, count - 1, &local_process, error));
    if (getenv("SLURM_STEP_TASKS_PER_NODE") && getenv("SLURM_NODEID"))
        local_count =
            tasks_of_node(getenv("SLURM_STEP_TASKS_PER_NODE"), strtoll(getenv("SLURM_NODEID"), NULL, 10));
    if (local_count <= local_process || local_count > count) local_count = local_process + 1;
    place->process = (int32_t)process;
    place->count = (int32_t)count;
    place->local_process = (int32_t)local_process;
    place->local_count = (int32_t)local_count;
    if (count == 1) return AM_OK;
    if (!list || !job)
        return am_fail(error, AM_ERROR_USAGE, "", "the environment variable %s is missing",
                       job ? "SLURM_STEP_NODELIST" : "SLURM_JOB_ID");
    TRY(bootstrap_first_node(place->host, list, error));
    snprintf(name, sizeof name, "%.60s.%.60s", job, step);
    place->port = (uint16_t)(FIRST_PORT + hash_bytes(name, strlen(name), 0) % PORT_COUNT);
    bootstrap_secret(place, name);
    return bootstrap_port(&place->port, error);
}
