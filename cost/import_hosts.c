/* Hosts: DeepSpeed's hostfile and the environment of a Slurm job.
 *
 * A hostfile has lines "worker-1 slots=4", empty lines and comments (#); MPI's words
 * behind the slots (max_slots=4) are allowed. A Slurm job tells its nodes as a list
 * with ranges, node[001-003,7],login1, and the devices of each by the first of
 * SLURM_GPUS_PER_NODE ("8", "a100:8"), SLURM_GPUS_ON_NODE, SLURM_NTASKS_PER_NODE and
 * SLURM_TASKS_PER_NODE ("8(x3),4"); the lines are those of env, export -p or
 * declare -x, and other variables are passed over.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cost/import.h"
#include "propagation/mesh.h"

enum { LONGEST_HOST = 255 };

/* Where something went wrong: the file, its text and a place in it. */
typedef struct HostReader {
    Import *import;
    const FileBytes *file;
    AmError *error;
} HostReader;

static AmStatus fail_at(const HostReader *self, const char *at, const char *expected) {
    return am_fail_at(self->error, AM_ERROR_INPUT, self->file->name, self->file->data, self->file->length,
                      at - self->file->data, "%s", expected);
}

static AmStatus claim_hosts(Import *import, const char *source, AmError *error) {
    if (import->hosts_source)
        return am_fail(error, AM_ERROR_INPUT, source, "names the hosts, as %s does already",
                       import->hosts_source);
    import->hosts_source = source;
    return AM_OK;
}

/* Digits from *at on, past which it is moved; -1: there are none, or they are too many. */
static int64_t take_number(const char **at) {
    const char *start = *at;
    int64_t value = 0;
    for (; isdigit((unsigned char)**at); ++*at)
        if (*at - start < 9) value = value * 10 + (**at - '0');
    return *at == start || *at - start > 9 ? -1 : value;
}

static bool is_host_character(char c) {
    return isalnum((unsigned char)c) || (c && strchr("-_.:@", c));
}

static int compare_hosts(const void *a, const void *b) {
    return strcmp(((const ImportHost *)a)->name, ((const ImportHost *)b)->name);
}

/* No host twice; `at` is where the list starts. */
static AmStatus check_hosts(const HostReader *self, const char *at) {
    Import *import = self->import;
    if (import->arena->failed) return am_fail_memory(self->error, import->host_count);
    if (import->host_count == 0) return fail_at(self, at, "expected at least one host");
    ImportHost *sorted = arena_alloc(import->arena, sizeof *sorted * (size_t)import->host_count);
    if (!sorted) return am_fail_memory(self->error, import->host_count);
    memcpy(sorted, import->hosts, sizeof *sorted * (size_t)import->host_count);
    qsort(sorted, (size_t)import->host_count, sizeof *sorted, compare_hosts);
    for (int32_t k = 1; k < import->host_count; k++)
        if (strcmp(sorted[k].name, sorted[k - 1].name) == 0)
            return am_fail(self->error, AM_ERROR_INPUT, self->file->name, "the host \"%s\" is named twice",
                           sorted[k].name);
    return AM_OK;
}

static AmStatus add_host(const HostReader *self, const char *at, const char *name, size_t length,
                         int64_t devices) {
    if (self->import->host_count == MESH_MAX_DEVICES) return fail_at(self, at, "more than 65536 hosts");
    import_add_host(self->import, name, length, devices);
    return AM_OK;
}

static AmStatus read_host_line(const HostReader *self, const char *line, const char *end) {
    static const char expected[] = "expected a line such as \"worker-1 slots=8\"";
    const char *at = line;
    while (at < end && is_host_character(*at)) at++;
    size_t length = (size_t)(at - line);
    if (length == 0 || length > LONGEST_HOST) return fail_at(self, at, expected);
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    if (end - at < 6 || strncmp(at, "slots=", 6) != 0) return fail_at(self, at, expected);
    at += 6;
    const char *number = at;
    int64_t slots = take_number(&at);
    if (slots < 1 || slots > MESH_MAX_DEVICES) return fail_at(self, number, "expected 1 to 65536 slots");
    while (at < end && (isspace((unsigned char)*at) || isalnum((unsigned char)*at) || strchr("_=-", *at)))
        at++;
    if (at < end && *at != '#') return fail_at(self, at, expected);
    return add_host(self, line, line, length, slots);
}

AmStatus import_hostfile(Import *import, const FileBytes *file, AmError *error) {
    HostReader self = {import, file, error};
    TRY(claim_hosts(import, file->name, error));
    for (const char *line = file->data; *line;) {
        const char *end = line + strcspn(line, "\n"), *first = line;
        while (first < end && isspace((unsigned char)*first)) first++;
        if (first < end && *first != '#') TRY(read_host_line(&self, first, end));
        line = *end ? end + 1 : end;
    }
    return check_hosts(&self, file->data);
}

/* The value of NAME=value, with or without quotes, in a copy; NULL where there is none. */
static const char *variable(const HostReader *self, const char *name, const char **at) {
    static const char *const heads[] = {"declare -x ", "export ", ""};
    size_t length = strlen(name);
    for (const char *line = self->file->data; *line; line += *line == '\n') {
        const char *end = line + strcspn(line, "\r\n");
        size_t k = 0;
        while (strncmp(line, heads[k], strlen(heads[k])) != 0) k++;
        const char *start = line + strlen(heads[k]);
        if (strncmp(start, name, length) == 0 && start[length] == '=') {
            start += length + 1;
            *at = start;
            bool is_quoted = end - start >= 2 && (*start == '"' || *start == '\'') && end[-1] == *start;
            return arena_copy_bytes(self->import->arena, start + is_quoted,
                                    (size_t)(end - start) - 2 * (size_t)is_quoted);
        }
        line = end + strcspn(end, "\n");
    }
    return NULL;
}

/* One range of a node list, "001-003" or "7": what is put between prefix and the rest. */
typedef struct NodeRange {
    int64_t first, last;
    int width; /* digits, zeros in front of the number */
} NodeRange;

static AmStatus take_range(const HostReader *self, NodeRange *range, const char **list, const char *at) {
    const char *start = *list;
    range->first = range->last = take_number(list);
    range->width = (int)(*list - start);
    if (range->first >= 0 && **list == '-') {
        ++*list;
        range->last = take_number(list);
    }
    if (range->first < 0 || range->last < range->first)
        return fail_at(self, at, "expected a node list such as node[001-003,7],login1");
    return AM_OK;
}

/* The nodes of one element of the list, whose brackets from `rest` on are still to be filled in;
 * `name` holds what comes before. */
static AmStatus expand_node(const HostReader *self, char *name, size_t length, const char *rest,
                            const char *at) {
    while (is_host_character(*rest)) {
        if (length == LONGEST_HOST) return fail_at(self, at, "a host's name is longer than 255 characters");
        name[length++] = *rest++;
    }
    if (*rest != '[') {
        if ((*rest && *rest != ',') || length == 0)
            return fail_at(self, at, "expected a node list such as node[001-003,7],login1");
        return add_host(self, at, name, length, 0);
    }
    const char *behind = strchr(rest, ']');
    if (!behind) return fail_at(self, at, "a bracket of the node list is not closed");
    do {
        NodeRange range;
        rest++;
        TRY(take_range(self, &range, &rest, at));
        if (range.last - range.first >= MESH_MAX_DEVICES) return fail_at(self, at, "more than 65536 hosts");
        for (int64_t k = range.first; k <= range.last; k++) {
            char number[16];
            int digits = snprintf(number, sizeof number, "%0*lld", range.width, (long long)k);
            if (length + (size_t)digits > LONGEST_HOST)
                return fail_at(self, at, "a host's name is longer than 255 characters");
            memcpy(name + length, number, (size_t)digits);
            TRY(expand_node(self, name, length + (size_t)digits, behind + 1, at));
        }
    } while (*rest == ',');
    return rest == behind ? AM_OK : fail_at(self, at, "expected a node list such as node[001-003,7],login1");
}

static AmStatus expand_nodes(const HostReader *self, const char *list, const char *at) {
    while (*list) {
        char name[LONGEST_HOST + 1];
        TRY(expand_node(self, name, 0, list, at));
        int32_t depth = 0;
        for (; *list && (*list != ',' || depth > 0); list++) depth += (*list == '[') - (*list == ']');
        if (*list == ',') list++;
    }
    return check_hosts(self, at);
}

/* "8(x3),4": 8, 8, 8, 4. One number alone is for all hosts. */
static AmStatus spread_counts(const HostReader *self, const char *counts, const char *at) {
    static const char expected[] = "expected a number for each node, such as 8(x3),4";
    Import *import = self->import;
    int32_t host = 0;
    bool is_one = counts[strspn(counts, "0123456789")] == '\0';
    do {
        int64_t devices = take_number(&counts), times = 1;
        if (devices < 1 || devices > MESH_MAX_DEVICES) return fail_at(self, at, expected);
        if (strncmp(counts, "(x", 2) == 0) {
            counts += 2;
            times = take_number(&counts);
            if (times < 1 || *counts++ != ')') return fail_at(self, at, expected);
        }
        if (is_one) times = import->host_count;
        if (times > import->host_count - host) return fail_at(self, at, "more numbers than nodes");
        for (int64_t k = 0; k < times; k++) import->hosts[host++].devices = (int32_t)devices;
    } while (*counts == ',' && counts++);
    if (*counts) return fail_at(self, at, expected);
    return host == import->host_count ? AM_OK : fail_at(self, at, "fewer numbers than nodes");
}

AmStatus import_slurm(Import *import, const FileBytes *file, AmError *error) {
    static const char *const counts[] = {"SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS_PER_NODE",
                                         "SLURM_TASKS_PER_NODE", NULL};
    HostReader self = {import, file, error};
    const char *at = file->data, *value = variable(&self, "SLURM_JOB_NODELIST", &at);
    TRY(claim_hosts(import, file->name, error));
    if (!value) value = variable(&self, "SLURM_NODELIST", &at);
    if (!value)
        return am_fail(error, AM_ERROR_INPUT, file->name, "expected SLURM_JOB_NODELIST among the variables");
    TRY(expand_nodes(&self, value, at));
    value = variable(&self, "SLURM_JOB_NUM_NODES", &at);
    if (value && take_number(&value) != import->host_count)
        return fail_at(&self, at, "another number of nodes than SLURM_JOB_NODELIST names");
    for (int32_t k = 0; counts[k]; k++) {
        value = variable(&self, counts[k], &at);
        if (!value) continue;
        const char *typed = strrchr(value, ':');
        if (typed && strchr(value, ',')) return fail_at(&self, at, "expected devices of one type");
        return spread_counts(&self, typed ? typed + 1 : value, at);
    }
    return AM_OK;
}
