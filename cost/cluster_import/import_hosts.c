/* Hosts: hostfiles of launchers and the environment of a Slurm job.
 *
 * A hostfile names one host per line, or several between commas, with comments (#):
 *
 *   worker-1 slots=4 max_slots=4     DeepSpeed, Open MPI; max_slots and the like have no effect
 *   worker-1:4                       Horovod, MPICH
 *   worker-1                         the devices come from another file; or, if names repeat, one each
 *   [fe80::1]:4  node[001-003,7]:4   IPv6 addresses in brackets, node lists of Slurm
 *
 * A Slurm job lists its nodes with ranges, node[001-003,7],login1. The devices of each node come
 * from the first of SLURM_GPUS_PER_NODE ("8", "a100:8"), SLURM_GPUS_ON_NODE, SLURM_NTASKS_PER_NODE
 * and SLURM_TASKS_PER_NODE ("8(x3),4"). The lines are those of env, export -p or declare -x; other
 * variables are ignored.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cost/cluster_import/import.h"
#include "propagation/sharding/mesh.h"

enum { LONGEST_HOST = 255 };
static const char host_line[] =
    "expected a line such as \"worker-1 slots=8\", \"worker-1:8\" or \"worker-1\"";

/* The position of an error: the file, its text and an offset. */
typedef struct HostReader {
    Import *import;
    const FileBytes *file;
    AmError *error;
} HostReader;

static AmStatus fail_at(const HostReader *self, const char *at, const char *expected) {
    return am_fail_at(self->error, AM_ERROR_INPUT, self->file->name, self->file->data, self->file->length,
                      at - self->file->data, "%s", expected);
}

/* Reads digits from *at and moves *at past them; -1: no digits, or too many. */
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
    const ImportHost *first = a, *second = b;
    int names = strcmp(first->name, second->name);
    return names ? names : (first->place > second->place) - (first->place < second->place);
}

/* Fails at the second line of a host. */
static AmStatus fail_repeated(const HostReader *self, const ImportHost *host) {
    return am_fail_at(self->error, AM_ERROR_INPUT, self->file->name, self->file->data, self->file->length,
                      host->place, "the host \"%s\" is named twice", host->name);
}

/* Checks that no host occurs twice; `at` is where the list starts. */
static AmStatus check_hosts(const HostReader *self, const char *at) {
    Import *import = self->import;
    if (import->arena->failed) return am_fail_memory(self->error, import->host_count);
    if (import->host_count == 0) return fail_at(self, at, "expected at least one host");
    ImportHost *sorted = arena_alloc(import->arena, sizeof *sorted * (size_t)import->host_count);
    if (!sorted) return am_fail_memory(self->error, import->host_count);
    memcpy(sorted, import->hosts, sizeof *sorted * (size_t)import->host_count);
    qsort(sorted, (size_t)import->host_count, sizeof *sorted, compare_hosts);
    for (int32_t k = 1; k < import->host_count; k++)
        if (strcmp(sorted[k].name, sorted[k - 1].name) == 0) return fail_repeated(self, &sorted[k]);
    return AM_OK;
}

static AmStatus add_host(const HostReader *self, const char *at, const char *name, size_t length,
                         int64_t devices) {
    if (self->import->host_count == MESH_MAX_DEVICES) return fail_at(self, at, "more than 65536 hosts");
    import_add_host(self->import, name, length, devices);
    if (self->import->arena->failed) return am_fail_memory(self->error, (int64_t)length);
    self->import->hosts[self->import->host_count - 1].place = at - self->file->data;
    return AM_OK;
}

/* Returns a copy of the value of NAME=value, without quotes; NULL if missing. */
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

/* One range of a node list, "001-003" or "7". */
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

/* Adds the nodes of one element of the list. The brackets from `rest` on are still to be expanded;
 * `name` holds the part before. */
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

static AmStatus expand_list(const HostReader *self, const char *list, const char *at) {
    while (*list) {
        char name[LONGEST_HOST + 1];
        TRY(expand_node(self, name, 0, list, at));
        int32_t depth = 0;
        for (; *list && (*list != ',' || depth > 0); list++) depth += (*list == '[') - (*list == ']');
        if (*list == ',') list++;
    }
    return AM_OK;
}

/* Returns whether the text is an address such as "fe80::1" or, with a zone, "fe80::1%eth0". */
static bool is_ipv6(const char *start, const char *stop) {
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;
    const char *zone = memchr(start, '%', (size_t)(stop - start));
    int length = (int)((zone ? zone : stop) - start);
    if (length >= (int)sizeof text) return false;
    snprintf(text, sizeof text, "%.*s", length, start);
    return inet_pton(AF_INET6, text, &address) == 1;
}

/* Returns whether the text is a number such as "12" or "2.4", as in a table: no name and no address. */
static bool is_number(const char *start, size_t length) {
    char text[INET_ADDRSTRLEN] = "";
    struct in_addr address;
    if (length < sizeof text) memcpy(text, start, length);
    return strspn(start, "0123456789.") >= length && inet_pton(AF_INET, text, &address) != 1;
}

/* Reads the address at *at: "name", "user@name", "10.0.0.1", "[fe80::1]", "fe80::1" or
 * "node[001-003,7]". *length is 0 without an address. A single colon after a name begins its slots;
 * several are an IPv6 address. */
static const char *take_address(const char **at, const char *end, size_t *length, bool *is_list) {
    const char *start = *at, *stop = start, *colon = NULL;
    int32_t colons = 0;
    *is_list = false;
    if (start < end && *start == '[') {
        bool is_address = false;
        for (stop = ++start; stop < end && (is_host_character(*stop) || *stop == '%'); stop++)
            is_address |= *stop == ':';
        is_address &= stop < end && *stop == ']' && is_ipv6(start, stop);
        *length = is_address ? (size_t)(stop - start) : 0;
        *at = is_address ? stop + 1 : start;
        return start;
    }
    for (; stop < end && (is_host_character(*stop) || *stop == '%' || *stop == '['); stop++) {
        if (*stop == ':' && ++colons == 1) colon = stop;
        if (*stop != '[') continue;
        *is_list = true;
        while (stop < end && *stop != ']') stop++;
        if (stop == end) break;
    }
    if (colons == 1) stop = colon;
    bool is_address = colons < 2 || is_ipv6(start, stop);
    *length = is_address ? (size_t)(stop - start) : 0;
    *at = stop;
    return start;
}

/* Warns of the first word that no launcher has, which may be a misspelt "slots". */
static void check_word(const HostReader *self, const char *word, size_t length) {
    static const char *const known[] = {"max_slots", "max-slots", "slots_max", "slots-max",
                                        "binding",   "user",      "user_name", "username",
                                        "port",      "cores",     "sockets",   "rank"};
    int32_t line = 1;
    if (self->import->has_unknown_word) return;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (strlen(known[k]) == length && strncmp(known[k], word, length) == 0) return;
    self->import->has_unknown_word = true;
    for (const char *at = self->file->data; at < word; at++) line += *at == '\n';
    am_warn(&self->import->warnings, "%s:%d: \"%.*s\" has no effect (expected slots=N)", self->file->name,
            line, (int)(length < 40 ? length : 40), word);
}

/* Reads the words after a host, "slots=8 max_slots=8"; *slots is unchanged without such a word. */
static AmStatus take_words(const HostReader *self, const char **at, const char *end, int64_t *slots) {
    for (;;) {
        while (*at < end && isspace((unsigned char)**at)) ++*at;
        const char *word = *at;
        if (word == end || *word == '#' || *word == ',') return AM_OK;
        while (*at < end && (isalnum((unsigned char)**at) || strchr("_-", **at))) ++*at;
        size_t length = (size_t)(*at - word);
        if (length == 0 || *at == end || **at != '=') return fail_at(self, word, host_line);
        ++*at;
        if (length != 5 || strncmp(word, "slots", 5) != 0) {
            check_word(self, word, length);
        } else {
            const char *number = *at;
            if (*slots > 0) return fail_at(self, word, "slots are given twice (expected one number)");
            *slots = take_number(at);
            if (*slots < 1 || *slots > MESH_MAX_DEVICES)
                return fail_at(self, number, "expected 1 to 65536 slots");
        }
        while (*at < end && (isalnum((unsigned char)**at) || strchr("_-.:/", **at))) ++*at;
        if (*at < end && !isspace((unsigned char)**at) && **at != ',' && **at != '#')
            return fail_at(self, *at, host_line);
    }
}

/* Reads one host, or one node list, with its slots. */
static AmStatus read_host(const HostReader *self, const char **at, const char *end) {
    const char *line = *at;
    size_t length;
    bool is_list;
    int64_t slots = 0;
    int32_t first = self->import->host_count;
    const char *address = take_address(at, end, &length, &is_list);
    bool is_name = length > 0 && (is_list || (length <= LONGEST_HOST && !is_number(address, length)));
    if (!is_name) return fail_at(self, line, host_line);
    if (*at < end && **at == ':') {
        const char *number = ++*at;
        slots = take_number(at);
        if (slots < 1 || slots > MESH_MAX_DEVICES) return fail_at(self, number, "expected 1 to 65536 slots");
    }
    if (*at < end && !isspace((unsigned char)**at) && **at != ',' && **at != '#')
        return fail_at(self, *at, host_line);
    TRY(take_words(self, at, end, &slots));
    if (!is_list) return add_host(self, line, address, length, slots);
    const char *list = arena_copy_bytes(self->import->arena, address, length);
    if (!list) return am_fail_memory(self->error, (int64_t)length);
    TRY(expand_list(self, list, line));
    for (int32_t k = first; k < self->import->host_count; k++)
        self->import->hosts[k].devices = (int32_t)slots;
    return AM_OK;
}

/* Merges the lines of a machine file that name a host once for each of its devices. */
static AmStatus merge_repeated(const HostReader *self) {
    Import *import = self->import;
    json_t *numbers = json_object();
    AmStatus status = AM_OK;
    int32_t kept = 0;
    bool is_repeated = false;
    for (int32_t k = 0; k < import->host_count && status == AM_OK; k++) {
        const ImportHost host = import->hosts[k];
        const json_t *known = json_object_get(numbers, host.name);
        ImportHost *first = known ? &import->hosts[json_integer_value(known)] : NULL;
        if (first && (host.devices > 0 || first->devices > 0)) {
            status = fail_repeated(self, &host);
        } else if (first) {
            is_repeated = true;
            first->devices--; /* negative while they are counted */
        } else {
            json_object_set_new(numbers, host.name, json_integer(kept));
            import->hosts[kept++] = host;
        }
    }
    json_decref(numbers);
    import->host_count = kept;
    for (int32_t k = 0; k < kept && is_repeated; k++)
        if (import->hosts[k].devices <= 0) import->hosts[k].devices = 1 - import->hosts[k].devices;
    return status;
}

AmStatus import_hostfile(Import *import, const FileBytes *file, AmError *error) {
    HostReader self = {import, file, error};
    TRY(import_claim(import, &import->hosts_source, file->name, "names the hosts", error));
    for (const char *line = file->data; *line;) {
        const char *end = line + strcspn(line, "\n"), *at = line;
        while (at < end) {
            while (at < end && (isspace((unsigned char)*at) || *at == ',')) at++;
            if (at == end || *at == '#') break;
            TRY(read_host(&self, &at, end));
        }
        line = *end ? end + 1 : end;
    }
    if (import->arena->failed) return am_fail_memory(error, import->host_count);
    TRY(merge_repeated(&self));
    import->has_hostfile = true;
    return check_hosts(&self, file->data);
}

/* Reads "8(x3),4" as 8, 8, 8, 4. One number alone is for all hosts. */
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
    TRY(import_claim(import, &import->hosts_source, file->name, "names the hosts", error));
    if (!value) value = variable(&self, "SLURM_NODELIST", &at);
    if (!value)
        return am_fail(error, AM_ERROR_INPUT, file->name, "expected SLURM_JOB_NODELIST among the variables");
    TRY(expand_list(&self, value, at));
    TRY(check_hosts(&self, at));
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
