/* Combines the contents of the imported files and completes them from the built-in clusters.
 *
 * Servers come from the hosts; without hosts there is one server. If a file described the inside of
 * a server, its links become the edges of `topology`, the same for every server; otherwise the
 * devices have the usual link of their type, or the measured one. Cards of equal number are assumed
 * to meet on a rail, and rails at a spine without contention. A server without cards has the link
 * between servers that was requested, measured or is usual. Vertices without use (cards of a single
 * server, sockets without devices) are omitted.
 */
#include "cost/cluster_import/import.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/file_format.h"
#include "base/suggest.h"
#include "base/text.h"
#include "propagation/sharding/mesh.h"

enum { LONGEST_PLACE = 160, MOST_SERVER_EDGES = 512 };

static AmStatus fail_link(const char *name, AmError *error) {
    enum { MOST_LINKS = 32 };
    const char *names[MOST_LINKS];
    char list[512] = "", near[SUGGEST_HINT_BYTES];
    int32_t count = 0;
    while (count < MOST_LINKS && cluster_builtin_link_name(count)) {
        size_t used = strlen(list);
        names[count] = cluster_builtin_link_name(count);
        snprintf(list + used, sizeof list - used, "%s%s", count ? ", " : "", names[count]);
        count++;
    }
    return am_fail(error, AM_ERROR_USAGE, "", "there is no built-in link \"%s\", expected one of %s%s", name,
                   list, suggest_hint(near, name, names, (size_t)count));
}

AmStatus import_begin(Import *import, Arena *arena, const char *device_type, const char *between,
                      AmError *error) {
    *import = (Import){.arena = arena, .between = between, .warnings.arena = arena};
    import->device_type = device_type ? cluster_builtin_device_named(device_type) : NULL;
    if (!import->device_type) {
        char list[1024] = "", near[SUGGEST_HINT_BYTES];
        for (int32_t k = 0; cluster_builtin_device_name(k); k++) {
            size_t used = strlen(list);
            snprintf(list + used, sizeof list - used, "%s%s", k ? ", " : "", cluster_builtin_device_name(k));
        }
        if (!device_type)
            return am_fail(error, AM_ERROR_USAGE, "", "--import needs --device-type, expected one of %s",
                           list);
        return am_fail(error, AM_ERROR_USAGE, "", "there is no device type \"%s\", expected one of %s%s",
                       device_type, list, cluster_builtin_device_hint(near, device_type));
    }
    import->usual = cluster_builtin_device_links(import->device_type);
    json_t *link = between ? cluster_builtin_link(between) : NULL;
    bool is_known = !between || link;
    json_decref(link);
    if (!is_known) return fail_link(between, error);
    import->links = json_object();
    return AM_OK;
}

void import_end(Import *import) {
    json_decref(import->links);
    json_decref(import->measured_inside);
    json_decref(import->measured_between);
    json_decref(import->measured_hosts);
    json_decref(import->measured_type);
    json_decref(import->sailor_layers);
    json_decref(import->sailor_model);
}

static bool has_line(const FileBytes *file, const char *start) {
    size_t length = strlen(start);
    for (const char *line = file->data; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "export ", 7) == 0) line += 7;
        if (strncmp(line, "declare -x ", 11) == 0) line += 11;
        if (strncmp(line, start, length) == 0) return true;
    }
    return false;
}

static AmStatus recognise(Import *import, const FileBytes *file, AmError *error) {
    const char *first = file->data + strspn(file->data, " \t\r\n"), *kind;
    if (*first != '<' && file_format_of(file->data, file->length, &kind) != FILE_FORMAT_UNKNOWN)
        return am_fail(error, AM_ERROR_INPUT, file->name,
                       "this is %s, expected a hostfile, a topology or a measurement", kind);
    if ((int64_t)strlen(file->data) != file->length)
        return am_fail(error, AM_ERROR_INPUT, file->name, "expected text, found a zero byte");
    if (*first == '<') return import_xml(import, file, error);
    if (*first == '{' && strstr(file->data, "\"accelerator\"")) return import_simumax(import, file, error);
    if (import_is_sailor(file)) return import_sailor(import, file, error);
    if (*first == '{') return import_measurements(import, file, error);
    if (strncmp(first, IMPORT_ACESO_OPERATORS, strlen(IMPORT_ACESO_OPERATORS)) == 0)
        return import_aceso_operators(import, file, error);
    if (strstr(file->data, "algbw") || strstr(file->data, IMPORT_VTRAIN_HEAD) || import_is_aceso(file))
        return import_measurements(import, file, error);
    if (has_line(file, "SLURM_")) return import_slurm(import, file, error);
    if (strstr(file->data, "GPU0")) return import_matrix(import, file, error);
    return import_hostfile(import, file, error);
}

AmStatus import_add(Import *import, const char *path, AmError *error) {
    FileBytes file = {0};
    if (strcmp(path, "hwloc") == 0) {
        TRY(import_this_host(&file, import->arena, error));
        return import_xml(import, &file, error);
    }
    TRY(file_read(&file, path, error));
    file.name = arena_copy_string(import->arena, file.name);
    AmStatus status = file.name ? recognise(import, &file, error) : am_fail_memory(error, 0);
    file_release(&file);
    return status;
}

void import_add_host(Import *import, const char *name, size_t length, int64_t devices) {
    ARENA_RESERVE(import->arena, import->hosts, import->host_count, import->host_capacity);
    const char *copy = arena_copy_bytes(import->arena, name, length);
    if (import->arena->failed) return;
    import->hosts[import->host_count++] = (ImportHost){copy, (int32_t)devices, 0};
}

void import_add_edge(Import *import, const char *from, const char *to, const char *link, double width) {
    ARENA_RESERVE(import->arena, import->edges, import->edge_count, import->edge_capacity);
    const char *from_copy = arena_copy_string(import->arena, from);
    const char *to_copy = arena_copy_string(import->arena, to);
    if (import->arena->failed) return;
    import->edges[import->edge_count++] = (ImportEdge){from_copy, to_copy, link, width};
}

const char *import_link(Import *import, const char *kind, double bytes_per_second, double latency_seconds) {
    const char *name = arena_format(import->arena, "%s-%.4g", kind, bytes_per_second / 1e9);
    if (!name || json_object_get(import->links, name)) return name ? name : kind;
    json_t *link = cluster_builtin_link(strcmp(kind, "network") == 0 ? "roce-100" : "pcie-4");
    json_object_set_new(link, "bytes_per_second", json_real(bytes_per_second));
    json_object_set_new(link, "latency_seconds", json_real(latency_seconds));
    json_object_set_new(import->links, name, link);
    return name;
}

const char *import_pcie(Import *import, double bytes_per_second) {
    static const double generation_3 = 12e9; /* 16 lanes; each generation has twice the rate */
    if (bytes_per_second <= 0)
        bytes_per_second = strcmp(import->usual->pcie, "pcie-5") == 0   ? 4 * generation_3
                           : strcmp(import->usual->pcie, "pcie-3") == 0 ? generation_3
                                                                        : 2 * generation_3;
    return import_link(import, "pcie", bytes_per_second, 3e-6);
}

const char *import_place(Import *import, const char *kind, const char *name) {
    char *place = arena_format(import->arena, "%s-%.64s", kind, name);
    for (char *c = place; c && *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-_.:", *c)) *c = '_';
    return place ? place : kind;
}

AmStatus import_end_server(Import *import, int32_t devices, AmError *error) {
    import->device_count = devices;
    if (import->arena->failed) return am_fail_memory(error, devices);
    if (import->edge_count > MOST_SERVER_EDGES)
        return am_fail(error, AM_ERROR_INPUT, import->server_source, "more than %d links in a server",
                       MOST_SERVER_EDGES);
    return AM_OK;
}

AmStatus import_claim(Import *import, const char **owner, const char *source, const char *claim,
                      AmError *error) {
    if (*owner) return am_fail(error, AM_ERROR_INPUT, source, "%s, as %s does already", claim, *owner);
    *owner = arena_copy_string(import->arena, source);
    return *owner ? AM_OK : am_fail_memory(error, 0);
}

/* Returns the name of a built-in link, which becomes one of the cluster's. */
static const char *builtin_link(Import *import, const char *name) {
    if (!json_object_get(import->links, name))
        json_object_set_new(import->links, name, cluster_builtin_link(name));
    return name;
}

static const char *inside_link(Import *import) {
    if (!import->measured_inside) {
        const char *usual = import->usual->inside;
        am_warn(&import->warnings, "no link inside servers in the files: %s is assumed", usual);
        return builtin_link(import, usual);
    }
    json_object_set(import->links, "measured-inside", import->measured_inside);
    return "measured-inside";
}

static const char *between_name(const Import *import) {
    if (import->between) return import->between;
    return import->measured_between ? "measured-between" : import->usual->between;
}

const char *import_between(Import *import, double share) {
    const char *name = between_name(import);
    json_t *link = !import->between && import->measured_between ? json_copy(import->measured_between)
                                                                : cluster_builtin_link(name);
    double latency = json_number_value(json_object_get(link, "latency_seconds"));
    json_object_set_new(link, "latency_seconds", json_real(latency * share));
    json_object_set_new(import->links, name, link);
    return name;
}

/* Reports measurements and options that have no effect, and properties that no file contains. */
static AmStatus check_use(Import *import, const char *inside, AmError *error) {
    const char *drawn = import->server_source ? import->server_source : "the hosts";
    if (import->measured_inside && !inside)
        return am_fail(error, AM_ERROR_INPUT, import->inside_source,
                       "a link inside servers was measured, but %s %s", drawn,
                       import->server_source ? "describes each link" : "have one device each");
    bool is_given = import->between || import->measured_between;
    bool is_used = json_object_get(import->links, between_name(import)) != NULL;
    if (is_used && !is_given)
        am_warn(&import->warnings,
                "no rate between servers in the files: %s is assumed (--between LINK sets another)",
                import->usual->between);
    if (is_used || !is_given || (import->has_both_links && !import->between)) return AM_OK;
    return am_fail(error, import->between ? AM_ERROR_USAGE : AM_ERROR_INPUT,
                   import->between ? "" : import->between_source, "a link between servers was %s, but %s",
                   import->between ? "asked for" : "measured",
                   import->host_count == 1 ? "there is one server (a hostfile adds more)"
                                           : "the rate of each card is known");
}

/* Sets the devices of a host without a number: those of the described server, else one for a name in a
 * hostfile, as MPI counts it. */
static AmStatus settle_host(Import *import, ImportHost *host, bool *is_assumed, AmError *error) {
    if (host->devices > 0) return AM_OK;
    *is_assumed |= import->device_count == 0;
    host->devices = import->device_count > 0 ? import->device_count : 1;
    if (import->device_count > 0 || import->has_hostfile) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, import->hosts_source,
                   "no number of devices for \"%s\" (expected SLURM_GPUS_PER_NODE, SLURM_GPUS_ON_NODE or "
                   "SLURM_TASKS_PER_NODE, or a second --import that describes a server)",
                   host->name);
}

/* Gives every host its devices; all have as many as the described server, where there is one. */
static AmStatus settle_hosts(Import *import, AmError *error) {
    if (import->host_count == 0 && import->device_count == 0 && import->measured_hosts) {
        /* No file lists servers: the hosts are those of the measurements. */
        const char *name;
        json_t *ranks;
        json_object_foreach(import->measured_hosts, name, ranks)
            import_add_host(import, name, strlen(name), json_integer_value(ranks));
        import->hosts_source = import->measured_source;
        am_warn(&import->warnings, "no servers in the files: %d %s assumed, from the ranks in %s",
                import->host_count, import->host_count == 1 ? "server is" : "servers are",
                import->measured_source);
    }
    if (import->host_count == 0) {
        if (import->device_count == 0)
            return am_fail(
                error, AM_ERROR_INPUT, "",
                "no devices in the imported files (expected a hostfile, a Slurm job or a topology)");
        import_add_host(import, "", 0, import->device_count);
    }
    int64_t total = 0;
    bool is_assumed = false;
    for (int32_t k = 0; k < import->host_count; k++) {
        ImportHost *host = &import->hosts[k];
        TRY(settle_host(import, host, &is_assumed, error));
        if (import->device_count > 0 && host->devices != import->device_count)
            return am_fail(error, AM_ERROR_INPUT, import->hosts_source,
                           "\"%s\" has %d devices, but the server of %s has %d", host->name, host->devices,
                           import->server_source, import->device_count);
        total += host->devices;
    }
    if (is_assumed)
        am_warn(&import->warnings, "%s: names without slots have one device (\"%s slots=8\": eight)",
                import->hosts_source, import->hosts[0].name);
    if (total > MESH_MAX_DEVICES)
        return am_fail(error, AM_ERROR_INPUT, import->hosts_source, "%lld devices, more than %d",
                       (long long)total, MESH_MAX_DEVICES);
    return import->arena->failed ? am_fail_memory(error, total) : AM_OK;
}

static bool is_shared(const char *place) {
    return place[0] == '/';
}

static bool is_device(const char *place) {
    return strncmp(place, "device", 6) == 0;
}

/* Removes edges to switches that no other edge reaches, until none is left. */
static void prune(Import *import) {
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t k = 0; k < import->edge_count; k++) {
            const ImportEdge edge = import->edges[k];
            int32_t at_from = 0, at_to = 0;
            for (int32_t i = 0; i < import->edge_count; i++) {
                const ImportEdge *other = &import->edges[i];
                at_from += strcmp(other->from, edge.from) == 0 || strcmp(other->to, edge.from) == 0;
                at_to += strcmp(other->from, edge.to) == 0 || strcmp(other->to, edge.to) == 0;
            }
            bool ends = (at_from < 2 && !is_device(edge.from) && !is_shared(edge.from)) ||
                        (at_to < 2 && !is_device(edge.to) && !is_shared(edge.to)) ||
                        (import->host_count == 1 && (is_shared(edge.from) || is_shared(edge.to)));
            if (!ends) continue;
            memmove(&import->edges[k], &import->edges[k + 1],
                    (size_t)(import->edge_count - k - 1) * sizeof *import->edges);
            import->edge_count--;
            k--;
            changed = true;
        }
    }
}

/* Adds a card to a server that no card leaves, at its top or at a PCIe switch of all devices. */
static void add_card(Import *import) {
    for (int32_t k = 0; k < import->edge_count; k++)
        if (is_shared(import->edges[k].to)) return;
    if (!import->top) {
        const char *pcie = builtin_link(import, import->usual->pcie);
        for (int32_t d = 0; d < import->device_count; d++) {
            char device[32];
            snprintf(device, sizeof device, "device%d", d);
            import_add_edge(import, device, "pcie", pcie, 1);
        }
        import->top = "pcie";
    }
    import_add_edge(import, import->top, "/network", import_between(import, 0.5), 1);
}

/* Returns "server{s}/cpu0", "rail0" or the like. */
static const char *place_name(const Import *import, const char *place, char *name) {
    if (is_shared(place)) return place + 1;
    snprintf(name, LONGEST_PLACE, "server%s/%s", import->host_count > 1 ? "{s}" : "0", place);
    return name;
}

static json_t *describe_edges(Import *import) {
    json_t *rows = json_array();
    for (int32_t k = 0; k < import->edge_count; k++) {
        const ImportEdge *edge = &import->edges[k];
        char from[LONGEST_PLACE], to[LONGEST_PLACE];
        json_t *row = json_object();
        if (import->host_count > 1)
            json_object_set_new(row, "for", json_pack("{s:[i,i]}", "s", 0, import->host_count));
        json_object_set_new(row, "from", json_string(place_name(import, edge->from, from)));
        json_object_set_new(row, "to", json_string(place_name(import, edge->to, to)));
        json_object_set_new(row, "link", json_string(edge->link));
        if (edge->width != 1) json_object_set_new(row, "width", json_real(edge->width));
        json_array_append_new(rows, row);
    }
    /* Joins rails by a spine if cards end on more than one. */
    json_t *rails = json_object();
    const char *rail, *link = NULL;
    json_t *width;
    for (int32_t k = 0; k < import->edge_count; k++)
        if (is_shared(import->edges[k].to)) {
            link = import->edges[k].link;
            json_object_set_new(rails, import->edges[k].to + 1, json_string(link));
        }
    if (json_object_size(rails) > 1)
        am_warn(&import->warnings,
                "cards of equal number are taken to be on one rail, and rails to meet at a spine as fast");
    if (json_object_size(rails) > 1)
        json_object_foreach(rails, rail, width)
            json_array_append_new(rows, json_pack("{s:s, s:s, s:O, s:i}", "from", rail, "to", "spine", "link",
                                                  width, "width", import->host_count));
    json_decref(rails);
    return json_pack("{s:o}", "edges", rows);
}

/* Runs of hosts with as many devices. */
static json_t *describe_servers(Import *import, const char *link) {
    json_t *servers = json_array();
    for (int32_t k = 0, first = 0; k < import->host_count; k++) {
        if (k + 1 < import->host_count && import->hosts[k + 1].devices == import->hosts[k].devices) continue;
        json_t *row = json_pack("{s:i, s:s, s:i}", "count", k + 1 - first, "device_type", import->device_type,
                                "devices", import->hosts[k].devices);
        if (link && import->hosts[k].devices > 1) json_object_set_new(row, "link", json_string(link));
        json_array_append_new(servers, row);
        first = k + 1;
    }
    return servers;
}

/* Returns the device type, with measured members in place of built-in ones. */
static json_t *describe_type(const Import *import) {
    json_t *type = cluster_builtin_device_type(import->device_type), *value;
    const char *key;
    if (import->memory_bytes > 0)
        json_object_set_new(type, "memory_bytes", json_integer(import->memory_bytes));
    json_t *curves = json_object_get(import->measured_type, "efficiency");
    if (json_object_get(curves, "dot_f16")) json_object_del(type, "measured"); /* of the built-in type */
    json_object_foreach(import->measured_type, key, value) {
        json_t *own = json_object_get(type, key);
        if (json_is_object(own)) json_object_update(own, value);
        else json_object_set(type, key, value);
    }
    return type;
}

AmStatus import_finish(json_t **description, Import *import, AmError *error) {
    *description = NULL;
    TRY(import_operators_finish(import, error));
    TRY(import_sailor_finish(import, error));
    TRY(settle_hosts(import, error));
    bool several = import->host_count > 1;
    if (import->edge_count > 0) {
        if (several) add_card(import);
        prune(import);
    }
    bool is_drawn = import->edge_count > 0;
    bool has_links = false;
    for (int32_t k = 0; k < import->host_count; k++) has_links |= import->hosts[k].devices > 1;
    const char *inside = !is_drawn && has_links ? inside_link(import) : NULL;
    const char *between = !is_drawn && several ? import_between(import, 1) : NULL;
    /* Only the links that edges or servers have are kept. */
    json_t *used = json_object();
    for (int32_t k = 0; k < import->edge_count; k++)
        json_object_set(used, import->edges[k].link, json_object_get(import->links, import->edges[k].link));
    if (inside) json_object_set(used, inside, json_object_get(import->links, inside));
    if (between) json_object_set(used, between, json_object_get(import->links, between));
    json_decref(import->links);
    import->links = used;
    TRY(check_use(import, inside, error));
    json_t *root = json_pack("{s:s, s:s, s:{s:o}, s:O, s:o}", "format", "automap-cluster-1", "name",
                             "imported", "device_types", import->device_type, describe_type(import), "links",
                             import->links, "servers", describe_servers(import, inside));
    if (between) json_object_set_new(root, "between_servers", json_string(between));
    if (is_drawn) json_object_set_new(root, "topology", describe_edges(import));
    if (!root || import->arena->failed) {
        json_decref(root);
        return am_fail_memory(error, 0);
    }
    *description = root;
    return AM_OK;
}
